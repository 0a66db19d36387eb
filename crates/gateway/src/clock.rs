//! Clocks are handed in, so that a simulation decides what time it is.

use rustix::time::{ClockId, clock_gettime};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use testudo_ipsec::Moment;

/// Tells the time since its own start; it never goes back.
pub trait Clock: Send {
    /// Now.
    fn now(&self) -> Moment;
}

/// The system's clock since its boot. It advances while the machine is asleep, as lifetimes do; `Instant`
/// does not.
#[derive(Debug, Clone, Copy)]
pub struct SystemClock {
    /// Since the boot.
    started: Duration,
}

impl Default for SystemClock {
    fn default() -> Self {
        Self { started: since_boot() }
    }
}

impl Clock for SystemClock {
    fn now(&self) -> Moment {
        Moment(since_boot().saturating_sub(self.started))
    }
}

fn since_boot() -> Duration {
    // The clock begins with 0, so that neither part is ever negative.
    clock_gettime(ClockId::Boottime).try_into().unwrap_or_default()
}

/// A clock that changes only when it is set. Clones show the same time.
#[derive(Debug, Clone, Default)]
pub struct ManualClock(Arc<AtomicU64>);

impl ManualClock {
    /// Moves the clock forward.
    pub fn advance(&self, by: Duration) {
        let nanoseconds = u64::try_from(by.as_nanos()).unwrap_or(u64::MAX);
        self.0.fetch_add(nanoseconds, Ordering::Relaxed);
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Moment {
        Moment(Duration::from_nanos(self.0.load(Ordering::Relaxed)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    /// Set in a time namespace whose machine was suspended for this long: its boot-time clock is ahead of its
    /// monotonic one.
    const SLEPT: &str = "TESTUDO_TEST_HAS_SLEPT";
    const ASLEEP: Duration = Duration::from_secs(100_000);

    #[test]
    fn time_asleep_counts() {
        if std::env::var_os(SLEPT).is_some() {
            let (awake, before) = (clock_gettime(ClockId::Monotonic), since_boot());
            let clock = SystemClock::default();
            assert!(before.saturating_sub(awake.try_into().unwrap_or_default()) >= ASLEEP);
            assert!((before..=since_boot()).contains(&clock.started));
            assert!(clock.now().0 < ASLEEP);
            return;
        }
        let mut command = Command::new("unshare");
        command.args(["--user", "--map-root-user", "--time", "--boottime", &ASLEEP.as_secs().to_string()]);
        let program = std::env::current_exe().map(|program| command.arg(program).env(SLEPT, "1"));
        let output = program.and_then(|c| c.args(["--exact", "clock::tests::time_asleep_counts"]).output());
        let passed = output.as_ref().is_ok_and(|o| String::from_utf8_lossy(&o.stdout).contains("1 passed"));
        assert!(passed, "{output:?}");
    }
}
