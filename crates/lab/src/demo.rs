//! `testudo demo`: real traffic through two gateways, without privileges, with a verdict.
//!
//! ```text
//!   site A ══ gateway A ─── unprotected link ─── gateway B ══ site B
//!   10.1.0.2             192.0.2.1 ▲ 192.0.2.2               10.2.0.2
//!                    an eavesdropper and attacker sits here
//! ```
//!
//! Four hosts, each in its own namespace; at the gateways, two processes of the program with configurations
//! as a user would write them. Ping, TCP and UDP go through; the link is recorded; recorded packets are sent
//! again, unchanged and altered. The report shows what was measured, and whether every promise was kept.
//!
//! Where namespaces or TUN devices are not available, both gateways are in this process (`memory`), and the
//! report says so.

mod attacker;
mod ike;
mod memory;
mod report;
mod stages;

use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::builder::PossibleValuesParser;
use testudo_gateway::Candidate;

use crate::charon::Installed;
use crate::error::{LabError, io};
use crate::gateway::CONFIGURATION;
use crate::namespaces::{Entered, NamespaceError, require_tun};
use crate::network::PortKind;
use crate::programs::find_program;
use crate::progress::Progress;
use crate::protection::Protection;
use crate::render;
use crate::suites;
use crate::workspace::{Workspace, enter_as_root_with_workspace, enter_with_workspace};
use report::Report;

/// The suites that encrypt (only with these is cleartext on the link a failure), and those of AH.
fn suites() -> PossibleValuesParser {
    suites::parser_with_ah(|suite| suite.encrypts())
}

impl DemoOptions {
    /// The tunnel that is asked for.
    fn protection(&self) -> Result<Protection, LabError> {
        let Self { protocol, mode, suite, ah_suite, encapsulation, .. } = self;
        Protection::choose(protocol, mode, suite.as_deref(), ah_suite.as_deref(), encapsulation.as_deref())
    }
}

/// Options of `testudo demo`.
#[derive(Debug, Clone, clap::Args)]
pub struct DemoOptions {
    /// Seconds of TCP in each direction
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub seconds: u64,

    /// Print one JSON object instead of the table, and no progress
    #[arg(long)]
    pub json: bool,

    /// Keep the folder with configurations, keys, logs and recordings
    #[arg(long)]
    pub keep: bool,

    /// IPv6 at the sites and on the link
    #[arg(long)]
    pub ipv6: bool,

    /// Security protocols of the tunnel; with AH alone packets are authentic, and the eavesdropper reads them
    #[arg(long, default_value = "esp", value_parser = ["esp", "ah", "ah+esp"])]
    pub protocol: String,

    /// Tunnel between the sites, or transport mode between the gateways themselves
    #[arg(long, default_value = "tunnel", value_parser = ["tunnel", "transport"])]
    pub mode: String,

    /// Suite of ESP: one that encrypts, because the eavesdropper must find nothing to read; with AH alone,
    /// its integrity algorithm [default: aes128gcm16, of AH sha256]
    #[arg(long, value_parser = suites())]
    pub suite: Option<String>,

    /// Integrity algorithm of AH over ESP [default: sha256]
    #[arg(long)]
    pub ah_suite: Option<String>,

    /// Encapsulation of ESP, or VPE in its place [default: esp-in-udp; beside AH, esp]
    #[arg(long, value_parser = ["esp-in-udp", "esp", "vpe", "vpe-in-udp"])]
    pub encapsulation: Option<String>,

    /// What the gateways' packets come and go by, on both sides
    #[arg(long, value_enum, default_value_t, value_name = "KIND")]
    pub port: PortKind,

    /// Engine that does the cryptography [default: the best that works here]
    #[arg(long)]
    pub engine: Option<String>,

