//! Peers behind NAT: ESP in UDP (RFC 3948), keepalives, and peers that move.

use crate::support::gateway::{PoolSize, portable};
use crate::support::{Gateway, Handmade, Inner, LeaseTwin, Sealer, Side, TunnelSpec};
use std::net::SocketAddr;
use std::time::Duration;
use testudo_crypto::Suite;
use testudo_gateway::{SaChange, TunnelInstall, UseFrom};
use testudo_ipsec::{Encapsulation, Endpoints, Event, EventKind, TunnelParameters};
use testudo_packet::DropReason;
use testudo_wire::checksum;

/// How long a peer must be silent at its old address before it is followed.
const SILENCE: Duration = Duration::from_secs(1);

fn spec() -> TunnelSpec {
    TunnelSpec { udp: true, b_learns: true, ..TunnelSpec::new(0, Suite::AES128GCM16) }
}

/// The same datagram, as if it came from elsewhere.
fn from(datagram: &[u8], host: u8, port: u16) -> Vec<u8> {
    let mut moved = datagram.to_vec();
    moved[15] = host;
    moved[20..22].copy_from_slice(&port.to_be_bytes());
    moved[10..12].fill(0);
    let sum = checksum::of(&moved[..20]).to_bytes();
    moved[10..12].copy_from_slice(&sum);
    moved
}

/// Where B currently sends to: last byte of the address, and port.
fn target(b: &mut Gateway) -> Option<(u8, u16)> {
    let sealed = b.seal(Inner::udp("172.16.0.2", "10.0.0.1", 60).bytes());
    sealed.first().map(|d| (d[19], u16::from_be_bytes([d[22], d[23]])))
}

fn authentic(sealer: &mut Sealer, sequence: u64) -> Vec<u8> {
    sealer.seal(sequence, &Handmade::carrying(&Inner::udp("10.0.0.1", "172.16.0.2", 60).bytes()))
}

#[test]
fn answers_go_to_where_the_newest_authentic_packet_came_from() {
    let mut sealer = Sealer::new(&spec(), Side::A);
    let mut b = Gateway::with_tunnels(Side::B, &[spec()]);
    assert_eq!(target(&mut b), None);
    assert_eq!(b.drops(DropReason::PeerUnknown), 1);
    for (sequence, host, port) in [(10, 7, 1111), (11, 7, 2222), (12, 9, 2222)] {
        b.open(from(&authentic(&mut sealer, sequence), host, port));
        assert_eq!(target(&mut b), Some((host, port)));
        let events = b.worker.take_events();
        assert_eq!(events.len(), 1);
        assert!(matches!(events[0].kind, EventKind::PeerMoved { port: p, .. } if p == port));
        b.clock.advance(SILENCE);
    }
    b.open(from(&authentic(&mut sealer, 13), 9, 2222));
    assert!(b.worker.take_events().is_empty(), "the peer stays where it is");
}

/// B with a tunnel whose peer is known, and followed: as a key exchange installs it.
fn knowing() -> Gateway {
    let mut b = Gateway::new(spec().policies(Side::B), PoolSize(64, 2048), portable());
    let install = spec().install(Side::B, &mut LeaseTwin::new(1 << 40), None);
    let known = TunnelSpec { b_learns: false, ..spec() }.parameters(Side::B);
    b.install(TunnelInstall { parameters: TunnelParameters { learn_remote: true, ..known }, ..install });
    b
}

/// A peer that is known from the start is followed like one that is learned. The event names the SA and where
/// the peer was, which is what a key exchange asks for (XFRM_MSG_MAPPING).
#[test]
fn a_peer_that_is_known_is_followed_and_the_event_says_from_where_and_by_which_sa() {
    let mut sealer = Sealer::new(&spec(), Side::A);
    let mut b = knowing();
    assert_eq!(target(&mut b), Some((1, 4500)), "it can be sent to before it was heard");
    let at = |host, port| SocketAddr::from(([192, 0, 2, host], port));
    let mut before = at(1, 4500);
    for (sequence, host, port) in [(10, 1, 1111), (20, 7, 1111), (30, 7, 4500)] {
        let forged = {
            let mut forged = authentic(&mut sealer, sequence + 3);
            *forged.last_mut().expect("an ICV") ^= 1;
            forged
        };
        assert!(b.open(from(&forged, host, port)).is_empty());
        let current = authentic(&mut sealer, sequence);
        b.open(from(&current, host, port));
        assert!(b.open(from(&current, 66, 6666)).is_empty(), "a replay");
        let moved = EventKind::PeerMoved {
            spi: spec().spi_from(Side::A),
            before: Some(before),
            address: at(host, port).ip(),
            port,
        };
        assert_eq!(b.worker.take_events(), [Event { tunnel: spec().index(), kind: moved }]);
        assert_eq!(target(&mut b), Some((host, port)));
        before = at(host, port);
        // At most one move a second, and none by a packet that is not the newest one.
        b.open(from(&authentic(&mut sealer, sequence + 1), 66, 6666));
        b.clock.advance(SILENCE);
        b.open(from(&authentic(&mut sealer, sequence - 1), 66, 6666));
        assert!(b.worker.take_events().is_empty());
        assert_eq!(target(&mut b), Some((host, port)));
    }
    b.assert_settled();
}

