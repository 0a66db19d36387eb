//! How the packet scheduler gathers packets for an engine, as `status` and `explain` tell it.

use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use testudo_crypto::Direction;
use testudo_gateway::{LateJobs, Scheduled};

/// Null before the first chunk. `changes` and `lanes_used` are null without self-tuning, and the latter
/// before a chunk was full. `late` are jobs that go to the next engine, as this one had them back too late.
pub(super) fn gathering<'l>(scheduled: &Scheduled, late: impl IntoIterator<Item = &'l LateJobs>) -> Value {
    if scheduled.chunk == 0 {
        return Value::Null;
    }
    json!({
        "chunk": scheduled.chunk, "bins": scheduled.bins, "range_bytes": scheduled.range_bytes,
        "changes": scheduled.changes,
        "lanes_used": scheduled.lanes_permille.map(|permille| permille as f64 / 1000.0),
        "late": late.into_iter().map(late_jobs).collect::<Vec<_>>(),
    })
}

fn late_jobs(late: &LateJobs) -> Value {
    let direction = if late.direction == Direction::Seal { "outbound" } else { "inbound" };
    json!({ "suite": late.suite.to_string(), "direction": direction, "up_to_bytes": late.longest() })
}

/// `placement` of a suite with how packets are gathered for each of its engines that has bins.
pub(super) fn beside(
    mut placement: Value,
    scheduled: &BTreeMap<&'static str, Scheduled>,
    late: &BTreeMap<&'static str, Vec<LateJobs>>,
) -> Value {
    let suite = placement["suite"].as_str().unwrap_or_default().to_owned();
    let of_suite = |engine: &str| {
        let late = late.get(engine).into_iter().flatten();
        late.filter(|late| late.suite.to_string() == suite).collect::<Vec<_>>()
    };
    let rows = placement["by_length"].as_array().into_iter().flatten();
    let named: Vec<&Value> = rows.map(|row| &row["engine"]).chain([&placement["first"]]).collect();
    let is_named = |engine: &&str| named.iter().any(|name| name.as_str() == Some(engine));
    let all = scheduled.iter().filter(|(engine, _)| is_named(engine));
    let all: Map<_, _> =
        all.map(|(engine, one)| ((*engine).to_owned(), gathering(one, of_suite(engine)))).collect();
    if let Some(members) = placement.as_object_mut() {
        members.insert("gathering".to_owned(), all.into());
    }
    placement
}

#[cfg(test)]
mod tests {
    use super::*;
    use testudo_crypto::Suite;

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
        assert!(gathering(&Scheduled::default(), []).is_null());
        let expected = json!({
            "chunk": 4096, "bins": 64, "range_bytes": 256, "changes": 3, "lanes_used": 0.83, "late": [],
        });
        assert_eq!(gathering(&scheduled(), []), expected);
        let fixed = gathering(&Scheduled { changes: None, lanes_permille: None, ..scheduled() }, []);
        assert!(fixed["changes"].is_null() && fixed["lanes_used"].is_null());
    }

    /// What has come back too late goes to the next engine, whichever is the first one.
    #[test]
    fn an_explanation_has_what_is_late_of_the_suite_that_it_is_of() {
        let late = |suite, class| LateJobs { suite, direction: Direction::Open, class };
        let late = [late(Suite::AES128GCM16, 6), late(Suite::NULL_SHA1, 0), late(Suite::AES128GCM16, 5)];
        let (scheduled, late) =
            (BTreeMap::from([("gpu", scheduled())]), BTreeMap::from([("gpu", late.to_vec())]));
        let of = |suite: &str| {
            let placement = json!({ "suite": suite, "first": "gpu", "by_length": null });
            beside(placement, &scheduled, &late)["gathering"]["gpu"]["late"].clone()
        };
        let row =
            |up_to: Value| json!({ "suite": "aes128gcm16", "direction": "inbound", "up_to_bytes": up_to });
        assert_eq!(of("aes128gcm16"), json!([row(Value::Null), row(json!(1536))]));
        assert_eq!(of("aes256gcm16"), json!([]));
    }

    #[test]
    fn an_explanation_has_it_for_engines_that_the_suite_may_go_to() {
        let all = BTreeMap::from([("gpu", scheduled())]);
        let of = |placement| beside(placement, &all, &BTreeMap::new())["gathering"]["gpu"]["chunk"].as_u64();
        assert_eq!(of(json!({ "first": "gpu", "by_length": null })), Some(4096));
        assert_eq!(of(json!({ "first": null, "by_length": [{ "engine": "gpu" }] })), Some(4096));
        assert_eq!(of(json!({ "first": "vaes", "by_length": null })), None);
        assert!(beside(Value::Null, &all, &BTreeMap::new()).is_null());
    }
}
