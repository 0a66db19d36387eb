//! The transmit thread: sends for a worker, on a thread of its own (paper 002, PIPSEA, section 3.1: of its
//! two I/O threads one has the receiver module, the other the sender module).
//!
//! ```text
//!   ports that receive ─► worker: protocol, packet scheduler ─► ring ─► transmit thread ─► ports that send
//!                           ▲                                              │
//!                           └────────────── ring: buffers ─────────────────┘
//! ```
//!
//! Verdicts of opened packets, replay windows and counters stay the worker's, which has the SAs. Calls of the
//! system or a driver that send take none of its time.
//!
//! Each side has a port that receives and one that sends at the same addresses and queues. To the worker they
//! are one port (`Split`). What it sends it publishes as bursts, which leave in their order: so the order of
//! each SA is what it is without the thread. A full ring takes nothing, and packets wait in the worker as for
//! any port; a side that has an eighth of the pool with the thread takes nothing either. The worker may sleep
//! until the thread has given something back ([`Room`]). Buffers come back with what became of their packets,
//! and the worker's pool counts the drops. All rings are bounded, and nothing is allocated for a packet.
//!
//! By choice ([`transmit_by_choice`]) the worker sends by the port that receives until the thread is wanted,
//! and again when it is not, for the threading model `auto`. Each side changes when the thread has none of
//! its packets; until then it takes nothing, so that they leave in their order.
//!
//! A port that fails ends the gateway as it does without the thread, with the worker's next call, and sends
//! nothing before that. When the worker ends its ports, what was published leaves first, as far as the ports
//! take it within a fifth of a second; the rest is dropped as [`DropReason::ShuttingDown`], and a failure is
//! reported when the ports are [finished](Port::finish).

use crate::room::Room;
use crate::worker::PortPair;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};
use testudo_packet::{
    Aside, BATCH_SIZE, Batch, Buffer, Consumer, DropReason, Interface, Pool, Port, PortCounters, PortError,
    Producer, Stray, ring, sleep_on,
};

/// The thread's name.
pub const TRANSMIT_THREAD: &str = "transmit-0";
/// Bursts that may wait for the thread on each side.
const BURSTS: usize = 64;
/// Packets that may be with the thread on each side, where the pool is large: a link that is blocked holds up
/// its own direction, and not the buffers of the other one. Of a small pool, its eighth.
const MOST_AWAY: usize = 512;
/// Bursts of buffers on their way back: more, since ports send parts of a burst.
const RETURNS: usize = 4 * BURSTS;
/// How often the thread looks at empty rings before it sleeps, and after how many looks it lets others have
/// its processor.
const LOOKS: u32 = 512;
const LOOKS_BEFORE_YIELD: u32 = 64;
/// How long what was published may take to leave when a port is ended, and how long the worker waits for
/// that.
const LEAVE: Duration = Duration::from_millis(200);
const PATIENCE: Duration = Duration::from_secs(1);
/// How long the thread waits for a port that takes nothing before it looks at the other one.
const BLOCKED: Timespec = Timespec { tv_sec: 0, tv_nsec: 1_000_000 };

/// What the worker and the thread know of one side.
struct Shared {
    /// Calls that sent packets.
    calls: AtomicU64,
    /// Why the port that sends has failed, until the worker has heard of it.
    failure: Mutex<Option<PortError>>,
    has_failed: AtomicBool,
    /// For the worker, if the thread has enough.
    room: Room,
}

/// The thread, for those who have to end it: both sides.
struct Running(Mutex<Option<JoinHandle<()>>>);

impl Drop for Running {
    fn drop(&mut self) {
        let thread = self.0.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        let Some(thread) = thread else { return };
        let began = Instant::now();
        while !thread.is_finished() && began.elapsed() < PATIENCE {
            std::thread::yield_now();
        }
        // One that hangs in a driver is left.
        if thread.is_finished() {
            let _ = thread.join();
        }
    }
}

