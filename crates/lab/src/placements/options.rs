//! The command line of `testudo lab placements`.

use std::path::PathBuf;
use std::time::Duration;

use testudo_crypto::Suite;

use super::setup::{Crypto, Placement, Setup, Threads};
use crate::bench::BenchError;
use crate::bench::device::{GPU, part_of_a_name};
use crate::generator::Sizes;
use crate::harness::Plan;
use crate::rfc2544::has_flows;
use crate::suites;

/// Seconds of a trial, and repetitions.
const USUAL: (f64, u32) = (0.5, 3);
const QUICK: (f64, u32) = (0.05, 1);
/// Trials that are to be expected of a search, and those of a flood.
const SEARCH_TRIALS: u32 = 16;
const FLOOD_TRIALS: u32 = 2;
/// What it takes to build gateways and to find what to offer them.
const BUILDING: Duration = Duration::from_millis(200);
/// The engine that has threads of its own.
pub(super) const CORES: &str = testudo_engine_cores::NAME;

/// Options of `testudo lab placements`.
#[derive(Debug, Clone, clap::Args)]
pub struct PlacementsOptions {
    /// What is not the worker's: none; io (receiving, checking header checksums, filtering, transmitting, on
    /// threads of their own); crypto (by --offload-engine); both
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        value_name = "PLACEMENT,…",
        default_value = "none,io,crypto,both"
    )]
    pub placements: Vec<Placement>,

    /// Suites of the tunnels
    #[arg(
        long,
        value_delimiter = ',',
        value_name = "SUITE,…",
        default_value = "des-sha1,3des-sha1,aes128-sha1",
        value_parser = suites::parser(|_| true)
    )]
    pub suites: Vec<String>,

    /// Lengths of Ethernet frames in bytes, check sequence included (64 to 1518), random, imix or imix-simple
    #[arg(long, value_delimiter = ',', value_name = "BYTES,…", default_value = "64,512,1024,1450,1518")]
    pub sizes: Vec<Sizes>,

    /// Threads that do the I/O in the placements io and both, from 1 to 3
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=3))]
    pub io_threads: u8,

    /// Threads that do the I/O of a gateway that forwards packets by a bypass policy, each number in turn, 0
    /// to 2; none: do not measure that
    #[arg(long, value_delimiter = ',', value_name = "N,…", default_value = "0,1,2", value_parser = io_threads)]
    pub bypass_io_threads: Vec<Option<u8>>,

    /// Engine that the cryptography is offloaded to: cores (threads on other cores), gpu or cryptodev, whose
    /// drivers in software would take nothing off the worker and are not measured
    #[arg(long, value_name = "NAME", default_value = CORES)]
    pub offload_engine: String,

    /// A part of the GPU's name or of its platform's, for --offload-engine gpu [default: the first GPU]
    #[arg(long, value_name = "NAME", value_parser = part_of_a_name)]
    pub gpu: Option<String>,

    /// Threads of --offload-engine cores for each of both gateways [default: 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=64))]
    pub crypto_threads: Option<u8>,

    /// Engine of the worker, and of the threads of cores [default: the first that works here and does the
    /// suite]
    #[arg(long, value_name = "NAME")]
    pub engine: Option<String>,

    /// MTU of the path between the gateways, in bytes: datagrams that are longer when sealed are fragmented
    #[arg(long, value_name = "BYTES", default_value_t = 1500, value_parser = clap::value_parser!(u16).range(576..=9000))]
    pub mtu: u16,

    /// SAs from the first gateway to the second, which flows are spread over evenly
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub sas: u32,

    /// Flows of UDP, each from a random address of 10.0.0.0/8; at least as many as SAs
    #[arg(long, default_value_t = 1024, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub flows: u32,

    /// Seed of addresses, lengths and payloads
    #[arg(long, default_value_t = 1)]
    pub seed: u64,

    /// Also measure how long packets are in the gateways under half of the throughput, beside the bound
    #[arg(long)]
    pub latency: bool,

    /// The bound that 99 of 100 packets are to keep, in microseconds: `latency_us` of a configuration
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(50..=50_000))]
    pub bound_us: u32,

    /// Seconds of each trial [default: 0.5; 0.05 with --quick]
    #[arg(long, value_name = "N", value_parser = crate::rfc2544::seconds)]
    pub trial_seconds: Option<f64>,

    /// Take minutes instead of an hour: short trials, made once. Results do not conform to RFC 2544
    #[arg(long)]
    pub quick: bool,

    /// Repetitions: rows are medians, and say how far repetitions are apart [default: 3; 1 with --quick]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100))]
    pub repetitions: Option<u32>,

    /// Print a JSON array instead of tables, and no progress
    #[arg(long)]
    pub json: bool,

    /// Also draw rates and turnaround times over the frame size to a file
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,
}

