//! Reads `[engine.cryptodev]`, a device of DPDK that does cryptography, `[engine.gpu]` and `[engine.cores]`.

use super::value::{self, Parsed};
use super::walk::{Problem, Section, Walker};
use std::path::PathBuf;
use toml::de::DeValue;

/// The engines' names.
pub(super) const CRYPTODEV: &str = "cryptodev";
pub(super) const GPU: &str = "gpu";
pub(super) const CORES: &str = "cores";
/// Engines that threads on other cores may have.
const IN_THREADS: [&str; 3] = super::gateway::ENGINES;
/// Threads of a worker, and the highest number of a processor.
const MAX_THREADS: u16 = 64;
const MAX_PROCESSOR: u16 = 1023;
/// Queue pairs and arguments of DPDK at most.
const MAX_QUEUE_PAIRS: u16 = 64;
const MAX_ARGUMENTS: usize = 64;
/// GPUs at most.
const MAX_DEVICES: u16 = 16;

/// `[engine.cryptodev]`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cryptodev {
    /// A driver of virtual devices, or a device, as DPDK's own programs take it.
    pub device: String,
    /// Queue pairs, which are used in turn.
    pub queue_pairs: u16,
    /// Keys that the device may hold at a time.
    pub keys: u32,
    /// What DPDK is started with.
    pub eal: Vec<String>,
}

/// `[engine.gpu]`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gpu {
    /// By which interface; without it, by OpenCL where that has such a device, and else by CUDA.
    pub api: Option<GpuApi>,
    /// A part of the name of a device, or of its platform's of OpenCL; without it, the first GPU.
    pub device: Option<String>,
    /// How many of those that match are used; `None` for all.
    pub devices: Option<u16>,
    /// Where NVRTC, the compiler of CUDA, is, if the dynamic linker does not find it.
    pub nvrtc: Option<PathBuf>,
    /// Whether its kernel writes headers, IV, padding and trailer of ESP, in place of the processor.
    pub gpu_headers: bool,
}

impl Default for Gpu {
    fn default() -> Self {
        Self { api: None, device: None, devices: Some(1), nvrtc: None, gpu_headers: false }
    }
}

/// How a GPU is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GpuApi {
    /// OpenCL 1.2.
    OpenCl,
    /// CUDA's driver, and NVRTC.
    Cuda,
}

/// `[engine.cores]`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cores {
    /// Threads of each worker.
    pub threads: u16,
    /// Engines in each of them: the first that does a suite has its packets.
    pub engines: Vec<String>,
    /// Processors that the threads of all workers are bound to, in turn; none are if it is empty.
    pub processors: Vec<u16>,
}

impl Default for Cores {
    fn default() -> Self {
        Self { threads: 1, engines: IN_THREADS.map(str::to_owned).into(), processors: Vec::new() }
    }
}

/// What the sections of engines say.
#[derive(Debug, Default)]
pub(super) struct Engines {
    pub(super) cryptodev: Option<Cryptodev>,
    pub(super) gpu: Gpu,
    pub(super) cores: Cores,
}

/// The sections of engines: that of `cryptodev` is there if `named`, the engines in use, has its name, and
/// not otherwise; those of others may be there if they are named.
pub(super) fn read_engine(
    root: &mut Section<'_>,
    walker: &mut Walker<'_>,
    named: Option<&[String]>,
) -> Engines {
    const HEADER: &str = "[engine.cryptodev]";
    let is_named = |name: &str| named.map(|engines| engines.iter().any(|named| named == name));
    let wants_cryptodev = is_named(CRYPTODEV) == Some(true);
    let mut sections = match root.table(walker, "engine") {
        Some(sections) => sections,
        None if wants_cryptodev => root.absent_section(walker, "engine", HEADER),
        None => return Engines::default(),
    };
    let [cryptodev, gpu, cores] = [CRYPTODEV, GPU, CORES].map(|name| {
        let section = sections.table(walker, name);
        if let (Some(section), Some(false)) = (&section, is_named(name)) {
            let problem =
                Problem::expected(format!("\"{name}\" in `engines` of [gateway]")).found("no such name");
            let help =
                format!("name all engines in their order, for example `engines = [\"{name}\", \"vaes\"]`");
            walker.report(&section.span().clone(), sections.path_of(name), problem.help(help));
        }
        section
    });
    if cryptodev.is_none() && wants_cryptodev {
        drop(sections.absent_section(walker, CRYPTODEV, HEADER));
    }
    let cryptodev = cryptodev.and_then(|section| read_cryptodev(section, walker));
    let gpu = gpu.map(|section| read_gpu(section, walker)).unwrap_or_default();
    let cores = cores.map(|section| read_cores(section, walker)).unwrap_or_default();
    sections.finish(walker);
    Engines { cryptodev, gpu, cores }
}

