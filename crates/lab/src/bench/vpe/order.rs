//! One SA of ESP from a peer, spread over workers: what its order costs, and how much is out of order without
//! it.
//!
//! Two gateways take turns on the same packets ([`super::line`]): one releases them in the order of their
//! numbers through a ring (`spread_inbound = "in-order"`), the other as they were opened (`"unordered"`).
//! First at full load, which says what the ring costs; then both at one pace, [`LOAD`] of what the slower
//! one reaches, which says how long packets take from when they come until the port has them, and how many
//! the port has out of order (RFC 4737 3.3, the extent by 4.2).

use std::time::Duration;

use serde_json::json;

use super::ordered::{Gateway, Lot, Release, Seen};
use super::report::{Outcome, Row, Threading, line, millions, range_millions};
use super::threads::{self, Share};
use super::{BenchVpeOptions, Experiment, Setup};
use crate::bench::case::Carrier;
use crate::bench::chart::{self, Extent, Panel};
use crate::bench::error::{BenchError, Wrong};
use crate::statistics::Spread;
use crate::table::{Table, grouped};
use crate::traffic::median;

/// Lengths of inner packets, in bytes.
const SIZES: [usize; 2] = [64, 1420];
/// The pace, of what the slower gateway reaches at full load.
const LOAD: f64 = 0.5;
/// Slices of a measurement, at least.
const SLICES: u32 = 4;

/// One measurement of one gateway.
struct Taken {
    /// Packets per second at full load, and as a multiple of the other's, slice by slice.
    rate: f64,
    of_other: f64,
    /// Packets per second that came, when the rest was observed.
    offered: f64,
    seen: Seen,
}

/// All measurements of one gateway.
struct Cell {
    inner_bytes: usize,
    release: Release,
    taken: Vec<Taken>,
}

impl Cell {
    fn spread(&self, figure: impl FnMut(&Taken) -> f64) -> Spread {
        Spread::of(self.taken.iter().map(figure))
    }

    fn sum(&self, count: fn(&Seen) -> u64) -> u64 {
        self.taken.iter().map(|taken| count(&taken.seen)).sum()
    }

    fn longest_extent(&self) -> u64 {
        self.taken.iter().map(|taken| taken.seen.longest_extent).max().unwrap_or(0)
    }

    /// Of all that arrived, in percent.
    fn reordered_percent(&self) -> f64 {
        100.0 * self.sum(|seen| seen.reordered) as f64 / self.sum(|seen| seen.arrived).max(1) as f64
    }
}

/// Workers that share the SA: the most that are asked for, and two at least.
fn workers(options: &BenchVpeOptions) -> usize {
    options.workers.iter().map(|&count| usize::from(count)).max().unwrap_or(1).max(2)
}

/// About how long it takes: at full load and at a pace.
pub(super) fn expected(options: &BenchVpeOptions) -> Duration {
    let pairs = u32::try_from(2 * SIZES.len()).unwrap_or(u32::MAX).saturating_mul(options.repeat());
    (options.duration() + Duration::from_millis(50)).saturating_mul(2).saturating_mul(pairs)
}

/// Whether each worker has a processor.
fn have_own(workers: usize, processors: &[usize]) -> bool {
    workers <= processors.len()
}

/// Packets per second of all workers. What shares processors is measured in time of day.
fn rate(shares: &[Share], processors: &[usize]) -> f64 {
    shares.iter().map(|share| share.rate(have_own(shares.len(), processors))).sum()
}

/// Both gateways in turns at full load: the rates of each, slice by slice.
fn at_full_load(
    gateways: &mut [Gateway; 2],
    duration: Duration,
    processors: &[usize],
) -> Result<[Vec<f64>; 2], Wrong> {
    let (mut rates, mut spent) = ([Vec::new(), Vec::new()], [Duration::ZERO; 2]);
    for first in 0.. {
        for turn in 0..2 {
            let at = (first + turn) % 2;
            let shares = gateways[at].slice(0)?;
            spent[at] += shares.iter().map(|share| share.elapsed).max().unwrap_or_default();
            rates[at].push(rate(&shares, processors));
        }
        if rates[0].len() >= SLICES as usize && spent.iter().all(|spent| *spent >= duration) {
            break;
        }
    }
    Ok(rates)
}

