//! Clients of the control socket and of the metrics: bounded, answered in time, and told why if they are
//! refused.

use super::inspection::{METRICS, scrape};
use crate::support::config::{Config, pair};
use crate::support::gateway::Gateway;
use crate::support::link::Link;
use crate::support::{Outcome, ensure, wait};
use rustix::process::{Pid, Resource, Rlimit, prlimit};
use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use testudo_judge::harness::{Suite, TestResult};

pub fn tests<'a>(suite: Suite<'a, Link>) -> Suite<'a, Link> {
    suite
        .test("idle_clients_take_no_descriptor_that_a_reload_needs", reloads_beside_idle_clients)
        .test("metrics_are_one_page_that_can_only_be_read", serves_one_page)
}

fn with_metrics() -> Outcome<Config> {
    let [mut config, _] = pair(true)?;
    config.gateway = format!("metrics = \"{METRICS}\"");
    Ok(config)
}

fn descriptors(gateway: &Gateway) -> Outcome<usize> {
    Ok(fs::read_dir(format!("/proc/{}/fd", gateway.process()))?.count())
}

/// Connects many more clients than there are descriptors left; clients that are not served wait in the
/// kernel.
fn reloads_beside_idle_clients(link: &mut Link) -> TestResult {
    const LEFT: usize = 30;
    const IDLE: usize = 100;
    let (mut gateway, folder) = link.start_a(&with_metrics()?)?;
    let limit = u64::try_from(descriptors(&gateway)? + LEFT)?;
    let process = Pid::from_raw(i32::try_from(gateway.process())?);
    prlimit(process, Resource::Nofile, Rlimit { current: Some(limit), maximum: Some(limit) })?;
    let connect = || TcpStream::connect(METRICS);
    let connections = link.a.within(|| (0..IDLE).map(|_| connect()).collect::<Result<Vec<_>, _>>())??;
    let path = folder.join("control.sock");
    let asking = (0..IDLE).map(|_| UnixStream::connect(&path)).collect::<Result<Vec<_>, _>>()?;
    gateway.reload()?;
    let log = gateway.log();
    ensure(log.contains("reloaded: 1 tunnels go on untouched") && !log.contains("reload failed"), || log)?;
    drop((connections, asking));
    // Others are served again.
    wait::until("for the metrics", || Ok(scrape(&link.a).ok()))?;
    wait::until("for the status", || Ok((gateway.ask(&["status"])?.code == Some(0)).then_some(())))?;
    gateway.stop()
}

fn serves_one_page(link: &mut Link) -> TestResult {
    let (gateway, _) = link.start_a(&with_metrics()?)?;
    let host = "Host: localhost\r\n\r\n";
    for (request, status) in [
        ("GET / HTTP/1.1\r\n", "404 Not Found"),
        ("DELETE /metrics HTTP/1.1\r\n", "405 Method Not Allowed"),
        ("rubbish\r\n", "400 Bad Request"),
        ("HEAD /metrics HTTP/1.1\r\n", "200 OK"),
    ] {
        let mut client = link.a.within(|| TcpStream::connect(METRICS))??;
        client.write_all(format!("{request}{host}").as_bytes())?;
        let mut answer = String::new();
        client.read_to_string(&mut answer)?;
        ensure(answer.starts_with(&format!("HTTP/1.1 {status}\r\n")), || format!("{request}: {answer}"))?;
        ensure(answer.contains("Connection: close"), || answer.clone())?;
    }
    gateway.stop()
}
