//! What cache lines cost that several cores write, and what follows from it for more cores than there are.
//!
//! A model, not a measurement: from what a packet costs one worker, from what it costs to get a line that
//! another core has written, and from how many such lines each batch needs, it computes how N workers compare
//! with N independent gateways.
//!
//! Lines are not all that workers cost each other: a short block of numbers is a submission and a call of
//! the port of its own, a worker that is late has the other wait, and what is shared lies in more places.
//! What two workers of the same run were measured to cost beyond their lines, for each block that is sealed
//! and otherwise for each packet, is a part of the model (it is *fitted*), and goes on with more workers.
//! Without it the model says too much, most of all inbound (`docs/PERFORMANCE.md`).
//!
//! - **VPE**, and **an SA of ESP for each worker**: no lines. Counters and windows are a worker's own.
//! - **One SA of ESP, sealing**: for each block of numbers the counter, with the slots of the first workers;
//!   beyond these, the worker's own slot, which others have read, and theirs, where it has to look. One
//!   worker at a time has the counter, and numbers in flight stay within the peer's window.
//! - **One SA of ESP, opening**: for each burst the window's top, and a word for each 32 numbers that the
//!   burst is spread over. One worker at a time has the top.
//! - **Rings**: each job there and back. One thread numbers for all.
//! - **The engine `cores`**: each job that another core does there and back. One worker does the rest, and
//!   what cryptography it has time for.

use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use testudo_packet::BATCH_SIZE;

use super::fleet::Division;
use super::threads;
use crate::bench::case::Way;
use crate::traffic::median;

/// Workers that the model is asked about.
pub(super) const PREDICTED: [usize; 5] = [4, 8, 16, 32, 64];
/// Workers at whose measurement it is fitted.
pub(super) const FITTED: usize = 2;
/// Packets of a burst, as ports give them, which are numbered together.
const BURST: f64 = 32.0;
/// Workers whose slots are in the counter's line.
const NEAR: f64 = 7.0;
/// Numbers in a word of a shared window.
const WORD: f64 = 32.0;
/// How often a line changes hands in one sample, and how many samples there are.
const HANDOVERS: u64 = 2_000;
const SAMPLES: usize = 21;
/// One that waits for so long for the other core gives up.
const PATIENCE: Duration = Duration::from_secs(2);

/// Alone in its line, and the next one, which processors fetch together.
#[repr(align(128))]
struct Line(AtomicU64);

/// What it costs to get a line that another core has written.
#[derive(Debug, Clone, Copy)]
pub(super) struct Handover {
    /// Nanoseconds of an atomic operation on it.
    pub(super) ns: f64,
    /// Between which processors that was measured.
    pub(super) between: [usize; 2],
    /// Whether these are of different cores.
    pub(super) is_apart: bool,
}

impl Handover {
    /// Measured between two of these processors, of different cores where there are such; `None` where there
    /// is one, or the other did not answer.
    pub(super) fn measure(processors: &[usize]) -> Option<Self> {
        let (between, is_apart) = threads::two_apart(processors, threads::core_of)?;
        let ns = handover_ns(between)?;
        Some(Self { ns, between, is_apart })
    }

    /// Between what it was measured.
    pub(super) fn in_words(&self) -> String {
        let [one, other] = self.between;
        let how = if self.is_apart { "different cores" } else { "siblings of one core: others take longer" };
        format!("processors {one} and {other}, {how}")
    }
}

/// Nanoseconds that an atomic operation takes on a line that another core has written since; `None` where
/// the other did not answer.
fn handover_ns([one, other]: [usize; 2]) -> Option<f64> {
    let (line, barrier) = (Line(AtomicU64::new(0)), Barrier::new(2));
    let sample = |processor: usize, turn: u64| {
        threads::bind(processor);
        barrier.wait();
        let begun = Instant::now();
        let mut samples = Vec::new();
        for number in 0..SAMPLES as u64 {
            let start = Instant::now();
            for step in 0..HANDOVERS / 2 {
                let own = number * HANDOVERS + 2 * step + turn;
                // Each core writes what the other has written: the line moves for every operation.
                while line.0.compare_exchange(own, own + 1, Ordering::AcqRel, Ordering::Acquire).is_err() {
                    std::hint::spin_loop();
                    if begun.elapsed() > PATIENCE {
                        return None;
                    }
                }
            }
            samples.push(start.elapsed().as_secs_f64() * 1e9 / HANDOVERS as f64);
        }
        median(&samples)
    };
    let sample = &sample;
    std::thread::scope(|scope| {
        let threads = [scope.spawn(move || sample(one, 0)), scope.spawn(move || sample(other, 1))];
        let [first, second] = threads.map(|thread| thread.join().ok().flatten());
        second.and(first)
    })
}

