//! Paper 004: a gateway over a network processor, offloads compared, and where its time goes.

use serde_json::Value;

use super::item::{How, Item, Method, Paper, Printed, printed};
use super::reading::{Length, Lines, Reading, Wrong, number, scaled, spread, text};
use crate::bench::chart::Extent;
use crate::statistics::Spread;

const PAPER: Paper = Paper::NetworkProcessor;

const FORWARDING: &[Printed] = &[
    printed("gain by two NPEs, up to", "60", "%"),
    printed("size with the highest throughput", "1024", "bytes"),
];
const THROUGHPUT: &[Printed] = &[
    printed("size with the highest throughput", "1450", "bytes"),
    printed("gain by offloading the cryptography", "350", "%"),
    printed("throughput with 3DES, offloaded (section 1)", "45", "Mbit/s"),
];
const LOAD: &[Printed] = &[
    printed("success at 50 of 46 Mbit/s (109 % of capacity)", "22", "%"),
    printed("processor at 50 of 46 Mbit/s (109 % of capacity)", "approaches 100", "%"),
];
const BLOCKS: &[Printed] = &[
    printed("share of the cryptography before offloading", "80 to 90", "%"),
    printed("cryptography", "700", "µs (XScale alone)"),
    printed("cryptography in the coprocessor", "100", "µs"),
];

const EDGE: Method = Method {
    quick: "lab rfc2544 --tests throughput --suite des-sha1 --sizes 64,128,256,512,1024,1450,1518 --trial-seconds 0.1 --repetitions 1",
    full: "lab rfc2544 --tests throughput --suite des-sha1 --sizes 64,128,256,512,1024,1450,1518 --trial-seconds 0.5 --repetitions 3",
    quick_seconds: 25,
    full_seconds: 240,
    conditions: "The placement without offloads alone; the others need a device or threads for the cryptography. Two gateways in series on one core, in memory: no link has an MTU, so that the largest frames are not \
         fragmented, which is what the paper's edge at 1450 bytes comes from. DES is with HMAC-SHA1.",
    read: throughput,
};
const OVERLOAD: Method = Method {
    quick: "lab overload --suite des-sha1 --sizes 64,1518 --trial-seconds 0.1 --repetitions 1",
    full: "lab overload --suite des-sha1 --sizes 64,1518 --trial-seconds 0.5 --repetitions 3",
    quick_seconds: 17,
    full_seconds: 60,
    conditions: "Two gateways in series on one core, in memory; DES with HMAC-SHA1, not offloaded. Capacity is what they forward when offered twice as much.",
    read: overload,
};
const TURNAROUND: Method = Method {
    quick: "bench --suites des-sha1,3des-sha1 --engines portable --sizes 1420 --directions outbound --milliseconds 20 --repetitions 1",
    full: "bench --suites des-sha1,3des-sha1 --engines portable --sizes 1420 --directions outbound --milliseconds 200 --repetitions 5",
    quick_seconds: 10,
    full_seconds: 50,
    conditions: "Nothing offloaded, the portable engine; sealing of packets of 1,420 bytes (the paper does not say of what size), the mean time that the worker spends on a packet in each block. IP: reception, reading of \
         headers, transmission. Look-up: policy and SA. IPsec: numbers, headers and trailers.",
    read: blocks,
};

/// Its figures, and the section that has numbers without one.
pub(super) static ITEMS: [Item; 6] = [
    Item {
        paper: PAPER,
        name: "Figure 1",
        title: "Hardware architecture of IXP425",
        printed: &[],
        how: How::Drawing("it shows a processor"),
    },
    Item {
        paper: PAPER,
        name: "Figure 2",
        title: "Processing flow of an inbound IPsec packet",
        printed: &[],
        how: How::Drawing("it shows the steps of a packet"),
    },
    Item {
        paper: PAPER,
        name: "Figure 3",
        title: "Throughput of packet forwarding when different number of NPEs is used for offloading",
        printed: FORWARDING,
        how: How::Impossible(
            "reception and transmission on threads of their own or in a device, which no measurement of this report has",
        ),
    },
    Item {
        paper: PAPER,
        name: "Figure 4",
        title: "IPsec throughput: the DES case",
        printed: THROUGHPUT,
        how: How::Measured(EDGE),
    },
    Item {
        paper: PAPER,
        name: "Section 4.3",
        title: "Bottleneck analysis: success ratio and processor load",
        printed: LOAD,
        how: How::Measured(OVERLOAD),
    },
    Item {
        paper: PAPER,
        name: "Figure 5",
        title: "Turnaround time of functional blocks",
        printed: BLOCKS,
        how: How::Measured(TURNAROUND),
    },
];

