//! What the rows of a command say: findings, pictures, remarks. Rows may come from a file, so that nothing in
//! them is trusted.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use crate::bench::bars::Bars;
use crate::bench::chart::{self, Extent, Line, Panel, STRIPS};
use crate::statistics::Spread;

/// What is wrong with rows.
pub(super) type Wrong = String;

/// The most rows of a command that are read.
const MOST_ROWS: usize = 10_000;
/// Above any rate, time or size that rows have.
const LARGEST: f64 = 1e15;

/// One result.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Finding {
    pub(super) what: String,
    pub(super) unit: &'static str,
    /// What was measured.
    pub(super) here: Option<Spread>,
    /// What a model says of it, which was not measured.
    pub(super) predicted: Option<f64>,
}

/// What rows say.
#[derive(Default)]
pub(super) struct Reading {
    pub(super) findings: Vec<Finding>,
    pub(super) panels: Vec<Panel>,
    pub(super) bars: Vec<Bars>,
    pub(super) remarks: Vec<String>,
}

impl Reading {
    pub(super) fn find(&mut self, what: impl Into<String>, unit: &'static str, here: Spread) {
        self.findings.push(Finding { what: what.into(), unit, here: Some(here), predicted: None });
    }

    /// Whether there are figures, and all of them are a model's.
    pub(super) fn is_predicted(&self) -> bool {
        !self.findings.is_empty() && self.findings.iter().all(|finding| finding.here.is_none())
    }

    /// Adds a remark, once.
    pub(super) fn remark(&mut self, text: String) {
        if !self.remarks.contains(&text) {
            self.remarks.push(text);
        }
    }

    /// Adds what a row says of itself, as remarks of what it is of.
    pub(super) fn remark_notes(&mut self, row: &Value, of: &str) {
        notes(row).for_each(|note| self.remark(format!("{of}: {note}.")));
    }

    /// Adds what a row says of itself where all rows say it.
    pub(super) fn remark_common_notes(&mut self, rows: &[Value]) {
        let Some((first, others)) = rows.split_first() else { return };
        let is_of_all = |note: &&str| others.iter().all(|row| notes(row).any(|other| other == *note));
        notes(first).filter(is_of_all).for_each(|note| self.remark(format!("Of all rows: {note}.")));
    }
}

/// Notes of a row, for people.
fn notes(row: &Value) -> impl Iterator<Item = &str> {
    row.get("notes").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str)
}

/// The processors that rows name, and how many of the rows say that threads shared some, in one line; `None`
/// if no row names any.
pub(super) fn cores(rows: &[Value]) -> Option<String> {
    let mut named: BTreeMap<&str, BTreeSet<u64>> = BTreeMap::new();
    let mut available = BTreeSet::new();
    let (mut shared, mut counted) = (0, 0);
    for row in rows {
        let cores = row.get("cores").unwrap_or(&Value::Null);
        let flags = [cores.get("shared"), row.get("cores_shared"), row.get("processors_shared")];
        let is_shared = flags.into_iter().flatten().find_map(Value::as_bool);
        counted += usize::from(is_shared.is_some());
        shared += usize::from(is_shared == Some(true));
        let names = processors(row).into_iter();
        available.extend(cores.as_u64());
        names.for_each(|(role, numbers)| named.entry(role).or_default().extend(numbers));
    }
    let list = |numbers: &BTreeSet<u64>| numbers.iter().map(u64::to_string).collect::<Vec<_>>().join(", ");
    let mut parts: Vec<String> =
        named.iter().map(|(role, numbers)| format!("{role} {}", list(numbers))).collect();
    // How many there are is of use only where no row says which.
    if named.is_empty() && !available.is_empty() {
        parts.push(format!("{} to choose from", list(&available)));
    }
    let end = match shared {
        0 => String::new(),
        some => format!("cores shared in {some} of {counted} rows"),
    };
    parts.extend((!end.is_empty()).then_some(end));
    (!parts.is_empty()).then(|| format!("Cores: {}.", parts.join("; ")))
}

