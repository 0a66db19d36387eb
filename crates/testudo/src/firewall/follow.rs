//! `testudo firewall --follow`: keeps the host's rules those of the running gateway's policies, as they are
//! negotiated.
//!
//! ```text
//!   file                       ──► table testudo-testudo0, by --apply before the gateway starts
//!   gateway A, while it runs   ──► table testudo-testudo0-running, which stays when A is killed
//!   gateway B, its successor   ──► table testudo-testudo0-running
//!                                  table testudo-testudo0-before-0: A's, until B has negotiated what A had
//! ```
//!
//! A packet passes only if each of the tables lets it pass. What cannot be kept closed in any other way keeps
//! the rules as they are: nothing is opened for want of room, or because this process was started again.

use super::{NFT, Rules, tables};
use crate::cli::QueryArgs;
use crate::exit::{Failure, Kind};
use crate::out::errln;
use crate::query::Asked;
use std::collections::BTreeSet;
use std::time::Duration;
use testudo_control::firewall::Firewall;

/// How often the gateway is asked. Meanwhile packets go into the tunnel by their route: rules are for when it
/// is gone.
const PAUSE: Duration = Duration::from_secs(1);

/// What the rules of a gateway close to clear packets, and which process of it has said so.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Source {
    /// Differs from one run of a gateway to the next.
    pub(super) instance: String,
    /// What is closed: [`Negotiated::pairs`](testudo_control::firewall::Negotiated::pairs).
    pub(super) negotiated: BTreeSet<String>,
}

/// Whether rules with these close all that others close. What is closed in both directions has no word for
/// them at its end, and so is closed in each.
fn cover(these: &BTreeSet<String>, others: &BTreeSet<String>) -> bool {
    let in_both = |other: &str| {
        let selector = other.strip_suffix(" out").or_else(|| other.strip_suffix(" in"));
        selector.is_some_and(|selector| these.contains(selector))
    };
    others.iter().all(|other| these.contains(other) || in_both(other))
}

/// Rules of gateways before, at most: each had negotiated something that its successors have not.
const MAX_HELD: usize = 8;

/// What a follower is to do about new rules.
#[derive(Debug, Default, PartialEq, Eq)]
struct Steps {
    /// The rules that are loaded are those of a gateway that ended without taking them back: they stay, under
    /// this number.
    holds: Option<usize>,
    loads: bool,
    /// All that was held under these numbers has been negotiated again.
    releases: Vec<usize>,
}

/// A place for rules that are held.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
enum Place {
    #[default]
    Free,
    /// They close these.
    Held(BTreeSet<String>),
    /// They were there when this process was started. Nobody knows what they close, and so nothing that is
    /// negotiated stands for them.
    Unknown,
}

impl Place {
    fn covers(&self, others: &BTreeSet<String>) -> bool {
        matches!(self, Self::Held(these) if cover(these, others))
    }

    fn is_covered_by(&self, these: &BTreeSet<String>) -> bool {
        matches!(self, Self::Held(others) if cover(these, others))
    }
}

/// What has been loaded.
#[derive(Debug, Clone, Default)]
struct Follower {
    loaded: Option<(Source, String)>,
    /// What the rules of gateways before close.
    held: [Place; MAX_HELD],
}

impl Follower {
    /// One that begins on a host with these tables, for the gateway with this one.
    fn beside(tables: &[String], table: &str) -> Self {
        let place = |number| {
            let is_there = tables.iter().any(|name| *name == held_table(table, number));
            if is_there { Place::Unknown } else { Place::Free }
        };
        Self { loaded: None, held: std::array::from_fn(place) }
    }

    /// What is to be done about the rules of a gateway.
    ///
    /// # Errors
    /// They cannot be loaded without opening what is closed. Nothing has changed.
    fn take(&mut self, source: &Source, text: &str) -> Result<Steps, Failure> {
        let mut steps = Steps::default();
        if self.loaded.as_ref().is_some_and(|(before, same)| before == source && same == text) {
            return Ok(steps);
        }
        steps.loads = true;
        let mut held = self.held.clone();
        for (number, place) in held.iter_mut().enumerate() {
            if place.is_covered_by(&source.negotiated) {
                *place = Place::Free;
                steps.releases.push(number);
            }
        }
        let other = self.loaded.as_ref().filter(|(before, _)| before.instance != source.instance);
        let missing = other.map(|(before, _)| &before.negotiated);
        let missing = missing.filter(|before| !cover(&source.negotiated, before));
        if let Some(missing) = missing.filter(|missing| !held.iter().any(|place| place.covers(missing))) {
            let free = held.iter_mut().enumerate().find(|(_, place)| **place == Place::Free);
            let Some((number, place)) = free else { return Err(no_room()) };
            *place = Place::Held(missing.clone());
            // Its table is replaced by another.
            steps.releases.retain(|released| *released != number);
            steps.holds = Some(number);
        }
        (self.held, self.loaded) = (held, Some((source.clone(), text.to_owned())));
        Ok(steps)
    }
}

