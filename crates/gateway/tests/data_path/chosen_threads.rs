//! The threading model `auto`: threads come and go as what is measured asks for them, while packets flow, and
//! every packet leaves in its order.

use crate::late_engine::SharedEngine;
use crate::support::gateway::{PoolSize, portable};
use crate::support::packet::{Inner, numbered};
use crate::support::{Gateway, LeaseTwin, PortHandle, Side, TunnelSpec};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};
use testudo_crypto::{Engine, PortableEngine, Suite};
use testudo_engine_device_thread::DeviceThread;
use testudo_engine_late::LateConfig;
use testudo_gateway::{
    ChosenThreads, Clock, MeterParts, PortPair, ThreadingModel, Worker, transmit_by_choice,
};
use testudo_ipsec::{Moment, Spd};
use testudo_packet::{Aside, Pool};

/// More than any machine needs; nothing is asserted about the time that passes.
const PATIENCE: Duration = Duration::from_secs(60);
/// Packets that come in each turn.
const PACKETS: u32 = 16;
/// What a turn takes by the clock below: a period of the meter, and so much that no pause of the machine
/// matters beside it.
const TURN: Duration = Duration::from_secs(10);

/// A clock by which turns take their time, and nothing else takes any: it is read before and after each.
#[derive(Default)]
struct TurnClock(AtomicU32);

impl Clock for TurnClock {
    fn now(&self) -> Moment {
        Moment(TURN * (self.0.fetch_add(1, Ordering::Relaxed) / 2))
    }
}

/// A gateway that chooses, and what is measured beside its worker.
struct Chooses {
    gateway: Gateway,
    device: Arc<Aside>,
    transmit: Arc<Aside>,
    next: u32,
}

fn pair(gateway: &Gateway) -> PortPair {
    let port = |link: &PortHandle, name| link.port(name);
    PortPair {
        protected: port(&gateway.protected, "protected"),
        unprotected: port(&gateway.unprotected, "unprotected"),
    }
}

impl Chooses {
    fn new(most: ThreadingModel) -> Self {
        let [device, transmit] = [(), ()].map(|()| Arc::<Aside>::default());
        let spec = TunnelSpec::new(0, Suite::AES128GCM16);
        let engine = Box::new(SharedEngine::new(LateConfig { depth_jobs: 64, ..LateConfig::reliable(5) }));
        let engine = DeviceThread::by_choice(engine, None, Arc::clone(&device));
        let engines: Vec<Box<dyn Engine>> = vec![Box::new(engine), Box::new(PortableEngine::new())];
        let mut gateway = Gateway::new(Vec::new(), PoolSize(1024, 2048), Vec::new());
        let (ports, senders) = (pair(&gateway), pair(&gateway));
        let ports = transmit_by_choice(ports, senders, Arc::clone(&transmit), || {}).expect("a thread");
        let policies = Box::new(Spd::new(spec.policies(Side::A)).expect("few ranges"));
        gateway.worker = Worker::new(ports, Pool::new(1024, 1584), engines, policies);
        gateway.install(spec.install(Side::A, &mut LeaseTwin::new(1 << 40), None));
        let clock = Box::new(TurnClock::default());
        let parts = MeterParts {
            devices: vec![Arc::clone(&device)],
            transmit: Some(Arc::clone(&transmit)),
            most,
            clock,
        };
        gateway.worker.choose_threads(parts);
        Self { gateway, device, transmit, next: 0 }
    }

    /// A turn with packets, in which the device seems to have been busy, driven and sent for so many seconds.
    fn turn(&mut self, [busy, driven, sent]: [u64; 3]) {
        let ago = |seconds| Instant::now().checked_sub(Duration::from_secs(seconds)).expect("since the boot");
        self.device.add_jobs(1000, Duration::from_secs(busy));
        self.device.add_work(ago(driven));
        self.transmit.add_work(ago(sent));
        for _ in 0..PACKETS {
            let inner = Inner { total_bytes: 100, ..numbered(5, self.next, 0, true, 500) };
            self.gateway.protected.push(inner.bytes());
            self.next += 1;
        }
        self.empty_turn();
    }

    fn empty_turn(&mut self) {
        let now = self.gateway.now();
        self.gateway.worker.metered_turn(now).expect("ports in memory do not fail");
    }

