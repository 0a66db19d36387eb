//! Jobs that several engines could do, placed by what these cost ([`scheduler`](crate::scheduler)).
//!
//! The lane of an SA whose key only one engine takes names it, as ever, and its packets take the short way.
//! The jobs of all others come here, where each is decided of, unless their SA is [settled](super::settled).

use super::settled::Settled;
use super::{Dispatcher, MOST_IN_A_TURN, SUBMISSION};
use crate::clock::{Clock, SystemClock};
use crate::formation::Formation;
use crate::lanes::{First, NO_ENGINE, NOWHERE};
use crate::placement::{MAX_ENGINES, SaKey};
use crate::rings::job_id;
use crate::scheduler::{
    Costs, Held, Incomplete, Label, Measured, PlacementMode, Reason, SUITES, SchedulerSettings, SharedShares,
    class_of, measure,
};
use crate::withdrawn::WithdrawalReason;
use std::sync::Arc;
use std::time::Duration;
use testudo_crypto::{Direction, Job, JobStatus, Suite};
use testudo_ipsec::Moment;

/// What jobs are placed by.
pub(super) struct Live {
    pub(super) costs: Costs,
    /// Where nothing is to be decided.
    pub(super) settled: Settled,
    /// Engines that do each suite, by its rank.
    pub(super) able: Vec<u8>,
    /// Jobs that deep engines get at a time.
    chunk: usize,
    /// Where each job of the submission goes, and what it is; empty between calls.
    chosen: Vec<(First, Option<Label>)>,
    /// Labels of jobs that an engine ended together; empty between calls.
    labels: Vec<Label>,
    /// The same of a whole submission.
    all_labels: Vec<Label>,
}

/// What the engines of a worker cost, as measured before packets came.
#[derive(Debug, Clone, Default)]
pub struct EngineCosts {
    measured: Vec<(&'static str, Suite, Measured)>,
    /// Those that do not give back what they were measured with.
    hang: Vec<&'static str>,
}

/// The last job of a submission, if it went to the best engine: those like it that follow go there, too.
#[derive(Clone, Copy)]
struct Run {
    sa: u32,
    direction: Direction,
    class: usize,
    of: Label,
    /// Engines that could do it.
    able: u8,
    first: First,
}

impl Dispatcher {
    pub(super) fn set_live(&mut self, settings: &SchedulerSettings) {
        self.moves = false;
        if settings.placement == PlacementMode::First {
            self.live = None;
            return;
        }
        let shares = Arc::new(SharedShares::new(self.placement.names(), settings.latency));
        let clock = Box::new(SystemClock::default());
        let mut costs = Costs::new(settings.latency, &self.placement.synchronous(), shares, clock);
        for (at, engine) in self.placement.engines().enumerate() {
            let is_deep = self.scheduler.as_ref().is_some_and(|scheduler| scheduler.is_deep(at));
            let does = Suite::every().filter(|suite| engine.capability(*suite).is_some());
            let most = does.map(|suite| engine.profile(suite).depth_jobs).max().unwrap_or(1);
            costs.set_batch(at, (!is_deep).then_some(most));
        }
        // What waits in bins may go on at once.
        let is_deep = self.scheduler.is_some();
        let together = if is_deep { SUBMISSION.max(2 * settings.chunk) } else { SUBMISSION };
        self.live = Some(Box::new(Live {
            costs,
            settled: Settled::default(),
            able: Vec::new(),
            chunk: settings.chunk,
            chosen: Vec::with_capacity(SUBMISSION),
            labels: Vec::with_capacity(together),
            all_labels: Vec::with_capacity(SUBMISSION),
        }));
    }

    /// Who does what share and why, to be read by other threads.
    pub(crate) fn shares(&self) -> Option<Arc<SharedShares>> {
        self.live.as_ref().map(|live| Arc::clone(&live.costs.shares))
    }

