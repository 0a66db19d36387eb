//! Keys replaced in the middle of traffic: whole batches in both directions, over a network that delays and
//! reorders and loses nothing. Each packet comes out once (RFC 7296 2.8: the new SA is accepted before it is
//! used, and the old one for as long as its packets may be on their way).

use crate::late_engine::SharedEngine;
use crate::support::gateway::{PoolSize, portable};
use crate::support::packet::number;
use crate::support::random::seed;
use crate::support::{Gateway, Inner, LeaseTwin, Side, TunnelSpec};
use fastrand::Rng;
use std::collections::VecDeque;
use std::net::IpAddr;
use std::time::Duration;
use testudo_crypto::{Engine, Suite};
use testudo_engine_late::LateConfig;
use testudo_gateway::{SaChange, UseFrom};
use testudo_ipsec::{IpsecProtocol, Mode};
use testudo_wire::ip::Version;

/// Steps of a run. A packet is on its way for at most [`DELAY`] of them.
const STEPS: usize = 400;
pub const DELAY: usize = 6;
/// Packets that each side sends in a step, at most: four batches.
const BURST: usize = 256;
/// Keys of a tunnel, one after the other.
pub const KEYS: u8 = 5;

/// What one tunnel of the configuration makes: one tunnel of SAs or two, the one with policies first.
pub type Tunnels = Vec<TunnelSpec>;

/// ESP and AH in either mode, ESP in UDP, and AH over ESP.
pub fn every_kind() -> Vec<Tunnels> {
    let ah = Suite::all_for_ah().next().expect("a suite for AH");
    let mut all = Vec::new();
    for (mode, outer) in [(Mode::Tunnel, Version::V4), (Mode::Transport, Version::V6)] {
        let with = |number, suite| TunnelSpec { mode, outer, ..TunnelSpec::new(number, suite) };
        for suite in [Suite::AES128GCM16, Suite::AES256_SHA256] {
            all.push(vec![with(0, suite)]);
        }
        all.push(vec![TunnelSpec { udp: true, esn: false, ..with(0, Suite::CHACHA20POLY1305) }]);
        all.push(vec![TunnelSpec { protocol: IpsecProtocol::Ah, ..with(0, ah) }]);
        let esp = TunnelSpec { covered_by: Some(1), path_mtu: 1440, ..with(0, Suite::AES128GCM16) };
        let (protocol, mode) = (IpsecProtocol::Ah, Mode::Transport);
        all.push(vec![esp, TunnelSpec { covers: Some(0), protocol, mode, ..with(1, ah) }]);
    }
    all
}

/// A tunnel under its key number `key`: SPIs and keys are those of another number.
fn under(spec: &TunnelSpec, key: u8) -> TunnelSpec {
    TunnelSpec { number: spec.number + 10 * key, ..spec.clone() }
}

/// One way from gateway to gateway: datagrams, with the step in which they arrive.
#[derive(Default)]
struct Way(VecDeque<(usize, Vec<u8>)>);

impl Way {
    fn send(&mut self, datagrams: Vec<Vec<u8>>, step: usize, random: &mut Rng) {
        self.0.extend(datagrams.into_iter().map(|datagram| (step + random.usize(..=DELAY), datagram)));
    }

    /// What arrives in a step, in any order.
    fn arriving(&mut self, step: usize, random: &mut Rng) -> Vec<Vec<u8>> {
        let (now, later) =
            std::mem::take(&mut self.0).into_iter().partition::<Vec<_>, _>(|(at, _)| *at <= step);
        self.0 = later.into();
        let mut now: Vec<_> = now.into_iter().map(|(_, datagram)| datagram).collect();
        // Neighbours change places: what is further apart than a window is lost, as it must be.
        for at in 1..now.len() {
            if random.usize(..4) == 0 {
                now.swap(at - 1, at);
            }
        }
        now
    }
}

/// What remains to be done of one rekey of a tunnel at both ends.
pub struct Rekey {
    pub tunnel: usize,
    pub key: u8,
    pub stage: Stage,
}

pub enum Stage {
    /// Ends that do not accept the new key yet.
    Accepting(Vec<Side>),
    /// Ends that do not send under it yet; the first one is to begin.
    Moving(Vec<Side>),
    /// The step in which the last packet under the old key may have been sent.
    Draining(usize),
}

