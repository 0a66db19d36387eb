//! The SPD of a configuration as the rules see it: policies in their order, each with a name for people.

use crate::config::{Action, AddressRange, Configuration, Prefix, Selector};

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

/// All policies: `[[policy]]` first, then the selectors of each tunnel.
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

/// The network of a range; `None` where it is everything, of one version or of both.
pub(super) fn network(range: AddressRange) -> Option<Prefix> {
    match range {
        AddressRange::Prefix(prefix) if prefix.length() > 0 => Some(prefix),
        AddressRange::Any | AddressRange::Prefix(_) => None,
    }
}

impl Entry {
    /// The remote network, if it names one.
    pub(super) fn remote(&self) -> Option<Prefix> {
        network(self.selector.remote)
    }

    /// The local network, if it names one.
    pub(super) fn local(&self) -> Option<Prefix> {
        network(self.selector.local)
    }

    /// Whether rules can tell its traffic from everything else on the host. One that takes any address at
    /// both ends is about the packets that the host routes into the tunnel, and nothing in it says which
    /// these are.
    pub(super) fn names_a_network(&self) -> bool {
        self.local().is_some() || self.remote().is_some()
    }

    /// The local network, where the remote one is wider and holds it: packets between two local hosts are
    /// then none of the policy's, for they do not leave this side.
    pub(super) fn local_within_remote(&self) -> Option<Prefix> {
        let local = self.local()?;
        let holds = match self.selector.remote {
            AddressRange::Any => true,
            AddressRange::Prefix(remote) => remote.covers(&local) && remote.length() < local.length(),
        };
        holds.then_some(local)
    }

    /// The IP versions that its packets may have.
    pub(super) fn versions(&self) -> impl Iterator<Item = bool> + use<> {
        let (local, remote) = (self.selector.local.is_ipv6(), self.selector.remote.is_ipv6());
        [false, true]
            .into_iter()
            .filter(move |v| local.is_none_or(|l| l == *v) && remote.is_none_or(|r| r == *v))
    }

    /// Whether addresses alone decide.
    pub(super) fn is_by_address_alone(&self) -> bool {
        use crate::config::{PortRange, Protocol};
        let Selector { protocol, local_ports, remote_ports, .. } = self.selector;
        protocol == Protocol::Any && local_ports == PortRange::ANY && remote_ports == PortRange::ANY
    }
}
