//! What `testudo lab rfc2544` prints.

use serde_json::{Map, Value, json};

use super::cells::{self, Remarks, figure, frame_bytes, latency_cells, notes, percent};
use super::options::{Rfc2544Options, TandemArgs};
use crate::generator::FEED_PACKETS;
use crate::harness::{Cores, LatencyUs, Limit, Measurement};
use crate::table::Table;
use crate::tandem::Tandem;

/// What was measured, for a report.
#[derive(Debug, Clone)]
pub(crate) struct Subject {
    /// Lines of text.
    pub(crate) heading: String,
    /// `{gateways, generator, shared}`.
    pub(crate) cores: Value,
    pub(crate) engine: String,
    pub(crate) flows: u32,
    /// What is before the gateways, in words.
    pub(crate) queue: String,
    /// What is to be said of all rows.
    pub(crate) notes: Vec<String>,
}

impl Subject {
    /// Gateways in memory.
    pub(crate) fn in_memory(device: &Tandem, args: &TandemArgs) -> Self {
        let cores = device.cores();
        Self {
            heading: cells::heading(device, &args.suite, args.sas, args.flows),
            cores: cells::cores_json(cores),
            engine: device.engine().to_owned(),
            flows: args.flows,
            queue: format!("The queue before the gateways holds {FEED_PACKETS} packets."),
            notes: cells::shared(cores).into_iter().collect(),
        }
    }
}

fn all_notes(options: &Rfc2544Options, subject: &Subject, row: &Measurement) -> Vec<String> {
    // Who shares processors is among what is said of all.
    let mut notes = notes(row, Cores { device: 1, generator: 0 });
    notes.extend(subject.notes.iter().cloned());
    notes.extend(options.deviations(row.test));
    notes
}

/// The array that `--json` prints.
pub(super) fn json(options: &Rfc2544Options, subject: &Subject, rows: &[Measurement]) -> Value {
    let object = |row: &Measurement| {
        let latency =
            row.latency_us.map(|LatencyUs { p50, p99, max }| json!({ "p50": p50, "p99": p99, "max": max }));
        let mut object = Map::new();
        let mut put = |name: &str, value: Value| object.insert(name.to_owned(), value);
        put("test", json!(row.test.name()));
        put("frame_bytes", frame_bytes(row.sizes));
        put("offered_packets_per_second", json!(row.offered_packets_per_second));
        put("throughput_packets_per_second", json!(row.throughput_packets_per_second));
        put("loss", json!(row.loss));
        put("latency_us", json!(latency));
        put("repeat_spread", json!(row.repeat_spread));
        put("burst_packets", json!(row.burst_packets));
        put("busy_share", json!(row.busy_share));
        put("repetitions", json!(row.repetitions));
        put("trial_seconds", json!(options.plan().trial.as_secs_f64()));
        put("converged", json!(row.is_converged()));
        put("limit", json!(row.limit.map(Limit::name)));
        put("conforming", json!(options.deviations(row.test).is_empty()));
        put("over", json!(options.over.name()));
        put("cores", subject.cores.clone());
        put("suite", json!(options.device.suite));
        put("engine", json!(subject.engine));
        put("sas", json!(options.device.sas));
        put("flows", json!(subject.flows));
        put("seed", json!(options.device.seed));
        put("notes", json!(all_notes(options, subject, row)));
        Value::Object(object)
    };
    Value::Array(rows.iter().map(object).collect())
}

