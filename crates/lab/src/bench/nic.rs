//! `testudo bench nic`: what is left for the CPU if a NIC does the cryptography (paper 000, figures 5a and
//! 5b).
//!
//! ```text
//!   packets ─► Worker::turn ─► twin of an 82599, whose cryptography costs nothing ─► forgotten     the NIC path
//!   packets ─► Worker::turn, with the cryptography ─► forgotten                                    software
//! ```
//!
//! Both paths in turns in the same run, with the same tunnel and packets, outbound as drawn and inbound. No
//! such NIC was measured: the twin takes packets for sealed as they are, and what it does to find its session
//! counts as the CPU's. So what is measured of the NIC's path is the processor's part; the throughput that
//! follows from it alone, without the link and the NIC itself, is a prediction. Cycles per byte
//! are the paper's: clock times busy share, divided by packets a second and bytes of a frame.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use serde_json::{Value, json};
use testudo_crypto::Suite;
use testudo_gateway::Candidate;

use super::case::{Carrier, Case, Order, Size, Suites, Way};
use super::chart::{self, Extent, Line, Panel};
use super::error::BenchError;
use super::nic_paths::once;
use super::subject::Run;
use super::{open_picture, write_picture};
use crate::statistics::Spread;
use crate::table::Table;

/// Frames as the paper has them, from the shortest to the longest, in bytes with their check sequence.
const FRAMES: [usize; 8] = [64, 128, 256, 512, 768, 1024, 1280, 1518];
/// Ethernet header and check sequence.
const FRAME_EXTRA_BYTES: usize = 18;
/// Columns of a bar for the highest figure.
const BAR: f64 = 24.0;

/// Options of `testudo bench nic`.
#[derive(Debug, Clone, clap::Args)]
pub struct BenchNicOptions {
    /// Milliseconds of one measurement
    #[arg(long, value_name = "MS", default_value_t = 200, value_parser = clap::value_parser!(u64).range(1..=60_000))]
    pub duration: u64,

    /// Measurements of each case, of which the median counts
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub repeat: u32,

    /// Print a JSON array instead of the table
    #[arg(long)]
    pub json: bool,

    /// Also draw both figures to a file
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,
}

/// Who does the cryptography.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Path {
    Nic,
    Software,
}

impl Path {
    const ALL: [Self; 2] = [Self::Nic, Self::Software];

    fn name(self) -> &'static str {
        match self {
            Self::Nic => "nic",
            Self::Software => "software",
        }
    }

    fn words(self) -> &'static str {
        match self {
            Self::Nic => "the NIC",
            Self::Software => "software",
        }
    }
}

/// The figures of one path in one direction at one length.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Figures {
    frame_bytes: usize,
    way: Way,
    path: Path,
    packets_per_second: f64,
    cycles_per_packet: f64,
    processors: [usize; 2],
}

impl Figures {
    fn of((frame_bytes, way, path): Which, run: &Run) -> Self {
        let (packets, seconds) = (run.packets as f64, run.elapsed.as_secs_f64());
        // The share of time in which this thread had a processor.
        let busy = run.running.as_secs_f64() / seconds;
        let cycles_per_packet = run.ticks as f64 * busy / packets;
        let packets_per_second = packets / (seconds * busy);
        Self { frame_bytes, way, path, packets_per_second, cycles_per_packet, processors: run.processors }
    }

    fn gbit_s(&self) -> f64 {
        self.packets_per_second * self.frame_bytes as f64 * 8.0 / 1e9
    }

    fn cycles_per_byte(&self) -> f64 {
        self.cycles_per_packet / self.frame_bytes as f64
    }

    fn json(&self) -> Value {
        json!({
            "frame_bytes": self.frame_bytes,
            "direction": self.way.name(),
            "path": self.path.name(),
            "packets_per_second": self.packets_per_second,
            "gbit_s": (self.path == Path::Software).then(|| self.gbit_s()),
            "predicted_gbit_s": (self.path == Path::Nic).then(|| self.gbit_s()),
            "cycles_per_packet": self.cycles_per_packet,
            "cycles_per_byte": self.cycles_per_byte(),
            "cores": { "worker": BTreeSet::from(self.processors) },
        })
    }
}

