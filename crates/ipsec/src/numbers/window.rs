//! The anti-replay window (RFC 4303 3.4.3) with extended sequence numbers (RFC 4303 2.2.1 and appendix A).
//!
//! Check and commit are separate: [`ReplayWindow::check`] runs before authentication and changes nothing,
//! [`ReplayWindow::commit`] runs after it. The bitmap is a ring of 64-bit words, one more than the window
//! needs, so that moving it clears whole words instead of shifting bits (RFC 6479).

use testudo_packet::prefetch;

/// Smallest window, in packets (RFC 4303 3.4.3).
pub const MIN_WINDOW: u32 = 32;
/// Largest window, in packets: half a megabyte.
pub const MAX_WINDOW: u32 = 1 << 21;
/// What sizes are multiples of, in packets.
pub const WINDOW_STEP: u32 = 32;
/// The size of a window that refuses nothing: an SA without the anti-replay service.
const OFF: u32 = 0;

/// Why a sequence number is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
pub enum ReplayError {
    /// Left of the window, or no valid number at all.
    #[error("left of the replay window")]
    TooOld,
    /// Inside the window and seen before.
    #[error("received before")]
    Duplicate,
}

/// Which of the last `size` sequence numbers were received.
///
/// Owned by one worker; no part of it is shared.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReplayWindow {
    /// Highest number received; 0 before the first.
    top: u64,
    size: u64,
    esn: bool,
    /// Bit `n % 64` of word `n / 64 % words.len()` says that `n` was received. The length is a power of two.
    words: Box<[u64]>,
}

impl ReplayWindow {
    /// An empty window over `size` packets, clamped to [`MIN_WINDOW`]..=[`MAX_WINDOW`] and rounded up to a
    /// multiple of [`WINDOW_STEP`]; its memory is a bit for each of up to twice as many packets. With a size
    /// of 0 nothing is refused. That is without ESN alone, since a receiver of extended numbers needs to know
    /// where it is (RFC 4303 3.4.3); with ESN the window is the smallest.
    #[must_use]
    pub fn new(size: u32, esn: bool) -> Self {
        let size = match size {
            OFF if !esn => OFF,
            _ => size.clamp(MIN_WINDOW, MAX_WINDOW).next_multiple_of(WINDOW_STEP),
        };
        // Runs of up to 64 numbers are marked in two words at once.
        let words = (size as usize).div_ceil(64).saturating_add(1).next_power_of_two().max(2);
        Self { top: 0, size: size.into(), esn, words: vec![0; words].into() }
    }

    /// Highest sequence number received; 0 before the first.
    #[must_use]
    pub fn top(&self) -> u64 {
        self.top
    }

