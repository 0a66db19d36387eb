//! Faults that may last, such as a full disk: told at once, then ever more rarely, up to once a minute.

use std::fmt;
use std::time::{Duration, Instant};

/// The wait after the first line; each line doubles it.
const FIRST_WAIT: Duration = Duration::from_secs(1);
/// The longest wait. Where nothing failed for as long, the next fault is a new one.
const LONGEST_WAIT: Duration = Duration::from_secs(60);

/// Something that can fail again and again.
#[derive(Debug, Default)]
pub(super) struct Fault {
    last: Option<Instant>,
    next_line: Option<Instant>,
    wait: Duration,
    untold: u64,
    is_open: bool,
}

/// How often it has failed since the line before; the end of a log line.
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
    /// It failed. `Some` if that is to be told.
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

    /// It works. `true` if that is to be told: once for each line about a fault, at the most.
    #[must_use]
    pub(super) fn ends(&mut self) -> bool {
        std::mem::take(&mut self.is_open)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The seconds, of so many with a fault in each, in which something is told.
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
    fn what_fails_every_second_is_told_ever_more_rarely_up_to_once_a_minute() {
        let seconds = told(&mut Fault::default(), Instant::now(), 300, false);
        assert_eq!(seconds, [0, 1, 3, 7, 15, 31, 63, 123, 183, 243]);
    }

    #[test]
    fn what_fails_and_works_by_turns_is_told_no_more_often() {
        let seconds = told(&mut Fault::default(), Instant::now(), 130, true);
        assert_eq!(seconds, [0, 0, 1, 1, 3, 3, 7, 7, 15, 15, 31, 31, 63, 63, 123, 123]);
    }

    #[test]
    fn a_line_counts_what_was_not_told_and_a_minute_of_peace_makes_a_new_fault() {
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