/// Measures both paths in both directions at all lengths, and draws what was found; what is printed.
pub(super) fn measure(options: &BenchNicOptions, candidates: Vec<Candidate>) -> Result<String, BenchError> {
    // Fail before the measurement, not after it, if the picture cannot be written.
    let picture = options.svg.as_deref().map(open_picture).transpose()?;
    let mut runs: Vec<Vec<Figures>> = vec![Vec::new(); cases().count()];
    for _ in 0..options.repeat {
        for (at, which @ (frame, way, path)) in cases().enumerate() {
            let invalid = |what| BenchError::Invalid {
                case: format!("{frame} bytes, {}, {}", way.name(), path.name()),
                what,
            };
            let duration = Duration::from_millis(options.duration);
            let run = once(&case(frame, way), path, &candidates, duration).map_err(invalid)?;
            runs[at].push(Figures::of(which, &run));
        }
    }
    let figures: Vec<Figures> = runs.iter_mut().filter_map(|runs| median(runs)).collect();
    if let Some((path, file)) = picture {
        write_picture(&draw(&runs, options.repeat), path, file)?;
    }
    Ok(match options.json {
        true => format!("{:#}\n", Value::from(figures.iter().map(Figures::json).collect::<Vec<_>>())),
        false => table(&figures),
    })
}

/// Bytes of a frame, direction, and path.
type Which = (usize, Way, Path);

fn cases() -> impl Iterator<Item = Which> {
    let ways = [Way::Outbound, Way::Inbound].into_iter();
    ways.flat_map(|way| FRAMES.into_iter().flat_map(move |frame| Path::ALL.map(|path| (frame, way, path))))
}

fn case(frame: usize, way: Way) -> Case {
    Case {
        suites: Suites::One(Suite::AES128GCM16),
        way,
        size: Size::Bytes(frame - FRAME_EXTRA_BYTES),
        sas: 1,
        policies: 1,
        carrier: Carrier::Esp,
        order: Order::default(),
        // An 82599 has none.
        esn: false,
        engine: 0,
        placed: 0,
    }
}

fn median(runs: &mut [Figures]) -> Option<Figures> {
    runs.sort_by(|a, b| a.packets_per_second.total_cmp(&b.packets_per_second));
    runs.get(runs.len() / 2).copied()
}

/// Both of the paper's figures, one above the other: a colour for each path, dashes for inbound.
fn draw(runs: &[Vec<Figures>], repeat: u32) -> String {
    let lines = |value: fn(&Figures) -> f64| {
        let of = |way: Way, (colour, path): (usize, Path)| {
            let runs = runs.iter().filter(|runs| runs.iter().all(|f| (f.way, f.path) == (way, path)));
            let point =
                |runs: &Vec<Figures>| Some((runs.first()?.frame_bytes, Spread::of(runs.iter().map(value))));
            let name = format!("cryptography in {}, {}", path.words(), way.name());
            Line {
                name,
                colour,
                dash: way as usize,
                points: runs.filter_map(point).collect(),
                mixes: [None; 2],
            }
        };
        let both = |way| (0..).zip(Path::ALL).map(move |path| of(way, path));
        let mut lines: Vec<Line> = [Way::Outbound, Way::Inbound].into_iter().flat_map(both).collect();
        chart::sort(&mut lines);
        lines
    };
    let subtitle = format!(
        "one core, AES-128-GCM, one SA; the NIC is a twin in memory whose cryptography costs nothing; what the processor's part allows is predicted for it; medians of {repeat}, with lowest and highest"
    );
    let panel = |title: &str, unit: &str, value| Panel {
        title: title.to_owned(),
        subtitle: subtitle.clone(),
        across: "frame size (bytes, with check sequence)".to_owned(),
        up: unit.to_owned(),
        extent: Extent::Zero,
        lines: lines(value),
    };
    chart::svg(&[
        panel(
            "Testudo: throughput if a NIC does the cryptography (5a)",
            "throughput (Gbit/s of frames)",
            Figures::gbit_s,
        ),
        panel(
            "Testudo: cycles a byte that are left to pay (5b)",
            "cycles per byte",
            Figures::cycles_per_byte,
        ),
    ])
}

