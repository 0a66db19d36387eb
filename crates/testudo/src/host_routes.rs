//! The host's routes into the tunnels: one to the remote network of each selector.

use std::collections::HashSet;
use testudo_control::Configuration;
use testudo_control::config::{Action, AddressRange};
use testudo_port_tun::configure::{Prefix, add_route, remove_route};

/// The routes that a configuration wants; none if it wants no routes. A selector with any remote address gives none: a default route
/// into the tunnel would catch the tunnel's own packets, and is for the operator to design.
pub fn wanted(configuration: &Configuration) -> Vec<Prefix> {
    if !configuration.protected.routes {
        return Vec::new();
    }
    let own = configuration.tunnels.iter().flat_map(|t| &t.selectors);
    let named = configuration
        .policies
        .iter()
        .filter(|p| matches!(p.action, Action::Protect { .. }))
        .map(|p| &p.selector);
    let mut seen = HashSet::new();
    own.chain(named)
        .filter_map(|selector| match selector.remote {
            AddressRange::Prefix(p) if p.length() > 0 => Some(Prefix::new(p.network(), p.length())),
            AddressRange::Any | AddressRange::Prefix(_) => None,
        })
        .filter(|prefix| seen.insert(*prefix))
        .collect()
}

/// Makes the routes those of the new configuration; the first failure is told, the other routes are made all the same.
pub fn change(old: &Configuration, new: &Configuration) -> Result<(), String> {
    let interface = &new.protected.name;
    let (before, after) = (wanted(old), wanted(new));
    let gone: Vec<_> = before.iter().filter(|r| !after.contains(r)).collect();
    let new: Vec<_> = after.iter().filter(|r| !before.contains(r)).collect();
    let removed = gone.into_iter().map(|&route| remove_route(interface, route)).collect::<Vec<_>>();
    let added = new.into_iter().map(|&route| add_route(interface, route)).collect::<Vec<_>>();
    removed.into_iter().chain(added).collect::<Result<(), _>>().map_err(|e| e.to_string())
}
