//! Paper 002: a gateway whose GPU does the cryptography, and how packets are scheduled for it.

mod by_size;
mod delay;
mod discrete;
mod effectiveness;
mod gpu;
mod threads;

use std::collections::HashMap;

use serde_json::Value;

use super::item::{How, Item, Method, Paper, Printed, printed};
use super::reading::{Finding, Length, Lines, Reading, Wrong, number, scaled, text};
use crate::bench::chart::Extent;
use crate::statistics::Spread;

const PAPER: Paper = Paper::Pipsea;
const ACROSS: &str = "packet size (bytes of the inner IP packet)";
const UP: &str = "throughput (Gbit/s)";

const IN_MEMORY: &[Printed] = &[
    printed("AES-CBC encryption + HMAC-SHA1, 1280 bytes", "13.87", "Gbit/s"),
    printed("HMAC-SHA1, 1280 bytes", "39.37", "Gbit/s"),
];
const SCHEDULING: &[Printed] = &[
    printed("all, of no scheduling: random lengths", "1.87", "times"),
    printed("all, of no scheduling: IMIX", "1.96", "times"),
    printed("all, of grouping without sorting of bins: random lengths", "1.19", "times"),
    printed("all, of grouping without sorting of bins: IMIX", "1.24", "times"),
];
const ALGORITHMS: &[Printed] = &[
    printed("AES-CBC + HMAC-SHA1 (ENC), 64 bytes", "3.08", "Gbit/s"),
    printed("AES-CBC + HMAC-SHA1 (ENC), 1024 bytes", "10.36", "Gbit/s"),
    printed("AES-CBC + HMAC-SHA1 (ENC), 1280 bytes", "11.09", "Gbit/s"),
    printed("AES-CBC + HMAC-SHA1 (ENC), random lengths", "10.66", "Gbit/s"),
    printed("Mix (ENC), 1280 bytes", "17.42", "Gbit/s"),
];
const LATENCY: &[Printed] = &[
    printed("average latency, 1024 bytes", "2.79", "ms"),
    printed("average latency, random lengths", "3.71", "ms"),
];
const COST: &[Printed] = &[
    printed("PIPSEA w/ APU RX-421BD, $100.00, 35 W: throughput", "11.1", "Gbit/s"),
    printed("PIPSEA w/ APU RX-421BD, $100.00, 35 W", "110.90", "Mbps/$"),
    printed("PIPSEA w/ dGPU FirePro S9100, $2,944.00, 320 W: throughput", "36.5", "Gbit/s"),
    printed("PIPSEA w/ dGPU FirePro S9100, $2,944.00, 320 W", "12.40", "Mbps/$"),
    printed("PIPSEA w/ dGPU Radeon R9 Nano, $1,544.00, 270 W: throughput", "42", "Gbit/s"),
    printed("PIPSEA w/ dGPU Radeon R9 Nano, $1,544.00, 270 W", "27.20", "Mbps/$"),
    printed("Intel Atom C2758 w/ QAT, $258.00, 20 W: throughput", "7.9", "Gbit/s"),
    printed("Intel Atom C2758 w/ QAT, $258.00, 20 W", "30.62", "Mbps/$"),
    printed("Intel QAT chipset DH8950, $268.00, 20 W: throughput", "43", "Gbit/s"),
    printed("Intel QAT chipset DH8950, $268.00, 20 W", "160.45", "Mbps/$"),
    printed("Multicore i7-5820K w/ AES-NI, $439.00, 140 W: throughput", "12.3", "Gbit/s"),
    printed("Multicore i7-5820K w/ AES-NI, $439.00, 140 W", "28.02", "Mbps/$"),
    printed("Multicore i7-5820K, $439.00, 140 W: throughput", "8.1", "Gbit/s"),
    printed("Multicore i7-5820K, $439.00, 140 W", "18.45", "Mbps/$"),
    printed("NBA w/ dGPU GTX 680, $4,404.00, 620 W: throughput", "32", "Gbit/s"),
    printed("NBA w/ dGPU GTX 680, $4,404.00, 620 W", "7.27", "Mbps/$"),
    printed("Helion ESP w/ FPGA Artix-7, $34.37: throughput", "1.16", "Gbit/s"),
    printed("Helion ESP w/ FPGA Artix-7, $34.37", "33.75", "Mbps/$"),
];

