//! The command line of `testudo bench gpu`.

use std::time::Duration;

use testudo_crypto::{Direction, Suite};

use super::devices::StepsOf;
use super::model::Model;
use crate::bench::case::{Size, Suites, Wanted, Way};
use crate::bench::device::{GpuCount, part_of_a_name};

/// What of a row is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Part {
    /// Launches of 2,048 packets: kernels alone, and with transfers (figure 7 of paper 002)
    Launches,
    /// Gateways in memory, one and one for each core
    Gateways,
    /// How long packets are in a gateway under half of the load that it takes
    Latency,
    /// The same gateways with the best engine of the processor (figure 15)
    Processor,
}

/// Who writes SPI, number, IV, padding and trailer of ESP.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Headers {
    /// The processor
    Cpu,
    /// The GPU, as with `gpu_headers`: of outbound packets, in gateways alone
    Gpu,
}

impl Headers {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Cpu => "cpu",
            Self::Gpu => "gpu",
        }
    }
}

/// Suites that stand for all in a quick run: what PIPSEA has, and two that processors are bad and good at.
const QUICK: [&str; 5] = ["aes128-sha1", "aes128-none", "null-sha1", "3des-sha1", "aes128gcm16"];

/// Options of `testudo bench gpu`.
#[derive(Debug, Clone, clap::Args)]
pub struct BenchGpuOptions {
    /// A part of the GPUs' names or of their platforms' [default: all GPUs; PoCL, which is correct and not
    /// fast, only if it is named]
    #[arg(long, value_name = "NAME", value_parser = part_of_a_name)]
    pub gpu: Option<String>,

    /// How many GPUs with that name are one engine: a number, or all. With more than one, gateways with
    /// that engine are measured, and no launches, which are those of one GPU each
    #[arg(long, value_name = "N", default_value = "1")]
    pub gpus: GpuCount,

    /// Suites, each measured separately; all [default: each that the kernels do; some with --quick]
    #[arg(long, value_delimiter = ',', value_name = "SUITE,…")]
    pub suites: Vec<Wanted>,

    /// Lengths of whole inner IP packets in bytes, imix, or random: any from 46 to 1420 bytes
    #[arg(long, value_delimiter = ',', value_name = "BYTES,…", default_value = "64,512,1024,1420,imix")]
    pub sizes: Vec<Size>,

    /// Directions through the gateway
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        value_name = "DIRECTION,…",
        default_value = "outbound,inbound"
    )]
    pub directions: Vec<Way>,

    /// What is measured
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        value_name = "PART,…",
        default_value = "launches,gateways,latency,processor"
    )]
    pub parts: Vec<Part>,

    /// Who writes headers and trailers of ESP, each in a row of its own; gpu only where there is a GPU
    #[arg(long, value_enum, value_delimiter = ',', value_name = "WHO,…", default_value = "cpu")]
    pub headers: Vec<Headers>,

    /// Take minutes instead of an hour: some suites, short measurements
    #[arg(long)]
    pub quick: bool,

    /// Milliseconds of each measurement [default: 200; 30 with --quick]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=60_000))]
    pub milliseconds: Option<u64>,

    /// Units of the GPU that is reckoned with where there is none [default: those of an H100]
    #[arg(long, value_name = "N", default_value_t = 132, value_parser = clap::value_parser!(u16).range(1..=4096))]
    pub units: u16,

    /// Its clock, in GHz
    #[arg(long, value_name = "N", default_value_t = 1.7, value_parser = above_zero)]
    pub clock_ghz: f64,

    /// Its bus, each way, in gigabytes per second: 50 as PCIe 5.0 with 16 lanes
    #[arg(long, value_name = "N", default_value_t = 50.0, value_parser = above_zero)]
    pub bus_gb_s: f64,

    /// Print a JSON array instead of the table, and no progress
    #[arg(long)]
    pub json: bool,
}

fn above_zero(text: &str) -> Result<f64, String> {
    let number = text.parse::<f64>().ok().filter(|number| (1e-3..=1e5).contains(number));
    number.ok_or_else(|| "expected a number from 0.001 to 100000".to_owned())
}

impl BenchGpuOptions {
    pub(super) fn has(&self, part: Part) -> bool {
        self.parts.contains(&part)
    }

    pub(super) fn elapsed(&self) -> Duration {
        Duration::from_millis(self.milliseconds.unwrap_or(if self.quick { 30 } else { 200 }))
    }

    pub(super) fn model(&self) -> Model {
        Model { units: self.units.into(), clock_ghz: self.clock_ghz, bus_gb_s: self.bus_gb_s }
    }

    /// What is measured, in the order of rows: what the kernels do of what is wanted.
    pub(super) fn cells(&self, steps: StepsOf) -> Vec<(Suite, Way, Size)> {
        let is_quick = |suite: &Suite| !self.quick || QUICK.contains(&suite.to_string().as_str());
        let named = self.suites.iter().flat_map(|wanted| wanted.each()).filter_map(|suites| match suites {
            Suites::One(suite) => Some(suite),
            Suites::Mixed | Suites::Combinations | Suites::Contrast => None,
        });
        let suites: Vec<Suite> = match self.suites.is_empty() {
            true => Suite::measurable().filter(is_quick).collect(),
            false => named.collect(),
        };
        let is_done = |suite: &Suite| steps(*suite, Direction::Seal, 64, 32).is_some();
        let each = suites.into_iter().filter(is_done);
        let ways = each.flat_map(|suite| self.directions.iter().map(move |way| (suite, *way)));
        ways.flat_map(|(suite, way)| self.sizes.iter().map(move |size| (suite, way, *size))).collect()
    }
}
