//! What `testudo bench` prints: a table for people, JSON for programs.

use std::collections::{BTreeMap, HashSet};

use serde_json::{Map, Value, json};
use testudo_packet::Stage;

use super::case::{Case, Size, Suites};
use super::device::Device;
use super::measure::Sample;
use super::subject::Run;
use crate::statistics::Spread;
use crate::table::Table;

/// All measurements of one case.
pub(super) struct Series {
    pub(super) case: Case,
    pub(super) engine: &'static str,
    /// Of several engines none is named.
    pub(super) device: Device,
    pub(super) judge: &'static str,
    pub(super) samples: Vec<Sample>,
}

impl Series {
    fn spread(&self, figure: impl Fn(&Sample) -> f64) -> Spread {
        Spread::of(self.samples.iter().map(figure))
    }

    pub(super) fn packets_per_second(&self) -> Spread {
        self.spread(|sample| sample.run.packets as f64 / sample.run.elapsed.as_secs_f64())
    }

    /// Of inner packets.
    pub(super) fn gbit_s(&self) -> Spread {
        self.spread(|sample| sample.run.bytes as f64 * 8e-9 / sample.run.elapsed.as_secs_f64())
    }

    fn cycles_per_packet(&self) -> Spread {
        self.spread(|sample| sample.run.ticks as f64 / sample.run.packets as f64)
    }

    /// Per byte of inner packets.
    fn cycles_per_byte(&self) -> Spread {
        self.spread(|sample| sample.run.ticks as f64 / sample.run.bytes as f64)
    }

    fn floor_cycles_per_packet(&self) -> Spread {
        self.spread(|sample| sample.floor_cycles_per_packet)
    }

    /// Cost of a packet as a multiple of the floor: the median of the ratios within each repetition.
    fn times_the_floor(&self) -> Spread {
        self.spread(|sample| {
            sample.run.ticks as f64 / sample.run.packets as f64 / sample.floor_cycles_per_packet
        })
    }

    /// Share of the measured time in which the measurement had the processor, 0 to 1.
    pub(super) fn processor_share(&self) -> Spread {
        self.spread(|sample| (sample.run.running.as_secs_f64() / sample.run.elapsed.as_secs_f64()).min(1.0))
    }

    /// Share of the measured cycles spent in `stage`, 0 to 1; and those cycles per packet.
    fn stage(&self, stage: Stage) -> (f64, f64) {
        let sum = |figure: &dyn Fn(&Sample) -> u64| self.samples.iter().map(figure).sum::<u64>() as f64;
        let ticks = sum(&|sample| sample.run.stages.of(stage));
        let share = |all: f64| if all > 0.0 { ticks / all } else { 0.0 };
        (share(sum(&|sample| sample.run.stages.total())), share(sum(&|sample| sample.run.stages.packets)))
    }

    /// The object of this case in the array that `--json` prints.
    pub(super) fn json(&self) -> Value {
        let Case { suites, way, size, sas, policies, carrier, order, .. } = self.case;
        let inner_bytes = match size {
            Size::Bytes(bytes) => json!(bytes),
            Size::Imix | Size::Random => json!(size.to_string()),
        };
        let mut object = Map::new();
        let mut put = |name: &str, value: Value| object.insert(name.to_owned(), value);
        put("suite", json!(suites.to_string()));
        put("direction", json!(way.name()));
        put("inner_bytes", inner_bytes);
        put("sas", json!(sas));
        put("policies", json!(policies));
        put("engine", json!(self.engine));
        put("device", json!(self.device.name));
        put("note", json!(self.device.note));
        put("encapsulation", json!(carrier.name()));
        put("formation", json!(order.name()));
        let figures = [
            ("packets_per_second", self.packets_per_second()),
            ("gbit_s", self.gbit_s()),
            ("cycles_per_packet", self.cycles_per_packet()),
            ("cycles_per_byte", self.cycles_per_byte()),
            ("floor_cycles_per_packet", self.floor_cycles_per_packet()),
            ("times_the_floor", self.times_the_floor()),
            ("processor_share", self.processor_share()),
        ];
        for (name, Spread { median, lowest, highest }) in figures {
            put(name, json!(median));
            put(&format!("{name}_lowest"), json!(lowest));
            put(&format!("{name}_highest"), json!(highest));
        }
        let stages = |pick: fn((f64, f64)) -> f64| {
            let named = |stage: Stage| (stage.name().to_owned(), json!(pick(self.stage(stage))));
            Value::Object(Stage::ALL.into_iter().map(named).collect())
        };
        put("stages", stages(|(share, _)| share));
        put("stage_cycles_per_packet", stages(|(_, cycles)| cycles));
        put("repetitions", json!(self.samples.len()));
        put("packets", json!(self.samples.iter().map(|sample| sample.run.packets).sum::<u64>()));
        put("judged_packets", json!(self.samples.iter().map(|sample| sample.judged).sum::<u64>()));
        put("judge", json!(self.judge));
        put("engine_shares", json!(self.engine_shares()));
        put("cores", Run::cores(self.samples.iter().map(|sample| &sample.run)));
        Value::Object(object)
    }

