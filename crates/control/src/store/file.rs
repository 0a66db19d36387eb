//! The store's file: opened safely, locked, created completely or not at all.

use super::StoreError;
use super::ledger::Medium;
use crate::account;
use redb::StorageBackend;
use rustix::fs::{Mode, OFlags};
use std::fs::{self, File, TryLockError};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

/// The first bytes of a database file.
const MAGIC: &[u8] = b"redb\x1a\n\xa9\r\n";

/// A file that exists. It is locked from the first time it is opened until this is dropped: were it unlocked
/// while an error keeps the database closed, another process could lease numbers that this one leases again.
#[derive(Debug)]
pub(super) struct ExistingFile {
    path: PathBuf,
    locked: Mutex<Option<LockedFile>>,
}

impl ExistingFile {
    pub(super) fn at(path: &Path) -> Self {
        Self { path: path.to_owned(), locked: Mutex::new(None) }
    }
}

impl Medium for ExistingFile {
    type Backend = LockedFile;

    fn open(&self) -> Result<LockedFile, StoreError> {
        let path = &self.path;
        let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
        let file = rustix::fs::open(path, flags, Mode::empty()).map_err(|errno| match errno {
            rustix::io::Errno::NOENT => StoreError::Missing(path.clone()),
            other => io_error(path, other.into()),
        })?;
        let file = File::from(file);
        check(path, &file)?;
        let file = self.under_lock(file)?;
        // The database would take an empty file for a new store.
        let mut magic = [0; MAGIC.len()];
        match file.file().read_exact_at(&mut magic, 0) {
            Ok(()) if magic == MAGIC => Ok(file),
            Ok(()) => Err(damaged(path, "it does not start as a store does")),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                Err(damaged(path, "it is cut short"))
            }
            Err(error) => Err(io_error(path, error)),
        }
    }

    fn path(&self) -> &Path {
        &self.path
    }
}

impl ExistingFile {
    /// Locks `file`, or finds that it is the one that is locked already.
    fn under_lock(&self, file: File) -> Result<LockedFile, StoreError> {
        let path = &self.path;
        let mut locked = self.locked.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(locked) = &*locked {
            let [now, before] = [file.metadata(), locked.file().metadata()];
            let (now, before) = (now.map_err(|e| io_error(path, e))?, before.map_err(|e| io_error(path, e))?);
            if (now.dev(), now.ino()) != (before.dev(), before.ino()) {
                let reason = "another file than the one in use: restart the gateway".to_owned();
                return Err(StoreError::Unsafe { path: path.clone(), reason });
            }
            return Ok(locked.clone());
        }
        lock(path, &file)?;
        Ok(locked.insert(LockedFile::new(file)).clone())
    }
}

/// A file whose lock the database leaves alone; its own backend would release it when it is closed.
#[derive(Debug, Clone)]
pub(super) struct LockedFile(Arc<Locked>);

#[derive(Debug)]
struct Locked(File);

impl Drop for Locked {
    /// Closing releases the lock only once nobody has the file open, and a process that is being started has
    /// it between fork(2) and execve(2).
    fn drop(&mut self) {
        let _ = self.0.unlock();
    }
}

impl LockedFile {
    fn new(file: File) -> Self {
        Self(Arc::new(Locked(file)))
    }

    fn file(&self) -> &File {
        &self.0.0
    }
}

impl StorageBackend for LockedFile {
    fn len(&self) -> io::Result<u64> {
        Ok(self.file().metadata()?.len())
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.file().read_exact_at(out, offset)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.file().set_len(len)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.file().sync_data()
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.file().write_all_at(data, offset)
    }
}

/// The file must be regular, owned by our user or root, and writable by nobody else: who can write it can
/// make sequence numbers repeat. Root also accepts one owned by the service's user.
fn check(path: &Path, file: &File) -> Result<(), StoreError> {
    let metadata = file.metadata().map_err(|error| io_error(path, error))?;
    let own = rustix::process::geteuid().as_raw();
    let is_services = own == 0 && account::user() == Some(metadata.uid());
    let (owner, mode) = (metadata.uid(), metadata.mode() & 0o7777);
    let reason = if !metadata.is_file() {
        "not a regular file".to_owned()
    } else if owner != 0 && owner != own && !is_services {
        format!("belongs to user {owner}, neither the gateway's user nor root")
    } else if mode & 0o022 != 0 {
        format!("others may write it (mode {mode:04o}); after looking who did: chmod 600 {}", path.display())
    } else {
        return Ok(());
    };
    Err(StoreError::Unsafe { path: path.to_owned(), reason })
}

