//! A thread that does cryptography, from the worker's side and from its own.

use crate::NAME;
use crate::cost::{Bill, MOST_TICKS};
use crate::engines::{Engines, KeyChange};
use crate::ring::{HelperSide, WorkerSide, ring};
use rustix::thread::{CpuSet, sched_setaffinity};
use std::ops::Range;
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};
use testudo_crypto::{Job, JobStatus};

/// The most jobs in a chunk.
pub(crate) const CHUNK_JOBS: usize = 32;
/// Chunks that a thread may have before it, whatever they were expected to cost.
pub(crate) const BACKLOG_CHUNKS: u64 = 24;
/// Slots of a ring: the backlog, what waits to be collected, and changes of keys.
const SLOTS: usize = 32;
/// How long a thread may take to end.
const PATIENCE: Duration = Duration::from_secs(1);

/// The clock of [`ticks`](testudo_packet::ticks).
pub(crate) type Clock = fn() -> u64;

/// What lies in a slot: changes of keys, then jobs.
#[derive(Default)]
struct Chunk {
    changes: Vec<KeyChange>,
    jobs: Vec<Job>,
    /// What the jobs were expected to cost.
    bill: Bill,
    /// What they have cost, by the thread.
    measured: Option<u64>,
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
    clock: Clock,
    work: Work,
    /// Its thread is gone: it gets no more.
    is_lost: bool,
}

impl Helper {
    /// One whose thread has not started.
    pub(crate) fn new(engines: Engines, name: String, processor: Option<usize>, clock: Clock) -> Self {
        let (changes, engines, work) = (Vec::new(), Some(engines), Work::default());
        Self { ring: None, changes, engines, thread: None, name, processor, clock, work, is_lost: false }
    }

    /// Its engines, until it starts.
    pub(crate) fn engines_mut(&mut self) -> Option<&mut Engines> {
        self.engines.as_mut()
    }

    /// Starts the thread, once. Without a thread the others do its share.
    pub(crate) fn start(&mut self) {
        let Some(engines) = self.engines.take() else { return };
        let (mut worker, helper) = ring((0..SLOTS).map(|_| Chunk::new()));
        let (name, processor, clock) = (self.name.clone(), self.processor, self.clock);
        let body = move || {
            processor.into_iter().for_each(bind);
            serve(engines, helper, clock);
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
            (chunk.has_begun, chunk.bill, chunk.measured) = (false, Bill::default(), None);
            chunk.changes.append(changes);
        };
        if !ring.publish(fill) {
            return false;
        }
        self.work.add(ring.published(), 0, 0);
        ring.wake();
        true
    }

    /// Reads how far the thread is, and returns how much it has before it, in ticks; `None` if it can take
    /// none.
    pub(crate) fn backlog(&mut self, now: u64) -> Option<u64> {
        if self.is_lost || !self.send_changes() {
            return None;
        }
        let ring = self.ring.as_mut()?;
        ring.look();
        let backlog = self.work.backlog(ring.published(), ring.backlog(), now);
        Some(backlog).filter(|_| self.has_room())
    }

    /// Whether it may have another chunk.
    pub(crate) fn has_room(&self) -> bool {
        self.ring.as_ref().is_some_and(|ring| ring.backlog() < BACKLOG_CHUNKS && ring.has_room())
    }

    /// Hands these jobs over, at most [`CHUNK_JOBS`]; `false` if the ring is full. [`wake`](Self::wake) has
    /// to follow.
    pub(crate) fn hand_over(&mut self, jobs: &mut [Job], bill: Bill, now: u64) -> bool {
        let Some(ring) = &mut self.ring else { return false };
        let is_published = ring.publish(|chunk| {
            (chunk.has_begun, chunk.bill, chunk.measured) = (false, bill, None);
            chunk.jobs.extend(jobs.iter_mut().map(Job::take));
        });
        if is_published {
            self.work.add(ring.published(), bill.ticks, now);
        }
        is_published
    }

