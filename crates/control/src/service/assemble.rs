//! Makes of a configuration what the protocol works with.

use super::leases::Start;
use crate::config::{self, AddressRange, Configuration, Protocol};
use std::sync::Arc;
use std::time::Duration;
use testudo_crypto::KeyMaterial;
use testudo_ipsec::{
    Action, Dscp, Encapsulation, Endpoints, Lifetime, Limits, Policy, PortRange, Prefix, SaParameters,
    Selector, Spd, Spent, TunnelIndex, TunnelParameters,
};

/// A selector as the protocol has it.
#[must_use]
pub fn selector(from: &config::Selector) -> Selector {
    let prefix = |range: &AddressRange| match range {
        AddressRange::Any => Prefix::ANY,
        // A configured prefix fits its address, so that the fallback, which selects nothing of use, is never taken.
        AddressRange::Prefix(p) => Prefix::new(p.network(), p.length()).unwrap_or(Prefix::ANY),
    };
    let ports = |range: &config::PortRange| PortRange { first: range.first(), last: range.last() };
    Selector {
        local: prefix(&from.local),
        remote: prefix(&from.remote),
        protocol: match from.protocol {
            Protocol::Any => None,
            Protocol::Number(number) => Some(number),
        },
        local_ports: ports(&from.local_ports),
        remote_ports: ports(&from.remote_ports),
    }
}

/// The SPD of a configuration whose tunnels stand at `places`: policies first, then each tunnel's own selectors.
#[must_use]
pub fn policies(configuration: &Configuration, places: &[TunnelIndex]) -> Spd {
    let place = |tunnel: usize| places.get(tunnel).copied().unwrap_or(TunnelIndex(u32::MAX));
    let explicit = configuration.policies.iter().map(|policy| Policy {
        selector: selector(&policy.selector),
        action: match policy.action {
            config::Action::Protect { tunnel } => Action::Protect(place(tunnel)),
            config::Action::Bypass => Action::Bypass,
            config::Action::Discard => Action::Discard,
        },
    });
    let own = configuration.tunnels.iter().enumerate().flat_map(|(tunnel, t)| {
        t.selectors
            .iter()
            .map(move |s| Policy { selector: selector(s), action: Action::Protect(place(tunnel)) })
    });
    Spd::new(explicit.chain(own).collect())
}

/// What may come through a tunnel: its own selectors, and those of the policies that name it.
#[must_use]
pub fn tunnel_selectors(configuration: &Configuration, tunnel: usize) -> Arc<[Selector]> {
    let named = configuration.policies.iter().filter(|p| p.action == config::Action::Protect { tunnel });
    let own = configuration.tunnels.get(tunnel).into_iter().flat_map(|t| &t.selectors);
    named.map(|p| &p.selector).chain(own).map(selector).collect()
}

/// The parameters of a tunnel whose keys are new, with numbers and IVs as `start` has them.
#[must_use]
pub fn parameters(
    tunnel: &config::Tunnel,
    selectors: Arc<[Selector]>,
    path_mtu: u16,
    keys: &config::TunnelKeys,
    start: Start,
) -> TunnelParameters {
    let (encapsulation, keepalive) = match tunnel.encapsulation {
        config::Encapsulation::Esp => (Encapsulation::Esp, None),
        config::Encapsulation::EspInUdp { local_port, remote_port, keepalive } => {
            (Encapsulation::EspInUdp { local_port, remote_port }, keepalive)
        }
    };
    let remote = match tunnel.remote {
        config::Remote::Address(address) => Some(address),
        config::Remote::Any => None,
    };
    TunnelParameters {
        name: tunnel.name.as_str().into(),
        endpoints: Endpoints { local: tunnel.local, remote, encapsulation },
        learn_remote: remote.is_none(),
        suite: tunnel.suite,
        esn: tunnel.esn,
        replay_window: tunnel.replay_window,
        dscp: match tunnel.dscp {
            config::Dscp::Copy => Dscp::Copy,
            config::Dscp::Value(value) => Dscp::Fixed(value),
        },
        path_mtu: path_mtu.into(),
        keepalive,
        selectors,
        outbound: sa(&tunnel.outbound, &keys.outbound, &tunnel.lifetime),
        inbound: sa(&tunnel.inbound, &keys.inbound, &tunnel.lifetime),
        first_sequence: start.first,
        lease: start.lease,
        iv_mask: start.iv_mask,
    }
}

fn sa(settings: &config::SaSettings, key: &KeyMaterial, l: &config::Lifetime) -> SaParameters {
    let mut salt = [0; 4];
    salt.iter_mut().zip(key.salt()).for_each(|(to, from)| *to = *from);
    let limits = |bytes, packets, seconds: Option<u64>| Limits {
        bytes,
        packets,
        time: seconds.map(Duration::from_secs),
    };
    let lifetime = Lifetime {
        soft: limits(l.soft_bytes, l.soft_packets, l.soft_seconds),
        hard: limits(l.hard_bytes, l.hard_packets, l.hard_seconds),
    };
    SaParameters { spi: settings.spi, salt, lifetime, spent: Spent::default() }
}
