//! Others in the place of those who were recorded.

use super::recording::{Part, Said};
use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr};
use testudo_wire::netlink::datagram::Datagram;
use testudo_wire::netlink::{Header, messages};
use testudo_wire::xfrm::address::Address;
use testudo_wire::xfrm::algorithm::{Algorithm, AlgorithmWithIcv, Key};
use testudo_wire::xfrm::attribute::{Attribute, Attributes};
use testudo_wire::xfrm::message::{Body, Message};
use testudo_wire::xfrm::policy::{PolicyId, PolicyInfo, Template};
use testudo_wire::xfrm::sa::SaInfo;
use testudo_wire::xfrm::selector::{SaId, Selector};
use zeroize::Zeroizing;

/// The recorded road warrior, the address that it was given, and its gateway.
const RECORDED: [Ipv4Addr; 3] =
    [Ipv4Addr::new(192, 0, 2, 1), Ipv4Addr::new(10, 3, 0, 5), Ipv4Addr::new(192, 0, 2, 2)];
/// Where others begin. In memory these are no addresses of this host, as those of the recording may be: what
/// is local decides which way an SA goes.
const OTHERS: [Ipv4Addr; 3] =
    [Ipv4Addr::new(198, 18, 0, 0), Ipv4Addr::new(10, 64, 0, 0), Ipv4Addr::new(198, 51, 100, 2)];

/// Before the first SPI of a host that is not played.
const FIRST_MADE_UP: u32 = 0xC100_0000;

/// A road warrior, in memory number 0 with the address that was given when it was recorded. Keys are other
/// ones each time that something is played.
#[derive(Debug, Clone, Default)]
pub struct Warrior {
    number: u32,
    is_in_memory: bool,
    /// How many parts were played.
    played: u32,
    /// SPIs that take the place of recorded ones.
    spis: HashMap<u32, u32>,
    /// Those of A's and of B's inbound SA.
    pub current: [u32; 2],
}

impl Warrior {
    /// At the gateway of the recording.
    pub fn new(number: u32) -> Self {
        Self { number, ..Self::default() }
    }

    /// At a gateway in memory.
    pub fn in_memory(number: u32) -> Self {
        Self { number, is_in_memory: true, ..Self::default() }
    }

    fn instead_of(&self, which: usize) -> Ipv4Addr {
        match which {
            2 if self.is_in_memory => OTHERS[2],
            2 => RECORDED[2],
            1 if self.number == 0 => RECORDED[1],
            which => Ipv4Addr::from_bits(OTHERS[which].to_bits() + self.number),
        }
    }

    /// A part begins. `before` is the one behind which it was recorded, whose SAs are now the current ones.
    /// Where the host `absent` is not played, SPIs are made up for it.
    pub fn begin(&mut self, part: &Part, before: Option<&Part>, absent: Option<usize>) {
        self.played += 1;
        self.spis.clear();
        let recorded = before.map_or([None; 2], Part::reserved);
        for (recorded, current) in recorded.into_iter().zip(self.current) {
            self.spis.extend(recorded.map(|recorded| (recorded, current)));
        }
        for said in part.said.iter().filter(|said| Some(said.host) == absent && said.reserved.is_some()) {
            self.reserved(said, FIRST_MADE_UP + self.played);
        }
    }

    /// The gateway has answered with this SPI where it gave `said.reserved`.
    pub fn reserved(&mut self, said: &Said, spi: u32) {
        self.spis.extend(said.reserved.map(|recorded| (recorded, spi)));
        self.current[said.host] = spi;
    }

    /// What it says in the place of the recorded one.
    pub fn says(&self, said: &Said, sequence: u32) -> Datagram {
        let recorded = messages(&said.bytes).next().and_then(Result::ok);
        let recorded = recorded.unwrap_or_else(|| panic!("no message: {:x?}", said.bytes));
        let message = Message::read(&recorded).unwrap_or_else(|refusal| panic!("{recorded:?}: {refusal}"));
        let mut datagram = Datagram::new();
        self.message(message).write(Header { sequence, ..recorded.header }, &mut datagram);
        datagram
    }

