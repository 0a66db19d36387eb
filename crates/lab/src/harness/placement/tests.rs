//! A device of known block times in virtual time, and what the method finds of it.

use std::collections::VecDeque;
use std::time::Duration;

use fastrand::Rng;

use super::*;
use crate::generator::Arrivals;
use crate::harness::{Ceiling, Limit};

const SIZES: Sizes = Sizes::Bytes(64);

/// Threads for I/O, a worker and cryptography, one after the other. Times are nanoseconds for each packet.
struct Stations {
    /// Threads and the time of one.
    io: (usize, f64),
    worker: [f64; Block::ALL.len()],
    cryptography: (usize, f64),
    /// Whether the cryptography is seen from outside alone.
    is_device: bool,
    /// Times differ from packet to packet by up to this share.
    jitter: f64,
    /// Times of the worker differ from trial to trial by up to this share.
    wander: f64,
    /// The share of packets that are lost whatever the load.
    loss: f64,
    medium: f64,
    limit: Limit,
    draw: Rng,
    trials: u16,
    now_ns: u64,
}

/// Packets that may be in the device.
const QUEUE: usize = 128;

impl Stations {
    fn new(io: (usize, f64), worker: [f64; 4], cryptography: (usize, f64), seed: u64) -> Self {
        println!("seed {seed}");
        let draw = Rng::with_seed(seed);
        let (jitter, wander, loss, medium, limit) = (0.0, 0.0, 0.0, 4e6, Limit::Medium);
        Self {
            io,
            worker,
            cryptography,
            is_device: false,
            jitter,
            wander,
            loss,
            medium,
            limit,
            draw,
            trials: 0,
            now_ns: 1_000,
        }
    }

    /// When a packet that comes at `at` leaves these servers; and how long it took there.
    fn pass(&mut self, at: f64, servers: &mut [f64], takes: f64) -> (f64, f64) {
        let takes = takes * (1.0 + self.jitter * (2.0 * self.draw.f64() - 1.0));
        let Some(free) = servers.iter_mut().min_by(|a, b| a.total_cmp(b)) else { return (at, 0.0) };
        *free = free.max(at) + takes;
        (*free, takes)
    }

    fn run(&mut self, load: Load) -> (Trial, Effort) {
        self.trials += 1;
        let (mut generator, mut sent) = (load.generator(self.trials, self.now_ns), Vec::new());
        while !generator.is_done() {
            generator.poll(self.now_ns, |stamp| sent.push(stamp));
            self.now_ns = self.now_ns.max(generator.next_due_ns());
        }
        let slower = 1.0 + self.wander * (2.0 * self.draw.f64() - 1.0);
        let worker = slower * self.worker.iter().sum::<f64>();
        let (io, cryptography) = (self.io, self.cryptography);
        let mut servers = [vec![0.0; io.0], vec![0.0], vec![0.0; cryptography.0]];
        let (mut inside, mut effort): (VecDeque<f64>, _) = (VecDeque::new(), Effort::default());
        let (mut arrivals, mut spent) = (Arrivals::new(self.trials), [0.0; 3]);
        let mut stay = 0.0;
        for stamp in sent {
            let at = stamp.sent_ns as f64;
            while inside.front().is_some_and(|leaves| *leaves <= at) {
                inside.pop_front();
            }
            let is_lost = self.loss > 0.0 && self.draw.f64() < self.loss;
            if inside.len() >= QUEUE || is_lost {
                continue;
            }
            let [first, second, third] = &mut servers;
            let (at, of_io) = self.pass(at, first, io.1);
            let (at, of_worker) = self.pass(at, second, worker);
            let (leaves, of_cryptography) = self.pass(at, third, cryptography.1);
            stay += leaves - at;
            for (sum, time) in spent.iter_mut().zip([of_io, of_worker, of_cryptography]) {
                *sum += time * 1e-9;
            }
            effort.packets += 1;
            inside.push_back(leaves);
            let at = crate::harness::count(leaves);
            arrivals.take(stamp, at);
            self.now_ns = self.now_ns.max(at);
        }
        let all: f64 = self.worker.iter().sum();
        effort.worker = self.worker.map(|time| spent[1] * time / all);
        let threads = |(count, _): (usize, f64), busy| match count {
            0 => Elsewhere::Nowhere,
            count => Elsewhere::Threads { count, busy },
        };
        effort.io = threads(io, spent[0]);
        effort.cryptography = match self.is_device {
            true => Elsewhere::Device { stay: stay * 1e-9 },
            false => threads(cryptography, spent[2]),
        };
        (Trial::of(load, &generator, arrivals), effort)
    }
}

