//! Values of nested prefixes: a binary trie without the nodes that would only lead on (Morrison 1968,
//! PATRICIA).
//!
//! ```text
//!   values of 10.0.0.0/8, 10.1.0.0/16 and 10.3.0.0/16:
//!
//!     10.0.0.0/8 ─► 10.0.0.0/14 (branches, no value) ─┬─► 10.1.0.0/16
//!                                                     └─► 10.3.0.0/16
//! ```
//!
//! The path of an address passes all prefixes that hold it, the widest first, and as many branches as it
//! takes to tell its neighbours apart: of n random prefixes about the logarithm of n. Bits of addresses,
//! ports and message types are written from the highest bit of a number on.

use super::slab::Slab;

/// No node.
const NONE: u32 = u32::MAX;

/// Prefixes and their values.
#[derive(Debug, Clone)]
pub(super) struct Trie<V> {
    nodes: Slab<Node<V>>,
    root: u32,
}

#[derive(Debug, Clone)]
struct Node<V> {
    bits: u128,
    children: [u32; 2],
    length: u8,
    /// `None` if it only branches.
    value: Option<V>,
}

/// The first bits of a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Bits {
    /// Zero after the first `length` bits.
    pub(super) bits: u128,
    pub(super) length: u8,
}

impl Bits {
    /// The first bits of a port or message type.
    pub(super) fn of_value(value: u16, length: u8) -> Self {
        Self { bits: u128::from(value) << 112, length }
    }

    /// The bits that both begin with.
    fn common(self, other: Self) -> Self {
        let same = (self.bits ^ other.bits).leading_zeros();
        let length = self.length.min(other.length).min(u8::try_from(same).unwrap_or(128));
        Self {
            bits: if length == 0 { 0 } else { self.bits & u128::MAX << (128 - u32::from(length)) },
            length,
        }
    }
}

/// The bit after the first `length`.
#[inline(always)]
fn branch(bits: u128, length: u8) -> usize {
    usize::from(bits & 1 << 127 >> length != 0)
}

#[inline(always)]
fn begins_with(bits: u128, prefix: u128, length: u8) -> bool {
    length == 0 || (bits ^ prefix) >> (128 - u32::from(length)) == 0
}

impl<V> Default for Trie<V> {
    fn default() -> Self {
        Self { nodes: Slab::default(), root: NONE }
    }
}

impl<V> Trie<V> {
    /// Whether it has no value.
    pub(super) fn is_empty(&self) -> bool {
        self.root == NONE
    }

    /// Calls `visit` with the length and value of each prefix that `bits` begin with, the shortest first.
    /// Returns how many nodes were looked at.
    #[inline]
    pub(super) fn visit<'a>(&'a self, bits: u128, mut visit: impl FnMut(u8, &'a V)) -> usize {
        let (mut at, mut nodes) = (self.root, 0);
        while let Some(node) = self.nodes.get(at) {
            nodes += 1;
            if !begins_with(bits, node.bits, node.length) {
                break;
            }
            if let Some(value) = &node.value {
                visit(node.length, value);
            }
            if node.length == 128 {
                break;
            }
            at = node.children[branch(bits, node.length)];
        }
        nodes
    }

    fn node(&self, at: u32) -> Option<&Node<V>> {
        self.nodes.get(at)
    }

    fn leaf(&mut self, prefix: Bits, value: Option<V>) -> u32 {
        self.nodes.insert(Node { bits: prefix.bits, children: [NONE; 2], length: prefix.length, value })
    }

    /// Makes `to` the child of `parent` on the way to `bits`, or the root.
    fn link(&mut self, parent: u32, bits: u128, to: u32) {
        match self.nodes.get_mut(parent) {
            Some(node) => node.children[branch(bits, node.length)] = to,
            None => self.root = to,
        }
    }

    /// The node of a prefix, or where it would be: the last node that the prefix begins with, and that node's
    /// child.
    fn find(&self, prefix: Bits) -> (u32, u32) {
        let (mut parent, mut at) = (NONE, self.root);
        while let Some(node) = self.node(at) {
            let leads_there = node.length < prefix.length && begins_with(prefix.bits, node.bits, node.length);
            if !leads_there {
                break;
            }
            (parent, at) = (at, node.children[branch(prefix.bits, node.length)]);
        }
        (parent, at)
    }

    /// The value of a prefix, made if there is none.
    pub(super) fn value_or_default(&mut self, prefix: Bits) -> &mut V
    where
        V: Default,
    {
        let at = self.node_or_new(prefix);
        let node = self.nodes.get_mut(at).unwrap_or_else(|| unreachable!("the node was just found or made"));
        node.value.get_or_insert_with(V::default)
    }

