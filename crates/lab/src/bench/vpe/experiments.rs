//! The experiments with one worker that seals: sizes and headroom; and how cells are measured.

use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::{Value, json};

use super::report::{Outcome, Row, is_in_udp, is_vpe, line, words};
use super::side_by_side::{Effort, Take, side_by_side};
use super::single::{self, CARRIERS, ratios};
use super::threads::time;
use super::{BenchVpeOptions, Experiment, Setup, order, scaling};
use crate::bench::case::{Carrier, Case, Way};
use crate::bench::chart::{self, Extent, Panel};
use crate::bench::error::BenchError;
use crate::statistics::Spread;
use crate::table::{Table, grouped};

/// What takes turns: the last is compared with the first. Headroom has [all four](CARRIERS), since UDP
/// moves headers by half of 16 bytes.
const PAIR: [Carrier; 2] = [Carrier::Esp, Carrier::Vpe];
/// Lengths of inner packets of `size_sweep` (figure 7), in bytes.
const SWEPT: std::ops::RangeInclusive<usize> = 1150..=1450;
/// Bytes that packets of `headroom` are moved by (figure 8), and their length.
const MOVED: std::ops::RangeInclusive<usize> = 0..=64;
const MOVED_PACKET_BYTES: usize = 1420;
/// Beside what is measured: gateways, and the judge.
const AROUND: Duration = Duration::from_millis(15);

/// Measurements of one case: gateways side by side.
pub(super) struct Cell {
    pub(super) takes: Vec<Take>,
}

impl Cell {
    pub(super) fn rate(&self, lane: usize) -> Spread {
        Spread::of(self.takes.iter().map(|take| take.rate(lane)))
    }

    pub(super) fn cycles(&self, lane: usize) -> Spread {
        Spread::of(self.takes.iter().map(|take| take.cycles(lane)))
    }

    /// Nanoseconds a packet.
    fn nanoseconds(&self, lane: usize) -> Spread {
        Spread::of(self.takes.iter().map(|take| 1e9 / take.rate(lane)))
    }

    pub(super) fn ratio(&self, lane: usize, reference: usize) -> Spread {
        Spread::of(self.takes.iter().map(|take| take.ratio(lane, reference)))
    }

    /// The processors that the thread of all gateways had, for JSON.
    pub(super) fn cores(&self) -> Value {
        let worker: BTreeSet<usize> = self.takes.iter().flat_map(|take| &take.processors).copied().collect();
        json!({ "worker": worker })
    }
}

fn swept(options: &BenchVpeOptions) -> Vec<usize> {
    SWEPT.step_by(options.size_step as usize).collect()
}

/// About how long an experiment takes.
pub(super) fn expected(experiment: Experiment, options: &BenchVpeOptions) -> Duration {
    // At a few million packets a second.
    let pair = (Duration::from_nanos(options.packets().saturating_mul(400)) + AROUND).saturating_mul(2);
    let many = |cells: usize| u32::try_from(cells).unwrap_or(u32::MAX).saturating_mul(options.repeat());
    match experiment {
        Experiment::SingleThread => {
            let four = (options.duration() + AROUND).saturating_mul(4);
            four.saturating_mul(many(2 * single::SIZES.len())) + single::expected_of_chain(options)
        }
        Experiment::SizeSweep => pair.saturating_mul(many(swept(options).len())),
        Experiment::Headroom => pair.saturating_mul(many(2 * MOVED.count())),
        Experiment::Scaling => {
            let rows = scaling::rows(options).saturating_mul(options.repeat());
            (options.duration() + AROUND).saturating_mul(2).saturating_mul(rows)
        }
        Experiment::Qos => Duration::from_secs(2),
        Experiment::Order => order::expected(options),
    }
}

