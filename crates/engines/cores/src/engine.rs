//! The safe engine: which jobs go to which thread, and which are the worker's own.

use crate::NAME;
use crate::cost::{By, Costs, Expected, MOST_TICKS};
use crate::engines::{Engines, KeyChange, NewKey};
use crate::helper::{CHUNK_JOBS, Clock, Helper};
use crate::preparer::{Copies, Preparer};
use crate::share::{Division, Pressure, handing_over, level};
use crate::worth::{Burst, Course, Kind, Worths};
use std::sync::Arc;
use testudo_crypto::{
    Capability, Direction, Engine, EngineError, Job, KeyId, KeyMaterial, KeyPreparer, PreparedKey, Profile,
    Suite, self_test,
};
use testudo_packet::{Region, ticks};

/// The most threads of one worker.
pub const MAX_THREADS: usize = 64;
/// A chunk is of so many ticks at most, or of one job: what it holds is released when all of it has ended.
const CHUNK_TICKS_MOST: u64 = 32_000;
/// A share is cut into so many chunks at the most.
const CHUNKS_OF_A_SHARE: u64 = 6;
/// Of fewer ticks there is none: a chunk by itself costs a few hundred.
const CHUNK_TICKS_LEAST: u64 = 1_500;
/// Bursts after which the worker does some jobs of one itself if it did none meanwhile: otherwise it would
/// not know what they cost it.
pub(crate) const UNMEASURED_MOST: u32 = 64;
/// Jobs that have ended and were taken from threads before they are asked for, at the most.
const ENDED_JOBS: usize = 1024;

/// How many threads, and where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CoresConfig {
    /// Threads beside the worker, from 1 to [`MAX_THREADS`].
    pub threads: usize,
    /// Processors that the threads are bound to, in turn; none are if it is empty.
    pub processors: Vec<usize>,
    /// The number of the first thread, which is in its name and says which processor is the first one's.
    pub first_thread: usize,
}

impl CoresConfig {
    /// So many threads, bound to no processor.
    #[must_use]
    pub const fn of(threads: usize) -> Self {
        Self { threads, processors: Vec::new(), first_thread: 0 }
    }
}

/// A burst, and what becomes of it.
#[derive(Debug, Clone, Copy)]
struct Turn {
    kind: Option<Kind>,
    course: Course,
}

/// The engine on other cores. See the [crate](crate).
pub struct CoresEngine {
    helpers: Vec<Helper>,
    /// What the worker's own share is done with. It knows all keys.
    own: Engines,
    costs: Costs,
    pressure: Pressure,
    worths: Worths,
    /// What becomes of the next burst, where that was asked already.
    next_turn: Option<Turn>,
    clock: Clock,
    /// Who is asked first for room.
    next: usize,
    /// What threads have before them who may have a share, with their places; empty between calls.
    backlogs: Vec<u64>,
    places: Vec<usize>,
    /// Jobs that have ended and were not polled yet.
    ended: Vec<Job>,
    in_flight: usize,
    /// Bursts since the worker has measured jobs of its own.
    pub(crate) unmeasured: u32,
    /// Threads have all jobs that there is room for.
    hands_over_all: bool,
    /// The threads run.
    is_started: bool,
}

impl CoresEngine {
    /// Makes engines for each thread and for the worker's own share, and has all of them compute known
    /// answers. The threads start with [`Engine::use_memory`], or with the first jobs that are handed over.
    ///
    /// `make` is called once more than there are threads, and gives engines of the same kinds each time, in
    /// the order in which they are to be asked whether they do a suite. Each must be
    /// [synchronous](Engine::is_synchronous).
    ///
    /// # Errors
    /// [`EngineError`]: the number of threads, an engine that cannot be opened, fails its test or is not
    /// synchronous.
    pub fn open(
        config: &CoresConfig,
        make: &mut dyn FnMut() -> Result<Vec<Box<dyn Engine>>, EngineError>,
    ) -> Result<Self, EngineError> {
        Self::with_clock(config, make, ticks)
    }

