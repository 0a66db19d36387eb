//! Pairs of a cipher and an integrity algorithm in the library's synchronous bursts: many packets in
//! parallel, one in each SIMD lane. All methods are safe.
//!
//! A burst takes an array of jobs, does them and returns. CBC encryption and the integrity algorithms are
//! chains, which are bound by instruction latency, so packets are done in parallel, even under different
//! keys; CBC decryption and AES-CTR are parallel over blocks. The end of a burst leaves lanes empty: the more
//! packets, the better.
//!
//! ```text
//!   submit ──▶ push: into the line of its suite and direction ──▶ full, or no more jobs: run
//!     line     jobs that are filled in already, but for addresses and lengths (`line`)
//!     list     the packets that wait for a line's burst; few lines at a time have one
//! ```
//!
//! The library has bursts of AES-CBC, AES-CTR and HMAC with SHA. What it does only in its queue of jobs
//! (`queue`) goes through that within the same call, and is flushed: 3DES, DES, HMAC-MD5, AES-XCBC, AES-CMAC.
//!
//! **Why no checks by the library.** Its checking calls look at every job for null pointers, lengths of
//! zero, beyond 16 bits or of no whole blocks, and numbers that the algorithm does not have. Here `fill`
//! excludes all of these: pointers are those of slices, [`Job::parts`] ensures lengths and blocks,
//! `line::MAX_TEXT_BYTES` the 16 bits, `judge` leaves out empty texts, and everything
//! else is a constant of the line. What would be an error there is a [`JobStatus::Fault`] before the library
//! is called.

use crate::chained::{Chained, ChainedFunctions, ChainedKey};
use crate::line::{BURST_PACKETS, By, Line};
use crate::manager::Scratch;
use crate::queue::Queue;
use crate::raw::{AUTH_NULL, CIPHER_NULL, ImbJob, ImbMgr};
use crate::shape::{Shape, for_shape, shape};
use arrayvec::ArrayVec;
use testudo_crypto::{Direction, Job, JobStatus, Suite};

/// Whether `suite` goes in bursts.
pub(crate) fn does(suite: Suite) -> bool {
    shape(suite, Direction::Seal).is_some()
}

/// Lines that collect jobs at a time: those of six suites. When more occur, one of these does its jobs early.
const LISTS: usize = 12;

/// No line's place.
const NO_LINE: usize = usize::MAX;

/// Jobs being collected into bursts. Each is borrowed until its burst has ended.
pub(crate) struct Bursts<'w, 'a> {
    pub(crate) scratch: Scratch<'w>,
    pub(crate) waiting: &'w mut Waiting<'a>,
}

/// The jobs that wait for a line. It is 12 KiB, and should not be moved.
pub(crate) struct Waiting<'a> {
    lists: [ArrayVec<&'a mut Job, BURST_PACKETS>; LISTS],
    /// Each list's line.
    lines: [usize; LISTS],
    /// The list that is given up next.
    next: usize,
}

impl Waiting<'_> {
    #[inline]
    pub(crate) fn new() -> Self {
        Self { lists: std::array::from_fn(|_| ArrayVec::new()), lines: [NO_LINE; LISTS], next: 0 }
    }
}

impl<'a> Bursts<'_, 'a> {
    /// Adds jobs under one key to the next bursts of their kind; one that the key may not do ends as a fault.
    #[inline]
    pub(crate) fn push(&mut self, key: &'a ChainedKey, jobs: &'a mut [Job]) {
        let list = self.list_of(key.line);
        // Each key has a line.
        let shape = self.scratch.chained.lines.get(key.line).map_or(0, |line| line.shape);
        for_shape!(shape, self.push_to(list, key, jobs));
    }

    /// The list of a line, which another line gives up if none is left.
    #[inline]
    fn list_of(&mut self, line: usize) -> usize {
        let taken_by = |line| self.waiting.lines.iter().position(|other| *other == line);
        if let Some(list) = taken_by(line) {
            return list;
        }
        let list = taken_by(NO_LINE).unwrap_or_else(|| {
            let list = self.waiting.next;
            self.waiting.next = (list + 1) % LISTS;
            self.run(list);
            list
        });
        self.waiting.lines[list] = line;
        list
    }

    /// One instance for each shape, so that decisions by layout and direction are made at compile time.
    #[inline(never)]
    fn push_to<const SHAPE: usize>(&mut self, list: usize, key: &'a ChainedKey, jobs: &'a mut [Job]) {
        let pointers = key.pointers();
        for job in jobs {
            let Chained { lines, is_broken, .. } = &mut *self.scratch.chained;
            let (Some(line), Some(waiting)) = (lines.get_mut(key.line), self.waiting.lists.get_mut(list))
            else {
                // Unreachable: each key has a line.
                job.status = JobStatus::Fault;
                continue;
            };
            if *is_broken || line.fill::<SHAPE>(waiting.len(), &pointers, job).is_none() {
                job.status = JobStatus::Fault;
            } else if let Err(refused) = waiting.try_push(job) {
                // Unreachable: a line has that many slots.
                line.spoil(refused.element());
            } else if waiting.is_full() {
                self.run_some::<SHAPE>(list);
            }
        }
    }

    /// Does the jobs that still wait.
    #[inline]
    pub(crate) fn finish(&mut self) {
        for list in 0..LISTS {
            self.run(list);
        }
    }

    /// Does the jobs that wait in a list.
    #[inline]
    fn run(&mut self, list: usize) {
        if !self.waiting.lists[list].is_empty() {
            let line = self.waiting.lines[list];
            let shape = self.scratch.chained.lines.get(line).map_or(0, |line| line.shape);
            for_shape!(shape, self.run_some(list));
        }
    }

    #[inline(never)]
    fn run_some<const SHAPE: usize>(&mut self, list: usize) {
        let manager = self.scratch.pointer();
        let Chained { functions, lines, is_broken } = &mut *self.scratch.chained;
        let (of, waiting) = (self.waiting.lines[list], &mut self.waiting.lists[list]);
        let Some(line) = lines.get_mut(of) else { return };
        let library = Calls { manager, functions };
        let count = waiting.len();
        // SAFETY: the manager is alive while `scratch` borrows it, and the functions are its own. The first
        // `count` jobs were filled by `push_to` from keys and packets that are borrowed for `'a`, longer than
        // this lives, and that nothing has touched since; `put_back_short_texts` and `judge`, which touch
        // them, fill those again that are used after them.
        let has_ended = !*is_broken
            && unsafe {
                match Shape::<SHAPE>::DIRECTION {
                    Direction::Seal => {
                        library.cipher(line, count) && {
                            line.put_back_short_texts::<SHAPE>(waiting);
                            library.hash(line, count)
                        }
                    }
                    Direction::Open => {
                        library.hash(line, count) && {
                            let authentic = line.judge::<SHAPE>(waiting);
                            library.cipher(line, authentic)
                        }
                    }
                }
            };
        if !has_ended {
            *is_broken = true;
            waiting.iter_mut().for_each(|job| line.spoil(job));
        } else if Shape::<SHAPE>::DIRECTION == Direction::Seal {
            for (at, job) in waiting.iter_mut().enumerate() {
                match line.is_sealed::<SHAPE>(at, job) {
                    Some(true) => job.status = JobStatus::Done,
                    _ => line.spoil(job),
                }
            }
        }
        waiting.clear();
    }
}

