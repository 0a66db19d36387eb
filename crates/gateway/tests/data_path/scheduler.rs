//! The packet scheduler in a whole gateway: what a deep engine is given and when, and the latency bound.

use crate::support::gateway::PoolSize;
use crate::support::packet::{number, numbered, tunnel_of};
use crate::support::{Gateway, LeaseTwin, Side, TunnelSpec};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
use testudo_crypto::{
    Capability, Direction, Engine, EngineError, Job, KeyId, KeyMaterial, PortableEngine, Profile, Suite,
};
use testudo_gateway::{Clock, Formation, PlacementMode, Scheduled, SchedulerSettings};
use testudo_ipsec::Moment;

/// Suite and length of each job of one submission.
type Submission = Vec<(Suite, u32)>;

#[derive(Default)]
struct State {
    portable: PortableEngine,
    suites: HashMap<KeyId, Suite>,
    held: Vec<Job>,
    submissions: Vec<Submission>,
    is_flushed: bool,
    /// Nothing comes back.
    is_busy: bool,
    /// Jobs that it takes of each submission.
    takes: Option<usize>,
    /// It takes none for now, for a reason of its own.
    is_resting: bool,
}

/// The portable engine, as one that wants 4,096 jobs and has them until it is told to end them.
#[derive(Clone, Default)]
struct Deep(Arc<Mutex<State>>);

impl Deep {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().expect("no test panics with the engine in its hands")
    }

    fn set_busy(&self, is_busy: bool) {
        self.state().is_busy = is_busy;
    }

    fn take_submissions(&self) -> Vec<Submission> {
        std::mem::take(&mut self.state().submissions)
    }
}

impl Engine for Deep {
    fn name(&self) -> &'static str {
        "deep"
    }
    fn description(&self) -> String {
        self.name().to_owned()
    }
    fn capability(&self, suite: Suite) -> Option<Capability> {
        self.state().portable.capability(suite)
    }
    fn install(&mut self, key: &KeyMaterial, direction: Direction) -> Result<KeyId, EngineError> {
        let mut state = self.state();
        let id = state.portable.install(key, direction)?;
        state.suites.insert(id, key.suite());
        Ok(id)
    }
    fn remove(&mut self, key: KeyId) {
        self.state().portable.remove(key);
    }
    fn profile(&self, _: Suite) -> Profile {
        Profile::of_depth(4096)
    }
    fn is_resting(&mut self) -> bool {
        self.state().is_resting
    }
    fn submit(&mut self, jobs: &mut [Job]) -> usize {
        let mut state = self.state();
        assert!(!state.is_resting, "it would refuse all of a chunk, and was to be asked before");
        let takes = state.takes.unwrap_or(jobs.len()).min(jobs.len());
        let submission = jobs[..takes].iter().map(|job| (state.suites[&job.key], job.text_bytes)).collect();
        state.submissions.push(submission);
        state.is_flushed = false;
        state.held.extend(jobs[..takes].iter_mut().map(Job::take));
        takes
    }
    fn flush(&mut self) {
        self.state().is_flushed = true;
    }
    fn poll(&mut self, done: &mut Vec<Job>, max: usize) {
        let mut state = self.state();
        if state.is_busy {
            return;
        }
        let count = state.held.len().min(max);
        let mut ended: Vec<Job> = state.held.drain(..count).collect();
        assert_eq!(state.portable.submit(&mut ended), count);
        // The last of each SA first: the gateway restores its order.
        done.extend(ended.into_iter().rev());
    }
    fn in_flight(&self) -> usize {
        self.state().held.len()
    }
}

const SUITES: [Suite; 3] = [Suite::AES128GCM16, Suite::AES128_SHA1, Suite::CHACHA20POLY1305];

fn specs() -> [TunnelSpec; 3] {
    [0, 1, 2].map(|number| TunnelSpec::new(number, SUITES[usize::from(number)]))
}

pub(super) fn gateway(side: Side, engines: Vec<Box<dyn Engine>>, settings: &SchedulerSettings) -> Gateway {
    let policies = specs().iter().flat_map(|s| s.policies(side)).collect();
    let mut gateway = Gateway::new(policies, PoolSize(4096, 2048), engines);
    gateway.worker.set_scheduler(settings);
    let mut store = LeaseTwin::new(1 << 40);
    specs().iter().for_each(|spec| gateway.install(spec.install(side, &mut store, None)));
    gateway
}

