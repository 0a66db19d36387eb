//! The driver's API (cuda.h), as far as it is used, without what may wait.

use super::compiler::Image;
use super::library::{self, functions};
use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::path::Path;
use std::ptr::{self, NonNull};
use std::sync::Arc;

/// An address on the device.
pub(super) type DevicePtr = u64;
type Ordinal = c_int;
type Handle = *mut c_void;

functions! {
    /// Functions of CUDA 11 (cuda.h), by the names that its macros give them.
    Functions {
        init = c"cuInit"(c_uint),
        version = c"cuDriverGetVersion"(*mut c_int),
        error_name = c"cuGetErrorName"(i32, *mut *const c_char),
        device_count = c"cuDeviceGetCount"(*mut c_int),
        device = c"cuDeviceGet"(*mut Ordinal, c_int),
        device_name = c"cuDeviceGetName"(*mut c_char, c_int, Ordinal),
        device_attribute = c"cuDeviceGetAttribute"(*mut c_int, c_int, Ordinal),
        retain = c"cuDevicePrimaryCtxRetain"(*mut Handle, Ordinal),
        release = c"cuDevicePrimaryCtxRelease_v2"(Ordinal),
        set_current = c"cuCtxSetCurrent"(Handle),
        load_module = c"cuModuleLoadData"(*mut Handle, *const c_void),
        unload_module = c"cuModuleUnload"(Handle),
        function = c"cuModuleGetFunction"(*mut Handle, Handle, *const c_char),
        alloc = c"cuMemAlloc_v2"(*mut DevicePtr, usize),
        free = c"cuMemFree_v2"(DevicePtr),
        host_alloc = c"cuMemHostAlloc"(*mut *mut c_void, usize, c_uint),
        host_free = c"cuMemFreeHost"(*mut c_void),
        host_address = c"cuMemHostGetDevicePointer_v2"(*mut DevicePtr, *mut c_void, c_uint),
        to_device = c"cuMemcpyHtoDAsync_v2"(DevicePtr, *const c_void, usize, Handle),
        to_host = c"cuMemcpyDtoHAsync_v2"(*mut c_void, DevicePtr, usize, Handle),
        set_words = c"cuMemsetD32Async"(DevicePtr, c_uint, usize, Handle),
        launch = c"cuLaunchKernel"(
            Handle, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, Handle, *mut *mut c_void,
            *mut *mut c_void
        ),
        create_stream = c"cuStreamCreate"(*mut Handle, c_uint),
        destroy_stream = c"cuStreamDestroy_v2"(Handle),
        wait_for_event = c"cuStreamWaitEvent"(Handle, Handle, c_uint),
        create_event = c"cuEventCreate"(*mut Handle, c_uint),
        destroy_event = c"cuEventDestroy_v2"(Handle),
        record_event = c"cuEventRecord"(Handle, Handle),
        query_event = c"cuEventQuery"(Handle),
    }
}

const NOT_READY: i32 = 600;
/// Streams that do not wait for others' (`CU_STREAM_NON_BLOCKING`), events without time
/// (`CU_EVENT_DISABLE_TIMING`), memory for all contexts that is mapped for the device, too
/// (`CU_MEMHOSTALLOC_PORTABLE`, `CU_MEMHOSTALLOC_DEVICEMAP`).
const STREAM_FLAGS: c_uint = 1;
const EVENT_FLAGS: c_uint = 2;
const HOST_FLAGS: c_uint = 1 | 2;
/// Devices that are looked at.
const MOST_DEVICES: c_int = 64;

/// The library, of which nothing is asked before [`open`](Self::open) has initialised it.
pub(super) struct Driver {
    functions: Functions,
    /// Of CUDA, 12090 for 12.9.
    version: c_int,
}

/// A device that was found.
#[derive(Debug, Clone)]
pub(super) struct Found {
    ordinal: Ordinal,
    pub name: String,
    /// 90 for compute capability 9.0.
    pub architecture: u32,
    pub warp: usize,
    /// Whether its memory is the host's.
    pub is_integrated: bool,
}

impl Driver {
    /// # Errors
    /// A text for people: the library is missing, too old, or finds no device.
    pub(super) fn open(path: &Path) -> Result<Self, String> {
        let library = library::open(path)?;
        // SAFETY: cuda.h declares exactly these signatures, since 11.0, and versions of a function that is
        // changed get new names.
        let functions = unsafe { Functions::look_up(library) }?;
        let mut driver = Self { functions, version: 0 };
        // SAFETY: it takes no flags.
        driver.check("its initialisation", unsafe { (driver.functions.init)(0) })?;
        let mut version = 0;
        // SAFETY: it writes an integer.
        let asked = unsafe { (driver.functions.version)(&raw mut version) };
        driver.check("a question for its version", asked)?;
        driver.version = version;
        Ok(driver)
    }

