//! On a clock that is set, with engines of known cost; and of this machine, without a look at its times.

use std::collections::VecDeque;
use std::time::Instant;

use clap::Parser;
use testudo_crypto::{Capability, Direction, EngineError, Job, JobStatus, KeyId, KeyMaterial, Profile};
use testudo_engine_late::{LateConfig, LateEngine};
use testudo_gateway::{Clock, ManualClock};
use testudo_ipsec::Moment;
use testudo_packet::Region;

use super::super::array;
use super::super::priced::Priced;
use super::*;

/// More than any machine needs; nothing is asserted about the time that passes.
const PATIENCE: Duration = Duration::from_secs(60);
const SIZE: Size = Size::Bytes(1420);
const ALL: usize = 16_384;

/// An engine that works on threads of its own, on a clock that is set: what the threads did is given back
/// when it would have been done at a price. Each poll waits for them, so that nothing depends on when they
/// ran.
struct Elsewhere {
    inner: Box<dyn Engine>,
    clock: ManualClock,
    price: Price,
    free_at: Moment,
    /// Jobs since the last flush.
    unflushed: usize,
    /// When those that were flushed end, and those that threads have done.
    ends: VecDeque<Moment>,
    ended: VecDeque<Job>,
}

/// What a flush costs, each job on top, and the worker for handing one over.
#[derive(Debug, Clone, Copy)]
struct Price {
    launch: Duration,
    job: Duration,
    worker: Duration,
}

impl Elsewhere {
    fn boxed(inner: impl Engine + 'static, clock: &ManualClock, price: Price) -> Box<dyn Engine> {
        Box::new(Self {
            inner: Box::new(inner),
            clock: clock.clone(),
            price,
            free_at: Moment::default(),
            unflushed: 0,
            ends: VecDeque::new(),
            ended: VecDeque::new(),
        })
    }
}

impl Engine for Elsewhere {
    fn name(&self) -> &'static str {
        self.inner.name()
    }

    fn description(&self) -> String {
        self.inner.description()
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

    fn use_memory(&mut self, region: &Region) {
        self.inner.use_memory(region);
    }

    fn profile(&self, suite: Suite) -> Profile {
        self.inner.profile(suite)
    }

    fn submit(&mut self, jobs: &mut [Job]) -> usize {
        let taken = self.inner.submit(jobs);
        for job in jobs.iter().take(taken) {
            let is_away = job.status == JobStatus::Taken;
            self.unflushed += usize::from(is_away);
            self.clock.advance(if is_away { self.price.worker } else { self.price.job });
        }
        taken
    }

    fn flush(&mut self) {
        self.inner.flush();
        let count = std::mem::take(&mut self.unflushed);
        if count > 0 {
            let takes = self.price.launch + self.price.job * u32::try_from(count).unwrap();
            self.free_at = Moment(self.free_at.0.max(self.clock.now().0) + takes);
            self.ends.extend(std::iter::repeat_n(self.free_at, count));
        }
    }

    fn poll(&mut self, done: &mut Vec<Job>, max: usize) {
        let (began, mut some) = (Instant::now(), Vec::new());
        while self.inner.in_flight() > self.unflushed {
            self.inner.poll(&mut some, ALL);
            self.ended.extend(some.drain(..));
            assert!(began.elapsed() < PATIENCE, "{} jobs are away", self.inner.in_flight());
            std::thread::yield_now();
        }
        for _ in 0..max {
            if self.ends.front().is_none_or(|end| *end > self.clock.now()) {
                return;
            }
            self.ends.pop_front();
            done.extend(self.ended.pop_front());
            self.clock.advance(self.price.worker);
        }
    }

    fn in_flight(&self) -> usize {
        self.ends.len() + self.unflushed
    }
}

/// What a core takes for a packet of this size, and a device beside its launch.
const CORE: Duration = Duration::from_nanos(1100);
const DEVICE_JOB: Duration = Duration::from_nanos(800);
const HANDING_OVER: Duration = Duration::from_nanos(100);

/// Offers a share of what one of a price carries to these engines, with the usual settings.
fn offered(engines: Vec<Box<dyn Engine>>, clock: ManualClock, job: Duration, load: f64) -> Carried {
    let plan = plan(Suite::AES128_SHA1, SIZE, &ALONE);
    let feeds = Feeds::new(&plan, ALL, Priced::free()).unwrap();
    let rate = load / job.as_secs_f64();
    let carried = carry(&plan, &feeds, engines, Time::Model(clock), rate, &[Suite::AES128_SHA1]).unwrap();
    println!("{carried:?}");
    carried
}

