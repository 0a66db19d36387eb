//! Submissions that end where they are: engines end all of their jobs before they return.

use super::Dispatcher;
use crate::lanes::{First, Lane};
use testudo_crypto::{Job, JobStatus};

impl Dispatcher {
    /// The common case: nothing is in flight, and engines end the whole batch before they return. Then the
    /// jobs are in order as they are, and none needs a ticket.
    pub(super) fn run_in_place(
        &mut self,
        engine: Option<usize>,
        jobs: &mut Vec<Job>,
        released: &mut Vec<Job>,
        arranges: bool,
    ) -> bool {
        if engine.is_none() && self.moves {
            self.offer_divided(jobs, arranges);
        } else {
            if arranges {
                self.arrange(jobs);
            }
            match engine {
                Some(engine) => drop(self.offer(engine, jobs)),
                None => self.offer_to_each(jobs),
            }
            if arranges {
                self.arranger.restore(jobs);
            }
        }
        let has_ended = |job: &Job| matches!(job.status, JobStatus::Done | JobStatus::AuthenticationFailed);
        if jobs.iter().all(has_ended) {
            return true;
        }
        // An SA whose engine fails names none any more.
        if engine.is_none() && !self.moves {
            self.note_engines(jobs);
        }
        let engines = std::mem::take(&mut self.engines);
        self.lanes.ticket(jobs);
        self.left += jobs.len();
        for (at, job) in jobs.drain(..).enumerate() {
            let engine = engine.or_else(|| engines.get(at).copied()).unwrap_or(usize::MAX);
            match job.status {
                // It broke its promise to be synchronous. A job without a ticket cannot come back, but it
                // holds a buffer.
                JobStatus::Taken => self.taken(engine, &job),
                // Jobs that the engine did not take are still pending. They, and those that it failed, go to
                // the next engine.
                _ => self.ended(job, engine, released),
            }
        }
        self.engines = engines;
        self.run_queues(released);
        false
    }

    /// Submits to each engine all that is for it by [`engines`](Self::engines), and leaves jobs as they were.
    fn offer_divided(&mut self, jobs: &mut [Job], arranges: bool) {
        let mut engines = self.engines.iter();
        self.divider.arrange(jobs, |_| engines.next().and_then(|engine| u8::try_from(*engine).ok()));
        let mut rest = &mut *jobs;
        for engine in 0..self.placement.len() {
            let count = self.engines.iter().filter(|other| **other == engine).count();
            let (its, behind) = rest.split_at_mut(count.min(rest.len()));
            rest = behind;
            if its.is_empty() {
                continue;
            }
            if arranges {
                self.arrange(its);
            }
            self.offer(engine, its);
            if arranges {
                self.arranger.restore(its);
            }
        }
        self.divider.restore(jobs);
    }

    /// Submits runs of jobs with the same first engine to it.
    fn offer_to_each(&mut self, jobs: &mut [Job]) {
        let mut rest = jobs;
        while let Some(job) = rest.first() {
            let engine = self.first_engine(job);
            let run = rest.iter().take_while(|job| self.first_engine(job) == engine).count();
            let (run, behind) = rest.split_at_mut(run);
            self.offer(engine, run);
            rest = behind;
        }
    }

    /// The first engine that has the key of a job's SA, or one that does not exist.
    pub(super) fn first_engine(&self, job: &Job) -> usize {
        self.lanes.of(job).map_or(usize::MAX, |lane| self.first_for(job, lane).0 as usize)
    }

    /// Notes the first engine of each job.
    pub(super) fn note_engines(&mut self, jobs: &[Job]) {
        let mut engines = std::mem::take(&mut self.engines);
        engines.clear();
        engines.extend(jobs.iter().map(|job| self.first_engine(job)));
        self.engines = engines;
    }

    /// Where a job of an SA goes first.
    #[inline]
    pub(super) fn first_for(&self, job: &Job, lane: &Lane) -> First {
        if self.moves { self.first_of_moved(job, lane) } else { lane.first }
    }
}
