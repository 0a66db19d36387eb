//! What an SA takes of a worker's heap, in all and part by part.
//!
//! A key is laid out in the engine that does its packets and in no other (`gateway::placement`), so that an
//! SA takes less than 5 KB beside any engines. `--nocapture` shows the figures of
//! docs/PERFORMANCE.md.
//!
//! Everything is counted twice. One count is of what Rust asks its allocator for, by the thread that asks:
//! the same in every run. The other is of what glibc's allocator has given to the process: that has the
//! allocator's headers, and what AWS-LC takes without Rust.
//!
//! On a CPU without the instructions of the engine `vaes` these tests fail, unless `TESTUDO_WITHOUT_VAES=1`
//! says that this is known.

#![allow(
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_sign_loss,
    clippy::expect_used,
    reason = "test data is made of small numbers, and a test says what must hold"
)]

#[path = "support/mod.rs"]
mod support;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::{Arc, Mutex};
use support::load::{Load, Nothing};
use testudo_crypto::{Direction, Engine, KeyMaterial, PortableEngine, Suite};
use testudo_engine_ipsec_mb::IpsecMbEngine;
use testudo_engine_vaes::VaesEngine;
use testudo_gateway::{PortPair, SaChange, UseFrom, Worker};
use testudo_ipsec::{IpsecProtocol, Lease, Moment, NumberSource, TunnelIndex};
use testudo_packet::Pool;
use testudo_port_memory::LoopPort;
use testudo_wire::ip::Version;
use zeroize::Zeroizing;

thread_local! {
    static HELD: Cell<i64> = const { Cell::new(0) };
}

/// The system's allocator, which counts the bytes that each thread holds.
struct Counting;

// SAFETY: every call is passed on unchanged to the system's allocator; counting touches a thread-local cell
// that needs no allocation.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let _ = HELD.try_with(|held| held.set(held.get() + layout.size() as i64));
        // SAFETY: the caller's promise about `layout` is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        let _ = HELD.try_with(|held| held.set(held.get() - layout.size() as i64));
        // SAFETY: the caller's promises about both are passed on.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// What `mallinfo2` returns (mallinfo(3), glibc 2.33 and later).
#[repr(C)]
struct MallInfo2 {
    _arena: usize,
    _ordblks: usize,
    _smblks: usize,
    _hblks: usize,
    /// Bytes of blocks that have a mapping of their own.
    hblkhd: usize,
    _usmblks: usize,
    _fsmblks: usize,
    /// Bytes of all other blocks that are in use.
    uordblks: usize,
    _fordblks: usize,
    _keepcost: usize,
}

unsafe extern "C" {
    safe fn mallinfo2() -> MallInfo2;
}

fn given_by_glibc() -> i64 {
    let info = mallinfo2();
    (info.hblkhd + info.uordblks) as i64
}

/// A number of bytes, counted both ways.
#[derive(Debug, Clone, Copy)]
struct Bytes {
    asked: i64,
    given: i64,
}

impl Bytes {
    fn held() -> Self {
        Self { asked: HELD.get(), given: given_by_glibc() }
    }

    /// What has been added since, for each of `count`.
    fn since(before: Self, count: u32) -> Self {
        let (now, count) = (Self::held(), i64::from(count));
        Self { asked: (now.asked - before.asked) / count, given: (now.given - before.given) / count }
    }
}

impl std::fmt::Display for Bytes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} ({})", self.asked, self.given)
    }
}

const TUNNELS: u32 = 1000;
const LOAD: Load = Load {
    direction: Direction::Seal,
    version: Version::V4,
    udp: false,
    protocol: IpsecProtocol::Esp,
    tunnels: TUNNELS,
    is_late: false,
};

fn key(suite: Suite, number: u32) -> KeyMaterial {
    // Two keys of 3DES that are equal would be refused.
    let mut bytes: Vec<u8> = (0..suite.keying_material_bytes()).map(|at| (at / 8 * 2) as u8).collect();
    bytes.iter_mut().zip(number.to_be_bytes()).for_each(|(byte, of)| *byte ^= of);
    KeyMaterial::new(suite, Zeroizing::new(bytes)).expect("a key")
}

fn vaes() -> Option<Box<dyn Engine>> {
    match VaesEngine::open() {
        Ok(engine) => Some(Box::new(engine)),
        Err(error) => {
            let is_waived = std::env::var_os("TESTUDO_WITHOUT_VAES").is_some();
            assert!(is_waived, "{error}; TESTUDO_WITHOUT_VAES=1 leaves it out");
            None
        }
    }
}

fn ipsec_mb() -> Option<Box<dyn Engine>> {
    Some(Box::new(IpsecMbEngine::open().expect("install the package libipsec-mb1")))
}

fn portable() -> Option<Box<dyn Engine>> {
    Some(Box::new(PortableEngine::new()))
}

type Open = fn() -> Option<Box<dyn Engine>>;

/// Those that the program knows, best first.
const ENGINES: [(&str, Open); 3] = [("vaes", vaes), ("ipsec-mb", ipsec_mb), ("portable", portable)];

