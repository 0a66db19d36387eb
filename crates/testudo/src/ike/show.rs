//! What a set-up shows.

use super::change::kept;
use super::plan::{Change, Plan, difference};
use super::texts::name;
use crate::cli::ike::SetupArgs;
use crate::out::outln;
use serde_json::json;
use std::path::Path;

/// All that there is to say.
pub struct Shown<'a> {
    /// What was asked.
    pub args: &'a SetupArgs,
    /// What is done for it.
    pub plan: &'a Plan,
    /// Services that must be restarted.
    pub services: &'a [String],
    /// What is missing, and what to do.
    pub missing: Vec<String>,
    /// What else to know.
    pub notes: Vec<String>,
    /// `[ike]`, where the configuration has none.
    pub section: Option<String>,
}

impl Shown<'_> {
    /// Prints it.
    pub fn print(&self, is_applied: bool) {
        if self.args.json { self.print_json(is_applied) } else { self.print_text(is_applied) }
    }

    fn print_text(&self, is_applied: bool) {
        for change in &self.plan.changes {
            outln!("{}", heading(change, is_applied));
            if !is_applied {
                let before = change.before.as_deref().unwrap_or_default();
                crate::out::write(&difference(before, change.after.as_deref().unwrap_or_default()));
                outln!();
            }
        }
        let daemon = name(self.args.daemon);
        if self.plan.is_done() {
            outln!("nothing to do: {daemon} is set up so already");
        }
        if let Some(section) = &self.section {
            outln!("for the gateway's configuration:");
            section.lines().for_each(|line| outln!("    {line}"));
        }
        self.missing.iter().for_each(|what| outln!("missing: {what}"));
        self.notes.iter().for_each(|note| outln!("note: {note}"));
        if self.plan.is_done() {
            return;
        }
        let restart = self.restart();
        if is_applied {
            outln!("to put it in force, which ends the daemon's connections: {restart}");
        } else {
            outln!("nothing was changed: --apply does it, as root. Then, to put it in force: {restart}");
        }
    }

    /// The gateway is there before the daemon comes; a daemon that does not run is not started.
    fn restart(&self) -> String {
        let (gateways, daemons): (Vec<_>, Vec<_>) =
            self.services.iter().map(String::as_str).partition(|service| service.starts_with("testudo@"));
        format!("systemctl try-restart {} && systemctl try-restart {}", gateways.join(" "), daemons.join(" "))
    }

    fn print_json(&self, is_applied: bool) {
        let files = self.plan.changes.iter().map(|change| {
            json!({
                "path": change.path,
                "before": change.before,
                "after": change.after,
                "kept_as": change.is_kept.then(|| kept(Path::new(&change.path))),
            })
        });
        outln!(
            "{:#}",
            json!({
                "daemon": name(self.args.daemon),
                "undo": self.args.undo,
                "applied": is_applied,
                "nothing_to_do": self.plan.is_done(),
                "files": files.collect::<Vec<_>>(),
                "services_to_restart": self.services,
                "missing": self.missing,
                "notes": self.notes,
                "ike_section": self.section,
            })
        );
    }
}

fn heading(change: &Change, is_applied: bool) -> String {
    let path = &change.path;
    let kept = kept(Path::new(path));
    let kept = kept.display();
    let (would, done) = match (&change.before, &change.after) {
        (None, _) if change.is_kept => (format!("put {path} back"), format!("put {path} back")),
        (None, _) => (format!("write {path}:"), format!("wrote {path}")),
        (Some(_), None) => (format!("remove {path}:"), format!("removed {path}")),
        (Some(_), Some(_)) if change.is_kept => (
            format!("change {path}, the present one being {kept} until it comes back:"),
            format!("changed {path}, the former one is {kept}"),
        ),
        (Some(_), Some(_)) => (format!("change {path}:"), format!("changed {path}")),
    };
    if is_applied { done } else { format!("would {would}") }
}

/// There is no record.
pub fn nothing_to_undo(args: &SetupArgs) {
    let daemon = name(args.daemon);
    if args.json {
        outln!(
            "{:#}",
            json!({ "daemon": daemon, "undo": true, "applied": false, "nothing_to_do": true, "files": [] })
        );
    } else {
        outln!("nothing to do: {daemon} is not set up");
    }
}
