//! Packets go through I/O threads whole and in order, and no buffer is lost on the way.

use std::time::{Duration, Instant};

use testudo_packet::ticks;

use super::*;
use crate::generator::{Arrivals, Feed, MemoryPorts, Sizes, Stamp, Timer, Traffic, memory_ports};

const PATIENCE: Duration = Duration::from_secs(20);
const ALL: Filter = Filter { network: 0, mask: 0 };
const NONE: Filter = Filter { network: 1, mask: u32::MAX };

fn packet() -> Vec<u8> {
    let templates = Traffic::of(Sizes::Bytes(128)).templates().unwrap();
    let (head, tail) = templates.get(0);
    [head, tail].concat()
}

#[test]
fn a_filter_passes_whole_packets_to_its_network_and_says_what_is_wrong_with_others() {
    let hosts = Filter::to(Ipv4Addr::new(172, 16, 0, 0), 12);
    assert_eq!(hosts.refuses(&packet()), None);
    let changed = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut packet = packet();
        change(&mut packet);
        hosts.refuses(&packet)
    };
    assert_eq!(changed(&|packet| packet[8] ^= 1), Some(DropReason::BadChecksum));
    assert_eq!(changed(&|packet| packet.truncate(60)), Some(DropReason::Truncated));
    assert_eq!(changed(&|packet| packet[0] = 0x15), Some(DropReason::NotIp));
    assert_eq!(changed(&|packet| packet.clear()), Some(DropReason::Truncated));
    for (network, length, passes) in
        [([172, 16, 0, 0], 32, true), ([172, 16, 0, 1], 32, false), ([9; 4], 0, true)]
    {
        let filter = Filter::to(Ipv4Addr::from(network), length);
        assert_eq!(filter.refuses(&packet()).is_none(), passes, "{network:?}/{length}");
    }
    assert_eq!(NONE.refuses(&packet()), Some(DropReason::NoPolicy));
}

#[test]
fn a_worker_that_checks_itself_drops_what_does_not_pass_and_keeps_the_order() {
    struct Mixed(Vec<Vec<u8>>);
    impl Port for Mixed {
        fn name(&self) -> &'static str {
            "mixed"
        }

        fn rx(&mut self, pool: &mut Pool, batch: &mut Batch) -> Result<usize, PortError> {
            let count = self.0.len();
            for packet in self.0.drain(..) {
                let mut buffer = pool.pop().unwrap();
                buffer.receive_area()[..packet.len()].copy_from_slice(&packet);
                buffer.set_len(packet.len());
                batch.push(buffer);
            }
            Ok(count)
        }

        fn tx(&mut self, _: &mut Pool, _: &mut Batch) -> Result<usize, PortError> {
            Ok(0)
        }

        fn joins(&self) -> bool {
            false
        }

        fn counters(&self) -> PortCounters {
            PortCounters::default()
        }
    }
    let numbered = |number: u8| {
        let mut packet = packet();
        packet[40] = number;
        packet
    };
    let mut broken = numbered(1);
    broken[10] ^= 1;
    let mixed = Mixed(vec![numbered(0), broken, numbered(2), numbered(3)]);
    let mut port = Checked::new(mixed, Filter::to(Ipv4Addr::new(172, 16, 0, 0), 12));
    let (mut pool, mut batch) = (Pool::new(8, 2048), Batch::new());
    assert_eq!(port.rx(&mut pool, &mut batch).unwrap(), 3);
    let numbers: Vec<u8> = batch.iter().map(|buffer| buffer.bytes()[40]).collect();
    assert_eq!((numbers, pool.drops().get(DropReason::BadChecksum)), (vec![0, 2, 3], 1));
    assert_eq!(pool.in_use(), 3, "the broken one is back");
}

/// Threads between the generator and the sink, and gateways that only hand packets on.
struct Path {
    threads: IoThreads,
    ports: Vec<(InPort, OutPort)>,
    pools: Vec<Pool>,
    generator: Feed,
    arrivals: Arrivals,
}

