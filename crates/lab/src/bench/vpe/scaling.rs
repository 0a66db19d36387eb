//! Throughput over workers, each division of the work beside independent gateways on the same cores.
//!
//! "Linear" is what as many gateways reach that have nothing in common, each with one SA of ESP: measured in
//! the same run, slice by slice in turns. The rings have a thread more than they have workers; they are
//! compared with a gateway on each core that they use.

use std::time::Duration;

use serde_json::json;

use super::fleet::{Division, Fleet, Plan};
use super::framework::Framework;
use super::handing_over::HandingOver;
use super::report::{Outcome, Row, Threading, line, millions, range_millions};
use super::shared_lines::{Costs, FITTED, Handover, PREDICTED};
use super::threads::{self, Share};
use super::{BenchVpeOptions, Experiment, Setup};
use crate::bench::case::{Carrier, Case, Suites, Way};
use crate::bench::chart::{self, Extent, Panel};
use crate::bench::error::{BenchError, Wrong};
use crate::bench::floor::Recorder;
use crate::bench::load;
use crate::bench::subject::Subject;
use crate::statistics::Spread;
use crate::table::Table;
use crate::traffic::median;
use testudo_port_memory::LoopPort;

/// Lengths of inner packets, in bytes.
const SIZES: [usize; 2] = [64, 1420];
/// What is compared with independent gateways, as the paper does and beside it.
const DIVISIONS: [Division; 4] = [Division::Vpe, Division::Shared, Division::PerWorker, Division::Rings];
/// Slices of a measurement, at least.
const SLICES: u32 = 4;

/// A row of the table: a division at a size, one way, with so many workers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Key {
    way: Way,
    inner_bytes: usize,
    workers: usize,
    division: Division,
}

/// One measurement: packets per second of the division and of independent gateways, and their ratio.
#[derive(Debug, Clone, Copy)]
struct Taken {
    rate: f64,
    linear: f64,
    of_linear: f64,
}

/// All measurements of a row, or why there are none.
struct Cell {
    key: Key,
    taken: Result<Vec<Taken>, Wrong>,
}

impl Cell {
    fn spread(&self, figure: fn(&Taken) -> f64) -> Option<Spread> {
        self.taken.as_ref().ok().map(|taken| Spread::of(taken.iter().map(figure)))
    }

    fn rate(&self) -> Option<Spread> {
        self.spread(|taken| taken.rate)
    }

    fn of_linear(&self) -> Option<Spread> {
        self.spread(|taken| taken.of_linear)
    }
}

/// The numbers of workers that are measured: one is always among them.
fn numbers(setup: &Setup<'_>) -> Vec<usize> {
    let mut numbers: Vec<usize> = setup.options.workers.iter().map(|&n| usize::from(n)).chain([1]).collect();
    numbers.sort_unstable();
    numbers.dedup();
    numbers
}

/// [`DIVISIONS`], and the engine `cores` where that is asked for.
fn divisions(options: &BenchVpeOptions) -> Vec<Division> {
    DIVISIONS.into_iter().chain(options.cores.then_some(Division::Cores)).collect()
}

/// How many rows there are.
pub(super) fn rows(options: &BenchVpeOptions) -> u32 {
    let rows = 2 * SIZES.len() * divisions(options).len() * options.workers.len();
    u32::try_from(rows).unwrap_or(u32::MAX)
}

fn keys(setup: &Setup<'_>) -> Vec<Key> {
    let mut keys = Vec::new();
    for way in [Way::Outbound, Way::Inbound] {
        for inner_bytes in SIZES {
            for division in divisions(setup.options) {
                let of = numbers(setup).into_iter();
                keys.extend(of.map(|workers| Key { way, inner_bytes, workers, division }));
            }
        }
    }
    keys
}

/// Packets per second of all workers. What shares processors is measured in time of day, what has one each in
/// time of the processor: other programs take the same from all.
fn rate(shares: &[Share], own_processors: bool) -> f64 {
    shares.iter().map(|share| share.rate(own_processors)).sum()
}