/// The SAs of the next key send to where the peer is by then, and the event names the one that it moved by.
#[test]
fn an_sa_that_is_added_later_follows_the_peer_as_well() {
    let mut b = knowing();
    let next = TunnelSpec { number: 1, ..spec() };
    let now = b.now();
    let inbound = SaChange::AddInbound(spec().index(), Box::new(next.inbound(Side::B)));
    b.worker.change_sa(inbound, now).expect("it can be added");
    b.open(from(&authentic(&mut Sealer::new(&spec(), Side::A), 1), 7, 1111));
    b.clock.advance(SILENCE);
    b.worker.take_events();
    let outbound = next.outbound(Side::B, &mut LeaseTwin::new(1 << 40));
    let outbound = SaChange::AddOutbound(spec().index(), Box::new(outbound), UseFrom::Now);
    let now = b.now();
    b.worker.change_sa(outbound, now).expect("it can be added");
    assert_eq!(target(&mut b), Some((7, 1111)));
    b.open(from(&authentic(&mut Sealer::new(&next, Side::A), 1), 9, 2222));
    let events = b.worker.take_events();
    let is_named = |event: &Event| {
        matches!(event.kind, EventKind::PeerMoved { spi, before: Some(before), .. }
            if spi == next.spi_from(Side::A) && before.port() == 1111)
    };
    assert!(events.len() == 1 && is_named(&events[0]), "{events:?}");
    assert_eq!(target(&mut b), Some((9, 2222)));
}

/// A peer with an SA for each worker (RFC 9611) may send each from a port of its own, where it receives
/// nothing: strongSwan's `per_cpu_sas = encap`.
#[test]
fn an_sa_from_any_port_is_opened_and_moves_nobody() {
    let mut b = knowing();
    let own = TunnelSpec { number: 1, ..spec() };
    let mut inbound = own.inbound(Side::B);
    inbound.parameters.from_any_port = true;
    let now = b.now();
    let inbound = SaChange::AddInbound(spec().index(), Box::new(inbound));
    b.worker.change_sa(inbound, now).expect("it can be added");
    let mut sealer = Sealer::new(&own, Side::A);
    for sequence in 1..=3 {
        assert_eq!(b.open(from(&authentic(&mut sealer, sequence), 1, 40_000)).len(), 1);
        assert_eq!(target(&mut b), Some((1, 4500)));
        b.clock.advance(SILENCE);
    }
    assert!(b.worker.take_events().is_empty());
    // Nor where it is watched for another reason.
    let next = TunnelSpec { number: 2, ..spec() }.outbound(Side::B, &mut LeaseTwin::new(1 << 40));
    let from_then = UseFrom::PeersUseOf(own.spi_from(Side::A));
    let now = b.now();
    b.worker.change_sa(SaChange::AddOutbound(spec().index(), Box::new(next), from_then), now).expect("added");
    assert_eq!(b.open(from(&authentic(&mut sealer, 4), 1, 40_000)).len(), 1);
    let events = b.worker.take_events();
    assert!(matches!(events[..], [Event { kind: EventKind::TookOver { .. }, .. }]), "{events:?}");
    assert_eq!(target(&mut b), Some((1, 4500)));
    // That of all says where the peer is.
    b.open(from(&authentic(&mut Sealer::new(&spec(), Side::A), 1), 7, 1111));
    assert_eq!(target(&mut b), Some((7, 1111)));
}

