//! The state folder: a journal for each interface, what is kept for the next boot, and the lock.
//!
//! ```text
//!   INTERFACE.json             the journal
//!   INTERFACE@NAMESPACE.json   the journal, in the machine's folder: names are a namespace's own
//!   INTERFACE.kept             the options that `--persist` keeps
//!   NAME.new                   what is being written; it becomes NAME when it is complete and on disk
//!   lock                       held by who applies or undoes
//! ```
//!
//! Who can write here can have root change settings, so the folder must be of this user alone and no symbolic
//! link, and neither may its files be. It is therefore not in the folder of the gateway, which has
//! its own user.

use crate::error::TuneError;
use crate::journal::{Journal, Others, Scope, Store};
use crate::place::is_interface_name;
use crate::plan::Options;
use rustix::fs::{AtFlags, Dir, FileType, FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Where it is unless told.
pub const DEFAULT: &str = "/var/lib/testudo-tune";
/// The one for what is the machine's, whichever folder a namespace has. Like these settings it ends with a
/// reboot.
pub const MACHINE: &str = "/run/testudo-tune";
const LOCK: &str = "lock";
const JOURNAL: &str = ".json";
const KEPT: &str = ".kept";
const NEW: &str = ".new";
/// Between two looks at a lock that is another's.
const PAUSE: Duration = Duration::from_millis(50);
/// The longest file that is read, and written: a journal has some ten entries of some hundred bytes for each
/// queue.
const MAX_BYTES: usize = 4 << 20;

/// The folder, locked.
#[derive(Debug)]
pub struct Folder {
    path: PathBuf,
    folder: OwnedFd,
    _lock: OwnedFd,
    /// The network namespace whose interfaces these names are, where the folder has those of several.
    namespace: Option<String>,
}

impl Folder {
    /// Opens the folder, which is made if it is not there, and takes the lock, which ends with the process.
    ///
    /// # Errors
    /// It is a symbolic link or somebody else can write to it; another process has the lock.
    pub fn open(path: &Path) -> Result<Self, TuneError> {
        Self::open_while(path, || false)
    }

    /// The same, but waits for another process's lock, for this long at most.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_within(path: &Path, most: Duration) -> Result<Self, TuneError> {
        let begun = Instant::now();
        Self::open_while(path, || {
            std::thread::sleep(PAUSE);
            begun.elapsed() < most
        })
    }

    /// The folder of what is the machine's, as an interface of a network namespace sees it: this has a
    /// number.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn of_the_machine(path: &Path, namespace: &str, most: Duration) -> Result<Self, TuneError> {
        let folder = Self::open_within(path, most)?;
        Ok(Self { namespace: Some(namespace.to_owned()), ..folder })
    }

    /// `again` says, as often as the lock is another's, whether to try again.
    fn open_while(path: &Path, mut again: impl FnMut() -> bool) -> Result<Self, TuneError> {
        let made = std::fs::create_dir_all(path.parent().unwrap_or(path));
        made.map_err(TuneError::file("make the folder of", path))?;
        match rustix::fs::mkdir(path, Mode::RWXU) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(error) => return Err(TuneError::file("make", path)(error)),
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let folder = rustix::fs::open(path, flags, Mode::empty()).map_err(|error| match error {
            Errno::LOOP | Errno::NOTDIR => untrusted(path, "is no folder"),
            error => TuneError::file("open", path)(error),
        })?;
        trust(&folder, path)?;
        let lock = open(&folder, path, LOCK, OFlags::RDWR | OFlags::CREATE)?;
        loop {
            match rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => {
                    return Ok(Self { path: path.to_owned(), folder, _lock: lock, namespace: None });
                }
                Err(Errno::WOULDBLOCK) if again() => {}
                Err(Errno::WOULDBLOCK) => return Err(TuneError::Busy(path.to_owned())),
                Err(error) => return Err(TuneError::file("lock", path.join(LOCK))(error)),
            }
        }
    }

    /// Keeps options for the next boot.
    ///
    /// # Errors
    /// They cannot be written.
    pub fn keep(&self, interface: &str, options: &Options) -> Result<(), TuneError> {
        self.replace(&format!("{interface}{KEPT}"), options)
    }

    /// The options that were kept.
    ///
    /// # Errors
    /// There are none, or they cannot be read.
    pub fn kept(&self, interface: &str) -> Result<Options, TuneError> {
        let kept = self.read(&format!("{interface}{KEPT}"))?;
        kept.ok_or_else(|| TuneError::NotKept(interface.to_owned()))
    }

    /// Keeps no options any more.
    ///
    /// # Errors
    /// They cannot be removed.
    pub fn forget(&self, interface: &str) -> Result<(), TuneError> {
        self.delete(&format!("{interface}{KEPT}"))
    }

    fn read<T: DeserializeOwned>(&self, name: &str) -> Result<Option<T>, TuneError> {
        let path = self.path.join(name);
        let file = match rustix::fs::openat(&self.folder, name, READ, Mode::empty()) {
            Ok(file) => file,
            Err(Errno::NOENT) => return Ok(None),
            Err(Errno::LOOP) => return Err(untrusted(&path, "is a symbolic link")),
            Err(error) => return Err(TuneError::file("open", path)(error)),
        };
        trust(&file, &path)?;
        let mut text = String::new();
        File::from(file)
            .take(MAX_BYTES as u64)
            .read_to_string(&mut text)
            .map_err(TuneError::file("read", path.clone()))?;
        let read = serde_json::from_str(&text);
        read.map(Some).map_err(|error| TuneError::Damaged { path, why: error.to_string() })
    }

    /// Writes a new file beside the old one, has it on disk, and puts it in its place.
    fn replace<T: Serialize>(&self, name: &str, value: &T) -> Result<(), TuneError> {
        let (new, path) = (format!("{name}{NEW}"), self.path.join(name));
        let text = serde_json::to_vec_pretty(value)
            .map_err(|error| TuneError::Damaged { path: path.clone(), why: error.to_string() })?;
        if text.len() > MAX_BYTES {
            return Err(TuneError::TooLong(path));
        }
        // What a killed process has left is not continued.
        self.delete(&new)?;
        let file = open(&self.folder, &self.path, &new, OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL)?;
        let mut file = File::from(file);
        file.write_all(&text)
            .and_then(|()| file.sync_all())
            .map_err(TuneError::file("write", self.path.join(&new)))?;
        rustix::fs::renameat(&self.folder, &new, &self.folder, name)
            .and_then(|()| rustix::fs::fsync(&self.folder))
            .map_err(TuneError::file("replace", path))
    }

    fn delete(&self, name: &str) -> Result<(), TuneError> {
        match rustix::fs::unlinkat(&self.folder, name, AtFlags::empty()) {
            Ok(()) => {}
            Err(Errno::NOENT) => return Ok(()),
            Err(error) => return Err(TuneError::file("remove", self.path.join(name))(error)),
        }
        rustix::fs::fsync(&self.folder).map_err(TuneError::file("write", &self.path))
    }

    /// The file of an interface's journal.
    fn journal(&self, interface: &str) -> String {
        let namespace = self.namespace.as_ref().map(|namespace| format!("@{namespace}"));
        format!("{interface}{}{JOURNAL}", namespace.unwrap_or_default())
    }

    /// The interface of a journal's file, if it is one.
    fn interface<'a>(&self, file: &'a str) -> Option<&'a str> {
        let stem = file.strip_suffix(JOURNAL)?;
        let interface = if self.namespace.is_some() { stem.rsplit_once('@')?.0 } else { stem };
        is_interface_name(interface).then_some(interface)
    }

    /// The files of journals.
    fn journals(&self) -> Result<Vec<String>, TuneError> {
        let failed = || TuneError::file::<Errno>("list", &self.path);
        let mut names = Vec::new();
        for entry in Dir::read_from(&self.folder).map_err(failed())? {
            let entry = entry.map_err(failed())?;
            let name = entry.file_name().to_string_lossy().into_owned();
            if self.interface(&name).is_some() {
                names.push(name);
            }
        }
        names.sort();
        Ok(names)
    }
}

