//! Undo: what the journal has is brought back, the last change first.

use crate::error::TuneError;
use crate::host::{Host, Reading};
use crate::journal::{Believed, Entry, Store};
use crate::place::Place;
use crate::plan::interrupts;
use crate::report::{Outcome, Report, Row};

/// Takes back all that apply has changed for the interface, and removes its journal. Without a journal of
/// this boot there is nothing to take back: a reboot has done it.
///
/// What cannot be brought back stays in the journal, and its row says why.
///
/// # Errors
/// The journal cannot be read, written or removed.
pub fn undo(host: &dyn Host, store: &dyn Store) -> Result<Report, TuneError> {
    let mut believed = Believed::read(host, store)?;
    let mut report = Report::new(host.interface());
    report.rows.extend(believed.dropped_rows());
    if let Some(mut journal) = believed.own.take() {
        let mut rows: Vec<(Entry, Row)> = Vec::new();
        for entry in journal.entries.iter().rev() {
            rows.push((entry.clone(), entry_row(host, &believed, entry)));
        }
        restore_what_was_reset(host, &mut rows);
        let failed = rows.iter().filter(|(_, row)| row.outcome == Outcome::Refused);
        journal.entries = failed.map(|(entry, _)| entry.clone()).rev().collect();
        report.rows.extend(rows.into_iter().map(|(_, row)| row));
        if !journal.entries.is_empty() {
            store.save(&journal)?;
            return Ok(report);
        }
    }
    store.remove(host.interface())?;
    Ok(report)
}

/// Drivers restart a device for some of its settings (rings, MTU, offloads) and reset others then: what is
/// no longer as it was is written again, in the order of apply, which has the former first.
fn restore_what_was_reset(host: &dyn Host, rows: &mut [(Entry, Row)]) {
    let is_reset = |entry: &Entry, row: &Row| {
        row.outcome == Outcome::Restored && value(host, entry).as_ref() != Some(&entry.original)
    };
    for (entry, _) in rows.iter().rev().filter(|(entry, row)| is_reset(entry, row)) {
        // Whether it succeeds is what the next reading says.
        let _ = host.write(&entry.place, &entry.original);
    }
    for (entry, row) in rows.iter_mut().filter(|(entry, row)| is_reset(entry, row)) {
        row.outcome = Outcome::Refused;
        row.after = value(host, entry);
        row.note = Some("it was brought back, and has changed again since".to_owned());
    }
}

fn value(host: &dyn Host, entry: &Entry) -> Option<String> {
    match host.read(&entry.place) {
        Reading::Value(value) | Reading::Fixed(value) => Some(value),
        Reading::Absent(_) | Reading::Unreadable(_) => None,
    }
}

fn entry_row(host: &dyn Host, believed: &Believed, entry: &Entry) -> Row {
    let row = |outcome| Row::named(entry.place.to_string(), outcome);
    if let Place::Interrupt { number } = entry.place
        && !interrupts(host).contains(&number)
    {
        return row(Outcome::Gone).note("the device has this interrupt no longer");
    }
    let now = match host.read(&entry.place) {
        Reading::Value(value) | Reading::Fixed(value) => value,
        Reading::Absent(why) => return row(Outcome::Gone).note(why),
        Reading::Unreadable(why) => return row(Outcome::Refused).note(format!("it cannot be read: {why}")),
    };
    if believed.elsewhere(&entry.place).is_some() {
        return row(Outcome::Kept).values(&now, &now).note("another interface wants it");
    }
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
    let is_changed_since = entry.made.as_ref().is_some_and(|made| *made != now);
    if is_changed_since { row.note("somebody had changed it since") } else { row }
}