    pub(crate) fn set_placement_clock(&mut self, clock: Box<dyn Clock>) {
        if let Some(live) = &mut self.live {
            live.costs.set_clock(clock);
        }
    }

    /// Measures what these suites cost, until so much time has passed on a clock that moves while engines
    /// work. Engines that end jobs inside `submit` are first: they are behind all others, and measured
    /// soonest.
    pub(crate) fn measure_engines(
        &mut self,
        suites: &[Suite],
        most: Duration,
        clock: &dyn Clock,
    ) -> EngineCosts {
        let mut costs = EngineCosts::default();
        let Some(chunk) = self.live.as_ref().map(|live| live.chunk) else { return costs };
        let began = clock.now();
        for engine in (0..self.placement.len()).rev() {
            for suite in suites.iter().take(SUITES) {
                let rank = self.suites.rank(*suite);
                if clock.now().since(began) >= most {
                    return costs;
                }
                if self.able(rank) >> engine & 1 == 0 {
                    continue;
                }
                let measured = self.placement.engine_mut(engine).map(|of| measure(of, *suite, chunk, clock));
                match measured {
                    Some(Ok(Some(measured))) => {
                        self.know(engine, rank, &measured);
                        costs.measured.push((self.placement.name(engine), *suite, measured));
                    }
                    Some(Err(Incomplete::Hangs)) => {
                        // It has none of the SAs' jobs.
                        self.withdraw(engine, WithdrawalReason::KeptPackets, &mut Vec::new());
                        costs.hang.push(self.placement.name(engine));
                        break;
                    }
                    _ => {}
                }
            }
        }
        costs
    }

    /// What another worker has measured, of engines of the same names. What hangs there gets nothing here.
    pub(crate) fn know_engines(&mut self, costs: &EngineCosts) {
        if self.live.is_none() {
            return;
        }
        let names = self.placement.names();
        for (name, suite, measured) in &costs.measured {
            let rank = self.suites.rank(*suite);
            if let Some(engine) = names.iter().position(|other| other == name) {
                self.able(rank);
                self.know(engine, rank, measured);
            }
        }
        for engine in (0..names.len()).filter(|engine| costs.hang.contains(&names[*engine])) {
            self.withdraw(engine, WithdrawalReason::KeptPackets, &mut Vec::new());
        }
    }

    fn know(&mut self, engine: usize, rank: u8, measured: &Measured) {
        let is_synchronous = self.placement.is_synchronous(engine);
        let Some(live) = &mut self.live else { return };
        for (class, time) in measured.jobs.into_iter().enumerate() {
            live.costs.presume(engine, label(rank, class), time);
        }
        if !is_synchronous {
            live.costs.know_elsewhere(engine, measured.submit, measured.between);
            live.costs.know_taking_back(engine, measured.poll);
        }
    }

    /// Engines in service that do the suite of a rank; 0 if jobs are not placed by what they cost.
    fn able(&mut self, rank: u8) -> u8 {
        let Some(live) = &mut self.live else { return 0 };
        let at = usize::from(rank);
        while live.able.len() <= at {
            let suite = u8::try_from(live.able.len()).ok().and_then(|rank| self.suites.suite(rank));
            live.able.push(suite.map_or(0, |suite| self.placement.able(suite)));
            live.costs.shares.name_suites(self.suites.all());
        }
        live.able[at]
    }

    /// Those of them that have not refused an SA's key.
    pub(super) fn able_of(&mut self, key: SaKey, rank: u8) -> u8 {
        let able = self.able(rank);
        self.placement.not_refused(key, able)
    }

    /// Whether several engines could do the jobs of an SA, so that each job is decided of.
    pub(super) fn is_decided_by_job(&mut self, key: SaKey, rank: u8) -> bool {
        if self.live.is_none() {
            return false;
        }
        let able = self.able_of(key, rank);
        if able.count_ones() < 2 {
            return false;
        }
        for engine in (0..self.placement.len()).filter(|engine| able >> engine & 1 == 1) {
            self.prepare_for(engine, rank);
        }
        true
    }