    /// Workers of each gateway, which share the SAs
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=64), conflicts_with_all = ["memory", "ike", "port"])]
    pub workers: u8,

    /// Keys by two charons of strongSwan, in place of key files: they renew the CHILD_SA again and again
    /// while packets flow; needs charon-systemd and swanctl
    #[arg(long, conflicts_with_all = ["memory", "testudo", "port"])]
    pub ike: bool,

    /// The library that leads charon to a gateway [default: libtestudo-xfrm.so beside this program, else the
    /// installed one]
    #[arg(long, value_name = "FILE", requires = "ike")]
    pub library: Option<PathBuf>,

    /// Run both gateways in this process, joined by memory ports; the default where namespaces or
    /// /dev/net/tun are not available
    #[arg(long, conflicts_with_all = ["testudo", "port"])]
    pub memory: bool,

    /// Build of the program to run as gateways [default: this one]
    #[arg(long, hide = true)]
    pub testudo: Option<PathBuf>,

    /// Also draw the table to this file
    #[arg(long, hide = true)]
    pub svg: Option<PathBuf>,
}

/// Runs the demonstration and prints its report: success if every expectation is met, otherwise failure (1)
/// with the reasons on standard error. `candidates` are the engines that the program has besides the portable
/// one.
///
/// Call it on the main thread before starting others: it re-executes the program inside private namespaces.
#[must_use = "it says whether the demonstration has failed"]
pub fn run(options: &DemoOptions, candidates: Vec<Candidate>) -> ExitCode {
    let outcome = attempt(options, candidates);
    let failures = match &outcome {
        Ok(report) => report.failures.clone(),
        Err(error) => vec![error.to_string()],
    };
    match &outcome {
        Err(_) if options.json => println!("{}", serde_json::json!({"passed": false, "failures": failures})),
        _ => {}
    }
    failures.iter().for_each(|failure| eprintln!("testudo demo: failed: {failure}"));
    match outcome {
        Err(LabError::Namespace(NamespaceError::NotRoot(_))) => ExitCode::from(NOT_PERMITTED),
        _ if failures.is_empty() => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    }
}

/// The exit code of the program where a device or a right is missing.
const NOT_PERMITTED: u8 = 4;

/// A direction of traffic.
#[derive(Debug, Clone, Copy)]
enum Direction {
    AToB,
    BToA,
}

/// Where the gateways are.
enum Environment {
    Namespaces(Entered),
    /// In this process, for the given reason.
    Memory(String),
}

/// Chooses where to run, and makes the folder of the run there.
fn choose_environment(options: &DemoOptions) -> Result<(Environment, Workspace), LabError> {
    let in_memory = |why: &str| -> Result<_, LabError> {
        Ok((Environment::Memory(why.replace('\n', "; ")), Workspace::make("demo", options.keep)?))
    };
    if options.memory {
        return in_memory("--memory was given");
    }
    require_programs()?;
    if options.port == PortKind::Xdp {
        let (inside, workspace) = enter_as_root_with_workspace("demo", options.keep)?;
        return Ok((Environment::Namespaces(inside), workspace));
    }
    // Neither another build of the program nor a daemon can run inside this process, where a gateway has one
    // worker.
    let may_fall_back = options.testudo.is_none() && !options.ike && options.workers == 1;
    let (inside, workspace) = match enter_with_workspace("demo", options.keep) {
        Err(LabError::Namespace(error @ NamespaceError::Forbidden { .. })) if may_fall_back => {
            return in_memory(&error.to_string());
        }
        entered => entered?,
    };
    match require_tun() {
        Err(error) if may_fall_back => Ok((Environment::Memory(error.to_string()), workspace)),
        found => found.map(|()| (Environment::Namespaces(inside), workspace)).map_err(LabError::from),
    }
}

fn attempt(options: &DemoOptions, candidates: Vec<Candidate>) -> Result<Report, LabError> {
    let protection = options.protection()?;
    if options.port != PortKind::Tun && protection.in_transport {
        return Err(LabError::NoTransport);
    }
    let strongswan = if options.ike {
        ike::check(&protection)?;
        Some(Installed::find(options.library.as_deref())?)
    } else {
        None
    };
    let (environment, workspace) = choose_environment(options)?;
    let program = program(options.testudo.as_deref())?;
    if !options.json {
        introduce(options, &environment, &program, &workspace);
    }
    let silent = options.json || !std::io::stderr().is_terminal();
    let flows = if options.ike { 3 } else { 2 };
    let mut progress = Progress::new(Duration::from_secs(flows * options.seconds + 4), silent);
    let report = match environment {
        Environment::Namespaces(inside) => {
            let tunnel = stages::Asked { options, protection: &protection, strongswan: strongswan.as_ref() };
            stages::run(inside, &tunnel, &program, &workspace, &mut progress)?
        }
        Environment::Memory(why) => {
            memory::run(options, &protection, &why, candidates, &workspace, &mut progress)?
        }
    };
    drop(progress);
    show(options, &report)?;
    Ok(report)
}

