//! Throughput (RFC 2544 section 26.1): the highest rate at which every packet comes back.

use super::device::{Device, DeviceError, Load, Trial};
use super::measurement::{Measurement, Plan, Test, Unconverged};
use super::repeat::Figure;
use super::undisturbed;
use crate::generator::Sizes;

/// Below this share of the maximum rate no search goes: a device that loses packets there loses them always.
const LOWEST: f64 = 1e-3;
/// Rates below the one that was found, as shares of it, that must pass, too.
const PROBES: [f64; 3] = [0.25, 0.5, 0.75];
/// How often a search begins anew below a rate that passed and did not pass again.
const BEGINNINGS: u32 = 3;

/// Searches the highest rate without loss by halving, `plan.repetitions` times, each time from the maximum
/// rate on. What was found must pass a second time, and so must lower rates: a device whose losses do not
/// follow the rate has no throughput in the sense of RFC 2544.
///
/// Of a search that found nothing the row has the trial that came closest.
///
/// # Errors
/// [`DeviceError`] if the device failed.
pub fn throughput(device: &mut dyn Device, sizes: Sizes, plan: &Plan) -> Result<Measurement, DeviceError> {
    let ceiling = device.maximum_rate(sizes)?;
    let maximum = ceiling.packets_per_second;
    let (mut trials, mut failure) = (Vec::new(), None);
    for _ in 0..plan.repetitions.max(1) {
        let (trial, unconverged) = search(device, sizes, plan, maximum)?;
        trials.push(trial);
        failure = unconverged;
        if failure.is_some() {
            break;
        }
    }
    let row = Measurement::of(Test::Throughput, sizes, plan, &trials, &[(Figure::Throughput, found_rate)]);
    let mut row = row.below(&ceiling, &trials);
    row.unconverged = failure.or(row.unconverged);
    Ok(row)
}

/// What searches are compared by: the rate that was asked for, if the generator reached it.
fn found_rate(trial: &Trial) -> f64 {
    if trial.was_generator_late() { trial.offered_rate() } else { trial.load.packets_per_second }
}

/// One search: the trial at the rate that was found, or the one that came closest and the reason.
fn search(
    device: &mut dyn Device,
    sizes: Sizes,
    plan: &Plan,
    maximum: f64,
) -> Result<(Trial, Option<Unconverged>), DeviceError> {
    let mut at = |rate: f64| undisturbed(device, sizes, Load::rate(rate, plan.trial));
    let mut upper = maximum;
    let mut last = at(maximum)?;
    let mut is_first = true;
    for _ in 0..BEGINNINGS {
        if !is_first || last.has_loss() {
            match halve(&mut at, upper, maximum, plan.resolution)? {
                Ok(found) => last = found,
                Err(lost) => {
                    let lowest = lost.load.packets_per_second;
                    return Ok((lost, Some(Unconverged::LossAtEveryRate { lowest })));
                }
            }
        }
        is_first = false;
        let found = last.load.packets_per_second;
        for probe in PROBES {
            let lower = at(found * probe)?;
            if lower.has_loss() {
                let lost_at = lower.load.packets_per_second;
                return Ok((last, Some(Unconverged::NotMonotone { lost_at, passed_at: found })));
            }
        }
        let again = at(found)?;
        if !again.has_loss() {
            return Ok((again, None));
        }
        upper = found;
    }
    let rate = last.load.packets_per_second;
    Ok((last, Some(Unconverged::NeverAgain { rate })))
}

/// The trial at the highest rate without loss below `upper`, at which packets are lost; or the trial at the
/// lowest rate, if packets are lost there as well.
fn halve(
    at: &mut impl FnMut(f64) -> Result<Trial, DeviceError>,
    upper: f64,
    maximum: f64,
    resolution: f64,
) -> Result<Result<Trial, Trial>, DeviceError> {
    let (mut low, mut high) = (0.0, upper);
    let mut found: Option<Trial> = None;
    loop {
        if found.is_some() && high - low <= resolution * high {
            break;
        }
        let middle = f64::midpoint(low, high);
        let trial = at(middle)?;
        if trial.has_loss() {
            if found.is_none() && middle <= LOWEST * maximum {
                return Ok(Err(trial));
            }
            high = middle;
        } else {
            low = middle;
            found = Some(trial);
        }
    }
    match found {
        Some(found) => Ok(Ok(found)),
        None => at(low).map(Err),
    }
}