/// An attacker who sees the peer's packets can resend them from anywhere: that must not divert the traffic.
#[test]
fn no_packet_but_a_newer_authentic_one_moves_the_peer() {
    let mut sealer = Sealer::new(&spec(), Side::A);
    let mut b = Gateway::with_tunnels(Side::B, &[spec()]);
    let current = authentic(&mut sealer, 100);
    b.open(from(&current, 7, 1111));
    b.worker.take_events();
    // So that only the kind of each packet keeps it from being followed.
    b.clock.advance(2 * SILENCE);
    let late = authentic(&mut sealer, 99);
    let mut forged = authentic(&mut sealer, 101);
    *forged.last_mut().expect("an ICV") ^= 1;
    assert!(b.open(from(&current, 66, 6666)).is_empty(), "a replay");
    assert!(b.open(from(&forged, 66, 6666)).is_empty(), "a forgery");
    assert_eq!(b.open(from(&late, 66, 6666)).len(), 1, "late, but authentic: delivered, not followed");
    b.open(from(&crate::support::sealer::encapsulate(&spec(), Side::A, &[0xFF], 0), 66, 6666));
    b.open(from(&crate::support::sealer::encapsulate(&spec(), Side::A, &[0; 40], 0), 66, 6666));
    assert_eq!(target(&mut b), Some((7, 1111)));
    assert!(b.worker.take_events().is_empty());
}

/// When the peer moves while a packet arrives every 5 ms for ten seconds, number `n` from the address
/// `source(n)`.
fn moves(source: impl Fn(u64) -> (u8, u16)) -> Vec<Duration> {
    let step = Duration::from_millis(5);
    let mut sealer = Sealer::new(&spec(), Side::A);
    let mut b = Gateway::with_tunnels(Side::B, &[spec()]);
    let mut moves = Vec::new();
    for number in 1..=2000 {
        let (host, port) = source(number);
        assert_eq!(
            b.open(from(&authentic(&mut sealer, number), host, port)).len(),
            1,
            "delivered in any case"
        );
        let events = b.worker.take_events();
        if !events.is_empty() {
            assert_eq!(events.len(), 1, "{events:?}");
            assert_eq!(target(&mut b), Some((host, port)), "where the event says");
            moves.push(b.now().0);
        }
        b.clock.advance(step);
    }
    b.assert_settled();
    moves
}

/// Whether the peer sends from two addresses or an attacker resends every other packet from elsewhere: no
/// storm of moves.
#[test]
fn a_peer_moves_at_most_once_a_second_from_however_many_addresses_it_sends() {
    let by_turns = moves(|number| (7, 1111 + (number % 2) as u16));
    assert_eq!(by_turns.len(), 1, "it is alive where it was first: {by_turns:?}");
    let ever_new = moves(|number| (7, 1111 + number as u16));
    assert_eq!(
        ever_new.len(),
        10,
        "ten seconds, none of which hears from the same place twice: {ever_new:?}"
    );
    assert!(ever_new.windows(2).all(|pair| pair[1] - pair[0] >= SILENCE), "{ever_new:?}");
    let in_bursts = moves(|number| (7 + (number / 3 % 4) as u8, 1111));
    assert!(in_bursts.windows(2).all(|pair| pair[1] - pair[0] >= SILENCE), "{in_bursts:?}");
}

#[test]
fn a_peer_that_moves_is_followed_after_a_second_of_silence_where_it_was() {
    // The last packet from the old address comes after 499 steps of 5 ms.
    let moves = moves(|number| if number <= 500 { (7, 1111) } else { (9, 2222) });
    let left = Duration::from_millis(499 * 5);
    assert_eq!(moves, [Duration::ZERO, left + SILENCE]);
}

/// RFC 4303 2.6: dummy packets are authentic, and show that the peer is still at its address.
#[test]
fn authentic_packets_that_are_refused_later_keep_the_peer_where_it_is() {
    let mut sealer = Sealer::new(&spec(), Side::A);
    let mut b = Gateway::with_tunnels(Side::B, &[spec()]);
    let dummy =
        Handmade { next_header: 59, ..Handmade::carrying(&Inner::udp("10.0.0.1", "172.16.0.2", 60).bytes()) };
    for number in 1..=20 {
        assert!(b.open(from(&sealer.seal(2 * number, &dummy), 7, 1111)).is_empty());
        b.open(from(&authentic(&mut sealer, 2 * number + 1), 66, 6666));
        assert_eq!(target(&mut b), Some((7, 1111)));
        b.clock.advance(SILENCE / 2);
    }
}

