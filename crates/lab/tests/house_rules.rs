//! The rules of this codebase that a program can check: sizes, no unsafe code where it is forbidden, nothing
//! left for later, and a test for every promise.

#![forbid(unsafe_code)]

use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};

const FILE_LINES: usize = 700;
const FUNCTION_LINES: usize = 70;
/// Crates that may contain unsafe code (CONTRIBUTING.md); all others forbid it. In `packet` it is the time
/// stamp counter and buffers.
const MAY_BE_UNSAFE: [&str; 3] = ["crates/engines/", "crates/ports/", "crates/packet/"];

struct Source {
    /// Relative to the repository.
    path: String,
    text: String,
}

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The entries of a folder, or a panic that names it.
fn entries(folder: &Path) -> Vec<PathBuf> {
    let names =
        fs::read_dir(folder).and_then(|entries| entries.map(|entry| Ok(entry?.file_name().into())).collect());
    names.unwrap_or_else(|error| panic!("{}: {error}", folder.display()))
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The files below `folders` whose names end in one of `extensions`, in order.
fn files(folders: &[&str], extensions: &[&str]) -> Vec<Source> {
    let (root, mut found) = (repository(), Vec::new());
    let mut pending: Vec<PathBuf> = folders.iter().map(PathBuf::from).collect();
    while let Some(path) = pending.pop() {
        let (full, name) = (root.join(&path), path.to_string_lossy().into_owned());
        let is_ours = !name.ends_with("/target") && !name.ends_with("/corpus");
        if full.is_dir() && is_ours {
            pending.extend(entries(&full).into_iter().map(|entry| path.join(entry)));
        } else if full.is_file() && extensions.iter().any(|extension| name.ends_with(extension)) {
            found.push(Source { path: name, text: read(&full) });
        }
    }
    found.sort_by(|a, b| a.path.cmp(&b.path));
    assert!(!found.is_empty(), "nothing to check in {folders:?}");
    found
}

fn rust() -> Vec<Source> {
    files(&["crates", "fuzz"], &[".rs"])
}

impl Source {
    /// Test files may be long.
    fn is_test(&self) -> bool {
        ["/tests/", "/tests.rs", "/benches/", "/examples/"].iter().any(|part| self.path.contains(part))
    }

    /// The lines before the file's own tests, which are at its end.
    fn code(&self) -> Vec<&str> {
        let lines: Vec<&str> = self.text.lines().collect();
        let is_test = |pair: &[&str]| {
            pair[0].starts_with("#[cfg(") && pair[0].contains("test") && pair[1].starts_with("mod ")
        };
        let end = lines.windows(2).position(is_test).unwrap_or(lines.len());
        lines[..end].to_vec()
    }
}

fn assert_none(problems: Vec<String>) {
    assert!(problems.is_empty(), "\n{}", problems.join("\n"));
}

#[test]
fn files_have_at_most_700_lines_without_their_tests() {
    let sources = rust();
    let long = sources.iter().filter(|source| !source.is_test() && source.code().len() > FILE_LINES);
    assert_none(long.map(|source| format!("{}: {} lines", source.path, source.code().len())).collect());
}

/// The name in a function's head, as rustfmt writes it, and its indentation.
fn head_of_function(line: &str) -> Option<(&str, usize)> {
    let words = line.trim_start();
    let indent = line.len() - words.len();
    let (before, after) = words.split_once("fn ")?;
    let modifiers = before.split_whitespace().all(|word| {
        ["pub", "pub(crate)", "pub(super)", "const", "async", "unsafe", "extern", "\"C\""].contains(&word)
    });
    let name =
        after.split(|c: char| !c.is_alphanumeric() && c != '_').next().filter(|name| !name.is_empty())?;
    modifiers.then_some((name, indent))
}

/// Names and lengths of the functions in `lines`, which rustfmt has formatted: a body ends at a brace with
/// the head's indentation.
fn functions<'a>(lines: &[&'a str]) -> Vec<(&'a str, usize)> {
    let mut found = Vec::new();
    for (start, line) in lines.iter().enumerate() {
        let Some((name, indent)) = head_of_function(line) else { continue };
        let closing = format!("{}}}", " ".repeat(indent));
        let one_line = line.ends_with('}') || line.ends_with(';');
        let length = lines[start..].iter().position(|line| *line == closing).unwrap_or(0);
        found.push((name, if one_line { 1 } else { length + 1 }));
    }
    found
}

