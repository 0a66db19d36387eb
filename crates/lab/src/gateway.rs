//! A gateway as a user runs it: configuration and key files, a process, a control socket.

mod files;
mod status;

use files::DAEMON_SOCKET;
pub(crate) use files::{CONFIGURATION, UDP_PORT, random_bytes, random_hex, write_for_daemon};
pub use files::{Keys, Settings};
pub(crate) use status::{EngineStatus, LEAST_BATCHES, ListedSa, Ports, Work};
pub use status::{PortStatus, Status};

use std::fs::{self, File};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use serde::de::DeserializeOwned;

use crate::error::{LabError, io};
use crate::namespaces::Namespace;
use crate::programs::{POLL, end_of_log, run_to_end, terminate};

const READY_WITHIN: Duration = Duration::from_secs(20);

/// What it takes to ask a gateway, from any thread.
#[derive(Debug, Clone)]
pub(crate) struct Inquiry {
    name: String,
    program: PathBuf,
    configuration: PathBuf,
}

impl Inquiry {
    /// The answer to one of the program's verbs, with `--json`.
    fn ask<T: DeserializeOwned>(&self, verb: &[&str]) -> Result<T, LabError> {
        let mut command = Command::new(&self.program);
        command.args(verb).arg("--config").arg(&self.configuration).arg("--json");
        let what = format!("testudo {}", verb.join(" "));
        let answer = run_to_end(&mut command, &format!("{}: {what}", self.name))?;
        serde_json::from_str(&answer).map_err(|error| {
            let complaint = format!("has answered `{what} --json` with an unexpected text: {error}");
            LabError::Program { program: self.name.clone(), complaint }
        })
    }

    /// The gateway's SAs.
    pub(crate) fn sas(&self) -> Result<Vec<ListedSa>, LabError> {
        self.ask(&["sa", "list"])
    }
}

/// A running gateway. Dropping it kills it.
#[derive(Debug)]
pub struct Gateway {
    inquiry: Inquiry,
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
        let inquiry = Inquiry { name: name.to_owned(), program: program.to_owned(), configuration };
        let mut gateway = Self { inquiry, log, child };
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
        let what = format!("{} did not become ready{}", self.inquiry.name, self.end_of_log());
        Err(LabError::TooLate { what, limit: READY_WITHIN })
    }

    /// The name given to [`start`](Self::start).
    pub fn name(&self) -> &str {
        &self.inquiry.name
    }

    /// The status that `testudo status` reports.
    ///
    /// # Errors
    /// It does not answer, or the answer cannot be parsed.
    pub fn status(&self) -> Result<Status, LabError> {
        self.inquiry.ask(&["status"])
    }

    /// What its worker has done so far.
    ///
    /// # Errors
    /// As for [`status`](Self::status).
    pub(crate) fn work(&self) -> Result<Work, LabError> {
        self.inquiry.ask(&["status"])
    }

    pub(crate) fn inquiry(&self) -> &Inquiry {
        &self.inquiry
    }

    /// Where an IKE daemon finds it, if its configuration is that of [`files::write_for_daemon`].
    pub(crate) fn daemon_socket(&self) -> PathBuf {
        self.inquiry.configuration.with_file_name(DAEMON_SOCKET)
    }

    /// Checks that the process is still running.
    ///
    /// # Errors
    /// It has exited; the error shows the end of its log.
    pub fn check_alive(&mut self) -> Result<(), LabError> {
        match self.child.try_wait().map_err(io(format!("look after {}", self.inquiry.name)))? {
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
        let status = terminate(&mut self.child, &self.inquiry.name, || read(&self.log))?;
        if status.success() {
            return Ok(());
        }
        Err(self.complaint(format!("ended with an error on SIGTERM ({status}){}", self.end_of_log())))
    }

    fn ended(&self, status: ExitStatus) -> LabError {
        self.complaint(format!("has ended by itself ({status}){}", self.end_of_log()))
    }

    fn complaint(&self, complaint: String) -> LabError {
        LabError::Program { program: self.inquiry.name.clone(), complaint }
    }

    /// The last lines of the log, as the end of an error message.
    pub(crate) fn end_of_log(&self) -> String {
        end_of_log(&read(&self.log))
    }
}

fn read(log: &Path) -> String {
    fs::read_to_string(log).unwrap_or_default()
}

impl Drop for Gateway {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
