//! `testudo ike status`: which daemons there are, whether they speak to the gateway, and how long tunnels
//! were without traffic when it was restarted.

use super::gateway::DEFAULT_SOCKET;
use super::host::Host;
use super::outage;
use super::plan::Plan;
use super::record::Record;
use super::texts;
use crate::cli::ike::{DaemonArg, IkeStatusArgs};
use crate::exit::Failure;
use crate::out::outln;
use crate::table::print;
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};
use testudo_lab::table::Table;

/// Daemons by the names of their processes, as the kernel shows them: 15 characters at most.
const PROCESSES: [(&str, DaemonArg); 3] = [
    ("charon-systemd", DaemonArg::Strongswan),
    ("charon", DaemonArg::Strongswan),
    ("pluto", DaemonArg::Libreswan),
];
const LIBRARY: &str = "libtestudo-xfrm.so";

/// Shows the daemons, the sockets and the gateways.
pub fn status(args: &IkeStatusArgs) -> Result<(), Failure> {
    let host = Host::new(&args.root);
    let running = running(&host);
    let mut daemons = Vec::new();
    let mut sockets: Vec<PathBuf> = args.socket.iter().cloned().collect();
    let mut records = Vec::new();
    for daemon in [DaemonArg::Strongswan, DaemonArg::Libreswan] {
        let record = Record::read(&host, texts::name(daemon))?;
        if let Some(record) = record.as_ref().filter(|_| args.socket.is_none()) {
            sockets.push(PathBuf::from(&record.socket));
        }
        let set_up = match &record {
            None => "no",
            Some(record) if Plan::undo(&host, record)?.conflicts.is_empty() => "yes",
            Some(_) => "changed since",
        };
        let processes = running.iter().filter(|process| process.daemon == daemon);
        daemons.push(json!({
            "daemon": texts::name(daemon),
            "services": host.units(daemon),
            "set_up": set_up,
            "processes": processes.map(Process::json).collect::<Vec<_>>(),
        }));
        records.extend(record);
    }
    if sockets.is_empty() {
        sockets.push(DEFAULT_SOCKET.into());
    }
    sockets.dedup();
    let sockets = sockets.iter().map(|path| json!({ "path": path, "is_there": host.has_socket(path) }));
    let controls = outage::controls(&host, args.control.as_deref(), &records);
    let gateways = controls.iter().map(|control| outage::of_gateway(&host, control));
    let answer = json!({
        "daemons": daemons,
        "sockets": sockets.collect::<Vec<_>>(),
        "gateways": gateways.collect::<Vec<_>>(),
    });
    if args.json {
        outln!("{answer:#}")
    } else {
        show(&answer)
    }
    Ok(())
}

struct Process {
    daemon: DaemonArg,
    id: u32,
    name: &'static str,
    library: &'static str,
}

impl Process {
    fn json(&self) -> Value {
        json!({ "pid": self.id, "name": self.name, "library": self.library })
    }
}

/// The daemons that run on the host.
fn running(host: &Host) -> Vec<Process> {
    let ids = host.names("/proc").into_iter().filter_map(|name| name.parse::<u32>().ok());
    let mut processes: Vec<_> = ids
        .filter_map(|id| {
            let comm = host.text(Path::new(&format!("/proc/{id}/comm")));
            let (name, daemon) = PROCESSES.into_iter().find(|(name, _)| *name == comm.trim_end())?;
            // The whole of it: large daemons map many files, and LD_PRELOAD's come among the last.
            let maps = fs::read(host.path(Path::new(&format!("/proc/{id}/maps"))));
            let maps = maps.as_deref().map(String::from_utf8_lossy);
            let library = match maps {
                Err(_) => "unknown: run this as root",
                Ok(maps) => loaded(&maps),
            };
            Some(Process { daemon, id, name, library })
        })
        .collect();
    processes.sort_by_key(|process| process.id);
    processes
}

/// What a process's memory says of the library.
fn loaded(maps: &str) -> &'static str {
    let deleted = format!("{LIBRARY} (deleted)");
    let lines: Vec<_> = maps.lines().filter(|line| line.contains(LIBRARY)).collect();
    match lines[..] {
        [] => "not loaded",
        _ if lines.iter().any(|line| line.ends_with(&deleted)) => {
            "loaded, but replaced on the disk since: restart it"
        }
        _ => "loaded",
    }
}

fn show(answer: &Value) {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let mut table = Table::new(&["daemon", "services", "set up", "running", "library"]);
    for daemon in answer["daemons"].as_array().into_iter().flatten() {
        let services: Vec<_> = daemon["services"].as_array().into_iter().flatten().map(text).collect();
        let services = if services.is_empty() { "not installed".to_owned() } else { services.join(", ") };
        let mut first = vec![text(&daemon["daemon"]), services, text(&daemon["set_up"])];
        let processes = daemon["processes"].as_array().map_or(&[][..], Vec::as_slice);
        if processes.is_empty() {
            first.extend(["no".to_owned(), String::new()]);
            table.row(first);
            continue;
        }
        for process in processes {
            let running = format!("{}, process {}", text(&process["name"]), process["pid"]);
            first.extend([running, text(&process["library"])]);
            table.row(std::mem::replace(&mut first, vec![String::new(); 3]));
        }
    }
    print(&table);
    outln!();
    for socket in answer["sockets"].as_array().into_iter().flatten() {
        let is_there = socket["is_there"].as_bool() == Some(true);
        outln!(
            "the gateway's socket {} is {}",
            text(&socket["path"]),
            if is_there { "there" } else { "not there" }
        );
    }
    for gateway in answer["gateways"].as_array().into_iter().flatten() {
        outln!("{}", outage::line(gateway));
    }
}
