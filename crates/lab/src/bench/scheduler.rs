//! `testudo bench scheduler`: what each idea of the packet scheduler is worth, and its parameters (PIPSEA,
//! paper 002, figures 9 to 12 and 14a).
//!
//! ```text
//!   plan (ideas, chunk, bins, range) ─► a gateway ─► launches of the engine ─► lanes in use, prediction
//!                                                └─► packets ─► judged, order of each SA
//! ```
//!
//! A GPU's speed needs a GPU. What scheduling does to a launch does not: which packets share a work-group,
//! how many lanes wait for the longest of them, what is left over. That is the same on every machine, and
//! what is compared here; speed stands beside it where the engine's device has one. The engine `model` is a
//! device of known cost on a clock of its own.
//!
//! `experiments` says what is compared, `run` has the gateway, `engine` watches or models a device, `lanes`
//! is the measure, `stay` has times, `in_memory` is what takes a GPU's place beside threads, `report` prints.
//! Two are experiments of their own: `placement`, over load and mix, and `bound`, of latencies under half
//! load. `offered` has a gateway that is offered a rate, `priced` engines of configured cost.

mod bound;
mod engine;
mod experiments;
mod in_memory;
mod lanes;
mod offered;
mod placement;
mod priced;
mod report;
mod run;
mod stay;

use std::io::IsTerminal;
use std::path::PathBuf;
use std::time::Duration;

use serde_json::Value;
use testudo_crypto::Engine;
use testudo_engine_device_thread::DeviceThread;
use testudo_gateway::{Candidate, ManualClock, SystemClock};

use super::case::Size;
use super::device::{Device, GPU, GpuCount, part_of_a_name};
use super::engines::{Available, Engines};
use super::error::BenchError;
use super::{open_picture, write_picture};
use crate::progress::Progress;
use engine::{MODEL, Model, Observed};
use experiments::Cell;
use in_memory::InMemory;
use lanes::Geometry;
use report::Row;
use stay::Time;

/// What `testudo bench scheduler` compares.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, clap::ValueEnum)]
pub enum SchedulerExperiment {
    /// Each idea, and all but one (figure 9)
    Ideas,
    /// Packets of a chunk and its bins (figure 10)
    Chunks,
    /// Widths of a bin's range of lengths (figure 11)
    Ranges,
    /// The six combinations alone and mixed (figure 12)
    Algorithms,
    /// How long packets are in the gateway, by chunk (figure 14a): of AES-CBC with HMAC-SHA1, outbound, one
    /// SA, as fast as the engine takes them
    Latency,
    /// One I/O thread, two, and none beside the worker (figure 13), with a GPU or with an engine of the
    /// processor in its place; only if it is named
    Threading,
    /// What self-tuning finds in 200 chunks from a bad beginning, in 50 from the usual one; only if it is
    /// named
    Tuning,
    /// Live placement beside each engine alone, over load and mix: a model's prediction, and engines of this
    /// machine; only if it is named, and by itself
    Placement,
    /// How long packets are in a gateway of each placement and threading model under half of what it carries,
    /// beside the default bound; only if it is named, and by itself
    Bound,
}

use SchedulerExperiment as Experiment;

impl Experiment {
    const ALL: [Self; 9] = [
        Self::Ideas,
        Self::Chunks,
        Self::Ranges,
        Self::Algorithms,
        Self::Latency,
        Self::Threading,
        Self::Tuning,
        Self::Placement,
        Self::Bound,
    ];

    /// Whether it has rows of its own, and is measured by itself.
    fn is_by_itself(self) -> bool {
        matches!(self, Self::Placement | Self::Bound)
    }

    /// Name on the command line and in JSON.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Ideas => "ideas",
            Self::Chunks => "chunks",
            Self::Ranges => "ranges",
            Self::Algorithms => "algorithms",
            Self::Latency => "latency",
            Self::Threading => "threading",
            Self::Tuning => "tuning",
            Self::Placement => "placement",
            Self::Bound => "bound",
        }
    }
}

/// Options of `testudo bench scheduler`.
#[derive(Debug, Clone, clap::Args)]
pub struct BenchSchedulerOptions {
    /// Experiments [default: all but threading, tuning, placement and bound]
    #[arg(long, value_enum, value_delimiter = ',', value_name = "NAME,…")]
    pub experiment: Vec<SchedulerExperiment>,

    /// Engines: model (no device) and gpu [default: both, if there is a GPU]
    #[arg(long, value_delimiter = ',', value_name = "NAME,…")]
    pub engines: Vec<String>,

