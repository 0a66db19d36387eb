//! Routes and neighbours of the Linux kernel, by netlink (rtnetlink(7), `include/uapi/linux/rtnetlink.h`,
//! `neighbour.h`).
//!
//! ```text
//!   netlink header │ rtmsg: family, prefix bits, …, table, type, flags │ destination │ gateway │ interface │ …
//!   netlink header │ ndmsg: family, interface, state, flags            │ address │ link-layer address │ …
//! ```
//!
//! Addresses are in network order, numbers in the host's. Attributes that are not needed here are passed
//! over.

use crate::ParseError;
use crate::ethernet::MacAddress;
use crate::netlink::attribute::{RawAttribute, attributes};
use crate::netlink::datagram::Datagram;
use crate::netlink::{Header, Message, flag};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The number of the netlink protocol (`NETLINK_ROUTE`).
pub const NETLINK_ROUTE: i32 = 0;

/// Groups whose members are told of changes, as bits of a socket's address.
pub mod group {
    /// Neighbours.
    pub const NEIGHBOURS: u32 = 4;
    /// Routes of IPv4.
    pub const IPV4_ROUTES: u32 = 0x40;
    /// Routes of IPv6.
    pub const IPV6_ROUTES: u32 = 0x400;
}

/// Types of messages.
mod kind {
    pub(super) const NEW_ROUTE: u16 = 24;
    pub(super) const DELETE_ROUTE: u16 = 25;
    pub(super) const GET_ROUTE: u16 = 26;
    pub(super) const NEW_NEIGHBOUR: u16 = 28;
    pub(super) const DELETE_NEIGHBOUR: u16 = 29;
    pub(super) const GET_NEIGHBOUR: u16 = 30;
}

/// The kernel's main routing table.
pub const MAIN_TABLE: u32 = 254;

const IPV4: u8 = 2;
const IPV6: u8 = 10;
/// Bytes of `rtmsg` and of `ndmsg`.
const STRUCTURE_BYTES: usize = 12;
/// `RTM_F_CLONED`: an exception to a route, such as a path's MTU.
const CLONED: u32 = 0x200;
/// `RTN_UNICAST`.
const UNICAST: u8 = 1;
/// `RTN_BLACKHOLE`, `RTN_UNREACHABLE`, `RTN_PROHIBIT`, `RTN_THROW`.
const NOWHERE: std::ops::RangeInclusive<u8> = 6..=9;

const RTA_DST: u16 = 1;
const RTA_OIF: u16 = 4;
const RTA_GATEWAY: u16 = 5;
const RTA_PRIORITY: u16 = 6;
const RTA_MULTIPATH: u16 = 9;
const RTA_TABLE: u16 = 15;
const RTA_VIA: u16 = 18;
const NDA_DST: u16 = 1;
const NDA_LLADDR: u16 = 2;

/// `NTF_USE`: the entry is used, so that the kernel asks for it where it must.
const USE: u8 = 1;
/// `NUD_NONE`: the kernel decides.
const NO_STATE: u16 = 0;
/// `NUD_REACHABLE`, `NUD_STALE`, `NUD_DELAY`, `NUD_PROBE`, `NUD_NOARP`, `NUD_PERMANENT`: with a link-layer
/// address.
const VALID: u16 = 0x02 | 0x04 | 0x08 | 0x10 | 0x40 | 0x80;
/// `NUD_FAILED`.
const FAILED: u16 = 0x20;

/// One of the ways that a route leads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RouteHop {
    /// Index of the interface.
    pub interface: u32,
    /// A router; without one, destinations are neighbours. It may be of the other IP version.
    pub gateway: Option<IpAddr>,
}

/// A route.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KernelRoute {
    /// The network.
    pub network: IpAddr,
    /// Bits of its prefix.
    pub prefix_bits: u8,
    /// The table that it is in.
    pub table: u32,
    /// The lowest is preferred.
    pub metric: u32,
    /// The ways that it leads; none if it says that nothing may go there.
    pub hops: Vec<RouteHop>,
}

