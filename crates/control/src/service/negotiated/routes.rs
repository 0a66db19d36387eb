//! Routes into the gateway because of negotiated policies. They are in a routing table of their own, so that
//! packets to the peers themselves may pass by them: those of the configuration, in the main table, are not
//! concerned.

use super::data_path::Work;
use super::policies::NegotiatedPolicy;
use super::template::{TemplateKey, unsupported};
use super::{NegotiatedTunnels, Table};
use crate::config::Network;
use crate::firewall::{RouteChange, TunnelRoute};
use std::net::IpAddr;
use testudo_wire::netlink::ack::Refusal;

/// The host's routes because of what is negotiated.
pub trait NegotiatedRoutes: Send + Sync {
    /// Why none can be made at all, if that is so.
    fn refusal(&self) -> Option<String>;

    /// Why none can be made to this network, if that is so: a host may have rules of one IP version only.
    fn refusal_to(&self, _network: Network) -> Option<String> {
        self.refusal()
    }

    /// Whether what the gateway and daemons send to peers passes by them. Then they may lead to peers, and
    /// anywhere.
    fn spare_peers(&self) -> bool;

    /// Makes a route, takes it away, or gives it another source. A new one may lead to a network with this
    /// outer address of a peer.
    ///
    /// # Errors
    /// What the kernel refuses, in words.
    fn change(&self, change: RouteChange, peer: Option<IpAddr>) -> Result<(), String>;
}

impl NegotiatedTunnels {
    /// The outer address of a peer in a network: of this tunnel, or else of any.
    fn peer_in(&self, network: Network, key: Option<TemplateKey>) -> Option<IpAddr> {
        let own = key.map(|key| key.remote).filter(|peer| network.contains(*peer));
        own.or_else(|| self.table().peer_in(network))
    }
}

impl Table {
    /// The route to a network before and after one policy more asks for it. Of several sources it has the
    /// lowest, in any order of arrival.
    fn route_asked(&mut self, asked: TunnelRoute) -> RouteChange {
        let (kept, count) = self.routes.entry(asked.network).or_insert((asked.source, 0));
        let before = (*count > 0).then_some(TunnelRoute { source: *kept, ..asked });
        *kept = (*kept).into_iter().chain(asked.source).min();
        *count += 1;
        RouteChange { before, after: Some(TunnelRoute { source: *kept, ..asked }) }
    }

    /// The same for one less, which is among the policies no more.
    fn route_left(&mut self, left: TunnelRoute) -> RouteChange {
        let Some((kept, count)) = self.routes.get(&left.network).copied() else {
            return RouteChange { before: None, after: None };
        };
        let before = Some(TunnelRoute { source: kept, ..left });
        if count <= 1 {
            self.routes.remove(&left.network);
            return RouteChange { before, after: None };
        }
        // Only with the lowest source itself another one becomes the lowest.
        let is_lowest = left.source.is_some() && left.source == kept;
        let source = if is_lowest { self.lowest_source(left.network) } else { kept };
        self.routes.insert(left.network, (source, count - 1));
        RouteChange { before, after: Some(TunnelRoute { source, ..left }) }
    }

    /// The lowest source of the policies that ask for a route to a network.
    fn lowest_source(&self, network: Network) -> Option<IpAddr> {
        let policies = self.policies.all();
        let routes = policies.iter().filter_map(|policy| policy.route);
        routes.filter(|route| route.network == network).filter_map(|route| route.source).min()
    }
}

impl Work<'_> {
    fn peer_in(&self, network: Network, key: Option<TemplateKey>) -> Option<IpAddr> {
        let configured = || self.installed.book.index.peers_in(network).next().map(|(peer, _)| peer);
        self.tunnels().peer_in(network, key).or_else(configured)
    }

    fn makes_routes(&self) -> bool {
        self.installed.book.routes.is_on()
    }

    /// A route into the gateway must not catch the packets of the key exchange itself, nor the gateway's own.
    pub(super) fn check_route(
        &self,
        route: Option<TunnelRoute>,
        key: Option<TemplateKey>,
    ) -> Result<(), Refusal> {
        let Some(network) = route.map(|route| route.network).filter(|_| self.makes_routes()) else {
            return Ok(());
        };
        if let Some(why) = self.routes.refusal_to(network) {
            return Err(unsupported(format!(
                "there can be no route to {network}: {why}; make routes of your own with `routes = false` in \
                 [port.protected]"
            )));
        }
        let peer = self.peer_in(network, key).filter(|_| !self.routes.spare_peers());
        let Some(peer) = peer else { return Ok(()) };
        Err(unsupported(format!(
            "a route to {network} would lead packets to the peer {peer} themselves into the tunnel, because they \
             have no mark: see `mark` in [ike], name narrower networks, or make routes of your own with \
             `routes = false` in [port.protected]"
        )))
    }

    /// One policy more or less asks for a route.
    pub(super) fn count_route(&self, route: TunnelRoute, is_new: bool) {
        let mut table = self.tunnels().table();
        let change = if is_new { table.route_asked(route) } else { table.route_left(route) };
        drop(table);
        if change.before == change.after || !self.makes_routes() {
            return;
        }
        let peer = self.peer_in(route.network, None).filter(|_| change.before.is_none());
        if let Err(error) = self.routes.change(change, peer) {
            tracing::error!("routes of what is negotiated: {error}");
        }
    }

    /// A policy that is gone asks for no route any more.
    pub(super) fn uncount_route_of(&self, gone: &NegotiatedPolicy) {
        let Some(route) = gone.route else { return };
        let mut table = self.tunnels().table();
        // Daemons update policies all the time: one in its place that asks for the same changes nothing.
        let has_successor = table.policies.get(gone.index).is_some_and(|next| next.route == gone.route);
        let counted = table.routes.get_mut(&route.network).filter(|(_, count)| has_successor && *count > 1);
        if let Some((_, count)) = counted {
            *count -= 1;
            return;
        }
        drop(table);
        self.count_route(route, false);
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use std::sync::{Arc, Mutex};

    /// Notes what is asked of it.
    #[derive(Debug, Default)]
    pub(in super::super) struct NotedRoutes {
        pub(in super::super) changes: Mutex<Vec<RouteChange>>,
        /// Peers in new networks.
        pub(in super::super) peers: Mutex<Vec<IpAddr>>,
        pub(in super::super) spare_peers: bool,
        pub(in super::super) refusal: Option<String>,
        /// Of networks of IPv6 alone.
        pub(in super::super) refusal_of_ipv6: Option<String>,
    }

    impl NotedRoutes {
        pub(in super::super) fn new() -> Arc<Self> {
            Arc::default()
        }

        pub(in super::super) fn changes(&self) -> Vec<RouteChange> {
            self.changes.lock().unwrap().clone()
        }
    }

    impl NegotiatedRoutes for NotedRoutes {
        fn refusal(&self) -> Option<String> {
            self.refusal.clone()
        }

        fn refusal_to(&self, network: Network) -> Option<String> {
            let of_ipv6 = self.refusal_of_ipv6.clone().filter(|_| network.address().is_ipv6());
            of_ipv6.or_else(|| self.refusal())
        }

        fn spare_peers(&self) -> bool {
            self.spare_peers
        }

        fn change(&self, change: RouteChange, peer: Option<IpAddr>) -> Result<(), String> {
            self.changes.lock().unwrap().push(change);
            self.peers.lock().unwrap().extend(peer);
            Ok(())
        }
    }
}
