//! Packets of one SA that several workers open, and that leave in the order of their numbers.

use crate::support::gateway::{PoolSize, portable};
use crate::support::packet::number;
use crate::support::{Gateway, Handmade, Inner, LeaseTwin, PortHandle, Sealer, Side, TunnelSpec};
use fastrand::Rng;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use testudo_crypto::Suite;
use testudo_gateway::{Installed, SaChange, Update, Worker};
use testudo_ipsec::{Moment, ORDER_SPAN, PATIENCE, ReleaseCost};
use testudo_packet::{BATCH_SIZE, Batch, DropReason, Pool, Port, PortCounters, PortError};

fn spec() -> TunnelSpec {
    TunnelSpec::new(0, Suite::AES128GCM16)
}

/// A port where packets come from, and what has left by each time.
struct Watched {
    port: Box<dyn Port>,
    protected: PortHandle,
    departed: Arc<Mutex<Vec<usize>>>,
}

impl Port for Watched {
    fn name(&self) -> &str {
        self.port.name()
    }

    fn rx(&mut self, pool: &mut Pool, batch: &mut Batch) -> Result<usize, PortError> {
        let received = self.port.rx(pool, batch)?;
        if received > 0 {
            self.departed.lock().expect("no test panics").push(self.protected.departed());
        }
        Ok(received)
    }

    fn tx(&mut self, pool: &mut Pool, batch: &mut Batch) -> Result<usize, PortError> {
        self.port.tx(pool, batch)
    }

    fn joins(&self) -> bool {
        self.port.joins()
    }

    fn counters(&self) -> PortCounters {
        self.port.counters()
    }
}

/// Workers of one gateway, their common link to the protected side, and the peer.
struct Bench<const N: usize> {
    workers: [Gateway; N],
    protected: PortHandle,
    /// How many packets had left by each time when some came.
    departed: Arc<Mutex<Vec<usize>>>,
    installed: Installed,
    peer: Sealer,
}

impl<const N: usize> Bench<N> {
    fn new() -> Self {
        let (protected, departed) = (PortHandle::default(), Arc::default());
        let (mut workers, mut ends) = (Vec::new(), Vec::new());
        for _ in 0..N {
            let (policies, pool) = (spec().policies(Side::B), PoolSize(512, 2048));
            let link = PortHandle::default();
            let watched = |port| {
                let port = Watched { port, protected: protected.clone(), departed: Arc::clone(&departed) };
                (portable(), Box::new(port) as Box<dyn Port>)
            };
            let gateway = Gateway::equipped(protected.clone(), link, policies, pool, watched);
            let Gateway { mut worker, protected, unprotected, clock } = gateway;
            worker.release_in_order();
            workers.push(worker);
            ends.push((protected, unprotected, clock));
        }
        let tunnel = spec().install(Side::B, &mut LeaseTwin::new(1 << 40), None);
        let update = Update { install: vec![tunnel], ..Update::default() };
        let (_, outcome) = Worker::update_all(&mut workers, update, Moment::default()).remove(0);
        let whole = workers.into_iter().zip(ends).map(|(worker, (protected, unprotected, clock))| Gateway {
            worker,
            protected,
            unprotected,
            clock,
        });
        let workers: Vec<_> = whole.collect();
        let peer = Sealer::new(&spec(), Side::A);
        let installed = outcome.expect("there is room");
        Self { workers: workers.try_into().ok().expect("as many"), protected, departed, installed, peer }
    }

    fn datagram(&mut self, sequence: u64) -> Vec<u8> {
        let source = format!("10.0.{}.{}", sequence >> 8 & 255, sequence & 255);
        let packet = Inner::udp(&source, "172.16.0.2", 100).bytes();
        self.peer.seal(sequence, &Handmade::carrying(&packet))
    }

    fn push(&mut self, worker: usize, sequences: impl IntoIterator<Item = u64>) {
        for sequence in sequences {
            let datagram = self.datagram(sequence);
            self.workers[worker].unprotected.push(datagram);
        }
    }

    fn turns(&mut self) {
        for _ in 0..4 {
            for worker in &mut self.workers {
                worker.turn();
            }
        }
    }

    fn advance(&self, by: Duration) {
        self.workers.iter().for_each(|worker| worker.clock.advance(by));
    }

    /// What has left: the low 16 bits of the numbers.
    fn left(&self) -> Vec<u64> {
        self.protected.take().iter().map(|packet| u64::from(number(packet, true))).collect()
    }

    fn cost(&self) -> ReleaseCost {
        self.installed.inbound.counters.release_cost().expect("they are released in order")
    }

    fn assert_settled(&self) {
        for worker in &self.workers {
            assert!(!worker.worker.waits_for_order());
            worker.assert_settled();
        }
    }
}

