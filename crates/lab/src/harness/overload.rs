//! What a device does with more than it can (paper 004, section 4.3).

use super::device::{Device, DeviceError, Load, Trial};
use super::measurement::{Measurement, Plan, Test};
use super::repeat::{CAME_BACK, RECEIVED};
use super::undisturbed;
use crate::generator::Sizes;

/// The loads, as shares of the device's capacity. 1.09 is the paper's: 50 Mbit/s, of 46 that it could do.
pub const OVERLOAD_STEPS: [f64; 13] = [0.1, 0.25, 0.5, 0.75, 0.9, 1.0, 1.09, 1.1, 1.25, 1.5, 2.0, 3.0, 4.0];

/// What a device does with loads below and above its capacity.
#[derive(Debug, Clone, PartialEq)]
pub struct Overload {
    /// What it forwards of its maximum rate, by the received rate. Loads are shares of it: where it does not
    /// repeat, neither do they.
    pub capacity: Measurement,
    /// Each load as a share of the capacity, and what became of it.
    pub steps: Vec<(f64, Measurement)>,
}

/// Offers [`OVERLOAD_STEPS`] of the device's capacity in `plan.repetitions` trials of each. The capacity is
/// repeated as often. The success ratio is 1 less the loss; repetitions are compared by the rate of packets
/// that came back, and by the loss.
///
/// # Errors
/// [`DeviceError`] if the device failed.
pub fn overload(device: &mut dyn Device, sizes: Sizes, plan: &Plan) -> Result<Overload, DeviceError> {
    let ceiling = device.maximum_rate(sizes)?;
    let flood = Load::rate(ceiling.packets_per_second, plan.trial);
    let repetitions = 0..plan.repetitions.max(1);
    let floods = repetitions.clone().map(|_| undisturbed(device, sizes, flood));
    let floods = floods.collect::<Result<Vec<_>, _>>()?;
    let capacity = Measurement::of(Test::Overload, sizes, plan, &floods, &RECEIVED).below(&ceiling, &floods);
    let mut trials: Vec<Vec<Trial>> = vec![Vec::new(); OVERLOAD_STEPS.len()];
    // Steps in turn, so that changes on the machine affect all of them.
    for _ in repetitions {
        for (share, trials) in OVERLOAD_STEPS.into_iter().zip(&mut trials) {
            let load = Load::rate(capacity.throughput_packets_per_second * share, plan.trial);
            // Above its capacity a device loses packets, however quiet the machine is.
            let trial =
                if share < 1.0 { undisturbed(device, sizes, load) } else { device.trial(sizes, load) };
            trials.push(trial?);
        }
    }
    let step = |(share, trials): (f64, Vec<Trial>)| {
        let row = Measurement::of(Test::Overload, sizes, plan, &trials, &CAME_BACK).below(&ceiling, &trials);
        // Shares of a rate that is not the device's are none of its capacity.
        (share, Measurement { limit: capacity.limit.or(row.limit), ..row })
    };
    let steps = OVERLOAD_STEPS.into_iter().zip(trials).map(step).collect();
    Ok(Overload { capacity, steps })
}
