//! The same simulations over an engine that answers late, out of order, and fails at will.

use crate::support::TunnelSpec;
use crate::support::random::seed;
use crate::{Scenario, name, run};
use std::sync::{Arc, Mutex, MutexGuard};
use testudo_crypto::{
    Capability, Direction, Engine, EngineError, Job, KeyId, KeyMaterial, PortableEngine, Suite,
};
use testudo_engine_late::{LateConfig, LateEngine, Order};
use testudo_wire::ip::Version;

/// A late engine that the test keeps a hand on.
#[derive(Clone)]
struct Shared(Arc<Mutex<LateEngine>>);

impl Shared {
    fn new(config: LateConfig) -> Self {
        Self(Arc::new(Mutex::new(LateEngine::new(Box::new(PortableEngine::new()), config))))
    }

    fn engine(&self) -> MutexGuard<'_, LateEngine> {
        self.0.lock().expect("no test panics with the engine in its hands")
    }
}

impl Engine for Shared {
    fn name(&self) -> &'static str {
        self.engine().name()
    }

    fn description(&self) -> String {
        self.engine().description()
    }

    fn capability(&self, suite: Suite) -> Option<Capability> {
        self.engine().capability(suite)
    }

    fn install(&mut self, key: &KeyMaterial, direction: Direction) -> Result<KeyId, EngineError> {
        self.engine().install(key, direction)
    }

    fn remove(&mut self, key: KeyId) {
        self.engine().remove(key);
    }

    fn submit(&mut self, jobs: &mut [Job]) -> usize {
        self.engine().submit(jobs)
    }

    fn poll(&mut self, done: &mut Vec<Job>, max: usize) {
        self.engine().poll(done, max);
    }

    fn in_flight(&self) -> usize {
        self.engine().in_flight()
    }
}

fn scenarios() -> Vec<Scenario> {
    let mut scenarios = Vec::new();
    for suite in Suite::ALL.iter().copied() {
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
            });
        }
    }
    scenarios
}

/// Runs every scenario on a late engine with the portable one behind it.
fn run_late(test: &str, config: impl Fn(u64) -> LateConfig, fails_midway: bool) {
    for scenario in scenarios() {
        let alive: Arc<Mutex<Vec<Shared>>> = Arc::default();
        let mut engines = |seed| {
            let late = Shared::new(config(seed));
            alive.lock().expect("the list").push(late.clone());
            vec![Box::new(late) as Box<dyn Engine>, Box::new(PortableEngine::new())]
        };
        // What a running engine does from now on; gateways that start later get a sound one.
        let fail = || {
            if fails_midway {
                alive.lock().expect("the list").iter().for_each(|e| e.engine().fail_all(true));
            }
        };
        let outcome = run(test, &scenario, &mut engines, fail);
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
