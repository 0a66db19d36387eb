//! Undo: what the journal has is brought back, the last change first.

use crate::error::TuneError;
use crate::host::{Host, Reading};
use crate::journal::{Believed, Entry, Store};
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
    if let Some(mut journal) = believed.own.take() {
        let mut failed = Vec::new();
        for entry in journal.entries.iter().rev() {
            let row = entry_row(host, &believed, entry);
            if row.outcome == Outcome::Refused {
                failed.push(entry.clone());
            }
            report.rows.push(row);
        }
        if !failed.is_empty() {
            failed.reverse();
            journal.entries = failed;
            store.save(&journal)?;
            return Ok(report);
        }
    }
    store.remove(host.interface())?;
    Ok(report)
}

fn entry_row(host: &dyn Host, believed: &Believed, entry: &Entry) -> Row {
    let row = |outcome| Row::named(entry.place.to_string(), outcome);
    let now = match host.read(&entry.place) {
        Reading::Value(value) | Reading::Fixed(value) => value,
        Reading::Absent(why) => return row(Outcome::Gone).note(why),
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
    };
    if after != entry.original {
        let why = written.err().map_or_else(|| format!("the kernel made it {after}"), |e| e.to_string());
        return Row { wanted, ..row(Outcome::Refused).values(now, after).note(why) };
    }
    let row = Row { wanted, ..row(Outcome::Restored).values(&now, after) };
    let is_changed_since = entry.made.as_ref().is_some_and(|made| *made != now);
    if is_changed_since { row.note("somebody had changed it since") } else { row }
}
