//! DPDK's environment abstraction layer, which starts once in a process, and the memory it is told of.

use crate::error::OpenError;
use crate::plugin::Plugin;
use rustix::thread::CpuSet;
use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::CString;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use testudo_packet::{Pages, Region};

/// What the EAL is started with.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EalConfig {
    /// More arguments, as DPDK's documentation has them: `--no-huge`, `--file-prefix=x`, `-d`, `driver.so`.
    pub arguments: Vec<String>,
    /// PCI addresses of the devices that will be opened. DPDK then leaves all others alone; without any it
    /// does not look at the bus.
    pub pci: Vec<String>,
}

/// Bytes of a large page on x86-64.
const LARGE_PAGE_BYTES: u64 = 2 << 20;

/// The EAL of this process, started.
#[derive(Debug, Clone)]
pub struct Eal {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    plugin: Plugin,
    arguments: Vec<String>,
    /// Memory that DPDK knows, by its start: its length, and how many devices use it.
    memory: Mutex<HashMap<usize, (u64, usize)>>,
}

/// The one of this process.
static RUNNING: Mutex<Option<Eal>> = Mutex::new(None);

impl Eal {
    /// Starts it, or returns the one that was started with the same configuration.
    ///
    /// This takes about 150 ms, since DPDK loads all its drivers. It runs on a thread of its own, because
    /// DPDK pins the thread to a core.
    ///
    /// # Errors
    /// [`OpenError`]: DPDK refuses, or runs with another configuration.
    pub fn start(plugin: Plugin, config: &EalConfig) -> Result<Self, OpenError> {
        let mut running = RUNNING.lock().unwrap_or_else(PoisonError::into_inner);
        let arguments = arguments(config)?;
        if let Some(eal) = &*running {
            if eal.inner.arguments == arguments {
                return Ok(eal.clone());
            }
            return Err(OpenError::EalRuns { running: eal.inner.arguments.join(" ") });
        }
        let texts = arguments.iter().map(|text| c_text(text)).collect::<Result<Vec<_>, _>>()?;
        let start = move || plugin.eal_start(&texts);
        let thread = std::thread::Builder::new().name("dpdk-eal".into()).spawn(start);
        let thread = thread
            .map_err(|source| OpenError::System { action: "start a thread for DPDK".into(), source })?;
        let outcome = thread.join().unwrap_or(Err(crate::plugin::Errno(0)));
        outcome.map_err(|errno| OpenError::Eal {
            arguments: arguments[1..].join(" "),
            said: plugin.words(errno),
        })?;
        let eal = Self::over(plugin, arguments);
        *running = Some(eal.clone());
        Ok(eal)
    }

    /// One that was started already, or needs no start: a plugin that is played.
    pub(crate) fn over(plugin: Plugin, arguments: Vec<String>) -> Self {
        Self { inner: Arc::new(Inner { plugin, arguments, memory: Mutex::default() }) }
    }

    /// What it runs in.
    #[must_use]
    pub fn plugin(&self) -> Plugin {
        self.inner.plugin
    }

    /// What it was started with.
    #[must_use]
    pub fn arguments(&self) -> &[String] {
        &self.inner.arguments
    }

    /// Whether it has huge pages.
    #[must_use]
    pub fn has_huge_pages(&self) -> bool {
        !self.inner.arguments.iter().any(|argument| argument == "--no-huge")
    }

    /// Makes the memory of a region known to DPDK, once for all devices that use it.
    ///
    /// # Errors
    /// DPDK's: it knows the memory already, or has no room for more.
    pub fn register(&self, region: &Region) -> Result<Registered, crate::plugin::Errno> {
        let (start, bytes) = region.extent();
        let page = if region.pages() == Pages::Huge { LARGE_PAGE_BYTES } else { 4096 };
        // A mapping is of whole pages.
        let bytes = u64::try_from(bytes).unwrap_or(0).next_multiple_of(page);
        let mut memory = self.inner.memory.lock().unwrap_or_else(PoisonError::into_inner);
        match memory.get_mut(&start.addr()) {
            Some((_, users)) => *users += 1,
            None => {
                // SAFETY: the memory is there as long as one of its frames is in a buffer; a device holds
                // such buffers, and is unregistered before it gives them back.
                unsafe { self.inner.plugin.memory_register(start, bytes, page) }?;
                memory.insert(start.addr(), (bytes, 1));
            }
        }
        Ok(Registered { eal: self.clone(), start, bytes })
    }
}

/// Memory that DPDK knows, until this is dropped.
#[derive(Debug)]
pub struct Registered {
    eal: Eal,
    /// Where it starts.
    pub start: *mut u8,
    /// Its length, in whole pages.
    pub bytes: u64,
}

// SAFETY: the pointer is only told to DPDK, as a number.
unsafe impl Send for Registered {}

