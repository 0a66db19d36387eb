//! A device that is lost, hangs, does nothing or errs.

use super::compiled::Faults;
use super::engine;
use crate::SOURCE;
use crate::device::{BIN_WORDS, JOB_WORDS, KEY_WORDS};
use crate::engine::GpuEngine;
use crate::place::{FRAME_WORD, MARK_WORD};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use testudo_crypto::{Direction, Engine, EngineError, Job, JobStatus, KeyId, KeyMaterial, Suite};
use testudo_packet::Buffer;

pub(super) const SUITE: Suite = Suite::AES128_SHA1;

pub(super) fn material() -> KeyMaterial {
    let bytes: Vec<u8> = (1..=36).collect();
    KeyMaterial::new(SUITE, bytes.into()).unwrap()
}

fn job(key: KeyId, ticket: u32) -> Job {
    let packet: Vec<u8> = (0..24 + 64 + 12).collect();
    let (text_start, text_bytes) = (24, 64);
    let buffer = Buffer::copied(&packet, 0, 0);
    Job { key, ticket, text_start, text_bytes, ..Job::new(buffer, Direction::Seal, 0) }
}

pub(super) fn jobs(key: KeyId, count: u32) -> Vec<Job> {
    (0..count).map(|ticket| job(key, ticket)).collect()
}

/// Polls until nothing is in flight; a second is never needed.
pub(super) fn all(engine: &mut GpuEngine) -> Vec<Job> {
    let mut done = Vec::new();
    let start = Instant::now();
    engine.flush();
    while engine.in_flight() > 0 && start.elapsed() < Duration::from_secs(20) {
        engine.poll(&mut done, 5);
    }
    assert_eq!(engine.in_flight(), 0);
    done
}

/// Submits jobs, lets a fault begin, and shows that each ends once, as a fault with its packet untouched, in
/// order.
fn nothing_is_lost_under(fault: fn(&Faults), patience: Duration) -> String {
    let faults = Arc::new(Faults::default());
    let mut engine = engine(&faults);
    engine.set_patience(patience);
    let key = engine.install(&material(), Direction::Seal).unwrap();
    let mut jobs = jobs(key, 120);
    fault(&faults);
    let taken = engine.submit(&mut jobs);
    assert!(taken > 0);
    let done: Vec<Job> = all(&mut engine);
    let in_place = jobs[..taken].iter().filter(|job| job.status != JobStatus::Taken).count();
    assert_eq!(done.len() + in_place, taken);
    assert!(engine.is_out_of_service());
    let untouched = job(key, 0).buffer.bytes().to_vec();
    assert!(done.iter().all(|job| job.status == JobStatus::Fault && job.buffer.bytes() == untouched));
    assert!(done.is_sorted_by_key(|job| job.ticket));
    // It gets no more, and refuses keys, so that the next engine takes over at once.
    let launches = faults.launches.load(Ordering::Relaxed);
    let mut later = [job(key, 0)];
    assert_eq!((engine.submit(&mut later), later[0].status), (1, JobStatus::Fault));
    let refused = engine.install(&material(), Direction::Seal);
    assert!(matches!(refused, Err(EngineError::KeyRefused { .. })), "{refused:?}");
    assert_eq!(faults.launches.load(Ordering::Relaxed), launches);
    engine.description()
}

const LONG: Duration = Duration::from_secs(3600);

#[test]
fn a_gpu_that_is_lost_loses_no_packet() {
    let said = nothing_is_lost_under(|faults| Faults::set(&faults.is_lost), LONG);
    assert!(said.ends_with("out of service: the device is lost"), "{said}");
}

#[test]
fn a_gpu_that_hangs_loses_no_packet() {
    let said = nothing_is_lost_under(|faults| Faults::set(&faults.hangs), Duration::ZERO);
    assert!(said.ends_with("a batch was not done 0ns after its first packet came"), "{said}");
}

#[test]
fn a_gpu_that_does_nothing_seals_nothing() {
    let said = nothing_is_lost_under(|faults| Faults::set(&faults.idles), LONG);
    assert!(said.ends_with("gave a batch back without having done it"), "{said}");
}

