//! The anti-replay window (RFC 4303 3.4.3) with extended sequence numbers (RFC 4303 2.2.1 and appendix A).
//!
//! Check and commit are separate: [`ReplayWindow::check`] runs before authentication and changes nothing,
//! [`ReplayWindow::commit`] runs after it. The bitmap is a ring of 64-bit words, one more than the window
//! needs, so that moving it clears whole words instead of shifting bits (RFC 6479).

use super::shared_window::SharedWindow;
use std::sync::Arc;
use testudo_packet::prefetch;

/// Smallest window, in packets (RFC 4303 3.4.3).
pub const MIN_WINDOW: u32 = 32;
/// Largest window, in packets: half a megabyte.
pub const MAX_WINDOW: u32 = 1 << 21;
/// What sizes are multiples of, in packets.
pub const WINDOW_STEP: u32 = 32;
/// The size of a window that refuses nothing: an SA without the anti-replay service.
pub(super) const OFF: u32 = 0;

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

/// Which of the last `size` sequence numbers were received, as one worker has it: all of it, or what it has
/// seen of a [window that workers share](SharedWindow).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReplayWindow {
    /// Highest number received; 0 before the first. Of a shared window, when this worker last looked.
    top: u64,
    size: u64,
    esn: bool,
    received: Received,
}

/// Where it is noted which numbers were received.
#[derive(Debug, Clone)]
enum Received {
    /// Bit `n % 64` of word `n / 64 % length` says that `n` was received. The length is a power of two.
    Owned(Box<[u64]>),
    Shared(Arc<SharedWindow>),
}

/// As long as without the second kind.
const _: () = assert!(size_of::<ReplayWindow>() == 40);

impl PartialEq for Received {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Owned(one), Self::Owned(other)) => one == other,
            (Self::Shared(one), Self::Shared(other)) => Arc::ptr_eq(one, other),
            _ => false,
        }
    }
}

impl Eq for Received {}

/// The size that a window gets which is to have this one.
pub(super) fn window_size(size: u32, esn: bool) -> u32 {
    match size {
        OFF if !esn => OFF,
        _ => size.clamp(MIN_WINDOW, MAX_WINDOW).next_multiple_of(WINDOW_STEP),
    }
}

/// Words of a window of this size. Runs of up to 64 numbers are marked in two of them at once.
fn words_of(size: u32) -> usize {
    (size as usize).div_ceil(64).saturating_add(1).next_power_of_two().max(2)
}

impl ReplayWindow {
    /// An empty window over `size` packets, clamped to [`MIN_WINDOW`]..=[`MAX_WINDOW`] and rounded up to a
    /// multiple of [`WINDOW_STEP`]; its memory is a bit for each of up to twice as many packets. With a size
    /// of 0 nothing is refused. That is without ESN alone, since a receiver of extended numbers needs to know
    /// where it is (RFC 4303 3.4.3); with ESN the window is the smallest.
    #[must_use]
    pub fn new(size: u32, esn: bool) -> Self {
        let size = window_size(size, esn);
        let words = words_of(size);
        Self { top: 0, size: size.into(), esn, received: Received::Owned(vec![0; words].into()) }
    }

    /// Bytes of the bitmap of a window with extended numbers, of one worker or of several that share it.
    #[must_use]
    pub fn bitmap_bytes(size: u32, is_shared: bool) -> usize {
        let size = window_size(size, true);
        let words = if is_shared { SharedWindow::words_of(size) } else { words_of(size) };
        words * size_of::<u64>()
    }

    /// What one of several workers has of a window that they share.
    #[must_use]
    pub fn shared(window: Arc<SharedWindow>) -> Self {
        let (top, size, esn) = (window.top(), window.size(), window.esn());
        Self { top, size, esn, received: Received::Shared(window) }
    }

    /// A window of this size in which numbers were received: for each block of 32 its first number, and a bit
    /// for each.
    pub(super) fn with_received(
        size: u32,
        esn: bool,
        top: u64,
        received: impl Iterator<Item = (u64, u64)>,
    ) -> Self {
        let mut window = Self { top, ..Self::new(size, esn) };
        for (first, bits) in received {
            let word = window.place(first).0;
            if let Received::Owned(words) = &mut window.received {
                words[word] |= bits << (first % 64);
            }
        }
        window.open_above_top();
        window
    }

