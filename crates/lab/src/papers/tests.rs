mod beside;
mod parts;

use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};

use clap::Parser;
use rustix::process::{Signal, getpid, kill_process};
use serde_json::json;
use testudo_crypto::PortableEngine;

use super::item::{AND, How, Paper, Printed, printed};
use super::reading::{Lines, Reading, Wrong};
use super::*;
use crate::bench::Steps;
use crate::bench::chart::Extent;
use crate::statistics::Spread;
use crate::tcp::{TcpOptions, sample};

#[derive(Parser)]
struct Program {
    #[command(flatten)]
    options: PapersOptions,
}

fn options(out: &Path, words: &str) -> PapersOptions {
    let fixed = ["papers".into(), "--out".into(), out.as_os_str().to_owned()];
    Program::parse_from(fixed.into_iter().chain(words.split_whitespace().map(Into::into))).options
}

/// Text that would break a page or a table that takes it as it is.
const HOSTILE: &str = "<script src=\"http://example.net/x\">|&\"'`</script>";

fn read(rows: &[Value]) -> Result<Reading, Wrong> {
    let (mut reading, mut lines) = (Reading::default(), Lines::default());
    for row in rows {
        let value = reading::spread(row, "value")?;
        reading.find("one thing", "things", value);
        lines.add(HOSTILE, (0, 0), reading::Length::Bytes(64), value);
    }
    reading.find(HOSTILE, "things", Spread::of([2.0]));
    reading.findings.push(reading::Finding {
        what: "one thing, more".to_owned(),
        unit: "things",
        here: None,
        predicted: Some(7.0),
    });
    reading.remark(HOSTILE.to_owned());
    reading.panels.push(lines.panel(HOSTILE, [HOSTILE, HOSTILE], Extent::Zero));
    Ok(reading)
}

const PRINTED: &[Printed] =
    &[printed("one thing", "41", "things"), printed(HOSTILE, "<1", "things"), printed("other", "5", "s")];

const fn fake(name: &'static str, quick: &'static str) -> Item {
    let method =
        Method { quick, full: "fake full", quick_seconds: 1, full_seconds: 1, conditions: HOSTILE, read };
    Item { paper: Paper::Vpe, name, title: HOSTILE, printed: PRINTED, how: How::Measured(method) }
}

static FAKES: [Item; 6] = [
    fake("Figure 91", "fake 1"),
    fake("Figure 92", "fake 2"),
    fake("Figure 93", "fake 3"),
    fake("Figure 94", "fake 4"),
    Item { how: How::Drawing(HOSTILE), ..fake("Figure 95", "") },
    Item { how: How::Drawing(HOSTILE), ..fake("Table 96", "") },
];

fn machine() -> Machine {
    Machine {
        processor: HOSTILE.to_owned(),
        processors: 2,
        features: vec!["aes".to_owned()],
        memory_gib: 7,
        kernel: "linux 1".to_owned(),
        engines: vec!["portable".to_owned()],
        gpus: vec![HOSTILE.to_owned()],
        meters: vec!["processors".to_owned()],
        is_root: true,
        id: "1".to_owned(),
        governor: "performance".to_owned(),
        huge_pages: 8,
    }
}

type Measure<'a> = &'a (dyn Fn(&str) -> Result<Value, BenchError> + Sync);

fn session<'a>(options: &'a PapersOptions, measure: Measure<'a>) -> Session<'a> {
    Session {
        options,
        items: FAKES.iter().collect(),
        machine: machine(),
        program: "p 1".to_owned(),
        prices: None,
        engine: None,
        choose: &|| None,
        measure,
    }
}

/// Rows, and how often each command was run.
#[derive(Default)]
struct Counted(Mutex<HashMap<String, u32>>);

impl Counted {
    fn rows(&self, command: &str) -> Value {
        *self.0.lock().unwrap().entry(command.to_owned()).or_default() += 1;
        json!([{ "value": 3.0, "value_lowest": 2.5, "value_highest": 3.5 }])
    }

    fn times(&self, command: &str) -> u32 {
        self.0.lock().unwrap().get(command).copied().unwrap_or(0)
    }

    fn all(&self) -> [u32; 4] {
        [1, 2, 3, 4].map(|n| self.times(&format!("fake {n}")))
    }
}

fn json_of(folder: &Path) -> Value {
    serde_json::from_str(&fs::read_to_string(folder.join("report.json")).unwrap()).unwrap()
}

fn page_of(folder: &Path) -> String {
    fs::read_to_string(folder.join("report.html")).unwrap()
}

fn states(folder: &Path) -> Vec<String> {
    let report = json_of(folder);
    let items = report["papers"][0]["items"].as_array().expect("items").clone();
    items.iter().map(|item| format!("{} {}", item["state"].as_str().unwrap(), item["kept"])).collect()
}

/// Names the folder to a process of the next test's, which is to be killed.
const KILLED_IN: &str = "TESTUDO_TEST_KILLED_IN";

/// A run that kills its process when it comes to the third figure.
fn run_until_killed(folder: &Path) {
    let (counted, quick) = (Counted::default(), options(folder, "--quick"));
    let dies = |command: &str| {
        if command == "fake 3" {
            kill_process(getpid(), Signal::KILL).unwrap();
        }
        Ok(counted.rows(command))
    };
    session(&quick, &dies).run().unwrap();
}

