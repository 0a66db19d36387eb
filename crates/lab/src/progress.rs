//! The progress bar: on standard error, and only if that is a terminal.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// A bar in tenths of a second, with the current stage.
pub(crate) struct Progress {
    bar: ProgressBar,
    /// The end of the current stage on the bar.
    filled: u64,
    stage: String,
}

fn tenths(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis() / 100).unwrap_or(u64::MAX)
}

impl Progress {
    /// A bar for a run of about `expected`; nothing is shown if `silent`.
    pub(crate) fn new(expected: Duration, silent: bool) -> Self {
        let target = if silent { ProgressDrawTarget::hidden() } else { ProgressDrawTarget::stderr() };
        let bar = ProgressBar::with_draw_target(Some(tenths(expected).max(1)), target);
        if let Ok(style) = ProgressStyle::with_template("{bar:30.green} {elapsed:>3} {wide_msg}") {
            bar.set_style(style.progress_chars("█▌░"));
        }
        bar.enable_steady_tick(Duration::from_millis(200));
        Self { bar, filled: 0, stage: String::new() }
    }

    /// Begins a stage that should take about `expected`.
    pub(crate) fn stage(&mut self, name: &str, expected: Duration) {
        self.bar.set_position(self.filled);
        self.filled += tenths(expected);
        name.clone_into(&mut self.stage);
        self.bar.set_message(self.stage.clone());
    }

    /// Shows how much of the stage's expected time has passed.
    pub(crate) fn at(&self, elapsed: Duration, expected: Duration, detail: &str) {
        let before = self.filled.saturating_sub(tenths(expected));
        self.bar.set_position((before + tenths(elapsed)).min(self.filled));
        self.bar.set_message(format!("{}: {detail}", self.stage));
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
