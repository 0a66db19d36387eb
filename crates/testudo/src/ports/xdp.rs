//! AF_XDP at an interface of the host: the device, the link layer above it, and the kernel's tables beside.
//!
//! ```text
//!   worker ◄─► XdpPort ─► LinkPort ─► XdpDevice ◄─► queues        filter ─► the kernel: ARP, ssh, IKE
//!                │           ▲ routes, neighbours
//!                │           └── KernelReader, on a thread
//!                └── IcmpErrors: the kernel still gets those about our datagrams
//! ```

use super::{Background, host};
use crate::exit::{Failure, Kind, failure};
use serde_json::{Value, json};
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use testudo_control::Configuration;
use testudo_control::config::{self, XdpSettings};
use testudo_control::service::port_details::{PortDetail, PortDetails, QueueCounter, QueueDetail};
use testudo_link::kernel::KernelReader;
use testudo_link::outside::OutsideResolver;
use testudo_link::{LinkConfig, LinkPort};
use testudo_packet::{Batch, Pool, Port, PortCounters, PortError};
use testudo_port_socket::{IcmpErrors, SocketConfig};
use testudo_port_xdp::{
    Attached, Filter, FilterConfig, Interface, QueueStatistics, SharedUmem, XdpConfig, XdpDevice, XdpMode,
    ZeroCopy,
};

/// Calls of the port after which the clock is looked at while packets come.
const CALLS_PER_LOOK: u32 = 64;
/// How often the counters of the queues are published.
const PUBLISH_INTERVAL: Duration = Duration::from_millis(200);
/// How long a reader of the kernel's tables waits for news at a time: it then looks whether it has failed.
const READER_WAITS: Duration = Duration::from_secs(1);

/// The names of the sides, as people read them.
pub const PROTECTED: &str = "protected";
pub const UNPROTECTED: &str = "unprotected";

/// What is opened at one interface.
pub struct Opened {
    pub port: XdpPort,
    pub filter: Arc<Filter>,
    pub details: Arc<Details>,
    pub background: Background,
}

/// What is the same for both sides.
pub struct Common<'a> {
    pub umem: &'a SharedUmem,
    pub pool: &'a mut Pool,
}

/// Attaches the filter, opens the queues, and puts the link layer above them.
pub fn open(
    side: &'static str,
    interface: &str,
    settings: &XdpSettings,
    filter: &FilterConfig,
    common: Common<'_>,
) -> Result<Opened, Failure> {
    let filter = Filter::attach(interface, mode(settings.mode), filter).map_err(failure(Kind::Port))?;
    let filter = Arc::new(filter);
    let asked = |error| Failure::new(Kind::Port, format!("the kernel's routes of {interface}: {error}"));
    let (reader, resolver) = KernelReader::open(interface).map_err(asked)?;
    if !reader.has_routes() {
        tracing::warn!(
            "{side} side: the kernel has not listed the routes of {interface} in time: until it has, packets to be sent \
             there are dropped (no_route)"
        );
    }
    let config = device_config(filter.interface(), settings);
    let device = XdpDevice::open(&filter, common.umem, common.pool, &config).map_err(failure(Kind::Port))?;
    let details = Arc::new(Details::of(&filter, &device, settings));
    details.tell(side);
    let started = Instant::now();
    let link =
        LinkConfig { forwards: side == PROTECTED, completes_udp: side != PROTECTED, ..LinkConfig::default() };
    let link = LinkPort::new(device, resolver, &link, Box::new(move || started.elapsed()));
    let port = XdpPort { link, errors: None, details: Arc::clone(&details), look_in: 0, published: started };
    let background = background(interface.to_owned(), reader);
    Ok(Opened { port, filter, details, background })
}

fn mode(mode: config::XdpMode) -> XdpMode {
    match mode {
        config::XdpMode::Native => XdpMode::Native,
        config::XdpMode::Generic => XdpMode::Generic,
        config::XdpMode::Auto => XdpMode::Auto,
    }
}

fn device_config(interface: &Interface, settings: &XdpSettings) -> XdpConfig {
    let all = || (0..interface.queues.unwrap_or(1)).collect();
    XdpConfig {
        queues: settings.queues.clone().unwrap_or_else(all),
        zero_copy: match settings.zero_copy {
            config::ZeroCopy::Off => ZeroCopy::Off,
            config::ZeroCopy::Auto => ZeroCopy::Auto,
            config::ZeroCopy::Always => ZeroCopy::Always,
        },
        busy_poll: settings.busy_poll,
        ..XdpConfig::default()
    }
}

