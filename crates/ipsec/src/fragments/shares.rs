//! How many incomplete datagrams each owner has, such as a pair of addresses, and which one makes room when
//! there is none: the oldest of those whose owner has the most.
//!
//! So an owner loses a datagram only if no other one has more than it, which means that it has at least its
//! `1/n` of the room when `n` use it. Among equals the oldest goes: its other fragments should have come long
//! ago.

use hashbrown::HashMap;
use std::hash::Hash;
use std::net::IpAddr;

/// Source and destination.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Pair {
    pub(super) source: IpAddr,
    pub(super) destination: IpAddr,
}

/// What is known of an owner that has incomplete datagrams.
#[derive(Debug)]
struct Share<K> {
    owner: K,
    /// Incomplete datagrams.
    datagrams: u16,
    /// Datagrams that have begun since the owner had none incomplete, complete ones included; modulo 2^32.
    begun: u32,
}

/// Where an owner's share is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ShareIndex(u16);

/// The shares of all owners that have incomplete datagrams.
#[derive(Debug)]
pub(super) struct Shares<K> {
    /// A share without datagrams is free.
    all: Vec<Share<K>>,
    free: Vec<ShareIndex>,
    index: HashMap<K, ShareIndex, foldhash::fast::RandomState>,
}

impl<K> Default for Shares<K> {
    fn default() -> Self {
        Self { all: Vec::new(), free: Vec::new(), index: HashMap::default() }
    }
}

impl<K: Copy + Eq + Hash> Shares<K> {
    /// Makes room for this many owners. See `Table::reserve`.
    pub(super) fn reserve(&mut self, owners: usize) {
        self.all.reserve_exact(owners);
        self.free.reserve_exact(owners);
        self.index.reserve(2 * owners);
    }

    /// Counts a datagram of an owner. Returns its share, and its number among the owner's datagrams.
    pub(super) fn begin(&mut self, owner: K) -> (ShareIndex, u32) {
        let known = self.index.get(&owner).copied();
        let at = known.unwrap_or_else(|| self.add(owner));
        let share = &mut self.all[usize::from(at.0)];
        share.datagrams += 1;
        share.begun = share.begun.wrapping_add(1);
        (at, share.begun)
    }

    fn add(&mut self, owner: K) -> ShareIndex {
        let share = Share { owner, datagrams: 0, begun: 0 };
        let at = match self.free.pop() {
            Some(at) => {
                self.all[usize::from(at.0)] = share;
                at
            }
            None => {
                // An owner has a datagram, of which there are fewer.
                let at = u16::try_from(self.all.len()).map(ShareIndex);
                self.all.push(share);
                at.unwrap_or(ShareIndex(u16::MAX))
            }
        };
        self.index.insert(owner, at);
        at
    }

    /// A datagram of this share is complete or dropped.
    pub(super) fn end(&mut self, at: ShareIndex) {
        let share = &mut self.all[usize::from(at.0)];
        share.datagrams -= 1;
        if share.datagrams == 0 {
            let owner = share.owner;
            self.index.remove(&owner);
            self.free.push(at);
        }
    }

    /// How many of the owner's datagrams have begun after the one with this number.
    pub(super) fn begun_since(&self, at: ShareIndex, number: u32) -> u32 {
        self.all[usize::from(at.0)].begun.wrapping_sub(number)
    }

    /// Incomplete datagrams of an owner.
    pub(super) fn weight(&self, at: ShareIndex) -> u16 {
        self.all[usize::from(at.0)].datagrams
    }

    /// Which of these datagrams, each given by its share and its age's rank, makes room: the oldest of those
    /// whose owner has the most.
    pub(super) fn victim(&self, datagrams: impl Iterator<Item = (ShareIndex, u64)>) -> Option<usize> {
        datagrams
            .enumerate()
            .max_by_key(|(_, (share, order))| (self.weight(*share), std::cmp::Reverse(*order)))
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
