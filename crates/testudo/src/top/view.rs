//! A snapshot for people, in 80 columns, and for programs.

use crate::placement;
use serde_json::{Map, Value, json};
use testudo_control::watch::{
    Bottleneck, Change, Direction, Heaviest, PortRates, Reading, WorkerRates, bottleneck, shares,
};
use testudo_gateway::Role;
use testudo_lab::table::grouped_figure;
use testudo_packet::Stage;

/// The width of the output.
pub const COLUMNS: usize = 80;
/// Columns of a bar for a share of 1.
const BAR_COLUMNS: usize = 6;
/// Blocks for eighths of a column.
const EIGHTHS: [&str; 8] = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"];
/// Columns for a port's name; the rest of the line is figures.
const NAME_COLUMNS: usize = 33;

/// A bar for a share of 1.
fn bar(share: f64) -> String {
    let whole = BAR_COLUMNS * EIGHTHS.len();
    let eighths = (1..=whole).filter(|n| share * whole as f64 + 0.5 >= *n as f64).count();
    format!("{}{}", "█".repeat(eighths / 8), EIGHTHS[eighths % 8])
}

fn figure(value: Option<f64>) -> String {
    value.map_or("-".to_owned(), grouped_figure)
}

/// With one decimal if the value is small.
fn fine(value: Option<f64>) -> String {
    value.map_or("-".to_owned(), |v| if v < 99.95 { format!("{v:.1}") } else { grouped_figure(v) })
}

fn percent(share: Option<f64>) -> String {
    share.map_or("-".to_owned(), |share| format!("{:.0} %", share * 100.0))
}

/// At most so many characters of a text.
fn cut(text: &str, columns: usize) -> String {
    if text.chars().count() <= columns {
        return text.to_owned();
    }
    text.chars().take(columns.saturating_sub(1)).chain(['…']).collect()
}

/// Words in lines of at most [`COLUMNS`].
fn wrapped(text: &str) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        let line = lines.last().map_or(0, |line| line.chars().count());
        if line > 0 && line + 1 + word.chars().count() > COLUMNS {
            lines.push(word.to_owned());
        } else if let Some(last) = lines.last_mut() {
            *last += if line > 0 { " " } else { "" };
            *last += word;
        }
    }
    lines
}

fn head(reading: &Reading) -> String {
    let up = reading.uptime_seconds;
    let down = match reading.tunnels_down {
        0 => String::new(),
        n => format!(" ({n} down)"),
    };
    let tunnels = if reading.tunnels == 1 { "tunnel" } else { "tunnels" };
    let nic = reading.in_nic.map_or(String::new(), |(sealing, opening)| {
        format!(", NIC: seals for {sealing} and opens for {opening} SAs")
    });
    format!(
        "testudo {}, up {}:{:02}:{:02}, {} {tunnels}{down}, engine {}{nic}",
        reading.version,
        up / 3600,
        up / 60 % 60,
        up % 60,
        reading.tunnels,
        reading.engine
    )
}

fn worker(change: &Change) -> String {
    let time = change.worker.map_or(String::new(), |(ran, queued)| {
        let (ran, queued) = (ran * 100.0, queued * 100.0);
        format!(", {ran:.0} % on a processor, {queued:.0} % waiting for one")
    });
    let who = match change.workers.len() {
        0 | 1 => "worker".to_owned(),
        workers => format!("{workers} workers"),
    };
    format!("{who} {:.0} % busy with packets{time}", change.busy() * 100.0)
}

/// A row for each of several workers, and the imbalance, if there is one.
fn workers(change: &Change, reading: &Reading) -> Vec<String> {
    if change.workers.len() < 2 {
        return Vec::new();
    }
    let row = |[a, b, c, d, e]: [String; 5]| format!("{a:<20}{b:>16}{c:>16}{d:>14}{e:>8}");
    let heads = ["per second", "outbound", "inbound", "dropped", "busy"].map(str::to_owned);
    let mut lines = vec![row(heads)];
    lines.extend(change.workers.iter().enumerate().map(|(number, worker)| {
        row([
            match worker.role {
                Role::Both if worker.is_parked => format!("worker {number}, parked"),
                Role::Both => format!("worker {number}"),
                role => format!("worker {number}, {role}"),
            },
            grouped_figure(worker.outbound_per_second),
            grouped_figure(worker.inbound_per_second),
            fine(Some(worker.dropped_per_second)),
            percent(Some(worker.busy)),
        ])
    }));
    lines.extend(change.imbalance().map(|(most, least)| {
        format!(
            "unbalanced: the busiest worker is {} busy, the idlest {}",
            percent(Some(most)),
            percent(Some(least))
        )
    }));
    lines.extend(reading.imbalance.iter().flat_map(|words| wrapped(words)));
    lines
}

