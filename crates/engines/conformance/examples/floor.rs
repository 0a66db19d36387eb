//! What cryptography alone costs: nanoseconds per packet, by engine, suite, length and direction.
//!
//! `cargo run --release -p testudo-conformance --example floor`
//!
//! Batches of 64 packets of one SA are sealed and opened in place in warm buffers; the figure is the best of several rounds,
//! because the floor is what a machine can do and not what its neighbours let it do. Compare columns of one run only.

use std::time::Instant;
use testudo_crypto::{Aad, Direction, Engine, Job, JobStatus, KeyId, KeyMaterial, PortableEngine, Suite};
use testudo_engine_ipsec_mb::IpsecMbEngine;
use testudo_packet::Buffer;
use zeroize::Zeroizing;

/// Packets per batch.
const BATCH: usize = 64;
/// Rounds of which the best counts.
const ROUNDS: usize = 40;
/// Batches per round and direction.
const BATCHES: usize = 100;

fn main() -> Result<(), String> {
    let mut engines: Vec<Box<dyn Engine>> = vec![Box::new(PortableEngine::new())];
    match IpsecMbEngine::open() {
        Ok(engine) => engines.insert(0, Box::new(engine)),
        Err(error) => println!("{error}"),
    }
    for engine in &engines {
        println!("{:10} {}", engine.name(), engine.description());
    }
    println!("ns per packet, batches of {BATCH}, best of {ROUNDS} rounds\n");
    println!("{:18} {:>6}  {:10} {:>9} {:>9}", "suite", "bytes", "engine", "seal", "open");
    for suite in Suite::ALL {
        let block = u32::try_from(suite.block_bytes()).map_err(|e| e.to_string())?;
        for text_bytes in [64, 576, 1400].map(|bytes: u32| bytes.next_multiple_of(block)) {
            for engine in &mut engines {
                let (seal, open) = measure(engine.as_mut(), *suite, text_bytes)?;
                println!("{:18} {text_bytes:>6}  {:10} {seal:>9.1} {open:>9.1}", suite.name(), engine.name());
            }
        }
    }
    Ok(())
}

/// Nanoseconds per packet, sealing and opening.
fn measure(engine: &mut dyn Engine, suite: Suite, text_bytes: u32) -> Result<(f64, f64), String> {
    let material = KeyMaterial::new(suite, Zeroizing::new(vec![0x42; suite.keying_material_bytes()]));
    let material = material.map_err(|e| e.to_string())?;
    let mut install = |direction| engine.install(&material, direction).map_err(|e| e.to_string());
    let (seal, open) = (install(Direction::Seal)?, install(Direction::Open)?);
    let mut jobs: Vec<Job> = (0..BATCH).map(|n| job(n, text_bytes)).collect();
    let (mut best_seal, mut best_open) = (f64::MAX, f64::MAX);
    for _ in 0..ROUNDS {
        let (mut sealing, mut opening) = (0.0, 0.0);
        for _ in 0..BATCHES {
            sealing += timed(engine, &mut jobs, seal, Direction::Seal)?;
            opening += timed(engine, &mut jobs, open, Direction::Open)?;
        }
        best_seal = sealing.min(best_seal);
        best_open = opening.min(best_open);
    }
    engine.remove(seal);
    engine.remove(open);
    let packets = (BATCHES * BATCH) as f64;
    Ok((best_seal / packets, best_open / packets))
}

/// Nanoseconds that one batch took.
fn timed(engine: &mut dyn Engine, jobs: &mut [Job], key: KeyId, direction: Direction) -> Result<f64, String> {
    for job in &mut *jobs {
        (job.key, job.direction, job.status) = (key, direction, JobStatus::Pending);
    }
    let start = Instant::now();
    let taken = engine.submit(jobs);
    let elapsed = start.elapsed();
    if taken != jobs.len() || jobs.iter().any(|job| job.status != JobStatus::Done) {
        return Err(format!("{} did not do its work", engine.name()));
    }
    Ok(elapsed.as_secs_f64() * 1e9)
}

/// A packet with headers before the text, as in a tunnel.
fn job(n: usize, text_bytes: u32) -> Job {
    let mut nonce = [0; 12];
    nonce[4..].copy_from_slice(&(n as u64).to_be_bytes());
    Job {
        buffer: Buffer::copied(&vec![0xA5; 36 + text_bytes as usize + 16], 128, 64),
        cookie: n as u64,
        text_start: 36,
        text_bytes,
        key: KeyId(0),
        nonce,
        aad: Aad::short(0x1234, 1),
        direction: Direction::Seal,
        status: JobStatus::Pending,
    }
}
