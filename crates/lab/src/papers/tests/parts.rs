//! Figures of several commands: a run that was stopped among them goes on where it was.

use super::*;

/// Names the folder to a process of the next test's, which is to be killed.
const KILLED_IN: &str = "TESTUDO_TEST_KILLED_AT_A_COMMAND_IN";
static OF_THREE: Item = fake("Figure 97", "fake 5 && testudo fake 6 && testudo fake 7");

/// A run of the figure alone; what it said.
fn run(folder: &Path, words: &str, measure: Measure<'_>) -> Result<String, BenchError> {
    let options = options(folder, words);
    Session { items: vec![&OF_THREE], ..session(&options, measure) }.run()
}

fn counts(counted: &Counted) -> [u32; 3] {
    [5, 6, 7].map(|number| counted.times(&format!("fake {number}")))
}

/// A run that ends in the third command, and leaves two that are done.
fn stopped(folder: &Path) {
    let counted = Counted::default();
    let measure = |command: &str| match command {
        "fake 7" => Err(BenchError::Invalid { case: "a case".to_owned(), what: "it was stopped".to_owned() }),
        other => Ok(counted.rows(other)),
    };
    let error = run(folder, "--quick", &measure).unwrap_err().to_string();
    assert!(error.contains("it was stopped"), "{error}");
    assert_eq!(counts(&counted), [1, 1, 0]);
    assert_eq!(
        names(folder, ".part-"),
        ["003-figure-97.quick.part-1.json", "003-figure-97.quick.part-2.json"]
    );
}

/// The files whose names have this in them.
fn names(folder: &Path, within: &str) -> Vec<String> {
    let entries =
        fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = entries.filter(|name| name.contains(within)).collect();
    names.sort();
    names
}

#[test]
fn a_run_that_was_killed_among_a_figures_commands_measures_those_that_are_left() {
    let third_kills = |command: &str| -> Result<Value, BenchError> {
        if command == "fake 7" {
            kill_process(getpid(), Signal::KILL).unwrap();
        }
        Ok(Counted::default().rows(command))
    };
    if let Some(folder) = std::env::var_os(KILLED_IN) {
        run(Path::new(&folder), "--quick", &third_kills).unwrap();
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let mut itself = Command::new(std::env::current_exe().unwrap());
    let name = "a_run_that_was_killed_among_a_figures_commands_measures_those_that_are_left";
    itself.arg(format!("papers::tests::parts::{name}")).arg("--exact");
    let killed = itself.env(KILLED_IN, folder.path()).output().unwrap();
    assert_eq!(killed.status.signal(), Some(9), "{}", String::from_utf8_lossy(&killed.stdout));

    let counted = Counted::default();
    run(folder.path(), "--quick", &|command| Ok(counted.rows(command))).unwrap();
    assert_eq!(counts(&counted), [0, 0, 1]);
    let item = &json_of(folder.path())["papers"][0]["items"][0];
    assert_eq!((item["rows"].as_array().unwrap().len(), &item["kept"]), (3, &json!(false)));
    let said = item["notes"].to_string();
    assert!(said.contains(", the first of its commands ") && item["begun_at"].is_string(), "{said}");
    assert_eq!(names(folder.path(), "part"), [""; 0], "what is done has one file");
    run(folder.path(), "--quick", &|_| panic!("all is there")).unwrap();
}

#[test]
fn commands_of_a_figure_that_were_kept_take_no_time_unless_all_is_measured_again() {
    let folder = tempfile::tempdir().unwrap();
    stopped(folder.path());
    let never = |_: &str| -> Result<Value, BenchError> { panic!("nothing is measured") };
    for (words, share) in [("--quick", 1.0 / 3.0), ("--quick --again", 1.0)] {
        let options = options(folder.path(), words);
        let session = Session { items: vec![&OF_THREE], ..session(&options, &never) };
        let entries = [Entry { item: &OF_THREE, state: State::NotYet }];
        let left = session.left(&Store::open(folder.path()).unwrap(), &entries);
        assert_eq!(left, [Duration::from_secs(1).mul_f64(share)], "{words}");
    }
    let counted = Counted::default();
    run(folder.path(), "--quick --again", &|command| Ok(counted.rows(command))).unwrap();
    assert_eq!(counts(&counted), [1, 1, 1]);
    assert!(json_of(folder.path())["papers"][0]["items"][0]["begun_at"].is_null());
}

/// What `--again` has measured is not mixed with what there was before, and that is not taken for it.
#[test]
fn a_figure_that_is_measured_again_and_stopped_goes_on_with_what_is_new() {
    let folder = tempfile::tempdir().unwrap();
    run(folder.path(), "--quick", &|command| Ok(Counted::default().rows(command))).unwrap();
    let third_fails = |command: &str| match command {
        "fake 7" => Err(BenchError::Invalid { case: "a case".to_owned(), what: "it was stopped".to_owned() }),
        other => Ok(Counted::default().rows(other)),
    };
    run(folder.path(), "--quick --again", &third_fails).unwrap_err();
    let counted = Counted::default();
    run(folder.path(), "--quick", &|command| Ok(counted.rows(command))).unwrap();
    assert_eq!(counts(&counted), [0, 0, 1]);
}

#[test]
fn commands_of_a_figure_whose_files_are_not_to_be_believed_are_measured_anew() {
    /// What spoils a file, and how often each command is measured then.
    type Spoil<'a> = (&'a dyn Fn(&Path), [u32; 3]);
    let spoils: [Spoil<'_>; 5] = [
        (&|path| fs::write(path, "no JSON").unwrap(), [1, 0, 1]),
        (&|path| changed(path, |record| record["settings"]["machine"]["processors"] = json!(64)), [1, 0, 1]),
        (&|path| changed(path, |record| record["settings"]["command"] = json!("fake 6")), [1, 0, 1]),
        (&|path| changed(path, |record| record["rows"] = json!({})), [1, 0, 1]),
        // Only beside the others does it show: nothing that was kept is taken then.
        (&|path| changed(path, |record| record["rows"] = json!([{ "value": "many" }])), [1, 1, 2]),
    ];
    for (number, (spoil, expected)) in spoils.into_iter().enumerate() {
        let folder = tempfile::tempdir().unwrap();
        stopped(folder.path());
        let path = folder.path().join("003-figure-97.quick.part-1.json");
        spoil(&path);
        let spoilt = fs::read(&path).unwrap();
        let counted = Counted::default();
        run(folder.path(), "--quick", &|command| Ok(counted.rows(command))).unwrap();
        assert_eq!(counts(&counted), expected, "case {number}");
        let away = folder.path().join("003-figure-97.quick.part-1.json.refused");
        assert_eq!(fs::read(away).unwrap(), spoilt, "case {number}");
        assert_eq!(states(folder.path()), ["measured false"], "case {number}");
    }
}

/// A program whose rows it cannot read itself is asked once, and leaves nothing that a later run would take.
#[test]
fn rows_of_several_commands_that_nobody_can_read_have_failed_once() {
    let folder = tempfile::tempdir().unwrap();
    let counted = Counted::default();
    let measure = |command: &str| {
        counted.rows(command);
        Ok(json!([{ "value": "many" }]))
    };
    let error = run(folder.path(), "--quick", &measure).unwrap_err().to_string();
    assert!(error.contains("its rows cannot be read"), "{error}");
    assert_eq!((counts(&counted), names(folder.path(), "part").len()), ([1, 1, 1], 0));
}
