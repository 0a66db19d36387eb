//! The data path of a whole gateway, promise by promise: what it forwards, what it refuses and why, and that
//! no input disturbs it.

#![allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::expect_used,
    reason = "test data is made of small numbers, and a test says what must hold"
)]

#[path = "../support/mod.rs"]
mod support;

#[path = "../support/late_engine.rs"]
mod late_engine;

#[path = "../support/nic.rs"]
mod with_nic;

mod audit;
mod bounded_turns;
mod chains;
mod changes;
mod chosen_threads;
mod clocked;
mod cores;
mod drop_reasons;
mod encapsulations;
mod failed_engines;
mod failing_ports;
mod formation;
mod fragment_checking;
mod fragmentation;
mod frames;
mod groups;
mod handmade;
mod headers;
mod held;
mod hidden_fields;
mod in_order;
mod interfaces;
mod kept_jobs;
mod key_layout;
mod late_gpu;
mod lifetimes;
mod link;
mod lost_devices;
mod many_tunnels;
mod mss;
mod mtu_probe;
mod nic;
mod own_acquire;
mod own_sas;
mod path_mtu;
mod policies;
mod policy_changes;
mod policy_model;
mod populate;
mod reassembly;
mod reassembly_flood;
mod refused_keys;
mod rekeying;
mod resync;
mod roaming;
mod roles;
mod rubbish;
mod scheduler;
mod slow_devices;
mod source_routes;
mod stages;
mod suites;
mod threads;
mod traffic_flow;
mod transport;
mod two_passes;
mod vpe;
mod vpe_bursts;
mod vpe_jumbo;
mod vpe_ports;
mod vpe_roaming;
mod vpe_workers;
mod workers;
