//! The attributes of XFRM messages: one table of numbers, names and types.
//!
//! Which of them a message may have, and with which values, is for the server to say. Here only the lengths
//! are checked, as the kernel does before its server looks (`xfrma_policy` in `net/xfrm/xfrm_user.c`): an
//! attribute that is too short is `ERANGE`; what is inside of one and does not fit is `EINVAL`. Attributes
//! that are longer than their structure are read as far as it goes; those from number 33 on must fit exactly,
//! or are `EINVAL`. Unknown ones are kept. Of several of one type the last counts, as everywhere in netlink.

use super::address::Address;
use super::algorithm::{Algorithm, AlgorithmWithIcv};
use super::lifetime::LifetimeCurrent;
use super::policy::{KeyExchangeAddresses, Migration, PolicyInfo, PolicyType, Template};
use super::replay::{ReplayState, ReplayStateEsn};
use super::sa::{Encapsulation, Offload, SaInfo};
use super::security::SecurityContext;
use super::selector::{AddressFilter, Mark};
use super::structure::Structure;
use crate::netlink::ack::Refusal;
use crate::netlink::attribute::{RawAttribute, attributes};
use crate::netlink::datagram::MessageBuilder;
use crate::netlink::errno::Errno;
use zeroize::Zeroizing;

/// At most so many attributes in a message. There are 41 types, and only a notification of a migration has
/// several of one. The kernel has no such bound; here it keeps a message from becoming a thousand
/// allocations.
pub const MAX_ATTRIBUTES: usize = 128;

/// How long the newer attributes must be, exactly (`strict_start_type`).
const fn exact_bytes(kind: u16) -> Option<usize> {
    match kind {
        33 => Some(size_of::<u8>()),
        34 | 35 => Some(size_of::<u32>()),
        _ => None,
    }
}

/// What an attribute holds.
pub(super) trait Value: Sized {
    /// Reads it from all of an attribute's bytes.
    fn read(bytes: &[u8]) -> Result<Self, Refusal>;
    /// Its bytes, wiped after use since they may be a key.
    fn bytes(&self) -> Zeroizing<Vec<u8>>;
}

/// The kernel's refusal of an attribute that is too short.
pub(super) fn too_short(bytes: usize, needed: usize) -> Refusal {
    Refusal::new(Errno::RANGE, format!("{bytes} bytes, at least {needed} are needed"))
}

macro_rules! structures {
    ($($kind:ty)*) => {$(
        impl Value for $kind {
            fn read(bytes: &[u8]) -> Result<Self, Refusal> {
                Self::read_first(bytes).ok_or_else(|| too_short(bytes.len(), <$kind as Structure>::LENGTH))
            }

            fn bytes(&self) -> Zeroizing<Vec<u8>> {
                let mut bytes = Zeroizing::new(Vec::with_capacity(<$kind as Structure>::LENGTH));
                self.append(&mut bytes);
                bytes
            }
        }
    )*};
}

structures!(Encapsulation LifetimeCurrent ReplayState Address PolicyType KeyExchangeAddresses Mark AddressFilter Offload);

macro_rules! numbers {
    ($($number:ty)*) => {$(
        impl Value for $number {
            fn read(bytes: &[u8]) -> Result<Self, Refusal> {
                let first = bytes.first_chunk().map(|bytes| Self::from_ne_bytes(*bytes));
                first.ok_or_else(|| too_short(bytes.len(), size_of::<$number>()))
            }

            fn bytes(&self) -> Zeroizing<Vec<u8>> {
                Zeroizing::new(self.to_ne_bytes().to_vec())
            }
        }
    )*};
}

numbers!(u8 u32 u64);

macro_rules! boxed {
    ($($kind:ty)*) => {$(
        impl Value for Box<$kind> {
            fn read(bytes: &[u8]) -> Result<Self, Refusal> {
                let read = <$kind>::read_first(bytes).map(Box::new);
                read.ok_or_else(|| too_short(bytes.len(), <$kind as Structure>::LENGTH))
            }

            fn bytes(&self) -> Zeroizing<Vec<u8>> {
                Zeroizing::new(self.to_bytes().to_vec())
            }
        }
    )*};
}

boxed!(SaInfo PolicyInfo);

impl Value for Vec<u8> {
    fn read(bytes: &[u8]) -> Result<Self, Refusal> {
        Ok(bytes.to_vec())
    }

    fn bytes(&self) -> Zeroizing<Vec<u8>> {
        Zeroizing::new(self.clone())
    }
}

/// Which packets an SA is for (`XFRMA_SA_DIR`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SaDirection {
    /// Received ones.
    Inbound,
    /// Sent ones.
    Outbound,
}

impl Value for SaDirection {
    fn read(bytes: &[u8]) -> Result<Self, Refusal> {
        match u8::read(bytes)? {
            1 => Ok(Self::Inbound),
            2 => Ok(Self::Outbound),
            other => Err(Refusal::new(Errno::RANGE, format!("{other} is no direction: 1 is in, 2 is out"))),
        }
    }

