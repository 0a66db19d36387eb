//! Where the senders of a group are, as workers know it together: packets of one sender come to several of
//! them, and two devices with one Sender ID perhaps to one each.
//!
//! Of each sender there is one [`Seen`]. A word of it says which address was noted in which sixteenth of a
//! second. Most packets find in it what they would note, and write nothing: the line stays in all caches.
//! Others note it under a lock, which nobody waits for. So the last moment of an address is up to a sixteenth
//! of a second older than it was, and two devices whose packets are that close to a second apart pass as one
//! that has moved.

use super::grow_map::GrowMap;
use super::senders::{Heard, News};
use crate::counters::SaCounters;
use crate::lifetime::Moment;
use crate::sender_counts::SHOWN_SENDERS;
use crate::sync::{AtomicU32, AtomicU64, Ordering};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, TryLockError};
use testudo_wire::vpe::VpeHeader;

/// Loom's model has few, since it follows each.
const ROWS: usize = if cfg!(loom) { 2 } else { SHOWN_SENDERS };

/// The senders of one SA of a group.
#[derive(Debug)]
pub(super) struct SharedSenders {
    seen: GrowMap<Seen>,
    /// The first that were heard, by the rows that they have in the counters of every worker; 0 is free.
    rows: Box<[AtomicU32]>,
}

/// A sender.
#[derive(Debug)]
struct Seen {
    /// Its row in the counters of every worker.
    row: Option<usize>,
    /// What was noted last.
    noted: AtomicU64,
    last: Mutex<Heard>,
}

/// What one worker has of them.
#[derive(Debug)]
pub(super) struct WorkersSenders {
    /// Our own ID; 0 if we only receive.
    own: u16,
    /// Where our own packets come from.
    local: IpAddr,
    counters: Arc<SaCounters>,
    news: Vec<News>,
}

impl SharedSenders {
    pub(super) fn new() -> Self {
        Self { seen: GrowMap::new(), rows: (0..ROWS).map(|_| AtomicU32::new(0)).collect() }
    }

    /// The row of a sender: the same at all workers. `None` if all are those of others.
    fn row(&self, sender: u16) -> Option<usize> {
        let sender = u32::from(sender);
        self.rows.iter().position(|row| match row.load(Ordering::Acquire) {
            0 => {
                let found = row.compare_exchange(0, sender, Ordering::AcqRel, Ordering::Acquire);
                found.is_ok() || found == Err(sender)
            }
            there => there == sender,
        })
    }
}

impl Seen {
    /// Notes where a packet came from. Returns where the one before came from, if two devices must have sent
    /// them, and whether that may be told now.
    fn note(&self, address: IpAddr, now: Moment, is_own: bool) -> Option<(IpAddr, bool)> {
        let word = word_of(address, now);
        if !is_own && self.noted.load(Ordering::Relaxed) == word {
            return None;
        }
        // Who has it notes an address of this very moment: the next packet is judged by that.
        let mut last = match self.last.try_lock() {
            Ok(last) => last,
            // What is noted there is whole whenever it is written, and a worker that died ends no watch.
            Err(TryLockError::Poisoned(last)) => last.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        if !is_own {
            self.noted.store(word, Ordering::Relaxed);
        }
        last.note(address, now, is_own)
    }
}

/// An address and a sixteenth of a second in one number: all of an address of IPv4. Of two addresses of IPv6
/// with the same one, the next sixteenth shows that they are two.
fn word_of(address: IpAddr, now: Moment) -> u64 {
    let address = match address {
        IpAddr::V4(v4) => v4.to_bits(),
        IpAddr::V6(v6) => v6.segments().chunks(2).fold(0x9E37_79B9_u32, |hash, two| {
            let word = two.iter().fold(0, |word, part| word << 16 | u32::from(*part));
            (hash ^ word).wrapping_mul(0x85EB_CA6B).rotate_left(15)
        }),
    };
    let sixteenths = now.0.as_millis() / 63;
    // Its lower bits: after eight years they come again.
    u64::from(address) << 32 | u64::try_from(sixteenths & 0xFFFF_FFFF).unwrap_or(0)
}

impl WorkersSenders {
    pub(super) fn new(own: u16, local: IpAddr, counters: Arc<SaCounters>) -> Self {
        Self { own, local, counters, news: Vec::new() }
    }

    /// Whether nobody else may send with this ID: 0 is for two that know each other.
    #[inline]
    pub(super) fn is_refused(&self, sender: u16) -> bool {
        sender == 0 || sender == self.own
    }

