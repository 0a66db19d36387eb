//! Workers on threads of their own, each bound to a processor, that start at once.

use std::collections::BTreeSet;
use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use rustix::time::{ClockId, clock_gettime};
use testudo_gateway::{Clock, SystemClock, Worker};
use testudo_packet::PortCounters;

use super::gateways;
use crate::bench::case::Way;
use crate::bench::error::Wrong;

/// Turns between two looks at the clock that ends a measurement.
const TURNS: usize = 8;
/// After so many turns in a row without a packet a worker lets others have the processor.
const IDLE_TURNS: u32 = 32;
/// A worker that has had no packet for so long gets none any more.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);

/// The processors that this process may use.
pub(crate) fn processors() -> Vec<usize> {
    let Ok(set) = sched_getaffinity(None) else { return vec![0] };
    (0..CpuSet::MAX_CPU).filter(|&processor| set.is_set(processor)).collect()
}

/// The processors that so many threads have, the nth of which is bound to the nth of these, in turn.
pub(crate) fn placed(threads: usize, processors: &[usize]) -> BTreeSet<usize> {
    processors.iter().copied().take(threads).collect()
}

/// The core of a processor, as the kernel lists its siblings: the lowest of them; itself where it does not.
pub(super) fn core_of(processor: usize) -> usize {
    let file = format!("/sys/devices/system/cpu/cpu{processor}/topology/thread_siblings_list");
    let siblings = std::fs::read_to_string(file).unwrap_or_default();
    siblings.trim().split([',', '-']).next().and_then(|first| first.parse().ok()).unwrap_or(processor)
}

/// Two of these processors, of different cores where there are such, and whether they are.
pub(super) fn two_apart(processors: &[usize], core: impl Fn(usize) -> usize) -> Option<([usize; 2], bool)> {
    let (one, others) = processors.split_first()?;
    let apart = others.iter().find(|other| core(**other) != core(*one));
    let other = apart.or(others.first())?;
    Some(([*one, *other], apart.is_some()))
}

/// Binds this thread to a processor. Where that is refused, the system chooses.
pub(crate) fn bind(processor: usize) {
    allow(&[processor]);
}

/// Lets this thread run on these processors alone.
pub(crate) fn allow(processors: &[usize]) {
    let mut set = CpuSet::new();
    processors.iter().for_each(|&processor| set.set(processor));
    let _ = sched_setaffinity(None, &set);
}

/// How long this thread has had a processor.
pub(crate) fn running() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    Duration::new(seconds, u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// When workers end.
#[derive(Debug, Clone, Copy)]
pub(super) enum Until {
    Elapsed(Duration),
    /// Each has sent `all` packets; measured from when it has sent `warm`.
    Sent {
        warm: u64,
        all: u64,
    },
}

/// What one worker did.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Share {
    pub(super) packets: u64,
    pub(super) elapsed: Duration,
    pub(super) running: Duration,
}

impl Share {
    /// Packets per second of the worker's time, or of the processor's.
    pub(super) fn rate(&self, own_processors: bool) -> f64 {
        let elapsed = self.elapsed.as_secs_f64();
        let running = self.running.as_secs_f64();
        let is_known = own_processors && running > 0.0 && running < elapsed;
        self.packets as f64 / if is_known { running } else { elapsed }
    }
}

/// Whose seconds those of a rate are, for JSON: of the processors, where each thread has one of its own and
/// does all of its work, else of the day.
pub(super) fn time(own_processors: bool) -> &'static str {
    if own_processors { "processor" } else { "day" }
}

/// The same for people, of experiments with several threads.
pub(super) const TIMES: &str = "\
    Seconds are those of a worker's processor where each has one (`time` in JSON), so that other programs take nothing from rates.\n\
    A worker that waits for numbers or a place goes on running, unless another thread wants its processor: such a wait is in no rate.\n";

/// Packets that a worker has sent.
fn sent(worker: &Worker, way: Way) -> u64 {
    let counters: PortCounters = match way {
        Way::Outbound => worker.unprotected_port().counters(),
        Way::Inbound => worker.protected_port().counters(),
    };
    counters.tx_packets
}

fn turn(worker: &mut Worker, clock: SystemClock) -> Result<usize, Wrong> {
    worker.turn(clock.now()).map_err(|e| e.to_string())
}

