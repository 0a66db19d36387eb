//! Nothing is allocated per packet, and no flood grows a table (DESIGN, "Memory").

#![allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::expect_used,
    reason = "test data is made of small numbers, and a test says what must hold"
)]

#[path = "support/mod.rs"]
mod support;

use fastrand::Rng;
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use support::datagrams::mend;
use support::fragments::{fragmentable, fragments};
use support::gateway::portable;
use support::sealer::encapsulate;
use support::{Handmade, Inner, LeaseTwin, Sealer, Side, TunnelSpec, random_bytes};
use testudo_crypto::{Engine, PortableEngine, Suite};
use testudo_engine_late::{LateConfig, LateEngine};
use testudo_gateway::{PortPair, Update, Worker};
use testudo_ipsec::{Moment, Spd};
use testudo_packet::{Batch, DropReason, Pool, Port, PortCounters, PortError};

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

/// The system's allocator, which counts each thread's allocations.
struct Counting;

// SAFETY: every call is passed on unchanged to the system's allocator; counting touches a thread-local cell
// that needs no allocation.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let _ = ALLOCATIONS.try_with(|n| n.set(n.get() + 1));
        // SAFETY: the caller's promise about `layout` is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's promises about both are passed on.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

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
    let port = |write| Box::new(Source { write, counters: PortCounters::default() });
    let ports = PortPair { protected: port(protected), unprotected: port(unprotected) };
    let policies = Box::new(Spd::new(spec.policies(side)).expect("few prefixes"));
    let mut worker = Worker::new(ports, Pool::new(512, 2048), engines, policies);
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
    let before = ALLOCATIONS.with(Cell::get);
    turn_until(packets);
    ALLOCATIONS.with(Cell::get) - before
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
