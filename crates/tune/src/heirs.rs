//! An interface on top of others whose MTU several journals have: lowered along with theirs, and changed by
//! itself.
//!
//! ```text
//!   the lower one applied first   9000 ─► 1500 along ─► 1400 by itself    it has 9000, the upper one 1500
//!   the upper one applied first   9000 ─► 8000 by itself ─► 1500 along    it has 8000, the upper one 9000
//! ```
//!
//! Entries have the order in which they came. Undo of an older one leaves its original to the next younger
//! one, and changes nothing: so whichever undo is the last brings back 9000, and none writes what another one
//! wants to be otherwise.

use crate::believed::{Believed, name_of};
use crate::error::TuneError;
use crate::host::Host;
use crate::journal::{Entry, Journal, Store};
use crate::place::Place;

impl Believed {
    /// The interface whose journal has the next change of the MTU that an entry is about; nothing if there is
    /// none, so that its original is to be brought back now.
    pub(crate) fn heir(&self, host: &dyn Host, entry: &Entry) -> Option<&str> {
        let of = index_of_mtu(&entry.place, self.now.index)?;
        let is_there = |journal: &&Journal| name_of(host, journal.identity.index).is_some();
        let next = |journal: &'_ Journal| Some(of_mtu(journal, of)?.number);
        let journals = self.others.iter().filter(is_there);
        let younger = journals.filter_map(|journal| Some((next(journal)?, journal.interface.as_str())));
        younger.filter(|(number, _)| *number > entry.number).min().map(|(_, interface)| interface)
    }

    /// Leaves the original of an entry to the journal of its [heir](Self::heir).
    pub(crate) fn leave(&self, store: &dyn Store, heir: &str, entry: &Entry) -> Result<(), TuneError> {
        // As it is now: it may have got another original since it was read.
        let Some(mut journal) = store.load(heir)? else { return Ok(()) };
        let of = index_of_mtu(&entry.place, self.now.index);
        let own = journal.identity.index;
        let its = journal.entries.iter_mut().find(|entry| index_of_mtu(&entry.place, own) == of);
        its.into_iter().for_each(|its| its.original.clone_from(&entry.original));
        store.save(&journal)
    }
}

/// The entry of a journal about the MTU of the interface with an index.
fn of_mtu(journal: &Journal, index: u64) -> Option<&Entry> {
    let own = journal.identity.index;
    journal.entries.iter().find(|entry| index_of_mtu(&entry.place, own) == Some(index))
}

/// Whose MTU this is, in the journal of the interface with the index `own`.
fn index_of_mtu(place: &Place, own: Option<u64>) -> Option<u64> {
    match place {
        Place::MtuOf { index, .. } => Some(*index),
        place => own.filter(|_| *place == Place::interface("mtu")),
    }
}