/// A with a deep engine before the portable one, and B, which opens what A has sealed.
struct Ends {
    a: Gateway,
    b: Gateway,
    deep: Deep,
}

impl Ends {
    fn new(settings: SchedulerSettings, formation: Formation) -> Self {
        Self::before(Box::new(PortableEngine::new()), settings, formation)
    }

    /// With this engine behind the deep one.
    fn before(next: Box<dyn Engine>, settings: SchedulerSettings, formation: Formation) -> Self {
        let deep = Deep::default();
        let mut a = gateway(Side::A, vec![Box::new(deep.clone()), next], &settings);
        a.worker.set_formation(formation);
        Self { a, b: gateway(Side::B, vec![Box::new(PortableEngine::new())], &settings), deep }
    }

    /// With 16 jobs in a chunk of four bins, and a bound of a millisecond.
    fn small() -> Self {
        let settings = SchedulerSettings { chunk: 16, bins: 4, ..SchedulerSettings::default() };
        Self::new(settings, Formation::default())
    }

    fn send(&self, tunnel: u8, id: u32) {
        self.a.protected.push(numbered(5, id, tunnel, true, 1300).bytes());
    }

    /// A turn, after this time.
    fn turn(&mut self, after: Duration) {
        self.a.clock.advance(after);
        self.a.turn();
        self.a.assert_books_balance();
    }

    /// What A has counted for the engine.
    fn scheduled(&self) -> Scheduled {
        let counted: Vec<_> = self.a.worker.counters().scheduled().collect();
        assert_eq!((counted.len(), counted[0].0), (1, "deep"), "no other engine has bins");
        counted[0].1
    }

    /// The numbers of the packets that B delivers out of what A has sent since the last call, by tunnel.
    fn delivered(&mut self) -> [Vec<u32>; 3] {
        let mut all = [(); 3].map(|()| Vec::new());
        for datagram in self.a.unprotected.take() {
            for packet in self.b.open(datagram) {
                all[usize::from(tunnel_of(&packet, true))].push(number(&packet, true));
            }
        }
        all
    }
}

const NO_TIME: Duration = Duration::ZERO;

/// A clock on which 1 us passes between two readings, and whatever an engine adds.
#[derive(Clone, Default)]
struct Stepping(Arc<AtomicU64>);

impl Clock for Stepping {
    fn now(&self) -> Moment {
        Moment(Duration::from_micros(self.0.fetch_add(1, Ordering::Relaxed)))
    }
}

/// The portable engine, as one that takes 50 us of such a clock for each job.
struct Slow(PortableEngine, Stepping);

impl Engine for Slow {
    fn name(&self) -> &'static str {
        "slow"
    }
    fn description(&self) -> String {
        self.name().to_owned()
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
        self.1.0.fetch_add(50 * jobs.len() as u64, Ordering::Relaxed);
        self.0.submit(jobs)
    }
}

#[test]
fn an_idle_engine_gets_what_came_at_once_and_a_busy_one_all_of_it_together() {
    let mut ends = Ends::new(SchedulerSettings::default(), Formation::default());
    ends.deep.set_busy(true);
    ends.send(0, 0);
    ends.turn(NO_TIME);
    ends.turn(NO_TIME);
    assert_eq!(ends.deep.take_submissions().len(), 1, "nobody waits for an engine that idles");
    for id in 1..600 {
        ends.send((id % 3) as u8, id);
        if id % 50 == 0 {
            ends.turn(NO_TIME);
        }
    }
    (0..20).for_each(|_| ends.turn(NO_TIME));
    assert!(ends.deep.take_submissions().is_empty());
    ends.deep.set_busy(false);
    ends.turn(NO_TIME);
    let submissions = ends.deep.take_submissions();
    assert_eq!(submissions.iter().map(Vec::len).collect::<Vec<_>>(), [599]);
    assert!(ends.deep.state().is_flushed, "in the same turn");
    // Bins of one suite and 256 bytes, longest first.
    let ranges = submissions[0].iter().map(|(_, bytes)| std::cmp::Reverse(bytes / 256));
    assert!(ranges.is_sorted());
    let changes = submissions[0].windows(2).filter(|pair| {
        let [(suite, bytes), (next, next_bytes)] = [pair[0], pair[1]];
        (suite, bytes / 256) != (next, next_bytes / 256)
    });
    let changes = changes.count();
    assert!((10..18).contains(&changes), "{changes}: each suite and range has its bins, side by side");
    ends.turn(NO_TIME);
    ends.turn(NO_TIME);
    for (tunnel, delivered) in (0..3).zip(ends.delivered()) {
        assert!(delivered.into_iter().eq((0..600).filter(|id| id % 3 == tunnel)), "tunnel {tunnel}");
    }
    let Scheduled { chunks, packets, no_room, too_late, left_over, .. } = ends.scheduled();
    assert_eq!([chunks, packets, no_room, too_late, left_over], [2, 600, 0, 0, 0]);
    ends.a.assert_settled();
}

