//! What is believed of the journals in a store: those of this boot, of devices that are still there.

use crate::companions::{is_companion, is_on_others};
use crate::error::TuneError;
use crate::host::Host;
use crate::journal::{Entry, Identity, Journal, Others, Scope, Store};
use crate::place::Place;
use crate::report::{Outcome, Row};

/// The journals of a store, as one interface may believe them.
pub(crate) struct Believed {
    /// The interface's own.
    pub own: Option<Journal>,
    /// Those of other interfaces.
    pub(crate) others: Vec<Journal>,
    /// Why those of others cannot be read.
    pub(crate) unread: Vec<TuneError>,
    /// What was the own device's, which has gone.
    dropped: Vec<Entry>,
    pub(crate) now: Identity,
}

impl Believed {
    pub(crate) fn read(host: &dyn Host, store: &dyn Store) -> Result<Self, TuneError> {
        let now = Identity::of(host);
        if now.boot.is_empty() {
            return Err(TuneError::NoBoot);
        }
        let mut own = store.load(host.interface())?.filter(|journal| journal.identity.boot == now.boot);
        let Others { journals: mut others, unread } = store.others(host.interface(), &now.boot)?;
        if store.scope() == Scope::Namespace {
            // Those of a namespace that has ended, whose number this one has, ended with it.
            let is_here = |journal: &Journal| !now.has_replaced(&journal.identity);
            own = own.filter(is_here);
            others.retain(is_here);
        }
        if store.scope() == Scope::Namespace
            && let Some(other) =
                own.iter().chain(&others).find(|journal| journal.identity.namespace != now.namespace)
        {
            let (interface, of) = (other.interface.clone(), other.identity.namespace.clone());
            return Err(TuneError::OtherNamespace { interface, of });
        }
        let may_be_renamed = |of: &Identity| of.index != now.index && !now.has_replaced(of);
        if let Some(journal) = own.as_ref().filter(|journal| may_be_renamed(&journal.identity))
            && let Some(name) = name_of(host, journal.identity.index)
        {
            return Err(TuneError::Renamed { was: journal.interface.clone(), now: name });
        }
        let own = match own {
            None => adopt(host, store, &now, &mut others)?,
            own => own,
        };
        if let Some(own) = &own {
            remove_copies(store, own, &now, &mut others)?;
        }
        for other in others.iter_mut().filter(|other| !shares_interrupts(host, &now, &other.identity)) {
            other.entries.retain(|entry| !matches!(entry.place, Place::Interrupt { .. }));
        }
        let mut dropped = Vec::new();
        let own = own.map(|mut journal| {
            if journal.identity.index != now.index || now.has_replaced(&journal.identity) {
                // The device that these were of has gone.
                let is_its = |entry: &Entry| entry.place.is_of_the_device();
                (dropped, journal.entries) = journal.entries.into_iter().partition(is_its);
                journal.identity = now.clone();
            }
            journal
        });
        Ok(Self { own, others, unread, dropped, now })
    }

    /// For who is about to change something: what others have changed must be known.
    pub(crate) fn complete(mut self) -> Result<Self, TuneError> {
        if self.unread.is_empty() { Ok(self) } else { Err(self.unread.swap_remove(0).of_another()) }
    }

    /// Whether a journal that cannot be read may want what is at a place: it is shared, or it is another
    /// interface's.
    pub(crate) fn may_be_wanted(&self, place: &Place) -> bool {
        let is_anothers = match place {
            Place::MtuOf { index, .. } | Place::Ipv6MtuOf { index, .. } => Some(*index) != self.now.index,
            _ => false,
        };
        !self.unread.is_empty() && (place.is_shared() || is_anothers)
    }

    /// Whether a journal that cannot be read may have taken what is at a place along: it is the MTU of an
    /// interface on top of others.
    pub(crate) fn may_be_taken_along(&self, host: &dyn Host, place: &Place) -> bool {
        let is_along = matches!(place, Place::MtuOf { .. } | Place::Ipv6MtuOf { .. });
        let is_mtu = is_along || *place == Place::interface("mtu");
        !self.unread.is_empty() && is_mtu && is_on_others(host)
    }

