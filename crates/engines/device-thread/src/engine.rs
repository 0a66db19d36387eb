//! The worker's side: an engine.

use crate::by_hand::ByHand;
use crate::device::{Device, Served, Told};
use crate::keys::{KeyChange, NewKey, Prepared, Preparer};
use crate::shared::Shared;
use crate::slot::{Ended, SLOT_JOBS, Slot};
use crate::sync::{Builder, JoinHandle, Ordering, Receiver, channel, yield_now};
use crate::watch::{Seen, Watch};
use rustix::thread::{CpuSet, sched_setaffinity};
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};
use testudo_crypto::{
    Capability, Direction, Engine, EngineError, Job, JobStatus, KeyId, KeyMaterial, KeyPreparer, KeyTable,
    MOST_FAULTS, PreparedKey, Profile, Suite,
};
use testudo_packet::{Aside, Consumer, Producer, Region, ring};

/// Jobs that may be away at least and at most, whatever the engine wants.
const JOBS_LEAST: usize = if cfg!(loom) { 4 } else { 1024 };
const JOBS_MOST: usize = 1 << 16;
/// Slots beside those that full ones need: some are published before they are full.
const SPARE_SLOTS: usize = if cfg!(loom) { 1 } else { 64 };
/// How long the thread may take to end, or to hand the engine back. The model has no time.
const PATIENCE: Duration = Duration::from_secs(if cfg!(loom) { 1 << 20 } else { 1 });
/// How often it is looked for in that time at least.
const LOOKS: u32 = 16;
/// What a job takes longer because it passes through two rings.
const HANDOVER_NS: u64 = 2_000;

/// Starts the thread of this name, bound to a processor if one is named, which begins with what it receives.
pub(crate) type Spawn =
    fn(String, Option<usize>, Receiver<Box<Served>>) -> io::Result<JoinHandle<Option<Served>>>;

/// The name of the thread that drives an engine: that of the engine without its device in parentheses.
#[must_use]
pub fn thread_name(engine: &str) -> String {
    let name = engine.split_once(" (").map_or(engine, |(name, _)| name);
    format!("device-{name}")
}

/// How long an engine that was recalled is waited for. Time in which nobody looked, or in which its thread
/// did something, is not held against it.
struct Recalled {
    looked: Instant,
    waited: Duration,
    /// What the thread had done by then: one that has keys to follow is not one that hangs.
    steps: u64,
}

/// An engine that is driven by a thread of its own. See the [crate](crate).
pub struct DeviceThread {
    name: &'static str,
    description: String,
    /// What the inner engine can do, and what that costs.
    suites: Vec<(Suite, Capability, Profile)>,
    preparer: Option<Arc<dyn KeyPreparer>>,
    /// Suites of keys, by the ids that this engine gave them.
    keys: KeyTable<Suite>,
    /// `None` once it is to end.
    slots: Option<Producer<Slot>>,
    results: Consumer<Ended>,
    /// Jobs that are gathered for the next slot, and changes of keys after these.
    next: Slot,
    /// The worker has flushed, and the thread was not told yet.
    flush_is_due: bool,
    /// Jobs have come since the last flush that the thread was told of.
    is_unflushed: bool,
    in_flight: usize,
    most: usize,
    pub(crate) told: Arc<Told>,
    /// Jobs that the thread has in no call.
    shared: Arc<Shared>,
    /// Whether it comes out of its calls.
    pub(crate) watch: Watch,
    processor: Option<usize>,
    /// Who is to drive the engine; a thread, if nobody says.
    aside: Option<Arc<Aside>>,
    hand: ByHand,
    /// The engine, and what its thread begins with, while there is none.
    pub(crate) start: Option<Box<Served>>,
    thread: Option<JoinHandle<Option<Served>>>,
    pub(crate) spawn: Spawn,
    /// It was said that the thread does not start.
    is_told: bool,
    /// The thread was asked to hand the engine back, and has not.
    recalled: Option<Recalled>,
    /// How long it may take for that.
    pub(crate) patience: Duration,
    /// The thread could not be started, or does not hand the engine back.
    is_lost: bool,
}