fn remark_notes(reading: &mut Reading, row: &Value, of: &str) {
    let notes = row.get("notes").and_then(Value::as_array).into_iter().flatten();
    notes.filter_map(Value::as_str).for_each(|note| reading.remark(format!("{of}: {note}.")));
}

/// Figure 4.
fn throughput(rows: &[Value]) -> Result<Reading, Wrong> {
    let (mut reading, mut lines) = (Reading::default(), Lines::default());
    let mut best = (0.0, 0);
    for row in rows {
        let length = Length::of(row, "frame_bytes")?;
        let Length::Bytes(bytes) = length else { return Err("a row of a mix".to_owned()) };
        let megabits = number(row, "throughput_packets_per_second")? * bytes as f64 * 8e-6;
        reading.find(format!("frames of {bytes} bytes"), "Mbit/s", Spread::of([megabits]));
        lines.add("nothing offloaded", (0, 0), length, Spread::of([megabits]));
        if megabits > best.0 {
            best = (megabits, bytes);
        }
        remark_notes(&mut reading, row, &format!("{bytes} bytes"));
    }
    reading.find("size with the highest throughput", "bytes", Spread::of([best.1 as f64]));
    let axes = ["frame size (bytes, with check sequence)", "throughput (Mbit/s)"];
    reading.panels.push(lines.panel("IPsec throughput: DES (figure 4)", axes, Extent::Zero));
    Ok(reading)
}

/// Section 4.3.
fn overload(rows: &[Value]) -> Result<Reading, Wrong> {
    let (mut reading, mut lines) = (Reading::default(), Lines::default());
    for row in rows {
        let length = Length::of(row, "frame_bytes")?;
        let share = number(row, "offered_share_of_capacity")? * 100.0;
        let at = Length::Bytes(usize::try_from(crate::harness::count(share + 0.5)).unwrap_or(0));
        let colour = usize::from(length != Length::Bytes(64));
        let success = Spread::of([number(row, "success_ratio")? * 100.0]);
        let words = |what: &str| format!("{what} at {share:.0} % of capacity, {}", length.words());
        reading.find(words("success"), "%", success);
        lines.add(&format!("{}: success", length.words()), (colour, 0), at, success);
        if row.get("processor_load").is_some_and(|load| !load.is_null()) {
            let load = Spread::of([number(row, "processor_load")? * 100.0]);
            reading.find(words("processor"), "%", load);
            lines.add(&format!("{}: processor", length.words()), (colour, 1), at, load);
        }
        remark_notes(&mut reading, row, &format!("{}, {share:.0} % of capacity", length.words()));
    }
    let axes = ["offered load (% of capacity)", "packets that came through, processor's busy time (%)"];
    reading.panels.push(lines.panel("Overload (section 4.3)", axes, Extent::Zero));
    Ok(reading)
}

/// Figure 5.
fn blocks(rows: &[Value]) -> Result<Reading, Wrong> {
    const BLOCKS: [(&str, &[&str]); 4] = [
        ("IP", &["receive", "parse", "transmit"]),
        ("IPsec look-up", &["policy", "sa"]),
        ("IPsec headers", &["framing", "finish"]),
        ("cryptography", &["cryptography"]),
    ];
    let mut reading = Reading::default();
    for row in rows {
        let (suite, engine) = (text(row, "suite")?, text(row, "engine")?);
        let name = match suite {
            "des-sha1" => "DES",
            "3des-sha1" => "3DES",
            other => return Err(format!("\"suite\" of a row is {other:?}")),
        };
        // Cycles of the clock in a microsecond, from the two figures that this row has of one time.
        let rate = spread(row, "packets_per_second")?.median;
        let clock = rate * number(row, "cycles_per_packet")? / 1e6;
        let cycles = row.get("stage_cycles_per_packet").ok_or("a row has no stages")?;
        let mut sum = 0.0;
        for (block, stages) in BLOCKS {
            let of_it: Result<Vec<f64>, Wrong> = stages.iter().map(|stage| number(cycles, stage)).collect();
            let spent: f64 = of_it?.iter().sum();
            sum += spent;
            let time = scaled(Spread::of([spent]), 1.0 / clock.max(f64::MIN_POSITIVE));
            reading.find(format!("{block}, {name}, {engine}"), "µs", time);
        }
        let share = number(cycles, "cryptography")? / sum.max(f64::MIN_POSITIVE) * 100.0;
        let what = format!("share of the cryptography before offloading, {name}, {engine}");
        reading.find(what, "%", Spread::of([share]));
    }
    Ok(reading)
}
