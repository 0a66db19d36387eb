//! Latency (RFC 2544 section 26.2), at shares of the throughput.

use super::device::{Device, DeviceError, Load, Trial};
use super::measurement::{Measurement, Plan, Test};
use super::undisturbed;
use crate::generator::Sizes;

/// The loads, as shares of the throughput. RFC 2544 asks for the last one.
pub const LATENCY_STEPS: [f64; 6] = [0.10, 0.25, 0.50, 0.75, 0.90, 1.00];

/// Measures the latency of every packet at [`LATENCY_STEPS`] of `throughput`, packets per second, in
/// `plan.repetitions` trials of each. RFC 2544 tags one packet of a trial and repeats it 20 times; here each
/// packet has its time. Repetitions are compared by their medians.
///
/// # Errors
/// [`DeviceError`] if the device failed.
pub fn latency(
    device: &mut dyn Device,
    sizes: Sizes,
    plan: &Plan,
    throughput: f64,
) -> Result<Vec<Measurement>, DeviceError> {
    let ceiling = device.maximum_rate(sizes)?;
    let mut trials: Vec<Vec<_>> = vec![Vec::new(); LATENCY_STEPS.len()];
    // Steps in turn, so that changes on the machine affect all of them.
    for _ in 0..plan.repetitions.max(1) {
        for (share, trials) in LATENCY_STEPS.into_iter().zip(&mut trials) {
            trials.push(undisturbed(device, sizes, Load::rate(throughput * share, plan.trial))?);
        }
    }
    let row = |trials: &Vec<_>| {
        let of_trial = |trial: &Trial| trial.latency.quantile_us(0.5).unwrap_or(0.0);
        Measurement::of(Test::Latency, sizes, plan, trials, of_trial).below(&ceiling, trials)
    };
    Ok(trials.iter().map(row).collect())
}
