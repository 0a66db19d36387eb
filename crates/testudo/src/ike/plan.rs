//! From what is wanted and what is there to the steps between them.

use super::change::{Step, kept};
use super::host::Host;
use super::record::{self, Entry, Record};
use super::texts::{Content, Wanted};
use crate::exit::{Failure, Kind};
use std::path::{Path, PathBuf};

/// What becomes of a file, for people to see.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// Which.
    pub path: String,
    /// What is there now.
    pub before: Option<String>,
    /// What will be.
    pub after: Option<String>,
    /// Whether the one that is there is kept beside it, or comes back from there.
    pub is_kept: bool,
}

/// The way from what is there to what is wanted.
#[derive(Debug, Default)]
pub struct Plan {
    /// What is done.
    pub steps: Vec<Step>,
    /// What is shown of it.
    pub changes: Vec<Change>,
    /// Files that somebody else has changed, each with what was changed.
    pub conflicts: Vec<String>,
    /// The record afterwards; none when everything is taken back.
    pub record: Option<Record>,
}

/// How a file stands to what was written there.
enum Standing {
    /// Nothing was written, or it is gone together with what was before.
    Free,
    /// It is as it was written.
    Ours,
    /// It was not written yet, though the record says so: a set-up was killed.
    Before,
    /// Somebody else has changed or removed it.
    Changed,
}

impl Plan {
    /// For the files `wanted` instead of those of `old`. `new` has what else the record is to say.
    ///
    /// # Errors
    /// A file is none that can be edited.
    pub fn setup(host: &Host, wanted: &[Wanted], old: &Record, new: Record) -> Result<Self, Failure> {
        let mut plan = Self::default();
        let mut new = Record { folders: old.folders.clone(), ..new };
        for wanted in wanted {
            let entry = plan.put(host, wanted, old.entry(&wanted.path), &mut new.folders)?;
            new.files.push(entry);
        }
        for entry in &old.files {
            if new.entry(&entry.path).is_none() {
                plan.take_back(host, entry)?;
            }
        }
        if &new != old {
            let path = record::path(&new.daemon);
            let mut first = Vec::new();
            folders_for(host, &path, &mut new.folders, &mut first);
            first.push(Step::Write { path, bytes: new.text().into_bytes(), mode: 0o644 });
            plan.steps.splice(0..0, first);
        }
        plan.record = Some(new);
        Ok(plan)
    }

    /// To take everything back.
    ///
    /// # Errors
    /// A file is none that can be edited.
    pub fn undo(host: &Host, old: &Record) -> Result<Self, Failure> {
        let mut plan = Self::default();
        for entry in old.files.iter().rev() {
            plan.take_back(host, entry)?;
        }
        // The record goes last: killed before, the rest is taken back by it.
        plan.steps.push(Step::Remove(record::path(&old.daemon)));
        let folders = old.folders.iter().rev().map(PathBuf::from);
        plan.steps.extend(folders.chain([record::FOLDER.into()]).map(Step::RemoveFolder));
        Ok(plan)
    }

    fn put(
        &mut self,
        host: &Host,
        wanted: &Wanted,
        entry: Option<&Entry>,
        folders: &mut Vec<String>,
    ) -> Result<Entry, Failure> {
        let path = Path::new(&wanted.path);
        let current = text(host, path)?;
        let standing = standing(host, path, current.as_deref(), entry)?;
        let is_new = matches!(standing, Standing::Free | Standing::Before);
        let original = match entry {
            Some(entry) if !is_new => {
                if entry.was_there {
                    text(host, &kept(path))?
                } else {
                    None
                }
            }
            _ => current.clone(),
        };
        let after = match &wanted.content {
            Content::Whole(text) => text.clone(),
            Content::After(text) => original.as_deref().map_or(String::new(), with_line_end) + text,
        };
        if is_new && host.path(&kept(path)).symlink_metadata().is_ok() {
            let words = "is there already, and is nothing that this set-up has kept: move it away";
            return Err(Failure::new(Kind::Other, format!("{} {words}", host.path(&kept(path)).display())));
        }
        if let (Standing::Changed, Some(entry)) = (&standing, entry) {
            self.conflict(path, &entry.text, current.as_deref());
        }
        let bytes = after.clone().into_bytes();
        let is_kept = is_new && current.is_some();
        if is_kept {
            self.steps.push(Step::KeepAndWrite { path: path.into(), bytes, mode: None });
        } else if current.as_deref() != Some(&after) {
            folders_for(host, path, folders, &mut self.steps);
            self.steps.push(Step::Write { path: path.into(), bytes, mode: wanted.mode });
        }
        if is_kept || current.as_deref() != Some(&after) {
            let after = Some(after.clone());
            self.changes.push(Change { path: wanted.path.clone(), before: current, after, is_kept });
        }
        Ok(Entry { path: wanted.path.clone(), was_there: original.is_some(), text: after })
    }