    /// The share of the jobs that each engine did, 0 to 1, where they are placed by what they cost.
    fn engine_shares(&self) -> BTreeMap<&'static str, f64> {
        let mut done = BTreeMap::<&'static str, u64>::new();
        for (engine, jobs) in self.samples.iter().flat_map(|sample| &sample.done) {
            *done.entry(engine).or_default() += jobs;
        }
        let all = done.values().sum::<u64>().max(1) as f64;
        done.into_iter().map(|(engine, jobs)| (engine, jobs as f64 / all)).collect()
    }

    /// The heading of a group: what its rows have in common.
    fn group(&self, rows: Rows, has_orders: bool) -> String {
        let Case { suites, way, size, carrier, order, .. } = self.case;
        let (way, sas, carrier) = (way.name(), self.case.scale(), carrier.name());
        let group = match (rows, size) {
            (Rows::Sizes, _) => {
                format!("{suites}, {way}, {}, {sas}, {carrier}", self.device.words(self.engine))
            }
            (Rows::Suites, Size::Bytes(bytes)) => format!("{bytes} bytes, {way}, {sas}, {carrier}"),
            (Rows::Suites, mix) => format!("{mix}, {way}, {sas}, {carrier}"),
        };
        if has_orders { format!("{group}, formation {}", order.name()) } else { group }
    }

    /// A row with its label.
    fn row(&self, label: String) -> Vec<String> {
        let rate = self.packets_per_second();
        let mpps = |rate: f64| figure(rate / 1e6);
        let mut row = vec![
            label,
            mpps(rate.median),
            format!("{}-{}", mpps(rate.lowest), mpps(rate.highest)),
            figure(self.gbit_s().median),
            format!("{:.0}", self.cycles_per_packet().median),
            format!("{:.2}", self.cycles_per_byte().median),
            format!("{:.0}", self.floor_cycles_per_packet().median),
            format!("{:.2}", self.times_the_floor().median),
        ];
        row.extend(Stage::ALL.map(|stage| format!("{:.0}", self.stage(stage).0 * 100.0)));
        row
    }
}

/// About three significant digits, at most two decimals.
fn figure(value: f64) -> String {
    match value {
        v if v >= 99.95 => format!("{v:.0}"),
        v if v >= 9.995 => format!("{v:.1}"),
        v => format!("{v:.2}"),
    }
}

fn short_name(stage: Stage) -> &'static str {
    match stage {
        Stage::Receive => "rx",
        Stage::Framing => "frame",
        Stage::Cryptography => "crypt",
        Stage::Finish => "fin",
        Stage::Transmit => "tx",
        other => other.name(),
    }
}

/// What the rows of a group differ in; the heading has what they have in common.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Rows {
    Sizes,
    Suites,
}

impl Rows {
    /// The rows that make few and large groups: where there are more suites than sizes, one can compare
    /// suites, and the engines that do each.
    fn of(series: &[Series]) -> Self {
        let suites: HashSet<_> = series.iter().map(|series| series.case.suites).collect();
        let sizes: HashSet<_> = series.iter().map(|series| series.case.size).collect();
        if suites.len() > sizes.len() { Self::Suites } else { Self::Sizes }
    }

    fn head(self) -> &'static str {
        match self {
            Self::Sizes => "bytes",
            Self::Suites => "suite, engine",
        }
    }

    /// The series in the order of the table: those of a group side by side, groups as they come; in a group
    /// of suites each one's engines, the fastest first.
    fn arranged(self, series: &[Series]) -> Vec<&Series> {
        let group = |series: &Series| {
            let Case { way, size, sas, order, .. } = series.case;
            (way, size, sas, order)
        };
        let mut arranged: Vec<_> = series.iter().collect();
        if self == Self::Suites {
            let first_of = |one: &Series| series.iter().position(|other| group(other) == group(one));
            let suites_of =
                |one: &Series| series.iter().position(|other| other.case.suites == one.case.suites);
            // Numbers above zero are in the order of their bits.
            let cycles = |one: &Series| one.cycles_per_packet().median.to_bits();
            arranged.sort_by_cached_key(|series| (first_of(series), suites_of(series), cycles(series)));
        }
        arranged
    }

    /// The rows' labels; a suite stands only before the first of its engines.
    fn labels(self, series: &[&Series]) -> Vec<String> {
        let name = |series: &Series| series.case.suites.to_string();
        let width = series.iter().map(|series| name(series).len()).max().unwrap_or(0);
        let mut suite = String::new();
        let label = |series: &&Series| match self {
            Self::Sizes => series.case.size.to_string(),
            Self::Suites => {
                let before = std::mem::replace(&mut suite, name(series));
                let shown = if before == suite { "" } else { &suite };
                let note = series.device.note.map_or_else(String::new, |note| format!(" ({note})"));
                format!("{shown:width$}  {}{note}", series.engine)
            }
        };
        series.iter().map(label).collect()
    }
}

