//! The command line. Man pages and completions are generated from it.

pub mod ike;
pub mod policy;
pub mod tune;

use clap::{Args, Parser, Subcommand, ValueEnum};
use ike::IkeVerb;
use policy::PolicyVerb;
use std::net::IpAddr;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;
use testudo_control::config::protocol_number;
use testudo_lab::bench::BenchArgs;
use testudo_lab::command::LabArgs;
use testudo_lab::demo::DemoOptions;
use tune::TuneVerb;

/// A VPN gateway in software: IPsec in tunnel mode at the speed of the machine.
#[derive(Debug, Parser)]
#[command(name = "testudo", version, propagate_version = true, max_term_width = 100, after_help = EXIT_CODES)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub verb: Verb,
}

const EXIT_CODES: &str = "Exit codes: 0 done; 1 failed; 2 command line or configuration; 3 durable state; \
4 device, port, address or permission; 5 no engine; 6 no gateway answers.";

/// The verbs.
#[derive(Debug, Subcommand)]
pub enum Verb {
    /// Run a gateway in the foreground, until SIGTERM; SIGHUP reloads its configuration
    Run(ConfigArgs),
    /// Check a configuration and its keys, and report all errors at once
    Check(CheckArgs),
    /// Create the durable store of sequence numbers, once, before a gateway's first start
    Init(InitArgs),
    /// List the keys that the durable store remembers, and have it forget some, while no gateway runs
    #[command(subcommand)]
    Store(StoreVerb),
    /// Print, load or remove the nftables rules and routes that stop packets which policy protects from
    /// passing this host in clear
    Firewall(FirewallArgs),
    /// Send packet files through the data path, offline and deterministic
    Replay(ReplayArgs),
    /// Show the state of the running gateway: uptime, engines, ports, drops
    Status(QueryArgs),
    /// Watch the running gateway: rates, cycles per packet by stage, and the bottleneck
    Top(TopArgs),
    /// Show and change the security associations of the running gateway
    #[command(subcommand)]
    Sa(SaVerb),
    /// Show the policies of the running gateway, or change them
    #[command(subcommand)]
    Policy(PolicyVerb),
    /// Show the workers of the running gateway, or change how many get packets
    Workers(WorkersArgs),
    /// Have strongSwan or libreswan negotiate the gateway's keys, and see whether they do
    #[command(subcommand)]
    Ike(IkeVerb),
    /// Show which policy and SA of the running gateway a packet would match, and why
    Explain(ExplainArgs),
    /// Show the gateway at work on real traffic: two sites, two gateways, an eavesdropper and an attacker, in
    /// private namespaces
    Demo(DemoOptions),
    /// Set the host of an interface for a gateway's traffic: see what should change, change it, take it back
    #[command(subcommand)]
    Tune(TuneVerb),
    /// Measure the data path in memory: packets per second, cycles by stage, and the cost of the
    /// cryptography alone
    Bench(BenchArgs),
    /// Measure gateways as the standards and papers do: at offered rates, with loss and latency
    Lab(LabArgs),
    /// Print a completion script for a shell
    Completions(CompletionsArgs),
    /// Write the man pages
    Man(ManArgs),
}

/// `testudo sa …`
#[derive(Debug, Subcommand)]
pub enum SaVerb {
    /// List all SAs with their counters
    List(SaListArgs),
    /// List the flows that want SAs of their own, by policies with `populate_from_packet`
    Wanted(QueryArgs),
    /// Add SAs to a tunnel, beside those that it has; or to the tunnel of a flow, which begins with them
    Add(SaAddArgs),
    /// Replace the SAs of a tunnel and lose no packet: the old ones stay until no packet of theirs is on its
    /// way
    Replace(SaReplaceArgs),
    /// Send the packets of a tunnel through another of its outbound SAs
    Use(SaUseArgs),
    /// Remove an SA from a tunnel
    Delete(SaDeleteArgs),
    /// Read the keys of live SAs, to look into recorded packets, where the configuration allows it
    Keys(SaKeysArgs),
}

const RUN_TIME_NOTES: &str = "Such SAs last until they are deleted or replaced, a reload changes their tunnel, or the gateway \
ends: a restart brings back the SAs of the configuration. Write their SPIs and keys into the configuration as well, unless they are \
ephemeral.\n\nKeys are hex text as in key files. With both --inbound and --outbound, the key file has the key of the inbound SA \
first, then an empty line, then that of the outbound SA. A key file must be readable by its owner alone.";

