//! Which engines a worker gets: the best that start and pass their self-test, and the portable one last.

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

/// Starts and tests the candidates in their order. Those that pass come first; the portable engine, tested too, is always last.
///
/// # Errors
/// [`NoEngine`] if the portable engine fails its self-test.
pub fn choose_engines(candidates: &[Candidate]) -> Result<Choice, NoEngine> {
    let mut engines = Vec::new();
    let mut reports = Vec::new();
    for candidate in candidates {
        match start(candidate) {
            Ok(engine) => {
                reports.push(EngineReport {
                    name: candidate.name.into(),
                    in_use: true,
                    detail: engine.description(),
                });
                engines.push(engine);
            }
            Err(e) => {
                reports.push(EngineReport {
                    name: candidate.name.into(),
                    in_use: false,
                    detail: e.to_string(),
                });
            }
        }
    }
    let mut portable = PortableEngine::new();
    self_test(&mut portable).map_err(NoEngine)?;
    reports.push(EngineReport { name: portable.name().into(), in_use: true, detail: portable.description() });
    engines.push(Box::new(portable));
    Ok((engines, reports))
}

fn start(candidate: &Candidate) -> Result<Box<dyn Engine>, EngineError> {
    let mut engine = (candidate.open)()?;
    self_test(engine.as_mut())?;
    Ok(engine)
}