/// Whether threads have a processor each, and do nothing for one another: what other threads do for a worker
/// is not in its time.
fn have_own(key: Key, processors: &[usize]) -> bool {
    !is_crowded(key, processors) && !key.division.has_one_worker()
}

/// One measurement of a row: both fleets in turns. The outer error is one of the figures, the inner one says
/// why a gateway does not exist.
fn take(setup: &Setup<'_>, key: Key, processors: &[usize]) -> Result<Result<Taken, Wrong>, Wrong> {
    let Key { way, inner_bytes, workers, division } = key;
    let threads = division.threads(workers);
    let plan = |division, workers| Plan {
        division,
        workers,
        way,
        inner_bytes,
        peer_window: setup.options.peer_window,
    };
    // Rings: as many gateways as there are cores for its threads.
    let linear = if division == Division::Rings { threads.min(processors.len()) } else { workers };
    let own = have_own(key, processors);
    let fleet = match Fleet::new(setup, plan(division, workers), processors) {
        Ok(fleet) => fleet,
        Err(reason) => return Ok(Err(reason)),
    };
    let mut fleets = [fleet, Fleet::new(setup, plan(Division::Independent, linear), processors)?];
    fleets.iter_mut().try_for_each(Fleet::warm_up)?;
    let duration = setup.options.duration();
    let (mut rates, mut spent) = ([Vec::new(), Vec::new()], [Duration::ZERO; 2]);
    for first in 0.. {
        for turn in 0..2 {
            let at = (first + turn) % 2;
            let shares = fleets[at].slice(duration / SLICES)?;
            spent[at] += shares.iter().map(|share| share.elapsed).max().unwrap_or_default();
            rates[at].push(rate(&shares, own));
        }
        if rates[0].len() >= SLICES as usize && spent.iter().all(|spent| *spent >= duration) {
            break;
        }
    }
    fleets.into_iter().try_for_each(|fleet| fleet.check(setup.engines))?;
    let ratios: Vec<f64> = rates[0].iter().zip(&rates[1]).map(|(rate, linear)| rate / linear).collect();
    let of = |values: &[f64]| median(values).unwrap_or_default();
    Ok(Ok(Taken { rate: of(&rates[0]), linear: of(&rates[1]), of_linear: of(&ratios) }))
}

fn measure(setup: &mut Setup<'_>, processors: &[usize]) -> Result<Vec<Cell>, BenchError> {
    let mut cells: Vec<Cell> =
        keys(setup).into_iter().map(|key| Cell { key, taken: Ok(Vec::new()) }).collect();
    let repeat = setup.options.repeat();
    for turn in 1..=repeat {
        for cell in &mut cells {
            let Key { way, inner_bytes, workers, division } = cell.key;
            let case =
                format!("scaling, {}, {inner_bytes} bytes, {workers} workers, {division:?}", way.name());
            let Ok(taken) = &mut cell.taken else { continue };
            setup.progress.stage(&format!("{turn} of {repeat}: {case}"), 2 * setup.options.duration());
            match take(setup, cell.key, processors).map_err(|what| BenchError::Invalid { case, what })? {
                Ok(one) => taken.push(one),
                Err(reason) => cell.taken = Err(reason),
            }
        }
    }
    Ok(cells)
}

/// What a packet costs one worker, and of it the cryptography; in nanoseconds.
struct Alone {
    way: Way,
    inner_bytes: usize,
    packet_ns: f64,
    cryptography_ns: f64,
}

