//! Threading models: a device thread and a transmit thread beside the worker. Packets leave in their order,
//! nothing is lost or counted twice, and what stalls, fails or panics on those threads ends as it does
//! without them.

use crate::late_engine::SharedEngine;
use crate::support::gateway::PoolSize;
use crate::support::packet::{Inner, number, numbered};
use crate::support::{Gateway, LeaseTwin, PortHandle, Side, TunnelSpec};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use testudo_crypto::{
    Capability, Direction, Engine, EngineError, Job, JobStatus, KeyId, KeyMaterial, PortableEngine, Profile,
    Suite,
};
use testudo_engine_device_thread::DeviceThread;
use testudo_engine_late::LateConfig;
use testudo_gateway::{
    PortPair, SchedulerSettings, ThreadingModel, Withdrawal, WithdrawalReason, Worker, transmit_apart,
};
use testudo_ipsec::Spd;
use testudo_packet::{Batch, DropReason, Interface, Pool, Port, PortCounters, PortError};

/// More than any machine needs; nothing is asserted about the time that passes.
const PATIENCE: Duration = Duration::from_secs(60);

/// A gateway with these threads beside its worker, and an engine in front of the portable one.
fn gateway(side: Side, model: ThreadingModel, engine: Box<dyn Engine>) -> Gateway {
    let spec = TunnelSpec::new(0, Suite::AES128GCM16);
    let engine: Box<dyn Engine> = match model.has_device_thread() {
        true => Box::new(DeviceThread::over(engine, None)),
        false => engine,
    };
    let engines: Vec<Box<dyn Engine>> = vec![engine, Box::new(PortableEngine::new())];
    let mut gateway = Gateway::new(Vec::new(), PoolSize(1024, 2048), Vec::new());
    let mut ports = pair(&gateway);
    if model == ThreadingModel::TwoIo {
        ports = transmit_apart(ports, pair(&gateway), || {}).expect("a thread");
    }
    let policies = Box::new(Spd::new(spec.policies(side)).expect("few ranges"));
    gateway.worker = Worker::new(ports, Pool::new(1024, 1584), engines, policies);
    gateway
        .worker
        .set_scheduler(&SchedulerSettings { latency: Duration::from_millis(50), ..Default::default() });
    gateway.install(spec.install(side, &mut LeaseTwin::new(1 << 40), None));
    gateway
}

/// Ports at the links of a gateway: those that receive and those that send are alike.
fn pair(gateway: &Gateway) -> PortPair {
    let port = |link: &PortHandle, name| link.port(name);
    PortPair {
        protected: port(&gateway.protected, "protected"),
        unprotected: port(&gateway.unprotected, "unprotected"),
    }
}

fn long(id: u32, bytes: usize) -> Vec<u8> {
    Inner { total_bytes: bytes, ..numbered(5, id, 0, true, 500) }.bytes()
}

/// Turns until so many packets have left by a link, and nothing is held any more.
fn run(gateway: &mut Gateway, link: &PortHandle, count: usize) {
    let began = Instant::now();
    loop {
        gateway.turn();
        if link.departed() >= count && gateway.worker.pool().in_use() == 0 {
            return;
        }
        assert!(began.elapsed() < PATIENCE, "{} of {count} packets have left", link.departed());
        std::thread::yield_now();
    }
}

fn numbers(sealed: &[Vec<u8>]) -> Vec<u32> {
    sealed.iter().map(|one| u32::from_be_bytes(one[24..28].try_into().expect("4 bytes"))).collect()
}

