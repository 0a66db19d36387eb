//! A device that does nothing but say that it has: what is left is the processor's part of the work.

use crate::device::{BIN_WORDS, DIGEST_BYTES, Device, JOB_WORDS, Launch, MIN_LANES, Sizes};
use crate::place::{MARK_WORD, RESULT_WORD};
use crate::work::RawKey;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Plan and arena of each batch. What is sealed comes back as it went, with zeros for its ICV, and what is
/// opened fails: known answers refuse it.
pub(crate) struct IdleDevice {
    batches: Vec<(Vec<u32>, Vec<u8>)>,
    /// While this is set no batch ends.
    hangs: Arc<AtomicBool>,
}

impl IdleDevice {
    pub(crate) fn new(sizes: Sizes, hangs: Arc<AtomicBool>) -> Self {
        let memory = |_| (vec![0; sizes.plan_words()], vec![0; sizes.arena_bytes]);
        Self { batches: (0..sizes.batches).map(memory).collect(), hangs }
    }
}

impl Device for IdleDevice {
    fn description(&self) -> String {
        "a device that does nothing, for measurements".to_owned()
    }

    fn lanes(&self) -> usize {
        MIN_LANES
    }

    fn memory(&mut self, batch: usize) -> Option<(&mut [u32], &mut [u8])> {
        let (plan, arena) = self.batches.get_mut(batch)?;
        Some((plan, arena))
    }

    fn expand(&mut self, _: u32, _: u32, _: &RawKey) -> Result<(), String> {
        Ok(())
    }

    fn wipe(&mut self, _: u32) -> Result<(), String> {
        Ok(())
    }

    fn launch(&mut self, batch: usize, launch: Launch) -> Result<(), String> {
        let (plan, arena) = self.batches.get_mut(batch).ok_or("there is no such batch")?;
        mark(plan, arena, launch.bins).ok_or_else(|| "a plan is longer than its memory".to_owned())
    }

    fn is_done(&mut self, _: usize) -> Result<bool, String> {
        Ok(!self.hangs.load(Ordering::Relaxed))
    }
}

/// Marks each job of a plan as done.
fn mark(plan: &[u32], arena: &mut [u8], bins: usize) -> Option<()> {
    let (bins, _) = plan.get(..bins * BIN_WORDS)?.as_chunks::<BIN_WORDS>();
    for [_, jobs_at, count, _] in bins {
        let (jobs, _) = plan.get(*jobs_at as usize..)?.as_chunks::<JOB_WORDS>();
        for job in jobs.get(..*count as usize)? {
            let at = 4 * job[RESULT_WORD] as usize + DIGEST_BYTES;
            let to = arena.get_mut(at..)?.first_chunk_mut::<4>()?;
            *to = job[MARK_WORD].to_le_bytes();
        }
    }
    Some(())
}
