//! `make interop`: tries every row with each peer, keeps what became of it, and writes docs/INTEROP.md.
//!
//! ```text
//!   make interop ─┬─ machine 0: a guest, then Scapy, with every other lot of rows ─┐
//!                 └─ machine 1: a guest, then Scapy, with the other lots ──────────┴─► the file of results ─► the document
//! ```
//!
//! An emulated guest keeps one processor busy. So the rows are shared among as many machines as there are
//! processors, at most four: each is this program again, in namespaces of its own. What a machine has tried
//! is in the file of results at once, a line for each row.

use crate::engines::Engines;
use crate::scapy_rows::{self, Scapy};
use crate::site::{Site, boot};
use crate::slot::SLOTS;
use crate::support::{Outcome, ensure};
use crate::traffic::Load;
use crate::trial::try_rows;
use std::fs;
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode};
use std::thread;
use std::time::{Duration, Instant};
use testudo_judge::interop::{Facts, Peer, Results, Row, Verdict, all_rows, document, json, summary};
use testudo_judge::linux_peer::LinuxPeer;

/// The option that asks for the matrix instead of the tests.
const MATRIX: &str = "--matrix";
/// The option of a machine: its number and how many there are, as in "0/2".
const MACHINE: &str = "--machine";
const MOST_MACHINES: usize = 4;
const USAGE: &str =
    "usage: make interop ARGS='[--peer linux|scapy] [--fresh] [--json] [--budget 30m] [--only WORDS] [--machines N]'
  --peer NAME   try rows with this peer only
  --fresh       forget earlier results; otherwise rows that this program has passed are not run again
  --json        print all rows as JSON, not the table
  --budget TIME stop after so many seconds (s), minutes (m) or hours (h); the next run goes on
  --only WORDS  run the rows whose name contains this, such as \"ah transport\"
  --machines N  boot so many guests side by side, 1 to 4; without it, one for each processor";

/// The arguments for the matrix, if it is wanted.
pub fn arguments() -> Option<Vec<String>> {
    let all: Vec<String> = std::env::args().skip(1).collect();
    let is_wanted = all.iter().any(|argument| argument == MATRIX);
    is_wanted.then(|| all.into_iter().filter(|argument| argument != MATRIX).collect())
}

struct Options {
    peers: Vec<Peer>,
    fresh: bool,
    json: bool,
    budget: Option<Duration>,
    only: String,
    machines: Option<usize>,
    /// Which machine this process is, of how many.
    machine: Option<(usize, usize)>,
}

impl Options {
    fn read(arguments: &[String]) -> Option<Self> {
        let mut options = Self {
            peers: Peer::ALL.to_vec(),
            fresh: false,
            json: false,
            budget: None,
            only: String::new(),
            machines: None,
            machine: None,
        };
        let mut rest = arguments.iter();
        while let Some(argument) = rest.next() {
            match argument.as_str() {
                "--peer" => options.peers = vec![Peer::of_name(rest.next()?)?],
                "--fresh" => options.fresh = true,
                "--json" => options.json = true,
                "--budget" => options.budget = Some(duration(rest.next()?)?),
                "--only" => options.only.clone_from(rest.next()?),
                "--machines" => options.machines = Some(machines(rest.next()?)?),
                MACHINE => {
                    let (number, all) = rest.next()?.split_once('/')?;
                    options.machine = Some((number.parse().ok()?, machines(all)?));
                }
                _ => return None,
            }
        }
        Some(options)
    }
}

/// How many machines there are to be.
fn machines(text: &str) -> Option<usize> {
    text.parse().ok().filter(|count| (1..=MOST_MACHINES).contains(count))
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
    let outcome = match options.machine {
        Some((number, all)) => run_machine(&options, number, all).map(|()| true),
        None => run(&options, arguments),
    };
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("interop: {error}\nwhat was run is kept; `make interop` goes on");
            ExitCode::FAILURE
        }
    }
}

/// Has machines try what is left, and writes what became of all rows. Returns whether no row has failed.
fn run(options: &Options, arguments: &[String]) -> Outcome<bool> {
    let (rows, program) = (all_rows(), program()?);
    let mut results = Results::open(&file(), &program, &rows)?;
    if options.fresh {
        results.clear()?;
    }
    eprintln!("{program}\n{}", summary(&results));
    if options.peers.contains(&Peer::Linux) {
        LinuxPeer::prepare_image(&LinuxPeer::default_cache())?;
    }
    let most = thread::available_parallelism().map_or(1, NonZero::get).min(MOST_MACHINES);
    let outcome = run_machines(options.machines.unwrap_or(most), arguments);
    let results = Results::open(&file(), &program, &rows)?;
    let text = document(&results, &Facts { program, date: date()? });
    fs::write(repository().join("docs/INTEROP.md"), &text)?;
    if options.json {
        println!("{:#}", json(&results))
    } else {
        println!("{text}")
    }
    eprintln!("{}", summary(&results));
    outcome?;
    let has_failed = |peer: Peer| rows.iter().any(|r| matches!(results.of(peer, r), Some(Verdict::Fail(_))));
    Ok(!Peer::ALL.into_iter().any(has_failed))
}

