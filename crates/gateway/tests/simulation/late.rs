//! The same simulations over an engine that answers late, out of order, and fails as configured.

use crate::late_engine::SharedEngine;
use crate::pair::Equipment;
use crate::support::TunnelSpec;
use crate::support::random::seed;
use crate::support::suites::of_each_layout;
use crate::{Scenario, name, run};
use std::sync::{Arc, Mutex};
use testudo_crypto::Engine;
use testudo_engine_late::{LateConfig, Order};
use testudo_packet::DropReason;
use testudo_wire::ip::Version;

fn scenarios() -> Vec<Scenario> {
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
            });
        }
    }
    scenarios
}

/// Runs every scenario on a late engine with the portable one as the fallback.
fn run_late(test: &str, config: impl Fn(u64) -> LateConfig, fails_midway: bool) {
    for scenario in scenarios() {
        let alive: Arc<Mutex<Vec<SharedEngine>>> = Arc::default();
        let mut equip = |seed, port| {
            let late = SharedEngine::new(config(seed));
            alive.lock().expect("the list").push(late.clone());
            Equipment { engines: late.before_portable(), port }
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
    }
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

/// One job in a hundred is kept. Half-way through, when both gateways have taken their engines out of
/// service, all kept jobs are given back.
#[test]
fn an_engine_that_keeps_jobs_stops_no_tunnel_and_nothing_comes_twice() {
    for scenario in scenarios() {
        let scenario = Scenario { restarts: false, keeps: true, ..scenario };
        let (alive, mut kept): (Arc<Mutex<Vec<SharedEngine>>>, _) = (Arc::default(), 0);
        let list = || alive.lock().expect("the list");
        let mut equip = |seed, port| {
            let config = LateConfig { kept_per_million: 10_000, ..LateConfig::unreliable(seed) };
            let late = SharedEngine::new(config);
            list().push(late.clone());
            Equipment { engines: late.before_portable(), port }
        };
        let give_back = || {
            kept = list().iter().map(|engine| engine.in_flight()).sum();
            list().iter().for_each(|engine| engine.engine().give_back_kept());
        };
        let outcome = run("an_engine_that_keeps_jobs", &scenario, &mut equip, give_back);
        assert!(outcome.delivered * 2 > outcome.sent, "{}: {outcome:?}", name(&scenario));
        assert_eq!(outcome.withdrawn_midway, 2, "{}: {outcome:?}", name(&scenario));
        let lost = outcome.refused.get(&DropReason::EngineFault).copied().unwrap_or(0);
        assert!(kept > 0 && lost == kept as u64, "{kept} kept, {lost} counted");
        assert!(list().iter().all(|engine| engine.in_flight() == 0), "what came back was taken");
    }
}
