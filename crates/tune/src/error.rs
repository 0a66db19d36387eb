//! Why nothing, or not everything, could be done.

use crate::believed::number;
use crate::folder::MACHINE;
use crate::report::Report;
use std::io;
use std::path::{Path, PathBuf};

/// Why a command failed. The text says what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TuneError {
    /// There is no such interface.
    #[error("there is no interface '{0}' here: `ip link` lists those that there are")]
    NoInterface(String),
    /// The kernel does not answer about devices.
    #[error("the kernel does not say what {interface} can: {source}")]
    Ethtool {
        /// The interface.
        interface: String,
        /// What the kernel said.
        source: io::Error,
    },
    /// Somebody else applies or undoes now.
    #[error("another `testudo tune` is at work with {}: try again when it has ended", .0.display())]
    Busy(PathBuf),
    /// The state folder is not to be trusted.
    #[error("{} {why}: originals are kept there, so it must be this user's alone; {}", path.display(), advice(path))]
    Untrusted {
        /// The folder, or a file in it.
        path: PathBuf,
        /// What is wrong with it.
        why: &'static str,
    },
    /// A file of the state folder cannot be read as what it should be.
    #[error("{}: {why}; nothing of it was changed", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// A journal of another interface cannot be read.
    #[error(
        "{0}; it is another interface's: have it readable again (root's, mode 0600), or remove it, and what that one has changed stays as it is"
    )]
    OfAnother(Box<TuneError>),
    /// A file that this program would not read again.
    #[error("{} would become too long to be read again: it is as it was, and nothing is changed that it does not have", .0.display())]
    TooLong(PathBuf),
    /// This boot cannot be told from others.
    #[error(
        "/proc/sys/kernel/random/boot_id cannot be read: without it the originals of another boot would be taken for this one's"
    )]
    NoBoot,
    /// Reading or writing files of our own.
    #[error("{action} {}: {source}", path.display())]
    File {
        /// What was tried.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The state folder has the originals of another network namespace.
    #[error(
        "the state of {interface} ({interface}.json) is of another network namespace, {}: run in that one, or name another folder with --state; if it has ended, `testudo tune undo {interface} --namespace {}`",
        number(of),
        number(of)
    )]
    OtherNamespace {
        /// Whose state it is.
        interface: String,
        /// The namespace, as the kernel names it.
        of: String,
    },
    /// The interface whose originals these are has another name now.
    #[error(
        "the originals of {was} are of the interface that is called {now} now: `testudo tune undo {now}`, or rename it back first"
    )]
    Renamed {
        /// Its name when they were kept.
        was: String,
        /// Its name now.
        now: String,
    },
    /// An MTU below the least of IPv6.
    #[error(
        "below an MTU of 1280 the kernel takes IPv6 from {0}, with addresses and routes that undo could not bring back: name a larger one, or set it by hand"
    )]
    Ipv6Lost(String),
    /// The unit is not installed.
    #[error("testudo-tune@.service is not installed, so nothing would apply at boot: `make install`")]
    NoUnit,
    /// An interface that no unit can be named after.
    #[error("no unit of systemd can be named after the interface '{0}'")]
    UnitName(String),
    /// Nothing was kept for the next boot.
    #[error("nothing is kept for {0}: `testudo tune apply {0} --persist`")]
    NotKept(String),
    /// Some was done, or undone, and the rest was not.
    #[error("{why}")]
    Partly {
        /// What was.
        report: Box<Report>,
        /// Why that was not all.
        why: Box<TuneError>,
    },
    /// The measurement failed; what was applied stays.
    #[error("measurement: {0}")]
    Measurement(String),
}

/// What to do about a folder that is not to be trusted: the machine's has one place.
fn advice(path: &Path) -> &'static str {
    if path.starts_with(MACHINE) {
        "have its owner take it away, or make it so: it has what was changed of this machine since it booted"
    } else {
        "name another folder with --state"
    }
}

impl TuneError {
    /// Whether there is a better place to say it, where all can be done.
    #[must_use]
    pub const fn is_elsewhere(&self) -> bool {
        matches!(self, Self::OtherNamespace { .. } | Self::Renamed { .. })
    }

    /// The same of another interface's journal.
    pub(crate) fn of_another(self) -> Self {
        Self::OfAnother(Box::new(self))
    }

    /// An error of a file, for `map_err`.
    pub(crate) fn file<E: Into<io::Error>>(
        action: &'static str,
        path: impl Into<PathBuf>,
    ) -> impl FnOnce(E) -> Self {
        let path = path.into();
        move |error| Self::File { action, path, source: error.into() }
    }
}