#[test]
fn every_model_keeps_the_order_of_an_sa_in_both_directions() {
    for model in ThreadingModel::ALL {
        for depth_jobs in [1, 512] {
            let late =
                |seed| Box::new(SharedEngine::new(LateConfig { depth_jobs, ..LateConfig::unreliable(seed) }));
            let (mut a, mut b) = (gateway(Side::A, model, late(3)), gateway(Side::B, model, late(4)));
            let mut next = 0;
            for burst in [64, 1, 200, 17, 3, 400, 64, 64] {
                (next..next + burst).for_each(|id| a.protected.push(long(id, 100 + id as usize * 37 % 1200)));
                next += burst;
                a.turn();
            }
            let link = a.unprotected.clone();
            run(&mut a, &link, next as usize);
            let sealed = a.unprotected.take();
            assert!(
                numbers(&sealed).into_iter().eq(1..=next),
                "{model}, {depth_jobs}: the order of the numbers"
            );
            sealed.into_iter().for_each(|datagram| b.unprotected.push(datagram));
            let link = b.protected.clone();
            run(&mut b, &link, next as usize);
            let opened: Vec<u32> = b.protected.take().iter().map(|packet| number(packet, true)).collect();
            assert!(opened.into_iter().eq(0..next), "{model}, {depth_jobs}: the order of the packets");
            [&a, &b].into_iter().for_each(Gateway::assert_settled);
        }
    }
}

/// The portable engine, which hangs, panics or is out of service in its thread while it is told to.
struct Faulty {
    inner: PortableEngine,
    hangs: Arc<AtomicBool>,
    is_stuck: Arc<AtomicBool>,
    panics: Arc<AtomicBool>,
    is_broken: Arc<AtomicBool>,
}

impl Engine for Faulty {
    fn name(&self) -> &'static str {
        "faulty"
    }
    fn description(&self) -> String {
        "for tests".to_owned()
    }
    fn capability(&self, suite: Suite) -> Option<Capability> {
        self.inner.capability(suite)
    }
    fn install(&mut self, key: &KeyMaterial, direction: Direction) -> Result<KeyId, EngineError> {
        self.inner.install(key, direction)
    }
    fn remove(&mut self, key: KeyId) {
        self.inner.remove(key);
    }
    fn submit(&mut self, jobs: &mut [Job]) -> usize {
        while self.hangs.load(Ordering::SeqCst) {
            self.is_stuck.store(true, Ordering::SeqCst);
            std::thread::yield_now();
        }
        assert!(!self.panics.load(Ordering::SeqCst), "meant");
        if self.is_broken.load(Ordering::SeqCst) {
            jobs.iter_mut().for_each(|job| job.status = JobStatus::Fault);
            return jobs.len();
        }
        self.inner.submit(jobs)
    }
    fn is_out_of_service(&self) -> bool {
        self.is_broken.load(Ordering::SeqCst)
    }
    fn profile(&self, _: Suite) -> Profile {
        Profile::of_depth(1)
    }
}

type Switches = [Arc<AtomicBool>; 4];

fn faulty(model: ThreadingModel) -> (Gateway, Switches) {
    let switches: Switches = Default::default();
    let [hangs, is_stuck, panics, is_broken] = switches.clone();
    let engine = Faulty { inner: PortableEngine::new(), hangs, is_stuck, panics, is_broken };
    (gateway(Side::A, model, Box::new(engine)), switches)
}

#[test]
fn a_device_thread_that_stalls_ends_in_withdrawal_and_packets_go_to_the_next_engine() {
    for model in [ThreadingModel::OneIo, ThreadingModel::TwoIo] {
        let (mut a, [hangs, is_stuck, ..]) = faulty(model);
        hangs.store(true, Ordering::SeqCst);
        (0..64).for_each(|id| a.protected.push(long(id, 500)));
        a.turn();
        let began = Instant::now();
        while !is_stuck.load(Ordering::SeqCst) {
            a.turn();
            assert!(began.elapsed() < PATIENCE, "the thread has work");
            std::thread::yield_now();
        }
        for _ in 0..130 {
            a.clock.advance(Duration::from_millis(10));
            a.turn();
        }
        assert_eq!(a.worker.counters().withdrawn_engines().collect::<Vec<_>>(), ["faulty"]);
        assert_eq!(a.drops(DropReason::EngineFault), 64);
        (64..128).for_each(|id| a.protected.push(long(id, 500)));
        a.turn();
        let link = a.unprotected.clone();
        run(&mut a, &link, 64);
        assert!(numbers(&a.unprotected.take()).into_iter().eq(65..=128), "the next engine has the SA");
        a.assert_books_balance();
        hangs.store(false, Ordering::SeqCst);
    }
}

