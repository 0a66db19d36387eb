//! The safe engine.

use crate::cbc::LANES;
use crate::chained::{self, ChainedKey, Lane, Scratch};
use crate::key::{ExpandedKey, FEW_POWERS, Room, SHORT_POWERS};
use crate::long::Reach;
use crate::memory::vectors;
use crate::packet::Packet;
use crate::short::{MAX_SHORT_VECTORS, SIDE_BY_SIDE};
use crate::{NAME, in_parts, long, short};
use arrayvec::ArrayVec;
use std::sync::Arc;
use testudo_crypto::{
    AesKey, Capability, Cipher, Direction, Engine, EngineError, Job, JobStatus, KeyId, KeyMaterial,
    KeyPreparer, KeyTable, PreparedKey, Profile, Suite,
};

/// The longest text: more than an IP datagram can carry.
pub(crate) const MAX_TEXT_BYTES: usize = 65_535;

/// With more keys than this, not all fit in the cache: those of AES-GCM take 2.2 KB each with all powers, 0.6
/// megabytes then, a quarter of a second-level cache or more. So many have all powers, and those that come
/// later few: each gains from more only where it is cached.
const MANY_KEYS: usize = 300;

/// One key, in the form for its kernels.
struct VaesKey {
    form: Form,
    direction: Direction,
}

/// A key in the form that its kernels take.
enum Form {
    Gcm(Box<ExpandedKey>, Kind),
    /// The same kernels, for packets of VPE.
    GcmOfVpe(Box<ExpandedKey>, Kind),
    Chained(Box<ChainedKey>, chained::Kind),
}

/// What jobs must have in common to be done in parallel.
#[derive(Clone, Copy)]
enum Kind {
    Seal128,
    Open128,
    Seal256,
    Open256,
}

/// Number of kinds.
const KINDS: usize = Kind::ALL.len();

impl Kind {
    /// All kinds, each at its own index.
    const ALL: [Self; 4] = [Self::Seal128, Self::Open128, Self::Seal256, Self::Open256];

    /// The kind of jobs in `suite`; `None` for a suite that this engine does not do.
    const fn new(suite: Suite, direction: Direction) -> Option<Self> {
        match (suite.cipher(), suite.icv_bytes(), direction) {
            (Cipher::AesGcm(key) | Cipher::AesGcmVpe(key), 16, direction) => match (key, direction) {
                (AesKey::Aes128, Direction::Seal) => Some(Self::Seal128),
                (AesKey::Aes128, Direction::Open) => Some(Self::Open128),
                (AesKey::Aes256, Direction::Seal) => Some(Self::Seal256),
                (AesKey::Aes256, Direction::Open) => Some(Self::Open256),
                (AesKey::Aes192, _) => None,
            },
            _ => None,
        }
    }
}

impl VaesKey {
    /// Whether a job is in the key's direction, and not too long.
    #[inline]
    fn may_do(&self, job: &Job) -> bool {
        job.direction == self.direction && job.text_bytes as usize <= MAX_TEXT_BYTES
    }
}

/// The engine on AVX-512, VAES and VPCLMULQDQ. Synchronous: every job ends inside `submit`.
pub struct VaesEngine {
    keys: KeyTable<VaesKey>,
    scratch: Box<Scratch>,
    expander: Expander,
}

/// What lays keys out.
#[derive(Clone)]
struct Expander {
    /// Created only after the CPU was found to have all instructions.
    checked: Checked,
    /// For all powers of the hash keys of AES-GCM.
    room: Room,
}

/// Proof that the CPU has what the kernels need; only [`Checked::new`] makes one.
#[derive(Clone, Copy)]
struct Checked(());

impl KeyPreparer for Expander {
    fn prepare(&self, key: &KeyMaterial, direction: Direction) -> Result<PreparedKey, EngineError> {
        self.expand(key, direction).map(PreparedKey::new)
    }
}

