//! Gateways with offloads carry packets, and tell what an engine of known times takes, in whatever thread.

use std::cell::Cell;

use testudo_crypto::{
    Capability, Direction, Engine, EngineError, Job, KeyId, KeyMaterial, PortableEngine, Suite,
};
use testudo_gateway::Candidate;

use super::*;
use crate::generator::{Arrivals, Feed, Stamp};
use crate::harness::Length;
use crate::placements::setup::{Placement, Threads};
use crate::tandem::Served as _;

thread_local! {
    /// Each thread has a clock of its own, which only the engine moves.
    static NOW: Cell<u64> = const { Cell::new(1_000) };
}

fn clock() -> u64 {
    NOW.get()
}

/// Ticks that each job takes.
const JOB: u64 = 700;

/// The portable engine, which takes a known time for each job.
struct Known(PortableEngine);

impl Engine for Known {
    fn name(&self) -> &'static str {
        "known"
    }

    fn description(&self) -> String {
        self.0.description()
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
        let taken = self.0.submit(jobs);
        NOW.set(NOW.get() + JOB * taken as u64);
        taken
    }
}

fn engines() -> Rc<PairEngines> {
    let open = || -> Result<Box<dyn Engine>, EngineError> { Ok(Box::new(Known(PortableEngine::new()))) };
    let candidate = Candidate { name: "known", open: Box::new(open) };
    Rc::new(PairEngines::start(vec![candidate], Some("known")).unwrap())
}

fn setup(suite: Option<&str>, placement: Placement, io: usize, crypto: Crypto) -> Setup {
    let suite = suite.map(|suite| suite.parse().unwrap());
    let threads = Threads::on(&[0], io, 0);
    let mut setup = Setup { suite, placement, crypto, threads, sas: 1, flows: 64, seed: 7, mtu: 1500 };
    setup.threads = Threads::on(&[0], io, setup.crypto_threads());
    setup
}

/// Gateways that this thread serves.
struct Bench {
    gateways: Gateways,
    report: Arc<Report>,
    generator: Feed,
}

impl Bench {
    fn new(setup: &Setup, sizes: Sizes) -> Self {
        let traffic = Traffic { flows: setup.flows, seed: setup.seed, ..Traffic::of(sizes) };
        println!("seed {}", setup.seed);
        let MemoryPorts { feed, returns, generator } =
            memory_ports(&traffic.templates().unwrap(), Timer::start());
        let report = Report::new(setup.gateways(), clock);
        let own = engines();
        let engines = Engines { own: &own, device: None };
        let longest = sizes.longest_bytes() - FRAME_EXTRA_BYTES;
        let mut gateways = Gateways::build(setup, &engines, longest, (feed, returns), &report).unwrap();
        gateways.measure_in(clock);
        report.set_timing(true);
        Self { gateways, report, generator }
    }

    /// Carries so many packets, in bursts that rings hold.
    fn carry(&mut self, packets: u64) {
        let mut arrivals = Arrivals::new(1);
        let (mut sent, begun) = (0, std::time::Instant::now());
        while arrivals.received() < packets {
            while sent < packets && sent < arrivals.received() + 256 {
                assert!(self.generator.send(Stamp { trial: 1, sequence: sent, sent_ns: 0 }));
                sent += 1;
            }
            self.gateways.turn().unwrap();
            self.generator.collect(&mut arrivals, 1024);
            assert!(begun.elapsed() < Duration::from_secs(60), "{} came", arrivals.received());
            std::thread::yield_now();
        }
        assert_eq!((arrivals.received(), arrivals.duplicated()), (packets, 0));
        assert_eq!(self.generator.faults(), (0, 0));
    }
}

#[test]
fn known_times_of_the_cryptography_are_found_whoever_does_it() {
    let packets = 4_000;
    for (placement, io, crypto) in [
        (Placement::None, 0, Crypto::Worker),
        (Placement::Io, 1, Crypto::Worker),
        (Placement::Crypto, 0, Crypto::Threads(1)),
        (Placement::Both, 2, Crypto::Threads(2)),
    ] {
        let setup = setup(Some("aes128-sha1"), placement, io, crypto);
        let mut bench = Bench::new(&setup, Sizes::Bytes(256));
        bench.carry(packets);
        let told = Reading::of(&bench.report);
        println!("{placement}: {:?}, threads {}", told.spent, told.cryptography);
        // Sealed once and opened once. No other part moves the clock.
        let found = (told.spent.engines + told.cryptography) as f64 / packets as f64;
        assert!((found / (2.0 * JOB as f64) - 1.0).abs() <= 0.02, "{placement}: {found}");
        assert_eq!((told.spent.turns, told.spent.ports), (told.spent.engines, 0));
        assert_eq!(told.cryptography > 0, placement.has_crypto(), "{placement}");
        assert_eq!(told.received, [packets, packets]);
    }
}