#[test]
fn functions_have_at_most_70_lines_outside_of_tests() {
    let sources = rust();
    let code = sources.iter().filter(|source| !source.is_test());
    let long = code.flat_map(|source| {
        let long = functions(&source.code()).into_iter().filter(|(_, length)| *length > FUNCTION_LINES);
        long.map(|(name, length)| format!("{}: {name}: {length} lines", source.path)).collect::<Vec<_>>()
    });
    assert_none(long.collect());
}

#[test]
fn the_length_of_a_function_is_counted_from_its_head_to_its_brace() {
    let text = "pub fn one() {}\n    const fn two(\n        a: u8,\n    ) -> u8 {\n        if a > 0 {\n            1\n        }\n    }";
    assert_eq!(functions(&text.lines().collect::<Vec<_>>()), [("one", 1), ("two", 7)]);
    assert_eq!(head_of_function("// a comment about fn pointers"), None);
}

#[test]
fn only_engines_ports_and_packet_may_use_unsafe_code() {
    let roots = rust()
        .into_iter()
        .filter(|source| source.path.ends_with("/src/lib.rs") || source.path.ends_with("/src/main.rs"));
    let open = roots.filter(|source| {
        let may = MAY_BE_UNSAFE.iter().any(|folder| source.path.starts_with(folder));
        !may && !source.text.contains("#![forbid(unsafe_code)]")
    });
    assert_none(open.map(|source| format!("{}: no #![forbid(unsafe_code)]", source.path)).collect());
}

/// Comment lines of all sources with their locations, without code fences and tables, which cannot be
/// wrapped.
fn comment_lines(sources: &[Source]) -> Vec<(String, String)> {
    let mut lines = Vec::new();
    for source in sources {
        let mut is_fenced = false;
        for (line, number) in source.text.lines().zip(1..) {
            let Some(text) = line.trim_start().strip_prefix("//") else {
                is_fenced = false;
                continue;
            };
            let text = text.trim_start_matches(['/', '!']).trim_start();
            let is_fence = text.starts_with("```");
            if !is_fence && !is_fenced && !text.starts_with('|') {
                lines.push((format!("{}:{number}", source.path), line.to_owned()));
            }
            is_fenced ^= is_fence;
        }
    }
    lines
}

#[test]
fn comments_end_at_column_110() {
    let sources = rust();
    let long = comment_lines(&sources).into_iter().filter(|(_, line)| line.chars().count() > 110);
    assert_none(
        long.map(|(location, line)| format!("{location}: {} columns", line.chars().count())).collect(),
    );
}

/// Words once used here that have a standard equivalent.
#[test]
fn comments_use_the_terms_of_the_field() {
    // Assembled here, so that this file does not match itself.
    let words = [["who", "ever"], ["by the ", "way of"], ["struck ", "off"], ["asked for ", "ahead"]];
    let words = words.map(|halves| halves.concat());
    let sources = rust();
    let lines = comment_lines(&sources);
    let foreign = lines.iter().filter_map(|(location, line)| {
        let line = line.to_lowercase();
        let word = words.iter().find(|word| line.contains(word.as_str()))?;
        Some(format!("{location}: \"{word}\""))
    });
    assert_none(foreign.collect());
}

#[test]
fn comments_are_found_but_not_fences_and_tables() {
    let text = "//! One.\n//! ```text\n//! picture\n//! ```\n//! | table |\nfn f() {\n    // Two.\n}\n";
    let source = Source { path: "a.rs".to_owned(), text: text.to_owned() };
    let lines: Vec<_> = comment_lines(&[source]).into_iter().map(|(location, _)| location).collect();
    assert_eq!(lines, ["a.rs:1", "a.rs:7"]);
}

#[test]
fn nothing_is_left_for_later() {
    // Assembled here, so that this file does not match itself.
    let marks = [["TO", "DO"], ["FIX", "ME"], ["XX", "X"]].map(|halves| halves.concat());
    let sources = files(
        &["crates", "fuzz", "scripts", "tests", "examples", "contrib"],
        &[".rs", ".sh", ".py", ".toml", ".service"],
    );
    let lines = sources
        .iter()
        .flat_map(|source| source.text.lines().zip(1..).map(move |(line, number)| (source, line, number)));
    let is_mark = |line: &str| {
        line.split(|c: char| !c.is_alphanumeric()).any(|word| marks.iter().any(|mark| mark == word))
    };
    let left = lines.filter(|(_, line, _)| is_mark(line));
    assert_none(
        left.map(|(source, line, number)| format!("{}:{number}: {}", source.path, line.trim())).collect(),
    );
}

