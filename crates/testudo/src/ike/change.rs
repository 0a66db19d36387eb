//! Changes of files that happen all or not at all.
//!
//! Each step that was taken has an opposite. Where one fails, the opposites of those before it are taken, the
//! last one first.

use super::host::{Host, failed};
use crate::exit::Failure;
use std::ffi::OsString;
use std::fs::{self, Metadata, OpenOptions, Permissions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};

/// A step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Make a folder.
    MakeFolder(PathBuf),
    /// Remove a folder, if nothing is in it.
    RemoveFolder(PathBuf),
    /// Write a file; one that is there is replaced in one go, and leaves its owner and permissions.
    Write { path: PathBuf, bytes: Vec<u8>, mode: u32 },
    /// Keep a file that is there beside itself, and write another in its place, with its owner, and with
    /// its permissions where `mode` does not say others.
    KeepAndWrite { path: PathBuf, bytes: Vec<u8>, mode: Option<u32> },
    /// Put the file that was kept back in its place: the same file, not a copy.
    Restore(PathBuf),
    /// Give a file the name under which it is kept.
    SetAside(PathBuf),
    /// Remove a file.
    Remove(PathBuf),
}

/// The name under which a file is kept beside itself. No program that reads its folder takes it for one of
/// its own files, whose names end with .conf, or are those of AppArmor's profiles.
pub fn kept(path: &Path) -> PathBuf {
    with_suffix(path, ".before-testudo")
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(suffix);
    name.into()
}

/// Takes all steps, or none; `last` is done after them and counts as one more.
///
/// # Errors
/// The first step that failed, when those before it were taken back.
pub fn take(host: &Host, steps: &[Step], last: impl FnOnce() -> Result<(), Failure>) -> Result<(), Failure> {
    let mut opposites = Vec::new();
    let mut outcome = Ok(());
    for step in steps {
        match step.take(host) {
            Ok(opposite) => opposites.extend(opposite),
            Err((path, error)) => {
                outcome = Err(failed(&host.path(&path), &error));
                break;
            }
        }
    }
    let outcome = outcome.and_then(|()| last());
    outcome.map_err(|failure| {
        let left: Vec<_> = opposites.iter().rev().filter_map(|step| step.take(host).err()).collect();
        failure.explained(|message| match left.first() {
            None => format!("{message}; nothing was changed"),
            Some((path, error)) => {
                format!(
                    "{message}; what was changed could not all be taken back: {}: {error}",
                    path.display()
                )
            }
        })
    })
}

impl Step {
    /// Takes the step, and returns its opposite, if there is something to take back.
    fn take(&self, host: &Host) -> Result<Option<Step>, (PathBuf, io::Error)> {
        let path = self.path();
        let here = host.path(path);
        self.take_at(path, &here).map_err(|error| (path.to_owned(), error))
    }

    /// The path that the step is about.
    pub fn path(&self) -> &Path {
        match self {
            Self::MakeFolder(path)
            | Self::RemoveFolder(path)
            | Self::Restore(path)
            | Self::SetAside(path)
            | Self::Remove(path)
            | Self::Write { path, .. }
            | Self::KeepAndWrite { path, .. } => path,
        }
    }

    fn take_at(&self, path: &Path, here: &Path) -> io::Result<Option<Step>> {
        match self {
            Self::MakeFolder(_) => {
                fs::create_dir(here)?;
                fs::set_permissions(here, Permissions::from_mode(0o755))?;
                Ok(Some(Self::RemoveFolder(path.into())))
            }
            Self::RemoveFolder(_) => match fs::remove_dir(here) {
                Ok(()) => Ok(Some(Self::MakeFolder(path.into()))),
                // Somebody else uses it, or has removed it.
                Err(e) if matches!(e.kind(), ErrorKind::DirectoryNotEmpty | ErrorKind::NotFound) => Ok(None),
                Err(e) => Err(e),
            },
            Self::Write { bytes, mode, .. } => {
                let Some((before, found)) = existing(here)? else {
                    write(here, bytes, *mode, None)?;
                    return Ok(Some(Self::Remove(path.into())));
                };
                write_as(here, bytes, &found)?;
                Ok(Some(Self::Write { path: path.into(), bytes: before, mode: found.mode() & 0o7777 }))
            }
            Self::KeepAndWrite { bytes, mode, .. } => {
                let found = fs::metadata(here)?;
                // A second name, so that there is never a moment without the file. It must not be taken.
                fs::hard_link(here, kept(here))?;
                let mode = mode.unwrap_or(found.mode() & 0o7777);
                if let Err(error) = write(here, bytes, mode, Some((found.uid(), found.gid()))) {
                    let _ = fs::remove_file(kept(here));
                    return Err(error);
                }
                Ok(Some(Self::Restore(path.into())))
            }
            Self::Restore(_) => {
                let before = existing(here)?;
                // rename(2) does nothing where both names are of one file.
                fs::rename(kept(here), here)?;
                let _ = fs::remove_file(kept(here));
                Ok(Some(match before {
                    Some((bytes, found)) => {
                        let mode = Some(found.mode() & 0o7777);
                        Self::KeepAndWrite { path: path.into(), bytes, mode }
                    }
                    None => Self::SetAside(path.into()),
                }))
            }
            Self::SetAside(_) => {
                fs::rename(here, kept(here))?;
                Ok(Some(Self::Restore(path.into())))
            }
            Self::Remove(_) => {
                let Some((bytes, found)) = existing(here)? else { return Ok(None) };
                fs::remove_file(here)?;
                Ok(Some(Self::Write { path: path.into(), bytes, mode: found.mode() & 0o7777 }))
            }
        }
    }
}

