//! Whether bursts are worth handing over, remembered by suite and length, so that one that is not costs the
//! worker little to decide of: its kind is looked up.
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
//! Each rest is twice as long as the one before until something else is found, also after a trial that told
//! nothing. One in which the other way is plainly slower ends early, since packets may be lost meanwhile.
//! What the worker does alone and can no longer be timed is handed over again, as reckoning says.
//!
//! A burst is timed only while the worker is pressed: one that waits for packets is as fast either way. And
//! only if the next one is of the same kind: else the time between the two is that of others, too.

use crate::engines::Engines;
use crate::share::OTHER_MOST;
use testudo_crypto::{Job, Suite};

/// Bursts of a kind that the worker does without being asked.
pub(crate) const LEFT: u32 = 128;
/// Where jobs cost so many times what it costs to hand them over, nothing is tried.
const SURE: u64 = 4;
/// Bursts that were not worth handing over must cost more than that by one part in so many.
const DEARER_PART: u64 = 8;
/// Bursts of a rest, at first and at the most.
const REST: u32 = 512;
const REST_MOST: u32 = 64 * REST;
/// Bursts that are timed, of which half must be fit for that.
const TIMED: u32 = 32;
/// Of so many, the other way may be found plainly slower.
const TIMED_LEAST: u32 = TIMED / 4;
/// Bursts until threads have as much before them as they will have, or nothing, at the most.
const SETTLE: u32 = 64;
/// The other way must be faster by one part in so many.
const FASTER_PART: u64 = 16;
/// It is plainly slower if the way that was is faster by one part in so many.
const PLAIN_PART: u64 = 3;
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
    /// It may be timed: the worker is pressed.
    pub(crate) is_fit: bool,
    /// Threads have nothing under way.
    pub(crate) is_clear: bool,
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

    /// Whether a job takes less by one part in so many. Lossless: a burst has fewer than 2^20 jobs and is
    /// timed for less than 2^34 ticks.
    fn is_faster_than(&self, other: &Self, part: u64) -> bool {
        let product = |ticks: u64, jobs: u64, parts: u64| u128::from(ticks) * u128::from(jobs * parts);
        product(self.ticks, other.jobs, part) < product(other.ticks, self.jobs, part - 1)
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
    /// What a job of the last one that was asked about was expected to cost the worker, in ticks.
    own: u64,
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
        own: 0,
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
        self.is_cheap = burst.own <= burst.handing_over + margin;
        self.own = burst.own / burst.jobs.max(1);
        let is_trial = self.stage != Stage::Rest;
        if self.is_cheap {
            // A first measurement may have been interrupted.
            self.left = if burst.is_known { LEFT } else { 0 };
            if is_trial {
                self.choose(self.is_alone);
            }
        } else if burst.own / SURE > burst.handing_over {
            if is_trial || self.is_alone {
                self.choose(false);
            }
        } else {
            self.time(burst);
            self.pass(burst);
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
    fn pass(&mut self, burst: &Burst) {
        self.bursts = self.bursts.saturating_sub(if self.rests_alone() { 1 + LEFT } else { 1 });
        if self.bursts == 0 || self.is_over(burst) {
            self.next_stage();
        }
        if self.rests_alone() {
            self.left = LEFT;
        }
    }

    /// Whether no more bursts of this stage are needed.
    fn is_over(&self, burst: &Burst) -> bool {
        match self.stage {
            Stage::Rest | Stage::Here => false,
            Stage::Settle => self.is_workers() && burst.is_clear,
            Stage::There => {
                self.there.bursts >= TIMED_LEAST && self.here.is_faster_than(&self.there, PLAIN_PART)
            }
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
            Stage::Here if self.is_alone => return self.choose(false),
            // Nothing was tried, and nothing lost.
            Stage::Here => (Stage::Rest, self.rest),
            Stage::Settle => (Stage::There, TIMED),
            Stage::There => {
                let is_faster = self.there.is_fit() && self.there.is_faster_than(&self.here, FASTER_PART);
                return self.choose(self.is_alone ^ is_faster);
            }
        };
    }

    /// Ends a trial. What is new is looked into soon, and what was before ever more seldom.
    fn choose(&mut self, is_alone: bool) {
        self.rest = if is_alone == self.is_alone { (2 * self.rest).min(REST_MOST) } else { REST };
        self.is_alone = is_alone;
        (self.stage, self.bursts, self.timed) = (Stage::Rest, self.rest, None);
    }
}

/// Of all kinds.
pub(crate) struct Worths {
    /// By the ranks of suites.
    suites: Vec<[Worth; CLASSES.len() + 1]>,
    /// That of the burst before, if it has one.
    last: Option<Kind>,
}

impl Worths {
    pub(crate) fn new() -> Self {
        Self { suites: Suite::every().map(|_| [Worth::FIRST; CLASSES.len() + 1]).collect(), last: None }
    }

    fn of(&mut self, kind: Kind) -> Option<&mut Worth> {
        self.suites.get_mut(kind.rank)?.get_mut(kind.class)
    }

    /// What becomes of the next burst, which has a kind or none. To be asked once for each.
    #[inline]
    pub(crate) fn course(&mut self, kind: Option<Kind>) -> Course {
        let is_other = self.last != kind;
        self.last = kind;
        let Some(worth) = kind.and_then(|kind| self.of(kind)) else { return Course::Open };
        if is_other {
            // What has passed since the last one of this kind is not its time alone.
            worth.timed = None;
        }
        worth.course()
    }

    /// What a job of a kind costs the worker, in ticks, as was expected of the last burst asked about.
    #[inline]
    pub(crate) fn own(&mut self, kind: Option<Kind>) -> u64 {
        kind.and_then(|kind| self.of(kind)).map_or(0, |worth| worth.own)
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
        is_clear: bool,
    }

    impl Bursts {
        fn of(own: u64, alone: u64, divided: u64) -> Self {
            let (worth, now, is_known, is_fit, is_clear) = (Worth::FIRST, 1_000, true, true, false);
            Self { worth, now, own, alone, divided, is_known, is_fit, is_clear }
        }

        fn next(&mut self) -> Course {
            let course = self.worth.course();
            let &mut Self { now, own, is_known, is_fit, is_clear, .. } = self;
            if course != Course::Left {
                let handing_over = HANDING_OVER;
                self.worth.begin(&Burst { now, jobs: 10, own, is_known, handing_over, is_fit, is_clear });
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

    /// Where threads do most, each burst alone costs the packets of several.
    #[test]
    fn a_trial_that_is_plainly_slower_ends_after_few_bursts() {
        let mut bursts = Bursts::of(10_000, 20_000, 9_000);
        assert_eq!(bursts.workers(REST + TIMED), 0);
        // With some under way, threads have the time of all bursts of the stage to end those.
        let slow = 1 + TIMED_LEAST as usize;
        assert_eq!(bursts.workers(REST), SETTLE as usize + slow);
        bursts.workers(REST + TIMED);
        bursts.is_clear = true;
        assert_eq!(bursts.workers(4 * REST), 1 + slow, "nothing is under way: one was enough");
    }

    /// Lengths within a class differ, and rates wander.
    #[test]
    fn what_was_learned_of_trials_stays_where_the_price_is_far_beyond_now_and_then() {
        let mut bursts = Bursts::of(10_000, 10_000, 10_000);
        let mut alone = 0;
        for _ in 0..100 {
            bursts.own = SURE * (HANDING_OVER + 1);
            alone += bursts.workers(1);
            bursts.own = 10_000;
            alone += bursts.workers(999);
        }
        assert!(alone > 0 && alone < 1_000, "{alone} of 100,000 were tried");
    }

    #[test]
    fn what_cannot_be_timed_is_handed_over_and_tried_ever_more_seldom() {
        let mut bursts = Bursts::of(10_000, 8_000, 9_000);
        bursts.workers(REST + TIMED + SETTLE + TIMED);
        bursts.is_fit = false;
        let rest = 4 * (1 + LEFT);
        assert_eq!(bursts.workers(rest + TIMED), (rest + TIMED) as usize, "it was faster alone");
        assert_eq!(bursts.workers(REST), 0);
        bursts.is_fit = true;
        assert_eq!(bursts.workers(TIMED), 0);
        assert_eq!(bursts.workers(SETTLE + TIMED + REST), (SETTLE + TIMED + REST) as usize);
        // Alone it loses its processor each time: after 512 bursts, 1,024, 2,048, 4,096.
        bursts = Bursts::of(10_000, 1 << 30, 9_000);
        assert_eq!(bursts.workers(10_000), 4 * (SETTLE + TIMED) as usize);
    }

    /// How many of so many bursts of a kind the worker does alone: 8,000 ticks each, 9,000 divided. There is
    /// one of another kind after each `run` of them, and it is fast while the first kind is done alone.
    fn workers_beside_others(run: usize, count: usize) -> usize {
        let (mut worths, mut now, mut alone) = (Worths::new(), 1_000, 0);
        let kinds = [Kind { rank: 0, class: 3 }, Kind { rank: 0, class: 0 }];
        let mut next = |kind: Kind, ticks: [u64; 2]| {
            let course = worths.course(Some(kind));
            if course != Course::Left {
                let (own, handing_over) = (10_000, HANDING_OVER);
                let (is_known, is_fit, is_clear) = (true, true, false);
                worths.begin(kind, &Burst { now, jobs: 10, own, is_known, handing_over, is_fit, is_clear });
            }
            now += ticks[usize::from(course == Course::Open)];
            course != Course::Open
        };
        for at in 0..count {
            let is_alone = next(kinds[0], [8_000, 9_000]);
            alone += usize::from(is_alone);
            if at % run == run - 1 {
                next(kinds[1], if is_alone { [1_000; 2] } else { [9_000; 2] });
            }
        }
        alone
    }

    #[test]
    fn bursts_are_timed_where_none_of_another_kind_are_between_them() {
        assert_eq!(workers_beside_others(1, 5_000), 0, "others come each time");
        let alone = workers_beside_others(3, 6_000);
        assert!(alone > 4_000, "{alone} of 6,000 are faster alone");
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
