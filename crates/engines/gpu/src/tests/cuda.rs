//! Devices of CUDA's: the kernels as NVRTC compiles them, and the driver's API over a twin of it in memory
//! (`twin.cpp`), which is as late and as disorderly as a driver may be.

use crate::SOURCE;
use crate::cuda::{Compiler, CudaDevice, Image, Libraries};
use crate::engine::GpuEngine;
use crate::open::{Api, Devices, GpuConfig, open};
use crate::several::SeveralGpus;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use testudo_conformance::{differential, run};
use testudo_crypto::{
    Direction, Engine, EngineError, Job, JobStatus, KeyId, KeyMaterial, PortableEngine, Suite, self_test,
};
use testudo_packet::Buffer;

/// NVRTC, where `scripts/setup.sh test` puts it.
fn nvrtc() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let target = std::env::var_os("CARGO_TARGET_DIR").map(PathBuf::from);
    let target = target.unwrap_or_else(|| here.join("../../../target"));
    let path = target.join("nvrtc/libnvrtc.so.12");
    assert!(path.exists(), "{} is missing: run scripts/setup.sh test", path.display());
    path
}

fn compiler() -> Compiler {
    Compiler::open(&[nvrtc()], 12).unwrap()
}

/// Faults of the twin, as `twin.cpp` numbers them.
#[derive(Clone, Copy)]
enum Fault {
    IsLost,
    Hangs,
    Idles,
    RefusesCubin,
    HasNoDevice,
}

/// A driver of its own for one test.
struct Twin {
    /// Closed last: what is loaded stays, but its file does not.
    _folder: tempfile::TempDir,
    path: PathBuf,
    library: libloading::Library,
}

/// The twin, compiled once in a process.
fn compiled() -> &'static Path {
    static COMPILED: OnceLock<(tempfile::TempDir, PathBuf)> = OnceLock::new();
    let (_, path) = COMPILED.get_or_init(|| {
        let folder = tempfile::tempdir().unwrap();
        let (source, library) = (folder.path().join("twin.cpp"), folder.path().join("twin.so"));
        let whole = include_str!("twin.cpp").replace("// KERNELS\n", &SOURCE.concat());
        std::fs::write(&source, whole).unwrap();
        let options = ["-std=c++17", "-O2", "-shared", "-fPIC", "-Wall", "-Werror", "-Wno-parentheses", "-o"];
        let said = Command::new("g++").args(options).arg(&library).arg(&source).output();
        let said = said.expect("g++ compiles the twin: install the package g++");
        assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stderr));
        (folder, library)
    });
    path
}

impl Twin {
    fn new(seed: u64) -> Self {
        println!("seed {seed}");
        let folder = tempfile::tempdir().unwrap();
        // A copy is a library of its own, with its own state.
        let path = folder.path().join("libcuda.so.1");
        std::fs::copy(compiled(), &path).unwrap();
        // SAFETY: what was just compiled; its constructors are those of empty maps.
        let library = unsafe { libloading::Library::new(&path) }.unwrap();
        let twin = Self { _folder: folder, path, library };
        // SAFETY: the signature in the source.
        unsafe { twin.library.get::<unsafe extern "C" fn(u64)>(b"twin_seed").unwrap()(seed) };
        twin
    }

    fn set(&self, fault: Fault) {
        // SAFETY: the signature in the source.
        unsafe { self.library.get::<unsafe extern "C" fn(i32, i32)>(b"twin_set").unwrap()(fault as i32, 1) };
    }

    /// What was made and not given back.
    fn alive(&self) -> u64 {
        // SAFETY: the signature in the source.
        unsafe { self.library.get::<unsafe extern "C" fn() -> u64>(b"twin_alive").unwrap()() }
    }

    /// Words that were not zero in memory of this length when it was given back.
    fn left_behind(&self, bytes: u64) -> u64 {
        // SAFETY: the signature in the source.
        unsafe { self.library.get::<unsafe extern "C" fn(u64) -> u64>(b"twin_left_behind").unwrap()(bytes) }
    }

    fn open(&self, wanted: Option<&str>) -> Result<GpuEngine, String> {
        self.open_at(wanted, 0)
    }

    /// Both devices as one engine.
    fn open_both(&self) -> SeveralGpus {
        SeveralGpus::new([0, 1].map(|place| self.open_at(None, place).unwrap()).into())
    }

    fn open_at(&self, wanted: Option<&str>, place: usize) -> Result<GpuEngine, String> {
        let libraries = Libraries { driver: self.path.clone(), compilers: vec![nvrtc()] };
        let sizes = super::config().sizes();
        let device = CudaDevice::open(wanted, place, &libraries, sizes)?;
        let mut engine = GpuEngine::over(Box::new(device), sizes);
        // It does a few commands for each question, and ten thousand keys may be before a batch.
        engine.set_patience(std::time::Duration::from_secs(100));
        Ok(engine)
    }
}

