//! The engine on other cores passes the suite with each kind of engine in its threads, and agrees with the
//! portable engine.

use testudo_conformance::{differential, run, run_only};
use testudo_crypto::{Engine, EngineError, PortableEngine};
use testudo_engine_cores::{CoresConfig, CoresEngine};

fn cores(
    threads: usize,
    mut make: impl FnMut() -> Result<Vec<Box<dyn Engine>>, EngineError>,
) -> Box<dyn Engine> {
    match CoresEngine::open(&CoresConfig::of(threads), &mut make) {
        Ok(engine) => Box::new(engine),
        Err(error) => panic!("{error}"),
    }
}

fn portable() -> Result<Vec<Box<dyn Engine>>, EngineError> {
    Ok(vec![Box::new(PortableEngine::new())])
}

#[test]
fn cores_with_the_portable_engine_conform() {
    let mut make = || cores(2, portable);
    println!("{}", make().description());
    run(&mut make).assert_passed();
}

#[test]
fn one_thread_and_many_conform_to_the_contract() {
    for threads in [1, 5] {
        let checks = ["empty and refused bursts", "undeserved jobs fault", "mixed batches"];
        run_only(&mut || cores(threads, portable), &checks).assert_passed();
    }
}

#[test]
fn cores_and_the_portable_engine_agree() {
    for threads in 1..=3 {
        let seed = 500 + threads as u64;
        println!("{threads} threads, seed {seed}");
        let compared = differential(cores(threads, portable).as_mut(), &mut PortableEngine::new(), seed);
        assert_eq!(compared, Ok(2_000));
    }
}

/// The suites that intel-ipsec-mb lacks are the portable engine's, in each thread.
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
#[test]
fn cores_with_ipsec_mb_and_the_portable_engine_conform() {
    use testudo_engine_ipsec_mb::IpsecMbEngine;
    let both = || -> Result<Vec<Box<dyn Engine>>, EngineError> {
        Ok(vec![Box::new(IpsecMbEngine::open()?), Box::new(PortableEngine::new())])
    };
    let mut make = || cores(2, both);
    println!("{}", make().description());
    run(&mut make).assert_passed();
    let seed = 600;
    assert_eq!(differential(make().as_mut(), &mut PortableEngine::new(), seed), Ok(2_000));
}
