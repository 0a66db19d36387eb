//! Whether a hypervisor had processors of this machine.

use std::fs;

use crate::harness::Trial;

/// Where the kernel says whose the time of processors was (proc(5)).
const STAT: &str = "/proc/stat";

/// The time that was stolen from processors so far, in clock ticks.
pub(crate) struct Stolen {
    read: Box<dyn FnMut() -> Option<u64>>,
    ticks: Option<u64>,
}

/// The eighth figures of the lines of these names, together; `None` where a line has none, or none is there.
fn stolen(text: &str, names: &[String]) -> Option<u64> {
    let is_named = |line: &&str| {
        let name = line.split_whitespace().next();
        name.is_some_and(|name| names.iter().any(|known| known == name))
    };
    let of = |line: &str| line.split_whitespace().nth(8)?.parse::<u64>().ok();
    let all: Option<Vec<u64>> = text.lines().filter(is_named).map(of).collect();
    all.filter(|all| !all.is_empty()).map(|all| all.iter().sum())
}

/// What the lines of these processors are called; that of all where none is given.
fn names(processors: &[usize]) -> Vec<String> {
    match processors {
        [] => vec!["cpu".to_owned()],
        some => some.iter().map(|number| format!("cpu{number}")).collect(),
    }
}

impl Stolen {
    /// From all processors.
    pub(crate) fn now() -> Self {
        Self::of(&[])
    }

    /// From these processors, or from all where none is given.
    pub(crate) fn of(processors: &[usize]) -> Self {
        let names = names(processors);
        Self::read_by(move || stolen(&fs::read_to_string(STAT).ok()?, &names))
    }

    /// As `read` says.
    pub(crate) fn read_by(mut read: impl FnMut() -> Option<u64> + 'static) -> Self {
        let ticks = read();
        Self { read: Box::new(read), ticks }
    }

    /// Whether it is more than when this was asked last. Where nobody tells, nothing was stolen.
    pub(crate) fn has_grown(&mut self) -> bool {
        let now = (self.read)();
        let before = std::mem::replace(&mut self.ticks, now);
        before.zip(now).is_some_and(|(before, after)| after > before)
    }

    /// The same trial, which was disturbed if it lost packets and time was stolen since this was asked last:
    /// a thread's own clock may count that time as the thread's.
    pub(crate) fn judge(&mut self, trial: Trial) -> Trial {
        let is_stolen = self.has_grown();
        Trial { is_disturbed: trial.is_disturbed || (is_stolen && trial.has_loss()), ..trial }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::generator::Sizes;
    use crate::harness::fake::FakeDevice;
    use crate::harness::{Device, Load};

    #[test]
    fn stolen_time_is_the_eighth_figure_of_all_processors() {
        let text = "cpu  1 2 3 4 5 6 7 8 9 10\ncpu0 1 1 1 1 1 1 1 99 1 1\n";
        let all = names(&[]);
        assert_eq!((stolen(text, &all), stolen("cpu  1 2 3", &all), stolen("", &all)), (Some(8), None, None));
    }

    #[test]
    fn time_is_stolen_from_the_processors_that_are_asked_about() {
        let line = |name: &str, stolen: u64| format!("{name} 1 1 1 1 1 1 1 {stolen} 1 1\n");
        let text = [line("cpu ", 30), line("cpu0", 7), line("cpu1", 11), line("cpu11", 12)].concat();
        let of = |processors: &[usize]| stolen(&text, &names(processors));
        assert_eq!((of(&[]), of(&[1]), of(&[0, 11]), of(&[0, 0])), (Some(30), Some(11), Some(19), Some(7)));
        assert_eq!(of(&[2]), None, "there is none of this number");
    }

    /// A device whose packets are lost while others have its processor is not known to lose them itself.
    #[test]
    fn a_loss_while_time_was_stolen_is_disturbed_and_a_trial_without_loss_is_not() {
        let mut device = FakeDevice::new(50_000.0, 45);
        let mut trial = |rate| device.trial(Sizes::Bytes(64), Load::rate(rate, Duration::from_millis(100)));
        let (whole, lossy) = (trial(10_000.0).unwrap(), trial(150_000.0).unwrap());
        assert!(!whole.has_loss() && lossy.has_loss());
        let mut ticks = 0;
        let mut always = Stolen::read_by(move || {
            ticks += 1;
            Some(ticks)
        });
        let mut never = Stolen::read_by(|| Some(5));
        let mut unknown = Stolen::read_by(|| None);
        assert!(always.judge(lossy.clone()).is_disturbed && !always.judge(whole).is_disturbed);
        assert!(!never.judge(lossy.clone()).is_disturbed && !unknown.judge(lossy.clone()).is_disturbed);
        let told = Trial { is_disturbed: true, ..lossy };
        assert!(never.judge(told).is_disturbed, "what the device says of itself stays");
    }
}
