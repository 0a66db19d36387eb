//! Nothing is allocated per packet, no flood grows a table (DESIGN, "Memory"), and what the worker allocates
//! and frees for a change of tunnels and policies does not depend on how large these are, nor on how many
//! others there are.

#![allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::expect_used,
    reason = "test data is made of small numbers, and a test says what must hold"
)]

#[path = "support/mod.rs"]
mod support;
#[path = "support/used.rs"]
mod used;

use fastrand::Rng;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use support::datagrams::mend;
use support::fragments::{fragmentable, fragments};
use support::gateway::portable;
use support::sealer::encapsulate;
use support::vpe::vpe;
use support::{Handmade, Inner, LeaseTwin, Sealer, Side, TunnelSpec, group, random_bytes};
use testudo_crypto::{
    Capability, Direction, Engine, EngineError, Job, KeyId, KeyMaterial, PortableEngine, Profile, Suite,
};
use testudo_engine_cores::{CoresConfig, CoresEngine};
use testudo_engine_gpu::GpuConfig;
use testudo_engine_late::{LateConfig, LateEngine};
use testudo_gateway::{
    Change, Commander, InboundInstall, PlacementMode, PortPair, SaChange, SaChanged, SchedulerSettings,
    SystemClock, Update, Worker, serve,
};
use testudo_ipsec::{
    Action, Mode, Moment, PacketRules, Policy, PortRange, ReplayWindow, Selector, Spd, TunnelIndex,
    TunnelParameters, VpeRules,
};
use testudo_packet::{Batch, DropReason, Pool, Port, PortCounters, PortError};
use used::Used;

/// A port without allocations: received packets are written by a function, sent ones are discarded.
struct Source<F> {
    write: F,
    counters: PortCounters,
}

impl<F: FnMut(&mut [u8]) -> usize + Send> Port for Source<F> {
    fn name(&self) -> &str {
        "source"
    }

    fn rx(&mut self, pool: &mut Pool, batch: &mut Batch) -> Result<usize, PortError> {
        while !batch.is_full() {
            let Some(mut buffer) = pool.pop() else { break };
            let len = (self.write)(buffer.receive_area());
            if len == 0 {
                pool.recycle(buffer);
                break;
            }
            buffer.set_len(len);
            self.counters.rx_packets += 1;
            batch.push(buffer);
        }
        Ok(batch.len())
    }

    fn tx(&mut self, pool: &mut Pool, batch: &mut Batch) -> Result<usize, PortError> {
        let n = batch.len();
        self.counters.tx_packets += n as u64;
        batch.drain(..).for_each(|buffer| pool.recycle(buffer));
        Ok(n)
    }

    fn joins(&self) -> bool {
        false
    }

    fn counters(&self) -> PortCounters {
        self.counters
    }
}

type Writer = Box<dyn FnMut(&mut [u8]) -> usize + Send>;

fn silent() -> Writer {
    Box::new(|_| 0)
}

fn spec() -> TunnelSpec {
    TunnelSpec::new(0, Suite::AES128GCM16)
}

fn worker(spec: &TunnelSpec, side: Side, protected: Writer, unprotected: Writer) -> Worker {
    worker_with(portable(), spec, side, protected, unprotected)
}

fn worker_with(
    engines: Vec<Box<dyn Engine>>,
    spec: &TunnelSpec,
    side: Side,
    protected: Writer,
    unprotected: Writer,
) -> Worker {
    scheduled_worker(&SchedulerSettings::default(), engines, spec, side, [protected, unprotected])
}

fn scheduled_worker(
    settings: &SchedulerSettings,
    engines: Vec<Box<dyn Engine>>,
    spec: &TunnelSpec,
    side: Side,
    [protected, unprotected]: [Writer; 2],
) -> Worker {
    let port = |write| Box::new(Source { write, counters: PortCounters::default() });
    let ports = PortPair { protected: port(protected), unprotected: port(unprotected) };
    let policies = Box::new(Spd::new(spec.policies(side)).expect("few prefixes"));
    let mut worker = Worker::new(ports, Pool::new(512, 2048), engines, policies);
    worker.set_scheduler(settings);
    let install = vec![spec.install(side, &mut LeaseTwin::new(1 << 40), None)];
    worker.update(Update { install, ..Update::default() }, Moment::default());
    worker
}

