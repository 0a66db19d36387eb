//! What a set-up has written, so that it can be taken back by later versions of the program, on a host that
//! has changed.

use super::host::Host;
use crate::exit::{Failure, Kind};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

/// The folder of records. Only root can write there: what is in it says which files root puts back.
pub const FOLDER: &str = "/etc/testudo/ike";

/// A file that was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Where.
    pub path: String,
    /// Whether there was one before, which is kept beside it.
    pub was_there: bool,
    /// What was written.
    pub text: String,
}

/// All that was written for a daemon.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Record {
    /// The daemon.
    pub daemon: String,
    /// The files.
    pub files: Vec<Entry>,
    /// Folders that were made, from the outside in.
    pub folders: Vec<String>,
    /// Services to restart when it is taken back.
    pub services: Vec<String>,
    /// The gateway's socket.
    pub socket: String,
    /// The library.
    pub library: String,
}

/// Where the record of a daemon is.
pub fn path(daemon: &str) -> PathBuf {
    format!("{FOLDER}/{daemon}.json").into()
}

impl Record {
    /// The record of a daemon, if it is set up.
    ///
    /// # Errors
    /// It cannot be read, or is none.
    pub fn read(host: &Host, daemon: &str) -> Result<Option<Self>, Failure> {
        let path = path(daemon);
        let Some(bytes) = host.read(&path)? else { return Ok(None) };
        let parsed = serde_json::from_slice(&bytes).ok().and_then(|value| Self::of(daemon, &value));
        parsed.map(Some).ok_or_else(|| {
            let words = "this is no record of `testudo ike setup`: the files that it wrote end with testudo.conf, and those \
                         that were there before are kept beside them, with .before-testudo at the end";
            Failure::new(Kind::State, format!("{}: {words}", host.path(&path).display()))
        })
    }

    fn of(daemon: &str, value: &Value) -> Option<Self> {
        let text = |value: &Value| value.as_str().map(str::to_owned);
        let absolute = |value: &Value| text(value).filter(|path| Path::new(path).is_absolute());
        let texts = |value: &Value| value.as_array()?.iter().map(text).collect::<Option<Vec<_>>>();
        let entry = |value: &Value| {
            let (path, text) = (absolute(&value["path"])?, text(&value["text"])?);
            Some(Entry { path, was_there: value["was_there"].as_bool()?, text })
        };
        Some(Self {
            daemon: daemon.to_owned(),
            files: value["files"].as_array()?.iter().map(entry).collect::<Option<_>>()?,
            folders: texts(&value["folders"])?,
            services: texts(&value["services"])?,
            socket: text(&value["socket"])?,
            library: text(&value["library"])?,
        })
    }

    /// Its text.
    pub fn text(&self) -> String {
        let files = self
            .files
            .iter()
            .map(|entry| json!({ "path": entry.path, "was_there": entry.was_there, "text": entry.text }));
        let value = json!({
            "note": "what `testudo ike setup` wrote, which it takes back by this with --undo --apply",
            "files": files.collect::<Vec<_>>(),
            "folders": self.folders,
            "services": self.services,
            "socket": self.socket,
            "library": self.library,
        });
        format!("{value:#}\n")
    }

    /// The entry of a file.
    pub fn entry(&self, path: &str) -> Option<&Entry> {
        self.files.iter().find(|entry| entry.path == path)
    }
}