impl Path {
    fn new(gateways: usize, threads: usize, filters: [Filter; 2]) -> Self {
        let templates = Traffic::of(Sizes::Random).templates().unwrap();
        let MemoryPorts { feed, returns: sink, generator } = memory_ports(&templates, Timer::start());
        let processors = vec![0; threads];
        let ends = Ends { feed, sink, filters };
        let (threads, ports) =
            IoThreads::start(ends, gateways, &processors, &Busy::new(ticks), true).unwrap();
        let pools = (0..gateways).map(|_| Pool::new(1024, 2048)).collect();
        Self { threads, ports, pools, generator, arrivals: Arrivals::new(1) }
    }

    fn send(&mut self, numbers: std::ops::Range<u64>) {
        numbers.for_each(|sequence| {
            assert!(self.generator.send(Stamp { trial: 1, sequence, sent_ns: 0 }));
        });
    }

    fn turn(&mut self) {
        let mut batch = Batch::new();
        for ((into, out), pool) in self.ports.iter_mut().zip(&mut self.pools) {
            into.rx(pool, &mut batch).unwrap();
            while !batch.is_empty() {
                out.tx(pool, &mut batch).unwrap();
            }
            out.rx(pool, &mut batch).unwrap();
        }
        self.generator.collect(&mut self.arrivals, 4096);
        std::thread::yield_now();
    }

    fn run_until(&mut self, is_reached: impl Fn(&Self) -> bool) {
        let begun = Instant::now();
        while !is_reached(self) {
            assert!(begun.elapsed() < PATIENCE, "{} came", self.arrivals.received());
            self.turn();
        }
    }
}

#[test]
fn all_packets_come_through_in_order_and_all_buffers_come_back() {
    for (gateways, threads) in [(1, 1), (1, 2), (2, 1), (2, 2), (2, 3), (1, 7)] {
        let mut path = Path::new(gateways, threads, [ALL; 2]);
        for round in 0..5 {
            path.send(1000 * round..1000 * (round + 1));
            path.run_until(|path| path.arrivals.received() == 1000 * (round + 1));
        }
        path.run_until(|path| !path.threads.is_busy());
        path.turn();
        let Path { ports, pools, generator, arrivals, threads, .. } = &path;
        assert_eq!((arrivals.received(), arrivals.reordered(), arrivals.duplicated()), (5000, 0, 0));
        assert_eq!((generator.faults(), threads.refused()), ((0, 0), 0));
        for ((into, out), pool) in ports.iter().zip(pools) {
            let (into, out) = (into.counters(), out.counters());
            assert_eq!((into.rx_packets, out.tx_packets, into.rx_bytes), (5000, 5000, out.tx_bytes));
            // What is posted is with the thread; nothing else is missing.
            assert!(
                pool.in_use() <= BURSTS * BURST,
                "{gateways} gateways, {threads} threads: {}",
                pool.in_use(),
                threads = threads.threads.len()
            );
        }
    }
}

#[test]
fn what_the_filter_of_a_thread_refuses_is_counted_and_goes_no_further() {
    for (gateways, filters, received) in [(1, [NONE, ALL], 0), (2, [ALL, NONE], 500)] {
        let mut path = Path::new(gateways, 1, filters);
        path.send(0..500);
        path.run_until(|path| path.threads.refused() == 500);
        path.run_until(|path| !path.threads.is_busy());
        path.turn();
        assert_eq!(path.arrivals.received(), 0);
        assert_eq!(path.ports[0].0.counters().rx_packets, received);
        assert!(path.pools.iter().all(|pool| pool.in_use() <= BURSTS * BURST));
    }
}

#[test]
fn a_worker_that_takes_nothing_stops_the_threads_and_loses_nothing_that_they_have() {
    let mut path = Path::new(1, 1, [ALL; 2]);
    let (into, pool) = (&mut path.ports[0].0, &mut path.pools[0]);
    into.post(pool);
    // As many as the ring takes, and a burst that the thread has no buffers for.
    let sent = BURSTS * BURST + 40;
    path.send(0..sent as u64);
    path.run_until(|path| path.arrivals.received() == sent as u64);
    assert_eq!(path.arrivals.reordered(), 0);
}
