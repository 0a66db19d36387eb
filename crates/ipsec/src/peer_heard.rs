//! When a tunnel's peer was last heard where it is, and where that is, as all workers know it: a packet comes
//! to one of them, and another one that hears nothing must not take the peer for silent.
//!
//! ```text
//!   word    16 bits: how often the peer has moved ┬ 48 bits: the millisecond in which it was heard last
//!   place   where it has moved to; under a lock
//! ```
//!
//! A worker that hears the peer where it has it loads the word: if the peer has moved as often as the worker
//! knows, that is where all have it, and the worker writes once in a millisecond. Who knows of fewer moves,
//! and who hears the peer elsewhere, looks at the place. Nobody waits for its lock: who does not get it
//! leaves the packet without a say.

use crate::lifetime::Moment;
use crate::sync::{AtomicU64, Ordering};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// How long the peer must have been silent at its current address before it is followed elsewhere, in
/// milliseconds.
const SILENCE_MS: u64 = 1000;
const MILLISECOND: Duration = Duration::from_millis(1);

/// A moment to the millisecond, from 1 on; 0 is never.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Heard(u64);

impl Heard {
    pub(crate) const NEVER: Self = Self(0);

    /// A moment, rounded down.
    pub(crate) fn at(now: Moment) -> Self {
        Self(u64::try_from(now.0.as_millis()).unwrap_or(u64::MAX).saturating_add(1))
    }

    /// The same, rounded up: a second after this has passed as a whole.
    fn by(now: Moment) -> Self {
        Self::at(Moment(now.0 + (MILLISECOND - Duration::from_nanos(1))))
    }

    /// Whether it is the second that `later` ends, or `later` is earlier.
    fn is_within_a_second_of(self, later: Self) -> bool {
        self.0.saturating_add(SILENCE_MS) >= later.0
    }
}

/// [`Heard`], by the last one that writes it.
#[derive(Debug)]
pub(crate) struct HeardCell(AtomicU64);

impl HeardCell {
    pub(crate) fn new() -> Self {
        Self(AtomicU64::new(Heard::NEVER.0))
    }

    pub(crate) fn get(&self) -> Heard {
        Heard(self.0.load(Ordering::Relaxed))
    }

    /// Moves it on, unless it is there by less than so many milliseconds.
    pub(crate) fn move_on(&self, to: Heard, coarse: u64) {
        if self.get().0.saturating_add(coarse) < to.0 {
            self.0.fetch_max(to.0, Ordering::Relaxed);
        }
    }
}

/// What the number of an authentic packet says of the time when the peer sent it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum News {
    /// Nothing: a higher one was received.
    Old,
    /// It is the highest of the SA: the peer has sent it after all that was received under the SA.
    OfAll,
    /// It is the highest of its window, in which news came last at that time. The peer has sent it after
    /// that news; whether before or after what came in other windows, nobody knows.
    OfWindow(Heard),
}

impl News {
    /// Whether it says where the peer is that was heard last at that time.
    fn speaks_after(self, heard: Heard) -> bool {
        match self {
            Self::Old => false,
            Self::OfAll => true,
            Self::OfWindow(window) => window.is_within_a_second_of(heard),
        }
    }
}

/// An outer address and port.
type Place = (IpAddr, u16);

#[derive(Debug)]
struct Known {
    word: AtomicU64,
    /// Where the peer was followed to, or put.
    place: Mutex<Option<Place>>,
}

/// Bits of the word that tell the time; those above count moves.
const TIME_BITS: u32 = 48;
const TIME: u64 = (1 << TIME_BITS) - 1;

/// The word of so many moves, the last of which was no later than this.
fn word_of(moves: u16, heard: Heard) -> u64 {
    u64::from(moves) << TIME_BITS | heard.0.min(TIME)
}

/// How many moves a word counts.
fn moves_of(word: u64) -> u16 {
    (word >> TIME_BITS) as u16
}

/// What becomes of a packet that did not come from where all have the peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The peer stays where it is.
    Stay,
    /// It is there, as another worker has found.
    Join,
    /// It has moved there, from this place, if a worker had found it there.
    Move(Option<Place>),
}

