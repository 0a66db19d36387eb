//! The engine half: it leaves packets to the device, and takes the device's word for those it opened.

use crate::nic::Nic;
use testudo_crypto::{
    Capability, Direction, Engine, EngineError, Job, KeyId, KeyMaterial, Offload, OffloadReport,
    OffloadState, SaFacts, Suite,
};
use testudo_packet::Mark;

const NAME: &str = "nic";

/// The engine of a device that does cryptography as packets pass. See the [crate](crate).
pub struct InlineEngine {
    nic: Nic,
}

impl InlineEngine {
    pub(crate) fn new(nic: Nic) -> Self {
        Self { nic }
    }
}

impl Engine for InlineEngine {
    fn name(&self) -> &'static str {
        NAME
    }

    fn description(&self) -> String {
        let report = self.nic.report();
        format!("{}, {} sessions to seal and {} to open", report.device, report.sealing.1, report.opening.1)
    }

    /// None: it does what was admitted.
    fn capability(&self, _: Suite) -> Option<Capability> {
        None
    }

    fn install(&mut self, key: &KeyMaterial, _: Direction) -> Result<KeyId, EngineError> {
        Err(EngineError::Unsupported { engine: NAME, suite: key.suite() })
    }

    fn remove(&mut self, key: KeyId) {
        self.nic.lock().remove(key);
    }

    fn submit(&mut self, jobs: &mut [Job]) -> usize {
        let mut shared = self.nic.lock();
        shared.notice_reset();
        for job in &mut *jobs {
            job.status = shared.run(job);
        }
        jobs.len()
    }

    fn is_synchronous(&self) -> bool {
        true
    }

    fn offload(&mut self) -> Option<&mut dyn Offload> {
        Some(self)
    }
}

impl Offload for InlineEngine {
    fn check(&self, sa: &SaFacts) -> Result<(), OffloadState> {
        let shared = self.nic.lock();
        if shared.is_in_service() { shared.limits.check(sa) } else { Err(OffloadState::OutOfService) }
    }

    fn room(&self, direction: Direction) -> usize {
        self.nic.lock().room(direction)
    }

    fn admit(
        &mut self,
        direction: Direction,
        key: &KeyMaterial,
        sa: &SaFacts,
    ) -> Result<KeyId, OffloadState> {
        self.nic.lock().admit(direction, key, sa)
    }

    fn close(&mut self, key: KeyId) {
        self.nic.lock().close(key);
    }

    fn is_drained(&self, key: KeyId) -> bool {
        self.nic.lock().is_drained(key)
    }

    fn state(&self, key: KeyId) -> OffloadState {
        self.nic.lock().state(key)
    }

    fn look_after(&mut self) {
        let mut shared = self.nic.lock();
        shared.notice_reset();
        shared.end_lingering();
    }

    fn forget(&mut self, marks: &[Mark]) {
        self.nic.forget(marks);
    }

    fn report(&self) -> OffloadReport {
        self.nic.report()
    }
}
