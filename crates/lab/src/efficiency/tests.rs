//! The command, over gateways in memory and over a worker of known cost.

use super::*;
use crate::harness::sleeper::{CYCLES_PER_SECOND, Fault, Sleeper};
use crate::harness::{Ceiling, Limit};
use clap::Parser;

#[derive(Parser)]
struct Program {
    #[command(flatten)]
    options: EfficiencyOptions,
}

fn options(words: &str) -> EfficiencyOptions {
    Program::parse_from(["efficiency"].into_iter().chain(words.split_whitespace())).options
}

const MACHINE: &str = "currency = \"EUR\"\n[machine]\nname = \"the machine\"\nprice = 500\nwatts = 120\n\
                       [[system]]\nname = \"i7-5820K\"\nprice = 123\n";

/// What the command would print of a worker that takes known cycles for each packet of 500 bytes.
fn of_known(options: &EfficiencyOptions, rate: f64, fault: Fault) -> Found {
    let mut device = Sleeper::new(rate);
    let mut meters = [device.meter(fault)];
    let sizes = of_device(options, &mut device, &mut meters).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("prices.toml");
    std::fs::write(&path, MACHINE).unwrap();
    Found {
        heading: "A worker.\n".to_owned(),
        cores: Cores { device: 3, generator: 3 },
        engine: "fake".to_owned(),
        sizes,
        absent: vec![("other (fake)".to_owned(), NotKnown("there is none".to_owned()))],
        prices: Some(Prices::read(&path).unwrap()),
    }
}

fn figure(row: &Value, name: &str) -> f64 {
    row[name].as_f64().unwrap_or_else(|| panic!("no {name} in {row}"))
}

fn assert_within_2_percent(row: &Value, name: &str, known: f64) {
    let found = figure(row, name);
    assert!((found / known - 1.0).abs() <= 0.02, "{name}: found {found}, known {known}: {row}");
}

#[test]
fn what_the_command_prints_of_a_known_worker_is_true_within_2_percent() {
    let options = options("--sizes 500 --rates 25%,0.1 --trial-seconds 4 --repetitions 1 --json");
    let rate = 100_000.0;
    let found = of_known(&options, rate, Fault::None);
    let Value::Array(rows) = report::array(&options, &found) else { panic!("no array") };
    for (name, share) in [("25%", 0.25), ("0.1", 0.1e9 / 8.0 / 500.0 / rate)] {
        let bytes = share * rate * 500.0;
        let of_rate: Vec<_> = rows.iter().filter(|row| row["rate"] == name).collect();
        let longest: Vec<_> = of_rate.iter().filter(|row| row["longest_pause"] == true).collect();
        assert!(of_rate.len() > 10 && longest.len() == 1, "{of_rate:?}");
        for (row, awake) in [(of_rate[0], 1.0), (longest[0], share)] {
            assert_eq!(row["held"], true);
            assert_within_2_percent(row, "throughput_packets_per_second", share * rate);
            assert_within_2_percent(row, "throughput_gbit_per_second", bytes * 8.0 / 1e9);
            assert_within_2_percent(row, "awake_share", awake);
            assert_within_2_percent(row, "busy_share", share);
            assert_within_2_percent(row, "cycles_per_byte", awake * CYCLES_PER_SECOND / bytes);
            assert_within_2_percent(row, "watts", 88.0 + 20.0 * awake);
            assert_within_2_percent(row, "joules_per_byte", (88.0 + 20.0 * awake) / bytes);
            let notes = row["notes"].to_string();
            assert!(row["cores"]["shared"] == true && notes.contains("cores shared"), "{notes}");
        }
        assert!(figure(longest[0], "pause_us") >= 10_000.0 && figure(of_rate[0], "pause_us") == 0.0);
        // Who is always awake takes its 10 µs for each packet, and nobody waits.
        for name in ["p50", "p99", "max"] {
            assert_within_2_percent(&of_rate[0]["latency_us"], name, 10.0);
        }
    }
    let cost: Vec<_> = rows.iter().filter(|row| row["test"] == "cost").collect();
    let gbit = rate * 500.0 * 8.0 / 1e9;
    assert_eq!((cost.len(), &cost[0]["machine"]), (1, &Value::from("the machine")));
    assert_within_2_percent(cost[0], "throughput_gbit_per_second", gbit);
    assert_within_2_percent(cost[0], "price_per_gbit_per_second", 500.0 / gbit);
    assert_within_2_percent(cost[0], "mbit_per_second_per_price", gbit * 1e3 / 500.0);
    assert_eq!((figure(cost[0], "watts_of_price_file"), &cost[0]["currency"]), (120.0, &Value::from("EUR")));
}

