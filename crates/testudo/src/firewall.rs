//! `testudo firewall`: prints, applies or removes the host rules and routes that follow from a configuration,
//! or from the policies of a running gateway.

mod follow;

use crate::cli::{FirewallArgs, QueryArgs};
use crate::exit::{Failure, Kind, failure};
use crate::init;
use crate::out::{errln, outln};
use crate::query::Asked;
use serde_json::{Value, json};
use std::io::{self, ErrorKind, Write};
use std::net::IpAddr;
use std::process::{Child, Command, Stdio};
use testudo_control::config::Network;
use testudo_control::firewall::{FallbackRoutes, Firewall};
use testudo_control::service::daemon::network_namespace;

/// Prints the rules, or applies or removes them with `nft` and `ip`.
pub fn firewall(args: &FirewallArgs) -> Result<(), Failure> {
    let of_file = || Firewall::of(&init::parse(&args.config)?).map_err(failure(Kind::Configuration));
    if args.remove {
        return remove(&of_file()?);
    }
    let gateway = QueryArgs { config: Some(args.config.clone()), ..QueryArgs::default() };
    if args.follow {
        return follow::follow(&gateway);
    }
    let rules = if args.running { Rules::in_force(&Asked::find(&gateway)?)? } else { Rules::of(&of_file()?) };
    if args.apply {
        rules.notes.iter().for_each(|note| errln!("testudo: warning: {note}"));
        return rules.apply();
    }
    if args.json {
        rules.print_json()
    } else {
        rules.print(args)
    }
    Ok(())
}

/// Has the rules of this host follow a change of the running gateway's policies, if they are loaded. `answer`
/// is the gateway's to the change.
///
/// # Errors
/// They could not be loaded; the change was made.
pub fn follow(gateway: &Asked, answer: &Value) -> Result<(), Failure> {
    let by_hand =
        "load them with `testudo firewall CONFIG --running --apply`, as root where the gateway runs";
    let Some(interface) = answer["interface"].as_str() else { return Ok(()) };
    let theirs = answer["network_namespace"].as_str();
    if theirs.is_some() && theirs != network_namespace().as_deref() {
        errln!(
            "testudo: warning: the gateway is in another network namespace, whose firewall rules are not changed: if it \
             has some, {by_hand}"
        );
        return Ok(());
    }
    let outcome = match has_table(&Firewall::table_of(interface)) {
        Ok(false) => return Ok(()),
        Ok(true) => Rules::in_force(gateway).and_then(|rules| rules.load()),
        Err(error) => Err(error),
    };
    outcome.map_err(|error| {
        let said = answer["said"].as_str().unwrap_or_default();
        error.explained(|error| format!("{said}, but the firewall's rules are as before: {error}; {by_hand}"))
    })
}

/// Whether this host has a table of the family `inet` with this name.
fn has_table(name: &str) -> Result<bool, Failure> {
    Ok(tables()?.iter().any(|table| table == name))
}

/// The names of this host's tables of the family `inet`.
fn tables() -> Result<Vec<String>, Failure> {
    const LIST: [&str; 3] = ["list", "tables", "inet"];
    let tables = match NFT.spawn(&LIST) {
        // Then nothing has loaded rules.
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        Err(e) => return Err(NFT.not_started(&e)),
        Ok(child) => NFT.finish(child, &LIST, "")?,
    };
    let name = |line: &str| match line.split_whitespace().collect::<Vec<_>>()[..] {
        ["table", "inet", name] => Some(name.to_owned()),
        _ => None,
    };
    Ok(tables.lines().filter_map(name).collect())
}

/// Rules and fallback routes of one gateway.
struct Rules {
    table: String,
    /// For `nft -f -`.
    text: String,
    routes: FallbackRoutes,
    notes: Vec<String>,
    /// Which gateway has them in force; nothing of a file.
    source: follow::Source,
}

impl Rules {
    fn of(firewall: &Firewall) -> Self {
        Self {
            table: firewall.table().to_owned(),
            text: firewall.to_string(),
            routes: firewall.routes().clone(),
            notes: firewall.notes().to_vec(),
            source: follow::Source::default(),
        }
    }

