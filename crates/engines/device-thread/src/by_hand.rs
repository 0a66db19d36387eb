//! The engine in the worker's own hands, while no thread has it: what the worker submits goes to it at once,
//! through no ring, under the engine's own ids of keys.

use crate::device::Device;
use crate::keys::KeyChange;
use std::time::{Duration, Instant};
use testudo_crypto::{Job, JobStatus, KeyId};
use testudo_packet::Aside;

/// The worker's calls of the engine, and what they take.
#[derive(Default)]
pub(crate) struct ByHand {
    /// The worker's ids of the keys of the jobs in hand; empty between calls.
    keys: Vec<KeyId>,
    /// Since when the engine has jobs of which no time was booked.
    busy_since: Option<Instant>,
}

impl ByHand {
    /// Has the engine take a prefix of the jobs; returns how many it took, and how many of them it keeps.
    pub(crate) fn submit(
        &mut self,
        device: &mut Device,
        jobs: &mut [Job],
        (in_flight, aside): (usize, &Aside),
    ) -> (usize, usize) {
        let Some(engine) = &mut device.engine else { return (0, 0) };
        let began = Instant::now();
        self.keys.clear();
        self.keys.extend(jobs.iter().map(|job| job.key));
        // Neighbours often have one key.
        let mut last = (KeyId::NONE, KeyId::NONE);
        for job in &mut *jobs {
            if job.key != last.0 {
                last = (job.key, device.ids.of(job.key));
            }
            job.key = last.1;
        }
        let taken = engine.submit(jobs).min(jobs.len());
        jobs.iter_mut().zip(&self.keys).for_each(|(job, key)| job.key = *key);
        let kept = jobs.iter().take(taken).filter(|job| job.status == JobStatus::Taken).count();
        if kept < jobs.len() {
            device.tell();
        }
        aside.add_work(began);
        self.book(in_flight + kept, taken - kept, aside);
        (taken, kept)
    }

    /// Flushes the engine.
    pub(crate) fn flush(device: &mut Device, aside: &Aside) {
        let began = Instant::now();
        device.engine.iter_mut().for_each(|engine| engine.flush());
        aside.add_work(began);
    }

    /// Takes up to `max` jobs that have ended; returns how many.
    pub(crate) fn poll(
        &mut self,
        device: &mut Device,
        (done, max): (&mut Vec<Job>, usize),
        (in_flight, aside): (usize, &Aside),
    ) -> usize {
        let (began, before) = (Instant::now(), done.len());
        device.engine.iter_mut().for_each(|engine| engine.poll(done, max));
        let ended = done.len() - before;
        if ended > 0 {
            device.tell();
            aside.add_work(began);
        }
        self.book(in_flight.saturating_sub(ended), ended, aside);
        ended
    }

    /// Has the engine follow a change of keys, with which a device may be lost.
    pub(crate) fn follow(device: &mut Device, change: KeyChange) {
        device.follow(change);
        device.tell();
    }

    /// Books that so many jobs have ended, and the time in which the engine had any. It has `in_flight` now.
    fn book(&mut self, in_flight: usize, ended: usize, aside: &Aside) {
        if self.busy_since.is_none() && in_flight == 0 && ended == 0 {
            return;
        }
        let now = Instant::now();
        let busy = self.busy_since.map_or(Duration::ZERO, |since| now - since);
        aside.add_jobs(ended, busy);
        self.busy_since = (in_flight > 0).then_some(now);
    }
}
