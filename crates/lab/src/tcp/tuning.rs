//! The steps of `testudo tune`, in the namespaces of a run.
//!
//! The program is run as a user would, once for each interface: it knows the settings, changes what differs
//! and says what the device has not. What it changes goes with the namespaces.

use std::path::Path;

use serde::Deserialize;

use crate::error::{LabError, io};
use crate::namespaces::Namespace;
use crate::network::Network;

/// The groups of `testudo tune` that an interface of a namespace has, in its order; but the MTU comes last,
/// as in paper 001, which has NAPI with 1,500 bytes (sections 5.2 and 5.3).
pub(super) const STEPS: [&str; 8] =
    ["sockets", "tcp", "offloads", "rings", "coalescing", "napi", "affinity", MTU];
/// Those of the whole machine, which no run changes.
pub(super) const OF_THE_MACHINE: [&str; 3] = ["governor", "huge-pages", "isolation"];
/// Why they are left out.
pub(super) const NOT_OURS: &str = "it is of the whole machine, not of a namespace: not applied";
const MTU: &str = "mtu";
/// The name of all steps together.
const ALL: &str = "all";
/// What `testudo tune` calls a setting that it has changed.
const CHANGED: &str = "changed";
/// What the step of the MTU sets.
pub(super) const JUMBO_MTU: u16 = 9000;

/// Which steps are taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum)]
pub enum Tuning {
    /// Everything as the kernel has it
    #[default]
    None,
    /// All steps but the MTU, which --mtu sets
    All,
    /// No step, then one more each time; that of the MTU comes last and sets 9000
    Each,
}

/// Steps that are taken together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Stage {
    /// For people: the last step.
    pub(super) name: &'static str,
    /// All of them, in order.
    pub(super) steps: Vec<&'static str>,
}

impl Tuning {
    /// What is measured, in order.
    pub(super) fn stages(self) -> Vec<Stage> {
        let none = Stage { name: "none", steps: Vec::new() };
        match self {
            Self::None => vec![none],
            Self::All => {
                let steps = STEPS.into_iter().filter(|step| *step != MTU).collect();
                vec![Stage { name: ALL, steps }]
            }
            Self::Each => {
                let until = |(last, name): (usize, &'static str)| Stage {
                    name,
                    steps: STEPS.into_iter().take(last).collect(),
                };
                [none].into_iter().chain((1..).zip(STEPS).map(until)).collect()
            }
        }
    }
}

impl Stage {
    /// The MTU after these steps, where it was `mtu` before.
    pub(super) fn mtu(&self, mtu: u16) -> u16 {
        if self.steps.contains(&MTU) { mtu.max(JUMBO_MTU) } else { mtu }
    }

    /// Takes the steps at all interfaces of a network, journals in `folder`; `mtu` is that after them.
    pub(super) fn apply(
        &self,
        network: &Network,
        program: &Path,
        folder: &Path,
        mtu: u16,
    ) -> Result<Vec<Done>, LabError> {
        let mut all = Vec::new();
        for (namespace, interface) in network.interfaces().into_iter().filter(|_| !self.steps.is_empty()) {
            let state = folder.join(format!("tune-{}", namespace.name()));
            all.extend(self.apply_to((namespace, interface), program, &state, mtu)?);
        }
        Ok(all)
    }

    fn apply_to(
        &self,
        (namespace, interface): (&Namespace, &str),
        program: &Path,
        state: &Path,
        mtu: u16,
    ) -> Result<Vec<Done>, LabError> {
        let mut command = namespace.command(program);
        command.args(["tune", "apply", interface, "--json", "--only", &self.steps.join(",")]);
        command.arg("--state").arg(state);
        if self.steps.contains(&MTU) {
            command.args(["--mtu", &mtu.to_string()]);
        }
        let output = command.output().map_err(io("run testudo tune"))?;
        // It fails where the kernel refuses a setting, too, and says so in a row.
        let report: Result<TuneReport, _> = serde_json::from_slice(&output.stdout);
        report.map(|report| report.rows).map_err(|error| {
            let said = String::from_utf8_lossy(&output.stderr);
            let complaint =
                format!("has failed at {interface} ({}; {error}): {}", output.status, said.trim());
            LabError::Program { program: "testudo tune apply".to_owned(), complaint }
        })
    }

    /// Whether the last step changed anything, or why not.
    pub(super) fn last_changed(&self, done: &[Done]) -> Result<(), String> {
        let of_it: Vec<&Done> = self.of_last(done).collect();
        match of_it.iter().any(|done| done.outcome == CHANGED) {
            true => Ok(()),
            false => Err(format!("it changes nothing here: {}", reasons(&of_it))),
        }
    }

