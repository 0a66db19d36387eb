//! Auditable events (RFC 4303 4, RFC 4302 4, RFC 4301 5.2): packets that are dropped for reasons that may
//! mean an attack, with what the RFCs want to know of each. Date and time are added by who writes them down.
//!
//! Everything is read from the dropped packet itself, once it is certain that it is told of: at most ten of a
//! reason in a second. How many others there were is told with the next one, or a second later.

use crate::encap::IpsecProtocol;
use crate::lifetime::Moment;
use std::net::IpAddr;
use std::sync::Arc;
use testudo_packet::{Buffer, DropReason, Pool};
use testudo_wire::ah::AhHeader;
use testudo_wire::esp::EspHeader;
use testudo_wire::ip::{IpHeader, Version};
use testudo_wire::protocol;
use testudo_wire::udp::UDP_HEADER_BYTES;

/// Records of a reason in a second.
pub const RECORDS_PER_SECOND: u16 = 10;
/// Records that wait to be taken.
const MAX_WAITING: usize = 128;

/// The events, by the reason why their packets are dropped:
/// - no valid SA (RFC 4303 3.4.2): `UnknownSpi`, `WrongEncapsulation`, and outbound `NoSa`;
/// - a fragment offered to ESP or AH (RFC 4303 3.4.1, RFC 4302 3.4.1);
/// - anti-replay (RFC 4303 3.4.3) and integrity (RFC 4303 3.4.4) checks;
/// - a sequence number would overflow (RFC 4303 3.3.3);
/// - a packet that does not match its SA's selectors, or came without protection (RFC 4301 5.2);
/// - a packet whose SA was not negotiated in time, or for which too many others wait (RFC 4301 5.1), or to
///   which no tick of its tunnel's clock came in time. (One that finds no place at a clock is no event: there
///   is more to send than the clock lets pass.)
pub const AUDITED: [DropReason; 14] = [
    DropReason::UnknownSpi,
    DropReason::WrongEncapsulation,
    DropReason::NoSa,
    DropReason::OuterFragment,
    DropReason::TransportFragment,
    DropReason::ReplayTooOld,
    DropReason::ReplayDuplicate,
    DropReason::AuthenticationFailed,
    DropReason::SequenceExhausted,
    DropReason::SelectorMismatch,
    DropReason::CleartextForProtected,
    DropReason::HoldFull,
    DropReason::HoldExpired,
    DropReason::ClockExpired,
];

/// Those of packets that have met no SA, whatever their ports look like.
const IN_CLEAR: [DropReason; 4] = [
    DropReason::CleartextForProtected,
    DropReason::HoldFull,
    DropReason::HoldExpired,
    DropReason::ClockExpired,
];

/// An event. What a packet does not show is `None`; a record of packets that were not told of one by one has
/// nothing but their number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuditRecord {
    /// What happened.
    pub reason: DropReason,
    /// The name of the tunnel whose SA, or whose clock, a packet has waited for.
    pub tunnel: Option<Arc<str>>,
    /// ESP or AH.
    pub protocol: Option<IpsecProtocol>,
    /// Security parameters index.
    pub spi: Option<u32>,
    /// As the packet carries it, its low half; of one that was not sent, the number that there is not.
    pub sequence: Option<u64>,
    /// Source address.
    pub source: Option<IpAddr>,
    /// Destination address.
    pub destination: Option<IpAddr>,
    /// Of IPv6: the flow label, which RFC 4303 calls Flow ID.
    pub flow_label: Option<u32>,
    /// The selectors of the packet that it carried, where it was decrypted (RFC 4301 5.2).
    pub inner: Option<AuditedSelectors>,
    /// Packets dropped for the same reason before this one, of which nothing was told.
    pub untold: u64,
}

/// What policy compares of a packet (RFC 4301 4.4.1.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AuditedSelectors {
    /// Source address.
    pub source: IpAddr,
    /// Destination address.
    pub destination: IpAddr,
    /// Next layer protocol, where the packet shows it.
    pub protocol: Option<u8>,
    /// Source and destination port, likewise.
    pub ports: Option<(u16, u16)>,
}

/// What an SA knows of a packet.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Known<'a> {
    pub(crate) protocol: IpsecProtocol,
    pub(crate) spi: u32,
    pub(crate) sequence: u64,
    /// What it carried.
    pub(crate) inner: Option<&'a [u8]>,
}

/// Records that wait, and what limits them.
#[derive(Debug, Default)]
pub(crate) struct Audit {
    is_on: bool,
    second: u64,
    /// Records in this second, and packets not told of, of each reason.
    counts: [(u16, u64); AUDITED.len()],
    records: Vec<AuditRecord>,
}

/// What is needed to drop a packet that may be worth a record.
pub(crate) struct Drops<'a> {
    pub(crate) pool: &'a mut Pool,
    pub(crate) audit: &'a mut Audit,
    pub(crate) now: Moment,
}

