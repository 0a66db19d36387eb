//! An unmodified Linux kernel as IPsec peer: it boots in a few seconds in a virtual machine, attached to a
//! TAP interface of ours, and runs the shell scripts that a test gives it.
//!
//! ```text
//!   namespace of the test                          guest
//!   code under test ── tap ════ Ethernet ════ eth0 ── Linux: ip xfrm, iperf3, socat, ping
//!   LinuxPeer::sh ──── socket ═ virtio port ═ /init ── /bin/sh
//! ```
//!
//! The guest is Debian's cloud kernel with an initramfs (`tests/linux-peer/build-image.sh`), so that the
//! judge is the same whatever kernel the tests run on. Its `eth0` has no address yet; `ip`, `ss`, `modprobe`,
//! `iperf3` and `socat` are the real ones, the rest is busybox. A program started *by a busybox applet*
//! (`timeout 5 ip …`, `xargs ip`) is busybox's version where it has one: write `/usr/bin/ip` there.
//!
//! The machine is emulated where KVM is not usable, and then much slower; no test should depend on its speed.
//!
//! The guest's interface offers checksum and segmentation offloads by default, so TCP segments of 64 KiB
//! without checksum may appear on the TAP. That suits a kernel at this end, but not a program that reads the
//! frames. [`Options::offloads`] turns it off.

mod channel;
mod machine;

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use testudo_lab::namespaces::Namespace;

use machine::Machine;

/// Default limit for booting: an emulated guest needs 4 s on an idle machine.
const BOOT_LIMIT: Duration = Duration::from_secs(120);
/// How much longer than the guest the host waits for a command, so that normally the guest ends it and
/// reports that.
const GRACE: Duration = Duration::from_secs(20);

/// What went wrong with the peer. The text is meant to be read as a test's failure.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PeerError {
    /// The emulator is not installed.
    #[error("qemu-system-x86_64 is missing: install the package qemu-system-x86")]
    NoQemu,
    /// The guest's kernel and initramfs do not exist.
    #[error("{0} does not exist: build the guest with tests/linux-peer/build-image.sh")]
    NoImage(PathBuf),
    /// The kernel and initramfs could not be built.
    #[error("tests/linux-peer/build-image.sh failed:\n{0}")]
    Build(String),
    /// The guest did not come up.
    #[error("the guest did not boot with {accelerator}: {reason}\nits console:\n{console}")]
    Boot {
        /// The accelerator that it ran on.
        accelerator: Accelerator,
        /// Why the guest did not come up.
        reason: String,
        /// The end of its output.
        console: String,
    },
    /// The guest or the emulator died, or its replies made no sense.
    #[error("the guest was lost: {reason}\nits console:\n{console}")]
    Lost {
        /// The symptom.
        reason: String,
        /// The end of its output.
        console: String,
    },
    /// A command exceeded its time limit and was killed.
    #[error("the guest's command ran for more than {limit:?}: {script}\n{output}")]
    TimedOut {
        /// The script.
        script: String,
        /// The limit.
        limit: Duration,
        /// Its output so far.
        output: ShellOutput,
    },
    /// A command that had to succeed returned a status other than 0.
    #[error("the guest's command failed: {script}\n{output}")]
    Failed {
        /// The script.
        script: String,
        /// Its status and output.
        output: ShellOutput,
    },
    /// The host's system refused a call.
    #[error("cannot {action}: {source}")]
    Io {
        /// What was attempted.
        action: &'static str,
        /// The system's error.
        source: io::Error,
    },
}

/// How a shell script in the guest ended, and what it wrote (invalid UTF-8 replaced).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShellOutput {
    /// The exit status; 128 + the signal for a killed one.
    pub status: u8,
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
}

impl fmt::Display for ShellOutput {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "status {}\n{}{}", self.status, self.stdout, self.stderr)
    }
}

/// How the guest's code is executed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Accelerator {
    /// KVM if a guest boots on it, otherwise emulation.
    #[default]
    Auto,
    /// KVM: the guest does not boot where `/dev/kvm` is not usable.
    Kvm,
    /// Software emulation, which works everywhere.
    Tcg,
}

impl fmt::Display for Accelerator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Auto => "auto",
            Self::Kvm => "kvm",
            Self::Tcg => "tcg",
        })
    }
}

/// Options of a guest.
#[derive(Debug, Clone)]
pub struct Options {
    /// How its code is executed.
    pub accelerator: Accelerator,
    /// Whether its interface leaves checksums and segmentation to the other end of the TAP, as fast virtual
    /// machines do. If not, every frame on the TAP is as it would be on a cable.
    pub offloads: bool,
    /// The address of its Ethernet interface; with several guests on one bridge, each needs a different one.
    pub mac: String,
    /// The TAP interface of a second one, `eth1`: a guest with two is a router between them.
    pub second_tap: Option<String>,
    /// How many processors it has.
    pub processors: u32,
    /// Limit for booting.
    pub boot_limit: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            accelerator: Accelerator::Auto,
            offloads: true,
            mac: "52:54:00:00:00:01".to_owned(),
            second_tap: None,
            processors: 1,
            boot_limit: BOOT_LIMIT,
        }
    }
}

/// A program that runs in the guest while the test continues; it ends with [`LinuxPeer::stop`] or with the
/// guest.
#[derive(Debug)]
#[must_use = "without it, the program cannot be stopped and its output not be seen"]
pub struct Background {
    process: u32,
    /// The name of the file with its output.
    log: u64,
}

/// A running guest. Dropping it kills the machine.
pub struct LinuxPeer {
    machine: Machine,
    commands: u64,
}

