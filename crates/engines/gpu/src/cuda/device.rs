//! A device of CUDA's.
//!
//! Each batch has a stream of its own, so that copies of one run beside the kernel of another. Keys have a
//! stream, too: a launch waits for the expansions before it, and a key is zeroed after the launches before
//! that.

use super::compiler::{self, Architecture, Compiler, Image};
use super::driver::{Context, DevicePtr, Driver, Event, Found, Function, Pinned, Stream};
use crate::device::{Device, LAST_WAIT, Launch, MIN_LANES, MOST_LANES, Sizes, warm_up};
use crate::work::RawKey;
use std::collections::HashMap;
use std::ffi::c_void;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use zeroize::Zeroize;

/// The driver's library, and names of the compiler's.
#[derive(Debug, Clone)]
pub(crate) struct Libraries {
    pub driver: PathBuf,
    pub compilers: Vec<PathBuf>,
}

impl Libraries {
    /// The driver by its name, and the compiler by a path or by its names.
    pub(crate) fn new(compiler: Option<PathBuf>) -> Self {
        let compilers = compiler.map_or_else(compiler::names, |path| vec![path]);
        Self { driver: "libcuda.so.1".into(), compilers }
    }
}

/// A batch's memory: pinned, and the device's unless it has the host's.
struct Memory {
    host_plan: Pinned,
    host_arena: Pinned,
    plan: DevicePtr,
    arena: DevicePtr,
    stream: Stream,
    ended: Event,
    is_under_way: bool,
}

/// What is on the device.
struct Parts {
    batches: Vec<Memory>,
    keys: DevicePtr,
    key_words: usize,
    run: Function,
    expand: Function,
    wipe: Function,
    /// In which keys are expanded and zeroed.
    key_stream: Stream,
    /// The last expansion.
    keys_ready: Event,
}

/// One device, with the kernels loaded.
pub(crate) struct CudaDevice {
    context: Context,
    parts: Parts,
    /// Whether packets are copied to the device, or it reads them where they are.
    copies: bool,
    description: String,
    lanes: usize,
    has_failed: bool,
}

/// The kernels for an architecture, compiled once in a process: it takes seconds.
fn image(
    libraries: &Libraries,
    newest: i32,
    (architecture, portable): (Architecture, bool),
) -> Result<Arc<Image>, String> {
    type Images = HashMap<(PathBuf, Architecture, bool), Arc<Image>>;
    static IMAGES: Mutex<Option<Images>> = Mutex::new(None);
    let mut images = IMAGES.lock().unwrap_or_else(PoisonError::into_inner);
    let images = images.get_or_insert_default();
    let first = libraries.compilers.first().cloned().unwrap_or_default();
    let known = (first, architecture, portable);
    if let Some(image) = images.get(&known) {
        return Ok(Arc::clone(image));
    }
    let compiler = Compiler::open(&libraries.compilers, newest)?;
    let made = if portable { compiler.portable(architecture) } else { compiler.compile(architecture) };
    let made = Arc::new(made?);
    images.insert(known, Arc::clone(&made));
    Ok(made)
}

/// The devices that are wanted by a part of their names, or else all; at least one.
fn wanted_of(mut found: Vec<Found>, wanted: Option<&str>) -> Result<Vec<Found>, String> {
    let known: Vec<_> = found.iter().map(|device| device.name.clone()).collect();
    let Some(part) = wanted else {
        return if found.is_empty() { Err("CUDA has no device here".to_owned()) } else { Ok(found) };
    };
    found.retain(|device| device.name.to_lowercase().contains(&part.to_lowercase()));
    if found.is_empty() {
        let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
        return Err(format!("no device of CUDA's is named like \"{part}\"; there are: {known}"));
    }
    Ok(found)
}

impl CudaDevice {
    /// How many devices are wanted.
    ///
    /// # Errors
    /// There is none, or no driver.
    pub(crate) fn count(wanted: Option<&str>, libraries: &Libraries) -> Result<usize, String> {
        wanted_of(Driver::open(&libraries.driver)?.devices()?, wanted).map(|found| found.len())
    }

    /// Opens the device at `place` of those that are wanted, and builds the kernels.
    ///
    /// # Errors
    /// What is missing, or what driver or compiler said.
    pub(crate) fn open(
        wanted: Option<&str>,
        place: usize,
        libraries: &Libraries,
        sizes: Sizes,
    ) -> Result<Self, String> {
        if cfg!(target_endian = "big") {
            return Err("CUDA's devices are little-endian, and this processor is not".to_owned());
        }
        let driver = Arc::new(Driver::open(&libraries.driver)?);
        let found = wanted_of(driver.devices()?, wanted)?.into_iter().nth(place);
        let found = found.ok_or("the device is gone")?;
        let mut context = Context::new(Arc::clone(&driver), &found)?;
        let parts =
            Parts::new(&mut context, &found, (libraries, driver.major()), sizes).inspect_err(|_| {
                // SAFETY: nothing was started yet, and what was made is known to nobody.
                unsafe { context.close() };
            })?;
        let (lanes, copies) = (MIN_LANES.next_multiple_of(found.warp).min(MOST_LANES), !found.is_integrated);
        let shares = if copies { "" } else { ", in the host's memory" };
        let description = format!("{}, {}{shares}, {lanes} lanes", driver.description(), found.name);
        let mut device = Self { context, parts, copies, description, lanes, has_failed: false };
        warm_up(&mut device).inspect_err(|_| device.has_failed = true)?;
        Ok(device)
    }