const CRYPTOGRAPHY: Method = Method {
    quick: "bench --suites aes128-sha1,aes128-none,null-sha1 --sizes 64,256,512,1024,1280 --milliseconds 20 --repetitions 2 \
        && testudo bench gpu --suites aes128-sha1,aes128-none,null-sha1 --sizes 64,256,512,1024,1280 --parts launches --quick",
    full: "bench --suites aes128-sha1,aes128-none,null-sha1 --sizes 64,256,512,1024,1280 --milliseconds 80 --repetitions 5 \
        && testudo bench gpu --suites aes128-sha1,aes128-none,null-sha1 --sizes 64,256,512,1024,1280 --parts launches",
    quick_seconds: 8,
    full_seconds: 45,
    conditions: "The GPU with transfers, packets in main memory, if this machine has one, and one core beside it; else one core in place of the GPU. One core: the engine alone with the jobs of packets of these sizes, the fastest engine of this machine for each.",
    read: by_size::cryptography,
};
const KERNELS: Method = Method {
    quick: "bench gpu --suites aes128-sha1,aes128-none,null-sha1 --directions outbound --sizes 64,256,512,1024 --parts launches --quick",
    full: "bench gpu --suites aes128-sha1,aes128-none,null-sha1 --directions outbound --sizes 64,256,512,1024 --parts launches",
    quick_seconds: 2,
    full_seconds: 5,
    conditions: "The kernels alone, of a GPU if this machine has one; else what a model of a GPU of 132 units predicts (docs/GPU.md), which nobody has measured.",
    read: gpu::kernels,
};
const PROCESSOR_AND_GPU: Method = Method {
    quick: "bench gpu --suites aes128-sha1,aes128-none --directions outbound --sizes 64,256,512,1024,1280 --parts gateways,processor --quick",
    full: "bench gpu --suites aes128-sha1,aes128-none --directions outbound --sizes 64,256,512,1024,1280 --parts gateways,processor",
    quick_seconds: 8,
    full_seconds: 25,
    conditions: "Gateways in memory, one on each core (the paper has four): with the fastest engine of the processor, and with a GPU if this machine has one; else what a model of one predicts, of kernels with transfers, and end to end: at most what the workers of this machine hand over to a device that does nothing. Sizes are of inner IP packets.",
    read: gpu::beside_processor,
};
const CHUNK_LATENCY: Method = Method {
    quick: "bench scheduler --experiment latency --sizes 1280 --chunks 3",
    full: "bench scheduler --experiment latency --sizes 1280 --chunks 12",
    quick_seconds: 3,
    full_seconds: 10,
    conditions: "One gateway with a GPU, if this machine has one, and with a model that has the costs of figure 8, on a clock of its own: what it says is a prediction. As many packets are under way as three chunks have.",
    read: gpu::chunk_latency,
};
const IDEAS: Method = Method {
    quick: "bench scheduler --experiment ideas --sizes random,imix --chunks 3 \
        && testudo bench scheduler --experiment ideas --engines gpu --gpus 2 --sizes random,imix --chunks 3",
    full: "bench scheduler --experiment ideas --sizes 64,1280,random,imix --chunks 12 \
        && testudo bench scheduler --experiment ideas --engines gpu --gpus 2 --sizes 64,1280,random,imix --chunks 12",
    quick_seconds: 6,
    full_seconds: 32,
    conditions: "A gateway with a GPU, if this machine has one, and with a model that has 8 units of 64 lanes and the costs of figure 8: what it says is a prediction. Both get the same chunks. Lanes in use are counted, the model's as a GPU's, and are no prediction: the scheduler made the chunks here, a work-group of them is busy until its longest packet is done, and what its lanes could have done meanwhile follows from the lengths, without a device's speed (kinds weigh by what a byte of them costs in figure 8). The paper's work-groups without scheduling take packets of all kinds; so is what is predicted of them.",
    read: scheduling,
};
const CHUNKS: Method = Method {
    quick: "bench scheduler --experiment chunks,latency --sizes random,imix --chunks 2",
    full: "bench scheduler --experiment chunks,latency --sizes 64,1280,random,imix --chunks 8",
    quick_seconds: 8,
    full_seconds: 60,
    conditions: "As figure 9; lanes in use are counted, and no prediction. Latencies are of AES-CBC with HMAC-SHA1 alone, outbound and of one SA, whose packets leave in the order in which they came; the paper's are of the mix.",
    read: chunks,
};
const RANGES: Method = Method {
    quick: "bench scheduler --experiment ranges --sizes random,imix --chunks 3",
    full: "bench scheduler --experiment ranges --sizes 64,1280,random,imix --chunks 12",
    quick_seconds: 3,
    full_seconds: 20,
    conditions: "As figure 9; lanes in use are counted, and no prediction. The random mix of the six combinations, chunks of 4,096 packets in 64 bins.",
    read: scheduling,
};
const SUITES: Method = Method {
    quick: "bench --suites aes128-sha1,aes128-none,null-sha1,mixed --sas 60 --sizes 64,256,512,1024,1280,random,imix --milliseconds 15 --repetitions 2 \
        && testudo bench scheduler --experiment algorithms --engines gpu --sizes 64,1280,random --chunks 2",
    full: "bench --suites aes128-sha1,aes128-none,null-sha1,mixed --sas 60 --sizes 64,256,512,1024,1280,random,imix --milliseconds 80 --repetitions 5 \
        && testudo bench scheduler --experiment algorithms --engines gpu --sizes 64,256,512,1024,1280,random,imix --chunks 8",
    quick_seconds: 11,
    full_seconds: 80,
    conditions: "One gateway with a GPU if this machine has one, its worker on one core where the paper has three, and one core that does all work beside it; else that core alone. In memory, 60 SAs. Sizes are of inner IP packets, the paper's of frames; the core's mix is of nine suites, the paper's and the GPU's of six combinations, the GPU's in both directions at once.",
    read: by_size::suites,
};
const EFFECTIVENESS: Method = Method {
    quick: "lab efficiency --quick --suite aes128-sha1 --sizes 1280 --rates 50% --repetitions 2 {prices}",
    full: "lab efficiency --suite aes128-sha1 --sizes 1280 --rates 50% {prices}",
    quick_seconds: 6,
    full_seconds: 55,
    conditions: "What two gateways in series forward on one core, in memory, when more is offered: the core both seals and opens each packet, where the paper's systems have all of theirs, and seal. What this machine costs is of the user's file: lab papers --prices FILE.",
    read: effectiveness::table_2,
};

