//! `testudo bench vpe` as its command line has it.

use clap::{Args, Parser};

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

/// All names of experiments and of ways to divide the work, but for those that are asked for by name.
const EXPERIMENTS: [&str; 5] = ["single_thread", "scaling", "size_sweep", "headroom", "qos"];
const THREADINGS: [&str; 4] = ["run_to_completion", "shared_sa", "parallel_esp", "sa_per_worker"];

/// The rows of a short run, each with the members that all have, and with none that has no figure.
fn rows(words: &str) -> Vec<Value> {
    let rows: Vec<Value> = serde_json::from_str(&printed(&format!("--json {words}"))).unwrap();
    for row in &rows {
        let [experiment, encapsulation, threading] =
            ["experiment", "encapsulation", "threading"].map(|name| row[name].as_str().unwrap());
        let is_order = experiment == "order" && words.contains("--experiment order");
        assert!(EXPERIMENTS.contains(&experiment) || is_order, "{row}");
        assert!(["esp", "vpe"].contains(&encapsulation), "{row}");
        let is_cores = threading == "cores" && words.contains("--cores");
        assert!(THREADINGS.contains(&threading) || is_cores, "{row}");
        assert!(row["workers"].is_u64() && row["inner_bytes"].is_u64(), "{row}");
        assert!(row.as_object().unwrap().values().all(|member| !member.is_null()), "{row}");
        let is_rate = |rate: &Value| rate.as_f64().is_some_and(|rate| rate > 0.0);
        assert!(row.get("packets_per_second").is_none_or(is_rate), "{row}");
        let is_scaling = experiment == "scaling" && row.get("packets_per_second").is_some();
        assert_eq!(row.get("of_linear").is_some(), is_scaling, "of_linear is scaling's alone: {row}");
        assert!(row["cores"].is_object() || row.get("cores").is_none(), "which they are: {row}");
        let roles = [&row["cores"]["worker"], &row["cores"]["gateways"]];
        let named: usize = roles.iter().filter_map(|role| role.as_array()).map(Vec::len).sum();
        let is_timed = row["packets_per_second"].is_f64() && row.get("implementation").is_none();
        assert_eq!(named > 0, is_timed, "what takes time names its processors: {row}");
        assert_eq!(is_timed, ["processor", "day"].contains(&row["time"].as_str().unwrap_or("")), "{row}");
    }
    rows
}

fn number(row: &Value, name: &str) -> f64 {
    row[name].as_f64().unwrap_or_else(|| panic!("{name} is no number in {row}"))
}

#[test]
fn esp_and_vpe_take_turns_both_ways_with_and_without_udp() {
    let rows = rows("--experiment single_thread --duration 2 --repeat 2 --chain-runs 2");
    assert_eq!(rows.len(), 2 * 2 * 4 + 2 + 4);
    for (index, row) in rows[..16].iter().enumerate() {
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

/// What programs read that know the five experiments and the four ways to divide the work.
#[test]
fn rows_have_the_names_of_closed_lists_unless_others_are_asked_for_and_no_member_without_a_figure() {
    let short = "--duration 1 --repeat 1 --packets 8 --size-step 300 --chain-runs 1 --workers 1";
    let rows = rows(short);
    for (member, names) in [("experiment", &EXPERIMENTS[..]), ("threading", &THREADINGS[..])] {
        for name in names {
            assert!(rows.iter().any(|row| row[member] == *name), "no row with {member} {name}");
        }
    }
    for row in &rows {
        let is_counted = row["experiment"] == "qos" || row.get("not_measured").is_some();
        assert_eq!(row.get("packets_per_second").is_none(), is_counted, "{row}");
    }
    let of = |words: &str| options(words).experiments().into_iter().map(Experiment::name).collect::<Vec<_>>();
    assert!(!of("").contains(&"order") && of("").len() == EXPERIMENTS.len());
    assert_eq!(of("--experiment order,qos"), ["qos", "order"]);
    let text = printed("--experiment scaling --duration 1 --repeat 1 --workers 1");
    assert!(!text.to_lowercase().contains("engine cores"), "{text}");
}

/// After them ipsec-secgw, of which there are no figures, and the chain.
#[test]
fn goodput_after_a_round_trip_has_a_mean_and_its_interval() {
    let rows = rows("--experiment single_thread --duration 2 --repeat 1 --chain-runs 3");
    for (row, bytes) in rows[16..18].iter().zip([64, 1420]) {
        assert_eq!((&row["implementation"], &row["inner_bytes"]), (&"ipsec-secgw".into(), &bytes.into()));
        assert!(row.get("packets_per_second").is_none() && row["not_measured"].is_string(), "{row}");
    }
    for (row, (encapsulation, bytes)) in
        rows[18..].iter().zip([("esp", 64), ("esp", 1420), ("vpe", 64), ("vpe", 1420)])
    {
        assert_eq!((&row["encapsulation"], &row["inner_bytes"]), (&encapsulation.into(), &bytes.into()));
        assert_eq!((&row["direction"], number(row, "runs")), (&"round_trip".into(), 3.0));
        assert!(
            number(row, "goodput_gbit_s_mean") > 0.0 && number(row, "goodput_gbit_s_ci95") >= 0.0,
            "{row}"
        );
    }
}

#[test]
fn figures_of_another_implementation_are_shown_beside() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("peer.json");
    let figures = r#"[{"suite": "aes128gcm16", "inner_bytes": 64, "packets_per_second": 2500000},
                      {"suite": "aes128-sha1", "inner_bytes": 64, "packets_per_second": 1000000}]"#;
    std::fs::write(&file, figures).unwrap();
    let words = format!(
        "--experiment single_thread --duration 1 --repeat 1 --chain-runs 1 --peer-json {}",
        file.display()
    );
    let rows = rows(&words);
    let of_peer: Vec<_> = rows.iter().filter(|row| row["implementation"] == "ipsec-secgw").collect();
    assert_eq!((of_peer.len(), number(of_peer[0], "packets_per_second")), (1, 2.5e6));
    let text = printed(&words);
    assert!(text.contains("ESP, ipsec-secgw, in a run of its own") && text.contains("2.500"), "{text}");
    std::fs::write(&file, "{}").unwrap();
    assert!(measure(&options(&words), Vec::new()).unwrap_err().to_string().contains("bench-peer.sh"));
}