    /// Wakes the thread if it sleeps.
    pub(crate) fn wake(&self) {
        self.ring.iter().for_each(WorkerSide::wake);
    }

    /// Appends up to `max` jobs that have ended, and tells what each chunk was expected to cost and has cost.
    pub(crate) fn collect(&mut self, done: &mut Vec<Job>, max: usize, mut learn: impl FnMut(Bill, u64)) {
        let Some(ring) = &mut self.ring else { return };
        if ring.is_empty() {
            return;
        }
        let mut left = max;
        while left > 0 {
            let take = |chunk: &mut Chunk| {
                chunk.measured.take().into_iter().for_each(|measured| learn(chunk.bill, measured));
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

/// What a thread has before it, by what was expected of it.
#[derive(Debug, Default)]
struct Work {
    /// What had been handed over before the chunk in each slot, in ticks.
    before: [u64; SLOTS],
    total: u64,
    /// When it will have done all, as far as is known.
    ends_at: u64,
}

impl Work {
    fn slot(counter: u64) -> usize {
        // Lossless: the remainder is small.
        usize::try_from(counter % SLOTS as u64).unwrap_or(0)
    }

    /// A chunk of so much was handed over, the last one of so many.
    fn add(&mut self, published: u64, ticks: u64, now: u64) {
        if let Some(before) = self.before.get_mut(Self::slot(published.wrapping_sub(1))) {
            *before = self.total;
        }
        self.total += ticks;
        self.ends_at = self.ends_at.max(now) + ticks;
    }

    /// What is left, where of so many `published` chunks `waiting` have not ended. How far the thread is in
    /// the oldest one the time says.
    fn backlog(&mut self, published: u64, waiting: u64, now: u64) -> u64 {
        if waiting == 0 {
            self.ends_at = now;
            return 0;
        }
        let since = |counter: u64| {
            let before = self.before.get(Self::slot(counter)).copied().unwrap_or(0);
            self.total - before
        };
        let oldest = published - waiting;
        let without_oldest = if waiting == 1 { 0 } else { since(oldest + 1) };
        let left = self.ends_at.saturating_sub(now).max(without_oldest).min(since(oldest));
        self.ends_at = now + left;
        left.min(MOST_TICKS)
    }
}

/// What the thread does until its ring is closed.
fn serve(mut engines: Engines, ring: HelperSide<Chunk>, clock: Clock) {
    ring.serve(|Chunk { changes, jobs, measured, under_way, has_begun, .. }| {
        *has_begun = true;
        changes.drain(..).for_each(|change| engines.follow(change));
        let began = clock();
        engines.run(jobs, under_way);
        *measured = Some(clock().wrapping_sub(began));
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

    /// What a thread has left is known to the chunk, and within a chunk to the time that was expected.
    #[test]
    fn the_backlog_is_that_of_chunks_that_have_not_ended_and_falls_with_time() {
        let seed = 31;
        println!("seed {seed}");
        let mut random = fastrand::Rng::with_seed(seed);
        let (mut work, mut waiting, mut published, mut now) = (Work::default(), Vec::new(), 0, 0);
        for _ in 0..20_000 {
            now += random.u64(..300);
            if waiting.len() < SLOTS && random.bool() {
                let ticks = random.u64(..1_000);
                published += 1;
                waiting.push(ticks);
                work.add(published, ticks, now);
            } else if !waiting.is_empty() && random.bool() {
                waiting.remove(0);
            }
            let all: u64 = waiting.iter().sum();
            let without_oldest: u64 = waiting.iter().skip(1).sum();
            let left = work.backlog(published, waiting.len() as u64, now);
            assert!((without_oldest..=all).contains(&left), "{left} of {waiting:?}");
            // Nothing has ended since: it is what time has left of it.
            now += 10;
            let later = work.backlog(published, waiting.len() as u64, now);
            assert_eq!(later, left.saturating_sub(10).max(without_oldest));
        }
    }

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
