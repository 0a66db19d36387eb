//! What is fuzzed: one plain function per target, which takes any bytes and panics only where a promise is broken.
//!
//! ```text
//!   libFuzzer ──► src/bin/TARGET.rs ──┐
//!   corpus/TARGET/* ──► cargo test ───┴──► the function
//! ```
//!
//! `run.sh SECONDS` builds the binaries and runs each target. What it finds goes to `corpus/TARGET/` when it is mended, and is then
//! replayed by plain `cargo test`.

#![forbid(unsafe_code)]
#![allow(
    missing_docs,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::expect_used,
    reason = "all of it is test code: its data is made of small numbers, and it panics where something must hold"
)]

#[path = "../../crates/gateway/tests/support/mod.rs"]
pub mod support;

pub mod data_path;
pub mod engines;
pub mod input;
pub mod operator;
pub mod ports;
pub mod replay;
pub mod wire;

/// A target: it takes any bytes.
pub type Target = fn(&[u8]);

/// Every target by its name, which is that of its binary and of its corpus.
pub const TARGETS: &[(&str, Target)] = &[
    ("wire_ip", wire::wire_ip),
    ("esp_trailer", wire::esp_trailer),
    ("udp", wire::udp),
    ("inbound", data_path::inbound),
    ("outbound", data_path::outbound),
    ("replay_window_restore", data_path::replay_window_restore),
    ("engines", engines::engines),
    ("config", operator::config),
    ("pcap", ports::pcap),
    ("tun_split", ports::tun_split),
];

#[cfg(test)]
mod tests {
    use super::{TARGETS, replay};

    #[test]
    fn every_corpus_is_replayed() {
        for (name, target) in TARGETS {
            replay::corpus(name, *target);
        }
    }

    #[test]
    fn every_corpus_survives_a_little_damage() {
        for (name, target) in TARGETS {
            replay::damaged_corpus(name, *target, 2000);
        }
    }
}
