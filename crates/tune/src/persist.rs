//! After a reboot: systemd applies again when the interface appears.
//!
//! The unit `testudo-tune@.service` is installed with the program. To enable it for an interface is a link,
//! the one that `systemctl enable` would make: it is made here, so that it works without a running
//! systemd, as in an image, and so that undo removes exactly that.

use crate::error::TuneError;
use std::fs::{self, File};
use std::io::ErrorKind;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const TEMPLATE: &str = "testudo-tune@.service";
/// Where systemd looks for units, in its order (systemd.unit(5)).
const FOLDERS: [&str; 5] = [
    "etc/systemd/system",
    "run/systemd/system",
    "usr/local/lib/systemd/system",
    "usr/lib/systemd/system",
    "lib/systemd/system",
];

/// A name as systemd writes it in names of units: what is no letter, digit, `:`, `_` or `.` in hexadecimal.
#[must_use]
pub fn escaped(name: &str) -> String {
    let byte = |(place, byte): (usize, u8)| match byte {
        b'.' if place == 0 => "\\x2e".to_owned(),
        b if b.is_ascii_alphanumeric() || matches!(b, b':' | b'_' | b'.') => char::from(b).to_string(),
        b => format!("\\x{b:02x}"),
    };
    name.bytes().enumerate().map(byte).collect()
}

/// The unit of an interface.
#[must_use]
pub fn unit(interface: &str) -> String {
    format!("testudo-tune@{}.service", escaped(interface))
}

/// Has systemd start the unit of an interface whenever this appears. `root` is `/`, or that of an image.
///
/// # Errors
/// The unit is not installed or masked; the link cannot be made.
pub fn enable(root: &Path, interface: &str) -> Result<(), TuneError> {
    if interface.starts_with('.') {
        // The device's unit has the name inside of a path, where a dot is written as it is.
        return Err(TuneError::UnitName(interface.to_owned()));
    }
    let template = FOLDERS.map(|folder| Path::new(folder).join(TEMPLATE));
    let template = template.into_iter().find(|file| root.join(file).symlink_metadata().is_ok());
    // One that is masked is no file but /dev/null.
    let template = template.filter(|file| root.join(file).is_file()).ok_or(TuneError::NoUnit)?;
    let link = link(root, interface);
    let folder = link.parent().unwrap_or(root);
    fs::create_dir_all(folder).map_err(TuneError::file("make", folder))?;
    remove(&link)?;
    symlink(Path::new("/").join(template), &link).map_err(TuneError::file("link", &link))?;
    File::open(folder).and_then(|folder| folder.sync_all()).map_err(TuneError::file("write", folder))
}

/// Takes that back; whether it was done.
///
/// # Errors
/// The link cannot be removed.
pub fn disable(root: &Path, interface: &str) -> Result<bool, TuneError> {
    let link = link(root, interface);
    let was_there = remove(&link)?;
    // It stays if other units are wanted there.
    let _ = link.parent().map(fs::remove_dir);
    Ok(was_there)
}

/// What became of telling systemd.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reload {
    /// It has read its units again.
    Done,
    /// It does not run below this root, and reads them when it starts.
    NotRunning,
    /// It does not know yet, and why.
    Failed(String),
}

/// Has a running systemd read its units again: without that it knows of a link, or that it has gone, after a
/// reboot only. `systemctl` is the program.
#[must_use]
pub fn reload(root: &Path, systemctl: &Path) -> Reload {
    // As sd_booted(3) finds it.
    if !root.join("run/systemd/system").is_dir() {
        return Reload::NotRunning;
    }
    match Command::new(systemctl).arg("daemon-reload").stdin(Stdio::null()).output() {
        Ok(output) if output.status.success() => Reload::Done,
        Ok(output) => Reload::Failed(String::from_utf8_lossy(&output.stderr).trim().to_owned()),
        Err(error) => Reload::Failed(format!("{}: {error}", systemctl.display())),
    }
}

fn remove(link: &Path) -> Result<bool, TuneError> {
    match fs::remove_file(link) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
        Err(error) => Err(TuneError::file("remove", link)(error)),
    }
}

fn link(root: &Path, interface: &str) -> PathBuf {
    let device = format!("sys-subsystem-net-devices-{}.device.wants", escaped(interface));
    root.join(FOLDERS[0]).join(device).join(unit(interface))
}