/// Packets that make everything reach its final size.
const WARM_UP: usize = 2048;

/// Allocations while `packets` more are moved after the [`WARM_UP`].
fn allocations(worker: &mut Worker, packets: usize) -> u64 {
    let mut turn_until = |packets: usize| {
        let mut moved = 0;
        while moved < packets {
            let now = worker.turn(Moment::default()).expect("memory does not fail");
            assert!(now > 0 || worker.is_busy(), "the source has run dry");
            moved += now;
        }
    };
    turn_until(WARM_UP);
    let (used, ()) = Used::by(|| turn_until(packets));
    used.allocations
}

fn copy(from: &[u8], to: &mut [u8]) -> usize {
    to[..from.len()].copy_from_slice(from);
    from.len()
}

#[test]
fn sealing_allocates_nothing_per_packet() {
    for suite in Suite::EACH_PRIMITIVE {
        let packet = Inner::udp("10.0.0.1", "172.16.0.2", 1000).bytes();
        let source = Box::new(move |out: &mut [u8]| copy(&packet, out));
        let mut a = worker(&TunnelSpec::new(0, *suite), Side::A, source, silent());
        assert_eq!(allocations(&mut a, 32_768), 0, "{suite}");
        assert!(a.unprotected_port().counters().tx_packets >= 32_768);
    }
}

#[test]
fn opening_allocates_nothing_per_packet() {
    for suite in Suite::EACH_PRIMITIVE {
        let spec = TunnelSpec::new(0, *suite);
        let packet = Inner::udp("10.0.0.1", "172.16.0.2", 1000).bytes();
        let made = Handmade::carrying(&packet).padded_for(*suite);
        let mut sealer = Sealer::new(&spec, Side::A);
        let sealed: Vec<_> = (1..=10_240).map(|n| sealer.seal(n, &made)).collect();
        let mut next = sealed.into_iter();
        let source = Box::new(move |out: &mut [u8]| next.next().map_or(0, |d| copy(&d, out)));
        let mut b = worker(&spec, Side::B, silent(), source);
        assert_eq!(allocations(&mut b, 10_240 - WARM_UP), 0, "{suite}");
        assert_eq!(b.protected_port().counters().tx_packets, 10_240);
    }
}

/// A clock that covers its load has a packet, or two, or none at each tick.
#[test]
fn a_clock_allocates_nothing_per_packet() {
    for spec in [spec(), TunnelSpec::new(0, Suite::AES256_SHA256), vpe(Suite::ALL_FOR_VPE[0])] {
        let rules = PacketRules { clocked_packets_per_second: 1000, ..spec.rules.clone() };
        let spec = TunnelSpec { rules, ..spec };
        let packet = Inner::udp("10.0.0.1", "172.16.0.2", 1000).bytes();
        let offers = Arc::new(AtomicU64::new(0));
        let left = Arc::clone(&offers);
        let source = Box::new(move |out: &mut [u8]| match left.load(Ordering::SeqCst) {
            0 => 0,
            count => {
                left.store(count - 1, Ordering::SeqCst);
                copy(&packet, out)
            }
        });
        let mut a = worker(&spec, Side::A, source, silent());
        let mut now = Moment::default();
        let mut run = |ticks: u64| {
            for tick in 0..ticks {
                offers.store(tick % 3, Ordering::SeqCst);
                a.turn(now).expect("memory does not fail");
                a.send_dummies(now);
                now = Moment(now.0 + Duration::from_millis(1));
            }
        };
        run(WARM_UP as u64);
        let (used, ()) = Used::by(|| run(3000));
        assert_eq!(used.allocations, 0, "{:?}, {}", spec.protocol, spec.suite);
        assert_eq!(a.unprotected_port().counters().tx_packets, WARM_UP as u64 + 3000, "one at each tick");
        assert_eq!((a.pool().drops().total(), a.waits_for_tick()), (0, true));
    }
}

