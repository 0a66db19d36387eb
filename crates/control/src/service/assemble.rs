//! Translates a configuration into the parameters of the protocol.

use super::leases::Start;
use super::populated::PopulatedTunnel;
use crate::config::{self, Configuration};
use std::collections::HashMap;
use std::sync::Arc;
use testudo_ipsec::{
    Action, Direction, Directions, Endpoints, InboundParameters, NumberSource, OutboundParameters, Policy,
    PolicyId, PopulateFlags, SaParameters, Selector, Spd, Spent, TunnelIndex, TunnelParameters,
};

/// The SPD of a configuration whose tunnels have these `indices`: policies first, then each tunnel's own
/// selectors.
#[must_use]
pub fn policies(configuration: &Configuration, indices: &[TunnelIndex]) -> Spd {
    let explicit = configuration.policies.iter().map(|p| policy(p, indices));
    let own = configuration.tunnels.iter().enumerate().flat_map(|(tunnel, t)| {
        let action = Action::Protect(index(indices, tunnel));
        let policy = move |s: &Arc<_>| {
            let (directions, populate) = (Directions::Both, PopulateFlags::default());
            Policy { selectors: Arc::clone(s), directions, action, populate }
        };
        t.selectors.iter().map(policy)
    });
    let spd = Spd::new(explicit.chain(own));
    spd.unwrap_or_else(|error| unreachable!("the configuration was checked: {error}"))
}

/// The policies of the worker: those of a configuration, and directly ahead of each that populates SAs from
/// packets those of the tunnels that it has. Returns the names of the configuration's, in order, and the
/// tunnels with the names of theirs.
#[must_use]
pub fn with_populated(
    spd: &Spd,
    configuration: &Configuration,
    populated: Vec<PopulatedTunnel>,
) -> (Box<Spd>, Vec<PolicyId>, Vec<PopulatedTunnel>) {
    if populated.is_empty() {
        return (Box::new(spd.clone()), spd.policies().map(|(id, _)| id).collect(), populated);
    }
    let mut of_policy: HashMap<u32, Vec<PopulatedTunnel>> = HashMap::new();
    populated.into_iter().for_each(|tunnel| of_policy.entry(tunnel.policy).or_default().push(tunnel));
    let (mut all, mut owners) = (Vec::new(), Vec::new());
    for (place, (_, policy)) in spd.policies().enumerate() {
        let number = configuration.policies.get(place).map(|policy| policy.number);
        for tunnel in number.and_then(|number| of_policy.remove(&number)).unwrap_or_default() {
            all.push(policy.of_populated(tunnel.running.index, Arc::clone(&tunnel.selectors)));
            owners.push(Some(tunnel));
        }
        all.push(policy.clone());
        owners.push(None);
    }
    let spd = Spd::new(all).unwrap_or_else(|error| unreachable!("each was in an SPD before: {error}"));
    let (mut ids, mut tunnels) = (Vec::new(), Vec::new());
    for ((id, _), owner) in spd.policies().zip(owners) {
        match owner {
            Some(tunnel) => tunnels.push(PopulatedTunnel { id, ..tunnel }),
            None => ids.push(id),
        }
    }
    (Box::new(spd), ids, tunnels)
}

/// A policy of a configuration whose tunnels have these `indices`, as the SPD has it.
#[must_use]
pub fn policy(policy: &config::Policy, indices: &[TunnelIndex]) -> Policy {
    policy_for(policy, policy.tunnel().map(|tunnel| index(indices, tunnel)))
}

/// The same, where the index of the tunnel that it names is known.
#[must_use]
pub fn policy_for(policy: &config::Policy, index: Option<TunnelIndex>) -> Policy {
    let action = match policy.action {
        config::Action::Protect { .. } => {
            let index = index.unwrap_or(TunnelIndex(u32::MAX));
            if policy.populate.is_empty() { Action::Protect(index) } else { Action::Populate(index) }
        }
        config::Action::Bypass => Action::Bypass,
        config::Action::Discard => Action::Discard,
    };
    let (directions, populate) = (policy.directions, policy.populate);
    Policy { selectors: Arc::clone(&policy.selectors), directions, action, populate }
}

fn index(indices: &[TunnelIndex], tunnel: usize) -> TunnelIndex {
    indices.get(tunnel).copied().unwrap_or(TunnelIndex(u32::MAX))
}

/// The selectors of packets that may come through a tunnel: its own, and those of the policies on packets
/// that arrive which name it. Not those of policies for which it is a template: their tunnels have their own.
#[must_use]
pub fn tunnel_selectors(configuration: &Configuration, tunnel: usize) -> Arc<[Selector]> {
    let named = configuration.policies.iter().filter(|p| {
        let is_own = p.action == config::Action::Protect { tunnel } && p.populate.is_empty();
        is_own && p.directions.include(Direction::Inbound)
    });
    let own = configuration.tunnels.get(tunnel).into_iter().flat_map(|t| &t.selectors);
    named.map(|p| &p.selectors).chain(own).flat_map(|selectors| selectors.iter().copied()).collect()
}

/// What all SAs of a tunnel have in common.
#[must_use]
pub fn parameters(tunnel: &config::Tunnel, selectors: Arc<[Selector]>, path_mtu: u16) -> TunnelParameters {
    let remote = match tunnel.remote {
        config::Remote::Address(address) => Some(address),
        config::Remote::Any => None,
    };
    TunnelParameters {
        name: tunnel.name.as_str().into(),
        endpoints: Endpoints { local: tunnel.local, remote, encapsulation: tunnel.encapsulation },
        learn_remote: remote.is_none(),
        protocol: tunnel.protocol,
        mode: tunnel.mode,
        covered_by: None,
        covers: None,
        dscp: tunnel.dscp,
        rules: tunnel.rules,
        path_mtu: path_mtu.into(),
        fragmentation: tunnel.fragmentation,
        non_first_fragments: tunnel.non_first_fragments,
        keepalive: tunnel.keepalive,
        selectors: selectors.into(),
    }
}

/// The parameters of a tunnel's SA towards the peer, with sequence numbers and IVs as in `start`.
#[must_use]
pub fn outbound(tunnel: &config::Tunnel, start: Start, spent: Spent) -> OutboundParameters {
    let Start { first, iv_mask, lease } = start;
    let numbers = NumberSource::Leased { first, lease };
    OutboundParameters { sa: sa(tunnel, &tunnel.outbound, spent), numbers, iv_mask }
}

/// The parameters of a tunnel's SA from the peer.
#[must_use]
pub fn inbound(tunnel: &config::Tunnel, spent: Spent) -> InboundParameters {
    InboundParameters { sa: sa(tunnel, &tunnel.inbound, spent), replay_window: tunnel.replay_window }
}

fn sa(tunnel: &config::Tunnel, settings: &config::SaSettings, spent: Spent) -> SaParameters {
    let (suite, esn, lifetime) = (tunnel.suite, tunnel.esn, tunnel.lifetime);
    SaParameters { spi: settings.spi, suite, esn, lifetime, spent }
}