/// One side's ports as one: this one receives, and another one sends, on the transmit thread.
struct Split {
    receives: Box<dyn Port>,
    /// `None` once the port is to end.
    bursts: Option<Producer<Vec<Buffer>>>,
    returns: Consumer<Vec<Stray>>,
    shared: Arc<Shared>,
    /// What has left, by interface: counted as buffers come back, so that each packet is either held or sent.
    /// A side of one interface has all in one; else the last is of packets that are of none.
    sent: Vec<PortCounters>,
    joins: bool,
    /// Buffers that the thread has, or that are on their way.
    away: usize,
    /// Who is to send; the thread, if nobody says.
    aside: Option<Arc<Aside>>,
    /// The thread sends.
    is_apart: bool,
    /// Why the port has failed at last, when it was ended.
    failure: Option<PortError>,
    _running: Arc<Running>,
}

/// Has a thread of its own, which begins with `first`, send what `ports` would send, by `senders`: ports at
/// the same addresses and queues that receive nothing. The thread ends with the ports that are returned.
///
/// # Errors
/// The system has no thread left.
pub fn transmit_apart(
    ports: PortPair,
    senders: PortPair,
    first: impl FnOnce() + Send + 'static,
) -> io::Result<PortPair> {
    transmit(ports, senders, None, first)
}

/// The same, but the thread sends only while `aside` wants that, and else the worker does, by the port that
/// receives. What either needs for it is noted there.
///
/// # Errors
/// The system has no thread left.
pub fn transmit_by_choice(
    ports: PortPair,
    senders: PortPair,
    aside: Arc<Aside>,
    first: impl FnOnce() + Send + 'static,
) -> io::Result<PortPair> {
    transmit(ports, senders, Some(aside), first)
}

fn transmit(
    ports: PortPair,
    senders: PortPair,
    aside: Option<Arc<Aside>>,
    first: impl FnOnce() + Send + 'static,
) -> io::Result<PortPair> {
    let PortPair { protected, unprotected } = ports;
    let (mut one, to_protected) = lane(&*protected, senders.protected, aside.clone())?;
    let (mut other, to_unprotected) = lane(&*unprotected, senders.unprotected, aside.clone())?;
    let body = move || {
        first();
        serve([to_protected, to_unprotected]);
    };
    let thread = Builder::new().name(TRANSMIT_THREAD.to_owned()).spawn(body)?;
    [&mut one, &mut other].into_iter().for_each(|ends| ends.bursts.wakes(thread.thread().clone()));
    let running = Arc::new(Running(Mutex::new(Some(thread))));
    let split = |receives, ends: Ends| -> Box<dyn Port> {
        let Ends { bursts, returns, shared, sent, joins } = ends;
        let (bursts, _running) = (Some(bursts), Arc::clone(&running));
        let (aside, is_apart, failure) = (aside.clone(), aside.is_none(), None);
        Box::new(Split {
            receives,
            bursts,
            returns,
            shared,
            sent,
            joins,
            away: 0,
            aside,
            is_apart,
            failure,
            _running,
        })
    };
    Ok(PortPair { protected: split(protected, one), unprotected: split(unprotected, other) })
}

/// The worker's ends of one side's rings.
struct Ends {
    bursts: Producer<Vec<Buffer>>,
    returns: Consumer<Vec<Stray>>,
    shared: Arc<Shared>,
    sent: Vec<PortCounters>,
    joins: bool,
}

fn lane(receives: &dyn Port, sends: Box<dyn Port>, aside: Option<Arc<Aside>>) -> io::Result<(Ends, Lane)> {
    let (bursts, to_send) = ring((0..BURSTS).map(|_| Vec::with_capacity(BATCH_SIZE)));
    let (left, returns) = ring((0..RETURNS).map(|_| Vec::with_capacity(BATCH_SIZE)));
    let shared = Arc::new(Shared {
        calls: AtomicU64::new(0),
        failure: Mutex::new(None),
        has_failed: AtomicBool::new(false),
        room: Room::new()?,
    });
    let interfaces = receives.interfaces();
    let sent = vec![PortCounters::default(); interfaces.max(1) + usize::from(interfaces > 1)];
    let _gone = Gone(Arc::clone(&shared));
    let ends = Ends { bursts, returns, shared: Arc::clone(&shared), sent, joins: sends.joins() };
    let lane = Lane {
        port: sends,
        bursts: to_send,
        returns: left,
        shared,
        aside,
        pool: Pool::for_strays(),
        batch: Batch::new(),
        closed_at: None,
        _gone,
    };
    Ok((ends, lane))
}

