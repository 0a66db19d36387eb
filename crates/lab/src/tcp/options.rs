//! The command line of `testudo lab tcp`.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use testudo_crypto::Suite;

use super::subject::{Protocol, Subject};
use super::tuning::Tuning;
use crate::bench::BenchError;
use crate::harness::Confidence;
use crate::network::ETHERNET_MTU;
use crate::protection::Protection;

/// Paper 001, section 3.1.
const SIZES: [u32; 10] = [64, 128, 256, 512, 1024, 2048, 4096, 8192, 16_384, 32_768];
const SECONDS: u64 = 10;
/// What `--quick` takes instead.
const QUICK_SIZES: [u32; 3] = [64, 1024, 32_768];
const QUICK_SECONDS: u64 = 1;
const QUICK_REPETITIONS: Repetitions = Repetitions { least: 2, most: 4 };
/// The suites that the paper measures, of ESP and of AH.
const OF_THE_PAPER: [&str; 9] = [
    "des-md5",
    "des-sha1",
    "3des-md5",
    "3des-sha1",
    "aes128-md5",
    "aes128-sha1",
    "aes256-sha1",
    "md5",
    "sha1",
];
/// Where no suite is named.
const USUAL: [&str; 2] = ["aes128gcm16", USUAL_OF_AH];
const USUAL_OF_AH: &str = "sha256";

/// Options of `testudo lab tcp`.
#[derive(Debug, Clone, clap::Args)]
pub struct TcpOptions {
    /// Bytes of a message, which is what each write hands to the kernel: 1 to 65536 [default: 64, 128, 256 …
    /// 32768]
    #[arg(long, value_delimiter = ',', value_name = "BYTES,…", value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub sizes: Vec<u32>,

    /// Security protocols beside plain IP, which is always measured, too: esp, esp-in-udp, ah, ah+esp, vpe,
    /// vpe-in-udp, or all
    #[arg(long, value_delimiter = ',', value_name = "NAME,…", default_value = "esp")]
    pub protocols: Vec<Protocols>,

    /// Tunnel between the sites, or transport mode between the gateways
    #[arg(long, value_enum, value_delimiter = ',', value_name = "MODE,…", default_value = "tunnel")]
    pub modes: Vec<Mode>,

    /// Suites: each goes with the protocols that have it; all, or paper for those of paper 001 [default:
    /// aes128gcm16, of AH alone sha256]
    #[arg(long, value_delimiter = ',', value_name = "NAME,…", value_parser = suites)]
    pub suites: Vec<String>,

    /// Integrity algorithm of AH over ESP [default: sha256]
    #[arg(long, value_name = "NAME", value_parser = of_ah)]
    pub ah_suite: Option<String>,

    /// Rate of the link in Mbit/s, made with tc: 1 to 100000; none leaves it to the machine
    #[arg(long, value_delimiter = ',', value_name = "MBIT,…", default_value = "none")]
    pub link: Vec<Link>,

    /// MTU of all cables, in bytes of an IP packet
    #[arg(long, value_delimiter = ',', value_name = "BYTES,…", default_value = "1500",
          value_parser = clap::value_parser!(u16).range(1280..=9000))]
    pub mtu: Vec<u16>,

    /// Steps of `testudo tune` in the namespaces of the run: all at once, or each after those before it, with
    /// what it brings
    #[arg(long, value_enum, default_value_t, value_name = "WHICH")]
    pub tuning: Tuning,

    /// Seconds of each run [default: 10; 1 with --quick]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=600))]
    pub seconds: Option<u64>,

    /// Runs of each row: from the first number on until the 95 % confidence interval is within 3 %, the
    /// second at most [default: 4-12; 2-4 with --quick]
    #[arg(long, value_name = "N-N")]
    pub repetitions: Option<Repetitions>,

    /// Take a minute: three sizes, short runs and few of them, which does not conform to the paper
    #[arg(long)]
    pub quick: bool,

    /// Bind each end (its gateway and its stream) to half of the processors, whose states are told apart
    /// then;
    /// the default where there are two processors or more
    #[arg(long)]
    pub pin: bool,

    /// Let both ends run on all processors, whose states are those of both then
    #[arg(long, conflicts_with = "pin")]
    pub no_pin: bool,

    /// IPv6 at the sites and on the link
    #[arg(long)]
    pub ipv6: bool,

    /// Workers of each gateway
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=64))]
    pub workers: u8,

    /// Engine that does the cryptography [default: the best that works here]
    #[arg(long)]
    pub engine: Option<String>,

    /// Print a JSON array instead of tables, and no progress
    #[arg(long)]
    pub json: bool,

    /// Also draw throughput over message size to a file
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,

    /// Build of the program to run as gateways [default: this one]
    #[arg(long, hide = true)]
    pub testudo: Option<PathBuf>,
}

