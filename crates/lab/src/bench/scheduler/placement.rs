//! `testudo bench scheduler --experiment placement`: live placement beside each engine alone, over load and
//! mix.
//!
//! ```text
//!   each engine alone, with its fallback ─► what it carries at most ─► the best of them is 100 %
//!   10, 25, 50, 75, 100, 150 % of that   ─► each alone, and live placement over all ─► of_best, p99, shares
//! ```
//!
//! The engine `model` has a clock that is set, a model of a device and a core of configured costs: a
//! prediction, which is the same in each run. Its engines are measured before packets come, as a gateway's
//! are. The engines of the machine are measured in turns, and the repetition in the middle counts. A
//! processor in a GPU's place (PoCL) is left out: it would be no speed.

use std::collections::BTreeMap;
use std::io::IsTerminal;
use std::time::Duration;

use serde_json::{Map, Value, json};
use testudo_crypto::{Engine, Suite};
use testudo_gateway::{
    Candidate, Formation, ManualClock, PlacementMode, SchedulerSettings, SystemClock, ThreadingModel,
};

use super::engine::MODEL;
use super::offered::{Carried, Feeds, carry};
use super::priced::{self, Device, Priced};
use super::run::{Plan, SAS};
use super::stay::Time;
use super::{BenchSchedulerOptions, Experiment};
use crate::bench::case::{Size, Suites, Way};
use crate::bench::device::GPU;
use crate::bench::engines::{Available, Engines};
use crate::bench::error::BenchError;
use crate::generator::FRAME_EXTRA_BYTES;
use crate::progress::Progress;
use crate::table::Table;

/// Of the best engine's capacity.
const LOADS: [f64; 6] = [0.1, 0.25, 0.5, 0.75, 1.0, 1.5];
/// A rate beyond any.
pub(super) const FLOOD: f64 = 1e12;
/// Chunks under way at most: an SA's packets that the processor has done wait for those before them that a
/// device has, so that the engines together hold more than the device alone.
const UNDER_WAY: usize = 8;
/// Repetitions of what is measured.
pub(super) const REPEATS: usize = 3;
/// Packets for each of `--chunks`: with fewer, chunks that are under way at the end would be much of all.
pub(super) const PACKETS: usize = 16_384;
/// Who carries less than this of what is offered does not keep up: what is under way at the end is less of
/// all that counts.
pub(super) const SUSTAINED: f64 = 0.95;
/// What an engine is called that the jobs are placed over.
const LIVE: &str = "live";

/// Suites, the direction of packets, and what both are called.
fn mixes() -> [(&'static str, Suites, Option<Way>); 4] {
    let out = Some(Way::Outbound);
    [
        ("AES-GCM", Suites::One(Suite::AES128GCM16), out),
        ("AES-CBC+HMAC-SHA1", Suites::One(Suite::AES128_SHA1), out),
        ("six combinations", Suites::Combinations, None),
        ("AES-GCM and 3DES", Suites::Contrast, out),
    ]
}

/// What packets are offered to.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Setup {
    /// The engine that is alone, or [`LIVE`].
    name: String,
    /// Places of engines in their list.
    engines: Vec<usize>,
    mode: PlacementMode,
}

/// Every engine with the last one behind it, and all of them.
fn setups(names: &[&str]) -> Vec<Setup> {
    let last = names.len().saturating_sub(1);
    let alone = names.iter().enumerate().map(|(at, name)| {
        let engines = if at == last { vec![at] } else { vec![at, last] };
        Setup { name: (*name).to_owned(), engines, mode: PlacementMode::First }
    });
    let engines = (0..names.len()).collect();
    alone.chain([Setup { name: LIVE.to_owned(), engines, mode: PlacementMode::Live }]).collect()
}

