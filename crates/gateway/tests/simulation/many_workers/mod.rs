//! Two gateways of several workers each, in one process, driven by a seed: a turn of any worker at a time, a
//! step of a command at any worker, a store that grants numbers late, crashes, restarts, new keys, workers
//! that come and go.
//!
//! ```text
//!   packets ─► worker 0 ─┐                        ┌─► worker 0 ─► judge: once, in order, and all
//!   packets ─► worker 1 ─┼─► wire: no number and ─┼─► worker 1 ─►        that its window accepts
//!   packets ─► …        ─┘   no nonce twice       └─► …
//! ```
//!
//! What holds in any order: no nonce twice under a key, over all workers, crashes and restarts; no packet
//! delivered twice, through whichever worker it comes again; every packet in the books of all workers; and
//! where the wire keeps its order, a peer with a window of 32 refuses nothing.

mod encapsulation;
mod fills;
mod judge;
mod site;
mod underway;
mod wire;

use crate::late_engine::SharedEngine;
use crate::support::gateway::portable;
use crate::support::random::seed;
use crate::support::{Inner, Side, TunnelSpec};
use encapsulation::Case;
use fastrand::Rng;
use judge::Judge;
use site::{Site, other, under};
use std::num::NonZeroU32;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::Duration;
use testudo_crypto::Engine;
use testudo_engine_late::LateConfig;
use testudo_gateway::UseFrom;
use testudo_packet::DropReason;
use testudo_wire::steering::Steering;
use testudo_wire::vpe::VPE_PROTOCOL;
use wire::{DELAY, Wire};

/// Numbers of an SA that come to one worker where it is spread.
const BLOCK: NonZeroU32 = NonZeroU32::new(8).unwrap();

/// Makes the engines of a worker.
pub type Engines = Box<dyn FnMut() -> Vec<Box<dyn Engine>>>;

/// A mistake that is built in on purpose.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// Each worker numbers from the same lease by itself.
    NumbersApart,
    /// Each worker has a window of its own.
    WindowsApart,
    /// After the workers have gone, those that start number as if no number had been leased.
    LeasesForgotten,
    /// After the workers have gone, those that start know no window.
    WindowsForgotten,
    /// Now and then a packet that a worker has sent is gone, and nobody counts it.
    PacketsVanish,
    /// A worker that goes sleeps at once, with what it has not sent.
    SleepsAtOnce,
}

impl Fault {
    /// Whether the workers begin with something apart that they must share.
    fn is_of_sharing(self) -> bool {
        matches!(self, Self::NumbersApart | Self::WindowsApart)
    }
}

pub struct Scenario {
    case: Case,
    seed: u64,
    steps: usize,
    is_hostile: bool,
    /// Engines answer in later turns.
    is_late: bool,
    /// Workers crash and restart, and keys are replaced.
    changes: bool,
    /// Workers come and go: packets are led to some of them.
    moves: bool,
    /// Each SA is spread over the workers, which release its packets in order.
    in_order: bool,
    fault: Option<Fault>,
}

/// What happened, so that nothing passes because nothing did.
#[derive(Debug, Default, PartialEq, Eq)]
struct Outcome {
    sent: u64,
    delivered: u64,
    refused: u64,
    crashes: u64,
    restarts: u64,
    keys: u64,
    replayed: u64,
    not_leased: u64,
    /// Turns after which packets waited for numbers that other workers had in flight.
    waits: u64,
    /// Packets that engines had until they were left of the window.
    aged: u64,
    /// Changes of how many workers get packets.
    moves: u64,
    /// Turns that were those of workers that had gone and slept.
    slept: u64,
    /// How often what arrives was led to other workers than before.
    led: u64,
}

