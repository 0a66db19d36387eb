//! From the protected to the unprotected side: policy, headers, sequence numbers, jobs (RFC 4303 3.3).

use crate::Ipsec;
use crate::event::Event;
use crate::lifetime::Moment;
use crate::sa::{OutboundSa, aad, low, nonce};
use crate::selector::Flow;
use crate::slots::SaRef;
use crate::spd::{Action, Verdict};
use crate::verdict::{Prepared, Sealed, SealedOr};
use testudo_crypto::{Direction, Job, JobStatus, KeyId};
use testudo_packet::{Batch, Buffer, DropReason, Pool, Stage, StageClock};
use testudo_wire::esp::{ESP_HEADER_BYTES, ESP_TRAILER_BYTES, EspHeader, EspTrailer};
use testudo_wire::ip::IpHeader;
use testudo_wire::{ParseError, fragment, icmp};

/// What of a packet's header is needed after policy has spoken.
struct Classified {
    header: IpHeader,
    sa: SaRef,
}

impl Ipsec {
    /// Takes packets from the protected side and makes jobs of those that policy protects. All of `batch` is taken: every packet ends
    /// up in `out` or is discarded to `pool` with its reason.
    pub fn outbound(
        &mut self,
        batch: &mut Batch,
        now: Moment,
        pool: &mut Pool,
        clock: &mut StageClock,
        out: &mut Prepared,
    ) {
        for mut buffer in batch.drain(..) {
            match self.classify_outbound(&mut buffer) {
                Ok(Some(classified)) => self.protect(buffer, &classified, now, pool, out),
                Ok(None) => out.pass.push(buffer),
                Err(reason) => pool.discard(buffer, reason),
            }
        }
        clock.lap(Stage::Headers);
    }

    /// The SA of a packet that policy protects; `None` for one that it lets pass.
    fn classify_outbound(&self, buffer: &mut Buffer) -> Result<Option<Classified>, DropReason> {
        let header = IpHeader::parse(buffer.bytes()).map_err(reason_of)?;
        buffer.truncate(header.total_bytes);
        let flow = Flow::outbound(&header, buffer.bytes());
        match self.spd.verdict(&flow) {
            Verdict::Policy(Action::Protect(index)) => {
                let tunnel = self.tunnel(index).ok_or(DropReason::NoSa)?;
                Ok(Some(Classified { header, sa: tunnel.outbound }))
            }
            Verdict::Policy(Action::Bypass) => Ok(None),
            Verdict::Policy(Action::Discard) => Err(DropReason::PolicyDiscard),
            Verdict::NoPolicy => Err(DropReason::NoPolicy),
            Verdict::PortsHidden => Err(DropReason::PortsHidden),
        }
    }

    fn protect(&mut self, buffer: Buffer, c: &Classified, now: Moment, pool: &mut Pool, out: &mut Prepared) {
        let Some(sa) = self.outbound.get_mut(c.sa) else { return pool.discard(buffer, DropReason::NoSa) };
        if buffer.len() <= sa.inner_mtu {
            return push_job(sa, c.sa, buffer, &c.header, now, pool, &mut out.jobs, &mut self.events);
        }
        if c.header.dont_fragment {
            let mtu = u16::try_from(sa.inner_mtu).unwrap_or(u16::MAX);
            if self.replies.take(now) {
                reply_too_big(&c.header, &buffer, mtu, pool, &mut out.replies);
            }
            sa.counters.count_drop(DropReason::TooBig);
            return pool.discard(buffer, DropReason::TooBig);
        }
        for (piece, header) in cut(buffer, &c.header, sa.inner_mtu, pool) {
            push_job(sa, c.sa, piece, &header, now, pool, &mut out.jobs, &mut self.events);
        }
    }

    /// Takes a job that the engine has ended, in the order of its SA, and gives the datagram to send, or nothing if it was discarded.
    pub fn finish_outbound(&mut self, job: Job, sa: SaRef, pool: &mut Pool) -> SealedOr {
        let reason = match (self.outbound.get(sa), job.status) {
            (Some(_), JobStatus::Done) => return Some(Sealed::new(job.buffer)),
            (Some(sa), _) => {
                sa.counters.count_drop(DropReason::EngineFault);
                DropReason::EngineFault
            }
            (None, _) => DropReason::ShuttingDown,
        };
        pool.discard(job.buffer, reason);
        None
    }
}

/// Numbers the packet, writes its headers and trailer and makes it a job.
#[allow(
    clippy::too_many_arguments,
    reason = "the parts of the worker's state that a packet meets, borrowed apart"
)]
#[inline]
fn push_job(
    sa: &mut OutboundSa,
    name: SaRef,
    mut buffer: Buffer,
    inner: &IpHeader,
    now: Moment,
    pool: &mut Pool,
    jobs: &mut Vec<Job>,
    events: &mut Vec<Event>,
) {
    let inner_bytes = buffer.len();
    match seal_job(sa, &mut buffer, inner, now, events) {
        Ok((sequence, mut job)) => {
            sa.counters.count(inner_bytes as u64, sequence);
            job.buffer = buffer;
            job.cookie = u64::from(name.bits()) << 32;
            jobs.push(job);
        }
        Err(reason) => {
            sa.counters.count_drop(reason);
            pool.discard(buffer, reason);
        }
    }
}