/// `testudo sa list`
#[derive(Debug, Args)]
pub struct SaListArgs {
    /// Only the SAs of this tunnel
    #[arg(long, value_name = "TUNNEL")]
    pub tunnel: Option<String>,
    /// All windows of SAs of VPE, each with its highest number, of which there are only the first otherwise
    #[arg(long)]
    pub windows: bool,
    /// Look twice, so many seconds apart, and show the rates in between, too: packets and bits per second
    #[arg(long, value_name = "SECONDS", value_parser = interval)]
    pub interval: Option<Duration>,
    /// Go on until interrupted, every second or --interval
    #[arg(long)]
    pub watch: bool,
    /// Which gateway.
    #[command(flatten)]
    pub gateway: QueryArgs,
}

/// `testudo sa keys`
#[derive(Debug, Args)]
#[command(after_long_help = KEYS_NOTES)]
pub struct SaKeysArgs {
    /// Lines for Wireshark's table of ESP SAs, the file esp_sa of a profile
    #[arg(long, required_unless_present = "json", conflicts_with = "json")]
    pub wireshark: bool,
    /// Only the SAs of this tunnel
    #[arg(long, value_name = "TUNNEL")]
    pub tunnel: Option<String>,
    /// Write them to a new file that only its owner may read, instead of standard output
    #[arg(long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Replace the file if there is one
    #[arg(long, requires = "output")]
    pub force: bool,
    /// Which gateway.
    #[command(flatten)]
    pub gateway: QueryArgs,
}

const KEYS_NOTES: &str = "Who has the keys can read all that the SAs carry, recorded packets too, and forge more. The gateway keeps \
them only with `allow_key_export = true` in [gateway], tells root and its own user alone, and audits each reading. Suites that \
Wireshark 4.0 does not know are left out, with a comment.";

/// The SAs that a verb adds.
#[derive(Debug, Args)]
pub struct NewSaArgs {
    /// Name of the tunnel
    #[arg(value_name = "TUNNEL")]
    pub tunnel: String,
    /// SPI of a new SA from the peer, 0x… or decimal, at least 256
    #[arg(long, value_name = "SPI", value_parser = spi, required_unless_present = "outbound")]
    pub inbound: Option<u32>,
    /// SPI of a new SA towards the peer
    #[arg(long, value_name = "SPI", value_parser = spi)]
    pub outbound: Option<u32>,
    /// File with the keys, or - for standard input
    #[arg(long, value_name = "FILE")]
    pub key_file: PathBuf,
    /// The worker that the SAs are for, from 0 on: it alone sends through the outbound one, and `replace`
    /// replaces those of this worker (RFC 9611) [default: all workers that have none of their own]
    #[arg(long, value_name = "N")]
    pub worker: Option<u32>,
    /// Algorithms [default: those of the tunnel's configuration]
    #[arg(long, value_name = "SUITE")]
    pub suite: Option<String>,
    /// Take sequence numbers from memory alone: for keys that no gateway had before, or will have after this
    /// one ends. The durable store never hears of them
    #[arg(long)]
    pub ephemeral: bool,
    /// Go on after the numbers of a key that the durable store knows
    #[arg(long, conflicts_with = "ephemeral")]
    pub resume: bool,
    /// Limits of the SAs.
    #[command(flatten)]
    pub lifetime: LifetimeArgs,
}

/// Limits of an SA; without any, those of the tunnel's configuration hold.
#[derive(Debug, Args)]
pub struct LifetimeArgs {
    /// Warn after so many seconds
    #[arg(long, value_name = "N")]
    pub soft_seconds: Option<u64>,
    /// Stop after so many seconds
    #[arg(long, value_name = "N")]
    pub hard_seconds: Option<u64>,
    /// Warn after so many packets
    #[arg(long, value_name = "N")]
    pub soft_packets: Option<u64>,
    /// Stop after so many packets
    #[arg(long, value_name = "N")]
    pub hard_packets: Option<u64>,
    /// Warn after so many bytes
    #[arg(long, value_name = "N")]
    pub soft_bytes: Option<u64>,
    /// Stop after so many bytes
    #[arg(long, value_name = "N")]
    pub hard_bytes: Option<u64>,
}

