//! How packets come to the protected port: by the host's routes into a TUN interface, by the filter of an
//! interface that hosts are behind, or because hosts send them to a port of ours.

use super::networks::FilterNetworks;
use crate::exit::Failure;
use crate::interface;
use crate::negotiated_routes::HostTable;
use crate::{host_routes, reverse_path};
use std::sync::Arc;
use testudo_control::Configuration;
use testudo_control::service::daemon::{InterfaceKeeper, RouteChanger, RouteEditor};
use testudo_control::service::negotiated::NegotiatedRoutes;

/// How they come.
pub enum Leading {
    /// By routes.
    Routes,
    /// By a filter that follows the policies.
    Filter(Arc<FilterNetworks>),
    /// By themselves: hosts have routes to the port's addresses. The networks have no filter.
    ByHosts(Arc<FilterNetworks>),
}

/// What changes it while the gateway runs.
pub struct Changers {
    pub change_routes: RouteChanger,
    pub edit_routes: RouteEditor,
    pub keep_interface: InterfaceKeeper,
    /// For what is negotiated.
    pub negotiated: Option<Arc<dyn NegotiatedRoutes>>,
    /// The table of routes of what is negotiated, which is to be closed at the end.
    pub table: Option<Arc<HostTable>>,
}

impl Leading {
    /// What follows the policies of a configuration, whose packets to peers have the mark of `[ike]` if they
    /// are marked.
    pub fn changers(&self, configuration: &Configuration, is_marked: bool) -> Result<Changers, Failure> {
        match self {
            Self::Routes => by_routes(configuration, is_marked),
            Self::Filter(networks) | Self::ByHosts(networks) => by_filter(configuration, networks),
        }
    }
}

fn by_routes(configuration: &Configuration, is_marked: bool) -> Result<Changers, Failure> {
    if let Some(warning) = reverse_path::warning(configuration) {
        tracing::warn!("{warning}");
    }
    let table = configuration.ike.as_ref().map(|ike| HostTable::take(configuration, ike, is_marked));
    let table = table.map(Arc::new);
    Ok(Changers {
        change_routes: Box::new(host_routes::change),
        edit_routes: Box::new(host_routes::edit),
        keep_interface: interface::keeper(configuration, table.clone())?,
        negotiated: table.clone().map(|table| table as Arc<dyn NegotiatedRoutes>),
        table,
    })
}

fn by_filter(configuration: &Configuration, networks: &Arc<FilterNetworks>) -> Result<Changers, Failure> {
    let mut keep = interface::keeper(configuration, None)?;
    let [changing, editing, looking, negotiating] = [(); 4].map(|()| Arc::clone(networks));
    Ok(Changers {
        change_routes: Box::new(move |_, new| changing.follow(new)),
        edit_routes: Box::new(move |configuration, _, _| editing.follow(configuration)),
        keep_interface: Box::new(move |configuration| {
            keep(configuration);
            looking.look_at_addresses();
        }),
        negotiated: configuration.ike.as_ref().map(|_| negotiating as Arc<dyn NegotiatedRoutes>),
        table: None,
    })
}
