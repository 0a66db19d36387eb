//! The safe engine.

use crate::NAME;
use crate::config::CryptodevConfig;
use crate::device::{self, Device, Session, Wanted};
use crate::place::{self, Ended, Laid};
use crate::raw::{self, Done, MAX_BURST, Operation, ended};
use crate::slots::{Held, Slots};
use crate::work::{Layout, Plan, Variant};
use arrayvec::ArrayVec;
use std::ffi::CString;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};
use testudo_crypto::{
    Capability, Direction, Engine, EngineError, Job, JobStatus, KeyId, KeyMaterial, KeyTable, Profile, Suite,
};
use testudo_packet::Region;
use testudo_port_dpdk::{Eal, Plugin, enter_thread};
use zeroize::Zeroizing;

/// Jobs that a device wants at a time: as many as software has lanes for.
const PREFERRED_BURST: usize = 16;
/// So many operations that end in error, or are given back without having been handed over, are the last.
const MAX_ERRORS: u32 = 16;
/// What the description of a device ends with that computes on the processor of the thread that asks it.
const IN_SOFTWARE: &str = ", in software";
/// How long a device that is closed may take for what it still has.
const LAST_WAIT: Duration = Duration::from_millis(500);

/// A key, and its sessions so far.
struct Key {
    material: KeyMaterial,
    plan: Plan,
    salt: Zeroizing<[u8; 4]>,
    direction: Direction,
    /// By [`Variant`].
    sessions: [Option<Session>; 2],
    /// Jobs under it that the device has.
    in_flight: u32,
}

/// The engine on one device of DPDK's.
pub struct CryptodevEngine {
    /// Before the packets that it may have: it is closed first.
    device: Device,
    slots: Slots,
    keys: KeyTable<Key>,
    /// Removed, but still needed by jobs in flight.
    leaving: Vec<(KeyId, Key)>,
    /// What the device does.
    plans: Vec<Plan>,
    /// For tables and metrics: the engine's name and the device's.
    name: &'static str,
    description: String,
    eal: Option<Eal>,
    /// Jobs of each queue pair, and how many it may have.
    waiting: Vec<usize>,
    depth: usize,
    next_pair: u16,
    polled: u16,
    /// Hardware reaches packets in these regions alone; others are copied.
    regions: Vec<std::ops::Range<usize>>,
    errors: u32,
}

impl CryptodevEngine {
    /// Opens a device. The caller has it compute known answers ([`testudo_crypto::self_test`]) before it is
    /// used.
    ///
    /// # Errors
    /// [`EngineError::Unavailable`]: plugin, DPDK or device are missing, or the device does nothing of ours.
    pub fn open(plugin: Plugin, config: &CryptodevConfig) -> Result<Self, EngineError> {
        let unavailable = |reason| EngineError::Unavailable { engine: NAME, reason };
        let table = device::table(&plugin).map_err(unavailable)?;
        let eal = Eal::start(plugin, &config.eal).map_err(|error| unavailable(error.to_string()))?;
        let wanted = wanted(config).map_err(unavailable)?;
        let asked = wanted.device.to_string_lossy().into_owned();
        let device = Device::open(table, &wanted).map_err(|errno| {
            let said = plugin.words(errno);
            unavailable(format!(
                "DPDK cannot open the device `{asked}` with {} queue pairs: {said}",
                wanted.queue_pairs
            ))
        })?;
        if !device.is_software() && !plugin.uses_virtual_addresses() {
            let needed = "needs physical addresses: turn the IOMMU on and bind it to vfio-pci";
            return Err(unavailable(format!("the device {asked} {needed}")));
        }
        let version = plugin.dpdk_version();
        Self::over(device, Some(eal), &format!("DPDK {version}")).map_err(unavailable)
    }

