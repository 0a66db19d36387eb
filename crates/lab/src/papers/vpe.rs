//! Paper 003: VPE beside ESP.

use serde_json::Value;

use super::item::{How, Item, Method, Paper, Printed, printed};
use super::reading::{Finding, Length, Lines, Reading, Wrong, count, number, scaled, spread, text};
use crate::bench::chart::Extent;
use crate::statistics::Spread;

const PAPER: Paper = Paper::Vpe;
const NANOSECONDS: &str = "time to seal a packet (ns)";

const ONE_THREAD: &[Printed] = &[
    printed("ipsec-secgw (ESP), 64 bytes", "1.91", "Gbit/s"),
    printed("ESP, 64 bytes", "2.29", "Gbit/s"),
    printed("VPE, 64 bytes", "2.32", "Gbit/s"),
    printed("ipsec-secgw (ESP), 1420 bytes", "18.09", "Gbit/s"),
    printed("ESP, 1420 bytes", "19.28", "Gbit/s"),
    printed("VPE, 1420 bytes", "19.50", "Gbit/s"),
];
const THREADS: &[Printed] = &[
    printed("VPE, 64 bytes, 38 cores", "29.8", "Gbit/s"),
    printed("VPE, 1420 bytes, 10 threads", "73", "Gbit/s"),
    printed("parallel ESP, 64 bytes, at most", "9.7", "Gbit/s"),
    printed("parallel ESP, 1420 bytes, more than 20 threads", "about 75", "Gbit/s"),
];
const SIZES: &[Printed] = &[printed("size that ESP seals fastest", "1196, 1260, 1324, 1388", "bytes")];
const HEADROOM: &[Printed] = &[printed("headroom with which VPE is fastest", "2, 18, 34, 50", "bytes")];

const SINGLE: Method = Method {
    quick: "bench vpe --experiment single_thread --duration 40 --repeat 2 --chain-runs 5",
    full: "bench vpe --experiment single_thread --duration 200 --repeat 5 --chain-runs 60",
    quick_seconds: 5,
    full_seconds: 80,
    conditions: "Goodput after a round trip through two gateways, of one direction, as in the paper; means with the 95 % confidence interval. All threads are one, and packets are in memory: \
         times of the parts are added. Sealing and opening apart are in the JSON. ipsec-secgw is measured by `make bench-peer`.",
    read: single,
};
const SCALING: Method = Method {
    quick: "bench vpe --experiment scaling --duration 40 --repeat 2 --workers 1,2",
    full: "bench vpe --experiment scaling --duration 200 --repeat 5 --workers {workers}",
    quick_seconds: 14,
    full_seconds: 120,
    conditions: "Workers seal side by side, in memory; opening is in the JSON. \"Of linear\" is beside as many gateways that share nothing, on the same cores in the same run. Parallel ESP is the \
         paper's (figure 4). Predictions are a model's, from what a cache line costs that two cores write.",
    read: scaling,
};
const SWEEP: Method = Method {
    quick: "bench vpe --experiment size_sweep --size-step 8 --repeat 3",
    full: "bench vpe --experiment size_sweep --repeat 5",
    quick_seconds: 5,
    full_seconds: 55,
    conditions: "4,096 packets for each measurement in turns, where the paper has 10,000,000.",
    read: sweep,
};
const MOVED: Method = Method {
    quick: "bench vpe --experiment headroom --repeat 3",
    full: "bench vpe --experiment headroom --repeat 15",
    quick_seconds: 5,
    full_seconds: 30,
    conditions: "4,096 packets of 1,420 bytes for each measurement in turns, where the paper has 10,000,000; as IP protocols, and in UDP, whose header moves what is behind it by 8 bytes.",
    read: headroom,
};

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

