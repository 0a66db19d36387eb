//! Figures of paper 002 that have each algorithm by itself over packet size: of a GPU where there is one,
//! beside a core of the processor; else of the core alone, in the GPU's place.

use serde_json::Value;

use super::super::reading::{Length, Lines, Reading, Wrong, number, spread, text};
use super::{ACROSS, UP, algorithm, fastest, speed};
use crate::bench::chart::Extent;
use crate::statistics::Spread;

/// A line of a picture: its name, colour and dash.
type Line = (String, (usize, usize));

/// What a GPU does is told by the paper's names, and a core by its own where a GPU has these.
fn by_a_core((name, (colour, dash)): Line, has_gpu: bool) -> Line {
    if has_gpu { (format!("{name} by one core"), (colour, dash + 2)) } else { (name, (colour, dash)) }
}

/// Adds what was found of a line at a length, unless another device was before.
fn add(reading: &mut Reading, lines: &mut Lines, (name, style): &Line, length: Length, rate: Spread) {
    let what = format!("{name}, {}", length.words());
    if reading.findings.iter().all(|finding| finding.what != what) {
        reading.find(what, "Gbit/s", rate);
        lines.add(name, *style, length, rate);
    }
}

fn name_engine(reading: &mut Reading, row: &Value) -> Result<(), Wrong> {
    reading.remark(format!("{}: engine {}.", text(row, "suite")?, text(row, "engine")?));
    Ok(())
}

/// Figure 8.
pub(super) fn cryptography(rows: &[Value]) -> Result<Reading, Wrong> {
    let (mut reading, mut lines) = (Reading::default(), Lines::default());
    let is_of_gpu = |row: &Value| row.get("launch_packets").is_some();
    let (of_gpus, engines): (Vec<Value>, Vec<Value>) = rows.iter().cloned().partition(is_of_gpu);
    let is_measured = |row: &&Value| {
        row.get("with_transfers_gbit_s").is_some_and(Value::is_number)
            && row.get("note").is_none_or(Value::is_null)
    };
    let measured: Vec<&Value> = of_gpus.iter().filter(is_measured).collect();
    let line = |row: &Value| -> Result<Line, Wrong> {
        let (suite, is_outbound) = (text(row, "suite")?, text(row, "direction")? == "outbound");
        let (name, colour) = algorithm(suite, is_outbound).ok_or_else(|| format!("suite {suite:?}"))?;
        Ok((name.to_owned(), (colour, usize::from(!is_outbound))))
    };
    for row in measured.iter().copied() {
        let rate = Spread::of([number(row, "with_transfers_gbit_s")?]);
        add(&mut reading, &mut lines, &line(row)?, Length::of(row, "inner_bytes")?, rate);
        reading.remark(format!("{}.", text(row, "device")?));
    }
    for row in fastest(&engines)? {
        // What the whole gateway reaches, times how many times as long it takes as the engine alone.
        let alone = Spread::of([number(row, "gbit_s")? * number(row, "times_the_floor")?]);
        let line = by_a_core(line(row)?, !measured.is_empty());
        add(&mut reading, &mut lines, &line, Length::of(row, "inner_bytes")?, alone);
        name_engine(&mut reading, row)?;
    }
    reading.panels.push(lines.panel("Cryptography alone, in memory", [ACROSS, UP], Extent::Zero));
    Ok(reading)
}

/// A setting of `bench scheduler --experiment algorithms` as the paper calls it; its mix is of both
/// directions.
fn combination(setting: &str) -> Result<Line, Wrong> {
    const SUITES: [&str; 4] = ["AES-CBC + HMAC-SHA1 (", "AES-CBC (", "HMAC-SHA1 (", "Mix ("];
    let name = if setting == "Mix" { "Mix (ENC and DEC)".to_owned() } else { setting.replace('+', " + ") };
    let colour = SUITES.iter().position(|suite| name.starts_with(suite));
    let colour = colour.ok_or_else(|| format!("\"setting\" of a row is {setting:?}"))?;
    let dash = usize::from(name.ends_with("(DEC)"));
    Ok((name, (colour, dash)))
}

