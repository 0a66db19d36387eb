//! Which engine a job would go to, and why, in words.

use crate::query::rows;
use crate::table::cell;
use serde_json::Value;
use testudo_lab::table::grouped;

/// Microseconds with a digit behind the point.
fn us(ns: &Value) -> String {
    let Some(ns) = ns.as_u64() else { return "unknown".to_owned() };
    let tenths = ns.div_ceil(100);
    format!("{}.{} us", grouped(tenths / 10), tenths % 10)
}

fn length(row: &Value) -> String {
    row["up_to_bytes"].as_u64().map_or("longer".to_owned(), |bytes| format!("up to {} B", grouped(bytes)))
}

fn engine(row: &Value) -> String {
    let (name, expected, cost) = (cell(&row["engine"]), us(&row["expected_ns"]), us(&row["cost_ns"]));
    format!("{name} (back in {expected}, costs the worker {cost})")
}

/// How packets are gathered for an engine, in words; `None` before any was.
pub fn gathering(of: &Value) -> Option<String> {
    let [chunk, bins, range] = ["chunk", "bins", "range_bytes"].map(|name| of[name].as_u64());
    let words =
        format!("chunks of {} packets in {} bins, ranges of {} bytes", grouped(chunk?), bins?, range?);
    let Some(changes) = of["changes"].as_u64() else { return Some(words) };
    let lanes = of["lanes_used"]
        .as_f64()
        .map_or_else(String::new, |share| format!("; lanes {:.0} % used", share * 100.0));
    Some(format!("{words} (self-tuned, {} changes{lanes})", grouped(changes)))
}

/// The same for each engine with bins, a line for each, and what it is not given, a line for each suite and
/// direction.
pub fn gathered(gathered: &[(String, Value)]) -> Vec<String> {
    let of = |(engine, of): &(String, Value)| {
        let gathering = gathering(of).map(|words| format!("{engine} gets {words}"));
        gathering.into_iter().chain(late(engine, of))
    };
    gathered.iter().flat_map(of).collect()
}

/// What an engine had back too late, so that the next one gets it.
pub fn late(engine: &str, of: &Value) -> Vec<String> {
    let mut all: Vec<(String, Vec<String>)> = Vec::new();
    for row in rows(&of["late"]) {
        let kind = format!("{} {}", cell(&row["suite"]), cell(&row["direction"]));
        match all.iter_mut().find(|(known, _)| *known == kind) {
            Some((_, lengths)) => lengths.push(length(row)),
            None => all.push((kind, vec![length(row)])),
        }
    }
    let words = |(kind, lengths): (String, Vec<String>)| {
        let lengths = lengths.join(", ");
        format!(
            "{engine} had {kind} ({lengths}) back too late: the next engine gets it, and {engine} a few to try"
        )
    };
    all.into_iter().map(words).collect()
}

/// Lines for `explain`'s `placement`.
pub fn lines(placement: &Value) -> Vec<String> {
    let mut lines = of_engines(placement);
    let all = placement["gathering"].as_object().into_iter().flatten();
    let all: Vec<_> = all.map(|(engine, of)| (engine.clone(), of.clone())).collect();
    lines.extend(gathered(&all));
    let threading = &placement["threading"];
    if let (Some(words), Some(why)) = (threading["in_words"].as_str(), threading["why"].as_str()) {
        lines.push(format!("threading: {words} ({why})"));
    }
    lines
}

