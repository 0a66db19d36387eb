//! Paper 004: a gateway over a network processor, offloads compared, and where its time goes.

use serde_json::Value;

use super::item::{How, Item, Method, Paper, Printed, printed};
use super::reading::{Length, Lines, Reading, Wrong, count, number, text};
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
    printed("3DES", "45", "Mbit/s (abstract)"),
];
const LOAD: &[Printed] = &[
    printed("success at 109 % of capacity", "22", "% (50 of 46 Mbit/s)"),
    printed("processor at 109 % of capacity", "approaches 100", "% (50 of 46 Mbit/s)"),
];
const BLOCKS: &[Printed] = &[
    printed("share of the cryptography before offloading", "80 to 90", "%"),
    printed("cryptography", "700", "µs (XScale alone)"),
    printed("cryptography in the coprocessor", "100", "µs"),
];

const FORWARD: Method = Method {
    quick: "lab placements --suites aes128gcm16 --placements none --sizes 64,512,1024,1518 --trial-seconds 0.05 --repetitions 1",
    full: "lab placements --suites aes128gcm16 --placements none --sizes 64,256,512,1024,1450,1518 --trial-seconds 0.25 --repetitions 3",
    quick_seconds: 25,
    full_seconds: 400,
    conditions: "One gateway in memory with a bypass policy. Threads receive, check, filter and transmit where the paper has NPEs, one thread or one for each way; without them the worker does the same. Rates are of what comes \
         through when twice as much is offered.",
    read: forwarding,
};
const EDGE: Method = Method {
    quick: "lab placements --suites des-sha1 --bypass-io-threads none --sizes 64,1024,1450,1518 --trial-seconds 0.05 --repetitions 1 \
        && testudo lab placements --suites 3des-sha1 --placements crypto,both --bypass-io-threads none --sizes 1450 --trial-seconds 0.05 --repetitions 1",
    full: "lab placements --suites des-sha1 --bypass-io-threads none --sizes 64,128,256,512,1024,1450,1518 --trial-seconds 0.25 --repetitions 3 \
        && testudo lab placements --suites 3des-sha1 --placements crypto,both --bypass-io-threads none --sizes 1450 --trial-seconds 0.25 --repetitions 3",
    quick_seconds: 28,
    full_seconds: 530,
    conditions: "Two gateways in series in memory, on one core, over a path of 1,500 bytes: frames of 1,518 bytes are fragmented after they were sealed. The cryptography is offloaded to threads on other cores, I/O to a thread \
         of its own. Rates are of what comes through when twice as much is offered. DES and 3DES are with HMAC-SHA1. The paper does not say of what size its packets of 3DES were; here they have that of its highest throughput.",
    read: throughput,
};
const OVERLOAD: Method = Method {
    quick: "lab overload --suite des-sha1 --sizes 64,1518 --trial-seconds 0.1 --repetitions 1",
    full: "lab overload --suite des-sha1 --sizes 64,1518 --trial-seconds 0.5 --repetitions 3",
    quick_seconds: 6,
    full_seconds: 64,
    conditions: "Two gateways in series on one core, in memory; DES with HMAC-SHA1, not offloaded. Capacity is what they forward when offered twice as much. The paper's load is 109 % of its system's.",
    read: overload,
};
const TURNAROUND: Method = Method {
    quick: "lab placements --suites des-sha1,3des-sha1 --placements none,crypto --bypass-io-threads none --sizes 1450 --trial-seconds 0.05 --repetitions 1",
    full: "lab placements --suites des-sha1,3des-sha1 --placements none,crypto --bypass-io-threads none --sizes 1450 --trial-seconds 0.25 --repetitions 5",
    quick_seconds: 10,
    full_seconds: 110,
    conditions: "Frames of 1,450 bytes (the paper does not say of what size), sealed and opened by two gateways in series: the mean time that somebody works on a packet, in both. IP: reception, checks, reading of headers, \
         transmission. Look-up: policy and SA. Headers: numbers, replay windows, headers and trailers. Offloaded to threads on other cores.",
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
        how: How::Measured(FORWARD),
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

/// A capacity of a row, in Mbit/s, with its number of I/O threads, its placement and its size.
struct Rate<'a> {
    placement: &'a str,
    threads: usize,
    bytes: usize,
    megabits: f64,
}

