//! How the packet scheduler gathers packets for an engine, as `status` and `explain` tell it.

use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use testudo_gateway::Scheduled;

/// Null before the first chunk. `changes` and `lanes_used` are null without self-tuning, and the latter
/// before a chunk was full.
pub(super) fn gathering(scheduled: &Scheduled) -> Value {
    if scheduled.chunk == 0 {
        return Value::Null;
    }
    json!({
        "chunk": scheduled.chunk, "bins": scheduled.bins, "range_bytes": scheduled.range_bytes,
        "changes": scheduled.changes,
        "lanes_used": scheduled.lanes_permille.map(|permille| permille as f64 / 1000.0),
    })
}

/// `placement` of a suite with how packets are gathered for each of its engines that has bins.
pub(super) fn beside(mut placement: Value, scheduled: &BTreeMap<&'static str, Scheduled>) -> Value {
    let rows = placement["by_length"].as_array().into_iter().flatten();
    let named: Vec<&Value> = rows.map(|row| &row["engine"]).chain([&placement["first"]]).collect();
    let is_named = |engine: &&str| named.iter().any(|name| name.as_str() == Some(engine));
    let all = scheduled.iter().filter(|(engine, _)| is_named(engine));
    let all: Map<_, _> = all.map(|(engine, one)| ((*engine).to_owned(), gathering(one))).collect();
    if let Some(members) = placement.as_object_mut() {
        members.insert("gathering".to_owned(), all.into());
    }
    placement
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scheduled() -> Scheduled {
        let (chunk, bins, range_bytes) = (4096, 64, 256);
        Scheduled {
            chunk,
            bins,
            range_bytes,
            changes: Some(3),
            lanes_permille: Some(830),
            ..Scheduled::default()
        }
    }

    #[test]
    fn gathering_is_told_once_there_was_a_chunk() {
        assert!(gathering(&Scheduled::default()).is_null());
        let expected =
            json!({ "chunk": 4096, "bins": 64, "range_bytes": 256, "changes": 3, "lanes_used": 0.83 });
        assert_eq!(gathering(&scheduled()), expected);
        let fixed = Scheduled { changes: None, lanes_permille: None, ..scheduled() };
        assert!(gathering(&fixed)["changes"].is_null() && gathering(&fixed)["lanes_used"].is_null());
    }

    #[test]
    fn an_explanation_has_it_for_engines_that_the_suite_may_go_to() {
        let all = BTreeMap::from([("gpu", scheduled())]);
        let of = |placement| beside(placement, &all)["gathering"]["gpu"]["chunk"].as_u64();
        assert_eq!(of(json!({ "first": "gpu", "by_length": null })), Some(4096));
        assert_eq!(of(json!({ "first": null, "by_length": [{ "engine": "gpu" }] })), Some(4096));
        assert_eq!(of(json!({ "first": "vaes", "by_length": null })), None);
        assert!(beside(Value::Null, &all).is_null());
    }
}
