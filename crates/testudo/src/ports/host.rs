//! The kernel's ports: TUN interfaces on the protected side, sockets on the unprotected one.

use crate::exit::{Failure, Kind, failure};
use crate::interface;
use crate::ports::spread::QueueSets;
use std::collections::HashSet;
use std::num::{NonZeroU16, NonZeroU32};
use testudo_control::Configuration;
use testudo_control::config::{Action, OuterEndpoint, OuterProtocol, SpreadInbound, Tunnel};
use testudo_gateway::Role;
use testudo_ipsec::{IpsecProtocol, Mode, VpeSourcePorts};
use testudo_packet::Port;
use testudo_port_socket::{
    Encapsulation, Endpoint, Membership, OpenError, SocketConfig, SocketPort, SocketQueues,
};
use testudo_port_tun::{TunConfig, TunPort, TunQueues};
use testudo_wire::steering::Steering;

/// Numbers of an SA that come to one worker, where its packets are spread: a batch.
const BLOCK: NonZeroU32 = NonZeroU32::new(64).unwrap();

/// Opens the TUN interfaces with a queue for each worker, and configures them and brings them up: the main
/// one first, if it is one. Returns the queues of all interfaces for each worker.
pub fn open_tuns(
    configuration: &Configuration,
    roles: &[Option<Role>],
    sets: &mut QueueSets,
) -> Result<Vec<Vec<Box<dyn Port>>>, Failure> {
    let mut of_workers: Vec<Vec<Box<dyn Port>>> = roles.iter().map(|_| Vec::new()).collect();
    for interface in interface::all(configuration) {
        let queues = open_tun(interface.name, roles, sets)?;
        let Some(first) = queues.first() else { continue };
        // The interface is one, whichever of its queues says so.
        let (addresses, routes) = (interface.prefixes(), interface.routes(configuration));
        first.configure(&addresses, interface.mtu.into(), &routes).map_err(failure(Kind::Port))?;
        let (name, mtu) = (interface.name, interface.mtu);
        tracing::info!("protected side: {name} with MTU {mtu}, offloads {:?}", first.offloads());
        for (ports, queue) in of_workers.iter_mut().zip(queues) {
            ports.push(Box::new(queue));
        }
    }
    Ok(of_workers)
}

/// The ports of one interface: a queue for each worker that takes packets from it, and for each other one a
/// port that sends on the first of these.
fn open_tun(name: &str, roles: &[Option<Role>], sets: &mut QueueSets) -> Result<Vec<TunPort>, Failure> {
    let queues = open_tun_queues(name, count(roles, Role::encrypts), sets)?;
    let writer = || queues.first().map(TunPort::writer).transpose().map_err(failure(Kind::Port));
    let writers = roles.iter().filter(|role| !takes(**role, Role::encrypts));
    let writers = writers.filter_map(|_| writer().transpose());
    let writers = writers.collect::<Result<Vec<_>, _>>()?;
    Ok(by_role(roles, Role::encrypts, queues, writers))
}

/// The queues of one interface.
fn open_tun_queues(name: &str, queues: u32, sets: &mut QueueSets) -> Result<Vec<TunPort>, Failure> {
    if queues == 1 {
        return Ok(vec![TunPort::open(&TunConfig::new(name)).map_err(failure(Kind::Port))?]);
    }
    let (queues, ports) = TunQueues::open(name, queues).map_err(failure(Kind::Port))?;
    if let Some(why) = queues.steering_refused() {
        tracing::warn!(
            "protected side: {name}: {why}; a flow may change its worker, and its order once then"
        );
    }
    sets.tuns.push(queues);
    Ok(ports)
}

/// Whether one with this role takes packets from a side; one without a role sends alone.
fn takes(role: Option<Role>, from: fn(Role) -> bool) -> bool {
    role.is_some_and(from)
}

/// How many take packets from a side.
fn count(roles: &[Option<Role>], from: fn(Role) -> bool) -> u32 {
    u32::try_from(roles.iter().filter(|role| takes(**role, from)).count()).unwrap_or(u32::MAX)
}

/// The ports of all workers, in their order: those of `takers` for workers that take packets from this side,
/// those of `others` for the rest.
fn by_role<P>(roles: &[Option<Role>], from: fn(Role) -> bool, takers: Vec<P>, others: Vec<P>) -> Vec<P> {
    let (mut takers, mut others) = (takers.into_iter(), others.into_iter());
    roles.iter().filter_map(|role| if takes(*role, from) { takers.next() } else { others.next() }).collect()
}

