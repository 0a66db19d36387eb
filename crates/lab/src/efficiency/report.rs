//! What `testudo lab efficiency --json` prints, and what is to be said of a row.

use serde_json::{Map, Value, json};

use super::options::EfficiencyOptions;
use super::papers::{TABLE_2, TABLE_I};
use super::prices::Prices;
use super::{Found, OfSize, Rated};
use crate::harness::{LatencyUs, Limit, NotKnown, Step};
use crate::rfc2544::{cells, notes};

/// What the longest pause that held says where the next one failed through no fault of the gateways.
const ENDED: &str = "the search of pauses ended in a trial in which other work, or a hypervisor, had the processor: longer pauses may hold";

/// What the first step says that is not held through no fault of the gateways.
const NOT_HELD: &str =
    "packets were lost only while other work, or a hypervisor, had the processor: the rate may hold";

/// What is to be said of a step besides its figures: of one at a rate, or of the capacity.
pub(super) fn step_notes(
    options: &EfficiencyOptions,
    found: &Found,
    rated: Option<&Rated>,
    step: &Step,
) -> Vec<String> {
    let mut notes = notes(&step.row, found.cores);
    if rated.is_some() && !step.is_held && step.pause.is_zero() {
        notes.push("this rate is not held, even without a pause".to_owned());
    }
    let is_last = rated.and_then(|rated| rated.steps.last()).is_some_and(|last| last.pause == step.pause);
    if is_last && rated.is_some_and(Rated::ended_early) {
        notes.push("throughput did not fall: no pause is longer than a fiftieth of a trial".to_owned());
    }
    if step.is_ended_by_others {
        notes.push(if step.is_held { ENDED } else { NOT_HELD }.to_owned());
    }
    if let Err(NotKnown(why)) = step.power.total() {
        notes.push(format!("power is not known: {why}"));
    }
    if options.quick {
        let seconds = options.plan().trial.as_secs_f64();
        notes.push(format!("--quick: trials of {seconds} s, whose figures are coarse"));
    }
    notes
}

/// The array that `--json` prints: steps at each rate, then costs by size, then the papers' tables.
pub(super) fn array(options: &EfficiencyOptions, found: &Found) -> Value {
    let mut rows = Vec::new();
    for of_size in &found.sizes {
        for rated in &of_size.rates {
            rows.extend(rated.steps.iter().map(|step| at_a_rate(options, found, rated, step)));
        }
    }
    rows.extend(found.sizes.iter().map(|of_size| cost(options, found, of_size)));
    rows.extend(table_i());
    rows.extend(table_2(found.prices.as_ref()));
    Value::Array(rows)
}

fn at_a_rate(options: &EfficiencyOptions, found: &Found, rated: &Rated, step: &Step) -> Value {
    let mut row = measured(options, found, step);
    let mut put = |name: &str, value: Value| row.insert(name.to_owned(), value);
    let is_longest = rated.longest().is_some_and(|longest| longest.pause == step.pause);
    put("test", json!(step.row.test.name()));
    put("rate", json!(rated.rate.to_string()));
    put("pause_us", json!(step.pause.as_secs_f64() * 1e6));
    put("held", json!(step.is_held));
    put("longest_pause", json!(is_longest));
    put("mean_pause_us", json!(step.mean_pause_us));
    put("notes", json!(step_notes(options, found, Some(rated), step)));
    Value::Object(row)
}

/// What the gateways can, and what that costs at the prices of the user's file.
fn cost(options: &EfficiencyOptions, found: &Found, of_size: &OfSize) -> Value {
    let mut row = measured(options, found, &of_size.capacity);
    let gbit = of_size.capacity.gbit_per_second();
    let mut put = |name: &str, value: Value| row.insert(name.to_owned(), value);
    put("test", json!("cost"));
    let prices = found.prices.as_ref();
    put("machine", json!(prices.map(|prices| &prices.machine.name)));
    put("currency", json!(prices.map(|prices| &prices.currency)));
    put("price", json!(prices.map(|prices| prices.machine.price)));
    put("price_per_gbit_per_second", json!(prices.map(|prices| prices.machine.price / gbit)));
    put("mbit_per_second_per_price", json!(prices.map(|prices| gbit * 1e3 / prices.machine.price)));
    put("watts_of_price_file", json!(prices.and_then(|prices| prices.machine.watts)));
    put("notes", json!(step_notes(options, found, None, &of_size.capacity)));
    Value::Object(row)
}

