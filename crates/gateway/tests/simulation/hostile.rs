//! Every encapsulation on a hostile network, while keys are replaced: what the host has cut, what the gateway
//! cuts, and what routers cut; datagrams that are lost, late, repeated, damaged and recorded.
//!
//! The judge knows which datagrams arrived whole and unchanged, in time. Exactly their packets come out, each
//! once, byte for byte.

use crate::rekey::{DELAY, Ends, KEYS, Rekey, Stage, Tunnels, every_kind, index_of};
use crate::support::fragments::{fragmentable, fragments, header_bytes};
use crate::support::gateway::portable;
use crate::support::packet::{number, numbered};
use crate::support::random::seed;
use crate::support::{Inner, LeaseTwin, Side, TunnelSpec};
use fastrand::Rng;
use std::collections::HashMap;
use std::time::Duration;
use testudo_ipsec::{Fragmentation, Mode};
use testudo_packet::DropReason;
use testudo_wire::ip::Version;
use testudo_wire::protocol;

const STEPS: usize = 240;
/// Packets that each side sends in a step, at most.
const BURST: usize = 16;
/// Bytes of a packet at most: three fragments over a path of 1,500.
const LONGEST: usize = 3600;

fn other(side: Side) -> Side {
    if side == Side::A { Side::B } else { Side::A }
}

/// What a host sends as one datagram: its packets, and what must come out at the other end.
struct Message {
    packets: Vec<Vec<u8>>,
    whole: Vec<u8>,
}

/// Message `id` of a side. In transport mode its number is in the ports, and the host has cut what does not
/// fit; its fragments come in any order.
fn message(spec: &TunnelSpec, from: Side, id: u32, random: &mut Rng) -> Message {
    if spec.mode == Mode::Tunnel {
        let whole = numbered(7, id, spec.number, from == Side::A, LONGEST).bytes();
        return Message { packets: vec![whole.clone()], whole };
    }
    let bytes =
        if id.is_multiple_of(5) { 1300 + random.usize(..LONGEST - 1300) } else { 70 + random.usize(..1200) };
    let ports = ((id >> 16) as u16, id as u16);
    let (source, destination) = (spec.address(from), spec.address(other(from)));
    let base = Inner::udp("10.0.0.1", "172.16.0.2", bytes);
    let whole = fragmentable(Inner { source, destination, ports, ..base }.bytes(), id as u16 + 1);
    if bytes <= spec.inner_mtu() {
        return Message { packets: vec![whole.clone()], whole };
    }
    let mut packets = fragments(&whole, id + 1, 1200);
    random.shuffle(&mut packets);
    Message { packets, whole }
}

fn id_of(spec: &TunnelSpec, from: Side, packet: &[u8]) -> u32 {
    match spec.mode {
        Mode::Tunnel => number(packet, from == Side::A),
        Mode::Transport => u32::from_be_bytes(*packet[header_bytes(packet)..].first_chunk().expect("ports")),
    }
}

/// Without the checksum of UDP in UDP, which is made anew behind a NAT (RFC 3948 3.1.2).
fn comparable(spec: &TunnelSpec, packet: &[u8]) -> Vec<u8> {
    let mut packet = packet.to_vec();
    if spec.udp && spec.mode == Mode::Transport {
        let at = header_bytes(&packet) + 6;
        packet[at..at + 2].fill(0);
    }
    packet
}

/// What arrives together or not at all: a datagram, or its fragments.
type Parts = Vec<Vec<u8>>;

/// One way from gateway to gateway.
#[derive(Default)]
struct Way {
    /// With the step in which each arrives.
    under_way: Vec<(usize, Vec<u8>)>,
    recorded: Vec<Parts>,
    /// Of the datagram that a router has cut last: far from those that its gateway gives.
    identification: Option<u32>,
}

