//! Opening sockets: which ones, with which options, and how to report what the system refuses.

use crate::error::OpenError;
use crate::sys::Socket;
use rustix::net::{AddressFamily, Protocol, SocketFlags, SocketType, ipproto};
use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};

/// How ESP packets cross the network at an endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Encapsulation {
    /// In UDP (RFC 3948).
    Udp {
        /// Local UDP port; 0 lets the kernel choose, see
        /// [`SocketPort::endpoints`](crate::SocketPort::endpoints).
        port: u16,
    },
    /// As IP protocol 50. Needs CAP_NET_RAW to open.
    RawEsp,
}

/// An address at which ESP packets arrive and from which they are sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Endpoint {
    /// The local address; the unspecified one (`0.0.0.0`, `::`) means any address of the host.
    pub local: IpAddr,
    /// How ESP packets cross the network.
    pub encapsulation: Encapsulation,
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.encapsulation {
            Encapsulation::Udp { port } => write!(f, "udp {}", SocketAddr::new(self.local, port)),
            Encapsulation::RawEsp => write!(f, "esp {}", self.local),
        }
    }
}

/// Which sockets to open.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SocketConfig {
    /// At least one.
    pub endpoints: Vec<Endpoint>,
    /// The interface to use, regardless of the routes.
    pub interface: Option<String>,
    /// Whether packets that belong to no endpoint are sent in clear by `interface`; needs CAP_NET_RAW to
    /// open. Without an interface they are dropped nevertheless, because routes may lead them back to the
    /// protected side.
    pub bypass: bool,
    /// Bytes of each socket's buffer, in each direction. Without CAP_NET_ADMIN the kernel caps it
    /// (`net.core.rmem_max`, `wmem_max`).
    pub buffer_bytes: u32,
}

impl SocketConfig {
    /// These endpoints on any interface, with buffers of 8 MiB.
    #[must_use]
    pub fn new(endpoints: Vec<Endpoint>) -> Self {
        Self { endpoints, interface: None, bypass: false, buffer_bytes: 8 << 20 }
    }
}

/// Opens and binds the socket of an endpoint, and returns the endpoint as bound (the kernel may have chosen
/// the port).
pub(crate) fn endpoint(endpoint: Endpoint, config: &SocketConfig) -> Result<(Socket, Endpoint), OpenError> {
    let opened = match endpoint.encapsulation {
        Encapsulation::Udp { port } => open_udp(endpoint.local, port, config)?,
        Encapsulation::RawEsp => (open_raw_esp(endpoint.local, config)?, endpoint),
    };
    Ok(opened)
}

fn open_udp(local: IpAddr, port: u16, config: &SocketConfig) -> Result<(Socket, Endpoint), OpenError> {
    let socket = new_socket(local, SocketType::DGRAM, ipproto::UDP)?;
    let action = |what: &str| format!("{what} of the UDP socket for {local}");
    prepare(&socket, local, config, &action)?;
    if local.is_ipv6() {
        // Raw sockets have one IP version only.
        let only = socket.set_option(libc::IPPROTO_IPV6, libc::IPV6_V6ONLY, 1);
        only.map_err(io_error(action("set the IP version")))?;
    }
    // Best effort: without it, datagrams arrive one by one.
    let _ = socket.set_option(libc::SOL_UDP, libc::UDP_GRO, 1);
    set_dont_fragment(&socket, local, true).map_err(io_error(action("set the path MTU discovery")))?;
    let address = SocketAddr::new(local, port);
    rustix::net::bind(&socket, &address).map_err(|e| bind_error(address, e.into()))?;
    let bound =
        rustix::net::getsockname(&socket).map_err(|e| io_error(action("read the address"))(e.into()))?;
    let port = SocketAddr::try_from(bound).map_or(port, |a| a.port());
    Ok((socket, Endpoint { local, encapsulation: Encapsulation::Udp { port } }))
}

fn open_raw_esp(local: IpAddr, config: &SocketConfig) -> Result<Socket, OpenError> {
    let socket = new_socket(local, SocketType::RAW, ipproto::ESP)?;
    let action = |what: &str| format!("{what} of the raw ESP socket for {local}");
    prepare(&socket, local, config, &action)?;
    if local.is_ipv4() {
        let set = socket.set_option(libc::IPPROTO_IP, libc::IP_HDRINCL, 1);
        set.map_err(io_error(action("set the header option")))?;
    }
    set_dont_fragment(&socket, local, true).map_err(io_error(action("set the path MTU discovery")))?;
    let address = SocketAddr::new(local, 0);
    rustix::net::bind(&socket, &address).map_err(|e| bind_error(address, e.into()))?;
    Ok(socket)
}

