//! The methods of RFC 2544, and three of papers 000 and 004, over any device that can be offered packets.
//!
//! ```text
//!   throughput ┐                          ┌ two gateways in memory
//!   latency    ├─ Load ─► Device::trial ──┼ a path between two hosts
//!   frame loss │  ◄─ Trial                └ for tests: a device of known rate, latency and loss, in virtual time
//!   back to back
//! ```
//!
//! A [`Device`] carries out one trial at a time, and says how fast its medium is. A method is a function that
//! makes trials of it, as often as its [`Plan`] says, and returns [`Measurement`]s: rows of a report. A
//! method that found no figure, or one that does not repeat, says why in [`Measurement::unconverged`].
//! Nothing here reads a clock, waits or prints.
//!
//! [`in_turns`] repeats anything until a confidence interval is narrow, as paper 001 does.
//!
//! | method | RFC 2544 | finds |
//! | --- | --- | --- |
//! | [`throughput`] | 26.1 | the highest rate at which every packet comes back |
//! | [`latency`] | 26.2 | latencies of all packets at shares of that rate |
//! | [`frame_loss`] | 26.3 | the share that is lost from the full rate down in steps of a tenth |
//! | [`back_to_back`] | 26.4 | the longest burst at the full rate that comes back whole |
//! | [`overload`] | no | what comes back, and how busy the device is, up to four times what it can do |
//! | [`under_half`] | no | latencies at half of that rate beside a bound, without what others had of the processor |
//! | [`placement`] | no | who does the work, block by block, and who limits the rate |
//! | [`efficiency`] | no | processor time and energy at a rate, with pauses as long as no packet is lost |

mod back_to_back;
mod bound;
mod confidence;
mod device;
mod efficiency;
#[cfg(test)]
pub(crate) mod fake;
mod latency;
mod loss;
mod measurement;
mod meter;
mod overload;
mod placement;
mod repeat;
mod search;
#[cfg(test)]
pub(crate) mod sleeper;
#[cfg(test)]
mod tests;

pub use back_to_back::back_to_back;
pub use bound::{BOUND_LOAD, UnderHalf, under_half};
pub use confidence::{Confidence, Interval, Round, in_turns};
pub use device::{Activity, Ceiling, Cores, Device, DeviceError, Length, Limit, Load, Trial};
pub use efficiency::{MAX_PAUSE_SHARE, PAUSE_STEPS_US, Step, capacity, efficiency};
pub use latency::{LATENCY_STEPS, latency};
pub use loss::frame_loss;
pub use measurement::{Basis, LatencyUs, Measurement, Plan, Test, Unconverged};
pub use meter::{EnergySample, MAX_WATTS, Meter, NotKnown, Power, watts};
pub use overload::{OVERLOAD_STEPS, Overload, overload};
pub use placement::{Block, BlockTime, Bottleneck, Effort, Elsewhere, Placed, PlacementRow, placement};
pub use repeat::Figure;
pub use search::throughput;

use std::time::Duration;

/// A figure as a whole number, rounded down; what is below 0 or no number is 0.
pub(crate) fn count(figure: f64) -> u64 {
    // A duration converts without a cast that could wrap.
    Duration::try_from_secs_f64(figure).map_or(if figure > 0.0 { u64::MAX } else { 0 }, |time| time.as_secs())
}

/// Trials in which the device lost its processor to others and lost packets are made again, so many times at
/// most.
const DISTURBED_AGAIN: u32 = 5;

/// Makes a trial; again if it shows what else the machine did instead of what the device does.
fn undisturbed(
    device: &mut dyn Device,
    sizes: crate::generator::Sizes,
    load: Load,
) -> Result<Trial, DeviceError> {
    let mut trial = device.trial(sizes, load)?;
    for _ in 0..DISTURBED_AGAIN {
        if !(trial.is_disturbed && trial.has_loss()) {
            break;
        }
        trial = device.trial(sizes, load)?;
    }
    Ok(trial)
}