/// Protocols on the command line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocols {
    /// Each.
    All,
    /// This one.
    One(Protocol),
}

impl FromStr for Protocols {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "all" {
            return Ok(Self::All);
        }
        let known = Protocol::ALL.into_iter().find(|protocol| protocol.name() == text);
        known
            .map(Self::One)
            .ok_or_else(|| format!("expected {}, or all", Protocol::ALL.map(Protocol::name).join(", ")))
    }
}

/// Where a tunnel or a transport mode SA ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum)]
pub enum Mode {
    /// Between the sites: gateways forward.
    Tunnel,
    /// Between the gateways, which are hosts then.
    Transport,
}

/// The rate of the link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Link {
    /// As fast as the machine.
    Unlimited,
    /// So many Mbit/s of frames.
    Mbit(u32),
}

impl FromStr for Link {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "none" {
            return Ok(Self::Unlimited);
        }
        let rate = text.parse().ok().filter(|rate| (1..=100_000).contains(rate));
        rate.map(Self::Mbit).ok_or_else(|| "expected Mbit/s, from 1 to 100000, or none".to_owned())
    }
}

impl fmt::Display for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unlimited => f.write_str("as fast as this machine"),
            Self::Mbit(rate) => write!(f, "{rate} Mbit/s"),
        }
    }
}

/// The fewest and the most runs of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Repetitions {
    least: u32,
    most: u32,
}

impl FromStr for Repetitions {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number = |text: &str| text.parse().ok().filter(|number| (1..=100).contains(number));
        let (least, most) = text.split_once('-').unwrap_or((text, text));
        match (number(least), number(most)) {
            (Some(least), Some(most)) if least <= most => Ok(Self { least, most }),
            _ => Err("expected the fewest and the most, from 1 to 100, such as 4-12".to_owned()),
        }
    }
}

fn suites(text: &str) -> Result<String, String> {
    let is_known = matches!(text, "all" | "paper") || text.parse::<Suite>().is_ok() || of_ah(text).is_ok();
    if is_known { Ok(text.to_owned()) } else { Err("no suite of ESP or AH has this name".to_owned()) }
}

fn of_ah(text: &str) -> Result<String, String> {
    Suite::for_ah(text).map(|_| text.to_owned()).map_err(|error| error.to_string())
}

impl TcpOptions {
    /// Bytes of messages, each once, in order.
    pub(super) fn message_bytes(&self) -> Vec<u32> {
        let usual = if self.quick { QUICK_SIZES.to_vec() } else { SIZES.to_vec() };
        sorted(if self.sizes.is_empty() { &usual } else { &self.sizes })
    }

    pub(super) fn duration(&self) -> Duration {
        let usual = if self.quick { QUICK_SECONDS } else { SECONDS };
        Duration::from_secs(self.seconds.unwrap_or(usual))
    }

    pub(super) fn rule(&self) -> Confidence {
        let paper = Confidence::default();
        let usual = Repetitions { least: paper.least, most: paper.most };
        let usual = if self.quick { QUICK_REPETITIONS } else { usual };
        let Repetitions { least, most } = self.repetitions.unwrap_or(usual);
        Confidence { least, most, ..paper }
    }

    /// How this differs from paper 001, section 3.1.
    pub(super) fn deviations(&self) -> Option<String> {
        let (paper, rule, seconds) = (Confidence::default(), self.rule(), self.duration().as_secs());
        let mut found = Vec::new();
        if seconds != SECONDS {
            found.push(format!("runs of {seconds} s, not of {SECONDS} s"));
        }
        if rule != paper {
            let Confidence { least, most, .. } = rule;
            found.push(format!("{least} to {most} repetitions, not {} to {}", paper.least, paper.most));
        }
        if self.quick && self.sizes.is_empty() {
            found.push(format!("{} sizes of messages, not {}", QUICK_SIZES.len(), SIZES.len()));
        }
        (!found.is_empty()).then(|| format!("does not conform to paper 001: {}", found.join("; ")))
    }

