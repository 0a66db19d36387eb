//! Private networks: what is built inside works like a network, and none of it is visible outside.

use std::error::Error;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::ExitCode;

use testudo_judge::harness::{Suite, TestResult};
use testudo_lab::namespaces::{Entered, Namespace, NamespaceError, enter, is_inside, veth};

fn main() -> ExitCode {
    Suite::new()
        .test("entering_twice_is_entering_once", enters_once)
        .test("only_a_loopback_exists_at_first_and_it_is_up", starts_empty)
        .test("hosts_reach_each_other_through_a_router_over_ipv4_and_ipv6", routes)
        .test("threads_open_sockets_in_a_namespace", opens_sockets_within)
        .test("commands_see_the_interfaces_of_their_namespace_in_sys", shows_its_own_sys)
        .test("a_dropped_namespace_frees_its_name", frees_names)
        .test("failures_say_what_was_tried", explains_failures)
        .run(enter)
}

fn enters_once(_: &mut Entered) -> TestResult {
    assert!(is_inside());
    enter()?;
    assert_eq!(std::process::id(), 1, "process 1 of its own: everything ends with it");
    Ok(())
}

fn starts_empty(inside: &mut Entered) -> TestResult {
    let fresh = Namespace::new(*inside, "fresh")?;
    let links = fresh.run(&["ip", "-o", "link"])?;
    assert_eq!(links.lines().count(), 1, "{links}");
    assert!(links.contains("LOOPBACK,UP"), "{links}");
    Ok(())
}

/// Two hosts and the router between them.
struct Line {
    left: Namespace,
    router: Namespace,
    right: Namespace,
}

fn line(inside: Entered) -> Result<Line, NamespaceError> {
    let new = |name| Namespace::new(inside, name);
    let line = Line { left: new("left")?, router: new("router")?, right: new("right")? };
    for (host, interface, network) in [(&line.left, "to-left", 1), (&line.right, "to-right", 2)] {
        veth((host, "wire"), (&line.router, interface))?;
        host.mtu("wire", 1400)?;
        for (at, interface, number) in [(host, "wire", 1), (&line.router, interface, 254)] {
            at.address(interface, &format!("10.0.{network}.{number}/24"))?;
            at.address(interface, &format!("fd00:{network}::{number}/64"))?;
        }
        host.route_via("default", &format!("10.0.{network}.254"))?;
        host.route_via("default", &format!("fd00:{network}::254"))?;
    }
    line.router.forward()?;
    Ok(line)
}

/// A TCP connection from one end to the other, established at once: no address waits for duplicate address
/// detection.
fn greeting(line: &Line, address: &str) -> Result<String, Box<dyn Error>> {
    let listener = line.right.within(|| TcpListener::bind((address, 7)))??;
    let port = listener.local_addr()?.port();
    let mut near = line.left.within(|| TcpStream::connect((address, port)))??;
    let (mut far, from) = listener.accept()?;
    far.write_all(b"hello")?;
    drop(far);
    let mut said = format!("{} heard ", from.ip());
    near.read_to_string(&mut said)?;
    Ok(said)
}

fn routes(inside: &mut Entered) -> TestResult {
    let line = line(*inside)?;
    assert_eq!(greeting(&line, "10.0.2.1")?, "10.0.1.1 heard hello");
    assert_eq!(greeting(&line, "fd00:2::1")?, "fd00:1::1 heard hello");
    let wire = line.left.run(&["ip", "-o", "link", "show", "wire"])?;
    assert!(wire.contains("mtu 1400"), "{wire}");
    Ok(())
}

fn opens_sockets_within(inside: &mut Entered) -> TestResult {
    let (one, other) = (Namespace::new(*inside, "one")?, Namespace::new(*inside, "other")?);
    let address = "127.0.0.1:4500";
    // The same port of the same address twice, which a single network would refuse.
    let _first = one.within(|| TcpListener::bind(address))??;
    let _second = other.within(|| TcpListener::bind(address))??;
    let _third = TcpListener::bind(address)?;
    Ok(())
}

fn shows_its_own_sys(inside: &mut Entered) -> TestResult {
    let (one, other) = (Namespace::new(*inside, "one")?, Namespace::new(*inside, "other")?);
    veth((&one, "here"), (&other, "there"))?;
    assert_eq!(one.run(&["ls", "/sys/class/net"])?, "here\nlo\n");
    Ok(())
}

fn frees_names(inside: &mut Entered) -> TestResult {
    drop(Namespace::new(*inside, "again")?);
    drop(Namespace::new(*inside, "again")?);
    let kept = Namespace::new(*inside, "again")?;
    let refused = Namespace::new(*inside, "again");
    assert!(matches!(refused, Err(NamespaceError::Command { .. })), "{refused:?}");
    // The refused namespace must not have removed the existing one.
    kept.run(&["true"])?;
    Ok(())
}

fn explains_failures(inside: &mut Entered) -> TestResult {
    let host = Namespace::new(*inside, "host")?;
    let Err(error) = host.address("nosuch", "10.0.0.1/24") else {
        return Err("an address on nothing".into());
    };
    let message = error.to_string();
    assert!(message.contains("ip -n host address add 10.0.0.1/24 dev nosuch"), "{message}");
    assert!(message.contains("Cannot find device"), "{message}");
    Ok(())
}
