//! Frames that the kernel writes: byte for byte those that the CPU writes, in every suite, around each
//! alignment, with ESN and without.

use super::compiled::{Compiled, Faults};
use super::config;
use crate::device::MOST_LANES;
use crate::engine::GpuEngine;
use crate::opencl::OpenClDevice;
use crate::parts::Parts;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use testudo_conformance::{drive, random_bytes};
use testudo_crypto::{
    Direction, Engine, Job, JobStatus, KeyFrame, KeyId, KeyMaterial, PortableEngine, Suite, Trailer,
    Unwritten, frame, self_test,
};
use testudo_packet::Buffer;

const ESP_HEADER_BYTES: usize = 8;
/// The protocol numbers that a trailer in tunnel mode has, and that of a dummy packet.
const NEXT_HEADERS: [u8; 3] = [4, 41, 59];
/// Bytes behind each packet, which are not its own.
const GUARD: usize = 7;

fn suites(engine: &dyn Engine) -> Vec<Suite> {
    let writes = |suite: &Suite| engine.capability(*suite).is_some_and(|capability| capability.writes_frames);
    Suite::ALL.iter().copied().filter(writes).collect()
}

/// A packet whose frame is not written, at any offset; in its room there is anything.
fn job(suite: Suite, payload_bytes: usize, random: &mut fastrand::Rng) -> Job {
    let alignment = suite.alignment_bytes();
    let text_bytes = (payload_bytes + 2).next_multiple_of(alignment);
    let padding = u8::try_from(text_bytes - payload_bytes - 2).unwrap();
    let (offset, front) = (random.usize(..64), ESP_HEADER_BYTES + suite.iv_bytes());
    let bytes = random_bytes(random, offset + front + text_bytes + suite.icv_bytes() + GUARD);
    let count = |bytes: usize| u32::try_from(bytes).unwrap();
    Job {
        auth_start: count(offset),
        text_start: count(offset + front),
        text_bytes: count(text_bytes),
        sequence: random.u64(..),
        esn: random.bool(),
        unwritten: Trailer::new(padding, NEXT_HEADERS[random.usize(..NEXT_HEADERS.len())]).into(),
        ..Job::new(Buffer::copied(&bytes, 0, 0), Direction::Seal, 0)
    }
}

fn copy(job: &Job, key: KeyId) -> Job {
    let Job { sequence, auth_start, text_start, text_bytes, esn, unwritten, .. } = *job;
    let buffer = Buffer::copied(job.buffer.bytes(), 0, 0);
    let new = Job::new(buffer, Direction::Seal, 0);
    Job { sequence, auth_start, text_start, text_bytes, esn, unwritten, key, ..new }
}

/// Around the alignment of every suite, each block and each lane's share.
fn payloads() -> impl Iterator<Item = usize> {
    (0..=67).chain(250..=290).chain(1490..=1510).chain([4000])
}

/// Has each packet sealed with its frame by the portable engine, and without it by `engine`, among others
/// that have theirs.
fn agree(engine: &mut GpuEngine, suite: Suite, payloads: impl Iterator<Item = usize>, seed: u64) {
    let mut random = fastrand::Rng::with_seed(seed);
    let frame = KeyFrame::new(random.u32(..), random.u64(..));
    let bytes = random_bytes(&mut random, suite.keying_material_bytes());
    let material = KeyMaterial::new(suite, bytes.into()).unwrap().with_frame(frame);
    let mut portable = PortableEngine::new();
    let keys =
        [engine, &mut portable as &mut dyn Engine].map(|engine| engine.install(&material, Direction::Seal));
    let [ours, theirs] = keys.map(Result::unwrap);
    let packets: Vec<Job> = payloads.map(|bytes| job(suite, bytes, &mut random)).collect();
    let whole = |job: &Job, key| {
        let mut job = copy(job, key);
        assert!(frame::complete(&mut job, frame, suite));
        job
    };
    let by_cpu = packets.iter().map(|job| whole(job, theirs)).collect();
    let each = packets.iter().enumerate();
    let by_kernel =
        each.map(|(n, job)| if n % 5 == 4 { whole(job, ours) } else { copy(job, ours) }).collect();
    let (by_cpu, by_kernel) = (drive(&mut portable, by_cpu).unwrap(), drive(engine, by_kernel).unwrap());
    for (cpu, kernel) in by_cpu.iter().zip(&by_kernel) {
        let what = format!("seed {seed}: {suite}, {} bytes of text, ESN {}", cpu.text_bytes, cpu.esn);
        assert_eq!((kernel.status, kernel.unwritten), (JobStatus::Done, Unwritten::NOTHING), "{what}");
        assert!(kernel.buffer.bytes() == cpu.buffer.bytes(), "{what}");
    }
    engine.remove(ours);
}

fn compiled(lanes: u32, is_last_lane_first: bool) -> GpuEngine {
    let sizes = config().sizes();
    writing(GpuEngine::over(Box::new(Compiled::with_lanes(sizes, lanes, is_last_lane_first)), sizes))
}

fn writing(mut engine: GpuEngine) -> GpuEngine {
    engine.set_writes_frames(true);
    engine
}

#[test]
fn the_kernel_writes_the_frames_that_the_cpu_writes() {
    for (seed, lanes) in (1..).zip([1, 7, 32, u32::try_from(MOST_LANES).unwrap()]) {
        let mut engine = compiled(lanes, seed % 2 == 0);
        let suites = suites(&engine);
        assert!(suites.len() > 30, "{}", suites.len());
        for suite in suites {
            agree(&mut engine, suite, payloads(), seed);
        }
    }
}