impl DeviceThread {
    /// Around an engine that holds no key and no job, on a thread that is bound to `processor`, if any is
    /// named. The thread starts with [`Engine::use_memory`], or with the first jobs.
    #[must_use]
    pub fn over(engine: Box<dyn Engine>, processor: Option<usize>) -> Self {
        Self::new(engine, processor, None)
    }

    /// The same, but a thread drives the engine only while `aside` wants that, and else the worker does,
    /// through no ring. It changes hands when it has no job: until then it takes none. What the drivers need
    /// for it is noted there.
    #[must_use]
    pub fn by_choice(engine: Box<dyn Engine>, processor: Option<usize>, aside: Arc<Aside>) -> Self {
        Self::new(engine, processor, Some(aside))
    }

    fn new(engine: Box<dyn Engine>, processor: Option<usize>, aside: Option<Arc<Aside>>) -> Self {
        let known = |suite| Some((suite, engine.capability(suite)?, engine.profile(suite)));
        let suites: Vec<_> = Suite::every().filter_map(known).collect();
        let wanted =
            |profile: &Profile| profile.depth_jobs.saturating_mul(profile.under_way.saturating_add(1));
        let most = suites.iter().map(|(_, _, profile)| wanted(profile)).max().unwrap_or(0);
        let most = most.clamp(JOBS_LEAST, JOBS_MOST);
        let max_keys = suites.iter().map(|(_, capability, _)| capability.max_keys).min().unwrap_or(0);
        let count = most.div_ceil(SLOT_JOBS) + SPARE_SLOTS;
        let (slots, for_device) = ring((0..count).map(|_| Slot::new()));
        let (for_worker, results) = ring((0..count).map(|_| Ended::with_capacity(SLOT_JOBS)));
        let (told, shared) = (Arc::<Told>::default(), Arc::new(Shared::new(most)));
        Self {
            name: engine.name(),
            description: engine.description(),
            suites,
            preparer: engine.preparer(),
            keys: KeyTable::new(max_keys),
            slots: Some(slots),
            results,
            next: Slot::new(),
            flush_is_due: false,
            is_unflushed: false,
            in_flight: 0,
            most,
            told: Arc::clone(&told),
            shared: Arc::clone(&shared),
            watch: Watch::new(engine.reclaims(), most),
            processor,
            aside: aside.clone(),
            hand: ByHand::default(),
            start: Some(Box::new(Served {
                device: Device::new(engine, shared, told, aside),
                slots: for_device,
                results: for_worker,
            })),
            thread: None,
            spawn,
            is_told: false,
            recalled: None,
            patience: PATIENCE,
            is_lost: false,
        }
    }

    /// Looks at a thread that has jobs and gives none back, or takes none, and takes them back if it is
    /// stuck; whether it is.
    fn is_stuck(&mut self) -> bool {
        if self.start.is_some() || self.watch.reclaims.is_none() || self.has_no_thread() {
            return false;
        }
        let seen = self.watch.look(Instant::now(), self.told.turns());
        if seen != Seen::Moves && self.in_flight > self.watch.returned() {
            self.take_jobs_back();
        }
        if seen == Seen::Lost {
            self.is_lost = true;
            self.next.changes.clear();
            tracing::error!(
                "the thread of engine {} does not come out of a call and is out of service until a restart",
                self.name
            );
        }
        seen != Seen::Moves
    }

    /// Takes back what the thread has in no call.
    pub(crate) fn take_jobs_back(&mut self) {
        let Self { watch, shared, results, slots, next, .. } = self;
        watch.take_back(shared, results, (slots.as_mut(), next));
    }

    fn of(&self, suite: Suite) -> Option<&(Suite, Capability, Profile)> {
        self.suites.iter().find(|(known, ..)| *known == suite)
    }

    /// Starts the thread, once. The engine is its own only when it is there.
    fn start(&mut self) {
        if self.start.is_none() {
            return;
        }
        let (hand, received) = channel();
        match (self.spawn)(thread_name(self.name), self.processor, received) {
            Ok(thread) => {
                self.slots.iter_mut().for_each(|slots| slots.wakes(thread.thread().clone()));
                self.thread = Some(thread);
                self.is_told = false;
                // A thread that is gone already has abandoned the ring with what it did not receive.
                self.start.take().into_iter().for_each(|start| drop(hand.send(start)));
            }
            Err(error) => self.goes_on_without(&error),
        }
    }

