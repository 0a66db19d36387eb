//! Which engine does what share of the jobs, and why, where they are placed by what they cost.

use super::report::EnginesInService;
use serde_json::{Map, Value, json};
use std::time::Duration;
use testudo_crypto::Suite;
use testudo_gateway::{Reason, Share, Shares};

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

fn row(share: &Share) -> Value {
    let reasons = Reason::ALL.into_iter().zip(share.jobs).filter(|(_, jobs)| *jobs > 0);
    let reasons: Map<_, _> = reasons.map(|(reason, jobs)| (reason.name().to_owned(), json!(jobs))).collect();
    json!({
        "suite": share.suite.to_string(),
        "up_to_bytes": share.longest(),
        "engine": share.engine,
        "in_service": share.in_service,
        "jobs": share.total(),
        "passed_on": share.passed_on,
        "reasons": reasons,
        "cost_ns": share.cost.map(nanoseconds),
        "expected_ns": share.expected.map(nanoseconds),
        "chosen": share.is_chosen,
    })
}

/// For `status`: null where the order of engines decides.
pub(super) fn status(shares: Option<&Shares>) -> Value {
    let of = |shares: &Shares| {
        json!({
            "latency_ns": nanoseconds(shares.bound),
            "apart_ns": nanoseconds(shares.apart),
            "shares": shares.rows.iter().map(row).collect::<Vec<_>>(),
        })
    };
    shares.map_or(Value::Null, of)
}

/// For `explain`: which engine a job of an SA with this suite would go to, by the length of its text where
/// several could do it and jobs are placed by what they cost.
pub(super) fn of_suite(suite: Suite, engines: &EnginesInService<'_>) -> Value {
    let shares = engines.shares_of(suite);
    let rows = shares.map(|shares| shares.of(suite).filter(|share| share.in_service).map(row));
    json!({
        "suite": suite.to_string(),
        "first": shares.is_none().then(|| engines.name_for(suite)).flatten(),
        "only": engines.count_for(suite) == 1,
        "latency_ns": shares.map(|shares| nanoseconds(shares.bound)),
        "by_length": rows.map(Iterator::collect::<Vec<_>>),
    })
}

/// For SAs: the engine of its packets. Several where they are placed by what they cost, and none before any
/// is chosen.
pub(super) fn of_sa(suite: Suite, engines: &EnginesInService<'_>) -> Option<String> {
    let Some(shares) = engines.shares_of(suite) else { return engines.name_for(suite).map(str::to_owned) };
    let mut names = Vec::new();
    for share in shares.of(suite).filter(|share| share.is_chosen) {
        if !names.contains(&share.engine) {
            names.push(share.engine);
        }
    }
    (!names.is_empty()).then(|| names.join("/"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use testudo_gateway::EngineReport;

    fn shares() -> Shares {
        let us = Duration::from_micros;
        let share = |suite, engine, expected, is_chosen| Share {
            suite,
            class: 1,
            engine,
            jobs: [0, 7, 2, 0, 0, 0, 0, 1],
            passed_on: 3,
            cost: Some(us(3)),
            expected,
            is_chosen,
            in_service: true,
        };
        let rows = vec![
            share(Suite::AES128GCM16, "gpu", Some(us(200)), true),
            Share { class: 6, ..share(Suite::NULL_SHA1, "portable", None, false) },
        ];
        Shares { bound: us(1000), apart: us(5), rows }
    }

    #[test]
    fn who_does_what_share_and_why_is_in_the_status() {
        assert_eq!(status(None), Value::Null);
        let status = status(Some(&shares()));
        assert_eq!([&status["latency_ns"], &status["apart_ns"]], [1_000_000, 5_000]);
        let expected = json!({
            "suite": "aes128gcm16", "up_to_bytes": 128, "engine": "gpu", "in_service": true, "jobs": 10,
            "passed_on": 3, "reasons": { "best": 7, "full": 2, "measured": 1 }, "cost_ns": 3_000, "expected_ns": 200_000,
            "chosen": true,
        });
        assert_eq!(status["shares"][0], expected);
        let [length, time] = [&status["shares"][1]["up_to_bytes"], &status["shares"][1]["expected_ns"]];
        assert!(length.is_null() && time.is_null());
    }

    const SUITE: Suite = Suite::AES128GCM16;

    fn reports() -> [EngineReport; 2] {
        ["vaes", "gpu"].map(|name| EngineReport {
            name: name.to_owned(),
            in_use: true,
            detail: String::new(),
            suites: vec![SUITE],
        })
    }

    #[test]
    fn where_a_job_would_go_is_told_by_length_or_by_the_order_of_engines() {
        let reports = reports();
        let by_order = of_suite(SUITE, &EnginesInService::new(&reports, &[]));
        assert_eq!([&by_order["first"], &by_order["only"]], [&json!("vaes"), &json!(false)]);
        assert!(by_order["by_length"].is_null() && by_order["latency_ns"].is_null());
        let by_cost = of_suite(SUITE, &EnginesInService::new(&reports, &[]).placing(Some(shares())));
        assert_eq!(by_cost["by_length"].as_array().map(Vec::len), Some(1), "only of its suite");
        assert_eq!(by_cost["by_length"][0]["engine"], "gpu");
        assert!(by_cost["first"].is_null(), "there is no order");
    }

    /// Their jobs are not decided of one by one, so that none is ever chosen.
    #[test]
    fn a_suite_that_one_engine_does_has_that_one() {
        let reports = reports();
        let one = EnginesInService::new(&reports, &["vaes"]).placing(Some(shares()));
        let told = of_suite(SUITE, &one);
        assert_eq!(
            [&told["first"], &told["only"], &told["by_length"]],
            [&json!("gpu"), &json!(true), &Value::Null]
        );
        assert_eq!(of_sa(SUITE, &one).as_deref(), Some("gpu"));
        let none = of_suite(Suite::NULL_SHA1, &one);
        assert_eq!([&none["first"], &none["only"]], [&Value::Null, &json!(false)]);
    }

    #[test]
    fn an_engine_out_of_service_is_not_where_a_job_would_go() {
        let (reports, mut shares) = (reports(), shares());
        shares.rows[0].in_service = false;
        let told = of_suite(SUITE, &EnginesInService::new(&reports, &[]).placing(Some(shares)));
        assert_eq!(told["by_length"], json!([]));
    }

    #[test]
    fn the_engines_of_an_sa_are_those_that_are_chosen_and_not_the_first_in_the_configuration() {
        let (reports, mut shares) = (reports(), shares());
        let of = |shares: &Shares| {
            of_sa(SUITE, &EnginesInService::new(&reports, &[]).placing(Some(shares.clone())))
        };
        assert_eq!(of(&shares).as_deref(), Some("gpu"));
        for (class, engine) in [(2, "vaes"), (3, "gpu")] {
            let more = Share { class, engine, ..shares.rows[0].clone() };
            shares.rows.push(more);
        }
        assert_eq!(of(&shares).as_deref(), Some("gpu/vaes"));
        shares.rows.clear();
        assert_eq!(of(&shares), None, "none is chosen yet");
        let by_order = EnginesInService::new(&reports, &[]);
        assert_eq!(of_sa(SUITE, &by_order).as_deref(), Some("vaes"));
    }
}