/// The socket of an end.
pub fn endpoint(OuterEndpoint { local, protocol }: OuterEndpoint) -> Endpoint {
    let encapsulation = match protocol {
        OuterProtocol::Esp => Encapsulation::RawEsp,
        OuterProtocol::Ah => Encapsulation::RawAh,
        OuterProtocol::Vpe { number } => Encapsulation::RawVpe { number },
        OuterProtocol::Udp { local_port } => Encapsulation::Udp { port: local_port },
        OuterProtocol::UdpBeside { local_port } => Encapsulation::UdpBeside { port: local_port },
    };
    Endpoint { local, encapsulation }
}

/// The sockets that tunnels send by alone: those of VPE whose windows have UDP source ports of their own.
pub fn sending_endpoints(configuration: &Configuration) -> Vec<Endpoint> {
    let of = |tunnel: &Tunnel| match (tunnel.encapsulation, tunnel.rules.vpe.as_deref()?.source_ports) {
        (testudo_ipsec::Encapsulation::EspInUdp { remote_port: port, .. }, VpeSourcePorts::PerWindow) => {
            Some(Endpoint { local: tunnel.local, encapsulation: Encapsulation::UdpFromMany { port } })
        }
        _ => None,
    };
    let mut seen = HashSet::new();
    configuration.tunnels.iter().filter_map(of).filter(|end| seen.insert(*end)).collect()
}

/// The sockets of a configuration, without a mark where the system refuses that alone.
fn open_marked(
    mut config: SocketConfig,
    roles: &[Option<Role>],
    steering: impl Fn(&Endpoint) -> Steering,
    sets: &mut QueueSets,
) -> Result<(Vec<SocketPort>, bool), OpenError> {
    match open_queues(&config, roles, &steering, sets) {
        Err(error @ OpenError::NotMarked { .. }) => {
            tracing::warn!("{error}; policies to networks with a peer's own address are refused");
            config.mark = 0;
            open_queues(&config, roles, &steering, sets).map(|ports| (ports, false))
        }
        outcome => outcome.map(|ports| (ports, config.mark != 0)),
    }
}

/// Which worker gets a packet that arrives at an end. Those of VPE go by their windows, whose packets stay in
/// their order, also where each window has a source port: the program in the kernel can read both, and
/// windows are spread evenly whatever their ports. Where all packets of an SA come to one worker, so do those
/// of ESP and AH.
fn steering(configuration: &Configuration, end: &Endpoint) -> Steering {
    if let Some(classes) = vpe_classes(configuration, end) {
        return Steering::ByWindow { classes };
    }
    match configuration.gateway.spread_inbound {
        SpreadInbound::BySa => Steering::BySpi,
        SpreadInbound::InOrder | SpreadInbound::Unordered => Steering::BySequence { block: BLOCK },
        SpreadInbound::BySourcePort => Steering::ByUdpSource,
    }
}

/// Classes of the tunnels of VPE whose packets arrive at an end, the most; `None` where none do; peers
/// are taken to have as many: if not, windows are spread less evenly, each to one worker all the same
/// ([`testudo_wire::steering`]).
fn vpe_classes(configuration: &Configuration, end: &Endpoint) -> Option<NonZeroU16> {
    let arrives = |outer: OuterEndpoint| endpoint(outer).encapsulation == end.encapsulation;
    let tunnels = configuration.tunnels.iter().filter(|tunnel| tunnel.protocol == IpsecProtocol::Vpe);
    let of_tunnels = tunnels.filter(|tunnel| arrives(tunnel.outer_endpoint())).map(|t| t.rules.of_vpe());
    let negotiated = configuration.interfaces.iter().filter_map(|interface| interface.vpe.as_ref());
    let of_interfaces = negotiated.filter(|vpe| vpe.outer_endpoints().any(arrives)).map(|vpe| vpe.rules);
    let classes = of_tunnels.chain(of_interfaces).map(|rules| rules.classes().count()).max()?;
    NonZeroU16::new(classes.into())
}

/// A socket of each endpoint for each worker, which gets datagrams if the worker takes any.
fn open_queues(
    config: &SocketConfig,
    roles: &[Option<Role>],
    steering: impl Fn(&Endpoint) -> Steering,
    sets: &mut QueueSets,
) -> Result<Vec<SocketPort>, OpenError> {
    if let [_] = roles {
        return SocketPort::open(config).map(|port| vec![port]);
    }
    let (queues, senders) =
        (count(roles, Role::decrypts), roles.iter().filter(|role| !takes(**role, Role::decrypts)).count());
    let senders = u32::try_from(senders).unwrap_or(u32::MAX);
    let (set, mut ports) = SocketQueues::open_with_senders(config, queues, senders, steering)?;
    sets.sockets = Some(set);
    let senders = ports.split_off(usize::try_from(queues).unwrap_or(usize::MAX).min(ports.len()));
    Ok(by_role(roles, Role::decrypts, ports, senders))
}

