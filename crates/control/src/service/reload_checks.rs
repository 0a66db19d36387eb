//! What a reload may not change, and what it is to warn of.

use super::installed::InstalledTunnels;
use super::policies::NO_BYPASS;
use super::sa_control;
use crate::config::{Action, Configuration, Gateway, Loaded, Tunnel};

/// The numbers of an ephemeral key are nowhere but in this process: after a restart they would begin again.
pub(super) fn refuse_ephemeral_keys(sas: &sa_control::State, loaded: &Loaded) -> Result<(), String> {
    for (tunnel, keys) in loaded.configuration.tunnels.iter().zip(&loaded.keys) {
        if [&keys.outbound, &keys.inbound].into_iter().chain(keys.more()).any(|key| sas.was_ephemeral(key)) {
            return Err(format!(
                "tunnel {}: its key was added as an ephemeral one: a configuration needs another",
                tunnel.name
            ));
        }
    }
    Ok(())
}

/// Changes of policies end with a reload, and the host's firewall has rules of its own.
pub(super) fn warn_of_undone_policies(changes: u64) {
    let changes = match changes {
        0 => return,
        1 => "1 change of policies while it ran is".to_owned(),
        n => format!("{n} changes of policies while it ran are"),
    };
    tracing::warn!(
        "{changes} undone: those of the file are in force; `testudo firewall --apply` loads their rules, as the units do"
    );
}

/// SAs that were replaced at run time go on in a reload, and a restart would bring back the old ones.
pub(super) fn warn_of_replaced_sas(installed: &InstalledTunnels) {
    for running in installed.tunnels.iter().filter(|running| running.has_another_key()) {
        tracing::warn!(
            "tunnel {} goes on with SAs that were added at run time: write them into the configuration, or a \
             restart brings back those that it names",
            running.tunnel.name
        );
    }
}

/// Ports, engines and paths do not change while a gateway runs.
pub(super) fn bypasses(configuration: &Configuration) -> bool {
    configuration.policies.iter().any(|policy| policy.action == Action::Bypass)
}

/// Packets that pass in clear leave through a socket that is opened with the port.
pub(super) fn refuse_bypass(may_bypass: bool, new: &Configuration) -> Result<(), String> {
    if bypasses(new) && !may_bypass {
        return Err(NO_BYPASS.to_owned());
    }
    Ok(())
}

pub(super) fn refuse_what_needs_a_restart(old: &Configuration, new: &Configuration) -> Result<(), String> {
    let restart = |what: &str| Err(format!("{what} changed: that needs a restart"));
    // The number of workers is another's concern.
    let workers = old.gateway.workers;
    if old.gateway != (Gateway { workers, ..new.gateway.clone() }) {
        return restart("[gateway]");
    }
    if old.cryptodev != new.cryptodev {
        return restart("[engine.cryptodev]");
    }
    if old.gpu != new.gpu {
        return restart("[engine.gpu]");
    }
    if old.scheduler != new.scheduler || old.threading != new.threading {
        return restart("[scheduler]");
    }
    if old.cores != new.cores {
        return restart("[engine.cores]");
    }
    if old.ike != new.ike {
        return restart("[ike]");
    }
    if old.unprotected != new.unprotected {
        return restart("[port.unprotected]");
    }
    // Which interfaces there are; their MTUs are last, as below.
    let names = |configuration: &Configuration| -> Vec<_> {
        let all = configuration.interfaces.iter();
        all.map(|interface| (interface.name.clone(), interface.if_id, interface.vpe)).collect()
    };
    if names(old) != names(new) {
        return restart("[[interface]]");
    }
    if let Some(tunnel) = needs_source_ports(old, new) {
        return restart(&format!("`udp_source_ports` of tunnel {tunnel}"));
    }
    let ends = old.outer_endpoints();
    match new.outer_endpoints().into_iter().find(|end| !ends.contains(end)) {
        Some(end) => restart(&format!("{end} is new, the unprotected port")),
        // Last, because its MTU follows from the other parts.
        None if old.protected != new.protected => restart("[port.protected]"),
        None if old.interfaces != new.interfaces => restart("[[interface]]"),
        None => Ok(()),
    }
}

/// The first tunnel whose windows have source ports of their own at an end where no tunnel had that: the
/// socket that sends from many ports is opened with the port.
fn needs_source_ports<'a>(old: &Configuration, new: &'a Configuration) -> Option<&'a str> {
    let opened = |tunnel: &Tunnel| {
        let mut all = old.tunnels.iter().filter(|t| t.has_source_ports());
        all.any(|t| t.outer_endpoint() == tunnel.outer_endpoint())
    };
    let mut all = new.tunnels.iter().filter(|tunnel| tunnel.has_source_ports());
    all.find(|tunnel| !opened(tunnel)).map(|tunnel| tunnel.name.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::tests::MINIMAL;
    use testudo_ipsec::{VpeRules, VpeSourcePorts};

    #[test]
    fn source_ports_of_windows_need_a_restart_where_no_tunnel_had_any() {
        let mut one = Configuration::parse(MINIMAL, "t.toml").unwrap();
        one.tunnels[0].rules.vpe = Some(Box::default());
        let mut many = one.clone();
        let rules = VpeRules::default().with_source_ports(VpeSourcePorts::PerWindow);
        many.tunnels[0].rules.vpe = Some(Box::new(rules));
        let refused = refuse_what_needs_a_restart(&one, &many).unwrap_err();
        assert!(refused.contains("`udp_source_ports` of tunnel"), "{refused}");
        assert_eq!(refuse_what_needs_a_restart(&many, &many), Ok(()));
        assert_eq!(refuse_what_needs_a_restart(&many, &one), Ok(()), "the socket is there");
    }
}
