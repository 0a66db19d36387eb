//! What an engine costs for a suite, before packets come: measured for a few milliseconds.

use super::live::{CLASSES, LENGTHS};
use crate::clock::Clock;
use std::time::Duration;
use testudo_crypto::{Direction, Engine, Job, JobStatus, KeyId, KeyMaterial, Suite};
use testudo_ipsec::SaRef;
use testudo_packet::Buffer;
use zeroize::Zeroizing;

/// Lengths that are measured, in bytes; in between and beyond, times lie on lines.
const MEASURED: [u32; 3] = [64, 512, 1536];
/// What stands for the class of all that is longer.
const LONG: u32 = 2304;
/// Jobs of a batch, unless the engine wants more: what a turn brings, and enough for an engine with lanes.
const JOBS: u32 = 32;
/// Batches of a length; the fastest counts, because nothing makes a batch faster than it can be.
const BATCHES: usize = 3;
/// A batch that takes longer is measured once.
const ENOUGH: Duration = Duration::from_millis(1);
/// How long a batch may be with an engine that ends it elsewhere, a larger batch of one that wants it, and
/// how long is waited until it is back.
const PATIENCE: Duration = Duration::from_millis(5);
const PATIENCE_IF_DEEP: Duration = Duration::from_millis(50);
const GIVEN_UP: Duration = Duration::from_secs(1);
/// What handing over a job costs if nothing is known of that: it is not free.
const HANDING_OVER: Duration = Duration::from_nanos(100);
/// How long all measurements of a worker may take, but for the last one. What is not measured by then is by
/// the first jobs.
pub(crate) const MEASURING: Duration = Duration::from_secs(1);

/// Times of an engine for one suite.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Measured {
    /// For each class of length: what a job takes, or how long it is away from an engine without others.
    pub(crate) jobs: [Duration; CLASSES],
    /// The worker's time to hand over a job among others, if it ends elsewhere.
    pub(crate) submit: Duration,
    /// The same to take one back.
    pub(crate) poll: Duration,
    /// The time between two of these.
    pub(crate) between: Duration,
}

/// Why a batch was not completed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Incomplete {
    /// It took too long.
    Slow,
    /// A job failed.
    Failed,
    /// The engine has jobs that it does not give back. It is not to be used.
    Hangs,
}

/// Measures an engine that is idle, which holds no more keys afterwards than before. It gets as many jobs at
/// a time as it wants, up to a chunk, and is timed by this clock, which moves while the engine works. `None`
/// if it cannot be measured so and its profile says nothing.
///
/// # Errors
/// [`Incomplete::Hangs`], only.
pub(crate) fn measure(
    engine: &mut dyn Engine,
    suite: Suite,
    chunk: usize,
    clock: &dyn Clock,
) -> Result<Option<Measured>, Incomplete> {
    let Some(key) = key_for(engine, suite) else { return Ok(None) };
    let measured = with_key(engine, suite, key, chunk, clock);
    engine.remove(key);
    match measured {
        Ok(measured) => Ok(Some(measured)),
        Err(Incomplete::Slow) => Ok(of_profile(engine, suite)),
        // Whether it does any is for the first jobs to show.
        Err(Incomplete::Failed) => Ok(None),
        Err(Incomplete::Hangs) => Err(Incomplete::Hangs),
    }
}

/// A key of a suite that the engine does and that can be measured.
fn key_for(engine: &mut dyn Engine, suite: Suite) -> Option<KeyId> {
    engine.capability(suite)?;
    if suite.is_for_vpe() {
        return None;
    }
    // No two parts are the same: keys of 3DES are refused if theirs are.
    let bytes = (1..=u8::MAX).cycle().take(suite.keying_material_bytes()).collect();
    let material = KeyMaterial::new(suite, Zeroizing::new(bytes)).ok()?;
    engine.install(&material, Direction::Seal).ok()
}

/// Jobs of a batch for an engine.
fn batch_of(engine: &dyn Engine, suite: Suite, chunk: usize) -> u32 {
    let wanted = if engine.is_synchronous() { 0 } else { engine.profile(suite).depth_jobs.min(chunk) };
    u32::try_from(wanted).unwrap_or(JOBS).max(JOBS)
}

