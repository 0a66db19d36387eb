//! Engines that receive arbitrary jobs, with keys in any order.

use crate::input::Input;
use crate::support::random_bytes;
use fastrand::Rng;
use std::cell::RefCell;
use std::collections::HashMap;
use testudo_crypto::{
    Direction, Engine, Job, JobStatus, KeyId, KeyMaterial, PortableEngine, Requirement, Suite,
};
use testudo_engine_ipsec_mb::IpsecMbEngine;
use testudo_engine_late::{LateConfig, LateEngine, Order};
use testudo_engine_vaes::VaesEngine;
use testudo_packet::Buffer;

/// Jobs of one run, and the bytes of all their packets, limited to keep a run short.
const MAX_JOBS: usize = 160;
const MAX_BYTES: usize = 1 << 20;
/// Room around every packet, which no engine may touch.
const HEADROOM: usize = 64;
const TAILROOM: usize = 64;
/// The value of bytes that nothing has written.
const GUARD: u8 = 0x5A;
/// Calls of `submit` and `poll` within which every engine here takes and gives back all jobs of a run.
const PATIENCE: usize = 4096;

/// A key that was installed at some point.
struct Key {
    material: KeyMaterial,
    direction: Direction,
}

/// A job before an engine's id for its key is known.
struct Draft {
    /// Index of the key; `None` for one that was never given out.
    key: Option<usize>,
    bytes: Vec<u8>,
    auth_start: u32,
    text_start: u32,
    text_bytes: u32,
    sequence: u64,
    esn: bool,
    direction: Direction,
}

/// How a job must end, and the content of the whole packet afterwards. `None` if the ICV is wrong, since more
/// than one content is then allowed.
#[derive(Clone)]
struct Verdict {
    status: JobStatus,
    bytes: Option<Vec<u8>>,
}

/// The plain model: the portable engine, which gets one job at a time.
struct Model {
    portable: PortableEngine,
    keys: Vec<Key>,
    /// The portable engine's ids of each key, for sealing and for opening.
    ids: Vec<[KeyId; 2]>,
}

/// An engine under test, and the jobs that it must give back.
struct Rig<'e> {
    engine: &'e mut dyn Engine,
    /// Its id for each key of the model, and whether it still holds the key. `None` if it does not support
    /// the suite.
    ids: Vec<Option<(KeyId, bool)>>,
    /// Jobs in flight, by ticket: the packet before, where its text is, and how it must end.
    owed: HashMap<u32, (Vec<u8>, std::ops::Range<usize>, Verdict)>,
    next_ticket: u32,
    /// Whether it may end any job as a fault.
    may_fault: bool,
}

thread_local! {
    /// Opened once, since opening computes known answers; every run removes its keys again. Engines that this
    /// machine cannot run are left out; the conformance suite insists on them.
    static ENGINES: RefCell<Vec<Box<dyn Engine>>> = RefCell::new(available());
}

fn available() -> Vec<Box<dyn Engine>> {
    let mut engines: Vec<Box<dyn Engine>> = vec![Box::new(PortableEngine::new())];
    engines.extend(VaesEngine::open().ok().map(|engine| Box::new(engine) as Box<dyn Engine>));
    engines.extend(IpsecMbEngine::open().ok().map(|engine| Box::new(engine) as Box<dyn Engine>));
    engines
}

/// Keys come and go, and jobs of all of them are submitted in bursts: each ends once, as the portable engine
/// ends it alone, and touches nothing but its own packet.
pub fn engines(data: &[u8]) {
    let mut input = Input::new(data);
    let (choice, seed) = (input.byte(), u64::from(input.word()));
    let late = LateConfig {
        queue_jobs: 8 + usize::from(choice & 0x3F),
        order: if choice & 0x80 == 0 { Order::Any } else { Order::WithinKeys },
        ..if choice & 0x40 == 0 { LateConfig::reliable(seed) } else { LateConfig::unreliable(seed) }
    };
    let mut late_engine = LateEngine::new(Box::new(PortableEngine::new()), late);
    ENGINES.with_borrow_mut(|engines| {
        let mut rigs: Vec<Rig<'_>> = engines.iter_mut().map(|e| Rig::new(&mut **e, false)).collect();
        rigs.push(Rig::new(&mut late_engine, choice & 0x40 != 0));
        run(&mut input, &mut rigs);
    });
}

