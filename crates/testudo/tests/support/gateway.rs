//! A process of the program: start, query, signal, stop.

use super::config::CONFIGURATION;
use super::{Outcome, ensure, wait};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::fs::{self, File, OpenOptions};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use testudo_lab::namespaces::Namespace;

/// The program under test.
pub const PROGRAM: &str = env!("CARGO_BIN_EXE_testudo");

/// A running gateway. Dropping it kills it.
#[derive(Debug)]
pub struct Gateway {
    child: Child,
    folder: PathBuf,
    notices: UnixDatagram,
    heard: Vec<String>,
}

/// Creates the durable store that the configuration in `folder` names.
pub fn init(folder: &Path) -> Outcome<()> {
    let (file, mut command) = (folder.join(CONFIGURATION), Command::new(PROGRAM));
    command.arg("init");
    // Nonces of VPE are numbers: who has made a key says that it is new.
    if std::fs::read_to_string(&file)?.contains("encapsulation = \"vpe") {
        command.arg("--fresh-keys");
    }
    let output = wait::output(command.arg(file))?;
    ensure(output.status.success(), || format!("init: {}", String::from_utf8_lossy(&output.stderr)))
}

/// How a command of the program ended: exit code and output.
#[derive(Debug, PartialEq, Eq)]
pub struct Said {
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

impl From<Output> for Said {
    fn from(output: Output) -> Self {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Self { code: output.status.code(), stdout: text(&output.stdout), stderr: text(&output.stderr) }
    }
}

impl Said {
    /// Fails unless the command ended with `code` and a one-line message that contains `complaint`.
    pub fn refused(&self, code: i32, complaint: &str) -> Outcome<()> {
        let is_clear = self.stderr.lines().last().is_some_and(|line| line.contains(complaint));
        ensure(self.code == Some(code) && is_clear, || {
            format!("expected exit {code} and a last line with \"{complaint}\", but {self:#?}")
        })
    }
}

/// A command that runs the gateway in `folder` in the foreground.
pub fn run_command(namespace: &Namespace, folder: &Path) -> Command {
    let mut command = namespace.command(PROGRAM);
    command.arg("run").arg(folder.join(CONFIGURATION));
    command
}

/// Runs a gateway that is expected to refuse to start.
pub fn run_to_end(namespace: &Namespace, folder: &Path) -> Outcome<Said> {
    Ok(wait::output(&mut run_command(namespace, folder))?.into())
}

impl Gateway {
    /// Starts the gateway that is configured in `folder` and waits until it is ready.
    pub fn start(namespace: &Namespace, folder: &Path) -> Outcome<Self> {
        let mut gateway = Self::spawn(run_command(namespace, folder), folder)?;
        gateway.hears("READY=1")?;
        Ok(gateway)
    }

    /// As [`start`](Self::start), after creating a store.
    pub fn init_and_start(namespace: &Namespace, folder: &Path) -> Outcome<Self> {
        init(folder)?;
        Self::start(namespace, folder)
    }

    /// Starts `command`, which runs the gateway of `folder`; its log is appended to `log` there.
    pub fn spawn(mut command: Command, folder: &Path) -> Outcome<Self> {
        let path = folder.join("notify.sock");
        let _ = fs::remove_file(&path);
        let notices = UnixDatagram::bind(&path)?;
        notices.set_nonblocking(true)?;
        let log = OpenOptions::new().create(true).append(true).open(folder.join("log"))?;
        let child = command
            .env("NOTIFY_SOCKET", &path)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()?;
        Ok(Self { child, folder: folder.to_owned(), notices, heard: Vec::new() })
    }

    /// Waits until the gateway has sent systemd `notice`, and forgets all notices up to it.
    pub fn hears(&mut self, notice: &str) -> Outcome<()> {
        let said = wait::until(&format!("for {notice}"), || {
            // Checked before its last notices are read, so that none is missed.
            let ended = self.child.try_wait()?;
            self.listen();
            if let Some(at) = self.heard.iter().position(|line| line.starts_with(notice)) {
                return Ok(Some(self.heard.drain(..=at).count()));
            }
            match ended {
                Some(status) => Err(format!("the gateway has ended: {status}").into()),
                None => Ok(None),
            }
        });
        said.map(drop).map_err(|e| format!("{e}\n{}", self.log()).into())
    }

