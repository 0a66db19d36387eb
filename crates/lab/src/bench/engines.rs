//! The engines that can be measured on this machine.

use testudo_crypto::{Engine, EngineError, Job, JobStatus, PortableEngine, Suite, self_test};
use testudo_gateway::{Candidate, WithdrawalReason, Worker};

use super::case::Case;
use super::device::{CRYPTODEV, Device, GPU};
use super::error::{BenchError, Wrong};
use super::tunnels::OVERHEAD_BYTES;

/// How many of these jobs an engine has done: not those that it has failed at, or still has.
pub(super) fn done(jobs: &[Job]) -> u64 {
    jobs.iter().filter(|job| job.status == JobStatus::Done).count() as u64
}

/// An error that names an engine which went out of service since this was asked last: what the next one does
/// of its packets from then on is no figure of it.
pub(super) fn all_in_service(worker: &mut Worker) -> Result<(), Wrong> {
    let Some(gone) = worker.take_withdrawals().into_iter().next() else { return Ok(()) };
    let why = match gone.reason {
        WithdrawalReason::KeptPackets => "it kept packets",
        WithdrawalReason::Failed => "it failed",
    };
    Err(format!("{} went out of service, since {why}: figures would be the next engine's", gone.engine))
}

/// Engines on devices that somebody has to choose.
const ON_REQUEST: [&str; 2] = [CRYPTODEV, GPU];

/// An engine that starts on this machine and has passed its self-test.
pub(super) struct Available {
    candidate: Candidate,
    /// An instance for capability queries and for the floor.
    pub(super) instance: Box<dyn Engine>,
}

impl Available {
    pub(super) fn name(&self) -> &'static str {
        self.candidate.name
    }

    /// Where its figures come from.
    pub(super) fn device(&self) -> Device {
        Device::of(self.name(), &self.instance.description())
    }

    /// Why it takes nothing off the processor of the worker that asks it, if it may.
    pub(super) fn why_on_the_processor(&self) -> Option<&'static str> {
        Device::why_on_the_processor(self.name(), &self.instance.description())
    }

    /// A new instance.
    pub(super) fn open(&self) -> Result<Box<dyn Engine>, Wrong> {
        self.opened().map_err(|e| e.to_string())
    }

    /// The same for who passes the error on.
    pub(super) fn opened(&self) -> Result<Box<dyn Engine>, EngineError> {
        (self.candidate.open)()
    }

    /// Why the engine cannot do `case`; `None` if it can.
    pub(super) fn refusal(&self, case: &Case) -> Option<String> {
        case.suites.all().iter().find_map(|&suite| self.refusal_of(suite, case))
    }

    fn refusal_of(&self, suite: Suite, case: &Case) -> Option<String> {
        let Some(carried) = case.carrier.suite(suite) else {
            return Some(format!("{suite} is no suite of VPE"));
        };
        let Some(capability) = self.instance.capability(carried) else {
            return Some(format!("{} does not support {suite} ({})", self.name(), case.carrier.name()));
        };
        if capability.max_text_bytes < case.size.longest_bytes() + OVERHEAD_BYTES {
            return Some(format!("{} does not support packets of {} bytes", self.name(), case.size));
        }
        // Each SA comes with one of the other direction.
        let keys = 2 * case.sas as usize;
        let text = || {
            format!("{} holds {} keys, and {} SAs need {keys}", self.name(), capability.max_keys, case.sas)
        };
        (capability.max_keys < keys).then(text)
    }
}

/// Engines in measurement order, and a message for each one that is missing.
pub(super) struct Engines {
    pub(super) available: Vec<Available>,
    pub(super) missing: Vec<String>,
}

impl Engines {
    /// The engines of `candidates` that start, and the portable one; every engine in `wanted` must start.
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
            if ON_REQUEST.contains(&candidate.name) && !is_wanted {
                continue;
            }
            match start(&candidate) {
                Ok(instance) => engines.available.push(Available { candidate, instance }),
                Err(error) if is_wanted => return Err(BenchError::Engine(error)),
                Err(error) => engines.missing.push(error),
            }
        }
        Ok(engines)
    }

    /// The engine that judges the packets of the measured one: another implementation if one can.
    pub(super) fn judge(&self, case: &Case) -> &Available {
        let others =
            self.available.iter().enumerate().rev().filter(|(index, _)| !case.engines().contains(index));
        let able = others.map(|(_, engine)| engine).find(|engine| engine.refusal(case).is_none());
        // Of several that place jobs among them, the last one: mostly it does none.
        let itself = case.engines().last().copied().unwrap_or(case.engine);
        able.unwrap_or(&self.available[itself])
    }
}

fn start(candidate: &Candidate) -> Result<Box<dyn Engine>, Wrong> {
    let mut engine = (candidate.open)().map_err(|e| e.to_string())?;
    self_test(engine.as_mut()).map_err(|e| e.to_string())?;
    Ok(engine)
}
