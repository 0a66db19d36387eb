//! What became of each row with each peer, kept in a file between runs.

use super::peer::Peer;
use super::row::Row;
use serde_json::{Value, json};
use std::collections::{BTreeMap, HashMap};
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// What became of a row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// All traffic passed both ways, and neither end counted an error.
    Pass,
    /// It did not, for this reason.
    Fail(String),
    /// The peer does not have the row's suite, in these words.
    Lacking(String),
}

impl Verdict {
    /// Its name in results.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Pass => "pass",
            Self::Fail(_) => "fail",
            Self::Lacking(_) => "lacking",
        }
    }

    /// Why it is not a pass.
    #[must_use]
    pub fn reason(&self) -> &str {
        match self {
            Self::Pass => "",
            Self::Fail(reason) | Self::Lacking(reason) => reason,
        }
    }

    fn read(value: &Value) -> Option<Self> {
        let reason = value["reason"].as_str()?.to_owned();
        match value["result"].as_str()? {
            "pass" => Some(Self::Pass),
            "fail" => Some(Self::Fail(reason)),
            "lacking" => Some(Self::Lacking(reason)),
            _ => None,
        }
    }
}

/// The results could not be kept.
#[derive(Debug, thiserror::Error)]
#[error("cannot {action} {path}: {source}")]
pub struct ResultsError {
    action: &'static str,
    path: PathBuf,
    source: io::Error,
}

/// The results of one version of the program, in a file with a line of JSON for each.
///
/// A line is written when its row has ended, so that a run may be interrupted at any time. Lines of another
/// version and lines that were cut off are passed over.
#[derive(Debug)]
pub struct Results {
    path: PathBuf,
    program: String,
    verdicts: HashMap<(Peer, Row), Verdict>,
    /// Name and version of each peer.
    names: BTreeMap<Peer, String>,
}

impl Results {
    /// Reads what is known of these rows with this version of the program.
    ///
    /// # Errors
    /// The file exists and cannot be read.
    pub fn open(path: &Path, program: &str, rows: &[Row]) -> Result<Self, ResultsError> {
        let text = match fs::read_to_string(path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
            Err(source) => return Err(ResultsError { action: "read", path: path.to_owned(), source }),
        };
        let mut results = Self {
            path: path.to_owned(),
            program: program.to_owned(),
            verdicts: HashMap::new(),
            names: BTreeMap::new(),
        };
        let by_name: HashMap<String, Row> = rows.iter().map(|row| (row.to_string(), *row)).collect();
        let lines = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        for line in lines.filter(|line| line["program"] == program) {
            let row = line["row"].as_str().and_then(|name| by_name.get(name));
            let peer = line["kind"].as_str().and_then(Peer::of_name);
            if let (Some(row), Some(peer), Some(verdict)) = (row, peer, Verdict::read(&line)) {
                if let Some(name) = line["peer"].as_str() {
                    results.names.insert(peer, name.to_owned());
                }
                results.verdicts.insert((peer, *row), verdict);
            }
        }
        Ok(results)
    }

    /// Forgets everything, in the file, too.
    ///
    /// # Errors
    /// The file cannot be removed.
    pub fn clear(&mut self) -> Result<(), ResultsError> {
        self.verdicts.clear();
        self.names.clear();
        match fs::remove_file(&self.path) {
            Err(source) if source.kind() != io::ErrorKind::NotFound => {
                Err(ResultsError { action: "remove", path: self.path.clone(), source })
            }
            _ => Ok(()),
        }
    }

    /// Notes what became of rows with this peer, whose name and version `name` says.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn add(&mut self, peer: Peer, name: &str, verdicts: Vec<(Row, Verdict)>) -> Result<(), ResultsError> {
        let lines: String = verdicts
            .iter()
            .map(|(row, verdict)| {
                let (result, reason) = (verdict.name(), verdict.reason());
                let line = json!({ "program": self.program, "kind": peer.name(), "peer": name,
                                   "row": row.to_string(), "result": result, "reason": reason });
                format!("{line}\n")
            })
            .collect();
        let error = |source| ResultsError { action: "write", path: self.path.clone(), source };
        if let Some(folder) = self.path.parent() {
            fs::create_dir_all(folder).map_err(error)?;
        }
        let mut file = OpenOptions::new().create(true).append(true).open(&self.path).map_err(error)?;
        file.write_all(lines.as_bytes()).map_err(error)?;
        self.names.insert(peer, name.to_owned());
        self.verdicts.extend(verdicts.into_iter().map(|(row, verdict)| ((peer, row), verdict)));
        Ok(())
    }

    /// What became of a row with this peer, if it was run.
    #[must_use]
    pub fn of(&self, peer: Peer, row: &Row) -> Option<&Verdict> {
        self.verdicts.get(&(peer, *row))
    }

    /// Name and version of this peer, if it has had a row.
    #[must_use]
    pub fn name(&self, peer: Peer) -> Option<&str> {
        self.names.get(&peer).map(String::as_str)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::interop::row::all_rows;

    /// A file that no other test has.
    fn file(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("testudo-interop-{}-{name}", std::process::id()));
        let _ = fs::remove_file(&path);
        path
    }

    #[test]
    fn results_are_there_again_but_not_for_another_program() {
        let (path, rows) = (file("again"), all_rows());
        let verdicts = [
            Verdict::Pass,
            Verdict::Fail("2 of 3 pings were lost\nmore".to_owned()),
            Verdict::Lacking("\"no\"".to_owned()),
        ];
        let mut results = Results::open(&path, "one", &rows).expect("no file is no error");
        assert_eq!((results.of(Peer::Linux, &rows[0]), results.name(Peer::Linux)), (None, None));
        let known: Vec<(Row, Verdict)> = rows.iter().copied().zip(verdicts.clone()).collect();
        results.add(Peer::Linux, "Linux 6", known.clone()).expect("the folder is writable");
        let mut again = Results::open(&path, "one", &rows).expect("readable");
        assert!(known.iter().all(|(row, verdict)| again.of(Peer::Linux, row) == Some(verdict)));
        assert_eq!((again.of(Peer::Linux, &rows[3]), again.name(Peer::Linux)), (None, Some("Linux 6")));
        let other = Results::open(&path, "two", &rows).expect("readable");
        assert_eq!((other.of(Peer::Linux, &rows[0]), again.of(Peer::Scapy, &rows[0])), (None, None));
        again.clear().expect("removable");
        assert_eq!(Results::open(&path, "one", &rows).expect("readable").of(Peer::Linux, &rows[0]), None);
    }

    #[test]
    fn a_line_that_was_cut_off_is_passed_over_and_the_last_word_counts() {
        let (path, rows) = (file("cut"), all_rows());
        let mut results = Results::open(&path, "one", &rows).expect("no file is no error");
        results
            .add(Peer::Linux, "Linux 6", vec![(rows[0], Verdict::Fail("lost".to_owned()))])
            .expect("writable");
        results.add(Peer::Linux, "Linux 6", vec![(rows[0], Verdict::Pass)]).expect("writable");
        let mut text = fs::read_to_string(&path).expect("readable");
        let line = text.lines().next().expect("a line").to_owned();
        text.push_str(&line[..line.len() / 2]);
        fs::write(&path, text).expect("writable");
        let again = Results::open(&path, "one", &rows).expect("readable");
        assert_eq!(again.of(Peer::Linux, &rows[0]), Some(&Verdict::Pass));
        fs::remove_file(&path).expect("removable");
    }
}
