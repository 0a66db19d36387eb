//! The outputs of a replay: no file is replaced before everything succeeded, and no input is overwritten.
//!
//! ```text
//!   regular file, or none yet ──► temporary file beside it ──► renamed by `keep`; removed if it does not come to that
//!   pipe, terminal, /dev/null, /dev/stdout ──► written directly
//! ```

use crate::exit::{Failure, Kind};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use signal_hook::low_level::emulate_default_handler;
use std::fmt::Display;
use std::fs::{self, File, Metadata};
use std::io::{self, BufWriter, ErrorKind};
use std::os::unix::fs::{FileTypeExt, MetadataExt, fchown};
use std::path::{Path, PathBuf};
use tempfile::TempPath;
use testudo_port_pcap::{PcapError, PcapWriter};

/// Identifies a file, independent of links and spelling.
#[derive(Debug, PartialEq, Eq)]
enum Identity {
    /// Device and inode of a file that is there.
    Present(u64, u64),
    /// The whole path of one that is not.
    Absent(PathBuf),
}

/// A file that the replay reads or writes, with its name for messages.
struct Named {
    what: String,
    identity: Identity,
}

/// An output that others cannot see until it is complete.
pub struct Output {
    path: PathBuf,
    target: Target,
}

enum Target {
    /// The device or pipe itself.
    Direct(File),
    /// The temporary file, and its final name.
    Beside { file: File, temporary: TempPath, path: PathBuf },
}

/// Opens an output for each path. Fails if two outputs are the same file, or if one is an input; `inputs`
/// gives the role and path of each.
///
/// # Errors
/// [`Kind::Configuration`] for outputs that collide, [`Kind::Port`] for those that cannot be written. No file
/// has been touched then.
pub fn open(paths: &[&Path], inputs: &[(&str, &Path)]) -> Result<Vec<Output>, Failure> {
    let mut others: Vec<Named> = inputs.iter().filter_map(|(what, path)| input(what, path)).collect();
    for path in paths {
        let Some(identity) = identity(path).map_err(refused(path))? else { continue };
        if let Some(other) = others.iter().find(|other| other.identity == identity) {
            let message = format!(
                "output {} is the same file as {}: nothing was read or written",
                path.display(),
                other.what
            );
            return Err(Failure::new(Kind::Configuration, message));
        }
        others.push(Named { what: format!("output {}", path.display()), identity });
    }
    // Opening a pipe waits for its reader, so do it before there are temporary files that could be left
    // behind.
    let special: Vec<Option<File>> =
        paths.iter().map(|p| open_special(p).map_err(refused(p))).collect::<Result<_, _>>()?;
    let signals = Signals::new([SIGHUP, SIGINT, SIGTERM]).map_err(refused(Path::new("signals")))?;
    let outputs: Vec<Output> = paths
        .iter()
        .zip(special)
        .map(|(path, special)| Output::new(path, special).map_err(refused(path)))
        .collect::<Result<_, _>>()?;
    remove_when_interrupted(signals, &outputs);
    Ok(outputs)
}

/// Gives every output its name. All writes must have been flushed.
///
/// # Errors
/// [`Kind::Port`] if a file could not be written to the disk or be renamed.
pub fn keep(outputs: Vec<Output>) -> Result<(), Failure> {
    // Sync all data first: a full disk must not leave one output new and the other old.
    for output in &outputs {
        if let Target::Beside { file, .. } = &output.target {
            file.sync_data().map_err(refused(&output.path))?;
        }
    }
    for output in outputs {
        if let Target::Beside { temporary, path, .. } = output.target {
            temporary.persist(path).map_err(|e| refused(&output.path)(e.error))?;
        }
    }
    Ok(())
}

/// Turns an error with a path into the message for the user.
fn refused(path: &Path) -> impl Fn(io::Error) -> Failure {
    let path = path.display().to_string();
    move |error| Failure::new(Kind::Port, format!("{path}: {error}"))
}

impl Output {
    fn new(path: &Path, special: Option<File>) -> io::Result<Self> {
        let target = special.map_or_else(|| beside(path), |file| Ok(Target::Direct(file)))?;
        Ok(Self { path: path.to_owned(), target })
    }

