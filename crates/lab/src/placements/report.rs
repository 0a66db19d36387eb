//! What `testudo lab placements --json` prints, and what is to be said of a row.

use serde_json::{Map, Value, json};

use super::options::PlacementsOptions;
use super::{Found, Measured, Outcome, printed};
use crate::harness::{BOUND_LOAD, BlockTime, Bottleneck, Cores, LatencyUs, Limit, Measurement, Unconverged};
use crate::rfc2544::{self, cells};

/// Why a row names no bottleneck.
const NOBODY: &str = "bottleneck: not known, since packets were lost while each part waited for others: threads share a processor, or a burst was more than a ring holds";

/// What a row says of latencies whose load was less than half of the throughput.
const UNDER_LESS: &str =
    "latency under half of the throughput: the generator offered less than it was to, so the load was lower";

/// What is to be said of an outcome besides its figures.
pub(super) fn notes(options: &PlacementsOptions, outcome: &Outcome) -> Vec<String> {
    let mut notes = Vec::new();
    if let Ok(measured) = &outcome.result {
        // Who shares processors is said below.
        let apart = Cores { device: 1, generator: 0 };
        notes.extend(rfc2544::notes(&measured.row.throughput, apart));
        let capacity = rfc2544::notes(&measured.row.capacity, apart);
        // A flood is more than the generator reaches, too.
        let is_late =
            |note: &String| measured.row.capacity.limit.is_none() && note.starts_with("the generator ");
        notes.extend(capacity.into_iter().filter(|note| !is_late(note)));
        notes.extend(
            measured.row.blocks.iter().filter_map(|time| time.unconverged).map(|why| why.to_string()),
        );
        let of_latency = measured.under_half.and_then(|found| found.unconverged);
        let of_latency = of_latency.filter(|why| *why != Unconverged::MeasuredOnce);
        notes.extend(of_latency.map(|why| format!("latency under half of the throughput: {why}")));
        let is_late = measured.under_half.is_some_and(|found| found.was_generator_late);
        notes.extend(is_late.then(|| UNDER_LESS.to_owned()));
        notes.extend((measured.row.bottleneck == Bottleneck::NotKnown).then(|| NOBODY.to_owned()));
        if outcome.setup.threads.are_shared {
            let threads = 2 + outcome.setup.threads.io.len() + outcome.setup.crypto_threads();
            notes.push(format!("cores shared: {threads} threads have fewer processors"));
        }
        notes.extend(options.deviation());
        let mut each = Vec::new();
        notes.into_iter().for_each(|note| {
            if !each.contains(&note) {
                each.push(note);
            }
        });
        return each;
    }
    notes
}

/// The rate without loss, in packets per second; `None` where no rate was without.
pub(super) fn lossless(row: &Measurement) -> Option<f64> {
    match row.unconverged {
        None | Some(Unconverged::SpreadAbove { .. } | Unconverged::MeasuredOnce) => {
            Some(row.throughput_packets_per_second)
        }
        Some(_) => None,
    }
}

/// The array: a row for each block of what was measured, or one that says why nothing was.
pub(super) fn array(options: &PlacementsOptions, found: &Found) -> Value {
    let rows = found.outcomes.iter().flat_map(|outcome| rows(options, outcome));
    let compared = printed::compared(found).into_iter().map(|one| {
        json!({
            "placement": null, "suite": null, "frame_bytes": null, "throughput": null, "block": null,
            "turnaround_us": null, "share": null, "bottleneck": null,
            "test": "paper", "what": one.what, "unit": one.unit, "here": one.here, "paper": one.paper,
        })
    });
    Value::Array(rows.chain(compared).collect())
}

fn rows(options: &PlacementsOptions, outcome: &Outcome) -> Vec<Value> {
    match &outcome.result {
        Err(reason) => {
            let mut row = common(options, outcome);
            row.insert("not_possible_here".to_owned(), json!(reason));
            vec![Value::Object(row)]
        }
        Ok(measured) => {
            let one = |time: &BlockTime| {
                let mut row = common(options, outcome);
                let mut put = |name: &str, value: Value| row.insert(name.to_owned(), value);
                let (turnaround, share) =
                    printed::of_block(outcome.setup.suite, outcome.setup.placement, time.block);
                put("block", json!(time.block.name()));
                put("turnaround_us", json!(time.turnaround_us));
                put("worker_us", json!(time.worker_us));
                put("share", json!(time.share));
                put("turnaround_repeat_spread", json!(time.repeat_spread));
                put("converged", json!(is_converged(measured, time)));
                put("paper", json!({ "turnaround_us": turnaround, "share_percent": share }));
                Value::Object(row)
            };
            measured.row.blocks.iter().map(one).collect()
        }
    }
}