/// Reads without waiting at a pipe, and without following a link.
const READ: OFlags = OFlags::RDONLY.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC).union(OFlags::NONBLOCK);

impl Folder {
    fn load_file(&self, name: &str, interface: &str) -> Result<Option<Journal>, TuneError> {
        let journal: Option<Journal> = self.read(name)?;
        if let Some(journal) = &journal {
            let path = self.path.join(name);
            journal.verify(interface).map_err(|why| TuneError::Damaged { path, why })?;
        }
        Ok(journal)
    }
}

impl Store for Folder {
    fn scope(&self) -> Scope {
        if self.namespace.is_some() { Scope::Machine } else { Scope::Namespace }
    }

    fn load(&self, interface: &str) -> Result<Option<Journal>, TuneError> {
        self.load_file(&self.journal(interface), interface)
    }

    fn others(&self, interface: &str, boot: &str) -> Result<Others, TuneError> {
        let own = self.journal(interface);
        let names = self.journals()?.into_iter().filter(|name| *name != own);
        // One of another boot is not believed, so that it may be as damaged as it likes.
        let of_this_boot = |name: &String| {
            let read: Result<Option<Value>, _> = self.read(name);
            let of =
                read.ok().flatten().and_then(|v| v.pointer("/identity/boot")?.as_str().map(str::to_owned));
            of.is_none_or(|of| of == boot)
        };
        let mut others = Others::default();
        for name in names.filter(of_this_boot) {
            match self.load_file(&name, self.interface(&name).unwrap_or_default()) {
                Ok(journal) => others.journals.extend(journal),
                Err(error) => others.unread.push(error),
            }
        }
        Ok(others)
    }

