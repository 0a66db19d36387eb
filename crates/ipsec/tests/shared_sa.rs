//! One SA on several threads: each has its own [`Ipsec`] and its own engine, and all seal, or open, packets
//! of the same SA.

#![allow(clippy::expect_used, clippy::unwrap_used, clippy::cast_possible_truncation, reason = "test data")]

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use testudo_crypto::{Direction, Engine, KeyId, KeyMaterial, PortableEngine};
use testudo_ipsec::{
    Action, Dscp, Encapsulation, Endpoints, Forward, Fragmentation, InboundParameters, InstallError, Ipsec,
    IpsecProtocol, Lease, Lifetime, Limits, Mode, Moment, NumberSource, OutboundParameters, PacketRules,
    PeerHeard, Policy, Prefix, Prepared, ReplayWindow, SaParameters, SaSelectors, SaState, Selector,
    SharedWindow, Spd, Spent, TunnelIndex, TunnelParameters,
};
use testudo_packet::{BATCH_SIZE, Batch, Buffer, DropReason, Interface, Pool, StageClock};

const TUNNEL: TunnelIndex = TunnelIndex(0);
const SPI: u32 = 0x1001;
const NOW: Moment = Moment(Duration::from_secs(7));
/// Packets that each thread seals.
const EACH: usize = 1500;

fn key() -> KeyMaterial {
    KeyMaterial::new("aes128gcm16".parse().unwrap(), vec![7; 20].into()).unwrap()
}

fn sa() -> SaParameters {
    let (lifetime, spent) = (Lifetime::default(), Spent::default());
    SaParameters { spi: SPI, suite: key().suite(), esn: true, lifetime, spent }
}

fn outbound_under(numbers: &NumberSource) -> OutboundParameters {
    OutboundParameters { sa: sa(), numbers: numbers.clone(), iv_mask: 0, worker: None }
}

/// What one thread has: protocol, engine and buffers of its own.
struct Thread {
    ipsec: Ipsec,
    engine: PortableEngine,
    key: KeyId,
    pool: Pool,
    clock: StageClock,
    prepared: Prepared,
}

impl Thread {
    fn new(is_sender: bool, covered_by: Option<TunnelIndex>) -> Self {
        let prefix = |text: &str| Prefix::new(text.parse().unwrap(), 16).unwrap();
        let networks = ["10.1.0.0", "10.2.0.0"].map(prefix);
        let outer: [IpAddr; 2] = ["192.0.2.1", "192.0.2.2"].map(|text| text.parse().unwrap());
        let at = |n: usize| if is_sender { n } else { 1 - n };
        let selector = Selector::between(networks[at(0)], networks[at(1)]);
        let spd = Spd::new([Policy::new(selector, Action::Protect(TUNNEL))]).unwrap();
        let tunnel = TunnelParameters {
            name: "shared".into(),
            endpoints: Endpoints {
                local: outer[at(0)],
                remote: Some(outer[at(1)]),
                encapsulation: Encapsulation::Esp,
            },
            learn_remote: false,
            interface: Interface::MAIN,
            protocol: IpsecProtocol::Esp,
            mode: Mode::Tunnel,
            covered_by,
            covers: None,
            dscp: Dscp::Copy,
            rules: PacketRules::default(),
            path_mtu: 1500,
            fragmentation: Fragmentation::Before,
            non_first_fragments: false,
            acquires: false,
            peer_heard: PeerHeard::default(),
            keepalive: None,
            selectors: SaSelectors::default(),
        };
        let mut ipsec = Ipsec::new(Box::new(spd));
        ipsec.add_tunnel(TUNNEL, tunnel.selecting([selector]), NOW).unwrap();
        let mut engine = PortableEngine::new();
        let direction = if is_sender { Direction::Seal } else { Direction::Open };
        let key = engine.install(&key(), direction).unwrap();
        let (pool, clock) = (Pool::new(4 * BATCH_SIZE, 2048), StageClock::default());
        Self { ipsec, engine, key, pool, clock, prepared: Prepared::default() }
    }

    fn sender(numbers: &NumberSource) -> Self {
        let mut thread = Self::new(true, None);
        let added = thread.ipsec.add_outbound(TUNNEL, outbound_under(numbers), NOW).unwrap();
        assert!(thread.ipsec.use_outbound(TUNNEL, added.sa));
        thread
    }

    fn receiver() -> Self {
        Self::new(false, None)
    }

