//! The meter of the threading model `auto`: measures what turns take, and has the model follow.
//!
//! It reads the clock twice in each turn; the device thread and the ports measure themselves
//! ([`Aside`]). A worker whose model is configured has no meter, and its turns are as without it.

use crate::clock::Clock;
use crate::scheduler::{Chooser, Period, ThreadRates};
use crate::threading::ThreadingModel;
use crate::worker::Worker;
use std::sync::Arc;
use std::time::Duration;
use testudo_ipsec::Moment;
use testudo_packet::{Aside, AsideTimes, PortError};

/// What is measured together.
const PERIOD: Duration = Duration::from_millis(100);

/// The model in force of those that are chosen, and why.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChosenThreads {
    /// The model.
    pub model: ThreadingModel,
    /// The one with the most threads that may be chosen.
    pub most: ThreadingModel,
    /// Rates when there was load last.
    pub rates: Option<ThreadRates>,
    /// How often the model has changed.
    pub changes: u64,
}

/// What a meter needs to know of a worker's threads.
pub struct MeterParts {
    /// Engines on devices, which a thread or the worker drives.
    pub devices: Vec<Arc<Aside>>,
    /// What sends, if a thread may.
    pub transmit: Option<Arc<Aside>>,
    /// The model with the most threads that may be chosen.
    pub most: ThreadingModel,
    /// What turns are measured with.
    pub clock: Box<dyn Clock>,
}

/// Measures, and chooses.
pub(crate) struct Meter {
    parts: MeterParts,
    chooser: Chooser,
    changes: u64,
    /// Since when the period is.
    since: Moment,
    /// Turns of the period that had something to do.
    busy: Duration,
    /// Each device, and sending, until the period began.
    devices_before: Vec<AsideTimes>,
    transmit_before: AsideTimes,
}

impl Meter {
    fn new(parts: MeterParts) -> Self {
        let (chooser, since) = (Chooser::new(parts.most), parts.clock.now());
        let devices_before = parts.devices.iter().map(|aside| aside.times()).collect();
        let transmit_before = parts.transmit.as_ref().map(|aside| aside.times()).unwrap_or_default();
        Self { parts, chooser, changes: 0, since, busy: Duration::ZERO, devices_before, transmit_before }
    }

    /// What devices took since this was last asked: all of them, and the busiest one.
    fn devices(&mut self) -> AsideTimes {
        let asides = self.parts.devices.iter().zip(&mut self.devices_before);
        asides.fold(AsideTimes::default(), |sum, (aside, before)| {
            let one = since(aside, before);
            AsideTimes {
                working_ns: sum.working_ns.saturating_add(one.working_ns),
                jobs: sum.jobs.saturating_add(one.jobs),
                busy_ns: sum.busy_ns.max(one.busy_ns),
            }
        })
    }

    /// A turn that began then has ended; returns what to tell of it if the period has, too.
    fn ended(&mut self, began: Moment, was_busy: bool) -> Option<ChosenThreads> {
        let now = self.parts.clock.now();
        if was_busy {
            self.busy += now.since(began);
        }
        let wall = now.since(self.since);
        if wall < PERIOD {
            return None;
        }
        self.look_whether_started();
        let period = self.period(wall);
        (self.since, self.busy) = (now, Duration::ZERO);
        if let Some(model) = self.chooser.ended(&period) {
            self.changes += 1;
            self.follow(model);
        }
        Some(self.chosen())
    }

    /// A device that wants no thread although the model has one is the worker's, since its thread did not
    /// start: that is the model, then.
    fn look_whether_started(&mut self) {
        let is_started = self.parts.devices.iter().all(|aside| aside.is_wanted());
        if self.chooser.model().has_device_thread() && !is_started {
            self.chooser.fall_back();
            self.changes += 1;
            self.follow(self.chooser.model());
        }
    }

    /// Has devices and sides follow a model.
    fn follow(&self, model: ThreadingModel) {
        self.parts.devices.iter().for_each(|aside| aside.want(model.has_device_thread()));
        self.parts.transmit.iter().for_each(|aside| aside.want(model == ThreadingModel::TwoIo));
    }

