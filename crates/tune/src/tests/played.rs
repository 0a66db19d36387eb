//! A played host: `/sys` and `/proc` in a folder, a device in memory, and a process that can die.

use crate::believed::number;
use crate::error::TuneError;
use crate::ethtool::Device;
use crate::folder::Folder;
use crate::host::{Host, Reading, System};
use crate::journal::{Journal, NAMESPACE, Others, Scope, Store, Stores};
use crate::place::{Direction, Housekeeping, Place};
use crate::plan::{Options, plan};
use crate::report::{Outcome, Report};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

/// A device in memory, which outlives the processes that ask it.
#[derive(Debug, Clone, Default)]
pub struct Twin(Rc<RefCell<BTreeMap<String, Reading>>>);

impl Twin {
    pub fn has(&self, place: &Place, reading: Reading) {
        self.0.borrow_mut().insert(place.to_string(), reading);
    }

    fn values(&self) -> Vec<String> {
        self.0.borrow().iter().map(|(name, reading)| format!("{name} {reading:?}")).collect()
    }
}

impl Device for Twin {
    fn read(&self, place: &Place) -> Reading {
        let none = || Reading::Absent("the device has none".to_owned());
        self.0.borrow().get(&place.to_string()).cloned().unwrap_or_else(none)
    }

    fn write(&self, place: &Place, value: &str) -> io::Result<()> {
        match self.0.borrow_mut().get_mut(&place.to_string()) {
            Some(Reading::Value(old)) => value.clone_into(old),
            _ => return Err(io::ErrorKind::Unsupported.into()),
        }
        Ok(())
    }

    fn ring_limit(&self, _: Direction) -> Option<u64> {
        Some(512)
    }

    fn cookie(&self) -> Option<u64> {
        None
    }
}

/// The namespace of processes, unless told.
pub const HOME: &str = "net:[1]";