/// Share of a packet's cycles that are the cryptography's.
fn cryptography(setup: &Setup<'_>, way: Way, inner_bytes: usize, packet_ns: f64) -> Result<f64, Wrong> {
    let suites = Suites::One(setup.options.suite);
    let case = Case { suites, ..setup.case(Carrier::Esp, way, inner_bytes) };
    let mut engine = setup.engines.available[setup.engine].open()?;
    let originals = load::packets(case.suites, case.size, case.sas).map_err(|e| e.to_string())?;
    let count = originals.len();
    let feed = match way {
        Way::Outbound => originals,
        Way::Inbound => {
            let judge = setup.engines.judge(&case).open()?;
            crate::bench::judge::seal(&case, judge, &originals, count)?
        }
    };
    let (recorder, recorded) = Recorder::beside(engine.as_ref());
    let port = LoopPort::new("load", feed).with_limit(count as u64);
    Subject::new(&case, way, Box::new(recorder), port)?.exhaust()?;
    let (start, begun) = (std::time::Instant::now(), testudo_packet::ticks());
    let floor = recorded.floor(engine.as_mut(), setup.options.duration() / 2)?;
    let ticks = testudo_packet::ticks().wrapping_sub(begun) as f64;
    let ns = floor.cycles_per_packet * start.elapsed().as_secs_f64() * 1e9 / ticks;
    Ok(ns.min(packet_ns))
}

/// The model's input, of this run.
fn alone(setup: &Setup<'_>, cells: &[Cell]) -> Result<Vec<Alone>, BenchError> {
    let mut found = Vec::new();
    for way in [Way::Outbound, Way::Inbound] {
        for inner_bytes in SIZES {
            let key = Key { way, inner_bytes, workers: 1, division: Division::PerWorker };
            let linear =
                cells.iter().find(|cell| cell.key == key).and_then(|cell| cell.spread(|taken| taken.linear));
            let packet_ns = 1e9 / linear.map_or(f64::INFINITY, |linear| linear.median);
            let case = format!("scaling, cryptography alone, {}, {inner_bytes} bytes", way.name());
            let part = cryptography(setup, way, inner_bytes, packet_ns);
            let cryptography_ns = part.map_err(|what| BenchError::Invalid { case, what })?;
            found.push(Alone { way, inner_bytes, packet_ns, cryptography_ns });
        }
    }
    Ok(found)
}

/// The model, of this run; `None` where there is one core.
struct Model {
    /// What it is asked about.
    divisions: Vec<Division>,
    handover: Handover,
    alone: Vec<Alone>,
    /// What [`FITTED`] workers were measured to reach, of linear.
    measured: Vec<(Key, f64)>,
    peer_window: u32,
}

impl Model {
    /// `None` where there is one core, or the other one did not answer.
    fn of(setup: &Setup<'_>, cells: &[Cell], processors: &[usize]) -> Result<Option<Self>, BenchError> {
        let Some(handover) = Handover::measure(processors) else { return Ok(None) };
        let fits = cells.iter().filter(|cell| {
            let has_all = !cell.key.division.has_one_worker() && !is_crowded(cell.key, processors);
            cell.key.workers == FITTED && has_all
        });
        let measured = fits.filter_map(|cell| Some((cell.key, cell.of_linear()?.median))).collect();
        let (divisions, peer_window) = (divisions(setup.options), setup.options.peer_window);
        Ok(Some(Self { divisions, handover, alone: alone(setup, cells)?, measured, peer_window }))
    }

    /// What the model starts from for a division, and whether it is fitted.
    fn costs(&self, division: Division, way: Way, inner_bytes: usize) -> Option<(Costs, bool)> {
        let alone = self.alone.iter().find(|alone| (alone.way, alone.inner_bytes) == (way, inner_bytes))?;
        let &Alone { packet_ns, cryptography_ns, .. } = alone;
        let (handover_ns, peer_window) = (self.handover.ns, self.peer_window);
        let costs = Costs { handover_ns, packet_ns, cryptography_ns, extra_ns: 0.0, peer_window };
        let key = Key { way, inner_bytes, workers: FITTED, division };
        let measured = self.measured.iter().find(|(measured, _)| *measured == key);
        Some(match measured {
            Some((_, measured)) => (costs.fitted(division, way, *measured), true),
            None => (costs, false),
        })
    }

