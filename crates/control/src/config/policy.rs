//! Reads selectors and `[[policy]]`.

use super::checks::Facts;
use super::model::{Action, Policy};
use super::network::Network;
use super::suggest::did_you_mean;
use super::value;
use super::walk::{Located, Problem, Section, Walker};
use std::collections::HashMap;
use testudo_ipsec::{AddressRange, PortRange, Prefix, Protocol, Selector};
use testudo_wire::ip::Version;
use testudo_wire::protocol;

/// A selector, and its remote network with its position, if it names one.
pub(super) struct SelectorDraft {
    pub(super) selector: Located<Selector>,
    pub(super) remote: Option<Located<Network>>,
}

/// The keys of a selector, all optional.
pub(super) fn read_selector(section: &mut Section<'_>, walker: &mut Walker<'_>) -> SelectorDraft {
    let local = section.or_default(walker, "local", Prefix::ANY, value::prefix);
    let remote = section.located(walker, "remote", value::prefix);
    let found = section.located(walker, "protocol", value::protocol);
    let protocol_is_wrong = found.is_none() && section.value("protocol").is_some();
    let local_ports = section.located(walker, "local_ports", value::ports);
    let remote_ports = section.located(walker, "remote_ports", value::ports);
    check_versions(walker, local, remote.as_ref(), found.as_ref());
    let protocol = found.and_then(|protocol| protocol.value);
    let has_ports = matches!(protocol, Some(protocol::TCP | protocol::UDP | protocol::SCTP));
    if !has_ports && !protocol_is_wrong {
        for ports in local_ports.iter().chain(&remote_ports).filter(|p| p.value != PortRange::ANY) {
            let problem = Problem::expected("ports only with tcp, udp or sctp");
            walker.report(&ports.span, ports.key.clone(), problem.help("add `protocol = \"tcp\"`"));
        }
    }
    let value = Selector {
        local: local.into(),
        remote: remote.as_ref().map_or(AddressRange::ANY, |remote| remote.value.into()),
        protocol: protocol.map_or(Protocol::Any, Protocol::Is),
        local_ports: local_ports.map_or(PortRange::ANY, |ports| ports.value),
        remote_ports: remote_ports.map_or(PortRange::ANY, |ports| ports.value),
    };
    let key = section.path_of("").trim_end_matches('.').to_owned();
    let remote =
        remote.and_then(|r| Network::of(r.value).map(|value| Located { value, span: r.span, key: r.key }));
    SelectorDraft { selector: Located { value, span: section.span().clone(), key }, remote }
}

/// Local, remote and protocol must be possible in one packet.
fn check_versions(
    walker: &mut Walker<'_>,
    local: Prefix,
    remote: Option<&Located<Prefix>>,
    protocol: Option<&Located<Option<u8>>>,
) {
    let remote_version = remote.and_then(|remote| remote.value.version());
    let version = local.version().or(remote_version);
    if let (Some(remote), Some(a), Some(b)) = (remote, local.version(), remote_version)
        && a != b
    {
        let problem = Problem::expected(format!("an {} prefix, as `local` is", ip_name(a)));
        let help = "a packet has addresses of one version: write a selector for each";
        walker.report(&remote.span, remote.key.clone(), problem.help(help));
    }
    let Some((protocol, version)) = protocol.zip(version) else { return };
    let (wrong, right) = match version {
        Version::V4 => (protocol::ICMPV6, "icmp"),
        Version::V6 => (protocol::ICMP, "icmpv6"),
    };
    if protocol.value == Some(wrong) {
        let problem = Problem::expected(format!("a protocol of {}", ip_name(version)));
        walker.report(
            &protocol.span,
            protocol.key.clone(),
            problem.help(format!("write `protocol = \"{right}\"`")),
        );
    }
}

fn ip_name(version: Version) -> &'static str {
    match version {
        Version::V4 => "IPv4",
        Version::V6 => "IPv6",
    }
}

/// Reads a policy; `tunnels` maps names to indices.
pub(super) fn read_policy(
    mut section: Section<'_>,
    walker: &mut Walker<'_>,
    tunnels: &HashMap<String, usize>,
    facts: &mut Facts,
) -> Option<Policy> {
    let words = [("protect", "protect"), ("bypass", "bypass"), ("discard", "discard")];
    let action = section.required(walker, "action", "\"discard\"", value::choice(&words));
    let SelectorDraft { selector, remote } = read_selector(&mut section, walker);
    let word = action.as_ref().map(|action| action.value);
    let action = match word {
        Some("protect") => {
            facts.routed.extend(remote);
            read_tunnel_name(&mut section, walker, tunnels).map(|tunnel| Action::Protect { tunnel })
        }
        Some("bypass") => {
            facts.bypasses.extend(action.map(|action| Located { value: (), ..unit(action) }));
            Some(Action::Bypass)
        }
        Some(_) => Some(Action::Discard),
        None => None,
    };
    if word != Some("protect") {
        let problem = Problem::expected("`tunnel` only where `action` is \"protect\"");
        // If the action is wrong, `tunnel` may be right or wrong.
        match word {
            Some(_) => section.refuse(walker, "tunnel", problem),
            None => drop(section.value("tunnel")),
        }
    }
    section.finish(walker);
    facts.policy_rules.push(selector.clone());
    Some(Policy { selector: selector.value, action: action? })
}

fn unit<T>(located: Located<T>) -> Located<()> {
    Located { value: (), span: located.span, key: located.key }
}

fn read_tunnel_name(
    section: &mut Section<'_>,
    walker: &mut Walker<'_>,
    tunnels: &HashMap<String, usize>,
) -> Option<usize> {
    let found = section.required(walker, "tunnel", "\"site-b\"", |value| {
        let name = value::string(value, "the name of a tunnel")?;
        tunnels.get(name).copied().ok_or_else(|| {
            let help = did_you_mean(name, tunnels.keys().map(String::as_str));
            Problem { help, ..Problem::expected("the name of a tunnel") }
        })
    });
    found.map(|found| found.value)
}