/// One of each setup and size of a suite: rows of its blocks have the same rate. Those that are not possible
/// are remarks.
fn rates<'a>(rows: &'a [Value], suite: &str, reading: &mut Reading) -> Result<Vec<Rate<'a>>, Wrong> {
    let mut rates = Vec::new();
    for row in rows.iter().filter(|row| row.get("suite").and_then(Value::as_str) == Some(suite)) {
        let placement = text(row, "placement")?;
        let Length::Bytes(bytes) = Length::of(row, "frame_bytes")? else {
            return Err("a row of a mix".to_owned());
        };
        let what = format!("{suite}, {placement}, {bytes} bytes");
        if let Some(reason) = row.get("not_possible_here").and_then(Value::as_str) {
            reading.remark(format!("{what}: not possible here: {reason}."));
        } else if text(row, "block")? == "IP" {
            let (threads, megabits) = (count(row, "io_threads")?, number(row, "capacity")?);
            rates.push(Rate { placement, threads, bytes, megabits });
            reading.remark_notes(row, &what);
        }
    }
    Ok(rates)
}

/// How much more the second of these is than the first at the same size, at most, in percent.
fn gain<'a>(
    rates: &[Rate<'a>],
    from: impl Fn(&Rate<'a>) -> bool,
    to: impl Fn(&Rate<'a>) -> bool,
) -> Option<f64> {
    let of = |after: &Rate<'a>| {
        let before = rates.iter().find(|rate| from(rate) && rate.bytes == after.bytes)?;
        Some((after.megabits / before.megabits.max(f64::MIN_POSITIVE) - 1.0) * 100.0)
    };
    rates.iter().filter(|rate| to(rate)).filter_map(of).reduce(f64::max)
}

/// The size of the highest rate.
fn best<'a, 'b: 'a>(rates: impl Iterator<Item = &'a Rate<'b>>) -> Option<f64> {
    let best = rates.reduce(|best, rate| if rate.megabits > best.megabits { rate } else { best });
    best.map(|best| best.bytes as f64)
}

const AXES: [&str; 2] = ["frame size (bytes, with check sequence)", "throughput (Mbit/s)"];

/// Figure 3.
fn forwarding(rows: &[Value]) -> Result<Reading, Wrong> {
    let (mut reading, mut lines) = (Reading::default(), Lines::default());
    let rates = rates(rows, "bypass", &mut reading)?;
    for Rate { threads, bytes, megabits, .. } in &rates {
        let (name, rate) = (format!("I/O threads: {threads}"), Spread::of([*megabits]));
        reading.find(format!("{name}, frames of {bytes} bytes"), "Mbit/s", rate);
        lines.add(&name, (*threads, 0), Length::Bytes(*bytes), rate);
    }
    let gained = gain(&rates, |rate| rate.threads == 0, |rate| rate.threads == 2);
    if let Some(gained) = gained {
        reading.find("gain by two NPEs, up to", "%", Spread::of([gained]));
    }
    if let Some(bytes) = best(rates.iter().filter(|rate| rate.threads > 0)) {
        reading.find("size with the highest throughput", "bytes", Spread::of([bytes]));
    }
    reading.panels.push(lines.panel("Forwarding by I/O threads (figure 3)", AXES, Extent::Zero));
    Ok(reading)
}

/// Figure 4.
fn throughput(rows: &[Value]) -> Result<Reading, Wrong> {
    let (mut reading, mut lines) = (Reading::default(), Lines::default());
    let rates = rates(rows, "des-sha1", &mut reading)?;
    for Rate { placement, bytes, megabits, .. } in &rates {
        let (name, colour) = offload(placement)?;
        let rate = Spread::of([*megabits]);
        reading.find(format!("{name}, frames of {bytes} bytes"), "Mbit/s", rate);
        lines.add(name, (colour, 0), Length::Bytes(*bytes), rate);
    }
    let offloaded = |rate: &Rate<'_>| ["crypto", "both"].contains(&rate.placement);
    if let Some(gained) = gain(&rates, |rate| rate.placement == "none", offloaded) {
        reading.find("gain by offloading the cryptography", "%", Spread::of([gained]));
    }
    if let Some(bytes) = best(rates.iter().filter(|rate| rate.placement == "crypto")) {
        reading.find("size with the highest throughput", "bytes", Spread::of([bytes]));
    }
    for rate in self::rates(rows, "3des-sha1", &mut reading)?.iter().filter(|rate| offloaded(rate)) {
        let (name, _) = offload(rate.placement)?;
        let what = format!("3DES, {name}, frames of {} bytes", rate.bytes);
        reading.find(what, "Mbit/s", Spread::of([rate.megabits]));
    }
    reading.panels.push(lines.panel("IPsec throughput: DES (figure 4)", AXES, Extent::Zero));
    Ok(reading)
}