pub struct Ends {
    pub gateways: [Gateway; 2],
    pub stores: [LeaseTwin; 2],
    tunnels: Tunnels,
    pub random: Rng,
}

pub fn index_of(side: Side) -> usize {
    usize::from(side == Side::B)
}

impl Ends {
    pub fn new(tunnels: &Tunnels, random: Rng, engines: &mut dyn FnMut() -> Vec<Box<dyn Engine>>) -> Self {
        let mut stores = [(); 2].map(|()| LeaseTwin::new(2000));
        let gateways = [Side::A, Side::B].map(|side| {
            let policies = tunnels.iter().flat_map(|spec| spec.policies(side)).collect();
            let mut gateway = Gateway::new(policies, PoolSize(4096, 4096), engines());
            for spec in tunnels {
                gateway.install(spec.install(side, &mut stores[index_of(side)], None));
            }
            gateway
        });
        Self { gateways, stores, tunnels: tunnels.clone(), random }
    }

    fn change(&mut self, side: Side, change: SaChange) {
        let gateway = &mut self.gateways[index_of(side)];
        let now = gateway.now();
        gateway.worker.change_sa(change, now).expect("it can be changed");
    }

    /// Makes the next change of a rekey; `true` when it is complete.
    pub fn advance(&mut self, rekey: &mut Rekey, step: usize) -> bool {
        let spec = self.tunnels[rekey.tunnel].clone();
        let (old, new, index) = (under(&spec, rekey.key - 1), under(&spec, rekey.key), spec.index());
        match &mut rekey.stage {
            Stage::Accepting(sides) => {
                let Some(side) = sides.pop() else { return false };
                if sides.is_empty() {
                    let first = if self.random.bool() { Side::A } else { Side::B };
                    let second = if first == Side::A { Side::B } else { Side::A };
                    rekey.stage = Stage::Moving(vec![second, first]);
                }
                self.change(side, SaChange::AddInbound(index, Box::new(new.inbound(side))));
            }
            Stage::Moving(sides) => {
                let Some(side) = sides.pop() else { return false };
                let other = if side == Side::A { Side::B } else { Side::A };
                // The second end may follow by itself, as soon as it sees the first one's packets.
                let from = match (sides.is_empty(), self.random.bool()) {
                    (true, true) => UseFrom::PeersUseOf(new.spi_from(other)),
                    _ => UseFrom::Now,
                };
                if sides.is_empty() {
                    rekey.stage = Stage::Draining(step + DELAY + 1);
                }
                let outbound = new.outbound(side, &mut self.stores[index_of(side)]);
                self.change(side, SaChange::AddOutbound(index, Box::new(outbound), from));
            }
            Stage::Draining(last) if step <= *last + DELAY + 1 => {}
            Stage::Draining(_) => {
                for side in [Side::A, Side::B] {
                    let other = if side == Side::A { Side::B } else { Side::A };
                    self.change(side, SaChange::RemoveOutbound(index, old.spi_from(side)));
                    self.change(side, SaChange::RemoveInbound(index, old.spi_from(other)));
                }
                return true;
            }
        }
        false
    }
}

/// Packet `id` of a side. In transport mode its number is in the ports.
fn packet(spec: &TunnelSpec, from: Side, id: u32) -> Vec<u8> {
    let bytes = 70 + (id as usize * 37) % 1200;
    if spec.mode == Mode::Transport {
        let to = if from == Side::A { Side::B } else { Side::A };
        let ends: [IpAddr; 2] = [spec.address(from), spec.address(to)];
        let ports = ((id >> 16) as u16, id as u16);
        let base = Inner::udp("10.0.0.1", "172.16.0.2", bytes);
        return Inner { source: ends[0], destination: ends[1], ports, ..base }.bytes();
    }
    crate::support::packet::numbered(7, id, spec.number, from == Side::A, bytes).bytes()
}

fn id_of(spec: &TunnelSpec, from: Side, packet: &[u8]) -> u32 {
    if spec.mode == Mode::Transport {
        let at = if packet[0] >> 4 == 4 { 20 } else { 40 };
        return u32::from_be_bytes(*packet[at..].first_chunk().expect("ports"));
    }
    number(packet, from == Side::A)
}

