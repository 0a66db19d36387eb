//! What is learned of jobs that an engine ended together, inside `submit`.

use super::super::live::UNKNOWN;
use super::estimate::{MOST, picoseconds};
use super::{Costs, INTERRUPTED, Label};
use std::time::Duration;
use testudo_ipsec::Moment;

/// From so many in a row on that took far longer than expected, none was interrupted.
const BELIEVED: u8 = 3;
/// Shares of an error are numbers of such parts.
const SHARES: u128 = 1 << 32;

/// What is known of jobs that an engine ended together, before anything was learned of it.
#[derive(Debug, Default)]
struct Submission {
    /// Of those that are known.
    expected_ps: u64,
    /// How many are not.
    unknown: u64,
}

impl Costs {
    /// Jobs of these labels ended inside `submit`, which took so long.
    ///
    /// Each suite and class learns once of it: that of jobs together is all that was measured.
    pub(crate) fn ended_inside(&mut self, engine: usize, labels: &[Label], took: Duration) {
        let Some(average_ps) = picoseconds(took).checked_div(u64::try_from(labels.len()).unwrap_or(u64::MAX))
        else {
            return;
        };
        let took_ps = picoseconds(took);
        self.spend(took_ps);
        let now = self.clock.now();
        let again = self.was_cold(engine, labels, took, now);
        let Submission { expected_ps, unknown } = self.submission(engine, labels, now);
        let load = &mut self.loads[engine];
        let is_long = unknown == 0 && took_ps > expected_ps.saturating_mul(INTERRUPTED);
        load.interrupted = if is_long { load.interrupted.saturating_add(1).min(BELIEVED) } else { 0 };
        if is_long && load.interrupted < BELIEVED {
            self.was_interrupted = true;
            self.forget_parts(labels);
            return self.shares.count_apart(took_ps - expected_ps);
        }
        if again.is_some() && unknown == 0 {
            self.again = again;
            return self.forget_parts(labels);
        }
        // What is not known has what is left, which is little where what is known went faster than expected.
        let rest_ps = took_ps.saturating_sub(expected_ps).checked_div(unknown);
        match rest_ps.map(|rest_ps| rest_ps.max(average_ps / 2)) {
            Some(rest_ps) => self.learn_rest(engine, labels, rest_ps),
            None => self.learn_by_parts(engine, labels, took_ps, expected_ps),
        }
    }

    fn learn_rest(&mut self, engine: usize, labels: &[Label], rest_ps: u64) {
        for of in labels {
            let estimate = &mut self.groups[of.rank][of.class].estimates[engine];
            if !estimate.is_known() {
                estimate.learn(rest_ps);
            }
        }
        self.forget_parts(labels);
    }

    /// What a submission took more or less than expected is divided among its suites and classes, and each
    /// is changed in proportion to what it was expected to take: who had most of the time has most of the
    /// error. As shares differ from one submission to the next, each finds its own time
    /// (Kaczmarz's method, in relative errors).
    fn learn_by_parts(&mut self, engine: usize, labels: &[Label], took_ps: u64, expected_ps: u64) {
        let counted_ps = took_ps.min(expected_ps.saturating_mul(MOST));
        let mut squares = 0_u128;
        for of in labels {
            // Each once: with its first job the count is gone.
            let (part_ps, count) = &mut self.parts[of.rank][of.class];
            if *count > 0 {
                squares = squares.saturating_add(u128::from(*part_ps).pow(2));
                *count = 0;
            }
        }
        for of in labels {
            let (part_ps, _) = std::mem::take(&mut self.parts[of.rank][of.class]);
            if part_ps == 0 {
                continue;
            }
            let estimate = &mut self.groups[of.rank][of.class].estimates[engine];
            let error_ps = u128::from(counted_ps.abs_diff(expected_ps));
            let share = (error_ps * u128::from(part_ps)).saturating_mul(SHARES) / squares.max(1);
            let change = u128::from(estimate.job_ps).saturating_mul(share) / SHARES;
            let change = u64::try_from(change).unwrap_or(UNKNOWN);
            let job_ps = match counted_ps >= expected_ps {
                true => estimate.job_ps.saturating_add(change.min(estimate.job_ps)),
                false => estimate.job_ps.saturating_sub(change),
            };
            estimate.learn(job_ps);
        }
    }

    /// What is known of jobs that an engine has done together by now, and in `parts` that of each suite and
    /// class.
    fn submission(&mut self, engine: usize, labels: &[Label], now: Moment) -> Submission {
        let mut submission = Submission::default();
        for of in labels {
            let estimate = &self.groups[of.rank][of.class].estimates[engine];
            submission.expected_ps = submission.expected_ps.saturating_add(estimate.job_ps);
            submission.unknown += u64::from(!estimate.is_known());
            let (part_ps, count) = &mut self.parts[of.rank][of.class];
            if *count == 0 {
                self.loads[engine].used[of.rank] = Some(now);
            }
            (*part_ps, *count) = (part_ps.saturating_add(estimate.job_ps), count.saturating_add(1));
        }
        submission
    }

    fn forget_parts(&mut self, labels: &[Label]) {
        labels.iter().for_each(|of| self.parts[of.rank][of.class] = (0, 0));
    }
}
