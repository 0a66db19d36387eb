//! The virtual machine around the guest: qemu, its console, its teardown.

use std::collections::VecDeque;
use std::fs::OpenOptions;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use testudo_lab::namespaces::Namespace;

use super::channel::{Channel, ChannelError};
use super::{Accelerator, Options, PeerError};

const QEMU: &str = "qemu-system-x86_64";
/// How long a kernel on KVM may take to print its first line. Nested virtualisation that is offered but
/// broken shows as silence; an emulated kernel prints after about a second, so a real processor has ample
/// time.
const SIGN_OF_LIFE: Duration = Duration::from_secs(8);
const CONSOLE_LIMIT_BYTES: usize = 16 << 10;
/// The Ethernet address of a second interface.
const SECOND_MAC: &str = "52:54:00:00:01:01";

/// A running qemu. Dropping it kills it.
pub(super) struct Machine {
    child: Child,
    channel: Channel,
    console: Console,
    accelerator: Accelerator,
}

impl Machine {
    pub(super) fn boot(
        namespace: &Namespace,
        tap: &str,
        cache: &Path,
        options: &Options,
    ) -> Result<Self, PeerError> {
        require_qemu()?;
        for file in ["vmlinuz", "initramfs.cpio"] {
            let path = cache.join(file);
            if !path.is_file() {
                return Err(PeerError::NoImage(path));
            }
        }
        let launch = |accelerator| {
            let command = command(namespace, tap, cache, options, accelerator);
            Self::start(command, accelerator)?.until_ready(options.boot_limit)
        };
        match options.accelerator {
            Accelerator::Auto if kvm_opens() => match launch(Accelerator::Kvm) {
                // A device that opens may still not work: inside another virtual machine, KVM may fail or
                // hang later.
                Err(PeerError::Boot { .. }) => launch(Accelerator::Tcg),
                result => result,
            },
            Accelerator::Auto => launch(Accelerator::Tcg),
            explicit => launch(explicit),
        }
    }

    fn start(mut command: Command, accelerator: Accelerator) -> Result<Self, PeerError> {
        let io = |source| PeerError::Io { action: "start qemu", source };
        let (ours, theirs) = UnixStream::pair().map_err(io)?;
        let output = theirs.try_clone().map_err(io)?;
        command.stdin(OwnedFd::from(theirs)).stdout(OwnedFd::from(output)).stderr(Stdio::piped());
        let mut child = command.spawn().map_err(io)?;
        let console = Console::of(child.stderr.take());
        // The command holds the other end; until it is dropped, we would not see qemu close its copy.
        drop(command);
        Ok(Self { child, channel: Channel::new(ours), console, accelerator })
    }

    /// Waits for the guest's first line on the control channel.
    fn until_ready(mut self, limit: Duration) -> Result<Self, PeerError> {
        let started = Instant::now();
        let life = if self.accelerator == Accelerator::Kvm { SIGN_OF_LIFE.min(limit) } else { limit };
        let mut line = self.channel.line(started + life);
        // Once the kernel prints, it has the whole boot limit.
        if matches!(line, Err(ChannelError::Late)) && !self.console().is_empty() {
            line = self.channel.line(started + limit);
        }
        let reason = match line {
            Ok(line) if line.starts_with("ready ") => return Ok(self),
            Ok(line) => ChannelError::Nonsense(line).to_string(),
            Err(error) => error.to_string(),
        };
        let accelerator = self.accelerator;
        let console = self.console.clone();
        // Ends the console's reader, so that qemu's last output is complete.
        drop(self);
        Err(PeerError::Boot { accelerator, reason, console: console.text() })
    }

    pub(super) fn accelerator(&self) -> Accelerator {
        self.accelerator
    }

    pub(super) fn channel(&mut self) -> &mut Channel {
        &mut self.channel
    }

    pub(super) fn console(&self) -> String {
        self.console.text()
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        // Fails only if it has already exited.
        let _ = self.child.kill();
        let _ = self.child.wait();
        self.console.join();
    }
}

fn require_qemu() -> Result<(), PeerError> {
    match Command::new(QEMU).arg("--version").stdin(Stdio::null()).output() {
        Ok(_) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Err(PeerError::NoQemu),
        Err(source) => Err(PeerError::Io { action: "start qemu", source }),
    }
}

fn kvm_opens() -> bool {
    OpenOptions::new().read(true).write(true).open("/dev/kvm").is_ok()
}