/// The figures that all rows of this run have.
fn measured(options: &EfficiencyOptions, found: &Found, step: &Step) -> Map<String, Value> {
    let row = &step.row;
    let latency =
        row.latency_us.map(|LatencyUs { p50, p99, max }| json!({ "p50": p50, "p99": p99, "max": max }));
    let meter = |name: &str, watts: &Result<f64, NotKnown>| match watts {
        Ok(watts) => json!({ "name": name, "watts": watts, "not_known": null }),
        Err(NotKnown(why)) => json!({ "name": name, "watts": null, "not_known": why }),
    };
    let present = step.power.0.iter().map(|(name, watts)| meter(name, watts));
    let absent = found.absent.iter().map(|(name, why)| meter(name, &Err(why.clone())));
    let meters: Vec<Value> = present.chain(absent).collect();
    let args = &options.device;
    let mut object = Map::new();
    let mut put = |name: &str, value: Value| object.insert(name.to_owned(), value);
    put("frame_bytes", cells::frame_bytes(row.sizes));
    put("offered_packets_per_second", json!(row.offered_packets_per_second));
    put("throughput_packets_per_second", json!(row.throughput_packets_per_second));
    put("throughput_gbit_per_second", json!(step.gbit_per_second()));
    put("loss", json!(row.loss));
    put("latency_us", json!(latency));
    put("awake_share", json!(step.awake_share));
    put("lost_share", json!(step.lost_share));
    put("busy_share", json!(row.busy_share));
    put("cycles_per_byte", json!(step.cycles_per_byte));
    put("busy_cycles_per_byte", json!(step.busy_cycles_per_byte));
    put("watts", json!(step.power.total().ok()));
    put("joules_per_byte", json!(step.joules_per_byte().ok()));
    put("meters", json!(meters));
    put("repeat_spread", json!(row.repeat_spread));
    put("converged", json!(step.is_converged()));
    put("repetitions", json!(row.repetitions));
    put("limit", json!(row.limit.map(Limit::name)));
    put("trial_seconds", json!(options.plan().trial.as_secs_f64()));
    put("quick", json!(options.quick));
    put("cores", cells::cores_json(found.cores));
    put("suite", json!(args.suite));
    put("engine", json!(found.engine));
    put("sas", json!(args.sas));
    put("flows", json!(args.flows));
    put("seed", json!(args.seed));
    object
}

fn table_i() -> impl Iterator<Item = Value> {
    TABLE_I.iter().map(|system| {
        json!({
            "test": "paper", "paper": "000", "table": "I",
            "system": system.name,
            "watts": system.watts,
            "throughput_gbit_per_second": system.gbit_s,
            "processor_share": system.processor_share,
            "cycles_per_byte": system.cycles_per_byte,
            "printed_mj_per_byte": system.printed_mj_per_byte,
            "joules_per_byte": system.joules_per_byte(),
        })
    })
}

fn table_2(prices: Option<&Prices>) -> impl Iterator<Item = Value> {
    TABLE_2.iter().map(move |system| {
        let today = prices.and_then(|prices| prices.of(system.name));
        json!({
            "test": "paper", "paper": "002", "table": "2",
            "system": system.name,
            "watts": system.watts,
            "throughput_gbit_per_second": system.gbit_s,
            "price": system.price,
            "currency": "US$",
            "price_per_gbit_per_second": system.price_per_gbit_s(),
            "mbit_per_second_per_price": system.printed_mbit_s_per_dollar,
            "price_of_price_file": today.map(|today| today.price),
            "watts_of_price_file": today.and_then(|today| today.watts),
            "currency_of_price_file": today.and(prices).map(|prices| &prices.currency),
        })
    })
}
