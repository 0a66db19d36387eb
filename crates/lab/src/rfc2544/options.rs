//! The command line of `testudo lab rfc2544`, what others of `testudo lab` share with it, and progress.

use std::io::IsTerminal;
use std::net::Ipv4Addr;
use std::time::Duration;

use testudo_gateway::Candidate;

use crate::bench::BenchError;
use crate::generator::Sizes;
use crate::harness::{Ceiling, Device, DeviceError, Length, Load, Plan, Test, Trial};
use crate::progress::Progress;
use crate::suites;
use crate::tandem::{Tandem, TandemOptions, USUAL_SOURCES};

/// Seconds of a trial that conforms to RFC 2544 section 24, and of one that does not.
const TRIAL_SECONDS: f64 = 60.0;
const QUICK_SECONDS: f64 = 0.2;
/// How long packets may be late: RFC 2544 section 23 has two seconds.
const RESIDUAL: Duration = Duration::from_secs(2);
pub(crate) const QUICK_RESIDUAL: Duration = Duration::from_millis(200);
/// Trials of a size that are to be expected in one repetition of all tests.
const TRIALS: u32 = 45;

/// The gateways that are measured.
#[derive(Debug, Clone, clap::Args)]
pub struct TandemArgs {
    /// Suite of the tunnels
    #[arg(long, default_value = "aes128gcm16", value_parser = suites::parser(|_| true))]
    pub suite: String,

    /// Engine that does the cryptography [default: the first that works here and does the suite]
    #[arg(long, value_name = "NAME")]
    pub engine: Option<String>,

    /// SAs from the first gateway to the second, which flows are spread over evenly; where packets cross a
    /// network a power of two, since each has a tunnel for a part of the sources
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub sas: u32,

    /// Flows of UDP, each from a random address; at least as many as SAs, and 16384 at most where packets
    /// cross a network
    #[arg(long, default_value_t = 1024, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub flows: u32,

    /// Network that flows have random addresses of, in IPv4 [default: 10.0.0.0/8; of site A, 10.1.0.128/26,
    /// where packets cross a network]
    #[arg(long, value_name = "PREFIX", value_parser = prefix)]
    pub sources: Option<(Ipv4Addr, u8)>,

    /// Seed of addresses, lengths and payloads
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
}

impl TandemArgs {
    /// Starts the device.
    pub(crate) fn open(&self, candidates: Vec<Candidate>) -> Result<Tandem, BenchError> {
        has_flows(self.flows, self.sas)?;
        let suite = self.suite.parse().map_err(|error| BenchError::Usage(format!("--suite: {error}")))?;
        let sources = self.sources.unwrap_or(USUAL_SOURCES);
        let options = TandemOptions { suite, sas: self.sas, flows: self.flows, sources, seed: self.seed };
        Tandem::new(options, candidates, self.engine.as_deref())
    }
}

/// Options of `testudo lab rfc2544`.
#[derive(Debug, Clone, clap::Args)]
pub struct Rfc2544Options {
    /// Lengths of Ethernet frames in bytes, check sequence included (64 to 1518); random: any of these,
    /// equally often; imix: 64, 540 and 1364 bytes (61.22, 23.47, 15.31 %); imix-simple: 64, 594 and 1518
    /// bytes (7 to 4 to 1)
    #[arg(
        long,
        value_delimiter = ',',
        value_name = "BYTES,…",
        default_value = "64,128,256,512,1024,1280,1518"
    )]
    pub sizes: Vec<Sizes>,

    /// Seconds of each trial [default: 60, as RFC 2544 asks for; 0.2 with --quick]
    #[arg(long, value_name = "N", value_parser = seconds)]
    pub trial_seconds: Option<f64>,

    /// Take seconds instead of hours: short trials. Results do not conform to RFC 2544, and say so
    #[arg(long)]
    pub quick: bool,

    /// Tests to make: throughput, latency (at shares of the throughput, or of half of the highest rate if
    /// throughput is not among them), frame-loss, back-to-back
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        value_name = "TEST,…",
        default_value = "throughput,latency,frame-loss,back-to-back"
    )]
    pub tests: Vec<TestName>,

    /// Repetitions of each test: rows are medians, and say how far repetitions are apart
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub repetitions: u32,

    /// What the gateways' packets come and go by
    #[arg(long, value_enum, default_value_t, value_name = "KIND")]
    pub over: Over,

    /// The gateways.
    #[command(flatten)]
    pub device: TandemArgs,

    /// Print a JSON array instead of the table, and no progress
    #[arg(long)]
    pub json: bool,
}

