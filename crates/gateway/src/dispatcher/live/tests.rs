use super::*;
use crate::clock::ManualClock;
use crate::scheduler::job;
use crate::withdrawn::{Withdrawal, WithdrawalReason};
use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use testudo_crypto::{Capability, Direction, Engine, EngineError, KeyId, KeyMaterial, PortableEngine, Suite};
use testudo_engine_late::{LateConfig, LateEngine};
use testudo_ipsec::SaRef;
use zeroize::Zeroizing;

pub(in crate::dispatcher) const SUITE: Suite = Suite::AES128GCM16;
/// All jobs have texts of 64 bytes.
const OF: Label = Label { rank: 0, class: 0 };

/// The portable engine, as others may be.
pub(in crate::dispatcher) struct Odd {
    inner: PortableEngine,
    name: &'static str,
    pub(in crate::dispatcher) takes_keys: bool,
    pub(in crate::dispatcher) is_synchronous: bool,
    /// The first job of each submission faults.
    pub(in crate::dispatcher) fails: bool,
    /// All jobs with so many bytes of text or more fault.
    pub(in crate::dispatcher) fails_from: u32,
    /// Submissions of which it takes nothing.
    refuses: u32,
    /// It does no suite.
    pub(in crate::dispatcher) does_nothing: bool,
    pub(in crate::dispatcher) later: Arc<Later>,
}

/// What becomes of an engine while it is in use.
pub(in crate::dispatcher) struct Later {
    pub(in crate::dispatcher) refuses_keys: AtomicBool,
    pub(in crate::dispatcher) fails_from: AtomicU32,
    /// Calls of `submit`.
    pub(in crate::dispatcher) calls: AtomicUsize,
}

impl Odd {
    pub(in crate::dispatcher) fn new(name: &'static str) -> Self {
        Self {
            inner: PortableEngine::new(),
            name,
            takes_keys: true,
            is_synchronous: true,
            fails: false,
            fails_from: u32::MAX,
            refuses: 0,
            does_nothing: false,
            later: Arc::new(Later {
                refuses_keys: AtomicBool::new(false),
                fails_from: AtomicU32::new(u32::MAX),
                calls: AtomicUsize::new(0),
            }),
        }
    }
}

impl Engine for Odd {
    fn name(&self) -> &'static str {
        self.name
    }
    fn description(&self) -> String {
        String::new()
    }
    fn capability(&self, suite: Suite) -> Option<Capability> {
        self.inner.capability(suite).filter(|_| !self.does_nothing)
    }
    fn install(&mut self, key: &KeyMaterial, direction: Direction) -> Result<KeyId, EngineError> {
        match self.takes_keys && !self.later.refuses_keys.load(Ordering::Relaxed) {
            true => self.inner.install(key, direction),
            false => Err(EngineError::Full { engine: self.name, limit: 0 }),
        }
    }
    fn remove(&mut self, key: KeyId) {
        self.inner.remove(key);
    }
    fn is_synchronous(&self) -> bool {
        self.is_synchronous
    }
    fn submit(&mut self, jobs: &mut [Job]) -> usize {
        self.later.calls.fetch_add(1, Ordering::Relaxed);
        if self.refuses > 0 {
            self.refuses -= 1;
            return 0;
        }
        let from = usize::from(self.fails).min(jobs.len());
        jobs[..from].iter_mut().for_each(|job| job.status = JobStatus::Fault);
        let fails_from = self.fails_from.min(self.later.fails_from.load(Ordering::Relaxed));
        if jobs.iter().any(|job| job.text_bytes >= fails_from) {
            jobs.iter_mut().for_each(|job| job.status = JobStatus::Fault);
            return jobs.len();
        }
        self.inner.submit(&mut jobs[from..]) + from
    }
}

/// A clock on which 1 us passes between two readings.
struct Stepping(Cell<u64>);

impl Clock for Stepping {
    fn now(&self) -> Moment {
        self.0.set(self.0.get() + 1);
        Moment(Duration::from_micros(self.0.get()))
    }
}

