//! SAs of their own for the flows of one policy: "populate from packet" (RFC 4301 4.4.1, 4.4.1.2).
//!
//! A policy with such flags stands for many SAs. Where a flag is set, an SA has the value of the packet that
//! asked for it, otherwise the values of the policy (RFC 4301 4.4.2.2):
//!
//! ```text
//!   policy      flags     packet                  SA's selector
//!   10.2.0.0/16 set       to 10.2.0.7             10.2.0.7
//!   10.2.0.0/16 not set   to 10.2.0.7             10.2.0.0/16
//!   any port    set       from port 5000          5000
//!   any port    set       a later fragment        none: the packet is discarded
//! ```
//!
//! The SAs of one policy never overlap. Two packets either have the same [values](PacketValues) at all flags,
//! and one SA, or differ at one of them, and so do the selectors of their SAs. So the policies of these SAs
//! may have any order among each other, directly ahead of the one that they come from.
//!
//! A port is one of a certain protocol. A selector that has a flag for ports or types and names no protocol
//! therefore makes no SA; where its protocol has no ports, there is none to populate, and the flag says
//! nothing.

use super::addresses::{AddressRange, address_bits, address_of};
use super::database::count_pieces;
use super::flow::{Flow, is_of_messages};
use super::lookups::OfInterface;
use super::policy::{Action, Policy, PolicyId, TunnelIndex};
use super::selector::{PortRange, Protocol, Selector};
use hashbrown::HashSet;
use std::fmt;
use std::net::IpAddr;
use testudo_wire::ip::Version;
use testudo_wire::protocol::has_selector_fields;

/// The fields that an SA takes from the packet (RFC 4301 4.4.1.2, PFP flags). "Whether a single flag is used
/// for, e.g., source port, ICMP type/code, and MH type, or a separate flag is used for each, is a local
/// matter": ports have a flag for each end, types of messages one for both.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct PopulateFlags(u8);

impl PopulateFlags {
    /// The address on the protected side.
    pub const LOCAL: Self = Self(1);
    /// The address behind the peer.
    pub const REMOTE: Self = Self(1 << 1);
    /// The next layer protocol.
    pub const PROTOCOL: Self = Self(1 << 2);
    /// The port on the protected side.
    pub const LOCAL_PORTS: Self = Self(1 << 3);
    /// The port behind the peer.
    pub const REMOTE_PORTS: Self = Self(1 << 4);
    /// Type and code of ICMP, or type of the Mobility Header, of messages in both directions.
    pub const TYPES: Self = Self(1 << 5);

    /// All flags, by the names that their fields have in a configuration.
    pub const NAMED: [(&'static str, Self); 6] = [
        ("local", Self::LOCAL),
        ("remote", Self::REMOTE),
        ("protocol", Self::PROTOCOL),
        ("local_ports", Self::LOCAL_PORTS),
        ("remote_ports", Self::REMOTE_PORTS),
        ("types", Self::TYPES),
    ];

    /// Whether all flags of `other` are set.
    #[must_use]
    pub const fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Whether no flag is set.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// These flags and those of `other`.
    #[must_use]
    pub const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// The names of the flags that are set.
    pub fn names(self) -> impl Iterator<Item = &'static str> {
        Self::NAMED.into_iter().filter(move |(_, flag)| self.has(*flag)).map(|(name, _)| name)
    }

    /// Whether it has a flag for a field of the next layer.
    const fn is_for_next_layer(self) -> bool {
        self.0 & (Self::LOCAL_PORTS.0 | Self::REMOTE_PORTS.0 | Self::TYPES.0) != 0
    }
}

/// The values of a packet at some of its fields: those with which an SA is populated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct PacketValues {
    /// Its address on the protected side.
    pub local: Option<IpAddr>,
    /// Its address behind the peer.
    pub remote: Option<IpAddr>,
    /// Its next layer protocol.
    pub protocol: Option<u8>,
    /// Its port on the protected side.
    pub local_port: Option<u16>,
    /// Its port behind the peer.
    pub remote_port: Option<u16>,
    /// The type of its message, as in [`PortRange`].
    pub message: Option<u16>,
}

