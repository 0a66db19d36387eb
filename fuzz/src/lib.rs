//! The fuzz targets: one plain function each, which takes any bytes and panics only if a promise is broken.
//!
//! ```text
//!   libFuzzer ──► src/bin/TARGET.rs ──┐
//!   corpus/TARGET/* ──► cargo test ───┴──► the function
//! ```
//!
//! `run.sh SECONDS` builds the binaries and runs each target. Its findings go to `corpus/TARGET/` once they
//! are fixed, and are then replayed by plain `cargo test`.

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

pub mod control_socket;
pub mod data_path;
mod delivered;
pub mod dpdk_port;
pub mod engines;
pub mod headers;
pub mod input;
pub mod keys;
pub mod link;
pub mod link_port;
pub mod memory_file;
pub mod netlink;
pub mod operator;
pub mod paths;
pub mod ports;
pub mod reassembly;
pub mod replay;
pub mod sas;
pub mod socket_port;
pub mod store;
pub mod tun_port;
pub mod vpe;
pub mod wire;
pub mod xdp_port;
pub mod xfrm_server;

/// A target: it takes any bytes.
pub struct Target {
    /// The name of its binary and of its corpus.
    pub name: &'static str,
    pub run: fn(&[u8]),
    /// How often `cargo test` runs each file of the corpus with a little damage.
    pub damaged: usize,
}

const fn target(name: &'static str, run: fn(&[u8])) -> Target {
    Target { name, run, damaged: 2000 }
}

/// A target that takes about a millisecond or more per input.
const fn slow(name: &'static str, run: fn(&[u8])) -> Target {
    Target { name, run, damaged: 100 }
}

/// Every target.
pub const TARGETS: &[Target] = &[
    target("wire_ip", wire::wire_ip),
    target("esp_trailer", wire::esp_trailer),
    target("udp", wire::udp),
    target("ah", headers::ah),
    target("transport_mode", headers::transport_mode),
    target("nat_checksum", headers::nat_checksum),
    target("mss", headers::mss),
    target("icmp_error", headers::icmp_error),
    target("link_headers", link::link_headers),
    target("link_port", link_port::link_port),
    target("xfrm_messages", netlink::xfrm_messages),
    target("rt_messages", netlink::rt_messages),
    target("xfrm_server", xfrm_server::xfrm_server),
    target("policy_changes", data_path::policy_changes),
    target("inbound", data_path::inbound),
    target("inbound_vpe", vpe::inbound_vpe),
    target("inbound_group", vpe::inbound_group),
    target("outbound", data_path::outbound),
    target("replay_window_restore", data_path::replay_window_restore),
    slow("sequence_numbers", sas::sequence_numbers),
    slow("sa_changes", sas::sa_changes),
    slow("path_mtu", paths::path_mtu),
    slow("reassembly", reassembly::reassembly),
    target("engines", engines::engines),
    target("config", operator::config),
    target("config_load", operator::config_load),
    target("keys", keys::keys),
    target("control_request", control_socket::control_request),
    slow("store", store::store),
    target("pcap", ports::pcap),
    target("tun_split", ports::tun_split),
    slow("tun_receive", tun_port::tun_receive),
    slow("tun_transmit", tun_port::tun_transmit),
    slow("socket_receive", socket_port::socket_receive),
    slow("socket_transmit", socket_port::socket_transmit),
    target("xdp_rings", xdp_port::xdp_rings),
    target("dpdk_mbufs", dpdk_port::dpdk_mbufs),
];

#[cfg(test)]
mod tests {
    use super::{TARGETS, replay};

    #[test]
    fn every_corpus_is_replayed() {
        TARGETS.iter().for_each(replay::corpus);
    }

    #[test]
    fn every_corpus_survives_a_little_damage() {
        TARGETS.iter().for_each(replay::damaged_corpus);
    }
}