    /// The thread does not start. The worker keeps the engine, if it may, and wants none until the next
    /// change.
    fn goes_on_without(&mut self, error: &io::Error) {
        if !std::mem::replace(&mut self.is_told, true) {
            tracing::error!("engine {} goes without its thread: {error}", self.name);
        }
        match &self.aside {
            Some(aside) => aside.want(false),
            None => (self.start, self.is_lost) = (None, true),
        }
    }

    /// Whether nobody drives the engine any more.
    fn has_no_thread(&self) -> bool {
        // The last for a thread that has ended in a panic of which it could not tell.
        self.is_lost
            || self.told.is_broken.load(Ordering::Acquire)
            || self.slots.as_ref().is_some_and(Producer::is_abandoned)
    }

    /// The engine, if the worker drives it.
    fn here(&mut self) -> Option<&mut Served> {
        self.start.as_deref_mut().filter(|_| self.aside.is_some())
    }

    /// Has the engine change hands, if that is wanted and it has no job; whether it is on its way, and takes
    /// none.
    fn changes_hands(&mut self) -> bool {
        if self.has_no_thread() {
            // Keys that were to follow go nowhere.
            self.next.changes.clear();
            return false;
        }
        if self.recalled.is_some() {
            return self.is_on_its_way();
        }
        let wants_thread = self.aside.as_ref().is_none_or(|aside| aside.is_wanted());
        let has_thread = self.start.is_none();
        if wants_thread == has_thread {
            return false;
        }
        if self.in_flight > 0 {
            return true;
        }
        if wants_thread {
            self.start();
        } else {
            // Never with jobs, later, if there is no room now.
            self.next.recalls = true;
            if !self.publish() {
                self.next.recalls = false;
            }
        }
        !wants_thread
    }

    /// Whether a recalled engine is on its way. One that hangs has no job that would be overdue, so that
    /// it is given up here, and with it the keys that were to follow.
    fn is_on_its_way(&mut self) -> bool {
        if self.take_back() {
            return false;
        }
        let done = self.told.steps.load(Ordering::Relaxed);
        if let Some(Recalled { looked, waited, steps }) = &mut self.recalled {
            let has_moved = std::mem::replace(steps, done) != done;
            *waited = if has_moved { Duration::ZERO } else { *waited };
            *waited += looked.elapsed().min(self.patience / LOOKS);
            *looked = Instant::now();
            self.is_lost = !has_moved && *waited >= self.patience && self.told.gives_up();
        }
        if self.is_lost {
            tracing::error!(
                "engine {} does not come back from its thread and is out of service until a restart",
                self.name
            );
            self.next.changes.clear();
        }
        !self.is_lost
    }

    /// Takes the engine back from a thread that has ended as it was told; whether it has.
    fn take_back(&mut self) -> bool {
        let may = self.in_flight == 0;
        let Some(thread) = self.thread.take_if(|thread| may && thread.is_finished()) else { return false };
        let Self { next, start, .. } = self;
        *start = thread.join().ok().flatten().map(Box::new);
        match start {
            Some(here) => next.changes.drain(..).for_each(|change| ByHand::follow(&mut here.device, change)),
            // It has panicked.
            None => self.is_lost = true,
        }
        self.recalled = None;
        self.told.has_come_back();
        true
    }

    /// Publishes what was gathered, if there is room; whether nothing is left then. A flush behind jobs that
    /// were published without it has a slot of its own.
    fn publish(&mut self) -> bool {
        if self.next.is_empty() && !self.flush_is_due {
            return true;
        }
        if self.recalled.is_some() {
            return false;
        }
        let Self { slots: Some(slots), next, .. } = self else { return false };
        next.flushes = self.flush_is_due;
        let recalls = next.recalls;
        let is_published = slots.publish(|slot| next.move_to(slot));
        if is_published {
            let steps = self.told.steps.load(Ordering::Relaxed);
            self.recalled =
                recalls.then(|| Recalled { looked: Instant::now(), waited: Duration::ZERO, steps });
            self.is_unflushed &= !self.flush_is_due;
            self.flush_is_due = false;
            slots.wake();
        }
        is_published
    }