impl PacketValues {
    /// The values at the fields with a flag; `None` if the packet has one of these fields and hides it. Then
    /// it is discarded: RFC 4301 4.4.2.2, where a flag is set and the value is "not avail."
    #[must_use]
    pub fn of(flow: &Flow, flags: PopulateFlags) -> Option<Self> {
        let version = flow.version();
        let if_set = |flag, address| flags.has(flag).then(|| address_of(version, address));
        let mut values = Self {
            local: if_set(PopulateFlags::LOCAL, flow.local()),
            remote: if_set(PopulateFlags::REMOTE, flow.remote()),
            ..Self::default()
        };
        if flags.has(PopulateFlags::PROTOCOL) {
            values.protocol = Some(flow.protocol()?);
        }
        if flags.is_for_next_layer() {
            values.populate_next_layer(flow, flags)?;
        }
        Some(values)
    }

    fn populate_next_layer(&mut self, flow: &Flow, flags: PopulateFlags) -> Option<()> {
        let protocol = flow.protocol()?;
        let shown = || flow.values().0;
        if is_of_messages(protocol) {
            if flags.has(PopulateFlags::TYPES) {
                self.message = Some(shown()?.0);
            }
        } else if has_selector_fields(protocol) {
            if flags.has(PopulateFlags::LOCAL_PORTS) {
                self.local_port = Some(shown()?.0);
            }
            if flags.has(PopulateFlags::REMOTE_PORTS) {
                self.remote_port = Some(shown()?.1);
            }
        }
        Some(())
    }

    /// All that a packet shows: what a key exchange proposes beside the policy's values (RFC 7296 2.9).
    #[must_use]
    pub fn shown(flow: &Flow) -> Self {
        let (protocol, version) = (flow.protocol(), flow.version());
        let (local, remote) = flow.values().0.unzip();
        let is_message = protocol.is_some_and(is_of_messages);
        Self {
            local: Some(address_of(version, flow.local())),
            remote: Some(address_of(version, flow.remote())),
            protocol,
            local_port: local.filter(|_| !is_message),
            remote_port: remote.filter(|_| !is_message),
            message: local.filter(|_| is_message),
        }
    }
}

/// `local=10.1.0.5 protocol=17 remote_ports=53`
impl fmt::Display for PacketValues {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { local, remote, protocol, local_port, remote_port, message } = *self;
        let address = |address: Option<IpAddr>| address.map(|address| address.to_string());
        let number = |number: Option<u16>| number.map(|number| number.to_string());
        let words = [
            address(local),
            address(remote),
            number(protocol.map(u16::from)),
            number(local_port),
            number(remote_port),
            message.map(|message| PortRange::one(message).messages().to_string()),
        ];
        let named = PopulateFlags::NAMED.into_iter().map(|(name, _)| name).zip(words);
        let words: Vec<_> = named.filter_map(|(name, word)| Some(format!("{name}={}", word?))).collect();
        f.write_str(&words.join(" "))
    }
}

impl Policy {
    /// The selectors of the SA for packets with these values; none if the policy does not populate SAs from
    /// packets, or takes other values, or selects no such packets.
    #[must_use]
    pub fn populated(&self, values: &PacketValues) -> Vec<Selector> {
        if !matches!(self.action, Action::Populate(_)) {
            return Vec::new();
        }
        let mut selectors = Vec::new();
        for selector in self.selectors.iter().filter_map(|selector| narrowed(selector, self.populate, values))
        {
            if !selectors.contains(&selector) {
                selectors.push(selector);
            }
        }
        selectors
    }
}

impl Policy {
    /// How many [pairs of prefixes](Self::count_pieces) the selectors of each of its SAs make at most: a
    /// field with a flag has one value there. Selectors that have no such value in common are never in one
    /// SA.
    #[must_use]
    pub fn count_flow_pieces(&self) -> usize {
        let of = |selector: &Selector| {
            let one = with_single_values(selector, self.populate);
            (*selector, one, count_pieces(&one, self.directions))
        };
        let all: Vec<_> = self.selectors.iter().map(of).collect();
        let beside = |selector: &Selector| -> usize {
            let mut seen = HashSet::with_hasher(foldhash::fast::RandomState::default());
            let meeting = all.iter().filter(|(other, ..)| share_values(selector, other, self.populate));
            meeting.filter(|(_, one, _)| seen.insert(*one)).map(|(.., pieces)| pieces).sum()
        };
        all.iter().map(|(selector, ..)| beside(selector)).max().unwrap_or(0)
    }
}