impl Drop for Registered {
    fn drop(&mut self) {
        let mut memory = self.eal.inner.memory.lock().unwrap_or_else(PoisonError::into_inner);
        let Some((bytes, users)) = memory.get_mut(&self.start.addr()) else { return };
        *users -= 1;
        if *users == 0 {
            self.eal.inner.plugin.memory_unregister(self.start, *bytes);
            memory.remove(&self.start.addr());
        }
    }
}

pub(crate) fn c_text(text: &str) -> Result<CString, OpenError> {
    CString::new(text).map_err(|_| OpenError::ZeroByte { text: text.to_owned() })
}

/// All arguments: what the configuration leaves open is chosen so that DPDK leaves as little behind as
/// possible, on this machine as in others.
fn arguments(config: &EalConfig) -> Result<Vec<String>, OpenError> {
    let cores = rustix::thread::sched_getaffinity(None).map_err(|source| OpenError::System {
        action: "see the cores of this process".into(),
        source: source.into(),
    })?;
    let cores: Vec<String> =
        (0..CpuSet::MAX_CPU).filter(|&core| cores.is_set(core)).map(|core| core.to_string()).collect();
    let free = std::fs::read_to_string("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages");
    let free = free.ok().and_then(|text| text.trim().parse().ok()).unwrap_or(0);
    Ok(all_arguments(config, &cores.join(","), free))
}

fn all_arguments(config: &EalConfig, cores: &str, free_huge_pages: u32) -> Vec<String> {
    let given = |names: &[&str]| {
        let names_it = |argument: &String| {
            names.iter().any(|name| {
                argument.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with('='))
            })
        };
        config.arguments.iter().any(names_it)
    };
    let mut all = vec!["testudo".to_owned()];
    if !given(&["-l", "-c", "--lcores"]) {
        // One logical core, on all of the process's: workers are threads of ours.
        all.push(format!("--lcores=0@({cores})"));
    }
    if !given(&["--telemetry", "--no-telemetry"]) {
        all.push("--no-telemetry".into());
    }
    let has_files = given(&["--in-memory", "--file-prefix", "--huge-dir", "--huge-unlink", "--no-shconf"]);
    if given(&["--no-huge"]) || (free_huge_pages == 0 && !has_files) {
        // Without huge pages DPDK would still keep its configuration in a file that others may lock.
        let no_huge = (!given(&["--no-huge"])).then(|| "--no-huge".to_owned());
        all.extend(no_huge);
        all.extend((!has_files).then(|| "--no-shconf".to_owned()));
    } else if !has_files {
        all.push("--in-memory".into());
    }
    if !given(&["--no-pci", "-a", "--allow", "-b", "--block"]) {
        match config.pci.as_slice() {
            [] => all.push("--no-pci".into()),
            devices => all.extend(devices.iter().flat_map(|device| ["-a".to_owned(), device.clone()])),
        }
    }
    all.extend(config.arguments.iter().cloned());
    all
}

thread_local! {
    static THREAD: RefCell<Option<Entered>> = const { RefCell::new(None) };
}

/// This thread is known to DPDK until it ends.
struct Entered(Plugin);

impl Drop for Entered {
    fn drop(&mut self) {
        self.0.thread_unregister();
    }
}

/// Makes the calling thread known to DPDK, if it is not: drivers keep things for each thread that receives or
/// sends.
#[inline]
///
/// # Errors
/// DPDK knows as many threads as it can.
pub fn enter_thread(plugin: Plugin) -> io::Result<()> {
    THREAD.with_borrow_mut(|entered| {
        if entered.is_none() {
            plugin.thread_register().map_err(|errno| io::Error::from_raw_os_error(errno.0))?;
            *entered = Some(Entered(plugin));
        }
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(arguments: &[&str], pci: &[&str], free: u32) -> String {
        let texts = |texts: &[&str]| texts.iter().map(ToString::to_string).collect();
        let config = EalConfig { arguments: texts(arguments), pci: texts(pci) };
        all_arguments(&config, "0,1", free)[1..].join(" ")
    }

    #[test]
    fn what_the_configuration_leaves_open_is_chosen() {
        let start = "--lcores=0@(0,1) --no-telemetry";
        assert_eq!(of(&[], &[], 0), format!("{start} --no-huge --no-shconf --no-pci"));
        assert_eq!(of(&[], &[], 8), format!("{start} --in-memory --no-pci"));
        let pci = of(&[], &["0000:03:00.0"], 8);
        assert_eq!(pci, format!("{start} --in-memory -a 0000:03:00.0"));
        assert_eq!(of(&["--no-huge"], &[], 8), format!("{start} --no-shconf --no-pci --no-huge"));
    }

    #[test]
    fn what_the_configuration_says_is_not_contradicted() {
        let given = of(&["-l", "1", "--file-prefix=x", "--block=0000:01:00.0"], &[], 0);
        assert_eq!(given, "--no-telemetry -l 1 --file-prefix=x --block=0000:01:00.0");
    }
}
