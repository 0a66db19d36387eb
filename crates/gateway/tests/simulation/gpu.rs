//! The simulations over the engine on GPUs, with faults in the middle. The device is PoCL, which computes on
//! the processor: its absence fails these tests (Debian: `pocl-opencl-icd`).
//!
//! ```text
//!   submit ──► (gathered until flush) ──► the engine ──► ended ──► poll: some of them, in any order, or none
//!      ├── refused: a tail of the burst        ▲
//!      └── a fault at once             or: a fault on its way
//! ```
//!
//! How long a device takes is the machine's affair. Whenever the worker looks at it, all that it has is
//! waited for, so that simulated time does not run ahead of it, and how much of this the worker is told
//! follows from the seed, as do all faults. Half-way through, all devices die.

use crate::late::scheduled;
use crate::pair::Equipment;
use crate::threads::{await_that, equipment};
use crate::{Scenario, name, run};
use fastrand::Rng;
use std::cell::RefCell;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
use testudo_crypto::{
    Capability, Direction, Engine, EngineError, Job, JobStatus, KeyId, KeyMaterial, PortableEngine, Profile,
    Suite, Unwritten,
};
use testudo_engine_gpu::GpuConfig;
use testudo_gateway::{SchedulerSettings, ThreadingModel};

/// Packets of a scenario that protected A sends, beside those that use up leases.
const PACKETS: u32 = 1_500;
/// Of a hundred calls of `submit`, those that refuse a tail.
const REFUSED_TAILS: u32 = 10;
/// Of a hundred jobs, those that fail at once, and those that fail later.
const FAULTS: u32 = 3;
/// Of a hundred polls, those that tell nothing.
const SILENT_POLLS: u32 = 40;

/// Devices that no gateway has: each takes a while to be opened.
#[derive(Clone)]
struct Devices {
    headers: bool,
    idle: Arc<Mutex<Vec<Box<dyn Engine>>>>,
}

impl Devices {
    /// `headers`: the kernel writes them.
    fn new(headers: bool) -> Self {
        Self { headers, idle: Arc::default() }
    }

    fn idle(&self) -> MutexGuard<'_, Vec<Box<dyn Engine>>> {
        self.idle.lock().expect("nobody panics with the list")
    }

    fn lend(&self) -> Box<dyn Engine> {
        let idle = self.idle().pop();
        // On a machine that is busy enough, one of its batches may have taken too long.
        let idle = idle.filter(|engine| !engine.description().contains("out of service"));
        idle.unwrap_or_else(|| self.open())
    }

    fn give_back(&self, engine: Box<dyn Engine>) {
        self.idle().push(engine);
    }

    fn open(&self) -> Box<dyn Engine> {
        let device = Some("Portable Computing Language".to_owned());
        let (keys, batch_jobs, headers) = (64, 1024, self.headers);
        match testudo_engine_gpu::open(&GpuConfig {
            device,
            keys,
            batch_jobs,
            headers,
            ..GpuConfig::default()
        }) {
            Ok(engine) => engine,
            Err(error) => panic!("{error}. These tests need the package pocl-opencl-icd."),
        }
    }
}

/// What the devices of a scenario have done.
#[derive(Default)]
struct Counts {
    /// Jobs that they have sealed or opened.
    done: AtomicU64,
    /// Jobs that came without their frames.
    unwritten: AtomicU64,
}

/// A job that was taken, and whether it was drawn to fail.
struct Gathered {
    job: Job,
    faults: bool,
}

/// A device that fails, while a gateway has it.
struct Unreliable {
    engine: Box<dyn Engine>,
    devices: Devices,
    keys: Vec<KeyId>,
    random: Rng,
    gathered: Vec<Gathered>,
    /// What the worker was not told of yet.
    ended: Vec<Job>,
    /// All that comes, and what has not reached the device, ends as a fault.
    is_dead: Arc<AtomicBool>,
    counts: Arc<Counts>,
}