/// Packet `id` of a side, whatever worker gets it.
pub fn packet(from: Side, id: u32) -> Vec<u8> {
    let a = format!("10.{}.{}.{}", id >> 16, id >> 8 & 255, id & 255);
    let b = format!("172.16.0.{}", id % 7);
    let bytes = 60 + id as usize * 37 % 300;
    let (source, destination) = if from == Side::A { (a, b) } else { (b, a) };
    let traffic_class = if id.is_multiple_of(3) { encapsulation::URGENT << 2 } else { 0 };
    Inner { seed: id.into(), traffic_class, ..Inner::udp(&source, &destination, bytes) }.bytes()
}

impl Scenario {
    /// How a port spreads what comes from the peer.
    fn steering(&self) -> Steering {
        if self.in_order { Steering::BySequence { block: BLOCK } } else { self.case.steering }
    }

    /// The time that a step takes. Where packets wait for their turn, a millisecond is long.
    fn a_step(&self) -> Duration {
        if self.in_order { Duration::from_micros(50) } else { Duration::from_millis(1) }
    }
}

/// How far both gateways are with a new key.
enum Rekey {
    Accepting(Vec<Side>),
    Moving(Vec<Side>),
    /// Until this step the old key may be under way.
    Draining(usize, Vec<Side>),
}

struct World {
    scenario: Scenario,
    random: Rng,
    sites: [Site; 2],
    /// From each side.
    wires: [Wire; 2],
    /// Of what each side receives.
    judges: [Judge; 2],
    next_id: [u32; 2],
    rekey: Option<(u8, Rekey)>,
    key: u8,
    step: usize,
    outcome: Outcome,
}

fn index_of(side: Side) -> usize {
    usize::from(side == Side::B)
}

impl World {
    fn new(scenario: Scenario) -> Self {
        let mut random = Rng::with_seed(scenario.seed);
        let case = &scenario.case;
        let sites = [Side::A, Side::B].map(|side| {
            let (is_late, mut late) = (scenario.is_late, random.fork());
            let engines: Engines = Box::new(move || match is_late {
                true => SharedEngine::new(LateConfig::reliable(late.u64(..))).before_portable(),
                false => portable(),
            });
            Site::new(side, &scenario, random.usize(2..=4), engines)
        });
        let wires = [Side::A, Side::B].map(|from| Wire::new(from, case, scenario.is_hostile, random.fork()));
        let judges = [Side::A, Side::B].map(|side| {
            let workers = sites[index_of(side)].members.len();
            Judge::new(other(side), case, workers, scenario.is_late, scenario.in_order)
        });
        Self {
            random,
            sites,
            wires,
            judges,
            next_id: [0; 2],
            rekey: None,
            key: 0,
            step: 0,
            outcome: Outcome::default(),
            scenario,
        }
    }

    /// A turn of a worker, with what leads up to it.
    fn turn(&mut self, at: usize, worker: usize) {
        if self.random.usize(..4) == 0 {
            self.sites[at].step_command(worker);
        }
        let left = self.sites[at].turn(worker, &mut self.judges[at]);
        self.wires[at].send(left, self.step);
        let waits = self.sites[at].members[worker].gateway.worker.waits_for_numbers();
        self.outcome.waits += u64::from(waits);
    }

    /// What arrives at a side goes to workers as the port steers it; on a hostile wire to any.
    fn arrive(&mut self, at: usize) {
        let count = self.sites[at].members.len();
        let may_overtake = self.scenario.is_hostile || self.scenario.in_order;
        let queues = self.sites[at].queues(may_overtake) as u32;
        for arrival in self.wires[1 - at].arriving(self.step) {
            let is_astray = self.scenario.is_hostile && self.random.bool();
            let steering = self.scenario.steering();
            let steered = steering.queue_of_datagram(&arrival.bytes, queues, &[VPE_PROTOCOL]);
            let worker = if is_astray { self.random.usize(..count) } else { steered as usize };
            self.sites[at].arrive(worker, arrival);
        }
    }