    /// What the period took, and the next one begins.
    fn period(&mut self, wall: Duration) -> Period {
        let AsideTimes { working_ns: driving_ns, jobs, busy_ns: device_ns } = self.devices();
        let transmit = self.parts.transmit.as_ref().map(|aside| since(aside, &mut self.transmit_before));
        let transmit_ns = transmit.map_or(0, |times| times.working_ns);
        let busy_ns = nanoseconds(self.busy);
        let io_ns = match self.chooser.model() {
            ThreadingModel::RunToCompletion => busy_ns.saturating_sub(driving_ns),
            ThreadingModel::OneIo => busy_ns,
            ThreadingModel::TwoIo => busy_ns.saturating_add(transmit_ns),
        };
        Period { wall_ns: nanoseconds(wall), jobs, io_ns, transmit_ns, driving_ns, device_ns }
    }

    fn chosen(&self) -> ChosenThreads {
        ChosenThreads {
            model: self.chooser.model(),
            most: self.chooser.most(),
            rates: self.chooser.rates(),
            changes: self.changes,
        }
    }
}

/// What something took since `before`, which is now from then on.
fn since(aside: &Aside, before: &mut AsideTimes) -> AsideTimes {
    let after = aside.times();
    let before = std::mem::replace(before, after);
    AsideTimes {
        working_ns: after.working_ns.saturating_sub(before.working_ns),
        jobs: after.jobs.saturating_sub(before.jobs),
        busy_ns: after.busy_ns.saturating_sub(before.busy_ns),
    }
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

impl Worker {
    /// Has the threading model follow what is measured, in [turns that are measured](Self::metered_turn). It
    /// begins with run to completion.
    pub fn choose_threads(&mut self, parts: MeterParts) {
        let meter = Meter::new(parts);
        self.counters.publish_threads(meter.chosen());
        self.meter = Some(Box::new(meter));
    }

    /// Does a [turn](Self::turn), and measures it if the threading model is chosen by that.
    ///
    /// # Errors
    /// Those of the turn.
    pub fn metered_turn(&mut self, now: Moment) -> Result<usize, PortError> {
        let Some(mut meter) = self.meter.take() else { return self.turn(now) };
        let (began, under_way) = (meter.parts.clock.now(), self.dispatcher.under_way());
        let moved = self.turn(now);
        // A turn that only looked at the device in vain had nothing to do.
        let was_busy = moved.as_ref().is_ok_and(|moved| *moved > 0);
        let was_busy = was_busy || self.dispatcher.under_way() != under_way;
        if let Some(chosen) = meter.ended(began, was_busy) {
            self.counters.publish_threads(chosen);
        }
        self.meter = Some(meter);
        moved
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Still;

    impl Clock for Still {
        fn now(&self) -> Moment {
            Moment::default()
        }
    }

    /// One that has been busy for long says nothing of a period in which another one was.
    #[test]
    fn the_busiest_device_is_that_of_the_period() {
        let devices = [(); 2].map(|()| Arc::<Aside>::default());
        devices[0].add_jobs(1_000_000, Duration::from_secs(3600));
        let parts = MeterParts {
            devices: devices.to_vec(),
            transmit: None,
            most: ThreadingModel::OneIo,
            clock: Box::new(Still),
        };
        let mut meter = Meter::new(parts);
        for (jobs, busy) in [([1, 5], [3, 80]), ([7, 0], [90, 0]), ([0, 0], [0, 0])] {
            for (device, (jobs, busy)) in devices.iter().zip(jobs.into_iter().zip(busy)) {
                device.add_jobs(jobs, Duration::from_millis(busy));
            }
            let period = meter.period(PERIOD);
            let expected = (jobs[0] + jobs[1], busy[0].max(busy[1]) * 1_000_000);
            assert_eq!((period.jobs, period.device_ns), (expected.0 as u64, expected.1));
        }
    }
}
