//! The outbound slow path, one packet at a time: options, fragments, packets too long, SYNs, a limit or
//! the end of a lease near; and every packet of an SA that is not of ESP in tunnel mode.

use crate::audit::{Audit, Known};
use crate::encap::{Encap, Frame, outer_fields, then};
use crate::event::Event;
use crate::fragments::Identifications;
use crate::lifetime::Moment;
use crate::outcome::{Originated, Prepared};
use crate::parsed::{PacketMeta, reason_of};
use crate::reply_budget::ReplyBudget;
use crate::runs::drain;
use crate::sa::OutboundSa;
use crate::sharing::Waiting;
use crate::slots::SaRef;
use testudo_crypto::Job;
use testudo_packet::{Buffer, DropReason, Pool};
use testudo_wire::ip::{IpHeader, Version};
use testudo_wire::{fragment, icmp};

/// The slow path of one SA.
pub(crate) struct SlowPath<'a> {
    pub(crate) sa: &'a mut OutboundSa,
    pub(crate) sa_ref: SaRef,
    pub(crate) now: Moment,
    pub(crate) pool: &'a mut Pool,
    pub(crate) out: &'a mut Prepared,
    pub(crate) events: &'a mut Vec<Event>,
    pub(crate) replies: &'a mut ReplyBudget,
    pub(crate) audit: &'a mut Audit,
    pub(crate) identifications: &'a mut Identifications,
    /// The longest datagram that is not [cut](then::CUT), in bytes.
    pub(crate) path_mtu: usize,
}

/// Bytes of the datagram that a job becomes: that of AH is there with a copy of its front, and the ICV.
fn datagram_bytes(job: &Job) -> usize {
    match job.then & then::UNMASK {
        0 => job.buffer.len(),
        _ => (job.text_start / 2 + job.text_bytes) as usize,
    }
}

/// What every path carries over IPv6 (RFC 8200 5). Hosts need not send less, so that the datagrams of such
/// packets are cut where a path leaves less for them (RFC 2473 7.1).
const IPV6_LEAST_MTU: u16 = 1280;

/// The longest packet that its sender hears of, where so much fits, in bytes.
fn told_mtu(mtu: u16, version: Version) -> u16 {
    if version == Version::V6 { mtu.max(IPV6_LEAST_MTU) } else { mtu }
}

/// Whether a packet of this length that may be cut is, before it is sealed.
pub(crate) fn is_cut(sa: &OutboundSa, version: Version, bytes: usize) -> bool {
    bytes > usize::from(told_mtu(sa.inner_mtu, version).max(sa.longest_whole))
}

