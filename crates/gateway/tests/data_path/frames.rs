//! Frames that are left to an engine: the bytes are those that a gateway sends which writes all itself,
//! no matter which engine does a packet in the end.

use crate::encapsulations::{every_kind, packet};
use crate::support::gateway::PoolSize;
use crate::support::packet::{number, numbered};
use crate::support::{Gateway, Inner, LeaseTwin, PortHandle, Side, TunnelSpec};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
use testudo_crypto::{
    Capability, Direction, Engine, EngineError, Job, JobStatus, KeyFrame, KeyId, KeyMaterial, PortableEngine,
    Suite, Unwritten, frame,
};
use testudo_gateway::{Update, Withdrawal, WithdrawalReason};
use testudo_ipsec::{IpsecProtocol, PacketRules};
use testudo_packet::DropReason;
use testudo_wire::ip::Version;
use testudo_wire::protocol::UDP;

/// What the engine that writes frames has, and what goes wrong with it.
#[derive(Default)]
struct Device {
    portable: PortableEngine,
    frames: HashMap<KeyId, (Option<KeyFrame>, Suite)>,
    held: Vec<Job>,
    /// How many jobs it holds at most, if not all that come.
    room: Option<usize>,
    /// What it holds, and what comes, ends as faults.
    is_lost: bool,
    /// It gives nothing back.
    hangs: bool,
    /// Jobs without their frames that came, whether it took them or not.
    came: usize,
    /// Frames that it has written.
    written: usize,
}

/// An engine that is late and writes frames; clones share it.
#[derive(Clone, Default)]
struct Framing(Arc<Mutex<Device>>);

impl Framing {
    fn device(&self) -> MutexGuard<'_, Device> {
        self.0.lock().expect("no test panics with the device in its hands")
    }

    /// From now on nothing comes of what it has and gets.
    fn lose(&self) {
        let mut device = self.device();
        (device.is_lost, device.hangs) = (true, false);
    }

    /// This engine before one that is never to see a packet without a frame.
    fn before_whole(&self) -> Vec<Box<dyn Engine>> {
        vec![Box::new(self.clone()), Box::new(Whole(PortableEngine::new()))]
    }
}

impl Engine for Framing {
    fn name(&self) -> &'static str {
        "framing"
    }
    fn description(&self) -> String {
        String::new()
    }
    fn capability(&self, suite: Suite) -> Option<Capability> {
        let writes_frames = !suite.is_for_vpe();
        Some(Capability { writes_frames, takes_chains: false, ..self.device().portable.capability(suite)? })
    }
    fn install(&mut self, key: &KeyMaterial, direction: Direction) -> Result<KeyId, EngineError> {
        let mut device = self.device();
        let id = device.portable.install(key, direction)?;
        device.frames.insert(id, (key.frame(), key.suite()));
        Ok(id)
    }
    fn remove(&mut self, key: KeyId) {
        self.device().portable.remove(key);
    }
    fn is_out_of_service(&self) -> bool {
        self.device().is_lost
    }
    fn submit(&mut self, jobs: &mut [Job]) -> usize {
        let mut device = self.device();
        device.came += jobs.iter().filter(|job| job.unwritten != Unwritten::NOTHING).count();
        let room = device.room.map_or(jobs.len(), |room| room.saturating_sub(device.held.len()));
        let taken = room.min(jobs.len());
        for job in &mut jobs[..taken] {
            match device.is_lost {
                true => job.status = JobStatus::Fault,
                false => device.held.push(job.take()),
            }
        }
        taken
    }
    fn poll(&mut self, done: &mut Vec<Job>, max: usize) {
        let device = &mut *self.device();
        if device.hangs {
            return;
        }
        let count = max.min(device.held.len());
        for mut job in device.held.drain(..count) {
            if device.is_lost {
                job.status = JobStatus::Fault;
            } else {
                if job.unwritten.trailer().is_some() {
                    assert_eq!(job.direction, Direction::Seal);
                    let (frame, suite) = device.frames[&job.key];
                    assert!(frame::complete(&mut job, frame.expect("the key's frame"), suite));
                    device.written += 1;
                }
                device.portable.submit(std::slice::from_mut(&mut job));
            }
            done.push(job);
        }
    }
}

/// The portable engine, which refuses to see what is not written.
struct Whole(PortableEngine);

impl Engine for Whole {
    fn name(&self) -> &'static str {
        "whole"
    }
    fn description(&self) -> String {
        String::new()
    }
    fn capability(&self, suite: Suite) -> Option<Capability> {
        self.0.capability(suite)
    }
    fn install(&mut self, key: &KeyMaterial, direction: Direction) -> Result<KeyId, EngineError> {
        self.0.install(key, direction)
    }
    fn remove(&mut self, key: KeyId) {
        self.0.remove(key);
    }
    fn is_synchronous(&self) -> bool {
        true
    }
    fn submit(&mut self, jobs: &mut [Job]) -> usize {
        assert!(jobs.iter().all(|job| job.unwritten == Unwritten::NOTHING), "a frame that nobody wrote");
        self.0.submit(jobs)
    }
}