/// The database itself would continue on file systems without locks.
fn lock(path: &Path, file: &File) -> Result<(), StoreError> {
    file.try_lock().map_err(|error| match error {
        TryLockError::WouldBlock => StoreError::InUse(path.to_owned()),
        TryLockError::Error(error) => io_error(path, error),
    })
}

/// A file under a temporary name, renamed when it is complete and on disk.
#[derive(Debug)]
pub(super) struct NewFile {
    path: PathBuf,
    temporary: PathBuf,
}

impl NewFile {
    /// A new file that will be called `path`, where nothing may exist yet.
    pub(super) fn at(path: &Path) -> Result<Self, StoreError> {
        if path.symlink_metadata().is_ok() {
            return Err(StoreError::Exists(path.to_owned()));
        }
        let Some(name) = path.file_name() else {
            return Err(io_error(path, io::ErrorKind::InvalidFilename.into()));
        };
        let name = format!(".{}.{}.new", name.to_string_lossy(), std::process::id());
        Ok(Self { path: path.to_owned(), temporary: path.with_file_name(name) })
    }

    /// Gives it its name, unless something has that name by now.
    pub(super) fn publish(&self) -> Result<(), StoreError> {
        let named = rename_to_free_name(&self.temporary, &self.path).map_err(|error| match error.kind() {
            io::ErrorKind::AlreadyExists => StoreError::Exists(self.path.clone()),
            _ => io_error(&self.path, error),
        });
        self.discard();
        named?;
        sync_folder(&self.path).map_err(|error| io_error(&self.path, error))
    }

    /// Removes the temporary file.
    pub(super) fn discard(&self) {
        // Nothing more can be done about a leftover, and it is harmless.
        let _ = fs::remove_file(&self.temporary);
    }
}

impl Medium for NewFile {
    type Backend = LockedFile;

    fn open(&self) -> Result<LockedFile, StoreError> {
        // A leftover of a process that had our process id and died.
        self.discard();
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let file = rustix::fs::open(&self.temporary, flags, Mode::RUSR | Mode::WUSR);
        let file = File::from(file.map_err(|errno| io_error(&self.path, errno.into()))?);
        give_to_service(&self.path, &file).map_err(|error| io_error(&self.path, error))?;
        lock(&self.path, &file)?;
        Ok(LockedFile::new(file))
    }

    fn path(&self) -> &Path {
        &self.path
    }
}

/// A file that root creates in the service's folder is for the service, which runs as another user.
fn give_to_service(path: &Path, file: &File) -> io::Result<()> {
    let folder = fs::metadata(folder_of(path))?;
    if rustix::process::geteuid().is_root() && account::user() == Some(folder.uid()) {
        std::os::unix::fs::fchown(file, Some(folder.uid()), Some(folder.gid()))?;
    }
    Ok(())
}

/// Renames `from` to `to` unless `to` exists.
fn rename_to_free_name(from: &Path, to: &Path) -> io::Result<()> {
    use rustix::fs::{CWD, RenameFlags, renameat_with};
    use rustix::io::Errno;
    match renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
        // Network file systems do not support the flag. A link also fails if `to` exists.
        Err(Errno::INVAL | Errno::NOSYS | Errno::NOTSUP) => fs::hard_link(from, to),
        other => other.map_err(io::Error::from),
    }
}

/// Makes a new name in the folder of `path` durable.
fn sync_folder(path: &Path) -> io::Result<()> {
    File::open(folder_of(path))?.sync_all()
}

fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

fn io_error(path: &Path, source: io::Error) -> StoreError {
    StoreError::Io { path: path.to_owned(), source }
}

fn damaged(path: &Path, detail: &str) -> StoreError {
    StoreError::Damaged { path: path.to_owned(), detail: detail.to_owned() }
}
