//! `make interop`: tries every row, keeps what became of it, and writes docs/INTEROP.md.

use crate::site::{Site, boot};
use crate::slot::SLOTS;
use crate::support::Outcome;
use crate::traffic::Load;
use crate::trial::try_rows;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};
use testudo_judge::interop::{Facts, Results, Row, Verdict, all_rows, document, json, summary};
use testudo_judge::linux_peer::LinuxPeer;

/// The option that asks for the matrix instead of the tests.
const MATRIX: &str = "--matrix";
const USAGE: &str = "usage: make interop ARGS='[--fresh] [--json] [--budget 30m] [--only WORDS]'
  --fresh       forget earlier results; otherwise rows that this program has passed are not run again
  --json        print all rows as JSON, not the table
  --budget TIME stop after so many seconds (s), minutes (m) or hours (h); the next run goes on
  --only WORDS  run the rows whose name contains this, such as \"ah transport\"";

/// The arguments for the matrix, if it is wanted.
pub fn arguments() -> Option<Vec<String>> {
    let all: Vec<String> = std::env::args().skip(1).collect();
    let is_wanted = all.iter().any(|argument| argument == MATRIX);
    is_wanted.then(|| all.into_iter().filter(|argument| argument != MATRIX).collect())
}

#[derive(Debug, Default)]
struct Options {
    fresh: bool,
    json: bool,
    budget: Option<Duration>,
    only: String,
}

impl Options {
    fn read(arguments: &[String]) -> Option<Self> {
        let mut options = Self::default();
        let mut rest = arguments.iter();
        while let Some(argument) = rest.next() {
            match argument.as_str() {
                "--fresh" => options.fresh = true,
                "--json" => options.json = true,
                "--budget" => options.budget = Some(duration(rest.next()?)?),
                "--only" => options.only.clone_from(rest.next()?),
                _ => return None,
            }
        }
        Some(options)
    }
}

/// "90s", "30m", "2h".
fn duration(text: &str) -> Option<Duration> {
    let (number, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    let seconds = match unit {
        "s" => 1,
        "m" => 60,
        "h" => 3600,
        _ => return None,
    };
    Some(Duration::from_secs(number.parse::<u64>().ok()?.checked_mul(seconds)?))
}

pub fn main(arguments: &[String]) -> ExitCode {
    let Some(options) = Options::read(arguments) else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    match run(&options) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("interop: {error}\nwhat was run is kept; `make interop` goes on");
            ExitCode::FAILURE
        }
    }
}

/// Returns whether no row has failed.
fn run(options: &Options) -> Outcome<bool> {
    let started = Instant::now();
    let mut site = boot()?;
    let (rows, program) = (all_rows(), program()?);
    let mut results = Results::open(&file(), &program, &rows)?;
    if options.fresh {
        results.clear()?;
    }
    let is_open = |row: &Row| matches!(results.of(row), None | Some(Verdict::Fail(_)));
    let wanted = |row: &&Row| is_open(row) && row.to_string().contains(&options.only);
    let left: Vec<Row> = rows.iter().filter(wanted).copied().collect();
    let peer = site.peer_name()?;
    eprintln!("{program} and {peer}: {}", summary(&results));
    let outcome = try_all(&mut site, &left, &peer, &mut results, options.budget.map(|b| started + b));
    let facts = Facts { program, peer: results.peer().unwrap_or(&peer).to_owned(), date: date()? };
    let text = document(&results, &facts);
    let path = repository().join("docs/INTEROP.md");
    fs::write(&path, &text)?;
    if options.json {
        println!("{:#}", json(&results))
    } else {
        println!("{text}")
    }
    eprintln!("{}", summary(&results));
    outcome?;
    Ok(rows.iter().all(|row| !matches!(results.of(row), Some(Verdict::Fail(_)))))
}

/// Tries rows until none is left, or the time is up.
fn try_all(
    site: &mut Site,
    left: &[Row],
    peer: &str,
    results: &mut Results,
    deadline: Option<Instant>,
) -> Outcome<()> {
    let (started, mut done, mut failed) = (Instant::now(), 0, 0);
    for lot in left.chunks(SLOTS) {
        if deadline.is_some_and(|deadline| Instant::now() > deadline) {
            eprintln!("the time is up; `make interop` goes on with the other {} rows", left.len() - done);
            return Ok(());
        }
        let verdicts = try_rows(site, lot, Load::LIGHT)?;
        for (row, verdict) in verdicts.iter().filter(|(_, v)| matches!(v, Verdict::Fail(_))) {
            failed += 1;
            eprintln!("FAIL {row}: {}", verdict.reason());
        }
        results.add(peer, verdicts)?;
        done += lot.len();
        let (rest, done_f) = (left.len() - done, u32::try_from(done)?);
        let remaining = started.elapsed() / done_f.max(1) * u32::try_from(rest)?;
        let minutes = remaining.as_secs().div_ceil(60);
        eprintln!(
            "{done} rows done, {failed} failed, {rest} left, about {minutes} min: {}",
            lot[lot.len() - 1]
        );
    }
    Ok(())
}

/// Version and commit of the program. Rows are tried again when its sources have changed, and not when words
/// have.
fn program() -> Outcome<String> {
    const SOURCES: [&str; 4] = ["--", "crates", "Cargo.toml", "Cargo.lock"];
    let commit = said("git", &[&["log", "-1", "--format=%h"], &SOURCES[..]].concat())?;
    let changes = said("git", &[&["status", "--porcelain"], &SOURCES[..]].concat())?;
    let changed = if changes.is_empty() { "" } else { " with changes" };
    Ok(format!("testudo {}, commit {commit}{changed}", env!("CARGO_PKG_VERSION")))
}

fn date() -> Outcome<String> {
    said("date", &["-u", "+%Y-%m-%d"])
}

/// What a command prints, run in the repository.
fn said(program: &str, arguments: &[&str]) -> Outcome<String> {
    let output = Command::new(program).args(arguments).current_dir(repository()).output()?;
    if !output.status.success() {
        return Err(format!("{program}: {}", String::from_utf8_lossy(&output.stderr)).into());
    }
    Ok(String::from_utf8(output.stdout)?.trim().to_owned())
}

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The results, beside the guest's image.
fn file() -> PathBuf {
    LinuxPeer::default_cache().with_file_name("interop.jsonl")
}