fn no_room() -> Failure {
    let message = format!(
        "the gateway before had negotiated what this one has not, and {MAX_HELD} tables hold what others had: what this \
         one negotiates is not closed to clear packets before it has all that is missing; to open what is held, stop \
         this, and start it again after `testudo firewall CONFIG --remove`"
    );
    Failure::new(Kind::Other, message)
}

/// The table of the rules in force.
fn running_table(table: &str) -> String {
    format!("{table}-running")
}

/// The table of rules that are held.
fn held_table(table: &str, number: usize) -> String {
    format!("{table}-before-{number}")
}

/// The same rules in another table.
fn renamed(text: &str, table: &str, to: &str) -> String {
    let renamed = text.lines().map(|line| {
        let is_name = line.starts_with("table inet ") || line.starts_with("delete table inet ");
        let line = if is_name { line.replacen(table, to, 1) } else { line.to_owned() };
        line + "\n"
    });
    renamed.collect()
}

/// What has changed, for `nft -f -`. It is one transaction, so that nothing is open in between.
fn script(steps: &Steps, table: &str, text: &str, before: Option<&str>) -> String {
    let held = steps.holds.zip(before).map(|(number, text)| renamed(text, table, &held_table(table, number)));
    let running = steps.loads.then(|| renamed(text, table, &running_table(table)));
    let released = steps.releases.iter().map(|number| Firewall::removal_of(&held_table(table, *number)));
    held.into_iter().chain(running).chain(released).collect()
}

/// Loads what has changed.
fn load(steps: &Steps, rules: &Rules, before: Option<&str>, is_held: bool) -> Result<(), Failure> {
    if !steps.loads {
        return Ok(());
    }
    NFT.run(&["-f", "-"], &script(steps, &rules.table, &rules.text, before))?;
    rules.load_routes(is_held)
}

/// Has the host's rules follow a gateway, until this process is ended. Failures are told, and what failed is
/// tried again.
///
/// # Errors
/// The gateway that is named cannot be told.
pub(super) fn follow(gateway: &QueryArgs) -> Result<(), Failure> {
    let asked = Asked::find(gateway)?;
    let (mut follower, mut told) = (None::<Follower>, String::new());
    loop {
        let outcome = Rules::in_force(&asked).and_then(|rules| {
            let mut next = match &follower {
                Some(follower) => follower.clone(),
                None => Follower::beside(&tables()?, &rules.table),
            };
            let before = next.loaded.clone().map(|(_, text)| text);
            let steps = next.take(&rules.source, &rules.text)?;
            let is_held = next.held.iter().any(|place| *place != Place::Free);
            load(&steps, &rules, before.as_deref(), is_held)?;
            follower = Some(next);
            Ok(())
        });
        let now = outcome.err().map(|error| error.message().to_owned()).unwrap_or_default();
        if now != told && !now.is_empty() {
            errln!("testudo: the rules stay as they are: {now}");
        }
        told = now;
        std::thread::sleep(PAUSE);
    }
}

