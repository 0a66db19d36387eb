//! What was found and done, row by row.

use crate::plan::Plan;
use crate::setting::{Group, Setting};
use serde::Serialize;

/// What became of a setting.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// It is as wanted, and was.
    AsWanted,
    /// It is not as wanted.
    Differs,
    /// It was changed.
    Changed,
    /// The device or the kernel has no such thing, or has it fixed.
    NotSupported,
    /// The kernel did not do it; it is as before.
    Refused,
    /// It was asked for, and cannot be had here.
    NotPossible,
    /// For somebody else to do.
    Advice,
    /// It is as it was before the first apply.
    Restored,
    /// Another interface wants it: it stays.
    Kept,
    /// It has gone with the device.
    Gone,
}

/// One setting.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Row {
    /// What it belongs to; nothing in undo.
    pub group: Option<Group>,
    /// Its name.
    pub name: String,
    /// Its value before.
    pub before: Option<String>,
    /// What it should be.
    pub wanted: Option<String>,
    /// Its value afterwards, as the kernel says.
    pub after: Option<String>,
    /// What became of it.
    pub outcome: Outcome,
    /// More about that: a clause.
    pub note: Option<String>,
    /// Why it is wanted.
    pub why: Option<&'static str>,
}

impl Row {
    pub(crate) fn of(setting: &Setting, outcome: Outcome) -> Self {
        Self {
            group: Some(setting.group),
            wanted: Some(setting.wanted.to_string()),
            why: Some(setting.why),
            ..Self::named(setting.place.to_string(), outcome)
        }
    }

    pub(crate) fn named(name: String, outcome: Outcome) -> Self {
        Self { group: None, name, before: None, wanted: None, after: None, outcome, note: None, why: None }
    }

    pub(crate) fn values(self, before: impl Into<String>, after: impl Into<String>) -> Self {
        Self { before: Some(before.into()), after: Some(after.into()), ..self }
    }

    pub(crate) fn note(self, note: impl Into<String>) -> Self {
        Self { note: Some(note.into()), ..self }
    }
}

/// All rows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Report {
    /// The interface.
    pub interface: String,
    /// Its rows.
    pub rows: Vec<Row>,
}

impl Report {
    pub(crate) fn new(interface: &str) -> Self {
        Self { interface: interface.to_owned(), rows: Vec::new() }
    }

    /// Appends what of a plan can only be said.
    pub(crate) fn say(&mut self, plan: &Plan) {
        let lacking = plan.lacking.iter().map(|lacking| (Outcome::NotSupported, lacking));
        let unmet = plan.unmet.iter().map(|unmet| (Outcome::NotPossible, unmet));
        for (outcome, (group, name, why)) in lacking.chain(unmet) {
            let row = Row::named(name.clone(), outcome).note(why);
            self.rows.push(Row { group: Some(*group), ..row });
        }
        for advice in &plan.advice {
            let row = Row::named(advice.name.clone(), Outcome::Advice).note(&advice.text);
            let before = (!advice.value.is_empty()).then(|| advice.value.clone());
            self.rows.push(Row { group: Some(advice.group), before, ..row });
        }
    }

    /// Whether a row has this outcome.
    #[must_use]
    pub fn has(&self, outcome: Outcome) -> bool {
        self.rows.iter().any(|row| row.outcome == outcome)
    }
}
