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
//! wants to be otherwise. The MTU of IPv6, which the kernel makes the interface's at each change, goes the
//! same way.
//!
//! A journal may have an MTU that its change has left as it was, since undo of that may not: it only watches.
//! Undo of an older entry does not wait for it, brings its original back now, and tells it. Where the
//! original is left to a younger one, those that watch in between are told as well. What somebody else makes
//! of it is in [`watched`](crate::watched).

use crate::believed::{Believed, name_now};
use crate::error::TuneError;
use crate::host::Host;
use crate::journal::{Entry, Journal, Store};
use crate::place::Place;

/// The interface whose journal has the next change of an MTU, and the number of that.
pub(crate) struct Heir<'a> {
    pub(crate) interface: &'a str,
    number: u64,
}

impl Believed {
    /// Who has the next change of the MTU that an entry is about; nothing if there is none, so that its
    /// original is to be brought back now.
    pub(crate) fn heir(&self, host: &dyn Host, entry: &Entry) -> Option<Heir<'_>> {
        let theirs = self.younger(host, entry).filter(|(_, theirs)| !only_watches(theirs));
        let heirs = theirs.map(|(interface, theirs)| Heir { interface, number: theirs.number });
        heirs.min_by_key(|heir| heir.number)
    }

    /// Leaves the original of an entry to the journal of its heir. A kill while an interface gets its journal
    /// under a new name leaves that under both, of which its undo may go on with either.
    pub(crate) fn leave(
        &self,
        host: &dyn Host,
        store: &dyn Store,
        heir: &Heir<'_>,
        entry: &Entry,
    ) -> Result<(), TuneError> {
        self.tell(host, store, entry, Some(heir))?;
        let heirs = self.younger(host, entry).filter(|(_, theirs)| theirs.number == heir.number);
        for (interface, _) in heirs {
            self.change(store, interface, entry, |its| its.original.clone_from(&entry.original))?;
        }
        Ok(())
    }

    /// Has journals that only watch an MTU, up to the change of an heir, know the original that counts now:
    /// their undo would bring back what came after it.
    pub(crate) fn tell(
        &self,
        host: &dyn Host,
        store: &dyn Store,
        entry: &Entry,
        heir: Option<&Heir<'_>>,
    ) -> Result<(), TuneError> {
        let is_told = |(_, theirs): &(&str, &Entry)| {
            let is_before = heir.is_none_or(|heir| theirs.number < heir.number);
            is_before && only_watches(theirs) && theirs.original != entry.original
        };
        for (interface, _) in self.younger(host, entry).filter(is_told) {
            self.change(store, interface, entry, |its| {
                its.original.clone_from(&entry.original);
                its.made = Some(entry.original.clone());
            })?;
        }
        Ok(())
    }

    /// Entries about the same MTU that came later, of other interfaces that are there.
    fn younger<'a, 'b>(
        &'a self,
        host: &'b dyn Host,
        entry: &'b Entry,
    ) -> impl Iterator<Item = (&'a str, &'a Entry)> + use<'a, 'b> {
        let of = mtu_of(&entry.place, self.now.index);
        let others = of.into_iter().flat_map(move |of| self.others.iter().map(move |journal| (of, journal)));
        let theirs = others.filter_map(|(of, journal)| Some((journal, about(journal, of)?)));
        let younger = theirs.filter(move |(_, theirs)| theirs.number > entry.number);
        let there = younger.filter(move |(journal, _)| {
            let index = journal.identity.index;
            index.is_some_and(|index| name_now(host, &journal.interface, index).is_some())
        });
        there.map(|(journal, theirs)| (journal.interface.as_str(), theirs))
    }

    /// Changes the entry of another journal that is about the same MTU as `entry`.
    fn change(
        &self,
        store: &dyn Store,
        interface: &str,
        entry: &Entry,
        change: impl FnMut(&mut Entry),
    ) -> Result<(), TuneError> {
        // As it is now: it may have got another original since it was read.
        let Some(mut journal) = store.load(interface)? else { return Ok(()) };
        let of = mtu_of(&entry.place, self.now.index);
        let own = journal.identity.index;
        journal.entries.iter_mut().find(|entry| mtu_of(&entry.place, own) == of).into_iter().for_each(change);
        store.save(&journal)
    }
}

/// Whether the change that an entry was kept for has left it as it was.
pub(crate) fn only_watches(entry: &Entry) -> bool {
    let is_along = matches!(entry.place, Place::MtuOf { .. } | Place::Ipv6MtuOf { .. });
    is_along && entry.made.as_ref() == Some(&entry.original)
}

/// The MTU of an interface, or that of IPv6 there.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Mtu {
    OfIndex(u64),
    Ipv6OfIndex(u64),
}

/// The entry of a journal about an MTU.
fn about(journal: &Journal, of: Mtu) -> Option<&Entry> {
    let own = journal.identity.index;
    journal.entries.iter().find(|entry| mtu_of(&entry.place, own) == Some(of))
}

/// Which MTU this is, in the journal of the interface with the index `own`.
fn mtu_of(place: &Place, own: Option<u64>) -> Option<Mtu> {
    match place {
        Place::MtuOf { index, .. } => Some(Mtu::OfIndex(*index)),
        Place::Ipv6MtuOf { index, .. } => Some(Mtu::Ipv6OfIndex(*index)),
        place => own.filter(|_| *place == Place::interface("mtu")).map(Mtu::OfIndex),
    }
}
