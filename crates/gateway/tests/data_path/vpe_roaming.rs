//! A peer of VPE that moves (`docs/VPE.md`, "UDP"): whether a packet is news is a matter of its window, since
//! numbers of two windows have no order.

use crate::support::gateway::{PoolSize, portable};
use crate::support::vpe::{datagram, sealed, vpe};
use crate::support::{Gateway, Inner, LeaseTwin, Side, TunnelSpec};
use crate::workers::install_at;
use std::time::Duration;
use testudo_crypto::Suite;
use testudo_gateway::SaChange;
use testudo_ipsec::EventKind;
use testudo_packet::DropReason;
use testudo_wire::checksum;
use testudo_wire::protocol;
use testudo_wire::vpe::VpeHeader;

/// How long a peer must be silent at its old address before it is followed.
const SILENCE: Duration = Duration::from_secs(1);
/// An address of the peer: its last byte, and its port.
type Place = (u8, u16);
const HOME: Place = (7, 1111);
const ELSEWHERE: Place = (9, 2222);
const ATTACKER: Place = (66, 6666);

fn spec() -> TunnelSpec {
    TunnelSpec { udp: true, b_learns: true, window: 64, ..vpe(Suite::ALL_FOR_VPE[0]) }
}

/// B, which learns where its peer is, with so many workers.
struct B(Vec<Gateway>);

impl B {
    fn new(workers: usize) -> Self {
        let gateway = || Gateway::new(spec().policies(Side::B), PoolSize(64, 2048), portable());
        let install = spec().install(Side::B, &mut LeaseTwin::new(1 << 40), None);
        Self(match workers {
            1 => install_at([gateway()], install).0.into(),
            _ => install_at([gateway(), gateway(), gateway()], install).0.into(),
        })
    }

    /// Has a worker receive this, and lets the others know what it has learned, as the control plane does.
    /// Returns how many packets were delivered, and where the peer has moved to.
    fn receive(&mut self, worker: usize, bytes: Vec<u8>) -> (usize, Vec<Place>) {
        let at = worker % self.0.len();
        let delivered = self.0[at].open(bytes).len();
        let mut moves = Vec::new();
        for event in self.0[at].worker.take_events() {
            if let EventKind::PeerMoved { address: std::net::IpAddr::V4(address), port, .. } = event.kind {
                moves.push((address.octets()[3], port));
            }
            for other in &mut self.0 {
                let now = other.now();
                other.worker.change_sa(SaChange::Hear(event), now).expect("it hears");
            }
        }
        (delivered, moves)
    }

    fn be_silent(&mut self) {
        self.0.iter_mut().for_each(|gateway| gateway.clock.advance(2 * SILENCE));
    }

    /// Where every worker sends to.
    fn target(&mut self) -> Place {
        let sealed = |gateway: &mut Gateway| {
            let sent = gateway.seal(Inner::udp("172.16.0.2", "10.0.0.1", 60).bytes()).remove(0);
            (sent[19], u16::from_be_bytes([sent[22], sent[23]]))
        };
        let places: Vec<Place> = self.0.iter_mut().map(sealed).collect();
        assert!(places.windows(2).all(|two| two[0] == two[1]), "{places:?}");
        places[0]
    }
}

/// A packet of the peer's, by hand.
fn packet(sender: u16, window: u16, number: u64, (host, port): Place) -> Vec<u8> {
    let header = VpeHeader { sender, window, number, spi: spec().spi_from(Side::A) };
    let inner = Inner::udp("10.0.0.1", "172.16.0.2", 60).bytes();
    let mut bytes = datagram(&spec(), protocol::UDP, &sealed(&spec().key_from(Side::A), header, &inner));
    bytes[15] = host;
    bytes[20..22].copy_from_slice(&port.to_be_bytes());
    bytes[10..12].fill(0);
    let sum = checksum::of(&bytes[..20]).to_bytes();
    bytes[10..12].copy_from_slice(&sum);
    bytes
}

/// A window that is far behind the others is news all the same, at whichever worker, and only once.
#[test]
fn a_packet_that_is_ahead_of_its_own_window_moves_the_peer() {
    for workers in [1, 3] {
        let mut b = B::new(workers);
        assert_eq!(b.receive(0, packet(0, 3, 5000, HOME)), (1, vec![HOME]));
        assert_eq!(b.receive(1, packet(0, 4, 10, HOME)), (1, vec![]));
        for (n, number) in (11..30).enumerate() {
            let place = if n % 2 == 0 { ELSEWHERE } else { HOME };
            b.be_silent();
            assert_eq!(b.receive(n, packet(0, 4, number, place)), (1, vec![place]), "{workers}, {number}");
            assert_eq!(b.target(), place);
        }
        b.0.iter().for_each(Gateway::assert_settled);
    }
}

/// Hostile: what was there before, what is late in its window, what nobody sealed, what another sender has,
/// and what was recorded of a window that is silent, moves nobody, in any window and at any worker.
#[test]
fn no_replay_and_no_forgery_moves_the_peer_in_any_window() {
    for workers in [1, 3] {
        let mut b = B::new(workers);
        b.receive(0, packet(0, 3, 5000, HOME));
        b.receive(1, packet(0, 4, 10, HOME));
        b.be_silent();
        let refused = |b: &mut B, worker, bytes: Vec<u8>| assert_eq!(b.receive(worker, bytes), (0, vec![]));
        for worker in 0..workers {
            for (window, number) in [(3, 5000), (4, 10)] {
                refused(&mut b, worker, packet(0, window, number, ATTACKER));
                refused(&mut b, worker, packet(1, window, number + 1, ATTACKER));
                let mut forged = packet(0, window, number + 1, ATTACKER);
                *forged.last_mut().expect("a text") ^= 1;
                refused(&mut b, worker, forged);
                // The number is protected by the nonce.
                let mut renumbered = packet(0, window, number, ATTACKER);
                renumbered[32] ^= 64;
                refused(&mut b, worker, renumbered);
            }
            let late = 4990 + worker as u64;
            assert_eq!(b.receive(worker, packet(0, 3, late, ATTACKER)), (1, vec![]), "late, but authentic");
            let silent = 20 + worker as u16;
            assert_eq!(b.receive(worker, packet(0, silent, 4999, ATTACKER)), (1, vec![]), "a silent window");
            refused(&mut b, worker, packet(0, silent, 4999, ATTACKER));
        }
        assert_eq!(b.target(), HOME);
        let sum = |reason| b.0.iter().map(|gateway| gateway.drops(reason)).sum::<u64>();
        let workers = workers as u64;
        assert_eq!(sum(DropReason::ReplayDuplicate), 3 * workers);
        assert_eq!(sum(DropReason::VpeSender), 2 * workers);
        // A new window that is ahead of all is news.
        assert_eq!(b.receive(1, packet(0, 50, 5001, ELSEWHERE)), (1, vec![ELSEWHERE]));
    }
}