    fn buffer(&mut self, bytes: &[u8]) -> Buffer {
        let mut buffer = self.pool.create(bytes.len()).expect("a buffer is free");
        buffer.receive_area()[..bytes.len()].copy_from_slice(bytes);
        buffer.set_len(bytes.len());
        buffer
    }

    /// Has the engine do the jobs that are prepared.
    fn run(&mut self) {
        let jobs = &mut self.prepared.jobs;
        jobs.iter_mut().for_each(|job| job.key = self.key);
        assert_eq!(self.engine.submit(jobs), jobs.len());
    }

    /// Seals these packets and those that wait, as far as there are numbers; `send` has each datagram, in
    /// order.
    fn seal(&mut self, packets: &[Vec<u8>], mut send: impl FnMut(&[u8])) {
        self.ipsec.send_waiting(NOW, &mut self.pool, &mut self.prepared);
        let mut batch: Batch = packets.iter().map(|packet| self.buffer(packet)).collect();
        self.ipsec.outbound(&mut batch, NOW, &mut self.pool, &mut self.clock, &mut self.prepared);
        self.run();
        self.ipsec.finish_outbound(self.prepared.jobs.drain(..), NOW, &mut self.pool, |sealed, pool| {
            let datagram = sealed.into_buffer();
            send(datagram.bytes());
            pool.recycle(datagram);
        });
        self.ipsec.handed_over_all();
    }

    /// The same, in turns until none sends anything: a worker hands its share over before it takes more
    /// numbers.
    fn seal_in_turns(&mut self, packets: &[Vec<u8>], mut send: impl FnMut(&[u8])) {
        let mut packets = packets;
        loop {
            let mut has_sent = false;
            self.seal(packets, |datagram| {
                has_sent = true;
                send(datagram);
            });
            if !has_sent {
                break;
            }
            packets = &[];
        }
    }

    /// Has a packet in flight, until it is told to finish.
    fn begin(&mut self, packet: &[u8]) {
        let mut batch: Batch = std::iter::once(self.buffer(packet)).collect();
        self.ipsec.outbound(&mut batch, NOW, &mut self.pool, &mut self.clock, &mut self.prepared);
        assert_eq!(self.prepared.jobs.len(), 1);
    }

    fn finish(&mut self) {
        self.run();
        let jobs = self.prepared.jobs.drain(..);
        self.ipsec.finish_outbound(jobs, NOW, &mut self.pool, |sealed, pool| {
            pool.recycle(sealed.into_buffer());
        });
        self.ipsec.handed_over_all();
    }

    /// Opens these datagrams; returns the packets that come out.
    fn open(&mut self, datagrams: &[&Vec<u8>]) -> Vec<Vec<u8>> {
        let mut batch: Batch = datagrams.iter().map(|datagram| self.buffer(datagram)).collect();
        self.ipsec.inbound(&mut batch, NOW, &mut self.pool, &mut self.clock, &mut self.prepared);
        self.run();
        let (mut opened, count) = (Vec::new(), self.prepared.jobs.len());
        let (jobs, pool) = (&mut self.prepared.jobs, &mut self.pool);
        self.ipsec.finish_inbound(jobs, count, NOW, pool, &mut self.clock, |cleared, pool| {
            let packet = Forward::<testudo_ipsec::Protected>::into_buffer(cleared);
            opened.push(packet.bytes().to_vec());
            pool.recycle(packet);
        });
        opened
    }

    fn drops(&self) -> BTreeMap<DropReason, u64> {
        self.pool.drops().iter().filter(|(_, packets)| *packets > 0).collect()
    }
}

/// A packet of UDP, with its thread and number inside, and this total length.
fn packet(thread: usize, number: usize, bytes: usize, dont_fragment: bool) -> Vec<u8> {
    let mut packet = vec![0; bytes];
    packet[0] = 0x45;
    packet[2..4].copy_from_slice(&(bytes as u16).to_be_bytes());
    packet[6] = if dont_fragment { 0x40 } else { 0 };
    (packet[8], packet[9]) = (64, 17);
    packet[12..20].copy_from_slice(&[10, 1, 0, thread as u8, 10, 2, 0, 1]);
    let sum: u32 = packet[..20].chunks(2).map(|c| u32::from(u16::from_be_bytes([c[0], c[1]]))).sum();
    let sum = !((sum & 0xFFFF) + (sum >> 16)) as u16;
    packet[10..12].copy_from_slice(&sum.to_be_bytes());
    packet[24..26].copy_from_slice(&((bytes - 20) as u16).to_be_bytes());
    packet[28..32].copy_from_slice(&(number as u32).to_be_bytes());
    packet
}

