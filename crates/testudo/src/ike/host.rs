//! A host, or a folder that is laid out like one: where its files are, and what is installed on it.

use crate::cli::ike::DaemonArg;
use crate::exit::{Failure, Kind};
use std::fs;
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

/// Files larger than this are none of those that this verb edits.
const MAX_BYTES: u64 = 1 << 20;

/// Where systemd looks for units, in its order: systemd.unit(5).
const UNIT_FOLDERS: [&str; 5] = [
    "/etc/systemd/system",
    "/run/systemd/system",
    "/usr/local/lib/systemd/system",
    "/usr/lib/systemd/system",
    "/lib/systemd/system",
];

/// The root of a host's files. Paths are given as the host sees them.
#[derive(Debug, Clone)]
pub struct Host {
    root: PathBuf,
}

impl Host {
    /// The host whose files are below `root`.
    pub fn new(root: &Path) -> Self {
        Self { root: root.into() }
    }

    /// Whether it is this host, with services that run.
    pub fn is_this(&self) -> bool {
        self.root == Path::new("/")
    }

    /// Where a file of the host is here.
    pub fn path(&self, path: &Path) -> PathBuf {
        self.root.join(path.strip_prefix("/").unwrap_or(path))
    }

    /// Whether there is a file or folder.
    pub fn has(&self, path: &str) -> bool {
        self.path(Path::new(path)).exists()
    }

    /// Whether there is a socket.
    pub fn has_socket(&self, path: &Path) -> bool {
        fs::symlink_metadata(self.path(path)).is_ok_and(|found| found.file_type().is_socket())
    }

    /// A file's bytes, or none where there is no such file.
    ///
    /// # Errors
    /// It is not a regular file, is longer than any that is edited here, or cannot be read.
    pub fn read(&self, path: &Path) -> Result<Option<Vec<u8>>, Failure> {
        let wrong = |what: String| Failure::new(Kind::Port, format!("{}: {what}", self.path(path).display()));
        let here = self.path(path);
        let found = match fs::symlink_metadata(&here) {
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(wrong(e.to_string())),
            Ok(found) => found,
        };
        if !found.is_file() || found.len() > MAX_BYTES {
            return Err(wrong("it is no regular file of at most 1 MiB, so it is not touched".into()));
        }
        fs::read(&here).map(Some).map_err(|e| wrong(e.to_string()))
    }

    /// The beginning of a file, as text; nothing where it cannot be read.
    pub fn text(&self, path: &Path) -> String {
        let mut bytes = Vec::new();
        let opened = fs::File::open(self.path(path));
        // What was read before an error counts: there is none in files that are there.
        let _ = opened.and_then(|file| file.take(MAX_BYTES).read_to_end(&mut bytes));
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// The names in a folder, sorted; none where there is no such folder.
    pub fn names(&self, folder: &str) -> Vec<String> {
        let read = fs::read_dir(self.path(Path::new(folder)));
        let names = read.into_iter().flatten().flatten().map(|entry| entry.file_name());
        let mut names: Vec<_> = names.filter_map(|name| name.into_string().ok()).collect();
        names.sort();
        names
    }

    /// The units of a daemon that are installed, by the names that they are started by.
    pub fn units(&self, daemon: DaemonArg) -> Vec<String> {
        let (names, marks): (&[&str], &[&str]) = match daemon {
            DaemonArg::Strongswan => (
                &[
                    "strongswan.service",
                    "strongswan-swanctl.service",
                    "strongswan-starter.service",
                    "ipsec.service",
                ],
                &["charon", "swanctl", "ipsec start", "starter"],
            ),
            DaemonArg::Libreswan => (&["ipsec.service", "libreswan.service"], &["pluto"]),
        };
        let mut units: Vec<String> = Vec::new();
        for name in names {
            let Some((real, text)) = self.unit(name) else { continue };
            let is_known = units.contains(&real);
            if !is_known && marks.iter().any(|mark| text.contains(mark)) {
                units.push(real);
            }
        }
        units
    }

    /// A unit's own name and text; `name` may be an alias. None for a masked one.
    pub fn unit(&self, name: &str) -> Option<(String, String)> {
        let found = UNIT_FOLDERS.iter().map(|folder| Path::new(folder).join(name));
        let path = found.into_iter().find(|path| fs::symlink_metadata(self.path(path)).is_ok())?;
        match fs::read_link(self.path(&path)) {
            // A link to a unit of another name is an alias of it; drop-ins belong to that one.
            Ok(target) => {
                let own = target.file_name()?.to_str()?.to_owned();
                let is_alias = own != name && own.ends_with(".service");
                if is_alias { self.unit(&own) } else { self.installed(name, &path) }
            }
            Err(_) => self.installed(name, &path),
        }
    }

    fn installed(&self, name: &str, path: &Path) -> Option<(String, String)> {
        let text = self.text(path);
        (!text.trim().is_empty()).then(|| (name.to_owned(), text))
    }

    /// SELinux's mode, if it is there.
    pub fn selinux(&self) -> Option<&'static str> {
        let enforce = self.text(Path::new("/sys/fs/selinux/enforce"));
        let configured = self.text(Path::new("/etc/selinux/config"));
        let is_configured =
            |mode: &str| configured.lines().any(|line| line.trim() == format!("SELINUX={mode}"));
        match enforce.trim() {
            "1" => Some("enforcing"),
            "0" => Some("permissive"),
            _ if !self.is_this() && is_configured("enforcing") => Some("enforcing"),
            _ => None,
        }
    }

    /// Whether AppArmor confines programs now.
    pub fn has_apparmor_on(&self) -> bool {
        self.is_this() && self.text(Path::new("/sys/module/apparmor/parameters/enabled")).starts_with('Y')
    }
}

/// An I/O error at a path, as a failure.
pub fn failed(path: &Path, error: &io::Error) -> Failure {
    let help = match error.kind() {
        ErrorKind::PermissionDenied => ": run this as root",
        _ => "",
    };
    Failure::new(Kind::Port, format!("{}: {error}{help}", path.display()))
}
