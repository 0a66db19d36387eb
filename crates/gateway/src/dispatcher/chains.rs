//! Jobs over packets in chains of buffers, which not all engines take.

use super::Dispatcher;
use crate::lanes::NOWHERE;
use testudo_crypto::{Job, KeyId};
use testudo_packet::{DropReason, Pool};

impl Dispatcher {
    /// Merges the chains of jobs whose engine does not take any, or has behind it none that does and could do
    /// what it fails at. Those that no buffer is long enough for are dropped.
    #[cold]
    pub(crate) fn merge_chains(&mut self, jobs: &mut Vec<Job>, pool: &mut Pool) {
        jobs.retain_mut(|job| {
            if !job.buffer.is_chain() || self.takes_chain(job) {
                return true;
            }
            match pool.linearise(std::mem::take(&mut job.buffer)) {
                Ok(whole) => {
                    job.buffer = whole;
                    true
                }
                Err(chain) => {
                    pool.discard(chain, DropReason::PoolEmpty);
                    false
                }
            }
        });
    }

    fn takes_chain(&self, job: &Job) -> bool {
        let Some(lane) = self.lanes.of(job) else { return false };
        let Some(suite) = self.suites.suite(lane.suite_rank) else { return false };
        let last = self.placement.len().wrapping_sub(1);
        if lane.first == NOWHERE && self.live.is_some() {
            return self.placement.takes_chains(last, suite);
        }
        [lane.first.0 as usize, last].into_iter().all(|engine| self.placement.takes_chains(engine, suite))
    }

    /// The next engine for a job over a chain, from `from` on, that takes these.
    #[cold]
    pub(super) fn next_for_chain(&mut self, job: &Job, mut from: usize) -> Option<(usize, KeyId)> {
        let lane = self.lanes.of_ticket(job)?;
        let (key, suite) = (lane.key, self.suites.suite(lane.suite_rank)?);
        loop {
            let (engine, id) = self.placement.engine_for(key, from)?;
            if self.placement.takes_chains(engine, suite) {
                return Some((engine, id));
            }
            from = engine + 1;
        }
    }
}
