//! A device by the order of engines that has its chunks back too late, or takes none for a while: what it
//! would keep beyond the bound is the next engine's, and the device has it again when it is fast.

use super::scheduler::gateway;
use crate::support::packet::{Inner, numbered};
use crate::support::{Gateway, Side};
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
use testudo_crypto::{
    Capability, Direction, Engine, EngineError, Job, JobStatus, KeyId, KeyMaterial, PortableEngine, Profile,
    Suite,
};
use testudo_gateway::{LateJobs, Scheduled, SchedulerSettings};

/// Chunks that it works on at a time.
const UNDER_WAY: usize = 2;
const FAST: Duration = Duration::from_micros(100);
const SLOW: Duration = Duration::from_millis(5);
const STEP: Duration = Duration::from_micros(250);
/// Turns of the bound, which is the usual one.
const BOUND: usize = 1000 / 250;
const TURNS_OF_A_SECOND: usize = 4 * 1000;
/// The suites of tunnels 0 and 1.
const SUITES: [Suite; 2] = [Suite::AES128GCM16, Suite::AES128_SHA1];
/// What 100 bytes are under AES-CBC with HMAC-SHA1: outer header, ESP, IV, blocks with the trailer, and ICV.
const LENGTH_OF_TUNNEL_1: usize = 20 + 8 + 16 + 112 + 12;

#[derive(Default)]
struct State {
    portable: PortableEngine,
    suites: HashMap<KeyId, Suite>,
    now: Duration,
    /// How long a chunk takes that has a job of a suite; that of others is [`FAST`].
    times: HashMap<Suite, Duration>,
    /// When each chunk ends, and its jobs.
    chunks: VecDeque<(Duration, Vec<Job>)>,
    /// What comes back from now on does so as faults.
    fails: bool,
    /// It has nothing back.
    hangs: bool,
    /// It takes nothing, and whether it says so when it is asked.
    refuses: bool,
    rests: bool,
    /// Jobs of each suite that it has taken.
    given: HashMap<Suite, usize>,
}

/// The portable engine as a device that does one chunk after the other, on simulated time. Clones share it.
#[derive(Clone, Default)]
struct Device(Arc<Mutex<State>>);

impl Device {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().expect("no test panics with the engine in its hands")
    }

    fn given(&self, suite: Suite) -> usize {
        self.state().given.get(&suite).copied().unwrap_or(0)
    }
}

impl Engine for Device {
    fn name(&self) -> &'static str {
        "device"
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
        Profile { under_way: UNDER_WAY, ..Profile::of_depth(4096) }
    }
    fn is_resting(&mut self) -> bool {
        self.state().rests
    }
    fn submit(&mut self, jobs: &mut [Job]) -> usize {
        let state = &mut *self.state();
        if state.refuses || state.rests || state.chunks.len() >= UNDER_WAY {
            return 0;
        }
        let mut takes = FAST;
        for job in jobs.iter() {
            let suite = state.suites[&job.key];
            *state.given.entry(suite).or_default() += 1;
            takes = takes.max(state.times.get(&suite).copied().unwrap_or(FAST));
        }
        let begins = state.chunks.back().map_or(state.now, |(end, _)| state.now.max(*end));
        state.chunks.push_back((begins + takes, jobs.iter_mut().map(Job::take).collect()));
        jobs.len()
    }
    fn poll(&mut self, done: &mut Vec<Job>, max: usize) {
        let state = &mut *self.state();
        let before = done.len();
        while let Some((end, jobs)) = state.chunks.front_mut()
            && (*end <= state.now && !state.hangs || state.fails)
            && done.len() < before + max
        {
            let count = jobs.len().min(before + max - done.len());
            let mut ended: Vec<Job> = jobs.drain(..count).collect();
            match state.fails {
                true => ended.iter_mut().for_each(|job| job.status = JobStatus::Fault),
                false => assert_eq!(state.portable.submit(&mut ended), count),
            }
            done.append(&mut ended);
            if jobs.is_empty() {
                state.chunks.pop_front();
            }
        }
    }
    fn in_flight(&self) -> usize {
        self.state().chunks.iter().map(|(_, jobs)| jobs.len()).sum()
    }
}

