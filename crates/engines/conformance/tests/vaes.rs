//! The VAES engine passes the suite and agrees with the portable engine.
//!
//! On a CPU without the instructions these tests fail, unless `TESTUDO_WITHOUT_VAES=1` says that this is
//! meant.

#![allow(clippy::unwrap_used, reason = "helpers of tests may panic as tests do")]

use fastrand::Rng;
use testudo_conformance::{differential, drive, random_bytes, unless_waived};
use testudo_crypto::{
    Direction, Engine, EngineError, Job, JobStatus, KeyId, KeyMaterial, PortableEngine, Suite,
};
use testudo_engine_vaes::VaesEngine;
use testudo_packet::Buffer;
use zeroize::Zeroizing;

/// The engine, or `None` where the CPU lacks something.
fn open() -> Option<Box<dyn Engine>> {
    unless_waived(VaesEngine::open(), "TESTUDO_WITHOUT_VAES").map(|engine| Box::new(engine) as _)
}

#[test]
fn vaes_conforms() {
    if open().is_some() {
        testudo_conformance::run(&mut || open().unwrap()).assert_passed();
    }
}

#[test]
fn vaes_and_the_portable_engine_agree() {
    for seed in 1..=5 {
        let Some(mut engine) = open() else { return };
        println!("seed {seed}");
        assert_eq!(differential(engine.as_mut(), &mut PortableEngine::new(), seed), Ok(2_000));
    }
}

/// Texts of all lengths up to the longest, with borders anywhere, beside the same packets in one buffer, some
/// of them forged: verdicts and bytes are those of the portable engine.
#[test]
fn chains_cut_at_random_match_the_portable_engine() {
    let Some(mut ours) = open() else { return };
    let (mut portable, mut random) = (PortableEngine::new(), Rng::with_seed(0x5EED_C4A3));
    let pairs = install(ours.as_mut(), &mut portable, &mut random);
    let mut refused = 0;
    for round in 0..60 {
        let (mut left, mut right) = (Vec::new(), Vec::new());
        for _ in 0..20 {
            let pair = 2 * random.usize(..pairs.len() / 2);
            let (seal, open) = (&pairs[pair], &pairs[pair + 1]);
            let longest = [70, 600, 9_000, 65_535][random.usize(..4)];
            let mut made = job_of(Direction::Seal, random.usize(..=longest), &mut random);
            let opens = random.bool();
            if opens {
                made = sealed(&made, seal.portable, &mut portable);
                if random.usize(..4) == 0 {
                    let at = made.auth_start as usize + random.usize(..made.text_bytes as usize + 32);
                    made.buffer.bytes_mut()[at] ^= 1 << random.usize(..8);
                }
            }
            let chosen = if opens { open } else { seal };
            let whole = copy(&made, chosen.portable);
            let cuts = random.usize(..12);
            left.push(Job { key: chosen.ours, ..cut(&whole, cuts, &mut random) });
            right.push(whole);
        }
        let (left, right) = (drive(ours.as_mut(), left).unwrap(), drive(&mut portable, right).unwrap());
        for (ours, portable) in left.iter().zip(&right) {
            assert_eq!(ours.status, portable.status, "round {round}");
            refused += usize::from(ours.status == JobStatus::AuthenticationFailed);
            let mut bytes = vec![0; ours.buffer.chain_bytes()];
            ours.buffer.copy_to(0, &mut bytes);
            let is_done = ours.status == JobStatus::Done;
            assert!(!is_done || bytes == portable.buffer.bytes(), "round {round}");
        }
    }
    assert!(refused > 50, "{refused}");
}

/// The same packet with so many borders, anywhere.
fn cut(job: &Job, cuts: usize, random: &mut Rng) -> Job {
    let bytes = job.buffer.bytes();
    let mut borders: Vec<usize> = (0..cuts).map(|_| random.usize(..=bytes.len())).collect();
    borders.extend([0, bytes.len()]);
    borders.sort_unstable();
    let mut pieces = borders.windows(2).map(|ends| Buffer::copied(&bytes[ends[0]..ends[1]], 0, 128));
    let mut chain = pieces.next().unwrap();
    pieces.for_each(|piece| chain.link(piece).unwrap());
    Job { buffer: chain, ..*job }
}

