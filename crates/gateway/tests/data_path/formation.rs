//! Jobs in formation: what an engine that prefers bursts is given, and that packets of one SA stay in order.

use crate::support::gateway::PoolSize;
use crate::support::{Gateway, Inner, LeaseTwin, Side, TunnelSpec};
use fastrand::Rng;
use std::sync::{Arc, Mutex};
use testudo_crypto::{
    Capability, Direction, Engine, EngineError, Job, JobStatus, KeyId, KeyMaterial, PortableEngine, Profile,
    Suite,
};
use testudo_gateway::Formation;

/// Suite and length of each job of one submission.
type Submission = Vec<(Suite, u32)>;

/// The portable engine, as one that processes 16 jobs side by side. It records its submissions and fails jobs
/// of some lengths.
struct Ranks {
    engine: PortableEngine,
    suites: Vec<(KeyId, Suite)>,
    seen: Arc<Mutex<Vec<Submission>>>,
    fails_at: fn(u32) -> bool,
    does: fn(Suite) -> bool,
}

impl Engine for Ranks {
    fn name(&self) -> &'static str {
        "ranks"
    }
    fn description(&self) -> String {
        self.name().to_owned()
    }
    fn capability(&self, suite: Suite) -> Option<Capability> {
        self.engine.capability(suite).filter(|_| (self.does)(suite))
    }
    fn install(&mut self, key: &KeyMaterial, direction: Direction) -> Result<KeyId, EngineError> {
        if !(self.does)(key.suite()) {
            return Err(EngineError::Unsupported { engine: self.name(), suite: key.suite() });
        }
        let id = self.engine.install(key, direction)?;
        self.suites.push((id, key.suite()));
        Ok(id)
    }
    fn remove(&mut self, key: KeyId) {
        self.engine.remove(key);
    }
    fn profile(&self, _suite: Suite) -> Profile {
        Profile::of_depth(16)
    }
    fn is_synchronous(&self) -> bool {
        true
    }
    fn submit(&mut self, jobs: &mut [Job]) -> usize {
        let suite = |key| self.suites.iter().find(|(id, _)| *id == key).expect("a known key").1;
        let submission = jobs.iter().map(|job| (suite(job.key), job.text_bytes)).collect();
        self.seen.lock().expect("no test panics here").push(submission);
        for job in jobs.iter_mut() {
            if (self.fails_at)(job.text_bytes) {
                job.status = JobStatus::Fault;
            } else {
                self.engine.submit(std::slice::from_mut(job));
            }
        }
        jobs.len()
    }
}

/// A gateway with a tunnel of each suite on two such engines, with the portable one as the fallback.
fn gateway(side: Side, fails_at: fn(u32) -> bool) -> (Gateway, Arc<Mutex<Vec<Submission>>>) {
    let seen = Arc::default();
    let ranks = |does| -> Box<dyn Engine> {
        let (engine, seen) = (PortableEngine::new(), Arc::clone(&seen));
        Box::new(Ranks { engine, suites: Vec::new(), seen, fails_at, does })
    };
    // The first supports some suites only, the second all.
    let engines =
        vec![ranks(|suite| suite >= Suite::AES128_SHA1), ranks(|_| true), Box::new(PortableEngine::new())];
    let specs = specs();
    let policies = specs.iter().flat_map(|s| s.policies(side)).collect();
    let mut gateway = Gateway::new(policies, PoolSize(1024, 2048), engines);
    let mut store = LeaseTwin::new(1 << 40);
    specs.iter().for_each(|spec| gateway.install(spec.install(side, &mut store, None)));
    (gateway, seen)
}

fn specs() -> Vec<TunnelSpec> {
    (0..).zip(suites()).map(|(number, suite)| TunnelSpec::new(number, suite)).collect()
}

/// Fewer than a formation can tell apart, of all kinds.
fn suites() -> impl Iterator<Item = Suite> {
    Suite::ALL.iter().copied().step_by(7)
}

/// Packets of random lengths through random tunnels, each with its sending order in the payload.
fn packets(count: u16, seed: u64) -> Vec<(usize, Vec<u8>)> {
    let mut random = Rng::with_seed(seed);
    let packet = |number: u16| {
        let tunnel = random.usize(..suites().count());
        let remote = format!("172.{}.0.1", 16 + tunnel);
        let mut packet = Inner::udp("10.0.0.1", &remote, 30 + random.usize(..1300)).bytes();
        packet[28..30].copy_from_slice(&number.to_be_bytes());
        (tunnel, packet)
    };
    (0..count).map(packet).collect()
}