/// What the kernel knows of a neighbour.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NeighbourState {
    /// Where it is, or was of late.
    Known(MacAddress),
    /// It did not answer, or was removed.
    Gone,
    /// It is being asked.
    Unknown,
}

/// A message of the kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RtMessage {
    /// There is a route.
    Route(KernelRoute),
    /// A route was removed.
    RouteRemoved,
    /// A neighbour has changed, or is told of.
    Neighbour {
        /// Index of the interface.
        interface: u32,
        /// Its address.
        address: IpAddr,
        /// What is known of it.
        state: NeighbourState,
    },
}

impl RtMessage {
    /// Reads a message. `None` for other messages, and for routes and neighbours that forward no unicast IP:
    /// local addresses, exceptions to routes, groups, bridges.
    ///
    /// # Errors
    /// [`ParseError::Truncated`] if a structure or an attribute ends beyond the message,
    /// [`ParseError::BadHeader`] if an address or a number has another length than its own.
    pub fn read(message: &Message<'_>) -> Result<Option<Self>, ParseError> {
        match message.header.kind {
            kind::NEW_ROUTE => Ok(read_route(message.payload())?.map(Self::Route)),
            kind::DELETE_ROUTE => Ok(Some(Self::RouteRemoved)),
            kind::NEW_NEIGHBOUR => read_neighbour(message.payload(), false),
            kind::DELETE_NEIGHBOUR => read_neighbour(message.payload(), true),
            _ => Ok(None),
        }
    }
}

/// The structure at the start of a message, and what follows.
fn split(payload: &[u8]) -> Result<(&[u8; STRUCTURE_BYTES], &[u8]), ParseError> {
    payload.split_first_chunk().ok_or(ParseError::Truncated)
}

/// Calls `take` for each attribute.
fn each_attribute<'a>(
    bytes: &'a [u8],
    mut take: impl FnMut(RawAttribute<'a>) -> Result<(), ParseError>,
) -> Result<(), ParseError> {
    attributes(bytes, 0).try_for_each(|attribute| take(attribute.map_err(|_| ParseError::Truncated)?))
}

fn address(family: u8, value: &[u8]) -> Result<IpAddr, ParseError> {
    let octets = |_| ParseError::BadHeader;
    match family {
        IPV4 => Ok(Ipv4Addr::from(<[u8; 4]>::try_from(value).map_err(octets)?).into()),
        IPV6 => Ok(Ipv6Addr::from(<[u8; 16]>::try_from(value).map_err(octets)?).into()),
        _ => Err(ParseError::BadHeader),
    }
}

fn number(value: &[u8]) -> Result<u32, ParseError> {
    Ok(u32::from_ne_bytes(value.try_into().map_err(|_| ParseError::BadHeader)?))
}

/// The gateway that an attribute names, if it is one that does. `RTA_VIA` says its own family.
fn gateway(family: u8, attribute: &RawAttribute<'_>) -> Result<Option<IpAddr>, ParseError> {
    match (attribute.kind, attribute.value) {
        (RTA_GATEWAY, value) => address(family, value).map(Some),
        (RTA_VIA, &[low, high, ref value @ ..]) => {
            let family = u8::try_from(u16::from_ne_bytes([low, high])).unwrap_or(0);
            // Of another protocol, such as MPLS: not a way for IP.
            if matches!(family, IPV4 | IPV6) { address(family, value).map(Some) } else { Ok(None) }
        }
        (RTA_VIA, _) => Err(ParseError::BadHeader),
        _ => Ok(None),
    }
}