/// One measurement of both.
fn take(setup: &Setup<'_>, lot: &Lot, processors: &[usize]) -> Result<[Taken; 2], Wrong> {
    let gateway = |release| Gateway::new(setup, release, lot, processors);
    let [in_order, unordered] = Release::BOTH.map(gateway);
    let mut gateways = [in_order?, unordered?];
    // Caches are warm then.
    gateways.iter_mut().try_for_each(|gateway| gateway.slice(0).map(drop))?;
    let rates = at_full_load(&mut gateways, setup.options.duration(), processors)?;
    let of = |values: &[f64]| median(values).unwrap_or_default();
    let full = [of(&rates[0]), of(&rates[1])];
    let pace = Duration::from_secs_f64(1.0 / (LOAD * full[0].min(full[1])).max(2.0));
    let pace_ns = pace.subsec_nanos().saturating_add(1);
    let mut seen = [Seen::default(), Seen::default()];
    // As many slices as at full load, and as long as those.
    for first in 0..rates[0].len() {
        for turn in 0..2 {
            let at = (first + turn) % 2;
            gateways[at].observe(pace_ns.into(), &mut seen[at])?;
        }
    }
    gateways.into_iter().try_for_each(Gateway::check)?;
    let ratios: Vec<f64> = rates[0].iter().zip(&rates[1]).map(|(one, other)| one / other).collect();
    let of_other = [of(&ratios), of(&ratios.iter().map(|ratio| 1.0 / ratio).collect::<Vec<_>>())];
    let [first, second] = seen;
    let taken = |at: usize, seen| Taken {
        rate: full[at],
        of_other: of_other[at],
        offered: 1e9 / f64::from(pace_ns),
        seen,
    };
    Ok([taken(0, first), taken(1, second)])
}

/// What order costs, and what there is of it without.
pub(super) fn order(setup: &mut Setup<'_>) -> Result<Outcome, BenchError> {
    let (processors, workers) = (threads::processors(), workers(setup.options));
    let repeat = setup.options.repeat();
    let mut cells = Vec::new();
    for inner_bytes in SIZES {
        let name = format!("order, {inner_bytes} bytes, {workers} workers");
        let invalid = |what| BenchError::Invalid { case: name.clone(), what };
        let lot = Lot::new(setup, inner_bytes, workers).map_err(invalid)?;
        let mut pair = Release::BOTH.map(|release| Cell { inner_bytes, release, taken: Vec::new() });
        for turn in 1..=repeat {
            let visit = expected(setup.options) / repeat / 2;
            setup.progress.stage(&format!("{turn} of {repeat}: {name}"), visit);
            let taken = take(setup, &lot, &processors).map_err(invalid)?;
            pair.iter_mut().zip(taken).for_each(|(cell, taken)| cell.taken.push(taken));
        }
        cells.extend(pair);
    }
    Ok(Outcome {
        rows: cells.iter_mut().map(|cell| row(setup, cell, workers, &processors)).collect(),
        text: text(setup, &mut cells, workers, &processors),
        picture: Some(draw(setup, &mut cells)),
    })
}