    /// A writer for this output.
    ///
    /// # Errors
    /// [`PcapError::Io`]
    pub fn writer(&self) -> Result<PcapWriter, PcapError> {
        let name = self.path.display().to_string();
        let (Target::Direct(file) | Target::Beside { file, .. }) = &self.target;
        match file.try_clone() {
            Ok(file) => PcapWriter::new(name, Box::new(BufWriter::with_capacity(1 << 18, file))),
            Err(source) => Err(PcapError::Io { file: name, source }),
        }
    }

    /// Whether the output is the program's standard output.
    pub fn is_standard_output(&self) -> bool {
        let Target::Direct(file) = &self.target else { return false };
        let identity = |stat: rustix::fs::Stat| (stat.st_dev, stat.st_ino);
        let both = [rustix::fs::fstat(file), rustix::fs::fstat(io::stdout())].map(|stat| stat.map(identity));
        both[0].is_ok() && both[0] == both[1]
    }
}

/// An input's identity; `None` if it does not exist, so that it cannot be overwritten either.
fn input(what: &str, path: &Path) -> Option<Named> {
    let identity = identity(path).ok().flatten()?;
    Some(Named { what: format!("{what} {}", path.display()), identity })
}

/// `None` for a character device, which several outputs may share: a terminal, /dev/null.
fn identity(path: &Path) -> io::Result<Option<Identity>> {
    match fs::metadata(path) {
        Ok(found) if found.file_type().is_char_device() => Ok(None),
        Ok(found) => Ok(Some(Identity::Present(found.dev(), found.ino()))),
        Err(e) if e.kind() == ErrorKind::NotFound && fs::symlink_metadata(path).is_err() => {
            Ok(Some(Identity::Absent(future_path(path)?)))
        }
        Err(e) if e.kind() == ErrorKind::NotFound => Err(other("a dangling symbolic link")),
        Err(e) => Err(e),
    }
}

/// The canonical path of a file that does not exist yet.
fn future_path(path: &Path) -> io::Result<PathBuf> {
    let name = path.file_name().ok_or_else(|| other("not a file name"))?;
    let folder = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    Ok(fs::canonicalize(folder)?.join(name))
}

fn other(what: impl Display) -> io::Error {
    io::Error::other(what.to_string())
}

/// Opens a file that cannot be replaced by renaming; `None` for a regular file, or if there is none.
fn open_special(path: &Path) -> io::Result<Option<File>> {
    // These refer to what the shell has opened, perhaps for appending.
    let names_descriptor =
        ["/dev/stdout", "/dev/stderr", "/dev/fd", "/proc"].iter().any(|p| path.starts_with(p));
    match fs::metadata(path) {
        Ok(found) if found.is_dir() => Err(ErrorKind::IsADirectory.into()),
        Ok(found) if !found.is_file() || names_descriptor => {
            File::options().append(true).open(path).map(Some)
        }
        _ => Ok(None),
    }
}

/// A temporary file in the folder of `path`'s target, with the target's permissions.
fn beside(path: &Path) -> io::Result<Target> {
    let old: Option<Metadata> = match File::options().write(true).open(path) {
        Ok(file) => Some(file.metadata()?),
        Err(e) if e.kind() == ErrorKind::NotFound => None,
        Err(e) => return Err(e),
    };
    // The links' target is replaced, not the links.
    let path = if old.is_some() { fs::canonicalize(path)? } else { future_path(path)? };
    let folder = path.parent().unwrap_or(Path::new("/"));
    let name = path.file_name().unwrap_or_default();
    let (file, temporary) =
        tempfile::Builder::new().prefix(name).suffix(".tmp").tempfile_in(folder)?.into_parts();
    if let Some(old) = old {
        // Root may replace the files of others, who are to keep them; nobody else can give a file away. That
        // may take permissions, so these come last.
        let _ = fchown(&file, Some(old.uid()), Some(old.gid()));
        file.set_permissions(old.permissions())?;
    }
    Ok(Target::Beside { file, temporary, path })
}

/// Removes temporary files when a signal ends the program.
fn remove_when_interrupted(mut signals: Signals, outputs: &[Output]) {
    let temporary = outputs.iter().filter_map(|output| match &output.target {
        Target::Beside { temporary, .. } => Some(temporary.to_path_buf()),
        Target::Direct(_) => None,
    });
    let temporary: Vec<PathBuf> = temporary.collect();
    std::thread::spawn(move || {
        for signal in signals.forever() {
            for path in &temporary {
                // The file may have been renamed or removed by now.
                let _ = fs::remove_file(path);
            }
            let _ = emulate_default_handler(signal);
        }
    });
}
