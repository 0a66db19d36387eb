//! `testudo bench nic`: what is left for the CPU if a NIC does the cryptography (paper 000, figures 5a and
//! 5b).
//!
//! ```text
//!   packets ─► Worker::turn ─► twin of an 82599, whose cryptography costs nothing ─► forgotten     the NIC path
//!   packets ─► Worker::turn, with the cryptography ─► forgotten                                    software
//! ```
//!
//! Both paths in turns in the same run, with the same tunnel and packets. No such NIC was measured: the twin
//! takes packets for sealed as they are, and what it does to find its session counts as the CPU's. Cycles per
//! byte are the paper's: clock times busy share, divided by packets a second and bytes of a frame.

use std::time::Duration;

use serde_json::{Value, json};
use testudo_crypto::{Engine, PortableEngine, Suite};
use testudo_engine_inline::{Checks, Nic};
use testudo_gateway::{Candidate, EngineOrder, PortPair, choose_engines};
use testudo_port_memory::{LoopPort, SinkPort};
use testudo_port_twin82599::{Twin82599, TwinPort, Work};

use super::case::{Carrier, Case, Order, Size, Suites, Way};
use super::error::{BenchError, Wrong};
use super::load::packets;
use super::subject::{Run, Subject};
use crate::table::Table;

/// Frames as the paper has them, from the shortest to the longest, in bytes with their check sequence.
const FRAMES: [usize; 8] = [64, 128, 256, 512, 768, 1024, 1280, 1518];
/// Ethernet header and check sequence.
const FRAME_EXTRA_BYTES: usize = 18;
/// Before a measurement: the SA goes to the NIC, and caches become warm.
const WARM_UP: Duration = Duration::from_millis(50);
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
}

/// Who does the cryptography.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Path {
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
}

/// The figures of one path at one length.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Figures {
    frame_bytes: usize,
    path: Path,
    packets_per_second: f64,
    cycles_per_packet: f64,
}

impl Figures {
    fn of(frame_bytes: usize, path: Path, run: &Run) -> Self {
        let (packets, seconds) = (run.packets as f64, run.elapsed.as_secs_f64());
        // The share of time in which this thread had a processor.
        let busy = run.running.as_secs_f64() / seconds;
        let cycles_per_packet = run.ticks as f64 * busy / packets;
        Self { frame_bytes, path, packets_per_second: packets / (seconds * busy), cycles_per_packet }
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
            "path": self.path.name(),
            "packets_per_second": self.packets_per_second,
            "gbit_s": self.gbit_s(),
            "cycles_per_packet": self.cycles_per_packet,
            "cycles_per_byte": self.cycles_per_byte(),
        })
    }
}

/// Measures both paths at all lengths; what is printed.
pub(super) fn measure(options: &BenchNicOptions, candidates: Vec<Candidate>) -> Result<String, BenchError> {
    let mut runs: Vec<Vec<Figures>> = vec![Vec::new(); FRAMES.len() * Path::ALL.len()];
    for _ in 0..options.repeat {
        for (at, (frame, path)) in cases().enumerate() {
            let invalid =
                |what| BenchError::Invalid { case: format!("{frame} bytes, {}", path.name()), what };
            let run = once(frame, path, &candidates, Duration::from_millis(options.duration));
            runs[at].push(Figures::of(frame, path, &run.map_err(invalid)?));
        }
    }
    let figures: Vec<Figures> = runs.iter_mut().filter_map(|runs| median(runs)).collect();
    Ok(match options.json {
        true => format!("{:#}\n", Value::from(figures.iter().map(Figures::json).collect::<Vec<_>>())),
        false => table(&figures),
    })
}

fn cases() -> impl Iterator<Item = (usize, Path)> {
    FRAMES.into_iter().flat_map(|frame| Path::ALL.map(|path| (frame, path)))
}

fn median(runs: &mut [Figures]) -> Option<Figures> {
    runs.sort_by(|a, b| a.packets_per_second.total_cmp(&b.packets_per_second));
    runs.get(runs.len() / 2).copied()
}

