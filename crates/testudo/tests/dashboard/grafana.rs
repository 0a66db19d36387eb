//! `contrib/grafana/testudo.json` beside what a gateway exports.

use crate::http::ask;
use crate::support::link::Link;
use crate::support::{Outcome, ensure};
use crate::{METRICS, busy_pair, stop};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use testudo_judge::harness::{Suite, TestResult};

const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../contrib/grafana/testudo.json");

pub fn tests<'a>(suite: Suite<'a, Link>) -> Suite<'a, Link> {
    suite.test(
        "grafanas_dashboard_names_only_metrics_and_labels_that_the_gateway_exports",
        names_what_there_is,
    )
}

/// The names of a page's samples, each with the names of its labels.
fn samples(page: &str) -> BTreeMap<String, BTreeSet<String>> {
    let mut samples: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for line in page.lines().filter(|line| !line.starts_with('#')) {
        let Some((sample, _)) = line.rsplit_once(' ') else { continue };
        let (name, labels) = sample.split_once('{').unwrap_or((sample, ""));
        let names = labels.split("\",").filter_map(|label| Some(label.split_once("=\"")?.0.to_owned()));
        samples.entry(name.to_owned()).or_default().extend(names);
    }
    samples
}

fn words(expression: &str) -> impl Iterator<Item = &str> {
    expression.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).filter(|word| !word.is_empty())
}

/// What stands between `begin` and `end`, each time.
fn between<'t>(text: &'t str, begin: &'t str, end: char) -> Vec<&'t str> {
    text.split(begin).skip(1).filter_map(|rest| rest.split(end).next()).collect()
}

fn check_query(panel: &str, target: &Value, exported: &BTreeMap<String, BTreeSet<String>>) -> Outcome<usize> {
    let expression = target["expr"].as_str().ok_or_else(|| format!("{panel} has no query"))?;
    let metrics: Vec<_> = words(expression).filter(|word| word.starts_with("testudo_")).collect();
    ensure(!metrics.is_empty(), || format!("{panel}: {expression} names no metric"))?;
    let mut labels = BTreeSet::new();
    for metric in &metrics {
        let of_metric = exported.get(*metric);
        let of_metric = of_metric.ok_or_else(|| format!("{panel}: the gateway exports no {metric}"))?;
        labels.extend(of_metric.iter().map(String::as_str).chain(["instance", "job"]));
    }
    let legend = target["legendFormat"].as_str().unwrap_or_default();
    let by = between(expression, "by (", ')').into_iter().chain(between(expression, "on (", ')'));
    let matches = between(expression, "{", '}').into_iter().flat_map(|inside| inside.split(','));
    let matched = matches.map(|one| one.split('=').next().unwrap_or_default());
    let named = by.flat_map(words).chain(matched).chain(between(legend, "{{", '}'));
    for label in named.map(str::trim) {
        ensure(labels.contains(label), || format!("{panel}: none of {metrics:?} has the label {label}"))?;
    }
    // Sums of rates, not of counters; a counter without a rate only grows.
    let counters = metrics.iter().filter(|metric| metric.ends_with("_total")).count();
    ensure(counters == expression.matches("rate(").count(), || {
        format!("{panel}: {expression} has a counter without a rate")
    })?;
    Ok(metrics.len())
}

fn names_what_there_is(link: &mut Link) -> TestResult {
    let pair = busy_pair(link)?;
    let (_, page) = ask(&link.a, METRICS, "/metrics")?;
    let mut exported = samples(&page);
    // Its samples are of reasons that have occurred, each with the labels of its SA.
    ensure(page.contains("# TYPE testudo_sa_dropped counter"), || page.clone())?;
    let mut labels = exported.get("testudo_sa_packets_total").cloned().ok_or("no SAs")?;
    labels.insert("reason".to_owned());
    exported.insert("testudo_sa_dropped_total".to_owned(), labels);
    // Fast ports alone have it, with the labels of
    // `each_reason_for_which_a_device_loses_packets_has_its_counter`.
    let of_queues = ["side", "port", "kind", "queue", "reason"].map(str::to_owned);
    exported.insert("testudo_port_queue_drops_total".to_owned(), of_queues.into());
    ensure(exported.len() > 30, || page.clone())?;
    let dashboard: Value = serde_json::from_str(&std::fs::read_to_string(FILE)?)?;
    let panels = dashboard["panels"].as_array().ok_or("no panels")?;
    let (mut ids, mut places, mut queries) = (BTreeSet::new(), BTreeSet::new(), 0);
    for panel in panels {
        let title = panel["title"].as_str().ok_or("a panel without a title")?;
        ensure(ids.insert(panel["id"].as_u64()), || format!("{title}: its id is another's"))?;
        let place = &panel["gridPos"];
        let number = |key: &str| place[key].as_u64().ok_or_else(|| format!("{title}: no {key}"));
        for (x, y) in (0..number("w")?).flat_map(|x| (0..number("h").unwrap_or(0)).map(move |y| (x, y))) {
            let is_free = places.insert((number("x")? + x, number("y")? + y));
            ensure(is_free && number("x")? + x < 24, || format!("{title} lies on another panel"))?;
        }
        ensure(panel["datasource"]["uid"] == "${datasource}", || {
            format!("{title}: its data source is fixed")
        })?;
        ensure(panel["fieldConfig"]["defaults"]["unit"].is_string(), || format!("{title} has no unit"))?;
        let targets = panel["targets"].as_array().ok_or_else(|| format!("{title} asks nothing"))?;
        ensure(!targets.is_empty(), || format!("{title} asks nothing"))?;
        for target in targets {
            queries += check_query(title, target, &exported)?;
        }
    }
    ensure(queries >= 20, || format!("only {queries} metrics are shown"))?;
    let variables = dashboard["templating"]["list"].as_array().ok_or("no variables")?;
    let instance = variables.iter().find(|one| one["name"] == "instance").ok_or("no choice of gateways")?;
    let metric =
        instance["definition"].as_str().map(|text| between(text, "label_values(", ',')).unwrap_or_default();
    ensure(metric.iter().all(|name| exported.contains_key(*name)) && metric.len() == 1, || {
        format!("{instance}")
    })?;
    stop(pair)
}
