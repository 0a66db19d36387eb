//! Several devices as one engine.

use crate::NAME;
use crate::engine::GpuEngine;
use crate::under_way::{State, UnderWay};
use std::sync::Arc;
use std::time::Duration;
use testudo_crypto::{
    Capability, Direction, Engine, EngineError, Job, KeyId, KeyMaterial, MOST_FAULTS, Profile, Reclaim, Suite,
};

/// How long the first job of a batch may wait for its end, if other devices could do it: less than the
/// gateway gives the whole engine in need (62.5 ms), with the time between two looks, too.
const PATIENCE: Duration = Duration::from_millis(50);
/// And so many times the bound on latency at least: two chunks of that length may be under way. With a bound
/// of more than 20.8 ms that is longer than the gateway waits in need: the jobs have been taken back by then.
const BOUNDS: u32 = 3;

/// How long that is with this bound on latency.
pub(crate) fn patience(latency: Duration) -> Duration {
    PATIENCE.max(latency.saturating_mul(BOUNDS))
}

/// One engine over several devices. Each has every key, under the same id in each: they see the same keys
/// come and go. A batch is one device's; the device that has the least to do gets the next jobs. One that
/// fails ends what it has as faults and gets no more, and the others go on.
pub(crate) struct SeveralGpus {
    engines: Vec<GpuEngine>,
    /// The same as `engines`, as places, those with the least to do first; refilled for each submission.
    order: Vec<usize>,
    /// The engine that is polled first, so that none waits for ever.
    turn: usize,
}

impl SeveralGpus {
    /// `engines`: at least one, none of which has a key.
    pub(crate) fn new(engines: Vec<GpuEngine>) -> Self {
        let order = Vec::with_capacity(engines.len());
        Self { engines, order, turn: 0 }
    }

    /// What each has.
    #[cfg(test)]
    pub(crate) fn each_in_flight(&self) -> Vec<usize> {
        self.engines.iter().map(Engine::in_flight).collect()
    }

    /// Orders those that are in service; if none is, the first, which ends all jobs as faults.
    fn arrange(&mut self) {
        self.order.clear();
        let engines = &self.engines;
        let places = engines.iter().enumerate();
        self.order.extend(places.filter(|(_, engine)| !engine.is_broken()).map(|(place, _)| place));
        self.order.sort_unstable_by_key(|place| engines.get(*place).map_or(0, Engine::in_flight));
        if self.order.is_empty() {
            self.order.push(0);
        }
    }
}

/// The jobs of all devices. A call of the driver that does not return keeps their thread from all of them.
struct All(Vec<Arc<UnderWay>>);

impl Reclaim for All {
    /// Those of a device that is at them just now stay, as they would with another engine.
    fn reclaim(&self, jobs: &mut Vec<Job>) -> bool {
        let busy = self.0.iter().filter(|device| !device.reclaim(jobs)).count();
        busy == 0
    }

    fn rests(&self) -> bool {
        let is_any = |state| self.0.iter().any(|device| device.is(state));
        is_any(State::Rests) && !is_any(State::InService)
    }
}

impl Engine for SeveralGpus {
    fn name(&self) -> &'static str {
        NAME
    }

    fn description(&self) -> String {
        let each: Vec<_> = self.engines.iter().map(Engine::description).collect();
        each.join("; ")
    }

    fn capability(&self, suite: Suite) -> Option<Capability> {
        self.engines.first()?.capability(suite)
    }

    fn install(&mut self, key: &KeyMaterial, direction: Direction) -> Result<KeyId, EngineError> {
        let mut installed: Option<KeyId> = None;
        let mut refused = None;
        for engine in self.engines.iter_mut().filter(|engine| !engine.is_broken()) {
            match (engine.install(key, direction), installed) {
                (Ok(id), None) => installed = Some(id),
                (Ok(id), Some(first)) if id == first => {}
                (Ok(id), Some(_)) => {
                    // Its keys are not those of the others: it must not be given their jobs.
                    engine.remove(id);
                    engine.break_down("its keys are not those of the other devices".to_owned());
                }
                // One that has failed with this key is out of service; if it has not, the key is at fault,
                // and the first has refused it already.
                (Err(error), _) => refused = Some(error),
            }
        }
        let refused = refused.unwrap_or(EngineError::Full { engine: NAME, limit: 0 });
        installed.ok_or(refused)
    }

    fn remove(&mut self, key: KeyId) {
        self.engines.iter_mut().for_each(|engine| engine.remove(key));
    }

    fn submit(&mut self, jobs: &mut [Job]) -> usize {
        self.arrange();
        let mut taken = 0;
        for place in &self.order {
            if let (Some(engine), Some(left)) = (self.engines.get_mut(*place), jobs.get_mut(taken..)) {
                taken += engine.submit(left);
            }
        }
        taken
    }

    fn is_resting(&mut self) -> bool {
        self.engines.iter_mut().for_each(GpuEngine::see_to_rest);
        false
    }

    fn is_out_of_service(&self) -> bool {
        self.engines.iter().all(GpuEngine::is_broken)
    }

    fn flush(&mut self) {
        self.engines.iter_mut().for_each(Engine::flush);
    }

    fn profile(&self, suite: Suite) -> Profile {
        let one = self.engines.first().map_or_else(Profile::default, |engine| engine.profile(suite));
        let in_service = self.engines.iter().filter(|engine| !engine.is_broken()).count();
        Profile { under_way: one.under_way * in_service.max(1), ..one }
    }

    fn poll(&mut self, done: &mut Vec<Job>, max: usize) {
        // All calls of drivers come before the first job is in hand.
        self.engines.iter_mut().for_each(GpuEngine::attend);
        let (most, mut faults) = (done.len().saturating_add(max), MOST_FAULTS);
        let engines = self.engines.len().max(1);
        self.turn = (self.turn + 1) % engines;
        for place in 0..engines {
            if let Some(engine) = self.engines.get_mut((self.turn + place) % engines) {
                engine.give_back(done, most.saturating_sub(done.len()), &mut faults);
            }
        }
    }

    fn reclaims(&self) -> Option<Arc<dyn Reclaim>> {
        let jobs = self.engines.iter().map(GpuEngine::under_way).collect::<Option<Vec<_>>>()?;
        Some(Arc::new(All(jobs)))
    }

    fn in_flight(&self) -> usize {
        self.engines.iter().map(Engine::in_flight).sum()
    }
}