impl Way {
    /// Takes a datagram, or the fragments that a gateway has made of it; whether it arrives whole and
    /// unchanged.
    fn send(&mut self, mut parts: Parts, step: usize, random: &mut Rng) -> bool {
        if parts.len() > 1 {
            self.identification.get_or_insert(identification(&parts[0]).wrapping_add(0x8000));
        } else if random.usize(..6) == 0 {
            parts = self.cut(&parts[0], random);
        }
        random.shuffle(&mut parts);
        let fate = random.usize(..100);
        match fate {
            0..6 => {
                parts.remove(random.usize(..parts.len()));
            }
            6..14 => {
                let at = random.usize(..parts.len());
                damage(&mut parts[at], random);
            }
            14..20 => {
                let again = parts[random.usize(..parts.len())].clone();
                parts.push(again);
            }
            20..24 => {
                if let [whole] = &parts[..] {
                    let mut damaged = whole.clone();
                    damage(&mut damaged, random);
                    parts.insert(0, damaged);
                }
            }
            24..28 if !self.recorded.is_empty() => {
                let at = random.usize(..self.recorded.len());
                self.deliver(self.recorded[at].clone(), step, random);
            }
            _ => {}
        }
        let arrives = fate >= 14;
        if arrives && self.recorded.len() < 200 {
            self.recorded.push(parts.clone());
        }
        self.deliver(parts, step, random);
        arrives
    }

    fn deliver(&mut self, parts: Parts, step: usize, random: &mut Rng) {
        self.under_way.extend(parts.into_iter().map(|part| (step + random.usize(..=DELAY), part)));
    }

    /// A router's fragments. Over IPv4 they keep the Identification of a datagram that has one.
    fn cut(&mut self, whole: &[u8], random: &mut Rng) -> Parts {
        let own = u16::from_be_bytes([whole[4], whole[5]]);
        let identification = match (whole[0] >> 4, own, &mut self.identification) {
            (4, 1.., _) => own.into(),
            (_, _, Some(last)) => {
                *last = last.wrapping_add(1);
                *last
            }
            (_, _, None) => return vec![whole.to_vec()],
        };
        let cut = fragments(
            &fragmentable(whole.to_vec(), identification as u16),
            identification,
            8 * (8 + random.usize(..120)),
        );
        if cut.len() > 1 { cut } else { vec![whole.to_vec()] }
    }

    /// What arrives in a step, in any order.
    fn arriving(&mut self, step: usize, random: &mut Rng) -> Parts {
        let under_way = std::mem::take(&mut self.under_way);
        let (now, later) = under_way.into_iter().partition::<Vec<_>, _>(|(at, _)| *at <= step);
        self.under_way = later;
        let mut now: Parts = now.into_iter().map(|(_, part)| part).collect();
        random.shuffle(&mut now);
        now
    }
}

/// The Identification of a fragment.
fn identification(part: &[u8]) -> u32 {
    let bytes = if part[0] >> 4 == 4 { &part[4..6] } else { &part[44..48] };
    bytes.iter().fold(0, |sum, byte| sum << 8 | u32::from(*byte))
}

/// Flips a bit of what is authenticated: not in the IP header, nor in that of a fragment or of UDP.
fn damage(part: &mut [u8], random: &mut Rng) {
    let header = header_bytes(part);
    let next = if part[0] >> 4 == 4 { part[9] } else { part[6] };
    let skipped = if matches!(next, protocol::FRAGMENT | protocol::UDP) { header + 16 } else { header };
    // The last fragment may be short; its end is a part of the ICV.
    let skipped = skipped.min(part.len() - 1);
    let at = skipped + random.usize(..part.len() - skipped);
    part[at] ^= 1 << random.usize(..8);
}

/// What each side has sent, and what must come of it.
#[derive(Default)]
struct Ledger {
    sent: u32,
    expected: HashMap<u32, Vec<u8>>,
}

struct Run<'t> {
    ends: Ends,
    spec: &'t TunnelSpec,
    ways: [Way; 2],
    ledgers: [Ledger; 2],
}