    /// Packets for a worker, and now and then a port that takes few or all.
    fn load(&mut self, at: usize) {
        let side = [Side::A, Side::B][at];
        let worker = self.random.usize(..self.sites[at].running);
        // A clock has ticks to spare.
        let most = if self.scenario.case.has_clock() { 4 } else { 12 };
        for _ in 0..self.random.usize(..most) {
            let packet = packet(side, self.next_id[at]);
            self.next_id[at] += 1;
            self.sites[at].push_protected(worker, packet);
        }
        let gateway = &self.sites[at].members[worker].gateway;
        match self.random.usize(..12) {
            0 => gateway.unprotected.set_room(Some(self.random.usize(..20))),
            1 => gateway.protected.set_room(Some(self.random.usize(..20))),
            2..8 => {
                gateway.unprotected.set_room(None);
                gateway.protected.set_room(None);
            }
            _ => {}
        }
    }

    fn run_to_end(&mut self) -> Outcome {
        while self.step < self.scenario.steps {
            self.step += 1;
            let at = self.random.usize(..2);
            self.load(at);
            self.arrive(at);
            for _ in 0..self.random.usize(1..4) {
                let worker = self.random.usize(..self.sites[at].members.len());
                self.turn(at, worker);
            }
            if self.random.usize(..12) == 0 {
                self.sites[at].store.serve();
            }
            self.sites[at].advance(self.scenario.a_step(), &mut self.random);
            if self.scenario.is_hostile && self.random.usize(..50) == 0 {
                self.wires[at].replay(30, self.step);
            }
            if self.scenario.changes {
                self.disturb(at);
            }
            if self.scenario.moves && self.random.usize(..30) == 0 {
                self.move_workers(at);
            }
        }
        if self.scenario.moves {
            self.leave_one();
        }
        self.settle();
        if self.scenario.is_hostile {
            for wire in &mut self.wires {
                wire.replay(usize::MAX, self.step);
            }
            self.settle();
        }
        self.conclude()
    }

    /// Other workers get packets from now on: the first so many.
    fn move_workers(&mut self, at: usize) {
        let site = &mut self.sites[at];
        let wanted = self.random.usize(1..=site.members.len());
        self.outcome.moves += u64::from(wanted != site.running);
        site.lead_to(wanted);
    }

    /// Each worker gets a last packet, and then all but the first go: they must send it all the same.
    fn leave_one(&mut self) {
        for (at, side) in [Side::A, Side::B].into_iter().enumerate() {
            let workers = self.sites[at].members.len();
            self.sites[at].lead_to(workers);
            for worker in 0..workers {
                self.sites[at].push_protected(worker, packet(side, self.next_id[at]));
                self.next_id[at] += 1;
            }
            self.sites[at].lead_to(1);
        }
    }

    fn disturb(&mut self, at: usize) {
        match self.random.usize(..400) {
            0 => {
                self.outcome.crashes += 1;
                self.sites[at].crash(&mut self.judges[at]);
            }
            1 => {
                self.outcome.restarts += 1;
                let (wire, step) = (&mut self.wires[at], self.step);
                let send = |left| wire.send(left, step);
                self.sites[at].restart(&mut self.judges[at], &mut self.random, send);
            }
            2..20 => self.sites[at].save(&mut self.judges[at]),
            20..60 => self.advance_rekey(),
            _ => {}
        }
    }

    /// The next step of a new key at either side, once the one before is in force.
    fn advance_rekey(&mut self) {
        if self.sites.iter().any(Site::is_changing) {
            return;
        }
        let Some((key, stage)) = &mut self.rekey else {
            let sides = vec![Side::B, Side::A];
            self.rekey = (self.key < 20).then_some((self.key + 1, Rekey::Accepting(sides)));
            return;
        };
        let key = *key;
        match stage {
            Rekey::Accepting(sides) => match sides.pop() {
                Some(side) => self.sites[index_of(side)].accept(key),
                None => *stage = Rekey::Moving(vec![Side::A, Side::B]),
            },
            Rekey::Moving(sides) => match sides.pop() {
                Some(side) => {
                    let peer = under(&self.scenario.case.spec, key).spi_from(other(side));
                    let follows = sides.is_empty() && self.random.bool();
                    let from = if follows { UseFrom::PeersUseOf(peer) } else { UseFrom::Now };
                    self.sites[index_of(side)].send_under(key, from);
                }
                None => *stage = Rekey::Draining(self.step + 10 * DELAY, vec![Side::A, Side::B]),
            },
            Rekey::Draining(until, _) if self.step < *until => {}
            Rekey::Draining(_, sides) => match sides.pop() {
                Some(side) => self.sites[index_of(side)].forget(key - 1),
                None => {
                    (self.key, self.rekey) = (key, None);
                    self.outcome.keys += 1;
                }
            },
        }
    }

