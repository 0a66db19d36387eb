//! Processor time by state, as `/proc/stat` has it (proc(5)).

use std::fs;

use crate::error::{LabError, io};

/// The states that are told apart. Nice time is the user's, waiting for a disk is idle, and a guest's time
/// is in that of its user.
pub(crate) const STATES: [&str; 6] = ["user", "system", "softirq", "irq", "idle", "steal"];

/// Clock ticks in each state since the machine started, by processor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Times(Vec<(usize, [u64; STATES.len()])>);

/// What processors did between two readings.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(super) struct Shares {
    /// Share of the time in each of [`STATES`], 0 to 1; together 1.
    pub(super) of: [f64; STATES.len()],
    /// The time of all these processors together, in seconds.
    pub(super) seconds: f64,
}

impl Times {
    pub(super) fn now() -> Result<Self, LabError> {
        let text = fs::read_to_string("/proc/stat").map_err(io("read /proc/stat"))?;
        let unknown = || io("read /proc/stat")(std::io::Error::other("it has no line of a processor"));
        Self::of(&text).ok_or_else(unknown)
    }

    fn of(text: &str) -> Option<Self> {
        let line = |line: &str| {
            let (name, figures) = line.strip_prefix("cpu")?.split_once(' ')?;
            let number = name.parse().ok()?;
            let ticks: Vec<u64> =
                figures.split_whitespace().map_while(|word| word.parse().ok()).take(8).collect();
            let [user, nice, system, idle, waiting, irq, softirq, steal] = ticks.try_into().ok()?;
            Some((number, [user + nice, system, softirq, irq, idle + waiting, steal]))
        };
        let found: Vec<_> = text.lines().filter_map(line).collect();
        (!found.is_empty()).then_some(Self(found))
    }

    /// What these processors did from this reading to a later one. A count that went backwards, as idle may,
    /// counts as no time.
    pub(super) fn until(&self, later: &Self, processors: &[usize]) -> Shares {
        let mut ticks = [0_u64; STATES.len()];
        for (number, after) in later.0.iter().filter(|(number, _)| processors.contains(number)) {
            let Some((_, before)) = self.0.iter().find(|(known, _)| known == number) else { continue };
            for ((sum, after), before) in ticks.iter_mut().zip(after).zip(before) {
                *sum += after.saturating_sub(*before);
            }
        }
        let all = ticks.iter().sum::<u64>() as f64;
        let of = ticks.map(|ticks| if all > 0.0 { ticks as f64 / all } else { 0.0 });
        Shares { of, seconds: all / rustix::param::clock_ticks_per_second() as f64 }
    }
}

impl Shares {
    /// Shares of the time of all of them together.
    pub(super) fn together(all: &[Self]) -> Self {
        let seconds: f64 = all.iter().map(|shares| shares.seconds).sum();
        let mut of = [0.0; STATES.len()];
        for shares in all.iter().filter(|_| seconds > 0.0) {
            for (sum, share) in of.iter_mut().zip(shares.of) {
                *sum += share * shares.seconds / seconds;
            }
        }
        Self { of, seconds }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BEFORE: &str =
        "cpu  30 0 30 300 0 0 0 0 0 0\ncpu0 10 0 10 100 0 0 0 0 0 0\ncpu1 20 0 20 200 0 0 0 0 0 0\nintr 5\n";
    /// cpu0: user 5 (2 of them nice), system 10, idle 30 (10 of them waiting), irq 5, softirq 40, steal 10.
    const AFTER: &str =
        "cpu  1 2 3 4 5 6 7 8 9 10\ncpu0 13 2 20 120 10 5 40 10 3 0\ncpu1 20 0 20 300 0 0 0 0 0 0\nintr 9\n";

    #[test]
    fn states_of_the_asked_processors_are_told_apart() {
        let (before, after) = (Times::of(BEFORE).unwrap(), Times::of(AFTER).unwrap());
        let of_0 = before.until(&after, &[0]);
        assert_eq!(of_0.of, [0.05, 0.1, 0.4, 0.05, 0.3, 0.1]);
        assert_eq!(of_0.seconds * rustix::param::clock_ticks_per_second() as f64, 100.0);
        let of_1 = before.until(&after, &[1]);
        assert_eq!(of_1.of, [0.0, 0.0, 0.0, 0.0, 1.0, 0.0]);
        let of_both = before.until(&after, &[0, 1]);
        assert_eq!(of_both.of[4], 0.65);
        assert_eq!(of_both, Shares::together(&[of_0, of_1]));
    }

    #[test]
    fn what_goes_backwards_or_is_not_there_is_no_time() {
        let (before, after) = (Times::of(AFTER).unwrap(), Times::of(BEFORE).unwrap());
        assert_eq!(before.until(&after, &[0, 1]), Shares::default());
        assert_eq!(before.until(&before, &[7]), Shares::default());
        assert_eq!(Shares::together(&[]), Shares::default());
        for text in ["", "cpu 1 2 3", "cpu0 1 2 3\n", "cpu0 a b c d e f g h\n", "cpuX 1 2 3 4 5 6 7 8\n"] {
            assert_eq!(Times::of(text), None, "{text}");
        }
    }

    #[test]
    fn this_machine_has_times() {
        assert!(!Times::now().unwrap().0.is_empty());
    }
}