#[test]
fn engines_on_several_threads_do_not_disturb_each_other() {
    if open().is_none() {
        return;
    }
    let worker = |seed| move || differential(open().unwrap().as_mut(), &mut PortableEngine::new(), seed);
    let threads: Vec<_> = (100..104).map(|seed| std::thread::spawn(worker(seed))).collect();
    for thread in threads {
        assert_eq!(thread.join().unwrap(), Ok(2_000));
    }
}

#[test]
fn a_suite_without_a_kernel_is_refused_by_name() {
    let Some(mut engine) = open() else { return };
    let suite = Suite::CHACHA20POLY1305;
    let material = KeyMaterial::new(suite, Zeroizing::new(vec![1; suite.keying_material_bytes()])).unwrap();
    assert_eq!(engine.capability(suite), None);
    let refused = engine.install(&material, Direction::Seal);
    assert_eq!(refused, Err(EngineError::Unsupported { engine: "vaes", suite }));
}

/// A key in both engines.
struct Pair {
    ours: KeyId,
    portable: KeyId,
    direction: Direction,
}

fn install(ours: &mut dyn Engine, portable: &mut dyn Engine, random: &mut Rng) -> Vec<Pair> {
    let mut pairs = Vec::new();
    for suite in [Suite::AES128GCM16, Suite::AES256GCM16] {
        for _ in 0..5 {
            let bytes = random_bytes(random, suite.keying_material_bytes());
            let material = KeyMaterial::new(suite, Zeroizing::new(bytes)).unwrap();
            for direction in [Direction::Seal, Direction::Open] {
                let id = |engine: &mut dyn Engine| engine.install(&material, direction).unwrap();
                pairs.push(Pair { ours: id(ours), portable: id(portable), direction });
            }
        }
    }
    pairs
}

/// Lengths as in traffic, around the boundaries of vectors, and arbitrary ones.
fn length(random: &mut Rng) -> usize {
    match random.usize(..4) {
        0 => [48, 496, 1404][random.usize(..3)],
        1 => (64 * random.usize(..24) + 44 + random.usize(..9)).min(1500),
        2 => random.usize(..200),
        _ => random.usize(..3_000),
    }
}

fn job(direction: Direction, random: &mut Rng) -> Job {
    job_of(direction, length(random), random)
}

fn job_of(direction: Direction, length: usize, random: &mut Rng) -> Job {
    let (start, headroom, behind) = (random.usize(..80), random.usize(..64), random.usize(..80));
    let bytes = random_bytes(random, start + 16 + length + 16 + behind);
    Job {
        sequence: random.u64(..),
        auth_start: u32::try_from(start).unwrap(),
        text_start: u32::try_from(start + 16).unwrap(),
        text_bytes: u32::try_from(length).unwrap(),
        esn: random.bool(),
        ..Job::new(Buffer::copied(&bytes, headroom, 0), direction, 0)
    }
}

fn copy(job: &Job, key: KeyId) -> Job {
    Job { buffer: Buffer::copied(job.buffer.bytes(), 32, 0), key, ..*job }
}

/// The packet that `seal` produces under the key of the other direction of the same pair, as a job to open.
fn sealed(job: &Job, key: KeyId, engine: &mut dyn Engine) -> Job {
    let seal = Job { direction: Direction::Seal, ..copy(job, key) };
    let done = drive(engine, vec![seal]).unwrap().remove(0);
    assert_eq!(done.status, JobStatus::Done);
    Job { direction: Direction::Open, status: JobStatus::Pending, ..done }
}

/// Both engines give the same results for batches in which keys, suites, lengths, directions and AADs change
/// from job to job, and in which some packets to be opened are forged: statuses, and every byte of every
/// buffer.
#[test]
fn batches_of_everything_match_the_portable_engine() {
    for seed in 1..=60 {
        let Some(mut ours) = open() else { return };
        let (mut portable, mut random) = (PortableEngine::new(), Rng::with_seed(0x7E57_0000 + seed));
        let pairs = install(ours.as_mut(), &mut portable, &mut random);
        // Some batches have few keys, so that four of one key meet.
        let keys = [1, 2, 4, pairs.len() / 2][random.usize(..4)];
        let (mut left, mut right, mut forged) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..1 + random.usize(..150) {
            let pair = 2 * random.usize(..keys);
            let (seal, open) = (&pairs[pair], &pairs[pair + 1]);
            let chosen = if random.usize(..2) == 0 { seal } else { open };
            let mut made = job(chosen.direction, &mut random);
            let is_forged = chosen.direction == Direction::Open && random.usize(..4) == 0;
            if chosen.direction == Direction::Open {
                made = sealed(&made, seal.portable, &mut portable);
            }
            if is_forged {
                let start = made.auth_start as usize;
                let at = start + random.usize(..16 + made.text_bytes as usize + 16);
                made.buffer.bytes_mut()[at] ^= 1 << random.usize(..8);
            }
            left.push(copy(&made, chosen.ours));
            right.push(copy(&made, chosen.portable));
            forged.push(is_forged);
        }
        let (left, right) = (drive(ours.as_mut(), left).unwrap(), drive(&mut portable, right).unwrap());
        for ((a, b), forged) in left.iter().zip(&right).zip(forged) {
            let what = format!("seed {seed}, {:?} of {} bytes", a.direction, a.text_bytes);
            assert_eq!(a.status, b.status, "{what}");
            assert_eq!(a.status == JobStatus::AuthenticationFailed, forged, "{what}");
            assert!(a.buffer.bytes() == b.buffer.bytes(), "{what}: the buffers differ");
        }
    }
}

