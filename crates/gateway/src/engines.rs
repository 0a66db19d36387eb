//! Which engines a worker gets: the best that start and pass their self-test, and the portable one last.

use crate::speed::fastest_first;
use testudo_crypto::{Engine, EngineError, PortableEngine, self_test};

/// Starts an engine, or says why it cannot be had.
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

/// In what order engines are asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EngineOrder {
    /// As the candidates stand.
    AsNamed,
    /// The fastest first; what is no faster than what stands before it stays behind that.
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
}

/// Not even the portable engine passed its self-test: this machine or this build cannot be trusted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("no engine passed its self-test: {0}")]
pub struct NoEngine(EngineError);

/// Starts and tests the candidates. Those that pass come first, in `order`; the portable engine, tested too, is always last.
/// The reports are in the same order, those of engines that cannot be had behind the others.
///
/// # Errors
/// [`NoEngine`] if the portable engine fails its self-test.
pub fn choose_engines(candidates: &[Candidate], order: EngineOrder) -> Result<Choice, NoEngine> {
    let (mut engines, mut refused) = (Vec::new(), Vec::new());
    for candidate in candidates {
        match start(candidate) {
            Ok(engine) => engines.push(engine),
            Err(e) => refused.push(report(candidate.name, false, e.to_string())),
        }
    }
    if order == EngineOrder::FastestFirst {
        fastest_first(&mut engines);
    }
    let mut portable = PortableEngine::new();
    self_test(&mut portable).map_err(NoEngine)?;
    engines.push(Box::new(portable));
    let mut reports: Vec<_> = engines.iter().map(|e| report(e.name(), true, e.description())).collect();
    reports.append(&mut refused);
    Ok((engines, reports))
}

fn report(name: &str, in_use: bool, detail: String) -> EngineReport {
    EngineReport { name: name.into(), in_use, detail }
}

fn start(candidate: &Candidate) -> Result<Box<dyn Engine>, EngineError> {
    let mut engine = (candidate.open)()?;
    self_test(engine.as_mut())?;
    Ok(engine)
}
