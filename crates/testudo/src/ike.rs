//! `testudo ike`: leads a key exchange daemon to the gateway, and takes that back.
//!
//! ```text
//! host: units, profiles ──┐
//! gateway: its TOML ──────┼── texts, apparmor: files wanted ──┐
//! command line ───────────┘                                   ├── plan: steps ── show, or change: all or none
//! record: files written before ───────────────────────────────┘
//! ```

mod apparmor;
mod change;
mod gateway;
mod host;
mod outage;
mod plan;
mod record;
mod show;
mod status;
mod texts;

pub use status::status;

use crate::cli::ike::{DaemonArg, SetupArgs};
use crate::exit::{Failure, Kind};
use apparmor::Mending;
use gateway::Gateway;
use host::Host;
use plan::Plan;
use record::Record;
use show::Shown;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Shows, writes or takes back what leads a daemon to the gateway.
pub fn setup(args: &SetupArgs) -> Result<(), Failure> {
    if !args.root.is_dir() {
        let words = format!("--root: {} is no folder", args.root.display());
        return Err(Failure::new(Kind::Configuration, words));
    }
    let host = Host::new(&args.root);
    if args.apply && host.is_this() && !rustix::process::geteuid().is_root() {
        let words = "--apply changes files of the system: run it as root, or without --apply to see what it would change";
        return Err(Failure::new(Kind::Port, words));
    }
    let old = Record::read(&host, texts::name(args.daemon))?;
    if args.undo { undo(&host, args, old) } else { set_up(&host, args, old.unwrap_or_default()) }
}

fn set_up(host: &Host, args: &SetupArgs, old: Record) -> Result<(), Failure> {
    let units = host.units(args.daemon);
    if units.is_empty() {
        return Err(Failure::new(Kind::Port, not_installed(args.daemon)));
    }
    let gateway = Gateway::find(host, args)?;
    let user = daemon_user(host, args.daemon, &units);
    let mending = Mending::of(host, args.daemon, &gateway);
    let mut wanted = texts::wanted(args.daemon, &units, &gateway);
    wanted.extend(mending.files);
    let services = [vec![format!("testudo@{}.service", gateway.name)], units].concat();
    let new = Record {
        daemon: texts::name(args.daemon).to_owned(),
        services: services.clone(),
        socket: gateway.socket.display().to_string(),
        library: gateway.library.display().to_string(),
        ..Record::default()
    };
    let plan = Plan::setup(host, &wanted, &old, new)?;
    let library = gateway.library.display();
    let no_library =
        format!("the library {library} is not installed: `make install` installs it, or give --library PATH");
    let has_library = host.path(&gateway.library).is_file();
    let mut missing = gateway.shortcomings(host, &user);
    missing.extend((!has_library).then(|| no_library.clone()));
    let mut notes = mending.notes;
    notes.extend(notes_of(host, args.daemon));
    let section = gateway.section.is_none().then(|| gateway.section_text(&user));
    let shown = Shown { args, plan: &plan, services: &services, missing, notes, section };
    refuse_conflicts(args, &plan)?;
    if !args.apply || plan.is_done() {
        shown.print(false);
        return Ok(());
    }
    if !has_library {
        // AssertPathExists= would keep the daemon from starting.
        return Err(Failure::new(Kind::Port, format!("{no_library}; nothing was changed")));
    }
    carry_out(host, &plan, &mending.profiles)?;
    shown.print(true);
    Ok(())
}

fn undo(host: &Host, args: &SetupArgs, old: Option<Record>) -> Result<(), Failure> {
    let Some(old) = old else {
        show::nothing_to_undo(args);
        return Ok(());
    };
    let plan = Plan::undo(host, &old)?;
    refuse_conflicts(args, &plan)?;
    let mut notes = Vec::new();
    if args.apply {
        carry_out(host, &plan, &[])?;
        // Where there was no local file before, the profile could not be loaded then, nor can it be now.
        let local = old.files.iter().filter(|entry| entry.was_there);
        let profiles = apparmor::profiles_of(local.map(|entry| entry.path.as_str()));
        // What AppArmor does not take now, it did not take before: that is as it was.
        notes.extend(apparmor::load(host, &profiles).err().map(|failure| failure.message().to_owned()));
    }
    let shown =
        Shown { args, plan: &plan, services: &old.services, missing: Vec::new(), notes, section: None };
    shown.print(args.apply);
    Ok(())
}