/// The order in which a chunk's jobs are told apart, by what is switched off.
#[test]
fn what_bins_tell_apart_can_be_switched_off() {
    let submitted = |formation| {
        let mut ends = Ends::new(SchedulerSettings::default(), formation);
        ends.deep.set_busy(true);
        ends.send(0, 0);
        ends.turn(NO_TIME);
        ends.turn(NO_TIME);
        (1..200).for_each(|id| ends.send((id % 3) as u8, id));
        (0..5).for_each(|_| ends.turn(NO_TIME));
        ends.deep.take_submissions();
        ends.deep.set_busy(false);
        ends.turn(NO_TIME);
        ends.deep.take_submissions().remove(0)
    };
    let [none, suite, length] = [Formation::None, Formation::Suite, Formation::SuiteAndLength].map(submitted);
    let changes = |jobs: &Submission| jobs.windows(2).filter(|pair| pair[0].0 != pair[1].0).count();
    assert!(none.iter().zip((1..).map(|id: usize| SUITES[id % 3])).all(|(job, suite)| job.0 == suite));
    assert_eq!((none.len(), changes(&none), changes(&suite)), (199, 198, 2));
    let is_by_length = |jobs: &Submission| jobs.iter().map(|job| std::cmp::Reverse(job.1 / 256)).is_sorted();
    assert!(!is_by_length(&none) && !is_by_length(&suite) && is_by_length(&length));
}

/// Where bins and leftovers are full, the next engine has the rest, and each SA keeps its order.
#[test]
fn what_finds_no_room_goes_to_the_next_engine() {
    let mut ends = Ends::small();
    ends.deep.set_busy(true);
    ends.send(0, 0);
    ends.turn(NO_TIME);
    ends.turn(NO_TIME);
    (1..100).for_each(|id| ends.send(1 + (id % 2) as u8, id));
    (0..5).for_each(|_| ends.turn(NO_TIME));
    assert_eq!(ends.deep.state().held.len(), 1);
    ends.deep.set_busy(false);
    (0..20).for_each(|_| ends.turn(NO_TIME));
    let given: usize = ends.deep.take_submissions().iter().map(Vec::len).sum();
    assert!((17..=33).contains(&given), "{given}: a chunk and leftovers");
    let Scheduled { packets, no_room, too_late, .. } = ends.scheduled();
    assert_eq!((packets, no_room, too_late), (given as u64, 100 - given as u64, 0));
    let [first, second, third] = ends.delivered();
    assert_eq!(first, [0]);
    assert!(second.into_iter().eq((1..100).filter(|id| id % 2 == 0)));
    assert!(third.into_iter().eq((1..100).filter(|id| id % 2 == 1)));
    ends.a.assert_settled();
}

/// An engine that stalls with one tunnel's packets leaves half of the pool to all others, whose packets do
/// not wait for it however long the bound.
#[test]
fn a_stalled_engine_has_half_of_the_pool_at_most() {
    let settings = SchedulerSettings { latency: Duration::from_secs(3600), ..SchedulerSettings::default() };
    let mut ends = Ends::new(settings, Formation::default());
    ends.deep.set_busy(true);
    for id in 0..2500 {
        ends.send(0, id);
        if id % 100 == 99 {
            ends.turn(NO_TIME);
        }
    }
    assert_eq!(ends.scheduled().no_room, 2500 - 2048);
    for id in 0..1000 {
        ends.send(1, id);
        ends.turn(NO_TIME);
    }
    let [first, second, _] = ends.delivered();
    assert!(first.is_empty() && second.into_iter().eq(0..1000));
    ends.deep.set_busy(false);
    (0..60).for_each(|_| ends.turn(NO_TIME));
    assert!(ends.delivered()[0].iter().copied().eq(0..2500));
    ends.a.assert_settled();
}

