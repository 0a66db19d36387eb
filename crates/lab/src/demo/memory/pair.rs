//! Two gateways in this process: workers with a tunnel between them, and memory ports in place of the
//! network.

use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use testudo_crypto::{KeyMaterial, Suite};
use testudo_gateway::{
    Candidate, Clock, EngineOrder, EngineReport, InboundInstall, OutboundInstall, PortPair, SystemClock,
    TunnelInstall, Update, Worker, choose_engines,
};
use testudo_ipsec::{
    Action, DEFAULT_PEER_WINDOW, Dscp, Encapsulation, Endpoints, Fragmentation, InboundParameters,
    IpsecProtocol, Lease, Lifetime, Mode, Moment, NumberSource, OutboundParameters, PacketRules, PeerHeard,
    Policy, Prefix, SaParameters, SaSelectors, Selector, Spd, Spent, TunnelIndex, TunnelParameters,
};
use testudo_packet::{Interface, Pool, Port};
use testudo_port_memory::{MemoryHandle, MemoryPort};
use zeroize::Zeroizing;

use super::host::reflect;
use crate::capture::Tap;
use crate::demo::Direction;
use crate::error::{LabError, io as io_error};
use crate::gateway::{EngineStatus, PortStatus, Ports, Status, random_bytes};
use crate::network::Plan;
use crate::protection::{Protection, Protocols};
use crate::supply::Supply;

/// Capacity of each queue: more packets than are ever in flight.
const QUEUE_PACKETS: usize = 4096;
/// Buffers of each gateway, and their size: the MTU of the link and a tunnel's overhead.
const BUFFERS: usize = 2048;
const BUFFER_BYTES: usize = 2048;
/// The MTU of the link, and the replay window, as in the configurations of the other mode.
const LINK_MTU: usize = 1500;
const REPLAY_WINDOW: u32 = 4096;
/// SPIs of the SAs from A to B and back.
const SPIS: [u32; 2] = [0x1001, 0x1002];
/// The tunnel, and that of AH which covers its ESP.
const TUNNEL_INDEX: TunnelIndex = TunnelIndex(0);
const AH_INDEX: TunnelIndex = TunnelIndex(1);
/// How often a gateway checks lifetimes and keepalives.
const TICK: Duration = Duration::from_secs(1);
/// How long to wait for packets in flight.
const PATIENCE: Duration = Duration::from_secs(1);
/// After this many turns in a row without a packet, none is in flight.
const QUIET_TURNS: u32 = 64;

/// A gateway, its site, and its end of the link.
pub(super) struct End {
    worker: Worker,
    supply: Supply,
    engines: Vec<EngineReport>,
    /// Its input takes packets from the site's host; its output has those that the gateway delivers.
    pub(super) site: MemoryHandle,
    link: MemoryHandle,
}

/// Two gateways and the link between them.
pub(super) struct Pair {
    pub(super) ends: [End; 2],
    clock: SystemClock,
    next_tick: Moment,
    tap: Tap,
}

/// The keys of one end: outbound, inbound.
#[derive(Clone)]
struct TunnelKeys {
    own: [KeyMaterial; 2],
    /// Those of AH that covers ESP.
    ah: Option<[KeyMaterial; 2]>,
}

impl TunnelKeys {
    /// The keys of the other end.
    fn mirrored(self) -> Self {
        let swap = |[outbound, inbound]: [KeyMaterial; 2]| [inbound, outbound];
        Self { own: swap(self.own), ah: self.ah.map(swap) }
    }
}

/// Settings of both gateways.
pub(super) struct Tunnel<'a> {
    pub(super) protection: &'a Protection,
    /// The only engine besides the portable one; `None` for the gateway's own choice.
    pub(super) engine: Option<&'a str>,
    pub(super) ipv6: bool,
}

fn failed<E: std::fmt::Display>(action: &'static str) -> impl Fn(E) -> LabError {
    move |error| io_error(action)(io::Error::other(error.to_string()))
}

