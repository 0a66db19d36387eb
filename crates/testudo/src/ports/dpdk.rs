//! A device of DPDK's: no kernel sees it, so that the gateway finds its neighbours and answers for its
//! addresses itself.
//!
//! ```text
//!   worker ◄─► DpdkPort ─► LinkPort ─► (InlineFrames ─►) DpdkDevice ◄─► libtestudo-dpdk.so ◄─► driver
//!                             └── OwnResolver: ARP, neighbour discovery, echo
//! ```

use super::dpdk_offload::{self, Device, Fitted};
use crate::exit::{Failure, Kind, failure};
use serde_json::json;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use testudo_control::Configuration;
use testudo_control::config::{DpdkSettings, Offload, OuterEndpoint, OuterProtocol};
use testudo_control::service::port_details::{PortDetail, PortDetails, QueueCounter, QueueDetail};
use testudo_engine_inline::Nic;
use testudo_link::own::{OwnAddress, OwnResolver};
use testudo_link::routes::{NextHop, Route};
use testudo_link::{LinkConfig, LinkPort};
use testudo_packet::{Batch, Pool, Port, PortCounters, PortError};
use testudo_port_dpdk::{Chosen, DeviceStatistics, DpdkConfig, DpdkDevice, Eal, Plugin};

/// Calls of the port after which the clock is looked at while packets come.
const CALLS_PER_LOOK: u32 = 64;
/// How often the counters are published.
const PUBLISH_INTERVAL: Duration = Duration::from_millis(200);

/// What is opened at one device.
pub struct Opened {
    pub port: DpdkPort,
    pub details: Arc<Details>,
    /// If the device does cryptography.
    pub nic: Option<Nic>,
    /// Whether its driver has a filter of its own ([`Chosen::has_filter`]).
    pub has_filter: bool,
}

/// The side of the gateway that a device is for.
pub struct Side {
    pub name: &'static str,
    pub mtu: u16,
    pub served: Served,
    pub offload: Offload,
}

/// DPDK, started if a side has a device of it.
pub fn start(configuration: &Configuration) -> Result<Option<Eal>, Failure> {
    let sides = [&configuration.protected.kind, &configuration.unprotected.kind];
    let settings: Vec<&DpdkSettings> = sides.into_iter().filter_map(|kind| kind.dpdk()).collect();
    if settings.is_empty() {
        return Ok(None);
    }
    let start = crate::eal::start(configuration).map_err(failure(Kind::Port))?;
    let plugin = Plugin::open(start.library.as_deref()).map_err(failure(Kind::Port))?;
    let eal = Eal::start(plugin, &start.eal).map_err(failure(Kind::Port))?;
    tracing::info!("DPDK {} runs with {}", plugin.dpdk_version(), eal.arguments()[1..].join(" "));
    Ok(Some(eal))
}

/// Opens a device, and puts the link layer above it.
pub fn open(
    side: Side,
    settings: &DpdkSettings,
    eal: Option<&Eal>,
    pool: &mut Pool,
) -> Result<Opened, Failure> {
    // It was started for the settings.
    let eal = eal.ok_or_else(|| Failure::new(Kind::Port, "DPDK was not started"))?;
    let is_outer = side.name != super::xdp::PROTECTED;
    let config = DpdkConfig {
        queues: settings.queues,
        mtu: Some(side.mtu),
        security: side.offload != Offload::Off,
        promiscuous: settings.promiscuous,
        busy_poll: settings.busy_poll,
        udp_over_ipv6: is_outer && settings.addresses.iter().any(|own| own.address.is_ipv6()),
        ..DpdkConfig::of(&settings.device)
    };
    let device = DpdkDevice::open(eal, pool, &config).map_err(failure(Kind::Port))?;
    let Fitted { device, nic } = dpdk_offload::fit(side.name, device, side.offload)?;
    let details = Arc::new(Details::of(device.dpdk(), eal, nic.as_ref().err()));
    details.tell(side.name);
    let has_filter = device.dpdk().chosen().has_filter();
    let own = settings.addresses.iter();
    let own = own.map(|own| OwnAddress { address: own.address, prefix_bits: own.prefix_length });
    let resolver =
        OwnResolver::new(own.collect(), side.served.udp_ports).with_protocols(side.served.protocols);
    let link = LinkConfig {
        routes: routes(settings),
        forwards: !is_outer,
        completes_udp: is_outer && !device.dpdk().chosen().udp_checksums,
        ..LinkConfig::default()
    };
    let started = Instant::now();
    let link = LinkPort::new(device, resolver, &link, Box::new(move || started.elapsed()));
    let port = DpdkPort { link, details: Arc::clone(&details), look_in: 0, published: started };
    Ok(Opened { port, details, nic: nic.ok(), has_filter })
}

