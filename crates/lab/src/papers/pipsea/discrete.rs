//! Figures of paper 002 about discrete GPUs, and about the device that it compares with PIPSEA.

use std::fs;
use std::path::Path;

use serde_json::Value;

use super::super::item::Method;
use super::super::reading::{Length, Lines, Reading, Wrong, text};
use super::gpu::either;
use super::{ACROSS, IDEAS, PROCESSOR_AND_GPU, UP, WITHOUT, found, has_device, speed};
use crate::bench::chart::Extent;
use crate::statistics::Spread;

pub(super) const THROUGHPUTS: Method = Method {
    conditions: "The measurement of figure 9 with all ideas: one gateway with one GPU if this machine has one, measured; else with a model that has 8 units of 64 lanes and the costs of the APU of figure 8, predicted. \
         Two GPUs as one engine if this machine has them, measured; else they are twice one, as if neither waits for the processor: a prediction.",
    read: throughputs,
    ..IDEAS
};
pub(super) const SPEEDUPS: Method = Method {
    conditions: "The measurement of figure 9: all ideas, of none. With a GPU if this machine has one, measured; else with a model that has 8 units of 64 lanes and the costs of the APU of figure 8, predicted.",
    read: speedups,
    ..IDEAS
};
pub(super) const BESIDE_QUICKASSIST: Method = Method {
    conditions: "PIPSEA's side as in figure 15(a): gateways with a GPU if this machine has one, else what a model of one predicts end to end, at most what the workers of this machine hand over. QuickAssist is looked for among the PCI devices.",
    read: beside_quickassist,
    ..PROCESSOR_AND_GPU
};

/// Rows of figure 9 with this setting, of one device; without those of the model where a GPU was measured.
fn of_setting<'a>(rows: &'a [Value], setting: &str) -> Result<Vec<&'a Value>, Wrong> {
    let (mut kept, has_device) = (Vec::new(), has_device(rows));
    for row in rows.iter().filter(|row| row.get("gpus").is_none()) {
        let is_beside = has_device && text(row, "engine")? == "model";
        if text(row, "setting")? == setting && !is_beside {
            kept.push(row);
        }
    }
    Ok(kept)
}

/// What two GPUs reach that are one engine, of the same setting and length, if they were measured.
fn of_two(rows: &[Value], one: &Value) -> Result<Option<f64>, Wrong> {
    let is_same = |row: &&Value| {
        row.get("gpus").and_then(Value::as_u64) == Some(2)
            && ["engine", "setting", "inner_bytes"].iter().all(|member| row.get(member) == one.get(member))
    };
    let Some(two) = rows.iter().find(is_same) else { return Ok(None) };
    Ok(speed(two)?.filter(|(_, is_measured)| *is_measured).map(|(rate, _)| rate))
}

/// Figure 16.
fn throughputs(rows: &[Value]) -> Result<Reading, Wrong> {
    let (mut reading, mut lines) = (Reading::default(), Lines::default());
    for row in of_setting(rows, "all")? {
        let (engine, length) = (text(row, "engine")?, Length::of(row, "inner_bytes")?);
        reading.remark(format!("{engine}: {}.", text(row, "device")?));
        let Some((rate, is_measured)) = speed(row)? else { continue };
        let what = |count: &str| format!("{count}, {engine}, {}", length.words());
        reading.findings.push(found(what("one GPU"), "Gbit/s", (rate, is_measured)));
        let two = of_two(rows, row)?;
        let twice = two.map_or((2.0 * rate, false), |two| (two, true));
        reading.findings.push(found(what("two GPUs"), "Gbit/s", twice));
        let one = if is_measured { "one GPU" } else { "one GPU (predicted)" };
        lines.add(one, (0, 0), length, Spread::of([rate]));
        let both = if twice.1 { "two GPUs" } else { "two GPUs (predicted)" };
        lines.add(both, (1, usize::from(!twice.1)), length, Spread::of([twice.0]));
    }
    let title = "The mix of six combinations, measured or predicted (figure 16)";
    reading.panels.push(lines.panel(title, [ACROSS, UP], Extent::Zero));
    Ok(reading)
}