impl Tunnel<'_> {
    fn keys(suite: Suite) -> Result<[KeyMaterial; 2], LabError> {
        let key = || {
            let bytes = Zeroizing::new(random_bytes(suite.keying_material_bytes())?);
            KeyMaterial::new(suite, bytes).map_err(failed("make a key"))
        };
        Ok([key()?, key()?])
    }

    fn parameters(&self, is_a: bool, selector: Selector) -> Result<TunnelParameters, LabError> {
        let plans = [Plan::of(self.ipv6, is_a), Plan::of(self.ipv6, !is_a)];
        let [local, remote] = [plans[0].outer()?, plans[1].outer()?];
        let encapsulation = match self.protection.udp_port() {
            None => Encapsulation::Esp,
            Some(port) => Encapsulation::EspInUdp { local_port: port, remote_port: port },
        };
        let parameters = TunnelParameters {
            name: if is_a { "site-b" } else { "site-a" }.into(),
            endpoints: Endpoints { local, remote: Some(remote), encapsulation },
            learn_remote: false,
            interface: Interface::MAIN,
            protocol: match self.protection.protocols {
                Protocols::Ah => IpsecProtocol::Ah,
                Protocols::Vpe => IpsecProtocol::Vpe,
                Protocols::Esp | Protocols::AhAndEsp => IpsecProtocol::Esp,
            },
            mode: if self.protection.in_transport { Mode::Transport } else { Mode::Tunnel },
            covered_by: (self.protection.protocols == Protocols::AhAndEsp).then_some(AH_INDEX),
            covers: None,
            dscp: Dscp::Copy,
            rules: PacketRules::default(),
            path_mtu: LINK_MTU,
            fragmentation: Fragmentation::Before,
            non_first_fragments: false,
            acquires: false,
            peer_heard: PeerHeard::default(),
            keepalive: None,
            selectors: SaSelectors::default(),
        };
        Ok(parameters.selecting([selector]))
    }

    fn selector(&self, is_a: bool) -> Result<Selector, LabError> {
        let prefix = |is_a| -> Result<Prefix, LabError> {
            let plan = Plan::of(self.ipv6, is_a);
            let (network, length) = match self.protection.in_transport {
                true => (plan.outer()?, if self.ipv6 { 128 } else { 32 }),
                false => plan.network()?,
            };
            Prefix::new(network, length).map_err(failed("build a prefix"))
        };
        Ok(Selector::between(prefix(is_a)?, prefix(!is_a)?))
    }

    /// Starts the gateway of one site, with its own engines.
    fn start(&self, is_a: bool, keys: TunnelKeys, candidates: &[Candidate]) -> Result<End, LabError> {
        let (engines, reports) =
            choose_engines(candidates, EngineOrder::FastestFirst).map_err(failed("start an engine"))?;
        let [(inner, site), (outer, link)] =
            ["site", "link"].map(|name| MemoryPort::with_handle(name, QUEUE_PACKETS));
        let ports = PortPair { protected: Box::new(inner), unprotected: Box::new(outer) };
        let selector = self.selector(is_a)?;
        let mut supply = Supply::default();
        let parameters = self.parameters(is_a, selector)?;
        let index = TUNNEL_INDEX;
        let policies = Spd::new([Policy::new(selector, Action::Protect(index))]);
        let policies = Box::new(policies.map_err(failed("make the policies"))?);
        let mut worker = Worker::new(ports, Pool::new(BUFFERS, BUFFER_BYTES), engines, Box::default());
        let mut install = Vec::new();
        if let Some(keys) = keys.ah {
            let parameters = TunnelParameters {
                name: format!("{}/ah", parameters.name).into(),
                protocol: IpsecProtocol::Ah,
                mode: Mode::Transport,
                covered_by: None,
                covers: Some(index),
                selectors: SaSelectors::default(),
                ..parameters.clone()
            };
            let (outbound, inbound) = sas(is_a, keys, supply.lease());
            install.push(TunnelInstall {
                index: AH_INDEX,
                parameters,
                outbound,
                inbound,
                more_outbound: Vec::new(),
                more_inbound: Vec::new(),
            });
        }
        let (outbound, inbound) = sas(is_a, keys.own, supply.lease());
        install.push(TunnelInstall {
            index,
            parameters,
            outbound,
            inbound,
            more_outbound: Vec::new(),
            more_inbound: Vec::new(),
        });
        let update = Update { policies: Some(policies), install, ..Update::default() };
        for (_, outcome) in worker.update(update, Moment::default()) {
            outcome.map_err(failed("install a tunnel"))?;
        }
        Ok(End { worker, supply, engines: reports, site, link })
    }

    /// The engines that the gateways may use.
    fn candidates(&self, mut candidates: Vec<Candidate>) -> Result<Vec<Candidate>, LabError> {
        let Some(wanted) = self.engine else { return Ok(candidates) };
        let names: Vec<_> = candidates.iter().map(|candidate| candidate.name).chain(["portable"]).collect();
        if !names.contains(&wanted) {
            let words = format!("no such engine; the engines are {}", names.join(", "));
            return Err(io_error(format!("use the engine \"{wanted}\""))(io::Error::other(words)));
        }
        candidates.retain(|candidate| candidate.name == wanted);
        Ok(candidates)
    }
}

