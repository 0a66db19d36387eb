//! Floods of fragments beside an honest flow: what they can push out, and for how long (the rules and the
//! argument are in `testudo_ipsec::fragments`).
//!
//! A pool of 2,048 buffers leaves room for 256 incomplete datagrams: 192 of peers, 64 of all others.

use crate::support::fragments::{Part, fragment, fragmentable, fragments};
use crate::support::gateway::{PoolSize, portable};
use crate::support::random::seed;
use crate::support::{Gateway, Handmade, Inner, LeaseTwin, Sealer, Side, TunnelSpec};
use fastrand::Rng;
use std::net::Ipv4Addr;
use testudo_crypto::Suite;
use testudo_ipsec::Moment;
use testudo_ipsec::fragments::{Reassembled, Reassembler};
use testudo_packet::{DropReason, Pool};
use testudo_wire::ip::IpHeader;

const ROOM_FOR_PEERS: u32 = 192;
const ROOM_FOR_STRANGERS: u32 = 64;
const HONEST: &str = "192.0.2.1";

/// A reassembler alone, so that millions of fragments take a moment.
struct Stage {
    reassembler: Reassembler,
    pool: Pool,
    random: Rng,
    honest: u16,
    flood: u32,
}

/// In whose name the flood comes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Flood {
    /// Sources that are no peers, each different.
    Strangers,
    /// So many other peers, in turn.
    Peers(u32),
    /// The honest flow's own address.
    Own,
}

impl Stage {
    fn new() -> Self {
        println!("TESTUDO_SEED={:#x}", seed());
        let (reassembler, pool) = (Reassembler::default(), Pool::new(2048, 2048));
        Self { reassembler, pool, random: Rng::with_seed(seed()), honest: 0, flood: 0 }
    }

    /// Gives a fragment to the reassembler; `true` if it completed its datagram. The clock stands still: no
    /// timeout helps.
    fn take(&mut self, packet: &[u8], is_peer: bool) -> bool {
        let header = IpHeader::parse(packet).expect("a fragment");
        let mut buffer = self.pool.pop().expect("there is room for the next one");
        buffer.receive_area()[..packet.len()].copy_from_slice(packet);
        buffer.set_len(packet.len());
        let now = Moment::default();
        match self.reassembler.take(&mut buffer, &header, is_peer, now, &mut self.pool) {
            Ok(Reassembled::Kept) => return false,
            Ok(Reassembled::Whole) => self.pool.recycle(buffer),
            Err(reason) => {
                self.pool.discard(buffer, reason);
                return false;
            }
        }
        true
    }

    /// `count` first fragments, each of another datagram.
    fn flood(&mut self, flood: Flood, count: u32) {
        for _ in 0..count {
            self.flood += 1;
            let (source, is_peer) = match flood {
                Flood::Strangers => (Ipv4Addr::from_bits(self.random.u32(..)), false),
                Flood::Peers(peers) => (Ipv4Addr::from_bits(0x0A00_0000 + self.flood % peers), true),
                Flood::Own => (HONEST.parse().expect("an address"), true),
            };
            let datagram = datagram(&source.to_string(), 0);
            // Above the identifications of the honest flow.
            let identification = 0x8000 + self.flood % 0x8000;
            let part = Part { offset: 0, bytes: 48, more: true };
            self.take(&fragment(&datagram, identification, part), is_peer);
        }
    }

    /// An honest datagram in three fragments, with so much flood between any two; whether it was reassembled.
    fn honest(&mut self, is_peer: bool, flood: Flood, between: u32) -> bool {
        self.honest += 1;
        let datagram = datagram(HONEST, self.honest);
        let mut whole = false;
        for (place, fragment) in fragments(&datagram, self.honest.into(), 80).into_iter().enumerate() {
            if place > 0 {
                self.flood(flood, between);
            }
            whole = self.take(&fragment, is_peer);
        }
        whole
    }

    fn assert_bounded(&self) {
        assert!(self.reassembler.incomplete() <= 256);
        assert_eq!(self.pool.size() - self.pool.available(), self.reassembler.incomplete());
    }
}

fn datagram(source: &str, identification: u16) -> Vec<u8> {
    fragmentable(Inner::udp(source, "198.51.100.2", 220).bytes(), identification)
}

