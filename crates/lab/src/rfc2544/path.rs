//! Two gateways as processes of the program in private namespaces, with the generator at one site and the
//! sink at the other: a [`Device`].
//!
//! ```text
//!   generator ══ gateway A ─── link ─── gateway B ══ sink     cables: veth; gateways: TUN and sockets, AF_XDP, DPDK
//! ```
//!
//! Generator and sink send and receive by sockets; the kernel carries what is between them and the gateways.
//! The cables carry the longest frame sealed, so that nothing is fragmented.
//!
//! Each SA has a tunnel, for a part of the sources' network.
//!
//! DPDK has its driver of AF_XDP: those of TAP and of packet sockets carry frames of 1,522 bytes at most, and
//! a long frame, sealed, is longer.

use std::net::Ipv4Addr;
use std::time::Duration;

use super::cells::processors_json;
use super::options::{Over, TandemArgs, has_flows};
use super::report::Subject;
use crate::bench::{BenchError, threads};
use crate::demo::{program, require_programs};
use crate::error::LabError;
use crate::gateway::{Gateway, Work};
use crate::generator::{MOST_FLOWS, Sizes, Sources, UdpPath};
use crate::harness::{Ceiling, Device, DeviceError, Load, Trial};
use crate::namespaces::require_tun;
use crate::network::{Network, PortKind, Tunnel};
use crate::protection::Protection;
use crate::stolen::Stolen;
use crate::workspace::{Workspace, enter_as_root_with_workspace, enter_with_workspace};

/// Of all cables, in bytes of an IP packet: a datagram of Ethernet's longest frame, sealed by any suite.
const MTU: u16 = 1700;
/// Threads that have work: generator, sink, and a worker of each gateway.
const THREADS: usize = 4;
/// Addresses of flows: a quarter of site A's network, which has no broadcast address.
const SOURCES: (Ipv4Addr, u8) = (Ipv4Addr::new(10, 1, 0, 128), 26);
/// SAs at most: each is a tunnel of the gateways' configurations, with key files.
const MOST_SAS: u32 = 1024;

/// Networks that are somebody else's: site A's gateway and host, its broadcasts, site B, the link, loopback,
/// multicast.
const TAKEN: [(Ipv4Addr, u8); 6] = [
    (Ipv4Addr::new(10, 1, 0, 0), 25),
    (Ipv4Addr::new(10, 1, 0, 255), 32),
    (Ipv4Addr::new(10, 2, 0, 0), 24),
    (Ipv4Addr::new(192, 0, 2, 0), 24),
    (Ipv4Addr::LOCALHOST, 8),
    (Ipv4Addr::new(224, 0, 0, 0), 3),
];

/// What sources are to be had over a network.
///
/// # Errors
/// SAs that are no power of two or more than parts, more flows than sockets or fewer than SAs, or sources
/// that others have.
fn check(args: &TandemArgs) -> Result<Sources, BenchError> {
    let refuse = |what: String| Err(BenchError::Usage(what));
    let sources = args.sources.unwrap_or(SOURCES);
    let most = MOST_SAS.min(1_u32.checked_shl(u32::from(32 - sources.1)).unwrap_or(MOST_SAS));
    if !args.sas.is_power_of_two() || args.sas > most {
        return refuse(format!(
            "--sas: each is for a part of {}/{} over a network: a power of two, {most} at most",
            sources.0, sources.1
        ));
    }
    if args.flows > MOST_FLOWS {
        return refuse(format!("--flows: each is a socket over a network, {MOST_FLOWS} at most"));
    }
    has_flows(args.flows, args.sas)?;
    match TAKEN.into_iter().find(|taken| overlap(*taken, sources)) {
        Some((taken, length)) => {
            refuse(format!("--sources: {taken}/{length} is of gateways, site B or nobody over a network"))
        }
        None => Ok(Sources { network: sources, parts: args.sas }),
    }
}

/// Whether two networks have an address in common.
fn overlap(a: (Ipv4Addr, u8), b: (Ipv4Addr, u8)) -> bool {
    let other_bits = u32::MAX.checked_shr(a.1.min(b.1).into()).unwrap_or(0);
    (a.0.to_bits() ^ b.0.to_bits()) & !other_bits == 0
}

