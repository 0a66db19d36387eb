//! The outer addresses of all tunnels: ours, where SAs end, and those of the peers. Fragments are reassembled
//! at the former, and get more room from the latter ([`crate::fragments`]).

use crate::gradual_map::GradualMap;
use std::net::IpAddr;

/// Addresses, with a reference count of the tunnels that have each.
#[derive(Debug, Default)]
struct Counted(GradualMap<IpAddr, u32>);

impl Counted {
    fn add(&mut self, address: IpAddr) {
        match self.0.get_mut(&address) {
            Some(users) => *users += 1,
            None => self.0.insert(address, 1),
        }
    }

    fn contains(&self, address: IpAddr) -> bool {
        self.0.get(&address).is_some()
    }

    fn unref(&mut self, address: IpAddr) {
        let Some(users) = self.0.get_mut(&address) else { return };
        *users -= 1;
        if *users == 0 {
            self.0.remove(&address);
        }
    }
}

/// The outer addresses of all tunnels.
#[derive(Debug, Default)]
pub(crate) struct OuterAddresses {
    local: Counted,
    peers: Counted,
}

impl OuterAddresses {
    /// Adds a tunnel. Its peer may be unknown.
    pub(crate) fn add(&mut self, local: IpAddr, peer: Option<IpAddr>) {
        self.local.add(local);
        self.move_peer(None, peer);
    }

    /// Removes a tunnel, whose peer has this address now.
    pub(crate) fn unref(&mut self, local: IpAddr, peer: Option<IpAddr>) {
        self.local.unref(local);
        self.move_peer(peer, None);
    }

    /// The peer of a tunnel has another address.
    pub(crate) fn move_peer(&mut self, from: Option<IpAddr>, to: Option<IpAddr>) {
        if let Some(to) = to {
            self.peers.add(to);
        }
        if let Some(from) = from {
            self.peers.unref(from);
        }
    }

    /// Whether SAs end at this address.
    pub(crate) fn is_local(&self, address: IpAddr) -> bool {
        self.local.contains(address)
    }

    /// Whether an SA sends to this address.
    pub(crate) fn is_peer(&self, address: IpAddr) -> bool {
        self.peers.contains(address)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_stays_until_its_last_tunnel_leaves_it() {
        let [us, a, b] = ["192.0.2.1", "192.0.2.2", "2001:db8::2"].map(|text| text.parse().unwrap());
        let mut addresses = OuterAddresses::default();
        addresses.add(us, Some(a));
        addresses.add(us, Some(a));
        addresses.add(us, None);
        assert!(addresses.is_local(us) && addresses.is_peer(a) && !addresses.is_peer(b));
        addresses.move_peer(None, Some(b));
        addresses.move_peer(Some(a), Some(b));
        assert!(addresses.is_peer(a) && addresses.is_peer(b) && !addresses.is_local(a));
        addresses.unref(us, Some(a));
        addresses.unref(us, Some(b));
        assert!(!addresses.is_peer(a) && addresses.is_peer(b) && addresses.is_local(us));
        addresses.unref(us, Some(b));
        assert!(!addresses.is_peer(b) && !addresses.is_local(us));
        addresses.unref(us, Some(b));
    }
}