/// Keys that nobody uses.
fn install_spare(engine: &mut dyn Engine, count: usize) -> Vec<KeyId> {
    let spare = KeyMaterial::new(Suite::AES256GCM16, Zeroizing::new(vec![3; 36])).unwrap();
    (0..count).map(|_| engine.install(&spare, Direction::Open).unwrap()).collect()
}

/// Packets of every length give the same in both engines: sealed and opened, of both suites, whose key is
/// that of `key_of` their place.
fn every_length(
    (ours, portable): (&mut dyn Engine, &mut dyn Engine),
    pairs: &[Pair],
    key_of: fn(usize) -> usize,
    random: &mut Rng,
) {
    let lengths: Vec<usize> = (0..=2100).chain([8_999, 9_000, 65_535]).collect();
    for lengths in lengths.chunks(64) {
        let (mut left, mut right) = (Vec::new(), Vec::new());
        for (place, length) in (0..).zip(lengths) {
            let pair = 10 * (place / 2 % 2) + 2 * key_of(place);
            let (seal, open) = (&pairs[pair], &pairs[pair + 1]);
            let plain = job_of(Direction::Seal, *length, random);
            let sealed = sealed(&plain, seal.portable, portable);
            left.extend([copy(&plain, seal.ours), copy(&sealed, open.ours)]);
            right.extend([copy(&plain, seal.portable), copy(&sealed, open.portable)]);
        }
        let (left, right) = (drive(ours, left).unwrap(), drive(portable, right).unwrap());
        for (a, b) in left.iter().zip(&right) {
            let what = format!("{:?} of {} bytes", a.direction, a.text_bytes);
            assert_eq!((a.status, b.status), (JobStatus::Done, JobStatus::Done), "{what}");
            assert!(a.buffer.bytes() == b.buffer.bytes(), "{what}: the buffers differ");
        }
    }
}

/// With many keys the hash is reduced more often, to touch fewer powers of its key.
#[test]
fn with_many_keys_every_length_matches_the_portable_engine() {
    let Some(mut ours) = open() else { return };
    let (mut portable, mut random) = (PortableEngine::new(), Rng::with_seed(0x7E57_1000));
    let pairs = install(ours.as_mut(), &mut portable, &mut random);
    install_spare(ours.as_mut(), 400);
    // Alternating between two keys, then one for all.
    for key_of in [(|place| place / 4 % 2) as fn(usize) -> usize, |_| 0] {
        every_length((ours.as_mut(), &mut portable), &pairs, key_of, &mut random);
    }
}

/// Only the first keys have all powers; the others go on with few when they are alone.
#[test]
fn keys_with_few_powers_match_the_portable_engine_at_every_length() {
    let Some(mut ours) = open() else { return };
    let (mut portable, mut random) = (PortableEngine::new(), Rng::with_seed(0x7E57_2000));
    let spare = install_spare(ours.as_mut(), 400);
    let few = install(ours.as_mut(), &mut portable, &mut random);
    every_length((ours.as_mut(), &mut portable), &few, |_| 0, &mut random);
    spare.into_iter().for_each(|key| ours.remove(key));
    // Room is free again, and the next keys have all powers beside those that have few.
    let all = install(ours.as_mut(), &mut portable, &mut random);
    for pairs in [&few, &all] {
        every_length((ours.as_mut(), &mut portable), pairs, |place| place / 4 % 2, &mut random);
    }
}
