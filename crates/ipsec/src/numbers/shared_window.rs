//! The anti-replay window of an inbound SA whose packets several workers open.
//!
//! ```text
//!   top    the highest number received; it only grows
//!   words  a ring: number n is in word n / 32 % length, which has
//!          ┌ 32 bits: n / 32 of the numbers that it is about ┬ 32 bits: which of these were received ┐
//! ```
//!
//! There is no lock, and nobody waits. Workers [check](SharedWindow::check) numbers before authentication and
//! commit them after it, a batch at a time: one atomic operation for each word that has numbers of the batch,
//! and one for the top where it moves. ([`ReplayWindow`](super::ReplayWindow) has 64 numbers in a word. Here
//! the half of it is the tag: bits and tag have to change in one operation.)
//!
//! **How the window moves.** Nothing is cleared. A word whose tag is not that of a number's block says
//! nothing of the number. A worker that commits numbers
//!
//! - (1) moves the top up to the highest of them, if it is lower;
//! - (2) reads the word;
//! - (3) reads the top, and refuses those of its numbers that are left of the window now;
//! - (4) puts the bits of the others into the word, by compare-exchange: beside those that are there if the
//!   tag is that of their block, in the place of everything if not. If the word is not what was read any
//!   more, it goes on at (2).
//!
//! What was set before is received already: a duplicate.
//!
//! **Tags never go back.** Say that a word has the tag of block t, and a worker finds it at 2 to put block b
//! there. Who wrote t had moved the top to a number of block t before (1), so that the worker finds the top
//! in t or higher (3). It has refused every number that is left of that window; the ring has at least one
//! block more than the window, so that of the blocks that share the word only those from t on are left. So b
//! is t or later.
//!
//! **No number is accepted twice.** It is accepted by who sets its bit while that is clear (4). From then on
//! the bit stays as long as the tag does, and after that the tag is a later one: the number is refused (3).
//!
//! **What is refused** is what was received before, and what is left of the window at a moment between its
//! arrival and the end of its commit: that other workers move the top refuses nobody who is within the window
//! when they have. A worker that is interrupted between check and commit for so long that others receive more
//! than a window full loses its packet, as it would on a slow path through the network.
//!
//! Tags repeat after 2^37 numbers. A word that nobody has written to for so long, though the window passed it
//! 2^37 numbers ago, may have up to 32 numbers refused as duplicates, and none accepted twice.

use super::padded::Padded;
use super::release::ReleaseRing;
use super::reordering::{Arrivals, Reordering};
use super::window::{OFF, ReplayError, ReplayWindow, window_size};
use crate::shared_use::SharedUse;
use crate::sync::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use testudo_packet::prefetch;

/// Numbers in a word.
const NUMBERS: u64 = 32;

/// Which of the last numbers of an SA were received, by any of its workers.
#[derive(Debug)]
pub struct SharedWindow {
    /// Highest number received; 0 before the first.
    top: Padded<AtomicU64>,
    size: u64,
    esn: bool,
    /// Tags and bits. The length is a power of two.
    words: Box<[AtomicU64]>,
    used: Arc<SharedUse>,
    /// Of an SA that has one window.
    reordering: Option<Arc<Reordering>>,
    ring: OnceLock<Arc<ReleaseRing>>,
}

/// A word that was read.
#[derive(Debug, Clone, Copy)]
struct Word(u64);

impl Word {
    /// The word of a block that has received these.
    fn of(block: u64, bits: u64) -> Self {
        Self(block << NUMBERS | bits)
    }

    /// The bits of a block: none, if the word is about another one.
    fn bits(self, block: u64) -> u64 {
        let is_of_block = self.0 >> NUMBERS == block & BITS;
        if is_of_block { self.0 & BITS } else { 0 }
    }
}

/// Numbers of a batch that are in one block, at least one.
#[derive(Debug, Clone, Copy)]
struct OfBlock {
    block: u64,
    /// Which numbers of the block.
    bits: u64,
    /// How many; more than bits where some are there twice.
    count: usize,
}

impl OfBlock {
    /// The lowest and the highest number.
    fn bounds(self) -> [u64; 2] {
        let first = self.block * NUMBERS;
        let [low, high] = [self.bits.trailing_zeros(), self.bits.checked_ilog2().unwrap_or(0)];
        [low, high].map(|place| first + u64::from(place))
    }
}

/// The half of a word.
const BITS: u64 = 0xFFFF_FFFF;

fn bit(number: u64) -> u64 {
    1 << (number % NUMBERS)
}

