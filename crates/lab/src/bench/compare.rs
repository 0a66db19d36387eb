//! `testudo bench compare`: compares two runs.

use std::collections::HashSet;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::case::Order;
use super::error::BenchError;
use crate::statistics::Spread;
use crate::table::Table;

/// Options of `testudo bench compare`.
#[derive(Debug, Clone, clap::Args)]
pub struct CompareOptions {
    /// What `testudo bench --json` printed before
    #[arg(value_name = "A.json")]
    pub before: PathBuf,

    /// What it printed after
    #[arg(value_name = "B.json")]
    pub after: PathBuf,

    /// Print a JSON object instead of the table
    #[arg(long)]
    pub json: bool,

    /// Exit with 1 if a case is more than this many percent slower in B than in A
    #[arg(long, value_name = "PERCENT", value_parser = percent)]
    pub fail_above: Option<f64>,
}

fn percent(text: &str) -> Result<f64, String> {
    let number = text.parse::<f64>().ok().filter(|percent| (0.0..=100.0).contains(percent));
    number.ok_or_else(|| "expected a number from 0 to 100".to_owned())
}

/// A length in bytes, or "imix", or "random".
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(untagged)]
enum InnerBytes {
    Bytes(u64),
    Mix(String),
}

/// Identifies a measurement: those with equal keys are compared.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
struct Key {
    suite: String,
    direction: String,
    inner_bytes: InnerBytes,
    sas: u64,
    /// Absent in files from before the option existed: as many as SAs.
    #[serde(default)]
    policies: Option<u64>,
    engine: String,
    encapsulation: String,
    /// Absent in files from before the option existed.
    #[serde(default = "usual_formation")]
    formation: String,
}

fn usual_formation() -> String {
    Order::default().name().to_owned()
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { suite, direction, inner_bytes, sas, policies, engine, encapsulation, formation } = self;
        let size = match inner_bytes {
            InnerBytes::Bytes(bytes) => bytes.to_string(),
            InnerBytes::Mix(name) => name.clone(),
        };
        write!(f, "{suite} {direction} {size} {engine} {sas} SA {encapsulation}")?;
        if let Some(policies) = policies.filter(|policies| policies != sas) {
            write!(f, ", {policies} policies")?;
        }
        if *formation == usual_formation() { Ok(()) } else { write!(f, ", formation {formation}") }
    }
}

/// One object of the array, reduced to the members used here.
#[derive(Debug, Clone, Deserialize)]
struct Entry {
    #[serde(flatten)]
    key: Key,
    packets_per_second: f64,
    packets_per_second_lowest: f64,
    packets_per_second_highest: f64,
}

impl Entry {
    fn spread(&self) -> Spread {
        Spread {
            median: self.packets_per_second,
            lowest: self.packets_per_second_lowest,
            highest: self.packets_per_second_highest,
        }
    }
}

/// A case that is in both files.
#[derive(Debug)]
struct Pair {
    key: Key,
    before: Spread,
    after: Spread,
}

impl Pair {
    /// How many times as fast B is as A.
    fn ratio(&self) -> f64 {
        self.after.median / self.before.median
    }

    fn exceeds_the_spread(&self) -> bool {
        !self.before.overlaps(&self.after)
    }

    fn verdict(&self) -> &'static str {
        match (self.exceeds_the_spread(), self.ratio() > 1.0) {
            (false, _) => "within the spread",
            (true, true) => "faster",
            (true, false) => "slower",
        }
    }

    fn row(&self) -> Vec<String> {
        let mpps = |rate: f64| format!("{:.3}", rate / 1e6);
        let (before, after) = (mpps(self.before.median), mpps(self.after.median));
        vec![self.key.to_string(), before, after, format!("{:.3}", self.ratio()), self.verdict().to_owned()]
    }

    fn json(&self) -> Value {
        let mut object = json!(self.key);
        object["a_packets_per_second"] = json!(self.before.median);
        object["b_packets_per_second"] = json!(self.after.median);
        object["ratio"] = json!(self.ratio());
        object["exceeds_the_spread"] = json!(self.exceeds_the_spread());
        object
    }
}