/// The SAs of one site, under its key towards the other and the other's.
fn sas(
    is_a: bool,
    [outbound, inbound]: [KeyMaterial; 2],
    lease: Arc<Lease>,
) -> (OutboundInstall, InboundInstall) {
    let spis = if is_a { SPIS } else { [SPIS[1], SPIS[0]] };
    let sa = |spi, key: &KeyMaterial| SaParameters {
        spi,
        suite: key.suite(),
        esn: true,
        lifetime: Lifetime::default(),
        spent: Spent::default(),
    };
    let numbers = NumberSource::Leased { first: 1, lease };
    let parameters = OutboundParameters { sa: sa(spis[0], &outbound), numbers, iv_mask: 0, worker: None };
    let outbound = OutboundInstall { parameters, key: outbound.into(), peer_window: DEFAULT_PEER_WINDOW };
    let parameters =
        InboundParameters { sa: sa(spis[1], &inbound), replay_window: REPLAY_WINDOW, from_any_port: false };
    (outbound, InboundInstall { parameters, key: inbound.into(), window: None, inherits: None, shared: None })
}

impl End {
    /// The status as `testudo status --json` would report it.
    pub(super) fn status(&self) -> Status {
        let port = |port: &dyn Port| {
            let counters = port.counters();
            PortStatus { rx_packets: counters.rx_packets, tx_packets: counters.tx_packets }
        };
        let (protected, unprotected) = (self.worker.protected_port(), self.worker.unprotected_port());
        let drops = self.worker.pool().drops().iter();
        let engines = self.engines.iter();
        Status {
            engines: engines.map(EngineStatus::of).collect(),
            ports: Ports { protected: port(protected), unprotected: port(unprotected) },
            drops: drops.map(|(reason, packets)| (reason.name().to_owned(), packets)).collect(),
        }
    }
}

impl Pair {
    /// Two gateways with a tunnel of fresh keys between them. Every packet on the link passes `tap`.
    pub(super) fn build(tunnel: &Tunnel, candidates: Vec<Candidate>, tap: Tap) -> Result<Self, LabError> {
        let candidates = tunnel.candidates(candidates)?;
        let (suite, ah_suite) = tunnel.protection.suites()?;
        let a = TunnelKeys { own: Tunnel::keys(suite)?, ah: ah_suite.map(Tunnel::keys).transpose()? };
        let ends =
            [tunnel.start(true, a.clone(), &candidates)?, tunnel.start(false, a.mirrored(), &candidates)?];
        if let Some(refused) = tunnel.engine.and_then(|wanted| refusal(&ends[0].engines, wanted)) {
            return Err(failed("use that engine")(refused));
        }
        Ok(Self { ends, clock: SystemClock::default(), next_tick: Moment::default(), tap })
    }

