//! `testudo replay`: the data path of `run`, on packet files.
//!
//! Equal inputs give equal outputs: the clock is always zero, sequence numbers come from the configuration's
//! known answers (or start at 1), and the two sides take turns. Packets keep the time stamps of the inputs
//! that they came from, and a list says what became of each.
//!
//! All inputs are opened before any output, so that an unreadable input leaves the outputs of an earlier run
//! unchanged. A damaged input is read up to the damage; the output so far is kept, and the program fails.

mod journal;
mod list;
mod outputs;

use crate::cli::{PortFile, ReplayArgs, SideArg};
use crate::exit::{Failure, Kind, failure};
use crate::out::{errln, outln};
use crate::table::{cell, print};
use crate::{engines, ports as devices};
use journal::Notes;
use list::List;
use outputs::Output;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, OnceLock};
use testudo_control::config::{Configuration, KnownAnswers, Loaded};
use testudo_control::keys::KeySource;
use testudo_control::service::installed::{InstalledTunnels, Numbers};
use testudo_control::service::report;
use testudo_gateway::{
    EngineOrder, EngineReport, PlacementMode, PortPair, Scheduled, SchedulerSettings, Worker, choose_engines,
};
use testudo_ipsec::Moment;
use testudo_lab::table::{Table, grouped};
use testudo_packet::Port;
use testudo_port_pcap::{Allowance, Ending, PcapError, PcapPort, PcapReader};

/// The replay ends after so many turns in a row without a packet; engines return late jobs well within these.
const QUIET_TURNS: u32 = 1_000_000;

/// Runs packet files through the data path.
pub fn replay(args: &ReplayArgs) -> Result<(), Failure> {
    let environment = |name: &str| std::env::var(name).ok();
    // Refused before anything is read or written.
    for side in [SideArg::Protected, SideArg::Unprotected] {
        file(side, &args.rx)?;
        file(side, &args.tx)?;
    }
    let mut loaded = Configuration::load(&args.config, KnownAnswers::Allow, &environment)
        .map_err(|e| Failure::new(Kind::Configuration, format!("the configuration has errors\n{e}")))?;
    // At a clock that stands still, packets would wait for ever: those of all tunnels leave as they come.
    for tunnel in &mut loaded.configuration.tunnels {
        tunnel.rules.clocked_packets_per_second = 0;
    }
    let readers = [open_input(SideArg::Protected, args)?, open_input(SideArg::Unprotected, args)?];
    let endings: Vec<_> = readers.iter().flatten().map(PcapReader::ending).collect();
    let outputs = open_outputs(&loaded, args)?;
    let prints = !outputs.iter().any(Output::is_standard_output);
    if args.list && !prints {
        let message = "--list prints to standard output, where packets would end up among its lines";
        return Err(Failure::new(Kind::Configuration, message));
    }
    warn_of_reused_numbers(&loaded, args);
    let notes = Notes::new(args.list);
    let pace = args.batch.map(|packets| Pace { packets, left: [Allowance::default(), Allowance::default()] });
    let ports = ports(readers, &outputs, args, pace.as_ref())?;
    let (mut worker, installed, engines) = start(&loaded, ports, args, &notes)?;
    let list = args.list.then(|| List::new(&installed, args.json));
    run(&mut worker, &notes, list, pace.as_ref())?;
    outputs::keep(outputs)?;
    let answer = summary(&worker, &installed, &engines);
    match prints {
        true if args.json => outln!("{answer}"),
        true => show(&answer),
        // The summary would end up among the packets.
        false => {}
    }
    judge(&endings)
}

/// How many packets of each input a turn takes.
struct Pace {
    packets: usize,
    left: [Allowance; 2],
}