impl Split {
    /// Takes back what has left or was dropped.
    fn collect(&mut self, pool: &mut Pool) {
        let Self { returns, sent, away, .. } = self;
        while returns.take(|strays| {
            *away = away.saturating_sub(strays.len());
            for Stray { buffer, dropped } in strays.drain(..) {
                let Some(reason) = dropped else {
                    let last = sent.len().saturating_sub(1);
                    if let Some(sent) = sent.get_mut(last.min(usize::from(buffer.interface().0))) {
                        sent.tx_packets += 1;
                        sent.tx_bytes += buffer.len() as u64;
                    }
                    pool.recycle(buffer);
                    continue;
                };
                pool.discard(buffer, reason);
            }
            true
        }) {}
    }

    /// Changes who sends, if that is wanted and nothing is with the thread; whether it has to be waited for.
    fn changes(&mut self) -> bool {
        let Some(aside) = &self.aside else { return false };
        let wanted = aside.is_wanted();
        if self.away == 0 {
            self.is_apart = wanted;
        }
        wanted != self.is_apart
    }

    /// Fails as the port that sends has, once.
    fn check(&self) -> Result<(), PortError> {
        if self.shared.has_failed.load(Ordering::Acquire) {
            let failure = self.shared.failure.lock().unwrap_or_else(PoisonError::into_inner).take();
            self.shared.has_failed.store(false, Ordering::Release);
            return failure.map_or(Ok(()), Err);
        }
        if self.bursts.as_ref().is_some_and(Producer::is_abandoned) {
            return Err(self.panicked());
        }
        Ok(())
    }

    #[cold]
    fn panicked(&self) -> PortError {
        let what = "send: the transmit thread has ended in a panic; this is a bug".to_owned();
        PortError { port: self.name().to_owned(), what, source: None }
    }

    /// Has the descriptor for senders wait for the thread, unless that has already done something.
    fn await_room(&mut self) {
        self.shared.room.expect();
        let is_gone = self.bursts.as_ref().is_none_or(Producer::is_abandoned);
        if self.returns.has_any() || self.shared.has_failed.load(Ordering::Acquire) || is_gone {
            self.shared.room.make();
        }
    }

    /// Waits until nothing is with the thread any more, but not for long. What fails meanwhile is kept:
    /// nobody sends by this port again, who would hear of it.
    fn drain(&mut self, pool: &mut Pool) {
        let began = Instant::now();
        loop {
            let is_gone = self.returns.is_closed();
            self.collect(pool);
            self.failure = self.failure.take().or(self.check().err());
            if self.away == 0 || began.elapsed() > PATIENCE {
                return;
            }
            if is_gone {
                self.failure = self.failure.take().or_else(|| Some(self.panicked()));
                return;
            }
            std::thread::yield_now();
        }
    }
}

impl Port for Split {
    fn name(&self) -> &str {
        self.receives.name()
    }

    fn rx(&mut self, pool: &mut Pool, batch: &mut Batch) -> Result<usize, PortError> {
        self.collect(pool);
        self.check()?;
        self.receives.rx(pool, batch)
    }

    fn tx(&mut self, pool: &mut Pool, batch: &mut Batch) -> Result<usize, PortError> {
        self.collect(pool);
        self.check()?;
        let count = batch.len();
        if count == 0 || self.bursts.is_none() {
            return Ok(0);
        }
        let must_wait = self.changes();
        if let Some(aside) = self.aside.as_ref().filter(|_| !self.is_apart && !must_wait) {
            let began = Instant::now();
            let sent = self.receives.tx(pool, batch);
            aside.add_work(began);
            return sent;
        }
        let has_enough = must_wait || self.away > MOST_AWAY.min(pool.size() / 8);
        let Some(bursts) = &mut self.bursts else { return Ok(0) };
        if has_enough || !bursts.publish(|burst| burst.extend(batch.drain(..))) {
            // On a processor that both share, the thread gets it now.
            std::thread::yield_now();
            self.await_room();
            return Ok(0);
        }
        bursts.wake();
        self.away += count;
        Ok(count)
    }