    /// The major version of CUDA that it is of.
    pub(super) const fn major(&self) -> c_int {
        self.version / 1000
    }

    /// For people: `CUDA 12.9`.
    pub(super) fn description(&self) -> String {
        format!("CUDA {}.{}", self.version / 1000, self.version % 1000 / 10)
    }

    fn check(&self, what: &str, status: i32) -> Result<(), String> {
        if status == 0 {
            return Ok(());
        }
        let mut name = ptr::null();
        // SAFETY: it takes any number, and writes a pointer to a static text, or zero.
        let known = unsafe { (self.functions.error_name)(status, &raw mut name) };
        if known != 0 || name.is_null() {
            return Err(format!("{what} failed: error {status} of CUDA's"));
        }
        // SAFETY: not null, and the driver's texts are static and end with zero.
        let name = unsafe { CStr::from_ptr(name) };
        Err(format!("{what} failed: {}", name.to_string_lossy()))
    }

    /// All devices.
    pub(super) fn devices(&self) -> Result<Vec<Found>, String> {
        let mut count = 0;
        // SAFETY: it writes an integer.
        self.check("counting devices", unsafe { (self.functions.device_count)(&raw mut count) })?;
        (0..count.min(MOST_DEVICES)).map(|index| self.found(index)).collect()
    }

    fn found(&self, index: c_int) -> Result<Found, String> {
        const COMPUTE_CAPABILITY: [c_int; 2] = [75, 76];
        const WARP_SIZE: c_int = 10;
        const INTEGRATED: c_int = 18;
        let mut ordinal = 0;
        let mut name = [0_u8; 256];
        // SAFETY: they write an integer, and a text with its zero of at most 255 bytes into 256 that are
        // zero.
        unsafe {
            self.check("finding a device", (self.functions.device)(&raw mut ordinal, index))?;
            let named = (self.functions.device_name)(name.as_mut_ptr().cast(), 255, ordinal);
            self.check("a question for a device's name", named)?;
        }
        let attribute = |which| {
            let mut value = 0;
            // SAFETY: it writes an integer.
            let status = unsafe { (self.functions.device_attribute)(&raw mut value, which, ordinal) };
            self.check("a question for an attribute", status)?;
            u32::try_from(value).map_err(|_| "an attribute is negative".to_owned())
        };
        let [major, minor] = COMPUTE_CAPABILITY.map(attribute);
        let name = CStr::from_bytes_until_nul(&name).map(CStr::to_string_lossy).unwrap_or_default();
        Ok(Found {
            ordinal,
            name: name.trim().to_owned(),
            architecture: major?.min(1000) * 10 + minor?.min(9),
            warp: usize::try_from(attribute(WARP_SIZE)?).unwrap_or(0).clamp(1, 1024),
            is_integrated: attribute(INTEGRATED)? != 0,
        })
    }
}

/// The primary context of a device, which all engines of the process share, and what one engine has in it:
/// modules, memory, streams and events, which live until [`close`](Self::close). What is not closed stays for
/// ever, as it must where the device may still write to pinned memory.
pub(super) struct Context {
    driver: Arc<Driver>,
    handle: Handle,
    ordinal: Ordinal,
    things: Vec<Thing>,
}

// SAFETY: contexts may be used by any thread that has made them current, which each call here does first.
unsafe impl Send for Context {}

/// A kernel of a module.
#[derive(Clone, Copy)]
pub(super) struct Function(Handle);
/// Commands in their order.
#[derive(Clone, Copy)]
pub(super) struct Stream(Handle);
/// A point in a stream.
#[derive(Clone, Copy)]
pub(super) struct Event(Handle);
/// Kernels for one device.
#[derive(Clone, Copy)]
pub(super) struct Module(Handle);
/// Memory of the host that the device reaches by itself (pinned): bytes, zero at first, at an address that is
/// aligned for words.
#[derive(Clone, Copy)]
pub(super) struct Pinned {
    pub start: NonNull<u8>,
    pub bytes: usize,
    /// Where the device sees it.
    pub address: DevicePtr,
}

// SAFETY: handles of the driver's, which any thread may use whose context is current (CUDA driver API,
// "context management").
unsafe impl Send for Function {}
// SAFETY: as above.
unsafe impl Send for Stream {}
// SAFETY: as above.
unsafe impl Send for Event {}
// SAFETY: memory that its owner alone reads and writes.
unsafe impl Send for Pinned {}