    fn of_linear(&self, division: Division, way: Way, inner_bytes: usize, workers: usize) -> Option<f64> {
        let (costs, _) = self.costs(division, way, inner_bytes)?;
        Some(costs.of_linear(division, way, workers))
    }

    /// What it is fitted to say of [`FITTED`] workers, and the extra that this takes, in nanoseconds.
    fn fitted(&self, division: Division, way: Way, inner_bytes: usize) -> Option<(f64, f64)> {
        let (costs, is_fitted) = self.costs(division, way, inner_bytes)?;
        is_fitted.then(|| (costs.of_linear(division, way, FITTED), costs.extra_ns))
    }
}

/// Throughput over the number of workers, and what is to be expected of more.
pub(super) fn scaling(setup: &mut Setup<'_>) -> Result<Outcome, BenchError> {
    let processors = threads::processors();
    let cells = measure(setup, &processors)?;
    let model = Model::of(setup, &cells, &processors)?;
    let cost = setup.options.cores.then(|| Cost::measure(setup, &processors)).transpose()?;
    let mut rows: Vec<Row> =
        cells.iter().map(|cell| row(setup, cell, &cells, model.as_ref(), &processors)).collect();
    let of_cores = rows.iter_mut().filter(|row| row.threading == Threading::Cores && row.workers > 1);
    for (row, cost) in of_cores.zip(cost.iter().cycle()) {
        let of_packet = [cost.framework.in_place, cost.framework.late].map(|cycles| json!(cycles));
        row.more.extend(["in_place_cycles_per_packet", "late_cycles_per_packet"].into_iter().zip(of_packet));
        let Some(cost) = &cost.handing_over else { continue };
        let of_job = [cost.direct, cost.handed_over].map(|cycles| json!(cycles));
        row.more.extend(["direct_cycles_per_job", "handed_over_cycles_per_job"].into_iter().zip(of_job));
    }
    rows.extend(model.iter().flat_map(predicted_rows));
    let mut text = text(setup, &cells, model.as_ref(), &processors);
    text.extend(cost.map(Cost::in_words));
    let picture = Some(draw(setup, &cells, model.as_ref()));
    Ok(Outcome { rows, text, picture })
}

/// What it costs a worker that others do its cryptography.
struct Cost {
    framework: Framework,
    /// `None` where there is one core.
    handing_over: Option<HandingOver>,
}

impl Cost {
    fn measure(setup: &Setup<'_>, processors: &[usize]) -> Result<Self, BenchError> {
        let duration = setup.options.duration();
        let invalid = |of: &str| {
            let case = format!("scaling, {of}");
            move |what| BenchError::Invalid { case, what }
        };
        let handing_over = HandingOver::measure(setup, processors, duration);
        let handing_over = handing_over.map_err(invalid("handing jobs over"))?;
        let suites = Suites::One(setup.options.suite);
        let case = Case { suites, ..setup.case(Carrier::Esp, Way::Outbound, SIZES[0]) };
        let framework = Framework::measure(case, processors, duration);
        let framework = framework.map_err(invalid("a gateway without cryptography"))?;
        Ok(Self { framework, handing_over })
    }

    /// What there is to say of the engine `cores`.
    fn in_words(self) -> String {
        let Framework { in_place, late } = self.framework;
        let of_job = match self.handing_over {
            Some(HandingOver { direct, handed_over }) => format!(
                "A job of its ring, without a gateway and its cryptography: {handed_over:.0} cycles of the worker's by submit and poll,\n\
                 {direct:.0} by a direct call.\n"
            ),
            None => "What it costs to hand a job over was not measured; it takes two cores.\n".to_owned(),
        };
        format!(
            "Engine cores: one worker, which has its share in the cryptography; the other threads do nothing else.\n\
             A packet of a gateway that goes out, without its cryptography: {in_place:.0} cycles of the worker's where the engine ends jobs\n\
             inside submit, {late:.0} where it gives them back by poll: {:.0} are the dispatcher's tickets, order of the SA, rings and release.\n\
             {of_job}",
            late - in_place
        )
    }
}

