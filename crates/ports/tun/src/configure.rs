//! Addresses, MTU and routes of an interface, through rtnetlink(7). Needs CAP_NET_ADMIN.
//!
//! ```no_run
//! use testudo_port_tun::configure::{self, Prefix, Route};
//! let own = Prefix::new("10.1.0.1".parse()?, 24);
//! let remote = Route::to(Prefix::new("10.2.0.0".parse()?, 16));
//! configure::apply("tun0", &[own], 1400, &[remote])?;
//! configure::remove_route("tun0", remote)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use crate::error::ConfigureError;
use crate::netlink::{CREATE, EXCLUSIVE, Message, Netlink, REPLACE};
use crate::route::KernelRoute;
pub use crate::route::{MAIN_TABLE, Route};
pub use crate::rules::RoutingTable;
use std::fmt;
use std::io;
use std::net::IpAddr;

pub(crate) const RTM_NEWLINK: u16 = 16;
pub(crate) const RTM_NEWADDR: u16 = 20;
const RTM_DELADDR: u16 = 21;
const RTM_NEWROUTE: u16 = 24;
const RTM_DELROUTE: u16 = 25;
const IFLA_MTU: u16 = 4;
pub(crate) const IFA_ADDRESS: u16 = 1;
pub(crate) const IFA_LOCAL: u16 = 2;
/// Duplicate address detection makes no sense on a point-to-point device, and would delay the first packet by
/// a second.
const IFA_F_NODAD: u8 = 0x02;
const RTA_DST: u16 = 1;
const RTA_OIF: u16 = 4;
const RTA_PRIORITY: u16 = 6;
const RTA_PREFSRC: u16 = 7;
const RTA_TABLE: u16 = 15;
const RTPROT_STATIC: u8 = 4;
const RT_SCOPE_LINK: u8 = 253;
const RTN_UNICAST: u8 = 1;
const IFF_UP: u32 = 1;

/// An address and the length of its network part in bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Prefix {
    /// The address.
    pub address: IpAddr,
    /// 0 to 32 for IPv4, 0 to 128 for IPv6.
    pub bits: u8,
}

impl Prefix {
    /// `address/bits`.
    #[must_use]
    pub fn new(address: IpAddr, bits: u8) -> Self {
        Self { address, bits }
    }

    pub(crate) fn family(self) -> u8 {
        let family = if self.address.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
        u8::try_from(family).unwrap_or(0) // 2 and 10
    }

    pub(crate) fn octets(self) -> Vec<u8> {
        octets(self.address)
    }

    /// The address with its host part zeroed, as routes need it.
    fn network(self) -> Self {
        let mut octets = self.octets();
        for (index, octet) in octets.iter_mut().enumerate() {
            let kept = usize::from(self.bits).saturating_sub(index * 8).min(8);
            *octet &= u8::try_from(0xFF00_u32 >> kept & 0xFF).unwrap_or(0);
        }
        let address = match self.address {
            IpAddr::V4(_) => IpAddr::V4(<[u8; 4]>::try_from(&octets[..4]).unwrap_or_default().into()),
            IpAddr::V6(_) => <[u8; 16]>::try_from(&octets[..]).unwrap_or_default().into(),
        };
        Self { address, bits: self.bits }
    }
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.bits)
    }
}

/// Sets MTU (bytes) and addresses of `interface`, brings it up, and routes `routes` into it.
///
/// # Errors
/// [`ConfigureError`] names the first step that the kernel refused; earlier steps stay done.
pub fn apply(
    interface: &str,
    addresses: &[Prefix],
    mtu: u32,
    routes: &[Route],
) -> Result<(), ConfigureError> {
    let mut session = Session::open(interface)?;
    session.set_mtu(mtu)?;
    addresses.iter().try_for_each(|&address| session.add_address(address))?;
    session.set_up()?;
    routes.iter().try_for_each(|&route| session.add_route(route))
}

/// Restores the addresses and routes of `interface`, which was down and is up again: as many as possible.
/// Returns what failed.
#[must_use]
pub fn restore(interface: &str, addresses: &[Prefix], routes: &[Route]) -> Vec<ConfigureError> {
    let mut session = match Session::open(interface) {
        Ok(session) => session,
        Err(error) => return vec![error],
    };
    let mut failures: Vec<_> =
        addresses.iter().filter_map(|&address| session.add_address(address).err()).collect();
    failures.extend(routes.iter().filter_map(|&route| session.restore_route(route).err()));
    failures
}

