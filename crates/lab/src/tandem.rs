//! The device that `testudo lab` measures: two gateways in memory, one worker thread on one core.
//!
//! ```text
//!   generator ─► ring ─► gateway that seals ═══► gateway that opens ─► ring ─► sink
//!   └ thread 1 ┘         └───────────── thread 2 ──────────────────┘           └ thread 1
//! ```
//!
//! RFC 2544 wants to see the frames again that it sent, which no gateway alone gives back. So the device is a
//! pair in series: a rate of the pair is the rate at which one core both seals and opens each packet. The
//! ring before it holds as many packets as a NIC has descriptors, [`FEED_PACKETS`]: what comes while it is
//! full is lost. Latencies begin where the generator puts a packet into that ring, and end where the second
//! gateway sends it: they include all queues.

use std::num::NonZeroU64;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::thread::set_current_timer_slack;
use testudo_crypto::Suite;
use testudo_gateway::Candidate;
use testudo_packet::ticks;

use crate::bench::BenchError;
use crate::bench::pair::{GatewayPair, PairEngines, PairSettings};
use crate::bench::threads::{allow, bind, processors, running};
use crate::generator::{
    Arrivals, FEED_PACKETS, FRAME_EXTRA_BYTES, Feed, MemoryPorts, Sizes, Timer, Traffic, generator_rate,
    memory_ports,
};
use crate::harness::{Activity, Cores, Device, DeviceError, Load, Trial};

/// How long the generator is measured alone, and the device is flooded, to know what rates make sense.
const PROBE: Duration = Duration::from_millis(50);
/// The maximum rate, as a multiple of what the flooded device forwards.
const BEYOND: f64 = 2.0;
/// Packets that the sink takes before the generator looks at the clock again.
const TAKEN: usize = 64;
/// A device whose worker did nothing for so many turns has nothing left.
const QUIET_TURNS: u64 = 64;
/// A worker that does not come to rest, or does not begin, in this time has failed.
const PATIENCE: Duration = Duration::from_secs(10);
/// How often the worker asks how long it had a processor, in ticks: about a thousand times a second.
const LOOK_TICKS: u64 = 1 << 21;
/// A trial is disturbed if the worker had no processor for longer than this, and than this share of it.
const LOST: Duration = Duration::from_micros(200);
const LOST_SHARE: f64 = 1e-3;

/// What is measured.
#[derive(Debug, Clone, Copy)]
pub struct TandemOptions {
    /// The suite of the tunnels.
    pub suite: Suite,
    /// SAs of each direction, and flows that are spread over them.
    pub sas: u32,
    /// Flows.
    pub flows: u32,
    /// Seed of addresses, lengths and payloads.
    pub seed: u64,
}

/// Two gateways in series, a [`Device`].
pub struct Tandem {
    options: TandemOptions,
    engines: PairEngines,
    engine: &'static str,
    cores: Cores,
    /// Those that this process may use.
    processors: Vec<usize>,
    running: Option<Running>,
    trials: u16,
    pause: Duration,
    maxima: Vec<(Sizes, f64)>,
}

/// The gateways for packets of some sizes, at work.
struct Running {
    sizes: Sizes,
    feed: Feed,
    timer: Timer,
    shared: Arc<Shared>,
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

impl Tandem {
    /// Gateways with the engine `engine`, or the first of the candidates that does the suite, or the portable
    /// one. The worker has the last of the processors that this process may use, and this thread, which
    /// generates and counts, is bound to the first until the device is dropped.
    ///
    /// # Errors
    /// No engine does the suite.
    pub fn new(
        options: TandemOptions,
        candidates: Vec<Candidate>,
        engine: Option<&str>,
    ) -> Result<Self, BenchError> {
        let engines = PairEngines::start(candidates, engine)?;
        let engine = engines.name(&settings(&options, crate::generator::LONGEST_FRAME_BYTES))?;
        let processors = processors();
        let (first, last) = (processors.first().copied(), processors.last().copied());
        let cores = Cores { device: last.unwrap_or(0), generator: first.unwrap_or(0) };
        bind(cores.generator);
        let (running, maxima) = (None, Vec::new());
        Ok(Self {
            options,
            engines,
            engine,
            cores,
            processors,
            running,
            trials: 0,
            pause: Duration::ZERO,
            maxima,
        })
    }

    /// The engine that does the cryptography.
    #[must_use]
    pub fn engine(&self) -> &'static str {
        self.engine
    }

    /// The processors of its threads.
    #[must_use]
    pub fn cores(&self) -> Cores {
        self.cores
    }