    /// Those that follow from the policies of the running gateway.
    fn in_force(gateway: &Asked) -> Result<Self, Failure> {
        let answer = gateway.change(&json!({ "verb": "firewall" }))?;
        let texts = |key: &str| -> Option<Vec<String>> {
            answer[key].as_array()?.iter().map(|text| text.as_str().map(str::to_owned)).collect()
        };
        let read = || {
            let interface = answer["interface"].as_str()?;
            let networks = texts("networks")?.iter().map(|text| network(text)).collect::<Option<_>>()?;
            Some(Self {
                table: Firewall::table_of(interface),
                text: answer["rules"].as_str()?.to_owned(),
                routes: FallbackRoutes::new(interface, networks),
                notes: texts("warnings")?,
                source: follow::Source {
                    instance: answer["instance"].as_str()?.to_owned(),
                    negotiated: texts("negotiated")?.into_iter().collect(),
                },
            })
        };
        read().ok_or_else(|| {
            Failure::new(Kind::Other, "the gateway's answer has no rules: is it an older one?")
        })
    }

    fn print(&self, args: &FirewallArgs) {
        let (config, running) = (args.config.display(), if args.running { " --running" } else { "" });
        outln!("# Rules for {config}; `testudo firewall {config}{running} --apply` loads them.");
        self.notes.iter().for_each(|note| outln!("# Warning: {note}"));
        let routes = self.routes.commands();
        if !routes.is_empty() {
            outln!("# Fallback routes, for while the gateway's own are gone:");
            routes.iter().for_each(|command| outln!("#   {command}"));
        }
        crate::out::write(&self.text);
    }

    fn print_json(&self) {
        outln!(
            "{:#}",
            json!({
                "family": "inet",
                "table": self.table,
                "rules": self.text,
                "routes": self.routes.commands(),
                "warnings": self.notes,
            })
        );
    }

    fn apply(&self) -> Result<(), Failure> {
        self.load()?;
        outln!("loaded: table inet {}; fallback routes: {}", self.table, self.routes.networks().len());
        Ok(())
    }

    /// Rules first: they alone suffice to keep protected networks from leaving in clear.
    fn load(&self) -> Result<(), Failure> {
        NFT.run(&["-f", "-"], &self.text)?;
        self.load_routes(false)
    }

    /// Adds the fallback routes. Others of this gateway go, unless they are `kept`.
    fn load_routes(&self, kept: bool) -> Result<(), Failure> {
        for (ipv6, version) in VERSIONS {
            batch(version, &self.routes.addition(ipv6))?;
            if kept {
                continue;
            }
            let mut stale = present(&self.routes, version)?;
            stale.retain(|network| !self.routes.networks().contains(network));
            batch(version, &self.routes.removal(ipv6, &stale))?;
        }
        Ok(())
    }
}

/// Removes what [`apply`](Rules::apply) has added, for this configuration or for an earlier one with the same
/// interface.
fn remove(firewall: &Firewall) -> Result<(), Failure> {
    NFT.run(&["-f", "-"], &firewall.removal())?;
    for table in tables()?.iter().filter(|name| follow::is_beside(name, firewall.table())) {
        NFT.run(&["-f", "-"], &Firewall::removal_of(table))?;
    }
    for (ipv6, version) in VERSIONS {
        let routes = present(firewall.routes(), version)?;
        batch(version, &firewall.routes().removal(ipv6, &routes))?;
    }
    outln!("removed: table inet {} and its fallback routes", firewall.table());
    Ok(())
}

const NFT: Tool = Tool { name: "nft", package: "nftables" };
const IP: Tool = Tool { name: "ip", package: "iproute2" };
const VERSIONS: [(bool, &str); 2] = [(false, "-4"), (true, "-6")];

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
        let child = self.spawn(words).map_err(|e| self.not_started(&e))?;
        self.finish(child, words, input)
    }

    /// Gives a program that was started its `input`, and returns what it printed.
    fn finish(self, mut child: Child, words: &[&str], input: &str) -> Result<String, Failure> {
        let refused =
            |said: &str| Failure::new(Kind::Port, format!("{} {}: {said}", self.name, words.join(" ")));
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
    fn spawn(self, words: &[&str]) -> io::Result<Child> {
        let start = |program: &str| {
            let mut command = Command::new(program);
            command.args(words).env("LC_ALL", "C");
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()
        };
        match start(self.name) {
            Err(e) if e.kind() == ErrorKind::NotFound => start(&format!("/usr/sbin/{}", self.name)),
            started => started,
        }
    }

    fn not_started(self, error: &io::Error) -> Failure {
        let message = match error.kind() {
            ErrorKind::NotFound => {
                format!("the program '{}' is missing: install the package {}", self.name, self.package)
            }
            _ => format!("{} cannot be started: {error}", self.name),
        };
        Failure::new(Kind::Port, message)
    }
}
