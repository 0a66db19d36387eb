//! Hosts, devices on them, and frames between them.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::net::{IpAddr, UdpSocket};
use std::sync::Arc;
use testudo_lab::namespaces::{Entered, Namespace};
use testudo_link::FrameDevice;
use testudo_packet::{Batch, Pool};
use testudo_port_xdp::{
    Filter, FilterConfig, Network, QueueStatistics, SharedUmem, Taken, UdpContent, UdpPort, XdpConfig,
    XdpDevice, XdpMode,
};

/// The two hosts on a cable, and a third one behind another interface of the second.
pub struct Sites {
    pub left: Namespace,
    pub right: Namespace,
    pub far: Namespace,
}

pub const MTU: usize = 1500;
pub const JUMBO: usize = 9000;

impl Sites {
    pub fn new(inside: Entered) -> Self {
        let [left, right, far] = ["left", "right", "far"].map(|name| Namespace::new(inside, name).unwrap());
        cable((&left, "eth0"), (&right, "eth0"));
        cable((&far, "eth0"), (&right, "eth1"));
        for (site, interface, addresses) in [
            (&left, "eth0", ["10.9.0.1/24", "fd09::1/64"]),
            (&right, "eth0", ["10.9.0.2/24", "fd09::2/64"]),
            (&right, "eth1", ["10.9.1.2/24", "fd09:1::2/64"]),
            (&far, "eth0", ["10.9.1.1/24", "fd09:1::1/64"]),
        ] {
            addresses.iter().for_each(|address| site.address(interface, address).unwrap());
        }
        Self { left, right, far }
    }

    /// Both ends of the first cable have this MTU.
    pub fn set_mtu(&self, bytes: usize) {
        self.left.mtu("eth0", bytes).unwrap();
        self.right.mtu("eth0", bytes).unwrap();
    }
}

/// A veth pair with two queues at each end, as native mode needs them.
fn cable(a: (&Namespace, &str), b: (&Namespace, &str)) {
    cable_with_queues(a, b, "2");
}

/// A veth pair with so many queues at each end.
pub fn cable_with_queues(a: (&Namespace, &str), b: (&Namespace, &str), count: &str) {
    let queues = ["numrxqueues", count, "numtxqueues", count];
    let mut words = vec!["ip", "link", "add", a.1];
    words.extend(queues);
    words.extend(["type", "veth", "peer", "name", b.1, "netns", b.0.name()]);
    words.extend(queues);
    a.0.run(&words).unwrap();
    a.0.link_up(a.1).unwrap();
    b.0.link_up(b.1).unwrap();
}

/// ESP, AH, ESP in UDP and VPE in UDP, to the addresses of the cables and one more; two networks of the far
/// side.
pub fn config() -> FilterConfig {
    FilterConfig {
        esp: true,
        ah: true,
        vpe_protocol: Some(253),
        udp: vec![
            UdpPort { port: 4500, content: UdpContent::Esp },
            UdpPort { port: 4501, content: UdpContent::All },
        ],
        networks: vec![
            network("10.9.0.0", 16, Taken::OfTunnels),
            network("192.0.2.2", 32, Taken::OfTunnels),
            network("fd09::", 16, Taken::OfTunnels),
            network("172.16.0.0", 12, Taken::All),
            network("172.16.7.7", 32, Taken::Nothing),
            network("fd16::", 16, Taken::All),
        ],
    }
}

pub fn network(address: &str, prefix_bits: u8, taken: Taken) -> Network {
    Network { address: address.parse().unwrap(), prefix_bits, taken }
}

/// A device with its pool.
pub struct Opened {
    pub filter: Arc<Filter>,
    pub pool: Pool,
    pub device: XdpDevice,
}

pub fn pool() -> Pool {
    Pool::new(2048, MTU).with_long(64, JUMBO + 22)
}

pub fn open(site: &Namespace, interface: &str, mode: XdpMode, config: &XdpConfig) -> Opened {
    open_with(site, interface, mode, config, pool())
}