/// What is between generator, gateways and sink.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum)]
pub enum Over {
    /// Rings in memory: both gateways are a worker of this process
    #[default]
    Memory,
    /// Virtual cables between namespaces; gateways are processes with TUN interfaces and sockets
    Veth,
    /// The same cables, by AF_XDP at both sides of both gateways, native mode: needs root
    Xdp,
    /// The same cables, by DPDK at both sides of both gateways, its driver of AF_XDP: needs root, libdpdk-dev
    /// and the plugin
    Dpdk,
}

impl Over {
    /// Name in reports.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Veth => "veth",
            Self::Xdp => "xdp",
            Self::Dpdk => "dpdk",
        }
    }
}

/// A test of RFC 2544, on the command line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum TestName {
    /// The highest rate without loss (26.1)
    Throughput,
    /// Latencies at 10 to 100 % of the throughput (26.2)
    Latency,
    /// The share of lost frames, from the highest rate down (26.3)
    FrameLoss,
    /// The longest burst without loss (26.4)
    BackToBack,
}

/// That each SA has a flow: an SA without one would be among those that rows name, and carry nothing.
pub(crate) fn has_flows(flows: u32, sas: u32) -> Result<(), BenchError> {
    match flows < sas {
        true => Err(BenchError::Usage(format!("--flows: {sas} SAs need as many, {flows} are fewer"))),
        false => Ok(()),
    }
}

/// A network of IPv4 and the length of its prefix; bits beyond it are 0.
fn prefix(text: &str) -> Result<(Ipv4Addr, u8), String> {
    let of = |(address, length): (&str, &str)| {
        let (address, length): (Ipv4Addr, u8) = (address.parse().ok()?, length.parse().ok()?);
        let hosts = u32::MAX.checked_shr(length.into()).unwrap_or(0);
        (length <= 32 && address.to_bits() & hosts == 0).then_some((address, length))
    };
    text.split_once('/')
        .and_then(of)
        .ok_or_else(|| "expected a network of IPv4, such as 10.9.0.0/16".to_owned())
}

/// A time in seconds, from a millisecond to an hour.
pub(crate) fn seconds(text: &str) -> Result<f64, String> {
    let seconds = text.parse().ok().filter(|seconds| (0.001..=3600.0).contains(seconds));
    seconds.ok_or_else(|| "expected seconds, from 0.001 to 3600".to_owned())
}

impl Rfc2544Options {
    pub(super) fn plan(&self) -> Plan {
        let usual = if self.quick { QUICK_SECONDS } else { TRIAL_SECONDS };
        let trial = Duration::from_secs_f64(self.trial_seconds.unwrap_or(usual));
        Plan { trial, repetitions: self.repetitions, ..Plan::default() }
    }

    /// How long packets may be late that cross a network.
    pub(super) fn residual(&self) -> Duration {
        if self.quick { QUICK_RESIDUAL } else { RESIDUAL }
    }

    /// Without duplicates, in order.
    pub(super) fn sizes(&self) -> Vec<Sizes> {
        let mut kept = Vec::new();
        self.sizes.iter().for_each(|sizes| {
            if !kept.contains(sizes) {
                kept.push(*sizes)
            }
        });
        kept
    }

