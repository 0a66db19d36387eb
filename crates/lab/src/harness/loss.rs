//! Frame loss rate (RFC 2544 section 26.3).

use super::device::{Device, DeviceError, Load, Trial};
use super::measurement::{Measurement, Plan, Test};
use super::repeat::CAME_BACK;
use super::undisturbed;
use crate::generator::Sizes;

/// So many steps of a tenth each.
const STEPS: u32 = 10;
/// After so many steps in a row without loss, lower rates have none.
const ENOUGH: u32 = 2;

/// Measures the share of packets that are lost, from the maximum rate down in steps of a tenth of it, until
/// two steps in a row lose none. Each step is repeated `plan.repetitions` times; repetitions are compared by
/// the rate of packets that came back, and by the loss.
///
/// # Errors
/// [`DeviceError`] if the device failed.
pub fn frame_loss(
    device: &mut dyn Device,
    sizes: Sizes,
    plan: &Plan,
) -> Result<Vec<Measurement>, DeviceError> {
    let ceiling = device.maximum_rate(sizes)?;
    let maximum = ceiling.packets_per_second;
    let (mut rows, mut lossless) = (Vec::new(), 0);
    for step in (1..=STEPS).rev() {
        let load = Load::rate(maximum * f64::from(step) / f64::from(STEPS), plan.trial);
        let trials = (0..plan.repetitions.max(1)).map(|_| undisturbed(device, sizes, load));
        let trials = trials.collect::<Result<Vec<_>, _>>()?;
        let row = Measurement::of(Test::FrameLoss, sizes, plan, &trials, &CAME_BACK);
        rows.push(row.below(&ceiling, &trials));
        lossless = if trials.iter().any(Trial::has_loss) { 0 } else { lossless + 1 };
        if lossless == ENOUGH {
            break;
        }
    }
    Ok(rows)
}
