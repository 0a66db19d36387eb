//! Long packets through VPE: 9,000 bytes whole where the path carries them, and in pieces that are cut before
//! they are sealed where it does not (sections 3.2 and 4.3 of the paper).

use crate::support::gateway::{PoolSize, portable};
use crate::support::{Gateway, Inner, LeaseTwin, PortHandle, Side, TunnelSpec};
use crate::vpe::{inner, spec};
use testudo_ipsec::NumberSource;
use testudo_packet::DropReason;
use testudo_wire::ip::{IpHeader, Version};
use testudo_wire::vpe::{VPE_HEADER_BYTES, VpeHeader};

/// VPE by its number and in UDP, over either IP version, on a path with this MTU.
fn kinds(path_mtu: usize) -> Vec<TunnelSpec> {
    let of = |(outer, udp)| TunnelSpec { outer, udp, path_mtu, ..spec() };
    [(Version::V4, false), (Version::V4, true), (Version::V6, false), (Version::V6, true)].map(of).into()
}

fn long_buffers(side: Side, spec: &TunnelSpec) -> Gateway {
    Gateway::with_buffers(side, std::slice::from_ref(spec), PoolSize(64, 9300))
}

/// Bytes before a packet.
fn front(spec: &TunnelSpec) -> usize {
    spec.outer.header_bytes() + 8 * usize::from(spec.udp) + VPE_HEADER_BYTES
}

#[test]
fn packets_of_9000_bytes_pass_whole_where_the_path_carries_them() {
    for spec in kinds(9000 + 80) {
        let (mut a, mut b) = (long_buffers(Side::A, &spec), long_buffers(Side::B, &spec));
        for bytes in [1500, 1600, 4096, 8999, 9000] {
            let sealed = a.seal(inner(bytes));
            assert_eq!(sealed.len(), 1, "{spec:?}: {bytes}");
            assert_eq!(sealed[0].len(), front(&spec) + bytes);
            assert_eq!(b.open(sealed[0].clone()), [inner(bytes)], "{spec:?}: {bytes}");
        }
        a.assert_settled();
        b.assert_settled();
    }
}

/// `docs/VPE.md`: all packets of a flow use one slot, those that are cut, too.
#[test]
fn pieces_of_a_packet_stay_in_the_window_of_its_flow() {
    for spec in kinds(1500) {
        for buffers in [PoolSize(64, 9300), PoolSize(64, 2048)] {
            let mut a = Gateway::with_buffers(Side::A, std::slice::from_ref(&spec), buffers);
            let mut seen = std::collections::BTreeSet::new();
            for port in 0..16 {
                let of = |bytes| {
                    let ports = (1000 + port, 53);
                    Inner { ports, ..Inner::udp("10.0.0.1", "172.16.0.2", bytes) }.bytes()
                };
                let window = |piece: &Vec<u8>| {
                    VpeHeader::parse(&piece[front(&spec) - VPE_HEADER_BYTES..]).expect("a header").window
                };
                let (short, long) = (a.seal(of(100)), a.seal(of(1900)));
                assert_eq!((short.len(), long.len()), (1, 2), "{spec:?}");
                assert!(long.iter().all(|piece| window(piece) == window(&short[0])), "{spec:?}: {port}");
                seen.insert(window(&short[0]));
            }
            assert!(seen.len() > 2, "{seen:?}");
            a.assert_settled();
        }
    }
}

