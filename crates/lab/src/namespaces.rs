//! Private networks without privileges: a whole topology of hosts, made of Linux network namespaces, that
//! vanishes with the process that built it.
//!
//! ```text
//!   caller ── waits ──▶ setpriv, unshare ──▶ same program again, process 1 of its own process namespace
//!                                             │  own user, network and mount namespaces, own /run
//!                                             ├── Namespace "site-a" ══ veth ══ Namespace "internet" …
//!                                             └── children started with Namespace::command
//! ```
//!
//! [`enter`] re-executes the current program inside; [`Namespace`] then builds the hosts. Interrupting or
//! killing the caller, in whatever way, kills the inside too: the kernel ends `unshare` with its parent
//! (`PR_SET_PDEATHSIG`), process 1 with `unshare`, and everything else with process 1. No file of the host is
//! changed and nothing is left in its `/run/netns`.
//!
//! Deliberately absent: routing daemons, bandwidth and loss (`tc` through [`Namespace::run`] does those).

use std::ffi::{OsStr, OsString};
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{MetadataExt, symlink};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Output, Stdio};

use rustix::mount::{MountFlags, mount, mount_bind_recursive, mount_move};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// Set for the inner process: the network namespace of the outer one, as `/proc/self/ns/net` names it.
const OUTER_NETWORK: &str = "TESTUDO_OUTER_NETWORK";
const OWN_NETWORK: &str = "/proc/self/ns/net";
/// Exists only in the `/run` that this module makes.
const PRIVATE_RUN: &str = "/run/testudo-private";
const TUN_DEVICE: &str = "/dev/net/tun";

/// Why a private network could not be built. The text tells the user what to do about it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NamespaceError {
    /// The kernel, a container or a security module forbids user namespaces, and we are not root.
    #[error("cannot create a private user and network namespace: {detail}\n{advice}")]
    Forbidden {
        /// The message of `unshare`.
        detail: String,
        /// The setting that forbids it, and how to change it.
        advice: String,
    },
    /// It takes root's rights outside of user namespaces, and we lack them.
    #[error("bpf(2), which AF_XDP needs, is for root outside of user namespaces, and {0}: run it with sudo")]
    NotRoot(&'static str),
    /// A program of the operating system is not installed.
    #[error("the program '{program}' is missing: install the package {package}")]
    MissingProgram {
        /// Its name on the path.
        program: String,
        /// The Debian package that contains it.
        package: &'static str,
    },
    /// TUN and TAP interfaces cannot be made.
    #[error("cannot open {TUN_DEVICE}: {source}; {advice}")]
    Tun {
        /// The error of opening the device.
        source: io::Error,
        /// What to do about it.
        advice: &'static str,
    },
    /// A command ran and failed.
    #[error("'{command}' failed ({status}): {stderr}")]
    Command {
        /// The command as a shell would show it.
        command: String,
        /// Its exit status.
        status: ExitStatus,
        /// Its standard error.
        stderr: String,
    },
    /// Not a valid namespace name.
    #[error("'{0}' is not a valid namespace name: use 1 to 64 letters, digits and hyphens")]
    Name(String),
    /// Any other call that the operating system refused.
    #[error("cannot {action}: {source}")]
    Io {
        /// What was attempted.
        action: String,
        /// The system's error.
        source: io::Error,
    },
}

fn io_error(action: impl Into<String>) -> impl FnOnce(io::Error) -> NamespaceError {
    let action = action.into();
    move |source| NamespaceError::Io { action, source }
}

/// Proof that this process is inside private namespaces, where it has root's rights.
#[derive(Debug, Clone, Copy)]
pub struct Entered(());

/// Whether an [`enter`] in a parent process has already put this one inside. Work to be done once and with
/// the host's network (a download, say) is done while this is false.
pub fn is_inside() -> bool {
    let Some(outer) = std::env::var_os(OUTER_NETWORK) else { return false };
    fs::read_link(OWN_NETWORK).is_ok_and(|own| own.as_os_str() != outer)
}

