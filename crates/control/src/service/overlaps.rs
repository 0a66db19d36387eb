//! SAs that were replaced and leave some time after their successor is in use, when none of their packets is
//! on its way any more (RFC 7296 2.8).
//!
//! An SA is told by its counters, not by its SPI: an SPI may have been given to another SA since. Where
//! packets go out through one of the replaced SAs again (`sa use`), the replacement was taken back, and none
//! of them leaves.

use super::installed::Running;
use super::sas::RunningSa;
use std::collections::HashSet;
use std::time::{Duration, Instant};
use testudo_crypto::Direction;
use testudo_gateway::SaCounts;

/// How often overlaps are looked at: there may be one for each SA.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);

/// A replaced SA.
#[derive(Debug, Clone)]
pub(super) struct Leaving {
    pub(super) direction: Direction,
    pub(super) spi: u32,
    counters: SaCounts,
}

impl Leaving {
    /// An SA, if it is installed.
    pub(super) fn of(sa: &RunningSa) -> Option<Self> {
        let counters = sa.added.as_ref()?.counters.clone();
        Some(Self { direction: sa.direction, spi: sa.spi, counters })
    }

    /// Whether the tunnel still has it.
    pub(super) fn is_in(&self, running: &Running) -> bool {
        running.sas.lock().iter().any(|sa| sa.counts_in(&self.counters))
    }
}

/// SAs of a tunnel that leave together.
#[derive(Debug)]
pub(super) struct Overlap {
    pub(super) running: Running,
    pub(super) leaving: Vec<Leaving>,
    /// The SA towards the peer that must be in use first.
    successor: Option<SaCounts>,
    lasts: Duration,
    ends: Option<Instant>,
}

impl Overlap {
    /// These SAs leave `lasts` after `successor` is in use; after now, without one.
    pub(super) fn new(
        running: &Running,
        leaving: Vec<Leaving>,
        successor: Option<&RunningSa>,
        lasts: Duration,
    ) -> Self {
        let successor = successor.and_then(|sa| Some(sa.added.as_ref()?.counters.clone()));
        Self { running: running.clone(), leaving, successor, lasts, ends: None }
    }

    /// Whether there still is a successor, and anything to leave for it.
    fn is_wanted(&self) -> bool {
        let sas = self.running.sas.lock();
        let has = |counters: &SaCounts| sas.iter().any(|sa| sa.counts_in(counters));
        self.successor.as_ref().is_none_or(has) && self.leaving.iter().any(|sa| has(&sa.counters))
    }

    /// Whether packets go out through a replaced SA again.
    fn is_taken_back(&self) -> bool {
        self.leaving.iter().any(|sa| sa.direction == Direction::Seal && sa.counters.is_in_use())
    }

    /// Whether it is over. Its time begins when the successor is in use.
    fn look(&mut self, now: Instant) -> bool {
        let has_begun = self.successor.as_ref().is_none_or(|counters| counters.is_in_use());
        if has_begun && self.ends.is_none() {
            self.ends = Some(now + self.lasts);
        }
        self.ends.is_some_and(|end| now >= end)
    }
}

/// All overlaps.
#[derive(Debug, Default)]
pub(super) struct Overlaps {
    all: Vec<Overlap>,
    next_look: Option<Instant>,
}

impl Overlaps {
    pub(super) fn push(&mut self, overlap: Overlap) {
        self.all.push(overlap);
    }

    /// Forgets those of tunnels whose lists of SAs are not among these.
    pub(super) fn keep(&mut self, kept: &HashSet<usize>) {
        self.all.retain(|overlap| kept.contains(&overlap.running.sas.id()));
    }

    /// Those that are over at `now`.
    pub(super) fn due(&mut self, now: Instant) -> Vec<Overlap> {
        if self.next_look.is_some_and(|next| now < next) {
            return Vec::new();
        }
        self.next_look = Some(now + LOOK_INTERVAL);
        self.all.retain(Overlap::is_wanted);
        let due: Vec<_> = self.all.extract_if(.., |overlap| overlap.look(now)).collect();
        let (taken_back, over): (Vec<_>, Vec<_>) = due.into_iter().partition(Overlap::is_taken_back);
        for overlap in taken_back {
            let name = &overlap.running.tunnel.name;
            tracing::warn!("tunnel {name}: an SA that was replaced is in use again, and stays with its pair");
        }
        over
    }
}
