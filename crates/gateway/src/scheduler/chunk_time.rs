//! Which jobs an engine is given by the order of engines: those whose chunks it has back within the bound.
//!
//! Jobs are told apart by suite, direction and [class of length](super::live::LENGTHS). What is measured is
//! how long the engine had each chunk that a class had jobs in:
//!
//! ```text
//!   open ──(chunks are late, three more than the others make up for)──► closed: all go to the next engine
//!     ▲                                                                   │ after a pause
//!     └──(it was not late)────── one chunk has a few jobs of the class ◄──┘
//!                                  └──(late, or failed)──► closed, for twice as long
//! ```
//!
//! A chunk is late if it was away beyond the bound when the worker last looked for it in vain: what a worker
//! that did not look adds is none of the engine's. One that ended as a fault is never in time. A trial that
//! nobody looked for opens its class as one in time does: with long turns of the worker there is no other,
//! and the first chunk that is looked for in vain closes it again.
//!
//! **What a trial costs.** It has one in [`SHARE`] of the jobs that its class has passed on since the last
//! one, at most, and after it none is made for [`SHARE`] times as long as the engine is known to have had it,
//! since the packets of an SA wait for those before them. One class is tried at a time, and chunks that go to
//! the engine meanwhile are not blamed for what that makes of them.
//!
//! **Whose fault it is.** Of chunks that were with the engine together when it stalled one counts. One with a
//! class that is closed by now, since it was gathered before, counts against no other class.

use super::costs::SUITES;
use super::live::{CLASSES, class_of};
use std::time::Duration;
use testudo_crypto::{Direction, Job};
use testudo_ipsec::Moment;

/// What is told apart.
const COUNT: usize = 2 * SUITES * CLASSES;
/// So many can be closed.
pub(super) const MOST_CLOSED: usize = COUNT;
const WORDS: usize = COUNT.div_ceil(u64::BITS as usize);

/// A late chunk counts as so many that are in time make up for.
const LATE: u8 = 8;
/// So much closes a class: one chunk that stalls says little, and neither do two.
const CLOSES: u8 = 3 * LATE;
/// What a class has against it that was opened again: one more late chunk closes it.
const ON_PROBATION: u8 = CLOSES - LATE;
/// How long a class is closed, at first and at most.
const PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(64);
/// A class that was open for so long is closed for the shortest time again.
const STEADY: Duration = Duration::from_secs(60);
/// Trials have one job, and one unit of time, in so many: less than a hundredth.
const SHARE: u32 = 128;
/// Jobs of a trial at most: what a turn brings.
const MOST_TRIED: u32 = 256;
/// A trial of which nothing came back is none after this: its jobs went elsewhere.
const FORGOTTEN: Duration = Duration::from_secs(1);

/// Suite, direction and length of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Class(usize);

impl Class {
    /// That of a job whose suite has this rank.
    pub(crate) fn of(job: &Job, suite_rank: u8) -> Self {
        let suite = usize::from(suite_rank).min(SUITES - 1);
        let kind = 2 * suite + usize::from(job.direction == Direction::Open);
        Self(kind * CLASSES + class_of(job.text_bytes))
    }

    /// The rank of its suite, its direction, and its class of length.
    pub(crate) fn parts(self) -> (usize, Direction, usize) {
        let (kind, length) = (self.0 / CLASSES, self.0 % CLASSES);
        let direction = if kind % 2 == 1 { Direction::Open } else { Direction::Seal };
        (kind / 2, direction, length)
    }
}

/// The classes of a chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Classes([u64; WORDS]);

impl Classes {
    pub(crate) fn insert(&mut self, Class(at): Class) {
        if let Some(word) = self.0.get_mut(at / 64) {
            *word |= 1 << (at % 64);
        }
    }

    fn contains(&self, Class(at): Class) -> bool {
        self.0.get(at / 64).is_some_and(|word| word >> (at % 64) & 1 == 1)
    }

    fn iter(self) -> impl Iterator<Item = Class> {
        (0..COUNT).map(Class).filter(move |class| self.contains(*class))
    }
}

