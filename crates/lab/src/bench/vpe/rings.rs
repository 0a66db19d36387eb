//! The paper's own parallel ESP (its figure 4), for comparison: one thread numbers, several encrypt, and one
//! ring each way lies between it and each of them.
//!
//! ```text
//!                                   ┌─ ring ─► thread 1: cryptography ─ ring ─┐
//!   port ─► numbers, headers ───────┼─ ring ─► thread 2: cryptography ─ ring ─┼──► in the SA's order ─► port
//!           (a worker of a gateway) └─ ring ─► …                             ─┘    (the same worker)
//! ```
//!
//! To the worker the threads are an asynchronous engine: it numbers packets before it submits their jobs, and
//! releases them in the order of their SA. Inbound it checks and moves the replay window, and what is between
//! is done by the threads. Unlike other engines this one waits while all rings are full.

use std::collections::VecDeque;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TryRecvError, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use testudo_crypto::{
    Capability, Direction, Engine, EngineError, Job, JobStatus, KeyId, KeyMaterial, Profile, Suite,
};

use super::threads;
use crate::bench::error::Wrong;

/// Jobs that are handed over at once, and how many such bursts a ring has room for.
const BURST: usize = 32;
const RING_BURSTS: usize = 8;
/// How often a thread looks at its ring before it waits: while there is work it never does.
const LOOKS: u32 = 2_000;
/// The longest that a key may take to be installed.
const PATIENCE: Duration = Duration::from_secs(5);
const NAME: &str = "rings";

enum Message {
    Jobs(Vec<Job>),
    Install(Box<KeyMaterial>, Direction, SyncSender<Result<KeyId, EngineError>>),
    Remove(KeyId),
}

/// A thread that does cryptography, and its rings.
struct Hand {
    /// `None` once it is to end.
    ring: Option<SyncSender<Message>>,
    back: Receiver<Vec<Job>>,
    /// Bursts that it has.
    has: usize,
    thread: Option<JoinHandle<()>>,
}

/// Cryptography by other threads, over rings.
pub(super) struct RingEngine {
    hands: Vec<Hand>,
    /// Whose turn it is.
    next: usize,
    /// What an engine of theirs can do.
    sample: Box<dyn Engine>,
    ready: VecDeque<Job>,
    /// Empty bursts, to be used again.
    spare: Vec<Vec<Job>>,
    in_flight: usize,
}

impl RingEngine {
    /// Starts a thread for each of these engines, which must be of one kind, and binds it to a processor.
    pub(super) fn start(
        engines: Vec<Box<dyn Engine>>,
        sample: Box<dyn Engine>,
        processors: &[usize],
    ) -> Result<Self, Wrong> {
        if !sample.is_synchronous() {
            return Err(format!(
                "{} does not end its jobs at once: no thread can wait for it",
                sample.name()
            ));
        }
        let start = |(number, engine): (usize, Box<dyn Engine>)| {
            let processor = processors.get(number % processors.len().max(1)).copied();
            let (ring, orders) = sync_channel(RING_BURSTS + 2);
            let (results, back) = sync_channel(RING_BURSTS + 2);
            let body = move || {
                processor.into_iter().for_each(threads::bind);
                serve(engine, &orders, &results);
            };
            let thread = std::thread::Builder::new().name(format!("ring-{number}")).spawn(body);
            let thread = thread.map_err(|e| format!("no thread can be started: {e}"))?;
            Ok(Hand { ring: Some(ring), back, has: 0, thread: Some(thread) })
        };
        let hands = engines.into_iter().enumerate().map(start).collect::<Result<Vec<_>, Wrong>>()?;
        if hands.is_empty() {
            return Err("no thread to encrypt".to_owned());
        }
        let (ready, spare) = (VecDeque::new(), Vec::new());
        Ok(Self { hands, next: 0, sample, ready, spare, in_flight: 0 })
    }

    fn refused(reason: &str) -> EngineError {
        EngineError::KeyRefused { engine: NAME, reason: reason.to_owned() }
    }

    /// Whose ring has room, in turns. While none has, the thread that numbers waits: there is nobody else to
    /// give jobs to. `None` if all threads have ended.
    fn free(&mut self) -> Option<usize> {
        loop {
            let count = self.hands.len();
            let mut in_turn = (0..count).map(|n| (self.next + n) % count);
            let free = in_turn.find(|&n| self.hands[n].has < RING_BURSTS);
            if free.is_some() {
                return free;
            }
            let has_ended = |hand: &Hand| hand.thread.as_ref().is_none_or(JoinHandle::is_finished);
            if self.hands.iter().all(has_ended) {
                return None;
            }
            std::thread::yield_now();
            self.collect();
        }
    }

