//! One measurement of `testudo bench nic`: a gateway with the NIC, or with its cryptography in software.
//!
//! **Inbound**, the NIC has nothing to open either: the packets are as another such NIC has left them, in
//! clear, and each gets the next sequence number as it comes in. Software opens packets that software has
//! sealed, from a ring, as `testudo bench` has it.

use std::time::Duration;

use testudo_crypto::{Engine, PortableEngine};
use testudo_engine_inline::{Checks, Nic};
use testudo_gateway::{Candidate, EngineOrder, PortPair, choose_engines};
use testudo_packet::{Batch, Pool, Port, PortCounters, PortError};
use testudo_port_memory::{LoopPort, Packets, SinkHandle, SinkPort};
use testudo_port_twin82599::{Twin82599, TwinPort, Work};

use super::case::{Case, Way};
use super::error::Wrong;
use super::load::packets;
use super::measure::{inbound, ring_packets};
use super::subject::{Run, Subject};
use super::{judge, nic::Path};

/// Before a measurement: the SA goes to the NIC, and caches become warm.
const WARM_UP: Duration = Duration::from_millis(50);
/// Where a datagram of ESP over IPv4 has its sequence number.
const SEQUENCE_AT: usize = 24;
/// Packets that come out are compared with the originals, one in so many, of which so many are kept.
const SAMPLE_INTERVAL: usize = 509;
const SAMPLES: usize = 64;

/// Measures a case by one path.
pub(super) fn once(
    case: &Case,
    path: Path,
    candidates: &[Candidate],
    duration: Duration,
) -> Result<Run, Wrong> {
    let engines = || choose_engines(candidates, EngineOrder::FastestFirst).map_err(|e| e.to_string());
    let (engines, fastest) = (engines()?.0, || Ok::<_, Wrong>(engines()?.0.remove(0)));
    match (path, case.way) {
        (Path::Nic, Way::Outbound) => sealed_by_nic(case, engines, duration),
        (Path::Nic, Way::Inbound) => opened_by_nic(case, engines, duration),
        (Path::Software, Way::Outbound) => sealed_by_software(case, engines, duration),
        (Path::Software, Way::Inbound) => {
            let originals = originals(case)?;
            let count = ring_packets(case.sas, case.size, &originals);
            let ring = judge::seal(case, fastest()?, &originals, count)?;
            inbound(case, vec![fastest()?], ring, &originals, duration).map(|(run, ..)| run)
        }
    }
}

fn originals(case: &Case) -> Result<Packets, Wrong> {
    packets(case.suites, case.size, case.sas).map_err(|e| e.to_string())
}

/// A NIC that costs nothing, its engine before the others. It seals and opens nothing, so that none of what
/// it seals is checked, and it is not asked for known answers.
fn fit(engines: &mut Vec<Box<dyn Engine>>) -> Result<(Nic, Twin82599), Wrong> {
    // Of what it opens the first packet is, in which it fails, and then none for as long as anybody measures.
    let checks = Checks { one_of: u32::MAX / 2, tolerated: u64::MAX, seed: 1 };
    let twin = Twin82599::new(Work::Nothing).that_cannot_be_seen();
    let nic = Nic::start(Box::new(twin.clone()), Box::new(PortableEngine::new()), checks);
    let nic = nic.map_err(|e| e.to_string())?;
    engines.insert(0, Box::new(nic.engine()));
    Ok((nic, twin))
}

/// A gateway whose unprotected port is the NIC's, on this wire.
fn with_nic(
    case: &Case,
    mut engines: Vec<Box<dyn Engine>>,
    protected: Box<dyn Port>,
    wire: Box<dyn Port>,
    sink: SinkHandle,
) -> Result<(Subject, Nic), Wrong> {
    let (nic, twin) = fit(&mut engines)?;
    let port = nic.port(Box::new(TwinPort::new(twin, wire)));
    let ports = PortPair { protected, unprotected: Box::new(port) };
    Ok((Subject::between(case, case.way, engines, ports, sink)?, nic))
}

fn sealing(case: &Case, engines: Vec<Box<dyn Engine>>) -> Result<(Subject, Nic), Wrong> {
    let (port, sink) = SinkPort::new("sink");
    let feed = LoopPort::new("load", originals(case)?);
    with_nic(case, engines, Box::new(feed), Box::new(port), sink)
}