impl Device for Stations {
    fn maximum_rate(&mut self, _: Sizes) -> Result<Ceiling, DeviceError> {
        Ok(Ceiling { packets_per_second: self.medium, limit: self.limit })
    }

    fn trial(&mut self, _: Sizes, load: Load) -> Result<Trial, DeviceError> {
        Ok(self.run(load).0)
    }
}

impl Placed for Stations {
    fn timed(&mut self, _: Sizes, load: Load) -> Result<(Trial, Effort), DeviceError> {
        Ok(self.run(load))
    }
}

fn plan() -> Plan {
    Plan { trial: Duration::from_millis(100), ..Plan::default() }
}

fn assert_within_2_percent(found: f64, known: f64, what: &str) {
    let is_near = if known == 0.0 { found == 0.0 } else { (found / known - 1.0).abs() <= 0.02 };
    assert!(is_near, "{what}: found {found}, known {known}");
}

#[test]
fn known_block_times_rates_and_bottlenecks_are_found_for_each_placement() {
    let none = (0, 0.0);
    let worker = [300.0, 200.0, 250.0, 4_000.0];
    for (io, worker, cryptography, slowest, bottleneck) in [
        (none, worker, none, 4_750.0, Bottleneck::Worker),
        ((1, 280.0), [90.0, 200.0, 250.0, 4_000.0], none, 4_540.0, Bottleneck::Worker),
        (none, [300.0, 200.0, 250.0, 120.0], (3, 4_000.0), 4_000.0 / 3.0, Bottleneck::CryptographyThreads),
        (none, [300.0, 200.0, 250.0, 120.0], (8, 4_000.0), 870.0, Bottleneck::Worker),
        ((2, 1_900.0), [90.0, 200.0, 250.0, 120.0], (8, 4_000.0), 950.0, Bottleneck::IoThreads),
    ] {
        for (seed, jitter) in [(1, 0.0), (2, 0.2)] {
            let mut device = Stations { jitter, ..Stations::new(io, worker, cryptography, seed) };
            let row = placement(&mut device, SIZES, &plan()).unwrap();
            println!("{row:?}");
            let rate = 1e9 / slowest;
            assert_within_2_percent(row.throughput.throughput_packets_per_second, rate, "throughput");
            assert_within_2_percent(row.capacity.throughput_packets_per_second, rate, "capacity");
            assert_eq!((row.bottleneck, row.throughput.unconverged), (bottleneck, None));
            let elsewhere = [io.1, 0.0, 0.0, cryptography.1];
            let all: f64 = worker.iter().chain(&elsewhere).sum();
            for (number, time) in row.blocks.iter().enumerate() {
                let known = worker[number] + elsewhere[number];
                assert_within_2_percent(time.turnaround_us, known * 1e-3, time.block.name());
                assert_within_2_percent(time.worker_us, worker[number] * 1e-3, time.block.name());
                assert_within_2_percent(time.share, known / all, time.block.name());
            }
            let sum: f64 = row.blocks.iter().map(|time| time.share).sum();
            assert!((sum - 1.0).abs() < 1e-9, "{sum}");
        }
    }
}

#[test]
fn of_a_device_the_turnaround_is_until_it_returns_packets_and_an_idle_worker_waits_for_it() {
    let worker = [300.0, 200.0, 250.0, 100.0];
    for (cryptography, bottleneck) in
        [((1, 3_000.0), Bottleneck::CryptographyDevice), ((8, 3_000.0), Bottleneck::Worker)]
    {
        let mut device = Stations { is_device: true, ..Stations::new((0, 0.0), worker, cryptography, 3) };
        let row = placement(&mut device, SIZES, &plan()).unwrap();
        println!("{row:?}");
        assert_eq!(row.bottleneck, bottleneck);
        let found = row.blocks[Block::Cryptography as usize];
        assert_within_2_percent(found.worker_us, 0.1, "the worker's part");
        match bottleneck {
            // Nobody waits where servers are free.
            Bottleneck::Worker => assert_within_2_percent(found.turnaround_us, 3.1, "turnaround"),
            // All of the queue waits for it.
            _ => assert_within_2_percent(found.turnaround_us, 0.1 + 3.0 * QUEUE as f64, "turnaround"),
        }
    }
}

