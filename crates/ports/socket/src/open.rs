//! Opening sockets: which ones, with which options, and how to report what the system refuses.

use crate::error::OpenError;
use crate::filter::{self, Content, Raw, WHOLE};
use crate::groups::{self, Membership};
use crate::sys::Socket;
use rustix::net::{AddressFamily, Protocol, RawProtocol, SocketFlags, SocketType, ipproto};
use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use testudo_wire::ip::Version;
use testudo_wire::protocol;
use testudo_wire::steering::Steering;

/// Ports from this one on belong to no service (RFC 6335 6).
const FIRST_DYNAMIC_PORT: u16 = 0xC000;

/// How protected datagrams cross the network at an endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Encapsulation {
    /// ESP in UDP (RFC 3948).
    Udp {
        /// Local UDP port; 0 lets the kernel choose, see
        /// [`SocketPort::endpoints`](crate::SocketPort::endpoints).
        port: u16,
    },
    /// ESP in UDP (RFC 3948) on a port whose UDP socket an IKE daemon has, in this program or another: a raw
    /// socket takes the ESP from beside it. Needs CAP_NET_RAW to open.
    UdpBeside {
        /// The daemon's UDP port.
        port: u16,
    },
    /// What is sent in UDP to this port of the peer's from ports that nobody receives at, by a raw socket:
    /// the dynamic ones (RFC 6335 6), by which VPE shows its windows. It receives nothing. Needs CAP_NET_RAW
    /// to open.
    UdpFromMany {
        /// The peer's UDP port.
        port: u16,
    },
    /// ESP as IP protocol 50 (RFC 4303). Needs CAP_NET_RAW to open.
    RawEsp,
    /// AH as IP protocol 51 (RFC 4302), also where it covers ESP. Needs CAP_NET_RAW to open.
    RawAh,
    /// VPE as an IP protocol of its own. Needs CAP_NET_RAW to open.
    RawVpe {
        /// The protocol number.
        number: u8,
    },
}

impl Encapsulation {
    /// The IP protocol of its datagrams.
    #[must_use]
    pub const fn protocol(self) -> u8 {
        match self {
            Encapsulation::Udp { .. }
            | Encapsulation::UdpBeside { .. }
            | Encapsulation::UdpFromMany { .. } => protocol::UDP,
            Encapsulation::RawEsp => protocol::ESP,
            Encapsulation::RawAh => protocol::AH,
            Encapsulation::RawVpe { number } => number,
        }
    }

    /// Whether it has a UDP socket.
    pub(crate) const fn is_udp(self) -> bool {
        matches!(self, Encapsulation::Udp { .. })
    }

    /// The local UDP port, at which it receives.
    pub(crate) const fn udp_port(self) -> Option<u16> {
        match self {
            Encapsulation::Udp { port } | Encapsulation::UdpBeside { port } => Some(port),
            _ => None,
        }
    }

    /// Whether datagrams with these UDP ports are its own.
    pub(crate) const fn sends(self, source_port: u16, destination_port: u16) -> bool {
        match self {
            Encapsulation::Udp { port } | Encapsulation::UdpBeside { port } => port == source_port,
            Encapsulation::UdpFromMany { port } => {
                port == destination_port && source_port >= FIRST_DYNAMIC_PORT
            }
            _ => false,
        }
    }

    /// Whether anything comes to it.
    pub(crate) const fn receives(self) -> bool {
        !matches!(self, Encapsulation::UdpFromMany { .. })
    }

    /// Whether a raw socket sends its datagrams with the UDP header that they have.
    pub(crate) const fn has_own_udp_header(self) -> bool {
        matches!(self, Encapsulation::UdpBeside { .. } | Encapsulation::UdpFromMany { .. })
    }

    /// Whether the kernel writes the IP header when it sends, and fragments.
    pub(crate) const fn has_kernels_header(self) -> bool {
        self.is_udp() || self.has_own_udp_header()
    }
}

/// An address at which protected datagrams arrive and from which they are sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Endpoint {
    /// The local address; the unspecified one (`0.0.0.0`, `::`) means any address of the host, and a
    /// multicast one the group of a [membership](SocketConfig::groups).
    pub local: IpAddr,
    /// How they cross the network.
    pub encapsulation: Encapsulation,
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.encapsulation {
            Encapsulation::Udp { port } => write!(f, "udp {}", SocketAddr::new(self.local, port)),
            Encapsulation::UdpBeside { port } => {
                write!(f, "udp {} (beside IKE)", SocketAddr::new(self.local, port))
            }
            Encapsulation::UdpFromMany { port } => {
                write!(f, "udp {} from a port for each window, to port {port}", self.local)
            }
            Encapsulation::RawEsp => write!(f, "esp {}", self.local),
            Encapsulation::RawAh => write!(f, "ah {}", self.local),
            Encapsulation::RawVpe { number } => write!(f, "vpe (IP protocol {number}) {}", self.local),
        }
    }
}