/// Packets that `replay` encrypts under keys in use must stay secret: their sequence numbers are not leased.
fn warn_of_reused_numbers(loaded: &Loaded, args: &ReplayArgs) {
    let seals = args.rx.iter().any(|f| f.side == SideArg::Protected);
    if seals && loaded.configuration.tunnels.iter().any(|t| t.known_answer.is_none()) {
        errln!(
            "testudo: warning: packets are encrypted with sequence numbers from 1, which a gateway with these keys has used: \
             keep the output as secret as the keys"
        );
    }
}

fn start(
    loaded: &Loaded,
    pair: PortPair,
    args: &ReplayArgs,
    notes: &Notes,
) -> Result<(Worker, InstalledTunnels, Vec<EngineReport>), Failure> {
    let names = args
        .engine
        .as_ref()
        .map_or_else(|| loaded.configuration.gateway.engines.clone(), |e| vec![e.clone()]);
    // Never by speed: every run of a replay must give the same result.
    let candidates = engines::candidates(&names, &loaded.configuration);
    let (engines, reports) =
        choose_engines(&candidates, EngineOrder::AsNamed).map_err(failure(Kind::Engine))?;
    if let Some(wanted) = &args.engine {
        let found = reports.iter().find(|r| r.is_of(wanted));
        match found {
            Some(report) if report.in_use => {}
            Some(report) => return Err(Failure::new(Kind::Engine, &report.detail)),
            None => return Err(Failure::new(Kind::Engine, format!("there is no engine \"{wanted}\""))),
        }
    }
    let pool = devices::buffers::offline(&loaded.configuration).with_journal(Box::new(notes.clone()));
    let mut worker = Worker::new(pair, pool, engines, Box::default());
    // Never by what engines cost, likewise.
    let placement = PlacementMode::First;
    worker.set_scheduler(&SchedulerSettings { placement, ..loaded.configuration.scheduler });
    let empty = InstalledTunnels::empty(loaded.configuration.clone());
    let (update, mut installed, _) =
        empty.plan(loaded, &Numbers::KnownAnswers).map_err(failure(Kind::State))?;
    match installed.note(worker.update(update, Moment::default())).as_slice() {
        [] => Ok((worker, installed, reports)),
        errors => Err(Failure::new(Kind::Configuration, errors.join("; "))),
    }
}

fn run(
    worker: &mut Worker,
    notes: &Notes,
    mut list: Option<List<'_>>,
    pace: Option<&Pace>,
) -> Result<(), Failure> {
    let mut quiet = 0;
    while !worker.is_finished() && quiet < QUIET_TURNS {
        if let Some(Pace { packets, left }) = pace {
            left.iter().for_each(|left| left.set(*packets));
        }
        let moved = worker.turn(Moment::default()).map_err(failure(Kind::Port))?;
        quiet = if moved > 0 { 0 } else { quiet + 1 };
        if let Some(list) = &mut list {
            list.print(&notes.take())?;
        }
    }
    worker.end_waits();
    worker.discard_waiting();
    if let Some(list) = &mut list {
        list.print(&notes.take())?;
        list.print(&notes.take_lost())?;
    }
    worker.finish_ports().map_err(failure(Kind::Port))
}

/// The file, if any, given for a side.
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

fn open_input(side: SideArg, args: &ReplayArgs) -> Result<Option<PcapReader>, Failure> {
    file(side, &args.rx)?.map(|f| PcapReader::open(&f.path)).transpose().map_err(failure(Kind::Port))
}

/// The outputs, in command-line order.
fn open_outputs(loaded: &Loaded, args: &ReplayArgs) -> Result<Vec<Output>, Failure> {
    let keys = loaded.configuration.tunnels.iter().flat_map(|t| [&t.outbound.key, &t.inbound.key]);
    let key_files = keys.filter_map(|key| match key {
        KeySource::File(path) => Some(("key file", path.as_path())),
        KeySource::Environment(_) | KeySource::Exchanged => None,
    });
    let mut inputs: Vec<(&str, &Path)> = args.rx.iter().map(|f| ("input", f.path.as_path())).collect();
    inputs.push(("configuration", &args.config));
    inputs.push(("state", &loaded.configuration.gateway.state));
    inputs.extend(key_files);
    let paths: Vec<&Path> = args.tx.iter().map(|f| f.path.as_path()).collect();
    outputs::open(&paths, &inputs)
}

