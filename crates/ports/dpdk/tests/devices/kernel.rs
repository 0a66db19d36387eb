//! Devices whose other end is the kernel's: TAP, af_packet and af_xdp on veth.

use crate::support::{Dpdk, FRAMES, MTU, Port};
use std::process::{Child, Command};
use testudo_judge::harness::{Suite, TestResult};
use testudo_lab::namespaces::{self, Namespace};
use testudo_link::own::{OwnAddress, OwnResolver};
use testudo_link::routes::{NextHop, Route};
use testudo_link::{FrameDevice, LinkConfig, LinkPort};
use testudo_packet::{Batch, Pool, Port as _};
use testudo_port_dpdk::{DpdkConfig, DpdkDevice};
use testudo_wire::checksum::Sum;
use testudo_wire::ip::IpHeader;

pub fn tests(suite: Suite<'_, Dpdk>) -> Suite<'_, Dpdk> {
    suite
        .test("the_kernel_finds_the_port_by_tap", tap)
        .test("a_tap_with_two_queues_has_both", queues)
        .test("the_kernel_finds_the_port_by_af_packet", af_packet)
        .test("the_kernel_finds_the_port_by_af_xdp", af_xdp)
        .test("checksums_that_the_kernel_left_to_the_device_are_completed", checksums)
}

const OWN: &str = "10.7.0.1";

/// The port of a gateway that answers for itself, over a device in a namespace.
struct Answering {
    port: LinkPort<DpdkDevice, OwnResolver>,
    pool: Pool,
}

impl Answering {
    fn open(dpdk: &Dpdk, site: &Namespace, config: &DpdkConfig, mtu: usize) -> Self {
        let mut pool = pool(mtu);
        let device = site.within(|| DpdkDevice::open(&dpdk.eal, &mut pool, config)).unwrap().unwrap();
        let own = OwnAddress { address: OWN.parse().unwrap(), prefix_bits: 24 };
        let network = Route { network: own.address, prefix_bits: 24, next_hop: NextHop::OnLink, metric: 0 };
        let link = LinkConfig { routes: vec![network], ..LinkConfig::default() };
        let started = std::time::Instant::now();
        let resolver = OwnResolver::new(vec![own], Vec::new());
        Self { port: LinkPort::new(device, resolver, &link, Box::new(move || started.elapsed())), pool }
    }

    /// Answers until the program ends, which is to succeed.
    fn serve(&mut self, mut asking: Child) {
        let status = loop {
            let mut batch = Batch::new();
            self.port.rx(&mut self.pool, &mut batch).unwrap();
            self.pool.recycle_all(&mut batch);
            if let Some(status) = asking.try_wait().unwrap() {
                break status;
            }
        };
        assert!(status.success(), "{status}");
    }
}

fn pool(mtu: usize) -> Pool {
    Pool::for_devices(FRAMES, MTU + 14).with_long(64, mtu + 22)
}

fn ping(site: &Namespace, bytes: usize) -> Child {
    let mut command: Command = site.command("ping");
    let size = bytes.to_string();
    command.args(["-q", "-c", "5", "-i", "0.01", "-w", "20", "-M", "do", "-s", &size, OWN]);
    command.stdout(std::process::Stdio::null()).spawn().unwrap()
}

fn site(dpdk: &Dpdk, name: &str) -> Namespace {
    Namespace::new(dpdk.inside, name).unwrap()
}

fn tap(dpdk: &mut Dpdk) -> TestResult {
    let site = site(dpdk, "host");
    let mut port = Answering::open(dpdk, &site, &DpdkConfig::of("net_tap0,iface=dtap0"), MTU);
    site.address("dtap0", "10.7.0.2/24")?;
    site.link_up("dtap0")?;
    port.serve(ping(&site, 56));
    port.serve(ping(&site, 1472));
    let chosen = port.port.device().chosen();
    assert_eq!((chosen.driver.as_str(), chosen.zero_copy), ("net_tap", true));
    let statistics = port.port.device().statistics();
    assert!(statistics.hardware.link_up && statistics.hardware.rx_packets >= 10);
    assert_eq!((statistics.rx_copied, statistics.tx_copied), (0, 0));
    Ok(())
}

fn queues(dpdk: &mut Dpdk) -> TestResult {
    let site = site(dpdk, "host");
    let config = DpdkConfig { queues: 2, ..DpdkConfig::of("net_tap0,iface=dtap0") };
    let mut port = Answering::open(dpdk, &site, &config, MTU);
    site.address("dtap0", "10.7.0.2/24")?;
    site.link_up("dtap0")?;
    port.serve(ping(&site, 56));
    let statistics = port.port.device().statistics();
    let received: u64 = statistics.queues.iter().map(|queue| queue.rx_packets).sum();
    assert_eq!((statistics.queues.len(), received), (2, port.port.device().counters().rx_packets));
    assert_eq!(port.port.device().chosen().queues, 2);
    Ok(())
}

/// A cable from the host to the gateway's interface, which has no address in the kernel.
fn cable(dpdk: &Dpdk) -> (Namespace, Namespace) {
    let (host, gateway) = (site(dpdk, "host"), site(dpdk, "gateway"));
    namespaces::veth((&host, "eth0"), (&gateway, "eth0")).unwrap();
    host.address("eth0", "10.7.0.2/24").unwrap();
    (host, gateway)
}

fn af_packet(dpdk: &mut Dpdk) -> TestResult {
    let (host, gateway) = cable(dpdk);
    let mut port = Answering::open(dpdk, &gateway, &DpdkConfig::of("net_af_packet0,iface=eth0"), MTU);
    port.serve(ping(&host, 56));
    port.serve(ping(&host, 1472));
    assert!(port.port.device().chosen().zero_copy);
    Ok(())
}

fn af_xdp(dpdk: &mut Dpdk) -> TestResult {
    let (host, gateway) = cable(dpdk);
    let mut port = Answering::open(dpdk, &gateway, &DpdkConfig::of("net_af_xdp0,iface=eth0"), MTU);
    port.serve(ping(&host, 56));
    port.serve(ping(&host, 1472));
    let statistics = port.port.device().statistics();
    assert!(!port.port.device().chosen().zero_copy && statistics.rx_copied >= 10, "{statistics:?}");
    Ok(())
}

fn checksums(dpdk: &mut Dpdk) -> TestResult {
    let (host, gateway) = cable(dpdk);
    let config = DpdkConfig::of("net_af_packet0,iface=eth0");
    let device = gateway.within(|| Port::open(dpdk, &config))?;
    let mut port = device;
    host.run(&["ip", "neighbour", "add", OWN, "lladdr", "02:00:00:00:00:09", "dev", "eth0"])?;
    host.within(|| {
        let socket = std::net::UdpSocket::bind("10.7.0.2:9").unwrap();
        for number in 0..10_u8 {
            socket.send_to(&[number; 100], (OWN, 9)).unwrap();
        }
    })?;
    let mut seen = 0;
    while seen < 10 {
        for frame in port.poll() {
            let packet = &frame[14..];
            let Some(header) = IpHeader::parse(packet).ok().filter(|header| header.protocol == 17) else {
                continue;
            };
            let payload = header.payload(packet);
            let sum =
                Sum::default().pseudo_header(header.source, header.destination, 17, payload.len() as u32);
            assert!(sum.bytes(payload).finish().is_intact());
            seen += 1;
        }
    }
    assert_eq!(port.device.statistics().checksums_completed, 10);
    port.close();
    Ok(())
}
