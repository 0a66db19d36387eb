//! `testudo lab efficiency`: what rates cost two gateways in memory in processor time and energy (paper 000,
//! section V), beside tables I of that paper and 2 of paper 002.
//!
//! Figures of this run and those of papers have columns of their own, and what was not metered is not known.

mod options;
mod papers;
mod prices;
mod report;
mod tables;

pub use options::{EfficiencyOptions, Rate};

use serde_json::Value;
use testudo_gateway::Candidate;

use crate::bench::BenchError;
use crate::generator::Sizes;
use crate::harness::{Cores, Device, DeviceError, Meter, NotKnown, Step, Test, capacity, efficiency};
use crate::meters::Meters;
use crate::rfc2544::{Watched, cells};
use prices::Prices;
pub(crate) use prices::text as prices_of;

/// What was measured, and on what.
struct Found {
    /// The device, in words.
    heading: String,
    cores: Cores,
    engine: String,
    sizes: Vec<OfSize>,
    /// Meters that this machine has none of.
    absent: Vec<(String, NotKnown)>,
    prices: Option<Prices>,
}

/// What was measured with frames of one size.
struct OfSize {
    sizes: Sizes,
    /// What the gateways forward when offered twice as much.
    capacity: Step,
    rates: Vec<Rated>,
}

/// Growing pauses at one rate.
struct Rated {
    rate: Rate,
    steps: Vec<Step>,
}

impl Rated {
    /// The longest pause with which all came through, or none at all: what the rate takes.
    fn longest(&self) -> Option<&Step> {
        self.steps.iter().rev().find(|step| step.is_held).or(self.steps.first())
    }

    /// Whether pauses ended before throughput fell.
    fn ended_early(&self) -> bool {
        self.steps.last().is_some_and(|step| step.is_held)
    }
}

/// Measures what `options` say, and returns the array that `testudo lab efficiency --json` prints.
///
/// # Errors
/// [`BenchError`] if there is no engine for the suite, if prices cannot be read, or if the gateways failed.
pub fn measure(
    options: &EfficiencyOptions,
    candidates: Vec<Candidate>,
    meters: Meters,
) -> Result<Value, BenchError> {
    Ok(report::array(options, &run(options, candidates, meters)?))
}

/// The same as text: tables, or that array.
pub(crate) fn report(
    options: &EfficiencyOptions,
    candidates: Vec<Candidate>,
    meters: Meters,
) -> Result<String, BenchError> {
    let found = run(options, candidates, meters)?;
    if options.json {
        return Ok(format!("{:#}\n", report::array(options, &found)));
    }
    Ok(tables::text(options, &found))
}

fn run(options: &EfficiencyOptions, candidates: Vec<Candidate>, meters: Meters) -> Result<Found, BenchError> {
    // Fail before the measurement, not after it.
    let prices = options.prices.as_deref().map(Prices::read).transpose()?;
    let mut device = options.device.open(candidates)?;
    let Meters { mut present, absent } = meters;
    let sizes = of_device(options, &mut device, &mut present)?;
    let args = &options.device;
    let heading = cells::heading(&device, &args.suite, args.sas, args.flows);
    Ok(Found { heading, cores: device.cores(), engine: device.engine().to_owned(), sizes, absent, prices })
}

/// What `options` say, of any device.
fn of_device(
    options: &EfficiencyOptions,
    device: &mut dyn Device,
    meters: &mut [Box<dyn Meter>],
) -> Result<Vec<OfSize>, BenchError> {
    let plan = options.plan();
    let mut watched = Watched::new(device, options.expected(), plan.trial, options.json);
    let mut found = Vec::new();
    for &sizes in &options.sizes {
        watched.begin(Test::Efficiency, sizes);
        let mut of_size = || -> Result<OfSize, DeviceError> {
            let capacity = capacity(&mut watched, meters, sizes, &plan)?;
            let most = capacity.row.throughput_packets_per_second;
            let rates = options.rates.iter().map(|&rate| {
                let packets = rate.packets_per_second(sizes, most);
                let mut steps = efficiency(&mut watched, meters, sizes, packets, &plan)?;
                if matches!(rate, Rate::Share(_)) {
                    // A share of what the generator reaches is none of what the gateways can.
                    steps.iter_mut().for_each(|step| step.row.limit = capacity.row.limit.or(step.row.limit));
                }
                Ok(Rated { rate, steps })
            });
            Ok(OfSize { sizes, rates: rates.collect::<Result<_, _>>()?, capacity })
        };
        found.push(
            of_size().map_err(|DeviceError(what)| BenchError::Invalid {
                case: format!("frames of {sizes}"),
                what,
            })?,
        );
    }
    Ok(found)
}

#[cfg(test)]
mod tests;
