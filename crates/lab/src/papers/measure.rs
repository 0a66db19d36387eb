//! Measurements by commands of the program, run in this process; but those that enter private namespaces are
//! run as users run them, since nothing comes back from there (`child`).

use std::sync::{Arc, Mutex, PoisonError};

use clap::{Parser, Subcommand};
use serde_json::Value;
use testudo_gateway::Candidate;

use crate::bench::{BenchArgs, BenchError, Gpus};
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

/// Runs a command with these engines, GPUs and what `meters` opens; its rows.
pub(super) fn measure(
    command: &str,
    candidates: &Shared,
    gpus: &Gpus,
    meters: impl Fn() -> Meters,
) -> Result<Value, BenchError> {
    match parse(command)?.verb {
        Verb::Bench(args) => args.rows(candidates.all(), gpus),
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
