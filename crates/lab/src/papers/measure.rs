//! Measurements by commands of the program, run in this process; but those that enter private namespaces are
//! run as users run them, since nothing comes back from there (`child`).

use std::sync::{Arc, Mutex, PoisonError};

use clap::{Parser, Subcommand};
use serde_json::Value;
use testudo_crypto::EngineError;
use testudo_gateway::Candidate;

use crate::bench::{BenchArgs, BenchError, GPU, GpuCount, Gpus};
use crate::efficiency::{self, EfficiencyOptions};
use crate::meters::Meters;
use crate::overload::{self, OverloadOptions};
use crate::placements::{self, PlacementsOptions};
use crate::rfc2544::{self, Rfc2544Options};
use crate::tcp::TcpOptions;

use super::child;

/// The commands that measure, as users give them.
#[derive(Parser)]
#[command(name = "testudo")]
pub(super) struct Program {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    Bench(Box<BenchArgs>),
    #[command(subcommand)]
    Lab(Lab),
}

#[derive(Subcommand)]
enum Lab {
    Rfc2544(Rfc2544Options),
    Overload(OverloadOptions),
    Efficiency(EfficiencyOptions),
    Tcp(Box<TcpOptions>),
    Placements(Box<PlacementsOptions>),
}

/// The command that these words are. JSON is asked for, so that it shows no progress of its own.
pub(super) fn parse(command: &str) -> Result<Program, BenchError> {
    let words = ["testudo"].into_iter().chain(command.split_whitespace()).chain(["--json"]);
    Program::try_parse_from(words).map_err(|error| BenchError::Usage(format!("{command}: {error}")))
}

/// Whether a command is of GPUs alone that are not here, or not so many. Figures that have other rows, too,
/// go without these.
fn is_missing(args: &BenchArgs, gpus: &Gpus) -> bool {
    args.is_of_gpus_alone() && (gpus.find)(args.gpu(), args.gpus()).is_err()
}

/// Engines, of which the GPU is so many as one where a command asks for several.
fn several(mut candidates: Vec<Candidate>, args: &BenchArgs, gpus: &Gpus) -> Vec<Candidate> {
    if args.gpus() == GpuCount::default() {
        return candidates;
    }
    let found = (gpus.find)(args.gpu(), args.gpus()).unwrap_or_default();
    if let Some(together) = found.into_iter().next() {
        let open =
            move || (together.engine)().map_err(|reason| EngineError::Unavailable { engine: GPU, reason });
        candidates.retain(|candidate| candidate.name != GPU);
        candidates.push(Candidate { name: GPU, open: Box::new(open) });
    }
    candidates
}

/// Rows of several GPUs that are one engine say how many they are, in `gpus`.
fn counted(mut rows: Value, count: GpuCount) -> Value {
    let GpuCount::Number(count @ 2..) = count else { return rows };
    for row in rows.as_array_mut().into_iter().flatten().filter_map(Value::as_object_mut) {
        row.insert("gpus".to_owned(), count.into());
    }
    rows
}

/// Runs a command with these engines, GPUs and what `meters` opens; its rows.
pub(super) fn measure(
    command: &str,
    candidates: &Shared,
    gpus: &Gpus,
    meters: impl Fn() -> Meters,
) -> Result<Value, BenchError> {
    match parse(command)?.verb {
        Verb::Bench(args) if is_missing(&args, gpus) => Ok(Value::Array(Vec::new())),
        Verb::Bench(args) => {
            let rows = args.rows(several(candidates.all(), &args, gpus), gpus)?;
            Ok(counted(rows, args.gpus()))
        }
        Verb::Lab(Lab::Rfc2544(options)) => rfc2544::measure(&options, candidates.all()),
        Verb::Lab(Lab::Overload(options)) => overload::measure(&options, candidates.all()),
        Verb::Lab(Lab::Efficiency(options)) => efficiency::measure(&options, candidates.all(), meters()),
        Verb::Lab(Lab::Tcp(_)) => child::rows(command),
        Verb::Lab(Lab::Placements(options)) => placements::measure(&options, candidates.all(), Vec::new()),
    }
}

/// An engine's name, and what opens it.
type Entry = (&'static str, Arc<Mutex<testudo_gateway::Opener>>);

/// Engines that every measurement opens anew.
pub(super) struct Shared(Vec<Entry>);

impl Shared {
    pub(super) fn new(candidates: Vec<Candidate>) -> Self {
        let shared = |candidate: Candidate| (candidate.name, Arc::new(Mutex::new(candidate.open)));
        Self(candidates.into_iter().map(shared).collect())
    }

    pub(super) fn all(&self) -> Vec<Candidate> {
        let one = |(name, open): &Entry| {
            let (name, open) = (*name, Arc::clone(open));
            Candidate { name, open: Box::new(move || open.lock().unwrap_or_else(PoisonError::into_inner)()) }
        };
        self.0.iter().map(one).collect()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use testudo_crypto::PortableEngine;

    use super::*;
    use crate::bench::GpuDevice;

    const TWO: &str = "bench scheduler --experiment ideas --engines gpu --gpus 2 --sizes 64 --chunks 1";

    /// A machine with so many GPUs, each of which does what the portable engine does.
    fn machine(there: u16) -> Gpus {
        let find = move |_: Option<&str>, count| match count {
            GpuCount::Number(count) if count <= there => {
                let engine = Box::new(|| -> Result<Box<dyn testudo_crypto::Engine>, String> {
                    Ok(Box::new(PortableEngine::new()))
                });
                Ok(vec![GpuDevice { engine, timed: None }])
            }
            _ => Err(format!("there is {there}")),
        };
        let idle = Box::new(|| -> Result<Box<dyn testudo_crypto::Engine>, String> {
            Err("it is not used".to_owned())
        });
        Gpus { find: Box::new(find), idle, steps: |_, _, _, _| None }
    }

    fn one() -> Vec<Candidate> {
        let open = || Err(EngineError::Unavailable { engine: GPU, reason: "it is one alone".to_owned() });
        vec![Candidate { name: GPU, open: Box::new(open) }]
    }

    fn bench(command: &str) -> Box<BenchArgs> {
        match parse(command).unwrap().verb {
            Verb::Bench(args) => args,
            Verb::Lab(_) => panic!("{command}"),
        }
    }

    #[test]
    fn what_is_of_gpus_alone_has_no_rows_where_there_are_not_so_many() {
        let none = || Meters { present: Vec::new(), absent: Vec::new() };
        let rows = measure(TWO, &Shared::new(one()), &machine(1), none).unwrap();
        assert_eq!(rows, json!([]));
        assert!(!is_missing(&bench(TWO), &machine(2)));
        let beside = "bench scheduler --experiment ideas";
        assert!(!is_missing(&bench(beside), &machine(0)), "the model has rows without any");
    }

    #[test]
    fn several_gpus_are_one_engine_and_its_rows_say_how_many() {
        let of = |command: &str| {
            let candidates = several(one(), &bench(command), &machine(2));
            assert_eq!(candidates.len(), 1);
            (candidates[0].open)().is_ok()
        };
        assert!(of(TWO) && !of("bench scheduler --experiment ideas"));
        let rows = json!([{ "engine": "gpu" }]);
        assert_eq!(counted(rows.clone(), GpuCount::Number(2)), json!([{ "engine": "gpu", "gpus": 2 }]));
        assert_eq!(counted(rows.clone(), GpuCount::default()), rows);
    }
}
