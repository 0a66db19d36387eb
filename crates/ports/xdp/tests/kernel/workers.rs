//! The queues of one interface divided among workers, each a thread with a device and a pool of its own.
//!
//! ```text
//!   namespace left: UDP sockets ── wide0 ═══ veth, 4 queues ═══ wide0 ──┬─ queues 0, 2 ── worker 0
//!                                                                       └─ queues 1, 3 ── worker 1
//! ```

use crate::support::{Sites, cable_with_queues, config, esp, pool, send, udp_payload};
use std::collections::BTreeMap;
use std::net::UdpSocket;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use testudo_judge::harness::{Suite, TestResult};
use testudo_link::FrameDevice;
use testudo_packet::{Batch, Pool};
use testudo_port_xdp::{Filter, SharedUmem, XdpConfig, XdpDevice, XdpMode};

const FLOWS: u32 = 32;
const DATAGRAMS: u32 = 20;

pub fn tests(suite: Suite<'_, Sites>) -> Suite<'_, Sites> {
    suite.test("workers_divide_the_queues_of_an_interface_and_each_frame_comes_to_one", divided)
}

fn divided(sites: &mut Sites) -> TestResult {
    let (left, right) = (&sites.left, &sites.right);
    cable_with_queues((left, "wide0"), (right, "wide0"), "4");
    left.address("wide0", "10.9.4.1/24")?;
    right.address("wide0", "10.9.4.2/24")?;
    let config = XdpConfig { queues: vec![0, 1, 2, 3], ..XdpConfig::default() };
    let open = || {
        let filter = Arc::new(Filter::attach("wide0", XdpMode::Native, &self::config()).unwrap());
        let open = |config: XdpConfig| {
            let mut pool = pool();
            let device = XdpDevice::open(&filter, &SharedUmem::new(), &mut pool, &config).unwrap();
            (device, pool)
        };
        config.divided(2).unwrap().into_iter().map(open).collect::<Vec<_>>()
    };
    let workers = right.within(open)?;
    let sockets =
        left.within(|| (0..FLOWS).map(|_| UdpSocket::bind("10.9.4.1:0").unwrap()).collect::<Vec<_>>())?;
    let came = AtomicUsize::new(0);
    let all = (FLOWS * DATAGRAMS) as usize;
    let outcomes: Vec<(Seen, XdpDevice, Pool)> = std::thread::scope(|scope| {
        let serve = |(device, pool): (XdpDevice, Pool)| scope.spawn(|| serve(device, pool, &came, all));
        let threads: Vec<_> = workers.into_iter().map(serve).collect();
        for number in 0..DATAGRAMS {
            for (flow, socket) in (0..).zip(&sockets) {
                socket.send_to(&esp(flow * DATAGRAMS + number, 64), "10.9.4.2:4500").unwrap();
            }
        }
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let mut owners = BTreeMap::new();
    for (worker, (seen, device, _)) in outcomes.iter().enumerate() {
        assert!(!seen.is_empty(), "worker {worker} has no flow");
        assert_eq!(device.readiness().len(), 2);
        for (flow, numbers) in seen {
            assert_eq!(*numbers, (0..DATAGRAMS).collect::<Vec<_>>(), "flow {flow} at worker {worker}");
            assert_eq!(owners.insert(*flow, worker), None, "flow {flow} has two workers");
        }
    }
    assert_eq!(owners.len(), FLOWS as usize);
    both_send(outcomes, left)
}

/// Numbers of the datagrams of each flow, as they came.
type Seen = BTreeMap<u32, Vec<u32>>;

/// Receives until both workers together have all.
fn serve(mut device: XdpDevice, mut pool: Pool, came: &AtomicUsize, all: usize) -> (Seen, XdpDevice, Pool) {
    let (mut seen, mut batch) = (Seen::new(), Batch::new());
    while came.load(Ordering::Acquire) < all {
        device.rx(&mut pool, &mut batch).unwrap();
        for buffer in batch.drain(..) {
            let number = u32::from_be_bytes(udp_payload(buffer.bytes())[4..8].try_into().unwrap());
            seen.entry(number / DATAGRAMS).or_default().push(number % DATAGRAMS);
            came.fetch_add(1, Ordering::AcqRel);
            pool.recycle(buffer);
        }
        std::thread::yield_now();
    }
    (seen, device, pool)
}

/// What each worker sends arrives, by a queue of its own.
fn both_send(workers: Vec<(Seen, XdpDevice, Pool)>, left: &testudo_lab::namespaces::Namespace) -> TestResult {
    let filter = left.within(|| Arc::new(Filter::attach("wide0", XdpMode::Native, &config()).unwrap()))?;
    let all = XdpConfig { queues: vec![0, 1, 2, 3], ..XdpConfig::default() };
    let mut receiving = pool();
    let opened = left.within(|| XdpDevice::open(&filter, &SharedUmem::new(), &mut receiving, &all))?;
    let mut receiver = opened?;
    for (worker, (_, mut device, mut pool)) in (0..).zip(workers) {
        let mut batch = Batch::new();
        let mut buffer = pool.pop().ok_or("a buffer")?;
        let frame = frame_of_esp(worker);
        buffer.receive_area()[..frame.len()].copy_from_slice(&frame);
        buffer.set_len(frame.len());
        batch.push(buffer);
        send(&mut device, &mut pool, &mut batch);
        assert_eq!(crate::support::receive(&mut receiver, &mut receiving, 1), [frame]);
    }
    Ok(())
}

/// A frame of ESP between no addresses in particular.
fn frame_of_esp(number: u32) -> Vec<u8> {
    let mut frame = vec![0xFF; 12];
    frame.extend([0x08, 0x00, 0x45, 0, 0, 84, 0, 0, 0, 0, 64, 50, 0, 0, 192, 0, 2, 1, 192, 0, 2, 2]);
    frame.extend(esp(number, 64));
    frame
}