/// A dispatcher that places by cost, with an outbound SA.
pub(in crate::dispatcher) fn dispatcher<const N: usize>(engines: [Odd; N]) -> (Dispatcher, SaRef) {
    over(engines.into_iter().map(|engine| Box::new(engine) as Box<dyn Engine>).collect())
}

fn over(engines: Vec<Box<dyn Engine>>) -> (Dispatcher, SaRef) {
    let mut dispatcher = Dispatcher::new(engines, 64);
    let settings = SchedulerSettings { placement: PlacementMode::Live, ..SchedulerSettings::default() };
    dispatcher.set_scheduler(&settings);
    dispatcher.set_placement_clock(Box::new(ManualClock::default()));
    let bytes = Zeroizing::new(vec![7; SUITE.keying_material_bytes()]);
    let material = KeyMaterial::new(SUITE, bytes).unwrap();
    let (sa, key) = (SaRef::from_bits(1), dispatcher.install(material.into(), Direction::Seal).unwrap());
    dispatcher.connect(Direction::Seal, sa, key, SUITE);
    (dispatcher, sa)
}

/// Submits so many jobs. Returns the status of each.
pub(in crate::dispatcher) fn submit(dispatcher: &mut Dispatcher, sa: SaRef, count: u32) -> Vec<JobStatus> {
    submit_of(dispatcher, sa, count, 64)
}

/// The same of texts of so many bytes.
pub(in crate::dispatcher) fn submit_of(
    dispatcher: &mut Dispatcher,
    sa: SaRef,
    count: u32,
    bytes: u32,
) -> Vec<JobStatus> {
    let of_sa = |number| Job { sa: sa.bits(), ..job(SUITE, bytes, number, KeyId::NONE) };
    let (mut jobs, mut released): (Vec<Job>, _) = ((0..count).map(of_sa).collect(), Vec::new());
    let in_place = dispatcher.submit(&mut jobs, &mut released);
    let ended = if in_place { jobs } else { released };
    ended.iter().map(|job| job.status).collect()
}

#[test]
fn a_job_whose_key_no_engine_takes_ends_as_a_fault() {
    let [first, second] = ["first", "second"].map(Odd::new);
    let (mut dispatcher, sa) = dispatcher([first, Odd { takes_keys: false, ..second }]);
    assert_eq!(dispatcher.withdraw(0, crate::WithdrawalReason::KeptPackets, &mut Vec::new()), 0);
    assert_eq!(submit(&mut dispatcher, sa, 2), [JobStatus::Fault; 2]);
    assert_eq!(submit(&mut dispatcher, sa, 1), [JobStatus::Fault]);
    assert!(!dispatcher.is_busy());
}

/// What an engine does of another's submission is a submission of its own.
#[test]
fn what_goes_on_to_another_engine_is_measured_without_the_rest() {
    let [first, second] = ["first", "second"].map(Odd::new);
    let (mut dispatcher, sa) = dispatcher([Odd { fails: true, ..first }, second]);
    dispatcher.set_placement_clock(Box::new(Stepping(Cell::new(0))));
    let us = Duration::from_micros;
    let costs = &mut dispatcher.live.as_mut().unwrap().costs;
    costs.know(0, OF, us(2));
    costs.know(1, OF, us(5));
    assert_eq!(submit(&mut dispatcher, sa, 4), [JobStatus::Done; 4]);
    let live = dispatcher.live.as_ref().unwrap();
    assert_eq!(live.costs.known(0, OF), 2_000_000, "not all of it ended there");
    assert_eq!(live.costs.known(1, OF), 4_500_000, "one job in 1 us");
    assert!(live.labels.is_empty() && live.labels.capacity() >= SUBMISSION);
}

