//! Which SAs a NIC has, that does cryptography as packets pass: those with the most packets.
//!
//! ```text
//!   pass (every 125 ms, up to 64 SAs a turn)      packets of each SA since the last pass, averaged
//!        └─► moves, one a turn:    hot SA     CPU ──admit──────────────────────────► NIC
//!                                  cold SA    NIC ──close──► leaving ──drained──► CPU
//! ```
//!
//! A NIC has few sessions, and making one may take as long as a hundred packets. So SAs move only for a good
//! reason: into free room, if they have any packets to speak of, or in place of one with less than half as
//! many. No packet waits for a move. What is sent goes through the NIC from one job to the next, and no
//! longer; the dispatcher keeps the order of those that are under way, and a number is used up before anyone
//! knows who seals its packet. What was received before an SA leaves may have been opened by the NIC: such an
//! SA stays with the NIC's engine, which tells what is open from what is not, until the port has given all of
//! that.

use crate::dispatcher::Dispatcher;
use crate::worker::Worker;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;
use testudo_crypto::{Direction, OffloadReport, OffloadState, SaFacts, Suite};
use testudo_ipsec::{Ipsec, Moment, SaCounters, SaRef};

/// How often packets are counted.
const PASS: Duration = Duration::from_millis(125);
/// SAs that are looked at in a turn.
const AT_A_TIME: usize = 64;
/// Moves of a direction that a pass may plan.
const MOVES: usize = 32;
/// An SA that leaves stays with the engine of the NIC for at least so long.
const LEAVING: Duration = Duration::from_millis(250);
/// Parts of a packet in which rates are averaged.
const SCALE: u64 = 16;
/// A session is worth at least one packet a pass.
const WORTH: u64 = SCALE;
/// An SA displaces another that has less than half its packets less these.
const MARGIN: u64 = 8 * SCALE;
/// Passes after which a refused session is tried again, at most.
const LONGEST_PAUSE: u32 = 64;

/// Whether a port's NIC does cryptography.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OffloadMode {
    /// For SAs that have packets.
    #[default]
    Auto,
    /// For as many SAs as it has room for.
    Always,
}

impl OffloadMode {
    fn worth(self) -> u64 {
        match self {
            Self::Auto => WORTH,
            Self::Always => 0,
        }
    }
}

/// Where an SA is.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Place {
    Cpu,
    Nic(Box<SaFacts>),
    Leaving(Moment),
}

/// An SA, and what it has been doing.
struct Candidate {
    direction: Direction,
    sa: SaRef,
    suite: Suite,
    counters: Arc<SaCounters>,
    /// Its packets at the last pass.
    packets: u64,
    /// Packets a pass, averaged.
    rate: u64,
    place: Place,
    /// The pass from which on a session is tried again, and how often one was refused in a row.
    retry_at: u32,
    refusals: u32,
}

impl Candidate {
    fn id(&self) -> Id {
        (self.direction, self.sa)
    }

    fn count(&mut self) {
        let packets = self.counters.used_packets();
        let new = packets.wrapping_sub(self.packets);
        self.packets = packets;
        self.rate = (3 * self.rate).saturating_add(new.saturating_mul(SCALE)) / 4;
    }

    fn pause(&mut self, pass: u32) {
        self.retry_at = pass.wrapping_add((1 << self.refusals.min(6)).min(LONGEST_PAUSE));
        self.refusals += 1;
    }
}

type Id = (Direction, SaRef);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Move {
    Admit(Id),
    Close(Id),
}

/// What a pass has found of one direction.
#[derive(Debug, Default)]
struct Ranking {
    /// The hottest outside, hottest first.
    outside: Vec<(u64, Id)>,
    /// The coldest inside, coldest first.
    inside: Vec<(u64, Id)>,
}

impl Ranking {
    fn add_outside(&mut self, rate: u64, id: Id) {
        let at = self.outside.partition_point(|(other, _)| *other >= rate);
        self.outside.insert(at, (rate, id));
        self.outside.truncate(MOVES);
    }

