//! `testudo lab overload`: success ratio and processor load against the offered load, up to four times what
//! two gateways in memory can do (paper 004, section 4.3).

use std::path::PathBuf;
use std::time::Duration;

use serde_json::{Value, json};
use testudo_gateway::Candidate;
use testudo_packet::MEASURED_OF;

use crate::bench::chart::{self, Extent, Line, Panel, STRIPS};
use crate::bench::{BenchError, open_picture, write_picture};
use crate::gateway::LEAST_BATCHES;
use crate::generator::Sizes;
use crate::harness::{
    Cores, Device, DeviceError, LatencyUs, Limit, Measurement, OVERLOAD_STEPS, Overload, Plan, Test,
    Unconverged, overload,
};
use crate::rfc2544::{Over, Path, QUICK_RESIDUAL, Remarks, Subject, TandemArgs, Watched, cells, notes};
use crate::statistics::Spread;
use crate::table::Table;

/// Options of `testudo lab overload`.
#[derive(Debug, Clone, clap::Args)]
pub struct OverloadOptions {
    /// Lengths of Ethernet frames in bytes, check sequence included (64 to 1518), random, imix or imix-simple
    #[arg(long, value_delimiter = ',', value_name = "BYTES,…", default_value = "64,1518")]
    pub sizes: Vec<Sizes>,

    /// Seconds of each trial
    #[arg(long, value_name = "N", default_value = "0.5", value_parser = crate::rfc2544::seconds)]
    pub trial_seconds: f64,

    /// Repetitions of each load: rows are medians, and say how far repetitions are apart
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub repetitions: u32,

    /// What the gateways' packets come and go by
    #[arg(long, value_enum, default_value_t, value_name = "KIND")]
    pub over: Over,

    /// The gateways.
    #[command(flatten)]
    pub device: TandemArgs,

    /// Print a JSON array instead of the table, and no progress
    #[arg(long)]
    pub json: bool,

    /// Also draw success ratio and processor load over the offered load to a file
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,
}

/// The load that paper 004 has numbers of (section 4.3.2): 50 Mbit/s, of 46 that its gateway could do.
const PAPER_LOAD: f64 = 50.0 / 46.0;
/// Success ratio and processor load there; the latter "approaches 100%".
const PAPER: [f64; 2] = [0.22, 1.0];
/// Rows say where a packet takes so many times as long as at capacity.
const DEAR: f64 = 2.0;
const IS_DEAR: &str = "a packet takes the worker more than twice as long as at capacity: fewer come at once, and share what a turn, or a pass over an engine's lanes, costs";

/// What the paper has for this share of the capacity, if shares are the same that are the same percent.
fn of_paper(share: f64) -> Option<[f64; 2]> {
    ((share - PAPER_LOAD).abs() < 0.005).then_some(PAPER)
}

/// A load, and what became of it.
struct Row {
    /// What was to be offered, as a share of the capacity.
    planned: f64,
    row: Measurement,
    /// What the gateways forward of a flood.
    capacity: Measurement,
    over: Over,
}

impl Row {
    /// What was offered, as a share of the capacity: less than planned where the generator is late.
    fn share(&self) -> f64 {
        let capacity = self.capacity.throughput_packets_per_second;
        self.row.offered_packets_per_second / capacity.max(f64::MIN_POSITIVE)
    }

    /// Whether both the capacity and what became of the load repeat.
    fn is_converged(&self) -> bool {
        self.row.unconverged.is_none() && self.capacity.unconverged.is_none()
    }

    /// What is to be said besides the figures.
    fn notes(&self, of_all: &[String]) -> Vec<String> {
        // Who shares processors is among what is said of all.
        let mut notes = notes(&self.row, Cores { device: 1, generator: 0 });
        let of_capacity = self.capacity.unconverged.filter(|why| *why != Unconverged::MeasuredOnce);
        notes.extend(of_capacity.map(|why| format!("capacity: {why}")));
        notes.extend(self.of_processor());
        notes.extend(self.is_dear().then(|| IS_DEAR.to_owned()));
        notes.extend(of_all.iter().cloned());
        notes
    }