/// Whether all figures of a block's row are to be relied on.
fn is_converged(measured: &Measured, time: &BlockTime) -> bool {
    let row = &measured.row;
    [row.throughput.unconverged, row.capacity.unconverged, time.unconverged].iter().all(Option::is_none)
}

/// Latencies under half of the throughput, beside the bound; those of slices in which somebody else had the
/// processors apart.
fn latency(options: &PlacementsOptions, measured: Option<&Measured>) -> Value {
    let Some(found) = measured.and_then(|measured| measured.under_half) else { return Value::Null };
    let of = |latency: Option<LatencyUs>| {
        latency.map(|LatencyUs { p50, p99, max }| json!({ "p50": p50, "p99": p99, "max": max }))
    };
    json!({
        "load": BOUND_LOAD,
        "offered_packets_per_second": found.offered_packets_per_second,
        "was_generator_late": found.was_generator_late,
        "here": of(found.latency_us),
        "bound": options.bound_us,
        "within": found.is_within(options.bound_us.into()),
        "lost": found.lost,
        "repeat_spread": found.repeat_spread,
        "converged": found.latency_us.map(|_| found.unconverged.is_none()),
        "slices": found.slices,
        "apart": found.apart,
        "apart_here": of(found.apart_us),
    })
}

/// What all rows of an outcome have.
fn common(options: &PlacementsOptions, outcome: &Outcome) -> Map<String, Value> {
    let (setup, plan) = (&outcome.setup, options.plan());
    let measured = outcome.result.as_ref().ok();
    let row = measured.map(|measured| &measured.row);
    let megabits = outcome.sizes.mean_bytes() * 8e-6;
    let lossless = row.and_then(|row| lossless(&row.throughput));
    let capacity = row.map(|row| row.capacity.throughput_packets_per_second);
    let mut object = Map::new();
    let mut put = |name: &str, value: Value| object.insert(name.to_owned(), value);
    put("test", json!("placement"));
    put("placement", json!(setup.placement.name()));
    put("suite", json!(setup.suite_name()));
    put("frame_bytes", cells::frame_bytes(outcome.sizes));
    put("throughput", json!(lossless.map(|rate| rate * megabits)));
    put("throughput_packets_per_second", json!(lossless));
    put("capacity", json!(capacity.map(|rate| rate * megabits)));
    put("capacity_packets_per_second", json!(capacity));
    put("repeat_spread", json!(row.and_then(|row| row.throughput.repeat_spread)));
    put("capacity_repeat_spread", json!(row.and_then(|row| row.capacity.repeat_spread)));
    for name in
        ["block", "turnaround_us", "worker_us", "share", "turnaround_repeat_spread", "converged", "paper"]
    {
        put(name, Value::Null);
    }
    put("limit", json!(row.and_then(|row| row.throughput.limit).map(Limit::name)));
    put("bottleneck", json!(row.map(|row| row.bottleneck.name())));
    put(
        "memory",
        json!(measured.map(|measured| json!({
            "resident_bytes": measured.memory.resident_bytes,
            "buffers_in_use": measured.memory.buffers,
        }))),
    );
    put("latency_us", latency(options, measured));
    put("engine", json!(outcome.engine));
    put("io_threads", json!(setup.threads.io.len()));
    put("cryptography_threads", json!(setup.crypto_threads()));
    put(
        "cores",
        json!({
            "worker": setup.threads.worker,
            "generator": setup.threads.generator,
            "io": setup.threads.io,
            "cryptography": setup.threads.cryptography,
            "shared": setup.threads.are_shared,
        }),
    );
    put("mtu", json!(setup.mtu));
    put("sas", json!(setup.sas));
    put("flows", json!(setup.flows));
    put("seed", json!(setup.seed));
    put("repetitions", json!(plan.repetitions));
    put("trial_seconds", json!(plan.trial.as_secs_f64()));
    put("quick", json!(options.quick));
    put("conforming", json!(options.deviation().is_none()));
    put("notes", json!(notes(options, outcome)));
    put("not_possible_here", Value::Null);
    object
}
