//! A key that an engine refuses on its device thread, after it has an id there: its SA goes to the next
//! engine with the first packet that fails, and no other has to.

use crate::support::gateway::PoolSize;
use crate::support::packet::{number, numbered};
use crate::support::{Gateway, LeaseTwin, Side, TunnelSpec};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use testudo_crypto::{
    Capability, Direction, Engine, EngineError, Job, JobStatus, KeyId, KeyMaterial, PortableEngine, Suite,
};
use testudo_engine_device_thread::DeviceThread;
use testudo_packet::DropReason;

/// More than any machine needs; nothing is asserted about the time that passes.
const PATIENCE: Duration = Duration::from_secs(60);

/// An engine that refuses every key, and counts the jobs that it gets nevertheless.
struct Refusing(Arc<AtomicUsize>);

impl Engine for Refusing {
    fn name(&self) -> &'static str {
        "refusing"
    }
    fn description(&self) -> String {
        self.name().to_owned()
    }
    fn capability(&self, suite: Suite) -> Option<Capability> {
        PortableEngine::new().capability(suite)
    }
    fn install(&mut self, _: &KeyMaterial, _: Direction) -> Result<KeyId, EngineError> {
        Err(EngineError::KeyRefused { engine: self.name(), reason: "meant".to_owned() })
    }
    fn remove(&mut self, _: KeyId) {}
    fn submit(&mut self, jobs: &mut [Job]) -> usize {
        self.0.fetch_add(jobs.len(), Ordering::SeqCst);
        jobs.iter_mut().for_each(|job| job.status = JobStatus::Fault);
        jobs.len()
    }
}

fn gateway(side: Side, engines: Vec<Box<dyn Engine>>) -> Gateway {
    let spec = TunnelSpec::new(0, Suite::AES128GCM16);
    let mut gateway = Gateway::new(spec.policies(side), PoolSize(512, 2048), engines);
    gateway.install(spec.install(side, &mut LeaseTwin::new(1 << 40), None));
    gateway
}

/// Has A send these, and waits until they have left.
fn pass(a: &mut Gateway, ids: Range<u32>) {
    let (began, all) = (Instant::now(), ids.end as usize);
    ids.for_each(|id| a.protected.push(numbered(5, id, 0, true, 500).bytes()));
    while a.unprotected.departed() < all {
        assert!(began.elapsed() < PATIENCE, "{} of {all} have left", a.unprotected.departed());
        a.turn();
        a.assert_books_balance();
        std::thread::yield_now();
    }
}

#[test]
fn an_sa_whose_key_is_refused_on_a_device_thread_goes_to_the_next_engine() {
    let jobs = Arc::<AtomicUsize>::default();
    let engine = DeviceThread::over(Box::new(Refusing(Arc::clone(&jobs))), None);
    let mut a = gateway(Side::A, vec![Box::new(engine), Box::new(PortableEngine::new())]);
    pass(&mut a, 0..10);
    let failed = jobs.load(Ordering::SeqCst);
    assert!((1..=10).contains(&failed), "{failed}");
    pass(&mut a, 10..200);
    assert_eq!(jobs.load(Ordering::SeqCst), failed, "the engine has no more of them");
    assert_eq!((a.drops(DropReason::EngineFault), a.worker.counters().withdrawn_engines().count()), (0, 0));
    let mut b = gateway(Side::B, vec![Box::new(PortableEngine::new())]);
    let sealed = a.unprotected.take();
    let opened: Vec<_> = sealed.into_iter().flat_map(|datagram| b.open(datagram)).collect();
    assert!(opened.iter().map(|packet| number(packet, true)).eq(0..200));
    a.assert_settled();
}
