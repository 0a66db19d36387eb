//! Checks that span several parts of a configuration: uniqueness, references, selectors that hide others.

use super::model::{Action, Policy, Remote, Selectors, Tunnel, UnprotectedPort};
use super::network::{Network, Networks};
use super::populate::check_template;
use super::shadow::{Rule, Shadows};
use super::walk::{Located, Problem, Walker};
use crate::keys::KeySource;
use std::collections::HashMap;
use std::hash::Hash;
use std::net::IpAddr;
use testudo_crypto::Suite;
use testudo_ipsec::{Directions, IpsecProtocol, Mode};
use testudo_packet::Interface;

/// Selectors per configuration at most, those of policies and tunnels together.
pub const MAX_RULES: usize = 100_000;

/// Facts noted while reading, with their positions; also those of parts that were incomplete.
#[derive(Default)]
pub(super) struct Facts {
    /// The names of interfaces, by their numbers from 1 on.
    pub(super) interfaces: Vec<Option<String>>,
    /// By tunnel.
    pub(super) names: Vec<Option<Located<String>>>,
    /// By tunnel: its position, if it has no selectors.
    pub(super) without_selectors: Vec<Option<Located<()>>>,
    pub(super) inbound_spis: Vec<Located<(u32, IpsecProtocol)>>,
    pub(super) outbound_spis: Vec<Located<(u32, IpsecProtocol, Remote)>>,
    /// Of policies that have one.
    pub(super) policy_names: Vec<Located<String>>,
    pub(super) policy_rules: Vec<Located<Traffic>>,
    pub(super) tunnel_rules: Vec<Located<Traffic>>,
    pub(super) bypasses: Vec<Located<()>>,
    /// Outer addresses of the peers.
    pub(super) peers: Vec<Located<IpAddr>>,
    /// Remote networks of selectors that protect traffic.
    pub(super) routed: Vec<Located<Network>>,
    /// In the order of the tunnels, outbound before inbound.
    pub(super) keys: Vec<KeyRequest>,
    /// The same for the SAs of AH that cover ESP.
    pub(super) keys_of_ah: Vec<KeyRequest>,
    /// The same for SAs of single workers, which come last.
    pub(super) keys_of_workers: Vec<KeyRequest>,
    /// SAs towards peers of single workers.
    pub(super) own_sas: Vec<super::worker_sas::OwnSa>,
    pub(super) known_answers: Vec<Located<()>>,
    /// The tunnels that policies name.
    pub(super) named: Vec<Located<usize>>,
    /// Of policies that populate SAs from packets: the tunnel, and where they say so.
    pub(super) templates: Vec<Located<usize>>,
    pub(super) ends: super::vpe::Ends,
    /// By tunnel: how many members of its group send, where it says so.
    pub(super) senders: Vec<Option<Located<u16>>>,
}

/// What an entry of the SPD applies to; no selectors if some of them are wrong.
#[derive(Debug, Clone)]
pub(super) struct Traffic {
    pub(super) interface: Interface,
    pub(super) selectors: Selectors,
    pub(super) directions: Directions,
}

impl Traffic {
    /// That of a tunnel's own selectors, at its interface.
    pub(super) fn both_ways(interface: Interface, selectors: Selectors) -> Self {
        Self { interface, selectors, directions: Directions::Both }
    }
}

/// A key to be loaded.
pub(super) struct KeyRequest {
    pub(super) source: Located<KeySource>,
    /// `None` if the tunnel's suite is wrong.
    pub(super) suite: Option<Suite>,
    /// Whether it is that of the request before: the members of a group have one key, in both directions.
    pub(super) is_same: bool,
}

impl Facts {
    /// Index of each tunnel by name; the first one if a name occurs twice.
    pub(super) fn tunnels_by_name(&self) -> HashMap<String, usize> {
        let mut tunnels = HashMap::with_capacity(self.names.len());
        for (index, name) in self.names.iter().enumerate() {
            if let Some(name) = name {
                tunnels.entry(name.value.clone()).or_insert(index);
            }
        }
        tunnels
    }