impl SharedWindow {
    /// An empty window, of a size as [`ReplayWindow::new`] makes it. Its memory is twice that of such a
    /// window: up to a megabyte.
    #[must_use]
    pub fn new(size: u32, esn: bool) -> Self {
        let reordering = Some(Arc::default());
        Self { reordering, ..Self::using(size, esn, Arc::new(SharedUse::new())) }
    }

    /// Words of a window of this size: one more than it has, see above.
    pub(super) fn words_of(size: u32) -> usize {
        (size as usize).div_ceil(32).saturating_add(1).next_power_of_two()
    }

    /// The same for one of several windows of an SA, whose lifetime is that of all.
    pub(crate) fn using(size: u32, esn: bool, used: Arc<SharedUse>) -> Self {
        let size = window_size(size, esn);
        let words = Self::words_of(size);
        Self {
            top: Padded(AtomicU64::new(0)),
            size: size.into(),
            esn,
            words: (0..words).map(|_| AtomicU64::new(0)).collect(),
            used,
            reordering: None,
            ring: OnceLock::new(),
        }
    }

    /// The order in which its workers release packets. It begins where the window is when the first of them
    /// asks.
    #[must_use]
    pub fn ring(&self) -> &Arc<ReleaseRing> {
        self.ring.get_or_init(|| Arc::new(ReleaseRing::after(self.top())))
    }

    /// How far out of order its packets were; `None` for one of several windows of an SA.
    #[must_use]
    pub fn reordering(&self) -> Option<&Arc<Reordering>> {
        self.reordering.as_ref()
    }

    /// What the workers have used of the SA's lifetime.
    pub(crate) fn used(&self) -> &Arc<SharedUse> {
        &self.used
    }

    /// Highest sequence number received; 0 before the first.
    #[must_use]
    pub fn top(&self) -> u64 {
        self.top.0.load(Ordering::Acquire)
    }

    /// Packets that the window spans.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Whether numbers are 64 bits long.
    #[must_use]
    pub fn esn(&self) -> bool {
        self.esn
    }

    /// Whether `sequence` may be accepted. Changes nothing.
    ///
    /// # Errors
    /// [`ReplayError`] says why not.
    pub fn check(&self, sequence: u64) -> Result<(), ReplayError> {
        let top = self.top();
        if sequence > top || self.is_off() {
            return Ok(());
        }
        if self.is_left_of(top, sequence) {
            return Err(ReplayError::TooOld);
        }
        let word = Word(self.word(sequence / NUMBERS).load(Ordering::Relaxed));
        if word.bits(sequence / NUMBERS) & bit(sequence) == 0 { Ok(()) } else { Err(ReplayError::Duplicate) }
    }

    /// Whether `sequence` is higher than any received.
    #[inline(always)]
    pub(crate) fn is_ahead(&self, sequence: u64) -> bool {
        sequence > self.top()
    }

    /// Prefetches what the commit of `sequence` will need.
    #[inline]
    pub(super) fn prefetch(&self, sequence: u64) {
        prefetch(self.word(sequence / NUMBERS));
    }

    /// Marks `sequence`, of a packet that proved authentic, as received.
    ///
    /// # Errors
    /// [`ReplayError`] if it may not be accepted (any more); then its state stays as it is.
    pub fn commit(&self, sequence: u64) -> Result<(), ReplayError> {
        let mut outcome = Ok(());
        self.commit_batch(std::iter::once((0, sequence)), |_, error| outcome = Err(error));
        outcome
    }

    /// [`commit`](Self::commit) for a batch of numbers, each with its place. Calls `refuse` with the places
    /// of those that may not be accepted.
    pub fn commit_batch(
        &self,
        numbers: impl Iterator<Item = (usize, u64)> + Clone,
        mut refuse: impl FnMut(usize, ReplayError),
    ) {
        let bounds = numbers.clone().fold(None, |bounds: Option<(u64, u64)>, (_, number)| {
            let (low, high) = bounds.unwrap_or((number, number));
            Some((low.min(number), high.max(number)))
        });
        let Some((low, high)) = bounds else { return };
        let mut arrivals = self.reordering.as_ref().map(|reordering| reordering.begin(self.top()));
        // At once where no number of the batch can push another one out of the window; else block by block,
        // in the batch's order.
        if high - low < self.size || self.is_off() {
            self.raise_top(high);
        }
        if self.is_off() {
            // Copies are not told from others, so that nothing is counted.
            return;
        }
        let mut rest = numbers.peekable();
        while let Some(&(_, first)) = rest.peek() {
            let (group, mut of) = (rest.clone(), OfBlock { block: first / NUMBERS, bits: 0, count: 0 });
            while let Some((_, number)) = rest.next_if(|(_, number)| number / NUMBERS == of.block) {
                of.bits |= bit(number);
                of.count += 1;
            }
            self.commit_block(of, group.take(of.count), &mut arrivals, &mut refuse);
        }
    }