fn threading(division: Division) -> Threading {
    match division {
        Division::Independent | Division::Vpe => Threading::RunToCompletion,
        Division::Shared => Threading::SharedSa,
        Division::PerWorker => Threading::SaPerWorker,
        Division::Rings => Threading::ParallelEsp,
        Division::Cores => Threading::Cores,
    }
}

fn words(division: Division) -> &'static str {
    match division {
        Division::Independent => "independent gateways",
        Division::Vpe => "VPE, one SA",
        Division::Shared => "ESP, one SA shared",
        Division::PerWorker => "ESP, an SA for each worker",
        Division::Rings => "ESP, parallel over rings",
        Division::Cores => "ESP, one SA, engine cores",
    }
}

/// The rate as a multiple of that of one worker of the same division.
fn of_one(cell: &Cell, cells: &[Cell]) -> Option<f64> {
    let one = cells.iter().find(|other| other.key == Key { workers: 1, ..cell.key })?;
    Some(cell.rate()?.median / one.rate()?.median)
}

/// Whether threads share processors.
fn is_crowded(key: Key, processors: &[usize]) -> bool {
    key.division.threads(key.workers) > processors.len()
}

fn row(setup: &Setup<'_>, cell: &Cell, cells: &[Cell], model: Option<&Model>, processors: &[usize]) -> Row {
    let Key { way, inner_bytes, workers, division } = cell.key;
    let mut row = Row::of_one(Experiment::Scaling, division.carrier(), inner_bytes);
    (row.threading, row.workers) = (threading(division), workers);
    row.packets_per_second = cell.rate();
    let of_linear = cell.of_linear();
    let linear = cell.spread(|taken| taken.linear).map(|linear| linear.median);
    let fitted = model.filter(|_| workers == FITTED);
    let fitted = fitted.and_then(|model| model.fitted(division, way, inner_bytes));
    // What it was fitted to is no prediction.
    let predicts = model.filter(|_| fitted.is_none());
    let predicted = predicts.and_then(|model| model.of_linear(division, way, inner_bytes, workers));
    row.more = vec![
        ("of_linear", json!(of_linear.map(|ratio| ratio.median))),
        ("of_linear_lowest", json!(of_linear.map(|ratio| ratio.lowest))),
        ("of_linear_highest", json!(of_linear.map(|ratio| ratio.highest))),
        ("linear_packets_per_second", json!(linear)),
        ("of_one_worker", json!(of_one(cell, cells))),
        ("predicted_of_linear", json!(predicted)),
        ("fitted_of_linear", json!(fitted.map(|(of_linear, _)| of_linear))),
        ("fitted_extra_ns", json!(fitted.map(|(_, extra_ns)| extra_ns))),
        ("direction", json!(way.name())),
        ("threads", json!(division.threads(workers))),
        ("cores_available", json!(processors.len())),
        ("cores_shared", json!(is_crowded(cell.key, processors))),
        ("peer_window", json!(setup.options.peer_window)),
        ("suite", json!(setup.options.suite.to_string())),
        ("engine", json!(setup.engine_name())),
    ];
    row.more.extend(match &cell.taken {
        Ok(_) => {
            let worker = threads::placed(division.threads(workers), processors);
            let time = threads::time(have_own(cell.key, processors));
            vec![("cores", json!({ "worker": worker })), ("time", json!(time))]
        }
        Err(reason) => vec![("not_measured", json!(reason))],
    });
    row
}

/// What was not measured, and says so: predictions alone.
fn predicted_rows(model: &Model) -> Vec<Row> {
    let mut rows = Vec::new();
    for alone in &model.alone {
        for &division in &model.divisions {
            for workers in PREDICTED {
                let mut row = Row::of_one(Experiment::Scaling, division.carrier(), alone.inner_bytes);
                (row.threading, row.workers) = (threading(division), workers);
                let predicted = model.of_linear(division, alone.way, alone.inner_bytes, workers);
                row.more = vec![
                    ("predicted_of_linear", json!(predicted)),
                    ("direction", json!(alone.way.name())),
                    ("not_measured", json!("a prediction, from what cache lines and two workers cost")),
                ];
                rows.push(row);
            }
        }
    }
    rows
}

