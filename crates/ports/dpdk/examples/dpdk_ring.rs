//! What the port costs alone: packets come from a ring of DPDK's and go into it, through the link layer,
//! without a copy and without cryptography (`make bench-ports`).
//!
//! `dpdk_ring FRAME_BYTES SECONDS`: a frame's bytes with its check sequence. Prints packets a second, and
//! ticks of the time stamp counter to receive and to send one packet, medians of slices of the time.

#![allow(clippy::print_stdout, clippy::cast_precision_loss, reason = "a measurement prints what it measured")]

use std::error::Error;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};
use testudo_link::outside::{Change, OutsideResolver};
use testudo_link::routes::{NextHop, Route};
use testudo_link::{FrameDevice, LinkConfig, LinkPort};
use testudo_packet::{Batch, Pool, Port, ticks};
use testudo_port_dpdk::{DpdkConfig, DpdkDevice, Eal, EalConfig, FILE, Plugin};
use testudo_wire::ip::OuterHeader;
use testudo_wire::protocol;

const BUFFERS: usize = 4096;
/// An Ethernet frame with a packet of 1500 bytes.
const FRAME_BYTES: usize = 1514;
/// What a frame has beside its packet: Ethernet's header and check sequence.
const AROUND_PACKET: usize = 18;
/// Packets that circulate.
const PACKETS: usize = 64;
/// Rounds of a slice.
const ROUNDS: u32 = 2000;
const SOURCE: Ipv4Addr = Ipv4Addr::new(10, 0, 1, 1);
const ROUTER: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 1, 254));

type Outcome<T> = Result<T, Box<dyn Error>>;

/// A port on a ring, whose router is the port itself.
fn open(pool: &mut Pool) -> Outcome<LinkPort<DpdkDevice, OutsideResolver>> {
    // Below target/release/examples: the plugin is a folder higher.
    let folder = std::env::current_exe()?;
    let plugin = folder.ancestors().skip(1).map(|folder| folder.join(FILE)).find(|file| file.exists());
    let arguments = ["--no-huge", "-m", "128"].map(str::to_owned).to_vec();
    let config = EalConfig { arguments, pci: Vec::new() };
    let eal = Eal::start(Plugin::open(plugin.as_deref())?, &config)?;
    let config = DpdkConfig { busy_poll: true, ..DpdkConfig::of("net_ring0") };
    let device = DpdkDevice::open(&eal, pool, &config)?;
    let (sender, changes) = channel();
    let mac = device.mac();
    let answer = move |address| {
        // The port that listens is gone only when nobody asks.
        let _ended = sender.send(Change::Neighbour { address, mac, is_reachable: true });
    };
    let route = |network: IpAddr, prefix_bits, next_hop| Route { network, prefix_bits, next_hop, metric: 0 };
    let routes = vec![
        route(ROUTER, 32, NextHop::OnLink),
        route(Ipv4Addr::UNSPECIFIED.into(), 0, NextHop::Gateway(ROUTER)),
    ];
    let link = LinkConfig { routes, ..LinkConfig::default() };
    let started = Instant::now();
    let resolver = OutsideResolver::new(changes, Box::new(answer));
    Ok(LinkPort::new(device, resolver, &link, Box::new(move || started.elapsed())))
}

/// Sends one packet to a host of the far network.
fn send_one(port: &mut impl Port, pool: &mut Pool, host: u8, packet_bytes: usize) -> Outcome<()> {
    let mut buffer = pool.pop().ok_or("the pool is empty")?;
    let header = OuterHeader {
        source: SOURCE.into(),
        destination: Ipv4Addr::new(10, 0, 2, host).into(),
        protocol: protocol::UDP,
        traffic_class: 0,
        hop_limit: 64,
        dont_fragment: true,
    };
    let area = &mut buffer.receive_area()[..packet_bytes];
    area.fill(0);
    header.write(area, packet_bytes, 0)?;
    buffer.set_len(packet_bytes);
    let mut batch = Batch::from_iter([buffer]);
    port.tx(pool, &mut batch)?;
    pool.recycle_all(&mut batch);
    Ok(())
}

/// Takes from the port what is there, and has it sent again. Returns packets, and ticks of both.
fn round(port: &mut impl Port, pool: &mut Pool, batch: &mut Batch) -> Outcome<(usize, u64, u64)> {
    let began = ticks();
    let received = port.rx(pool, batch)?;
    let between = ticks();
    while !batch.is_empty() {
        port.tx(pool, batch)?;
    }
    Ok((received, between.wrapping_sub(began), ticks().wrapping_sub(between)))
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}

fn main() -> Outcome<()> {
    let arguments: Vec<String> = std::env::args().collect();
    let [_, frame_bytes, seconds] = arguments.as_slice() else {
        return Err("usage: dpdk_ring FRAME_BYTES SECONDS".into());
    };
    let packet_bytes = frame_bytes.parse::<usize>()?.saturating_sub(AROUND_PACKET);
    let time = Duration::from_secs_f64(seconds.parse()?);
    let mut pool = Pool::for_devices(BUFFERS, FRAME_BYTES);
    let mut port = open(&mut pool)?;
    let mut batch = Batch::new();
    // The first packet waits until its next hop is known; the others follow at once.
    for host in 0..PACKETS {
        send_one(&mut port, &mut pool, u8::try_from(host)?, packet_bytes)?;
        round(&mut port, &mut pool, &mut batch)?;
    }
    let (mut rates, mut receive, mut transmit) = (Vec::new(), Vec::new(), Vec::new());
    let started = Instant::now();
    while started.elapsed() < time {
        let (mut packets, mut rx, mut tx) = (0, 0, 0);
        let slice = Instant::now();
        for _ in 0..ROUNDS {
            let (count, received, sent) = round(&mut port, &mut pool, &mut batch)?;
            (packets, rx, tx) = (packets + count, rx + received, tx + sent);
        }
        if packets < PACKETS {
            return Err("packets do not circulate".into());
        }
        rates.push(packets as f64 / slice.elapsed().as_secs_f64());
        receive.push(rx as f64 / packets as f64);
        transmit.push(tx as f64 / packets as f64);
    }
    let (rate, receive, transmit) = (median(rates), median(receive), median(transmit));
    let both = receive + transmit;
    let stages = format!("\"receive\": {receive:.1}, \"transmit\": {transmit:.1}");
    println!("{{\"packets_per_second\": {rate:.0}, \"cycles_per_packet\": {both:.1}, {stages}}}");
    Ok(())
}