    /// What the processor's load is where it is not that of memory, or why it is not known.
    fn of_processor(&self) -> Option<String> {
        match (self.over, self.row.busy_share) {
            (Over::Memory, Some(_)) => None,
            (Over::Memory, None) => {
                Some("processor load: not known, since the worker ended no turn in a trial".to_owned())
            }
            (_, Some(_)) => Some(format!(
                "processor load: that of the busier gateway, reckoned from one batch of packets in {MEASURED_OF}; what its worker does between batches is not in it"
            )),
            (_, None) => Some(format!(
                "processor load: not known, since gateways measure one batch of packets in {MEASURED_OF}, and fewer than {LEAST_BATCHES} in a trial say nothing: longer trials have more"
            )),
        }
    }

    /// Whether a packet takes the worker much longer than at capacity.
    fn is_dear(&self) -> bool {
        let cost = |row: &Measurement| {
            row.busy_share.map(|busy| busy / row.throughput_packets_per_second.max(f64::MIN_POSITIVE))
        };
        let costs = cost(&self.row).zip(cost(&self.capacity));
        self.share() < 1.0 && costs.is_some_and(|(here, there)| here > DEAR * there)
    }
}

/// Measures what `options` say, and returns the array that `testudo lab overload --json` prints.
///
/// # Errors
/// [`BenchError`] if there is no engine for the suite, or the gateways failed.
pub fn measure(options: &OverloadOptions, candidates: Vec<Candidate>) -> Result<Value, BenchError> {
    let (subject, rows) = run(options, candidates)?;
    Ok(array(options, &subject, &rows))
}

/// The same as text: a table, or that array. It draws the picture, too.
pub(crate) fn report(options: &OverloadOptions, candidates: Vec<Candidate>) -> Result<String, BenchError> {
    // Fail before the measurement, not after it, if the picture cannot be written.
    let picture = options.svg.as_deref().map(open_picture).transpose()?;
    let (subject, rows) = run(options, candidates)?;
    if let Some((path, file)) = picture {
        write_picture(&chart::svg(&[panel(options, &subject, &rows)]), path, file)?;
    }
    if options.json {
        return Ok(format!("{:#}\n", array(options, &subject, &rows)));
    }
    Ok(table(options, &subject, &rows))
}

fn run(options: &OverloadOptions, candidates: Vec<Candidate>) -> Result<(Subject, Vec<Row>), BenchError> {
    if options.over != Over::Memory {
        let path = Path::build(options.over, &options.device, "overload", QUICK_RESIDUAL)?;
        let mut path = path.watching_workers();
        let rows = of_device(options, &mut path)?;
        return Ok((path.end()?, rows));
    }
    let mut device = options.device.open(candidates)?;
    let rows = of_device(options, &mut device)?;
    Ok((Subject::in_memory(&device, &options.device), rows))
}

/// The rows of any device.
fn of_device(options: &OverloadOptions, device: &mut dyn Device) -> Result<Vec<Row>, BenchError> {
    let trial = Duration::from_secs_f64(options.trial_seconds);
    let plan = Plan { trial, repetitions: options.repetitions, ..Plan::default() };
    let loads = u32::try_from(options.sizes.len() * (OVERLOAD_STEPS.len() + 1)).unwrap_or(u32::MAX);
    let expected = trial.saturating_mul(loads.saturating_mul(options.repetitions));
    let mut watched = Watched::new(device, expected, trial, options.json);
    let mut rows = Vec::new();
    for &sizes in &options.sizes {
        watched.begin(Test::Overload, sizes);
        let measured = overload(&mut watched, sizes, &plan);
        let Overload { capacity, steps } = measured
            .map_err(|DeviceError(what)| BenchError::Invalid { case: format!("frames of {sizes}"), what })?;
        let of = |(planned, row)| Row { planned, row, capacity: capacity.clone(), over: options.over };
        rows.extend(steps.into_iter().map(of));
    }
    Ok(rows)
}

