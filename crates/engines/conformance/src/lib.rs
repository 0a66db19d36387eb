//! The suite that every engine passes: one shared judge, called from each engine's tests.
//!
//! ```
//! use testudo_crypto::PortableEngine;
//! let mut make = || -> Box<dyn testudo_crypto::Engine> { Box::new(PortableEngine::new()) };
//! let report = testudo_conformance::run_only(&mut make, &["official vectors"]);
//! report.assert_passed();
//! ```
//!
//! Engines are compared with sources independent of them: official vectors (NIST, the RFCs, Project
//! Wycheproof) and, for each algorithm, one of RustCrypto and OpenSSL that neither the portable engine nor
//! intel-ipsec-mb shares code with. [`differential`] compares two engines with each other.
//!
//! Every job goes through one [driver](drive), which checks the contract of [`Engine`]: an engine takes a
//! prefix and leaves the rest untouched, every job ends exactly once and under its own name, asynchronous
//! engines finish in bounded time. All randomness comes from a seed, which failures print.
//!
//! A fault for a valid job is a failure here. Engines that fail on purpose have separate tests.
//!
//! Stricter than the contract in one point: a text with a wrong ICV must not be left decrypted in the buffer.

#![forbid(unsafe_code)]

mod checks;
mod differential;
mod driver;
mod make;
mod reference;
mod report;
mod vectors;

pub use differential::differential;
pub use driver::drive;
pub use make::random_bytes;
pub use report::{Outcome, Report};
pub use vectors::{Vector, vectors};

use std::time::Instant;
use testudo_crypto::{Engine, EngineError};

/// Makes a fresh engine, one for each check.
pub type MakeEngine<'a> = &'a mut dyn FnMut() -> Box<dyn Engine>;

/// The engine, or `None` where this CPU lacks something and the environment variable `without` is 1: a
/// machine where an engine is not tested must not look like one where it passes.
///
/// # Panics
/// If the engine is unavailable and `without` is not 1.
pub fn unless_waived<E: Engine>(opened: Result<E, EngineError>, without: &str) -> Option<E> {
    let is_meant = std::env::var(without).is_ok_and(|value| value == "1");
    match opened {
        Ok(engine) => Some(engine),
        Err(error @ EngineError::Unavailable { .. }) if is_meant => {
            println!("not tested, as {without}=1 allows: {error}");
            None
        }
        Err(error) => panic!("{error}; where that is meant, set {without}=1"),
    }
}

/// Runs all checks. They take seconds on a CPU.
pub fn run(make: MakeEngine<'_>) -> Report {
    run_only(make, &[])
}

/// Runs the checks named in `only`, or all if it is empty.
pub fn run_only(make: MakeEngine<'_>, only: &[&str]) -> Report {
    let mut report = Report { engine: make().description(), outcomes: Vec::new() };
    for (name, check) in checks::ALL {
        if only.is_empty() || only.contains(name) {
            let start = Instant::now();
            let result = check(make);
            report.outcomes.push(Outcome { check: name, result, elapsed: start.elapsed() });
        }
    }
    report
}
