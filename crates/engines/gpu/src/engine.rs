//! The safe engine.

mod measure;
mod recall;

pub use measure::LaunchTimes;

use crate::NAME;
use crate::batch::Batch;
use crate::checks::Checks;
use crate::device::{Device, Sizes};
use crate::parts::Parts;
use crate::place::{self, KeyPlace, Unplaced};
use crate::under_way::{Jobs, State, UnderWay};
use crate::work::{RawKey, Work};
use recall::Recall;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};
use testudo_crypto::{
    Capability, Direction, Engine, EngineError, Job, JobStatus, KeyFrame, KeyId, KeyMaterial, KeyTable,
    MOST_FAULTS, Profile, Reclaim, Suite,
};
use zeroize::Zeroizing;

/// The longest text: more than an IP datagram can carry.
pub(crate) const MAX_TEXT_BYTES: usize = 65_535;
/// Batches that the device has at a time: while one is computed another one is copied.
pub(crate) const UNDER_WAY: usize = 2;
/// How long the first job of a batch may wait for its end, before the launch and after it. The gateway waits
/// a second, and gives the job up then: before, the next engine can still do it.
const PATIENCE: Duration = Duration::from_millis(750);
/// How often somebody looks in that time at least: of the time between two looks no more than such a part
/// counts. A worker without a processor, or a machine that was stopped, says nothing of the device.
const LOOKS: u32 = 16;
/// But so much counts whatever the patience: a device thread that waits for a device looks each 10 ms.
const LEAST_LOOK: Duration = Duration::from_micros(12_500);
/// What a key takes that is expanded, by a lane of its own in the queue of batches. So much longer a batch
/// may wait for each that is not expanded yet when it is launched; and for all of them, so that it is still
/// less than a second, or a part of its patience where other devices could do it.
const KEY_TIME: Duration = Duration::from_micros(100);
const MOST_FOR_KEYS: Duration = Duration::from_millis(200);
const PART_FOR_KEYS: u32 = 5;
/// What is expected of a device before anything was measured: how long a launch is away, what it costs, and
/// what a byte does on its way there and back (PCIe 4.0, 16 lanes).
const LATENCY_NS: u64 = 50_000;
const LAUNCH_NS: u64 = 20_000;
const BUS_PS: u64 = 80;

/// A key that the device holds.
struct Key {
    work: Work,
    /// The known answer of its kind.
    check: Option<usize>,
    slot: u32,
    salt: Box<Zeroizing<[u8; 4]>>,
    frame: Option<KeyFrame>,
}

impl Key {
    fn place(&self) -> KeyPlace {
        KeyPlace { salt: **self.salt, slot: self.slot, frame: self.frame }
    }
}

/// The engine on one device.
pub(crate) struct GpuEngine {
    device: Box<dyn Device>,
    keys: KeyTable<Key>,
    /// Slots of keys that are in no use.
    free_slots: Vec<u32>,
    /// Batches that are empty.
    free: Vec<Batch>,
    /// The batch that gathers jobs.
    open: Option<Batch>,
    /// Batches that are full or flushed, with the device, or whose jobs are being given back: the first.
    under_way: VecDeque<Batch>,
    /// So many of the first have ended.
    ended: usize,
    /// The jobs of all of these, which others may take back.
    jobs: Arc<UnderWay>,
    /// They were taken back, and the device has not ended all batches.
    rests: bool,
    recall: Recall,
    checks: Checks,
    mark: u32,
    /// Why the device is out of service.
    broken: Option<String>,
    patience: Duration,
    /// When the worker looked last.
    looked: Instant,
    /// Until when the keys that the device was given are expanded, if it had nothing else to do.
    keys_until: Instant,
    /// How long a batch may wait for keys at most.
    most_for_keys: Duration,
    parts: Parts,
    /// Jobs of a batch at most.
    batch_jobs: usize,
    writes_frames: bool,
}

impl GpuEngine {
    /// On a device that is open.
    pub(crate) fn over(device: Box<dyn Device>, sizes: Sizes) -> Self {
        let slots = u32::try_from(sizes.keys.min(KeyTable::<Key>::MAX_KEYS)).unwrap_or(0);
        Self {
            recall: Recall::of(device.as_ref()),
            checks: Checks::new(u32::try_from(sizes.keys).unwrap_or(u32::MAX)),
            device,
            keys: KeyTable::new(sizes.keys),
            free_slots: (0..slots).rev().collect(),
            free: (0..sizes.batches).rev().map(|index| Batch::new(index, sizes.batch_jobs)).collect(),
            open: None,
            under_way: VecDeque::with_capacity(sizes.batches),
            ended: 0,
            jobs: Arc::new(UnderWay::new(sizes.batches, sizes.batch_jobs)),
            rests: false,
            mark: 0,
            broken: None,
            patience: PATIENCE,
            looked: Instant::now(),
            keys_until: Instant::now(),
            most_for_keys: MOST_FOR_KEYS,
            parts: Parts::ByLength,
            batch_jobs: sizes.batch_jobs,
            writes_frames: false,
        }
    }

