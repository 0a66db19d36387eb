//! Whether bursts are worth handing over, remembered by suite and length, so that one that is not costs the
//! worker nothing to decide of.
//!
//! What jobs cost was learned ([`cost`](crate::cost)), and what handing them over costs is reckoned
//! ([`share`](crate::share)). That leaves three cases:
//!
//! - It costs more: the worker does the next [`LEFT`] bursts of this kind, which are neither priced nor
//!   timed, and one is asked about then.
//! - It costs less by [far](SURE): bursts are handed over.
//! - Between the two, reckoning does not tell. Who has written a packet last, how far apart two cores are and
//!   whether they share one, shows in the time that the worker needs for everything, from one burst to the
//!   next. So at times it does bursts the other way, and whatever is faster stays:
//!
//! ```text
//!   rest ──► here ───► settle ──► there ──► the faster one, by a 16th: rest
//!   (as it   (timed)   (the other (timed)
//!    was)               way)
//! ```
//!
//! Each rest is twice as long as the one before until something else is found. Bursts are timed while the
//! worker is pressed alone: one that waits for packets is as fast either way.

use crate::engines::Engines;
use crate::share::OTHER_MOST;
use testudo_crypto::{Job, Suite};

/// Bursts of a kind that the worker does without being asked.
pub(crate) const LEFT: u32 = 128;
/// Where jobs cost so many times what it costs to hand them over, nothing is tried.
const SURE: u64 = 8;
/// Bursts that were not worth handing over must cost more than that by one part in so many.
const DEARER_PART: u64 = 8;
/// Bursts of a rest, at first and at the most.
const REST: u32 = 512;
const REST_MOST: u32 = 64 * REST;
/// Bursts that are timed, of which half must be fit for that.
const TIMED: u32 = 32;
/// Bursts until threads have as much before them as they will have, or nothing.
const SETTLE: u32 = 64;
/// The other way must be faster by one part in so many.
const FASTER_PART: u64 = 16;
/// The longest texts of all classes but the last one, in bytes.
const CLASSES: [u32; 3] = [255, 767, 1151];

/// What bursts are told apart by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Kind {
    /// The [rank](crate::cost::rank) of the suite.
    rank: usize,
    /// The class of lengths.
    class: usize,
}

impl Kind {
    /// By the first, the middle and the last job, which is little to do for a burst however long, and
    /// mistakes cost nothing but time; `None` if they are of several suites.
    #[inline]
    pub(crate) fn of(engines: &Engines, jobs: &[Job]) -> Option<Self> {
        let (first, middle, last) = (jobs.first()?, jobs.get(jobs.len() / 2)?, jobs.last()?);
        let rank = engines.rank_of(first.key)?;
        let is_like = |job: &Job| job.key == first.key || engines.rank_of(job.key) == Some(rank);
        let longest = first.text_bytes.max(middle.text_bytes).max(last.text_bytes);
        let class = CLASSES.iter().filter(|most| longest > **most).count();
        (is_like(middle) && is_like(last)).then_some(Self { rank, class })
    }
}

/// What becomes of a burst.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Course {
    /// The worker does it, and nothing is asked.
    Left,
    /// The worker does it, and is timed.
    Alone,
    /// It is divided, if it is long enough.
    Open,
}

/// A burst that is not [left](Course::Left).
#[derive(Debug, Clone, Copy)]
pub(crate) struct Burst {
    /// When it begins.
    pub(crate) now: u64,
    pub(crate) jobs: u64,
    /// What it is expected to cost the worker, in ticks, and whether that was measured.
    pub(crate) own: u64,
    pub(crate) is_known: bool,
    /// What it costs more to hand it over than to do it in place.
    pub(crate) handing_over: u64,
    /// It may be timed: the worker is pressed, and if it is alone nothing is under way.
    pub(crate) is_fit: bool,
}

impl Burst {
    /// A worker that does not come again for longer has lost its processor.
    fn longest(&self) -> u64 {
        2 * (self.own + OTHER_MOST * self.jobs)
    }
}

/// Time of the worker, and what it has done in that.
#[derive(Debug, Clone, Copy, Default)]
struct Pace {
    ticks: u64,
    jobs: u64,
    bursts: u32,
}

impl Pace {
    fn is_fit(&self) -> bool {
        self.bursts >= TIMED / 2
    }

    /// Whether a job takes less by enough. Lossless: a burst has fewer than 2^20 jobs and is timed for less
    /// than 2^34 ticks.
    fn is_faster_than(&self, other: &Self) -> bool {
        let product = |ticks: u64, jobs: u64, parts: u64| u128::from(ticks) * u128::from(jobs * parts);
        product(self.ticks, other.jobs, FASTER_PART) < product(other.ticks, self.jobs, FASTER_PART - 1)
    }
}