/// A figure that shows something, without numbers.
const fn drawing(name: &'static str, title: &'static str, what: &'static str) -> Item {
    Item { paper: PAPER, name, title, printed: &[], how: How::Drawing(what) }
}

const fn measured(
    name: &'static str,
    title: &'static str,
    printed: &'static [Printed],
    method: Method,
) -> Item {
    Item { paper: PAPER, name, title, printed, how: How::Measured(method) }
}

/// Its figures and tables.
pub(super) static ITEMS: [Item; 21] = [
    drawing("Figure 1", "OpenCL platform model", "it shows a model"),
    drawing("Figure 2", "Control-flow divergence", "it explains a term"),
    drawing("Figure 3", "The organization of PIPSEA", "it shows parts of PIPSEA"),
    measured(
        "Figure 4",
        "Throughput comparison of packet I/O and crypto algorithms",
        &[],
        threads::IO_AND_CRYPTOGRAPHY,
    ),
    drawing("Figure 5", "Queues and bins in PIPSEA", "it shows parts of PIPSEA"),
    drawing("Figure 6", "A packet scheduling example", "it is an example"),
    measured("Figure 7", "Average OpenCL kernel execution time for 2048 packets", &[], KERNELS),
    drawing(
        "Table 1",
        "System configuration",
        "it lists the paper's computers; this machine is described above",
    ),
    measured(
        "Figure 8",
        "The throughput of the crypto algorithms with pre-generated packets in main memory",
        IN_MEMORY,
        CRYPTOGRAPHY,
    ),
    measured("Figure 9", "Effects of packet scheduling", SCHEDULING, IDEAS),
    measured(
        "Figure 10",
        "The throughput of PIPSEA with different chunk sizes and numbers of bins",
        &[
            printed("8192 packets, 128 bins, random lengths", "14.82", "Gbit/s"),
            printed("4096 packets, 64 bins, random lengths", "13.58", "Gbit/s"),
            printed("8192 packets, 128 bins: average latency", "5.38", "ms (of the mix)"),
            printed("4096 packets, 64 bins: average latency", "3.92", "ms (of the mix)"),
        ],
        CHUNKS,
    ),
    measured("Figure 11", "Throughput with different granularities of packet length ranges", &[], RANGES),
    measured("Figure 12", "Throughput for different crypto algorithms", ALGORITHMS, SUITES),
    measured(
        "Figure 13",
        "Comparison of the single-threaded and dual-threaded packet I/O models",
        &[],
        threads::MODELS,
    ),
    measured("Figure 14(a)", "Latency distribution for different chunk sizes", &[], CHUNK_LATENCY),
    measured("Figure 14(b)", "Latency distribution for different packet sizes", LATENCY, delay::BY_SIZE),
    measured("Figure 15(a)", "Throughput of AES-NI and GPU", &[], PROCESSOR_AND_GPU),
    measured(
        "Figure 15(b)",
        "Throughput of QAT and PIPSEA",
        &[printed("AES-CBC + HMAC-SHA1, Atom C2758 with QAT, 1280 bytes", "7.95", "Gbit/s")],
        discrete::BESIDE_QUICKASSIST,
    ),
    measured(
        "Figure 16",
        "Throughputs of APU and dGPUs for the random mix of the six crypto algorithms",
        &[printed("two Radeon R9 Nano, 1280 bytes", "64.73", "Gbit/s")],
        discrete::THROUGHPUTS,
    ),
    measured(
        "Figure 17",
        "Speedups of the packet scheduling algorithm for the random mix of the six crypto algorithms on the APU and the dGPUs",
        &[printed("speedup, Radeon R9 Nano, IMIX", "2.13", "times")],
        discrete::SPEEDUPS,
    ),
    measured(
        "Table 2",
        "Cost-effectiveness comparison of existing IPsec solutions and PIPSEA",
        COST,
        EFFECTIVENESS,
    ),
];