#[test]
fn packets_leave_in_the_order_of_their_numbers_whichever_worker_opens_them_first() {
    let seed = 4303;
    let mut random = Rng::with_seed(seed);
    for round in 0..20 {
        let mut bench = Bench::<3>::new();
        // A third of them is less than a quarter of a pool.
        let (count, block) = (360, random.u64(1..65));
        for sequence in 1..=count {
            bench.push((sequence / block % 3) as usize, [sequence]);
        }
        let mut left = Vec::new();
        while left.len() < count as usize {
            let worker = random.usize(..3);
            // A port that takes a few holds the others up, and changes no order.
            let room = random.bool().then(|| random.usize(..40));
            bench.protected.set_room(room);
            bench.workers[worker].turn();
            left.extend(bench.left());
        }
        assert!(left.into_iter().eq(1..=count), "seed {seed}, round {round}, blocks of {block}");
        bench.turns();
        bench.assert_settled();
        assert_eq!(bench.cost().passed_over, 0);
        let counted = bench.installed.inbound.counters.reordered().expect("it is shared");
        assert!(counted.reordered > 0, "they were opened in another order: {counted:?}");
    }
}

/// By what order means: a packet leaves after a later one only if it was not opened by then. With losses,
/// delays and packets that are dropped after they were opened.
#[test]
fn no_packet_leaves_after_a_later_one_unless_it_was_opened_after_that() {
    let seed = 4737;
    let mut random = Rng::with_seed(seed);
    let (mut late, mut lost) = (0, 0);
    for round in 0..20 {
        let mut bench = Bench::<3>::new();
        let (mut sequence, mut event) = (0, 0);
        let mut delayed: Vec<(u64, usize, u64)> = Vec::new();
        let mut queued: [Vec<u64>; 3] = Default::default();
        let (mut opened, mut left) = (BTreeMap::new(), Vec::<(u64, u64)>::new());
        for step in 0..260 {
            for _ in 0..if step < 200 { random.usize(..40) } else { 0 } {
                sequence += 1;
                let worker = (sequence / 8 % 3) as usize;
                match random.usize(..100) {
                    0 => lost += 1,
                    // Up to three milliseconds: some come in time.
                    1 => delayed.push((step + random.u64(1..30), worker, sequence)),
                    2 => {
                        let dummy = bench.peer.seal(sequence, &Handmade::with_payload(vec![0; 40], 59));
                        bench.workers[worker].unprotected.push(dummy);
                    }
                    _ => {
                        bench.push(worker, [sequence]);
                        queued[worker].push(sequence);
                    }
                }
            }
            for (_, worker, sequence) in delayed.extract_if(.., |(due, ..)| *due <= step) {
                bench.push(worker, [sequence]);
                queued[worker].push(sequence);
            }
            // A turn releases at most a block, so that there must be more of them than of these.
            let first = random.usize(..3);
            for worker in (0..12).map(|n| (first + n) % 3) {
                event += 1;
                bench.workers[worker].turn();
                opened.extend(queued[worker].drain(..).map(|sequence| (sequence, event)));
                left.extend(bench.left().into_iter().map(|sequence| (sequence, event)));
            }
            bench.advance(Duration::from_micros(100));
        }
        let mut highest = (0, 0);
        for &(sequence, event) in &left {
            if sequence < highest.0 {
                late += 1;
                let opened = opened[&sequence];
                assert!(opened > highest.1, "seed {seed}, round {round}: {sequence} after {}", highest.0);
            } else {
                highest = (sequence, event);
            }
        }
        assert!(left.len() == opened.len() && delayed.is_empty(), "all that were opened have left, once");
        bench.assert_settled();
        let longest = Duration::from_micros(bench.cost().longest_wait_us);
        assert!(longest <= 2 * PATIENCE, "seed {seed}, round {round}: {:?}", bench.cost());
    }
    assert!(late > 50 && lost > 50, "{late} late, {lost} lost");
}

#[test]
fn a_lost_packet_holds_the_others_up_for_a_millisecond_and_is_late_after_that() {
    let mut bench = Bench::<2>::new();
    bench.push(0, [1, 2]);
    bench.push(1, [4, 5]);
    bench.turns();
    assert_eq!(bench.left(), [1, 2]);
    bench.advance(PATIENCE - Duration::from_micros(1));
    bench.turns();
    assert!(bench.left().is_empty() && bench.workers[1].worker.waits_for_order());
    bench.advance(Duration::from_micros(1));
    bench.turns();
    assert_eq!(bench.left(), [4, 5]);
    assert_eq!(bench.cost(), ReleaseCost { waited: 2, longest_wait_us: 1000, passed_over: 1 });
    // It comes after all: at once, and out of order.
    bench.push(0, [3, 6]);
    bench.turns();
    assert_eq!(bench.left(), [3, 6]);
    bench.assert_settled();
}

#[test]
fn nobody_waits_for_a_packet_that_policy_drops() {
    let mut bench = Bench::<2>::new();
    // A dummy: authentic, and nothing to deliver (RFC 4303 2.6).
    let dummy = bench.peer.seal(1, &Handmade::with_payload(vec![0; 40], 59));
    bench.push(1, [2, 3]);
    bench.workers[0].unprotected.push(dummy);
    bench.turns();
    assert_eq!(bench.left(), [2, 3]);
    assert_eq!(bench.workers[0].drops(DropReason::DummyPacket), 1);
    bench.assert_settled();
}