impl SlowPath<'_> {
    /// Makes jobs of adjacent packets.
    pub(crate) fn protect_run<E: Frame>(mut self, metas: &[PacketMeta], buffers: &mut [Buffer]) {
        metas.iter().zip(drain(buffers)).for_each(|(meta, buffer)| self.protect::<E>(meta, buffer));
    }

    /// Makes a job of a packet that crosses the path whole or not at all.
    pub(crate) fn probe<E: Frame>(mut self, buffer: Buffer, header: &IpHeader) {
        // Its length is what it asks for: TFC padding would make it another probe.
        let tfc_pad_to = std::mem::take(&mut self.sa.tfc_pad_to);
        self.push::<E>(buffer, header, then::WHOLE);
        self.sa.tfc_pad_to = tfc_pad_to;
    }

    /// Makes a job of the packet, or of each fragment that it has to be cut into.
    pub(crate) fn protect<E: Frame>(&mut self, meta: &PacketMeta, mut buffer: Buffer) {
        let header = match IpHeader::parse(buffer.bytes()) {
            Ok(header) => header,
            Err(_) if buffer.is_chain() => return self.protect_chain::<E>(meta, buffer),
            Err(error) => return self.pool.discard(buffer, reason_of(error)),
        };
        self.sa.clamp_mss(&header, &mut buffer);
        let mtu = self.sa.inner_mtu;
        // Over IPv6 the source alone may cut (RFC 8200 5): one that has done so before may be cut again.
        let may_cut = !header.dont_fragment || meta.was_cut();
        if buffer.len() <= usize::from(mtu) || may_cut && buffer.len() <= usize::from(self.sa.longest_whole) {
            return self.push::<E>(buffer, &header, then::SEND);
        }
        let told = told_mtu(mtu, header.version);
        if buffer.len() <= usize::from(told) {
            return self.push::<E>(buffer, &header, then::CUT);
        }
        if !may_cut {
            if self.replies.spend(self.now, header.source) {
                reply_too_big(&header, &buffer, told, self.pool, &mut self.out.replies);
            }
            return self.refuse(buffer, DropReason::TooBig);
        }
        self.keep_flow(Some(buffer.bytes()));
        for piece in cut(buffer, &header, mtu.into(), self.pool) {
            // Each has a header of its own.
            match IpHeader::parse(piece.bytes()) {
                Ok(header) => self.push::<E>(piece, &header, then::SEND),
                Err(error) => self.refuse(piece, reason_of(error)),
            }
        }
        self.keep_flow(None);
    }

    /// Of VPE: pieces of a packet stay in its flow's window ([`Numbers::keep_flow`](crate::vpe::Numbers)).
    pub(crate) fn keep_flow(&mut self, whole: Option<&[u8]>) {
        if let Some(numbers) = &mut self.sa.vpe {
            numbers.keep_flow(whole);
        }
    }

    /// Makes a job, with more to be done afterwards than its SA's packets usually need.
    fn push<E: Frame>(&mut self, buffer: Buffer, header: &IpHeader, then: u8) {
        // What looks for the path's MTU waits for nobody: it is late rather than lost otherwise.
        let must_wait = !self.out.waiting.is_empty() || self.sa.must_wait(self.now);
        if then & then::WHOLE == 0 && must_wait {
            debug_assert!(self.sa.vpe.is_none(), "a piece that waits would lose its flow's window");
            // It may be as long as it is: that was decided before.
            return self.out.waiting.push(Waiting { packet: buffer, may_be_cut: true });
        }
        match self.try_push::<E>(buffer, header) {
            Ok(mut job) => {
                job.then |= then;
                // Decided now: a device may seal it as it leaves, after which nobody could cut it.
                if job.then & then::CUT != 0 && datagram_bytes(&job) <= self.path_mtu {
                    job.then &= !then::CUT;
                }
                // Headers of AH are complete before they are masked.
                if self.sa.headers_vary && matches!(self.sa.encap, Encap::EspTunnel | Encap::Vpe) {
                    let (template, jobs) = (self.sa.template.as_ref(), std::iter::once(&mut job));
                    outer_fields::complete_run(template, self.sa_ref, jobs, self.identifications);
                }
                self.out.jobs.push(job);
            }
            Err((buffer, reason)) => self.refuse(buffer, reason),
        }
    }

    fn try_push<E: Frame>(&mut self, buffer: Buffer, header: &IpHeader) -> Result<Job, (Buffer, DropReason)> {
        let Ok(bytes) = u16::try_from(buffer.len()) else { return Err((buffer, DropReason::NoRoom)) };
        if self.sa.template.is_none() {
            return Err((buffer, DropReason::PeerUnknown));
        }
        // Before a number is used up.
        if let Err(reason) = E::check(self.sa, &buffer) {
            return Err((buffer, reason));
        }
        // Padding is encrypted under the key, too, and counts towards its lifetime (RFC 4301 4.4.2.1).
        let encrypted = bytes.max(self.sa.tfc_pad_to);
        let sequence = match E::admit(self.sa, &buffer, header, encrypted.into(), self.now, self.events) {
            Ok(sequence) => sequence,
            Err(reason) => return Err((buffer, reason)),
        };
        // The last one of any window: VPE has many.
        self.sa.counters.count(1, bytes.into(), self.sa.sequence.next() - 1);
        E::frame(self.sa, self.sa_ref, buffer, header, sequence, self.identifications)
    }

    pub(crate) fn refuse(&mut self, buffer: Buffer, reason: DropReason) {
        let known = Known {
            protocol: self.sa.encap.protocol(),
            spi: self.sa.spi,
            sequence: self.sa.sequence.next(),
            inner: None,
        };
        self.audit.note(reason, buffer.bytes(), Some(known), self.now);
        self.sa.counters.count_drop(reason);
        self.pool.discard(buffer, reason);
    }
}

/// Cuts a packet into fragments of at most `mtu` bytes. The first stays in its own buffer; the others get new
/// ones. If the pool runs out, all are dropped: an incomplete set of fragments is useless.
fn cut(mut buffer: Buffer, header: &IpHeader, mtu: usize, pool: &mut Pool) -> Vec<Buffer> {
    let mut pieces = fragment::pieces(header, buffer.bytes(), mtu);
    let Some(first) = pieces.next() else {
        // The tunnel's MTU is below any fragment's size. Configuration refuses that; this is only a
        // safeguard.
        drop(pieces);
        pool.discard(buffer, DropReason::TooBig);
        return Vec::new();
    };
    let mut later = Vec::new();
    let mut is_whole = true;
    for piece in pieces {
        let Some(mut own) = pool.create_from(&buffer, piece.header_bytes + piece.payload_bytes) else {
            is_whole = false;
            break;
        };
        let payload = &buffer.bytes()[piece.payload_start..piece.payload_start + piece.payload_bytes];
        let area = own.receive_area();
        area[..piece.header_bytes].copy_from_slice(&piece.header[..piece.header_bytes]);
        area[piece.header_bytes..piece.header_bytes + payload.len()].copy_from_slice(payload);
        own.set_len(piece.header_bytes + payload.len());
        later.push(own);
    }
    buffer.truncate(first.header_bytes + first.payload_bytes);
    buffer.bytes_mut()[..first.header_bytes].copy_from_slice(&first.header[..first.header_bytes]);
    later.insert(0, buffer);
    if !is_whole {
        later.drain(..).for_each(|buffer| pool.discard(buffer, DropReason::PoolEmpty));
    }
    later
}

/// Tells the sender of `packet` how long it may be. The reply's source is the packet's own destination, since
/// the gateway may have no address inside.
fn reply_too_big(
    header: &IpHeader,
    packet: &Buffer,
    mtu: u16,
    pool: &mut Pool,
    replies: &mut Vec<Originated>,
) {
    let mut message = [0; icmp::MAX_TOO_BIG_BYTES];
    let Ok(Some(length)) = icmp::too_big(header, packet.bytes(), mtu, header.destination, &mut message)
    else {
        return;
    };
    if let Some(mut reply) = pool.create_from(packet, length) {
        reply.receive_area()[..length].copy_from_slice(&message[..length]);
        reply.set_len(length);
        replies.push(Originated::new(reply));
    }
}
