//! Finds selectors that an earlier one covers, without comparing each with each.
//!
//! Rules are filed under their pair of prefixes. A rule that covers another has prefixes that are the other's, shortened;
//! so for each pair of lengths in use, the other's prefixes are shortened to them and looked up. Configurations use few
//! lengths: the work grows with the rules, not with their square. Beyond the bounds below, a cover may go unseen.

use super::address::{AddressRange, Prefix, Selector};
use std::collections::{HashMap, HashSet};

/// Pairs of lengths that are looked up.
const MAX_SHAPES: usize = 256;
/// Rules with the same prefixes (and other ports or protocols) that are compared.
const MAX_COMPARED: usize = 256;

/// Version and length; `None` is `any`.
type Shape = Option<(bool, u8)>;

/// The rules that were added so far.
pub(super) struct Shadows {
    rules: Vec<Selector>,
    exact: HashMap<Selector, usize>,
    by_prefixes: HashMap<(AddressRange, AddressRange), Vec<usize>>,
    shapes: Vec<(Shape, Shape)>,
    known_shapes: HashSet<(Shape, Shape)>,
}

impl Shadows {
    pub(super) fn new(rules: Vec<Selector>) -> Self {
        let (exact, by_prefixes) = (HashMap::new(), HashMap::new());
        Self { rules, exact, by_prefixes, shapes: Vec::new(), known_shapes: HashSet::new() }
    }

    /// The earlier rule that covers the rule at `index`, if there is one; else the rule counts for later ones.
    pub(super) fn cover_or_add(&mut self, index: usize) -> Option<usize> {
        let rule = *self.rules.get(index)?;
        let cover = self.exact.get(&rule).copied().or_else(|| self.cover(&rule));
        if cover.is_none() {
            self.add(index, rule);
        }
        cover
    }

    fn cover(&self, rule: &Selector) -> Option<usize> {
        self.shapes.iter().find_map(|(local, remote)| {
            let prefixes = (widened(rule.local, *local)?, widened(rule.remote, *remote)?);
            let candidates = self.by_prefixes.get(&prefixes)?;
            let covers = |index: &&usize| self.rules.get(**index).is_some_and(|other| other.covers(rule));
            candidates.iter().take(MAX_COMPARED).find(covers).copied()
        })
    }

    fn add(&mut self, index: usize, rule: Selector) {
        self.exact.insert(rule, index);
        self.by_prefixes.entry((rule.local, rule.remote)).or_default().push(index);
        let shape = (shape(rule.local), shape(rule.remote));
        if self.shapes.len() < MAX_SHAPES && self.known_shapes.insert(shape) {
            self.shapes.push(shape);
        }
    }
}

fn shape(range: AddressRange) -> Shape {
    match range {
        AddressRange::Any => None,
        AddressRange::Prefix(prefix) => Some((prefix.network().is_ipv6(), prefix.length())),
    }
}

/// `range` shortened to `shape`; `None` if it is not that long, or of the other version.
fn widened(range: AddressRange, shape: Shape) -> Option<AddressRange> {
    let (Some((ipv6, length)), AddressRange::Prefix(prefix)) = (shape, range) else {
        return shape.is_none().then_some(AddressRange::Any);
    };
    let fits = prefix.network().is_ipv6() == ipv6 && prefix.length() >= length;
    fits.then(|| Prefix::containing(prefix.network(), length).map(AddressRange::Prefix)).flatten()
}