/// The sequence number in a datagram of ESP.
fn number_of(datagram: &[u8]) -> u64 {
    u32::from_be_bytes(datagram[24..28].try_into().unwrap()).into()
}

/// Seals packets on as many threads as there are workers; what they hand over, in that order.
fn sealed_by(threads: usize, numbers: &NumberSource) -> Vec<Vec<u8>> {
    let link = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let (mut sender, link) = (Thread::sender(numbers), &link);
            scope.spawn(move || {
                let mut rng = fastrand::Rng::with_seed(thread as u64);
                let mut next = 0;
                while next < EACH || sender.ipsec.waits_for_numbers() {
                    let most = if sender.ipsec.waits_for_numbers() { 0 } else { rng.usize(1..50) };
                    // Those of every other thread are long.
                    let bytes = || if thread % 2 == 0 { 100 } else { 1440 };
                    let batch: Vec<_> = (next..EACH)
                        .take(most)
                        .map(|n| packet(thread, n, bytes(), thread % 2 == 0))
                        .collect();
                    next += batch.len();
                    sender.seal(&batch, |datagram| link.lock().unwrap().push(datagram.to_vec()));
                    if sender.ipsec.waits_for_numbers() {
                        std::thread::yield_now();
                    }
                }
                assert_eq!(sender.drops(), BTreeMap::new());
                assert_eq!(sender.pool.in_use(), 0);
            });
        }
    });
    link.into_inner().unwrap()
}

/// The packets' threads and numbers, for those that are first fragments or whole.
fn inside(opened: &[Vec<u8>]) -> Vec<(u8, u32)> {
    let whole = opened.iter().filter(|packet| packet[6] & 0x1F == 0 && packet[7] == 0);
    whole.map(|packet| (packet[15], u32::from_be_bytes(packet[28..32].try_into().unwrap()))).collect()
}

fn threads_seal_for_one_sa(threads: usize) {
    let lease = Arc::new(Lease::until(1 << 20));
    let source = NumberSource::Leased { first: 1, lease: Arc::clone(&lease) };
    let numbers = source.shared(true, 32, threads);
    let datagrams = sealed_by(threads, &numbers);

    let used: BTreeSet<u64> = datagrams.iter().map(|datagram| number_of(datagram)).collect();
    assert_eq!(used.len(), datagrams.len(), "no number twice");
    drop(numbers);
    let unused = lease.unused().expect("all have left");
    assert!(used.last().is_some_and(|last| *last < unused));

    // A peer with the smallest window drops none of them.
    let mut peer = Thread::receiver();
    let parameters = InboundParameters { sa: sa(), replay_window: 32, from_any_port: false };
    peer.ipsec.add_inbound(TUNNEL, parameters, NOW).unwrap();
    let mut opened = Vec::new();
    for batch in datagrams.chunks(BATCH_SIZE) {
        opened.extend(peer.open(&batch.iter().collect::<Vec<_>>()));
    }
    assert_eq!(peer.drops(), BTreeMap::new());
    assert_eq!(opened.len(), datagrams.len());
    let mut arrived = inside(&opened);
    // Each thread's packets stay in their order, and all are there.
    for thread in 0..threads {
        let own = arrived.iter().filter(|(from, _)| usize::from(*from) == thread).map(|(_, number)| *number);
        assert!(own.eq(0..EACH as u32), "{thread}");
    }
    arrived.sort_unstable();
    arrived.dedup();
    assert_eq!(arrived.len(), threads * EACH);
}

#[test]
fn two_threads_seal_for_one_sa_and_a_peer_with_a_window_of_32_drops_nothing() {
    threads_seal_for_one_sa(2);
}

#[test]
fn four_threads_seal_for_one_sa_and_a_peer_with_a_window_of_32_drops_nothing() {
    threads_seal_for_one_sa(4);
}

