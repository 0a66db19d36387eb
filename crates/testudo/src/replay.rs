//! `testudo replay`: the data path of `run`, between packet files.
//!
//! Everything that could differ between two runs is held still: the clock stands at zero, sequence numbers come from the configuration's known
//! answers (or start at 1), and the two sides take turns. Equal inputs give equal outputs.

use crate::cli::{PortFile, ReplayArgs, SideArg};
use crate::exit::{Failure, Kind, failure};
use crate::out::outln;
use crate::table::{cell, print};
use crate::{engines, ports};
use serde_json::{Value, json};
use std::sync::Arc;
use testudo_control::config::{Configuration, KnownAnswers, Loaded};
use testudo_control::service::installed::{InstalledTunnels, Numbers};
use testudo_control::service::report;
use testudo_gateway::{EngineOrder, PortPair, Worker, choose_engines};
use testudo_ipsec::Moment;
use testudo_lab::table::{Table, grouped};
use testudo_packet::Port;
use testudo_port_pcap::{PcapPort, PcapReader, PcapWriter};

/// Turns in a row without a packet after which nothing more can happen: late engines give back what they hold well within these.
const QUIET_TURNS: u32 = 1_000_000;

/// Runs packet files through the data path.
pub fn replay(args: &ReplayArgs) -> Result<(), Failure> {
    let environment = |name: &str| std::env::var(name).ok();
    let loaded = Configuration::load(&args.config, KnownAnswers::Allow, &environment)
        .map_err(|e| Failure::new(Kind::Configuration, format!("the configuration has errors\n{e}")))?;
    warn_of_reused_numbers(&loaded, args);
    let pair = PortPair {
        protected: open(SideArg::Protected, args)?,
        unprotected: open(SideArg::Unprotected, args)?,
    };
    let (mut worker, installed) = start(&loaded, pair, args)?;
    run(&mut worker)?;
    let answer = summary(&worker, &installed);
    if args.json {
        outln!("{answer}")
    } else {
        show(&answer)
    }
    Ok(())
}

/// What `replay` seals under keys that are in use must not get about: its numbers are not leased.
fn warn_of_reused_numbers(loaded: &Loaded, args: &ReplayArgs) {
    let seals = args.rx.iter().any(|f| f.side == SideArg::Protected);
    if seals && loaded.configuration.tunnels.iter().any(|t| t.known_answer.is_none()) {
        eprintln!(
            "testudo: warning: packets are sealed under numbers from 1, which a gateway with the same keys has used: \
             keep the output as secret as the keys"
        );
    }
}

fn start(loaded: &Loaded, pair: PortPair, args: &ReplayArgs) -> Result<(Worker, InstalledTunnels), Failure> {
    let names = args
        .engine
        .as_ref()
        .map_or_else(|| loaded.configuration.gateway.engines.clone(), |e| vec![e.clone()]);
    // Never by speed: a replay is to be the same again.
    let candidates = engines::candidates(&names);
    let (engines, reports) =
        choose_engines(&candidates, EngineOrder::AsNamed).map_err(failure(Kind::Engine))?;
    if let Some(wanted) = &args.engine {
        let found = reports.iter().find(|r| r.name == *wanted);
        match found {
            Some(report) if report.in_use => {}
            Some(report) => return Err(Failure::new(Kind::Engine, &report.detail)),
            None => return Err(Failure::new(Kind::Engine, format!("there is no engine \"{wanted}\""))),
        }
    }
    let mut worker = Worker::new(pair, ports::pool(&loaded.configuration), engines, Arc::default());
    let empty = InstalledTunnels::empty(loaded.configuration.clone());
    let (update, mut installed, _) =
        empty.plan(loaded, &Numbers::KnownAnswers).map_err(failure(Kind::State))?;
    match installed.note(worker.update(update, Moment::default())).as_slice() {
        [] => Ok((worker, installed)),
        errors => Err(Failure::new(Kind::Configuration, errors.join("; "))),
    }
}

fn run(worker: &mut Worker) -> Result<(), Failure> {
    let mut quiet = 0;
    while !worker.is_finished() && quiet < QUIET_TURNS {
        let moved = worker.turn(Moment::default()).map_err(failure(Kind::Port))?;
        quiet = if moved > 0 { 0 } else { quiet + 1 };
    }
    worker.discard_waiting();
    worker.finish_ports().map_err(failure(Kind::Port))
}

/// The file, if any, that is given for a side.
fn file(side: SideArg, files: &[PortFile]) -> Result<Option<&PortFile>, Failure> {
    let mut given = files.iter().filter(|f| f.side == side);
    let first = given.next();
    match given.next() {
        Some(second) => Err(Failure::new(
            Kind::Configuration,
            format!("a second file for the same port: {}", second.path.display()),
        )),
        None => Ok(first),
    }
}

fn open(side: SideArg, args: &ReplayArgs) -> Result<Box<dyn Port>, Failure> {
    let name = match side {
        SideArg::Protected => "protected",
        SideArg::Unprotected => "unprotected",
    };
    let reader =
        file(side, &args.rx)?.map(|f| PcapReader::open(&f.path)).transpose().map_err(failure(Kind::Port))?;
    let writer = file(side, &args.tx)?
        .map(|f| PcapWriter::create(&f.path))
        .transpose()
        .map_err(failure(Kind::Port))?;
    Ok(Box::new(PcapPort::new(name, reader, writer)))
}

fn summary(worker: &Worker, installed: &InstalledTunnels) -> Value {
    let counters = worker.counters();
    let side = |snapshot: testudo_gateway::PortSnapshot| {
        let c = snapshot.counters;
        json!({ "rx_packets": c.rx_packets, "rx_bytes": c.rx_bytes, "tx_packets": c.tx_packets, "tx_bytes": c.tx_bytes })
    };
    json!({
        "engines": worker.engine_names(),
        "ports": { "protected": side(counters.protected()), "unprotected": side(counters.unprotected()) },
        "created": counters.created(),
        "drops": report::drops(&counters),
        "sas": report::security_associations(installed, &report::Peers::new()),
    })
}

fn show(answer: &Value) {
    let mut ports = Table::new(&["side", "packets in", "bytes in", "packets out", "bytes out"]);
    for side in ["protected", "unprotected"] {
        let port = &answer["ports"][side];
        let counts = ["rx_packets", "rx_bytes", "tx_packets", "tx_bytes"].map(|key| cell(&port[key]));
        ports.row([side.to_owned()].into_iter().chain(counts).collect());
    }
    print(&ports);
    outln!("made by the gateway: {}", cell(&answer["created"]));
    for (reason, count) in answer["drops"].as_object().into_iter().flatten() {
        if let Some(count) = count.as_u64().filter(|n| *n > 0) {
            outln!("dropped, {}: {}", reason.replace('_', " "), grouped(count));
        }
    }
}
