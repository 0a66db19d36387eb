//! Opens the ports of a configuration: a file for each kind, and a line in [`open`] for each side.
//!
//! ```text
//!   configuration ─► buffers: fit for both sides' devices ─► ports, while the rights for them are there
//!                                                              │
//!                    threads beside them, once the rights are dropped ◄┘
//! ```
//!
//! A kind whose packets the kernel never sees is led none by routes: [`Leading`] says how each is.

pub mod buffers;
mod dpdk;
mod dpdk_offload;
mod host;
mod leading;
mod networks;
mod outer;
mod spread;
mod xdp;

use crate::exit::{Failure, Kind, failure};
use leading::{Changers, Leading};
use networks::FilterNetworks;
use outer::FollowedAddresses;
use spread::{QueueSets, Spread};
use std::sync::Arc;
use testudo_control::Configuration;
use testudo_control::config::{Offload, PortKind};
use testudo_control::processors::{self, Processors};
use testudo_control::service::port_details::{BothDetails, PortDetails};
use testudo_control::service::system_calls::Needs;
use testudo_engine_inline::Nic;
use testudo_gateway::{Interfaces, PortPair, Role};
use testudo_packet::{Pool, Port};
use testudo_port_dpdk::Eal;
use testudo_port_xdp::{FilterConfig, SharedUmem, host_addresses};

/// Runs beside the worker, on a thread of its own, until the port is gone.
pub type Background = Box<dyn FnOnce() + Send>;

/// What [`open`] has opened.
pub struct Opened {
    /// For each worker, the sides that it takes packets from, its queues of both ports, and the buffers they
    /// use.
    pub queues: Vec<(Role, PortPair, Pool)>,
    /// Ports that send on the queues of the first worker, for another thread.
    pub senders: Option<PortPair>,
    /// What leads packets to the first so many workers, or why nothing does.
    pub spread: Result<Spread, String>,
    /// How many of them get packets.
    pub running: usize,
    /// Whether packets to peers pass by the routes of `[ike]`: by a mark, or because they never meet them.
    is_marked: bool,
    /// What the ports' devices tell.
    pub details: BothDetails,
    /// The NIC of the unprotected port, if it does cryptography: the port is around it.
    pub nic: Option<Nic>,
    leading: Leading,
    /// What has the filter of the unprotected interface follow this host's addresses.
    followed: Option<Arc<FollowedAddresses>>,
    background: Vec<Background>,
    /// Whether a driver of DPDK's has a filter of its own.
    has_drivers_filter: bool,
}

/// A port of one side, with what belongs to it.
struct Side {
    /// Of each worker, the first has the main interface's; none yet where that is the host's.
    ports: Vec<Vec<Box<dyn Port>>>,
    details: Option<Arc<dyn PortDetails>>,
    background: Option<Background>,
    /// Whether a driver of DPDK's has a filter of its own.
    has_drivers_filter: bool,
}

impl Side {
    fn of_host(ports: Vec<Vec<Box<dyn Port>>>) -> Self {
        Self { ports, details: None, background: None, has_drivers_filter: false }
    }
}

