//! Live placement: where a job goes when several engines could do it.
//!
//! What engines cost is known by suite and [length class](LENGTHS). Of the engines that would have the job
//! back within the bound, the one that costs the worker the least gets it: the worker's time is what a
//! gateway runs out of. If none would, the one that has it back first gets it.
//!
//! ```text
//!   expected, inside `submit`   what the turn has given to such engines + what the job costs; and, where an
//!                               engine elsewhere could do it, how long the turn before took, for which its
//!                               packet may have waited, half of the bound at most
//!   expected, elsewhere         jobs that the engine has × its time for one + how long it was away when there were
//!                               none; no less than the job it has had the longest is away by now
//! ```
//!
//! A class stays where it is until another engine was a twentieth cheaper for [`STEADY`] jobs in a row. A job
//! that its class's engine would not have back in time, or has no room for, goes elsewhere alone and at once:
//! to one that would have it back in time, or a tenth sooner where none would. That counts for the row, too,
//! unless it is for a queue alone that it would be late, and the other costs the worker more.
//!
//! The decision is a function of what is passed in: clocks and measurements are its caller's.

use crate::placement::MAX_ENGINES;
use testudo_crypto::Engine;

/// The longest text of each class of length, in bytes; one more class has all that is longer.
pub const LENGTHS: [u32; 6] = [64, 128, 256, 512, 1024, 1536];
/// All of them are multiples of this.
const STEP: u32 = 64;
/// The class of each step.
const CLASS_OF_STEP: [u8; 24] = [0, 1, 2, 2, 3, 3, 3, 3, 4, 4, 4, 4, 4, 4, 4, 4, 5, 5, 5, 5, 5, 5, 5, 5];
/// How many classes there are.
pub const CLASSES: usize = LENGTHS.len() + 1;
/// Jobs in a row for which another engine must be better.
pub(crate) const STEADY: u16 = 64;
/// What nobody has measured costs. Two of them do not overflow.
pub(crate) const UNKNOWN: u64 = u64::MAX / 4;

/// The class of a text of so many bytes.
pub(crate) fn class_of(text_bytes: u32) -> usize {
    let at = usize::try_from(text_bytes.saturating_sub(1) / STEP).unwrap_or(usize::MAX);
    CLASS_OF_STEP.get(at).map_or(LENGTHS.len(), |class| usize::from(*class))
}

/// Which jobs go where: by the order of engines, or by what they cost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum PlacementMode {
    /// To the first engine that does their suite, and from there to the next one.
    #[default]
    First,
    /// To the engine that costs the least within the latency bound.
    Live,
}

impl PlacementMode {
    /// Brings the engines of a worker into the order in which a job passes on when one fails at it or has it
    /// for too long. Placed by cost, those that end jobs inside `submit` are behind all others, so that what
    /// an engine elsewhere cannot do in time finds each of them; otherwise they stay as they are.
    pub fn arrange(self, engines: &mut [Box<dyn Engine>]) {
        if self == Self::Live {
            engines.sort_by_key(|engine| engine.is_synchronous());
        }
    }
}

/// Why an engine got a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Reason {
    /// No other engine in service takes the key.
    Only,
    /// It costs the least within the bound, or has jobs back first where none is within it.
    Best,
    /// The best one had no room.
    Full,
    /// The best one would have had it back too late.
    Late,
    /// It waited for one that was taken out of service.
    Withdrawn,
    /// An engine failed at it, or the best one at so many like it that it gets none.
    Failed,
    /// The best one does not take its key.
    Refused,
    /// To measure it: once a second at most.
    Measured,
}

impl Reason {
    /// Every reason.
    pub const ALL: [Self; 8] = [
        Self::Only,
        Self::Best,
        Self::Full,
        Self::Late,
        Self::Withdrawn,
        Self::Failed,
        Self::Refused,
        Self::Measured,
    ];

    /// Its name in JSON and metrics.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Only => "only",
            Self::Best => "best",
            Self::Full => "full",
            Self::Late => "late",
            Self::Withdrawn => "withdrawn",
            Self::Failed => "failed",
            Self::Refused => "refused",
            Self::Measured => "measured",
        }
    }
}

/// What an engine offers for one job. Times in picoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Offer {
    /// It is in service and takes the key.
    pub(crate) can: bool,
    /// It failed at the last jobs of the kind.
    pub(crate) fails: bool,
    pub(crate) has_room: bool,
    /// What the job costs the worker.
    pub(crate) cost_ps: u64,
    /// When the job is back.
    pub(crate) expected_ps: u64,
    /// When it would be if the engine had none of the jobs that wait there.
    pub(crate) alone_ps: u64,
}

impl Offer {
    fn is_open(&self) -> bool {
        self.can && self.has_room && !self.fails
    }

    fn is_within(&self, bound_ps: u64) -> bool {
        self.expected_ps <= bound_ps
    }

