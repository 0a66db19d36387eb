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
    /// Devices and sending until the period began.
    before: [AsideTimes; 2],
}

impl Meter {
    fn new(parts: MeterParts) -> Self {
        let (chooser, since) = (Chooser::new(parts.most), parts.clock.now());
        let mut meter =
            Self { parts, chooser, changes: 0, since, busy: Duration::ZERO, before: Default::default() };
        meter.before = meter.times();
        meter
    }

    fn times(&self) -> [AsideTimes; 2] {
        let add = |sum: AsideTimes, one: AsideTimes| AsideTimes {
            working_ns: sum.working_ns + one.working_ns,
            jobs: sum.jobs + one.jobs,
            busy_ns: sum.busy_ns.max(one.busy_ns),
        };
        let devices = self.parts.devices.iter().map(|aside| aside.times()).fold(AsideTimes::default(), add);
        [devices, self.parts.transmit.as_ref().map(|aside| aside.times()).unwrap_or_default()]
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
        let period = self.period(wall);
        (self.since, self.busy) = (now, Duration::ZERO);
        if let Some(model) = self.chooser.ended(&period) {
            self.changes += 1;
            self.parts.devices.iter().for_each(|aside| aside.want(model.has_device_thread()));
            self.parts.transmit.iter().for_each(|aside| aside.want(model == ThreadingModel::TwoIo));
        }
        Some(self.chosen())
    }

    /// What the period took, and the next one begins.
    fn period(&mut self, wall: Duration) -> Period {
        let after = self.times();
        let [device, transmit] = std::mem::replace(&mut self.before, after);
        let driving_ns = after[0].working_ns.saturating_sub(device.working_ns);
        let transmit_ns = after[1].working_ns.saturating_sub(transmit.working_ns);
        let busy_ns = nanoseconds(self.busy);
        let io_ns = match self.chooser.model() {
            ThreadingModel::RunToCompletion => busy_ns.saturating_sub(driving_ns),
            ThreadingModel::OneIo => busy_ns,
            ThreadingModel::TwoIo => busy_ns.saturating_add(transmit_ns),
        };
        Period {
            wall_ns: nanoseconds(wall),
            jobs: after[0].jobs.saturating_sub(device.jobs),
            io_ns,
            transmit_ns,
            driving_ns,
            device_ns: after[0].busy_ns.saturating_sub(device.busy_ns),
        }
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