fn sealed_by_nic(case: &Case, engines: Vec<Box<dyn Engine>>, duration: Duration) -> Result<Run, Wrong> {
    let (mut subject, nic) = sealing(case, engines)?;
    subject.run_for(WARM_UP)?;
    let before = nic.report().counts.sealed;
    let run = subject.run_for(duration)?;
    all_by_nic("sealed", nic.report().counts.sealed - before, &run)?;
    subject.settle()?;
    subject.check_books()?;
    Ok(run)
}

fn sealed_by_software(case: &Case, engines: Vec<Box<dyn Engine>>, duration: Duration) -> Result<Run, Wrong> {
    let (port, sink) = SinkPort::new("sink");
    let feed = LoopPort::new("load", originals(case)?);
    let ports = PortPair { protected: Box::new(feed), unprotected: Box::new(port) };
    let mut subject = Subject::between(case, Way::Outbound, engines, ports, sink)?;
    subject.run_for(WARM_UP)?;
    let run = subject.run_for(duration)?;
    subject.settle()?;
    subject.check_books()?;
    Ok(run)
}

/// The packets that a NIC like this one has sent: headers and trailers of ESP around clear texts.
fn clear_packets(case: &Case, engines: Vec<Box<dyn Engine>>) -> Result<Packets, Wrong> {
    let sending = Case { way: Way::Outbound, ..*case };
    let (mut subject, _) = sealing(&sending, engines)?;
    subject.run_for(WARM_UP)?;
    let count = originals(case)?.len();
    subject.sink.keep(1, count);
    subject.advance(count)?;
    Ok(subject.sink.take().into())
}

fn opened_by_nic(case: &Case, engines: Vec<Box<dyn Engine>>, duration: Duration) -> Result<Run, Wrong> {
    // Engines cannot be cloned; which of them would seal what the NIC does not makes no difference.
    let clear = clear_packets(case, vec![Box::new(PortableEngine::new())])?;
    let (port, sink) = SinkPort::new("sink");
    let wire = Numbering { port: LoopPort::new("ring", clear), next: 1 };
    let (mut subject, nic) = with_nic(case, engines, Box::new(port), Box::new(wire), sink)?;
    // Until the NIC has the SA, software finds packets that nobody has sealed.
    subject.run_for(WARM_UP)?;
    let refused = subject.dropped();
    subject.sink.keep(SAMPLE_INTERVAL, SAMPLES);
    let before = nic.report().counts.opened;
    let run = subject.run_for(duration)?;
    let counts = nic.report().counts;
    all_by_nic("opened", counts.opened - before, &run)?;
    judge::compare(&subject.sink.take(), &originals(case)?)?;
    subject.settle()?;
    subject.check_books_but(refused)?;
    Ok(run)
}

fn all_by_nic(what: &str, by_nic: u64, run: &Run) -> Result<(), Wrong> {
    match by_nic < run.packets {
        true => Err(format!("the NIC {what} {by_nic} of {} packets", run.packets)),
        false => Ok(()),
    }
}

/// A wire that gives each packet of ESP the next sequence number: a replay window takes each once.
struct Numbering {
    port: LoopPort,
    next: u32,
}

impl Port for Numbering {
    fn name(&self) -> &str {
        self.port.name()
    }

    fn rx(&mut self, pool: &mut Pool, batch: &mut Batch) -> Result<usize, PortError> {
        let before = batch.len();
        let received = self.port.rx(pool, batch)?;
        for packet in &mut batch[before..] {
            if let Some(field) = packet.bytes_mut().get_mut(SEQUENCE_AT..SEQUENCE_AT + 4) {
                field.copy_from_slice(&self.next.to_be_bytes());
            }
            self.next += 1;
        }
        Ok(received)
    }

    fn tx(&mut self, pool: &mut Pool, batch: &mut Batch) -> Result<usize, PortError> {
        self.port.tx(pool, batch)
    }

    fn joins(&self) -> bool {
        self.port.joins()
    }

    fn counters(&self) -> PortCounters {
        self.port.counters()
    }
}