    /// The window that this one is a part of.
    #[inline(always)]
    pub(crate) fn sharing(&self) -> Option<&Arc<SharedWindow>> {
        match &self.received {
            Received::Owned(_) => None,
            Received::Shared(window) => Some(window),
        }
    }

    /// Looks how far the other workers of a shared window are. To be called before numbers are inferred.
    #[inline(always)]
    pub(crate) fn look(&mut self) {
        if let Received::Shared(window) = &self.received {
            self.top = window.top();
        }
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
        match &self.received {
            Received::Owned(words) => {
                let (word, bit) = self.place(sequence);
                if words[word] & bit != 0 { Err(ReplayError::Duplicate) } else { Ok(()) }
            }
            Received::Shared(window) => window.check(sequence),
        }
    }

    /// Prefetches what [`commit`](Self::commit) of `sequence` will need: with many windows, few are in the
    /// cache.
    #[inline]
    pub fn prefetch(&self, sequence: u64) {
        match &self.received {
            Received::Owned(words) => words.get(self.place(sequence).0).into_iter().for_each(prefetch),
            Received::Shared(window) => window.prefetch(sequence),
        }
    }

    /// Marks `sequence`, of a packet that proved authentic, as received, and moves the window if it is the
    /// highest.
    ///
    /// # Errors
    /// [`ReplayError`] if it may not be accepted (any more); then nothing changes.
    #[inline]
    pub fn commit(&mut self, sequence: u64) -> Result<(), ReplayError> {
        if let Received::Shared(window) = &self.received {
            let outcome = window.commit(sequence);
            self.top = window.top();
            return outcome;
        }
        if sequence > self.top {
            self.advance(sequence);
        } else {
            self.check(sequence)?;
        }
        self.mark(sequence);
        Ok(())
    }

    /// Sets the bit of a number, in a window that is not shared.
    #[inline(always)]
    fn mark(&mut self, sequence: u64) {
        let (word, bit) = self.place(sequence);
        if let Received::Owned(words) = &mut self.received {
            words[word] |= bit;
        }
    }

    /// [`commit`](Self::commit) for `count` authentic packets, numbered from `first` on. Returns `false`,
    /// with nothing changed, unless there are at most 64, all numbers are higher than any before, and the
    /// window is not shared.
    #[inline]
    pub(crate) fn commit_ahead(&mut self, first: u64, count: u64) -> bool {
        if first <= self.top || count == 0 || count > 64 {
            return false;
        }
        let Some(last) = first.checked_add(count - 1) else { return false };
        // Asked once: runs of one packet are the rule where there are many SAs.
        let Received::Owned(words) = &mut self.received else { return false };
        let (from, to) = (self.top / 64, last / 64);
        self.top = last;
        if from != to {
            clear_between(words, from, to);
        }
        // Their bits are in one word or in two, and there are at least two words.
        let (marks, at) = (u64::MAX >> (64 - count), first % 64);
        let mask = words.len() - 1;
        let (low, high) = (ring(first / 64, mask), ring(to, mask));
        words[low] |= marks << at;
        if low != high {
            words[high] |= marks >> (64 - at);
        }
        true
    }

    #[inline]
    fn advance(&mut self, sequence: u64) {
        let (from, to) = (self.top / 64, sequence / 64);
        self.top = sequence;
        if from != to {
            clear_between(self.words_mut(), from, to);
        }
    }

    /// The words of a window that is not shared; none of one that is.
    #[inline(always)]
    fn words(&self) -> &[u64] {
        match &self.received {
            Received::Owned(words) => words,
            Received::Shared(_) => &[],
        }
    }

    #[inline(always)]
    fn words_mut(&mut self) -> &mut [u64] {
        match &mut self.received {
            Received::Owned(words) => words,
            Received::Shared(_) => &mut [],
        }
    }

