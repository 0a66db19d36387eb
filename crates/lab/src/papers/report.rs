//! What a report says: every figure and table with its state, and what was found beside what the paper
//! prints. `html` and `markdown` write it for people, [`Report::json`] for programs.

use serde_json::{Value, json};

use super::item::{How, Item, Mode, Paper, Printed};
use super::machine::Machine;
use super::reading::{Finding, Reading};
use super::store::Record;
use crate::statistics::Spread;
use crate::table::grouped_figure;

/// Above this share of others, what was measured says that the machine was shared.
const QUIET: f64 = 0.03;

/// What became of a figure or table.
pub(super) enum State {
    /// It was measured, or a model was asked: now, or in an earlier run of the same settings.
    Measured { record: Box<Record>, reading: Reading, is_kept: bool },
    /// It has nothing to measure.
    Drawing(&'static str),
    /// It cannot be measured here.
    NotPossible(String),
    /// The measurement failed.
    Failed(String),
    /// The run has not come to it.
    NotYet,
}

impl State {
    /// Of an item before anything is measured.
    pub(super) fn before(item: &Item) -> Self {
        match item.how {
            How::Measured(_) => Self::NotYet,
            How::Drawing(what) => Self::Drawing(what),
        }
    }

    /// Whether all its figures are a model's.
    fn is_predicted(&self) -> bool {
        matches!(self, Self::Measured { reading, .. } if reading.is_predicted())
    }

    /// Name in JSON.
    fn name(&self) -> &'static str {
        match self {
            Self::Measured { .. } if self.is_predicted() => "predicted",
            Self::Measured { .. } => "measured",
            Self::Drawing(_) => "nothing_to_measure",
            Self::NotPossible(_) => "not_possible_here",
            Self::Failed(_) => "failed",
            Self::NotYet => "not_yet_measured",
        }
    }

    /// What [`Self::kind`] says.
    const KINDS: [&'static str; 6] =
        ["measured", "predicted", "not possible here", "nothing to measure", "failed", "not yet measured"];

    /// In one or a few words.
    pub(super) fn kind(&self) -> &'static str {
        let [measured, predicted, not_possible, drawing, failed, not_yet] = Self::KINDS;
        match self {
            Self::Measured { .. } if self.is_predicted() => predicted,
            Self::Measured { .. } => measured,
            Self::NotPossible(_) => not_possible,
            Self::Drawing(_) => drawing,
            Self::Failed(_) => failed,
            Self::NotYet => not_yet,
        }
    }

    /// For people, where there are no figures.
    pub(super) fn words(&self) -> Option<String> {
        match self {
            Self::Measured { .. } => None,
            Self::Drawing(what) => Some(format!("nothing to measure: {what}")),
            Self::NotPossible(reason) => Some(format!("not possible here: {reason}")),
            Self::Failed(reason) => Some(format!("failed: {reason}")),
            Self::NotYet => Some("not yet measured: the run has not come to it".to_owned()),
        }
    }
}

pub(super) struct Entry<'a> {
    pub(super) item: &'a Item,
    pub(super) state: State,
}

/// A row of an item's table. Nothing stands in a column but what belongs there: what was measured, what a
/// model says, what the paper prints.
#[derive(Debug, PartialEq)]
pub(super) struct Line {
    pub(super) what: String,
    pub(super) here: String,
    pub(super) range: String,
    pub(super) predicted: String,
    pub(super) paper: String,
}