/// What an engine does not take of a chunk goes to the next one.
#[test]
fn what_the_engine_refuses_goes_to_the_next_one() {
    let mut ends = Ends::small();
    ends.deep.state().takes = Some(3);
    (0..200).for_each(|id| ends.send((id % 3) as u8, id));
    (0..60).for_each(|_| ends.turn(NO_TIME));
    let submissions = ends.deep.take_submissions();
    assert!(submissions.iter().all(|submission| submission.len() <= 3));
    let Scheduled { chunks, packets, no_room, too_late, .. } = ends.scheduled();
    assert_eq!((chunks, packets + no_room, too_late), (submissions.len() as u64, 200, 0));
    assert!(packets <= 3 * chunks && no_room > 100, "{packets} of {chunks} chunks, {no_room} not taken");
    for (tunnel, delivered) in (0..3).zip(ends.delivered()) {
        assert!(delivered.into_iter().eq((0..200).filter(|id| id % 3 == tunnel)), "tunnel {tunnel}");
    }
    ends.a.assert_settled();
}

/// A change of its thread says nothing of what an engine can take: bins keep their jobs, within the bound.
#[test]
fn what_waits_for_an_engine_that_rests_waits_on_and_is_not_refused() {
    let mut ends = Ends::small();
    ends.send(0, 0);
    (0..3).for_each(|_| ends.turn(NO_TIME));
    assert_eq!((ends.deep.take_submissions().len(), ends.delivered().concat().len()), (1, 1));
    ends.deep.state().is_resting = true;
    (1..9).for_each(|id| ends.send(1, id));
    (0..5).for_each(|_| ends.turn(Duration::from_micros(50)));
    assert!(ends.delivered().concat().is_empty(), "they wait");
    ends.deep.state().is_resting = false;
    (0..3).for_each(|_| ends.turn(NO_TIME));
    assert_eq!(ends.deep.take_submissions().iter().map(Vec::len).collect::<Vec<_>>(), [8]);
    ends.deep.state().is_resting = true;
    // More than bins and leftovers hold, and longer than the bound.
    (9..100).for_each(|id| ends.send(1, id));
    (0..5).for_each(|_| ends.turn(NO_TIME));
    ends.turn(Duration::from_millis(1));
    (0..5).for_each(|_| ends.turn(NO_TIME));
    assert!(ends.delivered()[1].iter().copied().eq(1..100));
    let Scheduled { chunks, packets, no_room, too_late, .. } = ends.scheduled();
    assert_eq!((chunks, packets, no_room + too_late), (2, 9, 91));
    assert!(no_room < 91 - 16 && too_late >= 16, "{no_room} {too_late}");
    ends.a.assert_settled();
}

const STEP: Duration = Duration::from_micros(50);
/// Turns of the bound.
const BOUND: usize = 1000 / 50;

/// An engine that stalls with packet `first` of tunnel 0: packets of the others leave within the bound, one
/// turn aside, and later ones do not even wait. Returns how many packets still wait.
fn stall(ends: &mut Ends, first: u32) -> usize {
    ends.deep.set_busy(true);
    ends.send(0, first);
    ends.turn(STEP);
    ends.turn(STEP);
    let (mut sent, mut longest) = (HashMap::new(), 0);
    for step in 0..400 {
        // Two packets in a turn: bins are not full before the bound.
        if step % 4 == 0 {
            for tunnel in [1, 2] {
                let id = first + step as u32 * 4 + u32::from(tunnel);
                ends.send(tunnel, id);
                sent.insert(id, step);
            }
        }
        ends.turn(STEP);
        for id in ends.delivered().concat() {
            longest = longest.max(step - sent.remove(&id).expect("once"));
        }
    }
    assert!((BOUND / 2..=BOUND + 1).contains(&longest), "{longest} turns of 50 us");
    assert!(sent.values().all(|step| 400 - step <= BOUND + 1), "nothing waits on");
    assert_eq!(ends.deep.state().held.len(), 1, "it got nothing more");
    sent.len()
}

