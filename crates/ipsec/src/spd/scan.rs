//! A short SPD as a list: up to a few policies, comparing them one by one is faster than hashing.

use super::answer::Answer;
use super::flow::{Direction, Flow};
use super::order::Rank;
use super::pair::PairPrefix;
use super::policy::{Action, Policy};
use super::search::{Hit, Search};
use super::selector::{Fit, Selector};
use testudo_wire::ip::Version;

/// All policies, in order, once for each direction.
#[derive(Debug, Clone, Default)]
pub(super) struct Scan {
    outbound: List,
    inbound: List,
}

#[derive(Debug, Clone, Default)]
struct List {
    /// Each policy's answer for IPv4 packets.
    pairs: Vec<(PairPrefix, Answer)>,
    rules: Vec<Rule>,
}

#[derive(Debug, Clone)]
struct Rule {
    selector: Selector,
    action: Action,
    hit: Hit,
}

impl Scan {
    /// Appends a policy, which is in this slot.
    pub(super) fn push(&mut self, slot: u32, rank: Rank, policy: &Policy) {
        let lists = [(Direction::Outbound, &mut self.outbound), (Direction::Inbound, &mut self.inbound)];
        for (direction, list) in
            lists.into_iter().filter(|(direction, _)| policy.directions.include(*direction))
        {
            for selector in policy.selectors.iter() {
                let layer = selector.next_layer(direction);
                let answer = if layer.is_any() { Answer::of(policy) } else { Answer::ASK };
                let pairs = selector.prefix_pairs().filter(|pair| pair.version == Version::V4);
                list.pairs.extend(pairs.map(|pair| (PairPrefix::of(&pair), answer)));
                let hit = Hit { rank, policy: slot, names_opaque: layer.names_opaque() };
                list.rules.push(Rule { selector: *selector, action: policy.action, hit });
            }
        }
    }

    #[inline(always)]
    fn list(&self, direction: Direction) -> &List {
        match direction {
            Direction::Outbound => &self.outbound,
            Direction::Inbound => &self.inbound,
        }
    }

    /// Each policy's answer for IPv4 packets.
    #[inline(always)]
    pub(super) fn pairs(&self, direction: Direction) -> &[(PairPrefix, Answer)] {
        &self.list(direction).pairs
    }

    /// The action for a flow that hides nothing.
    #[inline(always)]
    pub(super) fn action(&self, flow: &Flow) -> Option<Action> {
        let mut rules = self.list(flow.direction()).rules.iter();
        rules.find(|rule| rule.selector.fit(flow) == Fit::Sure).map(|rule| rule.action)
    }

    /// Notes the first policies that fit.
    pub(super) fn search(&self, search: &mut Search<'_>) {
        for rule in &self.list(search.flow.direction()).rules {
            search.cost.policies += 1;
            search.note(rule.selector.fit(search.flow), rule.hit);
        }
    }
}
