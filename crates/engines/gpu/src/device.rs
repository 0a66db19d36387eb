//! What runs the kernels.

use crate::checks::MOST_CHECKS;
use crate::work::RawKey;
use std::time::{Duration, Instant};

/// Words of a bin and of a job in the plan, and of a key's slot, as in `portable.cl`.
pub(crate) const BIN_WORDS: usize = 4;
pub(crate) const JOB_WORDS: usize = 12;
pub(crate) const KEY_WORDS: usize = 448;
/// Bytes of the digest, behind which a job's mark is.
pub(crate) const DIGEST_BYTES: usize = 64;
/// Bytes behind each packet: digest and mark.
pub(crate) const RESULT_BYTES: usize = DIGEST_BYTES + 4;

/// Lanes of a group, and thereby jobs of a bin, at least; a device that prefers more has more.
pub(crate) const MIN_LANES: usize = 32;
/// And at most, as in `portable.cl`.
pub(crate) const MOST_LANES: usize = 128;
/// How long a device may take for its first launch, since drivers finish compiling then.
const FIRST_WAIT: Duration = Duration::from_secs(60);
/// How long a device that is closed may take for what it still has.
pub(crate) const LAST_WAIT: Duration = Duration::from_millis(500);

/// What memory is taken at start.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sizes {
    pub batches: usize,
    pub batch_jobs: usize,
    pub arena_bytes: usize,
    pub keys: usize,
}

impl Sizes {
    /// Each job may be alone in its bin, and each known answer is.
    pub(crate) const fn plan_words(&self) -> usize {
        (self.batch_jobs + MOST_CHECKS) * (BIN_WORDS + JOB_WORDS)
    }

    /// Words of all keys, those of known answers behind the others.
    pub(crate) const fn key_words(&self) -> usize {
        (self.keys + MOST_CHECKS) * KEY_WORDS
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

    /// Whether it is the processor, which then has no time of its own.
    fn is_processor(&self) -> bool {
        false
    }

    /// Lanes of a work-group, at most [`MOST_LANES`].
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

/// Runs each kernel once, so that no packet waits for a compiler: an empty bin, and a key of zeros.
///
/// # Errors
/// The device's, or that it did nothing for a minute.
pub(crate) fn warm_up(device: &mut dyn Device) -> Result<(), String> {
    device.expand(0, 0, &RawKey([0; _]))?;
    let (plan, _) = device.memory(0).ok_or("there is no batch")?;
    plan.fill(0);
    // Of no jobs, one lane each: the last of a bin's words.
    plan.get_mut(BIN_WORDS - 1).map(|parts| *parts = 1).ok_or("there is no plan")?;
    device.launch(0, Launch { bins: 1, plan_words: BIN_WORDS, arena_bytes: 4 })?;
    device.wipe(0)?;
    let start = Instant::now();
    while !device.is_done(0)? {
        if start.elapsed() > FIRST_WAIT {
            return Err(format!("{} did nothing within {FIRST_WAIT:?}", device.description()));
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

/// What a compiler said, in one line of bounded length.
pub(crate) fn in_one_line(log: &str) -> String {
    const MOST: usize = 2000;
    let lines: Vec<_> = log.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    lines.join("; ").chars().take(MOST).collect()
}