    /// [`commit_batch`](Self::commit_batch) for adjacent numbers, each with its place, of one of several
    /// windows of an SA: from `first` on, so many.
    pub(crate) fn commit_run(
        &self,
        (first, count): (u64, u64),
        numbers: impl Iterator<Item = (usize, u64)> + Clone,
        mut refuse: impl FnMut(usize, ReplayError),
    ) {
        let last = first.saturating_add(count.saturating_sub(1));
        if self.is_off() || self.reordering.is_some() || last - first + 1 != count {
            return self.commit_batch(numbers, refuse);
        }
        if count <= self.size {
            self.raise_top(last);
        }
        for block in first / NUMBERS..=last / NUMBERS {
            let (low, high) = (first.max(block * NUMBERS), last.min(block * NUMBERS + (NUMBERS - 1)));
            let (before, within) = (low - first, high - low + 1);
            let bits = BITS >> (NUMBERS - within) << (low % NUMBERS);
            // Lossless: no more than there are places.
            let [before, count] = [before, within].map(|n| usize::try_from(n).unwrap_or(usize::MAX));
            let numbers = numbers.clone().skip(before).take(count);
            self.commit_block(OfBlock { block, bits, count }, numbers, &mut None, &mut refuse);
        }
    }

    /// Commits numbers of one block.
    #[inline]
    fn commit_block(
        &self,
        of: OfBlock,
        numbers: impl Iterator<Item = (usize, u64)> + Clone,
        arrivals: &mut Option<Arrivals<'_>>,
        refuse: &mut impl FnMut(usize, ReplayError),
    ) {
        let [low, high] = of.bounds();
        // A block is no longer than the window: none of its numbers pushes another one out.
        self.raise_top(high);
        let (received, top) = self.mark(of.block, |top| {
            if !self.is_left_of(top, low) {
                return of.bits;
            }
            let within = numbers.clone().filter(|(_, number)| !self.is_left_of(top, *number));
            within.fold(0, |bits, (_, number)| bits | bit(number))
        });
        // Then each bit is of one number, and none was set before.
        let is_all_new = of.bits.count_ones() as usize == of.count && received & of.bits == 0;
        if !is_all_new || self.is_left_of(top, low) {
            return self.settle((received, top), numbers, arrivals, refuse);
        }
        if let Some(arrivals) = arrivals {
            numbers.for_each(|(_, number)| arrivals.note(number));
        }
    }

    /// Tells numbers of one block that were committed from those that are refused, by what was received
    /// before them and by the top.
    #[cold]
    fn settle(
        &self,
        (mut received, top): (u64, u64),
        numbers: impl Iterator<Item = (usize, u64)>,
        arrivals: &mut Option<Arrivals<'_>>,
        refuse: &mut impl FnMut(usize, ReplayError),
    ) {
        for (place, number) in numbers {
            if self.is_left_of(top, number) {
                refuse(place, ReplayError::TooOld);
            } else if received & bit(number) != 0 {
                refuse(place, ReplayError::Duplicate);
            } else if let Some(arrivals) = arrivals {
                arrivals.note(number);
            }
            received |= bit(number);
        }
    }

    /// Sets the bits of a block that `wanted` names for a top; returns those that were set before, and that
    /// top.
    fn mark(&self, block: u64, wanted: impl Fn(u64) -> u64) -> (u64, u64) {
        let place = self.word(block);
        let mut word = Word(place.load(Ordering::Acquire));
        loop {
            // After the word: who wrote it had moved the top before.
            let top = self.top();
            let (received, wanted) = (word.bits(block), wanted(top));
            if wanted & !received == 0 {
                return (received, top);
            }
            let marked = Word::of(block, received | wanted);
            match place.compare_exchange(word.0, marked.0, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return (received, top),
                Err(other) => word = Word(other),
            }
        }
    }

    fn raise_top(&self, number: u64) {
        if number > self.top.0.load(Ordering::Relaxed) {
            self.top.0.fetch_max(number, Ordering::AcqRel);
        }
    }

    fn is_off(&self) -> bool {
        self.size == u64::from(OFF)
    }

