//! Finds the wireguard-go to measure, and its version.

use std::fmt;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::programs::find_program;

/// How long it may take to print its version.
const ANSWERS_WITHIN: Duration = Duration::from_secs(5);
/// Longer text is not a version.
const MAX_VERSION_BYTES: usize = 120;

/// A wireguard-go program.
#[derive(Debug, Clone)]
pub(super) struct WireguardGo {
    pub(super) path: PathBuf,
    /// The first line of its `--version` output; `None` if that is not fit to be shown.
    pub(super) version: Option<String>,
}

impl WireguardGo {
    /// Runs the program at `path` to get its version.
    pub(super) fn ask(path: PathBuf) -> Self {
        let version = version_line(&said(Command::new(&path), ANSWERS_WITHIN));
        Self { path, version }
    }
}

impl fmt::Display for WireguardGo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, {}", self.path.display(), self.version.as_deref().unwrap_or("version unknown"))
    }
}

/// The path of wireguard-go, if both it and the program `wg` that configures it are installed: first the one
/// that is `named`, then those on the path, then Go's folder in the home folder.
pub(super) fn find(named: Option<&Path>) -> Option<PathBuf> {
    let in_home = || {
        let file = PathBuf::from(std::env::var_os("HOME")?).join("go/bin/wireguard");
        file.is_file().then_some(file)
    };
    let found = named.map(Path::to_owned);
    let found =
        found.or_else(|| find_program("wireguard-go")).or_else(|| find_program("wireguard")).or_else(in_home);
    found.filter(|_| find_program("wg").is_some())
}

/// The beginning of the program's `--version` output; empty if it cannot be run.
fn said(mut command: Command, limit: Duration) -> Vec<u8> {
    command.arg("--version").stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let Ok(mut child) = command.spawn() else { return Vec::new() };
    let text = child.stdout.take().map(|pipe| first_line(pipe, Instant::now() + limit));
    // Fails only if it has already exited, and it is not needed any more.
    let _ = child.kill();
    let _ = child.wait();
    text.unwrap_or_default()
}

/// Reads until a line is complete, the pipe ends, the text exceeds a version's length, or the deadline
/// passes.
fn first_line(mut pipe: ChildStdout, deadline: Instant) -> Vec<u8> {
    let mut text = Vec::new();
    while text.len() <= MAX_VERSION_BYTES && !text.contains(&b'\n') {
        let left = deadline.saturating_duration_since(Instant::now());
        let Ok(left) = Timespec::try_from(left) else { break };
        let ready = poll(&mut [PollFd::new(&pipe, PollFlags::IN)], Some(&left));
        let mut piece = [0; MAX_VERSION_BYTES + 1];
        match ready.map(|ready| if ready == 0 { Ok(0) } else { pipe.read(&mut piece) }) {
            Ok(Ok(length)) if length > 0 => text.extend_from_slice(&piece[..length]),
            _ => break,
        }
    }
    text
}

/// The first line, if it is printable ASCII of at most a version's length: another program wrote it, and it
/// goes to a terminal.
fn version_line(text: &[u8]) -> Option<String> {
    let line = text.split(|byte| *byte == b'\n').next()?.trim_ascii();
    let shown = |byte: &u8| byte.is_ascii_graphic() || *byte == b' ';
    let fit = !line.is_empty() && line.len() <= MAX_VERSION_BYTES && line.iter().all(shown);
    fit.then(|| String::from_utf8_lossy(line).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The version text of a program made of these shell lines.
    fn script(lines: &str, limit: Duration) -> Vec<u8> {
        let mut command = Command::new("sh");
        command.args(["-c", lines, "sh"]);
        said(command, limit)
    }

    #[test]
    fn the_version_is_the_first_line() {
        let text = b"wireguard-go v0.0.0-20250521234502-f333402bd9cb\n\nUserspace WireGuard daemon";
        assert_eq!(version_line(text).as_deref(), Some("wireguard-go v0.0.0-20250521234502-f333402bd9cb"));
        assert_eq!(version_line(b"v1").as_deref(), Some("v1"));
    }

    #[test]
    fn unprintable_or_overlong_text_is_no_version() {
        let long = [b'v'; MAX_VERSION_BYTES + 1];
        for text in [&b""[..], b"\nv1\n", b"  \n", b"\x1b[2Jv1\n", b"v\xff1\n", &long] {
            assert_eq!(version_line(text), None, "{text:?}");
        }
        assert!(version_line(&long[1..]).is_some());
    }

    #[test]
    fn the_program_is_run_with_the_version_option() {
        assert_eq!(version_line(&script("echo \"$1\"", ANSWERS_WITHIN)).as_deref(), Some("--version"));
    }

    #[test]
    fn a_program_that_is_silent_or_missing_has_no_version() {
        assert_eq!(script("exit 1", ANSWERS_WITHIN), b"");
        assert_eq!(said(Command::new("/nonexistent"), ANSWERS_WITHIN), b"");
        assert_eq!(script("exec sleep 1000", Duration::ZERO), b"");
    }

    #[test]
    fn reading_stops_beyond_the_longest_version() {
        let text = script("while printf vvvvvvvvvvvvvvvv; do :; done", ANSWERS_WITHIN);
        assert!((MAX_VERSION_BYTES + 1..=2 * MAX_VERSION_BYTES + 1).contains(&text.len()), "{}", text.len());
    }
}
