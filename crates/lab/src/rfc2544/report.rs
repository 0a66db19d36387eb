//! What `testudo lab rfc2544` prints.

use serde_json::{Map, Value, json};

use super::cells::{Remarks, cores_json, figure, frame_bytes, heading, latency_cells, notes, percent};
use super::options::Rfc2544Options;
use crate::generator::FEED_PACKETS;
use crate::harness::{Cores, LatencyUs, Measurement};
use crate::table::Table;
use crate::tandem::Tandem;

fn all_notes(options: &Rfc2544Options, row: &Measurement, cores: Cores) -> Vec<String> {
    let mut notes = notes(row, cores);
    notes.extend(options.deviations(row.test));
    notes
}

/// The array that `--json` prints.
pub(super) fn json(options: &Rfc2544Options, device: &Tandem, rows: &[Measurement]) -> Value {
    let object = |row: &Measurement| {
        let latency =
            row.latency_us.map(|LatencyUs { p50, p99, max }| json!({ "p50": p50, "p99": p99, "max": max }));
        let mut object = Map::new();
        let mut put = |name: &str, value: Value| object.insert(name.to_owned(), value);
        put("test", json!(row.test.name()));
        put("frame_bytes", frame_bytes(row.sizes));
        put("offered_packets_per_second", json!(row.offered_packets_per_second));
        put("throughput_packets_per_second", json!(row.throughput_packets_per_second));
        put("loss", json!(row.loss));
        put("latency_us", json!(latency));
        put("repeat_spread", json!(row.repeat_spread));
        put("burst_packets", json!(row.burst_packets));
        put("busy_share", json!(row.busy_share));
        put("repetitions", json!(row.repetitions));
        put("trial_seconds", json!(options.plan().trial.as_secs_f64()));
        put("converged", json!(row.unconverged.is_none()));
        put("conforming", json!(options.deviations(row.test).is_empty()));
        put("cores", cores_json(device.cores()));
        put("suite", json!(options.device.suite));
        put("engine", json!(device.engine()));
        put("sas", json!(options.device.sas));
        put("flows", json!(options.device.flows));
        put("seed", json!(options.device.seed));
        put("notes", json!(all_notes(options, row, device.cores())));
        Value::Object(object)
    };
    Value::Array(rows.iter().map(object).collect())
}

/// The table, and what its columns and remarks mean.
pub(super) fn table(options: &Rfc2544Options, device: &Tandem, rows: &[Measurement]) -> String {
    let args = &options.device;
    let mut text = heading(device, &args.suite, args.sas, args.flows);
    let plan = options.plan();
    text += &format!(
        "RFC 2544: trials of {} s, {} repetitions, seed {}.{}\n\n",
        plan.trial.as_secs_f64(),
        plan.repetitions,
        args.seed,
        if options.quick { " --quick: does not conform to RFC 2544." } else { "" },
    );
    let heads = [
        "frame (bytes), test",
        "offered (kpps)",
        "came back (kpps)",
        "loss (%)",
        "burst (packets)",
        "p50 (µs)",
        "p99 (µs)",
        "max (µs)",
        "spread (%)",
        "remarks",
    ];
    let (mut remarks, mut cells) = (Remarks::default(), vec![heads.map(str::to_owned).to_vec()]);
    for row in rows {
        let burst = row.burst_packets.map_or_else(|| "-".to_owned(), |packets| format!("{packets:.0}"));
        let mut line = vec![
            format!("{} {}", row.sizes, row.test.name().replace('_', " ")),
            figure(row.offered_packets_per_second / 1e3),
            figure(row.throughput_packets_per_second / 1e3),
            percent(Some(row.loss)),
            burst,
        ];
        line.extend(latency_cells(row));
        line.push(percent(row.repeat_spread));
        line.push(remarks.refer(all_notes(options, row, device.cores())));
        cells.push(line);
    }
    text += &Table::report(cells).to_string();
    text += &format!(
        "\n  kpps: thousands of packets per second. p50, p99, max: latencies of packets that came back, queues included.\n  \
         spread: how far repetitions are apart, as a share of their median. The queue before the gateways holds {FEED_PACKETS} packets.\n",
    );
    text + &remarks.lines()
}
