//! The engine on its kernels as C++, compiled here, on this processor: against known answers, the portable
//! engine, and with faults that no device of ours plays.

mod checks;
mod compiled;
#[cfg(target_arch = "x86_64")]
mod cuda;
mod faults;
mod frames;
mod measure;
mod nvml;
mod opencl;
mod parts;
mod recall;

use crate::engine::GpuEngine;
use crate::open::GpuConfig;
use compiled::{Compiled, Faults};
use std::sync::Arc;
use testudo_conformance::{differential, run};
use testudo_crypto::{Engine, PortableEngine, self_test};

/// Few jobs in a batch, so that batches are full and follow each other.
fn config() -> GpuConfig {
    GpuConfig { keys: 12_000, batch_jobs: 48, ..GpuConfig::default() }
}

fn engine(faults: &Arc<Faults>) -> GpuEngine {
    let sizes = config().sizes();
    GpuEngine::over(Box::new(Compiled::new(sizes, Arc::clone(faults))), sizes)
}

fn fresh() -> GpuEngine {
    engine(&Arc::new(Faults::default()))
}

#[test]
fn the_kernels_as_cpp_give_the_known_answers() {
    assert_eq!(self_test(&mut fresh()), Ok(()));
}

#[test]
fn the_kernels_as_cpp_conform() {
    run(&mut || -> Box<dyn Engine> { Box::new(fresh()) }).assert_passed();
}

#[test]
fn the_kernels_as_cpp_and_the_portable_engine_agree() {
    for seed in 1..=3 {
        println!("seed {seed}");
        assert_eq!(differential(&mut fresh(), &mut PortableEngine::new(), seed), Ok(2_000));
    }
}