/// The job that seals the packet in `buffer`, which it leaves with all headers written; the job's buffer is still empty.
fn seal_job(
    sa: &mut OutboundSa,
    buffer: &mut Buffer,
    inner: &IpHeader,
    now: Moment,
    events: &mut Vec<Event>,
) -> Result<(u64, Job), DropReason> {
    let inner_bytes = buffer.len();
    let template = sa.template.as_ref().ok_or(DropReason::PeerUnknown)?;
    let (iv_bytes, icv_bytes) = (sa.suite.iv_bytes(), sa.suite.icv_bytes());
    let esp_at = template.bytes();
    let front = esp_at + ESP_HEADER_BYTES + iv_bytes;
    let padding = EspTrailer::padding_for(inner_bytes, sa.suite.alignment_bytes());
    let trailer = padding + ESP_TRAILER_BYTES;
    // Room is checked before a number is used up.
    if buffer.headroom() < front || buffer.tailroom() < trailer + icv_bytes {
        return Err(DropReason::NoRoom);
    }
    let out = buffer.append(trailer + icv_bytes).map_err(|_| DropReason::NoRoom)?;
    EspTrailer::write(&mut out[..trailer], inner.version.protocol());
    let total = front + inner_bytes + trailer + icv_bytes;
    let out = buffer.prepend(front).map_err(|_| DropReason::NoRoom)?;
    template.write(out, total, inner.traffic_class).map_err(|_| DropReason::NoRoom)?;
    let sequence = sa.admit(inner_bytes, now, events)?;
    let iv = (sequence ^ sa.iv_seed).to_be_bytes();
    let header = EspHeader { spi: sa.spi, sequence: low(sequence) };
    out[esp_at..esp_at + ESP_HEADER_BYTES].copy_from_slice(&header.to_bytes());
    out[esp_at + ESP_HEADER_BYTES..].copy_from_slice(&iv);
    let job = Job {
        buffer: Buffer::default(),
        cookie: 0,
        text_start: u32::try_from(front).map_err(|_| DropReason::NoRoom)?,
        text_bytes: u32::try_from(inner_bytes + trailer).map_err(|_| DropReason::NoRoom)?,
        key: KeyId(u32::MAX),
        nonce: nonce(sa.salt, iv),
        aad: aad(sa.spi, sa.esn, sequence),
        direction: Direction::Seal,
        status: JobStatus::Pending,
    };
    Ok((sequence, job))
}

/// Cuts a packet into fragments of at most `mtu` bytes. The first stays in its own buffer; the others get new ones. If buffers lack, all are
/// dropped: a part of a packet's fragments helps nobody.
fn cut(mut buffer: Buffer, header: &IpHeader, mtu: usize, pool: &mut Pool) -> Vec<(Buffer, IpHeader)> {
    let mut pieces = fragment::pieces(header, buffer.bytes(), mtu);
    let Some(first) = pieces.next() else {
        // The tunnel's MTU is below any fragment's size: configuration refuses that, so this is only a last fence.
        drop(pieces);
        pool.discard(buffer, DropReason::TooBig);
        return Vec::new();
    };
    let mut later = Vec::new();
    let mut is_whole = true;
    for piece in pieces {
        let Some(mut own) = pool.create() else {
            is_whole = false;
            break;
        };
        let payload =
            &header.payload(buffer.bytes())[piece.payload_start..piece.payload_start + piece.payload_bytes];
        let area = own.receive_area();
        area[..piece.header_bytes].copy_from_slice(&piece.header[..piece.header_bytes]);
        area[piece.header_bytes..piece.header_bytes + payload.len()].copy_from_slice(payload);
        own.set_len(piece.header_bytes + payload.len());
        later.push((own, *header));
    }
    buffer.truncate(first.header_bytes + first.payload_bytes);
    buffer.bytes_mut()[..first.header_bytes].copy_from_slice(&first.header[..first.header_bytes]);
    later.insert(0, (buffer, *header));
    if !is_whole {
        later.drain(..).for_each(|(buffer, _)| pool.discard(buffer, DropReason::PoolEmpty));
    }
    later
}

/// Tells the sender of `packet` how long it may be. The reply comes from the packet's own destination: the gateway may have no address inside.
fn reply_too_big(header: &IpHeader, packet: &Buffer, mtu: u16, pool: &mut Pool, replies: &mut Vec<Buffer>) {
    let mut message = [0; icmp::MAX_TOO_BIG_BYTES];
    let Ok(Some(length)) = icmp::too_big(header, packet.bytes(), mtu, header.destination, &mut message)
    else {
        return;
    };
    if length > pool.packet_bytes() {
        return;
    }
    if let Some(mut reply) = pool.create() {
        reply.receive_area()[..length].copy_from_slice(&message[..length]);
        reply.set_len(length);
        replies.push(reply);
    }
}

pub(crate) fn reason_of(error: ParseError) -> DropReason {
    match error {
        ParseError::NotIp => DropReason::NotIp,
        ParseError::Truncated => DropReason::Truncated,
        ParseError::BadHeader => DropReason::BadHeader,
        ParseError::BadChecksum => DropReason::BadChecksum,
    }
}
