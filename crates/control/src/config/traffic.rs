//! Reads the values of selectors: addresses, protocols, ports (RFC 4301 4.4.1.1).
//!
//! They are words, separated by commas where a string has several: the same in a configuration and on a
//! command line.

use super::network::Network;
use super::suggest::did_you_mean;
use super::value::{Parsed, split_prefix};
use super::walk::Problem;
use std::net::IpAddr;
use testudo_ipsec::{AddressRange, BadRange, PortRange, Prefix, Protocol};
use testudo_wire::protocol as numbers;

/// Protocols that people know by name, as in IANA's list and `/etc/protocols`; the first name of a number is
/// the one to show.
const PROTOCOLS: [(&str, u8); 24] = [
    ("icmp", numbers::ICMP),
    ("igmp", 2),
    ("ipip", numbers::IPV4),
    ("tcp", numbers::TCP),
    ("udp", numbers::UDP),
    ("dccp", 33),
    ("ipv6", numbers::IPV6),
    ("rsvp", 46),
    ("gre", 47),
    ("esp", numbers::ESP),
    ("ah", numbers::AH),
    ("icmpv6", numbers::ICMPV6),
    ("eigrp", 88),
    ("ospf", 89),
    ("pim", 103),
    ("vrrp", 112),
    ("carp", 112),
    ("l2tp", 115),
    ("sctp", numbers::SCTP),
    ("mobility", numbers::MOBILITY),
    ("mh", numbers::MOBILITY),
    ("mobility-header", numbers::MOBILITY),
    ("udplite", 136),
    ("hip", 139),
];

/// The number of a protocol, by name or number.
#[must_use]
pub fn protocol_number(word: &str) -> Option<u8> {
    let named = PROTOCOLS.iter().find(|(name, _)| *name == word).map(|(_, number)| *number);
    named.or_else(|| digits(word)?.parse().ok())
}

/// The name of a protocol, or its number.
#[must_use]
pub fn protocol_name(number: u8) -> String {
    let named = PROTOCOLS.iter().find(|(_, named)| *named == number);
    named.map_or_else(|| number.to_string(), |(name, _)| (*name).to_owned())
}

/// `text`, if it is digits alone: Rust's numbers may have a plus sign, too.
fn digits(text: &str) -> Option<&str> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then_some(text)
}

/// A protocol, `any` or `opaque`.
pub(super) fn protocol(word: &str) -> Parsed<Protocol> {
    match word {
        "any" => return Ok(Protocol::Any),
        "opaque" => return Ok(Protocol::Opaque),
        _ => {}
    }
    protocol_number(word).map(Protocol::Is).ok_or_else(|| {
        let names = PROTOCOLS.iter().map(|(name, _)| *name).chain(["any", "opaque"]);
        let help = match word {
            "icmp6" | "ipv6-icmp" => Some("did you mean `icmpv6`?".to_owned()),
            _ => did_you_mean(word, names),
        };
        let expected = "a protocol such as \"tcp\", a number from 0 to 255, \"any\" or \"opaque\"";
        Problem { help, ..Problem::expected(expected) }
    })
}

/// An address, a prefix, two addresses with a hyphen between them, or `any`.
pub(super) fn addresses(word: &str) -> Parsed<AddressRange> {
    let expected =
        "an address, a prefix such as \"10.1.0.0/16\", a range such as \"10.1.0.5-10.1.0.9\", or \"any\"";
    match word.split_once('-') {
        _ if word == "any" => Ok(AddressRange::ANY),
        Some((first, last)) if !word.contains('/') => range(first.trim(), last.trim(), expected),
        _ => prefix(word, expected).map(AddressRange::from),
    }
}

fn prefix(word: &str, expected: &str) -> Parsed<Prefix> {
    if word.contains('[') {
        // As in swanctl.conf.
        let help = "protocol and ports have keys of their own: `protocol = \"tcp\"`, `remote_ports = \"80\"`";
        return Err(Problem::expected(expected).help(help));
    }
    let (address, length) = split_prefix(word, expected)?;
    let whole = Prefix::new(address, length).map_err(|_| Problem::expected(expected))?;
    if whole.network() != Some(address) {
        let problem = Problem::expected("a prefix without host bits");
        return Err(problem.help(format!("the network is \"{whole}\"; one host is \"{address}\"")));
    }
    Ok(whole)
}

fn range(first: &str, last: &str, expected: &str) -> Parsed<AddressRange> {
    let problem = || Problem::expected(expected);
    let address = |text: &str| -> Parsed<IpAddr> {
        split_prefix(text, expected)
            .map(|(address, _)| address)
            .map_err(|p| Problem { help: p.help, ..problem() })
    };
    let low = address(first)?;
    let high = address(last).map_err(|problem| match (low, digits(last)) {
        // 10.1.0.5-9
        (IpAddr::V4(v4), Some(host)) if host.parse::<u8>().is_ok() => {
            let [a, b, c, _] = v4.octets();
            problem.help(format!("write \"{first}-{a}.{b}.{c}.{host}\""))
        }
        _ => problem,
    })?;
    AddressRange::new(low, high).map_err(|error| match error {
        BadRange::Versions { .. } => problem().help("both ends of a range are of one IP version"),
        BadRange::Order { .. } => problem().help(format!("write \"{high}-{low}\"")),
    })
}

/// A port, two with a hyphen between them, `any` or `opaque`.
pub(super) fn ports(word: &str) -> Parsed<PortRange> {
    let expected = "a port such as \"443\", a range such as \"1000-2000\", \"any\" or \"opaque\"";
    let problem = || Problem::expected(expected);
    match word {
        "any" => return Ok(PortRange::ANY),
        "opaque" => return Ok(PortRange::OPAQUE),
        _ => {}
    }
    // As nft and iptables write it.
    if let Some((first, last)) = word.split_once(':') {
        return Err(problem().help(format!("write \"{first}-{last}\"")));
    }
    let (first, last) = word.split_once('-').unwrap_or((word, word));
    let help = || did_you_mean(word, ["any", "opaque"]).unwrap_or_else(|| "ports are 0 to 65535".to_owned());
    let port = |text: &str| {
        let number = digits(text.trim()).and_then(|text| text.parse::<u16>().ok());
        number.ok_or_else(|| problem().help(help()))
    };
    let (first, last) = (port(first)?, port(last)?);
    if first > last {
        return Err(problem().help(format!("write \"{last}-{first}\"")));
    }
    Ok(PortRange { first, last })
}

/// The networks that make up a range, for routes; none for every address of both versions.
pub(crate) fn networks(range: AddressRange) -> impl Iterator<Item = Network> {
    range.prefixes().filter_map(Network::of)
}
