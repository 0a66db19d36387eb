//! Reads `threading` and `processors` of `[scheduler]`: which threads packets pass.

use super::engine::{CRYPTODEV, GPU};
use super::gateway::ProtectedDraft;
use super::model::{Gateway, UnprotectedPort};
use super::value;
use super::walk::{Located, Problem, Section, Walker};
use super::workers::MAX_WORKERS;
use testudo_gateway::ThreadingModel;

/// The highest number of a processor.
const MAX_PROCESSOR: u16 = 1023;

/// What leaves the choice of the model to the scheduler.
const AUTO: &str = "auto";

/// `threading` and `processors` of `[scheduler]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Threading {
    /// The threads; `None` for `auto`: the scheduler chooses by what it measures.
    pub model: Option<ThreadingModel>,
    /// Processors that the threads beside the worker are bound to: one for each device's, in the order in
    /// which `engines` names these, then the transmit thread's. The others go where the kernel puts them.
    pub processors: Vec<u16>,
}

impl Default for Threading {
    fn default() -> Self {
        Self { model: Some(ThreadingModel::default()), processors: Vec::new() }
    }
}

impl Threading {
    /// Whether there may be a thread that drives a device.
    #[must_use]
    pub fn may_have_device_thread(&self) -> bool {
        self.model.is_none_or(ThreadingModel::has_device_thread)
    }

    /// Whether an engine is on a device that a thread of its own may drive, by its name in a configuration or
    /// its own one, which may have the device's in parentheses.
    #[must_use]
    pub fn is_device(engine: &str) -> bool {
        [GPU, CRYPTODEV].contains(&short(engine))
    }

    /// The processor of the thread that drives an engine, by either of its names; `engines` are those of
    /// `[gateway]`.
    #[must_use]
    pub fn processor_of_device(&self, engines: &[String], engine: &str) -> Option<usize> {
        let mut devices = engines.iter().filter(|engine| Self::is_device(engine));
        self.processor(devices.position(|device| device == short(engine))?)
    }

    /// The processor of the transmit thread.
    #[must_use]
    pub fn processor_of_transmit(&self, engines: &[String]) -> Option<usize> {
        self.processor(devices_of(engines))
    }

    fn processor(&self, place: usize) -> Option<usize> {
        self.processors.get(place).map(|number| usize::from(*number))
    }
}

/// The name of an engine in a configuration.
fn short(engine: &str) -> &str {
    engine.split_once(" (").map_or(engine, |(name, _)| name)
}

/// Threads that drive devices; one where none is named, whose place stays free.
fn devices_of(engines: &[String]) -> usize {
    engines.iter().filter(|engine| Threading::is_device(engine)).count().max(1)
}

/// What was written of them.
#[derive(Default)]
pub(super) struct ThreadingDraft {
    pub(super) threading: Threading,
    model: Option<Located<Option<ThreadingModel>>>,
    processors: Vec<Located<u16>>,
}

pub(super) fn read(section: &mut Section<'_>, walker: &mut Walker<'_>) -> ThreadingDraft {
    let [alone, one, two] = ThreadingModel::ALL.map(|model| (model.name(), Some(model)));
    let words = [alone, one, two, (AUTO, None)];
    let model = section.located(walker, "threading", value::choice(&words));
    let number = value::number_u16(0, MAX_PROCESSOR);
    // Those of both devices, and of the transmit thread.
    let processors = section.list(walker, "processors", 3, number);
    let written = model.as_ref().map_or(Some(ThreadingModel::default()), |model| model.value);
    let mut threading = Threading { model: written, processors: Vec::new() };
    if !threading.may_have_device_thread() && processors.is_some() {
        let problem = Problem::expected("`processors` with `threading = \"one_io\"`, \"two_io\" or \"auto\"");
        section.refuse(walker, "processors", problem.help("they are those of the threads beside the worker"));
    }
    let processors = processors.unwrap_or_default();
    threading.processors = processors.iter().map(|number| number.value).collect();
    ThreadingDraft { threading, model, processors }
}

/// One processor for each thread beside the worker.
fn check_processors(walker: &mut Walker<'_>, draft: &ThreadingDraft, engines: &[String]) {
    let (model, named) = (draft.threading.model, &draft.processors);
    if !draft.threading.may_have_device_thread() {
        return;
    }
    let devices = devices_of(engines);
    let most = if model == Some(ThreadingModel::OneIo) { devices } else { devices + 1 };
    if let Some(Located { span, key, .. }) = named.get(most) {
        let (expected, help) = match (model, devices) {
            (Some(ThreadingModel::OneIo), 1) => (
                "one processor with `threading = \"one_io\"`".to_owned(),
                "it has the device thread alone beside the worker; the second is the transmit thread's, of \
                 \"two_io\"",
            ),
            _ => (
                format!("at most {most} processors"),
                "one for each engine on a device, and with \"two_io\" and \"auto\" one for the transmit thread",
            ),
        };
        walker.report(span, key.clone(), Problem::expected(expected).help(help));
        return;
    }
    let is_repeated = |(place, one): &(usize, &Located<u16>)| {
        named.iter().take(*place).any(|before| before.value == one.value)
    };
    if let Some((_, Located { span, key, .. })) = named.iter().enumerate().find(is_repeated) {
        let help = "these threads look for work all the time, and would take turns on one processor";
        let problem = Problem::expected("two different processors").help(help);
        walker.report(span, key.clone(), problem);
    }
}

/// What the threads need: an engine on a device, one worker, and ports that can send on a thread of their
/// own.
pub(super) fn check(
    walker: &mut Walker<'_>,
    draft: &ThreadingDraft,
    gateway: &Gateway,
    (protected, unprotected): (&ProtectedDraft, &UnprotectedPort),
) {
    check_processors(walker, draft, &gateway.engines);
    // `auto` has the threads that there may be, and else none.
    let Some(model) = &draft.model else { return };
    let Some(threads) = model.value.filter(|model| model.has_device_thread()) else { return };
    let mut refuse = |expected: String, help: &str| {
        walker.report(&model.span, model.key.clone(), Problem::expected(expected).help(help));
    };
    let name = threads.name();
    if !gateway.engines.iter().any(|engine| Threading::is_device(engine)) {
        let help = "the device thread drives such an engine; without one the worker does all \
                    cryptography: \"run_to_completion\"";
        refuse(
            format!("an engine on a device, \"gpu\" or \"cryptodev\", in `engines` with \"{name}\""),
            help,
        );
    }
    if gateway.workers.most(gateway.workers_max, MAX_WORKERS) > 1 {
        let help = "a device does one chunk after another: chunks of several workers would wait for each \
                    other; several workers run to completion";
        refuse(format!("`workers = 1` and no `workers_max` with \"{name}\""), help);
    }
    let are_of_host = protected.has_tun() && unprotected.kind.is_host();
    if threads == ThreadingModel::TwoIo && !are_of_host {
        let help = "a queue of AF_XDP or DPDK is one thread's, with the addresses that it has learned: use \
                    \"one_io\"";
        refuse("the kernel's ports, TUN and sockets, with \"two_io\"".to_owned(), help);
    }
}
