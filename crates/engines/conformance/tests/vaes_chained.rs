//! The VAES engine's sixteen lanes of AES-CBC and HMAC-SHA-1, against the portable engine.
//!
//! On a CPU without the instructions these tests fail, unless `TESTUDO_WITHOUT_VAES=1` says that this is
//! meant.

#![allow(clippy::unwrap_used, reason = "helpers of tests may panic as tests do")]

use fastrand::Rng;
use testudo_conformance::{random_bytes, unless_waived};
use testudo_crypto::{Direction, Engine, Job, JobStatus, KeyId, KeyMaterial, PortableEngine, Suite};
use testudo_engine_vaes::VaesEngine;
use testudo_packet::Buffer;
use zeroize::Zeroizing;

/// Several times sixteen lanes, and a remainder.
const MOST: usize = 70;
const SUITES: [Suite; 2] = [Suite::AES128_SHA1, Suite::NULL_SHA1];

/// One SA's keys, by the ids of the VAES engine and of the portable one.
struct Pair {
    suite: Suite,
    seal: [KeyId; 2],
    open: [KeyId; 2],
}

fn open() -> Option<VaesEngine> {
    unless_waived(VaesEngine::open(), "TESTUDO_WITHOUT_VAES")
}

fn pair(engines: &mut [&mut dyn Engine; 2], suite: Suite, random: &mut Rng) -> Pair {
    let bytes = random_bytes(random, suite.keying_material_bytes());
    let material = KeyMaterial::new(suite, Zeroizing::new(bytes)).unwrap();
    let mut install = |n: usize, direction| engines[n].install(&material, direction).unwrap();
    let seal = [install(0, Direction::Seal), install(1, Direction::Seal)];
    Pair { suite, seal, open: [install(0, Direction::Open), install(1, Direction::Open)] }
}

/// A packet to be sealed, of any length that the suite accepts, with or without ESN.
fn packet(suite: Suite, longest: usize, random: &mut Rng) -> Job {
    let text = random.usize(..longest + 1) / suite.block_bytes() * suite.block_bytes();
    let (before, behind) = (random.usize(..40), random.usize(..3));
    let text_start = before + 8 + suite.iv_bytes();
    let bytes = random_bytes(random, text_start + text + suite.icv_bytes() + behind);
    Job {
        sequence: random.u64(..),
        auth_start: u32::try_from(before).unwrap(),
        text_start: u32::try_from(text_start).unwrap(),
        text_bytes: u32::try_from(text).unwrap(),
        esn: random.bool(),
        ..Job::new(Buffer::copied(&bytes, 64, 32), Direction::Seal, 0)
    }
}

fn copy(job: &Job, key: KeyId) -> Job {
    Job { buffer: Buffer::copied(job.buffer.bytes(), 64, 32), key, status: JobStatus::Pending, ..*job }
}

/// Makes a job invalid for every engine.
fn spoil(job: &mut Job, suite: Suite, other_direction: KeyId, random: &mut Rng) {
    match random.usize(..4) {
        0 => job.text_bytes += 4_096,
        1 => job.text_start = job.auth_start + u32::try_from(random.usize(..8 + suite.iv_bytes())).unwrap(),
        2 if suite.block_bytes() > 1 && job.text_bytes > 0 => job.text_bytes -= 1,
        2 => job.text_start = u32::MAX,
        _ => job.key = other_direction,
    }
}

/// The gateway's order of jobs, which every second batch has.
fn longest_first(jobs: &[Job]) -> Vec<usize> {
    let mut order: Vec<_> = (0..jobs.len()).collect();
    order.sort_by_key(|&n| std::cmp::Reverse(jobs[n].text_bytes));
    order
}

/// Compares a job, whose buffer was `before`, with the portable engine's; 0 for a fault, 1 for a packet, 2
/// for a forgery.
fn compare(ours: &Job, portable: &Job, before: &[u8], what: &str) -> usize {
    if ours.status == JobStatus::Fault {
        assert!(ours.buffer.bytes() == before, "{what}: the buffer was touched");
        return 0;
    }
    assert_eq!(ours.status, portable.status, "{what}");
    assert!(ours.buffer.bytes() == portable.buffer.bytes(), "{what}: the buffers differ");
    if ours.status == JobStatus::Done { 1 } else { 2 }
}

