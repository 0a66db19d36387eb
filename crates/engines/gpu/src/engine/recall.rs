//! A device that is late: how long it may be, and what becomes of the jobs that it has.
//!
//! ```text
//!                            40 ms, or twice what such a batch took of late
//!   in service ─────────────────────────────────────────────────────────────► rests: all jobs are faults
//!        ▲                                                                      │              │
//!        └──────────── all that it had has ended, and is discarded ─────────────┘              │ 750 ms
//!                                                                                              ▼
//!                                                                                        out of service
//! ```
//!
//! **40 ms**, because a gateway in need of buffers gives up what an engine has for 62.5 ms, and with it the
//! packets. A batch's time counts from its first packet on, as the gateway's does. A look counts for 20 ms at
//! most, and for 12.5 ms if it comes more than 100 ms after the one before: then nobody looked, which says
//! nothing of the device. So the second look comes in time where the worker's turns are long, and where they
//! are short the last one (and 8 ms for keys before the batch) leave some of the 62.5 ms.
//!
//! **What a batch honestly takes** is known of those before: how long they were away, in classes of what they
//! are to the kernel (suites and lengths), the longest of late. A device that is slow for its batches loses
//! the jobs of two of a class, one after the other, and is known then: what it ends after all is discarded,
//! and the shorter of two such times counts. One hang teaches nothing. What is known is forgotten by a
//! sixteenth with each batch that takes less. A batch waits for the one before it, and may be away for as
//! long as that. A processor that OpenCL has as a device (PoCL) is late because others have its time, which
//! the next engine would lack, too: it has as long as there is.

use super::{GpuEngine, LEAST_LOOK, LOOKS, NAME, PART_FOR_KEYS};
use crate::batch::Batch;
use crate::device::Device;
use crate::under_way::{Jobs, State};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long a batch may be away, from its first packet on, before its jobs are taken back.
pub(super) const RECALL: Duration = Duration::from_millis(40);
/// A look counts for so much of that at most, unless it was missing for longer than the other: two looks are
/// enough, however long the worker's turns are.
const LOOK: Duration = Duration::from_millis(20);
const MISSING: Duration = Duration::from_millis(100);
/// And so many times what such a batch took of late, as the packet scheduler tells a device that stalls.
const TIMES: u32 = 2;
/// What a batch that was away for less takes off the longest: a sixteenth of the difference.
const WEIGHT: u32 = 16;
/// The shortest class of batches, of up to so many steps; each other one is twice as long as the one before.
const LEAST_STEPS: u64 = 4096;
const CLASSES: usize = 28;

/// When jobs are taken back from a device.
pub(super) struct Recall {
    /// `None`: not before the device is out of service.
    least: Option<Duration>,
    /// The longest that batches were away of late, by class; 0 if there was none.
    away: [Duration; CLASSES],
    /// How long the last batch was away, by class, if it was late.
    late: [Duration; CLASSES],
    /// The batch that was late has ended: those behind it waited for it.
    has_ended: bool,
    /// How often it has happened.
    count: u64,
}

fn class(steps: u64) -> usize {
    let lengths = steps.div_ceil(LEAST_STEPS).max(1).next_power_of_two().trailing_zeros();
    usize::try_from(lengths).unwrap_or(CLASSES).min(CLASSES - 1)
}

impl Recall {
    pub(super) fn of(device: &dyn Device) -> Self {
        let least = (!device.is_processor()).then_some(RECALL);
        let [away, late] = [[Duration::ZERO; CLASSES]; 2];
        Self { least, away, late, has_ended: false, count: 0 }
    }

    /// It does not happen.
    pub(super) fn never(&mut self) {
        self.least = None;
    }

    /// A batch of so many steps has ended, in time or after its jobs were taken back.
    fn learn(&mut self, steps: u64, away: Duration, is_late: bool) {
        if is_late && std::mem::replace(&mut self.has_ended, true) {
            return;
        }
        let class = class(steps);
        let Some(longest) = self.away.get_mut(class) else { return };
        let Some(late) = self.late.get_mut(class) else { return };
        let before = std::mem::replace(late, if is_late { away } else { Duration::ZERO });
        if is_late && before.is_zero() {
            return;
        }
        let away = if is_late { away.min(before) } else { away };
        *longest = away.max(*longest - longest.saturating_sub(away) / WEIGHT);
    }

    /// How long a batch of so many steps is away, as it is known of its class, or of the next shorter one of
    /// which anything is.
    fn known(&self, steps: u64) -> Duration {
        let known = self.away.iter().take(class(steps) + 1).rev().find(|away| !away.is_zero());
        known.copied().unwrap_or_default()
    }

