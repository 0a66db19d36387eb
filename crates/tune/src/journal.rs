//! The journal of an interface: what was there before anything changed.
//!
//! ```text
//!   apply: for each setting   read │ journal with its original, on disk │ write │ read back
//!   undo:  backwards          write the original │ read back; at the end the journal goes
//! ```
//!
//! An entry is there before its value changes, so that a kill between the two leaves an entry whose original
//! is what there is: undo changes nothing then. Undo writes originals alone, so that it may be killed and
//! begun again.

use crate::error::TuneError;
use crate::host::Host;
use crate::place::Place;
use serde::{Deserialize, Serialize};

/// The link that names the network namespace of this process.
pub(crate) const NAMESPACE: &str = "proc/self/ns/net";

/// The format. Another one is not read.
pub const VERSION: u32 = 1;

/// One value that is not, or may not be, as it was.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// Where it is.
    pub place: Place,
    /// What was there before the first apply of any interface.
    pub original: String,
    /// What the kernel made of the change; nothing until it was read back.
    pub made: Option<String>,
    /// Later than that of each entry which any interface of the namespace had then; 0 in a journal that is
    /// older than this field.
    #[serde(default)]
    pub number: u64,
}

/// Of which kernel a journal is. After a reboot, or in another namespace, its originals mean nothing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// `/proc/sys/kernel/random/boot_id`; empty where it cannot be read, and then no journal is believed.
    pub boot: String,
    /// The network namespace, as `/proc/self/ns/net` names it.
    pub namespace: String,
    /// The interface's index: a new device of the same name has another.
    pub index: Option<u64>,
    /// Its place on a bus, as `/sys/class/net/INTERFACE/device` leads there: interfaces that have the same
    /// share interrupts. Nothing if it is on none.
    #[serde(default)]
    pub device: Option<String>,
    /// The namespace's number that no other one gets, where the kernel says it: the one above comes again.
    #[serde(default)]
    pub cookie: Option<u64>,
}

impl Identity {
    /// Of a host.
    #[must_use]
    pub fn of(host: &dyn Host) -> Self {
        let index = host.text(&format!("sys/class/net/{}/ifindex", host.interface()));
        Self {
            boot: host.text("proc/sys/kernel/random/boot_id").unwrap_or_default(),
            namespace: host.link(NAMESPACE).unwrap_or_default(),
            index: index.and_then(|text| text.parse().ok()),
            device: host.link(&format!("sys/class/net/{}/device", host.interface())),
            cookie: host.cookie(),
        }
    }

    /// Whether the other's network namespace had the number of this one's, and has ended.
    #[must_use]
    pub fn has_replaced(&self, other: &Self) -> bool {
        let cookies = self.cookie.zip(other.cookie);
        self.namespace == other.namespace && cookies.is_some_and(|(own, other)| own != other)
    }
}

/// All that an interface has changed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Journal {
    /// [`VERSION`].
    pub version: u32,
    /// The interface.
    pub interface: String,
    /// Of which kernel.
    pub identity: Identity,
    /// In the order in which values were changed.
    pub entries: Vec<Entry>,
}

impl Journal {
    /// One without entries.
    #[must_use]
    pub fn new(interface: &str, identity: Identity) -> Self {
        Self { version: VERSION, interface: interface.to_owned(), identity, entries: Vec::new() }
    }

    /// The entry of a place.
    #[must_use]
    pub fn entry(&self, place: &Place) -> Option<&Entry> {
        self.entries.iter().find(|entry| entry.place.is_same(place))
    }

    /// Whether it can be what this module wrote for `interface`: a clause that says what is wrong.
    ///
    /// # Errors
    /// Another version or interface, a place that no plan has, or a value that is no line.
    pub fn verify(&self, interface: &str) -> Result<(), String> {
        if self.version != VERSION {
            return Err(format!("it has version {}, and this program writes {VERSION}", self.version));
        }
        if self.interface != interface {
            return Err(format!("it is of the interface '{}'", self.interface));
        }
        let is_line = |text: &str| text.len() <= 4096 && !text.contains(['\n', '\0']);
        let wrong = self.entries.iter().find(|entry| !entry.place.is_valid() || !is_line(&entry.original));
        wrong.map_or(Ok(()), |entry| Err(format!("no setting is at {:?}", entry.place)))
    }
}

/// Whose settings the journals of a store have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// Those of interfaces of one network namespace, and what these share there.
    Namespace,
    /// The machine's, which interfaces of all namespaces share ([`Place::is_machines`]).
    Machine,
}

/// The two stores of an interface.
#[derive(Clone, Copy)]
pub struct Stores<'a> {
    /// For what is the interface's, or its network namespace's.
    pub namespace: &'a dyn Store,
    /// For what is the machine's: the same one for all interfaces of all namespaces. Nothing if there is
    /// none: then nothing of the machine is changed.
    pub machine: Option<&'a dyn Store>,
}

/// What a store has of other interfaces.
#[derive(Debug, Default)]
pub struct Others {
    /// Their journals.
    pub journals: Vec<Journal>,
    /// Why each of those that may be of this boot, too, cannot be read.
    pub unread: Vec<TuneError>,
}

/// Where journals are kept. [`Folder`](crate::folder::Folder) is on disk and holds a lock; tests have one
/// that ends at any step.
pub trait Store {
    /// Whose settings these are.
    fn scope(&self) -> Scope;
    /// The journal of an interface.
    ///
    /// # Errors
    /// It cannot be read, or is damaged.
    fn load(&self, interface: &str) -> Result<Option<Journal>, TuneError>;
    /// The journals of all other interfaces that are of this boot.
    ///
    /// # Errors
    /// It is not known which there are.
    fn others(&self, interface: &str, boot: &str) -> Result<Others, TuneError>;
    /// Keeps a journal: once this returns, it is on disk, and until then the one before it is.
    ///
    /// # Errors
    /// It cannot be written.
    fn save(&self, journal: &Journal) -> Result<(), TuneError>;
    /// Removes the journal of an interface, if there is one.
    ///
    /// # Errors
    /// It cannot be removed.
    fn remove(&self, interface: &str) -> Result<(), TuneError>;
}