impl Line {
    /// The cells, and what they are called.
    pub(super) const HEADS: [&'static str; 5] =
        ["", "measured here", "lowest to highest", "predicted", "paper"];

    pub(super) fn cells(&self) -> [&str; 5] {
        [&self.what, &self.here, &self.range, &self.predicted, &self.paper]
    }
}

fn paper(printed: &Printed) -> String {
    format!("{} {}", printed.figure, printed.unit)
}

/// Three significant digits or more, no more than are of use.
pub(super) fn digits(value: f64) -> String {
    match value {
        v if v >= 1000.0 => grouped_figure(v),
        v if v >= 100.0 => format!("{v:.1}"),
        v if v >= 1.0 => format!("{v:.2}"),
        v => format!("{v:.3}"),
    }
}

impl Entry<'_> {
    fn finding(&self, finding: &Finding) -> Line {
        // What the paper says of something stands beside every variant of it.
        let is_of = |printed: &&Printed| {
            finding
                .what
                .strip_prefix(printed.what)
                .is_some_and(|rest| rest.is_empty() || rest.starts_with(", "))
        };
        let Finding { what, unit, here, predicted } = finding;
        let with_unit = |value: f64| match *unit {
            "bytes" => format!("{} bytes", grouped_figure(value)),
            unit => format!("{} {unit}", digits(value)),
        };
        let range = here.filter(|Spread { lowest, highest, .. }| lowest < highest);
        Line {
            what: what.clone(),
            here: here.map_or(String::new(), |here| with_unit(here.median)),
            range: range.map_or(String::new(), |r| format!("{} to {}", digits(r.lowest), digits(r.highest))),
            predicted: predicted.map_or(String::new(), with_unit),
            paper: self.item.printed.iter().find(is_of).map_or(String::new(), paper),
        }
    }

    /// The table: what was found, then what only the paper has.
    pub(super) fn lines(&self) -> Vec<Line> {
        let findings: &[Finding] = match &self.state {
            State::Measured { reading, .. } => &reading.findings,
            _ => &[],
        };
        let mut lines: Vec<Line> = findings.iter().map(|finding| self.finding(finding)).collect();
        let starts = |printed: &Printed| {
            let is_of = |line: &Line| {
                line.what
                    .strip_prefix(printed.what)
                    .is_some_and(|rest| rest.is_empty() || rest.starts_with(", "))
            };
            lines.iter().any(is_of)
        };
        let others: Vec<&Printed> = self.item.printed.iter().filter(|printed| !starts(printed)).collect();
        lines.extend(others.into_iter().map(|printed| Line {
            what: printed.what.to_owned(),
            here: String::new(),
            range: String::new(),
            predicted: String::new(),
            paper: paper(printed),
        }));
        lines
    }

    /// When and how it was measured, what is not as in the paper, and what else is to be said.
    pub(super) fn notes(&self) -> Vec<String> {
        let (State::Measured { record, reading, is_kept }, Some(method)) = (&self.state, self.item.method())
        else {
            return Vec::new();
        };
        let kept = if *is_kept { ", kept from an earlier run of the same settings" } else { "" };
        let is_predicted = self.state.is_predicted();
        let (done, by) = if is_predicted { ("Predicted", " by a model") } else { ("Measured", "") };
        let seconds = digits(record.seconds);
        let begun = record.begun_at.as_ref();
        let begun = begun.map_or_else(String::new, |at| {
            format!(", the first of its commands {at} by a run that was stopped")
        });
        let mut notes = vec![format!("{done}{by} {} in {seconds} s{begun}{kept}.", record.measured_at)];
        // A model is no slower for others.
        let others = record.others_share.filter(|share| *share > QUIET && !is_predicted);
        notes.extend(others.map(|share| {
            format!(
                "This machine was shared: other programs had {:.0} % of its processors meanwhile. Rates are too low, times too high.",
                share * 100.0
            )
        }));
        notes.push(method.conditions.to_owned());
        notes.extend(reading.remarks.iter().cloned());
        notes
    }