/// What is given back before the context.
enum Thing {
    Module(Module),
    Stream(Stream),
    Event(Event),
    Memory(DevicePtr),
    Pinned(NonNull<u8>),
}

// SAFETY: handles, as above, and memory that is only given back.
unsafe impl Send for Thing {}

impl Context {
    /// # Errors
    /// The driver's.
    pub(super) fn new(driver: Arc<Driver>, found: &Found) -> Result<Self, String> {
        let mut handle = ptr::null_mut();
        // SAFETY: a device that the driver has; a handle is written.
        let retained = unsafe { (driver.functions.retain)(&raw mut handle, found.ordinal) };
        driver.check("making a context", retained)?;
        Ok(Self { driver, handle, ordinal: found.ordinal, things: Vec::new() })
    }

    fn functions(&self) -> &Functions {
        &self.driver.functions
    }

    fn check(&self, what: &str, status: i32) -> Result<(), String> {
        self.driver.check(what, status)
    }

    /// Makes it the calling thread's, before anything else is asked of it there.
    pub(super) fn enter(&self) -> Result<(), String> {
        // SAFETY: the context is retained as long as this lives.
        self.check("entering a context", unsafe { (self.functions().set_current)(self.handle) })
    }

    pub(super) fn load(&mut self, image: &Image) -> Result<Module, String> {
        let mut module = ptr::null_mut();
        // SAFETY: what NVRTC made: a CUBIN, which says how long it is, or a text that ends with zero.
        let status =
            unsafe { (self.functions().load_module)(&raw mut module, image.bytes().as_ptr().cast()) };
        self.check("loading the kernels", status)?;
        self.things.push(Thing::Module(Module(module)));
        Ok(Module(module))
    }

    pub(super) fn function(&self, module: Module, name: &str) -> Result<Function, String> {
        let mut function = ptr::null_mut();
        let name = CString::new(name).map_err(|_| "a name has a zero in it".to_owned())?;
        // SAFETY: a module that is loaded, and a text that ends with zero.
        let status = unsafe { (self.functions().function)(&raw mut function, module.0, name.as_ptr()) };
        self.check("finding a kernel", status).map(|()| Function(function))
    }

    /// Memory on the device, with anything in it.
    pub(super) fn memory(&mut self, bytes: usize) -> Result<DevicePtr, String> {
        let mut address = 0;
        // SAFETY: an address is written.
        let status = unsafe { (self.functions().alloc)(&raw mut address, bytes) };
        self.check(&format!("taking {bytes} bytes of the device's memory"), status)?;
        self.things.push(Thing::Memory(address));
        Ok(address)
    }

    pub(super) fn pinned(&mut self, bytes: usize) -> Result<Pinned, String> {
        let (mut start, mut address) = (ptr::null_mut(), 0);
        // SAFETY: an address is written.
        let status = unsafe { (self.functions().host_alloc)(&raw mut start, bytes, HOST_FLAGS) };
        self.check(&format!("pinning {bytes} bytes"), status)?;
        let start = NonNull::new(start.cast::<u8>()).filter(|start| start.cast::<u32>().is_aligned());
        let start = start.ok_or("the driver pinned memory at no address")?;
        self.things.push(Thing::Pinned(start));
        // SAFETY: the driver gave this many bytes, which nobody else knows of.
        unsafe { start.as_ptr().write_bytes(0, bytes) };
        // SAFETY: memory that was made with the flag for this; an address is written.
        let status = unsafe { (self.functions().host_address)(&raw mut address, start.as_ptr().cast(), 0) };
        self.check("mapping pinned memory", status)?;
        Ok(Pinned { start, bytes, address })
    }

    pub(super) fn stream(&mut self) -> Result<Stream, String> {
        let mut stream = ptr::null_mut();
        // SAFETY: a handle is written.
        let status = unsafe { (self.functions().create_stream)(&raw mut stream, STREAM_FLAGS) };
        self.check("making a stream", status)?;
        self.things.push(Thing::Stream(Stream(stream)));
        Ok(Stream(stream))
    }

    pub(super) fn event(&mut self) -> Result<Event, String> {
        let mut event = ptr::null_mut();
        // SAFETY: a handle is written.
        let status = unsafe { (self.functions().create_event)(&raw mut event, EVENT_FLAGS) };
        self.check("making an event", status)?;
        self.things.push(Thing::Event(Event(event)));
        Ok(Event(event))
    }