    pub(super) fn check(&self, walker: &mut Walker<'_>, policies: &[Policy], port: &UnprotectedPort) {
        unique(walker, self.names.iter().flatten(), || Problem::expected("a name that no other tunnel has"));
        unique(walker, self.policy_names.iter(), || Problem::expected("a name that no other policy has"));
        unique(walker, self.inbound_spis.iter(), || {
            Problem::expected("an inbound SPI that no other tunnel has")
                .help("a packet is told by its SPI which SA it belongs to (RFC 4301 4.1)")
        });
        unique(walker, self.outbound_spis.iter(), || {
            Problem::expected("an outbound SPI that no other tunnel to this peer has")
        });
        let keys = self.keys.iter().filter(|key| !key.is_same);
        unique(walker, keys.map(|key| &key.source), || {
            Problem::expected("a key of its own for each SA")
                .help("two SAs under one key would repeat nonces")
        });
        self.check_selectors(walker, policies);
        self.check_interface(walker, port);
        self.check_shadows(walker);
    }

    /// Every tunnel must be reachable by some packet.
    fn check_selectors(&self, walker: &mut Walker<'_>, policies: &[Policy]) {
        let mut named = vec![false; self.names.len()];
        for policy in policies {
            if let Action::Protect { tunnel } = policy.action
                && let Some(named) = named.get_mut(tunnel)
            {
                *named = true;
            }
        }
        let unreached = self.without_selectors.iter().zip(named).filter(|(_, named)| !named);
        for place in unreached.filter_map(|(place, _)| place.as_ref()) {
            let problem = Problem::expected("at least one selector, or a policy that names the tunnel");
            let help =
                "add, for example, `selectors = [ { local = \"10.1.0.0/16\", remote = \"10.2.0.0/16\" } ]`";
            walker.report(&place.span, place.key.clone(), problem.found("none").help(help));
        }
    }

    /// A tunnel after which others are made for flows must allow that. Where some tunnels are wrong, indices
    /// do not hold.
    pub(super) fn check_templates(&self, walker: &mut Walker<'_>, tunnels: &[Tunnel]) {
        for flags in self.templates.iter().filter(|_| tunnels.len() >= self.names.len()) {
            if let Some(template) = tunnels.get(flags.value) {
                check_template(walker, &flags.clone().map(drop), template);
            }
        }
    }

    /// Packets of transport mode are those of this host, which the kernel hands to a TUN interface alone.
    pub(super) fn check_modes(&self, walker: &mut Walker<'_>, tunnels: &[Tunnel], has_tun: bool) {
        if has_tun || tunnels.len() < self.names.len() {
            return;
        }
        for (tunnel, name) in tunnels.iter().zip(&self.names) {
            let is_of_host = tunnel.mode == Mode::Transport && tunnel.interface == Interface::MAIN;
            let Some(name) = name.as_ref().filter(|_| is_of_host) else { continue };
            let problem =
                Problem::expected("a tunnel in tunnel mode, since [port.protected] is no TUN interface");
            let problem = problem.found(format!("\"{}\" in transport mode", name.value));
            let help = "transport mode protects packets of this host: use kind = \"tun\" in [port.protected], or give \
                        the tunnel an `interface` of [[interface]]";
            walker.report(&name.span, name.key.clone(), problem.help(help));
        }
    }

    /// Policies decide on packets of the main interface: those of others are decided on by their tunnels'
    /// own selectors.
    pub(super) fn check_named(&self, walker: &mut Walker<'_>, tunnels: &[Tunnel]) {
        for named in self.named.iter().filter(|_| tunnels.len() >= self.names.len()) {
            if tunnels.get(named.value).is_some_and(|tunnel| tunnel.group().is_some()) {
                let problem = Problem::expected("a tunnel whose `remote` is one host");
                let help = "what goes to a group, and what comes from its members, is said by the `selectors` of its \
                            tunnel: give them to it";
                walker.report(&named.span, named.key.clone(), problem.help(help));
            }
            if tunnels.get(named.value).is_some_and(|tunnel| tunnel.interface != Interface::MAIN) {
                let problem = Problem::expected("a tunnel without `interface`");
                let help = "policies are about packets of the main interface: give the tunnel `selectors`";
                walker.report(&named.span, named.key.clone(), problem.help(help));
            }
        }
    }