/// What the paper calls this suite and direction, without a remark on sealing and opening.
fn algorithm(suite: &str, is_outbound: bool) -> Option<(&'static str, usize)> {
    Some(match (suite, is_outbound) {
        ("aes128-sha1", true) => ("AES-CBC encryption + HMAC-SHA1", 0),
        ("aes128-sha1", false) => ("AES-CBC decryption + HMAC-SHA1", 0),
        ("aes128-none", true) => ("AES-CBC encryption", 1),
        ("aes128-none", false) => ("AES-CBC decryption", 1),
        ("null-sha1", true) => ("HMAC-SHA1", 2),
        ("null-sha1", false) => ("HMAC-SHA1 (opening)", 2),
        _ => return None,
    })
}

/// The rows of the fastest engine of each suite, direction, length and formation, in the order of rows.
fn fastest(rows: &[Value]) -> Result<Vec<&Value>, Wrong> {
    let mut places: HashMap<String, usize> = HashMap::new();
    let mut kept: Vec<&Value> = Vec::new();
    for row in rows {
        let members = ["suite", "direction", "inner_bytes", "formation"];
        let key = members.map(|member| row.get(member).unwrap_or(&Value::Null).to_string()).join(" ");
        let rate = number(row, "packets_per_second")?;
        match places.get(&key).copied() {
            None => {
                places.insert(key, kept.len());
                kept.push(row);
            }
            Some(place) if number(kept[place], "packets_per_second")? < rate => kept[place] = row,
            Some(_) => {}
        }
    }
    Ok(kept)
}