/// Runs all workers at the same time, worker n on the nth of these processors, over and over again.
pub(super) fn run(
    workers: &mut [Worker],
    way: Way,
    until: Until,
    processors: &[usize],
) -> Result<Vec<Share>, Wrong> {
    let barrier = Barrier::new(workers.len());
    let (clock, left) = (SystemClock::default(), AtomicUsize::new(workers.len()));
    let one = |(number, worker): (usize, &mut Worker)| {
        processors.get(number % processors.len().max(1)).copied().into_iter().for_each(bind);
        barrier.wait();
        let share = run_one(worker, way, until, clock);
        left.fetch_sub(1, Ordering::AcqRel);
        // The others are measured under load until they end, and nobody waits for numbers that this one has.
        while share.is_ok() && left.load(Ordering::Acquire) > 0 {
            turn(worker, clock)?;
        }
        share
    };
    let one = &one;
    std::thread::scope(|scope| {
        let start = |of| scope.spawn(move || one(of));
        let threads: Vec<_> = workers.iter_mut().enumerate().map(start).collect();
        let end = |thread: std::thread::ScopedJoinHandle<'_, Result<Share, Wrong>>| {
            thread.join().unwrap_or_else(|_| Err("a worker has panicked".to_owned()))
        };
        // All of them first: one that failed must not leave others that run.
        let ended: Vec<_> = threads.into_iter().map(end).collect();
        ended.into_iter().collect()
    })
}

fn run_one(worker: &mut Worker, way: Way, until: Until, clock: SystemClock) -> Result<Share, Wrong> {
    let begin = |worker: &Worker| (sent(worker, way), Instant::now(), running());
    let first = sent(worker, way);
    let cold = begin(worker);
    let (mut before, mut start, mut ran) = cold;
    let (mut is_warm, warm) = match until {
        Until::Elapsed(_) => (true, 0),
        Until::Sent { warm, .. } => (warm == 0, warm),
    };
    let dropped = worker.pool().drops().total();
    let (mut last, mut idle) = ((before, start), 0_u32);
    loop {
        for _ in 0..TURNS {
            idle = if turn(worker, clock)? > 0 { 0 } else { idle + 1 };
            if !is_warm && sent(worker, way) - first >= warm {
                (before, start, ran) = begin(worker);
                is_warm = true;
            }
            // Where threads share a processor, another one may have what this one waits for.
            if idle > IDLE_TURNS {
                std::thread::yield_now();
            }
        }
        let now = Instant::now();
        let packets = sent(worker, way) - before;
        let is_done = match until {
            Until::Elapsed(duration) => now - start >= duration,
            Until::Sent { all, .. } => sent(worker, way) - first >= all,
        };
        let drops = worker.pool().drops().total() - dropped;
        if is_done && drops == 0 {
            if packets == 0 {
                // One turn sent the first and the last of them: another thread had kept them all waiting.
                (before, start, ran) = cold;
            }
            let packets = sent(worker, way) - before;
            return Ok(Share { packets, elapsed: start.elapsed(), running: running() - ran });
        }
        if packets + before > last.0 {
            last = (packets + before, now);
        }
        if drops > 0 || now - last.1 > PATIENCE {
            return Err(format!("a worker lost packets; drops: {}", gateways::drops(worker)));
        }
    }
}

/// Lets all workers send what they have, in turns on this thread.
pub(super) fn settle(workers: &mut [Worker]) -> Result<(), Wrong> {
    let clock = SystemClock::default();
    let begun = Instant::now();
    workers.iter_mut().for_each(Worker::drain);
    while workers.iter().any(|worker| worker.is_busy() || worker.is_waiting() != (false, false)) {
        for worker in workers.iter_mut() {
            turn(worker, clock)?;
        }
        if begun.elapsed() > PATIENCE {
            return Err("packets that were received are not sent".to_owned());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_processors_are_of_different_cores_where_there_are_such() {
        // 0 and 1 are one core, 2 and 3 another.
        let core = |processor: usize| processor / 2 * 2;
        assert_eq!(two_apart(&[0, 1, 2, 3], core), Some(([0, 2], true)));
        assert_eq!(two_apart(&[2, 3], core), Some(([2, 3], false)));
        assert_eq!((two_apart(&[1], core), two_apart(&[], core)), (None, None));
        assert_eq!(core_of(usize::MAX), usize::MAX, "of which the kernel says nothing");
    }
}
