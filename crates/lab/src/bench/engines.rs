//! The engines that can be measured here.

use testudo_crypto::{Engine, PortableEngine, Suite, self_test};
use testudo_gateway::Candidate;

use super::case::Case;
use super::error::{BenchError, Wrong};
use super::tunnels::OVERHEAD_BYTES;

/// An engine that starts on this machine and has passed its self-test.
pub(super) struct Available {
    candidate: Candidate,
    /// One that is asked what it can do, and that the floor is measured on.
    pub(super) instance: Box<dyn Engine>,
}

impl Available {
    pub(super) fn name(&self) -> &'static str {
        self.candidate.name
    }

    /// A fresh one.
    pub(super) fn open(&self) -> Result<Box<dyn Engine>, Wrong> {
        (self.candidate.open)().map_err(|e| e.to_string())
    }

    /// Why it cannot do `case`; `None` if it can.
    pub(super) fn refusal(&self, case: &Case) -> Option<String> {
        case.suites.all().iter().find_map(|&suite| self.refusal_of(suite, case))
    }

    fn refusal_of(&self, suite: Suite, case: &Case) -> Option<String> {
        let Some(capability) = self.instance.capability(suite) else {
            return Some(format!("{} does not do {suite}", self.name()));
        };
        if capability.max_text_bytes < case.size.longest_bytes() + OVERHEAD_BYTES {
            return Some(format!("{} does no packets of {} bytes", self.name(), case.size));
        }
        // Each SA has one of the other direction beside it.
        let keys = 2 * case.sas as usize;
        let text = || {
            format!("{} holds {} keys, and {} SAs need {keys}", self.name(), capability.max_keys, case.sas)
        };
        (capability.max_keys < keys).then(text)
    }
}

/// Engines in the order in which they are measured, and what to say about those that are not there.
pub(super) struct Engines {
    pub(super) available: Vec<Available>,
    pub(super) missing: Vec<String>,
}

impl Engines {
    /// Those of `candidates` that start, and the portable one; every one that `wanted` names must be there.
    pub(super) fn start(candidates: Vec<Candidate>, wanted: &[String]) -> Result<Self, BenchError> {
        let portable = Candidate { name: "portable", open: Box::new(|| Ok(Box::new(PortableEngine::new()))) };
        let mut engines = Self { available: Vec::new(), missing: Vec::new() };
        let candidates: Vec<_> = candidates.into_iter().chain([portable]).collect();
        if let Some(unknown) = wanted.iter().find(|name| candidates.iter().all(|c| c.name != **name)) {
            let names: Vec<_> = candidates.iter().map(|c| c.name).collect();
            let text = format!("there is no engine \"{unknown}\"; the engines are {}", names.join(", "));
            return Err(BenchError::Usage(text));
        }
        for candidate in candidates {
            let is_wanted = wanted.iter().any(|name| name == candidate.name);
            match start(&candidate) {
                Ok(instance) => engines.available.push(Available { candidate, instance }),
                Err(error) if is_wanted => return Err(BenchError::Engine(error)),
                Err(error) => engines.missing.push(error),
            }
        }
        Ok(engines)
    }

    /// The engine that judges what engine `subject` has done: another implementation, if there is one that
    /// can.
    pub(super) fn judge(&self, case: &Case) -> &Available {
        let others = self.available.iter().enumerate().rev().filter(|(place, _)| *place != case.engine);
        let able = others.map(|(_, engine)| engine).find(|engine| engine.refusal(case).is_none());
        able.unwrap_or(&self.available[case.engine])
    }
}

fn start(candidate: &Candidate) -> Result<Box<dyn Engine>, Wrong> {
    let mut engine = (candidate.open)().map_err(|e| e.to_string())?;
    self_test(engine.as_mut()).map_err(|e| e.to_string())?;
    Ok(engine)
}