/// It stalls twice: the first time says little of how long a chunk will be away.
#[test]
fn the_bound_holds_when_an_engine_stalls() {
    let mut ends = Ends::small();
    let waiting = stall(&mut ends, 0);
    let Scheduled { chunks, packets, no_room, too_late, .. } = ends.scheduled();
    assert_eq!((chunks, packets, no_room, too_late + waiting as u64), (1, 1, 0, 200));
    // Those of tunnel 0 keep their order behind the one that is away.
    (1..20).for_each(|id| ends.send(0, id));
    (0..40).for_each(|_| ends.turn(STEP));
    assert!(ends.delivered()[0].is_empty());
    ends.deep.set_busy(false);
    (0..10).for_each(|_| ends.turn(STEP));
    assert!(ends.delivered()[0].iter().copied().eq(0..20));
    ends.a.assert_settled();
    stall(&mut ends, 10_000);
    ends.deep.set_busy(false);
    (0..40).for_each(|_| ends.turn(STEP));
    ends.a.assert_settled();
}

/// Placed by cost, the deep engine has the classes of all three tunnels. With two chunks under way it stalls:
/// no packet of those that are not behind them waits longer than the bound, and the engine gets no more.
#[test]
fn the_bound_holds_when_an_engine_that_jobs_are_placed_at_stalls() {
    let settings =
        SchedulerSettings { chunk: 16, bins: 4, placement: PlacementMode::Live, ..Default::default() };
    let clock = Stepping::default();
    let slow = Slow(PortableEngine::new(), clock.clone());
    let mut ends = Ends::before(Box::new(slow), settings, Formation::default());
    ends.a.worker.set_placement_clock(Box::new(clock));
    let mut id = 0;
    let mut send = |ends: &mut Ends, tunnels: &[u8]| {
        for tunnel in tunnels {
            ends.send(*tunnel, id);
            id += 1;
        }
        ends.turn(STEP);
        id
    };
    for _ in 0..400 {
        send(&mut ends, &[0, 1, 2]);
    }
    (0..40).for_each(|_| ends.turn(STEP));
    ends.delivered();
    ends.deep.take_submissions();
    for _ in 0..10 {
        send(&mut ends, &[0, 1, 2]);
    }
    let jobs: usize = ends.deep.take_submissions().iter().map(Vec::len).sum();
    assert!(jobs >= 24, "{jobs} of 30 are its own");
    (0..40).for_each(|_| ends.turn(STEP));
    ends.deep.set_busy(true);
    send(&mut ends, &[0]);
    ends.turn(STEP);
    ends.delivered();
    let (mut sent, mut longest) = (HashMap::new(), 0);
    for step in 0..400 {
        if step % 4 == 0 {
            let next = send(&mut ends, &[1, 2]);
            sent.extend([(next - 2, step), (next - 1, step)]);
        } else {
            ends.turn(STEP);
        }
        for id in ends.delivered().concat() {
            longest = longest.max(step - sent.remove(&id).expect("once"));
        }
    }
    assert!(longest <= BOUND + 1, "{longest} turns of 50 us");
    assert!(sent.values().all(|step| 400 - step <= BOUND + 1), "nothing waits on: {sent:?}");
    let held = ends.deep.state().held.len();
    assert!(held <= 1 + 2 * BOUND / 4, "it has {held} jobs");
    ends.deep.set_busy(false);
    (0..10).for_each(|_| ends.turn(STEP));
    ends.a.assert_settled();
}

/// Its bins are the next engine's when an engine is taken out of service.
#[test]
fn an_engine_out_of_service_leaves_nothing_behind() {
    let settings = SchedulerSettings { latency: Duration::from_secs(3600), ..SchedulerSettings::default() };
    let mut ends = Ends::new(settings, Formation::default());
    ends.deep.set_busy(true);
    ends.send(0, 0);
    ends.turn(NO_TIME);
    ends.turn(NO_TIME);
    (1..100).for_each(|id| ends.send((id % 3) as u8, id));
    (0..5).for_each(|_| ends.turn(NO_TIME));
    assert!(ends.delivered().concat().is_empty() && ends.a.worker.is_busy());
    (0..30).for_each(|_| ends.turn(Duration::from_millis(70)));
    assert_eq!(ends.a.worker.take_withdrawals().len(), 1);
    let delivered = ends.delivered();
    assert!(delivered[0].iter().copied().eq((1..100).filter(|id| id % 3 == 0)), "the first is lost");
    assert_eq!(delivered.concat().len(), 99);
    assert!(!ends.a.worker.is_busy());
    ends.a.assert_settled();
}