fn read_route(payload: &[u8]) -> Result<Option<KernelRoute>, ParseError> {
    let (&[family, prefix_bits, _, _, table, _, _, kind, f0, f1, f2, f3], rest) = split(payload)?;
    let is_unicast = kind == UNICAST;
    let is_cloned = u32::from_ne_bytes([f0, f1, f2, f3]) & CLONED != 0;
    if !matches!(family, IPV4 | IPV6) || is_cloned || !is_unicast && !NOWHERE.contains(&kind) {
        return Ok(None);
    }
    let network = if family == IPV4 { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    if prefix_bits > if family == IPV4 { 32 } else { 128 } {
        return Err(ParseError::BadHeader);
    }
    let mut route = KernelRoute { network, prefix_bits, table: table.into(), metric: 0, hops: Vec::new() };
    let (mut interface, mut router) = (None, None);
    each_attribute(rest, |attribute| {
        match attribute.kind {
            RTA_DST => route.network = address(family, attribute.value)?,
            RTA_OIF => interface = Some(number(attribute.value)?),
            RTA_PRIORITY => route.metric = number(attribute.value)?,
            RTA_TABLE => route.table = number(attribute.value)?,
            RTA_MULTIPATH => route.hops = read_hops(family, attribute.value)?,
            _ => router = gateway(family, &attribute)?.or(router),
        }
        Ok(())
    })?;
    route.hops.extend(interface.map(|interface| RouteHop { interface, gateway: router }));
    if !is_unicast {
        // IPv6 names the loopback interface.
        route.hops.clear();
    }
    Ok(Some(route))
}

/// The `rtnexthop` structures of a route with several ways.
fn read_hops(family: u8, mut bytes: &[u8]) -> Result<Vec<RouteHop>, ParseError> {
    let mut hops = Vec::new();
    while !bytes.is_empty() {
        let &[l0, l1, _, _, i0, i1, i2, i3] = bytes.first_chunk().ok_or(ParseError::Truncated)?;
        let length = usize::from(u16::from_ne_bytes([l0, l1]));
        let attributes = bytes.get(8..length).ok_or(ParseError::Truncated)?;
        let mut hop = RouteHop { interface: u32::from_ne_bytes([i0, i1, i2, i3]), gateway: None };
        each_attribute(attributes, |attribute| {
            hop.gateway = gateway(family, &attribute)?.or(hop.gateway);
            Ok(())
        })?;
        hops.push(hop);
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    Ok(hops)
}

fn read_neighbour(payload: &[u8], is_removed: bool) -> Result<Option<RtMessage>, ParseError> {
    let (&[family, _, _, _, i0, i1, i2, i3, s0, s1, _, _], rest) = split(payload)?;
    if !matches!(family, IPV4 | IPV6) {
        return Ok(None);
    }
    let (mut of, mut mac) = (None, None);
    each_attribute(rest, |attribute| {
        match attribute.kind {
            NDA_DST => of = Some(address(family, attribute.value)?),
            // Other links have addresses of other lengths.
            NDA_LLADDR => mac = attribute.value.try_into().ok().map(MacAddress),
            _ => {}
        }
        Ok(())
    })?;
    let Some(address) = of else { return Ok(None) };
    if MacAddress::of_group(address).is_some() {
        return Ok(None);
    }
    let state = u16::from_ne_bytes([s0, s1]);
    let state = match mac {
        _ if is_removed || state & FAILED != 0 => NeighbourState::Gone,
        Some(mac) if state & VALID != 0 => NeighbourState::Known(mac),
        _ => NeighbourState::Unknown,
    };
    let interface = u32::from_ne_bytes([i0, i1, i2, i3]);
    Ok(Some(RtMessage::Neighbour { interface, address, state }))
}

fn request(datagram: &mut Datagram, kind: u16, flags: u16, sequence: u32, structure: &[u8; STRUCTURE_BYTES]) {
    let mut message =
        datagram.message(Header { kind, flags: flag::REQUEST | flags, sequence, ..Header::default() });
    message.body(structure);
    message.finish();
}

/// Asks for all routes, of both IP versions and in all tables.
pub fn dump_routes(datagram: &mut Datagram, sequence: u32) {
    request(datagram, kind::GET_ROUTE, flag::DUMP, sequence, &[0; STRUCTURE_BYTES]);
}

/// Asks for all neighbours of all interfaces.
pub fn dump_neighbours(datagram: &mut Datagram, sequence: u32) {
    request(datagram, kind::GET_NEIGHBOUR, flag::DUMP, sequence, &[0; STRUCTURE_BYTES]);
}

/// Has the kernel find a neighbour, or check that it is still there, as if the kernel had a packet for it;
/// and asks what is known now. Needs CAP_NET_ADMIN.
pub fn use_neighbour(datagram: &mut Datagram, sequence: u32, interface: u32, address: IpAddr) {
    let (family, octets) = match address {
        IpAddr::V4(address) => (IPV4, address.to_ipv6_mapped().octets()),
        IpAddr::V6(address) => (IPV6, address.octets()),
    };
    // The octets of an IPv4 address are the last ones of one that is mapped.
    let octets = if family == IPV4 { &octets[12..] } else { &octets[..] };
    let [i0, i1, i2, i3] = interface.to_ne_bytes();
    let [s0, s1] = NO_STATE.to_ne_bytes();
    for (kind, flags, entry_flags) in [(kind::NEW_NEIGHBOUR, flag::CREATE, USE), (kind::GET_NEIGHBOUR, 0, 0)]
    {
        let header = Header { kind, flags: flag::REQUEST | flags, sequence, ..Header::default() };
        let mut message = datagram.message(header);
        message.body(&[family, 0, 0, 0, i0, i1, i2, i3, s0, s1, entry_flags, 0]);
        message.attribute(NDA_DST, octets);
        message.finish();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netlink::messages;
    use crate::test_packets::hex;

    fn read(datagram: &[u8]) -> Vec<Result<Option<RtMessage>, ParseError>> {
        messages(datagram).map(|message| RtMessage::read(&message.unwrap())).collect()
    }

    /// A message of a kernel: type, structure, attributes.
    fn message(kind: u16, structure: [u8; 12], attributes: &[(u16, &[u8])]) -> Vec<u8> {
        let mut datagram = Datagram::new();
        let mut message = datagram.message(Header { kind, ..Header::default() });
        message.body(&structure);
        attributes.iter().for_each(|(kind, value)| message.attribute(*kind, value));
        message.finish();
        datagram.as_bytes().to_vec()
    }

    /// What Linux 6.18 tells of these commands, recorded: `ip route add 10.9.0.0/16 via 192.0.2.2 metric 7`,
    /// one with `nexthop via 192.0.2.2 nexthop via 192.0.2.3`, one `via inet6 2001:db8::2`, `ip route add
    /// unreachable fd07::/16`, `fd09::/16 via 2001:db8::2 metric 9`.
    #[test]
    fn routes_of_a_kernel_are_read() {
        let hop = |interface, gateway: &str| RouteHop { interface, gateway: Some(gateway.parse().unwrap()) };
        for (bytes, network, metric, hops) in [
            (
                "4400000018000006494c066b6102000002100000fe0300010000000008000f00fe000000080001000a090000\
                 080006000700000008000500c00002020800040001000000",
                "10.9.0.0",
                7,
                vec![hop(1, "192.0.2.2")],
            ),
            (
                "50000000180000064b4c066ba602000002100000fe0300010000000008000f00fe000000080001000a080000\
                 24000900100000000100000008000500c0000202100000000100000008000500c0000203",
                "10.8.0.0",
                0,
                vec![hop(1, "192.0.2.2"), hop(1, "192.0.2.3")],
            ),
            (
                "4c000000180000068d4c066bcc12000002100000fe0300010000000008000f00fe000000080001000a060000\
                 160012000a0020010db800000000000000000000000200000800040003000000",
                "10.6.0.0",
                0,
                vec![hop(3, "2001:db8::2")],
            ),
            (
                "74000000180000064c4c066bac0200000a100000fe0300070000000008000f00fe00000014000100fd070000\
                 000000000000000000000000080006000004000008000400010000002400 0c00000000000000000000000000\
                 0000000000000000000000000000000000000000050014 0000000000",
                "fd07::",
                1024,
                vec![],
            ),
            (
                "88000000180000068c4c066bc11200000a100000fe0300010000000008000f00fe00000014000100fd090000\
                 00000000000000000000000008000600090000001400050020010db800000000000000000000000208000400\
                 0300000024000c00000000000000000000000000000000000000000000000000000000000000000005001400\
                 00000000",
                "fd09::",
                9,
                vec![hop(3, "2001:db8::2")],
            ),
        ] {
            let network = network.parse().unwrap();
            let route = KernelRoute { network, prefix_bits: 16, table: MAIN_TABLE, metric, hops };
            assert_eq!(read(&hex(bytes)), [Ok(Some(RtMessage::Route(route)))]);
        }
    }

    /// Linux 6.18: `ip neighbour add 192.0.2.2 lladdr 02:00:5e:00:00:02`, and `ip neighbour del`, which it
    /// tells of twice.
    #[test]
    fn neighbours_of_a_kernel_are_read() {
        let known = NeighbourState::Known(MacAddress([2, 0, 0x5E, 0, 0, 2]));
        for (bytes, state) in [
            (
                "4c0000001c00000000000000b612000002000000030000008000000108000100c00002020a000200\
                 02005e000002000008000400000000001400030000000000000000000000000001000000",
                known,
            ),
            (
                "400000001c00000000000000dd12000002000000030000002000000108000100c000020208000400\
                 000000001400030098000000980000009800000001000000",
                NeighbourState::Gone,
            ),
            (
                "400000001d000000000000000000000002000000030000002000000108000100c000020208000400\
                 000000001400030098000000980000009800000000000000",
                NeighbourState::Gone,
            ),
        ] {
            let address = "192.0.2.2".parse().unwrap();
            let expected = RtMessage::Neighbour { interface: 3, address, state };
            assert_eq!(read(&hex(bytes)), [Ok(Some(expected))]);
        }
    }

    #[test]
    fn ways_of_every_kind_are_read() {
        let structure = [IPV4, 24, 0, 0, 254, 3, 0, 1, 0, 0, 0, 0];
        let via = [&[10, 0][..], &[0xFD; 16]].concat();
        let several = hex("1000000002000000 08000500c0000202 0800000003000000");
        let hop = |interface, gateway: Option<&str>| RouteHop {
            interface,
            gateway: gateway.map(|text| text.parse().unwrap()),
        };
        for (attributes, hops) in [
            (vec![(RTA_OIF, &[9, 0, 0, 0][..])], vec![hop(9, None)]),
            (
                vec![(RTA_VIA, &via[..]), (RTA_OIF, &[9, 0, 0, 0])],
                vec![hop(9, Some("fdfd:fdfd:fdfd:fdfd:fdfd:fdfd:fdfd:fdfd"))],
            ),
            (vec![(RTA_MULTIPATH, &several[..])], vec![hop(2, Some("192.0.2.2")), hop(3, None)]),
        ] {
            let read = read(&message(kind::NEW_ROUTE, structure, &attributes));
            let [Ok(Some(RtMessage::Route(route)))] = &read[..] else { panic!("{read:?}") };
            assert_eq!(route.hops, hops);
        }
        let unreachable = [IPV4, 24, 0, 0, 254, 3, 0, 7, 0, 0, 0, 0];
        let read_one = |structure| {
            let attributes = [(RTA_OIF, &[1, 0, 0, 0][..])];
            read(&message(kind::NEW_ROUTE, structure, &attributes)).remove(0).unwrap()
        };
        assert!(matches!(read_one(unreachable), Some(RtMessage::Route(route)) if route.hops.is_empty()));
        let (local, cloned) =
            ([IPV4, 32, 0, 0, 255, 2, 0, 2, 0, 0, 0, 0], [IPV6, 9, 0, 0, 254, 2, 0, 1, 0, 2, 0, 0]);
        assert_eq!((read_one(local), read_one(cloned), read_one([28; 12])), (None, None, None));
    }

    #[test]
    fn states_of_a_neighbour_are_known_gone_or_unknown() {
        let mac = NeighbourState::Known(MacAddress([2; 6]));
        for (kind, state, with_mac, expected) in [
            (kind::NEW_NEIGHBOUR, 0x02, true, mac),
            (kind::NEW_NEIGHBOUR, 0x04, true, mac),
            (kind::NEW_NEIGHBOUR, 0x80, true, mac),
            (kind::NEW_NEIGHBOUR, 0x01, false, NeighbourState::Unknown),
            (kind::NEW_NEIGHBOUR, 0x20, false, NeighbourState::Gone),
            (kind::NEW_NEIGHBOUR, 0x20, true, NeighbourState::Gone),
            (kind::DELETE_NEIGHBOUR, 0x02, true, NeighbourState::Gone),
        ] {
            let mut attributes = vec![(NDA_DST, &[192, 0, 2, 2][..])];
            attributes.extend(with_mac.then_some((NDA_LLADDR, &[2; 6][..])));
            let structure = [IPV4, 0, 0, 0, 3, 0, 0, 0, state, 0, 0, 1];
            let read = read(&message(kind, structure, &attributes));
            let [Ok(Some(RtMessage::Neighbour { interface: 3, state: found, .. }))] = &read[..] else {
                panic!("{read:?}");
            };
            assert_eq!(*found, expected);
        }
        let group = message(
            kind::NEW_NEIGHBOUR,
            [IPV4, 0, 0, 0, 3, 0, 0, 0, 0x40, 0, 0, 1],
            &[(NDA_DST, &[224, 0, 0, 1])],
        );
        assert_eq!(read(&group), [Ok(None)]);
    }

    #[test]
    fn every_wrong_length_is_an_error_or_leaves_an_attribute_out() {
        let structure = [IPV4, 24, 0, 0, 254, 3, 0, 1, 0, 0, 0, 0];
        for (kind, value) in [
            (RTA_DST, &[1, 2, 3][..]),
            (RTA_OIF, &[1; 5]),
            (RTA_GATEWAY, &[1; 16]),
            (RTA_VIA, &[2]),
            (RTA_VIA, &[2, 0, 1]),
        ] {
            let read = read(&message(kind::NEW_ROUTE, structure, &[(kind, value)]));
            assert_eq!(read, [Err(ParseError::BadHeader)], "attribute {kind}");
        }
        for hops in ["0800", "0700000002000000", "0c00000002000000", "0c000000020000000900050 0"] {
            let read = read(&message(kind::NEW_ROUTE, structure, &[(RTA_MULTIPATH, &hex(hops))]));
            assert_eq!(read, [Err(ParseError::Truncated)], "{hops}");
        }
        let long = [IPV4, 33, 0, 0, 254, 3, 0, 1, 0, 0, 0, 0];
        assert_eq!(read(&message(kind::NEW_ROUTE, long, &[])), [Err(ParseError::BadHeader)]);
        let whole =
            message(kind::NEW_NEIGHBOUR, structure, &[(NDA_DST, &[1, 2, 3, 4]), (NDA_LLADDR, &[2; 6])]);
        for len in 16..whole.len() {
            let mut cut = whole[..len].to_vec();
            cut[..4].copy_from_slice(&(len as u32).to_ne_bytes());
            // Where an attribute ends, the message may end; padding may be missing.
            let is_whole = matches!(len, 28 | 36 | 46 | 47);
            assert_eq!(read(&cut)[0].is_ok(), is_whole, "{len} bytes");
        }
    }
}
