//! The engine on GPUs passes the suite and agrees with the portable engine, on a processor: PoCL, whose
//! absence fails these tests (Debian: `pocl-opencl-icd`).

use testudo_conformance::{differential, run};
use testudo_crypto::{Engine, EngineError, PortableEngine, self_test};
use testudo_engine_gpu::GpuConfig;

fn open() -> Box<dyn Engine> {
    let device = Some("Portable Computing Language".to_owned());
    match testudo_engine_gpu::open(&GpuConfig {
        device,
        keys: 12_000,
        batch_jobs: 512,
        ..GpuConfig::default()
    }) {
        Ok(engine) => engine,
        Err(error) => panic!("{error}. These tests need the package pocl-opencl-icd."),
    }
}

#[test]
fn gpu_gives_the_known_answers_on_pocl() {
    let mut engine = open();
    println!("{}", engine.description());
    assert_eq!(self_test(engine.as_mut()), Ok(()));
}

#[test]
fn gpu_conforms_on_pocl() {
    run(&mut open).assert_passed();
}

#[test]
fn gpu_and_the_portable_engine_agree_on_pocl() {
    for seed in 1..=3 {
        println!("seed {seed}");
        assert_eq!(differential(open().as_mut(), &mut PortableEngine::new(), seed), Ok(2_000));
    }
}

/// A processor is not taken for a GPU; what there is, is said in one line.
#[test]
fn a_processor_is_no_gpu_unless_it_is_named() {
    let nonsense = GpuConfig { device: Some("no such device".to_owned()), ..GpuConfig::default() };
    let Err(EngineError::Unavailable { reason, .. }) = testudo_engine_gpu::open(&nonsense) else {
        panic!("it was opened")
    };
    assert!(
        reason.starts_with("no device of OpenCL's is named like \"no such device\"; there are: "),
        "{reason}"
    );
    assert!(reason.contains("Portable Computing Language") && !reason.contains('\n'), "{reason}");
    let Err(EngineError::Unavailable { reason, .. }) = testudo_engine_gpu::open(&GpuConfig::default()) else {
        return;
    };
    assert!(reason.starts_with("OpenCL has no GPU here; other devices are used by name alone: "), "{reason}");
}