    #[inline(always)]
    fn place(&self, sequence: u64) -> (usize, u64) {
        (ring(sequence / 64, self.words().len().wrapping_sub(1)), 1 << (sequence % 64))
    }

    /// The window as bytes, to be saved over a restart.
    #[must_use]
    pub fn save(&self) -> Vec<u8> {
        if let Some(window) = self.sharing() {
            return window.snapshot().save();
        }
        let mut bytes = Vec::with_capacity(16 + self.words().len() * 8);
        bytes.extend(self.top.to_le_bytes());
        bytes.extend(self.size.to_le_bytes());
        bytes.extend(self.words().iter().flat_map(|w| w.to_le_bytes()));
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
        if let Some(window) = self.sharing() {
            let is_restored = window.restore(bytes);
            self.top = window.top();
            return is_restored;
        }
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
        self.words_mut().fill(0);
        for back in 0..self.size.min(saved.top) {
            let sequence = saved.top - back;
            if saved.check(sequence).is_err() {
                self.mark(sequence);
            }
        }
        true
    }

    fn close_up_to(&mut self, top: u64) -> bool {
        let is_possible = self.esn || top <= u64::from(u32::MAX);
        if is_possible {
            self.top = top;
            self.words_mut().fill(u64::MAX);
            self.open_above_top();
        }
        is_possible
    }

    /// Nothing above the top was received yet: bits set there would refuse packets that are still to come.
    fn open_above_top(&mut self) {
        let (word, bit) = self.place(self.top);
        if let Some(word) = self.words_mut().get_mut(word) {
            *word &= bit | (bit - 1);
        }
    }

    fn parse(bytes: &[u8], esn: bool) -> Option<Self> {
        let mut numbers =
            bytes.chunks_exact(8).map(|c| c.iter().rev().fold(0, |n, &b| n << 8 | u64::from(b)));
        let (top, size) = (numbers.next()?, numbers.next()?);
        let mut window = Self::new(u32::try_from(size).ok()?, esn);
        let valid = window.size == size && bytes.len() == 16 + window.words().len() * 8;
        if !valid || (!esn && top > u64::from(u32::MAX)) {
            return None;
        }
        window.top = top;
        window.words_mut().iter_mut().zip(numbers).for_each(|(word, saved)| *word = saved);
        window.open_above_top();
        Some(window)
    }
}

/// Clears the words of the blocks of 64 numbers after `from`, up to and including `to`.
fn clear_between(words: &mut [u64], from: u64, to: u64) {
    let mask = words.len() - 1;
    let cleared = (to - from).min(words.len() as u64);
    for step in 0..cleared {
        words[ring(to - step, mask)] = 0;
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

    /// What documents state: the largest window is half a megabyte, the smallest two words.
    #[test]
    fn the_memory_of_windows_is_as_stated() {
        assert_eq!(ReplayWindow::new(MAX_WINDOW, true).words().len() * 8, 512 << 10);
        assert_eq!(ReplayWindow::new(65_536, true).words().len() * 8, 16 << 10);
        assert_eq!(ReplayWindow::new(MIN_WINDOW, true).words().len(), 2);
    }

    /// What `testudo check` and docs/VPE.md say of memory.
    #[test]
    fn a_bitmap_has_up_to_twice_a_bit_for_each_packet_and_a_shared_one_as_much_again() {
        for (size, of_one) in [(32, 16), (64, 16), (4096, 1024), (65_536, 16 << 10), (MAX_WINDOW, 512 << 10)]
        {
            assert_eq!(ReplayWindow::bitmap_bytes(size, false), of_one, "{size}");
            let Received::Owned(words) = ReplayWindow::new(size, true).received else {
                panic!("one worker's")
            };
            assert_eq!(size_of_val(&*words), of_one, "{size}");
            assert!([of_one, 2 * of_one].contains(&ReplayWindow::bitmap_bytes(size, true)), "{size}");
        }
        assert_eq!(ReplayWindow::bitmap_bytes(4096, true), 2048);
        assert_eq!(ReplayWindow::bitmap_bytes(65_536, true), 32 << 10);
    }
}
