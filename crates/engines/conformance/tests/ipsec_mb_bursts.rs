//! Bursts of intel-ipsec-mb of every size, against the portable engine.
//!
//! On x86-64 the library must be there (Debian: `libipsec-mb1`); its absence fails these tests.
//! `TESTUDO_IPSEC_MB_LIBRARY` may name the file of another version.

#![cfg(all(target_arch = "x86_64", target_os = "linux"))]
#![allow(clippy::unwrap_used, reason = "helpers of tests may panic as tests do")]

use fastrand::Rng;
use testudo_conformance::random_bytes;
use testudo_crypto::{Direction, Engine, Job, JobStatus, KeyId, KeyMaterial, PortableEngine, Suite};
use testudo_engine_ipsec_mb::IpsecMbEngine;
use testudo_packet::Buffer;
use zeroize::Zeroizing;

/// Twice the library's largest burst.
const MOST: usize = 256;
/// Keys of each suite.
const KEYS: usize = 3;
/// Each cipher and each integrity algorithm, every length of an ICV with every way to lay out a packet, and
/// more suites than the engine collects at a time.
const SUITES: [&str; 21] = [
    "aes128-sha1",
    "aes256-sha256",
    "null-sha1",
    "aes192-sha384",
    "aes128-sha512",
    "aes128ctr-sha1",
    "aes192ctr-sha256",
    "aes256ctr-sha384",
    "aes128ctr-sha512",
    "null-sha256",
    "null-sha384",
    "null-sha512",
    "3des-md5",
    "3des-sha256",
    "des-sha384",
    "des-sha512",
    "null-aesxcbc",
    "aes256-aesxcbc",
    "null-aescmac",
    "aes128ctr-aescmac",
    "null-md5",
];

/// Those that the engine does on this CPU.
fn suites() -> Vec<Suite> {
    let engine = open();
    let all = SUITES.iter().map(|name| name.parse().unwrap());
    let (done, left_out): (Vec<Suite>, Vec<_>) = all.partition(|suite| engine.capability(*suite).is_some());
    println!("not done on this CPU: {left_out:?}");
    assert!(done.len() >= SUITES.len() - 4, "all but DES are done everywhere");
    done
}

/// One SA's keys, by the ids of the engine and of the portable one.
struct Pair {
    suite: Suite,
    seal: [KeyId; 2],
    open: [KeyId; 2],
}

fn open() -> IpsecMbEngine {
    let opened = match std::env::var_os("TESTUDO_IPSEC_MB_LIBRARY") {
        Some(path) => IpsecMbEngine::open_at(path.as_ref()),
        None => IpsecMbEngine::open(),
    };
    match opened {
        Ok(engine) => engine,
        Err(error) => panic!("{error}. These tests need the package libipsec-mb1."),
    }
}

fn pairs(engines: &mut [&mut dyn Engine; 2], suites: &[Suite], random: &mut Rng) -> Vec<Pair> {
    let mut pair = |suite: Suite| {
        let bytes = random_bytes(random, suite.keying_material_bytes());
        let material = KeyMaterial::new(suite, Zeroizing::new(bytes)).unwrap();
        let mut install = |n: usize, direction| engines[n].install(&material, direction).unwrap();
        let seal = [install(0, Direction::Seal), install(1, Direction::Seal)];
        Pair { suite, seal, open: [install(0, Direction::Open), install(1, Direction::Open)] }
    };
    (0..suites.len() * KEYS).map(|n| pair(suites[n % suites.len()])).collect()
}

/// A packet to be sealed, of any length that the suite accepts, mostly short ones, with or without ESN.
fn packet(suite: Suite, ticket: u32, random: &mut Rng) -> Job {
    let longest = [1, 80, 600, 1500][random.usize(..4)];
    let text = random.usize(..longest + 1) / suite.block_bytes() * suite.block_bytes();
    let (before, behind) = (random.usize(..40), random.usize(..3));
    let text_start = before + 8 + suite.iv_bytes();
    let bytes = random_bytes(random, text_start + text + suite.icv_bytes() + behind);
    Job {
        sequence: random.u64(..),
        ticket,
        auth_start: u32::try_from(before).unwrap(),
        text_start: u32::try_from(text_start).unwrap(),
        text_bytes: u32::try_from(text).unwrap(),
        esn: random.bool(),
        ..Job::new(Buffer::copied(&bytes, 64, 32), Direction::Seal, 0)
    }
}

fn copy(job: &Job, key: KeyId, direction: Direction) -> Job {
    let buffer = Buffer::copied(job.buffer.bytes(), 64, 32);
    Job { buffer, key, direction, status: JobStatus::Pending, ..*job }
}

/// Runs copies of all jobs through one engine, each under its pair's key.
fn submit(
    engine: &mut dyn Engine,
    n: usize,
    jobs: &[(usize, Job)],
    pairs: &[Pair],
    direction: Direction,
) -> Vec<Job> {
    let key = |pair: &Pair| if direction == Direction::Seal { pair.seal[n] } else { pair.open[n] };
    let mut copies: Vec<_> =
        jobs.iter().map(|(pair, job)| copy(job, key(&pairs[*pair]), direction)).collect();
    assert_eq!(engine.submit(&mut copies), jobs.len());
    copies
}