    /// How long the first job of a batch may wait, where other devices could do it. Who waits for longer than
    /// a gateway does is none, and gets its jobs when they have ended.
    pub(crate) fn set_patience(&mut self, patience: Duration) {
        self.patience = patience;
        if patience > PATIENCE {
            self.recall.never();
        }
        self.most_for_keys = MOST_FOR_KEYS.min(patience / PART_FOR_KEYS);
    }

    /// The device is none that could be right: no known answers ride with its packets.
    pub(crate) fn never_check(&mut self) {
        self.checks.switch_off();
    }

    /// Whether frames may be left to the kernel.
    pub(crate) fn set_writes_frames(&mut self, does: bool) {
        self.writes_frames = does;
    }

    /// By what lanes are given to packets.
    #[cfg(test)]
    pub(crate) fn set_parts(&mut self, parts: Parts) {
        self.parts = parts;
    }

    /// When it was looked at last.
    #[cfg(test)]
    pub(crate) fn set_looked(&mut self, at: Instant) {
        self.looked = at;
    }

    /// Until when keys are expanded.
    #[cfg(test)]
    pub(crate) fn set_keys_until(&mut self, until: Instant) {
        self.keys_until = until;
    }

    /// Has a known answer of each kind ride with the next job of that.
    #[cfg(test)]
    pub(crate) fn check_all(&mut self) {
        self.checks.doubt_all();
    }

    /// Since when the batch that was launched last waits.
    #[cfg(test)]
    pub(crate) fn last_waits_since(&self) -> Option<Instant> {
        self.under_way.back().map(|batch| batch.since)
    }

    /// Whether the device is out of service.
    pub(crate) const fn is_broken(&self) -> bool {
        self.broken.is_some()
    }

    /// The jobs that it has, for who may take them back; a processor as a device has them as long as it
    /// takes.
    pub(crate) fn under_way(&self) -> Option<Arc<UnderWay>> {
        (!self.device.is_processor()).then(|| Arc::clone(&self.jobs))
    }

    /// Takes the device out of service, once.
    #[cold]
    pub(crate) fn break_down(&mut self, reason: String) {
        if self.broken.is_none() {
            tracing::error!("engine {NAME} is out of service until a restart: {reason}");
            self.broken = Some(reason);
            self.jobs.set_state(State::OutOfService);
        }
    }

    /// Does something with the device, unless that is out of service.
    fn with_device(&mut self, what: impl FnOnce(&mut dyn Device) -> Result<(), String>) -> Option<()> {
        if self.broken.is_some() {
            return None;
        }
        what(self.device.as_mut()).map_err(|reason| self.break_down(reason)).ok()
    }

    /// Ends the batch that gathers jobs, if it has any: it is launched next.
    fn close(&mut self) {
        let closed = self.open.take_if(|batch| !batch.is_empty());
        self.under_way.extend(closed);
    }

    /// Launches the batches that are closed. No job is in anybody's hands meanwhile: a driver may not return,
    /// and another thread takes back what is [under way](crate::under_way).
    fn launch(&mut self) {
        let jobs = Arc::clone(&self.jobs);
        self.follow_reclaim(&mut jobs.lock());
        while !self.rests
            && let Some(at) = self.under_way.iter().position(|batch| !batch.is_launched)
        {
            self.mark = self.mark.wrapping_add(1).max(1);
            let (mark, parts, for_keys) = (self.mark, self.parts, self.for_keys(Instant::now()));
            let before = at.checked_sub(1).and_then(|before| self.under_way.get(before));
            let behind = before.map(|batch| batch.steps);
            let Self { under_way, device, broken, .. } = self;
            let Some(batch) = under_way.get_mut(at) else { return };
            (batch.is_launched, batch.for_keys, batch.behind) = (true, for_keys, behind);
            if broken.is_none()
                && let Err(reason) = launch(batch, device.as_mut(), mark, parts)
            {
                self.break_down(reason);
            }
        }
    }

    /// The batch that gathers jobs; `None` if none is free.
    fn open_batch(&mut self) -> Option<&mut Batch> {
        if self.open.is_none() {
            self.open = self.free.pop();
        }
        self.open.as_mut()
    }

