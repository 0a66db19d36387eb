//! From the protected to the unprotected side: policy, headers, sequence numbers, jobs (RFC 4303 3.3).
//!
//! A batch goes through in phases, each a loop over all packets: read headers, ask policy, find SAs, then number and write. Packets of one SA that
//! stand together get their numbers and are counted together. Whatever is not common (options, fragments, a limit or the end of a
//! lease near, a packet too long) is done packet by packet, at its place in the order.

use crate::Ipsec;
use crate::alone::Alone;
use crate::lifetime::Moment;
use crate::pair::Pair;
use crate::sa::{MAX_IV_BYTES, OutboundSa, aad, iv, low, nonce};
use crate::selector::Flow;
use crate::slots::SaRef;
use crate::spd::{Action, Spd, Verdict};
use crate::template::{BLOCK_BYTES, OuterTemplate};
use crate::verdict::{Prepared, Sealed, SealedOr};
use arrayvec::ArrayVec;
use testudo_crypto::{Direction, Job, JobStatus, KeyId};
use testudo_packet::{BATCH_SIZE, Batch, Buffer, DropReason, Pool, Stage, StageClock};
use testudo_wire::esp::{ESP_HEADER_BYTES, ESP_TRAILER_BYTES};
use testudo_wire::ip::IpHeader;
use testudo_wire::plain::{PlainHeader, PlainV4};
use testudo_wire::{ParseError, protocol};

/// Free bytes that the common path wants before and behind a packet; every pool's buffers have more.
pub(crate) const ROOM_BEFORE: usize = BLOCK_BYTES + MAX_IV_BYTES;
pub(crate) const ROOM_BEHIND: usize = TRAILER_BLOCK_BYTES + MAX_ICV_BYTES;
const MAX_ICV_BYTES: usize = 32;
/// What is written behind a packet at once: up to 15 bytes of padding, the trailer, and what the ICV will overwrite.
const TRAILER_BLOCK_BYTES: usize = 32;

/// What is known of a packet while its batch goes through the phases.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Lead {
    pub(crate) between: Between,
    /// What stands in the trailer: the protocol number of the packet's IP version.
    pub(crate) next_header: u8,
    /// Length of the packet, in bytes.
    pub(crate) bytes: u16,
    pub(crate) traffic_class: u8,
    /// Whether the buffer has the room that the common path wants.
    pub(crate) has_room: bool,
}

/// What policy asks of a packet.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Between {
    /// A plain IPv4 packet, most often decided by its addresses.
    V4(PlainV4),
    Flow(Flow),
}

impl Between {
    /// Asks for what a verdict will need.
    #[inline(always)]
    fn prefetch(&self, spd: &Spd) {
        match self {
            Self::V4(header) => spd.prefetch_v4(Pair::outbound(header)),
            Self::Flow(flow) => spd.prefetch(flow.local(), flow.remote()),
        }
    }

    #[inline(always)]
    fn verdict(&self, spd: &Spd) -> Verdict {
        match self {
            Self::V4(header) => spd
                .verdict_v4(Pair::outbound(header))
                .unwrap_or_else(|| spd.verdict(&Flow::plain_outbound(&(*header).into()))),
            Self::Flow(flow) => spd.verdict(flow),
        }
    }
}

/// What becomes of a packet, as far as policy tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    Protect(SaRef),
    Pass,
    Drop(DropReason),
}

