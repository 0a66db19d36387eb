//! `testudo lab placements`: what it brings to take I/O, cryptography or both off a gateway's worker, where a
//! packet's time goes, and who limits the rate (paper 004, section 4).
//!
//! ```text
//!   options ─► setups ─► gateways (workers, engines, I/O threads) ─► device ─► harness: throughput, blocks
//!                        └ timing: ports and engines, call by call ──┘         └► report, tables, picture
//! ```
//!
//! Deliberately absent: I/O in a device. What is received without a worker is received by threads here;
//! `testudo bench nic` has a simulated NIC.

mod device;
mod gateways;
mod io;
mod memory;
mod options;
mod picture;
mod printed;
mod report;
mod setup;
mod tables;
mod timing;
mod watched;

pub use options::PlacementsOptions;
pub use setup::Placement;

use std::rc::Rc;

use serde_json::Value;
use testudo_gateway::Candidate;

use crate::bench::pair::{PairEngines, PairSettings};
use crate::bench::threads::processors;
use crate::bench::{BenchError, chart, open_picture, write_picture};
use crate::generator::{FRAME_EXTRA_BYTES, Sizes};
use crate::harness::{DeviceError, PlacementRow, UnderHalf, placement, under_half};
use crate::rfc2544::is_silent;
use crate::stolen::Stolen;
use device::Offloaded;
use memory::Memory;
use setup::{Crypto, Setup};
use watched::Bar;

/// What was measured.
struct Found {
    outcomes: Vec<Outcome>,
}

/// One setup with frames of one size.
struct Outcome {
    setup: Setup,
    sizes: Sizes,
    /// Who does the cryptography, as people say it.
    engine: String,
    /// Or why it is not possible here.
    result: Result<Measured, String>,
}

struct Measured {
    row: PlacementRow,
    memory: Memory,
    /// Under half of the throughput, where that is wanted and there is one.
    under_half: Option<UnderHalf>,
}

impl Outcome {
    /// What came through, in Mbit/s.
    fn capacity(&self) -> Option<f64> {
        let rate = self.result.as_ref().ok()?.row.capacity.throughput_packets_per_second;
        Some(rate * self.sizes.mean_bytes() * 8e-6)
    }
}

/// Measures what `options` say, and returns the array that `testudo lab placements --json` prints. `devices`
/// are engines that cryptography may be offloaded to besides threads.
///
/// # Errors
/// [`BenchError`] if there is no engine of the wanted name, or if gateways failed.
pub fn measure(
    options: &PlacementsOptions,
    candidates: Vec<Candidate>,
    devices: Vec<Candidate>,
) -> Result<Value, BenchError> {
    Ok(report::array(options, &run(options, candidates, devices)?))
}

/// The same as text: tables, or that array. It draws the picture, too.
pub(crate) fn report(
    options: &PlacementsOptions,
    candidates: Vec<Candidate>,
    devices: Vec<Candidate>,
) -> Result<String, BenchError> {
    // Fail before the measurement, not after it, if the picture cannot be written.
    let picture = options.svg.as_deref().map(open_picture).transpose()?;
    let found = run(options, candidates, devices)?;
    if let Some((path, file)) = picture {
        write_picture(&chart::svg(&picture::panels(options, &found)), path, file)?;
    }
    if options.json {
        return Ok(format!("{:#}\n", report::array(options, &found)));
    }
    Ok(tables::text(options, &found))
}

/// The engines of the worker and of the device, or why that cannot be had.
struct Engines {
    own: Rc<PairEngines>,
    device: Result<Option<Rc<PairEngines>>, String>,
}