    /// On a device that is open.
    pub(crate) fn over(device: Device, eal: Option<Eal>, version: &str) -> Result<Self, String> {
        let plans: Vec<Plan> = Suite::measurable()
            .filter_map(Plan::of)
            .filter(|plan| plan.variants().iter().all(|variant| device.does(&plan.asked(*variant))))
            .collect();
        let (name, driver) = (device.name(), device.driver());
        if plans.is_empty() {
            return Err(format!("the device {name} (driver {driver}) does none of Testudo's suites"));
        }
        let place = if device.is_software() { IN_SOFTWARE } else { "" };
        let description = format!("{version}, {driver}, {} queue pairs{place}", device.queue_pairs);
        // A key may need two sessions.
        let keys = usize::try_from(device.sessions() / 2).unwrap_or(0);
        Ok(Self {
            slots: Slots::new(device.slots()),
            keys: KeyTable::new(keys),
            leaving: Vec::new(),
            plans,
            name: interned(format!("{NAME} ({name})")),
            description,
            eal,
            waiting: vec![0; usize::from(device.queue_pairs)],
            depth: device.slots() as usize / usize::from(device.queue_pairs.max(1)),
            next_pair: 0,
            polled: 0,
            regions: Vec::new(),
            errors: 0,
            device,
        })
    }

    /// Whether the device may have no more jobs.
    fn is_broken(&self) -> bool {
        self.errors >= MAX_ERRORS
    }

    /// Never less than before, however many come.
    fn note_errors(&mut self, errors: u32) {
        self.errors = self.errors.saturating_add(errors);
    }

    /// Whether the device reaches a job's packet where it is.
    fn reaches(&self, job: &Job) -> bool {
        let at = job.buffer.identity().unwrap_or(0);
        self.device.is_software() || self.regions.iter().any(|region| region.contains(&at))
    }

    /// Whether there is nothing to do: no text, under a cipher in counter mode without authentication.
    fn is_empty(&self, job: &mut Job) -> bool {
        let key = self.keys.get(job.key).filter(|key| key.direction == job.direction);
        key.is_some_and(|key| {
            let suite = key.plan.suite;
            let is_none = key.plan.layout == Layout::Ctr && !suite.authenticates();
            is_none && job.text_bytes == 0 && job.parts(suite).is_some()
        })
    }

    /// Lays a job out for a free slot; `None`, with the job untouched, if it is none of ours.
    fn lay_out(&mut self, job: &mut Job, slot: u32) -> Option<Laid> {
        let in_place = self.reaches(job);
        let longest = |key: &Key| key.plan.max_text_bytes(self.device.is_software());
        let key = self.keys.get_mut(job.key).filter(|key| key.direction == job.direction)?;
        if job.text_bytes as usize > longest(key) {
            return None;
        }
        let mut laid = place::lay_out(job, &key.plan, *key.salt, self.device.beside(slot), in_place)?;
        let index = laid.variant as usize;
        if key.sessions[index].is_none() {
            // Once for a key: most SAs never need a second one.
            let made = session(&mut self.device, &key.material, &key.plan, key.direction, laid.variant);
            let Ok(made) = made else {
                place::undo(job, &key.plan, &laid.before);
                return None;
            };
            key.sessions[index] = Some(made);
        }
        laid.operation.session = key.sessions[index].as_ref().map(Device::pointer)?;
        laid.operation.slot = slot;
        key.in_flight += 1;
        Some(laid)
    }

    /// Takes jobs from the front, as many as one burst has; returns how many.
    fn submit_burst(&mut self, jobs: &mut [Job]) -> usize {
        let mut operations: ArrayVec<Operation, MAX_BURST> = ArrayVec::new();
        let mut indices: ArrayVec<usize, MAX_BURST> = ArrayVec::new();
        let pair = self.next_pair;
        // A device may have touched a packet before it finds that it cannot take it: it is never asked to.
        let room = self.depth.saturating_sub(self.waiting[usize::from(pair)]).min(MAX_BURST);
        let mut seen = 0;
        for (index, job) in jobs.iter_mut().enumerate() {
            let Some(slot) = self.slots.next().filter(|_| operations.len() < room) else { break };
            seen = index + 1;
            if job.text_bytes == 0 && self.is_empty(job) {
                job.status = JobStatus::Done;
                continue;
            }
            match self.lay_out(job, slot) {
                Some(Laid { operation, before, .. }) => {
                    self.slots.hold(Held { job: job.take(), before, pair });
                    operations.push(operation);
                    indices.push(index);
                }
                None => job.status = JobStatus::Fault,
            }
        }
        // SAFETY: each slot was free, and is held now together with its packet's buffer, which nobody reaches
        // until `release` has taken it out again; sessions stay until no job in flight has their key.
        let taken = unsafe { self.device.submit(pair, &operations) };
        self.waiting[usize::from(pair)] += taken;
        self.next_pair = (pair + 1) % self.device.queue_pairs;
        let Some(first) = indices.get(taken).copied() else { return seen };
        self.take_back(jobs, &operations[taken..], &indices[taken..]);
        // What ended among them was not taken either.
        jobs[first..seen].iter_mut().for_each(|job| job.status = JobStatus::Pending);
        first
    }

