//! The sequence numbers of an outbound SA of VPE: one count for each window.
//!
//! All windows of an SA count below one *gate*, the SA's own [`SequenceNumbers`]: whichever window is ahead
//! of all others takes its next number from there, and the others follow freely. So one lease of the durable
//! store is one of all windows: a start continues every window above all numbers that any of them had. What
//! the gate says (that the lease or the numbers end, which number comes next) holds for the SA.
//!
//! ```text
//!   window 0   ───────────────┐
//!   window 1   ──────────┐    │          numbers up to here need nobody's leave
//!   window 2   ──────────┼────┤ gate ··· leased ··· 2^64 − 2
//! ```

use super::{VpeRules, WindowTop, WindowsPage, WindowsSeen, flow_hash};
use crate::fragments::mix;
use crate::lifetime::Moment;
use crate::numbers::{SequenceError, SequenceNumbers};
use crate::path_mtu::RECENT;
use std::ops::Range;
use std::time::Duration;
use testudo_packet::BATCH_SIZE;
use testudo_wire::flow::FLOW_MULTIPLIER;

/// The windows that this worker sends in.
#[derive(Debug)]
pub(crate) struct Numbers {
    rules: VpeRules,
    /// The next number of each.
    next: Box<[u64]>,
    /// That of a window which no packet has gone in since.
    began_at: u64,
    /// The window that the packet in hand is numbered in.
    chosen: u16,
    /// What flows are hashed with, so that nobody can choose flows that share a window.
    pub(crate) keys: [u64; 2],
    /// Since when.
    hashed_since: Moment,
    /// The number that was next in each window at each of two moments, the older one first: those from the
    /// older one on are recent.
    marks: [(Moment, Box<[u64]>); 2],
    /// Somebody else sends with our Sender ID.
    is_taken: bool,
    /// The hash of the packet that is being cut: its pieces have its flow.
    of_whole: Option<u64>,
}

/// Window and number of each packet of a run, in their order. In arrays of their own, since what is kept for
/// a batch displaces its packets from the cache.
#[derive(Debug)]
pub(crate) struct Numbered {
    pub(crate) windows: [u16; BATCH_SIZE],
    pub(crate) numbers: [u64; BATCH_SIZE],
}

impl Numbered {
    pub(crate) fn new() -> Self {
        Self { windows: [0; _], numbers: [0; _] }
    }
}

impl Numbers {
    pub(crate) fn new(rules: VpeRules, gate: &SequenceNumbers, seed: u64, now: Moment) -> Box<Self> {
        let began_at = gate.next();
        let next: Box<[u64]> = vec![began_at; rules.windows() as usize].into();
        let marks = [(now, next.clone()), (now, next.clone())];
        // Not `mix(seed)`, which is 0 for the seed 0: as a factor the addresses alone mix too little.
        let keys = [mix(seed ^ FLOW_MULTIPLIER), mix(!seed)];
        let (chosen, hashed_since, is_taken, of_whole) = (0, now, false, None);
        Box::new(Self { rules, next, began_at, chosen, keys, hashed_since, marks, is_taken, of_whole })
    }

    /// The numbers of a window that were used in the last few seconds; `None` if it is not one of these.
    pub(crate) fn recent(&self, window: u16) -> Option<Range<u64>> {
        let place = self.rules.place_of(window)?;
        Some(*self.marks[0].1.get(place)?..*self.next.get(place)?)
    }

    /// Notes which numbers are recent, and gives flows other windows if they have had theirs long enough. To
    /// be called about once a second.
    pub(crate) fn age(&mut self, now: Moment) {
        if now.since(self.marks[1].0) >= RECENT {
            self.marks.swap(0, 1);
            let [_, (at, mark)] = &mut self.marks;
            *at = now;
            mark.copy_from_slice(&self.next);
        }
        let lasts = Duration::from_secs(self.rules.rehash_seconds.into());
        if lasts > Duration::ZERO && now.since(self.hashed_since) >= lasts {
            // Who does not know the keys before cannot know these.
            let [one, other] = self.keys;
            self.keys = [mix(one.rotate_left(17) ^ other), mix(other.rotate_left(29) ^ !one)];
            self.hashed_since = now;
        }
    }