impl Engines {
    fn start(
        options: &PlacementsOptions,
        candidates: Vec<Candidate>,
        mut devices: Vec<Candidate>,
    ) -> Result<Self, BenchError> {
        let own = Rc::new(PairEngines::start(candidates, options.engine.as_deref())?);
        let wanted = options.offload_engine.as_str();
        if wanted == options::CORES {
            return Ok(Self { own, device: Ok(None) });
        }
        let names: Vec<&str> = devices.iter().map(|candidate| candidate.name).collect();
        let Some(index) = names.iter().position(|name| *name == wanted) else {
            let names: Vec<&str> = [options::CORES].into_iter().chain(names).collect();
            let text =
                format!("--offload-engine: there is no engine \"{wanted}\"; expected {}", names.join(", "));
            return Err(BenchError::Usage(text));
        };
        let device = PairEngines::start(vec![devices.swap_remove(index)], Some(wanted));
        let device = device.map_err(|error| error.to_string());
        let device = device.and_then(|device| match device.why_on_the_processor() {
            Some(why) => Err(format!("{why}; {wanted} would take nothing off the worker's processor")),
            None => Ok(Some(Rc::new(device))),
        });
        Ok(Self { own, device })
    }

    /// Who does the cryptography of `setup`, or why nobody can.
    fn name(&self, setup: &Setup, sizes: Sizes) -> Result<String, String> {
        let Some(suite) = setup.suite else { return Ok("-".to_owned()) };
        let longest_bytes = sizes.longest_bytes() - FRAME_EXTRA_BYTES;
        let settings = PairSettings { suite, sas: setup.sas, longest_bytes, path_mtu: Some(setup.mtu) };
        let own = || self.own.name(&settings).map_err(|error| error.to_string());
        match &setup.crypto {
            Crypto::Worker => own().map(str::to_owned),
            Crypto::Threads(_) => Ok(format!("{} ({})", options::CORES, own()?)),
            Crypto::Device(_) => match self.device.clone()? {
                Some(device) => device.name(&settings).map(str::to_owned).map_err(|error| error.to_string()),
                None => Err("no device was opened".to_owned()),
            },
        }
    }
}

fn run(
    options: &PlacementsOptions,
    candidates: Vec<Candidate>,
    devices: Vec<Candidate>,
) -> Result<Found, BenchError> {
    options.check()?;
    let processors = processors();
    let (setups, sizes) = (options.setups(&processors)?, options.sizes());
    let engines = Engines::start(options, candidates, devices)?;
    let mut bar = Bar::new(setups.len() * sizes.len(), options.expected(), is_silent(options.json));
    let mut outcomes = Vec::new();
    for setup in setups {
        let device = engines.device.as_ref().ok().and_then(Option::as_ref);
        let mut gateways = None;
        for &sizes in &sizes {
            let name = engines.name(&setup, sizes);
            let engine = name.clone().unwrap_or_else(|_| "-".to_owned());
            let result = match name {
                Err(reason) => Err(reason),
                Ok(_) => {
                    let gateways = gateways.get_or_insert_with(|| {
                        Offloaded::new(setup.clone(), processors.clone(), &engines.own, device)
                    });
                    Ok(one(options, gateways, &setup, sizes, &mut bar)?)
                }
            };
            outcomes.push(Outcome { setup: setup.clone(), sizes, engine, result });
        }
    }
    Ok(Found { outcomes })
}

/// Measures one setup with frames of one size.
fn one(
    options: &PlacementsOptions,
    gateways: &mut Offloaded,
    setup: &Setup,
    sizes: Sizes,
    bar: &mut Bar,
) -> Result<Measured, BenchError> {
    let case = format!("{}, {}, frames of {sizes}", setup.suite_name(), setup.placement);
    let plan = options.plan();
    let measured = bar.cell(&case, gateways, |device| {
        let row = placement(device, sizes, &plan)?;
        let throughput = report::lossless(&row.throughput).filter(|_| options.latency);
        let mut stolen = Stolen::now();
        let found = throughput.map(|rate| under_half(device, sizes, &plan, rate, &mut || stolen.has_grown()));
        Ok::<_, DeviceError>((row, found.transpose()?))
    });
    let (row, under_half) = measured.map_err(|DeviceError(what)| BenchError::Invalid { case, what })?;
    Ok(Measured { row, memory: gateways.memory(), under_half })
}

#[cfg(test)]
mod tests;