fn array(options: &OverloadOptions, subject: &Subject, rows: &[Row]) -> Value {
    let object = |one: &Row| {
        let Row { planned, row, capacity, .. } = one;
        let share = one.share();
        let paper = of_paper(share);
        let latency =
            row.latency_us.map(|LatencyUs { p50, p99, max }| json!({ "p50": p50, "p99": p99, "max": max }));
        json!({
            "test": row.test.name(),
            "frame_bytes": cells::frame_bytes(row.sizes),
            "offered_share_of_capacity": share,
            "planned_share_of_capacity": planned,
            "offered_packets_per_second": row.offered_packets_per_second,
            "received_packets_per_second": row.throughput_packets_per_second,
            "success_ratio": 1.0 - row.loss,
            "processor_load": row.busy_share,
            "paper": {
                "success_ratio": paper.map(|[success, _]| success),
                "processor_load": paper.map(|[_, load]| load),
            },
            "latency_us": latency,
            "capacity_packets_per_second": capacity.throughput_packets_per_second,
            "capacity_repeat_spread": capacity.repeat_spread,
            "repeat_spread": row.repeat_spread,
            "converged": one.is_converged(),
            "repetitions": row.repetitions,
            "trial_seconds": options.trial_seconds,
            "limit": row.limit.map(Limit::name),
            "cores": subject.cores,
            "over": options.over.name(),
            "suite": options.device.suite,
            "engine": subject.engine,
            "sas": options.device.sas,
            "flows": subject.flows,
            "seed": options.device.seed,
            "notes": one.notes(&subject.notes),
        })
    };
    Value::Array(rows.iter().map(object).collect())
}

fn table(options: &OverloadOptions, subject: &Subject, rows: &[Row]) -> String {
    let args = &options.device;
    let mut text = subject.heading.clone();
    text += &format!(
        "Overload: trials of {} s, {} repetitions, seed {}.\n\n",
        options.trial_seconds, options.repetitions, args.seed
    );
    let heads = [
        "frame (bytes)",
        "load (% of capacity)",
        "offered (kpps)",
        "came through (kpps)",
        "success (%)",
        "processor (%)",
        "paper: success (%)",
        "paper: processor (%)",
        "p50 (µs)",
        "p99 (µs)",
        "max (µs)",
        "spread (%)",
        "remarks",
    ];
    let (mut remarks, mut lines) = (Remarks::default(), vec![heads.map(str::to_owned).to_vec()]);
    for one in rows {
        let (share, row) = (one.share(), &one.row);
        let mut line = vec![
            row.sizes.to_string(),
            format!("{:.0}", share * 100.0),
            cells::figure(row.offered_packets_per_second / 1e3),
            cells::figure(row.throughput_packets_per_second / 1e3),
            cells::percent(Some(1.0 - row.loss)),
            cells::percent(row.busy_share),
        ];
        line.extend(paper_cells(share));
        line.extend(cells::latency_cells(row));
        line.push(cells::percent(row.repeat_spread));
        line.push(remarks.refer(one.notes(&subject.notes)));
        lines.push(line);
    }
    text += &Table::report(lines).to_string();
    text += "\n  capacity: what the gateways forward when offered twice as much. load: what was offered of it. kpps: thousands of packets per second.\n  \
             processor: share of the time in which the gateways' worker had packets. spread: how far repetitions are apart.\n  \
             Paper 004, 4.3.2, is of an IXP425 at 50 Mbit/s, of 46 that it could do: its processor's load \"approaches 100%\".\n";
    text + &remarks.lines()
}

/// The paper's success and processor load at this share of the capacity, in percent.
fn paper_cells(share: f64) -> [String; 2] {
    match of_paper(share) {
        Some([success, load]) => [format!("{:.0}", success * 100.0), format!("near {:.0}", load * 100.0)],
        None => ["-"; 2].map(str::to_owned),
    }
}

