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

mod running;

pub(crate) use running::{Running, Served};

use std::net::Ipv4Addr;
use std::time::Duration;

use testudo_crypto::Suite;
use testudo_gateway::Candidate;

use crate::bench::BenchError;
use crate::bench::pair::{GatewayPair, PairEngines, PairSettings};
use crate::bench::threads::{allow, bind, processors};
use crate::generator::{
    FEED_PACKETS, FRAME_EXTRA_BYTES, MemoryPorts, Sizes, Timer, Traffic, generator_rate, memory_ports,
};
use crate::harness::{Ceiling, Cores, Device, DeviceError, Load, Trial};
use crate::stolen::Stolen;

/// How long the generator is measured alone, and the device is flooded, to know what rates make sense.
const PROBE: Duration = Duration::from_millis(50);
/// The maximum rate, as a multiple of what the flooded device forwards.
const BEYOND: f64 = 2.0;

/// The network of flows, unless told: 10.0.0.0/8.
pub const USUAL_SOURCES: (Ipv4Addr, u8) = (Ipv4Addr::new(10, 0, 0, 0), 8);

/// What is measured.
#[derive(Debug, Clone, Copy)]
pub struct TandemOptions {
    /// The suite of the tunnels.
    pub suite: Suite,
    /// SAs of each direction, and flows that are spread over them.
    pub sas: u32,
    /// Flows.
    pub flows: u32,
    /// The network that flows have random addresses of, and the length of its prefix, at most 32.
    pub sources: (Ipv4Addr, u8),
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
    maxima: Vec<(Sizes, Ceiling)>,
    /// From the processors of the threads.
    stolen: Stolen,
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
            stolen: Stolen::of(&[cores.device, cores.generator]),
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
        let TandemOptions { sas, flows, sources, seed, .. } = self.options;
        let traffic = Traffic { sas, flows, sources, seed, ..Traffic::of(sizes) };
        let (templates, timer) = (traffic.templates().map_err(|error| failed(&error))?, Timer::start());
        let MemoryPorts { feed, returns, generator } = memory_ports(&templates, timer);
        let settings = settings(&self.options, sizes.longest_bytes());
        let pair = GatewayPair::build(&self.engines, &settings, Box::new(feed), Box::new(returns));
        let pair = pair.map_err(|error| failed(&error))?;
        Running::start(sizes, (generator, timer), self.cores, self.cores.are_shared(), pair)
    }
}

fn settings(options: &TandemOptions, longest_frame_bytes: usize) -> PairSettings {
    let longest_bytes = longest_frame_bytes - FRAME_EXTRA_BYTES;
    PairSettings { suite: options.suite, sas: options.sas, longest_bytes, path_mtu: None }
}

impl Drop for Tandem {
    fn drop(&mut self) {
        allow(&self.processors);
    }
}

impl Device for Tandem {
    /// The highest rate of gateways in memory, found once for each size.
    fn maximum_rate(&mut self, sizes: Sizes) -> Result<Ceiling, DeviceError> {
        if let Some((_, ceiling)) = self.maxima.iter().find(|(known, _)| *known == sizes) {
            return Ok(*ceiling);
        }
        let cores = self.cores;
        // The gateways would share the processor with what is measured.
        self.running = None;
        let ceiling = highest_rate(cores, |load| self.trial(sizes, load))?;
        self.maxima.push((sizes, ceiling));
        Ok(ceiling)
    }

    fn trial(&mut self, sizes: Sizes, load: Load) -> Result<Trial, DeviceError> {
        self.trials = self.trials.wrapping_add(1);
        let (number, pause) = (self.trials, self.pause);
        // What was stolen before is of no trial.
        self.stolen.has_grown();
        let trial = self.start(sizes)?.trial(number, load, pause)?;
        Ok(self.stolen.judge(trial))
    }

    fn set_pause(&mut self, pause: Duration) -> Result<(), DeviceError> {
        self.pause = pause;
        Ok(())
    }
}

/// The highest rate that makes sense to offer gateways in memory, which has no rate of its own: what the
/// generator reaches alone, or twice what they forward when they are flooded by `trial`, whichever is lower.
pub(crate) fn highest_rate(
    cores: Cores,
    trial: impl FnOnce(Load) -> Result<Trial, DeviceError>,
) -> Result<Ceiling, DeviceError> {
    let alone = generator_rate(PROBE, || bind(cores.device));
    let flooded = trial(Load::rate(alone, PROBE))?;
    let ceiling = Ceiling::without_medium(alone, BEYOND * flooded.received_rate());
    if ceiling.packets_per_second < 1.0 {
        return Err(DeviceError("no packet comes through the gateways".to_owned()));
    }
    Ok(ceiling)
}

const _: () = assert!(FEED_PACKETS.is_power_of_two());

#[cfg(test)]
mod tests {
    use super::*;
    use crate::harness::Length;

    fn tandem(sas: u32, suite: &str) -> Tandem {
        let suite = suite.parse().unwrap();
        let options = TandemOptions { suite, sas, flows: 64, sources: USUAL_SOURCES, seed: 7 };
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

    /// What a hypervisor took shows in no clock of a thread's.
    #[test]
    fn losses_of_gateways_while_time_was_stolen_are_disturbed() {
        let mut device = tandem(1, "aes128gcm16");
        let mut ticks = 0;
        device.stolen = Stolen::read_by(move || {
            ticks += 1;
            Some(ticks)
        });
        let flood = Load { packets_per_second: 1e9, length: Length::Packets(2_000_000) };
        let trial = device.trial(Sizes::Bytes(64), flood).unwrap();
        assert!(trial.has_loss() && trial.is_disturbed, "{trial:?}");
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
        let ceiling = device.maximum_rate(Sizes::Bytes(64)).unwrap();
        let rate = ceiling.packets_per_second;
        assert!(rate > 1.0 && rate.is_finite(), "{rate}");
        assert_eq!(device.maximum_rate(Sizes::Bytes(64)).unwrap(), ceiling);
    }

    #[test]
    fn an_engine_that_there_is_not_is_refused() {
        let suite = "aes128gcm16".parse().unwrap();
        let options = TandemOptions { suite, sas: 1, flows: 1, sources: USUAL_SOURCES, seed: 1 };
        let error = Tandem::new(options, Vec::new(), Some("abacus")).err().unwrap().to_string();
        assert!(error.starts_with("there is no engine \"abacus\""), "{error}");
    }
}