/// Whether a table is one that following loads beside the table of a gateway.
pub(super) fn is_beside(name: &str, table: &str) -> bool {
    name == running_table(table) || (0..MAX_HELD).any(|number| name == held_table(table, number))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(instance: &str, negotiated: &[&str]) -> Source {
        let negotiated = negotiated.iter().map(|text| (*text).to_owned()).collect();
        Source { instance: instance.to_owned(), negotiated }
    }

    fn loads() -> Steps {
        Steps { loads: true, ..Steps::default() }
    }

    fn take(follower: &mut Follower, source: &Source, text: &str) -> Steps {
        follower.take(source, text).unwrap_or_else(|error| panic!("{}", error.message()))
    }

    #[test]
    fn rules_follow_what_one_gateway_negotiates_and_gives_up() {
        let mut follower = Follower::default();
        assert_eq!(take(&mut follower, &source("a", &[]), "none"), loads());
        assert_eq!(take(&mut follower, &source("a", &["x", "y"]), "two"), loads());
        assert_eq!(take(&mut follower, &source("a", &["x", "y"]), "two"), Steps::default());
        assert_eq!(take(&mut follower, &source("a", &["x"]), "one"), loads(), "its daemon took one back");
    }

    /// A gateway that is killed takes nothing back: its successor knows nothing of it.
    #[test]
    fn what_a_gateway_had_negotiated_stays_closed_until_it_is_negotiated_again() {
        let mut follower = Follower::default();
        take(&mut follower, &source("a", &["x", "y"]), "two");
        assert_eq!(take(&mut follower, &source("b", &[]), "none"), Steps { holds: Some(0), ..loads() });
        assert_eq!(take(&mut follower, &source("b", &["x"]), "one"), loads());
        assert_eq!(take(&mut follower, &source("c", &[]), "none"), loads(), "x is held already");
        assert_eq!(take(&mut follower, &source("c", &["z"]), "other"), loads());
        assert_eq!(take(&mut follower, &source("d", &[]), "none"), Steps { holds: Some(1), ..loads() });
        let all = source("d", &["x", "y", "z"]);
        assert_eq!(take(&mut follower, &all, "three"), Steps { releases: vec![0, 1], ..loads() });
        assert_eq!(take(&mut follower, &source("e", &["x", "y", "z"]), "three"), loads());
        assert_eq!(take(&mut follower, &source("f", &["x"]), "one"), Steps { holds: Some(0), ..loads() });
    }

    /// What would be opened stays closed, and the rules are those of before until there is room.
    #[test]
    fn more_than_there_is_room_for_takes_nothing_away() {
        let mut follower = Follower::default();
        for number in 0..=MAX_HELD {
            let name = number.to_string();
            let holds = number.checked_sub(1);
            assert_eq!(take(&mut follower, &source(&name, &[&name]), &name), Steps { holds, ..loads() });
        }
        let before = follower.clone();
        for _ in 0..2 {
            let error = follower.take(&source("last", &[]), "").unwrap_err();
            assert!(error.message().contains("8 tables hold what others had"), "{}", error.message());
            assert_eq!((&follower.loaded, &follower.held), (&before.loaded, &before.held));
        }
        // The ninth had "8": with all of it there is nothing to hold.
        let mut other = follower.clone();
        assert_eq!(take(&mut other, &source("last", &["8"]), "eight"), loads());
        // What is negotiated again makes room, in the place that it leaves.
        let again = source("last", &["3"]);
        assert_eq!(take(&mut follower, &again, "three"), Steps { holds: Some(3), ..loads() });
        assert_eq!(follower.held[3], Place::Held(source("", &["8"]).negotiated));
    }

    /// A place that is taken anew at once would be taken away by its release.
    #[test]
    fn rules_that_take_the_place_of_released_ones_stay() {
        let mut follower = Follower::default();
        take(&mut follower, &source("a", &["x"]), "x");
        take(&mut follower, &source("b", &["z"]), "z");
        let steps = take(&mut follower, &source("c", &["x"]), "x");
        assert_eq!(steps, Steps { holds: Some(0), ..loads() });
        let [z, x] = ["z", "x"].map(|rule| format!("table inet t0 {{\n    {rule}\n}}\n"));
        let expected = "table inet t0-before-0 {\n    z\n}\ntable inet t0-running {\n    x\n}\n";
        assert_eq!(script(&steps, "t0", &x, Some(&z)), expected);
        let released = Steps { releases: vec![2], ..loads() };
        let expected =
            "table inet t0-running {\n    x\n}\ntable inet t0-before-2\ndelete table inet t0-before-2\n";
        assert_eq!(script(&released, "t0", &x, Some(&z)), expected);
    }

    /// Nobody knows what they close: they are neither replaced nor released.
    #[test]
    fn a_follower_that_is_restarted_leaves_the_tables_that_are_held() {
        let tables = ["t-running", "t-before-0", "t-before-2", "u-before-1"].map(str::to_owned);
        let mut follower = Follower::beside(&tables, "t");
        let unknown = |follower: &Follower| [0, 2].iter().all(|n| follower.held[*n] == Place::Unknown);
        assert_eq!(take(&mut follower, &source("a", &["x"]), "x"), loads());
        assert_eq!(take(&mut follower, &source("b", &[]), "none"), Steps { holds: Some(1), ..loads() });
        assert_eq!(take(&mut follower, &source("b", &["y"]), "y"), loads());
        assert_eq!(take(&mut follower, &source("c", &[]), "none"), Steps { holds: Some(3), ..loads() });
        assert!(unknown(&follower), "{:?}", follower.held);
        let all = source("c", &["x", "y", "z"]);
        assert_eq!(take(&mut follower, &all, "all"), Steps { releases: vec![1, 3], ..loads() });
        assert!(unknown(&follower), "{:?}", follower.held);
    }

    #[test]
    fn rules_are_released_by_the_same_in_as_many_directions_or_more() {
        let set = |texts: &[&str]| source("", texts).negotiated;
        assert!(cover(&set(&["x y", "z"]), &set(&["x y in", "x y out", "x y"])));
        assert!(!cover(&set(&["x y out"]), &set(&["x y"])));
        assert!(!cover(&set(&["x y out"]), &set(&["x y in"])));
        assert!(!cover(&set(&["x y"]), &set(&["x y discard"])));
    }

    #[test]
    fn rules_that_are_held_are_in_a_table_of_their_own() {
        let text = "table inet testudo-t0\ndelete table inet testudo-t0\ntable inet testudo-t0 {\n    x testudo-t0\n}\n";
        let expected = "table inet testudo-t0-before-3\ndelete table inet testudo-t0-before-3\n\
                        table inet testudo-t0-before-3 {\n    x testudo-t0\n}\n";
        assert_eq!(renamed(text, "testudo-t0", &held_table("testudo-t0", 3)), expected);
        for name in ["testudo-t0-running", "testudo-t0-before-0", "testudo-t0-before-7"] {
            assert!(is_beside(name, "testudo-t0"), "{name}");
        }
        for name in ["testudo-t0", "testudo-t0-before-8", "testudo-t1-running", "testudo-t0-running-x"] {
            assert!(!is_beside(name, "testudo-t0"), "{name}");
        }
    }
}