type Leads = ArrayVec<Result<Lead, DropReason>, BATCH_SIZE>;
type Ways = ArrayVec<Way, BATCH_SIZE>;

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
        let mut leads = Leads::new();
        for buffer in batch.iter_mut() {
            read(buffer, &mut leads);
        }
        clock.lap(Stage::Parse);
        if self.spd.is_indexed() {
            for lead in leads.iter().flatten() {
                lead.between.prefetch(&self.spd);
            }
        }
        let mut ways = Ways::new();
        for lead in &leads {
            ways.push(self.way(lead));
        }
        clock.lap(Stage::Policy);
        for way in &ways {
            if let Way::Protect(name) = way {
                self.outbound.prefetch(*name);
            }
        }
        if self.spd.is_indexed() {
            self.prefetch_counters(&ways);
        }
        clock.lap(Stage::Sa);
        out.jobs.reserve(batch.len());
        let mut buffers = batch.drain(..);
        let mut at = 0;
        while let Some(&way) = ways.get(at) {
            let run = ways[at..].iter().take_while(|&&other| other == way).count();
            let (leads, buffers) = (&leads[at..at + run], buffers.by_ref().take(run));
            at += run;
            match way {
                Way::Protect(name) => self.protect(name, leads, buffers, now, pool, out),
                Way::Pass => out.pass.extend(buffers),
                Way::Drop(reason) => buffers.for_each(|buffer| pool.discard(buffer, reason)),
            }
        }
        clock.lap(Stage::Headers);
    }

    /// Asks for counters: they are not next to their SAs, since other threads read them.
    fn prefetch_counters(&self, ways: &Ways) {
        for way in ways {
            if let Way::Protect(name) = way
                && let Some(sa) = self.outbound.get(*name)
            {
                sa.counters.prefetch();
            }
        }
    }

    /// What policy says of a packet, down to the SA.
    #[inline]
    fn way(&self, lead: &Result<Lead, DropReason>) -> Way {
        let between = match lead {
            Ok(lead) => &lead.between,
            Err(reason) => return Way::Drop(*reason),
        };
        match between.verdict(&self.spd) {
            Verdict::Policy(Action::Protect(index)) => {
                let name = self.outbound_of.get(index.0 as usize).copied().flatten();
                name.map_or(Way::Drop(DropReason::NoSa), Way::Protect)
            }
            Verdict::Policy(Action::Bypass) => Way::Pass,
            Verdict::Policy(Action::Discard) => Way::Drop(DropReason::PolicyDiscard),
            Verdict::NoPolicy => Way::Drop(DropReason::NoPolicy),
            Verdict::PortsHidden => Way::Drop(DropReason::PortsHidden),
        }
    }

    /// Makes jobs of packets of one SA that stand together in a batch.
    #[inline]
    fn protect(
        &mut self,
        name: SaRef,
        leads: &[Result<Lead, DropReason>],
        buffers: impl Iterator<Item = Buffer>,
        now: Moment,
        pool: &mut Pool,
        out: &mut Prepared,
    ) {
        let Some(sa) = self.outbound.get_mut(name) else {
            return buffers.for_each(|buffer| pool.discard(buffer, DropReason::NoSa));
        };
        let leads = leads.iter().filter_map(|lead| lead.as_ref().ok());
        let first = admit_run(sa, leads.clone(), now);
        if let (Some(first), Some(template)) = (first, &sa.template) {
            let cookie = u64::from(name.bits()) << 32;
            for ((buffer, lead), sequence) in buffers.zip(leads).zip(first..) {
                let numbers = (sequence, cookie);
                if let Err(buffer) = push_job(sa, template, buffer, lead, numbers, &mut out.jobs) {
                    pool.discard(buffer, DropReason::NoRoom);
                }
            }
            return;
        }
        let (events, replies) = (&mut self.events, &mut self.replies);
        let mut alone = Alone { sa, name, now, pool, out, events, replies };
        buffers.for_each(|buffer| alone.protect(buffer));
    }

    /// [`finish_outbound`](Self::finish_outbound) for jobs that ended where they stand, in their order.
    #[inline]
    pub fn finish_outbound_batch(
        &mut self,
        jobs: &mut Vec<Job>,
        pool: &mut Pool,
        mut send: impl FnMut(Sealed, &mut Pool),
    ) {
        for job in jobs.drain(..) {
            // Nothing can have happened to the SA of a job that nobody took away.
            if job.status == JobStatus::Done {
                send(Sealed::new(job.buffer), pool);
            } else {
                let sa = Prepared::sa_of(&job);
                self.fail(job.buffer, sa, pool);
            }
        }
    }

    /// Takes a job that the engine has ended, in the order of its SA, and gives the datagram to send, or nothing if it was discarded.
    pub fn finish_outbound(&mut self, job: Job, sa: SaRef, pool: &mut Pool) -> SealedOr {
        if job.status == JobStatus::Done && self.outbound.get(sa).is_some() {
            return Some(Sealed::new(job.buffer));
        }
        self.fail(job.buffer, sa, pool);
        None
    }

    /// Discards a packet that no engine has sealed, or whose SA has gone.
    #[cold]
    fn fail(&self, buffer: Buffer, sa: SaRef, pool: &mut Pool) {
        let reason = match self.outbound.get(sa) {
            Some(sa) => {
                sa.counters.count_drop(DropReason::EngineFault);
                DropReason::EngineFault
            }
            None => DropReason::ShuttingDown,
        };
        pool.discard(buffer, reason);
    }
}

/// Reads a packet's header, and cuts off what stands behind the datagram. The lead goes straight to its place: a value that comes together
/// in another place is copied by loads that cover several stores of a moment ago, and each waits for them.
#[inline(always)]
fn read(buffer: &mut Buffer, leads: &mut Leads) {
    let has_room = buffer.headroom() >= ROOM_BEFORE && buffer.tailroom() >= ROOM_BEHIND;
    let Some(header) = PlainV4::parse(buffer.bytes()) else {
        let lead = other_lead(buffer.bytes(), has_room);
        if let Ok(lead) = &lead {
            buffer.truncate(lead.bytes.into());
        }
        return leads.push(lead);
    };
    buffer.truncate(header.total_bytes.into());
    leads.push(Ok(Lead {
        between: Between::V4(header),
        next_header: protocol::IPV4,
        bytes: header.total_bytes,
        traffic_class: header.traffic_class,
        has_room,
    }));
}

/// That of a packet that is no plain IPv4.
#[inline]
fn other_lead(packet: &[u8], has_room: bool) -> Result<Lead, DropReason> {
    let Some(header) = PlainHeader::parse(packet) else { return uncommon_lead(packet) };
    Ok(Lead {
        between: Between::Flow(Flow::plain_outbound(&header)),
        next_header: header.version.protocol(),
        bytes: header.total_bytes,
        traffic_class: header.traffic_class,
        has_room,
    })
}

