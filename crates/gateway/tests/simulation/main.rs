//! Pairs of whole gateways in one process, driven by a seed, on a hostile network.
//!
//! A failure prints the seed, the scenario and how to rerun just that.

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

#[path = "../support/hurried_clock.rs"]
mod hurried_clock;

#[path = "../support/nic.rs"]
mod with_nic;

mod corruption;
mod gpu;
mod group;
mod hostile;
mod late;
mod many_workers;
mod model;
mod network;
mod nic;
mod pair;
mod rekey;
mod roaming;
mod threads;

use pair::{Equip, Equipment, Outcome, Pair, Scenario};
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use support::TunnelSpec;
use support::random::seed;
use testudo_crypto::Suite;
use testudo_gateway::SchedulerSettings;
use testudo_ipsec::IpsecProtocol;
use testudo_packet::DropReason;
use testudo_wire::ip::Version;

/// Every combination of outer IP version, encapsulation, ESN and window for one suite; each has inner packets
/// of both versions.
fn scenarios(suite: Suite) -> Vec<Scenario> {
    let mut scenarios = Vec::new();
    for outer in [Version::V4, Version::V6] {
        for udp in [false, true] {
            for esn in [false, true] {
                for window in [64, 4096, 65_536] {
                    let spec = TunnelSpec { esn, window, outer, udp, ..TunnelSpec::new(0, suite) };
                    let number = scenarios.len() as u64;
                    let packets = match window {
                        64 => 6_000,
                        4096 => 12_000,
                        // Longer than the window where it matters, shorter in the other combinations.
                        _ if number % 12 == 2 => 80_000,
                        _ => 12_000,
                    };
                    let first_sequence = first_sequence(&spec, packets);
                    scenarios.push(Scenario {
                        seed: seed() ^ (number + 1) << 32,
                        spec,
                        packets,
                        first_sequence,
                        // Each restart skips the numbers that were leased; near the end of the number space
                        // that must not be all of them.
                        lease_block: if esn { [150, 1_000, 100_000][number as usize % 3] } else { 150 },
                        restarts: number % 4 != 3,
                        keeps: false,
                        scheduler: SchedulerSettings::default(),
                    });
                }
            }
        }
    }
    scenarios
}

/// Half of the combinations begin at 1. The others cross a multiple of 2^32 midway with ESN (the first one,
/// or a later one), and run out of numbers without ESN.
fn first_sequence(spec: &TunnelSpec, packets: u32) -> u64 {
    let half = u64::from(packets) / 2;
    match (spec.esn, spec.udp, spec.outer) {
        (true, false, Version::V4) => (1 << 32) - half,
        (true, false, Version::V6) => (7 << 32) - half,
        (false, true, _) => (1 << 32) - u64::from(packets) * 3 / 4,
        _ => 1,
    }
}

fn name(s: &Scenario) -> String {
    let esp = match (s.spec.protocol, s.spec.udp) {
        (IpsecProtocol::Ah, _) => "AH",
        (IpsecProtocol::Vpe, true) => "VPE in UDP",
        (IpsecProtocol::Vpe, false) => "VPE",
        (IpsecProtocol::Esp, true) => "UDP",
        (IpsecProtocol::Esp, false) => "ESP",
    };
    let numbers = if s.spec.esn { "ESN" } else { "32-bit" };
    format!(
        "{} {esp} over {:?}, {numbers} from {:#x}, window {}",
        s.spec.suite, s.spec.outer, s.first_sequence, s.spec.window
    )
}

/// Runs a scenario; if it fails, prints how to rerun it.
fn run(test: &str, scenario: &Scenario, equip: &mut Equip<'_>, midway: impl FnMut()) -> Outcome {
    let outcome = catch_unwind(AssertUnwindSafe(|| Pair::new(scenario, equip).run(midway)));
    outcome.unwrap_or_else(|panic| {
        eprintln!("scenario: {}", name(scenario));
        eprintln!(
            "again:    TESTUDO_SEED={:#x} cargo test -p testudo-gateway --test simulation {test}",
            seed()
        );
        resume_unwind(panic)
    })
}

fn run_suite(test: &str, suite: Suite) {
    let (mut sent, mut delivered, mut refused) = (0, 0, HashMap::new());
    for scenario in scenarios(suite) {
        let outcome = run(
            test,
            &scenario,
            &mut |_, port| Equipment { engines: support::gateway::portable(), port },
            || {},
        );
        assert!(
            outcome.delivered * 2 > outcome.sent,
            "{}: too little went through: {outcome:?}",
            name(&scenario)
        );
        sent += outcome.sent;
        delivered += outcome.delivered;
        for (reason, count) in outcome.refused {
            *refused.entry(reason).or_insert(0) += count;
        }
    }
    println!("{suite}: {sent} packets sent, {delivered} delivered");
    assert!(sent >= 340_000, "three of the suites make a million packets, but {suite} sent {sent}");
    assert_network_did_its_worst(&refused);
}

/// No scenario passed because the network was harmless: everything that it can do was noticed.
fn assert_network_did_its_worst(refused: &HashMap<DropReason, u64>) {
    use DropReason as R;
    for reason in [
        R::NotIp,
        R::Truncated,
        R::BadHeader,
        R::BadChecksum,
        R::FragmentMalformed,
        R::FragmentOverlap,
        R::FragmentDuplicate,
        R::FragmentTimeout,
        R::UnknownSpi,
        R::WrongEncapsulation,
        R::EspMalformed,
        R::ReplayTooOld,
        R::ReplayDuplicate,
        R::AuthenticationFailed,
        R::EcnCongestion,
        R::SequenceNotLeased,
        R::SequenceExhausted,
        R::NotForUs,
    ] {
        assert!(refused.get(&reason).copied().unwrap_or(0) > 0, "never happened: {}", reason.description());
    }
}

#[test]
fn what_comes_out_of_aes128gcm16_tunnels_is_what_went_in() {
    run_suite("what_comes_out_of_aes128gcm16", Suite::AES128GCM16);
}

#[test]
fn what_comes_out_of_aes256gcm16_tunnels_is_what_went_in() {
    run_suite("what_comes_out_of_aes256gcm16", Suite::AES256GCM16);
}

#[test]
fn what_comes_out_of_chacha20poly1305_tunnels_is_what_went_in() {
    run_suite("what_comes_out_of_chacha20poly1305", Suite::CHACHA20POLY1305);
}

#[test]
fn what_comes_out_of_aes128_sha1_tunnels_is_what_went_in() {
    run_suite("what_comes_out_of_aes128_sha1", Suite::AES128_SHA1);
}

#[test]
fn what_comes_out_of_aes256_sha256_tunnels_is_what_went_in() {
    run_suite("what_comes_out_of_aes256_sha256", Suite::AES256_SHA256);
}

#[test]
fn what_comes_out_of_null_sha1_tunnels_is_what_went_in() {
    run_suite("what_comes_out_of_null_sha1", Suite::NULL_SHA1);
}
