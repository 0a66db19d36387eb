//! A worker of known cost that pauses, and a meter of known watts, in virtual time.

use std::cell::Cell;
use std::collections::VecDeque;
use std::rc::Rc;

use super::*;
use crate::generator::{Arrivals, Stamp};
use crate::harness::EnergySample;

const SIZES: Sizes = Sizes::Bytes(500);
const CYCLES_PER_SECOND: f64 = 3e9;
const RANGE: u64 = 262_143_328_850;

/// A worker that takes a known time for each packet and sleeps when its queue is empty.
struct Sleeper {
    rate: f64,
    queue: usize,
    pause: Duration,
    trials: u16,
    /// Nanoseconds of virtual time.
    clock: Rc<Cell<u64>>,
    /// Watts of the machine, and what a worker adds that is awake.
    watts: (f64, f64),
    microjoules: Rc<Cell<f64>>,
}

impl Sleeper {
    fn new(rate: f64) -> Self {
        Self {
            rate,
            queue: 1024,
            pause: Duration::ZERO,
            trials: 0,
            clock: Rc::new(Cell::new(1_000)),
            watts: (88.0, 20.0),
            microjoules: Rc::default(),
        }
    }

    fn meter(&self, faulty: Fault) -> Box<dyn Meter> {
        let counter = (Rc::clone(&self.clock), Rc::clone(&self.microjoules));
        Box::new(FakeMeter { counter, faulty, samples: 0 })
    }

    /// What comes out, and for how many nanoseconds the worker slept.
    fn carry(&self, sent: &[Stamp], end_ns: u64) -> (Vec<(u64, Stamp)>, f64) {
        let (service_ns, pause_ns) = (1e9 / self.rate, self.pause.as_secs_f64() * 1e9);
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
            arrivals.push((super::super::count(free_at), *stamp));
        }
        if pause_ns > 0.0 {
            slept_ns += (end_ns as f64 - free_at).max(0.0);
        }
        (arrivals, slept_ns)
    }
}

impl Device for Sleeper {
    fn maximum_rate(&mut self, _: Sizes) -> Result<f64, DeviceError> {
        Ok(2.0 * self.rate)
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
        for (at, stamp) in came {
            arrivals.take(stamp, at);
        }
        let mut trial = Trial::of(load, &generator, arrivals);
        let elapsed = Duration::from_nanos(now - begun);
        let paused = Duration::from_secs_f64(slept_ns / 1e9).min(elapsed);
        let pauses = super::super::count(slept_ns / (self.pause.as_secs_f64() * 1e9).max(1.0));
        let (lost, cycles_per_second) = (Duration::ZERO, CYCLES_PER_SECOND);
        let activity = Activity { elapsed, paused, pauses, lost, cycles_per_second };
        trial.busy_share = Some(trial.received as f64 / self.rate / elapsed.as_secs_f64());
        trial.activity = Some(activity);
        let watts = self.watts.0 + self.watts.1 * activity.awake_share();
        self.microjoules.set(self.microjoules.get() + watts * elapsed.as_secs_f64() * 1e6);
        self.clock.set(now);
        Ok(trial)
    }
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Fault {
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
        let counted = super::super::count(self.counter.1.get());
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

fn plan() -> Plan {
    Plan { trial: Duration::from_secs(1), ..Plan::default() }
}

fn assert_within_2_percent(found: f64, known: f64) {
    assert!((found / known - 1.0).abs() <= 0.02, "found {found}, known {known}");
}

#[test]
fn what_a_known_worker_takes_at_a_rate_is_found() {
    // Long enough that a pause more or less is no percent of it.
    let plan = Plan { trial: Duration::from_secs(4), repetitions: 1, ..Plan::default() };
    for (rate, share) in [(100_000.0, 0.1), (400_000.0, 0.25), (200_000.0, 0.75)] {
        let mut device = Sleeper::new(rate);
        let mut meters = [device.meter(Fault::None)];
        let steps = efficiency(&mut device, &mut meters, SIZES, share * rate, &plan).unwrap();
        let held: Vec<_> = steps.iter().filter(|step| step.is_held).collect();
        // Packets that come in one pause are what the queue holds: longer pauses lose some.
        let fits = |us: &&u64| share * rate * (**us as f64) / 1e6 <= 1024.0;
        let longest = PAUSE_STEPS_US.iter().take_while(fits).last().unwrap();
        assert_eq!(held.last().unwrap().pause, Duration::from_micros(*longest), "{share} of {rate}");
        let ended = *longest == *PAUSE_STEPS_US.last().unwrap();
        assert_eq!((steps.last().unwrap().is_held, held.len()), (ended, steps.len() - usize::from(!ended)));
        for step in held {
            // Without a pause a worker polls all the time; with one, it is awake for its packets.
            let awake = if step.pause.is_zero() { 1.0 } else { share };
            assert_within_2_percent(step.awake_share.unwrap(), awake);
            assert_within_2_percent(step.row.busy_share.unwrap(), share);
            let bytes = share * rate * 500.0;
            assert_within_2_percent(step.cycles_per_byte.unwrap(), awake * CYCLES_PER_SECOND / bytes);
            assert_within_2_percent(step.busy_cycles_per_byte.unwrap(), CYCLES_PER_SECOND / rate / 500.0);
            let watts = 88.0 + 20.0 * awake;
            assert_within_2_percent(step.power.total().unwrap(), watts);
            assert_within_2_percent(step.joules_per_byte().unwrap(), watts / bytes);
        }
        assert_eq!(device.pause, Duration::ZERO);
    }
}

#[test]
fn more_than_a_device_can_is_not_held_even_without_a_pause() {
    let mut device = Sleeper::new(100_000.0);
    let steps = efficiency(&mut device, &mut [], SIZES, 150_000.0, &plan()).unwrap();
    assert_eq!((steps.len(), steps[0].is_held, steps[0].pause), (1, false, Duration::ZERO));
    assert!(steps[0].power.total().is_err() && steps[0].joules_per_byte().is_err());
}

#[test]
fn a_meter_that_wraps_is_read_and_one_that_restarts_or_vanishes_is_not_known() {
    let run = |faulty| {
        let mut device = Sleeper::new(1_000_000.0);
        let mut meters = [device.meter(faulty)];
        efficiency(&mut device, &mut meters, SIZES, 100_000.0, &plan()).unwrap()
    };
    for step in run(Fault::Wraps).iter().filter(|step| step.is_held) {
        let awake = if step.pause.is_zero() { 1.0 } else { 0.1 };
        assert_within_2_percent(step.power.total().unwrap(), 88.0 + 20.0 * awake);
    }
    // The first trial of the first step is lost with the restart, and so is its median.
    let steps = run(Fault::Restarts);
    assert!(steps[0].power.total().is_err() && steps[1].power.total().is_ok(), "{steps:?}");
    // Three trials of two readings each: the first step has all of them, the second none.
    let steps = run(Fault::Vanishes(6));
    assert!(steps[0].power.total().is_ok(), "{steps:?}");
    for step in &steps[1..] {
        assert_eq!(step.power.total(), Err(NotKnown("fake: gone".to_owned())));
        assert!(step.joules_per_byte().is_err() && step.cycles_per_byte.is_some());
    }
}

#[test]
fn devices_that_cannot_pause_say_so() {
    let mut device = crate::harness::fake::FakeDevice::new(50_000.0, 31);
    let error = efficiency(&mut device, &mut [], SIZES, 10_000.0, &plan()).unwrap_err();
    assert_eq!(error.to_string(), "this device never pauses");
}
