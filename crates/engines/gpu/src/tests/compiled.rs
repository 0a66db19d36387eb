//! A device in memory: the kernels as C++, which play a device's faults on request.

use crate::SOURCE;
use crate::device::{BIN_WORDS, Device, JOB_WORDS, KEY_WORDS, Launch, Sizes};
use crate::place::RESULT_WORD;
use crate::work::{RAW_KEY_WORDS, RawKey};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

/// What goes wrong from now on, and what is to be seen of the device.
#[derive(Default)]
pub(super) struct Faults {
    /// Calls fail, as on a device that is lost.
    pub is_lost: AtomicBool,
    /// Nothing that is launched ends, but so many of the first.
    pub hangs: AtomicBool,
    pub ends: AtomicU32,
    /// A call that launches or expands does not return while this is set, and sets the other.
    pub holds: AtomicBool,
    pub is_held: AtomicBool,
    /// The device is lost with this key from now on, the first being 1; 0 is none.
    pub is_lost_at_key: AtomicU32,
    /// It says that it is the processor.
    pub is_processor: AtomicBool,
    /// Launches end and do nothing.
    pub idles: AtomicBool,
    /// A bit that is flipped in what comes back, in each digest or text.
    pub errs: AtomicBool,
    /// One more than the byte of the first packet in the arena of which a bit is flipped in what comes back.
    pub misses: AtomicU32,
    /// A bit that is flipped in what comes back, in each digest.
    pub spoils: AtomicBool,
    /// Launches so far, and jobs in them.
    pub launches: AtomicU32,
    pub jobs: AtomicU32,
    /// The slot that was wiped last, afterwards.
    pub wiped: Mutex<Vec<u32>>,
}

impl Faults {
    pub(super) fn set(fault: &AtomicBool) {
        fault.store(true, Ordering::Relaxed);
    }
}

type Run = unsafe extern "C" fn(*const u32, *mut u32, *const u32, u32, u32, u32);
type Expand = unsafe extern "C" fn(*mut u32, u32, u32, RawKeyByValue);
type Wipe = unsafe extern "C" fn(*mut u32, u32);

/// The kernel's `raw_key`.
#[repr(C)]
#[derive(Clone, Copy)]
struct RawKeyByValue([u32; RAW_KEY_WORDS]);

struct Kernels {
    run: Run,
    expand: Expand,
    wipe: Wipe,
    _library: libloading::Library,
}

/// The kernels, compiled once in a process.
fn kernels() -> &'static Kernels {
    static KERNELS: OnceLock<Kernels> = OnceLock::new();
    KERNELS.get_or_init(|| {
        let folder = tempfile::tempdir().unwrap();
        let (source, library) = (folder.path().join("kernels.cpp"), folder.path().join("kernels.so"));
        std::fs::write(&source, SOURCE.concat()).unwrap();
        let warnings = ["-Wall", "-Wextra", "-Werror", "-Wno-parentheses"];
        let options = ["-std=c++17", "-O2", "-shared", "-fPIC", "-o"];
        let said = Command::new("g++").args(warnings).args(options).arg(&library).arg(&source).output();
        let said = said.expect("g++ compiles the kernels: install the package g++");
        assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stderr));
        // SAFETY: the library is what was just compiled from our source, and has no constructors.
        let library = unsafe { libloading::Library::new(&library) }.unwrap();
        // SAFETY: the functions have these signatures in the source.
        unsafe {
            Kernels {
                run: *library.get(b"testudo_run_groups").unwrap(),
                expand: *library.get(b"testudo_expand").unwrap(),
                wipe: *library.get(b"testudo_wipe").unwrap(),
                _library: library,
            }
        }
    })
}

struct Memory {
    plan: Vec<u32>,
    /// Words, for their alignment.
    arena: Vec<u32>,
    is_under_way: bool,
}

/// The device.
pub(super) struct Compiled {
    lanes: u32,
    /// In which order lanes do a step: what they need of each other in one is missing in one of both.
    is_last_lane_first: bool,
    batches: Vec<Memory>,
    keys: Vec<u32>,
    faults: Arc<Faults>,
}

impl Compiled {
    pub(super) fn new(sizes: Sizes, faults: Arc<Faults>) -> Self {
        let memory = |_| Memory {
            plan: vec![0; sizes.plan_words()],
            arena: vec![0; sizes.arena_bytes / 4],
            is_under_way: false,
        };
        Self {
            batches: (0..sizes.batches).map(memory).collect(),
            keys: vec![0; sizes.key_words()],
            faults,
            lanes: 7,
            is_last_lane_first: false,
        }
    }

    /// With groups of so many lanes.
    pub(super) fn with_lanes(sizes: Sizes, lanes: u32, is_last_lane_first: bool) -> Self {
        Self { lanes, is_last_lane_first, ..Self::new(sizes, Arc::default()) }
    }