fn bar(value: f64, highest: f64) -> String {
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a share of the columns")]
    let columns = (value / highest * BAR).round().max(1.0) as usize;
    "█".repeat(columns)
}

fn table(figures: &[Figures]) -> String {
    let highest = |of: fn(&Figures) -> f64| figures.iter().map(of).fold(f64::MIN_POSITIVE, f64::max);
    let (fastest, dearest) = (highest(Figures::gbit_s), highest(Figures::cycles_per_byte));
    let mut table = Table::new(&[
        "frame bytes",
        "direction",
        "cryptography in",
        "Mpackets/s",
        "Gbit/s",
        "predicted Gbit/s",
        "cycles/packet",
        "cycles/byte",
        "Gbit/s (5a)",
        "cycles/byte (5b)",
    ]);
    let rate = |f: &Figures, path: Path| match f.path == path {
        true => format!("{:.1}", f.gbit_s()),
        false => "-".to_owned(),
    };
    for f in figures {
        table.row(vec![
            f.frame_bytes.to_string(),
            f.way.name().to_owned(),
            f.path.name().to_owned(),
            format!("{:.2}", f.packets_per_second / 1e6),
            rate(f, Path::Software),
            rate(f, Path::Nic),
            format!("{:.0}", f.cycles_per_packet),
            format!("{:.2}", f.cycles_per_byte()),
            bar(f.gbit_s(), fastest),
            bar(f.cycles_per_byte(), dearest),
        ]);
    }
    format!(
        "{table}\nOne core, AES-128-GCM, one SA; the NIC is a twin in memory whose cryptography costs nothing: packets and cycles of its rows are the processor's\n\
         part, and the throughput that follows is predicted.\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_paths_are_measured_at_all_lengths_and_the_nic_does_every_packet() {
        let folder = tempfile::tempdir().unwrap();
        let svg = folder.path().join("figures.svg");
        let options = BenchNicOptions { duration: 1, repeat: 1, json: true, svg: Some(svg.clone()) };
        let json: Value = serde_json::from_str(&measure(&options, Vec::new()).unwrap()).unwrap();
        let rows = json.as_array().unwrap();
        assert_eq!(rows.len(), 32);
        for (row, (frame, way, path)) in rows.iter().zip(cases()) {
            let named = (&row["frame_bytes"], &row["direction"], &row["path"]);
            assert_eq!(named, (&json!(frame), &json!(way.name()), &json!(path.name())));
            assert!(row["packets_per_second"].as_f64().unwrap() > 0.0);
            assert!(!row["cores"]["worker"].as_array().unwrap().is_empty(), "{row}");
            // No NIC was measured.
            let kinds = [&row["gbit_s"], &row["predicted_gbit_s"]].map(Value::is_number);
            assert_eq!(kinds, [path == Path::Software, path == Path::Nic]);
        }
        let picture = std::fs::read_to_string(svg).unwrap();
        assert_eq!(picture.matches("<polyline").count(), 8, "four lines in each figure");
        for words in ["(5a)", "(5b)", "cryptography in the NIC, inbound", "cycles per byte"] {
            assert!(picture.contains(words), "{words}");
        }
    }

    #[test]
    fn cycles_per_byte_are_the_papers() {
        let run = Run {
            packets: 1000,
            ticks: 6_600_000,
            elapsed: Duration::from_millis(2),
            running: Duration::from_millis(1),
            ..Run::default()
        };
        // A clock of 3.3 GHz, half of it used, over 500,000 packets a second of 330 bytes.
        let figures = Figures::of((330, Way::Outbound, Path::Nic), &run);
        assert!((figures.cycles_per_byte() - 3.3e9 * 0.5 / (500_000.0 * 330.0)).abs() < 1e-9);
        assert!((figures.packets_per_second - 1e6).abs() < 1.0, "as many as with a processor all the time");
    }
}
