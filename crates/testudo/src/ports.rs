//! Opens the ports of a configuration.

use crate::exit::{Failure, Kind, failure};
use crate::{host_routes, interface};
use testudo_control::Configuration;
use testudo_control::config::{Action, OuterEndpoint, OuterProtocol};
use testudo_gateway::PortPair;
use testudo_ipsec::Mode;
use testudo_packet::Pool;
use testudo_port_socket::{Encapsulation, Endpoint, SocketConfig, SocketPort};
use testudo_port_tun::{TunConfig, TunPort};

/// The longest packet, in bytes, that a buffer of the pool must hold, independent of the link's MTU: a peer
/// may fragment after encryption (RFC 4303 3.3.4), as Linux does with long datagrams, and our kernel
/// reassembles the fragments before we receive them. Buffer space that no packet ever fills takes no memory.
pub fn packet_bytes(configuration: &Configuration) -> usize {
    const LONGEST: usize = 65_535;
    usize::from(configuration.unprotected.mtu.max(configuration.protected.mtu)).max(LONGEST)
}

/// The pool of a configuration.
pub fn pool(configuration: &Configuration) -> Pool {
    Pool::new(configuration.gateway.buffers, packet_bytes(configuration))
}

/// Opens the TUN interface and the sockets; the interface is configured and up.
pub fn open(configuration: &Configuration) -> Result<PortPair, Failure> {
    let unprotected = open_sockets(configuration)?;
    let protected = open_tun(configuration)?;
    Ok(PortPair { protected: Box::new(protected), unprotected: Box::new(unprotected) })
}

fn open_tun(configuration: &Configuration) -> Result<TunPort, Failure> {
    let settings = &configuration.protected;
    let port = TunPort::open(&TunConfig::new(&settings.name)).map_err(failure(Kind::Port))?;
    let addresses = interface::addresses(configuration);
    let routes = host_routes::wanted(configuration);
    port.configure(&addresses, settings.mtu.into(), &routes).map_err(failure(Kind::Port))?;
    tracing::info!(
        "protected side: {} with MTU {}, offloads {:?}",
        settings.name,
        settings.mtu,
        port.offloads()
    );
    Ok(port)
}

fn open_sockets(configuration: &Configuration) -> Result<SocketPort, Failure> {
    let ends = configuration.outer_endpoints().into_iter().map(|OuterEndpoint { local, protocol }| {
        let encapsulation = match protocol {
            OuterProtocol::Esp => Encapsulation::RawEsp,
            OuterProtocol::Ah => Encapsulation::RawAh,
            OuterProtocol::Udp { local_port } => Encapsulation::Udp { port: local_port },
        };
        Endpoint { local, encapsulation }
    });
    let mut config = SocketConfig::new(ends.collect());
    config.interface.clone_from(&configuration.unprotected.interface);
    config.mtu = configuration.unprotected.mtu.into();
    // In transport mode a packet keeps the header that it came in.
    config.hop_limits = configuration.tunnels.iter().any(|t| t.mode == Mode::Transport);
    config.bypass = configuration.policies.iter().any(|p| p.action == Action::Bypass);
    let port = SocketPort::open(&config).map_err(failure(Kind::Port))?;
    for end in port.endpoints() {
        tracing::info!("unprotected side: {end}");
    }
    if !port.hears_icmp_errors() {
        tracing::warn!(
            "without CAP_NET_RAW the gateway hears no ICMP errors: where a path carries less than `mtu` of \
             [port.unprotected], long packets are lost"
        );
    }
    Ok(port)
}
