//! What several workers use of one SA's lifetime.
//!
//! A worker takes amounts in *shares* before it uses them, so that it asks what is shared seldom, and all
//! together never use more packets than the hard limit says:
//!
//! ```text
//!   SharedUse: taken ──share──► worker 0: [used │ in hand]     0 ≤ in hand ≤ a 256th of what was left then,
//!                   └─share──► worker 1: [used │ in hand]         and 1,024 packets or a megabyte at most
//! ```
//!
//! Near a limit a share is one packet. Once a second a worker gives back what it has in hand. So an SA ends
//! at most that early, and a limit of bytes is exceeded by no more than one packet of each worker: of one
//! worker, too, the last packet may be longer than what is left.

use crate::lifetime::Spent;
use crate::sync::{AtomicBool, AtomicU64, Ordering};

/// The longest share: packets.
const PACKETS: u64 = 1024;
/// The longest share: bytes.
const BYTES: u64 = 1 << 20;
/// What a worker takes at once, of what is left. Workers are [at most](crate::MAX_SHARERS) a quarter as many.
const PART: u64 = 256;

/// What all workers of an SA have used, or have in hand.
#[derive(Debug)]
pub(crate) struct SharedUse {
    pub(crate) packets: Taken,
    pub(crate) bytes: Taken,
    /// One worker has told that a soft limit was reached.
    warned: AtomicBool,
    /// One worker has found a hard limit reached.
    ended: AtomicBool,
    /// One worker has told that.
    told: AtomicBool,
}

/// Amounts of one kind.
#[derive(Debug)]
pub(crate) struct Taken {
    amount: AtomicU64,
    longest_share: u64,
}

impl SharedUse {
    pub(crate) fn new() -> Self {
        let taken = |longest_share| Taken { amount: AtomicU64::new(0), longest_share };
        let [warned, ended, told] = [(); 3].map(|()| AtomicBool::new(false));
        Self { packets: taken(PACKETS), bytes: taken(BYTES), warned, ended, told }
    }

    /// A worker installs the SA, of which so much was used before: all say the same, and it counts once.
    pub(crate) fn begin(&self, spent: Spent) {
        self.packets.amount.fetch_max(spent.packets, Ordering::Relaxed);
        self.bytes.amount.fetch_max(spent.bytes, Ordering::Relaxed);
    }

    /// The SA has other limits from now on, and `more` of it was used elsewhere.
    pub(crate) fn begin_anew(&self, more: Spent) {
        self.packets.add(more.packets);
        self.bytes.add(more.bytes);
        self.warned.store(false, Ordering::Relaxed);
        self.ended.store(false, Ordering::Relaxed);
    }

    pub(crate) fn is_warned(&self) -> bool {
        self.warned.load(Ordering::Relaxed)
    }

    /// Whether this call is the first to warn.
    pub(crate) fn warn(&self) -> bool {
        !self.warned.swap(true, Ordering::Relaxed)
    }

    /// Whether this call is the first to tell that it has ended.
    pub(crate) fn tell_end(&self) -> bool {
        !self.told.load(Ordering::Relaxed) && !self.told.swap(true, Ordering::Relaxed)
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Relaxed)
    }

    /// No worker uses it any more: at once where it takes another share, within a second elsewhere.
    pub(crate) fn end(&self) {
        self.ended.store(true, Ordering::Relaxed);
    }
}

