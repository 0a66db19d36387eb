//! Reads a policy that is added while a gateway runs: the words of `[[policy]]`, checked against the
//! configuration in force as if they were a part of it.

use super::checks::Facts;
use super::model::{Action, Configuration, Policy};
use super::policy;
use super::policy_index::PolicyIndex;
use super::walk::{Located, Problem, Section, Walker};
use super::{ConfigErrors, MAX_POLICIES, MAX_RULES, mentions_ipv6, parse_toml, report_syntax};

/// Bytes at most of a policy in words.
const MAX_BYTES: usize = 4096;
/// The MTU below which a link does not carry IPv6 (RFC 8200 5).
const MIN_MTU_IPV6: u16 = 1280;

/// Where a policy is to be among those in force, whose index is given.
#[derive(Clone, Copy)]
pub struct Slot<'a> {
    /// The policies in force.
    pub index: &'a PolicyIndex,
    /// Whether the policy of a number is in front of it.
    pub is_earlier: &'a dyn Fn(u32) -> bool,
    /// What the policy of a number is called.
    pub label_of: &'a dyn Fn(u32) -> String,
    /// The number of the one that it takes the place of, if any.
    pub replaced: Option<u32>,
}

impl Configuration {
    /// Reads the keys of one `[[policy]]`, without its header, as a policy that is to be at a place among the
    /// policies of this configuration.
    ///
    /// # Errors
    /// All that is wrong.
    pub fn read_policy(&self, text: &str, slot: Slot<'_>) -> Result<Policy, ConfigErrors> {
        let mut walker = Walker::new(text);
        let policy = self.read_added(&mut walker, text, slot);
        match policy {
            Some(policy) if walker.is_clean() => Ok(policy),
            _ => Err(walker.into_errors("policy")),
        }
    }

    fn read_added(&self, walker: &mut Walker<'_>, text: &str, slot: Slot<'_>) -> Option<Policy> {
        let whole = 0..text.len();
        if text.len() > MAX_BYTES {
            let problem =
                Problem::expected(format!("at most {MAX_BYTES} bytes")).found(text.len().to_string());
            walker.report(&(0..0), "policy", problem);
            return None;
        }
        if slot.replaced.is_none() && self.policies.len() >= MAX_POLICIES {
            let problem = Problem::expected(format!("at most {MAX_POLICIES} policies")).found("one more");
            walker.report(&(0..0), "policy", problem);
            return None;
        }
        let (document, errors) = parse_toml(text);
        if !report_syntax(walker, &errors) {
            return None;
        }
        let mut facts = Facts::default();
        let section = Section::new("policy", whole, Some(document.get_ref()));
        let policy = policy::read_policy(section, walker, &slot.index.tunnels, &mut facts)?;
        self.check_added(walker, &policy, facts, slot);
        if walker.is_clean() {
            check_reached(walker, &policy, text, slot);
        }
        Some(policy)
    }

    /// How many selectors the policy of a number has.
    fn rules_of(&self, number: Option<u32>) -> usize {
        let policy = number.and_then(|number| self.policies.iter().find(|policy| policy.number == number));
        policy.map_or(0, |policy| policy.selectors.len())
    }

    /// What depends on the rest of the configuration.
    fn check_added(&self, walker: &mut Walker<'_>, policy: &Policy, mut facts: Facts, slot: Slot<'_>) {
        let holder = policy.name.as_deref().and_then(|name| slot.index.named(name));
        let is_taken = holder.is_some_and(|holder| Some(holder) != slot.replaced);
        if let (true, Some(name)) = (is_taken, facts.policy_names.first()) {
            let problem = Problem::expected("a name that no other policy has");
            walker.report(&name.span, name.key.clone(), problem);
        }
        let count = slot.index.rules() + policy.selectors.len();
        // The one that it takes the place of is looked for only where it matters.
        if count > MAX_RULES && count - self.rules_of(slot.replaced) > MAX_RULES {
            let problem = Problem::expected(format!("at most {MAX_RULES} selectors in all")).found("more");
            walker.report(&(0..0), "policy", problem);
        }
        facts.check_interface(walker, &self.unprotected);
        facts.check_templates(walker, &self.tunnels);
        facts.check_named(walker, &self.tunnels);
        // Of each network one peer is told of.
        let held = facts.routed.iter().filter_map(|network| slot.index.peers_in(network.value).next());
        let peers = held.map(|(value, tunnel)| {
            let name = self.tunnels.get(tunnel).map_or("", |tunnel| tunnel.name.as_str());
            Located { value, span: 0..0, key: format!("tunnel[{name}].remote") }
        });
        let peers: Vec<_> = peers.collect();
        facts.peers.extend(peers);
        if self.protected.routes && self.protected.kind.is_host() {
            facts.check_routes(walker, &self.unprotected);
        }
        let is_protect = matches!(policy.action, Action::Protect { .. });
        if is_protect && mentions_ipv6(&policy.selectors) && self.protected.mtu < MIN_MTU_IPV6 {
            let found = format!("{}", self.protected.mtu);
            let problem = Problem::expected("an MTU of 1280 or more in [port.protected]").found(found);
            walker.report(&(0..0), "policy", problem.help("IPv6 needs it (RFC 8200 5)"));
        }
    }
}

/// An earlier policy must not cover it.
fn check_reached(walker: &mut Walker<'_>, policy: &Policy, text: &str, slot: Slot<'_>) {
    let counts = |other| Some(other) != slot.replaced && (slot.is_earlier)(other);
    let Some(first) = slot.index.covering(policy, counts) else { return };
    let label = (slot.label_of)(first);
    let problem = Problem::expected("a selector that packets can reach");
    let problem = problem.found(format!("one that policy {label} covers"));
    let help = format!("the first match wins: put it in front, with --before {label}");
    walker.report(&(0..text.len()), "policy", problem.help(help));
}

#[cfg(test)]
impl Configuration {
    /// The policy of these keys, with a number, unchecked against others.
    pub(crate) fn policy_of(&self, text: &str, number: u32) -> Policy {
        let index = PolicyIndex::of(self);
        let (is_earlier, label_of) = (&|_| false, &|_| String::new());
        let slot = Slot { index: &index, is_earlier, label_of, replaced: None };
        let policy = self.read_policy(text, slot).unwrap_or_else(|errors| panic!("{errors}"));
        Policy { number, ..policy }
    }
}
