//! The outer addresses of all tunnels: ours, where SAs end, and those of the peers. Fragments are reassembled
//! at the former, and get more room from the latter; those from one to the other are put together for
//! transport mode ([`crate::fragments`]).

use crate::encap::Mode;
use crate::gradual_map::GradualMap;
use crate::tunnel::TunnelParameters;
use std::hash::Hash;
use std::net::IpAddr;

/// Addresses, or pairs of them, with a reference count of the tunnels that have each.
#[derive(Debug)]
struct Counted<K>(GradualMap<K, u32>);

impl<K> Default for Counted<K> {
    fn default() -> Self {
        Self(GradualMap::default())
    }
}

impl<K: Hash + Eq> Counted<K> {
    fn add(&mut self, key: K) {
        match self.0.get_mut(&key) {
            Some(users) => *users += 1,
            None => self.0.insert(key, 1),
        }
    }

    fn contains(&self, key: &K) -> bool {
        self.0.get(key).is_some()
    }

    fn unref(&mut self, key: &K) {
        let Some(users) = self.0.get_mut(key) else { return };
        *users -= 1;
        if *users == 0 {
            self.0.remove(key);
        }
    }
}

/// The outer addresses of all tunnels.
#[derive(Debug, Default)]
pub(crate) struct OuterAddresses {
    local: Counted<IpAddr>,
    peers: Counted<IpAddr>,
    /// Of us and a peer, where packets between these two are carried in transport mode.
    hosts: Counted<(IpAddr, IpAddr)>,
}

impl OuterAddresses {
    /// Adds a tunnel. Its peer may be unknown.
    pub(crate) fn add(&mut self, tunnel: &TunnelParameters) {
        self.local.add(tunnel.endpoints.destination());
        self.add_peer(tunnel);
    }

    /// Removes a tunnel, with the addresses that it has now.
    pub(crate) fn unref(&mut self, tunnel: &TunnelParameters) {
        self.local.unref(&tunnel.endpoints.destination());
        self.unref_peer(tunnel);
    }

    /// Adds the peer of a tunnel, at the address that it has now.
    pub(crate) fn add_peer(&mut self, tunnel: &TunnelParameters) {
        let Some(peer) = tunnel.endpoints.remote else { return };
        self.peers.add(peer);
        if is_between_hosts(tunnel) {
            self.hosts.add((tunnel.endpoints.local, peer));
        }
    }

    /// Removes the peer of a tunnel, before it gets another address.
    pub(crate) fn unref_peer(&mut self, tunnel: &TunnelParameters) {
        let Some(peer) = tunnel.endpoints.remote else { return };
        self.peers.unref(&peer);
        if is_between_hosts(tunnel) {
            self.hosts.unref(&(tunnel.endpoints.local, peer));
        }
    }

    /// Whether SAs end at this address.
    pub(crate) fn is_local(&self, address: IpAddr) -> bool {
        self.local.contains(&address)
    }

    /// Whether an SA sends to this address.
    pub(crate) fn is_peer(&self, address: IpAddr) -> bool {
        self.peers.contains(&address)
    }

    /// Whether packets from the one to the other may be carried in transport mode.
    pub(crate) fn are_hosts(&self, local: IpAddr, peer: IpAddr) -> bool {
        self.hosts.contains(&(local, peer))
    }
}

/// Whether a tunnel carries packets of its two ends themselves. What AH covers is ESP of another one.
fn is_between_hosts(tunnel: &TunnelParameters) -> bool {
    tunnel.mode == Mode::Transport && tunnel.covers.is_none()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::encap::IpsecProtocol;
    use crate::encap::template::Dscp;
    use crate::packet_rules::PacketRules;
    use crate::peer_heard::PeerHeard;
    use crate::spd::SaSelectors;
    use crate::tunnel::{Encapsulation, Endpoints, Fragmentation};
    use testudo_packet::Interface;

    fn tunnel(local: &str, remote: Option<&str>, mode: Mode) -> TunnelParameters {
        TunnelParameters {
            name: "t".into(),
            endpoints: Endpoints {
                local: local.parse().unwrap(),
                remote: remote.map(|text| text.parse().unwrap()),
                encapsulation: Encapsulation::Esp,
            },
            learn_remote: false,
            interface: Interface::MAIN,
            protocol: IpsecProtocol::Esp,
            mode,
            covered_by: None,
            covers: None,
            dscp: Dscp::Copy,
            rules: PacketRules::default(),
            path_mtu: 1500,
            fragmentation: Fragmentation::Before,
            non_first_fragments: false,
            acquires: false,
            peer_heard: PeerHeard::default(),
            keepalive: None,
            selectors: SaSelectors::default(),
        }
    }

    #[test]
    fn an_address_stays_until_its_last_tunnel_leaves_it() {
        const US: &str = "192.0.2.1";
        const A: &str = "192.0.2.2";
        const B: &str = "2001:db8::2";
        let [us, a, b] = [US, A, B].map(|text| text.parse().unwrap());
        let mut addresses = OuterAddresses::default();
        let mut moving = tunnel(US, Some(A), Mode::Transport);
        let (fixed, mut unknown) = (tunnel(US, Some(A), Mode::Tunnel), tunnel(US, None, Mode::Tunnel));
        [&moving, &fixed, &unknown].into_iter().for_each(|tunnel| addresses.add(tunnel));
        assert!(addresses.is_local(us) && addresses.is_peer(a) && !addresses.is_peer(b));
        assert!(addresses.are_hosts(us, a) && !addresses.are_hosts(a, us));
        for tunnel in [&mut moving, &mut unknown] {
            addresses.unref_peer(tunnel);
            tunnel.endpoints.remote = Some(b);
            addresses.add_peer(tunnel);
        }
        assert!(addresses.is_peer(a) && addresses.is_peer(b) && !addresses.is_local(a));
        assert!(addresses.are_hosts(us, b) && !addresses.are_hosts(us, a), "the one in tunnel mode is none");
        addresses.unref(&fixed);
        addresses.unref(&moving);
        assert!(!addresses.is_peer(a) && addresses.is_peer(b) && addresses.is_local(us));
        assert!(!addresses.are_hosts(us, b));
        addresses.unref(&unknown);
        assert!(!addresses.is_peer(b) && !addresses.is_local(us));
        addresses.unref(&unknown);
    }
}
