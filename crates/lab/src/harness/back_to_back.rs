//! Back to back frames (RFC 2544 section 26.4): how long a burst at the full rate may be.

use super::device::{Device, DeviceError, Length, Load, Trial};
use super::measurement::{Measurement, Plan, Test, Unconverged};
use super::repeat::Figure;
use super::{count, undisturbed};
use crate::generator::Sizes;
use crate::traffic::median;

/// The longest burst that is tried, in seconds of the full rate; RFC 2544 asks for bursts of two seconds.
const LONGEST_SECONDS: f64 = 2.0;

/// Searches the longest burst at the maximum rate of which every packet comes back, by halving,
/// `plan.repetitions` times. A device that keeps up with the maximum rate takes bursts of any length: then
/// the row has the longest that was tried, of a trial's length or two seconds, whichever is less.
///
/// # Errors
/// [`DeviceError`] if the device failed.
pub fn back_to_back(device: &mut dyn Device, sizes: Sizes, plan: &Plan) -> Result<Measurement, DeviceError> {
    let ceiling = device.maximum_rate(sizes)?;
    let rate = ceiling.packets_per_second;
    let longest = count(rate * plan.trial.as_secs_f64().min(LONGEST_SECONDS)).max(1);
    let (mut trials, mut is_lost) = (Vec::new(), false);
    for _ in 0..plan.repetitions.max(1) {
        let trial = search(device, sizes, plan, (rate, longest))?;
        is_lost = trial.has_loss();
        trials.push(trial);
        if is_lost {
            break;
        }
    }
    let row = Measurement::of(Test::BackToBack, sizes, plan, &trials, &[(Figure::Burst, burst)]);
    // Only where the longest burst of all came back the device may take more.
    let is_longest = |trial: &&Trial| trial.load.length == Length::Packets(longest);
    let longest: Vec<Trial> = trials.iter().filter(is_longest).cloned().collect();
    let mut row = row.below(&ceiling, &longest);
    row.burst_packets = median(&trials.iter().map(burst).collect::<Vec<_>>());
    if is_lost {
        row.unconverged = Some(Unconverged::LossInEveryBurst);
    }
    Ok(row)
}

/// The packets of a burst that came back whole.
fn burst(trial: &Trial) -> f64 {
    if trial.has_loss() { 0.0 } else { trial.offered as f64 }
}

/// The trial of the longest burst without loss, or of one packet, if that is lost.
fn search(
    device: &mut dyn Device,
    sizes: Sizes,
    plan: &Plan,
    (rate, longest): (f64, u64),
) -> Result<Trial, DeviceError> {
    let mut of = |packets| {
        let load = Load { packets_per_second: rate, length: Length::Packets(packets) };
        undisturbed(device, sizes, load)
    };
    let mut found = of(longest)?;
    if !found.has_loss() {
        return Ok(found);
    }
    found = of(1)?;
    if found.has_loss() {
        return Ok(found);
    }
    let (mut low, mut high) = (1, longest);
    while high - low > count(plan.resolution * high as f64).max(1) {
        let middle = low.midpoint(high);
        let trial = of(middle)?;
        if trial.has_loss() {
            high = middle;
        } else {
            (low, found) = (middle, trial);
        }
    }
    Ok(found)
}