#[test]
fn a_device_that_takes_all_is_limited_by_the_generator() {
    for (limit, said) in [(Limit::Medium, None), (Limit::Generator, Some(Limit::Generator))] {
        let stations = Stations::new((0, 0.0), [100.0; 4], (0, 0.0), 4);
        let mut device = Stations { medium: 50_000.0, limit, ..stations };
        let row = placement(&mut device, SIZES, &plan()).unwrap();
        assert_eq!(row.bottleneck, Bottleneck::Generator);
        assert_within_2_percent(row.capacity.throughput_packets_per_second, 50_000.0, "capacity");
        assert_eq!((row.throughput.limit, row.capacity.limit), (said, said));
    }
}

/// As where parts share a processor, or a burst is more than a ring holds: nobody is named who had time left.
#[test]
fn losses_while_no_part_is_busy_name_no_bottleneck() {
    for (io, is_device, said) in [
        ((0, 0.0), false, Bottleneck::NotKnown),
        ((2, 300.0), false, Bottleneck::NotKnown),
        ((0, 0.0), true, Bottleneck::CryptographyDevice),
    ] {
        let stations = Stations::new(io, [100.0; 4], (1, 500.0), 7);
        let mut device = Stations { medium: 50_000.0, loss: 0.1, is_device, ..stations };
        let row = placement(&mut device, SIZES, &plan()).unwrap();
        assert!(row.capacity.loss > 0.05, "{row:?}");
        assert_eq!(row.bottleneck, said);
    }
    assert_eq!(Bottleneck::NotKnown.name(), "not known");
}

/// The turnaround of each block, and the rates, of a worker whose times are others in each trial.
#[test]
fn a_placement_whose_times_wander_is_said_not_to_repeat() {
    let new = || Stations::new((0, 0.0), [300.0, 200.0, 250.0, 4_000.0], (0, 0.0), 6);
    let mut device = Stations { wander: 0.2, ..new() };
    let row = placement(&mut device, SIZES, &plan()).unwrap();
    println!("{row:?}");
    let is_apart = |why| matches!(why, Some(Unconverged::SpreadAbove { .. }));
    assert!(is_apart(row.capacity.unconverged) && row.throughput.unconverged.is_some());
    for time in row.blocks {
        assert!(is_apart(time.unconverged) && time.repeat_spread.unwrap() > 0.03, "{time:?}");
        let said = time.unconverged.unwrap().to_string();
        assert!(said.contains(&format!("in the turnaround of {}, which", time.block.name())), "{said}");
    }
    // Times that are always the same repeat; those that were measured once nobody knows.
    let row = placement(&mut new(), SIZES, &plan()).unwrap();
    let all = |row: &PlacementRow| {
        let of = [row.throughput.unconverged, row.capacity.unconverged];
        of.into_iter().chain(row.blocks.map(|time| time.unconverged)).collect::<Vec<_>>()
    };
    assert_eq!(all(&row), [None; 6]);
    let once = placement(&mut new(), SIZES, &Plan { repetitions: 1, ..plan() }).unwrap();
    assert_eq!(all(&once), [Some(Unconverged::MeasuredOnce); 6]);
}

#[test]
fn a_device_that_times_nothing_is_an_error() {
    struct Silent(Stations);
    impl Device for Silent {
        fn maximum_rate(&mut self, sizes: Sizes) -> Result<Ceiling, DeviceError> {
            self.0.maximum_rate(sizes)
        }

        fn trial(&mut self, sizes: Sizes, load: Load) -> Result<Trial, DeviceError> {
            self.0.trial(sizes, load)
        }
    }
    impl Placed for Silent {
        fn timed(&mut self, _: Sizes, load: Load) -> Result<(Trial, Effort), DeviceError> {
            Ok((self.0.run(load).0, Effort::default()))
        }
    }
    let mut device = Silent(Stations::new((0, 0.0), [100.0; 4], (0, 0.0), 5));
    assert!(placement(&mut device, SIZES, &plan()).is_err());
}
