//! A worker under a load that costs nothing outside our code: ports in memory, an engine that does nothing,
//! any number of tunnels.

use super::Inner;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use testudo_crypto::{Capability, Direction, Engine, EngineError, Job, JobStatus, KeyId, KeyMaterial, Suite};
use testudo_gateway::{InboundInstall, OutboundInstall, PortPair, TunnelInstall, Update, Worker};
use testudo_ipsec::{
    Action, DEFAULT_PEER_WINDOW, Demand, Dscp, Encapsulation, Endpoints, Fragmentation, InboundParameters,
    IpsecProtocol, Lease, Lifetime, Mode, Moment, NumberSource, OutboundParameters, PacketRules, PeerHeard,
    Policy, Prefix, SaParameters, SaSelectors, Selector, Spd, Spent, TunnelIndex, TunnelParameters,
};
use testudo_packet::{Interface, Pool, Port};
use testudo_port_memory::{LoopPort, SinkPort};
use testudo_wire::ip::Version;
use zeroize::Zeroizing;

/// The shortest IP packets with a UDP header and a little more.
const INNER_V4_BYTES: usize = 46;
const INNER_V6_BYTES: usize = 66;
/// A prime, so that it is out of step with batches and turns.
const FLOWS: u32 = 509;

/// Completes every job and touches no packet: it seals ESP with plaintext and no ICV, and accepts everything
/// as authentic.
#[derive(Debug, Default)]
pub struct Nothing {
    keys: u32,
    /// Whether jobs end in the next poll, and not inside `submit`.
    is_late: bool,
    taken: Vec<Job>,
}

impl Engine for Nothing {
    fn name(&self) -> &'static str {
        "nothing"
    }

    fn description(&self) -> String {
        "does nothing".to_owned()
    }

    fn capability(&self, _: Suite) -> Option<Capability> {
        Some(Capability {
            max_text_bytes: 1 << 16,
            max_keys: 1 << 20,
            takes_chains: false,
            writes_frames: false,
        })
    }

    fn install(&mut self, _: &KeyMaterial, _: Direction) -> Result<KeyId, EngineError> {
        self.keys += 1;
        Ok(KeyId(self.keys))
    }

    fn remove(&mut self, _: KeyId) {}

    fn submit(&mut self, jobs: &mut [Job]) -> usize {
        match self.is_late {
            true => self.taken.extend(jobs.iter_mut().map(Job::take)),
            false => jobs.iter_mut().for_each(|job| job.status = JobStatus::Done),
        }
        jobs.len()
    }

    /// Of each two neighbours the second comes back first, so that half of all jobs have to wait for another.
    fn poll(&mut self, done: &mut Vec<Job>, max: usize) {
        let first = done.len();
        let count = self.taken.len().min(max);
        let ended = self.taken.drain(..count).map(|job| Job { status: JobStatus::Done, ..job });
        done.extend(ended);
        done[first..].chunks_exact_mut(2).for_each(|pair| pair.swap(0, 1));
    }

    fn is_synchronous(&self) -> bool {
        !self.is_late
    }
}

/// A worker whose numbers are leased as a gateway's control plane leases them: in blocks that follow the
/// rate, requested and granted between two turns.
pub struct Loaded {
    pub worker: Worker,
    sas: Vec<(Arc<Lease>, Demand)>,
    is_asked: Arc<AtomicBool>,
    turns: u64,
}

impl Loaded {
    /// A turn of the worker, then grants of the numbers that it requested. Time is the number of turns: each
    /// takes a tenth of a millisecond.
    pub fn turn(&mut self) -> usize {
        let moved = self.worker.turn(Moment::default()).expect("ports in memory do not fail");
        self.turns += 1;
        if self.is_asked.swap(false, Ordering::Relaxed) {
            let now = Moment(Duration::from_micros(100 * self.turns));
            for (lease, demand) in self.sas.iter_mut().filter(|(lease, _)| lease.take_request()) {
                lease.grant(lease.end() + demand.next_block(now));
            }
        }
        moved
    }

    /// Grants a block that no test uses up: there will be no more requests.
    pub fn lease_all(&mut self) {
        self.sas.iter().for_each(|(lease, _)| lease.grant(1 << 40));
    }
}

/// The packets of a load and the number of tunnels that they are spread over, packet by packet.
#[derive(Debug, Clone, Copy)]
pub struct Load {
    /// Seal or open.
    pub direction: Direction,
    /// Of inner and outer headers.
    pub version: Version,
    pub udp: bool,
    /// ESP or VPE.
    pub protocol: IpsecProtocol,
    pub tunnels: u32,
    /// Whether the engine ends jobs later, and in another order.
    pub is_late: bool,
}