/// Measures cells in turn, as often as requested.
pub(super) fn measure<K: Copy>(
    setup: &mut Setup<'_>,
    experiment: Experiment,
    effort: Effort,
    keys: &[K],
    cell: impl Fn(&Setup<'_>, K) -> (String, Vec<Case>, Option<usize>),
) -> Result<Vec<Cell>, BenchError> {
    let mut cells: Vec<Cell> = keys.iter().map(|_| Cell { takes: Vec::new() }).collect();
    let repeat = setup.options.repeat();
    let count = u32::try_from(keys.len()).unwrap_or(u32::MAX).saturating_mul(repeat);
    let visit = expected(experiment, setup.options) / count.max(1);
    for turn in 1..=repeat {
        for (&key, measured) in keys.iter().zip(&mut cells) {
            let (name, cases, extra_bytes) = cell(setup, key);
            let case = format!("{}, {name}", experiment.name());
            setup.progress.stage(&format!("{turn} of {repeat}: {case}"), visit);
            let take = side_by_side(&cases, setup.engines, effort, extra_bytes);
            measured.takes.push(take.map_err(|what| BenchError::Invalid { case, what })?);
        }
    }
    Ok(cells)
}

/// Time to seal packets of every size.
pub(super) fn size_sweep(setup: &mut Setup<'_>) -> Result<Outcome, BenchError> {
    let sizes = swept(setup.options);
    let effort = Effort::Packets(setup.options.packets());
    let cells = measure(setup, Experiment::SizeSweep, effort, &sizes, |setup, bytes| {
        (format!("{bytes} bytes"), PAIR.map(|carrier| setup.case(carrier, Way::Outbound, bytes)).into(), None)
    })?;
    let rows = rows_of(setup, (Experiment::SizeSweep, &PAIR), &sizes, &cells, |bytes| (bytes, None));
    let slowest = sizes.iter().zip(&cells).map(|(bytes, cell)| (cell.ratio(1, 0).median, *bytes));
    let slowest = slowest.min_by(|a, b| a.0.total_cmp(&b.0)).unwrap_or_default();
    let faster = cells.iter().filter(|cell| cell.ratio(1, 0).median >= 1.0).count();
    let text = format!(
        "size_sweep: time to seal a packet, {}\n{}\
         VPE is as fast as ESP or faster at {faster} of {} sizes; least VPE/ESP: {:.3}, at {} bytes. All sizes: --json.\n",
        setup.options.setting(),
        sampled(&sizes, &cells, &PAIR, ("inner bytes", 16)),
        sizes.len(),
        slowest.0,
        grouped(slowest.1 as u64),
    );
    let picture = draw_times(
        setup,
        &sizes,
        &cells,
        &PAIR,
        Figure {
            title: "Testudo: time to seal over packet size (figure 7)",
            across: "packet size (bytes of the inner IP packet)",
        },
    );
    Ok(Outcome { rows, text, picture: Some(picture) })
}

/// Time to seal over where packets begin in their buffers.
pub(super) fn headroom(setup: &mut Setup<'_>) -> Result<Outcome, BenchError> {
    let moved: Vec<usize> = MOVED.collect();
    let effort = Effort::Packets(setup.options.packets());
    let cells = measure(setup, Experiment::Headroom, effort, &moved, |setup, extra| {
        let cases = CARRIERS.map(|carrier| setup.case(carrier, Way::Outbound, MOVED_PACKET_BYTES));
        (format!("{extra} bytes of headroom more"), cases.into(), Some(extra))
    })?;
    let key = |extra| (MOVED_PACKET_BYTES, Some(extra));
    let rows = rows_of(setup, (Experiment::Headroom, &CARRIERS), &moved, &cells, key);
    let best = |(lane, carrier): (usize, Carrier)| {
        let times = moved.iter().zip(&cells).map(|(extra, cell)| (cell.nanoseconds(lane).median, *extra));
        let (time, extra) = times.min_by(|a, b| a.0.total_cmp(&b.0)).unwrap_or_default();
        format!("{} {time:.0} ns at {extra}", words(carrier))
    };
    let text = format!(
        "headroom: time to seal a packet of {} bytes that begins so many bytes later in its buffer, {}\n{}\
         Without, inner packets begin 16 bytes after a cache line does. Shortest: {}.\n",
        grouped(MOVED_PACKET_BYTES as u64),
        setup.options.setting(),
        sampled(&moved, &cells, &CARRIERS, ("more headroom, bytes", 4)),
        CARRIERS.into_iter().enumerate().map(best).collect::<Vec<_>>().join(", "),
    );
    let picture = draw_times(
        setup,
        &moved,
        &cells,
        &CARRIERS,
        Figure {
            title: "Testudo: time to seal over headroom (figure 8)",
            across: "additional headroom (bytes)",
        },
    );
    Ok(Outcome { rows, text, picture: Some(picture) })
}

/// Rows of what takes turns; a key is bytes of the inner packet, and of headroom if that is what changes.
fn rows_of(
    setup: &Setup<'_>,
    (experiment, carriers): (Experiment, &[Carrier]),
    keys: &[usize],
    cells: &[Cell],
    key: impl Fn(usize) -> (usize, Option<usize>),
) -> Vec<Row> {
    let mut rows = Vec::new();
    for (&one, cell) in keys.iter().zip(cells) {
        let (bytes, extra) = key(one);
        for (lane, &carrier) in carriers.iter().enumerate() {
            let mut row = Row::of_one(experiment, carrier, bytes);
            let [of_esp, of_plain] = ratios(cell, lane, carrier);
            row.packets_per_second = Some(cell.rate(lane));
            row.more = vec![
                ("nanoseconds_per_packet", json!(cell.nanoseconds(lane).median)),
                ("cycles_per_packet", json!(cell.cycles(lane).median)),
                ("direction", json!(Way::Outbound.name())),
                ("engine", json!(setup.engine_name())),
                ("repetitions", json!(cell.takes.len())),
                ("packets", json!(setup.options.packets())),
                ("cores", cell.cores()),
                ("time", json!(time(true))),
            ];
            row.more.extend(extra.map(|extra| ("headroom_bytes", json!(extra))));
            row.more.extend(of_esp.map(|ratio| ("of_esp", json!(ratio.median))));
            row.more.extend(of_plain.map(|ratio| ("of_plain", json!(ratio.median))));
            rows.push(row);
        }
    }
    rows
}

/// A table of one key in so many, which are called so.
fn sampled(keys: &[usize], cells: &[Cell], carriers: &[Carrier], (head, one_in): (&str, usize)) -> Table {
    let mut heads = vec![head.to_owned()];
    for &carrier in carriers {
        heads.extend([format!("{}, ns", words(carrier)), "lowest-highest".to_owned()]);
    }
    let pairs: Vec<_> = carriers.iter().enumerate().filter(|(_, carrier)| is_vpe(**carrier)).collect();
    let pair = |carrier: Carrier| if is_in_udp(carrier) { "VPE/ESP in UDP" } else { "VPE/ESP" };
    heads.extend(pairs.iter().map(|(_, carrier)| pair(**carrier).to_owned()));
    let mut table = Table::new(&heads.iter().map(String::as_str).collect::<Vec<_>>());
    for (key, cell) in keys.iter().zip(cells).step_by(one_in) {
        let time = |lane: usize| {
            let Spread { median, lowest, highest } = cell.nanoseconds(lane);
            [format!("{median:.0}"), format!("{lowest:.0}-{highest:.0}")]
        };
        let times = (0..carriers.len()).flat_map(time);
        let ratios = pairs.iter().map(|&(lane, _)| format!("{:.3}", cell.ratio(lane, lane - 1).median));
        table.row(std::iter::once(key.to_string()).chain(times).chain(ratios).collect());
    }
    table
}

/// What a picture of times is called, and what is across.
struct Figure {
    title: &'static str,
    across: &'static str,
}

fn draw_times(
    setup: &Setup<'_>,
    keys: &[usize],
    cells: &[Cell],
    carriers: &[Carrier],
    figure: Figure,
) -> String {
    let of = |(lane, &carrier): (usize, &Carrier)| {
        let points = keys.iter().zip(cells).map(|(key, cell)| (*key, cell.nanoseconds(lane)));
        // Hundreds of marks with their spread would hide the lines.
        let points = points.map(|(key, time)| (key, Spread::of([time.median])));
        line(words(carrier).to_owned(), lane % 2, lane / 2, points.collect())
    };
    let mut lines: Vec<_> = carriers.iter().enumerate().map(of).collect();
    chart::sort(&mut lines);
    chart::svg(&[Panel {
        title: figure.title.to_owned(),
        subtitle: format!("one worker, aes128gcm16, {}; {}", setup.engine_name(), setup.options.setting()),
        across: figure.across.to_owned(),
        up: "time to seal a packet (ns)".to_owned(),
        extent: Extent::Points,
        lines,
    }])
}
