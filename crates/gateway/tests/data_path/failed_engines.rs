//! An engine that says that it is out of service is withdrawn, however packets come, and loses none.

use super::scheduler::gateway;
use crate::support::packet::{number, numbered};
use crate::support::{Gateway, Side};
use std::sync::{Arc, Mutex, MutexGuard};
use testudo_crypto::{
    Capability, Direction, Engine, EngineError, Job, JobStatus, KeyId, KeyMaterial, PortableEngine, Profile,
    Suite,
};
use testudo_gateway::{SchedulerSettings, Withdrawal, WithdrawalReason};

#[derive(Default)]
struct State {
    portable: PortableEngine,
    /// Jobs that have come since the last poll, and those before.
    new: Vec<Job>,
    old: Vec<Job>,
    /// Jobs that have come at all.
    came: usize,
    /// All it has ends as faults.
    is_lost: bool,
    /// The next key is the one with which that begins.
    key_loses_it: bool,
}

/// The portable engine as one on a thread: what comes in one turn is back in the turn after the next. Clones
/// share it.
#[derive(Clone)]
struct Away {
    state: Arc<Mutex<State>>,
    depth_jobs: usize,
}

impl Away {
    fn new(depth_jobs: usize) -> Self {
        Self { state: Arc::default(), depth_jobs }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no test panics with the engine in its hands")
    }
}

impl Engine for Away {
    fn name(&self) -> &'static str {
        "away"
    }
    fn description(&self) -> String {
        self.name().to_owned()
    }
    fn capability(&self, suite: Suite) -> Option<Capability> {
        self.state().portable.capability(suite)
    }
    fn install(&mut self, key: &KeyMaterial, direction: Direction) -> Result<KeyId, EngineError> {
        let mut state = self.state();
        state.is_lost |= state.key_loses_it;
        match state.is_lost {
            true => Err(EngineError::KeyRefused { engine: "away", reason: "the device is lost".to_owned() }),
            false => state.portable.install(key, direction),
        }
    }
    fn remove(&mut self, key: KeyId) {
        self.state().portable.remove(key);
    }
    fn is_out_of_service(&self) -> bool {
        self.state().is_lost
    }
    fn profile(&self, _: Suite) -> Profile {
        Profile { under_way: 2, ..Profile::of_depth(self.depth_jobs) }
    }
    fn submit(&mut self, jobs: &mut [Job]) -> usize {
        let mut state = self.state();
        state.came += jobs.len();
        state.new.extend(jobs.iter_mut().map(Job::take));
        jobs.len()
    }
    fn poll(&mut self, done: &mut Vec<Job>, max: usize) {
        let State { portable, new, old, is_lost, .. } = &mut *self.state();
        let count = old.len().min(max);
        for mut job in old.drain(..count) {
            if *is_lost {
                job.status = JobStatus::Fault;
            } else {
                assert_eq!(portable.submit(std::slice::from_mut(&mut job)), 1);
            }
            done.push(job);
        }
        old.append(new);
    }
    fn in_flight(&self) -> usize {
        let state = self.state();
        state.new.len() + state.old.len()
    }
}

/// A with that engine before the portable one, and B, which opens what A has sealed.
struct Ends {
    a: Gateway,
    b: Gateway,
    away: Away,
    sent: u32,
}

impl Ends {
    /// With 16 jobs in a chunk of four bins, if the engine is deep.
    fn new(away: Away) -> Self {
        let settings = SchedulerSettings { chunk: 16, bins: 4, ..SchedulerSettings::default() };
        let portable = || -> Box<dyn Engine> { Box::new(PortableEngine::new()) };
        let a = gateway(Side::A, vec![Box::new(away.clone()), portable()], &settings);
        Self { a, b: gateway(Side::B, vec![portable()], &settings), away, sent: 0 }
    }

    /// A turn with packets.
    fn turn(&mut self) {
        for id in self.sent..self.sent + 8 {
            self.a.protected.push(numbered(5, id, 0, true, 1300).bytes());
        }
        self.sent += 8;
        self.a.turn();
        self.a.assert_books_balance();
    }

    /// Shows that each packet came once and in order.
    fn finish(&mut self) {
        self.a.settle();
        let sealed = self.a.unprotected.take();
        let delivered: Vec<_> = sealed.into_iter().flat_map(|datagram| self.b.open(datagram)).collect();
        assert!(delivered.iter().map(|packet| number(packet, true)).eq(0..self.sent));
        self.a.assert_settled();
    }
}

const FAILED: Withdrawal = Withdrawal { engine: "away", packets: 0, reason: WithdrawalReason::Failed };
/// Without bins, and with them.
const DEPTHS: [usize; 2] = [1, 4096];

/// It has jobs whenever it is asked, and gets no more of them.
#[test]
fn an_engine_that_fails_while_packets_come_with_each_turn_is_withdrawn_and_loses_none() {
    for depth_jobs in DEPTHS {
        let mut ends = Ends::new(Away::new(depth_jobs));
        (0..5).for_each(|_| ends.turn());
        assert!(ends.away.in_flight() > 0 && ends.a.worker.take_withdrawals().is_empty());
        ends.away.state().is_lost = true;
        ends.turn();
        let (came, mut withdrawals) = (ends.away.state().came, Vec::new());
        for _ in 0..5 {
            ends.turn();
            withdrawals.append(&mut ends.a.worker.take_withdrawals());
        }
        assert_eq!(withdrawals, [FAILED], "{depth_jobs}");
        assert_eq!(ends.away.state().came, came, "{depth_jobs}: it gets no more once it has said so");
        ends.finish();
    }
}

/// It refuses its first key, and no job of it could fail.
#[test]
fn an_engine_that_is_lost_with_a_key_is_withdrawn_before_any_packet_comes() {
    for depth_jobs in DEPTHS {
        let away = Away::new(depth_jobs);
        away.state().key_loses_it = true;
        let mut ends = Ends::new(away);
        let now = ends.a.now();
        ends.a.worker.tick(now);
        ends.a.turn();
        assert_eq!(ends.a.worker.take_withdrawals(), [FAILED], "{depth_jobs}");
        assert!(ends.a.worker.counters().withdrawn_engines().eq(["away"]));
        ends.turn();
        ends.finish();
        assert_eq!(ends.away.state().came, 0);
    }
}