/// The table, and what its columns and remarks mean.
pub(super) fn table(options: &Rfc2544Options, subject: &Subject, rows: &[Measurement]) -> String {
    let mut text = subject.heading.clone();
    let plan = options.plan();
    text += &format!(
        "RFC 2544: trials of {} s, {} repetitions, seed {}.{}\n\n",
        plan.trial.as_secs_f64(),
        plan.repetitions,
        options.device.seed,
        if options.quick { " --quick: does not conform to RFC 2544." } else { "" },
    );
    let heads = [
        "frame (bytes), test",
        "offered (kpps)",
        "came back (kpps)",
        "loss (%)",
        "burst (packets)",
        "p50 (µs)",
        "p99 (µs)",
        "max (µs)",
        "spread (%)",
        "remarks",
    ];
    let (mut remarks, mut cells) = (Remarks::default(), vec![heads.map(str::to_owned).to_vec()]);
    for row in rows {
        let burst = row.burst_packets.map_or_else(|| "-".to_owned(), |packets| format!("{packets:.0}"));
        let mut line = vec![
            format!("{} {}", row.sizes, row.test.name().replace('_', " ")),
            figure(row.offered_packets_per_second / 1e3),
            figure(row.throughput_packets_per_second / 1e3),
            percent(Some(row.loss)),
            burst,
        ];
        line.extend(latency_cells(row));
        line.push(percent(row.repeat_spread));
        line.push(remarks.refer(all_notes(options, subject, row)));
        cells.push(line);
    }
    text += &Table::report(cells).to_string();
    text += &format!(
        "\n  kpps: thousands of packets per second. p50, p99, max: latencies of packets that came back, queues included.\n  \
         spread: how far repetitions are apart, as a share of their median; above 3 % they do not repeat. {}\n",
        subject.queue,
    );
    text + &remarks.lines()
}

#[cfg(test)]
mod tests {
    use super::super::of_size;
    use super::super::options::Watched;
    use super::*;
    use crate::generator::Sizes;
    use crate::harness::fake::{Delay, FakeDevice};
    use crate::harness::{LATENCY_STEPS, Test};
    use clap::Parser;

    #[derive(Parser)]
    struct Program {
        #[command(flatten)]
        options: Rfc2544Options,
    }

    fn subject() -> Subject {
        let cores = json!({ "gateways": 1, "generator": 0, "shared": false });
        let [heading, engine, queue] = ["A device.\n", "none", "It has a queue."].map(str::to_owned);
        Subject { heading, cores, engine, flows: 1, queue, notes: Vec::new() }
    }

    /// The table and the rows of a device, of these tests.
    fn reported(device: &mut FakeDevice, tests: &[Test]) -> (String, Vec<Value>) {
        reported_in("0.2", device, tests)
    }

    /// The same in trials of so many seconds.
    fn reported_in(seconds: &str, device: &mut FakeDevice, tests: &[Test]) -> (String, Vec<Value>) {
        let options =
            Program::parse_from(["rfc2544", "--trial-seconds", seconds, "--repetitions", "6"]).options;
        let (plan, expected) = (options.plan(), std::time::Duration::ZERO);
        let mut watched = Watched::new(device, expected, plan.trial, true);
        let rows = of_size(&mut watched, Sizes::Bytes(64), &plan, tests).unwrap();
        let Value::Array(json) = json(&options, &subject(), &rows) else { panic!("no array") };
        (table(&options, &subject(), &rows), json)
    }

    fn assert_within_2_percent(found: f64, known: f64, what: &str) {
        assert!((found - known).abs() <= 0.02 * known + 1e-4, "{what}: found {found}, known {known}");
    }

    /// The cells of a line behind the name of its test.
    fn cells_of(line: &str) -> Option<Vec<&str>> {
        let names = ["64 throughput", "64 latency", "64 frame loss", "64 back to back"];
        let cells = names.into_iter().find_map(|name| line.trim_start().strip_prefix(name))?;
        Some(cells.split_whitespace().collect())
    }