    /// [`submit`](Self::submit), where each job is decided of that several engines could do.
    #[cold]
    pub(super) fn submit_live(&mut self, jobs: &mut Vec<Job>, released: &mut Vec<Job>) -> bool {
        self.begin_decisions();
        let (is_idle, mut common, mut run) = (!self.is_busy(), None, None);
        for job in jobs.iter_mut() {
            let chosen = self.choose(job, &mut run);
            job.key = chosen.0.1;
            common = match common {
                None => Some(chosen.0.0),
                Some(engine) if engine == chosen.0.0 => common,
                Some(_) => Some(NO_ENGINE),
            };
            if let Some(live) = &mut self.live {
                live.chosen.push(chosen);
            }
        }
        let common = common.filter(|engine| *engine != NO_ENGINE).map(|engine| engine as usize);
        let common = common.filter(|engine| !self.is_apart(*engine));
        match common.filter(|engine| is_idle && self.placement.is_synchronous(*engine)) {
            Some(engine) => self.run_in_place_live(engine, jobs, released),
            None => {
                self.run_apart_live(jobs, released);
                false
            }
        }
    }

    fn run_in_place_live(&mut self, engine: usize, jobs: &mut Vec<Job>, released: &mut Vec<Job>) -> bool {
        let arranges = self.gathers();
        let Some(live) = &mut self.live else { return false };
        // What does not end here goes to others before this returns, and is measured there.
        let mut labels = std::mem::take(&mut live.all_labels);
        labels.extend(live.chosen.drain(..).filter_map(|(_, label)| label));
        let began = live.costs.time();
        let all_ended = self.run_in_place(Some(engine), jobs, released, arranges);
        let Some(live) = &mut self.live else { return all_ended };
        if all_ended {
            live.costs.ended_inside(engine, &labels, live.costs.time().since(began));
        }
        labels.clear();
        live.all_labels = labels;
        all_ended
    }

    fn run_apart_live(&mut self, jobs: &mut Vec<Job>, released: &mut Vec<Job>) {
        let mut before = [0; MAX_ENGINES];
        before.iter_mut().zip(&self.queues).for_each(|(before, queue)| *before = queue.len());
        let (queued, come) = (self.queued(), jobs.len());
        self.lanes.ticket(jobs);
        let mut chosen = self.live.as_mut().map(|live| std::mem::take(&mut live.chosen)).unwrap_or_default();
        for (mut job, (first, label)) in jobs.drain(..).zip(chosen.drain(..)) {
            if self.lanes.of(&job).is_none() {
                job.status = JobStatus::Fault;
                released.push(job);
                continue;
            }
            if let (Some(live), Some(label)) = (&mut self.live, label) {
                live.costs.follow(first.0 as usize, label, job_id(&job));
            }
            let is_open = first == NOWHERE && job.buffer.is_chain();
            let first = if is_open { self.first_for_chain(&job) } else { first };
            self.enqueue(job, first, released);
        }
        if let Some(live) = &mut self.live {
            live.chosen = chosen;
        }
        if self.prefers_bursts && self.arranger.formation != Formation::None {
            // What waits from turns before stays before what has come.
            for (engine, before) in (0..self.queues.len()).zip(before) {
                let mut queue = std::mem::take(&mut self.queues[engine]);
                self.arrange(&mut queue[before..]);
                self.queues[engine] = queue;
            }
        }
        self.left += (self.queued() - queued).min(come);
        self.run_queues(released);
    }

    /// Chains are not placed by cost: the first engine that takes them does them.
    fn first_for_chain(&mut self, job: &Job) -> First {
        let next = self.next_for_chain(job, 0);
        next.and_then(|(engine, id)| Some((u32::try_from(engine).ok()?, id))).unwrap_or(NOWHERE)
    }