    /// Copies the first `bytes` of pinned memory.
    ///
    /// # Safety
    /// `to` has as much, and neither is freed, nor is `from` written by the host, until the stream has come
    /// this far.
    pub(super) unsafe fn to_device(
        &self,
        stream: Stream,
        to: DevicePtr,
        from: &Pinned,
        bytes: usize,
    ) -> Result<(), String> {
        let bytes = bytes.min(from.bytes);
        // SAFETY: the caller's promise.
        let status = unsafe { (self.functions().to_device)(to, from.start.as_ptr().cast(), bytes, stream.0) };
        self.check("copying to the device", status)
    }

    /// Copies to the first `bytes` of pinned memory.
    ///
    /// # Safety
    /// `from` has as much, and neither is freed, nor is `to` read or written by the host, until the stream
    /// has come this far.
    pub(super) unsafe fn to_host(
        &self,
        stream: Stream,
        to: &Pinned,
        from: DevicePtr,
        bytes: usize,
    ) -> Result<(), String> {
        let bytes = bytes.min(to.bytes);
        // SAFETY: the caller's promise.
        let status = unsafe { (self.functions().to_host)(to.start.as_ptr().cast(), from, bytes, stream.0) };
        self.check("copying from the device", status)
    }

    /// Zeroes words.
    ///
    /// # Safety
    /// There are as many, and they are not freed until the stream has come this far.
    pub(super) unsafe fn zero(&self, stream: Stream, at: DevicePtr, words: usize) -> Result<(), String> {
        // SAFETY: the caller's promise.
        self.check("zeroing memory", unsafe { (self.functions().set_words)(at, 0, words, stream.0) })
    }

    /// Starts a kernel in `groups` groups of `lanes`.
    ///
    /// # Safety
    /// `arguments` point to values of the types that the kernel has, which are copied before the call
    /// returns; what these point to is enough for what the kernel does, and is not freed until the stream has
    /// come this far.
    pub(super) unsafe fn start(
        &self,
        stream: Stream,
        function: Function,
        (groups, lanes): (usize, usize),
        arguments: &mut [*mut c_void],
    ) -> Result<(), String> {
        let [groups, lanes] =
            [groups, lanes].map(|count| c_uint::try_from(count).map_err(|_| "a launch is too large"));
        let (groups, lanes, none) = (groups?, lanes?, ptr::null_mut());
        let arguments = arguments.as_mut_ptr();
        // SAFETY: the caller's promise; no more than the kernel's own shared memory.
        let status = unsafe {
            (self.functions().launch)(function.0, groups, 1, 1, lanes, 1, 1, 0, stream.0, arguments, none)
        };
        self.check("a launch", status)
    }

    pub(super) fn record(&self, stream: Stream, event: Event) -> Result<(), String> {
        // SAFETY: both are alive: they are given back with the context.
        self.check("recording an event", unsafe { (self.functions().record_event)(event.0, stream.0) })
    }

    /// What comes next in the stream comes after the event.
    pub(super) fn wait(&self, stream: Stream, event: Event) -> Result<(), String> {
        // SAFETY: both are alive.
        let status = unsafe { (self.functions().wait_for_event)(stream.0, event.0, 0) };
        self.check("waiting for an event", status)
    }

    /// Whether a stream has come as far as an event that was recorded.
    pub(super) fn has_happened(&self, event: Event) -> Result<bool, String> {
        // SAFETY: it is alive.
        match unsafe { (self.functions().query_event)(event.0) } {
            NOT_READY => Ok(false),
            status => self.check("a launch", status).map(|()| true),
        }
    }

    /// Gives back all that was made in it, and the context itself, which ends with the last of its engines.
    /// Errors are nobody's any more.
    ///
    /// # Safety
    /// Nothing is asked of it any more, nothing that was made in it is used any more, by the device neither.
    pub(super) unsafe fn close(&mut self) {
        let things = std::mem::take(&mut self.things);
        let functions = self.functions();
        for thing in things.iter().rev() {
            // SAFETY: each was made in this context, is in no use (the caller's promise), and is given back
            // once, since the list has been emptied.
            let _status = unsafe {
                match thing {
                    Thing::Module(module) => (functions.unload_module)(module.0),
                    Thing::Stream(stream) => (functions.destroy_stream)(stream.0),
                    Thing::Event(event) => (functions.destroy_event)(event.0),
                    Thing::Memory(address) => (functions.free)(*address),
                    Thing::Pinned(start) => (functions.host_free)(start.as_ptr().cast()),
                }
            };
        }
        // SAFETY: it was retained once, in `new`.
        let _status = unsafe { (functions.release)(self.ordinal) };
    }
}