    /// The same with a clock of tests.
    pub(crate) fn with_clock(
        config: &CoresConfig,
        make: &mut dyn FnMut() -> Result<Vec<Box<dyn Engine>>, EngineError>,
        clock: Clock,
    ) -> Result<Self, EngineError> {
        let CoresConfig { threads, processors, first_thread } = config;
        if !(1..=MAX_THREADS).contains(threads) {
            let reason = format!("it has from 1 to {MAX_THREADS} threads, not {threads}");
            return Err(EngineError::Unavailable { engine: NAME, reason });
        }
        let mut open = || {
            let mut engines = make()?;
            engines.iter_mut().try_for_each(|engine| self_test(engine.as_mut()))?;
            Engines::new(engines)
        };
        let own = open()?;
        let helper = |number: usize| {
            let processor = processors.get(number % processors.len().max(1)).copied();
            Ok(Helper::new(open()?, format!("{NAME}-{number}"), processor, clock))
        };
        let helpers = (*first_thread..first_thread + threads).map(helper).collect::<Result<_, _>>()?;
        Ok(Self {
            helpers,
            costs: Costs::new(&own),
            own,
            pressure: Pressure::default(),
            worths: Worths::new(),
            next_turn: None,
            clock,
            next: 0,
            backlogs: Vec::with_capacity(*threads),
            places: Vec::with_capacity(*threads),
            ended: Vec::with_capacity(ENDED_JOBS),
            in_flight: 0,
            unmeasured: 0,
            hands_over_all: false,
            is_started: false,
        })
    }

    /// From now on threads have all jobs that there is room for, however few and cheap: for tests of what
    /// threads do.
    #[doc(hidden)]
    pub fn hand_over_all(&mut self) {
        self.hands_over_all = true;
    }

    fn start(&mut self) {
        if !self.is_started {
            self.is_started = true;
            self.helpers.iter_mut().for_each(Helper::start);
        }
    }

    /// The kind of a burst, if something is remembered of that.
    #[inline]
    fn kind(&self, jobs: &[Job]) -> Option<Kind> {
        if self.hands_over_all { None } else { Kind::of(&self.own, jobs) }
    }

    /// What becomes of a burst; to be asked once for each.
    #[inline]
    fn turn(&mut self, jobs: &[Job]) -> Turn {
        let kind = self.kind(jobs);
        Turn { kind, course: self.worths.course(kind) }
    }

    /// What becomes of the burst that has come. If another one was asked about then a promise holds, but
    /// nothing is learned of that one's kind.
    #[inline]
    fn turn_of_next(&mut self, jobs: &[Job]) -> Turn {
        match self.next_turn.take() {
            // Nothing is learned of it in any case.
            Some(turn) if turn.course == Course::Left => turn,
            Some(turn) if turn.kind == self.kind(jobs) => turn,
            Some(Turn { course: Course::Alone, .. }) => {
                // Nothing is timed over it.
                let _ = self.worths.course(None);
                Turn { kind: None, course: Course::Alone }
            }
            Some(_) | None => self.turn(jobs),
        }
    }

    /// Does a burst that is not left to the worker unasked.
    fn divide(&mut self, jobs: &mut [Job], turn: Turn) {
        let began = (self.clock)();
        let expected = self.costs.pricing(&self.own).of(jobs);
        let mut division = self.pressure.begin(began, jobs.len(), &expected);
        let is_open = turn.course == Course::Open;
        if let Some(kind) = turn.kind {
            let count = jobs.len() as u64;
            let burst = Burst {
                now: began,
                jobs: count,
                own: expected.own,
                is_known: self.costs.is_known(expected.rank),
                handing_over: handing_over(count, &expected),
                is_fit: division.is_of_pressed(),
                is_clear: self.in_flight == 0,
            };
            self.worths.begin(kind, &burst);
        }
        if !is_open {
            division = Division::Own;
        }
        let others = jobs.len() - if is_open { self.kept(jobs) } else { 0 };
        let handed = self.hand_over(jobs.get_mut(..others).unwrap_or_default(), &expected, division, began);
        let expected = (handed == 0).then_some(expected);
        self.do_own(jobs.get_mut(handed..).unwrap_or_default(), expected);
    }