/// The networks of the port's addresses, whose hosts are neighbours, and those beyond routers.
fn routes(settings: &DpdkSettings) -> Vec<Route> {
    let near = settings.addresses.iter().map(|own| Route {
        network: own.address,
        prefix_bits: own.prefix_length,
        next_hop: NextHop::OnLink,
        metric: 0,
    });
    let far = settings.next_hops.iter().map(|hop| Route {
        network: hop.network.address(),
        prefix_bits: hop.network.length(),
        next_hop: NextHop::Gateway(hop.via),
        metric: 0,
    });
    near.chain(far).collect()
}

/// What the gateway takes at its addresses beside ESP and AH.
#[derive(Debug, Default)]
pub struct Served {
    /// UDP ports.
    pub udp_ports: Vec<u16>,
    /// Protocol numbers.
    pub protocols: Vec<u8>,
}

impl Served {
    /// What tunnels and negotiated SAs need.
    pub fn of(configuration: &Configuration) -> Self {
        let ends = configuration.outer_endpoints();
        let number = |end: &OuterEndpoint| match end.protocol {
            OuterProtocol::Vpe { number } => Some(number),
            _ => None,
        };
        let mut protocols: Vec<u8> = ends.iter().filter_map(number).collect();
        protocols.sort_unstable();
        protocols.dedup();
        Self { udp_ports: udp_ports(&ends), protocols }
    }
}

fn udp_ports(ends: &[OuterEndpoint]) -> Vec<u16> {
    let port = |protocol| match protocol {
        OuterProtocol::Udp { local_port } | OuterProtocol::UdpBeside { local_port } => Some(local_port),
        OuterProtocol::Esp | OuterProtocol::Ah | OuterProtocol::Vpe { .. } => None,
    };
    let mut ports: Vec<u16> = ends.iter().filter_map(|end| port(end.protocol)).collect();
    ports.sort_unstable();
    ports.dedup();
    ports
}

/// The port. It publishes what its device counts.
pub struct DpdkPort {
    link: LinkPort<Device, OwnResolver>,
    details: Arc<Details>,
    look_in: u32,
    published: Instant,
}

impl DpdkPort {
    /// Publishes what the device counts, when nothing came, and now and then.
    fn publish(&mut self, received: usize) {
        if received > 0 && self.look_in > 0 {
            self.look_in -= 1;
            return;
        }
        self.look_in = CALLS_PER_LOOK;
        let now = Instant::now();
        if now.duration_since(self.published) >= PUBLISH_INTERVAL {
            self.published = now;
            self.details.publish(self.link.device().dpdk().statistics(), self.link.waiting());
        }
    }
}

impl Port for DpdkPort {
    fn name(&self) -> &str {
        self.link.name()
    }

    fn rx(&mut self, pool: &mut Pool, batch: &mut Batch) -> Result<usize, PortError> {
        let received = self.link.rx(pool, batch)?;
        self.publish(received);
        Ok(received)
    }

    fn tx(&mut self, pool: &mut Pool, batch: &mut Batch) -> Result<usize, PortError> {
        self.link.tx(pool, batch)
    }

    fn readiness(&self) -> Vec<BorrowedFd<'_>> {
        self.link.readiness()
    }

    fn joins(&self) -> bool {
        self.link.joins()
    }

    fn seals_marked(&self) -> bool {
        self.link.seals_marked()
    }

    fn end(&mut self, pool: &mut Pool) {
        self.link.end(pool);
    }

    fn counters(&self) -> PortCounters {
        self.link.counters()
    }
}

/// What the status says of the device.
pub struct Details {
    name: String,
    mtu: usize,
    dpdk: String,
    huge_pages: bool,
    chosen: Chosen,
    /// Why the device does no cryptography, if it does none.
    no_offload: Option<String>,
    counted: Mutex<(DeviceStatistics, usize)>,
}

