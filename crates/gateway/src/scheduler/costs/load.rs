//! What an engine has, and what is known of all its jobs.

use super::estimate::{moved_at_most, picoseconds};
use super::{Followed, SUITES};
use testudo_ipsec::Moment;

/// Completions for a measurement of the time between them.
const WINDOW: u64 = 64;
/// The same of the time between two completions.
pub(super) const PARTS_OF_WINDOWS: u64 = 4;

/// What an engine has, and what is known of all its jobs.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Load {
    pub(super) ends_inside: bool,
    pub(super) jobs: u64,
    /// How many more it takes.
    pub(super) room: u64,
    /// How long it has had what it was given first, if that is known.
    pub(super) oldest_ps: u64,
    /// It refused jobs while it had others, and has given back none since.
    pub(super) is_full: bool,
    /// Jobs that it wants at a time.
    pub(super) batch: u64,
    /// The worker's time to hand one over, and to take one back.
    pub(super) submit_ps: u64,
    pub(super) poll_ps: u64,
    /// The time between two completions while it is busy.
    pub(super) between_ps: u64,
    /// Since when it has had a batch waiting at each look, and how many it has given back since.
    pub(super) busy: Option<(Moment, u64)>,
    pub(super) followed: Option<Followed>,
    /// When it last ended jobs of each suite inside `submit`.
    pub(super) used: [Option<Moment>; SUITES],
    /// Calls in a row that took far longer than expected.
    pub(super) interrupted: u8,
}

impl Load {
    /// Jobs have come back, and so many are left. While there is a batch of them the engine has no time to
    /// idle: the time between two completions is its own then, and not that of those who give it jobs.
    pub(super) fn count_completions(&mut self, now: Moment, count: u64, left: u64) {
        let has_batch = left >= self.batch.max(WINDOW);
        match self.busy {
            _ if !has_batch => self.busy = None,
            None => self.busy = (count > 0).then_some((now, 0)),
            Some((since, ended)) => {
                let ended = ended.saturating_add(count);
                self.busy = Some((since, ended));
                if ended >= WINDOW && now > since {
                    let between_ps = picoseconds(now.since(since)) / ended;
                    self.between_ps = moved_at_most(self.between_ps, between_ps, PARTS_OF_WINDOWS);
                    self.busy = Some((now, 0));
                }
            }
        }
    }
}