    /// Does the worker's share of a burst, which is expected to cost so much if that was asked, and learns
    /// what it costs.
    fn do_own(&mut self, jobs: &mut [Job], expected: Option<Expected>) {
        self.unmeasured = self.unmeasured.saturating_add(1);
        if jobs.is_empty() {
            return self.pressure.end((self.clock)());
        }
        let expected = expected.unwrap_or_else(|| self.costs.pricing(&self.own).of(jobs));
        let began = (self.clock)();
        self.own.run(jobs, &mut (0..0));
        let ended = (self.clock)();
        let took = ended.wrapping_sub(began);
        // A call has costs of its own, and of few short jobs they are most. So these never make a rate
        // higher; and they make it lower only if there are no others.
        let is_lower = self.unmeasured > UNMEASURED_MOST && took < expected.own;
        if expected.own >= CHUNK_TICKS_LEAST || is_lower {
            let bill = self.costs.bill(&expected, By::Worker);
            self.costs.learn(bill, By::Worker, took);
            self.unmeasured = 0;
        }
        self.pressure.end(ended);
    }

    /// Hands jobs over to threads, as far as they have a share in them; returns how many.
    fn hand_over(&mut self, jobs: &mut [Job], expected: &Expected, division: Division, now: u64) -> usize {
        let before = match division {
            _ if self.hands_over_all => MOST_TICKS,
            Division::Shared { before } => before,
            Division::Own => return 0,
        };
        self.start();
        self.look(now, expected.threads);
        let mut level = level(expected, before, &self.backlogs);
        if self.hands_over_all {
            level += MOST_TICKS;
        }
        let mut handed = 0;
        for at in 0..self.places.len() {
            let (Some(&place), Some(&backlog)) = (self.places.get(at), self.backlogs.get(at)) else { break };
            let share = level.saturating_sub(backlog);
            if share >= CHUNK_TICKS_LEAST {
                handed += self.give(place, jobs.get_mut(handed..).unwrap_or_default(), share, now);
            }
        }
        let count = self.helpers.len();
        self.next = (self.next + if self.places.len() < count { self.places.len() } else { 1 }) % count;
        self.in_flight += handed;
        handed
    }

    /// Notes what threads have before them: as many of those that have room as work of so many ticks is for,
    /// others each time.
    fn look(&mut self, now: u64, ticks: u64) {
        self.backlogs.clear();
        self.places.clear();
        let (count, next) = (self.helpers.len(), self.next);
        let most = usize::try_from(ticks / CHUNK_TICKS_LEAST).unwrap_or(count).max(1);
        for place in (next..count).chain(0..next) {
            let Some(helper) = self.helpers.get_mut(place) else { break };
            let mut backlog = helper.backlog(now);
            if backlog.is_none() && helper.is_in_service() {
                // What waits in its ring to be asked for takes its room.
                let room = ENDED_JOBS - self.ended.len();
                helper.collect(&mut self.ended, room, |bill, measured| {
                    self.costs.learn(bill, By::Thread, measured);
                });
                backlog = helper.backlog(now);
            }
            if let Some(backlog) = backlog {
                self.backlogs.push(backlog);
                self.places.push(place);
            }
            if self.places.len() >= most {
                break;
            }
        }
    }

    /// How many of the last jobs the worker does itself, although others could, to know what they cost it.
    fn kept(&self, jobs: &[Job]) -> usize {
        if self.unmeasured < UNMEASURED_MOST || self.hands_over_all {
            return 0;
        }
        let mut pricing = self.costs.pricing(&self.own);
        let (mut sum, mut count) = (Expected::default(), 0);
        for job in jobs.iter().rev() {
            if sum.own >= CHUNK_TICKS_LEAST {
                break;
            }
            pricing.add(&mut sum, job);
            count += 1;
        }
        count
    }

    /// Gives a thread jobs of so many ticks, in chunks; returns how many jobs.
    fn give(&mut self, place: usize, jobs: &mut [Job], share: u64, now: u64) -> usize {
        let Some(helper) = self.helpers.get_mut(place) else { return 0 };
        let rank = jobs.first().and_then(|job| self.own.rank_of(job.key));
        let least = self.costs.least_jobs(rank);
        let (mut handed, mut left) = (0, share);
        while left >= CHUNK_TICKS_LEAST && helper.has_room() {
            let rest = jobs.get_mut(handed..).unwrap_or_default();
            let most = left.min(CHUNK_TICKS_MOST.max(share / CHUNKS_OF_A_SHARE));
            let mut pricing = self.costs.pricing(&self.own);
            let (mut count, mut sum) = (0, Expected::default());
            for job in rest.iter().take(CHUNK_JOBS) {
                let mut with = sum;
                pricing.add(&mut with, job);
                // The last one where more of it is within the share than beyond.
                if with.threads + sum.threads > 2 * most && count >= least {
                    break;
                }
                (sum, count) = (with, count + 1);
            }
            let ticks = sum.threads;
            let Some(chunk) = rest.get_mut(..count).filter(|chunk| !chunk.is_empty()) else { break };
            if !helper.hand_over(chunk, self.costs.bill(&sum, By::Thread), now) {
                break;
            }
            helper.wake();
            (handed, left) = (handed + count, left.saturating_sub(ticks.max(1)));
        }
        handed
    }

