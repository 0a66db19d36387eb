//! The stage clock: where the cycles of a batch go.

use crate::ticks::ticks;

/// A named part of the packet path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Stage {
    /// Taking packets from a port.
    Receive,
    /// Reading headers; inbound, telling ESP from other packets.
    Parse,
    /// The SPD, and the SA that it names; inbound, decapsulation and the checks of the inner packet (RFC 4301
    /// 5.2).
    Policy,
    /// Inbound only: finding SAs by their SPIs.
    Sa,
    /// Lifetime and sequence numbers, or the replay check; then headers, trailers and jobs.
    Framing,
    /// Engines, including the transport of jobs to them and back.
    Cryptography,
    /// Verdicts; inbound, committing sequence numbers. Packets that are finished one by one (near the end of
    /// a lifetime, from a peer that may have moved, or after an engine that was late) are decapsulated here
    /// as well.
    Finish,
    /// Giving packets to a port.
    Transmit,
}

impl Stage {
    /// All stages, in the order of the outbound path.
    pub const ALL: [Stage; 8] = [
        Stage::Receive,
        Stage::Parse,
        Stage::Policy,
        Stage::Sa,
        Stage::Framing,
        Stage::Cryptography,
        Stage::Finish,
        Stage::Transmit,
    ];

    /// Name in tables, JSON and metrics.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Stage::Receive => "receive",
            Stage::Parse => "parse",
            Stage::Policy => "policy",
            Stage::Sa => "sa",
            Stage::Framing => "framing",
            Stage::Cryptography => "cryptography",
            Stage::Finish => "finish",
            Stage::Transmit => "transmit",
        }
    }
}

/// The measured cost of the batches of one direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StageTimes {
    /// Ticks in each stage, in the order of [`Stage::ALL`], over the measured batches.
    pub ticks: [u64; Stage::ALL.len()],
    /// Packets of the measured batches.
    pub packets: u64,
    /// Measured batches.
    pub batches: u64,
}

impl StageTimes {
    /// Ticks in one stage.
    #[must_use]
    pub fn of(&self, stage: Stage) -> u64 {
        self.ticks[stage as usize]
    }

    /// Ticks in all stages.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.ticks.iter().sum()
    }

    /// The difference from an earlier reading of the same clock.
    #[must_use]
    pub fn since(&self, earlier: &StageTimes) -> StageTimes {
        let mut difference = *self;
        difference.ticks.iter_mut().zip(earlier.ticks).for_each(|(now, then)| *now = now.wrapping_sub(then));
        difference.packets = self.packets.wrapping_sub(earlier.packets);
        difference.batches = self.batches.wrapping_sub(earlier.batches);
        difference
    }
}

/// Measures one turn in this many. Reading the time stamp counter takes some 30 cycles and waits for
/// instructions in flight; eight readings for each burst of small packets would be 15 % of its cost. A prime,
/// so that a periodic load is not always measured at the same phase.
pub const MEASURED_OF: u32 = 17;

/// Attributes the time of batches to stages. Owned by one worker.
#[derive(Debug)]
pub struct StageClock {
    source: fn() -> u64,
    last: u64,
    is_measuring: bool,
    turn: u32,
    current: [u64; Stage::ALL.len()],
    times: StageTimes,
}

impl Default for StageClock {
    /// A clock that reads the processor's [`ticks`].
    fn default() -> Self {
        Self::with_source(ticks)
    }
}

impl StageClock {
    /// A clock that reads its time from `source`, which may be anything monotonic: stages are measured in its
    /// unit.
    #[must_use]
    pub fn with_source(source: fn() -> u64) -> Self {
        Self {
            source,
            last: 0,
            is_measuring: false,
            turn: 0,
            current: [0; Stage::ALL.len()],
            times: StageTimes::default(),
        }
    }

    /// Begins a batch. The times of an unfinished one are discarded.
    #[inline]
    pub fn begin(&mut self) {
        self.is_measuring = self.turn == 0;
        if self.is_measuring {
            self.current = [0; Stage::ALL.len()];
            self.last = (self.source)();
        }
    }

    /// Books the time since the last call on `stage`.
    #[inline]
    pub fn lap(&mut self, stage: Stage) {
        if self.is_measuring {
            let now = (self.source)();
            self.current[stage as usize] += now.wrapping_sub(self.last);
            self.last = now;
        }
    }

    /// Ends a batch in which `packets` were received. An empty batch is not counted: it delayed no packet.
    #[inline]
    pub fn end(&mut self, packets: usize) {
        if packets == 0 {
            self.is_measuring = false;
            return;
        }
        if self.is_measuring {
            self.times.ticks.iter_mut().zip(self.current).for_each(|(sum, ticks)| *sum += ticks);
            self.times.packets += packets as u64;
            self.times.batches += 1;
            self.is_measuring = false;
        }
        self.turn = (self.turn + 1) % MEASURED_OF;
    }

    /// The measurements so far.
    #[must_use]
    pub fn times(&self) -> &StageTimes {
        &self.times
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn batch(clock: &mut StageClock, packets: usize) {
        clock.begin();
        Stage::ALL.into_iter().for_each(|stage| clock.lap(stage));
        clock.end(packets);
    }

    #[test]
    fn one_batch_in_several_is_measured() {
        let mut clock = StageClock::default();
        (0..10 * MEASURED_OF).for_each(|_| batch(&mut clock, 3));
        assert_eq!((clock.times().batches, clock.times().packets), (10, 30));
        assert!(clock.times().total() > 0);
    }

    #[test]
    fn idle_turns_are_not_counted_and_use_up_no_turn() {
        let mut clock = StageClock::default();
        (0..100).for_each(|_| batch(&mut clock, 0));
        assert_eq!(*clock.times(), StageTimes::default());
        batch(&mut clock, 1);
        assert_eq!(clock.times().batches, 1);
    }

    #[test]
    fn time_goes_to_the_stage_that_ends() {
        let mut clock = StageClock::default();
        clock.begin();
        let until = ticks() + 100_000;
        while ticks() < until {}
        clock.lap(Stage::Sa);
        clock.lap(Stage::Finish);
        clock.end(1);
        assert!(clock.times().of(Stage::Sa) > clock.times().of(Stage::Finish));
        assert_eq!(clock.times().of(Stage::Parse), 0);
    }

    #[test]
    fn a_difference_is_what_was_added() {
        let mut clock = StageClock::default();
        batch(&mut clock, 2);
        let earlier = *clock.times();
        (0..MEASURED_OF).for_each(|_| batch(&mut clock, 5));
        let added = clock.times().since(&earlier);
        assert_eq!((added.packets, added.batches), (5, 1));
        assert_eq!(added.total() + earlier.total(), clock.times().total());
    }
}