    /// The gateways for these sizes: those at work, or new ones in their place.
    fn start(&mut self, sizes: Sizes) -> Result<&mut Running, DeviceError> {
        if self.running.as_ref().is_none_or(|running| running.sizes != sizes) {
            self.running = None;
            self.running = Some(self.build(sizes)?);
        }
        self.running.as_mut().ok_or_else(|| DeviceError("the gateways did not start".to_owned()))
    }

    fn build(&self, sizes: Sizes) -> Result<Running, DeviceError> {
        let failed = |error: &dyn std::fmt::Display| DeviceError(error.to_string());
        let TandemOptions { sas, flows, seed, .. } = self.options;
        let traffic = Traffic { sas, flows, seed, ..Traffic::of(sizes) };
        let (templates, timer) = (traffic.templates().map_err(|error| failed(&error))?, Timer::start());
        let MemoryPorts { feed, returns, generator } = memory_ports(&templates, timer);
        let settings = settings(&self.options, sizes.longest_bytes());
        let pair = GatewayPair::build(&self.engines, &settings, Box::new(feed), Box::new(returns));
        let (pair, shared) = (pair.map_err(|error| failed(&error))?, Arc::<Shared>::default());
        let (cores, told) = (self.cores, Arc::clone(&shared));
        let body = move || {
            bind(cores.device);
            serve(pair, &told, cores.are_shared());
            told.ended.store(true, Ordering::Release);
        };
        let thread = thread::Builder::new().name("lab-device".to_owned()).spawn(body);
        let thread = Some(thread.map_err(|error| failed(&error))?);
        Ok(Running { sizes, feed: generator, timer, shared, thread })
    }
}

fn settings(options: &TandemOptions, longest_frame_bytes: usize) -> PairSettings {
    let longest_bytes = longest_frame_bytes - FRAME_EXTRA_BYTES;
    PairSettings { suite: options.suite, sas: options.sas, longest_bytes }
}