    /// Whether a number that is not above the top is left of the window, or none at all.
    fn is_left_of(&self, top: u64, number: u64) -> bool {
        number == 0 || top.saturating_sub(number) >= self.size
    }

    fn word(&self, block: u64) -> &AtomicU64 {
        let mask = self.words.len() - 1;
        // Lossless: the mask keeps fewer bits than a usize has.
        &self.words[usize::try_from(block & mask as u64).unwrap_or(0)]
    }

    /// The state as a window of one worker: what was received by then, and perhaps some of what is being
    /// committed meanwhile.
    #[must_use]
    pub fn snapshot(&self) -> ReplayWindow {
        let top = self.top();
        let size = u32::try_from(self.size).unwrap_or(OFF);
        let blocks = top.saturating_sub(self.size) / NUMBERS..=top / NUMBERS;
        let received = blocks.map(|block| {
            let word = Word(self.word(block).load(Ordering::Acquire));
            (block * NUMBERS, word.bits(block))
        });
        ReplayWindow::with_received(size, self.esn, top, received)
    }

    /// Continues where [`ReplayWindow::save`] left off: what was received then counts as received, beside
    /// what was received since. To be called before the SA's first packet. Returns `false`, with the window
    /// unchanged, if the bytes are no saved window.
    #[must_use]
    pub fn restore(&self, bytes: &[u8]) -> bool {
        let size = u32::try_from(self.size).unwrap_or(OFF);
        let mut saved = ReplayWindow::new(size, self.esn);
        if !saved.restore(bytes) {
            return false;
        }
        self.raise_top(saved.top());
        if let Some(ring) = self.ring.get() {
            // It was made before: nobody waits for what came earlier.
            ring.move_to(saved.top().saturating_add(1));
        }
        if self.is_off() {
            return true;
        }
        for block in saved.top().saturating_sub(self.size) / NUMBERS..=saved.top() / NUMBERS {
            let numbers = (0..NUMBERS).map(|n| block * NUMBERS + n).take_while(|n| *n <= saved.top());
            let received = numbers.filter(|number| saved.check(*number).is_err());
            self.mark(block, |top| {
                let within = received.clone().filter(|number| !self.is_left_of(top, *number));
                within.fold(0, |bits, number| bits | bit(number))
            });
        }
        true
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use loom::thread;

    /// Two threads commit these, each one batch after the other; returns how often each number was accepted.
    fn accepted(batches: [&'static [&'static [u64]]; 2], check: impl Fn(&[u64]) + Sync + Send + 'static) {
        accepted_by(|window, batch, refuse| window.commit_batch(batch, refuse), batches, check);
    }

    type Batch<'b> = std::iter::Enumerate<std::iter::Copied<std::slice::Iter<'b, u64>>>;

    type Commit = fn(&SharedWindow, Batch<'_>, &mut dyn FnMut(usize, ReplayError));

    /// The same with another way to commit.
    fn accepted_by(
        commit_batch: Commit,
        batches: [&'static [&'static [u64]]; 2],
        check: impl Fn(&[u64]) + Sync + Send + 'static,
    ) {
        accepted_in(|| SharedWindow::new(32, true), commit_batch, batches, check);
    }