fn gateway(tunnels: &[TunnelSpec], engines: Vec<Box<dyn Engine>>) -> Gateway {
    let policies = tunnels.iter().flat_map(|spec| spec.policies(Side::A)).collect();
    let mut gateway = Gateway::new(policies, PoolSize(512, 2048), engines);
    let mut store = LeaseTwin::new(1 << 40);
    tunnels.iter().for_each(|spec| gateway.install(spec.install(Side::A, &mut store, None)));
    gateway
}

/// Lengths with each padding, and long ones, of which some are cut or come back.
fn lengths() -> impl Iterator<Item = usize> {
    (48..=66).chain([100, 777, 1300, 1398, 1460, 1900])
}

#[test]
fn an_engine_writes_the_frames_that_the_gateway_writes_in_every_encapsulation() {
    for tunnels in every_kind() {
        let engine = Framing::default();
        let (mut a, mut model) =
            (gateway(&tunnels, engine.before_whole()), Gateway::with_tunnels(Side::A, &tunnels));
        for bytes in lengths() {
            let inner = packet(&tunnels, bytes);
            assert!(a.seal(inner.clone()) == model.seal(inner), "{bytes} bytes in {tunnels:?}");
        }
        let is_esp = tunnels[0].protocol == IpsecProtocol::Esp;
        let written = engine.device().written;
        assert!(if is_esp { written >= 20 } else { written == 0 }, "{written}: {tunnels:?}");
        a.assert_settled();
    }
}

#[test]
fn an_engine_writes_the_frames_that_the_gateway_writes_in_every_suite_and_beside_padding() {
    for (suite, tfc_pad_to) in Suite::ALL.iter().flat_map(|suite| [(*suite, 0), (*suite, 200)]) {
        let rules = PacketRules { tfc_pad_to, ..PacketRules::default() };
        let tunnels = [TunnelSpec { outer: Version::V6, rules, ..TunnelSpec::new(0, suite) }];
        let engine = Framing::default();
        let (mut a, mut model) =
            (gateway(&tunnels, engine.before_whole()), Gateway::with_tunnels(Side::A, &tunnels));
        for bytes in 28..62 {
            let inner = Inner::udp("10.0.0.1", "172.16.0.2", bytes).bytes();
            assert!(a.seal(inner.clone()) == model.seal(inner), "{bytes} bytes in {suite}");
        }
        // Padded packets go the slow path, and have their frames from the gateway.
        assert_eq!(engine.device().written, if tfc_pad_to == 0 { 34 } else { 0 });
    }
}

/// Of a chain the trailer is in another segment than the header.
#[test]
fn the_frames_of_chains_are_not_left_to_an_engine() {
    let tunnels = [TunnelSpec { path_mtu: 9200, ..TunnelSpec::new(0, Suite::AES128GCM16) }];
    let engine = Framing::default();
    let protected = PortHandle::default();
    protected.take_chains(&[1500]);
    let policies = tunnels[0].policies(Side::A);
    let engines = engine.before_whole();
    let mut a = Gateway::on_links(protected, PortHandle::default(), policies, PoolSize(256, 9300), engines);
    a.install(tunnels[0].install(Side::A, &mut LeaseTwin::new(1 << 40), None));
    let mut model = Gateway::with_buffers(Side::A, &tunnels, PoolSize(256, 9300));
    for bytes in [60, 1501, 3000, 4499, 8999, 9000, 61] {
        let inner = Inner { dont_fragment: true, ..Inner::udp("10.0.0.1", "172.16.0.2", bytes) }.bytes();
        assert!(a.seal(inner.clone()) == model.seal(inner), "{bytes}");
    }
    assert_eq!(engine.device().written, 2, "those of one segment");
    a.assert_settled();
}

/// A with the engine, a gateway that writes all itself, and B.
struct Ends {
    a: Gateway,
    model: Gateway,
    b: Gateway,
    engine: Framing,
}

impl Ends {
    fn new(suite: Suite) -> Self {
        let tunnels = [TunnelSpec::new(0, suite)];
        let engine = Framing::default();
        Self {
            a: gateway(&tunnels, engine.before_whole()),
            model: Gateway::with_tunnels(Side::A, &tunnels),
            b: Gateway::with_tunnels(Side::B, &tunnels),
            engine,
        }
    }

    /// The same packets at both gateways, of lengths with every padding. All are common ones, of a
    /// protocol with ports and with room for these.
    fn send(&self, ids: std::ops::Range<u32>) {
        for id in ids {
            let inner = numbered(5, id, 0, true, 100 + id as usize % 40);
            self.push(&Inner { protocol: UDP, total_bytes: inner.total_bytes.max(48), ..inner });
        }
    }

    fn push(&self, inner: &Inner) {
        self.a.protected.push(inner.bytes());
        self.model.protected.push(inner.bytes());
    }

