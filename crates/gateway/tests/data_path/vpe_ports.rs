//! UDP source ports of VPE, one for each window: what a NIC that hashes ports makes of them, and that a peer
//! that uses many has not moved.

use crate::support::{Gateway, Inner, Side, TunnelSpec};
use crate::vpe::{of_flow, with};
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;
use testudo_ipsec::{EventKind, VpeClasses, VpeRules, VpeSourcePorts};
use testudo_packet::DropReason;
use testudo_wire::checksum;
use testudo_wire::ip::Version;
use testudo_wire::steering::Steering;
use testudo_wire::vpe::VpeHeader;

/// How long a peer must be silent at its old address before it is followed.
const SILENCE: Duration = Duration::from_secs(1);
/// Both ends' port in tunnels of tests.
const PORT: u16 = 4501;

fn spec(source_ports: VpeSourcePorts) -> TunnelSpec {
    let classes = VpeClasses::of_sets([&[46][..]]);
    let rules = VpeRules::default().with_slots(classes, 32, 8).expect("16 windows");
    TunnelSpec { udp: true, b_learns: true, ..with(rules.with_source_ports(source_ports)) }
}

fn gateway(side: Side, spec: &TunnelSpec) -> Gateway {
    Gateway::with_tunnels(side, std::slice::from_ref(spec))
}

/// Packets of many flows, in both classes.
fn flows() -> impl Iterator<Item = Vec<u8>> {
    (0..400_u16).map(|n| of_flow(1000 + n, if n % 2 == 0 { 0 } else { 46 }))
}

/// UDP source and destination port of a datagram, and its window.
fn shown(datagram: &[u8]) -> (u16, u16, u16) {
    let at = if datagram[0] >> 4 == 4 { 20 } else { 40 };
    let port = |at: usize| u16::from_be_bytes([datagram[at], datagram[at + 1]]);
    let header = VpeHeader::parse(&datagram[at + 8..]).expect("a header");
    (port(at), port(at + 2), header.window)
}

/// The same datagram from another address of 192.0.2.0/24.
fn from_host(datagram: &[u8], host: u8) -> Vec<u8> {
    let mut moved = datagram.to_vec();
    moved[15] = host;
    moved[10..12].fill(0);
    let sum = checksum::of(&moved[..20]).to_bytes();
    moved[10..12].copy_from_slice(&sum);
    moved
}

/// Addresses and ports at which B has found its peer since it was last asked.
fn moves(b: &mut Gateway) -> Vec<(IpAddr, u16)> {
    let moved = |kind| match kind {
        EventKind::PeerMoved { address, port, .. } => Some((address, port)),
        _ => None,
    };
    b.worker.take_events().into_iter().filter_map(|event| moved(event.kind)).collect()
}

/// A NIC that spreads datagrams by their ports spreads windows, and tears none apart.
#[test]
fn each_window_has_a_source_port_of_its_own_and_all_have_one_destination() {
    for outer in [Version::V4, Version::V6] {
        let spec = TunnelSpec { outer, b_learns: false, ..spec(VpeSourcePorts::PerWindow) };
        let (mut a, mut b) = (gateway(Side::A, &spec), gateway(Side::B, &spec));
        let (mut ports, mut queues) = (BTreeMap::new(), BTreeMap::<u32, BTreeSet<u16>>::new());
        for packet in flows() {
            for datagram in a.seal(packet.clone()) {
                let (source, destination, window) = shown(&datagram);
                assert_eq!((source, destination), (0xC000 + window, PORT), "over {outer:?}");
                assert_eq!(*ports.entry(window).or_insert(source), source);
                queues
                    .entry(Steering::ByUdpSource.queue_of_datagram(&datagram, 4, &[]))
                    .or_default()
                    .insert(window);
                assert_eq!(b.open(datagram), [&packet[..]]);
            }
        }
        assert_eq!(ports.keys().copied().collect::<Vec<_>>(), (64..80).collect::<Vec<_>>());
        assert_eq!(queues.len(), 4, "{queues:?}");
        assert_eq!(
            queues.values().map(BTreeSet::len).sum::<usize>(),
            16,
            "a window in two queues: {queues:?}"
        );
        a.assert_settled();
        b.assert_settled();
    }
}

/// Every Window ID has a port that belongs to no service, and neighbours have different ones.
#[test]
fn source_ports_are_dynamic_ones_whatever_the_window() {
    for window in 0..=u16::MAX {
        let port = VpeSourcePorts::PerWindow.of_window(PORT, window);
        assert_eq!((port >= 0xC000, port & 0x3FFF), (true, window & 0x3FFF));
        assert_eq!(VpeSourcePorts::One.of_window(PORT, window), PORT);
    }
}

/// Packets of many windows come from many ports, of one peer: it has not moved, however long one of them was
/// silent, and answers go to its port, at which it receives. Another address is a move, as ever.
#[test]
fn a_peer_that_sends_from_many_ports_is_followed_by_its_address_alone() {
    let spec = spec(VpeSourcePorts::PerWindow);
    let (mut a, mut b) = (gateway(Side::A, &spec), gateway(Side::B, &spec));
    let answer = || Inner::udp("172.16.0.2", "10.0.0.1", 60).bytes();
    assert!(b.seal(answer()).is_empty());
    assert_eq!(b.drops(DropReason::PeerUnknown), 1);
    let IpAddr::V4(own) = spec.address(Side::A) else { panic!("{:?}", spec.address(Side::A)) };
    let mut ports = BTreeSet::new();
    let packets: Vec<_> = flows().collect();
    for (host, packets) in [own.octets()[3], 11, 12, 13].into_iter().zip(packets.chunks(100)) {
        let mut moved = Vec::new();
        for packet in packets {
            for datagram in a.seal(packet.clone()) {
                ports.insert(shown(&datagram).0);
                assert_eq!(b.open(from_host(&datagram, host)), [&packet[..]]);
            }
            moved.extend(moves(&mut b));
            b.clock.advance(SILENCE);
        }
        // By the first packet of a window that has spoken since the peer was last heard, or shortly before.
        assert_eq!(moved, [(IpAddr::from([192, 0, 2, host]), PORT)]);
        let sealed = b.seal(answer());
        let (source, destination, window) = shown(&sealed[0]);
        assert_eq!((source, destination, sealed[0][19]), (0xC000 + window, PORT, host));
    }
    assert_eq!(ports.len(), 16);
    // With one port for all, another port is another place, as behind a NAT.
    let one = TunnelSpec { b_learns: true, ..self::spec(VpeSourcePorts::One) };
    let (mut a, mut b) = (gateway(Side::A, &one), gateway(Side::B, &one));
    for port in [7000, 7001_u16] {
        for mut datagram in a.seal(of_flow(1, 0)) {
            datagram[20..22].copy_from_slice(&port.to_be_bytes());
            b.open(datagram);
        }
        assert_eq!(moves(&mut b), [(IpAddr::V4(own), port)]);
        b.clock.advance(SILENCE);
    }
}
