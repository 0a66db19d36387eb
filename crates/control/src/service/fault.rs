//! Faults that may last, such as a full disk: logged at once, then at growing intervals of up to a minute.

use std::fmt;
use std::time::{Duration, Instant};

/// Wait after the first line; each line doubles it.
const FIRST_WAIT: Duration = Duration::from_secs(1);
/// Longest wait. After this long without a failure, the next one is a new fault.
const LONGEST_WAIT: Duration = Duration::from_secs(60);

/// Something that can fail repeatedly.
#[derive(Debug, Default)]
pub(super) struct Fault {
    last: Option<Instant>,
    next_line: Option<Instant>,
    wait: Duration,
    untold: u64,
    is_open: bool,
}

/// How often it has failed since the last line; displayed at the end of a log line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Untold(u64);

impl fmt::Display for Untold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            0 => Ok(()),
            times => write!(f, " (failed {times} more times since this was last told)"),
        }
    }
}

impl Fault {
    /// Records a failure. `Some` if it is to be logged.
    #[must_use]
    pub(super) fn occurs(&mut self, now: Instant) -> Option<Untold> {
        let is_new = self.last.is_none_or(|last| now.saturating_duration_since(last) >= LONGEST_WAIT);
        self.last = Some(now);
        if is_new {
            (self.next_line, self.wait) = (None, FIRST_WAIT);
        }
        if self.next_line.is_some_and(|next| now < next) {
            self.untold += 1;
            return None;
        }
        self.next_line = Some(now + self.wait);
        self.wait = (self.wait * 2).min(LONGEST_WAIT);
        self.is_open = true;
        Some(Untold(std::mem::take(&mut self.untold)))
    }

    /// Records a success. `true` if it is to be logged: at most once per line about a fault.
    #[must_use]
    pub(super) fn ends(&mut self) -> bool {
        std::mem::take(&mut self.is_open)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The seconds in which something is logged, with a failure in each of `seconds`.
    fn told(fault: &mut Fault, start: Instant, seconds: u64, works_in_between: bool) -> Vec<u64> {
        let at = |second| start + Duration::from_secs(second);
        let mut told = Vec::new();
        for second in 0..seconds {
            told.extend(fault.occurs(at(second)).map(|_| second));
            if works_in_between && fault.ends() {
                told.push(second);
            }
        }
        told
    }

    #[test]
    fn a_fault_every_second_is_logged_at_growing_intervals_up_to_a_minute() {
        let seconds = told(&mut Fault::default(), Instant::now(), 300, false);
        assert_eq!(seconds, [0, 1, 3, 7, 15, 31, 63, 123, 183, 243]);
    }

    #[test]
    fn an_intermittent_fault_is_logged_no_more_often() {
        let seconds = told(&mut Fault::default(), Instant::now(), 130, true);
        assert_eq!(seconds, [0, 0, 1, 1, 3, 3, 7, 7, 15, 15, 31, 31, 63, 63, 123, 123]);
    }

    #[test]
    fn a_line_counts_unlogged_failures_and_a_quiet_minute_makes_a_new_fault() {
        let (start, mut fault) = (Instant::now(), Fault::default());
        assert!(!fault.ends());
        told(&mut fault, start, 7, false);
        let line = fault.occurs(start + Duration::from_secs(7)).map(|untold| untold.to_string());
        assert_eq!(line.as_deref(), Some(" (failed 3 more times since this was last told)"));
        let later = start + Duration::from_secs(7) + LONGEST_WAIT;
        assert_eq!(told(&mut fault, later, 4, false), [0, 1, 3]);
        assert!(fault.ends());
        assert!(!fault.ends());
    }
}
