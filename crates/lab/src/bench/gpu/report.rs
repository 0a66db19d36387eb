//! Rows of `testudo bench gpu`: a table for people, JSON for programs.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};
use testudo_crypto::Suite;

use super::model::{Limit, Model};
use super::options::Headers;
use super::row::{Gateways, HandedOver, LAUNCH_PACKETS, Row};
use crate::bench::case::{Size, Suites, Way};
use crate::bench::pipsea;
use crate::table::Table;

/// What is to be reached of AES-CBC with HMAC-SHA1 at 1,024 bytes: Gbit/s, or the bus's limit if that is
/// lower, and milliseconds.
const GOAL_BYTES: usize = 1024;
const GOAL_GBIT_S: f64 = 200.0;
const GOAL_US: f64 = 1000.0;
/// Latencies of which the processor did a larger share than this are not the device's.
const MOST_SPILLED: f64 = 0.01;

impl Row {
    fn gbit_s(&self, packets_per_second: f64) -> f64 {
        packets_per_second * self.frame_bytes * 8e-9
    }

    /// The rate of launches of 2,048 packets that take so many nanoseconds each.
    fn of_launches(&self, nanoseconds: f64) -> f64 {
        self.gbit_s(LAUNCH_PACKETS as f64 * 1e9 / nanoseconds.max(1.0))
    }

    /// Whether figures of its device are a speed.
    pub(super) fn is_speed(&self) -> bool {
        self.device.as_ref().is_some_and(|device| device.note.is_none())
    }

    fn on_gpu(&self, figure: impl Fn(&Gateways) -> Option<f64>) -> Option<f64> {
        self.gpu.as_ref().filter(|_| self.is_speed()).and_then(figure)
    }

    /// The largest share of packets of its gateways that the device did not do.
    fn spilled(&self) -> Option<f64> {
        let gpu = self.gpu.as_ref()?;
        let [one, all] = gpu.spilled;
        Some(one.max(all).max(gpu.latency_spilled))
    }

    fn on_processor(&self, figure: impl Fn(&Gateways) -> Option<f64>) -> Option<f64> {
        self.processor.as_ref().and_then(figure)
    }

    fn is_pipseas(&self) -> bool {
        self.suite == Suite::AES128_SHA1 && self.way == Way::Outbound
    }

    /// PIPSEA's figure end to end, only beside one of a GPU.
    fn pipsea(&self) -> Option<f64> {
        let printed = pipsea::end_to_end(Suites::One(self.suite), Some(self.way), self.size);
        printed.filter(|_| self.is_speed())
    }

    /// Its figure of the algorithms alone, likewise.
    fn pipsea_alone(&self) -> Option<f64> {
        pipsea::alone(self.suite, self.way, self.size).filter(|_| self.is_speed() && self.launches.is_some())
    }

    fn kernels(&self) -> Option<f64> {
        self.launches.map(|launches| self.of_launches(launches.kernel.as_nanos() as f64))
    }

    fn with_transfers(&self) -> Option<f64> {
        self.launches.map(|launches| self.of_launches(launches.with_transfers.as_nanos() as f64))
    }

    /// What transfers alone would allow, both ways at once.
    fn bus(&self) -> Option<f64> {
        self.launches.map(|launches| self.of_launches(launches.bus.as_nanos() as f64))
    }

    fn predicted(&self) -> [Option<f64>; 3] {
        let of = |part: fn(&super::model::Prediction) -> f64| self.prediction.as_ref().map(part);
        [of(|one| one.kernel_ns), of(|one| one.with_transfers_ns), of(|one| one.occupancy)]
    }

    /// Gbit/s of what workers hand over.
    fn handed_over(&self, of: fn(&HandedOver) -> f64) -> Option<f64> {
        self.handed_over.as_ref().map(|workers| self.gbit_s(of(workers)))
    }

    /// Gbit/s that are predicted end to end with workers that hand over so much, and what limits them.
    fn predicted_end_to_end(&self, of: fn(&HandedOver) -> f64) -> Option<(f64, &'static str)> {
        let (prediction, workers) = (self.prediction.as_ref()?, self.handed_over.as_ref()?);
        let (rate, is_of_workers) = prediction.end_to_end(LAUNCH_PACKETS as f64, of(workers));
        Some((self.gbit_s(rate), if is_of_workers { "workers" } else { "device" }))
    }

