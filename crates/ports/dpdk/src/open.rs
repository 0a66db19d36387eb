//! Opens a device: what is asked for, and what it declares.

use crate::config::DpdkConfig;
use crate::cutting::Backlog;
use crate::device::DpdkDevice;
use crate::eal::{Eal, Registered, c_text};
use crate::error::OpenError;
use crate::mbuf::DPDK_HEADROOM;
use crate::mbufs::{Addresses, Making, Mbufs};
use crate::plugin::Errno;
use crate::raw::{Config, Info, offers, spreads};
use crate::receive::MOST_PARTS;
use crate::security::{self, Security};
use crate::statistics::DeviceStatistics;
use crate::ticker::Ticker;
use testudo_crypto::DeviceLimits;
use testudo_packet::{BATCH_SIZE, Pool, PortCounters};
use testudo_wire::ethernet::MacAddress;

/// Fewest descriptors of a queue: drivers free mbufs that were sent by 32.
const FEWEST_DESCRIPTORS: u16 = 64;
/// Bytes that a frame has beside its packet: the header and two tags.
const AROUND_PACKET: usize = 14 + 2 * 4;
/// Mbufs with rooms of their own: net_af_xdp has 2,048 out to receive, and as many are on their way.
const INSIDE: usize = 6144;
/// What a device is configured with for its cryptography.
const SECURITY: u32 = offers::SEALING | offers::OPENING | offers::IP_CHECKSUMS;
/// Drivers whose mbufs must have their rooms inside.
const COPYING: [&str; 2] = [AF_XDP, "net_virtio_user"];
/// The driver of AF_XDP sockets.
const AF_XDP: &str = "net_af_xdp";
/// The driver that cuts super-frames by DPDK's own library, which finds an mbuf by its room.
const CUTTING: &str = "net_tap";
/// Drivers that deliver what a local kernel sends.
const LOCAL: [&str; 6] = ["net_af_packet", AF_XDP, "net_tap", "net_vhost", "net_virtio", "net_virtio_user"];
/// Drivers whose other end takes and makes super-frames and partial checksums without computing anything.
const VIRTIO: [&str; 3] = ["net_vhost", "net_virtio", "net_virtio_user"];

/// What was chosen of what a device can do.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Chosen {
    /// Its driver.
    pub driver: String,
    /// Receive queues.
    pub queues: u16,
    /// Descriptors of each.
    pub rx_descriptors: u16,
    /// Descriptors of the queue to send.
    pub tx_descriptors: u16,
    /// By what packets are spread over the queues: `ESP`, `UDP`, `IP` …; empty with one queue, or where the
    /// device cannot.
    pub spread_by: Vec<&'static str>,
    /// Whether packets stay where they are, instead of being copied.
    pub zero_copy: bool,
    /// Whether long frames are received in several mbufs.
    pub scatter: bool,
    /// Whether the device judges checksums.
    pub checksums: bool,
    /// Whether checksums that UDP over IPv6 lacks are left to the device.
    pub udp_checksums: bool,
    /// Whether segments of TCP are sent joined, in super-frames that the device cuts or hands on.
    pub segmentation: bool,
    /// Whether frames for other stations are received.
    pub promiscuous: bool,
}

impl Chosen {
    /// Whether the driver has a filter at an interface of the kernel's, by a library of its own: libxdp asks
    /// bpf(2) about it when the device is closed, and DPDK takes it away by netlink.
    #[must_use]
    pub fn has_filter(&self) -> bool {
        self.driver == AF_XDP
    }
}

/// A device that is being opened.
struct Opening<'a> {
    eal: &'a Eal,
    config: &'a DpdkConfig,
    port: u16,
    info: Info,
    driver: String,
}

impl DpdkDevice {
    /// Opens a device. `pool` is to be handed to every later call.
    ///
    /// # Errors
    /// [`OpenError`] says what is missing: the device, a queue, buffers, a feature of the driver.
    pub fn open(eal: &Eal, pool: &mut Pool, config: &DpdkConfig) -> Result<Self, OpenError> {
        let plugin = eal.plugin();
        // Only what is said from here on is about this device.
        let _before = plugin.said();
        let no_device =
            |errno| OpenError::NoDevice { device: config.device.clone(), said: plugin.words(errno) };
        let arguments = c_text(&arguments(&config.device, room(pool)))?;
        let port = plugin.device_find(&arguments).map_err(no_device)?;
        let closed = |_: &OpenError| plugin.device_close(port);
        let info = plugin.device_info(port).map_err(no_device).inspect_err(closed)?;
        let driver = text_of(&info.driver);
        let opening = Opening { eal, config, port, info, driver };
        opening.open(pool).inspect_err(closed)
    }
}