/// What the model starts from, in nanoseconds.
#[derive(Debug, Clone, Copy)]
pub(super) struct Costs {
    /// An atomic operation on a line that another core has written.
    pub(super) handover_ns: f64,
    /// A packet with one worker that shares nothing.
    pub(super) packet_ns: f64,
    /// Of it the cryptography.
    pub(super) cryptography_ns: f64,
    /// Beyond that and the lines, with several workers: for each block of numbers where one SA of ESP seals,
    /// otherwise for each packet. 0 until it is [fitted](Self::fitted).
    pub(super) extra_ns: f64,
    pub(super) peer_window: u32,
}

/// What several workers need for a packet, beside what one alone does.
struct Parts {
    /// Nanoseconds for lines.
    lines_ns: f64,
    /// Packets that an extra is for.
    packets: f64,
    /// Workers that have something to do at a time.
    active: f64,
    /// Nanoseconds that only one worker at a time can have.
    serial_ns: f64,
}

impl Costs {
    /// N workers as a share of N independent gateways.
    pub(super) fn of_linear(&self, division: Division, way: Way, workers: usize) -> f64 {
        let count = workers as f64;
        let ns = match (division, way) {
            (Division::Independent, _) => self.packet_ns / count,
            (Division::Vpe | Division::PerWorker | Division::Shared, _) => {
                let Parts { lines_ns, packets, active, serial_ns } = self.parts(division, way, count);
                let extra = if workers > 1 { self.extra_ns / packets } else { 0.0 };
                ((self.packet_ns + lines_ns + extra) / active).max(serial_ns)
            }
            (Division::Rings, _) => {
                let numbering = self.packet_ns - self.cryptography_ns + 2.0 * self.handover_ns;
                numbering.max((self.cryptography_ns + 2.0 * self.handover_ns) / count)
            }
            (Division::Cores, _) => {
                let others = (count - 1.0) / count;
                let there_and_back = 2.0 * others * self.others(count);
                // At both ends.
                let all = self.packet_ns + 2.0 * there_and_back;
                (self.packet_ns - self.cryptography_ns + there_and_back).max(all / count)
            }
        };
        // Threads of the rings are one more than those that encrypt.
        let cores = if division == Division::Rings { count + 1.0 } else { count };
        self.packet_ns / cores / ns
    }

    /// The same with what [`FITTED`] workers, as a share of as many independent gateways, were measured to
    /// reach: the extra that makes the model say so. One that would undo more than the lines is not believed,
    /// as nothing is cheaper than alone; divisions with one worker are as they are.
    pub(super) fn fitted(self, division: Division, way: Way, measured: f64) -> Self {
        let workers = match division {
            Division::Vpe | Division::PerWorker | Division::Shared if measured > 0.0 => FITTED as f64,
            _ => return self,
        };
        let Parts { lines_ns, packets, active, .. } = self.parts(division, way, workers);
        let own = self.packet_ns * active / (workers * measured);
        let extra = (own - self.packet_ns - lines_ns).max(-lines_ns);
        Self { extra_ns: extra * packets, ..self }
    }

    /// What so many workers need that share an SA, or have one tunnel.
    fn parts(&self, division: Division, way: Way, workers: f64) -> Parts {
        let none = Parts { lines_ns: 0.0, packets: 1.0, active: workers, serial_ns: 0.0 };
        match (division, way) {
            (Division::Shared, Way::Outbound) => self.sealing(workers),
            (Division::Shared, Way::Inbound) => {
                // Numbers of a burst are as far apart as there are workers.
                let lines = 1.0 + workers.min(WORD);
                let line_ns = self.others(workers) / BURST;
                Parts { lines_ns: lines * line_ns, serial_ns: line_ns, ..none }
            }
            _ => none,
        }
    }

    /// What a line costs: nothing beyond what is counted already where there is nobody to share it with.
    fn others(&self, workers: f64) -> f64 {
        if workers > 1.0 { self.handover_ns } else { 0.0 }
    }