/// A worker that takes all that the generator reaches may take more: neither the capacity, nor a share of it,
/// is the worker's.
#[test]
fn a_capacity_that_is_the_generators_is_said_to_be_none_of_the_gateways() {
    const WORDS: &str = "the generator was the bottleneck: the gateways may do more";
    let options = options("--sizes 500 --rates 50%,0.1 --trial-seconds 1 --repetitions 1 --json");
    let says = |packets_per_second, rate| {
        let ceiling = Ceiling { packets_per_second, limit: Limit::Generator };
        let mut device = Sleeper::new(100_000.0);
        device.ceiling = ceiling;
        let mut found = of_known(&options, 100_000.0, Fault::None);
        found.sizes = of_device(&options, &mut device, &mut []).unwrap();
        let Value::Array(rows) = report::array(&options, &found) else { panic!("no array") };
        let of = |row: &&Value| row["test"] == "cost" || row["rate"] == rate;
        let notes: Vec<_> = rows.iter().filter(of).map(|row| row["notes"].to_string()).collect();
        assert!(notes.len() > 5);
        notes.iter().filter(|notes| notes.contains(WORDS)).count() == notes.len()
    };
    assert!(says(60_000.0, "50%") && !says(200_000.0, "50%"));
    assert!(!says(60_000.0, "0.1"), "a rate in gigabits is what it is");
}

/// The rows of the longest pause, of a search that the machine ended and of one that the worker did.
#[test]
fn the_longest_pause_says_that_the_search_ended_by_what_others_took() {
    const WORDS: &str =
        "the search of pauses ended in a trial in which other work, or a hypervisor, had the processor";
    let options = options("--sizes 500 --rates 0.1 --trial-seconds 1 --repetitions 3 --json");
    for (disturbed_in, is_ended) in [(7..13, true), (0..0, false)] {
        let mut device = Sleeper::new(100_000.0);
        device.disturbed_in = disturbed_in;
        let mut found = of_known(&options, 100_000.0, Fault::None);
        // Three trials of the capacity, then three without a pause.
        found.sizes = of_device(&options, &mut device, &mut []).unwrap();
        let Value::Array(rows) = report::array(&options, &found) else { panic!("no array") };
        let says = |row: &&Value| row["notes"].to_string().contains(WORDS);
        let said: Vec<&Value> = rows.iter().filter(says).collect();
        assert_eq!(said.len(), usize::from(is_ended), "{said:?}");
        let longest = rows.iter().find(|row| row["longest_pause"] == true).unwrap();
        assert_eq!(says(&longest), is_ended, "{longest}");
        assert!(!is_ended || longest["converged"] == false, "{longest}");
        assert_eq!(tables::text(&options, &found).contains(WORDS), is_ended);
    }
}

#[test]
fn tables_have_the_papers_numbers_beside_those_of_the_run() {
    let options = options("--sizes 500 --rates 0.1,0.3 --trial-seconds 1 --repetitions 1");
    let found = of_known(&options, 100_000.0, Fault::None);
    let text = tables::text(&options, &found);
    println!("{text}");
    let line = |start: &str| {
        let found = text.lines().find(|line| line.trim_start().starts_with(start));
        found
            .unwrap_or_else(|| panic!("no {start}"))
            .split("   ")
            .map(str::trim)
            .filter(|cell| !cell.is_empty())
            .collect::<Vec<_>>()
    };
    // The rate nearest to 1 Gbit/s is 0.3, at which the worker is awake for three quarters of the time.
    let power = line("power (W)");
    assert_eq!(power[2..], ["100", "108", "107"]);
    assert!(power[1].parse::<f64>().is_ok_and(|watts| (watts / 103.0 - 1.0).abs() <= 0.02), "{power:?}");
    assert_eq!(line("throughput (Gbit/s)")[1..], ["0.30", "1.00", "1.00", "0.48"]);
    assert_eq!(line("energy, as printed")[1..], ["-", "0.100", "0.108", "0.208"]);
    assert_eq!(line("energy (nJ/byte)")[2..], ["800.0", "864.0", "1783"]);
    let machine = line("the machine, 500 bytes");
    assert_eq!(machine[1..6], ["-"; 5]);
    assert_eq!((machine[8], machine[9]), ("500.0", "120.0"));
    // A price of the file beside that of the paper, and the paper's throughput alone.
    assert_eq!(
        line("i7-5820K  ")[1..],
        ["8.10", "439.0", "54.20", "18.45", "140.0", "-", "-", "123.0", "-", "15.19", "65.85"]
    );
    assert_eq!(line("Helion")[5], "-");
    assert!(
        text.contains("power: of fake, generator included")
            && text.contains("other (fake): not known: there is none.")
    );
}

