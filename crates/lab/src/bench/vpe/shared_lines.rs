//! What cache lines cost that several cores write, and what follows from it for more cores than there are.
//!
//! A model, not a measurement: from what a packet costs one worker, from what it costs to get a line that
//! another core has written, and from how many such lines each batch needs, it computes how N workers compare
//! with N independent gateways.
//!
//! - **VPE**, and **an SA of ESP for each worker**: none. Counters and windows are a worker's own.
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

/// Nanoseconds that an atomic operation takes on a line that another core has written since; `None` where
/// there is one core, or the other did not answer.
pub(super) fn handover_ns(processors: &[usize]) -> Option<f64> {
    let [one, other, ..] = *processors else { return None };
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
    pub(super) peer_window: u32,
}

impl Costs {
    /// N workers as a share of N independent gateways.
    pub(super) fn of_linear(&self, division: Division, way: Way, workers: usize) -> f64 {
        let count = workers as f64;
        let ns = match (division, way) {
            (Division::Independent | Division::Vpe | Division::PerWorker, _) => self.packet_ns / count,
            (Division::Shared, Way::Outbound) => self.sealing_ns(count),
            (Division::Shared, Way::Inbound) => {
                // Numbers of a burst are as far apart as there are workers.
                let lines = 1.0 + count.min(WORD);
                let own = self.packet_ns + lines * self.others(count) / BURST;
                (own / count).max(self.others(count) / BURST)
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

    /// What a line costs: nothing beyond what is counted already where there is nobody to share it with.
    fn others(&self, workers: f64) -> f64 {
        if workers > 1.0 { self.handover_ns } else { 0.0 }
    }

    /// Nanoseconds a packet, all workers together.
    fn sealing_ns(&self, workers: f64) -> f64 {
        let window = f64::from(self.peer_window.max(2));
        let block = (window / 4.0).floor().clamp(1.0, BATCH_SIZE as f64);
        let spread = window - block;
        // A run is numbered in blocks, one after the other.
        let run = BURST.min(block);
        let looks = (workers * block / spread).min(1.0);
        let far = (workers - NEAR).max(0.0);
        let lines = 1.0 + if far > 0.0 { 1.0 + looks * far } else { 0.0 };
        let own = self.packet_ns + lines * self.others(workers) / run;
        // Only so many blocks are in flight at a time.
        let active = workers.min((spread / run).floor().max(1.0));
        (own / active).max(self.others(workers) / run)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COSTS: Costs =
        Costs { handover_ns: 100.0, packet_ns: 400.0, cryptography_ns: 250.0, peer_window: 1024 };

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
        match threads::processors()[..] {
            [_] => assert!(handover_ns(&threads::processors()).is_none()),
            _ => assert!(handover_ns(&threads::processors()).is_none_or(|ns| ns > 0.5)),
        }
    }
}
