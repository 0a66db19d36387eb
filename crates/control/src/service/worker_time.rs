//! What the kernel's scheduler says of the worker.

use std::fs;

/// Time of the worker's thread since it began, as the scheduler counts it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WorkerTime {
    /// On a processor.
    pub ran_ns: u64,
    /// Ready to run, with every processor that it may use taken by others.
    pub queued_ns: u64,
}

/// Reads the times of the thread of this process that has this name; `None` where the kernel does not tell
/// (`CONFIG_SCHED_INFO`).
#[must_use]
pub fn worker_time(thread: &str) -> Option<WorkerTime> {
    let threads = fs::read_dir("/proc/self/task").ok()?;
    let mut folders = threads.flatten().map(|entry| entry.path());
    let folder = folders
        .find(|folder| fs::read_to_string(folder.join("comm")).is_ok_and(|name| name.trim_end() == thread))?;
    parse(&fs::read_to_string(folder.join("schedstat")).ok()?)
}

/// `schedstat` of proc(5): time on a processor, time in a run queue, slices of time.
fn parse(text: &str) -> Option<WorkerTime> {
    let mut numbers = text.split_whitespace().map(|word| word.parse().ok());
    let time = WorkerTime { ran_ns: numbers.next()??, queued_ns: numbers.next()?? };
    // The reader itself runs: zeros come from a kernel that does not count.
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
    fn a_thread_is_found_by_its_name_and_no_other() {
        assert_eq!(worker_time("nobody"), None);
    }
}
