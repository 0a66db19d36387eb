//! A device of OpenCL's.

use crate::SOURCE;
use crate::device::{Device, LAST_WAIT, Launch, MIN_LANES, MOST_LANES, Sizes, in_one_line, warm_up};
use crate::work::RawKey;
use opencl3::command_queue::CommandQueue;
use opencl3::context::Context;
use opencl3::device::{
    CL_DEVICE_TYPE_ALL, CL_DEVICE_TYPE_CPU, CL_DEVICE_TYPE_GPU, Device as ClDevice, cl_device_id,
};
use opencl3::error_codes::ClError;
use opencl3::event::Event;
use opencl3::kernel::Kernel;
use opencl3::memory::{
    Buffer, CL_MAP_READ, CL_MAP_WRITE, CL_MEM_ALLOC_HOST_PTR, CL_MEM_READ_ONLY, CL_MEM_READ_WRITE, ClMem,
    cl_mem,
};
use opencl3::platform::get_platforms;
use opencl3::program::Program;
use opencl3::types::{CL_BLOCKING, CL_NON_BLOCKING, cl_uint};
use std::ffi::c_void;
use std::mem::ManuallyDrop;
use std::ptr::{self, NonNull};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};
use zeroize::Zeroize;

/// What is wrong with a batch that is not one of ours, or is longer than its memory.
const OUT_OF_RANGE: ClError = ClError(opencl3::error_codes::CL_INVALID_VALUE);
/// clGetEventInfo's answer for a command that has ended; below it are errors.
const COMPLETE: i32 = 0;

/// Memory of the host that the device reaches by itself (pinned), for as long as it lives.
struct Pinned<T> {
    buffer: Buffer<T>,
    start: NonNull<T>,
    len: usize,
}

/// A batch's memory, pinned and on the device, unless the device has the host's.
struct Memory {
    host_plan: Pinned<u32>,
    host_arena: Pinned<u8>,
    on_device: Option<(Buffer<u32>, Buffer<u8>)>,
    /// The last command of its launch, while it is under way.
    ended: Option<Event>,
}

/// Queues, each in order: a key is there before the jobs under it, and zeroed after them. A batch is copied
/// to the device, and back from it, beside the kernels of others; it goes from queue to queue by events.
struct Queues {
    to: CommandQueue,
    run: CommandQueue,
    from: CommandQueue,
}

impl Queues {
    fn new(context: &Context) -> Result<Self, String> {
        let queue = || {
            let made = CommandQueue::create_default(context, 0);
            made.map_err(|error| format!("no queue can be made: {error}"))
        };
        Ok(Self { to: queue()?, run: queue()?, from: queue()? })
    }

    /// Waits until all is done.
    fn finish(&self) -> Result<(), ClError> {
        [&self.to, &self.run, &self.from].into_iter().try_for_each(CommandQueue::finish)
    }
}

/// All that OpenCL has for us. Dropped only when no command is under way, and not at all on a device that
/// fails: releasing may panic there, and a command may still write to pinned memory.
struct Parts {
    batches: Vec<Memory>,
    keys: Buffer<u32>,
    run: Kernel,
    expand: Kernel,
    wipe: Kernel,
    queues: Queues,
    _program: Program,
    _context: Context,
}

/// One device, with the kernels built for it.
pub(crate) struct OpenClDevice {
    parts: ManuallyDrop<Parts>,
    description: String,
    is_processor: bool,
    lanes: usize,
    has_failed: bool,
}

// SAFETY: the handles of OpenCL may be used on any thread (OpenCL 1.2, A.2), each type of `opencl3` says so
// too, and the addresses of pinned memory are ours alone.
unsafe impl<T: Send> Send for Pinned<T> {}

