//! A device that is played, and does what it should not.

use crate::device::{Device, Wanted};
use crate::engine::CryptodevEngine;
use crate::raw::{self, Done, Open, Opened, Operation, Table, Work, ended};
use std::cell::RefCell;
use std::ffi::c_void;
use testudo_crypto::{Direction, Engine, Job, JobStatus, KeyId, KeyMaterial, Suite};
use testudo_packet::Buffer;

const SLOTS: u32 = 8;

/// What the device of this thread has, and how it behaves.
#[derive(Default)]
struct Played {
    handed: Vec<Operation>,
    back: Vec<Done>,
    takes: usize,
    does_nothing: bool,
    sessions: usize,
}

thread_local! {
    static PLAYED: RefCell<Played> = RefCell::new(Played { takes: usize::MAX, ..Played::default() });
    static BESIDE: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

fn play<R>(with: impl FnOnce(&mut Played) -> R) -> R {
    PLAYED.with_borrow_mut(with)
}

unsafe extern "C" fn open(_: *const Open, opened: *mut Opened) -> i32 {
    let bytes = SLOTS as usize * (raw::SLOT_ICV_BYTES + raw::SLOT_COPY_BYTES);
    BESIDE.with_borrow_mut(|beside| {
        beside.resize(bytes, 0);
        let start = beside.as_mut_ptr();
        let copies = start.wrapping_add(SLOTS as usize * raw::SLOT_ICV_BYTES);
        let opens =
            Opened { icvs: start, copies, slots: SLOTS, sessions: 64, is_software: 1, ..Opened::EMPTY };
        // SAFETY: the caller has a place for it.
        unsafe { *opened = opens };
    });
    0
}

unsafe extern "C" fn close(_: *mut c_void) {}

unsafe extern "C" fn does(_: *mut c_void, _: *const Work) -> i32 {
    1
}

unsafe extern "C" fn session_make(_: *mut c_void, _: *const Work, session: *mut *mut c_void) -> i32 {
    // SAFETY: the caller has a place for it. Nobody follows the pointer.
    unsafe { *session = std::ptr::without_provenance_mut(64) };
    play(|played| played.sessions += 1);
    0
}

unsafe extern "C" fn session_end(_: *mut c_void, _: *mut c_void) {
    play(|played| played.sessions -= 1);
}

/// "Encrypts" by turning all bits, and has an ICV of ones.
unsafe extern "C" fn submit(_: *mut c_void, _: u16, jobs: *const Operation, count: u16) -> u16 {
    play(|played| {
        let taken = usize::from(count).min(played.takes);
        for at in 0..taken {
            // SAFETY: as many operations as are counted, whose pointers are to as many bytes as they say.
            unsafe {
                let job = *jobs.add(at);
                for at in 0..job.cipher_bytes as usize {
                    let byte = job.packet.add(job.cipher_at as usize + at);
                    *byte = if played.does_nothing { *byte } else { !*byte };
                }
                if !played.does_nothing {
                    std::ptr::write_bytes(job.icv, 0xFF, 12);
                }
                played.handed.push(job);
            }
        }
        taken as u16
    })
}

unsafe extern "C" fn poll(_: *mut c_void, _: u16, done: *mut Done, count: u16) -> u16 {
    play(|played| {
        let given = played.back.len().min(usize::from(count));
        for (at, back) in played.back.drain(..given).enumerate() {
            // SAFETY: room for as many as are asked for.
            unsafe { *done.add(at) = back };
        }
        given as u16
    })
}

unsafe extern "C" fn map(_: *mut c_void, _: *mut u8, _: u64) -> i32 {
    0
}

const TABLE: Table = Table {
    version: raw::VERSION,
    size: size_of::<Table>() as u32,
    open,
    close,
    does,
    session_make,
    session_end,
    submit,
    poll,
    map,
    unmap: map,
};

fn engine() -> CryptodevEngine {
    let wanted = Wanted { device: c"played".into(), queue_pairs: 1, slots_per_pair: 8, sessions: 64 };
    let device = Device::open(TABLE, &wanted).unwrap();
    CryptodevEngine::over(device, None, "played").unwrap()
}

const TEXT_BYTES: usize = 48;

fn job(engine: &mut CryptodevEngine, suite: &str, direction: Direction) -> Job {
    let suite: Suite = suite.parse().unwrap();
    let bytes = (7..).take(suite.keying_material_bytes()).collect::<Vec<_>>();
    let key = engine.install(&KeyMaterial::new(suite, bytes.into()).unwrap(), direction).unwrap();
    let text_start = 8 + suite.iv_bytes();
    let bytes = vec![0xA5; text_start + TEXT_BYTES + suite.icv_bytes()];
    Job {
        key,
        sequence: 9 << 32,
        esn: true,
        text_start: text_start as u32,
        text_bytes: TEXT_BYTES as u32,
        ..Job::new(Buffer::copied(&bytes, 0, 0), direction, 7)
    }
}

const SUITES: [&str; 5] = ["aes128gcm16", "aes128-sha1", "aes128ctr-sha256", "aes128gmac", "null-sha1"];
const DIRECTIONS: [Direction; 2] = [Direction::Seal, Direction::Open];

fn polled(engine: &mut CryptodevEngine, back: &[(u32, u32)]) -> Vec<Job> {
    play(|played| played.back = back.iter().map(|&(slot, ended)| Done { slot, ended }).collect());
    let mut done = Vec::new();
    engine.poll(&mut done, 64);
    done
}

#[test]
fn a_slot_that_is_none_or_empty_or_not_done_gives_no_job() {
    let mut engine = engine();
    let mut jobs = [job(&mut engine, "aes128gcm16", Direction::Seal)];
    assert_eq!(engine.submit(&mut jobs), 1);
    assert_eq!((jobs[0].status, engine.in_flight()), (JobStatus::Taken, 1));
    let slot = play(|played| played.handed[0].slot);
    let strange = [(SLOTS, ended::WELL), (u32::MAX, ended::WELL), ((slot + 1) % SLOTS, ended::WELL)];
    assert!(polled(&mut engine, &strange).is_empty());
    assert!(polled(&mut engine, &[(slot, ended::NOT_YET)]).is_empty());
    let done = polled(&mut engine, &[(slot, ended::WELL), (slot, ended::WELL)]);
    assert_eq!((done.len(), done[0].status, done[0].sa), (1, JobStatus::Done, 7));
    assert_eq!(engine.in_flight(), 0);
}

#[test]
fn what_a_device_does_not_take_is_as_it_was() {
    for suite in SUITES {
        for direction in DIRECTIONS {
            let mut engine = engine();
            let mut jobs: Vec<Job> = (0..5).map(|_| job(&mut engine, suite, direction)).collect();
            jobs[1].key = KeyId::NONE;
            jobs[3].key = KeyId::NONE;
            play(|played| played.takes = 1);
            assert_eq!(engine.submit(&mut jobs), 4, "a device that takes one is asked twice");
            let statuses: Vec<_> = jobs.iter().map(|job| job.status).collect();
            let (taken, fault, pending) = (JobStatus::Taken, JobStatus::Fault, JobStatus::Pending);
            assert_eq!(statuses, [taken, fault, taken, fault, pending], "{suite}, {direction:?}");
            assert!(jobs[4].buffer.bytes().iter().all(|byte| *byte == 0xA5), "{suite}, {direction:?}");
            assert_eq!(engine.in_flight(), 2);
            let back = play(|played| {
                played.takes = usize::MAX;
                played.handed.drain(..).map(|job| (job.slot, ended::WELL)).collect::<Vec<_>>()
            });
            assert_eq!(polled(&mut engine, &back).len(), 2);
        }
    }
}

#[test]
fn a_device_that_does_nothing_seals_nothing_and_decrypts_nothing() {
    for suite in SUITES {
        for direction in DIRECTIONS {
            let mut engine = engine();
            let mut jobs = [job(&mut engine, suite, direction)];
            play(|played| played.does_nothing = true);
            engine.submit(&mut jobs);
            let slot = play(|played| played.handed.pop().unwrap().slot);
            play(|played| played.does_nothing = false);
            let done = polled(&mut engine, &[(slot, ended::WELL)]);
            // A device that says of an unencrypted packet that it is authentic is believed.
            let is_believed = direction == Direction::Open && !suite.parse::<Suite>().unwrap().encrypts();
            let expected = if is_believed { JobStatus::Done } else { JobStatus::AuthenticationFailed };
            assert_eq!(done[0].status, expected, "{suite}, {direction:?}");
            let text = &done[0].buffer.bytes()[done[0].text_start as usize..][..TEXT_BYTES];
            assert!(is_believed || text.iter().all(|byte| *byte == 0), "{suite}, {direction:?}");
        }
    }
}

#[test]
fn a_text_with_a_wrong_icv_is_wiped_and_its_icv_is_as_it_came() {
    for suite in SUITES {
        let mut engine = engine();
        let mut jobs = [job(&mut engine, suite, Direction::Open)];
        engine.submit(&mut jobs);
        let slot = play(|played| played.handed.pop().unwrap().slot);
        let done = polled(&mut engine, &[(slot, ended::WRONG_ICV)]);
        assert_eq!(done[0].status, JobStatus::AuthenticationFailed, "{suite}");
        let rest = &done[0].buffer.bytes()[done[0].text_start as usize..];
        let left = if suite.parse::<Suite>().unwrap().encrypts() { 0 } else { 0xA5 };
        assert!(rest[..TEXT_BYTES].iter().all(|byte| *byte == left), "{suite}");
    }
}

#[test]
fn a_device_that_fails_again_and_again_gets_no_more_packets() {
    let mut engine = engine();
    for _ in 0..16 {
        let mut jobs = [job(&mut engine, "aes128-sha1", Direction::Open)];
        engine.submit(&mut jobs);
        let slot = play(|played| played.handed.pop().unwrap().slot);
        let done = polled(&mut engine, &[(slot, 2)]);
        assert_eq!(done[0].status, JobStatus::AuthenticationFailed);
        assert!(done[0].buffer.bytes()[24..][..TEXT_BYTES].iter().all(|byte| *byte == 0));
        engine.remove(done[0].key);
    }
    let mut jobs = [job(&mut engine, "aes128-sha1", Direction::Open)];
    assert_eq!((engine.submit(&mut jobs), jobs[0].status), (1, JobStatus::Fault));
    assert!(jobs[0].buffer.bytes().iter().all(|byte| *byte == 0xA5));
}

#[test]
fn a_device_that_gives_back_nonsense_without_end_does_not_keep_the_worker() {
    let mut engine = engine();
    let mut jobs = [job(&mut engine, "aes128gcm16", Direction::Seal)];
    engine.submit(&mut jobs);
    let nonsense = vec![(u32::MAX, ended::WELL); 10_000];
    assert!(polled(&mut engine, &nonsense).is_empty());
    assert!(play(|played| played.back.len()) > 9_000, "a call looks at a burst of it");
    // What it gives back later is taken all the same.
    let slot = play(|played| played.handed.pop().unwrap().slot);
    assert_eq!(polled(&mut engine, &[(slot, ended::WELL)])[0].status, JobStatus::Done);
}

#[test]
fn a_removed_key_is_there_until_its_last_job_has_ended() {
    let mut engine = engine();
    let mut jobs = [job(&mut engine, "aes128gcm16", Direction::Seal)];
    let key = jobs[0].key;
    engine.submit(&mut jobs);
    // With ESN it has a second session.
    assert_eq!(play(|played| played.sessions), 2);
    engine.remove(key);
    assert_eq!(play(|played| played.sessions), 2);
    let slot = play(|played| played.handed.pop().unwrap().slot);
    assert_eq!(polled(&mut engine, &[(slot, ended::WELL)])[0].status, JobStatus::Done);
    assert_eq!(play(|played| played.sessions), 0);
}

/// The laboratory reads it: what computes on the processor is no device beside it.
#[test]
fn a_device_in_software_says_so_of_itself() {
    assert!(engine().description().ends_with(", in software"));
}