impl LinuxPeer {
    /// Where the guest's image is kept: `linux-peer` in cargo's target folder.
    pub fn default_cache() -> PathBuf {
        let target = std::env::var_os("CARGO_TARGET_DIR")
            .map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target"), PathBuf::from);
        target.join("linux-peer")
    }

    /// Builds the image in `cache` unless a current one is there. The first build needs the network: call
    /// this before entering private namespaces.
    ///
    /// # Errors
    /// The script failed; the error carries its output, such as which package is missing.
    pub fn prepare_image(cache: &Path) -> Result<(), PeerError> {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/linux-peer/build-image.sh");
        let output =
            Command::new("bash").arg(script).arg(cache).stdin(Stdio::null()).output().map_err(|source| {
                PeerError::Io { action: "start tests/linux-peer/build-image.sh", source }
            })?;
        if output.status.success() {
            return Ok(());
        }
        Err(PeerError::Build(String::from_utf8_lossy(&output.stderr).trim().to_owned()))
    }

    /// Boots a guest with the image in `cache` on the existing TAP interface `tap` of `namespace`, and waits
    /// until it accepts commands.
    ///
    /// # Errors
    /// qemu or the image is missing, or the guest did not come up in time.
    pub fn boot(namespace: &Namespace, tap: &str, cache: &Path) -> Result<Self, PeerError> {
        Self::boot_with(namespace, tap, cache, &Options::default())
    }

    /// As [`boot`](Self::boot), with options.
    ///
    /// # Errors
    /// As [`boot`](Self::boot).
    pub fn boot_with(
        namespace: &Namespace,
        tap: &str,
        cache: &Path,
        options: &Options,
    ) -> Result<Self, PeerError> {
        let machine = Machine::boot(namespace, tap, cache, options)?;
        Ok(Self { machine, commands: 0 })
    }

    /// The accelerator in use: never [`Accelerator::Auto`].
    pub fn accelerator(&self) -> Accelerator {
        self.machine.accelerator()
    }

    /// The end of the output of the guest's kernel and the emulator so far.
    pub fn console(&self) -> String {
        self.machine.console()
    }

    /// Runs a shell script in the guest to completion, whatever its status. After `limit` (rounded up to
    /// seconds) it and all its children are killed.
    ///
    /// # Errors
    /// It exceeded the limit, or the guest was lost. A status other than 0 is no error.
    pub fn sh(&mut self, script: &str, limit: Duration) -> Result<ShellOutput, PeerError> {
        self.commands += 1;
        let seconds = limit.as_secs() + u64::from(limit.subsec_nanos() > 0);
        let started = Instant::now();
        let marker = channel::marker(self.commands);
        let result = self.machine.channel().command(&marker, seconds, script, started + limit + GRACE);
        let output = result
            .map_err(|reason| PeerError::Lost { reason: reason.to_string(), console: self.console() })?;
        // Status 128 + SIGKILL, and not before the limit: our limit killed it.
        if output.status == 137 && started.elapsed() >= limit {
            return Err(PeerError::TimedOut { script: script.to_owned(), limit, output });
        }
        Ok(output)
    }

    /// Runs a shell script that must succeed within ten seconds, and returns its standard output.
    ///
    /// # Errors
    /// As [`sh`](Self::sh), and for a status other than 0.
    pub fn run(&mut self, script: &str) -> Result<String, PeerError> {
        let output = self.sh(script, Duration::from_secs(10))?;
        if output.status == 0 {
            return Ok(output.stdout);
        }
        Err(PeerError::Failed { script: script.to_owned(), output })
    }

    /// Starts a shell script that continues while the guest executes other commands. Write `exec program …`
    /// to have a single process. It may not be ready yet: see [`wait_until`](Self::wait_until).
    ///
    /// # Errors
    /// As [`run`](Self::run).
    pub fn background(&mut self, script: &str) -> Result<Background, PeerError> {
        let log = self.commands;
        let start = format!(
            ": >/run/background/{log}; setsid /bin/sh -c {} >/run/background/{log} 2>&1 & echo $!",
            quoted(script)
        );
        let printed = self.run(&start)?;
        let process = printed.trim().parse().map_err(|_| PeerError::Lost {
            reason: format!("no process number but {printed:?}"),
            console: self.console(),
        })?;
        Ok(Background { process, log })
    }

    /// The output of a background program so far, standard output and error together.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    pub fn output_of(&mut self, background: &Background) -> Result<String, PeerError> {
        self.run(&format!("cat /run/background/{}", background.log))
    }

    /// Stops a background program and all its children, and returns its output.
    ///
    /// # Errors
    /// As [`run`](Self::run). It is no error if the program has already exited by itself.
    pub fn stop(&mut self, background: Background) -> Result<String, PeerError> {
        let Background { process, log } = background;
        // Group and process: one just started may not lead its own group yet.
        self.run(&format!("kill -s KILL -- -{process} {process} 2>/dev/null; cat /run/background/{log}"))
    }

    /// Retries a shell script until it succeeds: `wait_until("ss -Hltn | grep -q :5201", …)`.
    ///
    /// # Errors
    /// It did not succeed within `limit`, or the guest was lost.
    pub fn wait_until(&mut self, condition: &str, limit: Duration) -> Result<(), PeerError> {
        let patient = format!("until ( {condition}\n) >/dev/null; do usleep 20000; done");
        self.sh(&patient, limit).map(drop)
    }
}

/// `text` quoted as one word of a shell script, whatever it contains.
pub fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quoted_text_survives_a_shell() {
        let text = "it's $HOME \"and\" `more` \\ \n'";
        let output = Command::new("sh").arg("-c").arg(format!("printf %s {}", quoted(text))).output();
        assert_eq!(output.map(|output| output.stdout).expect("sh runs"), text.as_bytes());
    }
}