    /// The highest number of an entry, of the own journal as it is now and of all others.
    pub(crate) fn last_number(&self, own: &Journal) -> u64 {
        let all = self.others.iter().chain([own]).flat_map(|journal| &journal.entries);
        all.map(|entry| entry.number).max().unwrap_or(0)
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

    /// The entry that another interface has of a shared place, and how that interface is called here.
    pub(crate) fn elsewhere(&self, place: &Place) -> Option<(&Entry, String)> {
        let mut others = self.others.iter().filter(|_| place.is_shared());
        others.find_map(|journal| Some((journal.entry(place)?, self.called(journal))))
    }

    /// That entry, after its companions.
    pub(crate) fn with_companions(&self, place: &Place) -> Vec<Entry> {
        let mut others = self.others.iter().filter(|_| place.is_shared());
        let Some((theirs, entry)) = others.find_map(|journal| Some((journal, journal.entry(place)?))) else {
            return Vec::new();
        };
        let companions = theirs.entries.iter().filter(|entry| is_companion(entry, place));
        companions.chain([entry]).cloned().collect()
    }

    fn called(&self, journal: &Journal) -> String {
        let (interface, namespace) = (&journal.interface, &journal.identity.namespace);
        // Its own name has a journal, too, of a device that has gone: the next undo takes this one over.
        if is_its(journal, &self.now) {
            return format!("{interface} (this one, before it was renamed)");
        }
        if self.now.has_replaced(&journal.identity) {
            return format!("{interface} of a network namespace that has ended");
        }
        if *namespace == self.now.namespace {
            return interface.clone();
        }
        format!("{interface} of network namespace {}", number(namespace))
    }
}

/// The number in the kernel's name of a namespace: `net:[4026531840]`.
#[must_use]
pub fn number(namespace: &str) -> &str {
    namespace.trim_start_matches("net:[").trim_end_matches(']')
}

/// The name of the interface with an index.
pub(crate) fn name_of(host: &dyn Host, index: Option<u64>) -> Option<String> {
    let has = |name: &String| {
        let text = host.text(&format!("sys/class/net/{name}/ifindex"));
        text.and_then(|text| text.parse().ok()).is_some_and(|have: u64| Some(have) == index)
    };
    host.names("sys/class/net").into_iter().find(has)
}

/// The name that an interface has now. Most have the one by which they are known: only else are all looked
/// through.
pub(crate) fn name_now(host: &dyn Host, name: &str, index: u64) -> Option<String> {
    let is_still = host.text(&format!("sys/class/net/{name}/ifindex")) == Some(index.to_string());
    if is_still { Some(name.to_owned()) } else { name_of(host, Some(index)) }
}

/// The journal that the interface has under an earlier name, which it keeps under the new one from now on.
fn adopt(
    host: &dyn Host,
    store: &dyn Store,
    now: &Identity,
    others: &mut Vec<Journal>,
) -> Result<Option<Journal>, TuneError> {
    let Some(place) = others.iter().position(|journal| is_its(journal, now)) else { return Ok(None) };
    let mut journal = others.remove(place);
    let was = std::mem::replace(&mut journal.interface, host.interface().to_owned());
    store.save(&journal)?;
    store.remove(&was)?;
    Ok(Some(journal))
}

/// Removes what a kill in [`adopt`] has left: the same journal under an earlier name, which would be taken
/// for that of another interface that wants the same. The name of now may be a third one.
fn remove_copies(
    store: &dyn Store,
    own: &Journal,
    now: &Identity,
    others: &mut Vec<Journal>,
) -> Result<(), TuneError> {
    // One of a device that had this name before is no copy.
    if !is_its(own, now) {
        return Ok(());
    }
    let (copies, rest): (Vec<_>, Vec<_>) =
        std::mem::take(others).into_iter().partition(|journal| is_its(journal, now));
    *others = rest;
    copies.iter().try_for_each(|journal| store.remove(&journal.interface))
}

/// Whether a journal is of the interface that is here, whatever name it had. Indexes are a namespace's own.
fn is_its(journal: &Journal, now: &Identity) -> bool {
    let of = &journal.identity;
    let is_here = of.namespace == now.namespace && !now.has_replaced(of);
    now.index.is_some() && of.index == now.index && is_here
}

/// Whether the interrupts of another journal are those of this device. A device that has gone may have had
/// the same numbers.
fn shares_interrupts(host: &dyn Host, now: &Identity, other: &Identity) -> bool {
    let is_here = other.namespace == now.namespace;
    let is_there = || !is_here || (!now.has_replaced(other) && name_of(host, other.index).is_some());
    now.device.is_some() && other.device == now.device && is_there()
}
