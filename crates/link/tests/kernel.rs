//! The Linux kernel at the other end of the link: ARP, neighbour discovery and echo, as its own
//! implementation sees them.
//!
//! ```text
//!   Linux: 192.0.2.1, 2001:db8::1 ── interface "wire" (TAP) ── LinkPort: 192.0.2.2, 2001:db8::2
//! ```

#![allow(
    clippy::cast_possible_truncation,
    clippy::expect_used,
    clippy::unwrap_used,
    reason = "test data is made of small numbers, and a test says what must hold"
)]
#![forbid(unsafe_code)]

mod support;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::error::Error;
use std::net::{IpAddr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};
use std::process::{ExitCode, Stdio};
use std::time::{Duration, Instant};
use support::{A, End, TestClock, Wire, own, udp};
use testudo_judge::harness::{Suite, TestResult};
use testudo_lab::namespaces::{Entered, Namespace, enter, require_tun, veth};
use testudo_link::kernel::KernelReader;
use testudo_link::own::OwnResolver;
use testudo_link::routes::{NextHop, Route};
use testudo_link::{FrameDevice, LinkConfig, LinkPort};
use testudo_packet::{Batch, DropReason, Pool, Port, PortCounters, PortError};
use testudo_wire::ethernet::MacAddress;
use tun_rs::{DeviceBuilder, Layer, SyncDevice};

fn main() -> ExitCode {
    Suite::new()
        .test("linux_pings_the_gateway_over_ipv4_and_ipv6", pings)
        .test("linux_gets_packets_whose_neighbour_it_is", is_found)
        .test("linux_routes_packets_to_the_gateway", routes)
        .test("linux_is_told_of_ports_that_are_closed", refuses)
        .test("a_new_mac_address_that_linux_announces_is_used", follows)
        .test("a_port_has_the_kernels_routes_before_its_first_packet", has_routes_at_once)
        .test("routes_and_neighbours_of_the_kernel_reach_a_port", is_read)
        .run(enter)
}

/// A TAP interface, from the side that is not the kernel's.
struct Tap(SyncDevice, PortCounters);

impl FrameDevice for Tap {
    fn name(&self) -> &str {
        "wire"
    }

    fn mac(&self) -> MacAddress {
        A
    }

    fn mtu(&self) -> usize {
        1500
    }

    fn rx(&mut self, pool: &mut Pool, batch: &mut Batch) -> Result<usize, PortError> {
        let before = batch.len();
        while !batch.is_full() {
            let Some(mut buffer) = pool.pop() else { break };
            let Ok(bytes) = self.0.recv(buffer.receive_area()) else {
                pool.recycle(buffer);
                break;
            };
            buffer.set_len(bytes);
            self.1.rx_packets += 1;
            batch.push(buffer);
        }
        Ok(batch.len() - before)
    }

    fn tx(&mut self, pool: &mut Pool, batch: &mut Batch) -> Result<usize, PortError> {
        let sent = batch.iter().take_while(|buffer| self.0.send(buffer.bytes()).is_ok()).count();
        self.1.tx_packets += sent as u64;
        batch.drain(..sent).for_each(|buffer| pool.recycle(buffer));
        Ok(sent)
    }

    fn readiness(&self) -> Vec<BorrowedFd<'_>> {
        vec![self.0.as_fd()]
    }

    fn counters(&self) -> PortCounters {
        self.1
    }
}

/// A Linux host, and the gateway's port on the same link.
struct Site {
    host: Namespace,
    port: LinkPort<Tap, OwnResolver>,
    pool: Pool,
    delivered: Vec<Vec<u8>>,
}

const OWN: [&str; 2] = ["192.0.2.2/24", "2001:db8::2/64"];

impl Site {
    fn new(inside: Entered, config: &LinkConfig) -> Result<Self, Box<dyn Error>> {
        require_tun()?;
        let host = Namespace::new(inside, "host")?;
        let device = host.within(|| DeviceBuilder::new().name("wire").layer(Layer::L2).build_sync())??;
        device.set_nonblocking(true)?;
        host.address("wire", "192.0.2.1/24")?;
        host.address("wire", "2001:db8::1/64")?;
        host.link_up("wire")?;
        let started = Instant::now();
        let clock = Box::new(move || started.elapsed());
        let port = LinkPort::new(Tap(device, PortCounters::default()), own(&OWN), config, clock);
        Ok(Self { host, port, pool: Pool::new(256, 1600), delivered: Vec::new() })
    }