/// Where engines and their time come from.
enum Source<'a> {
    /// Of configured cost.
    Priced(&'a BenchSchedulerOptions),
    /// Of this machine: a GPU first, then those of the processor.
    Machine(Vec<&'a Available>),
}

impl Source<'_> {
    fn names(&self) -> Vec<&'static str> {
        match self {
            Self::Priced(_) => vec![MODEL, priced::PROCESSOR],
            Self::Machine(engines) => engines.iter().map(|engine| engine.name()).collect(),
        }
    }

    fn open(&self, setup: &Setup) -> Result<(Vec<Box<dyn Engine>>, Time), String> {
        match self {
            Self::Priced(options) => {
                let clock = ManualClock::default();
                let one = |at: &usize| match at {
                    0 => Device::boxed(&clock, options.geometry()),
                    _ => Priced::core(&clock),
                };
                Ok((setup.engines.iter().map(one).collect(), Time::Model(clock)))
            }
            Self::Machine(engines) => {
                let open = |at: &usize| -> Result<Box<dyn Engine>, String> {
                    engines.get(*at).ok_or("there is no such engine")?.open()
                };
                let mut opened = setup.engines.iter().map(open).collect::<Result<Vec<_>, String>>()?;
                setup.mode.arrange(&mut opened);
                Ok((opened, Time::System(SystemClock::default())))
            }
        }
    }

    fn peer(&self) -> Box<dyn Engine> {
        match self {
            Self::Priced(_) => Priced::free(),
            Self::Machine(_) => Box::new(testudo_crypto::PortableEngine::new()),
        }
    }

    fn is_predicted(&self) -> bool {
        matches!(self, Self::Priced(_))
    }

    fn repeats(&self) -> usize {
        if self.is_predicted() { 1 } else { REPEATS }
    }
}

/// One setup under one load.
#[derive(Debug)]
pub(super) struct Row {
    mix: &'static str,
    plan: Plan,
    mean_bytes: f64,
    setup: String,
    load: f64,
    offered: f64,
    carried: Carried,
    /// What live placement carries, of the best engine alone.
    of_best: Option<f64>,
    is_predicted: bool,
}

fn plan(suites: Suites, way: Option<Way>, size: Size, mode: PlacementMode) -> Plan {
    let latency = Duration::from_millis(4);
    let settings = SchedulerSettings {
        chunk: 1024,
        bins: 16,
        latency,
        tune: false,
        placement: mode,
        ..SchedulerSettings::default()
    };
    let (formation, threads) = (Formation::SuiteAndLength, ThreadingModel::RunToCompletion);
    Plan { suites, way, size, sas: SAS, formation, settings, threads, chunks: 0, under_way: Some(UNDER_WAY) }
}

/// The rows of all mixes and sizes, of the model and of the engines that are there.
pub(super) fn rows(
    options: &BenchSchedulerOptions,
    candidates: Vec<Candidate>,
) -> Result<Vec<Row>, BenchError> {
    const VISIT: Duration = Duration::from_secs(4);
    let is_wanted = |name: &str| options.engines.is_empty() || options.engines.iter().any(|one| one == name);
    let candidates = candidates.into_iter().filter(|candidate| is_wanted(candidate.name)).collect();
    let started = if options.engines.iter().any(|one| one == MODEL) && options.engines.len() == 1 {
        Engines::start(Vec::new(), &[])?
    } else {
        started(candidates)?
    };
    let of_machine: Vec<&Available> =
        started.available.iter().filter(|engine| engine.device().note.is_none()).collect();
    let mut sources = Vec::new();
    if is_wanted(MODEL) {
        sources.push(Source::Priced(options));
    }
    // One engine alone is placed nowhere else.
    if of_machine.len() > 1 {
        sources.push(Source::Machine(by_kind(of_machine)));
    }
    let mut rows = Vec::new();
    let silent = options.json || !std::io::stderr().is_terminal();
    let visits = mixes().len() * options.sizes.len() * sources.len();
    let mut progress = Progress::new(VISIT * u32::try_from(visits).unwrap_or(u32::MAX), silent);
    for source in &sources {
        for (mix, suites, way) in mixes() {
            for size in &options.sizes {
                let case = format!("{mix}, {size}");
                progress.stage(&case, VISIT);
                let of_cell = cell(source, (mix, suites, way, *size), options.chunks.into());
                rows.extend(of_cell.map_err(|what| BenchError::Invalid { case, what })?);
            }
        }
    }
    Ok(rows)
}

