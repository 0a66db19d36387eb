//! Submissions that end where they are: engines end all of their jobs before they return.

use super::Dispatcher;
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
        let has_ended = |job: &Job| matches!(job.status, JobStatus::Done | JobStatus::AuthenticationFailed);
        if jobs.iter().all(has_ended) {
            return true;
        }
        self.lanes.ticket(jobs);
        self.left += jobs.len();
        for job in jobs.drain(..) {
            let engine = engine.unwrap_or_else(|| self.first_engine(&job));
            match job.status {
                // It broke its promise to be synchronous. A job without a ticket cannot come back, but it
                // holds a buffer.
                JobStatus::Taken => self.taken(engine, &job),
                // Jobs that the engine did not take are still pending. They, and those that it failed, go to
                // the next engine.
                _ => self.ended(job, engine, released),
            }
        }
        self.run_queues(released);
        false
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
        self.lanes.of(job).map_or(usize::MAX, |lane| lane.first.0 as usize)
    }
}