    /// Lets everything that is under way arrive. Workers with clocks are parked: these send what waits and no
    /// more.
    fn settle(&mut self) {
        for member in self.sites.iter_mut().flat_map(|site| &mut site.members) {
            member.gateway.unprotected.set_room(None);
            member.gateway.protected.set_room(None);
            if self.scenario.case.has_clock() {
                member.gateway.worker.counters().set_parked(true);
            }
        }
        let mut quiet = 0;
        for round in 0.. {
            assert!(round < 100_000, "it does not come to rest");
            self.step += 1;
            for at in [0, 1] {
                self.sites[at].store.serve();
                self.sites[at].advance(self.scenario.a_step(), &mut self.random);
                self.arrive(at);
                for worker in 0..self.sites[at].members.len() {
                    self.turn(at, worker);
                    self.sites[at].step_command(worker);
                }
            }
            let is_idle = |site: &Site| {
                let busy = |m: &site::Member| {
                    let worker = &m.gateway.worker;
                    let arriving = m.gateway.protected.arriving() + m.gateway.unprotected.arriving();
                    let waits = worker.waits_for_numbers() || worker.waits_for_order();
                    let waits = waits || worker.waits_for_tick();
                    arriving > 0 || worker.is_busy() || waits
                };
                !site.is_changing() && !site.members.iter().any(busy)
            };
            let is_quiet = self.sites.iter().all(is_idle) && self.wires.iter().all(Wire::is_empty);
            quiet = if is_quiet { quiet + 1 } else { 0 };
            if quiet > 3 {
                return;
            }
        }
    }

    fn conclude(&mut self) -> Outcome {
        for at in [0, 1] {
            self.sites[at].assert_settled();
            let (judge, site, wire) = (&self.judges[at], &self.sites[at], &self.wires[1 - at]);
            judge.end();
            if !self.scenario.is_hostile {
                // A window of 32 takes what several workers have sent, as it left.
                let refusals = [DropReason::ReplayTooOld, DropReason::ReplayDuplicate];
                assert_eq!(refusals.map(|reason| site.dropped(reason)), [0; 2]);
                if !self.scenario.changes {
                    assert_eq!(judge.came, wire.sent, "nothing else is lost");
                }
            }
            if self.scenario.in_order && !self.scenario.changes {
                self.outcome.aged += judge.assert_released(site.dropped(DropReason::ReplayTooOld));
            }
            self.outcome.sent += wire.sent;
            self.outcome.delivered += judge.came;
            self.outcome.refused += judge.refused;
            self.outcome.replayed += site.dropped(DropReason::ReplayDuplicate);
            self.outcome.not_leased += site.dropped(DropReason::SequenceNotLeased);
            self.outcome.slept += site.slept;
            self.outcome.led += site.led;
        }
        std::mem::take(&mut self.outcome)
    }
}

/// Runs a scenario; if it fails, prints how to run it again.
fn run(scenario: Scenario) -> Outcome {
    run_world(scenario).1
}

fn run_world(scenario: Scenario) -> (World, Outcome) {
    let Scenario { case, seed: own, is_hostile, is_late, changes, moves, in_order, .. } = &scenario;
    let name = format!(
        "{}, window {}, seed {own:#x}, hostile {is_hostile}, late {is_late}, changes {changes}, \
         moves {moves}, in order {in_order}",
        case.name, case.spec.window
    );
    let run = || {
        let mut world = World::new(scenario);
        let outcome = world.run_to_end();
        (world, outcome)
    };
    catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|panic| {
        eprintln!("scenario: {name}");
        eprintln!(
            "again:    TESTUDO_SEED={:#x} cargo test -p testudo-gateway --test simulation many",
            seed()
        );
        resume_unwind(panic)
    })
}