/// Its figures.
pub(super) static ITEMS: [Item; 8] = [
    drawing("Figure 1", "IP payload of an ESP tunnel mode packet with AES GCM", "it shows a packet"),
    drawing(
        "Figure 2",
        "Cardinality relationships of SPIs, Sender and Window IDs in VPE",
        "it explains terms",
    ),
    drawing("Figure 3", "The proposed packet header", "it shows a header"),
    drawing("Figure 4", "Threading model for parallel IPsec processing", "it shows threads and rings"),
    measured("Figure 5", "Single-threaded throughput", ONE_THREAD, SINGLE),
    measured(
        "Figure 6",
        "Parallel throughput of ESP and VPE for packets sized 64 and 1420 bytes",
        THREADS,
        SCALING,
    ),
    measured("Figure 7", "Packet size vs. encryption time", SIZES, SWEEP),
    measured("Figure 8", "Extra headroom vs. processing time", HEADROOM, MOVED),
];

fn carrier(row: &Value) -> Result<(&'static str, usize), Wrong> {
    match text(row, "encapsulation")? {
        "esp" => Ok(("ESP", 0)),
        "vpe" => Ok(("VPE", 1)),
        other => Err(format!("\"encapsulation\" of a row is {other:?}")),
    }
}

/// Figure 5.
fn single(rows: &[Value]) -> Result<Reading, Wrong> {
    let mut reading = Reading::default();
    let is_chain = |row: &&Value| row.get("direction").and_then(Value::as_str) == Some("round_trip");
    for row in rows.iter().filter(is_chain) {
        let ((name, _), bytes) = (carrier(row)?, count(row, "inner_bytes")?);
        let mean = number(row, "goodput_gbit_s_mean")?;
        let half = match row.get("goodput_gbit_s_ci95") {
            None | Some(Value::Null) => 0.0,
            Some(_) => number(row, "goodput_gbit_s_ci95")?,
        };
        let interval = Spread { median: mean, lowest: (mean - half).max(0.0), highest: mean + half };
        reading.find(format!("{name}, {bytes} bytes"), "Gbit/s", interval);
        reading.remark(format!("Engine {}.", text(row, "engine")?));
    }
    if reading.findings.is_empty() { Err("no row of a round trip".to_owned()) } else { Ok(reading) }
}

/// Figure 6.
fn scaling(rows: &[Value]) -> Result<Reading, Wrong> {
    let mut reading = Reading::default();
    let mut pictures = [(64, Lines::default()), (1420, Lines::default())];
    let is_outbound = |row: &&Value| row.get("direction").and_then(Value::as_str) == Some("outbound");
    for row in rows.iter().filter(is_outbound) {
        let (name, colour) = match text(row, "threading")? {
            "run_to_completion" => ("VPE", 1),
            "shared_sa" => ("ESP with one shared SA", 0),
            "sa_per_worker" => ("ESP with an SA for each worker", 2),
            "parallel_esp" => ("parallel ESP", 3),
            "cores" => ("ESP with the engine cores", 4),
            other => return Err(format!("\"threading\" of a row is {other:?}")),
        };
        let (bytes, workers) = (count(row, "inner_bytes")?, count(row, "workers")?);
        let what = format!("{name}, {bytes} bytes, workers: {workers}");
        let optional = |member: &str| match row.get(member) {
            None | Some(Value::Null) => Ok(None),
            Some(_) => spread(row, member).map(Some),
        };
        if let Some(rate) = optional("packets_per_second")? {
            let rate = scaled(rate, bytes as f64 * 8e-9);
            reading.find(what.clone(), "Gbit/s", rate);
            if let Some((_, lines)) = pictures.iter_mut().find(|(size, _)| *size == bytes) {
                lines.add(name, (colour, 0), Length::Bytes(workers), rate);
            }
        }
        let here = optional("of_linear")?;
        let predicted = optional("predicted_of_linear")?.map(|predicted| predicted.median);
        if here.is_some() || predicted.is_some() {
            reading.findings.push(Finding { what, unit: "of linear", here, predicted });
        }
        if row.get("cores_shared") == Some(&Value::Bool(true)) {
            reading.remark(format!("{name}, workers: {workers}: cores shared."));
        }
    }
    for (bytes, lines) in pictures {
        let title = format!("Sealing packets of {bytes} bytes (figure 6)");
        reading.panels.push(lines.panel(&title, ["workers", "throughput (Gbit/s)"], Extent::Zero));
    }
    Ok(reading)
}