/// Passes on what the kernel says, until the port is gone.
fn background(interface: String, mut reader: KernelReader) -> Background {
    Box::new(move || {
        loop {
            match reader.turn(READER_WAITS) {
                Ok(true) => {}
                Ok(false) => return,
                Err(error) => {
                    tracing::error!(
                        "{interface}: the kernel's routes and neighbours are no longer read: {error}; packets go where they \
                         went so far, until a restart"
                    );
                    return;
                }
            }
        }
    })
}

/// The port. It publishes what its queues count.
pub struct XdpPort {
    link: LinkPort<XdpDevice, OutsideResolver>,
    errors: Option<IcmpErrors>,
    details: Arc<Details>,
    look_in: u32,
    published: Instant,
}

impl XdpPort {
    /// The same port, which passes on what routers say of the datagrams of a configuration.
    pub fn with_errors(self, configuration: &Configuration) -> Result<Self, Failure> {
        let ends = configuration.outer_endpoints();
        let (optional, needed): (Vec<_>, Vec<_>) =
            ends.into_iter().partition(|end| configuration.is_optional(end));
        let mut config = SocketConfig::new(needed.into_iter().map(host::endpoint).collect());
        config.endpoints.extend(host::sending_endpoints(configuration));
        config.optional = optional.into_iter().map(host::endpoint).collect();
        config.interface.clone_from(&configuration.unprotected.interface);
        let errors = IcmpErrors::open(&config).map_err(failure(Kind::Port))?;
        if errors.is_none() {
            host::warn_of_no_icmp_errors();
        }
        Ok(Self { errors, ..self })
    }

    /// Whether it is time for what costs system calls: when nothing came, and now and then.
    fn has_time(&mut self, received: usize) -> bool {
        if received > 0 && self.look_in > 0 {
            self.look_in -= 1;
            return false;
        }
        self.look_in = CALLS_PER_LOOK;
        true
    }

    /// Adds what routers say of our datagrams.
    fn hear_errors(&mut self, pool: &mut Pool, batch: &mut Batch) -> Result<usize, PortError> {
        let Some(errors) = &mut self.errors else { return Ok(0) };
        errors.receive(pool, batch).map_err(|source| PortError {
            port: self.link.name().to_owned(),
            what: "hear ICMP errors".to_owned(),
            source: Some(source),
        })
    }

    /// Publishes what the queues count, and looks whether the interface is still there.
    fn publish(&mut self) -> Result<(), PortError> {
        let now = Instant::now();
        if now.duration_since(self.published) < PUBLISH_INTERVAL {
            return Ok(());
        }
        self.published = now;
        self.details.publish(self.link.device().statistics(), self.link.waiting());
        self.link.device().look()
    }
}

impl Port for XdpPort {
    fn name(&self) -> &str {
        self.link.name()
    }

    fn rx(&mut self, pool: &mut Pool, batch: &mut Batch) -> Result<usize, PortError> {
        let mut received = self.link.rx(pool, batch)?;
        if self.has_time(received) {
            received += self.hear_errors(pool, batch)?;
            self.publish()?;
        }
        Ok(received)
    }

    fn tx(&mut self, pool: &mut Pool, batch: &mut Batch) -> Result<usize, PortError> {
        self.link.tx(pool, batch)
    }

    fn readiness(&self) -> Vec<BorrowedFd<'_>> {
        let mut all = self.link.readiness();
        all.extend(self.errors.iter().flat_map(IcmpErrors::readiness));
        all
    }

    fn joins(&self) -> bool {
        self.link.joins()
    }

    fn takes_chains(&self) -> bool {
        self.link.takes_chains()
    }

    fn end(&mut self, pool: &mut Pool) {
        self.link.end(pool);
    }

    fn counters(&self) -> PortCounters {
        let mut counters = self.link.counters();
        let (packets, bytes) = self.errors.as_ref().map_or((0, 0), IcmpErrors::received);
        counters.rx_packets += packets;
        counters.rx_bytes += bytes;
        counters
    }
}

/// What the status says of the device.
pub struct Details {
    interface: Interface,
    attached: Option<Attached>,
    native_refused: Option<String>,
    is_zero_copy: bool,
    zero_copy_refused: Option<String>,
    busy_poll: Option<u16>,
    busy_poll_refused: Option<String>,
    counted: Mutex<(Vec<QueueStatistics>, usize)>,
}

