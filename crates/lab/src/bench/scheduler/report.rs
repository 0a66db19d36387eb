//! Rows: a table for people, JSON for programs, a picture of shares.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};
use testudo_gateway::{Scheduled, ThreadingModel};

use super::Experiment;
use super::experiments::Cell;
use super::run::Outcome;
use super::stay::{Latencies, QUANTILES};
use crate::bench::case::{Size, Way};
use crate::bench::chart::{self, Extent, Line, Panel};
use crate::bench::device::Device;
use crate::bench::pipsea;
use crate::bench::threads::processors;
use crate::generator::FRAME_EXTRA_BYTES;
use crate::statistics::Spread;
use crate::table::Table;

/// A cell with what came of it.
pub(super) struct Row {
    pub(super) cell: Cell,
    pub(super) engine: &'static str,
    /// What the engine says of itself.
    pub(super) description: String,
    pub(super) device: Device,
    /// Whether time is real: of the model it is not.
    pub(super) has_speed: bool,
    pub(super) outcome: Outcome,
    /// Of several measurements in Gbit/s, of which this is the one in the middle.
    pub(super) measured: Option<Spread>,
}

/// The measurement in the middle, with the spread of all; `None` of none.
pub(super) fn median(mut rows: Vec<Row>) -> Option<Row> {
    let rates: Vec<f64> = rows.iter().filter_map(Row::measured_gbit_s).collect();
    let spread = (rows.len() > 1 && !rates.is_empty()).then(|| Spread::of(rates));
    let rate = |row: &Row| row.measured_gbit_s().unwrap_or(0.0);
    rows.sort_by(|one, other| rate(one).total_cmp(&rate(other)));
    let middle = rows.len() / 2;
    rows.into_iter().nth(middle).map(|row| Row { measured: spread, ..row })
}

/// Threads of a model: the worker, and those beside it.
pub(super) const fn threads(model: ThreadingModel) -> usize {
    match model {
        ThreadingModel::RunToCompletion => 1,
        ThreadingModel::OneIo => 2,
        ThreadingModel::TwoIo => 3,
    }
}

/// Gbit/s of frames of the plain side, with check sequence.
fn gbit_s(packets: u64, mean_bytes: f64, nanoseconds: f64) -> f64 {
    let bytes = packets as f64 * (mean_bytes + FRAME_EXTRA_BYTES as f64);
    if nanoseconds > 0.0 { bytes * 8.0 / nanoseconds } else { 0.0 }
}

impl Row {
    /// Whether there is a model of it: of threads there is none.
    fn is_predicted(&self) -> bool {
        self.cell.experiment != Experiment::Threading
    }

    /// What the profile's costs make of the launches: a prediction.
    pub(super) fn predicted_gbit_s(&self) -> f64 {
        let Outcome { tally, mean_bytes, .. } = &self.outcome;
        let one_at_a_time = !self.cell.plan.settings.ideas.waiting_bins;
        gbit_s(tally.jobs, *mean_bytes, tally.predicted_ns(one_at_a_time))
    }

    /// The same of a device whose work-groups take packets of several kinds and do one after the other.
    fn predicted_diverging_gbit_s(&self) -> f64 {
        let tally = &self.outcome.tally;
        let one_at_a_time = !self.cell.plan.settings.ideas.waiting_bins;
        let diverging = tally.predicted_diverging_ns(one_at_a_time).max(f64::MIN_POSITIVE);
        self.predicted_gbit_s() * tally.predicted_ns(one_at_a_time) / diverging
    }

    /// What was measured, where that is a speed.
    pub(super) fn measured_gbit_s(&self) -> Option<f64> {
        let Outcome { packets, mean_bytes, elapsed, .. } = &self.outcome;
        let is_speed = self.has_speed && self.device.note.is_none();
        is_speed.then(|| gbit_s(*packets, *mean_bytes, elapsed.as_secs_f64() * 1e9))
    }

