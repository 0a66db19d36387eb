//! Results on disk: one file for each measurement, whole or not there, with what it is of.

use std::fs::{self, File, Permissions, TryLockError};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::item::{Item, Mode};
use super::machine::Machine;
use super::reading::{self, Wrong};
use crate::bench::BenchError;

/// Changes with the meaning of a record.
const FORMAT: u32 = 1;
/// The longest file that is read, in bytes.
const MOST_BYTES: u64 = 16 << 20;
/// Files of one name that are put away, at most.
const MOST_REFUSED: u32 = 1000;
/// What files may be to others before the user's mask, as of any new file: a report is made to be read.
const MODE: u32 = 0o666;
/// Files that are being written.
const PART: &str = ".part-";

/// What a result depends on: those of others are not taken.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Settings {
    pub(super) id: String,
    pub(super) mode: String,
    /// The command that was run in the process.
    pub(super) command: String,
    /// Text of the user's file of prices, if the command reads one.
    #[serde(default)]
    pub(super) prices: Option<String>,
    pub(super) program: String,
    pub(super) machine: Machine,
}

/// A result.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Record {
    format: u32,
    pub(super) settings: Settings,
    pub(super) measured_at: String,
    pub(super) seconds: f64,
    /// When the first of its commands was measured, by a run that was stopped before the last.
    #[serde(default)]
    pub(super) begun_at: Option<String>,
    /// The share of the processors' time that other programs had meanwhile, 0 to 1; `None` if not known.
    pub(super) others_share: Option<f64>,
    /// What the command prints with `--json`.
    pub(super) rows: Value,
}

impl Record {
    pub(super) fn new(settings: Settings, seconds: f64, others_share: Option<f64>, rows: Value) -> Self {
        let (measured_at, begun_at) = (super::machine::now(), None);
        Self { format: FORMAT, settings, measured_at, seconds, begun_at, others_share, rows }
    }

    /// The measurement that these are the parts of, in order.
    pub(super) fn joined(settings: Settings, begun_at: Option<String>, parts: Vec<Self>) -> Self {
        let seconds: f64 = parts.iter().map(|part| part.seconds).sum();
        let others = parts.iter().map(|part| Some(part.others_share? * part.seconds)).sum::<Option<f64>>();
        let others_share = others.filter(|_| seconds > 0.0).map(|others| others / seconds);
        let rows = rows_of(parts.into_iter().map(|part| part.rows).collect());
        Self { begun_at, ..Self::new(settings, seconds, others_share, rows) }
    }

    /// The same measurement as the result of another figure, if it is one of these settings.
    pub(super) fn shared_with(&self, settings: &Settings) -> Option<Self> {
        let is_one = self.settings.is_one_measurement_with(settings);
        is_one.then(|| Self { settings: settings.clone(), ..self.clone() })
    }
}

/// The rows of commands that a shell would run one after the other.
pub(super) fn rows_of(mut parts: Vec<Value>) -> Value {
    if parts.len() == 1 {
        return parts.remove(0);
    }
    let of_part = |part| match part {
        Value::Array(rows) => rows,
        other => vec![other],
    };
    Value::Array(parts.into_iter().flat_map(of_part).collect())
}

impl Settings {
    /// Of one of its commands.
    pub(super) fn of_part(&self, command: &str) -> Self {
        Self { command: command.to_owned(), ..self.clone() }
    }

    /// Whether a measurement of these settings is one of those, too: what another figure reads of its rows
    /// changes nothing in them.
    fn is_one_measurement_with(&self, other: &Self) -> bool {
        Self { id: other.id.clone(), ..self.clone() } == *other
    }
}

/// What there is of a measurement.
#[derive(Debug, PartialEq)]
pub(super) enum Found {
    /// A result of these settings.
    Kept(Box<Record>),
    /// Nothing.
    Nothing,
    /// Something else: the reason.
    Refused(String),
}

/// Where in the folder a result of an item is: of all its commands, or of one of several.
#[derive(Debug, Clone, Copy)]
pub(super) struct Place<'a> {
    item: &'a Item,
    mode: Mode,
    /// The command's number, from 1.
    part: Option<usize>,
}

impl<'a> Place<'a> {
    /// Of all commands.
    pub(super) fn whole(item: &'a Item, mode: Mode) -> Self {
        Self { item, mode, part: None }
    }

    /// Of the command of this number, from 1.
    pub(super) fn part(self, number: usize) -> Self {
        Self { part: Some(number), ..self }
    }

    fn file_name(&self) -> String {
        let part = self.part.map_or_else(String::new, |number| format!(".part-{number}"));
        format!("{}.{}{part}.json", self.item.id(), self.mode.name())
    }
}

/// The folder of results. As long as it lives, no other run has it.
pub(super) struct Store {
    folder: PathBuf,
    _lock: File,
}

fn failed(path: &Path) -> impl FnOnce(std::io::Error) -> BenchError {
    let path = path.to_owned();
    move |source| BenchError::File { path, source }
}