fn text(setup: &Setup<'_>, cells: &[Cell], model: Option<&Model>, processors: &[usize]) -> String {
    let mut table = Table::new(&[
        "direction",
        "inner bytes",
        "division",
        "workers",
        "Mpackets/s",
        "lowest-highest",
        "of linear",
        "of one worker",
        "",
    ]);
    let figure = |value: Option<f64>| value.map_or("-".to_owned(), |value| format!("{value:.3}"));
    for cell in cells {
        let (rate, of_linear) = (cell.rate(), cell.of_linear());
        let remark = match &cell.taken {
            Err(reason) => format!("not measured: {reason}"),
            Ok(_) if is_crowded(cell.key, processors) => "cores shared".to_owned(),
            Ok(_) => String::new(),
        };
        table.row(vec![
            cell.key.way.name().to_owned(),
            cell.key.inner_bytes.to_string(),
            words(cell.key.division).to_owned(),
            cell.key.workers.to_string(),
            rate.map_or("-".to_owned(), |rate| millions(rate.median)),
            rate.map_or("-".to_owned(), |rate| range_millions(&rate)),
            figure(of_linear.map(|ratio| ratio.median)),
            figure(of_one(cell, cells)),
            remark,
        ]);
    }
    format!(
        "scaling: throughput over workers on {} cores, {} ({}), peer_window {}; medians of {} times {} ms in turns\n{table}\
         Of linear: as many independent gateways with an SA of ESP each on the same cores, in the same run (median of ratios).\n\
         Rings have a thread more than workers; a gateway on each core that they use is linear for them.\n\
         {}{}",
        processors.len(),
        setup.options.suite,
        setup.engine_name(),
        setup.options.peer_window,
        setup.options.repeat(),
        setup.options.duration,
        threads::TIMES,
        prediction(model),
    )
}

/// The model's table.
fn prediction(model: Option<&Model>) -> String {
    let Some(model) = model else {
        return "No prediction for more workers: what a line costs that two cores write was not measured; it takes two cores.\n"
            .to_owned();
    };
    let [fewest, .., most] = PREDICTED;
    let mut heads = vec!["direction".to_owned(), "inner bytes".to_owned(), "division".to_owned()];
    heads.extend([format!("fitted at {FITTED}"), "extra ns".to_owned()]);
    heads.extend(PREDICTED.map(|workers| format!("predicted at {workers}")));
    let mut table = Table::new(&heads.iter().map(String::as_str).collect::<Vec<_>>());
    for alone in &model.alone {
        for &division in &model.divisions {
            let mut row =
                vec![alone.way.name().to_owned(), alone.inner_bytes.to_string(), words(division).to_owned()];
            let fitted = model.fitted(division, alone.way, alone.inner_bytes);
            row.extend(fitted.map_or(["-".to_owned(), "-".to_owned()], |(of_linear, extra_ns)| {
                [format!("{of_linear:.2}"), format!("{extra_ns:.0}")]
            }));
            row.extend(PREDICTED.map(|workers| {
                let share = model.of_linear(division, alone.way, alone.inner_bytes, workers);
                share.map_or("-".to_owned(), |share| format!("{share:.2}"))
            }));
            table.row(row);
        }
    }
    format!(
        "Prediction, not measured: of linear with {fewest} to {most} workers, by a model, from {:.0} ns for an atomic operation on a line that another one wrote\n\
         ({}), from what a packet costs one worker, and from what {FITTED} workers were measured to\n\
         cost beyond that (extra: for each block of numbers where one SA of ESP seals, else for each packet), all of this run\n{table}",
        model.handover.ns,
        model.handover.in_words(),
    )
}