/// Whether it has ports, and not types in their place.
fn has_ports(protocol: Protocol) -> bool {
    matches!(protocol, Protocol::Is(number) if has_selector_fields(number) && !is_of_messages(number))
}

/// A selector that makes as many pairs of prefixes as this one does with the values of any packet. Two that
/// are alike are alike with the values of each packet.
fn with_single_values(selector: &Selector, flags: PopulateFlags) -> Selector {
    let version = selector.local.version().or(selector.remote.version()).unwrap_or(Version::V4);
    let host = AddressRange::host(address_of(version, 0));
    let address = |flag, range| if flags.has(flag) { host } else { range };
    let protocol = selector.protocol;
    let port = |flag, range| {
        let is_type = flags.has(PopulateFlags::TYPES) && protocol.is_of_messages();
        if is_type || flags.has(flag) && has_ports(protocol) { PortRange::one(0) } else { range }
    };
    Selector {
        local: address(PopulateFlags::LOCAL, selector.local),
        remote: address(PopulateFlags::REMOTE, selector.remote),
        protocol,
        local_ports: port(PopulateFlags::LOCAL_PORTS, selector.local_ports),
        remote_ports: port(PopulateFlags::REMOTE_PORTS, selector.remote_ports),
    }
}

/// Whether some packet's values may be those of both selectors at the fields with a flag.
fn share_values(a: &Selector, b: &Selector, flags: PopulateFlags) -> bool {
    let have_ports = has_ports(a.protocol) && has_ports(b.protocol);
    let are_messages = a.protocol.is_of_messages() && b.protocol.is_of_messages();
    let overlap = |a: PortRange, b: PortRange| a.first <= b.last && b.first <= a.last;
    let differs = [
        (PopulateFlags::LOCAL, !a.local.overlaps(&b.local)),
        (PopulateFlags::REMOTE, !a.remote.overlaps(&b.remote)),
        (PopulateFlags::PROTOCOL, !(a.protocol.covers(b.protocol) || b.protocol.covers(a.protocol))),
        (PopulateFlags::LOCAL_PORTS, have_ports && !overlap(a.local_ports, b.local_ports)),
        (PopulateFlags::REMOTE_PORTS, have_ports && !overlap(a.remote_ports, b.remote_ports)),
        (PopulateFlags::TYPES, are_messages && !overlap(a.local_ports, b.local_ports)),
    ];
    !differs.into_iter().any(|(flag, differs)| differs && flags.has(flag))
}

/// An SA that a flow asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Wanted {
    /// The tunnel that it is made after.
    pub(crate) template: TunnelIndex,
    /// The policy that populates it.
    pub(crate) policy: PolicyId,
    /// What it is populated with.
    pub(crate) values: PacketValues,
}

impl OfInterface<'_> {
    /// The SA that a flow asks for. `None` if its policy populates none, or the flow does not show or have
    /// what it is populated with.
    // Inlined, it costs packets that ask for nothing.
    #[cold]
    #[inline(never)]
    pub(crate) fn wanted_by(&self, flow: &Flow) -> Option<Wanted> {
        let id = self.lookup(flow).1?;
        let policy = self.spd.get(id)?;
        let Action::Populate(template) = policy.action else { return None };
        let values = PacketValues::of(flow, policy.populate)?;
        // In place, and only of those that select the packet: a flood may come by here.
        let mut selecting = policy.selectors.iter().filter(|selector| selector.matches(flow));
        let carries = selecting.any(|selector| {
            narrowed(selector, policy.populate, &values).is_some_and(|narrowed| narrowed.matches(flow))
        });
        carries.then_some(Wanted { template, policy: id, values })
    }
}

