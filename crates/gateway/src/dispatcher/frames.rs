//! Jobs that leave their [frames](testudo_crypto::frame) to an engine: they do where the first engine of
//! their SA writes them, and are completed before any other engine gets them.
//! All jobs go to engines through [`offer`](Dispatcher::offer), which asks this first.

use super::Dispatcher;
use testudo_crypto::{Direction, Job, KeyId, Suite, frame};
use testudo_ipsec::SaRef;

impl Dispatcher {
    /// Whether jobs of an SA towards a peer may leave their frames to its engine; from now on those of others
    /// are looked at. Where each job is decided of they may not: mostly it would be done in software.
    pub(crate) fn may_leave_frames(&mut self, outbound: SaRef, suite: Suite) -> bool {
        let first = self.lanes.get_mut(Direction::Seal, outbound).map(|lane| lane.first.0 as usize);
        let may = first.is_some_and(|engine| self.placement.writes_frames(engine, suite));
        self.leaves_frames |= may;
        may
    }

    /// Whether any SA leaves its frames to an engine, or did.
    pub(crate) fn leaves_frames(&self) -> bool {
        self.leaves_frames
    }

    /// Writes the frames that are missing, unless the engine does. A job whose frame cannot be written,
    /// because its SA is gone or it was spoilt, gets no key, and thereby ends as a fault.
    #[cold]
    #[inline(never)]
    pub(super) fn complete_frames(&mut self, engine: usize, jobs: &mut [Job]) {
        for job in jobs.iter_mut().filter(|job| job.unwritten.trailer().is_some()) {
            let lane = self.lanes.of(job);
            let of_sa = lane.and_then(|lane| Some((self.suites.suite(lane.suite_rank)?, lane.key)));
            let is_ready = of_sa.is_some_and(|(suite, key)| {
                let completed = |frame| frame::complete(job, frame, suite);
                self.placement.writes_frames(engine, suite)
                    || self.placement.frame_of(key).is_some_and(completed)
            });
            if !is_ready {
                job.key = KeyId::NONE;
            }
        }
    }
}
