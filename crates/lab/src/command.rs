//! `testudo lab`.

use std::process::ExitCode;

use testudo_gateway::Candidate;

use crate::bench::device::GPU;
use crate::bench::{BenchError, Gpus, print};
use crate::efficiency::{self, EfficiencyOptions};
use crate::meters::Meters;
use crate::overload::{self, OverloadOptions};
use crate::papers::{self, PapersOptions};
use crate::placements::{self, PlacementsOptions};
use crate::rfc2544::{self, Rfc2544Options};
use crate::tcp::{self, TcpOptions};

/// `testudo lab …`
#[derive(Debug, Clone, clap::Args)]
pub struct LabArgs {
    /// What to measure.
    #[command(subcommand)]
    pub command: LabCommand,
}

/// Subcommands of `testudo lab`.
#[derive(Debug, Clone, clap::Subcommand)]
pub enum LabCommand {
    /// Measure throughput, latency, frame loss and bursts of two gateways, in memory or over networks, by the
    /// methods of RFC 2544
    Rfc2544(Rfc2544Options),
    /// Measure how many packets come through two gateways, in memory or over networks, and how busy they are,
    /// when offered up to four times what they can do
    Overload(OverloadOptions),
    /// Measure what fixed rates cost two gateways in memory: their worker sleeps when it finds nothing to do,
    /// longer and longer until throughput falls. Processor time, cycles and energy for each byte, and what a
    /// gigabit costs
    Efficiency(EfficiencyOptions),
    /// Measure TCP streams through two gateways in private networks, beside plain IP: throughput over message
    /// sizes and the processors' time by state, as paper 001 does, with links, MTUs and tuning
    Tcp(Box<TcpOptions>),
    /// Measure what it brings to take I/O, cryptography or both off the worker of two gateways in memory, and
    /// where a packet's time goes: with DES, 3DES and AES, with a bypass policy, around the size that is
    /// fragmented
    Placements(PlacementsOptions),
    /// Measure the figures and tables of the papers again, where this machine can, and write a report with
    /// the papers' numbers beside
    Papers(PapersOptions),
}

impl LabArgs {
    /// The GPU that is to be measured: a part of its name or of its platform's.
    #[must_use]
    pub fn gpu(&self) -> Option<&str> {
        match &self.command {
            LabCommand::Placements(options) => options.gpu.as_deref(),
            LabCommand::Papers(options) => options.gpu.as_deref(),
            _ => None,
        }
    }

    /// Runs the command and prints the result: 0 on success, otherwise the reason is on standard error.
    /// `candidates` are the engines that the program has besides the portable one, `devices` those that do
    /// cryptography elsewhere, `gpus` finds GPUs; `meters` opens what can be metered.
    ///
    /// Call it on the main thread before starting others: `lab tcp` re-executes the program inside private
    /// namespaces.
    #[must_use = "it says whether the measurement has failed"]
    pub fn run(
        &self,
        candidates: Vec<Candidate>,
        devices: Vec<Candidate>,
        gpus: &Gpus,
        meters: impl Fn() -> Meters + Sync,
    ) -> ExitCode {
        let text: Result<String, BenchError> = match &self.command {
            LabCommand::Rfc2544(options) => rfc2544::report(options, candidates),
            LabCommand::Overload(options) => overload::report(options, candidates),
            LabCommand::Efficiency(options) => efficiency::report(options, candidates, meters()),
            LabCommand::Tcp(options) => tcp::report(options),
            LabCommand::Placements(options) => placements::report(options, candidates, devices),
            LabCommand::Papers(options) => {
                let engines = devices.into_iter().filter(|device| device.name == GPU);
                papers::report(options, candidates, (engines.collect(), gpus), &meters)
            }
        };
        match text.and_then(|text| print(&text)) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("testudo lab: {error}");
                error.exit_code()
            }
        }
    }
}
