//! `testudo bench`: the data path in memory, and the floor below it.
//!
//! ```text
//!   packets ──copy──► protected port ─► Worker::turn ─► unprotected port ──► forgotten, but for a few      outbound
//!   sealed  ──copy──► unprotected port ─► Worker::turn ─► protected port ──► forgotten, but for a few      inbound
//!                                  the very jobs of it ─► Engine::submit                                    the floor
//! ```
//!
//! Whole turns of a gateway's worker are measured, with nothing left out but devices. Authenticity comes
//! first: a figure counts only if no packet was lost, and if a peer with another crypto implementation
//! accepts the packets sealed before, during and after the measured run and recovers the originals, byte by
//! byte. Inbound, that other implementation has sealed the packets, and replay windows are on: before a
//! packet is received again, the tunnels are reinstalled, outside of the measured time.
//!
//! All cases are measured once, then once more, and so on, so that changes on the machine affect all of them.
//! For each repetition a case builds a new gateway, so that its repetitions do not share one accidental
//! memory layout.

pub(crate) mod bars;
mod case;
pub(crate) mod chart;
mod compare;
pub(crate) mod device;
mod engines;
mod error;
mod floor;
mod gpu;
mod judge;
mod load;
mod measure;
mod nic;
mod nic_paths;
mod options;
pub(crate) mod pair;
pub(crate) mod picture;
mod pipsea;
mod report;
pub(crate) mod scheduler;
mod subject;
mod tunnels;
mod vpe;

use std::fs::File;
use std::io::{ErrorKind, IsTerminal, Write};
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use serde_json::Value;
use testudo_gateway::Candidate;

use crate::bench_host::{self, BenchHostOptions};
use crate::progress::Progress;
use case::Case;
pub use case::{Carrier, Order, Size, Suites, Wanted, Way};
pub use compare::CompareOptions;
use compare::Comparison;
use device::Device;
pub(crate) use device::GPU;
pub use device::GpuCount;
use engines::{Available, Engines};
pub use error::BenchError;
pub(crate) use error::{NO_ENGINE, NOT_POSSIBLE};
pub use gpu::{BenchGpuOptions, GpuDevice, Gpus, Headers, Launches, Part, Steps, StepsOf, TimedDevice};
pub use nic::BenchNicOptions;
pub use options::BenchOptions;
use report::Series;
pub use scheduler::{BenchSchedulerOptions, SchedulerExperiment};
pub use vpe::{BenchVpeOptions, Experiment};
pub(crate) use vpe::{fastest_engine, threads};

/// What stands for the engine where jobs are placed by what they cost.
const LIVE: &str = "live";

/// `testudo bench …`
#[derive(Debug, Clone, clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct BenchArgs {
    /// A subcommand; without one, the data path in memory is measured.
    #[command(subcommand)]
    pub command: Option<BenchCommand>,
    /// What to measure in memory.
    #[command(flatten)]
    pub options: BenchOptions,
}

/// Subcommands of `testudo bench`.
#[derive(Debug, Clone, clap::Subcommand)]
pub enum BenchCommand {
    /// Measure TCP streams through two gateways: Testudo, wireguard-go, and the bare link
    Host(BenchHostOptions),
    /// Measure what is left for the CPU if a NIC does the cryptography, beside software
    Nic(BenchNicOptions),
    /// Measure VPE beside ESP: the experiments of the paper that describes VPE
    Vpe(BenchVpeOptions),
    /// Measure what each idea of the packet scheduler is worth, and its parameters: figures 9 to 12 of paper
    /// 002
    Scheduler(BenchSchedulerOptions),
    /// Measure GPUs for every suite: kernels alone, with transfers, and end to end, beside one core and all
    /// cores of the processor: figures 7 and 15 of paper 002. Without a GPU, what a model predicts of one
    Gpu(BenchGpuOptions),
    /// Compare two runs of `testudo bench --json`
    Compare(CompareOptions),
}