/// `testudo sa add`
#[derive(Debug, Args)]
#[command(after_help = RUN_TIME_NOTES)]
pub struct SaAddArgs {
    /// The SAs.
    #[command(flatten)]
    pub new: NewSaArgs,
    /// Send the tunnel's packets through the new outbound SA at once; otherwise only if none is in use
    #[arg(long = "use", requires = "outbound")]
    pub use_now: bool,
    /// The flow that the SAs are for, with values as `testudo sa wanted` shows them, such as "local=10.1.0.5
    /// protocol=udp remote_ports=53": TUNNEL is the template that a policy with `populate_from_packet` names.
    /// The flow's own tunnel begins with an SA each way, is called TUNNEL/NUMBER, and ends when one way has
    /// no SA left. Its keys are ephemeral
    #[arg(long = "for", value_name = "VALUES", value_parser = flow)]
    pub flow: Option<Flow>,
    /// The policy that populates them, by its name or number, if several have this template
    #[arg(long, value_name = "POLICY", requires = "flow")]
    pub policy: Option<String>,
    /// Which gateway.
    #[command(flatten)]
    pub gateway: QueryArgs,
}

/// `testudo sa replace`
#[derive(Debug, Args)]
#[command(after_help = RUN_TIME_NOTES)]
pub struct SaReplaceArgs {
    /// The SAs.
    #[command(flatten)]
    pub new: NewSaArgs,
    /// Send through the new outbound SA when the first authentic packet has come through the new inbound one,
    /// not at once: for the end that is changed first
    #[arg(long, requires_all = ["inbound", "outbound"])]
    pub when_peer_does: bool,
    /// Remove the old SAs so many seconds after the new outbound SA is in use
    #[arg(long, value_name = "SECONDS", default_value_t = 30)]
    pub overlap: u64,
    /// Which gateway.
    #[command(flatten)]
    pub gateway: QueryArgs,
}

/// `testudo sa use`
#[derive(Debug, Args)]
pub struct SaUseArgs {
    /// Name of the tunnel
    #[arg(value_name = "TUNNEL")]
    pub tunnel: String,
    /// SPI of one of its outbound SAs
    #[arg(long, value_name = "SPI", value_parser = spi)]
    pub spi: u32,
    /// Which gateway.
    #[command(flatten)]
    pub gateway: QueryArgs,
}

/// A direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum DirectionArg {
    /// From the peer
    Inbound,
    /// Towards the peer
    Outbound,
}

/// `testudo sa delete`
#[derive(Debug, Args)]
pub struct SaDeleteArgs {
    /// Name of the tunnel
    #[arg(value_name = "TUNNEL")]
    pub tunnel: String,
    /// SPI of the SA
    #[arg(long, value_name = "SPI", value_parser = spi)]
    pub spi: u32,
    /// Which of two SAs with this SPI
    #[arg(long, value_enum)]
    pub direction: Option<DirectionArg>,
    /// Even if the tunnel's packets are dropped then
    #[arg(long)]
    pub force: bool,
    /// Which gateway.
    #[command(flatten)]
    pub gateway: QueryArgs,
}

/// The values of a flow, by the names of their fields.
pub type Flow = std::collections::BTreeMap<String, String>;

fn flow(text: &str) -> Result<Flow, String> {
    let words = text.split(|c: char| c == ',' || c.is_whitespace()).filter(|word| !word.is_empty());
    let pairs =
        words.map(|word| word.split_once('=').map(|(name, value)| (name.to_owned(), value.to_owned())));
    let expected =
        "expected NAME=VALUE, several with spaces between them, such as \"local=10.1.0.5 protocol=udp\"";
    let flow: Flow = pairs.collect::<Option<_>>().ok_or(expected)?;
    if flow.is_empty() { Err(expected.to_owned()) } else { Ok(flow) }
}

fn spi(text: &str) -> Result<u32, String> {
    let digits = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X"));
    let number = digits.map_or_else(|| text.parse(), |digits| u32::from_str_radix(digits, 16));
    let expected = "expected an SPI from 256 to 4294967295, decimal or 0x…";
    number.ok().filter(|spi| *spi >= 256).ok_or_else(|| expected.to_owned())
}

/// A configuration file.
#[derive(Debug, Args)]
pub struct ConfigArgs {
    /// Configuration file (TOML)
    pub config: PathBuf,
}

/// `testudo init`
#[derive(Debug, Args)]
pub struct InitArgs {
    /// Configuration file (TOML)
    pub config: PathBuf,
    /// Record in the store, new or existing, that no gateway ever ran with these keys: needed before the
    /// first start with suites whose nonces are their sequence numbers
    #[arg(long)]
    pub fresh_keys: bool,
}