    /// Whether what was asked of the device worked.
    fn noted<T>(&mut self, result: Result<T, String>) -> Result<T, String> {
        self.has_failed |= result.is_err();
        result
    }

    /// Zeroes all packets and keys on the device, and waits until nothing is under way; whether that came to
    /// an end.
    fn has_come_to_rest(&mut self) -> Result<bool, String> {
        let Self { context, parts, copies, .. } = self;
        context.enter()?;
        parts.wait_for_launches(context)?;
        for Memory { plan, arena, host_plan, host_arena, .. } in parts.batches.iter().filter(|_| *copies) {
            for (at, bytes) in [(*plan, host_plan.bytes), (*arena, host_arena.bytes)] {
                // SAFETY: the device's memory is as long as the host's that is copied to it, and is freed
                // only after the event below.
                unsafe { context.zero(parts.key_stream, at, bytes / size_of::<u32>())? };
            }
        }
        // SAFETY: the keys' memory has as many words, and is freed only after the event below.
        unsafe { context.zero(parts.key_stream, parts.keys, parts.key_words)? };
        context.record(parts.key_stream, parts.keys_ready)?;
        let start = Instant::now();
        loop {
            let is_at_rest = context.has_happened(parts.keys_ready)?;
            if is_at_rest || start.elapsed() > LAST_WAIT {
                return Ok(is_at_rest);
            }
            std::thread::sleep(Duration::from_micros(100));
        }
    }
}

impl Parts {
    fn new(
        context: &mut Context,
        found: &Found,
        (libraries, newest): (&Libraries, i32),
        sizes: Sizes,
    ) -> Result<Self, String> {
        context.enter()?;
        let first = context.load(&*image(libraries, newest, (found.architecture, false))?);
        // A driver that knows the device and not its code compiles text by itself.
        let module = match first {
            Err(_) => context.load(&*image(libraries, newest, (found.architecture, true))?)?,
            Ok(module) => module,
        };
        let function = |name| context.function(module, name);
        let (run, expand, wipe) =
            (function("testudo_run")?, function("testudo_expand")?, function("testudo_wipe")?);
        let copies = !found.is_integrated;
        let batches = (0..sizes.batches).map(|_| Memory::new(context, sizes, copies));
        let batches = batches.collect::<Result<_, _>>()?;
        let key_words = sizes.key_words();
        let keys = context.memory(key_words * size_of::<u32>())?;
        let (key_stream, keys_ready) = (context.stream()?, context.event()?);
        Ok(Self { batches, keys, key_words, run, expand, wipe, key_stream, keys_ready })
    }

    /// What comes next in the keys' stream comes after all launches so far.
    fn wait_for_launches(&self, context: &Context) -> Result<(), String> {
        let mut under_way = self.batches.iter().filter(|memory| memory.is_under_way);
        under_way.try_for_each(|memory| context.wait(self.key_stream, memory.ended))
    }

    fn expand(&self, context: &Context, slot: u32, kind: u32, key: &RawKey) -> Result<(), String> {
        context.enter()?;
        let (stream, mut keys, mut slot, mut kind) = (self.key_stream, self.keys, slot, kind);
        let mut arguments: [*mut c_void; 4] = [
            (&raw mut keys).cast(),
            (&raw mut slot).cast(),
            (&raw mut kind).cast(),
            (&raw const *key).cast_mut().cast(),
        ];
        // SAFETY: the arguments of `testudo_expand` in its source: an address, two words, and a structure of
        // 25 words, which `RawKey` is; they are only read. The slot is one of those that the keys' memory
        // has.
        unsafe { context.start(stream, self.expand, (1, 1), &mut arguments)? };
        context.record(stream, self.keys_ready)
    }

    fn wipe(&self, context: &Context, slot: u32) -> Result<(), String> {
        context.enter()?;
        self.wait_for_launches(context)?;
        let (mut keys, mut slot) = (self.keys, slot);
        let mut arguments: [*mut c_void; 2] = [(&raw mut keys).cast(), (&raw mut slot).cast()];
        // SAFETY: the arguments of `testudo_wipe` in its source, an address and a word; as above.
        unsafe { context.start(self.key_stream, self.wipe, (1, 1), &mut arguments) }
    }

