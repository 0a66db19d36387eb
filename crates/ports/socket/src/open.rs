//! Opening sockets: which ones, with which options, and how to report what the system refuses.

use crate::error::OpenError;
use crate::sys::Socket;
use rustix::net::{AddressFamily, Protocol, SocketFlags, SocketType, ipproto};
use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use testudo_wire::ip::Version;
use testudo_wire::protocol;

/// How protected datagrams cross the network at an endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Encapsulation {
    /// ESP in UDP (RFC 3948).
    Udp {
        /// Local UDP port; 0 lets the kernel choose, see
        /// [`SocketPort::endpoints`](crate::SocketPort::endpoints).
        port: u16,
    },
    /// ESP as IP protocol 50 (RFC 4303). Needs CAP_NET_RAW to open.
    RawEsp,
    /// AH as IP protocol 51 (RFC 4302), also where it covers ESP. Needs CAP_NET_RAW to open.
    RawAh,
}

impl Encapsulation {
    /// The IP protocol of its datagrams.
    #[must_use]
    pub const fn protocol(self) -> u8 {
        match self {
            Encapsulation::Udp { .. } => protocol::UDP,
            Encapsulation::RawEsp => protocol::ESP,
            Encapsulation::RawAh => protocol::AH,
        }
    }

    /// Whether it is in UDP.
    pub(crate) const fn is_udp(self) -> bool {
        matches!(self, Encapsulation::Udp { .. })
    }
}

/// An address at which protected datagrams arrive and from which they are sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Endpoint {
    /// The local address; the unspecified one (`0.0.0.0`, `::`) means any address of the host.
    pub local: IpAddr,
    /// How they cross the network.
    pub encapsulation: Encapsulation,
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.encapsulation {
            Encapsulation::Udp { port } => write!(f, "udp {}", SocketAddr::new(self.local, port)),
            Encapsulation::RawEsp => write!(f, "esp {}", self.local),
            Encapsulation::RawAh => write!(f, "ah {}", self.local),
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
    /// Whether UDP sockets report TTL or hop limit, too: a packet in transport mode is delivered with them.
    /// In tunnel mode nothing needs them.
    pub hop_limits: bool,
    /// Bytes of each socket's buffer, in each direction. Without CAP_NET_ADMIN the kernel caps it
    /// (`net.core.rmem_max`, `wmem_max`).
    pub buffer_bytes: u32,
    /// The longest datagram that paths carry, in bytes. Over IPv6, where no bit says so, longer ones in UDP
    /// are those that the kernel is to fragment, into fragments of at most this length.
    pub mtu: usize,
}

/// The least MTU of IPv6 (RFC 8200 5), below which no fragment is cut.
const IPV6_LEAST_MTU: usize = 1280;

impl SocketConfig {
    /// These endpoints on any interface, with buffers of 8 MiB.
    #[must_use]
    pub fn new(endpoints: Vec<Endpoint>) -> Self {
        Self {
            endpoints,
            interface: None,
            bypass: false,
            hop_limits: false,
            buffer_bytes: 8 << 20,
            mtu: usize::MAX,
        }
    }
}

/// Opens and binds the socket of an endpoint, and returns the endpoint as bound (the kernel may have chosen
/// the port).
pub(crate) fn endpoint(endpoint: Endpoint, config: &SocketConfig) -> Result<(Socket, Endpoint), OpenError> {
    let opened = match endpoint.encapsulation {
        Encapsulation::Udp { port } => open_udp(endpoint.local, port, config)?,
        Encapsulation::RawEsp => (open_raw(endpoint, ipproto::ESP, config)?, endpoint),
        Encapsulation::RawAh => (open_raw(endpoint, ipproto::AH, config)?, endpoint),
    };
    Ok(opened)
}