/// Seals and opens bursts of every size, some of their packets forged, with both engines.
fn compare(suites: &[Suite], seed: u64) {
    let (mut ours, mut portable) = (open(), PortableEngine::new());
    let mut random = Rng::with_seed(seed);
    let pairs = pairs(&mut [&mut ours, &mut portable], suites, &mut random);
    let mut forged = 0;
    for size in 1..=MOST {
        let mut jobs: Vec<(usize, Job)> = (0..u32::try_from(size).unwrap())
            .map(|ticket| {
                let pair = random.usize(..pairs.len());
                (pair, packet(pairs[pair].suite, ticket, &mut random))
            })
            .collect();
        // Every second burst in the gateway's order: by suite, longest first.
        if size % 2 == 0 {
            jobs.sort_by_key(|(pair, job)| (pairs[*pair].suite, std::cmp::Reverse(job.text_bytes)));
        }
        let sealed = submit(&mut ours, 0, &jobs, &pairs, Direction::Seal);
        let expected = submit(&mut portable, 1, &jobs, &pairs, Direction::Seal);
        for ((ours, expected), (_, job)) in sealed.into_iter().zip(expected).zip(&mut jobs) {
            assert_eq!(ours.status, JobStatus::Done, "seed {seed}, burst of {size}, {ours:?}");
            assert_eq!(ours.buffer.bytes(), expected.buffer.bytes(), "seed {seed}, burst of {size}");
            *job = ours;
        }
        for (pair, job) in &mut jobs {
            if random.usize(..6) == 0 {
                let icv_at = (job.text_start + job.text_bytes) as usize;
                let at = icv_at + random.usize(..pairs[*pair].suite.icv_bytes());
                job.buffer.bytes_mut()[at] ^= 1 << random.usize(..8);
                forged += 1;
            }
        }
        let opened = submit(&mut ours, 0, &jobs, &pairs, Direction::Open);
        let expected = submit(&mut portable, 1, &jobs, &pairs, Direction::Open);
        for ((ours, expected), (_, job)) in opened.iter().zip(&expected).zip(&jobs) {
            assert_eq!(ours.status, expected.status, "seed {seed}, burst of {size}, {ours:?}");
            // Packets that are not authentic are not decrypted, and keep their ICV.
            let bytes = if ours.status == JobStatus::Done { expected } else { job }.buffer.bytes();
            assert_eq!(ours.buffer.bytes(), bytes, "seed {seed}, burst of {size}");
        }
    }
    assert!(forged > MOST, "{forged} forged");
}

#[test]
fn bursts_of_every_size_of_one_suite_match_the_portable_engine() {
    for (suite, seed) in suites().into_iter().zip(1..) {
        println!("{suite}, seed {seed}");
        compare(&[suite], seed);
    }
}

#[test]
fn bursts_of_every_size_of_all_suites_match_the_portable_engine() {
    println!("seed 9");
    compare(&suites(), 9);
}

#[test]
fn bursts_among_packets_of_aeads_match_the_portable_engine() {
    let (mut ours, mut portable) = (open(), PortableEngine::new());
    let mut random = Rng::with_seed(11);
    let suites: Vec<_> = Suite::ALL.iter().copied().filter(|s| ours.capability(*s).is_some()).collect();
    let pairs = pairs(&mut [&mut ours, &mut portable], &suites, &mut random);
    for size in (1..=MOST).step_by(5) {
        let jobs: Vec<(usize, Job)> = (0..u32::try_from(size).unwrap())
            .map(|ticket| {
                let pair = random.usize(..pairs.len());
                (pair, packet(pairs[pair].suite, ticket, &mut random))
            })
            .collect();
        for direction in [Direction::Seal, Direction::Open] {
            // Packets that were never sealed are all forged.
            let done = submit(&mut ours, 0, &jobs, &pairs, direction);
            let expected = submit(&mut portable, 1, &jobs, &pairs, direction);
            for (ours, expected) in done.iter().zip(&expected) {
                assert_eq!(ours.status, expected.status, "burst of {size}, {ours:?}");
                let is_done = ours.status == JobStatus::Done;
                assert!(
                    !is_done || ours.buffer.bytes() == expected.buffer.bytes(),
                    "burst of {size}, {ours:?}"
                );
            }
        }
    }
}

#[test]
fn jobs_that_a_key_may_not_do_are_faults_and_leave_the_others_of_the_burst_alone() {
    let (mut ours, mut portable) = (open(), PortableEngine::new());
    let mut random = Rng::with_seed(12);
    let pairs = pairs(&mut [&mut ours, &mut portable], &suites(), &mut random);
    let mut jobs: Vec<(usize, Job)> = (0..200)
        .map(|n| {
            (n % pairs.len(), packet(pairs[n % pairs.len()].suite, u32::try_from(n).unwrap(), &mut random))
        })
        .collect();
    let mut bad = Vec::new();
    for (n, (_, job)) in jobs.iter_mut().enumerate().filter(|(n, _)| n % 7 == 3) {
        match n % 3 {
            0 => job.text_bytes += 2000,
            1 => job.text_start = job.auth_start + 7,
            _ => job.text_bytes = u32::MAX - 15,
        }
        bad.push(n);
    }
    let done = submit(&mut ours, 0, &jobs, &pairs, Direction::Seal);
    let expected = submit(&mut portable, 1, &jobs, &pairs, Direction::Seal);
    for (n, (ours, (_, before))) in done.iter().zip(&jobs).enumerate() {
        let bytes = if bad.contains(&n) { before.buffer.bytes() } else { expected[n].buffer.bytes() };
        let status = if bad.contains(&n) { JobStatus::Fault } else { JobStatus::Done };
        assert_eq!((ours.status, ours.buffer.bytes()), (status, bytes), "job {n}");
    }
}
