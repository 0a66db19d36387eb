//! `testudo bench vpe` as its command line has it.

use clap::Parser;

use super::*;
use crate::bench::{BenchArgs, BenchCommand};

#[derive(Parser)]
struct Program {
    #[command(flatten)]
    bench: BenchArgs,
}

pub(super) fn options(words: &str) -> BenchVpeOptions {
    match Program::parse_from(format!("bench vpe {words}").split_whitespace()).bench.command {
        Some(BenchCommand::Vpe(options)) => options,
        other => panic!("not its options: {other:?}"),
    }
}

/// What is printed, with the portable engine alone.
fn printed(words: &str) -> String {
    measure(&options(words), Vec::new()).unwrap_or_else(|error| panic!("{words}: {error}"))
}

/// The rows of a short run, each with the members that all have.
fn rows(words: &str) -> Vec<Value> {
    let rows: Vec<Value> = serde_json::from_str(&printed(&format!("--json {words}"))).unwrap();
    for row in &rows {
        assert!(["esp", "vpe"].contains(&row["encapsulation"].as_str().unwrap()), "{row}");
        let threadings = ["run_to_completion", "shared_sa", "parallel_esp", "sa_per_worker"];
        assert!(threadings.contains(&row["threading"].as_str().unwrap()), "{row}");
        assert!(row["workers"].is_u64() && row["inner_bytes"].is_u64(), "{row}");
        assert!(row["packets_per_second"].as_f64().is_none_or(|rate| rate > 0.0), "{row}");
        let is_scaling = row["experiment"] == "scaling";
        assert_eq!(row.get("of_linear").is_some(), is_scaling, "of_linear is scaling's alone: {row}");
    }
    rows
}

fn number(row: &Value, name: &str) -> f64 {
    row[name].as_f64().unwrap_or_else(|| panic!("{name} is no number in {row}"))
}

#[test]
fn esp_and_vpe_take_turns_both_ways_with_and_without_udp() {
    let rows = rows("--experiment single_thread --duration 2 --repeat 2");
    assert_eq!(rows.len(), 2 * 2 * 4);
    for (index, row) in rows.iter().enumerate() {
        assert_eq!((&row["experiment"], &row["workers"]), (&"single_thread".into(), &1.into()));
        assert_eq!(row["direction"], ["outbound", "inbound"][index / 8]);
        assert_eq!(row["inner_bytes"], [64, 1420][index / 4 % 2]);
        assert_eq!(row["encapsulation"], ["esp", "vpe"][index % 2]);
        assert_eq!(row["in_udp"], index % 4 > 1);
        let [lowest, median, highest] =
            ["_lowest", "", "_highest"].map(|end| number(row, &format!("packets_per_second{end}")));
        assert!(0.0 < lowest && lowest <= median && median <= highest, "{row}");
        let gbit_s = median * number(row, "inner_bytes") * 8e-9;
        assert!(
            (number(row, "gbit_s") / gbit_s - 1.0).abs() < 1e-9 && number(row, "cycles_per_packet") > 0.0
        );
        assert_eq!(row.get("of_esp").is_some(), index % 2 == 1, "{row}");
        assert_eq!(row.get("of_plain").is_some(), index % 4 > 1, "{row}");
    }
}

#[test]
fn every_size_is_swept_and_figures_are_drawn() {
    let folder = tempfile::tempdir().unwrap();
    let svg = folder.path().join("figures");
    let words = format!("--experiment size_sweep --packets 8 --repeat 1 --svg {}", svg.display());
    let rows = rows(&words);
    assert_eq!(rows.len(), 2 * 301);
    for (index, row) in rows.iter().enumerate() {
        assert_eq!(row["inner_bytes"], 1150 + index / 2);
        assert_eq!(row["encapsulation"], ["esp", "vpe"][index % 2]);
        let time = number(row, "nanoseconds_per_packet") * number(row, "packets_per_second");
        assert!((time / 1e9 - 1.0).abs() < 1e-6 && number(row, "packets") == 8.0, "{row}");
    }
    let picture = std::fs::read_to_string(svg.join("size_sweep.svg")).unwrap();
    assert_eq!(picture.matches("<polyline").count(), 2);
    assert!(picture.contains(">1150</text>") && picture.contains("(figure 7)"), "{picture}");
    assert!(picture.contains("short: the paper has 25 times 10,000,000"));
}

#[test]
fn packets_are_moved_by_every_headroom_up_to_64_bytes() {
    let rows = rows("--experiment headroom --packets 8 --repeat 1");
    let moved: Vec<u64> = rows.iter().map(|row| row["headroom_bytes"].as_u64().unwrap()).collect();
    assert_eq!(moved, (0..=64).flat_map(|extra| [extra, extra]).collect::<Vec<_>>());
    assert!(rows.iter().all(|row| row["inner_bytes"] == 1420), "{rows:?}");
}

#[test]
fn short_settings_say_so_and_the_papers_do_not() {
    let text = printed("--experiment headroom --packets 8 --repeat 1");
    assert!(text.contains("medians of 1 times 8 packets; short"), "{text}");
    let full = options("--full");
    assert_eq!(full.setting(), "medians of 25 times 10,000,000 packets");
    assert!(options("--full --repeat 2").setting().ends_with("(--full)"));
}

/// No clock is involved: the same in every run.
#[test]
fn esp_loses_what_is_overtaken_and_vpe_nothing_whatever_its_window() {
    let (first, second) = (rows("--experiment qos"), rows("--experiment qos"));
    assert_eq!(first, second);
    assert_eq!(first.len(), 2 * 2 * 3);
    for (index, row) in first.iter().enumerate() {
        assert_eq!(row["network"], ["priority", "two_paths"][index / 6]);
        assert_eq!(row["replay_window"], [64, 1024, 4096][index % 3]);
        assert_eq!((number(row, "sent_packets"), &row["packets_per_second"]), (65_536.0, &Value::Null));
        match row["encapsulation"].as_str() {
            Some("vpe") => assert_eq!(row["lost_packets"], 0, "{row}"),
            _ => assert!(number(row, "lost_percent") > 10.0, "{row}"),
        }
    }
    let lost: Vec<f64> = first[..3].iter().map(|row| number(row, "lost_packets")).collect();
    assert!(lost[0] > lost[1] && lost[1] > lost[2], "a larger window loses less: {lost:?}");
    let text = printed("--experiment qos");
    assert!(text.contains("urgent packets come 6,000 packets earlier"), "{text}");
}

#[test]
fn an_engine_that_is_not_there_is_refused() {
    let error = measure(&options("--engine none"), Vec::new()).unwrap_err();
    assert!(error.to_string().contains("there is no engine \"none\""), "{error}");
}
