//! An eavesdropper on the outer link finds nothing of what negotiated SAs protect: neither before they are
//! there, nor while they are, nor when daemon and gateway are killed.

use crate::connection::Connection;
use crate::host::Host;
use crate::network::{LINK, Network};
use crate::strongswan::{Charon, only_child};
use crate::support::config::CONFIGURATION;
use crate::support::gateway::PROGRAM;
use crate::support::{Outcome, ensure, folder, wait};
use crate::traffic::{INNER, logs, with_addresses};
use std::fs::File;
use std::process::{Child, Stdio};
use testudo_judge::harness::{Suite, TestResult};
use testudo_lab::capture::{Capture, HEADERS, Recording};
use testudo_lab::namespaces::Namespace;
use testudo_lab::traffic::Stream;

/// What A and B protect for each other.
const NETWORKS: [&str; 2] = ["10.1.0.0/16", "10.2.0.0/16"];
/// Tables of rules.
const RUNNING: &str = "testudo-testudo0-running";
const HELD: &str = "testudo-testudo0-before-0";

type Tests<'a> = Suite<'a, Network>;

pub fn tests(suite: Tests<'_>) -> Tests<'_> {
    suite.test("nothing_is_in_clear_on_the_link_when_daemon_or_gateway_dies", nothing_in_clear)
}

/// Packets of a recording: those of ESP, and those with the header of an inner one.
fn judged(recording: &Recording) -> Outcome<(usize, usize)> {
    const ETHERNET_BYTES: usize = 14;
    const ESP: u8 = 50;
    let [a, b] = INNER.map(|address| address.parse::<std::net::Ipv4Addr>());
    let [a, b] = [a?.octets(), b?.octets()];
    let readable = [[a, b].concat(), [b, a].concat()];
    let (mut protected, mut clear) = (0, 0);
    recording.frames(|frame, _| {
        let is_read = readable.iter().any(|ends| frame.windows(ends.len()).any(|window| window == ends));
        clear += usize::from(is_read);
        protected += usize::from(frame.get(ETHERNET_BYTES + 9) == Some(&ESP));
    })?;
    Ok((protected, clear))
}

fn record(host: &Host, name: &str) -> Outcome<Capture> {
    Ok(Capture::start(&host.namespace, LINK, &folder(name)?.join("wan.pcap"), HEADERS)?)
}

/// `testudo firewall` on a host.
fn firewall(host: &Host, words: &[&str]) -> Outcome<()> {
    let mut command = host.namespace.command(PROGRAM);
    command.current_dir(host.folder.join("testudo")).args(["firewall", CONFIGURATION]).args(words);
    let output = wait::output(&mut command)?;
    ensure(output.status.success(), || String::from_utf8_lossy(&output.stderr).into_owned())
}

/// A `testudo firewall --follow` on a host. Dropping it kills it.
struct Follower(Child);

impl Follower {
    fn start(host: &Host) -> Outcome<Self> {
        let folder = host.folder.join("testudo");
        let log = File::create(host.folder.join("follower.log"))?;
        let mut command = host.namespace.command(PROGRAM);
        command.args(["firewall", "--follow"]).arg(folder.join(CONFIGURATION));
        Ok(Self(command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log).spawn()?))
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Waits until a table of rules on a host closes a network, or does no more.
fn rules_close(host: &Host, table: &str, network: &str, closes: bool) -> Outcome<()> {
    let list = ["nft", "list", "table", "inet", table];
    wait::until(&format!("for {table} of {} with {network}: {closes}", host.namespace.name()), || {
        // There may be no such table.
        let rules = host.namespace.run(&list).unwrap_or_default();
        Ok((rules.contains(network) == closes).then_some(()))
    })
    .map_err(|error| {
        let log = std::fs::read_to_string(host.folder.join("follower.log")).unwrap_or_default();
        format!("{error}\n{log}").into()
    })
}

/// Sends packets that nobody may see, whether they are refused or lost.
fn tries(from: &Namespace, [source, to]: [&str; 2]) -> Outcome<()> {
    let words = ["-n", "-c", "4", "-i", "0.1", "-W", "1", "-I", source, to];
    wait::output(from.command("ping").args(words)).map(drop)
}

fn nothing_in_clear(network: &mut Network) -> TestResult {
    let connection = Connection::child("start_action = trap");
    let mut charons = network.programs("", &connection)?;
    with_addresses(network)?;
    let mut followers = Vec::new();
    for (host, gateway, remote) in
        [(&network.a, "192.0.2.2", NETWORKS[1]), (&network.b, "192.0.2.1", NETWORKS[0])]
    {
        // So that what does not meet the gateway leaves, and arrives.
        host.namespace.run(&["ip", "route", "replace", "default", "via", gateway])?;
        followers.push(Follower::start(host)?);
        rules_close(host, RUNNING, remote, true)?;
    }
    let capture = record(&network.a, "clear")?;
    let stream = Stream::start((&network.a.namespace, INNER[0]), (&network.b.namespace, INNER[1]))?;
    stream.flows(50).map_err(|error| format!("{error}\n{}", logs(network, &charons)))?;
    charons[0].until("for a CHILD_SA", only_child)?;
    // What the daemon has negotiated goes on without it.
    charons[0].kill()?;
    stream.flows(50)?;
    if let Some(program) = network.a.program.take() {
        program.process.kill()?;
    }
    tries(&network.a.namespace, INNER)?;
    tries(&network.b.namespace, [INNER[1], INNER[0]])?;
    network.a.start_program()?;
    // The next gateway knows nothing of what the one before had.
    rules_close(&network.a, HELD, NETWORKS[1], true)?;
    rules_close(&network.a, RUNNING, NETWORKS[1], false)?;
    tries(&network.a.namespace, INNER)?;
    charons[0] = Charon::start(&network.a, "")?;
    charons[0].load(&connection.of_a())?;
    stream.flows(50).map_err(|error| format!("{error}\n{}", logs(network, &charons)))?;
    rules_close(&network.a, RUNNING, NETWORKS[1], true)?;
    rules_close(&network.a, HELD, NETWORKS[1], false)?;
    tries(&network.a.namespace, INNER)?;
    stream.end()?;
    let recording = capture.finish(&network.a.namespace)?;
    let (protected, clear) = judged(&recording)?;
    ensure(clear == 0 && protected > 150 && recording.not_recorded == 0, || {
        format!("{clear} packets in clear and {protected} of ESP in {recording:?}")
    })?;
    opens(network, charons, followers)
}

/// A daemon that ends takes back what it has negotiated, and the rules follow: packets pass in clear, and the
/// eavesdropper does see them.
fn opens(network: &mut Network, charons: [Charon; 2], followers: Vec<Follower>) -> TestResult {
    network.all_is_well(&charons)?;
    for charon in charons {
        charon.stop()?;
    }
    let capture = record(&network.a, "seen")?;
    rules_close(&network.a, RUNNING, NETWORKS[1], false)?;
    rules_close(&network.b, RUNNING, NETWORKS[0], false)?;
    tries(&network.a.namespace, INNER)?;
    let (_, clear) = judged(&capture.finish(&network.a.namespace)?)?;
    ensure(clear > 0, || "packets in clear are not seen".to_owned())?;
    drop(followers);
    for host in [&mut network.a, &mut network.b] {
        firewall(host, &["--remove"])?;
        let left = host.namespace.run(&["nft", "list", "tables"])?;
        ensure(!left.contains("testudo"), || format!("tables are left: {left}"))?;
        host.namespace.run(&["ip", "route", "del", "default"])?;
        if let Some(program) = host.program.take() {
            program.process.stop()?;
        }
    }
    Ok(())
}
