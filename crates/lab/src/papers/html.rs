//! The report as one page that needs nothing else: text, tables and pictures are in it.

use std::fmt::Write as _;

use super::item::Paper;
use super::report::{ABOUT, Entry, Line, Report, State};
use crate::bench::chart;
use crate::bench::picture::{self, Part};

/// Nothing may be loaded from anywhere, and no script runs.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'";
const STYLE: &str = "
body { font: 15px/1.5 system-ui, 'DejaVu Sans', sans-serif; color: #222; background: #fff; max-width: 1060px; margin: 2em auto; padding: 0 1em; }
h1 { font-size: 1.7em; } h2 { margin-top: 2.4em; border-bottom: 2px solid #0b6e99; padding-bottom: .2em; } h3 { margin-top: 2em; }
table { border-collapse: collapse; margin: .8em 0; font-size: .93em; }
th, td { text-align: right; padding: .2em .9em; border-bottom: 1px solid #e3e3e3; }
th:first-child, td:first-child { text-align: left; } th { color: #555; font-weight: 600; }
.machine td { text-align: left; }
td.paper { color: #8e4585; } td.predicted { color: #b8860b; }
code { background: #f4f4f4; padding: .1em .35em; overflow-wrap: anywhere; }
.note { color: #555; margin: .25em 0; } .none { color: #777; } .failed { color: #c8452d; font-weight: 600; }
svg { max-width: 100%; height: auto; margin: .8em 0; }
nav ul { columns: 2; padding-left: 1.2em; font-size: .93em; }
";

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

fn paragraph(page: &mut String, class: &str, text: &str) {
    let _ = writeln!(page, "<p class=\"{class}\">{}</p>", escaped(text));
}

/// The page.
pub(super) fn page(report: &Report<'_>) -> String {
    let mut page = format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"{POLICY}\"/>\n\
         <meta name=\"viewport\" content=\"width=device-width\"/>\n\
         <title>Testudo: the papers measured again</title>\n<style>{STYLE}</style>\n</head>\n<body>\n\
         <h1>The papers measured again</h1>\n"
    );
    for text in ABOUT {
        paragraph(&mut page, "about", text);
    }
    machine(&mut page, report);
    contents(&mut page, report);
    for (paper, entries) in report.papers() {
        let _ = writeln!(page, "<h2>{}: {}</h2>", paper.number(), escaped(paper.title()));
        paragraph(&mut page, "note", paper.source());
        entries.iter().for_each(|entry| section(&mut page, entry));
    }
    page + "</body>\n</html>\n"
}

fn machine(page: &mut String, report: &Report<'_>) {
    page.push_str("<h2>The machine and the run</h2>\n<table class=\"machine\">\n");
    let own =
        [("Run", report.setting()), ("Made", report.made_at.clone()), ("Program", report.program.clone())];
    for (what, value) in report.machine.lines().into_iter().chain(own) {
        let _ = writeln!(page, "<tr><td>{what}</td><td>{}</td></tr>", escaped(&value));
    }
    page.push_str("</table>\n");
}

fn contents(page: &mut String, report: &Report<'_>) {
    let _ = writeln!(page, "<h2>Contents</h2>\n<p>In all: {}.</p>", escaped(&report.tally_of_all()));
    for (paper, entries) in report.papers() {
        let tally = Report::tally(&entries);
        let _ = writeln!(
            page,
            "<p><strong>{}</strong> {}: {}</p>\n<nav><ul>",
            paper.number(),
            escaped(paper.title()),
            escaped(&tally)
        );
        for entry in entries {
            link(page, paper, entry);
        }
        page.push_str("</ul></nav>\n");
    }
}

fn link(page: &mut String, paper: Paper, entry: &Entry<'_>) {
    let (id, name) = (entry.item.id(), escaped(entry.item.name));
    let _ = writeln!(
        page,
        "<li><a href=\"#{}\">{} {name}</a>: {}</li>",
        escaped(&id),
        paper.number(),
        entry.state.kind()
    );
}

fn section(page: &mut String, entry: &Entry<'_>) {
    let item = entry.item;
    let (id, name, title) = (escaped(&item.id()), escaped(item.name), escaped(item.title));
    let _ = writeln!(page, "<section id=\"{id}\">\n<h3>{name}: {title}</h3>");
    if let Some(words) = entry.state.words() {
        let class = if matches!(entry.state, State::Failed(_)) { "failed" } else { "none" };
        paragraph(page, class, &words);
    }
    if let State::Measured { record, reading, .. } = &entry.state {
        let command = escaped(&record.settings.command);
        let _ = writeln!(page, "<p><code>testudo {command}</code></p>");
        entry.notes().iter().for_each(|note| paragraph(page, "note", note));
        for panel in &reading.panels {
            page.push_str(&chart::svg(std::slice::from_ref(panel)));
        }
        for bars in &reading.bars {
            page.push_str(&picture::svg(&[Part::Bars(bars)]));
        }
    }
    table(page, &entry.lines());
    page.push_str("</section>\n");
}

fn table(page: &mut String, lines: &[Line]) {
    if lines.is_empty() {
        return;
    }
    let heads: String = Line::HEADS.iter().map(|head| format!("<th>{head}</th>")).collect();
    let _ = writeln!(page, "<table>\n<tr>{heads}</tr>");
    const CLASSES: [&str; 5] = ["what", "here", "range", "predicted", "paper"];
    for line in lines {
        let cell = |(class, text): (&str, &str)| format!("<td class=\"{class}\">{}</td>", escaped(text));
        let cells: String = CLASSES.into_iter().zip(line.cells()).map(cell).collect();
        let _ = writeln!(page, "<tr>{cells}</tr>");
    }
    page.push_str("</table>\n");
}
