//! One SA whose cryptography is on other cores: its packets leave in their order, both ways, and a thread
//! that hangs takes the engine out of service and nothing else.

use crate::support::gateway::PoolSize;
use crate::support::packet::{Inner, number, numbered};
use crate::support::{Gateway, LeaseTwin, Side, TunnelSpec};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};
use testudo_crypto::{
    Capability, Direction, Engine, EngineError, Job, KeyId, KeyMaterial, PortableEngine, Suite,
};
use testudo_engine_cores::{CoresConfig, CoresEngine};
use testudo_packet::DropReason;

/// More than any machine needs; nothing is asserted about the time that passes.
const PATIENCE: Duration = Duration::from_secs(60);

/// The portable engine, which hangs in other threads than the worker's while it is told to.
#[derive(Default)]
struct Hanging {
    inner: PortableEngine,
    hangs: Arc<AtomicBool>,
    /// Threads that hang.
    stuck: Arc<AtomicU32>,
}

impl Engine for Hanging {
    fn name(&self) -> &'static str {
        "hanging"
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
        let is_helper = std::thread::current().name().is_some_and(|name| name.starts_with("cores-"));
        if is_helper && self.hangs.load(Ordering::SeqCst) {
            self.stuck.fetch_add(1, Ordering::SeqCst);
            while self.hangs.load(Ordering::SeqCst) {
                std::thread::yield_now();
            }
        }
        self.inner.submit(jobs)
    }
}

fn gateway(side: Side, threads: usize, hangs: &Arc<AtomicBool>, stuck: &Arc<AtomicU32>) -> Gateway {
    let spec = TunnelSpec::new(0, Suite::AES128GCM16);
    let mut make = || -> Result<Vec<Box<dyn Engine>>, EngineError> {
        let (hangs, stuck) = (Arc::clone(hangs), Arc::clone(stuck));
        Ok(vec![Box::new(Hanging { hangs, stuck, ..Hanging::default() })])
    };
    let cores = CoresEngine::open(&CoresConfig::of(threads), &mut make).expect("it opens");
    let engines: Vec<Box<dyn Engine>> = vec![Box::new(cores), Box::new(PortableEngine::new())];
    let mut gateway = Gateway::new(spec.policies(side), PoolSize(1024, 2048), engines);
    gateway.install(spec.install(side, &mut LeaseTwin::new(1 << 40), None));
    gateway
}

/// Packet `id` of so many bytes: short ones would cost less than to hand them over.
fn long(id: u32, bytes: usize) -> Vec<u8> {
    Inner { total_bytes: bytes, ..numbered(5, id, 0, true, 500) }.bytes()
}

/// Turns until nothing is under way.
fn settle(gateway: &mut Gateway) {
    let began = Instant::now();
    while {
        gateway.turn();
        gateway.worker.is_busy()
    } {
        assert!(began.elapsed() < PATIENCE, "packets do not come back");
        std::thread::yield_now();
    }
}

#[test]
fn one_sa_over_other_cores_keeps_its_order_in_both_directions() {
    let (hangs, stuck) = (Arc::default(), Arc::default());
    for threads in [1, 3] {
        let mut a = gateway(Side::A, threads, &hangs, &stuck);
        let mut b = gateway(Side::B, threads, &hangs, &stuck);
        let mut next = 0;
        // Full bursts and single packets, while others are under way and when none are.
        for burst in [64, 1, 200, 17, 3, 640, 64, 64, 64, 500] {
            for id in next..next + burst {
                let length = 100 + (id as usize * 37) % 1200;
                a.protected.push(long(id, length));
            }
            next += burst;
            a.turn();
        }
        settle(&mut a);
        let sealed = a.unprotected.take();
        let numbers: Vec<u32> =
            sealed.iter().map(|one| u32::from_be_bytes(one[24..28].try_into().expect("4 bytes"))).collect();
        assert!(numbers.iter().copied().eq(1..=next), "{threads} threads: {numbers:?}");
        sealed.into_iter().for_each(|datagram| b.unprotected.push(datagram));
        settle(&mut b);
        let opened: Vec<u32> = b.protected.take().iter().map(|packet| number(packet, true)).collect();
        assert!(opened.iter().copied().eq(0..next), "{threads} threads: {opened:?}");
        for gateway in [&a, &b] {
            gateway.assert_books_balance();
            gateway.assert_settled();
        }
    }
}

#[test]
fn a_thread_that_hangs_ends_in_withdrawal_and_packets_go_to_the_next_engine() {
    let (hangs, stuck) = (Arc::new(AtomicBool::new(true)), Arc::new(AtomicU32::new(0)));
    let mut a = gateway(Side::A, 2, &hangs, &stuck);
    let mut b = gateway(Side::B, 2, &Arc::default(), &Arc::default());
    (0..64).for_each(|id| a.protected.push(long(id, 500)));
    a.turn();
    let began = Instant::now();
    while stuck.load(Ordering::SeqCst) < 2 {
        assert!(began.elapsed() < PATIENCE, "threads have work");
        std::thread::yield_now();
    }
    for _ in 0..130 {
        a.clock.advance(Duration::from_millis(10));
        a.turn();
    }
    assert_eq!(a.worker.counters().withdrawn_engines().collect::<Vec<_>>(), ["cores"]);
    let lost = a.drops(DropReason::EngineFault);
    assert!(lost > 0 && lost < 64, "{lost}: the worker's own share is done");
    assert!(!a.worker.is_busy());
    (64..128).for_each(|id| a.protected.push(long(id, 500)));
    a.turn();
    a.assert_books_balance();
    let sealed = a.unprotected.take();
    sealed.into_iter().for_each(|datagram| b.unprotected.push(datagram));
    settle(&mut b);
    let opened: Vec<u32> = b.protected.take().iter().map(|packet| number(packet, true)).collect();
    assert_eq!(opened.len() as u64, 128 - lost);
    assert!(opened.is_sorted_by(|one, other| one < other), "in order");
    assert!(opened[opened.len() - 64..].iter().copied().eq(64..128), "the next engine has the SA");
    hangs.store(false, Ordering::SeqCst);
}
