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

/// All interfaces, the main one first if it is one of these.
pub fn all(configuration: &Configuration) -> Vec<Wanted<'_>> {
    let main = Some(&configuration.protected).filter(|main| main.kind.is_host());
    let main = main.map(|main| Wanted {
        name: &main.name,
        mtu: main.mtu,
        addresses: &main.addresses,
        is_main: true,
    });
    let others = configuration.interfaces.iter().map(|other| Wanted {
        name: &other.name,
        mtu: other.mtu,
        addresses: &other.addresses,
        is_main: false,
    });
    main.into_iter().chain(others).collect()
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
    let mut of_host = of_host(configuration)?;
    Ok(Box::new(move |configuration: &Configuration| {
        of_host.iter_mut().for_each(HostInterface::tell);
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

/// An interface of the host at which a fast port is: it is only watched.
struct HostInterface {
    name: String,
    watch: Option<LinkWatch>,
}

fn of_host(configuration: &Configuration) -> Result<Vec<HostInterface>, Failure> {
    let (protected, unprotected) = (&configuration.protected, &configuration.unprotected);
    let protected = protected.kind.xdp().map(|_| &protected.name);
    let unprotected = unprotected.kind.xdp().and(unprotected.interface.as_ref());
    let watched = protected.into_iter().chain(unprotected).map(|name| {
        let watch = LinkWatch::open(name).map_err(failure(Kind::Port))?;
        Ok(HostInterface { name: name.clone(), watch: Some(watch) })
    });
    watched.collect()
}

impl HostInterface {
    /// Logs that it was taken down, or is up again.
    fn tell(&mut self) {
        let name = &self.name;
        match self.watch.as_mut().map_or_else(|| Ok(Vec::new()), LinkWatch::changes) {
            Ok(changes) => changes.iter().for_each(|change| match change {
                LinkChange::Down => {
                    tracing::warn!(
                        "{name} was taken down: nothing comes or goes by it until `ip link set {name} up`"
                    );
                }
                LinkChange::Up => tracing::info!("{name} is up again"),
                LinkChange::Address(_) => {}
            }),
            Err(error) => {
                tracing::error!("{name}: no longer watched: {error}");
                self.watch = None;
            }
        }
    }
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
