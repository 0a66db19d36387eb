//! Kill -9 in the middle of apply and of undo. The journal says how far apply has come: it is killed as soon
//! as the journal has so many entries, wherever it is by then.

use crate::site::{INTERFACE, ONLY, Site};
use crate::support::Outcome;
use std::fs;
use std::process::{Child, Stdio};
use testudo_judge::harness::{Suite, TestResult};

/// Rounds at most, until kills have hit the middle.
const ROUNDS: usize = 20;
/// Readings of a variable for each time that its namespace is entered.
const READINGS: usize = 100;

#[allow(dead_code, reason = "the tests as root have their own")]
pub fn tests(suite: Suite<'_, Site>) -> Suite<'_, Site> {
    suite
        .test("undo_after_kill_9_of_apply_leaves_every_setting_as_it_was", kills_apply)
        .test("undo_after_kill_9_of_undo_leaves_every_setting_as_it_was", kills_undo)
}

impl Site {
    fn start(&self, words: &[&str]) -> Outcome<Child> {
        let mut command = self.command(words);
        Ok(command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?)
    }

    /// Entries of the journal; none if there is no journal.
    fn entries(&self) -> usize {
        let text = std::fs::read_to_string(self.state.join("wan.json")).unwrap_or_default();
        let journal: serde_json::Value = serde_json::from_str(&text).unwrap_or_default();
        journal["entries"].as_array().map_or(0, Vec::len)
    }
}

/// Kills a process as soon as `is_time`; whether it had not ended by itself.
fn kill_when(child: &mut Child, is_time: impl Fn() -> Outcome<bool>) -> Outcome<bool> {
    loop {
        if child.try_wait()?.is_some() {
            return Ok(false);
        }
        if is_time()? {
            child.kill()?;
            return Ok(child.wait()?.code().is_none());
        }
    }
}

fn kills_apply(site: &mut Site) -> TestResult {
    apply_in_the_middle(site, &[&["--mtu", "9000"][..], &ONLY].concat())
}

/// Kills apply with these options wherever its journal is by then.
pub fn apply_in_the_middle(site: &Site, options: &[&str]) -> TestResult {
    let before = site.everything()?;
    let words = [&["apply", INTERFACE][..], options].concat();
    let all = site.rows(&words, 0)?.values().filter(|row| row["outcome"] == "changed").count();
    site.undo_to(&before, "without a kill")?;
    let mut in_the_middle = 0;
    // Which process runs when is the machine's choice: a round may come too late at each entry.
    for _ in 0..ROUNDS {
        for entries in 0..=all {
            let mut apply = site.start(&words)?;
            let killed = kill_when(&mut apply, || Ok(site.entries() >= entries))?;
            in_the_middle += usize::from(killed && (1..all).contains(&site.entries()));
            site.undo_to(&before, &format!("killed at {entries} entries"))?;
        }
        if in_the_middle > 1 {
            break;
        }
    }
    println!("killed in the middle: {in_the_middle} times, of {all} entries");
    assert!(in_the_middle > 0);
    Ok(())
}

/// Whether a variable of the network has its original value by now, in one of some readings in a row: undo
/// takes less time than to enter its namespace for each.
fn is_back(site: &Site, name: &str, original: &str) -> Outcome<bool> {
    let path = format!("/proc/sys/net/ipv4/{name}");
    let reads_it = |_| fs::read_to_string(&path).is_ok_and(|value| value == original);
    Ok(site.here.within(|| (0..READINGS).any(reads_it))?)
}

fn kills_undo(site: &mut Site) -> TestResult {
    let site: &Site = site;
    let before = site.everything()?;
    let original = |name: &str| -> Outcome<String> {
        let path = format!("/proc/sys/net/ipv4/{name}");
        Ok(site.here.within(|| fs::read_to_string(path))??)
    };
    let (sack, rmem) = (original("tcp_sack")?, original("tcp_rmem")?);
    // TCP comes last; its memory is the very last.
    let moments: [(&str, &dyn Fn() -> Outcome<bool>); 3] = [
        ("it began", &|| Ok(true)),
        ("SACK was back", &|| is_back(site, "tcp_sack", &sack)),
        ("TCP's memory was back", &|| is_back(site, "tcp_rmem", &rmem)),
    ];
    let mut in_the_middle = 0;
    // Which process runs when is the machine's choice: undo may have ended before each kill.
    for _ in 0..ROUNDS {
        for (number, (moment, is_time)) in moments.iter().enumerate() {
            site.rows(&[&["apply", INTERFACE, "--mtu", "9000"][..], &ONLY].concat(), 0)?;
            let mut undo = site.start(&["undo", INTERFACE])?;
            let killed = kill_when(&mut undo, is_time)?;
            println!("killed when {moment}: {killed}");
            // What was brought back is still in the journal, with which undo begins again.
            in_the_middle += usize::from(killed && number > 0 && site.entries() > 0);
            site.undo_to(&before, &format!("killed when {moment}"))?;
        }
        if in_the_middle > 0 {
            break;
        }
    }
    println!("killed in the middle: {in_the_middle} times");
    assert!(in_the_middle > 0);
    Ok(())
}
