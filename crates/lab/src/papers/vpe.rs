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
    conditions: "Goodput after a round trip through two gateways, of one direction, as in the paper; means with the 95 % confidence interval. Each gateway has one worker, on a processor of its own where there \
         are two; generator and reflector are ports of these workers, and bytes are copied between the gateways in memory. Time is that of the day. Sealing and opening apart are in the JSON. \
         ipsec-secgw is measured by `make bench-peer`.",
    read: single,
};
const SCALING: Method = Method {
    quick: "bench vpe --experiment scaling --cores --duration 40 --repeat 2 --workers 1,2",
    full: "bench vpe --experiment scaling --cores --duration 200 --repeat 5 --workers {workers}",
    quick_seconds: 14,
    full_seconds: 120,
    conditions: "Workers seal side by side, in memory; opening is in the JSON. \"Of linear\" is beside as many gateways that share nothing, on the same cores in the same run. Parallel ESP is the \
         paper's (figure 4). Predictions are a model's, from what a cache line costs that two cores write and, where two workers were measured, fitted to what these reach in the same run: what it \
         says of two is no prediction. Rates of workers with a processor each are of the processors' time, others of the day.",
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
            reading.findings.push(Finding { what: what.clone(), unit: "of linear", here, predicted });
        }
        if let Some(fitted) = optional("fitted_of_linear")? {
            let what = format!("{what}: the model, which is fitted to that");
            let predicted = Some(fitted.median);
            reading.findings.push(Finding { what, unit: "of linear", here: None, predicted });
        }
        if let Some(engine) = row.get("engine").and_then(Value::as_str) {
            reading.remark(format!("Engine {engine}."));
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::papers::item::Mode;
    use crate::papers::machine::Machine;
    use crate::papers::report::{Entry, Report};
    use crate::papers::store::{Record, Settings};
    use crate::papers::{markdown, measured};

    /// As `bench vpe` has the chain: its rate is what comes back, by the clock of the day.
    #[test]
    fn the_chain_is_said_to_have_a_worker_for_each_gateway_and_the_time_of_the_day() {
        let words = SINGLE.conditions;
        for part in ["Each gateway has one worker", "on a processor of its own", "Time is that of the day"] {
            assert!(words.contains(part), "{part}: {words}");
        }
        assert!(!words.contains("added") && !words.contains("All threads are one"), "{words}");
    }

    #[test]
    fn what_the_model_was_fitted_to_is_told_apart_from_what_it_predicts() {
        let row = |workers: u32, of_linear: Value, predicted: Value| {
            json!({ "threading": "run_to_completion", "inner_bytes": 64, "workers": workers, "direction": "outbound",
                    "of_linear": of_linear, "predicted_of_linear": predicted })
        };
        let mut two = row(2, json!(0.91), Value::Null);
        (two["packets_per_second"], two["fitted_of_linear"]) = (json!(2e6), json!(0.9));
        two["engine"] = json!("portable");
        let reading = scaling(&[two, row(4, Value::Null, json!(0.8))]).unwrap();
        let told = |finding: &Finding| {
            (finding.what.clone(), finding.here.map(|here| here.median), finding.predicted)
        };
        let of_linear = reading.findings.iter().filter(|finding| finding.unit == "of linear").map(told);
        let expected = [
            ("VPE, 64 bytes, workers: 2".to_owned(), Some(0.91), None),
            ("VPE, 64 bytes, workers: 2: the model, which is fitted to that".to_owned(), None, Some(0.9)),
            ("VPE, 64 bytes, workers: 4".to_owned(), None, Some(0.8)),
        ];
        assert_eq!(of_linear.collect::<Vec<_>>(), expected);
        assert_eq!(reading.remarks, ["Engine portable."]);
    }

    fn machine() -> Machine {
        let (processor, kernel) = ("p".to_owned(), "k".to_owned());
        Machine { processor, processors: 2, memory_gib: 7, kernel, ..Machine::default() }
    }

    /// In Markdown they stand in the column of predictions, and what was measured stands in its own.
    #[test]
    fn the_report_in_markdown_has_what_is_predicted_of_4_to_64_workers_in_a_column_of_its_own() {
        let item = ITEMS.iter().find(|item| item.name == "Figure 6").unwrap();
        let row = |workers: u32| {
            json!({ "threading": "run_to_completion", "direction": "outbound", "inner_bytes": 64,
                    "workers": workers })
        };
        let predicted = |workers: u32| {
            let mut row = row(workers);
            row["predicted_of_linear"] = json!(0.5);
            row
        };
        let mut rows = vec![row(2)];
        (rows[0]["packets_per_second"], rows[0]["of_linear"]) = (json!(2e9), json!(0.75));
        rows.extend([4, 8, 16, 32, 64].map(predicted));
        let settings = Settings {
            id: item.id(),
            mode: "full".to_owned(),
            command: "c".to_owned(),
            prices: None,
            program: "p".to_owned(),
            machine: machine(),
        };
        let record = Record::new(settings, 1.0, None, rows.into());
        let state = measured(Box::new(record), item.method().unwrap(), false);
        let text = markdown::document(&Report {
            mode: Mode::Full,
            only: Vec::new(),
            made_at: "now".to_owned(),
            program: "p".to_owned(),
            machine: machine(),
            entries: vec![Entry { item, state }],
        });
        let has = |line: &str| assert!(text.lines().any(|other| other == line), "{line}: {text}");
        has("|  | measured here | lowest to highest | predicted | paper |");
        has("| VPE, 64 bytes, workers: 2 | 0.750 of linear |  |  |  |");
        for workers in [4, 8, 16, 32, 64] {
            has(&format!("| VPE, 64 bytes, workers: {workers} |  |  | 0.500 of linear |  |"));
        }
    }

    /// Rows of earlier runs have none in UDP.
    #[test]
    fn headroom_in_udp_has_a_picture_of_its_own() {
        let row = |encapsulation: &str, in_udp: bool, headroom: u32, time: f64| {
            json!({ "encapsulation": encapsulation, "in_udp": in_udp, "headroom_bytes": headroom,
                    "nanoseconds_per_packet": time, "of_esp": 1.0, "engine": "portable" })
        };
        let plain = [row("esp", false, 0, 9.0), row("esp", false, 8, 8.0), row("vpe", false, 0, 7.0)];
        let in_udp = [row("esp", true, 4, 5.0), row("vpe", true, 8, 4.0), row("vpe", true, 12, 6.0)];
        let fastest = |rows: &[Value]| {
            let reading = headroom(rows).unwrap();
            let is_place = |finding: &&Finding| finding.what.starts_with("headroom with which");
            let places = reading.findings.iter().filter(is_place).filter_map(|finding| finding.here);
            (places.map(|place| place.median).collect::<Vec<_>>(), reading.panels.len())
        };
        assert_eq!(fastest(&plain), (vec![8.0, 0.0], 1));
        assert_eq!(fastest(&[plain, in_udp].concat()), (vec![8.0, 0.0, 4.0, 8.0], 2));
    }
}
