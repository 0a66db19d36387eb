//! Devices whose other end takes and makes super-frames: virtio, and TAP with DPDK's own library to cut them.

use crate::flow::{Flow, is_intact};
use crate::support::{self, Dpdk, FRAMES, MTU, Port};
use std::io::{BufRead, BufReader, Read};
use std::net::{IpAddr, TcpListener};
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;
use testudo_judge::harness::{Suite, TestResult};
use testudo_lab::namespaces::Namespace;
use testudo_link::FrameDevice;
use testudo_packet::{Batch, Pool};
use testudo_port_dpdk::DpdkConfig;
use testudo_wire::tcp::{TcpHeader, flags};

/// The argument with which this program is the host's end of a virtio link, at a path.
pub const ECHO: &str = "--echo-vhost";

pub fn tests(suite: Suite<'_, Dpdk>) -> Suite<'_, Dpdk> {
    suite
        .test("super_frames_cross_virtio_and_are_the_same_segments_behind_it", virtio)
        .test("linux_accepts_what_a_device_cuts", tap)
        .test("linux_accepts_checksums_that_a_device_computes", checksums)
}

/// The longest packet of IP in a frame, and buffers for some.
fn pool() -> Pool {
    Pool::for_devices(FRAMES, MTU + 14).with_long(64, 65_535 + 22)
}

/// The other process, the host's end of a virtio link: sends back what comes, and says how many super-frames
/// it has cut whenever that changes.
pub fn echo(folder: &Path) -> ExitCode {
    let dpdk = Dpdk::start().unwrap();
    let device = format!("net_vhost0,iface={},tso=1", folder.join("link").display());
    let mut port = Port::with(&dpdk, &DpdkConfig::of(&device), pool());
    assert!(port.device.chosen().zero_copy && !port.device.chosen().segmentation);
    println!("open");
    let mut cut = 0;
    loop {
        let mut batch = Batch::new();
        port.device.rx(&mut port.pool, &mut batch).unwrap();
        while !batch.is_empty() {
            port.device.tx(&mut port.pool, &mut batch).unwrap();
        }
        let now = port.device.statistics().super_frames_cut;
        if now != cut {
            println!("cut {now}");
            cut = now;
        }
    }
}

fn virtio(dpdk: &mut Dpdk) -> TestResult {
    let folder = support::folder("virtio");
    let mut other =
        Command::new(std::env::current_exe()?).arg(ECHO).arg(&folder).stdout(Stdio::piped()).spawn()?;
    let mut lines = BufReader::new(other.stdout.take().ok_or("no output")?).lines();
    assert_eq!(lines.next().transpose()?.as_deref(), Some("open"));
    let config = DpdkConfig::of(&format!("net_virtio_user0,path={}", folder.join("link").display()));
    let mut port = Port::with(dpdk, &config, pool());
    assert!(port.device.chosen().segmentation && !port.device.chosen().zero_copy);
    for (is_v6, cut) in [(false, "cut 1"), (true, "cut 2")] {
        let mut frames = Flow::tcp(is_v6).segments(39, 1400);
        frames.extend(Flow::udp(is_v6).segments(3, 300));
        port.send(&frames);
        assert!(port.receive(frames.len()) == frames);
        assert_eq!(lines.next().transpose()?.as_deref(), Some(cut));
    }
    let statistics = port.device.statistics();
    assert_eq!((statistics.super_frames_sent, statistics.unknown_frames), (2, 0));
    other.kill()?;
    other.wait()?;
    port.close();
    Ok(())
}

const HOST: &str = "10.7.0.2";

/// A TAP interface of a host that knows us.
fn tap_port(dpdk: &Dpdk, site: &Namespace, more: DpdkConfig) -> Result<Port, Box<dyn std::error::Error>> {
    let config = DpdkConfig { segmentation: Some(true), udp_over_ipv6: true, ..more };
    let port = site.within(|| Port::open(dpdk, &config))?;
    site.address("dtap0", &format!("{HOST}/24"))?;
    site.run(&["ip", "address", "add", "fd07::2/64", "dev", "dtap0", "nodad"])?;
    site.link_up("dtap0")?;
    for ours in ["10.7.0.7", "fd07::7"] {
        site.run(&["ip", "neighbour", "add", ours, "lladdr", "02:00:00:00:00:07", "dev", "dtap0"])?;
    }
    Ok(port)
}

/// A connection to the kernel's TCP: its answer to our SYN says what we acknowledge.
fn connect(port: &mut Port, flow: &mut Flow) {
    port.send(&[flow.packet(0, 0, flags::SYN, &[])]);
    loop {
        for frame in port.poll() {
            let at = flow.header_bytes() - 20;
            let Some(tcp) = frame.get(at..).and_then(|tcp| TcpHeader::parse(tcp).ok()) else { continue };
            if tcp.flags == flags::SYN | flags::ACK && frame[at + 2..at + 4] == flow.ports[0].to_be_bytes() {
                let sequence =
                    frame[at + 4..at + 8].first_chunk().map_or(0, |four| u32::from_be_bytes(*four));
                flow.acknowledged = sequence.wrapping_add(1);
                flow.sequence = flow.sequence.wrapping_add(1);
                port.send(&[flow.packet(1, 0, flags::ACK, &[])]);
                return;
            }
        }
    }
}

fn tap(dpdk: &mut Dpdk) -> TestResult {
    let site = Namespace::new(dpdk.inside, "host")?;
    let mut port = tap_port(dpdk, &site, DpdkConfig::of("net_tap0,iface=dtap0"))?;
    let mac = mac_of(&site)?;
    for is_v6 in [false, true] {
        let host: IpAddr = if is_v6 { "fd07::2".parse()? } else { HOST.parse()? };
        let listener = site.within(|| TcpListener::bind((host, 2000)))??;
        let mut flow = Flow { macs: [[2, 0, 0, 0, 0, 7], mac], ..Flow::tcp(is_v6) };
        connect(&mut port, &mut flow);
        let (mut stream, _) = listener.accept()?;
        stream.set_read_timeout(Some(Duration::from_secs(60)))?;
        // The driver takes no segments as long as the MTU allows.
        let segments = flow.segments(20, 1200);
        port.send(&segments);
        let sent: Vec<u8> =
            segments.iter().flat_map(|frame| &frame[flow.header_bytes()..]).copied().collect();
        let mut came = vec![0; sent.len()];
        stream.read_exact(&mut came)?;
        assert!(came == sent);
    }
    assert_eq!(port.device.statistics().super_frames_sent, 2);
    port.close();
    Ok(())
}

fn mac_of(site: &Namespace) -> Result<[u8; 6], Box<dyn std::error::Error>> {
    let shown = site.run(&["cat", "/sys/class/net/dtap0/address"])?;
    let bytes: Result<Vec<u8>, _> =
        shown.trim().split(':').map(|byte| u8::from_str_radix(byte, 16)).collect();
    Ok(bytes?.try_into().map_err(|_| "no link-layer address")?)
}

fn checksums(dpdk: &mut Dpdk) -> TestResult {
    let site = Namespace::new(dpdk.inside, "host")?;
    let mut port = tap_port(dpdk, &site, DpdkConfig::of("net_tap0,iface=dtap0"))?;
    assert!(port.device.chosen().udp_checksums);
    let mac = mac_of(&site)?;
    let socket = site.within(|| std::net::UdpSocket::bind(("fd07::2", 2000)))??;
    socket.set_read_timeout(Some(Duration::from_secs(60)))?;
    let flow = Flow { macs: [[2, 0, 0, 0, 0, 7], mac], ..Flow::udp(true) };
    for bytes in [1, 2, 999, 1400] {
        let mut frame = flow.packet(0, 0, 0, &vec![0xA7; bytes]);
        assert!(is_intact(&frame));
        frame[14 + 40 + 6..][..2].fill(0);
        port.send(&[frame]);
        let mut came = [0; 1500];
        // Linux drops UDP over IPv6 with a wrong checksum, and without one.
        let (count, _) = socket.recv_from(&mut came)?;
        assert_eq!(came[..count], vec![0xA7; bytes]);
    }
    assert_eq!(port.device.statistics().checksums_left, 4);
    port.close();
    Ok(())
}