impl Checked {
    fn new() -> Result<Self, EngineError> {
        let found = [
            ("AVX512F", is_x86_feature_detected!("avx512f")),
            ("AVX512BW", is_x86_feature_detected!("avx512bw")),
            ("AVX512DQ", is_x86_feature_detected!("avx512dq")),
            ("AVX512VL", is_x86_feature_detected!("avx512vl")),
            // A hypervisor may show the wide instructions and hide these, which the compiler assumes with
            // them.
            ("AES", is_x86_feature_detected!("aes")),
            ("PCLMULQDQ", is_x86_feature_detected!("pclmulqdq")),
            ("VAES", is_x86_feature_detected!("vaes")),
            ("VPCLMULQDQ", is_x86_feature_detected!("vpclmulqdq")),
            ("BMI2", is_x86_feature_detected!("bmi2")),
        ];
        let missing: Vec<_> = found.into_iter().filter(|(_, there)| !there).map(|(name, _)| name).collect();
        if missing.is_empty() {
            return Ok(Self(()));
        }
        let reason = format!("the CPU, or the hypervisor, lacks {}", missing.join(", "));
        Err(EngineError::Unavailable { engine: NAME, reason })
    }
}

impl Expander {
    /// The key in the form for the kernels of its suite.
    fn expand(&self, key: &KeyMaterial, direction: Direction) -> Result<VaesKey, EngineError> {
        let Checked(()) = self.checked;
        // SAFETY: the CPU has the instructions (`checked` is the proof), the only requirement beyond those of
        // safe functions.
        let form = unsafe { expand(key, direction, &self.room) };
        let form = form.ok_or(EngineError::Unsupported { engine: NAME, suite: key.suite() })?;
        Ok(VaesKey { form, direction })
    }
}

impl VaesEngine {
    /// Checks the CPU. The caller has it compute known answers ([`testudo_crypto::self_test`]) before it is
    /// used.
    ///
    /// # Errors
    /// [`EngineError::Unavailable`] if the CPU lacks an instruction.
    pub fn open() -> Result<Self, EngineError> {
        let checked = Checked::new()?;
        let keys = KeyTable::new(KeyTable::<VaesKey>::MAX_KEYS);
        let expander = Expander { checked, room: Room::for_keys(MANY_KEYS) };
        Ok(Self { keys, scratch: Scratch::new(), expander })
    }
}

impl Engine for VaesEngine {
    fn name(&self) -> &'static str {
        NAME
    }

    fn description(&self) -> String {
        "AES-GCM and AES-CBC with HMAC-SHA-1 of Testudo's own, VAES-AVX512, four or sixteen packets at a time"
            .to_owned()
    }

    fn capability(&self, suite: Suite) -> Option<Capability> {
        let is_done = Kind::new(suite, Direction::Seal).is_some()
            || chained::Kind::new(suite, Direction::Seal).is_some();
        is_done.then(|| Capability {
            max_text_bytes: MAX_TEXT_BYTES,
            max_keys: self.keys.limit(),
            takes_chains: Kind::new(suite, Direction::Seal).is_some(),
            writes_frames: false,
        })
    }

    fn install(&mut self, key: &KeyMaterial, direction: Direction) -> Result<KeyId, EngineError> {
        self.keys.check_room(NAME)?;
        self.keys.insert(NAME, self.expander.expand(key, direction)?)
    }

    fn preparer(&self) -> Option<Arc<dyn KeyPreparer>> {
        Some(Arc::new(self.expander.clone()))
    }

    fn link(&mut self, key: PreparedKey) -> Result<KeyId, EngineError> {
        self.keys.insert(NAME, key.into_form(NAME)?)
    }

    fn remove(&mut self, key: KeyId) {
        // The laid-out keys of a lot may contain this one.
        if self.keys.remove(key).is_some_and(|key| matches!(key.form, Form::Chained(..))) {
            self.scratch.wipe();
        }
    }

    fn profile(&self, suite: Suite) -> Profile {
        Profile::of_depth(if chained::Kind::new(suite, Direction::Seal).is_some() { LANES } else { 1 })
    }

    fn is_synchronous(&self) -> bool {
        true
    }

    fn submit(&mut self, jobs: &mut [Job]) -> usize {
        let taken = jobs.len();
        let has_refused = {
            let mut lots = [(); KINDS].map(|()| [(); CLASSES].map(|()| ArrayVec::new()));
            let chained = [(); chained::KINDS].map(|()| ArrayVec::new());
            let mut waiting = Waiting { lots: chained, scratch: &mut self.scratch };
            // SAFETY: the CPU has the instructions (`expander` has the proof), the only requirement beyond
            // those of safe functions.
            unsafe { run(&self.keys, jobs, &mut lots, &mut waiting) }
        };
        if has_refused {
            // SAFETY: as above.
            unsafe { run_chains(&self.keys, jobs) };
        }
        taken
    }
}