/// Starts so many machines with these arguments, and waits for all of them.
fn run_machines(count: usize, arguments: &[String]) -> Outcome<()> {
    let start = |number: usize| {
        // They end with this process.
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL"]).arg(std::env::current_exe()?);
        command.arg(MATRIX).args(arguments).args([MACHINE, &format!("{number}/{count}")]);
        command.spawn()
    };
    let machines: Vec<Child> = (0..count).map(start).collect::<Result<_, _>>()?;
    let mut lost = 0;
    for mut machine in machines {
        lost += usize::from(!machine.wait()?.success());
    }
    ensure(lost == 0, || format!("{lost} of {count} machines were lost"))
}

/// Tries what is left of every `all`-th lot with each peer: no other machine has these rows.
fn run_machine(options: &Options, number: usize, all: usize) -> Outcome<()> {
    let deadline = options.budget.map(|budget| Instant::now() + budget);
    let (rows, program) = (all_rows(), program()?);
    let mut results = Results::open(&file(), &program, &rows)?;
    let is_wanted = |row: &&Row| row.to_string().contains(&options.only);
    let wanted: Vec<Row> = rows.iter().filter(is_wanted).copied().collect();
    for peer in &options.peers {
        let own: Vec<&[Row]> = wanted.chunks(lot_of(*peer)).skip(number).step_by(all).collect();
        let is_open = |row: &Row| matches!(results.of(*peer, row), None | Some(Verdict::Fail(_)));
        let left: Vec<Row> = own.concat().into_iter().filter(is_open).collect();
        if left.is_empty() {
            continue;
        }
        let mut judge = Judge::of(*peer, number)?;
        try_all(&mut judge, &format!("machine {} of {all}", number + 1), &left, &mut results, deadline)?;
    }
    Ok(())
}

/// Rows that are tried at once.
const fn lot_of(peer: Peer) -> usize {
    match peer {
        Peer::Linux => SLOTS,
        Peer::Scapy => scapy_rows::LOT,
    }
}

/// What tries rows: a peer that stands ready.
enum Judge {
    Linux(Box<Site>),
    Scapy(Scapy),
}

impl Judge {
    fn of(peer: Peer, machine: usize) -> Outcome<Self> {
        Ok(match peer {
            Peer::Linux => Self::Linux(Box::new(boot()?)),
            Peer::Scapy => Self::Scapy(Scapy::find(&format!("machine{machine}"))?),
        })
    }

    fn peer(&self) -> Peer {
        match self {
            Self::Linux(_) => Peer::Linux,
            Self::Scapy(_) => Peer::Scapy,
        }
    }

    /// Name and version of the peer.
    fn name(&mut self) -> Outcome<String> {
        match self {
            Self::Linux(site) => site.peer_name(),
            Self::Scapy(scapy) => Ok(scapy.version().to_owned()),
        }
    }

    fn try_rows(&mut self, rows: &[Row]) -> Outcome<Vec<(Row, Verdict)>> {
        match self {
            Self::Linux(site) => try_rows(site, rows, Engines::Usual, Load::LIGHT),
            Self::Scapy(scapy) => scapy.judge(rows, Engines::Usual),
        }
    }
}

/// Tries rows until none is left, or the time is up.
fn try_all(
    judge: &mut Judge,
    machine: &str,
    left: &[Row],
    results: &mut Results,
    deadline: Option<Instant>,
) -> Outcome<()> {
    let (peer, name) = (judge.peer(), judge.name()?);
    let (started, mut done, mut failed) = (Instant::now(), 0, 0);
    for lot in left.chunks(lot_of(peer)) {
        if deadline.is_some_and(|deadline| Instant::now() > deadline) {
            let rest = left.len() - done;
            eprintln!("{machine}, {peer}: the time is up; `make interop` goes on with the other {rest} rows");
            return Ok(());
        }
        let verdicts = judge.try_rows(lot)?;
        for (row, verdict) in verdicts.iter().filter(|(_, v)| matches!(v, Verdict::Fail(_))) {
            failed += 1;
            eprintln!("FAIL {peer}: {row}: {}", verdict.reason());
        }
        results.add(peer, &name, verdicts)?;
        done += lot.len();
        let (rest, done_f) = (left.len() - done, u32::try_from(done)?);
        let remaining = started.elapsed() / done_f.max(1) * u32::try_from(rest)?;
        let minutes = remaining.as_secs().div_ceil(60);
        let last = lot[lot.len() - 1];
        eprintln!(
            "{machine}, {peer}: {done} rows done, {failed} failed, {rest} left, about {minutes} min: {last}"
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