    fn bytes(&self) -> Zeroizing<Vec<u8>> {
        let number = match self {
            Self::Inbound => 1,
            Self::Outbound => 2,
        };
        Zeroizing::new(vec![number])
    }
}

macro_rules! table {
    ($($(#[$doc:meta])* $number:literal $constant:ident $variant:ident($kind:ty) $get:ident,)*) => {
        /// An attribute of an XFRM message.
        #[derive(Debug, Clone, PartialEq, Eq)]
        pub enum Attribute {
            $($(#[$doc])* $variant($kind),)*
            /// One of a type that is not in this list.
            Unknown {
                /// Its type.
                kind: u16,
                /// Its value.
                value: Vec<u8>,
            },
        }

        impl Attribute {
            /// Its number.
            #[must_use]
            pub const fn kind(&self) -> u16 {
                match self {
                    $(Self::$variant(_) => $number,)*
                    Self::Unknown { kind, .. } => *kind,
                }
            }

            fn read_value(raw: &RawAttribute) -> Result<Self, Refusal> {
                match raw.kind {
                    $($number => Value::read(raw.value).map(Self::$variant),)*
                    kind => Ok(Self::Unknown { kind, value: raw.value.to_vec() }),
                }
            }

            fn bytes(&self) -> Zeroizing<Vec<u8>> {
                match self {
                    $(Self::$variant(value) => value.bytes(),)*
                    Self::Unknown { value, .. } => Zeroizing::new(value.clone()),
                }
            }
        }

        /// The kernel's name of an attribute's number.
        #[must_use]
        pub const fn name_of(number: u16) -> Option<&'static str> {
            match number {
                $($number => Some(stringify!($constant)),)*
                _ => None,
            }
        }

        impl Attributes {
            $(
                $(#[$doc])*
                #[must_use]
                pub fn $get(&self) -> Option<&$kind> {
                    self.0.iter().rev().find_map(|attribute| match attribute {
                        Attribute::$variant(value) => Some(value),
                        _ => None,
                    })
                }
            )*
        }
    };
}

table! {
    /// Integrity algorithm with the default length of its ICV.
    1 XFRMA_ALG_AUTH Integrity(Algorithm) integrity,
    /// Cipher.
    2 XFRMA_ALG_CRYPT Cipher(Algorithm) cipher,
    /// Compression.
    3 XFRMA_ALG_COMP Compression(Algorithm) compression,
    /// Encapsulation in UDP or TCP.
    4 XFRMA_ENCAP Encapsulation(Encapsulation) encapsulation,
    /// Templates of a policy.
    5 XFRMA_TMPL Templates(Vec<Template>) templates,
    /// The SA that was deleted.
    6 XFRMA_SA Sa(Box<SaInfo>) sa,
    /// The policy that was deleted.
    7 XFRMA_POLICY Policy(Box<PolicyInfo>) policy,
    /// Security context of an LSM.
    8 XFRMA_SEC_CTX SecurityContext(SecurityContext) security_context,
    /// What has been used of an SA.
    9 XFRMA_LTIME_VAL Used(LifetimeCurrent) used,
    /// Sequence numbers and window of an SA, 32 bits.
    10 XFRMA_REPLAY_VAL Replay(ReplayState) replay,
    /// How many packets make a change that daemons are told of.
    11 XFRMA_REPLAY_THRESH ReplayThreshold(u32) replay_threshold,
    /// After how long daemons are told of a change, in tenths of a second.
    12 XFRMA_ETIMER_THRESH EventTimer(u32) event_timer,
    /// Where the SA begins.
    13 XFRMA_SRCADDR Source(Address) source,
    /// Care-of address of Mobile IPv6.
    14 XFRMA_COADDR CareOf(Address) care_of,
    /// When the SA was last used, in seconds since 1970.
    15 XFRMA_LASTUSED LastUsed(u64) last_used,
    /// The table of a policy.
    16 XFRMA_POLICY_TYPE PolicyType(PolicyType) policy_type,
    /// Which SAs move where.
    17 XFRMA_MIGRATE Migrations(Vec<Migration>) migrations,
    /// Cipher that protects integrity as well.
    18 XFRMA_ALG_AEAD Aead(AlgorithmWithIcv) aead,
    /// Where the key exchange happens from now on.
    19 XFRMA_KMADDRESS KeyExchange(KeyExchangeAddresses) key_exchange,
    /// Integrity algorithm with the length of its ICV. Comes before [`Integrity`](Attribute::Integrity).
    20 XFRMA_ALG_AUTH_TRUNC IntegrityTruncated(AlgorithmWithIcv) integrity_truncated,
    /// Which packets concern the SA or the policy.
    21 XFRMA_MARK Mark(Mark) mark,
    /// Length that packets are padded to, in bytes (RFC 4303 2.7).
    22 XFRMA_TFCPAD TfcPadding(u32) tfc_padding,
    /// Sequence numbers and window of an SA, 64 bits.
    23 XFRMA_REPLAY_ESN_VAL ReplayEsn(ReplayStateEsn) replay_esn,
    /// More flags of an SA: [`sa_extra_flag`](super::sa_extra_flag).
    24 XFRMA_SA_EXTRA_FLAGS ExtraFlags(u32) extra_flags,
    /// Of which protocol SAs are dumped.
    25 XFRMA_PROTO Protocol(u8) protocol,
    /// Between which networks SAs are dumped.
    26 XFRMA_ADDRESS_FILTER AddressFilter(AddressFilter) address_filter,
    /// Nothing: it aligns the next one.
    27 XFRMA_PAD Padding(Vec<u8>) padding,
    /// The device that is to do the work.
    28 XFRMA_OFFLOAD_DEV Offload(Offload) offload,
    /// The mark that packets get.
    29 XFRMA_SET_MARK SetMark(u32) set_mark,
    /// Which bits of it they get; all, if it is missing.
    30 XFRMA_SET_MARK_MASK SetMarkMask(u32) set_mark_mask,
    /// The interface of the SA or policy.
    31 XFRMA_IF_ID IfId(u32) if_id,
    /// After how long daemons are told of a changed mapping, in seconds.
    32 XFRMA_MTIMER_THRESH MappingTimer(u32) mapping_timer,
    /// Which packets the SA is for.
    33 XFRMA_SA_DIR Direction(SaDirection) direction,
    /// How often keepalives are sent, in seconds (RFC 3948 4).
    34 XFRMA_NAT_KEEPALIVE_INTERVAL KeepaliveInterval(u32) keepalive_interval,
    /// The processor that the SA is for.
    35 XFRMA_SA_PCPU Processor(u32) processor,
}

impl Attribute {
    /// Reads one.
    pub(super) fn read(raw: &RawAttribute) -> Result<Self, Refusal> {
        let name = || name_of(raw.kind).map_or_else(|| format!("attribute {}", raw.kind), str::to_owned);
        if let Some(exact) = exact_bytes(raw.kind).filter(|exact| *exact != raw.value.len()) {
            let text = format!("{}: {} bytes, exactly {exact} are needed", name(), raw.value.len());
            return Err(Refusal::new(Errno::INVAL, text).at(raw.offset));
        }
        let read = Self::read_value(raw);
        read.map_err(|refusal| {
            Refusal { text: format!("{}: {}", name(), refusal.text), ..refusal }.at(raw.offset)
        })
    }

    /// Appends it to a message.
    pub fn write(&self, message: &mut MessageBuilder) {
        message.attribute(self.kind(), &self.bytes());
    }
}

/// The attributes of a message, in their order. Of several of one type, the functions give the last.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Attributes(Vec<Attribute>);

impl Attributes {
    /// Reads the attributes in `bytes`, which begin `offset` bytes after the start of their message.
    ///
    /// # Errors
    /// The kernel's errno, and a text that names attribute and length.
    pub fn read(bytes: &[u8], offset: usize) -> Result<Self, Refusal> {
        let mut all = Self::default();
        for raw in attributes(bytes, offset) {
            let raw =
                raw.map_err(|broken| Refusal::new(Errno::INVAL, broken.to_string()).at(broken.offset))?;
            if all.0.len() == MAX_ATTRIBUTES {
                let text = format!("more than {MAX_ATTRIBUTES} attributes");
                return Err(Refusal::new(Errno::INVAL, text).at(raw.offset));
            }
            all.0.push(Attribute::read(&raw)?);
        }
        Ok(all)
    }

    /// As [`read`](Self::read), up to the first attribute whose length is wrong: programs of old put other
    /// things into requests for a dump, and the kernel passes over them.
    pub(super) fn read_while_whole(bytes: &[u8], offset: usize) -> Result<Self, Refusal> {
        let whole = attributes(bytes, offset).map_while(Result::ok).last();
        let end = whole.map_or(0, |last| last.offset - offset + 4 + last.value.len());
        Self::read(&bytes[..end], offset)
    }

    /// All of them, in order.
    pub fn iter(&self) -> std::slice::Iter<'_, Attribute> {
        self.0.iter()
    }

    /// Adds one at the end.
    pub fn push(&mut self, attribute: Attribute) {
        self.0.push(attribute);
    }

    /// The types of those that are not known, in order.
    pub fn unknown(&self) -> impl Iterator<Item = u16> {
        self.0.iter().filter_map(|attribute| match attribute {
            Attribute::Unknown { kind, .. } => Some(*kind),
            _ => None,
        })
    }

    pub(super) fn write(&self, message: &mut MessageBuilder) {
        self.0.iter().for_each(|attribute| attribute.write(message));
    }
}

impl<const N: usize> From<[Attribute; N]> for Attributes {
    fn from(all: [Attribute; N]) -> Self {
        Self(all.into())
    }
}

impl FromIterator<Attribute> for Attributes {
    fn from_iter<I: IntoIterator<Item = Attribute>>(all: I) -> Self {
        Self(all.into_iter().collect())
    }
}

impl<'a> IntoIterator for &'a Attributes {
    type Item = &'a Attribute;
    type IntoIter = std::slice::Iter<'a, Attribute>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}
