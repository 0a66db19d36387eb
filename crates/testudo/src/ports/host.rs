//! The kernel's ports: TUN interfaces on the protected side, sockets on the unprotected one.

use crate::exit::{Failure, Kind, failure};
use crate::interface;
use testudo_control::Configuration;
use testudo_control::config::{Action, OuterEndpoint, OuterProtocol, Tunnel};
use testudo_ipsec::Mode;
use testudo_packet::Port;
use testudo_port_socket::{Encapsulation, Endpoint, OpenError, SocketConfig, SocketPort};
use testudo_port_tun::{TunConfig, TunPort};

/// Opens the TUN interfaces, and configures them and brings them up: the main one first, if it is one.
pub fn open_tuns(configuration: &Configuration) -> Result<Vec<Box<dyn Port>>, Failure> {
    let mut ports: Vec<Box<dyn Port>> = Vec::new();
    for interface in interface::all(configuration) {
        let port = TunPort::open(&TunConfig::new(interface.name)).map_err(failure(Kind::Port))?;
        let (addresses, routes) = (interface.prefixes(), interface.routes(configuration));
        port.configure(&addresses, interface.mtu.into(), &routes).map_err(failure(Kind::Port))?;
        let (name, mtu) = (interface.name, interface.mtu);
        tracing::info!("protected side: {name} with MTU {mtu}, offloads {:?}", port.offloads());
        ports.push(Box::new(port));
    }
    Ok(ports)
}

/// The socket of an end.
pub fn endpoint(OuterEndpoint { local, protocol }: OuterEndpoint) -> Endpoint {
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
pub fn open_sockets(configuration: &Configuration) -> Result<(SocketPort, bool), Failure> {
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
        warn_of_no_icmp_errors();
    }
    Ok((port, is_marked))
}

/// That nobody says so where a path carries less.
pub fn warn_of_no_icmp_errors() {
    tracing::warn!(
        "without CAP_NET_RAW the gateway hears no ICMP errors: where a path carries less than `mtu` of \
         [port.unprotected], long packets are lost"
    );
}