/// A machine with two interfaces.
pub struct Machine {
    home: tempfile::TempDir,
    devices: [(&'static str, Twin); 2],
    /// Places whose writes the kernel refuses, and what it makes of others.
    pub refused: RefCell<Vec<Place>>,
    pub clamped: RefCell<BTreeMap<String, String>>,
    /// Whether the device resets its queues when its rings change.
    pub resets_queues: Cell<bool>,
    /// Whether eth0 has another MTU then.
    pub resets_mtu: Cell<bool>,
    /// Writes that reached the kernel.
    pub writes: Cell<usize>,
    /// How often a process has looked at something other than a setting: a file, or a folder's names.
    pub looks: Cell<usize>,
    /// The number of the processes' network namespace that no other one gets.
    pub cookie: Cell<Option<u64>>,
}

const FILES: [(&str, &str); 19] = [
    ("proc/sys/kernel/random/boot_id", "boot-1"),
    ("proc/sys/net/core/rmem_max", "212992"),
    ("proc/sys/net/core/wmem_max", "8388608"),
    ("proc/sys/net/core/netdev_max_backlog", "1000"),
    ("proc/sys/net/ipv4/tcp_rmem", "4096\t131072\t1048576"),
    ("proc/sys/net/ipv4/tcp_wmem", "4096\t16384\t4194304"),
    ("proc/sys/net/ipv4/tcp_sack", "0"),
    ("proc/sys/net/ipv4/tcp_timestamps", "1"),
    ("proc/sys/net/ipv4/tcp_window_scaling", "1"),
    ("proc/irq/default_smp_affinity", "f"),
    ("proc/irq/40/smp_affinity_list", "0-3"),
    ("proc/irq/41/smp_affinity_list", "0-3"),
    ("sys/devices/virtual/workqueue/cpumask", "0000000f"),
    ("sys/devices/system/cpu/online", "0-3"),
    ("sys/devices/system/cpu/isolated", ""),
    ("sys/devices/system/cpu/cpufreq/policy0/scaling_governor", "schedutil"),
    ("sys/devices/system/cpu/cpufreq/policy0/scaling_available_governors", "performance schedutil"),
    ("sys/devices/system/cpu/cpufreq/policy1/scaling_governor", "powersave"),
    ("sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages", "0"),
];

const OF_AN_INTERFACE: [(&str, &str); 6] = [
    ("mtu", "1500"),
    ("gro_flush_timeout", "0"),
    ("napi_defer_hard_irqs", "0"),
    ("queues/rx-0/rps_cpus", "0"),
    ("queues/tx-0/xps_cpus", "0"),
    ("queues/tx-1/xps_cpus", "f"),
];

impl Machine {
    pub fn new() -> Self {
        // In memory where possible: each step of a journal waits for the disk.
        let home = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
        let devices = [("eth0", Twin::default()), ("eth1", Twin::default())];
        let machine = Self {
            home,
            devices,
            refused: RefCell::default(),
            clamped: RefCell::default(),
            resets_queues: Cell::new(false),
            resets_mtu: Cell::new(false),
            writes: Cell::new(0),
            looks: Cell::new(0),
            cookie: Cell::new(None),
        };
        FILES.iter().for_each(|(file, text)| machine.put(file, text));
        for (index, (name, twin)) in machine.devices.iter().enumerate() {
            OF_AN_INTERFACE
                .iter()
                .for_each(|(file, text)| machine.put(&format!("sys/class/net/{name}/{file}"), text));
            machine.put(&format!("sys/class/net/{name}/ifindex"), &(index + 2).to_string());
            let value = |text: &str| Reading::Value(text.to_owned());
            twin.has(&Place::feature("rx-gro"), value("off"));
            twin.has(&Place::feature("tx-tcp-segmentation"), value("off [requested on]"));
            twin.has(&Place::feature("rx-lro"), value("on"));
            twin.has(&Place::feature("rx-checksum"), Reading::Fixed("on".to_owned()));
            twin.has(&Place::feature("tx-scatter-gather"), Reading::Fixed("off".to_owned()));
            twin.has(&Place::Ring { direction: Direction::Rx }, value("256"));
            twin.has(&Place::Coalescing { item: crate::place::Coalescing::RxUsecs }, value("3"));
        }
        fs::create_dir_all(machine.root().join("sys/class/net/eth0/device/msi_irqs")).unwrap();
        machine.put("sys/class/net/eth0/device/msi_irqs/40", "msix");
        machine.put("sys/class/net/eth0/device/msi_irqs/41", "msix");
        machine
    }

    pub fn root(&self) -> PathBuf {
        self.home.path().join("root")
    }

    pub fn state(&self) -> PathBuf {
        self.home.path().join("state")
    }

    /// The machine's folder.
    pub fn machines(&self) -> PathBuf {
        self.home.path().join("machine")
    }

    pub fn put(&self, file: &str, text: &str) {
        let path = self.root().join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, format!("{text}\n")).unwrap();
    }

    pub fn value(&self, file: &str) -> String {
        fs::read_to_string(self.root().join(file)).unwrap().split_whitespace().collect::<Vec<_>>().join(" ")
    }

    pub fn rename(&self, from: &str, to: &str) {
        let folder = self.root().join("sys/class/net");
        fs::rename(folder.join(from), folder.join(to)).unwrap();
    }

    /// Makes both interfaces those of one function of a bus, which has the interrupts.
    pub fn join(&self) {
        let (net, function) = (self.root().join("sys/class/net"), self.root().join("sys/devices/function"));
        fs::create_dir_all(function.parent().unwrap()).unwrap();
        fs::rename(net.join("eth0/device"), &function).unwrap();
        for name in ["eth0", "eth1"] {
            symlink("../../../devices/function", net.join(name).join("device")).unwrap();
        }
    }

    /// The device of `eth0` may be called `wan0` or `lan0`. Interfaces on top of it have none.
    pub fn device(&self, interface: &str) -> Twin {
        let is_renamed = matches!(interface, "wan0" | "lan0");
        let of = self.devices.iter().find(|(name, _)| *name == interface || is_renamed);
        of.map_or_else(Twin::default, |(_, twin)| twin.clone())
    }

    pub fn system(&self, interface: &str) -> System<Twin> {
        System::new(self.root(), interface, self.device(interface)).unwrap()
    }

    /// All values that there are.
    pub fn everything(&self) -> Vec<String> {
        let mut all: Vec<String> = self.devices.iter().flat_map(|(_, twin)| twin.values()).collect();
        let mut folders = vec![self.root()];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder).unwrap() {
                let entry = entry.unwrap();
                let path = entry.path();
                // Interfaces are linked in circles, and what a link leads to has a path of its own.
                if entry.file_type().unwrap().is_symlink() {
                    continue;
                }
                if path.is_dir() {
                    folders.push(path);
                } else {
                    let text = fs::read_to_string(&path).unwrap();
                    let words: Vec<&str> = text.split_whitespace().collect();
                    all.push(format!("{} {words:?}", path.display()));
                }
            }
        }
        all.sort();
        all
    }

    /// The interfaces' own, and of these those with anything of the machine.
    pub fn journals(&self) -> Vec<String> {
        let names =
            [self.state(), self.machines()].map(fs::read_dir).into_iter().flatten().flatten().flatten();
        let names = names.filter_map(|e| e.file_name().into_string().ok());
        let mut names: Vec<String> = names.filter(|n| n.ends_with(".json")).collect();
        names.sort();
        names
    }

    /// Runs a process on an interface, which dies after so many steps.
    pub fn process<T>(
        &self,
        interface: &str,
        life: Life,
        work: impl FnOnce(&dyn Host, Stores<'_>) -> Result<T, TuneError>,
    ) -> Result<T, TuneError> {
        self.process_in((HOME, &self.state()), interface, life, work)
    }

    /// The same in a namespace, with the folder of that.
    pub fn process_in<T>(
        &self,
        (namespace, state): (&'static str, &Path),
        interface: &str,
        life: Life,
        work: impl FnOnce(&dyn Host, Stores<'_>) -> Result<T, TuneError>,
    ) -> Result<T, TuneError> {
        let system = System::without_interface(self.root(), interface, self.device(interface))?;
        let folder = Mortal { folder: Folder::open(state)?, life: life.clone() };
        let machines = Folder::of_the_machine(&self.machines(), number(namespace), Duration::ZERO)?;
        let machines = Mortal { folder: machines, life: life.clone() };
        let process =
            Process { machine: self, namespace, system, folder: &folder, machines: &machines, life };
        work(&process, Stores { namespace: &folder, machine: Some(&machines) })
    }

    pub fn apply(&self, interface: &str, options: &Options) -> Report {
        self.process(interface, Life::long(), |host, stores| {
            crate::apply::apply(host, stores, &plan(host, options))
        })
        .unwrap()
    }

    pub fn undo(&self, interface: &str) -> Report {
        self.process(interface, Life::long(), |host, stores| crate::undo::undo(host, stores)).unwrap()
    }
}

/// When a process dies: before its step of this number, or right after it.
#[derive(Debug, Clone)]
pub struct Life {
    steps: Rc<Cell<usize>>,
    dies_at: usize,
    /// Whether the last step is still done, and only its result never seen.
    does_last: bool,
}

impl Life {
    pub fn long() -> Self {
        Self::until(usize::MAX, false)
    }

    pub fn until(dies_at: usize, does_last: bool) -> Self {
        Self { steps: Rc::default(), dies_at, does_last }
    }

    /// The steps until now: each is a write, or a change of a journal.
    pub fn steps(&self) -> usize {
        self.steps.get()
    }

    /// Whether it died, rather than came to its end.
    pub fn is_over(&self) -> bool {
        self.steps.get() > self.dies_at
    }

    fn step<T>(&self, work: impl Fn() -> io::Result<T>) -> io::Result<T> {
        let step = self.steps.get();
        self.steps.set(step + 1);
        if step == self.dies_at && self.does_last {
            let _ = work();
        }
        if step >= self.dies_at { Err(io::Error::other("dead")) } else { work() }
    }
}

/// A process at work. After its end nothing that it does has an effect.
struct Process<'a> {
    machine: &'a Machine,
    namespace: &'static str,
    system: System<Twin>,
    folder: &'a Mortal,
    machines: &'a Mortal,
    life: Life,
}

/// A folder of a process.
struct Mortal {
    folder: Folder,
    life: Life,
}

impl Host for Process<'_> {
    fn interface(&self) -> &str {
        self.system.interface()
    }

    fn cookie(&self) -> Option<u64> {
        self.machine.cookie.get()
    }

    fn has_ended(&self) -> bool {
        false
    }

    fn read(&self, place: &Place) -> Reading {
        self.system.read(place)
    }

    /// Nothing may change that is not in the journal on disk.
    fn write(&self, place: &Place, value: &str) -> io::Result<()> {
        self.life.step(|| {
            let folder = if place.is_machines() { self.machines } else { self.folder };
            let journal = folder.folder.load(self.interface()).unwrap();
            assert!(
                journal.is_some_and(|journal| journal.entry(place).is_some()),
                "{place} is not journalled"
            );
            self.machine.writes.set(self.machine.writes.get() + 1);
            if self.machine.refused.borrow().contains(place)
                || self.is_above_the_lower_one(place, value)
                || self.is_no_mtu_of_ipv6(place, value)
                || self.is_the_governors(place, value)
            {
                return Err(io::ErrorKind::InvalidInput.into());
            }
            if self.machine.resets_queues.get() && matches!(place, Place::Ring { .. }) {
                self.machine.put("sys/class/net/eth0/queues/tx-1/xps_cpus", "5");
            }
            if self.machine.resets_mtu.get() && matches!(place, Place::Ring { .. }) {
                self.machine.put("sys/class/net/eth0/mtu", "1400");
                self.machine.has_mtu("eth0", "1400");
            }
            let written = as_the_kernel_writes(place, value);
            let value = written.as_str();
            let before = self.system.read(place);
            let clamped = self.machine.clamped.borrow().get(&place.to_string()).cloned();
            match clamped {
                Some(made) if value != "0" => self.system.write(place, &made),
                _ => self.system.write(place, value),
            }?;
            if let Reading::Value(before) = before {
                self.machine.follows(self.interface(), place, &before, value);
            }
            Ok(())
        })
    }

    fn ring_limit(&self, direction: Direction) -> Option<u64> {
        self.system.ring_limit(direction)
    }

    fn text(&self, file: &str) -> Option<String> {
        self.machine.looks.set(self.machine.looks.get() + 1);
        self.system.text(file)
    }

    fn names(&self, folder: &str) -> Vec<String> {
        self.machine.looks.set(self.machine.looks.get() + 1);
        self.system.names(folder)
    }

    fn link(&self, file: &str) -> Option<String> {
        if file == NAMESPACE { Some(self.namespace.to_owned()) } else { self.system.link(file) }
    }
}

