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

/// A route as the kernel has it, in the main table.
pub fn route(route: TunnelRoute) -> Route {
    let destination = Prefix::new(route.network.address(), route.network.length());
    Route { source: route.source, ..Route::to(destination) }
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
    let (removals, additions) = differences(&wanted(old), &wanted(new));
    let removed = removals.into_iter().map(|route| remove_route(interface, route));
    let changed = additions.into_iter().map(|(before, route)| match before {
        Some(other) => change_source(interface, other, route),
        None => add_route(interface, route),
    });
    let outcomes: Vec<Result<(), ConfigureError>> = removed.chain(changed).collect();
    if let (None, Some(warning)) = (reverse_path::warning(old), reverse_path::warning(new)) {
        tracing::warn!("{warning}");
    }
    outcomes.into_iter().collect::<Result<(), _>>().map_err(|e| e.to_string())
}

/// Routes to remove; and those to add, or to put in the place of one to the same network.
fn differences(before: &[Route], after: &[Route]) -> (Vec<Route>, Vec<(Option<Route>, Route)>) {
    let by_destination = |routes: &[Route]| -> HashMap<Prefix, Route> {
        routes.iter().map(|route| (route.destination, *route)).collect()
    };
    let (known, kept) = (by_destination(before), by_destination(after));
    let gone = before.iter().filter(|route| !kept.contains_key(&route.destination)).copied();
    let come = after.iter().filter_map(|route| match known.get(&route.destination) {
        Some(same) if same == route => None,
        other => Some((other.copied(), *route)),
    });
    (gone.collect(), come.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn configuration(remote: &str) -> Configuration {
        let text = format!(
            "[gateway]\nstate = \"s\"\n[port.protected]\nkind = \"tun\"\nname = \"t0\"\n[port.unprotected]\nkind = \"socket\"\n\
             [[tunnel]]\nname = \"a\"\nlocal = \"192.0.2.1\"\nremote = \"192.0.2.2\"\nsuite = \"aes128gcm16\"\n\
             selectors = [ {{ local = \"10.1.0.0/16\", remote = \"{remote}\" }} ]\n\
             outbound = {{ spi = 0x1001, key_file = \"a.out\" }}\ninbound = {{ spi = 0x1002, key_file = \"a.in\" }}\n"
        );
        Configuration::parse(&text, "t.toml").unwrap()
    }

    #[test]
    fn a_reload_changes_the_routes_that_differ() {
        let (old, new) = (configuration("10.2.0.0/16"), configuration("10.3.0.0/16"));
        let to = |octet| Route::to(Prefix::new([10, octet, 0, 0].into(), 16));
        assert_eq!(differences(&wanted(&old), &wanted(&new)), (vec![to(2)], vec![(None, to(3))]));
        let from = Route { source: Some([10, 1, 0, 1].into()), ..to(3) };
        assert_eq!(differences(&[to(2), to(3)], &[from, to(2)]), (vec![], vec![(Some(to(3)), from)]));
        let mut without = old.clone();
        without.protected.routes = false;
        assert_eq!(wanted(&without), []);
    }
}