    fn hold(&self) {
        while self.faults.holds.load(Ordering::SeqCst) {
            self.faults.is_held.store(true, Ordering::SeqCst);
            std::thread::yield_now();
        }
    }

    fn check(&self) -> Result<(), String> {
        match self.faults.is_lost.load(Ordering::Relaxed) {
            true => Err("the device is lost".to_owned()),
            false => Ok(()),
        }
    }
}

/// The first word of each job's result.
fn results(plan: &[u32], bins: usize) -> Vec<usize> {
    let mut results = Vec::new();
    for [_, at, count, _] in plan[..bins * BIN_WORDS].as_chunks::<BIN_WORDS>().0 {
        let jobs = plan[*at as usize..].as_chunks::<JOB_WORDS>().0;
        results.extend(jobs[..*count as usize].iter().map(|job| job[RESULT_WORD] as usize));
    }
    results
}

fn bytes(words: &mut [u32]) -> &mut [u8] {
    // SAFETY: the same memory, with any bytes and no alignment.
    unsafe { std::slice::from_raw_parts_mut(words.as_mut_ptr().cast(), words.len() * 4) }
}

impl Device for Compiled {
    fn description(&self) -> String {
        "the kernels as C++".to_owned()
    }

    fn is_processor(&self) -> bool {
        self.faults.is_processor.load(Ordering::Relaxed)
    }

    fn lanes(&self) -> usize {
        self.lanes as usize
    }

    fn memory(&mut self, batch: usize) -> Option<(&mut [u32], &mut [u8])> {
        let memory = self.batches.get_mut(batch).filter(|memory| !memory.is_under_way)?;
        Some((&mut memory.plan, bytes(&mut memory.arena)))
    }

    fn expand(&mut self, slot: u32, kind: u32, key: &RawKey) -> Result<(), String> {
        let keys = &self.faults.is_lost_at_key;
        if keys.load(Ordering::Relaxed) > 0 && keys.fetch_sub(1, Ordering::Relaxed) == 1 {
            Faults::set(&self.faults.is_lost);
        }
        self.check()?;
        self.hold();
        assert!((slot as usize) < self.keys.len() / KEY_WORDS);
        // SAFETY: the slot is within the keys.
        unsafe { (kernels().expand)(self.keys.as_mut_ptr(), slot, kind, RawKeyByValue(key.0)) };
        Ok(())
    }

    fn wipe(&mut self, slot: u32) -> Result<(), String> {
        self.check()?;
        assert!((slot as usize) < self.keys.len() / KEY_WORDS);
        // SAFETY: the slot is within the keys.
        unsafe { (kernels().wipe)(self.keys.as_mut_ptr(), slot) };
        let wiped = &self.keys[KEY_WORDS * slot as usize..][..KEY_WORDS];
        self.faults.wiped.lock().unwrap().clear();
        self.faults.wiped.lock().unwrap().extend_from_slice(wiped);
        Ok(())
    }

    fn launch(&mut self, batch: usize, launch: Launch) -> Result<(), String> {
        self.check()?;
        self.hold();
        self.faults.launches.fetch_add(1, Ordering::Relaxed);
        let memory = &mut self.batches[batch];
        assert!(!memory.is_under_way && launch.arena_bytes <= 4 * memory.arena.len());
        memory.is_under_way = true;
        if self.faults.idles.load(Ordering::Relaxed) {
            return Ok(());
        }
        let results = results(&memory.plan, launch.bins);
        self.faults.jobs.fetch_add(u32::try_from(results.len()).unwrap(), Ordering::Relaxed);
        let (plan, arena) = (memory.plan.as_ptr(), memory.arena.as_mut_ptr());
        let (groups, order) = (u32::try_from(launch.bins).unwrap(), u32::from(self.is_last_lane_first));
        // SAFETY: plan and arena are as long as the plan says: that is what is tested.
        unsafe { (kernels().run)(plan, arena, self.keys.as_ptr(), groups, self.lanes, order) };
        if self.faults.errs.load(Ordering::Relaxed) {
            // The first word of the last digest.
            memory.arena[launch.arena_bytes / 4 - 17] ^= 1;
        }
        if self.faults.spoils.load(Ordering::Relaxed) {
            results.into_iter().for_each(|word| memory.arena[word] ^= 1);
        }
        if let Some(at) = self.faults.misses.load(Ordering::Relaxed).checked_sub(1) {
            memory.arena[at as usize / 4] ^= 0x40 << (8 * (at % 4));
        }
        Ok(())
    }

    fn is_done(&mut self, batch: usize) -> Result<bool, String> {
        self.check()?;
        let ends = &self.faults.ends;
        let is_one = || ends.load(Ordering::Relaxed) > 0 && ends.fetch_sub(1, Ordering::Relaxed) > 0;
        let is_done = !self.faults.hangs.load(Ordering::Relaxed) || is_one();
        self.batches[batch].is_under_way &= !is_done;
        Ok(is_done)
    }
}