/// A submission of two lengths, of which the second engine has one and is asked for the other: neither is
/// learned as a part of what both took.
#[test]
fn what_an_engine_is_asked_for_is_measured_without_its_other_jobs() {
    const LONG: Label = Label { rank: 0, class: 3 };
    let (mut dispatcher, sa) = dispatcher(["first", "second"].map(Odd::new));
    let know = |dispatcher: &mut Dispatcher| {
        let costs = &mut dispatcher.live.as_mut().unwrap().costs;
        for (engine, of, us) in [(0, OF, 1), (1, OF, 2), (0, LONG, 5), (1, LONG, 1)] {
            costs.know(engine, of, Duration::from_micros(us));
        }
    };
    know(&mut dispatcher);
    submit_of(&mut dispatcher, sa, 1, 512);
    // Until the next job is one before which others are looked at.
    for _ in 0..8 {
        dispatcher.live.as_mut().unwrap().settled.be_due();
        submit(&mut dispatcher, sa, 32);
    }
    know(&mut dispatcher);
    dispatcher.set_placement_clock(Box::new(Stepping(Cell::new(0))));
    dispatcher.poll(Moment(Duration::from_secs(2)), &mut Vec::new());
    dispatcher.live.as_mut().unwrap().settled.be_due();
    let of_sa = |number: u32| {
        let bytes = if number < 36 { 64 } else { 512 };
        Job { sa: sa.bits(), ..job(SUITE, bytes, number, KeyId::NONE) }
    };
    let (mut jobs, mut released): (Vec<Job>, _) = ((0..56).map(of_sa).collect(), Vec::new());
    assert!(!dispatcher.submit(&mut jobs, &mut released), "not in place");
    let numbers: Vec<u64> = released.iter().map(|job| job.sequence).collect();
    assert_eq!(numbers, (0..56).collect::<Vec<_>>(), "in their order");
    assert!(released.iter().all(|job| job.status == JobStatus::Done));
    let costs = &dispatcher.live.as_ref().unwrap().costs;
    let [asked, own] = [OF, LONG].map(|of| costs.known(1, of));
    assert!(asked.abs_diff(1_753_906) < 3, "{asked} ps: an eighth of 32 jobs in 1 us, not in 64");
    assert!(own.abs_diff(881_250) < 3, "{own} ps: an eighth of 20 jobs in 1 us, not in 20");
}

/// Engines with threads of their own do few jobs at once, although they are not synchronous.
#[test]
fn an_engine_that_ends_few_jobs_inside_submit_is_not_late() {
    let [first, second] = ["cores", "other"].map(Odd::new);
    let (mut dispatcher, sa) = dispatcher([Odd { is_synchronous: false, ..first }, second]);
    let costs = &mut dispatcher.live.as_mut().unwrap().costs;
    costs.know(0, OF, Duration::from_micros(2));
    costs.know(1, OF, Duration::from_micros(5));
    for second in 0..10 {
        dispatcher.poll(Moment(Duration::from_secs(second)), &mut Vec::new());
        assert_eq!(submit(&mut dispatcher, sa, 4), [JobStatus::Done; 4]);
    }
    let shares = dispatcher.shares().unwrap().snapshot();
    let late = Reason::ALL.iter().position(|reason| *reason == Reason::Late).unwrap();
    assert!(shares.rows.iter().all(|share| share.jobs[late] == 0), "{shares:?}");
    let first = shares.rows.iter().find(|share| share.engine == "cores").unwrap();
    assert!(first.total() >= 39, "{shares:?}");
}

/// Nothing will come back by which it would have room again.
#[test]
fn an_engine_that_refuses_jobs_while_it_has_none_is_not_full() {
    let [first, second] = ["device", "other"].map(Odd::new);
    let (mut dispatcher, sa) = dispatcher([Odd { is_synchronous: false, refuses: 1, ..first }, second]);
    let costs = &mut dispatcher.live.as_mut().unwrap().costs;
    costs.know(0, OF, Duration::from_micros(2));
    costs.know(1, OF, Duration::from_micros(5));
    for _ in 0..10 {
        assert_eq!(submit(&mut dispatcher, sa, 4), [JobStatus::Done; 4]);
    }
    let shares = dispatcher.shares().unwrap().snapshot();
    let of = |engine| shares.rows.iter().find(|share| share.engine == engine).unwrap();
    assert_eq!((of("device").total(), of("other").total()), (40, 4), "{shares:?}");
    assert_eq!((of("device").passed_on, of("other").passed_on), (4, 0), "{shares:?}");
}