#[test]
fn a_device_thread_whose_engine_panics_loses_what_that_had_and_the_next_engine_goes_on() {
    for model in [ThreadingModel::OneIo, ThreadingModel::TwoIo] {
        let (mut a, [_, _, panics, _]) = faulty(model);
        panics.store(true, Ordering::SeqCst);
        (0..50).for_each(|id| a.protected.push(long(id, 500)));
        let began = Instant::now();
        while {
            a.turn();
            a.worker.is_busy() || a.protected.arriving() > 0
        } {
            assert!(began.elapsed() < PATIENCE, "what it had does not come back");
            std::thread::yield_now();
        }
        let lost = a.drops(DropReason::EngineFault);
        assert!((1..=50).contains(&lost), "{lost}");
        (50..100).for_each(|id| a.protected.push(long(id, 500)));
        let link = a.unprotected.clone();
        run(&mut a, &link, 100 - lost as usize);
        let sent = numbers(&a.unprotected.take());
        assert!(sent.is_sorted_by(|one, other| one < other), "in order, and no number twice: {sent:?}");
        assert!(sent.ends_with(&(51..=100).collect::<Vec<_>>()), "{sent:?}");
        a.assert_settled();
    }
}

/// Its faults come in time, so that none of its jobs is ever overdue.
#[test]
fn a_device_thread_whose_engine_is_broken_ends_in_withdrawal_and_nothing_is_lost() {
    for model in [ThreadingModel::OneIo, ThreadingModel::TwoIo] {
        let (mut a, [.., is_broken]) = faulty(model);
        let link = a.unprotected.clone();
        (0..50).for_each(|id| a.protected.push(long(id, 500)));
        run(&mut a, &link, 50);
        assert!(a.worker.take_withdrawals().is_empty());
        is_broken.store(true, Ordering::SeqCst);
        (50..100).for_each(|id| a.protected.push(long(id, 500)));
        run(&mut a, &link, 100);
        let broken = Withdrawal { engine: "faulty", packets: 0, reason: WithdrawalReason::Failed };
        assert_eq!(a.worker.take_withdrawals(), [broken], "{model}");
        assert!(a.worker.counters().withdrawn_engines().eq(["faulty"]));
        (100..150).for_each(|id| a.protected.push(long(id, 500)));
        run(&mut a, &link, 150);
        assert!(numbers(&a.unprotected.take()).into_iter().eq(1..=150), "{model}: in order, each once");
        assert_eq!(a.drops(DropReason::EngineFault), 0);
        a.assert_settled();
    }
}

/// A two-I/O gateway whose cryptography is the portable engine's.
fn two_io() -> Gateway {
    gateway(Side::A, ThreadingModel::TwoIo, Box::new(PortableEngine::new()))
}

#[test]
fn a_port_that_takes_nothing_holds_packets_up_and_loses_none() {
    let mut a = two_io();
    a.unprotected.set_room(Some(100));
    (0..900).for_each(|id| a.protected.push(long(id, 300)));
    for _ in 0..2_000 {
        a.turn();
    }
    assert!(a.unprotected.departed() <= 100);
    a.unprotected.set_room(None);
    let link = a.unprotected.clone();
    run(&mut a, &link, 900);
    assert!(numbers(&a.unprotected.take()).into_iter().eq(1..=900));
    a.assert_settled();
}

/// Whether a port that took nothing says that it takes something again, after so many seconds at most.
fn takes_again(port: &dyn Port, seconds: i64) -> bool {
    let files = port.readiness_to_send();
    let mut files: Vec<_> =
        files.into_iter().map(|file| PollFd::from_borrowed_fd(file, PollFlags::OUT)).collect();
    assert_eq!(files.len(), 1);
    poll(&mut files, Some(&Timespec { tv_sec: seconds, tv_nsec: 0 })).expect("a descriptor") == 1
}