impl Store {
    /// Opens the folder, makes it if it is not there, and removes what runs left that were killed.
    pub(super) fn open(folder: &Path) -> Result<Self, BenchError> {
        fs::create_dir_all(folder).map_err(failed(folder))?;
        let path = folder.join(".lock");
        let lock = File::options().write(true).create(true).truncate(false).open(&path);
        let lock = lock.map_err(failed(&path))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::Error(error)) => return Err(failed(&path)(error)),
            Err(TryLockError::WouldBlock) => {
                let folder = folder.display();
                return Err(BenchError::Usage(format!(
                    "{folder}: another run has this folder; wait for it, or name another with --out"
                )));
            }
        }
        for entry in fs::read_dir(folder).map_err(failed(folder))?.flatten() {
            if entry.file_name().to_string_lossy().starts_with(PART) {
                // What cannot be removed does not matter: it is never read.
                let _ = fs::remove_file(entry.path());
            }
        }
        Ok(Self { folder: folder.to_owned(), _lock: lock })
    }

    fn path(&self, place: Place<'_>) -> PathBuf {
        self.folder.join(place.file_name())
    }

    /// The result that is there, if it is of these settings and its rows can be read.
    pub(super) fn find(&self, place: Place<'_>, settings: &Settings) -> Found {
        let path = self.path(place);
        // To open a pipe would wait for somebody who writes.
        let opened = match fs::metadata(&path) {
            Ok(about) if !about.is_file() => Err(std::io::Error::other("it is no file")),
            _ => File::open(&path),
        };
        match opened {
            Err(error) if error.kind() == ErrorKind::NotFound => Found::Nothing,
            Err(error) => Found::Refused(format!("{}: {error}", path.display())),
            Ok(file) => match parsed(file).and_then(|record| checked(record, place, settings)) {
                Ok(record) => Found::Kept(Box::new(record)),
                Err(reason) => Found::Refused(format!("{}: {reason}", path.display())),
            },
        }
    }

    /// Puts away what was refused, as `NAME.refused`, or `NAME.refused-2` and so on where there are such, so
    /// that nothing of somebody else's is lost; the name that it has then.
    pub(super) fn put_away(&self, place: Place<'_>) -> Result<String, BenchError> {
        let path = self.path(place);
        let is_free = |name: &String| {
            // A link that leads nowhere is there, too.
            let there = fs::symlink_metadata(self.folder.join(name));
            there.is_err_and(|error| error.kind() == ErrorKind::NotFound)
        };
        let first = format!("{}.refused", place.file_name());
        let others = (2..=MOST_REFUSED).map(|number| format!("{first}-{number}"));
        let away = [first.clone()].into_iter().chain(others).find(is_free);
        let away = away.ok_or_else(|| std::io::Error::other(format!("{MOST_REFUSED} files were put away")));
        let renamed = away.and_then(|away| fs::rename(&path, self.folder.join(&away)).map(|()| away));
        renamed.map_err(failed(&path))
    }

    pub(super) fn keep(&self, place: Place<'_>, record: &Record) -> Result<(), BenchError> {
        let text = serde_json::to_string(record).map_err(|error| failed(&self.folder)(error.into()))?;
        write(&self.path(place), &text)
    }

    /// Removes what is there, of our own.
    pub(super) fn remove(&self, place: Place<'_>) {
        // A part that stays is read by no run that has the whole.
        let _ = fs::remove_file(self.path(place));
    }

    /// Writes a report beside the results; its path.
    pub(super) fn report(&self, name: &str, text: &str) -> Result<PathBuf, BenchError> {
        let path = self.folder.join(name);
        write(&path, text)?;
        Ok(path)
    }
}

/// Replaces a file at once: a kill leaves what was there, or the new text.
pub(super) fn write(path: &Path, text: &str) -> Result<(), BenchError> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut part = tempfile::Builder::new();
    let part = part.prefix(PART).permissions(Permissions::from_mode(MODE)).tempfile_in(folder);
    let written = part.and_then(|mut part| {
        part.write_all(text.as_bytes())?;
        part.as_file().sync_all()?;
        part.persist(path).map_err(|error| error.error)
    });
    written.map(drop).map_err(failed(path))
}

fn parsed(file: File) -> Result<Record, Wrong> {
    let mut text = String::new();
    file.take(MOST_BYTES + 1).read_to_string(&mut text).map_err(|error| error.to_string())?;
    if text.len() as u64 > MOST_BYTES {
        return Err(format!("it is longer than {MOST_BYTES} bytes"));
    }
    serde_json::from_str(&text).map_err(|error| format!("it is no result: {error}"))
}

fn checked(record: Record, place: Place<'_>, settings: &Settings) -> Result<Record, Wrong> {
    let Record { settings: of, .. } = &record;
    let differs = [
        (record.format != FORMAT, "of another format"),
        (of.id != settings.id, "of another figure"),
        (of.machine != settings.machine, "of another machine"),
        (of.program != settings.program, "of another build of the program"),
        (of.prices != settings.prices, "of other prices"),
        (of.mode != settings.mode || of.command != settings.command, "of other settings"),
    ];
    if let Some((_, what)) = differs.iter().find(|(differs, _)| *differs) {
        return Err(format!("it is {what}"));
    }
    if !record.seconds.is_finite() || record.seconds < 0.0 {
        return Err("its time is no number of seconds".to_owned());
    }
    let method = place.item.method().ok_or("nothing measures it")?;
    // Those of one command are read with those of the others.
    if place.part.is_none() {
        reading::rows(&record.rows).and_then(method.read)?;
    } else if !record.rows.is_array() {
        return Err("its rows are no array".to_owned());
    }
    Ok(record)
}