    /// Tells the costs what each engine has.
    fn begin_decisions(&mut self) {
        let now = self.in_flight.now();
        let Some(live) = &mut self.live else { return };
        let (in_flight, half) = (&self.in_flight, self.half);
        let mut scheduler = self.scheduler.as_deref_mut();
        let none = Held { jobs: 0, room: usize::MAX, oldest: Duration::ZERO };
        let mut all = [none; MAX_ENGINES];
        for (engine, held) in all.iter_mut().enumerate() {
            held.jobs = in_flight.held(engine);
            if let Some(gathering) = scheduler.as_mut().and_then(|scheduler| scheduler.of(engine)) {
                let waiting = gathering.bins.under_way();
                let has = waiting + gathering.pipeline.under_way();
                held.jobs += waiting;
                held.room = gathering.room().min(half.saturating_sub(has));
                held.oldest = gathering.pipeline.oldest(now);
            }
        }
        live.costs.begin(now, |engine| all[engine]);
    }

    /// Where a job goes: to the engine of its SA, or to the one that is best for it. Jobs of one SA and class
    /// that follow each other are decided of once, as long as that changes nothing.
    fn choose(&mut self, job: &Job, run: &mut Option<Run>) -> (First, Option<Label>) {
        let (sa, direction, class) = (job.sa, job.direction, class_of(job.text_bytes));
        let is_next = |run: &Run| {
            (run.sa, run.direction, run.class) == (sa, direction, class) && !job.buffer.is_chain()
        };
        if let (Some(run), Some(live)) = (run.filter(is_next), &mut self.live) {
            let Run { of, first, able, .. } = run;
            if live.costs.goes_on(of, first.0 as usize, able) {
                live.costs.give(first.0 as usize, of, Reason::Best);
                return (first, Some(of));
            }
        }
        *run = None;
        let Some(lane) = self.lanes.of(job) else { return (NOWHERE, None) };
        let (first, key, rank) = (lane.only(), lane.key, lane.suite_rank);
        let of = label(rank, class);
        if job.buffer.is_chain() && !self.takes_chains_of(first, rank) {
            return (NOWHERE, None);
        }
        if first != NOWHERE {
            return (first, Some(of));
        }
        let all = self.able(rank);
        let (chosen, reason, able) = self.choose_of(key, of, all);
        if chosen == NOWHERE {
            return (NOWHERE, None);
        }
        if let Some(live) = &mut self.live {
            live.costs.give(chosen.0 as usize, of, reason);
        }
        if reason == Reason::Only
            && let Some(lane) = self.lanes.of_mut(job)
        {
            // No other will ever take this key: from now on it goes the short way.
            lane.name(chosen);
        }
        self.settle_suite(job, of, chosen, reason, able);
        *run = (reason == Reason::Best).then_some(Run { sa, direction, class, of, able, first: chosen });
        (chosen, Some(of))
    }

    /// Whether the engine that is named for an SA takes chains of its suite.
    fn takes_chains_of(&self, first: First, rank: u8) -> bool {
        let suite = self.suites.suite(rank);
        first != NOWHERE && suite.is_some_and(|suite| self.placement.takes_chains(first.0 as usize, suite))
    }

    /// The best engine for a job of those in a mask that takes its key, and those that it was chosen from.
    fn choose_of(&mut self, key: SaKey, of: Label, mask: u8) -> (First, Reason, u8) {
        let mut able = self.placement.not_refused(key, mask);
        while let Some((engine, reason)) = self.live.as_mut().and_then(|live| live.costs.decide(of, able)) {
            if let (Some(id), Ok(engine)) = (self.placement.key_at(key, engine), u32::try_from(engine)) {
                return ((engine, id), reason, able);
            }
            able &= !(1 << engine);
        }
        (NOWHERE, Reason::Only, 0)
    }