/// The worker's thread.
fn serve(mut pair: GatewayPair, shared: &Shared, is_shared: bool) {
    // Sleepers are woken 50 µs late unless they ask for better. Where that is refused, pauses are longer, and
    // are measured as they are.
    let _ = set_current_timer_slack(NonZeroU64::new(1));
    let (mut before, mut looked) = (ticks(), ticks());
    let (mut turns, mut quiet, mut busy, mut all) = (0, 0, 0, 0);
    let mut clocks = (Instant::now(), running());
    let mut paused = Duration::ZERO;
    while !shared.stop.load(Ordering::Relaxed) {
        let moved = match pair.turn() {
            Ok(moved) => moved,
            Err(what) => {
                *shared.failure.lock().unwrap_or_else(PoisonError::into_inner) = Some(what);
                return;
            }
        };
        let is_idle = moved == 0 && !pair.is_busy();
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
        } else if moved == 0 && is_shared {
            thread::yield_now();
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

    fn trial(
        &mut self,
        number: u16,
        load: Load,
        pause: Duration,
        is_shared: bool,
    ) -> Result<Trial, DeviceError> {
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
            if sent == 0 && came == 0 && is_shared {
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

impl Drop for Tandem {
    fn drop(&mut self) {
        allow(&self.processors);
    }
}

impl Device for Tandem {
    /// Memory has no rate of its own: this is the rate that the generator reaches alone, or twice what the
    /// flooded gateways forward, whichever is lower.
    fn maximum_rate(&mut self, sizes: Sizes) -> Result<f64, DeviceError> {
        if let Some((_, rate)) = self.maxima.iter().find(|(known, _)| *known == sizes) {
            return Ok(*rate);
        }
        let cores = self.cores;
        // The gateways would share the processor with what is measured.
        self.running = None;
        let alone = generator_rate(PROBE, || bind(cores.device));
        let flooded = self.trial(sizes, Load::rate(alone, PROBE))?;
        let rate = alone.min(BEYOND * flooded.received_rate());
        if rate < 1.0 {
            return Err(DeviceError("no packet comes through the gateways".to_owned()));
        }
        self.maxima.push((sizes, rate));
        Ok(rate)
    }

    fn trial(&mut self, sizes: Sizes, load: Load) -> Result<Trial, DeviceError> {
        self.trials = self.trials.wrapping_add(1);
        let (number, is_shared) = (self.trials, self.cores.are_shared());
        let pause = self.pause;
        self.start(sizes)?.trial(number, load, pause, is_shared)
    }

    fn set_pause(&mut self, pause: Duration) -> Result<(), DeviceError> {
        self.pause = pause;
        Ok(())
    }
}

const _: () = assert!(FEED_PACKETS.is_power_of_two());

#[cfg(test)]
mod tests {
    use super::*;
    use crate::harness::Length;

    fn tandem(sas: u32, suite: &str) -> Tandem {
        let suite = suite.parse().unwrap();
        let options = TandemOptions { suite, sas, flows: 64, seed: 7 };
        Tandem::new(options, Vec::new(), Some("portable")).unwrap()
    }

    #[test]
    fn every_packet_of_a_slow_load_comes_back_through_both_gateways() {
        for (sas, suite, sizes) in [
            (1, "aes128gcm16", Sizes::Bytes(64)),
            (9, "aes128gcm16", Sizes::SimpleImix),
            (2, "aes256-sha256", Sizes::Bytes(1518)),
            (1, "chacha20poly1305", Sizes::Random),
        ] {
            let mut device = tandem(sas, suite);
            for packets in [1, 500] {
                // No more than the ring holds: none is lost however slow the machine is.
                let load = Load { packets_per_second: 10_000.0, length: Length::Packets(packets) };
                let trial = device.trial(sizes, load).unwrap();
                println!("{suite}, {sizes}: {trial:?}");
                assert_eq!((trial.offered, trial.received, trial.duplicated), (packets, packets, 0));
                assert_eq!(trial.latency.count(), packets);
                assert!(trial.busy_share.is_none_or(|share| (0.0..=1.0).contains(&share)));
            }
        }
    }

    #[test]
    fn a_flood_loses_packets_and_those_that_come_back_are_whole() {
        let mut device = tandem(1, "aes128gcm16");
        let load = Load { packets_per_second: 1e9, length: Length::Packets(2_000_000) };
        let trial = device.trial(Sizes::Bytes(64), load).unwrap();
        assert_eq!(trial.offered, 2_000_000);
        assert!(trial.has_loss() && trial.received >= FEED_PACKETS as u64 / 2, "{trial:?}");
        // The next trial knows nothing of it.
        let load = Load { packets_per_second: 10_000.0, length: Length::Packets(100) };
        let trial = device.trial(Sizes::Bytes(64), load).unwrap();
        assert_eq!((trial.received, trial.duplicated), (100, 0));
    }

    #[test]
    fn a_worker_that_pauses_loses_nothing_that_its_queue_holds_and_says_how_long_it_slept() {
        let mut device = tandem(1, "aes128gcm16");
        let load = Load { packets_per_second: 20_000.0, length: Length::Packets(800) };
        let trial_at = |device: &mut Tandem, pause| {
            device.set_pause(pause).unwrap();
            device.trial(Sizes::Bytes(64), load).unwrap()
        };
        let awake = trial_at(&mut device, Duration::ZERO);
        let pauses = awake.activity.map(|activity| (activity.pauses, activity.paused));
        assert!(pauses.is_none_or(|pauses| pauses == (0, Duration::ZERO)), "{awake:?}");
        // All 800 packets fit into the ring: none is lost however late the worker wakes.
        let pause = Duration::from_millis(1);
        let paused = trial_at(&mut device, pause);
        assert_eq!((paused.offered, paused.received), (800, 800));
        if let Some(activity) = paused.activity {
            println!("{activity:?}");
            let (least, slept) = (pause.as_secs_f64() * activity.pauses as f64, activity.paused);
            // What falls asleep works for some microseconds first; one pause may have begun before.
            assert!(slept.as_secs_f64() >= 0.8 * least || slept == activity.elapsed, "{activity:?}");
            assert!((0.0..=1.0).contains(&activity.awake_share()), "{activity:?}");
        }
        // The next trial has no pause any more.
        let awake = trial_at(&mut device, Duration::ZERO);
        assert!(awake.activity.is_none_or(|activity| activity.pauses <= 1), "{awake:?}");
    }

    #[test]
    fn the_maximum_rate_is_measured_once_for_each_size() {
        let mut device = tandem(1, "aes128gcm16");
        let rate = device.maximum_rate(Sizes::Bytes(64)).unwrap();
        assert!(rate > 1.0 && rate.is_finite(), "{rate}");
        assert_eq!(device.maximum_rate(Sizes::Bytes(64)).unwrap().to_bits(), rate.to_bits());
    }

    #[test]
    fn an_engine_that_there_is_not_is_refused() {
        let suite = "aes128gcm16".parse().unwrap();
        let options = TandemOptions { suite, sas: 1, flows: 1, seed: 1 };
        let error = Tandem::new(options, Vec::new(), Some("abacus")).err().unwrap().to_string();
        assert!(error.starts_with("there is no engine \"abacus\""), "{error}");
    }
}
