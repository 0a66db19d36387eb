//! Trap policies of other kinds than a tunnel between two networks: by protocol and port, and between hosts
//! whose addresses are known with the first packet.

use crate::connection::Connection;
use crate::network::Network;
use crate::past_routes::PEERS;
use crate::strongswan::{Charon, IkeSa, only_child};
use crate::support::{Outcome, ensure, wait};
use crate::traffic::{INNER, ends_trapped, logs, pings, with_addresses};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use testudo_judge::harness::{Suite, TestResult};

type Tests<'a> = Suite<'a, Network>;

/// The service behind B that has a trap of its own.
const SERVICE: u16 = 7777;

pub fn tests(suite: Tests<'_>) -> Tests<'_> {
    suite
        .test("each_trap_negotiates_for_its_own_protocol_and_port", by_protocol_and_port)
        .test("a_trap_of_any_own_address_takes_that_of_the_route", of_any_address)
        .test("a_trap_for_any_peer_makes_charon_negotiate_with_the_one_that_is_meant", for_any_peer)
}

fn until_trapped(network: &Network, charons: &[Charon; 2], traps: usize) -> Outcome<()> {
    wait::until("for trap policies at A", || {
        let shown = network.a.ip_xfrm(&["policy"])?;
        Ok((shown.matches("dir out").count() == traps).then_some(()))
    })
    .map_err(|error| format!("{error}\n{}", logs(network, charons)).into())
}

/// The names of A's CHILD_SAs that carry traffic.
fn children(charons: &[Charon; 2]) -> Outcome<Vec<String>> {
    let sas = charons[0].sas()?;
    let mut names: Vec<_> =
        sas.iter().flat_map(IkeSa::installed).map(|child| child.get("name").to_owned()).collect();
    names.sort();
    Ok(names)
}

/// A byte from A to the service, and back.
fn asks_service(network: &Network) -> Outcome<()> {
    let listener = network.b.namespace.within(|| TcpListener::bind((INNER[1], SERVICE)))??;
    let answers = std::thread::spawn(move || -> std::io::Result<()> {
        let (mut stream, _) = listener.accept()?;
        let mut byte = [0];
        stream.read_exact(&mut byte)?;
        stream.write_all(&byte)
    });
    let mut stream = network.a.namespace.within(|| TcpStream::connect((INNER[1], SERVICE)))??;
    stream.write_all(b"?")?;
    let mut byte = [0];
    stream.read_exact(&mut byte)?;
    answers.join().map_err(|_| "the service has panicked")??;
    ensure(byte == *b"?", || format!("{byte:?}"))
}

/// RFC 4301 4.4.1.1: ICMP and one service have each a CHILD_SA, and nothing else has one.
fn by_protocol_and_port(network: &mut Network) -> TestResult {
    let of_service = ["10.1.0.0/16[tcp]".to_owned(), format!("10.2.0.0/16[tcp/{SERVICE}]")];
    let more_of = [0, 1].map(|own| {
        format!(
            "connections {{ net {{ children {{ service {{\n local_ts = {}\n remote_ts = {}\n\
             esp_proposals = aes128gcm16-x25519\n rekey_time = 0\n start_action = trap\n}} }} }} }}\n",
            of_service[own],
            of_service[1 - own]
        )
    });
    let connection = Connection {
        selectors: ["10.1.0.0/16[icmp]", "10.2.0.0/16[icmp]"].map(str::to_owned),
        more_of,
        ..Connection::child("start_action = trap")
    };
    let charons = network.programs("", &connection)?;
    with_addresses(network)?;
    until_trapped(network, &charons, 2)?;
    // Longer than the gateway's own, with the source of connections that name none.
    let service = format!("{}/32", INNER[1]);
    network.a.namespace.run(&["ip", "route", "replace", &service, "dev", "testudo0", "src", INNER[0]])?;
    pings(network, &charons)?;
    let now = children(&charons)?;
    ensure(now == ["net"], || format!("ICMP alone has asked, and there are {now:?}"))?;
    asks_service(network).map_err(|error| format!("{error}\n{}", logs(network, &charons)))?;
    let now = children(&charons)?;
    ensure(now == ["net", "service"], || format!("{now:?}\n{}", logs(network, &charons)))?;
    // What no policy selects has no SA to wait for.
    let before = network.a.program().process.dropped("no_policy")?;
    let other = network.a.namespace.within(|| UdpSocket::bind((INNER[0], 0)))??;
    other.send_to(b"?", (INNER[1], SERVICE))?;
    wait::until("for a datagram of no policy to be dropped", || {
        Ok((network.a.program().process.dropped("no_policy")? > before).then_some(()))
    })?;
    ensure(children(&charons)?.len() == 2, || charons[0].log())?;
    network.a.namespace.run(&["ip", "route", "del", &service])?;
    ends_trapped(network, charons)
}

/// Both hosts with a trap in transport mode between themselves.
fn trapped(network: &mut Network, ike: &str, child: &str) -> Outcome<[Charon; 2]> {
    let connection = Connection {
        ike_of: [ike, ike].map(str::to_owned),
        child: format!("mode = transport\n start_action = trap\n {child}"),
        ..Connection::transport()
    };
    let charons = network.programs("interfaces_ignore = testudo0", &connection)?;
    until_trapped(network, &charons, 1)?;
    Ok(charons)
}

/// So many packets from A to B, in the SA between them.
fn pass_between_hosts(network: &Network, charons: &[Charon; 2], packets: u64) -> TestResult {
    // By the address of the SA: a route to what is trapped leads to an interface that has another.
    let words = ["-n", "-I", PEERS[0], "-c", &packets.to_string(), "-i", "0.2", "-W", "10", PEERS[1]];
    let output = wait::output(network.a.namespace.command("ping").args(words))?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    ensure(said.contains(" 0% packet loss"), || format!("{said}\n{}", logs(network, charons)))?;
    charons[0].until("for a CHILD_SA", only_child)?;
    let shown = network.a.ip_xfrm(&["state"])?;
    let way = format!("src {} dst {}", PEERS[0], PEERS[1]);
    ensure(shown.contains(&way) && shown.contains("mode transport"), || format!("SAs: {shown}"))?;
    let sas = network.a.program().process.ask_json(&["sa", "list"])?;
    let carried: Vec<_> = sas.as_array().into_iter().flatten().map(|sa| sa["packets"].as_u64()).collect();
    ensure(carried == [Some(packets); 2], || format!("{packets} packets each way: {sas:#}"))
}

fn of_any_address(network: &mut Network) -> TestResult {
    let charons = trapped(network, "local_addrs = %any", "")?;
    pass_between_hosts(network, &charons, 3)?;
    ends_trapped(network, charons)
}

/// The policy is for packets to anybody on the link, and its template names nobody. The packet that asks
/// waits for an SA of that policy, which never has one: once there is a better policy for it, it waits no
/// more.
fn for_any_peer(network: &mut Network) -> TestResult {
    let charons = trapped(network, "remote_addrs = %any", "remote_ts = 192.0.2.0/24")?;
    pass_between_hosts(network, &charons, 3)?;
    ends_trapped(network, charons)
}
