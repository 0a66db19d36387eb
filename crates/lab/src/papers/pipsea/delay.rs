//! Latencies of paper 002 by packet size, figure 14(b).

use serde_json::Value;

use super::super::item::Method;
use super::super::reading::{Finding, Length, Lines, Reading, Wrong, number, scaled, text};
use super::found;
use super::gpu::{DISTRIBUTION, average, distribution};
use crate::bench::chart::Extent;
use crate::statistics::Spread;

pub(super) const BY_SIZE: Method = Method {
    quick: "lab rfc2544 --tests throughput,latency --suite aes128-sha1 --sizes 64,1024,1280,random,imix --trial-seconds 0.1 --repetitions 1 \
        && testudo bench scheduler --experiment latency --sizes 64,1024,1280,random,imix --chunks 3",
    full: "lab rfc2544 --tests throughput,latency --suite aes128-sha1 --sizes 64,1024,1280,random,imix --trial-seconds 0.5 --repetitions 3 \
        && testudo bench scheduler --experiment latency --sizes 64,1024,1280,random,imix --chunks 12",
    quick_seconds: 31,
    full_seconds: 345,
    conditions: "The distribution is of one gateway with chunks of 4,096 packets in 64 bins: with a GPU, if this machine has one, else with the model of figure 14(a), predicted. Beside it without a GPU and chunks, \
         two gateways in series on one core: latencies of both, queues included, at the highest rate without loss, medians and 99 % quantiles. Averages are of the distribution, as the paper's.",
    read: by_size,
};

/// The chunk of the paper's figure.
const CHUNK: u64 = 4096;
/// Shares of packets that are told in the table.
const TOLD: [f64; 5] = [0.1, 0.25, 0.5, 0.75, 0.9];

/// Figure 14(b).
fn by_size(rows: &[Value]) -> Result<Reading, Wrong> {
    let mut reading = latencies(rows)?;
    let mut lines = Lines::default();
    let is_distribution = |row: &&Value| row.get("chunk").and_then(Value::as_u64) == Some(CHUNK);
    for row in rows.iter().filter(is_distribution) {
        let (engine, length) = (text(row, "engine")?, Length::of(row, "inner_bytes")?);
        let of = format!("{}, {engine}", length.words());
        if let Some(average) = average(row)? {
            reading.findings.push(found(format!("average latency, {of}"), "ms", average));
        }
        for (share, ms, is_measured) in distribution(row, &of, &mut lines)? {
            if TOLD.iter().any(|told| (told - share).abs() < 1e-9) {
                let what = format!("{:.0} % of packets within, {of}", share * 100.0);
                reading.findings.push(found(what, "ms", (ms, is_measured)));
            }
        }
    }
    let title = "Latency distribution by packet size, measured or predicted (figure 14b)";
    reading.panels.push(lines.panel(title, DISTRIBUTION, Extent::Zero));
    Ok(reading)
}

/// Without a GPU: the latencies at the highest load that was offered of each size.
fn latencies(rows: &[Value]) -> Result<Reading, Wrong> {
    let (mut reading, mut lines) = (Reading::default(), Lines::default());
    let of_latency = |row: &&Value| row.get("test").and_then(Value::as_str) == Some("latency");
    let mut highest: Vec<(Length, f64, &Value)> = Vec::new();
    for row in rows.iter().filter(of_latency) {
        let (length, offered) = (Length::of(row, "frame_bytes")?, number(row, "offered_packets_per_second")?);
        match highest.iter_mut().find(|(other, ..)| *other == length) {
            Some(known) if known.1 < offered => *known = (length, offered, row),
            Some(_) => {}
            None => highest.push((length, offered, row)),
        }
    }
    for (length, offered, row) in highest {
        reading.findings.push(Finding {
            what: format!("offered load, {}", length.words()),
            unit: "packets/s",
            here: Some(Spread::of([offered])),
            predicted: None,
        });
        let Some(latency) = row.get("latency_us").filter(|latency| !latency.is_null()) else {
            reading.remark(format!("{}: no packet came back.", length.words()));
            continue;
        };
        for (colour, (member, words)) in
            [("p50", "median latency"), ("p99", "99 % of packets within")].into_iter().enumerate()
        {
            let milliseconds = scaled(Spread::of([number(latency, member)?]), 1e-3);
            reading.find(format!("{words}, {}", length.words()), "ms", milliseconds);
            lines.add(words, (colour, 0), length, milliseconds);
        }
        let notes = row.get("notes").and_then(Value::as_array).into_iter().flatten();
        notes.filter_map(Value::as_str).for_each(|note| reading.remark(format!("{note}.")));
    }
    let axes = ["frame size (bytes, with check sequence)", "latency (ms)"];
    reading.panels.push(lines.panel("Latency at the highest rate without loss", axes, Extent::Zero));
    Ok(reading)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn latencies_by_packet_size_are_a_distribution_and_not_two_numbers_alone() {
        let points: Vec<Value> =
            [0.1, 0.5, 0.9, 0.99].map(|share| json!({ "share": share, "us": share * 1000.0 })).into();
        let row = |chunk: u64| {
            json!({ "engine": "model", "chunk": chunk, "inner_bytes": "imix", "latency_us": null,
                "predicted_latency_us":
                    { "mean": 600.0, "p50": 500.0, "p99": 990.0, "distribution": points } })
        };
        let reading = by_size(&[row(2048), row(4096)]).unwrap();
        let found: Vec<_> = reading
            .findings
            .iter()
            .map(|one| (one.what.as_str(), one.here.is_some(), one.predicted))
            .collect();
        let expected = [
            ("average latency, IMIX, model", false, Some(0.6)),
            ("10 % of packets within, IMIX, model", false, Some(0.1)),
            ("50 % of packets within, IMIX, model", false, Some(0.5)),
            ("90 % of packets within, IMIX, model", false, Some(0.9)),
        ];
        assert_eq!(found, expected);
        let line = &reading.panels.last().unwrap().lines[0];
        assert_eq!((line.name.as_str(), line.points.len()), ("IMIX, model (predicted)", 4));
    }
}
