//! Translates a configuration into the parameters of the protocol.

use super::leases::Start;
use crate::config::{self, Configuration};
use std::sync::Arc;
use testudo_ipsec::{
    Action, Direction, Directions, Endpoints, InboundParameters, NumberSource, OutboundParameters, Policy,
    SaParameters, Selector, Spd, Spent, TunnelIndex, TunnelParameters,
};

/// The SPD of a configuration whose tunnels have these `indices`: policies first, then each tunnel's own
/// selectors.
#[must_use]
pub fn policies(configuration: &Configuration, indices: &[TunnelIndex]) -> Spd {
    let explicit = configuration.policies.iter().map(|p| policy(p, indices));
    let own = configuration.tunnels.iter().enumerate().flat_map(|(tunnel, t)| {
        let action = Action::Protect(index(indices, tunnel));
        let policy =
            move |s: &Arc<_>| Policy { selectors: Arc::clone(s), directions: Directions::Both, action };
        t.selectors.iter().map(policy)
    });
    let spd = Spd::new(explicit.chain(own));
    spd.unwrap_or_else(|error| unreachable!("the configuration was checked: {error}"))
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
        config::Action::Protect { .. } => Action::Protect(index.unwrap_or(TunnelIndex(u32::MAX))),
        config::Action::Bypass => Action::Bypass,
        config::Action::Discard => Action::Discard,
    };
    Policy { selectors: Arc::clone(&policy.selectors), directions: policy.directions, action }
}

fn index(indices: &[TunnelIndex], tunnel: usize) -> TunnelIndex {
    indices.get(tunnel).copied().unwrap_or(TunnelIndex(u32::MAX))
}

/// The selectors of packets that may come through a tunnel: its own, and those of the policies on packets
/// that arrive which name it.
#[must_use]
pub fn tunnel_selectors(configuration: &Configuration, tunnel: usize) -> Arc<[Selector]> {
    let named = configuration.policies.iter().filter(|p| {
        p.action == config::Action::Protect { tunnel } && p.directions.include(Direction::Inbound)
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
        selectors,
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