/// What of the work is not the worker's, for people, and the colour of its line.
fn offload(placement: &str) -> Result<(&'static str, usize), Wrong> {
    Ok(match placement {
        "none" => ("nothing offloaded", 0),
        "io" => ("I/O offloaded", 1),
        "crypto" => ("cryptography offloaded", 2),
        "both" => ("both offloaded", 3),
        other => return Err(format!("\"placement\" of a row is {other:?}")),
    })
}

/// Section 4.3.
fn overload(rows: &[Value]) -> Result<Reading, Wrong> {
    let (mut reading, mut lines) = (Reading::default(), Lines::default());
    for row in rows {
        let length = Length::of(row, "frame_bytes")?;
        let share = number(row, "offered_share_of_capacity")? * 100.0;
        let planned = number(row, "planned_share_of_capacity")? * 100.0;
        let at = Length::Bytes(usize::try_from(crate::harness::count(share + 0.5)).unwrap_or(0));
        let colour = usize::from(length != Length::Bytes(64));
        let success = Spread::of([number(row, "success_ratio")? * 100.0]);
        // A load that was not reached is named by what was offered.
        let is_reached = (planned - share).abs() < 1.0;
        let instead =
            if is_reached { String::new() } else { format!(", in place of {planned:.0} % of capacity") };
        let words = |what: &str| format!("{what} at {share:.0} % of capacity, {}{instead}", length.words());
        reading.find(words("success"), "%", success);
        lines.add(&format!("{}: success", length.words()), (colour, 0), at, success);
        if row.get("processor_load").is_some_and(|load| !load.is_null()) {
            let load = Spread::of([number(row, "processor_load")? * 100.0]);
            reading.find(words("processor"), "%", load);
            lines.add(&format!("{}: processor", length.words()), (colour, 1), at, load);
        }
        reading.remark_notes(row, &format!("{}, {share:.0} % of capacity", length.words()));
    }
    let axes = ["offered load (% of capacity)", "packets that came through, processor's busy time (%)"];
    reading.panels.push(lines.panel("Overload (section 4.3)", axes, Extent::Zero));
    Ok(reading)
}

/// Figure 5.
fn blocks(rows: &[Value]) -> Result<Reading, Wrong> {
    let mut reading = Reading::default();
    for row in rows.iter().filter(|row| row.get("suite").is_some_and(Value::is_string)) {
        let name = match text(row, "suite")? {
            "des-sha1" => "DES",
            "3des-sha1" => "3DES",
            other => return Err(format!("\"suite\" of a row is {other:?}")),
        };
        let placement = text(row, "placement")?;
        if let Some(reason) = row.get("not_possible_here").and_then(Value::as_str) {
            reading.remark(format!("{placement}, {name}: not possible here: {reason}."));
            continue;
        }
        let (block, engine) = (text(row, "block")?, text(row, "engine")?);
        let (time, share) = (number(row, "turnaround_us")?, number(row, "share")?);
        let place = if placement == "none" { "" } else { " in the coprocessor" };
        let offloaded = if placement == "none" { "" } else { ", cryptography offloaded" };
        let what = match block {
            "cryptography" => format!("{block}{place}, {name}, {engine}"),
            _ => format!("{block}, {name}, {engine}{offloaded}"),
        };
        reading.find(what, "µs", Spread::of([time]));
        if (block, placement) == ("cryptography", "none") {
            let what = format!("share of the cryptography before offloading, {name}, {engine}");
            reading.find(what, "%", Spread::of([share * 100.0]));
        }
        reading.remark_notes(row, &format!("{placement}, {name}"));
    }
    Ok(reading)
}
