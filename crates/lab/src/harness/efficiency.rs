//! Processor time and energy at a fixed rate (paper 000, section V).
//!
//! A worker that polls is always busy, whatever it does. So it sleeps after each poll that found nothing, for
//! longer and longer, until packets are lost: what it is awake for before that is what the rate takes.

use std::time::Duration;

use super::device::{Activity, Ceiling, Device, DeviceError, Load, Trial};
use super::measurement::{Measurement, Plan, Test};
use super::meter::{self, Meter, NotKnown, Power};
use super::repeat::{CAME_BACK, Figure};
use super::undisturbed;
use crate::generator::Sizes;
use crate::traffic::median;

/// The pauses, in microseconds.
pub const PAUSE_STEPS_US: [u64; 15] =
    [0, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 20_000];
/// A pause is at most this share of a trial: longer ones would make its rate as coarse.
pub const MAX_PAUSE_SHARE: f64 = 0.02;
/// A rate of packets that come back has fallen when it is below this share of those offered.
const KEPT: f64 = 0.97;

/// What a pause brought at one rate.
#[derive(Debug, Clone, PartialEq)]
pub struct Step {
    /// The pause that the worker was told.
    pub pause: Duration,
    /// What came through.
    pub row: Measurement,
    /// Whether all packets were offered, came through in every trial, and as fast as they were offered.
    pub is_held: bool,
    /// Whether the next pause was not held for no other reason than that somebody else had the processor
    /// whenever packets were lost: this one may not be the longest that holds. The same of the first step
    /// itself, where that was not held: the rate may hold.
    pub is_ended_by_others: bool,
    /// The share of the time in which the worker had a processor, 0 to 1: medians, here and below.
    pub awake_share: Option<f64>,
    /// The share in which other work had it, although the worker wanted it, 0 to 1.
    pub lost_share: Option<f64>,
    /// How long pauses were, in microseconds.
    pub mean_pause_us: Option<f64>,
    /// Cycles of the worker for each byte of frames that came through: what it was awake for (paper 000,
    /// section V-B).
    pub cycles_per_byte: Option<f64>,
    /// The same of turns that had packets.
    pub busy_cycles_per_byte: Option<f64>,
    /// What meters showed.
    pub power: Power,
}

impl Step {
    /// Gigabits of frames that came through in a second.
    #[must_use]
    pub fn gbit_per_second(&self) -> f64 {
        self.row.throughput_packets_per_second * self.row.sizes.mean_bytes() * 8.0 / 1e9
    }

    /// Whether the figures are to be relied on: they repeat, and are those of the pause that they seem of.
    #[must_use]
    pub fn is_converged(&self) -> bool {
        self.row.unconverged.is_none() && !self.is_ended_by_others
    }

    /// Energy for each byte of frames that came through, in joules.
    ///
    /// # Errors
    /// [`NotKnown`] without a meter, or where nothing came through.
    pub fn joules_per_byte(&self) -> Result<f64, NotKnown> {
        let (rate, sizes) = (self.row.throughput_packets_per_second, self.row.sizes);
        let found = meter::joules_per_byte(self.power.total()?, rate, sizes);
        found.ok_or_else(|| NotKnown("nothing came through".to_owned()))
    }

    fn of(
        pause: Duration,
        sizes: Sizes,
        plan: &Plan,
        ceiling: &Ceiling,
        (trials, power): (&[Trial], &[Power]),
    ) -> Self {
        let row = Measurement::of(Test::Efficiency, sizes, plan, trials, &CAME_BACK);
        let mut row = row.below(ceiling, trials);
        let awake: Option<Vec<f64>> =
            trials.iter().map(|trial| trial.activity.as_ref().map(Activity::awake_share)).collect();
        let watts: Result<Vec<f64>, NotKnown> = power.iter().map(Power::total).collect();
        // What is not known of all of them is compared with nothing.
        for (figure, results) in [(Figure::Awake, awake), (Figure::Power, watts.ok())] {
            results.iter().for_each(|results| row.judge(plan, figure, results));
        }
        let middle = |figure: &dyn Fn(&Trial, &Activity) -> Option<f64>| {
            let of = |trial: &Trial| trial.activity.as_ref().and_then(|activity| figure(trial, activity));
            median(&trials.iter().filter_map(of).collect::<Vec<_>>())
        };
        let per_byte = |trial: &Trial, activity: &Activity, share: f64| {
            let bytes = trial.received_rate() * sizes.mean_bytes();
            (bytes > 0.0).then(|| share * activity.cycles_per_second / bytes)
        };
        let asked = trials.first().map_or(0.0, |trial| trial.load.packets_per_second);
        // The median of three trials hides one that lost packets.
        let is_held = row.lossy_trials == 0
            && row.offered_packets_per_second >= KEPT * asked
            && row.throughput_packets_per_second >= KEPT * row.offered_packets_per_second
            && row.throughput_packets_per_second > 0.0;
        Self {
            pause,
            is_held,
            is_ended_by_others: false,
            awake_share: middle(&|_, activity| Some(activity.awake_share())),
            lost_share: middle(&|_, activity| Some(activity.lost_share())),
            mean_pause_us: middle(&|_, activity| activity.mean_pause_us()),
            cycles_per_byte: middle(&|trial, activity| per_byte(trial, activity, activity.awake_share())),
            busy_cycles_per_byte: middle(&|trial, activity| per_byte(trial, activity, trial.busy_share?)),
            power: Power::median(power),
            row,
        }
    }
}

