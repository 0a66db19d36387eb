//! `testudo check`.

mod dpdk;
mod interfaces;

use crate::cli::CheckArgs;
use crate::exit::{Failure, Kind};
use crate::out::{errln, outln};
use crate::reverse_path;
use std::path::Path;
use testudo_control::config::{Configuration, KnownAnswers, Sizes};
use testudo_control::processors;

/// Reports all errors of a configuration and its keys.
pub fn check(args: &CheckArgs) -> Result<(), Failure> {
    let environment = |name: &str| std::env::var(name).ok();
    match Configuration::load(&args.config, KnownAnswers::Allow, &environment) {
        Ok(loaded) if args.json => {
            let _ = loaded;
            outln!("[]");
            Ok(())
        }
        Ok(loaded) => {
            outln!("{}: {}", args.config.display(), summary(&loaded.configuration));
            print_sizes(&loaded.configuration);
            loaded.configuration.group_notes().iter().for_each(|line| outln!("{line}"));
            loaded.configuration.vpe_note().iter().for_each(|line| outln!("{line}"));
            loaded.configuration.buffers_note().iter().for_each(|line| outln!("{line}"));
            processors::note(&loaded.configuration).iter().for_each(|line| outln!("{line}"));
            interfaces::notes(&loaded.configuration).iter().for_each(|line| outln!("{line}"));
            dpdk::notes(&loaded.configuration).iter().for_each(|line| outln!("{line}"));
            let mtu = loaded.configuration.unprotected.mtu_warning(link_mtu(&loaded.configuration));
            let reverse_path = reverse_path::warning(&loaded.configuration);
            let warnings = loaded.configuration.warnings().into_iter().chain(mtu).chain(reverse_path);
            let warnings = warnings.chain(interfaces::warnings(&loaded.configuration));
            let warnings = warnings.chain(processors::warnings(&loaded.configuration));
            warnings.for_each(|warning| outln!("warning: {warning}"));
            if loaded.configuration.tunnels.iter().any(|t| t.known_answer.is_some()) {
                outln!("note: it sets known answers: `testudo replay` accepts it, `testudo run` does not");
            }
            Ok(())
        }
        Err(errors) if args.json => {
            outln!("{}", errors.to_json());
            Err(Failure::silent(Kind::Configuration))
        }
        Err(errors) => {
            errln!("{errors}");
            Err(Failure::silent(Kind::Configuration))
        }
    }
}

/// What a configuration without errors has.
fn summary(configuration: &Configuration) -> String {
    let (tunnels, policies) = (configuration.tunnels.len(), configuration.policies.len());
    let ike = configuration.ike.as_ref();
    let ike = ike.map(|ike| format!("; [ike]: daemons connect at {}", ike.socket.display()));
    format!("no errors; tunnels: {tunnels}, further policies: {policies}{}", ike.unwrap_or_default())
}

/// Tunnels for which `check` says what fits.
const SIZES_OF: usize = 8;

/// What fits through each of the first tunnels, for the configured MTU.
fn print_sizes(configuration: &Configuration) {
    let mut carrying = configuration.tunnels.iter().filter(|tunnel| tunnel.covers.is_none());
    for tunnel in carrying.by_ref().take(SIZES_OF) {
        let covering = tunnel.covered_by.and_then(|ah| configuration.tunnels.get(ah));
        let sizes = tunnel.sizes(configuration.unprotected.mtu, covering);
        let Sizes { path_mtu, inner_mtu, overhead, mss_ipv4, mss_ipv6 } = sizes;
        let mss = [(mss_ipv4, "IPv4"), (mss_ipv6, "IPv6")].into_iter();
        let mss = mss.filter_map(|(mss, version)| Some(format!(", TCP MSS {} over {version}", mss?)));
        let mss: String = mss.collect();
        let name = &tunnel.name;
        outln!(
            "tunnel {name}: a path of {path_mtu} bytes, less {overhead}, leaves {inner_mtu} for packets{mss}"
        );
    }
    let others = carrying.count();
    if others > 0 {
        outln!("and {others} more tunnels");
    }
}

/// The MTU of the outer interface, if the configuration names one and this host has it.
fn link_mtu(configuration: &Configuration) -> Option<u32> {
    let interface = configuration.unprotected.interface.as_ref()?;
    let text = std::fs::read_to_string(Path::new("/sys/class/net").join(interface).join("mtu")).ok()?;
    text.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_summary_says_where_key_exchange_daemons_connect() {
        let ports = "[gateway]\nstate = \"s\"\n[port.protected]\nkind = \"tun\"\nname = \"t0\"\n[port.unprotected]\nkind = \"socket\"\n";
        let of = |more: &str| summary(&Configuration::parse(&format!("{ports}{more}"), "t.toml").unwrap());
        assert_eq!(of(""), "no errors; tunnels: 0, further policies: 0");
        let expected =
            "no errors; tunnels: 0, further policies: 0; [ike]: daemons connect at /run/t/xfrm.sock";
        assert_eq!(of("[ike]\nsocket = \"/run/t/xfrm.sock\"\n"), expected);
    }
}