const DEVICES: [&str; 2] = ["discrete", "integrated"];

/// The kernels become code for every architecture that this compiler knows from 7.5 on, and text for what is
/// newer.
#[test]
fn nvrtc_compiles_the_kernels_to_cubin_and_ptx() {
    let compiler = compiler();
    for architecture in [75, 80, 90] {
        let Image::Cubin(code) = compiler.compile(architecture).unwrap() else { panic!("{architecture}") };
        assert!(code.starts_with(b"\x7fELF"));
        for kernel in ["testudo_run", "testudo_expand", "testudo_wipe"] {
            assert!(code.windows(kernel.len()).any(|part| part == kernel.as_bytes()), "{kernel}");
        }
    }
    let Image::Ptx(text) = compiler.compile(999).unwrap() else { panic!("code for an unknown device") };
    assert_eq!(text.last(), Some(&0));
    let text = String::from_utf8(text).unwrap();
    assert!(text.contains(".visible .entry testudo_run("), "{}", &text[..500]);
    let error = compiler.compile(1).unwrap_err();
    assert!(error.contains("knows no architecture as old as 1"), "{error}");
}

#[test]
fn a_missing_compiler_and_a_missing_driver_are_named() {
    let error = Compiler::open(&["libnvrtc.so.999".into()], 12).err().unwrap();
    assert!(error.starts_with("NVRTC, the compiler of CUDA, is missing (libnvrtc.so.999: "), "{error}");
    let error = Compiler::open(&["libc.so.6".into()], 12).err().unwrap();
    assert!(error.contains("it has no nvrtcVersion"), "{error}");
    let libraries = Libraries { driver: "libcuda.so.999".into(), compilers: vec![nvrtc()] };
    let error = CudaDevice::open(None, 0, &libraries, super::config().sizes()).err().unwrap();
    assert!(error.starts_with("libcuda.so.999: "), "{error}");
}

#[test]
fn cuda_gives_the_known_answers_and_agrees_with_the_portable_engine() {
    for (seed, device) in (1..).zip(DEVICES) {
        let twin = Twin::new(seed);
        let mut engine = twin.open(Some(device)).unwrap();
        assert!(engine.description().contains(device), "{}", engine.description());
        assert_eq!(self_test(&mut engine), Ok(()));
        assert_eq!(differential(&mut engine, &mut PortableEngine::new(), seed), Ok(2_000));
    }
}

/// Known answers have frames that the kernel writes.
#[test]
fn cuda_writes_the_frames_that_the_cpu_writes() {
    for (seed, wanted) in (31..).zip(DEVICES) {
        let twin = Twin::new(seed);
        let mut engine = twin.open(Some(wanted)).unwrap();
        engine.set_writes_frames(true);
        assert_eq!(self_test(&mut engine), Ok(()));
    }
}

#[test]
fn cuda_conforms() {
    for (seed, device) in (1..).zip(DEVICES) {
        let twin = Twin::new(seed);
        run(&mut || -> Box<dyn Engine> { Box::new(twin.open(Some(device)).unwrap()) }).assert_passed();
    }
}

#[test]
fn two_devices_conform_as_one_engine_and_both_work() {
    let twin = Twin::new(3);
    run(&mut || -> Box<dyn Engine> { Box::new(twin.open_both()) }).assert_passed();
    let mut engine = twin.open_both();
    let key = engine.install(&material(1), Direction::Seal).unwrap();
    // Each gets what the other has more of.
    for _ in 0..4 {
        assert_eq!(engine.submit(&mut jobs(key, 10)), 10);
    }
    assert_eq!(engine.each_in_flight(), [20, 20]);
    engine.flush();
    assert_eq!(all(&mut engine).len(), 40);
}