fn run(input: &mut Input<'_>, rigs: &mut [Rig<'_>]) {
    let mut model = Model::new();
    // Keys of the suites that most engines do; the input adds others.
    let usual = Suite::ALL.iter().filter(|suite| suite.requirement() <= Requirement::Should);
    for (index, &suite) in usual.enumerate() {
        for direction in [Direction::Seal, Direction::Open] {
            model.install(suite, direction, index as u8, rigs);
        }
    }
    let (mut drafts, mut jobs, mut bytes) = (Vec::new(), 0, 0);
    while !input.is_empty() && jobs < MAX_JOBS && bytes < MAX_BYTES {
        match input.byte() {
            0..16 if model.keys.len() < 40 => {
                let choice = input.byte();
                let suite = Suite::ALL[usize::from(choice >> 1) % Suite::ALL.len()];
                let direction = if choice & 1 == 0 { Direction::Seal } else { Direction::Open };
                model.install(suite, direction, input.byte(), rigs);
            }
            16..32 => {
                let key = usize::from(input.byte()) % model.keys.len();
                rigs.iter_mut().for_each(|rig| rig.remove(key));
            }
            32..64 => {
                rigs.iter_mut().for_each(|rig| rig.submit(&mut model, &drafts));
                drafts.clear();
            }
            64..72 => {
                let max = usize::from(input.byte());
                rigs.iter_mut().for_each(|rig| rig.poll(max));
            }
            kind => {
                let draft = model.draft(kind, input);
                (jobs, bytes) = (jobs + 1, bytes + draft.bytes.len());
                drafts.push(draft);
            }
        }
    }
    for rig in rigs {
        rig.submit(&mut model, &drafts);
        rig.finish();
    }
}

fn material(suite: Suite, seed: u8) -> KeyMaterial {
    let bytes = random_bytes(&mut Rng::with_seed(u64::from(seed)), suite.keying_material_bytes());
    KeyMaterial::new(suite, bytes.into()).expect("as long as the suite wants it")
}

impl Model {
    fn new() -> Self {
        Self { portable: PortableEngine::new(), keys: Vec::new(), ids: Vec::new() }
    }