#[test]
fn a_run_that_was_killed_goes_on_where_it_stopped() {
    if let Some(folder) = std::env::var_os(KILLED_IN) {
        return run_until_killed(Path::new(&folder));
    }
    let folder = tempfile::tempdir().unwrap();
    let mut itself = Command::new(std::env::current_exe().unwrap());
    itself.args(["papers::tests::a_run_that_was_killed_goes_on_where_it_stopped", "--exact"]);
    let killed = itself.env(KILLED_IN, folder.path()).output().unwrap();
    assert_eq!(killed.status.signal(), Some(9), "{}", String::from_utf8_lossy(&killed.stdout));
    let (counted, quick) = (Counted::default(), options(folder.path(), "--quick"));
    let measure = |command: &str| Ok(counted.rows(command));
    let before = ["measured false", "measured false", "not_yet_measured null", "not_yet_measured null"];
    assert_eq!(states(folder.path())[..4], before, "the report has what is complete");
    // What a kill leaves of a file that was being written.
    let part = folder.path().join(".part-abc");
    fs::write(&part, "{\"format\":1,").unwrap();

    let text = session(&quick, &measure).run().unwrap();
    assert_eq!(counted.all(), [0, 0, 1, 1], "only what was not complete was measured");
    assert!(!part.exists() && text.contains("(2 kept from an earlier run)"), "{text}");
    let after = ["measured true", "measured true", "measured false", "measured false"];
    assert_eq!(states(folder.path())[..4], after);
    let record = &json_of(folder.path())["papers"][0]["items"][0];
    assert!(record["measured_at"].as_str().unwrap().ends_with("UTC"), "{record}");

    session(&quick, &measure).run().unwrap();
    assert_eq!(counted.all(), [0, 0, 1, 1], "all is there");
    session(&options(folder.path(), "--quick --again"), &measure).run().unwrap();
    assert_eq!(counted.all(), [1, 1, 2, 2]);
    session(&options(folder.path(), ""), &measure).run().unwrap();
    assert_eq!(counted.times("fake full"), 1, "a full run takes nothing of a quick one, and one measurement");
}

/// The file of a measurement after `change`.
fn changed(path: &Path, change: impl Fn(&mut Value)) {
    let mut record: Value = serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap();
    change(&mut record);
    fs::write(path, record.to_string()).unwrap();
}

#[test]
fn files_that_are_corrupt_or_of_others_are_put_away_and_measured_anew() {
    let folder = tempfile::tempdir().unwrap();
    let (counted, quick) = (Counted::default(), options(folder.path(), "--quick"));
    let measure = |command: &str| Ok(counted.rows(command));
    session(&quick, &measure).run().unwrap();
    let path = folder.path().join("003-figure-91.quick.json");
    let whole = fs::read(&path).unwrap();
    let long = format!("{}{}", " ".repeat(17 << 20), String::from_utf8(whole.clone()).unwrap());
    let bad: [&dyn Fn(); 21] = [
        &|| fs::write(&path, "").unwrap(),
        &|| fs::write(&path, "no JSON").unwrap(),
        &|| fs::write(&path, [0xFF, 0xFE, 0x00]).unwrap(),
        &|| fs::write(&path, &whole[..whole.len() / 2]).unwrap(),
        &|| fs::write(&path, "[".repeat(100_000)).unwrap(),
        &|| fs::write(&path, "[1, 2]").unwrap(),
        &|| fs::write(&path, &long).unwrap(),
        &|| changed(&path, |record| record["format"] = json!(2)),
        &|| changed(&path, |record| record["settings"]["machine"]["processors"] = json!(64)),
        &|| changed(&path, |record| record["settings"]["machine"]["gpus"] = json!([])),
        &|| changed(&path, |record| record["settings"]["machine"]["meters"] = json!([])),
        &|| changed(&path, |record| record["settings"]["machine"]["is_root"] = json!(false)),
        &|| changed(&path, |record| record["settings"]["machine"]["id"] = json!("2")),
        &|| changed(&path, |record| record["settings"]["machine"]["governor"] = json!("powersave")),
        &|| changed(&path, |record| record["settings"]["machine"]["huge_pages"] = json!(0)),
        &|| changed(&path, |record| record["settings"]["program"] = json!("p 2")),
        &|| changed(&path, |record| record["settings"]["command"] = json!("fake 2")),
        &|| changed(&path, |record| record["settings"]["id"] = json!("003-figure-92")),
        &|| changed(&path, |record| record["seconds"] = json!(-1.0)),
        &|| changed(&path, |record| record["rows"] = json!([{ "value": "many" }])),
        &|| changed(&path, |record| record["rows"] = json!([{ "value": -4e300 }])),
    ];
    for (number, spoil) in bad.iter().enumerate() {
        spoil();
        let spoilt = fs::read(&path).unwrap();
        session(&quick, &measure).run().unwrap();
        let times = 2 + u32::try_from(number).unwrap();
        assert_eq!(counted.all(), [times, 1, 1, 1], "case {number}");
        // None replaces one that was put away before.
        let place = if number == 0 { String::new() } else { format!("-{}", number + 1) };
        let away = folder.path().join(format!("003-figure-91.quick.json.refused{place}"));
        assert_eq!(fs::read(away).unwrap(), spoilt, "case {number}");
        assert!(matches!(states(folder.path())[0].as_str(), "measured false"), "case {number}");
    }
    fs::remove_file(folder.path().join("003-figure-91.quick.json.refused")).unwrap();
    fs::remove_file(&path).unwrap();
    fs::create_dir(&path).unwrap();
    session(&quick, &measure).run().unwrap();
    assert!(path.is_file(), "a folder was in its place");
}

