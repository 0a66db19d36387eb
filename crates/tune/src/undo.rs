//! Undo: what the journals have is brought back, the last change first.

use crate::believed::{Believed, name_now};
use crate::companions::is_companion;
use crate::error::TuneError;
use crate::host::{Host, Reading};
use crate::journal::{Entry, Journal, Store, Stores};
use crate::place::Place;
use crate::plan::interrupts;
use crate::report::{Outcome, Report, Row};
use crate::watched;

/// Takes back all that apply has changed for the interface, and removes its journals. Without a journal of
/// this boot there is nothing to take back: a reboot has done it. What is the machine's comes last.
///
/// What cannot be brought back stays in the journal, and its row says why.
///
/// # Errors
/// Those of [`Undo`].
pub fn undo(host: &dyn Host, stores: Stores<'_>) -> Result<Report, TuneError> {
    Undo::read(host, stores)?.run()
}

/// A store, what is believed of it, and the interface's own journal there.
type Opened<'a> = (&'a dyn Store, Believed, Option<Journal>);

/// What is to be undone: all journals are read before the first change.
pub struct Undo<'a> {
    host: &'a dyn Host,
    stores: Vec<Opened<'a>>,
    failed: Option<TuneError>,
}

impl<'a> Undo<'a> {
    /// Reads the journals. One store that refuses does not keep what the other one has.
    ///
    /// # Errors
    /// The interface has another name, or the folder's namespace is another; no store can be read.
    pub fn read(host: &'a dyn Host, stores: Stores<'a>) -> Result<Self, TuneError> {
        let mut undo = Self { host, stores: Vec::new(), failed: None };
        for store in [Some(stores.namespace), stores.machine].into_iter().flatten() {
            match Believed::read(host, store) {
                Ok(mut believed) => {
                    let journal = believed.own.take();
                    undo.stores.push((store, believed, journal));
                }
                // What was the namespace's own ended with it, and this folder is another's.
                Err(TuneError::OtherNamespace { .. }) if host.has_ended() => {}
                Err(error) if error.is_elsewhere() => return Err(error),
                Err(error) => undo.failed = undo.failed.or(Some(error)),
            }
        }
        match undo.failed {
            Some(error) if undo.stores.is_empty() => Err(error),
            _ => Ok(undo),
        }
    }

    /// Takes it back.
    ///
    /// # Errors
    /// A journal cannot be read, written or removed, or another interface's cannot be read which may want
    /// something of this. If others were undone, [`TuneError::Partly`].
    pub fn run(self) -> Result<Report, TuneError> {
        let Self { host, mut stores, mut failed } = self;
        know_what_is_there(host, &mut stores);
        let mut report = Report::new(host.interface());
        report.rows.extend(stores.iter().flat_map(|(_, believed, _)| believed.dropped_rows()));
        let mut undone: Vec<Undone> = Vec::new();
        for (number, entry, seen) in found(host, &stores) {
            let row = bring_back(host, &stores[number], &entry, seen.as_deref());
            undone.push(Undone { store: number, entry, row, waits: false });
        }
        restore_what_was_reset(host, &mut undone);
        wait_for_what_failed(&mut undone);
        for (number, (store, believed, journal)) in stores.into_iter().enumerate() {
            let of_this = undone.iter_mut().filter(|undone| undone.store == number);
            if wait_for_what_is_unread(host, &believed, of_this) {
                failed = failed.or(believed.unread.into_iter().next().map(TuneError::of_another));
            }
            let is_left = |undone: &Undone| undone.waits || undone.row.outcome == Outcome::Refused;
            let left = undone.iter().filter(|undone| undone.store == number && is_left(undone));
            let left = left.map(|undone| undone.entry.clone()).rev().collect();
            let kept = keep_what_is_left(store, host.interface(), journal, left);
            failed = failed.or(kept.err());
        }
        report.rows.extend(undone.into_iter().map(|undone| undone.row));
        match failed {
            None => Ok(report),
            Some(error) if report.rows.is_empty() => Err(error),
            Some(error) => Err(TuneError::Partly { report: Box::new(report), why: Box::new(error) }),
        }
    }
}

/// An entry, the store that it is from, and what became of it.
struct Undone {
    store: usize,
    entry: Entry,
    row: Row,
    /// Whether it stays in the journal although it is as it was.
    waits: bool,
}

