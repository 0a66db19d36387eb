//! One incomplete datagram: a buffer, and which bytes of it are there.
//!
//! ```text
//!   storage   |  …  | header | payload byte 0 …        | …
//!                            ^ payload_at
//! ```

use crate::ecn;
use crate::encap::ROOM_BEHIND;
use arrayvec::ArrayVec;
use testudo_packet::{Buffer, DropReason, HEADROOM_BYTES, Pool, TAILROOM_BYTES};
use testudo_wire::reassembly::ReceivedFragment;

/// Fragments of one datagram at most: 65,515 bytes over the smallest link that IPv4 hosts must expect (576
/// bytes, RFC 791 3.1) make 119.
pub(super) const MAX_FRAGMENTS: usize = 128;

/// Bytes of headers before the payload at most: IPv4 has 60; over IPv6, these are 40 and a chain of 216,
/// enough for a segment routing header with 12 segments.
const MAX_HEADER_BYTES: usize = 256;

/// Bytes after a datagram that its SA wants: for a copy of the ICV, to verify AH, or for a trailer and an
/// ICV, to seal what a host has cut. The longest datagrams have less.
const BEHIND_BYTES: usize = ROOM_BEHIND;

/// Where the payload starts in the storage if the first fragment has not come yet.
const PAYLOAD_AT: usize = HEADROOM_BYTES + MAX_HEADER_BYTES;

/// Bytes of the payload that are there, and came in one fragment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Piece {
    start: usize,
    end: usize,
}

/// Why a fragment is not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Refusal {
    /// It alone is dropped.
    Fragment(DropReason),
    /// Its datagram is dropped with it, and what else comes of that.
    Datagram(DropReason),
}

/// A datagram that is not complete yet.
#[derive(Debug)]
pub(super) struct Datagram {
    buffer: Buffer,
    payload_at: usize,
    /// The fragment at offset 0, once it is there. Its header lies directly before the payload.
    first: Option<ReceivedFragment>,
    /// In the order of their offsets.
    pieces: ArrayVec<Piece, MAX_FRAGMENTS>,
    received_bytes: usize,
    /// Bytes of the whole payload, once the last fragment is there.
    total_bytes: Option<usize>,
    /// A bit for each ECN field seen.
    ecn_seen: u8,
}

impl Datagram {
    /// Makes the buffer of the fragment that came first that of its datagram. `buffer` is then empty.
    pub(super) fn begin(
        buffer: &mut Buffer,
        fragment: &ReceivedFragment,
        ecn: u8,
        pool: &mut Pool,
    ) -> Result<Self, DropReason> {
        let is_first = fragment.offset_bytes == 0;
        let (start, bytes) = (buffer.headroom(), fragment.payload_start..fragment.payload_end);
        // In the natural order the payload stays where it is, and grows there.
        let payload_at = if is_first { start + fragment.payload_start } else { PAYLOAD_AT };
        if fragment.header_bytes > MAX_HEADER_BYTES {
            return Err(DropReason::FragmentLimit);
        }
        make_room(buffer, payload_at + fragment.end_bytes(), pool)?;
        let mut buffer = std::mem::take(buffer);
        buffer.reset(0);
        let storage = buffer.receive_area();
        if is_first {
            let header = start..start + fragment.header_bytes;
            storage.copy_within(header, payload_at - fragment.header_bytes);
        } else {
            let payload = start + bytes.start..start + bytes.end;
            storage.copy_within(payload, payload_at + fragment.offset_bytes);
        }
        let mut datagram = Self {
            buffer,
            payload_at,
            first: is_first.then_some(*fragment),
            pieces: ArrayVec::new(),
            received_bytes: 0,
            total_bytes: None,
            ecn_seen: 0,
        };
        datagram.note(0, fragment, ecn);
        Ok(datagram)
    }

    /// Adds a fragment of the datagram, whose packet is `packet`.
    pub(super) fn add(
        &mut self,
        packet: &[u8],
        fragment: &ReceivedFragment,
        ecn: u8,
        pool: &mut Pool,
    ) -> Result<(), Refusal> {
        let (start, end) = (fragment.offset_bytes, fragment.end_bytes());
        let payload = packet.get(fragment.payload_start..fragment.payload_end).unwrap_or_default();
        self.check_end(fragment)?;
        let place = self.pieces.partition_point(|piece| piece.start < start);
        if self.pieces.get(place).is_some_and(|piece| *piece == Piece { start, end }) {
            let is_same = self.bytes(start, end) == payload;
            return Err(if is_same {
                Refusal::Fragment(DropReason::FragmentDuplicate)
            } else {
                Refusal::Datagram(DropReason::FragmentOverlap)
            });
        }
        let before = place.checked_sub(1).and_then(|before| self.pieces.get(before));
        let after = self.pieces.get(place);
        if before.is_some_and(|piece| piece.end > start) || after.is_some_and(|piece| piece.start < end) {
            return Err(Refusal::Datagram(DropReason::FragmentOverlap));
        }
        if fragment.header_bytes > MAX_HEADER_BYTES || self.pieces.is_full() {
            return Err(Refusal::Datagram(DropReason::FragmentLimit));
        }
        self.make_room(end, pool).map_err(Refusal::Datagram)?;
        self.copy(self.payload_at + start, payload);
        if start == 0 {
            let header = packet.get(..fragment.header_bytes).unwrap_or_default();
            // Not before the start of the storage: other fragments have put the payload far enough behind it.
            self.copy(self.payload_at - header.len(), header);
            self.first = Some(*fragment);
        }
        self.note(place, fragment, ecn);
        Ok(())
    }