/// Sends whole batches both ways for [`STEPS`] steps while each tunnel gets [`KEYS`] keys. Returns how many
/// packets were sent each way; all of them must have come out, once.
fn run(tunnels: &Tunnels, seed: u64, engines: &mut dyn FnMut() -> Vec<Box<dyn Engine>>) -> [u32; 2] {
    let mut ends = Ends::new(tunnels, Rng::with_seed(seed), engines);
    let (mut ways, mut sent) = ([Way::default(), Way::default()], [0_u32; 2]);
    let mut came: [Vec<u32>; 2] = [Vec::new(), Vec::new()];
    let mut rekeys: Vec<Rekey> = Vec::new();
    let mut keys = vec![0; tunnels.len()];
    for step in 0..STEPS + 4 * DELAY {
        let is_sending = step < STEPS;
        for side in [Side::A, Side::B] {
            let (at, other) = (index_of(side), 1 - index_of(side));
            let burst = if is_sending { 1 + ends.random.usize(..BURST) } else { 0 };
            for _ in 0..burst {
                ends.gateways[at].protected.push(packet(&tunnels[0], side, sent[at]));
                sent[at] += 1;
            }
            for datagram in ways[other].arriving(step, &mut ends.random) {
                ends.gateways[at].unprotected.push(datagram);
            }
            // Changes are made between any two turns.
            for _ in 0..3 {
                ends.stores.iter_mut().for_each(LeaseTwin::serve);
                ends.gateways[at].turn();
                if let Some(mut rekey) = rekeys.pop()
                    && (ends.random.usize(..4) != 0 || !ends.advance(&mut rekey, step))
                {
                    rekeys.insert(0, rekey);
                }
            }
            ends.gateways[at].settle();
            let leaving = ends.gateways[at].unprotected.take();
            ways[at].send(leaving, step, &mut ends.random);
            let from = if side == Side::A { Side::B } else { Side::A };
            let arrived = ends.gateways[at].protected.take();
            came[other].extend(arrived.iter().map(|packet| id_of(&tunnels[0], from, packet)));
        }
        ends.gateways.iter_mut().for_each(|gateway| gateway.clock.advance(Duration::from_millis(10)));
        for (tunnel, key) in keys.iter_mut().enumerate() {
            let is_over = !rekeys.iter().any(|rekey| rekey.tunnel == tunnel);
            if is_sending && is_over && *key + 1 < KEYS && step % 60 == 10 + 7 * tunnel {
                *key += 1;
                rekeys.push(Rekey { tunnel, key: *key, stage: Stage::Accepting(vec![Side::A, Side::B]) });
            }
        }
    }
    assert!(keys.iter().all(|key| *key + 1 == KEYS) && rekeys.is_empty(), "{keys:?}: keys were replaced");
    for side in [0, 1] {
        came[side].sort_unstable();
        assert_eq!(
            came[side].len(),
            sent[side] as usize,
            "of side {side}: {:?}",
            ends.gateways[1 - side].books()
        );
        assert!(came[side].iter().copied().eq(0..sent[side]), "each packet of side {side} came once");
        ends.gateways[side].assert_settled();
        let drops = ends.gateways[side].worker.pool().drops().total();
        assert_eq!(drops, 0, "{:?}", ends.gateways[side].books());
    }
    sent
}

fn run_all(salt: u64, engines: &mut dyn FnMut() -> Vec<Box<dyn Engine>>) {
    let mut total = 0;
    for (number, tunnels) in every_kind().into_iter().enumerate() {
        let seed = seed() ^ salt ^ (number as u64) << 40;
        println!("seed {seed:#x}: {} {:?} {:?}", tunnels[0].suite, tunnels[0].protocol, tunnels[0].mode);
        total += run(&tunnels, seed, engines).iter().map(|sent| u64::from(*sent)).sum::<u64>();
    }
    println!("{total} packets, none was lost");
    assert!(total > 500_000, "only {total} packets were sent");
}

#[test]
fn a_rekey_at_full_rate_loses_no_packet() {
    run_all(1, &mut portable);
}

/// Packets of the old SA are still with the engine when the new one is used.
#[test]
fn a_rekey_over_an_engine_that_answers_late_loses_no_packet() {
    let mut number = 0;
    run_all(2, &mut || {
        number += 1;
        SharedEngine::new(LateConfig::reliable(seed() ^ number)).before_portable()
    });
}
