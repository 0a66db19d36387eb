//! `testudo lab papers`: every figure and table of the five papers, measured again where this machine can.
//!
//! ```text
//!   registry ─ item: a figure, what its paper prints ┬ a command of the program ─► rows ─► reading ─┐
//!                                                    └ why not                                       ├─► report
//!   store ─ rows of earlier runs, if of the same settings, program and machine ─► reading ──────────┘
//! ```
//!
//! A measurement is a command that users can give themselves, run in this process, or in one of its own if it
//! enters namespaces (`child`). Figures that read the rows of one command share its measurement. Its rows are
//! kept as they are, each in a file that is whole or not there, and read anew for each report; those of a
//! figure of several commands are in a file each until all are done (`parts`). So a run that was stopped goes
//! on where it was, and what is in the folder is never trusted more than what comes from outside. The report
//! is written after each measurement.
//!
//! `moongen`, `linux_ipsec`, `pipsea`, `vpe` and `network_processor` have what the papers print and how rows
//! are read; `machine` what figures depend on; `html` and `markdown` write the report.

mod child;
mod html;
mod item;
mod linux_ipsec;
mod machine;
mod markdown;
mod measure;
mod moongen;
mod network_processor;
mod parts;
mod pipsea;
mod reading;
mod registry;
mod report;
mod store;
mod vpe;

use std::any::Any;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use serde_json::Value;
use testudo_gateway::Candidate;

use crate::bench::{BenchError, Gpus, fastest_engine};
use crate::efficiency::prices_of;
use crate::estimate::{self, Estimate};
use crate::meters::Meters;
use crate::progress::Progress;
use crate::rfc2544::is_silent;

use item::{Item, Method, Mode};
use machine::Machine;
pub use registry::Only;
use report::{Entry, Report, State};
use store::{Found, Place, Record, Settings, Store};

/// How often the bar moves.
const TICK: Duration = Duration::from_millis(200);

/// Options of `testudo lab papers`.
#[derive(Debug, Clone, clap::Args)]
pub struct PapersOptions {
    /// Papers (000 to 004), or figures and tables of theirs (003-figure-7, 000-table-i) [default: all]
    #[arg(long, value_delimiter = ',', value_name = "NAME,…")]
    pub only: Vec<Only>,

    /// Take minutes instead of hours: short measurements, which vary more
    #[arg(long)]
    pub quick: bool,

    /// Folder of the report (report.html, report.json) and of the results, with which an interrupted run goes
    /// on
    #[arg(long, value_name = "FOLDER", default_value = "testudo-papers")]
    pub out: PathBuf,

    /// Measure what earlier runs have measured, too
    #[arg(long)]
    pub again: bool,

    /// What this machine costs, and systems of paper 002 today: a file in TOML (docs/LAB.md), for table 2
    /// of 002
    #[arg(long, value_name = "FILE")]
    pub prices: Option<PathBuf>,

    /// One word of the GPU's name or of its platform's, for figures of a GPU [default: the first GPU]
    #[arg(long, value_name = "NAME", value_parser = word)]
    pub gpu: Option<String>,

    /// Also write the report as Markdown, without pictures
    #[arg(long, value_name = "FILE")]
    pub markdown: Option<PathBuf>,

    /// Print the report as JSON, and no progress
    #[arg(long)]
    pub json: bool,
}

/// A command in a report is a line of words.
fn word(text: &str) -> Result<String, String> {
    let is_word = !text.is_empty() && text.chars().all(|c| c.is_alphanumeric() || "-_.".contains(c));
    is_word.then(|| text.to_owned()).ok_or_else(|| "expected one word of a name".to_owned())
}

impl PapersOptions {
    fn mode(&self) -> Mode {
        if self.quick { Mode::Quick } else { Mode::Full }
    }

    fn is_wanted(&self, item: &Item) -> bool {
        self.only.is_empty() || self.only.iter().any(|only| only.is_of(item))
    }
}

/// The user's file of prices, as commands name it and results depend on it.
#[derive(Debug)]
struct PriceFile {
    path: String,
    text: String,
}