    /// What of the last step, or of all that are taken together, the kernel or the devices did not take; if
    /// there is such.
    pub(super) fn not_taken(&self, done: &[Done]) -> Option<String> {
        let is_taken = |done: &Done| [CHANGED, "as-wanted", "advice"].contains(&done.outcome.as_str());
        let lacking: Vec<&Done> = self.of_last(done).filter(|done| !is_taken(done)).collect();
        (!lacking.is_empty()).then(|| format!("tuning, {}: {}", self.name, reasons(&lacking)))
    }

    /// What was done for the last step, or for all that are taken together.
    fn of_last<'a>(&self, done: &'a [Done]) -> impl Iterator<Item = &'a Done> {
        let name = self.name;
        done.iter().filter(move |done| name == ALL || done.group.as_deref() == Some(name))
    }
}

/// What became of settings, each once; those that one reason is of together.
fn reasons(done: &[&Done]) -> String {
    let mut reasons: Vec<(String, Vec<&str>)> = Vec::new();
    for done in done {
        let note = done.note.as_ref().map(|note| format!(": {note}")).unwrap_or_default();
        let reason = format!("{}{note}", done.outcome.replace('-', " "));
        match reasons.iter_mut().find(|(known, _)| *known == reason) {
            Some((_, names)) if names.contains(&done.name.as_str()) => {}
            Some((_, names)) => names.push(&done.name),
            None => reasons.push((reason, vec![&done.name])),
        }
    }
    let each = reasons.iter().map(|(reason, names)| format!("{} {reason}", names.join(", ")));
    each.collect::<Vec<_>>().join("; ")
}

#[derive(Deserialize)]
struct TuneReport {
    rows: Vec<Done>,
}

/// A row of `testudo tune apply --json`, as far as it is needed here.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct Done {
    group: Option<String>,
    name: String,
    outcome: String,
    note: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_stage_has_one_step_more() {
        let stages = Tuning::Each.stages();
        assert_eq!(stages.len(), STEPS.len() + 1);
        for (index, stage) in stages.iter().enumerate() {
            assert_eq!(stage.steps, STEPS[..index]);
        }
        let (last, before) = stages.split_last().unwrap();
        assert_eq!((last.name, last.mtu(1500)), ("mtu", 9000));
        assert!(before.iter().all(|stage| stage.mtu(1500) == 1500), "steps before it are of 1,500 bytes");
        let all = Tuning::All.stages();
        assert_eq!((all.len(), all[0].mtu(4000)), (1, 4000));
        assert_eq!(Tuning::None.stages()[0].steps.len(), 0);
    }

    #[test]
    fn what_a_step_or_all_of_them_lack_is_told_with_the_reason_and_each_name_once() {
        let rows = r#"[
            {"group": "tcp", "name": "net.ipv4.tcp_rmem", "outcome": "changed", "note": null},
            {"group": "napi", "name": "gro-flush-timeout", "outcome": "refused", "note": "no right"},
            {"group": "napi", "name": "defer-hard-irqs", "outcome": "refused", "note": "no right"},
            {"group": "napi", "name": "defer-hard-irqs", "outcome": "refused", "note": "no right"},
            {"group": "rings", "name": "ring rx", "outcome": "not-supported", "note": null},
            {"group": "sockets", "name": "busy-poll", "outcome": "advice", "note": null},
            {"group": "rings", "name": "ring tx", "outcome": "as-wanted", "note": null}]"#;
        let done: Vec<Done> = serde_json::from_str(rows).unwrap();
        let napi = "gro-flush-timeout, defer-hard-irqs refused: no right";
        let all = &Tuning::All.stages()[0];
        let wanted = format!("tuning, all: {napi}; ring rx not supported");
        assert_eq!(all.not_taken(&done), Some(wanted));
        let stages = Tuning::Each.stages();
        let of = |name| stages.iter().find(|stage| stage.name == name).unwrap().not_taken(&done);
        assert_eq!((of("tcp"), of("none"), of("napi")), (None, None, Some(format!("tuning, napi: {napi}"))));
    }

    #[test]
    fn a_step_that_changes_nothing_says_why() {
        let rows = r#"{"interface": "wan", "rows": [
            {"group": "tcp", "name": "net.ipv4.tcp_rmem", "outcome": "changed", "note": null, "why": "w"},
            {"group": "rings", "name": "ring rx", "outcome": "not-supported", "note": "the device has none"},
            {"group": "rings", "name": "ring rx", "outcome": "not-supported", "note": "the device has none"},
            {"group": "rings", "name": "ring tx", "outcome": "as-wanted", "note": null}]}"#;
        let report: TuneReport = serde_json::from_str(rows).unwrap();
        let stages = Tuning::Each.stages();
        let of = |name| stages.iter().find(|stage| stage.name == name).unwrap().last_changed(&report.rows);
        assert_eq!(of("tcp"), Ok(()));
        assert_eq!(
            of("rings").unwrap_err(),
            "it changes nothing here: ring rx not supported: the device has none; ring tx as wanted"
        );
    }
}
