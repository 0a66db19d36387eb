//! `testudo firewall`: prints, applies or removes the host rules and routes that follow from a configuration.

use crate::cli::FirewallArgs;
use crate::exit::{Failure, Kind};
use crate::init;
use crate::out::{errln, outln};
use std::io::{ErrorKind, Write};
use std::net::IpAddr;
use std::process::{Command, Stdio};
use testudo_control::config::Network;
use testudo_control::firewall::{FallbackRoutes, Firewall};

/// Prints the rules, or applies or removes them with `nft` and `ip`.
pub fn firewall(args: &FirewallArgs) -> Result<(), Failure> {
    let configuration = init::parse(&args.config)?;
    let firewall = Firewall::of(&configuration).map_err(|e| Failure::new(Kind::Configuration, e))?;
    if args.remove {
        return remove(&firewall);
    }
    if args.apply {
        firewall.notes().iter().for_each(|note| errln!("testudo: warning: {note}"));
        return apply(&firewall);
    }
    if args.json {
        print_json(&firewall)
    } else {
        print(&firewall, args)
    }
    Ok(())
}

fn print(firewall: &Firewall, args: &FirewallArgs) {
    let config = args.config.display();
    outln!("# Rules for {config}; `testudo firewall {config} --apply` loads them.");
    firewall.notes().iter().for_each(|note| outln!("# Warning: {note}"));
    let routes = firewall.routes().commands();
    if !routes.is_empty() {
        outln!("# Fallback routes, for while the gateway's own are gone:");
        routes.iter().for_each(|command| outln!("#   {command}"));
    }
    crate::out::write(&firewall.to_string());
}

fn print_json(firewall: &Firewall) {
    outln!(
        "{:#}",
        serde_json::json!({
            "family": "inet",
            "table": firewall.table(),
            "rules": firewall.to_string(),
            "routes": firewall.routes().commands(),
            "warnings": firewall.notes(),
        })
    );
}

const NFT: Tool = Tool { name: "nft", package: "nftables" };
const IP: Tool = Tool { name: "ip", package: "iproute2" };
const VERSIONS: [(bool, &str); 2] = [(false, "-4"), (true, "-6")];

/// Rules first: they alone suffice to keep protected networks from leaving in clear.
fn apply(firewall: &Firewall) -> Result<(), Failure> {
    NFT.run(&["-f", "-"], &firewall.to_string())?;
    let routes = firewall.routes();
    for (ipv6, version) in VERSIONS {
        batch(version, &routes.addition(ipv6))?;
        let mut stale = present(routes, version)?;
        stale.retain(|network| !routes.networks().contains(network));
        batch(version, &routes.removal(ipv6, &stale))?;
    }
    outln!("loaded: table inet {}; fallback routes: {}", firewall.table(), routes.networks().len());
    Ok(())
}

/// Removes what [`apply`] has added, for this configuration or for an earlier one with the same interface.
fn remove(firewall: &Firewall) -> Result<(), Failure> {
    NFT.run(&["-f", "-"], &firewall.removal())?;
    for (ipv6, version) in VERSIONS {
        let routes = present(firewall.routes(), version)?;
        batch(version, &firewall.routes().removal(ipv6, &routes))?;
    }
    outln!("removed: table inet {} and its fallback routes", firewall.table());
    Ok(())
}

fn batch(version: &str, commands: &str) -> Result<(), Failure> {
    if commands.is_empty() { Ok(()) } else { IP.run(&[version, "-batch", "-"], commands).map(drop) }
}

/// The host's fallback routes of this gateway.
fn present(routes: &FallbackRoutes, version: &str) -> Result<Vec<Network>, Failure> {
    let selection = routes.selection();
    let words = [version, "route", "show", "type", "unreachable"];
    let words: Vec<_> = words.into_iter().chain(selection.iter().map(String::as_str)).collect();
    let listed = IP.run(&words, "")?;
    Ok(listed.lines().filter_map(|line| network(line.split_whitespace().nth(1)?)).collect())
}

/// `10.2.0.0/16`, or `10.2.0.1` for one address.
fn network(text: &str) -> Option<Network> {
    match text.split_once('/') {
        Some((address, length)) => Network::containing(address.parse().ok()?, length.parse().ok()?),
        None => text.parse::<IpAddr>().ok().map(Network::host),
    }
}

/// A program of the operating system.
#[derive(Debug, Clone, Copy)]
struct Tool {
    name: &'static str,
    /// The Debian package that has it.
    package: &'static str,
}

impl Tool {
    /// Runs the program with `input` and returns what it printed.
    fn run(self, words: &[&str], input: &str) -> Result<String, Failure> {
        let refused =
            |said: &str| Failure::new(Kind::Port, format!("{} {}: {said}", self.name, words.join(" ")));
        let mut child = self.start(words)?;
        if let Some(mut stdin) = child.stdin.take() {
            // A write fails if the program has already exited; its message and exit status count then.
            let _ = stdin.write_all(input.as_bytes());
        }
        let output = child.wait_with_output().map_err(|e| refused(&e.to_string()))?;
        if output.status.success() {
            return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
        }
        let said = String::from_utf8_lossy(&output.stderr);
        let first =
            said.lines().find(|line| !line.trim().is_empty()).unwrap_or("it failed without a message");
        let is_forbidden = said.contains("not permitted") || said.contains("Permission denied");
        let help = if is_forbidden { "; this needs CAP_NET_ADMIN: run it as root" } else { "" };
        Err(refused(&format!("{}{help}", first.trim())))
    }

    /// Starts the program, even if the user's PATH lacks /usr/sbin.
    fn start(self, words: &[&str]) -> Result<std::process::Child, Failure> {
        let start = |program: &str| {
            let mut command = Command::new(program);
            command.args(words).env("LC_ALL", "C");
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()
        };
        let started = match start(self.name) {
            Err(e) if e.kind() == ErrorKind::NotFound => start(&format!("/usr/sbin/{}", self.name)),
            started => started,
        };
        started.map_err(|e| {
            let message = match e.kind() {
                ErrorKind::NotFound => {
                    format!("the program '{}' is missing: install the package {}", self.name, self.package)
                }
                _ => format!("{} cannot be started: {e}", self.name),
            };
            Failure::new(Kind::Port, message)
        })
    }
}