impl Unreliable {
    fn new(devices: &Devices, seed: u64, counts: &Arc<Counts>) -> Self {
        Self {
            engine: devices.lend(),
            devices: devices.clone(),
            keys: Vec::new(),
            random: Rng::with_seed(seed),
            gathered: Vec::new(),
            ended: Vec::new(),
            is_dead: Arc::default(),
            counts: Arc::clone(counts),
        }
    }

    fn draws(&mut self, of_a_hundred: u32) -> bool {
        self.random.u32(..100) < of_a_hundred
    }

    fn is_dead(&self) -> bool {
        self.is_dead.load(Ordering::Relaxed)
    }

    /// Hands over what has gathered, as far as the device has room.
    fn hand_over(&mut self) {
        let mut gathered = std::mem::take(&mut self.gathered).into_iter();
        for Gathered { mut job, faults } in gathered.by_ref() {
            if faults || self.is_dead() {
                job.status = JobStatus::Fault;
            } else if self.engine.submit(std::slice::from_mut(&mut job)) == 0 {
                self.gathered.push(Gathered { job, faults });
                break;
            }
            if job.status != JobStatus::Taken {
                self.ended.push(job);
            }
        }
        self.gathered.extend(gathered);
        self.engine.flush();
    }

    /// Waits until all that was taken has ended.
    fn drain(&mut self) {
        let mut ended = Vec::new();
        await_that(|| {
            self.hand_over();
            self.engine.poll(&mut ended, usize::MAX);
            self.gathered.is_empty() && self.engine.in_flight() == 0
        });
        self.ended.append(&mut ended);
    }
}

impl Engine for Unreliable {
    fn name(&self) -> &'static str {
        self.engine.name()
    }
    fn description(&self) -> String {
        format!("unreliable: {}", self.engine.description())
    }
    fn capability(&self, suite: Suite) -> Option<Capability> {
        self.engine.capability(suite)
    }
    fn install(&mut self, key: &KeyMaterial, direction: Direction) -> Result<KeyId, EngineError> {
        let id = self.engine.install(key, direction)?;
        self.keys.push(id);
        Ok(id)
    }
    fn remove(&mut self, key: KeyId) {
        // What was taken under it has not reached the engine yet.
        self.drain();
        self.keys.retain(|known| *known != key);
        self.engine.remove(key);
    }
    fn submit(&mut self, jobs: &mut [Job]) -> usize {
        let refuses = self.draws(REFUSED_TAILS);
        let taken = if refuses { self.random.usize(..=jobs.len()) } else { jobs.len() };
        for slot in &mut jobs[..taken] {
            if self.is_dead() || self.draws(FAULTS) {
                slot.status = JobStatus::Fault;
                continue;
            }
            let is_unwritten = slot.unwritten != Unwritten::NOTHING;
            self.counts.unwritten.fetch_add(u64::from(is_unwritten), Ordering::Relaxed);
            let faults = self.draws(FAULTS);
            self.gathered.push(Gathered { job: slot.take(), faults });
        }
        taken
    }
    fn flush(&mut self) {
        self.hand_over();
    }
    fn profile(&self, suite: Suite) -> Profile {
        self.engine.profile(suite)
    }
    fn poll(&mut self, done: &mut Vec<Job>, max: usize) {
        if self.draws(SILENT_POLLS) {
            return;
        }
        self.drain();
        let most = self.ended.len().min(max);
        let told = if most > 0 { self.random.usize(1..=most) } else { 0 };
        for _ in 0..told {
            let job = self.ended.swap_remove(self.random.usize(..self.ended.len()));
            let is_done = job.status == JobStatus::Done;
            self.counts.done.fetch_add(u64::from(is_done), Ordering::Relaxed);
            done.push(job);
        }
    }
    fn in_flight(&self) -> usize {
        self.gathered.len() + self.ended.len() + self.engine.in_flight()
    }
}

