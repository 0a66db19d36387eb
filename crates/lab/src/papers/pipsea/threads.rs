//! Figures of paper 002 about threads: what they receive and send, beside what does the cryptography.

use serde_json::Value;

use super::super::item::Method;
use super::super::reading::{Length, Lines, Reading, Wrong, count, number, spread, text};
use super::gpu::either;
use super::{ACROSS, UP, algorithm, fastest, found};
use crate::bench::chart::Extent;
use crate::statistics::Spread;

pub(super) const IO_AND_CRYPTOGRAPHY: Method = Method {
    quick: "lab placements --suites aes128gcm16 --placements none --bypass-io-threads 1,2 --sizes 64,256,512,1024 --trial-seconds 0.05 --repetitions 1 \
        && testudo bench --suites aes128-none,null-sha1 --directions outbound --sizes 64,256,512,1024 --milliseconds 20 --repetitions 1 \
        && testudo bench gpu --suites aes128-none,null-sha1 --directions outbound --sizes 64,256,512,1024 --parts launches --quick",
    full: "lab placements --suites aes128gcm16 --placements none --bypass-io-threads 1,2 --sizes 64,256,512,1024 --trial-seconds 0.25 --repetitions 3 \
        && testudo bench --suites aes128-none,null-sha1 --directions outbound --sizes 64,256,512,1024 --milliseconds 80 --repetitions 5 \
        && testudo bench gpu --suites aes128-none,null-sha1 --directions outbound --sizes 64,256,512,1024 --parts launches",
    quick_seconds: 22,
    full_seconds: 200,
    conditions: "I/O by a bypass policy in memory: receiving, checking, filtering and sending by one thread, or by two beside the worker, without the paper's scheduling; sizes are of frames. Cryptography of an engine of one core alone, \
         and of a GPU with transfers if this machine has one; else what a model of one predicts. Sizes are of inner packets there.",
    read: io_and_cryptography,
};

pub(super) const MODELS: Method = Method {
    quick: "bench scheduler --experiment threading --sizes 64,1280 --chunks 4",
    full: "bench scheduler --experiment threading --sizes 64,1280,random,imix --chunks 24",
    quick_seconds: 12,
    full_seconds: 60,
    conditions: "One gateway, with a GPU if this machine has one, and with an engine of the processor in its place, which takes chunks as a GPU does and whose work is that of the thread that drives it. one_io: a device thread beside the worker; two_io: also one that sends; run_to_completion: neither, which the paper does not have. AES-CBC alone and the mix with it are missing: a device thread takes no cipher without authentication. Chunks are of 1,024 packets in 16 bins; medians of five. Packets are in memory: the I/O of a link takes longer.",
    read: models,
};

/// Figure 4.
fn io_and_cryptography(rows: &[Value]) -> Result<Reading, Wrong> {
    let (mut reading, mut lines) = (Reading::default(), Lines::default());
    let mut engines = Vec::new();
    for row in rows {
        if row.get("placement").is_some() {
            io(row, &mut reading, &mut lines)?;
        } else if row.get("launch_packets").is_some() {
            gpu(row, &mut reading, &mut lines)?;
        } else {
            engines.push(row.clone());
        }
    }
    for row in fastest(&engines)? {
        let (suite, length) = (text(row, "suite")?, Length::of(row, "inner_bytes")?);
        let (name, colour) = algorithm(suite, true).ok_or_else(|| format!("suite {suite:?}"))?;
        let rate = Spread::of([number(row, "gbit_s")? * number(row, "times_the_floor")?]);
        let name = format!("{name} by one core");
        reading.find(format!("{name}, {}", length.words()), "Gbit/s", rate);
        lines.add(&name, (colour, 1), length, rate);
        reading.remark(format!("{suite}: engine {}.", text(row, "engine")?));
    }
    let title = "I/O and cryptography, each alone (figure 4)";
    reading.panels.push(lines.panel(title, ["packet size (bytes)", UP], Extent::Zero));
    Ok(reading)
}

fn io(row: &Value, reading: &mut Reading, lines: &mut Lines) -> Result<(), Wrong> {
    if row.get("suite").and_then(Value::as_str) != Some("bypass") {
        return Ok(());
    }
    let length = Length::of(row, "frame_bytes")?;
    let (name, colour) = match count(row, "io_threads")? {
        1 => ("single-threaded packet I/O", 3),
        2 => ("dual-threaded packet I/O", 4),
        other => return Err(format!("\"io_threads\" of a row is {other}")),
    };
    if let Some(reason) = row.get("not_possible_here").and_then(Value::as_str) {
        reading.remark(format!("{name}: not possible here: {reason}."));
    } else if text(row, "block")? == "IP" {
        let rate = Spread::of([number(row, "capacity")? * 1e-3]);
        reading.find(format!("{name}, {}", length.words()), "Gbit/s", rate);
        lines.add(name, (colour, 0), length, rate);
    }
    Ok(())
}

fn gpu(row: &Value, reading: &mut Reading, lines: &mut Lines) -> Result<(), Wrong> {
    let (suite, length) = (text(row, "suite")?, Length::of(row, "inner_bytes")?);
    let (name, colour) = algorithm(suite, true).ok_or_else(|| format!("suite {suite:?}"))?;
    let rate = either(row, "with_transfers_gbit_s", "predicted_with_transfers_gbit_s")?;
    let Some((rate, is_measured)) = rate else { return Ok(()) };
    let name = format!("{name} by a GPU");
    reading.findings.push(found(format!("{name}, {}", length.words()), "Gbit/s", (rate, is_measured)));
    let line = if is_measured { name } else { format!("{name} (predicted)") };
    lines.add(&line, (colour, 2), length, Spread::of([rate]));
    let device = row.get("device").and_then(Value::as_str);
    reading.remark(device.map_or_else(|| "No GPU here.".to_owned(), |device| format!("{device}.")));
    Ok(())
}

