//! A daemon gone mad: it reserves SPIs without end, adds SAs and policies that nobody speaks through, deletes
//! some of them, and flushes all, over and over.

use std::net::{IpAddr, Ipv4Addr};
use testudo_wire::netlink::datagram::Datagram;
use testudo_wire::netlink::{Header, flag};
use testudo_wire::protocol;
use testudo_wire::xfrm::algorithm::{AlgorithmWithIcv, Key};
use testudo_wire::xfrm::attribute::{Attribute, SaDirection};
use testudo_wire::xfrm::lifetime::LifetimeConfig;
use testudo_wire::xfrm::message::{Body, Message};
use testudo_wire::xfrm::policy::{PolicyId, PolicyInfo, Template};
use testudo_wire::xfrm::sa::{FlushSas, SaInfo, SpiRequest};
use testudo_wire::xfrm::selector::{Id, Selector};
use testudo_wire::xfrm::{family, mode};
use zeroize::Zeroizing;

/// Where its peers are, and the hosts behind them: each SA and each policy has one of its own.
const PEERS: u32 = Ipv4Addr::new(198, 19, 0, 0).to_bits();
const HOSTS: u32 = Ipv4Addr::new(10, 128, 0, 0).to_bits();
/// Peers come again after so many.
const EACH: u32 = 1 << 16;
const OUTBOUND: u8 = 1;

/// What it asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Madness {
    /// An SPI: ALLOCSPI.
    Spi,
    /// A policy for packets that leave, of a tunnel of its own: NEWPOLICY.
    Policy,
    /// That the policy before goes: DELPOLICY.
    NoPolicy,
    /// An SA with a key of its own, now this way, now that: NEWSA.
    Sa,
    /// That the SA before goes: DELSA.
    NoSa,
    /// That all SAs go.
    NoSas,
    /// That all policies go.
    NoPolicies,
}

/// All of it: more is added than deleted, and then flushed.
pub const ALL: [Madness; 10] = {
    use Madness::{NoPolicies, NoPolicy, NoSa, NoSas, Policy, Sa, Spi};
    [Spi, Policy, Sa, Spi, Policy, NoPolicy, Sa, NoSa, NoSas, NoPolicies]
};

/// It, at a gateway.
#[derive(Debug)]
pub struct Mad {
    /// The gateway's address.
    own: Ipv4Addr,
    number: u32,
}

impl Mad {
    /// Numbers of its requests come after `number`: SPIs, keys, peers and hosts follow from them.
    pub fn at(own: Ipv4Addr, number: u32) -> Self {
        Self { own, number }
    }

    /// The next request of a kind.
    pub fn asks(&mut self, madness: Madness) -> Datagram {
        let mut datagram = Datagram::new();
        self.asks_with(madness, &mut datagram);
        datagram
    }

    /// The same, behind what is in a record already.
    pub fn asks_with(&mut self, madness: Madness, record: &mut Datagram) {
        self.number += u32::from(matches!(madness, Madness::Spi | Madness::Policy | Madness::Sa));
        // Each has one answer: an SPI comes by itself.
        let acknowledged = if madness == Madness::Spi { 0 } else { flag::ACK };
        let header =
            Header { flags: flag::REQUEST | acknowledged, sequence: self.number, ..Header::default() };
        self.message(madness).write(header, record);
    }

    fn message(&self, madness: Madness) -> Message {
        match madness {
            Madness::Spi => {
                let sa = SaInfo { id: Id { spi: 0, ..self.sa().id }, ..self.sa() };
                Body::AllocateSpi(SpiRequest { sa, lowest: 0x1000, highest: u32::MAX }).into()
            }
            Madness::Policy => Message {
                body: Body::NewPolicy(PolicyInfo {
                    selector: self.selector(),
                    direction: OUTBOUND,
                    priority: 100 + self.number % 1000,
                    lifetime: LifetimeConfig::UNLIMITED,
                    ..PolicyInfo::default()
                }),
                attributes: [Attribute::Templates(vec![self.template()])].into(),
            },
            Madness::NoPolicy => {
                let id = PolicyId { selector: self.selector(), direction: OUTBOUND, ..PolicyId::default() };
                Body::DeletePolicy(id).into()
            }
            Madness::Sa => {
                let is_inbound = self.is_inbound();
                let direction = if is_inbound { SaDirection::Inbound } else { SaDirection::Outbound };
                let attributes = [Attribute::Aead(self.key()), Attribute::Direction(direction)].into();
                Message { body: Body::NewSa(self.sa()), attributes }
            }
            Madness::NoSa => Body::DeleteSa(self.sa().sa_id()).into(),
            Madness::NoSas => Body::FlushSas(FlushSas { protocol: 0 }).into(),
            Madness::NoPolicies => Body::FlushPolicies.into(),
        }
    }

    fn is_inbound(&self) -> bool {
        self.number.is_multiple_of(2)
    }

    fn peer(&self) -> IpAddr {
        Ipv4Addr::from_bits(PEERS + self.number % EACH).into()
    }

    fn selector(&self) -> Selector {
        Selector {
            source: IpAddr::from([10, 2, 0, 0]).into(),
            destination: IpAddr::from(Ipv4Addr::from_bits(HOSTS + self.number % EACH)).into(),
            source_prefix: 16,
            destination_prefix: 32,
            family: family::IPV4,
            ..Selector::default()
        }
    }

    fn template(&self) -> Template {
        Template {
            id: Id { destination: self.peer().into(), spi: 0, protocol: protocol::ESP },
            family: family::IPV4,
            source: IpAddr::from(self.own).into(),
            reqid: 1,
            mode: mode::TUNNEL,
            integrity_algorithms: u32::MAX,
            ciphers: u32::MAX,
            compression_algorithms: u32::MAX,
            ..Template::default()
        }
    }

    fn sa(&self) -> SaInfo {
        let (own, peer) = (IpAddr::from(self.own), self.peer());
        let (source, destination) = if self.is_inbound() { (peer, own) } else { (own, peer) };
        SaInfo {
            id: Id { destination: destination.into(), spi: 0x1000 + self.number, protocol: protocol::ESP },
            source: source.into(),
            family: family::IPV4,
            mode: mode::TUNNEL,
            reqid: 1,
            replay_window: 32 * u8::from(self.is_inbound()),
            lifetime: LifetimeConfig::UNLIMITED,
            ..SaInfo::default()
        }
    }

    fn key(&self) -> AlgorithmWithIcv {
        let mut bytes = Zeroizing::new(vec![0x5A; 20]);
        bytes[..4].copy_from_slice(&self.number.to_le_bytes());
        AlgorithmWithIcv { name: "rfc4106(gcm(aes))".into(), key: Key::new(bytes), icv_bits: 128 }
    }
}
