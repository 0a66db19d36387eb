//! Apply: what differs is changed, and what it was before is kept first.

use crate::check::unchangeable;
use crate::error::TuneError;
use crate::host::{Host, Reading};
use crate::journal::{Believed, Entry, Identity, Journal, Store};
use crate::place::Place;
use crate::plan::Plan;
use crate::report::{Outcome, Report, Row};
use crate::setting::Setting;

/// Brings the host to a plan, as far as it lets itself be brought.
///
/// # Errors
/// The journal cannot be kept: nothing was changed that it does not have.
pub fn apply(host: &dyn Host, store: &dyn Store, plan: &Plan) -> Result<Report, TuneError> {
    let mut believed = Believed::read(host, store)?;
    let own = believed.own.take();
    let dropped = believed.dropped_rows();
    let journal = own.unwrap_or_else(|| Journal::new(host.interface(), Identity::of(host)));
    let mut change = Change { host, store, believed, journal };
    let mut report = Report::new(host.interface());
    report.rows.extend(dropped);
    // All of them before the first change, which may restart the device and reset others.
    let first: Vec<_> = plan.settings.iter().map(|setting| change.value(&setting.place)).collect();
    for (setting, first) in plan.settings.iter().zip(first) {
        report.rows.push(change.setting(setting, first.as_deref())?);
    }
    // What the kernel made of each, by which undo tells whether somebody has changed it since.
    if !change.journal.entries.is_empty() {
        store.save(&change.journal)?;
    }
    report.say(plan);
    Ok(report)
}

struct Change<'a> {
    host: &'a dyn Host,
    store: &'a dyn Store,
    believed: Believed,
    journal: Journal,
}

impl Change<'_> {
    /// Changes one setting, which was `first` before any was changed.
    fn setting(&mut self, setting: &Setting, first: Option<&str>) -> Result<Row, TuneError> {
        let before = match self.host.read(&setting.place) {
            Reading::Value(value) => value,
            other => return Ok(unchangeable(setting, &other)),
        };
        let original = first.unwrap_or(&before).to_owned();
        if setting.wanted.is_met(&before) {
            if original == before {
                self.share(&setting.place)?;
            } else {
                // The device's restart has changed it.
                self.keep(&setting.place, &original)?;
                self.note(&setting.place, &before);
            }
            return Ok(Row::of(setting, Outcome::AsWanted).values(&before, &before));
        }
        let is_new = self.keep(&setting.place, &original)? && original == before;
        let written = self.host.write(&setting.place, &setting.wanted.target(&before));
        let after = self.value(&setting.place);
        let refusal = match (&written, &after) {
            (Ok(()), Some(after)) if setting.wanted.is_met(after) => {
                self.note(&setting.place, after);
                return Ok(Row::of(setting, Outcome::Changed).values(before, after));
            }
            (Ok(()), Some(after)) => format!("the kernel made it {after}"),
            (Ok(()), None) => "it can no longer be read".to_owned(),
            (Err(error), _) => error.to_string(),
        };
        let (after, more) = self.put_back(&setting.place, &before, after, is_new)?;
        Ok(Row::of(setting, Outcome::Refused).values(before, after).note(format!("{refusal}{more}")))
    }

    fn value(&self, place: &Place) -> Option<String> {
        match self.host.read(place) {
            Reading::Value(value) | Reading::Fixed(value) => Some(value),
            Reading::Absent(_) | Reading::Unreadable(_) => None,
        }
    }

    /// What is as wanted only because another interface has changed it, this one wants, too.
    fn share(&mut self, place: &Place) -> Result<(), TuneError> {
        if self.journal.entry(place).is_some() {
            return Ok(());
        }
        let Some(theirs) = self.believed.elsewhere(place) else { return Ok(()) };
        // With what theirs made, so that undo tells if somebody has changed it since.
        self.journal.entries.push(theirs.clone());
        self.store.save(&self.journal)
    }

    /// Has the original of a place in the journal, on disk. Whether it was not there before.
    fn keep(&mut self, place: &Place, before: &str) -> Result<bool, TuneError> {
        if let Some(entry) = self.journal.entries.iter_mut().find(|entry| entry.place == *place) {
            // What the kernel made of the last change is about to be no longer there.
            if entry.made.take().is_some() {
                self.store.save(&self.journal)?;
            }
            return Ok(false);
        }
        let original = self
            .believed
            .elsewhere(place)
            .map_or_else(|| before.to_owned(), |theirs| theirs.original.clone());
        self.journal.entries.push(Entry { place: place.clone(), original, made: None });
        self.store.save(&self.journal)?;
        Ok(true)
    }

    fn note(&mut self, place: &Place, made: &str) {
        if let Some(entry) = self.journal.entries.iter_mut().find(|entry| entry.place == *place) {
            entry.made = Some(made.to_owned());
        }
    }

    /// Brings back the value before a write that was refused. Returns what is there now, and what to say of
    /// it if that is not the same.
    fn put_back(
        &mut self,
        place: &Place,
        before: &str,
        now: Option<String>,
        is_new: bool,
    ) -> Result<(String, String), TuneError> {
        let mut now = now;
        if now.as_deref() != Some(before) {
            // Whether it succeeds is what the next reading says.
            let _ = self.host.write(place, before);
            now = self.value(place);
        }
        let now = now.unwrap_or_else(|| "unreadable".to_owned());
        if now != before {
            return Ok((now, "; it could not be put back, and undo will try again".to_owned()));
        }
        if is_new {
            self.journal.entries.retain(|entry| entry.place != *place);
            if self.journal.entries.is_empty() {
                self.store.remove(self.host.interface())?;
            } else {
                self.store.save(&self.journal)?;
            }
        }
        Ok((now, String::new()))
    }
}