/// Two runs, case by case.
#[derive(Debug)]
pub(super) struct Comparison {
    pairs: Vec<Pair>,
    only_before: Vec<Key>,
    only_after: Vec<Key>,
}

fn read(path: &Path) -> Result<Vec<Entry>, BenchError> {
    let file = |source| BenchError::File { path: path.to_owned(), source };
    let text = fs::read_to_string(path).map_err(file)?;
    parse(&text).map_err(|what| BenchError::Malformed { path: path.to_owned(), what })
}

fn parse(text: &str) -> Result<Vec<Entry>, String> {
    let mut entries: Vec<Entry> =
        serde_json::from_str(text).map_err(|e| format!("not what `testudo bench --json` prints: {e}"))?;
    for Key { policies, sas, .. } in entries.iter_mut().map(|entry| &mut entry.key) {
        policies.get_or_insert(*sas);
    }
    let mut keys = HashSet::new();
    for entry in &entries {
        let Spread { median, lowest, highest } = entry.spread();
        if !(0.0 < lowest && lowest <= median && median <= highest) {
            return Err(format!("{}: impossible packets per second", entry.key));
        }
        if !keys.insert(&entry.key) {
            return Err(format!("{} is listed twice", entry.key));
        }
    }
    Ok(entries)
}

impl Comparison {
    pub(super) fn of_files(before: &Path, after: &Path) -> Result<Self, BenchError> {
        Ok(Self::of(&read(before)?, &read(after)?))
    }

    fn of(before: &[Entry], after: &[Entry]) -> Self {
        let missing = |here: &[Entry], there: &[Entry]| {
            let is_missing = |entry: &&Entry| there.iter().all(|other| other.key != entry.key);
            here.iter().filter(is_missing).map(|entry| entry.key.clone()).collect()
        };
        let pair = |entry: &Entry| {
            let other = after.iter().find(|other| other.key == entry.key)?;
            Some(Pair { key: entry.key.clone(), before: entry.spread(), after: other.spread() })
        };
        Self {
            pairs: before.iter().filter_map(pair).collect(),
            only_before: missing(before, after),
            only_after: missing(after, before),
        }
    }

    /// For people.
    pub(super) fn table(&self) -> String {
        let heads = ["case", "A, Mpps", "B, Mpps", "B/A", "difference"].map(str::to_owned).to_vec();
        let rows: Vec<_> = [heads].into_iter().chain(self.pairs.iter().map(Pair::row)).collect();
        let mut text = if self.pairs.is_empty() {
            "  no case is in both files\n".to_owned()
        } else {
            Table::report(rows).to_string()
        };
        for (file, keys) in [("A", &self.only_before), ("B", &self.only_after)] {
            text.extend(keys.iter().map(|key| format!("  only in {file}: {key}\n")));
        }
        text
    }

    /// For programs.
    pub(super) fn json(&self) -> Value {
        let pairs: Vec<Value> = self.pairs.iter().map(Pair::json).collect();
        json!({ "cases": pairs, "only_in_a": self.only_before, "only_in_b": self.only_after })
    }

