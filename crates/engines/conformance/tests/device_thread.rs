//! An engine on a device thread passes the suite as it does without one, and agrees with the portable engine:
//! around engines that end jobs at once, late, and on a device (PoCL, whose absence fails these tests).

use std::sync::Arc;
use testudo_conformance::{differential, run, run_only};
use testudo_crypto::{Engine, PortableEngine};
use testudo_engine_device_thread::DeviceThread;
use testudo_engine_gpu::GpuConfig;
use testudo_engine_late::{LateConfig, LateEngine, Order};
use testudo_packet::Aside;

const SEED: u64 = 91;

fn apart(engine: Box<dyn Engine>) -> Box<dyn Engine> {
    Box::new(DeviceThread::over(engine, None))
}

fn late(config: LateConfig) -> Box<dyn Engine> {
    println!("{config:?}");
    apart(Box::new(LateEngine::new(Box::new(PortableEngine::new()), config)))
}

fn gpu() -> Box<dyn Engine> {
    let device = Some("Portable Computing Language".to_owned());
    match testudo_engine_gpu::open(&GpuConfig {
        device,
        keys: 12_000,
        batch_jobs: 512,
        ..GpuConfig::default()
    }) {
        Ok(engine) => apart(engine),
        Err(error) => panic!("{error}. These tests need the package pocl-opencl-icd."),
    }
}

#[test]
fn a_synchronous_engine_on_a_device_thread_conforms() {
    run(&mut || apart(Box::new(PortableEngine::new()))).assert_passed();
}

#[test]
fn a_late_engine_on_a_device_thread_conforms() {
    run(&mut || late(LateConfig::reliable(SEED))).assert_passed();
    let gathers = LateConfig { depth_jobs: 300, ..LateConfig::reliable(SEED) };
    run_only(&mut || late(gathers), &["mixed batches", "undeserved jobs fault"]).assert_passed();
}

#[test]
fn a_late_engine_with_a_short_queue_on_a_device_thread_conforms() {
    let config = LateConfig { queue_jobs: 7, order: Order::WithinKeys, ..LateConfig::reliable(SEED) };
    let checks = ["self-test", "empty and refused bursts", "undeserved jobs fault", "mixed batches"];
    run_only(&mut || late(config), &checks).assert_passed();
}

#[test]
fn an_engine_that_a_worker_drives_until_a_thread_is_wanted_conforms() {
    let by_hand = |engine| Box::new(DeviceThread::by_choice(engine, None, Arc::<Aside>::default()));
    run(&mut || by_hand(Box::new(PortableEngine::new()))).assert_passed();
    let late = || Box::new(LateEngine::new(Box::new(PortableEngine::new()), LateConfig::reliable(SEED)));
    run(&mut || by_hand(late())).assert_passed();
}

#[test]
fn the_suite_notices_an_engine_that_fails_on_a_device_thread() {
    let report = run_only(&mut || late(LateConfig::unreliable(SEED)), &["mixed batches"]);
    println!("{report}");
    assert!(!report.passed());
}

#[test]
fn engines_on_device_threads_agree_with_the_portable_one() {
    let engines = [late(LateConfig::reliable(SEED)), apart(Box::new(PortableEngine::new())), gpu()];
    for (number, mut engine) in (0..).zip(engines) {
        let seed = SEED + number;
        println!("{}, seed {seed}", engine.description());
        assert_eq!(differential(engine.as_mut(), &mut PortableEngine::new(), seed), Ok(2_000));
    }
}

#[test]
fn the_gpu_on_a_device_thread_conforms_on_pocl() {
    run(&mut gpu).assert_passed();
}