/// Has the journals know interfaces by the names that they have now, and what only watches by its value.
fn know_what_is_there(host: &dyn Host, stores: &mut [Opened<'_>]) {
    for (store, believed, journal) in stores {
        let Some(journal) = journal else { continue };
        journal.entries.iter_mut().for_each(|entry| follow_name(host, &mut entry.place));
        if watched::follow(host, believed, journal) {
            // For who begins again after a kill: this one knows, and has not failed if there is no place.
            let _ = store.save(journal);
        }
    }
}

/// All entries with the number of their store, the last change first, and what is there before any is undone:
/// one takes others along.
fn found(host: &dyn Host, stores: &[Opened<'_>]) -> Vec<(usize, Entry, Option<String>)> {
    let mut found = Vec::new();
    for (number, (_, _, journal)) in stores.iter().enumerate() {
        for entry in journal.iter().flat_map(|journal| journal.entries.iter().rev()) {
            found.push((number, entry.clone(), value(host, entry)));
        }
    }
    found
}

/// Brings an entry back, or leaves it to another journal.
fn bring_back(host: &dyn Host, (store, believed, _): &Opened<'_>, entry: &Entry, seen: Option<&str>) -> Row {
    if let Some(heir) = believed.heir(host, entry) {
        if !believed.unread.is_empty() {
            // The next younger one may be that which cannot be read.
            return unknown(host, entry);
        }
        let left = believed.leave(host, *store, &heir, entry);
        return left_to(heir.interface, left, value(host, entry), entry);
    }
    let row = entry_row(host, believed, entry, seen);
    if row.outcome != Outcome::Restored {
        return row;
    }
    match believed.tell(host, *store, entry, None) {
        Ok(()) => row,
        Err(error) => {
            let note = format!("it was brought back, and who watches it is not told: {error}");
            Row { outcome: Outcome::Refused, ..row }.note(note)
        }
    }
}

fn keep_what_is_left(
    store: &dyn Store,
    interface: &str,
    journal: Option<Journal>,
    left: Vec<Entry>,
) -> Result<(), TuneError> {
    match journal {
        Some(journal) if !left.is_empty() => store.save(&Journal { entries: left, ..journal }),
        _ => store.remove(interface),
    }
}

/// Drivers restart a device for some of its settings (rings, MTU, offloads) and reset others then: what is
/// no longer as it was is written again, in the order of apply, which has the former first, and then in that
/// of undo, which has an MTU before those that it takes along.
fn restore_what_was_reset(host: &dyn Host, undone: &mut [Undone]) {
    let is_reset = |undone: &Undone| {
        let original = Some(&undone.entry.original);
        undone.row.outcome == Outcome::Restored && value(host, &undone.entry).as_ref() != original
    };
    let orders = undone.iter().rev().chain(undone.iter());
    for Undone { entry, .. } in orders.filter(|undone| is_reset(undone)) {
        // Whether it succeeds is what the next reading says.
        let _ = host.write(&entry.place, &entry.original);
    }
    for Undone { entry, row, .. } in undone.iter_mut().filter(|undone| is_reset(undone)) {
        row.outcome = Outcome::Refused;
        row.after = value(host, entry);
        row.note = Some("it was brought back, and has changed again since".to_owned());
    }
}

/// A governor that could not be brought back has its tunables with it: these are tried again, too. So is all
/// else that comes along with what could not be brought back, since it will come along once more.
fn wait_for_what_failed(undone: &mut [Undone]) {
    let failed = undone.iter().filter(|undone| undone.row.outcome == Outcome::Refused);
    let failed: Vec<Place> = failed.map(|undone| undone.entry.place.clone()).collect();
    for Undone { entry, row, waits, .. } in undone {
        let Some(of) = failed.iter().find(|of| is_companion(entry, of)) else { continue };
        match row.outcome {
            Outcome::Gone if matches!(entry.place, Place::Tunable { .. }) => {
                row.outcome = Outcome::Refused;
                row.note = Some(format!("it comes with {of}, which could not be brought back"));
            }
            Outcome::Restored => {
                *waits = true;
                row.note = Some(format!("it stays in the journal: {of} takes it along, which is not back"));
            }
            // Who it is left to may be undone before.
            Outcome::Kept if matches!(entry.place, Place::MtuOf { .. } | Place::Ipv6MtuOf { .. }) => {
                *waits = true;
            }
            _ => {}
        }
    }
}

/// An MTU that a journal which cannot be read may have taken along is as it was, and stays in this one: undo
/// of the other brings back what it was in between. Whether anything is left for such a journal.
fn wait_for_what_is_unread<'u>(
    host: &dyn Host,
    believed: &Believed,
    undone: impl Iterator<Item = &'u mut Undone>,
) -> bool {
    let mut is_any = false;
    for Undone { entry, row, waits, .. } in undone {
        let is_taken_along = believed.may_be_taken_along(host, &entry.place);
        match row.outcome {
            Outcome::Restored if is_taken_along => {
                *waits = true;
                let why = "an interface below may have taken it along, whose journal cannot be read";
                row.note = Some(format!("it stays in the journal: {why}"));
                is_any = true;
            }
            Outcome::Refused => is_any |= is_taken_along || believed.may_be_wanted(&entry.place),
            _ => {}
        }
    }
    is_any
}

fn value(host: &dyn Host, entry: &Entry) -> Option<String> {
    host.read(&entry.place).value()
}

/// An interface may have another name by now.
fn follow_name(host: &dyn Host, place: &mut Place) {
    if let Place::MtuOf { interface, index } | Place::Ipv6MtuOf { interface, index } = place
        && let Some(name) = name_now(host, interface, *index)
    {
        *interface = name;
    }
}

/// What is said of an original that another interface's undo brings back.
fn left_to(heir: &str, left: Result<(), TuneError>, now: Option<String>, entry: &Entry) -> Row {
    let row = |outcome| Row::named(entry.place.to_string(), outcome);
    let row = match left {
        Ok(()) => {
            row(Outcome::Kept).note(format!("{heir} wants it, and its undo brings back {}", entry.original))
        }
        Err(error) => row(Outcome::Refused).note(format!("{heir} wants it, and is not told: {error}")),
    };
    unchanged(row, now)
}

/// What is said where a journal that cannot be read may have the next change, or want the same.
fn unknown(host: &dyn Host, entry: &Entry) -> Row {
    let note = "whether another interface wants it is not known: its journal cannot be read";
    unchanged(Row::named(entry.place.to_string(), Outcome::Refused).note(note), value(host, entry))
}

fn unchanged(row: Row, now: Option<String>) -> Row {
    match now {
        Some(now) => row.values(&now, &now),
        None => row,
    }
}

/// `seen` is what was there before anything was undone.
fn entry_row(host: &dyn Host, believed: &Believed, entry: &Entry, seen: Option<&str>) -> Row {
    let row = |outcome| Row::named(entry.place.to_string(), outcome);
    if let Place::Interrupt { number } = entry.place
        && !interrupts(host).contains(&number)
    {
        return row(Outcome::Gone).note("the device has this interrupt no longer");
    }
    if let Place::MtuOf { interface, index } | Place::Ipv6MtuOf { interface, index } = &entry.place
        && host.text(&format!("sys/class/net/{interface}/ifindex")) != Some(index.to_string())
    {
        return row(Outcome::Gone).note("there is no such interface any more");
    }
    if let Some((_, name)) = believed.elsewhere(&entry.place) {
        let note = format!("{name} wants it, and the last undo brings back {}", entry.original);
        return unchanged(row(Outcome::Kept).note(note), value(host, entry));
    }
    if believed.may_be_wanted(&entry.place) {
        return unknown(host, entry);
    }
    let now = match host.read(&entry.place) {
        Reading::Value(value) | Reading::Fixed(value) => value,
        Reading::Absent(why) => return row(Outcome::Gone).note(why),
        Reading::Unreadable(why) => return row(Outcome::Refused).note(format!("it cannot be read: {why}")),
    };
    let wanted = Some(entry.original.clone());
    if now == entry.original {
        return Row { wanted, ..row(Outcome::Restored).values(&now, &now) };
    }
    let written = host.write(&entry.place, &entry.original);
    let after = match host.read(&entry.place) {
        Reading::Value(value) | Reading::Fixed(value) => value,
        Reading::Absent(why) => return row(Outcome::Gone).note(why),
        Reading::Unreadable(why) => return row(Outcome::Refused).note(format!("it cannot be read: {why}")),
    };
    if after != entry.original {
        let why = written.err().map_or_else(|| format!("the kernel made it {after}"), |e| e.to_string());
        return Row { wanted, ..row(Outcome::Refused).values(now, after).note(why) };
    }
    let row = Row { wanted, ..row(Outcome::Restored).values(&now, after) };
    let is_changed_since = entry.made.as_deref().zip(seen).is_some_and(|(made, seen)| made != seen);
    if is_changed_since { row.note("somebody had changed it since") } else { row }
}
