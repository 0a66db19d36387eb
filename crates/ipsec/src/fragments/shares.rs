//! How many incomplete datagrams each pair of addresses has, and which one makes room when there is none: the
//! oldest of those whose pair has the most.
//!
//! So a pair loses a datagram only if no other pair has more than it, which means that it has at least its
//! `1/n` of the room when `n` pairs use it. Among equals the oldest goes: its other fragments should have
//! come long ago.

use hashbrown::HashMap;
use std::net::IpAddr;

/// Source and destination.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Pair {
    pub(super) source: IpAddr,
    pub(super) destination: IpAddr,
}

/// What is known of a pair that has incomplete datagrams.
#[derive(Debug)]
struct Share {
    pair: Pair,
    /// Incomplete datagrams.
    datagrams: u16,
    /// Datagrams that have begun since the pair had none incomplete, complete ones included; modulo 2^32.
    begun: u32,
}

/// Where a pair's share is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ShareIndex(u16);

/// The shares of all pairs that have incomplete datagrams.
#[derive(Debug, Default)]
pub(super) struct Shares {
    /// A share without datagrams is free.
    all: Vec<Share>,
    free: Vec<ShareIndex>,
    index: HashMap<Pair, ShareIndex, foldhash::fast::RandomState>,
}

impl Shares {
    /// Makes room for this many pairs. See `Table::reserve`.
    pub(super) fn reserve(&mut self, pairs: usize) {
        self.all.reserve_exact(pairs);
        self.free.reserve_exact(pairs);
        self.index.reserve(2 * pairs);
    }

    /// Counts a datagram of a pair. Returns its share, and its number among the pair's datagrams.
    pub(super) fn begin(&mut self, pair: Pair) -> (ShareIndex, u32) {
        let known = self.index.get(&pair).copied();
        let at = known.unwrap_or_else(|| self.add(pair));
        let share = &mut self.all[usize::from(at.0)];
        share.datagrams += 1;
        share.begun = share.begun.wrapping_add(1);
        (at, share.begun)
    }

    fn add(&mut self, pair: Pair) -> ShareIndex {
        let share = Share { pair, datagrams: 0, begun: 0 };
        let at = match self.free.pop() {
            Some(at) => {
                self.all[usize::from(at.0)] = share;
                at
            }
            None => {
                // A pair has a datagram, of which there are fewer.
                let at = u16::try_from(self.all.len()).map(ShareIndex);
                self.all.push(share);
                at.unwrap_or(ShareIndex(u16::MAX))
            }
        };
        self.index.insert(pair, at);
        at
    }

    /// A datagram of this share is complete or dropped.
    pub(super) fn end(&mut self, at: ShareIndex) {
        let share = &mut self.all[usize::from(at.0)];
        share.datagrams -= 1;
        if share.datagrams == 0 {
            let pair = share.pair;
            self.index.remove(&pair);
            self.free.push(at);
        }
    }

    /// How many of the pair's datagrams have begun after the one with this number.
    pub(super) fn begun_since(&self, at: ShareIndex, number: u32) -> u32 {
        self.all[usize::from(at.0)].begun.wrapping_sub(number)
    }

    /// Which of these datagrams, each given by its share and its age's rank, makes room: the oldest of those
    /// whose pair has the most.
    pub(super) fn victim(&self, datagrams: impl Iterator<Item = (ShareIndex, u64)>) -> Option<usize> {
        let weight = |share: ShareIndex| self.all[usize::from(share.0)].datagrams;
        datagrams
            .enumerate()
            .max_by_key(|(_, (share, order))| (weight(*share), std::cmp::Reverse(*order)))
            .map(|(at, _)| at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair(number: u8) -> Pair {
        Pair {
            source: IpAddr::V4([192, 0, 2, number].into()),
            destination: IpAddr::V4([198, 51, 100, 1].into()),
        }
    }

    #[test]
    fn the_oldest_of_those_who_have_the_most_makes_room() {
        let mut shares = Shares::default();
        let mut datagrams = Vec::new();
        for (order, number) in (1..).zip([7, 1, 2, 2, 1, 2, 3]) {
            datagrams.push((shares.begin(pair(number)).0, order));
        }
        let mut ended = Vec::new();
        while let Some(victim) = shares.victim(datagrams.iter().copied()) {
            let (share, order) = datagrams.swap_remove(victim);
            shares.end(share);
            ended.push(order);
        }
        // Of 2, which has three; then 1 and 2 have two each, and 1 has the oldest; then 2; then all have one.
        assert_eq!(ended, [3, 2, 4, 1, 5, 6, 7]);
        assert!(shares.index.is_empty() && shares.free.len() == 4);
    }

    #[test]
    fn datagrams_of_a_pair_are_numbered_while_any_is_incomplete() {
        let mut shares = Shares::default();
        let (left, number) = shares.begin(pair(1));
        for later in 1..=5 {
            let (share, _) = shares.begin(pair(1));
            shares.begin(pair(2));
            shares.end(share);
            assert_eq!(shares.begun_since(left, number), later);
        }
        shares.end(left);
        assert_eq!(shares.begin(pair(1)).1, 1, "a new count");
    }
}