/// A selector with the values of a packet where there are flags.
fn narrowed(selector: &Selector, flags: PopulateFlags, values: &PacketValues) -> Option<Selector> {
    let local = address(selector.local, flags.has(PopulateFlags::LOCAL), values.local)?;
    let remote = address(selector.remote, flags.has(PopulateFlags::REMOTE), values.remote)?;
    let protocol = match (flags.has(PopulateFlags::PROTOCOL), values.protocol) {
        (false, None) => selector.protocol,
        (true, Some(number)) if selector.protocol.covers(number.into()) => number.into(),
        _ => return None,
    };
    if flags.is_for_next_layer() && !matches!(protocol, Protocol::Is(_)) {
        return None;
    }
    let has_ports = has_ports(protocol);
    let is_set = |flag, is_there: bool| is_there && flags.has(flag);
    let [own, other] = match protocol.is_of_messages() {
        true => types_of(selector)?,
        false => [selector.local_ports, selector.remote_ports],
    };
    // The same messages in both directions: what answers one is another one, and has an SA of its own.
    let has_types = is_set(PopulateFlags::TYPES, protocol.is_of_messages());
    let [own, other] = if has_types {
        [ports(own, true, values.message)?, ports(other, true, values.message)?]
    } else {
        [own, other]
    };
    if !has_types && values.message.is_some() {
        return None;
    }
    let local_ports = ports(own, is_set(PopulateFlags::LOCAL_PORTS, has_ports), values.local_port)?;
    let remote_ports = ports(other, is_set(PopulateFlags::REMOTE_PORTS, has_ports), values.remote_port)?;
    Some(Selector { local, remote, protocol, local_ports, remote_ports })
}

/// The messages that a selector selects, sent and received; `None` if it selects none. Ranges of one that
/// names no protocol are for ports, which messages do not have.
///
/// A selector of OPAQUE ports without a protocol matches messages that hide their type, even where an earlier
/// policy selects by the type. A selector with the protocol cannot match both these and messages that show
/// theirs: it takes messages of any type, and those that hide it are dropped as `fields_hidden` if an earlier
/// policy selects by it.
fn types_of(selector: &Selector) -> Option<[PortRange; 2]> {
    let ranges = [selector.local_ports, selector.remote_ports];
    match selector.protocol {
        Protocol::Is(_) => Some(ranges),
        _ if ranges.iter().any(|range| range.names_values()) => None,
        _ => Some([PortRange::ANY; 2]),
    }
}

fn address(range: AddressRange, is_set: bool, value: Option<IpAddr>) -> Option<AddressRange> {
    match (is_set, value) {
        (false, None) => Some(range),
        (true, Some(value)) if range.contains(Version::of(value), address_bits(value)) => {
            Some(AddressRange::host(value))
        }
        _ => None,
    }
}