    fn add_inside(&mut self, rate: u64, id: Id) {
        let at = self.inside.partition_point(|(other, _)| *other <= rate);
        self.inside.insert(at, (rate, id));
        self.inside.truncate(MOVES);
    }

    /// Moves into so much room, and in place of colder SAs.
    fn plan(&mut self, mut room: usize, moves: &mut VecDeque<Move>) {
        let mut inside = self.inside.drain(..);
        for (rate, id) in self.outside.drain(..) {
            if room > 0 {
                room -= 1;
            } else {
                match inside.next() {
                    Some((colder, other)) if rate >= 2 * colder + MARGIN => {
                        moves.push_back(Move::Close(other))
                    }
                    _ => return,
                }
            }
            moves.push_back(Move::Admit(id));
        }
    }
}

/// Decides which SAs the NIC has.
pub(crate) struct Offloading {
    mode: OffloadMode,
    candidates: Vec<Candidate>,
    index: HashMap<Id, usize>,
    /// The next candidate of a pass that is under way.
    cursor: Option<usize>,
    next_pass: Moment,
    pass: u32,
    rankings: [Ranking; 2],
    moves: VecDeque<Move>,
    /// What is to be told of the NIC, and whether it was noted.
    failure: Option<OffloadFailure>,
    has_failed: bool,
}

impl Offloading {
    pub(crate) fn new() -> Self {
        Self {
            mode: OffloadMode::Auto,
            candidates: Vec::new(),
            index: HashMap::new(),
            cursor: None,
            next_pass: Moment::default(),
            pass: 0,
            rankings: Default::default(),
            moves: VecDeque::new(),
            failure: None,
            has_failed: false,
        }
    }

    fn note_failure(&mut self, report: Option<&OffloadReport>) {
        let Some(report) = report.filter(|_| !self.has_failed) else { return };
        if let Some(why) = &report.out_of_service {
            self.has_failed = true;
            self.failure = Some(OffloadFailure { device: report.device.clone(), why: why.clone() });
        }
    }

    pub(crate) fn set_mode(&mut self, mode: OffloadMode) {
        self.mode = mode;
    }

    /// An SA was added.
    pub(crate) fn add(&mut self, direction: Direction, sa: SaRef, suite: Suite, counters: Arc<SaCounters>) {
        counters.set_offload(OffloadState::Cold);
        let candidate = Candidate {
            direction,
            sa,
            suite,
            packets: counters.used_packets(),
            counters,
            rate: 0,
            place: Place::Cpu,
            retry_at: 0,
            refusals: 0,
        };
        self.index.insert(candidate.id(), self.candidates.len());
        self.candidates.push(candidate);
    }

    /// An SA is gone, and with it its session.
    pub(crate) fn remove(&mut self, direction: Direction, sa: SaRef) {
        let Some(at) = self.index.remove(&(direction, sa)) else { return };
        self.candidates.swap_remove(at);
        if let Some(moved) = self.candidates.get(at) {
            self.index.insert(moved.id(), at);
        }
    }

    /// Does a part of what there is to do: at most one call of the device, and a few SAs of a pass. Whether a
    /// pass has ended with it.
    pub(crate) fn step(&mut self, dispatcher: &mut Dispatcher, ipsec: &Ipsec, now: Moment) -> bool {
        match self.moves.pop_front() {
            Some(Move::Close(id)) => self.close(id, dispatcher, now),
            Some(Move::Admit(id)) => self.admit(id, dispatcher, ipsec),
            None => {}
        }
        if self.cursor.is_none() && now < self.next_pass {
            return false;
        }
        let from = self.cursor.unwrap_or(0);
        let to = self.candidates.len().min(from + AT_A_TIME);
        (from..to).for_each(|at| self.look_at(at, dispatcher, ipsec, now));
        self.cursor = (to < self.candidates.len()).then_some(to);
        if self.cursor.is_some() {
            return false;
        }
        self.next_pass = Moment(now.0 + PASS);
        self.pass = self.pass.wrapping_add(1);
        self.plan(dispatcher);
        if let Some(device) = dispatcher.offload().filter(|_| self.moves.is_empty()) {
            device.look_after();
        }
        true
    }