impl<T> Pinned<T> {
    fn new(context: &Context, queue: &CommandQueue, len: usize) -> Result<Self, String> {
        let flags = CL_MEM_READ_WRITE | CL_MEM_ALLOC_HOST_PTR;
        // SAFETY: no memory of ours is handed over.
        let buffer = unsafe { Buffer::<T>::create(context, flags, len, ptr::null_mut()) };
        let buffer = buffer.map_err(|error| memory_error(error, len * size_of::<T>()))?;
        let mut pinned = Self { buffer, start: NonNull::dangling(), len: 0 };
        // When this blocking call returns the address is valid.
        pinned.map(queue, len, CL_BLOCKING).map_err(|error| format!("memory cannot be mapped: {error}"))?;
        Ok(pinned)
    }

    /// Maps `len` elements, the whole buffer. What was mapped before was unmapped; the address is valid until
    /// that happens again, and from the event that is returned on.
    fn map(&mut self, queue: &CommandQueue, len: usize, is_blocking: cl_uint) -> Result<Event, ClError> {
        const NO_ADDRESS: ClError = ClError(opencl3::error_codes::CL_MAP_FAILURE);
        let mut address: *mut c_void = ptr::null_mut();
        let (flags, bytes) = (CL_MAP_READ | CL_MAP_WRITE, len * size_of::<T>());
        // SAFETY: the buffer has as many bytes, and the address is written before the call returns.
        let event = unsafe {
            queue.enqueue_map_buffer(&self.buffer, is_blocking, flags, 0, bytes, &mut address, &[])
        }?;
        let start = NonNull::new(address.cast::<T>()).filter(|start| start.is_aligned());
        (self.start, self.len) = (start.ok_or(NO_ADDRESS)?, len);
        Ok(event)
    }

