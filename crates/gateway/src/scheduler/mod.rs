//! The packet scheduler: gathers jobs for engines that want thousands of them at a time (paper 002, PIPSEA).
//!
//! ```text
//!   jobs ─► waiting bins, leftovers ─(the engine has room)─► a chunk, longest first ─► engine: active bins
//!                 │                                                                        │
//!                 └─(bins are full, or a job has waited too long)─► next engine            └─► poll
//! ```
//!
//! An engine whose [profile](testudo_crypto::Profile) asks for more jobs than a turn brings, and which does
//! not end them inside `submit`, is deep: jobs for it are sorted into [bins](bins::Bins). They go to the
//! engine together as soon as it works on fewer chunks than it could ([`pipeline`]): while the device is busy
//! bins fill, and when it idles nobody waits. So chunks are as large as the load makes them, up to the
//! configured size.
//!
//! **The bound.** A packet is to be away for its cryptography no longer than [`SchedulerSettings::latency`].
//! A job waits in a bin for at most that bound, less what a chunk is expected to take; then it goes to the
//! next engine, and so does a job that finds bins and leftovers full. Expected is what the profile says at
//! first, and what chunks took as they end. An engine that has a chunk beyond the bound, and beyond twice of
//! what was expected, gets no other before that ends. What an engine has taken cannot be taken back: later
//! packets of the same SA wait for it, in their SA's order ([`rings`](crate::rings)), until it ends or the
//! engine is given up ([`in_flight`](crate::in_flight)); those of other SAs pass.
//!
//! [`Formation`] says what bins are told apart by; without it there is one queue, cut into chunks.
//!
//! **Self-tuning** ([`tuning`]) changes chunk, bins and range while packets flow.
//!
//! **Threads** ([`threads`]) beside the worker are chosen by rates, with the threading model `auto`.
//!
//! **Memory** is allocated when the settings are made: bins and leftovers each hold a chunk, with
//! self-tuning the largest.

mod bins;
mod chunk_time;
mod costs;
mod counts;
mod ideas;
mod live;
mod measure;
mod pipeline;
mod settings;
mod shares;
mod threads;
mod tuning;

pub(crate) use chunk_time::{Class, Classes};
pub(crate) use costs::{Costs, Held, Label, SUITES};
pub(crate) use counts::SharedScheduled;
pub use counts::{LateJobs, Scheduled};
pub use ideas::Ideas;
pub(crate) use live::{CLASSES, class_of};
pub use live::{LENGTHS, PlacementMode, Reason};
pub(crate) use measure::{Incomplete, MEASURING, Measured, complete, job, measure};
pub use settings::{CHUNKS, SchedulerSettings, SettingsError};
pub(crate) use shares::SharedShares;
pub use shares::{Share, Shares};
pub use threads::{Chooser, Period, ThreadRates};

use crate::clock::{Clock, SystemClock};
use crate::dispatcher::EngineCosts;
use crate::formation::Formation;
use crate::worker::Worker;
use bins::{Bins, Label as BinLabel};
use chunk_time::ChunkTimes;
use pipeline::Pipeline;
use testudo_crypto::{Engine, Job, Profile, Suite};
use testudo_ipsec::Moment;
pub(crate) use tuning::Shape;
use tuning::Tuner;

/// Jobs that formation alone arranges: as many as a turn brings in a direction. An engine that wants more is
/// deep.
const TURN_JOBS: usize = 256;
/// Bytes of text that a job has on average, before anything was measured.
const MEAN_TEXT_BYTES: u64 = 512;

impl Worker {
    /// How jobs are gathered for engines that want thousands at a time; to be told before packets come.
    pub fn set_scheduler(&mut self, settings: &SchedulerSettings) {
        self.dispatcher.set_scheduler(settings);
        self.counters.set_shares(self.dispatcher.shares());
    }

    /// Measures what engines cost for these suites, where they are [placed](PlacementMode::Live) by that: a
    /// few milliseconds for each engine and suite, a second for all of them. An engine that does not give
    /// back what it is measured with within a second is taken out of service. To be called before packets
    /// come; engines are idle.
    pub fn measure_engines(&mut self, suites: &[Suite]) -> EngineCosts {
        self.measure_engines_by(suites, &SystemClock::default())
    }

