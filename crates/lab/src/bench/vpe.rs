//! `testudo bench vpe`: VPE beside ESP, the experiments of section 5 of the paper that describes VPE.
//!
//! ```text
//!   gateway of ESP   ─ slice ─┐         ┌─ slice ─ …      the same engine, the same packets,
//!   gateway of VPE            └─ slice ─┘                 in turns: ratios are of slices
//! ```
//!
//! Every comparison is of one run: gateways take turns of a few hundred packets, so that what else the
//! machine does meets all of them. A ratio is the median of the ratios of such slices, and of several
//! measurements, for each of which all gateways are built anew. Authenticity comes first, as in
//! `testudo bench`: what a gateway sealed is opened by a peer with another engine, if there is one.
//!
//! One worker: `side_by_side` measures; `single`, `experiments` and `qos` say what; `placed` is a port that
//! puts packets where it is told to, `chain` two gateways with goodput after a round trip. Several: `scaling`
//! says what; `fleet` has workers and what they share, `threads` runs them, `rings` is the paper's own
//! parallel ESP, `handing_over` what the engine `cores` costs, `framework` what a gateway's dispatcher does,
//! `shared_lines` a model of more cores than there are. `order` is of one inbound SA that they release in
//! order: `ordered` has its gateway, `line` its ports. `gateways` makes workers, `choice` chooses their
//! engine, `report` has rows.

mod chain;
mod choice;
mod experiments;
mod fleet;
mod framework;
mod gateways;
mod handing_over;
mod line;
mod mean;
mod order;
mod ordered;
mod peer;
mod placed;
mod qos;
mod report;
mod rings;
mod scaling;
mod shared_lines;
mod side_by_side;
mod single;
pub(crate) mod threads;

use std::fs;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::Value;
use testudo_crypto::Suite;
use testudo_gateway::Candidate;
use testudo_ipsec::DEFAULT_PEER_WINDOW;

use super::case::{Carrier, Case, Order, Size, Suites, Way};
use super::engines::Engines;
use super::error::BenchError;
use crate::progress::Progress;
use choice::choose;
pub(crate) use choice::fastest_engine;
use report::Outcome;

/// Packets of a measurement of sizes and headroom, and how often it is repeated: short, and as in the paper.
const SHORT: (u64, u32) = (4_096, 5);
const FULL: (u64, u32) = (10_000_000, 25);
/// Runs of the chain, and how long each is: short (of the duration that is set), and as in the paper.
const SHORT_CHAIN: u32 = 10;
const FULL_CHAIN: (u32, Duration) = (60, Duration::from_secs(1));

/// What `testudo bench vpe` measures.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, clap::ValueEnum)]
pub enum Experiment {
    /// One worker, one SA, sealing and opening apart (5.3)
    #[value(name = "single_thread")]
    SingleThread,
    /// Time to seal packets of each size (5.5)
    #[value(name = "size_sweep")]
    SizeSweep,
    /// Time to seal over where packets begin in their buffers (5.5)
    #[value(name = "headroom")]
    Headroom,
    /// Throughput over the number of workers (5.4)
    #[value(name = "scaling")]
    Scaling,
    /// Packets lost to replay windows where urgent ones overtake others (3.3)
    #[value(name = "qos")]
    Qos,
    /// What it costs to release one inbound SA over several workers in order, and reordering without that
    #[value(name = "order")]
    Order,
}

impl Experiment {
    const ALL: [Self; 6] =
        [Self::SingleThread, Self::SizeSweep, Self::Headroom, Self::Scaling, Self::Qos, Self::Order];

    /// Name on the command line and in JSON.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::SingleThread => "single_thread",
            Self::SizeSweep => "size_sweep",
            Self::Headroom => "headroom",
            Self::Scaling => "scaling",
            Self::Qos => "qos",
            Self::Order => "order",
        }
    }
}

/// Options of `testudo bench vpe`.
#[derive(Debug, Clone, clap::Args)]
pub struct BenchVpeOptions {
    /// Experiments [default: all but order]
    #[arg(long, value_enum, value_delimiter = ',', value_name = "NAME,…")]
    pub experiment: Vec<Experiment>,

    /// Engine of all gateways [default: the fastest here that does both]
    #[arg(long, value_name = "NAME")]
    pub engine: Option<String>,

    /// Milliseconds of each measurement with a duration (single_thread, scaling, order), for each gateway
    #[arg(long, value_name = "MS", default_value_t = 200, value_parser = clap::value_parser!(u64).range(1..=60_000))]
    pub duration: u64,

    /// Packets of each measurement with a number of them (size_sweep, headroom) [default: 4096]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    pub packets: Option<u64>,

    /// Measurements of each case, of which the median counts [default: 5]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub repeat: Option<u32>,

    /// Measure as much as the paper does: 25 times 10 million packets, 60 runs of the chain of 1 s. It takes
    /// half a day to a day and a half, by the engine
    #[arg(long)]
    pub full: bool,