    fn readiness(&self) -> Vec<BorrowedFd<'_>> {
        self.receives.readiness()
    }

    fn readiness_to_send(&self) -> Vec<BorrowedFd<'_>> {
        match self.is_apart {
            true => vec![self.shared.room.as_fd()],
            false => self.receives.readiness_to_send(),
        }
    }

    fn joins(&self) -> bool {
        self.joins
    }

    fn fragments_udp(&self) -> bool {
        self.receives.fragments_udp()
    }

    fn interfaces(&self) -> usize {
        self.receives.interfaces()
    }

    fn interface(&self, interface: Interface) -> Option<(&str, PortCounters)> {
        let (name, received) = self.receives.interface(interface)?;
        Some((name, with_sent(received, self.sent.get(usize::from(interface.0))?)))
    }

    fn exhausted(&self) -> bool {
        self.receives.exhausted()
    }

    fn finish(&mut self) -> Result<(), PortError> {
        self.failure.take().map_or_else(|| self.check(), Err)?;
        self.receives.finish()
    }

    fn end(&mut self, pool: &mut Pool) {
        self.failure = self.check().err();
        self.bursts = None;
        self.drain(pool);
        self.receives.end(pool);
    }

    fn counters(&self) -> PortCounters {
        let sum = |sum, of| with_sent(sum, &of);
        let counters = self.sent.iter().copied().fold(self.receives.counters(), sum);
        let calls = self.shared.calls.load(Ordering::Relaxed);
        PortCounters { tx_calls: counters.tx_calls + calls, ..counters }
    }
}

/// These counters with what was sent.
fn with_sent(of: PortCounters, sent: &PortCounters) -> PortCounters {
    let (tx_packets, tx_bytes) = (of.tx_packets + sent.tx_packets, of.tx_bytes + sent.tx_bytes);
    PortCounters { tx_packets, tx_bytes, ..of }
}

/// One side, as the thread has it.
struct Lane {
    port: Box<dyn Port>,
    bursts: Consumer<Vec<Buffer>>,
    returns: Producer<Vec<Stray>>,
    shared: Arc<Shared>,
    /// Where the time is booked in which the port sends, if anybody asks for that.
    aside: Option<Arc<Aside>>,
    /// Where the port puts what has left it.
    pool: Pool,
    /// What is being sent.
    batch: Batch,
    /// Since when nothing more is published.
    closed_at: Option<Instant>,
    /// The last, so that the worker sees that the ring is abandoned.
    _gone: Gone,
}

/// Wakes a worker that waits for a thread that is gone.
struct Gone(Arc<Shared>);

impl Drop for Gone {
    fn drop(&mut self) {
        self.0.room.make();
    }
}

/// What a lane has done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Did {
    Something,
    /// There was nothing to do.
    Nothing,
    /// Its port takes nothing now.
    Blocked,
    /// The worker takes nothing back now.
    Full,
    /// All has left, and nothing more comes.
    Ended,
}

impl Lane {
    fn turn(&mut self) -> Did {
        if self.closed_at.is_none() && self.bursts.is_closed() {
            self.closed_at = Some(Instant::now());
        }
        self.refill();
        let had = self.batch.len();
        let taken = if had > 0 { self.send() } else { 0 };
        let given = self.give_back();
        let has_strays = self.pool.strays().is_some_and(|strays| !strays.is_empty());
        match had {
            0 if given => Did::Something,
            0 if self.closed_at.is_some() && !has_strays && !self.bursts.has_any() => Did::Ended,
            0 if has_strays => Did::Full,
            0 => Did::Nothing,
            _ if taken > 0 => Did::Something,
            _ => Did::Blocked,
        }
    }

