//! Which processors workers run on: on cores of their own as far as there are any, and near their NICs.
//!
//! Two *siblings* are one core with two sets of registers: workers there share its caches and its units for
//! cryptography. Memory of another *NUMA node* is farther away, that of the NIC's rings, too.

use crate::config::Configuration;
use rustix::thread::{CpuSet, sched_getaffinity};
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// What the kernel says of processors and of interfaces, in files.
#[derive(Debug, Clone)]
pub struct Processors {
    system: PathBuf,
    allowed: Vec<usize>,
}

impl Processors {
    /// Those that this process may use.
    #[must_use]
    pub fn of_this_process() -> Self {
        let allowed = sched_getaffinity(None).map_or_else(|_| Vec::new(), |set| numbers(&set));
        Self::described(Path::new("/sys"), allowed)
    }

    /// These, as a folder like `/sys` describes them.
    #[must_use]
    pub fn described(system: &Path, allowed: Vec<usize>) -> Self {
        Self { system: system.to_owned(), allowed }
    }

    /// How many this process may use, at least one.
    #[must_use]
    pub fn count(&self) -> usize {
        self.allowed.len().max(1)
    }

    /// How many there may be in this machine, as the kernel counts them; at least as many as this process may
    /// use.
    #[must_use]
    pub fn of_machine(&self) -> usize {
        self.list("devices/system/cpu/possible").len().max(self.count())
    }

    /// The processors of so many workers: one of each core first, then their siblings. Fewer where there are
    /// fewer.
    #[must_use]
    pub fn of_workers(&self, workers: usize) -> Vec<usize> {
        let mut seen = BTreeSet::new();
        let is_first = |processor: &usize| seen.insert(self.core(*processor));
        let (first, siblings): (Vec<_>, Vec<_>) = self.allowed.iter().copied().partition(is_first);
        first.into_iter().chain(siblings).take(workers).collect()
    }

    /// What is unfavourable of so many workers with ports at these interfaces.
    #[must_use]
    pub fn warnings(&self, workers: usize, interfaces: &[&str]) -> Vec<String> {
        if workers < 2 {
            return Vec::new();
        }
        let used = self.of_workers(workers);
        let mut warnings = Vec::new();
        if used.len() < workers {
            warnings.push(format!(
                "{workers} workers share {} processors: they take turns, and packets wait for the next turn",
                self.count()
            ));
        }
        let cores: BTreeSet<_> = used.iter().map(|processor| self.core(*processor)).collect();
        if cores.len() < used.len() {
            warnings.push(format!(
                "{} workers are on {} cores: two siblings of a core do less than two cores",
                used.len(),
                cores.len()
            ));
        }
        for interface in interfaces {
            let Some(node) = self.node_of_interface(interface) else { continue };
            let here: Vec<_> = self.of_node(node);
            let far = used.iter().filter(|processor| !here.is_empty() && !here.contains(processor));
            let far: Vec<_> = far.map(usize::to_string).collect();
            if !far.is_empty() {
                warnings.push(format!(
                    "{interface} is at NUMA node {node}, processors {} of workers are not: start the gateway on that node, with \
                     `numactl --cpunodebind={node}` or CPUAffinity in its unit",
                    far.join(", ")
                ));
            }
        }
        warnings
    }

    /// The lowest processor of a core stands for it.
    fn core(&self, processor: usize) -> usize {
        let file = format!("devices/system/cpu/cpu{processor}/topology/thread_siblings_list");
        self.list(&file).first().copied().unwrap_or(processor)
    }

    /// The NUMA node of an interface; `None` where it has none.
    fn node_of_interface(&self, interface: &str) -> Option<usize> {
        let text = self.read(&format!("class/net/{interface}/device/numa_node"))?;
        // -1 on machines with one node.
        text.trim().parse().ok()
    }

    fn of_node(&self, node: usize) -> Vec<usize> {
        self.list(&format!("devices/system/node/node{node}/cpulist"))
    }

    fn list(&self, file: &str) -> Vec<usize> {
        self.read(file).map_or_else(Vec::new, |text| parse_list(&text))
    }

