//! Apply: what differs is changed, and what it was before is kept first.

use crate::believed::Believed;
use crate::check::unchangeable;
use crate::companions::{companions, is_companion, loses_ipv6};
use crate::error::TuneError;
use crate::heirs::only_watches;
use crate::host::{Host, Reading};
use crate::journal::{Entry, Identity, Journal, Store, Stores};
use crate::place::Place;
use crate::plan::Plan;
use crate::report::{Outcome, Report, Row};
use crate::setting::Setting;
use crate::watched::is_as_made;

/// Brings the host to a plan, as far as it lets itself be brought.
///
/// # Errors
/// The journal cannot be kept: nothing was changed that it does not have. If it was kept for some settings,
/// [`TuneError::Partly`].
pub fn apply(host: &dyn Host, stores: Stores<'_>, plan: &Plan) -> Result<Report, TuneError> {
    refuse_to_lose_ipv6(host, plan)?;
    let mut report = Report::new(host.interface());
    let mut own = Change::begin(host, stores.namespace, &mut report)?;
    let machines = stores.machine.map(|store| Change::begin(host, store, &mut report));
    let mut machines = machines.transpose()?;
    // All of them before the first change, which may restart the device and reset others.
    let first: Vec<_> = plan.settings.iter().map(|setting| value(host, &setting.place)).collect();
    let mut failed = None;
    for (setting, first) in plan.settings.iter().zip(first) {
        let change = if setting.place.is_machines() { machines.as_mut() } else { Some(&mut own) };
        let none = || Row::of(setting, Outcome::Refused).note("there is no folder for what is the machine's");
        match change.map_or_else(|| Ok(none()), |change| change.setting(setting, first.as_deref())) {
            Ok(row) => report.rows.push(row),
            Err(error) => {
                failed = Some(error);
                break;
            }
        }
    }
    for change in [Some(own), machines].into_iter().flatten() {
        failed = failed.or(change.end().err());
    }
    match failed {
        None => report.say(plan),
        Some(error) if report.rows.is_empty() => return Err(error),
        Some(error) => return Err(TuneError::Partly { report: Box::new(report), why: Box::new(error) }),
    }
    Ok(report)
}

/// Whether [`apply`] would begin: for who does something before it, such as to have it done at boot.
///
/// # Errors
/// Those with which `apply` would end before the first change.
pub fn admit(host: &dyn Host, stores: Stores<'_>, plan: &Plan) -> Result<(), TuneError> {
    refuse_to_lose_ipv6(host, plan)?;
    let stores = [Some(stores.namespace), stores.machine].into_iter().flatten();
    let complete = |store| Believed::read(host, store).and_then(Believed::complete);
    stores.map(complete).try_for_each(|believed| believed.map(drop))
}

/// Addresses, routes and all settings of IPv6 go with an MTU below its least, here or on top.
fn refuse_to_lose_ipv6(host: &dyn Host, plan: &Plan) -> Result<(), TuneError> {
    let is_mtu = |setting: &&Setting| setting.place == Place::interface("mtu");
    let mtu =
        plan.settings.iter().find(is_mtu).and_then(|setting| setting.wanted.target("").parse::<u64>().ok());
    let lost = mtu.and_then(|mtu| loses_ipv6(host, host.interface(), mtu));
    lost.map_or(Ok(()), |interface| Err(TuneError::Ipv6Lost(interface)))
}

fn value(host: &dyn Host, place: &Place) -> Option<String> {
    host.read(place).value()
}

/// What the kernel changes along with a setting, and what it was before that.
struct Companion {
    place: Place,
    before: String,
    is_new: bool,
}

/// A journal, and the changes that it has.
struct Change<'a> {
    host: &'a dyn Host,
    store: &'a dyn Store,
    believed: Believed,
    journal: Journal,
}

impl<'a> Change<'a> {
    fn begin(host: &'a dyn Host, store: &'a dyn Store, report: &mut Report) -> Result<Self, TuneError> {
        let mut believed = Believed::read(host, store)?.complete()?;
        let own = believed.own.take();
        report.rows.extend(believed.dropped_rows());
        let journal = own.unwrap_or_else(|| Journal::new(host.interface(), Identity::of(host)));
        Ok(Self { host, store, believed, journal })
    }

    /// Keeps what the kernel made of each, by which undo tells whether somebody has changed it since.
    fn end(self) -> Result<(), TuneError> {
        if self.journal.entries.is_empty() { Ok(()) } else { self.store.save(&self.journal) }
    }

    /// Changes one setting, which was `first` before any was changed.
    fn setting(&mut self, setting: &Setting, first: Option<&str>) -> Result<Row, TuneError> {
        let before = match self.host.read(&setting.place) {
            Reading::Value(value) => value,
            other => return Ok(unchangeable(setting, &other)),
        };
        let original = first.unwrap_or(&before).to_owned();
        if setting.wanted.is_met(&before) {
            let row = Row::of(setting, Outcome::AsWanted).values(&before, &before);
            if original == before {
                let shared = self.share(&setting.place)?;
                return Ok(Row { note: shared, ..row });
            }
            // The device's restart has changed it.
            self.keep(&setting.place, &original)?;
            self.note(&setting.place, &before);
            return Ok(row);
        }
        let overwritten = self.overwritten(&setting.place, &original);
        let target = setting.wanted.target(&before);
        let companions = self.keep_companions(&setting.place)?;
        let is_new = self.keep(&setting.place, &original)? && original == before;
        let written = self.host.write(&setting.place, &target);
        let after = value(self.host, &setting.place);
        let refusal = match (&written, &after) {
            (Ok(()), Some(after)) if setting.wanted.is_met(after) => {
                self.note(&setting.place, after);
                for Companion { place, .. } in companions {
                    // A governor's tunables are there no longer.
                    value(self.host, &place).inspect(|made| self.note(&place, made));
                }
                let row = Row::of(setting, Outcome::Changed).values(before, after);
                return Ok(Row { note: overwritten, ..row });
            }
            (Ok(()), Some(after)) => format!("the kernel made it {after}"),
            (Ok(()), None) => "it can no longer be read".to_owned(),
            (Err(error), _) => error.to_string(),
        };
        let (after, more) = self.put_back(&setting.place, &before, after, is_new, companions)?;
        Ok(Row::of(setting, Outcome::Refused).values(before, after).note(format!("{refusal}{more}")))
    }