/// When and where the peer of a tunnel was heard, as one worker has it. Clones are of the same peer, for
/// another worker.
#[derive(Debug, Clone, Default)]
pub struct PeerHeard {
    known: Option<Arc<Known>>,
    /// The moves that this worker knows of.
    moves: u16,
}

impl PeerHeard {
    /// For a tunnel that several workers have.
    #[must_use]
    pub fn shared() -> Self {
        let known = Known { word: AtomicU64::new(0), place: Mutex::new(None) };
        Self { known: Some(Arc::new(known)), moves: 0 }
    }

    /// Has room to note something, if there was none.
    pub(crate) fn begin(&mut self) {
        if self.known.is_none() {
            *self = Self::shared();
        }
    }

    /// An authentic packet came from where this worker has the peer. `false` if others have it elsewhere,
    /// perhaps: then nothing is noted.
    pub(crate) fn note(&self, now: Moment) -> bool {
        let Some(known) = &self.known else { return true };
        let (word, heard) = (known.word.load(Ordering::Relaxed), word_of(self.moves, Heard::by(now)));
        if moves_of(word) != self.moves {
            return false;
        }
        if word < heard {
            // Not in place of a word that counts one more move.
            known.word.fetch_max(heard, Ordering::Relaxed);
        }
        true
    }

    /// The peer was put there, by a key exchange, which knows it better than packets: for a second it is not
    /// followed to what was under way or kept back.
    pub(crate) fn put(&mut self, place: Option<Place>, now: Moment) {
        let Some(known) = &self.known else { return };
        let mut current = known.place.lock().unwrap_or_else(PoisonError::into_inner);
        let word = known.word.load(Ordering::Relaxed);
        let is_new = *current != place;
        self.moves = moves_of(word).wrapping_add(is_new.into());
        if is_new {
            *current = place;
            known.word.store(word_of(self.moves, Heard::by(now)), Ordering::Relaxed);
        }
    }

    /// Another worker has told that the peer has moved there. `false` if it is elsewhere by now.
    pub(crate) fn hear(&mut self, place: Place) -> bool {
        let Some(known) = &self.known else { return true };
        let current = known.place.lock().unwrap_or_else(PoisonError::into_inner);
        let is_there = *current == Some(place);
        if is_there {
            self.moves = moves_of(known.word.load(Ordering::Relaxed));
        }
        is_there
    }