/// The engines of each model, and what a packet takes the one that does it.
fn engines(name: &str, clock: &ManualClock) -> (Vec<Box<dyn Engine>>, Duration) {
    let (core, price) =
        (|| Priced::core(clock), Price { launch: Duration::ZERO, job: CORE, worker: HANDING_OVER });
    let launch = Duration::from_micros(60);
    let of_device = Price { launch, job: DEVICE_JOB, worker: HANDING_OVER };
    match name {
        "run to completion" => (vec![core()], CORE),
        "late" => {
            let late: Box<dyn Engine> = Box::new(LateEngine::new(core(), LateConfig::reliable(7)));
            (vec![late, core()], CORE)
        }
        "one_io" => {
            let thread = DeviceThread::over(Box::new(InMemory::over(Priced::free())), None);
            (vec![Elsewhere::boxed(thread, clock, of_device), core()], DEVICE_JOB)
        }
        _ => {
            let make = &mut || -> Result<Vec<Box<dyn Engine>>, EngineError> {
                let engine: Box<dyn Engine> = Box::new(PortableEngine::new());
                Ok(vec![engine])
            };
            let mut cores = CoresEngine::open(&CoresConfig::of(1), make).unwrap();
            cores.hand_over_all();
            (vec![Elsewhere::boxed(cores, clock, price), core()], CORE)
        }
    }
}

/// The default bound, in simulated time: without threads, with engines that answer late, with a device behind
/// a thread, and with a thread on another core.
#[test]
fn p99_under_half_load_is_within_the_default_bound_whoever_does_the_cryptography() {
    let bound_us = SchedulerSettings::default().latency.as_secs_f64() * 1e6;
    for name in ["run to completion", "late", "one_io", "cores"] {
        let clock = ManualClock::default();
        let (engines, job) = engines(name, &clock);
        let carried = offered(engines, clock, job, LOAD);
        assert!(carried.p50_us > Some(0.0), "{name}: {carried:?}");
        assert!(carried.p99_us.is_some_and(|p99| p99 <= bound_us), "{name}: {carried:?}");
        if name == "one_io" {
            let share = carried.shares.as_ref().and_then(|shares| shares.get("in_memory"));
            assert!(share.is_some_and(|share| *share > 0.5), "the device did them: {carried:?}");
        }
    }
}

/// What is measured would tell: of more than a core carries no packet is in time.
#[test]
fn a_gateway_that_is_offered_more_than_it_carries_is_not_within_the_bound() {
    let clock = ManualClock::default();
    let (engines, job) = engines("run to completion", &clock);
    let carried = offered(engines, clock, job, 1.5);
    assert!(carried.p99_us > Some(1000.0), "{carried:?}");
}

#[derive(Parser)]
struct Program {
    #[command(flatten)]
    options: BenchSchedulerOptions,
}

/// Each row has what an operator asks of it; what a busy machine takes for a packet is not asserted.
#[test]
fn each_placement_and_threading_model_is_measured_under_half_load_beside_the_bound() {
    let parse = |words: &str| Program::parse_from(words.split(' ')).options;
    let words = "scheduler --experiment bound --sizes 64 --chunks 1";
    let rows = array(&parse(words), Vec::new()).unwrap();
    let rows = rows.as_array().unwrap();
    assert_eq!(rows.len(), SUITES.len() * SETUPS.len());
    for (row, setup) in rows.iter().zip(SETUPS.iter().cycle()) {
        assert_eq!((&row["setting"], &row["bound_us"]), (&setup.name.into(), &1000.into()), "{row:#}");
        let [capacity, offered, p50, p99] =
            ["capacity_packets_per_second", "offered_packets_per_second", "p50_us", "p99_us"]
                .map(|name| row[name].as_f64().unwrap());
        assert!(capacity > 0.0 && (offered - capacity * LOAD).abs() < 1.0, "{row:#}");
        assert!(0.0 < p50 && p50 <= p99, "{row:#}");
        assert!(row["within"].is_boolean() && (p99 <= 1000.0 || row["within"] == false), "{row:#}");
        let named = [("in_memory", By::Device), ("cores", By::Cores), ("portable", By::Processor)];
        let (engine, _) = named.into_iter().find(|(_, by)| *by == setup.by).unwrap();
        assert_eq!(row["engine"], engine, "{row:#}");
        assert_eq!(row["threading"], setup.threads.name());
    }
    for wrong in [format!("{words} --engines model"), words.replace("bound", "bound,latency")] {
        let error = array(&parse(&wrong), Vec::new()).unwrap_err();
        assert!(matches!(error, BenchError::Usage(_)), "{error}");
    }
}
