//! The answers of the control socket to malformed requests.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use serde_json::Value;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Instant;
use testudo_control::Configuration;
use testudo_control::service::api::{Shared, converse};
use testudo_control::service::installed::InstalledTunnels;
use testudo_control::service::port_details::BothDetails;
use testudo_control::service::report::Facts;
use testudo_control::service::threads::Threads;
use testudo_gateway::{AllCounters, PortPair, SystemClock, Worker};
use testudo_packet::Pool;
use testudo_port_memory::MemoryPort;

/// A gateway without tunnels.
fn shared() -> Shared {
    let text = "[gateway]\nstate = \"s\"\n[port.protected]\nkind = \"tun\"\nname = \"t0\"\n[port.unprotected]\nkind = \"socket\"\n\
                interface = \"eth0\"\n[[policy]]\naction = \"discard\"\n";
    let configuration = Configuration::parse(text, "t.toml").unwrap();
    let (protected, unprotected) = MemoryPort::pair(1);
    let ports = PortPair { protected: Box::new(protected), unprotected: Box::new(unprotected) };
    let worker = Worker::new(ports, Pool::new(1, 2048), Vec::new(), Box::default());
    let counters = AllCounters::of([worker.counters()]);
    let facts = Facts {
        version: "test",
        started: Instant::now(),
        clock: SystemClock::default(),
        engines: Vec::new(),
        ports: BothDetails::default(),
        counters,
        threads: Threads::default(),
    };
    let installed = InstalledTunnels::empty(configuration);
    Shared {
        facts,
        installed: Mutex::new(Arc::new(installed)),
        peers: Mutex::default(),
        sas: OnceLock::new(),
        changer: OnceLock::new(),
    }
}

/// The answer to these bytes: a line of JSON.
fn answer(sent: &[u8]) -> Value {
    let mut out = Vec::new();
    converse(sent, &mut out, &shared()).unwrap();
    assert!(out.ends_with(b"\n"), "no line came: {out:?}");
    serde_json::from_slice(&out).unwrap()
}

fn error(sent: &[u8]) -> String {
    answer(sent)["error"].as_str().unwrap().to_owned()
}

#[test]
fn a_request_that_is_not_text_gets_an_error() {
    let said = error(b"{\"verb\":\"status\xff\"}\n");
    assert!(said.starts_with("the request is no JSON: "), "{said}");
}

#[test]
fn a_request_that_is_too_long_gets_an_error_and_one_that_just_fits_is_answered() {
    let padded = |bytes: usize| {
        let mut sent = b"{\"verb\":\"status\"}".to_vec();
        sent.resize(bytes - 1, b' ');
        sent.push(b'\n');
        sent
    };
    assert_eq!(answer(&padded(4096))["version"], "test");
    assert_eq!(error(&padded(4097)), "the request is longer than 4096 bytes");
    assert_eq!(error(&[b'['; 100_000]), "the request is longer than 4096 bytes");
}

#[test]
fn an_empty_request_gets_an_error() {
    assert!(error(b"").starts_with("the request is no JSON: "));
    assert_eq!(error(b"{}"), "unknown verb");
}
