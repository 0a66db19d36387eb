//! Reads `mtu_probe`: pings through the tunnel that find the MTU of its path where ICMP errors are filtered.

use super::model::Selectors;
use super::value;
use super::walk::{Located, Problem, Section, Walker};
use std::net::IpAddr;
use std::time::Duration;
use testudo_ipsec::{AddressRange, Df, MtuProbe, PacketRules, PortRange, Protocol, Selector};
use testudo_wire::protocol;

/// Seconds between two confirmations of the MTU, usually.
const INTERVAL: u64 = 30;
/// Echo request and reply, ICMP and ICMPv6.
const ECHO: [[u8; 2]; 2] = [[8, 0], [128, 129]];

/// The rules of a tunnel that protects this traffic, with its probes.
pub(super) fn read(
    section: &mut Section<'_>,
    walker: &mut Walker<'_>,
    rules: PacketRules,
    selectors: &[Selectors],
) -> PacketRules {
    let Some(mut table) = section.table(walker, "mtu_probe") else { return rules };
    let source = table.required(walker, "source", "\"10.1.0.1\"", value::host_address);
    let destination = table.required(walker, "destination", "\"10.2.0.1\"", value::host_address);
    let seconds = table.or_default(walker, "interval_seconds", INTERVAL, value::number(5, 3600));
    table.finish(walker);
    if rules.df == Df::Clear {
        let problem = Problem::expected("no `mtu_probe` where `df = \"clear\"`");
        section.refuse(
            walker,
            "mtu_probe",
            problem.help("routers cut such datagrams, and lose none for length"),
        );
        return rules;
    }
    let (Some(source), Some(destination)) = (source, destination) else { return rules };
    check(walker, &source, &destination, selectors);
    let interval = Duration::from_secs(seconds);
    let probe = MtuProbe { source: source.value, destination: destination.value, interval };
    PacketRules { mtu_probe: Some(Box::new(probe)), ..rules }
}

/// Requests and their replies must be traffic that the tunnel protects: the peer would refuse others.
fn check(
    walker: &mut Walker<'_>,
    source: &Located<IpAddr>,
    destination: &Located<IpAddr>,
    selectors: &[Selectors],
) {
    if selectors.iter().any(|entry| entry.is_empty()) {
        // An entry that is wrong was reported already.
        return;
    }
    let is_v4 = source.value.is_ipv4();
    let [request, reply] = ECHO[usize::from(!is_v4)].map(|kind| PortRange::icmp((kind, 0), (kind, 0)));
    let number = if is_v4 { protocol::ICMP } else { protocol::ICMPV6 };
    let pings = Selector {
        protocol: Protocol::Is(number),
        local_ports: request,
        remote_ports: reply,
        ..Selector::between(AddressRange::host(source.value), AddressRange::host(destination.value))
    };
    if !selectors.iter().flat_map(|entry| entry.iter()).any(|selector| selector.covers(&pings)) {
        let problem = Problem::expected("addresses between which a selector of the tunnel protects pings");
        let found = problem.found(format!("{} and {}", source.value, destination.value));
        let help = "`source` must be on our side of the selector, `destination` behind the peer";
        walker.report(&destination.span, destination.key.clone(), found.help(help));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Configuration;
    use crate::config::tests::MINIMAL;

    fn probe(lines: &str) -> Result<Option<MtuProbe>, String> {
        let text = MINIMAL.replacen("name = \"site-b\"", &format!("name = \"site-b\"\n{lines}"), 1);
        let parsed = Configuration::parse(&text, "t.toml").map_err(|errors| errors.to_string())?;
        Ok(parsed.tunnels[0].rules.mtu_probe.as_deref().copied())
    }

    #[test]
    fn a_tunnel_says_between_which_addresses_its_path_is_probed() {
        assert_eq!(probe(""), Ok(None));
        let [source, destination] = ["10.1.0.1", "10.2.0.1"].map(|text| text.parse().unwrap());
        for (more, seconds) in [("", 30), (", interval_seconds = 5", 5)] {
            let line = format!("mtu_probe = {{ source = \"10.1.0.1\", destination = \"10.2.0.1\"{more} }}");
            let interval = Duration::from_secs(seconds);
            assert_eq!(probe(&line), Ok(Some(MtuProbe { source, destination, interval })));
        }
    }

    #[test]
    fn probes_that_nobody_could_answer_are_refused() {
        for (line, complaint) in [
            ("mtu_probe = { source = \"10.1.0.1\" }", "the key `destination`"),
            ("mtu_probe = { source = \"10.1.0.1\", destination = \"10.3.0.1\" }", "a selector of the tunnel"),
            ("mtu_probe = { source = \"10.2.0.1\", destination = \"10.1.0.1\" }", "a selector of the tunnel"),
            ("mtu_probe = { source = \"10.1.0.1\", destination = \"fd00::1\" }", "a selector of the tunnel"),
            (
                "df = \"clear\"\nmtu_probe = { source = \"10.1.0.1\", destination = \"10.2.0.1\" }",
                "lose none for length",
            ),
            (
                "mtu_probe = { source = \"10.1.0.1\", destination = \"10.2.0.1\", interval_seconds = 1 }",
                "from 5 to 3600",
            ),
        ] {
            let error = probe(line).unwrap_err();
            assert!(error.contains(complaint), "{line}: {error}");
        }
    }
}
