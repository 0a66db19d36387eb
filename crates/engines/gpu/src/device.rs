//! What runs the kernels.

use crate::work::RawKey;

/// Words of a bin and of a job in the plan, and of a key's slot, as in `portable.cl`.
pub(crate) const BIN_WORDS: usize = 4;
pub(crate) const JOB_WORDS: usize = 12;
pub(crate) const KEY_WORDS: usize = 160;
/// Bytes of the digest, behind which a job's mark is.
pub(crate) const DIGEST_BYTES: usize = 64;
/// Bytes behind each packet: digest and mark.
pub(crate) const RESULT_BYTES: usize = DIGEST_BYTES + 4;

/// What memory is taken at start.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sizes {
    pub batches: usize,
    pub batch_jobs: usize,
    pub arena_bytes: usize,
    pub keys: usize,
}

impl Sizes {
    /// Each job may be alone in its bin.
    pub(crate) const fn plan_words(&self) -> usize {
        self.batch_jobs * (BIN_WORDS + JOB_WORDS)
    }
}

/// A batch that is ready.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Launch {
    pub bins: usize,
    /// As much of plan and arena as is in use.
    pub plan_words: usize,
    pub arena_bytes: usize,
}

/// Runs the kernels in the order in which it is called. No call waits. After an error it is not called again.
pub(crate) trait Device: Send {
    /// What it is, for people.
    fn description(&self) -> String;

    /// Lanes of a work-group.
    fn lanes(&self) -> usize;

    /// Plan and arena of a batch, to be written before [`launch`](Self::launch) and read when it
    /// [is done](Self::is_done); `None` while the device has them.
    fn memory(&mut self, batch: usize) -> Option<(&mut [u32], &mut [u8])>;

    /// Expands a key into its slot.
    fn expand(&mut self, slot: u32, kind: u32, key: &RawKey) -> Result<(), String>;

    /// Zeroes a key's slot.
    fn wipe(&mut self, slot: u32) -> Result<(), String>;

    /// Starts a batch.
    fn launch(&mut self, batch: usize, launch: Launch) -> Result<(), String>;

    /// Whether a batch that was started has ended. Its memory is there again.
    fn is_done(&mut self, batch: usize) -> Result<bool, String>;
}
