//! `testudo ike …`: key exchange daemons that are to drive the gateway.

use clap::{Args, Subcommand, ValueEnum};
use std::path::PathBuf;

/// `testudo ike …`
#[derive(Debug, Subcommand)]
pub enum IkeVerb {
    /// Show, write or take back what leads a key exchange daemon to the gateway instead of the kernel
    #[command(after_help = SETUP_NOTES)]
    Setup(SetupArgs),
    /// Show which daemons are installed, set up, and running with the library loaded, and how long tunnels
    /// were without traffic after a restart of the gateway
    Status(IkeStatusArgs),
}

const SETUP_NOTES: &str = "Without --apply nothing is changed: the files are printed as they would be. With --apply they are \
written, all or none, and --undo --apply takes them back: a file that was there before is kept beside as FILE.before-testudo and comes \
back as it was. A file that somebody else has changed since is never touched without --force. What was written is noted in \
/etc/testudo/ike. Daemons are not restarted: the services to restart are named.";

/// A key exchange daemon.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum DaemonArg {
    /// charon, as charon-systemd or behind the `ipsec` command
    Strongswan,
    /// pluto
    Libreswan,
}

/// `testudo ike setup`
#[derive(Debug, Args)]
pub struct SetupArgs {
    /// The daemon
    #[arg(value_enum)]
    pub daemon: DaemonArg,
    /// Take everything back
    #[arg(long)]
    pub undo: bool,
    /// Do it, as root; without this, only show it
    #[arg(long, visible_alias = "yes")]
    pub apply: bool,
    /// Even if somebody else has changed a file since it was written; their changes are lost
    #[arg(long)]
    pub force: bool,
    /// The gateway's name: its configuration is /etc/testudo/NAME.toml, its service testudo@NAME [default:
    /// the only configuration there]
    #[arg(long, value_name = "NAME", conflicts_with = "undo")]
    pub gateway: Option<String>,
    /// The gateway's socket for daemons [default: that of its configuration, else /run/testudo/xfrm.sock]
    #[arg(long, value_name = "PATH", conflicts_with = "undo")]
    pub socket: Option<PathBuf>,
    /// The library that the daemon loads [default: lib/testudo/libtestudo-xfrm.so below /usr/local or /usr]
    #[arg(long, value_name = "PATH", conflicts_with = "undo")]
    pub library: Option<PathBuf>,
    /// The gateway's TUN interface [default: that of its configuration]
    #[arg(long, value_name = "NAME", conflicts_with = "undo")]
    pub interface: Option<String>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// Another folder as the root of the system, such as an image: services there are not told
    #[arg(long, value_name = "FOLDER", default_value = "/")]
    pub root: PathBuf,
}

/// `testudo ike status`
#[derive(Debug, Args)]
pub struct IkeStatusArgs {
    /// The gateway's socket for daemons [default: those of the daemons that are set up, else
    /// /run/testudo/xfrm.sock]
    #[arg(long, value_name = "PATH")]
    pub socket: Option<PathBuf>,
    /// The control socket of the gateway to ask how long tunnels were without traffic [default: those of the
    /// gateways that daemons were led to, else $TESTUDO_CONTROL, else /run/testudo/control.sock]
    #[arg(long, value_name = "PATH")]
    pub control: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// Another folder as the root of the system
    #[arg(long, value_name = "FOLDER", default_value = "/")]
    pub root: PathBuf,
}