/// It has none of the SAs' jobs.
const HANGS: Withdrawal = Withdrawal { engine: "late", packets: 0, reason: WithdrawalReason::KeptPackets };

#[test]
fn an_engine_that_hangs_as_it_is_measured_is_out_of_service() {
    let mut late = LateEngine::new(Box::new(PortableEngine::new()), LateConfig::reliable(1));
    late.keep_all(true);
    let (mut dispatcher, sa) = over(vec![Box::new(late), Box::new(Odd::new("other"))]);
    dispatcher.measure_engines(&[SUITE, Suite::AES256GCM16], Duration::MAX, &SystemClock::default());
    assert_eq!(dispatcher.take_withdrawals(), [HANGS]);
    assert_eq!([0, 1].map(|engine| dispatcher.withdrawn().get(engine)), [true, false]);
    let costs = &dispatcher.live.as_ref().unwrap().costs;
    assert!(costs.known(0, OF) == 0 && costs.known(1, OF) > 0);
    assert_eq!(submit(&mut dispatcher, sa, 4), [JobStatus::Done; 4]);
}

#[test]
fn what_there_is_no_time_to_measure_is_left_to_the_first_jobs() {
    let (mut dispatcher, sa) = dispatcher(["first", "second"].map(Odd::new));
    dispatcher.measure_engines(&[SUITE], Duration::ZERO, &SystemClock::default());
    let known =
        |dispatcher: &Dispatcher| [0, 1].map(|at| dispatcher.live.as_ref().unwrap().costs.known(at, OF));
    assert_eq!(known(&dispatcher), [0; 2]);
    assert_eq!(submit(&mut dispatcher, sa, 4), [JobStatus::Done; 4]);
    assert!(known(&dispatcher).iter().all(|ps| *ps > 0), "{:?}", known(&dispatcher));
}

/// Engines are the same for all workers: one of them measures, and the others know.
#[test]
fn what_one_worker_has_measured_others_know() {
    let engines = || {
        let mut late = LateEngine::new(Box::new(PortableEngine::new()), LateConfig::reliable(1));
        late.keep_all(true);
        vec![Box::new(late) as Box<dyn Engine>, Box::new(Odd::new("first")), Box::new(Odd::new("second"))]
    };
    let [(mut one, _), (mut other, sa)] = [over(engines()), over(engines())];
    let costs = one.measure_engines(&[SUITE], Duration::MAX, &SystemClock::default());
    other.know_engines(&costs);
    let known = |of: &Dispatcher| [0, 1, 2].map(|at| of.live.as_ref().unwrap().costs.known(at, OF));
    assert_eq!(known(&one), known(&other));
    assert!(known(&other)[0] == 0 && known(&other)[1] > 0 && known(&other)[2] > 0);
    assert_eq!(other.take_withdrawals(), [HANGS], "the device is one");
    assert_eq!(submit(&mut other, sa, 4), [JobStatus::Done; 4]);
}

/// A device that is broken costs little: it fails at once.
#[test]
fn an_engine_that_fails_at_all_it_gets_is_left_alone() {
    let [mut broken, other] = ["broken", "other"].map(Odd::new);
    (broken.fails, broken.is_synchronous) = (true, false);
    let (mut dispatcher, sa) = dispatcher([broken, other]);
    let costs = &mut dispatcher.live.as_mut().unwrap().costs;
    costs.know(0, OF, Duration::from_micros(2));
    costs.know(1, OF, Duration::from_micros(5));
    (0..1000).for_each(|_| assert_eq!(submit(&mut dispatcher, sa, 1), [JobStatus::Done]));
    let rows = dispatcher.shares().unwrap().snapshot().rows;
    let of = |engine| rows.iter().find(|share| share.engine == engine).unwrap();
    assert!(of("broken").total() < 50, "{rows:?}");
    assert_eq!(of("broken").passed_on, of("broken").total());
    assert!(of("other").is_chosen && of("other").total() == 1000, "{rows:?}");
}