fn of_engines(placement: &Value) -> Vec<String> {
    let Some(suite) = placement["suite"].as_str() else { return Vec::new() };
    if placement["by_length"].is_null() {
        let which = if placement["only"] == true { "the only one" } else { "the first" };
        let told = |first: &str| format!("engine {first}: {which} in service that does {suite}");
        return placement["first"].as_str().map(told).into_iter().collect();
    }
    let all = rows(&placement["by_length"]);
    let bound = us(&placement["latency_ns"]);
    let of_class = |chosen: &Value| {
        let is_other = |row: &&Value| row["up_to_bytes"] == chosen["up_to_bytes"] && row["chosen"] != true;
        let others: Vec<_> = all.iter().filter(is_other).map(engine).collect();
        let else_ = if others.is_empty() { String::new() } else { format!("; else {}", others.join(", ")) };
        let is_chosen = |row: &&Value| row["up_to_bytes"] == chosen["up_to_bytes"] && row["chosen"] == true;
        let by = if all.iter().filter(is_chosen).count() > 1 { "of some workers, " } else { "" };
        format!("{suite} {}: {by}{}{else_}", length(chosen), engine(chosen))
    };
    let mut lines: Vec<_> = all.iter().filter(|row| row["chosen"] == true).map(of_class).collect();
    match lines.is_empty() {
        true => lines.push(format!("engine: none was chosen yet for {suite}; the first jobs measure them")),
        false => {
            lines.insert(0, format!("engines that cost the worker the least and are back within {bound}:"))
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_job_goes_to_the_first_engine_or_to_the_one_that_costs_the_least() {
        assert!(lines(&Value::Null).is_empty());
        let mut placement = json!({ "suite": "aes128gcm16", "first": "vaes", "by_length": null });
        assert_eq!(lines(&placement), ["engine vaes: the first in service that does aes128gcm16"]);
        placement["gathering"] = json!({ "vaes": null });
        assert_eq!(lines(&placement).len(), 1);
        placement["threading"] = json!({ "in_words": "run to completion", "why": "auto: no load" });
        assert_eq!(lines(&placement)[1..], ["threading: run to completion (auto: no load)"]);
        placement["threading"] = Value::Null;
        let (chunk, bins, range_bytes) = (4096, 64, 256);
        let tuned = json!({ "chunk": chunk, "bins": bins, "range_bytes": range_bytes, "changes": 3, "lanes_used": 0.834 });
        placement["gathering"] = json!({ "vaes": tuned });
        let words = "vaes gets chunks of 4,096 packets in 64 bins, ranges of 256 bytes (self-tuned, 3 changes; lanes 83 % used)";
        assert_eq!(lines(&placement)[1], words);
        placement["gathering"]["vaes"]["changes"] = Value::Null;
        assert!(lines(&placement)[1].ends_with("ranges of 256 bytes"));
        let late = |direction, up_to: Value| json!({ "suite": "aes128gcm16", "direction": direction, "up_to_bytes": up_to });
        placement["gathering"]["vaes"]["late"] = json!([
            late("outbound", json!(1536)),
            late("inbound", json!(1536)),
            late("outbound", Value::Null)
        ]);
        let words = [
            "vaes had aes128gcm16 outbound (up to 1,536 B, longer) back too late: the next engine gets it, and vaes a few to try",
            "vaes had aes128gcm16 inbound (up to 1,536 B) back too late: the next engine gets it, and vaes a few to try",
        ];
        assert_eq!(lines(&placement)[2..], words);
        placement["gathering"] = Value::Null;
        placement["only"] = json!(true);
        assert_eq!(lines(&placement), ["engine vaes: the only one in service that does aes128gcm16"]);
        placement["first"] = Value::Null;
        assert!(lines(&placement).is_empty(), "no engine does it");
        placement["latency_ns"] = json!(1_000_000);
        placement["by_length"] = json!([]);
        assert_eq!(lines(&placement).len(), 1);
        let row = |up_to: Value, engine, ns: [u64; 2], chosen| {
            let [cost, expected] = ns;
            json!({
                "up_to_bytes": up_to, "engine": engine, "cost_ns": cost, "expected_ns": expected, "chosen": chosen,
            })
        };
        placement["by_length"] = json!([
            row(json!(64), "gpu", [100, 210_020], true),
            row(json!(64), "vaes", [250, 250], false),
            row(Value::Null, "vaes", [900, 900], true),
        ]);
        let expected = [
            "engines that cost the worker the least and are back within 1,000.0 us:",
            "aes128gcm16 up to 64 B: gpu (back in 210.1 us, costs the worker 0.1 us); else vaes (back in 0.3 us, costs the worker 0.3 us)",
            "aes128gcm16 longer: vaes (back in 0.9 us, costs the worker 0.9 us)",
        ];
        assert_eq!(lines(&placement), expected);
    }
}