    pub(super) fn links(&self) -> Vec<Link> {
        sorted(&self.link)
    }

    pub(super) fn mtus(&self) -> Vec<u16> {
        let mtus = sorted(&self.mtu);
        if mtus.is_empty() { vec![ETHERNET_MTU] } else { mtus }
    }

    /// Plain IP by each path that a mode takes, and what is measured beside it.
    ///
    /// # Errors
    /// Suites that no protocol has, protocols that have no suite or no mode among those, or a suite of AH
    /// over ESP without that.
    pub(super) fn subjects(&self) -> Result<Vec<Subject>, BenchError> {
        let modes = sorted(&self.modes);
        let protocols = self.all_protocols();
        if self.ah_suite.is_some() && !protocols.contains(&Protocol::AhAndEsp) {
            return Err(BenchError::Usage(
                "--ah-suite is of ah+esp, which --protocols does not name".to_owned(),
            ));
        }
        let named = self.all_suites();
        let mut subjects = Vec::new();
        for &mode in &modes {
            subjects.push(Subject::plain(mode));
            for &protocol in protocols.iter().filter(|protocol| protocol.has(mode)) {
                let of_it = self.protections(protocol, mode, &named);
                subjects.extend(of_it.into_iter().map(|protection| Subject::protected(protocol, protection)));
            }
        }
        for protocol in protocols {
            if !subjects.iter().any(|subject| subject.protocol() == Some(protocol)) {
                let what = format!("{} has none of these suites in this mode", protocol.name());
                return Err(BenchError::Usage(what));
            }
        }
        // What was asked for by name is measured, or the user hears of it.
        let is_measured = |name: &String| {
            subjects.iter().any(|subject| subject.suite().is_some_and(|suite| suite == name.as_str()))
        };
        let are_named = !self.suites.is_empty()
            && !self.suites.iter().any(|name| matches!(name.as_str(), "all" | "paper"));
        match named.iter().find(|name| are_named && !is_measured(name)) {
            Some(name) => Err(BenchError::Usage(format!("{name} is no suite of these protocols"))),
            None => Ok(subjects),
        }
    }

    fn all_protocols(&self) -> Vec<Protocol> {
        let is_asked = |protocol: &Protocol| {
            self.protocols
                .iter()
                .any(|asked| matches!(asked, Protocols::All) || *asked == Protocols::One(*protocol))
        };
        Protocol::ALL.into_iter().filter(is_asked).collect()
    }

    /// The names of suites, each once.
    fn all_suites(&self) -> Vec<String> {
        let mut names: Vec<String> = Vec::new();
        let every = || {
            let of_ah = Suite::all_for_ah().filter_map(|suite| suite.ah_name().map(str::to_owned));
            Suite::ALL.iter().map(ToString::to_string).chain(of_ah.collect::<Vec<_>>())
        };
        let usual = USUAL.map(str::to_owned);
        let asked = if self.suites.is_empty() { &usual[..] } else { &self.suites };
        for name in asked {
            match name.as_str() {
                "all" => names.extend(every()),
                "paper" => names.extend(OF_THE_PAPER.map(str::to_owned)),
                _ => names.push(name.clone()),
            }
        }
        let mut seen = std::collections::HashSet::new();
        names.retain(|name| seen.insert(name.clone()));
        names
    }

    /// What a protocol makes of these suites: those that it has.
    fn protections(&self, protocol: Protocol, mode: Mode, names: &[String]) -> Vec<Protection> {
        let of_ah = self.ah_suite.as_deref().unwrap_or(USUAL_OF_AH);
        let of = |name: &String| protocol.protection(mode, name, of_ah);
        names.iter().map(of).filter(|protection| protection.suites().is_ok()).collect()
    }
}