/// Figure 17.
fn speedups(rows: &[Value]) -> Result<Reading, Wrong> {
    let (mut reading, mut lines) = (Reading::default(), Lines::default());
    let without = of_setting(rows, WITHOUT)?;
    for row in of_setting(rows, "all")? {
        let (engine, length) = (text(row, "engine")?, Length::of(row, "inner_bytes")?);
        let is_base = |other: &&&Value| {
            other.get("engine") == row.get("engine") && other.get("inner_bytes") == row.get("inner_bytes")
        };
        let base = without.iter().find(is_base).map_or(Ok(None), |base| speed(base))?;
        let (Some((rate, is_measured)), Some((base, _))) = (speed(row)?, base) else { continue };
        let ratio = rate / base.max(f64::MIN_POSITIVE);
        let what = format!("speedup, {engine}, {}", length.words());
        reading.findings.push(found(what, "times", (ratio, is_measured)));
        lines.add(engine, (0, usize::from(!is_measured)), length, Spread::of([ratio]));
        reading.remark(format!("{engine}: {}.", text(row, "device")?));
    }
    let axes = [ACROSS, "speedup by scheduling (times)"];
    let title = "All ideas, of none, measured or predicted (figure 17)";
    reading.panels.push(lines.panel(title, axes, Extent::Zero));
    Ok(reading)
}

/// Where the kernel lists PCI devices.
const PCI: &str = "/sys/bus/pci/devices";
/// Intel, and the class of coprocessors: of Intel's devices QuickAssist alone has it.
const INTEL: &str = "0x8086";
const COPROCESSORS: &str = "0x0b40";

/// The addresses of QuickAssist devices among these, in order.
fn quickassist(devices: &Path) -> Vec<String> {
    let is_one = |folder: &Path| {
        let read = |name: &str| fs::read_to_string(folder.join(name)).unwrap_or_default();
        read("vendor").trim() == INTEL && read("class").starts_with(COPROCESSORS)
    };
    let folders = fs::read_dir(devices).into_iter().flatten().flatten();
    let found = folders.filter(|device| is_one(&device.path()));
    let mut addresses: Vec<String> =
        found.map(|device| device.file_name().to_string_lossy().into_owned()).collect();
    addresses.sort();
    addresses
}

/// Figure 15(b).
fn beside_quickassist(rows: &[Value]) -> Result<Reading, Wrong> {
    beside(rows, &quickassist(Path::new(PCI)))
}

