//! Translates a configuration into the parameters of the protocol.

use super::installed::Left;
use super::leases::Start;
use super::negotiated::NegotiatedPolicy;
use super::populated::PopulatedTunnel;
use super::sas::RunningSa;
use crate::config::{self, Configuration};
use std::collections::HashMap;
use std::sync::Arc;
use testudo_ipsec::{
    Action, Direction, Endpoints, InboundParameters, NumberSource, OutboundParameters, PeerHeard, Policy,
    PolicyId, PopulateFlags, SaParameters, SaSelectors, SaWorker, Selector, Spd, Spent, TunnelIndex,
    TunnelParameters,
};
use testudo_packet::Interface;

/// The SPD of a configuration whose tunnels have these `indices`: policies first, then each tunnel's own
/// selectors.
#[must_use]
pub fn policies(configuration: &Configuration, indices: &[TunnelIndex]) -> Spd {
    let explicit = configuration.policies.iter().map(|p| policy(p, indices));
    let own = configuration.tunnels.iter().enumerate().flat_map(|(tunnel, t)| {
        let action = Action::Protect(index(indices, tunnel));
        let (interface, populate) = (t.interface, PopulateFlags::default());
        t.entries().map(move |(selectors, directions)| Policy {
            selectors,
            interface,
            directions,
            action,
            populate,
            asks_for_own: false,
        })
    });
    let spd = Spd::new(explicit.chain(own));
    spd.unwrap_or_else(|error| unreachable!("the configuration was checked: {error}"))
}

/// The policies of the worker: those of a configuration, directly ahead of each that populates SAs from
/// packets those of the tunnels that it has, here by its number, and behind all of them what is negotiated.
/// Returns the names of the configuration's, in order, and those of the others.
#[must_use]
pub(super) fn at_run_time(
    spd: &Spd,
    configuration: &Configuration,
    mut of_policy: HashMap<u32, Vec<Arc<PopulatedTunnel>>>,
    negotiated: &[Arc<NegotiatedPolicy>],
) -> (Box<Spd>, Vec<PolicyId>, Left) {
    if of_policy.is_empty() && negotiated.is_empty() {
        return (Box::new(spd.clone()), spd.policies().map(|(id, _)| id).collect(), Left::default());
    }
    let (mut all, mut owners) = (Vec::new(), Vec::new());
    for (place, (_, policy)) in spd.policies().enumerate() {
        let number = configuration.policies.get(place).map(|policy| policy.number);
        for tunnel in number.and_then(|number| of_policy.remove(&number)).unwrap_or_default() {
            all.push(policy.of_populated(tunnel.running.index, Arc::clone(&tunnel.selectors)));
            owners.push(Owner::Populated(tunnel.number));
        }
        all.push(policy.clone());
        owners.push(Owner::Configuration);
    }
    for policy in negotiated {
        all.push(policy.entry.clone());
        owners.push(Owner::Negotiated(policy.index));
    }
    let spd = Spd::new(all).unwrap_or_else(|error| unreachable!("each was in an SPD before: {error}"));
    let (mut ids, mut left) = (Vec::new(), Left::default());
    for ((id, _), owner) in spd.policies().zip(owners) {
        match owner {
            Owner::Configuration => ids.push(id),
            Owner::Populated(number) => drop(left.populated.insert(number, id)),
            Owner::Negotiated(index) => drop(left.negotiated.insert(index, id)),
        }
    }
    (Box::new(spd), ids, left)
}

/// Whose policy it is.
enum Owner {
    Configuration,
    /// A flow's tunnel, by its number.
    Populated(u64),
    /// Negotiated, by its index in XFRM.
    Negotiated(u32),
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
    let config::Policy { selectors, directions, populate, .. } = policy;
    Policy {
        selectors: Arc::clone(selectors),
        interface: Interface::MAIN,
        directions: *directions,
        action,
        populate: *populate,
        // With typed-in keys no worker asks.
        asks_for_own: false,
    }
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
    let own = configuration.tunnels.get(tunnel).into_iter().flat_map(|t| t.entries());
    let own = own.filter(|(_, directions)| directions.include(Direction::Inbound));
    let named = named.map(|policy| Arc::clone(&policy.selectors));
    let all = named.chain(own.map(|(selectors, _)| selectors));
    all.flat_map(|selectors| selectors.to_vec()).collect()
}

/// What all SAs of a tunnel have in common.
#[must_use]
pub fn parameters(tunnel: &config::Tunnel, selectors: Arc<[Selector]>, path_mtu: u16) -> TunnelParameters {
    let endpoints = endpoints(tunnel);
    TunnelParameters {
        name: tunnel.name.as_str().into(),
        endpoints,
        learn_remote: endpoints.remote.is_none(),
        interface: tunnel.interface,
        protocol: tunnel.protocol,
        mode: tunnel.mode,
        covered_by: None,
        covers: None,
        dscp: tunnel.dscp,
        rules: tunnel.rules.clone(),
        path_mtu: path_mtu.into(),
        fragmentation: tunnel.fragmentation,
        non_first_fragments: tunnel.non_first_fragments,
        acquires: false,
        peer_heard: PeerHeard::default(),
        keepalive: tunnel.keepalive,
        selectors: sa_selectors(tunnel, selectors.iter().copied()),
    }
}

/// The outer ends of a tunnel, as the worker is given them.
fn endpoints(tunnel: &config::Tunnel) -> Endpoints {
    let remote = match tunnel.remote {
        config::Remote::Address(address) => Some(address),
        config::Remote::Any => None,
    };
    Endpoints { local: tunnel.local, remote, encapsulation: tunnel.encapsulation }
}

/// What the worker compares packets from a tunnel with. More than eight get an index, which is made here, so
/// that the worker does not make it.
#[must_use]
pub fn sa_selectors(tunnel: &config::Tunnel, selectors: impl IntoIterator<Item = Selector>) -> SaSelectors {
    SaSelectors::new(selectors, tunnel.mode, &endpoints(tunnel))
}

/// The parameters of a tunnel's SA towards the peer, with sequence numbers and IVs as in `start`.
#[must_use]
pub fn outbound(tunnel: &config::Tunnel, of: &RunningSa, start: Start, spent: Spent) -> OutboundParameters {
    let Start { first, iv_mask, lease } = start;
    let numbers = NumberSource::Leased { first, lease };
    OutboundParameters { sa: sa(tunnel, of, spent), numbers, iv_mask, worker: of.worker.map(SaWorker::new) }
}

/// The parameters of a tunnel's SA from the peer.
#[must_use]
pub fn inbound(tunnel: &config::Tunnel, of: &RunningSa, spent: Spent) -> InboundParameters {
    let (sa, replay_window) = (sa(tunnel, of, spent), tunnel.replay_window);
    InboundParameters { sa, replay_window, from_any_port: false }
}

fn sa(tunnel: &config::Tunnel, of: &RunningSa, spent: Spent) -> SaParameters {
    let (suite, esn, lifetime) = (tunnel.suite, tunnel.esn, tunnel.lifetime());
    SaParameters { spi: of.spi, suite, esn, lifetime, spent }
}