/// Else it would look at a full ring all the time: the descriptors that receive can always be written to.
#[test]
fn a_worker_that_finds_no_room_sleeps_until_the_transmit_thread_has_given_something_back() {
    let links: [PortHandle; 2] = Default::default();
    let pair = || PortPair { protected: links[0].port("a"), unprotected: links[1].port("b") };
    let mut port = transmit_apart(pair(), pair(), || {}).expect("a thread").unprotected;
    let mut pool = Pool::new(1024, 100);
    for round in 0..20 {
        links[1].set_room(Some(0));
        assert!(takes_again(&*port, 0), "round {round}: nothing was refused");
        let (began, mut batch) = (Instant::now(), Batch::new());
        // Until it takes nothing, with all that the thread had to give back before.
        while batch.is_empty() || takes_again(&*port, 0) {
            let count = batch.remaining_capacity();
            batch.extend((0..count).filter_map(|_| pool.pop()));
            let sent = port.tx(&mut pool, &mut batch).expect("a port that does not fail");
            assert!(sent > 0 || !batch.is_empty() && began.elapsed() < PATIENCE);
        }
        links[1].set_room(None);
        while !batch.is_empty() {
            assert!(takes_again(&*port, 60), "round {round}: nobody says that there is room");
            port.tx(&mut pool, &mut batch).expect("a port that does not fail");
        }
        let began = Instant::now();
        while pool.in_use() > 0 {
            port.tx(&mut pool, &mut batch).expect("a port that does not fail");
            assert!(began.elapsed() < PATIENCE, "buffers do not come back");
            std::thread::yield_now();
        }
    }
}

#[test]
fn packets_that_the_system_refuses_are_dropped_with_its_reason() {
    let mut a = two_io();
    a.unprotected.refuse_next(DropReason::SendRefused);
    a.unprotected.refuse_next(DropReason::MessageTooLong);
    (0..10).for_each(|id| a.protected.push(long(id, 300)));
    let link = a.unprotected.clone();
    run(&mut a, &link, 8);
    assert_eq!([DropReason::SendRefused, DropReason::MessageTooLong].map(|reason| a.drops(reason)), [1, 1]);
    assert_eq!(a.worker.unprotected_port().counters().tx_packets, 8);
    a.assert_settled();
}

#[test]
fn a_port_that_fails_on_the_transmit_thread_is_reported_once_and_nothing_is_lost() {
    let mut a = two_io();
    a.turn();
    let before = a.unprotected.failures();
    (0..64).for_each(|id| a.protected.push(long(id, 300)));
    let (began, mut reported) = (Instant::now(), 0);
    a.unprotected.fail_after(3);
    while reported == 0 {
        let now = a.now();
        reported += usize::from(a.worker.turn(now).is_err());
        assert!(began.elapsed() < PATIENCE, "the failure is not reported");
        std::thread::yield_now();
    }
    assert_eq!(a.unprotected.failures(), before + 1);
    let link = a.unprotected.clone();
    run(&mut a, &link, 64);
    assert!(numbers(&a.unprotected.take()).into_iter().eq(1..=64));
    a.assert_settled();
}

#[test]
fn what_was_handed_to_the_transmit_thread_leaves_before_the_gateway_ends() {
    let mut a = two_io();
    (0..500).for_each(|id| a.protected.push(long(id, 300)));
    // All are handed over once none waits for that.
    while a.protected.arriving() > 0 || a.worker.is_busy() || a.worker.is_waiting() != (false, false) {
        a.turn();
    }
    a.worker.end_ports();
    assert_eq!(a.unprotected.departed(), 500);
    a.assert_settled();
    // Where the port takes nothing the packets are dropped, and counted.
    let mut a = two_io();
    a.unprotected.set_room(Some(10));
    (0..50).for_each(|id| a.protected.push(long(id, 300)));
    while a.protected.arriving() > 0 || a.worker.is_busy() {
        a.turn();
    }
    a.worker.end_ports();
    a.worker.discard_waiting();
    assert_eq!((a.unprotected.departed(), a.drops(DropReason::ShuttingDown)), (10, 40));
    a.assert_settled();
}

/// A port that panics when it sends, and says when it is gone.
struct Bursting(Arc<AtomicBool>);

impl Drop for Bursting {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

impl Port for Bursting {
    fn name(&self) -> &'static str {
        "bursting"
    }
    fn rx(&mut self, _: &mut Pool, _: &mut Batch) -> Result<usize, PortError> {
        Ok(0)
    }
    fn tx(&mut self, _: &mut Pool, _: &mut Batch) -> Result<usize, PortError> {
        panic!("meant");
    }
    fn joins(&self) -> bool {
        false
    }
    fn counters(&self) -> PortCounters {
        PortCounters::default()
    }
}