    /// Gives jobs back to the caller that the device did not take, as they were.
    fn take_back(&mut self, jobs: &mut [Job], operations: &[Operation], indices: &[usize]) {
        for (operation, index) in operations.iter().zip(indices) {
            let Some(mut held) = self.slots.release(operation.slot) else { continue };
            if let Some(key) = self.keys.get_mut(held.job.key) {
                place::undo(&mut held.job, &key.plan, &held.before);
                key.in_flight -= 1;
            }
            jobs[*index] = held.job;
        }
    }

    /// Ends the job in a slot that the device gave back, unless it had none there.
    fn complete(&mut self, pair: u16, ended: Done) -> Option<Job> {
        let ended = Done { slot: ended.slot, ended: ended.ended };
        if ended.ended == raw::ended::NOT_YET {
            // Whatever this is, the device may still write to the packet.
            self.note_errors(1);
            return None;
        }
        let Some(mut held) = self.slots.release(ended.slot) else {
            self.note_errors(1);
            return None;
        };
        // By where it was handed over, whichever pair it came from.
        let waiting = &mut self.waiting[usize::from(held.pair)];
        *waiting = waiting.saturating_sub(1);
        self.note_errors(u32::from(held.pair != pair));
        let said = match ended.ended {
            ended::WELL => Ended::Well,
            ended::WRONG_ICV => Ended::WrongIcv,
            _ => Ended::InError,
        };
        let id = held.job.key;
        let leaving = self.leaving.iter_mut().find(|(key, _)| *key == id).map(|(_, key)| key);
        let Some(key) = self.keys.get_mut(id).or(leaving) else {
            held.job.status = JobStatus::AuthenticationFailed;
            return Some(held.job);
        };
        key.in_flight -= 1;
        let beside = self.device.beside(ended.slot);
        let is_right = place::finish(&mut held.job, &key.plan, &held.before, beside, said);
        self.note_errors(u32::from(!is_right));
        if !self.leaving.is_empty() {
            self.end_leaving();
        }
        Some(held.job)
    }

    /// Ends the sessions of removed keys that no job needs any more.
    fn end_leaving(&mut self) {
        let idle = |(_, key): &mut (KeyId, Key)| key.in_flight == 0;
        for (_, key) in self.leaving.extract_if(.., idle) {
            key.sessions.into_iter().flatten().for_each(|session| self.device.end(session));
        }
    }

    fn enter(&self) {
        if let Some(eal) = &self.eal {
            // DPDK knows 128 threads; one more works without its caches.
            let _unknown = enter_thread(eal.plugin());
        }
    }
}

/// A session for a variant of a key.
fn session(
    device: &mut Device,
    material: &KeyMaterial,
    plan: &Plan,
    direction: Direction,
    variant: Variant,
) -> Result<Session, testudo_port_dpdk::Errno> {
    let work = plan.work(material, direction, variant);
    // SAFETY: the pointers are to the keys of `material`, which have the lengths of its suite, as `work`
    // says.
    unsafe { device.session(&work) }
}

/// The device to be opened: a driver's name gets a number that no device has.
fn wanted(config: &CryptodevConfig) -> Result<Wanted, String> {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let (name, arguments) = match config.device.split_once(',') {
        Some((name, arguments)) => (name, format!(",{arguments}")),
        None => (config.device.as_str(), String::new()),
    };
    let is_driver = name.starts_with("crypto_") && !name.ends_with(|last: char| last.is_ascii_digit());
    let number = match is_driver {
        true => NUMBER.fetch_add(1, Ordering::Relaxed).to_string(),
        false => String::new(),
    };
    let device = CString::new(format!("{name}{number}{arguments}"));
    let device = device.map_err(|_| format!("`{name}` has a zero byte in it"))?;
    let sessions = config.keys.saturating_mul(2);
    Ok(Wanted { device, queue_pairs: config.queue_pairs, slots_per_pair: config.depth, sessions })
}

/// The text, for as long as the process runs; the same text once.
fn interned(text: String) -> &'static str {
    static KNOWN: Mutex<Vec<&'static str>> = Mutex::new(Vec::new());
    let mut known = KNOWN.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    if let Some(found) = known.iter().find(|found| **found == text) {
        return found;
    }
    known.push(text.leak());
    known[known.len() - 1]
}