impl Load {
    /// A worker under this load that receives from `feed` and sends to `sink`.
    pub fn worker(&self, feed: impl Port + 'static, sink: impl Port + 'static) -> Loaded {
        let nothing = Nothing { is_late: self.is_late, ..Nothing::default() };
        self.worker_with(vec![Box::new(nothing)], feed, sink)
    }

    /// The same with other engines.
    pub fn worker_with(
        &self,
        engines: Vec<Box<dyn Engine>>,
        feed: impl Port + 'static,
        sink: impl Port + 'static,
    ) -> Loaded {
        let (feed, sink): (Box<dyn Port>, Box<dyn Port>) = (Box::new(feed), Box::new(sink));
        let ports = match self.direction {
            Direction::Seal => PortPair { protected: feed, unprotected: sink },
            Direction::Open => PortPair { protected: sink, unprotected: feed },
        };
        let mut worker = Worker::new(ports, Pool::new(1024, 2048), engines, Box::default());
        let tunnels = 0..self.tunnels;
        let policy = |n| Policy::new(self.selector(n), Action::Protect(TunnelIndex(n)));
        let policies = Spd::new(tunnels.clone().map(policy)).expect("few prefixes");
        let policies = Some(Box::new(policies));
        let is_asked = Arc::new(AtomicBool::new(false));
        let lease = |_| {
            let (is_asked, demand) = (Arc::clone(&is_asked), Demand::default());
            let ask = Arc::new(move || is_asked.store(true, Ordering::Relaxed));
            (Arc::new(Lease::with_waker(1 + demand.block(), ask)), demand)
        };
        let sas: Vec<_> = tunnels.clone().map(lease).collect();
        let install = tunnels.zip(&sas).map(|(number, (lease, _))| self.tunnel(number, Arc::clone(lease)));
        let install = install.collect();
        let update = Update { policies, install, ..Update::default() };
        for (_, outcome) in worker.update(update, Moment::default()) {
            outcome.expect("the tunnel can be installed");
        }
        Loaded { worker, sas, is_asked, turns: 0 }
    }

    /// A worker with the tunnels of this load, no policies, and ports that carry nothing: for changes of SAs.
    pub fn installed(&self) -> Worker {
        let ports = PortPair {
            protected: Box::new(LoopPort::discard("protected")),
            unprotected: Box::new(LoopPort::discard("unprotected")),
        };
        let mut worker =
            Worker::new(ports, Pool::new(64, 2048), vec![Box::new(Nothing::default())], Box::default());
        let install = (0..self.tunnels).map(|number| self.tunnel(number, Arc::new(Lease::until(1 << 40))));
        let update = Update { install: install.collect(), ..Update::default() };
        for (_, outcome) in worker.update(update, Moment::default()) {
            outcome.expect("the tunnel can be installed");
        }
        worker
    }

    /// The SAs of a tunnel once more, as for its next key, under other SPIs and with numbers from memory.
    pub fn next_sas(&self, number: u32) -> (OutboundInstall, InboundInstall) {
        let TunnelInstall { mut outbound, mut inbound, .. } =
            self.tunnel(number, Arc::new(Lease::until(1 << 40)));
        outbound.parameters.sa.spi |= 1 << 31;
        inbound.parameters.sa.spi |= 1 << 31;
        outbound.parameters.numbers = NumberSource::Ephemeral;
        (outbound, inbound)
    }

    /// What the SAs of a tunnel have in common.
    pub fn parameters(&self, number: u32) -> TunnelParameters {
        self.tunnel(number, Arc::new(Lease::until(1))).parameters
    }

    /// Inner packets, the same number for each tunnel, no two alike.
    pub fn packets(&self) -> Vec<Vec<u8>> {
        let total_bytes = if self.version == Version::V4 { INNER_V4_BYTES } else { INNER_V6_BYTES };
        let packet = |number: u32| {
            let (source, destination) =
                (self.address(Site::A, number), self.address(Site::B, number % self.tunnels));
            let inner = Inner::udp(&source.to_string(), &destination.to_string(), total_bytes);
            Inner { ports: (number as u16, 53), seed: number.into(), ..inner }.bytes()
        };
        (0..self.tunnels * FLOWS.div_ceil(self.tunnels)).map(packet).collect()
    }

    /// `count` packets as the peer's gateway seals them, with distinct sequence numbers.
    pub fn sealed(&self, count: usize) -> Vec<Vec<u8>> {
        let (sink, handle) = SinkPort::new("sink");
        handle.keep(1, count);
        let feed = LoopPort::new("load", self.packets()).with_limit(count as u64);
        let mut peer = Load { direction: Direction::Seal, is_late: false, ..*self }.worker(feed, sink);
        turn_until_idle(&mut peer);
        handle.take()
    }