impl PriceFile {
    /// Reads it, before anything is measured.
    fn read(path: &Path) -> Result<Self, BenchError> {
        let text = prices_of(path)?;
        let is_word = |path: &&str| !path.contains(|c: char| c.is_whitespace() || c.is_control() || c == '`');
        match path.to_str().filter(is_word) {
            Some(path) => Ok(Self { path: path.to_owned(), text }),
            // A command in a report is a line of words.
            None => Err(BenchError::Usage("--prices: its path has spaces, or what is no text".to_owned())),
        }
    }
}

/// Measures what `options` say, and writes the report; what is printed. `candidates` are the engines that the
/// program has besides the portable one, `on_gpus` those that are measured only where a figure is of a GPU;
/// `gpus` finds GPUs, `meters` opens what can be metered.
///
/// # Errors
/// [`BenchError`] if the folder or the prices cannot be used, or a measurement failed; the report says which.
pub(crate) fn report(
    options: &PapersOptions,
    candidates: Vec<Candidate>,
    (on_gpus, gpus): (Vec<Candidate>, &Gpus),
    meters: &(dyn Fn() -> Meters + Sync),
) -> Result<String, BenchError> {
    let prices = options.prices.as_deref().map(PriceFile::read).transpose()?;
    let (machine, program) = (Machine::here(&candidates, gpus, meters()), machine::program());
    let engines = measure::Shared::new(candidates.into_iter().chain(on_gpus).collect());
    let session = Session {
        options,
        items: registry::all().filter(|item| options.is_wanted(item)).collect(),
        machine,
        program,
        prices,
        engine: None,
        choose: &|| engine_of_vpe(&engines),
        measure: &|command| measure::measure(command, &engines, gpus, meters),
    };
    session.run()
}

/// The engine of all figures of VPE beside ESP. Where there is none, they say so themselves.
fn engine_of_vpe(engines: &measure::Shared) -> Option<String> {
    // In a thread of its own, as every measurement: all else is made even if it panics.
    let chosen = std::thread::scope(|scope| scope.spawn(|| fastest_engine(engines.all())).join());
    chosen.ok()?.ok().map(str::to_owned)
}

/// The bar, and what it shows of an item that is being measured.
#[derive(Clone, Copy)]
struct Bar<'a> {
    progress: &'a Progress,
    estimate: &'a Estimate,
    /// How long the item was expected to take, and when it began.
    expected: Duration,
    start: Instant,
}

impl Bar<'_> {
    fn show(&self) {
        let Self { progress, estimate, expected, start } = *self;
        let (elapsed, pace) = (start.elapsed(), estimate.at_this_pace(expected));
        let share = elapsed.as_secs_f64() / pace.as_secs_f64().max(0.1);
        progress.at(expected.mul_f64(share.min(1.0)), expected, &estimate.left_words(expected, elapsed));
    }
}

/// A run.
struct Session<'a> {
    options: &'a PapersOptions,
    items: Vec<&'a Item>,
    machine: Machine,
    program: String,
    prices: Option<PriceFile>,
    /// That of all figures of VPE beside ESP; each chooses one for itself where it is `None`.
    engine: Option<String>,
    /// Chooses that one, which takes a second.
    choose: &'a (dyn Fn() -> Option<String> + Sync),
    /// Runs a command of the program; its rows.
    measure: &'a (dyn Fn(&str) -> Result<Value, BenchError> + Sync),
}

impl<'a> Session<'a> {
    fn run(mut self) -> Result<String, BenchError> {
        let store = Store::open(&self.options.out)?;
        self.engine = self.engine_of_vpe(&store);
        let before = self.items.iter().map(|&item| Entry { item, state: State::before(item) });
        let mut report = Report {
            mode: self.options.mode(),
            only: self.options.only.iter().map(|only| only.name().to_owned()).collect(),
            made_at: machine::now(),
            program: self.program.clone(),
            machine: self.machine.clone(),
            entries: before.collect(),
        };
        let mut kept = 0;
        if !self.options.again {
            kept = self.take_kept(&store, &mut report.entries);
        }
        self.write(&store, &mut report)?;
        self.measure_rest(&store, &mut report)?;
        self.write(&store, &mut report)?;
        self.ended(&report, kept)
    }

