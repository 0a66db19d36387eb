//! What a negotiated SA takes of the whole process: worker, engines, control plane, the SAD and SPD of XFRM.
//! `--nocapture` shows the figures of docs/PERFORMANCE.md.
//!
//! Bytes are counted twice: what Rust asks its allocator for, by all threads, and what glibc's allocator has
//! given, with its own headers and what AWS-LC takes without Rust.

#![allow(
    clippy::cast_possible_wrap,
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test that cannot go on has failed"
)]

#[path = "../played/mod.rs"]
mod played;

use played::{CHARONS, Gateway, Part, Recording, Warrior};
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicI64, Ordering};
use testudo_crypto::{Engine, PortableEngine};
use testudo_engine_ipsec_mb::IpsecMbEngine;
use testudo_engine_vaes::VaesEngine;
use testudo_gateway::PortPair;
use testudo_packet::Pool;
use testudo_port_memory::LoopPort;

/// Larger blocks are tables, which grow by doubling.
const LARGEST: usize = 4096;

static HELD: AtomicI64 = AtomicI64::new(0);
/// How many blocks of each size, up to [`LARGEST`].
static BLOCKS: [AtomicI64; LARGEST + 1] = [const { AtomicI64::new(0) }; LARGEST + 1];
/// How many larger ones, by their size in KiB.
static TABLES: [AtomicI64; 1 << 14] = [const { AtomicI64::new(0) }; 1 << 14];

fn count(bytes: usize, by: i64) {
    HELD.fetch_add(by * bytes as i64, Ordering::Relaxed);
    if let Some(blocks) = BLOCKS.get(bytes) {
        blocks.fetch_add(by, Ordering::Relaxed);
    } else if let Some(tables) = TABLES.get(bytes / 1024) {
        tables.fetch_add(by, Ordering::Relaxed);
    }
}

/// The system's allocator, which counts the bytes that the process holds.
struct Counting;

// SAFETY: every call is passed on unchanged to the system's allocator; counting touches an atomic number.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size(), 1);
        // SAFETY: the caller's promise about `layout` is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(layout.size(), -1);
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

/// Bytes that Rust has asked for, and that glibc has given.
fn held() -> [i64; 2] {
    let info = mallinfo2();
    [HELD.load(Ordering::Relaxed), (info.hblkhd + info.uordblks) as i64]
}

/// Blocks of each size, and behind them the tables.
fn blocks() -> Vec<i64> {
    BLOCKS.iter().chain(&TABLES).map(|blocks| blocks.load(Ordering::Relaxed)).collect()
}

/// Prints the sizes of which each SA has more since, half of what a road warrior has.
fn print_sizes(before: &[i64], sas: i64) {
    let now = blocks();
    let more: Vec<i64> = now.iter().zip(before).map(|(now, before)| now - before).collect();
    let (small, tables) = more.split_at(LARGEST + 1);
    let each = |count: i64| count as f64 / sas as f64;
    print!("blocks for an SA:");
    for (bytes, count) in small.iter().enumerate().filter(|(_, count)| each(**count) > 0.05) {
        print!(" {:.1} of {bytes},", each(*count));
    }
    print!(" and of tables, by their size:");
    for (kib, count) in tables.iter().enumerate().filter(|(_, count)| **count != 0) {
        print!(" {count} of {kib} KiB = {:.0},", each(count * kib as i64 * 1024));
    }
    println!();
}

const GATEWAY: usize = 1;
/// Road warriors, each with two SAs, three policies and a route.
const WARRIORS: u32 = 5000;
/// For an SA, in bytes: half of what a road warrior takes.
const LIMIT: i64 = 5120;
/// What a key of ipsec-mb takes beyond one of vaes, where that is waived: 1,280 and 576 bytes.
const KEY_OF_IPSEC_MB: i64 = 1280 - 576;
/// How often each SA is renewed by either end, and what may be remembered of each key that is gone, in bytes.
const ROUNDS: usize = 3;
const REMEMBERED: i64 = 640;

/// Plays what the gateway's daemon said in a part, for each warrior.
fn play(gateway: &mut Gateway, warriors: &mut [Warrior], part: &Part, before: Option<&Part>) {
    for warrior in warriors {
        warrior.begin(part, before, Some(1 - GATEWAY));
        for said in part.said.iter().filter(|said| said.host == GATEWAY) {
            if let Some(spi) = gateway.hears(&warrior.says(said, 1)) {
                warrior.reserved(said, spi);
            }
        }
    }
}

fn engines() -> Vec<Box<dyn Engine>> {
    let mut engines: Vec<Box<dyn Engine>> = Vec::new();
    match VaesEngine::open() {
        Ok(engine) => engines.push(Box::new(engine)),
        Err(error) => assert!(
            std::env::var_os("TESTUDO_WITHOUT_VAES").is_some(),
            "{error}; TESTUDO_WITHOUT_VAES=1 leaves it out"
        ),
    }
    engines.push(Box::new(IpsecMbEngine::open().expect("install the package libipsec-mb1")));
    engines.push(Box::new(PortableEngine::new()));
    engines
}

/// With all engines, its policies and its share in the tunnel. Of an SA that was renewed only its key is
/// remembered, within bounds, so that none is used twice.
#[test]
fn a_negotiated_sa_takes_at_most_5_kb_of_the_process() {
    let ports = PortPair {
        protected: Box::new(LoopPort::discard("protected")),
        unprotected: Box::new(LoopPort::discard("unprotected")),
    };
    let mut gateway = Gateway::start(ports, Pool::new(64, 2048), engines(), 1 << 24);
    let recording = Recording::read(CHARONS).expect("a recording");
    let [negotiated, by_a, by_b] = ["negotiated", "renewed by a", "renewed by b"]
        .map(|name| recording.part(name).expect("a part of the recording"));
    let mut warriors: Vec<Warrior> = (1..=WARRIORS).map(Warrior::in_memory).collect();
    // What is made once, and the warriors' own maps.
    let (first, rest) = warriors.split_at_mut(10);
    play(&mut gateway, first, negotiated, None);
    rest.iter_mut().for_each(|warrior| warrior.begin(negotiated, None, Some(1 - GATEWAY)));
    let (before, blocks) = (held(), blocks());
    play(&mut gateway, rest, negotiated, None);
    print_sizes(&blocks, 2 * rest_of(WARRIORS));
    let each = |before: [i64; 2]| {
        let now = held();
        [0, 1].map(|count| (now[count] - before[count]) / (2 * rest_of(WARRIORS)))
    };
    let [asked, given] = each(before);
    println!("an SA takes {asked} bytes that Rust asked for, {given} that glibc gave");
    let mut of_renewed = Vec::new();
    for round in 1..=ROUNDS {
        play(&mut gateway, rest, by_a, Some(negotiated));
        play(&mut gateway, rest, by_b, Some(by_a));
        of_renewed.push(each(before));
        println!("renewed {} times: {:?}", 2 * round, of_renewed.last());
    }
    print_sizes(&blocks, 2 * rest_of(WARRIORS));
    let limit = LIMIT + if VaesEngine::open().is_ok() { 0 } else { KEY_OF_IPSEC_MB };
    assert!(asked.max(given) <= limit, "an SA takes {asked} bytes, {given} as glibc gives them");
    for (gone, [renewed, _]) in (2..).step_by(2).zip(of_renewed) {
        assert!(renewed <= asked + REMEMBERED * gone, "{renewed} bytes when it was renewed, {asked} before");
    }
}

/// Without those who came first.
fn rest_of(warriors: u32) -> i64 {
    i64::from(warriors) - 10
}