    /// Why a job is not done by this engine, which has those like it, but by the best one, if that is
    /// another.
    fn leaves_to(&self, best: &Self, bound_ps: u64) -> Option<Reason> {
        let is_sooner = is_a_tenth_less(best.expected_ps, self.expected_ps);
        if self.fails && !best.fails {
            Some(Reason::Failed)
        } else if !self.has_room && best.has_room {
            Some(Reason::Full)
        } else if !self.is_within(bound_ps) && (best.is_within(bound_ps) || is_sooner) {
            Some(Reason::Late)
        } else {
            None
        }
    }
}

/// By the engines' indices.
pub(crate) type Offers = [Offer; MAX_ENGINES];

/// The engine that gets a job if nothing was decided before; `None` if none can do it.
pub(crate) fn best(offers: &Offers, bound_ps: u64) -> Option<usize> {
    let rank = |offer: &Offer| match (offer.is_open(), offer.is_within(bound_ps)) {
        (true, true) => (0, offer.cost_ps),
        (true, false) => (1, offer.expected_ps),
        (false, _) => (2 + u8::from(offer.fails), offer.expected_ps),
    };
    let able = offers.iter().enumerate().filter(|(_, offer)| offer.can);
    able.min_by_key(|(at, offer)| (rank(offer), *at)).map(|(at, _)| at)
}

/// What was decided for the jobs of one suite and class so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Choice {
    /// The engine that gets them.
    pub(crate) engine: Option<usize>,
    /// Another that is better, and for how many jobs in a row it was.
    rival: usize,
    streak: u16,
    /// Jobs in a row that the rival could not do.
    skipped: u16,
}

impl Choice {
    /// Which engine gets the next job, and why; `None` if none can do it.
    pub(crate) fn decide(&mut self, offers: &Offers, bound_ps: u64) -> Option<(usize, Reason)> {
        let best = best(offers, bound_ps)?;
        if offers.iter().filter(|offer| offer.can).count() == 1 {
            return Some((best, Reason::Only));
        }
        let Some(mine) = self.engine else { return Some((self.settle(best), Reason::Best)) };
        let (one, other) = (&offers[mine], &offers[best]);
        if !one.can {
            // The jobs of other SAs are still its own.
            return Some((best, Reason::Refused));
        }
        let at_once = if best == mine { None } else { one.leaves_to(other, bound_ps) };
        if self.is_compared(offers) {
            let is_better = match at_once {
                // A queue is no reason to have all that follows done by who costs the worker more: while it
                // does them, as many come as make the next queue.
                Some(Reason::Late) => one.alone_ps > bound_ps || other.cost_ps <= one.cost_ps,
                Some(_) => true,
                None => one.is_within(bound_ps) && is_a_twentieth_less(other.cost_ps, one.cost_ps),
            };
            match best != mine && is_better {
                true => self.lose_to(best),
                false => self.streak = 0,
            }
        }
        match at_once {
            Some(reason) => Some((best, reason)),
            None => Some((self.engine.unwrap_or(best), Reason::Best)),
        }
    }

    /// The engine of the suite's other classes has this one, too, unless another is clearly better.
    pub(crate) fn prefer(&mut self, engine: Option<usize>, offers: &Offers, bound_ps: u64) {
        let (Some(engine), Some(best)) = (engine, best(offers, bound_ps)) else { return };
        let (one, other) = (&offers[engine], &offers[best]);
        let is_good = one.can && one.is_open() && one.is_within(bound_ps);
        if is_good && !is_a_twentieth_less(other.cost_ps, one.cost_ps) {
            self.settle(engine);
        }
    }

    /// An engine is out of service. What it had is decided of anew.
    pub(crate) fn withdraw(&mut self, engine: usize) {
        if self.engine == Some(engine) || self.streak > 0 && self.rival == engine {
            *self = Self { engine: self.engine.filter(|mine| *mine != engine), ..Self::default() };
        }
    }

    /// Whether a job counts for the row. One that the rival cannot do, of an SA that it refused, says nothing
    /// of it, unless all are.
    fn is_compared(&mut self, offers: &Offers) -> bool {
        let is_compared = self.streak == 0 || offers[self.rival].can || self.skipped == STEADY;
        self.skipped = if is_compared { 0 } else { self.skipped + 1 };
        is_compared
    }

    /// Whether the engine that has the jobs was the best for the last one, or not clearly worse.
    pub(crate) fn is_settled(&self) -> bool {
        self.engine.is_some() && self.streak == 0
    }

    /// From now on an engine has the jobs.
    fn settle(&mut self, engine: usize) -> usize {
        *self = Self { engine: Some(engine), ..Self::default() };
        engine
    }

    /// Another engine was better for one more job. If it was for long enough, it has the jobs from now on.
    fn lose_to(&mut self, rival: usize) {
        let before = if rival == self.rival { self.streak } else { 0 };
        (self.rival, self.streak) = (rival, before.saturating_add(1));
        if self.streak >= STEADY {
            self.settle(rival);
        }
    }
}

fn is_a_twentieth_less(its: u64, mine: u64) -> bool {
    its <= mine - mine / 20
}

fn is_a_tenth_less(its: u64, mine: u64) -> bool {
    its <= mine - mine / 10
}

#[cfg(test)]
mod tests;