/// Percent over percent, two lines for each size.
fn panel(options: &OverloadOptions, subject: &Subject, rows: &[Row]) -> Panel {
    let whole = |share: f64| usize::try_from(crate::harness::count(share * 100.0 + 0.5)).unwrap_or(0);
    let mut lines = Vec::new();
    for (colour, &sizes) in options.sizes.iter().enumerate() {
        let of = |figure: &dyn Fn(&Measurement) -> Option<f64>| -> Vec<(usize, Spread)> {
            let of_it = rows.iter().filter(|one| one.row.sizes == sizes);
            of_it
                .filter_map(|one| Some((whole(one.share()), Spread::of([figure(&one.row)? * 100.0]))))
                .collect()
        };
        let mixes = || [const { None }; STRIPS.len()];
        let success = of(&|row| Some(1.0 - row.loss));
        let busy = of(&|row| row.busy_share);
        lines.push(Line {
            name: format!("{sizes}: success"),
            colour,
            dash: 0,
            points: success,
            mixes: mixes(),
        });
        lines.push(Line {
            name: format!("{sizes}: processor"),
            colour,
            dash: 1,
            points: busy,
            mixes: mixes(),
        });
    }
    Panel {
        title: format!("Two gateways, overloaded (over {})", options.over.name()),
        subtitle: format!(
            "{}, {}; medians of {} trials of {} s",
            options.device.suite, subject.engine, options.repetitions, options.trial_seconds
        ),
        across: "offered load (% of capacity)".to_owned(),
        up: "packets that came through, processor's busy time (%)".to_owned(),
        extent: Extent::Zero,
        lines,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::harness::fake::FakeDevice;
    use clap::Parser;

    #[derive(Parser)]
    struct Program {
        #[command(flatten)]
        options: OverloadOptions,
    }

    fn options(words: &str) -> OverloadOptions {
        Program::parse_from(["overload"].into_iter().chain(words.split_whitespace())).options
    }

    /// The rows of a device whose rate wanders by so much, in short trials.
    fn rows(wander: f64, over: Over) -> Vec<Row> {
        let mut device = FakeDevice { wander, ..FakeDevice::new(50_000.0, 40) };
        let options = OverloadOptions { over, ..options("--sizes 64 --trial-seconds 0.2 --json") };
        of_device(&options, &mut device).unwrap()
    }

    /// Loads are shares of the capacity: where it does not repeat, no row does.
    #[test]
    fn rows_say_that_the_capacity_does_not_repeat() {
        let rows = |wander| rows(wander, Over::Memory);
        for row in rows(0.2) {
            let notes = row.notes(&[]).join("; ");
            assert!(!row.is_converged() && notes.contains("capacity: repetitions differ by "), "{notes}");
        }
        assert!(rows(0.0).iter().all(|row| row.is_converged() && row.notes(&[]).is_empty()));
    }

    /// The worker of an engine with lanes is busy from a small load on: it goes through all of them for one
    /// packet.
    #[test]
    fn rows_say_where_a_packet_takes_longer_than_at_capacity() {
        let says = |row: &Row| row.notes(&[]).iter().any(|note| note == IS_DEAR);
        for mut row in rows(0.0, Over::Memory) {
            assert!(!says(&row), "a load that rises with the rate");
            row.row.busy_share = Some(1.0);
            let share = row.share();
            println!("{share}: {}", says(&row));
            assert!(says(&row) || share > 0.3, "four times as long as at capacity");
            assert!(!says(&row) || share < 0.7, "no more than a third longer");
        }
    }

    #[test]
    fn rows_say_what_the_load_of_a_network_is_or_why_it_is_not_known() {
        for over in [Over::Memory, Over::Veth, Over::Xdp, Over::Dpdk] {
            for mut row in rows(0.0, over) {
                let said = |row: &Row| {
                    let notes = row.notes(&[]);
                    notes.into_iter().find(|note| note.starts_with("processor load: ")).unwrap_or_default()
                };
                let known = said(&row);
                assert!(
                    !known.contains("not known") && known.is_empty() == (over == Over::Memory),
                    "{known}"
                );
                row.row.busy_share = None;
                assert!(said(&row).starts_with("processor load: not known, since "), "{}", said(&row));
            }
        }
    }

    #[test]
    fn the_papers_numbers_stand_beside_the_load_that_they_are_of_and_no_other() {
        let beside: Vec<f64> =
            OVERLOAD_STEPS.into_iter().filter(|share| of_paper(*share).is_some()).collect();
        assert_eq!(beside, [1.09]);
        assert_eq!((of_paper(50.0 / 46.0), of_paper(1.0)), (Some([0.22, 1.0]), None));
        assert_eq!(paper_cells(1.09), ["22", "near 100"]);
        assert_eq!(paper_cells(1.1), ["-", "-"]);
    }

    fn subject() -> Subject {
        let cores = json!({ "gateways": 1, "generator": 0, "shared": false });
        let [heading, engine, queue] = ["A device.\n", "none", "It has a queue."].map(str::to_owned);
        Subject { heading, cores, engine, flows: 1, queue, notes: Vec::new() }
    }

    /// Of a device of known rate, latency and queue table and JSON print what it has, in the units that
    /// they name.
    #[test]
    fn what_overload_prints_of_a_known_device_is_true_within_2_percent() {
        let near = |found: f64, known: f64, what: &str| {
            assert!((found - known).abs() <= 0.02 * known, "{what}: found {found}, known {known}");
        };
        let options = options("--sizes 64 --trial-seconds 1 --json");
        let mut device = FakeDevice { medium: 100_000.0, ..FakeDevice::new(50_000.0, 42) };
        let rows = of_device(&options, &mut device).unwrap();
        let text = table(&options, &subject(), &rows);
        let lines: Vec<&str> = text.lines().filter(|line| line.trim_start().starts_with("64 ")).collect();
        let Value::Array(array) = array(&options, &subject(), &rows) else { panic!("no array") };
        assert_eq!((array.len(), lines.len()), (OVERLOAD_STEPS.len(), OVERLOAD_STEPS.len()), "{text}");
        for ((row, line), share) in array.iter().zip(lines).zip(OVERLOAD_STEPS) {
            let number = |value: &Value| value.as_f64().unwrap_or_else(|| panic!("{value} in {row:#}"));
            let cells: Vec<&str> = line.split_whitespace().collect();
            let cell = |index: usize| cells[index].parse::<f64>().unwrap_or_else(|_| panic!("{line}"));
            for (name, known, printed) in [
                ("offered_share_of_capacity", share, cell(1) / 100.0),
                ("offered_packets_per_second", 50_000.0 * share, cell(2) * 1e3),
                ("received_packets_per_second", 50_000.0 * share.min(1.0), cell(3) * 1e3),
                ("success_ratio", (1.0 / share).min(1.0), cell(4) / 100.0),
                ("processor_load", share.min(1.0), cell(5) / 100.0),
            ] {
                near(number(&row[name]), known, name);
                // Loads are printed as whole percents.
                assert!((printed - known).abs() <= 0.02 * known + 0.005, "{name}: {line}");
            }
            near(number(&row["capacity_packets_per_second"]), 50_000.0, "capacity");
            // "near 100" of the paper is two words.
            let first = if cells.contains(&"near") { 9 } else { 8 };
            // A packet takes 20 µs, and 10 more; in overload it waits for 64 others, too.
            let time = if share < 1.0 { 30.0 } else { 10.0 + 65.0 * 20.0 };
            for (index, name) in ["p50", "p99", "max"].into_iter().enumerate() {
                let found = number(&row["latency_us"][name]);
                if !(1.0..=1.09).contains(&share) {
                    near(found, time, name);
                }
                near(cell(first + index), found, name);
            }
        }
    }

    /// Above what the generator reaches a load is what was offered, in table, picture and JSON, and no other
    /// load's number of the paper stands beside it.
    #[test]
    fn a_load_that_the_generator_did_not_reach_is_the_one_that_was_offered() {
        let (subject, options) = (subject(), options("--sizes 64 --trial-seconds 0.2 --json"));
        for (reached, of_paper) in [(2.0, 1), (1.05, 0)] {
            let fast = FakeDevice::new(50_000.0, 41);
            let mut device = FakeDevice { generator: reached * fast.rate, ..fast };
            let rows = of_device(&options, &mut device).unwrap();
            let text = table(&options, &subject, &rows);
            println!("{text}");
            for (row, step) in rows.iter().zip(OVERLOAD_STEPS) {
                let share = step.min(reached);
                assert!((row.planned - step).abs() < 1e-9 && (row.share() - share).abs() < 0.01);
                assert!(row.row.loss <= 1.0 - 1.0 / share.max(1.0) + 0.01, "more than that can lose");
                let is_late =
                    row.notes(&[]).iter().any(|note| note.starts_with("the generator offered less"));
                assert_eq!(is_late, step > reached, "{step}");
            }
            let lines: Vec<&str> = text.lines().filter(|line| line.contains("near 100")).collect();
            assert_eq!(lines.len(), of_paper, "{text}");
            assert!(lines.iter().all(|line| line.split_whitespace().nth(1) == Some("109")), "{text}");
            let Value::Array(array) = array(&options, &subject, &rows) else { panic!("no array") };
            let last = array.last().unwrap();
            assert!((last["offered_share_of_capacity"].as_f64().unwrap() - reached).abs() < 0.01, "{last}");
            assert_eq!(
                (&last["planned_share_of_capacity"], last["paper"]["success_ratio"].is_null()),
                (&json!(4.0), true)
            );
            let points = &panel(&options, &subject, &rows).lines[0].points;
            let furthest = points.iter().map(|(at, _)| *at).max();
            assert_eq!(
                furthest,
                Some(if of_paper == 1 { 200 } else { 105 }),
                "what was not offered is not drawn"
            );
        }
    }

    #[test]
    fn loads_up_to_four_times_the_capacity_have_success_and_processor_load() {
        let folder = tempfile::tempdir().unwrap();
        let picture = folder.path().join("overload.svg");
        let words = "overload --trial-seconds 0.005 --repetitions 1 --sizes 64 --engine portable --svg";
        let words = words.split(' ').map(Into::into).chain([picture.clone().into_os_string()]);
        let options = Program::parse_from(words).options;
        let text = report(&options, Vec::new()).unwrap();
        println!("{text}");
        for part in ["load (% of capacity)", "success (%)", "processor (%)", "Paper 004, 4.3.2"] {
            assert!(text.contains(part), "{part}");
        }
        // A generator that others keep waiting offers less than planned.
        let mut beside = text.lines().filter(|line| line.contains("near 100"));
        let is_of_paper = |line: &str| ["108", "109"].contains(&line.split_whitespace().nth(1).unwrap_or(""));
        assert!(beside.all(is_of_paper), "{text}");
        let drawn = std::fs::read_to_string(picture).unwrap();
        assert!(
            drawn.starts_with("<svg") && drawn.contains("64: success") && drawn.contains("64: processor")
        );
        let Value::Array(rows) = measure(&options, Vec::new()).unwrap() else { panic!("no array") };
        let planned: Vec<_> =
            rows.iter().filter_map(|row| row["planned_share_of_capacity"].as_f64()).collect();
        assert_eq!(planned, OVERLOAD_STEPS);
        for row in &rows {
            let is_ratio = |value: &Value| value.as_f64().is_some_and(|ratio| (0.0..=1.0).contains(&ratio));
            assert!(is_ratio(&row["success_ratio"]), "{row}");
            let is_once = row["notes"].to_string().contains("measured once");
            assert!(row["converged"] == false && is_once, "one repetition repeats nothing: {row}");
            assert!(row["capacity_packets_per_second"].is_f64() && row["capacity_repeat_spread"].is_null());
            // A worker that had no processor in such a short trial has no load.
            assert!(row["processor_load"].is_null() || is_ratio(&row["processor_load"]), "{row}");
            let is_told = row["notes"].to_string().contains("processor load: not known");
            assert_eq!(row["processor_load"].is_null(), is_told, "{row}");
            let paper = &row["paper"];
            let share = row["offered_share_of_capacity"].as_f64().unwrap();
            let capacity = row["capacity_packets_per_second"].as_f64().unwrap();
            let offered = row["offered_packets_per_second"].as_f64().unwrap();
            assert!((share * capacity - offered).abs() < 1e-6 * offered, "{row}");
            let is_of_paper = of_paper(share).is_some();
            let [success, load] = [&paper["success_ratio"], &paper["processor_load"]];
            assert!(paper.is_object() && (is_of_paper || (success.is_null() && load.is_null())), "{row}");
            assert!(!is_of_paper || (*success == 0.22 && *load == 1.0), "{row}");
        }
    }
}
