//! The host: values of the kernel at their places.

use crate::error::TuneError;
use crate::ethtool::Device;
use crate::place::{Direction, Place, is_interface_name};
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// What is at a place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reading {
    /// A value that may change.
    Value(String),
    /// A value that the device, or the kernel in this namespace, does not let change.
    Fixed(String),
    /// Nothing, and why: a clause without a full stop.
    Absent(String),
    /// It cannot be read now, and why: it may still be there.
    Unreadable(String),
}

impl Reading {
    /// The value, whether it may change or not.
    pub(crate) fn value(self) -> Option<String> {
        match self {
            Self::Value(value) | Self::Fixed(value) => Some(value),
            Self::Absent(_) | Self::Unreadable(_) => None,
        }
    }
}

/// What plan, check, apply and undo need of a host. [`System`] is Linux; tests have one that fails on
/// request.
pub trait Host {
    /// The interface.
    fn interface(&self) -> &str;
    /// What is at a place.
    fn read(&self, place: &Place) -> Reading;
    /// Changes it.
    ///
    /// # Errors
    /// The kernel's.
    fn write(&self, place: &Place, value: &str) -> io::Result<()>;
    /// The most descriptors that a ring can have, where the device says so.
    fn ring_limit(&self, direction: Direction) -> Option<u64>;
    /// The text of a file below the root, trimmed; nothing if it cannot be read.
    fn text(&self, file: &str) -> Option<String>;
    /// Names in a folder below the root, sorted; none if it cannot be read.
    fn names(&self, folder: &str) -> Vec<String>;
    /// Where a symbolic link below the root leads; nothing if there is none.
    fn link(&self, file: &str) -> Option<String>;
    /// The number of this network namespace, which no other one gets until the next boot; nothing where the
    /// kernel does not say.
    fn cookie(&self) -> Option<u64>;
    /// Whether its network namespace has ended: only what is the machine's is left.
    fn has_ended(&self) -> bool;
}

/// Linux: `/sys` and `/proc` below a root, and the device by netlink.
pub struct System<D> {
    root: PathBuf,
    interface: String,
    device: D,
}

impl<D: Device> System<D> {
    /// The host whose `/sys` and `/proc` are below `root`, as seen by an interface.
    ///
    /// # Errors
    /// There is no such interface.
    pub fn new(root: impl Into<PathBuf>, interface: &str, device: D) -> Result<Self, TuneError> {
        let root = root.into();
        let is_there = is_interface_name(interface) && root.join("sys/class/net").join(interface).is_dir();
        if !is_there {
            return Err(TuneError::NoInterface(interface.to_owned()));
        }
        Ok(Self { root, interface: interface.to_owned(), device })
    }

    /// The same for an interface that may have gone: what apply changed of the machine is still to be undone.
    ///
    /// # Errors
    /// No interface can have this name.
    pub fn without_interface(
        root: impl Into<PathBuf>,
        interface: &str,
        device: D,
    ) -> Result<Self, TuneError> {
        if !is_interface_name(interface) {
            return Err(TuneError::NoInterface(interface.to_owned()));
        }
        Ok(Self { root: root.into(), interface: interface.to_owned(), device })
    }

    /// The kernel also says of an interface that it is renaming, or that has just been moved, that there is
    /// none: the folder decides.
    fn has_gone(&self) -> bool {
        let folder = self.path("sys/class/net").join(&self.interface);
        folder.symlink_metadata().is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
    }

    fn of_the_device(&self, place: &Place) -> Reading {
        match self.device.read(place) {
            Reading::Unreadable(why) if self.has_gone() => Reading::Absent(why),
            reading => reading,
        }
    }

    fn path(&self, file: &str) -> PathBuf {
        self.root.join(file)
    }
}

impl<D: Device> Host for System<D> {
    fn interface(&self) -> &str {
        &self.interface
    }

    fn read(&self, place: &Place) -> Reading {
        let Some(file) = place.file(&self.interface) else { return self.of_the_device(place) };
        match fs::read_to_string(self.path(&file)) {
            // In a network namespace, the host's own limits can be read and have no write permission.
            Ok(text) if is_read_only(&self.path(&file)) => Reading::Fixed(words(&text)),
            Ok(text) => Reading::Value(words(&text)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                Reading::Absent(format!("there is no /{file}"))
            }
            Err(error) if error.kind() == io::ErrorKind::Unsupported => {
                Reading::Absent("the device has none".to_owned())
            }
            Err(error) if self.has_gone() => Reading::Absent(format!("/{file}: {error}")),
            Err(error) => Reading::Unreadable(format!("/{file}: {error}")),
        }
    }

    fn write(&self, place: &Place, value: &str) -> io::Result<()> {
        let Some(file) = place.file(&self.interface) else { return self.device.write(place, value) };
        write_existing(&self.path(&file), value)
    }

    fn ring_limit(&self, direction: Direction) -> Option<u64> {
        self.device.ring_limit(direction)
    }

    fn text(&self, file: &str) -> Option<String> {
        fs::read_to_string(self.path(file)).ok().map(|text| text.trim().to_owned())
    }

    fn names(&self, folder: &str) -> Vec<String> {
        let entries = fs::read_dir(self.path(folder)).into_iter().flatten().flatten();
        let mut names: Vec<String> =
            entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
        names.sort();
        names
    }

    fn link(&self, file: &str) -> Option<String> {
        fs::read_link(self.path(file)).ok().map(|target| target.to_string_lossy().into_owned())
    }

    fn cookie(&self) -> Option<u64> {
        self.device.cookie()
    }

    fn has_ended(&self) -> bool {
        false
    }
}

fn is_read_only(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|metadata| metadata.permissions().readonly())
}

/// The kernel separates numbers with tabs, and takes spaces.
fn words(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// One write, as the kernel takes each for a whole value. A file that is not there is not made.
fn write_existing(path: &Path, value: &str) -> io::Result<()> {
    OpenOptions::new().write(true).truncate(true).open(path)?.write_all(format!("{value}\n").as_bytes())
}