/// The device goes to another gateway, without the keys and jobs of this one.
impl Drop for Unreliable {
    fn drop(&mut self) {
        if std::thread::panicking() {
            return;
        }
        self.drain();
        self.keys.drain(..).for_each(|key| self.engine.remove(key));
        let engine = std::mem::replace(&mut self.engine, Box::new(PortableEngine::new()));
        self.devices.give_back(engine);
    }
}

/// Some of the scenarios in suites that the device does. With a transmit thread no gateway is killed: what
/// was handed to it would still leave, after the judge has written it off.
fn some(devices: &Devices, model: ThreadingModel) -> Vec<Scenario> {
    let engine = devices.lend();
    let does = |scenario: &Scenario| engine.capability(scenario.spec.suite).is_some();
    let shorter = |scenario: Scenario| Scenario {
        packets: PACKETS,
        first_sequence: if scenario.spec.esn { (1 << 32) - u64::from(PACKETS) / 2 } else { 1 },
        lease_block: 150,
        restarts: model != ThreadingModel::TwoIo,
        // How long a device has a chunk is the seed's affair, and far beyond what it is told at first.
        scheduler: SchedulerSettings { latency: Duration::from_millis(50), ..scenario.scheduler },
        ..scenario
    };
    let some = scheduled().into_iter().filter(does).step_by(5).map(shorter).collect();
    devices.give_back(engine);
    some
}

/// Runs them on gateways with these threads; returns how many jobs came without their frames.
fn run_with(test: &str, devices: &Devices, model: ThreadingModel) -> u64 {
    println!("{model}");
    let mut unwritten = 0;
    for scenario in some(devices, model) {
        let (alive, counts) = (RefCell::new(Vec::<Arc<AtomicBool>>::new()), Arc::<Counts>::default());
        let mut equip = |seed, port| {
            let unreliable = Unreliable::new(devices, seed, &counts);
            alive.borrow_mut().push(Arc::clone(&unreliable.is_dead));
            let engine: Box<dyn Engine> = Box::new(unreliable);
            match model {
                ThreadingModel::RunToCompletion => {
                    Equipment { engines: vec![engine, Box::new(PortableEngine::new())], port }
                }
                _ => equipment((model, false), engine, seed, port),
            }
        };
        // Gateways that start later have a device that works.
        let die = || alive.borrow().iter().for_each(|is_dead| is_dead.store(true, Ordering::Relaxed));
        let outcome = run(test, &scenario, &mut equip, die);
        let name = name(&scenario);
        assert!(outcome.delivered * 2 > outcome.sent, "{name}: too little went through: {outcome:?}");
        let done = counts.done.load(Ordering::Relaxed);
        assert!(done > 0, "{name}: the device did nothing: {outcome:?}");
        unwritten += counts.unwritten.load(Ordering::Relaxed);
    }
    unwritten
}

#[test]
fn a_gpu_that_fails_and_dies_midway_loses_nothing_and_keeps_the_order() {
    let devices = Devices::new(false);
    let unwritten = run_with("a_gpu_that_fails_and_dies", &devices, ThreadingModel::RunToCompletion);
    assert_eq!(unwritten, 0, "headers are the processor's");
}

#[test]
fn a_gpu_on_a_device_thread_that_fails_and_dies_midway_loses_nothing_and_keeps_the_order() {
    let devices = Devices::new(false);
    for model in [ThreadingModel::OneIo, ThreadingModel::TwoIo] {
        run_with("a_gpu_on_a_device_thread_that_fails", &devices, model);
    }
}

#[test]
fn a_gpu_that_writes_headers_fails_and_dies_midway_loses_nothing_and_keeps_the_order() {
    let devices = Devices::new(true);
    let unwritten = run_with("a_gpu_that_writes_headers_fails", &devices, ThreadingModel::RunToCompletion);
    assert!(unwritten > 100, "{unwritten} packets had their headers from the device");
}