    /// Of a device of known rate, queue and latencies table and JSON print what it has, in the units that
    /// they name.
    #[test]
    fn what_is_printed_of_a_known_device_is_true_within_2_percent() {
        // One packet in 50 is slow. The server takes 20 µs, and while two packets come one leaves.
        let delay = Delay::Rare(40_000, 900_000, 50);
        let mut device = FakeDevice { delay, medium: 100_000.0, ..FakeDevice::new(50_000.0, 48) };
        let all = [Test::Throughput, Test::Latency, Test::FrameLoss, Test::BackToBack];
        let (text, rows) = reported_in("1", &mut device, &all);
        let lines: Vec<Vec<&str>> = text.lines().filter_map(cells_of).collect();
        let shares = LATENCY_STEPS.map(|share| ("latency", 50_000.0 * share, 0.0));
        let steps = [1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4];
        let losses = steps.map(|step: f64| ("frame_loss", 100_000.0 * step, (1.0 - 0.5 / step).max(0.0)));
        let known = [("throughput", 50_000.0, 0.0)].into_iter().chain(shares).chain(losses);
        let known: Vec<_> = known.chain([("back_to_back", 100_000.0, 0.0)]).collect();
        assert_eq!((rows.len(), lines.len()), (known.len(), known.len()), "{text}");
        for ((row, cells), (test, offered, loss)) in rows.iter().zip(&lines).zip(known) {
            let number = |value: &Value| value.as_f64().unwrap_or_else(|| panic!("{value} in {row:#}"));
            let of = |name: &str| number(&row[name]);
            let cell = |index: usize| cells[index].parse::<f64>().unwrap_or_else(|_| panic!("{cells:?}"));
            assert_eq!(row["test"], test);
            assert_within_2_percent(of("offered_packets_per_second"), offered, test);
            assert_within_2_percent(of("loss"), loss, test);
            if test == "back_to_back" {
                assert_within_2_percent(of("burst_packets"), 65.0 / (1.0 - 0.5), test);
                assert_within_2_percent(cell(3), of("burst_packets"), test);
            } else {
                assert_within_2_percent(of("throughput_packets_per_second"), offered * (1.0 - loss), test);
                assert!(row["burst_packets"].is_null() && cells[3] == "-", "{row}");
            }
            assert_within_2_percent(cell(0) * 1e3, of("offered_packets_per_second"), test);
            assert_within_2_percent(cell(1) * 1e3, of("throughput_packets_per_second"), test);
            assert_within_2_percent(cell(2) / 100.0, of("loss"), test);
            for (index, (name, time)) in
                [("p50", 60.0), ("p99", 920.0), ("max", 920.0)].into_iter().enumerate()
            {
                let found = number(&row["latency_us"][name]);
                // At the device's own rate packets wait for others, too.
                if test == "latency" && offered < 49_000.0 {
                    assert_within_2_percent(found, time, name);
                }
                assert_within_2_percent(cell(4 + index), found, name);
            }
        }
    }

    /// What a generator reaches is no figure of gateways that are faster: every row of it says so.
    #[test]
    fn a_generator_that_is_the_bottleneck_is_named_in_table_and_json() {
        const WORDS: &str = "the generator was the bottleneck: the gateways may do more";
        let all = [Test::Throughput, Test::Latency, Test::BackToBack];
        let fast = FakeDevice { medium: 20_000.0, ..FakeDevice::new(50_000.0, 35) };
        let says = |limit| {
            let (text, rows) = reported(&mut FakeDevice { limit, ..fast.clone() }, &all);
            let is_named = |row: &Value| {
                let notes = row["notes"].as_array().unwrap();
                assert_eq!(row["limit"] == "generator", notes.iter().any(|note| note == WORDS), "{row}");
                row["limit"] == "generator"
            };
            let named: Vec<bool> = rows.iter().map(is_named).collect();
            assert_eq!(named.len(), 8, "one throughput, six latencies, one burst");
            assert_eq!(text.contains(WORDS), named.contains(&true), "{text}");
            named
        };
        assert_eq!((says(Limit::Generator), says(Limit::Medium)), (vec![true; 8], vec![false; 8]));
    }

    /// The median of losses is 0 where one trial of six has lost a packet.
    #[test]
    fn latencies_say_in_how_many_trials_packets_were_lost() {
        // The first trial of the first load loses one, however often it is made again.
        let mut device = FakeDevice { disturbed: 6, ..FakeDevice::new(50_000.0, 44) };
        let (text, rows) = reported(&mut device, &[Test::Latency]);
        let words = "packets were lost in 1 of 6 trials, although the median of losses is 0";
        let says = |row: &Value| row["notes"].to_string().contains(words);
        assert!(rows[0]["loss"] == 0.0 && says(&rows[0]), "{}", rows[0]);
        assert!(text.contains(words) && !rows[1..].iter().any(says), "{text}");
    }