    /// Throughput first: latency needs it.
    pub(super) fn tests(&self) -> Vec<Test> {
        let of = |name| match name {
            TestName::Throughput => Test::Throughput,
            TestName::Latency => Test::Latency,
            TestName::FrameLoss => Test::FrameLoss,
            TestName::BackToBack => Test::BackToBack,
        };
        let all = [TestName::Throughput, TestName::Latency, TestName::FrameLoss, TestName::BackToBack];
        all.into_iter().filter(|name| self.tests.contains(name)).map(of).collect()
    }

    /// About how long all of it takes.
    pub(super) fn expected(&self) -> Duration {
        let sizes = u32::try_from(self.sizes().len()).unwrap_or(u32::MAX);
        self.plan().trial.saturating_mul(sizes.saturating_mul(TRIALS * self.repetitions))
    }

    /// Why a test with this plan does not conform to RFC 2544; empty if it does.
    pub(super) fn deviations(&self, test: Test) -> Vec<String> {
        let (trial, repetitions) = (self.plan().trial.as_secs_f64(), self.repetitions);
        let mut deviations = Vec::new();
        if self.over != Over::Memory && self.residual() < RESIDUAL {
            deviations.push(format!(
                "does not conform to RFC 2544: packets may be {} s late, section 23 has {} s",
                self.residual().as_secs_f64(),
                RESIDUAL.as_secs_f64()
            ));
        }
        let (least_seconds, least_repetitions, section) = match test {
            Test::Throughput | Test::FrameLoss | Test::Overload | Test::Efficiency | Test::Placement => {
                (60.0, 1, "24")
            }
            Test::Latency => (120.0, 20, "26.2"),
            Test::BackToBack => (2.0, 50, "26.4"),
        };
        if trial < least_seconds {
            deviations.push(format!(
                "does not conform to RFC 2544: a trial is {trial} s, section {section} asks for {least_seconds} s"
            ));
        }
        if repetitions < least_repetitions {
            deviations.push(format!(
                "does not conform to RFC 2544: {repetitions} repetitions, section {section} asks for {least_repetitions}"
            ));
        }
        if self.quick && deviations.is_empty() {
            deviations.push("does not conform to RFC 2544: --quick".to_owned());
        }
        deviations
    }
}

/// Whether no progress is shown: standard error is no terminal, or a program reads what is printed.
pub(crate) fn is_silent(json: bool) -> bool {
    json || !std::io::stderr().is_terminal()
}

/// A device whose trials are shown by a progress bar.
pub(crate) struct Watched<'a> {
    device: &'a mut dyn Device,
    progress: Progress,
    trial: Duration,
    name: String,
}

impl<'a> Watched<'a> {
    pub(crate) fn new(device: &'a mut dyn Device, expected: Duration, trial: Duration, json: bool) -> Self {
        let progress = Progress::new(expected, is_silent(json));
        Self { device, progress, trial, name: String::new() }
    }

    /// The trials that follow are of this test.
    pub(crate) fn begin(&mut self, test: Test, sizes: Sizes) {
        self.name = format!("{}, frames of {sizes}", test.name().replace('_', " "));
    }
}

impl Device for Watched<'_> {
    fn maximum_rate(&mut self, sizes: Sizes) -> Result<Ceiling, DeviceError> {
        self.device.maximum_rate(sizes)
    }

    fn set_pause(&mut self, pause: Duration) -> Result<(), DeviceError> {
        self.device.set_pause(pause)
    }

    fn trial(&mut self, sizes: Sizes, load: Load) -> Result<Trial, DeviceError> {
        let expected = match load.length {
            Length::Time(time) => time,
            Length::Packets(_) => self.trial.min(Duration::from_secs(2)),
        };
        let rate = crate::table::grouped_figure(load.packets_per_second);
        self.progress.stage(&format!("{}: {rate} packets/s", self.name), expected);
        self.device.trial(sizes, load)
    }
}