    /// What A has sent is what the model has, in its order, and B delivers it.
    fn agree(&mut self, expected: std::ops::Range<u32>) {
        self.a.settle();
        self.model.settle();
        let (sealed, of_model) = (self.a.unprotected.take(), self.model.unprotected.take());
        assert!(sealed == of_model, "{} and {} datagrams", sealed.len(), of_model.len());
        let opened: Vec<_> = sealed.into_iter().flat_map(|datagram| self.b.open(datagram)).collect();
        assert!(opened.iter().map(|packet| number(packet, true)).eq(expected));
        self.a.assert_settled();
    }
}

const SUITES: [Suite; 2] = [Suite::AES128GCM16, Suite::AES256_SHA256];

#[test]
fn a_device_that_is_lost_in_the_middle_loses_no_packet_and_no_frame() {
    for suite in SUITES {
        let mut ends = Ends::new(suite);
        ends.send(0..50);
        ends.agree(0..50);
        ends.engine.device().hangs = true;
        ends.send(50..150);
        (0..5).for_each(|_| _ = ends.a.turn());
        assert_eq!(ends.engine.device().held.len(), 100);
        assert_eq!(ends.engine.device().written, 50);
        ends.engine.lose();
        ends.send(150..200);
        ends.agree(50..200);
        assert!(ends.a.worker.counters().withdrawn_engines().eq(["framing"]));
        let lost = Withdrawal { engine: "framing", packets: 0, reason: WithdrawalReason::Failed };
        assert_eq!(ends.a.worker.take_withdrawals(), [lost]);
        ends.send(200..250);
        ends.agree(200..250);
        assert_eq!(ends.a.drops(DropReason::EngineFault), 0);
        let device = ends.engine.device();
        assert_eq!((device.came, device.written), (150, 50), "it gets no more after the loss");
    }
}

#[test]
fn what_a_device_has_no_room_for_gets_its_frame_before_the_next_engine() {
    for suite in SUITES {
        let mut ends = Ends::new(suite);
        ends.engine.device().room = Some(7);
        ends.send(0..50);
        ends.agree(0..50);
        let device = ends.engine.device();
        assert_eq!((device.came, device.written), (50, 7), "{suite}: the gateway has written the others");
    }
}

/// Runs of common packets alone leave their frames to the engine: not those with a packet that is cut, or one
/// that has no room for ports.
#[test]
fn one_uncommon_packet_has_its_whole_run_framed_by_the_gateway() {
    let common = Inner::udp("10.0.0.1", "172.16.0.2", 100);
    let long = Inner { dont_fragment: false, total_bytes: 1900, ..common };
    let short = Inner { total_bytes: 22, ..common };
    for (suite, (uncommon, datagrams)) in
        SUITES.iter().flat_map(|suite| [(*suite, (long, 42)), (*suite, (short, 41))])
    {
        let mut ends = Ends::new(suite);
        ends.send(0..20);
        ends.push(&uncommon);
        ends.send(20..40);
        ends.a.settle();
        ends.model.settle();
        let sealed = ends.a.unprotected.take();
        assert!(sealed == ends.model.unprotected.take() && sealed.len() == datagrams, "{}", sealed.len());
        assert_eq!(ends.engine.device().came, 0);
        ends.send(40..60);
        ends.agree(40..60);
        assert_eq!(ends.engine.device().written, 20, "the next run is common");
    }
}

/// The packets that it has are lost, and no other.
#[test]
fn after_a_device_was_withdrawn_the_gateway_writes_the_frames() {
    for suite in SUITES {
        let mut ends = Ends::new(suite);
        ends.engine.device().hangs = true;
        ends.send(0..20);
        for _ in 0..150 {
            ends.a.clock.advance(Duration::from_millis(10));
            ends.a.turn();
        }
        assert_eq!(ends.a.worker.take_withdrawals().len(), 1);
        assert_eq!(ends.a.drops(DropReason::EngineFault), 20);
        ends.model.settle();
        assert_eq!((ends.a.unprotected.take().len(), ends.model.unprotected.take().len()), (0, 20));
        ends.send(20..90);
        ends.agree(20..90);
        assert_eq!(ends.engine.device().written, 0);
    }
}

/// Its key is gone from every engine, so that its jobs must not be anybody's.
#[test]
fn jobs_of_a_removed_sa_whose_device_fails_are_dropped() {
    let mut ends = Ends::new(Suite::AES128GCM16);
    ends.engine.device().hangs = true;
    ends.send(0..20);
    ends.a.turn();
    assert_eq!(ends.engine.device().held.len(), 20);
    let now = ends.a.now();
    let index = TunnelSpec::new(0, Suite::AES128GCM16).index();
    let update = Update { remove: vec![index], ..Update::default() };
    ends.a.worker.update(update, now);
    ends.engine.lose();
    ends.a.settle();
    assert!(ends.a.unprotected.take().is_empty());
    ends.a.assert_settled();
}