#[cold]
fn uncommon_lead(packet: &[u8]) -> Result<Lead, DropReason> {
    let header = IpHeader::parse(packet).map_err(reason_of)?;
    Ok(Lead {
        between: Between::Flow(Flow::outbound(&header, packet)),
        next_header: header.version.protocol(),
        bytes: u16::try_from(header.total_bytes).map_err(|_| DropReason::TooBig)?,
        traffic_class: header.traffic_class,
        has_room: false,
    })
}

/// The first of as many numbers as there are packets; `None`, with nothing used up, if any of them is not common, or a limit of the SA
/// or of its lease is near.
#[inline]
fn admit_run<'a>(
    sa: &mut OutboundSa,
    leads: impl Iterator<Item = &'a Lead> + Clone,
    now: Moment,
) -> Option<u64> {
    let (mut packets, mut bytes, mut are_common) = (0, 0, sa.template.is_some());
    for lead in leads {
        packets += 1;
        bytes += u64::from(lead.bytes);
        are_common &= lead.bytes <= sa.inner_mtu && lead.has_room;
    }
    if !are_common || sa.lifetime.is_near(packets, bytes, now) {
        return None;
    }
    let first = sa.sequence.take_run(packets)?;
    sa.lifetime.count_run(packets, bytes, now);
    sa.last_sent = now;
    sa.counters.count(packets, bytes, first + packets - 1);
    Some(first)
}

/// Writes headers and trailer around the packet in `buffer`, and appends the job that seals it to `jobs`. Without the room that its lead has
/// promised, the buffer comes back.
#[inline(always)]
pub(crate) fn push_job(
    sa: &OutboundSa,
    template: &OuterTemplate,
    mut buffer: Buffer,
    lead: &Lead,
    (sequence, cookie): (u64, u64),
    jobs: &mut Vec<Job>,
) -> Result<(), Buffer> {
    let (iv_bytes, icv_bytes) = (usize::from(sa.shape.iv_bytes), usize::from(sa.shape.icv_bytes));
    let inner_bytes = usize::from(lead.bytes);
    let padding = sa.shape.padding_for(inner_bytes) & MAX_PADDING;
    let trailer = padding + ESP_TRAILER_BYTES;
    let front = template.bytes() + ESP_HEADER_BYTES + iv_bytes;
    let Ok(total) = u16::try_from(front + inner_bytes + trailer + icv_bytes) else { return Err(buffer) };
    let Some(behind) = buffer.behind::<TRAILER_BLOCK_BYTES>() else { return Err(buffer) };
    *behind = TRAILERS[padding];
    behind[padding + 1] = lead.next_header;
    let Some(before) = buffer.before::<ROOM_BEFORE>() else { return Err(buffer) };
    let (iv, iv_block) = iv(sequence ^ sa.iv_seed);
    // The longest IV first; headers then go over what a shorter one does not need of it.
    if let Some(place) = before.last_chunk_mut() {
        *place = iv_block;
    }
    if let Some(headers) = before[MAX_IV_BYTES - iv_bytes..].first_chunk_mut() {
        template.stamp(headers, total, lead.traffic_class, low(sequence));
    }
    if buffer.widen(front, trailer + icv_bytes).is_err() {
        return Err(buffer);
    }
    jobs.push(Job {
        buffer,
        cookie,
        text_start: small(front),
        text_bytes: small(inner_bytes + trailer),
        key: KeyId(u32::MAX),
        nonce: nonce(sa.salt, iv),
        aad: aad(sa.spi, sa.esn, sequence),
        direction: Direction::Seal,
        status: JobStatus::Pending,
    });
    Ok(())
}

/// Offsets inside a datagram, which are below 2^16.
#[inline]
pub(crate) fn small(n: usize) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}

/// The most padding that alignment to 16 bytes takes.
const MAX_PADDING: usize = 15;

/// The default padding (RFC 4303 2.4) and the pad length behind it, for each length; the next header's place is the byte after.
static TRAILERS: [[u8; TRAILER_BLOCK_BYTES]; MAX_PADDING + 1] = trailers();

#[allow(clippy::cast_possible_truncation, reason = "numbers up to 15")]
const fn trailers() -> [[u8; TRAILER_BLOCK_BYTES]; MAX_PADDING + 1] {
    let mut all = [[0; TRAILER_BLOCK_BYTES]; MAX_PADDING + 1];
    let mut padding = 0;
    while padding <= MAX_PADDING {
        let mut at = 0;
        while at < padding {
            all[padding][at] = at as u8 + 1;
            at += 1;
        }
        all[padding][padding] = padding as u8;
        padding += 1;
    }
    all
}

pub(crate) fn reason_of(error: ParseError) -> DropReason {
    match error {
        ParseError::NotIp => DropReason::NotIp,
        ParseError::Truncated => DropReason::Truncated,
        ParseError::BadHeader => DropReason::BadHeader,
        ParseError::BadChecksum => DropReason::BadChecksum,
    }
}