    pub(crate) fn rules(&self) -> &VpeRules {
        &self.rules
    }

    /// The next number of the window of a packet with this traffic class, of a flow with this hash.
    ///
    /// # Errors
    /// That of the gate; nothing is used up then.
    #[inline]
    pub(crate) fn reserve(
        &mut self,
        flow: u64,
        traffic_class: u8,
        gate: &mut SequenceNumbers,
    ) -> Result<u64, SequenceError> {
        self.chosen = self.rules.window_of(flow, traffic_class);
        let next = self.rules.place_of(self.chosen).and_then(|place| self.next.get_mut(place));
        // The rules name no other window.
        let next = next.ok_or(SequenceError::Exhausted)?;
        let number = if *next < gate.next() { *next } else { gate.reserve()? };
        *next = number + 1;
        Ok(number)
    }

    /// The same for a run of at most [`BATCH_SIZE`] packets, each with its hash and its traffic class.
    /// `None` if there are more, or as soon as the gate refuses: the numbers of those before are used up
    /// then, and nobody's.
    #[inline(always)]
    pub(crate) fn reserve_run(
        &mut self,
        packets: impl ExactSizeIterator<Item = (u64, u8)>,
        gate: &mut SequenceNumbers,
        numbered: &mut Numbered,
    ) -> Option<()> {
        if packets.len() > BATCH_SIZE {
            return None;
        }
        let (rules, all) = (&self.rules, &mut self.next);
        let (first, mut open) = (rules.first_window(), gate.next());
        let places = numbered.windows.iter_mut().zip(&mut numbered.numbers);
        for ((window, number), (flow, traffic_class)) in places.zip(packets) {
            let place = rules.place_for(flow, traffic_class);
            let next = all.get_mut(usize::from(place))?;
            let mut own = *next;
            if own >= open {
                own = gate.reserve().ok()?;
                open = gate.next();
            }
            *next = own + 1;
            (*window, *number) = (first + place, own);
        }
        Some(())
    }

    /// A packet is cut: until the next call the packets that are numbered are its pieces, which do not show
    /// all of its flow. `None`: no more.
    pub(crate) fn keep_flow(&mut self, whole: Option<&[u8]>) {
        self.of_whole = whole.map(|packet| flow_hash(packet, self.keys));
    }

    /// The same for a piece that is numbered without the others, of whose flow the hash is known.
    pub(crate) fn keep_hash(&mut self, hash: Option<u64>) {
        self.of_whole = hash;
    }

    /// The hash of the flow of a packet.
    pub(crate) fn flow_of(&self, packet: &[u8]) -> u64 {
        self.of_whole.unwrap_or_else(|| flow_hash(packet, self.keys))
    }

    /// The window of the number that was [reserved](Self::reserve) last.
    pub(crate) fn chosen(&self) -> u16 {
        self.chosen
    }

    /// Whether the packet with this number in this window may be ours: it is no higher than what the window
    /// has used. No window of ours, nor of another worker, has gone further than the gate of all, nor did one
    /// that we had before.
    pub(crate) fn has_sent(&self, window: u16, number: u64, gate: &SequenceNumbers) -> bool {
        let next = self.rules.place_of(window).and_then(|place| self.next.get(place));
        number < next.copied().unwrap_or_else(|| gate.unused())
    }

    /// Nothing is sent any more, by no worker: somebody else has our Sender ID.
    pub(crate) fn set_taken(&mut self, gate: &SequenceNumbers) {
        self.is_taken = true;
        gate.close_gates();
    }

    #[inline]
    pub(crate) fn is_taken(&self, gate: &SequenceNumbers) -> bool {
        self.is_taken || gate.are_gates_closed()
    }

    /// The gate has left numbers out: none below it are used any more, nor recent.
    pub(crate) fn follow(&mut self, gate: &SequenceNumbers) {
        let first = gate.next();
        self.began_at = first;
        self.next.fill(first);
        self.marks.iter_mut().for_each(|(_, mark)| mark.fill(first));
    }