    pub(super) fn tap(&mut self) -> &mut Tap {
        &mut self.tap
    }

    /// The sites of a direction: source and destination.
    pub(super) fn sites(&self, direction: Direction) -> (&MemoryHandle, &MemoryHandle) {
        let [a, b] = &self.ends;
        match direction {
            Direction::AToB => (&a.site, &b.site),
            Direction::BToA => (&b.site, &a.site),
        }
    }

    /// Puts a packet on the link towards gateway B, as anybody on the link can.
    pub(super) fn inject(&mut self, packet: &[u8]) -> Result<(), LabError> {
        self.tap.packet(packet)?;
        self.ends[1].link.input.push(packet);
        Ok(())
    }

    /// Runs one turn of both gateways and of the link; returns how many packets moved.
    fn turn(&mut self) -> Result<usize, LabError> {
        let now = self.clock.now();
        let is_due = now >= self.next_tick;
        let mut moved = 0;
        for end in &mut self.ends {
            if is_due {
                end.worker.tick(now);
            }
            moved += end.worker.turn(now).map_err(failed("move packets in memory"))?;
            end.supply.serve(now);
        }
        if is_due {
            self.next_tick = Moment(now.0 + TICK);
        }
        let [a, b] = &self.ends;
        for (from, to) in [(&a.link, &b.link), (&b.link, &a.link)] {
            while let Some(packet) = from.output.pop() {
                self.tap.packet(&packet)?;
                // A full queue loses packets as a link does; the stage that waits for them counts the loss.
                to.input.push(&packet);
                moved += 1;
            }
        }
        Ok(moved)
    }

    /// Runs turns until nothing is in flight.
    pub(super) fn settle(&mut self) -> Result<(), LabError> {
        let (deadline, mut quiet) = (Instant::now() + PATIENCE, 0);
        while quiet < QUIET_TURNS && Instant::now() < deadline {
            let is_quiet = self.turn()? == 0 && self.ends.iter().all(|end| !end.worker.is_busy());
            quiet = if is_quiet { quiet + 1 } else { 0 };
        }
        Ok(())
    }

    /// Sends `packet` to the other site, whose host echoes it; returns the answer and the round-trip time.
    pub(super) fn round_trip(
        &mut self,
        direction: Direction,
        packet: &[u8],
    ) -> Result<Option<(Vec<u8>, Duration)>, LabError> {
        let (near, far) = self.sites(direction);
        let (near, far) = (near.clone(), far.clone());
        let started = Instant::now();
        near.input.push(packet);
        while started.elapsed() < PATIENCE {
            self.turn()?;
            for answer in far.output.drain().iter().filter_map(|packet| reflect(packet)) {
                far.input.push(&answer);
            }
            if let Some(answer) = near.output.pop() {
                return Ok(Some((answer, started.elapsed())));
            }
        }
        Ok(None)
    }
}

/// Why the requested engine is not in use.
fn refusal(reports: &[EngineReport], wanted: &str) -> Option<String> {
    let report = reports.iter().find(|report| report.name == wanted)?;
    (!report.in_use).then(|| format!("{wanted}: {}", report.detail))
}

/// The gateways' addresses on the link, and the hosts', in the order A, B: in transport mode these are the
/// same.
pub(super) fn addresses(ipv6: bool, in_transport: bool) -> Result<[[IpAddr; 2]; 2], LabError> {
    let [a, b] = [Plan::of(ipv6, true), Plan::of(ipv6, false)];
    let outer = [a.outer()?, b.outer()?];
    Ok([outer, if in_transport { outer } else { [a.host()?, b.host()?] }])
}
