//! Many policies with the same two prefixes, by protocol and by ports or message type.
//!
//! ```text
//!   protocol ─► values shown: trie of local values ─► trie of remote values ─► policies, in order
//!            └► values hidden or absent: policies that ask for none, policies that ask for some, in order
//! ```
//!
//! Ranges are made of prefixes of 16 bits, at most 30 of them, so that a policy has at most 900 pairs. A
//! lookup visits the nodes on the path of two values, in the tries of any protocol and of the packet's: at
//! most 17 local prefixes, and below each 17 remote ones, however many policies there are.

use super::leaf::Entry;
use super::search::Search;
use super::selector::{Fit, PortRange, Protocol};
use super::trie::{Bits, Trie};
use hashbrown::HashMap;
use std::collections::BTreeSet;

/// Policies, in order.
type List = BTreeSet<Entry>;

/// The policies of a leaf.
#[derive(Debug, Clone, Default)]
pub(super) struct PortIndex {
    all: List,
    /// Those that ask for a protocol: they may match a packet that hides its own.
    of_protocols: List,
    groups: HashMap<Protocol, Group, foldhash::fast::RandomState>,
}

/// Policies that ask for the same protocol.
#[derive(Debug, Clone, Default)]
struct Group {
    /// Those that match packets which show their values.
    shown: Trie<Trie<List>>,
    /// Those that match whatever the values are, or match only where there are none.
    asking_none: List,
    /// Those that ask for values.
    asking_some: List,
}

impl PortRange {
    /// The prefixes of 16 bits that make it up; none for OPAQUE, which no value matches.
    fn prefixes(self) -> impl Iterator<Item = Bits> {
        let last = u32::from(self.last);
        let mut next = Some(u32::from(self.first)).filter(|first| *first <= last);
        std::iter::from_fn(move || {
            let first = next?;
            let host_bits = first.trailing_zeros().min((last - first + 1).ilog2()).min(16);
            next = Some(first + (1 << host_bits)).filter(|next| *next <= last);
            Some(Bits::of_value(u16::try_from(first).ok()?, u8::try_from(16 - host_bits).ok()?))
        })
    }

    /// How many prefixes those are, and 1 for OPAQUE.
    pub(super) fn count_prefixes(self) -> usize {
        self.prefixes().count().max(1)
    }
}

impl Group {
    fn is_empty(&self) -> bool {
        self.asking_none.is_empty() && self.asking_some.is_empty()
    }

    fn list_of(&mut self, entry: &Entry) -> &mut List {
        match [entry.layer.local, entry.layer.remote].iter().any(|range| range.names_values()) {
            true => &mut self.asking_some,
            false => &mut self.asking_none,
        }
    }

    fn insert(&mut self, entry: Entry) {
        self.list_of(&entry).insert(entry);
        for local in entry.layer.local.prefixes() {
            for remote in entry.layer.remote.prefixes() {
                self.shown.value_or_default(local).value_or_default(remote).insert(entry);
            }
        }
    }

    fn remove(&mut self, entry: &Entry) {
        self.list_of(entry).remove(entry);
        for local in entry.layer.local.prefixes() {
            let Some(remotes) = self.shown.get_mut(local) else { continue };
            for remote in entry.layer.remote.prefixes() {
                let list = remotes.get_mut(remote);
                if list.is_some_and(|list| list.remove(entry) && list.is_empty()) {
                    remotes.remove(remote);
                }
            }
            if remotes.is_empty() {
                self.shown.remove(local);
            }
        }
    }

    /// Notes the first policies that fit a flow with this protocol, or that hides it.
    fn search(&self, protocol: Protocol, search: &mut Search<'_>) {
        let (values, is_hidden) = match protocol {
            Protocol::Is(_) => search.flow.values(),
            Protocol::Any | Protocol::Opaque => search.flow.ports(),
        };
        let Some((local, remote)) = values else {
            note_first(&self.asking_none, Fit::Sure, search);
            if is_hidden {
                note_first(&self.asking_some, Fit::Perhaps, search);
            }
            return;
        };
        let mut nodes = 0;
        nodes += self.shown.visit(Bits::of_value(local, 16).bits, |_, remotes| {
            nodes += remotes.visit(Bits::of_value(remote, 16).bits, |_, list| {
                note_first(list, Fit::Sure, search);
            });
        });
        search.cost.nodes += u32::try_from(nodes).unwrap_or(u32::MAX);
    }
}

fn note_first(list: &List, fit: Fit, search: &mut Search<'_>) {
    if let Some(entry) = list.first() {
        search.note(fit, entry.hit());
    }
}

impl PortIndex {
    pub(super) fn len(&self) -> usize {
        self.all.len()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = Entry> + '_ {
        self.all.iter().copied()
    }

    pub(super) fn first(&self) -> Option<Entry> {
        self.all.first().copied()
    }

    pub(super) fn insert(&mut self, entry: Entry) {
        self.all.insert(entry);
        if matches!(entry.layer.protocol, Protocol::Is(_)) {
            self.of_protocols.insert(entry);
        }
        self.groups.entry(entry.layer.protocol).or_default().insert(entry);
    }

    pub(super) fn remove(&mut self, entry: &Entry) {
        self.all.remove(entry);
        self.of_protocols.remove(entry);
        if let Some(group) = self.groups.get_mut(&entry.layer.protocol) {
            group.remove(entry);
            if group.is_empty() {
                self.groups.remove(&entry.layer.protocol);
            }
        }
    }

    /// Notes the first policies that fit.
    pub(super) fn search(&self, search: &mut Search<'_>) {
        let shown = search.flow.protocol();
        for protocol in [Protocol::Any, shown.map_or(Protocol::Opaque, Protocol::Is)] {
            if let Some(group) = self.groups.get(&protocol) {
                group.search(protocol, search);
            }
        }
        if shown.is_none() {
            note_first(&self.of_protocols, Fit::Perhaps, search);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The bound that the SPD's limit on a policy relies on.
    #[test]
    fn the_prefixes_of_a_range_make_it_up_and_are_at_most_30() {
        for (first, last, count) in
            [(0, u16::MAX, 1), (1, u16::MAX - 1, 30), (80, 80, 1), (1024, u16::MAX, 6), (u16::MAX, 0, 0)]
        {
            let range = PortRange { first, last };
            let prefixes: Vec<Bits> = range.prefixes().collect();
            assert_eq!(prefixes.len(), count, "{range}");
            for value in 0..=u16::MAX {
                let held = prefixes.iter().filter(|prefix| {
                    let unused = 128 - u32::from(prefix.length);
                    unused == 128 || (Bits::of_value(value, 16).bits ^ prefix.bits) >> unused == 0
                });
                let is_in = first <= value && value <= last;
                assert_eq!(held.count(), usize::from(is_in), "{value} in {range}");
            }
        }
    }
}
