//! The device over rings whose kernel is played: one that keeps the rules, and one that lies.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::cast_possible_truncation,
    reason = "a test panics on failure, and its data is made of small numbers"
)]

mod chains;
mod frames;
mod hostile;
mod lifetime;
mod played;
