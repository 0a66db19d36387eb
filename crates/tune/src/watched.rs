//! MTUs that a change of the one below has left as they were. They are in its journal since undo may take
//! them along. If they are others now, somebody else has changed them: what is there when undo begins is to
//! be there when it has ended.

use crate::believed::Believed;
use crate::heirs::only_watches;
use crate::host::Host;
use crate::journal::{Entry, Journal};
use crate::place::Place;
use std::collections::BTreeMap;

/// Whether the interface's MTU is as the journal's change has made it: no undo of it was begun.
pub(crate) fn is_as_made(host: &dyn Host, journal: &Journal) -> bool {
    let mtu = Place::interface("mtu");
    let made = journal.entry(&mtu).and_then(|entry| entry.made.clone());
    made.is_some() && made == host.read(&mtu).value()
}

/// Takes what is there now for the originals of what only watches; whether any is another one than before. An
/// MTU above what the one below will have again cannot stay: it comes back as it was.
pub(crate) fn follow(host: &dyn Host, believed: &Believed, journal: &mut Journal) -> bool {
    if !believed.unread.is_empty() || !is_as_made(host, journal) {
        return false;
    }
    let own = journal.entry(&Place::interface("mtu"));
    let Some(own) = own.and_then(|entry| entry.original.parse::<u64>().ok()) else { return false };
    let mut mtus = BTreeMap::from([(host.interface().to_owned(), own)]);
    let mut is_any = false;
    // Backwards, as undo goes: what is below comes first.
    for entry in journal.entries.iter_mut().rev() {
        let now = if only_watches(entry) { host.read(&entry.place).value() } else { None };
        let Some(now) = now.filter(|now| *now != entry.original) else {
            note(&mut mtus, entry);
            continue;
        };
        let most = most(host, &mtus, &entry.place).unwrap_or(own);
        let fits = now.parse().is_ok_and(|now: u64| now <= most);
        if fits && is_there(host, &entry.place) && believed.heir(host, entry).is_none() {
            entry.original = now;
            is_any = true;
        }
        note(&mut mtus, entry);
    }
    is_any
}

/// Another interface may have the name by now.
fn is_there(host: &dyn Host, place: &Place) -> bool {
    match place {
        Place::MtuOf { interface, index } | Place::Ipv6MtuOf { interface, index } => {
            host.text(&format!("sys/class/net/{interface}/ifindex")) == Some(index.to_string())
        }
        _ => false,
    }
}

/// What an interface on top will have when undo has ended.
fn note(mtus: &mut BTreeMap<String, u64>, entry: &Entry) {
    if let Place::MtuOf { interface, .. } = &entry.place
        && let Ok(mtu) = entry.original.parse()
    {
        mtus.insert(interface.clone(), mtu);
    }
}

/// The most that a place can have then: as much as what the interface is on, or for IPv6 as the interface.
fn most(host: &dyn Host, mtus: &BTreeMap<String, u64>, place: &Place) -> Option<u64> {
    match place {
        Place::MtuOf { interface, .. } => {
            let links = host.names(&format!("sys/class/net/{interface}"));
            links.iter().filter_map(|link| mtus.get(link.strip_prefix("lower_")?)).min().copied()
        }
        Place::Ipv6MtuOf { interface, .. } => mtus.get(interface).copied(),
        _ => None,
    }
}
