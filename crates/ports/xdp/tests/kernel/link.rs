//! The device below a link layer that the kernel's own tables feed: packets above, and a real host at the
//! other end.

use crate::support::{MTU, Opened, Sites, esp, open, send_udp};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::error::Error;
use std::net::{IpAddr, UdpSocket};
use std::time::{Duration, Instant};
use testudo_judge::harness::{Suite, TestResult};
use testudo_link::kernel::KernelReader;
use testudo_link::outside::OutsideResolver;
use testudo_link::{LinkConfig, LinkPort};
use testudo_packet::{Batch, DropReason, Pool, Port};
use testudo_port_xdp::{XdpConfig, XdpDevice, XdpMode};
use testudo_wire::checksum::Sum;
use testudo_wire::ip::{IpHeader, OuterHeader};
use testudo_wire::protocol;
use testudo_wire::udp::UdpHeader;

pub fn tests(suite: Suite<'_, Sites>) -> Suite<'_, Sites> {
    suite
        .test("packets_go_by_the_kernels_routes_and_neighbours_in_native_mode", |sites| {
            passes(sites, XdpMode::Native)
        })
        .test("packets_go_by_the_kernels_routes_and_neighbours_in_generic_mode", |sites| {
            passes(sites, XdpMode::Generic)
        })
        .test("linux_accepts_udp_over_ipv6_that_came_without_a_checksum", accepts_udp_over_ipv6)
}

/// The gateway's port on the right host, with its pool.
struct Site {
    port: LinkPort<XdpDevice, OutsideResolver>,
    pool: Pool,
    delivered: Vec<Vec<u8>>,
    /// Packets that were taken from the port, and given to it.
    taken: u64,
    given: u64,
}

impl Site {
    /// The reader ends when the port is dropped.
    fn new(sites: &Sites, mode: XdpMode, config: &LinkConfig) -> Result<Self, Box<dyn Error>> {
        let (mut reader, resolver) = sites.right.within(|| KernelReader::open("eth0"))??;
        std::thread::spawn(move || while reader.turn(Duration::from_millis(50)).unwrap_or(false) {});
        // The sender's kernel chooses a queue by the flow.
        let both = XdpConfig { queues: vec![0, 1], ..XdpConfig::default() };
        let Opened { pool, device, .. } = open(&sites.right, "eth0", mode, &both);
        let started = Instant::now();
        let clock = Box::new(move || started.elapsed());
        Ok(Self {
            port: LinkPort::new(device, resolver, config, clock),
            pool,
            delivered: Vec::new(),
            taken: 0,
            given: 0,
        })
    }

    /// Receives until `done` says so, or fails after a time that is long for any machine.
    fn until(&mut self, what: &str, mut done: impl FnMut(&Self) -> bool) -> TestResult {
        let given_up = Instant::now() + Duration::from_secs(30);
        while !done(self) {
            if Instant::now() > given_up {
                return Err(format!("{what} did not come").into());
            }
            let mut batch = Batch::new();
            self.port.rx(&mut self.pool, &mut batch)?;
            for packet in batch.drain(..) {
                self.delivered.push(packet.bytes().to_vec());
                self.taken += 1;
                self.pool.recycle(packet);
            }
            let descriptors = self.port.readiness();
            let mut waits: Vec<_> = descriptors.iter().map(|fd| PollFd::new(fd, PollFlags::IN)).collect();
            poll(&mut waits, Some(&Timespec { tv_sec: 0, tv_nsec: 10_000_000 }))?;
        }
        Ok(())
    }

    /// With a packet to somebody who does not answer: it is dropped, and every buffer comes back.
    fn ends(mut self) -> TestResult {
        self.send(&udp("10.9.0.2".parse()?, "10.9.0.99".parse()?, 9, b"nobody")?)?;
        assert_eq!(self.port.waiting(), 1);
        self.port.end(&mut self.pool);
        let (pool, counted) = (&self.pool, self.port.counters());
        assert_eq!(pool.drops().get(DropReason::ShuttingDown), 1);
        assert_eq!(pool.in_use(), 0, "every buffer is in the pool");
        let came = counted.rx_packets + pool.created() + self.given;
        assert_eq!(came, self.taken + counted.tx_packets + pool.drops().total(), "the books balance");
        Ok(())
    }

    fn send(&mut self, packet: &[u8]) -> TestResult {
        let mut batch = Batch::new();
        let mut buffer = self.pool.pop().ok_or("no buffer")?;
        buffer.receive_area()[..packet.len()].copy_from_slice(packet);
        buffer.set_len(packet.len());
        batch.push(buffer);
        self.given += 1;
        while !batch.is_empty() {
            self.port.tx(&mut self.pool, &mut batch)?;
        }
        Ok(())
    }
}

fn udp(source: IpAddr, destination: IpAddr, port: u16, data: &[u8]) -> Result<Vec<u8>, Box<dyn Error>> {
    let outer = OuterHeader {
        source,
        destination,
        protocol: protocol::UDP,
        traffic_class: 0,
        hop_limit: 64,
        dont_fragment: true,
    };
    let mut payload = vec![0; 8];
    let header = UdpHeader { source_port: 4000, destination_port: port, total_bytes: 8 + data.len() };
    header.write(&mut payload)?;
    payload.extend_from_slice(data);
    payload[6..8].fill(0);
    let sum = Sum::default().pseudo_header(source, destination, protocol::UDP, payload.len() as u32);
    let sum = sum.bytes(&payload).finish().to_bytes();
    payload[6..8].copy_from_slice(&sum);
    let mut packet = vec![0; outer.bytes()];
    outer.write(&mut packet, outer.bytes() + payload.len(), 0)?;
    packet.extend(payload);
    Ok(packet)
}

fn passes(sites: &mut Sites, mode: XdpMode) -> TestResult {
    let mut site = Site::new(sites, mode, &LinkConfig::default())?;
    for (own, peer) in [("10.9.0.2", "10.9.0.1"), ("fd09::2", "fd09::1")] {
        let [own, peer]: [IpAddr; 2] = [own.parse()?, peer.parse()?];
        // The kernel has to look for the peer again.
        sites.right.run(&["ip", "neigh", "flush", "dev", "eth0"])?;
        let socket = sites.left.within(|| UdpSocket::bind((peer, 0)))??;
        socket.set_nonblocking(true)?;
        site.until("the route", |site| site.port.tables().routes().next_hop(peer).is_some())?;
        for number in 0..20_u8 {
            let data = vec![number; usize::from(number) * 70];
            site.send(&udp(own, peer, socket.local_addr()?.port(), &data)?)?;
            let mut came = vec![0; MTU];
            let mut bytes = None;
            site.until("a packet", |_| {
                bytes = socket.recv(&mut came).ok();
                bytes.is_some()
            })?;
            assert!(bytes == Some(data.len()) && came.starts_with(&data), "packet {number} to {peer}");
        }
        send_udp(&sites.left, (&own.to_string(), 4500), &[esp(7, 300)]);
        site.delivered.clear();
        site.until("a datagram of ESP", |site| !site.delivered.is_empty())?;
        let header = IpHeader::parse(&site.delivered[0])?;
        assert_eq!((header.source, header.destination), (peer, own));
        assert_eq!(header.payload(&site.delivered[0])[8..], esp(7, 300));
    }
    assert_eq!(site.port.counters().tx_packets, 40);
    site.ends()
}

/// Datagrams as a gateway seals them. Linux drops those whose checksum is 0 (RFC 8200 8.1), and counts them.
fn accepts_udp_over_ipv6(sites: &mut Sites) -> TestResult {
    let [own, peer]: [IpAddr; 2] = ["fd09::2".parse()?, "fd09::1".parse()?];
    for mode in [XdpMode::Native, XdpMode::Generic] {
        let config = LinkConfig { completes_udp: true, ..LinkConfig::default() };
        let mut site = Site::new(sites, mode, &config)?;
        let socket = sites.left.within(|| UdpSocket::bind((peer, 0)))??;
        socket.set_nonblocking(true)?;
        site.until("the route", |site| site.port.tables().routes().next_hop(peer).is_some())?;
        for bytes in [1, 2, 99, 1400] {
            let data = vec![0x5A; bytes];
            let mut packet = udp(own, peer, socket.local_addr()?.port(), &data)?;
            packet[46..48].fill(0);
            site.send(&packet)?;
            let (mut came, mut length) = (vec![0; MTU], None);
            site.until("a datagram at the socket", |_| {
                length = socket.recv(&mut came).ok();
                length.is_some()
            })?;
            assert_eq!(came[..length.unwrap_or(0)], data, "{mode:?}");
        }
        site.ends()?;
    }
    let counted = sites.left.run(&["nstat", "-asz", "Udp6InCsumErrors"])?;
    assert!(counted.lines().any(|line| line.split_whitespace().nth(1) == Some("0")), "{counted}");
    Ok(())
}