#[test]
fn a_transmit_thread_that_panics_ends_the_gateway() {
    let gone = Arc::<AtomicBool>::default();
    let links: [PortHandle; 2] = Default::default();
    let pair = || PortPair { protected: links[0].port("a"), unprotected: links[1].port("b") };
    let senders = PortPair { unprotected: Box::new(Bursting(Arc::clone(&gone))), ..pair() };
    let mut port = transmit_apart(pair(), senders, || {}).expect("a thread").unprotected;
    let mut pool = Pool::new(8, 100);
    let (began, mut batch) = (Instant::now(), Batch::new());
    let error = loop {
        batch.extend(pool.pop());
        if let Err(error) = port.tx(&mut pool, &mut batch) {
            break error;
        }
        assert!(began.elapsed() < PATIENCE);
        std::thread::yield_now();
    };
    assert!(error.to_string().contains("transmit thread has ended in a panic"), "{error}");
    assert!(gone.load(Ordering::SeqCst));
}

#[test]
fn the_transmit_thread_ends_with_its_ports_and_closes_those_that_send() {
    let gone = Arc::<AtomicBool>::default();
    let links: [PortHandle; 2] = Default::default();
    let pair = || PortPair { protected: links[0].port("a"), unprotected: links[1].port("b") };
    let senders = PortPair { protected: Box::new(Bursting(Arc::clone(&gone))), ..pair() };
    let PortPair { protected, unprotected } = transmit_apart(pair(), senders, || {}).expect("a thread");
    drop(protected);
    drop(unprotected);
    assert!(gone.load(Ordering::SeqCst));
}

/// An engine that keeps what it gets, and panics when it is polled.
struct Keeper {
    inner: PortableEngine,
    kept: Vec<Job>,
}

impl Engine for Keeper {
    fn name(&self) -> &'static str {
        "keeper"
    }
    fn description(&self) -> String {
        "for tests".to_owned()
    }
    fn capability(&self, suite: Suite) -> Option<Capability> {
        self.inner.capability(suite)
    }
    fn install(&mut self, key: &KeyMaterial, direction: Direction) -> Result<KeyId, EngineError> {
        self.inner.install(key, direction)
    }
    fn remove(&mut self, key: KeyId) {
        self.inner.remove(key);
    }
    fn submit(&mut self, jobs: &mut [Job]) -> usize {
        self.kept.extend(jobs.iter_mut().map(Job::take));
        jobs.len()
    }
    fn poll(&mut self, _: &mut Vec<Job>, _: usize) {
        assert!(self.kept.is_empty(), "meant");
    }
    fn profile(&self, _: Suite) -> Profile {
        Profile::of_depth(1)
    }
}

#[test]
fn buffers_that_an_engine_had_when_it_panicked_are_replaced() {
    let keeper = Keeper { inner: PortableEngine::new(), kept: Vec::new() };
    let mut a = gateway(Side::A, ThreadingModel::OneIo, Box::new(keeper));
    (0..64).for_each(|id| a.protected.push(long(id, 500)));
    let began = Instant::now();
    while {
        a.turn();
        a.worker.is_busy() || a.protected.arriving() > 0
    } {
        assert!(began.elapsed() < PATIENCE, "what it had does not come back");
        std::thread::yield_now();
    }
    let lost = a.drops(DropReason::EngineFault);
    assert!((1..=64).contains(&lost), "{lost}");
    // All buffers can be used again, and the next engine goes on.
    (64..1064).for_each(|id| a.protected.push(long(id, 500)));
    let link = a.unprotected.clone();
    run(&mut a, &link, 1064 - lost as usize);
    assert_eq!(a.worker.pool().available(), a.worker.pool().size());
    a.assert_settled();
}

/// A port of two interfaces that receives nothing.
struct Two;

