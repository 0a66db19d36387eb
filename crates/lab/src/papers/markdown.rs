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

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::item::Mode;
    use super::super::registry;
    use super::*;

    fn in_docs() -> String {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/PAPERS.md");
        std::fs::read_to_string(path).unwrap()
    }

    /// A command without what names a file or a device of the machine that it ran on.
    fn without_names(command: &str) -> String {
        let mut words = command.split(' ');
        let mut kept = Vec::new();
        while let Some(word) = words.next() {
            match word {
                "--engine" | "--gpu" | "--prices" => drop(words.next()),
                other => kept.push(other),
            }
        }
        kept.join(" ")
    }

    /// What a document says of an item of a paper, from the line below its heading on.
    fn section<'a>(document: &'a str, paper: &str, heading: &str) -> Option<&'a str> {
        let (_, of_paper) = document.split_once(&format!("\n## {paper}: "))?;
        let of_paper = of_paper.split("\n## ").next()?;
        let (_, text) = of_paper.split_once(&format!("\n### {heading}\n"))?;
        text.split("\n### ").next()
    }

    /// The latest run in docs/ has every item under its title, and lacks none that needs a processor alone:
    /// streams need namespaces as well.
    #[test]
    fn the_document_in_docs_has_every_item_and_lacks_none_that_needs_only_a_processor() {
        let document = in_docs();
        for item in registry::all() {
            let heading = format!("{}: {}", escaped(item.name), escaped(item.title));
            let text = section(&document, item.paper.number(), &heading);
            let text = text.unwrap_or_else(|| panic!("{} is not there: {heading}", item.id()));
            let said = |words: &str| text.lines().next().is_some_and(|line| line.starts_with(words));
            let needs_more = item.method().is_some_and(super::super::item::Method::crosses_the_kernel);
            assert!(!said("not possible here") || needs_more, "{}: {text}", item.id());
            assert!(!said("failed") && !said("not yet measured"), "{}: {text}", item.id());
        }
        assert_eq!(
            section("\n## 001: a\n### F: t\nx\n### G: t\n\n## 002: b\n### H: t\ny", "001", "H: t"),
            None
        );
    }

    /// What the program measures today is what the document is of.
    #[test]
    fn the_document_in_docs_is_of_a_full_run_by_the_commands_of_this_program() {
        let document = in_docs();
        let setting = |what: &str| {
            let line = document.lines().find_map(|line| line.strip_prefix(&format!("| {what} | ")));
            line.unwrap_or_else(|| panic!("no {what}")).trim_end_matches(" |")
        };
        assert_eq!(setting("Run"), "A full run.");
        let words = setting("Processor").rsplit(' ').nth(2);
        let processors = words.and_then(|number| number.parse().ok()).unwrap();
        for item in registry::all() {
            let Some(method) = item.method() else { continue };
            let heading = format!("{}: {}", escaped(item.name), escaped(item.title));
            let text = section(&document, item.paper.number(), &heading).unwrap_or_default();
            let command = text.lines().find_map(|line| line.strip_prefix("`testudo ")?.strip_suffix('`'));
            let is_absent = command.is_none() && text.starts_with("not possible here");
            let today = method.command(Mode::Full, processors, None);
            assert!(is_absent || command.map(without_names) == Some(today), "{}: {command:?}", item.id());
        }
        assert_eq!(without_names("bench vpe --engine vaes --repeat 5 --gpu H200"), "bench vpe --repeat 5");
    }
}