    /// What becomes of an authentic packet that may move the peer, and came from elsewhere or was not
    /// [noted](Self::note).
    pub(crate) fn judge(&mut self, place: Place, news: News, now: Moment) -> Verdict {
        let Some(known) = &self.known else { return Verdict::Stay };
        let Ok(mut current) = known.place.try_lock() else { return Verdict::Stay };
        let word = known.word.load(Ordering::Relaxed);
        if *current == Some(place) {
            self.moves = moves_of(word);
            if news != News::Old {
                self.note(now);
            }
            return Verdict::Join;
        }
        let heard = Heard(word & TIME);
        let is_silent = heard == Heard::NEVER || heard.0.saturating_add(SILENCE_MS) <= Heard::at(now).0;
        if !is_silent || !news.speaks_after(heard) {
            return Verdict::Stay;
        }
        let moves = moves_of(word).wrapping_add(1);
        let moved = word_of(moves, Heard::by(now));
        if known.word.compare_exchange(word, moved, Ordering::Relaxed, Ordering::Relaxed).is_err() {
            // Another worker has just heard it where it was.
            return Verdict::Stay;
        }
        self.moves = moves;
        Verdict::Move(current.replace(place))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const PLACES: [Place; 2] = [
        (IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 7)), 1),
        (IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 2),
    ];

    fn at(micros: u64) -> Moment {
        Moment(Duration::from_micros(micros))
    }

    const MOVED: Verdict = Verdict::Move(None);

    #[test]
    fn a_peer_is_silent_after_a_whole_second() {
        for heard in [0, 1, 999, 1000, 1001] {
            let mut peer = PeerHeard::shared();
            assert!(peer.note(at(heard)));
            assert_eq!(peer.judge(PLACES[0], News::OfAll, at(heard + 999_999)), Verdict::Stay, "{heard}");
            assert_eq!(peer.judge(PLACES[0], News::OfAll, at(heard + 1_001_000)), MOVED, "{heard}");
        }
    }

    #[test]
    fn one_of_several_workers_moves_the_peer_and_the_others_join() {
        let mut peer = PeerHeard::shared();
        let mut other = peer.clone();
        assert_eq!(peer.judge(PLACES[0], News::OfAll, at(0)), MOVED, "nobody has heard it");
        assert_eq!(other.judge(PLACES[1], News::OfAll, at(0)), Verdict::Stay);
        assert!(!other.note(at(5)), "it has the peer where it was before");
        assert_eq!(other.judge(PLACES[0], News::Old, at(10)), Verdict::Join);
        assert!(other.note(at(11)));
        other.put(Some(PLACES[1]), at(12));
        assert!(!peer.note(at(12)));
        assert_eq!(peer.judge(PLACES[1], News::Old, at(20)), Verdict::Join);
        peer.put(Some(PLACES[1]), at(20));
        assert!(peer.note(at(21)) && other.note(at(22)), "it was there");
    }

    #[test]
    fn a_worker_that_is_told_of_a_move_too_late_stays_where_the_peer_was_put() {
        let mut peer = PeerHeard::shared();
        let (mut other, mut third) = (peer.clone(), peer.clone());
        assert_eq!(peer.judge(PLACES[0], News::OfAll, at(0)), MOVED);
        assert!(other.hear(PLACES[0]) && other.note(at(5)));
        peer.put(Some(PLACES[1]), at(10));
        assert!(!third.hear(PLACES[0]) && !other.hear(PLACES[0]));
        assert!(!other.note(at(15)), "it has the peer where it was before");
        assert!(third.hear(PLACES[1]) && third.note(at(20)));
    }

    #[test]
    fn a_peer_that_was_put_somewhere_stays_there_for_a_second() {
        let mut peer = PeerHeard::shared();
        peer.put(Some(PLACES[0]), at(5_000_000));
        assert_eq!(peer.judge(PLACES[1], News::OfAll, at(5_999_000)), Verdict::Stay);
        assert_eq!(peer.judge(PLACES[1], News::OfAll, at(6_001_000)), Verdict::Move(Some(PLACES[0])));
    }

    #[test]
    fn old_packets_join_and_keep_nobody_where_it_is() {
        let mut peer = PeerHeard::shared();
        let mut other = peer.clone();
        assert_eq!(peer.judge(PLACES[0], News::OfAll, at(0)), MOVED);
        assert_eq!(other.judge(PLACES[0], News::Old, at(900_000)), Verdict::Join);
        assert_eq!(
            other.judge(PLACES[1], News::OfAll, at(1_002_000)),
            Verdict::Move(Some(PLACES[0])),
            "what is old does not say that the peer is there still"
        );
    }

    #[test]
    fn moves_may_be_more_than_are_counted() {
        let mut peer = PeerHeard::shared();
        let mut other = peer.clone();
        for n in 0..70_000_u64 {
            let place = PLACES[usize::from(n % 2 == 1)];
            let verdict = peer.judge(place, News::OfAll, at(1_001_000 * n));
            assert!(matches!(verdict, Verdict::Move(_)), "{n}");
            assert_eq!(other.judge(place, News::Old, at(1_001_000 * n)), Verdict::Join, "{n}");
            assert!(other.note(at(1_001_000 * n + 1)) && peer.note(at(1_001_000 * n + 1)), "{n}");
        }
    }

    #[test]
    fn news_of_a_window_speak_if_the_window_was_heard_lately() {
        let window = |micros| News::OfWindow(Heard::at(at(micros)));
        let told = |news, heard: u64| {
            let mut peer = PeerHeard::shared();
            assert!(peer.note(at(heard)));
            peer.judge(PLACES[0], news, at(heard + 2_000_000))
        };
        assert_eq!(told(window(4_000_000), 5_000_000), MOVED);
        assert_eq!(told(window(6_000_000), 5_000_000), MOVED);
        assert_eq!(told(window(3_998_000), 5_000_000), Verdict::Stay);
        assert_eq!(told(News::OfWindow(Heard::NEVER), 5_000_000), Verdict::Stay);
        let nothing = News::OfWindow(Heard::NEVER);
        assert_eq!(PeerHeard::shared().judge(PLACES[0], nothing, at(0)), MOVED, "nothing is known");
    }
}