/// The processors that a row names, by what they do: in `cores`, in `processors` where `cores` is a number of
/// them, and those of the ends of a stream.
fn processors(row: &Value) -> Vec<(&str, Vec<u64>)> {
    let objects = ["cores", "processors"].into_iter().filter_map(|name| row.get(name)?.as_object());
    let of_roles = objects.flatten().map(|(role, which)| {
        let one = std::slice::from_ref(which);
        let all = which.as_array().map_or(one, Vec::as_slice);
        (role.as_str(), all.iter().filter_map(Value::as_u64).collect::<Vec<_>>())
    });
    let ends = [("sender", "sender_processors"), ("receiver", "receiver_processors")];
    let of_ends = ends.into_iter().filter_map(|(end, name)| {
        let words = row.get(name)?.as_str()?.split_whitespace();
        Some((end, words.filter_map(|word| word.parse::<u64>().ok()).collect::<Vec<_>>()))
    });
    of_roles.chain(of_ends).filter(|(_, numbers)| !numbers.is_empty()).collect()
}

/// The array that a command prints.
pub(super) fn rows(value: &Value) -> Result<&[Value], Wrong> {
    match value {
        Value::Array(rows) if rows.is_empty() => Err("it has no rows".to_owned()),
        Value::Array(rows) if rows.len() > MOST_ROWS => Err(format!("it has more than {MOST_ROWS} rows")),
        Value::Array(rows) => Ok(rows),
        _ => Err("its rows are no array".to_owned()),
    }
}

/// A number that is not negative.
pub(super) fn number(row: &Value, name: &str) -> Result<f64, Wrong> {
    let number = row.get(name).and_then(Value::as_f64).filter(|number| (0.0..=LARGEST).contains(number));
    number.ok_or_else(|| format!("\"{name}\" of a row is no number from 0 to {LARGEST:e}"))
}

pub(super) fn text<'a>(row: &'a Value, name: &str) -> Result<&'a str, Wrong> {
    row.get(name).and_then(Value::as_str).ok_or_else(|| format!("\"{name}\" of a row is no text"))
}

/// A whole number of bytes, packets or workers.
pub(super) fn count(row: &Value, name: &str) -> Result<usize, Wrong> {
    let whole = row.get(name).and_then(Value::as_u64).filter(|number| *number <= 1_000_000);
    let whole = whole.and_then(|number| usize::try_from(number).ok());
    whole.ok_or_else(|| format!("\"{name}\" of a row is no whole number up to 1000000"))
}

/// The median and, where the row has them, `NAME_lowest` and `NAME_highest`.
pub(super) fn spread(row: &Value, name: &str) -> Result<Spread, Wrong> {
    let median = number(row, name)?;
    let end = |end: &str| match row.get(format!("{name}_{end}")) {
        Some(_) => number(row, &format!("{name}_{end}")),
        None => Ok(median),
    };
    Ok(Spread { median, lowest: end("lowest")?, highest: end("highest")? })
}

/// The spread times a factor.
pub(super) fn scaled(spread: Spread, factor: f64) -> Spread {
    let Spread { median, lowest, highest } = spread;
    Spread { median: median * factor, lowest: lowest * factor, highest: highest * factor }
}

/// Lengths of packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Length {
    Bytes(usize),
    Imix,
    Random,
}

impl Length {
    /// Of a row's member that is a number or the name of a mix.
    pub(super) fn of(row: &Value, name: &str) -> Result<Self, Wrong> {
        match row.get(name).and_then(Value::as_str) {
            Some("imix") => Ok(Self::Imix),
            Some("random") => Ok(Self::Random),
            Some(other) => Err(format!("\"{name}\" of a row is {other:?}")),
            None => count(row, name).map(Self::Bytes),
        }
    }

    /// For people.
    pub(super) fn words(self) -> String {
        match self {
            Self::Bytes(bytes) => format!("{bytes} bytes"),
            Self::Imix => "IMIX".to_owned(),
            Self::Random => "random lengths".to_owned(),
        }
    }
}