/// Masks have zeros in front.
fn as_the_kernel_writes(place: &Place, value: &str) -> String {
    match place {
        Place::Housekeeping { of: Housekeeping::Workqueues } => format!("{value:0>8}"),
        _ => value.to_owned(),
    }
}

impl Process<'_> {
    /// Linux takes no other preference while the governor is `performance` (intel_pstate: EBUSY).
    fn is_the_governors(&self, place: &Place, value: &str) -> bool {
        let Place::EnergyPreference { policy } = place else { return false };
        let governor =
            self.machine.value(&format!("sys/devices/system/cpu/cpufreq/{policy}/scaling_governor"));
        governor == "performance" && value != "performance"
    }

    /// Linux has that of IPv6 between 1280 and the interface's (`addrconf_sysctl_mtu`).
    fn is_no_mtu_of_ipv6(&self, place: &Place, value: &str) -> bool {
        let Place::Ipv6MtuOf { interface, .. } = place else { return false };
        let most: u64 = self.machine.value(&format!("sys/class/net/{interface}/mtu")).parse().unwrap();
        let value: u64 = value.parse().unwrap();
        !(1280..=most).contains(&value)
    }

    /// Linux gives no VLAN a larger MTU than the interface below has (`vlan_dev_change_mtu`).
    fn is_above_the_lower_one(&self, place: &Place, value: &str) -> bool {
        let name = match place {
            Place::MtuOf { interface, .. } => interface.as_str(),
            place if *place == Place::interface("mtu") => self.interface(),
            _ => return false,
        };
        let number = |text: &str| text.parse::<u64>().unwrap();
        let link = format!("upper_{name}");
        let has_it_on_top =
            |below: &String| self.system.names(&format!("sys/class/net/{below}")).contains(&link);
        let mut below = self.system.names("sys/class/net").into_iter().filter(has_it_on_top);
        below.any(|below| number(&self.machine.value(&format!("sys/class/net/{below}/mtu"))) < number(value))
    }
}

impl Store for Mortal {
    fn scope(&self) -> Scope {
        self.folder.scope()
    }

    fn load(&self, interface: &str) -> Result<Option<Journal>, TuneError> {
        self.folder.load(interface)
    }

    fn others(&self, interface: &str, boot: &str) -> Result<Others, TuneError> {
        self.folder.others(interface, boot)
    }

    fn save(&self, journal: &Journal) -> Result<(), TuneError> {
        let work = || self.folder.save(journal).map_err(io::Error::other);
        self.life.step(work).map_err(TuneError::file("write", Path::new("journal")))
    }

    fn remove(&self, interface: &str) -> Result<(), TuneError> {
        let work = || self.folder.remove(interface).map_err(io::Error::other);
        self.life.step(work).map_err(TuneError::file("remove", Path::new("journal")))
    }
}

/// The names of the rows with an outcome.
pub fn rows(report: &Report, outcome: Outcome) -> Vec<&str> {
    report.rows.iter().filter(|row| row.outcome == outcome).map(|row| row.name.as_str()).collect()
}