/// `testudo store …`
#[derive(Debug, Subcommand)]
pub enum StoreVerb {
    /// List the keys that the store remembers: configured, kept, or retired
    List(StoreListArgs),
    /// Forget retired keys of which no copy exists any more
    ///
    /// The store remembers every key that it has seen, so that no sequence number comes twice under it. A key
    /// that is not configured when the gateway starts or reloads is retired: little more is kept than its
    /// next sequence number and the highest one that it received. The store remembers at most 1,048,576 keys
    /// and then refuses new ones. Only then is there a reason to forget any. Never use a forgotten key again:
    /// its nonces would repeat, which reveals its secrets (RFC 4106 2).
    Forget(StoreForgetArgs),
    /// Retire keys that are not configured, and give unused space of the file back
    Compact(ConfigArgs),
}

/// `testudo store list`
#[derive(Debug, Args)]
pub struct StoreListArgs {
    /// Configuration file (TOML), which names the store
    pub config: PathBuf,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `testudo store forget`
#[derive(Debug, Args)]
pub struct StoreForgetArgs {
    /// Configuration file (TOML), which names the store
    pub config: PathBuf,
    /// Keys, as `testudo store list` shows them
    #[arg(value_name = "KEY", required = true)]
    pub keys: Vec<String>,
    /// Confirm that every copy of these keys is destroyed, in files, backups and peers
    #[arg(long)]
    pub keys_are_destroyed: bool,
}

/// `testudo check`
#[derive(Debug, Args)]
pub struct CheckArgs {
    /// Configuration file (TOML)
    pub config: PathBuf,
    /// Print errors as a JSON array
    #[arg(long)]
    pub json: bool,
}

/// `testudo firewall`
#[derive(Debug, Args)]
#[command(after_help = FIREWALL_NOTES)]
pub struct FirewallArgs {
    /// Configuration file (TOML); its keys are not read
    pub config: PathBuf,
    /// Load the rules in one transaction, replacing those of the same interface, and add the fallback routes
    #[arg(long)]
    pub apply: bool,
    /// Remove the rules and the fallback routes of this configuration's interface
    #[arg(long, conflicts_with = "apply")]
    pub remove: bool,
    /// The rules for the policies that the running gateway has in force, which `testudo policy` may have
    /// changed, instead of those of the file
    #[arg(long, conflicts_with = "remove")]
    pub running: bool,
    /// Load the rules for the policies that the running gateway has in force, and again whenever these
    /// change, such as by what is negotiated, until this program is ended
    #[arg(long, conflicts_with_all = ["apply", "remove", "running", "json"])]
    pub follow: bool,
    /// Print rules, routes and warnings as JSON
    #[arg(long, conflicts_with_all = ["apply", "remove"])]
    pub json: bool,
}

const FIREWALL_NOTES: &str = "The rules are in their own table, inet testudo-INTERFACE, which only drops packets and never \
overrides other tables. They match packets that pass this host in clear against the policies of the configuration, and stay \
in force when the gateway stops or crashes. Fallback routes (type unreachable, proto 84) apply while the gateway's own routes \
are gone. Apply again after each change of the configuration; after changes of the running gateway's policies, `testudo policy` does so \
itself where the rules are loaded. What is negotiated (docs/IKE.md) changes by itself: --follow keeps rules for it in tables beside that one. Needs nft and ip, and \
root for --apply, --remove and --follow.";

/// Which side of a gateway.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum SideArg {
    /// The private network
    Protected,
    /// The public network
    Unprotected,
}

/// `PORT=FILE`
#[derive(Debug, Clone)]
pub struct PortFile {
    /// The side.
    pub side: SideArg,
    /// The packet file.
    pub path: PathBuf,
}

impl FromStr for PortFile {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (side, path) = text.split_once('=').ok_or("expected PORT=FILE, for example protected=in.pcap")?;
        let side = SideArg::from_str(side, false).map_err(|_| "PORT is \"protected\" or \"unprotected\"")?;
        Ok(Self { side, path: path.into() })
    }
}

