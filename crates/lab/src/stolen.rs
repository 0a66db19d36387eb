//! Whether a hypervisor had processors of this machine.

use std::fs;

/// The time that was stolen from all processors so far, in clock ticks, as `/proc/stat` has it (proc(5)).
pub(crate) struct Stolen(Option<u64>);

/// The eighth figure of the line of all processors.
fn stolen(text: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix("cpu ")?.split_whitespace().nth(7)?.parse().ok())
}

impl Stolen {
    pub(crate) fn now() -> Self {
        Self(fs::read_to_string("/proc/stat").ok().as_deref().and_then(stolen))
    }

    /// Whether it is more than when this was asked last. Where nobody tells, nothing was stolen.
    pub(crate) fn has_grown(&mut self) -> bool {
        let before = std::mem::replace(self, Self::now());
        before.0.zip(self.0).is_some_and(|(before, after)| after > before)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stolen_time_is_the_eighth_figure_of_all_processors() {
        let text = "cpu  1 2 3 4 5 6 7 8 9 10\ncpu0 1 1 1 1 1 1 1 99 1 1\n";
        assert_eq!((stolen(text), stolen("cpu  1 2 3"), stolen("")), (Some(8), None, None));
    }
}