fn once(frame: usize, path: Path, candidates: &[Candidate], duration: Duration) -> Result<Run, Wrong> {
    let case = Case {
        suites: Suites::One(Suite::AES128GCM16),
        way: Way::Outbound,
        size: Size::Bytes(frame - FRAME_EXTRA_BYTES),
        sas: 1,
        policies: 1,
        carrier: Carrier::Esp,
        order: Order::default(),
        // An 82599 has none.
        esn: false,
        engine: 0,
    };
    let (mut engines, _) =
        choose_engines(candidates, EngineOrder::FastestFirst).map_err(|e| e.to_string())?;
    let (sink_port, sink) = SinkPort::new("sink");
    let feed = LoopPort::new("load", packets(case.suites, case.size, case.sas).map_err(|e| e.to_string())?);
    let mut nic = None;
    let unprotected: Box<dyn testudo_packet::Port> = match path {
        Path::Software => Box::new(sink_port),
        Path::Nic => {
            let fitted = fit(&mut engines)?;
            let port = fitted.0.port(Box::new(TwinPort::new(fitted.1, Box::new(sink_port))));
            nic = Some(fitted.0);
            Box::new(port)
        }
    };
    let ports = PortPair { protected: Box::new(feed), unprotected };
    let mut subject = Subject::between(&case, Way::Outbound, engines, ports, sink)?;
    subject.run_for(WARM_UP)?;
    let before = sealed(nic.as_ref());
    let run = subject.run_for(duration)?;
    let by_nic = sealed(nic.as_ref()) - before;
    subject.settle()?;
    subject.check_books()?;
    match by_nic < run.packets && path == Path::Nic {
        true => Err(format!("the NIC sealed {by_nic} of {} packets", run.packets)),
        false => Ok(run),
    }
}

/// A NIC that costs nothing, its engine before the others. It seals nothing, so that none of it is checked,
/// and it is not asked for known answers.
fn fit(engines: &mut Vec<Box<dyn Engine>>) -> Result<(Nic, Twin82599), Wrong> {
    let twin = Twin82599::new(Work::Nothing).that_cannot_be_seen();
    let nic = Nic::start(Box::new(twin.clone()), Box::new(PortableEngine::new()), Checks::usual(1));
    let nic = nic.map_err(|e| e.to_string())?;
    engines.insert(0, Box::new(nic.engine()));
    Ok((nic, twin))
}

fn sealed(nic: Option<&Nic>) -> u64 {
    nic.map_or(0, |nic| nic.report().counts.sealed)
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
        "cryptography in",
        "Mpackets/s",
        "Gbit/s",
        "cycles/packet",
        "cycles/byte",
        "Gbit/s (5a)",
        "cycles/byte (5b)",
    ]);
    for f in figures {
        table.row(vec![
            f.frame_bytes.to_string(),
            f.path.name().to_owned(),
            format!("{:.2}", f.packets_per_second / 1e6),
            format!("{:.1}", f.gbit_s()),
            format!("{:.0}", f.cycles_per_packet),
            format!("{:.2}", f.cycles_per_byte()),
            bar(f.gbit_s(), fastest),
            bar(f.cycles_per_byte(), dearest),
        ]);
    }
    format!(
        "{table}\nOne core, AES-128-GCM, one SA, outbound; the NIC is a twin in memory whose cryptography costs nothing.\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_paths_are_measured_at_all_lengths_and_the_nic_seals_every_packet() {
        let options = BenchNicOptions { duration: 1, repeat: 1, json: true };
        let json: Value = serde_json::from_str(&measure(&options, Vec::new()).unwrap()).unwrap();
        let rows = json.as_array().unwrap();
        assert_eq!(rows.len(), 16);
        for (row, (frame, path)) in rows.iter().zip(cases()) {
            assert_eq!((&row["frame_bytes"], &row["path"]), (&json!(frame), &json!(path.name())));
            assert!(row["packets_per_second"].as_f64().unwrap() > 0.0);
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
        let figures = Figures::of(330, Path::Nic, &run);
        assert!((figures.cycles_per_byte() - 3.3e9 * 0.5 / (500_000.0 * 330.0)).abs() < 1e-9);
        assert!((figures.packets_per_second - 1e6).abs() < 1.0, "as many as with a processor all the time");
    }
}