/// The key in the form for the kernels of its suite; `None` for a suite that this engine does not do.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,vaes,vpclmulqdq,bmi2")]
fn expand(key: &KeyMaterial, direction: Direction, room: &Room) -> Option<Form> {
    if let Some(kind) = chained::Kind::new(key.suite(), direction) {
        return Some(Form::Chained(ChainedKey::new(key, kind), kind));
    }
    let kind = Kind::new(key.suite(), direction)?;
    let expanded = ExpandedKey::new(key.key(), *key.nonce_salt(), room);
    Some(if key.suite().is_for_vpe() { Form::GcmOfVpe(expanded, kind) } else { Form::Gcm(expanded, kind) })
}

/// Packets of suites that are no AEAD, collected into lots, and the memory to do them in.
struct Waiting<'e, 'a> {
    lots: [chained::Lot<'a>; chained::KINDS],
    scratch: &'e mut Scratch,
}

impl<'a> Waiting<'_, 'a> {
    /// Adds a packet; runs its lot when that has sixteen.
    #[inline(never)]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,vaes,vpclmulqdq,bmi2")]
    fn push(&mut self, key: &'a ChainedKey, kind: chained::Kind, job: &'a mut Job) {
        if let Some(lane) = Lane::new(key, kind, job) {
            let lot = &mut self.lots[kind as usize];
            lot.push(lane);
            if lot.is_full() {
                self.scratch.run(kind, lot);
            }
        }
    }

    /// Runs the lots that are left.
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,vaes,vpclmulqdq,bmi2")]
    fn finish(&mut self) {
        for (kind, lot) in chained::Kind::ALL.into_iter().zip(&mut self.lots) {
            if !lot.is_empty() {
                self.scratch.run(kind, lot);
            }
        }
    }
}

/// Packets of one kind and class, collected to be done together. Several times four, because four are hashed
/// while the next four are encrypted, and the end of a long packet while the next one is encrypted.
type Lot<'a> = ArrayVec<Packet<'a>, { 4 * SIDE_BY_SIDE }>;

/// The lots of all kinds, those of one vector first.
type Lots<'a> = [[Lot<'a>; CLASSES]; KINDS];

/// Classes of packets: of one vector, of two, of three, and longer ones.
const CLASSES: usize = MAX_SHORT_VECTORS + 1;

/// Does all jobs, grouped by kind and class across keys. Returns whether one of AES-GCM is not all in one
/// buffer.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,vaes,vpclmulqdq,bmi2")]
fn run<'a>(
    keys: &'a KeyTable<VaesKey>,
    jobs: &'a mut [Job],
    lots: &mut Lots<'a>,
    waiting: &mut Waiting<'_, 'a>,
) -> bool {
    let mut has_refused = false;
    let all_many = keys.len() > MANY_KEYS;
    if all_many {
        prefetch_short(keys, jobs);
    }
    for job in jobs {
        let Some(key) = keys.get(job.key).filter(|key| key.may_do(job)) else {
            job.status = JobStatus::Fault;
            continue;
        };
        let (expanded, kind, is_vpe) = match &key.form {
            Form::Gcm(expanded, kind) => (expanded, *kind, false),
            Form::GcmOfVpe(expanded, kind) => (expanded, *kind, true),
            Form::Chained(key, kind) => {
                waiting.push(key, *kind, job);
                continue;
            }
        };
        let class = vectors(job.text_bytes as usize).min(CLASSES);
        let packet = if is_vpe { Packet::of_vpe(expanded, job) } else { Packet::new(expanded, job) };
        if let Some(packet) = packet {
            // Built in place. A copy of the packet would fail store-to-load forwarding (wide loads over
            // recent narrow stores), 19 cycles.
            let lot = &mut lots[kind as usize][class - 1];
            lot.push(packet);
            if all_many && class > 1 {
                expanded.prefetch(FEW_POWERS);
            }
            if lot.is_full() {
                run_lot(kind, class, all_many, lot);
            }
        } else {
            has_refused = true;
        }
    }
    waiting.finish();
    for (kind, lots) in Kind::ALL.into_iter().zip(lots) {
        for (class, lot) in (1..).zip(lots) {
            if !lot.is_empty() {
                run_lot(kind, class, all_many, lot);
            }
        }
    }
    has_refused
}