    /// The threads follow a change of keys.
    fn tell(&mut self, mut change: impl FnMut() -> Option<KeyChange>) {
        for helper in self.helpers.iter_mut().filter(|helper| helper.is_in_service()) {
            change().into_iter().for_each(|change| helper.change(change));
        }
    }
}

impl Drop for CoresEngine {
    fn drop(&mut self) {
        // All first: those that hang are waited for at the same time.
        self.helpers.iter_mut().for_each(Helper::close);
    }
}

impl Engine for CoresEngine {
    fn name(&self) -> &'static str {
        NAME
    }

    fn description(&self) -> String {
        let lost = self.helpers.iter().filter(|helper| !helper.is_in_service()).count();
        let threads = match self.helpers.len() {
            1 => "1 thread".to_owned(),
            several => format!("{several} threads"),
        };
        let lost = if lost > 0 { format!(" ({lost} out of service)") } else { String::new() };
        format!("{threads}{lost} and the worker, each with {}", self.own.description())
    }

    fn capability(&self, suite: Suite) -> Option<Capability> {
        self.own.capability(suite)
    }

    fn install(&mut self, key: &KeyMaterial, direction: Direction) -> Result<KeyId, EngineError> {
        let material = || NewKey::Material(Box::new(key.clone()), direction);
        let id = self.own.install(material())?;
        self.tell(|| Some(KeyChange::Install(id, material())));
        Ok(id)
    }

    fn preparer(&self) -> Option<Arc<dyn KeyPreparer>> {
        Some(Arc::new(Preparer::new(&self.own, self.helpers.len() + 1)))
    }

    fn link(&mut self, key: PreparedKey) -> Result<KeyId, EngineError> {
        let Copies(mut keys) = key.into_form(NAME)?;
        let lacking = || EngineError::KeyRefused {
            engine: NAME,
            reason: "it was prepared for fewer threads".to_owned(),
        };
        if keys.len() <= self.helpers.len() {
            return Err(lacking());
        }
        let own = keys.pop().ok_or_else(lacking)?;
        let id = self.own.install(own)?;
        self.tell(|| Some(KeyChange::Install(id, keys.pop()?)));
        Ok(id)
    }

    fn remove(&mut self, key: KeyId) {
        if self.own.remove(key) {
            self.tell(|| Some(KeyChange::Remove(key)));
        }
    }

    fn use_memory(&mut self, region: &Region) {
        self.own.use_memory(region);
        self.helpers.iter_mut().filter_map(Helper::engines_mut).for_each(|each| each.use_memory(region));
        self.start();
    }

    fn ends_some_at_once(&self) -> bool {
        true
    }

    fn ends_next_at_once(&mut self, jobs: &[Job]) -> bool {
        let turn = self.turn(jobs);
        self.next_turn = Some(turn);
        turn.course != Course::Open
    }

    fn submit(&mut self, jobs: &mut [Job]) -> usize {
        let turn = self.turn_of_next(jobs);
        match turn.course {
            Course::Left => {
                self.pressure.add(self.worths.own(turn.kind).saturating_mul(jobs.len() as u64));
                self.own.run(jobs, &mut (0..0));
            }
            Course::Alone | Course::Open => self.divide(jobs, turn),
        }
        jobs.len()
    }

    fn profile(&self, suite: Suite) -> Profile {
        self.own.profile(suite)
    }

    fn poll(&mut self, done: &mut Vec<Job>, max: usize) {
        if self.in_flight == 0 {
            return;
        }
        let before = done.len();
        done.extend(self.ended.drain(..max.min(self.ended.len())));
        for helper in &mut self.helpers {
            helper.collect(done, max - (done.len() - before), |bill, measured| {
                self.costs.learn(bill, By::Thread, measured);
            });
        }
        self.in_flight -= done.len() - before;
    }

    fn in_flight(&self) -> usize {
        self.in_flight
    }
}