    fn install(&mut self, suite: Suite, direction: Direction, seed: u8, rigs: &mut [Rig<'_>]) {
        let material = material(suite, seed);
        self.ids.push([Direction::Seal, Direction::Open].map(|direction| {
            self.portable.install(&material, direction).expect("the portable engine does every suite")
        }));
        rigs.iter_mut().for_each(|rig| rig.install(&material, direction));
        self.keys.push(Key { material, direction });
    }

    /// A job as the input selects it: usually a valid one, then spoilt.
    fn draft(&mut self, kind: u8, input: &mut Input<'_>) -> Draft {
        let (key, shape, offset) = (usize::from(input.byte()), input.byte(), usize::from(input.byte() % 80));
        let index = key % self.keys.len();
        let (suite, direction) = (self.keys[index].material.suite(), self.keys[index].direction);
        let length = match shape & 3 {
            0 => usize::from(input.byte()),
            3 if shape & 0xFC == 0xFC => usize::from(input.word()) + 4096,
            _ => usize::from(input.word()) % 4096,
        };
        let text_bytes = length - length % suite.block_bytes();
        let front = 8 + suite.iv_bytes();
        let mut random = Rng::with_seed(u64::from(shape) << 16 | length as u64);
        let bytes = random_bytes(
            &mut random,
            offset + front + text_bytes + suite.icv_bytes() + usize::from(shape >> 4),
        );
        let (sequence, esn) = (random.u64(..), shape >> 2 & 3 != 0);
        let (auth_start, text_start, text_bytes) =
            (offset as u32, (offset + front) as u32, text_bytes as u32);
        let key = Some(index);
        let mut draft = Draft { key, bytes, auth_start, text_start, text_bytes, sequence, esn, direction };
        if direction == Direction::Open {
            self.seal(index, &mut draft);
        }
        if kind >= 160 {
            spoil(&mut draft, kind, input);
        }
        draft
    }

    /// Turns a draft's bytes into a packet that opens under its key.
    fn seal(&mut self, index: usize, draft: &mut Draft) {
        let mut job = draft.job(self.ids[index][0], 0);
        job.direction = Direction::Seal;
        self.portable.submit(std::slice::from_mut(&mut job));
        assert_eq!(job.status, JobStatus::Done);
        draft.bytes = job.buffer.bytes().to_vec();
    }

    /// How a job of an installed key must end.
    fn verdict(&mut self, index: usize, draft: &Draft, max_text_bytes: usize) -> Verdict {
        let key = &self.keys[index];
        if key.direction != draft.direction || !draft.is_possible(key.material.suite(), max_text_bytes) {
            return draft.fault();
        }
        let id = self.ids[index][usize::from(draft.direction == Direction::Open)];
        let mut job = draft.job(id, 0);
        self.portable.submit(std::slice::from_mut(&mut job));
        assert_ne!(job.status, JobStatus::Fault, "the portable engine refuses what can be done");
        let is_done = job.status == JobStatus::Done;
        Verdict { status: job.status, bytes: is_done.then(|| job.buffer.bytes().to_vec()) }
    }
}

/// Makes a draft invalid or forged.
fn spoil(draft: &mut Draft, kind: u8, input: &mut Input<'_>) {
    match kind % 12 {
        0 => draft.key = None,
        1 => draft.direction = other(draft.direction),
        2 if input.byte() & 1 == 0 => {
            draft.auth_start = draft.auth_start.wrapping_add(u32::from(input.byte()))
        }
        2 => draft.text_start = draft.text_start.wrapping_add(u32::from(input.byte())),
        3 if input.byte() & 1 == 0 => {
            draft.auth_start = draft.auth_start.wrapping_sub(u32::from(input.byte()))
        }
        3 => draft.text_start = draft.text_start.wrapping_sub(u32::from(input.byte())),
        4 => draft.text_bytes = draft.text_bytes.wrapping_add(u32::from(input.byte())),
        5 => draft.text_bytes = draft.text_bytes.wrapping_sub(u32::from(input.byte())),
        6 => draft.bytes.truncate(usize::from(input.word())),
        7 => draft.text_start = u32::from(input.word()) << 16 | u32::from(input.word()),
        8 => draft.text_bytes = u32::from(input.word()) << 16 | u32::from(input.word()),
        9 => (draft.text_start, draft.text_bytes) = (u32::MAX, u32::MAX),
        _ => {
            let (at, bit) = (usize::from(input.word()), input.byte() & 7);
            let length = draft.bytes.len().max(1);
            if let Some(byte) = draft.bytes.get_mut(at % length) {
                *byte ^= 1 << bit;
            }
        }
    }
}

fn other(direction: Direction) -> Direction {
    match direction {
        Direction::Seal => Direction::Open,
        Direction::Open => Direction::Seal,
    }
}

impl Draft {
    fn job(&self, key: KeyId, ticket: u32) -> Job {
        let mut buffer = Buffer::with_capacity(HEADROOM + self.bytes.len() + TAILROOM);
        buffer.receive_area().fill(GUARD);
        buffer.reset(HEADROOM);
        buffer.receive_area()[..self.bytes.len()].copy_from_slice(&self.bytes);
        buffer.set_len(self.bytes.len());
        Job {
            sequence: self.sequence,
            ticket,
            key,
            auth_start: self.auth_start,
            text_start: self.text_start,
            text_bytes: self.text_bytes,
            esn: self.esn,
            ..Job::new(buffer, self.direction, 0)
        }
    }

    /// Whether the contract requires an engine to do it.
    fn is_possible(&self, suite: Suite, max_text_bytes: usize) -> bool {
        let (start, text_bytes) = (self.text_start as usize, self.text_bytes as usize);
        let header = start.saturating_sub(self.auth_start as usize + suite.iv_bytes());
        text_bytes + header.saturating_sub(8) <= max_text_bytes
            && (header == 8 || header > 8 && !suite.encrypts())
            && text_bytes.is_multiple_of(suite.block_bytes())
            && start + text_bytes + suite.icv_bytes() <= self.bytes.len()
    }

    fn fault(&self) -> Verdict {
        Verdict { status: JobStatus::Fault, bytes: Some(self.bytes.clone()) }
    }
}

impl<'e> Rig<'e> {
    fn new(engine: &'e mut dyn Engine, may_fault: bool) -> Self {
        Self { engine, ids: Vec::new(), owed: HashMap::new(), next_ticket: 0xC00C_1E00, may_fault }
    }

    fn install(&mut self, material: &KeyMaterial, direction: Direction) {
        let is_done = self.engine.capability(material.suite()).is_some();
        let id = self.engine.install(material, direction);
        assert_eq!(id.is_ok(), is_done, "{}", self.engine.name());
        self.ids.push(id.ok().map(|id| (id, true)));
    }

    fn remove(&mut self, key: usize) {
        if let Some((id, is_held)) = &mut self.ids[key] {
            self.engine.remove(*id);
            *is_held = false;
        }
    }

