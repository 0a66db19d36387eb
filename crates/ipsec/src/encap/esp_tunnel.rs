//! ESP in tunnel mode: headers and IV before a packet, the trailer after it, and the job that seals the text
//! (RFC 4303 2, 3.1.2, 3.3.2).
//!
//! Written for runs of packets of one SA; everything that is the same for all of them is copied out of the SA
//! first. [`crate::opened`] decapsulates.
//!
//! Where an SA leaves its [frames](testudo_crypto::frame) to the engine, only what is in front of ESP is
//! written, and what the trailer will be goes with the job.

use super::template::{BLOCK_BYTES, Headers, OUTER_BYTES, OuterTemplate};
use super::{Frame, MAX_IV_BYTES, ROOM_BEFORE, ROOM_BEHIND, has_room, packet_offset};
use crate::fragments::Identifications;
use crate::sa::{OutboundSa, iv_block, low_32};
use crate::slots::SaRef;
use testudo_crypto::{Direction, Job, Trailer};
use testudo_packet::{Buffer, DropReason};
use testudo_wire::esp::{ESP_HEADER_BYTES, ESP_TRAILER_BYTES};
use testudo_wire::ip::IpHeader;

/// Bytes that are written after a packet at once: up to 15 of padding, the trailer, and some that the ICV
/// will overwrite.
pub(crate) const TRAILER_BLOCK_BYTES: usize = 32;

/// The most padding that alignment to 16 bytes takes. Its binary digits are all ones, so `& MAX_PADDING`
/// keeps an index within [`TRAILERS`], and the compiler needs no bounds check.
const MAX_PADDING: u32 = 15;
/// Where the outer headers are in the headers' block, if ESP's is not written.
const OUTER_AT: usize = BLOCK_BYTES - ESP_HEADER_BYTES - OUTER_BYTES;

/// Pad length and next header.
const TRAILER_BYTES: u32 = 2;
const _: () = assert!(TRAILER_BYTES as usize == ESP_TRAILER_BYTES);

/// The default padding (RFC 4303 2.4) and the pad length after it, for each length; the next header goes into
/// the byte after that.
static TRAILERS: [[u8; TRAILER_BLOCK_BYTES]; 16] = trailers();

#[allow(clippy::cast_possible_truncation, reason = "numbers up to 15")]
const fn trailers() -> [[u8; TRAILER_BLOCK_BYTES]; 16] {
    let mut all = [[0; TRAILER_BLOCK_BYTES]; 16];
    let mut padding = 0;
    while padding < all.len() {
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

/// The properties of a packet that its frame depends on.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Content {
    /// Length of the packet, in bytes.
    pub(crate) bytes: u16,
    pub(crate) traffic_class: u8,
    /// The trailer's next header: the protocol number of the packet's IP version.
    pub(crate) next_header: u8,
}

/// Loop invariants copied out of the SA; otherwise the compiler must assume that packet writes alias it, and
/// reload them for each packet.
pub(crate) struct Framing<'a> {
    template: &'a OuterTemplate,
    /// Bytes of headers and IV.
    front: u32,
    /// Where the header block starts in the bytes that are written before a packet: the longer the IV, the
    /// earlier.
    block_at: usize,
    icv_bytes: u32,
    /// One less than the power of two that text lengths are multiples of.
    alignment_mask: u32,
    iv_mask: u64,
    esn: bool,
    /// Where the ESP header starts in the packet.
    auth_start: u32,
    sa: u32,
    then: u8,
}

impl<'a> Framing<'a> {
    /// The framing of an SA; `None` while the peer's address is unknown.
    #[inline(always)]
    pub(crate) fn of(sa: &'a OutboundSa, sa_ref: SaRef) -> Option<Self> {
        let template = sa.template.as_ref()?;
        let iv_bytes = usize::from(sa.layout.iv_bytes).min(MAX_IV_BYTES);
        Some(Self {
            template,
            front: packet_offset(template.bytes() + ESP_HEADER_BYTES + iv_bytes),
            block_at: MAX_IV_BYTES - iv_bytes,
            icv_bytes: sa.layout.icv_bytes.into(),
            alignment_mask: u32::from(sa.layout.alignment).wrapping_sub(1) & MAX_PADDING,
            iv_mask: sa.iv_mask,
            esn: sa.esn,
            auth_start: packet_offset(template.bytes()),
            sa: sa_ref.bits(),
            then: sa.then,
        })
    }

    /// The job that seals the packet in `buffer` under this number, once [`write`](Self::write) has framed
    /// it.
    #[inline(always)]
    pub(crate) fn job(&self, buffer: Buffer, sequence: u64) -> Job {
        Job {
            sequence,
            auth_start: self.auth_start,
            text_start: self.front,
            esn: self.esn,
            then: self.then,
            ..Job::new(buffer, Direction::Seal, self.sa)
        }
    }