/// `testudo replay`
#[derive(Debug, Args)]
pub struct ReplayArgs {
    /// Configuration file (TOML); it may give known answers
    ///
    /// A tunnel with `known_answer = { … }` starts where the packets of a file do: `next_sequence_number`
    /// (default 1) and `iv_seed` (XORed into the numbers to make the IVs, default 0) for the outbound SA;
    /// `inbound_sequence_number`, the highest number that the inbound SA has received, and `inbound_window`,
    /// in hexadecimal digits, whose lowest bit is that number, the next one the number before it, and so on
    /// (without it all numbers up to the highest count as received). Its SPIs may be 1 to 255, too, which RFC
    /// 4303 2.1 reserves. A gateway that runs refuses known answers.
    pub config: PathBuf,
    /// Packets to receive on a port: PORT=FILE, where PORT is protected or unprotected
    #[arg(long, value_name = "PORT=FILE", required = true)]
    pub rx: Vec<PortFile>,
    /// File for the packets sent on a port: PORT=FILE; it is replaced only if the whole replay succeeds.
    /// Packets without a file are only counted
    #[arg(long, value_name = "PORT=FILE")]
    pub tx: Vec<PortFile>,
    /// Engine to use instead of the configuration's
    #[arg(long, value_name = "NAME")]
    pub engine: Option<String>,
    /// List all packets: what each became, or why it was dropped, through which SA and by which policy
    ///
    /// A line has the packet (P and U are the protected and the unprotected side's, numbered from 1 in their
    /// files); what it became (a packet of an output; "part of" a datagram that was put together; or the
    /// reason for which it was dropped, by its name in `testudo status`); the SA with tunnel, protocol, SPI
    /// and sequence number (of VPE with Sender ID and Window ID before it: s0 w3 #7); and the place of the
    /// policy, as in `testudo policy list`. A packet that the gateway made of another has a line of its own:
    /// "fragment" is one that was cut off, "message" an ICMP error. Packets that it sent by itself have no
    /// number. With --json each line is an object, and the last one has the counters.
    #[arg(long)]
    pub list: bool,
    /// Packets of each input that are processed together, 1 to 256, to find faults that depend on it
    #[arg(long, value_name = "N", value_parser = batch)]
    pub batch: Option<usize>,
    /// Print counters as JSON
    #[arg(long)]
    pub json: bool,
}

fn batch(text: &str) -> Result<usize, String> {
    let packets = text.parse().ok().filter(|packets| (1..=256).contains(packets));
    packets.ok_or_else(|| "expected a number from 1 to 256".to_owned())
}

/// Which gateway to query.
#[derive(Debug, Default, Args)]
pub struct QueryArgs {
    /// Configuration file of the gateway, which names its control socket
    pub config: Option<PathBuf>,
    /// Control socket of the gateway [default: $TESTUDO_CONTROL, else /run/testudo/control.sock]
    #[arg(long, value_name = "SOCKET")]
    pub control: Option<PathBuf>,
    /// CONFIG as an option: the older spelling.
    #[arg(long = "config", value_name = "FILE", hide = true, conflicts_with = "config")]
    pub config_option: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `testudo workers`
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct WorkersArgs {
    /// What to change.
    #[command(subcommand)]
    pub verb: Option<WorkersVerb>,
    /// Which gateway.
    #[command(flatten)]
    pub gateway: QueryArgs,
}

/// `testudo workers …`
#[derive(Debug, Subcommand)]
pub enum WorkersVerb {
    /// Have so many workers get packets, until `workers` in the configuration changes or a restart
    Set(WorkersSetArgs),
}

/// `testudo workers set`
#[derive(Debug, Args)]
pub struct WorkersSetArgs {
    /// How many, up to `workers_max` of the configuration
    pub workers: u64,
    /// Which gateway.
    #[command(flatten)]
    pub gateway: QueryArgs,
}

/// `testudo top`
#[derive(Debug, Args)]
pub struct TopArgs {
    /// Seconds between two snapshots, from 0.1 to 3600
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = interval)]
    pub interval: Duration,
    /// End after this many snapshots, printed one below the other
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub count: Option<u64>,
    /// Which gateway.
    #[command(flatten)]
    pub gateway: QueryArgs,
}

fn interval(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().ok().filter(|seconds| (0.1..=3600.0).contains(seconds));
    seconds.map(Duration::from_secs_f64).ok_or_else(|| "expected seconds, from 0.1 to 3600".to_owned())
}