/// Opens both ports and makes their buffers; TUN interfaces are configured and up. Ports of a thread that
/// `transmits` as well, if there may be one.
pub fn open(configuration: &Configuration, transmits: bool) -> Result<Opened, Failure> {
    // One more takes packets of neither side, as the last.
    let takers = roles(configuration);
    let roles: Vec<_> = takers.iter().copied().map(Some).chain(transmits.then_some(None)).collect();
    let mut queue_sets = QueueSets::default();
    let mut places = processors::places(configuration, takers.len()).into_iter();
    let mut pool = pool_at(configuration, places.next())?;
    // Packets cross from one side's device to the other's where they are.
    let umem = SharedUmem::new();
    let eal = dpdk::start(configuration)?;
    // Neither sockets nor AF_XDP have any.
    let mut nic = None;
    let mut followed = None;
    let (unprotected, is_marked) = match &configuration.unprotected.kind {
        PortKind::Host => {
            let (ports, is_marked) = host::open_sockets(configuration, &roles, &mut queue_sets)?;
            let ports = ports.into_iter().map(|port| -> Vec<Box<dyn Port>> { vec![Box::new(port)] });
            (Side::of_host(ports.collect()), is_marked)
        }
        PortKind::Xdp(settings) => {
            let interface = configuration.unprotected.interface.as_deref().unwrap_or_default();
            let common = xdp::Common { umem: &umem, pool: &mut pool };
            let of_host = host_addresses().map_err(failure(Kind::Port))?;
            let filter = outer::filter_config(configuration, &of_host);
            let opened = xdp::open(xdp::UNPROTECTED, interface, settings, &filter, common)?;
            followed = FollowedAddresses::of(configuration, &opened.filter, of_host);
            let port = opened.port.with_errors(configuration)?;
            (Side::new(port, opened.details, opened.background), true)
        }
        PortKind::Dpdk(settings) => {
            let (mtu, served) = (configuration.unprotected.mtu, dpdk::Served::of(configuration));
            let offload = configuration.unprotected.offload;
            let side = dpdk::Side { name: xdp::UNPROTECTED, mtu, served, offload };
            let mut opened = dpdk::open(side, settings, eal.as_ref(), &mut pool)?;
            nic = opened.nic.take();
            // No route of the kernel concerns its packets.
            (Side::of_dpdk(opened), true)
        }
    };
    let common = xdp::Common { umem: &umem, pool: &mut pool };
    let (protected, leading) = open_protected(configuration, common, eal.as_ref())?;
    let tuns = host::open_tuns(configuration, &roles, &mut queue_sets)?;
    let workers = takers.len();
    let (mut protected_ports, mut unprotected_ports) = (with_tuns(protected.ports, tuns), unprotected.ports);
    let senders = if transmits { senders(&mut protected_ports, &mut unprotected_ports)? } else { None };
    let pairs = pairs(configuration, (pool, places), protected_ports, unprotected_ports)?;
    let queues = takers.into_iter().zip(pairs).map(|(role, (ports, pool))| (role, ports, pool)).collect();
    let has_drivers_filter = protected.has_drivers_filter || unprotected.has_drivers_filter;
    let details = BothDetails { protected: protected.details, unprotected: unprotected.details };
    let background = protected.background.into_iter().chain(unprotected.background).collect();
    let (spread, running) = spread::start(configuration, queue_sets, workers);
    Ok(Opened {
        queues,
        senders,
        spread,
        running,
        is_marked,
        details,
        nic,
        leading,
        followed,
        background,
        has_drivers_filter,
    })
}

/// The protected port, but for TUN interfaces, and what leads packets to it.
fn open_protected(
    configuration: &Configuration,
    common: xdp::Common<'_>,
    eal: Option<&Eal>,
) -> Result<(Side, Leading), Failure> {
    let networks = || FilterNetworks::of(configuration).map_err(failure(Kind::Port));
    Ok(match &configuration.protected.kind {
        PortKind::Host => (Side::of_host(Vec::new()), Leading::Routes),
        PortKind::Xdp(settings) => {
            let (interface, networks) = (&configuration.protected.name, networks()?);
            let filter = FilterConfig { networks: networks.all(), ..FilterConfig::default() };
            let opened = xdp::open(xdp::PROTECTED, interface, settings, &filter, common)?;
            networks.follow_with(&opened.filter);
            (Side::new(opened.port, opened.details, opened.background), Leading::Filter(Arc::new(networks)))
        }
        PortKind::Dpdk(settings) => {
            let (mtu, offload) = (configuration.protected.mtu, Offload::Off);
            let served = dpdk::Served::default();
            let side = dpdk::Side { name: xdp::PROTECTED, mtu, served, offload };
            let opened = dpdk::open(side, settings, eal, common.pool)?;
            (Side::of_dpdk(opened), Leading::ByHosts(Arc::new(networks()?)))
        }
    })
}

/// The ports of the transmit thread: those that were opened last.
fn senders(
    protected: &mut Vec<Vec<Box<dyn Port>>>,
    unprotected: &mut Vec<Vec<Box<dyn Port>>>,
) -> Result<Option<PortPair>, Failure> {
    match (protected.pop(), unprotected.pop()) {
        (Some(protected), Some(unprotected)) => {
            Ok(Some(PortPair { protected: as_one(protected)?, unprotected: as_one(unprotected)? }))
        }
        _ => Ok(None),
    }
}

impl Side {
    fn new(
        port: impl Port + 'static,
        details: Arc<impl PortDetails + 'static>,
        background: Background,
    ) -> Self {
        Self { background: Some(background), ..Self::alone(port, details) }
    }

