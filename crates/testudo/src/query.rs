//! Verbs that ask a running gateway.

use crate::cli::{ExplainArgs, QueryArgs, SideArg};
use crate::exit::{Failure, Kind, failure};
use crate::out::outln;
use crate::table::{Table, cell, grouped};
use serde_json::{Value, json};
use std::path::PathBuf;
use testudo_control::service::api::ask;
use testudo_control::service::daemon::control_path;

/// Reserved by IANA: no policy has reason to name it.
const UNNAMED_PROTOCOL: u8 = 255;

/// Where a gateway's control socket is unless somebody says otherwise.
const DEFAULT_CONTROL: &str = "/run/testudo/control.sock";

/// The control socket of the gateway that is asked.
pub fn socket(args: &QueryArgs) -> Result<PathBuf, Failure> {
    match (&args.control, &args.config) {
        (Some(path), _) => Ok(path.clone()),
        (None, Some(config)) => control_path(config).map_err(failure(Kind::Configuration)),
        (None, None) => Ok(DEFAULT_CONTROL.into()),
    }
}

/// Asks, and prints the answer: as it is with `--json`, else by `show`.
fn query(args: &QueryArgs, request: &Value, show: fn(&Value)) -> Result<(), Failure> {
    let answer = ask(&socket(args)?, request).map_err(failure(Kind::Unreachable))?;
    if args.json {
        outln!("{answer}")
    } else {
        show(&answer)
    }
    Ok(())
}

/// `testudo status`
pub fn status(args: &QueryArgs) -> Result<(), Failure> {
    query(args, &json!({ "verb": "status" }), show_status)
}

/// `testudo sa list`
pub fn security_associations(args: &QueryArgs) -> Result<(), Failure> {
    query(args, &json!({ "verb": "sa-list" }), show_associations)
}

/// `testudo policy list`
pub fn policies(args: &QueryArgs) -> Result<(), Failure> {
    query(args, &json!({ "verb": "policy-list" }), show_policies)
}

/// `testudo explain`
pub fn explain(args: &ExplainArgs) -> Result<(), Failure> {
    let side = match args.side {
        SideArg::Protected => "protected",
        SideArg::Unprotected => "unprotected",
    };
    let request = json!({
        "verb": "explain", "side": side, "source": args.source, "destination": args.destination,
        "protocol": args.protocol.unwrap_or(UNNAMED_PROTOCOL), "source_port": args.source_port, "destination_port": args.destination_port,
    });
    query(&args.gateway, &request, show_explanation)
}

fn rows(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn show_status(status: &Value) {
    let uptime = status["uptime_seconds"].as_u64().unwrap_or(0);
    outln!(
        "testudo {}, up {}:{:02}:{:02}, {} tunnels ({} down)",
        cell(&status["version"]),
        uptime / 3600,
        uptime / 60 % 60,
        uptime % 60,
        cell(&status["tunnels"]),
        cell(&status["tunnels_down"])
    );
    let mut engines = Table::new(&["engine", "in use", "detail"]);
    for engine in rows(&status["engines"]) {
        engines.row(vec![cell(&engine["name"]), cell(&engine["in_use"]), cell(&engine["detail"])]);
    }
    outln!();
    engines.print();
    let mut ports = Table::new(&["side", "port", "packets in", "bytes in", "packets out", "bytes out"]);
    for side in ["protected", "unprotected"] {
        let port = &status["ports"][side];
        let counts = ["name", "rx_packets", "rx_bytes", "tx_packets", "tx_bytes"].map(|key| cell(&port[key]));
        ports.row([side.to_owned()].into_iter().chain(counts).collect());
    }
    outln!();
    ports.print();
    let mut drops = Table::new(&["dropped because", "packets"]);
    let counted = status["drops"].as_object().into_iter().flatten();
    let counted: Vec<_> =
        counted.filter_map(|(reason, n)| Some((reason, n.as_u64().filter(|n| *n > 0)?))).collect();
    for (reason, count) in &counted {
        drops.row(vec![reason.replace('_', " "), grouped(*count)]);
    }
    outln!();
    if counted.is_empty() { outln!("no packet was dropped") } else { drops.print() }
}

fn show_associations(list: &Value) {
    let heads = [
        "tunnel",
        "direction",
        "spi",
        "remote",
        "suite",
        "via",
        "state",
        "packets",
        "bytes",
        "sequence",
        "dropped",
    ];
    let mut table = Table::new(&heads);
    for sa in rows(list) {
        let dropped: u64 =
            sa["drops"].as_object().into_iter().flatten().filter_map(|(_, n)| n.as_u64()).sum();
        table.row(vec![
            cell(&sa["tunnel"]),
            cell(&sa["direction"]),
            format!("{:#x}", sa["spi"].as_u64().unwrap_or(0)),
            cell(if sa["peer"].is_null() { &sa["remote"] } else { &sa["peer"] }),
            format!("{}{}", cell(&sa["suite"]), if sa["esn"] == true { ", esn" } else { "" }),
            cell(&sa["encapsulation"]),
            cell(&sa["state"]),
            cell(&sa["packets"]),
            cell(&sa["bytes"]),
            cell(&sa["sequence"]),
            grouped(dropped),
        ]);
    }
    table.print();
}

fn show_policies(list: &Value) {
    let mut table =
        Table::new(&["place", "from", "action", "local", "remote", "protocol", "ports (local, remote)"]);
    for policy in rows(list) {
        let action = match policy["tunnel"].as_str() {
            Some(tunnel) => format!("{} by {tunnel}", cell(&policy["action"])),
            None => cell(&policy["action"]),
        };
        table.row(vec![
            cell(&policy["place"]),
            cell(&policy["origin"]),
            action,
            cell(&policy["local"]),
            cell(&policy["remote"]),
            cell(&policy["protocol"]),
            format!("{}, {}", cell(&policy["local_ports"]), cell(&policy["remote_ports"])),
        ]);
    }
    table.print();
    outln!("what no policy names is discarded");
}

fn show_explanation(answer: &Value) {
    for policy in rows(&answer["passed_over"]) {
        outln!(
            "place {} ({}): no, {}",
            cell(&policy["place"]),
            cell(&policy["origin"]),
            cell(&policy["why"])
        );
    }
    if let Some(more) = answer["passed_over_untold"].as_u64().filter(|n| *n > 0) {
        outln!("… and {} more that do not match", grouped(more));
    }
    let policy = &answer["policy"];
    if !policy.is_null() {
        let (place, origin) = (cell(&policy["place"]), cell(&policy["origin"]));
        outln!("place {place} ({origin}): yes, {} {}", cell(&policy["action"]), cell(&policy["selector"]));
    }
    outln!("=> {}", cell(&answer["verdict"]));
}