/// Restores those of `routes` whose source is `address`, which the host has again. Returns what failed.
#[must_use]
pub fn restore_source(interface: &str, address: IpAddr, routes: &[Route]) -> Vec<ConfigureError> {
    let concerned: Vec<_> = routes.iter().filter(|route| route.source == Some(address)).copied().collect();
    if concerned.is_empty() { Vec::new() } else { restore(interface, &[], &concerned) }
}

/// Adds an address; one that exists already stays.
///
/// # Errors
/// [`ConfigureError`] with the kernel's error.
pub fn add_address(interface: &str, address: Prefix) -> Result<(), ConfigureError> {
    Session::open(interface)?.add_address(address)
}

/// Removes an address.
///
/// # Errors
/// [`ConfigureError`] with the kernel's error, also if there is no such address.
pub fn remove_address(interface: &str, address: Prefix) -> Result<(), ConfigureError> {
    Session::open(interface)?.remove_address(address)
}

/// Adds a route into `interface`. A route that exists, here or through another interface, is never replaced.
///
/// # Errors
/// [`ConfigureError`] with the kernel's error.
pub fn add_route(interface: &str, route: Route) -> Result<(), ConfigureError> {
    Session::open(interface)?.add_route(route)
}

/// Removes a route into `interface`.
///
/// # Errors
/// [`ConfigureError`] with the kernel's error, also if there is no such route.
pub fn remove_route(interface: &str, route: Route) -> Result<(), ConfigureError> {
    Session::open(interface)?.remove_route(route)
}

/// Replaces a route into `interface` by one to the same destination with another source. At no time there is
/// none.
///
/// # Errors
/// [`ConfigureError`] with the kernel's error; some route to the destination remains.
pub fn change_source(interface: &str, old: Route, new: Route) -> Result<(), ConfigureError> {
    let mut session = Session::open(interface)?;
    session.ensure(new.fallback())?;
    let _ = session.remove(old.preferred());
    session.add(new.preferred())?;
    if new.source.is_none() { session.remove(new.fallback()) } else { Ok(()) }
}

/// Sets the MTU of `interface`, in bytes.
///
/// # Errors
/// [`ConfigureError`] with the kernel's error.
pub fn set_mtu(interface: &str, mtu: u32) -> Result<(), ConfigureError> {
    Session::open(interface)?.set_mtu(mtu)
}

/// A netlink socket and the interface to configure.
struct Session<'a> {
    netlink: Netlink,
    interface: &'a str,
    index: u32,
}

impl<'a> Session<'a> {
    fn open(interface: &'a str) -> Result<Self, ConfigureError> {
        let failed = |source| ConfigureError::new(format!("find the interface {interface}"), source);
        let netlink = Netlink::open().map_err(failed)?;
        let index = netlink.index_of(interface).map_err(failed)?;
        Ok(Self { netlink, interface, index })
    }

    fn request(&mut self, action: String, message: Message) -> Result<(), ConfigureError> {
        self.netlink.request(message).map_err(|source| ConfigureError::new(action, source))
    }

    fn set_mtu(&mut self, mtu: u32) -> Result<(), ConfigureError> {
        let action = format!("set the MTU of {} to {mtu}", self.interface);
        let message = Message::new(RTM_NEWLINK, 0, &self.link(0, 0));
        self.request(action, message.attribute(IFLA_MTU, &mtu.to_ne_bytes()))
    }

    fn set_up(&mut self) -> Result<(), ConfigureError> {
        let action = format!("take the interface {} into operation", self.interface);
        let message = Message::new(RTM_NEWLINK, 0, &self.link(IFF_UP, IFF_UP));
        self.request(action, message)
    }

    fn add_address(&mut self, address: Prefix) -> Result<(), ConfigureError> {
        let action = format!("give {} the address {address}", self.interface);
        let message = self.address(RTM_NEWADDR, CREATE | REPLACE, address);
        self.request(action, message)
    }

    fn remove_address(&mut self, address: Prefix) -> Result<(), ConfigureError> {
        let action = format!("take the address {address} from {}", self.interface);
        let message = self.address(RTM_DELADDR, 0, address);
        self.request(action, message)
    }

    fn add_route(&mut self, route: Route) -> Result<(), ConfigureError> {
        if route.source.is_some() {
            self.add(route.fallback())?;
        }
        self.add(route.preferred())
    }