/// Which sockets to open.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SocketConfig {
    /// At least one, or an optional one.
    pub endpoints: Vec<Endpoint>,
    /// More endpoints, which are left out where the host has no IP of their version.
    pub optional: Vec<Endpoint>,
    /// The groups that endpoints with such a local address receive from.
    pub groups: Vec<Membership>,
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
    /// The mark of what is sent (`SO_MARK`), for the host's policy routing; 0 for none. Needs CAP_NET_ADMIN
    /// or, since Linux 5.17, CAP_NET_RAW.
    pub mark: u32,
}

/// The least MTU of IPv6 (RFC 8200 5), below which no fragment is cut.
const IPV6_LEAST_MTU: usize = 1280;

impl SocketConfig {
    /// These endpoints on any interface, with buffers of 8 MiB.
    #[must_use]
    pub fn new(endpoints: Vec<Endpoint>) -> Self {
        Self {
            endpoints,
            optional: Vec::new(),
            groups: Vec::new(),
            interface: None,
            bypass: false,
            hop_limits: false,
            buffer_bytes: 8 << 20,
            mtu: usize::MAX,
            mark: 0,
        }
    }
}

/// What a socket is among those of its endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    /// The only one.
    Alone,
    /// Nothing: whether the port is free is seen by it.
    Probe,
    /// The first one of several.
    First,
    /// One more, which receives nothing until it is given a share.
    Further,
}

impl Role {
    /// Whether others have its port, too.
    const fn shares(self) -> bool {
        matches!(self, Self::First | Self::Further)
    }

    /// Whether the kernel joins a group for it. Those of further sockets get datagrams by that, too
    /// (`IP_MULTICAST_ALL`).
    const fn joins(self) -> bool {
        matches!(self, Self::Alone | Self::First)
    }
}

/// Opens all endpoints of a configuration with `open`, except optional ones of an IP version that the host
/// lacks: these are returned apart.
pub(crate) fn all<T>(
    config: &SocketConfig,
    open: impl Fn(Endpoint) -> Result<T, OpenError>,
) -> Result<(Vec<T>, Vec<Endpoint>), OpenError> {
    let wanted: Vec<_> = config.endpoints.iter().chain(&config.optional).copied().collect();
    for (index, endpoint) in wanted.iter().enumerate() {
        let is_chosen = endpoint.encapsulation == Encapsulation::Udp { port: 0 };
        if !is_chosen && wanted[..index].contains(endpoint) {
            return Err(OpenError::Duplicate(endpoint.to_string()));
        }
    }
    let (mut opened, mut left_out) = (Vec::new(), Vec::new());
    for (index, endpoint) in wanted.into_iter().enumerate() {
        match open(endpoint) {
            Err(OpenError::NoIpv6(_)) if index >= config.endpoints.len() => left_out.push(endpoint),
            outcome => opened.push(outcome?),
        }
    }
    match (opened.is_empty(), left_out.first()) {
        (false, _) => Ok((opened, left_out)),
        (true, Some(end)) => Err(OpenError::NoIpv6(end.local)),
        (true, None) => Err(OpenError::NoEndpoint),
    }
}

/// Opens and binds the socket of an endpoint, and returns the endpoint as bound (the kernel may have chosen
/// the port).
pub(crate) fn endpoint(
    endpoint: Endpoint,
    config: &SocketConfig,
    role: Role,
) -> Result<(Socket, Endpoint), OpenError> {
    let opened = match endpoint.encapsulation {
        Encapsulation::Udp { port } if role == Role::First => {
            // To share a port is asked of all of its sockets, and no error tells the first of a second
            // program that it is not the first: one that shares with nobody does.
            let (probe, end) = open_udp(endpoint.local, port, config, Role::Probe)?;
            drop(probe);
            open_udp(end.local, end.encapsulation.udp_port().unwrap_or(port), config, role)?
        }
        Encapsulation::Udp { port } => open_udp(endpoint.local, port, config, role)?,
        Encapsulation::UdpBeside { port } => {
            let socket = open_raw_udp(endpoint, config)?;
            if role != Role::Further {
                let raw = Raw { version: Version::of(endpoint.local), content: Content::EspInUdp(port) };
                let set = socket.set_filter(&raw.program(Steering::BySpi, &[WHOLE]));
                set.map_err(io_error(format!("set the filter of the raw socket for {endpoint}")))?;
            }
            (socket, endpoint)
        }
        Encapsulation::UdpFromMany { .. } => (open_raw_udp(endpoint, config)?, endpoint),
        Encapsulation::RawEsp => (open_raw(endpoint, ipproto::ESP, config, role)?, endpoint),
        Encapsulation::RawAh => (open_raw(endpoint, ipproto::AH, config, role)?, endpoint),
        Encapsulation::RawVpe { number } => {
            // No raw socket has protocol 0.
            let number = RawProtocol::new(number.into()).ok_or(OpenError::NoEndpoint)?;
            (open_raw(endpoint, Protocol::from_raw(number), config, role)?, endpoint)
        }
    };
    Ok(opened)
}