/// A manager and its functions.
struct Calls<'a> {
    manager: *mut ImbMgr,
    functions: &'a ChainedFunctions,
}

impl Calls<'_> {
    /// Hashes each packet and the high half after it. Packets being sealed get their ICVs; digests of those
    /// being opened wait to be compared. `false` if not all of them ended.
    ///
    /// # Safety
    /// `self` is a living manager with its own functions. The first `count` jobs were filled from packets
    /// and keys that are still borrowed, and that nothing has touched since.
    unsafe fn hash(&self, line: &mut Line, count: usize) -> bool {
        let (by, hash) = (line.hashing, line.hash);
        let Some(jobs) = line.jobs_to_hash(count) else { return false };
        let Ok(count) = u32::try_from(jobs.len()) else { return false };
        // SAFETY: the manager is alive and its version has jobs of this layout; there are `count` of them.
        // Each reads its packet from the start to the text's end, 4 bytes more if the high half is at the
        // ICV's offset, and the key's states or round keys, as long as the algorithm's; it writes an ICV of
        // the suite's length, 12 bytes to 32, at the ICV's offset in the packet (after what was hashed, or
        // over the high half, which has been read then) or to its digest of 32 bytes. Packets and keys are
        // alive (our precondition). The call ends all jobs, so that the manager keeps none; if not, it is
        // never called again. No safe binding exists.
        unsafe {
            match by {
                By::Nothing => true,
                By::Burst => (self.functions.hash)(self.manager, jobs.as_mut_ptr(), count, hash) == count,
                By::Queue => self.queue(jobs, |job| ImbJob { cipher_mode: CIPHER_NULL, ..*job }),
            }
        }
    }

    /// Encrypts the IV's block and the text of packets, or decrypts the text of authentic ones, in place.
    /// `false` if not all of them ended.
    ///
    /// # Safety
    /// As for `hash`.
    unsafe fn cipher(&self, line: &mut Line, count: usize) -> bool {
        let Line { ciphering, cipher, cipher_direction, key_bytes, .. } = *line;
        let Some(jobs) = line.jobs.get_mut(..count).filter(|_| ciphering != By::Nothing && count > 0) else {
            return true;
        };
        let Ok(count) = u32::try_from(jobs.len()) else { return false };
        // SAFETY: the manager is alive and its version has jobs of this layout; there are `count` of them.
        // Each reads and writes its own packet in place: from the IV's offset (seal with CBC) or the text's
        // start (with AES-CTR, and open, where what has no text was left out) to the text's end, whole blocks
        // with CBC (`Job::parts`); or a block beside it, for a short text of AES-CTR. It reads an IV, of
        // `ZEROS`, before the text or a nonce, and the round keys of the direction, of the size that the
        // line's suite has. Packets and keys are alive (our precondition). The call ends all jobs, so that
        // the manager keeps none; if not, it is never called again. No safe binding exists.
        unsafe {
            match ciphering {
                By::Nothing => true,
                By::Burst => {
                    let jobs = jobs.as_mut_ptr();
                    let burst = self.functions.cipher;
                    burst(self.manager, jobs, count, cipher, cipher_direction, key_bytes) == count
                }
                By::Queue => self.queue(jobs, |job| ImbJob { hash_alg: AUTH_NULL, ..*job }),
            }
        }
    }

    /// Does jobs, or the half of each that `half` leaves of it, in the library's queue. `false` if not all of
    /// them ended.
    ///
    /// # Safety
    /// As for `hash` and `cipher`.
    unsafe fn queue(&self, jobs: &[ImbJob], half: impl Fn(&ImbJob) -> ImbJob) -> bool {
        // SAFETY: the manager is alive, and nothing else uses it meanwhile; its version has jobs of this
        // layout.
        let mut queue = unsafe { Queue::new(self.manager, &self.functions.queue) };
        for job in jobs {
            // SAFETY: what the half of a job points to is alive, and nobody touches it before `finish` has
            // returned (our precondition).
            unsafe { queue.submit(&half(job)) };
        }
        queue.finish()
    }
}
