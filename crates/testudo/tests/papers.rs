//! `testudo lab papers` as users have it: killed and run again, and its page in a real browser.

#![allow(clippy::expect_used, reason = "a test that cannot run the program or read its report has failed")]

use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

const PROGRAM: &str = env!("CARGO_BIN_EXE_testudo");
const CHROMIUM: &str = "/usr/bin/chromium";
const FIGURES: [&str; 2] = ["003-figure-7", "003-figure-8"];

fn papers(folder: &Path, only: &str) -> Command {
    let mut command = Command::new(PROGRAM);
    command.args(["lab", "papers", "--quick", "--only", only]).arg("--out").arg(folder);
    command
}

fn report(folder: &Path) -> Value {
    let text = std::fs::read_to_string(folder.join("report.json")).expect("a report");
    serde_json::from_str(&text).expect("JSON")
}

/// Identifier, state, and whether it is of an earlier run, of everything in the report.
fn items(report: &Value) -> Vec<[String; 3]> {
    let items =
        report["papers"].as_array().expect("papers").iter().flat_map(|paper| paper["items"].as_array());
    let one = |item: &Value| ["id", "state", "kept"].map(|name| item[name].to_string().replace('"', ""));
    items.flatten().map(one).collect()
}

/// SIGKILL as soon as the first of two measurements is complete; the next run has only the second to make.
#[test]
fn a_killed_program_keeps_what_is_complete() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut child = papers(folder.path(), &FIGURES.join(","))
        .stderr(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .expect("the program");
    let mut lines = BufReader::new(child.stderr.take().expect("a pipe")).lines();
    let first = lines.next().expect("a line").expect("text");
    assert!(first.starts_with("1 of 2: 003 Figure 7: "), "{first}");
    child.kill().expect("a kill");
    child.wait().expect("an end");
    assert!(folder.path().join("003-figure-7.quick.json").exists());
    assert!(!folder.path().join("003-figure-8.quick.json").exists(), "it was killed too late");

    let again = papers(folder.path(), &FIGURES.join(",")).output().expect("the program");
    let [text, said] =
        [&again.stdout, &again.stderr].map(|bytes| String::from_utf8_lossy(bytes).into_owned());
    assert!(again.status.success(), "{said}");
    assert!(text.starts_with("2 measured (1 kept from an earlier run).\n"), "{text}");
    assert!(said.starts_with("1 of 1: 003 Figure 8: "), "{said}");
    let expected = [[FIGURES[0], "measured", "true"], [FIGURES[1], "measured", "false"]];
    assert_eq!(items(&report(folder.path())), expected.map(|item| item.map(str::to_owned)));
    for entry in std::fs::read_dir(folder.path()).expect("a folder") {
        let name = entry.expect("an entry").file_name();
        assert!(!name.to_string_lossy().contains("part"), "{name:?} was left");
    }
}

/// Chromium without a screen and without names to look up prints the page as it has understood it, and
/// complains if the page's policy forbids something that it wants.
#[test]
fn a_browser_shows_the_report_and_loads_nothing() {
    assert!(
        Path::new(CHROMIUM).exists(),
        "{CHROMIUM} is missing: install the package chromium (tests/packages-dashboard.txt)"
    );
    let folder = tempfile::tempdir().expect("a folder");
    let made = papers(folder.path(), "001-table-1,001-figure-6,002-figure-15a,002-figure-15b").output();
    let made = made.expect("the program");
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let mut browser = Command::new("timeout");
    browser.args(["120", CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run"]);
    browser.args(["--disable-dev-shm-usage", "--disable-background-networking", "--enable-logging=stderr"]);
    browser.args(["--host-resolver-rules=MAP * ~NOTFOUND", "--window-size=1100,1600", "--dump-dom"]);
    browser.arg(format!("--user-data-dir={}", folder.path().join("profile").display()));
    browser.env("HOME", folder.path()).arg(format!("file://{}", folder.path().join("report.html").display()));
    let shown = browser.output().expect("a browser");
    let [page, said] =
        [&shown.stdout, &shown.stderr].map(|bytes| String::from_utf8_lossy(bytes).into_owned());
    assert!(shown.status.success(), "{said}");
    let count = |text: &str| page.matches(text).count();
    assert_eq!(
        (count("<section "), count("</section>"), count("<svg "), count("</svg>")),
        (4, 4, 3, 3),
        "{page}"
    );
    for words in ["The papers measured again", "QuickAssist: ", "<polyline ", "AH with MD5 in tunnel mode"] {
        assert!(page.contains(words), "{words} in {page}");
    }
    assert!(!said.contains("Refused to") && !said.contains("Content Security Policy"), "{said}");
}

#[test]
fn names_that_no_paper_has_are_refused_with_those_that_there_are() {
    let said =
        Command::new(PROGRAM).args(["lab", "papers", "--only", "003-figure-9"]).output().expect("a run");
    assert_eq!(said.status.code(), Some(2));
    let text = String::from_utf8_lossy(&said.stderr);
    assert!(text.contains("003-figure-1, 003-figure-2") && text.contains("003-figure-8"), "{text}");
}

/// A report of streams in namespaces where there are none, and without the programs that make them.
#[test]
fn without_namespaces_streams_are_not_possible_here_and_all_else_is_measured() {
    let folder = tempfile::tempdir().expect("a folder");
    // Unable to make a user namespace, and without capabilities to do without.
    let forbid = "echo 0 > /proc/sys/user/max_user_namespaces && \
                  exec setpriv --bounding-set=-all --inh-caps=-all --no-new-privs \"$@\"";
    let mut command = Command::new("unshare");
    command.args(["--user", "--map-root-user", "--mount", "sh", "-c", forbid, "sh", PROGRAM]);
    command.args(["lab", "papers", "--quick", "--only", "001-figure-1,003-figure-8", "--out"]);
    let made = command.arg(folder.path()).output().expect("unshare");
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let report = report(folder.path());
    let states: Vec<String> = items(&report).iter().map(|[id, state, _]| format!("{id} {state}")).collect();
    assert_eq!(states, ["001-figure-1 not_possible_here", "003-figure-8 measured"]);
    let reason = report["papers"][0]["items"][0]["reason"].as_str().expect("a reason");
    assert!(
        reason.starts_with("not possible here: cannot create a private user and network namespace"),
        "{reason}"
    );
}