fn ports(
    [protected, unprotected]: [Option<PcapReader>; 2],
    outputs: &[Output],
    args: &ReplayArgs,
    pace: Option<&Pace>,
) -> Result<PortPair, Failure> {
    let port = |name: &str, side: SideArg, reader: Option<PcapReader>| -> Result<Box<dyn Port>, PcapError> {
        let left = pace.map(|pace| &pace.left[usize::from(side == SideArg::Unprotected)]);
        let reader = match (reader, left) {
            (Some(reader), Some(left)) => Some(reader.within(left.clone())),
            (reader, _) => reader,
        };
        let output = args.tx.iter().zip(outputs).find(|(file, _)| file.side == side);
        let writer = output.map(|(_, output)| output.writer()).transpose()?;
        Ok(Box::new(PcapPort::new(name, reader, writer)))
    };
    let pair = port(journal::PROTECTED, SideArg::Protected, protected).and_then(|protected| {
        Ok(PortPair { protected, unprotected: port("unprotected", SideArg::Unprotected, unprotected)? })
    });
    pair.map_err(failure(Kind::Port))
}

/// Prints warnings about the inputs; fails if one of them was damaged.
fn judge(endings: &[Arc<OnceLock<Ending>>]) -> Result<(), Failure> {
    let endings: Vec<&Ending> = endings.iter().filter_map(|ending| ending.get()).collect();
    for note in endings.iter().flat_map(|ending| &ending.notes) {
        errln!("testudo: warning: {note}");
    }
    let errors = endings.iter().filter_map(|ending| ending.error.as_ref());
    let errors: Vec<String> = errors.map(|e| format!("{e}; the packets before it were replayed")).collect();
    if errors.is_empty() { Ok(()) } else { Err(Failure::new(Kind::Other, errors.join("\n"))) }
}

fn summary(worker: &Worker, installed: &InstalledTunnels, engines: &[EngineReport]) -> Value {
    let in_service = report::EnginesInService::new(engines, &[]);
    let counters = worker.counters();
    let late: BTreeMap<_, _> = counters.late_jobs().collect();
    let of = |(engine, one): (&'static str, Scheduled)| {
        let late = late.get(engine).map_or(&[][..], Vec::as_slice);
        (engine.to_owned(), report::scheduler(&one, late))
    };
    let scheduler: Map<_, _> = counters.scheduled().map(of).collect();
    let side = |snapshot: testudo_gateway::PortSnapshot| {
        let c = snapshot.counters;
        json!({ "rx_packets": c.rx_packets, "rx_bytes": c.rx_bytes, "tx_packets": c.tx_packets, "tx_bytes": c.tx_bytes })
    };
    json!({
        "engines": worker.engine_names(),
        "scheduler": scheduler,
        "ports": { "protected": side(counters.protected()), "unprotected": side(counters.unprotected()) },
        "created": counters.created(),
        "merged": counters.merged(),
        "drops": report::drops(&counters.drops()),
        // Packets of a file have no present: what was learned of a path is 0 seconds old.
        "sas": report::security_associations(installed, &report::Peers::new(), &in_service, Moment::default()),
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
    outln!("created by the gateway: {}", cell(&answer["created"]));
    if answer["merged"].as_u64().is_some_and(|n| n > 0) {
        outln!("fragments merged: {}", cell(&answer["merged"]));
    }
    for (reason, count) in answer["drops"].as_object().into_iter().flatten() {
        if let Some(count) = count.as_u64().filter(|n| *n > 0) {
            outln!("dropped, {}: {}", reason.replace('_', " "), grouped(count));
        }
    }
}
