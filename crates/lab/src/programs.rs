//! Programs of the system and of our own: finding them, running them to their end, and ending them.

use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::error::{LabError, io};

const ENDED_WITHIN: Duration = Duration::from_secs(10);
/// Interval of checks while waiting for a process.
pub(crate) const POLL: Duration = Duration::from_millis(20);
/// Lines of a log that are shown when its program has failed.
const LOG_LINES: usize = 15;

/// The file of a program on the path.
pub(crate) fn find_program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|folder| folder.join(name)).find(|file| file.is_file())
}

/// Runs a short command and returns its output; on failure its standard error becomes the error.
pub(crate) fn run_to_end(command: &mut Command, what: &str) -> Result<String, LabError> {
    let output = command.stdin(Stdio::null()).output().map_err(io(format!("run {what}")))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let stderr = String::from_utf8_lossy(&output.stderr);
    let complaint = format!("failed ({}): {}", output.status, stderr.trim());
    Err(LabError::Program { program: what.to_owned(), complaint })
}

/// Ends a process as systemd would, with SIGTERM, and returns its exit status.
///
/// # Errors
/// It does not end in time; the error shows the end of its log, which `log` reads.
pub(crate) fn terminate(
    child: &mut Child,
    name: &str,
    log: impl Fn() -> String,
) -> Result<ExitStatus, LabError> {
    let failed = io(format!("end {name}"));
    kill_process(Pid::from_child(child), Signal::TERM).map_err(|errno| failed(errno.into()))?;
    let deadline = Instant::now() + ENDED_WITHIN;
    while Instant::now() < deadline {
        match child.try_wait().map_err(io(format!("look after {name}")))? {
            Some(status) => return Ok(status),
            None => thread::sleep(POLL),
        }
    }
    let what = format!("{name} did not end after SIGTERM{}", end_of_log(&log()));
    Err(LabError::TooLate { what, limit: ENDED_WITHIN })
}

/// The last lines of a log, as the end of an error message.
pub(crate) fn end_of_log(log: &str) -> String {
    let lines: Vec<&str> = log.lines().collect();
    let last = &lines[lines.len().saturating_sub(LOG_LINES)..];
    if last.is_empty() {
        return "; its log is empty".to_owned();
    }
    format!("; its log ends:\n    {}", last.join("\n    "))
}