/// A chunk that an engine has given back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Timed {
    pub(crate) classes: Classes,
    /// When it went to the engine.
    pub(crate) since: Moment,
    /// How long it was away until it was found, and until it was last looked for in vain.
    pub(crate) took: Duration,
    pub(crate) away: Duration,
    /// A job of it ended as a fault.
    pub(crate) has_failed: bool,
    /// It went to the engine while a class was tried.
    pub(crate) is_beside: bool,
    pub(crate) jobs: usize,
    /// The [shape](super::bins::Bins::set_next) that it was gathered in.
    pub(crate) epoch: u32,
}

/// What a chunk says of its classes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    InTime,
    Late,
    /// Nobody looked in time.
    Unseen,
    Failed,
}

/// A class that the engine does not get.
#[derive(Debug, Clone, Copy)]
struct Closed {
    since: Moment,
    /// Jobs since then that went to the next engine.
    passed_on: u32,
}

/// What is known of a class.
#[derive(Debug, Clone, Copy)]
struct Known {
    /// Late chunks, less what others have made up for.
    against: u8,
    /// When the last chunk was found that counts against it.
    late_at: Option<Moment>,
    closed: Option<Closed>,
    /// When it was opened again, and how long it was, or is, closed.
    opened: Option<Moment>,
    pause: Duration,
}

impl Known {
    const NEW: Self = Self { against: 0, late_at: None, closed: None, opened: None, pause: PAUSE };

    /// Closes the class, after a chunk that the engine is known to have had for so long.
    fn close(&mut self, had: Duration, now: Moment) {
        let was_steady = self.opened.is_none_or(|opened| now.since(opened) >= STEADY);
        let pause = if was_steady && self.closed.is_none() { PAUSE } else { self.pause * 2 };
        self.pause = pause.max(had.saturating_mul(SHARE)).min(LONGEST_PAUSE);
        self.closed = Some(Closed { since: now, passed_on: 0 });
    }

    /// Whether a late chunk counts against it: chunks that are under way together are late together.
    fn is_blamed_for(&self, chunk: &Timed) -> bool {
        self.closed.is_none() && self.late_at.is_none_or(|late_at| chunk.since >= late_at)
    }

    fn open(&mut self, now: Moment) {
        (self.closed, self.opened, self.against) = (None, Some(now), ON_PROBATION);
    }
}

/// The class that is tried.
#[derive(Debug, Clone, Copy)]
struct Trial {
    class: Class,
    since: Moment,
    /// Jobs that may still go to the chunk.
    left: u32,
}

/// What is known of an engine's chunks.
#[derive(Debug)]
pub(crate) struct ChunkTimes {
    bound: Duration,
    known: Box<[Known]>,
    /// How many are closed, and whether others were told which.
    closed: usize,
    is_told: bool,
    trial: Option<Trial>,
    /// There is none before.
    next: Moment,
}

impl ChunkTimes {
    pub(crate) fn new(bound: Duration) -> Self {
        let known = vec![Known::NEW; COUNT].into();
        Self { bound, known, closed: 0, is_told: true, trial: None, next: Moment::default() }
    }

    /// What is closed, until others were [told](Self::told).
    pub(crate) fn to_be_told(&self) -> Option<impl Iterator<Item = Class>> {
        let closed = self.known.iter().enumerate().filter(|(_, known)| known.closed.is_some());
        (!self.is_told).then(|| closed.map(|(at, _)| Class(at)))
    }

    /// Others know what is closed.
    pub(crate) fn told(&mut self) {
        self.is_told = true;
    }

    /// Whether any class is closed.
    pub(crate) fn has_closed(&self) -> bool {
        self.closed > 0
    }

    /// Whether a job that came now may go to the engine. One that may not goes to the next one.
    pub(crate) fn admits(&mut self, class: Class, now: Moment) -> bool {
        if !self.has_closed() {
            return true;
        }
        let Some(known) = self.known.get_mut(class.0) else { return true };
        let Some(closed) = &mut known.closed else { return true };
        closed.passed_on = closed.passed_on.saturating_add(1);
        self.trial = self.trial.filter(|trial| now.since(trial.since) < FORGOTTEN);
        if let Some(trial) = &mut self.trial {
            let is_tried = trial.class == class && trial.left > 0;
            trial.left -= u32::from(is_tried);
            return is_tried;
        }
        let jobs = (closed.passed_on / SHARE).min(MOST_TRIED);
        if jobs == 0 || now < self.next || now.since(closed.since) < known.pause {
            return false;
        }
        closed.passed_on = 0;
        self.trial = Some(Trial { class, since: now, left: jobs - 1 });
        true
    }