/// Of the trial of the other way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// Bursts are done as was found best.
    Rest,
    /// That is timed.
    Here,
    /// They are done the other way, and what is under way becomes what it will be.
    Settle,
    /// The other way is timed.
    There,
}

/// Of bursts of one kind.
#[derive(Debug, Clone, Copy)]
struct Worth {
    /// Bursts that the worker does before it is asked again.
    left: u32,
    /// They cost less than handing them over, when that was last asked.
    is_cheap: bool,
    /// The worker alone was faster.
    is_alone: bool,
    stage: Stage,
    /// Bursts until the next stage, and how many the next rest has.
    bursts: u32,
    rest: u32,
    here: Pace,
    there: Pace,
    /// The last burst, if it is timed.
    timed: Option<Burst>,
}

impl Worth {
    const FIRST: Self = Self {
        left: 0,
        is_cheap: false,
        is_alone: false,
        stage: Stage::Rest,
        bursts: REST,
        rest: REST,
        here: Pace { ticks: 0, jobs: 0, bursts: 0 },
        there: Pace { ticks: 0, jobs: 0, bursts: 0 },
        timed: None,
    };

    /// Whether the worker does what is asked about now.
    fn is_workers(&self) -> bool {
        let is_other_way = matches!(self.stage, Stage::Settle | Stage::There);
        self.is_cheap || self.is_alone != is_other_way
    }

    #[inline]
    fn course(&mut self) -> Course {
        match self.left.checked_sub(1) {
            Some(left) => {
                self.left = left;
                Course::Left
            }
            None if self.is_workers() => Course::Alone,
            None => Course::Open,
        }
    }

    fn begin(&mut self, burst: &Burst) {
        let margin = if self.is_cheap { burst.handing_over / DEARER_PART } else { 0 };
        if burst.own <= burst.handing_over + margin {
            // A first measurement may have been interrupted.
            let left = if burst.is_known { LEFT } else { 0 };
            *self = Self { is_cheap: true, left, ..Self::FIRST };
        } else if self.is_cheap || burst.own / SURE > burst.handing_over {
            *self = Self::FIRST;
        } else {
            self.time(burst);
            self.pass();
        }
    }

    /// Times the burst before this one.
    fn time(&mut self, burst: &Burst) {
        let pace = match self.stage {
            Stage::Here => &mut self.here,
            Stage::There => &mut self.there,
            Stage::Rest | Stage::Settle => return,
        };
        if let Some(before) = &self.timed {
            let ticks = burst.now.saturating_sub(before.now);
            if ticks <= before.longest() {
                pace.ticks += ticks;
                pace.jobs += before.jobs;
                pace.bursts += 1;
            }
        }
        self.timed = burst.is_fit.then_some(*burst);
    }

    /// Whether the worker rests in doing all of it: most bursts are not asked about then.
    fn rests_alone(&self) -> bool {
        self.stage == Stage::Rest && self.is_alone
    }

    /// A burst of this stage has passed, and those that were left before it.
    fn pass(&mut self) {
        self.bursts = self.bursts.saturating_sub(if self.rests_alone() { 1 + LEFT } else { 1 });
        if self.bursts == 0 {
            self.next_stage();
        }
        if self.rests_alone() {
            self.left = LEFT;
        }
    }

    fn next_stage(&mut self) {
        self.timed = None;
        (self.stage, self.bursts) = match self.stage {
            Stage::Rest => {
                (self.here, self.there) = (Pace::default(), Pace::default());
                (Stage::Here, TIMED)
            }
            Stage::Here if self.here.is_fit() => (Stage::Settle, SETTLE),
            Stage::Here => (Stage::Rest, self.rest),
            Stage::Settle => (Stage::There, TIMED),
            Stage::There => {
                if self.there.is_fit() {
                    let is_faster = self.there.is_faster_than(&self.here);
                    self.rest = if is_faster { REST } else { (2 * self.rest).min(REST_MOST) };
                    self.is_alone ^= is_faster;
                }
                (Stage::Rest, self.rest)
            }
        };
    }
}

/// Of all kinds.
pub(crate) struct Worths {
    /// By the ranks of suites.
    suites: Vec<[Worth; CLASSES.len() + 1]>,
}

impl Worths {
    pub(crate) fn new() -> Self {
        Self { suites: Suite::every().map(|_| [Worth::FIRST; CLASSES.len() + 1]).collect() }
    }

    fn of(&mut self, kind: Kind) -> Option<&mut Worth> {
        self.suites.get_mut(kind.rank)?.get_mut(kind.class)
    }

    /// What becomes of the next burst of a kind. To be asked once for each.
    #[inline]
    pub(crate) fn course(&mut self, kind: Kind) -> Course {
        self.of(kind).map_or(Course::Open, Worth::course)
    }