#[test]
fn a_gpu_that_errs_is_found_out_by_known_answers() {
    let faults = Arc::new(Faults::default());
    let mut engine = engine(&faults);
    Faults::set(&faults.errs);
    let found = testudo_crypto::self_test(&mut engine);
    assert!(matches!(found, Err(EngineError::SelfTest { engine: "gpu", .. })), "{found:?}");
}

/// Before the key goes, what waits under it is launched.
#[test]
fn a_removed_key_does_its_last_jobs_and_is_zeroed_on_the_device() {
    let faults = Arc::new(Faults::default());
    let mut engine = engine(&faults);
    Faults::set(&faults.hangs);
    let key = engine.install(&material(), Direction::Seal).unwrap();
    assert_eq!(engine.submit(&mut jobs(key, 3)), 3);
    engine.flush();
    assert_eq!(engine.submit(&mut jobs(key, 3)), 3);
    assert_eq!(faults.launches.load(Ordering::Relaxed), 1, "the second waits for more");
    engine.remove(key);
    assert_eq!(faults.launches.load(Ordering::Relaxed), 2);
    assert_eq!(*faults.wiped.lock().unwrap(), [0; KEY_WORDS]);
    faults.hangs.store(false, Ordering::Relaxed);
    let done = all(&mut engine);
    assert_eq!(done.iter().filter(|job| job.status == JobStatus::Done).count(), 6);
    assert!(done.iter().all(|job| job.buffer.bytes() == done[0].buffer.bytes()));
}

/// Jobs gather until they are flushed, and a batch that is full goes; while two are away all others stay the
/// caller's.
#[test]
fn jobs_gather_until_they_are_flushed() {
    let faults = Arc::new(Faults::default());
    let mut engine = engine(&faults);
    Faults::set(&faults.hangs);
    let key = engine.install(&material(), Direction::Seal).unwrap();
    let mut taken = 0;
    for _ in 0..200 {
        taken += u32::try_from(engine.submit(&mut [job(key, taken)])).unwrap();
    }
    // Two of 48.
    assert_eq!((taken, faults.launches.load(Ordering::Relaxed)), (96, 2));
    engine.flush();
    assert_eq!(faults.launches.load(Ordering::Relaxed), 2, "nothing has gathered");
    let mut left = [job(key, 0)];
    assert_eq!((engine.submit(&mut left), left[0].status), (0, JobStatus::Pending));
    faults.hangs.store(false, Ordering::Relaxed);
    let done = all(&mut engine);
    assert!(done.iter().zip(0..).all(|(job, ticket)| job.ticket == ticket && job.status == JobStatus::Done));
    assert_eq!(done.len(), 96);
    assert_eq!(engine.submit(&mut jobs(key, 5)), 5);
    assert_eq!(faults.launches.load(Ordering::Relaxed), 2);
    engine.flush();
    assert_eq!(faults.launches.load(Ordering::Relaxed), 3);
}

/// The gateway counts from then, too, however late the launch.
#[test]
fn a_batch_waits_from_its_first_packet_on() {
    let faults = Arc::new(Faults::default());
    let mut engine = engine(&faults);
    Faults::set(&faults.hangs);
    let key = engine.install(&material(), Direction::Seal).unwrap();
    let submit = |engine: &mut GpuEngine| assert_eq!(engine.submit(&mut [job(key, 0)]), 1);
    let before = Instant::now();
    submit(&mut engine);
    let after = Instant::now();
    assert_eq!(faults.launches.load(Ordering::Relaxed), 0, "it gathers");
    while faults.launches.load(Ordering::Relaxed) == 0 {
        submit(&mut engine);
    }
    let since = engine.last_waits_since().unwrap();
    assert!((before..=after).contains(&since));
}