/// Batches of every size, of both suites and directions, of few keys and of many, with and without ESN, some
/// packets forged and some jobs invalid. Statuses and all bytes equal the portable engine's, which leaves
/// forgeries unchanged.
#[test]
fn batches_of_every_size_match_the_portable_engine() {
    for seed in 0..4_u64 {
        let (Some(mut ours), mut portable) = (open(), PortableEngine::new()) else { return };
        let mut random = Rng::with_seed(0x5A1_6000 + seed);
        let mut seen = [0_usize; 3];
        for size in 1..=MOST {
            let suites = [&SUITES[..], &SUITES[..1], &SUITES[..1]][random.usize(..3)];
            let keys = [1, 2, 20][random.usize(..3)];
            let engines = &mut [&mut ours as &mut dyn Engine, &mut portable];
            let pairs: Vec<_> =
                (0..keys).map(|n| pair(engines, suites[n % suites.len()], &mut random)).collect();
            let longest = [80, 300, 1500, 3000][random.usize(..4)];
            let (mut left, mut right, mut expected) = (Vec::new(), Vec::new(), Vec::new());
            let directions = 1 + random.usize(..2);
            for _ in 0..size {
                let pair = &pairs[random.usize(..keys)];
                let mut job = packet(pair.suite, longest, &mut random);
                let mut status = JobStatus::Done;
                let (mut key, mut other) = (pair.seal, pair.open);
                if random.usize(..directions) == 0 {
                    job.key = pair.seal[1];
                    assert_eq!(portable.submit(std::slice::from_mut(&mut job)), 1);
                    assert_eq!(job.status, JobStatus::Done);
                    job.direction = Direction::Open;
                    (key, other) = (other, key);
                    if random.usize(..6) == 0 {
                        let start = job.auth_start as usize;
                        let end = (job.text_start + job.text_bytes) as usize + pair.suite.icv_bytes();
                        let at = start + random.usize(..end - start);
                        job.buffer.bytes_mut()[at] ^= 1 << random.usize(..8);
                        status = JobStatus::AuthenticationFailed;
                    }
                }
                let (mut a, b) = (copy(&job, key[0]), copy(&job, key[1]));
                if random.usize(..20) == 0 {
                    spoil(&mut a, pair.suite, other[0], &mut random);
                    status = JobStatus::Fault;
                }
                left.push(a);
                right.push(b);
                expected.push(status);
            }
            if size % 2 == 0 {
                let order = longest_first(&right);
                left = order.iter().map(|&n| copy(&left[n], left[n].key)).collect();
                right = order.iter().map(|&n| copy(&right[n], right[n].key)).collect();
                expected = order.iter().map(|&n| expected[n]).collect();
            }
            let before: Vec<_> = left.iter().map(|job| job.buffer.bytes().to_vec()).collect();
            assert_eq!(ours.submit(&mut left), size);
            assert_eq!(portable.submit(&mut right), size);
            for (n, (a, b)) in left.iter().zip(&right).enumerate() {
                let what = format!("seed {seed}, batch of {size}, {:?} of {}", a.direction, a.text_bytes);
                assert_eq!(a.status, expected[n], "{what}");
                seen[compare(a, b, &before[n], &what)] += 1;
            }
            for pair in pairs {
                [pair.seal[0], pair.open[0]].into_iter().for_each(|key| ours.remove(key));
                [pair.seal[1], pair.open[1]].into_iter().for_each(|key| portable.remove(key));
            }
        }
        println!("seed {seed}: {seen:?} faults, packets, forgeries");
        assert!(seen.iter().all(|count| *count > 50));
    }
}

/// Forty keys in turn, each laid out in sixteen lanes and then removed: packets of the next key are right,
/// and jobs of the removed key fault.
#[test]
fn keys_that_were_laid_out_do_not_outlive_their_removal() {
    let (Some(mut ours), mut portable) = (open(), PortableEngine::new()) else { return };
    let mut random = Rng::with_seed(0xB0B);
    for _ in 0..40 {
        let engines = &mut [&mut ours as &mut dyn Engine, &mut portable];
        let pair = pair(engines, Suite::AES128_SHA1, &mut random);
        let job = packet(pair.suite, 200, &mut random);
        let mut a: Vec<_> = (0..20).map(|_| copy(&job, pair.seal[0])).collect();
        let mut b = [copy(&job, pair.seal[1])];
        ours.submit(&mut a);
        portable.submit(&mut b);
        assert!(a.iter().all(|a| a.buffer.bytes() == b[0].buffer.bytes()));
        ours.remove(pair.seal[0]);
        let mut gone = [copy(&job, pair.seal[0])];
        ours.submit(&mut gone);
        assert_eq!(gone[0].status, JobStatus::Fault);
        assert!(gone[0].buffer.bytes() == job.buffer.bytes());
    }
}
