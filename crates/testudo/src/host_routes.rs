//! The host's routes into the tunnels: one to each selector's remote network.

use crate::reverse_path;
use std::collections::HashMap;
use std::net::IpAddr;
use testudo_control::Configuration;
use testudo_control::firewall::{RouteChange, TunnelRoute, tunnel_routes};
use testudo_port_tun::ConfigureError;
use testudo_port_tun::configure::{Prefix, Route, add_route, change_source, remove_route};

/// The routes of a configuration; none if it turns them off.
pub fn wanted(configuration: &Configuration) -> Vec<Route> {
    tunnel_routes(configuration).into_iter().map(route).collect()
}

fn route(route: TunnelRoute) -> Route {
    let destination = Prefix::new(route.network.address(), route.network.length());
    Route { destination, source: route.source }
}

/// Makes single changes; new ones may lead to networks with this `peer`. After a failure the others are still
/// made; the first error is returned.
pub fn edit(
    configuration: &Configuration,
    changes: &[RouteChange],
    peer: Option<IpAddr>,
) -> Result<(), String> {
    let interface = &configuration.protected.name;
    let outcomes: Vec<Result<(), ConfigureError>> = changes
        .iter()
        .map(|change| match (change.before.map(route), change.after.map(route)) {
            (Some(old), Some(new)) => change_source(interface, old, new),
            (Some(old), None) => remove_route(interface, old),
            (None, Some(new)) => add_route(interface, new),
            (None, None) => Ok(()),
        })
        .collect();
    if let Some(warning) = peer.and_then(|peer| reverse_path::warning_of(configuration, peer)) {
        tracing::warn!("{warning}");
    }
    outcomes.into_iter().collect::<Result<(), _>>().map_err(|e| e.to_string())
}

/// Replaces the routes of the old configuration by those of the new one. After a failure the other routes are
/// still changed; the first error is returned.
pub fn change(old: &Configuration, new: &Configuration) -> Result<(), String> {
    let interface = &new.protected.name;
    let (before, after) = (wanted(old), wanted(new));
    let by_destination = |routes: &[Route]| -> HashMap<Prefix, Route> {
        routes.iter().map(|route| (route.destination, *route)).collect()
    };
    let (known, kept) = (by_destination(&before), by_destination(&after));
    let gone = before.into_iter().filter(|route| !kept.contains_key(&route.destination));
    let removed = gone.map(|route| remove_route(interface, route));
    let changed = after.into_iter().filter_map(|route| match known.get(&route.destination) {
        Some(same) if *same == route => None,
        Some(other) => Some(change_source(interface, *other, route)),
        None => Some(add_route(interface, route)),
    });
    let outcomes: Vec<Result<(), ConfigureError>> = removed.chain(changed).collect();
    if let (None, Some(warning)) = (reverse_path::warning(old), reverse_path::warning(new)) {
        tracing::warn!("{warning}");
    }
    outcomes.into_iter().collect::<Result<(), _>>().map_err(|e| e.to_string())
}
