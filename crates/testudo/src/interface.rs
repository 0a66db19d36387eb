//! The TUN interfaces: watched while the gateway runs, as are the host's addresses, and given their addresses
//! and routes again where these were lost.

use crate::exit::{Failure, Kind, failure};
use crate::host_routes;
use crate::negotiated_routes::HostTable;
use std::sync::Arc;
use testudo_control::Configuration;
use testudo_control::config::InterfaceAddress;
use testudo_control::service::daemon::InterfaceKeeper;
use testudo_port_tun::configure::{Prefix, Route, restore, restore_source};
use testudo_port_tun::{LinkChange, LinkWatch};

/// A TUN interface as a configuration wants it.
pub struct Wanted<'c> {
    pub name: &'c str,
    pub mtu: u16,
    addresses: &'c [InterfaceAddress],
    is_main: bool,
}

/// All interfaces, the main one first.
pub fn all(configuration: &Configuration) -> Vec<Wanted<'_>> {
    let main = &configuration.protected;
    let main = Wanted { name: &main.name, mtu: main.mtu, addresses: &main.addresses, is_main: true };
    let others = configuration.interfaces.iter().map(|other| Wanted {
        name: &other.name,
        mtu: other.mtu,
        addresses: &other.addresses,
        is_main: false,
    });
    std::iter::once(main).chain(others).collect()
}

impl Wanted<'_> {
    /// Its addresses.
    pub fn prefixes(&self) -> Vec<Prefix> {
        self.addresses.iter().map(|a| Prefix::new(a.address, a.prefix_length)).collect()
    }

    /// The routes into it that the gateway makes: into the main one alone. Those into others say what is to
    /// go through their tunnels, which is the operator's to say.
    pub fn routes(&self, configuration: &Configuration) -> Vec<Route> {
        if self.is_main { host_routes::wanted(configuration) } else { Vec::new() }
    }
}

/// Returns a function that logs when an interface is taken down, and restores its addresses and routes when
/// it comes up again, or when the host gets an address again that a route has as its source. The caller
/// passes the configuration in force, and calls often enough that nobody waits for it.
pub fn keeper(
    configuration: &Configuration,
    negotiated: Option<Arc<HostTable>>,
) -> Result<InterfaceKeeper, Failure> {
    let open = |interface: &Wanted<'_>| LinkWatch::open(interface.name).map(Some);
    let watches = all(configuration).iter().map(open).collect::<Result<Vec<_>, _>>();
    let mut watches = watches.map_err(failure(Kind::Port))?;
    Ok(Box::new(move |configuration: &Configuration| {
        // A reload changes none of their names.
        for (interface, watch) in all(configuration).iter().zip(&mut watches) {
            // All routes of what is negotiated lead into the main one.
            let negotiated = negotiated.as_deref().filter(|_| interface.is_main);
            match watch.as_mut().map_or_else(|| Ok(Vec::new()), LinkWatch::changes) {
                Ok(changes) => {
                    for change in changes {
                        tell(change, interface, configuration, negotiated);
                    }
                }
                Err(e) => {
                    tracing::error!("{}: no longer watched: {e}", interface.name);
                    *watch = None;
                }
            }
        }
    }))
}

fn tell(
    change: LinkChange,
    interface: &Wanted<'_>,
    configuration: &Configuration,
    negotiated: Option<&HostTable>,
) {
    let name = interface.name;
    match change {
        LinkChange::Down => tracing::warn!(
            "{name} was taken down: nothing enters or leaves its tunnels until `ip link set {name} up`"
        ),
        LinkChange::Up => {
            let (addresses, routes) = (interface.prefixes(), interface.routes(configuration));
            let mut failures = restore(name, &addresses, &routes);
            failures.extend(negotiated.into_iter().flat_map(HostTable::restore));
            failures.iter().for_each(|error| tracing::error!("{name} is up again: {error}"));
            if failures.is_empty() {
                let (addresses, routes) = (addresses.len(), routes.len());
                tracing::info!("{name} is up again, with its addresses ({addresses}) and routes ({routes})");
            }
        }
        LinkChange::Address(address) => {
            // Leases and router advertisements are renewed all the time: nothing to tell.
            let is_outer = configuration.tunnels.iter().any(|t| t.local == address);
            let routes = if is_outer { interface.routes(configuration) } else { Vec::new() };
            let failures = restore_source(name, address, &routes);
            let negotiated = negotiated.into_iter().flat_map(|table| table.restore_source(address));
            for error in failures.into_iter().chain(negotiated) {
                tracing::error!("{address} is there again: {error}");
            }
        }
    }
}