    fn collect(&mut self) {
        for hand in &mut self.hands {
            while let Ok(mut jobs) = hand.back.try_recv() {
                hand.has -= 1;
                self.ready.extend(jobs.drain(..));
                self.spare.push(jobs);
            }
        }
    }
}

/// What a thread does until its ring has ended.
fn serve(mut engine: Box<dyn Engine>, orders: &Receiver<Message>, results: &SyncSender<Vec<Job>>) {
    while let Some(message) = next(orders) {
        match message {
            Message::Jobs(mut jobs) => {
                let mut from = 0;
                while from < jobs.len() {
                    match engine.submit(&mut jobs[from..]) {
                        // It takes none: their worker's next engine may.
                        0 => {
                            jobs[from..].iter_mut().for_each(|job| job.status = JobStatus::Fault);
                            break;
                        }
                        taken => from += taken,
                    }
                }
                if results.send(jobs).is_err() {
                    return;
                }
            }
            Message::Install(key, direction, answer) => drop(answer.send(engine.install(&key, direction))),
            Message::Remove(key) => engine.remove(key),
        }
    }
}

/// The next message: looked for often, then waited for.
fn next(orders: &Receiver<Message>) -> Option<Message> {
    for look in 1..=LOOKS {
        match orders.try_recv() {
            Ok(message) => return Some(message),
            Err(TryRecvError::Disconnected) => return None,
            // Where threads share a processor, the one that has the work needs it.
            Err(TryRecvError::Empty) if look % 64 == 0 => std::thread::yield_now(),
            Err(TryRecvError::Empty) => std::hint::spin_loop(),
        }
    }
    orders.recv().ok()
}

impl Engine for RingEngine {
    fn name(&self) -> &'static str {
        NAME
    }

    fn description(&self) -> String {
        format!("{} threads over rings, each with {}", self.hands.len(), self.sample.description())
    }

    fn capability(&self, suite: Suite) -> Option<Capability> {
        self.sample.capability(suite)
    }

    fn install(&mut self, key: &KeyMaterial, direction: Direction) -> Result<KeyId, EngineError> {
        let mut id = None;
        for hand in &self.hands {
            let (answer, answered) = sync_channel(1);
            let order = Message::Install(Box::new(key.clone()), direction, answer);
            let sent = hand.ring.as_ref().is_some_and(|ring| ring.send(order).is_ok());
            let one = match answered.recv_timeout(PATIENCE) {
                Ok(one) if sent => one?,
                Ok(_) | Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
                    return Err(Self::refused("a thread does not answer"));
                }
            };
            // Engines of one kind that were told the same call a key the same.
            if *id.get_or_insert(one) != one {
                return Err(Self::refused("threads call it differently"));
            }
        }
        id.ok_or_else(|| Self::refused("there is no thread"))
    }

    fn remove(&mut self, key: KeyId) {
        for hand in &self.hands {
            // After the jobs that were submitted under it.
            let ring = hand.ring.as_ref();
            let _ = ring.map(|ring| ring.send(Message::Remove(key)));
        }
    }

    fn profile(&self, suite: Suite) -> Profile {
        self.sample.profile(suite)
    }

    fn submit(&mut self, jobs: &mut [Job]) -> usize {
        let mut taken = 0;
        while taken < jobs.len() {
            let Some(at) = self.free() else { break };
            let end = jobs.len().min(taken + BURST);
            let mut burst = self.spare.pop().unwrap_or_else(|| Vec::with_capacity(BURST));
            burst.extend(jobs[taken..end].iter_mut().map(Job::take));
            let hand = &mut self.hands[at];
            let lost = match &hand.ring {
                Some(ring) => ring.send(Message::Jobs(burst)).err().map(|error| error.0),
                None => Some(Message::Jobs(burst)),
            };
            if let Some(Message::Jobs(burst)) = lost {
                // Its thread has ended: its jobs come back undone.
                let failed = burst.into_iter().map(|job| Job { status: JobStatus::Fault, ..job });
                self.ready.extend(failed);
            } else {
                hand.has += 1;
            }
            self.in_flight += end - taken;
            (taken, self.next) = (end, (at + 1) % self.hands.len());
        }
        taken
    }

    fn poll(&mut self, done: &mut Vec<Job>, max: usize) {
        if self.ready.len() < max {
            self.collect();
        }
        let count = max.min(self.ready.len());
        done.extend(self.ready.drain(..count));
        self.in_flight -= count;
    }

    fn in_flight(&self) -> usize {
        self.in_flight
    }
}

