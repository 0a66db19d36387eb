//! Waits for conditions, never for fixed times.

use super::Outcome;
use std::io::Read;
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// A deadline for anything on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(30);
const POLL: Duration = Duration::from_millis(10);

/// Polls until there is a value. `what` says, in the failure, what was waited for.
pub fn until<T>(what: &str, ask: impl FnMut() -> Outcome<Option<T>>) -> Outcome<T> {
    until_within(PATIENCE, what, ask)
}

/// As [`until`], with another limit.
pub fn until_within<T>(
    limit: Duration,
    what: &str,
    mut ask: impl FnMut() -> Outcome<Option<T>>,
) -> Outcome<T> {
    let deadline = Instant::now() + limit;
    loop {
        if let Some(answer) = ask()? {
            return Ok(answer);
        }
        if Instant::now() > deadline {
            return Err(format!("waited {limit:?} in vain {what}").into());
        }
        thread::sleep(POLL);
    }
}

/// Waits until a process has ended.
pub fn ended(child: &mut Child) -> Outcome<ExitStatus> {
    until("for a process to end", || Ok(child.try_wait()?))
}

/// Runs a command to its end, within the deadline, and collects its output.
pub fn output(command: &mut Command) -> Outcome<Output> {
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    let (stdout, stderr) = (collect(child.stdout.take()), collect(child.stderr.take()));
    let status = ended(&mut child);
    if status.is_err() {
        child.kill()?;
        child.wait()?;
    }
    let read = |thread: thread::JoinHandle<Vec<u8>>| thread.join().unwrap_or_default();
    let (stdout, stderr) = (read(stdout), read(stderr));
    let status = status.map_err(|e| format!("{e}\n{}", String::from_utf8_lossy(&stderr)))?;
    Ok(Output { status, stdout, stderr })
}

fn collect(source: Option<impl Read + Send + 'static>) -> thread::JoinHandle<Vec<u8>> {
    thread::spawn(move || {
        let mut bytes = Vec::new();
        // Output that a dying process could not write does not matter.
        let _ = source.map(|mut source| source.read_to_end(&mut bytes));
        bytes
    })
}
