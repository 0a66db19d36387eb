//! The SPD of a configuration as the rules need it: policies in order, each with a name for people.

use crate::config::{Action, Configuration, Network};
use testudo_ipsec::{AddressRange, PortRange, Protocol, Selector};
use testudo_wire::ip::Version;

/// One policy.
#[derive(Debug, Clone)]
pub(super) struct Entry {
    pub(super) selector: Selector,
    /// Whether its packets may pass in clear.
    pub(super) bypass: bool,
    /// Whether its packets are routed into the tunnel interface.
    pub(super) protect: bool,
    /// `tunnel site-b, selector 1`
    pub(super) name: String,
}

/// All policies: `[[policy]]` first, then each tunnel's selectors.
pub(super) fn entries(configuration: &Configuration) -> Vec<Entry> {
    let tunnel_name = |index: usize| configuration.tunnels.get(index).map_or("", |t| t.name.as_str());
    let policies = configuration.policies.iter().zip(1..).map(|(policy, number)| Entry {
        selector: policy.selector,
        bypass: policy.action == Action::Bypass,
        protect: matches!(policy.action, Action::Protect { .. }),
        name: match policy.action {
            Action::Protect { tunnel } => format!("policy {number}: protect, tunnel {}", tunnel_name(tunnel)),
            Action::Bypass => format!("policy {number}: bypass"),
            Action::Discard => format!("policy {number}: discard"),
        },
    });
    let own = configuration.tunnels.iter().flat_map(|tunnel| {
        tunnel.selectors.iter().zip(1..).map(move |(selector, number)| Entry {
            selector: *selector,
            bypass: false,
            protect: true,
            name: format!("tunnel {}, selector {number}", tunnel.name),
        })
    });
    policies.chain(own).collect()
}

/// The network of a prefix; `None` if it is every address, of one version or of both.
pub(super) fn network(range: AddressRange) -> Option<Network> {
    Network::of(range.covering_prefix()).filter(|network| network.length() > 0)
}

impl Entry {
    /// The remote network, if it names one.
    pub(super) fn remote(&self) -> Option<Network> {
        network(self.selector.remote)
    }

    /// The local network, if it names one.
    pub(super) fn local(&self) -> Option<Network> {
        network(self.selector.local)
    }

    /// Whether rules can tell its traffic from all other traffic on the host. A policy with any address at
    /// both ends is about the packets that the host routes into the tunnel, and it does not say which these
    /// are.
    pub(super) fn names_a_network(&self) -> bool {
        self.local().is_some() || self.remote().is_some()
    }

    /// The local network, if the remote one is wider and contains it. Packets between two local hosts are
    /// then none of the policy's, since they do not leave this side.
    pub(super) fn local_within_remote(&self) -> Option<Network> {
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
