//! Packet files, and a pair of devices in two processes.

use crate::support::{self, Dpdk, FRAMES, MTU, Port, frame};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use testudo_judge::harness::{Suite, TestResult};
use testudo_link::FrameDevice;
use testudo_packet::{Batch, DropReason, Pool};
use testudo_port_dpdk::DpdkConfig;

/// The argument with which this program sends back what it receives, over the memif at a path.
pub const ECHO: &str = "--echo-memif";

pub fn tests(suite: Suite<'_, Dpdk>) -> Suite<'_, Dpdk> {
    suite
        .test("packet_files_are_read_and_written_and_long_frames_gathered", pcap)
        .test("frames_longer_than_a_buffer_are_dropped_by_name", too_long)
        .test("two_processes_exchange_frames_by_memif", memif)
}

/// A packet file (libpcap's format, microseconds, Ethernet).
fn write_pcap(path: &Path, frames: &[Vec<u8>]) {
    let mut file = Vec::new();
    for word in [0xA1B2_C3D4_u32, 0x0004_0002, 0, 0, 65_535, 1] {
        file.extend(word.to_le_bytes());
    }
    for frame in frames {
        let bytes = frame.len() as u32;
        [0, 0, bytes, bytes].iter().for_each(|word: &u32| file.extend(word.to_le_bytes()));
        file.extend(frame);
    }
    std::fs::write(path, file).unwrap();
}

fn read_pcap(path: &Path) -> Vec<Vec<u8>> {
    let file = std::fs::read(path).unwrap();
    let (mut rest, mut frames) = (&file[24..], Vec::new());
    while let Some((header, data)) = rest.split_at_checked(16) {
        let bytes = u32::from_le_bytes(header[8..12].try_into().unwrap()) as usize;
        frames.push(data[..bytes].to_vec());
        rest = &data[bytes..];
    }
    frames
}

fn pcap(dpdk: &mut Dpdk) -> TestResult {
    let folder = support::folder("pcap");
    let (from, to) = (folder.join("in.pcap"), folder.join("out.pcap"));
    let sizes = [60, 1514, 1905, 9014, 100];
    let frames: Vec<Vec<u8>> = (0..50).map(|number| frame(number, sizes[number % 5])).collect();
    write_pcap(&from, &frames);
    let device = format!("net_pcap0,rx_pcap={},tx_pcap={}", from.display(), to.display());
    let config = DpdkConfig { mtu: Some(9000), ..DpdkConfig::of(&device) };
    let mut port = Port::with(dpdk, &config, Pool::for_devices(FRAMES, MTU + 14).with_long(32, 9022));
    let came = port.receive(frames.len());
    assert!(came == frames, "{:?}", came.iter().map(Vec::len).collect::<Vec<_>>());
    port.send(&frames);
    let statistics = port.device.statistics();
    assert_eq!((statistics.rx_copied, statistics.tx_copied), (20, 0), "those beyond a frame's room");
    // The driver does not declare that it sends frames of several mbufs.
    assert_eq!(port.pool.drops().get(DropReason::MessageTooLong), 20);
    port.close();
    let short: Vec<_> = frames.into_iter().filter(|frame| frame.len() <= 1514).collect();
    assert!(read_pcap(&to) == short);
    Ok(())
}

fn too_long(dpdk: &mut Dpdk) -> TestResult {
    let folder = support::folder("long");
    let (from, to) = (folder.join("in.pcap"), folder.join("out.pcap"));
    let frames = [frame(0, 100), frame(1, 5000), frame(2, 200)];
    write_pcap(&from, &frames);
    let device = format!("net_pcap0,rx_pcap={},tx_pcap={}", from.display(), to.display());
    // No long buffers: what does not fit a frame is truncated for this pool.
    let config = DpdkConfig { mtu: Some(9000), ..DpdkConfig::of(&device) };
    let mut port = Port::open(dpdk, &config);
    assert_eq!(port.receive(2), [frames[0].clone(), frames[2].clone()]);
    assert_eq!(port.pool.drops().get(DropReason::ReceiveTruncated), 1);
    let mut batch = Batch::new();
    for bytes in [13, 60] {
        batch.push(support::buffer(&mut port.pool, &vec![1; bytes]));
    }
    assert_eq!((port.device.tx(&mut port.pool, &mut batch)?, batch.len()), (2, 0));
    assert_eq!(port.pool.drops().get(DropReason::SendRefused), 1);
    port.close();
    Ok(())
}

fn memif_port(dpdk: &Dpdk, folder: &Path, role: &str) -> Port {
    let socket = folder.join("memif.sock");
    let device = format!("net_memif0,role={role},socket={},socket-abstract=no", socket.display());
    Port::open(dpdk, &DpdkConfig::of(&device))
}

/// The other process: sends back whatever comes.
pub fn echo(folder: &Path) -> ExitCode {
    let dpdk = Dpdk::start().unwrap();
    let mut port = memif_port(&dpdk, folder, "client");
    println!("open");
    loop {
        let mut batch = Batch::new();
        port.device.rx(&mut port.pool, &mut batch).unwrap();
        while !batch.is_empty() {
            port.device.tx(&mut port.pool, &mut batch).unwrap();
        }
    }
}

fn memif(dpdk: &mut Dpdk) -> TestResult {
    let folder = support::folder("memif");
    let mut port = memif_port(dpdk, &folder, "server");
    let mut other =
        Command::new(std::env::current_exe()?).arg(ECHO).arg(&folder).stdout(Stdio::piped()).spawn()?;
    let mut line = String::new();
    BufReader::new(other.stdout.take().unwrap()).read_line(&mut line)?;
    assert_eq!(line, "open\n");
    while !port.device.statistics().hardware.link_up {
        std::thread::yield_now();
    }
    let frames: Vec<Vec<u8>> = (0..2000).map(|number| frame(number, 60 + number % 1400)).collect();
    for some in frames.chunks(100) {
        port.send(some);
        assert!(port.receive(some.len()) == some);
    }
    other.kill()?;
    other.wait()?;
    port.close();
    Ok(())
}
