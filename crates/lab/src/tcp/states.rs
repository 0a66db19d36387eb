//! The processors' time by state, as bars: of both ends where each has processors of its own.

use super::cpu::STATES;
use super::report::{Row, of_setting};
use crate::bench::bars::{Bars, Group, Part, Row as Subject};

const IDLE: &str = "idle";

/// The bars of one setting: a row for each subject, a group for each size of messages.
pub(super) fn bars(rows: &[&Row], is_pinned: bool) -> Bars {
    let mut subjects: Vec<Subject> = Vec::new();
    for row in rows {
        let (Some(subject), Some(measured)) = (&row.subject, &row.measured) else { continue };
        // Ends that share all processors have the same states: one bar is of both.
        let ends = measured.ends.iter().take(if is_pinned { measured.ends.len() } else { 1 });
        let bars = ends.map(|shares| shares.of.to_vec()).collect();
        let (name, group) = (subject.name(), Group { label: row.message_bytes.to_string(), bars });
        match subjects.iter_mut().find(|known| known.name == name) {
            Some(known) => known.groups.push(group),
            None => subjects.push(Subject { name, groups: vec![group] }),
        }
    }
    let ends = match is_pinned {
        true => "left bar: the sender's end, right bar: the receiver's",
        false => "both ends share these processors",
    };
    Bars {
        title: "Processors' time by state".to_owned(),
        subtitle: format!("{}; {ends}", of_setting(rows)),
        across: "message size (bytes)".to_owned(),
        parts: parts(),
        rows: subjects,
    }
}

/// The states, as parts of a bar.
pub(crate) fn parts() -> Vec<Part> {
    STATES.map(|name| Part { name, is_rest: name == IDLE }).into()
}
