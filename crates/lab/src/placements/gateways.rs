//! Gateways of which part of the work is elsewhere, and what they tell of it.

use std::net::Ipv4Addr;
use std::sync::Arc;

use testudo_crypto::{Engine, EngineError};
use testudo_engine_cores::{CoresConfig, CoresEngine};
use testudo_gateway::{Clock as _, PortPair, SystemClock, Update, Worker};
use testudo_ipsec::{Action, Moment, Policy, Selector, Spd};
use testudo_packet::{Port, Stage, StageTimes, ticks};

use super::io::{Checked, Ends, Filter, IoThreads};
use super::setup::{Crypto, Setup};
use super::timing::{Book, Busy, Clock, Counter, TimedEngine, TimedPort, Times};
use crate::bench::Way;
use crate::bench::pair::{PairEngines, PairSettings, Wire, WirePort, gateway, has_work, pool};
use crate::generator::{FeedPort, ReturnPort};
use crate::supply::Supply;
use crate::tandem::Served;

/// The hosts that the generator's packets go to, and the gateway that opens them.
const HOSTS: (Ipv4Addr, u8) = (Ipv4Addr::new(172, 16, 0, 0), 12);
const OPENING_GATEWAY: (Ipv4Addr, u8) = (Ipv4Addr::new(2, 2, 2, 2), 32);

/// What the worker's thread tells of one gateway.
#[derive(Debug, Default)]
pub(super) struct Told {
    pub(super) received: Counter,
    /// Ticks of the measured turns in which headers were read, and in which policies and SAs were looked up.
    pub(super) parse: Counter,
    pub(super) look_up: Counter,
    /// Packets of those turns.
    pub(super) measured: Counter,
}

/// What all threads tell.
pub(super) struct Report {
    pub(super) gateways: Vec<Told>,
    pub(super) times: Arc<Times>,
    pub(super) io: Arc<Busy>,
    pub(super) cryptography: Arc<Busy>,
}

impl Report {
    pub(super) fn new(gateways: usize, clock: Clock) -> Arc<Self> {
        let gateways = (0..gateways).map(|_| Told::default()).collect();
        let (times, io, cryptography) = (Times::new(clock), Busy::new(clock), Busy::new(clock));
        Arc::new(Self { gateways, times, io, cryptography })
    }

    /// Whether to measure who takes how long.
    pub(super) fn set_timing(&self, is_on: bool) {
        self.times.set(is_on);
        self.io.set(is_on);
        self.cryptography.set(is_on);
    }
}

/// One or two gateways on one worker's thread.
pub(super) struct Gateways {
    workers: Vec<Worker>,
    supplies: Vec<Supply>,
    clock: SystemClock,
    wire: Wire,
    io: Option<IoThreads>,
    report: Arc<Report>,
}

/// The engines that there are: of the worker, and of whom it offloads to.
pub(super) struct Engines<'a> {
    pub(super) own: &'a PairEngines,
    pub(super) device: Option<&'a PairEngines>,
}

impl Engines<'_> {
    /// An engine of the gateway of this number that does what `setup` says, or why there is none.
    fn open(
        &self,
        setup: &Setup,
        settings: &PairSettings,
        number: usize,
        report: &Report,
    ) -> Result<Box<dyn Engine>, String> {
        let engine = match (&setup.crypto, self.device) {
            (Crypto::Worker, _) => self.own.open(settings).map_err(|error| error.to_string())?,
            (Crypto::Device(_), Some(device)) => device.open(settings).map_err(|error| error.to_string())?,
            (Crypto::Device(name), None) => return Err(format!("there is no engine {name}")),
            (Crypto::Threads(count), _) => {
                let processors = setup.threads.cryptography.clone();
                let config =
                    CoresConfig { processors, first_thread: number * count, ..CoresConfig::of(*count) };
                let unavailable = |error: crate::bench::BenchError| EngineError::Unavailable {
                    engine: testudo_engine_cores::NAME,
                    reason: error.to_string(),
                };
                let mut make = || {
                    let engine = self.own.open(settings).map_err(unavailable)?;
                    let book = Book::Thread(Arc::clone(&report.cryptography));
                    Ok(vec![TimedEngine::around(engine, book)])
                };
                Box::new(CoresEngine::open(&config, &mut make).map_err(|error| error.to_string())?)
            }
        };
        Ok(TimedEngine::around(engine, Book::Worker(Arc::clone(&report.times))))
    }
}

/// Where packets of each gateway come in and go out.
type PortsOf = Vec<(Box<dyn Port>, Box<dyn Port>)>;