/// Hours of a full run, of a program that was built again since, are not lost to the next build.
#[test]
fn what_was_put_away_before_stays_beside_what_is_put_away_now() {
    let folder = tempfile::tempdir().unwrap();
    let (counted, quick) = (Counted::default(), options(folder.path(), "--quick"));
    let measure = |command: &str| Ok(counted.rows(command));
    let at = |end: &str| folder.path().join(format!("003-figure-91.quick.json{end}"));
    // A folder with something in it cannot be replaced, and a link is somebody's as well.
    fs::create_dir(at(".refused")).unwrap();
    fs::write(at(".refused").join("mine"), "mine").unwrap();
    std::os::unix::fs::symlink("nowhere", at(".refused-2")).unwrap();
    for text in ["one", "two"] {
        fs::write(at(""), text).unwrap();
        session(&quick, &measure).run().unwrap();
    }
    assert_eq!([3, 4].map(|n| fs::read_to_string(at(&format!(".refused-{n}"))).unwrap()), ["one", "two"]);
    assert!(at(".refused").join("mine").exists() && fs::read_link(at(".refused-2")).is_ok());
    assert_eq!(counted.all(), [2, 1, 1, 1]);
}

#[test]
fn a_folder_that_cannot_be_used_is_an_error_that_names_it() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    fs::write(&file, "mine").unwrap();
    let measure = |_: &str| -> Result<Value, BenchError> { panic!("nothing is measured") };
    let error = session(&options(&file, "--quick"), &measure).run().unwrap_err().to_string();
    assert!(error.contains("file"), "{error}");
    assert_eq!(fs::read_to_string(&file).unwrap(), "mine");

    let _other = Store::open(folder.path()).unwrap();
    let error = session(&options(folder.path(), "--quick"), &measure).run().unwrap_err().to_string();
    assert!(error.contains("another run has this folder"), "{error}");
}

#[test]
fn a_measurement_that_fails_does_not_keep_others_from_being_made() {
    let folder = tempfile::tempdir().unwrap();
    let (counted, quick) = (Counted::default(), options(folder.path(), "--quick"));
    let measure = |command: &str| match command {
        "fake 1" => Err(BenchError::Engine("no engine here does it".to_owned())),
        "fake 2" => Err(BenchError::Invalid { case: "a case".to_owned(), what: "lost packets".to_owned() }),
        "fake 3" => Ok(json!([{ "value": "none" }])),
        other => Ok(counted.rows(other)),
    };
    let error = session(&quick, &measure).run().unwrap_err().to_string();
    assert!(
        error.contains("003-figure-92: a case: lost packets") && error.contains("003-figure-93"),
        "{error}"
    );
    let found = states(folder.path());
    let expected = ["not_possible_here null", "failed null", "failed null", "measured false"];
    assert_eq!(found[..4], expected);
    for (figure, is_kept) in [(91, false), (92, false), (93, false), (94, true)] {
        let path = folder.path().join(format!("003-figure-{figure}.quick.json"));
        assert_eq!(path.exists(), is_kept, "{figure}");
    }
}

/// A bug in one measurement costs that one.
#[test]
fn a_measurement_that_panics_has_failed_and_the_others_are_made() {
    let folder = tempfile::tempdir().unwrap();
    let (counted, quick) = (Counted::default(), options(folder.path(), "--quick"));
    let measure = |command: &str| {
        let rows = counted.rows(command);
        assert!(command != "fake 2" || counted.times(command) > 1, "an index of {command}");
        assert!(command != "fake 3" || counted.times(command) > 1, "a word");
        Ok(rows)
    };
    let error = session(&quick, &measure).run().unwrap_err().to_string();
    for part in [
        "003-figure-92: a bug of the program: the measurement panicked: an index of fake 2",
        "003-figure-93: a bug of the program: the measurement panicked: a word",
    ] {
        assert!(error.contains(part), "{error}");
    }
    let found = states(folder.path());
    assert_eq!(found[..4], ["measured false", "failed null", "failed null", "measured false"]);
    session(&quick, &measure).run().unwrap();
    assert_eq!(counted.all(), [1, 2, 2, 1], "what has failed is measured anew");
}

/// The elements of a page in which every element is closed; panics otherwise.
fn elements(page: &str) -> Vec<String> {
    let (mut open, mut seen): (Vec<String>, Vec<String>) = Default::default();
    for part in page.split('<').skip(1) {
        let (tag, text) = part.split_once('>').expect("every < has its >");
        assert!(!text.contains('>'), "a > that nothing has opened: {part}");
        assert_eq!(tag.matches('"').count() % 2, 0, "a quote that is not closed: {tag}");
        let name = tag.trim_start_matches('/').split([' ', '/']).next().unwrap_or_default();
        if tag.starts_with('/') {
            assert_eq!(open.pop().as_deref(), Some(name), "closed in the wrong order");
        } else if tag != "!DOCTYPE html" {
            seen.push(tag.to_owned());
            if !tag.ends_with('/') {
                open.push(name.to_owned());
            }
        }
    }
    assert!(open.is_empty(), "not closed: {open:?}");
    seen
}