    /// Writes plan and arena, runs, and reads the arena.
    fn launch(
        &mut self,
        context: &Context,
        batch: usize,
        launch: Launch,
        (lanes, copies): (usize, bool),
    ) -> Result<(), String> {
        context.enter()?;
        let memory = self.batches.get_mut(batch).ok_or("there is no such batch")?;
        let (stream, plan_bytes) = (memory.stream, launch.plan_words * size_of::<u32>());
        if plan_bytes > memory.host_plan.bytes || launch.arena_bytes > memory.host_arena.bytes {
            return Err("a launch is longer than its memory".to_owned());
        }
        // From here on the device may have it, also after an error.
        memory.is_under_way = true;
        if copies {
            // SAFETY: both sides have as many bytes, checked above; pinned memory, as long as what it is
            // copied to, lives until nothing is under way, and the host has none of it until then.
            unsafe {
                context.to_device(stream, memory.plan, &memory.host_plan, plan_bytes)?;
                context.to_device(stream, memory.arena, &memory.host_arena, launch.arena_bytes)?;
            }
        }
        context.wait(stream, self.keys_ready)?;
        let (mut plan, mut arena, mut keys) = (memory.plan, memory.arena, self.keys);
        let mut arguments: [*mut c_void; 3] =
            [(&raw mut plan).cast(), (&raw mut arena).cast(), (&raw mut keys).cast()];
        // SAFETY: the arguments of `testudo_run` in its source, three addresses. They hold all that the plan
        // speaks of: offsets in it are those at which the host's copy of the arena was written, with checks.
        unsafe { context.start(stream, self.run, (launch.bins, lanes), &mut arguments)? };
        if copies {
            // SAFETY: as for the copies above.
            unsafe { context.to_host(stream, &memory.host_arena, memory.arena, launch.arena_bytes)? };
        }
        context.record(stream, memory.ended)
    }
}

impl Memory {
    fn new(context: &mut Context, sizes: Sizes, copies: bool) -> Result<Self, String> {
        let plan_bytes = sizes.plan_words() * size_of::<u32>();
        let (host_plan, host_arena) = (context.pinned(plan_bytes)?, context.pinned(sizes.arena_bytes)?);
        let (plan, arena) = match copies {
            true => (context.memory(plan_bytes)?, context.memory(sizes.arena_bytes)?),
            false => (host_plan.address, host_arena.address),
        };
        let (stream, ended) = (context.stream()?, context.event()?);
        Ok(Self { host_plan, host_arena, plan, arena, stream, ended, is_under_way: false })
    }
}

impl Device for CudaDevice {
    fn description(&self) -> String {
        self.description.clone()
    }

    fn lanes(&self) -> usize {
        self.lanes
    }

    fn memory(&mut self, batch: usize) -> Option<(&mut [u32], &mut [u8])> {
        let memory = self.parts.batches.get_mut(batch).filter(|memory| !memory.is_under_way)?;
        let Pinned { start, bytes, .. } = memory.host_plan;
        // SAFETY: pinned memory of as many bytes, aligned for words and zero at first, which lives as long as
        // `self`; the device reads or writes it only while the batch is under way. This is the only
        // reference, since `self` is borrowed mutably.
        let plan = unsafe { std::slice::from_raw_parts_mut(start.cast::<u32>().as_ptr(), bytes / 4) };
        let Pinned { start, bytes, .. } = memory.host_arena;
        // SAFETY: as above.
        Some((plan, unsafe { std::slice::from_raw_parts_mut(start.as_ptr(), bytes) }))
    }

    fn expand(&mut self, slot: u32, kind: u32, key: &RawKey) -> Result<(), String> {
        let expanded = self.parts.expand(&self.context, slot, kind, key);
        self.noted(expanded)
    }

    fn wipe(&mut self, slot: u32) -> Result<(), String> {
        let wiped = self.parts.wipe(&self.context, slot);
        self.noted(wiped)
    }

    fn launch(&mut self, batch: usize, launch: Launch) -> Result<(), String> {
        let how = (self.lanes, self.copies);
        let launched = self.parts.launch(&self.context, batch, launch, how);
        self.noted(launched)
    }

    fn is_done(&mut self, batch: usize) -> Result<bool, String> {
        let Some(memory) = self.parts.batches.get(batch) else { return Ok(false) };
        if !memory.is_under_way {
            return Ok(true);
        }
        let ended = memory.ended;
        let happened = self.context.enter().and_then(|()| self.context.has_happened(ended));
        let is_done = self.noted(happened)?;
        if let Some(memory) = self.parts.batches.get_mut(batch) {
            memory.is_under_way = !is_done;
        }
        Ok(is_done)
    }
}

impl CudaDevice {
    /// Zeroes what the host has of packets. Nothing is under way.
    fn wipe_host(&mut self) {
        self.parts.batches.iter_mut().for_each(|memory| memory.is_under_way = false);
        for batch in 0..self.parts.batches.len() {
            if let Some((plan, arena)) = self.memory(batch) {
                plan.zeroize();
                arena.zeroize();
            }
        }
    }
}

impl Drop for CudaDevice {
    fn drop(&mut self) {
        // What a device that failed still does with our memory, nobody knows: it is left to it.
        if !self.has_failed && self.has_come_to_rest() == Ok(true) {
            self.wipe_host();
            // SAFETY: nothing is under way, and this is the end of the only owner.
            unsafe { self.context.close() };
        }
    }
}