    fn listen(&mut self) {
        let mut message = [0; 4096];
        while let Ok(length) = self.notices.recv(&mut message) {
            let text = String::from_utf8_lossy(&message[..length]).into_owned();
            self.heard.extend(text.lines().map(str::to_owned));
        }
    }

    /// The log so far, of this and earlier runs.
    pub fn log(&self) -> String {
        fs::read_to_string(self.folder.join("log")).unwrap_or_default()
    }

    /// Waits until the log contains `text`, and returns the whole log.
    pub fn logs(&self, text: &str) -> Outcome<String> {
        let waited = wait::until(&format!("for \"{text}\" in the log"), || {
            let log = self.log();
            Ok(log.contains(text).then_some(log))
        });
        waited.map_err(|e| format!("{e}\n{}", self.log()).into())
    }

    /// The process ID.
    pub fn process(&self) -> u32 {
        self.child.id()
    }

    pub fn signal(&self, signal: Signal) -> Outcome<()> {
        Ok(kill_process(Pid::from_child(&self.child), signal)?)
    }

    /// Reloads the configuration and waits until the reload is done.
    pub fn reload(&mut self) -> Outcome<()> {
        self.signal(Signal::HUP)?;
        self.hears("RELOADING=1")?;
        self.hears("READY=1")
    }

    /// Runs a verb that queries this gateway.
    pub fn ask(&self, words: &[&str]) -> Outcome<Said> {
        let mut command = Command::new(PROGRAM);
        command.args(words).arg("--control").arg(self.folder.join("control.sock"));
        Ok(wait::output(&mut command)?.into())
    }

    /// As [`ask`](Self::ask), in JSON.
    pub fn ask_json(&self, words: &[&str]) -> Outcome<Value> {
        let said = self.ask(&[words, &["--json"]].concat())?;
        ensure(said.code == Some(0), || format!("{words:?}: {said:#?}\n{}", self.log()))?;
        Ok(serde_json::from_str(&said.stdout)?)
    }

    /// How many packets have been dropped for `reason` so far.
    pub fn dropped(&self, reason: &str) -> Outcome<u64> {
        let status = self.ask_json(&["status"])?;
        status["drops"][reason]
            .as_u64()
            .ok_or_else(|| format!("no drop reason {reason} in {status:#}").into())
    }

    /// One SA of `sa list`.
    pub fn sa(&self, tunnel: &str, direction: &str) -> Outcome<Value> {
        let list = self.ask_json(&["sa", "list"])?;
        let mut rows = list.as_array().into_iter().flatten();
        let found = rows.find(|sa| sa["tunnel"] == tunnel && sa["direction"] == direction).cloned();
        found.ok_or_else(|| format!("no {direction} SA of {tunnel} in {list:#}").into())
    }

    /// Waits until at least `count` packets have been dropped for `reason`.
    pub fn counts(&self, reason: &str, count: u64) -> Outcome<()> {
        wait::until(&format!("for {reason} to be counted {count} times"), || {
            Ok((self.dropped(reason)? >= count).then_some(()))
        })
    }

    /// Checks that the gateway still runs.
    pub fn is_alive(&mut self) -> Outcome<()> {
        let status = self.child.try_wait()?;
        ensure(status.is_none(), || format!("the gateway has ended: {status:?}\n{}", self.log()))
    }

    /// Stops the gateway as systemd does, and expects a clean exit.
    pub fn stop(self) -> Outcome<()> {
        self.ended_by(Signal::TERM)
    }

    /// Stops the gateway with a signal, and expects a clean exit.
    pub fn ended_by(self, signal: Signal) -> Outcome<()> {
        self.last_words(signal).map(drop)
    }

    /// The same; all of its log.
    pub fn last_words(mut self, signal: Signal) -> Outcome<String> {
        self.is_alive()?;
        self.signal(signal)?;
        self.hears("STOPPING=1")?;
        let status = wait::ended(&mut self.child).map_err(|e| format!("{e}\n{}", self.log()))?;
        ensure(status.success(), || format!("ended with {status}\n{}", self.log()))?;
        Ok(self.log())
    }

    /// Kills the gateway, as a power failure would.
    pub fn kill(mut self) -> Outcome<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        // Fails only if the process has already ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The contents of a file in `/proc` of a process.
pub fn proc_file(process: u32, name: &str) -> Outcome<String> {
    let mut text = String::new();
    std::io::Read::read_to_string(&mut File::open(format!("/proc/{process}/{name}"))?, &mut text)?;
    Ok(text)
}
