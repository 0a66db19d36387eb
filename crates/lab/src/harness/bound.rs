//! Latency under half of the throughput, beside the bound that is configured.
//!
//! A gateway keeps its bound with the time that it has. What a hypervisor or another program took of its
//! processor is counted apart: the load comes in slices, and a slice in which time was taken is told beside
//! the others, not among them.

use super::device::{Device, DeviceError, Load};
use super::measurement::{LatencyUs, Plan, Unconverged};
use super::repeat::Figure;
use crate::generator::{Latency, Sizes};
use crate::traffic::median;

/// The load, as a share of the throughput.
pub const BOUND_LOAD: f64 = 0.5;
/// Slices of a trial's time, and of each repetition.
const SLICES: u32 = 10;

/// What came of it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct UnderHalf {
    /// Packets offered per second, as it was done: the median of all slices.
    pub offered_packets_per_second: f64,
    /// Whether the generator offered less than it was to, in a slice in which nobody took time.
    pub was_generator_late: bool,
    /// Of slices in which nobody took time; `None` if there was none.
    pub latency_us: Option<LatencyUs>,
    /// Slices, and those in which time was taken.
    pub slices: u32,
    /// Those that are told apart.
    pub apart: u32,
    /// Latencies of these.
    pub apart_us: Option<LatencyUs>,
    /// Packets that did not come back, in slices in which nobody took time.
    pub lost: u64,
    /// Highest less lowest of the repetitions' p50 or p99, whichever differ more, as a share of their median:
    /// of slices in which nobody took time. `None` of fewer than two repetitions that have such.
    pub repeat_spread: Option<f64>,
    /// Why the figures are not to be relied on; `None` if they are, or if there are none.
    pub unconverged: Option<Unconverged>,
}

impl UnderHalf {
    /// Whether 99 of 100 packets kept the bound, in microseconds; `None` where nobody knows.
    #[must_use]
    pub fn is_within(&self, bound_us: f64) -> Option<bool> {
        self.latency_us.map(|latency| latency.p99 <= bound_us)
    }
}

fn quantiles(latency: &Latency) -> Option<LatencyUs> {
    let [p50, p99] = [0.5, 0.99].map(|share| latency.quantile_us(share));
    Some(LatencyUs { p50: p50?, p99: p99?, max: latency.max_us()? })
}

/// How far repetitions are apart, and what is wrong with that.
fn repeat(each: &[LatencyUs], plan: &Plan) -> (Option<f64>, Option<Unconverged>) {
    if each.len() < 2 {
        return (None, each.first().map(|_| Unconverged::MeasuredOnce));
    }
    let of = |figure: Figure, result: fn(&LatencyUs) -> f64| {
        let spread = figure.spread(&each.iter().map(result).collect::<Vec<_>>());
        spread.map(|spread| (figure, spread))
    };
    let spreads = [of(Figure::P50, |latency| latency.p50), of(Figure::P99, |latency| latency.p99)];
    let most = spreads.into_iter().flatten().max_by(|(_, a), (_, b)| a.total_cmp(b));
    let limit = plan.spread_limit;
    let above = most.filter(|(_, spread)| *spread > limit);
    let above = above.map(|(figure, spread)| Unconverged::SpreadAbove { figure, spread, limit });
    (most.map(|(_, spread)| spread), above)
}

/// Offers half of `throughput`, packets per second, in slices of the plan's trials. `was_time_taken` says
/// whether somebody had the machine's processors since it was asked last.
///
/// # Errors
/// [`DeviceError`] if the device failed.
pub fn under_half(
    device: &mut dyn Device,
    sizes: Sizes,
    plan: &Plan,
    throughput: f64,
    was_time_taken: &mut dyn FnMut() -> bool,
) -> Result<UnderHalf, DeviceError> {
    let rate = throughput * BOUND_LOAD;
    let repetitions = plan.repetitions.max(1);
    let (mut kept, mut apart) = (Latency::default(), Latency::default());
    let (mut lost, mut taken, mut each) = (0, 0, Vec::new());
    let (mut offered, mut was_generator_late) = (Vec::new(), false);
    was_time_taken();
    for _ in 0..repetitions {
        let mut of_repetition = Latency::default();
        for _ in 0..SLICES {
            let trial = device.trial(sizes, Load::rate(rate, plan.trial / SLICES))?;
            offered.push(trial.offered_rate());
            if was_time_taken() || trial.is_disturbed {
                taken += 1;
                apart.add(&trial.latency);
            } else {
                lost += trial.lost();
                was_generator_late |= trial.was_generator_late();
                of_repetition.add(&trial.latency);
            }
        }
        kept.add(&of_repetition);
        each.extend(quantiles(&of_repetition));
    }
    let (repeat_spread, unconverged) = repeat(&each, plan);
    Ok(UnderHalf {
        offered_packets_per_second: median(&offered).unwrap_or(0.0),
        was_generator_late,
        latency_us: quantiles(&kept),
        slices: SLICES * repetitions,
        apart: taken,
        apart_us: quantiles(&apart),
        lost,
        repeat_spread,
        unconverged,
    })
}

#[cfg(test)]
mod tests {
    use super::super::fake::{Delay, FakeDevice};
    use super::*;
    use std::time::Duration;

    const SIZES: Sizes = Sizes::Bytes(64);

    fn plan() -> Plan {
        Plan { trial: Duration::from_millis(100), repetitions: 2, ..Plan::default() }
    }