    /// The engine of what earlier runs have measured, or one that is chosen now: of two that are about as
    /// fast either may be, and a report has one.
    fn engine_of_vpe(&self, store: &Store) -> Option<String> {
        let of_vpe = self.items.iter().filter_map(|item| Some((*item, item.method()?)));
        let of_vpe: Vec<_> = of_vpe.filter(|(_, method)| method.is_of_vpe()).collect();
        if of_vpe.is_empty() {
            return None;
        }
        let is_kept = |engine: &&String| {
            of_vpe.iter().any(|&(item, method)| {
                let settings = self.settings_with(item, method, Some(engine.as_str()));
                matches!(store.find(Place::whole(item, self.options.mode()), &settings), Found::Kept(_))
            })
        };
        let kept = self.machine.engines.iter().filter(|_| !self.options.again).find(is_kept).cloned();
        kept.or_else(self.choose)
    }

    fn settings(&self, item: &Item, method: &Method) -> Settings {
        self.settings_with(item, method, self.engine.as_deref())
    }

    fn settings_with(&self, item: &Item, method: &Method, engine: Option<&str>) -> Settings {
        let mode = self.options.mode();
        let prices = self.prices.as_ref().filter(|_| method.has_prices());
        let path = prices.map(|file| file.path.as_str());
        let command = method.command(mode, self.machine.processors, path);
        let command = item::with_engine(&command, engine);
        Settings {
            id: item.id(),
            mode: mode.name().to_owned(),
            command: item::with_gpu(&command, self.options.gpu.as_deref()),
            prices: prices.map(|file| file.text.clone()),
            program: self.program.clone(),
            machine: self.machine.clone(),
        }
    }