/// The last of them, from this one on.
fn engines(from: usize) -> Vec<Box<dyn Engine>> {
    ENGINES[from..].iter().filter_map(|(_, open)| open()).collect()
}

/// glibc counts for all threads: one test at a time.
static COUNTED: Mutex<()> = Mutex::new(());

/// What a tunnel, its SA from the peer and the one towards it take.
#[derive(Debug, Clone, Copy)]
struct Parts {
    tunnel: Bytes,
    inbound: Bytes,
    outbound: Bytes,
}

/// What each of [`TUNNELS`] takes in a worker with these engines.
fn parts(engines: Vec<Box<dyn Engine>>, suite: Suite) -> Parts {
    let ports = PortPair {
        protected: Box::new(LoopPort::discard("protected")),
        unprotected: Box::new(LoopPort::discard("unprotected")),
    };
    let mut worker = Worker::new(ports, Pool::new(64, 2048), engines, Box::default());
    let preparers = worker.preparers();
    let mut each = |change: &dyn Fn(u32) -> SaChange| {
        let before = Bytes::held();
        for number in 0..TUNNELS {
            worker.change_sa(change(number), Moment::default()).expect("it can be changed");
        }
        Bytes::since(before, TUNNELS)
    };
    let tunnel = each(&|number| SaChange::AddTunnel(TunnelIndex(number), Box::new(LOAD.parameters(number))));
    let inbound = each(&|number| {
        let (_, mut inbound) = LOAD.next_sas(number);
        inbound.parameters.sa.suite = suite;
        inbound.key = preparers.prepare(key(suite, number), Direction::Open);
        SaChange::AddInbound(TunnelIndex(number), Box::new(inbound))
    });
    let outbound = each(&|number| {
        let (mut outbound, _) = LOAD.next_sas(number);
        outbound.parameters.sa.suite = suite;
        let lease = Arc::new(Lease::until(1 << 40));
        outbound.parameters.numbers = NumberSource::Leased { first: 1, lease };
        outbound.key = preparers.prepare(key(suite, TUNNELS + number), Direction::Seal);
        SaChange::AddOutbound(TunnelIndex(number), Box::new(outbound), UseFrom::Now)
    });
    Parts { tunnel, inbound, outbound }
}

/// What a key takes that is laid out in an engine; `None` if the engine does not do the suite.
fn laid_out(open: Open, suite: Suite, direction: Direction) -> Option<Bytes> {
    let mut engine = open()?;
    engine.capability(suite)?;
    // With the first key an engine makes what it has once for a suite.
    engine.install(&key(suite, 0), direction).expect("it takes the key");
    let before = Bytes::held();
    for number in 1..=TUNNELS {
        engine.install(&key(suite, number), direction).expect("it takes the key");
    }
    Some(Bytes::since(before, TUNNELS))
}

/// For an SA, in bytes. A tunnel counts with its SA from the peer, the larger of the two.
const LIMIT: i64 = 5 * 1024;

/// With a replay window of 4,096 packets.
#[test]
fn an_sa_takes_less_than_5_kb_beside_any_engines() {
    let _one_at_a_time = COUNTED.lock().expect("no test panics while it counts");
    println!("bytes that Rust asked for (that glibc gave)");
    let without_key = parts(vec![Box::new(Nothing::default())], Suite::AES128GCM16);
    let Parts { tunnel, inbound, outbound } = without_key;
    println!("tunnel {tunnel}; an SA whose key is laid out nowhere: inbound {inbound}, outbound {outbound}");
    for suite in Suite::ALL.iter().copied() {
        for (name, open) in ENGINES {
            if let Some(form) = laid_out(open, suite, Direction::Open) {
                println!("{suite}: laid out in {name}: {form}");
            }
        }
        for (from, (first, _)) in ENGINES.iter().enumerate() {
            let Parts { tunnel, inbound, outbound } = parts(engines(from), suite);
            println!("{suite}: engines from {first} on: inbound SA {inbound}, outbound SA {outbound}");
            let larger = |bytes: Bytes| bytes.asked.max(bytes.given);
            let (inbound, outbound) = (larger(inbound) + larger(tunnel), larger(outbound));
            assert!(inbound.max(outbound) <= LIMIT, "{suite}, from {first}: {inbound} and {outbound} bytes");
        }
    }
}

/// However many engines there are, an SA takes what it takes with the one alone that does its packets.
#[test]
fn a_key_takes_memory_in_one_engine_only() {
    let _one_at_a_time = COUNTED.lock().expect("no test panics while it counts");
    for suite in Suite::ALL.iter().copied() {
        let alone =
            ENGINES.iter().filter_map(|(_, open)| open()).find(|engine| engine.capability(suite).is_some());
        let alone = parts(vec![alone.expect("the portable engine does every suite")], suite);
        let beside_others = parts(engines(0), suite);
        for (one, other) in [(alone.inbound, beside_others.inbound), (alone.outbound, beside_others.outbound)]
        {
            assert_eq!(one.asked, other.asked, "{suite}");
        }
    }
}