/// A file's bytes, and whose it is.
fn existing(here: &Path) -> io::Result<Option<(Vec<u8>, Metadata)>> {
    match fs::read(here) {
        Ok(bytes) => Ok(Some((bytes, fs::metadata(here)?))),
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(None),
        Err(e) => Err(e),
    }
}

fn write_as(here: &Path, bytes: &[u8], found: &Metadata) -> io::Result<()> {
    write(here, bytes, found.mode() & 0o7777, Some((found.uid(), found.gid())))
}

/// Writes a file under another name, on the disk, and then gives it its own: a reader finds the old one or
/// the new one, whole.
fn write(here: &Path, bytes: &[u8], mode: u32, owner: Option<(u32, u32)>) -> io::Result<()> {
    let new = with_suffix(here, ".testudo-new");
    // What a kill has left.
    let _ = fs::remove_file(&new);
    let written = (|| {
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new)?;
        file.write_all(bytes)?;
        if let Some((uid, gid)) = owner {
            fchown(&file, Some(uid), Some(gid))?;
        }
        file.set_permissions(Permissions::from_mode(mode))?;
        file.sync_all()?;
        fs::rename(&new, here)
    })();
    if written.is_err() {
        let _ = fs::remove_file(&new);
    }
    written
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exit::Kind;

    fn tree(folder: &Path) -> Vec<(String, Option<Vec<u8>>, u32)> {
        let mut found = Vec::new();
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let (name, mode) = (path.display().to_string(), fs::metadata(&path).unwrap().mode());
            if path.is_dir() {
                found.push((name, None, mode));
                found.extend(tree(&path));
            } else {
                found.push((name, Some(fs::read(&path).unwrap()), mode));
            }
        }
        found.sort();
        found
    }

    #[test]
    fn after_a_step_that_fails_every_file_is_as_it_was_wherever_that_is() {
        let folder = tempfile::tempdir().unwrap();
        let host = Host::new(folder.path());
        let at = |name: &str| PathBuf::from("/").join(name);
        let put = |name: &str, bytes: &[u8], mode: u32| {
            fs::write(host.path(&at(name)), bytes).unwrap();
            fs::set_permissions(host.path(&at(name)), Permissions::from_mode(mode)).unwrap();
        };
        put("theirs", b"no text: \xff\0", 0o640);
        put("old", b"an earlier one", 0o644);
        put("gone", b"ours", 0o755);
        put("changed", b"ours", 0o644);
        put("changed.before-testudo", b"theirs", 0o600);
        put("removed.before-testudo", b"theirs", 0o600);
        fs::create_dir(host.path(&at("empty"))).unwrap();
        fs::set_permissions(host.path(&at("empty")), Permissions::from_mode(0o755)).unwrap();
        let write = |name: &str| Step::Write { path: at(name), bytes: b"new".to_vec(), mode: 0o644 };
        let steps = [
            Step::MakeFolder(at("folder")),
            write("folder/new"),
            write("old"),
            Step::KeepAndWrite { path: at("theirs"), bytes: b"new".to_vec(), mode: None },
            Step::Remove(at("gone")),
            Step::Restore(at("changed")),
            Step::Restore(at("removed")),
            Step::RemoveFolder(at("empty")),
        ];
        let before = tree(folder.path());
        for count in 0..=steps.len() {
            let taken = [&steps[..count], &[write("no/such/folder")]].concat();
            let failure = take(&host, &taken, || panic!("it is not reached")).unwrap_err();
            let said = format!("{failure:?}");
            assert!(said.contains("no/such/folder") && said.contains("nothing was changed"), "{said}");
            assert_eq!(tree(folder.path()), before, "after {count} steps");
        }
        take(&host, &steps, || Err(Failure::new(Kind::Other, "refused"))).unwrap_err();
        assert_eq!(tree(folder.path()), before, "what comes last fails");
        take(&host, &steps, || Ok(())).unwrap();
        assert_ne!(tree(folder.path()), before);
    }

    #[test]
    fn a_file_that_comes_back_is_the_same_file() {
        let folder = tempfile::tempdir().unwrap();
        let (host, path) = (Host::new(folder.path()), PathBuf::from("/file"));
        fs::write(host.path(&path), "theirs").unwrap();
        let number = || fs::metadata(host.path(&path)).unwrap().ino();
        let before = number();
        take(
            &host,
            &[Step::KeepAndWrite { path: path.clone(), bytes: b"ours".to_vec(), mode: None }],
            || Ok(()),
        )
        .unwrap();
        assert_ne!(number(), before);
        take(&host, &[Step::Restore(path.clone())], || Ok(())).unwrap();
        assert_eq!(number(), before);
        assert_eq!(tree(folder.path()).len(), 1, "nothing is left beside it");
    }
}