/// The rings that keep jobs in order grow to their size once.
#[test]
fn an_engine_that_ends_jobs_late_and_in_any_order_allocates_nothing_per_packet() {
    let packet = Inner::udp("10.0.0.1", "172.16.0.2", 1000).bytes();
    let source = Box::new(move |out: &mut [u8]| copy(&packet, out));
    let late =
        LateEngine::new(Box::new(PortableEngine::new()), LateConfig::reliable(support::random::seed()));
    let mut engines = portable();
    engines.insert(0, Box::new(late));
    let mut a = worker_with(engines, &spec(), Side::A, source, silent());
    assert_eq!(allocations(&mut a, 32_768), 0);
    assert!(a.unprotected_port().counters().tx_packets >= 32_768);
}

/// Placed by cost, jobs are measured, go to either engine, and are failed at times.
#[test]
fn live_placement_allocates_nothing_per_packet() {
    let packet = Inner::udp("10.0.0.1", "172.16.0.2", 1000).bytes();
    for depth_jobs in [1, 4096] {
        let packet = packet.clone();
        let source = Box::new(move |out: &mut [u8]| copy(&packet, out));
        let config = LateConfig { depth_jobs, ..LateConfig::unreliable(support::random::seed()) };
        let late = LateEngine::new(Box::new(PortableEngine::new()), config);
        let mut engines = portable();
        engines.insert(0, Box::new(late));
        engines.push(Box::new(PortableEngine::new()));
        let settings = SchedulerSettings { placement: PlacementMode::Live, ..SchedulerSettings::default() };
        let mut a = scheduled_worker(&settings, engines, &spec(), Side::A, [source, silent()]);
        assert_eq!(allocations(&mut a, 32_768), 0, "wants {depth_jobs}");
        assert!(a.unprotected_port().counters().tx_packets >= 32_768);
    }
}

/// The portable engine in a thread of the engine `cores`, which tells what that thread has had of the
/// allocator.
struct InAThread {
    inner: PortableEngine,
    /// While set, threads keep what they are given.
    holds: Arc<AtomicBool>,
    allocations: Arc<AtomicU64>,
}

impl Engine for InAThread {
    fn name(&self) -> &'static str {
        "in a thread"
    }
    fn description(&self) -> String {
        "for tests".to_owned()
    }
    fn capability(&self, suite: Suite) -> Option<Capability> {
        self.inner.capability(suite)
    }
    fn install(&mut self, key: &KeyMaterial, direction: Direction) -> Result<KeyId, EngineError> {
        self.inner.install(key, direction)
    }
    fn remove(&mut self, key: KeyId) {
        self.inner.remove(key);
    }
    fn is_synchronous(&self) -> bool {
        true
    }
    fn submit(&mut self, jobs: &mut [Job]) -> usize {
        let taken = self.inner.submit(jobs);
        if std::thread::current().name().is_some_and(|name| name.starts_with("cores-")) {
            // All since the thread began, and so also what lies between two submissions.
            self.allocations.store(Used::now().allocations, Ordering::SeqCst);
            while self.holds.load(Ordering::SeqCst) {
                std::thread::yield_now();
            }
        }
        taken
    }
}

/// Neither the worker nor the threads allocate for a packet. At first threads are held until the pool is
/// empty, so that everything grows to its size whatever the machine does.
#[test]
fn threads_on_other_cores_allocate_nothing_per_packet() {
    let packet = Inner::udp("10.0.0.1", "172.16.0.2", 1000).bytes();
    let source = Box::new(move |out: &mut [u8]| copy(&packet, out));
    let holds = Arc::new(AtomicBool::new(true));
    let mut of_threads: Vec<Arc<AtomicU64>> = Vec::new();
    let mut make = || -> Result<Vec<Box<dyn Engine>>, EngineError> {
        let (inner, holds, allocations) = (PortableEngine::new(), Arc::clone(&holds), Arc::default());
        of_threads.push(Arc::clone(&allocations));
        Ok(vec![Box::new(InAThread { inner, holds, allocations })])
    };
    let cores = CoresEngine::open(&CoresConfig::of(2), &mut make).expect("it opens");
    let mut engines = portable();
    engines.insert(0, Box::new(cores));
    let mut a = worker_with(engines, &spec(), Side::A, source, silent());
    for _ in 0..100 {
        a.turn(Moment::default()).expect("memory does not fail");
    }
    assert!(a.is_busy() && a.unprotected_port().counters().tx_packets < 512, "threads are held");
    holds.store(false, Ordering::SeqCst);
    assert_eq!(allocations(&mut a, WARM_UP), 0);
    let before: Vec<u64> = of_threads.iter().map(|one| one.load(Ordering::SeqCst)).collect();
    assert!(before.iter().any(|count| *count > 0), "they count: keys are installed in them");
    assert_eq!(allocations(&mut a, 32_768), 0);
    let after: Vec<u64> = of_threads.iter().map(|one| one.load(Ordering::SeqCst)).collect();
    assert_eq!(before, after, "threads allocate");
}