fn with_key(
    engine: &mut dyn Engine,
    suite: Suite,
    key: KeyId,
    chunk: usize,
    clock: &dyn Clock,
) -> Result<Measured, Incomplete> {
    let batch = batch_of(engine, suite, chunk);
    let patience = if batch > JOBS { PATIENCE_IF_DEEP } else { PATIENCE };
    let jobs = |count: u32, length: u32| (0..count).map(|n| job(suite, length, n, key)).collect();
    let (mut times, mut between) = ([Duration::ZERO; 3], Duration::ZERO);
    let (mut handing_over, mut taking_back) = (Duration::MAX, Duration::MAX);
    for (time, length) in times.iter_mut().zip(MEASURED) {
        let many = fastest(engine, jobs(batch, length), patience, clock)?;
        if engine.is_synchronous() {
            *time = many.total / batch;
            continue;
        }
        let one = fastest(engine, jobs(1, length), patience, clock)?;
        *time = one.total;
        handing_over = handing_over.min(many.submit / many.taken.max(1));
        taking_back = taking_back.min(many.poll / batch);
        between = between.max(many.total.saturating_sub(one.total) / (batch - 1));
    }
    let [submit, poll] =
        [handing_over, taking_back].map(|time| if time == Duration::MAX { Duration::ZERO } else { time });
    Ok(Measured { jobs: on_lines(times), submit, poll, between })
}

/// What the profile of an engine says, if it knows any costs.
fn of_profile(engine: &dyn Engine, suite: Suite) -> Option<Measured> {
    let profile = engine.profile(suite);
    let one = |length: u32| Duration::from_nanos(profile.time_ns(length.into()));
    let between = Duration::from_nanos(profile.byte_ps.saturating_mul(512) / 1000);
    let jobs = on_lines(MEASURED.map(one));
    let (submit, poll) = (HANDING_OVER, Duration::ZERO);
    (profile.time_ns(512) > 0).then_some(Measured { jobs, submit, poll, between })
}

/// The times of all classes, from those of three lengths.
fn on_lines(times: [Duration; 3]) -> [Duration; CLASSES] {
    let [short, middle, long] = times;
    let [a, b, c] = MEASURED;
    let mut all = [Duration::ZERO; CLASSES];
    for (time, length) in all.iter_mut().zip(LENGTHS.into_iter().chain([LONG])) {
        let (from, to, low, high) = if length <= b { (a, b, short, middle) } else { (b, c, middle, long) };
        *time = low + high.saturating_sub(low) * length.saturating_sub(from) / (to - from);
    }
    all
}

fn fastest(
    engine: &mut dyn Engine,
    mut jobs: Vec<Job>,
    patience: Duration,
    clock: &dyn Clock,
) -> Result<Run, Incomplete> {
    let mut best = None;
    for _ in 0..BATCHES {
        jobs.iter_mut().for_each(|job| job.status = JobStatus::Pending);
        let run;
        (jobs, run) = complete(engine, jobs, patience, clock)?;
        best = Some(best.map_or(run, |best: Run| if run.total < best.total { run } else { best }));
        if run.total > ENOUGH {
            break;
        }
    }
    best.ok_or(Incomplete::Slow)
}

/// How long a batch took.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Run {
    /// To be handed over for the first time, and how many jobs were.
    pub(crate) submit: Duration,
    pub(crate) taken: u32,
    /// To be taken back: looks that brought nothing are not counted.
    pub(crate) poll: Duration,
    pub(crate) total: Duration,
}

