//! Writes the rules in the language of nft(8).

use super::Firewall;
use super::rule::{End, Interface, Match, Pairs, Rule, Verdict};
use crate::config::Network;
use std::fmt::{self, Formatter};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use testudo_ipsec::{AddressRange, PortRange};
use testudo_wire::ip::Version;

/// nft accepts comments of at most 128 bytes.
const MAX_COMMENT_BYTES: usize = 128;

/// The table is created before it is deleted, so that deleting succeeds whether it existed or not.
pub(super) fn removal(table: &str) -> String {
    format!("table inet {table}\ndelete table inet {table}\n")
}

pub(super) fn write(f: &mut Formatter<'_>, firewall: &Firewall) -> fmt::Result {
    f.write_str(&removal(&firewall.table))?;
    writeln!(f, "table inet {} {{", firewall.table)?;
    let names = Names { tunnel: &firewall.interface, others: &firewall.others };
    for (index, (chain, rules)) in firewall.rules.iter().enumerate() {
        if index > 0 {
            writeln!(f)?;
        }
        writeln!(f, "    chain {} {{", chain.name())?;
        if chain.is_hooked() {
            writeln!(f, "        type filter hook {} priority filter; policy accept;", chain.name())?;
        }
        rules.iter().try_for_each(|rule| write_rule(f, rule, &names))?;
        writeln!(f, "    }}")?;
    }
    writeln!(f, "}}")
}

/// The names of interfaces.
struct Names<'a> {
    tunnel: &'a str,
    others: &'a [String],
}

fn write_rule(f: &mut Formatter<'_>, rule: &Rule, names: &Names<'_>) -> fmt::Result {
    f.write_str("       ")?;
    for condition in &rule.matches {
        f.write_str(" ")?;
        write_match(f, condition, names)?;
    }
    match rule.verdict {
        Verdict::Drop => f.write_str(" counter drop")?,
        Verdict::Return => f.write_str(" return")?,
        Verdict::Accept => f.write_str(" accept")?,
        Verdict::Jump(chain) => write!(f, " jump {}", chain.name())?,
    }
    if !rule.comment.is_empty() {
        let cut = rule.comment.floor_char_boundary(MAX_COMMENT_BYTES);
        write!(f, " comment \"{}\"", &rule.comment[..cut])?;
    }
    writeln!(f)
}

fn write_match(f: &mut Formatter<'_>, condition: &Match, names: &Names<'_>) -> fmt::Result {
    match condition {
        Match::In(which) => write!(f, "iifname {}", interfaces(*which, names)),
        Match::Out(which) => write!(f, "oifname {}", interfaces(*which, names)),
        Match::AnswersGoToTunnel => write!(f, "fib saddr oifname \"{}\"", names.tunnel),
        Match::Ipv6(ipv6) => write!(f, "meta nfproto {}", if *ipv6 { "ipv6" } else { "ipv4" }),
        Match::Addresses(end, range) => write!(f, "{} {range}", field(*end, is_ipv6(range))),
        Match::NotAddresses(end, range) => write!(f, "{} != {range}", field(*end, is_ipv6(range))),
        Match::Pairs(pairs) => write_pairs(f, pairs),
        Match::Networks(end, networks) => write_networks(f, *end, networks),
        Match::Protocol(number) => write!(f, "meta l4proto {number}"),
        Match::NoFragmentHeader => f.write_str("exthdr frag missing"),
        Match::Ports(end, ports) => {
            let field = if *end == End::Source { "sport" } else { "dport" };
            write!(f, "th {field} {ports}")
        }
        // Both bytes at once: nftables has no word for a range of types and codes.
        Match::Message { is_mobility: false, range } => write!(f, "@th,0,16 {range}"),
        Match::Message { is_mobility: true, range } => {
            let types = PortRange { first: range.first.div_ceil(256), last: range.last / 256 };
            write!(f, "@th,16,8 {types}")
        }
        Match::HasNoPorts { ipv6: false } => f.write_str("meta l4proto != { 6, 17, 132 }"),
        Match::HasNoPorts { ipv6: true } => f.write_str("meta l4proto != { 6, 17, 132, 139-140, 148-254 }"),
        Match::NotLaterFragment => f.write_str("ip frag-off & 0x1fff == 0"),
        Match::LaterFragment { ipv6: false } => f.write_str("ip frag-off & 0x1fff != 0"),
        Match::LaterFragment { ipv6: true } => f.write_str("frag frag-off != 0"),
        Match::HeadersInFragment => f.write_str("frag nexthdr { 0, 43, 44, 60 }"),
        // The same numbers as in `protocol::hides_what_follows`, here and where packets have no ports.
        Match::UnknownHeader => f.write_str("meta l4proto { 139-140, 148-254 }"),
        Match::IcmpError { ipv6: false } => f.write_str("icmp type { 3, 11, 12 }"),
        Match::IcmpError { ipv6: true } => f.write_str("icmpv6 type 1-4"),
        // 133 to 137 are neighbour discovery, the rest listener reports (RFC 2710, RFC 3810): hop limit 1.
        Match::NeighbourDiscovery => {
            f.write_str("icmpv6 type . ip6 hoplimit { 130 . 1, 131 . 1, 132 . 1, 143 . 1, 133-137 . 255 }")
        }
    }
}

