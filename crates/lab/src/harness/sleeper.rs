//! A worker of known cost that pauses, and a meter of known watts, in virtual time.

use std::cell::Cell;
use std::collections::VecDeque;
use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;

use super::{Activity, Ceiling, Device, DeviceError, EnergySample, Limit, Load, Meter, NotKnown, Trial};
use crate::generator::{Arrivals, Sizes, Stamp};

pub(crate) const CYCLES_PER_SECOND: f64 = 3e9;
const RANGE: u64 = 262_143_328_850;

/// A worker that takes a known time for each packet and sleeps when its queue is empty.
pub(crate) struct Sleeper {
    rate: f64,
    queue: usize,
    pub(crate) pause: Duration,
    pub(crate) ceiling: Ceiling,
    /// By what share of it the rate changes from trial to trial, up and down.
    pub(crate) wander: f64,
    /// The number of a trial, from 1, that loses a packet.
    pub(crate) loses_in: Option<u16>,
    /// The numbers of trials in which others have its processor, and a packet is lost for that.
    pub(crate) disturbed_in: Range<u16>,
    draw: fastrand::Rng,
    trials: u16,
    /// Nanoseconds of virtual time.
    clock: Rc<Cell<u64>>,
    /// Watts of the machine, and what a worker adds that is awake.
    watts: (f64, f64),
    microjoules: Rc<Cell<f64>>,
}

impl Sleeper {
    pub(crate) fn new(rate: f64) -> Self {
        Self {
            rate,
            queue: 1024,
            pause: Duration::ZERO,
            ceiling: Ceiling { packets_per_second: 2.0 * rate, limit: Limit::Medium },
            wander: 0.0,
            loses_in: None,
            disturbed_in: 0..0,
            draw: fastrand::Rng::with_seed(39),
            trials: 0,
            clock: Rc::new(Cell::new(1_000)),
            watts: (88.0, 20.0),
            microjoules: Rc::default(),
        }
    }

    pub(crate) fn meter(&self, faulty: Fault) -> Box<dyn Meter> {
        let counter = (Rc::clone(&self.clock), Rc::clone(&self.microjoules));
        Box::new(FakeMeter { counter, faulty, samples: 0 })
    }

    /// What comes out, and for how many nanoseconds the worker slept.
    fn carry(&mut self, sent: &[Stamp], end_ns: u64) -> (Vec<(u64, Stamp)>, f64) {
        let rate = self.rate * (1.0 + self.wander * (2.0 * self.draw.f64() - 1.0));
        let (service_ns, pause_ns) = (1e9 / rate, self.pause.as_secs_f64() * 1e9);
        let (mut free_at, mut slept_ns) = (sent[0].sent_ns as f64, 0.0);
        let (mut waiting, mut arrivals) = (VecDeque::new(), Vec::new());
        for stamp in sent {
            let at = stamp.sent_ns as f64;
            while waiting.front().is_some_and(|&done| done <= at) {
                waiting.pop_front();
            }
            if waiting.len() >= self.queue {
                continue;
            }
            if at > free_at && pause_ns > 0.0 {
                // It fell asleep when its queue was empty, and looks again after each pause.
                let slept = ((at - free_at) / pause_ns).ceil() * pause_ns;
                // Only what is before the end counts.
                slept_ns += slept.min((end_ns as f64 - free_at).max(0.0));
                free_at += slept;
            }
            free_at = free_at.max(at) + service_ns;
            waiting.push_back(free_at);
            arrivals.push((super::count(free_at), *stamp));
        }
        if pause_ns > 0.0 {
            slept_ns += (end_ns as f64 - free_at).max(0.0);
        }
        (arrivals, slept_ns)
    }
}

impl Device for Sleeper {
    fn maximum_rate(&mut self, _: Sizes) -> Result<Ceiling, DeviceError> {
        Ok(self.ceiling)
    }

    fn set_pause(&mut self, pause: Duration) -> Result<(), DeviceError> {
        self.pause = pause;
        Ok(())
    }

    fn trial(&mut self, _: Sizes, load: Load) -> Result<Trial, DeviceError> {
        self.trials += 1;
        let begun = self.clock.get();
        let (mut generator, mut sent, mut now) = (load.generator(self.trials, begun), Vec::new(), begun);
        while !generator.is_done() {
            generator.poll(now, |stamp| sent.push(stamp));
            now = now.max(generator.next_due_ns());
        }
        let (came, slept_ns) = self.carry(&sent, now);
        let mut arrivals = Arrivals::new(self.trials);
        let is_disturbed = self.disturbed_in.contains(&self.trials);
        let is_lossy = is_disturbed || self.loses_in == Some(self.trials);
        for (at, stamp) in came.into_iter().skip(usize::from(is_lossy)) {
            arrivals.take(stamp, at);
        }
        let mut trial = Trial::of(load, &generator, arrivals);
        let elapsed = Duration::from_nanos(now - begun);
        let paused = Duration::from_secs_f64(slept_ns / 1e9).min(elapsed);
        let pauses = super::count(slept_ns / (self.pause.as_secs_f64() * 1e9).max(1.0));
        let (lost, cycles_per_second) = (Duration::ZERO, CYCLES_PER_SECOND);
        let activity = Activity { elapsed, paused, pauses, lost, cycles_per_second };
        trial.busy_share = Some(trial.received as f64 / self.rate / elapsed.as_secs_f64());
        trial.activity = Some(activity);
        trial.is_disturbed = is_disturbed;
        let watts = self.watts.0 + self.watts.1 * activity.awake_share();
        self.microjoules.set(self.microjoules.get() + watts * elapsed.as_secs_f64() * 1e6);
        self.clock.set(now);
        Ok(trial)
    }
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Fault {
    None,
    /// The counter wraps in the first trial.
    Wraps,
    /// It goes back to 0 at the second reading.
    Restarts,
    /// It is gone after so many readings.
    Vanishes(u32),
}

struct FakeMeter {
    counter: (Rc<Cell<u64>>, Rc<Cell<f64>>),
    faulty: Fault,
    samples: u32,
}

impl Meter for FakeMeter {
    fn name(&self) -> &str {
        "fake"
    }

    fn ranges(&self) -> Vec<Option<u64>> {
        vec![Some(RANGE)]
    }

    fn sample(&mut self) -> Result<EnergySample, NotKnown> {
        self.samples += 1;
        let counted = super::count(self.counter.1.get());
        let shown = match self.faulty {
            Fault::None => 5_000_000_000 + counted,
            // It shows its range once more before it is 0.
            Fault::Wraps => (RANGE - 30_000_000 + counted) % RANGE,
            Fault::Restarts if self.samples > 1 => counted,
            Fault::Restarts => 5_000_000_000 + counted,
            Fault::Vanishes(after) if self.samples > after => return Err(NotKnown("gone".to_owned())),
            Fault::Vanishes(_) => counted,
        };
        Ok(EnergySample { at: Duration::from_nanos(self.counter.0.get()), microjoules: vec![shown] })
    }
}