fn open_udp(
    local: IpAddr,
    port: u16,
    config: &SocketConfig,
    role: Role,
) -> Result<(Socket, Endpoint), OpenError> {
    let socket = new_socket(local, SocketType::DGRAM, ipproto::UDP)?;
    let action = |what: &str| format!("{what} of the UDP socket for {local}");
    if role == Role::Further && local.is_multicast() {
        // No program chooses among sockets of a group: each gets a copy, as raw ones do.
        socket.set_filter(&filter::NOTHING).map_err(io_error(action("set the filter")))?;
    }
    prepare(&socket, local, config, &action)?;
    report_header_fields(&socket, local, config).map_err(io_error(action("set the header options")))?;
    if local.is_ipv6() {
        // Raw sockets have one IP version only.
        let only = socket.set_option(libc::IPPROTO_IPV6, libc::IPV6_V6ONLY, 1);
        only.map_err(io_error(action("set the IP version")))?;
        set_kernels_header(&socket, config).map_err(io_error(action("set the header options")))?;
    }
    // Best effort: without it, datagrams arrive one by one.
    let _ = socket.set_option(libc::SOL_UDP, libc::UDP_GRO, 1);
    set_dont_fragment(&socket, local, true).map_err(io_error(action("set the path MTU discovery")))?;
    if role.shares() {
        let shared = socket.set_option(libc::SOL_SOCKET, libc::SO_REUSEPORT, 1);
        shared.map_err(io_error(action("share the port")))?;
    }
    groups::set_up(&socket, local, config, role.joins()).map_err(io_error(action("join the group")))?;
    let address = groups::bind_address(local, port, config).map_err(io_error(action("find the link")))?;
    rustix::net::bind(&socket, &address).map_err(|e| bind_error(address, e.into()))?;
    let bound =
        rustix::net::getsockname(&socket).map_err(|e| io_error(action("read the address"))(e.into()))?;
    let port = SocketAddr::try_from(bound).map_or(port, |a| a.port());
    Ok((socket, Endpoint { local, encapsulation: Encapsulation::Udp { port } }))
}

/// What the kernel writes into headers of IPv6, where it makes them.
fn set_kernels_header(socket: &Socket, config: &SocketConfig) -> io::Result<()> {
    // The flow label is the tunnel's choice: the kernel makes none of its own for packets that have 0.
    socket.set_option(libc::IPPROTO_IPV6, libc::IPV6_AUTOFLOWLABEL, 0)?;
    match u16::try_from(config.mtu.max(IPV6_LEAST_MTU)) {
        // The length of fragments.
        Ok(mtu) => socket.set_option(libc::IPPROTO_IPV6, libc::IPV6_MTU, mtu.into()),
        Err(_) => Ok(()),
    }
}

/// Opens a raw socket that sends datagrams of UDP with their UDP header, and receives nothing until its
/// filter lets something pass. The kernel makes the IP header, so that it fragments as it does for UDP
/// sockets.
fn open_raw_udp(endpoint: Endpoint, config: &SocketConfig) -> Result<Socket, OpenError> {
    let local = endpoint.local;
    let socket = new_socket(local, SocketType::RAW, ipproto::UDP)?;
    let action = |what: &str| format!("{what} of the raw socket for {endpoint}");
    // Until now all UDP of the host has come. First nothing more comes, so that the queue has an end.
    socket.set_filter(&filter::NOTHING).map_err(io_error(action("set the filter")))?;
    prepare(&socket, local, config, &action)?;
    if local.is_ipv6() {
        for option in RAW_IPV6_REPORTS {
            let set = socket.set_option(libc::IPPROTO_IPV6, option, 1);
            set.map_err(io_error(action("set the header options")))?;
        }
        set_kernels_header(&socket, config).map_err(io_error(action("set the header options")))?;
    }
    set_dont_fragment(&socket, local, true).map_err(io_error(action("set the path MTU discovery")))?;
    let address = SocketAddr::new(local, 0);
    rustix::net::bind(&socket, &address).map_err(|e| bind_error(address, e.into()))?;
    socket.discard_received();
    Ok(socket)
}

