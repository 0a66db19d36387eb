//! `testudo bench scheduler --experiment bound`: how long packets are in a gateway of each placement and each
//! threading model, under half of what it carries, beside the bound that a gateway has unless it is told.
//!
//! ```text
//!   the processor's best engine ─► alone, and on other cores beside the worker
//!                               ─► behind a device: each threading model; placed by cost
//!   what each carries at most   ─► half of that, in turns ─► p50, p99, within the bound or not
//! ```
//!
//! All settings are the usual ones. The device is a GPU if there is one; else an engine of the processor
//! takes chunks in its place (`in_memory`), which costs a thread or the worker's own time, and rows say so.
//! Each gateway has one SA and packets that go out. Setups take turns, three times, and the one in the middle
//! counts. What a hypervisor or other programs take is in these times.

use std::io::IsTerminal;
use std::time::Duration;

use serde_json::{Value, json};
use testudo_crypto::{Engine, PortableEngine, Suite};
use testudo_engine_cores::{CoresConfig, CoresEngine};
use testudo_engine_device_thread::DeviceThread;
use testudo_gateway::{Candidate, Formation, PlacementMode, SchedulerSettings, SystemClock, ThreadingModel};

use super::engine::MODEL;
use super::in_memory::InMemory;
use super::offered::{Carried, Feeds, carry};
use super::placement::{FLOOD, PACKETS, REPEATS, SUSTAINED, started};
use super::report::threads;
use super::run::Plan;
use super::stay::Time;
use super::{BenchSchedulerOptions, Experiment};
use crate::bench::case::{Size, Suites, Way};
use crate::bench::device::GPU;
use crate::bench::engines::Available;
use crate::bench::error::{BenchError, Wrong};
use crate::bench::threads::processors;
use crate::progress::Progress;
use crate::table::Table;

/// Of what a setup carries at most.
const LOAD: f64 = 0.5;
/// One that processors are good at, and PIPSEA's.
const SUITES: [Suite; 2] = [Suite::AES128GCM16, Suite::AES128_SHA1];

/// Who does the cryptography first. The processor's engine is behind all others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum By {
    Processor,
    Cores,
    Device,
}

/// A placement with a threading model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Setup {
    name: &'static str,
    by: By,
    threads: ThreadingModel,
    mode: PlacementMode,
}

const ALONE: Setup = Setup {
    name: "processor",
    by: By::Processor,
    threads: ThreadingModel::RunToCompletion,
    mode: PlacementMode::First,
};
const DEVICE: Setup = Setup { name: "device, run to completion", by: By::Device, ..ALONE };
const SETUPS: [Setup; 6] = [
    ALONE,
    Setup { name: "cores", by: By::Cores, ..ALONE },
    DEVICE,
    Setup { name: "device, one_io", threads: ThreadingModel::OneIo, ..DEVICE },
    Setup { name: "device, two_io", threads: ThreadingModel::TwoIo, ..DEVICE },
    Setup { name: "device, live", mode: PlacementMode::Live, ..DEVICE },
];

impl Setup {
    /// Threads of a gateway, its worker among them.
    fn threads(&self, cores: usize) -> usize {
        threads(self.threads) + if self.by == By::Cores { cores } else { 0 }
    }
}

/// The usual settings, and room for all that may be under way with them.
fn plan(suite: Suite, size: Size, setup: &Setup) -> Plan {
    let settings = SchedulerSettings { placement: setup.mode, ..SchedulerSettings::default() };
    Plan {
        suites: Suites::One(suite),
        way: Some(Way::Outbound),
        size,
        sas: 1,
        formation: Formation::SuiteAndLength,
        settings,
        threads: setup.threads,
        chunks: 0,
        under_way: None,
    }
}

/// The engines of this machine.
struct Machine<'a> {
    gpu: Option<&'a Available>,
    /// The fastest first, as gateways have them.
    processor: Vec<&'a Available>,
    /// Threads of the engine `cores`.
    cores: usize,
}

/// The engines of a gateway, and which one is asked first, with what it says of itself.
struct Opened {
    engines: Vec<Box<dyn Engine>>,
    engine: &'static str,
    description: String,
}