/// Every case, with engines that answer at once and late, and with changes and without.
fn run_all(salt: u64, is_hostile: bool, window: Option<u32>, in_order: bool) -> Outcome {
    let all = run_each(salt, is_hostile, window, in_order, &[(false, false), (true, false)]);
    assert!(all.crashes > 10 && all.restarts > 10 && all.keys > 10, "it was disturbed");
    assert!(all.not_leased > 0 && all.waits > 100, "numbers were scarce");
    all
}

/// Every case, with engines that answer at once and late, while workers come and go.
fn run_moving(salt: u64, is_hostile: bool, window: Option<u32>, in_order: bool) -> Outcome {
    let all = run_each(salt, is_hostile, window, in_order, &[(is_hostile, true)]);
    assert!(all.moves > 100 && all.slept > 100 && all.led > 20, "workers came and went");
    all
}

/// Every case, with engines that answer at once and late, for each pair of `changes` and `moves`.
fn run_each(
    salt: u64,
    is_hostile: bool,
    window: Option<u32>,
    in_order: bool,
    disturbances: &[(bool, bool)],
) -> Outcome {
    let mut all = Outcome::default();
    let mut number = 0;
    let each =
        [false, true].into_iter().flat_map(|is_late| disturbances.iter().map(move |of| (is_late, *of)));
    // An SA of VPE has no order: each of its windows has one, and comes to one worker.
    for case in encapsulation::all().into_iter().filter(|case| !in_order || case.number_bits < 64) {
        for (is_late, (changes, moves)) in each.clone() {
            number += 1;
            let window = window.unwrap_or(case.spec.window);
            let case = Case { spec: TunnelSpec { window, ..case.spec.clone() }, ..case.clone() };
            let seed = seed() ^ salt << 56 ^ number << 32;
            let steps = if changes { 3000 } else { 1000 };
            let fault = None;
            let scenario =
                Scenario { case, seed, steps, is_hostile, is_late, changes, moves, in_order, fault };
            let outcome = run(scenario);
            assert!(outcome.delivered * 2 > outcome.sent, "too little came through: {outcome:?}");
            for (sum, more) in all.each_mut().into_iter().zip(outcome.each()) {
                *sum += more;
            }
        }
    }
    println!("{all:?}");
    all
}

impl Outcome {
    fn each_mut(&mut self) -> [&mut u64; 13] {
        let Self {
            sent,
            delivered,
            refused,
            crashes,
            restarts,
            keys,
            replayed,
            not_leased,
            waits,
            aged,
            moves,
            slept,
            led,
        } = self;
        [
            sent, delivered, refused, crashes, restarts, keys, replayed, not_leased, waits, aged, moves,
            slept, led,
        ]
    }

    fn each(mut self) -> [u64; 13] {
        self.each_mut().map(|of| *of)
    }
}

#[test]
fn many_workers_use_no_nonce_twice_and_let_no_replay_through() {
    let all = run_all(1, true, None, false);
    assert!(all.replayed > 10_000, "the network tried");
}

#[test]
fn a_peer_with_a_window_of_32_takes_all_that_many_workers_send() {
    run_all(2, false, Some(32), false);
}

#[test]
fn many_workers_that_release_in_order_lose_nothing_and_let_no_replay_through() {
    run_all(5, false, Some(4096), true);
    let all = run_all(6, true, None, true);
    assert!(all.replayed > 10_000, "the network tried");
}

/// Numbers of those that go are no others' again, and none keeps what others wait for: a worker that has sent
/// what it had has no turn until it comes back.
#[test]
fn workers_that_come_and_go_lose_nothing_and_a_window_of_32_takes_all_that_they_send() {
    run_moving(9, false, Some(32), false);
}