/// Enters private user, network, mount and process namespaces.
///
/// The first call re-executes the program inside, with the same arguments and standard streams, waits, and
/// ends the calling process with the inner one's exit status (128 + the signal if one killed it): only in the
/// inner process does this function return. Call it first in `main`, on the main thread. Inside, it returns
/// at once however often it is called.
///
/// The network there has only a loopback, which is up. Inside, the process is number 1, so the default
/// actions of SIGINT and SIGTERM do not apply to it; interrupting the outer process kills everything inside.
///
/// # Errors
/// User namespaces are forbidden and the caller is not root; `unshare` or `ip` is not installed.
pub fn enter() -> Result<Entered, NamespaceError> {
    enter_with(&[])
}

/// As [`enter`], and passes environment variables to the inner process: what the outer one has prepared for
/// it.
///
/// # Errors
/// As [`enter`].
pub fn enter_with(environment: &[(&str, &OsStr)]) -> Result<Entered, NamespaceError> {
    enter_by(permitted_flags, environment)
}

/// As [`enter`], without a user namespace of its own: for what the kernel refuses in every one but the first,
/// such as bpf(2).
///
/// # Errors
/// The caller is not root, or is in a user namespace; `unshare` or `ip` is not installed.
pub fn enter_as_root() -> Result<Entered, NamespaceError> {
    enter_as_root_with(&[])
}

/// As [`enter_as_root`], and passes environment variables to the inner process.
///
/// # Errors
/// The same.
pub fn enter_as_root_with(environment: &[(&str, &OsStr)]) -> Result<Entered, NamespaceError> {
    let flags = || {
        is_root_of_all(|path| fs::read_to_string(path).ok())?;
        permitted(vec![[ALL, PROC].concat(), ALL.to_vec()])
    };
    enter_by(flags, environment)
}

/// Whether this process is root where nobody is above it, from files as returned by `read`.
fn is_root_of_all(read: impl Fn(&str) -> Option<String>) -> Result<(), NamespaceError> {
    let status = read("/proc/self/status").unwrap_or_default();
    // Real, effective, saved and file system's.
    let uid = status.lines().find_map(|line| line.strip_prefix("Uid:")?.split_whitespace().nth(1));
    if uid != Some("0") {
        return Err(NamespaceError::NotRoot("this is no root"));
    }
    // The first user namespace maps all users to themselves.
    let map = read("/proc/self/uid_map").unwrap_or_default();
    match map.split_whitespace().collect::<Vec<_>>()[..] {
        ["0", "0", "4294967295"] => Ok(()),
        _ => Err(NamespaceError::NotRoot("this is root of a user namespace, to which the kernel refuses it")),
    }
}

fn enter_by(
    flags: impl FnOnce() -> Result<Vec<&'static str>, NamespaceError>,
    environment: &[(&str, &OsStr)],
) -> Result<Entered, NamespaceError> {
    if is_inside() {
        if !Path::new(PRIVATE_RUN).exists() {
            make_run_private().map_err(io_error("give this process a private /run"))?;
            checked(Command::new("ip").args(["link", "set", "lo", "up"]))?;
        }
        return Ok(Entered(()));
    }
    checked(Command::new("ip").arg("-V"))?;
    let flags = flags()?;
    let program = std::env::current_exe().map_err(io_error("find the program's own file"))?;
    let outer = fs::read_link(OWN_NETWORK).map_err(io_error("read this process's network namespace"))?;
    let status = Command::new("setpriv")
        .args(["--pdeathsig", "KILL", "unshare"])
        .args(flags)
        .arg("--")
        .arg(program)
        .args(std::env::args_os().skip(1))
        .env(OUTER_NETWORK, outer)
        .envs(environment.iter().copied())
        .status()
        .map_err(|error| not_started("setpriv", error))?;
    std::process::exit(status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0)))
}

const USER: &[&str] = &["--user", "--map-root-user"];
const ALL: &[&str] = &["--net", "--mount", "--pid", "--fork", "--kill-child"];

/// Some containers forbid mounting /proc; it then shows the host's process numbers, and still works.
const PROC: &[&str] = &["--mount-proc"];