impl BenchArgs {
    /// Runs the command and prints the result: 0 on success, otherwise the reason is on standard error.
    /// `candidates` are the engines that the program has besides the portable one, `gpus` finds GPUs.
    #[must_use = "it says whether the measurement has failed"]
    pub fn run(&self, candidates: Vec<Candidate>, gpus: &Gpus) -> ExitCode {
        let result = match &self.command {
            Some(BenchCommand::Host(options)) => return bench_host::run(options),
            Some(BenchCommand::Compare(options)) => compare(options),
            Some(BenchCommand::Nic(options)) => {
                nic::measure(options, candidates).and_then(|text| print(&text))
            }
            Some(BenchCommand::Vpe(options)) => {
                vpe::measure(options, candidates).and_then(|text| print(&text))
            }
            Some(BenchCommand::Scheduler(options)) => {
                scheduler::measure(options, candidates).and_then(|text| print(&text))
            }
            Some(BenchCommand::Gpu(options)) => {
                gpu::measure(options, candidates, gpus).and_then(|text| print(&text))
            }
            None => measure_all(&self.options, candidates),
        };
        result.map_or_else(
            |error| {
                eprintln!("testudo bench: {error}");
                error.exit_code()
            },
            |()| ExitCode::SUCCESS,
        )
    }
}

impl BenchArgs {
    /// The GPU that is to be measured: a part of its name or of its platform's.
    #[must_use]
    pub fn gpu(&self) -> Option<&str> {
        match &self.command {
            Some(BenchCommand::Scheduler(options)) => options.gpu.as_deref(),
            Some(_) => None,
            None => self.options.gpu.as_deref(),
        }
    }

    /// How many GPUs of that name are one engine.
    #[must_use]
    pub fn gpus(&self) -> GpuCount {
        match &self.command {
            Some(BenchCommand::Scheduler(options)) => options.gpus,
            Some(_) => GpuCount::default(),
            None => self.options.gpus,
        }
    }

    /// Whether the engine gpu is measured, and nothing else.
    pub(crate) fn is_of_gpus_alone(&self) -> bool {
        matches!(&self.command, Some(BenchCommand::Scheduler(options)) if options.engines == [GPU])
    }

    /// The rows of a measurement in memory, as `--json` has them; without one, a usage error.
    pub fn rows(&self, candidates: Vec<Candidate>, gpus: &Gpus) -> Result<Value, BenchError> {
        let text = match &self.command {
            Some(BenchCommand::Nic(options)) => nic::measure(options, candidates)?,
            Some(BenchCommand::Vpe(options)) => vpe::measure(options, candidates)?,
            Some(BenchCommand::Scheduler(options)) => return scheduler::array(options, candidates),
            Some(BenchCommand::Gpu(options)) => return gpu::array(options, candidates, gpus),
            Some(BenchCommand::Host(_) | BenchCommand::Compare(_)) => {
                return Err(BenchError::Usage("it measures nothing in memory".to_owned()));
            }
            None => return measure(&self.options, candidates),
        };
        serde_json::from_str(&text)
            .map_err(|error| BenchError::Usage(format!("these options print no JSON: {error}")))
    }
}

fn compare(options: &CompareOptions) -> Result<(), BenchError> {
    let comparison = Comparison::of_files(&options.before, &options.after)?;
    print(&if options.json { format!("{:#}\n", comparison.json()) } else { comparison.table() })?;
    match options.fail_above.and_then(|percent| comparison.slower_than(percent)) {
        Some(slower) => Err(BenchError::Slower(slower)),
        None => Ok(()),
    }
}

/// Measures what `options` say, and returns the array that `testudo bench --json` prints.
///
/// # Errors
/// [`BenchError`] if nothing can be measured, or if part of the work was not done.
pub fn measure(options: &BenchOptions, candidates: Vec<Candidate>) -> Result<Value, BenchError> {
    let mut engines = Engines::start(candidates, &options.engines)?;
    let (cases, _) = options.cases(&engines)?;
    Ok(report::json(&repeat(options, &cases, &mut engines)?))
}