    /// Has the device thread follow a change of keys: with the last slot, if that was not taken, or with one
    /// of its own. If neither is possible jobs are gathered or under way, and a poll sends it.
    fn tell(&mut self, change: KeyChange) {
        if self.has_no_thread() {
            return;
        }
        if self.recalled.is_some() {
            self.take_back();
        }
        if let Some(here) = self.here() {
            return ByHand::follow(&mut here.device, change);
        }
        let mut change = Some(change);
        if self.next.is_empty()
            && self.recalled.is_none()
            && let Some(slots) = &mut self.slots
        {
            slots.amend(|slot| {
                if !slot.is_taken {
                    slot.changes.extend(change.take());
                }
                !slot.is_taken
            });
        }
        if let Some(change) = change {
            self.next.changes.push(change);
            self.publish();
        }
    }

    /// A new key's id, and its way to the inner engine.
    fn add(&mut self, suite: Suite, key: NewKey) -> Result<KeyId, EngineError> {
        let name = self.name;
        self.of(suite).ok_or(EngineError::Unsupported { engine: name, suite })?;
        if self.has_no_thread() {
            let reason = "its thread is out of service".to_owned();
            return Err(EngineError::KeyRefused { engine: name, reason });
        }
        let id = self.keys.insert(name, suite)?;
        self.tell(KeyChange::Install(id, key));
        Ok(id)
    }
}

impl Drop for DeviceThread {
    fn drop(&mut self) {
        self.slots = None;
        let Some(thread) = self.thread.take() else { return };
        let began = Instant::now();
        while !thread.is_finished() {
            if began.elapsed() > PATIENCE {
                tracing::error!("the thread of engine {} does not end and is left", self.name);
                return;
            }
            yield_now();
        }
        let _ = thread.join();
    }
}