/// Names of tests: functions with the attribute, and the cases given to custom runners. A name assembled at
/// run time ends in `*`.
fn names_of_tests() -> HashSet<String> {
    let mut names = HashSet::new();
    for source in files(&["crates", "fuzz"], &[".rs"]) {
        let lines: Vec<&str> = source.text.lines().map(str::trim).collect();
        for (at, line) in lines.iter().enumerate() {
            if *line == "#[test]" {
                let head =
                    lines[at + 1..].iter().find(|line| !line.starts_with("#[") && !line.starts_with("//"));
                names.extend(head.and_then(|line| head_of_function(line)).map(|(name, _)| name.to_owned()));
            }
            // The tests that count instructions are made by a macro, each from a line like this.
            let case = line.strip_prefix("fn ").and_then(|rest| rest.split_once("() = "));
            names.extend(case.map(|(name, _)| name.to_owned()));
        }
        // Tests of what one worker owns and of what several share have one body; a macro has their names.
        let listed = lines.iter().skip_while(|line| **line != "for_both! {").skip(1);
        let listed = listed.take_while(|line| **line != "}").filter(|line| is_identifier(line));
        names.extend(listed.map(|line| (*line).to_owned()));
        if source.text.contains("harness::") {
            names.extend(cases_of_a_runner(&source.text));
        }
    }
    names
}

/// The names in `.test("name", …)` and `format!("beginning_{}…")`; of the latter, the part before the first
/// brace.
fn cases_of_a_runner(text: &str) -> Vec<String> {
    let after = |mark: &str| -> Vec<String> {
        let strings = text.split(mark).skip(1).filter_map(|rest| rest.trim_start().strip_prefix('"'));
        strings.filter_map(|rest| rest.split('"').next()).map(str::to_owned).collect()
    };
    let whole = after(".test(").into_iter();
    let begun = after("format!(").into_iter().filter_map(|name| {
        let beginning = name.split('{').next().filter(|beginning| is_identifier(beginning))?;
        Some(format!("{beginning}*"))
    });
    whole.chain(begun).collect()
}

