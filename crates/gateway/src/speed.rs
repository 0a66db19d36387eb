//! Which engine is the fastest here.
//!
//! Measured once, at start-up, if the configuration names no engines: processors run the same code at
//! different relative speeds, and a library may have been replaced since this was written.

use crate::clock::SystemClock;
use crate::scheduler::{complete, job};
use std::time::Duration;
use testudo_crypto::{Direction, Engine, Job, JobStatus, KeyMaterial, Suite};
use testudo_packet::ticks;
use zeroize::Zeroizing;

/// The suite that is timed: what most tunnels use.
const SUITE: Suite = Suite::AES128GCM16;
/// Lengths of text in the batch that is timed. Small packets outnumber large ones: with equal bytes in both,
/// what a small packet costs would not show.
const TEXT_BYTES: [u32; 32] = {
    let mut lengths = [48; 32];
    lengths[12] = 496;
    lengths[13] = 496;
    lengths[30] = 1404;
    lengths[31] = 1404;
    lengths
};
/// Batches that are timed; the fastest counts, because nothing makes a batch faster than it can be.
const BATCHES: usize = 24;
/// How long one batch may take; an engine with more latency does not come first.
const PATIENCE: Duration = Duration::from_millis(5);
/// An engine overtakes one that was named before it if it needs less than this many hundredths of its time:
/// noise does not.
const OVERTAKES_PERCENT: u64 = 90;

/// Sorts engines by how long they take, if that differs by more than noise; otherwise they stay in the order
/// in which they were named.
///
/// The engines must be idle; they hold no more keys afterwards than before. Takes less than a millisecond for
/// each.
pub(crate) fn fastest_first(engines: &mut [Box<dyn Engine>]) {
    let mut times: Vec<u64> = engines.iter_mut().map(|e| time(e.as_mut()).unwrap_or(u64::MAX)).collect();
    for start in 1..engines.len() {
        let mut at = start;
        while at > 0 && overtakes(times[at], times[at - 1]) {
            engines.swap(at, at - 1);
            times.swap(at, at - 1);
            at -= 1;
        }
    }
}

/// Whether an engine that takes `time` comes before one that takes `other` and was named first.
fn overtakes(time: u64, other: u64) -> bool {
    time < other / 100 * OVERTAKES_PERCENT
}

/// The time of the fastest batch; `None` if the engine cannot be timed.
fn time(engine: &mut dyn Engine) -> Option<u64> {
    engine.capability(SUITE)?;
    let material = KeyMaterial::new(SUITE, Zeroizing::new(vec![0x5A; SUITE.keying_material_bytes()])).ok()?;
    let key = engine.install(&material, Direction::Seal).ok()?;
    let jobs = TEXT_BYTES.iter().zip(0..).map(|(length, number)| job(SUITE, *length, number, key)).collect();
    let best = best_batch(engine, jobs);
    engine.remove(key);
    best
}

fn best_batch(engine: &mut dyn Engine, mut jobs: Vec<Job>) -> Option<u64> {
    let (mut best, clock) = (None, SystemClock::default());
    for _ in 0..BATCHES {
        jobs.iter_mut().for_each(|job| job.status = JobStatus::Pending);
        let start = ticks();
        (jobs, _) = complete(engine, jobs, PATIENCE, &clock).ok()?;
        let took = ticks().wrapping_sub(start);
        best = Some(best.map_or(took, |best: u64| best.min(took)));
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;
    use testudo_crypto::{Capability, EngineError, KeyId, PortableEngine};

    /// The portable engine, slowed down: it does everything several times, or never finishes.
    struct Slow {
        inner: PortableEngine,
        times: usize,
        keys: usize,
    }

    fn slow(times: usize) -> Box<dyn Engine> {
        Box::new(Slow { inner: PortableEngine::new(), times, keys: 0 })
    }

    impl Drop for Slow {
        fn drop(&mut self) {
            assert_eq!(self.keys, 0, "keys are left behind");
        }
    }

    impl Engine for Slow {
        fn name(&self) -> &'static str {
            "slow"
        }
        fn description(&self) -> String {
            self.times.to_string()
        }
        fn capability(&self, suite: Suite) -> Option<Capability> {
            self.inner.capability(suite)
        }
        fn install(&mut self, key: &KeyMaterial, direction: Direction) -> Result<KeyId, EngineError> {
            self.keys += 1;
            self.inner.install(key, direction)
        }
        fn remove(&mut self, key: KeyId) {
            self.keys -= 1;
            self.inner.remove(key);
        }
        fn submit(&mut self, jobs: &mut [Job]) -> usize {
            (0..self.times).for_each(|_| _ = self.inner.submit(jobs));
            if self.times == 0 { 0 } else { jobs.len() }
        }
    }

    fn order(times: &[usize]) -> Vec<usize> {
        let mut engines: Vec<Box<dyn Engine>> = times.iter().map(|times| slow(*times)).collect();
        fastest_first(&mut engines);
        engines.iter().map(|engine| engine.description().parse().unwrap()).collect()
    }

    #[test]
    fn a_much_faster_engine_comes_first() {
        assert_eq!(order(&[40, 1, 8]), [1, 8, 40]);
        assert_eq!(order(&[1, 8, 40]), [1, 8, 40]);
    }

    #[test]
    fn an_engine_that_does_not_end_its_jobs_comes_last() {
        assert_eq!(order(&[0, 1]), [1, 0]);
    }

    #[test]
    fn noise_overtakes_nobody() {
        assert!(
            !overtakes(100_000, 100_000) && !overtakes(91_000, 100_000) && !overtakes(u64::MAX, u64::MAX)
        );
        assert!(overtakes(85_000, 100_000) && overtakes(100_000, u64::MAX));
    }
}