    fn node_or_new(&mut self, prefix: Bits) -> u32 {
        let (parent, at) = self.find(prefix);
        let Some(node) = self.node(at) else {
            let leaf = self.leaf(prefix, None);
            self.link(parent, prefix.bits, leaf);
            return leaf;
        };
        let there = Bits { bits: node.bits, length: node.length };
        let common = prefix.common(there);
        if common == there {
            // The search ends at the prefix itself, unless `there` is longer or elsewhere.
            return at;
        }
        let new = self.leaf(prefix, None);
        let above = if common == prefix { new } else { self.leaf(common, None) };
        if above != new {
            self.link(above, prefix.bits, new);
        }
        self.link(above, there.bits, at);
        self.link(parent, prefix.bits, above);
        new
    }

    /// The value of a prefix.
    pub(super) fn get_mut(&mut self, prefix: Bits) -> Option<&mut V> {
        let (_, at) = self.find(prefix);
        let node = self.nodes.get_mut(at)?;
        let is_there = node.length == prefix.length && node.bits == prefix.bits;
        node.value.as_mut().filter(|_| is_there)
    }

    /// Removes a prefix.
    pub(super) fn remove(&mut self, prefix: Bits) -> Option<V> {
        let (parent, at) = self.find(prefix);
        let node = self.nodes.get_mut(at)?;
        if node.length != prefix.length || node.bits != prefix.bits {
            return None;
        }
        let value = node.value.take()?;
        self.tidy(parent, at, prefix.bits);
        if self.node(parent).is_some_and(|node| node.value.is_none()) {
            let (above, _) = self.find(Bits { length: self.node(parent)?.length, ..prefix });
            self.tidy(above, parent, prefix.bits);
        }
        Some(value)
    }

    /// Takes a node without a value out of the trie, unless it branches.
    fn tidy(&mut self, parent: u32, at: u32, bits: u128) {
        let Some(node) = self.node(at) else { return };
        let child = match node.children {
            [NONE, child] | [child, NONE] => child,
            _ => return,
        };
        self.nodes.remove(at);
        self.link(parent, bits, child);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    /// Few distinct bits in three places, so that prefixes nest, branch early, and branch late.
    fn bits() -> impl Strategy<Value = u128> {
        (0..4u128, 0..4u128, 0..4u128).prop_map(|(a, b, c)| a << 126 | b << 64 | c)
    }

    fn prefix() -> impl Strategy<Value = Bits> {
        let lengths =
            prop_oneof![Just(0u8), Just(1), Just(2), Just(63), Just(64), Just(65), Just(127), Just(128)];
        (bits(), lengths).prop_map(|(bits, length)| Bits { bits, length: 128 }.common(Bits { bits, length }))
    }

    proptest! {
        #[test]
        fn a_path_passes_what_a_scan_of_all_prefixes_finds(
            changes in prop::collection::vec((prefix(), any::<bool>(), any::<u16>()), 0..120),
            addresses in prop::collection::vec(bits(), 20),
        ) {
            let (mut trie, mut model): (Trie<u16>, BTreeMap<(u8, u128), u16>) = Default::default();
            for (prefix, inserts, value) in changes {
                if inserts {
                    *trie.value_or_default(prefix) = value;
                    model.insert((prefix.length, prefix.bits), value);
                } else {
                    prop_assert_eq!(trie.remove(prefix), model.remove(&(prefix.length, prefix.bits)));
                }
                prop_assert_eq!(trie.get_mut(prefix).copied(), model.get(&(prefix.length, prefix.bits)).copied());
                // Every node has a value or branches.
                prop_assert!(trie.nodes.len() <= (2 * model.len()).max(1) && trie.is_empty() == model.is_empty());
                for address in &addresses {
                    let mut found = Vec::new();
                    let nodes = trie.visit(*address, |length, value| found.push((length, *value)));
                    let expected: Vec<(u8, u16)> = model
                        .iter()
                        .filter(|((length, bits), _)| begins_with(*address, *bits, *length))
                        .map(|((length, _), value)| (*length, *value))
                        .collect();
                    prop_assert_eq!(found, expected);
                    prop_assert!(nodes <= 129);
                }
            }
        }
    }

    #[test]
    fn the_path_among_10_000_random_prefixes_is_short() {
        let mut random = fastrand::Rng::with_seed(1);
        let mut trie: Trie<()> = Trie::default();
        for _ in 0..10_000 {
            let length = random.u8(8..=32);
            let bits = u128::from(random.u32(..)) << 96;
            trie.value_or_default(Bits { bits, length: 128 }.common(Bits { bits, length }));
        }
        let nodes: usize = (0..1000).map(|_| trie.visit(u128::from(random.u32(..)) << 96, |_, ()| {})).sum();
        assert!(nodes < 20 * 1000, "{nodes} nodes on 1000 paths");
    }
}
