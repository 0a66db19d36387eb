//! Tunnels between two gateways A and B, as configured on either side, and a twin of the durable store that
//! leases their numbers.

use super::packet::{network_a, network_b};
use super::random_bytes;
use fastrand::Rng;
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;
use testudo_crypto::{KeyMaterial, Suite};
use testudo_gateway::{InboundInstall, OutboundInstall, TunnelInstall};
use testudo_ipsec::{
    Action, DEFAULT_PEER_WINDOW, Dscp, Encapsulation, Endpoints, Fragmentation, InboundParameters,
    IpsecProtocol, Lease, Lifetime, Mode, NumberSource, OutboundParameters, PacketRules, PeerHeard, Policy,
    Prefix, SaParameters, SaSelectors, Selector, Shape, Spent, TunnelIndex, TunnelParameters,
};
use testudo_packet::Interface;
use testudo_wire::ip::Version;
use zeroize::Zeroizing;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    A,
    B,
}

/// A tunnel between A and B.
#[derive(Debug, Clone)]
pub struct TunnelSpec {
    pub number: u8,
    pub suite: Suite,
    pub esn: bool,
    pub window: u32,
    pub outer: Version,
    pub udp: bool,
    /// That of the protected side.
    pub interface: Interface,
    pub protocol: IpsecProtocol,
    pub mode: Mode,
    /// The tunnel of AH that covers this one's datagrams, and the reverse.
    pub covered_by: Option<u8>,
    pub covers: Option<u8>,
    pub path_mtu: usize,
    pub fragmentation: Fragmentation,
    pub rules: PacketRules,
    pub lifetime: Lifetime,
    pub keepalive: Option<Duration>,
    /// B does not know A's address.
    pub b_learns: bool,
}

impl TunnelSpec {
    pub fn new(number: u8, suite: Suite) -> Self {
        Self {
            number,
            suite,
            esn: true,
            window: 4096,
            outer: Version::V4,
            udp: false,
            interface: Interface::MAIN,
            protocol: IpsecProtocol::Esp,
            mode: Mode::Tunnel,
            covered_by: None,
            covers: None,
            path_mtu: 1500,
            fragmentation: Fragmentation::Before,
            rules: PacketRules::default(),
            lifetime: Lifetime::default(),
            keepalive: None,
            b_learns: false,
        }
    }

    pub fn index(&self) -> TunnelIndex {
        TunnelIndex(self.number.into())
    }

    /// The SPI of packets sent by this side.
    pub fn spi_from(&self, side: Side) -> u32 {
        0x1000 + u32::from(self.number) * 2 + u32::from(side == Side::B)
    }

    pub fn keying_material_from(&self, side: Side) -> Vec<u8> {
        let mut random = Rng::with_seed(0xC0FFEE ^ u64::from(self.spi_from(side)));
        random_bytes(&mut random, self.suite.keying_material_bytes())
    }

    pub fn key_from(&self, side: Side) -> KeyMaterial {
        KeyMaterial::new(self.suite, Zeroizing::new(self.keying_material_from(side))).expect("a key")
    }

    pub fn address(&self, side: Side) -> IpAddr {
        let text = match (self.outer, side) {
            (Version::V4, Side::A) => "192.0.2.1",
            (Version::V4, Side::B) => "198.51.100.2",
            (Version::V6, Side::A) => "2001:db8:a::1",
            (Version::V6, Side::B) => "2001:db8:b::2",
        };
        text.parse().expect("an address")
    }

    pub fn encapsulation(&self) -> Encapsulation {
        if self.udp {
            let port = if self.protocol == IpsecProtocol::Vpe { 4501 } else { 4500 };
            Encapsulation::EspInUdp { local_port: port, remote_port: port }
        } else {
            Encapsulation::Esp
        }
    }

    pub fn inner_mtu(&self) -> usize {
        let (outer, encapsulation) = (self.outer, self.encapsulation());
        let (protocol, mode, suite) = (self.protocol, self.mode, self.suite);
        Shape { outer, encapsulation, protocol, mode, suite }.inner_mtu(self.path_mtu)
    }

    /// The traffic of the tunnel: from A's network to the tunnel's, in both IP versions; in transport mode
    /// between the two hosts, and nothing where it covers another's.
    pub fn selectors(&self, side: Side) -> Arc<[Selector]> {
        if self.covers.is_some() {
            return Arc::new([]);
        }
        if self.mode == Mode::Transport {
            let other = if side == Side::A { Side::B } else { Side::A };
            let bits = if self.outer == Version::V4 { 32 } else { 128 };
            let host = |side| Prefix::new(self.address(side), bits).expect("a prefix");
            return Arc::new([Selector::between(host(side), host(other))]);
        }
        let prefix = |(address, length)| Prefix::new(address, length).expect("a prefix");
        [Version::V4, Version::V6]
            .map(|version| {
                let (a, b) = (prefix(network_a(version)), prefix(network_b(version, self.number)));
                if side == Side::A { Selector::between(a, b) } else { Selector::between(b, a) }
            })
            .into()
    }