/// One of two that fails ends what it has as faults; the other one does what comes then, under every key.
#[test]
fn one_of_two_devices_that_fails_leaves_the_other_at_work() {
    let (good, bad) = (Twin::new(1), Twin::new(2));
    let mut engine = SeveralGpus::new(vec![good.open(None).unwrap(), bad.open(None).unwrap()]);
    let first = engine.install(&material(1), Direction::Seal).unwrap();
    for _ in 0..2 {
        assert_eq!(engine.submit(&mut jobs(first, 10)), 10);
    }
    assert_eq!(engine.profile(SUITE).under_way, 4);
    bad.set(Fault::IsLost);
    engine.flush();
    let done = all(&mut engine);
    let count = |status| done.iter().filter(|job| job.status == status).count();
    assert_eq!((count(JobStatus::Done), count(JobStatus::Fault)), (10, 10));
    assert_eq!(engine.profile(SUITE).under_way, 2, "the other one has two batches at a time");
    let second = engine.install(&material(101), Direction::Seal).unwrap();
    for key in [first, second] {
        assert_eq!(engine.submit(&mut jobs(key, 30)), 30);
    }
    engine.flush();
    let done = all(&mut engine);
    assert!(done.len() == 60 && done.iter().all(|job| job.status == JobStatus::Done));
    engine.remove(first);
    assert!(engine.description().contains("out of service"), "{}", engine.description());
    assert!(!engine.is_out_of_service(), "one of them is not");
    // With both gone each job ends as a fault, for the next engine.
    good.set(Fault::IsLost);
    let mut last = jobs(second, 5);
    let taken = engine.submit(&mut last);
    let mut done = all(&mut engine);
    done.extend(last.drain(..taken).filter(|job| job.status != JobStatus::Taken));
    assert_eq!(taken, 5);
    assert!(done.len() == 5 && done.iter().all(|job| job.status == JobStatus::Fault));
    assert!(engine.install(&material(2), Direction::Seal).is_err());
}

/// A driver that has no code for its device takes text.
#[test]
fn a_driver_that_refuses_code_gets_text() {
    let twin = Twin::new(1);
    twin.set(Fault::RefusesCubin);
    assert_eq!(self_test(&mut twin.open(None).unwrap()), Ok(()));
}

const SUITE: Suite = Suite::AES128_SHA1;

fn material(first: u8) -> KeyMaterial {
    let bytes: Vec<u8> = (first..first + 36).collect();
    KeyMaterial::new(SUITE, bytes.into()).unwrap()
}

fn packet() -> Vec<u8> {
    (0..24 + 64 + 12).collect()
}

fn jobs(key: KeyId, count: u32) -> Vec<Job> {
    let job = |ticket| {
        let buffer = Buffer::copied(&packet(), 0, 0);
        Job { key, ticket, text_start: 24, text_bytes: 64, ..Job::new(buffer, Direction::Seal, 0) }
    };
    (0..count).map(job).collect()
}

/// Polls until nothing is in flight.
fn all(engine: &mut dyn Engine) -> Vec<Job> {
    engine.flush();
    let mut done = Vec::new();
    for _ in 0..1_000_000 {
        if engine.in_flight() == 0 {
            return done;
        }
        engine.poll(&mut done, 7);
    }
    panic!("{} jobs do not come back", engine.in_flight());
}

/// A slot that is used again at once: jobs under the old key end under it, those under the new one wait for
/// its expansion, in every order that streams allow.
#[test]
fn a_key_that_takes_the_place_of_another_keeps_their_packets_apart() {
    let expected = |first| {
        let mut portable = PortableEngine::new();
        let key = portable.install(&material(first), Direction::Seal).unwrap();
        let mut one = jobs(key, 1);
        portable.submit(&mut one);
        one[0].buffer.bytes().to_vec()
    };
    let (old, new) = (expected(1), expected(101));
    for seed in 1..=20 {
        let twin = Twin::new(seed);
        let mut engine = twin.open(None).unwrap();
        let first = engine.install(&material(1), Direction::Seal).unwrap();
        assert_eq!(engine.submit(&mut jobs(first, 30)), 30);
        engine.remove(first);
        let second = engine.install(&material(101), Direction::Seal).unwrap();
        assert_eq!(engine.submit(&mut jobs(second, 30)), 30);
        let done = all(&mut engine);
        assert_eq!(done.len(), 60);
        for (place, job) in done.iter().enumerate() {
            assert_eq!(job.status, JobStatus::Done);
            let expected = if place < 30 { &old } else { &new };
            assert!(job.buffer.bytes() == expected, "seed {seed}, packet {place}");
        }
        drop(engine);
        assert_eq!(twin.alive(), 0);
        assert_nothing_is_left(&twin);
    }
}

/// Neither keys nor packets are left, by the lengths of the memory that they were in.
fn assert_nothing_is_left(twin: &Twin) {
    let sizes = super::config().sizes();
    let words = [sizes.key_words(), sizes.plan_words(), sizes.arena_bytes / 4];
    for (words, what) in words.into_iter().zip(["keys", "plans", "packets"]) {
        assert_eq!(twin.left_behind(words as u64 * 4), 0, "{what} are left");
    }
}