/// Does those jobs of AES-GCM that are over chains of buffers. They have ended as faults.
#[cold]
#[inline(never)]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,vaes,vpclmulqdq,bmi2")]
fn run_chains(keys: &KeyTable<VaesKey>, jobs: &mut [Job]) {
    for job in jobs.iter_mut().filter(|job| job.status == JobStatus::Fault && job.buffer.is_chain()) {
        let Some(key) = keys.get(job.key).filter(|key| key.may_do(job)) else { continue };
        let (expanded, kind, is_vpe) = match &key.form {
            Form::Gcm(expanded, kind) => (expanded, *kind, false),
            Form::GcmOfVpe(expanded, kind) => (expanded, *kind, true),
            Form::Chained(..) => continue,
        };
        let direction = job.direction;
        // The salt is part of the key's first round key.
        let Some(parts) = job.chain_parts(in_parts::shape(is_vpe), [0; 4]) else { continue };
        job.status = match kind {
            Kind::Seal128 | Kind::Open128 => in_parts::packet::<10>(expanded, direction, parts),
            Kind::Seal256 | Kind::Open256 => in_parts::packet::<14>(expanded, direction, parts),
        };
    }
}

/// Prefetches the keys of all packets of one vector: these are done so fast that a prefetch when the packet
/// is taken comes too late. For other packets this would be too early: the keys of a batch do not fit in the
/// cache beside its packets.
fn prefetch_short(keys: &KeyTable<VaesKey>, jobs: &[Job]) {
    for job in jobs {
        if vectors(job.text_bytes as usize) == 1
            && let Some(VaesKey { form: Form::Gcm(key, _) | Form::GcmOfVpe(key, _), .. }) = keys.get(job.key)
        {
            key.prefetch(SHORT_POWERS);
        }
    }
}

/// Does the packets of a lot, all of one class, and empties it.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,vaes,vpclmulqdq,bmi2")]
fn run_lot(kind: Kind, class: usize, all_many: bool, lot: &mut Lot<'_>) {
    let differ = |lot: &Lot<'_>| lot.iter().any(|packet| !core::ptr::eq(packet.key, lot[0].key));
    let reach = if all_many && differ(lot) { Reach::Near } else { Reach::Far };
    match kind {
        Kind::Seal128 => run_class::<10, false>(class, reach, lot),
        Kind::Open128 => run_class::<10, true>(class, reach, lot),
        Kind::Seal256 => run_class::<14, false>(class, reach, lot),
        Kind::Open256 => run_class::<14, true>(class, reach, lot),
    }
    lot.clear();
}

/// Does short packets in fours, then the remaining ones and all longer packets one by one.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,vaes,vpclmulqdq,bmi2")]
fn run_class<const ROUNDS: usize, const OPEN: bool>(class: usize, reach: Reach, lot: &mut Lot<'_>) {
    match class {
        1 => short::run::<ROUNDS, OPEN, 1>(lot),
        2 => short::run::<ROUNDS, OPEN, 2>(lot),
        3 => short::run::<ROUNDS, OPEN, 3>(lot),
        _ => return long::run::<ROUNDS, OPEN>(lot, reach),
    }
    long::run::<ROUNDS, OPEN>(lot.as_chunks_mut::<SIDE_BY_SIDE>().1, reach);
}
