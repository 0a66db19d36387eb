//! Which engines a worker gets: the best that start and pass their self-test, and the portable one last.

use crate::speed::fastest_first;
use testudo_crypto::{Engine, EngineError, PortableEngine, Suite, self_test};

/// Starts an engine, or says why it is not available.
pub type Opener = Box<dyn Fn() -> Result<Box<dyn Engine>, EngineError> + Send>;

/// Engines in the order of placement, and what became of each candidate.
pub type Choice = (Vec<Box<dyn Engine>>, Vec<EngineReport>);

/// An engine that may be used, if it starts.
pub struct Candidate {
    /// Its name in configuration.
    pub name: &'static str,
    /// Starts it.
    pub open: Opener,
}

/// The order in which jobs are submitted to engines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EngineOrder {
    /// In the order of the candidates.
    AsNamed,
    /// The fastest first; an engine that is not clearly faster than those before it stays after them.
    FastestFirst,
}

/// What became of an engine at start-up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EngineReport {
    /// Its name.
    pub name: String,
    /// Whether it is in use.
    pub in_use: bool,
    /// Its description, or why it is not in use.
    pub detail: String,
    /// The suites that it does.
    pub suites: Vec<Suite>,
}

/// Not even the portable engine passed its self-test: neither this machine nor this build can be trusted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("no engine passed its self-test: {0}")]
pub struct NoEngine(EngineError);

/// Starts and tests the candidates. Those that pass come first, in `order`; the portable engine, which is
/// tested too, is always last. The reports are in the same order, followed by those of engines that are not
/// available.
///
/// # Errors
/// [`NoEngine`] if the portable engine fails its self-test.
pub fn choose_engines(candidates: &[Candidate], order: EngineOrder) -> Result<Choice, NoEngine> {
    let (mut engines, mut refused) = (Vec::new(), Vec::new());
    for candidate in candidates {
        match start(candidate) {
            Ok(engine) => engines.push(engine),
            Err(e) => refused.push(EngineReport::refused(candidate.name, &e)),
        }
    }
    if order == EngineOrder::FastestFirst {
        fastest_first(&mut engines);
    }
    let mut portable = PortableEngine::new();
    self_test(&mut portable).map_err(NoEngine)?;
    engines.push(Box::new(portable));
    let mut reports: Vec<_> = engines.iter().map(|e| EngineReport::of(e.as_ref())).collect();
    reports.append(&mut refused);
    Ok((engines, reports))
}

/// The same engines for another worker: those in use of the reports, in their order.
///
/// # Errors
/// [`EngineError`] of one that starts no second time.
pub fn same_engines(
    candidates: &[Candidate],
    reports: &[EngineReport],
) -> Result<Vec<Box<dyn Engine>>, EngineError> {
    let mut engines: Vec<Box<dyn Engine>> = Vec::new();
    for report in reports.iter().filter(|report| report.in_use) {
        if let Some(candidate) = candidates.iter().find(|candidate| report.is_of(candidate.name)) {
            engines.push(start(candidate)?);
        }
    }
    engines.push(Box::new(PortableEngine::new()));
    Ok(engines)
}

impl EngineReport {
    /// Of an engine that is in use.
    fn of(engine: &dyn Engine) -> Self {
        let suites = Suite::every().filter(|suite| engine.capability(*suite).is_some());
        Self {
            name: engine.name().into(),
            in_use: true,
            detail: engine.description(),
            suites: suites.collect(),
        }
    }

    /// Whether it is of the engine that a configuration calls so: one on a device has the device's name, too.
    #[must_use]
    pub fn is_of(&self, name: &str) -> bool {
        self.name.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with(" ("))
    }

    /// The suites that it does, by all of their names: where AH has one of its own, by that, too.
    #[must_use]
    pub fn suite_names(&self) -> Vec<String> {
        // VPE's have the names of those of ESP.
        let named = self.suites.iter().filter(|suite| !suite.is_for_vpe());
        let names = named.flat_map(|s| [Some(s.to_string()), s.ah_name().map(str::to_owned)]);
        names.flatten().collect()
    }

    fn refused(name: &str, error: &EngineError) -> Self {
        Self { name: name.into(), in_use: false, detail: error.to_string(), suites: Vec::new() }
    }
}

fn start(candidate: &Candidate) -> Result<Box<dyn Engine>, EngineError> {
    let mut engine = (candidate.open)()?;
    self_test(engine.as_mut())?;
    Ok(engine)
}