/// Panics if the page would load anything, or is not well formed.
fn check_page(page: &str) -> Vec<String> {
    let elements = elements(page);
    for element in &elements {
        let name = element.split([' ', '/']).next().unwrap_or_default();
        assert!(
            !["script", "link", "img", "iframe", "object", "embed", "base", "form"].contains(&name),
            "{element}"
        );
        for attribute in ["src=", "srcset=", "data=", "action=", "xlink:", "onload=", "style="] {
            assert!(!element.contains(attribute), "{element}");
        }
        if let Some((_, target)) = element.split_once("href=\"") {
            assert!(target.starts_with('#'), "{element}");
        }
    }
    assert!(!page.contains("@import") && !page.contains("url("));
    assert!(page.contains("default-src 'none'"));
    elements
}

#[test]
fn the_page_needs_nothing_else_escapes_all_texts_and_has_the_papers_numbers_beside() {
    let folder = tempfile::tempdir().unwrap();
    let (counted, document) = (Counted::default(), folder.path().join("papers.md"));
    let mut quick = options(folder.path(), "--quick");
    quick.markdown = Some(document.clone());
    let measure = |command: &str| match command {
        "fake 4" => Err(BenchError::NotPossible(HOSTILE.to_owned())),
        other => Ok(counted.rows(other)),
    };
    session(&quick, &measure).run().unwrap();
    let page = fs::read_to_string(folder.path().join("report.html")).unwrap();
    let elements = check_page(&page);
    let count = |beginning: &str| elements.iter().filter(|element| element.starts_with(beginning)).count();
    assert_eq!((count("section "), count("svg "), count("html ")), (6, 3, 1));
    assert!(
        page.contains("&lt;script src=&quot;http://example.net/x&quot;&gt;|&amp;&quot;'`&lt;/script&gt;")
    );
    let row = |cells: [&str; 5]| {
        let classes = ["what", "here", "range", "predicted", "paper"];
        let cells =
            classes.into_iter().zip(cells).map(|(class, cell)| format!("<td class=\"{class}\">{cell}</td>"));
        format!("<tr>{}</tr>", cells.collect::<String>())
    };
    for cells in [
        ["one thing", "3.00 things", "2.50 to 3.50", "", "41 things"],
        ["one thing, more", "", "", "7.00 things", "41 things"],
        ["other", "", "", "", "5 s"],
    ] {
        assert!(page.contains(&row(cells)), "{cells:?} in {page}");
    }
    for words in
        ["not possible here: &lt;script", "nothing to measure: ", "testudo fake 1", "A quick run", "7 GiB"]
    {
        assert!(page.contains(words), "{words}");
    }
    let text = fs::read_to_string(document).unwrap();
    let is_row = |line: &&str| line.starts_with('|');
    let columns = |line: &str| line.replace("\\|", "").matches('|').count();
    assert!(text.lines().filter(is_row).all(|line| [3, 6].contains(&columns(line))), "{text}");
    assert!(text.contains("| one thing | 3.00 things | 2.50 to 3.50 |  | 41 things |"), "{text}");
    assert!(!text.contains("<script"), "{text}");
}

/// `sudo make lab` makes a report for all users, and a document that was there stays readable.
#[test]
fn others_may_read_reports_as_any_new_file() {
    let folder = tempfile::tempdir().unwrap();
    let (counted, document) = (Counted::default(), folder.path().join("papers.md"));
    let mut quick = options(folder.path(), "--quick");
    quick.markdown = Some(document.clone());
    // What the user's mask leaves.
    fs::write(&document, "an earlier one").unwrap();
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode();
    let of_any = mode(&document);
    session(&quick, &|command| Ok(counted.rows(command))).run().unwrap();
    assert_ne!(fs::read_to_string(&document).unwrap(), "an earlier one");
    for name in ["papers.md", "report.html", "report.json", "003-figure-91.quick.json"] {
        let found = mode(&folder.path().join(name));
        assert_eq!(found, of_any, "{name}: {found:o}, a new file has {of_any:o}");
    }
}

/// The command as short as it can be and still be the same.
fn shortened(command: &str) -> String {
    let words: Vec<&str> = command.split_whitespace().collect();
    let short = |name: &str| match name {
        "--milliseconds" | "--duration" => Some("1"),
        "--repetitions" | "--repeat" => Some("1"),
        "--chain-runs" => Some("2"),
        "--trial-seconds" => Some("0.003"),
        "--size-step" => Some("60"),
        _ => None,
    };
    let mut shortened = String::new();
    for (at, word) in words.iter().enumerate() {
        let before = at.checked_sub(1).and_then(|before| words.get(before)).copied();
        let word = before.and_then(short).unwrap_or(word);
        shortened += if word == "vpe" { "vpe --packets 64 " } else { word };
        shortened.push(' ');
    }
    shortened
}

#[derive(Parser)]
struct Tcp {
    #[command(flatten)]
    options: TcpOptions,
}

fn tcp_options(words: &str) -> TcpOptions {
    Tcp::parse_from(["tcp"].into_iter().chain(words.split_whitespace())).options
}