#[test]
fn workers_that_come_and_go_use_no_nonce_twice_and_let_no_replay_through() {
    let all = run_moving(10, true, None, false);
    assert!(all.replayed > 1000 && all.crashes > 10 && all.keys > 10, "{all:?}");
}

#[test]
fn workers_that_come_and_go_release_in_order_and_lose_nothing() {
    run_moving(11, false, Some(4096), true);
}

/// RFC 4303 3.4.3: the window moves by packets that proved authentic. One that an engine has meanwhile may be
/// left of it when it is proved: with the seeds 2, 3 and 0x7e570d0d among others.
#[test]
fn a_packet_that_an_engine_has_while_the_window_moves_on_is_too_old_and_no_other_is_lost() {
    let mut aged = 0;
    for seed in (0..16).chain([0x7e57_0d0d]) {
        let case = encapsulation::all().into_iter().find(|case| case.spec.window == 256);
        let (case, seed) = (case.expect("there is one"), 0x0600_000f_0000_0000 ^ seed);
        let (steps, is_hostile, is_late, changes, in_order) = (1000, true, true, false, true);
        let (moves, fault) = (false, None);
        let scenario = Scenario { case, seed, steps, is_hostile, is_late, changes, moves, in_order, fault };
        aged += run(scenario).aged;
    }
    assert!(aged > 0, "it happened");
}

#[test]
fn many_workers_do_the_same_again_from_the_same_seed() {
    let scenario = || Scenario {
        case: encapsulation::all().remove(0),
        seed: seed() ^ 3 << 56,
        steps: 1500,
        is_hostile: true,
        is_late: true,
        changes: true,
        moves: true,
        in_order: true,
        fault: None,
    };
    let outcome = run(scenario());
    assert_eq!(outcome, run(scenario()));
}

fn run_with(fault: Fault) {
    run_case_with(encapsulation::all().remove(0), fault);
}

fn run_case_with(case: Case, fault: Fault) {
    let (seed, steps) = (seed() ^ 4 << 56, 1000);
    let moves = fault == Fault::SleepsAtOnce;
    let changes = !fault.is_of_sharing() && !moves;
    let fault = Some(fault);
    let (is_late, in_order) = (false, false);
    run(Scenario { case, seed, steps, is_hostile: true, is_late, changes, moves, in_order, fault });
}

/// The simulation is worth something.
#[test]
#[should_panic(expected = "is used twice")]
fn many_workers_that_number_by_themselves_are_found() {
    run_with(Fault::NumbersApart);
}

#[test]
#[should_panic(expected = "delivered")]
fn many_workers_that_note_replays_by_themselves_are_found() {
    run_with(Fault::WindowsApart);
}

#[test]
#[should_panic(expected = "it does not come to rest")]
fn workers_that_go_with_packets_that_they_have_not_sent_are_found() {
    run_with(Fault::SleepsAtOnce);
}

/// Of VPE: two workers that send in the same windows.
#[test]
#[should_panic(expected = "is used twice")]
fn workers_of_vpe_that_number_the_same_windows_are_found() {
    run_case_with(encapsulation::of_vpe(), Fault::NumbersApart);
}

#[test]
#[should_panic(expected = "delivered")]
fn workers_of_vpe_that_note_replays_by_themselves_are_found() {
    run_case_with(encapsulation::of_vpe(), Fault::WindowsApart);
}

#[test]
#[should_panic(expected = "is used twice")]
fn windows_of_vpe_that_begin_again_after_a_crash_are_found() {
    run_case_with(encapsulation::of_vpe(), Fault::LeasesForgotten);
}

#[test]
#[should_panic(expected = "delivered")]
fn windows_of_vpe_that_are_forgotten_over_a_restart_are_found() {
    run_case_with(encapsulation::of_vpe(), Fault::WindowsForgotten);
}