    fn address(&self, site: Site, number: u32) -> IpAddr {
        match (self.version, site) {
            (Version::V4, Site::A) => Ipv4Addr::from_bits(0x0A00_0101 + number).into(),
            (Version::V4, Site::B) => Ipv4Addr::from_bits(0xAC10_0000 + number).into(),
            (Version::V6, Site::A) => Ipv6Addr::from_bits((0xFD0A << 112) + u128::from(number)).into(),
            (Version::V6, Site::B) => Ipv6Addr::from_bits((0xFD16 << 112) + u128::from(number)).into(),
        }
    }

    /// Tunnel `number` carries A's network to one host.
    fn selector(&self, number: u32) -> Selector {
        let (network, host) = if self.version == Version::V4 { (8, 32) } else { (16, 128) };
        let prefix = |site, number, length| {
            let address = self.address(site, number);
            let network = match address {
                IpAddr::V4(a) if length == 8 => Ipv4Addr::from_bits(a.to_bits() & 0xFF00_0000).into(),
                IpAddr::V6(a) if length == 16 => Ipv6Addr::from_bits(a.to_bits() >> 112 << 112).into(),
                host => host,
            };
            Prefix::new(network, length).expect("a prefix")
        };
        let sites = (prefix(Site::A, 0, network), prefix(Site::B, number, host));
        match self.direction {
            Direction::Seal => Selector::between(sites.0, sites.1),
            Direction::Open => Selector::between(sites.1, sites.0),
        }
    }

    fn tunnel(&self, number: u32, lease: Arc<Lease>) -> TunnelInstall {
        let suite = match self.protocol {
            IpsecProtocol::Vpe => Suite::AES128GCM16.for_vpe().expect("a suite of VPE"),
            _ => Suite::AES128GCM16,
        };
        let ends = match self.version {
            Version::V4 => ["192.0.2.1", "198.51.100.2"],
            Version::V6 => ["2001:db8:a::1", "2001:db8:b::2"],
        };
        let ends = ends.map(|end| end.parse::<IpAddr>().expect("an address"));
        let (there, back) = (0x10_0000 + 2 * number, 0x10_0001 + 2 * number);
        let (local, remote, outbound, inbound) = match self.direction {
            Direction::Seal => (ends[0], ends[1], there, back),
            Direction::Open => (ends[1], ends[0], back, there),
        };
        let key = || {
            let bytes = vec![1; suite.keying_material_bytes()];
            KeyMaterial::new(suite, Zeroizing::new(bytes)).expect("a key")
        };
        let sa = |spi| SaParameters {
            spi,
            suite,
            esn: true,
            lifetime: Lifetime::default(),
            spent: Spent::default(),
        };
        let encapsulation = match self.udp {
            true => {
                let port = if self.protocol == IpsecProtocol::Vpe { 4501 } else { 4500 };
                Encapsulation::EspInUdp { local_port: port, remote_port: port }
            }
            false => Encapsulation::Esp,
        };
        let endpoints = Endpoints { local, remote: Some(remote), encapsulation };
        let parameters = TunnelParameters {
            name: format!("tunnel {number}").into(),
            endpoints,
            learn_remote: false,
            interface: Interface::MAIN,
            protocol: self.protocol,
            mode: Mode::Tunnel,
            covered_by: None,
            covers: None,
            dscp: Dscp::Copy,
            rules: PacketRules::default(),
            path_mtu: 1500,
            fragmentation: Fragmentation::Before,
            non_first_fragments: false,
            acquires: false,
            peer_heard: PeerHeard::default(),
            keepalive: None,
            selectors: SaSelectors::new([self.selector(number)], Mode::Tunnel, &endpoints),
        };
        let numbers = NumberSource::Leased { first: 1, lease };
        let outbound = OutboundInstall {
            parameters: OutboundParameters { sa: sa(outbound), numbers, iv_mask: 0, worker: None },
            key: key().into(),
            peer_window: DEFAULT_PEER_WINDOW,
        };
        let inbound = InboundInstall {
            parameters: InboundParameters { sa: sa(inbound), replay_window: 4096, from_any_port: false },
            key: key().into(),
            window: None,
            inherits: None,
            shared: None,
        };
        TunnelInstall {
            index: TunnelIndex(number),
            parameters,
            outbound,
            inbound,
            more_outbound: Vec::new(),
            more_inbound: Vec::new(),
        }
    }
}

#[derive(Debug, Clone, Copy)]
enum Site {
    A,
    B,
}

/// Takes turns until there is nothing left to receive or with the engine. Everything must have been sent.
pub fn turn_until_idle(loaded: &mut Loaded) {
    while loaded.turn() > 0 || loaded.worker.is_busy() {}
    let worker = &loaded.worker;
    let (a, b) = (worker.protected_port().counters(), worker.unprotected_port().counters());
    assert_eq!(a.rx_packets + b.rx_packets, a.tx_packets + b.tx_packets, "{:?}", worker.pool().drops());
}
