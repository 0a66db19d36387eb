//! The SPD of a configuration as the rules need it: policies in order, each with a name for people.

use super::Negotiated;
use crate::config::{Action, Configuration, Network, Policy, networks};
use std::sync::Arc;
use testudo_ipsec::{self as ipsec, AddressRange, Direction, Directions, PortRange, Protocol, Selector};
use testudo_packet::Interface;
use testudo_wire::ip::Version;

/// One selector of a policy. Those of the same policy follow each other: whichever matches, the same happens.
#[derive(Debug, Clone)]
pub(super) struct Entry {
    pub(super) selector: Selector,
    pub(super) directions: Directions,
    /// Whether its packets may pass in clear.
    pub(super) bypass: bool,
    /// Whether its packets are protected.
    pub(super) protect: bool,
    /// `tunnel site-b, selector 1`
    pub(super) name: Arc<str>,
}

/// All policies of the main interface: `[[policy]]` first, then each tunnel's selectors. What enters other
/// interfaces is what the operator's routes lead there: no rule can tell it from what they lead elsewhere.
pub(super) fn entries(configuration: &Configuration) -> Vec<Entry> {
    let policies = configuration
        .policies
        .iter()
        .flat_map(|policy| named_entries(policy, name_of(configuration, policy).into()));
    let tunnels = configuration.tunnels.iter().filter(|tunnel| tunnel.interface == Interface::MAIN);
    let own = tunnels.flat_map(|tunnel| {
        tunnel.entries().enumerate().flat_map(move |(place, (selectors, directions))| {
            let number = 1 + place / tunnel.entries_per_selector();
            let name: Arc<str> = format!("tunnel {}, selector {number}", tunnel.name).into();
            let entry = move |selector| Entry {
                selector,
                directions,
                bypass: false,
                protect: true,
                name: Arc::clone(&name),
            };
            selectors.iter().copied().map(entry).collect::<Vec<_>>()
        })
    });
    policies.chain(own).collect()
}

/// Those of one policy, without names.
pub(super) fn of_policy(policy: &Policy) -> impl Iterator<Item = Entry> {
    named_entries(policy, Arc::from(""))
}

fn named_entries(policy: &Policy, name: Arc<str>) -> impl Iterator<Item = Entry> {
    policy.selectors.iter().map(move |selector| Entry {
        selector: *selector,
        directions: policy.directions,
        bypass: policy.action == Action::Bypass,
        protect: matches!(policy.action, Action::Protect { .. }),
        name: Arc::clone(&name),
    })
}

/// Those of negotiated policies of the main interface.
pub(super) fn of_negotiated(negotiated: &Negotiated) -> impl Iterator<Item = Entry> {
    let policies = negotiated.policies.iter().filter(|(_, policy)| policy.interface == Interface::MAIN);
    policies.flat_map(|(origin, policy)| {
        let protect = matches!(policy.action, ipsec::Action::Protect(_) | ipsec::Action::Populate(_));
        let name: Arc<str> = origin.as_str().into();
        policy.selectors.iter().map(move |selector| Entry {
            selector: *selector,
            directions: policy.directions,
            bypass: policy.action == ipsec::Action::Bypass,
            protect,
            name: Arc::clone(&name),
        })
    })
}

/// `policy no-mail: discard`
fn name_of(configuration: &Configuration, policy: &Policy) -> String {
    let name = policy.label();
    match policy.action {
        Action::Protect { tunnel } => {
            let tunnel = configuration.tunnels.get(tunnel).map_or("", |t| t.name.as_str());
            format!("policy {name}: protect, tunnel {tunnel}")
        }
        Action::Bypass => format!("policy {name}: bypass"),
        Action::Discard => format!("policy {name}: discard"),
    }
}

/// The range, unless it is every address, of one version or of both.
fn named(range: AddressRange) -> Option<AddressRange> {
    let is_all = range.prefix().is_some_and(|prefix| prefix.length() == 0);
    (!is_all).then_some(range)
}

impl Entry {
    /// The remote addresses, if it names some.
    pub(super) fn remote(&self) -> Option<AddressRange> {
        named(self.selector.remote)
    }

    /// The local addresses, if it names some.
    pub(super) fn local(&self) -> Option<AddressRange> {
        named(self.selector.local)
    }

    /// The networks that make up the remote addresses, if it names some.
    pub(super) fn remote_networks(&self) -> impl Iterator<Item = Network> + use<> {
        self.remote().into_iter().flat_map(networks)
    }

    /// The networks that make up the local addresses, if it names some.
    pub(super) fn local_networks(&self) -> impl Iterator<Item = Network> + use<> {
        self.local().into_iter().flat_map(networks)
    }

    /// What it closes to clear packets, but for the direction.
    pub(super) fn closed(&self) -> String {
        let Selector { local, remote, protocol, local_ports, remote_ports } = self.selector;
        let mut said = format!("{local} {remote}");
        if !self.is_by_address_alone() {
            said += &format!(" protocol {protocol} ports {local_ports} {remote_ports}");
        }
        // Less is closed by one that does not protect: all else of the remote network is not its business.
        if self.protect { said } else { said + " discard" }
    }

    /// Whether its packets are routed into the tunnel interface.
    pub(super) fn is_routed(&self) -> bool {
        self.protect && self.directions.include(Direction::Outbound)
    }

    /// Whether rules can tell its traffic from all other traffic on the host. A policy with any address at
    /// both ends is about the packets that the host routes into the tunnel, and it does not say which these
    /// are.
    pub(super) fn names_a_network(&self) -> bool {
        self.local().is_some() || self.remote().is_some()
    }

    /// The local addresses, if the remote ones are more and contain them. Packets between two local hosts are
    /// then none of the policy's, since they do not leave this side.
    pub(super) fn local_within_remote(&self) -> Option<AddressRange> {
        let local = self.local()?;
        let remote = self.selector.remote;
        let holds = remote.covers(&self.selector.local) && remote != self.selector.local;
        holds.then_some(local)
    }

    /// The IP versions that its packets may have.
    pub(super) fn versions(&self) -> impl Iterator<Item = bool> + use<> {
        let Selector { local, remote, .. } = self.selector;
        [(Version::V4, false), (Version::V6, true)].into_iter().filter_map(move |(version, is_ipv6)| {
            let fits = |range: AddressRange| range.version().is_none_or(|v| v == version);
            (fits(local) && fits(remote)).then_some(is_ipv6)
        })
    }

    /// Whether it selects by addresses alone.
    pub(super) fn is_by_address_alone(&self) -> bool {
        let Selector { protocol, local_ports, remote_ports, .. } = self.selector;
        protocol == Protocol::Any && local_ports == PortRange::ANY && remote_ports == PortRange::ANY
    }
}