fn sorted<T: Copy + Ord>(values: &[T]) -> Vec<T> {
    let mut values = values.to_vec();
    values.sort_unstable();
    values.dedup();
    values
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Program {
        #[command(flatten)]
        options: TcpOptions,
    }

    fn options(words: &str) -> TcpOptions {
        Program::parse_from(["tcp"].into_iter().chain(words.split_whitespace())).options
    }

    fn names(words: &str) -> Vec<String> {
        options(words).subjects().unwrap().iter().map(Subject::name).collect()
    }

    #[test]
    fn what_is_left_out_is_as_in_the_paper() {
        let options = options("");
        assert_eq!(options.message_bytes(), SIZES);
        assert_eq!((options.duration(), options.rule()), (Duration::from_secs(10), Confidence::default()));
        assert_eq!(options.deviations(), None);
        assert_eq!((options.links(), options.mtus()), (vec![Link::Unlimited], vec![1500]));
    }

    #[test]
    fn quick_runs_do_not_conform_and_say_why() {
        let said = options("--quick").deviations().unwrap();
        assert!(said.contains("runs of 1 s") && said.contains("2 to 4 repetitions"), "{said}");
        let said = options("--quick --seconds 10 --repetitions 4-12").deviations().unwrap();
        assert!(said.ends_with("paper 001: 3 sizes of messages, not 10"), "{said}");
        assert!(options("--seconds 9").deviations().unwrap().contains("runs of 9 s, not of 10 s"));
        assert!(options("--repetitions 3-12").deviations().is_some());
    }

    #[test]
    fn plain_ip_is_there_by_each_path_that_is_measured() {
        assert_eq!(names(""), ["plain IP between sites", "esp, aes128gcm16"]);
        let both = names("--modes transport,tunnel --protocols ah,esp-in-udp --suites md5,aes128-sha1");
        assert_eq!(
            both,
            [
                "plain IP between sites",
                "esp-in-udp, aes128-sha1",
                "ah, md5",
                "plain IP between gateways",
                "esp-in-udp, aes128-sha1, transport mode",
                "ah, md5, transport mode",
            ]
        );
    }

    #[test]
    fn every_protocol_mode_and_suite_can_be_had() {
        let all = options("--protocols all --modes tunnel,transport --suites all").subjects().unwrap();
        let of = |protocol| all.iter().filter(|subject| subject.protocol() == Some(protocol)).count();
        assert_eq!(of(Protocol::Esp), 2 * Suite::ALL.len());
        assert_eq!(of(Protocol::AhAndEsp), 2 * Suite::ALL.len());
        assert_eq!(of(Protocol::Ah), 2 * Suite::all_for_ah().count());
        assert_eq!(of(Protocol::Vpe), Suite::ALL_FOR_VPE.len(), "VPE has tunnel mode alone");
        let paper = names("--protocols esp,ah --suites paper");
        assert_eq!(paper.len(), 1 + OF_THE_PAPER.len());
    }

    #[test]
    fn what_does_not_go_together_is_refused_with_the_reason() {
        let refused = |words: &str| options(words).subjects().unwrap_err().to_string();
        assert!(refused("--protocols vpe --modes transport").contains("vpe has none"));
        assert!(refused("--protocols esp --suites aes128gcm16,md5").contains("md5 is no suite of these"));
        assert!(refused("--protocols ah --suites aes128gcm16").contains("ah has none"));
        assert!(refused("--protocols ah,esp --ah-suite sha1").contains("--ah-suite is of ah+esp, which"));
        for wrong in [
            "--sizes 0",
            "--sizes 65537",
            "--link 0",
            "--link fast",
            "--mtu 1000",
            "--suites rot13",
            "--protocols ipip",
            "--repetitions 5-4",
            "--ah-suite aes128gcm16",
        ] {
            let words = ["tcp"].into_iter().chain(wrong.split(' '));
            assert!(Program::try_parse_from(words).is_err(), "{wrong}");
        }
    }

    #[test]
    fn settings_are_in_order_and_each_once() {
        let options = options("--link 100,none,10,100 --mtu 9000,1500 --sizes 512,64,512");
        assert_eq!(options.links(), [Link::Unlimited, Link::Mbit(10), Link::Mbit(100)]);
        assert_eq!((options.mtus(), options.message_bytes()), (vec![1500, 9000], vec![64, 512]));
    }
}
