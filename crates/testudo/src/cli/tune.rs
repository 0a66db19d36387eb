//! `testudo tune …`: the host's settings for an interface.

use clap::{Args, Subcommand};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;
use testudo_tune::processors::{list, ranges};
use testudo_tune::setting::Group;

/// `testudo tune …`
#[derive(Debug, Subcommand)]
pub enum TuneVerb {
    /// Show what is, what should be and why, and change nothing
    #[command(after_help = CHECK_NOTES)]
    Check(TuneCheckArgs),
    /// Change what is not as it should be, and keep what it was before
    #[command(after_help = APPLY_NOTES)]
    Apply(TuneApplyArgs),
    /// Take back all that apply has changed for an interface
    #[command(after_help = UNDO_NOTES)]
    Undo(TuneUndoArgs),
    /// Take the streams that `apply --measure` at the other end sends, and send it those that it asks for,
    /// until interrupted
    Sink(TuneSinkArgs),
}

const CHECK_NOTES: &str = "Exit code 0: all that can be set is as it should be; 1: something differs. What the device lacks, and what is \
only advice (the kernel's command line, partitions of processors, jumbo frames, huge pages), does not count.";

const APPLY_NOTES: &str = "Each setting is written to the journal before it changes, with its original, so that undo brings back everything \
after an interruption at any moment, too. A second apply keeps the first originals. What the kernel refuses, or makes something else of, is \
put back at once and named; the exit code is 1 then. Needs root. A reboot takes everything back, unless --persist is given, and so does undo. \
Settings of a device may interrupt its link for some seconds.";

const UNDO_NOTES: &str = "Settings of the network namespace, and those of the whole machine, stay as long as another interface wants \
them, for the machine's of any namespace: the last undo brings back what was there before the first apply. What cannot be brought back is \
named and stays in the journal; the exit code is 1 then.";

/// As `ls -l /proc/self/ns/net` shows it, with or without what is around it.
fn number_of_a_namespace(text: &str) -> Result<String, String> {
    let number = testudo_tune::believed::number(text);
    let is_one = !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit());
    is_one.then(|| number.to_owned()).ok_or_else(|| "expected a number such as 4026531840".to_owned())
}

/// As the kernel writes them.
fn list_of_processors(text: &str) -> Result<String, String> {
    let processors = list(text);
    if processors.is_empty() {
        return Err("expected processors such as 2-3,8".to_owned());
    }
    Ok(ranges(&processors))
}

/// What is wanted.
#[derive(Debug, Args)]
pub struct TuneWishes {
    /// MTU of the interface: jumbo frames, if every device of its link carries them [default: as it is]
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u64).range(68..=1_000_000))]
    pub mtu: Option<u64>,
    /// Huge pages of 2 MiB, for ports of kind dpdk [default: as many as there are]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1_048_576))]
    pub huge_pages: Option<u64>,
    /// Processors to keep free for workers that poll, such as 2-3: queues and interrupts of the device,
    /// interrupts of devices that come, and the kernel's own work go to the others [default: none]
    #[arg(long, value_name = "PROCESSORS", value_parser = list_of_processors)]
    pub isolate: Option<String>,
    /// Only these groups, with commas between: sockets, tcp, offloads, rings, mtu, coalescing, napi,
    /// affinity, governor, huge-pages, isolation
    #[arg(long, value_name = "GROUPS", value_delimiter = ',')]
    pub only: Vec<Group>,
}

/// Where originals are kept.
#[derive(Debug, Args)]
pub struct TuneState {
    /// Folder of the journals, of this user alone
    #[arg(long, value_name = "FOLDER", default_value = testudo_tune::folder::DEFAULT)]
    pub state: PathBuf,
}

/// `testudo tune check`
#[derive(Debug, Args)]
pub struct TuneCheckArgs {
    /// Interface
    pub interface: String,
    /// What is wanted.
    #[command(flatten)]
    pub wishes: TuneWishes,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `testudo tune apply`
#[derive(Debug, Args)]
pub struct TuneApplyArgs {
    /// Interface
    pub interface: String,
    /// What is wanted.
    #[command(flatten)]
    pub wishes: TuneWishes,
    /// Where originals are kept.
    #[command(flatten)]
    pub state: TuneState,
    /// Keep what is wanted, and have systemd apply it again whenever the interface appears: at
    /// boot, above all
    #[arg(long, conflicts_with = "state")]
    pub persist: bool,
    /// With what --persist has kept, as the unit testudo-tune@INTERFACE does
    #[arg(long, conflicts_with_all = ["persist", "mtu", "huge_pages", "isolate", "only"])]
    pub persisted: bool,
    /// Measure before and after: TCP streams through the interface to a sink (`testudo tune sink`) there, and
    /// back from it
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub measure: Option<SocketAddr>,
    /// How long each stream lasts: six are sent there and six back, before and after
    #[arg(long, value_name = "SECONDS", value_parser = super::interval, default_value = "1", requires = "measure")]
    pub measure_seconds: Duration,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `testudo tune sink`
#[derive(Debug, Args)]
pub struct TuneSinkArgs {
    /// Where to listen
    #[arg(value_name = "ADDRESS:PORT")]
    pub listen: SocketAddr,
}

/// `testudo tune undo`
#[derive(Debug, Args)]
pub struct TuneUndoArgs {
    /// Interface; it may have gone meanwhile
    pub interface: String,
    /// Number of the network namespace that the interface was in, which has ended: its settings of the
    /// machine are taken back
    #[arg(long, value_name = "NUMBER", value_parser = number_of_a_namespace)]
    pub namespace: Option<String>,
    /// Where originals are kept.
    #[command(flatten)]
    pub state: TuneState,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}
