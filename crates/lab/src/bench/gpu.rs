//! `testudo bench gpu`: what a GPU does for every suite, from its kernels to a whole gateway, beside the
//! processor of the same machine (PIPSEA, paper 002, figures 7 and 15).
//!
//! ```text
//!   a gateway's jobs ─► launches: kernels alone, transfers alone, both
//!   packets ─► gateways with bins, one and one for each core ─► rate, latency under half of it
//!           └► the same with the best engine of the processor
//!   no GPU  ─► model: transfers by the bus, kernels by lanes with work ─► a prediction, which says so
//!           └► gateways whose device does nothing: what workers hand over, by which it is bounded
//! ```
//!
//! A device is opened once for each core, since that takes seconds, and lent to gateways (`lent`). With PoCL,
//! a few packets go through a gateway and are judged, and no speed is printed: it is correct and not fast.
//!
//! `devices` is what the program hands in, `row` measures one row, `gateway` is what is kept supplied,
//! `model` predicts, `report` prints.

mod devices;
mod gateway;
mod lent;
mod model;
mod options;
mod report;
mod row;

use std::io::IsTerminal;
use std::time::Duration;

use serde_json::Value;
use testudo_gateway::Candidate;

use super::device::{GPU, GpuCount};
use super::engines::Engines;
use super::error::BenchError;
use super::vpe::threads::{allow, processors};
use crate::progress::Progress;
pub use devices::{GpuDevice, Gpus, Launches, Steps, StepsOf, TimedDevice};
use lent::Owned;
pub use options::{BenchGpuOptions, Headers, Part};
use row::{AtWork, Bench, Row};

/// What is printed.
pub(super) fn measure(
    options: &BenchGpuOptions,
    candidates: Vec<Candidate>,
    gpus: &Gpus,
) -> Result<String, BenchError> {
    let (rows, missing) = rows(options, candidates, gpus)?;
    if options.json {
        return Ok(format!("{:#}\n", report::json(&rows)));
    }
    Ok(report::table(&rows, missing.as_deref(), &options.model(), processors().len()))
}

/// The rows, as `--json` has them.
pub(super) fn array(
    options: &BenchGpuOptions,
    candidates: Vec<Candidate>,
    gpus: &Gpus,
) -> Result<Value, BenchError> {
    Ok(report::json(&rows(options, candidates, gpus)?.0))
}

/// The rows, and why there is no GPU if there is none.
fn rows(
    options: &BenchGpuOptions,
    candidates: Vec<Candidate>,
    gpus: &Gpus,
) -> Result<(Vec<Row>, Option<String>), BenchError> {
    let are_wanted = options.gpu.is_some() || options.gpus != GpuCount::default();
    let (found, missing) = match (gpus.find)(options.gpu.as_deref(), options.gpus) {
        Ok(found) => (found, None),
        // One that was named must be there, and several, too.
        Err(reason) if are_wanted => return Err(BenchError::Engine(reason)),
        Err(reason) => (Vec::new(), Some(reason)),
    };
    let others = candidates.into_iter().filter(|candidate| candidate.name != GPU).collect();
    let engines = Engines::start(others, &[])?;
    let processors = processors();
    // What is predicted end to end is bounded by what the workers of this machine do.
    let has_idle = found.is_empty() && options.has(Part::Gateways);
    let idle = processors.iter().filter(|_| has_idle).map(|_| (gpus.idle)().map(Owned::new));
    let idle = idle.collect::<Result<Vec<_>, _>>().map_err(BenchError::Engine)?;
    let bench = Bench { options, engines: &engines, processors: &processors, idle: &idle, steps: gpus.steps };
    let cells = options.cells(gpus.steps);
    if cells.is_empty() {
        return Err(BenchError::Usage("the kernels do none of these suites".to_owned()));
    }
    let rows = measured(&bench, &found, &cells);
    // Gateways were bound to processors.
    allow(&processors);
    Ok((rows?, missing))
}

type Cell = (testudo_crypto::Suite, super::Way, super::Size);

/// All rows of all devices; of none, those that are predicted.
fn measured(bench: &Bench<'_>, found: &[GpuDevice], cells: &[Cell]) -> Result<Vec<Row>, BenchError> {
    /// Of a row beside what is measured, roughly: packets are sealed and judged.
    const AROUND: Duration = Duration::from_millis(300);
    let visit = AROUND + bench.options.elapsed() * 6;
    let count = u32::try_from(cells.len() * found.len().max(1)).unwrap_or(u32::MAX);
    let silent = bench.options.json || !std::io::stderr().is_terminal();
    let mut progress = Progress::new(visit.saturating_mul(count), silent);
    let mut rows = Vec::new();
    let mut pass = |device: &mut Option<AtWork>| -> Result<(), BenchError> {
        for cell in cells {
            for headers in bench.headers(device.as_ref(), *cell) {
                let case = format!("{} {}, {}", cell.0, cell.1.name(), cell.2);
                progress.stage(&case, visit);
                let row = bench.row(device.as_mut(), *cell, headers);
                rows.push(row.map_err(|what| BenchError::Invalid { case, what })?);
            }
        }
        Ok(())
    };
    if found.is_empty() {
        pass(&mut None)?;
    }
    for gpu in found {
        let device = AtWork::open(gpu, bench.options, bench.processors.len());
        pass(&mut Some(device.map_err(BenchError::Engine)?))?;
    }
    if rows.is_empty() {
        let what = "--headers gpu: of outbound packets, and of suites whose headers the GPU writes";
        return Err(BenchError::Usage(what.to_owned()));
    }
    Ok(rows)
}

#[cfg(test)]
mod tests;