/// Times of ESP and VPE over what `member` is, and the key with the shortest time of either.
fn times<'r>(
    rows: impl IntoIterator<Item = &'r Value>,
    member: &str,
    title: &str,
    across: &str,
) -> Result<(Reading, [usize; 2]), Wrong> {
    let (mut reading, mut lines) = (Reading::default(), Lines::default());
    let (mut best, mut ratios) = ([(f64::INFINITY, 0); 2], Vec::new());
    for row in rows {
        let ((name, lane), key) = (carrier(row)?, count(row, member)?);
        let time = number(row, "nanoseconds_per_packet")?;
        lines.add(name, (lane, 0), Length::Bytes(key), Spread::of([time]));
        if let Some(best) = best.get_mut(lane).filter(|(shortest, _)| time < *shortest) {
            *best = (time, key);
        }
        if lane == 1 {
            ratios.push(number(row, "of_esp")?);
        }
        reading.remark(format!("Engine {}.", text(row, "engine")?));
    }
    for ((time, _), name) in best.into_iter().zip(["ESP", "VPE"]) {
        if !time.is_finite() {
            return Err(format!("no row of {name}"));
        }
        reading.find(format!("{name}, shortest time"), "ns/packet", Spread::of([time]));
    }
    let as_fast = ratios.iter().filter(|ratio| **ratio >= 1.0).count();
    let share = as_fast as f64 / ratios.len().max(1) as f64 * 100.0;
    reading.find("rate of VPE, of ESP's (median, lowest, highest of all)", "times", Spread::of(ratios));
    reading.find("VPE is as fast as ESP or faster", "% of all", Spread::of([share]));
    reading.panels.push(lines.panel(title, [across, NANOSECONDS], Extent::Points));
    Ok((reading, best.map(|(_, key)| key)))
}

/// Figure 7.
fn sweep(rows: &[Value]) -> Result<Reading, Wrong> {
    let title = "Time to seal over packet size (figure 7)";
    let (mut reading, [esp, vpe]) =
        times(rows, "inner_bytes", title, "packet size (bytes of the inner IP packet)")?;
    reading.find("size that ESP seals fastest", "bytes", Spread::of([esp as f64]));
    reading.find("size that VPE seals fastest", "bytes", Spread::of([vpe as f64]));
    Ok(reading)
}

/// Figure 8.
fn headroom(rows: &[Value]) -> Result<Reading, Wrong> {
    let (title, across) = ("Time to seal over headroom (figure 8)", "additional headroom (bytes)");
    let is_in_udp = |row: &&Value| row.get("in_udp") == Some(&Value::Bool(true));
    let (in_udp, plain): (Vec<_>, Vec<_>) = rows.iter().partition(is_in_udp);
    let (mut reading, [esp, vpe]) = times(plain, "headroom_bytes", title, across)?;
    reading.find("headroom with which ESP is fastest", "bytes", Spread::of([esp as f64]));
    reading.find("headroom with which VPE is fastest", "bytes", Spread::of([vpe as f64]));
    if !in_udp.is_empty() {
        let (of_udp, [esp, vpe]) =
            times(in_udp, "headroom_bytes", "Time to seal over headroom, in UDP (as figure 8)", across)?;
        reading.find("headroom with which ESP in UDP is fastest", "bytes", Spread::of([esp as f64]));
        reading.find("headroom with which VPE in UDP is fastest", "bytes", Spread::of([vpe as f64]));
        reading.panels.extend(of_udp.panels);
    }
    Ok(reading)
}
