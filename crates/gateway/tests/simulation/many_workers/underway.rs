//! What late engines may do to a window. A gateway marks a number as received when an engine has proved its
//! packet authentic (RFC 4303 3.4.3), which is up to [`LATEST`] turns after the worker has taken it. The
//! model of the [judge](super::judge) marks it at once. Meanwhile packets of all workers move the window:
//!
//! - one that was within the window when it came may be left of it when it is proved: it *ages*;
//! - one that is left of what has come may be within what is proved: it is *early*.
//!
//! Which of these become of a packet depends on when engines answer, which nobody outside sees. Here is which
//! packets either can have become of: of all others the model is exact.

use super::judge::Name;
use std::collections::{HashMap, HashSet, VecDeque};
use testudo_engine_late::LateConfig;

/// Turns of its worker after which a packet is with no engine any more: each turn polls once, and jobs end in
/// the order of their SA.
const LATEST: u64 = LateConfig::reliable(0).polls_max as u64;

/// A packet that a worker has taken.
struct Taken {
    turn: u64,
    name: Name,
    /// The model has accepted it.
    is_accepted: bool,
}

/// Packets that may be with engines.
pub struct Underway {
    size: u64,
    /// Of each worker, oldest first.
    workers: Vec<VecDeque<Taken>>,
    turns: Vec<u64>,
    /// The highest number of each window that has come, and that is proved for certain.
    come: HashMap<(u32, u32), u64>,
    proved: HashMap<(u32, u32), u64>,
    /// Packets that the model has accepted, that are with no engine any more, and that may have aged.
    aged: u64,
    /// Packets that the model has refused, and that may have been early.
    early: HashSet<Name>,
}

impl Underway {
    /// Of windows of a size, at so many workers.
    pub fn new(size: u32, workers: usize) -> Self {
        Self {
            size: size.into(),
            workers: (0..workers).map(|_| VecDeque::new()).collect(),
            turns: vec![0; workers],
            come: HashMap::new(),
            proved: HashMap::new(),
            aged: 0,
            early: HashSet::new(),
        }
    }

    /// A worker has taken an authentic packet of a window that began behind `begin`.
    pub fn take(&mut self, worker: usize, name: Name, begin: u64, is_accepted: bool) {
        let (spi, count, number) = name;
        let come = self.come.entry((spi, count)).or_insert(begin);
        *come = number.max(*come);
        let proved = *self.proved.entry((spi, count)).or_insert(begin);
        if !is_accepted && number + self.size > proved {
            self.early.insert(name);
        }
        self.workers[worker].push_back(Taken { turn: self.turns[worker], name, is_accepted });
    }

    /// A worker has ended a turn.
    pub fn end_turn(&mut self, worker: usize) {
        let now = self.turns[worker];
        self.turns[worker] += 1;
        while let Some(taken) = self.workers[worker].pop_front_if(|taken| taken.turn + LATEST <= now) {
            self.aged += u64::from(self.may_age(&taken));
            let (spi, count, number) = taken.name;
            // It is received, or what has kept it from that is a higher number.
            let proved = self.proved.entry((spi, count)).or_default();
            *proved = number.max(*proved);
        }
    }

    /// Whether a packet that the model has accepted may be left of what is proved.
    fn may_age(&self, taken: &Taken) -> bool {
        let (spi, count, number) = taken.name;
        taken.is_accepted && number + self.size <= self.come[&(spi, count)]
    }

    /// Packets that the model has accepted, and that may have aged.
    pub fn may_have_aged(&self) -> u64 {
        let underway = self.workers.iter().flatten().filter(|taken| self.may_age(taken));
        self.aged + underway.count() as u64
    }

    /// Packets that the model has refused, and that may have been early.
    pub fn may_have_been_early(&self) -> u64 {
        self.early.len() as u64
    }
}
