//! A runner for test programs with `harness = false`: named closures that share one expensive fixture.
//!
//! It prints what the standard harness prints and understands the part of its command line that people and
//! tools use: substrings of names, `--exact`, `--skip NAME`, `--list`; `--ignored` selects nothing, as no
//! test is ever ignored here. The fixture is built only if a test is selected, and before anything is
//! printed, because it may re-execute the program inside namespaces.

use std::error::Error;
use std::fmt::Display;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::time::Instant;

/// The environment variable that names the test programs, separated by spaces, whose tests another process
/// runs: `make test` runs the slow ones that measure nothing beside all others.
const APART: &str = "TESTUDO_TESTS_APART";

/// What a test returns: any error is a failure, and so is a panic.
pub type TestResult = Result<(), Box<dyn Error>>;

type Body<'a, C> = Box<dyn FnOnce(&mut C) -> TestResult + 'a>;

/// Tests that share a fixture of type `C`, in execution order.
pub struct Suite<'a, C> {
    tests: Vec<(String, Body<'a, C>)>,
}

impl<C> Default for Suite<'_, C> {
    fn default() -> Self {
        Self { tests: Vec::new() }
    }
}

impl<'a, C> Suite<'a, C> {
    /// A suite without tests.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a test. It may leave changes in the fixture; later tests run even if it fails.
    #[must_use]
    pub fn test(mut self, name: impl Into<String>, body: impl FnOnce(&mut C) -> TestResult + 'a) -> Self {
        self.tests.push((name.into(), Box::new(body)));
        self
    }

    /// The names of its tests, in execution order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.tests.iter().map(|(name, _)| name.as_str())
    }

    /// Does what the command line says: builds the fixture, runs the selected tests, prints, drops the
    /// fixture.
    ///
    /// If the fixture cannot be built, every selected test fails with the same message.
    #[must_use = "main must return it, or the failures go unnoticed"]
    pub fn run<E: Display>(self, fixture: impl FnOnce() -> Result<C, E>) -> ExitCode {
        let selection = Selection::parse(std::env::args().skip(1));
        if runs_apart() {
            println!("\nrunning 0 tests: {APART} names this program");
            return ExitCode::SUCCESS;
        }
        if selection.list {
            self.tests.iter().for_each(|(name, _)| println!("{name}: test"));
            return ExitCode::SUCCESS;
        }
        let report = self.run_selected(&selection, fixture, &mut |line| println!("{line}"));
        if report.failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(101) }
    }

    fn run_selected<E: Display>(
        self,
        selection: &Selection,
        fixture: impl FnOnce() -> Result<C, E>,
        print: &mut dyn FnMut(String),
    ) -> Report {
        let started = Instant::now();
        let all = self.tests.len();
        let chosen: Vec<_> = self.tests.into_iter().filter(|(name, _)| selection.admits(name)).collect();
        let mut report = Report { passed: 0, failed: Vec::new(), filtered_out: all - chosen.len() };
        let mut context = (!chosen.is_empty()).then(fixture);
        print(format!("\nrunning {} test{}", chosen.len(), if chosen.len() == 1 { "" } else { "s" }));
        for (name, body) in chosen {
            let outcome = match context.as_mut() {
                Some(Ok(context)) => outcome_of(body, context),
                Some(Err(error)) => Err(format!("the fixture could not be made: {error}")),
                None => Err("no fixture".to_owned()),
            };
            print(format!("test {name} ... {}", if outcome.is_ok() { "ok" } else { "FAILED" }));
            match outcome {
                Ok(()) => report.passed += 1,
                Err(message) => report.failed.push((name, message)),
            }
        }
        report.print(started.elapsed().as_secs_f64(), print);
        report
    }
}

/// Whether another process runs the tests of this program, whose file is `NAME-HASH`.
fn runs_apart() -> bool {
    let program = std::env::current_exe().ok();
    let name = program.as_deref().and_then(|p| p.file_stem()?.to_str()?.rsplit_once('-'));
    let apart = std::env::var(APART).unwrap_or_default();
    name.is_some_and(|(name, _)| apart.split_whitespace().any(|other| other == name))
}

fn outcome_of<C>(body: Body<'_, C>, context: &mut C) -> Result<(), String> {
    match catch_unwind(AssertUnwindSafe(|| body(context))) {
        Ok(result) => result.map_err(|error| error.to_string()),
        Err(panic) => Err(panic
            .downcast_ref::<String>()
            .map(String::as_str)
            .or_else(|| panic.downcast_ref::<&str>().copied())
            .map_or_else(|| "panicked".to_owned(), |message| format!("panicked: {message}"))),
    }
}

struct Report {
    passed: usize,
    failed: Vec<(String, String)>,
    filtered_out: usize,
}

