//! The policies with the same two prefixes: a leaf of the SPD's index.

use super::answer::Answer;
use super::order::Rank;
use super::port_index::PortIndex;
use super::search::{Hit, Search};
use super::selector::NextLayer;

/// More policies than this are indexed by protocol and ports: fewer are compared one by one sooner.
const COMPARED: usize = 8;
/// An index with no more policies than this becomes a list again.
const FEW: usize = 4;

/// A policy in a leaf: what it asks of the next layer, and its answer if that is nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Entry {
    pub(super) rank: Rank,
    /// The policy's slot.
    pub(super) policy: u32,
    pub(super) layer: NextLayer,
    pub(super) answer: Answer,
}

impl Entry {
    pub(super) fn hit(&self) -> Hit {
        Hit { rank: self.rank, policy: self.policy, names_opaque: self.layer.names_opaque() }
    }
}

/// The policies for addresses with two prefixes, in order.
#[derive(Debug, Clone)]
pub(super) struct Leaf {
    /// The lowest address of each prefix: keys of IPv6 are hashes, and do not tell.
    pub(super) networks: (u128, u128),
    entries: Entries,
}

#[derive(Debug, Clone)]
enum Entries {
    /// In the order of their ranks.
    Few(Vec<Entry>),
    Many(Box<PortIndex>),
}

impl Leaf {
    pub(super) fn new(networks: (u128, u128)) -> Self {
        Self { networks, entries: Entries::Few(Vec::new()) }
    }

    /// The first policy.
    pub(super) fn first(&self) -> Option<Entry> {
        match &self.entries {
            Entries::Few(list) => list.first().copied(),
            Entries::Many(index) => index.first(),
        }
    }

    /// Adds an entry, which is not there yet.
    pub(super) fn insert(&mut self, entry: Entry) {
        match &mut self.entries {
            Entries::Few(list) if list.len() < COMPARED => {
                let at = list.partition_point(|other| *other < entry);
                list.insert(at, entry);
            }
            Entries::Few(list) => {
                let mut index = PortIndex::default();
                list.drain(..).chain([entry]).for_each(|entry| index.insert(entry));
                self.entries = Entries::Many(Box::new(index));
            }
            Entries::Many(index) => index.insert(entry),
        }
    }

    /// Removes an entry.
    pub(super) fn remove(&mut self, entry: &Entry) {
        match &mut self.entries {
            Entries::Few(list) => list.retain(|other| other != entry),
            Entries::Many(index) => {
                index.remove(entry);
                if index.len() <= FEW {
                    self.entries = Entries::Few(index.iter().collect());
                }
            }
        }
    }

    /// Notes the first policies that fit.
    #[inline]
    pub(super) fn search(&self, search: &mut Search<'_>) {
        match &self.entries {
            Entries::Few(list) => {
                for entry in list {
                    if entry.rank >= search.limit() {
                        return;
                    }
                    search.cost.policies += 1;
                    search.note(entry.layer.fit(search.flow), entry.hit());
                }
            }
            Entries::Many(index) => index.search(search),
        }
    }
}
