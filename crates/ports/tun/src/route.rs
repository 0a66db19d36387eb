//! Routes into the interface, and the kernel's routes that they are made of.

use crate::configure::Prefix;
use std::net::IpAddr;

/// The kernel's main table (`RT_TABLE_MAIN`).
pub const MAIN_TABLE: u32 = 254;

/// A route into an interface.
///
/// With a source address it is two routes of the kernel, because Linux removes an IPv4 route together with
/// its source address: packets would then leave by another route, in clear. The second route, which has no
/// source and is used if there is no better one, stays.
///
/// ```text
///   192.0.2.2 dev tun0 src 192.0.2.1
///   192.0.2.2 dev tun0 metric 1
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Route {
    /// Where it leads.
    pub destination: Prefix,
    /// The source address of this host's own packets that have chosen none; `None` leaves that to the kernel.
    pub source: Option<IpAddr>,
    /// The number of its routing table.
    pub table: u32,
}

impl Route {
    /// The route to `destination`, in the main table.
    #[must_use]
    pub fn to(destination: Prefix) -> Self {
        Self { destination, source: None, table: MAIN_TABLE }
    }

    /// The route without a source that stays when the source is gone.
    pub(crate) fn fallback(self) -> KernelRoute {
        let metric = Some(self.default_metric() + 1);
        KernelRoute { destination: self.destination, source: None, metric, table: self.table }
    }

    /// The route that is used.
    pub(crate) fn preferred(self) -> KernelRoute {
        // IPv4 tells a route with a source from one without; IPv6 does not.
        let metric =
            (self.source.is_some() && self.destination.address.is_ipv6()).then(|| self.default_metric());
        KernelRoute { destination: self.destination, source: self.source, metric, table: self.table }
    }

    /// The metric that Linux gives to a route for which none is named (`IP6_RT_PRIO_USER`).
    fn default_metric(self) -> u32 {
        if self.destination.address.is_ipv4() { 0 } else { 1024 }
    }
}

/// One route of the kernel.
#[derive(Debug, Clone, Copy)]
pub(crate) struct KernelRoute {
    pub(crate) destination: Prefix,
    pub(crate) source: Option<IpAddr>,
    /// `None` for the default.
    pub(crate) metric: Option<u32>,
    pub(crate) table: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_route_without_a_source_is_the_worse_one() {
        for (destination, bits, source) in
            [("192.0.2.2", 32, "192.0.2.1"), ("2001:db8::2", 128, "2001:db8::1")]
        {
            let destination = Prefix::new(destination.parse().unwrap(), bits);
            let route = Route { source: Some(source.parse().unwrap()), ..Route::to(destination) };
            let (preferred, fallback) = (route.preferred(), route.fallback());
            let preferred_metric = preferred.metric.unwrap_or(0);
            assert!(fallback.metric.is_some_and(|metric| metric > preferred_metric), "{fallback:?}");
            assert_eq!((preferred.source, fallback.source), (route.source, None));
            assert_eq!(Route::to(destination).preferred().metric, None);
        }
    }
}
