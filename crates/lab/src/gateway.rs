//! A gateway as a user runs it: configuration and key files, a process, a control socket.

mod files;
mod status;

pub(crate) use files::{CONFIGURATION, UDP_PORT, random_bytes};
pub use files::{Keys, Settings};
pub(crate) use status::{EngineStatus, Ports};
pub use status::{PortStatus, Status};

use std::fs::{self, File};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::error::{LabError, io};
use crate::namespaces::Namespace;

const READY_WITHIN: Duration = Duration::from_secs(20);
const ENDED_WITHIN: Duration = Duration::from_secs(10);
/// Interval of checks while waiting for a process.
const POLL: Duration = Duration::from_millis(20);
/// Lines of a gateway's log that are shown when it has failed.
const LOG_LINES: usize = 15;

/// A running gateway. Dropping it kills it.
#[derive(Debug)]
pub struct Gateway {
    name: String,
    program: PathBuf,
    configuration: PathBuf,
    log: PathBuf,
    child: Child,
}

impl Gateway {
    /// Starts `program` (a build of `testudo`) in `namespace` with the configuration that [`Settings::write`]
    /// has put into `folder`, and returns when it reports that it is ready (`man 3 sd_notify`). Its log is
    /// `log` in the folder.
    ///
    /// # Errors
    /// It refuses to start, exits, or is not ready in time; the error shows the end of its log.
    pub fn start(namespace: &Namespace, program: &Path, name: &str, folder: &Path) -> Result<Self, LabError> {
        let configuration = folder.join(files::CONFIGURATION);
        let mut init = Command::new(program);
        init.arg("init").args(files::init_options(&configuration)?).arg(&configuration);
        run_to_end(&mut init, &format!("{name}: testudo init"))?;
        let (ready, log) = (folder.join("ready.sock"), folder.join("log"));
        let socket = UnixDatagram::bind(&ready).map_err(io(format!("bind {}", ready.display())))?;
        socket.set_read_timeout(Some(POLL)).map_err(io("set a receive timeout"))?;
        let log_file = File::create(&log).map_err(io(format!("write {}", log.display())))?;
        let child = namespace
            .command(program)
            .arg("run")
            .arg(&configuration)
            .env("NOTIFY_SOCKET", &ready)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log_file)
            .spawn()
            .map_err(io(format!("start {name}")))?;
        let program = program.to_owned();
        let mut gateway = Self { name: name.to_owned(), program, configuration, log, child };
        gateway.wait_until_ready(&socket)?;
        // From here on, nobody receives the gateway's notifications; it must tolerate the failing sends.
        let _ = fs::remove_file(&ready);
        Ok(gateway)
    }

    fn wait_until_ready(&mut self, socket: &UnixDatagram) -> Result<(), LabError> {
        let (deadline, mut message) = (Instant::now() + READY_WITHIN, [0; 4096]);
        while Instant::now() < deadline {
            self.check_alive()?;
            let said = socket.recv(&mut message).ok().and_then(|length| message.get(..length)).unwrap_or(&[]);
            if said.split(|&byte| byte == b'\n').any(|line| line == b"READY=1") {
                return Ok(());
            }
        }
        let what = format!("{} did not become ready{}", self.name, self.end_of_log());
        Err(LabError::TooLate { what, limit: READY_WITHIN })
    }

    /// The name given to [`start`](Self::start).
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The status that `testudo status` reports.
    ///
    /// # Errors
    /// It does not answer, or the answer cannot be parsed.
    pub fn status(&self) -> Result<Status, LabError> {
        let mut command = Command::new(&self.program);
        command.arg("status").arg("--config").arg(&self.configuration).arg("--json");
        let answer = run_to_end(&mut command, &format!("{}: testudo status", self.name))?;
        serde_json::from_str(&answer).map_err(|error| {
            self.complaint(format!("has answered `testudo status --json` with an unexpected text: {error}"))
        })
    }

    /// Checks that the process is still running.
    ///
    /// # Errors
    /// It has exited; the error shows the end of its log.
    pub fn check_alive(&mut self) -> Result<(), LabError> {
        match self.child.try_wait().map_err(io(format!("look after {}", self.name)))? {
            None => Ok(()),
            Some(status) => Err(self.ended(status)),
        }
    }

    /// Stops it as systemd would, with SIGTERM.
    ///
    /// # Errors
    /// It had exited before, does not exit in time, or exits with a status other than 0.
    pub fn stop(mut self) -> Result<(), LabError> {
        self.check_alive()?;
        let failed = io(format!("end {}", self.name));
        kill_process(Pid::from_child(&self.child), Signal::TERM).map_err(|errno| failed(errno.into()))?;
        let deadline = Instant::now() + ENDED_WITHIN;
        while Instant::now() < deadline {
            match self.child.try_wait().map_err(io(format!("look after {}", self.name)))? {
                Some(status) if status.success() => return Ok(()),
                Some(status) => {
                    let how = format!("ended with an error on SIGTERM ({status}){}", self.end_of_log());
                    return Err(self.complaint(how));
                }
                None => thread::sleep(POLL),
            }
        }
        let what = format!("{} did not end after SIGTERM{}", self.name, self.end_of_log());
        Err(LabError::TooLate { what, limit: ENDED_WITHIN })
    }

    fn ended(&self, status: ExitStatus) -> LabError {
        self.complaint(format!("has ended by itself ({status}){}", self.end_of_log()))
    }

    fn complaint(&self, complaint: String) -> LabError {
        LabError::Program { program: self.name.clone(), complaint }
    }

    /// The last lines of the log, as the end of an error message.
    pub(crate) fn end_of_log(&self) -> String {
        let log = fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        let last = &lines[lines.len().saturating_sub(LOG_LINES)..];
        if last.is_empty() {
            return "; its log is empty".to_owned();
        }
        format!("; its log ends:\n    {}", last.join("\n    "))
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs a short command and returns its output; on failure its standard error becomes the error.
fn run_to_end(command: &mut Command, what: &str) -> Result<String, LabError> {
    let output = command.stdin(Stdio::null()).output().map_err(io(format!("run {what}")))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let stderr = String::from_utf8_lossy(&output.stderr);
    let complaint = format!("failed ({}): {}", output.status, stderr.trim());
    Err(LabError::Program { program: what.to_owned(), complaint })
}