    fn look_at(&mut self, at: usize, dispatcher: &mut Dispatcher, ipsec: &Ipsec, now: Moment) {
        let Some(candidate) = self.candidates.get_mut(at) else { return };
        candidate.count();
        let (id, rate) = (candidate.id(), candidate.rate);
        let facts = ipsec.facts(id.0, id.1, candidate.suite);
        match &candidate.place {
            Place::Nic(of) => {
                let state = match dispatcher.offload_state(id.0, id.1) {
                    OffloadState::InNic if facts.as_ref() != Some(&**of) => OffloadState::Leaving,
                    state => state,
                };
                if state == OffloadState::InNic {
                    self.rankings[index(id.0)].add_inside(rate, id);
                } else {
                    // No call of the device where it has lost the session.
                    candidate.pause(self.pass);
                    self.close(id, dispatcher, now);
                    self.set_state(id, state);
                }
            }
            Place::Leaving(since) => {
                let is_over = now.since(*since) >= LEAVING && dispatcher.is_drained(id.0, id.1);
                if is_over {
                    dispatcher.leave(id.0, id.1);
                    candidate.place = Place::Cpu;
                    candidate.counters.set_offload(OffloadState::Cold);
                }
            }
            Place::Cpu => self.consider(at, facts, dispatcher),
        }
    }

    /// Whether an SA of the CPU may go to the NIC.
    fn consider(&mut self, at: usize, facts: Option<SaFacts>, dispatcher: &mut Dispatcher) {
        let worth = self.mode.worth();
        let Some(candidate) = self.candidates.get_mut(at) else { return };
        let Some(facts) = facts else { return };
        let pauses = candidate.refusals > 0 && self.pass.wrapping_sub(candidate.retry_at) > u32::MAX / 2;
        let state = match dispatcher.check_offload(&facts) {
            Err(state) => state,
            Ok(()) if candidate.direction == Direction::Seal && facts.remote.is_none() => {
                OffloadState::PeerUnknown
            }
            // What it says of the last attempt stays.
            Ok(()) if pauses => return,
            Ok(()) if candidate.rate < worth => OffloadState::Cold,
            Ok(()) => {
                let (rate, id) = (candidate.rate, candidate.id());
                self.rankings[index(id.0)].add_outside(rate, id);
                let has_room = dispatcher.offload_room(id.0) > 0;
                if has_room { OffloadState::Cold } else { OffloadState::TableFull }
            }
        };
        candidate.counters.set_offload(state);
    }

    fn plan(&mut self, dispatcher: &mut Dispatcher) {
        if !self.moves.is_empty() {
            // Those of the last pass are not done: what this one has found comes again.
            self.rankings = Default::default();
            return;
        }
        for direction in [Direction::Seal, Direction::Open] {
            let room = dispatcher.offload_room(direction);
            self.rankings[index(direction)].plan(room, &mut self.moves);
        }
        self.rankings = Default::default();
    }

    fn admit(&mut self, id: Id, dispatcher: &mut Dispatcher, ipsec: &Ipsec) {
        let pass = self.pass;
        let Some(candidate) = self.candidate_mut(id).filter(|candidate| candidate.place == Place::Cpu) else {
            return;
        };
        let Some(facts) = ipsec.facts(id.0, id.1, candidate.suite) else { return };
        let state = match dispatcher.admit(id.0, id.1, &facts) {
            Ok(()) => {
                candidate.place = Place::Nic(Box::new(facts));
                candidate.refusals = 0;
                OffloadState::InNic
            }
            Err(state) => {
                candidate.pause(pass);
                state
            }
        };
        candidate.counters.set_offload(state);
    }

