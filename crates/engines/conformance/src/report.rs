//! The results of the checks.

use std::fmt;
use std::time::Duration;

/// How one check ended.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// Name of the check.
    pub check: &'static str,
    /// How many jobs it checked, or what was wrong.
    pub result: Result<u64, String>,
    /// How long it took.
    pub elapsed: Duration,
}

/// How all checks of one engine ended. `Display` gives a table.
#[derive(Debug, Clone)]
pub struct Report {
    /// The engine's description.
    pub engine: String,
    /// Check by check.
    pub outcomes: Vec<Outcome>,
}

impl Report {
    /// Whether every check passed, and at least one was run.
    #[must_use]
    pub fn passed(&self) -> bool {
        !self.outcomes.is_empty() && self.outcomes.iter().all(|o| o.result.is_ok())
    }

    /// For tests: prints the table.
    ///
    /// # Panics
    /// If a check failed or none was run.
    pub fn assert_passed(&self) {
        println!("{self}");
        assert!(self.passed(), "{self}");
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.engine)?;
        for Outcome { check, result, elapsed } in &self.outcomes {
            match result {
                Ok(jobs) => {
                    writeln!(f, "  ok     {check:<28} {jobs:>8} jobs  {:>6} ms", elapsed.as_millis())?
                }
                Err(why) => writeln!(f, "  FAILED {check:<28} {why}")?,
            }
        }
        Ok(())
    }
}
