//! A gateway that learns where its peer of VPE is, with one worker or several, and packets of the peer's.

use super::gateway::{PoolSize, portable};
use super::vpe::{datagram, sealed, vpe};
use super::{Gateway, Inner, LeaseTwin, Side, TunnelSpec};
use std::net::IpAddr;
use std::time::Duration;
use testudo_crypto::Suite;
use testudo_gateway::{SaChange, TunnelInstall, Update, Worker};
use testudo_ipsec::{Event, EventKind, Moment};
use testudo_wire::checksum;
use testudo_wire::protocol;
use testudo_wire::vpe::VpeHeader;

/// An address of the peer: its last byte, and its port.
pub type Place = (u8, u16);

/// The tunnel.
pub fn spec() -> TunnelSpec {
    TunnelSpec { udp: true, b_learns: true, window: 64, ..vpe(Suite::ALL_FOR_VPE[0]) }
}

/// A packet of the peer's from a place.
pub fn packet(window: u16, number: u64, place: Place) -> Vec<u8> {
    let header = VpeHeader { sender: 0, window, number, spi: spec().spi_from(Side::A) };
    let inner = Inner::udp("10.0.0.1", "172.16.0.2", 60).bytes();
    let bytes = datagram(&spec(), protocol::UDP, &sealed(&spec().key_from(Side::A), header, &inner));
    sent_from(&bytes, place)
}

/// The same datagram, as if it came from elsewhere.
pub fn sent_from(datagram: &[u8], (host, port): Place) -> Vec<u8> {
    let mut moved = datagram.to_vec();
    moved[15] = host;
    moved[20..22].copy_from_slice(&port.to_be_bytes());
    moved[10..12].fill(0);
    let sum = checksum::of(&moved[..20]).to_bytes();
    moved[10..12].copy_from_slice(&sum);
    moved
}

/// B, which learns where its peer is.
pub struct Learner {
    pub workers: Vec<Gateway>,
}

impl Learner {
    /// With so many workers.
    pub fn new(workers: usize) -> Self {
        Self::installed(workers, spec().install(Side::B, &mut LeaseTwin::new(1 << 40), None))
    }

    /// With another tunnel.
    pub fn installed(workers: usize, tunnel: TunnelInstall) -> Self {
        let mut own = Vec::new();
        let mut ends = Vec::new();
        for _ in 0..workers {
            let Gateway { worker, protected, unprotected, clock } =
                Gateway::new(spec().policies(Side::B), PoolSize(64, 2048), portable());
            own.push(worker);
            ends.push((protected, unprotected, clock));
        }
        let update = Update { install: vec![tunnel], ..Update::default() };
        let (_, outcome) = Worker::update_all(&mut own, update, Moment::default()).remove(0);
        outcome.expect("there is room");
        let whole = own.into_iter().zip(ends).map(|(worker, (protected, unprotected, clock))| Gateway {
            worker,
            protected,
            unprotected,
            clock,
        });
        Self { workers: whole.collect() }
    }

    /// Has a worker receive this. Returns how many packets were delivered, and what it has learned, which the
    /// others do not know yet.
    pub fn take(&mut self, worker: usize, bytes: Vec<u8>) -> (usize, Vec<Event>) {
        let count = self.workers.len();
        let gateway = &mut self.workers[worker % count];
        let delivered = gateway.open(bytes).len();
        (delivered, gateway.worker.take_events())
    }

    /// Lets a worker know what another one has learned.
    pub fn tell(&mut self, worker: usize, event: Event) {
        let now = self.workers[worker].now();
        self.workers[worker].worker.change_sa(SaChange::Hear(event), now).expect("it hears");
    }

    /// Has a worker receive this, and lets all know what it has learned, as the control plane does. Returns
    /// how many packets were delivered, and where the peer has moved to.
    pub fn receive(&mut self, worker: usize, bytes: Vec<u8>) -> (usize, Vec<Place>) {
        let (delivered, events) = self.take(worker, bytes);
        for &event in &events {
            (0..self.workers.len()).for_each(|other| self.tell(other, event));
        }
        (delivered, events.into_iter().filter_map(moved_to).collect())
    }

    /// Time passes.
    pub fn wait(&mut self, time: Duration) {
        self.workers.iter_mut().for_each(|gateway| gateway.clock.advance(time));
    }

    /// Where a worker sends to.
    pub fn target_of(&mut self, worker: usize) -> Option<Place> {
        let sent = self.workers[worker].seal(Inner::udp("172.16.0.2", "10.0.0.1", 60).bytes());
        sent.first().map(|sent| (sent[19], u16::from_be_bytes([sent[22], sent[23]])))
    }

    /// Where every worker sends to.
    pub fn target(&mut self) -> Option<Place> {
        let places: Vec<_> = (0..self.workers.len()).map(|worker| self.target_of(worker)).collect();
        assert!(places.windows(2).all(|two| two[0] == two[1]), "{places:?}");
        places[0]
    }
}

/// Where an event says that the peer is.
pub fn moved_to(event: Event) -> Option<Place> {
    match event.kind {
        EventKind::PeerMoved { address: IpAddr::V4(address), port, .. } => Some((address.octets()[3], port)),
        _ => None,
    }
}
