//! The same simulations over an engine that answers late, out of order, and fails as configured.

use crate::late_engine::SharedEngine;
use crate::pair::Equipment;
use crate::support::TunnelSpec;
use crate::support::random::seed;
use crate::support::suites::of_each_layout;
use crate::{Scenario, name, run};
use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use testudo_crypto::Engine;
use testudo_engine_late::{LateConfig, Order};
use testudo_gateway::{PlacementMode, Reason, SchedulerSettings};
use testudo_packet::{DropReason, Port};
use testudo_wire::ip::Version;

pub fn scenarios() -> Vec<Scenario> {
    let mut scenarios = Vec::new();
    for suite in of_each_layout() {
        for (outer, udp, esn, window) in
            [(Version::V4, false, true, 4096), (Version::V6, true, false, 64), (Version::V6, false, true, 64)]
        {
            let number = scenarios.len() as u64;
            scenarios.push(Scenario {
                seed: seed() ^ (number + 100) << 32,
                spec: TunnelSpec { outer, udp, esn, window, ..TunnelSpec::new(0, suite) },
                packets: 6_000,
                first_sequence: if esn { (1 << 32) - 3_000 } else { 1 },
                lease_block: 1_000,
                restarts: true,
                keeps: false,
                scheduler: SchedulerSettings::default(),
            });
        }
    }
    scenarios
}

/// Runs every scenario on a late engine with the portable one as the fallback.
fn run_late(test: &str, config: impl Fn(u64) -> LateConfig, fails_midway: bool) {
    run_all(test, scenarios(), config, fails_midway);
}

/// The same with the packet scheduler in the middle: chunks, bins and bounds are so small that bins are full,
/// packets are left over, and some wait too long.
///
/// A chunk is away for up to eight turns of a millisecond: bounds are longer, or the engine would have few.
pub fn scheduled() -> Vec<Scenario> {
    scheduled_within([9, 12, 30])
}

/// The same within bounds of so many milliseconds.
fn scheduled_within(bounds: [u64; 3]) -> Vec<Scenario> {
    let small = |(number, scenario): (usize, Scenario)| {
        let (chunk, bins) = [(32, 4), (64, 16), (16, 2)][number % 3];
        let range_bytes = [64, 256, 512, 1536][number % 4];
        let latency = Duration::from_millis(bounds[number / 3 % 3]);
        Scenario {
            scheduler: SchedulerSettings {
                chunk,
                bins,
                range_bytes,
                latency,
                ..SchedulerSettings::default()
            },
            ..scenario
        }
    };
    scenarios().into_iter().enumerate().map(small).collect()
}

/// Jobs that such an engine wants.
pub fn deep(config: LateConfig) -> LateConfig {
    LateConfig { depth_jobs: 4096, ..config }
}

fn run_all(
    test: &str,
    all: Vec<Scenario>,
    config: impl Fn(u64) -> LateConfig,
    fails_midway: bool,
) -> HashMap<(&'static str, Reason), u64> {
    let equip = |late: SharedEngine, _, port| Equipment { engines: late.before_portable(), port };
    run_equipped(test, all, config, fails_midway, equip)
}

/// The same for gateways that have the engine as `with` says.
pub fn run_equipped(
    test: &str,
    all: Vec<Scenario>,
    config: impl Fn(u64) -> LateConfig,
    fails_midway: bool,
    with: impl Fn(SharedEngine, u64, Box<dyn Port>) -> Equipment,
) -> HashMap<(&'static str, Reason), u64> {
    let mut placed = HashMap::new();
    for scenario in all {
        let alive: Arc<Mutex<Vec<SharedEngine>>> = Arc::default();
        let mut equip = |seed, port| {
            let late = SharedEngine::new(config(seed));
            alive.lock().expect("the list").push(late.clone());
            with(late, seed, port)
        };
        // Applies to running engines from now on; gateways that start later get a reliable one.
        let fail = || {
            if fails_midway {
                alive.lock().expect("the list").iter().for_each(|e| e.engine().fail_all(true));
            }
        };
        let outcome = run(test, &scenario, &mut equip, fail);
        assert!(
            outcome.delivered * 2 > outcome.sent,
            "{}: too little went through: {outcome:?}",
            name(&scenario)
        );
        outcome.placed.into_iter().for_each(|(of, jobs)| *placed.entry(of).or_default() += jobs);
    }
    placed
}

#[test]
fn a_late_engine_loses_nothing_and_keeps_the_order() {
    run_late("a_late_engine_loses", LateConfig::reliable, false);
}

#[test]
fn an_unreliable_engine_loses_nothing_and_keeps_the_order() {
    run_late("an_unreliable_engine", LateConfig::unreliable, false);
}

#[test]
fn an_engine_that_dies_midway_loses_nothing() {
    run_late("an_engine_that_dies", LateConfig::reliable, true);
}

#[test]
fn an_engine_with_a_short_queue_hands_over_what_it_cannot_take() {
    let config =
        |seed| LateConfig { queue_jobs: 7, polls_max: 3, order: Order::Any, ..LateConfig::unreliable(seed) };
    run_late("an_engine_with_a_short_queue", config, false);
}

#[test]
fn a_deep_engine_loses_nothing_and_keeps_the_order() {
    run_all("a_deep_engine_loses", scheduled(), |seed| deep(LateConfig::reliable(seed)), false);
}