/// The setting that others of figure 9 are compared with, and what they are.
const WITHOUT: &str = "no scheduling";
const COMPARED: [(&str, &str, &str); 2] = [
    ("all", WITHOUT, "all, of no scheduling"),
    ("all", "by algorithm and length", "all, of grouping without sorting of bins"),
];

/// The speed of a row: what was measured, and what is predicted. Neither of PoCL.
fn speed(row: &Value) -> Result<Option<(f64, bool)>, Wrong> {
    if !row.get("note").is_none_or(Value::is_null) {
        return Ok(None);
    }
    if !row.get("gbit_s").is_none_or(Value::is_null) {
        return Ok(Some((number(row, "gbit_s")?, true)));
    }
    // The paper's groups take what comes, if nothing is scheduled.
    let is_without = text(row, "setting")? == WITHOUT;
    let name = if is_without { "predicted_diverging_gbit_s" } else { "predicted_gbit_s" };
    Ok(Some((number(row, name)?, false)))
}

/// A result that was measured, or is predicted.
fn found(what: String, unit: &'static str, (value, is_measured): (f64, bool)) -> Finding {
    let here = is_measured.then(|| Spread::of([value]));
    Finding { what, unit, here, predicted: (!is_measured).then_some(value) }
}

/// Whether a device's speed was measured.
fn has_device(rows: &[Value]) -> bool {
    rows.iter().any(|row| row.get("gbit_s").is_some_and(Value::is_number))
}

/// The rows that are not of several GPUs.
fn of_one(rows: &[Value]) -> Vec<Value> {
    rows.iter().filter(|row| row.get("gpus").is_none()).cloned().collect()
}

/// Figures 9 to 11.
fn scheduling(rows: &[Value]) -> Result<Reading, Wrong> {
    let rows = of_one(rows);
    let mut reading = Reading::default();
    let mut engines: Vec<&str> = Vec::new();
    for row in &rows {
        let engine = text(row, "engine")?;
        if !engines.contains(&engine) {
            engines.push(engine);
        }
    }
    // What is there is measured; a model stands beside it only where nothing is.
    let has_device = has_device(&rows);
    for engine in engines {
        let of_engine: Vec<&Value> = rows.iter().filter(|row| text(row, "engine") == Ok(engine)).collect();
        one_engine(&of_engine, has_device && engine == "model", &mut reading)?;
    }
    Ok(reading)
}

/// Figure 10: also how long packets are in the gateway, on average, by chunk.
fn chunks(rows: &[Value]) -> Result<Reading, Wrong> {
    let is_latency = |row: &Value| row.get("experiment").and_then(Value::as_str) == Some("latency");
    let (latencies, speeds): (Vec<Value>, Vec<Value>) = rows.iter().cloned().partition(is_latency);
    let mut reading = scheduling(&speeds)?;
    let has_device = has_device(rows);
    for row in &latencies {
        let (engine, setting, suite) = (text(row, "engine")?, text(row, "setting")?, text(row, "suite")?);
        let length = Length::of(row, "inner_bytes")?;
        let name = algorithm(suite, text(row, "direction")? == "outbound");
        let (name, _) = name.ok_or_else(|| format!("suite {suite:?}"))?;
        let Some(average) = gpu::average(row)?.filter(|_| !has_device || engine != "model") else { continue };
        let what = format!("{setting}: average latency, {name}, {}, {engine}", length.words());
        reading.findings.push(found(what, "ms", average));
    }
    Ok(reading)
}