/// Lines of a picture, each with the points of its name.
#[derive(Default)]
pub(super) struct Lines(Vec<Line>);

impl Lines {
    /// Adds a point to the line `name`. Lines of one colour differ in their dashes.
    pub(super) fn add(&mut self, name: &str, (colour, dash): (usize, usize), at: Length, value: Spread) {
        if !self.0.iter().any(|line| line.name == name) {
            let mixes = [None; STRIPS.len()];
            self.0.push(Line { name: name.to_owned(), colour, dash, points: Vec::new(), mixes });
        }
        let Some(line) = self.0.iter_mut().find(|line| line.name == name) else { return };
        match at {
            Length::Bytes(bytes) => line.points.push((bytes, value)),
            Length::Imix => line.mixes[0] = Some(value),
            Length::Random => line.mixes[1] = Some(value),
        }
    }

    /// The picture, with a title and what its axes show.
    pub(super) fn panel(mut self, title: &str, [across, up]: [&str; 2], extent: Extent) -> Panel {
        self.0.iter_mut().for_each(|line| line.points.sort_by_key(|(at, _)| *at));
        chart::sort(&mut self.0);
        Panel {
            title: title.to_owned(),
            subtitle: "Testudo on this machine; medians, with lowest and highest".to_owned(),
            across: across.to_owned(),
            up: up.to_owned(),
            extent,
            lines: self.0,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_processors_of_a_measurement_are_one_line() {
        let line = |rows: Value| cores(rows.as_array().unwrap());
        assert_eq!(
            line(json!([{ "cores": { "worker": [1] } }, { "cores": { "worker": [0, 1] } }])).unwrap(),
            "Cores: worker 0, 1."
        );
        let pair = |shared: bool| json!({ "cores": { "gateways": 1, "generator": 0, "shared": shared } });
        assert_eq!(line(json!([pair(false)])).unwrap(), "Cores: gateways 1; generator 0.");
        assert_eq!(
            line(json!([pair(true), pair(false), { "other": 1 }])).unwrap(),
            "Cores: gateways 1; generator 0; cores shared in 1 of 2 rows."
        );
        assert_eq!(
            line(json!([{ "cores": 2, "cores_shared": true }])).unwrap(),
            "Cores: 2 to choose from; cores shared in 1 of 1 rows."
        );
        assert_eq!(
            line(json!([{ "cores": 2, "processors": { "worker": [1], "beside": [0, 1] } }])).unwrap(),
            "Cores: beside 0, 1; worker 1."
        );
        let stream = |shared: bool| {
            let mut row = json!({ "sender_processors": "0 1", "receiver_processors": "2" });
            row["processors_shared"] = json!(shared);
            row
        };
        assert_eq!(
            line(json!([stream(false), stream(true)])).unwrap(),
            "Cores: receiver 2; sender 0, 1; cores shared in 1 of 2 rows."
        );
        assert_eq!(line(json!([{ "cores": "x" }, { "processors_shared": false }])), None);
        assert_eq!(line(json!([{ "sender_processors": "x", "receiver_processors": 2 }])), None);
    }

    #[test]
    fn rows_of_other_kinds_are_refused_not_believed() {
        let row = json!({ "a": -1.0, "b": 1e300, "c": "x", "d": 1.5, "e": [], "f": 2.0, "f_lowest": "x" });
        for name in ["a", "b", "c", "e", "none"] {
            assert!(number(&row, name).is_err(), "{name}");
        }
        assert!(number(&row, "d").is_ok() && count(&row, "d").is_err() && text(&row, "d").is_err());
        assert!(spread(&row, "f").is_err(), "a lowest that is no number");
        assert!(Length::of(&row, "c").is_err() && Length::of(&row, "a").is_err());
        assert!(rows(&json!([])).is_err() && rows(&json!({})).is_err() && rows(&json!([1])).is_ok());
        assert!(rows(&Value::Array(vec![json!(1); MOST_ROWS + 1])).is_err());
    }
}