    /// What PIPSEA's gateway carries of the same, beside what a GPU was measured with (figure 12).
    fn pipsea(&self) -> Option<f64> {
        let plan = &self.cell.plan;
        let is_of_algorithms = self.cell.experiment == Experiment::Algorithms && self.device.name.is_some();
        self.measured_gbit_s().filter(|_| is_of_algorithms)?;
        pipsea::end_to_end(plan.suites, plan.way, plan.size)
    }

    /// What self-tuning has found; null without it.
    fn tuned(&self) -> Value {
        let Scheduled { chunk, bins, range_bytes, changes, .. } = self.outcome.scheduled;
        changes.map_or(
            Value::Null,
            |changes| json!({ "chunk": chunk, "bins": bins, "range_bytes": range_bytes, "changes": changes }),
        )
    }

    /// The time within which this share of packets leave, in microseconds.
    fn quantile_us(&self, share: f64) -> Option<f64> {
        let place = QUANTILES.iter().position(|known| (known - share).abs() < 1e-9)?;
        self.outcome.latency_us?.quantiles.get(place).copied()
    }

    /// Mean, median, 99 % quantile and the distribution, if it is of this kind.
    fn latency(&self, is_of_this_kind: bool) -> Value {
        let latency = self.outcome.latency_us.filter(|_| is_of_this_kind);
        let distribution = |Latencies { mean, quantiles }: Latencies| {
            let points = QUANTILES.into_iter().zip(quantiles);
            let points: Vec<Value> = points.map(|(share, us)| json!({ "share": share, "us": us })).collect();
            let [p50, p99] = [0.5, 0.99].map(|share| self.quantile_us(share));
            json!({ "mean": mean, "p50": p50, "p99": p99, "distribution": points })
        };
        latency.map_or(Value::Null, distribution)
    }

    /// The processors that the worker had, and those that threads beside it may have had: nothing binds them.
    fn processors(&self) -> Value {
        let worker = BTreeSet::from(self.outcome.processors);
        match threads(self.cell.plan.threads) {
            1 => json!({ "worker": worker }),
            _ => json!({ "worker": worker, "beside": processors() }),
        }
    }