    /// What is to be said of a value that somebody has set since it was kept: undo brings back an older one.
    fn overwritten(&self, place: &Place, before: &str) -> Option<String> {
        let own = self.journal.entry(place);
        let entry = own.or_else(|| self.believed.elsewhere(place).map(|(entry, _)| entry))?;
        let is_somebodys = entry.made.as_ref().is_some_and(|made| made != before);
        let text = || format!("somebody had set it since: undo brings back {}", entry.original);
        (is_somebodys && before != entry.original).then(text)
    }

    /// What is as wanted only because another interface has changed it, this one wants, too. Returns what is
    /// to be said of it.
    fn share(&mut self, place: &Place) -> Result<Option<String>, TuneError> {
        let Some((theirs, name)) = self.believed.elsewhere(place) else { return Ok(None) };
        let note = format!("{name} wants it, too: the last undo brings back {}", theirs.original);
        if self.journal.entry(place).is_none() {
            // With what theirs made, so that undo tells if somebody has changed it since.
            for entry in self.believed.with_companions(place) {
                if self.journal.entry(&entry.place).is_none() {
                    self.journal.entries.push(entry);
                }
            }
            self.store.save(&self.journal)?;
        }
        Ok(Some(note))
    }

    /// Keeps what the kernel will change along with a place: all of it at once, as undo needs their order,
    /// whatever is killed in between.
    fn keep_companions(&mut self, of: &Place) -> Result<Vec<Companion>, TuneError> {
        // Those that are new are on top of those that are there: undo comes to them last.
        let is_before = |entry: &Entry| is_companion(entry, of) || entry.place == *of;
        let first = self.journal.entries.iter().position(is_before);
        let mut at = first.unwrap_or(self.journal.entries.len());
        let mut kept = Vec::new();
        let is_as_made = *of == Place::interface("mtu") && is_as_made(self.host, &self.journal);
        for (place, before) in companions(self.host, of) {
            if is_as_made {
                self.renew(&place, &before);
            }
            let is_new = self.keep_at(at, &place, &before);
            at += usize::from(is_new);
            kept.push(Companion { place, before, is_new });
        }
        if !kept.is_empty() {
            self.store.save(&self.journal)?;
        }
        Ok(kept)
    }

    /// What the change before this one has left as it was is kept as it is now: it is this one's from now on.
    fn renew(&mut self, place: &Place, before: &str) {
        let number = self.believed.last_number(&self.journal) + 1;
        let is_it = |entry: &&mut Entry| entry.place.is_same(place) && only_watches(entry);
        if let Some(entry) = self.journal.entries.iter_mut().find(is_it) {
            entry.original = before.to_owned();
            entry.number = number;
        }
    }

    /// Has the original of a place in the journal, on disk. Whether it was not there before.
    fn keep(&mut self, place: &Place, before: &str) -> Result<bool, TuneError> {
        let is_new = self.keep_at(self.journal.entries.len(), place, before);
        self.store.save(&self.journal)?;
        Ok(is_new)
    }

    /// The same, before it is on disk, and as this entry if it is new: undo goes backwards.
    fn keep_at(&mut self, at: usize, place: &Place, before: &str) -> bool {
        if let Some(entry) = self.journal.entries.iter_mut().find(|entry| entry.place.is_same(place)) {
            // What the kernel made of the last change is about to be no longer there.
            entry.made = None;
            return false;
        }
        let theirs = self.believed.elsewhere(place).map(|(theirs, _)| theirs.original.clone());
        let original = theirs.unwrap_or_else(|| before.to_owned());
        let number = self.believed.last_number(&self.journal) + 1;
        self.journal.entries.insert(at, Entry { place: place.clone(), original, made: None, number });
        true
    }

    fn note(&mut self, place: &Place, made: &str) {
        if let Some(entry) = self.journal.entries.iter_mut().find(|entry| entry.place.is_same(place)) {
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
        companions: Vec<Companion>,
    ) -> Result<(String, String), TuneError> {
        let mut now = now;
        if now.as_deref() != Some(before) {
            // Whether it succeeds is what the next reading says.
            let _ = self.host.write(place, before);
            now = value(self.host, place);
        }
        let now = now.unwrap_or_else(|| "unreadable".to_owned());
        if now != before {
            return Ok((now, "; it could not be put back, and undo will try again".to_owned()));
        }
        let mut done: Vec<&Place> = if is_new { vec![place] } else { Vec::new() };
        for Companion { place, before, is_new } in companions.iter().rev() {
            if value(self.host, place).as_ref() != Some(before) {
                let _ = self.host.write(place, before);
            }
            if *is_new && value(self.host, place).as_ref() == Some(before) {
                done.push(place);
            }
        }
        if !done.is_empty() {
            self.journal.entries.retain(|entry| !done.contains(&&entry.place));
            if self.journal.entries.is_empty() {
                self.store.remove(self.host.interface())?;
            } else {
                self.store.save(&self.journal)?;
            }
        }
        Ok((now, String::new()))
    }
}
