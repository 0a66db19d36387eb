//! How many buffers each worker's pool has, where `buffers` of `[gateway]` does not say.
//!
//! An engine that gathers packets has half of the pool at most (`testudo_gateway`), so that others go on if
//! it stalls. Of a GPU that half is three chunks: two under way, and one that gathers meanwhile.

use super::engine::GPU;
use super::model::{Configuration, Gateway};
use testudo_gateway::SchedulerSettings;
use testudo_packet::{HEADROOM_BYTES, TAILROOM_BYTES};

/// Without an engine that gathers packets.
const USUAL: usize = 4096;
/// Chunks that a pool has room for, with an engine that gathers packets, and buffers at most unless told.
const CHUNKS: usize = 6;
const MOST: usize = 131_072;

/// Whether one of the engines gathers packets.
fn gathers(engines: &[String]) -> bool {
    engines.iter().any(|engine| engine == GPU)
}

/// Buffers with which whole chunks go to an engine that gathers packets.
fn for_chunks(scheduler: &SchedulerSettings) -> usize {
    scheduler.chunk.saturating_mul(CHUNKS).clamp(USUAL, MOST)
}

/// With the buffers that there are where nothing is written.
pub(super) fn complete(gateway: Gateway, scheduler: &SchedulerSettings) -> Gateway {
    if gateway.buffers_named {
        return gateway;
    }
    let buffers = if gathers(&gateway.engines) { for_chunks(scheduler) } else { USUAL };
    Gateway { buffers, ..gateway }
}

impl Configuration {
    /// Why each worker has more buffers than usual although nobody said so, and what memory that may be: a
    /// line for `check`.
    #[must_use]
    pub fn buffers_note(&self) -> Option<String> {
        let Gateway { buffers, buffers_named, .. } = self.gateway;
        if buffers_named || buffers == USUAL {
            return None;
        }
        let packet_bytes = usize::from(self.unprotected.mtu.max(self.protected.mtu));
        let frame_bytes = HEADROOM_BYTES + packet_bytes + TAILROOM_BYTES;
        let mib = buffers.saturating_mul(frame_bytes) >> 20;
        Some(format!(
            "buffers: {buffers} for each worker, {CHUNKS} times `chunk`, so that whole chunks go to the engine {GPU}; \
             some {mib} MiB of frames of usual length for each, if all are used: `buffers` in [gateway] says \
             another number"
        ))
    }

    /// What is written does not do for whole chunks.
    pub(super) fn buffers_warning(&self) -> Option<String> {
        let (buffers, chunk) = (self.gateway.buffers, self.scheduler.chunk);
        let needed = chunk.saturating_mul(CHUNKS);
        if !gathers(&self.gateway.engines) || buffers >= needed {
            return None;
        }
        Some(format!(
            "buffers = {buffers}: the engine {GPU} has half of them at most, which is less than two chunks of {chunk} \
             under way and one that gathers: of one GPU {needed} are enough"
        ))
    }
}
