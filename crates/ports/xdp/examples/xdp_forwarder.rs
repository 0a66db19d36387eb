//! Hands frames from one interface to another on AF_XDP in native mode, and does nothing else: what a
//! gateway's rate between the same interfaces is compared with (`make bench-ports`).
//!
//! `xdp_forwarder FROM TO NETWORK`: takes IPv4 packets to NETWORK. Says "ready", and runs until it is ended.

#![allow(clippy::print_stdout, reason = "it says when it is ready")]

use std::error::Error;
use std::io::Write;
use std::sync::Arc;
use testudo_link::FrameDevice;
use testudo_packet::{Batch, Pool};
use testudo_port_xdp::{Filter, FilterConfig, Network, SharedUmem, Taken, XdpConfig, XdpDevice, XdpMode};

const BUFFERS: usize = 16_384;
/// An Ethernet frame with a packet of 1500 bytes.
const FRAME_BYTES: usize = 1514;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().collect();
    let [_, from, to, network] = arguments.as_slice() else {
        return Err("usage: xdp_forwarder FROM TO NETWORK".into());
    };
    let (address, prefix_bits) = network.split_once('/').ok_or("NETWORK is like 10.0.2.0/24")?;
    let network = Network { address: address.parse()?, prefix_bits: prefix_bits.parse()?, taken: Taken::All };
    let mut pool = Pool::for_devices(BUFFERS, FRAME_BYTES);
    let umem = SharedUmem::new();
    let mut open = |interface: &str, networks| {
        let config = FilterConfig { networks, ..FilterConfig::default() };
        let filter = Arc::new(Filter::attach(interface, XdpMode::Native, &config)?);
        XdpDevice::open(&filter, &umem, &mut pool, &XdpConfig::default())
    };
    let (mut from, mut to) = (open(from, vec![network])?, open(to, Vec::new())?);
    println!("ready");
    std::io::stdout().flush()?;
    let mut batch = Batch::new();
    loop {
        from.rx(&mut pool, &mut batch)?;
        while !batch.is_empty() {
            // What does not fit the ring now is tried again: the receive ring drops meanwhile.
            to.tx(&mut pool, &mut batch)?;
        }
        // Frames that were sent come back from the kernel here.
        let mut none = Batch::new();
        to.rx(&mut pool, &mut none)?;
        pool.recycle_all(&mut none);
    }
}
