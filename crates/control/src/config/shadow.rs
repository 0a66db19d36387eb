//! Finds selectors that an earlier one covers, without comparing all pairs.
//!
//! Rules are indexed by their pair of prefixes, of a range the longest that holds all of it. The prefixes of
//! a rule that covers another are the other's, shortened. So for each pair of lengths in use, the other's
//! prefixes are shortened to them and looked up. Configurations use few lengths, so that the work grows with
//! the number of rules and not with its square. Beyond the bounds below, a covering rule may be missed; so is
//! one that is covered by several others together.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::hash::Hash;
use testudo_ipsec::{Directions, Prefix, Selector};
use testudo_wire::ip::Version;

/// Pairs of lengths that are looked up at most.
const MAX_LENGTHS: usize = 256;
/// Rules with the same prefixes (and different ports or protocols) that are compared at most.
const MAX_COMPARED: usize = 256;

/// Version and length; `None` is `any`.
type Length = Option<(Version, u8)>;

/// One selector of an entry of the SPD.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Rule {
    pub(super) selector: Selector,
    pub(super) directions: Directions,
}

impl Rule {
    fn covers(&self, other: &Rule) -> bool {
        self.directions.cover(other.directions) && self.selector.covers(&other.selector)
    }
}

/// The rules of earlier entries, each with the number of its entry.
#[derive(Default)]
pub(super) struct Shadows {
    exact: HashMap<Rule, usize>,
    by_prefixes: HashMap<(Prefix, Prefix), Vec<(Rule, usize)>>,
    lengths: Vec<(Length, Length)>,
    known_lengths: HashSet<(Length, Length)>,
}

impl Shadows {
    /// An earlier entry that covers a rule of this one, if earlier entries cover all of its rules. Otherwise
    /// they are added for later calls.
    pub(super) fn cover_or_add(
        &mut self,
        entry: usize,
        rules: impl ExactSizeIterator<Item = Rule>,
    ) -> Option<usize> {
        let mut covering = None;
        let mut open = Vec::new();
        for rule in rules {
            match self.exact.get(&rule).copied().or_else(|| self.cover(&rule)) {
                Some(earlier) => covering = covering.or(Some(earlier)),
                None => open.push(rule),
            }
        }
        if open.is_empty() {
            return covering;
        }
        open.into_iter().for_each(|rule| self.add(entry, rule));
        None
    }

    fn cover(&self, rule: &Rule) -> Option<usize> {
        self.lengths.iter().find_map(|(local, remote)| {
            let ends = (rule.selector.local.covering_prefix(), rule.selector.remote.covering_prefix());
            let prefixes = (widened(ends.0, *local)?, widened(ends.1, *remote)?);
            let candidates = self.by_prefixes.get(&prefixes)?;
            let covering = candidates.iter().take(MAX_COMPARED).find(|(other, _)| other.covers(rule));
            covering.map(|(_, entry)| *entry)
        })
    }

    fn add(&mut self, entry: usize, rule: Rule) {
        self.exact.insert(rule, entry);
        let (local, remote) = (rule.selector.local.covering_prefix(), rule.selector.remote.covering_prefix());
        self.by_prefixes.entry((local, remote)).or_default().push((rule, entry));
        let pair = (length(local), length(remote));
        if self.lengths.len() < MAX_LENGTHS && self.known_lengths.insert(pair) {
            self.lengths.push(pair);
        }
    }
}

fn length(prefix: Prefix) -> Length {
    prefix.version().map(|version| (version, prefix.length()))
}

/// `prefix` shortened to `length`; `None` if it is shorter already or of the other version.
fn widened(prefix: Prefix, length: Length) -> Option<Prefix> {
    let Some((version, bits)) = length else { return Some(Prefix::ANY) };
    let fits = prefix.version() == Some(version) && prefix.length() >= bits;
    prefix.network().filter(|_| fits).and_then(|network| Prefix::new(network, bits).ok())
}

/// The rules of entries that come and go, for the same question. An entry is told by a name.
#[derive(Debug, Clone)]
pub(super) struct LivingShadows<K> {
    by_prefixes: HashMap<(Prefix, Prefix), HashSet<(Rule, K)>>,
    /// Each pair of lengths, and how many rules have it.
    lengths: HashMap<(Length, Length), usize>,
}

impl<K> Default for LivingShadows<K> {
    fn default() -> Self {
        Self { by_prefixes: HashMap::new(), lengths: HashMap::new() }
    }
}

impl<K: Copy + Ord + Hash> LivingShadows<K> {
    pub(super) fn add(&mut self, entry: K, rules: impl Iterator<Item = Rule>) {
        for rule in rules {
            let (local, remote) = ends(&rule);
            self.by_prefixes.entry((local, remote)).or_default().insert((rule, entry));
            *self.lengths.entry((length(local), length(remote))).or_default() += 1;
        }
    }

    /// Takes out the rules of an entry.
    pub(super) fn remove(&mut self, entry: K, rules: impl Iterator<Item = Rule>) {
        for rule in rules {
            let (local, remote) = ends(&rule);
            if let Entry::Occupied(mut at) = self.by_prefixes.entry((local, remote)) {
                at.get_mut().remove(&(rule, entry));
                if at.get().is_empty() {
                    at.remove();
                }
            }
            let lengths = (length(local), length(remote));
            if let Some(count) = self.lengths.get_mut(&lengths) {
                *count -= 1;
                if *count == 0 {
                    self.lengths.remove(&lengths);
                }
            }
        }
    }

    /// An entry among those that `counts` says which covers one of these rules, if such entries cover all of
    /// them.
    pub(super) fn covering(
        &self,
        rules: impl Iterator<Item = Rule>,
        counts: impl Fn(K) -> bool,
    ) -> Option<K> {
        let mut first = None;
        for rule in rules {
            let covering = self.cover(&rule, &counts)?;
            first = first.or(Some(covering));
        }
        first
    }

    fn cover(&self, rule: &Rule, counts: &impl Fn(K) -> bool) -> Option<K> {
        let ends = ends(rule);
        let covering = self.lengths.keys().take(MAX_LENGTHS).filter_map(|(local, remote)| {
            let prefixes = (widened(ends.0, *local)?, widened(ends.1, *remote)?);
            let candidates = self.by_prefixes.get(&prefixes)?.iter().take(MAX_COMPARED);
            let covering = candidates.filter(|(other, _)| other.covers(rule)).map(|(_, entry)| *entry);
            covering.filter(|entry| counts(*entry)).min()
        });
        covering.min()
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.by_prefixes.is_empty() && self.lengths.is_empty()
    }
}

fn ends(rule: &Rule) -> (Prefix, Prefix) {
    (rule.selector.local.covering_prefix(), rule.selector.remote.covering_prefix())
}