fn row(setup: &Setup<'_>, cell: &mut Cell, workers: usize, processors: &[usize]) -> Row {
    let mut row = Row::of_one(Experiment::Order, Carrier::Esp, cell.inner_bytes);
    (row.threading, row.workers) = (Threading::SharedSa, workers);
    row.packets_per_second = Some(cell.spread(|taken| taken.rate));
    let in_order = cell.release == Release::InOrder;
    let worker = threads::placed(workers, processors);
    row.more = vec![
        ("release", json!(cell.release.name())),
        ("direction", json!("inbound")),
        ("offered_packets_per_second", json!(cell.spread(|taken| taken.offered).median)),
        ("latency_mean_ns", json!(cell.spread(|taken| taken.seen.mean_ns()).median)),
        ("latency_p99_ns", json!(p99(cell).median)),
        ("arrived_packets", json!(cell.sum(|seen| seen.arrived))),
        ("reordered_packets", json!(cell.sum(|seen| seen.reordered))),
        ("reordered_percent", json!(cell.reordered_percent())),
        ("longest_extent_packets", json!(cell.longest_extent())),
        ("suite", json!(setup.options.suite.to_string())),
        ("engine", json!(setup.engine_name())),
        ("cores", json!({ "worker": worker, "shared": !have_own(workers, processors) })),
        ("time", json!(threads::time(have_own(workers, processors)))),
    ];
    if in_order {
        row.more.extend([
            ("of_unordered", json!(cell.spread(|taken| taken.of_other).median)),
            ("waited_packets", json!(cell.sum(|seen| seen.waited))),
            ("passed_over", json!(cell.sum(|seen| seen.passed_over))),
        ]);
    }
    row
}

fn p99(cell: &mut Cell) -> Spread {
    Spread::of(cell.taken.iter_mut().map(|taken| taken.seen.p99_ns()))
}

fn text(setup: &Setup<'_>, cells: &mut [Cell], workers: usize, processors: &[usize]) -> String {
    let mut table = Table::new(&[
        "inner bytes",
        "release",
        "Mpackets/s",
        "lowest-highest",
        "of unordered",
        "offered",
        "mean, us",
        "p99, us",
        "reordered",
        "longest extent",
        "passed over",
    ]);
    let us = |ns: f64| format!("{:.1}", ns / 1e3);
    for cell in cells {
        let in_order = cell.release == Release::InOrder;
        let only = |value: String| if in_order { value } else { "-".to_owned() };
        let rate = cell.spread(|taken| taken.rate);
        table.row(vec![
            cell.inner_bytes.to_string(),
            cell.release.name().to_owned(),
            millions(rate.median),
            range_millions(&rate),
            only(format!("{:.3}", cell.spread(|taken| taken.of_other).median)),
            millions(cell.spread(|taken| taken.offered).median),
            us(cell.spread(|taken| taken.seen.mean_ns()).median),
            us(p99(cell).median),
            format!("{:.2} %", cell.reordered_percent()),
            grouped(cell.longest_extent()),
            only(grouped(cell.sum(|seen| seen.passed_over))),
        ]);
    }
    let shared = if have_own(workers, processors) { "" } else { " (cores shared)" };
    format!(
        "order: one SA of ESP from a peer over {workers} workers on {} cores{shared}, in order and as opened, {} ({});\n\
         medians of {} times {} ms in turns\n{table}\
         Mpackets/s at full load. At {LOAD} of what the slower reaches: latency from when a packet comes until the port has it,\n\
         and what the port has out of order (RFC 4737 3.3; extent in packets, 4.2). Passed over: numbers that the ring waited for in vain.\n{}",
        processors.len(),
        setup.options.suite,
        setup.engine_name(),
        setup.options.repeat(),
        setup.options.duration,
        threads::TIMES,
    )
}

fn draw(setup: &Setup<'_>, cells: &mut [Cell]) -> String {
    let mut lines = Vec::new();
    for (colour, release) in Release::BOTH.into_iter().enumerate() {
        let own = cells.iter_mut().filter(|cell| cell.release == release);
        let points = own.map(|cell| {
            let Spread { median, lowest, highest } = p99(cell);
            (cell.inner_bytes, Spread { median: median / 1e3, lowest: lowest / 1e3, highest: highest / 1e3 })
        });
        lines.push(line(release.name().to_owned(), colour, 0, points.collect()));
    }
    chart::svg(&[Panel {
        title: "Testudo: latency of one inbound SA of ESP over several workers".to_owned(),
        subtitle: format!("{}, {}; at {LOAD} of full load", setup.options.suite, setup.engine_name()),
        across: "inner bytes".to_owned(),
        up: "99th percentile (us)".to_owned(),
        extent: Extent::Zero,
        lines,
    }])
}