/// With more digits if two would show nothing.
fn gbit_s(value: f64) -> String {
    if value > 0.0 && value < 0.1 { format!("{value:.4}") } else { format!("{value:.2}") }
}

/// A row with one figure per direction.
fn rate_row(name: &str, change: &Change, show: impl Fn(&Direction) -> String) -> String {
    format!("{name:<14}{:>18}{:15}{:>18}", show(&change.outbound), "", show(&change.inbound))
}

fn rates(change: &Change) -> Vec<String> {
    vec![
        format!("{:<14}{:>18}{:15}{:>18}", "", "outbound", "", "inbound"),
        rate_row("packets/s", change, |d| grouped_figure(d.packets_per_second)),
        rate_row("Gbit/s", change, |d| gbit_s(d.gbit_s)),
        rate_row("packets/call", change, |d| fine(d.packets_per_call)),
        rate_row("packets/batch", change, |d| fine(d.packets_per_batch())),
        rate_row("worker's time", change, |d| percent(Some(d.busy))),
    ]
}

/// One direction's cells in a row of the table of stages.
struct Cells {
    per_packet: Option<f64>,
    per_batch: Option<f64>,
    share: Option<f64>,
    bar: String,
}

impl Cells {
    fn of_stage(direction: &Direction, stage: Stage) -> Self {
        let share = direction.share(stage);
        Self {
            per_packet: direction.cycles_per_packet(stage),
            per_batch: direction.cycles_per_batch(stage),
            share,
            bar: share.map_or(String::new(), bar),
        }
    }

    fn of_all(direction: &Direction) -> Self {
        let (per_packet, per_batch) = direction.cycles();
        Self { per_packet, per_batch, share: per_packet.map(|_| 1.0), bar: String::new() }
    }

    fn render(&self) -> String {
        let (packet, batch) = (figure(self.per_packet), figure(self.per_batch));
        format!("{packet:>8}{batch:>10}{:>7} {:<BAR_COLUMNS$}", percent(self.share), self.bar)
    }
}

fn stages(change: &Change) -> Vec<String> {
    let row = |name: &str, cells: &dyn Fn(&Direction) -> Cells| {
        let (outbound, inbound) = (cells(&change.outbound).render(), cells(&change.inbound).render());
        format!("{name:<14}{outbound} {inbound}")
    };
    let heads = format!("{:>8}{:>10}{:>7} {:BAR_COLUMNS$}", "packet", "batch", "share", "");
    let mut lines = vec![format!("{:<14}{heads} {heads}", "cycles per")];
    lines.extend(Stage::ALL.map(|stage| row(stage.name(), &|d| Cells::of_stage(d, stage))));
    lines.push(row("all", &Cells::of_all));
    lines
}

fn ports(change: &Change) -> Vec<String> {
    let row = |name: &str, cells: [String; 5]| {
        let [a, b, c, d, e] = cells;
        format!("{:<NAME_COLUMNS$}{a:>11}{b:>8}{c:>12}{d:>8}{e:>8}", cut(name, NAME_COLUMNS))
    };
    let heads = ["packets in", "Gbit/s", "packets out", "Gbit/s", "waiting"].map(str::to_owned);
    let mut lines = vec![row("per second", heads)];
    lines.extend(change.ports().map(|(side, port)| {
        let cells = [
            grouped_figure(port.rx_packets_per_second),
            gbit_s(port.rx_gbit_s),
            grouped_figure(port.tx_packets_per_second),
            gbit_s(port.tx_gbit_s),
            percent(Some(port.waiting)),
        ];
        row(&format!("{side}: {}", port.name), cells)
    }));
    lines
}