fn beside(rows: &[Value], devices: &[String]) -> Result<Reading, Wrong> {
    const NAME: &str = "AES-CBC + HMAC-SHA1 (PIPSEA)";
    let (mut reading, mut lines) = (Reading::default(), Lines::default());
    reading.remark(match devices {
        [] => "QuickAssist: not possible here: no QuickAssist device found among the PCI devices.".to_owned(),
        found => format!(
            "QuickAssist: {} found, which this report does not measure: `testudo bench --engines cryptodev` does.",
            found.join(", ")
        ),
    });
    for row in rows {
        if text(row, "suite")? != "aes128-sha1" {
            continue;
        }
        let length = Length::of(row, "inner_bytes")?;
        let Some(rate) = either(row, "gateways_gbit_s", "predicted_gateways_gbit_s")? else { continue };
        reading.findings.push(found(format!("{NAME}, {}", length.words()), "Gbit/s", rate));
        lines.add(NAME, (0, usize::from(!rate.1)), length, Spread::of([rate.0]));
    }
    let title = "A GPU, measured or predicted (figure 15b)";
    reading.panels.push(lines.panel(title, [ACROSS, UP], Extent::Zero));
    Ok(reading)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::super::reading::Finding;
    use super::*;

    fn row(engine: &str, setting: &str, measured: Value) -> Value {
        let base = if setting == WITHOUT { 10.0 } else { 15.0 };
        json!({ "engine": engine, "setting": setting, "device": "a device", "inner_bytes": 1280,
            "predicted_gbit_s": base, "predicted_diverging_gbit_s": base, "gbit_s": measured })
    }

    fn numbers(reading: &Reading) -> Vec<(&str, Option<f64>, Option<f64>)> {
        let one = |one: &Finding| one.here.map(|here| here.median);
        reading
            .findings
            .iter()
            .map(|finding| (finding.what.as_str(), one(finding), finding.predicted))
            .collect()
    }

    #[test]
    fn one_gpu_is_measured_where_it_is_and_two_are_a_prediction() {
        let model = ["all", WITHOUT].map(|setting| row("model", setting, Value::Null));
        let expected = [
            ("one GPU, model, 1280 bytes", None, Some(15.0)),
            ("two GPUs, model, 1280 bytes", None, Some(30.0)),
        ];
        assert_eq!(numbers(&throughputs(&model).unwrap()), expected);
        assert_eq!(numbers(&speedups(&model).unwrap()), [("speedup, model, 1280 bytes", None, Some(1.5))]);
        let gpu = [row("gpu", "all", json!(40.0)), row("gpu", WITHOUT, json!(20.0))];
        let both: Vec<Value> = model.into_iter().chain(gpu).collect();
        let expected =
            [("one GPU, gpu, 1280 bytes", Some(40.0), None), ("two GPUs, gpu, 1280 bytes", None, Some(80.0))];
        assert_eq!(numbers(&throughputs(&both).unwrap()), expected);
        assert_eq!(numbers(&speedups(&both).unwrap()), [("speedup, gpu, 1280 bytes", Some(2.0), None)]);
        assert!(throughputs(&[json!({ "engine": 1 })]).is_err() && speedups(&[json!({})]).is_err());
    }

    #[test]
    fn two_gpus_are_measured_where_they_are_and_are_no_speedup_of_one() {
        let two = |setting: &str, rate: Value| {
            let mut two = row("gpu", setting, rate);
            two["gpus"] = json!(2);
            two
        };
        let one = ["all", WITHOUT].map(|setting| row("gpu", setting, json!(40.0)));
        let rows = [&one[..], &[two("all", json!(70.0)), two(WITHOUT, json!(20.0))]].concat();
        let expected =
            [("one GPU, gpu, 1280 bytes", Some(40.0), None), ("two GPUs, gpu, 1280 bytes", Some(70.0), None)];
        assert_eq!(numbers(&throughputs(&rows).unwrap()), expected);
        assert_eq!(numbers(&speedups(&rows).unwrap()), [("speedup, gpu, 1280 bytes", Some(1.0), None)]);
        // Of PoCL there is no speed, of two neither.
        let slow = [one[0].clone(), two("all", Value::Null)];
        let expected = Some(("two GPUs, gpu, 1280 bytes", None, Some(80.0)));
        assert_eq!(numbers(&throughputs(&slow).unwrap()).pop(), expected);
    }

    #[test]
    fn quickassist_is_looked_for_on_the_machine_and_said_to_be_missing() {
        let folder = tempfile::tempdir().unwrap();
        let device = |address: &str, vendor: &str, class: &str| {
            let path = folder.path().join(address);
            fs::create_dir(&path).unwrap();
            fs::write(path.join("vendor"), vendor).unwrap();
            fs::write(path.join("class"), class).unwrap();
        };
        device("0000:00:01.0", "0x8086\n", "0x020000\n");
        device("0000:00:02.0", "0x10de\n", "0x0b4000\n");
        assert!(quickassist(folder.path()).is_empty() && quickassist(&folder.path().join("none")).is_empty());
        device("0000:3d:00.0", "0x8086\n", "0x0b4000\n");
        assert_eq!(quickassist(folder.path()), ["0000:3d:00.0"]);

        let row = json!({ "suite": "aes128-sha1", "inner_bytes": 1280, "gateways_gbit_s": null,
            "predicted_gateways_gbit_s": 20.0 });
        let other = json!({ "suite": "aes128-none" });
        let reading = beside(&[row, other], &[]).unwrap();
        assert!(reading.remarks[0].contains("not possible here: no QuickAssist device found"));
        assert_eq!(numbers(&reading), [("AES-CBC + HMAC-SHA1 (PIPSEA), 1280 bytes", None, Some(20.0))]);
        let reading = beside(&[], &["0000:3d:00.0".to_owned()]).unwrap();
        assert!(reading.remarks[0].starts_with("QuickAssist: 0000:3d:00.0 found"));
    }
}