fn command(
    namespace: &Namespace,
    tap: &str,
    cache: &Path,
    options: &Options,
    accelerator: Accelerator,
) -> Command {
    let processor = if accelerator == Accelerator::Kvm { "host" } else { "max" };
    let mut command = namespace.command("prlimit");
    // Where KVM is broken, qemu may abort; it must leave no core file then.
    command.args(["--core=0", QEMU, "-accel", &accelerator.to_string(), "-cpu", processor]);
    command.args(["-nodefaults", "-no-user-config", "-display", "none", "-no-reboot", "-m", "512"]);
    command.args(["-smp", &options.processors.to_string()]);
    command.arg("-kernel").arg(cache.join("vmlinuz")).arg("-initrd").arg(cache.join("initramfs.cpio"));
    command.args(["-append", "console=ttyS0 panic=-1"]);
    command.args(["-chardev", "file,id=console,path=/dev/stderr", "-serial", "chardev:console"]);
    command.args(["-chardev", "stdio,id=control,signal=off", "-device", "virtio-serial-pci"]);
    command.args(["-device", "virtserialport,chardev=control,name=control"]);
    command.args([
        "-object",
        "rng-random,id=random,filename=/dev/urandom",
        "-device",
        "virtio-rng-pci,rng=random",
    ]);
    plug(&mut command, "wire", tap, &network_card(options, "wire", &options.mac));
    if let Some(tap) = &options.second_tap {
        plug(&mut command, "second", tap, &network_card(options, "second", SECOND_MAC));
    }
    command
}

/// A network card with its TAP. The guest numbers its interfaces in the order of the cards.
fn plug(command: &mut Command, id: &str, tap: &str, card: &str) {
    command.arg("-netdev").arg(format!("tap,id={id},ifname={tap},script=no,downscript=no"));
    command.arg("-device").arg(card);
}

fn network_card(options: &Options, id: &str, mac: &str) -> String {
    let mut card = format!("virtio-net-pci,netdev={id},mac={mac}");
    if !options.offloads {
        for feature in ["csum", "gso", "guest_csum", "guest_tso4", "guest_tso6", "guest_ecn", "guest_ufo"] {
            card += &format!(",{feature}=off");
        }
        for feature in ["host_tso4", "host_tso6", "host_ecn", "host_ufo", "mrg_rxbuf"] {
            card += &format!(",{feature}=off");
        }
    }
    card
}

/// The end of qemu's standard error, where it and the guest's kernel write.
#[derive(Clone)]
struct Console {
    tail: Arc<Mutex<VecDeque<u8>>>,
    reader: Arc<Mutex<Option<JoinHandle<()>>>>,
}

impl Console {
    fn of(source: Option<impl Read + Send + 'static>) -> Self {
        let tail = Arc::new(Mutex::new(VecDeque::new()));
        let writer = Arc::clone(&tail);
        let reader = source.map(|source| std::thread::spawn(move || collect(source, &writer)));
        Self { tail, reader: Arc::new(Mutex::new(reader)) }
    }

    fn text(&self) -> String {
        let mut tail = self.tail.lock().unwrap_or_else(PoisonError::into_inner);
        String::from_utf8_lossy(tail.make_contiguous()).replace('\r', "").trim_end().to_owned()
    }

    /// Waits for the end of the output; call it once the writer is dead.
    fn join(&self) {
        let reader = self.reader.lock().unwrap_or_else(PoisonError::into_inner).take();
        // The reader does not panic; if it did, only the console text would be lost.
        let _ = reader.map(JoinHandle::join);
    }
}

fn collect(mut source: impl Read, tail: &Mutex<VecDeque<u8>>) {
    let mut chunk = [0; 4096];
    while let Ok(length @ 1..) = source.read(&mut chunk) {
        let mut tail = tail.lock().unwrap_or_else(PoisonError::into_inner);
        tail.extend(&chunk[..length]);
        let excess = tail.len().saturating_sub(CONSOLE_LIMIT_BYTES);
        tail.drain(..excess);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_console_keeps_the_end_of_what_was_written() {
        let written = [vec![b'a'; CONSOLE_LIMIT_BYTES], b"last\r\nwords\r\n".to_vec()].concat();
        let console = Console::of(Some(io::Cursor::new(written)));
        console.join();
        assert!(console.text().ends_with("alast\nwords"));
        assert!(console.text().len() <= CONSOLE_LIMIT_BYTES);
    }

    #[test]
    fn a_network_card_without_offloads_negotiates_none() {
        let options = Options { offloads: false, ..Options::default() };
        assert!(network_card(&options, "wire", SECOND_MAC).contains("csum=off"));
        assert!(!network_card(&Options::default(), "wire", SECOND_MAC).contains("off"));
    }
}