    /// A burst of a kind begins that is not left: what becomes of the next ones follows from it.
    pub(crate) fn begin(&mut self, kind: Kind, burst: &Burst) {
        if let Some(worth) = self.of(kind) {
            worth.begin(burst);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What bursts of ten jobs cost to hand over.
    const HANDING_OVER: u64 = 4_000;

    /// Bursts of ten jobs, one behind the other.
    struct Bursts {
        worth: Worth,
        now: u64,
        /// What their cryptography is expected to cost the worker.
        own: u64,
        /// The time from one to the next where the worker does all of it, and where they are divided.
        alone: u64,
        divided: u64,
        is_known: bool,
        is_fit: bool,
    }

    impl Bursts {
        fn of(own: u64, alone: u64, divided: u64) -> Self {
            Self { worth: Worth::FIRST, now: 1_000, own, alone, divided, is_known: true, is_fit: true }
        }

        fn next(&mut self) -> Course {
            let course = self.worth.course();
            let &mut Self { now, own, is_known, is_fit, .. } = self;
            if course != Course::Left {
                let handing_over = HANDING_OVER;
                self.worth.begin(&Burst { now, jobs: 10, own, is_known, handing_over, is_fit });
            }
            self.now += if course == Course::Open { self.divided } else { self.alone };
            course
        }

        fn take(&mut self, count: u32) -> Vec<Course> {
            (0..count).map(|_| self.next()).collect()
        }

        /// How many of so many bursts the worker does alone.
        fn workers(&mut self, count: u32) -> usize {
            self.take(count).iter().filter(|course| **course != Course::Open).count()
        }
    }

    #[test]
    fn bursts_that_cost_less_than_handing_over_are_left_and_asked_about_now_and_then() {
        let mut bursts = Bursts::of(3_000, 3_500, 9_000);
        bursts.is_known = false;
        assert_eq!(bursts.take(3), [Course::Open, Course::Alone, Course::Alone], "nothing was measured");
        bursts.is_known = true;
        for _ in 0..3 {
            assert_eq!(bursts.next(), Course::Alone);
            assert!(bursts.take(LEFT).iter().all(|course| *course == Course::Left));
        }
        // A little more than handing over is not enough.
        bursts.own = HANDING_OVER + HANDING_OVER / DEARER_PART;
        assert_eq!(bursts.workers(1 + LEFT), 1 + LEFT as usize);
        bursts.own += 1;
        assert_eq!(bursts.take(3), [Course::Alone, Course::Open, Course::Open]);
    }

    #[test]
    fn whatever_is_faster_stays_and_the_other_way_is_tried_again() {
        let mut bursts = Bursts::of(10_000, 8_000, 9_000);
        assert_eq!(bursts.workers(REST + TIMED), 0);
        assert_eq!(bursts.workers(SETTLE + TIMED), (SETTLE + TIMED) as usize);
        assert_eq!(bursts.workers(REST), REST as usize, "it is faster");
        // Tried again each time the rest is over, ever more seldom.
        let divided = 20_000 - bursts.workers(20_000);
        assert!(divided > 0 && divided <= 7 * (SETTLE + TIMED) as usize, "{divided}");
        // The other way becomes the faster one.
        bursts.divided = 5_000;
        bursts.workers(REST_MOST);
        assert_eq!(bursts.workers(REST), 0);
    }

    #[test]
    fn a_sixteenth_decides_and_what_is_found_again_is_tried_ever_more_seldom() {
        let mut bursts = Bursts::of(10_000, 9_400, 10_000);
        let alone = bursts.workers(100_000);
        assert!(alone > 0 && alone < 1_000, "{alone} of 100,000 were tried");
        bursts = Bursts::of(10_000, 9_300, 10_000);
        bursts.workers(REST + TIMED + SETTLE + TIMED);
        assert_eq!(bursts.workers(REST), REST as usize);
    }

    #[test]
    fn a_burst_in_which_the_worker_lost_its_processor_does_not_count() {
        let mut bursts = Bursts::of(10_000, 8_000, 9_000);
        bursts.workers(REST + TIMED + SETTLE + TIMED / 2);
        bursts.now += 1 << 30;
        bursts.workers(TIMED / 2);
        assert_eq!(bursts.workers(REST), REST as usize);
    }

    #[test]
    fn nothing_is_tried_of_what_costs_far_more_than_handing_over_or_while_the_worker_has_time() {
        let mut bursts = Bursts::of(SURE * (HANDING_OVER + 1), 100, 90_000);
        assert_eq!(bursts.workers(10_000), 0);
        bursts = Bursts::of(10_000, 100, 90_000);
        bursts.is_fit = false;
        assert_eq!(bursts.workers(10_000), 0);
        // What the worker did alone is handed over at once when it costs far more.
        bursts = Bursts::of(10_000, 8_000, 9_000);
        bursts.workers(4 * REST);
        bursts.own = SURE * (HANDING_OVER + 1);
        bursts.workers(1 + LEFT);
        assert_eq!(bursts.workers(1_000), 0);
    }
}