impl Details {
    fn of(device: &DpdkDevice, eal: &Eal, no_offload: Option<&String>) -> Self {
        use testudo_link::FrameDevice;
        Self {
            name: device.name().to_owned(),
            mtu: device.mtu(),
            dpdk: eal.plugin().dpdk_version(),
            huge_pages: eal.has_huge_pages(),
            chosen: device.chosen().clone(),
            no_offload: no_offload.cloned(),
            counted: Mutex::new((device.statistics(), 0)),
        }
    }

    fn publish(&self, statistics: DeviceStatistics, waiting: usize) {
        *self.counted.lock().unwrap_or_else(PoisonError::into_inner) = (statistics, waiting);
    }

    /// How packets are spread over the queues.
    fn spread(&self) -> String {
        match self.chosen.spread_by.as_slice() {
            [] => "none".to_owned(),
            kinds => kinds.join(", "),
        }
    }

    /// Logs how the device was opened.
    fn tell(&self, side: &str) {
        let Chosen { driver, queues, zero_copy, .. } = &self.chosen;
        let copy = if *zero_copy { "without a copy" } else { "with a copy, as its driver needs it" };
        let (name, mtu, spread) = (&self.name, self.mtu, self.spread());
        tracing::info!(
            "{side} side: DPDK's {name} with MTU {mtu}, driver {driver}, {copy}, queues: {queues}, spread by: {spread}"
        );
    }
}

impl PortDetails for Details {
    fn details(&self) -> PortDetail {
        let counted = self.counted.lock().unwrap_or_else(PoisonError::into_inner);
        let (statistics, waiting) = &*counted;
        let (chosen, hardware) = (&self.chosen, &statistics.hardware);
        let drop = |name, value| QueueCounter { name, value, is_drop: true };
        let count = |name, value| QueueCounter { name, value, is_drop: false };
        // What is counted of the device as a whole is with its first queue.
        let of_device = vec![
            drop("rx_missed", hardware.rx_missed),
            drop("rx_errors", hardware.rx_errors),
            drop("tx_errors", hardware.tx_errors),
            drop("unknown_frames", statistics.unknown_frames),
            drop("out_of_bounds", statistics.out_of_bounds),
            count("rx_no_mbuf", hardware.rx_no_mbuf),
            count("refused_mbufs", statistics.refused_mbufs),
            count("rx_copied", statistics.rx_copied),
            count("tx_copied", statistics.tx_copied),
            count("checksums_completed", statistics.checksums_completed),
            count("checksums_left", statistics.checksums_left),
            count("bad_checksums", statistics.bad_checksums),
            count("super_frames_cut", statistics.super_frames_cut),
            count("super_frames_sent", statistics.super_frames_sent),
            count("resets", statistics.resets),
            count("misplaced_verdicts", statistics.misplaced_verdicts),
            count("failed_session_ends", statistics.failed_session_ends),
        ];
        let queue = |queue: &testudo_port_dpdk::QueueStatistics| {
            let mut counters = vec![count("rx_packets", queue.rx_packets)];
            if queue.queue == 0 {
                counters.extend(of_device.iter().copied());
            }
            QueueDetail { queue: queue.queue.into(), counters, levels: Vec::new() }
        };
        PortDetail {
            kind: "dpdk",
            device: self.name.clone(),
            facts: vec![
                ("driver", json!(chosen.driver)),
                ("dpdk", json!(self.dpdk)),
                ("mtu", json!(self.mtu)),
                ("huge_pages", json!(self.huge_pages)),
                ("zero_copy", json!(chosen.zero_copy)),
                ("rx_descriptors", json!(chosen.rx_descriptors)),
                ("tx_descriptors", json!(chosen.tx_descriptors)),
                ("spread_by", json!(self.spread())),
                ("udp_checksums", json!(chosen.udp_checksums)),
                ("segmentation", json!(chosen.segmentation)),
                ("promiscuous", json!(chosen.promiscuous)),
                ("cryptography", json!(self.no_offload.as_deref().unwrap_or("nic"))),
                ("link_up", json!(hardware.link_up)),
                ("link_mbps", json!(hardware.link_mbps)),
                ("waiting_for_neighbours", json!(waiting)),
            ],
            queues: statistics.queues.iter().map(queue).collect(),
        }
    }
}
