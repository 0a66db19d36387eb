//! Finds selectors that an earlier one covers, without comparing all pairs.
//!
//! Rules are indexed by their pair of prefixes, of a range the longest that holds all of it. The prefixes of
//! a rule that covers another are the other's, shortened. So for each pair of lengths in use, the other's
//! prefixes are shortened to them and looked up. Configurations use few lengths, so that the work grows with
//! the number of rules and not with its square. Beyond the bounds below, a covering rule may be missed.

use std::collections::{HashMap, HashSet};
use testudo_ipsec::{Prefix, Selector};
use testudo_wire::ip::Version;

/// Pairs of lengths that are looked up at most.
const MAX_LENGTHS: usize = 256;
/// Rules with the same prefixes (and different ports or protocols) that are compared at most.
const MAX_COMPARED: usize = 256;

/// Version and length; `None` is `any`.
type Length = Option<(Version, u8)>;

/// The rules added so far.
pub(super) struct Shadows {
    rules: Vec<Selector>,
    exact: HashMap<Selector, usize>,
    by_prefixes: HashMap<(Prefix, Prefix), Vec<usize>>,
    lengths: Vec<(Length, Length)>,
    known_lengths: HashSet<(Length, Length)>,
}

impl Shadows {
    pub(super) fn new(rules: Vec<Selector>) -> Self {
        let (exact, by_prefixes) = (HashMap::new(), HashMap::new());
        Self { rules, exact, by_prefixes, lengths: Vec::new(), known_lengths: HashSet::new() }
    }

    /// The earlier rule that covers the rule at `index`. If there is none, the rule is added for later calls.
    pub(super) fn cover_or_add(&mut self, index: usize) -> Option<usize> {
        let rule = *self.rules.get(index)?;
        let cover = self.exact.get(&rule).copied().or_else(|| self.cover(&rule));
        if cover.is_none() {
            self.add(index, rule);
        }
        cover
    }

    fn cover(&self, rule: &Selector) -> Option<usize> {
        self.lengths.iter().find_map(|(local, remote)| {
            let ends = (rule.local.covering_prefix(), rule.remote.covering_prefix());
            let prefixes = (widened(ends.0, *local)?, widened(ends.1, *remote)?);
            let candidates = self.by_prefixes.get(&prefixes)?;
            let covers = |index: &&usize| self.rules.get(**index).is_some_and(|other| other.covers(rule));
            candidates.iter().take(MAX_COMPARED).find(covers).copied()
        })
    }

    fn add(&mut self, index: usize, rule: Selector) {
        self.exact.insert(rule, index);
        let (local, remote) = (rule.local.covering_prefix(), rule.remote.covering_prefix());
        self.by_prefixes.entry((local, remote)).or_default().push(index);
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
