//! Known times are found, to the tick: the clock moves only where it is told to.

use std::cell::Cell;

use super::*;

thread_local! {
    static NOW: Cell<u64> = const { Cell::new(1_000) };
}

fn clock() -> u64 {
    NOW.get()
}

fn pass(ticks: u64) {
    NOW.set(NOW.get() + ticks);
}

/// Packets take 100 ticks each to receive and 40 to send, and a call takes 7.
struct KnownPort {
    waiting: usize,
}

impl Port for KnownPort {
    fn name(&self) -> &'static str {
        "known"
    }

    fn rx(&mut self, _: &mut Pool, _: &mut Batch) -> Result<usize, PortError> {
        let received = self.waiting.min(32);
        self.waiting -= received;
        pass(7 + 100 * received as u64);
        Ok(received)
    }

    fn tx(&mut self, pool: &mut Pool, batch: &mut Batch) -> Result<usize, PortError> {
        let sent = batch.len();
        pool.recycle_all(batch);
        pass(7 + 40 * sent as u64);
        Ok(sent)
    }

    fn joins(&self) -> bool {
        false
    }

    fn counters(&self) -> PortCounters {
        PortCounters::default()
    }
}

/// Keeps jobs until it is asked for the third time; a call takes 500 ticks.
#[derive(Default)]
struct KnownEngine {
    jobs: Vec<Job>,
    polls: u32,
}

impl Engine for KnownEngine {
    fn name(&self) -> &'static str {
        "known"
    }

    fn description(&self) -> String {
        "known".to_owned()
    }

    fn capability(&self, _: Suite) -> Option<Capability> {
        None
    }

    fn install(&mut self, _: &KeyMaterial, _: Direction) -> Result<KeyId, EngineError> {
        Err(EngineError::KeyRefused { engine: "known", reason: "it takes none".to_owned() })
    }

    fn remove(&mut self, _: KeyId) {}

    fn submit(&mut self, jobs: &mut [Job]) -> usize {
        self.jobs.extend(jobs.iter_mut().map(Job::take));
        pass(500);
        jobs.len()
    }

    fn poll(&mut self, done: &mut Vec<Job>, max: usize) {
        self.polls += 1;
        pass(500);
        if self.polls.is_multiple_of(3) {
            done.extend(self.jobs.drain(..max.min(self.jobs.len())));
        }
    }

    fn in_flight(&self) -> usize {
        self.jobs.len()
    }
}

fn turn(times: &Times, body: impl FnOnce()) -> bool {
    let begun = times.begin();
    body();
    begun.is_some_and(|begun| times.commit(begun))
}

#[test]
fn ports_take_what_they_take_in_turns_with_packets_and_nothing_in_others() {
    let times = Times::new(clock);
    let mut port = TimedPort::around(Box::new(KnownPort { waiting: 72 }), &times);
    let (mut pool, mut batch) = (Pool::new(64, 2048), Batch::new());
    let mut one = |times: &Times| {
        turn(times, || {
            let received = port.rx(&mut pool, &mut batch).unwrap();
            pass(30 * received as u64);
            batch.extend((0..received).map(|_| pool.pop().unwrap()));
            port.tx(&mut pool, &mut batch).unwrap();
            pass(11);
        })
    };
    // Not switched on yet.
    assert!(!one(&times));
    times.set(true);
    let moved: Vec<bool> = (0..4).map(|_| one(&times)).collect();
    assert_eq!(moved, [true, true, false, false]);
    let spent = times.spent();
    // 40 packets in two turns.
    assert_eq!(spent, Spent { ports: 40 * 140 + 28, engines: 0, turns: 40 * 170 + 28 + 22, stay: 0 });
    times.set(false);
    assert!(!one(&times));
    assert_eq!(times.spent().since(spent), Spent::default());
}

#[test]
fn jobs_stay_in_an_engine_from_hand_over_to_return() {
    let times = Times::new(clock);
    times.set(true);
    let mut engine = TimedEngine::around(Box::<KnownEngine>::default(), Book::Worker(Arc::clone(&times)));
    let mut jobs: Vec<Job> =
        (0..10).map(|_| Job::new(testudo_packet::Buffer::default(), Direction::Seal, 0)).collect();
    assert!(turn(&times, || assert_eq!(engine.submit(&mut jobs), 10)));
    let mut done = Vec::new();
    for poll in 1..=3 {
        pass(1_000);
        let has_moved = turn(&times, || engine.poll(&mut done, 64));
        assert_eq!(has_moved, poll == 3);
    }
    assert_eq!((done.len(), engine.in_flight()), (10, 0));
    let spent = times.spent();
    // Of submit and of the poll that gave them back; polls in vain are waiting.
    assert_eq!((spent.engines, spent.turns, spent.ports), (1_000, 1_000, 0));
    // From the beginning of the hand-over to that of the poll that gave them back: three calls, three waits.
    assert_eq!(spent.stay, 10 * (3 * 500 + 3 * 1_000));
}

#[test]
fn other_threads_are_busy_and_the_worker_is_not_one_of_them() {
    let busy = Busy::new(clock);
    let work = |busy: &Busy| {
        let begun = busy.begin();
        pass(250);
        busy.end(begun);
    };
    work(&busy);
    assert_eq!(busy.ticks(), 0, "not switched on");
    busy.set(true);
    busy.is_worker();
    work(&busy);
    assert_eq!(busy.ticks(), 0, "the worker");
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| (0..10).for_each(|_| work(&busy)));
        }
    });
    assert_eq!(busy.ticks(), 4 * 10 * 250);
}