/// The engines that start, a GPU among them if there is one.
pub(super) fn started(candidates: Vec<Candidate>) -> Result<Engines, BenchError> {
    let has_gpu = candidates.iter().any(|candidate| candidate.name == GPU && (candidate.open)().is_ok());
    let wanted = has_gpu.then(|| GPU.to_owned());
    Engines::start(candidates, wanted.as_slice())
}

/// A device before the processor's engines, whose last does all suites.
fn by_kind(mut engines: Vec<&Available>) -> Vec<&Available> {
    engines.sort_by_key(|engine| engine.name() != GPU);
    engines
}

type Cell = (&'static str, Suites, Option<Way>, Size);

/// All loads and setups of one mix and size.
fn cell(source: &Source<'_>, (mix, suites, way, size): Cell, chunks: usize) -> Result<Vec<Row>, String> {
    let with = |setup: &Setup| plan(suites, way, size, setup.mode);
    let all = chunks * PACKETS;
    let setups = setups(&source.names());
    let first = plan(suites, way, size, PlacementMode::First);
    let feeds = Feeds::new(&first, all, source.peer())?;
    let run = |setup: &Setup, rate: f64| -> Result<Carried, String> {
        let (engines, time) = source.open(setup)?;
        carry(&with(setup), &feeds, engines, time, rate, suites.all())
    };
    let alone = |setup: &&Setup| setup.mode == PlacementMode::First;
    let mut capacity: f64 = 0.0;
    for setup in setups.iter().filter(alone) {
        capacity = capacity.max(run(setup, FLOOD)?.per_second);
    }
    let mut rows = Vec::new();
    for load in LOADS {
        let offered = capacity * load;
        // In turns: what else the machine does meets all of them.
        let mut repeated: Vec<Vec<Carried>> = setups.iter().map(|_| Vec::new()).collect();
        for _ in 0..source.repeats() {
            for (setup, carried) in setups.iter().zip(&mut repeated) {
                carried.push(run(setup, offered)?);
            }
        }
        let carried: Vec<Carried> = repeated.into_iter().filter_map(middle).collect();
        let of_alone = setups.iter().zip(&carried).filter(|(setup, _)| alone(setup));
        let best = of_alone.map(|(_, one)| one.per_second).fold(0.0, f64::max);
        rows.extend(setups.iter().zip(carried).map(|(setup, carried)| {
            let is_live = setup.mode == PlacementMode::Live;
            let of_best = (is_live && best > 0.0).then(|| carried.per_second / best);
            let (plan, mean_bytes) = (with(setup), feeds.mean_bytes());
            let (setup, is_predicted) = (setup.name.clone(), source.is_predicted());
            Row { mix, plan, mean_bytes, setup, load, offered, carried, of_best, is_predicted }
        }));
    }
    Ok(rows)
}

/// The measurement in the middle.
fn middle(mut carried: Vec<Carried>) -> Option<Carried> {
    carried.sort_by(|one, other| one.per_second.total_cmp(&other.per_second));
    let middle = carried.len() / 2;
    carried.into_iter().nth(middle)
}

impl Row {
    /// Whether more was offered than was carried: what comes waits before the port, longer and longer, and no
    /// placement keeps a bound.
    fn is_overload(&self) -> bool {
        self.carried.per_second < SUSTAINED * self.offered
    }

    fn gbit_s(&self, per_second: f64) -> f64 {
        per_second * (self.mean_bytes + FRAME_EXTRA_BYTES as f64) * 8e-9
    }

    fn json(&self) -> Value {
        let inner_bytes = match self.plan.size {
            Size::Bytes(bytes) => json!(bytes),
            mix => json!(mix.to_string()),
        };
        let kind = if self.is_predicted { "predicted_" } else { "" };
        let figures = [
            ("gbit_s", json!(self.gbit_s(self.carried.per_second))),
            ("packets_per_second", json!(self.carried.per_second)),
            ("p99_us", json!(self.carried.p99_us)),
            ("of_best", json!(self.of_best)),
            ("is_overload", json!(self.is_overload())),
            ("shares", json!(self.carried.shares)),
        ];
        let figures = figures.into_iter().map(|(name, value)| (format!("{kind}{name}"), value));
        let members = [
            ("experiment", json!(Experiment::Placement.name())),
            ("setting", json!(self.mix)),
            ("suite", json!(self.plan.suites.to_string())),
            ("direction", json!(self.plan.way.map_or("both", Way::name))),
            ("inner_bytes", inner_bytes),
            ("engine", json!(self.setup)),
            ("load", json!(self.load)),
            ("bound_us", json!(u64::try_from(self.plan.settings.latency.as_micros()).unwrap_or(u64::MAX))),
            ("offered_packets_per_second", json!(self.offered)),
            ("is_prediction", json!(self.is_predicted)),
        ];
        let members = members.into_iter().map(|(name, value)| (name.to_owned(), value));
        Value::Object(members.chain(figures).collect::<Map<_, _>>())
    }

    fn cells(&self) -> Vec<String> {
        let figure = |value: Option<f64>, digits: usize| {
            value.map_or_else(|| "-".to_owned(), |value| format!("{value:.digits$}"))
        };
        let share = |(name, share): (&&'static str, &f64)| format!("{name} {:.0} %", 100.0 * share);
        let list =
            |shares: &BTreeMap<&'static str, f64>| shares.iter().map(share).collect::<Vec<_>>().join(", ");
        let p99 = figure(self.carried.p99_us, 0);
        vec![
            format!("{}, {}", self.mix, self.plan.size),
            if self.is_predicted { "prediction" } else { "measured" }.to_owned(),
            self.setup.clone(),
            format!("{:.0}", 100.0 * self.load),
            format!("{:.2}", self.offered * 1e-6),
            format!("{:.2}", self.carried.per_second * 1e-6),
            format!("{:.2}", self.gbit_s(self.carried.per_second)),
            figure(self.of_best, 3),
            if self.is_overload() { format!("{p99} (overload)") } else { p99 },
            self.carried.shares.as_ref().map_or_else(|| "-".to_owned(), list),
        ]
    }
}

/// The array that `--json` prints.
pub(super) fn json(rows: &[Row]) -> Value {
    rows.iter().map(Row::json).collect()
}

pub(super) fn table(rows: &[Row]) -> String {
    const HEADS: [&str; 10] = [
        "mix, bytes",
        "kind",
        "engine",
        "load %",
        "offered Mpps",
        "carried Mpps",
        "Gbit/s",
        "of best",
        "p99 µs",
        "shares",
    ];
    let heads = HEADS.map(str::to_owned).to_vec();
    let all = [heads].into_iter().chain(rows.iter().map(Row::cells)).collect();
    let mut text = Table::report(all).to_string();
    text += "\n  load: of what the best engine alone carries, with the last one behind it; live: placed by cost over all.\n  \
             of best: what live placement carries, of the best engine alone under the same load. p99: from when a packet was due at the port until it left;\n  \
             overload: less than 0.95 of what is offered is carried, the rest waits before the port, and no bound can hold. shares: of the jobs, by the engine that did them, where that is counted.\n  \
             prediction: a model of a device and a core of configured cost, on a clock of their own; no cryptography is done.\n";
    text
}

#[cfg(test)]
mod tests {
    use std::sync::OnceLock;

    use clap::Parser;
    use testudo_gateway::Clock;

    use super::*;

    #[derive(Parser)]
    struct Program {
        #[command(flatten)]
        options: BenchSchedulerOptions,
    }

    fn rows_of(words: &str) -> Vec<Row> {
        let fixed = "scheduler --experiment placement --engines model";
        let words = fixed.split(' ').chain(words.split(' '));
        rows(&Program::parse_from(words).options, Vec::new()).unwrap()
    }

    /// The same in each run: one is enough for all tests.
    fn of_the_model() -> &'static [Row] {
        static ROWS: OnceLock<Vec<Row>> = OnceLock::new();
        ROWS.get_or_init(|| rows_of("--sizes 64,1420,random,imix --chunks 1"))
    }

    /// The same with the packets that are usual.
    fn of_the_model_at_length() -> &'static [Row] {
        static ROWS: OnceLock<Vec<Row>> = OnceLock::new();
        ROWS.get_or_init(|| rows_of("--sizes 64,1420,random,imix --chunks 8"))
    }

    /// All setups are offered the same, what live placement carries is told of the best engine alone under
    /// that load, and each job was one engine's.
    #[test]
    fn live_placement_stands_beside_each_engine_alone_under_each_load_and_mix() {
        let rows = of_the_model();
        assert_eq!(rows.len(), 4 * 4 * LOADS.len() * 3);
        println!("{}", table(rows));
        for of_load in rows.chunks(3) {
            let [alone @ .., live] = of_load else { panic!("no rows of a load") };
            assert_eq!([MODEL, priced::PROCESSOR, LIVE], [0, 1, 2].map(|at| of_load[at].setup.as_str()));
            let best = alone.iter().map(|row| row.carried.per_second).fold(0.0, f64::max);
            assert_eq!(live.of_best, Some(live.carried.per_second / best), "{live:?}");
            assert!(alone.iter().all(|row| row.of_best.is_none() && row.offered == live.offered));
        }
        for row in rows {
            assert!(row.is_predicted && row.carried.per_second > 0.0 && row.carried.p99_us > Some(0.0));
            let sum = row.carried.shares.as_ref().map(|shares| shares.values().sum::<f64>());
            assert!(sum.is_some_and(|sum| (sum - 1.0).abs() < 1e-9), "{row:?}");
        }
    }

    /// What live placement carries of 16,384 packets on average, of the best engine alone, where more than
    /// that counts as that. Three quarters of them count, and either run may have a chunk more under way as
    /// the last packet comes than when the first one counted, or a chunk less; those are as often more as
    /// less. In a single case one chunk at the wrong engine is a quarter of all.
    const MEAN_OF_BEST_AT_ONCE: f64 = 0.95;

    /// The start: costs were measured before packets came, so that these do not pay for it.
    #[test]
    fn live_placement_loses_little_on_average_from_the_first_packets_on() {
        let live = of_the_model().iter().filter(|row| row.setup == LIVE);
        let all: Vec<f64> = live.map(|row| row.of_best.unwrap().min(1.0)).collect();
        let mean = all.iter().sum::<f64>() / all.len() as f64;
        assert!(mean >= MEAN_OF_BEST_AT_ONCE, "{mean:.3} of the best engine on average");
    }

    /// The goals of placement, of the model, with the packets that are usual.
    #[test]
    fn live_placement_loses_little_to_the_best_engine_and_beats_it_where_packets_are_mixed() {
        for row in of_the_model_at_length().iter().filter(|row| row.setup == LIVE) {
            let case = format!("{}, {}, {:.0} %", row.mix, row.plan.size, 100.0 * row.load);
            let of_best = row.of_best.unwrap();
            assert!(of_best >= 0.95, "{case}: {of_best:.3} of the best engine");
            let is_mixed = ["six combinations", "AES-GCM and 3DES"].contains(&row.mix)
                && !matches!(row.plan.size, Size::Bytes(_));
            let is_beyond = row.load > 1.0;
            assert!(!(is_mixed && is_beyond) || of_best > 1.0, "{case}: {of_best:.3} of the best engine");
            let bound_us = row.plan.settings.latency.as_secs_f64() * 1e6;
            let is_sustained = row.load <= 0.75;
            assert!(!is_sustained || !row.is_overload(), "{case}: live placement keeps up");
            let is_in_time = row.carried.p99_us <= Some(bound_us);
            assert!(!is_sustained || is_in_time, "{case}: {:?} us", row.carried.p99_us);
        }
    }

    /// A latency beyond what an engine can do says nothing of placement.
    #[test]
    fn what_is_offered_beyond_what_is_carried_is_said_to_be_overload() {
        let rows = of_the_model_at_length();
        for row in rows.iter().filter(|row| row.is_overload()) {
            assert!(row.cells().iter().any(|cell| cell.ends_with(" (overload)")), "{row:?}");
            assert_eq!(row.json()["predicted_is_overload"], json!(true));
        }
        // Half as much again as any engine alone carries is too much for each of them.
        let beyond: Vec<&Row> = rows.iter().filter(|row| row.load > 1.0 && row.setup != LIVE).collect();
        assert!(!beyond.is_empty() && beyond.iter().all(|row| row.is_overload()));
        let mut little = rows.iter().filter(|row| row.load <= 0.1 && row.setup == LIVE);
        assert!(little.all(|row| !row.cells().concat().contains("overload")));
    }

    #[test]
    fn what_a_model_carries_is_a_prediction_and_the_same_in_each_run() {
        let words = "--sizes 1420 --chunks 1";
        let [one, other] = [rows_of(words), rows_of(words)].map(|rows| json(&rows));
        assert_eq!(one, other);
        for row in one.as_array().unwrap() {
            assert_eq!((&row["experiment"], &row["is_prediction"]), (&"placement".into(), &true.into()));
            assert!(row["gbit_s"].is_null() && row["p99_us"].is_null() && row["of_best"].is_null(), "{row}");
            assert!(row["predicted_gbit_s"].as_f64() > Some(0.0), "{row}");
            assert_eq!(row["bound_us"], 4000);
            assert_eq!(row["predicted_of_best"].is_null(), row["engine"] != LIVE, "{row}");
        }
    }

    /// Engines of the processor are placed, too, and measured.
    #[test]
    fn engines_of_the_machine_carry_packets_alone_and_placed() {
        let open = || -> Result<Box<dyn Engine>, testudo_crypto::EngineError> {
            Ok(Box::new(testudo_crypto::PortableEngine::new()))
        };
        let engines = Engines::start(vec![Candidate { name: "other", open: Box::new(open) }], &[]).unwrap();
        let source = Source::Machine(by_kind(engines.available.iter().collect()));
        assert_eq!((source.names(), source.is_predicted()), (vec!["other", "portable"], false));
        let setups = setups(&source.names());
        assert_eq!(setups.iter().map(|one| one.engines.len()).collect::<Vec<_>>(), [2, 1, 2]);
        for (_, suites, way) in mixes() {
            for setup in &setups {
                let plan = plan(suites, way, Size::Bytes(64), setup.mode);
                let feeds = Feeds::new(&plan, 2048, source.peer()).unwrap();
                let (engines, time) = source.open(setup).unwrap();
                let carried = carry(&plan, &feeds, engines, time, FLOOD, suites.all()).unwrap();
                assert!(carried.per_second > 0.0 && carried.p99_us > Some(0.0), "{setup:?}: {carried:?}");
                let sum = carried.shares.as_ref().map(|shares| shares.values().sum::<f64>());
                // Nobody counts which of two has done what the first of them may have been unable to.
                let is_counted = setup.mode == PlacementMode::Live || setup.engines.len() == 1;
                assert_eq!(sum.is_some(), is_counted, "{setup:?}: {carried:?}");
                assert!(sum.is_none_or(|sum| (sum - 1.0).abs() < 1e-9), "{carried:?}");
            }
        }
    }

    #[test]
    fn the_clock_of_a_model_stands_still_unless_it_is_moved() {
        let clock = ManualClock::default();
        let mut core = Priced::core(&clock);
        assert_eq!(core.submit(&mut []), 0);
        assert_eq!(clock.now(), testudo_ipsec::Moment::default());
    }
}
