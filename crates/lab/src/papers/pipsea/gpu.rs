//! Figures of paper 002 that a GPU is measured for, or a model reckoned with.

use serde_json::Value;

use super::super::reading::{Length, Lines, Reading, Wrong, number, text};
use super::{ACROSS, UP, algorithm, found};
use crate::bench::chart::Extent;
use crate::statistics::Spread;

/// A figure of a row that was measured, or else the one that is predicted.
pub(super) fn either(row: &Value, measured: &str, predicted: &str) -> Result<Option<(f64, bool)>, Wrong> {
    let is_there = |name: &str| row.get(name).is_some_and(|value| !value.is_null());
    match (is_there(measured), is_there(predicted)) {
        (true, _) => Ok(Some((number(row, measured)?, true))),
        (false, true) => Ok(Some((number(row, predicted)?, false))),
        (false, false) => Ok(None),
    }
}

/// Says which device it was, or that there was none.
fn name_device(reading: &mut Reading, row: &Value) {
    let device = row.get("device").and_then(Value::as_str);
    reading.remark(device.map_or_else(|| "No GPU here.".to_owned(), |device| format!("{device}.")));
}

/// Figure 7.
pub(super) fn kernels(rows: &[Value]) -> Result<Reading, Wrong> {
    let (mut reading, mut lines) = (Reading::default(), Lines::default());
    for row in rows {
        let suite = text(row, "suite")?;
        let (name, colour) = algorithm(suite, true).ok_or_else(|| format!("suite {suite:?}"))?;
        let length = Length::of(row, "inner_bytes")?;
        let Some((us, is_measured)) = either(row, "kernel_us", "predicted_kernel_us")? else { continue };
        let ms = us * 1e-3;
        reading.findings.push(found(format!("{name}, {}", length.words()), "ms", (ms, is_measured)));
        lines.add(name, (colour, 0), length, Spread::of([ms]));
        name_device(&mut reading, row);
    }
    let axes = [ACROSS, "kernel of 2,048 packets (ms)"];
    reading.panels.push(lines.panel("Kernels alone, measured or predicted", axes, Extent::Zero));
    Ok(reading)
}

/// Figure 15(a).
pub(super) fn beside_processor(rows: &[Value]) -> Result<Reading, Wrong> {
    let (mut reading, mut lines) = (Reading::default(), Lines::default());
    for row in rows {
        let suite = text(row, "suite")?;
        let (name, colour) = algorithm(suite, true).ok_or_else(|| format!("suite {suite:?}"))?;
        let length = Length::of(row, "inner_bytes")?;
        let cores = Spread::of([number(row, "all_cores_gbit_s")?]);
        let processor = format!("{name} (all cores)");
        reading.find(format!("{processor}, {}", length.words()), "Gbit/s", cores);
        lines.add(&processor, (colour, 0), length, cores);
        reading.remark(format!("{suite}: engine {}.", text(row, "processor_engine")?));
        let end_to_end = format!("end to end with {} workers", number(row, "workers")?);
        // The first is without the processor's work.
        for (part, dash, measured, predicted) in [
            ("kernels with transfers", 2, "with_transfers_gbit_s", "predicted_with_transfers_gbit_s"),
            (end_to_end.as_str(), 1, "gateways_gbit_s", "predicted_gateways_gbit_s"),
        ] {
            let Some(rate) = either(row, measured, predicted)? else { continue };
            let gpu = format!("{name} (GPU, {part})");
            reading.findings.push(found(format!("{gpu}, {}", length.words()), "Gbit/s", rate));
            lines.add(&gpu, (colour, dash), length, Spread::of([rate.0]));
        }
        let spilled = row.get("spilled").and_then(Value::as_f64).filter(|share| *share >= 0.01);
        if let Some(share) = spilled {
            reading.remark(format!("{suite}: {:.0} % of the GPU's were the processor's.", 100.0 * share));
        }
        name_device(&mut reading, row);
    }
    reading.panels.push(lines.panel(
        "All cores, and a GPU, measured or predicted",
        [ACROSS, UP],
        Extent::Zero,
    ));
    Ok(reading)
}