    /// The same in a window that is made so.
    fn accepted_in(
        make: fn() -> SharedWindow,
        commit_batch: Commit,
        batches: [&'static [&'static [u64]]; 2],
        check: impl Fn(&[u64]) + Sync + Send + 'static,
    ) {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(3);
        model.check(move || {
            let window = Arc::new(make());
            let commit = move |batches: &'static [&'static [u64]], window: Arc<SharedWindow>| {
                let mut accepted = Vec::new();
                for batch in batches {
                    let mut kept = batch.to_vec();
                    commit_batch(&window, batch.iter().copied().enumerate(), &mut |place, _| kept[place] = 0);
                    accepted.extend(kept.into_iter().filter(|number| *number != 0));
                }
                accepted
            };
            let other = {
                let window = Arc::clone(&window);
                thread::spawn(move || commit(batches[0], window))
            };
            let mut accepted = commit(batches[1], window);
            accepted.extend(other.join().unwrap());
            accepted.sort_unstable();
            check(&accepted);
        });
    }

    /// The same packet at two workers, within the window.
    #[test]
    fn a_number_at_two_workers_is_accepted_once() {
        accepted([&[&[5, 6]], &[&[6, 5]]], |accepted| assert_eq!(accepted, [5, 6]));
    }

    /// Numbers that are less than a window apart, in different words: neither refuses the other.
    #[test]
    fn nothing_within_the_window_is_refused_because_another_worker_moves_the_top() {
        accepted([&[&[10]], &[&[41], &[34]]], |accepted| assert_eq!(accepted, [10, 34, 41]));
    }

    /// 5 and 69 share a word: while one worker commits to it, another takes it for later numbers. 5 comes
    /// again after that.
    #[test]
    fn a_word_that_is_taken_for_later_numbers_lets_nothing_pass_twice() {
        accepted([&[&[5], &[69]], &[&[69], &[5]]], |accepted| {
            assert!(accepted == [69] || accepted == [5, 69], "{accepted:?}");
        });
    }

    /// The model is worth something: it finds a worker that reads the top (3) before the word (2), so that it
    /// takes a word of later numbers back to 5.
    #[test]
    #[should_panic(expected = "accepted twice")]
    fn a_top_that_is_read_before_the_word_is_found() {
        let commit = |window: &SharedWindow, batch: Batch<'_>, refuse: &mut dyn FnMut(usize, ReplayError)| {
            for (at, number) in batch {
                let block = number / NUMBERS;
                window.raise_top(number);
                let (top, place) = (window.top(), window.word(block));
                let word = Word(place.load(Ordering::Acquire));
                let marked = Word::of(block, word.bits(block) | bit(number)).0;
                let is_new = !window.is_left_of(top, number) && word.bits(block) & bit(number) == 0;
                let moved = place.compare_exchange(word.0, marked, Ordering::AcqRel, Ordering::Acquire);
                if !is_new || moved.is_err() {
                    refuse(at, ReplayError::TooOld);
                }
            }
        };
        accepted_by(commit, [&[&[5], &[69]], &[&[69], &[5]]], |accepted| {
            assert!(accepted.windows(2).all(|two| two[0] != two[1]), "accepted twice: {accepted:?}");
        });
    }

    /// The same where the batch itself pushes its first number out.
    #[test]
    fn a_batch_that_is_wider_than_the_window_lets_nothing_pass_twice() {
        accepted([&[&[5, 70]], &[&[5], &[70]]], |accepted| {
            assert!(accepted == [70] || accepted == [5, 70], "{accepted:?}");
        });
    }

    /// One of several windows of an SA.
    fn of_vpe() -> SharedWindow {
        SharedWindow::using(32, true, Arc::new(SharedUse::new()))
    }

    /// Commits adjacent numbers as a run.
    fn commit_run(window: &SharedWindow, batch: Batch<'_>, refuse: &mut dyn FnMut(usize, ReplayError)) {
        let first = batch.clone().next().map_or(0, |(_, number)| number);
        window.commit_run((first, batch.len() as u64), batch, refuse);
    }

    /// 32 is in another word than 31.
    #[test]
    fn runs_over_a_words_end_that_overlap_are_accepted_once() {
        accepted_in(of_vpe, commit_run, [&[&[30, 31, 32, 33]], &[&[31, 32, 33, 34]]], |accepted| {
            assert_eq!(accepted, [30, 31, 32, 33, 34]);
        });
    }

    /// 64 and 65 take the word of 30 and 31, while a run goes over the end of that.
    #[test]
    fn a_run_whose_first_word_is_taken_for_later_numbers_lets_nothing_pass_twice() {
        accepted_in(
            of_vpe,
            commit_run,
            [&[&[30, 31, 32, 33]], &[&[62, 63, 64, 65], &[30, 31]]],
            |accepted| {
                assert!(accepted.ends_with(&[62, 63, 64, 65]), "{accepted:?}");
                assert!(accepted.windows(2).all(|two| two[0] != two[1]), "{accepted:?}");
            },
        );
    }

    /// The model is worth something: it finds a worker that reads the words of a run before it writes the
    /// first of them, and believes what it has read.
    #[test]
    #[should_panic(expected = "accepted twice")]
    fn a_run_whose_words_are_all_read_before_one_is_written_is_found() {
        let commit = |window: &SharedWindow, batch: Batch<'_>, refuse: &mut dyn FnMut(usize, ReplayError)| {
            let received: Vec<_> = batch.clone().map(|(at, number)| (at, window.check(number))).collect();
            commit_run(window, batch, &mut |_, _| {});
            received.into_iter().for_each(|(at, checked)| {
                if let Err(error) = checked {
                    refuse(at, error);
                }
            });
        };
        accepted_in(of_vpe, commit, [&[&[30, 31, 32, 33]], &[&[31, 32, 33, 34]]], |accepted| {
            assert!(accepted.windows(2).all(|two| two[0] != two[1]), "accepted twice: {accepted:?}");
        });
    }
}