    pub fn policies(&self, side: Side) -> Vec<Policy> {
        let action = Action::Protect(self.index());
        let policy = |&selector| Policy { interface: self.interface, ..Policy::new(selector, action) };
        self.selectors(side).iter().map(policy).collect()
    }

    /// What the SA of packets from this side has at either end.
    pub fn sa_from(&self, side: Side) -> SaParameters {
        SaParameters {
            spi: self.spi_from(side),
            suite: self.suite,
            esn: self.esn,
            lifetime: self.lifetime,
            spent: Spent::default(),
        }
    }

    pub fn parameters(&self, side: Side) -> TunnelParameters {
        let other = if side == Side::A { Side::B } else { Side::A };
        let learns = self.b_learns && side == Side::B;
        let endpoints = Endpoints {
            local: self.address(side),
            remote: (!learns).then(|| self.address(other)),
            encapsulation: self.encapsulation(),
        };
        TunnelParameters {
            name: format!("tunnel {}", self.number).into(),
            endpoints,
            learn_remote: learns,
            interface: self.interface,
            protocol: self.protocol,
            mode: self.mode,
            covered_by: self.covered_by.map(|number| TunnelIndex(number.into())),
            covers: self.covers.map(|number| TunnelIndex(number.into())),
            dscp: Dscp::Copy,
            rules: self.rules.clone(),
            path_mtu: self.path_mtu,
            fragmentation: self.fragmentation,
            non_first_fragments: false,
            acquires: false,
            peer_heard: PeerHeard::default(),
            keepalive: self.keepalive,
            selectors: SaSelectors::new(self.selectors(side).iter().copied(), self.mode, &endpoints),
        }
    }

    /// Everything to install the tunnel on one side.
    pub fn install(&self, side: Side, store: &mut LeaseTwin, window: Option<Vec<u8>>) -> TunnelInstall {
        TunnelInstall {
            index: self.index(),
            parameters: self.parameters(side),
            outbound: self.outbound(side, store),
            inbound: InboundInstall { window, ..self.inbound(side) },
            more_outbound: Vec::new(),
            more_inbound: Vec::new(),
        }
    }

    /// Everything to install the SA that this side sends through.
    pub fn outbound(&self, side: Side, store: &mut LeaseTwin) -> OutboundInstall {
        let (first, lease, iv_mask) = store.start(self.spi_from(side));
        let numbers = NumberSource::Leased { first, lease };
        let parameters = OutboundParameters { sa: self.sa_from(side), numbers, iv_mask, worker: None };
        OutboundInstall { parameters, key: self.key_from(side).into(), peer_window: DEFAULT_PEER_WINDOW }
    }

    /// Everything to install the SA that this side receives through.
    pub fn inbound(&self, side: Side) -> InboundInstall {
        let other = if side == Side::A { Side::B } else { Side::A };
        let parameters =
            InboundParameters { sa: self.sa_from(other), replay_window: self.window, from_any_port: false };
        InboundInstall {
            parameters,
            key: self.key_from(other).into(),
            window: None,
            inherits: None,
            shared: None,
        }
    }
}

/// Twin of the durable store: what it has recorded survives everything, what it has granted does not.
#[derive(Default)]
pub struct LeaseTwin {
    noted: HashMap<u32, u64>,
    granted: HashMap<u32, Arc<Lease>>,
    starts: u64,
    pub block: u64,
}

impl LeaseTwin {
    pub fn new(block: u64) -> Self {
        Self { block, ..Self::default() }
    }

    /// Makes this the next number of an SA.
    pub fn begin_at(&mut self, spi: u32, sequence: u64) {
        self.noted.insert(spi, sequence);
    }

    /// A gateway starts: numbers continue after everything ever recorded. The mask of the IVs has 48 bits of
    /// the SA and 16 of the start, as with the durable store.
    pub fn start(&mut self, spi: u32) -> (u64, Arc<Lease>, u64) {
        let noted = self.noted.entry(spi).or_insert(1);
        let first = *noted;
        *noted = noted.saturating_add(self.block);
        let lease = Arc::new(Lease::until(*noted));
        self.granted.insert(spi, Arc::clone(&lease));
        self.starts += 1;
        let of_sa = Rng::with_seed(spi.into()).u64(..) >> 16;
        let of_start = Rng::with_seed(self.starts).u64(..) << 48;
        (first, lease, of_sa | of_start)
    }

    /// Grants what was requested: recorded first, then granted.
    pub fn serve(&mut self) {
        for (spi, lease) in &self.granted {
            if lease.take_request()
                && let Some(noted) = self.noted.get_mut(spi)
            {
                *noted = noted.saturating_add(self.block);
                lease.grant(*noted);
            }
        }
    }
}
