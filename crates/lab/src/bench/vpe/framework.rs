//! What the framework costs a gateway's worker: with the gateway's dispatcher, an engine that ends jobs
//! inside `submit` beside one that gives each back by `poll`.
//!
//! Neither does any cryptography. What a packet costs more with the second one is what is done for a job that
//! ends late: its ticket, its place in the order of its SA, the ring that it waits in, hand-over, poll and
//! release. (What a ring between cores costs beside a direct call, without a gateway, is in `handing_over`.)

use std::time::Duration;

use testudo_crypto::{
    Capability, Direction, Engine, EngineError, Job, JobStatus, KeyId, KeyMaterial, PortableEngine, Suite,
};
use testudo_port_memory::LoopPort;

use super::threads;
use crate::bench::case::{Case, Way};
use crate::bench::error::Wrong;
use crate::bench::load;
use crate::bench::subject::Subject;
use crate::traffic::median;

/// Parts of a measurement, of which the median counts: other programs are at work in some.
const PARTS: u32 = 8;

/// In cycles of the time stamp counter: all that a worker spends for a packet that goes out, cryptography
/// aside.
#[derive(Debug, Clone, Copy)]
pub(super) struct Framework {
    /// With an engine that ends jobs inside `submit`.
    pub(super) in_place: f64,
    /// With one that gives them back by `poll`.
    pub(super) late: f64,
}

impl Framework {
    /// Measured on the first of these processors, in turns, for about so long.
    pub(super) fn measure(case: Case, processors: &[usize], duration: Duration) -> Result<Self, Wrong> {
        let processor = processors.first().copied();
        let on_worker = move || -> Result<Self, Wrong> {
            processor.into_iter().for_each(threads::bind);
            let feed = load::packets(case.suites, case.size, case.sas).map_err(|e| e.to_string())?;
            let gateway = |is_late: bool| {
                let port = LoopPort::new("load", feed.clone());
                Subject::new(&case, Way::Outbound, Box::new(Nothing::new(is_late)), port)
            };
            let mut gateways = [gateway(false)?, gateway(true)?];
            let mut found = [Vec::new(), Vec::new()];
            for part in 0..=PARTS {
                for (gateway, found) in gateways.iter_mut().zip(&mut found) {
                    let run = gateway.run_for(duration / (2 * PARTS))?;
                    // The first one warms up.
                    if part > 0 {
                        found.push(run.ticks as f64 / run.packets.max(1) as f64);
                    }
                }
            }
            for gateway in &mut gateways {
                gateway.settle()?;
                gateway.check_books()?;
            }
            let [in_place, late] = found.map(|parts| median(&parts).unwrap_or_default());
            Ok(Self { in_place, late })
        };
        let thread = std::thread::spawn(on_worker);
        thread.join().unwrap_or_else(|_| Err("a gateway has panicked".to_owned()))
    }
}

/// An engine that leaves packets as they are.
struct Nothing {
    is_late: bool,
    /// It says what can be done.
    portable: PortableEngine,
    keys: u32,
    taken: Vec<Job>,
}

impl Nothing {
    fn new(is_late: bool) -> Self {
        Self { is_late, portable: PortableEngine::new(), keys: 0, taken: Vec::new() }
    }
}

impl Engine for Nothing {
    fn name(&self) -> &'static str {
        "nothing"
    }

    fn description(&self) -> String {
        "no cryptography, for measurements".to_owned()
    }

    fn capability(&self, suite: Suite) -> Option<Capability> {
        self.portable.capability(suite)
    }

    fn install(&mut self, _: &KeyMaterial, _: Direction) -> Result<KeyId, EngineError> {
        self.keys += 1;
        Ok(KeyId(self.keys))
    }

    fn remove(&mut self, _: KeyId) {}

    fn is_synchronous(&self) -> bool {
        !self.is_late
    }

    fn submit(&mut self, jobs: &mut [Job]) -> usize {
        match self.is_late {
            true => self.taken.extend(jobs.iter_mut().map(Job::take)),
            false => jobs.iter_mut().for_each(|job| job.status = JobStatus::Done),
        }
        jobs.len()
    }

    fn poll(&mut self, done: &mut Vec<Job>, max: usize) {
        let count = max.min(self.taken.len());
        done.extend(self.taken.drain(..count).map(|job| Job { status: JobStatus::Done, ..job }));
    }

    fn in_flight(&self) -> usize {
        self.taken.len()
    }
}

#[cfg(test)]
mod tests {
    use super::super::case;
    use super::*;
    use crate::bench::case::Carrier;

    /// How much either takes is the machine's matter.
    #[test]
    fn a_gateway_is_timed_with_jobs_that_end_in_place_and_with_jobs_that_are_given_back() {
        let case = case(0, Suite::AES128GCM16, Carrier::Esp, Way::Outbound, 64);
        let processors = threads::processors();
        let found = Framework::measure(case, &processors, Duration::from_millis(4)).unwrap();
        assert!(found.in_place > 0.0 && found.late > 0.0, "{found:?}");
    }
}