    fn take_back(&mut self, host: &Host, entry: &Entry) -> Result<(), Failure> {
        let path = Path::new(&entry.path);
        let current = text(host, path)?;
        match standing(host, path, current.as_deref(), Some(entry))? {
            Standing::Free | Standing::Before => return Ok(()),
            Standing::Ours => {}
            Standing::Changed => self.conflict(path, &entry.text, current.as_deref()),
        }
        let after = if entry.was_there { text(host, &kept(path))? } else { None };
        let path = path.to_owned();
        let is_kept = after.is_some();
        self.steps.push(if is_kept { Step::Restore(path) } else { Step::Remove(path) });
        self.changes.push(Change { path: entry.path.clone(), before: current, after, is_kept });
        Ok(())
    }

    fn conflict(&mut self, path: &Path, written: &str, current: Option<&str>) {
        let what = match current {
            None => "somebody else has removed it since it was written".to_owned(),
            Some(current) if current == written => "the file that was kept beside it is gone".to_owned(),
            Some(current) => {
                format!(
                    "somebody else has changed it since it was written:\n{}",
                    difference(written, current)
                )
            }
        };
        self.conflicts.push(format!("{}: {}", path.display(), what.trim_end()));
    }

    /// Whether there is nothing to do.
    pub fn is_done(&self) -> bool {
        self.steps.is_empty()
    }
}

fn standing(
    host: &Host,
    path: &Path,
    current: Option<&str>,
    entry: Option<&Entry>,
) -> Result<Standing, Failure> {
    let Some(entry) = entry else { return Ok(Standing::Free) };
    let original = if entry.was_there { text(host, &kept(path))? } else { None };
    Ok(match current {
        Some(current) if current == entry.text && entry.was_there == original.is_some() => Standing::Ours,
        // Killed between keeping the original and writing.
        current if current.is_some() && current == original.as_deref() => Standing::Ours,
        // Removed, and nothing was there before: as it was.
        None if !entry.was_there => Standing::Free,
        // The original is back in its place, by somebody's hand, or still is there.
        Some(current) if current != entry.text && entry.was_there && original.is_none() => Standing::Before,
        _ => Standing::Changed,
    })
}

/// A file as text: a record could not say which other bytes it had.
fn text(host: &Host, path: &Path) -> Result<Option<String>, Failure> {
    let Some(bytes) = host.read(path)? else { return Ok(None) };
    String::from_utf8(bytes).map(Some).map_err(|_| {
        let words = "it is no text in UTF-8, so it is not touched";
        Failure::new(Kind::Other, format!("{}: {words}", host.path(path).display()))
    })
}

fn with_line_end(text: &str) -> String {
    if text.is_empty() || text.ends_with('\n') { text.to_owned() } else { format!("{text}\n") }
}

/// Adds the folders that are missing above a file.
fn folders_for(host: &Host, path: &Path, folders: &mut Vec<String>, steps: &mut Vec<Step>) {
    let mut missing: Vec<_> =
        path.ancestors().skip(1).take_while(|above| !host.path(above).exists()).collect();
    missing.reverse();
    for folder in missing {
        let step = Step::MakeFolder(folder.to_owned());
        if !steps.contains(&step) {
            steps.push(step);
        }
        let name = folder.display().to_string();
        if !folders.contains(&name) {
            folders.push(name);
        }
    }
}

/// The lines by which two texts differ: from the first such line to the last one.
pub fn difference(before: &str, after: &str) -> String {
    let (old, new): (Vec<_>, Vec<_>) = (before.lines().collect(), after.lines().collect());
    let shorter = old.len().min(new.len());
    let same_first = (0..shorter).take_while(|at| old[*at] == new[*at]).count();
    let same_last =
        (0..shorter - same_first).take_while(|at| old[old.len() - 1 - at] == new[new.len() - 1 - at]);
    let same_last = same_last.count();
    let lines = |sign: char, lines: &[&str]| {
        let lines = &lines[same_first..lines.len() - same_last];
        lines.iter().map(|line| format!("  {sign} {line}\n")).collect::<String>()
    };
    lines('-', &old) + &lines('+', &new)
}