    /// What so many workers need that seal for one SA of ESP.
    fn sealing(&self, workers: f64) -> Parts {
        let window = f64::from(self.peer_window.max(2));
        let block = (window / 4.0).floor().clamp(1.0, BATCH_SIZE as f64);
        let spread = window - block;
        // A run is numbered in blocks, one after the other.
        let run = BURST.min(block);
        let looks = (workers * block / spread).min(1.0);
        let far = (workers - NEAR).max(0.0);
        let lines = 1.0 + if far > 0.0 { 1.0 + looks * far } else { 0.0 };
        let line_ns = self.others(workers) / run;
        // Only so many blocks are in flight at a time.
        let active = workers.min((spread / run).floor().max(1.0));
        Parts { lines_ns: lines * line_ns, packets: run, active, serial_ns: line_ns }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COSTS: Costs = Costs {
        handover_ns: 100.0,
        packet_ns: 400.0,
        cryptography_ns: 250.0,
        extra_ns: 0.0,
        peer_window: 1024,
    };

    /// What two workers were measured to reach, of each: one SA with a window of 32 is sealed at 0.64 to 0.66
    /// of linear where lines alone would leave 0.94, and VPE is opened at 0.85 where it has none.
    #[test]
    fn the_model_says_of_two_workers_what_they_were_measured_to_reach() {
        let short = Costs { handover_ns: 36.0, packet_ns: 71.0, peer_window: 32, ..COSTS };
        let cases = [
            (Division::Shared, Way::Outbound, 0.64..=0.66),
            (Division::Shared, Way::Inbound, 0.88..=0.92),
            (Division::Vpe, Way::Inbound, 0.83..=0.87),
            (Division::PerWorker, Way::Outbound, 0.97..=0.99),
        ];
        for (division, way, measured) in cases {
            let median = (measured.start() + measured.end()) / 2.0;
            assert!(!measured.contains(&short.of_linear(division, way, FITTED)), "{division:?} {way:?}");
            let fitted = short.fitted(division, way, median);
            assert!(measured.contains(&fitted.of_linear(division, way, FITTED)), "{division:?} {way:?}");
            assert!((fitted.of_linear(division, way, 1) - 1.0).abs() < 1e-9, "one worker shares nothing");
            let mut before = median + 1e-9;
            for workers in PREDICTED {
                let (more, lines) =
                    (fitted.of_linear(division, way, workers), short.of_linear(division, way, workers));
                assert!(0.0 < more && more <= before && more < lines, "{division:?} {way:?} {workers}");
                before = more;
            }
        }
    }

    #[test]
    fn more_than_linear_is_taken_for_linear_and_divisions_with_one_worker_are_not_fitted() {
        for way in [Way::Outbound, Way::Inbound] {
            let fitted = COSTS.fitted(Division::Shared, way, 1.1);
            assert!((fitted.of_linear(Division::Shared, way, FITTED) - 1.0).abs() < 1e-9);
            for division in [Division::Rings, Division::Cores, Division::Independent] {
                assert!(COSTS.fitted(division, way, 0.5).extra_ns.abs() < 1e-9);
            }
        }
        assert!(COSTS.fitted(Division::Vpe, Way::Inbound, 0.0).extra_ns.abs() < 1e-9, "nothing was measured");
    }

    #[test]
    fn what_shares_no_line_is_linear_and_what_does_is_less() {
        for workers in PREDICTED {
            for way in [Way::Outbound, Way::Inbound] {
                for division in [Division::Vpe, Division::PerWorker, Division::Independent] {
                    assert!((COSTS.of_linear(division, way, workers) - 1.0).abs() < 1e-9);
                }
                for division in [Division::Shared, Division::Rings, Division::Cores] {
                    let [fewer, more] = [workers, 2 * workers].map(|n| COSTS.of_linear(division, way, n));
                    assert!(0.0 < more && more <= fewer && fewer < 1.0, "{division:?} {way:?} {workers}");
                }
            }
        }
        assert!((COSTS.of_linear(Division::Shared, Way::Outbound, 1) - 1.0).abs() < 1e-9);
    }

    /// 24 numbers of a peer's window of 32 are three blocks of 8.
    #[test]
    fn a_small_window_of_the_peer_keeps_no_more_than_three_workers_busy() {
        let costs = Costs { peer_window: 32, ..COSTS };
        let rate =
            |workers: usize| costs.of_linear(Division::Shared, Way::Outbound, workers) * workers as f64;
        assert!(rate(3) > 2.0 && rate(64) < 3.0 && rate(64) < rate(4), "{} {}", rate(3), rate(64));
        assert!(COSTS.of_linear(Division::Shared, Way::Outbound, 8) > 0.8);
    }

    /// The thread that numbers has 150 ns and two handovers to do for each packet.
    #[test]
    fn rings_are_as_fast_as_the_thread_that_numbers() {
        let rate =
            |workers: usize| COSTS.of_linear(Division::Rings, Way::Outbound, workers) * (workers + 1) as f64;
        assert!((rate(64) - 400.0 / 350.0).abs() < 1e-9 && (rate(16) - rate(64)).abs() < 1e-9);
        assert!((rate(1) - 400.0 / 450.0).abs() < 1e-9);
    }

    #[test]
    fn a_line_changes_hands_between_two_cores() {
        let processors = threads::processors();
        let measured = Handover::measure(&processors);
        match processors[..] {
            [_] => assert!(measured.is_none()),
            _ => assert!(measured.is_none_or(|handover| handover.ns > 0.5)),
        }
        assert!(measured.is_none_or(|handover| handover.between.iter().all(|one| processors.contains(one))));
        let handover = Handover { ns: 36.0, between: [0, 2], is_apart: true };
        assert_eq!(handover.in_words(), "processors 0 and 2, different cores");
        let siblings = Handover { between: [0, 1], is_apart: false, ..handover };
        assert_eq!(siblings.in_words(), "processors 0 and 1, siblings of one core: others take longer");
    }
}