impl Engine for CryptodevEngine {
    fn name(&self) -> &'static str {
        self.name
    }

    fn description(&self) -> String {
        self.description.clone()
    }

    fn capability(&self, suite: Suite) -> Option<Capability> {
        let plan = self.plans.iter().find(|plan| plan.suite == suite)?;
        let max_text_bytes = plan.max_text_bytes(self.device.is_software());
        Some(Capability {
            max_text_bytes,
            max_keys: self.keys.limit(),
            takes_chains: false,
            writes_frames: false,
        })
    }

    fn install(&mut self, key: &KeyMaterial, direction: Direction) -> Result<KeyId, EngineError> {
        self.keys.check_room(NAME)?;
        self.enter();
        let suite = key.suite();
        let plan = self.plans.iter().find(|plan| plan.suite == suite).copied();
        let plan = plan.ok_or(EngineError::Unsupported { engine: NAME, suite })?;
        let made = session(&mut self.device, key, &plan, direction, Variant::Usual);
        let made = made.map_err(|errno| {
            let plugin = self.eal.as_ref().map(Eal::plugin);
            let reason = plugin.map_or_else(|| errno.to_string(), |plugin| plugin.words(errno));
            EngineError::KeyRefused { engine: NAME, reason }
        })?;
        let (material, salt) = (key.clone(), key.nonce_salt());
        let sessions = [Some(made), None];
        self.keys.insert(NAME, Key { material, plan, salt, direction, sessions, in_flight: 0 })
    }

    fn remove(&mut self, key: KeyId) {
        if let Some(removed) = self.keys.remove(key) {
            self.leaving.push((key, removed));
            self.end_leaving();
        }
    }

    fn submit(&mut self, jobs: &mut [Job]) -> usize {
        self.enter();
        if self.is_broken() {
            jobs.iter_mut().for_each(|job| job.status = JobStatus::Fault);
            return jobs.len();
        }
        let mut done = 0;
        // Each pair twice: the first may be full, or take a part.
        for _ in 0..2 * self.device.queue_pairs {
            while done < jobs.len() {
                let burst = MAX_BURST.min(jobs.len() - done);
                let taken = self.submit_burst(&mut jobs[done..done + burst]);
                done += taken;
                if taken < burst {
                    break;
                }
            }
        }
        done
    }

    fn is_out_of_service(&self) -> bool {
        self.is_broken()
    }

    fn profile(&self, _: Suite) -> Profile {
        Profile::of_depth(PREFERRED_BURST)
    }

    fn poll(&mut self, done: &mut Vec<Job>, max: usize) {
        self.enter();
        let mut left = max;
        // The one after the last begins, or the later ones would wait where `max` is small.
        self.polled = (self.polled + 1) % self.device.queue_pairs;
        for nth in 0..self.device.queue_pairs {
            let pair = (self.polled + nth) % self.device.queue_pairs;
            while left > 0 && self.waiting[usize::from(pair)] > 0 {
                let mut ended = [Done { slot: u32::MAX, ended: 0 }; MAX_BURST];
                let room = left.min(MAX_BURST);
                let count = self.device.poll(pair, &mut ended[..room]);
                let jobs = ended[..count].iter().filter_map(|ended| self.complete(pair, *ended));
                let before = done.len();
                done.extend(jobs);
                left -= done.len() - before;
                // Software works while it is asked, and gives a few less than it has. What a broken device
                // gives may have no end.
                if count == 0 || self.is_broken() {
                    break;
                }
            }
        }
    }

    fn in_flight(&self) -> usize {
        self.slots.in_use()
    }

    fn use_memory(&mut self, region: &Region) {
        let (start, bytes) = region.extent();
        let Some(eal) = self.eal.clone().filter(|_| !self.device.is_software()) else { return };
        if self.device.learn(&eal, region).is_ok() {
            self.regions.push(start.addr()..start.addr() + bytes);
        }
    }
}

impl Drop for CryptodevEngine {
    /// A device is closed without packets, as far as it gives them back.
    fn drop(&mut self) {
        let (start, mut rest) = (Instant::now(), Vec::new());
        while self.slots.in_use() > 0 && start.elapsed() < LAST_WAIT {
            self.poll(&mut rest, MAX_BURST);
            rest.clear();
        }
    }
}
