//! What a paper prints stands beside what is found of the same, and alone only where nothing is.

use super::*;
use crate::harness::OVERLOAD_STEPS;

/// The lines that have a number of the paper's.
fn printed_of(id: &str, rows: &Value) -> Vec<[String; 3]> {
    let (lines, _) = found_of(id, rows);
    lines.into_iter().filter(|[.., paper]| !paper.is_empty()).collect()
}

fn check(id: &str, rows: &Value, expected: &[[&str; 3]]) {
    let lines = printed_of(id, rows);
    for line in expected {
        assert!(lines.contains(&line.map(str::to_owned)), "{id}: no {line:?} in {lines:#?}");
    }
}

/// Loads are those of `lab overload`, one of which is the paper's.
#[test]
fn the_load_of_paper_004_is_one_that_is_measured() {
    let row = |share: f64, planned: f64| {
        json!({ "frame_bytes": 64, "offered_share_of_capacity": share, "planned_share_of_capacity": planned,
            "processor_load": share.min(1.0), "success_ratio": (1.0 / share).min(1.0) })
    };
    let reached = |most: f64| json!(OVERLOAD_STEPS.map(|step| row(step.min(most), step)));
    let expected = [
        ["success at 109 % of capacity, 64 bytes", "91.74 %", "22 % (50 of 46 Mbit/s)"],
        ["processor at 109 % of capacity, 64 bytes", "100.0 %", "approaches 100 % (50 of 46 Mbit/s)"],
    ];
    let lines = printed_of("004-section-4-3", &reached(4.0));
    assert_eq!(lines, expected.map(|line| line.map(str::to_owned)), "and none of its numbers alone");

    // Where the generator offered less, it is another load.
    let lines = printed_of("004-section-4-3", &reached(1.03));
    assert!(lines.len() == 2 && lines.iter().all(|[_, here, _]| here.is_empty()), "{lines:?}");
    let (lines, _) = found_of("004-section-4-3", &reached(1.03));
    let what = "success at 103 % of capacity, 64 bytes, in place of 110 % of capacity";
    assert!(lines.iter().any(|[line, here, _]| line == what && here == "97.09 %"), "{lines:?}");
}

#[test]
fn triple_des_that_is_offloaded_stands_beside_that_of_paper_004() {
    let row = |suite: &str, placement: &str, capacity: f64| {
        json!({ "suite": suite, "placement": placement, "frame_bytes": 1450, "block": "IP", "io_threads": 0,
            "capacity": capacity })
    };
    let rows = json!([
        row("des-sha1", "none", 100.0),
        row("des-sha1", "crypto", 400.0),
        row("3des-sha1", "crypto", 200.0),
        row("3des-sha1", "both", 250.0),
    ]);
    let expected = [
        ["gain by offloading the cryptography", "300.0 %", "350 %"],
        ["size with the highest throughput", "1,450 bytes", "1450 bytes"],
        ["3DES, cryptography offloaded, frames of 1450 bytes", "200.0 Mbit/s", "45 Mbit/s (abstract)"],
        ["3DES, both offloaded, frames of 1450 bytes", "250.0 Mbit/s", "45 Mbit/s (abstract)"],
    ];
    let lines = printed_of("004-figure-4", &rows);
    assert_eq!(lines, expected.map(|line| line.map(str::to_owned)));
}

/// MoonGen's line of the table is of the shortest packets.
#[test]
fn moongens_line_of_table_i_stands_beside_frames_of_64_bytes() {
    let row = |watts: Value| {
        json!({ "test": "efficiency", "longest_pause": true, "held": true, "rate": "1", "frame_bytes": 64,
            "throughput_gbit_per_second": 1.0, "awake_share": 0.9, "cycles_per_byte": 20.0,
            "busy_cycles_per_byte": 12.0, "joules_per_byte": watts.as_f64().map(|watts| watts / 1.25e8), "watts": watts })
    };
    let of = "at 1 Gbit/s, frames of 64 bytes";
    let [throughput, load, power, energy] =
        ["throughput", "CPU load", "power", "energy"].map(|what| format!("{what} {of}"));
    let measured = [
        [throughput.as_str(), "1.00 Gbit/s", "1.00 Gbit/s (MoonGen)"],
        [load.as_str(), "90.00 %", "20 % (MoonGen, at 3.3 GHz)"],
    ];
    check("000-table-i", &json!([row(json!(100.0))]), &measured);
    let metered = [
        [power.as_str(), "100.0 W", "100 W (MoonGen)"],
        [energy.as_str(), "800.0 nJ/byte", "0.100 mJ/byte (MoonGen)"],
    ];
    check("000-table-i", &json!([row(json!(100.0))]), &metered);
    // Without a meter nothing of it is known here.
    let alone = metered.map(|[what, _, paper]| [what, "", paper]);
    check("000-table-i", &json!([row(Value::Null)]), &measured);
    check("000-table-i", &json!([row(Value::Null)]), &alone);
}