    /// Puts one job into the batch that gathers; `None`, with the job untouched, if there is no room now.
    fn take(&mut self, job: &mut Job, jobs: &mut Jobs) -> Option<()> {
        // A second batch, because the first may have too little room for this job.
        for _ in 0..2 {
            self.open_batch()?;
            let Self { open: Some(batch), device, keys, checks, .. } = self else { return None };
            let (key, index) = (keys.get(job.key), batch.index);
            let Some(key) = key.filter(|key| is_ours(job, &key.work)) else {
                job.status = JobStatus::Fault;
                return Some(());
            };
            let (_, arena) = device.memory(index)?;
            match place::lay_out(job, &key.work, key.place(), arena, batch.arena_bytes) {
                Ok(mut placed) => {
                    placed.check = key.check;
                    batch.push(placed);
                    jobs.push(index, job.take());
                    checks.count(key.check, batch, arena);
                    if batch.is_full() {
                        self.close();
                    }
                    return Some(());
                }
                Err(Unplaced::NoRoom) if !batch.is_empty() => self.close(),
                Err(Unplaced::NoRoom | Unplaced::Malformed) => {
                    job.status = JobStatus::Fault;
                    return Some(());
                }
            }
        }
        None
    }

    /// Puts a prefix of jobs into batches; returns its length.
    fn gather(&mut self, submitted: &mut [Job]) -> usize {
        let jobs = Arc::clone(&self.jobs);
        let mut jobs = jobs.lock();
        self.follow_reclaim(&mut jobs);
        if self.rests {
            return 0;
        }
        let count = submitted.len();
        submitted.iter_mut().position(|job| self.take(job, &mut jobs).is_none()).unwrap_or(count)
    }

    /// The device is given a key, which is expanded after those before.
    pub(crate) fn expands(&mut self, now: Instant) {
        self.keys_until = self.keys_until.max(now) + KEY_TIME;
    }

    /// How much longer a batch may wait that is launched now, for the keys before it.
    pub(crate) fn for_keys(&self, now: Instant) -> Duration {
        self.keys_until.saturating_duration_since(now).min(self.most_for_keys)
    }

    /// Whether it has no batch, and is not to see when its device has ended one.
    fn is_idle(&self) -> bool {
        self.under_way.is_empty() && self.open.is_none() && !self.rests
    }

    /// Does what is to be done with the device before jobs are [given back](Self::give_back).
    pub(crate) fn attend(&mut self) {
        if self.is_idle() {
            return;
        }
        self.look(Instant::now());
        self.launch();
        self.ask_device();
    }

    /// Gives back up to `max` jobs of batches that have ended, or will not, with up to `faults` faults, which
    /// are counted down.
    pub(crate) fn give_back(&mut self, done: &mut Vec<Job>, max: usize, faults: &mut usize) {
        if self.is_idle() {
            return;
        }
        let jobs = Arc::clone(&self.jobs);
        let mut jobs = jobs.lock();
        self.follow_reclaim(&mut jobs);
        let next = std::iter::from_fn(|| {
            if *faults == 0 {
                return None;
            }
            let job = self.next_ended(&mut jobs)?;
            *faults -= usize::from(job.status == JobStatus::Fault);
            Some(job)
        });
        done.extend(next.take(max));
        self.free_ended(&mut jobs);
    }

    /// The next job of the first batch that has ended, or will not.
    fn next_ended(&mut self, jobs: &mut Jobs) -> Option<Job> {
        let will_not = self.broken.is_some() || self.rests;
        let ended = if will_not { self.under_way.len() } else { self.ended };
        let batch = self.under_way.iter_mut().take(ended).find(|batch| batch.left() > 0)?;
        let (mark, index) = (batch.mark, batch.index);
        let placed = batch.pop()?;
        let mut job = jobs.pop(index)?;
        job.status = JobStatus::Fault;
        if !will_not && let Some((_, arena)) = self.device.memory(index) {
            match place::is_marked(&placed, arena, mark) {
                true => job.status = place::finish(&mut job, &placed, arena),
                false => self.break_down("the device gave a batch back without having done it".to_owned()),
            }
            if job.status == JobStatus::AuthenticationFailed {
                self.checks.doubt(placed.check);
            }
        }
        Some(job)
    }

    /// Compares the known answers of a batch that has just ended.
    fn check(&mut self, at: usize) {
        let Self { under_way, device, checks, .. } = self;
        let Some(batch) = under_way.get(at).filter(|batch| batch.check_count() > 0) else { return };
        let wrong = device.memory(batch.index).and_then(|(_, arena)| checks.wrong(batch, arena));
        wrong.into_iter().for_each(|reason| self.break_down(reason));
    }