    fn close(&mut self, id: Id, dispatcher: &mut Dispatcher, now: Moment) {
        let Some(candidate) = self.candidate_mut(id) else { return };
        if !matches!(candidate.place, Place::Nic(_)) {
            return;
        }
        let state = match id.0 {
            Direction::Seal => {
                dispatcher.leave(id.0, id.1);
                candidate.place = Place::Cpu;
                OffloadState::Cold
            }
            Direction::Open => {
                dispatcher.close(id.0, id.1);
                candidate.place = Place::Leaving(now);
                OffloadState::Leaving
            }
        };
        candidate.counters.set_offload(state);
    }

    fn set_state(&mut self, id: Id, state: OffloadState) {
        if let Some(candidate) = self.candidate_mut(id) {
            candidate.counters.set_offload(state);
        }
    }

    fn candidate_mut(&mut self, id: Id) -> Option<&mut Candidate> {
        let at = *self.index.get(&id)?;
        self.candidates.get_mut(at)
    }
}

/// A NIC was taken out of service for cryptography: its answers differ from those of software.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OffloadFailure {
    /// Name of the device.
    pub device: String,
    /// What differs.
    pub why: String,
}

impl Worker {
    /// Whether the NIC has only SAs with packets, unless told otherwise, or as many as it has room for.
    pub fn set_offload_mode(&mut self, mode: OffloadMode) {
        if let Some(offloading) = &mut self.offloading {
            offloading.set_mode(mode);
        }
    }

    /// What the NIC of the unprotected port does, if it does cryptography.
    #[must_use]
    pub fn offload_report(&mut self) -> Option<OffloadReport> {
        self.offloading.as_ref()?;
        self.dispatcher.offload().map(|device| device.report())
    }

    /// That the NIC was taken out of service, once.
    pub fn take_offload_failure(&mut self) -> Option<OffloadFailure> {
        self.offloading.as_mut()?.failure.take()
    }

    /// Looks after the NIC, and which SAs it has.
    #[cold]
    #[inline(never)]
    pub(crate) fn offload(&mut self, now: Moment) {
        let Some(offloading) = &mut self.offloading else { return };
        if let (Some(marks), Some(device)) = (self.pool.take_lost_marks(), self.dispatcher.offload()) {
            device.forget(&marks);
        }
        if offloading.step(&mut self.dispatcher, &self.ipsec, now) {
            let report = self.dispatcher.offload().map(|device| device.report());
            offloading.note_failure(report.as_ref());
            self.counters.publish_offload(report);
        }
    }
}

fn index(direction: Direction) -> usize {
    usize::from(direction == Direction::Open)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(number: u32) -> Id {
        (Direction::Seal, SaRef::from_bits(number))
    }

    fn planned(room: usize, outside: &[u64], inside: &[u64]) -> Vec<Move> {
        let mut ranking = Ranking::default();
        (0..).zip(outside).for_each(|(number, rate)| ranking.add_outside(*rate, id(number)));
        (100..).zip(inside).for_each(|(number, rate)| ranking.add_inside(*rate, id(number)));
        let mut moves = VecDeque::new();
        ranking.plan(room, &mut moves);
        moves.into()
    }

    #[test]
    fn the_hottest_go_into_free_room_and_then_in_place_of_much_colder_ones() {
        use Move::{Admit, Close};
        assert_eq!(
            planned(2, &[10, 30, 20], &[5]),
            [Admit(id(1)), Admit(id(2))],
            "20 is no reason to displace 5"
        );
        let hot = 2 * 50 + MARGIN;
        assert_eq!(planned(0, &[hot], &[60, 50]), [Close(id(101)), Admit(id(0))], "the colder one leaves");
        assert_eq!(planned(0, &[hot - 1], &[60, 50]), []);
        assert_eq!(planned(1, &[hot, hot], &[50]), [Admit(id(0)), Close(id(100)), Admit(id(1))]);
        assert_eq!(planned(0, &[hot], &[]), []);
    }

    #[test]
    fn a_pass_plans_no_more_than_so_many_moves() {
        let rates: Vec<u64> = (0..200).map(|rate| rate * 1000).collect();
        let moves = planned(1000, &rates, &[]);
        assert_eq!((moves.len(), moves[0]), (MOVES, Move::Admit(id(199))));
    }
}