/// Every command is run, with the portable engine alone, and what it prints is read; rows of TCP streams,
/// which need processes of the program, are made up.
#[test]
fn every_measurement_of_the_registry_is_made_and_fills_the_report() {
    const STEPS: Steps = Steps { cipher: 25, hash: 12, lanes: 1 };
    let folder = tempfile::tempdir().unwrap();
    let quick = options(folder.path(), "--quick");
    let engines = measure::Shared::new(vec![Candidate {
        name: "own",
        open: Box::new(|| Ok(Box::new(PortableEngine::new()))),
    }]);
    let gpus = Gpus {
        find: Box::new(|_, _| Err("there is none".to_owned())),
        idle: Box::new(|| Ok(Box::new(PortableEngine::new()))),
        steps: |_, _, _, _| Some(STEPS),
    };
    let session = Session {
        options: &quick,
        items: registry::all().collect(),
        machine: machine(),
        program: "p".to_owned(),
        prices: None,
        engine: None,
        choose: &|| None,
        measure: &|command| match command.strip_prefix("lab tcp ") {
            Some(words) => {
                Ok(sample::rows(&tcp_options(words), |_, _, _, mtu, _| 500.0 + f64::from(mtu) / 100.0))
            }
            None => measure::measure(&shortened(command), &engines, &gpus, Meters::of_this_machine),
        },
    };
    let text = session.run().unwrap();
    println!("{text}");
    let report = json_of(folder.path());
    let (mut measured, mut predicted) = (0, Vec::new());
    for (item, known) in report["papers"]
        .as_array()
        .unwrap()
        .iter()
        .flat_map(|paper| paper["items"].as_array().unwrap())
        .zip(registry::all())
    {
        assert_eq!(item["id"], known.id());
        let Some(method) = known.method() else {
            assert!(item["reason"].as_str().is_some_and(|reason| reason.len() > 20), "{item}");
            continue;
        };
        let command = method.command(Mode::Quick, machine().processors, None);
        assert_eq!(item["command"], format!("testudo {command}"));
        let findings = item["findings"].as_array().unwrap();
        assert!(!findings.is_empty() && !item["rows"].as_array().unwrap().is_empty(), "{}", known.id());
        for finding in findings {
            assert!(finding["median"].is_f64() || finding["predicted"].is_f64(), "{finding}");
        }
        if findings.iter().any(|finding| finding["median"].is_f64()) {
            measured += 1;
            assert_eq!(item["state"], "measured", "{}", known.id());
        } else {
            predicted.push(known.id());
            assert_eq!(item["state"], "predicted", "{}", known.id());
        }
        let mut notes = item["notes"].as_array().unwrap().iter().filter_map(Value::as_str);
        let cores = notes.find_map(|note| note.strip_prefix("Cores: "));
        let names_some =
            |cores: &str| !cores.starts_with("cores shared") && !cores.contains("to choose from");
        assert!(cores.is_some_and(names_some), "{}: {}", known.id(), item["notes"]);
        // These commands measure what the paper's numbers are of, one and all.
        if ["002-figure-10", "002-figure-14b", "004-figure-4"].contains(&known.id().as_str()) {
            let starts = |finding: &Value, printed: &Printed| {
                finding["what"].as_str().is_some_and(|what| what.starts_with(printed.what))
            };
            let is_found = |printed: &Printed| findings.iter().any(|finding| starts(finding, printed));
            assert!(known.printed.iter().all(is_found), "{}: {findings:?}", known.id());
        }
        println!("{}: {} findings", known.id(), findings.len());
    }
    let of_a_gpu = ["7", "14a", "15b", "16", "17"].map(|figure| format!("002-figure-{figure}"));
    assert_eq!((measured, predicted.as_slice()), (28, of_a_gpu.as_slice()), "{text}");
    assert!(text.contains("28 measured, 5 predicted, "), "{text}");
    let page = page_of(folder.path());
    let elements = check_page(&page);
    assert!(elements.iter().filter(|element| element.starts_with("svg ")).count() >= 18);
    for beside in ["<td class=\"what\">VPE, 1420 bytes</td>", "<td class=\"paper\">19.50 Gbit/s</td>"] {
        assert!(page.contains(beside), "{beside}");
    }
}