    /// Shows other threads the windows that packets have gone in.
    pub(crate) fn show(&self, seen: &mut WindowsSeen) {
        let used = (0..).zip(&self.next).filter(|(_, next)| **next > self.began_at);
        let tops = used.clone().map(|(place, next)| WindowTop {
            sender: self.rules.sender,
            window: self.rules.window_at(place),
            number: next - 1,
        });
        seen.set(used.count() as u64, self.rules.windows().into(), tops);
    }

    /// Some of the windows that packets have gone in, from a place among all on.
    pub(crate) fn page(&self, from: usize) -> WindowsPage {
        let top = |(next, place): (&u64, usize)| {
            (*next > self.began_at).then(|| WindowTop {
                sender: self.rules.sender,
                window: self.rules.window_at(place),
                number: next - 1,
            })
        };
        // The numbers first: where there are none, no place behind them is made.
        WindowsPage::of(from, self.next.get(from..).unwrap_or_default().iter().zip(from..).map(top))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::numbers::{Lease, NumberSource};
    use crate::vpe::VpeClasses;
    use std::collections::{HashMap, HashSet};
    use std::sync::Arc;

    fn flow(n: u64) -> u64 {
        n.wrapping_mul(0x9E37_79B9_7F4A_7C15)
    }

    fn rules() -> VpeRules {
        VpeRules::default().with_slots(VpeClasses::of_sets([&[46][..]]), 0, 8).unwrap()
    }

    #[test]
    fn each_window_counts_from_one_without_a_gap() {
        let mut gate = SequenceNumbers::of(NumberSource::Ephemeral, true).unwrap();
        let mut numbers = Numbers::new(rules(), &gate, 0, Moment::default());
        let mut expected = HashMap::new();
        for n in 0..5000 {
            let number = numbers.reserve(flow(n % 37), ((n % 2) as u8 * 46) << 2, &mut gate).unwrap();
            let next: &mut u64 = expected.entry(numbers.chosen()).or_insert(1);
            assert_eq!(number, *next, "window {}", numbers.chosen());
            *next += 1;
        }
        assert!(expected.len() > 8, "{}", expected.len());
    }

    #[test]
    fn a_run_is_numbered_as_its_packets_are_one_by_one() {
        let mut random = fastrand::Rng::with_seed(11);
        let gate = || SequenceNumbers::of(NumberSource::Ephemeral, true).unwrap();
        let (mut in_runs, mut singly) = (gate(), gate());
        let of = |gate: &SequenceNumbers| Numbers::new(rules(), gate, 0, Moment::default());
        let (mut runs, mut ones) = (of(&in_runs), of(&singly));
        for _ in 0..500 {
            let packets: Vec<_> = (0..random.usize(1..=BATCH_SIZE))
                .map(|_| (flow(random.u64(0..37)), [0, 46 << 2, 10 << 2][random.usize(0..3)]))
                .collect();
            let mut numbered = Numbered::new();
            runs.reserve_run(packets.iter().copied(), &mut in_runs, &mut numbered).unwrap();
            for (at, &(hash, class)) in packets.iter().enumerate() {
                let number = ones.reserve(hash, class, &mut singly).unwrap();
                assert_eq!((numbered.windows[at], numbered.numbers[at]), (ones.chosen(), number));
            }
        }
        assert_eq!(in_runs.next(), singly.next());
        let too_many = [(0, 0); BATCH_SIZE + 1].into_iter();
        assert_eq!(runs.reserve_run(too_many, &mut in_runs, &mut Numbered::new()), None);
        assert_eq!(in_runs.next(), singly.next(), "nothing is used up");
    }

    /// What a run had when the gate refused the rest of it is nobody's.
    #[test]
    fn a_run_that_is_refused_half_way_repeats_no_number() {
        let lease = Arc::new(Lease::until(40));
        let source = NumberSource::Leased { first: 1, lease: Arc::clone(&lease) };
        let mut gate = SequenceNumbers::of(source, true).unwrap();
        let mut numbers = Numbers::new(rules(), &gate, 0, Moment::default());
        let (mut seen, mut refused, mut random) = (HashSet::new(), 0, fastrand::Rng::with_seed(13));
        for _ in 0..2000 {
            let packets: Vec<(u64, u8)> =
                (0..random.usize(1..=BATCH_SIZE)).map(|_| (flow(random.u64(0..37)), 0)).collect();
            let mut numbered = Numbered::new();
            match numbers.reserve_run(packets.iter().copied(), &mut gate, &mut numbered) {
                Some(()) => {
                    let mut run = numbered.windows.into_iter().zip(numbered.numbers).take(packets.len());
                    assert!(run.clone().all(|(_, number)| number < lease.end()));
                    assert!(run.all(|numbered| seen.insert(numbered)), "a number twice");
                }
                None => refused += 1,
            }
            if random.u32(..4) == 0 {
                lease.grant(lease.end() + random.u64(1..20));
            }
        }
        assert!(refused > 100 && seen.len() > 1000, "{refused}, {}", seen.len());
    }

    /// Over restarts from what was leased, no window has a number twice: that would be a nonce twice.
    #[test]
    fn no_window_repeats_a_number_after_a_restart() {
        let mut seen = HashSet::new();
        let (mut first, mut random) = (1, fastrand::Rng::with_seed(7));
        for _ in 0..20 {
            let lease = Arc::new(Lease::until(first + 50));
            let numbers = NumberSource::Leased { first, lease: Arc::clone(&lease) };
            let mut gate = SequenceNumbers::of(numbers, true).unwrap();
            let mut windows = Numbers::new(rules(), &gate, 0, Moment::default());
            let mut refused = 0;
            for _ in 0..random.u32(0..3000) {
                match windows.reserve(flow(random.u64(0..64)), 0, &mut gate) {
                    Ok(number) => {
                        assert!(number < lease.end());
                        assert!(seen.insert((windows.chosen(), number)), "{number} twice");
                    }
                    Err(error) => {
                        assert_eq!(error, SequenceError::NotLeased);
                        refused += 1;
                    }
                }
                if lease.take_request() && random.bool() {
                    lease.grant(lease.end() + 50);
                }
            }
            assert!(refused < 3000);
            drop((gate, windows));
            // A clean end gives back what no window has; a crash gives back nothing.
            first = if random.bool() { lease.unused().unwrap_or(lease.end()) } else { lease.end() };
        }
        assert!(seen.len() > 1000, "{}", seen.len());
    }

    /// The same with several workers in any order, which come and go, and take each other's places: over all
    /// of them, crashes and restarts, no window has a number twice, and none that was not leased.
    #[test]
    fn no_window_of_any_worker_repeats_a_number_after_a_restart() {
        for seed in 1..=50 {
            let mut random = fastrand::Rng::with_seed(seed);
            let (mut seen, mut first) = (HashSet::new(), 1);
            for _ in 0..10 {
                let lease = Arc::new(Lease::until(first + 50));
                let source = NumberSource::Leased { first, lease: Arc::clone(&lease) }.gated(true);
                let join = |worker: usize| {
                    let mut gate = SequenceNumbers::of(source.of_worker(worker), true).unwrap();
                    assert!(
                        SequenceNumbers::of(source.of_worker(worker), true).is_none(),
                        "it has one owner"
                    );
                    let own = rules().of_worker(worker).unwrap();
                    let numbers = Numbers::new(own, &gate, random_seed(seed, worker), Moment::default());
                    let _ = gate.has_far(1);
                    (gate, numbers)
                };
                let mut workers: Vec<_> = (0..3).map(join).collect();
                let mut refused = 0;
                for _ in 0..random.u32(0..3000) {
                    let at = random.usize(0..3);
                    if random.u32(..500) == 0 {
                        // It ends, and another one takes its place.
                        let last = workers.remove(at);
                        drop(last);
                        workers.insert(at, join(at));
                    }
                    let (gate, numbers) = &mut workers[at];
                    // Some as a batch does, which has looked whether there are enough for all of it.
                    let count = if gate.has_far(5) { 5 } else { 1 };
                    for _ in 0..count {
                        match numbers.reserve(flow(random.u64(0..64)), 0, gate) {
                            Ok(number) => {
                                let chosen = numbers.chosen();
                                assert!(number < lease.end(), "seed {seed}: {number} is not leased");
                                assert!(
                                    seen.insert((chosen, number)),
                                    "seed {seed}: {chosen}, {number} twice"
                                );
                                assert_eq!(usize::from(chosen) / 16, at, "seed {seed}: another's window");
                            }
                            Err(error) => {
                                assert_eq!((error, count), (SequenceError::NotLeased, 1), "seed {seed}");
                                refused += 1;
                            }
                        }
                    }
                    if lease.take_request() && random.bool() {
                        lease.grant(lease.end() + random.u64(1..3000));
                    }
                }
                assert!(refused < 3000);
                drop((workers, source));
                first = if random.bool() { lease.unused().unwrap() } else { lease.end() };
            }
            assert!(seen.len() > 1000, "seed {seed}: {}", seen.len());
        }
    }

    fn random_seed(seed: u64, worker: usize) -> u64 {
        seed << 8 | worker as u64
    }

    /// `docs/VPE.md`: after its last number a window sends no more; others do.
    #[test]
    fn a_window_ends_where_the_numbers_end_and_the_others_catch_up() {
        let last = u64::MAX - 1;
        let lease = Arc::new(Lease::until(u64::MAX));
        let mut gate = SequenceNumbers::of(NumberSource::Leased { first: last - 1, lease }, true).unwrap();
        let mut numbers = Numbers::new(VpeRules::default(), &gate, 0, Moment::default());
        let (one, other) = (flow(1), flow(4));
        assert_eq!(numbers.reserve(one, 0, &mut gate), Ok(last - 1));
        assert_eq!(numbers.reserve(one, 0, &mut gate), Ok(last));
        let first = numbers.chosen();
        assert_eq!(numbers.reserve(one, 0, &mut gate), Err(SequenceError::Exhausted));
        assert_eq!(numbers.reserve(other, 0, &mut gate), Ok(last - 1));
        assert_ne!(numbers.chosen(), first);
    }

    #[test]
    fn windows_follow_a_gate_that_leaves_numbers_out() {
        let mut gate = SequenceNumbers::of(NumberSource::Ephemeral, true).unwrap();
        let mut numbers = Numbers::new(VpeRules::default(), &gate, 0, Moment::default());
        assert_eq!(numbers.reserve(flow(1), 0, &mut gate), Ok(1));
        assert!(gate.advance(1000));
        numbers.follow(&gate);
        for n in 0..100 {
            assert!(numbers.reserve(flow(n), 0, &mut gate).unwrap() > 1000);
        }
    }

    /// Flows have other windows after the time that is configured, and numbers go on in each.
    #[test]
    fn flows_change_their_windows_from_time_to_time_and_no_number_comes_twice() {
        let at = |seconds| Moment(Duration::from_secs(seconds));
        let mut gate = SequenceNumbers::of(NumberSource::Ephemeral, true).unwrap();
        let rules = VpeRules::default().with_rehash(60);
        let mut numbers = Numbers::new(rules, &gate, 7, at(0));
        let keys = |numbers: &mut Numbers, seconds| {
            numbers.age(at(seconds));
            numbers.keys
        };
        let first = keys(&mut numbers, 59);
        let second = keys(&mut numbers, 60);
        assert_ne!(first, second);
        assert_eq!(keys(&mut numbers, 119), second);
        assert_ne!(keys(&mut numbers, 120), second);
        let packet: Vec<u8> = [[0x45, 0, 0, 28, 0, 0, 0, 0, 64, 17, 0, 0].as_slice(), &[9; 16]].concat();
        let (mut seen, mut windows) = (HashSet::new(), HashSet::new());
        for second in 0..3600 {
            numbers.age(at(121 + second));
            let hash = crate::vpe::flow_hash(&packet, numbers.keys);
            let number = numbers.reserve(hash, 0, &mut gate).unwrap();
            windows.insert(numbers.chosen());
            assert!(seen.insert((numbers.chosen(), number)));
        }
        assert_eq!(windows.len(), 8, "one flow has had all of them in an hour");
        let mut never = Numbers::new(VpeRules::default(), &gate, 7, at(0));
        assert_eq!(keys(&mut never, 1 << 30), keys(&mut never, 0), "off unless configured");
    }
}