/// The flags with which `unshare` works here, with a user namespace if possible.
fn permitted_flags() -> Result<Vec<&'static str>, NamespaceError> {
    let is_root = fs::metadata("/proc/self").is_ok_and(|own| own.uid() == 0);
    let mut candidates = vec![[USER, ALL, PROC].concat(), [USER, ALL].concat()];
    if is_root {
        candidates.extend([[ALL, PROC].concat(), ALL.to_vec()]);
    }
    permitted(candidates)
}

/// The first of these sets of flags with which `unshare` works.
fn permitted(candidates: Vec<Vec<&'static str>>) -> Result<Vec<&'static str>, NamespaceError> {
    let mut detail = String::new();
    for flags in candidates {
        match checked(Command::new("unshare").args(&flags).args(["--", "true"])) {
            Ok(_) => return Ok(flags),
            // The refusal of the least demanding set is reported.
            Err(NamespaceError::Command { stderr, .. }) => detail = stderr,
            Err(other) => return Err(other),
        }
    }
    Err(NamespaceError::Forbidden { detail, advice: advice(|path| fs::read_to_string(path).ok()) })
}

/// Names the settings that forbid user namespaces, from their values as returned by `read`.
fn advice(read: impl Fn(&str) -> Option<String>) -> String {
    const SETTINGS: [(&str, &str, &str, &str); 3] = [
        ("/proc/sys/kernel/unprivileged_userns_clone", "0", "kernel.unprivileged_userns_clone", "1"),
        ("/proc/sys/user/max_user_namespaces", "0", "user.max_user_namespaces", "10000"),
        (
            "/proc/sys/kernel/apparmor_restrict_unprivileged_userns",
            "1",
            "kernel.apparmor_restrict_unprivileged_userns",
            "0",
        ),
    ];
    let mut lines: Vec<String> = SETTINGS
        .iter()
        .filter(|(path, forbidding, ..)| read(path).is_some_and(|value| value.trim() == *forbidding))
        .map(|(_, forbidding, name, permitting)| {
            format!("{name} is {forbidding}: allow it with `sysctl -w {name}={permitting}`, or run as root")
        })
        .collect();
    if lines.is_empty() {
        let none =
            "no sysctl forbids it, so a container or a security module does: run outside of it, or as root";
        lines.push(none.to_owned());
    }
    lines.join("\n")
}

/// Mounts a new file system on `/run`, so that `ip netns` may write there and the host never sees it.
///
/// The host's folders in `/run` stay reachable (a disk may be mounted there, or the user's runtime folder be
/// in use). Its plain files, mostly locks, do not: they belong to root and would only be in the way.
fn make_run_private() -> io::Result<()> {
    let stage: PathBuf = std::env::temp_dir().join(format!("testudo-run-{}", std::process::id()));
    fs::create_dir_all(&stage)?;
    mount("testudo-run", &stage, "tmpfs", MountFlags::NOSUID | MountFlags::NODEV, c"mode=755")?;
    for entry in fs::read_dir("/run")? {
        let entry = entry?;
        let (from, to, kind) = (entry.path(), stage.join(entry.file_name()), entry.file_type()?);
        if kind.is_symlink() {
            symlink(fs::read_link(&from)?, &to)?;
        } else if kind.is_dir() && entry.file_name() != "netns" {
            fs::create_dir(&to)?;
            // A folder that cannot be mounted stays empty: nothing of ours depends on it.
            let _ = mount_bind_recursive(&from, &to);
        }
    }
    fs::create_dir(stage.join("netns"))?;
    fs::create_dir(stage.join("testudo-private"))?;
    mount_move(&stage, "/run")?;
    fs::remove_dir(&stage)
}

/// Checks that TUN and TAP interfaces can be made here; [`Namespace::tun`] and [`Namespace::tap`] check this
/// themselves.
///
/// # Errors
/// `/dev/net/tun` is absent or may not be opened; the error carries advice.
pub fn require_tun() -> Result<(), NamespaceError> {
    OpenOptions::new().read(true).write(true).open(TUN_DEVICE).map(drop).map_err(|source| {
        let advice = match source.kind() {
            io::ErrorKind::PermissionDenied => {
                "allow it with `chmod 666 /dev/net/tun` as root, or run as root"
            }
            io::ErrorKind::NotFound => {
                "load the driver with `modprobe tun` as root; in a container, pass the device in"
            }
            _ => "load the driver with `modprobe tun` as root",
        };
        NamespaceError::Tun { source, advice }
    })
}

/// A named network namespace: a host of the private network. It is removed when dropped, or with the process.
#[derive(Debug)]
pub struct Namespace {
    name: String,
}

impl Namespace {
    /// Makes an empty namespace with its loopback up, where IPv6 addresses are usable at once (no duplicate
    /// address detection) and router advertisements are ignored.
    ///
    /// # Errors
    /// The name is taken or not made of letters, digits and hyphens.
    pub fn new(_inside: Entered, name: &str) -> Result<Self, NamespaceError> {
        let fits = (1..=64).contains(&name.len());
        if !fits || name.starts_with('-') || !name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-') {
            return Err(NamespaceError::Name(name.to_owned()));
        }
        checked(Command::new("ip").args(["netns", "add", name]))?;
        let namespace = Self { name: name.to_owned() };
        for setting in ["all", "default"] {
            namespace.sysctl(&format!("net.ipv6.conf.{setting}.accept_dad"), "0")?;
            namespace.sysctl(&format!("net.ipv6.conf.{setting}.accept_ra"), "0")?;
        }
        namespace.link_up("lo")?;
        Ok(namespace)
    }

    /// The name, as `ip netns` shows it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// A command that will run in this namespace, under a `/sys` that shows its interfaces.
    ///
    /// The process is the program itself, not a wrapper: process number and exit status are the program's.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.name]).arg(program);
        command
    }

    /// Runs `words[0]` with the other words as arguments to completion, and returns its standard output.
    ///
    /// # Errors
    /// It could not be started or exited with a status other than 0; the error carries its standard error.
    pub fn run(&self, words: &[&str]) -> Result<String, NamespaceError> {
        let (program, arguments) = words.split_first().unwrap_or((&"true", &[]));
        checked(self.command(program).args(arguments))
    }

    /// Calls `work` on a thread in this namespace: every socket and TUN device that it opens belongs to the
    /// namespace for good, even when passed to a thread outside. Threads that `work` starts are in the
    /// namespace too.
    ///
    /// # Errors
    /// The namespace could not be joined. A panic of `work` is resumed in the caller.
    pub fn within<T: Send>(&self, work: impl FnOnce() -> T + Send) -> Result<T, NamespaceError> {
        let path = Path::new("/run/netns").join(&self.name);
        let file = File::open(&path).map_err(io_error(format!("open {}", path.display())))?;
        let thread = || {
            move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network))
                .map_err(|error| io_error(format!("join the namespace {}", self.name))(error.into()))?;
            Ok(work())
        };
        std::thread::scope(|scope| scope.spawn(thread).join())
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }

    /// `ip` with these arguments, in this namespace.
    fn ip(&self, arguments: &[&str]) -> Result<String, NamespaceError> {
        checked(Command::new("ip").args(["-n", &self.name]).args(arguments))
    }

    /// Gives `interface` an address with its prefix length: `10.0.0.1/24`, `fd00::1/64`.
    ///
    /// # Errors
    /// The error of `ip`, as from every method below.
    pub fn address(&self, interface: &str, address: &str) -> Result<(), NamespaceError> {
        let mut words = vec!["address", "add", address, "dev", interface];
        if address.contains(':') {
            words.push("nodad");
        }
        self.ip(&words).map(drop)
    }

    /// Routes `destination` (a prefix, or `default`) through the router `gateway`.
    ///
    /// # Errors
    /// The error of `ip`.
    pub fn route_via(&self, destination: &str, gateway: &str) -> Result<(), NamespaceError> {
        self.route(destination, ["via", gateway])
    }

    /// Routes `destination` directly into `interface`, as for a TUN device.
    ///
    /// # Errors
    /// The error of `ip`.
    pub fn route_into(&self, destination: &str, interface: &str) -> Result<(), NamespaceError> {
        self.route(destination, ["dev", interface])
    }

    fn route(&self, destination: &str, [how, whither]: [&str; 2]) -> Result<(), NamespaceError> {
        // "default" alone would mean IPv4's; the family follows from the next hop if that is an address.
        let family = if destination.contains(':') || whither.contains(':') { "-6" } else { "-4" };
        self.ip(&[family, "route", "replace", destination, how, whither]).map(drop)
    }

    /// Brings `interface` up.
    ///
    /// # Errors
    /// The error of `ip`.
    pub fn link_up(&self, interface: &str) -> Result<(), NamespaceError> {
        self.ip(&["link", "set", interface, "up"]).map(drop)
    }

    /// Sets the MTU of `interface`: the largest IP packet, in bytes.
    ///
    /// # Errors
    /// The error of `ip`.
    pub fn mtu(&self, interface: &str, bytes: usize) -> Result<(), NamespaceError> {
        self.ip(&["link", "set", interface, "mtu", &bytes.to_string()]).map(drop)
    }

    /// Sets a kernel variable of this namespace: `sysctl("net.ipv4.ip_forward", "1")`. Interfaces with dots
    /// in their names cannot be named this way.
    ///
    /// # Errors
    /// There is no such variable, or this namespace may not set it (the host's memory limits, for example).
    pub fn sysctl(&self, name: &str, value: &str) -> Result<(), NamespaceError> {
        let path = Path::new("/proc/sys").join(name.replace('.', "/"));
        let set = || fs::write(&path, value).map_err(io_error(format!("set {name} to {value}")));
        self.within(set)?
    }

    /// Enables routing between this namespace's interfaces, IPv4 and IPv6.
    ///
    /// # Errors
    /// As [`sysctl`](Self::sysctl).
    pub fn forward(&self) -> Result<(), NamespaceError> {
        self.sysctl("net.ipv4.ip_forward", "1")?;
        self.sysctl("net.ipv6.conf.all.forwarding", "1")
    }

    /// Joins interfaces by a switch, which says nothing itself.
    ///
    /// # Errors
    /// The error of `ip`.
    pub fn bridge(&self, name: &str, interfaces: &[&str]) -> Result<(), NamespaceError> {
        self.ip(&["link", "add", name, "type", "bridge", "mcast_snooping", "0"])?;
        for interface in interfaces {
            self.ip(&["link", "set", interface, "master", name])?;
        }
        self.link_up(name)
    }

    /// Makes a persistent TUN interface (IP packets) and brings it up.
    ///
    /// # Errors
    /// As [`require_tun`], or the error of `ip`.
    pub fn tun(&self, interface: &str) -> Result<(), NamespaceError> {
        self.tuntap(interface, "tun")
    }

    /// Makes a persistent TAP interface (Ethernet frames) and brings it up.
    ///
    /// # Errors
    /// As [`require_tun`], or the error of `ip`.
    pub fn tap(&self, interface: &str) -> Result<(), NamespaceError> {
        self.tuntap(interface, "tap")
    }

    fn tuntap(&self, interface: &str, mode: &str) -> Result<(), NamespaceError> {
        require_tun()?;
        self.ip(&["tuntap", "add", "dev", interface, "mode", mode])?;
        self.link_up(interface)
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        // The kernel would remove it with the process; deleting it now frees the name and the interfaces.
        let _ = checked(Command::new("ip").args(["netns", "delete", &self.name]));
    }
}