/// A threading model as the paper has it.
fn model(name: &str) -> Result<(&'static str, usize), Wrong> {
    Ok(match name {
        "run_to_completion" => ("run to completion", 2),
        "one_io" => ("single-threaded packet I/O", 0),
        "two_io" => ("dual-threaded packet I/O", 1),
        other => return Err(format!("\"threading\" of a row is {other:?}")),
    })
}

/// Figure 13.
fn models(rows: &[Value]) -> Result<Reading, Wrong> {
    let mut reading = Reading::default();
    let mut pictures: Vec<(String, Lines)> = Vec::new();
    for row in rows {
        let (threading, engine) = (text(row, "threading")?, text(row, "engine")?);
        let ((name, colour), length) = (model(threading)?, Length::of(row, "inner_bytes")?);
        let setting = text(row, "setting")?;
        let algorithm = setting.strip_suffix(threading).and_then(|rest| rest.strip_suffix(", "));
        let algorithm = algorithm.ok_or_else(|| format!("\"setting\" of a row is {setting:?}"))?;
        reading.remark(format!("{engine}: {}.", text(row, "device")?));
        // PoCL has no speed.
        if row.get("gbit_s").is_none_or(Value::is_null) {
            continue;
        }
        let of = format!("{algorithm}, {}, {engine}", length.words());
        let rate = spread(row, "gbit_s")?;
        reading.find(format!("{name}, {of}"), "Gbit/s", rate);
        let title = format!("{algorithm}, {engine} (figure 13)");
        if !pictures.iter().any(|(known, _)| *known == title) {
            pictures.push((title.clone(), Lines::default()));
        }
        if let Some((_, lines)) = pictures.iter_mut().find(|(known, _)| *known == title) {
            lines.add(name, (colour, 0), length, rate);
        }
        if threading == "two_io" {
            let is_one = |other: &&Value| {
                other.get("threading").and_then(Value::as_str) == Some("one_io")
                    && ["engine", "inner_bytes", "suite", "direction"]
                        .iter()
                        .all(|member| other.get(member) == row.get(member))
            };
            let Some(one) = rows.iter().find(is_one) else { continue };
            let ratio = rate.median / number(one, "gbit_s")?.max(f64::MIN_POSITIVE);
            reading.find(format!("dual-threaded, of single-threaded: {of}"), "times", Spread::of([ratio]));
        }
    }
    for (title, lines) in pictures {
        reading.panels.push(lines.panel(&title, [ACROSS, UP], Extent::Zero));
    }
    Ok(reading)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn found_of(reading: &Reading) -> Vec<(&str, Option<f64>, Option<f64>)> {
        let one = |one: &super::super::super::reading::Finding| one.here.map(|here| here.median);
        reading.findings.iter().map(|f| (f.what.as_str(), one(f), f.predicted)).collect()
    }

    #[test]
    fn threads_are_measured_beside_an_engine_alone_and_a_gpu_that_is_not_there_is_predicted() {
        let io = |threads: u32| {
            json!({ "placement": "io", "suite": "bypass", "frame_bytes": 64, "io_threads": threads,
                "block": "IP", "capacity": 2000.0 * f64::from(threads) })
        };
        let engine = json!({ "suite": "null-sha1", "direction": "outbound", "inner_bytes": 64,
            "formation": "arrival", "packets_per_second": 1.0, "gbit_s": 3.0, "times_the_floor": 2.0,
            "engine": "vaes" });
        let gpu = json!({ "launch_packets": 2048, "suite": "null-sha1", "inner_bytes": 64, "device": null,
            "with_transfers_gbit_s": null, "predicted_with_transfers_gbit_s": 50.0 });
        let none = json!({ "placement": "none", "suite": "aes128gcm16", "frame_bytes": 64 });
        let reading = io_and_cryptography(&[none, io(1), io(2), engine, gpu]).unwrap();
        let expected = [
            ("single-threaded packet I/O, 64 bytes", Some(2.0), None),
            ("dual-threaded packet I/O, 64 bytes", Some(4.0), None),
            ("HMAC-SHA1 by a GPU, 64 bytes", None, Some(50.0)),
            ("HMAC-SHA1 by one core, 64 bytes", Some(6.0), None),
        ];
        assert_eq!(found_of(&reading), expected);
        assert!(io_and_cryptography(&[io(3)]).is_err());
    }

    #[test]
    fn one_io_thread_and_two_are_compared_and_pocl_has_no_speed() {
        let row = |threading: &str, rate: Value| {
            json!({ "threading": threading, "engine": "in_memory", "device": "d", "suite": "null-sha1",
                "direction": "outbound", "inner_bytes": 64, "setting": format!("HMAC-SHA1 (ENC), {threading}"),
                "gbit_s": rate })
        };
        let reading = models(&[row("one_io", json!(2.0)), row("two_io", json!(3.0))]).unwrap();
        let expected = [
            ("single-threaded packet I/O, HMAC-SHA1 (ENC), 64 bytes, in_memory", Some(2.0), None),
            ("dual-threaded packet I/O, HMAC-SHA1 (ENC), 64 bytes, in_memory", Some(3.0), None),
            ("dual-threaded, of single-threaded: HMAC-SHA1 (ENC), 64 bytes, in_memory", Some(1.5), None),
        ];
        assert_eq!(found_of(&reading), expected);
        assert!(models(&[row("one_io", Value::Null)]).unwrap().findings.is_empty());
        assert!(models(&[row("three_io", json!(1.0))]).is_err());
    }
}