#[test]
fn forged_and_repeated_numbers_move_no_order() {
    let mut bench = Bench::<2>::new();
    bench.push(1, [2]);
    for forged in [1, 3, 900, 5000, u64::from(u32::MAX)] {
        let mut datagram = bench.datagram(forged);
        *datagram.last_mut().expect("an ICV") ^= 1;
        bench.workers[0].unprotected.push(datagram);
    }
    // A copy, at the other worker, while the packet waits.
    bench.push(0, [2]);
    bench.turns();
    assert!(bench.left().is_empty());
    bench.push(0, [1]);
    bench.turns();
    assert_eq!((bench.left(), bench.cost().passed_over), (vec![1, 2], 0));
    bench.assert_settled();
}

#[test]
fn a_peer_that_leaves_gaps_is_waited_for_within_the_ring_alone() {
    let mut bench = Bench::<2>::new();
    let far = 1 << 31;
    bench.push(0, [1, 3]);
    bench.push(1, [far, far + ORDER_SPAN]);
    bench.workers[0].turn();
    assert_eq!(bench.left(), [1]);
    bench.workers[1].turn();
    // What 3 waits for cannot come any more; `far` was pushed out of the ring by what came after it.
    bench.turns();
    assert_eq!(bench.left(), [far & 0xFFFF, 3]);
    bench.advance(PATIENCE);
    bench.turns();
    assert_eq!(bench.left(), [(far + ORDER_SPAN) & 0xFFFF]);
    bench.assert_settled();
}

#[test]
fn a_worker_that_hangs_holds_the_others_up_for_two_milliseconds() {
    let mut bench = Bench::<2>::new();
    bench.push(1, [2, 4]);
    bench.push(0, [1, 3]);
    bench.workers[1].turn();
    bench.workers[0].turn();
    assert_eq!(bench.left(), [1], "2 is the other worker's, which hangs from now on");
    let others = |bench: &mut Bench<2>| {
        for _ in 0..4 {
            bench.workers[0].turn();
        }
        bench.left()
    };
    bench.advance(PATIENCE);
    assert!(others(&mut bench).is_empty());
    bench.advance(PATIENCE);
    assert_eq!(others(&mut bench), [3]);
    bench.turns();
    assert_eq!(bench.left(), [2, 4], "it lives: the one is late, the other is not");
    bench.assert_settled();
}

/// A block of numbers costs no more turns than one.
#[test]
fn a_worker_that_hangs_is_passed_over_at_once_whatever_it_has() {
    let mut bench = Bench::<2>::new();
    bench.push(1, 2..=65);
    bench.push(0, [1, 66, 67]);
    for _ in 0..4 {
        bench.workers[1].turn();
    }
    bench.workers[0].turn();
    assert_eq!(bench.left(), [1], "64 are the other worker's, which hangs from now on");
    bench.advance(2 * PATIENCE);
    bench.workers[0].turn();
    assert_eq!(bench.left(), [66, 67]);
    assert_eq!(bench.cost().passed_over, 1);
    bench.turns();
    assert_eq!(bench.left(), (2..=65).collect::<Vec<_>>(), "it lives: they are late");
    bench.assert_settled();
}

/// What waits has buffers: a lost number must not cost all of them.
/// A worker has up to four batches a turn. If it released them at its end, others would wait for all of it,
/// and could not make up for a delay.
#[test]
fn a_batch_whose_turn_it_is_leaves_before_the_next_one_is_received() {
    let mut bench = Bench::<2>::new();
    let batches = [0, 1, 2, 3].map(|n| n * BATCH_SIZE);
    bench.push(0, 1..=4 * BATCH_SIZE as u64);
    bench.workers[0].turn();
    assert_eq!(*bench.departed.lock().expect("no test panics"), batches);
    assert_eq!(bench.left().len(), 4 * BATCH_SIZE);
    bench.assert_settled();
}

#[test]
fn packets_wait_in_a_quarter_of_the_pool_at_most() {
    let mut bench = Bench::<2>::new();
    bench.push(0, 2..400);
    for _ in 0..10 {
        bench.workers[0].turn();
    }
    let left = bench.left();
    assert!(left.iter().copied().eq(2..2 + left.len() as u64) && left.len() == 398, "{}", left.len());
    bench.assert_settled();
}

#[test]
fn packets_that_wait_for_their_turn_leave_when_their_sa_goes_and_are_named_when_the_gateway_ends() {
    let mut bench = Bench::<2>::new();
    bench.push(0, [2, 3]);
    bench.workers[0].turn();
    let now = bench.workers[0].now();
    let remove = SaChange::RemoveInbound(spec().index(), spec().spi_from(Side::A));
    bench.workers[0].worker.change_sa(remove, now).expect("it has the SA");
    bench.workers[0].turn();
    assert_eq!(bench.left(), [2, 3]);
    bench.push(1, [5]);
    bench.workers[1].turn();
    let worker = &mut bench.workers[1].worker;
    assert!(worker.waits_for_order() && !worker.is_finished());
    worker.discard_waiting();
    assert_eq!(worker.pool().drops().get(DropReason::ShuttingDown), 1);
    bench.assert_settled();
}
