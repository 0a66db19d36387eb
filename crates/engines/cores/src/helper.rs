//! A thread that does cryptography, from the worker's side and from its own.

use crate::NAME;
use crate::engines::{Engines, KeyChange};
use crate::ring::{HelperSide, WorkerSide, ring};
use rustix::thread::{CpuSet, sched_setaffinity};
use std::ops::Range;
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};
use testudo_crypto::{Job, JobStatus};

/// The most jobs in a chunk.
pub(crate) const CHUNK_JOBS: usize = 32;
/// Chunks that a thread may have before the worker does what comes. A worker's burst of 64 jobs is at most as
/// much, so that the thread has work until the worker comes again, and not so much that its packets wait.
pub(crate) const BACKLOG_CHUNKS: u64 = 4;
/// Slots of a ring: the backlog, what waits to be collected, and changes of keys.
const SLOTS: usize = 16;
/// How long a thread may take to end.
const PATIENCE: Duration = Duration::from_secs(1);

/// What lies in a slot: changes of keys, then jobs.
#[derive(Default)]
struct Chunk {
    changes: Vec<KeyChange>,
    jobs: Vec<Job>,
    /// Jobs that an engine has in hand.
    under_way: Range<usize>,
    /// The thread is at it, or was.
    has_begun: bool,
}

impl Chunk {
    fn new() -> Self {
        Self { jobs: Vec::with_capacity(CHUNK_JOBS), ..Self::default() }
    }

    /// Ends what a thread left behind that is gone.
    fn salvage(&mut self) {
        self.changes.clear();
        let under_way = std::mem::take(&mut self.under_way);
        for (at, job) in self.jobs.iter_mut().enumerate() {
            if under_way.contains(&at) {
                spoil(job);
            } else if job.status == JobStatus::Pending {
                job.status = JobStatus::Fault;
            }
        }
    }
}

/// Makes of a job with which an engine was at work a fault that no other engine can repair: the buffer may be
/// sealed in part, and what is sealed twice under one nonce may be plaintext.
fn spoil(job: &mut Job) {
    job.buffer.segments_mut().for_each(|segment| segment.fill(0));
    (job.text_start, job.text_bytes) = (u32::MAX, u32::MAX);
    job.status = JobStatus::Fault;
}

/// A thread, to its worker.
pub(crate) struct Helper {
    /// `None` once it is to end.
    ring: Option<WorkerSide<Chunk>>,
    /// Changes of keys that are not in the ring yet.
    changes: Vec<KeyChange>,
    /// Its engines until it starts.
    engines: Option<Engines>,
    thread: Option<JoinHandle<()>>,
    name: String,
    processor: Option<usize>,
    /// Its thread is gone: it gets no more.
    is_lost: bool,
}

impl Helper {
    /// One whose thread has not started.
    pub(crate) fn new(engines: Engines, name: String, processor: Option<usize>) -> Self {
        let (changes, engines) = (Vec::new(), Some(engines));
        Self { ring: None, changes, engines, thread: None, name, processor, is_lost: false }
    }

    /// Its engines, until it starts.
    pub(crate) fn engines_mut(&mut self) -> Option<&mut Engines> {
        self.engines.as_mut()
    }

    /// Starts the thread, once. Without a thread the others do its share.
    pub(crate) fn start(&mut self) {
        let Some(engines) = self.engines.take() else { return };
        let (mut worker, helper) = ring((0..SLOTS).map(|_| Chunk::new()));
        let (name, processor) = (self.name.clone(), self.processor);
        let body = move || {
            processor.into_iter().for_each(bind);
            serve(engines, helper);
        };
        match Builder::new().name(name).spawn(body) {
            Ok(thread) => {
                worker.wakes(thread.thread().clone());
                (self.ring, self.thread) = (Some(worker), Some(thread));
                self.send_changes();
            }
            Err(error) => {
                tracing::error!("engine {NAME} goes without its thread {}: {error}", self.name);
                self.lose();
            }
        }
    }

    #[cold]
    fn lose(&mut self) {
        self.is_lost = true;
        self.changes = Vec::new();
    }

    /// Whether it does jobs, or will once it is started.
    pub(crate) fn is_in_service(&self) -> bool {
        !self.is_lost
    }

    /// Has its engines follow a change of keys, between the jobs before and after.
    pub(crate) fn change(&mut self, change: KeyChange) {
        if !self.is_lost {
            self.changes.push(change);
            self.send_changes();
            // Without jobs nobody polls, and what goes to a thread that is gone stays there.
            if self.ring.as_ref().is_some_and(WorkerSide::is_abandoned) {
                self.salvage();
            }
        }
    }