#[test]
fn each_number_of_lanes_has_the_frame_before_it_begins() {
    for (seed, parts) in (11..).zip([2, 8, 32]) {
        for is_last_lane_first in [false, true] {
            let mut engine = compiled(32, is_last_lane_first);
            engine.set_parts(Parts::Fixed(parts));
            for suite in ["aes128gcm16", "aes256gmac", "aes128ctr-sha256"] {
                agree(&mut engine, suite.parse().unwrap(), payloads(), seed);
            }
        }
    }
}

#[test]
fn the_kernel_writes_the_frames_that_the_cpu_writes_on_pocl() {
    let sizes = config().sizes();
    for copies in [true, false] {
        let wanted = Some("Portable Computing Language");
        let device = OpenClDevice::open_copying(wanted, 0, sizes, Some(copies)).unwrap();
        let mut engine = writing(GpuEngine::over(Box::new(device), sizes));
        assert_eq!(self_test(&mut engine), Ok(()));
        for suite in suites(&engine) {
            agree(&mut engine, suite, payloads(), 21);
        }
    }
}

#[test]
fn known_answers_hold_for_frames_too() {
    assert_eq!(self_test(&mut compiled(32, false)), Ok(()));
}

/// The ICV says nothing of it, since the device has made it of what it had: a header that is not the one that
/// the gateway has asked for goes nowhere.
#[test]
fn a_header_that_a_device_gets_wrong_is_a_fault() {
    for suite in [Suite::AES128GCM16, "aes128ctr-sha1".parse().unwrap(), Suite::AES128_SHA1] {
        // SPI and number; behind them the IV, which of CBC nobody can foresee.
        let header_bytes = if suite == Suite::AES128_SHA1 { 8 } else { 16 };
        for at in 0..=header_bytes {
            let faults = Arc::new(Faults::default());
            let mut engine = writing(super::engine(&faults));
            let mut random = fastrand::Rng::with_seed(6);
            let bytes = random_bytes(&mut random, suite.keying_material_bytes());
            let material = KeyMaterial::new(suite, bytes.into()).unwrap().with_frame(KeyFrame::new(1, 2));
            let key = engine.install(&material, Direction::Seal).unwrap();
            let packet = Job { esn: false, ..job(suite, 60, &mut random) };
            faults.misses.store(at, Ordering::Relaxed);
            let ended = drive(&mut engine, vec![copy(&packet, key)]).unwrap().remove(0);
            if at == 0 {
                assert_eq!(ended.status, JobStatus::Done, "{suite}");
                continue;
            }
            assert_eq!(
                (ended.status, ended.unwritten),
                (JobStatus::Fault, packet.unwritten),
                "{suite}, {at}"
            );
            assert!(ended.buffer.bytes() == packet.buffer.bytes(), "{suite}, {at}");
        }
    }
}

/// The next engine gets the packet without a frame, as it came.
#[test]
fn a_packet_that_the_device_did_not_do_has_no_frame_and_is_untouched() {
    let all: [fn(&Faults); 2] = [|faults| Faults::set(&faults.is_lost), |faults| Faults::set(&faults.idles)];
    for fault in all {
        let faults = Arc::new(Faults::default());
        let mut engine = writing(super::engine(&faults));
        let suite = Suite::AES128_SHA1;
        let mut random = fastrand::Rng::with_seed(5);
        let bytes = random_bytes(&mut random, suite.keying_material_bytes());
        let material = KeyMaterial::new(suite, bytes.into()).unwrap().with_frame(KeyFrame::new(1, 2));
        let key = engine.install(&material, Direction::Seal).unwrap();
        let packets: Vec<Job> = payloads().map(|bytes| job(suite, bytes, &mut random)).collect();
        fault(&faults);
        let ended = drive(&mut engine, packets.iter().map(|job| copy(job, key)).collect()).unwrap();
        for (before, after) in packets.iter().zip(&ended) {
            assert_eq!((after.status, after.unwritten), (JobStatus::Fault, before.unwritten));
            assert!(after.buffer.bytes() == before.buffer.bytes());
        }
    }
}

/// A key of no SA has no frames, what is opened has its own, and a trailer is within the text.
#[test]
fn a_frame_that_cannot_be_written_is_a_fault() {
    let suite = Suite::AES128GCM16;
    let mut engine = compiled(7, false);
    let mut random = fastrand::Rng::with_seed(9);
    let bytes = random_bytes(&mut random, suite.keying_material_bytes());
    let material = KeyMaterial::new(suite, bytes.into()).unwrap();
    let bare = engine.install(&material, Direction::Seal).unwrap();
    let framed = material.with_frame(KeyFrame::new(1, 2));
    let [seal, open] = [Direction::Seal, Direction::Open].map(|to| engine.install(&framed, to).unwrap());
    let packet = job(suite, 30, &mut random);
    let without_room = Trailer::new(31, 4);
    let jobs = vec![
        copy(&packet, bare),
        Job { direction: Direction::Open, ..copy(&packet, open) },
        Job { unwritten: without_room.into(), ..copy(&packet, seal) },
        copy(&packet, seal),
    ];
    let ended = drive(&mut engine, jobs).unwrap();
    let fault = JobStatus::Fault;
    assert_eq!(
        ended.iter().map(|job| job.status).collect::<Vec<_>>(),
        [fault, fault, fault, JobStatus::Done]
    );
}