    /// Measure one size in so many (size_sweep)
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=300))]
    pub size_step: u32,

    /// Numbers of workers (scaling, where one is always among them; order, the highest, two at least)
    #[arg(long, value_delimiter = ',', value_name = "N,…", default_value = "1,2", value_parser = clap::value_parser!(u16).range(1..=64))]
    pub workers: Vec<u16>,

    /// Also measure one SA of ESP whose cryptography other cores do, by the engine cores (scaling)
    #[arg(long)]
    pub cores: bool,

    /// Algorithms (scaling, order); the other experiments are of aes128gcm16
    #[arg(long, value_name = "SUITE", default_value_t = Suite::AES128GCM16)]
    pub suite: Suite,

    /// The window that the peer has of an SA of ESP that workers share, in packets (scaling)
    #[arg(long, value_name = "N", default_value_t = DEFAULT_PEER_WINDOW, value_parser = clap::value_parser!(u32).range(32..=65_536))]
    pub peer_window: u32,

    /// Runs of the chain of two gateways (single_thread), each as long as --duration [default: 10]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub chain_runs: Option<u32>,

    /// Figures of ipsec-secgw to be shown beside (single_thread): what JSON=FILE make bench-peer wrote
    #[arg(long, value_name = "FILE")]
    pub peer_json: Option<PathBuf>,

    /// Print a JSON array instead of the tables
    #[arg(long)]
    pub json: bool,

    /// Also draw each experiment's figure, as NAME.svg in this folder
    #[arg(long, value_name = "FOLDER")]
    pub svg: Option<PathBuf>,
}

impl BenchVpeOptions {
    fn experiments(&self) -> Vec<Experiment> {
        let is_wanted = |one: &Experiment| match self.experiment[..] {
            // None of the paper's.
            [] => *one != Experiment::Order,
            _ => self.experiment.contains(one),
        };
        Experiment::ALL.into_iter().filter(is_wanted).collect()
    }

    fn defaults(&self) -> (u64, u32) {
        if self.full { FULL } else { SHORT }
    }

    fn packets(&self) -> u64 {
        self.packets.unwrap_or(self.defaults().0)
    }

    fn repeat(&self) -> u32 {
        self.repeat.unwrap_or(self.defaults().1)
    }

    fn duration(&self) -> Duration {
        Duration::from_millis(self.duration)
    }

    fn chain_runs(&self) -> u32 {
        self.chain_runs.unwrap_or(if self.full { FULL_CHAIN.0 } else { SHORT_CHAIN })
    }

    fn chain_run(&self) -> Duration {
        if self.full { FULL_CHAIN.1 } else { self.duration() }
    }

    /// How a measurement of so many packets is called: what is shorter than the paper's says so.
    fn setting(&self) -> String {
        let (packets, repeat) = (self.packets(), self.repeat());
        let short = if (packets, repeat) == FULL {
            ""
        } else {
            "; short: the paper has 25 times 10,000,000 (--full)"
        };
        format!("medians of {repeat} times {} packets{short}", crate::table::grouped(packets))
    }
}

/// What every experiment needs.
struct Setup<'a> {
    options: &'a BenchVpeOptions,
    engines: &'a Engines,
    /// Index of the engine of all gateways.
    engine: usize,
    progress: Progress,
}

impl Setup<'_> {
    fn engine_name(&self) -> &'static str {
        self.engines.available.get(self.engine).map_or("", |engine| engine.name())
    }

    fn case(&self, carrier: Carrier, way: Way, inner_bytes: usize) -> Case {
        case(self.engine, Suite::AES128GCM16, carrier, way, inner_bytes)
    }
}

fn case(engine: usize, suite: Suite, carrier: Carrier, way: Way, inner_bytes: usize) -> Case {
    Case {
        suites: Suites::One(suite),
        way,
        size: Size::Bytes(inner_bytes),
        sas: 1,
        policies: 1,
        carrier,
        order: Order::default(),
        esn: true,
        engine,
        placed: 0,
    }
}

/// Measures what `options` say; what is printed.
pub(super) fn measure(options: &BenchVpeOptions, candidates: Vec<Candidate>) -> Result<String, BenchError> {
    let outcomes = outcomes(options, candidates)?;
    if options.json {
        let rows: Vec<Value> =
            outcomes.iter().flat_map(|outcome| &outcome.rows).map(report::Row::json).collect();
        return Ok(format!("{:#}\n", Value::from(rows)));
    }
    Ok(outcomes.into_iter().map(|outcome| outcome.text).collect::<Vec<_>>().join("\n"))
}

fn outcomes(options: &BenchVpeOptions, candidates: Vec<Candidate>) -> Result<Vec<Outcome>, BenchError> {
    // Fail before the measurement, not after it, if pictures cannot be written.
    options.svg.as_deref().map(make_folder).transpose()?;
    let wanted: Vec<String> = options.engine.iter().cloned().collect();
    let engines = Engines::start(candidates, &wanted)?;
    let engine = choose(&engines, options.engine.as_deref(), options.suite)?;
    let silent = options.json || !std::io::stderr().is_terminal();
    let experiments = options.experiments();
    let expected: Duration = experiments.iter().map(|one| experiments::expected(*one, options)).sum();
    let mut setup = Setup { options, engines: &engines, engine, progress: Progress::new(expected, silent) };
    let mut outcomes = Vec::new();
    for experiment in experiments {
        let outcome = match experiment {
            Experiment::SingleThread => single::single_thread(&mut setup),
            Experiment::SizeSweep => experiments::size_sweep(&mut setup),
            Experiment::Headroom => experiments::headroom(&mut setup),
            Experiment::Scaling => scaling::scaling(&mut setup),
            Experiment::Qos => qos::qos(&mut setup),
            Experiment::Order => order::order(&mut setup),
        }?;
        if let (Some(folder), Some(picture)) = (&options.svg, &outcome.picture) {
            write(&folder.join(format!("{}.svg", experiment.name())), picture)?;
        }
        outcomes.push(outcome);
    }
    Ok(outcomes)
}

fn make_folder(folder: &Path) -> Result<(), BenchError> {
    fs::create_dir_all(folder).map_err(|source| BenchError::File { path: folder.to_owned(), source })
}

fn write(path: &Path, picture: &str) -> Result<(), BenchError> {
    fs::write(path, picture).map_err(|source| BenchError::File { path: path.to_owned(), source })
}

#[cfg(test)]
mod tests;