impl Report {
    fn print(&self, seconds: f64, print: &mut dyn FnMut(String)) {
        if !self.failed.is_empty() {
            print("\nfailures:\n".to_owned());
            for (name, message) in &self.failed {
                print(format!("---- {name} ----\n{message}\n"));
            }
        }
        print(format!(
            "\ntest result: {}. {} passed; {} failed; 0 ignored; 0 measured; {} filtered out; finished in {seconds:.2}s\n",
            if self.failed.is_empty() { "ok" } else { "FAILED" },
            self.passed,
            self.failed.len(),
            self.filtered_out,
        ));
    }
}

/// The selection made on the command line.
#[derive(Debug, Default)]
struct Selection {
    wanted: Vec<String>,
    skipped: Vec<String>,
    exact: bool,
    list: bool,
    ignored_only: bool,
}

impl Selection {
    fn parse(arguments: impl Iterator<Item = String>) -> Self {
        let mut selection = Self::default();
        let mut arguments = arguments;
        while let Some(argument) = arguments.next() {
            match argument.as_str() {
                "--exact" => selection.exact = true,
                "--list" => selection.list = true,
                "--ignored" => selection.ignored_only = true,
                "--skip" => selection.skipped.extend(arguments.next()),
                // Options of the standard harness that take a value and mean nothing with one thread and
                // plain output.
                "--test-threads" | "--format" | "--color" | "--logfile" | "-Z" => drop(arguments.next()),
                option if option.starts_with('-') => {}
                _ => selection.wanted.push(argument),
            }
        }
        // `--list --ignored` lists the ignored tests: none.
        selection.list &= !selection.ignored_only;
        selection
    }

    fn admits(&self, name: &str) -> bool {
        let matches =
            |pattern: &String| if self.exact { name == pattern } else { name.contains(pattern.as_str()) };
        !self.ignored_only
            && (self.wanted.is_empty() || self.wanted.iter().any(matches))
            && !self.skipped.iter().any(matches)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(arguments: &[&str], suite: Suite<'_, u32>, fixture: Result<u32, &str>) -> (Report, String) {
        let selection = Selection::parse(arguments.iter().map(|&argument| argument.to_owned()));
        let mut printed = String::new();
        let report = suite.run_selected(&selection, || fixture, &mut |line| printed += &(line + "\n"));
        (report, printed)
    }

    fn suite<'a>() -> Suite<'a, u32> {
        Suite::new()
            .test("counts up", |count| {
                *count += 1;
                Ok(())
            })
            .test(
                "sees the count",
                |count| if *count == 1 { Ok(()) } else { Err(format!("count {count}").into()) },
            )
            .test("panics", |_| panic!("on purpose"))
    }

    #[test]
    fn failures_and_panics_are_collected_and_the_rest_still_runs() {
        let (report, printed) = run(&[], suite(), Ok(0));
        assert_eq!((report.passed, report.failed.len()), (2, 1));
        assert!(
            printed.contains("test counts up ... ok\ntest sees the count ... ok\ntest panics ... FAILED"),
            "{printed}"
        );
        assert!(printed.contains("---- panics ----\npanicked: on purpose"), "{printed}");
        assert!(printed.contains("test result: FAILED. 2 passed; 1 failed; 0 ignored"), "{printed}");
    }

    #[test]
    fn the_command_line_selects_by_substring_exact_name_and_skip() {
        let (report, printed) = run(&["count", "--skip", "sees", "--nocapture"], suite(), Ok(0));
        assert_eq!((report.passed, report.failed.len(), report.filtered_out), (1, 0, 2));
        assert!(printed.contains("running 1 test\n"), "{printed}");
        assert!(printed.contains("test result: ok. 1 passed; 0 failed"), "{printed}");
        assert_eq!(run(&["--exact", "count"], suite(), Ok(0)).0.filtered_out, 3);
        assert_eq!(run(&["--test-threads", "1", "panics"], suite(), Ok(0)).0.failed.len(), 1);
        assert_eq!(run(&["--ignored"], suite(), Ok(0)).0.filtered_out, 3);
    }

    #[test]
    fn a_fixture_that_cannot_be_made_fails_the_selected_tests() {
        let (report, printed) = run(&["count"], suite(), Err("no qemu"));
        assert_eq!((report.passed, report.failed.len()), (0, 2));
        assert!(printed.contains("the fixture could not be made: no qemu"), "{printed}");
    }

    #[test]
    fn no_fixture_is_made_for_an_empty_selection() {
        let selection = Selection::parse(["nothing".to_owned()].into_iter());
        let made = || -> Result<u32, String> { panic!("made") };
        assert_eq!(suite().run_selected(&selection, made, &mut |_| {}).filtered_out, 3);
    }
}
