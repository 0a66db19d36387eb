//! The engine on other cores passes the suite with each kind of engine in its threads, and agrees with the
//! portable engine.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use testudo_conformance::{differential, run, run_only};
use testudo_crypto::{
    Capability, Direction, Engine, EngineError, Job, KeyId, KeyMaterial, KeyPreparer, PortableEngine,
    PreparedKey, Profile, Suite,
};
use testudo_engine_cores::{CoresConfig, CoresEngine};

/// With threads that have all jobs there is room for, however few: it is these that are to conform.
fn cores(
    threads: usize,
    mut make: impl FnMut() -> Result<Vec<Box<dyn Engine>>, EngineError>,
) -> Box<dyn Engine> {
    match CoresEngine::open(&CoresConfig::of(threads), &mut make) {
        Ok(mut engine) => {
            engine.hand_over_all();
            Box::new(engine)
        }
        Err(error) => panic!("{error}"),
    }
}

/// The jobs that an engine was given in threads of the engine on other cores.
static IN_THREADS: AtomicUsize = AtomicUsize::new(0);

/// An engine that counts these.
struct Counted(Box<dyn Engine>);

impl Engine for Counted {
    fn name(&self) -> &'static str {
        self.0.name()
    }
    fn description(&self) -> String {
        self.0.description()
    }
    fn capability(&self, suite: Suite) -> Option<Capability> {
        self.0.capability(suite)
    }
    fn install(&mut self, key: &KeyMaterial, direction: Direction) -> Result<KeyId, EngineError> {
        self.0.install(key, direction)
    }
    fn preparer(&self) -> Option<Arc<dyn KeyPreparer>> {
        self.0.preparer()
    }
    fn link(&mut self, key: PreparedKey) -> Result<KeyId, EngineError> {
        self.0.link(key)
    }
    fn remove(&mut self, key: KeyId) {
        self.0.remove(key);
    }
    fn is_synchronous(&self) -> bool {
        self.0.is_synchronous()
    }
    fn profile(&self, suite: Suite) -> Profile {
        self.0.profile(suite)
    }
    fn submit(&mut self, jobs: &mut [Job]) -> usize {
        if std::thread::current().name().is_some_and(|name| name.starts_with("cores-")) {
            IN_THREADS.fetch_add(jobs.len(), Ordering::Relaxed);
        }
        self.0.submit(jobs)
    }
}

/// What is tried gives threads no fewer jobs than that.
fn in_threads(jobs: usize, tried: impl FnOnce()) {
    let before = IN_THREADS.load(Ordering::Relaxed);
    tried();
    let had = IN_THREADS.load(Ordering::Relaxed) - before;
    assert!(had >= jobs, "threads had {had} jobs");
}

fn portable() -> Result<Vec<Box<dyn Engine>>, EngineError> {
    Ok(vec![Box::new(Counted(Box::new(PortableEngine::new())))])
}

#[test]
fn cores_with_the_portable_engine_conform() {
    let mut make = || cores(2, portable);
    println!("{}", make().description());
    in_threads(1_000, || run(&mut make).assert_passed());
}

#[test]
fn one_thread_and_many_conform_to_the_contract() {
    for threads in [1, 5] {
        for check in ["empty and refused bursts", "undeserved jobs fault", "mixed batches"] {
            in_threads(1, || run_only(&mut || cores(threads, portable), &[check]).assert_passed());
        }
    }
}

#[test]
fn cores_and_the_portable_engine_agree() {
    for threads in 1..=3 {
        let seed = 500 + threads as u64;
        println!("{threads} threads, seed {seed}");
        in_threads(1_000, || {
            let compared = differential(cores(threads, portable).as_mut(), &mut PortableEngine::new(), seed);
            assert_eq!(compared, Ok(2_000));
        });
    }
}

/// The suites that intel-ipsec-mb lacks are the portable engine's, in each thread.
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
#[test]
fn cores_with_ipsec_mb_and_the_portable_engine_conform() {
    use testudo_engine_ipsec_mb::IpsecMbEngine;
    let both = || -> Result<Vec<Box<dyn Engine>>, EngineError> {
        let ipsec_mb = Counted(Box::new(IpsecMbEngine::open()?));
        Ok(vec![Box::new(ipsec_mb), Box::new(Counted(Box::new(PortableEngine::new())))])
    };
    let mut make = || cores(2, both);
    println!("{}", make().description());
    in_threads(1_000, || run(&mut make).assert_passed());
    let seed = 600;
    assert_eq!(differential(make().as_mut(), &mut PortableEngine::new(), seed), Ok(2_000));
}