impl Details {
    fn of(filter: &Filter, device: &XdpDevice, settings: &XdpSettings) -> Self {
        Self {
            interface: filter.interface().clone(),
            attached: filter.attached(),
            native_refused: filter.native_refused().map(reason),
            is_zero_copy: device.is_zero_copy(),
            zero_copy_refused: device.zero_copy_refused().map(reason),
            busy_poll: settings.busy_poll.filter(|_| device.busy_poll_refused().is_none()),
            busy_poll_refused: device.busy_poll_refused().map(str::to_owned),
            counted: Mutex::new((device.statistics(), 0)),
        }
    }

    fn publish(&self, queues: Vec<QueueStatistics>, waiting: usize) {
        *self.counted.lock().unwrap_or_else(PoisonError::into_inner) = (queues, waiting);
    }

    fn mode(&self) -> &'static str {
        match self.attached {
            Some(Attached::Native) => "native",
            Some(Attached::Generic) => "generic",
            None => "none",
        }
    }

    /// Logs how the device was opened, and what could not be had.
    fn tell(&self, side: &str) {
        let Interface { name, mtu, driver, .. } = &self.interface;
        let copy = if self.is_zero_copy { "without a copy" } else { "with the kernel's copy" };
        let queues = self.counted.lock().unwrap_or_else(PoisonError::into_inner).0.len();
        let (mode, driver) = (self.mode(), driver.as_deref().unwrap_or("unknown"));
        tracing::info!(
            "{side} side: AF_XDP at {name} with MTU {mtu}, driver {driver}, {mode} mode, {copy}, queues: {queues}"
        );
        let refused = [&self.native_refused, &self.zero_copy_refused, &self.busy_poll_refused];
        refused.into_iter().flatten().for_each(|why| tracing::info!("{side} side: {why}"));
        if self.attached == Some(Attached::Generic) && self.interface.has_local_frames() {
            tracing::warn!(
                "{side} side: in generic mode a local kernel at the other end of {name} hands over frames that are longer \
                 than its MTU, which are dropped: let it segment itself, with `ip link set dev NAME gso_max_segs 1` there"
            );
        }
    }
}

/// Why something could not be had, without what to configure where it is needed: the configuration left the
/// choice.
fn reason(refusal: &str) -> String {
    refusal.split(": use ").next().unwrap_or(refusal).to_owned()
}

impl PortDetails for Details {
    fn details(&self) -> PortDetail {
        let counted = self.counted.lock().unwrap_or_else(PoisonError::into_inner);
        let (queues, waiting) = &*counted;
        let text = |text: &Option<String>| text.as_deref().map_or(Value::Null, Value::from);
        PortDetail {
            kind: "xdp",
            device: self.interface.name.clone(),
            facts: vec![
                ("driver", text(&self.interface.driver)),
                ("mtu", json!(self.interface.mtu)),
                ("mode", json!(self.mode())),
                ("native_refused", text(&self.native_refused)),
                ("zero_copy", json!(self.is_zero_copy)),
                ("zero_copy_refused", text(&self.zero_copy_refused)),
                ("busy_poll", json!(self.busy_poll)),
                ("busy_poll_refused", text(&self.busy_poll_refused)),
                ("waiting_for_neighbours", json!(waiting)),
            ],
            queues: queues.iter().map(queue).collect(),
        }
    }
}

fn queue(statistics: &QueueStatistics) -> QueueDetail {
    let QueueStatistics { kernel, .. } = statistics;
    let drop = |name, value| QueueCounter { name, value, is_drop: true };
    let count = |name, value| QueueCounter { name, value, is_drop: false };
    QueueDetail {
        queue: statistics.queue,
        counters: vec![
            drop("rx_dropped", kernel.rx_dropped),
            drop("rx_ring_full", kernel.rx_ring_full),
            drop("rx_invalid_frames", kernel.rx_invalid_frames),
            drop("tx_invalid_packets", kernel.tx_invalid_packets),
            drop("unknown_frames", statistics.unknown_frames),
            drop("out_of_bounds", statistics.out_of_bounds),
            count("fill_ring_empty", kernel.no_free_frame),
            count("tx_ring_empty", kernel.tx_ring_empty),
            count("rx_chains", statistics.rx_chains),
            count("rx_merged", statistics.rx_merged),
            count("tx_chains", statistics.tx_chains),
            count("tx_copied", statistics.tx_copied),
            count("checksums_completed", statistics.checksums_completed),
            count("wakeups", statistics.wakeups),
        ],
        levels: vec![
            ("frames_to_receive", statistics.receiving.into()),
            ("frames_to_send", statistics.sending.into()),
        ],
    }
}