/// Numbers of a paper that Testudo has something to put beside: the others stand alone in their rows.
#[test]
fn numbers_of_the_papers_stand_beside_what_was_found_of_the_same() {
    let item = registry::all().find(|item| item.id() == "003-figure-5").unwrap();
    let chain = |carrier: &str, bytes: u64, mean: f64| {
        json!({ "direction": "round_trip", "encapsulation": carrier, "inner_bytes": bytes, "engine": "e",
            "goodput_gbit_s_mean": mean, "goodput_gbit_s_ci95": 0.25 })
    };
    let rows = json!([
        chain("esp", 64, 1.0),
        chain("vpe", 64, 1.5),
        chain("esp", 1420, 9.0),
        chain("vpe", 1420, 9.5)
    ]);
    let settings = Settings {
        id: item.id(),
        mode: "full".to_owned(),
        command: "c".to_owned(),
        prices: None,
        program: "p".to_owned(),
        machine: machine(),
    };
    let record = Record::new(settings, 1.0, Some(0.5), rows);
    let entry = Entry { item, state: measured(Box::new(record), item.method().unwrap(), false) };
    let lines: Vec<[String; 3]> =
        entry.lines().into_iter().map(|line| [line.what, line.here, line.paper]).collect();
    let expected = [
        ["ESP, 64 bytes", "1.00 Gbit/s", "2.29 Gbit/s"],
        ["VPE, 64 bytes", "1.50 Gbit/s", "2.32 Gbit/s"],
        ["ESP, 1420 bytes", "9.00 Gbit/s", "19.28 Gbit/s"],
        ["VPE, 1420 bytes", "9.50 Gbit/s", "19.50 Gbit/s"],
        ["ipsec-secgw (ESP), 64 bytes", "", "1.91 Gbit/s"],
        ["ipsec-secgw (ESP), 1420 bytes", "", "18.09 Gbit/s"],
    ];
    assert_eq!(lines, expected.map(|line| line.map(str::to_owned)));
    assert!(entry.notes().iter().any(|note| note.contains("other programs had 50 %")), "{:?}", entry.notes());
}

/// What is found of an item's rows, with the paper's number beside.
fn found_of(id: &str, rows: &Value) -> (Vec<[String; 3]>, Vec<String>) {
    let item = registry::all().find(|item| item.id() == id).unwrap();
    let settings = Settings {
        id: item.id(),
        mode: "full".to_owned(),
        command: "c".to_owned(),
        prices: None,
        program: "p".to_owned(),
        machine: machine(),
    };
    let record = Record::new(settings, 1.0, None, rows.clone());
    let entry = Entry { item, state: measured(Box::new(record), item.method().unwrap(), false) };
    assert!(matches!(entry.state, State::Measured { .. }), "{:?}", entry.state.words());
    (entry.lines().into_iter().map(|line| [line.what, line.here, line.paper]).collect(), entry.notes())
}

/// Rows of the figure's full command with these rates.
fn streams(id: &str, rate: impl Fn(&str, &str, bool, u16, u32) -> f64) -> Value {
    let method = registry::all().find(|item| item.id() == id).and_then(Item::method).unwrap();
    let command = method.command(Mode::Full, 2, None);
    let made = |part: &str| {
        sample::rows(&tcp_options(part.strip_prefix("lab tcp ").unwrap()), |a, b, c, d, e| {
            rate(a, b, c, d, e)
        })
    };
    store::rows_of(command.split(AND).map(made).collect())
}

#[test]
fn streams_of_known_rates_are_found_beside_the_numbers_of_paper_001() {
    let check = |id: &str, rows: &Value, expected: &[[&str; 3]]| {
        let (lines, _) = found_of(id, rows);
        for line in expected {
            assert!(lines.contains(&line.map(str::to_owned)), "{id}: no {line:?} in {lines:#?}");
        }
    };
    let slow = |protocol: &str, _: &str, in_transport: bool, _: u16, _: u32| match (protocol, in_transport) {
        ("plain", _) => 9.5,
        (_, true) => 9.0,
        (_, false) => 8.73,
    };
    check(
        "001-figure-1",
        &streams("001-figure-1", slow),
        &[
            ["plain IP, between sites, messages of 64 bytes", "9.50 Mbit/s", ""],
            ["throughput lost by tunnel mode, of transport mode, ESP aes128-sha1, 64 bytes", "3.00 %", "3 %"],
            ["processors busy, plain IP, between gateways, 32768 bytes", "87.50 %", ""],
        ],
    );
    let fast = |protocol: &str, suite: &str, in_transport: bool, _: u16, _: u32| match (protocol, suite) {
        ("plain", _) => 95.0,
        (_, "3des-sha1") => 58.0,
        _ if in_transport => 90.0,
        _ => 86.4,
    };
    let rows = streams("001-figure-2", fast);
    let lost = "difference between transport and tunnel mode, ESP aes128-sha1, 1024 bytes";
    check("001-figure-2", &rows, &[[lost, "4.00 %", "3 to 5 %"]]);
    let lost = "throughput lost by 3DES, of plain IP's, tunnel mode, 64 bytes";
    check("001-figure-3", &rows, &[[lost, "37.00 Mbit/s", "35 to 40 Mbit/s"]]);
    let gigabit = |protocol: &str, _: &str, _: bool, _: u16, bytes: u32| match (protocol, bytes) {
        ("plain", 64) => 600.0,
        ("plain", _) => 940.0,
        _ => 290.0,
    };
    let rows = streams("001-figure-4", gigabit);
    check(
        "001-figure-4",
        &rows,
        &[
            ["confidentiality and integrity, at most", "290.0 Mbit/s", "300 Mbit/s"],
            ["plain IP fills the link, with messages from", "512 bytes", "more than 256 bytes"],
        ],
    );
    let usage = "CPU usage with IPsec, ESP aes128-sha1, tunnel mode, 32768 bytes, receiver";
    check("001-figure-5", &rows, &[[usage, "87.50 %", "100 % (most of it softirq, then irq)"]]);
    let jumbo = |protocol: &str, _: &str, _: bool, mtu: u16, _: u32| match (protocol, mtu) {
        ("plain" | "ah", 9000) => 985.0,
        (_, 9000) => 400.0,
        _ => 300.0,
    };
    check(
        "001-figure-6",
        &streams("001-figure-6", jumbo),
        &[
            ["AH with MD5 in tunnel mode, peak", "985.0 Mbit/s", "985 (as plain IP) Mbit/s"],
            [
                "ESP and AH combined, gain, AH+ESP aes256-sha1 sha1, messages of 32768 bytes, MTU 9000 over 1500 bytes",
                "100.0 Mbit/s",
                "100 Mbit/s",
            ],
            // All protections of section 5.3, and more than one size.
            ["AH sha1, messages of 64 bytes, MTU 1500 bytes", "300.0 Mbit/s", ""],
            ["ESP aes128-sha1, messages of 64 bytes, MTU 9000 bytes", "400.0 Mbit/s", ""],
            ["ESP 3des-sha1, messages of 32768 bytes, MTU 1500 bytes", "300.0 Mbit/s", ""],
        ],
    );
}