    /// Packets that the window spans.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.size
    }

    /// The full sequence number of a packet that carries its low 32 bits (RFC 4303 A2.2). Without ESN the low
    /// bits are all.
    ///
    /// # Errors
    /// [`ReplayError::TooOld`] for a number before the first.
    #[inline]
    pub fn infer(&self, low: u32) -> Result<u64, ReplayError> {
        if !self.esn {
            return Ok(low.into());
        }
        // The result is the smallest number with these low bits that is not left of the window.
        let low = u64::from(low);
        let left = self.top.saturating_sub(self.size - 1);
        let candidate = (left & !0xFFFF_FFFF) | low;
        if candidate >= left {
            return Ok(candidate);
        }
        candidate.checked_add(1 << 32).ok_or(ReplayError::TooOld)
    }

    /// Whether `sequence` may be accepted. Changes nothing.
    ///
    /// # Errors
    /// [`ReplayError`] says why not.
    #[inline]
    pub fn check(&self, sequence: u64) -> Result<(), ReplayError> {
        if sequence > self.top {
            return Ok(());
        }
        if sequence == 0 || self.top - sequence >= self.size {
            return if self.size == u64::from(OFF) { Ok(()) } else { Err(ReplayError::TooOld) };
        }
        let (word, bit) = self.place(sequence);
        if self.words[word] & bit != 0 { Err(ReplayError::Duplicate) } else { Ok(()) }
    }

    /// Prefetches what [`commit`](Self::commit) of `sequence` will need: with many windows, few are in the
    /// cache.
    #[inline]
    pub fn prefetch(&self, sequence: u64) {
        if let Some(word) = self.words.get(self.place(sequence).0) {
            prefetch(word);
        }
    }

    /// Marks `sequence`, of a packet that proved authentic, as received, and moves the window if it is the
    /// highest.
    ///
    /// # Errors
    /// [`ReplayError`] if it may not be accepted (any more); then nothing changes.
    #[inline]
    pub fn commit(&mut self, sequence: u64) -> Result<(), ReplayError> {
        if sequence > self.top {
            self.advance(sequence);
        } else {
            self.check(sequence)?;
        }
        let (word, bit) = self.place(sequence);
        self.words[word] |= bit;
        Ok(())
    }

    /// [`commit`](Self::commit) for `count` authentic packets, numbered from `first` on. Returns `false`,
    /// with nothing changed, unless there are at most 64 and all numbers are higher than any before.
    #[inline]
    pub(crate) fn commit_ahead(&mut self, first: u64, count: u64) -> bool {
        if first <= self.top || count == 0 || count > 64 {
            return false;
        }
        let Some(last) = first.checked_add(count - 1) else { return false };
        self.advance(last);
        // Their bits are in one word or in two, and there are at least two words.
        let (marks, at) = (u64::MAX >> (64 - count), first % 64);
        let (low, high) = (self.place(first).0, self.place(last).0);
        self.words[low] |= marks << at;
        if low != high {
            self.words[high] |= marks >> (64 - at);
        }
        true
    }

    #[inline]
    fn advance(&mut self, sequence: u64) {
        let (from, to) = (self.top / 64, sequence / 64);
        self.top = sequence;
        if from != to {
            self.clear_between(from, to);
        }
    }

    /// Clears the words of the blocks of 64 numbers after `from`, up to and including `to`.
    fn clear_between(&mut self, from: u64, to: u64) {
        let mask = self.words.len() - 1;
        let cleared = (to - from).min(self.words.len() as u64);
        for step in 0..cleared {
            self.words[ring(to - step, mask)] = 0;
        }
    }

    fn place(&self, sequence: u64) -> (usize, u64) {
        (ring(sequence / 64, self.words.len() - 1), 1 << (sequence % 64))
    }

    /// The window as bytes, to be saved over a restart.
    #[must_use]
    pub fn save(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(16 + self.words.len() * 8);
        bytes.extend(self.top.to_le_bytes());
        bytes.extend(self.size.to_le_bytes());
        bytes.extend(self.words.iter().flat_map(|w| w.to_le_bytes()));
        bytes
    }

    /// A window in which every number up to `top` counts as received, as bytes for
    /// [`restore`](Self::restore): to be saved while packets arrive whose numbers are not all known yet.
    #[must_use]
    pub fn closed_up_to(top: u64) -> [u8; 16] {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&top.to_le_bytes());
        bytes
    }

    /// The highest number that counts as received in a saved window.
    #[must_use]
    pub fn top_of(saved: &[u8]) -> Option<u64> {
        saved.first_chunk().map(|top| u64::from_le_bytes(*top))
    }

    /// Whether saved bytes come from [`closed_up_to`](Self::closed_up_to), not from a window's true state.
    #[must_use]
    pub fn is_closed(saved: &[u8]) -> bool {
        // The saved state of a window has its size there.
        saved.len() == 16 && saved.ends_with(&[0; 8])
    }

    /// Continues where [`save`](Self::save) left off. A window of another size keeps its own size: numbers
    /// whose state is unknown are marked as received, so that none is accepted twice. Those are all of a
    /// window that was off. Returns `false`, with the window unchanged, if the bytes are no saved window.
    #[must_use]
    pub fn restore(&mut self, bytes: &[u8]) -> bool {
        if let Some(top) = Self::top_of(bytes).filter(|_| Self::is_closed(bytes)) {
            return self.close_up_to(top);
        }
        if let Some(off) = Self::parse(bytes, false).filter(|saved| saved.size == u64::from(OFF)) {
            return self.close_up_to(off.top);
        }
        let Some(saved) = Self::parse(bytes, self.esn) else { return false };
        if saved.size == self.size {
            *self = saved;
            return true;
        }
        self.top = saved.top;
        self.words.fill(0);
        for back in 0..self.size.min(saved.top) {
            let sequence = saved.top - back;
            if saved.check(sequence).is_err() {
                let (word, bit) = self.place(sequence);
                self.words[word] |= bit;
            }
        }
        true
    }

    fn close_up_to(&mut self, top: u64) -> bool {
        let is_possible = self.esn || top <= u64::from(u32::MAX);
        if is_possible {
            self.top = top;
            self.words.fill(u64::MAX);
            self.open_above_top();
        }
        is_possible
    }

    /// Nothing above the top was received yet: bits set there would refuse packets that are still to come.
    fn open_above_top(&mut self) {
        let (word, bit) = self.place(self.top);
        self.words[word] &= bit | (bit - 1);
    }

    fn parse(bytes: &[u8], esn: bool) -> Option<Self> {
        let mut numbers =
            bytes.chunks_exact(8).map(|c| c.iter().rev().fold(0, |n, &b| n << 8 | u64::from(b)));
        let (top, size) = (numbers.next()?, numbers.next()?);
        let mut window = Self::new(u32::try_from(size).ok()?, esn);
        let valid = window.size == size && bytes.len() == 16 + window.words.len() * 8;
        if !valid || (!esn && top > u64::from(u32::MAX)) {
            return None;
        }
        window.top = top;
        window.words.iter_mut().zip(numbers).for_each(|(word, saved)| *word = saved);
        window.open_above_top();
        Some(window)
    }
}