fn draw(setup: &Setup<'_>, cells: &[Cell], model: Option<&Model>) -> String {
    let panel = |way: Way, inner_bytes: usize| {
        let of = |(colour, division): (usize, Division)| {
            let own = cells.iter().filter(|cell| {
                (cell.key.way, cell.key.inner_bytes, cell.key.division) == (way, inner_bytes, division)
            });
            let points = own.filter_map(|cell| Some((cell.key.workers, cell.of_linear()?)));
            let measured = line(words(division).to_owned(), colour, 0, points.collect());
            let share = |workers: usize| {
                let share = model?.of_linear(division, way, inner_bytes, workers)?;
                Some((workers, Spread::of([share])))
            };
            let points: Vec<_> = PREDICTED.into_iter().filter_map(share).collect();
            [measured, line(format!("{}, predicted", words(division)), colour, 1, points)]
        };
        let lines = divisions(setup.options).into_iter().enumerate().flat_map(of);
        Panel {
            title: format!("Testudo: of linear, {}, {inner_bytes} bytes", way.name()),
            subtitle: format!(
                "{}, {}; medians of {}; dashed: predicted by a model, not measured",
                setup.options.suite,
                setup.engine_name(),
                setup.options.repeat()
            ),
            across: "workers".to_owned(),
            up: "share of as many independent gateways".to_owned(),
            extent: Extent::FirstPoint,
            lines: lines.filter(|line| !line.points.is_empty()).collect(),
        }
    };
    let panels: Vec<Panel> = [Way::Outbound, Way::Inbound]
        .into_iter()
        .flat_map(|way| SIZES.map(|bytes| panel(way, bytes)))
        .collect();
    chart::svg(&panels)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The cells of a line of a table, between which are two blanks at least.
    fn cells(line: &str) -> Vec<&str> {
        line.split("  ").map(str::trim).filter(|cell| !cell.is_empty()).collect()
    }

    /// They are no figures of the table of what was measured, and no rates in JSON.
    #[test]
    fn what_is_predicted_of_4_to_64_workers_has_columns_and_members_of_its_own() {
        let (way, inner_bytes, division) = (Way::Outbound, 64, Division::Shared);
        let key = Key { way, inner_bytes, workers: FITTED, division };
        let model = Model {
            divisions: vec![division],
            handover: Handover { ns: 36.0, between: [0, 1], is_apart: true },
            alone: vec![Alone { way, inner_bytes, packet_ns: 71.0, cryptography_ns: 20.0 }],
            measured: vec![(key, 0.65)],
            peer_window: 32,
        };
        let rows: Vec<_> = predicted_rows(&model).iter().map(Row::json).collect();
        let predicted = rows.iter().map(|row| row["predicted_of_linear"].as_f64().unwrap());
        let predicted: Vec<String> = predicted.map(|of_linear| format!("{of_linear:.2}")).collect();
        for (row, workers) in rows.iter().zip([4, 8, 16, 32, 64]) {
            assert_eq!((&row["experiment"], &row["workers"]), (&json!("scaling"), &json!(workers)));
            assert!(row["not_measured"].as_str().unwrap().starts_with("a prediction"), "{row}");
            for name in ["packets_per_second", "of_linear"] {
                assert!(row.get(name).is_none(), "{name}: {row}");
            }
        }
        let text = prediction(Some(&model));
        assert!(text.starts_with("Prediction, not measured: of linear with 4 to 64 workers"), "{text}");
        let mut lines = text.lines().skip_while(|line| !line.starts_with("direction"));
        let heads = [4, 8, 16, 32, 64].map(|workers| format!("predicted at {workers}"));
        assert_eq!(cells(lines.next().unwrap())[5..], heads, "{text}");
        let row = cells(lines.next().unwrap());
        assert_eq!(row[..4], ["outbound", "64", "ESP, one SA shared", "0.65"], "{text}");
        assert_eq!((row[5..].len(), rows.len()), (5, 5), "{text}");
        assert_eq!(row[5..], predicted, "{text}");
    }
}
