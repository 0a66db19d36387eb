//! `testudo bench host`: TCP streams through two gateways on one machine, one or several at once, beside
//! the bare link and wireguard-go.
//!
//! ```text
//!   site A ══ gateway A ─── link ─── gateway B ══ site B      the demonstration's four hosts
//! ```
//!
//! Each subject gets the same hosts, cables and generator; the bare link is two routers without a tunnel.
//! Each measurement builds its own network and takes it down, so that an idle subject cannot slow down
//! another. The subjects take turns, so that changes on the machine affect all of them, and ratios are taken
//! within a turn.

mod report;
mod subject;
mod wireguard;

use std::io::IsTerminal;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::builder::PossibleValuesParser;

use crate::demo::{program, require_programs};
use crate::error::LabError;
use crate::namespaces::{Entered, require_tun};
use crate::progress::Progress;
use crate::suites;
use crate::traffic::gbit_s;
use crate::workspace::{Workspace, enter_with_workspace};
use report::{Report, Series};
use subject::{Setting, Subject};
use wireguard::WireguardGo;

/// All suites.
fn suites() -> PossibleValuesParser {
    suites::parser(|_| true)
}

/// Options of `testudo bench host`.
#[derive(Debug, Clone, clap::Args)]
pub struct BenchHostOptions {
    /// Seconds of TCP in each measurement
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=600))]
    pub seconds: u64,

    /// Measurements of each subject; subjects take turns
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub repetitions: u32,

    /// TCP streams at once; each number is measured apart
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "1,2,8",
          value_parser = clap::value_parser!(u16).range(1..=256))]
    pub streams: Vec<u16>,

    /// Workers of each of Testudo's gateways
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=64))]
    pub workers: u8,

    /// Print one JSON object instead of the table, and no progress
    #[arg(long)]
    pub json: bool,

    /// IPv6 at the sites and on the link
    #[arg(long)]
    pub ipv6: bool,

    /// Suite of the tunnel
    #[arg(long, default_value = "aes128gcm16", value_parser = suites())]
    pub suite: String,

    /// Engine that does the cryptography [default: the best that works here]
    #[arg(long)]
    pub engine: Option<String>,

    /// Program of wireguard-go [default: wireguard-go or wireguard on the path or in ~/go/bin]
    #[arg(long, value_name = "FILE")]
    pub wireguard: Option<PathBuf>,

    /// Exit with 1 unless Testudo is this many times as fast as wireguard-go with each number of streams
    #[arg(long, value_name = "RATIO")]
    pub require_ratio: Option<f64>,

    /// Build of the program to measure [default: this one]
    #[arg(long, hide = true)]
    pub testudo: Option<PathBuf>,
}

/// Measures and prints the result: 0 on success, otherwise 1 with the reason on standard error.
///
/// Call it on the main thread before starting others: it re-executes the program inside private namespaces.
#[must_use = "it says whether the measurement has failed"]
pub fn run(options: &BenchHostOptions) -> ExitCode {
    match attempt(options) {
        Ok(report) => verdict(options, &report),
        Err(error) => {
            eprintln!("testudo bench host: {error}");
            ExitCode::FAILURE
        }
    }
}

fn verdict(options: &BenchHostOptions, report: &Report) -> ExitCode {
    if options.json {
        println!("{}", report.json());
    } else {
        print!("{}", report.table());
    }
    let Some(required) = options.require_ratio else { return ExitCode::SUCCESS };
    match report.lowest_ratio(Subject::Testudo, Subject::WireguardGo) {
        Some(ratio) if ratio >= required => ExitCode::SUCCESS,
        Some(ratio) => {
            eprintln!("testudo bench host: {ratio:.2} times wireguard-go, {required:.2} required");
            ExitCode::FAILURE
        }
        None => {
            eprintln!("testudo bench host: no ratio: wireguard-go was not measured");
            ExitCode::FAILURE
        }
    }
}

fn attempt(options: &BenchHostOptions) -> Result<Report, LabError> {
    require_programs()?;
    // Before entering: inside, the home folder may be a different one.
    let wireguard = wireguard::find(options.wireguard.as_deref());
    let (inside, workspace) = enter_with_workspace("bench", false)?;
    require_tun()?;
    let setting = Setting {
        program: program(options.testudo.as_deref())?,
        // After entering, so that the program runs inside when asked for its version.
        wireguard: wireguard.map(WireguardGo::ask),
        suite: options.suite.clone(),
        ipv6: options.ipv6,
        engine: options.engine.clone(),
        workers: options.workers,
    };
    let mut subjects = vec![Subject::Bare, Subject::Testudo];
    subjects.extend(setting.wireguard.as_ref().map(|_| Subject::WireguardGo));
    measure(inside, options, &setting, &workspace, &subjects)
}

fn measure(
    inside: Entered,
    options: &BenchHostOptions,
    setting: &Setting,
    workspace: &Workspace,
    subjects: &[Subject],
) -> Result<Report, LabError> {
    let duration = Duration::from_secs(options.seconds);
    let mut numbers = options.streams.clone();
    numbers.sort_unstable();
    numbers.dedup();
    let cases: Vec<(u16, Subject)> =
        numbers.iter().flat_map(|&streams| subjects.iter().map(move |&of| (streams, of))).collect();
    let count = options.repetitions * u32::try_from(cases.len()).unwrap_or(1);
    let silent = options.json || !std::io::stderr().is_terminal();
    let mut progress = Progress::new(duration * count, silent);
    let mut series: Vec<Series> =
        cases.iter().map(|&(streams, subject)| Series::new(streams, subject)).collect();
    let mut engine = String::new();
    for turn in 0..options.repetitions {
        for series in &mut series {
            let Series { streams, subject, .. } = *series;
            let (subject_name, of) = (subject.name(), options.repetitions);
            progress.stage(&format!("{subject_name}, {} ({} of {of})", plural(streams), turn + 1), duration);
            let folder = workspace.join(format!("{}-{streams}-{turn}", subject_name.replace(' ', "-")));
            let mut observe = |elapsed: Duration, bytes| {
                progress.at(elapsed, duration, &format!("{:.2} Gbit/s", gbit_s(bytes, elapsed)));
            };
            let measured =
                subject.measure(inside, setting, &folder, (streams.into(), duration), &mut observe)?;
            series.gbit_s.push(measured.gbit_s);
            engine = measured.engine.unwrap_or(engine);
        }
    }
    Ok(Report {
        series,
        engine,
        wireguard: setting.wireguard.clone(),
        suite: options.suite.clone(),
        workers: options.workers,
        seconds: options.seconds,
    })
}

/// "1 stream", "8 streams".
fn plural(streams: u16) -> String {
    if streams == 1 { "1 stream".to_owned() } else { format!("{streams} streams") }
}
