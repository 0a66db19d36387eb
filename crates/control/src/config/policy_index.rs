//! What a policy that is added to a running gateway is checked against, kept as policies come and go, so that
//! one change costs the same beside a few others and beside thousands.

use super::model::{Configuration, Policy, Remote};
use super::network::Network;
use super::shadow::{LivingShadows, Rule};
use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;
use testudo_ipsec::Direction;

/// The policies of a configuration by what is asked of them, and what else a policy may name. Policies are
/// told by their [numbers](Policy::number).
#[derive(Debug, Clone, Default)]
pub struct PolicyIndex {
    /// The tunnels that policies may name.
    pub(super) tunnels: HashMap<String, usize>,
    /// The outer addresses of peers, in order, with their tunnels.
    peers: Vec<(IpAddr, usize)>,
    by_name: HashMap<String, u32>,
    shadows: LivingShadows<u32>,
    /// Policies on packets that arrive, by the tunnel that they name.
    of_tunnel: HashMap<usize, BTreeSet<u32>>,
    /// Policies that populate SAs from packets, by their template.
    populating: HashMap<usize, BTreeSet<u32>>,
    last_number: u32,
    /// Selectors, those of the tunnels included.
    rules: usize,
}

impl PolicyIndex {
    /// That of a configuration.
    #[must_use]
    pub fn of(configuration: &Configuration) -> Self {
        let tunnels = configuration.tunnels.iter().enumerate();
        let own = tunnels.clone().filter(|(_, tunnel)| tunnel.covers.is_none());
        let mut peers: Vec<_> = tunnels
            .filter_map(|(index, tunnel)| match tunnel.remote {
                Remote::Address(peer) => Some((peer, index)),
                Remote::Any => None,
            })
            .collect();
        peers.sort_unstable();
        let tunnels = own.map(|(index, tunnel)| (tunnel.name.clone(), index)).collect();
        let own = configuration.tunnels.iter().flat_map(|tunnel| &tunnel.selectors);
        let rules = own.map(|selectors| selectors.len()).sum();
        let mut index = Self { tunnels, peers, rules, ..Self::default() };
        configuration.policies.iter().for_each(|policy| index.add(policy));
        index
    }

    /// A policy was added.
    pub fn add(&mut self, policy: &Policy) {
        self.by_name.extend(policy.name.clone().map(|name| (name, policy.number)));
        self.shadows.add(policy.number, rules(policy));
        if let Some(tunnel) = delivering(policy) {
            self.of_tunnel.entry(tunnel).or_default().insert(policy.number);
        }
        if let Some(tunnel) = template(policy) {
            self.populating.entry(tunnel).or_default().insert(policy.number);
        }
        self.last_number = self.last_number.max(policy.number);
        self.rules += policy.selectors.len();
    }

    /// A policy is gone.
    pub fn remove(&mut self, policy: &Policy) {
        if let Some(name) =
            policy.name.as_deref().filter(|name| self.by_name.get(*name) == Some(&policy.number))
        {
            self.by_name.remove(name);
        }
        self.shadows.remove(policy.number, rules(policy));
        if let Some(tunnel) = delivering(policy)
            && let Some(policies) = self.of_tunnel.get_mut(&tunnel)
        {
            policies.remove(&policy.number);
        }
        if let Some(tunnel) = template(policy)
            && let Some(policies) = self.populating.get_mut(&tunnel)
        {
            policies.remove(&policy.number);
        }
        self.rules -= policy.selectors.len();
    }

    /// The number of the policy with a name.
    #[must_use]
    pub fn named(&self, name: &str) -> Option<u32> {
        self.by_name.get(name).copied()
    }

    /// How many selectors there are in all.
    #[must_use]
    pub fn rules(&self) -> usize {
        self.rules
    }

    /// A number that no policy has had.
    #[must_use]
    pub fn next_number(&self) -> u32 {
        self.last_number + 1
    }

    /// The policies on packets that arrive which name a tunnel.
    pub fn of_tunnel(&self, tunnel: usize) -> impl Iterator<Item = u32> {
        self.of_tunnel.get(&tunnel).into_iter().flatten().copied()
    }

    /// The policies that populate SAs from packets after a tunnel.
    pub fn populating(&self, tunnel: usize) -> impl Iterator<Item = u32> {
        self.populating.get(&tunnel).into_iter().flatten().copied()
    }

    /// The outer addresses of peers in a network, with their tunnels.
    pub fn peers_in(&self, network: Network) -> impl Iterator<Item = (IpAddr, usize)> {
        let first = self.peers.partition_point(|(peer, _)| *peer < network.address());
        self.peers[first..].iter().copied().take_while(move |(peer, _)| network.contains(*peer))
    }

    /// A policy among those that `counts` says, if such policies cover all of this one.
    pub(super) fn covering(&self, policy: &Policy, counts: impl Fn(u32) -> bool) -> Option<u32> {
        self.shadows.covering(rules(policy), counts)
    }
}

/// The tunnel whose packets it lets pass when they arrive.
fn delivering(policy: &Policy) -> Option<usize> {
    let delivers = policy.populate.is_empty() && policy.directions.include(Direction::Inbound);
    policy.tunnel().filter(|_| delivers)
}

