//! The commands of an item, measured one after the other: a run that is stopped among them keeps those that
//! are done, each in a file of its own until all are.

use std::time::Instant;

use serde_json::Value;

use super::item::{AND, Item, Method};
use super::machine::Usage;
use super::report::State;
use super::store::{Found, Place, Record, Settings, Store};
use super::{Bar, Session, measured, reading, refused};
use crate::bench::BenchError;

/// A command of an item.
struct Part<'a> {
    /// Where its result is until all are done; `None` of the only one.
    place: Option<Place<'a>>,
    settings: Settings,
}

/// The state of an item whose measurement failed.
fn ended(error: BenchError) -> State {
    match error {
        BenchError::Engine(reason) | BenchError::NotPossible(reason) => State::NotPossible(reason),
        BenchError::Network(error) if error.is_of_the_machine() => State::NotPossible(error.to_string()),
        error => State::Failed(error.to_string()),
    }
}

impl Session<'_> {
    fn whole<'i>(&self, item: &'i Item) -> Place<'i> {
        Place::whole(item, self.options.mode())
    }

    fn parts<'i>(&self, item: &'i Item, settings: &Settings) -> Vec<Part<'i>> {
        let (whole, is_one) = (self.whole(item), !settings.command.contains(AND));
        let part = |(number, command): (usize, &str)| Part {
            place: (!is_one).then(|| whole.part(number)),
            settings: settings.of_part(command),
        };
        (1..).zip(settings.command.split(AND)).map(part).collect()
    }

    /// What an earlier run has of a part.
    fn find(&self, store: &Store, part: &Part<'_>) -> Found {
        let place = part.place.filter(|_| !self.options.again);
        place.map_or(Found::Nothing, |place| store.find(place, &part.settings))
    }

    /// The share of an item's commands, 0 to 1, that no earlier run has done.
    pub(super) fn share_left(&self, store: &Store, item: &Item, settings: &Settings) -> f64 {
        let parts = self.parts(item, settings);
        let done = parts.iter().filter(|part| matches!(self.find(store, part), Found::Kept(_))).count();
        (parts.len() - done) as f64 / parts.len() as f64
    }

    /// What earlier runs have of each part; what is not to be taken is put away, and said.
    fn kept(&self, store: &Store, parts: &[Part<'_>]) -> Vec<Option<Record>> {
        let of = |part: &Part<'_>| match (self.find(store, part), part.place) {
            (Found::Kept(record), _) => Some(*record),
            (Found::Refused(reason), Some(place)) => {
                refused(store, place, &reason);
                None
            }
            _ => None,
        };
        parts.iter().map(of).collect()
    }

    /// Measures an item and keeps the result.
    pub(super) fn measure_one(
        &self,
        store: &Store,
        item: &Item,
        method: &Method,
        bar: Bar<'_>,
    ) -> Result<State, BenchError> {
        let settings = self.settings(item, method);
        let parts = self.parts(item, &settings);
        if self.options.again && parts.len() > 1 {
            // None of it is to be taken by the run that goes on with this one, if this one is stopped.
            parts.iter().filter_map(|part| part.place).for_each(|place| store.remove(place));
            store.remove(self.whole(item));
        }
        let mut known = self.kept(store, &parts);
        loop {
            let kept: Vec<Place<'_>> = parts
                .iter()
                .zip(&known)
                .filter_map(|(part, known)| part.place.filter(|_| known.is_some()))
                .collect();
            let begun_at = known.iter().flatten().map(|record| record.measured_at.clone()).next();
            let mut records = Vec::new();
            for (part, known) in parts.iter().zip(known) {
                let record = match known {
                    Some(record) => record,
                    None => match self.measure_part(store, part, method, bar)? {
                        Ok(record) => record,
                        Err(state) => return Ok(state),
                    },
                };
                records.push(record);
            }
            let record = Record::joined(settings.clone(), begun_at, records);
            match reading::rows(&record.rows).and_then(method.read) {
                Ok(_) => {
                    store.keep(self.whole(item), &record)?;
                    parts.iter().filter_map(|part| part.place).for_each(|place| store.remove(place));
                    return Ok(measured(Box::new(record), method, false));
                }
                Err(wrong) if kept.is_empty() => {
                    parts.iter().filter_map(|part| part.place).for_each(|place| store.remove(place));
                    return Ok(State::Failed(format!("its rows cannot be read: {wrong}")));
                }
                // It may be what was kept that the others do not go with: all are measured, once.
                Err(wrong) => {
                    let reason = format!("{} cannot be read with the others: {wrong}", item.id());
                    kept.into_iter().for_each(|place| refused(store, place, &reason));
                    known = parts.iter().map(|_| None).collect();
                }
            }
        }
    }

    /// Measures a command and keeps its rows, if there are others beside it; or what became of the item.
    fn measure_part(
        &self,
        store: &Store,
        part: &Part<'_>,
        method: &Method,
        bar: Bar<'_>,
    ) -> Result<Result<Record, State>, BenchError> {
        let (before, start) = (Usage::now(), Instant::now());
        let rows: Value = match self.watched(&part.settings.command, bar) {
            Ok(rows) => rows,
            Err(error) => return Ok(Err(ended(error))),
        };
        let others = before
            .zip(Usage::now())
            .and_then(|(before, after)| before.share_of_others(&after, method.crosses_the_kernel()));
        let record = Record::new(part.settings.clone(), start.elapsed().as_secs_f64(), others, rows);
        if let Some(place) = part.place {
            store.keep(place, &record)?;
        }
        Ok(Ok(record))
    }
}