/// The rows of one engine; without their speed if that of a device is there.
fn one_engine(rows: &[&Value], is_beside: bool, reading: &mut Reading) -> Result<(), Wrong> {
    let mut lines = Lines::default();
    let mut settings: Vec<&str> = Vec::new();
    for row in rows {
        let (setting, length) = (text(row, "setting")?, Length::of(row, "inner_bytes")?);
        if !settings.contains(&setting) {
            settings.push(setting);
        }
        let colour = settings.iter().position(|other| *other == setting).unwrap_or(0);
        let (engine, words) = (text(row, "engine")?, length.words());
        let lanes = scaled(Spread::of([number(row, "lanes_used")?]), 100.0);
        reading.find(format!("lanes in use, {engine}: {setting}, {words}"), "%", lanes);
        lines.add(setting, (colour % 8, colour / 8), length, lanes);
        let note = row.get("note").and_then(Value::as_str);
        let note = note.map_or_else(String::new, |note| format!(" ({note})"));
        reading.remark(format!("{engine}{note}: {}.", text(row, "device")?));
        let reordered = number(row, "reordered")?;
        if reordered > 0.0 {
            reading.remark(format!("{setting}, {words}: {reordered} packets were reordered."));
        }
        let Some(speed_of_row) = speed(row)?.filter(|_| !is_beside) else { continue };
        reading.findings.push(found(format!("{setting}, {words}"), "Gbit/s", speed_of_row));
        for (_, of, what) in COMPARED.iter().filter(|(better, ..)| *better == setting) {
            let is_base = |other: &&&Value| {
                text(other, "setting") == Ok(of) && other.get("inner_bytes") == row.get("inner_bytes")
            };
            let Some(base) = rows.iter().find(is_base) else { continue };
            let Some((base, _)) = speed(base)? else { continue };
            let ratio = speed_of_row.0 / base.max(f64::MIN_POSITIVE);
            reading.findings.push(found(format!("{what}: {words}"), "times", (ratio, speed_of_row.1)));
        }
    }
    let engine = rows.first().map_or(Ok(""), |row| text(row, "engine"))?;
    let title = format!("Lanes in use, {engine}");
    reading.panels.push(lines.panel(&title, [ACROSS, "lanes in use (%)"], Extent::Zero));
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn row(engine: &str, setting: &str, predicted: f64) -> Value {
        json!({
            "engine": engine, "setting": setting, "device": "a device", "note": null, "inner_bytes": "random",
            "lanes_used": 0.5, "reordered": 0, "predicted_gbit_s": predicted,
            "predicted_diverging_gbit_s": predicted / 2.0, "gbit_s": null,
        })
    }

    fn finding<'a>(reading: &'a Reading, what: &str) -> Option<&'a Finding> {
        reading.findings.iter().find(|finding| finding.what == what)
    }

    #[test]
    fn what_a_model_says_is_a_prediction_and_stands_beside_what_the_paper_prints() {
        let rows = [row("model", "no scheduling", 4.0), row("model", "all", 8.0)];
        let reading = scheduling(&rows).unwrap();
        let ratio = finding(&reading, "all, of no scheduling: random lengths").unwrap();
        assert_eq!((ratio.here, ratio.predicted), (None, Some(4.0)), "the paper's groups diverge");
        assert!(SCHEDULING.iter().any(|printed| printed.what == ratio.what));
        let lanes = finding(&reading, "lanes in use, model: all, random lengths").unwrap();
        assert_eq!(lanes.here.map(|spread| spread.median), Some(50.0), "of the same launches anywhere");
    }

    /// They stand among what was measured, of a model, too: each figure that has them says what was counted.
    #[test]
    fn figures_that_have_lanes_in_use_say_that_they_are_counted_and_no_prediction() {
        for method in [IDEAS, CHUNKS, RANGES] {
            let said = method.conditions.to_lowercase();
            assert!(said.contains("lanes in use are counted") && said.contains("no prediction"), "{said}");
            assert!(method.quick.starts_with("bench scheduler --experiment "), "{}", method.quick);
        }
        let lanes = |reading: Reading| {
            let of_lanes =
                reading.findings.into_iter().filter(|found| found.what.starts_with("lanes in use, "));
            of_lanes.map(|found| (found.here.is_some(), found.predicted)).collect::<Vec<_>>()
        };
        let reading = scheduling(&[row("model", "all", 8.0)]).unwrap();
        let speed = finding(&reading, "all, random lengths").unwrap();
        assert_eq!((speed.here, speed.predicted), (None, Some(8.0)), "a speed is one");
        assert_eq!(lanes(reading), [(true, None)]);
    }

    /// What is asked of a GPU's latency is measured where there is one, and then no model stands beside it.
    #[test]
    fn average_latencies_of_chunks_stand_beside_the_papers() {
        let latency = |engine: &str, measured: Value, predicted: Value| {
            json!({ "experiment": "latency", "engine": engine, "setting": "8192 packets, 128 bins",
                "suite": "aes128-sha1", "direction": "outbound", "inner_bytes": "random", "gbit_s": measured,
                "latency_us": measured.as_f64().map(|mean| json!({ "mean": mean })),
                "predicted_latency_us": predicted.as_f64().map(|mean| json!({ "mean": mean })) })
        };
        let what = |engine: &str| {
            let of = "AES-CBC encryption + HMAC-SHA1, random lengths";
            format!("8192 packets, 128 bins: average latency, {of}, {engine}")
        };
        let model = latency("model", Value::Null, json!(4000.0));
        let rows = [row("model", "8192 packets, 128 bins", 4.0), model.clone()];
        let reading = chunks(&rows).unwrap();
        let average = finding(&reading, &what("model")).unwrap();
        assert_eq!((average.here, average.predicted, average.unit), (None, Some(4.0), "ms"));
        assert!(finding(&reading, "lanes in use, model: 8192 packets, 128 bins, random lengths").is_some());
        let reading = chunks(&[model, latency("gpu", json!(2000.0), Value::Null)]).unwrap();
        let average = finding(&reading, &what("gpu")).unwrap();
        assert_eq!((average.here.map(|here| here.median), average.predicted), (Some(2.0), None));
        assert!(finding(&reading, &what("model")).is_none());
        assert!(chunks(&[json!({ "experiment": "latency" })]).is_err());
    }

    #[test]
    fn a_gpu_is_measured_and_pocl_has_no_speed() {
        let mut gpu = row("gpu", "all", 8.0);
        gpu["gbit_s"] = json!(30.0);
        let reading = scheduling(&[row("model", "all", 8.0), gpu.clone()]).unwrap();
        let rates: Vec<_> = reading.findings.iter().filter(|finding| finding.unit == "Gbit/s").collect();
        assert!(rates.len() == 1 && rates[0].predicted.is_none(), "{rates:?}");
        gpu["note"] = json!("PoCL: correctness only");
        let reading = scheduling(&[gpu]).unwrap();
        assert!(reading.findings.iter().all(|finding| finding.unit == "%"), "{:?}", reading.findings);
        assert_eq!(reading.remarks, ["gpu (PoCL: correctness only): a device."]);
    }

    #[test]
    fn rows_that_lack_what_is_read_are_refused() {
        for member in ["engine", "setting", "device", "lanes_used", "inner_bytes", "reordered"] {
            let mut wrong = row("model", "all", 1.0);
            wrong[member] = json!([]);
            assert!(scheduling(&[wrong]).is_err(), "{member}");
        }
    }
}