/// Joins two namespaces with a virtual Ethernet cable, `(namespace, interface)` at each end, and brings both
/// ends up.
///
/// # Errors
/// The error of `ip`, such as that a name is taken.
pub fn veth(a: (&Namespace, &str), b: (&Namespace, &str)) -> Result<(), NamespaceError> {
    cable(a, b, &[])
}

/// The same with so many queues at each end: as many to receive as to send, which XDP in native mode needs.
///
/// # Errors
/// The same.
pub fn veth_with_queues(
    a: (&Namespace, &str),
    b: (&Namespace, &str),
    queues: u32,
) -> Result<(), NamespaceError> {
    let queues = queues.to_string();
    cable(a, b, &["numrxqueues", &queues, "numtxqueues", &queues])
}

fn cable(a: (&Namespace, &str), b: (&Namespace, &str), more: &[&str]) -> Result<(), NamespaceError> {
    let peer = ["type", "veth", "peer", "name", b.1, "netns", b.0.name()];
    let ends = [&["link", "add", a.1, "netns", a.0.name()], more, &peer, more].concat();
    checked(Command::new("ip").args(ends))?;
    a.0.link_up(a.1)?;
    b.0.link_up(b.1)
}

/// Runs a command to completion without input, and returns its standard output.
fn checked(command: &mut Command) -> Result<String, NamespaceError> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command.stdin(Stdio::null()).output().map_err(|error| not_started(&program, error))?;
    let Output { status, stdout, stderr } = output;
    if status.success() {
        return Ok(String::from_utf8_lossy(&stdout).into_owned());
    }
    let stderr = String::from_utf8_lossy(&stderr).trim().to_owned();
    Err(NamespaceError::Command { command: shown(command), status, stderr })
}