    fn read(&self, file: &str) -> Option<String> {
        fs::read_to_string(self.system.join(file)).ok()
    }
}

/// What is unfavourable of a configuration's workers on this machine.
#[must_use]
pub fn warnings(configuration: &Configuration) -> Vec<String> {
    let here = Processors::of_this_process();
    let interfaces: Vec<_> = configuration.unprotected.interface.as_deref().into_iter().collect();
    here.warnings(configuration.gateway.workers.count(here.count()), &interfaces)
}

fn numbers(set: &CpuSet) -> Vec<usize> {
    (0..CpuSet::MAX_CPU).filter(|number| set.is_set(*number)).collect()
}

/// A list as the kernel writes it: `0-2,8`. What is none has no members.
fn parse_list(text: &str) -> Vec<usize> {
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = (first.parse().ok()?, last.parse().ok()?);
        (last < CpuSet::MAX_CPU).then_some(first..=last)
    };
    text.trim().split(',').filter_map(range).flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two nodes of two cores with two threads each: 0 and 4 are one core, 1 and 5, and so on; eth0 is at the
    /// second node.
    fn machine(folder: &Path, allowed: impl IntoIterator<Item = usize>) -> Processors {
        let write = |file: String, text: &str| {
            let file = folder.join(file);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, text).unwrap();
        };
        for processor in 0..8 {
            let file = format!("devices/system/cpu/cpu{processor}/topology/thread_siblings_list");
            write(file, &format!("{},{}\n", processor % 4, processor % 4 + 4));
        }
        write("devices/system/node/node0/cpulist".to_owned(), "0-1,4-5\n");
        write("devices/system/node/node1/cpulist".to_owned(), "2-3,6-7\n");
        write("class/net/eth0/device/numa_node".to_owned(), "1\n");
        write("class/net/eth1/device/numa_node".to_owned(), "-1\n");
        Processors::described(folder, allowed.into_iter().collect())
    }

    #[test]
    fn workers_have_cores_of_their_own_before_siblings() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(machine(folder.path(), 0..8).of_workers(6), [0, 1, 2, 3, 4, 5]);
        assert_eq!(machine(folder.path(), [0, 4, 1, 5]).of_workers(4), [0, 1, 4, 5]);
        assert_eq!(machine(folder.path(), [4, 5]).of_workers(1), [4]);
        // Nothing is known of these.
        let unknown = Processors::described(Path::new("/nowhere"), vec![3, 9]);
        assert_eq!((unknown.of_workers(5), unknown.count()), (vec![3, 9], 2));
    }

    #[test]
    fn siblings_too_few_processors_and_a_crossed_node_are_warned_of() {
        let folder = tempfile::tempdir().unwrap();
        let machine = |allowed: &[usize]| machine(folder.path(), allowed.iter().copied());
        let said = |allowed: &[usize], workers| machine(allowed).warnings(workers, &["eth0", "eth1", "tun0"]);
        assert_eq!(said(&[2, 3], 2), [""; 0]);
        assert_eq!(said(&[0, 4], 1), [""; 0], "one worker is where the kernel puts it");
        let siblings = said(&[2, 6], 2);
        assert!(siblings.len() == 1 && siblings[0].starts_with("2 workers are on 1 cores"), "{siblings:?}");
        let few = said(&[2], 2);
        assert!(few.len() == 1 && few[0].starts_with("2 workers share 1 processors"), "{few:?}");
        let far = said(&[0, 2], 2);
        let of_eth0 = "eth0 is at NUMA node 1, processors 0 of workers are not";
        assert!(far.len() == 1 && far[0].starts_with(of_eth0), "{far:?}");
    }

    #[test]
    fn lists_of_the_kernel_are_read_and_others_are_empty() {
        assert_eq!(parse_list("0-2,8\n"), [0, 1, 2, 8]);
        assert_eq!(parse_list("5"), [5]);
        for wrong in ["", "\n", "a-b", "3-1", "0-99999999999", "1-"] {
            assert_eq!(parse_list(wrong), [0; 0], "{wrong:?}");
        }
    }
}