#[test]
#[should_panic(expected = "Books {")]
fn packets_of_vpe_that_nobody_counts_are_found() {
    run_case_with(encapsulation::of_vpe(), Fault::PacketsVanish);
}

/// RFC 9611 3: a worker with an SA of its own sends through that, the last one through that of all, whatever
/// is replaced, crashes or restarts. (The site checks each datagram.)
#[test]
fn workers_with_sas_of_their_own_send_through_these_alone() {
    for case in encapsulation::all().into_iter().filter(|case| case.own_sas) {
        let (seed, steps, is_hostile) = (seed() ^ 8 << 56, 3000, true);
        let (is_late, changes, moves, in_order, fault) = (true, true, false, false, None);
        let scenario = Scenario { case, seed, steps, is_hostile, is_late, changes, moves, in_order, fault };
        let (world, outcome) = run_world(scenario);
        assert!(outcome.crashes + outcome.restarts > 2 && outcome.keys > 1, "{outcome:?}");
        for (wire, site) in world.wires.iter().zip(&world.sites) {
            let spis = wire.spis();
            // Of each key that there was: one for each worker.
            let keys = u8::try_from(outcome.keys).expect("few");
            let expected = (0..=keys).map(|key| site.spis_out(key));
            let missing: Vec<_> = expected.flatten().filter(|spi| !spis.contains(spi)).collect();
            assert!(missing.is_empty(), "nothing was sent through {missing:x?}");
        }
    }
}

/// Each worker sends at the ticks of a clock of its own what it has, and dummies or fill packets: these have
/// numbers and nonces as packets have, and places in the books. No packet is lost for want of a number.
#[test]
fn many_workers_that_send_by_a_clock_use_no_nonce_twice_and_account_for_every_packet() {
    let kinds = [[true, true, true], [true, false, true], [false, false, true], [false, true, false]];
    for (number, case) in (0..).zip(encapsulation::by_a_clock()) {
        for (kind, [is_hostile, is_late, changes]) in (0..).zip(kinds) {
            let window = if is_hostile { case.spec.window } else { 32 };
            let case = Case { spec: TunnelSpec { window, ..case.spec.clone() }, ..case.clone() };
            let (steps, moves, in_order, fault) = (2000, false, false, None);
            let seed = seed() ^ 12 << 56 ^ number << 40 ^ kind << 32;
            let scenario =
                Scenario { case, seed, steps, is_hostile, is_late, changes, moves, in_order, fault };
            let (world, outcome) = run_world(scenario);
            let fills: u64 = world.judges.iter().map(|judge| judge.fills).sum();
            let packets = outcome.delivered - fills;
            assert!(fills > 300 && packets > 300, "{fills} came beside {packets}: {outcome:?}");
            assert_eq!(outcome.not_leased, 0);
            assert!(!changes || outcome.crashes + outcome.restarts > 0, "{outcome:?}");
        }
    }
}

/// The forced interleavings have all that VPE has: many windows of each SA, both classes, numbers beyond 32
/// bits, crashes, restarts and new keys.
#[test]
fn many_workers_of_vpe_use_many_windows() {
    for case in encapsulation::all().into_iter().filter(|case| case.number_bits == 64) {
        let begins_after = case.begins_after;
        let (seed, steps, is_hostile) = (seed() ^ 7 << 56, 3000, true);
        let (is_late, changes, moves, in_order, fault) = (true, true, false, false, None);
        let scenario = Scenario { case, seed, steps, is_hostile, is_late, changes, moves, in_order, fault };
        let (world, outcome) = run_world(scenario);
        assert!(outcome.crashes + outcome.restarts > 2 && outcome.keys > 0, "{outcome:?}");
        for wire in &world.wires {
            let mut windows = wire.counts();
            assert!(windows.iter().any(|(window, _)| window % 2 == 1), "the urgent class");
            assert!(windows.len() > 16, "{windows:?}");
            windows.retain(|(_, highest)| *highest > 1 << 32);
            assert_eq!(windows.is_empty(), begins_after == 0, "numbers go on beyond 32 bits");
        }
    }
}
