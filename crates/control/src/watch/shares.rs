//! Which engine does what share of the jobs, and why, where they are placed by what they cost.

use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

/// What each engine was given, of all suites and lengths.
pub type Placed = BTreeMap<String, Given>;

/// What an engine was given.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Given {
    /// Jobs by reason.
    reasons: BTreeMap<String, u64>,
    /// How many of them went on to another engine, where they are counted, too.
    passed_on: u64,
}

/// What an engine did between two readings.
#[derive(Debug, Clone, PartialEq)]
pub struct EngineShare {
    /// Its name.
    pub engine: String,
    /// Of all jobs, 0 to 1.
    pub share: f64,
    /// The same by reason, the largest first.
    pub reasons: Vec<(String, f64)>,
}

/// Reads the status' `placement`: nothing where the order of engines decides, and in older gateways.
#[must_use]
pub fn read(placement: &Value) -> Placed {
    let mut placed = Placed::new();
    for row in placement["shares"].as_array().into_iter().flatten() {
        let Some(engine) = row["engine"].as_str() else { continue };
        let given = placed.entry(engine.to_owned()).or_default();
        given.passed_on = given.passed_on.saturating_add(row["passed_on"].as_u64().unwrap_or(0));
        for (reason, jobs) in row["reasons"].as_object().into_iter().flatten() {
            let of = given.reasons.entry(reason.clone()).or_default();
            *of = of.saturating_add(jobs.as_u64().unwrap_or(0));
        }
    }
    placed
}

/// How packets are gathered for each engine with bins: reads the status' `engines`. Nothing in older
/// gateways, and before any was gathered.
pub fn gathered(engines: &Value) -> Vec<(String, Value)> {
    let of = |engine: &Value| {
        let gathering = &engine["scheduler"]["gathering"];
        gathering.is_object().then(|| Some((engine["name"].as_str()?.to_owned(), gathering.clone())))?
    };
    engines.as_array().into_iter().flatten().filter_map(of).collect()
}

impl Given {
    /// What it was given since an earlier reading.
    fn since(&self, earlier: Option<&Self>) -> Self {
        let before = |reason: &String| earlier.and_then(|given| given.reasons.get(reason)).copied();
        let of = |(reason, now): (&String, &u64)| {
            (reason.clone(), now.saturating_sub(before(reason).unwrap_or(0)))
        };
        let reasons = self.reasons.iter().map(of).filter(|(_, jobs)| *jobs > 0).collect();
        let passed_on = self.passed_on.saturating_sub(earlier.map_or(0, |given| given.passed_on));
        Self { reasons, passed_on }
    }

    fn total(&self) -> u64 {
        self.reasons.values().sum()
    }

    /// Jobs that stayed with it.
    fn done(&self) -> u64 {
        self.total().saturating_sub(self.passed_on)
    }
}

/// What happened between two readings; engines that did most first. A job is that of the engine that did it;
/// the reasons of an engine are in the proportions of all jobs that it was given.
#[must_use]
pub fn between(earlier: &Placed, later: &Placed) -> Vec<EngineShare> {
    let since = |(engine, given): (&String, &Given)| (engine.clone(), given.since(earlier.get(engine)));
    let given: Vec<_> = later.iter().map(since).filter(|(_, given)| given.done() > 0).collect();
    let all: u64 = given.iter().map(|(_, given)| given.done()).sum();
    let share = |(engine, given): (String, Given)| {
        let share = given.done() as f64 / all as f64;
        let part = |jobs: u64| share * jobs as f64 / given.total() as f64;
        let mut reasons: Vec<_> =
            given.reasons.iter().map(|(reason, jobs)| (reason.clone(), *jobs)).collect();
        reasons.sort_by_key(|(_, jobs)| std::cmp::Reverse(*jobs));
        let reasons = reasons.into_iter().map(|(reason, jobs)| (reason, part(jobs))).collect();
        EngineShare { engine, share, reasons }
    };
    let mut shares: Vec<_> = given.into_iter().map(share).collect();
    shares.sort_by(|a, b| b.share.total_cmp(&a.share));
    shares
}

fn percent(share: f64) -> String {
    format!("{:.0} %", share * 100.0)
}

/// For people; `None` if no job was placed.
#[must_use]
pub fn words(shares: &[EngineShare]) -> Option<String> {
    let of = |share: &EngineShare| {
        let reason = |(reason, part): &(String, f64)| format!("{reason} {}", percent(*part));
        let reasons: Vec<_> = share.reasons.iter().map(reason).collect();
        format!("{} {} ({})", share.engine, percent(share.share), reasons.join(", "))
    };
    let all: Vec<_> = shares.iter().map(of).collect();
    (!all.is_empty()).then(|| format!("engines by cost: {}", all.join("; ")))
}

/// For programs.
#[must_use]
pub fn json(shares: &[EngineShare]) -> Value {
    let of = |share: &EngineShare| {
        let reasons = share.reasons.iter().map(|(reason, part)| (reason.clone(), json!(part)));
        json!({ "engine": share.engine, "share": share.share, "reasons": reasons.collect::<Map<_, _>>() })
    };
    shares.iter().map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn placement(gpu: [u64; 2], vaes: u64) -> Placed {
        read(&json!({ "shares": [
            { "engine": "gpu", "reasons": { "best": gpu[0] } },
            { "engine": "vaes", "reasons": { "late": vaes, "measured": 1 } },
            { "engine": "gpu", "reasons": { "best": gpu[1] } },
        ] }))
    }

    #[test]
    fn who_does_what_share_and_why_is_of_the_time_between_two_readings() {
        assert!(read(&Value::Null).is_empty() && words(&[]).is_none());
        let shares = between(&placement([1000, 1], 7), &placement([1020, 11], 17));
        let words = words(&shares).unwrap();
        assert_eq!(words, "engines by cost: gpu 75 % (best 75 %); vaes 25 % (late 25 %)");
        assert_eq!(json(&shares)[0], json!({ "engine": "gpu", "share": 0.75, "reasons": { "best": 0.75 } }));
        let same = placement([5, 5], 5);
        assert_eq!(between(&same, &same), [], "no job, no share");
    }

    #[test]
    fn how_packets_are_gathered_is_read_of_engines_with_bins() {
        assert!(gathered(&Value::Null).is_empty());
        let gathering =
            json!({ "chunk": 2048, "bins": 32, "range_bytes": 256, "changes": 1, "lanes_used": 0.9 });
        let engines = json!([
            { "name": "gpu", "scheduler": { "gathering": gathering.clone() } },
            { "name": "cores", "scheduler": { "gathering": null } },
            { "name": "vaes", "scheduler": null },
        ]);
        assert_eq!(gathered(&engines), [("gpu".to_owned(), gathering)]);
    }

    /// What went on is counted where it was given first, and where it was done.
    #[test]
    fn a_job_that_went_on_is_of_the_engine_that_did_it() {
        let placement = |best: u64, passed_on: u64| {
            read(&json!({ "shares": [
                { "engine": "gpu", "passed_on": passed_on, "reasons": { "best": best, "late": best } },
                { "engine": "vaes", "passed_on": 0, "reasons": { "full": passed_on } },
            ] }))
        };
        let shares = between(&placement(10, 4), &placement(50, 24));
        let expected = "engines by cost: gpu 75 % (best 38 %, late 38 %); vaes 25 % (full 25 %)";
        assert_eq!(words(&shares).unwrap(), expected, "of 80 jobs 20 went on");
        assert_eq!(between(&placement(1, 1), &placement(2, 3)).len(), 1, "all of the other's went on");
    }
}
