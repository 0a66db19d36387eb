//! Packets in several buffers.
//!
//! ```text
//!   Buffer (24 bytes, in a batch or a job)
//!     │  storage of the first segment
//!     ▼
//!   | headroom | bytes | tailroom | next: Buffer |
//!                                     │  storage of the second segment
//!                                     ▼
//!                                   | headroom | bytes | tailroom |
//! ```
//!
//! A link is a `Buffer` in the last cache line of its predecessor's storage, which is no part of that one's
//! capacity meanwhile. So a chain takes no memory beside its frames, a `Buffer` is no longer than without,
//! and who drops or recycles the first segment does so with all.

use crate::Buffer;

/// The most segments of a packet: enough for the longest datagram in frames of 2 KiB, with headers and
/// trailer in segments of their own.
pub const MAX_SEGMENTS: usize = 64;

impl Buffer {
    /// Appends another packet, whose segments become this one's last.
    ///
    /// # Errors
    /// The other packet, if both have more than [`MAX_SEGMENTS`], or the last segment of this one has less
    /// than a cache line of tailroom for the link. Both are then unchanged.
    pub fn link(&mut self, rest: Buffer) -> Result<(), Buffer> {
        if self.segments().count() + rest.segments().count() > MAX_SEGMENTS {
            return Err(rest);
        }
        self.with_last(|last| last.set_next(rest))
    }

    /// Takes all segments but the first out of the chain; `None` if there is only one.
    #[must_use]
    pub fn take_rest(&mut self) -> Option<Buffer> {
        self.take_next()
    }

    /// The segments, in order, this one first.
    #[must_use]
    pub fn segments(&self) -> Segments<'_> {
        Segments { next: Some(self) }
    }

    /// The bytes of each segment, to be changed in place.
    #[must_use]
    pub fn segments_mut(&mut self) -> SegmentsMut<'_> {
        SegmentsMut { next: Some(self) }
    }

    /// Bytes of all segments.
    #[must_use]
    #[inline]
    pub fn chain_bytes(&self) -> usize {
        if self.is_chain() { self.segments().map(Buffer::len).sum() } else { self.len() }
    }

    /// Does something with the last segment, which alone may grow at its end.
    pub fn with_last<R>(&mut self, change: impl FnOnce(&mut Buffer) -> R) -> R {
        match self.with_next().1 {
            Some(next) => next.with_last(change),
            None => change(self),
        }
    }

    /// Copies bytes of all segments, from byte `from` on, as many as there are and `out` holds; how many.
    pub fn copy_to(&self, mut from: usize, out: &mut [u8]) -> usize {
        let mut copied = 0;
        for segment in self.segments() {
            let bytes = segment.bytes();
            let here = bytes.get(from..).unwrap_or_default();
            from = from.saturating_sub(bytes.len());
            let count = here.len().min(out.len() - copied);
            out[copied..copied + count].copy_from_slice(&here[..count]);
            copied += count;
        }
        copied
    }

    /// Makes the first `count` bytes contiguous, by moving some of the following segments to the tailroom of
    /// this one; `false`, with nothing changed, if there are not so many, or there is no room for them.
    pub fn pull_up(&mut self, count: usize) -> bool {
        let missing = count.saturating_sub(self.len());
        if missing == 0 {
            return true;
        }
        let had = self.len();
        let from = had;
        let mut moved = [0; MOST_PULLED_UP];
        let Some(moved) = moved.get_mut(..missing) else { return false };
        if self.copy_to(from, moved) < missing {
            return false;
        }
        let Ok(place) = self.append(missing) else { return false };
        place.copy_from_slice(moved);
        let mut left = missing;
        let mut next = self.with_next().1;
        while let Some(segment) = next {
            let here = left.min(segment.len());
            segment.narrow(u32::try_from(here).unwrap_or(u32::MAX), u32::MAX);
            left -= here;
            next = segment.with_next().1;
        }
        true
    }

    /// Keeps the first `bytes` bytes; segments after these stay in the chain, empty.
    pub fn truncate_all(&mut self, bytes: usize) {
        let here = bytes.min(self.len());
        self.truncate(here);
        if let Some(next) = self.with_next().1 {
            next.truncate_all(bytes - here);
        }
    }

    /// Keeps the first `bytes` bytes in their segments, and returns the segments after these.
    pub(crate) fn cut_at(&mut self, bytes: usize) -> Option<Buffer> {
        if bytes <= self.len() {
            self.truncate(bytes);
            return self.take_next();
        }
        let behind = bytes - self.len();
        self.with_next().1?.cut_at(behind)
    }

    /// What the segment with byte `at` holds from there on, nothing where a segment ends there; `None` where
    /// the packet has no such byte.
    pub(crate) fn bytes_behind(&self, mut at: usize) -> Option<&[u8]> {
        for segment in self.segments() {
            let bytes = segment.bytes();
            if at < bytes.len() || at == bytes.len() && segment.is_chain() {
                return bytes.get(at..);
            }
            at -= bytes.len();
        }
        None
    }
}