pub fn open_with(
    site: &Namespace,
    interface: &str,
    mode: XdpMode,
    xdp: &XdpConfig,
    mut pool: Pool,
) -> Opened {
    site.within(|| {
        let filter = Arc::new(Filter::attach(interface, mode, &config()).unwrap_or_else(|e| panic!("{e}")));
        let device = XdpDevice::open(&filter, &SharedUmem::new(), &mut pool, xdp);
        Opened { filter, device: device.unwrap_or_else(|e| panic!("{e}")), pool }
    })
    .unwrap()
}

impl Opened {
    /// The next `count` frames.
    pub fn receive(&mut self, count: usize) -> Vec<Vec<u8>> {
        receive(&mut self.device, &mut self.pool, count)
    }

    /// A counter of all queues.
    pub fn sum(&self, of: impl Fn(&QueueStatistics) -> u64) -> u64 {
        self.device.statistics().iter().map(of).sum()
    }

    /// Sends frames that are in buffers of the pool.
    pub fn send(&mut self, frames: &[Vec<u8>]) {
        let mut batch = Batch::new();
        for frame in frames {
            let mut buffer = self.pool.pop_for(frame.len()).unwrap();
            buffer.receive_area()[..frame.len()].copy_from_slice(frame);
            buffer.set_len(frame.len());
            batch.push(buffer);
        }
        send(&mut self.device, &mut self.pool, &mut batch);
    }
}

/// Sends a batch, all of it.
pub fn send(device: &mut XdpDevice, pool: &mut Pool, batch: &mut Batch) {
    while !batch.is_empty() {
        if device.tx(pool, batch).unwrap() == 0 {
            wait(device, PollFlags::OUT, "room to send");
        }
    }
}

pub fn receive(device: &mut XdpDevice, pool: &mut Pool, count: usize) -> Vec<Vec<u8>> {
    let mut batch = Batch::new();
    let mut frames = Vec::new();
    while frames.len() < count {
        if device.rx(pool, &mut batch).unwrap() == 0 {
            wait(device, PollFlags::IN, &format!("frame {} of {count}", frames.len() + 1));
        }
        for buffer in batch.drain(..) {
            frames.push(buffer.segments().flat_map(|part| part.bytes().to_vec()).collect());
            pool.recycle(buffer);
        }
    }
    assert_eq!(frames.len(), count, "no other frame came");
    frames
}

pub fn wait(device: &XdpDevice, events: PollFlags, what: &str) {
    let fds = device.readiness();
    let mut fds: Vec<_> = fds.iter().map(|fd| PollFd::new(fd, events)).collect();
    let ready = poll(&mut fds, Some(&Timespec { tv_sec: 5, tv_nsec: 0 })).unwrap();
    assert!(ready > 0, "{what} did not come in 5 s: {:?}", device.statistics());
}

/// A socket of the kernel, from which `datagrams` go.
pub fn send_udp(site: &Namespace, to: (&str, u16), datagrams: &[Vec<u8>]) {
    let address: IpAddr = to.0.parse().unwrap();
    site.within(|| {
        let any = if address.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
        let socket = UdpSocket::bind(any).unwrap();
        for datagram in datagrams {
            socket.send_to(datagram, (address, to.1)).unwrap();
        }
    })
    .unwrap();
}

/// A payload that looks like ESP with this number.
pub fn esp(number: u32, bytes: usize) -> Vec<u8> {
    let mut payload = vec![0xA5; bytes];
    payload[..4].copy_from_slice(&0x1234_5678_u32.to_be_bytes());
    payload[4..8].copy_from_slice(&number.to_be_bytes());
    payload
}

/// The payload of UDP in an untagged frame of IPv4 without options.
pub fn udp_payload(frame: &[u8]) -> &[u8] {
    assert_eq!(frame[12..15], [0x08, 0x00, 0x45]);
    let bytes = usize::from(u16::from_be_bytes([frame[38], frame[39]]));
    &frame[42..34 + bytes]
}

/// A device on queue 0, with its pool.
pub fn open_on(filter: &Arc<Filter>, site: &Namespace) -> (XdpDevice, Pool) {
    let mut pool = pool();
    let opened =
        site.within(|| XdpDevice::open(filter, &SharedUmem::new(), &mut pool, &XdpConfig::default()));
    (opened.unwrap().unwrap(), pool)
}
