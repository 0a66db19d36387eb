//! Known answers in service: a packet whose outcome is known goes with others, in the same launch.
//!
//! ```text
//!   kind       jobs since its last check, forgeries among them
//!   seal CBC   1,023           one more, and a check rides in the batch that has it
//!   open CBC   127, 16         a check rides with the next one, too
//! ```
//!
//! The kernel has a program for each kind (cipher, integrity algorithm, direction, length of the key), and a
//! check is of one kind. It is compared before the first packet of its batch is given back: a wrong one takes
//! the device out of service, and nothing goes out of that batch or a later one.
//!
//! **What it costs**: one packet of 1,104 bytes in 1,024 of its kind, and one in a batch at most: a device
//! that begins to err behind it in a launch is found with the next one. It is a work-group of its own, beside
//! as few as eight for these (128 lanes, of which each has a packet) or as many as 1,024. Packets that are
//! opened with wrong ICVs may be forged, or the device errs: 16 of them have a check ride at once, but no
//! sooner than 128 packets after the last one. Who sends forgeries has the device do one such packet for 128
//! of them, a group beside the one to 128 that these are, and nothing else.
//!
//! **What it is not**: of the programs that write [frames](crate::framed) there is no check in service. What
//! these write is compared with what the job says, but for padding, trailer and, in CBC mode, the IV.

use crate::batch::Batch;
use crate::place::{self, KeyPlace};
use crate::work::{RawKey, Work};
use testudo_crypto::{Direction, Engine, Job, JobStatus, KeyMaterial, PortableEngine, Suite};
use testudo_packet::Buffer;
use zeroize::Zeroizing;

/// Kinds of which there may be checks: more than the kernel has. A batch may have one of each: a second one
/// in the same launch would tell no more, and no kind waits for others.
pub(crate) const MOST_CHECKS: usize = 128;
/// Jobs of a kind from check to check; and if so many of them had a wrong ICV.
const EVERY: u32 = 1024;
const EVERY_IN_DOUBT: u32 = 128;
const DOUBT: u32 = 16;
/// Bytes of its text: sixteen lanes share it where lanes share packets, as they do those of 1,400 bytes.
const TEXT_BYTES: usize = 1104;
const ESP_HEADER_BYTES: usize = 8;

/// A known answer of one kind.
struct Check {
    work: Work,
    place: KeyPlace,
    /// As the engine gets it; it is copied from and stays as it is.
    job: Job,
    /// What is authenticated of the packet as it comes back, and its ICV.
    covered: Vec<u8>,
    icv: Vec<u8>,
    /// Jobs since the last check, and those whose ICV was wrong.
    jobs: u32,
    failed: u32,
}

/// The checks of a device.
pub(crate) struct Checks {
    list: Vec<Check>,
    /// The first slot for their keys, behind all others.
    first_slot: u32,
    is_on: bool,
}

/// A check that a key needs and the device does not have: its key, which is to be expanded.
pub(crate) struct New {
    check: Check,
    pub key: Zeroizing<RawKey>,
}

impl New {
    pub(crate) fn slot(&self) -> u32 {
        self.check.place.slot
    }

    pub(crate) fn kind(&self) -> u32 {
        self.check.work.kind
    }
}

impl Checks {
    /// With keys in slots from this one on.
    pub(crate) fn new(first_slot: u32) -> Self {
        Self { list: Vec::with_capacity(MOST_CHECKS), first_slot, is_on: true }
    }

    /// The device is none that could be right.
    pub(crate) fn switch_off(&mut self) {
        self.is_on = false;
    }

    /// Which check is of a kind.
    pub(crate) fn of(&self, work: &Work) -> Option<usize> {
        self.list.iter().position(|check| check.work.kind == work.kind)
    }

    /// A check of this kind, if there is none and may be one more.
    pub(crate) fn missing(&self, work: &Work) -> Option<New> {
        if !self.is_on || self.list.len() == MOST_CHECKS || self.of(work).is_some() {
            return None;
        }
        let slot = self.first_slot + u32::try_from(self.list.len()).ok()?;
        Check::known(*work, slot)
    }

    /// Its key is expanded.
    pub(crate) fn add(&mut self, new: New) {
        self.list.push(new.check);
    }