#[test]
fn an_unreliable_deep_engine_with_a_short_queue_loses_nothing_and_keeps_the_order() {
    let config =
        |seed| deep(LateConfig { queue_jobs: 20, order: Order::Any, ..LateConfig::unreliable(seed) });
    run_all("an_unreliable_deep_engine", scheduled(), config, false);
}

#[test]
fn a_deep_engine_that_dies_midway_loses_nothing() {
    run_all("a_deep_engine_that_dies", scheduled(), |seed| deep(LateConfig::reliable(seed)), true);
}

/// One job in a hundred is kept. Half-way through, when both gateways have taken their engines out of
/// service, all kept jobs are given back.
#[test]
fn an_engine_that_keeps_jobs_stops_no_tunnel_and_nothing_comes_twice() {
    run_keeping("an_engine_that_keeps_jobs", scenarios(), |config| config);
}

#[test]
fn a_deep_engine_that_keeps_jobs_stops_no_tunnel_and_nothing_comes_twice() {
    run_keeping("a_deep_engine_that_keeps_jobs", scheduled(), deep);
}

fn run_keeping(test: &str, all: Vec<Scenario>, change: fn(LateConfig) -> LateConfig) {
    let mut withdrawn = 0;
    for scenario in all {
        let mut scenario = Scenario { restarts: false, keeps: true, ..scenario };
        if scenario.scheduler.placement == PlacementMode::First {
            // Turns are five times as long, too.
            scenario.scheduler.latency *= 5;
        }
        let (alive, mut kept): (Arc<Mutex<Vec<SharedEngine>>>, _) = (Arc::default(), 0);
        let list = || alive.lock().expect("the list");
        let mut equip = |seed, port| {
            let config = LateConfig { kept_per_million: 10_000, ..LateConfig::unreliable(seed) };
            let late = SharedEngine::new(change(config));
            list().push(late.clone());
            Equipment { engines: late.before_portable(), port }
        };
        let give_back = || {
            kept = list().iter().map(|engine| engine.in_flight()).sum();
            list().iter().for_each(|engine| engine.engine().give_back_kept());
        };
        let outcome = run(test, &scenario, &mut equip, give_back);
        assert!(outcome.delivered * 2 > outcome.sent, "{}: {outcome:?}", name(&scenario));
        let lost = outcome.refused.get(&DropReason::EngineFault).copied().unwrap_or(0);
        // One that is placed by its cost gets little more once it has kept a job: perhaps none in the time
        // after which it is taken out of service.
        if scenario.scheduler.placement == PlacementMode::First {
            assert_eq!(outcome.withdrawn_midway, 2, "{}: {outcome:?}", name(&scenario));
            assert!(kept > 0 && lost == kept as u64, "{kept} kept, {lost} counted");
            assert!(list().iter().all(|engine| engine.in_flight() == 0), "what came back was taken");
        }
        withdrawn += outcome.withdrawn_midway;
    }
    assert!(withdrawn > 0, "no engine was taken out of service");
}

/// Engines placed by what they cost, in a simulation whose processor takes a random time for everything.
fn live() -> Vec<Scenario> {
    let live = |scenario: Scenario| {
        let scheduler = SchedulerSettings { placement: PlacementMode::Live, ..scenario.scheduler };
        Scenario { scheduler, ..scenario }
    };
    scheduled_within([1, 3, 30]).into_iter().step_by(2).map(live).collect()
}

#[test]
fn engines_placed_by_cost_lose_nothing_and_keep_the_order() {
    let name = "engines_placed_by_cost_lose_nothing";
    let placed = run_all(name, live(), LateConfig::reliable, false);
    for engine in ["late", "portable"] {
        let jobs = placed.get(&(engine, Reason::Best)).copied().unwrap_or(0);
        assert!(jobs > 1_000, "{engine} was the best for {jobs} jobs: {placed:?}");
    }
    assert!(placed.iter().any(|((_, reason), jobs)| *reason == Reason::Measured && *jobs > 0), "{placed:?}");
    assert!(placed.iter().any(|((_, reason), jobs)| *reason == Reason::Late && *jobs > 0), "{placed:?}");
}

#[test]
fn unreliable_engines_placed_by_cost_lose_nothing_and_keep_the_order() {
    let config = |seed| LateConfig { queue_jobs: 20, ..LateConfig::unreliable(seed) };
    let placed = run_all("unreliable_engines_placed_by_cost", live(), config, false);
    for reason in [Reason::Full, Reason::Failed] {
        let jobs = placed.get(&("portable", reason)).copied().unwrap_or(0);
        assert!(jobs > 100, "{jobs} jobs of {reason:?}: {placed:?}");
    }
    let config =
        |seed| deep(LateConfig { queue_jobs: 20, order: Order::Any, ..LateConfig::unreliable(seed) });
    run_all("unreliable_engines_placed_by_cost", live(), config, false);
}

#[test]
fn an_engine_placed_by_cost_that_dies_midway_loses_nothing() {
    run_all("an_engine_placed_by_cost_that_dies", live(), LateConfig::reliable, true);
    run_all("an_engine_placed_by_cost_that_dies", live(), |seed| deep(LateConfig::reliable(seed)), true);
}

#[test]
fn an_engine_placed_by_cost_that_keeps_jobs_stops_no_tunnel_and_nothing_comes_twice() {
    run_keeping("an_engine_placed_by_cost_that_keeps_jobs", live(), |config| config);
}