/// Opens a socket that sends and receives whole datagrams of one protocol.
fn open_raw(
    endpoint: Endpoint,
    number: Protocol,
    config: &SocketConfig,
    role: Role,
) -> Result<Socket, OpenError> {
    let local = endpoint.local;
    let socket = new_socket(local, SocketType::RAW, number)?;
    let action = |what: &str| format!("{what} of the raw socket for {endpoint}");
    if role == Role::Further {
        socket.set_filter(&filter::NOTHING).map_err(io_error(action("set the filter")))?;
    }
    prepare(&socket, local, config, &action)?;
    let (level, header_included, reports) = if local.is_ipv4() {
        (libc::IPPROTO_IP, libc::IP_HDRINCL, &[][..])
    } else {
        (libc::IPPROTO_IPV6, libc::IPV6_HDRINCL, &RAW_IPV6_REPORTS[..])
    };
    for &option in [header_included].iter().chain(reports) {
        socket.set_option(level, option, 1).map_err(io_error(action("set the header options")))?;
    }
    set_dont_fragment(&socket, local, true).map_err(io_error(action("set the path MTU discovery")))?;
    groups::set_up(&socket, local, config, role.joins()).map_err(io_error(action("join the group")))?;
    let address = groups::bind_address(local, 0, config).map_err(io_error(action("find the link")))?;
    rustix::net::bind(&socket, &address).map_err(|e| bind_error(address, e.into()))?;
    if role == Role::Further {
        socket.discard_received();
    }
    Ok(socket)
}

/// A raw IPv6 socket does not give the header (RFC 3542 3): its fields come as control data (traffic class
/// and flow label as one), and so do the extension headers that the kernel stepped over.
const RAW_IPV6_REPORTS: [i32; 5] = [
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
    set_mark(&socket, config, &action)?;
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
    set_mark(socket, config, action)?;
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

fn set_mark(
    socket: &Socket,
    config: &SocketConfig,
    action: &dyn Fn(&str) -> String,
) -> Result<(), OpenError> {
    if config.mark == 0 {
        return Ok(());
    }
    let marked = socket.set_option_bytes(libc::SOL_SOCKET, libc::SO_MARK, &config.mark.to_ne_bytes());
    marked.map_err(|source| OpenError::NotMarked { action: action("set the mark"), source })
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

#[cfg(test)]
mod tests {
    use super::*;

    fn endpoint(local: &str, encapsulation: Encapsulation) -> Endpoint {
        Endpoint { local: local.parse().unwrap(), encapsulation }
    }

    /// As a kernel without IPv6 does.
    fn without_ipv6(end: Endpoint) -> Result<Endpoint, OpenError> {
        if end.local.is_ipv6() { Err(OpenError::NoIpv6(end.local)) } else { Ok(end) }
    }

    #[test]
    fn a_host_without_ipv6_does_without_optional_endpoints_and_no_others() {
        let (esp, beside) = (Encapsulation::RawEsp, Encapsulation::UdpBeside { port: 4500 });
        let [v4, v6, v6_too] =
            [("0.0.0.0", esp), ("::", esp), ("::", beside)].map(|(local, kind)| endpoint(local, kind));
        let config = |endpoints: &[Endpoint], optional: &[Endpoint]| SocketConfig {
            optional: optional.to_vec(),
            ..SocketConfig::new(endpoints.to_vec())
        };
        let mixed = config(&[v4], &[v6, v6_too]);
        assert_eq!(all(&mixed, without_ipv6).unwrap(), (vec![v4], vec![v6, v6_too]));
        assert_eq!(all(&mixed, Ok).unwrap(), (vec![v4, v6, v6_too], vec![]));
        for needed in [config(&[v4, v6], &[v6_too]), config(&[], &[v6])] {
            assert!(matches!(all(&needed, without_ipv6), Err(OpenError::NoIpv6(_))), "{needed:?}");
        }
        let refused = |_| Err::<(), _>(OpenError::NoInterface("eth7".into()));
        assert!(matches!(all(&config(&[], &[v4]), refused), Err(OpenError::NoInterface(_))));
        assert!(matches!(all(&config(&[v4], &[v4]), Ok), Err(OpenError::Duplicate(_))));
        assert!(matches!(all(&config(&[], &[]), Ok), Err(OpenError::NoEndpoint)));
    }

    #[test]
    fn an_endpoint_is_named_by_its_fields() {
        let beside = Encapsulation::UdpBeside { port: 4500 };
        assert_eq!(endpoint("0.0.0.0", beside).to_string(), "udp 0.0.0.0:4500 (beside IKE)");
        assert_eq!(endpoint("::", beside).to_string(), "udp [::]:4500 (beside IKE)");
    }
}