/// The packets of each tunnel, in order.
fn by_tunnel(packets: impl IntoIterator<Item = (usize, Vec<u8>)>) -> Vec<Vec<Vec<u8>>> {
    let mut all = vec![Vec::new(); suites().count()];
    packets.into_iter().for_each(|(tunnel, packet)| all[tunnel].push(packet));
    all
}

fn tunnel_of(inner: &[u8]) -> usize {
    usize::from(inner[17]) - 16
}

/// Sends `packets` from A to B; both work in formation. Returns what B delivers.
fn through(
    formation: Formation,
    fails_at: fn(u32) -> bool,
    packets: &[(usize, Vec<u8>)],
) -> (Vec<Vec<u8>>, Vec<Submission>) {
    let ((mut a, seen), (mut b, _)) = (gateway(Side::A, fails_at), gateway(Side::B, fails_at));
    a.worker.set_formation(formation);
    b.worker.set_formation(formation);
    packets.iter().for_each(|(_, packet)| a.protected.push(packet.clone()));
    a.settle();
    a.unprotected.take().into_iter().for_each(|datagram| b.unprotected.push(datagram));
    b.settle();
    a.assert_settled();
    b.assert_settled();
    let seen = std::mem::take(&mut *seen.lock().expect("no test panics here"));
    (b.protected.take(), seen)
}

#[test]
fn engines_that_prefer_bursts_are_given_ranks_of_several_batches() {
    let sent = packets(600, 1);
    let (delivered, seen) = through(Formation::SuiteAndLength, |_| false, &sent);
    assert!(delivered.iter().eq(sent.iter().map(|(_, packet)| packet)), "all stood where they came");
    let both: Vec<usize> = seen.chunks(2).map(|pair| pair.iter().map(Vec::len).sum()).collect();
    assert_eq!(both, [256, 256, 88], "four batches at the most, each for both engines");
    for submission in seen {
        let ranks: Vec<_> =
            submission.iter().map(|(suite, bytes)| (*suite, 15 - (bytes / 128).min(15))).collect();
        assert!(ranks.is_sorted(), "{submission:?}");
        let is_first = |suite: &Suite| *suite >= Suite::AES128_SHA1;
        assert!(ranks.iter().all(|(suite, _)| is_first(suite) == is_first(&ranks[0].0)), "{ranks:?}");
    }
}

#[test]
fn without_formation_jobs_come_as_their_packets_came() {
    let sent = packets(150, 2);
    let (delivered, seen) = through(Formation::None, |_| false, &sent);
    assert!(delivered.iter().eq(sent.iter().map(|(_, packet)| packet)));
    let came: Vec<_> = seen.concat().iter().map(|(_, bytes)| *bytes / 16).collect();
    let expected: Vec<_> = sent.iter().map(|(_, packet)| (packet.len() as u32 + 17) / 16).collect();
    assert_eq!(came.len(), expected.len());
    assert!(came.iter().zip(expected).all(|(came, expected)| came.abs_diff(expected) <= 1));
    let (_, seen) = through(Formation::Suite, |_| false, &sent);
    assert_eq!(seen.len(), 2);
    for submission in seen {
        assert!(submission.iter().map(|(suite, _)| suite).is_sorted());
        assert!(!submission.iter().map(|(_, bytes)| std::cmp::Reverse(bytes)).is_sorted());
    }
}

#[test]
fn formation_loses_nothing_and_keeps_the_order_of_each_sa() {
    let never: fn(u32) -> bool = |_| false;
    let some: fn(u32) -> bool = |bytes| bytes % 3 == 0;
    let all: fn(u32) -> bool = |_| true;
    for fails_at in [never, some, all] {
        for seed in 0..20 {
            let sent = packets(700, seed);
            let (delivered, _) = through(Formation::SuiteAndLength, fails_at, &sent);
            let delivered = delivered.into_iter().map(|packet| (tunnel_of(&packet), packet));
            assert_eq!(by_tunnel(delivered), by_tunnel(sent), "seed {seed}");
        }
    }
}