/// The engine on a GPU, which gives nothing back while it is to hold what it has.
struct Held {
    engine: Box<dyn Engine>,
    holds: Arc<AtomicBool>,
}

impl Engine for Held {
    fn name(&self) -> &'static str {
        self.engine.name()
    }
    fn description(&self) -> String {
        self.engine.description()
    }
    fn capability(&self, suite: Suite) -> Option<Capability> {
        self.engine.capability(suite)
    }
    fn install(&mut self, key: &KeyMaterial, direction: Direction) -> Result<KeyId, EngineError> {
        self.engine.install(key, direction)
    }
    fn remove(&mut self, key: KeyId) {
        self.engine.remove(key);
    }
    fn submit(&mut self, jobs: &mut [Job]) -> usize {
        self.engine.submit(jobs)
    }
    fn flush(&mut self) {
        self.engine.flush();
    }
    fn profile(&self, suite: Suite) -> Profile {
        self.engine.profile(suite)
    }
    fn poll(&mut self, done: &mut Vec<Job>, max: usize) {
        if !self.holds.load(Ordering::SeqCst) {
            self.engine.poll(done, max);
        }
    }
    fn in_flight(&self) -> usize {
        self.engine.in_flight()
    }
}

/// A worker whose engine is a GPU: PoCL, whose absence fails these tests (Debian: `pocl-opencl-icd`), and
/// which takes its own memory from C, where nothing is counted. At first it holds what it has until the pool
/// is empty, so that everything grows to its size whatever the machine does.
fn worker_with_a_gpu(headers: bool, spec: &TunnelSpec, side: Side, writers: [Writer; 2]) -> Worker {
    let device = Some("Portable Computing Language".to_owned());
    let (keys, batch_jobs) = (64, 1024);
    let engine =
        testudo_engine_gpu::open(&GpuConfig { device, keys, batch_jobs, headers, ..GpuConfig::default() });
    let engine =
        engine.unwrap_or_else(|error| panic!("{error}. These tests need the package pocl-opencl-icd."));
    let holds = Arc::new(AtomicBool::new(true));
    let mut engines = portable();
    engines.insert(0, Box::new(Held { engine, holds: Arc::clone(&holds) }));
    let latency = Duration::from_millis(50);
    let settings = SchedulerSettings { latency, ..SchedulerSettings::default() };
    let mut worker = scheduled_worker(&settings, engines, spec, side, writers);
    for _ in 0..100 {
        worker.turn(Moment::default()).expect("memory does not fail");
    }
    assert!(worker.is_busy(), "the device holds what it has");
    holds.store(false, Ordering::SeqCst);
    worker
}

/// Packets that the device was given.
fn given_to_the_gpu(worker: &Worker) -> u64 {
    worker.counters().scheduled().map(|(_, scheduled)| scheduled.packets).sum()
}

#[test]
fn sealing_on_a_gpu_allocates_nothing_per_packet() {
    let cases = [(Suite::AES128GCM16, false), (Suite::AES256_SHA256, false), (Suite::AES128_SHA1, true)];
    for (suite, headers) in cases {
        let packet = Inner::udp("10.0.0.1", "172.16.0.2", 1000).bytes();
        let source = Box::new(move |out: &mut [u8]| copy(&packet, out));
        let spec = TunnelSpec::new(0, suite);
        let mut a = worker_with_a_gpu(headers, &spec, Side::A, [source, silent()]);
        let before = given_to_the_gpu(&a);
        assert_eq!(allocations(&mut a, 16_384), 0, "{suite}");
        assert!(given_to_the_gpu(&a) > before, "{suite}: the device did nothing");
        assert!(a.unprotected_port().counters().tx_packets >= 16_384);
    }
}

