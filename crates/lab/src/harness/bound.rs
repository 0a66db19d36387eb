//! Latency under half of the throughput, beside the bound that is configured.
//!
//! A gateway keeps its bound with the time that it has. What a hypervisor or another program took of its
//! processor is counted apart: the load comes in slices, and a slice in which time was taken is told beside
//! the others, not among them.

use super::device::{Device, DeviceError, Load};
use super::measurement::{LatencyUs, Plan};
use crate::generator::{Latency, Sizes};

/// The load, as a share of the throughput.
pub const BOUND_LOAD: f64 = 0.5;
/// Slices of a trial's time, and of each repetition.
const SLICES: u32 = 10;

/// What came of it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct UnderHalf {
    /// Packets offered per second.
    pub offered_packets_per_second: f64,
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
    let slices = SLICES * plan.repetitions.max(1);
    let (mut kept, mut apart) = (Latency::default(), Latency::default());
    let (mut lost, mut taken) = (0, 0);
    was_time_taken();
    for _ in 0..slices {
        let trial = device.trial(sizes, Load::rate(rate, plan.trial / SLICES))?;
        if was_time_taken() || trial.is_disturbed {
            taken += 1;
            apart.add(&trial.latency);
        } else {
            lost += trial.lost();
            kept.add(&trial.latency);
        }
    }
    Ok(UnderHalf {
        offered_packets_per_second: rate,
        latency_us: quantiles(&kept),
        slices,
        apart: taken,
        apart_us: quantiles(&apart),
        lost,
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
        assert!((none.offered_packets_per_second - 5e5).abs() < 1e-6);
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
