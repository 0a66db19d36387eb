//! The late engine, when it is not configured to fail, passes the suite: lateness and disorder alone break
//! nothing. So does the suite's own driver with an asynchronous engine.

use testudo_conformance::{differential, run, run_only};
use testudo_crypto::{Engine, PortableEngine};
use testudo_engine_late::{LateConfig, LateEngine, Order};

const SEED: u64 = 77;

fn late(config: LateConfig) -> Box<dyn Engine> {
    println!("{config:?}");
    Box::new(LateEngine::new(Box::new(PortableEngine::new()), config))
}

#[test]
fn the_late_engine_conforms() {
    run(&mut || late(LateConfig::reliable(SEED))).assert_passed();
}

#[test]
fn the_late_engine_with_a_short_queue_and_order_within_keys_conforms() {
    let config = LateConfig { queue_jobs: 7, order: Order::WithinKeys, ..LateConfig::reliable(SEED) };
    let checks = [
        "self-test",
        "official vectors",
        "empty and refused bursts",
        "undeserved jobs fault",
        "mixed batches",
    ];
    run_only(&mut || late(config), &checks).assert_passed();
}

#[test]
fn the_late_engine_agrees_with_the_engine_that_it_wraps() {
    let compared = differential(late(LateConfig::reliable(SEED)).as_mut(), &mut PortableEngine::new(), SEED);
    assert_eq!(compared, Ok(2_000));
}

#[test]
fn the_suite_notices_an_engine_that_fails() {
    let report = run_only(&mut || late(LateConfig::unreliable(SEED)), &["mixed batches"]);
    println!("{report}");
    assert!(!report.passed());
}
