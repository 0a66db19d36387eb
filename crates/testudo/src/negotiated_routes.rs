//! The host's routes because of what is negotiated: in a routing table of their own, by which packets with
//! the mark of `[ike]` pass.

use crate::{host_routes, reverse_path};
use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::{Mutex, MutexGuard, PoisonError};
use testudo_control::Configuration;
use testudo_control::config::{Ike, Network};
use testudo_control::firewall::{RouteChange, TunnelRoute};
use testudo_control::service::negotiated::NegotiatedRoutes;
use testudo_port_tun::ConfigureError;
use testudo_port_tun::configure::{
    Prefix, Route, RoutingTable, add_route, change_source, remove_route, restore, restore_source,
};

/// They and the rules that lead to them.
pub struct HostTable {
    interface: String,
    table: RoutingTable,
    /// Whether the configuration has routes at all.
    is_used: bool,
    /// What the kernel says where it has no rules, of IPv4 and of IPv6.
    refusals: [Option<String>; 2],
    routes: Mutex<State>,
}

#[derive(Default)]
struct State {
    routes: HashMap<Prefix, Route>,
    /// The gateway ends: none is made any more.
    is_closed: bool,
}

/// All addresses of IPv4, and of IPv6.
const ALL: [Prefix; 2] = [
    Prefix { address: IpAddr::V4(Ipv4Addr::UNSPECIFIED), bits: 0 },
    Prefix { address: IpAddr::V6(Ipv6Addr::UNSPECIFIED), bits: 0 },
];

impl HostTable {
    /// Takes the table of `[ike]`, and removes what a gateway has left there that was killed. Packets to
    /// peers have the mark if they are `marked`.
    pub fn take(configuration: &Configuration, ike: &Ike, marked: bool) -> Self {
        let mark = if marked { ike.mark } else { 0 };
        let interface = configuration.protected.name.clone();
        let table = RoutingTable { number: ike.routing_table, priority: ike.rule_priority, mark };
        let is_used = configuration.protected.routes;
        let cleared = if is_used { ALL.map(|any| table.clear(any).err()) } else { [None, None] };
        let refusals = cleared.map(|error| error.map(|error| error.to_string()));
        let [ipv4, ipv6] = &refusals;
        if let Some(error) = ipv4 {
            tracing::warn!("no routes to negotiated networks are made: {error}; negotiations are refused");
        }
        // A host without IPv6 has no rules of IPv6, either, and most such hosts negotiate none.
        if let Some(error) = ipv6 {
            tracing::info!("no routes to negotiated networks of IPv6 are made: {error}; these are refused");
        }
        Self { interface, table, is_used, refusals, routes: Mutex::default() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.routes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn route(&self, route: TunnelRoute) -> Route {
        Route { table: self.table.number, ..host_routes::route(route) }
    }

    fn add(&self, state: &mut State, route: Route) -> Result<(), ConfigureError> {
        // Rules first: a table without routes is passed over.
        self.table.open_to(route.destination)?;
        state.routes.insert(route.destination, route);
        add_route(&self.interface, route)?;
        if let Some(error) = self.table.refusal(route.destination) {
            tracing::warn!(
                "{error}: a route of the main table refuses what goes there (`ip route get`), and wins; take it away, or \
                 move it to a table behind the main one"
            );
        }
        Ok(())
    }

    /// Gives a route another source. At no time there is none.
    fn replace(&self, state: &mut State, old: Route, new: Route) -> Result<(), ConfigureError> {
        state.routes.insert(new.destination, new);
        change_source(&self.interface, old, new)
    }

    fn remove(&self, state: &mut State, route: Route) -> Result<(), ConfigureError> {
        state.routes.remove(&route.destination);
        let removed = remove_route(&self.interface, route);
        let of_kind = |prefix: Prefix| (prefix.address.is_ipv4(), prefix.bits);
        let is_last = state.routes.keys().all(|other| of_kind(*other) != of_kind(route.destination));
        let closed = if is_last { self.table.close_to(route.destination) } else { Ok(()) };
        removed.and(closed)
    }

    /// Restores the routes of the interface, which was down and is up again. Returns what failed.
    pub fn restore(&self) -> Vec<ConfigureError> {
        // Held until they are there: none may come back that is taken away meanwhile.
        let state = self.state();
        let routes: Vec<Route> = state.routes.values().copied().collect();
        if routes.is_empty() { Vec::new() } else { restore(&self.interface, &[], &routes) }
    }

    /// Restores the routes whose source is an address that the host has again. Returns what failed.
    pub fn restore_source(&self, address: IpAddr) -> Vec<ConfigureError> {
        let state = self.state();
        let routes: Vec<Route> = state.routes.values().copied().collect();
        restore_source(&self.interface, address, &routes)
    }

    /// Leaves nothing.
    pub fn close(&self) {
        let mut state = self.state();
        state.is_closed = true;
        if !self.is_used {
            return;
        }
        let ruled = ALL.into_iter().zip(&self.refusals).filter(|(_, refusal)| refusal.is_none());
        // The interface takes the routes along.
        for error in ruled.filter_map(|(any, _)| self.table.clear(any).err()) {
            tracing::debug!("rules are left: {error}");
        }
    }
}

impl NegotiatedRoutes for HostTable {
    fn refusal(&self) -> Option<String> {
        let [ipv4, ipv6] = &self.refusals;
        ipv4.clone().filter(|_| ipv6.is_some())
    }

    fn refusal_to(&self, network: Network) -> Option<String> {
        let [ipv4, ipv6] = &self.refusals;
        if network.address().is_ipv4() { ipv4.clone() } else { ipv6.clone() }
    }

    fn spare_peers(&self) -> bool {
        self.table.mark != 0
    }

    fn change(&self, change: RouteChange, peer: Option<IpAddr>) -> Result<(), String> {
        let mut state = self.state();
        if state.is_closed {
            return Ok(());
        }
        let route = |route: Option<TunnelRoute>| route.map(|route| self.route(route));
        let changed = match (route(change.before), route(change.after)) {
            (Some(old), Some(new)) => self.replace(&mut state, old, new),
            (Some(old), None) => self.remove(&mut state, old),
            (None, Some(new)) => self.add(&mut state, new),
            (None, None) => Ok(()),
        };
        drop(state);
        if let Some(warning) = peer.and_then(|peer| reverse_path::warning_anywhere(&self.interface, peer)) {
            tracing::warn!("{warning}");
        }
        changed.map_err(|error| error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_with_rules_of_one_ip_version_refuses_the_other_alone() {
        let refused = |ipv4: Option<&str>, ipv6: Option<&str>| {
            let table = HostTable {
                interface: "t0".into(),
                table: RoutingTable { number: 7465, priority: 32000, mark: 0 },
                is_used: true,
                refusals: [ipv4, ipv6].map(|refusal| refusal.map(str::to_owned)),
                routes: Mutex::default(),
            };
            let networks = ["10.9.0.1", "fd09::1"].map(|host| Network::host(host.parse().unwrap()));
            (table.refusal().is_some(), networks.map(|network| table.refusal_to(network)))
        };
        let said = |why: &str| Some(why.to_owned());
        assert_eq!(refused(None, None), (false, [None, None]));
        assert_eq!(refused(None, Some("no IPv6")), (false, [None, said("no IPv6")]));
        assert_eq!(refused(Some("no IPv4"), None), (false, [said("no IPv4"), None]));
        assert_eq!(refused(Some("no"), Some("nor")), (true, [said("no"), said("nor")]));
    }
}