    /// Receives until `done` says so, or fails after a time that is long for any machine.
    fn until(&mut self, what: &str, mut done: impl FnMut(&mut Self) -> bool) -> TestResult {
        let given_up = Instant::now() + Duration::from_secs(60);
        while !done(self) {
            if Instant::now() > given_up {
                return Err(format!("{what}: not within a minute; {:?}", self.pool.drops()).into());
            }
            let mut batch = Batch::new();
            self.port.rx(&mut self.pool, &mut batch)?;
            self.delivered.extend(batch.iter().map(|buffer| buffer.bytes().to_vec()));
            if batch.is_empty() {
                let ready = self.port.readiness();
                let mut waits: Vec<_> =
                    ready.iter().map(|fd| PollFd::from_borrowed_fd(*fd, PollFlags::IN)).collect();
                // Others than the kernel's frames end the wait, too: a child, a socket.
                poll(&mut waits, Some(&Timespec { tv_sec: 0, tv_nsec: 20_000_000 }))?;
            }
            self.pool.recycle_all(&mut batch);
        }
        Ok(())
    }

    /// Runs a command on the host, while the port receives.
    fn host_runs(&mut self, words: &[&str]) -> Result<String, Box<dyn Error>> {
        let mut command = self.host.command(words[0]);
        let mut child = command.args(&words[1..]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
        let what = words.join(" ");
        self.until(&what, |_| child.try_wait().is_ok_and(|status| status.is_some()))?;
        let output = child.wait_with_output()?;
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        let complaint = String::from_utf8_lossy(&output.stderr).into_owned();
        if output.status.success() { Ok(said) } else { Err(format!("{what}: {said}{complaint}").into()) }
    }

    fn send(&mut self, packet: &[u8]) -> TestResult {
        let mut buffer = self.pool.create(packet.len()).ok_or("no buffer")?;
        buffer.receive_area()[..packet.len()].copy_from_slice(packet);
        buffer.set_len(packet.len());
        let mut batch = Batch::new();
        batch.push(buffer);
        assert_eq!(self.port.tx(&mut self.pool, &mut batch)?, 1);
        Ok(())
    }

    /// Sends a packet to a socket of the host, which must get it.
    fn host_gets(&mut self, source: &str, destination: &str) -> TestResult {
        let socket = self.host.within(|| UdpSocket::bind((destination, 0)))??;
        socket.set_nonblocking(true)?;
        let text = format!("to {destination}");
        self.send(&udp(source, destination, socket.local_addr()?.port(), text.as_bytes()))?;
        let (mut data, mut got) = ([0; 100], None);
        self.until("a datagram", |_| {
            got = socket.recv_from(&mut data).ok();
            got.is_some()
        })?;
        let (bytes, from) = got.ok_or("nothing")?;
        assert_eq!((&data[..bytes], from.ip()), (text.as_bytes(), source.parse::<IpAddr>()?));
        Ok(())
    }
}

fn route(network: &str, prefix_bits: u8) -> Route {
    Route { network: network.parse().unwrap(), prefix_bits, next_hop: NextHop::OnLink, metric: 0 }
}

fn on_link() -> LinkConfig {
    let routes = vec![route("192.0.2.0", 24), route("2001:db8::", 64), route("fe80::", 10)];
    LinkConfig { routes, ..LinkConfig::default() }
}

fn pings(inside: &mut Entered) -> TestResult {
    let mut site = Site::new(*inside, &on_link())?;
    for address in ["192.0.2.2", "2001:db8::2"] {
        for bytes in ["0", "56", "1400"] {
            let said = site.host_runs(&["ping", "-c", "3", "-i", "0.05", "-W", "5", "-s", bytes, address])?;
            assert!(said.contains("3 packets transmitted, 3 received"), "{said}");
        }
        let known = site.host.run(&["ip", "neighbour", "show", address])?;
        assert!(known.contains(&A.to_string()), "{known}");
    }
    assert_eq!(site.delivered, [[0u8; 0]; 0], "the gateway is not bothered");
    Ok(())
}

fn is_found(inside: &mut Entered) -> TestResult {
    let mut site = Site::new(*inside, &on_link())?;
    // The first packets wait for an answer of the kernel, the second do not.
    for _ in 0..2 {
        site.host_gets("192.0.2.2", "192.0.2.1")?;
        site.host_gets("2001:db8::2", "2001:db8::1")?;
    }
    Ok(())
}

fn routes(inside: &mut Entered) -> TestResult {
    let mut site = Site::new(*inside, &on_link())?;
    site.host.route_via("10.9.0.0/16", "192.0.2.2")?;
    site.host.route_via("fd09::/16", "2001:db8::2")?;
    for (bound, to) in [("192.0.2.1", "10.9.8.7"), ("2001:db8::1", "fd09::7")] {
        let socket = site.host.within(|| UdpSocket::bind((bound, 4000)))??;
        // Shorter than a frame may be: what is delivered has no padding.
        socket.send_to(b"x", (to, 9))?;
        site.until("a packet", |site| !site.delivered.is_empty())?;
        let packet = site.delivered.remove(0);
        let header = testudo_wire::ip::IpHeader::parse(&packet)?;
        assert_eq!((header.destination, header.total_bytes), (to.parse()?, packet.len()));
        assert_eq!(header.payload(&packet)[8..], *b"x");
    }
    Ok(())
}

fn refuses(inside: &mut Entered) -> TestResult {
    let mut site = Site::new(*inside, &on_link())?;
    for (bound, to) in [("192.0.2.1", "192.0.2.2"), ("2001:db8::1", "2001:db8::2")] {
        let socket = site.host.within(|| UdpSocket::bind((bound, 0)))??;
        socket.connect((to, 9))?;
        socket.set_nonblocking(true)?;
        socket.send(b"anybody there?")?;
        let mut outcome = None;
        site.until("an error", |_| {
            outcome = socket.recv(&mut [0; 10]).err().filter(|e| e.kind() != std::io::ErrorKind::WouldBlock);
            outcome.is_some()
        })?;
        assert_eq!(outcome.map(|error| error.kind()), Some(std::io::ErrorKind::ConnectionRefused));
    }
    assert_eq!(site.pool.drops().get(DropReason::NotServed), 2);
    Ok(())
}

fn follows(inside: &mut Entered) -> TestResult {
    let mut site = Site::new(*inside, &on_link())?;
    site.host.sysctl("net.ipv4.conf.wire.arp_notify", "1")?;
    site.host_gets("192.0.2.2", "192.0.2.1")?;
    let (host, new): (IpAddr, _) = ("192.0.2.1".parse()?, "02:00:00:00:00:77");
    site.host.run(&["ip", "link", "set", "wire", "address", new])?;
    site.until("gratuitous ARP", |site| {
        site.port.tables().neighbours.mac(host).is_some_and(|mac| mac.to_string() == new)
    })?;
    site.host_gets("192.0.2.2", "192.0.2.1")
}

/// A port on an interface whose kernel keeps ARP, and another host behind that interface. The port's frames
/// go nowhere: that the kernel finds its neighbour, and where it says that this is, is what counts.
struct Read {
    near: Namespace,
    _far: Namespace,
    reader: KernelReader,
    end: End<testudo_link::outside::OutsideResolver>,
    output: Wire,
    far_mac: String,
}

impl Read {
    fn new(inside: Entered) -> Result<Self, Box<dyn Error>> {
        let (near, far) = (Namespace::new(inside, "near")?, Namespace::new(inside, "far")?);
        veth((&near, "wire"), (&far, "other"))?;
        for (host, interface, number) in [(&near, "wire", 1), (&far, "other", 2)] {
            host.address(interface, &format!("192.0.2.{number}/24"))?;
            host.address(interface, &format!("2001:db8::{number}/64"))?;
        }
        let far_mac = far.run(&["cat", "/sys/class/net/other/address"])?.trim().to_owned();
        let (reader, resolver) = near.within(|| KernelReader::open("wire"))??;
        let (input, output) = (Wire::default(), Wire::default());
        let clock = TestClock::default();
        let end = End::new(A, (&input, &output), resolver, &LinkConfig::default(), &clock);
        Ok(Self { near, _far: far, reader, end, output, far_mac })
    }