fn measure_all(options: &BenchOptions, candidates: Vec<Candidate>) -> Result<(), BenchError> {
    let mut engines = Engines::start(candidates, &options.engines)?;
    let (cases, refused) = options.cases(&engines)?;
    if !options.json {
        let mut text = options.announcement(&cases, &engines);
        text.extend(engines.missing.iter().chain(&refused).map(|line| format!("  not measured: {line}\n")));
        print(&format!("{text}\n"))?;
    }
    // Fail before the measurement, not after it, if the picture cannot be written.
    let picture = options.svg.as_deref().map(open_picture).transpose()?;
    let series = repeat(options, &cases, &mut engines)?;
    if let Some((path, file)) = picture {
        draw(options, &series, path, file)?;
    }
    if options.json {
        print(&format!("{:#}\n", report::json(&series)))
    } else {
        print(&(report::table(&series) + &options.legend(&series)))
    }
}

/// Opens the picture's file without changing it: its content is replaced only once there is a picture.
pub(crate) fn open_picture(path: &Path) -> Result<(&Path, File), BenchError> {
    let file = File::options().write(true).create(true).truncate(false).open(path);
    file.map(|file| (path, file)).map_err(|source| BenchError::File { path: path.to_owned(), source })
}

fn draw(options: &BenchOptions, series: &[Series], path: &Path, file: File) -> Result<(), BenchError> {
    let subtitle = format!(
        "one core, in memory, {}; medians of {} repetitions, with lowest and highest",
        options.encapsulations(),
        options.repetitions
    );
    let panel = chart::Panel {
        title: "Testudo: throughput over packet size".to_owned(),
        subtitle,
        across: "packet size (bytes of the inner IP packet)".to_owned(),
        up: "throughput (Gbit/s of inner packets)".to_owned(),
        extent: chart::Extent::Zero,
        lines: chart::lines(series),
    };
    write_picture(&chart::svg(&[panel]), path, file)
}

pub(crate) fn write_picture(picture: &str, path: &Path, mut file: File) -> Result<(), BenchError> {
    let written = file.set_len(0).and_then(|()| file.write_all(picture.as_bytes()));
    written.map_err(|source| BenchError::File { path: path.to_owned(), source })
}

/// Prints to standard output; a reader that closed the pipe is no failure.
pub(crate) fn print(text: &str) -> Result<(), BenchError> {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(source) if source.kind() != ErrorKind::BrokenPipe => {
            Err(BenchError::File { path: "standard output".into(), source })
        }
        _ => Ok(()),
    }
}

/// Where the figures of a case come from: of those that place jobs among them, the one that is on a device.
fn device_of(case: &Case, engines: &Engines) -> Device {
    let of = |engine: usize| engines.available.get(engine).map(Available::device);
    let mut devices = case.engines().into_iter().filter_map(of);
    devices.find(|device| device.name.is_some()).unwrap_or_default()
}

/// Measures all cases in turn, as often as requested.
fn repeat(options: &BenchOptions, cases: &[Case], engines: &mut Engines) -> Result<Vec<Series>, BenchError> {
    let mut series: Vec<Series> = cases
        .iter()
        .map(|&case| Series {
            case,
            engine: if case.is_placed() { LIVE } else { engines.available[case.engine].name() },
            device: device_of(&case, engines),
            judge: engines.judge(&case).name(),
            samples: Vec::new(),
        })
        .collect();
    let silent = options.json || !std::io::stderr().is_terminal();
    let mut progress = Progress::new(options.expected(cases), silent);
    for turn in 0..options.repetitions {
        for series in &mut series {
            let case = series.case;
            let name = format!("{case}, {}", series.engine);
            let visit = options.expected_visit(&case);
            progress.stage(&format!("{} of {}: {name}", turn + 1, options.repetitions), visit);
            let duration = Duration::from_millis(options.milliseconds);
            let sample = measure::measure(&case, engines, duration);
            series.samples.push(sample.map_err(|what| BenchError::Invalid { case: name, what })?);
        }
    }
    Ok(series)
}
