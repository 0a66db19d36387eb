//! Watches the TUN interface and the host's addresses while the gateway runs, and restores its addresses and
//! routes.

use crate::exit::{Failure, Kind, failure};
use crate::host_routes;
use testudo_control::Configuration;
use testudo_control::service::daemon::InterfaceKeeper;
use testudo_port_tun::configure::{Prefix, restore, restore_source};
use testudo_port_tun::{LinkChange, LinkWatch};

/// The addresses that a configuration gives to the interface.
pub fn addresses(configuration: &Configuration) -> Vec<Prefix> {
    let wanted = configuration.protected.addresses.iter();
    wanted.map(|a| Prefix::new(a.address, a.prefix_length)).collect()
}

/// Returns a function that logs when the interface is taken down, and restores its addresses and routes when
/// it comes up again, or when the host gets an address again that a route has as its source. The caller
/// passes the configuration in force, and calls often enough that nobody waits for it.
pub fn keeper(configuration: &Configuration) -> Result<InterfaceKeeper, Failure> {
    let watch = LinkWatch::open(&configuration.protected.name).map_err(failure(Kind::Port))?;
    let mut watch = Some(watch);
    Ok(Box::new(move |configuration: &Configuration| {
        let changes = watch.as_mut().map_or_else(|| Ok(Vec::new()), LinkWatch::changes);
        match changes {
            Ok(changes) => changes.into_iter().for_each(|change| tell(change, configuration)),
            Err(e) => {
                tracing::error!("{}: no longer watched: {e}", configuration.protected.name);
                watch = None;
            }
        }
    }))
}

fn tell(change: LinkChange, configuration: &Configuration) {
    let name = &configuration.protected.name;
    match change {
        LinkChange::Down => tracing::warn!(
            "{name} was taken down: nothing enters or leaves the tunnels until `ip link set {name} up`"
        ),
        LinkChange::Up => {
            let (addresses, routes) = (addresses(configuration), host_routes::wanted(configuration));
            let failures = restore(name, &addresses, &routes);
            failures.iter().for_each(|error| tracing::error!("{name} is up again: {error}"));
            if failures.is_empty() {
                let (addresses, routes) = (addresses.len(), routes.len());
                tracing::info!("{name} is up again, with its addresses ({addresses}) and routes ({routes})");
            }
        }
        // Leases and router advertisements are renewed all the time: nothing to tell.
        LinkChange::Address(address) if configuration.tunnels.iter().any(|t| t.local == address) => {
            let failures = restore_source(name, address, &host_routes::wanted(configuration));
            failures.iter().for_each(|error| tracing::error!("{address} is there again: {error}"));
        }
        LinkChange::Address(_) => {}
    }
}
