//! Multicast groups: sockets that receive what is sent to a group, and those that send to one.
//!
//! An endpoint whose local address is a group has a socket that is bound to it, and so receives nothing else.
//! The kernel joins the group for it, and reports that by IGMP or MLD, on the interface that has the
//! membership's local address (or the one that all sockets are bound to). The endpoint at that address sends
//! to the group, by the same interface. Of the several sockets that an endpoint of several queues has, the
//! first one joins, and all receive.

use crate::open::SocketConfig;
use crate::sys::Socket;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};

/// A group to be in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Membership {
    /// The multicast group.
    pub group: IpAddr,
    /// Our address on its link, from which is sent to it.
    pub local: IpAddr,
}

/// TTL and hop limit of what is sent to groups, as of all other packets: the kernel's 1 stays on the link.
/// Whether routers forward it is what they are configured for.
const HOPS: i32 = 64;

/// Where the kernel lists addresses of IPv6 with their interfaces, in this thread's network namespace.
const IPV6_ADDRESSES: &str = "/proc/thread-self/net/if_inet6";

/// Joins the group that an endpoint receives from, if this one of its sockets does, or prepares one that
/// sends to groups; others stay as they are.
pub(crate) fn set_up(socket: &Socket, local: IpAddr, config: &SocketConfig, joins: bool) -> io::Result<()> {
    for membership in config.groups.iter().filter(|membership| joins && membership.group == local) {
        join(socket, *membership, config)?;
    }
    match config.groups.iter().find(|membership| membership.local == local) {
        Some(membership) => send_from(socket, *membership, config),
        None => Ok(()),
    }
}

/// The address that an endpoint's socket is bound to: that of a group may be one of each link.
pub(crate) fn bind_address(local: IpAddr, port: u16, config: &SocketConfig) -> io::Result<SocketAddr> {
    let membership = config.groups.iter().find(|membership| membership.group == local);
    match (local, membership) {
        (IpAddr::V6(group), Some(membership)) => {
            let scope = interface_of(membership.local, config)?;
            Ok(SocketAddrV6::new(group, port, 0, scope).into())
        }
        _ => Ok(SocketAddr::new(local, port)),
    }
}

fn join(socket: &Socket, membership: Membership, config: &SocketConfig) -> io::Result<()> {
    match (membership.group, membership.local) {
        (IpAddr::V4(group), IpAddr::V4(local)) => {
            let request = request_v4(group, local, config)?;
            socket.set_option_bytes(libc::IPPROTO_IP, libc::IP_ADD_MEMBERSHIP, &request)
        }
        (IpAddr::V6(group), local @ IpAddr::V6(_)) => {
            let request = request_v6(group, interface_of(local, config)?);
            socket.set_option_bytes(libc::IPPROTO_IPV6, libc::IPV6_ADD_MEMBERSHIP, &request)
        }
        _ => Err(io::ErrorKind::InvalidInput.into()),
    }
}

/// What is sent to groups leaves by the interface that has joined them, further than the link, and does not
/// come back to this host.
fn send_from(socket: &Socket, membership: Membership, config: &SocketConfig) -> io::Result<()> {
    match membership.local {
        IpAddr::V4(local) => {
            let request = request_v4(Ipv4Addr::UNSPECIFIED, local, config)?;
            socket.set_option_bytes(libc::IPPROTO_IP, libc::IP_MULTICAST_IF, &request)?;
            socket.set_option(libc::IPPROTO_IP, libc::IP_MULTICAST_TTL, HOPS)?;
            socket.set_option(libc::IPPROTO_IP, libc::IP_MULTICAST_LOOP, 0)
        }
        local @ IpAddr::V6(_) => {
            let index = interface_of(local, config)?;
            socket.set_option_bytes(libc::IPPROTO_IPV6, libc::IPV6_MULTICAST_IF, &index.to_ne_bytes())?;
            socket.set_option(libc::IPPROTO_IPV6, libc::IPV6_MULTICAST_HOPS, HOPS)?;
            socket.set_option(libc::IPPROTO_IPV6, libc::IPV6_MULTICAST_LOOP, 0)
        }
    }
}

/// A `struct ip_mreqn` (ip(7)): group, local address, index of the interface or 0 for that of the address.
fn request_v4(group: Ipv4Addr, local: Ipv4Addr, config: &SocketConfig) -> io::Result<[u8; 12]> {
    let index = if config.interface.is_some() { interface_of(local.into(), config)? } else { 0 };
    let mut request = [0; 12];
    request[..4].copy_from_slice(&group.octets());
    request[4..8].copy_from_slice(&local.octets());
    request[8..].copy_from_slice(&index.to_ne_bytes());
    Ok(request)
}

/// A `struct ipv6_mreq` (ipv6(7)).
fn request_v6(group: Ipv6Addr, index: u32) -> [u8; 20] {
    let mut request = [0; 20];
    request[..16].copy_from_slice(&group.octets());
    request[16..].copy_from_slice(&index.to_ne_bytes());
    request
}

/// The index of the interface that all sockets use, or of that with an address of IPv6.
fn interface_of(local: IpAddr, config: &SocketConfig) -> io::Result<u32> {
    match (&config.interface, local) {
        (Some(name), _) => index_of_name(name),
        (None, IpAddr::V6(local)) => {
            let listed = std::fs::read_to_string(IPV6_ADDRESSES)?;
            let found = listed.lines().find_map(|line| index_in(line, local));
            found.ok_or_else(|| io::Error::other(format!("no interface has the address {local}")))
        }
        (None, IpAddr::V4(_)) => Ok(0),
    }
}

fn index_of_name(name: &str) -> io::Result<u32> {
    let family = rustix::net::AddressFamily::INET;
    let socket = rustix::net::socket(family, rustix::net::SocketType::DGRAM, None)?;
    Ok(rustix::net::netdevice::name_to_index(&socket, name)?)
}

/// `20010db8000000000000000000000001 02 40 00 80 eth0`: address and index, if it is this address.
fn index_in(line: &str, address: Ipv6Addr) -> Option<u32> {
    let mut fields = line.split_ascii_whitespace();
    let listed = u128::from_str_radix(fields.next()?, 16).ok()?;
    let index = u32::from_str_radix(fields.next()?, 16).ok()?;
    (listed == address.to_bits()).then_some(index)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interfaces_are_found_by_their_addresses() {
        let line = "20010db8000000000000000000000001 1f 40 00 80     eth0";
        assert_eq!(index_in(line, "2001:db8::1".parse().unwrap()), Some(0x1F));
        assert_eq!(index_in(line, "2001:db8::2".parse().unwrap()), None);
        for wrong in ["", "20010db8000000000000000000000001", "zz 1f", "20010db8000000000000000000000001 xx"]
        {
            assert_eq!(index_in(wrong, "2001:db8::1".parse().unwrap()), None);
        }
    }

    #[test]
    fn requests_are_those_of_the_kernel() {
        let config = SocketConfig::new(Vec::new());
        let request = request_v4([239, 1, 2, 3].into(), [192, 0, 2, 1].into(), &config).unwrap();
        assert_eq!(request, [239, 1, 2, 3, 192, 0, 2, 1, 0, 0, 0, 0]);
        let request = request_v6("ff05::7".parse().unwrap(), 5);
        assert_eq!((request[0], request[15], &request[16..]), (0xFF, 7, &5_u32.to_ne_bytes()[..]));
    }
}