#[test]
fn a_peer_with_a_fixed_address_is_not_followed() {
    let spec = TunnelSpec { b_learns: false, ..spec() };
    let mut sealer = Sealer::new(&spec, Side::A);
    let mut b = Gateway::with_tunnels(Side::B, &[spec]);
    assert_eq!(
        b.open(from(&authentic(&mut sealer, 1), 66, 6666)).len(),
        1,
        "a NAT may have moved it: the ICV counts"
    );
    assert_eq!(target(&mut b), Some((1, 4500)));
    assert!(b.worker.take_events().is_empty());
}

#[test]
fn a_keepalive_is_sent_after_each_silence_and_only_then() {
    let spec = TunnelSpec { keepalive: Some(Duration::from_secs(20)), b_learns: false, ..spec() };
    let mut a = Gateway::with_tunnels(Side::A, std::slice::from_ref(&spec));
    let mut b = Gateway::with_tunnels(Side::B, &[spec]);
    let mut sent_at = Vec::new();
    for second in 0..100 {
        let now = a.now();
        a.worker.tick(now);
        a.settle();
        for keepalive in a.unprotected.take() {
            assert_eq!(keepalive[28..], [0xFF]);
            sent_at.push(second);
            assert!(b.open(keepalive).is_empty());
        }
        if second == 50 {
            a.seal(Inner::udp("10.0.0.1", "172.16.0.2", 60).bytes());
        }
        a.clock.advance(Duration::from_secs(1));
    }
    assert_eq!(sent_at, [20, 40, 70, 90]);
    assert_eq!(b.drops(DropReason::NatKeepalive), 4);
    a.assert_settled();
}

/// RFC 3948 4 is about ESP in UDP; outside UDP the one byte would be a broken ESP packet.
#[test]
fn no_keepalive_is_sent_outside_udp() {
    let spec = TunnelSpec { keepalive: Some(Duration::from_secs(20)), udp: false, b_learns: false, ..spec() };
    let mut a = Gateway::with_tunnels(Side::A, &[spec]);
    a.clock.advance(Duration::from_secs(100));
    let now = a.now();
    a.worker.tick(now);
    a.settle();
    assert!(a.unprotected.take().is_empty());
}

/// A key exchange finds a NAT, or that the peer's port has changed: keys and numbers go on, and the rest is
/// where it was.
#[test]
fn a_tunnel_that_is_redirected_goes_on_with_its_keys_between_other_ends() {
    let plain = TunnelSpec::new(0, Suite::AES128GCM16);
    let mut a = Gateway::with_tunnels(Side::A, std::slice::from_ref(&plain));
    let packet = || Inner::udp("10.0.0.1", "172.16.0.2", 60).bytes();
    let sequence = |datagram: &[u8], at: usize| u32::from_be_bytes(*datagram[at..].first_chunk().unwrap());
    let first = a.seal(packet()).remove(0);
    assert_eq!((first[9], sequence(&first, 24)), (50, 1));
    let ends = plain.parameters(Side::A).endpoints;
    let to = |local_port, remote_port| {
        let encapsulation = Encapsulation::EspInUdp { local_port, remote_port };
        SaChange::Redirect(plain.index(), Endpoints { encapsulation, ..ends }, true)
    };
    let change = |a: &mut Gateway, change| {
        let now = a.now();
        a.worker.change_sa(change, now).expect("there is such a tunnel")
    };
    change(&mut a, to(4500, 4501));
    for (number, port) in [(2, 4501_u16), (3, 17)] {
        let datagram = a.seal(packet()).remove(0);
        assert_eq!((datagram[9], sequence(&datagram, 32)), (17, number));
        assert_eq!(datagram[20..24], [4500_u16.to_be_bytes(), port.to_be_bytes()].concat());
        assert_eq!(datagram.len(), first.len() + 8);
        change(&mut a, to(4500, 17));
    }
    change(&mut a, SaChange::Redirect(plain.index(), ends, false));
    let datagram = a.seal(packet()).remove(0);
    assert_eq!((datagram[9], datagram.len(), sequence(&datagram, 24)), (50, first.len(), 4));
    let nowhere = SaChange::Redirect(testudo_ipsec::TunnelIndex(77), ends, false);
    let now = a.now();
    assert!(a.worker.change_sa(nowhere, now).is_err());
    a.assert_settled();
}