#[test]
fn what_the_path_does_not_carry_is_fragmented_and_comes_back_whole() {
    for suite in ["des-sha1", "3des-sha1", "aes128-sha1", "aes128gcm16"] {
        for (bytes, fragments) in [(1450, 1), (1518, 2)] {
            for io in [0, 1] {
                let placement = if io == 0 { Placement::None } else { Placement::Io };
                let setup = setup(Some(suite), placement, io, Crypto::Worker);
                let mut bench = Bench::new(&setup, Sizes::Bytes(bytes));
                bench.carry(600);
                let received = Reading::of(&bench.report).received;
                assert_eq!(received, [600, 600 * fragments], "{suite}, {bytes} bytes, I/O threads {io}");
            }
        }
    }
}

#[test]
fn a_bypass_policy_forwards_packets_as_they_are() {
    for io in [0, 1, 2] {
        let placement = if io == 0 { Placement::None } else { Placement::Io };
        let setup = setup(None, placement, io, Crypto::Worker);
        let mut bench = Bench::new(&setup, Sizes::Random);
        bench.carry(3_000);
        let told = Reading::of(&bench.report);
        assert_eq!((told.received, told.spent.engines), (vec![3_000], 0), "I/O threads {io}");
    }
}

#[test]
fn a_device_tells_blocks_that_add_up_to_the_workers_turns() {
    for (suite, placement, io, crypto) in [
        (Some("aes128gcm16"), Placement::None, 0, Crypto::Worker),
        (Some("aes128gcm16"), Placement::Both, 1, Crypto::Threads(1)),
        (None, Placement::Io, 1, Crypto::Worker),
    ] {
        let setup = setup(suite, placement, io, crypto);
        let own = engines();
        let mut device = Offloaded::new(setup.clone(), vec![0], &own, None);
        let sizes = Sizes::Bytes(64);
        let ceiling = device.maximum_rate(sizes).unwrap();
        let rate = ceiling.packets_per_second;
        assert_eq!(device.maximum_rate(sizes).unwrap(), ceiling);
        let (trial, effort) = device.timed(sizes, Load::rate(rate, Duration::from_millis(20))).unwrap();
        println!("{placement}: {effort:?}");
        assert!(trial.received > 0 && effort.packets >= trial.received);
        assert!(effort.worker.iter().all(|seconds| (0.0..1e3).contains(seconds)));
        assert!(effort.worker[Block::Ip as usize] > 0.0);
        assert_eq!(effort.worker[Block::Cryptography as usize] > 0.0, suite.is_some());
        assert_eq!(effort.io != Elsewhere::Nowhere, io > 0);
        let is_threads = matches!(effort.cryptography, Elsewhere::Threads { count: 2, .. });
        assert_eq!(is_threads, placement.has_crypto());
        assert!(device.memory().buffers > 0);
    }
}

/// Memory is of the gateways that were built for a frame size, and of no other's.
#[test]
fn memory_is_that_of_the_frame_size_and_of_no_other() {
    let setup = setup(Some("aes128gcm16"), Placement::None, 0, Crypto::Worker);
    let own = engines();
    let mut device = Offloaded::new(setup, vec![0], &own, None);
    let mut of = |bytes, packets_per_second, packets| {
        let load = Load { packets_per_second, length: Length::Packets(packets) };
        device.told(Sizes::Bytes(bytes), load, true).unwrap();
        device.memory()
    };
    // A flood has many packets in the gateways at once, a packet now and then one.
    let [flood, later] = [of(64, 5e6, 100_000), of(1518, 500.0, 10)];
    println!("{flood:?}, {later:?}");
    assert!(later.buffers > 0 && later.buffers < flood.buffers, "{flood:?}, {later:?}");
    let mebibyte = 1 << 20;
    assert!(later.resident_bytes.is_some_and(|bytes| (mebibyte..1 << 40).contains(&bytes)), "{later:?}");
}