/// A worker that is offered more than it can do never pauses: being always awake says nothing of the rate.
#[test]
fn table_i_has_nothing_that_a_rate_takes_which_is_not_held() {
    let line = |rate: &str, start: &str| {
        let options = options(&format!("--sizes 500 --rates {rate} --trial-seconds 1 --repetitions 1"));
        let text = tables::text(&options, &of_known(&options, 100_000.0, Fault::None));
        let found = text.lines().find(|line| line.trim_start().starts_with(start)).unwrap();
        found.split("   ").map(str::trim).find(|cell| !cell.is_empty() && *cell != start).unwrap().to_owned()
    };
    for start in ["power (W)", "processor, awake (%)", "cycles/byte", "energy (nJ/byte)"] {
        // It does 0.4 Gbit/s.
        assert_eq!(line("1", start), "not known", "{start}");
        assert!(line("0.3", start).parse::<f64>().is_ok(), "{start}");
    }
    assert_eq!(line("1", "throughput (Gbit/s)"), "0.40", "what came through was measured");
}

#[test]
fn without_a_meter_or_a_price_nothing_is_printed_in_their_place() {
    let options = options("--sizes 500 --rates 50% --quick --repetitions 1");
    let mut found = of_known(&options, 100_000.0, Fault::Vanishes(0));
    found.prices = None;
    let text = tables::text(&options, &found);
    println!("{text}");
    assert!(text.contains("power is not known: fake: gone") && text.contains("--prices FILE tells"));
    assert!(text.contains("--quick: figures are coarse"));
    let power = text.lines().find(|line| line.trim_start().starts_with("power (W)")).unwrap();
    assert!(power.contains("not known"), "{power}");
    let machine = text.lines().find(|line| line.contains("this machine, 500 bytes")).unwrap();
    assert_eq!(machine.matches("not known").count(), 5, "{machine}");
    let Value::Array(rows) = report::array(&options, &found) else { panic!("no array") };
    for row in rows.iter().filter(|row| row["test"] != "paper") {
        assert!(row["watts"].is_null() && row["joules_per_byte"].is_null(), "{row}");
        assert_eq!(row["meters"][0]["not_known"], "gone");
    }
    let cost = rows.iter().find(|row| row["test"] == "cost").unwrap();
    assert!(cost["price"].is_null() && cost["price_per_gbit_per_second"].is_null());
}

#[test]
fn a_quick_run_over_gateways_has_all_fields_and_says_what_is_not_known() {
    let options = options(
        "--quick --trial-seconds 0.02 --repetitions 1 --sizes 64 --rates 10%,100 --engine portable --json",
    );
    let text = report(&options, Vec::new(), Meters::of_this_machine()).unwrap();
    let Value::Array(rows) = serde_json::from_str(&text).unwrap() else { panic!("no array") };
    let of = |test: &str| rows.iter().filter(|row| row["test"] == test).collect::<Vec<_>>();
    assert_eq!((of("cost").len(), of("paper").len()), (1, 12));
    let steps = of("efficiency");
    for rate in ["10%", "100"] {
        let longest = steps.iter().filter(|row| row["rate"] == rate && row["longest_pause"] == true).count();
        assert_eq!(longest, 1, "{rate}");
    }
    for row in steps.iter().chain(&of("cost")) {
        println!("{row}");
        for name in [
            "offered_packets_per_second",
            "throughput_packets_per_second",
            "loss",
            "throughput_gbit_per_second",
        ] {
            assert!(figure(row, name) >= 0.0, "{name} in {row}");
        }
        // A worker that had no processor in such a short trial has no share.
        for name in ["awake_share", "lost_share", "busy_share"] {
            assert!(row[name].is_null() || (0.0..=1.0).contains(&figure(row, name)), "{name} in {row}");
        }
        let notes = row["notes"].to_string();
        assert!(notes.contains("--quick: trials of 0.02 s"), "{notes}");
        assert_eq!(
            row["watts"].is_null(),
            notes.contains("power is not known: processors (RAPL): "),
            "{row}"
        );
        assert_eq!(row["watts"].is_null(), !row["meters"][0]["not_known"].is_null());
        let is_shared = row["cores"]["gateways"] == row["cores"]["generator"];
        assert!(row["cores"]["shared"] == is_shared && notes.contains("cores shared") == is_shared);
        assert!(row["engine"].is_string() && row["seed"] == 1);
    }
    // No portable engine carries so much: that rate has one row, without a pause.
    let beyond: Vec<_> = steps.iter().filter(|row| row["rate"] == "100").collect();
    assert_eq!(beyond.len(), 1);
    assert!(
        beyond[0]["held"] == false
            && beyond[0]["notes"].to_string().contains("not held, even without a pause")
    );
}

#[test]
fn wrong_prices_are_told_before_anything_is_measured() {
    let error = measure(&options("--prices /nowhere/prices.toml"), Vec::new(), Meters::of_this_machine());
    assert!(error.unwrap_err().to_string().starts_with("--prices: /nowhere/prices.toml: "));
}
