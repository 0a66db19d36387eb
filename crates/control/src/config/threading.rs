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

/// `threading` and `processors` of `[scheduler]`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Threading {
    /// The threads.
    pub model: ThreadingModel,
    /// Processors that the device thread and the transmit thread are bound to; the others go where the kernel
    /// puts them.
    pub processors: Vec<u16>,
}

impl Threading {
    /// Whether an engine is on a device that a thread of its own may drive, by its name in a configuration or
    /// its own one, which may have the device's in parentheses.
    #[must_use]
    pub fn is_device(engine: &str) -> bool {
        let name = engine.split_once(" (").map_or(engine, |(name, _)| name);
        [GPU, CRYPTODEV].contains(&name)
    }
}

/// What was written of them.
#[derive(Default)]
pub(super) struct ThreadingDraft {
    pub(super) threading: Threading,
    model: Option<Located<ThreadingModel>>,
}

pub(super) fn read(section: &mut Section<'_>, walker: &mut Walker<'_>) -> ThreadingDraft {
    let words = ThreadingModel::ALL.map(|model| (model.name(), model));
    let model = section.located(walker, "threading", value::choice(&words));
    let number = value::number_u16(0, MAX_PROCESSOR);
    let processors = section.list(walker, "processors", 2, number);
    let value = model.as_ref().map_or_else(ThreadingModel::default, |model| model.value);
    if !value.has_device_thread() && processors.is_some() {
        let problem = Problem::expected("`processors` with `threading = \"one_io\"` or \"two_io\"");
        section.refuse(walker, "processors", problem.help("they are those of the threads beside the worker"));
    }
    let processors: Vec<_> = processors.unwrap_or_default().into_iter().map(|number| number.value).collect();
    check_processors(section, walker, value, &processors);
    ThreadingDraft { threading: Threading { model: value, processors }, model }
}

/// One processor for each thread beside the worker.
fn check_processors(
    section: &mut Section<'_>,
    walker: &mut Walker<'_>,
    model: ThreadingModel,
    processors: &[u16],
) {
    let &[device, transmit] = processors else { return };
    if model == ThreadingModel::OneIo {
        let problem = Problem::expected("one processor with `threading = \"one_io\"`");
        let help = "it has the device thread alone beside the worker; the second is the transmit thread's, \
                    of \"two_io\"";
        section.refuse(walker, "processors", problem.help(help));
    } else if device == transmit && model.has_device_thread() {
        let help = "both threads look for work all the time, and would take turns on one processor";
        section.refuse(walker, "processors", Problem::expected("two different processors").help(help));
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
    let Some(model) = draft.model.as_ref().filter(|model| model.value.has_device_thread()) else { return };
    let mut refuse = |expected: String, help: &str| {
        walker.report(&model.span, model.key.clone(), Problem::expected(expected).help(help));
    };
    let name = model.value.name();
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
    if model.value == ThreadingModel::TwoIo && !are_of_host {
        let help = "a queue of AF_XDP or DPDK is one thread's, with the addresses that it has learned: use \
                    \"one_io\"";
        refuse("the kernel's ports, TUN and sockets, with \"two_io\"".to_owned(), help);
    }
}
