//! Launches that are timed apart from a gateway.

use super::compiled::Faults;
use super::{engine, fresh};
use crate::open::{GpuConfig, OneGpu};
use crate::{KernelWork, kernel_work};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use testudo_crypto::{Direction, Engine, EngineError, Job, JobStatus, KeyId, KeyMaterial, Suite, self_test};
use testudo_packet::Buffer;

const SUITE: Suite = Suite::AES128_SHA1;

fn key(engine: &mut dyn Engine) -> KeyId {
    let bytes: Vec<u8> = (1..=36).collect();
    engine.install(&KeyMaterial::new(SUITE, bytes.into()).unwrap(), Direction::Seal).unwrap()
}

fn jobs(key: KeyId, count: usize) -> Vec<Job> {
    let packet: Vec<u8> = (0..24 + 64 + 12).collect();
    let buffer = || Buffer::copied(&packet, 0, 0);
    let one = || Job { key, text_start: 24, text_bytes: 64, ..Job::new(buffer(), Direction::Seal, 0) };
    (0..count).map(|_| one()).collect()
}

#[test]
fn launches_are_timed_apart_and_the_engine_is_as_it_was() {
    let faults = Arc::new(Faults::default());
    let mut gpu = OneGpu::new(engine(&faults));
    let id = key(gpu.engine());
    assert_eq!(gpu.engine().submit(&mut jobs(id, 20)), 20);
    let before = faults.launches.load(Ordering::Relaxed);
    let times = gpu.time(5).unwrap();
    assert_eq!(times.packets, 20);
    // Text, digest and plan of each, and some more.
    assert!((20 * (88 + 68 + 48)..20 * 300).contains(&times.to_device_bytes), "{times:?}");
    let launches = faults.launches.load(Ordering::Relaxed) - before;
    assert_eq!(launches, 4 * (3 + 5) + 2 * (2 + 5), "four kinds, one by one, and two kinds two at a time");
    assert_eq!(gpu.engine().in_flight(), 0, "its jobs are dropped");
    gpu.engine().remove(id);
    assert_eq!(self_test(gpu.engine()), Ok(()));
}

#[test]
fn nothing_is_timed_without_jobs_or_on_a_device_that_fails() {
    assert!(OneGpu::new(fresh()).time(1).unwrap_err().contains("no job"));
    let faults = Arc::new(Faults::default());
    let mut gpu = OneGpu::new(engine(&faults));
    let id = key(gpu.engine());
    gpu.engine().submit(&mut jobs(id, 3));
    Faults::set(&faults.is_lost);
    assert_eq!(gpu.time(1).unwrap_err(), "the device is lost");
}

/// It is in nobody's way: packets come back at once, in order, as they went, and it passes for no engine.
#[test]
fn a_device_that_does_nothing_gives_all_back_and_is_refused_as_an_engine() {
    let config = GpuConfig { batch_jobs: 48, keys: 64, ..GpuConfig::default() };
    let mut gpu = OneGpu::idle(&config);
    let id = key(gpu.engine());
    let (mut batch, mut done) = (jobs(id, 96), Vec::new());
    let before = batch[0].buffer.bytes().to_vec();
    assert_eq!(gpu.engine().submit(&mut batch), 96);
    gpu.engine().flush();
    gpu.engine().poll(&mut done, 200);
    assert_eq!((done.len(), gpu.engine().in_flight()), (96, 0));
    assert!(done.iter().all(|job| job.status == JobStatus::Done));
    let (text, icv) = before.split_at(88);
    assert!(done.iter().all(|job| job.buffer.bytes().starts_with(text)), "it has sealed nothing");
    assert!(done.iter().all(|job| job.buffer.bytes()[88..] == [0; 12]) && icv != [0; 12]);
    let refused = self_test(OneGpu::idle(&config).engine());
    assert!(matches!(refused, Err(EngineError::SelfTest { .. })), "{refused:?}");
}

#[test]
fn a_packet_is_steps_on_as_many_lanes_as_share_it() {
    let work = |direction, bytes| kernel_work(SUITE, direction, bytes, 128);
    let sealed = KernelWork { cipher_steps: 25, hash_steps: 12, lanes: 1 };
    assert_eq!(work(Direction::Seal, 1420), Some(sealed));
    assert_eq!(work(Direction::Open, 1420), Some(KernelWork { lanes: 4, ..sealed }));
    assert_eq!(kernel_work(Suite::CHACHA20POLY1305, Direction::Seal, 64, 128), None);
}