/// OPAQUE holds no value: a flag beside it "is an error" (RFC 4301 4.4.2.2).
fn ports(range: PortRange, is_set: bool, value: Option<u16>) -> Option<PortRange> {
    match (is_set, value) {
        (false, None) => Some(range),
        (true, Some(value)) if range.first <= value && value <= range.last => Some(PortRange::one(value)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spd::{Direction, Prefix};
    use testudo_wire::next_layer::NextLayerFields;
    use testudo_wire::protocol::{ICMP, TCP, UDP};

    const GRE: u8 = 47;

    fn net(text: &str) -> AddressRange {
        let (address, length) = text.split_once('/').unwrap();
        Prefix::new(address.parse().unwrap(), length.parse().unwrap()).unwrap().into()
    }

    fn host(text: &str) -> AddressRange {
        AddressRange::host(text.parse().unwrap())
    }

    fn policy(selector: Selector, flags: PopulateFlags) -> Policy {
        Policy::populating(selector, TunnelIndex(0), flags)
    }

    fn flags(names: &[&str]) -> PopulateFlags {
        let set = PopulateFlags::NAMED.into_iter().filter(|(name, _)| names.contains(name));
        set.fold(PopulateFlags::default(), |flags, (_, flag)| flags.with(flag))
    }

    fn flow(protocol: u8, fields: Option<NextLayerFields>) -> Flow {
        let (local, remote) = ("10.1.0.5".parse().unwrap(), "192.0.2.3".parse().unwrap());
        Flow::new(Direction::Outbound, local, remote, protocol, fields)
    }

    /// The selectors of the SA that a packet asks for.
    fn wanted(selector: Selector, names: &[&str], flow: &Flow) -> Option<Vec<Selector>> {
        let policy = policy(selector, flags(names));
        assert!(selector.matches(flow), "the policy decides on the packet");
        Some(policy.populated(&PacketValues::of(flow, flags(names))?)).filter(|sa| !sa.is_empty())
    }

    /// The example of RFC 4301 4.4.1: an entry for the range 192.0.2.1 to 192.0.2.10, a packet to 192.0.2.3.
    #[test]
    fn a_flag_takes_the_value_of_the_packet_and_no_flag_that_of_the_policy() {
        let range = AddressRange::new("192.0.2.1".parse().unwrap(), "192.0.2.10".parse().unwrap()).unwrap();
        let packet = flow(TCP, Some(NextLayerFields::Ports(5000, 443)));
        for (entry, a, b) in
            [(range, range, host("192.0.2.3")), (AddressRange::ANY, AddressRange::ANY, host("192.0.2.3"))]
        {
            let selector = Selector { remote: entry, ..Selector::ANY };
            let expected = |remote| Some(vec![Selector { remote, ..selector }]);
            // "b. the list of values of the SPD entry", here the entry itself: another field is populated.
            let local = Selector { local: host("10.1.0.5"), remote: a, ..selector };
            assert_eq!(wanted(selector, &["local"], &packet), Some(vec![local]));
            assert_eq!(wanted(selector, &["remote"], &packet), expected(b));
        }
    }

    /// The table of RFC 4301 4.4.2.2, for protocol and ports.
    #[test]
    fn the_relationship_between_policy_flag_packet_and_sa_is_that_of_the_rfc() {
        let tcp = Selector { protocol: TCP.into(), ..Selector::ANY };
        let web = Selector { remote_ports: PortRange { first: 440, last: 450 }, ..tcp };
        let packet = flow(TCP, Some(NextLayerFields::Ports(5000, 443)));
        let fragment = Flow::of_later_fragments(
            Direction::Outbound,
            "fd00::1".parse().unwrap(),
            "fd00::2".parse().unwrap(),
            TCP,
        );
        let protocol_of =
            |selector, names: &[&str], flow| wanted(selector, names, flow).map(|sa| sa[0].protocol);
        assert_eq!(protocol_of(Selector::ANY, &["protocol"], &packet), Some(TCP.into()), "ANY, 1, P: P");
        assert_eq!(protocol_of(tcp, &["protocol"], &packet), Some(TCP.into()), "list, 1, P: P");
        assert_eq!(protocol_of(Selector::ANY, &["protocol"], &fragment), None, "ANY, 1, not avail.: discard");
        assert_eq!(
            protocol_of(Selector::ANY, &["local"], &fragment),
            Some(Protocol::Any),
            "ANY, 0, not avail.: ANY"
        );
        let ports_of =
            |selector, names: &[&str], flow| wanted(selector, names, flow).map(|sa| sa[0].remote_ports);
        let one = Some(PortRange::one(443));
        assert_eq!(ports_of(tcp, &["remote_ports"], &packet), one, "ANY, 1, d: d");
        assert_eq!(ports_of(web, &["remote_ports"], &packet), one, "list, 1, d: d");
        assert_eq!(ports_of(web, &["local_ports"], &packet), Some(web.remote_ports), "list, 0, d: list");
        let hidden = flow(TCP, None);
        assert_eq!(ports_of(tcp, &["remote_ports"], &hidden), None, "ANY, 1, not avail.: discard");
        assert_eq!(ports_of(tcp, &["remote"], &hidden), Some(PortRange::ANY), "ANY, 0, not avail.: ANY");
    }

    /// RFC 4301 4.4.2.2: "Use of PFP=1 with an OPAQUE value is an error."
    #[test]
    fn nothing_is_populated_where_the_policy_says_opaque() {
        let opaque = Selector { protocol: TCP.into(), local_ports: PortRange::OPAQUE, ..Selector::ANY };
        let hidden = flow(TCP, None);
        assert_eq!(wanted(opaque, &["local_ports"], &hidden), None);
        let value = PacketValues { local_port: Some(0), ..PacketValues::default() };
        assert!(policy(opaque, flags(&["local_ports"])).populated(&value).is_empty());
    }

    /// RFC 4301 4.4.1.1: ports are selectors "if the Next Layer Protocol uses two ports".
    #[test]
    fn a_flag_for_ports_says_nothing_about_a_protocol_without_ports() {
        let gre = flow(GRE, None);
        let all = ["protocol", "local_ports", "remote_ports", "types"];
        let expected = Selector { protocol: GRE.into(), ..Selector::ANY };
        assert_eq!(wanted(Selector::ANY, &all, &gre), Some(vec![expected]));
        // Without a protocol, an SA for it would be one for the ports of all others, too.
        assert_eq!(wanted(Selector::ANY, &["local_ports"], &gre), None);
        let ping = flow(ICMP, Some(NextLayerFields::Icmp(8, 0)));
        assert_eq!(wanted(Selector::ANY, &["remote_ports"], &ping), None);
    }

    /// RFC 4301 4.4.1.2: "ICMP message type/code or Mobility Header type (depending on the next layer
    /// protocol)".
    #[test]
    fn the_type_of_a_message_is_populated_for_both_directions() {
        let ping = flow(ICMP, Some(NextLayerFields::Icmp(8, 0)));
        let echo = PortRange::icmp((8, 0), (8, 0));
        let expected =
            Selector { protocol: ICMP.into(), local_ports: echo, remote_ports: echo, ..Selector::ANY };
        assert_eq!(wanted(Selector::ANY, &["protocol", "types"], &ping), Some(vec![expected]));
        let some = PortRange::icmp((0, 0), (8, 255));
        let listed = Selector { local_ports: some, remote_ports: some, ..expected };
        assert_eq!(wanted(listed, &["types"], &ping), Some(vec![expected]));
        let any = Selector { protocol: ICMP.into(), ..Selector::ANY };
        assert_eq!(wanted(any, &["types"], &flow(ICMP, None)), None, "it hides its type");
    }

    /// A flag "applies to the relevant selector across all selector sets" of a policy (RFC 4301 4.4.1.2).
    #[test]
    fn all_selectors_of_a_policy_that_may_have_the_values_go_into_the_sa() {
        let between = |local, remote| Selector::between(net(local), net(remote));
        let selectors = [
            between("10.1.0.0/16", "192.0.2.0/24"),
            between("10.9.0.0/16", "192.0.2.0/24"),
            between("10.1.0.0/16", "198.51.100.0/24"),
        ];
        let packet = flow(UDP, Some(NextLayerFields::Ports(1, 2)));
        let flags = flags(&["remote"]);
        let policy = Policy { selectors: selectors.into(), ..policy(Selector::ANY, flags) };
        let sa = policy.populated(&PacketValues::of(&packet, flags).unwrap());
        let remote = host("192.0.2.3");
        assert_eq!(sa, [Selector { remote, ..selectors[0] }, Selector { remote, ..selectors[1] }]);
    }

    fn range(first: &str, last: &str) -> AddressRange {
        AddressRange::new(first.parse().unwrap(), last.parse().unwrap()).unwrap()
    }

    /// What is inserted and removed for each flow: 46 prefixes make up each of these ranges.
    #[test]
    fn the_ranges_of_a_flow_count_and_a_field_with_a_flag_is_one_value() {
        let ends = [range("10.0.0.1", "10.255.255.254"), range("11.0.0.1", "11.255.255.254")];
        let udp = Selector { protocol: UDP.into(), ..Selector::between(ends[0], ends[1]) };
        let of = |selector, names: &[&str]| policy(selector, flags(names)).count_flow_pieces();
        assert_eq!(policy(udp, flags(&["remote"])).count_pieces(), 46 * 46);
        assert_eq!(of(udp, &["remote_ports"]), 46 * 46);
        assert_eq!([of(udp, &["local"]), of(udp, &["remote"]), of(udp, &["local", "remote"])], [46, 46, 1]);
        let most = Selector { remote_ports: PortRange { first: 1, last: 65534 }, ..udp };
        assert_eq!([of(most, &["local", "remote"]), of(most, &["local", "remote", "remote_ports"])], [30, 1]);
        let networks: Vec<Selector> =
            (0..100).map(|n| Selector { remote: net(&format!("10.9.{n}.0/24")), ..most }).collect();
        let list = |selectors: &[Selector], names: &[&str]| {
            Policy { selectors: selectors.into(), ..policy(Selector::ANY, flags(names)) }.count_flow_pieces()
        };
        // Each remote address is in one of them alone, each local one in all.
        assert_eq!([list(&networks, &["local", "remote"]), list(&networks, &["local"])], [30, 3000]);
        let nested = [Selector { remote: net("10.9.0.0/16"), ..most }, networks[7]];
        assert_eq!(list(&nested, &["local", "remote"]), 30, "the same with a value of both");
    }

    /// Whatever packets come: no SA has more than was said, and the worst has as many.
    #[test]
    fn no_flow_has_more_pieces_than_its_policy_says() {
        let mut random = fastrand::Rng::with_seed(11);
        let mut reached = 0;
        for round in 0..2000 {
            let flags = PopulateFlags(random.u8(1..64));
            let end = |random: &mut fastrand::Rng, net: u8| {
                let (first, last) = (random.u8(..100), random.u8(100..));
                match random.u8(..4) {
                    0 => AddressRange::ANY,
                    _ => range(&format!("{net}.0.0.{first}"), &format!("{net}.0.0.{last}")),
                }
            };
            let ports = |random: &mut fastrand::Rng| match random.u8(..3) {
                0 => PortRange::ANY,
                _ => PortRange { first: random.u16(..30), last: random.u16(30..90) },
            };
            let selectors: Vec<Selector> = (0..random.usize(1..5))
                .map(|_| Selector {
                    local: end(&mut random, 10),
                    remote: end(&mut random, 11),
                    protocol: [Protocol::Any, TCP.into(), UDP.into(), ICMP.into()][random.usize(..4)],
                    local_ports: ports(&mut random),
                    remote_ports: ports(&mut random),
                })
                .collect();
            let policy = Policy { selectors: selectors.into(), ..policy(Selector::ANY, flags) };
            let most = policy.count_flow_pieces();
            for _ in 0..20 {
                let address = |net| format!("{net}.0.0.100").parse().unwrap();
                let fields = match random.u8(..3) {
                    0 => (ICMP, NextLayerFields::Icmp(0, random.u8(..90))),
                    1 => (TCP, NextLayerFields::Ports(random.u16(..90), random.u16(..90))),
                    _ => (UDP, NextLayerFields::Ports(random.u16(..90), random.u16(..90))),
                };
                let flow = Flow::new(Direction::Outbound, address(10), address(11), fields.0, Some(fields.1));
                let Some(values) = PacketValues::of(&flow, flags) else { continue };
                let sa = policy.of_populated(TunnelIndex(1), policy.populated(&values).into());
                assert!(sa.count_pieces() <= most, "seed 11, round {round}: {values}, {policy:?}");
                reached += usize::from(sa.count_pieces() == most);
            }
        }
        assert!(reached > 2000, "{reached}");
    }

    #[test]
    fn values_that_a_policy_does_not_ask_for_or_does_not_select_make_no_sa() {
        let selector = Selector::between(net("10.1.0.0/16"), net("192.0.2.0/24"));
        let policy = policy(selector, flags(&["local"]));
        let local =
            |text: &str| PacketValues { local: Some(text.parse().unwrap()), ..PacketValues::default() };
        assert_eq!(policy.populated(&local("10.1.0.5")).len(), 1);
        let more = PacketValues { remote_port: Some(5), ..local("10.1.0.5") };
        for wrong in [local("10.2.0.5"), local("fd00::1"), more, PacketValues::default()] {
            assert!(policy.populated(&wrong).is_empty(), "{wrong}");
        }
        assert!(Policy::new(selector, Action::Bypass).populated(&PacketValues::default()).is_empty());
    }

    #[test]
    fn values_are_shown_by_the_names_of_their_fields() {
        let udp = flow(UDP, Some(NextLayerFields::Ports(5000, 53)));
        let shown = "local=10.1.0.5 remote=192.0.2.3 protocol=17 local_ports=5000 remote_ports=53";
        assert_eq!(PacketValues::shown(&udp).to_string(), shown);
        let ping = flow(ICMP, Some(NextLayerFields::Icmp(8, 0)));
        assert_eq!(
            PacketValues::shown(&ping).to_string(),
            "local=10.1.0.5 remote=192.0.2.3 protocol=1 types=8/0"
        );
        assert_eq!(flags(&["remote", "types"]).names().collect::<Vec<_>>(), ["remote", "types"]);
    }
}
