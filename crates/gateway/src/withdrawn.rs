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
    /// It [said so](testudo_crypto::Engine::is_out_of_service) after it had failed at jobs, or when it was
    /// asked, as all are each second, and holds none any more.
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

/// What an engine's byte says. One that is leaving gets nothing any more, and still gives back what it has;
/// behind that are those that are gone.
const IN_SERVICE: u8 = 0;
const LEAVING: u8 = 1;
const KEPT_PACKETS: u8 = 2;
const FAILED: u8 = 3;

/// Which engines were taken out of service. The worker alone changes it; other threads read it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Withdrawn(Arc<[AtomicU8; MAX_ENGINES]>);

impl Withdrawn {
    pub(crate) fn set(&self, engine: usize, reason: WithdrawalReason) {
        let byte = match reason {
            WithdrawalReason::KeptPackets => KEPT_PACKETS,
            WithdrawalReason::Failed => FAILED,
        };
        self.store(engine, byte);
    }

    /// An engine gets nothing any more, and will be gone when it has given back what it has.
    pub(crate) fn set_leaving(&self, engine: usize) {
        self.store(engine, LEAVING);
    }

    /// Nothing else depends on it: a thread that reads the old byte expands a key in vain.
    fn store(&self, engine: usize, byte: u8) {
        if let Some(withdrawn) = self.0.get(engine) {
            withdrawn.store(byte, Ordering::Relaxed);
        }
    }

    /// Whether an engine gets nothing any more: it is leaving or gone.
    pub(crate) fn get(&self, engine: usize) -> bool {
        self.0.get(engine).is_some_and(|withdrawn| withdrawn.load(Ordering::Relaxed) != IN_SERVICE)
    }

    /// Whether an engine was taken out of service for good.
    pub(crate) fn is_gone(&self, engine: usize) -> bool {
        self.0.get(engine).is_some_and(|withdrawn| withdrawn.load(Ordering::Relaxed) > LEAVING)
    }

    /// Why an engine is out of service; `None` while it is not, or still has jobs to give back.
    pub(crate) fn reason(&self, engine: usize) -> Option<WithdrawalReason> {
        match self.0.get(engine)?.load(Ordering::Relaxed) {
            IN_SERVICE | LEAVING => None,
            KEPT_PACKETS => Some(WithdrawalReason::KeptPackets),
            _ => Some(WithdrawalReason::Failed),
        }
    }
}