impl Drop for RingEngine {
    fn drop(&mut self) {
        for hand in &mut self.hands {
            hand.ring = None;
            // What it still had goes with its ring.
            while hand.back.recv().is_ok() {}
            if let Some(thread) = hand.thread.take() {
                let _ = thread.join();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::case::{Carrier, Way};
    use crate::bench::vpe::gateways::{Tunnel, packets, through};
    use testudo_crypto::PortableEngine;
    use testudo_packet::DropReason;
    use testudo_port_memory::Packets;

    const COUNT: usize = 5_000;
    /// Where a datagram of ESP over IPv4 has its sequence number.
    const SEQUENCE: std::ops::Range<usize> = 24..28;

    fn portable() -> Box<dyn Engine> {
        Box::new(PortableEngine::new())
    }

    fn rings(threads: usize) -> Box<dyn Engine> {
        let engines = (0..threads).map(|_| portable()).collect();
        Box::new(RingEngine::start(engines, portable(), &[]).unwrap())
    }

    fn tunnel() -> Tunnel {
        Tunnel::of(crate::bench::vpe::case(0, Suite::AES128GCM16, Carrier::Esp, Way::Outbound, 300))
    }

    fn originals() -> (Packets, Vec<Vec<u8>>) {
        let packets = packets(&tunnel().case, |_, _| {}).unwrap();
        let whole: Vec<Vec<u8>> = packets.iter().map(|(head, tail)| [head, tail].concat()).collect();
        let expected = whole.iter().cycle().take(COUNT).cloned().collect();
        (packets, expected)
    }

    #[test]
    fn every_packet_leaves_once_and_in_order_and_a_plain_gateway_opens_it() {
        let (packets, expected) = originals();
        for threads in 1..=3 {
            let sealed = through(&tunnel(), Way::Outbound, rings(threads), &packets, COUNT);
            let (worker, sealed) = sealed.unwrap();
            assert_eq!(worker.pool().in_use(), 0);
            let numbers: Vec<u32> =
                sealed.iter().map(|one| u32::from_be_bytes(one[SEQUENCE].try_into().unwrap())).collect();
            assert!(numbers.iter().copied().eq((1..).take(COUNT)), "{threads} threads: {numbers:?}");
            let sealed = Packets::from(sealed);
            // Opened by one thread, and over rings: both in order, whole.
            for engine in [portable(), rings(threads)] {
                let (worker, opened) = through(&tunnel(), Way::Inbound, engine, &sealed, COUNT).unwrap();
                assert_eq!(worker.pool().drops().total(), 0);
                assert!(opened == expected, "{threads} threads: {} packets", opened.len());
            }
        }
    }

    #[test]
    fn what_is_forged_or_replayed_is_dropped_and_the_others_stay_in_order() {
        let (packets, expected) = originals();
        let (_, mut sealed) = through(&tunnel(), Way::Outbound, portable(), &packets, COUNT).unwrap();
        sealed.iter_mut().step_by(10).for_each(|packet| packet[60] ^= 1);
        sealed.extend_from_within(COUNT - 100..);
        let sealed = Packets::from(sealed);
        let (worker, opened) = through(&tunnel(), Way::Inbound, rings(2), &sealed, sealed.len()).unwrap();
        let honest: Vec<_> = (0..).zip(expected).filter(|(at, _)| at % 10 != 0).map(|(_, one)| one).collect();
        assert!(opened == honest, "{} of {}", opened.len(), honest.len());
        let drops = worker.pool().drops();
        assert_eq!(drops.get(DropReason::ReplayDuplicate), 90);
        assert_eq!(drops.get(DropReason::AuthenticationFailed), 500 + 10);
    }

    #[test]
    fn a_full_ring_is_waited_for_and_every_job_ends_once() {
        let mut engine = RingEngine::start(vec![portable()], portable(), &[]).unwrap();
        let mut jobs: Vec<Job> = (0..2 * BURST * (RING_BURSTS + 2))
            .map(|n| Job {
                ticket: u32::try_from(n).unwrap(),
                ..Job::new(testudo_packet::Buffer::default(), Direction::Seal, 0)
            })
            .collect();
        let (mut done, mut submitted) = (Vec::new(), 0);
        while submitted < jobs.len() {
            let taken = engine.submit(&mut jobs[submitted..]);
            assert!(taken > BURST * RING_BURSTS, "{taken}");
            assert!(jobs[submitted..submitted + taken].iter().all(|job| job.status == JobStatus::Taken));
            submitted += taken;
            engine.poll(&mut done, 7);
            assert_eq!(engine.in_flight(), submitted - done.len());
        }
        while engine.in_flight() > 0 {
            engine.poll(&mut done, 64);
        }
        // They name no key.
        assert!(done.iter().all(|job| job.status == JobStatus::Fault));
        let tickets: Vec<u32> = done.iter().map(|job| job.ticket).collect();
        assert!(tickets.iter().copied().eq((0..).take(jobs.len())), "{tickets:?}");
    }
}