    /// Loads are shares of the throughput: where there is none, no latency is of the load that it seems of.
    #[test]
    fn latencies_at_shares_of_a_rate_that_is_no_throughput_say_so() {
        let said = |mut device: FakeDevice, tests: &[Test], words: &str| {
            let (text, rows) = reported(&mut device, tests);
            println!("{text}");
            let latencies: Vec<&Value> = rows.iter().filter(|row| row["test"] == "latency").collect();
            assert_eq!(latencies.len(), 6);
            let says = |row: &&&Value| row["notes"].to_string().contains(words);
            assert_eq!(text.contains(words), latencies.iter().any(|row| says(&row)), "{text}");
            let converged = latencies.iter().filter(|row| row["converged"] == true).count();
            (latencies.iter().filter(says).count(), converged)
        };
        let both = [Test::Throughput, Test::Latency];
        let of_throughput = "the throughput that the load is a share of: ";
        let good = FakeDevice::new(50_000.0, 43);
        assert_eq!(said(good.clone(), &both, of_throughput), (0, 6));
        let lossy = FakeDevice { loss: 1.0, ..good.clone() };
        let reason = format!("{of_throughput}packets are lost at every rate, down to ");
        assert_eq!(said(lossy, &both, &reason), (6, 0));
        let banded = FakeDevice { bad_band: (20_000.0, 30_000.0), ..good.clone() };
        let reason = format!("{of_throughput}packets are lost at 2");
        assert_eq!(said(banded, &both, &reason), (6, 0));
        // Without a search the loads are shares of something else.
        let half = "the load is a share of half of the highest rate, since no throughput was searched";
        assert_eq!(said(good.clone(), &[Test::Latency], half), (6, 6));
        assert_eq!(said(good, &both, half), (0, 6));
    }

    /// Of a device whose rate is another in each trial, every row that does not repeat says so, in the table
    /// as in JSON; of one that is always the same, none does.
    #[test]
    fn results_that_do_not_repeat_within_3_percent_say_so() {
        const WORDS: &str = "which is more than 3 %";
        let says = |row: &Value| {
            let notes: Vec<_> = row["notes"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
            notes.iter().any(|note| note.starts_with("repetitions differ by ") && note.contains(WORDS))
        };
        let mut device = FakeDevice { wander: 0.2, ..FakeDevice::new(50_000.0, 31) };
        let (text, rows) = reported(&mut device, &[Test::FrameLoss]);
        println!("{text}");
        let spread = |row: &Value| row["repeat_spread"].as_f64().unwrap();
        assert!(spread(&rows[0]) > 0.03, "{}", rows[0]);
        for row in &rows {
            assert_eq!(says(row), spread(row) > 0.03, "{row}");
            assert_eq!(row["converged"] == true, spread(row) <= 0.03, "{row}");
        }
        let first = text.lines().find(|line| line.contains("64 frame loss")).unwrap();
        let number = first.split_whitespace().last().unwrap();
        let remark = text.lines().find(|line| line.starts_with(&format!("  {number}: "))).unwrap();
        assert!(first.contains(&format!("{:.2}", spread(&rows[0]) * 100.0)), "{first}");
        let remarked: Vec<&str> = text.lines().filter(|line| line.contains(WORDS)).collect();
        assert!(!remarked.is_empty() && !remark.is_empty(), "{text}");

        let (text, rows) = reported(&mut FakeDevice::new(50_000.0, 32), &[Test::Throughput, Test::FrameLoss]);
        assert!(rows.iter().all(|row| spread(row) <= 0.03 && !says(row)), "{rows:#?}");
        assert!(!text.contains(WORDS), "{text}");
    }
}