/// The index of a block of 64 numbers in a ring of `mask + 1` words.
fn ring(block: u64, mask: usize) -> usize {
    // Lossless: the mask keeps fewer bits than a usize has.
    usize::try_from(block & mask as u64).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    /// The definition: a set of everything ever received.
    struct Model {
        seen: BTreeSet<u64>,
        size: u64,
    }

    impl Model {
        fn commit(&mut self, sequence: u64) -> Result<(), ReplayError> {
            let top = self.seen.last().copied().unwrap_or(0);
            if sequence == 0 || sequence + self.size <= top {
                return Err(ReplayError::TooOld);
            }
            if self.seen.insert(sequence) { Ok(()) } else { Err(ReplayError::Duplicate) }
        }
    }

    /// Steps relative to the highest number so far: mostly near it, on either side of both edges, at times
    /// far ahead.
    fn steps(size: i64) -> impl Strategy<Value = Vec<i64>> {
        prop::collection::vec(
            prop_oneof![8 => -80i64..80, 4 => -size - 70..70i64, 2 => size - 70..3 * size, 1 => 0..1i64 << 40],
            1..400,
        )
    }

    proptest! {
        #[test]
        fn agrees_with_a_set_of_all_numbers(
            size in prop_oneof![Just(32u32), Just(64), Just(96), Just(128), Just(4096), Just(65_536), Just(MAX_WINDOW)],
            seed in any::<u16>(), raw in steps(4096),
        ) {
            let mut window = ReplayWindow::new(size, true);
            let mut model = Model { seen: BTreeSet::new(), size: size.into() };
            let scale = |s: i64| if s.abs() > 80 { s * i64::from(size) / 4096 } else { s };
            for step in raw.into_iter().map(scale) {
                let sequence = (window.top() + u64::from(seed % 3)).saturating_add_signed(step);
                prop_assert_eq!(window.check(sequence), model_check(&model, sequence));
                prop_assert_eq!(window.commit(sequence), model.commit(sequence));
            }
        }

        #[test]
        fn the_full_number_is_found_within_half_the_space(top in any::<u64>(), offset in -4095i64..1 << 31) {
            let mut window = ReplayWindow::new(4096, true);
            let top = top.clamp(1, u64::MAX - (1 << 33));
            window.commit(top).unwrap();
            let sequence = top.saturating_add_signed(offset).max(1);
            prop_assert_eq!(window.infer(sequence as u32), Ok(sequence));
        }

        #[test]
        fn a_restored_window_continues_where_it_was_saved(
            size in prop_oneof![Just(32u32), Just(64), Just(96), Just(256), Just(4096)],
            other in prop_oneof![Just(64u32), Just(256), Just(4096)],
            numbers in prop::collection::vec(1u64..10_000, 1..300),
        ) {
            let mut window = ReplayWindow::new(size, true);
            numbers.iter().for_each(|&n| window.commit(n).unwrap_or(()));
            let mut restored = ReplayWindow::new(other, true);
            prop_assert!(restored.restore(&window.save()));
            for n in 1..10_100 {
                let old = window.check(n);
                let new = restored.check(n);
                prop_assert!(new.is_err() || old.is_ok(), "{n} was {old:?} and is {new:?}");
                if window.top() < n + u64::from(other.min(size)) {
                    prop_assert_eq!(old, new);
                }
            }
        }
    }

    proptest! {
        #[test]
        fn numbers_ahead_are_received_together_as_one_by_one(
            size in prop_oneof![Just(32u32), Just(64), Just(96), Just(128), Just(4096)],
            start in prop_oneof![0u64..300, (1u64 << 32) - 200..1 << 32],
            runs in prop::collection::vec((prop_oneof![4 => 1u64..3, 1 => 0u64..200, 1 => 0u64..10_000], 0u64..70), 1..60),
        ) {
            let (mut together, mut single) = (ReplayWindow::new(size, true), ReplayWindow::new(size, true));
            let _ = (together.commit(start), single.commit(start));
            for (ahead, count) in runs {
                let first = together.top() + ahead;
                let may = ahead > 0 && (1..=64).contains(&count);
                prop_assert_eq!(together.commit_ahead(first, count), may);
                if may {
                    (first..first + count).for_each(|n| single.commit(n).expect("ahead"));
                }
                prop_assert_eq!(&together, &single);
            }
        }
    }

    #[test]
    fn the_last_numbers_of_all_are_received_together() {
        let mut window = ReplayWindow::new(64, true);
        assert!(!window.commit_ahead(u64::MAX - 2, 4));
        assert!(window.commit_ahead(u64::MAX - 2, 3));
        assert_eq!(window.commit(u64::MAX), Err(ReplayError::Duplicate));
        assert!(!window.commit_ahead(u64::MAX, 1));
    }

    fn model_check(model: &Model, sequence: u64) -> Result<(), ReplayError> {
        let mut probe = Model { seen: model.seen.clone(), size: model.size };
        probe.commit(sequence)
    }

    /// RFC 4303 3.4.3: the service is the receiver's choice. Numbers may wrap then (3.3.3).
    #[test]
    fn a_window_that_is_off_refuses_nothing() {
        let mut window = ReplayWindow::new(0, false);
        for number in [5, 5, 1_000_000, 5, u32::MAX.into(), 0, 1] {
            assert_eq!((window.check(number), window.commit(number)), (Ok(()), Ok(())), "{number}");
        }
        let mut restored = ReplayWindow::new(0, false);
        assert!(restored.restore(&window.save()) && restored.restore(&ReplayWindow::closed_up_to(9)));
        assert_eq!(restored.check(7), Ok(()));
        assert_eq!(ReplayWindow::new(0, true).size(), u64::from(MIN_WINDOW), "not with extended numbers");
    }

    /// A window that was off knows nothing of what it let pass: none of that is accepted once it is on.
    #[test]
    fn a_window_that_was_off_is_closed_when_it_is_on() {
        let mut off = ReplayWindow::new(0, false);
        [5, 900, 7].into_iter().for_each(|number| off.commit(number).unwrap());
        for (size, esn) in [(64, false), (4096, false), (4096, true)] {
            let mut on = ReplayWindow::new(size, esn);
            assert!(on.restore(&off.save()), "{size}, {esn}");
            assert_eq!(on.top(), 900);
            assert!((1..=900).all(|number| on.check(number).is_err()), "{size}, {esn}");
            assert_eq!((on.commit(901), on.commit(903), on.commit(902)), (Ok(()), Ok(()), Ok(())));
        }
    }

    /// What documents state: the largest window is half a megabyte, the smallest two words.
    #[test]
    fn the_memory_of_windows_is_as_stated() {
        assert_eq!(ReplayWindow::new(MAX_WINDOW, true).words.len() * 8, 512 << 10);
        assert_eq!(ReplayWindow::new(65_536, true).words.len() * 8, 16 << 10);
        assert_eq!(ReplayWindow::new(MIN_WINDOW, true).words.len(), 2);
    }

    #[test]
    fn zero_is_never_received() {
        assert_eq!(ReplayWindow::new(64, false).check(0), Err(ReplayError::TooOld));
        assert_eq!(ReplayWindow::new(64, true).commit(0), Err(ReplayError::TooOld));
    }

    #[test]
    fn the_last_number_of_all_is_received_once() {
        let mut window = ReplayWindow::new(64, true);
        assert_eq!(window.commit(u64::MAX), Ok(()));
        assert_eq!(window.commit(u64::MAX), Err(ReplayError::Duplicate));
        assert_eq!(window.commit(u64::MAX - 63), Ok(()));
        assert_eq!(window.commit(u64::MAX - 64), Err(ReplayError::TooOld));
        assert_eq!(window.infer(5), Err(ReplayError::TooOld));
    }

    #[test]
    fn a_restored_window_refuses_no_number_above_its_top() {
        let mut bytes = ReplayWindow::new(64, true).save();
        bytes[0] = 5;
        bytes[16..].fill(0xFF);
        let mut window = ReplayWindow::new(64, true);
        assert!(window.restore(&bytes));
        assert_eq!(window.commit(5), Err(ReplayError::Duplicate));
        assert_eq!(window.commit(9), Ok(()));
        assert_eq!(window.commit(7), Ok(()));
    }

    #[test]
    fn a_closed_window_refuses_everything_up_to_its_top_and_nothing_above() {
        for (size, top) in [(64, 1), (64, 63), (64, 64), (4096, 5000), (65_536, 1 << 33)] {
            let mut window = ReplayWindow::new(size, true);
            let saved = ReplayWindow::closed_up_to(top);
            assert!(ReplayWindow::is_closed(&saved) && !ReplayWindow::is_closed(&window.save()));
            assert!(window.restore(&saved));
            assert_eq!((window.top(), ReplayWindow::top_of(&saved)), (top, Some(top)));
            for number in top.saturating_sub(u64::from(size) + 70)..=top {
                assert!(window.check(number).is_err(), "{number} of {top}");
            }
            // Out of order, and all around the ring.
            for number in (top + 1..top + 3 * u64::from(size)).step_by(3) {
                assert_eq!(window.commit(number + 1), Ok(()), "{number} of {top}");
                assert_eq!(window.commit(number), Ok(()), "{number} of {top}");
            }
        }
    }

    #[test]
    fn a_window_without_extended_numbers_is_not_closed_beyond_them() {
        let mut window = ReplayWindow::new(64, false);
        assert!(!window.restore(&ReplayWindow::closed_up_to(1 << 32)));
        assert!(window.restore(&ReplayWindow::closed_up_to(u32::MAX.into())));
        assert_eq!(window.check(u32::MAX.into()), Err(ReplayError::Duplicate));
    }

    #[test]
    fn rubbish_is_no_saved_window() {
        let mut window = ReplayWindow::new(64, true);
        window.commit(7).unwrap();
        let good = window.save();
        for len in 0..good.len() {
            assert!(!window.restore(&good[..len]));
        }
        assert!(!window.restore(&[0xFF; 32]));
        assert_eq!(window.top(), 7);
    }
}