/// The device.
pub(crate) struct Path {
    over: Over,
    args: TandemArgs,
    path: UdpPath,
    gateways: [Gateway; 2],
    /// Whether gateways are asked about each trial.
    watches_workers: bool,
    /// Processors of the gateways, and of generator and sink.
    processors: [Vec<usize>; 2],
    /// From all of these.
    stolen: Stolen,
    // Dropped after the gateways, whose files and interfaces they are.
    _network: Network,
    _workspace: Workspace,
}

impl Path {
    /// Enters private namespaces, in which alone it returns, builds the network and starts the gateways.
    /// `purpose` is in the names of its files; packets may be late by `residual`.
    pub(crate) fn build(
        over: Over,
        args: &TandemArgs,
        purpose: &str,
        residual: Duration,
    ) -> Result<Self, BenchError> {
        let sources = check(args)?;
        require_programs()?;
        let (port, enter): (_, fn(&str, bool) -> Result<_, LabError>) = match over {
            Over::Xdp => (PortKind::Xdp, enter_as_root_with_workspace),
            Over::Dpdk => (PortKind::DpdkOnCables, enter_as_root_with_workspace),
            Over::Memory | Over::Veth => (PortKind::Tun, enter_with_workspace),
        };
        let (inside, workspace) = enter(purpose, false)?;
        if port == PortKind::Tun {
            require_tun().map_err(LabError::from)?;
        }
        let mut network = Network::build(inside, false, port)?;
        network.set_mtu(MTU)?;
        if args.sources.is_some() && port != PortKind::DpdkOnCables {
            // Gateway A finds their hosts where site A's are. Nothing is for them, and DPDK has no routes.
            let (gateway, host) = (&network.a.gateway, network.a.address.to_string());
            gateway.route_via(&text(sources.network), &host).map_err(LabError::from)?;
        }
        if args.sources.is_some() || args.sas > 1 {
            network.a.parts = (0..sources.parts).map(|number| text(sources.part(number))).collect();
        }
        let processors = halves();
        let protection = Protection::esp(&args.suite, "esp");
        let [of_gateways, of_generator] = &processors;
        let tunnel = Tunnel {
            protection: &protection,
            port,
            engine: args.engine.as_deref(),
            workers: 1,
            mtu: MTU,
            processors: Some([of_gateways, of_gateways]),
        };
        let gateways = network.start_gateways(&tunnel, &program(None)?, workspace.path())?;
        // The sink's thread is started by this one, and has its processors.
        threads::allow(of_generator);
        let address = network.b.address;
        let path = UdpPath::between(
            &network.a.host,
            &network.b.host,
            address,
            args.flows,
            Some(sources),
            args.seed,
        )?;
        let (path, args) = (path.patient_for(residual), args.clone());
        let (watches_workers, stolen) = (false, Stolen::of(&processors.concat()));
        Ok(Self {
            over,
            args,
            path,
            gateways,
            watches_workers,
            processors,
            stolen,
            _network: network,
            _workspace: workspace,
        })
    }

    /// The same, which asks the gateways before and after each trial how busy they were.
    pub(crate) fn watching_workers(self) -> Self {
        Self { watches_workers: true, ..self }
    }

    /// What both gateways' workers have done so far.
    fn works(&self) -> Result<[Work; 2], DeviceError> {
        let [a, b] = &self.gateways;
        let work = |gateway: &Gateway| gateway.work().map_err(|error| DeviceError(error.to_string()));
        Ok([work(a)?, work(b)?])
    }

    /// Stops the gateways; what was measured, for the report.
    pub(crate) fn end(self) -> Result<Subject, BenchError> {
        let Self { over, args, path, gateways: [a, b], processors: [of_gateways, of_generator], .. } = self;
        let engine = a.status()?.engine(&args.suite).to_owned();
        [a, b].into_iter().try_for_each(Gateway::stop)?;
        let count = all(&of_gateways, &of_generator).len();
        let is_shared = count < THREADS;
        let mut notes = Vec::new();
        if is_shared {
            notes.push(format!("cores shared: {THREADS} threads have fewer processors"));
        }
        let [received, unread] = path.counts();
        if unread > 0 {
            notes.push(format!(
                "{unread} of {received} packets of this run found the sink's socket full: they came through and count, without a latency"
            ));
        }
        let [all, refused] = path.refused();
        if refused > 0 {
            notes.push(format!(
                "{refused} of {all} packets of this run were refused by the generator's system: they were not offered, and are not lost"
            ));
        }
        let flows = u32::try_from(path.flows()).unwrap_or(u32::MAX);
        let ports = match over {
            Over::Xdp => "AF_XDP in native mode",
            Over::Dpdk => "DPDK's AF_XDP, without huge pages",
            _ => "TUN interfaces and sockets",
        };
        let [gateways, generator] = [&of_gateways, &of_generator]
            .map(|all| all.iter().map(usize::to_string).collect::<Vec<_>>().join(" "));
        let shared = if is_shared { " (cores shared)" } else { "" };
        Ok(Subject {
            heading: format!(
                "Two gateways in namespaces over virtual cables, one seals and one opens, by {ports}: {}, {engine}, SAs {}, flows {flows}.\n\
                 Cores: gateways {gateways}, generator and sink {generator}{shared}.\n",
                args.suite, args.sas,
            ),
            cores: processors_json([&of_gateways, &of_generator], is_shared),
            engine,
            flows,
            queue: "Queues are those of the kernel and of the gateways' ports.".to_owned(),
            notes,
        })
    }
}