/// A number of threads, or none at all.
fn io_threads(text: &str) -> Result<Option<u8>, String> {
    match text {
        "none" => Ok(None),
        _ => match text.parse() {
            Ok(count @ 0..=2) => Ok(Some(count)),
            _ => Err("expected 0, 1, 2 or none".to_owned()),
        },
    }
}

impl PlacementsOptions {
    /// That each option is of use, and each SA has a flow.
    pub(super) fn check(&self) -> Result<(), BenchError> {
        let options =
            [("--gpu", self.gpu.is_some(), GPU), ("--crypto-threads", self.crypto_threads.is_some(), CORES)];
        let of_another =
            |(_, is_given, engine): &&(_, bool, &str)| *is_given && self.offload_engine != *engine;
        match options.iter().find(of_another) {
            None => has_flows(self.flows, self.sas),
            Some((option, _, engine)) => Err(BenchError::Usage(format!(
                "{option} is of --offload-engine {engine}, and the cryptography is offloaded to {}",
                self.offload_engine
            ))),
        }
    }

    pub(super) fn plan(&self) -> Plan {
        let (seconds, repetitions) = if self.quick { QUICK } else { USUAL };
        let trial = Duration::from_secs_f64(self.trial_seconds.unwrap_or(seconds));
        Plan { trial, repetitions: self.repetitions.unwrap_or(repetitions), ..Plan::default() }
    }

    /// About how long one setup takes with frames of one size.
    pub(super) fn expected(&self) -> Duration {
        let plan = self.plan();
        let trials = SEARCH_TRIALS + FLOOD_TRIALS + u32::from(self.latency);
        BUILDING + plan.trial.saturating_mul(plan.repetitions.saturating_mul(trials))
    }

    /// Why figures do not conform to RFC 2544; `None` if they do.
    pub(super) fn deviation(&self) -> Option<String> {
        let seconds = self.plan().trial.as_secs_f64();
        let short = format!("does not conform to RFC 2544: a trial is {seconds} s, section 24 asks for 60 s");
        match (self.quick, seconds < 60.0) {
            (true, true) => Some(format!("--quick: {short}")),
            (true, false) => Some("--quick: does not conform to RFC 2544".to_owned()),
            (false, is_short) => is_short.then_some(short),
        }
    }

    /// All that is to be measured, each once: tunnels of each suite, then forwarding.
    pub(super) fn setups(&self, processors: &[usize]) -> Result<Vec<Setup>, BenchError> {
        let mut setups = Vec::new();
        for name in &self.suites {
            let suite = name.parse().map_err(|error| BenchError::Usage(format!("--suites: {error}")))?;
            for &placement in &self.placements {
                setups.push(self.setup(Some(suite), placement, self.io_threads, processors));
            }
        }
        for &count in self.bypass_io_threads.iter().flatten() {
            let placement = if count == 0 { Placement::None } else { Placement::Io };
            setups.push(self.setup(None, placement, count, processors));
        }
        let mut each: Vec<Setup> = Vec::new();
        setups.into_iter().for_each(|setup| {
            if !each.contains(&setup) {
                each.push(setup);
            }
        });
        Ok(each)
    }

    fn setup(&self, suite: Option<Suite>, placement: Placement, io: u8, processors: &[usize]) -> Setup {
        let crypto = match (placement.has_crypto(), self.offload_engine.as_str()) {
            (false, _) => Crypto::Worker,
            (true, CORES) => Crypto::Threads(self.crypto_threads.unwrap_or(1).into()),
            (true, other) => Crypto::Device(other.to_owned()),
        };
        let io = if placement.has_io() { io.into() } else { 0 };
        let mut setup = Setup {
            suite,
            placement,
            crypto,
            threads: Threads::on(processors, io, 0),
            sas: self.sas,
            flows: self.flows,
            seed: self.seed,
            mtu: self.mtu,
        };
        setup.threads = Threads::on(processors, io, setup.crypto_threads());
        setup
    }

    /// Sizes without duplicates, in order.
    pub(super) fn sizes(&self) -> Vec<Sizes> {
        let mut kept = Vec::new();
        self.sizes.iter().for_each(|sizes| {
            if !kept.contains(sizes) {
                kept.push(*sizes);
            }
        });
        kept
    }
}