/// A with the device before the portable engine.
struct Ends {
    a: Gateway,
    device: Device,
    /// Packets of each tunnel that were sent, and in which turn those of tunnel 0.
    sent: [u32; 2],
    sent_at: VecDeque<usize>,
    turns: usize,
    /// The time of a turn.
    step: Duration,
    /// Packets of tunnel 0 that left, and those that had waited for longer than the bound.
    left: usize,
    late: usize,
}

impl Ends {
    fn new() -> Self {
        let device = Device::default();
        let a = gateway(
            Side::A,
            vec![Box::new(device.clone()), Box::new(PortableEngine::new())],
            &SchedulerSettings::default(),
        );
        let sent_at = VecDeque::new();
        Self { a, device, sent: [0; 2], sent_at, turns: 0, step: STEP, left: 0, late: 0 }
    }

    /// The device takes so long for a chunk with a job of a tunnel.
    fn set_time(&self, tunnel: usize, time: Duration) {
        self.device.state().times.insert(SUITES[tunnel], time);
    }

    /// Turns with two packets each, of these tunnels.
    fn run(&mut self, turns: usize, tunnels: [u8; 2]) {
        for _ in 0..turns {
            for tunnel in tunnels {
                let sent = &mut self.sent[usize::from(tunnel)];
                let inner = Inner { total_bytes: 100, ..numbered(5, *sent, tunnel, true, 500) };
                self.a.protected.push(inner.bytes());
                *sent += 1;
                if tunnel == 0 {
                    self.sent_at.push_back(self.turns);
                }
            }
            self.turn();
        }
    }

    fn turn(&mut self) {
        self.a.clock.advance(self.step);
        self.device.state().now += self.step;
        self.a.turn();
        for sealed in self.a.unprotected.take() {
            // Packets of a tunnel leave in order, and are told apart by their length.
            if sealed.len() != LENGTH_OF_TUNNEL_1 {
                let at = self.sent_at.pop_front().expect("it was sent");
                (self.left, self.late) = (self.left + 1, self.late + usize::from(self.turns - at > BOUND));
            }
        }
        self.turns += 1;
    }

    /// Packets of tunnel 0 that waited for longer than the bound, and all that left, since this was asked.
    fn take_late(&mut self) -> (usize, usize) {
        (std::mem::take(&mut self.late), std::mem::take(&mut self.left))
    }

    fn scheduled(&self) -> Scheduled {
        self.a.worker.counters().scheduled().next().expect("one engine has bins").1
    }

    /// What others are told of the jobs that the device is not given.
    fn late_jobs(&self) -> Vec<LateJobs> {
        self.a.worker.counters().late_jobs().flat_map(|(_, late)| late).collect()
    }

    /// Ends all: each packet left once.
    fn finish(&mut self) {
        (0..TURNS_OF_A_SECOND).for_each(|_| self.turn());
        assert!(self.sent_at.is_empty() && !self.a.worker.is_busy());
        self.a.assert_settled();
        assert!(self.a.worker.take_withdrawals().is_empty());
    }
}

/// The part of a hundred that `part` is of `all`.
fn percent(part: usize, all: usize) -> usize {
    part * 100 / all.max(1)
}

const GCM: Suite = SUITES[0];
const OF_TUNNEL_0: [u8; 2] = [0, 0];

/// A device that takes longer than the bound for a chunk, tried and given up.
fn slow() -> Ends {
    let mut ends = Ends::new();
    ends.set_time(0, SLOW);
    ends.run(TURNS_OF_A_SECOND / 10, OF_TUNNEL_0);
    assert!(ends.device.given(GCM) > 0, "nothing was known of it");
    ends.take_late();
    ends
}

#[test]
fn a_device_whose_chunks_are_late_leaves_packets_to_the_next_engine_and_is_used_again_when_it_is_fast() {
    let mut ends = slow();
    assert_eq!(ends.late_jobs(), [LateJobs { suite: GCM, direction: Direction::Seal, class: 1 }]);
    assert_eq!(ends.late_jobs()[0].longest(), Some(128));
    let before = ends.device.given(GCM);
    ends.run(5 * TURNS_OF_A_SECOND / 2, OF_TUNNEL_0);
    let (late, left) = ends.take_late();
    assert!(left > 19_000 && late * 100 < left, "{late} of {left} are late");
    let tried = ends.device.given(GCM) - before;
    assert!(tried > 0 && tried * 128 < left, "{tried} of {left} went to it nevertheless");
    assert!(ends.scheduled().too_late > 19_000, "{:?}", ends.scheduled());
    ends.set_time(0, FAST);
    ends.run(4 * TURNS_OF_A_SECOND, OF_TUNNEL_0);
    ends.take_late();
    let before = ends.device.given(GCM);
    ends.run(1000, OF_TUNNEL_0);
    let (late, left) = ends.take_late();
    let given = ends.device.given(GCM) - before;
    assert!(percent(given, left) > 95 && late == 0, "it has {given} of {left}, {late} are late");
    assert_eq!(ends.late_jobs(), []);
    ends.finish();
}