    /// A part of the GPU's name or of its platform's [default: the first GPU; PoCL, which is correct and not
    /// fast, only if it is named]
    #[arg(long, value_name = "NAME", value_parser = part_of_a_name)]
    pub gpu: Option<String>,

    /// How many GPUs with that name are one engine: a number, or all
    #[arg(long, value_name = "N", default_value = "1")]
    pub gpus: GpuCount,

    /// Lengths of whole inner IP packets in bytes, imix, or random: any from 46 to 1420 bytes
    #[arg(long, value_delimiter = ',', value_name = "BYTES,…", default_value = "64,1280,random,imix")]
    pub sizes: Vec<Size>,

    /// Chunks that count, of each row
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub chunks: u16,

    /// Units of the device that is reckoned with, each of which has a work-group at a time: 8 as PIPSEA's APU
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub units: u16,

    /// Lanes of its work-groups
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub lanes: u16,

    /// Print a JSON array instead of the table, and no progress
    #[arg(long)]
    pub json: bool,

    /// Also draw lanes in use and throughput over packet size to a file
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,
}

impl BenchSchedulerOptions {
    fn cells(&self) -> Vec<Cell> {
        let is_wanted = |one: &Experiment| match self.experiment.is_empty() {
            true => !one.is_by_itself() && ![Experiment::Threading, Experiment::Tuning].contains(one),
            false => self.experiment.contains(one),
        };
        let experiments = Experiment::ALL.into_iter().filter(is_wanted);
        experiments.flat_map(|one| experiments::cells(one, &self.sizes, self.chunks.into())).collect()
    }

    /// The experiment that is measured by itself, if one of these is.
    fn alone(&self) -> Result<Option<Experiment>, BenchError> {
        match self.experiment.as_slice() {
            [one] if one.is_by_itself() && self.svg.is_none() => Ok(Some(*one)),
            others if !others.iter().any(|one| one.is_by_itself()) => Ok(None),
            _ => {
                let what = "--experiment placement, or bound: by itself, and without --svg";
                Err(BenchError::Usage(what.to_owned()))
            }
        }
    }

    fn geometry(&self) -> Geometry {
        Geometry { units: self.units.into(), lanes: self.lanes.into() }
    }
}

/// What is printed.
pub(super) fn measure(
    options: &BenchSchedulerOptions,
    candidates: Vec<Candidate>,
) -> Result<String, BenchError> {
    if let Some(one) = options.alone()? {
        let (json, table) = by_itself(one, options, candidates)?;
        return Ok(if options.json { format!("{json:#}\n") } else { table });
    }
    // Fail before the measurement, not after it, if the picture cannot be written.
    let picture = options.svg.as_deref().map(open_picture).transpose()?;
    let rows = rows(options, candidates)?;
    if let Some((path, file)) = picture {
        write_picture(&report::picture(&rows), path, file)?;
    }
    Ok(if options.json { format!("{:#}\n", report::json(&rows)) } else { report::table(&rows) })
}

/// The rows, as `--json` has them.
pub(crate) fn array(
    options: &BenchSchedulerOptions,
    candidates: Vec<Candidate>,
) -> Result<Value, BenchError> {
    if let Some(one) = options.alone()? {
        return Ok(by_itself(one, options, candidates)?.0);
    }
    Ok(report::json(&rows(options, candidates)?))
}

/// What is printed of an experiment of its own: rows for programs, and a table for people.
fn by_itself(
    one: Experiment,
    options: &BenchSchedulerOptions,
    candidates: Vec<Candidate>,
) -> Result<(Value, String), BenchError> {
    if one == Experiment::Bound {
        let rows = bound::rows(options, candidates)?;
        return Ok((bound::json(&rows), bound::table(&rows)));
    }
    let rows = placement::rows(options, candidates)?;
    Ok((placement::json(&rows), placement::table(&rows)))
}