    /// Takes what earlier runs have measured; how many that is. What else lies there is put away, and said.
    fn take_kept(&self, store: &Store, entries: &mut [Entry<'_>]) -> usize {
        let (mode, mut kept) = (self.options.mode(), 0);
        for Entry { item, state } in entries {
            let Some(method) = item.method() else { continue };
            let (place, settings) = (Place::whole(item, mode), self.settings(item, method));
            match store.find(place, &settings) {
                Found::Nothing => {}
                Found::Kept(record) => {
                    *state = measured(record, method, true);
                    kept += 1;
                }
                Found::Refused(reason) => refused(store, place, &reason),
            }
        }
        kept
    }

    fn measure_rest(&self, store: &Store, report: &mut Report<'_>) -> Result<(), BenchError> {
        let left = self.left(store, &report.entries);
        let (count, expected) = (left.len(), left.iter().sum());
        let silent = is_silent(self.options.json);
        let (mut progress, mut estimate) = (Progress::new(expected, silent), Estimate::of(expected));
        let mut number = 0;
        for index in 0..report.entries.len() {
            let Some(entry) = report.entries.get(index) else { break };
            let (State::NotYet, Some(method), item) = (&entry.state, entry.item.method(), entry.item) else {
                continue;
            };
            let expected = left.get(number).copied().unwrap_or_default();
            number += 1;
            let name = format!("{number} of {count}: {} {}", item.paper.number(), item.name);
            progress.stage(&name, expected);
            let start = Instant::now();
            let state = match self.shared(&report.entries, item, method) {
                Some((record, is_kept)) => {
                    store.keep(Place::whole(item, self.options.mode()), &record)?;
                    measured(record, method, is_kept)
                }
                None => {
                    let bar = Bar { progress: &progress, estimate: &estimate, expected, start };
                    self.measure_one(store, item, method, bar)?
                }
            };
            if let Some(entry) = report.entries.get_mut(index) {
                entry.state = state;
            }
            estimate.done(expected, start.elapsed());
            if silent && !self.options.json {
                let left = estimate::words(estimate.left(Duration::ZERO));
                eprintln!("{name}: {}, about {left} left", estimate::words(start.elapsed()));
            }
            self.write(store, report)?;
        }
        Ok(())
    }

    /// How long each item takes that is left, in order; those that share another's measurement take no time,
    /// nor do commands that an earlier run has done.
    fn left(&self, store: &Store, entries: &[Entry<'_>]) -> Vec<Duration> {
        let mut known: Vec<String> = Vec::new();
        let mut left = Vec::new();
        for entry in entries {
            let (Some(method), item) = (entry.item.method(), entry.item) else { continue };
            let settings = self.settings(item, method);
            let is_shared = known.contains(&settings.command);
            if matches!(entry.state, State::NotYet) {
                let seconds = if is_shared { 0 } else { method.seconds(self.options.mode()) };
                let share = self.share_left(store, item, &settings);
                left.push(Duration::from_secs(seconds.into()).mul_f64(share));
            }
            known.push(settings.command);
        }
        left
    }

    /// What another item has measured by the same command, and whether an earlier run did.
    fn shared(&self, entries: &[Entry<'_>], item: &Item, method: &Method) -> Option<(Box<Record>, bool)> {
        let settings = self.settings(item, method);
        entries.iter().find_map(|entry| match &entry.state {
            State::Measured { record, is_kept, .. } => {
                record.shared_with(&settings).map(|record| (Box::new(record), *is_kept))
            }
            _ => None,
        })
    }

    /// Runs a command in a thread of its own, since some pin theirs to a processor, while the bar moves.
    fn watched(&self, command: &str, bar: Bar<'_>) -> Result<Value, BenchError> {
        let (to, from) = channel();
        std::thread::scope(|scope| {
            let measuring = scope.spawn(move || {
                // Nobody listens if the other end is gone; the result is returned, too.
                let _end = to;
                (self.measure)(command)
            });
            while from.recv_timeout(TICK) == Err::<(), _>(RecvTimeoutError::Timeout) {
                bar.show();
            }
            measuring.join().unwrap_or_else(|panic| Err(panicked(&*panic)))
        })
    }

    fn write(&self, store: &Store, report: &mut Report<'_>) -> Result<(), BenchError> {
        report.made_at = machine::now();
        store.report("report.html", &html::page(report))?;
        store.report("report.json", &format!("{:#}\n", report.json()))?;
        let markdown = self.options.markdown.as_deref();
        markdown.map_or(Ok(()), |path| store::write(path, &markdown::document(report)))
    }

    /// What is printed at the end; an error if a measurement failed.
    fn ended(&self, report: &Report<'_>, kept: usize) -> Result<String, BenchError> {
        let failed = |entry: &Entry<'_>| match &entry.state {
            State::Failed(reason) => Some(format!("{}: {reason}", entry.item.id())),
            _ => None,
        };
        let failed: Vec<String> = report.entries.iter().filter_map(failed).collect();
        if !failed.is_empty() {
            let what =
                format!("{}; the report in {} has the rest", failed.join("; "), self.options.out.display());
            return Err(BenchError::Invalid { case: "measurements failed".to_owned(), what });
        }
        if self.options.json {
            return Ok(format!("{:#}\n", report.json()));
        }
        let page = self.options.out.join("report.html");
        let from = if kept == 0 { String::new() } else { format!(" ({kept} kept from an earlier run)") };
        Ok(format!("{}{from}.\nThe report: {}\n", report.tally_of_all(), page.display()))
    }
}

/// What a measurement has failed with that ended by a bug of ours: the others are made all the same.
fn panicked(panic: &(dyn Any + Send)) -> BenchError {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    let what = format!("the measurement panicked: {}", text.unwrap_or("without a word"));
    BenchError::Invalid { case: "a bug of the program".to_owned(), what }
}

/// Puts a file away that is not to be taken, and says so.
fn refused(store: &Store, place: Place<'_>, reason: &str) {
    match store.put_away(place) {
        Ok(name) => eprintln!("testudo lab: {reason}; it is put away as {name}, and measured anew"),
        Err(error) => {
            eprintln!("testudo lab: {reason}; it is measured anew, but cannot be put away: {error}")
        }
    }
}

/// The state of an item with a result whose rows have been read before.
fn measured(record: Box<Record>, method: &Method, is_kept: bool) -> State {
    let read = |rows: &[Value]| {
        let mut reading = (method.read)(rows)?;
        reading.remarks.splice(..0, reading::cores(rows));
        Ok(reading)
    };
    match reading::rows(&record.rows).and_then(read) {
        Ok(reading) => State::Measured { record, reading, is_kept },
        Err(wrong) => State::Failed(format!("its rows cannot be read: {wrong}")),
    }
}

#[cfg(test)]
mod tests;
