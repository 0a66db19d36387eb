//! Messages of every type with every attribute, made from a seed: all fields have random values.

use fastrand::Rng;
use testudo_wire::netlink::datagram::Datagram;
use testudo_wire::netlink::{Header, flag};
use testudo_wire::xfrm::address::Address;
use testudo_wire::xfrm::algorithm::{Algorithm, AlgorithmWithIcv, Key};
use testudo_wire::xfrm::attribute::{Attribute, SaDirection};
use testudo_wire::xfrm::info::{HashSize, InfoFlags, PolicyCounts, SadInfo, SpdInfo, Threshold};
use testudo_wire::xfrm::lifetime::LifetimeCurrent;
use testudo_wire::xfrm::message::{Body, Message};
use testudo_wire::xfrm::notification::{Acquire, Expire, Mapping, PolicyExpire, Report};
use testudo_wire::xfrm::policy::{
    KeyExchangeAddresses, Migration, PolicyDefaults, PolicyId, PolicyInfo, PolicyType, Template,
};
use testudo_wire::xfrm::replay::{EsnFixed, ReplayState, ReplayStateEsn};
use testudo_wire::xfrm::sa::{Encapsulation, EventId, FlushSas, Offload, SaInfo, SpiRequest};
use testudo_wire::xfrm::security::SecurityContext;
use testudo_wire::xfrm::selector::{AddressFilter, Mark, SaId};

pub fn bytes<const N: usize>(rng: &mut Rng) -> [u8; N] {
    let mut bytes = [0; N];
    rng.fill(&mut bytes);
    bytes
}

fn key(rng: &mut Rng) -> Key {
    let mut key = vec![0; rng.usize(0..70)];
    rng.fill(&mut key);
    Key::new(key.into())
}

fn name(rng: &mut Rng) -> String {
    (0..rng.usize(0..64)).map(|_| rng.char('!'..='~')).collect()
}

fn replay(rng: &mut Rng) -> ReplayStateEsn {
    let words = rng.u32(0..=128);
    let count = if rng.bool() { words } else { 0 };
    let bitmap = (0..count).map(|_| rng.u32(..)).collect();
    ReplayStateEsn { fixed: EsnFixed { words, ..EsnFixed::read(&bytes(rng)) }, bitmap }
}

/// The attribute of a number, 1 to 35; others are unknown ones.
pub fn attribute(number: u16, rng: &mut Rng) -> Attribute {
    let (name, key, icv_bits) = (name(rng), key(rng), rng.u32(..));
    match number {
        1 => Attribute::Integrity(Algorithm { name, key }),
        2 => Attribute::Cipher(Algorithm { name, key }),
        3 => Attribute::Compression(Algorithm { name, key }),
        4 => Attribute::Encapsulation(Encapsulation::read(&bytes(rng))),
        5 => Attribute::Templates((0..rng.usize(1..=6)).map(|_| Template::read(&bytes(rng))).collect()),
        6 => Attribute::Sa(SaInfo::read(&bytes(rng)).into()),
        7 => Attribute::Policy(PolicyInfo::read(&bytes(rng)).into()),
        8 => {
            let (extension, algorithm, domain) = (rng.u16(..), rng.u8(..), rng.u8(..));
            Attribute::SecurityContext(SecurityContext {
                extension,
                algorithm,
                domain,
                text: name.into_bytes(),
            })
        }
        9 => Attribute::Used(LifetimeCurrent::read(&bytes(rng))),
        10 => Attribute::Replay(ReplayState::read(&bytes(rng))),
        11 => Attribute::ReplayThreshold(rng.u32(..)),
        12 => Attribute::EventTimer(rng.u32(..)),
        13 => Attribute::Source(Address(bytes(rng))),
        14 => Attribute::CareOf(Address(bytes(rng))),
        15 => Attribute::LastUsed(rng.u64(..)),
        16 => Attribute::PolicyType(PolicyType::read(&bytes(rng))),
        17 => Attribute::Migrations((0..rng.usize(1..=6)).map(|_| Migration::read(&bytes(rng))).collect()),
        18 => Attribute::Aead(AlgorithmWithIcv { name, key, icv_bits }),
        19 => Attribute::KeyExchange(KeyExchangeAddresses::read(&bytes(rng))),
        20 => Attribute::IntegrityTruncated(AlgorithmWithIcv { name, key, icv_bits }),
        21 => Attribute::Mark(Mark::read(&bytes(rng))),
        22 => Attribute::TfcPadding(rng.u32(..)),
        23 => Attribute::ReplayEsn(replay(rng)),
        24 => Attribute::ExtraFlags(rng.u32(..)),
        25 => Attribute::Protocol(rng.u8(..)),
        26 => Attribute::AddressFilter(AddressFilter::read(&bytes(rng))),
        27 => Attribute::Padding(Vec::new()),
        28 => Attribute::Offload(Offload::read(&bytes(rng))),
        29 => Attribute::SetMark(rng.u32(..)),
        30 => Attribute::SetMarkMask(rng.u32(..)),
        31 => Attribute::IfId(rng.u32(..)),
        32 => Attribute::MappingTimer(rng.u32(..)),
        33 => Attribute::Direction(if rng.bool() { SaDirection::Inbound } else { SaDirection::Outbound }),
        34 => Attribute::KeepaliveInterval(rng.u32(..)),
        35 => Attribute::Processor(rng.u32(..)),
        kind => Attribute::Unknown { kind, value: bytes::<7>(rng).to_vec() },
    }
}

