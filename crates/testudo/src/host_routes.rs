//! The host's routes into the tunnels: one to each selector's remote network.

use testudo_control::Configuration;
use testudo_control::firewall::routed;
use testudo_port_tun::configure::{Prefix, add_route, remove_route};

/// The routes of a configuration; none if it turns them off.
pub fn wanted(configuration: &Configuration) -> Vec<Prefix> {
    let networks = routed(configuration).into_iter();
    networks.map(|network| Prefix::new(network.address(), network.length())).collect()
}

/// Replaces the routes of the old configuration by those of the new one. After a failure the other routes are
/// still changed; the first error is returned.
pub fn change(old: &Configuration, new: &Configuration) -> Result<(), String> {
    let interface = &new.protected.name;
    let (before, after) = (wanted(old), wanted(new));
    let gone: Vec<_> = before.iter().filter(|r| !after.contains(r)).collect();
    let new: Vec<_> = after.iter().filter(|r| !before.contains(r)).collect();
    let removed = gone.into_iter().map(|&route| remove_route(interface, route)).collect::<Vec<_>>();
    let added = new.into_iter().map(|&route| add_route(interface, route)).collect::<Vec<_>>();
    removed.into_iter().chain(added).collect::<Result<(), _>>().map_err(|e| e.to_string())
}