    /// If a case is more than `percent` slower in B than in A: a message that names the worst.
    pub(super) fn slower_than(&self, percent: f64) -> Option<String> {
        let worst = self.pairs.iter().min_by(|a, b| a.ratio().total_cmp(&b.ratio()))?;
        let slower = (1.0 - worst.ratio()) * 100.0;
        (slower > percent)
            .then(|| format!("{} is {slower:.1} % slower; at most {percent} % is allowed", worst.key))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(inner_bytes: &str, median: f64, lowest: f64, highest: f64) -> String {
        format!(
            r#"{{"suite":"aes128gcm16","direction":"outbound","inner_bytes":{inner_bytes},"sas":1,"engine":"portable","encapsulation":"esp",
            "packets_per_second":{median},"packets_per_second_lowest":{lowest},"packets_per_second_highest":{highest},"stages":{{}}}}"#
        )
    }

    fn comparison(before: &[String], after: &[String]) -> Comparison {
        let parse = |entries: &[String]| parse(&format!("[{}]", entries.join(","))).unwrap();
        Comparison::of(&parse(before), &parse(after))
    }

    #[test]
    fn cases_are_matched_and_the_spread_decides() {
        let before =
            [entry("64", 5e6, 4e6, 6e6), entry("1420", 2e6, 1.9e6, 2.1e6), entry("\"imix\"", 3e6, 3e6, 3e6)];
        let after =
            [entry("\"imix\"", 2e6, 1e6, 2.5e6), entry("1420", 4e6, 3e6, 5e6), entry("64", 5.5e6, 5e6, 7e6)];
        let comparison = comparison(&before, &after);
        let verdicts: Vec<_> = comparison.pairs.iter().map(|pair| (pair.ratio(), pair.verdict())).collect();
        assert_eq!(verdicts[0], (1.1, "within the spread"));
        assert_eq!(verdicts[1], (2.0, "faster"));
        assert_eq!(verdicts[2].1, "slower");
        let table = comparison.table();
        assert!(table.contains("aes128gcm16 outbound 1420 portable 1 SA esp"), "{table}");
        assert_eq!(comparison.json()["cases"][2]["inner_bytes"], "imix");
        assert_eq!(comparison.json()["cases"][1]["exceeds_the_spread"], true);
    }

    #[test]
    fn formations_and_policies_are_told_apart_and_older_files_have_the_defaults() {
        let old = [entry("64", 1.0, 1.0, 1.0)];
        let with =
            |formation: &str| old[0].replace("\"sas\"", &format!("\"formation\":\"{formation}\",\"sas\""));
        let comparison = comparison(&old, &[with("none"), with("length")]);
        assert_eq!((comparison.pairs.len(), comparison.only_before.len()), (1, 0));
        assert!(
            comparison
                .table()
                .contains("only in B: aes128gcm16 outbound 64 portable 1 SA esp, formation none")
        );
        let with = |policies: u32| old[0].replace("\"sas\"", &format!("\"policies\":{policies},\"sas\""));
        let comparison = super::tests::comparison(&old, &[with(1), with(1000)]);
        assert_eq!((comparison.pairs.len(), comparison.only_after.len()), (1, 1));
        assert!(comparison.table().contains("1 SA esp, 1000 policies"));
    }

    #[test]
    fn cases_in_only_one_file_are_listed() {
        let comparison = comparison(&[entry("64", 1.0, 1.0, 1.0)], &[entry("65", 1.0, 1.0, 1.0)]);
        let table = comparison.table();
        assert!(table.contains("no case is in both files"), "{table}");
        assert!(
            table.contains("only in A: aes128gcm16 outbound 64")
                && table.contains("only in B: aes128gcm16 outbound 65")
        );
        assert_eq!(comparison.json()["only_in_b"][0]["inner_bytes"], 65);
        assert_eq!(comparison.slower_than(0.0), None);
    }

    #[test]
    fn a_loss_beyond_what_is_allowed_is_named() {
        let before = [entry("64", 10.0, 10.0, 10.0), entry("65", 10.0, 10.0, 10.0)];
        let after = [entry("64", 9.5, 9.5, 9.5), entry("65", 9.0, 9.0, 9.0)];
        let comparison = comparison(&before, &after);
        assert_eq!(comparison.slower_than(11.0), None);
        let worst = comparison.slower_than(6.0).unwrap();
        assert!(worst.contains(" 65 ") && worst.contains("10.0 % slower"), "{worst}");
    }

    #[test]
    fn other_files_are_refused_with_a_reason() {
        let twice = format!("[{0},{0}]", entry("64", 1.0, 1.0, 1.0));
        for (text, reason) in [
            ("", "EOF"),
            ("{}", "sequence"),
            ("[{}]", "missing field"),
            (twice.as_str(), "twice"),
            (&format!("[{}]", entry("64", 1.0, 2.0, 3.0)), "impossible"),
            (&format!("[{}]", entry("64", 0.0, 0.0, 0.0)), "impossible"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(reason), "{text}: {error}");
        }
    }
}
