//! What a device does with more than it can (paper 004, section 4.3).

use super::device::{Device, DeviceError, Load, Trial};
use super::measurement::{Measurement, Plan, Test};
use super::undisturbed;
use crate::generator::Sizes;

/// The loads, as shares of the device's capacity.
pub const OVERLOAD_STEPS: [f64; 12] = [0.1, 0.25, 0.5, 0.75, 0.9, 1.0, 1.1, 1.25, 1.5, 2.0, 3.0, 4.0];

/// Offers [`OVERLOAD_STEPS`] of the device's capacity, which is what it forwards of its maximum rate, in
/// `plan.repetitions` trials of each: rows with their shares. The success ratio is 1 less the loss;
/// repetitions are compared by the rate of packets that came back.
///
/// # Errors
/// [`DeviceError`] if the device failed.
pub fn overload(
    device: &mut dyn Device,
    sizes: Sizes,
    plan: &Plan,
) -> Result<Vec<(f64, Measurement)>, DeviceError> {
    let ceiling = device.maximum_rate(sizes)?;
    let flooded = undisturbed(device, sizes, Load::rate(ceiling.packets_per_second, plan.trial))?;
    // Shares of a rate that is not the device's are none of its capacity.
    let limit = ceiling.limits(&flooded);
    let capacity = flooded.received_rate();
    let mut trials: Vec<Vec<Trial>> = vec![Vec::new(); OVERLOAD_STEPS.len()];
    // Steps in turn, so that changes on the machine affect all of them.
    for _ in 0..plan.repetitions.max(1) {
        for (share, trials) in OVERLOAD_STEPS.into_iter().zip(&mut trials) {
            let load = Load::rate(capacity * share, plan.trial);
            // Above its capacity a device loses packets, however quiet the machine is.
            let trial =
                if share < 1.0 { undisturbed(device, sizes, load) } else { device.trial(sizes, load) };
            trials.push(trial?);
        }
    }
    let row = |(share, trials): (f64, Vec<Trial>)| {
        let row = Measurement::of(Test::Overload, sizes, plan, &trials, Trial::received_rate);
        let row = row.below(&ceiling, &trials);
        (share, Measurement { limit: limit.or(row.limit), ..row })
    };
    Ok(OVERLOAD_STEPS.into_iter().zip(trials).map(row).collect())
}
