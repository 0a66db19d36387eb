//! What NVIDIA's GPUs have taken (nvml.h): `libnvidia-ml.so.1`, which comes with the driver.

use super::library::{self, functions};
use std::ffi::{c_uint, c_ulonglong, c_void};
use std::fmt;
use std::path::Path;
use std::ptr;

type Handle = *mut c_void;

functions! {
    /// Functions of NVML, by the names that its macros give them.
    Functions {
        init = c"nvmlInit_v2"(),
        shutdown = c"nvmlShutdown"(),
        device_count = c"nvmlDeviceGetCount_v2"(*mut c_uint),
        device = c"nvmlDeviceGetHandleByIndex_v2"(c_uint, *mut Handle),
        energy = c"nvmlDeviceGetTotalEnergyConsumption"(Handle, *mut c_ulonglong),
    }
}

/// Where the driver's library is.
const LIBRARY: &str = "libnvidia-ml.so.1";
/// Devices that are looked at.
const MOST_DEVICES: c_uint = 64;

/// The counters of energy of all NVIDIA's GPUs of this machine.
pub struct NvidiaEnergy {
    functions: Functions,
    devices: Vec<Handle>,
}

impl fmt::Debug for NvidiaEnergy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NvidiaEnergy of {} devices", self.devices.len())
    }
}

impl NvidiaEnergy {
    /// Opens the driver's library, and finds the devices.
    ///
    /// # Errors
    /// Why there are none, for people: no library, no driver, no device.
    pub fn open() -> Result<Self, String> {
        Self::open_at(Path::new(LIBRARY))
    }

    pub(crate) fn open_at(path: &Path) -> Result<Self, String> {
        let library = library::open(path)?;
        // SAFETY: nvml.h declares exactly these signatures, and versions of a function that is changed get
        // new names.
        let functions = unsafe { Functions::look_up(library) }?;
        // SAFETY: it takes nothing.
        check("its initialisation", unsafe { (functions.init)() })?;
        // From here on what ends early shuts NVML down.
        let mut energy = Self { functions, devices: Vec::new() };
        let mut count = 0;
        // SAFETY: it writes an integer.
        check("the number of devices", unsafe { (energy.functions.device_count)(&raw mut count) })?;
        for index in 0..count.min(MOST_DEVICES) {
            let mut device = ptr::null_mut();
            // SAFETY: it writes a handle, which is valid until NVML is shut down.
            let found = unsafe { (energy.functions.device)(index, &raw mut device) };
            check(&format!("device {index}"), found)?;
            energy.devices.push(device);
        }
        if energy.devices.is_empty() { Err("NVML finds no device".to_owned()) } else { Ok(energy) }
    }

    /// How many there are.
    #[must_use]
    pub fn devices(&self) -> usize {
        self.devices.len()
    }

    /// What each device has taken since its driver was loaded, in microjoules. Drivers count whole
    /// millijoules, and do so some ten times a second.
    ///
    /// # Errors
    /// Which device does not say, and why, for people. Those before Volta never do.
    pub fn microjoules(&self) -> Result<Vec<u64>, String> {
        let mut counters = Vec::with_capacity(self.devices.len());
        for (index, device) in self.devices.iter().enumerate() {
            let mut millijoules = 0;
            // SAFETY: the handle is of this NVML, which is not shut down before `self` ends; it writes an
            // integer of 64 bits.
            let read = unsafe { (self.functions.energy)(*device, &raw mut millijoules) };
            check(&format!("the energy of device {index}"), read)?;
            let microjoules = millijoules.checked_mul(1000);
            counters
                .push(microjoules.ok_or_else(|| format!("device {index}: {millijoules} mJ are no energy"))?);
        }
        Ok(counters)
    }
}

impl Drop for NvidiaEnergy {
    fn drop(&mut self) {
        // SAFETY: it was initialised, and handles are not used any more.
        unsafe { (self.functions.shutdown)() };
    }
}

/// The errors that an administrator can do something about, of `nvmlReturn_t`.
fn check(what: &str, code: i32) -> Result<(), String> {
    let why = match code {
        0 => return Ok(()),
        3 => "not supported",
        4 => "no permission",
        6 => "not found",
        9 => "the driver is not loaded",
        15 => "the GPU is lost",
        18 => "the library and the driver are of different versions",
        _ => "NVML's word for it is in nvml.h",
    };
    Err(format!("NVML: {what}: error {code}, {why}"))
}