impl Run<'_> {
    /// Sends one message through its gateway, and onto its way what leaves.
    fn send(&mut self, side: Side, step: usize) {
        let at = index_of(side);
        let id = self.ledgers[at].sent;
        self.ledgers[at].sent += 1;
        let Message { packets, whole } = message(self.spec, side, id, &mut self.ends.random);
        packets.into_iter().for_each(|packet| self.ends.gateways[at].protected.push(packet));
        self.ends.gateways[at].settle();
        let parts = self.ends.gateways[at].unprotected.take();
        assert!(!parts.is_empty(), "message {id}: {:?}", self.ends.gateways[at].worker.pool().drops());
        if self.ways[at].send(parts, step, &mut self.ends.random) {
            self.ledgers[at].expected.insert(id, comparable(self.spec, &whole));
        }
    }

    fn receive(&mut self, side: Side, step: usize) {
        let from = other(side);
        let arriving = self.ways[index_of(from)].arriving(step, &mut self.ends.random);
        let gateway = &mut self.ends.gateways[index_of(side)];
        arriving.into_iter().for_each(|part| gateway.unprotected.push(part));
        gateway.settle();
        for packet in gateway.protected.take() {
            let id = id_of(self.spec, from, &packet);
            let expected = self.ledgers[index_of(from)].expected.remove(&id);
            let is_right = expected == Some(comparable(self.spec, &packet));
            assert!(is_right, "message {id} has changed, or came once more: {packet:02x?}");
        }
    }

    fn end(self, refused: &mut HashMap<DropReason, u64>) -> u32 {
        for (ledger, mut gateway) in self.ledgers.iter().zip(self.ends.gateways.into_iter().rev()) {
            assert!(ledger.expected.is_empty(), "{} did not come out", ledger.expected.len());
            gateway.worker.end_waits();
            gateway.assert_settled();
            for (reason, count) in gateway.worker.pool().drops().iter() {
                *refused.entry(reason).or_default() += count;
            }
            for reason in [DropReason::NoRoom, DropReason::PoolEmpty, DropReason::FieldsHidden] {
                assert_eq!(gateway.drops(reason), 0, "{}", reason.description());
            }
        }
        self.ledgers.iter().map(|ledger| ledger.sent).sum()
    }
}

fn run(tunnels: &Tunnels, seed: u64, refused: &mut HashMap<DropReason, u64>) -> u32 {
    let ends = Ends::new(tunnels, Rng::with_seed(seed), &mut portable);
    let mut run = Run { ends, spec: &tunnels[0], ways: Default::default(), ledgers: Default::default() };
    let (mut rekeys, mut keys) = (Vec::<Rekey>::new(), vec![0; tunnels.len()]);
    for step in 0..STEPS + 4 * DELAY {
        for side in [Side::A, Side::B] {
            run.receive(side, step);
            let burst = if step < STEPS { 1 + run.ends.random.usize(..BURST) } else { 0 };
            for _ in 0..burst {
                run.ends.stores.iter_mut().for_each(LeaseTwin::serve);
                run.send(side, step);
                // Changes are made between any two packets.
                if let Some(mut rekey) = rekeys.pop()
                    && (run.ends.random.usize(..8) != 0 || !run.ends.advance(&mut rekey, step))
                {
                    rekeys.insert(0, rekey);
                }
            }
        }
        run.ends.gateways.iter_mut().for_each(|gateway| gateway.clock.advance(Duration::from_millis(10)));
        for (tunnel, key) in keys.iter_mut().enumerate() {
            let is_over = !rekeys.iter().any(|rekey| rekey.tunnel == tunnel);
            if is_over && *key + 1 < KEYS && step < STEPS && step % 40 == 10 + 7 * tunnel {
                *key += 1;
                rekeys.push(Rekey { tunnel, key: *key, stage: Stage::Accepting(vec![Side::A, Side::B]) });
            }
        }
    }
    assert!(keys.iter().all(|key| *key > 1), "{keys:?}: keys were replaced");
    run.end(refused)
}

/// ESP, ESP in UDP, AH and AH over ESP, in tunnel and transport mode, over IPv4 and IPv6.
#[test]
fn what_arrives_whole_and_unchanged_comes_out_once_in_every_encapsulation_while_keys_are_replaced() {
    let (mut total, mut refused) = (0, HashMap::new());
    for (number, tunnels) in every_kind().into_iter().enumerate() {
        for outer in [Version::V4, Version::V6] {
            let cutting = |spec: &TunnelSpec| {
                let fragmentation = Fragmentation::After;
                TunnelSpec { outer, fragmentation, ..spec.clone() }
            };
            let tunnels: Tunnels = tunnels.iter().map(cutting).collect();
            let seed = seed() ^ 3 ^ (number as u64) << 40;
            println!("seed {seed:#x}: {} {:?} {:?}", tunnels[0].suite, tunnels[0].protocol, tunnels[0].mode);
            total += run(&tunnels, seed, &mut refused);
        }
    }
    println!("{total} messages");
    for reason in [
        DropReason::AuthenticationFailed,
        DropReason::ReplayDuplicate,
        DropReason::FragmentDuplicate,
        DropReason::FragmentTimeout,
        DropReason::UnknownSpi,
    ] {
        let count = refused.get(&reason).copied().unwrap_or(0);
        assert!(count > 0, "never happened: {}", reason.description());
    }
    assert!(total > 40_000, "only {total} messages were sent");
}
