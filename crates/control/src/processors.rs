//! Which processors workers run on: on cores of their own as far as there are any, and near their NICs.
//!
//! Two *siblings* are one core with two sets of registers: workers there share its caches and its units for
//! cryptography. Memory of another *NUMA node* is farther away, that of the NIC's rings, too.
//!
//! The kernel puts a page on the node of the processor that writes it first. So workers that are on the node
//! of their NIC have their packets there: see [`near`].

use crate::config::Configuration;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::{fs, io, thread};
use testudo_gateway::Role;

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

    /// The processors of so many workers with ports at these interfaces: one of each core on the interfaces'
    /// NUMA nodes first, then their siblings, then those of other nodes in the same order. Fewer where there
    /// are fewer.
    #[must_use]
    pub fn of_workers(&self, workers: usize, interfaces: &[&str]) -> Vec<usize> {
        let (near, mut seen) = (self.near(interfaces), BTreeSet::new());
        let place =
            |processor: &usize| (!near.contains(processor), !seen.insert(self.core(*processor)), *processor);
        let mut all: Vec<_> = self.allowed.iter().map(place).collect();
        all.sort_by_key(|(is_far, is_sibling, _)| (*is_far, *is_sibling));
        all.into_iter().map(|(.., processor)| processor).take(workers).collect()
    }

    /// The processors that each of so many workers is bound to: several have one each, one alone has those of
    /// its interfaces' nodes. None for a worker that is where the kernel puts it.
    #[must_use]
    pub fn places(&self, workers: usize, interfaces: &[&str]) -> Vec<Vec<usize>> {
        if workers < 2 {
            let near = self.near(interfaces);
            let near = if near.len() < self.allowed.len() { near } else { Vec::new() };
            return vec![near; workers];
        }
        let each = self.of_workers(workers, interfaces).into_iter().map(|processor| vec![processor]);
        each.chain(std::iter::repeat(Vec::new())).take(workers).collect()
    }

    /// In words: where several workers are, and one that stays on the node of its interfaces.
    #[must_use]
    pub fn note(&self, workers: usize, interfaces: &[&str]) -> Option<String> {
        let used: Vec<usize> = self.places(workers, interfaces).into_iter().flatten().collect();
        if used.is_empty() {
            return None;
        }
        let listed = used.iter().map(usize::to_string).collect::<Vec<_>>().join(", ");
        let of_node = |node: usize| format!(", on NUMA node {node}");
        let node = self.node_of(&used).map_or_else(String::new, of_node);
        let is_there = |interface: &&&str| {
            self.node_of_interface(interface).is_some_and(|node| self.node_of(&used) == Some(node))
        };
        let there: Vec<&str> = interfaces.iter().filter(is_there).copied().collect();
        let with = if there.is_empty() { String::new() } else { format!(" as {}", there.join(" and ")) };
        Some(format!("workers: {workers}, processors: {listed}{node}{with}"))
    }

    /// What is unfavourable of so many workers with ports at these interfaces.
    #[must_use]
    pub fn warnings(&self, workers: usize, interfaces: &[&str]) -> Vec<String> {
        if workers < 2 {
            return Vec::new();
        }
        let used = self.of_workers(workers, interfaces);
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
        warnings
            .extend(interfaces.iter().filter_map(|interface| self.far_from(interface, &used, interfaces)));
        warnings
    }

    /// Which of these processors are on another node than an interface, and what to do about it.
    fn far_from(&self, interface: &str, used: &[usize], interfaces: &[&str]) -> Option<String> {
        let node = self.node_of_interface(interface)?;
        let here = self.of_node(node);
        let far = used.iter().filter(|processor| !here.is_empty() && !here.contains(processor));
        let far: Vec<_> = far.map(usize::to_string).collect();
        if far.is_empty() {
            return None;
        }
        let nodes: BTreeSet<_> = interfaces.iter().filter_map(|name| self.node_of_interface(name)).collect();
        let remedy = if nodes.len() > 1 {
            "the interfaces of its ports are at several nodes".to_owned()
        } else if here.iter().all(|processor| self.allowed.contains(processor)) {
            format!("the node has {} processors, for as many workers", here.len())
        } else {
            format!(
                "start the gateway on that node, with `numactl --cpunodebind={node}` or CPUAffinity in its unit"
            )
        };
        let far = far.join(", ");
        Some(format!("{interface} is at NUMA node {node}, processors {far} of workers are not: {remedy}"))
    }

    /// The NUMA node that all of these processors are of.
    #[must_use]
    pub fn node_of(&self, processors: &[usize]) -> Option<usize> {
        let has_all = |node: &usize| {
            let here = self.of_node(*node);
            processors.iter().all(|processor| here.contains(processor))
        };
        self.list("devices/system/node/online").into_iter().find(has_all).filter(|_| !processors.is_empty())
    }

    /// Those of all processors that are on the nodes of these interfaces.
    fn near(&self, interfaces: &[&str]) -> Vec<usize> {
        let nodes = interfaces.iter().filter_map(|interface| self.node_of_interface(interface));
        let near: BTreeSet<_> = nodes.flat_map(|node| self.of_node(node)).collect();
        self.allowed.iter().copied().filter(|processor| near.contains(processor)).collect()
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

/// The interfaces of the host that a configuration's ports are at, as far as it names them.
fn interfaces(configuration: &Configuration) -> Vec<&str> {
    let (protected, unprotected) = (&configuration.protected, &configuration.unprotected);
    let of_protected = protected.kind.xdp().map(|_| protected.name.as_str());
    unprotected.interface.as_deref().into_iter().chain(of_protected).collect()
}

/// The processors that each of so many workers of a configuration is bound to on this machine, as
/// [`Processors::places`] has them.
#[must_use]
pub fn places(configuration: &Configuration, workers: usize) -> Vec<Vec<usize>> {
    Processors::of_this_process().places(workers, &interfaces(configuration))
}

/// Where a configuration's workers are on this machine, in words.
#[must_use]
pub fn note(configuration: &Configuration) -> Option<String> {
    let (here, gateway) = (Processors::of_this_process(), &configuration.gateway);
    let workers = gateway.workers.most(gateway.workers_max, here.count());
    here.note(workers, &interfaces(configuration))
}

/// Binds this thread to these processors.
///
/// # Errors
/// The system does not allow it.
pub fn bind(processors: &[usize]) -> io::Result<()> {
    let mut only = CpuSet::new();
    processors.iter().filter(|number| **number < CpuSet::MAX_CPU).for_each(|number| only.set(*number));
    Ok(sched_setaffinity(None, &only)?)
}

/// What `make` makes on a thread that is bound to these processors, if there are any: memory that it touches
/// first is near them. Where the system does not allow that, it is wherever this thread is.
///
/// # Errors
/// The system has no thread left.
pub fn near<T: Send>(processors: &[usize], make: impl FnOnce() -> T + Send) -> io::Result<T> {
    if processors.is_empty() {
        return Ok(make());
    }
    let bound = || {
        // A worker that cannot be bound says so itself.
        let _ = bind(processors);
        make()
    };
    thread::scope(|scope| {
        let made = thread::Builder::new().spawn_scoped(scope, bound)?.join();
        Ok(made.unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    })
}

/// What is unfavourable of a configuration's workers on this machine.
#[must_use]
pub fn warnings(configuration: &Configuration) -> Vec<String> {
    let here = Processors::of_this_process();
    let roles = configuration.gateway.workers.roles(here.count());
    let mut warnings = here.warnings(roles.len(), &interfaces(configuration));
    warnings.extend(without_own_sas(configuration, &roles));
    warnings
}

/// Tunnels of which some of these workers have SAs of their own (RFC 9611) and others do not: with `workers =
/// "all"` a machine may have more than the author of the file thought of.
fn without_own_sas(configuration: &Configuration, roles: &[Role]) -> Vec<String> {
    let encrypting = roles.iter().enumerate().filter(|(_, role)| role.encrypts());
    let senders: Vec<usize> = encrypting.map(|(worker, _)| worker).collect();
    let own = configuration.tunnels.iter().map(|tunnel| {
        let own = tunnel.own_outbound().filter_map(|(worker, _)| usize::try_from(worker).ok());
        (&*tunnel.name, own.collect())
    });
    lacking_own_sas(own, &senders)
}

/// The same of tunnels with the workers that have SAs of their own there, where these workers send.
pub(crate) fn lacking_own_sas<'t>(
    tunnels: impl Iterator<Item = (&'t str, BTreeSet<usize>)>,
    senders: &[usize],
) -> Vec<String> {
    let mut lacking: BTreeMap<Vec<usize>, Vec<&str>> = BTreeMap::new();
    for (name, own) in tunnels {
        let without: Vec<_> = senders.iter().copied().filter(|worker| !own.contains(worker)).collect();
        if !own.is_empty() && !without.is_empty() {
            lacking.entry(without).or_default().push(name);
        }
    }
    let in_words = |(workers, tunnels): (Vec<usize>, Vec<&str>)| {
        let numbers = workers.iter().map(usize::to_string).collect::<Vec<_>>().join(", ");
        let (first, others) = (tunnels.first().copied().unwrap_or_default(), tunnels.len().saturating_sub(1));
        let others = if others == 0 { String::new() } else { format!(" (and {others} more)") };
        let (whose, verb) = if workers.len() == 1 { ("worker", "has") } else { ("workers", "have") };
        format!(
            "tunnel {first}{others}: {whose} {numbers} {verb} no SA in `worker_sas` and will send through `outbound`, whose \
             numbers workers share: add one for each, or set `workers` in [gateway]"
        )
    };
    lacking.into_iter().map(in_words).collect()
}

fn numbers(set: &CpuSet) -> Vec<usize> {
    (0..CpuSet::MAX_CPU).filter(|number| set.is_set(*number)).collect()
}

/// A list as the kernel writes it: `0-2,8`. What is none has no members.
pub(crate) fn parse_list(text: &str) -> Vec<usize> {
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
    use crate::config::tests::MINIMAL;

    /// Two nodes of two cores with two threads each: 0 and 4 are one core, 1 and 5, and so on; eth0 is at the
    /// second node, eth2 at the first, and eth1 at none.
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
        write("devices/system/node/online".to_owned(), "0-1\n");
        write("devices/system/node/node0/cpulist".to_owned(), "0-1,4-5\n");
        write("devices/system/node/node1/cpulist".to_owned(), "2-3,6-7\n");
        write("class/net/eth0/device/numa_node".to_owned(), "1\n");
        write("class/net/eth1/device/numa_node".to_owned(), "-1\n");
        write("class/net/eth2/device/numa_node".to_owned(), "0\n");
        Processors::described(folder, allowed.into_iter().collect())
    }

    #[test]
    fn workers_have_cores_of_their_own_before_siblings() {
        let folder = tempfile::tempdir().unwrap();
        let unknown_node = ["eth1", "tun0"];
        assert_eq!(machine(folder.path(), 0..8).of_workers(6, &unknown_node), [0, 1, 2, 3, 4, 5]);
        assert_eq!(machine(folder.path(), [0, 4, 1, 5]).of_workers(4, &[]), [0, 1, 4, 5]);
        assert_eq!(machine(folder.path(), [4, 5]).of_workers(1, &[]), [4]);
        // Nothing is known of these.
        let unknown = Processors::described(Path::new("/nowhere"), vec![3, 9]);
        assert_eq!((unknown.of_workers(5, &["eth0"]), unknown.count()), (vec![3, 9], 2));
    }

    #[test]
    fn workers_are_on_the_node_of_their_interfaces_before_others() {
        let folder = tempfile::tempdir().unwrap();
        let all = machine(folder.path(), 0..8);
        assert_eq!(all.of_workers(8, &["eth0"]), [2, 3, 6, 7, 0, 1, 4, 5]);
        assert_eq!(all.of_workers(3, &["eth2", "eth1"]), [0, 1, 4]);
        assert_eq!(all.of_workers(8, &["eth0", "eth2"]), [0, 1, 2, 3, 4, 5, 6, 7], "both nodes are near");
        let some = machine(folder.path(), [0, 1, 7]);
        assert_eq!(some.of_workers(3, &["eth0"]), [7, 0, 1]);
        assert_eq!(machine(folder.path(), [0, 1]).of_workers(2, &["eth0"]), [0, 1], "there is none near");
    }

    #[test]
    fn each_worker_is_bound_to_a_processor_and_one_alone_to_the_node() {
        let folder = tempfile::tempdir().unwrap();
        let all = machine(folder.path(), 0..8);
        let nowhere: [usize; 0] = [];
        assert_eq!(all.places(2, &["eth0"]), [[2], [3]]);
        assert_eq!(all.places(1, &["eth0"]), [[2, 3, 6, 7]]);
        assert_eq!(all.places(1, &["eth1"]), [nowhere], "where the kernel puts it");
        assert_eq!(machine(folder.path(), [2, 3]).places(1, &["eth0"]), [nowhere], "it is there anyway");
        let few = machine(folder.path(), [5]).places(3, &[]);
        assert_eq!(few, [vec![5], vec![], vec![]]);
    }

    #[test]
    fn the_place_of_workers_is_told_with_their_node() {
        let folder = tempfile::tempdir().unwrap();
        let said = |allowed: &[usize], workers, interfaces: &[&str]| {
            machine(folder.path(), allowed.iter().copied()).note(workers, interfaces).unwrap_or_default()
        };
        let all = [0, 1, 2, 3, 4, 5, 6, 7];
        let near = "workers: 2, processors: 2, 3, on NUMA node 1 as eth0";
        assert_eq!(said(&all, 2, &["eth0", "eth1"]), near);
        assert_eq!(said(&all, 2, &["eth1"]), "workers: 2, processors: 0, 1, on NUMA node 0");
        assert_eq!(said(&all, 4, &[]), "workers: 4, processors: 0, 1, 2, 3");
        let one = "workers: 1, processors: 2, 3, 6, 7, on NUMA node 1 as eth0";
        assert_eq!((said(&all, 1, &["eth0"]).as_str(), said(&all, 1, &[]).as_str()), (one, ""));
        assert_eq!(Processors::described(Path::new("/nowhere"), vec![]).node_of(&[0]), None);
        assert_eq!(machine(folder.path(), 0..8).node_of(&[]), None);
    }

    #[test]
    fn what_is_made_near_processors_is_made_on_a_thread_that_is_bound_to_them() {
        let here = Processors::of_this_process();
        let processors = || numbers(&sched_getaffinity(None).unwrap());
        let last = here.allowed.last().copied().unwrap();
        assert_eq!(near(&[last], processors).unwrap(), [last]);
        assert_eq!(near(&[], processors).unwrap(), here.allowed, "this thread is where it was");
        assert!(bind(&[CpuSet::MAX_CPU]).is_err(), "no processor is none");
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
        let of_eth0 = "eth0 is at NUMA node 1, processors 0 of workers are not: start the gateway on";
        assert!(far.len() == 1 && far[0].starts_with(of_eth0), "{far:?}");
        let all = [0, 1, 2, 3, 4, 5, 6, 7];
        assert!(said(&all, 2).is_empty());
        let more = said(&all, 5);
        let few = "processors 0 of workers are not: the node has 4 processors, for as many workers";
        assert!(more.len() == 2 && more[1].ends_with(few), "{more:?}");
        let crossed = machine(&all).warnings(3, &["eth0", "eth2"]);
        let several = "the interfaces of its ports are at several nodes";
        assert!(crossed.len() == 2 && crossed.iter().all(|line| line.ends_with(several)), "{crossed:?}");
    }

    #[test]
    fn a_machine_has_the_processors_that_its_kernel_may_use() {
        let folder = tempfile::tempdir().unwrap();
        let two = machine(folder.path(), [2, 3]);
        assert_eq!(two.of_machine(), 2, "where the kernel says nothing");
        fs::write(folder.path().join("devices/system/cpu/possible"), "0-7\n").unwrap();
        assert_eq!(two.of_machine(), 8);
    }

    /// A configuration of tunnels a, b, and so on, in which these workers have SAs of their own.
    fn with_own(own: &[&[u32]]) -> Configuration {
        let mut configuration = Configuration::parse(MINIMAL, "t.toml").unwrap();
        let tunnel = configuration.tunnels.remove(0);
        configuration.tunnels = own
            .iter()
            .zip('a'..)
            .map(|(workers, name)| {
                let mut tunnel = tunnel.clone();
                tunnel.name = name.to_string();
                let sas = |worker: &u32| crate::config::WorkerSas {
                    worker: *worker,
                    outbound: Some(tunnel.outbound.clone()),
                    inbound: None,
                };
                tunnel.worker_sas = workers.iter().map(sas).collect();
                tunnel
            })
            .collect();
        configuration
    }

    #[test]
    fn workers_without_an_sa_of_their_own_are_named_where_others_have_one() {
        let said = |own: &[&[u32]], roles: &[Role]| without_own_sas(&with_own(own), roles);
        assert_eq!(said(&[&[]], &[Role::Both; 4]), [""; 0], "one SA for all, as most have it");
        assert_eq!(said(&[&[0, 1], &[]], &[Role::Both; 2]), [""; 0]);
        assert_eq!(said(&[&[0, 1, 2, 3]], &[Role::Both; 2]), [""; 0], "for workers that may come");
        let one = said(&[&[0], &[1, 0]], &[Role::Both; 2]);
        assert!(one.len() == 1 && one[0].starts_with("tunnel a: worker 1 has no SA"), "{one:?}");
        let many = said(&[&[0], &[0], &[0, 1]], &[Role::Both; 4]);
        let lines =
            ["tunnel a (and 1 more): workers 1, 2, 3 have no SA", "tunnel c: workers 2, 3 have no SA"];
        assert!(many.len() == 2 && many.iter().zip(lines).all(|(a, b)| a.starts_with(b)), "{many:?}");
        let roles = [Role::Encrypt, Role::Encrypt, Role::Decrypt];
        let of_roles = said(&[&[0]], &roles);
        assert!(of_roles.len() == 1 && of_roles[0].contains("worker 1 has"), "{of_roles:?}");
        // An SA from the peer alone is one of a peer that has more workers.
        let mut configuration = with_own(&[&[0]]);
        let sas = &mut configuration.tunnels[0].worker_sas[0];
        sas.inbound = sas.outbound.take();
        assert_eq!(without_own_sas(&configuration, &[Role::Both; 2]), [""; 0]);
    }

    #[test]
    fn a_configurations_warnings_have_those_of_its_own_sas() {
        let mut configuration = with_own(&[&[0]]);
        configuration.gateway.workers = crate::config::Workers::Count(2);
        let said = warnings(&configuration);
        assert!(said.iter().any(|line| line.starts_with("tunnel a: worker 1 has no SA")), "{said:?}");
        configuration.gateway.workers = crate::config::Workers::Count(1);
        assert_eq!(warnings(&configuration), [""; 0]);
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
