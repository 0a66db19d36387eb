//! Two gateways as processes of the program in private namespaces, with the generator at one site and the
//! sink at the other: a [`Device`].
//!
//! ```text
//!   generator ══ gateway A ─── link ─── gateway B ══ sink        cables: veth; gateways: TUN and sockets, or AF_XDP
//! ```
//!
//! Generator and sink send and receive by sockets; the kernel carries what is between them and the gateways.
//! The cables carry the longest frame sealed, so that nothing is fragmented.
//!
//! Deliberately missing: SAs beyond one, which a tunnel of configured keys has.

use std::net::Ipv4Addr;

use serde_json::json;

use super::options::{Over, Rfc2544Options};
use super::report::Subject;
use crate::bench::{BenchError, threads};
use crate::demo::{program, require_programs};
use crate::error::LabError;
use crate::gateway::Gateway;
use crate::generator::{Sizes, UdpPath};
use crate::harness::{Ceiling, Device, DeviceError, Load, Trial};
use crate::namespaces::require_tun;
use crate::network::{Network, PortKind, Tunnel};
use crate::protection::Protection;
use crate::workspace::{Workspace, enter_as_root_with_workspace, enter_with_workspace};

/// Of all cables, in bytes of an IP packet: a datagram of Ethernet's longest frame, sealed by any suite.
const MTU: u16 = 1700;
/// Threads that have work: generator, sink, and a worker of each gateway.
const THREADS: usize = 4;
/// Addresses of flows: the upper half of site A's network.
const SOURCES: (Ipv4Addr, u8) = (Ipv4Addr::new(10, 1, 0, 128), 25);

/// The device.
pub(super) struct Path {
    path: UdpPath,
    gateways: [Gateway; 2],
    /// Processors of the gateways, and of generator and sink.
    processors: [Vec<usize>; 2],
    // Dropped after the gateways, whose files and interfaces they are.
    _network: Network,
    _workspace: Workspace,
}

impl Path {
    /// Enters private namespaces, in which alone it returns, builds the network and starts the gateways.
    pub(super) fn build(options: &Rfc2544Options) -> Result<Self, BenchError> {
        if options.device.sas != 1 {
            return Err(BenchError::Usage("--over veth and xdp have one SA: leave --sas out".to_owned()));
        }
        require_programs()?;
        let is_fast = options.over == Over::Xdp;
        let enter = if is_fast { enter_as_root_with_workspace } else { enter_with_workspace };
        let (inside, workspace) = enter("rfc2544", false)?;
        let port = if is_fast { PortKind::Xdp } else { PortKind::Tun };
        if !is_fast {
            require_tun().map_err(LabError::from)?;
        }
        let network = Network::build(inside, false, port)?;
        network.set_mtu(MTU)?;
        let processors = halves();
        let protection = Protection::esp(&options.device.suite, "esp");
        let [of_gateways, of_generator] = &processors;
        let tunnel = Tunnel {
            protection: &protection,
            port,
            engine: options.device.engine.as_deref(),
            workers: 1,
            mtu: MTU,
            processors: Some([of_gateways, of_gateways]),
        };
        let gateways = network.start_gateways(&tunnel, &program(None)?, workspace.path())?;
        // The sink's thread is started by this one, and has its processors.
        threads::allow(of_generator);
        let (args, address) = (&options.device, network.b.address);
        let path = UdpPath::between(
            &network.a.host,
            &network.b.host,
            address,
            args.flows,
            Some(SOURCES),
            args.seed,
        )?;
        let path = path.patient_for(options.residual());
        Ok(Self { path, gateways, processors, _network: network, _workspace: workspace })
    }

    /// Stops the gateways; what was measured, for the report.
    pub(super) fn end(self, options: &Rfc2544Options) -> Result<Subject, BenchError> {
        let Self { path, gateways: [a, b], processors: [of_gateways, of_generator], .. } = self;
        let args = &options.device;
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
        let flows = u32::try_from(path.flows()).unwrap_or(u32::MAX);
        let ports = match options.over {
            Over::Xdp => "AF_XDP in native mode",
            _ => "TUN interfaces and sockets",
        };
        let [gateways, generator] = [&of_gateways, &of_generator]
            .map(|all| all.iter().map(usize::to_string).collect::<Vec<_>>().join(" "));
        let shared = if is_shared { " (cores shared)" } else { "" };
        Ok(Subject {
            heading: format!(
                "Two gateways in namespaces over virtual cables, one seals and one opens, by {ports}: {}, {engine}, SAs 1, flows {flows}.\n\
                 Cores: gateways {gateways}, generator and sink {generator}{shared}.\n",
                args.suite,
            ),
            cores: json!({ "gateways": of_gateways, "generator": of_generator, "shared": is_shared }),
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
        self.path.trial(sizes, load)
    }
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