/// Windows are a worker's own: no packet waits for other workers, who could take numbers before its pieces
/// have theirs. Where no more are leased, pieces are dropped, and what is sent stays in its order.
#[test]
fn pieces_stay_in_the_window_of_their_flow_and_in_order_where_numbers_are_refused_between_them() {
    let spec = TunnelSpec { path_mtu: 1500, ..spec() };
    for (is_gated, in_frames) in [(false, false), (false, true), (true, false), (true, true)] {
        let mut store = LeaseTwin::new(3);
        let mut install = spec.install(Side::A, &mut store, None);
        if is_gated {
            // As one of several workers has them.
            let numbers = &mut install.outbound.parameters.numbers;
            *numbers = std::mem::replace(numbers, NumberSource::Ephemeral).gated(true);
        }
        let inside = PortHandle::default();
        if in_frames {
            inside.take_chains(&[1500]);
        }
        let policies = spec.policies(Side::A);
        let mut a =
            Gateway::on_links(inside, PortHandle::default(), policies, PoolSize(256, 9300), portable());
        a.install(install);
        let mut b = Gateway::with_tunnels(Side::B, std::slice::from_ref(&spec));
        let (mut windows, mut last, mut torn) = (std::collections::BTreeSet::new(), 0, 0);
        for n in 0..60 {
            let bytes = if n % 3 == 0 { 100 } else { 9000 };
            let whole = Inner { dont_fragment: false, ..Inner::udp("10.0.0.1", "172.16.0.2", bytes) };
            let sealed = a.seal(whole.bytes());
            assert!(!a.worker.waits_for_numbers());
            torn += usize::from(bytes == 9000 && (1..7).contains(&sealed.len()));
            let mut offset = None;
            for piece in sealed {
                let header = VpeHeader::parse(&piece[front(&spec) - VPE_HEADER_BYTES..]).expect("a header");
                windows.insert(header.window);
                assert!(header.number > last, "{} after {last}", header.number);
                let opened = b.open(piece).remove(0);
                let inner = IpHeader::parse(&opened).expect("a packet or a piece");
                let own = inner.fragment.map_or(0, |fragment| fragment.offset_bytes);
                assert!(offset < Some(own), "{own} after {offset:?}");
                (last, offset) = (header.number, Some(own));
            }
            store.serve();
        }
        assert_eq!(windows.len(), 1, "gated {is_gated}, in frames {in_frames}: {windows:?}");
        assert!(torn > 5 && a.drops(DropReason::SequenceNotLeased) > 5, "{torn}");
        a.assert_settled();
    }
}

/// Each piece is a packet of its own: headers in front of it, nothing behind, the next number of the window
/// that all of its datagram have. The peer sends the pieces on as they are.
#[test]
fn a_packet_of_9000_bytes_is_cut_before_it_is_sealed_into_pieces_with_their_own_numbers() {
    for spec in kinds(1500) {
        let (mut a, mut b) = (long_buffers(Side::A, &spec), long_buffers(Side::B, &spec));
        let whole = Inner { dont_fragment: false, ..Inner::udp("10.0.0.1", "172.16.0.2", 9000) }.bytes();
        let pieces = a.seal(whole.clone());
        assert!(pieces.len() >= 7, "{}", pieces.len());
        let mut payload = Vec::new();
        for (number, piece) in (1..).zip(&pieces) {
            assert!(piece.len() <= 1500);
            let at = front(&spec);
            let header = VpeHeader::parse(&piece[at - VPE_HEADER_BYTES..]).expect("a header");
            let first = VpeHeader::parse(&pieces[0][at - VPE_HEADER_BYTES..]).expect("a header");
            assert_eq!((header.number, header.window, header.spi), (number, first.window, first.spi));
            let opened = b.open(piece.clone()).remove(0);
            assert_eq!(piece.len(), at + opened.len(), "nothing is appended");
            let inner = IpHeader::parse(&opened).expect("a fragment");
            let fragment = inner.fragment.expect("a fragment");
            assert_eq!(usize::from(fragment.offset_bytes), payload.len());
            assert_eq!(fragment.more, usize::try_from(number).expect("few") < pieces.len());
            payload.extend_from_slice(inner.payload(&opened));
        }
        assert_eq!(payload, whole[20..]);
        let kept = Inner { dont_fragment: true, ..Inner::udp("10.0.0.1", "172.16.0.2", 9000) }.bytes();
        assert!(a.seal(kept).is_empty());
        assert_eq!(a.drops(DropReason::TooBig), 1, "its sender is told");
        a.protected.take();
        a.assert_settled();
        b.assert_settled();
    }
}