fn drops(change: &Change) -> Vec<String> {
    if change.drops.is_empty() {
        return vec!["no packet was dropped".to_owned()];
    }
    let reasons = change
        .drops
        .iter()
        .map(|(reason, rate)| format!("{} {}", reason.replace('_', " "), fine(Some(*rate))));
    wrapped(&format!("dropped per second: {}", reasons.collect::<Vec<_>>().join(", ")))
}

/// What is shown of a snapshot, in lines of at most 80 columns.
pub struct Picture {
    figures: Vec<String>,
    /// Names the bottleneck; shown last, even if nothing else fits.
    verdict: Vec<String>,
}

impl Picture {
    /// Of a snapshot.
    pub fn of(change: &Change, reading: &Reading) -> Self {
        let blocks = [
            vec![cut(&head(reading), COLUMNS), worker(change)],
            workers(change, reading),
            rates(change),
            shares::words(&change.shares).map_or_else(Vec::new, |words| wrapped(&words)),
            placement::gathered(&reading.gathered).iter().flat_map(|words| wrapped(words)).collect(),
            reading.threading.iter().flat_map(|words| wrapped(words)).collect(),
            stages(change),
            ports(change),
            drops(change),
        ];
        let mut figures: Vec<String> = Vec::new();
        for block in blocks.into_iter().filter(|block| !block.is_empty()) {
            figures.extend(block.iter().map(|line| line.trim_end().to_owned()));
            figures.push(String::new());
        }
        Self { figures, verdict: wrapped(&bottleneck(change).tell(change, reading)) }
    }

    /// A message, while there are no figures.
    pub fn message(words: &str) -> Self {
        Self { figures: Vec::new(), verdict: wrapped(words) }
    }

    /// All lines.
    pub fn lines(&self) -> Vec<String> {
        self.figures.iter().chain(&self.verdict).cloned().collect()
    }

    /// The lines that fit a screen: blank lines go first, then figures from the bottom up.
    pub fn fitted(&self, columns: usize, rows: usize) -> Vec<String> {
        let mut figures = self.figures.clone();
        let room = rows.saturating_sub(self.verdict.len());
        while figures.len() > room {
            let Some(blank) = figures.iter().rposition(String::is_empty) else { break };
            figures.remove(blank);
        }
        figures.truncate(room);
        let shown = figures.iter().chain(&self.verdict).take(rows);
        shown.map(|line| cut(line, columns)).collect()
    }
}

fn direction_json(direction: &Direction) -> Value {
    let stage = |stage: Stage| {
        let figures = json!({
            "cycles_per_packet": direction.cycles_per_packet(stage),
            "cycles_per_batch": direction.cycles_per_batch(stage),
            "share": direction.share(stage),
        });
        (stage.name().to_owned(), figures)
    };
    let (cycles_per_packet, cycles_per_batch) = direction.cycles();
    json!({
        "packets_per_second": direction.packets_per_second,
        "gbit_s": direction.gbit_s,
        "packets_per_call": direction.packets_per_call,
        "packets_per_batch": direction.packets_per_batch(),
        "busy": direction.busy,
        "cycles_per_packet": cycles_per_packet,
        "cycles_per_batch": cycles_per_batch,
        "measured_batches": direction.times.batches,
        "stages": Stage::ALL.into_iter().map(stage).collect::<Map<_, _>>(),
    })
}

fn port_json(port: &PortRates) -> Value {
    json!({
        "name": port.name,
        "rx_packets_per_second": port.rx_packets_per_second,
        "rx_gbit_s": port.rx_gbit_s,
        "tx_packets_per_second": port.tx_packets_per_second,
        "tx_gbit_s": port.tx_gbit_s,
        "waiting": port.waiting,
    })
}

fn worker_json(worker: &WorkerRates) -> Value {
    json!({
        "role": worker.role.name(),
        "parked": worker.is_parked,
        "outbound_per_second": worker.outbound_per_second,
        "inbound_per_second": worker.inbound_per_second,
        "dropped_per_second": worker.dropped_per_second,
        "busy": worker.busy,
    })
}