/// Completes all jobs, unless one of them fails, or they take longer than `patience`.
///
/// # Errors
/// [`Incomplete`]. Nothing of them is with the engine then, unless it hangs.
pub(crate) fn complete(
    engine: &mut dyn Engine,
    mut jobs: Vec<Job>,
    patience: Duration,
    clock: &dyn Clock,
) -> Result<(Vec<Job>, Run), Incomplete> {
    let (start, count) = (clock.now(), jobs.len());
    let mut done = Vec::with_capacity(count);
    let mut taken = engine.submit(&mut jobs);
    engine.flush();
    let mut looked = clock.now();
    let (submit, mut poll) = (looked.since(start), Duration::ZERO);
    let first = u32::try_from(taken).unwrap_or(u32::MAX);
    while taken < count || engine.in_flight() > 0 {
        let before = done.len();
        engine.poll(&mut done, count);
        let now = clock.now();
        if done.len() > before {
            poll += now.since(looked);
        }
        looked = now;
        if now.since(start) > patience {
            // Nothing of ours stays in the engine.
            while engine.in_flight() > 0 && clock.now().since(start) < GIVEN_UP {
                engine.poll(&mut done, count);
            }
            return Err(if engine.in_flight() > 0 { Incomplete::Hangs } else { Incomplete::Slow });
        }
        if taken < count {
            taken += engine.submit(jobs.get_mut(taken..).unwrap_or_default());
            engine.flush();
            looked = clock.now();
        }
    }
    let total = clock.now().since(start);
    engine.poll(&mut done, count);
    jobs.retain(|job| job.status != JobStatus::Taken);
    jobs.append(&mut done);
    let all = jobs.len() == count && jobs.iter().all(|job| job.status == JobStatus::Done);
    if all { Ok((jobs, Run { submit, taken: first, poll, total })) } else { Err(Incomplete::Failed) }
}