    fn direction(&self) -> &'static str {
        self.cell.plan.way.map_or("both", Way::name)
    }

    fn per_launch(&self, count: u64) -> f64 {
        count as f64 / self.outcome.tally.launches.max(1) as f64
    }

    pub(super) fn json(&self) -> Value {
        let (plan, outcome) = (&self.cell.plan, &self.outcome);
        let inner_bytes = match plan.size {
            Size::Bytes(bytes) => json!(bytes),
            mix => json!(mix.to_string()),
        };
        let members = [
            ("experiment", json!(self.cell.experiment.name())),
            ("setting", json!(self.cell.setting)),
            ("engine", json!(self.engine)),
            ("device", json!(self.device.name.as_deref().unwrap_or(&self.description))),
            ("note", json!(self.device.note)),
            ("suite", json!(plan.suites.to_string())),
            ("direction", json!(self.direction())),
            ("inner_bytes", inner_bytes),
            ("chunk", json!(plan.settings.chunk)),
            ("bins", json!(plan.settings.bins)),
            ("range_bytes", json!(plan.settings.range_bytes)),
            ("launches", json!(outcome.tally.launches)),
            ("packets_per_launch", json!(self.per_launch(outcome.tally.jobs))),
            ("groups_per_launch", json!(self.per_launch(outcome.tally.groups))),
            ("lanes_used", json!(outcome.tally.lanes_used())),
            ("chunks", json!(outcome.scheduled.chunks)),
            ("left_over", json!(outcome.scheduled.left_over)),
            ("spilled", json!(outcome.spilled)),
            ("reordered", json!(outcome.reordered)),
            ("judged_packets", json!(outcome.judged)),
            ("predicted_gbit_s", json!(self.is_predicted().then(|| self.predicted_gbit_s()))),
            (
                "predicted_diverging_gbit_s",
                json!(self.is_predicted().then(|| self.predicted_diverging_gbit_s())),
            ),
            ("gbit_s", json!(self.measured_gbit_s())),
            ("pipsea_gbit_s", json!(self.pipsea())),
            ("latency_us", self.latency(self.has_speed && self.device.note.is_none())),
            ("predicted_latency_us", self.latency(!self.has_speed)),
            ("tuned", self.tuned()),
            ("threading", json!(plan.threads.name())),
            ("threads", json!(threads(plan.threads))),
            ("cores", json!(processors().len())),
            ("cores_shared", json!(threads(plan.threads) > processors().len())),
            ("processors", self.processors()),
        ];
        let ends = self.measured.map(|spread| {
            [("gbit_s_lowest", json!(spread.lowest)), ("gbit_s_highest", json!(spread.highest))]
        });
        let members = members.into_iter().chain(ends.into_iter().flatten());
        Value::Object(members.map(|(name, value)| (name.to_owned(), value)).collect::<Map<_, _>>())
    }

    /// What rows of a group have in common.
    fn group(&self) -> String {
        format!("{}, {}", self.cell.experiment.name(), self.device.words(self.engine))
    }

    fn cells(&self) -> Vec<String> {
        let outcome = &self.outcome;
        let predicted = |rate: f64| match self.is_predicted() {
            true => format!("{rate:.2}"),
            false => "-".to_owned(),
        };
        vec![
            format!("{}, {}", self.cell.setting, self.cell.plan.size),
            format!("{:.1}", 100.0 * outcome.tally.lanes_used()),
            format!("{:.0}", self.per_launch(outcome.tally.jobs)),
            format!("{:.0}", self.per_launch(outcome.tally.groups)),
            outcome.scheduled.chunks.to_string(),
            outcome.scheduled.left_over.to_string(),
            format!("{:.1}", 100.0 * outcome.spilled as f64 / outcome.judged.max(1) as f64),
            outcome.reordered.to_string(),
            predicted(self.predicted_gbit_s()),
            predicted(self.predicted_diverging_gbit_s()),
            self.measured_gbit_s().map_or_else(|| "-".to_owned(), |rate| format!("{rate:.2}")),
        ]
    }
}

const HEADS: [&str; 11] = [
    "setting, bytes",
    "lanes %",
    "packets",
    "groups",
    "chunks",
    "left over",
    "spilled %",
    "reordered",
    "predicted Gbit/s",
    "if mixed",
    "measured Gbit/s",
];

/// The array that `--json` prints.
pub(super) fn json(rows: &[Row]) -> Value {
    rows.iter().map(Row::json).collect()
}

pub(super) fn table(rows: &[Row]) -> String {
    let heads = HEADS.map(str::to_owned).to_vec();
    let all = [heads].into_iter().chain(rows.iter().map(Row::cells)).collect();
    let text = Table::report(all).to_string();
    let mut lines = text.lines();
    let mut table = format!("{}\n", lines.next().unwrap_or_default());
    let mut group = String::new();
    for (row, line) in rows.iter().zip(lines) {
        let this = row.group();
        if this != group {
            table += &format!("\n  {this}\n");
            group = this;
        }
        table += &format!("{line}\n");
    }
    table + &legend(rows)
}

