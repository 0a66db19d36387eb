//! Opens the ports of a configuration.

use crate::exit::{Failure, Kind, failure};
use crate::interface;
use testudo_control::Configuration;
use testudo_control::config::{Action, OuterEndpoint, OuterProtocol, Tunnel};
use testudo_gateway::{Interfaces, PortPair};
use testudo_ipsec::Mode;
use testudo_packet::{Pages, Pool, Port};
use testudo_port_socket::{Encapsulation, Endpoint, OpenError, SocketConfig, SocketPort};
use testudo_port_tun::{TunConfig, TunPort};

/// The longest packet, in bytes, that a buffer of the pool must hold, independent of the link's MTU: a peer
/// may fragment after encryption (RFC 4303 3.3.4), as Linux does with long datagrams, and our kernel
/// reassembles the fragments before we receive them. Buffer space that no packet ever fills takes no memory.
pub fn packet_bytes(configuration: &Configuration) -> usize {
    const LONGEST: usize = 65_535;
    usize::from(configuration.unprotected.mtu.max(configuration.protected.mtu)).max(LONGEST)
}

/// What a datagram that carries a sealed packet has beside it at most, but for TFC padding: a peer may seal
/// packets of the link's length and cut the datagrams after, which then fit a frame all the same.
const SEALED_MORE_BYTES: usize = 84;

/// The pool of a configuration: frames for what a link carries, and long buffers for a part of them.
pub fn pool(configuration: &Configuration) -> Pool {
    let buffers = configuration.gateway.buffers;
    let mtus = interface::all(configuration).into_iter().map(|interface| interface.mtu);
    let mtu = usize::from(mtus.fold(configuration.unprotected.mtu, u16::max));
    let longest = packet_bytes(configuration);
    let frame_bytes = (mtu + SEALED_MORE_BYTES).min(longest);
    let pool = Pool::new(buffers, frame_bytes).with_long(buffers / 4, longest);
    let region = pool.region();
    let pages = match region.pages() {
        Pages::Huge => "huge pages",
        Pages::Transparent => "transparent huge pages",
        Pages::Small => "small pages",
    };
    tracing::info!("packets: {} frames of {} bytes on {pages}", region.frames(), region.frame_bytes());
    pool
}

/// What [`open`] has opened.
pub struct Opened {
    pub pair: PortPair,
    /// Whether what the sockets send has the mark of `[ike]`.
    pub is_marked: bool,
}

/// Opens the TUN interfaces and the sockets; the interfaces are configured and up.
pub fn open(configuration: &Configuration) -> Result<Opened, Failure> {
    let (unprotected, is_marked) = open_sockets(configuration)?;
    let pair = PortPair { protected: open_protected(configuration)?, unprotected: Box::new(unprotected) };
    Ok(Opened { pair, is_marked })
}

/// The main interface, which is a port of its own where there is no other.
fn open_protected(configuration: &Configuration) -> Result<Box<dyn Port>, Failure> {
    let mut ports: Vec<Box<dyn Port>> = Vec::new();
    for interface in interface::all(configuration) {
        let port = TunPort::open(&TunConfig::new(interface.name)).map_err(failure(Kind::Port))?;
        let (addresses, routes) = (interface.prefixes(), interface.routes(configuration));
        port.configure(&addresses, interface.mtu.into(), &routes).map_err(failure(Kind::Port))?;
        let (name, mtu) = (interface.name, interface.mtu);
        tracing::info!("protected side: {name} with MTU {mtu}, offloads {:?}", port.offloads());
        ports.push(Box::new(port));
    }
    let main = ports.remove(0);
    if ports.is_empty() {
        return Ok(main);
    }
    let all = Interfaces::of(main, ports).map(|all| -> Box<dyn Port> { Box::new(all) });
    all.ok_or_else(|| Failure::new(Kind::Configuration, "there are more interfaces than are possible"))
}

/// The socket of an end.
fn endpoint(OuterEndpoint { local, protocol }: OuterEndpoint) -> Endpoint {
    let encapsulation = match protocol {
        OuterProtocol::Esp => Encapsulation::RawEsp,
        OuterProtocol::Ah => Encapsulation::RawAh,
        OuterProtocol::Udp { local_port } => Encapsulation::Udp { port: local_port },
        OuterProtocol::UdpBeside { local_port } => Encapsulation::UdpBeside { port: local_port },
    };
    Endpoint { local, encapsulation }
}

/// The sockets of a configuration, without a mark where the system refuses that alone.
fn open_marked(mut config: SocketConfig) -> Result<(SocketPort, bool), OpenError> {
    match SocketPort::open(&config) {
        Err(error @ OpenError::NotMarked { .. }) => {
            tracing::warn!("{error}; policies to networks with a peer's own address are refused");
            config.mark = 0;
            SocketPort::open(&config).map(|port| (port, false))
        }
        outcome => outcome.map(|port| (port, config.mark != 0)),
    }
}

/// Opens the sockets. Returns whether they have a mark, too.
fn open_sockets(configuration: &Configuration) -> Result<(SocketPort, bool), Failure> {
    let (optional, needed): (Vec<_>, Vec<_>) =
        configuration.outer_endpoints().into_iter().partition(|end| configuration.is_optional(end));
    let mut config = SocketConfig::new(needed.into_iter().map(endpoint).collect());
    config.optional = optional.into_iter().map(endpoint).collect();
    config.interface.clone_from(&configuration.unprotected.interface);
    config.mtu = configuration.unprotected.mtu.into();
    // In transport mode a packet keeps the header that it came in.
    let is_transport = |tunnel: &Tunnel| tunnel.mode == Mode::Transport;
    config.hop_limits = configuration.ike.is_some() || configuration.tunnels.iter().any(is_transport);
    config.bypass = configuration.policies.iter().any(|p| p.action == Action::Bypass);
    config.mark = configuration.ike.as_ref().map_or(0, |ike| ike.mark);
    let (port, is_marked) = open_marked(config).map_err(failure(Kind::Port))?;
    for end in port.endpoints() {
        tracing::info!("unprotected side: {end}");
    }
    for end in port.left_out() {
        tracing::warn!("unprotected side: without {end}, since this host has no IPv6");
    }
    if !port.hears_icmp_errors() {
        tracing::warn!(
            "without CAP_NET_RAW the gateway hears no ICMP errors: where a path carries less than `mtu` of \
             [port.unprotected], long packets are lost"
        );
    }
    Ok((port, is_marked))
}
