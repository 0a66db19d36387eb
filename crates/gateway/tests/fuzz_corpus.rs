//! What fuzzing found, and the seeds it began with, replayed by plain `cargo test`: the targets of the data path and its formats.

#![allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::expect_used,
    reason = "test data is made of small numbers, and a test says what must hold"
)]

mod support;

#[path = "../../../fuzz/src/data_path.rs"]
mod data_path;
#[path = "../../../fuzz/src/input.rs"]
mod input;
#[path = "../../../fuzz/src/replay.rs"]
mod replay;
#[path = "../../../fuzz/src/wire.rs"]
mod wire;

/// A target: it takes any bytes.
type Target = fn(&[u8]);

const TARGETS: [(&str, Target); 6] = [
    ("wire_ip", wire::wire_ip),
    ("esp_trailer", wire::esp_trailer),
    ("udp", wire::udp),
    ("inbound", data_path::inbound),
    ("outbound", data_path::outbound),
    ("replay_window_restore", data_path::replay_window_restore),
];

#[test]
fn every_corpus_is_replayed() {
    TARGETS.iter().for_each(|(name, target)| replay::corpus(name, *target));
}

#[test]
fn every_corpus_survives_a_little_damage() {
    TARGETS.iter().for_each(|(name, target)| replay::damaged_corpus(name, *target, 2000));
}
