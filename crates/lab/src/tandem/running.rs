//! Gateways at work: the thread that serves them, and the generator and the sink before and after.

use std::num::NonZeroU64;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::thread::set_current_timer_slack;
use testudo_packet::ticks;

use crate::bench::pair::GatewayPair;
use crate::bench::threads::{bind, running};
use crate::generator::{Arrivals, Feed, Sizes, Timer};
use crate::harness::{Activity, Cores, DeviceError, Load, Trial};

/// Packets that the sink takes before the generator looks at the clock again.
const TAKEN: usize = 64;
/// A device whose worker did nothing for so many turns has nothing left.
const QUIET_TURNS: u64 = 64;
/// After so many turns without a packet a worker lets others have a processor that is shared.
const IDLE_TURNS: u32 = 32;
/// A worker that does not come to rest, or does not begin, in this time has failed.
const PATIENCE: Duration = Duration::from_secs(30);
/// How often the worker asks how long it had a processor, in ticks: about a thousand times a second.
const LOOK_TICKS: u64 = 1 << 21;
/// A trial is disturbed if the worker had no processor for longer than this, and than this share of it.
const LOST: Duration = Duration::from_micros(200);
const LOST_SHARE: f64 = 1e-3;

/// What a worker's thread serves.
pub(crate) trait Served: Send + 'static {
    /// Does what there is to do; returns how many packets moved.
    fn turn(&mut self) -> Result<usize, String>;

    /// Whether packets are under way, although none moved.
    fn is_busy(&self) -> bool;
}

impl Served for GatewayPair {
    #[inline]
    fn turn(&mut self) -> Result<usize, String> {
        GatewayPair::turn(self)
    }

    fn is_busy(&self) -> bool {
        GatewayPair::is_busy(self)
    }
}

/// The gateways for packets of some sizes, at work.
pub(crate) struct Running {
    pub(crate) sizes: Sizes,
    feed: Feed,
    timer: Timer,
    shared: Arc<Shared>,
    is_shared: bool,
    thread: Option<JoinHandle<()>>,
}

/// What the worker tells the generator's thread.
#[derive(Debug, Default)]
struct Shared {
    stop: AtomicBool,
    ended: AtomicBool,
    failure: Mutex<Option<String>>,
    turns: AtomicU64,
    quiet_turns: AtomicU64,
    busy_ticks: AtomicU64,
    all_ticks: AtomicU64,
    /// Time without a processor.
    lost_ns: AtomicU64,
    /// How long the worker is to sleep after a turn without work: told by the generator's thread.
    pause_ns: AtomicU64,
    /// How long it slept, and how often.
    paused_ns: AtomicU64,
    pauses: AtomicU64,
}

/// The worker's thread.
fn serve(mut gateways: impl Served, shared: &Shared, is_shared: bool) {
    // Sleepers are woken 50 µs late unless they ask for better. Where that is refused, pauses are longer, and
    // are measured as they are.
    let _ = set_current_timer_slack(NonZeroU64::new(1));
    let (mut before, mut looked) = (ticks(), ticks());
    let (mut turns, mut quiet, mut busy, mut all) = (0, 0, 0, 0);
    let mut clocks = (Instant::now(), running());
    let (mut paused, mut idle) = (Duration::ZERO, 0_u32);
    while !shared.stop.load(Ordering::Relaxed) {
        let moved = match gateways.turn() {
            Ok(moved) => moved,
            Err(what) => {
                *shared.failure.lock().unwrap_or_else(PoisonError::into_inner) = Some(what);
                return;
            }
        };
        let is_idle = moved == 0 && !gateways.is_busy();
        let now = ticks();
        let took = now.wrapping_sub(before);
        before = now;
        turns += 1;
        all += took;
        if moved > 0 {
            busy += took;
        }
        quiet = if is_idle { quiet + 1 } else { 0 };
        shared.busy_ticks.store(busy, Ordering::Relaxed);
        shared.all_ticks.store(all, Ordering::Relaxed);
        shared.quiet_turns.store(quiet, Ordering::Relaxed);
        shared.turns.store(turns, Ordering::Release);
        if now.wrapping_sub(looked) > LOOK_TICKS {
            looked = now;
            let read = (Instant::now(), running());
            let lost = (read.0 - clocks.0).saturating_sub(read.1.saturating_sub(clocks.1) + paused);
            (clocks, paused) = (read, Duration::ZERO);
            shared.lost_ns.fetch_add(nanoseconds(lost), Ordering::Relaxed);
        }
        let pause_ns = if is_idle { shared.pause_ns.load(Ordering::Relaxed) } else { 0 };
        if pause_ns > 0 {
            let asleep = pause(Duration::from_nanos(pause_ns));
            paused += asleep;
            shared.paused_ns.fetch_add(nanoseconds(asleep), Ordering::Relaxed);
            shared.pauses.fetch_add(1, Ordering::Relaxed);
            // A turn begins after the pause, which is in the sum of ticks alone.
            let now = ticks();
            all += now.wrapping_sub(before);
            before = now;
        } else if is_shared {
            idle = if moved == 0 { idle + 1 } else { 0 };
            // Among many threads it is long until the processor comes back: not after every turn.
            if idle >= IDLE_TURNS {
                idle = 0;
                thread::yield_now();
            }
        }
    }
}