impl Drops<'_> {
    pub(crate) fn discard(&mut self, datagram: Buffer, reason: DropReason) {
        self.audit.note(reason, datagram.bytes(), None, self.now);
        self.pool.discard(datagram, reason);
    }
}

impl AuditRecord {
    fn untold(reason: DropReason, untold: u64) -> Self {
        Self {
            reason,
            tunnel: None,
            protocol: None,
            spi: None,
            sequence: None,
            source: None,
            destination: None,
            flow_label: None,
            inner: None,
            untold,
        }
    }

    /// What a datagram from the unprotected side shows.
    fn of(reason: DropReason, datagram: &[u8]) -> Self {
        let record = Self::untold(reason, 0);
        let Ok(header) = IpHeader::parse(datagram) else { return record };
        let label = |word: &[u8; 4]| u32::from_be_bytes(*word) & 0xF_FFFF;
        let is_v6 = header.version == Version::V6;
        let record = Self {
            source: Some(header.source),
            destination: Some(header.destination),
            flow_label: datagram.first_chunk().map(label).filter(|_| is_v6),
            ..record
        };
        let (payload, is_later) =
            (header.payload(datagram), header.fragment.is_some_and(|f| f.offset_bytes != 0));
        let esp = |at| (IpsecProtocol::Esp, payload.get(at..).and_then(EspHeader::parse));
        let (protocol, found) = match header.protocol {
            protocol::ESP => esp(0),
            protocol::UDP => esp(UDP_HEADER_BYTES),
            protocol::AH => {
                let ah = AhHeader::parse(payload).ok();
                (IpsecProtocol::Ah, ah.map(|ah| EspHeader { spi: ah.spi, sequence: ah.sequence }))
            }
            _ => return record,
        };
        let found = found.filter(|_| !is_later && !IN_CLEAR.contains(&reason));
        Self {
            protocol: found.map(|_| protocol),
            spi: found.map(|found| found.spi),
            sequence: found.map(|found| found.sequence.into()),
            ..record
        }
    }
}

impl AuditedSelectors {
    fn of(packet: &[u8]) -> Option<Self> {
        let header = IpHeader::parse(packet).ok()?;
        Some(Self {
            source: header.source,
            destination: header.destination,
            protocol: header.next_layer_protocol(),
            ports: header.ports(packet),
        })
    }
}

impl Audit {
    pub(crate) fn set(&mut self, is_on: bool) {
        self.is_on = is_on;
    }

    /// A datagram is dropped. Where its SA is known, so are protocol, SPI and number; `inner` is the packet
    /// that was decrypted.
    #[cold]
    pub(crate) fn note(&mut self, reason: DropReason, datagram: &[u8], sa: Option<Known<'_>>, now: Moment) {
        if let Some(untold) = self.admit(reason, now) {
            let record = AuditRecord { untold, ..AuditRecord::of(reason, datagram) };
            self.records.push(match sa {
                None => record,
                Some(Known { protocol, spi, sequence, inner }) => AuditRecord {
                    protocol: Some(protocol),
                    spi: Some(spi),
                    sequence: Some(sequence),
                    inner: inner.and_then(AuditedSelectors::of),
                    ..record
                },
            });
        }
    }

    /// A packet is dropped that has waited for the SA, or the clock, of this tunnel, or may not.
    #[cold]
    pub(crate) fn note_waiting(
        &mut self,
        reason: DropReason,
        packet: &[u8],
        tunnel: Option<&Arc<str>>,
        now: Moment,
    ) {
        if let Some(untold) = self.admit(reason, now) {
            let record = AuditRecord::of(reason, packet);
            self.records.push(AuditRecord { untold, tunnel: tunnel.map(Arc::clone), ..record });
        }
    }

    /// Whether a packet that is dropped for this reason is told of: then, how many were not before it.
    fn admit(&mut self, reason: DropReason, now: Moment) -> Option<u64> {
        let at = AUDITED.iter().position(|audited| *audited == reason).filter(|_| self.is_on)?;
        self.begin(now);
        let is_full = self.records.len() >= MAX_WAITING;
        let (told, untold) = &mut self.counts[at];
        if is_full || *told >= RECORDS_PER_SECOND {
            *untold += 1;
            return None;
        }
        *told += 1;
        Some(std::mem::take(untold))
    }

    /// Tells of packets that were not told of in a second that is over. To be called about once a second.
    pub(crate) fn tick(&mut self, now: Moment) {
        if now.0.as_secs() == self.second {
            return;
        }
        for (reason, (_, untold)) in AUDITED.into_iter().zip(&mut self.counts) {
            if *untold > 0 && self.records.len() < MAX_WAITING {
                self.records.push(AuditRecord::untold(reason, std::mem::take(untold)));
            }
        }
        self.begin(now);
    }

    fn begin(&mut self, now: Moment) {
        let second = now.0.as_secs();
        if second != self.second {
            self.second = second;
            self.counts.iter_mut().for_each(|(told, _)| *told = 0);
        }
    }

    pub(crate) fn take(&mut self) -> Vec<AuditRecord> {
        std::mem::take(&mut self.records)
    }
}
