//! AppArmor's profiles of the daemons: what they need to load the library and reach the socket.

use super::gateway::Gateway;
use super::host::Host;
use super::texts::{Content, Wanted};
use crate::cli::ike::DaemonArg;
use crate::exit::{Failure, Kind};
use std::fmt::Write as _;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const FOLDER: &str = "/etc/apparmor.d";

/// A profile, and what the program that it confines does.
#[derive(Debug, Clone, Copy)]
struct Profile {
    name: &'static str,
    /// It speaks to the gateway; others only inherit the library from the service.
    is_daemon: bool,
}

const fn daemon(name: &'static str) -> Profile {
    Profile { name, is_daemon: true }
}

const fn helper(name: &'static str) -> Profile {
    Profile { name, is_daemon: false }
}

const STRONGSWAN: [Profile; 5] = [
    daemon("usr.sbin.charon-systemd"),
    daemon("usr.lib.ipsec.charon"),
    helper("usr.sbin.swanctl"),
    helper("usr.lib.ipsec.stroke"),
    helper("usr.lib.ipsec.lookip"),
];
const LIBRESWAN: [Profile; 3] =
    [daemon("usr.libexec.ipsec.pluto"), daemon("usr.lib.ipsec.pluto"), helper("usr.libexec.ipsec.whack")];

/// What is to be written for the profiles that there are, and what cannot be.
#[derive(Debug, Default)]
pub struct Mending {
    /// Additions to files in local/.
    pub files: Vec<Wanted>,
    /// Profiles to load again.
    pub profiles: Vec<PathBuf>,
    /// What an operator is to know.
    pub notes: Vec<String>,
}

impl Mending {
    /// For the profiles of a daemon.
    pub fn of(host: &Host, daemon: DaemonArg, gateway: &Gateway) -> Self {
        let mut mending = Self::default();
        for profile in profiles(daemon) {
            let path = format!("{FOLDER}/{}", profile.name);
            if !host.has(&path) || host.has(&format!("{FOLDER}/disable/{}", profile.name)) {
                continue;
            }
            let text = host.text(Path::new(&path));
            let local = format!("local/{}", profile.name);
            let includes = |line: &str| line.contains("include") && line.contains(&local);
            if !text.lines().any(includes) {
                mending.notes.push(format!(
                    "{path} does not include {local}, so it is not changed: if it confines the daemon, add to it\n{}",
                    rules(*profile, gateway)
                ));
                continue;
            }
            let content = Content::After(rules(*profile, gateway));
            mending.files.push(Wanted { path: format!("{FOLDER}/{local}"), content, mode: 0o644 });
            mending.profiles.push(path.into());
        }
        mending
    }
}

fn profiles(daemon: DaemonArg) -> &'static [Profile] {
    match daemon {
        DaemonArg::Strongswan => &STRONGSWAN,
        DaemonArg::Libreswan => &LIBRESWAN,
    }
}

/// The profiles whose additions are among these files.
pub fn profiles_of<'a>(paths: impl Iterator<Item = &'a str>) -> Vec<PathBuf> {
    let names = paths.filter_map(|path| path.strip_prefix(FOLDER)?.strip_prefix("/local/"));
    names.map(|name| Path::new(FOLDER).join(name)).collect()
}

fn rules(profile: Profile, gateway: &Gateway) -> String {
    let mut text =
        String::from("# Begin of what `testudo ike setup` added, which takes it back with --undo --apply.\n");
    let _ = writeln!(text, "{} mr,", gateway.library.display());
    if profile.is_daemon {
        let _ = writeln!(text, "{} rw,", gateway.socket.display());
        // Of use where the profile has no rule for all networks, as Debian's has.
        text.push_str("network unix seqpacket,\n");
    }
    text + "# End of what `testudo ike setup` added.\n"
}

/// Has AppArmor's own parser judge the profiles as they are now and, on this host, load them.
///
/// # Errors
/// It refuses one.
pub fn load(host: &Host, profiles: &[PathBuf]) -> Result<(), Failure> {
    for profile in profiles {
        let here = host.path(profile);
        if !here.exists() {
            continue;
        }
        let base = host.path(Path::new(FOLDER));
        let words: &[&str] = if host.has_apparmor_on() { &["-r", "-T", "-W"] } else { &["-Q", "-K", "-T"] };
        let mut command = Command::new("apparmor_parser");
        command.args(words).arg("--base").arg(&base).arg("--").arg(&here);
        let output = match command.stdin(Stdio::null()).output() {
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(()),
            Err(e) => return Err(Failure::new(Kind::Port, format!("apparmor_parser: {e}"))),
            Ok(output) => output,
        };
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            let said = said.lines().map(str::trim).rfind(|line| !line.is_empty()).unwrap_or("no message");
            let words = format!("apparmor_parser refuses {}: {said}", here.display());
            return Err(Failure::new(Kind::Port, words));
        }
    }
    Ok(())
}
