//! The host's routes into the tunnels: one to each selector's remote network.

use crate::reverse_path;
use std::collections::HashMap;
use testudo_control::Configuration;
use testudo_control::firewall::tunnel_routes;
use testudo_port_tun::ConfigureError;
use testudo_port_tun::configure::{Prefix, Route, add_route, change_source, remove_route};

/// The routes of a configuration; none if it turns them off.
pub fn wanted(configuration: &Configuration) -> Vec<Route> {
    let routes = tunnel_routes(configuration).into_iter();
    routes
        .map(|route| Route {
            destination: Prefix::new(route.network.address(), route.network.length()),
            source: route.source,
        })
        .collect()
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