#[test]
fn opening_on_a_gpu_allocates_nothing_per_packet() {
    for suite in [Suite::AES128GCM16, Suite::AES256_SHA256] {
        let spec = TunnelSpec::new(0, suite);
        let packet = Inner::udp("10.0.0.1", "172.16.0.2", 1000).bytes();
        let made = Handmade::carrying(&packet).padded_for(suite);
        let mut sealer = Sealer::new(&spec, Side::A);
        let sealed: Vec<_> = (1..=10_240).map(|n| sealer.seal(n, &made)).collect();
        let mut next = sealed.into_iter();
        let source = Box::new(move |out: &mut [u8]| next.next().map_or(0, |d| copy(&d, out)));
        let mut b = worker_with_a_gpu(false, &spec, Side::B, [silent(), source]);
        let before = given_to_the_gpu(&b);
        assert_eq!(allocations(&mut b, 4_096), 0, "{suite}");
        assert!(given_to_the_gpu(&b) > before, "{suite}: the device did nothing");
        assert!(b.protected_port().counters().tx_packets >= 4_096);
    }
}

/// A turn takes more than four full batches where one of them is not full. What it hands out comes back in
/// one turn nevertheless, so that no queue fills that takes as much again.
#[test]
fn batches_that_are_not_full_do_not_fill_an_engine() {
    let packet = Inner::udp("10.0.0.1", "172.16.0.2", 1000).bytes();
    let mut calls = 0;
    let source = Box::new(move |out: &mut [u8]| {
        calls += 1;
        if calls % 50 == 0 { 0 } else { copy(&packet, out) }
    });
    let config = LateConfig { polls_max: 1, ..LateConfig::reliable(7) };
    let late = LateEngine::new(Box::new(PortableEngine::new()), config);
    let mut a = worker_with(vec![Box::new(late)], &spec(), Side::A, source, silent());
    assert_eq!(allocations(&mut a, 32_768), 0);
    assert_eq!(a.pool().drops().total(), 0);
}

/// A peer that keeps changing its address is not followed at every packet, and a packet from elsewhere costs
/// no memory.
#[test]
fn a_peer_that_sends_from_many_addresses_allocates_nothing_per_packet() {
    let spec = TunnelSpec { udp: true, b_learns: true, ..spec() };
    let made = Handmade::carrying(&Inner::udp("10.0.0.1", "172.16.0.2", 1000).bytes());
    let mut sealer = Sealer::new(&spec, Side::A);
    let sealed: Vec<_> = (1..=10_240u16).map(|n| (n, sealer.seal(n.into(), &made))).collect();
    let mut next = sealed.into_iter();
    let source = Box::new(move |out: &mut [u8]| {
        let Some((number, datagram)) = next.next() else { return 0 };
        let n = copy(&datagram, out);
        out[20..22].copy_from_slice(&(1024 + number).to_be_bytes());
        n
    });
    let mut b = worker(&spec, Side::B, silent(), source);
    assert_eq!(allocations(&mut b, 10_240 - WARM_UP), 0);
    assert_eq!(b.protected_port().counters().tx_packets, 10_240);
    assert_eq!(b.take_events().len(), 1, "where it came from first");
}

/// The tables of the reassembler get their size with the first fragments: neither honest fragments nor a
/// flood of them from invented sources allocate anything later.
#[test]
fn reassembly_and_a_flood_of_fragments_allocate_nothing() {
    let spec = spec();
    let made = Handmade::carrying(&Inner::udp("10.0.0.1", "172.16.0.2", 1000).bytes());
    let mut sealer = Sealer::new(&spec, Side::A);
    let mut sealed = |n: u16| fragmentable(sealer.seal(n.into(), &made), n);
    // Whole batches of whole datagrams first, for what is as large as the largest batch.
    let whole: Vec<_> = (1..=128).map(&mut sealed).collect();
    let honest: Vec<_> = (129..=5_000).flat_map(|n| fragments(&sealed(n), n.into(), 400)).collect();
    let mut random = Rng::with_seed(support::random::seed());
    let stray = honest[1].clone();
    let (mut whole, mut next) = (whole.into_iter(), honest.into_iter());
    let source = Box::new(move |out: &mut [u8]| {
        if let Some(datagram) = whole.next() {
            return copy(&datagram, out);
        }
        if random.usize(..2) == 0 {
            return next.next().map_or(0, |fragment| copy(&fragment, out));
        }
        let n = copy(&stray, out);
        random.fill(&mut out[4..6]);
        random.fill(&mut out[12..16]);
        mend(&mut out[..20]);
        n
    });
    let mut b = worker(&spec, Side::B, silent(), source);
    assert_eq!(allocations(&mut b, 26_000), 0);
    assert!(b.protected_port().counters().tx_packets > 4_000);
    assert!(b.pool().drops().get(DropReason::FragmentEvicted) > 10_000);
}