    /// How long a batch may be away: no less than the one that it is behind, and longer for keys before it.
    fn allowed(&self, batch: &Batch) -> Option<Duration> {
        let least = self.least?;
        let before = batch.behind.map_or(Duration::ZERO, |steps| self.known(steps));
        let expected = self.known(batch.steps).max(before).saturating_mul(TIMES);
        Some(least.max(expected) + batch.for_keys.min(least / PART_FOR_KEYS))
    }
}

impl GpuEngine {
    /// The worker looks: time passes for all batches that have jobs, or whose jobs were taken back.
    pub(crate) fn look(&mut self, now: Instant) {
        let most = (self.patience / LOOKS).max(LEAST_LOOK);
        let passed = now.saturating_duration_since(self.looked);
        self.looked = now;
        for batch in self.under_way.iter_mut().chain(&mut self.open) {
            let passed = passed.min(now.saturating_duration_since(batch.since));
            batch.waited += passed.min(most);
            batch.looked += passed.min(if passed > MISSING { LEAST_LOOK } else { LOOK });
        }
    }

    /// Asks the device which batches it has ended, in their order.
    pub(super) fn ask_device(&mut self) {
        while self.broken.is_none()
            && let Some(batch) = self.under_way.get(self.ended)
        {
            let (index, steps, away) = (batch.index, batch.steps, batch.looked);
            // Without the keys that it may have waited for.
            let own = away.saturating_sub(batch.for_keys);
            if !batch.is_launched {
                // Its jobs were taken back before the device was given it.
                if !self.rests {
                    return;
                }
                self.ended += 1;
                continue;
            }
            let is_overdue = batch.waited >= self.patience + batch.for_keys;
            let allowed = self.recall.allowed(batch);
            match self.device.is_done(index) {
                Ok(true) => {
                    self.recall.learn(steps, own, self.rests);
                    self.ended += 1;
                    if !self.rests {
                        self.check(self.ended - 1);
                    }
                }
                Ok(false) if is_overdue => {
                    let patience = self.patience;
                    self.break_down(format!("a batch was not done {patience:?} after its first packet came"));
                }
                Ok(false) => {
                    if !self.rests && allowed.is_some_and(|allowed| away >= allowed) {
                        self.rest();
                    }
                    return;
                }
                Err(reason) => self.break_down(reason),
            }
        }
    }

    /// Takes all jobs back. The device gets none until it has ended the batches that it has.
    #[cold]
    fn rest(&mut self) {
        self.rests = true;
        self.jobs.set_state(State::Rests);
        self.recall.count += 1;
        self.recall.has_ended = false;
        // A device that is late again and again does not fill the log.
        if self.recall.count.is_power_of_two() {
            let count = self.recall.count;
            tracing::warn!(
                "engine {NAME}: the device is late ({count} so far): until it answers the next engine has its packets"
            );
        }
        match self.open.take() {
            Some(batch) if batch.is_empty() => self.free.push(batch),
            gathered => self.under_way.extend(gathered),
        }
    }

    /// Follows another thread that has taken all jobs back.
    pub(super) fn follow_reclaim(&mut self, jobs: &mut Jobs) {
        if !jobs.take_reclaimed() {
            return;
        }
        self.under_way.iter_mut().chain(&mut self.open).for_each(|batch| batch.leave_all());
        // Without a batch it has nothing to end, after which it would be in service again.
        let has_batch = !self.under_way.is_empty() || self.open.as_ref().is_some_and(|open| !open.is_empty());
        if self.broken.is_none() && !self.rests && has_batch {
            self.rest();
        }
    }

    /// Frees batches that the device has ended and whose jobs have gone back, and has a device take jobs
    /// again that has no other. What is out of service may still write to its memory: that is used no more.
    pub(super) fn free_ended(&mut self, jobs: &mut Jobs) {
        if self.broken.is_some() {
            return;
        }
        while self.ended > 0
            && let Some(mut batch) = self.under_way.pop_front_if(|batch| batch.left() == 0)
        {
            jobs.clear(batch.index);
            batch.clear();
            self.free.push(batch);
            self.ended -= 1;
        }
        if self.rests && self.under_way.is_empty() {
            self.rests = false;
            self.jobs.set_state(State::InService);
            self.checks.doubt_all();
        }
    }

    /// Looks whether a device that rests has ended what it has.
    pub(crate) fn see_to_rest(&mut self) {
        if !self.rests {
            return;
        }
        self.look(Instant::now());
        self.ask_device();
        let jobs = Arc::clone(&self.jobs);
        self.free_ended(&mut jobs.lock());
    }
}
