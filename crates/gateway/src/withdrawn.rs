//! Engines that were taken out of service, and why.

use crate::placement::MAX_ENGINES;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

/// Why an engine was taken out of service, until the gateway is restarted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum WithdrawalReason {
    /// It kept packets for more than a second; or for more than a sixteenth of one while most buffers of the
    /// pool were with engines or waited for those that are. Or it kept, for a second, what it was measured
    /// with.
    KeptPackets,
    /// It [said so](testudo_crypto::Engine::is_out_of_service) after it had failed at jobs, and holds none
    /// any more.
    Failed,
}

/// An engine that was taken out of service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Withdrawal {
    /// Name of the engine.
    pub engine: &'static str,
    /// Packets that it held; they are lost.
    pub packets: usize,
    /// Why.
    pub reason: WithdrawalReason,
}

/// What an engine's byte says.
const IN_SERVICE: u8 = 0;
const KEPT_PACKETS: u8 = 1;
const FAILED: u8 = 2;

/// Which engines were taken out of service. The worker alone changes it; other threads read it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Withdrawn(Arc<[AtomicU8; MAX_ENGINES]>);

impl Withdrawn {
    /// Nothing else depends on it: a thread that reads the old byte expands a key in vain.
    pub(crate) fn set(&self, engine: usize, reason: WithdrawalReason) {
        let byte = match reason {
            WithdrawalReason::KeptPackets => KEPT_PACKETS,
            WithdrawalReason::Failed => FAILED,
        };
        if let Some(withdrawn) = self.0.get(engine) {
            withdrawn.store(byte, Ordering::Relaxed);
        }
    }

    pub(crate) fn get(&self, engine: usize) -> bool {
        self.0.get(engine).is_some_and(|withdrawn| withdrawn.load(Ordering::Relaxed) != IN_SERVICE)
    }

    /// Why an engine is out of service; `None` while it is not.
    pub(crate) fn reason(&self, engine: usize) -> Option<WithdrawalReason> {
        match self.0.get(engine)?.load(Ordering::Relaxed) {
            IN_SERVICE => None,
            KEPT_PACKETS => Some(WithdrawalReason::KeptPackets),
            _ => Some(WithdrawalReason::Failed),
        }
    }
}