    /// What is predicted, with the part of workers that is measured.
    fn predictions(&self) -> [(&'static str, Value); 11] {
        let [kernel_ns, with_transfers_ns, occupancy] = self.predicted();
        let rate = |nanoseconds: Option<f64>| nanoseconds.map(|time| self.of_launches(time));
        let [one, all]: [fn(&HandedOver) -> f64; 2] = [|of| of.one, |of| of.all];
        let gateways = self.predicted_end_to_end(all);
        [
            ("worker_cycles_per_packet", json!(self.handed_over.map(|of| of.ticks))),
            ("worker_gbit_s", json!(self.handed_over(one))),
            ("workers_gbit_s", json!(self.handed_over(all))),
            ("predicted_kernel_us", json!(kernel_ns.map(|time| time * 1e-3))),
            ("predicted_kernels_gbit_s", json!(rate(kernel_ns))),
            ("predicted_with_transfers_gbit_s", json!(rate(with_transfers_ns))),
            ("predicted_gateway_gbit_s", json!(self.predicted_end_to_end(one).map(|(rate, _)| rate))),
            ("predicted_gateways_gbit_s", json!(gateways.map(|(rate, _)| rate))),
            ("predicted_gateways_limit", json!(gateways.map(|(_, limit)| limit))),
            ("predicted_occupancy", json!(occupancy)),
            ("predicted_limit", json!(self.prediction.map(|one| Limit::name(one.limit)))),
        ]
    }

    pub(super) fn json(&self) -> Value {
        let device = self.device.as_ref();
        let us = |part: fn(&super::devices::Launches) -> std::time::Duration| {
            self.launches.as_ref().map(|launches| part(launches).as_secs_f64() * 1e6)
        };
        let gbit_s = |rate: Option<f64>| rate.map(|rate| self.gbit_s(rate));
        let inner_bytes = match self.size {
            Size::Bytes(bytes) => json!(bytes),
            mix => json!(mix.to_string()),
        };
        let judged = |of: &Option<Gateways>| of.as_ref().map_or(0, |gateways| gateways.judged);
        let members = [
            ("device", json!(device.and_then(|device| device.name.as_deref()))),
            ("note", json!(device.map_or(Some("no GPU here: predicted_* are a prediction"), |one| one.note))),
            ("suite", json!(self.suite.to_string())),
            ("direction", json!(self.way.name())),
            ("inner_bytes", inner_bytes),
            ("frame_bytes", json!(self.frame_bytes)),
            ("headers", json!(self.headers.name())),
            ("launch_packets", json!(LAUNCH_PACKETS)),
            ("kernel_us", json!(us(|launches| launches.kernel))),
            ("transfers_us", json!(us(|launches| launches.transfers))),
            ("bus_us", json!(us(|launches| launches.bus))),
            ("with_transfers_us", json!(us(|launches| launches.with_transfers))),
            ("launch_alone_us", json!(us(|launches| launches.alone))),
            ("transfer_bytes", json!(self.launches.map(|launches| launches.transfer_bytes))),
            ("kernels_gbit_s", json!(self.kernels())),
            ("with_transfers_gbit_s", json!(self.with_transfers())),
            ("bus_gbit_s", json!(self.bus())),
            ("gateway_gbit_s", json!(gbit_s(self.on_gpu(|gpu| gpu.one)))),
            ("gateways_gbit_s", json!(gbit_s(self.on_gpu(|gpu| gpu.all)))),
            ("gateway_spilled", json!(self.gpu.as_ref().map(|gpu| gpu.spilled[0]))),
            ("spilled", json!(self.gpu.as_ref().map(|gpu| gpu.spilled[1]))),
            ("latency_us", latency(self.gpu.as_ref().filter(|_| self.is_speed()))),
            ("processor_engine", json!(self.processor.as_ref().map(|one| one.engine))),
            ("one_core_gbit_s", json!(gbit_s(self.on_processor(|one| one.one)))),
            ("all_cores_gbit_s", json!(gbit_s(self.on_processor(|one| one.all)))),
            ("processor_latency_us", latency(self.processor.as_ref())),
            ("pipsea_gbit_s", json!(self.pipsea())),
            ("pipsea_alone_gbit_s", json!(self.pipsea_alone())),
            ("workers", json!(self.workers)),
            ("judged_packets", json!(judged(&self.gpu) + judged(&self.processor))),
            ("cores", self.cores()),
        ];
        Value::Object(
            members
                .into_iter()
                .chain(self.predictions())
                .map(|(name, value)| (name.to_owned(), value))
                .collect::<Map<_, _>>(),
        )
    }

    /// The processors of the thread that measures, and of gateways, if there were any.
    fn cores(&self) -> Value {
        let of_gateways = [&self.gpu, &self.processor].into_iter().flatten().flat_map(|of| &of.processors);
        let gateways: BTreeSet<usize> = of_gateways.copied().collect();
        let worker = BTreeSet::from(self.worker);
        match gateways.is_empty() {
            true => json!({ "worker": worker }),
            false => json!({ "worker": worker, "gateways": gateways }),
        }
    }

    /// What rows of a group have in common.
    fn group(&self) -> String {
        self.device.as_ref().map_or_else(|| "no GPU".to_owned(), |device| device.words("gpu"))
    }

    fn cells(&self) -> Vec<String> {
        let [kernel_ns, with_transfers_ns, occupancy] = self.predicted();
        let gbit_s = |rate: Option<f64>| figure(rate.map(|rate| self.gbit_s(rate)));
        let rate = |nanoseconds: Option<f64>| figure(nanoseconds.map(|time| self.of_launches(time)));
        let quantile = |of: Option<&Gateways>, share| {
            figure(of.and_then(|one| one.latency.as_ref()).and_then(|latency| latency.quantile_us(share)))
        };
        let gpu = self.gpu.as_ref().filter(|_| self.is_speed());
        let kernel_us = self.launches.map(|launches| launches.kernel.as_secs_f64() * 1e6);
        let judged = self.gpu.as_ref().filter(|_| !self.is_speed()).map(|one| one.judged.to_string());
        let by_gpu = if self.headers == Headers::Gpu { ", headers by the GPU" } else { "" };
        vec![
            format!("{} {}, {}{by_gpu}", self.suite, self.way.name(), self.size),
            figure(kernel_us),
            figure(self.kernels()),
            figure(self.with_transfers()),
            figure(self.bus()),
            gbit_s(self.on_gpu(|gpu| gpu.one)),
            gbit_s(self.on_gpu(|gpu| gpu.all)),
            figure(self.spilled().map(|share| 100.0 * share)),
            quantile(gpu, 0.5),
            quantile(gpu, 0.99),
            judged.unwrap_or_else(|| NONE.to_owned()),
            rate(kernel_ns),
            rate(with_transfers_ns),
            figure(occupancy.map(|share| 100.0 * share)),
            self.prediction.map_or(NONE, |one| one.limit.name()).to_owned(),
            figure(self.handed_over.map(|of| of.ticks)),
            figure(self.handed_over(|of| of.one)),
            figure(self.handed_over(|of| of.all)),
            figure(self.predicted_end_to_end(|of| of.one).map(|(rate, _)| rate)),
            figure(self.predicted_end_to_end(|of| of.all).map(|(rate, _)| rate)),
            self.processor.as_ref().map_or(NONE, |one| one.engine).to_owned(),
            gbit_s(self.on_processor(|one| one.one)),
            gbit_s(self.on_processor(|one| one.all)),
            quantile(self.processor.as_ref(), 0.5),
            quantile(self.processor.as_ref(), 0.99),
            figure(self.pipsea()),
            figure(self.pipsea_alone()),
        ]
    }
}

const NONE: &str = "-";
const HEADS: [&str; 27] = [
    "suite, bytes",
    "kernel µs",
    "kernels",
    "with transfers",
    "bus alone",
    "gateway",
    "gateways",
    "spilled %",
    "p50 µs",
    "p99 µs",
    "judged",
    "prediction: kernels",
    "prediction: with transfers",
    "prediction: occupancy %",
    "prediction: limit",
    "worker: cycles",
    "worker",
    "workers",
    "prediction: gateway",
    "prediction: gateways",
    "processor",
    "one core",
    "all cores",
    "its p50 µs",
    "its p99 µs",
    "PIPSEA",
    "PIPSEA: kernels",
];

fn figure(value: Option<f64>) -> String {
    match value {
        None => NONE.to_owned(),
        Some(value) if value >= 99.95 => format!("{value:.0}"),
        Some(value) => format!("{value:.2}"),
    }
}

fn latency(of: Option<&Gateways>) -> Value {
    let Some(latency) = of.and_then(|one| one.latency.as_ref()) else { return Value::Null };
    let [p50, p99] = [0.5, 0.99].map(|share| latency.quantile_us(share));
    let spilled = of.map(|one| one.latency_spilled);
    json!({ "load": 0.5, "p50": p50, "p99": p99, "max": latency.max_us(), "spilled": spilled })
}

/// The array that `--json` prints.
pub(super) fn json(rows: &[Row]) -> Value {
    rows.iter().map(Row::json).collect()
}

/// The table, without columns that no row has; `missing`: why there is no GPU.
pub(super) fn table(rows: &[Row], missing: Option<&str>, model: &Model, cores: usize) -> String {
    let heads = HEADS.map(str::to_owned).to_vec();
    let all: Vec<Vec<String>> = [heads].into_iter().chain(rows.iter().map(Row::cells)).collect();
    let is_used = |column: &usize| {
        *column == 0 || all.iter().skip(1).any(|row| row.get(*column).is_some_and(|cell| cell != NONE))
    };
    let used: Vec<usize> = (0..HEADS.len()).filter(is_used).collect();
    let pick = |row: &Vec<String>| used.iter().filter_map(|column| row.get(*column).cloned()).collect();
    let text = Table::report(all.iter().map(pick).collect()).to_string();
    let mut lines = text.lines();
    let mut table = missing.map_or_else(String::new, |reason| format!("No GPU here: {reason}.\n\n"));
    table += &format!("{}\n", lines.next().unwrap_or_default());
    let mut group = String::new();
    for (row, line) in rows.iter().zip(lines) {
        if row.group() != group {
            group = row.group();
            table += &format!("\n  {group}\n");
        }
        table += &format!("{line}\n");
    }
    table + &legend(rows, missing.is_some(), model, cores)
}

fn legend(rows: &[Row], is_missing: bool, model: &Model, cores: usize) -> String {
    let mut text = format!(
        "\n  Gbit/s, unless a head says otherwise: of frames of the plain side with check sequence; bytes: of the inner packet.\n  \
         kernel, kernels, with transfers, bus alone: of launches of {LAUNCH_PACKETS} packets, without the processor's work; with transfers, bus alone: two under way, so that the bus carries both ways at once.\n  \
         gateway: end to end in memory, one worker; gateways, all cores: one on each of {cores} cores. one core, all cores: the fastest engine of the processor.\n  \
         p50, p99: how long a packet is in one gateway, from port to port, under half of the load that it takes.\n"
    );
    if is_missing {
        let Model { units, clock_ghz, bus_gb_s } = model;
        text += &format!(
            "  prediction: of a GPU of {units} units at {clock_ghz} GHz behind a bus of {bus_gb_s} GB/s each way, by transfers and occupancy (docs/GPU.md). Nobody has measured it.\n"
        );
    }
    if rows.iter().any(|row| row.handed_over.is_some()) {
        text += &format!(
            "  worker, workers: measured here, of one and of one on each of {cores} cores: what they hand over to a device that does nothing and take back, and their cycles for a packet; of packets that go out, in rows of either direction.\n  \
             prediction: gateway, gateways: end to end: launches with transfers, or what workers hand over, if that is less.\n"
        );
    }
    if rows.iter().any(|row| row.gpu.is_some()) {
        text += "  spilled: of the packets of gateways, and of those that p50 and p99 are of, the largest share that the GPU did not do, but the processor's engine behind it: a gateway's rate is of both.\n";
    }
    if rows.iter().any(|row| row.headers == Headers::Gpu) {
        text += "  headers by the GPU: its kernel writes SPI, number, IV, padding and trailer (gpu_headers); else the processor does.\n";
    }
    if rows.iter().any(|row| row.pipsea().is_some()) {
        text += "  PIPSEA: end to end on its APU, frames of these sizes (paper 002, 4.2).\n";
    }
    if rows.iter().any(|row| row.pipsea_alone().is_some()) {
        text += "  PIPSEA: kernels: its algorithms alone, of packets in main memory without headers (figure 8 of paper 002).\n";
    }
    if let Some(row) = rows.iter().find(|row| row.device.is_some() && !row.is_speed()) {
        text += &format!(
            "  {}: no speed was measured; a judge found all of the packets right that are counted.\n",
            row.group()
        );
    }
    let is_goal =
        |row: &&Row| row.is_pipseas() && row.size == Size::Bytes(GOAL_BYTES) && row.headers == Headers::Cpu;
    for row in rows.iter().filter(is_goal) {
        text += &goal(row);
    }
    text
}

/// What was to be reached, and what was: by the device. What it did not do is no part of its rate.
fn goal(row: &Row) -> String {
    let mut text = String::new();
    if let Some(rate) = row.on_gpu(|gpu| Some(gpu.all? * (1.0 - gpu.spilled[1]))) {
        let rate = row.gbit_s(rate);
        let goal = row.bus().map_or(GOAL_GBIT_S, |bus| bus.min(GOAL_GBIT_S));
        let word = if rate >= goal { "reached" } else { "not reached" };
        text += &format!(
            "  Goal of {} at {GOAL_BYTES} bytes, end to end, of packets that the GPU did: {goal:.0} Gbit/s: {word} ({rate:.1}).\n",
            row.suite
        );
    }
    let gpu = row.gpu.as_ref().filter(|_| row.is_speed());
    let p99 = gpu.and_then(|gpu| gpu.latency.as_ref()).and_then(|latency| latency.quantile_us(0.99));
    if let (Some(gpu), Some(p99)) = (gpu, p99) {
        let word = match (gpu.latency_spilled < MOST_SPILLED, p99 < GOAL_US) {
            (true, true) => "reached".to_owned(),
            (true, false) => "not reached".to_owned(),
            (false, _) => format!("not known, {:.0} % were the processor's", 100.0 * gpu.latency_spilled),
        };
        text += &format!("  Goal of added latency: below 1 ms at p99: {word} ({p99:.0} µs).\n");
    }
    text
}
