//! Shared by the tests of the running program: a gateway as a user runs it, and waiting with deadlines.

#![allow(dead_code, reason = "each test program uses a part")]

pub mod capture;
pub mod config;
pub mod gateway;
pub mod link;
pub mod load;
pub mod pings;
pub mod sites;
pub mod wait;

use std::error::Error;
use std::fs;
use std::path::PathBuf;

/// The result of a test's step: an error fails the test and is its message.
pub type Outcome<T> = Result<T, Box<dyn Error>>;

/// Makes a new folder. It is in the private `/run` of the test's namespaces, so it disappears with them.
pub fn folder(name: &str) -> Outcome<PathBuf> {
    let path = PathBuf::from("/run/testudo-tests").join(name);
    fs::create_dir_all(&path)?;
    Ok(path)
}

/// Fails with a message unless `condition` holds.
pub fn ensure(condition: bool, complaint: impl FnOnce() -> String) -> Outcome<()> {
    if condition { Ok(()) } else { Err(complaint().into()) }
}