#[test]
fn steps_of_tuning_have_their_gain_or_the_reason_why_they_were_not_measured() {
    let rows = streams("001-section-5", |_, _, _, mtu, _| if mtu > 1500 { 650.0 } else { 200.0 });
    let (lines, notes) = found_of("001-section-5", &rows);
    let line = |what: &str| {
        let found = lines.iter().find(|[line, ..]| line == what);
        found.unwrap_or_else(|| panic!("no {what} in {lines:#?}")).clone()
    };
    let [_, here, paper] = line("gain by an MTU of 9,000 bytes, AH, md5, messages of 1024 bytes");
    assert_eq!(here, "450.0 Mbit/s");
    assert_eq!(paper, "up to 450 (tunnel mode, MD5) Mbit/s");
    // The paper has one number of both steps, which stands beside each.
    for step in ["by coalescing", "by NAPI"] {
        let what =
            format!("gain by interrupt coalescing or NAPI, {step}, ESP, aes128-sha1, messages of 1024 bytes");
        assert_eq!(line(&what)[2], "50 (10 less below 1,024 bytes) Mbit/s");
    }
    let each: std::collections::HashSet<_> = lines.iter().map(|[what, ..]| what).collect();
    assert_eq!(each.len(), lines.len(), "no two have one name: {lines:#?}");
    assert!(notes.iter().any(|note| note == "Step rings: it changes nothing here."), "{notes:?}");
    assert!(notes.iter().any(|note| note == "Step governor: of the machine."), "{notes:?}");
    assert!(!notes.iter().any(|note| note.contains("Step none")));
}

#[test]
fn rows_of_streams_that_are_not_to_be_believed_are_refused() {
    let rows = streams("001-figure-4", |_, _, _, _, _| 100.0);
    for id in [
        "001-figure-1",
        "001-figure-2",
        "001-figure-3",
        "001-figure-4",
        "001-figure-5",
        "001-section-5",
        "001-figure-6",
    ] {
        let read = registry::all().find(|item| item.id() == id).and_then(Item::method).unwrap().read;
        let all = rows.as_array().unwrap();
        read(all).unwrap_or_else(|wrong| panic!("{id}: {wrong}"));
        let spoils: [&dyn Fn(&mut Value); 5] = [
            &|row| row["mbit_per_second"] = json!("fast"),
            &|row| row["mbit_per_second"] = json!(-1e300),
            &|row| row["protocol"] = json!("<script>"),
            &|row| row["message_bytes"] = json!(1e12),
            &|row| row["path"] = Value::Null,
        ];
        for spoil in spoils {
            let mut spoilt = all.clone();
            spoil(&mut spoilt[1]);
            assert!(read(&spoilt).is_err(), "{id}: {}", spoilt[1]);
        }
        assert!(
            read(&[json!({ "protocol": null, "tuning": "none" })]).is_err(),
            "{id}: nothing was measured"
        );
    }
}

#[test]
fn figures_of_one_command_share_its_measurement_and_its_date() {
    let folder = tempfile::tempdir().unwrap();
    let counted = Counted::default();
    let full = options(folder.path(), "");
    session(&full, &|command| Ok(counted.rows(command))).run().unwrap();
    assert_eq!(counted.times("fake full"), 1);
    let items = json_of(folder.path())["papers"][0]["items"].as_array().unwrap().clone();
    for item in &items[..4] {
        assert_eq!((&item["state"], &item["kept"]), (&json!("measured"), &json!(false)));
        assert_eq!(
            (&item["seconds"], &item["measured_at"]),
            (&items[0]["seconds"], &items[0]["measured_at"])
        );
    }
    // One that is lost is made of the others, which an earlier run has measured.
    fs::remove_file(folder.path().join("003-figure-92.full.json")).unwrap();
    session(&full, &|_| panic!("nothing is left to be measured")).run().unwrap();
    assert_eq!(states(folder.path())[..4], ["measured true"; 4]);
}

#[test]
fn results_of_other_prices_are_measured_anew() {
    let folder = tempfile::tempdir().unwrap();
    let counted = Counted::default();
    let with_prices = Method { quick: "fake 7 {prices}", ..*FAKES[0].method().unwrap() };
    let item = Item { how: How::Measured(with_prices), ..FAKES[0] };
    let quick = options(folder.path(), "--quick");
    let run = |text: &str| {
        let prices = Some(PriceFile { path: "/p.toml".to_owned(), text: text.to_owned() });
        let measure = |command: &str| Ok(counted.rows(command));
        let session = Session { items: vec![&item], prices, ..session(&quick, &measure) };
        session.run().unwrap();
        counted.times("fake 7 --prices /p.toml")
    };
    assert_eq!([run("one"), run("one"), run("two"), run("two")], [1, 1, 2, 2]);
}