#[test]
fn a_flood_of_unknown_spis_and_forgeries_allocates_nothing() {
    let mut random = Rng::with_seed(support::random::seed());
    let datagram = encapsulate(&spec(), Side::A, &random_bytes(&mut random, 100), 0);
    let spi = spec().spi_from(Side::A).to_be_bytes();
    let flood = move |out: &mut [u8]| {
        let n = copy(&datagram, out);
        if random.usize(..2) == 0 {
            random.fill(&mut out[20..n]);
        } else {
            out[20..24].copy_from_slice(&spi);
            random.fill(&mut out[24..n]);
        }
        n
    };
    let mut b = worker(&spec(), Side::B, silent(), Box::new(flood));
    assert_eq!(allocations(&mut b, 131_072), 0);
    let drops = b.pool().drops();
    assert!(
        drops.get(DropReason::UnknownSpi) > 50_000 && drops.get(DropReason::AuthenticationFailed) > 50_000
    );
}

/// A member of a group at so many workers, to the first of which comes what is written. It has used numbers
/// below 1,000 before it was started.
fn member(workers: usize, unprotected: Writer) -> Vec<Worker> {
    let worker = |unprotected| {
        let port = |write: Writer| Box::new(Source { write, counters: PortCounters::default() });
        let ports = PortPair { protected: port(silent()), unprotected: port(unprotected) };
        let policies = Box::new(Spd::new(group::policies()).expect("few prefixes"));
        Worker::new(ports, Pool::new(512, 2048), portable(), policies)
    };
    let mut all = vec![worker(unprotected)];
    all.extend((1..workers).map(|_| worker(silent())));
    let mut store = LeaseTwin::new(1 << 20);
    store.begin_at(group::spec().spi_from(Side::A), 1000);
    let install = vec![group::install(VpeRules::default().with_sender(OWN_ID), &mut store, None)];
    let update = Update { install, ..Update::default() };
    let (_, outcome) = Worker::update_all(&mut all, update, Moment::default()).remove(0);
    outcome.expect("there is room");
    all
}

const OWN_ID: u16 = 9;

/// `docs/VPE.md`, "Groups": who hears what a member sends can send it back, as often as he likes and without
/// the key. Each copy is opened, and asks whether another device has the member's Sender ID.
#[test]
fn copies_of_what_a_member_of_a_group_has_sent_allocate_nothing() {
    for workers in [1, 2] {
        let sent = group::sent_by(OWN_ID, 0, 7);
        let mut members = member(workers, Box::new(move |out: &mut [u8]| copy(&sent, out)));
        assert_eq!(allocations(&mut members[0], 16_384), 0, "{workers} workers");
        assert!(members[0].pool().drops().get(DropReason::VpeSender) >= 16_384);
        assert_eq!(members[0].take_events(), [], "it is silenced by none of them");
    }
}

fn idle(spec: &TunnelSpec) -> Worker {
    worker(spec, Side::A, silent(), silent())
}

/// So many selectors, between the same networks.
fn selectors(count: u16) -> impl Iterator<Item = Selector> {
    (0..count).map(|port| Selector {
        protocol: 17.into(),
        local_ports: PortRange { first: 0, last: port },
        ..Selector::ANY
    })
}

/// A tunnel of many selectors, and a window of many packets.
fn large(selects: u16, mode: Mode) -> (TunnelSpec, TunnelParameters) {
    let window = if selects > 1 { 1 << 21 } else { 32 };
    let spec = TunnelSpec { window, mode, ..TunnelSpec::new(1, Suite::AES128GCM16) };
    let parameters = spec.parameters(Side::A).selecting(selectors(selects));
    (spec, parameters)
}