impl Machine<'_> {
    /// The processor's engine that does a suite.
    fn best(&self, suite: Suite) -> Result<&Available, Wrong> {
        let does = |engine: &&&Available| {
            engine.instance.is_synchronous() && engine.instance.capability(suite).is_some()
        };
        let best = self.processor.iter().find(does).copied();
        best.ok_or_else(|| format!("no engine of the processor does {suite}"))
    }

    fn open(&self, setup: &Setup, suite: Suite) -> Result<Opened, Wrong> {
        let best = self.best(suite)?;
        let first: Option<Box<dyn Engine>> = match (setup.by, self.gpu) {
            (By::Processor, _) => None,
            (By::Cores, _) => {
                let opened =
                    CoresEngine::open(&CoresConfig::of(self.cores), &mut || Ok(vec![best.opened()?]));
                Some(Box::new(opened.map_err(|error| error.to_string())?))
            }
            (By::Device, Some(gpu)) => Some(gpu.open()?),
            (By::Device, None) => Some(Box::new(InMemory::over(best.open()?))),
        };
        let first = first.map(|engine| -> Box<dyn Engine> {
            match setup.threads.has_device_thread() {
                true => Box::new(DeviceThread::over(engine, None)),
                false => engine,
            }
        });
        let mut engines: Vec<Box<dyn Engine>> = first.into_iter().chain([best.open()?]).collect();
        let described = engines.first().map(|engine| (engine.name(), engine.description()));
        let (engine, description) = described.ok_or("there is no engine")?;
        setup.mode.arrange(&mut engines);
        Ok(Opened { engines, engine, description })
    }
}

/// One setup under half of its load.
#[derive(Debug)]
pub(super) struct Row {
    setup: Setup,
    plan: Plan,
    suite: Suite,
    engine: &'static str,
    description: String,
    threads: usize,
    /// Packets per second that are carried at most, and that were offered.
    capacity: f64,
    offered: f64,
    carried: Carried,
}

/// The rows of all suites and sizes.
pub(super) fn rows(
    options: &BenchSchedulerOptions,
    candidates: Vec<Candidate>,
) -> Result<Vec<Row>, BenchError> {
    const VISIT: Duration = Duration::from_secs(6);
    if options.engines.iter().any(|name| name == MODEL) {
        let what = "--experiment bound: of engines of this machine, not of the model";
        return Err(BenchError::Usage(what.to_owned()));
    }
    let is_wanted = |name: &str| options.engines.is_empty() || options.engines.iter().any(|one| one == name);
    let candidates = candidates.into_iter().filter(|candidate| is_wanted(candidate.name)).collect();
    let started = started(candidates)?;
    // A processor in a GPU's place would be no speed.
    let (gpus, processor): (Vec<_>, Vec<_>) = started
        .available
        .iter()
        .filter(|engine| engine.device().note.is_none())
        .partition(|engine| engine.name() == GPU);
    let cores = processors().len().saturating_sub(1).clamp(1, testudo_engine_cores::MAX_THREADS);
    let machine = Machine { gpu: gpus.first().copied(), processor, cores };
    let silent = options.json || !std::io::stderr().is_terminal();
    let visits = u32::try_from(SUITES.len() * options.sizes.len()).unwrap_or(u32::MAX);
    let mut progress = Progress::new(VISIT.saturating_mul(visits), silent);
    let mut rows = Vec::new();
    for suite in SUITES {
        for size in &options.sizes {
            let case = format!("bound, {suite}, {size}");
            progress.stage(&case, VISIT);
            let of_cell = cell(&machine, (suite, *size), options.chunks.into());
            rows.extend(of_cell.map_err(|what| BenchError::Invalid { case, what })?);
        }
    }
    Ok(rows)
}

/// All setups of one suite and size.
fn cell(machine: &Machine<'_>, (suite, size): (Suite, Size), chunks: usize) -> Result<Vec<Row>, Wrong> {
    let feeds = Feeds::new(&plan(suite, size, &ALONE), chunks * PACKETS, Box::new(PortableEngine::new()))?;
    let run = |setup: &Setup, rate: f64| -> Result<(Carried, &'static str, String), Wrong> {
        let time = Time::System(SystemClock::default());
        let Opened { engines, engine, description } = machine.open(setup, suite)?;
        let carried = carry(&plan(suite, size, setup), &feeds, engines, time, rate, &[suite]);
        let carried = carried.map_err(|what| format!("{}: {what}", setup.name))?;
        Ok((carried, engine, description))
    };
    let floods = SETUPS.iter().map(|setup| run(setup, FLOOD));
    let floods = floods.collect::<Result<Vec<_>, Wrong>>()?;
    let mut repeated: Vec<Vec<Carried>> = SETUPS.iter().map(|_| Vec::new()).collect();
    for _ in 0..REPEATS {
        // In turns: what else the machine does meets all of them.
        for ((setup, (flood, ..)), carried) in SETUPS.iter().zip(&floods).zip(&mut repeated) {
            carried.push(run(setup, flood.per_second * LOAD)?.0);
        }
    }
    let mut rows = Vec::new();
    for ((setup, (flood, engine, description)), carried) in SETUPS.into_iter().zip(floods).zip(repeated) {
        let carried = middle(carried).ok_or("nothing was measured")?;
        let (plan, threads) = (plan(suite, size, &setup), setup.threads(machine.cores));
        let (capacity, offered) = (flood.per_second, flood.per_second * LOAD);
        rows.push(Row { setup, plan, suite, engine, description, threads, capacity, offered, carried });
    }
    Ok(rows)
}