/// A packet of nobody's to be sealed, with room for headers before the text and for the ICV after it.
pub(crate) fn job(suite: Suite, text_bytes: u32, number: u32, key: KeyId) -> Job {
    const AUTH_START: usize = 20;
    let text_start = AUTH_START + 8 + suite.iv_bytes();
    let text = usize::try_from(text_bytes).unwrap_or(0).next_multiple_of(suite.block_bytes().max(1));
    let mut bytes = vec![0; text_start + text + suite.icv_bytes()];
    if let Some(low) = bytes.get_mut(text_start - 4..text_start) {
        low.copy_from_slice(&number.to_be_bytes());
    }
    let narrow = |number: usize| u32::try_from(number).unwrap_or(0);
    Job {
        sequence: number.into(),
        key,
        auth_start: narrow(AUTH_START),
        text_start: narrow(text_start),
        text_bytes: narrow(text),
        ..Job::new(Buffer::copied(&bytes, 128, 64), Direction::Seal, SaRef::NOBODY.bits())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::{ManualClock, SystemClock};
    use std::collections::VecDeque;
    use testudo_crypto::{Capability, EngineError, PortableEngine};
    use testudo_engine_late::{LateConfig, LateEngine};
    use testudo_ipsec::{Moment, Prepared};

    const CHUNK: usize = 4096;

    fn late(config: LateConfig) -> LateEngine {
        LateEngine::new(Box::new(PortableEngine::new()), config)
    }

    fn timed(engine: &mut dyn Engine, suite: Suite) -> Result<Option<Measured>, Incomplete> {
        measure(engine, suite, CHUNK, &SystemClock::default())
    }

    /// A clock on which a nanosecond passes with each look.
    struct Looked(ManualClock);

    impl Clock for Looked {
        fn now(&self) -> Moment {
            self.0.advance(Duration::from_nanos(1));
            self.0.now()
        }
    }

    /// A device that takes 10 us and one more for each job, and the worker 100 ns to hand one over and 200 ns
    /// to take one back.
    struct Device {
        inner: PortableEngine,
        clock: ManualClock,
        launches: VecDeque<(Moment, Vec<Job>)>,
    }

    impl Engine for Device {
        fn name(&self) -> &'static str {
            "device"
        }
        fn description(&self) -> String {
            String::new()
        }
        fn capability(&self, suite: Suite) -> Option<Capability> {
            self.inner.capability(suite)
        }
        fn install(&mut self, key: &KeyMaterial, direction: Direction) -> Result<KeyId, EngineError> {
            self.inner.install(key, direction)
        }
        fn remove(&mut self, key: KeyId) {
            self.inner.remove(key);
        }
        fn is_synchronous(&self) -> bool {
            false
        }
        fn submit(&mut self, jobs: &mut [Job]) -> usize {
            let count = u32::try_from(jobs.len()).unwrap();
            self.clock.advance(Duration::from_nanos(100) * count);
            let end = self.clock.now().0 + Duration::from_micros(10 + u64::from(count));
            self.launches.push_back((Moment(end), jobs.iter_mut().map(Job::take).collect()));
            jobs.len()
        }
        fn poll(&mut self, done: &mut Vec<Job>, _: usize) {
            while let Some((_, mut jobs)) = self.launches.pop_front_if(|(end, _)| *end <= self.clock.now()) {
                self.clock.advance(Duration::from_nanos(200) * u32::try_from(jobs.len()).unwrap());
                self.inner.submit(&mut jobs);
                done.append(&mut jobs);
            }
        }
        fn in_flight(&self) -> usize {
            self.launches.iter().map(|(_, jobs)| jobs.len()).sum()
        }
    }

    /// By a clock that is handed in: a model of an engine is measured as an engine is.
    #[test]
    fn a_device_is_measured_by_the_clock_that_it_has() {
        let clock = ManualClock::default();
        let mut device =
            Device { inner: PortableEngine::new(), clock: clock.clone(), launches: VecDeque::new() };
        let measured = measure(&mut device, Suite::AES128GCM16, CHUNK, &Looked(clock)).unwrap().unwrap();
        let near = |time: Duration, ns: u128| time.as_nanos().abs_diff(ns) < 20;
        assert!(near(measured.submit, 100) && near(measured.poll, 200), "{measured:?}");
        assert!(measured.jobs.iter().all(|time| near(*time, 11_300)), "{measured:?}");
        assert!(near(measured.between, 1_300), "{measured:?}");
    }

    #[test]
    fn every_class_has_its_time_on_the_lines_between_those_measured() {
        let us = Duration::from_micros;
        let all = on_lines([us(10), us(17), us(33)]);
        assert_eq!(all, [10, 11, 13, 17, 25, 33, 45].map(us));
        assert_eq!(on_lines([us(9), us(7), us(7)]), [9, 9, 9, 9, 7, 7, 7].map(us), "none is below both ends");
    }

    #[test]
    fn an_engine_is_measured_for_every_suite_of_esp_and_keeps_no_key() {
        let mut engine = PortableEngine::new();
        let esp = Suite::every().filter(|suite| !suite.is_for_vpe());
        for suite in esp.filter(|suite| engine.capability(*suite).is_some()).collect::<Vec<_>>() {
            let measured = timed(&mut engine, suite).unwrap().unwrap_or_else(|| panic!("{suite}"));
            assert!(measured.jobs.iter().all(|time| !time.is_zero()), "{suite}: {measured:?}");
        }
        let mut late = late(LateConfig::reliable(1));
        let measured = timed(&mut late, Suite::AES128GCM16).unwrap().unwrap();
        assert!(!measured.submit.is_zero() && late.in_flight() == 0);
    }

    #[test]
    fn nothing_is_known_of_an_engine_that_fails_at_what_it_is_measured_with() {
        let mut late = late(LateConfig::reliable(1));
        late.fail_all(true);
        assert_eq!(timed(&mut late, Suite::AES128GCM16), Ok(None));
        assert_eq!(late.in_flight(), 0);
    }

    /// What it gives back after all is nobody's.
    #[test]
    fn an_engine_that_keeps_what_it_is_measured_with_hangs() {
        let mut late = late(LateConfig::reliable(1));
        late.keep_all(true);
        assert_eq!(timed(&mut late, Suite::AES128GCM16), Err(Incomplete::Hangs));
        late.keep_all(false);
        let mut done = Vec::new();
        while late.in_flight() > 0 {
            late.poll(&mut done, CHUNK);
        }
        assert!(!done.is_empty() && done.iter().all(|job| Prepared::sa_of(job) == SaRef::NOBODY));
    }

    #[test]
    fn an_engine_is_measured_with_as_many_jobs_as_it_wants_up_to_a_chunk() {
        let of_depth = |depth_jobs| late(LateConfig { depth_jobs, ..LateConfig::reliable(1) });
        let batch = |engine: &dyn Engine, chunk| batch_of(engine, Suite::AES128GCM16, chunk);
        assert_eq!(batch(&of_depth(1), CHUNK), JOBS);
        assert_eq!(batch(&of_depth(1000), CHUNK), 1000);
        assert_eq!(batch(&of_depth(8192), CHUNK), 4096);
        assert_eq!(batch(&PortableEngine::new(), CHUNK), JOBS);
    }
}