    /// The best engine behind one for a job that left it for this reason.
    #[cold]
    pub(super) fn choose_behind(&mut self, job: &Job, key: SaKey, engine: usize, why: Reason) -> First {
        let Some(lane) = self.lanes.of_ticket(job) else { return NOWHERE };
        let (rank, is_counted) = (lane.suite_rank, lane.only() == NOWHERE);
        let of = label(rank, class_of(job.text_bytes));
        let behind =
            self.able(rank) & u8::MAX.checked_shl(u32::try_from(engine + 1).unwrap_or(8)).unwrap_or(0);
        let able = self.placement.not_refused(key, behind);
        let best = self.live.as_ref().and_then(|live| live.costs.best_of(of, able));
        let Some(best) = best else { return NOWHERE };
        let next = match (self.placement.key_at(key, best), u32::try_from(best)) {
            (Some(id), Ok(best)) => (best, id),
            _ => self.next_in_order(key, engine + 1),
        };
        if let Some(live) = self.live.as_mut().filter(|_| next != NOWHERE) {
            live.costs.give(next.0 as usize, of, why);
            if is_counted {
                live.costs.shares.pass_on(of, engine);
            }
        }
        next
    }

    /// A job is no longer an engine's, for this reason.
    #[cold]
    pub(super) fn leave_live(&mut self, job: &Job, engine: usize, why: Reason) {
        let rank = self.lanes.of_ticket(job).map(|lane| lane.suite_rank);
        let Some(live) = &mut self.live else { return };
        live.costs.left(engine, job_id(job));
        if let Some(rank) = rank.filter(|_| why == Reason::Failed) {
            live.costs.failed(engine, label(rank, class_of(job.text_bytes)));
            // The next jobs of the SA are decided of.
            if let Some(lane) = self.lanes.of_mut(job).filter(|lane| lane.is_settled) {
                lane.name(NOWHERE);
            }
        }
    }

    fn next_in_order(&mut self, key: SaKey, from: usize) -> First {
        let next = self.placement.engine_for(key, from);
        next.and_then(|(engine, id)| Some((u32::try_from(engine).ok()?, id))).unwrap_or(NOWHERE)
    }

    /// Whether an engine is to do some jobs of a submission by themselves, of which all were chosen for it.
    fn is_apart(&self, engine: usize) -> bool {
        let Some(live) = &self.live else { return false };
        let alone = live.costs.alone(engine);
        alone.is_some_and(|(of, _)| live.chosen.iter().any(|(_, label)| *label != Some(of)))
    }

    /// [`offer`](Self::offer), measured, what is to be measured by itself first.
    #[cold]
    pub(super) fn offer_live(&mut self, engine: usize, jobs: &mut [Job]) -> usize {
        let first = self.bring_forward(engine, jobs);
        if first == 0 || first == jobs.len() {
            return self.offer_measured(engine, jobs);
        }
        let (alone, others) = jobs.split_at_mut(first);
        let taken = self.offer_measured(engine, alone);
        if taken < first { taken } else { taken + self.offer_measured(engine, others) }
    }

    /// Brings the jobs that an engine is to do by themselves before its others, and returns how many they
    /// are; 0 if there are none, or too few. The order of an SA is that of its tickets.
    fn bring_forward(&self, engine: usize, jobs: &mut [Job]) -> usize {
        let alone = self.live.as_ref().and_then(|live| live.costs.alone(engine));
        let Some((of, least)) = alone else { return 0 };
        let is_of = |job: &Job| {
            let lane = self.lanes.of(job);
            lane.is_some_and(|lane| label(lane.suite_rank, class_of(job.text_bytes)) == of)
        };
        if jobs.iter().filter(|job| is_of(job)).count() < least {
            return 0;
        }
        let mut first = 0;
        for at in 0..jobs.len() {
            if is_of(&jobs[at]) {
                jobs.swap(first, at);
                first += 1;
            }
        }
        first
    }