    fn remove_route(&mut self, route: Route) -> Result<(), ConfigureError> {
        let preferred = self.remove(route.preferred());
        // The kernel may have removed the other one.
        if route.source.is_some() { self.remove(route.fallback()) } else { preferred }
    }

    /// Adds a route of ours, which may be there already, wholly or in part; one through another interface is
    /// an error.
    fn restore_route(&mut self, route: Route) -> Result<(), ConfigureError> {
        if route.source.is_some() {
            self.ensure(route.fallback())?;
        }
        let _ = self.remove(route.preferred());
        self.add(route.preferred())
    }

    /// Adds a route that may be there already.
    fn ensure(&mut self, route: KernelRoute) -> Result<(), ConfigureError> {
        match self.add(route) {
            Err(e) if e.source.raw_os_error() == Some(libc::EEXIST) => Ok(()),
            other => other,
        }
    }

    fn add(&mut self, route: KernelRoute) -> Result<(), ConfigureError> {
        let source = route.source.map_or_else(String::new, |source| format!(" with source {source}"));
        let action = format!("route {} into {}{source}", route.destination, self.interface);
        let message = self.route(RTM_NEWROUTE, CREATE | EXCLUSIVE, route);
        self.request(action, message)
    }

    fn remove(&mut self, route: KernelRoute) -> Result<(), ConfigureError> {
        let action = format!("remove the route for {} into {}", route.destination, self.interface);
        let message = self.route(RTM_DELROUTE, 0, route);
        match self.request(action, message) {
            Err(e) if e.source.raw_os_error() == Some(libc::ESRCH) => {
                Err(ConfigureError { source: io::ErrorKind::NotFound.into(), ..e })
            }
            other => other,
        }
    }

    /// `struct ifinfomsg`.
    fn link(&self, flags: u32, change: u32) -> [u8; 16] {
        let mut body = [0; 16];
        body[4..8].copy_from_slice(&self.index.to_ne_bytes());
        body[8..12].copy_from_slice(&flags.to_ne_bytes());
        body[12..16].copy_from_slice(&change.to_ne_bytes());
        body
    }

    /// `struct ifaddrmsg` and its attributes.
    fn address(&self, kind: u16, flags: u16, address: Prefix) -> Message {
        let own_flags = if address.address.is_ipv6() { IFA_F_NODAD } else { 0 };
        let mut body = [address.family(), address.bits, own_flags, 0, 0, 0, 0, 0];
        body[4..8].copy_from_slice(&self.index.to_ne_bytes());
        let octets = address.octets();
        Message::new(kind, flags, &body).attribute(IFA_LOCAL, &octets).attribute(IFA_ADDRESS, &octets)
    }

    /// `struct rtmsg` and its attributes.
    fn route(&self, kind: u16, flags: u16, route: KernelRoute) -> Message {
        let destination = route.destination.network();
        let scope = if destination.address.is_ipv4() { RT_SCOPE_LINK } else { 0 };
        let mut body = [0; 12];
        body[0] = destination.family();
        body[1] = destination.bits;
        body[4..8].copy_from_slice(&[0, RTPROT_STATIC, scope, RTN_UNICAST]);
        let message = Message::new(kind, flags, &body)
            .attribute(RTA_DST, &destination.octets())
            .attribute(RTA_OIF, &self.index.to_ne_bytes())
            .attribute(RTA_TABLE, &route.table.to_ne_bytes());
        let message = match route.metric {
            Some(metric) => message.attribute(RTA_PRIORITY, &metric.to_ne_bytes()),
            None => message,
        };
        match route.source {
            Some(source) => message.attribute(RTA_PREFSRC, &octets(source)),
            None => message,
        }
    }
}

fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(a) => a.octets().to_vec(),
        IpAddr::V6(a) => a.octets().to_vec(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn routes_lose_their_host_part() {
        let network = |text: &str, bits| Prefix::new(text.parse().unwrap(), bits).network().to_string();
        assert_eq!(network("10.2.3.4", 20), "10.2.0.0/20");
        assert_eq!(network("10.2.3.4", 0), "0.0.0.0/0");
        assert_eq!(network("10.2.3.4", 32), "10.2.3.4/32");
        assert_eq!(network("2001:db8:ffff::1", 33), "2001:db8:8000::/33");
    }

    #[test]
    fn a_missing_interface_is_named() {
        let error = set_mtu("no-such-if", 1400).unwrap_err().to_string();
        assert!(error.contains("find the interface no-such-if"), "{error}");
    }
}
