//! Latency (RFC 2544 section 26.2), at shares of the throughput.

use super::device::{Device, DeviceError, Load, Trial};
use super::measurement::{Measurement, Plan, Test};
use super::repeat::{Compared, Figure};
use super::undisturbed;
use crate::generator::Sizes;

/// The loads, as shares of the throughput. RFC 2544 asks for the last one.
pub const LATENCY_STEPS: [f64; 6] = [0.10, 0.25, 0.50, 0.75, 0.90, 1.00];

/// Not by the latest packet: the maximum is that of all repetitions, and says of none whether it repeats.
const LATENCIES: [Compared; 2] = [
    (Figure::P50, |trial: &Trial| trial.latency.quantile_us(0.5).unwrap_or(0.0)),
    (Figure::P99, |trial: &Trial| trial.latency.quantile_us(0.99).unwrap_or(0.0)),
];

/// Measures the latency of every packet at [`LATENCY_STEPS`] of `throughput`, packets per second, in
/// `plan.repetitions` trials of each. RFC 2544 tags one packet of a trial and repeats it 20 times; here each
/// packet has its time. Repetitions are compared by p50 and p99.
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
        Measurement::of(Test::Latency, sizes, plan, trials, &LATENCIES).below(&ceiling, trials)
    };
    Ok(trials.iter().map(row).collect())
}