/// Every datagram arrives at two threads, each in an order of its own: one of the two is opened.
fn threads_open_for_one_sa(threads: usize) {
    let datagrams = sealed_by(1, &NumberSource::Ephemeral.shared(true, 32, 1));
    let window = Arc::new(SharedWindow::new(4096, true));
    let (opened, duplicates) = (Mutex::new(Vec::new()), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let (datagrams, window, opened, duplicates) = (&datagrams, &window, &opened, &duplicates);
            scope.spawn(move || {
                let mut receiver = Thread::receiver();
                let parameters = InboundParameters { sa: sa(), replay_window: 4096, from_any_port: false };
                let added = receiver.ipsec.add_shared_inbound(TUNNEL, parameters, window, NOW).unwrap();
                let mine = |at: usize| at % threads == thread || (at + 1) % threads == thread;
                let mut own: Vec<_> =
                    datagrams.iter().enumerate().filter(|(at, _)| mine(*at)).map(|(_, d)| d).collect();
                let mut rng = fastrand::Rng::with_seed(thread as u64);
                own.chunks_mut(300).for_each(|part| rng.shuffle(part));
                for batch in own.chunks(rng.usize(1..BATCH_SIZE)) {
                    opened.lock().unwrap().extend(receiver.open(batch));
                }
                let mut drops = receiver.drops();
                let refused = drops.remove(&DropReason::ReplayDuplicate).unwrap_or(0);
                assert_eq!(drops, BTreeMap::new());
                assert_eq!(added.counters.state(), SaState::Installed);
                assert_eq!(receiver.pool.in_use(), 0);
                duplicates.fetch_add(refused as usize, Ordering::Relaxed);
            });
        }
    });
    let mut arrived = inside(&opened.into_inner().unwrap());
    arrived.sort_unstable();
    assert!(arrived.into_iter().eq((0..EACH as u32).map(|number| (0, number))), "each once");
    assert_eq!(duplicates.into_inner(), EACH, "the other one of each is accounted for");
    assert_eq!(window.top(), EACH as u64);
    let saved = window.snapshot().save();
    assert_eq!(ReplayWindow::top_of(&saved), Some(EACH as u64));
}

#[test]
fn two_threads_open_for_one_sa_and_nothing_passes_twice() {
    threads_open_for_one_sa(2);
}

#[test]
fn four_threads_open_for_one_sa_and_nothing_passes_twice() {
    threads_open_for_one_sa(4);
}

/// One worker has a packet with its engine: the other's wait, in their order, and none is dropped.
#[test]
fn packets_wait_in_order_while_another_worker_has_the_window_in_flight() {
    let numbers = NumberSource::Ephemeral.shared(true, 32, 2);
    let [mut slow, mut fast] = [(); 2].map(|()| Thread::sender(&numbers));
    slow.begin(&packet(0, 0, 100, true));

    let mut sent = Vec::new();
    let packets: Vec<_> = (0..40).map(|n| packet(1, n, 100, true)).collect();
    fast.seal_in_turns(&packets[..30], |datagram| sent.push(number_of(datagram)));
    assert_eq!(sent, (2..=24).collect::<Vec<_>>(), "24 numbers are in flight at most, one of them slow");
    assert!(fast.ipsec.waits_for_numbers());
    // Later ones do not overtake those that wait.
    fast.seal_in_turns(&packets[30..], |datagram| sent.push(number_of(datagram)));
    assert_eq!(sent.len(), 23);

    slow.finish();
    let mut inside = Vec::new();
    while fast.ipsec.waits_for_numbers() {
        fast.seal(&[], |datagram| inside.push(number_of(datagram)));
    }
    assert_eq!(inside, (25..=41).collect::<Vec<_>>());
    assert_eq!((fast.drops(), fast.pool.in_use()), (BTreeMap::new(), 0));
}