impl Port for Two {
    fn name(&self) -> &'static str {
        "two"
    }
    fn rx(&mut self, _: &mut Pool, _: &mut Batch) -> Result<usize, PortError> {
        Ok(0)
    }
    fn tx(&mut self, _: &mut Pool, _: &mut Batch) -> Result<usize, PortError> {
        panic!("another one sends");
    }
    fn joins(&self) -> bool {
        false
    }
    fn interfaces(&self) -> usize {
        2
    }
    fn interface(&self, interface: Interface) -> Option<(&str, PortCounters)> {
        (interface.0 < 2).then_some(("one of two", PortCounters::default()))
    }
    fn counters(&self) -> PortCounters {
        PortCounters::default()
    }
}

/// Sends packets of 40 bytes, of these interfaces, and waits until none is held.
fn send_of(port: &mut dyn Port, interfaces: &[Interface]) {
    let (mut pool, mut batch) = (Pool::new(64, 100), Batch::new());
    for interface in interfaces {
        let mut buffer = pool.pop().expect("a buffer");
        buffer.set_len(40);
        buffer.set_interface(*interface);
        batch.push(buffer);
    }
    let began = Instant::now();
    while pool.in_use() > 0 {
        port.tx(&mut pool, &mut batch).expect("it sends");
        assert!(began.elapsed() < PATIENCE);
        std::thread::yield_now();
    }
}

#[test]
fn what_the_transmit_thread_sends_is_counted_whatever_interface_it_is_of() {
    let links: [PortHandle; 2] = Default::default();
    let senders = || PortPair { protected: links[0].port("a"), unprotected: links[1].port("b") };
    let receivers = PortPair { protected: Box::new(Two), unprotected: links[1].port("b") };
    let mut ports = transmit_apart(receivers, senders(), || {}).expect("a thread");
    let of = [Interface(0), Interface(1), Interface(1), Interface(2), Interface::NONE];
    for port in [&mut ports.protected, &mut ports.unprotected] {
        send_of(&mut **port, &of);
        assert_eq!((port.counters().tx_packets, port.counters().tx_bytes), (5, 200));
    }
    let sent = |port: &dyn Port, at| port.interface(Interface(at)).map(|(_, of)| of.tx_packets);
    assert_eq!([0, 1, 2].map(|at| sent(&*ports.protected, at)), [Some(1), Some(2), None]);
    assert_eq!(sent(&*ports.unprotected, 0), Some(5));
}

#[test]
fn a_blocked_link_holds_an_eighth_of_the_buffers_and_leaves_the_rest_to_the_other_direction() {
    let links: [PortHandle; 2] = Default::default();
    let pair = || PortPair { protected: links[0].port("a"), unprotected: links[1].port("b") };
    let PortPair { mut protected, mut unprotected } =
        transmit_apart(pair(), pair(), || {}).expect("a thread");
    links[1].set_room(Some(0));
    let (mut pool, mut batch, mut held) = (Pool::new(1024, 100), Batch::new(), 0);
    for _ in 0..32 {
        let missing = batch.remaining_capacity();
        pool.pop_many(missing, &mut batch);
        held += unprotected.tx(&mut pool, &mut batch).expect("it waits");
    }
    assert_eq!(held, 128 + 64, "the last burst begins at an eighth");
    pool.recycle_all(&mut batch);
    pool.pop_many(64, &mut batch);
    let began = Instant::now();
    while links[0].departed() < 64 {
        protected.tx(&mut pool, &mut batch).expect("it sends");
        assert!(began.elapsed() < PATIENCE);
        std::thread::yield_now();
    }
    links[1].set_room(None);
    protected.end(&mut pool);
    unprotected.end(&mut pool);
    assert_eq!((links[1].departed(), pool.in_use()), (192, 0));
}

#[test]
fn a_port_that_fails_while_the_last_packets_leave_is_reported() {
    let mut a = two_io();
    a.unprotected.set_room(Some(0));
    (0..50).for_each(|id| a.protected.push(long(id, 300)));
    while a.protected.arriving() > 0 || a.worker.is_busy() {
        a.turn();
    }
    let before = a.unprotected.failures();
    a.unprotected.fail_after(1);
    a.worker.end_ports();
    assert_eq!(a.unprotected.failures(), before + 1);
    assert!(a.worker.finish_ports().is_err());
    assert!(a.worker.finish_ports().is_ok(), "it is reported once");
    a.worker.discard_waiting();
    assert_eq!(a.drops(DropReason::ShuttingDown), 50);
    a.assert_settled();
}