impl Gateways {
    /// Builds what `setup` says between the generator and the sink, for inner packets of at most so many
    /// bytes.
    pub(super) fn build(
        setup: &Setup,
        engines: &Engines<'_>,
        longest_bytes: usize,
        (feed, sink): (FeedPort, ReturnPort),
        report: &Arc<Report>,
    ) -> Result<Self, String> {
        let wire = Wire::default();
        let (io, ports) = ports(setup, feed, sink, &wire, report)?;
        let (mut workers, mut supplies) = (Vec::new(), Vec::new());
        let ways = [Way::Outbound, Way::Inbound];
        for (number, (way, (into, out))) in ways.into_iter().zip(ports).enumerate() {
            let [into, out] = [into, out].map(|port| TimedPort::around(port, &report.times));
            let (protected, unprotected) = match way {
                Way::Outbound => (into, out),
                Way::Inbound => (out, into),
            };
            let ports = PortPair { protected, unprotected };
            match setup.suite {
                Some(suite) => {
                    let path_mtu = Some(setup.mtu);
                    let settings = PairSettings { suite, sas: setup.sas, longest_bytes, path_mtu };
                    let engine = engines.open(setup, &settings, number, report)?;
                    let (worker, supply) = gateway(&settings, ports, engine, way)?;
                    workers.push(worker);
                    supplies.push(supply);
                }
                None => workers.push(forwarder(ports, longest_bytes)?),
            }
        }
        let (clock, report) = (SystemClock::default(), Arc::clone(report));
        Ok(Self { workers, supplies, clock, wire, io, report })
    }

    /// Tells what has been done so far.
    fn tell(&self) {
        for (number, (worker, told)) in self.workers.iter().zip(&self.report.gateways).enumerate() {
            let (port, stages): (&dyn Port, &StageTimes) = match number {
                0 => (worker.protected_port(), worker.outbound_stages()),
                _ => (worker.unprotected_port(), worker.inbound_stages()),
            };
            told.received.set(port.counters().rx_packets);
            told.parse.set(stages.of(Stage::Parse));
            told.look_up.set(stages.of(Stage::Policy) + stages.of(Stage::Sa));
            told.measured.set(stages.packets);
        }
    }

    /// All gateways measure in what `clock` shows.
    #[cfg(test)]
    pub(super) fn measure_in(&mut self, clock: Clock) {
        self.workers.iter_mut().for_each(|worker| worker.measure_in(clock));
    }
}

/// A gateway that forwards packets as they are.
fn forwarder(ports: PortPair, longest_bytes: usize) -> Result<Worker, String> {
    let mut worker = Worker::new(ports, pool(longest_bytes), Vec::new(), Box::default());
    let policies = Spd::new(vec![Policy::new(Selector::ANY, Action::Bypass)]);
    let policies = Some(Box::new(policies.map_err(|error| error.to_string())?));
    worker.update(Update { policies, ..Update::default() }, Moment::default());
    Ok(worker)
}

fn ports(
    setup: &Setup,
    feed: FeedPort,
    sink: ReturnPort,
    wire: &Wire,
    report: &Report,
) -> Result<(Option<IoThreads>, PortsOf), String> {
    let filters = [Filter::to(HOSTS.0, HOSTS.1), Filter::to(OPENING_GATEWAY.0, OPENING_GATEWAY.1)];
    let processors = &setup.threads.io;
    if processors.is_empty() {
        let (feed, sink) = (Box::new(Checked::new(feed, filters[0])), Box::new(sink));
        let end = || WirePort::new(wire);
        let ports: PortsOf = match setup.suite {
            None => vec![(feed, sink)],
            Some(_) => vec![(feed, Box::new(end())), (Box::new(Checked::new(end(), filters[1])), sink)],
        };
        return Ok((None, ports));
    }
    let ends = Ends { feed, sink, filters };
    let is_shared = setup.threads.are_shared;
    let (io, ports) = IoThreads::start(ends, setup.gateways(), processors, &report.io, is_shared)?;
    let boxed = ports
        .into_iter()
        .map(|(into, out)| -> (Box<dyn Port>, Box<dyn Port>) { (Box::new(into), Box::new(out)) });
    Ok((Some(io), boxed.collect()))
}

impl Served for Gateways {
    fn turn(&mut self) -> Result<usize, String> {
        self.report.cryptography.is_worker();
        let begun = self.report.times.begin();
        let mut moved = 0;
        for worker in &mut self.workers {
            moved += worker.turn(self.clock.now()).map_err(|error| error.to_string())?;
        }
        if !self.supplies.is_empty() {
            let now = self.clock.now();
            self.supplies.iter_mut().for_each(|supply| supply.serve(now));
        }
        let has_moved = begun.is_some_and(|begun| self.report.times.commit(begun));
        if has_moved || moved > 0 {
            self.tell();
        }
        match self.io.as_ref().map_or(0, IoThreads::refused) {
            0 => Ok(moved),
            refused => Err(format!("I/O threads have refused {refused} packets that the generator sent")),
        }
    }

    fn is_busy(&self) -> bool {
        let is_io_busy = self.io.as_ref().is_some_and(IoThreads::is_busy);
        is_io_busy || self.wire.is_busy() || self.workers.iter().any(has_work)
    }
}

/// The clock of measurements: the processor's time stamp counter.
pub(super) const CLOCK: Clock = ticks;