/// One row per case; rows that differ only in size, or only in suite and engine, form a group.
pub(super) fn table(series: &[Series]) -> String {
    let kind = Rows::of(series);
    let series = kind.arranged(series);
    let heads = [kind.head(), "Mpps", "spread", "Gbit/s", "cycles", "/byte", "floor", "×floor"];
    let heads = heads.into_iter().chain(Stage::ALL.map(short_name));
    let mut rows = vec![heads.map(str::to_owned).collect::<Vec<_>>()];
    rows.extend(series.iter().zip(kind.labels(&series)).map(|(series, label)| series.row(label)));
    let text = Table::report(rows).to_string();
    let has_orders = series.iter().any(|other| other.case.order != series[0].case.order);
    let mut lines = text.lines();
    let mut table = format!("{}\n", lines.next().unwrap_or_default());
    let mut group = String::new();
    for (series, line) in series.iter().zip(lines) {
        let this = series.group(kind, has_orders || series.case.suites == Suites::Mixed);
        if this != group {
            group = this;
            table += &format!("\n  {group}\n");
        }
        table += line;
        table.push('\n');
    }
    table
}

/// The array that `--json` prints.
pub(super) fn json(series: &[Series]) -> Value {
    Value::Array(series.iter().map(Series::json).collect())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use testudo_packet::StageTimes;

    use super::super::case::{Carrier, Order, Way};
    use super::super::subject::Run;
    use super::*;

    fn series(suite: &str, engine: &'static str, ticks: u64, size: u16) -> Series {
        let suites = Suites::One(suite.parse().expect("a suite"));
        let (carrier, order) = (Carrier::Esp, Order::Length);
        let size = Size::Bytes(size.into());
        let case = Case {
            suites,
            way: Way::Outbound,
            size,
            sas: 1,
            policies: 1,
            carrier,
            order,
            esn: true,
            engine: 0,
            placed: 0,
        };
        let elapsed = Duration::from_millis(1);
        let stages = StageTimes::default();
        let run = Run { packets: 1, bytes: 1, ticks, elapsed, running: elapsed, stages, ..Run::default() };
        Series {
            case,
            engine,
            device: Device::default(),
            judge: "",
            samples: vec![Sample {
                run,
                floor_cycles_per_packet: 1.0,
                judged: 1,
                done: [("vaes", 3), ("portable", 1)].into(),
            }],
        }
    }

    fn first_columns(table: &str) -> Vec<String> {
        let cells = |line: &str| line.split("   ").next().unwrap_or_default().trim_end().to_owned();
        table.lines().map(cells).collect()
    }

    #[test]
    fn a_table_of_suites_has_the_engines_of_each_side_by_side_and_the_fastest_first() {
        let found = table(&[
            series("aes128gcm16", "one", 300, 64),
            series("aes128gcm16", "other", 200, 64),
            series("aes128-sha1", "one", 100, 64),
            series("aes128-sha1", "other", 400, 64),
        ]);
        println!("{found}");
        let rows = found.lines().skip(3).map(str::trim_end);
        let labels =
            ["  aes128gcm16  other", "               one", "  aes128-sha1  one", "               other"];
        assert!(rows.zip(labels).all(|(row, label)| row.starts_with(label)), "{found}");
        assert_eq!(found.lines().nth(2), Some("  64 bytes, outbound, 1 SA, esp"), "{found}");
    }

    #[test]
    fn a_table_of_sizes_has_a_group_for_each_engine() {
        let found = table(&[
            series("aes128gcm16", "one", 300, 64),
            series("aes128gcm16", "one", 300, 1420),
            series("aes128gcm16", "other", 300, 64),
            series("aes128gcm16", "other", 300, 1420),
        ]);
        let groups = first_columns(&found).into_iter().filter(|line| line.contains("aes128gcm16")).count();
        assert_eq!(groups, 2, "{found}");
    }
}
