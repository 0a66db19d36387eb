//! The dashboard as programs see it.

use crate::support::config::pair;
use crate::support::gateway::{Gateway, run_to_end};
use crate::support::link::Link;
use crate::support::wait::{self, PATIENCE};
use crate::support::{Outcome, ensure};
use crate::{DASHBOARD, METRICS, busy, busy_pair, stop};
use serde_json::Value;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use testudo_judge::harness::{Suite, TestResult};
use testudo_lab::namespaces::Namespace;
use testudo_lab::traffic::ping;

/// Exit codes of `testudo run`.
const CONFIGURATION_IS_WRONG: i32 = 2;
const PORT_IS_WRONG: i32 = 4;

pub fn tests<'a>(suite: Suite<'a, Link>) -> Suite<'a, Link> {
    suite
        .test("a_dashboard_on_a_public_address_or_a_taken_port_is_refused", refuses)
        .test("the_dashboard_tells_what_status_tells_and_no_key", tells_status)
        .test("clients_that_crowd_the_dashboard_harm_no_gateway", is_crowded)
}

/// The answer to a request without a body, in the words of HTTP.
pub fn ask(namespace: &Namespace, address: &str, path: &str) -> Outcome<(String, String)> {
    let mut stream = namespace.within(|| TcpStream::connect(address))??;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: {address}\r\n\r\n").as_bytes())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let (head, body) = answer.split_once("\r\n\r\n").ok_or("no HTTP")?;
    Ok((head.to_owned(), body.to_owned()))
}

fn data(link: &Link) -> Outcome<(String, Value)> {
    let (head, body) = ask(&link.a, DASHBOARD, "/data.json")?;
    ensure(head.starts_with("HTTP/1.1 200 OK\r\n"), || head)?;
    let parsed = serde_json::from_str(&body)?;
    Ok((body, parsed))
}

fn refuses(link: &mut Link) -> TestResult {
    for address in ["0.0.0.0:9469", "192.0.2.1:9469", "[::]:9469"] {
        let [mut config, _] = pair(true)?;
        config.gateway = format!("dashboard = \"{address}\"");
        let folder = link.write(&config)?;
        let said = run_to_end(&link.a, &folder)?;
        let told = said.stderr.contains("gateway.dashboard") && said.stderr.contains("loopback");
        ensure(said.code == Some(CONFIGURATION_IS_WRONG) && told, || format!("{said:#?}"))?;
    }
    let taken = link.a.within(|| TcpListener::bind(DASHBOARD))??;
    let [mut config, _] = pair(true)?;
    config.gateway = format!("dashboard = \"{DASHBOARD}\"");
    let folder = link.prepare(&config)?;
    let said = run_to_end(&link.a, &folder)?.refused(PORT_IS_WRONG, &format!("dashboard on {DASHBOARD}"));
    drop(taken);
    said
}

fn tells_status(link: &mut Link) -> TestResult {
    let configs = pair(true)?;
    let pair = busy(link, configs.clone())?;
    let (text, told) = data(link)?;
    let status = pair[0].ask_json(&["status"])?;
    let keys = |value: &Value| -> Vec<String> {
        value.as_object().into_iter().flatten().map(|(key, _)| key.clone()).collect()
    };
    ensure(keys(&told["status"]) == keys(&status) && told["status"]["tunnels"] == 1, || text.clone())?;
    for key in ["engines", "version", "interfaces", "tunnels_down"] {
        ensure(told["status"][key] == status[key], || {
            format!("{key}: {} {}", told["status"][key], status[key])
        })?;
    }
    let list = pair[0].ask_json(&["sa", "list"])?;
    for of_list in list.as_array().into_iter().flatten() {
        let mut rows = told["sas"].as_array().into_iter().flatten();
        let row = rows.find(|row| row["spi"] == of_list["spi"]).ok_or_else(|| text.clone())?;
        for (key, value) in of_list.as_object().into_iter().flatten() {
            ensure(row[key] == *value, || format!("{key}: {} in place of {value}", row[key]))?;
        }
    }
    let sas = &told["sas"];
    let count = (told["sas_count"].as_u64(), told["sas_omitted"].as_u64(), sas.as_array().map(Vec::len));
    ensure(count == (Some(2), Some(0), Some(2)), || text.clone())?;
    let keys = configs[0].keys();
    ensure(keys.len() == 2, || format!("{} keys", keys.len()))?;
    for key in keys {
        // Of AES-128-GCM, and its salt behind it, in hex.
        let secret = key.get(..32).ok_or("a short key")?;
        ensure(!text.to_lowercase().contains(secret), || format!("a key is told: {text}"))?;
    }
    stop(pair)
}

/// Many more clients than are served: some silent, some that ask and do not read.
fn is_crowded(link: &mut Link) -> TestResult {
    const CROWD: usize = 60;
    let pair = busy_pair(link)?;
    let threads_of = |gateway: &Gateway| -> Outcome<usize> {
        Ok(std::fs::read_dir(format!("/proc/{}/task", gateway.process()))?.count())
    };
    let before = threads_of(&pair[0])?;
    let connect = || (0..CROWD).map(|_| TcpStream::connect(DASHBOARD)).collect::<Result<Vec<_>, _>>();
    let mut crowd = link.a.within(connect)??;
    for client in crowd.iter_mut().step_by(2) {
        client.write_all(b"GET /data.json HTTP/1.1\r\nHost: localhost\r\n\r\n")?;
    }
    let trips = ping(&link.a, "10.2.0.1".parse()?, 5, PATIENCE)?;
    ensure(trips.lost == 0, || format!("{} of 5 pings were lost", trips.lost))?;
    let threads = threads_of(&pair[0])?;
    ensure(threads <= before + 20, || format!("{threads} threads, {before} before"))?;
    let status = pair[0].ask_json(&["status"])?;
    ensure(status["tunnels"] == 1, || format!("{status:#}"))?;
    let (head, _) = ask(&link.a, METRICS, "/metrics")?;
    ensure(head.starts_with("HTTP/1.1 200 OK"), || head)?;
    drop(crowd);
    wait::until("for the dashboard", || Ok(data(link).ok()))?;
    stop(pair)
}