/// The members of all rows, and what a row has that was not measured.
#[test]
fn every_division_is_beside_as_many_independent_gateways() {
    let rows = rows("--experiment scaling --cores --duration 4 --repeat 1 --workers 2 --peer-window 1024");
    let (predicted, measured): (Vec<_>, Vec<_>) = rows
        .iter()
        .partition(|row| row["not_measured"].as_str().is_some_and(|why| why.starts_with("a prediction")));
    assert_eq!(measured.len(), 2 * 2 * 5 * 2);
    for (index, row) in measured.iter().enumerate() {
        let threading =
            ["run_to_completion", "shared_sa", "sa_per_worker", "parallel_esp", "cores"][index / 2 % 5];
        assert_eq!((&row["threading"], &row["workers"]), (&threading.into(), &(1 + index % 2).into()));
        assert_eq!(row["encapsulation"], if index / 2 % 5 == 0 { "vpe" } else { "esp" });
        assert_eq!(row["direction"], ["outbound", "inbound"][index / 20]);
        if let Some(reason) = row["not_measured"].as_str() {
            // Where workers cannot share an SA of VPE, the row says so.
            assert!(row["encapsulation"] == "vpe" && row["workers"] == 2 && reason.contains("VPE"), "{row}");
            assert!(row.get("packets_per_second").is_none() && row.get("of_linear").is_none(), "{row}");
            continue;
        }
        assert!(number(row, "of_linear") > 0.0 && number(row, "of_one_worker") > 0.0, "{row}");
        // What the model was fitted to is not said to be predicted.
        let has_all = row["workers"] == 2
            && row["cores_available"] != 1
            && !["parallel_esp", "cores"].contains(&threading);
        assert_eq!(row["fitted_of_linear"].is_f64(), has_all && !predicted.is_empty(), "{row}");
        assert_eq!(row["fitted_extra_ns"].is_f64(), row["fitted_of_linear"].is_f64(), "{row}");
        assert!(row["fitted_of_linear"].is_null() || row["predicted_of_linear"].is_null(), "{row}");
        let threads = row["workers"].as_u64().unwrap() + u64::from(threading == "parallel_esp");
        assert_eq!(row["threads"], threads);
        if threading == "cores" && row["workers"] == 2 {
            assert!(number(row, "in_place_cycles_per_packet") > 0.0, "{row}");
            assert!(number(row, "late_cycles_per_packet") > 0.0, "{row}");
        }
        if threading == "cores" && row["workers"] == 2 && row["cores_available"] != 1 {
            assert!(number(row, "direct_cycles_per_job") > 0.0, "{row}");
            assert!(number(row, "handed_over_cycles_per_job") > 0.0, "{row}");
        }
        assert_eq!(row["cores_shared"], threads > row["cores_available"].as_u64().unwrap());
        let have_own = row["cores_shared"] == false && !["parallel_esp", "cores"].contains(&threading);
        assert_eq!(row["time"], if have_own { "processor" } else { "day" }, "{row}");
    }
    // Predictions are none of the measured members.
    assert!(predicted.is_empty() || predicted.len() == 2 * 2 * 5 * 5, "{}", predicted.len());
    for row in predicted {
        assert!(row.get("packets_per_second").is_none() && row.get("of_linear").is_none(), "{row}");
        assert!((0.0..=1.000_001).contains(&number(row, "predicted_of_linear")), "{row}");
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
    assert_eq!(moved, (0..=64).flat_map(|extra| [extra; 4]).collect::<Vec<_>>());
    // UDP moves what is behind it by 8 bytes, half of what ciphers want.
    for (index, row) in rows.iter().enumerate() {
        assert_eq!(row["inner_bytes"], 1420);
        assert_eq!(
            (&row["encapsulation"], &row["in_udp"]),
            (&["esp", "vpe"][index % 2].into(), &(index % 4 > 1).into())
        );
        assert_eq!(row.get("of_esp").is_some(), index % 2 == 1, "{row}");
        assert_eq!(row.get("of_plain").is_some(), index % 4 > 1, "{row}");
    }
    let text = printed("--experiment headroom --packets 8 --repeat 1");
    assert!(text.contains("VPE in UDP, ns") && text.contains("VPE/ESP in UDP"), "{text}");
}

#[test]
fn short_settings_say_so_and_the_papers_do_not() {
    let text = printed("--experiment headroom --packets 8 --repeat 1");
    assert!(text.contains("medians of 1 times 8 packets; short"), "{text}");
    let full = options("--full");
    assert_eq!(full.setting(), "medians of 25 times 10,000,000 packets");
    assert!(options("--full --repeat 2").setting().ends_with("(--full)"));
}

/// Sizes and headroom are 215 billion packets: at 190 ns each (engine vaes) half a day, at 590 ns (ipsec-mb)
/// a day and a half, and nearly all of it.
#[test]
fn all_of_the_papers_packets_take_as_long_as_the_help_says() {
    let full = options("--full");
    let expected: Duration = full.experiments().iter().map(|one| experiments::expected(*one, &full)).sum();
    let hours = expected.as_secs_f64() / 3600.0;
    assert!((12.0..=36.0).contains(&hours), "{hours}");
    let help = BenchVpeOptions::augment_args(clap::Command::new("vpe")).render_long_help().to_string();
    let words = help.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(words.contains("It takes half a day to a day and a half"), "{words}");
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
        assert_eq!((number(row, "sent_packets"), row.get("packets_per_second")), (65_536.0, None));
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

/// How much is out of order without a ring depends on the machine; that all of it is counted does not.
#[test]
fn what_order_costs_and_what_is_out_of_order_without_it_are_rows() {
    let rows = rows("--experiment order --duration 1 --repeat 1 --workers 1");
    assert_eq!(rows.len(), 2 * 2);
    for (index, row) in rows.iter().enumerate() {
        let in_order = index % 2 == 0;
        assert_eq!((&row["threading"], &row["workers"]), (&"shared_sa".into(), &2.into()), "two at least");
        assert_eq!(row["release"], if in_order { "in-order" } else { "unordered" });
        assert_eq!((&row["encapsulation"], &row["direction"]), (&"esp".into(), &"inbound".into()));
        assert_eq!(row["inner_bytes"], [64, 1420][index / 2]);
        let arrived = number(row, "arrived_packets");
        assert!(arrived > 0.0 && arrived % 16384.0 == 0.0, "each slice has all packets: {row}");
        assert!(number(row, "reordered_packets") < arrived, "{row}");
        assert!(number(row, "longest_extent_packets") < 16384.0, "{row}");
        let (mean, p99) = (number(row, "latency_mean_ns"), number(row, "latency_p99_ns"));
        assert!(mean > 0.0 && p99 > 0.0 && number(row, "offered_packets_per_second") > 0.0, "{row}");
        for name in ["of_unordered", "waited_packets", "passed_over"] {
            assert_eq!(row.get(name).is_some(), in_order, "{name}: {row}");
        }
    }
    let text = printed("--experiment order --duration 1 --repeat 1");
    assert!(text.contains("RFC 4737") && text.contains("p99, us"), "{text}");
    assert!(text.contains("Seconds are those of a worker's processor where each has one"), "{text}");
}

/// VPE has no such suite, and what is left is measured.
#[test]
fn a_suite_that_vpe_lacks_is_measured_with_esp() {
    let rows = rows("--experiment scaling --duration 1 --repeat 1 --workers 1 --suite aes128-sha1");
    let measured = rows.iter().filter(|row| row.get("suite").is_some());
    for row in measured {
        assert_eq!(row["suite"], "aes128-sha1");
        let refusal = row["not_measured"].as_str().unwrap_or_default();
        assert_eq!(row["encapsulation"] == "vpe", refusal.contains("no suite of VPE"), "{row}");
    }
}

#[test]
fn an_engine_that_is_not_there_is_refused() {
    let error = measure(&options("--engine none"), Vec::new()).unwrap_err();
    assert!(error.to_string().contains("there is no engine \"none\""), "{error}");
}