/// Opens a socket that sends whole datagrams of the IP version of `any`, with any protocol, out of the
/// configured interface.
pub(crate) fn bypass(any: IpAddr, config: &SocketConfig) -> Result<Socket, OpenError> {
    let socket = new_socket(any, SocketType::RAW, ipproto::RAW)?;
    let action = |what: &str| format!("{what} of the raw socket for bypassed packets");
    bind_to_interface(&socket, config, &action)?;
    if any.is_ipv6() {
        let set = socket.set_option(libc::IPPROTO_IPV6, libc::IPV6_HDRINCL, 1);
        set.map_err(io_error(action("set the header option")))?;
    }
    Ok(socket)
}

fn new_socket(local: IpAddr, kind: SocketType, protocol: Protocol) -> Result<Socket, OpenError> {
    let family = if local.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let what = if kind == SocketType::RAW { "raw" } else { "UDP" };
    let action = || format!("open a {what} socket for {local}");
    rustix::net::socket_with(family, kind, flags, Some(protocol)).map(Socket::new).map_err(|e| match e {
        rustix::io::Errno::AFNOSUPPORT => OpenError::NoIpv6(local),
        rustix::io::Errno::PERM | rustix::io::Errno::ACCESS => {
            OpenError::NotPermitted { action: action(), capability: "CAP_NET_RAW", source: e.into() }
        }
        other => OpenError::Io { action: action(), source: other.into() },
    })
}

/// The options that every endpoint's socket has.
fn prepare(
    socket: &Socket,
    local: IpAddr,
    config: &SocketConfig,
    action: &dyn Fn(&str) -> String,
) -> Result<(), OpenError> {
    bind_to_interface(socket, config, action)?;
    set_buffers(socket, config.buffer_bytes).map_err(io_error(action("set the buffers")))?;
    let (level, mut options) = if local.is_ipv4() {
        (libc::IPPROTO_IP, vec![libc::IP_RECVTOS])
    } else {
        (libc::IPPROTO_IPV6, vec![libc::IPV6_RECVTCLASS])
    };
    if local.is_unspecified() {
        options.push(if local.is_ipv4() { libc::IP_PKTINFO } else { libc::IPV6_RECVPKTINFO });
    }
    for option in options {
        socket.set_option(level, option, 1).map_err(io_error(action("set the header options")))?;
    }
    Ok(())
}

fn bind_to_interface(
    socket: &Socket,
    config: &SocketConfig,
    action: &dyn Fn(&str) -> String,
) -> Result<(), OpenError> {
    let Some(interface) = &config.interface else { return Ok(()) };
    let bound = socket.set_option_bytes(libc::SOL_SOCKET, libc::SO_BINDTODEVICE, interface.as_bytes());
    bound.map_err(|source| match source.raw_os_error() {
        Some(libc::ENODEV | libc::EINVAL) => OpenError::NoInterface(interface.clone()),
        Some(libc::EPERM) => {
            let action = format!("use the interface {interface}");
            OpenError::NotPermitted { action, capability: "CAP_NET_RAW", source }
        }
        _ => io_error(action("set the interface"))(source),
    })
}

/// Sets the buffers beyond the system's limit if that is permitted, else up to the limit.
fn set_buffers(socket: &Socket, bytes: u32) -> io::Result<()> {
    let bytes = i32::try_from(bytes).unwrap_or(i32::MAX);
    let options = [(libc::SO_RCVBUFFORCE, libc::SO_RCVBUF), (libc::SO_SNDBUFFORCE, libc::SO_SNDBUF)];
    for (force, plain) in options {
        if socket.set_option(libc::SOL_SOCKET, force, bytes).is_err() {
            socket.set_option(libc::SOL_SOCKET, plain, bytes)?;
        }
    }
    Ok(())
}

/// Sets whether datagrams carry DF, and are refused if they are longer than the interface's MTU, or are
/// fragmented in that case.
pub(crate) fn set_dont_fragment(socket: &Socket, local: IpAddr, dont_fragment: bool) -> io::Result<()> {
    match (local, dont_fragment) {
        (IpAddr::V4(_), true) => {
            socket.set_option(libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_PROBE)
        }
        (IpAddr::V4(_), false) => {
            socket.set_option(libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_DONT)
        }
        (IpAddr::V6(_), _) => {
            socket.set_option(libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER, libc::IPV6_PMTUDISC_PROBE)
        }
    }
}

fn bind_error(address: SocketAddr, source: io::Error) -> OpenError {
    match source.raw_os_error() {
        Some(libc::EADDRINUSE) => OpenError::PortTaken(address),
        Some(libc::EADDRNOTAVAIL) => OpenError::NoSuchAddress(address.ip()),
        Some(libc::EACCES | libc::EPERM) => OpenError::NotPermitted {
            action: format!("bind {address}"),
            capability: "CAP_NET_BIND_SERVICE",
            source,
        },
        _ => OpenError::Io { action: format!("bind {address}"), source },
    }
}

fn io_error(action: String) -> impl FnOnce(io::Error) -> OpenError {
    move |source| OpenError::Io { action, source }
}