/// The measurement in the middle, by its p99.
fn middle(mut carried: Vec<Carried>) -> Option<Carried> {
    let p99 = |one: &Carried| one.p99_us.unwrap_or(f64::INFINITY);
    carried.sort_by(|one, other| p99(one).total_cmp(&p99(other)));
    let middle = carried.len() / 2;
    carried.into_iter().nth(middle)
}

impl Row {
    fn bound_us(&self) -> u64 {
        u64::try_from(self.plan.settings.latency.as_micros()).unwrap_or(u64::MAX)
    }

    /// Whether p99 is within the bound. Who does not keep up with what is offered keeps none.
    fn is_within(&self) -> bool {
        let keeps_up = self.carried.per_second >= SUSTAINED * self.offered;
        keeps_up && self.carried.p99_us.is_some_and(|p99| p99 <= self.bound_us() as f64)
    }

    fn is_crowded(&self) -> bool {
        self.threads > processors().len()
    }

    fn json(&self) -> Value {
        let inner_bytes = match self.plan.size {
            Size::Bytes(bytes) => json!(bytes),
            mix => json!(mix.to_string()),
        };
        json!({
            "experiment": Experiment::Bound.name(),
            "setting": self.setup.name,
            "suite": self.suite.to_string(),
            "direction": Way::Outbound.name(),
            "inner_bytes": inner_bytes,
            "engine": self.engine,
            "device": self.description,
            "threading": self.setup.threads.name(),
            "threads": self.threads,
            "cores": processors().len(),
            "cores_shared": self.is_crowded(),
            "load": LOAD,
            "capacity_packets_per_second": self.capacity,
            "offered_packets_per_second": self.offered,
            "packets_per_second": self.carried.per_second,
            "shares": self.carried.shares,
            "p50_us": self.carried.p50_us,
            "p99_us": self.carried.p99_us,
            "bound_us": self.bound_us(),
            "within": self.is_within(),
            "is_prediction": false,
        })
    }

    fn cells(&self) -> Vec<String> {
        let figure = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), |us| format!("{us:.0}"));
        let crowded = if self.is_crowded() { " (cores shared)" } else { "" };
        vec![
            format!("{}, {}, {}", self.setup.name, self.suite, self.plan.size),
            self.engine.to_owned(),
            format!("{}{crowded}", self.threads),
            format!("{:.2}", self.capacity * 1e-6),
            format!("{:.2}", self.carried.per_second * 1e-6),
            figure(self.carried.p50_us),
            figure(self.carried.p99_us),
            self.bound_us().to_string(),
            if self.is_within() { "yes" } else { "no" }.to_owned(),
        ]
    }
}

/// The array that `--json` prints.
pub(super) fn json(rows: &[Row]) -> Value {
    rows.iter().map(Row::json).collect()
}

pub(super) fn table(rows: &[Row]) -> String {
    const HEADS: [&str; 9] = [
        "setup, suite, bytes",
        "engine",
        "threads",
        "carries Mpps",
        "at half Mpps",
        "p50 µs",
        "p99 µs",
        "bound µs",
        "within",
    ];
    let heads = HEADS.map(str::to_owned).to_vec();
    let all = [heads].into_iter().chain(rows.iter().map(Row::cells)).collect();
    let mut text = Table::report(all).to_string();
    text += "\n  carries: at most, one SA, packets that go out; at half: what was carried where half of that was offered. All settings are the usual ones.\n  \
             p50, p99: from when a packet was due at the port until it left, of the repetition in the middle of three; what other programs or a hypervisor took is in it.\n  \
             in_memory: no device, but the processor's engine, which takes chunks as one would. cores shared: more threads than processors.\n";
    text
}

#[cfg(test)]
mod tests;
