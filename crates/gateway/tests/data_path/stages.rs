//! Each stage is charged with its own work. The clock reads a source that counts progress instead of time:
//! the ticks of a stage are the progress between its lap and the previous one.

use crate::support::gateway::{PoolSize, portable};
use crate::support::{Gateway, Inner, LeaseTwin, Side, TunnelSpec};
use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use testudo_crypto::{
    Capability, Direction, Engine, EngineError, Job, KeyId, KeyMaterial, PortableEngine, Suite,
};
use testudo_gateway::Installed;
use testudo_packet::{DropReason, Stage, StageTimes};

/// Packets of a turn: one batch.
const PACKETS: u64 = 20;

type Progress = Box<dyn Fn() -> u64>;

thread_local! {
    static PROGRESS: RefCell<Progress> = RefCell::new(Box::new(|| 0));
}

fn progress() -> u64 {
    PROGRESS.with_borrow(|progress| progress())
}

/// The portable engine, counting the jobs that it has done.
struct Counting(PortableEngine, Arc<AtomicU64>);

impl Engine for Counting {
    fn name(&self) -> &'static str {
        "counting"
    }

    fn description(&self) -> String {
        self.0.description()
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
        self.1.fetch_add(jobs.len() as u64, Ordering::Relaxed);
        self.0.submit(jobs)
    }
}

fn spec() -> TunnelSpec {
    TunnelSpec::new(0, Suite::AES128GCM16)
}

struct Subject {
    gateway: Gateway,
    installed: Installed,
    done: Arc<AtomicU64>,
}

fn subject(side: Side) -> Subject {
    let done = Arc::<AtomicU64>::default();
    let engines: Vec<Box<dyn Engine>> =
        vec![Box::new(Counting(PortableEngine::new(), Arc::clone(&done))), Box::new(PortableEngine::new())];
    let mut gateway = Gateway::new(spec().policies(side), PoolSize(512, 2048), engines);
    let installed = gateway.install_seen(spec().install(side, &mut LeaseTwin::new(1 << 40), None));
    gateway.worker.measure_in(progress);
    Subject { gateway, installed, done }
}

fn sealed() -> Vec<Vec<u8>> {
    let mut a = Gateway::new(spec().policies(Side::A), PoolSize(512, 2048), portable());
    a.install(spec().install(Side::A, &mut LeaseTwin::new(1 << 40), None));
    (0..PACKETS).for_each(|_| a.protected.push(Inner::udp("10.0.0.1", "172.16.0.2", 100).bytes()));
    a.settle();
    a.unprotected.take()
}

/// Stage times of one turn that seals packets, in units of `progress`.
fn outbound(progress: impl FnOnce(&Subject) -> Progress) -> StageTimes {
    let mut subject = subject(Side::A);
    PROGRESS.set(progress(&subject));
    let packet = Inner::udp("10.0.0.1", "172.16.0.2", 100).bytes();
    (0..PACKETS).for_each(|_| subject.gateway.protected.push(packet.clone()));
    subject.gateway.turn();
    *subject.gateway.worker.outbound_stages()
}

/// Stage times of one turn that opens `datagrams`, in units of `progress`.
fn inbound(datagrams: Vec<Vec<u8>>, progress: impl FnOnce(&Subject) -> Progress) -> StageTimes {
    let mut subject = subject(Side::B);
    PROGRESS.set(progress(&subject));
    datagrams.into_iter().for_each(|datagram| subject.gateway.unprotected.push(datagram));
    subject.gateway.turn();
    *subject.gateway.worker.inbound_stages()
}

#[track_caller]
fn assert_all_in(stage: Stage, times: StageTimes, ticks: u64) {
    assert_eq!((times.batches, times.of(stage), times.total()), (1, ticks, ticks), "{stage:?}: {times:?}");
}

fn engine_progress(subject: &Subject) -> Progress {
    let done = Arc::clone(&subject.done);
    Box::new(move || done.load(Ordering::Relaxed))
}

#[test]
fn the_cost_of_outbound_packets_is_booked_to_the_stage_that_caused_it() {
    let received = outbound(|s| {
        let port = s.gateway.protected.clone();
        Box::new(move || u64::MAX - port.arriving() as u64)
    });
    assert_all_in(Stage::Receive, received, PACKETS);
    let numbered = outbound(|s| {
        let counters = s.installed.outbound.counters.clone();
        Box::new(move || counters.packets())
    });
    assert_all_in(Stage::Framing, numbered, PACKETS);
    assert_all_in(Stage::Cryptography, outbound(engine_progress), PACKETS);
    let sent = outbound(|s| {
        let port = s.gateway.unprotected.clone();
        Box::new(move || port.departed() as u64)
    });
    assert_all_in(Stage::Transmit, sent, PACKETS);
}

#[test]
fn the_cost_of_inbound_packets_is_booked_to_the_stage_that_caused_it() {
    let received = inbound(sealed(), |s| {
        let port = s.gateway.unprotected.clone();
        Box::new(move || u64::MAX - port.arriving() as u64)
    });
    assert_all_in(Stage::Receive, received, PACKETS);
    assert_all_in(Stage::Cryptography, inbound(sealed(), engine_progress), PACKETS);
    let decapsulated = inbound(sealed(), |s| {
        let counters = s.installed.inbound.counters.clone();
        Box::new(move || counters.packets())
    });
    assert_all_in(Stage::Policy, decapsulated, PACKETS);
    let sent = inbound(sealed(), |s| {
        let port = s.gateway.protected.clone();
        Box::new(move || port.departed() as u64)
    });
    assert_all_in(Stage::Transmit, sent, PACKETS);
}

/// Refusals by the replay check and by the ICV are booked to the stage that finds them.
#[test]
fn the_replay_check_is_framing_and_a_verdict_is_finish() {
    let drops = |reason| {
        move |s: &Subject| -> Progress {
            let counters = s.installed.inbound.counters.clone();
            Box::new(move || counters.drops(reason))
        }
    };
    let forged = sealed().into_iter().map(|mut datagram| {
        datagram.last_mut().into_iter().for_each(|byte| *byte ^= 1);
        datagram
    });
    let refused = inbound(forged.collect(), drops(DropReason::AuthenticationFailed));
    assert_all_in(Stage::Finish, refused, PACKETS);
    let mut subject = subject(Side::B);
    sealed().into_iter().for_each(|datagram| subject.gateway.unprotected.push(datagram));
    subject.gateway.turn();
    // The first turn was measured; setting the clock again makes it measure the next one.
    subject.gateway.worker.measure_in(progress);
    PROGRESS.set(drops(DropReason::ReplayDuplicate)(&subject));
    sealed().into_iter().for_each(|datagram| subject.gateway.unprotected.push(datagram));
    subject.gateway.turn();
    assert_all_in(Stage::Framing, *subject.gateway.worker.inbound_stages(), PACKETS);
}

/// Each stage has a lap: one per turn, or two where packets made ready during reception leave with the rest.
/// Outbound, the policy names the SA, so there is no lookup.
#[test]
fn each_stage_has_its_lap() {
    let laps = || -> Progress {
        let calls = AtomicU64::new(0);
        Box::new(move || calls.fetch_add(1, Ordering::Relaxed))
    };
    let (out, back) = (outbound(|_| laps()), inbound(sealed(), |_| laps()));
    for stage in Stage::ALL {
        assert_eq!(out.of(stage) == 0, stage == Stage::Sa, "{stage:?}: {out:?}");
        assert!(back.of(stage) > 0, "{stage:?}: {back:?}");
    }
}