fn shown(command: &Command) -> String {
    let words: Vec<OsString> =
        std::iter::once(command.get_program()).chain(command.get_args()).map(OsStr::to_owned).collect();
    words.join(OsStr::new(" ")).to_string_lossy().into_owned()
}

fn not_started(program: &str, error: io::Error) -> NamespaceError {
    let package = if program == "ip" { "iproute2" } else { "util-linux" };
    match error.kind() {
        io::ErrorKind::NotFound => NamespaceError::MissingProgram { program: program.to_owned(), package },
        _ => io_error(format!("start {program}"))(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn advice_names_each_sysctl_that_forbids() {
        let text = advice(|path| path.ends_with("max_user_namespaces").then(|| "0\n".to_owned()));
        assert_eq!(
            text,
            "user.max_user_namespaces is 0: allow it with `sysctl -w user.max_user_namespaces=10000`, or run as root"
        );
        let text = advice(|path| Some(if path.contains("apparmor") { "1" } else { "0" }.to_owned()));
        assert_eq!(text.lines().count(), 3, "{text}");
        assert!(text.contains("kernel.apparmor_restrict_unprivileged_userns=0"), "{text}");
    }

    #[test]
    fn advice_without_a_forbidding_sysctl_suspects_the_container() {
        assert!(advice(|_| None).contains("container"));
        assert!(advice(|_| Some("4711".to_owned())).contains("as root"));
    }

    #[test]
    fn only_root_of_all_is_root() {
        let of = |uid: &str, map: &str| {
            is_root_of_all(|path| match path {
                "/proc/self/status" => Some(format!("Name:\tx\nUid:\t0\t{uid}\t0\t0\n")),
                _ => Some(map.to_owned()),
            })
        };
        let all = "         0          0 4294967295\n";
        assert!(of("0", all).is_ok());
        for (uid, map, why) in
            [("1000", all, "no root"), ("0", "0 1000 1\n", "user namespace"), ("0", "", "user")]
        {
            let said = of(uid, map).unwrap_err().to_string();
            assert!(said.contains(why) && said.contains("sudo"), "{said}");
        }
    }

    #[test]
    fn names_that_could_be_options_or_paths_are_refused_before_any_command_runs() {
        for name in ["", "-n", "a/b", "..", "a b", &"x".repeat(65)] {
            let refused = Namespace::new(Entered(()), name);
            assert!(matches!(refused, Err(NamespaceError::Name(_))), "{name:?}: {refused:?}");
        }
    }

    #[test]
    fn a_missing_program_is_reported_with_its_package() {
        let error = checked(&mut Command::new("no-such-program-of-testudo")).expect_err("there is none");
        assert_eq!(
            error.to_string(),
            "the program 'no-such-program-of-testudo' is missing: install the package util-linux"
        );
    }

    #[test]
    fn a_failing_command_is_reported_with_its_words_and_its_complaint() {
        let error = checked(Command::new("sh").args(["-c", "echo why >&2; exit 3"])).expect_err("it exits 3");
        assert_eq!(error.to_string(), "'sh -c echo why >&2; exit 3' failed (exit status: 3): why");
    }
}