    /// Which known answer is of a key's kind; its own key is expanded with the first of these.
    fn check_of(&mut self, work: &Work) -> Option<usize> {
        if let Some(new) = self.checks.missing(work) {
            self.with_device(|device| device.expand(new.slot(), new.kind(), &new.key))?;
            self.expands(Instant::now());
            self.checks.add(new);
        }
        self.checks.of(work)
    }
}

/// Plans a batch and gives it to the device.
fn launch(batch: &mut Batch, device: &mut dyn Device, mark: u32, parts: Parts) -> Result<(), String> {
    let lanes = device.lanes();
    let (plan, _) = device.memory(batch.index).ok_or("a batch is with the device already")?;
    let launch = batch.plan(mark, lanes, parts, plan).ok_or("a plan is too long")?;
    device.launch(batch.index, launch)
}

/// Whether a job is in its key's direction, and not too long.
fn is_ours(job: &Job, work: &Work) -> bool {
    job.direction == work.direction && job.text_bytes as usize <= MAX_TEXT_BYTES
}

impl Engine for GpuEngine {
    fn name(&self) -> &'static str {
        NAME
    }

    fn description(&self) -> String {
        match &self.broken {
            None => self.device.description(),
            Some(reason) => format!("{}, out of service: {reason}", self.device.description()),
        }
    }

    fn capability(&self, suite: Suite) -> Option<Capability> {
        Work::of(suite, Direction::Seal)?;
        Some(Capability {
            max_text_bytes: MAX_TEXT_BYTES,
            max_keys: self.keys.limit(),
            takes_chains: false,
            writes_frames: self.writes_frames && !suite.is_for_vpe(),
        })
    }

    fn install(&mut self, key: &KeyMaterial, direction: Direction) -> Result<KeyId, EngineError> {
        let suite = key.suite();
        self.keys.check_room(NAME)?;
        let work = Work::of(suite, direction).ok_or(EngineError::Unsupported { engine: NAME, suite })?;
        let refused = |reason: &str| EngineError::KeyRefused { engine: NAME, reason: reason.to_owned() };
        let raw = RawKey::new(key).ok_or_else(|| refused("it is too long"))?;
        let slot = self.free_slots.last().copied();
        let slot = slot.ok_or(EngineError::Full { engine: NAME, limit: self.keys.limit() })?;
        let expanded = self.with_device(|device| device.expand(slot, work.kind, &raw));
        expanded.ok_or_else(|| refused("the device is out of service"))?;
        self.expands(Instant::now());
        let check = self.check_of(&work);
        if self.is_broken() {
            return Err(refused("the device is out of service"));
        }
        let salt = Box::new(key.nonce_salt());
        let id = self.keys.insert(NAME, Key { work, check, slot, salt, frame: key.frame() })?;
        self.free_slots.pop();
        Ok(id)
    }

    fn remove(&mut self, key: KeyId) {
        let Some(Key { slot, .. }) = self.keys.remove(key) else { return };
        // Jobs under it that wait go before the key does.
        self.close();
        self.launch();
        self.with_device(|device| device.wipe(slot));
        self.free_slots.push(slot);
    }

    fn submit(&mut self, jobs: &mut [Job]) -> usize {
        self.see_to_rest();
        if self.broken.is_some() {
            jobs.iter_mut().for_each(|job| job.status = JobStatus::Fault);
            return jobs.len();
        }
        let taken = self.gather(jobs);
        // What is not taken is in the caller's hands, where nobody else finds it: then the flush launches.
        if taken == jobs.len() {
            self.launch();
        }
        taken
    }

    /// It takes no job while its device is late, but none is to wait for that: it has no room then.
    fn is_resting(&mut self) -> bool {
        self.see_to_rest();
        false
    }

    fn is_out_of_service(&self) -> bool {
        self.is_broken()
    }

    fn flush(&mut self) {
        self.close();
        self.launch();
    }

    fn profile(&self, suite: Suite) -> Profile {
        let steps = Work::of(suite, Direction::Seal).map_or(0, |work| work.steps_per_byte());
        Profile {
            fixed_ns: LAUNCH_NS,
            byte_ps: BUS_PS + steps,
            latency_ns: LATENCY_NS,
            depth_jobs: self.batch_jobs.min(Profile::MAX_DEPTH_JOBS),
            under_way: UNDER_WAY,
        }
    }

    fn poll(&mut self, done: &mut Vec<Job>, max: usize) {
        // All calls of the driver come before the first job is in hand.
        self.attend();
        self.give_back(done, max, &mut { MOST_FAULTS });
    }

    fn reclaims(&self) -> Option<Arc<dyn Reclaim>> {
        self.under_way().map(|jobs| jobs as _)
    }

    fn in_flight(&self) -> usize {
        self.under_way.iter().chain(&self.open).map(Batch::left).sum()
    }
}