    /// Submits all drafts, in as many calls as needed.
    fn submit(&mut self, model: &mut Model, drafts: &[Draft]) {
        let mut jobs: Vec<Job> = drafts.iter().map(|draft| self.job(model, draft)).collect();
        let mut at = 0;
        for _ in 0..PATIENCE {
            let taken = self.engine.submit(&mut jobs[at..]);
            assert!(taken <= jobs.len() - at, "{} took more than there were", self.engine.name());
            for job in &mut jobs[at..at + taken] {
                match job.status {
                    JobStatus::Pending => panic!("{} took a job and left it pending", self.engine.name()),
                    JobStatus::Taken => {}
                    status => {
                        let ended = Job { status, ..job.take() };
                        self.judge(ended);
                    }
                }
            }
            at += taken;
            for job in &jobs[at..] {
                assert_eq!(job.status, JobStatus::Pending, "not taken, but touched");
                assert_eq!(job.buffer.bytes(), self.owed[&job.ticket].0, "not taken, but touched");
            }
            if at == jobs.len() {
                return;
            }
            self.poll(64);
        }
        panic!("{} takes no jobs any more", self.engine.name());
    }

    /// The job for this engine, expected back from now on.
    fn job(&mut self, model: &mut Model, draft: &Draft) -> Job {
        let known = draft.key.and_then(|key| Some((key, self.ids[key]?)));
        let (id, verdict) = match known {
            Some((key, (id, true))) => {
                let suite = model.keys[key].material.suite();
                let capability = self.engine.capability(suite).expect("it holds a key of the suite");
                (id, model.verdict(key, draft, capability.max_text_bytes))
            }
            Some((_, (removed, false))) => (removed, draft.fault()),
            None => (KeyId(u32::MAX), draft.fault()),
        };
        self.next_ticket += 1;
        let start = (draft.text_start as usize).min(draft.bytes.len());
        let text = start..start.saturating_add(draft.text_bytes as usize).min(draft.bytes.len());
        self.owed.insert(self.next_ticket, (draft.bytes.clone(), text, verdict));
        draft.job(id, self.next_ticket)
    }

    fn poll(&mut self, max: usize) {
        let mut done = Vec::new();
        let before = self.engine.in_flight();
        self.engine.poll(&mut done, max);
        assert!(done.len() <= max.min(before), "{} gave more than was asked for", self.engine.name());
        assert_eq!(self.engine.in_flight(), before - done.len());
        for job in done {
            assert!(!matches!(job.status, JobStatus::Pending | JobStatus::Taken), "it came back {job:?}");
            self.judge(job);
        }
    }

    /// Checks a job that has ended: once, in the right way, with nothing else touched.
    fn judge(&mut self, mut job: Job) {
        let name = self.engine.name();
        let (before, text, verdict) = self.owed.remove(&job.ticket).expect("a job that ended once");
        let bytes = job.buffer.bytes().to_vec();
        job.buffer.reset(0);
        let around = job.buffer.receive_area();
        let (front, rest) = around.split_at(HEADROOM);
        assert!(
            front.iter().chain(&rest[bytes.len()..]).all(|&b| b == GUARD),
            "{name} wrote beside the packet"
        );
        if self.may_fault && job.status == JobStatus::Fault {
            assert_eq!(bytes, before, "{name} gave up and changed the packet");
            return;
        }
        assert_eq!(job.status, verdict.status, "{name}: {:?} of {text:?}", job.direction);
        match verdict.bytes {
            Some(expected) => assert!(bytes == expected, "{name} made other bytes than the portable engine"),
            None => {
                let is_wiped = bytes[text.clone()].iter().all(|&b| b == 0);
                assert!(
                    is_wiped || bytes[text.clone()] == before[text.clone()],
                    "{name} left a forged text decrypted"
                );
                assert_eq!(bytes[..text.start], before[..text.start], "{name} wrote before a forged text");
                assert_eq!(bytes[text.end..], before[text.end..], "{name} wrote behind a forged text");
            }
        }
    }

    /// Drains all jobs and removes the keys.
    fn finish(&mut self) {
        for _ in 0..PATIENCE {
            if self.engine.in_flight() == 0 {
                break;
            }
            self.poll(64);
        }
        assert_eq!(self.owed.len(), 0, "{} never ended some jobs", self.engine.name());
        assert_eq!(self.engine.in_flight(), 0);
        for key in 0..self.ids.len() {
            self.remove(key);
        }
    }
}