/// `testudo explain`
#[derive(Debug, Args)]
pub struct ExplainArgs {
    /// Side that the packet arrives on
    #[arg(long, value_enum, default_value = "protected")]
    pub side: SideArg,
    /// Interface of the protected side that it comes from, or is to leave by [default: the main one]
    #[arg(long, value_name = "NAME")]
    pub interface: Option<String>,
    /// Source address
    #[arg(value_name = "SOURCE")]
    pub source: IpAddr,
    /// Destination address
    #[arg(value_name = "DESTINATION")]
    pub destination: IpAddr,
    /// Protocol, by name or number [default: one that no policy names]
    #[arg(long, value_parser = protocol)]
    pub protocol: Option<u8>,
    /// Source port
    #[arg(long, value_name = "PORT", requires_all = ["destination_port", "protocol"])]
    pub source_port: Option<u16>,
    /// Destination port
    #[arg(long, value_name = "PORT", requires_all = ["source_port", "protocol"])]
    pub destination_port: Option<u16>,
    /// Type of a message of icmp, icmpv6 or mobility, by name or number, and its code: "8", "3/4",
    /// "destination-unreachable/fragmentation-needed"
    #[arg(long = "type", value_name = "TYPE[/CODE]", requires = "protocol", conflicts_with = "source_port")]
    pub message: Option<String>,
    /// DSCP, which says in which windows an SA of VPE sends it
    #[arg(long, default_value = "0", value_parser = clap::value_parser!(u8).range(0..=63))]
    pub dscp: u8,
    /// A fragment other than the first: it shows no ports and, over IPv6, no protocol
    #[arg(long, conflicts_with_all = ["source_port", "destination_port", "message"])]
    pub fragment: bool,
    /// Which gateway.
    #[command(flatten)]
    pub gateway: QueryArgs,
}

fn protocol(text: &str) -> Result<u8, String> {
    protocol_number(text).ok_or_else(|| "expected a protocol such as tcp, or a number from 0 to 255".into())
}

/// `testudo completions`
#[derive(Debug, Args)]
pub struct CompletionsArgs {
    /// The shell
    #[arg(value_enum)]
    pub shell: clap_complete::Shell,
}

/// `testudo man`
#[derive(Debug, Args)]
pub struct ManArgs {
    /// Directory to write testudo.1 and a page for each verb to
    pub directory: PathBuf,
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn a_key_never_stands_on_the_command_line_and_an_spi_is_checked() {
        let line = |words: &str| Cli::try_parse_from(words.split(' '));
        let good = "testudo sa replace site-b --inbound 0x1001 --outbound 4098 --key-file -";
        for more in ["", " --when-peer-does", " --overlap 5 --ephemeral", " --hard-packets 9 t.toml"] {
            assert!(line(&format!("{good}{more}")).is_ok(), "{more}");
        }
        let of_a_flow =
            "testudo sa add site-b --inbound 300 --outbound 300 --key-file - --ephemeral --policy web --for";
        assert!(line(&format!("{of_a_flow} remote=10.2.0.7,protocol=udp")).is_ok());
        let bad = [
            "testudo sa replace site-b --key-file -",
            "testudo sa replace site-b --inbound 255 --key-file -",
            "testudo sa replace site-b --inbound 300",
            "testudo sa replace site-b --inbound 300 --key-file - --when-peer-does",
            "testudo sa add site-b --inbound 300 --key-file - --use",
            "testudo sa add site-b --inbound 300 --key-file - --ephemeral --resume",
            "testudo sa add site-b --inbound 300 --outbound 300 --key-file - --for 10.1.0.5",
            "testudo sa add site-b --inbound 300 --outbound 300 --key-file - --policy web",
            "testudo sa delete site-b",
        ];
        for words in bad {
            assert!(line(words).is_err(), "{words}");
        }
    }

    #[test]
    fn every_verb_takes_a_configuration_as_a_positional_argument() {
        let explain = ["explain", "10.0.0.1", "10.0.0.2"];
        let files = ["replay", "--rx", "protected=in.pcap"];
        let add = ["policy", "add", "--action", "discard"];
        let replace = ["policy", "replace", "2", "--action", "discard"];
        let changing = [&add[..], &replace, &["policy", "delete", "2"]];
        let asking =
            [&["status"][..], &["top"], &["sa", "list"], &["sa", "wanted"], &["policy", "list"], &explain];
        let asking = || asking.into_iter().chain(changing);
        for words in [&["run"][..], &["check"], &["init"], &files].into_iter().chain(asking()) {
            let line = [&["testudo"], words, &["t.toml"]].concat();
            assert!(Cli::try_parse_from(&line).is_ok(), "{line:?}");
        }
        for words in asking() {
            for more in [&[][..], &["--config", "t.toml"], &["--control", "c.sock"]] {
                let line = [&["testudo"], words, more].concat();
                assert!(Cli::try_parse_from(&line).is_ok(), "{line:?}");
            }
            let line = [&["testudo"], words, &["t.toml", "--config", "u.toml"]].concat();
            assert!(Cli::try_parse_from(&line).is_err(), "{line:?}");
        }
    }
}