/// Of a worker that never pauses, since it cannot keep up, 100 % are no figure of the rate.
#[test]
fn what_a_rate_takes_that_is_not_held_is_not_known() {
    let row = |bytes: u64, held: bool| {
        json!({ "test": "efficiency", "longest_pause": true, "held": held, "rate": "1", "frame_bytes": bytes,
            "throughput_gbit_per_second": 0.9, "awake_share": 0.99, "cycles_per_byte": 20.7,
            "busy_cycles_per_byte": 14.0, "joules_per_byte": 8e-7, "watts": 100.0 })
    };
    let (lines, notes) = found_of("000-table-i", &json!([row(64, true), row(256, false)]));
    let here = |what: &str, bytes: u64| {
        let name = format!("{what} at 1 Gbit/s, frames of {bytes} bytes");
        lines.iter().find(|[line, ..]| *line == name).map(|[_, here, _]| here.clone()).unwrap_or_default()
    };
    for what in ["CPU load", "cycles", "power", "energy"] {
        assert_eq!((here(what, 64).is_empty(), here(what, 256).as_str()), (false, ""), "{what}");
    }
    assert_eq!(here("throughput", 256), "0.900 Gbit/s");
    assert_eq!(here("cycles in turns with packets", 256), "14.00 cycles/byte", "pauses are not in it");
    let said =
        "What the processor takes at 1 Gbit/s, frames of 256 bytes is not known: the rate is not held.";
    assert_eq!(notes.iter().filter(|note| note.starts_with("What the processor takes")).count(), 1);
    assert!(notes.iter().any(|note| note == said), "{notes:?}");
    let beside = ["CPU load at 1 Gbit/s, frames of 256 bytes", "", "about 10 % (MoonGen)"];
    assert!(lines.contains(&beside.map(str::to_owned)), "the paper's stands alone: {lines:#?}");
}

/// Nothing of such a figure was measured, and no other program can have slowed it.
#[test]
fn a_figure_that_has_predictions_alone_is_not_called_measured() {
    let item = registry::all().find(|item| item.id() == "002-figure-7").unwrap();
    let entry = |kernel_us: Value| {
        let settings = Settings {
            id: item.id(),
            mode: "full".to_owned(),
            command: "c".to_owned(),
            prices: None,
            program: "p".to_owned(),
            machine: machine(),
        };
        let rows = json!([{ "suite": "aes128-sha1", "inner_bytes": 64, "device": null,
            "kernel_us": kernel_us, "predicted_kernel_us": 44.0 }]);
        let record = Record::new(settings, 1.0, Some(0.5), rows);
        Entry { item, state: measured(Box::new(record), item.method().unwrap(), false) }
    };
    for (kernel_us, kind, begins) in
        [(Value::Null, "predicted", "Predicted by a model "), (json!(90.0), "measured", "Measured ")]
    {
        let entry = entry(kernel_us);
        assert_eq!(entry.state.kind(), kind);
        assert_eq!(Report::tally(&[&entry]), format!("1 {kind}"));
        let notes = entry.notes();
        assert!(notes[0].starts_with(begins), "{notes:?}");
        let is_shared = notes.iter().any(|note| note.starts_with("This machine was shared"));
        assert_eq!(is_shared, kind == "measured", "{notes:?}");
    }
}

/// Of a model they are predictions, which have a column of their own.
#[test]
fn average_latencies_of_paper_002_stand_beside_averages() {
    let row = |setting: &str, chunk: u64, length: Value| {
        json!({ "experiment": "latency", "engine": "model", "setting": setting, "suite": "aes128-sha1",
            "direction": "outbound", "chunk": chunk, "inner_bytes": length, "latency_us": null,
            "predicted_latency_us": { "mean": 4000.0, "distribution": [] } })
    };
    let rows = [json!(1024), json!("random")].map(|length| row("4096 packets, 64 bins", 4096, length));
    let expected = [
        ["average latency, 1024 bytes, model", "", "2.79 ms"],
        ["average latency, random lengths, model", "", "3.71 ms"],
    ];
    let lines = printed_of("002-figure-14b", &json!(rows));
    assert_eq!(lines, expected.map(|line| line.map(str::to_owned)));

    let rows = [("8192 packets, 128 bins", 8192), ("4096 packets, 64 bins", 4096)]
        .map(|(setting, chunk)| row(setting, chunk, json!("random")));
    let of = "average latency, AES-CBC encryption + HMAC-SHA1, random lengths, model";
    let [large, usual] =
        ["8192 packets, 128 bins", "4096 packets, 64 bins"].map(|chunk| format!("{chunk}: {of}"));
    let expected =
        [[large.as_str(), "", "5.38 ms (of the mix)"], [usual.as_str(), "", "3.92 ms (of the mix)"]];
    check("002-figure-10", &json!(rows), &expected);
}
