//! Opens devices as they are wanted.

use crate::NAME;
use crate::cuda::{CudaDevice, Libraries};
use crate::device::{Device, Sizes};
use crate::engine::{GpuEngine, LaunchTimes, MAX_TEXT_BYTES, UNDER_WAY};
use crate::idle::IdleDevice;
use crate::opencl::OpenClDevice;
use crate::several::{SeveralGpus, patience};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;
use testudo_crypto::{Engine, EngineError};

/// By which of its drivers' interfaces a device is reached.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Api {
    /// OpenCL, and CUDA where OpenCL has no such device.
    #[default]
    Any,
    /// OpenCL 1.2.
    OpenCl,
    /// The driver's API of CUDA, and NVRTC.
    Cuda,
}

/// How many devices an engine uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Devices {
    /// So many, at least one.
    Number(usize),
    /// As many as there are.
    All,
}

/// Which devices, and how much memory it is given.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GpuConfig {
    /// How it is reached.
    pub api: Api,
    /// Where NVRTC, the compiler of CUDA, is, if the dynamic linker does not find it by its name.
    pub nvrtc: Option<PathBuf>,
    /// A part of the device's name or of its platform's, in any case. Without it the first GPU is taken, and
    /// a processor (PoCL) never.
    pub device: Option<String>,
    /// How many of the devices that match are used.
    pub devices: Devices,
    /// Keys that a device may hold.
    pub keys: usize,
    /// Jobs of a batch at most; each has 2 KB of the arena on average.
    pub batch_jobs: usize,
    /// Whether the kernel writes [frames](testudo_crypto::frame), where jobs leave them to it.
    pub headers: bool,
    /// How long a packet may be away for its cryptography: a batch that takes three times as long is not done
    /// in time, if there are several devices and that is more than 50 ms.
    pub latency: Duration,
}

impl Default for GpuConfig {
    fn default() -> Self {
        Self {
            api: Api::Any,
            nvrtc: None,
            device: None,
            devices: Devices::Number(1),
            keys: 16_384,
            batch_jobs: 4_096,
            headers: false,
            latency: Duration::from_millis(1),
        }
    }
}

impl GpuConfig {
    pub(crate) fn sizes(&self) -> Sizes {
        let jobs = self.batch_jobs.max(1);
        // One of the longest packets must fit.
        let arena_bytes = jobs.saturating_mul(2048).max(2 * MAX_TEXT_BYTES).next_multiple_of(4096);
        Sizes { batches: UNDER_WAY, batch_jobs: jobs, arena_bytes, keys: self.keys.max(1) }
    }
}

/// The interfaces, with what each needs.
enum Access {
    OpenCl,
    Cuda(Libraries),
}

impl Access {
    fn of(interface: Interface, config: &GpuConfig) -> Self {
        match interface {
            Interface::OpenCl => Self::OpenCl,
            Interface::Cuda => Self::Cuda(Libraries::new(config.nvrtc.clone())),
        }
    }

    fn count(&self, wanted: Option<&str>) -> Result<usize, String> {
        match self {
            Self::OpenCl => OpenClDevice::count(wanted),
            Self::Cuda(libraries) => CudaDevice::count(wanted, libraries),
        }
    }

    fn device(&self, wanted: Option<&str>, place: usize, sizes: Sizes) -> Result<Box<dyn Device>, String> {
        match self {
            Self::OpenCl => Ok(Box::new(OpenClDevice::open(wanted, place, sizes)?)),
            Self::Cuda(libraries) => Ok(Box::new(CudaDevice::open(wanted, place, libraries, sizes)?)),
        }
    }

    /// Opens the devices that are wanted.
    fn open(&self, config: &GpuConfig) -> Result<Box<dyn Engine>, String> {
        let wanted = config.device.as_deref();
        let there = self.count(wanted)?;
        let count = match config.devices {
            Devices::All => there,
            Devices::Number(count) if count > there => {
                return Err(format!("{count} devices are wanted, and there are {there} such"));
            }
            Devices::Number(count) => count.max(1),
        };
        let sizes = config.sizes();
        let engine = |place| {
            let mut engine = GpuEngine::over(self.device(wanted, place, sizes)?, sizes);
            engine.set_writes_frames(config.headers);
            Ok(engine)
        };
        match count {
            1 => Ok(Box::new(engine(0)?)),
            _ => {
                let mut engines = (0..count).map(engine).collect::<Result<Vec<_>, String>>()?;
                for engine in &mut engines {
                    // As one engine, known answers would all go to the first.
                    testudo_crypto::self_test(engine).map_err(|error| error.to_string())?;
                    engine.set_patience(patience(config.latency));
                }
                Ok(Box::new(SeveralGpus::new(engines)))
            }
        }
    }
}

