//! The report as Markdown: the same text and tables, without the pictures.

use std::fmt::Write as _;

use super::report::{ABOUT, Entry, Line, Report, State};

/// Text that no table or markup of Markdown's ends or begins.
fn escaped(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\n' | '\r' => safe.push(' '),
            '|' | '*' | '_' | '`' | '[' | ']' | '\\' => safe.extend(['\\', c]),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '&' => safe.push_str("&amp;"),
            other => safe.push(other),
        }
    }
    safe
}

/// The document.
pub(super) fn document(report: &Report<'_>) -> String {
    let mut text = "# The papers measured again\nWritten by `testudo lab papers --markdown`.\n\n".to_owned();
    for about in ABOUT {
        let _ = writeln!(text, "{}\n", escaped(about));
    }
    text.push_str("## The machine and the run\n| | |\n| --- | --- |\n");
    let own =
        [("Run", report.setting()), ("Made", report.made_at.clone()), ("Program", report.program.clone())];
    for (what, value) in report.machine.lines().into_iter().chain(own) {
        let _ = writeln!(text, "| {what} | {} |", escaped(&value));
    }
    let _ = writeln!(text, "\nIn all: {}.", report.tally_of_all());
    for (paper, entries) in report.papers() {
        let _ = writeln!(
            text,
            "\n## {}: {}\n{}. {}.",
            paper.number(),
            escaped(paper.title()),
            escaped(paper.source()),
            Report::tally(&entries)
        );
        entries.iter().for_each(|entry| section(&mut text, entry));
    }
    text
}

fn section(text: &mut String, entry: &Entry<'_>) {
    let _ = writeln!(text, "\n### {}: {}", escaped(entry.item.name), escaped(entry.item.title));
    if let Some(words) = entry.state.words() {
        let _ = writeln!(text, "{}.", escaped(&words));
    }
    if let State::Measured { record, .. } = &entry.state {
        // No command has a backtick: it comes from the program, or was compared with what does.
        let _ = writeln!(text, "`testudo {}`\n", record.settings.command);
        for note in entry.notes() {
            let _ = writeln!(text, "{}\n", escaped(&note));
        }
    } else if !entry.lines().is_empty() {
        text.push('\n');
    }
    table(text, &entry.lines());
}

fn table(text: &mut String, lines: &[Line]) {
    if lines.is_empty() {
        return;
    }
    let _ = writeln!(text, "| {} |\n| --- | ---: | ---: | ---: | ---: |", Line::HEADS.join(" | "));
    for line in lines {
        let _ = writeln!(text, "| {} |", line.cells().map(escaped).join(" | "));
    }
}