    /// Takes what the worker has published, as far as there is room for it, and for what comes back of it.
    fn refill(&mut self) {
        if self.pool.strays().is_some_and(|strays| strays.len() > BATCH_SIZE) {
            return;
        }
        let batch = &mut self.batch;
        while batch.remaining_capacity() > 0
            && self.bursts.take(|burst| {
                let count = burst.len().min(batch.remaining_capacity());
                batch.extend(burst.drain(..count));
                burst.is_empty()
            })
        {}
    }

    /// Sends what the port takes; returns how many packets that was, or were dropped. After a failure nothing
    /// is sent before the worker has heard of it.
    fn send(&mut self) -> usize {
        let before = self.batch.len();
        if self.closed_at.is_some_and(|at| at.elapsed() > LEAVE) {
            self.batch.drain(..).for_each(|packet| self.pool.discard(packet, DropReason::ShuttingDown));
            return before;
        }
        if self.shared.has_failed.load(Ordering::Acquire) {
            return 0;
        }
        let began = self.aside.as_ref().map(|aside| (aside, Instant::now()));
        let sent = self.port.tx(&mut self.pool, &mut self.batch);
        began.into_iter().for_each(|(aside, began)| aside.add_work(began));
        self.shared.calls.store(self.port.counters().tx_calls, Ordering::Relaxed);
        sent.unwrap_or_else(|error| {
            *self.shared.failure.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
            self.shared.has_failed.store(true, Ordering::Release);
            self.shared.room.make();
            before - self.batch.len()
        })
    }

    /// Gives back buffers; whether there were any that the worker's ring had room for.
    fn give_back(&mut self) -> bool {
        let Some(strays) = self.pool.strays() else { return false };
        if self.returns.is_abandoned() {
            // The worker is gone without having ended its ports.
            strays.clear();
        }
        let mut given = false;
        while !strays.is_empty() {
            let count = strays.len().min(BATCH_SIZE);
            if !self.returns.publish(|slot| slot.extend(strays.drain(..count))) {
                break;
            }
            given = true;
        }
        if given {
            self.shared.room.make();
        }
        given
    }
}

/// What the thread does until both sides are ended.
fn serve(mut lanes: [Lane; 2]) {
    let mut looks = 0;
    loop {
        let did = lanes.each_mut().map(Lane::turn);
        if did == [Did::Ended; 2] {
            break;
        }
        if did.contains(&Did::Something) {
            looks = 0;
        } else if did.contains(&Did::Blocked) || did.contains(&Did::Full) {
            wait(&lanes, did);
        } else if looks < LOOKS {
            looks += 1;
            match looks % LOOKS_BEFORE_YIELD {
                0 => std::thread::yield_now(),
                _ => std::hint::spin_loop(),
            }
        } else {
            looks = 0;
            rest(&mut lanes, did);
        }
    }
    // The devices are closed with them.
    drop(lanes);
}

/// Waits until a port that took nothing takes something, but not for long; nor for a worker that sleeps.
fn wait(lanes: &[Lane; 2], did: [Did; 2]) {
    let blocked = lanes.iter().zip(did).filter(|(_, did)| *did == Did::Blocked);
    let files = blocked.flat_map(|(lane, _)| lane.port.readiness());
    let mut files: Vec<_> = files.map(|file| PollFd::from_borrowed_fd(file, PollFlags::OUT)).collect();
    let _ = poll(&mut files, Some(&BLOCKED));
}

/// Sleeps until there is something to send. A lane that has ended wakes nobody, and keeps nobody awake.
fn rest(lanes: &mut [Lane; 2], did: [Did; 2]) {
    let [one, other] = lanes;
    match did {
        [Did::Ended, _] => other.bursts.sleep(),
        [_, Did::Ended] => one.bursts.sleep(),
        _ => sleep_on(&[&mut one.bursts, &mut other.bursts]),
    }
}

#[cfg(test)]
mod tests;