/// Opens the devices and builds the kernels for them: seconds, where the driver has not done it before. The
/// caller has the engine compute known answers ([`testudo_crypto::self_test`]) before it is used.
///
/// # Errors
/// [`EngineError::Unavailable`]: there is no driver, no such device or not so many, not enough memory, or the
/// kernels cannot be built, with the compiler's words.
pub fn open(config: &GpuConfig) -> Result<Box<dyn Engine>, EngineError> {
    let cuda = || Access::of(Interface::Cuda, config);
    let opened = match config.api {
        Api::OpenCl => Access::OpenCl.open(config),
        Api::Cuda => cuda().open(config),
        Api::Any => {
            let by_cuda = |opencl| cuda().open(config).map_err(|error| format!("{opencl}; CUDA: {error}"));
            Access::OpenCl.open(config).or_else(by_cuda)
        }
    };
    opened.map_err(|reason| EngineError::Unavailable { engine: NAME, reason })
}

/// An interface of drivers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Interface {
    /// OpenCL 1.2.
    OpenCl,
    /// CUDA.
    Cuda,
}

/// The devices that match, by the interfaces that `config` allows, each as its interface and its place among
/// those of it. A device that both reach is there twice.
///
/// # Errors
/// [`EngineError::Unavailable`]: no interface has such a device, with what each said.
pub fn devices(config: &GpuConfig) -> Result<Vec<(Interface, usize)>, EngineError> {
    let interfaces: &[Interface] = match config.api {
        Api::Any => &[Interface::OpenCl, Interface::Cuda],
        Api::OpenCl => &[Interface::OpenCl],
        Api::Cuda => &[Interface::Cuda],
    };
    let (mut found, mut reasons) = (Vec::new(), Vec::new());
    for interface in interfaces {
        match Access::of(*interface, config).count(config.device.as_deref()) {
            Ok(count) => found.extend((0..count).map(|place| (*interface, place))),
            Err(reason) => reasons.push(reason),
        }
    }
    if found.is_empty() {
        return Err(EngineError::Unavailable { engine: NAME, reason: reasons.join("; ") });
    }
    Ok(found)
}

/// An engine on one device, whose launches can be timed apart from a gateway.
pub struct OneGpu(GpuEngine);

impl OneGpu {
    pub(crate) fn new(engine: GpuEngine) -> Self {
        Self(engine)
    }

    /// On a device that does nothing: packets are laid out and come back, and none is sealed. It measures
    /// what the processor does for each packet, and is fit for nothing else: known answers refuse it.
    #[must_use]
    pub fn idle(config: &GpuConfig) -> Self {
        Self::idle_that_hangs(config, Arc::default())
    }

    /// The same, and while `hangs` is set the device does not even say that it has done nothing: for tests of
    /// what becomes of the packets of one that hangs.
    #[must_use]
    pub fn idle_that_hangs(config: &GpuConfig, hangs: Arc<AtomicBool>) -> Self {
        let sizes = config.sizes();
        let mut engine = GpuEngine::over(Box::new(IdleDevice::new(sizes, hangs)), sizes);
        engine.never_check();
        Self::new(engine)
    }

    /// Gives it keys and jobs.
    pub fn engine(&mut self) -> &mut dyn Engine {
        &mut self.0
    }

    /// The engine, for a gateway.
    #[must_use]
    pub fn into_engine(self) -> Box<dyn Engine> {
        Box::new(self.0)
    }

    /// Times launches of the jobs that were submitted since the last flush, so many of each kind. The jobs
    /// are dropped.
    ///
    /// # Errors
    /// No job was submitted, others are under way, or what the device said.
    pub fn time(&mut self, launches: u32) -> Result<LaunchTimes, String> {
        self.0.time(launches)
    }
}

/// Opens one of [`devices`]. The caller has it compute known answers before it is used.
///
/// # Errors
/// As of [`open`].
pub fn open_at(config: &GpuConfig, (interface, place): (Interface, usize)) -> Result<OneGpu, EngineError> {
    let sizes = config.sizes();
    let device = Access::of(interface, config).device(config.device.as_deref(), place, sizes);
    let device = device.map_err(|reason| EngineError::Unavailable { engine: NAME, reason })?;
    let mut engine = GpuEngine::over(device, sizes);
    engine.set_writes_frames(config.headers);
    Ok(OneGpu::new(engine))
}