    /// A job was put into a batch: its check may have to ride there.
    pub(crate) fn count(&mut self, check: Option<usize>, batch: &mut Batch, arena: &mut [u8]) {
        let Some(at) = check else { return };
        let Some(check) = self.list.get_mut(at) else { return };
        check.jobs = check.jobs.saturating_add(1);
        if !check.is_due() || batch.has_check(at) {
            return;
        }
        let Check { work, place, job, .. } = check;
        // Where there is no room it rides in the next batch.
        if let Ok(placed) = place::lay_out(job, work, *place, arena, batch.arena_bytes) {
            batch.push_check(at, placed);
            (check.jobs, check.failed) = (0, 0);
        }
    }

    /// A packet had a wrong ICV, of whose kind this check is.
    pub(crate) fn doubt(&mut self, check: Option<usize>) {
        if let Some(check) = check.and_then(|at| self.list.get_mut(at)) {
            check.failed = check.failed.saturating_add(1);
        }
    }

    /// What a device has been away for says nothing good of it: each kind's next batch has a check.
    pub(crate) fn doubt_all(&mut self) {
        self.list.iter_mut().for_each(|check| check.jobs = EVERY);
    }

    /// Says what is wrong of the checks of a batch that has ended.
    pub(crate) fn wrong(&self, batch: &Batch, arena: &[u8]) -> Option<String> {
        batch.checks().find_map(|(at, placed)| {
            let Check { work, covered, icv, .. } = self.list.get(*at)?;
            if !place::is_marked(placed, arena, batch.mark) {
                return Some("the device gave a batch back without having done it".to_owned());
            }
            let is_right = place::is_answer(placed, arena, covered, icv);
            let way = if work.direction == Direction::Seal { "sealed" } else { "opened" };
            (!is_right).then(|| format!("a known answer of {}, {way}, was wrong", work.suite))
        })
    }
}

impl Check {
    /// By the portable engine; `None` if that does not do the suite.
    fn known(work: Work, slot: u32) -> Option<New> {
        let kind = |suite: &Suite| Work::of(*suite, work.direction).map(|work| work.kind);
        // Of VPE, and of any length of an ICV, the kernel knows nothing.
        let suite = Suite::ALL.iter().copied().find(|suite| kind(suite) == Some(work.kind))?;
        let work = Work::of(suite, work.direction)?;
        let counting = |count: usize| (1..=u8::MAX).cycle().take(count).collect::<Vec<u8>>();
        let material = KeyMaterial::new(suite, counting(suite.keying_material_bytes()).into()).ok()?;
        let key = RawKey::new(&material)?;
        let text_start = ESP_HEADER_BYTES + suite.iv_bytes();
        let icv_at = text_start + TEXT_BYTES;
        let job = |packet: &[u8], direction| -> Option<Job> {
            Some(Job {
                sequence: 0x0102_0304_0506_0708,
                text_start: u32::try_from(text_start).ok()?,
                text_bytes: u32::try_from(TEXT_BYTES).ok()?,
                esn: true,
                ..Job::new(Buffer::copied(packet, 0, 0), direction, 0)
            })
        };
        let plain = counting(icv_at + suite.icv_bytes());
        let mut portable = PortableEngine::new();
        let own = portable.install(&material, Direction::Seal).ok()?;
        let mut sealed = [Job { key: own, ..job(&plain, Direction::Seal)? }];
        portable.submit(&mut sealed);
        let [sealed] = sealed;
        let bytes = sealed.buffer.bytes();
        let (covered, icv) = bytes.split_at_checked(icv_at).filter(|_| sealed.status == JobStatus::Done)?;
        let (input, covered) = match work.direction {
            Direction::Seal => (plain.as_slice(), covered),
            Direction::Open => (bytes, plain.get(..icv_at)?),
        };
        let place = KeyPlace { salt: *material.nonce_salt(), slot, frame: None };
        let (job, covered, icv) = (job(input, work.direction)?, covered.to_vec(), icv.to_vec());
        Some(New { check: Self { work, place, job, covered, icv, jobs: 0, failed: 0 }, key })
    }

    fn is_due(&self) -> bool {
        self.jobs >= EVERY || self.failed >= DOUBT && self.jobs >= EVERY_IN_DOUBT
    }
}