    /// Bypassed packets must leave through a known interface.
    pub(super) fn check_interface(&self, walker: &mut Walker<'_>, port: &UnprotectedPort) {
        if let (None, Some(bypass)) = (&port.interface, self.bypasses.first()) {
            let problem =
                Problem::expected("`interface` in [port.unprotected], where a policy says \"bypass\"");
            walker.report(
                &bypass.span,
                bypass.key.clone(),
                problem.found("none").help("add it there, for example `interface = \"eth0\"`"),
            );
        }
    }

    /// A route into the tunnel must not catch the tunnel's own packets: they would be encrypted again and
    /// again, and none would leave. Sockets that are bound to an interface ignore routes through another.
    pub(super) fn check_routes(&self, walker: &mut Walker<'_>, port: &UnprotectedPort) {
        if port.interface.is_some() {
            return;
        }
        // A prefix of length 0 gives no route.
        let routed = self.routed.iter().filter(|remote| remote.value.length() > 0);
        let mut routed: HashMap<Network, &Located<Network>> =
            routed.rev().map(|remote| (remote.value, remote)).collect();
        let networks: Networks = routed.keys().copied().collect();
        for peer in &self.peers {
            for network in networks.holding(Network::host(peer.value)) {
                let Some(remote) = routed.remove(&network) else { continue };
                let line = walker.line(&peer.span);
                let problem = Problem::expected("a remote network without a peer's own outer address");
                let problem = problem.found(format!("{network}, which holds `{}` of line {line}", peer.key));
                let help = "its route would lead the tunnel's own packets back into the tunnel: name narrower \
                            networks, or send outer packets by one interface, whatever the routes say, with \
                            `interface = \"eth0\"` in [port.unprotected], or make routes of your own with \
                            `routes = false` in [port.protected]";
                walker.report(&remote.span, remote.key.clone(), problem.help(help));
            }
        }
    }

    /// An entry of which earlier ones cover every selector never matches a packet.
    fn check_shadows(&self, walker: &mut Walker<'_>) {
        let entries: Vec<_> = self.policy_rules.iter().chain(&self.tunnel_rules).collect();
        let mut count = 0;
        for entry in &entries {
            count += entry.value.selectors.len();
            if count > MAX_RULES {
                let problem = Problem::expected(format!("at most {MAX_RULES} selectors in all"));
                walker.report(&entry.span, entry.key.clone(), problem.found("more"));
                return;
            }
        }
        // Packets of an interface meet the entries of that one alone.
        let mut shadows: HashMap<Interface, Shadows> = HashMap::new();
        for (index, entry) in entries.iter().enumerate() {
            let Traffic { interface, selectors, directions } = &entry.value;
            let rules =
                selectors.iter().map(|selector| Rule { selector: *selector, directions: *directions });
            let shadows = shadows.entry(*interface).or_default();
            let first = shadows.cover_or_add(index, rules).and_then(|first| entries.get(first));
            let Some(first) = first else { continue };
            let problem = Problem::expected("a selector that packets can reach");
            let line = walker.line(&first.span);
            let problem = problem.found(format!("one that `{}` on line {line} covers", first.key));
            let help = "the first match wins: put the narrower selector first, or remove one";
            walker.report(&entry.span, entry.key.clone(), problem.help(help));
        }
    }
}

/// Reports values that occur twice.
pub(super) fn unique<'f, T: Eq + Hash + 'f>(
    walker: &mut Walker<'_>,
    values: impl Iterator<Item = &'f Located<T>>,
    problem: impl Fn() -> Problem,
) {
    let mut seen: HashMap<&T, &Located<T>> = HashMap::new();
    for value in values {
        match seen.get(&value.value) {
            Some(first) => walker.report_repeated(value, first, problem()),
            None => drop(seen.insert(&value.value, value)),
        }
    }
}