/// Fails early if a program is not installed.
pub(crate) fn require_programs() -> Result<(), LabError> {
    const NEEDED: [(&str, &str); 3] =
        [("ip", "iproute2"), ("setpriv", "util-linux"), ("unshare", "util-linux")];
    let missing = NEEDED.iter().find(|(program, _)| find_program(program).is_none());
    match missing {
        Some(&(program, package)) => Err(LabError::MissingProgram { program, package }),
        None => Ok(()),
    }
}

/// The build to use: this program, unless another is named.
pub(crate) fn program(named: Option<&Path>) -> Result<PathBuf, LabError> {
    match named {
        Some(path) => path.canonicalize().map_err(io(format!("find {}", path.display()))),
        None => std::env::current_exe().map_err(io("find the program's own file")),
    }
}

fn introduce(options: &DemoOptions, environment: &Environment, program: &Path, workspace: &Workspace) {
    let fate = if options.keep { "kept" } else { "removed at the end; --keep keeps them" };
    let folder = workspace.path().display();
    println!("site A ══ gateway A ─── unprotected link ─── gateway B ══ site B");
    match environment {
        Environment::Namespaces(_) => {
            if options.ike {
                println!("   charon A ═════════════ IKE ═════════════ charon B");
            }
            let configuration = workspace.join("gateway-a").join(CONFIGURATION);
            println!("configurations, keys, logs: {folder} ({fate})");
            println!(
                "watch a gateway from another terminal: {} top {}",
                program.display(),
                configuration.display()
            );
        }
        Environment::Memory(why) => {
            println!("IN MEMORY: {why}.");
            println!(
                "Both gateways are workers in this process, joined by memory ports: real packets, policies and engines,"
            );
            println!("but no network devices, no kernel TCP and no processes to watch.");
            println!("recordings: {folder} ({fate})");
        }
    }
    println!();
    // The bar is drawn on standard error, and must come after this text.
    let _ = std::io::stdout().flush();
}

fn show(options: &DemoOptions, report: &Report) -> Result<(), LabError> {
    if options.json {
        let text = serde_json::to_string(report).map_err(|error| io("write JSON")(error.into()))?;
        println!("{text}");
    } else {
        print!("{}", report.table());
    }
    if let Some(file) = &options.svg {
        let typed = "$ make demo\nsite A ══ gateway A ─── unprotected link ─── gateway B ══ site B\n\n";
        let picture = render::svg(&format!("{typed}{}", report.table()));
        std::fs::write(file, picture).map_err(io(format!("write {}", file.display())))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        options: DemoOptions,
    }

    #[test]
    fn options_have_defaults_and_limits() {
        let options = Line::parse_from(["demo"]).options;
        assert_eq!((options.seconds, options.ipv6, options.workers), (5, false, 1));
        assert_eq!(Line::parse_from(["demo", "--workers", "2"]).options.workers, 2);
        assert!(Line::try_parse_from(["demo", "--workers", "2", "--memory"]).is_err());
        assert_eq!(options.protection().unwrap(), Protection::esp("aes128gcm16", "esp-in-udp"));
        assert!(Line::try_parse_from(["demo", "--seconds", "0"]).is_err());
        for accepted in ["aes128-sha1", "aes256ctr-aesxcbc", "3des-md5", "aes128ccm8iiv", "sha256"] {
            assert!(Line::try_parse_from(["demo", "--suite", accepted]).is_ok(), "{accepted}");
        }
        for refused in ["rot13", "null-sha1", "aes128-none"] {
            assert!(Line::try_parse_from(["demo", "--suite", refused]).is_err());
        }
    }
}
