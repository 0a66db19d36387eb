//! Sizes of the tables of SAs and policies. These messages have attributes of their own, with numbers that
//! mean something else in all others.

use super::attribute::too_short;
use super::structure::{Structure, structure};
use crate::netlink::ack::Refusal;
use crate::netlink::attribute::{RawAttribute, attributes};
use crate::netlink::datagram::MessageBuilder;
use crate::netlink::errno::Errno;

/// `XFRMA_SAD_*`
mod sad {
    pub const COUNT: u16 = 1;
    pub const HASH: u16 = 2;
}

/// `XFRMA_SPD_*`
mod spd {
    pub const COUNTS: u16 = 1;
    pub const HASH: u16 = 2;
    pub const THRESHOLD_IPV4: u16 = 3;
    pub const THRESHOLD_IPV6: u16 = 4;
}

structure! {
    /// The body of the four messages: flags without meaning, which answers repeat.
    InfoFlags, 4, {
        /// `ip` sends all bits.
        flags: u32 = 0,
    }
}

structure! {
    /// `struct xfrmu_sadhinfo`, `struct xfrmu_spdhinfo`: the size of a hash table.
    HashSize, 8, {
        /// Buckets.
        buckets: u32 = 0,
        /// At most so many.
        max_buckets: u32 = 4,
    }
}

structure! {
    /// `struct xfrmu_spdinfo`: how many policies there are.
    PolicyCounts, 24, {
        /// For what comes in.
        inbound: u32 = 0,
        /// For what goes out.
        outbound: u32 = 4,
        /// For what is forwarded.
        forward: u32 = 8,
        /// Of sockets, for what comes in.
        socket_inbound: u32 = 12,
        /// Of sockets, for what goes out.
        socket_outbound: u32 = 16,
        /// Of sockets, for what is forwarded: none.
        socket_forward: u32 = 20,
    }
}

structure! {
    /// `struct xfrmu_spdhthresh`: policies with at least such prefixes are found by hash.
    Threshold, 2, {
        /// Of the local network, in bits.
        local_prefix: u8 = 0,
        /// Of the remote network, in bits.
        remote_prefix: u8 = 1,
    }
}

/// `XFRM_MSG_NEWSADINFO`: how many SAs there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SadInfo {
    /// Of the request.
    pub flags: u32,
    /// How many SAs.
    pub count: Option<u32>,
    /// The size of their table.
    pub hash: Option<HashSize>,
}

/// `XFRM_MSG_NEWSPDINFO`: how many policies there are; as a request it sets the thresholds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SpdInfo {
    /// Of the request.
    pub flags: u32,
    /// How many policies.
    pub counts: Option<PolicyCounts>,
    /// The size of their table.
    pub hash: Option<HashSize>,
    /// For IPv4, at most 32 bits.
    pub threshold_ipv4: Option<Threshold>,
    /// For IPv6, at most 128 bits.
    pub threshold_ipv6: Option<Threshold>,
}

fn value<T: Structure>(raw: &RawAttribute, name: &str) -> Result<Option<T>, Refusal> {
    let read = T::read_first(raw.value).map(Some).ok_or_else(|| too_short(raw.value.len(), T::LENGTH));
    read.map_err(|refusal| Refusal { text: format!("{name}: {}", refusal.text), ..refusal }.at(raw.offset))
}

fn threshold(raw: &RawAttribute, name: &str, longest: u8) -> Result<Option<Threshold>, Refusal> {
    let read: Option<Threshold> = value(raw, name)?;
    if read.is_some_and(|read| read.local_prefix.max(read.remote_prefix) > longest) {
        let text = format!("{name}: a prefix of more than {longest} bits");
        return Err(Refusal::new(Errno::INVAL, text).at(raw.offset));
    }
    Ok(read)
}

/// Hands over each attribute; unknown ones are nobody's, as in the kernel.
fn each<'a>(
    bytes: &'a [u8],
    offset: usize,
    mut take: impl FnMut(&RawAttribute<'a>) -> Result<(), Refusal>,
) -> Result<(), Refusal> {
    attributes(bytes, offset).try_for_each(|raw| {
        let raw = raw.map_err(|broken| Refusal::new(Errno::INVAL, broken.to_string()).at(broken.offset))?;
        take(&raw)
    })
}

structure! {
    /// A number that is all of an attribute.
    Count, 4, {
        /// The number.
        count: u32 = 0,
    }
}

impl SadInfo {
    pub(super) fn read(fixed: InfoFlags, bytes: &[u8], offset: usize) -> Result<Self, Refusal> {
        let mut info = Self { flags: fixed.flags, ..Self::default() };
        each(bytes, offset, |raw| {
            match raw.kind {
                sad::COUNT => {
                    info.count = value(raw, "XFRMA_SAD_CNT")?.map(|Count { count }| count);
                }
                sad::HASH => info.hash = value(raw, "XFRMA_SAD_HINFO")?,
                _ => {}
            }
            Ok(())
        })?;
        Ok(info)
    }

    pub(super) fn write(&self, message: &mut MessageBuilder) {
        message.body(&self.flags.to_ne_bytes());
        self.count.inspect(|count| message.attribute(sad::COUNT, &count.to_ne_bytes()));
        self.hash.inspect(|hash| message.attribute(sad::HASH, &hash.to_bytes()));
    }
}

impl SpdInfo {
    pub(super) fn read(fixed: InfoFlags, bytes: &[u8], offset: usize) -> Result<Self, Refusal> {
        let mut info = Self { flags: fixed.flags, ..Self::default() };
        each(bytes, offset, |raw| {
            match raw.kind {
                spd::COUNTS => info.counts = value(raw, "XFRMA_SPD_INFO")?,
                spd::HASH => info.hash = value(raw, "XFRMA_SPD_HINFO")?,
                spd::THRESHOLD_IPV4 => info.threshold_ipv4 = threshold(raw, "XFRMA_SPD_IPV4_HTHRESH", 32)?,
                spd::THRESHOLD_IPV6 => info.threshold_ipv6 = threshold(raw, "XFRMA_SPD_IPV6_HTHRESH", 128)?,
                _ => {}
            }
            Ok(())
        })?;
        Ok(info)
    }

    pub(super) fn write(&self, message: &mut MessageBuilder) {
        message.body(&self.flags.to_ne_bytes());
        self.counts.inspect(|counts| message.attribute(spd::COUNTS, &counts.to_bytes()));
        self.hash.inspect(|hash| message.attribute(spd::HASH, &hash.to_bytes()));
        let thresholds =
            [(spd::THRESHOLD_IPV4, self.threshold_ipv4), (spd::THRESHOLD_IPV6, self.threshold_ipv6)];
        for (kind, threshold) in thresholds {
            threshold.inspect(|threshold| message.attribute(kind, &threshold.to_bytes()));
        }
    }
}