    /// Reads what the kernel says until `done` says so.
    fn until(&mut self, what: &str, mut done: impl FnMut(&mut Self) -> bool) -> TestResult {
        let given_up = Instant::now() + Duration::from_secs(60);
        loop {
            self.end.receive();
            if done(self) {
                return Ok(());
            }
            if Instant::now() > given_up {
                return Err(format!("{what}: not within a minute; {:?}", self.end.pool.drops()).into());
            }
            assert!(self.reader.turn(Duration::from_millis(50))?);
        }
    }

    fn next_hop(&self, destination: &str) -> Option<IpAddr> {
        self.end.port.tables().routes().next_hop(destination.parse().unwrap())
    }
}

/// Nothing is received, and nothing more read. Neighbours, more than wait for a port, keep nobody waiting.
fn has_routes_at_once(inside: &mut Entered) -> TestResult {
    let mut read = Read::new(*inside)?;
    let many = "for n in $(seq 1100); do echo neigh add 2001:db8::1:$n lladdr 2:0:0:0:0:1 dev wire; done | ip -batch -";
    read.near.run(&["sh", "-c", many])?;
    // In no time they are not there: the port is made without, and told of them later.
    let (mut late, resolver) = read.near.within(|| KernelReader::open_within("wire", Duration::ZERO))??;
    assert!(!late.has_routes());
    drop(resolver);
    while late.turn(Duration::from_secs(10))? && !late.has_routes() {}
    assert!(late.has_routes());
    let (reader, resolver) = read.near.within(|| KernelReader::open("wire"))??;
    assert!(reader.has_routes());
    let (wire, clock) = (Wire::default(), TestClock::default());
    read.end = End::new(A, (&wire, &wire), resolver, &LinkConfig::default(), &clock);
    for neighbour in ["192.0.2.2", "2001:db8::2"] {
        assert_eq!(read.next_hop(neighbour), neighbour.parse().ok(), "{neighbour}");
    }
    Ok(())
}

fn is_read(inside: &mut Entered) -> TestResult {
    let mut read = Read::new(*inside)?;
    let far = |text: &str| text.parse::<IpAddr>().ok();
    read.near.route_via("10.9.0.0/16", "192.0.2.2")?;
    read.near.route_via("fd09::/16", "2001:db8::2")?;
    read.near.run(&["ip", "route", "add", "10.9.7.0/24", "dev", "lo"])?;
    read.near.run(&["ip", "route", "add", "unreachable", "10.9.8.0/24"])?;
    read.near.run(&["ip", "route", "add", "10.8.0.0/16", "via", "inet6", "2001:db8::2", "dev", "wire"])?;
    read.until("new routes", |read| read.next_hop("10.8.0.1").is_some())?;
    for (destination, next_hop) in [
        ("10.9.1.1", "192.0.2.2"),
        ("fd09::9", "2001:db8::2"),
        ("10.8.0.1", "2001:db8::2"),
        ("10.9.7.1", ""),
        ("10.9.8.1", ""),
        ("203.0.113.1", ""),
    ] {
        assert_eq!(read.next_hop(destination), far(next_hop), "{destination}");
    }
    // Packets for which the kernel has to find the router first.
    for (source, destination) in [("192.0.2.1", "10.9.1.1"), ("2001:db8::1", "fd09::9")] {
        read.end.send(&udp(source, destination, 9, b"data"));
        assert_eq!(read.end.port.waiting(), 1, "{destination}");
        read.until("a neighbour", |read| read.end.port.waiting() == 0)?;
        let frame = read.output.pop().ok_or("nothing was sent")?;
        let header = testudo_wire::ethernet::EthernetHeader::parse(&frame)?;
        assert_eq!(header.destination.to_string(), read.far_mac);
    }
    read.near.run(&["ip", "neighbour", "del", "192.0.2.2", "dev", "wire"])?;
    read.until("its loss", |read| {
        read.end.port.tables().neighbours.mac(IpAddr::from([192, 0, 2, 2])).is_none()
    })?;
    read.near.run(&["ip", "route", "del", "10.9.0.0/16"])?;
    read.until("the loss of a route", |read| read.next_hop("10.9.1.1").is_none())?;
    // Nobody has this address: the kernel says so.
    read.end.send(&udp("192.0.2.1", "192.0.2.99", 9, b"data"));
    read.until("a failure", |read| read.end.drops(DropReason::NeighbourUnresolved) == 1)
}