    /// [`Senders::hear`](super::Senders::hear).
    pub(super) fn hear(
        &mut self,
        all: &SharedSenders,
        header: &VpeHeader,
        address: Option<IpAddr>,
        now: Moment,
    ) {
        let Some(address) = address.filter(|_| header.sender != 0) else { return };
        let (sender, is_own) = (header.sender, header.sender == self.own);
        if is_own {
            self.news.push(News::Own { window: header.window, number: header.number, address });
        }
        let key = sender.into();
        let Some(seen) = all.seen.get(key).or_else(|| self.enter(all, sender, address, now)) else { return };
        let counts = self.counters.senders_to_count();
        if let Some((before, is_told)) = seen.note(address, now, is_own) {
            counts.count_double();
            if is_told {
                self.news.push(News::Twice { sender, before, address });
            }
        }
        if !is_own {
            counts.count_packet_of(sender, seen.row, address, now);
        }
    }

    /// Enters a sender that was not heard before.
    #[cold]
    fn enter<'s>(
        &self,
        all: &'s SharedSenders,
        sender: u16,
        address: IpAddr,
        now: Moment,
    ) -> Option<&'s Seen> {
        let is_own = sender == self.own;
        // Our own packets are known to come from here.
        let address = if is_own { self.local } else { address };
        let make = || Seen {
            row: if is_own { None } else { all.row(sender) },
            noted: AtomicU64::new(word_of(address, now)),
            last: Mutex::new(Heard::new(address, now)),
        };
        let (seen, is_new) = all.seen.get_or_insert(sender.into(), make)?;
        if is_new && !is_own {
            self.counters.senders_to_count().count_sender();
        }
        Some(seen)
    }

    pub(super) fn has_news(&self) -> bool {
        !self.news.is_empty()
    }

    /// [`Senders::swap_news`](super::Senders::swap_news).
    pub(super) fn swap_news(&mut self, empty: &mut Vec<News>) {
        std::mem::swap(&mut self.news, empty);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::time::Duration;

    #[test]
    fn two_devices_are_noticed_though_a_worker_died_with_the_lock() {
        let address = |last| IpAddr::from([10, 0, 0, last]);
        let now = Moment(Duration::from_secs(5));
        let last = Mutex::new(Heard::new(address(1), now));
        let seen = Seen { row: None, noted: AtomicU64::new(word_of(address(1), now)), last };
        let died = catch_unwind(AssertUnwindSafe(|| {
            let _held = seen.last.lock();
            panic!("as a worker that dies here");
        }));
        assert!(died.is_err() && seen.last.is_poisoned());
        assert_eq!(seen.note(address(2), now, false), Some((address(1), true)));
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use loom::thread;

    /// Enters a sender, as a worker does that has not heard it: its row, and whether it is new.
    fn enter(all: &SharedSenders, sender: u16) -> (Option<usize>, bool) {
        let (address, now) = ([192, 0, 2, 1].into(), Moment::default());
        let make = || Seen {
            row: all.row(sender),
            noted: AtomicU64::new(word_of(address, now)),
            last: Mutex::new(Heard::new(address, now)),
        };
        let (seen, is_new) = all.seen.get_or_insert(sender.into(), make).unwrap();
        (seen.row, is_new)
    }

    /// Two workers hear senders for the first time, at once.
    fn enter_at_two(senders: [u16; 2], check: impl Fn([(Option<usize>, bool); 2]) + Sync + Send + 'static) {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(3);
        model.check(move || {
            let all = Arc::new(SharedSenders::new());
            let other = {
                let all = Arc::clone(&all);
                thread::spawn(move || enter(&all, senders[1]))
            };
            let one = enter(&all, senders[0]);
            check([one, other.join().unwrap()]);
        });
    }

    /// It is counted by who has entered it, and shown in one row by both.
    #[test]
    fn a_sender_that_two_workers_hear_first_is_counted_once_in_one_row() {
        enter_at_two([1, 1], |[(one, is_new), (other, is_new_there)]| {
            assert_eq!((one, other), (Some(0), Some(0)));
            assert!(is_new != is_new_there);
        });
    }

    #[test]
    fn two_senders_that_are_heard_at_once_have_a_row_each() {
        enter_at_two([1, 2], |[(one, is_new), (other, is_new_there)]| {
            assert!(is_new && is_new_there);
            let mut rows = [one, other];
            rows.sort_unstable();
            assert_eq!(rows, [Some(0), Some(1)]);
        });
    }
}