impl Device for Path {
    fn maximum_rate(&mut self, sizes: Sizes) -> Result<Ceiling, DeviceError> {
        self.path.maximum_rate(sizes)
    }

    fn trial(&mut self, sizes: Sizes, load: Load) -> Result<Trial, DeviceError> {
        for gateway in &mut self.gateways {
            gateway.check_alive().map_err(|error| DeviceError(error.to_string()))?;
        }
        let before = self.watches_workers.then(|| self.works()).transpose()?;
        // What was stolen before is of no trial.
        self.stolen.has_grown();
        let trial = self.path.trial(sizes, load)?;
        let trial = self.stolen.judge(trial);
        let Some(before) = before else { return Ok(trial) };
        // What was done for all packets of the trial, in the time in which they were under way: queues that
        // are full when the generator ends keep gateways busy for longer.
        let time = trial.sending.max(trial.receiving);
        Ok(Trial { busy_share: Work::busier(&self.works()?, &before, time), ..trial })
    }
}

fn text((network, length): (Ipv4Addr, u8)) -> String {
    format!("{network}/{length}")
}

/// Processors of the gateways and of the generator: halves, or the same where there is one.
fn halves() -> [Vec<usize>; 2] {
    let all = threads::processors();
    let (generator, gateways) = all.split_at(all.len() / 2);
    match generator {
        [] => [all.clone(), all],
        _ => [gateways.to_vec(), generator.to_vec()],
    }
}

/// Each of these processors once.
fn all<'a>(a: &'a [usize], b: &'a [usize]) -> std::collections::HashSet<&'a usize> {
    a.iter().chain(b).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Program {
        #[command(flatten)]
        args: TandemArgs,
    }

    #[test]
    fn what_a_network_cannot_carry_is_refused_with_the_limit() {
        let checked = |words: &str| {
            let words = ["device"].into_iter().chain(words.split_whitespace());
            check(&Program::parse_from(words).args).map_err(|error| error.to_string())
        };
        assert_eq!(checked(""), Ok(Sources { network: SOURCES, parts: 1 }));
        let network = (Ipv4Addr::new(172, 16, 0, 0), 12);
        assert_eq!(
            checked("--sources 172.16.0.0/12 --flows 16384 --sas 1024"),
            Ok(Sources { network, parts: 1024 })
        );
        assert!(checked("--flows 16385").unwrap_err().contains("16384 at most"));
        assert!(checked("--sas 3").unwrap_err().contains("a power of two, 64 at most"));
        assert!(checked("--sas 128").unwrap_err().contains("10.1.0.128/26"));
        assert!(checked("--sas 64 --flows 63").unwrap_err().contains("64 SAs need as many"));
        // Linux sends from an address of broadcasts as from the interface's own.
        assert_eq!(
            checked("--sas 64").map(|sources| sources.part(63)),
            Ok((Ipv4Addr::new(10, 1, 0, 191), 32))
        );
        for taken in [
            "0.0.0.0/0",
            "10.0.0.0/8",
            "10.2.0.0/25",
            "192.0.2.0/30",
            "127.1.0.0/16",
            "230.0.0.0/8",
            "10.1.0.192/26",
        ] {
            assert!(checked(&format!("--sources {taken}")).unwrap_err().contains("--sources: "), "{taken}");
        }
        for wrong in ["10.1.0.0", "10.1.0.1/24", "10.0.0.0/33", "fd00::/8"] {
            assert!(Program::try_parse_from(["device", "--sources", wrong]).is_err(), "{wrong}");
        }
    }
}
