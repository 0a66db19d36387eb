//! A network namespace that has ended, with its interfaces: what these have changed of the machine is still
//! to be undone, by another namespace.

use crate::believed::number;
use crate::host::{Host, Reading};
use crate::journal::NAMESPACE;
use crate::place::{Direction, Place};
use std::io;

/// The host, as an interface of an ended namespace would see it: the machine is there, and nothing else.
pub struct Ended<'a> {
    host: &'a dyn Host,
    namespace: String,
}

impl<'a> Ended<'a> {
    /// By the number that the namespace had. Nothing if it is this process's own, or a process or a mount
    /// still has it: then it has not ended.
    #[must_use]
    pub fn new(host: &'a dyn Host, namespace: &str) -> Option<Self> {
        let namespace = format!("net:[{}]", number(namespace));
        (!has_it(host, &namespace)).then_some(Self { host, namespace })
    }
}

/// Whether a namespace is known to be there. One that only an open file keeps is not seen.
fn has_it(host: &dyn Host, namespace: &str) -> bool {
    let has = |process: &String| host.link(&format!("proc/{process}/ns/net")).as_deref() == Some(namespace);
    let mut processes =
        host.names("proc").into_iter().filter(|name| name.bytes().all(|b| b.is_ascii_digit()));
    let mounts = host.text("proc/self/mountinfo").unwrap_or_default();
    // The fourth word is what of a file system is mounted: here the namespace.
    let is_mounted = mounts.lines().any(|line| line.split(' ').nth(3) == Some(namespace));
    is_mounted || processes.any(|process| has(&process))
}

impl Host for Ended<'_> {
    fn interface(&self) -> &str {
        self.host.interface()
    }

    fn read(&self, place: &Place) -> Reading {
        let gone = || Reading::Absent("its network namespace has ended".to_owned());
        if place.is_machines() { self.host.read(place) } else { gone() }
    }

    fn write(&self, place: &Place, value: &str) -> io::Result<()> {
        if place.is_machines() { self.host.write(place, value) } else { Err(io::ErrorKind::NotFound.into()) }
    }

    fn ring_limit(&self, _: Direction) -> Option<u64> {
        None
    }

    fn text(&self, file: &str) -> Option<String> {
        if file.starts_with(INTERFACES) { None } else { self.host.text(file) }
    }

    fn names(&self, folder: &str) -> Vec<String> {
        if folder.starts_with(INTERFACES) { Vec::new() } else { self.host.names(folder) }
    }

    fn link(&self, file: &str) -> Option<String> {
        match file {
            NAMESPACE => Some(self.namespace.clone()),
            _ if file.starts_with(INTERFACES) => None,
            _ => self.host.link(file),
        }
    }

    fn cookie(&self) -> Option<u64> {
        None
    }

    fn has_ended(&self) -> bool {
        true
    }
}

/// Interfaces of the same names are others.
const INTERFACES: &str = "sys/class/net";