/// Each command that a report names measures the GPU that was named, and can be given as it stands.
#[test]
fn a_gpu_that_was_named_is_in_each_command_that_measures_one() {
    let mut named = 0;
    for method in registry::all().filter_map(Item::method) {
        for mode in [Mode::Quick, Mode::Full] {
            let command = method.command(mode, 2, None);
            assert_eq!(super::item::with_gpu(&command, None), command);
            for part in super::item::with_gpu(&command, Some("NVIDIA")).split(AND) {
                let is_of_gpu = part.starts_with("bench gpu ") || part.starts_with("bench scheduler ");
                assert_eq!(part.ends_with(" --gpu NVIDIA"), is_of_gpu, "{part}");
                assert!(measure::parse(part).is_ok(), "{part}");
                named += u32::from(is_of_gpu);
            }
        }
    }
    assert!(named > 10, "{named}");
    let parsed = |words: [&str; 3]| Program::try_parse_from(words).map(|program| program.options.gpu);
    assert_eq!(parsed(["papers", "--gpu", "H100"]).unwrap().as_deref(), Some("H100"));
    assert!(parsed(["papers", "--gpu", "two words"]).is_err());
}

/// One after the other they would choose, and have chosen, two.
#[test]
fn figures_of_paper_003_are_of_the_engine_that_their_commands_name() {
    let folder = tempfile::tempdir().unwrap();
    for words in ["--quick", ""] {
        let (counted, options) = (Counted::default(), options(folder.path(), words));
        let measure = |command: &str| -> Result<Value, BenchError> {
            counted.rows(command);
            Err(BenchError::NotPossible("its words count".to_owned()))
        };
        let items = registry::all().filter(|item| item.paper == Paper::Vpe).collect();
        let choose = || Some("own".to_owned());
        Session { items, choose: &choose, ..session(&options, &measure) }.run().unwrap();
        let commands = counted.0.lock().unwrap();
        assert_eq!(commands.len(), 4, "{commands:?}");
        for command in commands.keys() {
            assert!(command.ends_with(" --engine own") && measure::parse(command).is_ok(), "{command}");
        }
    }
    let other = "lab rfc2544 --quick";
    assert_eq!(super::item::with_engine(other, Some("own")), other);
}

/// Of two engines that are about as fast either may be chosen: a run that goes on has that of the results,
/// and chooses none.
#[test]
fn a_run_goes_on_with_the_engine_of_what_it_has_kept() {
    let folder = tempfile::tempdir().unwrap();
    let counted = Counted::default();
    let measure = |command: &str| Ok(counted.rows(command));
    let of_vpe = Method { quick: "bench vpe --json", ..*FAKES[0].method().unwrap() };
    let item = Item { how: How::Measured(of_vpe), ..FAKES[0] };
    let chosen = AtomicU32::new(0);
    let run = |engine: &str, words: &str| {
        let options = options(folder.path(), words);
        let choose = || {
            chosen.fetch_add(1, Ordering::Relaxed);
            Some(engine.to_owned())
        };
        let machine = Machine { engines: vec!["one".to_owned(), "two".to_owned()], ..machine() };
        Session { items: vec![&item], choose: &choose, machine, ..session(&options, &measure) }
            .run()
            .unwrap();
        ["one", "two"].map(|engine| counted.times(&format!("bench vpe --json --engine {engine}")))
    };
    assert_eq!([run("two", "--quick"), run("one", "--quick")], [[0, 1]; 2]);
    assert_eq!(run("one", "--quick --again"), [1, 1]);
    assert_eq!(run("two", "--quick"), [1, 1]);
    assert_eq!(chosen.load(Ordering::Relaxed), 2, "where nothing is kept, or nothing is to be taken");
}

#[test]
fn files_of_prices_are_read_before_anything_is_measured() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("my prices.toml");
    let refused = |path: &Path| PriceFile::read(path).unwrap_err().to_string();
    assert!(refused(&path).starts_with("--prices: "));
    fs::write(&path, "[machine]\nname = \"m\"\nprice = 439\n").unwrap();
    assert!(refused(&path).contains("spaces"));
    let plain = folder.path().join("prices.toml");
    fs::rename(&path, &plain).unwrap();
    assert!(PriceFile::read(&plain).unwrap().text.contains("439"));
}

#[test]
fn what_a_process_says_that_a_machine_lacks_is_not_possible_here() {
    let folder = tempfile::tempdir().unwrap();
    let quick = options(folder.path(), "--quick");
    let measure = |command: &str| match command {
        "fake 1" => Err(BenchError::NotPossible("no namespaces".to_owned())),
        "fake 2" => Err(crate::LabError::MissingProgram { program: "tc", package: "iproute2" }.into()),
        _ => Ok(json!([{ "value": 3.0 }])),
    };
    session(&quick, &measure).run().unwrap();
    let expected = ["not_possible_here null", "not_possible_here null", "measured false", "measured false"];
    assert_eq!(states(folder.path())[..4], expected);
}