    /// Writes headers and trailers around the packets of jobs, numbered from `first` on. Returns `false` if
    /// any buffer lacks [the room](has_room), or any datagram would be too long for its header: nothing is
    /// written around that packet. With `LEAVES` the engine writes the frames.
    #[inline]
    pub(crate) fn write<const LEAVES: bool>(
        &self,
        jobs: &mut [Job],
        contents: impl Iterator<Item = Content>,
        first: u64,
    ) -> bool {
        match self.template.headers() {
            Headers::V4 => self.write_each::<false, false, LEAVES>(jobs, contents, first),
            Headers::V4Udp => self.write_each::<false, true, LEAVES>(jobs, contents, first),
            Headers::V6 => self.write_each::<true, false, LEAVES>(jobs, contents, first),
            Headers::V6Udp => self.write_each::<true, true, LEAVES>(jobs, contents, first),
        }
    }

    #[inline(never)]
    fn write_each<const V6: bool, const UDP: bool, const LEAVES: bool>(
        &self,
        jobs: &mut [Job],
        contents: impl Iterator<Item = Content>,
        first: u64,
    ) -> bool {
        let mut all_written = true;
        for ((job, content), sequence) in jobs.iter_mut().zip(contents).zip(first..) {
            all_written &= self.surround::<V6, UDP, LEAVES>(job, content, sequence);
        }
        all_written
    }

    /// [`write`](Self::write) for one packet.
    #[inline(always)]
    pub(crate) fn write_one(&self, job: &mut Job, content: Content, sequence: u64) -> bool {
        match self.template.headers() {
            Headers::V4 => self.surround::<false, false, false>(job, content, sequence),
            Headers::V4Udp => self.surround::<false, true, false>(job, content, sequence),
            Headers::V6 => self.surround::<true, false, false>(job, content, sequence),
            Headers::V6Udp => self.surround::<true, true, false>(job, content, sequence),
        }
    }

    /// Writes what surrounds a packet; with `LEAVES` what is in front of ESP alone.
    #[inline(always)]
    #[allow(clippy::cast_possible_truncation, reason = "numbers up to 15")]
    fn surround<const V6: bool, const UDP: bool, const LEAVES: bool>(
        &self,
        job: &mut Job,
        content: Content,
        sequence: u64,
    ) -> bool {
        let inner_bytes = u32::from(content.bytes);
        let text_bytes = (inner_bytes + TRAILER_BYTES + self.alignment_mask) & !self.alignment_mask;
        let padding = text_bytes.wrapping_sub(inner_bytes + TRAILER_BYTES) & MAX_PADDING;
        let total = u16::try_from(self.front + text_bytes + self.icv_bytes);
        let (Ok(total), Some(around)) = (total, job.buffer.around::<ROOM_BEFORE, ROOM_BEHIND>()) else {
            return false;
        };
        if LEAVES {
            let at = self.block_at + OUTER_AT;
            if let Some(headers) = around.before.get_mut(at..).and_then(|b| b.first_chunk_mut()) {
                self.template.stamp_outer::<V6, UDP>(headers, total, content.traffic_class);
            }
            job.unwritten = Trailer::new((padding & MAX_PADDING) as u8, content.next_header).into();
        } else {
            if let Some(place) = around.behind.first_chunk_mut() {
                *place = TRAILERS[padding as usize];
            }
            around.behind[padding as usize + 1] = content.next_header;
            // The longest IV first; the headers then overwrite the bytes of it that a shorter one does not
            // need.
            if let Some(place) = around.before.last_chunk_mut() {
                *place = iv_block(sequence ^ self.iv_mask);
            }
            if let Some(headers) = around.before.get_mut(self.block_at..).and_then(|b| b.first_chunk_mut()) {
                self.template.stamp::<V6, UDP>(headers, total, content.traffic_class, low_32(sequence));
            }
        }
        around.grow(self.front, padding + TRAILER_BYTES + self.icv_bytes);
        job.text_bytes = text_bytes;
        true
    }
}

/// ESP in tunnel mode, packet by packet.
pub(crate) struct EspTunnel;

impl Frame for EspTunnel {
    fn check(_: &OutboundSa, packet: &Buffer) -> Result<(), DropReason> {
        if has_room(packet) { Ok(()) } else { Err(DropReason::NoRoom) }
    }

    fn frame(
        sa: &OutboundSa,
        sa_ref: SaRef,
        mut packet: Buffer,
        header: &IpHeader,
        sequence: u64,
        _: &mut Identifications,
    ) -> Result<Job, (Buffer, DropReason)> {
        pad(sa, &mut packet);
        let (Some(framing), Ok(bytes)) = (Framing::of(sa, sa_ref), u16::try_from(packet.len())) else {
            return Err((packet, DropReason::PeerUnknown));
        };
        let next_header = header.version.protocol();
        let content = Content { bytes, traffic_class: header.traffic_class, next_header };
        let mut job = framing.job(packet, sequence);
        if framing.write_one(&mut job, content, sequence) {
            Ok(job)
        } else {
            Err((job.buffer, DropReason::NoRoom))
        }
    }
}

/// Appends the TFC padding that an SA wants (RFC 4303 2.7), as far as the buffer has room.
fn pad(sa: &OutboundSa, packet: &mut Buffer) {
    let wanted = usize::from(sa.tfc_pad_to).saturating_sub(packet.len());
    let bytes = wanted.min(packet.tailroom().saturating_sub(ROOM_BEHIND));
    // Zeroed, and encrypted. It fits: see above.
    let _ = packet.append(bytes);
}
