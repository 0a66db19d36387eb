//! A whole gateway in memory: worker, two ports, a pool.

use super::{LeaseTwin, PortHandle, Side, TunnelSpec};
use std::sync::Arc;
use testudo_crypto::{Engine, PortableEngine};
use testudo_gateway::{Books, Clock, Installed, ManualClock, PortPair, TunnelInstall, Update, Worker};
use testudo_ipsec::{Moment, Policy, Spd};
use testudo_packet::{DropReason, Pool, Port};

/// Number of buffers of a pool, and the longest packet that it takes, in bytes.
#[derive(Debug, Clone, Copy)]
pub struct PoolSize(pub usize, pub usize);

/// A gateway and the test's ends of its ports.
pub struct Gateway {
    pub worker: Worker,
    pub protected: PortHandle,
    pub unprotected: PortHandle,
    pub clock: ManualClock,
}

/// A pool as the product has it: what is longer than a link's packets has a long buffer.
fn pool(PoolSize(buffers, bytes): PoolSize) -> Pool {
    const FRAME_PACKET_BYTES: usize = 1584;
    Pool::new(buffers, bytes.min(FRAME_PACKET_BYTES)).with_long(buffers, bytes)
}

pub fn portable() -> Vec<Box<dyn Engine>> {
    vec![Box::new(PortableEngine::new())]
}

impl Gateway {
    pub fn new(policies: Vec<Policy>, pool: PoolSize, engines: Vec<Box<dyn Engine>>) -> Self {
        Self::on_links(PortHandle::default(), PortHandle::default(), policies, pool, engines)
    }

    /// A gateway on existing links, as after a restart.
    pub fn on_links(
        protected: PortHandle,
        unprotected: PortHandle,
        policies: Vec<Policy>,
        buffers: PoolSize,
        engines: Vec<Box<dyn Engine>>,
    ) -> Self {
        Self::equipped(protected, unprotected, policies, buffers, |port| (engines, port))
    }

    /// The same, with engines and an unprotected port that belong together.
    pub fn equipped(
        protected: PortHandle,
        unprotected: PortHandle,
        policies: Vec<Policy>,
        buffers: PoolSize,
        equip: impl FnOnce(Box<dyn Port>) -> (Vec<Box<dyn Engine>>, Box<dyn Port>),
    ) -> Self {
        let (engines, port) = equip(unprotected.port("unprotected"));
        let ports = PortPair { protected: protected.port("protected"), unprotected: port };
        let policies = Spd::new(policies).expect("few ranges");
        let worker = Worker::new(ports, pool(buffers), engines, Box::new(policies));
        Self { worker, protected, unprotected, clock: ManualClock::default() }
    }

    /// One side of these tunnels on the portable engine, with the policies that select them.
    pub fn with_tunnels(side: Side, specs: &[TunnelSpec]) -> Self {
        Self::with_buffers(side, specs, PoolSize(512, 2048))
    }

    /// The same with a pool of this size.
    pub fn with_buffers(side: Side, specs: &[TunnelSpec], pool: PoolSize) -> Self {
        let policies = specs.iter().flat_map(|s| s.policies(side)).collect();
        let mut gateway = Self::new(policies, pool, portable());
        let mut store = LeaseTwin::new(1 << 40);
        specs.iter().for_each(|spec| gateway.install(spec.install(side, &mut store, None)));
        gateway
    }

    pub fn now(&self) -> Moment {
        self.clock.now()
    }

    pub fn install(&mut self, tunnel: TunnelInstall) {
        self.install_seen(tunnel);
    }

    /// As [`install`](Self::install), for callers that read the SAs' counters.
    pub fn install_seen(&mut self, tunnel: TunnelInstall) -> Installed {
        let now = self.now();
        let update = Update { install: vec![tunnel], ..Update::default() };
        let (_, outcome) = self.worker.update(update, now).pop().expect("an outcome for the tunnel");
        outcome.expect("the tunnel can be installed")
    }

    /// One turn. It may end with an error only if a port was told to fail.
    pub fn turn(&mut self) -> usize {
        let (now, before) = (self.now(), self.port_failures());
        match self.worker.turn(now) {
            Ok(moved) => moved,
            Err(error) => {
                assert!(self.port_failures() > before, "{error}");
                1
            }
        }
    }

    /// Calls of either port that have failed.
    pub fn port_failures(&self) -> usize {
        self.protected.failures() + self.unprotected.failures()
    }

    /// Takes turns until nothing moves and nothing is in flight.
    pub fn settle(&mut self) {
        let mut idle = 0;
        while self.turn() > 0 || self.worker.is_busy() {
            idle += 1;
            assert!(idle < 1_000_000, "the worker waits for packets that do not come");
        }
    }

    /// Sends a packet from the protected side and returns what is sent in response.
    pub fn seal(&mut self, packet: impl Into<Vec<u8>>) -> Vec<Vec<u8>> {
        self.protected.push(packet);
        self.settle();
        self.unprotected.take()
    }

    /// Sends a datagram from the unprotected side and returns what is delivered.
    pub fn open(&mut self, datagram: impl Into<Vec<u8>>) -> Vec<Vec<u8>> {
        self.unprotected.push(datagram);
        self.settle();
        self.protected.take()
    }

    pub fn drops(&self, reason: DropReason) -> u64 {
        self.worker.pool().drops().get(reason)
    }

    pub fn books(&self) -> Books {
        self.worker.books()
    }

    /// Every packet is accounted for: in + created = out + drops by reason + merged + still held.
    pub fn assert_books_balance(&self) {
        let b = self.books();
        assert!(b.balance(), "the books do not balance: {b:?}");
    }

    /// As [`assert_books_balance`](Self::assert_books_balance), and no buffer is missing but those of
    /// incomplete datagrams and of packets that wait for an SA.
    pub fn assert_settled(&self) {
        self.assert_books_balance();
        let waiting = (self.worker.incomplete_datagrams() + self.worker.held_packets()) as u64;
        assert_eq!(self.books().held, waiting, "buffers are missing from the pool");
    }
}