    fn message(&self, Message { body, attributes }: Message) -> Message {
        let body = match body {
            Body::AllocateSpi(mut request) => {
                request.sa = self.sa(request.sa);
                Body::AllocateSpi(request)
            }
            Body::NewSa(sa) => Body::NewSa(self.sa(sa)),
            Body::UpdateSa(sa) => Body::UpdateSa(self.sa(sa)),
            Body::GetSa(id) => Body::GetSa(self.sa_id(id)),
            Body::DeleteSa(id) => Body::DeleteSa(self.sa_id(id)),
            Body::NewPolicy(info) => Body::NewPolicy(self.policy(info)),
            Body::UpdatePolicy(info) => Body::UpdatePolicy(self.policy(info)),
            Body::GetPolicy(id) => Body::GetPolicy(self.policy_id(id)),
            Body::DeletePolicy(id) => Body::DeletePolicy(self.policy_id(id)),
            other => other,
        };
        let attributes: Vec<Attribute> =
            attributes.iter().map(|attribute| self.attribute(attribute)).collect();
        Message { body, attributes: attributes.into_iter().collect::<Attributes>() }
    }

    fn attribute(&self, attribute: &Attribute) -> Attribute {
        match attribute.clone() {
            Attribute::Templates(all) => {
                Attribute::Templates(all.into_iter().map(|template| self.template(template)).collect())
            }
            Attribute::Source(address) => Attribute::Source(self.address(address)),
            Attribute::Aead(aead) => Attribute::Aead(AlgorithmWithIcv { key: self.key(&aead.key), ..aead }),
            Attribute::Cipher(cipher) => {
                Attribute::Cipher(Algorithm { key: self.key(&cipher.key), ..cipher })
            }
            Attribute::IntegrityTruncated(integrity) => {
                let key = self.key(&integrity.key);
                Attribute::IntegrityTruncated(AlgorithmWithIcv { key, ..integrity })
            }
            Attribute::Integrity(integrity) => {
                Attribute::Integrity(Algorithm { key: self.key(&integrity.key), ..integrity })
            }
            other => other,
        }
    }

    fn address(&self, address: Address) -> Address {
        // IPv4 is in the first bytes, and what is behind it means nothing.
        let Some(&first) = address.0.first_chunk::<4>() else { return address };
        let which = RECORDED.iter().position(|recorded| recorded.octets() == first);
        which.map_or(address, |which| IpAddr::V4(self.instead_of(which)).into())
    }

    /// One that it has not been told of is the peer's, and stays as it is.
    fn spi(&self, spi: u32) -> u32 {
        self.spis.get(&spi).copied().unwrap_or(spi)
    }

    fn reqid(&self, reqid: u32) -> u32 {
        if reqid == 0 { 0 } else { reqid + self.number }
    }

    fn key(&self, key: &Key) -> Key {
        let mut bytes = Zeroizing::new(key.bytes().to_vec());
        let own = [self.number.to_le_bytes(), self.played.to_le_bytes()];
        bytes.iter_mut().zip(own.as_flattened()).for_each(|(byte, own)| *byte ^= own);
        Key::new(bytes)
    }

    fn selector(&self, selector: Selector) -> Selector {
        let (source, destination) = (self.address(selector.source), self.address(selector.destination));
        Selector { source, destination, ..selector }
    }

    fn sa(&self, mut sa: SaInfo) -> SaInfo {
        sa.selector = self.selector(sa.selector);
        sa.source = self.address(sa.source);
        sa.id.destination = self.address(sa.id.destination);
        sa.id.spi = self.spi(sa.id.spi);
        sa.reqid = self.reqid(sa.reqid);
        sa
    }

    fn sa_id(&self, id: SaId) -> SaId {
        SaId { destination: self.address(id.destination), spi: self.spi(id.spi), ..id }
    }

    fn policy(&self, info: PolicyInfo) -> PolicyInfo {
        PolicyInfo { selector: self.selector(info.selector), ..info }
    }

    fn policy_id(&self, id: PolicyId) -> PolicyId {
        PolicyId { selector: self.selector(id.selector), ..id }
    }

    fn template(&self, mut template: Template) -> Template {
        template.source = self.address(template.source);
        template.id.destination = self.address(template.id.destination);
        template.id.spi = self.spi(template.id.spi);
        template.reqid = self.reqid(template.reqid);
        template
    }
}
