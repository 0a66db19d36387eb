//! Reads a policy that is added while a gateway runs: the words of `[[policy]]`, checked against the
//! configuration in force as if they were a part of it.

use super::checks::Facts;
use super::model::{Action, Configuration, Policy, Remote};
use super::policy;
use super::shadow::{Rule, Shadows};
use super::walk::{Located, Problem, Section, Walker};
use super::{ConfigErrors, MAX_POLICIES, mentions_ipv6, parse_toml, report_syntax};
use std::collections::HashMap;

/// Bytes at most of a policy in words.
const MAX_BYTES: usize = 4096;
/// The MTU below which a link does not carry IPv6 (RFC 8200 5).
const MIN_MTU_IPV6: u16 = 1280;

impl Configuration {
    /// Reads the keys of one `[[policy]]`, without its header, as a policy that is to be at `place` among the
    /// policies of this configuration. `replaced` is the one that it takes the place of, if any.
    ///
    /// # Errors
    /// All that is wrong.
    pub fn read_policy(
        &self,
        text: &str,
        place: usize,
        replaced: Option<usize>,
    ) -> Result<Policy, ConfigErrors> {
        let mut walker = Walker::new(text);
        let policy = self.read_added(&mut walker, text, place, replaced);
        match policy {
            Some(policy) if walker.is_clean() => Ok(policy),
            _ => Err(walker.into_errors("policy")),
        }
    }

    fn read_added(
        &self,
        walker: &mut Walker<'_>,
        text: &str,
        place: usize,
        replaced: Option<usize>,
    ) -> Option<Policy> {
        let whole = 0..text.len();
        if text.len() > MAX_BYTES {
            let problem =
                Problem::expected(format!("at most {MAX_BYTES} bytes")).found(text.len().to_string());
            walker.report(&(0..0), "policy", problem);
            return None;
        }
        if replaced.is_none() && self.policies.len() >= MAX_POLICIES {
            let problem = Problem::expected(format!("at most {MAX_POLICIES} policies")).found("one more");
            walker.report(&(0..0), "policy", problem);
            return None;
        }
        let (document, errors) = parse_toml(text);
        if !report_syntax(walker, &errors) {
            return None;
        }
        let own = self.tunnels.iter().enumerate().filter(|(_, tunnel)| tunnel.covers.is_none());
        let tunnels: HashMap<String, usize> = own.map(|(index, t)| (t.name.clone(), index)).collect();
        let mut facts = Facts::default();
        let section = Section::new("policy", whole, Some(document.get_ref()));
        let policy = policy::read_policy(section, walker, &tunnels, &mut facts)?;
        self.check_added(walker, &policy, facts, replaced);
        if walker.is_clean() {
            self.check_reached(walker, &policy, text, place, replaced);
        }
        Some(policy)
    }

    /// What depends on the rest of the configuration.
    fn check_added(
        &self,
        walker: &mut Walker<'_>,
        policy: &Policy,
        mut facts: Facts,
        replaced: Option<usize>,
    ) {
        let others = self.policies.iter().enumerate().filter(|(index, _)| Some(*index) != replaced);
        let is_taken =
            others.map(|(_, other)| &other.name).any(|name| name.is_some() && *name == policy.name);
        if let (true, Some(name)) = (is_taken, facts.policy_names.first()) {
            let problem = Problem::expected("a name that no other policy has");
            walker.report(&name.span, name.key.clone(), problem);
        }
        facts.check_interface(walker, &self.unprotected);
        let peers = self.tunnels.iter().filter_map(|tunnel| match tunnel.remote {
            Remote::Address(peer) => {
                Some(Located { value: peer, span: 0..0, key: format!("tunnel[{}].remote", tunnel.name) })
            }
            Remote::Any => None,
        });
        facts.peers.extend(peers);
        if self.protected.routes {
            facts.check_routes(walker, &self.unprotected);
        }
        let is_protect = matches!(policy.action, Action::Protect { .. });
        if is_protect && mentions_ipv6(&policy.selectors) && self.protected.mtu < MIN_MTU_IPV6 {
            let found = format!("{}", self.protected.mtu);
            let problem = Problem::expected("an MTU of 1280 or more in [port.protected]").found(found);
            walker.report(&(0..0), "policy", problem.help("IPv6 needs it (RFC 8200 5)"));
        }
    }

    /// An earlier policy must not cover it.
    fn check_reached(
        &self,
        walker: &mut Walker<'_>,
        policy: &Policy,
        text: &str,
        place: usize,
        replaced: Option<usize>,
    ) {
        let mut shadows = Shadows::default();
        let earlier =
            self.policies.iter().enumerate().take(place).filter(|(index, _)| Some(*index) != replaced);
        for (index, other) in earlier {
            shadows.cover_or_add(index, rules(other));
        }
        let Some(first) = shadows.cover_or_add(place, rules(policy)) else { return };
        let Some(first) = self.policies.get(first) else { return };
        let problem = Problem::expected("a selector that packets can reach");
        let problem = problem.found(format!("one that policy {} covers", first.label()));
        let help = format!("the first match wins: put it in front, with --before {}", first.label());
        walker.report(&(0..text.len()), "policy", problem.help(help));
    }
}

fn rules(policy: &Policy) -> impl ExactSizeIterator<Item = Rule> {
    policy.selectors.iter().map(|selector| Rule { selector: *selector, directions: policy.directions })
}