/// A body of every type.
pub fn bodies(rng: &mut Rng) -> Vec<Body> {
    let threshold = |longest: u8, rng: &mut Rng| {
        Some(Threshold { local_prefix: rng.u8(..=longest), remote_prefix: rng.u8(..=longest) })
    };
    vec![
        Body::NewSa(SaInfo::read(&bytes(rng))),
        Body::DeleteSa(SaId::read(&bytes(rng))),
        Body::GetSa(SaId::read(&bytes(rng))),
        Body::DumpSas,
        Body::NewPolicy(PolicyInfo::read(&bytes(rng))),
        Body::DeletePolicy(PolicyId::read(&bytes(rng))),
        Body::GetPolicy(PolicyId::read(&bytes(rng))),
        Body::DumpPolicies,
        Body::AllocateSpi(SpiRequest::read(&bytes(rng))),
        Body::Acquire(Acquire::read(&bytes(rng))),
        Body::Expire(Expire::read(&bytes(rng))),
        Body::UpdatePolicy(PolicyInfo::read(&bytes(rng))),
        Body::UpdateSa(SaInfo::read(&bytes(rng))),
        Body::PolicyExpire(PolicyExpire::read(&bytes(rng))),
        Body::FlushSas(FlushSas::read(&bytes(rng))),
        Body::FlushPolicies,
        Body::NewEvent(EventId::read(&bytes(rng))),
        Body::GetEvent(EventId::read(&bytes(rng))),
        Body::Report(Report::read(&bytes(rng))),
        Body::Migrate(PolicyId::read(&bytes(rng))),
        Body::SadInfo(SadInfo {
            flags: rng.u32(..),
            count: Some(rng.u32(..)),
            hash: Some(HashSize::read(&bytes(rng))),
        }),
        Body::GetSadInfo(InfoFlags::read(&bytes(rng))),
        Body::SpdInfo(SpdInfo {
            flags: rng.u32(..),
            counts: Some(PolicyCounts::read(&bytes(rng))),
            hash: Some(HashSize::read(&bytes(rng))),
            threshold_ipv4: threshold(32, rng),
            threshold_ipv6: threshold(128, rng),
        }),
        Body::GetSpdInfo(InfoFlags::read(&bytes(rng))),
        Body::Mapping(Mapping::read(&bytes(rng))),
        Body::SetDefaults(PolicyDefaults::read(&bytes(rng))),
        Body::GetDefaults(PolicyDefaults::read(&bytes(rng))),
    ]
}

/// Whether messages with this body have attributes of XFRM.
pub fn has_attributes(body: &Body) -> bool {
    !matches!(body, Body::SadInfo(_) | Body::SpdInfo(_))
}

/// A message of every type, each with some attributes in random order.
pub fn messages(rng: &mut Rng) -> Vec<Message> {
    let with_attributes = |body: Body, rng: &mut Rng| {
        let count = if has_attributes(&body) { rng.usize(0..8) } else { 0 };
        let numbers: Vec<u16> = (0..count).map(|_| rng.u16(1..=40)).collect();
        Message { body, attributes: numbers.into_iter().map(|number| attribute(number, rng)).collect() }
    };
    bodies(rng).into_iter().map(|body| with_attributes(body, rng)).collect()
}

/// The message in a datagram of its own, with the flags that its type needs.
pub fn datagram(message: &Message) -> Datagram {
    let is_dump = matches!(message.body, Body::DumpSas | Body::DumpPolicies);
    let flags = flag::REQUEST | if is_dump { flag::DUMP } else { 0 };
    let mut datagram = Datagram::new();
    message.write(Header { flags, sequence: 7, port: 9, ..Header::default() }, &mut datagram);
    datagram
}