impl Taken {
    /// Takes a share for a worker that has used `debt` more than it had in hand: of what is left up to
    /// `near`, the next limit, and at least one. `None` if the hard limit is reached.
    pub(crate) fn take(&self, debt: u64, near: u64, hard: Option<u64>) -> Option<u64> {
        let mut share = 0;
        let taken = self.amount.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |amount| {
            let used = amount.saturating_add(debt);
            if hard.is_some_and(|hard| used >= hard) {
                return None;
            }
            share = (near.saturating_sub(used) / PART).clamp(1, self.longest_share);
            Some(used.saturating_add(share))
        });
        if taken.is_err() {
            self.add(debt);
        }
        taken.ok().map(|_| share)
    }

    fn add(&self, amount: u64) {
        let add = |taken: u64| Some(taken.saturating_add(amount));
        let _ = self.amount.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
    }

    /// A worker that had the amounts up to `end` has used those up to `used`, which may be more.
    pub(crate) fn settle(&self, used: u64, end: u64) {
        if used < end {
            self.amount.fetch_sub(end - used, Ordering::Relaxed);
        } else {
            self.add(used - end);
        }
    }

    pub(crate) fn amount(&self) -> u64 {
        self.amount.load(Ordering::Relaxed)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::lifetime::{Lifetime, LifetimeState, LifetimeUse, Limits, Moment};
    use std::sync::Arc;
    use std::time::Duration;

    const NOW: Moment = Moment(Duration::from_secs(1));

    fn packets(soft: u64, hard: u64) -> Lifetime {
        let of = |packets| Limits { packets: Some(packets), ..Limits::default() };
        Lifetime { soft: of(soft), hard: of(hard) }
    }

    fn workers<const N: usize>(lifetime: Lifetime, spent: Spent) -> [LifetimeUse; N] {
        let shared = Arc::new(SharedUse::new());
        [(); N].map(|()| LifetimeUse::sharing(lifetime, NOW, spent, &shared))
    }

    #[test]
    fn workers_together_use_what_one_may_and_one_warns() {
        let spent = Spent { packets: 100, ..Spent::default() };
        let mut both: [_; 2] = workers(packets(5000, 10_000), spent);
        let mut states = Vec::new();
        for turn in 0..9_900 {
            // One of them is slow.
            states.push(both[usize::from(turn % 7 == 0)].count(100, NOW));
        }
        let soft = states.iter().position(|state| *state == LifetimeState::SoftReached);
        assert!(soft.is_some_and(|at| (4700..=4900).contains(&at)), "{soft:?}");
        assert_eq!(states.iter().filter(|state| **state == LifetimeState::SoftReached).count(), 1);
        let early = states.iter().filter(|state| **state == LifetimeState::Expired).count();
        assert!(early <= 2, "near the end shares are one packet: {early}");
        assert_eq!(both.each_mut().map(|worker| worker.count(1, NOW)), [LifetimeState::Expired; 2]);
    }

    #[test]
    fn what_one_worker_has_in_hand_goes_back_within_a_second() {
        let [mut idle, mut busy] = workers(packets(u64::MAX, 100_000), Spent::default());
        assert_eq!(idle.count(1, NOW), LifetimeState::Alive);
        assert!(idle.count_run(300, 1, NOW), "it has more in hand than it has used");
        assert_eq!(idle.look(NOW), LifetimeState::Alive);
        let used = (0..).take_while(|_| busy.count(1, NOW) != LifetimeState::Expired).count();
        assert_eq!(used, 100_000 - 301);
        assert_eq!(idle.look(NOW), LifetimeState::Expired, "also who uses nothing is told");
    }

    #[test]
    fn a_worker_that_ends_leaves_what_it_has_in_hand() {
        let [mut ends, mut stays] = workers(packets(u64::MAX, 100_000), Spent::default());
        assert_eq!(ends.count(1, NOW), LifetimeState::Alive);
        drop(ends);
        assert_eq!((0..).take_while(|_| stays.count(1, NOW) != LifetimeState::Expired).count(), 99_999);
    }

    #[test]
    fn bytes_are_exceeded_by_a_packet_of_each_worker_at_most() {
        let hard = Limits { bytes: Some(1_000_000), ..Limits::default() };
        let mut all: [_; 4] = workers(Lifetime { hard, ..Lifetime::default() }, Spent::default());
        let mut used = 0;
        for turn in 0..4000 {
            let state = all[turn % 4].count(1400, NOW);
            used += if state == LifetimeState::Expired { 0 } else { 1400 };
        }
        assert!((1_000_000..=1_000_000 + 4 * 1400).contains(&used), "{used}");
    }

    #[test]
    fn other_limits_count_what_all_have_used() {
        let [one, mut two] = workers(packets(u64::MAX, 10), Spent::default());
        assert_eq!(two.count(1, NOW), LifetimeState::Alive);
        while two.count(1, NOW) != LifetimeState::Expired {}
        assert!(two.is_expired(NOW));
        let more = Spent { packets: 5, ..Spent::default() };
        let mut one = one.under(packets(u64::MAX, 20), more);
        let mut two = two.under(packets(u64::MAX, 20), Spent::default());
        let states = [one.count(1, NOW), two.count(1, NOW), one.count(1, NOW), two.count(1, NOW)];
        assert_eq!(states, [LifetimeState::Alive; 4], "15 of 20 are used");
        assert_eq!([one.count(1, NOW), two.count(1, NOW)], [LifetimeState::Alive, LifetimeState::Expired]);
    }

    #[test]
    fn time_ends_an_sa_at_each_worker() {
        let at = |seconds| Limits { time: Some(Duration::from_secs(seconds)), ..Limits::default() };
        let [mut one, mut two] = workers(Lifetime { soft: at(5), hard: at(8) }, Spent::default());
        let moment = |seconds| Moment(Duration::from_secs(seconds));
        use LifetimeState::{Alive, Expired, SoftReached};
        assert_eq!([one.count(1, moment(5)), two.count(1, moment(5))], [Alive; 2]);
        assert_eq!([one.look(moment(6)), two.count(1, moment(7))], [SoftReached, Alive]);
        assert!(one.count_run(1, 1, moment(8)) && two.count_run(1, 1, moment(8)), "the warning is over");
        assert_eq!([one.count(1, moment(9)), two.look(moment(9))], [Expired; 2]);
    }

    #[test]
    fn threads_never_use_more_than_the_hard_limit_and_one_of_them_warns() {
        let all: [_; 4] = workers(packets(50_000, 100_000), Spent::default());
        let run = |mut worker: LifetimeUse| {
            let (mut used, mut warnings) = (0, 0);
            loop {
                match worker.count(1, NOW) {
                    LifetimeState::Alive => {}
                    LifetimeState::SoftReached => warnings += 1,
                    LifetimeState::Expired => return (used, warnings),
                }
                used += 1;
            }
        };
        let sums = std::thread::scope(|scope| {
            let threads = all.map(|worker| scope.spawn(move || run(worker)));
            let results = threads.map(|thread| thread.join().unwrap());
            results.into_iter().fold((0, 0), |sums, result| (sums.0 + result.0, sums.1 + result.1))
        });
        // Each had at most a 256th of what was left in hand when another one found the end.
        assert!((98_000..=100_000).contains(&sums.0) && sums.1 == 1, "{sums:?}");
    }
}