    fn slice(&self) -> &[T] {
        // SAFETY: `len` elements are mapped there, aligned, and stay so while this lives. `T` is an integer,
        // so that any bytes are values. Writing takes `&mut self`; the device writes only while its
        // batch is under way, when nobody is given a slice.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }

    fn slice_mut(&mut self) -> &mut [T] {
        // SAFETY: as above, and this is the only reference, since `self` is borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }

    /// Unmaps it; returns how many elements there were, and from here on there are none.
    fn unmap(&mut self, queue: &CommandQueue) -> Result<usize, ClError> {
        let len = std::mem::take(&mut self.len);
        let start = self.start.as_ptr().cast();
        // SAFETY: what `map` mapped, once; nobody has a slice of it, since `self` is borrowed mutably, and
        // the next one is empty.
        unsafe { queue.enqueue_unmap_mem_object(self.buffer.get(), start, &[]) }.map(|_| len)
    }
}

fn memory_error(error: ClError, bytes: usize) -> String {
    format!("the device gives no memory of {bytes} bytes: {error}")
}

/// A buffer on the device.
fn buffer<T>(context: &Context, flags: u64, len: usize) -> Result<Buffer<T>, String> {
    // SAFETY: no memory of ours is handed over.
    let made = unsafe { Buffer::<T>::create(context, flags, len, ptr::null_mut()) };
    made.map_err(|error| memory_error(error, len * size_of::<T>()))
}

impl Memory {
    fn new(context: &Context, queue: &CommandQueue, sizes: Sizes, copies: bool) -> Result<Self, String> {
        let on_device = copies.then(|| {
            let plan = buffer(context, CL_MEM_READ_ONLY, sizes.plan_words())?;
            Ok::<_, String>((plan, buffer(context, CL_MEM_READ_WRITE, sizes.arena_bytes)?))
        });
        Ok(Self {
            host_plan: Pinned::new(context, queue, sizes.plan_words())?,
            host_arena: Pinned::new(context, queue, sizes.arena_bytes)?,
            on_device: on_device.transpose()?,
            ended: None,
        })
    }

    /// Hands plan and arena to the device: copies of as much as is in use, whose event is the last one's, or
    /// the memory itself.
    fn hand_over(&mut self, queues: &Queues, launch: Launch) -> Result<Option<Event>, ClError> {
        let Self { host_plan, host_arena, on_device, .. } = self;
        let from_plan = host_plan.slice().get(..launch.plan_words).ok_or(OUT_OF_RANGE)?;
        let from_arena = host_arena.slice().get(..launch.arena_bytes).ok_or(OUT_OF_RANGE)?;
        let Some((plan, arena)) = on_device else {
            // In order with the kernel.
            host_plan.unmap(&queues.run)?;
            return host_arena.unmap(&queues.run).map(|_| None);
        };
        // SAFETY: pinned memory, as long as what it is copied to, lives until no command is under way
        // (`Drop`), and is neither written nor read by the host until `ended` is complete.
        let copied = unsafe {
            queues.to.enqueue_write_buffer(plan, CL_NON_BLOCKING, 0, from_plan, &[])?;
            queues.to.enqueue_write_buffer(arena, CL_NON_BLOCKING, 0, from_arena, &[])?
        };
        // Another queue waits for it.
        queues.to.flush().map(|()| Some(copied))
    }

    /// What the kernel gets.
    fn arguments(&self) -> [cl_mem; 2] {
        match &self.on_device {
            Some((plan, arena)) => [plan.get(), arena.get()],
            None => [self.host_plan.buffer.get(), self.host_arena.buffer.get()],
        }
    }

    /// Takes the arena back once the kernel has ended, and the plan where it is the host's; the event is the
    /// last of both.
    fn take_back(
        &mut self,
        queues: &Queues,
        launch: Launch,
        (plan_words, arena_bytes): (usize, usize),
        kernel: &Event,
    ) -> Result<Event, ClError> {
        let Self { host_plan, host_arena, on_device, .. } = self;
        let Some((_, arena)) = on_device else {
            // In order: the second is the last.
            host_plan.map(&queues.run, plan_words, CL_NON_BLOCKING)?;
            return host_arena.map(&queues.run, arena_bytes, CL_NON_BLOCKING);
        };
        let to = host_arena.slice_mut().get_mut(..launch.arena_bytes).ok_or(OUT_OF_RANGE)?;
        // SAFETY: as for writing.
        unsafe { queues.from.enqueue_read_buffer(arena, CL_NON_BLOCKING, 0, to, &[kernel.get()]) }
    }
}

/// A device that was found: its id, whether it is a GPU or a processor, its name and its platform's.
struct Found {
    id: cl_device_id,
    is_gpu: bool,
    is_processor: bool,
    name: String,
    platform: String,
}

/// All devices of all platforms.
fn devices() -> Result<Vec<Found>, String> {
    let install = "install a driver with OpenCL (for tests on the processor: pocl-opencl-icd)";
    let platforms = get_platforms().map_err(|error| format!("there is no OpenCL ({error}): {install}"))?;
    let mut found = Vec::new();
    for platform in platforms {
        let of_platform = platform.name().unwrap_or_default();
        // A platform without devices answers with an error.
        for id in platform.get_devices(CL_DEVICE_TYPE_ALL).unwrap_or_default() {
            let device = ClDevice::new(id);
            let kind = device.dev_type().unwrap_or(0);
            let name = device.name().unwrap_or_default().trim().to_owned();
            let (is_gpu, is_processor) = (kind & CL_DEVICE_TYPE_GPU != 0, kind & CL_DEVICE_TYPE_CPU != 0);
            found.push(Found { id, is_gpu, is_processor, name, platform: of_platform.trim().to_owned() });
        }
    }
    Ok(found)
}

/// The devices that are wanted by a part of their names or their platforms', or else all GPUs; at least one.
fn wanted_of(mut found: Vec<Found>, wanted: Option<&str>) -> Result<Vec<Found>, String> {
    let known: Vec<_> = found.iter().map(|device| format!("{} ({})", device.name, device.platform)).collect();
    let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
    let has = |text: &str, part: &str| text.to_lowercase().contains(&part.to_lowercase());
    found.retain(|device| match wanted {
        Some(part) => has(&device.name, part) || has(&device.platform, part),
        None => device.is_gpu,
    });
    match (found.is_empty(), wanted) {
        (false, _) => Ok(found),
        (true, Some(part)) => {
            Err(format!("no device of OpenCL's is named like \"{part}\"; there are: {known}"))
        }
        (true, None) => Err(format!("OpenCL has no GPU here; other devices are used by name alone: {known}")),
    }
}

/// Drivers set themselves up in the first call, and PoCL finds no device in a call beside that.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

impl OpenClDevice {
    /// How many devices are wanted.
    ///
    /// # Errors
    /// There is none, or no OpenCL.
    pub(crate) fn count(wanted: Option<&str>) -> Result<usize, String> {
        let _guard = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
        wanted_of(devices()?, wanted).map(|found| found.len())
    }

    /// Opens the device at `place` of those that are wanted, and builds the kernels.
    ///
    /// # Errors
    /// What is missing, or what the compiler said.
    pub(crate) fn open(wanted: Option<&str>, place: usize, sizes: Sizes) -> Result<Self, String> {
        Self::open_copying(wanted, place, sizes, None)
    }

    /// The same; `copies` says whether packets are copied, if it is not to be decided by what memory the
    /// device has.
    pub(crate) fn open_copying(
        wanted: Option<&str>,
        place: usize,
        sizes: Sizes,
        copies: Option<bool>,
    ) -> Result<Self, String> {
        let _guard = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
        let found = wanted_of(devices()?, wanted)?.into_iter().nth(place);
        let found = found.ok_or("the device is gone")?;
        let device = ClDevice::new(found.id);
        if cfg!(target_endian = "big") || !device.endian_little().unwrap_or(false) {
            return Err(format!("{} is not little-endian", found.name));
        }
        let said = |what: &'static str| move |error: ClError| format!("{what}: {error}");
        let context = Context::from_device(&device).map_err(said("no context can be made"))?;
        let queues = Queues::new(&context)?;
        // In one piece: `opencl3` 0.12 hands several to the driver as what they are not.
        let program = Program::create_and_build_from_source(&context, &SOURCE.concat(), "-cl-std=CL1.2");
        let program = program.map_err(|log| {
            format!("the kernels cannot be built for {}: {}", found.name, in_one_line(&log))
        })?;
        let kernel = |name| Kernel::create(&program, name).map_err(said("a kernel cannot be made"));
        let (run, expand, wipe) =
            (kernel("testudo_run")?, kernel("testudo_expand")?, kernel("testudo_wipe")?);
        let multiple = run.get_work_group_size_multiple(found.id).unwrap_or(1).max(1);
        let most = run.get_work_group_size(found.id).unwrap_or(1).max(1);
        let lanes = MIN_LANES.next_multiple_of(multiple).min(most).min(MOST_LANES);
        let copies = copies.unwrap_or_else(|| !device.host_unified_memory().unwrap_or(false));
        let batches = (0..sizes.batches).map(|_| Memory::new(&context, &queues.run, sizes, copies));
        let batches = batches.collect::<Result<_, _>>()?;
        let keys = buffer(&context, CL_MEM_READ_WRITE, sizes.key_words())?;
        let marks = if found.is_processor { ", a processor: for correctness, not for speed" } else { "" };
        let shares = if copies { "" } else { ", in the host's memory" };
        let description = format!("{}, {}{marks}{shares}, {lanes} lanes", found.platform, found.name);
        let parts = Parts { batches, keys, run, expand, wipe, queues, _program: program, _context: context };
        let (parts, is_processor) = (ManuallyDrop::new(parts), found.is_processor);
        let mut device = Self { parts, description, is_processor, lanes, has_failed: false };
        warm_up(&mut device).inspect_err(|_| device.has_failed = true)?;
        Ok(device)
    }

    /// Whether what was asked of the device worked.
    fn noted<T>(&mut self, what: &str, result: Result<T, ClError>) -> Result<T, String> {
        result.map_err(|error| {
            self.has_failed = true;
            format!("{what} failed: {error}")
        })
    }

    /// Enqueues one group of a kernel whose arguments are set.
    fn one_group(
        &mut self,
        what: &str,
        kernel: impl Fn(&Parts) -> Result<&Kernel, ClError>,
    ) -> Result<(), String> {
        let queue = &self.parts.queues.run;
        let started = kernel(&self.parts).and_then(|kernel| start(queue, kernel, (1, 1), None));
        let flushed = started.and_then(|_| queue.flush());
        self.noted(what, flushed)
    }
}

/// Enqueues a kernel whose arguments are set, to begin after what it waits for.
fn start(
    queue: &CommandQueue,
    kernel: &Kernel,
    (groups, lanes): (usize, usize),
    waits_for: Option<&Event>,
) -> Result<Event, ClError> {
    let (global, local) = ([groups * lanes], [lanes]);
    let waits_for = waits_for.map(Event::get);
    // SAFETY: one dimension, whose sizes are read before the call returns. The kernel's arguments are set by
    // the callers, all of them, with the types that its source has, and the buffers hold all that the plan
    // speaks of: offsets in it are those at which the host's copy of the arena was written, with checks.
    unsafe {
        let (global, local) = (global.as_ptr(), local.as_ptr());
        queue.enqueue_nd_range_kernel(kernel.get(), 1, ptr::null(), global, local, waits_for.as_slice())
    }
}

impl Device for OpenClDevice {
    fn description(&self) -> String {
        self.description.clone()
    }

    fn is_processor(&self) -> bool {
        self.is_processor
    }

    fn lanes(&self) -> usize {
        self.lanes
    }

    fn memory(&mut self, batch: usize) -> Option<(&mut [u32], &mut [u8])> {
        let memory = self.parts.batches.get_mut(batch).filter(|memory| memory.ended.is_none())?;
        Some((memory.host_plan.slice_mut(), memory.host_arena.slice_mut()))
    }

    fn expand(&mut self, slot: u32, kind: u32, key: &RawKey) -> Result<(), String> {
        self.one_group("the expansion of a key", |Parts { expand, keys, .. }| {
            let (slot, kind): (cl_uint, cl_uint) = (slot, kind);
            // SAFETY: the arguments of `testudo_expand` in its source: a buffer, two words, and a structure
            // of 25 words, which `RawKey` is. They are copied before the calls return.
            unsafe {
                expand.set_arg(0, &keys.get())?;
                expand.set_arg(1, &slot)?;
                expand.set_arg(2, &kind)?;
                expand.set_arg(3, key)?;
            }
            Ok(expand)
        })?;
        // The kernel object has a copy of its arguments: the key must not stay there.
        let forgotten = RawKey([0; _]);
        // SAFETY: as above.
        let cleared = unsafe { self.parts.expand.set_arg(3, &forgotten).map(|_| ()) };
        self.noted("the expansion of a key", cleared)
    }

    fn wipe(&mut self, slot: u32) -> Result<(), String> {
        self.one_group("the removal of a key", |Parts { wipe, keys, .. }| {
            // SAFETY: the arguments of `testudo_wipe` in its source, a buffer and a word.
            unsafe {
                wipe.set_arg(0, &keys.get())?;
                wipe.set_arg(1, &slot)?;
            }
            Ok(wipe)
        })
    }

    fn launch(&mut self, batch: usize, launch: Launch) -> Result<(), String> {
        let lanes = self.lanes;
        let launched = self.parts.launch(batch, launch, lanes);
        self.noted("a launch", launched)
    }

    fn is_done(&mut self, batch: usize) -> Result<bool, String> {
        let Some(memory) = self.parts.batches.get_mut(batch) else { return Ok(false) };
        let Some(event) = &memory.ended else { return Ok(true) };
        let status = event.command_execution_status().map(|status| status.0);
        match status {
            Ok(COMPLETE) => {
                memory.ended = None;
                Ok(true)
            }
            Ok(1..) => Ok(false),
            Ok(code) => self.noted("a launch", Err(ClError(code))),
            Err(error) => self.noted("a question for a launch", Err(error)),
        }
    }
}

impl Parts {
    /// Hands plan and arena over, runs, and takes the arena back.
    fn launch(&mut self, batch: usize, launch: Launch, lanes: usize) -> Result<(), ClError> {
        let Self { batches, keys, run, queues, .. } = self;
        let memory = batches.get_mut(batch).ok_or(OUT_OF_RANGE)?;
        let whole = (memory.host_plan.len, memory.host_arena.len);
        let copied = memory.hand_over(queues, launch)?;
        let [plan, arena] = memory.arguments();
        // SAFETY: the arguments of `testudo_run` in its source: three buffers.
        unsafe {
            run.set_arg(0, &plan)?;
            run.set_arg(1, &arena)?;
            run.set_arg(2, &keys.get())?;
        }
        let kernel = start(&queues.run, run, (launch.bins, lanes), copied.as_ref())?;
        memory.ended = Some(memory.take_back(queues, launch, whole, &kernel)?);
        queues.run.flush()?;
        queues.from.flush()
    }

    /// Zeroes all packets and keys on the device; the event is the last's.
    fn wipe(&mut self) -> Result<Event, ClError> {
        let Self { batches, keys, queues: Queues { run: queue, .. }, .. } = self;
        for Memory { on_device, ended, .. } in batches.iter_mut() {
            let Some((plan, arena)) = on_device else { continue };
            let (plan_bytes, arena_bytes) = (plan.size()?, arena.size()?);
            let copied_back = ended.as_ref().map(Event::get);
            // SAFETY: each the whole buffer, a multiple of the pattern, which is copied before the call
            // returns.
            unsafe {
                queue.enqueue_fill_buffer(plan, &[0_u32], 0, plan_bytes, &[])?;
                queue.enqueue_fill_buffer(arena, &[0_u8], 0, arena_bytes, copied_back.as_slice())?;
            }
        }
        let bytes = keys.size()?;
        // SAFETY: as above.
        unsafe { queue.enqueue_fill_buffer(keys, &[0_u32], 0, bytes, &[]) }
    }

    /// Zeroes all that is on the device and waits until nothing is under way; whether that came to an end.
    fn close(&mut self) -> bool {
        let Ok(wiped) = self.wipe() else { return false };
        if self.queues.run.flush().is_err() {
            return false;
        }
        let start = Instant::now();
        loop {
            match wiped.command_execution_status().map(|status| status.0) {
                // The queue is in order, and waits for the others: this was the last command.
                Ok(COMPLETE) => return true,
                Ok(1..) if start.elapsed() < LAST_WAIT => std::thread::sleep(Duration::from_micros(100)),
                _ => return false,
            }
        }
    }
}

impl Drop for OpenClDevice {
    fn drop(&mut self) {
        if self.has_failed || !self.parts.close() {
            // What a device that failed still does with our memory, nobody knows: it is left to it.
            return;
        }
        let Parts { batches, queues, .. } = &mut *self.parts;
        for memory in batches {
            // What is mapped, which is all: each launch maps it again.
            memory.host_plan.slice_mut().zeroize();
            memory.host_arena.slice_mut().zeroize();
            let _gone = (memory.host_plan.unmap(&queues.run), memory.host_arena.unmap(&queues.run));
        }
        if queues.finish().is_ok() {
            // SAFETY: nothing uses the parts afterwards: this is the end of the only owner, and happens once.
            unsafe { ManuallyDrop::drop(&mut self.parts) };
        }
    }
}
