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
use crate::report::{Outcome, Row};
use serde::{Deserialize, Serialize};

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
}

/// Of which kernel a journal is. After a reboot, or in another namespace, its originals mean nothing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// `/proc/sys/kernel/random/boot_id`.
    pub boot: String,
    /// The network namespace, as `/proc/self/ns/net` names it.
    pub namespace: String,
    /// The interface's index: a new device of the same name has another.
    pub index: Option<u64>,
}

impl Identity {
    /// Of a host.
    #[must_use]
    pub fn of(host: &dyn Host) -> Self {
        let index = host.text(&format!("sys/class/net/{}/ifindex", host.interface()));
        Self {
            boot: host.text("proc/sys/kernel/random/boot_id").unwrap_or_default(),
            namespace: host.link("proc/self/ns/net").unwrap_or_default(),
            index: index.and_then(|text| text.parse().ok()),
        }
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
        self.entries.iter().find(|entry| entry.place == *place)
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

/// Where journals are kept. [`Folder`](crate::folder::Folder) is on disk and holds a lock; tests have one
/// that ends at any step.
pub trait Store {
    /// The journal of an interface.
    ///
    /// # Errors
    /// It cannot be read, or is damaged.
    fn load(&self, interface: &str) -> Result<Option<Journal>, TuneError>;
    /// The journals of all other interfaces that are of this boot.
    ///
    /// # Errors
    /// As [`load`](Self::load).
    fn others(&self, interface: &str, boot: &str) -> Result<Vec<Journal>, TuneError>;
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

/// What is believed of the journals: those of this boot and namespace.
pub(crate) struct Believed {
    /// The interface's own.
    pub own: Option<Journal>,
    /// Those of other interfaces.
    pub others: Vec<Journal>,
    /// What was the own device's, which has gone.
    dropped: Vec<Entry>,
}

/// The name of the interface with an index.
fn name_of(host: &dyn Host, index: Option<u64>) -> Option<String> {
    let has = |name: &String| {
        let text = host.text(&format!("sys/class/net/{name}/ifindex"));
        text.and_then(|text| text.parse().ok()).is_some_and(|have: u64| Some(have) == index)
    };
    host.names("sys/class/net").into_iter().find(has)
}

/// The journal that the interface has under an earlier name, which it keeps under the new one from now on.
fn adopt(
    host: &dyn Host,
    store: &dyn Store,
    now: &Identity,
    others: &mut Vec<Journal>,
) -> Result<Option<Journal>, TuneError> {
    let is_its = |journal: &Journal| now.index.is_some() && journal.identity.index == now.index;
    let Some(place) = others.iter().position(is_its) else { return Ok(None) };
    let mut journal = others.remove(place);
    let was = std::mem::replace(&mut journal.interface, host.interface().to_owned());
    store.save(&journal)?;
    store.remove(&was)?;
    Ok(Some(journal))
}

impl Believed {
    pub(crate) fn read(host: &dyn Host, store: &dyn Store) -> Result<Self, TuneError> {
        let now = Identity::of(host);
        let is_of_this_boot = |journal: &Journal| journal.identity.boot == now.boot;
        let own = store.load(host.interface())?.filter(is_of_this_boot);
        let mut others = store.others(host.interface(), &now.boot)?;
        if let Some(other) = own.iter().chain(&others).find(|j| j.identity.namespace != now.namespace) {
            return Err(TuneError::OtherNamespace(other.interface.clone()));
        }
        if let Some(journal) = own.as_ref().filter(|journal| journal.identity.index != now.index)
            && let Some(name) = name_of(host, journal.identity.index)
        {
            return Err(TuneError::Renamed { was: journal.interface.clone(), now: name });
        }
        let own = match own {
            None => adopt(host, store, &now, &mut others)?,
            own => own,
        };
        let mut dropped = Vec::new();
        let own = own.map(|mut journal| {
            if journal.identity.index != now.index {
                // The device that these were of has gone.
                let (shared, of_the_device) = journal.entries.into_iter().partition(|e| e.place.is_shared());
                (journal.entries, dropped) = (shared, of_the_device);
                journal.identity.index = now.index;
            }
            journal
        });
        Ok(Self { own, others, dropped })
    }

    /// Rows that say what can be brought back no longer.
    pub(crate) fn dropped_rows(&self) -> Vec<Row> {
        let why = "its device has gone, or is in another network namespace";
        let row = |entry: &Entry| {
            let row = Row::named(entry.place.to_string(), Outcome::Gone).note(why);
            Row { wanted: Some(entry.original.clone()), ..row }
        };
        self.dropped.iter().rev().map(row).collect()
    }

    /// The entry that another interface has of a shared place.
    pub(crate) fn elsewhere(&self, place: &Place) -> Option<&Entry> {
        self.others.iter().filter(|_| place.is_shared()).find_map(|journal| journal.entry(place))
    }
}