    /// The same by another clock, for engines that have one of their own. Each look at it has to move it:
    /// who waits for an engine looks on.
    pub fn measure_engines_by(&mut self, suites: &[Suite], clock: &dyn Clock) -> EngineCosts {
        self.dispatcher.measure_engines(suites, MEASURING, clock)
    }

    /// The same for a worker whose engines are those of another one, which has measured them.
    pub fn know_engines(&mut self, costs: &EngineCosts) {
        self.dispatcher.know_engines(costs);
    }

    /// What live placement measures submissions with: the system's clock unless told.
    pub fn set_placement_clock(&mut self, clock: Box<dyn Clock>) {
        self.dispatcher.set_placement_clock(clock);
    }
}

/// What is to be done with the jobs that wait for an engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Due {
    /// They wait on, or there are none.
    Nothing,
    /// All of them go to the engine.
    Chunk,
    /// Those that came until then go to the next engine.
    Spill(Moment),
}

/// What waits for one engine, and what it has.
#[derive(Debug)]
pub(crate) struct Gathering {
    pub(crate) bins: Bins,
    pub(crate) pipeline: Pipeline,
    tuner: Option<Box<Tuner>>,
    /// The suite whose profile says how many chunks the engine works on.
    pub(crate) suite: Suite,
    latency: std::time::Duration,
    /// Which jobs the engine has back in time.
    pub(crate) times: ChunkTimes,
    /// From which shape on chunks are as small as they were to become when some were late.
    smaller_from: Option<u32>,
    /// Since when the engine takes nothing, which says nothing of how much it could.
    resting: Option<Moment>,
    /// Jobs are sorted while the engine has others.
    waiting_bins: bool,
    /// Jobs on their way out of the bins; empty between calls.
    pub(crate) out: Vec<Job>,
}

impl Gathering {
    fn new(settings: &SchedulerSettings, formation: Formation, (suite, profile): (Suite, &Profile)) -> Self {
        // Settings that no configuration has are those of tests.
        let is_tuned = settings.tune && settings.ideas == Ideas::default() && settings.check().is_ok();
        let tuner = is_tuned.then(|| Box::new(Tuner::new(settings, profile)));
        let bins = match &tuner {
            Some(tuner) => Bins::tuned(settings, formation, tuner.shape()),
            None => Bins::new(settings, formation),
        };
        // Bins and leftovers may leave together.
        let most = if is_tuned { tuning::MOST_CHUNK } else { bins.chunk() };
        let out = Vec::with_capacity(2 * most);
        let waiting_bins = settings.ideas.waiting_bins;
        let under_way = if waiting_bins { profile.under_way } else { 1 };
        let pipeline = Pipeline::new(&Profile { under_way, ..*profile }, bins.chunk(), MEAN_TEXT_BYTES);
        let latency = settings.latency;
        Self {
            bins,
            pipeline,
            tuner,
            suite,
            latency,
            times: ChunkTimes::new(latency),
            smaller_from: None,
            resting: None,
            waiting_bins,
            out,
        }
    }

    /// The engine works on so many chunks by now.
    pub(crate) fn set_under_way(&mut self, under_way: usize) {
        if self.waiting_bins {
            self.pipeline.set_most(under_way);
            self.tuner.iter_mut().for_each(|tuner| tuner.set_under_way(under_way));
        }
    }

    /// What is due now. `has_next` says whether another engine can do what waits for too long.
    pub(crate) fn due(&self, now: Moment, has_next: bool) -> Due {
        let Some(oldest) = self.bins.oldest() else { return Due::Nothing };
        if self.takes_chunk(now) {
            return Due::Chunk;
        }
        let slack = self.latency.saturating_sub(self.pipeline.expected());
        match now.since(oldest) >= slack && has_next {
            true => Due::Spill(Moment(now.0.saturating_sub(slack))),
            false => Due::Nothing,
        }
    }

    /// Adds a job that came now; gives it back if there is no room.
    pub(crate) fn push(&mut self, job: Job, label: BinLabel, now: Moment) -> Result<(), Job> {
        match self.waiting_bins || self.pipeline.under_way() == 0 {
            true => self.bins.push(job, label, now),
            false => self.bins.leave_over(job, label, now),
        }
    }