/// What the worker uses for an update, and what it leaves to be freed.
fn update(worker: &mut Worker, update: Update) -> (Used, Change) {
    let mut change = Change::new(update);
    let (used, ()) = Used::by(|| while !change.step(worker, Moment::default(), 16) {});
    (used, change)
}

/// What a worker uses to put other selectors and policies in force, of which there are so many, and to put
/// few in their place.
fn replacements(count: u16) -> [Used; 2] {
    let spec = spec();
    let mut worker = idle(&spec);
    [count, 1].map(|count| {
        let policies = selectors(count).map(|selector| Policy::new(selector, Action::Discard));
        let changed = Update {
            selectors: vec![(spec.index(), spec.parameters(Side::A).selecting(selectors(count)).selectors)],
            policies: Some(Box::new(Spd::new(policies).expect("few prefixes"))),
            ..Update::default()
        };
        let (used, change) = update(&mut worker, changed);
        assert_eq!(worker.policies().len(), count.into());
        drop(change);
        used
    })
}

/// RFC 4301 4.4.1: policies change while packets pass. What is put in force comes made, and what it replaces
/// goes back to be freed, so that packets wait for neither.
#[test]
fn selectors_and_policies_are_neither_made_nor_freed_by_the_worker() {
    for used in [replacements(1), replacements(10_000)].concat() {
        assert_eq!(used, Used::NOTHING);
    }
}

/// What a worker uses to add a tunnel, to give it an SA from the peer, and to remove it again.
fn additions(selects: u16, mode: Mode) -> [Used; 3] {
    let mut worker = idle(&spec());
    let (spec, parameters) = large(selects, mode);
    let mut made = |change| {
        let (used, changed) = Used::by(|| worker.change_sa(change, Moment::default()));
        (used, changed.expect("it can be made"))
    };
    let (added, _) = made(SaChange::AddTunnel(spec.index(), Box::new(parameters)));
    let (_, _) = made(SaChange::AddInbound(spec.index(), Box::new(spec.inbound(Side::A))));
    let (sa_removed, changed) = made(SaChange::RemoveInbound(spec.index(), spec.spi_from(Side::B)));
    assert!(matches!(changed, SaChanged::Removed(Some(_))));
    let (_, _) = made(SaChange::AddInbound(spec.index(), Box::new(spec.inbound(Side::A))));
    let (removed, changed) = made(SaChange::RemoveTunnel(spec.index()));
    let (freed, ()) = Used::by(|| drop(changed));
    assert!(selects == 1 || freed.freed_bytes > 1 << 19, "selectors and window: {freed:?}");
    [added, sa_removed, removed]
}

/// Also in transport mode, where the list of selectors is narrowed to two hosts (RFC 4301 4.1).
#[test]
fn tunnels_and_windows_come_and_go_without_work_that_grows_with_them() {
    for mode in [Mode::Tunnel, Mode::Transport] {
        let [few, many] = [additions(1, mode), additions(10_000, mode)];
        assert_eq!(few, many, "{mode:?}");
        for used in many {
            assert!(used.allocations <= 8 && used.frees <= 8 && used.largest_bytes < 32_768, "{used:?}");
        }
    }
}

/// `docs/VPE.md`: an SA leaves half a megabyte at most, and takes no more to be asked, however many windows
/// it had and however long they are. Here they have 16 megabytes.
#[test]
fn what_an_sa_of_vpe_leaves_is_bounded_while_it_is_collected() {
    const WINDOWS: u32 = 1024;
    const CLOSED: usize = 24 + 24 * WINDOWS as usize;
    let spec = TunnelSpec { window: 65_536, ..vpe(Suite::ALL_FOR_VPE[0]) };
    let mut worker = idle(&spec);
    let front = [9, u64::MAX, 0].map(u64::to_le_bytes).concat();
    let window = |id: u32| {
        [&(id << 16).to_le_bytes()[..], &16_u32.to_le_bytes(), &ReplayWindow::closed_up_to(9)].concat()
    };
    let saved = [front, (0..WINDOWS).flat_map(window).collect()].concat();
    let inbound = InboundInstall { window: Some(saved), ..spec.inbound(Side::A) };
    let mut change = |change| worker.change_sa(change, Moment::default()).expect("it can be made");
    let remove = || SaChange::RemoveInbound(spec.index(), spec.spi_from(Side::B));
    change(remove());
    change(SaChange::AddInbound(spec.index(), Box::new(inbound)));
    let SaChanged::Removed(Some(last)) = change(remove()) else { panic!("the SA is there") };
    for (most, kept_bytes) in [(512 << 10, CLOSED), (CLOSED, CLOSED), (CLOSED - 1, 16), (0, 16)] {
        let (used, kept) = Used::by(|| last.save_within(most));
        assert_eq!((kept.len(), ReplayWindow::top_of(&kept)), (kept_bytes, Some(9)), "{most}");
        assert!(used.largest_bytes <= 2 * CLOSED, "{most}: {used:?}");
    }
}