/// What the device forwards of its maximum rate, without pauses, and what that costs: loads are shares of it.
///
/// # Errors
/// [`DeviceError`] if the device failed, or if nothing comes through it.
pub fn capacity(
    device: &mut dyn Device,
    meters: &mut [Box<dyn Meter>],
    sizes: Sizes,
    plan: &Plan,
) -> Result<Step, DeviceError> {
    let ceiling = device.maximum_rate(sizes)?;
    let load = Load::rate(ceiling.packets_per_second, plan.trial);
    device.set_pause(Duration::ZERO)?;
    let (mut trials, mut power) = (Vec::new(), Vec::new());
    for _ in 0..plan.repetitions.max(1) {
        // It loses packets however quiet the machine is: none is made again.
        let (trial, taken) = Power::of(meters, || device.trial(sizes, load));
        trials.push(trial?);
        power.push(taken);
    }
    let step = Step::of(Duration::ZERO, sizes, plan, &ceiling, (&trials, &power));
    let is_through = step.row.throughput_packets_per_second > 0.0;
    is_through.then_some(step).ok_or_else(|| DeviceError("no packet comes through".to_owned()))
}

/// Offers `packets_per_second` with growing pauses, [`PAUSE_STEPS_US`], in `plan.repetitions` trials of each,
/// until packets are lost or fewer come through: the last step is the first that is not held, unless pauses
/// ended before. The device has no pause afterwards.
///
/// # Errors
/// [`DeviceError`] if the device failed or cannot pause. That a meter failed is no error: its figure is not
/// known.
pub fn efficiency(
    device: &mut dyn Device,
    meters: &mut [Box<dyn Meter>],
    sizes: Sizes,
    packets_per_second: f64,
    plan: &Plan,
) -> Result<Vec<Step>, DeviceError> {
    let ceiling = device.maximum_rate(sizes)?;
    let load = Load::rate(packets_per_second, plan.trial);
    let longest = plan.trial.mul_f64(MAX_PAUSE_SHARE);
    let mut steps: Vec<Step> = Vec::new();
    for pause in PAUSE_STEPS_US.map(Duration::from_micros) {
        if pause > longest {
            break;
        }
        device.set_pause(pause)?;
        let (mut trials, mut power) = (Vec::new(), Vec::new());
        for _ in 0..plan.repetitions.max(1) {
            // A trial that is made again is metered again.
            let (trial, taken) = metered(device, meters, sizes, load)?;
            trials.push(trial);
            power.push(taken);
        }
        let mut step = Step::of(pause, sizes, plan, &ceiling, (&trials, &power));
        let is_held = step.is_held;
        if !is_held && is_of_others(&trials) {
            // The pause before may not be the longest; where there is none, the rate itself may hold.
            steps.last_mut().unwrap_or(&mut step).is_ended_by_others = true;
        }
        steps.push(step);
        if !is_held {
            break;
        }
    }
    device.set_pause(Duration::ZERO)?;
    Ok(steps)
}

/// Whether packets were lost, and somebody else had the device's processor each time that they were.
fn is_of_others(trials: &[Trial]) -> bool {
    let mut lossy = trials.iter().filter(|trial| trial.has_loss()).peekable();
    lossy.peek().is_some() && lossy.all(|trial| trial.is_disturbed)
}

/// A trial and what it took; the power is that of the trial that counts.
fn metered(
    device: &mut dyn Device,
    meters: &mut [Box<dyn Meter>],
    sizes: Sizes,
    load: Load,
) -> Result<(Trial, Power), DeviceError> {
    let mut each = Metered { device, meters, power: Power::default() };
    let trial = undisturbed(&mut each, sizes, load)?;
    Ok((trial, each.power))
}

/// A device that reads meters before and after each trial.
struct Metered<'a> {
    device: &'a mut dyn Device,
    meters: &'a mut [Box<dyn Meter>],
    /// Of the latest trial.
    power: Power,
}

impl Device for Metered<'_> {
    fn maximum_rate(&mut self, sizes: Sizes) -> Result<Ceiling, DeviceError> {
        self.device.maximum_rate(sizes)
    }

    fn trial(&mut self, sizes: Sizes, load: Load) -> Result<Trial, DeviceError> {
        let (trial, power) = Power::of(self.meters, || self.device.trial(sizes, load));
        self.power = power;
        trial
    }
}

#[cfg(test)]
mod tests;