    fn offer_measured(&mut self, engine: usize, jobs: &mut [Job]) -> usize {
        let began = self.live.as_ref().map(|live| live.costs.time()).unwrap_or_default();
        let taken = self.offer(engine, jobs);
        if self.scheduler.as_ref().is_some_and(|scheduler| scheduler.is_deep(engine)) {
            self.placement.flush(engine);
        }
        let is_synchronous = self.placement.is_synchronous(engine);
        let Some(live) = &mut self.live else { return taken };
        let took = live.costs.time().since(began);
        if !is_synchronous {
            let is_held = |job: &&Job| job.status == JobStatus::Taken;
            let held = self.in_flight.held(engine) + jobs.iter().filter(is_held).count();
            // What it fails at without a try costs nothing.
            let tried =
                jobs.iter().take(taken).filter(|job| job.status == JobStatus::Taken || has_ended(job));
            live.costs.handed_over(engine, tried.count(), taken < jobs.len() && held > 0, took);
            for job in jobs.iter().take(taken).filter(|job| has_ended(job)) {
                live.costs.ended_early(engine, job_id(job), took);
            }
            return taken;
        }
        let lanes = &self.lanes;
        let label_of = |job: &Job| Some(label(lanes.of(job)?.suite_rank, class_of(job.text_bytes)));
        live.labels.extend(jobs.iter().take(taken).filter(|job| has_ended(job)).filter_map(label_of));
        live.costs.ended_inside(engine, &live.labels, took);
        live.labels.clear();
        taken
    }

    /// Takes completions of an engine, measured.
    #[cold]
    pub(super) fn poll_live(&mut self, engine: usize, polled: &mut Vec<Job>, max: usize, now: Moment) {
        let began = self.live.as_ref().map(|live| live.costs.time()).unwrap_or_default();
        self.placement.poll(engine, polled, max);
        let left = self.in_flight.held(engine).saturating_sub(polled.len());
        let Some(live) = &mut self.live else { return };
        // What it fails at says nothing of how long it takes.
        for job in polled.iter().filter(|job| !has_ended(job)) {
            live.costs.left(engine, job_id(job));
        }
        let took: Duration = live.costs.time().since(began);
        live.costs.gave_back(engine, now, took, polled.iter().map(job_id), left);
    }

    /// A deep engine took so long for each job of a chunk, if that is known, or this at most for one of many.
    pub(super) fn learn_between(&mut self, engine: usize, each: Option<Duration>, is_most: bool) {
        let (Some(live), Some(each)) = (&mut self.live, each) else { return };
        match is_most {
            true => live.costs.learn_between_at_most(engine, each),
            false => live.costs.learn_between(engine, each),
        }
    }

    /// How many jobs go on at once that have waited for too long.
    pub(super) fn most_at_once(&self) -> usize {
        self.live.as_ref().map_or(usize::MAX, |live| live.costs.most_at_once()).min(MOST_IN_A_TURN)
    }

    /// The worker looks at its engines.
    pub(super) fn look_live(&mut self, now: Moment) {
        if let Some(live) = &mut self.live {
            live.costs.look(now);
        }
    }

    /// An engine is out of service: it does nothing any more.
    pub(super) fn withdraw_live(&mut self, engine: usize) {
        if let Some(live) = &mut self.live {
            live.able.iter_mut().for_each(|able| *able &= !(1 << engine));
            live.costs.withdrawn(engine);
            live.settled.clear();
            live.costs.shares.withdraw(engine);
        }
    }
}

/// Whether an engine has done what it was asked for.
fn has_ended(job: &Job) -> bool {
    matches!(job.status, JobStatus::Done | JobStatus::AuthenticationFailed)
}

pub(super) fn label(rank: u8, class: usize) -> Label {
    Label { rank: usize::from(rank).min(SUITES - 1), class }
}

#[cfg(test)]
pub(super) mod tests;