fn interfaces(which: Interface, Names { tunnel, others }: &Names<'_>) -> String {
    match which {
        Interface::Tunnel => format!("\"{tunnel}\""),
        Interface::TunnelOrLoopback => format!("{{ \"{tunnel}\", \"lo\" }}"),
        Interface::Loopback => "\"lo\"".to_owned(),
        Interface::Others => {
            let quoted: Vec<_> = others.iter().map(|name| format!("\"{name}\"")).collect();
            format!("{{ {} }}", quoted.join(", "))
        }
    }
}

fn is_ipv6(range: &AddressRange) -> bool {
    range.version() == Some(Version::V6)
}

fn field(end: End, is_ipv6: bool) -> &'static str {
    match (end, is_ipv6) {
        (End::Source, false) => "ip saddr",
        (End::Destination, false) => "ip daddr",
        (End::Source, true) => "ip6 saddr",
        (End::Destination, true) => "ip6 daddr",
    }
}

/// `ip saddr & 255.255.0.0`
fn masked(end: End, network: &Network) -> String {
    let field = field(end, network.address().is_ipv6());
    match mask(network) {
        Some(mask) => format!("{field} & {mask}"),
        None => field.to_owned(),
    }
}

/// The mask of a prefix; `None` if it is the whole address.
fn mask(network: &Network) -> Option<IpAddr> {
    let ones: IpAddr = match network.address() {
        IpAddr::V4(_) => Ipv4Addr::BROADCAST.into(),
        IpAddr::V6(_) => Ipv6Addr::from_bits(u128::MAX).into(),
    };
    let mask = Network::containing(ones, network.length())?.address();
    (mask != ones).then_some(mask)
}

fn write_pairs(f: &mut Formatter<'_>, pairs: &Pairs) -> fmt::Result {
    let Some((source, destination, _)) = pairs.pairs.first() else { return Ok(()) };
    let ends = [
        (End::Source, Network::containing(*source, pairs.source_bits)),
        (End::Destination, Network::containing(*destination, pairs.destination_bits)),
    ];
    let fields: Vec<_> =
        ends.iter().filter_map(|(end, network)| Some(masked(*end, network.as_ref()?))).collect();
    writeln!(f, "{} {{", fields.join(" . "))?;
    for (source, destination, name) in &pairs.pairs {
        writeln!(f, "            {source} . {destination}, # {name}")?;
    }
    f.write_str("        }")
}

fn write_networks(f: &mut Formatter<'_>, end: End, networks: &[Network]) -> fmt::Result {
    let Some(first) = networks.first() else { return Ok(()) };
    writeln!(f, "{} {{", masked(end, first))?;
    for network in networks {
        writeln!(f, "            {},", network.address())?;
    }
    f.write_str("        }")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_headers_are_those_of_the_gateway() {
        let numbers = [139..=140_u8, 148..=254].into_iter().flatten();
        let hiding = (0..=u8::MAX).filter(|number| testudo_wire::protocol::hides_what_follows(*number));
        assert!(hiding.eq(numbers));
    }

    #[test]
    fn messages_are_written_as_ranges_of_their_first_bytes() {
        let text = |is_mobility, range| {
            struct Shown(Match);
            impl fmt::Display for Shown {
                fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
                    write_match(f, &self.0, &Names { tunnel: "tun0", others: &[] })
                }
            }
            Shown(Match::Message { is_mobility, range }).to_string()
        };
        assert_eq!(text(false, PortRange::icmp((3, 4), (3, 4))), "@th,0,16 772");
        assert_eq!(text(false, PortRange::icmp((8, 0), (8, 255))), "@th,0,16 2048-2303");
        assert_eq!(text(true, PortRange::mobility(5, 5)), "@th,16,8 5");
        assert_eq!(text(true, PortRange::mobility(1, 4)), "@th,16,8 1-4");
    }

    #[test]
    fn masks_are_written_as_addresses() {
        let mask = |network: &str, bits| mask(&Network::containing(network.parse().unwrap(), bits).unwrap());
        assert_eq!(mask("10.0.0.0", 9), Some("255.128.0.0".parse().unwrap()));
        assert_eq!(mask("10.0.0.0", 32), None);
        assert_eq!(mask("fd00::", 20), Some("ffff:f000::".parse().unwrap()));
        assert_eq!(mask("fd00::1", 128), None);
    }
}