/// As after a pause of the machine, or while others have the worker's processor: of the time between two
/// looks a sixteenth of the patience counts, and keys that are expanded before the batch have time of their
/// own.
#[test]
fn time_in_which_nobody_looked_does_not_break_a_device() {
    for (for_keys, looks) in [(Duration::ZERO, 16), (LONG, 17)] {
        let faults = Arc::new(Faults::default());
        let mut engine = engine(&faults);
        engine.set_patience(LONG);
        let key = engine.install(&material(), Direction::Seal).unwrap();
        assert_eq!(engine.submit(&mut jobs(key, 3)), 3);
        assert_eq!(all(&mut engine).len(), 3);
        engine.set_keys_until(Instant::now() + for_keys);
        Faults::set(&faults.hangs);
        assert_eq!(engine.submit(&mut jobs(key, 3)), 3);
        engine.flush();
        let (long_after, mut done) = (Instant::now() + 10 * LONG, Vec::new());
        for look in 1..=looks {
            assert!(!engine.is_broken() && done.is_empty(), "after {} looks", look - 1);
            engine.look(long_after);
            engine.poll(&mut done, 5);
        }
        assert!(engine.is_broken() && done.len() == 3, "after {looks} looks");
    }
}

/// Also of a device that had no batch for hours of rekeying, because others did them.
#[test]
fn a_batch_has_time_for_keys_that_are_not_expanded_yet() {
    let [mut one, mut one_of_several] = [(); 2].map(|()| engine(&Arc::default()));
    let (ms, us) = (Duration::from_millis, Duration::from_micros);
    one_of_several.set_patience(ms(50));
    let began = Instant::now();
    one.install(&material(), Direction::Seal).unwrap();
    assert!(one.for_keys(began) >= us(100));
    for engine in [&mut one, &mut one_of_several] {
        (1..=2000_u32).for_each(|key| engine.expands(began + key * LONG));
        let last = began + 2000 * LONG;
        assert_eq!([0, 40, 100].map(|passed| engine.for_keys(last + us(passed))), [100, 60, 0].map(us));
    }
    let later = began + 3000 * LONG;
    for (mut engine, most) in [(one, ms(200)), (one_of_several, ms(10))] {
        (0..2000).for_each(|_| engine.expands(later));
        assert_eq!(engine.for_keys(later), most);
    }
}

/// As by a device thread, which rests in between: else the gateway, in need, would have the whole engine go.
#[test]
fn one_of_several_that_is_looked_at_each_10_ms_breaks_within_60_ms() {
    let faults = Arc::new(Faults::default());
    let mut engine = engine(&faults);
    let key = engine.install(&material(), Direction::Seal).unwrap();
    assert_eq!(engine.submit(&mut jobs(key, 3)), 3);
    assert_eq!(all(&mut engine).len(), 3);
    engine.set_patience(Duration::from_millis(50));
    Faults::set(&faults.hangs);
    assert_eq!(engine.submit(&mut jobs(key, 3)), 3);
    engine.flush();
    let (since, mut done) = (engine.last_waits_since().unwrap(), Vec::new());
    (1..=6_u32).for_each(|look| engine.look(since + look * Duration::from_millis(10)));
    engine.poll(&mut done, 5);
    assert!(engine.is_broken() && done.len() == 3);
}

/// Two chunks of the length of the bound are normal work.
#[test]
fn one_device_of_several_has_three_times_the_bound_on_latency() {
    for (latency_ms, patience_ms) in [(1, 50), (16, 50), (50, 150)] {
        let patience = crate::several::patience(Duration::from_millis(latency_ms));
        assert_eq!(patience, Duration::from_millis(patience_ms));
    }
}

/// Both sides count words alike.
#[test]
fn the_kernel_has_the_sizes_of_the_host() {
    for (name, words) in [("BIN_WORDS", BIN_WORDS), ("JOB_WORDS", JOB_WORDS), ("KEY_WORDS", KEY_WORDS)] {
        let line = format!("#define {name} {words}\n");
        assert!(SOURCE[0].contains(&line), "{line}");
    }
    assert!(SOURCE[0].contains(&format!("#define JOB_MARK {}\n", MARK_WORD)));
    assert!(SOURCE[0].contains(&format!("#define JOB_NUMBER {FRAME_WORD}\n")));
    assert!(SOURCE[0].contains(&format!("#define JOB_FRAME {}\n", FRAME_WORD + 1)));
    assert!(SOURCE[0].contains(&format!("uint word[{}];\n", crate::work::RAW_KEY_WORDS)));
    assert!(SOURCE[0].contains(&format!("#define MOST_LANES {}\n", crate::device::MOST_LANES)));
    assert!(SOURCE[0].contains("#define DIGEST_WORDS 16\n"));
}