impl Opening<'_> {
    fn open(&self, pool: &mut Pool) -> Result<DpdkDevice, OpenError> {
        let mut its = self.configuration(pool)?;
        let ticker = Ticker::new(self.config.busy_poll)
            .map_err(|source| OpenError::System { action: "make a timer".into(), source })?;
        let joins = self.joins(&its);
        let inside = COPYING.contains(&self.driver.as_str()) || joins && self.driver == CUTTING;
        let (addresses, registered) = if inside { (Addresses::Virtual, None) } else { self.memory(pool)? };
        let count = if inside { INSIDE } else { mbufs_of(&its) };
        let longest = usize::from(self.config.mtu.unwrap_or(self.info.mtu)) + AROUND_PACKET;
        let (eal, device) = (self.eal, self.config.device.as_str());
        let making = Making { eal, device, count, inside, longest, addresses, registered };
        let mut mbufs = Mbufs::new(making, pool)?;
        mbufs.loops = self.driver == "net_ring";
        its.pool = mbufs.handle();
        let mut limits = self.limits();
        let mut started = Err(Errno(0));
        if limits.is_ok() {
            let without = its.offers;
            its.offers |= self.info.offers & SECURITY;
            started = self.start(&mut its);
            if let Err(errno) = started {
                its.offers = without;
                limits = Err(format!("it does not start with it: {}", self.eal.plugin().words(errno)));
            }
        }
        if started.is_err() {
            started = self.start(&mut its);
        }
        if let Err(errno) = started {
            let error = self.failed("start", errno);
            self.eal.plugin().device_close(self.port);
            let lost = mbufs.end(&mut |frame| pool.recycle(frame));
            pool.forget(lost);
            return Err(error);
        }
        let security = limits.and_then(|limits| Security::open(self.eal.plugin(), self.port, limits));
        let mut device = self.device(pool, mbufs, its, ticker);
        device.security = security;
        Ok(device)
    }

    fn start(&self, its: &mut Config) -> Result<(), Errno> {
        // SAFETY: the mempool is there until the device is closed, and its mbufs point to room.
        unsafe { self.eal.plugin().device_start(self.port, its) }
    }

    /// What of the device's cryptography is to be used.
    fn limits(&self) -> Result<DeviceLimits, String> {
        if !self.config.security {
            return Err("it is not asked for".to_owned());
        }
        let mtu = usize::from(self.config.mtu.unwrap_or(self.info.mtu));
        security::offered(self.eal.plugin(), self.port, &self.driver, self.info.offers, mtu)
    }

    fn device(&self, pool: &Pool, mbufs: Mbufs, its: Config, ticker: Ticker) -> DpdkDevice {
        let (start, bytes) = pool.region().extent();
        let frame = usize::from(its.mtu) + AROUND_PACKET;
        let part_bytes = mbufs.room_bytes() - usize::from(DPDK_HEADROOM);
        let most = if its.offers & offers::SEGMENTS != 0 { MOST_PARTS } else { 1 };
        DpdkDevice {
            name: text_of(&self.info.name),
            mac: MacAddress(self.info.mac),
            mtu: usize::from(its.mtu),
            plugin: self.eal.plugin(),
            port: self.port,
            next: 0,
            counters: PortCounters::default(),
            longest_frame: frame.min(most * part_bytes),
            part_bytes,
            completes_checksums: self
                .config
                .complete_checksums
                .unwrap_or(LOCAL.contains(&self.driver.as_str())),
            leaves_udp_checksums: self.leaves_udp_checksums(&its),
            joins: self.joins(&its),
            backlog: Backlog::default(),
            ticker,
            memory: start.addr()..start.addr() + bytes,
            events: self.eal.plugin().device_events(self.port),
            chosen: self.chosen(&its, mbufs.exchanges()),
            statistics: DeviceStatistics::default(),
            received: vec![0; usize::from(its.rx_queues)],
            started: its,
            security: Err(String::new()),
            mbufs,
        }
    }

    fn failed(&self, action: &str, errno: Errno) -> OpenError {
        OpenError::Device {
            device: self.config.device.clone(),
            driver: self.driver.clone(),
            action: action.to_owned(),
            said: self.eal.plugin().words(errno),
        }
    }

    /// What the device is to do.
    fn configuration(&self, pool: &Pool) -> Result<Config, OpenError> {
        let (info, config) = (&self.info, self.config);
        if config.queues == 0 || config.queues > info.max_rx_queues {
            return Err(OpenError::Queues {
                device: config.device.clone(),
                have: info.max_rx_queues,
                wanted: config.queues,
            });
        }
        let frame = usize::from(config.mtu.unwrap_or(info.mtu)) + AROUND_PACKET;
        let is_long = frame > room(pool);
        let mut wanted = offers::FAST_FREE;
        if is_long {
            // Mbufs that are freed fast may not be chained.
            wanted = offers::SCATTER | offers::SEGMENTS;
        }
        if info.offers & offers::IS_VIRTUAL == 0 {
            // A virtual device would compute them by the processor.
            wanted |= offers::CHECKSUMS;
            // Only where it is needed: some drivers send faster without.
            wanted |= if config.udp_over_ipv6 { offers::UDP_CHECKSUMS } else { 0 };
        }
        let is_virtio = VIRTIO.contains(&self.driver.as_str());
        if config.segmentation.unwrap_or(is_virtio) {
            wanted |= offers::CHECKSUMS | offers::UDP_CHECKSUMS | offers::IP_CHECKSUMS | offers::SEGMENTS;
            wanted |= offers::JOINING | offers::TCP_SEGMENTATION | offers::UDP_SEGMENTATION;
            wanted &= !offers::FAST_FREE;
        }
        let promiscuous = if config.promiscuous { offers::PROMISCUOUS } else { 0 };
        let mut its = Config {
            pool: std::ptr::null_mut(),
            rx_queues: config.queues,
            // Some drivers want as many to send.
            tx_queues: config.queues.min(info.max_tx_queues),
            rx_descriptors: config.descriptors.max(FEWEST_DESCRIPTORS),
            tx_descriptors: config.descriptors.max(FEWEST_DESCRIPTORS),
            mtu: config.mtu.unwrap_or(0),
            padding: 0,
            offers: info.offers & wanted | promiscuous,
            spreads: if config.queues > 1 { info.spreads } else { 0 },
        };
        // With both sides of a gateway in one pool, half of it stays for packets on their way.
        let may = pool.size() / 4;
        while mbufs_of(&its) > may && its.rx_descriptors > FEWEST_DESCRIPTORS {
            its.rx_descriptors = (its.rx_descriptors / 2).max(FEWEST_DESCRIPTORS);
            its.tx_descriptors = its.rx_descriptors;
        }
        let needed = mbufs_of(&its);
        if needed > pool.available() {
            return Err(OpenError::Buffers { device: config.device.clone(), needed, may: pool.available() });
        }
        Ok(its)
    }

    /// Whether packets are joined when they are sent.
    fn joins(&self, its: &Config) -> bool {
        let needed = offers::TCP_SEGMENTATION | offers::SEGMENTS;
        its.offers & needed == needed
    }

    /// Whether checksums that UDP over IPv6 lacks are left to the device. If not, the link layer has them.
    fn leaves_udp_checksums(&self, its: &Config) -> bool {
        self.config.udp_over_ipv6 && its.offers & offers::UDP_CHECKSUMS != 0
    }

    /// Makes the pool's memory known to DPDK and the device.
    fn memory(&self, pool: &Pool) -> Result<(Addresses, Option<Registered>), OpenError> {
        let is_virtual = self.info.offers & offers::IS_VIRTUAL != 0;
        let addresses = Addresses::of(self.eal.plugin(), pool, is_virtual)
            .ok_or_else(|| OpenError::PhysicalAddresses { device: self.config.device.clone() })?;
        let registered = self.eal.register(pool.region());
        let registered = registered.map_err(|errno| self.failed("have packet buffers registered", errno))?;
        addresses
            .map(self.eal.plugin(), self.port, &registered)
            .map_err(|errno| self.failed("reach the packet buffers", errno))?;
        Ok((addresses, Some(registered)))
    }

    fn chosen(&self, its: &Config, zero_copy: bool) -> Chosen {
        let kinds = [
            (spreads::ESP, "ESP"),
            (spreads::AH, "AH"),
            (spreads::UDP, "UDP"),
            (spreads::TCP, "TCP"),
            (spreads::IP, "IP"),
        ];
        let has = |bit| its.offers & bit != 0;
        Chosen {
            driver: self.driver.clone(),
            queues: its.rx_queues,
            rx_descriptors: its.rx_descriptors,
            tx_descriptors: its.tx_descriptors,
            spread_by: kinds
                .iter()
                .filter(|(bit, _)| its.spreads & bit != 0)
                .map(|(_, name)| *name)
                .collect(),
            zero_copy,
            scatter: has(offers::SCATTER),
            checksums: has(offers::CHECKSUMS),
            udp_checksums: self.leaves_udp_checksums(its),
            segmentation: self.joins(its),
            promiscuous: has(offers::PROMISCUOUS),
        }
    }
}

/// Bytes of a packet that fit a frame of the pool.
fn room(pool: &Pool) -> usize {
    pool.region().frame_bytes() - testudo_packet::HEADROOM_BYTES
}

/// What DPDK is told of a device. The frames of af_packet have 2,048 bytes unless somebody says otherwise, 32
/// of them the kernel's: too many for our buffers. Shorter ones must fill a block of whole pages, since the
/// driver takes them to follow each other.
fn arguments(device: &str, room: usize) -> String {
    if !device.starts_with("net_af_packet") || device.contains("framesz=") || room >= 2048 - 32 {
        return device.to_owned();
    }
    format!("{device},framesz=1792,blocksz=28672")
}

/// Mbufs that a device has at most at a time, and a burst of them.
fn mbufs_of(its: &Config) -> usize {
    let [rx, tx] = [(its.rx_queues, its.rx_descriptors), (its.tx_queues.min(1), its.tx_descriptors)]
        .map(|(queues, descriptors)| usize::from(queues) * usize::from(descriptors));
    rx + tx + BATCH_SIZE
}

fn text_of(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).into_owned()
}