impl Engine for DeviceThread {
    fn name(&self) -> &'static str {
        self.name
    }

    fn description(&self) -> String {
        let broken = if self.is_out_of_service() { " (out of service)" } else { "" };
        let is_here = self.aside.is_some() && self.start.is_some();
        let place = if is_here { "" } else { ", on a device thread" };
        format!("{}{place}{broken}", self.description)
    }

    fn capability(&self, suite: Suite) -> Option<Capability> {
        self.of(suite).map(|(_, capability, _)| *capability)
    }

    fn install(&mut self, key: &KeyMaterial, direction: Direction) -> Result<KeyId, EngineError> {
        self.add(key.suite(), NewKey::Material(Box::new(key.clone()), direction))
    }

    fn preparer(&self) -> Option<Arc<dyn KeyPreparer>> {
        let preparer = Arc::clone(self.preparer.as_ref()?);
        Some(Arc::new(Preparer(preparer)))
    }

    fn link(&mut self, key: PreparedKey) -> Result<KeyId, EngineError> {
        let Prepared { suite, key } = key.into_form(self.name)?;
        self.add(suite, NewKey::Prepared(key))
    }

    fn take_refused(&mut self) -> Option<KeyId> {
        // One that is gone by now is nobody's.
        while let Some(key) = self.told.take_refused() {
            if self.keys.remove(key).is_some() {
                return Some(key);
            }
        }
        None
    }

    fn remove(&mut self, key: KeyId) {
        if self.keys.remove(key).is_some() {
            self.tell(KeyChange::Remove(key));
        }
    }

    fn use_memory(&mut self, region: &Region) {
        if let Some(engine) = self.start.as_mut().and_then(|start| start.device.engine_mut()) {
            engine.use_memory(region);
        }
        self.changes_hands();
    }

    fn submit(&mut self, jobs: &mut [Job]) -> usize {
        if self.changes_hands() {
            return 0;
        }
        if self.has_no_thread() {
            jobs.iter_mut().for_each(|job| job.status = JobStatus::Fault);
            return jobs.len();
        }
        if let (Some(here), Some(aside)) = (&mut self.start, &self.aside) {
            let most = jobs.len().min(self.most.saturating_sub(self.in_flight));
            let Some(jobs) = jobs.get_mut(..most) else { return 0 };
            let (taken, kept) = self.hand.submit(&mut here.device, jobs, (self.in_flight, aside));
            self.in_flight += kept;
            self.is_unflushed |= kept > 0;
            return taken;
        }
        // None waits for a device that is late.
        if self.watch.is_stuck() && self.is_stuck() || self.watch.rests() {
            return 0;
        }
        if self.in_flight == 0 {
            self.watch.begin();
        }
        let mut taken = 0;
        for job in jobs {
            // Changes of keys come after the jobs of their slot.
            let is_full = self.next.jobs.len() == SLOT_JOBS || !self.next.changes.is_empty();
            if self.in_flight == self.most || is_full && !self.publish() {
                break;
            }
            if self.keys.get(job.key).is_none() {
                job.status = JobStatus::Fault;
            } else {
                self.next.jobs.push(job.take());
                self.in_flight += 1;
                self.is_unflushed = true;
            }
            taken += 1;
        }
        taken
    }

    fn is_resting(&mut self) -> bool {
        if self.watch.is_stuck() {
            self.is_stuck();
        }
        let here = self.start.as_mut().and_then(|start| start.device.engine_mut());
        here.is_some_and(|engine| engine.is_resting()) | self.changes_hands()
    }

    fn is_out_of_service(&self) -> bool {
        let here = self.start.as_ref().and_then(|start| start.device.engine.as_ref());
        self.has_no_thread()
            || self.told.is_out_of_service()
            || here.is_some_and(|engine| engine.is_out_of_service())
    }

    fn flush(&mut self) {
        if let (Some(here), Some(aside)) = (&mut self.start, &self.aside) {
            if std::mem::take(&mut self.is_unflushed) {
                ByHand::flush(&mut here.device, aside);
            }
            return;
        }
        self.flush_is_due |= self.is_unflushed;
        self.publish();
    }

    fn profile(&self, suite: Suite) -> Profile {
        let known = self.of(suite).map_or_else(Profile::default, |(_, _, profile)| *profile);
        let under_way = self.told.under_way(known.under_way);
        Profile { latency_ns: known.latency_ns.saturating_add(HANDOVER_NS), under_way, ..known }
    }

    fn poll(&mut self, done: &mut Vec<Job>, max: usize) {
        if self.flush_is_due || !self.next.changes.is_empty() {
            self.publish();
        }
        if self.in_flight == 0 {
            return;
        }
        if let (Some(here), Some(aside)) = (&mut self.start, &self.aside) {
            let ended = self.hand.poll(&mut here.device, (done, max), (self.in_flight, aside));
            self.in_flight = self.in_flight.saturating_sub(ended);
            return;
        }
        let (mut left, mut faults) = (max, MOST_FAULTS);
        while left > 0
            && faults >= SLOT_JOBS
            && self.results.take(|slot| {
                let count = slot.len().min(left);
                faults -= slot.iter().take(count).filter(|job| job.status == JobStatus::Fault).count();
                done.extend(slot.drain(..count));
                left -= count;
                slot.is_empty()
            })
        {}
        left -= self.watch.give_back(done, left.min(faults));
        self.in_flight = self.in_flight.saturating_sub(max - left);
        if left < max {
            self.watch.begin();
        } else if self.in_flight > 0 {
            self.is_stuck();
        }
    }

    fn in_flight(&self) -> usize {
        self.in_flight
    }
}

fn spawn(
    name: String,
    processor: Option<usize>,
    received: Receiver<Box<Served>>,
) -> io::Result<JoinHandle<Option<Served>>> {
    Builder::new().name(name).spawn(move || {
        processor.into_iter().for_each(bind);
        let Served { device, slots, results } = *received.recv().ok()?;
        device.serve(slots, results)
    })
}

/// Binds this thread to a processor.
fn bind(processor: usize) {
    let mut only = CpuSet::new();
    if processor < CpuSet::MAX_CPU {
        only.set(processor);
    }
    if let Err(error) = sched_setaffinity(None, &only) {
        tracing::warn!(
            "a device thread is not bound to processor {processor}: {error}: under systemd this needs the drop-in testudo-workers.conf"
        );
    }
}