/// The most bytes that are moved to make headers contiguous.
const MOST_PULLED_UP: usize = 192;

/// The segments of a packet ([`Buffer::segments`]).
#[derive(Debug, Clone)]
pub struct Segments<'a> {
    next: Option<&'a Buffer>,
}

impl<'a> Iterator for Segments<'a> {
    type Item = &'a Buffer;

    fn next(&mut self) -> Option<&'a Buffer> {
        let segment = self.next?;
        self.next = segment.next();
        Some(segment)
    }
}

/// The bytes of a packet's segments ([`Buffer::segments_mut`]).
#[derive(Debug)]
pub struct SegmentsMut<'a> {
    next: Option<&'a mut Buffer>,
}

impl<'a> Iterator for SegmentsMut<'a> {
    type Item = &'a mut [u8];

    fn next(&mut self) -> Option<&'a mut [u8]> {
        let (bytes, next) = self.next.take()?.with_next();
        self.next = next;
        Some(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DropReason, Pool, TAILROOM_BYTES};
    use proptest::prelude::*;

    /// A chain of these lengths of frames of `pool`, with bytes that count up, and the same bytes.
    fn chain(pool: &mut Pool, lengths: &[usize]) -> (Buffer, Vec<u8>) {
        let mut whole: Vec<u8> = Vec::new();
        let mut chain: Option<Buffer> = None;
        for &length in lengths {
            let bytes: Vec<u8> = (whole.len()..whole.len() + length).map(|n| (n % 251) as u8).collect();
            let mut segment = pool.pop().unwrap();
            segment.append(length).unwrap().copy_from_slice(&bytes);
            whole.extend(bytes);
            match &mut chain {
                None => chain = Some(segment),
                Some(chain) => chain.link(segment).unwrap(),
            }
        }
        (chain.unwrap_or_default(), whole)
    }

    fn bytes_of(packet: &Buffer) -> Vec<u8> {
        packet.segments().flat_map(|segment| segment.bytes().to_vec()).collect()
    }

    #[test]
    fn a_chain_comes_back_whole_however_it_goes() {
        let mut pool = Pool::new(8, 500);
        for way in 0..3 {
            let (packet, _) = chain(&mut pool, &[100, 500, 0, 7]);
            assert_eq!((pool.available(), packet.is_chain()), (4, true));
            match way {
                0 => pool.recycle(packet),
                1 => pool.discard(packet, DropReason::NotIp),
                _ => {
                    let mut batch = crate::Batch::new();
                    batch.push(pool.pop().unwrap());
                    batch.push(packet);
                    pool.recycle_all(&mut batch);
                }
            }
            assert_eq!(pool.available(), 8);
        }
        assert_eq!(pool.drops().total(), 1, "a chain is one packet");
        let all: Vec<Buffer> = std::iter::from_fn(|| pool.pop()).collect();
        assert!(all.len() == 8 && all.iter().all(|buffer| !buffer.is_chain() && buffer.is_empty()));
        assert!(all.iter().all(|buffer| buffer.tailroom() == all[0].tailroom()), "lines are back");
    }