/// Figure 14(a).
pub(super) fn chunk_latency(rows: &[Value]) -> Result<Reading, Wrong> {
    let (mut reading, mut lines) = (Reading::default(), Lines::default());
    for row in rows {
        let (setting, engine) = (text(row, "setting")?, text(row, "engine")?);
        distribution(row, &format!("{setting}, {engine}"), &mut lines)?;
        for (member, is_measured) in [("latency_us", true), ("predicted_latency_us", false)] {
            let Some(latency) = row.get(member).filter(|latency| !latency.is_null()) else { continue };
            for (quantile, words) in [("p50", "median latency"), ("p99", "99 % of packets within")] {
                let ms = number(latency, quantile)? * 1e-3;
                let what = format!("{words}, {setting}, {engine}");
                reading.findings.push(found(what, "ms", (ms, is_measured)));
            }
        }
    }
    let title = "Latency distribution by chunk, measured or predicted (figure 14a)";
    reading.panels.push(lines.panel(title, DISTRIBUTION, Extent::Zero));
    Ok(reading)
}

/// The axes of a distribution of latencies.
pub(super) const DISTRIBUTION: [&str; 2] = ["latency (µs)", "packets that took no longer (%)"];

/// Adds the distribution of a row of `bench scheduler --experiment latency`, if it has one: its points, as
/// shares of packets, 0 to 1, and milliseconds, and whether they were measured.
pub(super) fn distribution(
    row: &Value,
    name: &str,
    lines: &mut Lines,
) -> Result<Vec<(f64, f64, bool)>, Wrong> {
    let mut found = Vec::new();
    for (member, is_measured) in [("latency_us", true), ("predicted_latency_us", false)] {
        let points = row.get(member).and_then(|latency| latency.get("distribution"));
        let line = if is_measured { name.to_owned() } else { format!("{name} (predicted)") };
        let colour = name.bytes().fold(0, |sum: usize, byte| sum.wrapping_mul(31).wrapping_add(byte.into()));
        for point in points.and_then(Value::as_array).into_iter().flatten() {
            let (share, us) = (number(point, "share")?, number(point, "us")?);
            let at = usize::try_from(crate::harness::count(us)).unwrap_or(usize::MAX);
            let style = (colour % 8, usize::from(!is_measured));
            lines.add(&line, style, Length::Bytes(at), Spread::of([share * 100.0]));
            found.push((share, us * 1e-3, is_measured));
        }
    }
    Ok(found)
}

/// The mean of such a row's latencies, in milliseconds, and whether it was measured; `None` without any.
pub(super) fn average(row: &Value) -> Result<Option<(f64, bool)>, Wrong> {
    for (member, is_measured) in [("latency_us", true), ("predicted_latency_us", false)] {
        let Some(latency) = row.get(member).filter(|latency| !latency.is_null()) else { continue };
        return Ok(Some((number(latency, "mean")? * 1e-3, is_measured)));
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_gpu_is_measured_and_without_one_each_figure_is_a_prediction() {
        let row = |measured: Value| {
            json!({
                "suite": "aes128-sha1", "inner_bytes": 1024, "device": null, "kernel_us": measured,
                "predicted_kernel_us": 44.0, "gateways_gbit_s": measured,
                "predicted_with_transfers_gbit_s": 300.0, "predicted_gateways_gbit_s": 30.0,
                "all_cores_gbit_s": 20.0, "processor_engine": "vaes", "workers": 2,
            })
        };
        let without = kernels(&[row(Value::Null)]).unwrap();
        let one = &without.findings[0];
        assert_eq!((one.here, one.predicted, one.unit), (None, Some(0.044), "ms"));
        assert!(kernels(&[row(json!(90.0))]).unwrap().findings[0].here.is_some());
        let beside = beside_processor(&[row(Value::Null)]).unwrap();
        let measured: Vec<_> = beside.findings.iter().map(|finding| finding.here.is_some()).collect();
        assert_eq!(measured, [true, false, false], "the processor's is a measurement");
        let told: Vec<_> = beside.findings.iter().map(|one| (one.what.as_str(), one.predicted)).collect();
        assert!(told[1].0.contains("GPU, kernels with transfers") && told[1].1 == Some(300.0), "{told:?}");
        assert!(told[2].0.contains("end to end with 2 workers") && told[2].1 == Some(30.0), "{told:?}");
        let latency = json!({ "setting": "s", "engine": "model", "latency_us": null,
            "predicted_latency_us": { "p50": 1000.0, "p99": 2000.0 } });
        let found = chunk_latency(&[latency]).unwrap().findings;
        assert_eq!(found.iter().map(|finding| finding.predicted).collect::<Vec<_>>(), [Some(1.0), Some(2.0)]);
        assert!(kernels(&[json!({ "suite": 1 })]).is_err());
    }
}