    #[test]
    fn a_slice_that_the_device_calls_disturbed_is_told_apart() {
        let mut device = FakeDevice { disturbed: 3, ..FakeDevice::new(1e6, 3) };
        let found = under_half(&mut device, SIZES, &plan(), 1e6, &mut || false).unwrap();
        assert_eq!((found.slices, found.apart, found.lost), (20, 3, 0), "what these lost is theirs");
    }

    #[test]
    fn slices_in_which_time_was_taken_are_told_apart() {
        let mut device = FakeDevice::new(1e6, 3);
        let none = under_half(&mut device, SIZES, &plan(), 1e6, &mut || false).unwrap();
        assert_eq!((none.slices, none.apart, none.apart_us, none.lost), (20, 0, None, 0));
        assert!((none.offered_packets_per_second - 5e5).abs() < 1.0, "{none:?}");
        assert!(!none.was_generator_late);
        let mut asked = 0;
        let mut every_fourth = || {
            asked += 1;
            asked % 4 == 0
        };
        let some = under_half(&mut device, SIZES, &plan(), 1e6, &mut every_fourth).unwrap();
        assert_eq!((some.slices, some.apart), (20, 5), "the first answer is of the time before");
        assert!(some.latency_us.is_some() && some.apart_us.is_some());
        let all = under_half(&mut device, SIZES, &plan(), 1e6, &mut || true).unwrap();
        assert_eq!((all.apart, all.latency_us, all.is_within(1e9)), (20, None, None));
    }

    fn assert_within_2_percent(found: f64, known: f64) {
        assert!((found / known - 1.0).abs() <= 0.02, "found {found}, known {known}");
    }

    /// What was planned is no load: the rate is the one that the generator reached, and the row says so.
    #[test]
    fn under_half_of_what_the_generator_does_not_reach_the_rate_is_the_one_that_was_offered() {
        let mut device = FakeDevice { generator: 4e5, ..FakeDevice::new(1e6, 47) };
        let found = under_half(&mut device, SIZES, &plan(), 1e6, &mut || false).unwrap();
        assert_within_2_percent(found.offered_packets_per_second, 4e5);
        assert!(found.was_generator_late && found.latency_us.is_some(), "{found:?}");
        // Slices that are apart say nothing of the others.
        let apart = under_half(&mut device, SIZES, &plan(), 1e6, &mut || true).unwrap();
        assert!(!apart.was_generator_late, "{apart:?}");
    }

    #[test]
    fn latencies_and_losses_of_a_known_device_under_half_are_found() {
        // The server takes a microsecond, too.
        for (delay, p50, p99) in [
            (Delay::Fixed(900_000), 901.0, 901.0),
            (Delay::Uniform(100_000, 300_000), 201.0, 299.0),
            (Delay::Rare(10_000, 5_000_000, 20), 11.0, 5_001.0),
        ] {
            let mut device = FakeDevice { delay, ..FakeDevice::new(1e6, 3) };
            let found = under_half(&mut device, SIZES, &plan(), 1e6, &mut || false).unwrap();
            let latency = found.latency_us.unwrap();
            assert_within_2_percent(latency.p50, p50);
            assert_within_2_percent(latency.p99, p99);
            assert_eq!((found.lost, found.unconverged), (0, None), "{found:?}");
            assert!(found.repeat_spread.is_some_and(|spread| spread <= 0.03), "{found:?}");
        }
        let mut device = FakeDevice { loss: 0.05, ..FakeDevice::new(1e6, 4) };
        let plan = Plan { trial: Duration::from_secs(1), ..plan() };
        let found = under_half(&mut device, SIZES, &plan, 1e6, &mut || false).unwrap();
        // A second at half of the rate, twice.
        assert_within_2_percent(found.lost as f64, 0.05 * 1e6);
    }

    #[test]
    fn latencies_under_half_that_wander_are_said_not_to_repeat() {
        let found = |delay, repetitions| {
            let mut device = FakeDevice { delay, ..FakeDevice::new(1e6, 46) };
            let plan = Plan { repetitions, ..plan() };
            under_half(&mut device, SIZES, &plan, 1e6, &mut || false).unwrap()
        };
        let wandering = Delay::Wandering(10_000, 100_000, 20_000_000);
        let row = found(wandering, 6);
        let is_p99 = matches!(row.unconverged, Some(Unconverged::SpreadAbove { figure: Figure::P99, .. }));
        assert!(is_p99 && row.repeat_spread.is_some_and(|spread| spread > 0.03), "{row:?}");
        let once = found(wandering, 1);
        assert_eq!((once.repeat_spread, once.unconverged), (None, Some(Unconverged::MeasuredOnce)));
        assert_eq!(found(Delay::Fixed(10_000), 6).repeat_spread, Some(0.0));
        // Nothing is known of slices that are all apart.
        let mut device = FakeDevice::new(1e6, 3);
        let none = under_half(&mut device, SIZES, &plan(), 1e6, &mut || true).unwrap();
        assert_eq!((none.latency_us, none.repeat_spread, none.unconverged), (None, None, None));
    }

    #[test]
    fn a_bound_is_kept_if_99_of_100_packets_keep_it() {
        let found = |delay| {
            let mut device = FakeDevice { delay, ..FakeDevice::new(1e6, 3) };
            under_half(&mut device, SIZES, &plan(), 1e6, &mut || false).unwrap().is_within(1000.0)
        };
        assert_eq!(found(Delay::Fixed(900_000)), Some(true));
        assert_eq!(found(Delay::Rare(10_000, 5_000_000, 1000)), Some(true));
        assert_eq!(found(Delay::Rare(10_000, 5_000_000, 20)), Some(false));
    }
}