fn bottleneck_json(change: &Change, reading: &Reading) -> Value {
    let found = bottleneck(change);
    let words = found.tell(change, reading);
    let (stage, direction, side) = match &found {
        Bottleneck::Stage(Heaviest { stage, direction, .. }) => (Some(stage.name()), Some(*direction), None),
        Bottleneck::Port { side, .. } => (None, None, Some(*side)),
        _ => (None, None, None),
    };
    json!({ "kind": found.kind(), "stage": stage, "direction": direction, "side": side, "words": words })
}

/// A snapshot for programs.
pub fn json(change: &Change, reading: &Reading) -> Value {
    let drops = change.drops.iter().map(|(reason, rate)| (reason.clone(), json!(rate)));
    json!({
        "seconds": change.seconds,
        "ticks_per_second": change.ticks_per_second,
        "engine": reading.engine,
        "busy": change.busy(),
        "on_processor": change.worker.map(|(ran, _)| ran),
        "waiting_for_processor": change.worker.map(|(_, queued)| queued),
        "workers": change.workers.iter().map(worker_json).collect::<Vec<_>>(),
        "outbound": direction_json(&change.outbound),
        "inbound": direction_json(&change.inbound),
        "ports": { "protected": port_json(&change.protected), "unprotected": port_json(&change.unprotected) },
        "drops_per_second": drops.collect::<Map<_, _>>(),
        "free_buffers": reading.free_buffers,
        "engines": shares::json(&change.shares),
        "gathering": reading.gathered.iter().cloned().collect::<Map<_, _>>(),
        "threading": reading.threading,
        "bottleneck": bottleneck_json(change, reading),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A reading after `seconds` of a gateway whose clock ticks 1,000 times in a microsecond.
    fn reading(seconds: u64) -> Reading {
        Reading {
            measured_of: 8,
            elapsed_ns: seconds * 1_000_000_000,
            clock_ticks: 77 + seconds * 1_000_000_000,
            free_buffers: 100,
            ..Reading::default()
        }
    }

    /// A gateway with long names, all figures large, and every drop reason at once.
    fn crowded() -> (Change, Reading) {
        let (mut a, mut b) = (reading(1), reading(2));
        (a.worker, b.worker) = (Some((0, 0)), Some((1_000_000_000, 100_000_000)));
        b.version = "0.1.0".to_owned();
        b.engine = "ipsec-mb".to_owned();
        b.missed_engine =
            Some(("another-engine".to_owned(), "its library is nowhere to be found ".repeat(3)));
        (b.tunnels, b.tunnels_down, b.uptime_seconds) = (10_000, 10_000, 1 << 24);
        for times in [&mut b.outbound, &mut b.inbound] {
            *times = testudo_packet::StageTimes { ticks: [15_500_000; 8], packets: 20, batches: 1 };
        }
        for port in [&mut b.protected, &mut b.unprotected] {
            port.name = "udp [2001:db8:1234:5678:9abc:def0:1234:5678]:4500".to_owned();
            port.counters.rx_packets = 99_999_999;
            port.counters.tx_packets = 99_999_999;
            port.counters.rx_bytes = 120_000_000_000;
            port.counters.tx_bytes = 120_000_000_000;
        }
        b.drops = testudo_packet::DropReason::ALL.iter().map(|r| (r.name().to_owned(), 123_456)).collect();
        (Change::between(&a, &b).unwrap(), b)
    }

    fn idle() -> Picture {
        let (a, b) = (reading(1), reading(2));
        Picture::of(&Change::between(&a, &b).unwrap(), &b)
    }

    #[test]
    fn no_snapshot_is_wider_than_80_columns() {
        let (change, reading) = crowded();
        let shown = Picture::of(&change, &reading).lines();
        let wide: Vec<_> = shown.iter().filter(|line| line.chars().count() > COLUMNS).collect();
        assert!(wide.is_empty(), "{wide:#?}");
        assert!(shown.iter().any(|line| line.starts_with("cryptography")), "{shown:#?}");
    }

    #[test]
    fn the_bottleneck_is_shown_on_the_smallest_screen() {
        assert_eq!(idle().lines().last().unwrap(), "no packets arrived: there is no bottleneck");
        let (change, reading) = crowded();
        let busy = Picture::of(&change, &reading);
        assert!(busy.verdict.len() > 1, "it takes some lines");
        for (picture, rows) in [(idle(), 1), (idle(), 5), (idle(), 100), (busy, 12)] {
            let shown = picture.fitted(40, rows);
            let verdict: Vec<_> = picture.verdict.iter().map(|line| cut(line, 40)).collect();
            assert!(shown.len() <= rows && shown.ends_with(&verdict), "{rows}: {shown:#?}");
        }
    }

    #[test]
    fn a_usual_screen_shows_all_but_blank_lines() {
        let picture = idle();
        let shown = picture.fitted(80, 24);
        let full = picture.lines().into_iter().filter(|line| !line.is_empty()).count();
        assert_eq!(shown.iter().filter(|line| !line.is_empty()).count(), full);
    }

    #[test]
    fn several_workers_have_a_row_each_and_the_imbalance_is_named() {
        let (mut change, reading) = crowded();
        let worker = |busy| WorkerRates {
            role: Role::Both,
            is_parked: false,
            outbound_per_second: 1_234_567.0,
            inbound_per_second: 7.0,
            dropped_per_second: 0.5,
            busy,
        };
        change.workers = vec![worker(0.4), worker(0.35)];
        let text = Picture::of(&change, &reading).lines().join("\n");
        assert!(text.contains("2 workers"), "{text}");
        assert!(text.contains("worker 1") && text.contains("35 %") && !text.contains("unbalanced"), "{text}");
        change.workers = vec![worker(0.4), worker(0.1)];
        let lines = Picture::of(&change, &reading).lines();
        let text = "unbalanced: the busiest worker is 40 % busy, the idlest 10 %";
        assert!(lines.iter().any(|line| line == text), "{lines:#?}");
        assert!(lines.iter().all(|line| line.chars().count() <= COLUMNS), "{lines:#?}");
        assert_eq!(json(&change, &reading)["workers"][1]["busy"], 0.1);
    }

    #[test]
    fn workers_are_shown_with_their_roles_and_compared_with_those_of_the_same() {
        let (mut change, reading) = crowded();
        let worker = |role, busy| WorkerRates {
            role,
            is_parked: false,
            outbound_per_second: 0.0,
            inbound_per_second: 0.0,
            dropped_per_second: 0.0,
            busy,
        };
        change.workers = vec![worker(Role::Encrypt, 0.9), worker(Role::Decrypt, 0.1)];
        let text = Picture::of(&change, &reading).lines().join("\n");
        assert!(text.contains("worker 0, encrypt") && text.contains("worker 1, decrypt"), "{text}");
        assert!(!text.contains("unbalanced"), "one has nothing that the other could do: {text}");
        change.workers.push(worker(Role::Decrypt, 0.4));
        let text = Picture::of(&change, &reading).lines().join("\n");
        assert!(text.contains("unbalanced: the busiest worker is 40 % busy, the idlest 10 %"), "{text}");
        assert_eq!(json(&change, &reading)["workers"][2]["role"], "decrypt");
        let words = "worker 2 has 80 % of the inbound packets of 2 workers: there is one SPI";
        let reading = Reading { imbalance: vec![words.to_owned()], ..reading };
        let text = Picture::of(&change, &reading).lines().join(" ");
        assert!(text.contains(words), "{text}");
    }

    #[test]
    fn a_bar_is_as_long_as_its_share() {
        assert_eq!([0.0, 0.5, 1.0].map(bar), ["", "███", "██████"]);
        assert_eq!(bar(1.0 / 48.0), "▏");
        assert!([0.1, 0.33, 0.99, 1.0].iter().all(|share| bar(*share).chars().count() <= BAR_COLUMNS));
    }

    #[test]
    fn json_has_the_same_figures() {
        let (change, reading) = crowded();
        let value = json(&change, &reading);
        assert_eq!(value["bottleneck"]["kind"], "worker");
        assert_eq!(value["outbound"]["stages"]["parse"]["share"], 0.125);
        assert_eq!(value["outbound"]["cycles_per_batch"], 124_000_000.0);
        assert_eq!(value["drops_per_second"]["not_ip"], 123_456.0);
    }
}