    fn save(&self, journal: &Journal) -> Result<(), TuneError> {
        self.replace(&self.journal(&journal.interface), journal)
    }

    fn remove(&self, interface: &str) -> Result<(), TuneError> {
        self.delete(&self.journal(interface))
    }
}

fn untrusted(path: &Path, why: &'static str) -> TuneError {
    TuneError::Untrusted { path: path.to_owned(), why }
}

/// Opens a file of ours in the folder; a symbolic link is not followed.
fn open(folder: &OwnedFd, path: &Path, name: &str, flags: OFlags) -> Result<OwnedFd, TuneError> {
    let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(folder, name, flags, Mode::RUSR | Mode::WUSR).map_err(|error| match error {
        Errno::LOOP => untrusted(&path.join(name), "is a symbolic link"),
        error => TuneError::file("open", path.join(name))(error),
    })
}

/// Fails unless a file or folder is this user's, and nobody else can write to it.
fn trust(file: &OwnedFd, path: &Path) -> Result<(), TuneError> {
    let stat = rustix::fs::fstat(file).map_err(TuneError::file("look at", path))?;
    let mode = Mode::from_raw_mode(stat.st_mode);
    if stat.st_uid != rustix::process::geteuid().as_raw() {
        return Err(untrusted(path, "is another user's"));
    }
    if mode.intersects(Mode::WGRP | Mode::WOTH) {
        return Err(untrusted(path, "can be written by others"));
    }
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile | FileType::Directory => Ok(()),
        _ => Err(untrusted(path, "is no file")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::journal::Identity;
    use crate::journal::{Entry, VERSION};
    use crate::place::Place;
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};

    fn journal(interface: &str) -> Journal {
        let (boot, namespace) = ("b".to_owned(), "n".to_owned());
        let identity = Identity { boot, namespace, index: Some(3), device: None, cookie: None };
        let mut journal = Journal::new(interface, identity);
        let (original, made) = ("1500".to_owned(), None);
        journal.entries.push(Entry { place: Place::interface("mtu"), original, made, number: 1 });
        journal
    }

    #[test]
    fn who_cannot_name_another_folder_is_not_told_to() {
        let said = |path: &str| untrusted(Path::new(path), "can be written by others").to_string();
        assert!(said(DEFAULT).ends_with("name another folder with --state"));
        assert!(!said(&format!("{MACHINE}/lock")).contains("--state"), "{}", said(MACHINE));
    }

    #[test]
    fn who_may_wait_gets_the_lock_when_the_other_has_ended() {
        let home = tempfile::tempdir().unwrap();
        let mut other = Some(Folder::open(home.path()).unwrap());
        assert!(matches!(Folder::open(home.path()), Err(TuneError::Busy(_))));
        let none = Folder::open_within(home.path(), Duration::ZERO);
        assert!(matches!(none, Err(TuneError::Busy(_))));
        let second = Folder::open_while(home.path(), || other.take().is_some());
        assert!(second.is_ok(), "{second:?}");
    }

    #[test]
    fn a_damaged_journal_of_another_boot_is_in_nobodys_way() {
        let home = tempfile::tempdir().unwrap();
        let folder = Folder::open(home.path()).unwrap();
        let mut old = journal("eth1");
        old.version = VERSION + 1;
        folder.save(&old).unwrap();
        folder.save(&journal("eth2")).unwrap();
        let another = folder.others("eth0", "another").unwrap();
        assert!(another.journals.is_empty() && another.unread.is_empty(), "{another:?}");
        let others = folder.others("eth0", "b").unwrap();
        assert_eq!(others.journals, [journal("eth2")]);
        assert!(matches!(others.unread[..], [TuneError::Damaged { .. }]), "{others:?}");
    }

    #[test]
    fn a_journal_is_read_as_it_was_saved_and_goes_when_removed() {
        let home = tempfile::tempdir().unwrap();
        let folder = Folder::open(&home.path().join("a/tune")).unwrap();
        assert_eq!(folder.load("eth0").unwrap(), None);
        folder.save(&journal("eth0")).unwrap();
        folder.save(&journal("eth1")).unwrap();
        assert_eq!(folder.load("eth0").unwrap(), Some(journal("eth0")));
        assert_eq!(folder.others("eth0", "b").unwrap().journals, [journal("eth1")]);
        folder.remove("eth0").unwrap();
        folder.remove("eth0").unwrap();
        assert_eq!(folder.load("eth0").unwrap(), None);
        let mode = fs::metadata(home.path().join("a/tune/eth1.json")).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }

    #[test]
    fn what_a_killed_writer_left_is_not_read() {
        let home = tempfile::tempdir().unwrap();
        let folder = Folder::open(home.path()).unwrap();
        folder.save(&journal("eth0")).unwrap();
        fs::write(home.path().join("eth0.json.new"), "{ half").unwrap();
        fs::write(home.path().join("eth1.json.new"), "{ half").unwrap();
        assert_eq!(folder.load("eth0").unwrap(), Some(journal("eth0")));
        let others = folder.others("eth0", "b").unwrap();
        assert!(others.journals.is_empty() && others.unread.is_empty(), "{others:?}");
        folder.save(&journal("eth1")).unwrap();
        assert_eq!(folder.load("eth1").unwrap(), Some(journal("eth1")));
    }

    #[test]
    fn a_journal_that_could_not_be_read_again_is_not_written() {
        let home = tempfile::tempdir().unwrap();
        let folder = Folder::open(home.path()).unwrap();
        folder.save(&journal("eth0")).unwrap();
        let mut long = journal("eth0");
        let entry = Entry { original: "x".repeat(4096), ..long.entries[0].clone() };
        long.entries = vec![entry; 1100];
        assert!(matches!(folder.save(&long), Err(TuneError::TooLong(_))));
        assert_eq!(folder.load("eth0").unwrap(), Some(journal("eth0")));
        long.entries.truncate(900);
        folder.save(&long).unwrap();
        assert_eq!(folder.load("eth0").unwrap(), Some(long));
    }

    #[test]
    fn a_second_process_is_refused_while_the_first_has_the_lock() {
        let home = tempfile::tempdir().unwrap();
        let first = Folder::open(home.path()).unwrap();
        assert!(matches!(Folder::open(home.path()), Err(TuneError::Busy(_))));
        drop(first);
        Folder::open(home.path()).unwrap();
    }

    #[test]
    fn symbolic_links_and_folders_of_others_are_refused() {
        let home = tempfile::tempdir().unwrap();
        let (real, link) = (home.path().join("real"), home.path().join("link"));
        fs::create_dir(&real).unwrap();
        symlink(&real, &link).unwrap();
        let refused = |path: &Path| Folder::open(path).unwrap_err().to_string();
        assert!(refused(&link).contains("is no folder"), "{}", refused(&link));
        fs::write(home.path().join("secret"), "{}").unwrap();
        symlink(home.path().join("secret"), real.join("lock")).unwrap();
        assert!(refused(&real).contains("is a symbolic link"));
        fs::remove_file(real.join("lock")).unwrap();
        fs::set_permissions(&real, fs::Permissions::from_mode(0o777)).unwrap();
        assert!(refused(&real).contains("can be written by others"));
        fs::set_permissions(&real, fs::Permissions::from_mode(0o700)).unwrap();
        let folder = Folder::open(&real).unwrap();
        symlink(home.path().join("secret"), real.join("eth0.json")).unwrap();
        assert!(folder.load("eth0").unwrap_err().to_string().contains("is a symbolic link"));
        symlink(home.path().join("secret"), real.join("eth1.json.new")).unwrap();
        folder.save(&journal("eth1")).unwrap();
        assert_eq!(fs::read_to_string(home.path().join("secret")).unwrap(), "{}");
    }

    #[test]
    fn a_journal_that_names_anything_else_is_damaged() {
        let home = tempfile::tempdir().unwrap();
        let folder = Folder::open(home.path()).unwrap();
        let write = |journal: &Journal| {
            let text = serde_json::to_vec(journal).unwrap();
            let path = home.path().join("eth0.json");
            fs::write(&path, text).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
            folder.load("eth0").map_err(|error| error.to_string())
        };
        let mut wrong = journal("eth0");
        wrong.version = VERSION + 1;
        assert!(write(&wrong).unwrap_err().contains("version 2"));
        assert!(write(&journal("eth1")).unwrap_err().contains("eth1"));
        let mut wrong = journal("eth0");
        wrong.entries[0].place = Place::interface("../../../../etc/passwd");
        assert!(write(&wrong).unwrap_err().contains("no setting is at"));
        let mut wrong = journal("eth0");
        wrong.entries[0].original = "1\n2".to_owned();
        assert!(write(&wrong).is_err());
        fs::write(home.path().join("eth0.json"), "{").unwrap();
        assert!(matches!(folder.load("eth0"), Err(TuneError::Damaged { .. })));
    }

    #[test]
    fn options_are_kept_for_the_next_boot_until_they_are_forgotten() {
        let home = tempfile::tempdir().unwrap();
        let folder = Folder::open(home.path()).unwrap();
        let only = vec![crate::setting::Group::Mtu];
        let options = Options { mtu: Some(9000), isolate: vec![2, 3], only, ..Options::default() };
        assert!(matches!(folder.kept("eth0"), Err(TuneError::NotKept(_))));
        folder.keep("eth0", &options).unwrap();
        assert_eq!(folder.kept("eth0").unwrap(), options);
        // As they were kept before processors could be asked for.
        let file = home.path().join("eth0.kept");
        fs::write(&file, r#"{ "mtu": 9000, "huge_pages": null, "only": ["mtu"] }"#).unwrap();
        assert_eq!(folder.kept("eth0").unwrap(), Options { isolate: Vec::new(), ..options });
        folder.forget("eth0").unwrap();
        assert!(matches!(folder.kept("eth0"), Err(TuneError::NotKept(_))));
    }
}