fn refuse_conflicts(args: &SetupArgs, plan: &Plan) -> Result<(), Failure> {
    if plan.conflicts.is_empty() || args.force {
        return Ok(());
    }
    let words = format!(
        "{}\nnothing was changed: take these changes back by hand, or give --force to lose them",
        plan.conflicts.join("\n")
    );
    Err(Failure::new(Kind::Other, words))
}

/// Takes the steps, and has AppArmor and systemd read what they have changed. If either refuses, all is as
/// before.
fn carry_out(host: &Host, plan: &Plan, profiles: &[PathBuf]) -> Result<(), Failure> {
    let tell = || apparmor::load(host, profiles).and_then(|()| reload_systemd(host));
    change::take(host, &plan.steps, tell).inspect_err(|_| {
        // Both may have read some of it. What they say now was said before.
        if host.is_this() {
            let _ = tell();
        }
    })
}

fn has_systemd(host: &Host) -> bool {
    host.is_this() && host.has("/run/systemd/system")
}

fn reload_systemd(host: &Host) -> Result<(), Failure> {
    if !has_systemd(host) {
        return Ok(());
    }
    let wrong = |what: String| Failure::new(Kind::Port, format!("systemctl daemon-reload: {what}"));
    let mut command = Command::new("systemctl");
    let output =
        command.arg("daemon-reload").stdin(Stdio::null()).output().map_err(|e| wrong(e.to_string()))?;
    let said = String::from_utf8_lossy(&output.stderr);
    if output.status.success() { Ok(()) } else { Err(wrong(said.trim().to_owned())) }
}

fn not_installed(daemon: DaemonArg) -> String {
    let (name, packages) = match daemon {
        DaemonArg::Strongswan => {
            ("strongSwan", "charon-systemd, or strongswan-starter for the `ipsec` command")
        }
        DaemonArg::Libreswan => ("libreswan", "libreswan"),
    };
    format!(
        "{name} is not installed: systemd has no service of it. On Debian it is in the package {packages}"
    )
}

/// The user that the daemon runs as: its own configuration says, or its service.
fn daemon_user(host: &Host, daemon: DaemonArg, units: &[String]) -> String {
    let value = |text: &str, key: &str| {
        let mut lines =
            text.lines().filter_map(|line| line.trim().strip_prefix(key)?.trim().strip_prefix('='));
        lines
            .next_back()
            .map(|value| value.trim().trim_matches('"').to_owned())
            .filter(|value| !value.is_empty())
    };
    let files = ["charon.conf", "charon-systemd.conf"].map(|name| format!("/etc/strongswan.d/{name}"));
    let configured = files.iter().filter(|_| daemon == DaemonArg::Strongswan);
    let configured = configured.filter_map(|path| value(&host.text(Path::new(path)), "user")).next_back();
    let texts = units.iter().filter_map(|unit| host.unit(unit));
    let of_unit = texts.filter_map(|(_, text)| value(&text, "User")).next_back();
    configured.or(of_unit).unwrap_or_else(|| "root".to_owned())
}

/// What an operator is to know of this host.
fn notes_of(host: &Host, daemon: DaemonArg) -> Vec<String> {
    let mut notes = Vec::new();
    if host.is_this() && !has_systemd(host) {
        notes.push(
            "systemd does not run here: start the daemon with the two Environment= of its drop-in".to_owned(),
        );
    }
    if let Some(mode) = host.selinux() {
        notes.push(format!(
            "SELinux is {mode} and is not changed: if `ausearch -m avc` shows that the daemon may not load the library or \
             connect to the socket, make a module of that with `audit2allow -M testudo-ike`"
        ));
    }
    let (path, include) = match daemon {
        DaemonArg::Strongswan => ("/etc/strongswan.conf", "include strongswan.d/*.conf"),
        DaemonArg::Libreswan => ("/etc/ipsec.conf", "include /etc/ipsec.d/*.conf"),
    };
    let text = host.text(Path::new(path));
    if !text.lines().any(|line| line.trim() == include) {
        notes.push(format!(
            "{path} has no line `{include}`: without it, the daemon does not read testudo.conf"
        ));
    }
    notes
}