    fn json(&self) -> Value {
        let printed = |p: &Printed| json!({ "what": p.what, "figure": p.figure, "unit": p.unit });
        let mut object = json!({
            "id": self.item.id(),
            "name": self.item.name,
            "title": self.item.title,
            "state": self.state.name(),
            "printed": self.item.printed.iter().map(printed).collect::<Vec<_>>(),
        });
        if let Some(words) = self.state.words() {
            object["reason"] = words.into();
        }
        if let State::Measured { record, reading, is_kept } = &self.state {
            let finding = |f: &Finding| {
                json!({
                    "what": f.what,
                    "unit": f.unit,
                    "median": f.here.map(|here| here.median),
                    "lowest": f.here.map(|here| here.lowest),
                    "highest": f.here.map(|here| here.highest),
                    "predicted": f.predicted,
                })
            };
            object["kept"] = (*is_kept).into();
            object["command"] = format!("testudo {}", record.settings.command).into();
            object["measured_at"] = record.measured_at.clone().into();
            object["seconds"] = record.seconds.into();
            object["begun_at"] = record.begun_at.clone().into();
            object["others_share"] = record.others_share.into();
            object["findings"] = reading.findings.iter().map(finding).collect();
            object["notes"] = self.notes().into();
            object["rows"] = record.rows.clone();
        }
        object
    }
}

/// Everything.
pub(super) struct Report<'a> {
    pub(super) mode: Mode,
    /// What was selected; empty if everything was.
    pub(super) only: Vec<String>,
    pub(super) made_at: String,
    pub(super) program: String,
    pub(super) machine: Machine,
    pub(super) entries: Vec<Entry<'a>>,
}

impl<'a> Report<'a> {
    /// The papers that have entries, with these.
    pub(super) fn papers(&self) -> Vec<(Paper, Vec<&Entry<'a>>)> {
        let of = |paper: Paper| self.entries.iter().filter(move |entry| entry.item.paper == paper).collect();
        let all = Paper::ALL.into_iter().map(|paper| (paper, of(paper)));
        all.filter(|(_, entries): &(Paper, Vec<_>)| !entries.is_empty()).collect()
    }

    /// How many entries are in which state.
    pub(super) fn tally(entries: &[&Entry<'_>]) -> String {
        let count = |kind: &str| entries.iter().filter(|entry| entry.state.kind() == kind).count();
        let counted =
            State::KINDS.map(|kind| (count(kind), kind)).into_iter().filter(|(count, _)| *count > 0);
        let words =
            counted.map(|(count, kind)| format!("{count} {}", kind.replace("nothing", "with nothing")));
        words.collect::<Vec<_>>().join(", ")
    }

    /// The same of all.
    pub(super) fn tally_of_all(&self) -> String {
        Self::tally(&self.entries.iter().collect::<Vec<_>>())
    }

    /// What kind of run it is.
    pub(super) fn setting(&self) -> String {
        let mode = match self.mode {
            Mode::Quick => {
                "A quick run: short measurements, which vary more than those of a full run and do not conform to RFC 2544."
            }
            Mode::Full => "A full run.",
        };
        let only = if self.only.is_empty() {
            String::new()
        } else {
            format!(" Of {} alone (--only).", self.only.join(", "))
        };
        format!("{mode}{only}")
    }

    /// The JSON behind it.
    pub(super) fn json(&self) -> Value {
        let paper = |(paper, entries): (Paper, Vec<&Entry<'_>>)| {
            json!({
                "paper": paper.number(),
                "title": paper.title(),
                "source": paper.source(),
                "items": entries.iter().map(|entry| entry.json()).collect::<Vec<_>>(),
            })
        };
        json!({
            "mode": self.mode.name(),
            "only": self.only,
            "made_at": self.made_at,
            "program": self.program,
            "machine": self.machine,
            "papers": self.papers().into_iter().map(paper).collect::<Vec<_>>(),
        })
    }
}

/// What every report says of itself.
pub(super) const ABOUT: [&str; 3] = [
    "Every figure and table of five papers: measured again on this machine where that is possible, or predicted by a model, beside the number that the paper prints. The papers' figures are of other \
     machines, other links and other years: compare shapes and ratios, not heights.",
    "\"Measured here\" has nothing that was not measured in the run whose date stands beside it; what a model predicts has a column of its own. A number of the paper is from its text or \
     tables; where its pictures alone have one, the cell is empty.",
    "Each section names the command that measures it alone.",
];