    #[test]
    fn a_dropped_chain_gives_all_of_its_frames_back() {
        let mut region = crate::Region::new(3, 256, crate::PageChoice::Small);
        let mut first = region.take().unwrap();
        first.link(region.take().unwrap()).unwrap();
        first.link(region.take().unwrap()).unwrap();
        assert!(region.take().is_none());
        drop(first);
        let all: Vec<Buffer> = std::iter::from_fn(|| region.take()).collect();
        assert_eq!(all.len(), 3);
    }

    #[test]
    fn a_chain_has_a_longest_length_and_needs_room_for_each_link() {
        let mut packet = Buffer::copied(b"a", 0, 64);
        for _ in 1..MAX_SEGMENTS {
            packet.link(Buffer::copied(b"a", 0, 64)).unwrap();
        }
        assert!(packet.link(Buffer::copied(b"b", 0, 64)).is_err());
        assert_eq!((packet.segments().count(), packet.chain_bytes()), (MAX_SEGMENTS, MAX_SEGMENTS));
        let mut full = Buffer::copied(&[1; 128], 0, 0);
        let refused = full.link(Buffer::copied(b"b", 0, 0)).unwrap_err();
        assert_eq!((refused.bytes(), full.is_chain(), full.len()), (&b"b"[..], false, 128));
        let mut packet = Buffer::copied(&[1; 64], 0, 64);
        packet.link(Buffer::copied(b"b", 0, 0)).unwrap();
        assert_eq!((packet.tailroom(), packet.append(1).is_err()), (0, true), "the link is not tailroom");
    }

    #[test]
    fn what_cannot_be_merged_stays_a_chain() {
        let mut pool = Pool::new(4, 500);
        let (packet, whole) = chain(&mut pool, &[500, 500]);
        let packet = pool.linearise(packet).unwrap_err();
        assert!(bytes_of(&packet) == whole && pool.linearised() == 0);
        pool.recycle(packet);
        assert_eq!(pool.available(), 4);
    }

    proptest! {
        /// After any operations on a chain, its bytes are those of the same packet in one piece, and no
        /// buffer is lost.
        #[test]
        fn a_chain_is_its_bytes(
            lengths in prop::collection::vec(0..400usize, 1..9),
            at in 0..3300usize,
            step in 0..6u8,
        ) {
            let mut pool = Pool::new(32, 400).with_long(2, 4000);
            let (mut packet, whole) = chain(&mut pool, &lengths);
            let at = at % (whole.len() + 1);
            prop_assert_eq!((packet.chain_bytes(), bytes_of(&packet)), (whole.len(), whole.clone()));
            match step {
                0 => {
                    let mut out = vec![0; 100];
                    let count = packet.copy_to(at, &mut out);
                    prop_assert_eq!(count, (whole.len() - at).min(100));
                    prop_assert_eq!(&out[..count], &whole[at..at + count]);
                }
                1 => {
                    packet = pool.trim_front(packet, at);
                    prop_assert_eq!(bytes_of(&packet), &whole[at..]);
                    prop_assert!(!packet.is_empty() || at == whole.len());
                }
                2 => {
                    pool.trim_back(&mut packet, at);
                    prop_assert_eq!(bytes_of(&packet), &whole[..at]);
                }
                3 => {
                    if let Some(rest) = pool.split_off(&mut packet, at) {
                        prop_assert_eq!((bytes_of(&packet), bytes_of(&rest)),
                            (whole[..at].to_vec(), whole[at..].to_vec()));
                        pool.recycle(rest);
                        prop_assert_eq!(pool.created(), 1);
                    } else {
                        prop_assert!(bytes_of(&packet) == whole && at == whole.len());
                    }
                }
                4 => {
                    let count = at.min(192);
                    let was = packet.len();
                    prop_assert_eq!(packet.pull_up(count), count <= was || count - was <= TAILROOM_BYTES - 64);
                    prop_assert_eq!(bytes_of(&packet), whole.clone());
                    prop_assert!(packet.len() >= count);
                }
                _ => {
                    let is_chain = packet.is_chain();
                    packet = pool.linearise(packet).unwrap();
                    prop_assert_eq!((packet.bytes(), pool.linearised()), (&whole[..], u64::from(is_chain)));
                }
            }
            pool.recycle(packet);
            prop_assert_eq!((pool.in_use(), pool.available()), (0, 32));
        }
    }
}