/// Figure 12.
pub(super) fn suites(rows: &[Value]) -> Result<Reading, Wrong> {
    let (mut reading, mut lines) = (Reading::default(), Lines::default());
    let is_of_gpu = |row: &Value| row.get("experiment").is_some();
    let (of_gpus, engines): (Vec<Value>, Vec<Value>) = rows.iter().cloned().partition(is_of_gpu);
    let mut has_gpu = false;
    for row in &of_gpus {
        reading.remark(format!("{}: {}.", text(row, "engine")?, text(row, "device")?));
        let Some((rate, true)) = speed(row)? else { continue };
        let line = combination(text(row, "setting")?)?;
        add(&mut reading, &mut lines, &line, Length::of(row, "inner_bytes")?, Spread::of([rate]));
        has_gpu = true;
    }
    for row in fastest(&engines)? {
        let (name, colour) = match text(row, "suite")? {
            "aes128-sha1" => ("AES-CBC + HMAC-SHA1", 0),
            "aes128-none" => ("AES-CBC", 1),
            "null-sha1" => ("HMAC-SHA1", 2),
            "mixed" => ("Mix", 3),
            other => return Err(format!("\"suite\" of a row is {other:?}")),
        };
        let is_outbound = text(row, "direction")? == "outbound";
        let name = format!("{name} ({})", if is_outbound { "ENC" } else { "DEC" });
        let line = by_a_core((name, (colour, usize::from(!is_outbound))), has_gpu);
        add(&mut reading, &mut lines, &line, Length::of(row, "inner_bytes")?, spread(row, "gbit_s")?);
        name_engine(&mut reading, row)?;
    }
    let title = if has_gpu { "A gateway with a GPU, and one core" } else { "One core of a gateway" };
    reading.panels.push(lines.panel(title, [ACROSS, UP], Extent::Zero));
    Ok(reading)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::{ALGORITHMS, IN_MEMORY};
    use super::*;

    fn found(reading: &Reading) -> Vec<(&str, f64)> {
        let one = |rate: Option<Spread>| rate.expect("measured").median;
        reading.findings.iter().map(|finding| (finding.what.as_str(), one(finding.here))).collect()
    }

    fn engine(rate: f64) -> Value {
        json!({ "suite": "aes128-sha1", "direction": "outbound", "inner_bytes": 1280, "formation": "arrival",
            "packets_per_second": 1.0, "gbit_s": rate, "times_the_floor": 2.0, "engine": "vaes" })
    }

    #[test]
    fn cryptography_alone_is_a_gpus_where_there_is_one_and_else_a_cores() {
        let gpu = |rate: Value, note: Value| {
            json!({ "launch_packets": 2048, "suite": "aes128-sha1", "direction": "outbound",
                "inner_bytes": 1280, "device": "a GPU", "note": note, "with_transfers_gbit_s": rate,
                "predicted_with_transfers_gbit_s": 300.0 })
        };
        let [name, core] = [
            "AES-CBC encryption + HMAC-SHA1, 1280 bytes",
            "AES-CBC encryption + HMAC-SHA1 by one core, 1280 bytes",
        ];
        assert!(IN_MEMORY.iter().any(|printed| printed.what == name));
        let without = json!("no GPU here: predicted_* are a prediction");
        let reading = cryptography(&[engine(3.0), gpu(Value::Null, without)]).unwrap();
        assert_eq!(found(&reading), [(name, 6.0)], "no prediction stands in for it");
        // The second device has the same names.
        let rows = [engine(3.0), gpu(json!(40.0), Value::Null), gpu(json!(50.0), Value::Null)];
        let reading = cryptography(&rows).unwrap();
        assert_eq!(found(&reading), [(name, 40.0), (core, 6.0)]);
        assert_eq!(reading.remarks, ["a GPU.", "aes128-sha1: engine vaes."]);
        let pocl = gpu(json!(1.0), json!("PoCL: correctness only"));
        assert_eq!(found(&cryptography(&[engine(3.0), pocl]).unwrap()), [(name, 6.0)]);
        let mut wrong = gpu(json!(40.0), Value::Null);
        wrong["suite"] = json!("another");
        assert!(cryptography(&[wrong]).is_err());
    }

    #[test]
    fn algorithms_are_those_of_a_gateway_with_a_gpu_where_there_is_one() {
        let gpu = |setting: &str, rate: Value| {
            json!({ "experiment": "algorithms", "setting": setting, "engine": "gpu", "device": "a GPU",
                "note": null, "inner_bytes": 1280, "gbit_s": rate, "predicted_gbit_s": null })
        };
        let [name, core] =
            ["AES-CBC + HMAC-SHA1 (ENC), 1280 bytes", "AES-CBC + HMAC-SHA1 (ENC) by one core, 1280 bytes"];
        assert!(ALGORITHMS.iter().any(|printed| printed.what == name));
        assert_eq!(found(&suites(&[engine(3.0)]).unwrap()), [(name, 3.0)]);
        let rows = [
            gpu("AES-CBC+HMAC-SHA1 (ENC)", json!(11.0)),
            gpu("HMAC-SHA1 (DEC)", json!(30.0)),
            gpu("Mix", json!(12.0)),
            engine(3.0),
        ];
        let expected = [
            (name, 11.0),
            ("HMAC-SHA1 (DEC), 1280 bytes", 30.0),
            ("Mix (ENC and DEC), 1280 bytes", 12.0),
            (core, 3.0),
        ];
        assert_eq!(found(&suites(&rows).unwrap()), expected);
        assert!(suites(&[gpu("another", json!(1.0))]).is_err());
    }
}
