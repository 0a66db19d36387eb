//! The engines that the program knows. The portable one is always available and needs no entry here.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use testudo_control::config::{Configuration, Cores, Cryptodev, Gateway, Gpu, GpuApi};
use testudo_crypto::{Engine, EngineError, PortableEngine};
use testudo_engine_cores::{CoresConfig, CoresEngine, NAME as CORES};
use testudo_engine_cryptodev::{CryptodevConfig, CryptodevEngine, NAME as CRYPTODEV};
use testudo_engine_gpu::{Api, Devices, GpuConfig, NAME as GPU};
use testudo_engine_ipsec_mb::IpsecMbEngine;
use testudo_engine_vaes::VaesEngine;
use testudo_gateway::{CHUNKS, Candidate, EngineOrder};
use testudo_lab::bench::GpuCount;
use testudo_port_dpdk::{EalConfig, Plugin};

use crate::eal::{self, Start};

/// Every engine that needs no configuration, best first.
pub fn known() -> Vec<Candidate> {
    vec![
        Candidate { name: "vaes", open: Box::new(|| Ok(Box::new(VaesEngine::open()?))) },
        Candidate { name: "ipsec-mb", open: Box::new(|| Ok(Box::new(IpsecMbEngine::open()?))) },
    ]
}

/// Every engine that can be measured: [`known`], the device of DPDK's named `cryptodev`, in software and with
/// memory enough for several engines, and the GPU with this in its name, or the first; or so many as one.
pub fn measurable(cryptodev: &str, gpu: Option<&str>, gpus: GpuCount) -> Vec<Candidate> {
    let arguments: Vec<String> = ["--no-huge", "-m", "1024"].map(str::to_owned).into();
    let eal = EalConfig { arguments, pci: Vec::new() };
    let device = Cryptodev { device: cryptodev.to_owned(), queue_pairs: 2, keys: 4096, eal: Vec::new() };
    let start = Start { library: None, eal };
    let mut candidates = known();
    candidates.push(Candidate { name: CRYPTODEV, open: Box::new(move || open(&device, Ok(start.clone()))) });
    // Chunks of any size are one launch.
    let (device, devices) = (gpu.map(str::to_owned), counted(gpus));
    let config = GpuConfig { device, devices, batch_jobs: *CHUNKS.end(), ..GpuConfig::default() };
    candidates.push(Candidate { name: GPU, open: Box::new(move || testudo_engine_gpu::open(&config)) });
    candidates
}

/// So many devices of those that match.
pub fn counted(gpus: GpuCount) -> Devices {
    match gpus {
        GpuCount::All => Devices::All,
        GpuCount::Number(count) => Devices::Number(count.into()),
    }
}

/// Every engine that does cryptography in a device and can be measured: a `cryptodev` in software, and the
/// GPU with this in its name, or the first.
pub fn devices(gpu: Option<&str>) -> Vec<Candidate> {
    let mut devices = measurable(SOFTWARE_CRYPTODEV, gpu, GpuCount::default());
    devices.retain(|candidate| [CRYPTODEV, GPU].contains(&candidate.name));
    devices
}

/// The device of DPDK's that is there without hardware.
const SOFTWARE_CRYPTODEV: &str = "crypto_aesni_mb";

/// The candidates for the engines that are named, in this order, as the configuration has them.
pub fn candidates(names: &[String], configuration: &Configuration) -> Vec<Candidate> {
    let (device, start) = (configuration.cryptodev.clone(), eal::start(configuration));
    let open = |device| Box::new(move || open(&device, start.clone()));
    let cryptodev = device.map(|device| Candidate { name: CRYPTODEV, open: open(device) });
    let scheduler = &configuration.scheduler;
    // With self-tuning chunks become as large as any may be.
    let chunk = if scheduler.tune { *CHUNKS.end() } else { scheduler.chunk };
    let gpu = gpu(&configuration.gpu, chunk, scheduler.latency);
    let gpu = Candidate { name: GPU, open: Box::new(move || testudo_engine_gpu::open(&gpu)) };
    let cores = cores(configuration.cores.clone());
    let mut all: Vec<Candidate> = known().into_iter().chain(cryptodev).chain([gpu, cores]).collect();
    let mut take = |name: &String| Some(all.swap_remove(all.iter().position(|c| c.name == name)?));
    names.iter().filter_map(&mut take).collect()
}

/// What the engine is told of `[engine.gpu]`, and of the scheduler's chunk and bound.
fn gpu(section: &Gpu, batch_jobs: usize, latency: Duration) -> GpuConfig {
    let api = match section.api {
        None => Api::Any,
        Some(GpuApi::OpenCl) => Api::OpenCl,
        Some(GpuApi::Cuda) => Api::Cuda,
    };
    let devices = section.devices.map_or(Devices::All, |count| Devices::Number(count.into()));
    let Gpu { device, nvrtc, gpu_headers: headers, .. } = section.clone();
    GpuConfig { api, device, devices, nvrtc, batch_jobs, headers, latency, ..GpuConfig::default() }
}

/// Threads on other cores, numbered through all workers.
fn cores(settings: Cores) -> Candidate {
    let started = Arc::new(AtomicUsize::new(0));
    let open = move || -> Result<Box<dyn Engine>, EngineError> {
        let threads = usize::from(settings.threads);
        let processors = settings.processors.iter().map(|number| usize::from(*number)).collect();
        let first_thread = started.fetch_add(threads, Ordering::Relaxed);
        let config = CoresConfig { threads, processors, first_thread };
        Ok(Box::new(CoresEngine::open(&config, &mut || in_a_thread(&settings.engines))?))
    };
    Candidate { name: CORES, open: Box::new(open) }
}

/// The engines of one thread: of those named, the ones that there are.
fn in_a_thread(names: &[String]) -> Result<Vec<Box<dyn Engine>>, EngineError> {
    let (mut engines, mut missing) = (Vec::new(), None);
    for name in names {
        let opened: Result<Box<dyn Engine>, EngineError> = match known().iter().find(|c| c.name == name) {
            Some(candidate) => (candidate.open)(),
            None => Ok(Box::new(PortableEngine::new())),
        };
        match opened {
            Ok(engine) => engines.push(engine),
            Err(error) => missing = Some(error),
        }
    }
    match missing {
        Some(error) if engines.is_empty() => Err(error),
        _ => Ok(engines),
    }
}

/// The order of engines: as the configuration names them, else the fastest first.
pub fn order(gateway: &Gateway) -> EngineOrder {
    if gateway.engines_named { EngineOrder::AsNamed } else { EngineOrder::FastestFirst }
}

fn open(device: &Cryptodev, start: Result<Start, String>) -> Result<Box<dyn Engine>, EngineError> {
    let unavailable = |reason| EngineError::Unavailable { engine: CRYPTODEV, reason };
    let Start { library, eal } = start.map_err(unavailable)?;
    let plugin = Plugin::open(library.as_deref()).map_err(|error| unavailable(error.to_string()))?;
    let config = CryptodevConfig {
        queue_pairs: device.queue_pairs,
        keys: device.keys,
        eal,
        ..CryptodevConfig::of(&device.device)
    };
    Ok(Box::new(CryptodevEngine::open(plugin, &config)?))
}
