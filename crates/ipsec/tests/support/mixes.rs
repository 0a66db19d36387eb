//! Sets of policies that an index may find hard, and packets for them.

use fastrand::Rng;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use testudo_ipsec::{
    Action, AddressRange, Direction, Flow, Policy, PortRange, Prefix, Protocol, Selector, TunnelIndex,
};
use testudo_wire::next_layer::NextLayerFields;

/// A kind of set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mix {
    /// One network here, a /24 for each policy there: what most gateways have.
    Sites,
    /// Prefixes of any length at both ends.
    Random,
    /// The same for IPv6.
    Random6,
    /// Prefixes of all lengths around few addresses, each within the next.
    Nested,
    /// Ranges of addresses that are no prefixes.
    Ranges,
    /// The same two networks, and ports of which no two policies have the same.
    Ports,
    /// Few pairs of networks, each in many policies that differ in protocol, ports and ranges of ports.
    Shared,
}

impl Mix {
    pub const ALL: [Mix; 7] =
        [Mix::Sites, Mix::Random, Mix::Random6, Mix::Nested, Mix::Ranges, Mix::Ports, Mix::Shared];
}

fn v4(bits: u32) -> IpAddr {
    Ipv4Addr::from_bits(bits).into()
}

fn prefix(address: IpAddr, length: u8) -> AddressRange {
    Prefix::new(address, length).expect("a length of that version").into()
}

/// An address of 10.0.0.0/8, or of fd00::/16.
fn local(random: &mut Rng, v6: bool) -> IpAddr {
    if v6 {
        Ipv6Addr::from_bits(0xFD00 << 112 | random.u128(..) >> 16).into()
    } else {
        v4(10 << 24 | random.u32(..) >> 8)
    }
}

/// An address of 172.0.0.0/8, or of fd01::/16.
fn remote(random: &mut Rng, v6: bool) -> IpAddr {
    if v6 {
        Ipv6Addr::from_bits(0xFD01 << 112 | random.u128(..) >> 16).into()
    } else {
        v4(172 << 24 | random.u32(..) >> 8)
    }
}

/// A hundred addresses and those after them.
fn range(first: IpAddr, random: &mut Rng) -> AddressRange {
    let IpAddr::V4(address) = first else { return AddressRange::host(first) };
    let last = address.to_bits().saturating_add(random.u32(..200));
    AddressRange::new(first, v4(last)).expect("in order")
}

fn some_ports(random: &mut Rng) -> PortRange {
    let first = random.u16(..);
    match random.u8(..3) {
        0 => PortRange::ANY,
        1 => PortRange::one(first),
        _ => PortRange { first, last: first.saturating_add(random.u16(..1000)) },
    }
}

/// The selector of policy `number`.
fn selector(mix: Mix, number: u32, random: &mut Rng) -> Selector {
    let tcp_or_udp = Protocol::Is(if random.bool() { 6 } else { 17 });
    match mix {
        Mix::Sites => Selector::between(prefix(v4(10 << 24), 8), prefix(v4(0xAC00_0000 | number << 8), 24)),
        Mix::Random => {
            let lengths = (random.u8(8..=32), random.u8(8..=32));
            Selector::between(
                prefix(local(random, false), lengths.0),
                prefix(remote(random, false), lengths.1),
            )
        }
        Mix::Random6 => {
            let lengths = (random.u8(16..=128), random.u8(16..=128));
            Selector::between(prefix(local(random, true), lengths.0), prefix(remote(random, true), lengths.1))
        }
        Mix::Nested => {
            let center = number % 16;
            let ends = (v4(0x0A00_0000 | center << 16), v4(0xAC00_0000 | center << 16));
            let between =
                Selector::between(prefix(ends.0, random.u8(8..=32)), prefix(ends.1, random.u8(8..=32)));
            Selector { protocol: tcp_or_udp, remote_ports: some_ports(random), ..between }
        }
        Mix::Ranges => {
            let (a, b) = (local(random, false), remote(random, false));
            Selector::between(range(a, random), range(b, random))
        }
        Mix::Ports => {
            let between = Selector::between(prefix(v4(10 << 24), 8), prefix(v4(172 << 24), 8));
            // Each pair of ports once.
            let ports = (number.wrapping_mul(0x9E37_79B1)).to_be_bytes();
            let ports =
                [[ports[0], ports[1]], [ports[2], ports[3]]].map(u16::from_be_bytes).map(PortRange::one);
            Selector { protocol: tcp_or_udp, local_ports: ports[0], remote_ports: ports[1], ..between }
        }
        Mix::Shared => {
            let network = random.u32(..16) << 16;
            let between =
                Selector::between(prefix(v4(10 << 24 | network), 16), prefix(v4(172 << 24 | network), 16));
            let (local_ports, remote_ports) = (some_ports(random), some_ports(random));
            Selector { protocol: tcp_or_udp, local_ports, remote_ports, ..between }
        }
    }
}

/// `count` policies, protect and discard in turn.
pub fn policies(mix: Mix, count: u32, random: &mut Rng) -> Vec<Policy> {
    (0..count).map(|number| policy(mix, number, random)).collect()
}

/// One policy more, of number `number`.
pub fn policy(mix: Mix, number: u32, random: &mut Rng) -> Policy {
    let action =
        if number.is_multiple_of(2) { Action::Protect(TunnelIndex(number)) } else { Action::Discard };
    Policy::new(selector(mix, number, random), action)
}

/// A packet of the addresses that the policies are for; every other one has addresses and ports of one
/// policy.
pub fn flow(mix: Mix, policies: &[Policy], random: &mut Rng) -> Flow {
    let v6 = mix == Mix::Random6;
    let ports = |random: &mut Rng| (random.u16(..), random.u16(..));
    let own = random.choice(policies).filter(|_| random.bool()).map(|policy| policy.selectors[0]);
    let Some(selector) = own else {
        let (source, destination) = ports(random);
        let (a, b) = (local(random, v6), remote(random, v6));
        return Flow::new(Direction::Outbound, a, b, 17, Some(NextLayerFields::Ports(source, destination)));
    };
    let (source, destination) = (selector.local_ports.first, selector.remote_ports.first);
    let first = |range: AddressRange| range.ends().expect("no policy is for any address").0;
    let protocol = if selector.protocol == Protocol::Is(6) { 6 } else { 17 };
    let fields = Some(NextLayerFields::Ports(source, destination));
    Flow::new(Direction::Outbound, first(selector.local), first(selector.remote), protocol, fields)
}