/// Sleeps, and returns for how long the processor was free: falling asleep and waking up is work.
fn pause(time: Duration) -> Duration {
    let (begun, running_before) = (Instant::now(), running());
    thread::sleep(time);
    let worked = running().saturating_sub(running_before);
    begun.elapsed().saturating_sub(worked)
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// What the worker has done so far.
#[derive(Debug, Clone, Copy)]
struct Reading {
    busy_ticks: u64,
    all_ticks: u64,
    lost_ns: u64,
    paused_ns: u64,
    pauses: u64,
    at: Instant,
}

impl Reading {
    /// What the worker did from this reading to a later one; `None` if it did not end a turn meanwhile.
    fn activity(&self, later: &Self) -> Option<Activity> {
        let elapsed = later.at - self.at;
        let ticks = (later.all_ticks - self.all_ticks) as f64;
        let of = |from, to| Duration::from_nanos(to - from).min(elapsed);
        (ticks > 0.0 && !elapsed.is_zero()).then(|| Activity {
            elapsed,
            paused: of(self.paused_ns, later.paused_ns),
            pauses: later.pauses - self.pauses,
            lost: of(self.lost_ns, later.lost_ns),
            cycles_per_second: ticks / elapsed.as_secs_f64(),
        })
    }
}

impl Running {
    /// Starts the thread of `gateways`, on the processor of the device. `is_shared` where threads have fewer
    /// processors than they are: a thread that has nothing to do lets others run.
    pub(crate) fn start(
        sizes: Sizes,
        (feed, timer): (Feed, Timer),
        cores: Cores,
        is_shared: bool,
        gateways: impl Served,
    ) -> Result<Self, DeviceError> {
        let shared = Arc::<Shared>::default();
        let told = Arc::clone(&shared);
        let body = move || {
            bind(cores.device);
            serve(gateways, &told, is_shared);
            told.ended.store(true, Ordering::Release);
        };
        let thread = thread::Builder::new().name("lab-device".to_owned()).spawn(body);
        let thread = Some(thread.map_err(|error| DeviceError(error.to_string()))?);
        Ok(Self { sizes, feed, timer, shared, is_shared, thread })
    }

    fn read(&self) -> Reading {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let Shared { busy_ticks, all_ticks, lost_ns, paused_ns, pauses, .. } = &*self.shared;
        Reading {
            busy_ticks: of(busy_ticks),
            all_ticks: of(all_ticks),
            lost_ns: of(lost_ns),
            paused_ns: of(paused_ns),
            pauses: of(pauses),
            at: Instant::now(),
        }
    }

    /// Whether the worker has ended, which it does only if it failed.
    fn check(&self) -> Result<(), DeviceError> {
        if !self.shared.ended.load(Ordering::Acquire) {
            return Ok(());
        }
        let failure = self.shared.failure.lock().unwrap_or_else(PoisonError::into_inner);
        Err(DeviceError(failure.clone().unwrap_or_else(|| "the gateways' thread has ended".to_owned())))
    }

    /// Waits until the worker has made `turns` more turns, while the sink takes what comes.
    fn wait_until(
        &mut self,
        arrivals: &mut Arrivals,
        is_reached: impl Fn(&Self) -> bool,
    ) -> Result<(), DeviceError> {
        let begun = Instant::now();
        loop {
            let came = self.feed.collect(arrivals, TAKEN);
            if came == 0 && is_reached(self) {
                return Ok(());
            }
            self.check()?;
            if begun.elapsed() > PATIENCE {
                return Err(DeviceError("the gateways do not come to rest".to_owned()));
            }
            if came == 0 {
                thread::yield_now();
            }
        }
    }

    /// Waits until no packet is under way.
    fn settle(&mut self, arrivals: &mut Arrivals) -> Result<(), DeviceError> {
        self.wait_until(arrivals, |running| running.feed.is_empty())?;
        // The count of quiet turns is that of the turn before until the turn that took the last packet ends.
        let turns = self.shared.turns.load(Ordering::Acquire);
        self.wait_until(arrivals, |running| {
            running.shared.turns.load(Ordering::Acquire) > turns + 1
                && running.shared.quiet_turns.load(Ordering::Relaxed) >= QUIET_TURNS
        })?;
        while self.feed.collect(arrivals, TAKEN) > 0 {}
        Ok(())
    }

    /// Offers `load` in the trial of this number, while the worker sleeps for `pause` whenever it finds
    /// nothing to do.
    pub(crate) fn trial(&mut self, number: u16, load: Load, pause: Duration) -> Result<Trial, DeviceError> {
        let mut arrivals = Arrivals::new(number);
        self.settle(&mut arrivals)?;
        let faults = self.feed.faults();
        self.shared.pause_ns.store(nanoseconds(pause), Ordering::Relaxed);
        let before = self.read();
        let mut generator = load.generator(number, self.timer.now_ns());
        while !generator.is_done() {
            let sent = generator.poll(self.timer.now_ns(), |stamp| {
                // Where the ring is full the packet is lost, as at a NIC.
                let _ = self.feed.send(stamp);
            });
            let came = self.feed.collect(&mut arrivals, TAKEN);
            if sent == 0 && came == 0 && self.is_shared {
                thread::yield_now();
            }
            self.check()?;
        }
        let after = self.read();
        // Pauses would only delay the end.
        self.shared.pause_ns.store(0, Ordering::Relaxed);
        self.settle(&mut arrivals)?;
        let (changed, unread) = self.feed.faults();
        if changed > faults.0 {
            let changed = changed - faults.0;
            return Err(DeviceError(format!("{changed} packets came back changed")));
        }
        let mut trial = Trial::of(load, &generator, arrivals);
        let all = after.all_ticks - before.all_ticks;
        trial.busy_share = (all > 0).then(|| (after.busy_ticks - before.busy_ticks) as f64 / all as f64);
        let lost = Duration::from_nanos(after.lost_ns - before.lost_ns);
        trial.activity = before.activity(&after);
        let is_long = lost > LOST && lost.as_secs_f64() > LOST_SHARE * trial.sending.as_secs_f64();
        // What the sink had no room for came back, but nobody counted it.
        trial.is_disturbed = is_long || unread > faults.1;
        Ok(trial)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