fn legend(rows: &[Row]) -> String {
    let judged: u64 = rows.iter().map(|row| row.outcome.judged).sum();
    let mut text = format!(
        "\n  lanes: what lanes did of what they could have done until their group's longest packet ended; packets, groups: of a launch.\n  \
         left over: packets that found no bin when they came; spilled: packets that the engine did not do, but the portable one behind it; reordered: packets at another place of their SA's order (goal: 0).\n  \
         predicted: what the costs of the engine's profile make of these launches on the given units and lanes: a prediction, not a measurement.\n  \
         if mixed: the same for work-groups that take packets of several kinds and do one kind after the other, as PIPSEA's do; ours have one kind.\n  \
         Gbit/s: of frames of the plain side with check sequence. No packet was lost; {judged} were judged by a peer or compared, and all are right.\n"
    );
    for row in rows.iter().filter(|row| row.outcome.scheduled.changes.is_some()) {
        let Scheduled { chunk, bins, range_bytes, changes, .. } = row.outcome.scheduled;
        text += &format!(
            "  {}, {}: found {chunk} packets in {bins} bins, ranges of {range_bytes} bytes, after {} changes.\n",
            row.cell.setting,
            row.cell.plan.size,
            changes.unwrap_or(0),
        );
    }
    for row in rows {
        let Some(gbit_s) = row.pipsea() else { continue };
        text += &format!(
            "  {}, {}: PIPSEA's APU has {gbit_s} Gbit/s (paper 002).\n",
            row.cell.setting, row.cell.plan.size
        );
    }
    for row in rows.iter().filter(|row| row.device.note.is_none()) {
        let (Some(p50), Some(p99)) = (row.quantile_us(0.5), row.quantile_us(0.99)) else { continue };
        let kind = if row.has_speed { "measured" } else { "predicted" };
        let (setting, size) = (&row.cell.setting, row.cell.plan.size);
        text += &format!(
            "  {setting}, {size}, {}: a packet is {p50:.0} µs in the gateway (median), 99 % no longer than {p99:.0} µs: {kind}.\n",
            row.engine,
        );
    }
    if let Some(row) = rows.iter().find(|row| row.device.note.is_some()) {
        text += &format!("  {}: no speed was measured.\n", row.device.words(row.engine));
    }
    text
}

/// Shares of lanes over packet size, a line for each setting; below it what is predicted, or was measured.
pub(super) fn picture(rows: &[Row]) -> String {
    let mut panels = Vec::new();
    let mut groups: Vec<String> = rows.iter().map(Row::group).collect();
    groups.dedup();
    for group in groups {
        let of_group: Vec<&Row> = rows.iter().filter(|row| row.group() == group).collect();
        let is_measured = of_group.iter().any(|row| row.measured_gbit_s().is_some());
        let rate = |row: &Row| row.measured_gbit_s().unwrap_or_else(|| row.predicted_gbit_s());
        let up = if is_measured { "throughput (Gbit/s)" } else { "predicted throughput (Gbit/s)" };
        let share = |row: &Row| 100.0 * row.outcome.tally.lanes_used();
        panels.push(panel(&group, "lanes in use (%)", &of_group, share));
        panels.push(panel(&group, up, &of_group, rate));
    }
    chart::svg(&panels)
}

fn panel(group: &str, up: &str, rows: &[&Row], value: impl Fn(&Row) -> f64) -> Panel {
    let mut lines: Vec<Line> = Vec::new();
    for row in rows {
        let name = &row.cell.setting;
        if !lines.iter().any(|line| line.name == *name) {
            let colour = lines.len();
            let (points, mixes) = (Vec::new(), [None; chart::STRIPS.len()]);
            lines.push(Line { name: name.clone(), colour, dash: colour / 8, points, mixes });
        }
        let Some(line) = lines.iter_mut().find(|line| line.name == *name) else { continue };
        let value = Spread::of([value(row)]);
        match row.cell.plan.size {
            Size::Bytes(bytes) => line.points.push((bytes, value)),
            Size::Imix => line.mixes[0] = Some(value),
            Size::Random => line.mixes[1] = Some(value),
        }
    }
    lines.iter_mut().for_each(|line| line.points.sort_by_key(|(bytes, _)| *bytes));
    chart::sort(&mut lines);
    Panel {
        title: format!("Testudo: packet scheduling, {}", up.split(" (").next().unwrap_or(up)),
        subtitle: group.to_owned(),
        across: "packet size (bytes of the inner IP packet)".to_owned(),
        up: up.to_owned(),
        extent: Extent::Zero,
        lines,
    }
}
