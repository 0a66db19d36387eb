//! The folder of a run: configurations, keys, logs, recordings. It is removed when the last process of the
//! run has ended, in whatever way.

use std::ffi::OsStr;
use std::fs::{self, Permissions};
use std::io::Write;
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::io::{FdFlags, fcntl_setfd};
use tempfile::TempDir;

use crate::error::{LabError, io};
use crate::namespaces::{Entered, NamespaceError, enter_as_root_with, enter_with, is_inside};

/// Tells the inner process which folder the outer one has made.
const VARIABLE: &str = "TESTUDO_LAB_FOLDER";

/// A private folder below the system's temporary one.
#[derive(Debug)]
pub(crate) struct Workspace {
    path: PathBuf,
    keep: bool,
}

/// Makes a folder `testudo-PURPOSE-…` and enters private namespaces with it (see
/// [`crate::namespaces::enter`]: only in the inner process does this function return).
pub(crate) fn enter_with_workspace(purpose: &str, keep: bool) -> Result<(Entered, Workspace), LabError> {
    enter_by(purpose, keep, enter_with)
}

/// The same as root of all, for what is refused in user namespaces.
pub(crate) fn enter_as_root_with_workspace(
    purpose: &str,
    keep: bool,
) -> Result<(Entered, Workspace), LabError> {
    enter_by(purpose, keep, enter_as_root_with)
}

fn enter_by(
    purpose: &str,
    keep: bool,
    enter: impl Fn(&[(&str, &OsStr)]) -> Result<Entered, NamespaceError>,
) -> Result<(Entered, Workspace), LabError> {
    if let (true, Some(path)) = (is_inside(), std::env::var_os(VARIABLE)) {
        return Ok((enter(&[])?, Workspace { path: path.into(), keep }));
    }
    let path = make(purpose)?;
    // Inherited by every process of the run; the kernel closes it when the last one ends.
    let _lifeline = if keep { None } else { Some(janitor(&path)?) };
    // If entering fails, there is nothing worth keeping.
    let mut workspace = Workspace { path: path.clone(), keep: false };
    let entered = enter(&[(VARIABLE, path.as_os_str())])?;
    workspace.keep = keep;
    Ok((entered, workspace))
}

impl Workspace {
    /// Makes a folder `testudo-PURPOSE-…` for this process alone.
    pub(crate) fn make(purpose: &str, keep: bool) -> Result<Self, LabError> {
        Ok(Self { path: make(purpose)?, keep })
    }
}

/// A folder with a name that no other run has, so that a late removal cannot hit another run's folder.
fn make(purpose: &str) -> Result<PathBuf, LabError> {
    let made = tempfile::Builder::new()
        .prefix(&format!("testudo-{purpose}-"))
        .permissions(Permissions::from_mode(0o700))
        .tempdir();
    let failed = io(format!("make a folder in {}", std::env::temp_dir().display()));
    made.map(TempDir::keep).map_err(failed)
}

/// Starts a process that waits until all copies of the returned end of a pipe are closed, then removes
/// `folder`.
///
/// If the run is interrupted or killed, it cannot clean up, but the kernel closes the pipe. The janitor is in
/// its own process group, so that a Ctrl-C at the terminal does not reach it.
fn janitor(folder: &Path) -> Result<OwnedFd, LabError> {
    const SCRIPT: &str = "trap '' HUP INT TERM; cat; rm -rf -- \"$1\"";
    let pipe = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC);
    let (waits, lifeline) = pipe.map_err(|errno| io("make a pipe")(errno.into()))?;
    Command::new("sh")
        .args(["-c", SCRIPT, "testudo-janitor"])
        .arg(folder)
        .stdin(Stdio::from(waits))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .current_dir("/")
        .process_group(0)
        .spawn()
        .map_err(io("start sh"))?;
    // From here on, child processes inherit it.
    fcntl_setfd(&lifeline, FdFlags::empty()).map_err(|errno| io("share a pipe")(errno.into()))?;
    Ok(lifeline)
}

impl Workspace {
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The path of a file or folder in it.
    pub(crate) fn join(&self, name: impl AsRef<OsStr>) -> PathBuf {
        self.path.join(Path::new(name.as_ref()))
    }
}

impl Drop for Workspace {
    fn drop(&mut self) {
        if !self.keep {
            // The janitor would do it a moment later; this way it is gone when the prompt returns.
            let _ = fs::remove_dir_all(&self.path);
        }
    }
}

/// Writes `text` to a new file that only its owner may read.
pub(crate) fn write_private(path: &Path, text: &str) -> Result<(), LabError> {
    use std::os::unix::fs::OpenOptionsExt;
    fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)
        .and_then(|mut file| file.write_all(text.as_bytes()))
        .map_err(io(format!("write {}", path.display())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, Instant};

    #[test]
    fn the_janitor_removes_the_folder_when_the_last_holder_of_the_lifeline_is_gone() {
        let folder = make("test-janitor").unwrap();
        let lifeline = janitor(&folder).unwrap();
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        drop(lifeline);
        write_private(&folder.join("key"), "secret").unwrap();
        assert!(folder.exists(), "the child still holds it");
        child.kill().unwrap();
        child.wait().unwrap();
        let deadline = Instant::now() + Duration::from_secs(10);
        while folder.exists() {
            assert!(Instant::now() < deadline, "still there");
            std::thread::yield_now();
        }
    }

    #[test]
    fn folders_and_files_are_their_owners_only() {
        let folder = Workspace { path: make("test-modes").unwrap(), keep: false };
        write_private(&folder.join("key"), "secret").unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(folder.path()), mode(&folder.join("key"))), (0o700, 0o600));
        assert!(write_private(&folder.join("key"), "another").is_err(), "never over a file that exists");
        let path = folder.path().to_owned();
        drop(folder);
        assert!(!path.exists());
    }
}