    /// Moves the datagram to a long buffer where its own has no room for the payload up to byte `end`.
    fn make_room(&mut self, end: usize, pool: &mut Pool) -> Result<(), DropReason> {
        let bytes = self.payload_at + end;
        if bytes + BEHIND_BYTES <= self.buffer.capacity() {
            return Ok(());
        }
        // All that it has is moved: which bytes were written is known to the pieces alone.
        self.buffer.set_len(self.buffer.capacity());
        let moved = make_room(&mut self.buffer, bytes, pool);
        self.buffer.reset(0);
        moved
    }

    /// All fragments must agree on where the datagram ends.
    fn check_end(&self, fragment: &ReceivedFragment) -> Result<(), Refusal> {
        let end = fragment.end_bytes();
        let seen = self.pieces.last().map_or(0, |piece| piece.end);
        let agrees = match (self.total_bytes, fragment.more) {
            (Some(total), true) => end < total,
            (Some(total), false) => end == total,
            (None, true) => true,
            (None, false) => seen < end,
        };
        if agrees { Ok(()) } else { Err(Refusal::Datagram(DropReason::FragmentMalformed)) }
    }

    fn note(&mut self, place: usize, fragment: &ReceivedFragment, ecn: u8) {
        let (start, end) = (fragment.offset_bytes, fragment.end_bytes());
        self.pieces.insert(place, Piece { start, end });
        self.received_bytes += end - start;
        self.ecn_seen |= 1 << (ecn & ecn::MASK);
        if !fragment.more {
            self.total_bytes = Some(end);
        }
    }

    fn bytes(&mut self, start: usize, end: usize) -> &[u8] {
        self.buffer.receive_area().get(self.payload_at + start..self.payload_at + end).unwrap_or_default()
    }

    fn copy(&mut self, at: usize, bytes: &[u8]) {
        if let Some(place) = self.buffer.receive_area().get_mut(at..at + bytes.len()) {
            place.copy_from_slice(bytes);
        }
    }

    /// Whether every byte is there. Pieces do not overlap, so that their number is enough.
    pub(super) fn is_complete(&self) -> bool {
        self.total_bytes == Some(self.received_bytes)
    }

    /// The whole datagram in its buffer, if it is [complete](Self::is_complete); otherwise the buffer, and
    /// why it must be dropped.
    pub(super) fn into_whole(self) -> Result<Buffer, (Buffer, DropReason)> {
        let Self { mut buffer, payload_at, first: Some(first), received_bytes, ecn_seen, .. } = self else {
            return Err((self.buffer, DropReason::FragmentMalformed));
        };
        let start = payload_at - first.header_bytes;
        let total = first.header_bytes + received_bytes;
        buffer.reset(start);
        buffer.set_len(total);
        let own = testudo_wire::ip::traffic_class(buffer.bytes());
        let Some(ecn) = ecn::of_fragments(own, ecn_seen) else {
            return Err((buffer, DropReason::FragmentEcn));
        };
        let header = buffer.bytes_mut().get_mut(..first.header_bytes).unwrap_or_default();
        // RFC 791 3.2, RFC 8200 4.5: no datagram is longer than 65,535 bytes.
        if !first.complete_header(header, total, ecn) {
            return Err((buffer, DropReason::FragmentMalformed));
        }
        Ok(buffer)
    }

    /// The buffer that the fragments are copied to.
    pub(super) fn buffer(&self) -> &Buffer {
        &self.buffer
    }

    /// The buffer, to be discarded.
    pub(super) fn into_buffer(self) -> Buffer {
        self.buffer
    }
}

/// Moves a packet to a long buffer if its own has fewer than `bytes`, and some behind them.
fn make_room(buffer: &mut Buffer, bytes: usize, pool: &mut Pool) -> Result<(), DropReason> {
    if bytes + BEHIND_BYTES <= buffer.capacity() {
        return Ok(());
    }
    let wanted = bytes - buffer.headroom();
    match pool.lengthen(std::mem::take(buffer), wanted) {
        Ok(long) => {
            *buffer = long;
            Ok(())
        }
        Err(same) if bytes <= same.capacity() => {
            *buffer = same;
            Ok(())
        }
        Err(short) => {
            *buffer = short;
            let is_too_long = bytes > HEADROOM_BYTES + pool.packet_bytes() + TAILROOM_BYTES;
            Err(if is_too_long { DropReason::FragmentLimit } else { DropReason::PoolEmpty })
        }
    }
}