/// Packets are cut before encryption: each piece has a number of its own, and numbers run out within a
/// packet.
#[test]
fn pieces_of_packets_wait_in_order_as_well() {
    let numbers = NumberSource::Ephemeral.shared(true, 32, 2);
    let [mut slow, mut fast] = [(); 2].map(|()| Thread::sender(&numbers));
    slow.begin(&packet(0, 0, 100, true));
    let mut datagrams = Vec::new();
    let packets: Vec<_> = (0..20).map(|n| packet(1, n, 2000, false)).collect();
    fast.seal_in_turns(&packets[..15], |datagram| datagrams.push(datagram.to_vec()));
    assert_eq!((datagrams.len(), fast.ipsec.waits_for_numbers()), (23, true), "11 packets and a half");
    fast.seal_in_turns(&packets[15..], |datagram| datagrams.push(datagram.to_vec()));
    assert_eq!(datagrams.len(), 23, "the second half is not overtaken");
    slow.finish();
    while fast.ipsec.waits_for_numbers() {
        fast.seal(&[], |datagram| datagrams.push(datagram.to_vec()));
    }
    assert!(datagrams.iter().map(|datagram| number_of(datagram)).eq(2..=41));

    let mut peer = Thread::receiver();
    let parameters = InboundParameters { sa: sa(), replay_window: 32, from_any_port: false };
    peer.ipsec.add_inbound(TUNNEL, parameters, NOW).unwrap();
    let opened = peer.open(&datagrams.iter().collect::<Vec<_>>());
    assert_eq!((opened.len(), peer.drops()), (40, BTreeMap::new()));
    for (n, halves) in opened.chunks(2).enumerate() {
        let [first, second] =
            [0, 1].map(|at| usize::from(halves[at][6] & 0x1F) << 8 | usize::from(halves[at][7]));
        assert_eq!((inside(halves), first), (vec![(1, n as u32)], 0));
        assert_eq!(second * 8 + halves[1].len() - 20, 2000 - 20, "the rest of it");
    }
    assert_eq!((fast.drops(), fast.pool.in_use()), (BTreeMap::new(), 0));
}

/// Packets of both count towards one lifetime, in each direction.
#[test]
fn the_hard_limit_of_a_shared_sa_is_that_of_all_its_workers() {
    let hard = Limits { packets: Some(1000), ..Limits::default() };
    let limited = SaParameters { lifetime: Lifetime { hard, ..Lifetime::default() }, ..sa() };
    let numbers = NumberSource::Ephemeral.shared(true, 32, 2);
    let mut senders = [(); 2].map(|()| Thread::new(true, None));
    for sender in &mut senders {
        let parameters = OutboundParameters { sa: limited.clone(), ..outbound_under(&numbers) };
        let added = sender.ipsec.add_outbound(TUNNEL, parameters, NOW).unwrap();
        assert!(sender.ipsec.use_outbound(TUNNEL, added.sa));
    }
    let mut datagrams = Vec::new();
    for n in 0..EACH {
        // One has twice as many packets as the other.
        let sender = usize::from(n % 3 == 0);
        senders[sender].seal(&[packet(sender, n, 100, true)], |datagram| datagrams.push(datagram.to_vec()));
    }
    assert_eq!(datagrams.len(), 1000);
    let expired = senders.iter().map(|sender| sender.drops()[&DropReason::LifetimeExpired]).sum::<u64>();
    assert_eq!(expired, EACH as u64 - 1000);

    let window = Arc::new(SharedWindow::new(4096, true));
    let mut receivers = [(); 2].map(|()| Thread::receiver());
    let half = Limits { packets: Some(500), ..Limits::default() };
    let limited = SaParameters { lifetime: Lifetime { hard: half, ..Lifetime::default() }, ..sa() };
    for receiver in &mut receivers {
        let parameters = InboundParameters { sa: limited.clone(), replay_window: 4096, from_any_port: false };
        receiver.ipsec.add_shared_inbound(TUNNEL, parameters, &window, NOW).unwrap();
    }
    let mut open = |(n, datagram)| receivers[usize::from(n % 3 == 0)].open(&[datagram]).len();
    let opened: usize = datagrams.iter().enumerate().map(&mut open).sum();
    assert_eq!(opened, 500);
    let expired =
        receivers.iter().map(|receiver| receiver.drops()[&DropReason::LifetimeExpired]).sum::<u64>();
    assert_eq!(expired, 500);
}

#[test]
fn an_sa_that_cannot_be_shared_is_refused_with_a_reason() {
    let numbers = NumberSource::Ephemeral.shared(true, 32, 1);
    let _first = Thread::sender(&numbers);
    let mut second = Thread::new(true, None);
    let refused = second.ipsec.add_outbound(TUNNEL, outbound_under(&numbers), NOW).unwrap_err();
    assert!(matches!(refused, InstallError::TooManyWorkers { .. }), "{refused}");
    let mut covered = Thread::new(true, Some(TunnelIndex(1)));
    let refused = covered.ipsec.add_outbound(TUNNEL, outbound_under(&numbers), NOW).unwrap_err();
    assert!(matches!(refused, InstallError::NotShareable { .. }), "{refused}");
}