fn rows(options: &BenchSchedulerOptions, candidates: Vec<Candidate>) -> Result<Vec<Row>, BenchError> {
    /// Threads wait for each other and for processors, so that one measurement says little of them.
    const REPEATS: usize = 5;
    /// Of a row, roughly: packets are sealed, opened and judged.
    const VISIT: Duration = Duration::from_millis(400);
    let cells = options.cells();
    let has_threads = cells.iter().any(|cell| cell.experiment == Experiment::Threading);
    let (devices, processors) = candidates.into_iter().partition(|candidate| candidate.name == GPU);
    let processors = Engines::start(if has_threads { processors } else { Vec::new() }, &[])?;
    let (engines, names) = engines(options, devices)?;
    let count = u32::try_from(cells.len() * names.len()).unwrap_or(u32::MAX);
    let silent = options.json || !std::io::stderr().is_terminal();
    let mut progress = Progress::new(VISIT.saturating_mul(count), silent);
    let mut rows = Vec::new();
    for name in &names {
        for cell in &cells {
            progress.stage(&format!("{}, {}, {name}", cell.setting, cell.plan.size), VISIT);
            let once = || row(options.geometry(), [&engines, &processors], name, cell);
            let repeats = if cell.experiment == Experiment::Threading { REPEATS } else { 1 };
            rows.extend(report::median((0..repeats).map(|_| once()).collect::<Result<Vec<_>, _>>()?));
        }
    }
    Ok(rows)
}

/// The engines and the names of those that are measured: the model, and others if they are named, or there.
fn engines(
    options: &BenchSchedulerOptions,
    candidates: Vec<Candidate>,
) -> Result<(Engines, Vec<String>), BenchError> {
    let none = || Engines::start(Vec::new(), &[]);
    let is_named = |candidate: &Candidate| match options.engines.is_empty() {
        true => candidate.name == GPU,
        false => options.engines.iter().any(|name| candidate.name == name),
    };
    let candidates: Vec<Candidate> = candidates.into_iter().filter(is_named).collect();
    if !options.engines.is_empty() {
        let others: Vec<String> = options.engines.iter().filter(|name| *name != MODEL).cloned().collect();
        return Ok((Engines::start(candidates, &others)?, options.engines.clone()));
    }
    if candidates.is_empty() {
        return Ok((none()?, vec![MODEL.to_owned()]));
    }
    match Engines::start(candidates, &[GPU.to_owned()]) {
        // No GPU is no failure.
        Err(BenchError::Engine(_)) => Ok((none()?, vec![MODEL.to_owned()])),
        started => Ok((started?, vec![MODEL.to_owned(), GPU.to_owned()])),
    }
}

/// What a cell is measured with by this name, and by which time. No model has threads of its own: their place
/// is taken by an engine of the processor.
fn engine(
    geometry: Geometry,
    [devices, processors]: [&Engines; 2],
    name: &str,
    cell: &Cell,
) -> Result<(Box<dyn Engine>, Time), BenchError> {
    let system = || Time::System(SystemClock::default());
    let is_threading = cell.experiment == Experiment::Threading;
    if name == MODEL && is_threading {
        let suites = cell.plan.suites.all();
        let does_all = |engine: &&Available| {
            engine.instance.is_synchronous()
                && suites.iter().all(|suite| engine.instance.capability(*suite).is_some())
        };
        let fastest = processors.available.iter().find(does_all);
        let fastest =
            fastest.ok_or_else(|| BenchError::Engine("no engine of the processor does it".to_owned()))?;
        let inner = fastest.open().map_err(BenchError::Engine)?;
        return Ok((Box::new(InMemory::over(inner)), system()));
    }
    if name == MODEL {
        let clock = ManualClock::default();
        return Ok((Box::new(Model::new(clock.clone(), geometry)), Time::Model(clock)));
    }
    let engine = devices.available.iter().find(|engine| engine.name() == name);
    let engine = engine.ok_or_else(|| BenchError::Engine(format!("there is no engine \"{name}\"")))?;
    Ok((engine.open().map_err(BenchError::Engine)?, system()))
}

fn row(geometry: Geometry, engines: [&Engines; 2], name: &str, cell: &Cell) -> Result<Row, BenchError> {
    let (inner, time) = engine(geometry, engines, name, cell)?;
    let (engine, description) = (inner.name(), inner.description());
    let device = Device::of(engine, &description);
    let inner: Box<dyn Engine> = match cell.plan.threads.has_device_thread() {
        true => Box::new(DeviceThread::over(inner, None)),
        false => inner,
    };
    let (observed, watch) = Observed::new(inner, geometry);
    let has_speed = matches!(time, Time::System(_));
    let case = || format!("{}, {}, {name}", cell.setting, cell.plan.size);
    let outcome = run::run(&cell.plan, Box::new(observed), &watch, time);
    let outcome = outcome.map_err(|what| BenchError::Invalid { case: case(), what })?;
    Ok(Row { cell: cell.clone(), engine, description, device, has_speed, outcome, measured: None })
}