    /// Learns how long chunks that have ended were away. One that is late makes those that follow smaller
    /// before it costs the engine its jobs.
    pub(crate) fn learn_times(&mut self, now: Moment) {
        while let Some(chunk) = self.pipeline.take_timed() {
            if self.smaller_from.is_some_and(|epoch| is_before(chunk.epoch, epoch)) {
                self.times.pass_over(&chunk.classes);
                continue;
            }
            self.smaller_from = None;
            let tuner = self.tuner.as_mut().filter(|_| self.times.would_close(&chunk));
            let smaller = tuner.and_then(|tuner| Some((tuner.too_late(chunk.jobs)?, tuner.epoch())));
            match smaller {
                Some((shape, epoch)) => {
                    self.bins.set_next(shape, epoch);
                    self.smaller_from = Some(epoch);
                    self.times.forgive(&chunk);
                }
                None => self.times.learn(&chunk, now),
            }
        }
    }

    /// Learns of the chunk that has ended, and changes how jobs are gathered if that is better.
    pub(crate) fn tune(&mut self) {
        let (Some(tuner), Some(ended)) = (&mut self.tuner, self.pipeline.take_measured()) else { return };
        if let Some(shape) = tuner.ended(&ended) {
            self.bins.set_next(shape, tuner.epoch());
        }
    }

    /// How jobs are gathered when nothing is tried, and how often that has changed; `None` if it never does.
    pub(crate) fn tuned(&self) -> Option<(Shape, u64)> {
        self.tuner.as_ref().map(|tuner| (tuner.shape(), tuner.changes()))
    }

    /// How many more jobs find a place for certain: in the bins of their label, or among leftovers.
    pub(crate) fn room(&self) -> usize {
        (2 * self.bins.chunk()).saturating_sub(self.bins.under_way())
    }

    /// The engine takes nothing now, or does.
    pub(crate) fn set_resting(&mut self, is_resting: bool, now: Moment) {
        self.resting = is_resting.then(|| self.resting.unwrap_or(now));
    }

    /// Whether the engine has taken nothing for as long as the bound, so that what comes would wait in vain.
    pub(crate) fn rests_on(&self, now: Moment) -> bool {
        self.resting.is_some_and(|since| now.since(since) >= self.latency)
    }

    /// Whether the engine would begin with a chunk now.
    pub(crate) fn takes_chunk(&self, now: Moment) -> bool {
        self.resting.is_none() && self.pipeline.has_room() && !self.pipeline.is_behind(now, self.latency)
    }
}

/// Whether one shape was in use before another: their numbers wrap.
fn is_before(one: u32, other: u32) -> bool {
    one.wrapping_sub(other) > u32::MAX / 2
}

/// The deep engines of a worker.
#[derive(Debug)]
pub(crate) struct Scheduler {
    /// By the engine's index; `None` for those that are not deep.
    engines: Vec<Option<Box<Gathering>>>,
}

impl Scheduler {
    /// `None` if no engine is deep.
    pub(crate) fn new<'e>(
        engines: impl Iterator<Item = &'e dyn Engine>,
        settings: &SchedulerSettings,
        formation: Formation,
    ) -> Option<Box<Self>> {
        let gathering = |engine: &dyn Engine| {
            let (suite, profile) = deepest(engine)?;
            Some(Box::new(Gathering::new(settings, formation, (suite, &profile))))
        };
        let engines: Vec<_> = engines.map(gathering).collect();
        engines.iter().any(Option::is_some).then(|| Box::new(Self { engines }))
    }

    pub(crate) fn is_deep(&self, engine: usize) -> bool {
        self.engines.get(engine).is_some_and(Option::is_some)
    }

    pub(crate) fn set_formation(&mut self, formation: Formation) {
        self.engines.iter_mut().flatten().for_each(|gathering| gathering.bins.set_formation(formation));
    }

    /// What waits for an engine, if that is deep.
    pub(crate) fn of(&mut self, engine: usize) -> Option<&mut Gathering> {
        self.engines.get_mut(engine)?.as_deref_mut()
    }
}

/// The suite that an engine wants the most jobs of, and its profile, if the engine is deep.
fn deepest(engine: &dyn Engine) -> Option<(Suite, Profile)> {
    if engine.is_synchronous() {
        return None;
    }
    let done = Suite::every().filter(|suite| engine.capability(*suite).is_some());
    let profiles = done.map(|suite| (suite, engine.profile(suite)));
    let deepest = profiles.max_by_key(|(_, profile)| profile.depth_jobs);
    deepest.filter(|(_, profile)| profile.depth_jobs > TURN_JOBS)
}