    fn chosen(&self) -> ChosenThreads {
        self.gateway.worker.counters().threads().expect("it chooses")
    }

    /// Turns until all that was sent has left; returns the numbers of the sealed packets.
    fn drain(&mut self) -> Vec<u32> {
        let began = Instant::now();
        while self.gateway.unprotected.departed() < self.next as usize
            || self.gateway.worker.pool().in_use() > 0
        {
            self.empty_turn();
            assert!(began.elapsed() < PATIENCE, "packets do not leave");
            std::thread::yield_now();
        }
        let sealed = self.gateway.unprotected.take();
        sealed.iter().map(|one| u32::from_be_bytes(one[24..28].try_into().expect("4 bytes"))).collect()
    }
}

#[test]
fn threads_come_and_go_with_the_load_and_packets_keep_their_order() {
    use ThreadingModel::{OneIo, RunToCompletion, TwoIo};
    let mut chooses = Chooses::new(TwoIo);
    // A device that is slower than a worker with all of the rest, and one that is faster than its I/O alone.
    let (slow, fast) = ([50, 1, 1], [1, 4, 3]);
    let rounds =
        [(slow, RunToCompletion), (fast, OneIo), (fast, TwoIo), (slow, OneIo), (slow, RunToCompletion)];
    for (costs, model) in rounds.into_iter().cycle().take(3 * rounds.len()) {
        let began = Instant::now();
        while chooses.chosen().model != model {
            chooses.turn(costs);
            assert!(began.elapsed() < PATIENCE, "{costs:?}: {:?}", chooses.chosen());
        }
        let wanted = (chooses.device.is_wanted(), chooses.transmit.is_wanted());
        assert_eq!(wanted, (model.has_device_thread(), model == TwoIo), "{model}");
        // What has changed hands is used.
        (0..3).for_each(|_| chooses.turn(costs));
    }
    let rates = chooses.chosen().rates.expect("there was load");
    assert!(rates.io > rates.alone && rates.alone > rates.cryptography, "{rates:?}");
    assert_eq!(chooses.chosen().changes, 12);
    let numbers = chooses.drain();
    assert!(numbers.into_iter().eq(1..=chooses.next), "the order of the numbers");
    chooses.gateway.assert_settled();
}

/// An engine whose thread does not start stays with the worker, and wants none: so the model has none.
#[test]
fn a_model_whose_thread_did_not_start_is_not_the_one_in_force() {
    use ThreadingModel::{RunToCompletion, TwoIo};
    let (mut chooses, began) = (Chooses::new(TwoIo), Instant::now());
    let fast = [1, 4, 3];
    while chooses.chosen().model != TwoIo {
        chooses.turn(fast);
        assert!(began.elapsed() < PATIENCE, "{:?}", chooses.chosen());
    }
    let changes = chooses.chosen().changes;
    chooses.device.want(false);
    chooses.turn(fast);
    assert_eq!((chooses.chosen().model, chooses.chosen().changes), (RunToCompletion, changes + 1));
    assert!(!chooses.transmit.is_wanted());
    while chooses.chosen().model != TwoIo {
        chooses.turn(fast);
        assert!(began.elapsed() < PATIENCE, "it is not tried again: {:?}", chooses.chosen());
    }
    assert!(chooses.device.is_wanted());
    assert!(chooses.drain().into_iter().eq(1..=chooses.next));
    chooses.gateway.assert_settled();
}

#[test]
fn turns_without_packets_change_nothing_and_neither_do_those_of_a_configured_model() {
    let mut chooses = Chooses::new(ThreadingModel::TwoIo);
    (0..100).for_each(|_| chooses.empty_turn());
    let chosen = chooses.chosen();
    assert_eq!((chosen.model, chosen.changes), (ThreadingModel::RunToCompletion, 0));
    assert_eq!((chosen.rates, chosen.most), (None, ThreadingModel::TwoIo));
    let mut alone = Gateway::new(Vec::new(), PoolSize(64, 2048), portable());
    let now = alone.now();
    assert_eq!(alone.worker.metered_turn(now).expect("ports in memory do not fail"), 0);
    assert_eq!(alone.worker.counters().threads(), None);
}
