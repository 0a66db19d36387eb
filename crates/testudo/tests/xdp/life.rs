//! What a gateway leaves behind, and what becomes of it when its interfaces change.

use crate::support::gateway::Gateway;
use crate::support::sites::Network;
use crate::support::wait;
use crate::support::{Outcome, ensure};
use crate::traffic::{NATIVE, ends, hosts_reach_each_other};
use rustix::process::Signal;
use std::time::Duration;
use testudo_judge::harness::{Suite, TestResult};
use testudo_lab::namespaces::Namespace;
use testudo_lab::traffic::ping;

pub fn tests(suite: Suite<'_, Network>) -> Suite<'_, Network> {
    suite
        .test("a_gateway_that_is_killed_leaves_no_program_and_its_successor_starts", killed)
        .test("a_gateway_that_ends_has_all_buffers_back_and_its_books_balance", books)
        .test("an_interface_that_was_down_carries_packets_again", was_down)
        .test("an_interface_that_is_gone_ends_the_gateway_with_a_clear_word", is_gone)
}

/// Whether a program of XDP is attached to both interfaces of a gateway.
fn is_attached(host: &Namespace) -> Outcome<[bool; 2]> {
    let mut attached = [false; 2];
    for (at, interface) in attached.iter_mut().zip(["lan", "wan"]) {
        *at = host.run(&["ip", "-d", "link", "show", interface])?.contains("prog/xdp");
    }
    Ok(attached)
}

fn killed(network: &mut Network) -> TestResult {
    let configs = ends(false, false, NATIVE)?;
    let [a, b] = network.start(&configs)?;
    assert_eq!(is_attached(&network.a)?, [true; 2]);
    a.kill()?;
    // The kernel ends a link once its last descriptor is closed, a moment after the process.
    wait::until("for the programs to be detached", || {
        Ok((is_attached(&network.a)? == [false; 2]).then_some(()))
    })?;
    let folder = network.folder_of(&configs[0])?;
    let a = Gateway::start(&network.a, &folder)?;
    assert_eq!(is_attached(&network.a)?, [true; 2]);
    a.stop()?;
    assert_eq!(is_attached(&network.a)?, [false; 2], "nor does one that ends");
    b.stop()
}

/// What a gateway says of its packets when it ends: `12 received, …, 0 buffers held`.
fn books(network: &mut Network) -> TestResult {
    let gateways = network.start(&ends(false, false, NATIVE)?)?;
    hosts_reach_each_other(network)?;
    for gateway in gateways {
        let log = gateway.last_words(Signal::TERM)?;
        let line = log.lines().rfind(|line| line.contains("buffers held")).ok_or("no line")?;
        let line = line.split_once("packets: ").ok_or("other words")?.1;
        let number = |word: &str| -> Outcome<u64> {
            let part = line.split(", ").find(|part| part.ends_with(word));
            let number = part.and_then(|part| part.split(' ').next()).ok_or(format!("{word}: {line}"))?;
            Ok(number.parse()?)
        };
        let came = number("received")? + number("created")?;
        let went = number("sent")? + number("dropped")? + number("merged")?;
        ensure(came == went && came > 1000 && number("held")? == 0, || format!("{line}\n{log}"))?;
    }
    Ok(())
}

fn was_down(network: &mut Network) -> TestResult {
    let [a, b] = network.start(&ends(false, false, NATIVE)?)?;
    hosts_reach_each_other(network)?;
    network.a.run(&["ip", "link", "set", "lan", "down"])?;
    a.logs("lan was taken down")?;
    network.a.link_up("lan")?;
    a.logs("lan is up again")?;
    let address = "10.2.0.10".parse()?;
    wait::until("for a ping", || {
        Ok((ping(&network.left, address, 1, Duration::from_secs(1))?.lost == 0).then_some(()))
    })
    .map_err(|e| format!("{e}\n{}", a.log()))?;
    network.a.address("lan", "fd01::1/64")?;
    a.stop()?;
    b.stop()
}

fn is_gone(network: &mut Network) -> TestResult {
    let site = &network.b;
    site.run(&["ip", "link", "add", "spare", "type", "veth", "peer", "name", "other"])?;
    site.link_up("spare")?;
    site.link_up("other")?;
    let [_, mut b] = ends(false, false, "")?;
    b.kinds[0] = Some("kind = \"xdp\"\ninterface = \"spare\"".to_owned());
    let folder = network.folder_of(&b)?;
    let gateway = Gateway::start(&network.b, &folder)?;
    network.b.run(&["ip", "link", "delete", "spare"])?;
    gateway.logs("port spare: receive").map_err(|e| format!("{e}\n{}", gateway.log()))?;
    Ok(())
}