fn read_cores(mut section: Section<'_>, walker: &mut Walker<'_>) -> Cores {
    let words = IN_THREADS.map(|name| (name, name));
    let threads = section.or_default(walker, "threads", 1, value::number_u16(1, MAX_THREADS));
    let engines = section.list(walker, "engines", IN_THREADS.len(), value::choice(&words));
    let number = value::number_u16(0, MAX_PROCESSOR);
    let processors = section.list(walker, "processors", usize::from(MAX_PROCESSOR) + 1, number);
    section.finish(walker);
    let named = engines.unwrap_or_default().into_iter().map(|engine| engine.value.to_owned());
    let mut engines: Vec<String> = named.collect();
    if engines.is_empty() {
        engines = Cores::default().engines;
    }
    let processors = processors.unwrap_or_default().into_iter().map(|number| number.value).collect();
    Cores { threads, engines, processors }
}

fn read_gpu(mut section: Section<'_>, walker: &mut Walker<'_>) -> Gpu {
    let apis = [("opencl", GpuApi::OpenCl), ("cuda", GpuApi::Cuda)];
    let api = section.optional(walker, "api", value::choice(&apis));
    let device = section.optional(walker, "device", part_of_a_name);
    let devices = section.or_default(walker, "devices", Some(1), devices);
    let nvrtc = section.optional(walker, "nvrtc", library);
    let gpu_headers = section.or_default(walker, "gpu_headers", false, value::boolean);
    section.finish(walker);
    Gpu { api, device, devices, nvrtc, gpu_headers }
}

/// The path of a library: that of its file, since a name would be looked for where the linker looks anyway.
fn library(value: &DeValue<'_>) -> Parsed<PathBuf> {
    const WHAT: &str = "the absolute path of a library";
    let path = PathBuf::from(value::string(value, WHAT)?);
    if !path.is_absolute() || path.to_string_lossy().contains('\0') {
        return Err(Problem::expected(WHAT).help("for example \"/usr/local/cuda/lib64/libnvrtc.so.12\""));
    }
    Ok(path)
}

/// How many devices: a number, or all of them.
fn devices(value: &DeValue<'_>) -> Parsed<Option<u16>> {
    if value.as_str() == Some("all") {
        return Ok(None);
    }
    let number = value::number_u16(1, MAX_DEVICES)(value);
    number.map(Some).map_err(|problem| problem.help("or \"all\""))
}

/// A part of a name.
fn part_of_a_name(value: &DeValue<'_>) -> Parsed<String> {
    const WHAT: &str = "a part of a device's name";
    let text = value::string(value, WHAT)?;
    if text.trim().is_empty() || text.len() > 256 {
        return Err(Problem::expected(WHAT).help(
            "for example \"NVIDIA\"; `clinfo -l` lists devices of OpenCL's, `nvidia-smi -L` those of CUDA's",
        ));
    }
    Ok(text.to_owned())
}

fn read_cryptodev(mut section: Section<'_>, walker: &mut Walker<'_>) -> Option<Cryptodev> {
    let device = section.required(walker, "device", "\"crypto_aesni_mb\"", device);
    let queue_pairs = section.or_default(walker, "queue_pairs", 2, value::number_u16(1, MAX_QUEUE_PAIRS));
    let keys = section.or_default(walker, "keys", 4096, value::number_u32(16, 1 << 20));
    let eal = section.list(walker, "eal", MAX_ARGUMENTS, argument);
    section.finish(walker);
    let eal = eal.unwrap_or_default().into_iter().map(|argument| argument.value).collect();
    Some(Cryptodev { device: device?.value, queue_pairs, keys, eal })
}

/// A driver or device, with its arguments.
fn device(value: &DeValue<'_>) -> Parsed<String> {
    const WHAT: &str = "a device of DPDK's";
    let text = value::string(value, WHAT)?;
    if text.is_empty() || text.contains(char::is_whitespace) || text.len() > 256 {
        let help = "for example \"crypto_aesni_mb\", \"crypto_openssl\" or \"0000:3d:01.0\"";
        return Err(Problem::expected(WHAT).help(help));
    }
    Ok(text.to_owned())
}

fn argument(value: &DeValue<'_>) -> Parsed<String> {
    const WHAT: &str = "an argument of DPDK's, such as \"--no-huge\"";
    let text = value::string(value, WHAT)?;
    if text.contains('\0') || super::dpdk::ends_the_process(text) {
        return Err(Problem::expected(WHAT));
    }
    Ok(text.to_owned())
}