fn open_udp(local: IpAddr, port: u16, config: &SocketConfig) -> Result<(Socket, Endpoint), OpenError> {
    let socket = new_socket(local, SocketType::DGRAM, ipproto::UDP)?;
    let action = |what: &str| format!("{what} of the UDP socket for {local}");
    prepare(&socket, local, config, &action)?;
    report_header_fields(&socket, local, config).map_err(io_error(action("set the header options")))?;
    if local.is_ipv6() {
        // Raw sockets have one IP version only.
        let only = socket.set_option(libc::IPPROTO_IPV6, libc::IPV6_V6ONLY, 1);
        only.map_err(io_error(action("set the IP version")))?;
        // The flow label is the tunnel's choice: the kernel makes none of its own for packets that have 0.
        let off = socket.set_option(libc::IPPROTO_IPV6, libc::IPV6_AUTOFLOWLABEL, 0);
        off.map_err(io_error(action("set the flow label")))?;
        if let Ok(mtu) = u16::try_from(config.mtu.max(IPV6_LEAST_MTU)) {
            let set = socket.set_option(libc::IPPROTO_IPV6, libc::IPV6_MTU, mtu.into());
            set.map_err(io_error(action("set the length of fragments")))?;
        }
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

/// Opens a socket that sends and receives whole datagrams of one protocol.
fn open_raw(endpoint: Endpoint, number: Protocol, config: &SocketConfig) -> Result<Socket, OpenError> {
    let local = endpoint.local;
    let socket = new_socket(local, SocketType::RAW, number)?;
    let action = |what: &str| format!("{what} of the raw socket for {endpoint}");
    prepare(&socket, local, config, &action)?;
    let (level, options) = if local.is_ipv4() {
        (libc::IPPROTO_IP, &[libc::IP_HDRINCL][..])
    } else {
        (libc::IPPROTO_IPV6, &RAW_IPV6_OPTIONS[..])
    };
    for &option in options {
        socket.set_option(level, option, 1).map_err(io_error(action("set the header options")))?;
    }
    set_dont_fragment(&socket, local, true).map_err(io_error(action("set the path MTU discovery")))?;
    let address = SocketAddr::new(local, 0);
    rustix::net::bind(&socket, &address).map_err(|e| bind_error(address, e.into()))?;
    Ok(socket)
}

/// A raw IPv6 socket takes the header from us, but does not give it (RFC 3542 3): its fields come as control
/// data (traffic class and flow label as one), and so do the extension headers that the kernel stepped over.
const RAW_IPV6_OPTIONS: [i32; 6] = [
    libc::IPV6_HDRINCL,
    libc::IPV6_FLOWINFO,
    libc::IPV6_RECVHOPLIMIT,
    libc::IPV6_RECVHOPOPTS,
    libc::IPV6_RECVDSTOPTS,
    libc::IPV6_RECVRTHDR,
];

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

/// Opens a socket that receives the errors of ICMP that say "too big", with what they quote.
pub(crate) fn icmp(version: Version, config: &SocketConfig) -> Result<Socket, OpenError> {
    let (any, number) = match version {
        Version::V4 => (IpAddr::V4(Ipv4Addr::UNSPECIFIED), ipproto::ICMP),
        Version::V6 => (IpAddr::V6(Ipv6Addr::UNSPECIFIED), ipproto::ICMPV6),
    };
    let socket = new_socket(any, SocketType::RAW, number)?;
    let action = |what: &str| format!("{what} of the raw socket for ICMP errors");
    bind_to_interface(&socket, config, &action)?;
    let set_up = || {
        socket.set_option(libc::SOL_SOCKET, libc::SO_RCVBUF, ERRORS_BUFFER_BYTES)?;
        match version {
            // Each bit blocks a type: all but "unreachable", one of whose codes is "too big".
            Version::V4 => {
                socket.set_option_bytes(libc::SOL_RAW, ICMP_FILTER, &(!(1_u32 << 3)).to_ne_bytes())
            }
            // RFC 3542 3.2. All but type 2.
            Version::V6 => {
                let mut blocked = [0xFF; 32];
                blocked[..4].copy_from_slice(&(!(1_u32 << 2)).to_ne_bytes());
                socket.set_option_bytes(libc::IPPROTO_ICMPV6, ICMP6_FILTER, &blocked)?;
                socket.set_option(libc::IPPROTO_IPV6, libc::IPV6_RECVPKTINFO, 1)
            }
        }
    };
    set_up().map_err(io_error(action("set the options")))?;
    Ok(socket)
}

/// Of raw(7).
const ICMP_FILTER: i32 = 1;
/// Of `linux/icmpv6.h`.
const ICMP6_FILTER: i32 = 1;
/// A hundred errors or so: more in one turn say nothing new.
const ERRORS_BUFFER_BYTES: i32 = 128 << 10;

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
    if local.is_unspecified() {
        let (level, option) = if local.is_ipv4() {
            (libc::IPPROTO_IP, libc::IP_PKTINFO)
        } else {
            (libc::IPPROTO_IPV6, libc::IPV6_RECVPKTINFO)
        };
        socket.set_option(level, option, 1).map_err(io_error(action("set the address option")))?;
    }
    Ok(())
}

/// Makes a UDP socket report fields of the IP header, which it removes.
fn report_header_fields(socket: &Socket, local: IpAddr, config: &SocketConfig) -> io::Result<()> {
    let (level, traffic_class, hop_limit) = if local.is_ipv4() {
        (libc::IPPROTO_IP, libc::IP_RECVTOS, libc::IP_RECVTTL)
    } else {
        (libc::IPPROTO_IPV6, libc::IPV6_RECVTCLASS, libc::IPV6_RECVHOPLIMIT)
    };
    socket.set_option(level, traffic_class, 1)?;
    socket.set_option(level, hop_limit, config.hop_limits.into())
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

/// Sets whether the kernel sets DF and refuses datagrams that are longer than the interface's MTU, or
/// fragments these. Datagrams of raw sockets bring their own DF, and are refused in either case.
pub(crate) fn set_dont_fragment(socket: &Socket, local: IpAddr, dont_fragment: bool) -> io::Result<()> {
    match (local, dont_fragment) {
        (IpAddr::V4(_), true) => {
            socket.set_option(libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_PROBE)
        }
        (IpAddr::V4(_), false) => {
            socket.set_option(libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_DONT)
        }
        (IpAddr::V6(_), true) => {
            socket.set_option(libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER, libc::IPV6_PMTUDISC_PROBE)
        }
        (IpAddr::V6(_), false) => {
            socket.set_option(libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER, libc::IPV6_PMTUDISC_DONT)
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
