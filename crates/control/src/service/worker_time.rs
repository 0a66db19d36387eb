//! The scheduler's statistics about the worker.

use std::fs;

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
    let threads = fs::read_dir("/proc/self/task").ok()?;
    let mut folders = threads.flatten().map(|entry| entry.path());
    let folder = folders
        .find(|folder| fs::read_to_string(folder.join("comm")).is_ok_and(|name| name.trim_end() == thread))?;
    parse(&fs::read_to_string(folder.join("schedstat")).ok()?)
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
    fn an_unknown_thread_has_no_times() {
        assert_eq!(worker_time("nobody"), None);
    }
}
