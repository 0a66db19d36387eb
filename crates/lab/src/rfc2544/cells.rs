//! Cells, remarks and headings that the reports of `testudo lab` share.

use serde_json::{Value, json};

use crate::generator::Sizes;
use crate::harness::{Cores, LatencyUs, Limit, Measurement};

/// What a row says of a generator that reached no more than the gateways took.
const GENERATOR: &str = "the generator was the bottleneck: the gateways may do more";
use crate::tandem::Tandem;

/// What is to be said of a row besides its figures, for people and in JSON alike.
pub(crate) fn notes(row: &Measurement, cores: Cores) -> Vec<String> {
    let mut notes: Vec<String> = row.unconverged.iter().map(ToString::to_string).collect();
    if row.loss == 0.0 && row.lossy_trials > 0 {
        let (lossy, all) = (row.lossy_trials, row.repetitions);
        notes.push(format!(
            "packets were lost in {lossy} of {all} trials, although the median of losses is 0"
        ));
    }
    notes.extend(row.basis.iter().map(ToString::to_string));
    notes.extend(limit(row).map(str::to_owned));
    if row.is_disturbed {
        notes.push("other work, or a hypervisor, had the processor of the gateways in a trial".to_owned());
    }
    notes.extend(shared(cores));
    notes
}

/// What kept the gateways from showing more, or the generator from offering what it was to.
pub(crate) fn limit(row: &Measurement) -> Option<&'static str> {
    match row.limit {
        Some(Limit::Generator) => Some(GENERATOR),
        Some(Limit::Flood) => {
            Some("no higher rate was offered than twice what came through a flood: the gateways may do more")
        }
        Some(Limit::Medium) | None => {
            row.was_generator_late.then_some("the generator offered less than it was to")
        }
    }
}

/// That threads have fewer processors than they are, if so.
pub(super) fn shared(cores: Cores) -> Option<String> {
    cores.are_shared().then(|| "cores shared: generator and gateways have one processor".to_owned())
}

/// Remarks that rows refer to by number, each once.
#[derive(Debug, Default)]
pub(crate) struct Remarks(Vec<String>);

impl Remarks {
    /// The references of a row: "1 3".
    pub(crate) fn refer(&mut self, notes: Vec<String>) -> String {
        let mut numbers = Vec::new();
        for note in notes {
            let known = self.0.iter().position(|other| *other == note);
            numbers.push(known.unwrap_or(self.0.len()) + 1);
            if known.is_none() {
                self.0.push(note);
            }
        }
        numbers.iter().map(usize::to_string).collect::<Vec<_>>().join(" ")
    }

    /// The remarks, a line each.
    pub(crate) fn lines(&self) -> String {
        (1..).zip(&self.0).map(|(number, note)| format!("  {number}: {note}\n")).collect()
    }
}

pub(crate) fn frame_bytes(sizes: Sizes) -> Value {
    match sizes {
        Sizes::Bytes(bytes) => json!(bytes),
        mix => json!(mix.to_string()),
    }
}

/// The processors of gateways in memory.
pub(crate) fn cores_json(cores: Cores) -> Value {
    processors_json([&[cores.device], &[cores.generator]], cores.are_shared())
}

/// The processors of gateways and of the generator, lists wherever these are.
pub(super) fn processors_json([gateways, generator]: [&[usize]; 2], is_shared: bool) -> Value {
    json!({ "gateways": gateways, "generator": generator, "shared": is_shared })
}

/// About four significant digits.
pub(crate) fn figure(value: f64) -> String {
    match value {
        v if v >= 999.5 => format!("{v:.0}"),
        v if v >= 99.95 => format!("{v:.1}"),
        v => format!("{v:.2}"),
    }
}

pub(crate) fn latency_cells(row: &Measurement) -> [String; 3] {
    row.latency_us.map_or_else(
        || ["-"; 3].map(str::to_owned),
        |LatencyUs { p50, p99, max }| [p50, p99, max].map(figure),
    )
}

pub(crate) fn percent(share: Option<f64>) -> String {
    share.map_or_else(|| "-".to_owned(), |share| format!("{:.2}", share * 100.0))
}

/// What is measured, where.
pub(crate) fn heading(device: &Tandem, suite: &str, sas: u32, flows: u32) -> String {
    let cores = device.cores();
    let shared = if cores.are_shared() { " (cores shared)" } else { "" };
    format!(
        "Two gateways in memory, one seals and one opens, on one core: {suite}, {}, SAs {sas}, flows {flows}.\n\
         Cores: gateways {}, generator and sink {}{shared}.\n",
        device.engine(),
        cores.device,
        cores.generator,
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::harness::Test;

    #[test]
    fn remarks_are_told_once_and_referred_to_by_number() {
        let mut remarks = Remarks::default();
        let note = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
        assert_eq!(remarks.refer(note(&["a", "b"])), "1 2");
        assert_eq!(remarks.refer(note(&["b", "c"])), "2 3");
        assert_eq!(remarks.refer(Vec::new()), "");
        assert_eq!(remarks.lines(), "  1: a\n  2: b\n  3: c\n");
    }

    #[test]
    fn processors_are_lists_in_memory_as_over_networks() {
        let in_memory = cores_json(Cores { device: 3, generator: 0 });
        assert_eq!(in_memory, json!({ "gateways": [3], "generator": [0], "shared": false }));
        assert_eq!(processors_json([&[3], &[0]], false), in_memory);
        assert_eq!(processors_json([&[2, 3], &[0, 1]], true)["gateways"], json!([2, 3]));
        assert_eq!(cores_json(Cores { device: 1, generator: 1 })["shared"], true);
    }

    #[test]
    fn every_method_has_a_name_of_its_own() {
        let tests = [
            Test::Throughput,
            Test::Latency,
            Test::FrameLoss,
            Test::BackToBack,
            Test::Overload,
            Test::Efficiency,
            Test::Placement,
        ];
        let names: std::collections::HashSet<_> = tests.into_iter().map(Test::name).collect();
        assert_eq!(names.len(), tests.len());
    }
}