/// Sources that nobody knows have room of their own, and take none from peers.
#[test]
fn a_flood_of_fragments_from_invented_sources_evicts_nothing_of_a_peer() {
    let mut stage = Stage::new();
    for _ in 0..100 {
        assert!(stage.honest(true, Flood::Strangers, 5_000));
        stage.assert_bounded();
    }
    assert!(stage.pool.drops().get(DropReason::FragmentEvicted) > 990_000, "the flood evicts itself");
}

/// A pair has at least its share of the room, in whomever's name the others are flooded.
#[test]
fn a_flood_in_the_name_of_other_peers_leaves_an_honest_peer_its_share() {
    for peers in [1, 10, 95, 190] {
        let mut stage = Stage::new();
        for _ in 0..20 {
            assert!(stage.honest(true, Flood::Peers(peers), 2_000), "{peers} peers");
            stage.assert_bounded();
        }
    }
    // A peer with many datagrams under way at once keeps as many as its share.
    let share = ROOM_FOR_PEERS / 11;
    let mut stage = Stage::new();
    stage.flood(Flood::Peers(10), 10_000);
    let all: Vec<_> = (1..share as u16).map(|n| fragments(&datagram(HONEST, n), n.into(), 80)).collect();
    for round in 0..3 {
        for datagram in &all {
            assert_eq!(stage.take(&datagram[round], true), round == 2);
            stage.flood(Flood::Peers(10), 100);
        }
    }
}

/// Who forges the honest peer's own address competes with it: a datagram is lost if as many others begin as
/// there is room for. Nothing of that lasts: the next datagram in a pause is reassembled.
#[test]
fn a_flood_in_the_peers_own_name_harms_only_while_it_lasts() {
    let mut stage = Stage::new();
    for _ in 0..50 {
        assert!(stage.honest(true, Flood::Own, ROOM_FOR_PEERS / 2 - 1), "slower than its room");
        assert!(!stage.honest(true, Flood::Own, ROOM_FOR_PEERS), "more than its room");
        assert!(stage.honest(true, Flood::Own, 0), "directly after it");
        stage.assert_bounded();
    }
}

/// A peer whose address is not known yet has less room, and its fragments come one after the other.
#[test]
fn among_strangers_a_datagram_survives_as_many_others_as_there_is_room_for() {
    let mut stage = Stage::new();
    stage.flood(Flood::Strangers, 10_000);
    for _ in 0..50 {
        assert!(stage.honest(false, Flood::Strangers, ROOM_FOR_STRANGERS / 2 - 1));
        assert!(!stage.honest(false, Flood::Strangers, ROOM_FOR_STRANGERS));
        assert!(stage.honest(false, Flood::Strangers, 0));
        stage.assert_bounded();
    }
}

/// Through a whole gateway, of which the flood takes no more than its share of buffers.
#[test]
fn a_tunnel_carries_fragmented_and_whole_packets_through_a_flood_of_fragments() {
    println!("TESTUDO_SEED={:#x}", seed());
    let mut random = Rng::with_seed(seed());
    let spec = TunnelSpec::new(0, Suite::AES128GCM16);
    let mut b = Gateway::new(spec.policies(Side::B), PoolSize(512, 9000), portable());
    b.install(spec.install(Side::B, &mut LeaseTwin::new(1 << 40), None));
    let mut sealer = Sealer::new(&spec, Side::A);
    let mut seal = |number: u64| {
        let packet = Inner { seed: number, ..Inner::udp("10.0.0.1", "172.16.0.2", 4000) }.bytes();
        (sealer.seal(number, &Handmade::carrying(&packet)), packet)
    };
    let to = spec.address(Side::B).to_string();
    let mut flood = |b: &Gateway| {
        for _ in 0..500 {
            let source = Ipv4Addr::from_bits(random.u32(..)).to_string();
            let datagram = fragmentable(Inner::udp(&source, &to, 1000).bytes(), 0);
            let offset = random.usize(..60) * 8;
            let part = Part { offset, bytes: 256, more: true };
            b.unprotected.push(fragment(&datagram, random.u32(..), part));
        }
    };
    for number in (1..200).step_by(2) {
        let (whole, first) = seal(number);
        let (cut, second) = seal(number + 1);
        b.unprotected.push(whole);
        for fragment in fragments(&fragmentable(cut, number as u16), number as u32, 1480) {
            b.unprotected.push(fragment);
            flood(&b);
        }
        b.settle();
        assert_eq!(b.protected.take(), [first, second]);
        assert!(b.worker.incomplete_datagrams() <= 64, "an eighth of the pool");
        b.assert_settled();
    }
    assert!(b.drops(DropReason::FragmentEvicted) > 100_000);
}
