//! What the kernel says of a worker's thread: its time, and where it may run.

use crate::processors::{Processors, parse_list};
use std::fs;
use std::path::PathBuf;

/// Time of the worker's thread since its start, as the scheduler counts it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WorkerTime {
    /// Running on a processor.
    pub ran_ns: u64,
    /// Ready to run, while every processor that it may use was busy with others.
    pub queued_ns: u64,
}

/// Reads the times of the thread of this process with this name; `None` if the kernel does not report them
/// (`CONFIG_SCHED_INFO`).
#[must_use]
pub fn worker_time(thread: &str) -> Option<WorkerTime> {
    parse(&fs::read_to_string(folder_of(thread)?.join("schedstat")).ok()?)
}

/// Where the kernel lets a worker's thread run, whatever the gateway asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkerPlace {
    /// The processors, as the kernel writes them: `0-2,8`.
    pub processors: String,
    /// The NUMA node that all of them are of.
    pub node: Option<usize>,
}

/// Reads the place of the thread of this process with this name, on this machine.
#[must_use]
pub fn worker_place(thread: &str, machine: &Processors) -> Option<WorkerPlace> {
    place(&fs::read_to_string(folder_of(thread)?.join("status")).ok()?, machine)
}

/// `status` of proc(5): a line for each field.
fn place(status: &str, machine: &Processors) -> Option<WorkerPlace> {
    let processors = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?.trim();
    let node = machine.node_of(&parse_list(processors));
    Some(WorkerPlace { processors: processors.to_owned(), node })
}

/// The folder of the thread of this process with this name.
fn folder_of(thread: &str) -> Option<PathBuf> {
    let threads = fs::read_dir("/proc/self/task").ok()?;
    let is_it = |folder: &PathBuf| {
        fs::read_to_string(folder.join("comm")).is_ok_and(|name| name.trim_end() == thread)
    };
    threads.flatten().map(|entry| entry.path()).find(is_it)
}

/// `schedstat` of proc(5): time on a processor, time in a run queue, number of time slices.
fn parse(text: &str) -> Option<WorkerTime> {
    let mut numbers = text.split_whitespace().map(|word| word.parse().ok());
    let time = WorkerTime { ran_ns: numbers.next()??, queued_ns: numbers.next()?? };
    // The reader itself has run, so zeros mean that the kernel does not count.
    (time.ran_ns > 0).then_some(time)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_the_first_two_numbers() {
        let time = WorkerTime { ran_ns: 123, queued_ns: 45 };
        assert_eq!(parse("123 45 6\n"), Some(time));
        assert_eq!((parse("0 0 0\n"), parse(""), parse("1\n"), parse("x y z")), (None, None, None, None));
    }

    #[test]
    fn a_place_is_what_the_kernel_lists_with_its_node() {
        let folder = tempfile::tempdir().unwrap();
        let of_nodes = folder.path().join("devices/system/node");
        for (node, processors) in [("node0", "0-1\n"), ("node1", "2-3\n")] {
            fs::create_dir_all(of_nodes.join(node)).unwrap();
            fs::write(of_nodes.join(node).join("cpulist"), processors).unwrap();
        }
        fs::write(of_nodes.join("online"), "0-1\n").unwrap();
        let machine = Processors::described(folder.path(), vec![0, 1, 2, 3]);
        let said = |list: &str| {
            let status =
                format!("Name:\tworker-1\nCpus_allowed:\tc\nCpus_allowed_list:\t{list}\nMems_allowed:\t1\n");
            place(&status, &machine).map(|place| (place.processors, place.node))
        };
        assert_eq!(said("2-3"), Some(("2-3".to_owned(), Some(1))));
        assert_eq!(said("1-2"), Some(("1-2".to_owned(), None)), "of both");
        assert_eq!(place("Name:\tworker-1\n", &machine), None);
    }

    #[test]
    fn an_unknown_thread_has_no_times() {
        let machine = Processors::of_this_process();
        assert_eq!((worker_time("nobody"), worker_place("nobody", &machine)), (None, None));
    }
}
