//! Which lengths the two prefixes of policies have that may hold two addresses.
//!
//! Each local prefix knows the lengths of the remote prefixes that it is paired with. Those on the path of
//! the local address name a few pairs of lengths. If they name many, the remote prefixes on the path of the
//! remote address leave few of them.

use super::trie::{Bits, Trie};
use arrayvec::ArrayVec;

/// Up to this many pairs are searched without asking for the remote address.
const FEW: usize = 6;

/// The pairs of prefixes of a space.
#[derive(Debug, Clone, Default)]
pub(super) struct PrefixLengths {
    locals: Trie<Partners>,
    /// How many pairs have this remote prefix.
    remotes: Trie<u32>,
}

/// The lengths of the remote prefixes that a local one is paired with, and how many pairs have each.
#[derive(Debug, Clone, Default)]
struct Partners(Vec<(u8, u32)>);

/// A set of lengths, 0 to 128.
#[derive(Debug, Clone, Copy, Default)]
struct LengthSet {
    has_zero: bool,
    others: u128,
}

impl LengthSet {
    fn insert(&mut self, length: u8) {
        match length.checked_sub(1) {
            Some(bit) => self.others |= 1 << bit,
            None => self.has_zero = true,
        }
    }

    fn contains(self, length: u8) -> bool {
        length.checked_sub(1).map_or(self.has_zero, |bit| self.others >> bit & 1 != 0)
    }
}

impl PrefixLengths {
    /// Adds a pair of prefixes.
    pub(super) fn insert(&mut self, local: Bits, remote: Bits) {
        let Partners(partners) = self.locals.value_or_default(local);
        match partners.iter_mut().find(|(length, _)| *length == remote.length) {
            Some((_, pairs)) => *pairs += 1,
            None => partners.push((remote.length, 1)),
        }
        *self.remotes.value_or_default(remote) += 1;
    }

    /// Removes a pair, which was added before.
    pub(super) fn remove(&mut self, local: Bits, remote: Bits) {
        if let Some(Partners(partners)) = self.locals.get_mut(local) {
            if let Some((_, pairs)) = partners.iter_mut().find(|(length, _)| *length == remote.length) {
                *pairs -= 1;
            }
            partners.retain(|(_, pairs)| *pairs > 0);
            if partners.is_empty() {
                self.locals.remove(local);
            }
        }
        if let Some(pairs) = self.remotes.get_mut(remote) {
            *pairs -= 1;
            if *pairs == 0 {
                self.remotes.remove(remote);
            }
        }
    }

    /// Calls `visit` with each pair of lengths that two prefixes around these addresses may have. Returns how
    /// many nodes of tries were looked at.
    pub(super) fn visit(&self, local: u128, remote: u128, mut visit: impl FnMut(u8, u8)) -> usize {
        let mut path: ArrayVec<(u8, &Partners), 129> = ArrayVec::new();
        let mut nodes = self.locals.visit(local, |length, partners| path.push((length, partners)));
        let mut remotes = LengthSet { has_zero: true, others: u128::MAX };
        if path.iter().map(|(_, partners)| partners.0.len()).sum::<usize>() > FEW {
            remotes = LengthSet::default();
            nodes += self.remotes.visit(remote, |length, _| remotes.insert(length));
        }
        for (local, Partners(partners)) in path {
            for (remote, _) in partners.iter().filter(|(length, _)| remotes.contains(*length)) {
                visit(local, *remote);
            }
        }
        nodes
    }
}