/// The same by updates, a few tunnels between two batches.
#[test]
fn an_update_frees_no_tunnel_on_the_worker() {
    let removals = |selects| {
        let mut worker = idle(&spec());
        let (spec, parameters) = large(selects, Mode::Tunnel);
        let mut install = spec.install(Side::A, &mut LeaseTwin::new(1 << 40), None);
        install.parameters = parameters;
        worker.update(Update { install: vec![install], ..Update::default() }, Moment::default());
        let (used, change) = update(&mut worker, Update { remove: vec![spec.index()], ..Update::default() });
        let (freed, _) = Used::by(|| change.into_outcome());
        assert!(selects == 1 || freed.freed_bytes > 1 << 19, "{freed:?}");
        used
    };
    assert_eq!(removals(1), removals(10_000));
}

/// With several workers tunnels are removed before anything else of an update is done. Of their windows only
/// those are collected that another SA takes over: of VPE an SA may have half a gigabyte.
#[test]
fn no_windows_are_collected_that_nobody_takes_over() {
    const WINDOW: u32 = 1 << 21;
    let spec = TunnelSpec { window: WINDOW, ..spec() };
    let (commander, inboxes) = Commander::channels(2).expect("file descriptors");
    let start = |inbox| {
        let mut worker = idle(&spec);
        std::thread::spawn(move || {
            serve(&mut worker, &inbox, &SystemClock::default(), &mut |_| {}).expect("ports do not fail");
        })
    };
    let workers: Vec<_> = inboxes.into_iter().map(start).collect();
    let remove = Update { remove: vec![spec.index()], ..Update::default() };
    let (used, outcome) = Used::by(|| commander.update(remove));
    commander.stop().expect("they take commands");
    workers.into_iter().for_each(|worker| worker.join().expect("it ends"));
    assert!(outcome.expect("they answer").is_empty());
    let window_bytes = WINDOW as usize / 8;
    assert!(used.freed_bytes > window_bytes, "it is gone: {used:?}");
    assert!(used.allocated_bytes < window_bytes / 4, "{used:?}");
}

/// Tunnels of flows come and go beside any number of others (RFC 4301 4.4.1.2): tables have room for all that
/// a gateway takes, so that none is moved.
#[test]
fn a_tunnel_costs_as_much_memory_beside_100_000_as_beside_10() {
    let mut worker = idle(&spec());
    let (_, parameters) = large(1, Mode::Tunnel);
    let add = |worker: &mut Worker, place: u32| {
        let change = SaChange::AddTunnel(TunnelIndex(place), Box::new(parameters.clone()));
        let (used, changed) = Used::by(|| worker.change_sa(change, Moment::default()));
        changed.expect("it can be added");
        used
    };
    let remove = |worker: &mut Worker, place: u32| {
        let change = SaChange::RemoveTunnel(TunnelIndex(place));
        let (used, changed) = Used::by(|| worker.change_sa(change, Moment::default()));
        changed.expect("it is there");
        used
    };
    let first = (1..=10).map(|place| add(&mut worker, place)).last().expect("some");
    let gone = remove(&mut worker, 10);
    assert_eq!(add(&mut worker, 10), first);
    for place in 11..=151_072 {
        assert_eq!(add(&mut worker, place), first, "place {place}");
    }
    for place in [1, 70_000, 100_000, 151_072] {
        assert_eq!(remove(&mut worker, place), gone, "place {place}");
        assert_eq!(add(&mut worker, place), first, "place {place}");
    }
}
