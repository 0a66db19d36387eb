//! The cost of cryptography alone: cycles per packet, by engine, suite, length, number of keys and direction.
//!
//! `cargo run --release -p testudo-conformance --example floor [suite]`
//!
//! Batches of 64 packets, of one SA or of four that alternate, are sealed and opened in place in warm
//! buffers. The engines take turns within every round, so that a disturbance of the machine affects all of
//! them. The figures are the best round, which shows what the machine can do without its neighbours'
//! interference, and the median. Cycles are those of the time stamp counter. Compare columns of one run only.

use testudo_crypto::{Direction, Engine, Job, JobStatus, KeyId, KeyMaterial, PortableEngine, Suite};
use testudo_engine_ipsec_mb::IpsecMbEngine;
use testudo_engine_vaes::VaesEngine;
use testudo_packet::{Buffer, ticks};
use zeroize::Zeroizing;

/// Packets per batch.
const BATCH: usize = 64;
/// Rounds; the best and the median are reported.
const ROUNDS: usize = 300;
/// Batches per round, engine and direction.
const BATCHES: usize = 10;
/// Lengths of text: packets of 46, 494 and 1402 bytes with their trailers, and others.
const TEXT_BYTES: [u32; 8] = [48, 64, 128, 256, 496, 576, 1024, 1404];

fn main() -> Result<(), String> {
    let mut engines: Vec<Box<dyn Engine>> = Vec::new();
    match VaesEngine::open() {
        Ok(engine) => engines.push(Box::new(engine)),
        Err(error) => println!("{error}"),
    }
    match IpsecMbEngine::open() {
        Ok(engine) => engines.push(Box::new(engine)),
        Err(error) => println!("{error}"),
    }
    engines.push(Box::new(PortableEngine::new()));
    for engine in &engines {
        println!("{:10} {}", engine.name(), engine.description());
    }
    println!("cycles per packet, batches of {BATCH}, best and median of {ROUNDS} rounds\n");
    println!("{:18} {:>6} {:>5}  {:10} {:>14} {:>14}", "suite", "bytes", "keys", "engine", "seal", "open");
    let wanted = std::env::args().nth(1);
    for suite in Suite::ALL.iter().filter(|s| wanted.as_ref().is_none_or(|name| s.to_string() == *name)) {
        let block = u32::try_from(suite.block_bytes()).map_err(|e| e.to_string())?;
        for keys in [1, 4] {
            for text_bytes in TEXT_BYTES.map(|bytes| bytes.next_multiple_of(block)) {
                compare(&mut engines, *suite, keys, text_bytes)?;
            }
        }
    }
    Ok(())
}

/// One engine's keys and the cost of its rounds, per packet.
struct Runner<'a> {
    engine: &'a mut dyn Engine,
    seal: Vec<KeyId>,
    open: Vec<KeyId>,
    sealing: Vec<f64>,
    opening: Vec<f64>,
    jobs: Vec<Job>,
}

/// All engines at one suite, number of keys and length, in turns.
fn compare(engines: &mut [Box<dyn Engine>], suite: Suite, keys: u8, text_bytes: u32) -> Result<(), String> {
    let mut runners = Vec::new();
    for engine in engines.iter_mut().filter(|e| e.capability(suite).is_some()) {
        runners.push(Runner::new(engine.as_mut(), suite, keys, text_bytes)?);
    }
    for _ in 0..ROUNDS {
        for runner in &mut runners {
            runner.round()?;
        }
    }
    for mut runner in runners {
        let (seal, open) = (figures(&mut runner.sealing), figures(&mut runner.opening));
        let name = runner.engine.name();
        println!("{:18} {text_bytes:>6} {keys:>5}  {name:10} {seal:>14} {open:>14}", suite);
        runner.seal.iter().chain(&runner.open).for_each(|key| runner.engine.remove(*key));
    }
    Ok(())
}

/// Best and median.
fn figures(samples: &mut [f64]) -> String {
    samples.sort_by(f64::total_cmp);
    format!("{:.1} {:.1}", samples[0], samples[samples.len() / 2])
}

impl<'a> Runner<'a> {
    fn new(engine: &'a mut dyn Engine, suite: Suite, keys: u8, text_bytes: u32) -> Result<Self, String> {
        let (mut seal, mut open) = (Vec::new(), Vec::new());
        for n in 0..keys {
            let material = KeyMaterial::new(suite, Zeroizing::new(vec![n; suite.keying_material_bytes()]));
            let material = material.map_err(|e| e.to_string())?;
            seal.push(engine.install(&material, Direction::Seal).map_err(|e| e.to_string())?);
            open.push(engine.install(&material, Direction::Open).map_err(|e| e.to_string())?);
        }
        let jobs = (0..BATCH).map(|n| job(suite, n, text_bytes)).collect();
        Ok(Self { engine, seal, open, sealing: Vec::new(), opening: Vec::new(), jobs })
    }

    /// Seals and opens each packet several times.
    fn round(&mut self) -> Result<(), String> {
        let (mut sealing, mut opening) = (0, 0);
        for _ in 0..BATCHES {
            sealing += self.timed(Direction::Seal)?;
            opening += self.timed(Direction::Open)?;
        }
        let packets = (BATCHES * BATCH) as f64;
        self.sealing.push(sealing as f64 / packets);
        self.opening.push(opening as f64 / packets);
        Ok(())
    }

    /// Cycles that one batch took.
    fn timed(&mut self, direction: Direction) -> Result<u64, String> {
        let keys = if direction == Direction::Seal { &self.seal } else { &self.open };
        for (job, key) in self.jobs.iter_mut().zip(keys.iter().cycle()) {
            (job.key, job.direction, job.status) = (*key, direction, JobStatus::Pending);
        }
        let start = ticks();
        let taken = self.engine.submit(&mut self.jobs);
        let elapsed = ticks() - start;
        if taken != self.jobs.len() || self.jobs.iter().any(|job| job.status != JobStatus::Done) {
            return Err(format!("{} did not do its work", self.engine.name()));
        }
        Ok(elapsed)
    }
}

/// A packet with headers before the text, as in a tunnel.
fn job(suite: Suite, n: usize, text_bytes: u32) -> Job {
    let front = 8 + suite.iv_bytes();
    let mut bytes = vec![0xA5; 20 + front + text_bytes as usize + suite.icv_bytes()];
    bytes[20 + front - 8..20 + front].copy_from_slice(&(n as u64).to_be_bytes());
    Job {
        sequence: 1,
        auth_start: 20,
        text_start: u32::try_from(20 + front).unwrap_or(0),
        text_bytes,
        ..Job::new(Buffer::copied(&bytes, 128, 64), Direction::Seal, 0)
    }
}