/// The tunnel after which it populates SAs.
fn template(policy: &Policy) -> Option<usize> {
    policy.tunnel().filter(|_| !policy.populate.is_empty())
}

fn rules(policy: &Policy) -> impl Iterator<Item = Rule> {
    policy.selectors.iter().map(|selector| Rule { selector: *selector, directions: policy.directions })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::tests::MINIMAL;
    use fastrand::Rng;

    /// A policy on a few networks, so that many cover others.
    fn random_policy(random: &mut Rng, number: u32) -> String {
        let network = |random: &mut Rng| match random.u8(..4) {
            0 => "any".to_owned(),
            1 => format!("10.{}.0.0/16", random.u8(..4)),
            2 => format!("10.{}.{}.0/24", random.u8(..4), random.u8(..2)),
            _ => format!("10.{}.0.5-10.{0}.0.9", random.u8(..4)),
        };
        let (local, remote) = (network(random), network(random));
        let action = ["discard", "protect\"\ntunnel = \"site-b", "bypass"][random.usize(..3)];
        let direction = ["in", "out", "both"][random.usize(..3)];
        let ports = if random.bool() { "protocol = \"tcp\"\nremote_ports = \"1-100, 300\"\n" } else { "" };
        format!(
            "name = \"p{number}\"\naction = \"{action}\"\ndirection = \"{direction}\"\nlocal = \"{local}\"\n\
             remote = \"{remote}\"\n{ports}"
        )
    }

    /// What populates SAs is found by its template, in whichever direction it is; what such a tunnel itself
    /// delivers is not its business.
    #[test]
    fn policies_that_populate_are_found_by_their_template() {
        let empty = Configuration::parse(MINIMAL, "t.toml").unwrap();
        let mut index = PolicyIndex::of(&empty);
        let to = |n: u8| format!("action = \"protect\"\ntunnel = \"site-b\"\nremote = \"10.{n}.0.0/16\"\n");
        let populate = "populate_from_packet = \"remote\"\n";
        let texts =
            [to(1), format!("{}{populate}", to(2)), format!("{}{populate}direction = \"out\"\n", to(3))];
        let policies: Vec<_> =
            texts.iter().zip(1..).map(|(text, number)| empty.policy_of(text, number)).collect();
        policies.iter().for_each(|policy| index.add(policy));
        assert!(index.populating(0).eq([2, 3]) && index.of_tunnel(0).eq([1]));
        policies.iter().for_each(|policy| index.remove(policy));
        assert_eq!((index.populating(0).count(), index.of_tunnel(0).count()), (0, 0));
    }

    /// An index that has followed changes says what a new one says.
    #[test]
    fn an_index_that_follows_changes_is_as_one_made_anew() {
        let (mut random, mut left) = (Rng::with_seed(11), Vec::<Policy>::new());
        let base = MINIMAL.replace("kind = \"socket\"", "kind = \"socket\"\ninterface = \"eth0\"");
        let empty = Configuration::parse(&base, "t.toml").unwrap();
        let mut index = PolicyIndex::of(&empty);
        for number in 1..400 {
            let policy = empty.policy_of(&random_policy(&mut random, number), number);
            index.add(&policy);
            left.push(policy);
            if random.bool() {
                index.remove(&left.swap_remove(random.usize(..left.len())));
            }
            left.sort_by_key(|policy| policy.number);
            let anew = PolicyIndex::of(&Configuration { policies: left.clone(), ..empty.clone() });
            assert_eq!(index.next_number(), number + 1);
            assert_eq!((&index.by_name, index.rules), (&anew.by_name, anew.rules));
            assert!(index.of_tunnel(0).eq(anew.of_tunnel(0)));
            for policy in &left {
                let earlier = |of: &PolicyIndex| of.covering(policy, |other| other < policy.number).is_some();
                assert_eq!(earlier(&index), earlier(&anew), "seed 11, {policy:?}");
                let is_covered = policy.selectors.iter().all(|selector| {
                    left.iter().take_while(|other| other.number < policy.number).any(|other| {
                        other.directions.cover(policy.directions)
                            && other.selectors.iter().any(|wider| wider.covers(selector))
                    })
                });
                assert_eq!(earlier(&index), is_covered, "seed 11, {policy:?}");
            }
        }
        left.iter().for_each(|policy| index.remove(policy));
        assert!(index.shadows.is_empty() && index.by_name.is_empty());
    }

    #[test]
    fn peers_are_found_by_the_networks_that_hold_them() {
        let index = PolicyIndex::of(&Configuration::parse(MINIMAL, "t.toml").unwrap());
        let found = |text: &str, length| {
            index.peers_in(Network::containing(text.parse().unwrap(), length).unwrap()).count()
        };
        assert_eq!([found("192.0.2.0", 24), found("192.0.2.2", 32), found("0.0.0.0", 0)], [1; 3]);
        assert_eq!([found("192.0.2.3", 32), found("10.0.0.0", 8), found("::", 0)], [0; 3]);
    }
}