/// A batch that was not done in time takes the device out of service; its keys and packets are wiped when the
/// engine ends, if it still answers then.
#[test]
fn keys_and_packets_are_wiped_after_a_timeout_if_the_device_still_answers() {
    for (seed, device) in (1..).zip(DEVICES) {
        let twin = Twin::new(seed);
        let mut engine = twin.open(Some(device)).unwrap();
        engine.set_patience(std::time::Duration::ZERO);
        let key = engine.install(&material(1), Direction::Seal).unwrap();
        assert_eq!(engine.submit(&mut jobs(key, 40)), 40);
        engine.flush();
        let mut done = Vec::new();
        engine.poll(&mut done, 40);
        assert!(engine.description().contains("a batch was not done"), "{}", engine.description());
        engine.remove(key);
        drop(engine);
        assert_eq!(twin.alive(), 0);
        assert_nothing_is_left(&twin);
    }
}

/// An engine that ends gives memory back when nothing is copied to it any more.
#[test]
fn an_engine_that_ends_waits_for_what_is_under_way() {
    for seed in 1..=5 {
        for device in DEVICES {
            let twin = Twin::new(seed);
            let mut engine = twin.open(Some(device)).unwrap();
            let key = engine.install(&material(1), Direction::Seal).unwrap();
            assert_eq!(engine.submit(&mut jobs(key, 90)), 90);
            engine.flush();
            drop(engine);
            // A stream with commands would not have been given back.
            assert_eq!(twin.alive(), 0);
            assert_nothing_is_left(&twin);
        }
    }
}

/// What the device has when it fails ends as faults, untouched, and what it has then stays with it.
#[test]
fn nothing_is_lost_when_a_device_of_cudas_fails() {
    for (fault, words) in [
        (Fault::IsLost, "CUDA_ERROR_LAUNCH_FAILED"),
        (Fault::Hangs, "a batch was not done"),
        (Fault::Idles, "without having done it"),
    ] {
        let twin = Twin::new(fault as u64 + 1);
        let mut engine = twin.open(None).unwrap();
        if matches!(fault, Fault::Hangs) {
            // The others are found out however busy this machine is.
            engine.set_patience(std::time::Duration::from_millis(20));
        }
        let key = engine.install(&material(1), Direction::Seal).unwrap();
        let mut submitted = jobs(key, 120);
        twin.set(fault);
        let taken = engine.submit(&mut submitted);
        let mut done = all(&mut engine);
        done.extend(submitted.drain(..taken).filter(|job| job.status != JobStatus::Taken));
        assert_eq!(done.len(), taken);
        assert!(done.iter().all(|job| job.status == JobStatus::Fault && job.buffer.bytes() == packet()));
        assert!(engine.description().contains(words), "{}", engine.description());
        assert!(engine.install(&material(2), Direction::Seal).is_err());
        drop(engine);
        let is_left = twin.alive() > 0;
        assert_eq!(is_left, !matches!(fault, Fault::Idles), "{words}");
    }
}

#[test]
fn more_devices_than_there_are_is_an_error_that_says_so() {
    let config = GpuConfig {
        api: Api::OpenCl,
        device: Some("Portable Computing Language".to_owned()),
        devices: Devices::Number(3),
        ..super::config()
    };
    let Err(EngineError::Unavailable { reason, .. }) = open(&config) else { panic!() };
    assert_eq!(reason, "3 devices are wanted, and there are 1 such");
    let all = GpuConfig { devices: Devices::All, ..config };
    assert!(open(&all).unwrap().description().contains("for correctness"));
}

#[test]
fn devices_of_cudas_are_found_by_name_and_errors_name_those_there_are() {
    let twin = Twin::new(1);
    let error = twin.open(Some("GeForce")).err().unwrap();
    assert!(error.ends_with("there are: Twin discrete, Twin integrated"), "{error}");
    assert_eq!(twin.alive(), 0);
    twin.set(Fault::HasNoDevice);
    let error = twin.open(None).err().unwrap();
    assert_eq!(error, "CUDA has no device here");
}

/// A driver loads nothing that a compiler of a newer major version made.
#[test]
fn a_compiler_that_is_newer_than_the_driver_is_passed_by() {
    let error = Compiler::open(&[nvrtc()], 11).err().unwrap();
    assert!(error.contains("NVRTC 12.9 is too new for a driver of CUDA 11"), "{error}");
    assert!(Compiler::open(&["libnvrtc.so.999".into(), nvrtc()], 12).is_ok());
}

/// Here there is no driver of NVIDIA's, or no such device: each interface says why it has none.
#[test]
fn errors_of_both_interfaces_are_told() {
    let device = Some("no such device".to_owned());
    let of = |api| {
        let config = GpuConfig { api, device: device.clone(), ..super::config() };
        let Err(EngineError::Unavailable { reason, .. }) = open(&config) else { panic!() };
        reason
    };
    let (opencl, cuda, any) = (of(Api::OpenCl), of(Api::Cuda), of(Api::Any));
    assert_eq!(any, format!("{opencl}; CUDA: {cuda}"));
}