/// The next engine does what the device does not get within turns that are longer than the bound.
#[test]
fn a_device_that_is_fast_again_is_used_though_turns_are_longer_than_the_bound() {
    let mut ends = slow();
    ends.set_time(0, FAST);
    ends.step = Duration::from_millis(2);
    ends.run(1500, OF_TUNNEL_0);
    let before = ends.device.given(GCM);
    ends.run(200, OF_TUNNEL_0);
    let given = ends.device.given(GCM) - before;
    assert!(percent(given, 400) > 95, "it has {given} of 400");
    ends.finish();
}

/// What ends as a fault is soon back, and would not be if it was done.
#[test]
fn a_device_that_fails_at_the_chunks_that_it_is_tried_with_is_not_used() {
    let mut ends = slow();
    ends.set_time(0, FAST);
    ends.device.state().fails = true;
    let before = ends.device.given(GCM);
    ends.run(4 * TURNS_OF_A_SECOND, OF_TUNNEL_0);
    let (late, left) = ends.take_late();
    let tried = ends.device.given(GCM) - before;
    assert!(tried > 0 && tried * 128 < left, "{tried} of {left} went to it");
    assert!(late * 100 < left, "{late} of {left} are late");
    ends.device.state().fails = false;
    ends.finish();
}

/// One suite's chunks are late, and another's are not.
#[test]
fn what_a_device_does_in_time_stays_with_it_beside_what_it_does_too_late() {
    let mut ends = Ends::new();
    ends.set_time(1, SLOW);
    ends.run(4 * TURNS_OF_A_SECOND, [0, 1]);
    let before = SUITES.map(|suite| ends.device.given(suite));
    ends.run(TURNS_OF_A_SECOND, [0, 1]);
    let [fast, slow] = [0, 1].map(|at| ends.device.given(SUITES[at]) - before[at]);
    assert!(percent(fast, TURNS_OF_A_SECOND) > 90, "{fast} of what is in time");
    assert!(percent(slow, TURNS_OF_A_SECOND) < 1, "{slow} of what is late");
    assert!(ends.late_jobs().iter().all(|late| late.suite == SUITES[1]) && !ends.late_jobs().is_empty());
    ends.finish();
}

/// A device that hung: after 40 ms it has given all back as faults, and for three quarters of a second it
/// takes nothing. `takes_none` says how.
fn hang(takes_none: fn(&mut State, bool)) {
    let mut ends = Ends::new();
    ends.run(100, OF_TUNNEL_0);
    ends.device.state().hangs = true;
    ends.run(160, OF_TUNNEL_0);
    ends.device.state().fails = true;
    takes_none(&mut ends.device.state(), true);
    // Those that came last may have waited in bins, for the bound.
    ends.run(2 * BOUND, OF_TUNNEL_0);
    let before = ends.device.given(GCM);
    for _ in 0..3000 {
        ends.run(1, OF_TUNNEL_0);
        assert!(ends.sent_at.len() <= 2, "all but those of this turn have left");
    }
    assert_eq!(ends.device.given(GCM), before);
    assert!(ends.a.worker.take_withdrawals().is_empty(), "it is only asked to rest");
    {
        let state = &mut *ends.device.state();
        (state.hangs, state.fails) = (false, false);
        takes_none(state, false);
    }
    ends.run(10, OF_TUNNEL_0);
    let before = ends.device.given(GCM);
    ends.run(1000, OF_TUNNEL_0);
    assert_eq!(ends.device.given(GCM) - before, 2000, "all are its own again");
    ends.finish();
}

#[test]
fn nothing_waits_for_a_device_that_rests_for_long_and_then_it_is_used_again() {
    hang(|state, takes_none| state.rests = takes_none);
}

#[test]
fn nothing_waits_for_a_device_that_refuses_all_for_long_and_then_it_is_used_again() {
    hang(|state, takes_none| state.refuses = takes_none);
}
