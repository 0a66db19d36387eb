//! Charons beside gateways whose unprotected port is AF_XDP: IKE goes through the kernel, past the filter,
//! ESP to the gateway. As root, as `tests/xdp`; the hosts are those of `tests/ike`.
//!
//! ```text
//!   charon ── XFRM ── testudo                    testudo ── XFRM ── charon
//!      │ UDP 500, 4500    │ AF_XDP          AF_XDP │    UDP 500, 4500 │
//!   kernel of A ──────── wan ═════════════════════ wan ──────── kernel of B
//! ```

#![allow(dead_code, reason = "modules of tests/ike, of which a part is used here")]

#[path = "../support/mod.rs"]
mod support;

#[path = "../ike/connection.rs"]
mod connection;
#[path = "../ike/host.rs"]
mod host;
#[path = "../ike/memory.rs"]
mod memory;
#[path = "../ike/network.rs"]
mod network;
#[path = "../ike/pair.rs"]
mod pair;
#[path = "../ike/recorder.rs"]
mod recorder;
#[path = "../ike/strongswan.rs"]
mod strongswan;
#[path = "../ike/vici.rs"]
mod vici;

use connection::Connection;
use host::SOCKETS;
use network::{LINK, Network};
use pair::{ends, initiate, logs, pings, until_renewed, with_addresses};
use std::process::ExitCode;
use strongswan::Charon;
use support::{Outcome, ensure, wait};
use testudo_judge::harness::{Suite, TestResult};
use testudo_lab::namespaces::{enter_as_root, veth_with_queues};

const XDP: &str = "kind = \"xdp\"\ninterface = \"wan\"\nmode = \"native\"\n";
const GENERIC: &str = "kind = \"xdp\"\ninterface = \"wan\"\nmode = \"generic\"\n";
/// An address that A gets while its gateway runs.
const NEW: &str = "192.0.2.11";

fn main() -> ExitCode {
    if std::env::var_os("TESTUDO_WITHOUT_XDP").is_some() {
        println!("ike_xdp: skipped, TESTUDO_WITHOUT_XDP is set");
        return ExitCode::SUCCESS;
    }
    let build = || Network::build(enter_as_root, |a, b| veth_with_queues(a, b, 2));
    Suite::new()
        .test("charon_negotiates_past_the_filter_and_esp_goes_to_the_gateway", |network| {
            passes(network, [XDP, XDP], &Connection::default())
        })
        .test("ike_and_esp_share_port_4500_and_each_gets_its_own", |network| {
            passes(network, [XDP, XDP], &in_udp())
        })
        .test("so_it_is_over_ipv6", |network| {
            let addresses = ["2001:db8::1", "2001:db8::2"].map(str::to_owned);
            passes(network, [XDP, XDP], &Connection { addresses, ..in_udp() })
        })
        .test("so_it_is_in_generic_mode_with_sockets_at_the_other_end", |network| {
            passes(network, [GENERIC, SOCKETS], &in_udp())
        })
        .test("esp_to_an_address_that_the_host_gets_later_goes_to_the_gateway", later_address)
        .run(build)
}

/// ESP in UDP, on IKE's port 4500 (RFC 3948), where IKE stays after its first messages.
fn in_udp() -> Connection {
    Connection { ike: "encap = yes".to_owned(), ..Connection::default() }
}

/// Keepalives (RFC 3948 2.3) are sent every second, where `encap` has charon believe that there is a NAT.
const SETTINGS: &str = "keep_alive = 1s";

fn start(network: &mut Network, ports: [&'static str; 2], connection: &Connection) -> Outcome<[Charon; 2]> {
    [network.a.unprotected, network.b.unprotected] = ports;
    let charons = network.programs(SETTINGS, connection)?;
    with_addresses(network)?;
    Ok(charons)
}

/// SAs are negotiated, renewed and deleted over the interface whose ESP the gateway takes, and packets pass.
fn passes(network: &mut Network, ports: [&'static str; 2], connection: &Connection) -> TestResult {
    let charons = start(network, ports, connection)?;
    let spis = initiate(&charons).map_err(|error| format!("{error}\n{}", logs(network, &charons)))?;
    let shown = network.a.ip_xfrm(&["state"])?;
    ensure(shown.contains("espinudp") != connection.ike.is_empty(), || format!("SAs: {shown}"))?;
    pings(network, &charons)?;
    charons[1].swanctl(&["--rekey", "--child", "net"])?;
    until_renewed(&charons, spis).map_err(|error| format!("{error}\n{}", logs(network, &charons)))?;
    pings(network, &charons)?;
    only_esp_came(network, &charons)?;
    network.all_is_well(&charons)?;
    ends(network, charons)
}

/// What came to the gateway by AF_XDP is what the peer has sealed: six echo messages.
fn only_esp_came(network: &Network, charons: &[Charon; 2]) -> Outcome<()> {
    for host in network.hosts() {
        let status = host.program().process.ask_json(&["status"])?;
        let port = &status["ports"]["unprotected"];
        ensure(port["kind"] != "xdp" || port["rx_packets"] == 6, || {
            format!("{}: {port:#}\n{}", host.namespace.name(), logs(network, charons))
        })?;
    }
    Ok(())
}

/// A connection from an address that A did not have when its gateway started: the filter follows the host's.
fn later_address(network: &mut Network) -> TestResult {
    let mut connection = in_udp();
    connection.addresses[0] = NEW.to_owned();
    let charons = start(network, [XDP, XDP], &connection)?;
    network.a.namespace.address(LINK, &format!("{NEW}/24"))?;
    let followed = initiate(&charons)
        .and_then(|_| wait::until("for packets to pass", || Ok(pings(network, &charons).ok())));
    let ended = followed
        .map_err(|error| format!("{error}\n{}", logs(network, &charons)).into())
        .and_then(|()| ends(network, charons));
    network.a.namespace.run(&["ip", "address", "delete", &format!("{NEW}/24"), "dev", LINK])?;
    ended
}