    /// A port with nothing beside the worker.
    fn alone(port: impl Port + 'static, details: Arc<impl PortDetails + 'static>) -> Self {
        Self { details: Some(details), ..Self::of_host(vec![vec![Box::new(port)]]) }
    }

    /// A device of DPDK's.
    fn of_dpdk(opened: dpdk::Opened) -> Self {
        Self { has_drivers_filter: opened.has_filter, ..Self::alone(opened.port, opened.details) }
    }
}

impl Opened {
    /// What changes how packets come to the protected port, while the gateway runs.
    pub fn changers(&self, configuration: &Configuration) -> Result<Changers, Failure> {
        let mut changers = self.leading.changers(configuration, self.is_marked)?;
        if let Some(followed) = self.followed.clone() {
            let mut keep = changers.keep_interface;
            changers.keep_interface = Box::new(move |configuration| {
                keep(configuration);
                followed.look();
            });
        }
        Ok(changers)
    }

    /// The system calls that the ports make while the gateway runs, beside those of every gateway.
    pub fn needs(&self) -> Needs {
        let has_filter = matches!(self.leading, Leading::Filter(_)) || self.followed.is_some();
        let filter_maps = has_filter || self.spread.is_ok();
        Needs { filter_maps, filter_of_driver: self.has_drivers_filter }
    }

    /// Starts what runs beside the worker. To be called once privileges are dropped: threads keep theirs.
    ///
    /// # Errors
    /// The system has no thread left.
    pub fn start_background(&mut self) -> Result<(), Failure> {
        for (work, number) in self.background.drain(..).zip(0..) {
            let thread = std::thread::Builder::new().name(format!("port-{number}"));
            thread.spawn(work).map_err(failure(Kind::Other))?;
        }
        Ok(())
    }
}

/// What each worker that a configuration may have on this machine does.
fn roles(configuration: &Configuration) -> Vec<Role> {
    let (gateway, processors) = (&configuration.gateway, Processors::of_this_process().count());
    let mut roles = gateway.workers.roles(processors);
    // Those that begin parked.
    roles.resize(gateway.workers.most(gateway.workers_max, processors), Role::Both);
    roles
}

/// The TUN interfaces of each worker, after the main interface where that is another port.
fn with_tuns(main: Vec<Vec<Box<dyn Port>>>, tuns: Vec<Vec<Box<dyn Port>>>) -> Vec<Vec<Box<dyn Port>>> {
    let mut main = main.into_iter();
    let all = tuns.into_iter().map(|tuns| main.next().unwrap_or_default().into_iter().chain(tuns).collect());
    all.collect()
}

/// The buffers of a worker that is bound to these processors. Most pages are given when the worker writes
/// them first; huge pages are taken here, on its node.
fn pool_at(configuration: &Configuration, place: Option<Vec<usize>>) -> Result<Pool, Failure> {
    let made = processors::near(&place.unwrap_or_default(), || buffers::pool(configuration));
    made.map_err(failure(Kind::Other))?
}

/// The ports of each worker with buffers of its own: the first one's, and those at the places of others.
fn pairs(
    configuration: &Configuration,
    (first, others): (Pool, impl Iterator<Item = Vec<usize>>),
    protected: Vec<Vec<Box<dyn Port>>>,
    unprotected: Vec<Vec<Box<dyn Port>>>,
) -> Result<Vec<(PortPair, Pool)>, Failure> {
    let others = others.map(|place| pool_at(configuration, Some(place)));
    let pools = std::iter::once(Ok(first)).chain(others);
    let pair = |((protected, unprotected), pool): ((Vec<_>, Vec<_>), Result<Pool, Failure>)| {
        Ok((PortPair { protected: as_one(protected)?, unprotected: as_one(unprotected)? }, pool?))
    };
    protected.into_iter().zip(unprotected).zip(pools).map(pair).collect()
}

/// The ports of a side as one. The first is the main interface's, which is a port of its own where there is
/// no other.
fn as_one(mut ports: Vec<Box<dyn Port>>) -> Result<Box<dyn Port>, Failure> {
    let main = ports.remove(0);
    if ports.is_empty() {
        return Ok(main);
    }
    let all = Interfaces::of(main, ports).map(|all| -> Box<dyn Port> { Box::new(all) });
    all.ok_or_else(|| Failure::new(Kind::Configuration, "there are more interfaces than are possible"))
}
