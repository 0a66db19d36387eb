//! Workers of gateways as the experiments need them: their windows, their SAs, and the packets of each.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use testudo_crypto::Engine;
use testudo_gateway::{OffloadMode, PortPair, TunnelInstall, Update, Worker};
use testudo_ipsec::{
    DEFAULT_PEER_WINDOW, IpsecProtocol, Lease, Mode, Moment, SaSelectors, Spd, TunnelIndex, VpeClasses,
    VpeRules,
};
use testudo_packet::Pool;
use testudo_port_memory::{LoopPort, Packets, SinkPort};
use testudo_wire::checksum;
use testudo_wire::ip::IPV4_HEADER_BYTES;

use crate::bench::case::{Case, Way};
use crate::bench::error::Wrong;
use crate::bench::load;
use crate::bench::tunnels::{self, OVERHEAD_BYTES};

/// Buffers of a worker, and their least length.
const BUFFERS: usize = 4096;
const BUFFER_BYTES: usize = 2048;
/// Sequence numbers that are granted from the start: more than a measurement uses.
const GRANTED: u64 = 1 << 62;

/// The tunnel of a gateway, and what its windows are.
#[derive(Debug, Clone, Copy)]
pub(super) struct Tunnel {
    pub(super) case: Case,
    pub(super) replay_window: u32,
    pub(super) peer_window: u32,
    pub(super) classes: VpeClasses,
    /// Which of several gateways it belongs to: each has addresses, an SPI and a key of its own.
    pub(super) gateway: u8,
    /// Which SA of the gateway's it is: each has an SPI and a key of its own, and all have one selector.
    pub(super) sa: u8,
}

impl Tunnel {
    /// The usual one of `case`.
    pub(super) fn of(case: Case) -> Self {
        let (replay_window, peer_window) = (4096, DEFAULT_PEER_WINDOW);
        Self { case, replay_window, peer_window, classes: VpeClasses::default(), gateway: 0, sa: 0 }
    }

    fn install(&self, side: Way) -> Result<TunnelInstall, Wrong> {
        let number = u32::from(self.gateway) << 8 | u32::from(self.sa);
        let mut install = tunnels::tunnel(&self.case, number, side, Arc::new(Lease::until(GRANTED)))?;
        install.index = TunnelIndex(0);
        install.inbound.parameters.replay_window = self.replay_window;
        install.outbound.peer_window = self.peer_window;
        let parameters = &mut install.parameters;
        let ends = &mut parameters.endpoints;
        ends.local = of_gateway(ends.local, self.gateway);
        ends.remote = ends.remote.map(|remote| of_gateway(remote, self.gateway));
        parameters.selectors = SaSelectors::new([tunnels::selector(0, side)?], Mode::Tunnel, ends);
        if parameters.protocol == IpsecProtocol::Vpe {
            let rules = VpeRules::default().with_slots(self.classes, 0, VpeRules::SLOTS);
            parameters.rules.vpe = Some(Box::new(rules.map_err(|e| e.to_string())?));
        }
        Ok(install)
    }

    /// What installs it, where packets go `side`.
    pub(super) fn update(&self, side: Way) -> Result<Update, Wrong> {
        let policies = Spd::new(tunnels::policies(&self.case, side)?).map_err(|e| e.to_string())?;
        let install = vec![self.install(side)?];
        Ok(Update { policies: Some(Box::new(policies)), install, ..Update::default() })
    }

    /// What installs it again, with numbers from 1 and empty windows.
    pub(super) fn again(&self, side: Way) -> Result<Update, Wrong> {
        Ok(Update { remove: vec![TunnelIndex(0)], install: vec![self.install(side)?], ..Update::default() })
    }
}

/// The last but one octet of an address is the gateway's.
fn of_gateway(address: IpAddr, gateway: u8) -> IpAddr {
    match address {
        IpAddr::V4(address) => {
            let [a, b, _, d] = address.octets();
            IpAddr::V4(Ipv4Addr::new(a, b, gateway, d))
        }
        IpAddr::V6(_) => address,
    }
}

/// A worker without tunnels.
pub(super) fn worker(case: &Case, ports: PortPair, engine: Box<dyn Engine>) -> Worker {
    let pool = Pool::new(BUFFERS, BUFFER_BYTES.max(case.size.longest_bytes() + OVERHEAD_BYTES));
    let mut worker = Worker::new(ports, pool, vec![engine], Box::default());
    worker.set_offload_mode(OffloadMode::Always);
    worker.set_formation(case.order.formation());
    worker
}

/// Makes a change of one worker, or the same of several that share it.
pub(super) fn apply(workers: &mut [Worker], update: Update) -> Result<(), Wrong> {
    let outcome = match workers {
        [one] => one.update(update, Moment::default()),
        several => Worker::update_all(several, update, Moment::default()),
    };
    outcome.into_iter().try_for_each(|(_, outcome)| outcome.map(drop).map_err(|e| e.to_string()))
}

/// A worker at the end where packets go `way`, after it has had `count` packets, and what came out.
pub(super) fn through(
    tunnel: &Tunnel,
    way: Way,
    engine: Box<dyn Engine>,
    packets: &Packets,
    count: usize,
) -> Result<(Worker, Vec<Vec<u8>>), Wrong> {
    let (sink_port, sink) = SinkPort::new("sink");
    sink.keep(1, count);
    let feed = LoopPort::new("load", packets.clone()).with_limit(count as u64);
    let ports = match way {
        Way::Outbound => PortPair { protected: Box::new(feed), unprotected: Box::new(sink_port) },
        Way::Inbound => PortPair { protected: Box::new(sink_port), unprotected: Box::new(feed) },
    };
    let mut worker = worker(&tunnel.case, ports, engine);
    apply(std::slice::from_mut(&mut worker), tunnel.update(way)?)?;
    let is_busy = |worker: &Worker| worker.is_busy() || worker.is_waiting() != (false, false);
    while worker.turn(Moment::default()).map_err(|e| e.to_string())? > 0 || is_busy(&worker) {}
    Ok((worker, sink.take()))
}

/// The packets of a measurement, changed: the IPv4 header's checksum is right after, and that of UDP is left
/// out (RFC 768).
pub(super) fn packets(case: &Case, mut change: impl FnMut(usize, &mut [u8])) -> Result<Packets, Wrong> {
    let packets = load::packets(case.suites, case.size, case.sas).map_err(|e| e.to_string())?;
    let changed = packets.iter().enumerate().map(|(number, (head, tail))| {
        let mut packet = [head, tail].concat();
        change(number, &mut packet);
        packet[10..12].fill(0);
        let sum = checksum::of(&packet[..IPV4_HEADER_BYTES]).to_bytes();
        packet[10..12].copy_from_slice(&sum);
        packet[IPV4_HEADER_BYTES + 6..IPV4_HEADER_BYTES + 8].fill(0);
        packet
    });
    Ok(changed.collect::<Vec<_>>().into())
}

/// Everything that a worker dropped, for people.
pub(super) fn drops(worker: &Worker) -> String {
    let drops = worker.pool().drops().iter().filter(|(_, count)| *count > 0);
    let drops: Vec<String> = drops.map(|(reason, count)| format!("{} {count}", reason.name())).collect();
    if drops.is_empty() { "none".to_owned() } else { drops.join(", ") }
}