    /// Sends changes that found no room before; `true` if none is left. If any is left then jobs are under
    /// way, and the next poll sends them: where the last slot has no jobs and is not begun they go with it,
    /// and if it is begun, all slots before it have ended, and are free but for those with jobs.
    pub(crate) fn send_changes(&mut self) -> bool {
        if self.changes.is_empty() {
            return true;
        }
        let Self { ring: Some(ring), changes, .. } = self else { return false };
        let amend = |chunk: &mut Chunk| {
            let is_early = !chunk.has_begun && chunk.jobs.is_empty();
            if is_early {
                chunk.changes.append(changes);
            }
            is_early
        };
        if ring.amend(amend) {
            return true;
        }
        while ring.collect(|chunk| chunk.jobs.is_empty()) {}
        let fill = |chunk: &mut Chunk| {
            chunk.has_begun = false;
            chunk.changes.append(changes);
        };
        if !ring.publish(fill) {
            return false;
        }
        ring.wake();
        true
    }

    /// Reads how far the thread is, and returns how many chunks it has to do; `None` if it can take none.
    pub(crate) fn backlog(&mut self) -> Option<u64> {
        if self.is_lost || !self.send_changes() {
            return None;
        }
        let ring = self.ring.as_mut()?;
        ring.look();
        Some(ring.backlog()).filter(|backlog| *backlog < BACKLOG_CHUNKS && ring.has_room())
    }

    /// Hands these jobs over, at most [`CHUNK_JOBS`]; `false` if the ring is full. [`wake`](Self::wake) has
    /// to follow.
    pub(crate) fn hand_over(&mut self, jobs: &mut [Job]) -> bool {
        let Some(ring) = &mut self.ring else { return false };
        ring.publish(|chunk| {
            chunk.has_begun = false;
            chunk.jobs.extend(jobs.iter_mut().map(Job::take));
        })
    }

    /// Wakes the thread if it sleeps.
    pub(crate) fn wake(&self) {
        self.ring.iter().for_each(WorkerSide::wake);
    }

    /// Appends up to `max` jobs that have ended.
    pub(crate) fn collect(&mut self, done: &mut Vec<Job>, max: usize) {
        let Some(ring) = &mut self.ring else { return };
        if ring.is_empty() {
            return;
        }
        let mut left = max;
        while left > 0 {
            let take = |chunk: &mut Chunk| {
                let count = chunk.jobs.len().min(left);
                done.extend(chunk.jobs.drain(..count));
                left -= count;
                chunk.jobs.is_empty()
            };
            if !ring.collect(take) {
                break;
            }
        }
        if ring.backlog() > 0 && ring.is_abandoned() {
            self.salvage();
        }
        self.send_changes();
    }

    /// The thread ended in a panic: what it had left comes with the next polls.
    #[cold]
    fn salvage(&mut self) {
        let Some(ring) = &mut self.ring else { return };
        ring.recover(Chunk::salvage);
        tracing::error!("the thread {} of engine {NAME} has ended in a panic; this is a bug", self.name);
        self.lose();
    }
}

impl Helper {
    /// Closes its ring, so that the thread ends: what is in it goes with the last of its two sides, the
    /// buffers back to their pool.
    pub(crate) fn close(&mut self) {
        self.ring = None;
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        self.close();
        let Some(thread) = self.thread.take() else { return };
        let began = Instant::now();
        while !thread.is_finished() {
            if began.elapsed() > PATIENCE {
                tracing::error!("the thread {} of engine {NAME} does not end and is left", self.name);
                return;
            }
            std::thread::yield_now();
        }
        let _ = thread.join();
    }
}

/// What the thread does until its ring is closed.
fn serve(mut engines: Engines, ring: HelperSide<Chunk>) {
    ring.serve(|Chunk { changes, jobs, under_way, has_begun }| {
        *has_begun = true;
        changes.drain(..).for_each(|change| engines.follow(change));
        engines.run(jobs, under_way);
    });
}

/// Binds this thread to a processor.
fn bind(processor: usize) {
    let mut only = CpuSet::new();
    if processor < CpuSet::MAX_CPU {
        only.set(processor);
    }
    if let Err(error) = sched_setaffinity(None, &only) {
        tracing::warn!(
            "a thread of engine {NAME} is not bound to processor {processor}: {error}: under systemd this needs the drop-in testudo-workers.conf"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use testudo_crypto::Direction;
    use testudo_packet::Buffer;

    #[test]
    fn a_chain_in_hand_is_cleared_in_all_of_its_buffers() {
        let mut chain = Buffer::copied(&[1; 40], 0, 128);
        chain.link(Buffer::copied(&[2; 30], 0, 128)).unwrap();
        chain.link(Buffer::copied(&[3; 20], 0, 128)).unwrap();
        let mut job = Job::new(chain, Direction::Open, 0);
        spoil(&mut job);
        let segments: Vec<_> = job.buffer.segments().map(|segment| segment.bytes().to_vec()).collect();
        assert_eq!(segments, [vec![0; 40], vec![0; 30], vec![0; 20]]);
        assert_eq!((job.status, job.text_start), (JobStatus::Fault, u32::MAX));
    }
}