    /// A chunk goes to the engine: a trial gets no other one. Returns whether there is one.
    pub(crate) fn submitted(&mut self, classes: &Classes, now: Moment) -> bool {
        self.trial = self.trial.filter(|trial| now.since(trial.since) < FORGOTTEN);
        if let Some(trial) = self.trial.as_mut().filter(|trial| classes.contains(trial.class)) {
            trial.left = 0;
        }
        self.trial.is_some()
    }

    /// Nothing is learned of a chunk: if a class was tried with it, that says nothing.
    pub(crate) fn pass_over(&mut self, classes: &Classes) {
        self.trial = self.trial.filter(|trial| !classes.contains(trial.class));
    }

    /// The engine took nothing of a chunk, or ended all of it at once. One that failed at a trial has the
    /// class closed for longer.
    pub(crate) fn ended_at_once(&mut self, classes: &Classes, has_failed: bool, now: Moment) {
        let tried = self.trial.filter(|trial| classes.contains(trial.class));
        let known = tried.and_then(|trial| self.known.get_mut(trial.class.0));
        if let Some(known) = known.filter(|known| has_failed && known.closed.is_some()) {
            known.close(Duration::ZERO, now);
        }
        self.pass_over(classes);
    }

    /// A chunk was late, and closes one class at least if it is [learned](Self::learn) of.
    pub(crate) fn would_close(&self, chunk: &Timed) -> bool {
        let closes = |Class(at): Class| {
            self.known.get(at).is_some_and(|of| of.against >= ON_PROBATION && of.is_blamed_for(chunk))
        };
        self.blames(chunk) && chunk.classes.iter().any(closes)
    }

    /// Whether a chunk counts against its open classes: it is late, and neither a trial nor a class that was
    /// closed since it was gathered is what made it so.
    fn blames(&self, chunk: &Timed) -> bool {
        let is_closed = |Class(at): Class| self.known.get(at).is_some_and(|of| of.closed.is_some());
        self.verdict(chunk) == Verdict::Late && !chunk.is_beside && !chunk.classes.iter().any(is_closed)
    }

    /// Nothing is held against the classes of a chunk any more: chunks are smaller from now on.
    pub(crate) fn forgive(&mut self, chunk: &Timed) {
        for Class(at) in chunk.classes.iter() {
            self.known.get_mut(at).into_iter().for_each(|known| known.against = 0);
        }
    }

    /// A chunk has come back.
    pub(crate) fn learn(&mut self, chunk: &Timed, now: Moment) {
        let (verdict, blames) = (self.verdict(chunk), self.blames(chunk));
        // What a worker adds that did not look is none of it.
        let had = chunk.away.max(chunk.took.min(self.bound));
        let tried = self.trial.filter(|trial| chunk.classes.contains(trial.class));
        for class in chunk.classes.iter() {
            let Some(known) = self.known.get_mut(class.0) else { continue };
            let is_tried = tried.is_some_and(|trial| trial.class == class);
            match verdict {
                Verdict::InTime | Verdict::Unseen if is_tried && known.closed.is_some() => {
                    known.open(now);
                    self.closed -= 1;
                    self.is_told = false;
                }
                _ if is_tried && known.closed.is_some() => known.close(had, now),
                _ if known.closed.is_some() => {}
                Verdict::InTime => known.against = known.against.saturating_sub(1),
                Verdict::Late if blames && known.is_blamed_for(chunk) => {
                    known.late_at = Some(now);
                    known.against = known.against.saturating_add(LATE);
                    if known.against >= CLOSES {
                        known.close(had, now);
                        self.closed += 1;
                        self.is_told = false;
                    }
                }
                Verdict::Late | Verdict::Unseen | Verdict::Failed => {}
            }
        }
        if tried.is_some() {
            self.trial = None;
            self.next = Moment(now.0 + had.saturating_mul(SHARE).min(LONGEST_PAUSE));
        }
    }

    fn verdict(&self, chunk: &Timed) -> Verdict {
        if chunk.away > self.bound {
            Verdict::Late
        } else if chunk.has_failed {
            Verdict::Failed
        } else if chunk.took <= self.bound {
            Verdict::InTime
        } else {
            Verdict::Unseen
        }
    }
}

#[cfg(test)]
mod tests;