fn is_identifier(text: &str) -> bool {
    text.contains('_') && text.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

#[test]
fn only_cases_given_to_a_runner_count_as_tests() {
    let text = "suite.test(\"a_case\", run).test(\n    \"b_case\",\n    run);\nfn helper() {}\nformat!(\"all_of_{x}_cases\")";
    assert_eq!(cases_of_a_runner(text), ["a_case", "b_case", "all_of_*"]);
    let names = names_of_tests();
    assert!(names.contains("only_cases_given_to_a_runner_count_as_tests"));
    for other in ["parse_v4", "names_of_tests", "not_ip", "understands"] {
        assert!(!names.contains(other), "{other} is no test");
    }
}

/// The evidence for a promise: the text between backticks in the last cell of a table's row.
fn evidence(row: &str) -> Vec<&str> {
    let last = row.trim().trim_end_matches('|').rsplit('|').next().unwrap_or("");
    last.split('`').skip(1).step_by(2).collect()
}

/// The rows of all tables, without headings and rules.
fn rows(text: &str) -> Vec<&str> {
    let lines: Vec<&str> = text.lines().collect();
    let is_row = |line: &str| line.trim_start().starts_with('|');
    let is_rule = |line: &str| is_row(line) && line.chars().all(|c| "|-: ".contains(c));
    let is_body = |&(index, line): &(usize, &&str)| {
        let heads = lines.get(index + 1).is_some_and(|next| is_rule(next));
        is_row(line) && !is_rule(line) && !heads
    };
    lines.iter().enumerate().filter(is_body).map(|(_, line)| *line).collect()
}

/// Every row of SPECIFICATION.md names, in backticks in its last cell, at least one test that exists or a
/// target of the Makefile (`make bench-host`), or says "pending".
#[test]
fn every_promise_of_the_specification_names_an_existing_test() {
    let text = read(&repository().join("SPECIFICATION.md"));
    let makefile = read(&repository().join("Makefile"));
    let (names, rows) = (names_of_tests(), rows(&text));
    assert!(!rows.is_empty(), "no promise at all");
    let exists = |evidence: &str| match evidence.strip_prefix("make ") {
        Some(target) => makefile.lines().any(|line| line.starts_with(&format!("{target}:"))),
        // `crate::module::test`, or only `test`.
        None => evidence.rsplit("::").next().is_some_and(|name| names.contains(name)),
    };
    let mut problems = Vec::new();
    for row in rows {
        let evidence = evidence(row);
        if evidence.is_empty() && !row.contains("pending") {
            problems.push(format!("no test named: {row}"));
        }
        problems.extend(
            evidence.iter().filter(|name| !exists(name)).map(|name| format!("no test {name}: {row}")),
        );
    }
    assert_none(problems);
}

/// Every rule that docs/COMPLIANCE.md says is kept names at least one test, and each is one that exists; its
/// last table, of deviations, gives reasons instead.
#[test]
fn every_rule_of_an_rfc_that_is_kept_names_an_existing_test() {
    let text = read(&repository().join("docs/COMPLIANCE.md"));
    let (kept, deviations) = text.split_once("## Deviations").expect("a table of deviations");
    let names = names_of_tests();
    let mut problems = Vec::new();
    for row in rows(kept) {
        let tests = evidence(row);
        if tests.is_empty() {
            problems.push(format!("no test named: {row}"));
        }
        let unknown = tests.into_iter().filter(|name| !names.contains(*name));
        problems.extend(unknown.map(|name| format!("no test {name}: {row}")));
    }
    assert!(rows(deviations).len() > 5, "deviations were not found");
    assert_none(problems);
}

/// docs/VPE.md is a specification of ours: each of its sections has rules with tests in docs/COMPLIANCE.md,
/// and so has each drop that it names.
#[test]
fn every_section_and_every_drop_of_vpe_has_a_rule_that_is_kept() {
    let [page, text] = ["docs/VPE.md", "docs/COMPLIANCE.md"].map(|path| read(&repository().join(path)));
    let (_, own) = text.split_once("\n## VPE\n").expect("the rules of VPE");
    let own = own.split("\n## ").next().unwrap_or("");
    let rules: Vec<&str> =
        rows(own).into_iter().filter_map(|row| row.trim().strip_prefix('|')?.split('|').next()).collect();
    let (format, _) = page.split_once("\n## In Testudo\n").expect("what is Testudo's own");
    let sections = format.lines().filter_map(|line| line.strip_prefix("## "));
    let without = |section: &&str| !rules.iter().any(|rule| rule.trim().starts_with(&format!("{section}: ")));
    let mut problems: Vec<_> =
        sections.filter(without).map(|section| format!("no rule of {section}")).collect();
    let named = format.split("(`").skip(1).filter_map(|rest| rest.split_once('`'));
    let drops: HashSet<&str> = named
        .filter(|(name, rest)| rest.starts_with(')') && is_identifier(name))
        .map(|(name, _)| name)
        .collect();
    assert!(drops.len() > 5, "{drops:?}");
    let without = drops.iter().filter(|name| !rules.iter().any(|rule| rule.contains(&format!("`{name}`"))));
    problems.extend(without.map(|name| format!("no rule about {name}")));
    assert_none(problems);
}

/// The answers to reviews name tests in the same way, and each is one that exists.
#[test]
fn every_test_that_answers_a_review_exists() {
    let text = read(&repository().join("docs/REVIEWS.md"));
    let (names, mut answers, mut problems) = (names_of_tests(), 0, Vec::new());
    for name in rows(&text).into_iter().flat_map(evidence).filter(|name| name.matches('_').count() > 1) {
        answers += 1;
        problems.extend((!names.contains(name)).then(|| format!("no test {name}")));
    }
    assert!(answers > 40, "only {answers} tests were found");
    assert_none(problems);
}

#[test]
fn evidence_is_read_from_the_last_cell_of_each_row() {
    let text = "| promise | shown by |\n| --- | --- |\n| `a` is 1 | `crate::a_is_1`, `make demo` |\n| b | pending |\n";
    assert_eq!(rows(text).len(), 2);
    assert_eq!(evidence(rows(text)[0]), ["crate::a_is_1", "make demo"]);
    assert!(evidence(rows(text)[1]).is_empty());
}