/// Opens the sockets, for each worker. Returns whether they have a mark, too.
pub fn open_sockets(
    configuration: &Configuration,
    roles: &[Option<Role>],
    sets: &mut QueueSets,
) -> Result<(Vec<SocketPort>, bool), Failure> {
    let (optional, needed): (Vec<_>, Vec<_>) =
        configuration.outer_endpoints().into_iter().partition(|end| configuration.is_optional(end));
    let mut config = SocketConfig::new(needed.into_iter().map(endpoint).collect());
    config.endpoints.extend(sending_endpoints(configuration));
    config.optional = optional.into_iter().map(endpoint).collect();
    config.groups = configuration.groups().map(|(group, local)| Membership { group, local }).collect();
    config.interface.clone_from(&configuration.unprotected.interface);
    config.mtu = configuration.unprotected.mtu.into();
    // In transport mode a packet keeps the header that it came in.
    let is_transport = |tunnel: &Tunnel| tunnel.mode == Mode::Transport;
    config.hop_limits = configuration.ike.is_some() || configuration.tunnels.iter().any(is_transport);
    config.bypass = configuration.policies.iter().any(|p| p.action == Action::Bypass);
    config.mark = configuration.ike.as_ref().map_or(0, |ike| ike.mark);
    let (ports, is_marked) =
        open_marked(config, roles, |end| steering(configuration, end), sets).map_err(failure(Kind::Port))?;
    // What holds for the first one that gets datagrams holds for all.
    let first = roles.iter().position(|role| takes(*role, Role::decrypts)).unwrap_or(0);
    let Some(port) = ports.get(first) else { return Ok((ports, is_marked)) };
    for end in port.endpoints() {
        tracing::info!("unprotected side: {end}");
    }
    for end in port.left_out() {
        tracing::warn!("unprotected side: without {end}, since this host has no IPv6");
    }
    if !port.hears_icmp_errors() {
        warn_of_no_icmp_errors();
    }
    Ok((ports, is_marked))
}

/// That nobody says so where a path carries less.
pub fn warn_of_no_icmp_errors() {
    tracing::warn!(
        "without CAP_NET_RAW the gateway hears no ICMP errors: where a path carries less than `mtu` of \
         [port.unprotected], long packets are lost"
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A gateway of two workers with these lines, and one tunnel that is encapsulated so.
    fn configuration(gateway: &str, encapsulation: &str) -> Configuration {
        let text = format!(
            "[gateway]\nstate = \"s\"\nworkers = 2\n{gateway}\n[port.protected]\nkind = \"tun\"\nname = \"t0\"\n\
             [port.unprotected]\nkind = \"socket\"\n[[tunnel]]\nname = \"a\"\nlocal = \"192.0.2.1\"\n\
             remote = \"192.0.2.2\"\nsuite = \"aes128gcm16\"\n{encapsulation}\n\
             selectors = [ {{ local = \"10.1.0.0/16\", remote = \"10.2.0.0/16\" }} ]\n\
             outbound = {{ spi = 0x1001, key_file = \"out.key\" }}\ninbound = {{ spi = 0x1002, key_file = \"in.key\" }}\n"
        );
        Configuration::parse(&text, "t.toml").unwrap()
    }

    /// How what arrives at the tunnel's end is steered.
    fn steered(gateway: &str, encapsulation: &str) -> Steering {
        let configuration = configuration(gateway, encapsulation);
        steering(&configuration, &endpoint(configuration.tunnels[0].outer_endpoint()))
    }

    #[test]
    fn packets_are_steered_as_the_configuration_says_and_those_of_vpe_by_windows() {
        let in_udp = "encapsulation = \"esp-in-udp\"";
        let vpe = "encapsulation = \"vpe-in-udp\"\nudp_source_ports = \"per-window\"\nclasses = [[46]]\n\
                   allow_manual_counter_nonce = true";
        let by_source_port = "spread_inbound = \"by-source-port\"";
        assert_eq!(steered("", in_udp), Steering::BySpi);
        assert_eq!(steered(by_source_port, in_udp), Steering::ByUdpSource);
        assert_eq!(steered("spread_inbound = \"unordered\"", in_udp), Steering::BySequence { block: BLOCK });
        let two = NonZeroU16::new(2).unwrap();
        for gateway in ["", by_source_port] {
            assert_eq!(steered(gateway, vpe), Steering::ByWindow { classes: two });
        }
    }
}
