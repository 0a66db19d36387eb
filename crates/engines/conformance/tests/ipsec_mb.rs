//! intel-ipsec-mb passes the suite and agrees with the portable engine.
//!
//! On x86-64 the library must be there (Debian: `libipsec-mb1`); its absence fails these tests.
//! `TESTUDO_IPSEC_MB_LIBRARY` may name the file of another version.

#![cfg(all(target_arch = "x86_64", target_os = "linux"))]

use testudo_conformance::differential;
use testudo_crypto::{Engine, PortableEngine};
use testudo_engine_ipsec_mb::IpsecMbEngine;

fn open() -> Box<dyn Engine> {
    let opened = match std::env::var_os("TESTUDO_IPSEC_MB_LIBRARY") {
        Some(path) => IpsecMbEngine::open_at(path.as_ref()),
        None => IpsecMbEngine::open(),
    };
    match opened {
        Ok(engine) => Box::new(engine),
        Err(error) => panic!("{error}. These tests need the package libipsec-mb1."),
    }
}

#[test]
fn ipsec_mb_conforms() {
    testudo_conformance::run(&mut open).assert_passed();
}

#[test]
fn ipsec_mb_and_the_portable_engine_agree() {
    for seed in 1..=5 {
        println!("seed {seed}");
        let compared = differential(open().as_mut(), &mut PortableEngine::new(), seed);
        assert_eq!(compared, Ok(2_000));
    }
}

#[test]
fn engines_on_several_threads_do_not_disturb_each_other() {
    let worker = |seed| {
        move || {
            let mut engine = open();
            differential(engine.as_mut(), &mut PortableEngine::new(), seed)
        }
    };
    let threads: Vec<_> = (100..104).map(|seed| std::thread::spawn(worker(seed))).collect();
    for thread in threads {
        assert_eq!(thread.join().unwrap(), Ok(2_000));
    }
}
