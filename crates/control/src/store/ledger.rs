//! Leases, windows and usages in a database on any medium: commits twice, checks everything on opening,
//! survives the disk's errors.

use super::masks::Masks;
use super::record::{self, BadSeal, FORMAT, Noted, Seal};
use super::retired::{self, revive};
use super::turns::Turns;
use super::{FIRST_NUMBER, Lease, LeaseStore, MAX_KEYS, MAX_WINDOW_BYTES, StoreError, Usage, block_after};
use crate::fingerprint::Fingerprint;
use redb::{
    Builder, Database, Durability, ReadOnlyTable, ReadTransaction, ReadableDatabase, ReadableTable,
    StorageBackend, Table, TableDefinition, TableError, WriteTransaction,
};
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::io;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::MutexGuard;
use testudo_ipsec::ReplayWindow;

pub(super) type Key = &'static [u8; Fingerprint::BYTES];
pub(super) const LEASES: TableDefinition<'_, Key, &[u8]> = TableDefinition::new("leases");
pub(super) const WINDOWS: TableDefinition<'_, Key, &[u8]> = TableDefinition::new("windows");
/// Missing in a store that was created before this table existed.
pub(super) const USAGE: TableDefinition<'_, Key, &[u8]> = TableDefinition::new("usage");
const SEAL: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("seal");
const SEAL_KEY: &str = "seal";
/// Cache size for the database's pages.
const CACHE_BYTES: usize = 16 << 20;

/// The medium that holds the database's bytes: a file, or a simulated disk in tests. May be opened again
/// after an error.
pub(super) trait Medium: fmt::Debug + Send + Sync {
    type Backend: StorageBackend;

    fn open(&self) -> Result<Self::Backend, StoreError>;

    /// For messages.
    fn path(&self) -> &Path;
}

/// A store on a medium.
#[derive(Debug)]
pub(super) struct Ledger<M> {
    medium: M,
    masks: Masks,
    state: Turns<State>,
    /// The most keys that it remembers.
    limit: u64,
}

#[derive(Debug, Default)]
pub(super) struct State {
    /// `None` after an error, until it is opened again.
    database: Option<Database>,
    /// The end of each key's last lease in this process: no file may say less.
    promised: HashMap<Fingerprint, u64>,
}

impl<M: Medium> Ledger<M> {
    /// Writes an empty store on an empty medium.
    pub(super) fn create(medium: &M) -> Result<(), StoreError> {
        fenced(medium, || {
            let database = Builder::new().set_cache_size(CACHE_BYTES).create_with_backend(medium.open()?);
            let database = database.map_err(|e| translated(medium, e))?;
            for _ in 0..2 {
                commit(medium, &database, |transaction, _| {
                    transaction.open_table(LEASES).map_err(|e| translated(medium, e))?;
                    transaction.open_table(WINDOWS).map_err(|e| translated(medium, e))?;
                    transaction.open_table(USAGE).map_err(|e| translated(medium, e))?;
                    Ok(())
                })?;
            }
            Ok(())
        })
    }

    /// Opens a store; it must have other `masks` each time.
    pub(super) fn open(medium: M, masks: Masks) -> Result<Self, StoreError> {
        let database = Some(open_checked(&medium, &HashMap::new())?);
        let state = Turns::new(State { database, promised: HashMap::new() });
        Ok(Self { medium, masks, state, limit: MAX_KEYS })
    }

    pub(super) fn medium(&self) -> &M {
        &self.medium
    }

    pub(super) fn limit(&self) -> u64 {
        self.limit
    }

    /// Gives the space of what is no longer there back to the medium.
    pub(super) fn compact(&self) -> Result<(), StoreError> {
        let mut state = self.state();
        let mut database = match state.database.take() {
            Some(database) => database,
            None => open_checked(&self.medium, &state.promised)?,
        };
        fenced(&self.medium, || {
            database.compact().map_err(|e| translated(&self.medium, e))?;
            state.database = Some(database);
            Ok(())
        })
    }

    /// Runs `work` with the database, which is opened again if an error closed it.
    pub(super) fn with_database<T>(
        &self,
        state: &mut State,
        work: impl FnOnce(&Database) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let database = match state.database.take() {
            Some(database) => database,
            None => open_checked(&self.medium, &state.promised)?,
        };
        let result = fenced(&self.medium, || work(&database));
        match &result {
            Err(error) if error.spoils_database() => {
                // Closing may fail as the work did; the file is checked before it is used again.
                let _ = fenced(&self.medium, || {
                    drop(database);
                    Ok(())
                });
            }
            _ => state.database = Some(database),
        }
        result
    }

    /// Commits `work`, then the same state once more (the module's documentation says why).
    pub(super) fn commit_twice<T>(
        &self,
        state: &mut State,
        work: impl FnOnce(&WriteTransaction, &mut Seal) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        self.with_database(state, |database| {
            let result = commit(&self.medium, database, work)?;
            commit(&self.medium, database, |_, _| Ok(()))?;
            Ok(result)
        })
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.take()
    }

    /// Leases a block that starts at `promised`, the end of the last one handed out in this run: a call that
    /// failed may have recorded numbers as leased without handing them out, and a gap would stop the SA that
    /// waits for the next number. No one else can have had them, because the file is locked. The store's
    /// entry only falls where numbers are given back.
    fn lease_one(
        &self,
        table: &mut Table<'_, Key, &'static [u8]>,
        seal: &mut Seal,
        (key, block): (Fingerprint, u64),
        promised: Option<u64>,
    ) -> Result<Lease, StoreError> {
        let medium = &self.medium;
        let stored = stored(medium, table, key)?;
        let next = promised.or(stored.map(|noted| noted.next)).unwrap_or(FIRST_NUMBER);
        let (first, end) = block_after(next, block, key)?;
        let iv_mask = match stored {
            Some(noted) => noted.iv_mask,
            None => self.masks.for_new_key().map_err(|e| io_error(medium, e))?,
        };
        let noted = Noted { next: end.max(stored.map_or(0, |noted| noted.next)), iv_mask };
        match stored {
            Some(old) => seal.replace(key, old, noted),
            None => {
                self.check_room(seal.keys)?;
                seal.add(key, noted);
            }
        }
        let value = record::encode_lease(key, noted);
        table.insert(key.as_bytes(), &value[..]).map_err(|e| translated(medium, e))?;
        Ok(Lease { first, end, iv_mask: self.masks.in_this_start(iv_mask) })
    }

    fn error<E: Into<redb::Error>>(&self) -> impl Fn(E) -> StoreError {
        |error| translated(&self.medium, error)
    }
}

impl<M: Medium> LeaseStore for Ledger<M> {
    fn lease_many(&self, requests: &[(Fingerprint, u64)]) -> Result<Vec<Lease>, StoreError> {
        let mut state = self.state();
        let promised = requests.iter().filter_map(|(key, _)| Some((*key, *state.promised.get(key)?)));
        let mut next: HashMap<Fingerprint, u64> = promised.collect();
        let leases = self.commit_twice(&mut state, |transaction, seal| {
            revive(&self.medium, transaction, seal, requests.iter().map(|(key, _)| *key))?;
            let mut table = transaction.open_table(LEASES).map_err(self.error())?;
            let lease = |&(key, block): &(Fingerprint, u64)| {
                let lease = self.lease_one(&mut table, seal, (key, block), next.get(&key).copied())?;
                next.insert(key, lease.end);
                Ok(lease)
            };
            requests.iter().map(lease).collect::<Result<Vec<Lease>, StoreError>>()
        })?;
        let ends = requests.iter().zip(&leases).map(|((key, _), lease)| (*key, lease.end));
        state.promised.extend(ends);
        Ok(leases)
    }

    fn is_known(&self, fingerprint: Fingerprint) -> Result<bool, StoreError> {
        self.with_database(&mut self.state(), |database| {
            let transaction = database.begin_read().map_err(self.error())?;
            let table = transaction.open_table(LEASES).map_err(self.error())?;
            if table.get(fingerprint.as_bytes()).map_err(self.error())?.is_some() {
                return Ok(true);
            }
            let tombstone = retired::find(&self.medium, &transaction, fingerprint)?;
            Ok(tombstone.is_some_and(|tombstone| tombstone.noted.is_some()))
        })
    }

    fn note_fresh(&self, keys: &[Fingerprint]) -> Result<(), StoreError> {
        self.commit_twice(&mut self.state(), |transaction, seal| {
            revive(&self.medium, transaction, seal, keys.iter().copied())?;
            let mut table = transaction.open_table(LEASES).map_err(self.error())?;
            for &key in keys {
                if stored(&self.medium, &table, key)?.is_some() {
                    continue;
                }
                self.check_room(seal.keys)?;
                let noted = Noted { next: FIRST_NUMBER, iv_mask: 0 };
                seal.add(key, noted);
                let value = record::encode_lease(key, noted);
                table.insert(key.as_bytes(), &value[..]).map_err(self.error())?;
            }
            Ok(())
        })
    }

    fn give_back(&self, rests: &[(Fingerprint, Range<u64>)]) -> Result<(), StoreError> {
        let mut state = self.state();
        let is_last = |(key, rest): &&(Fingerprint, Range<u64>)| {
            !rest.is_empty() && state.promised.get(key) == Some(&rest.end)
        };
        let rests: Vec<_> = rests.iter().filter(is_last).collect();
        if rests.is_empty() {
            return Ok(());
        }
        // Before everything else: after an error the file may hold either state, and both are right.
        state.promised.extend(rests.iter().map(|(key, rest)| (*key, rest.start)));
        self.commit_twice(&mut state, |transaction, seal| {
            revive(&self.medium, transaction, seal, rests.iter().map(|(key, _)| *key))?;
            let mut table = transaction.open_table(LEASES).map_err(self.error())?;
            for (key, rest) in rests {
                let Some(old) = stored(&self.medium, &table, *key)? else { continue };
                let noted = Noted { next: rest.start, ..old };
                seal.replace(*key, old, noted);
                let value = record::encode_lease(*key, noted);
                table.insert(key.as_bytes(), &value[..]).map_err(self.error())?;
            }
            Ok(())
        })
    }

    fn save(
        &self,
        windows: &[(Fingerprint, &[u8])],
        usages: &[(Fingerprint, Usage)],
    ) -> Result<(), StoreError> {
        if let Some((_, long)) = windows.iter().find(|(_, window)| window.len() > MAX_WINDOW_BYTES) {
            return Err(StoreError::WindowTooLong(long.len()));
        }
        self.commit_twice(&mut self.state(), |transaction, seal| {
            let keys = windows.iter().map(|(key, _)| *key).chain(usages.iter().map(|(key, _)| *key));
            revive(&self.medium, transaction, seal, keys)?;
            let mut table = transaction.open_table(WINDOWS).map_err(self.error())?;
            for (key, window) in windows {
                self.put(&mut table, *key, &record::encode_window(*key, window))?;
            }
            let mut table = transaction.open_table(USAGE).map_err(self.error())?;
            for (key, usage) in usages {
                self.put(&mut table, *key, &record::encode_usage(*key, *usage))?;
            }
            Ok(())
        })
    }

    fn window(&self, fingerprint: Fingerprint) -> Result<Option<Vec<u8>>, StoreError> {
        self.with_database(&mut self.state(), |database| {
            let transaction = database.begin_read().map_err(self.error())?;
            let table = transaction.open_table(WINDOWS).map_err(self.error())?;
            if let Some(value) = table.get(fingerprint.as_bytes()).map_err(self.error())? {
                return decoded_window(&self.medium, fingerprint, value.value()).map(Some);
            }
            let top = retired::find(&self.medium, &transaction, fingerprint)?.and_then(|t| t.top);
            Ok(top.map(|top| ReplayWindow::closed_up_to(top).to_vec()))
        })
    }

    fn usage(&self, fingerprint: Fingerprint) -> Result<Option<Usage>, StoreError> {
        self.with_database(&mut self.state(), |database| {
            let transaction = database.begin_read().map_err(self.error())?;
            if let Some(table) = optional_table(&self.medium, &transaction, USAGE)?
                && let Some(usage) = stored_usage(&self.medium, &table, fingerprint)?
            {
                return Ok(Some(usage));
            }
            Ok(retired::find(&self.medium, &transaction, fingerprint)?.and_then(|t| t.usage))
        })
    }

    fn retire(&self, kept: &HashSet<Fingerprint>) -> Result<u64, StoreError> {
        self.retire_all_but(kept)
    }
}

impl<M: Medium> Ledger<M> {
    /// Replaces a key's value; a key without one needs room for one more key.
    fn put(
        &self,
        table: &mut Table<'_, Key, &'static [u8]>,
        key: Fingerprint,
        value: &[u8],
    ) -> Result<(), StoreError> {
        let known = table.insert(key.as_bytes(), value).map_err(self.error())?.is_some();
        if known {
            return Ok(());
        }
        self.check_room(table_length(&self.medium, table)?.saturating_sub(1))
    }

    fn check_room(&self, keys: u64) -> Result<(), StoreError> {
        let path = || self.medium.path().to_owned();
        if keys < self.limit { Ok(()) } else { Err(StoreError::Full { path: path(), keys }) }
    }
}

/// A table that a store may lack.
pub(super) fn optional_table<M: Medium>(
    medium: &M,
    transaction: &ReadTransaction,
    definition: TableDefinition<'static, Key, &'static [u8]>,
) -> Result<Option<ReadOnlyTable<Key, &'static [u8]>>, StoreError> {
    match transaction.open_table(definition) {
        Err(TableError::TableDoesNotExist(_)) => Ok(None),
        table => table.map(Some).map_err(|e| translated(medium, e)),
    }
}

/// A window in its record.
pub(super) fn decoded_window<M: Medium>(
    medium: &M,
    key: Fingerprint,
    value: &[u8],
) -> Result<Vec<u8>, StoreError> {
    let window = record::decode_window(key, value);
    window.ok_or_else(|| damaged(medium, "the checksum of a window is wrong"))
}

/// The usage of a key.
pub(super) fn stored_usage<M: Medium>(
    medium: &M,
    table: &impl ReadableTable<Key, &'static [u8]>,
    key: Fingerprint,
) -> Result<Option<Usage>, StoreError> {
    let value = table.get(key.as_bytes()).map_err(|e| translated(medium, e))?;
    let Some(value) = value else { return Ok(None) };
    let usage = record::decode_usage(key, value.value());
    usage.map(Some).ok_or_else(|| damaged(medium, "the checksum of a usage is wrong"))
}

/// The store's entry for a key.
pub(super) fn stored<M: Medium>(
    medium: &M,
    table: &Table<'_, Key, &'static [u8]>,
    key: Fingerprint,
) -> Result<Option<Noted>, StoreError> {
    let value = table.get(key.as_bytes()).map_err(|e| translated(medium, e))?;
    let Some(value) = value else { return Ok(None) };
    let noted = record::decode_lease(key, value.value());
    noted.map(Some).ok_or_else(|| damaged(medium, "the checksum of a lease is wrong"))
}

fn table_length<M: Medium>(medium: &M, table: &Table<'_, Key, &'static [u8]>) -> Result<u64, StoreError> {
    use redb::ReadableTableMetadata;
    table.len().map_err(|e| translated(medium, e))
}

/// One durable commit: `work`, and the seal renewed.
fn commit<M: Medium, T>(
    medium: &M,
    database: &Database,
    work: impl FnOnce(&WriteTransaction, &mut Seal) -> Result<T, StoreError>,
) -> Result<T, StoreError> {
    let mut transaction = database.begin_write().map_err(|e| translated(medium, e))?;
    transaction.set_durability(Durability::Immediate).map_err(|e| translated(medium, e))?;
    transaction.set_two_phase_commit(true);
    let result = {
        let mut table = transaction.open_table(SEAL).map_err(|e| translated(medium, e))?;
        let mut seal = {
            let stored = table.get(SEAL_KEY).map_err(|e| translated(medium, e))?;
            stored.map_or(Ok(Seal::default()), |value| decode_seal(medium, value.value()))?
        };
        let result = work(&transaction, &mut seal)?;
        seal.commits += 1;
        table.insert(SEAL_KEY, &seal.encode()[..]).map_err(|e| translated(medium, e))?;
        result
    };
    transaction.commit().map_err(|e| translated(medium, e))?;
    Ok(result)
}

fn decode_seal<M: Medium>(medium: &M, value: &[u8]) -> Result<Seal, StoreError> {
    Seal::decode(value).map_err(|bad| match bad {
        BadSeal::Format(found) => {
            StoreError::Version { path: medium.path().to_owned(), found, known: FORMAT }
        }
        BadSeal::Damaged => damaged(medium, "the checksum of the seal is wrong"),
    })
}

/// Opens the database and checks all of it, for consistency and against what was promised.
fn open_checked<M: Medium>(medium: &M, promised: &HashMap<Fingerprint, u64>) -> Result<Database, StoreError> {
    fenced(medium, || {
        let database = Builder::new().set_cache_size(CACHE_BYTES).create_with_backend(medium.open()?);
        let mut database = database.map_err(|e| translated(medium, e))?;
        // `false` is a repair, to a commit that holds the same leases; the seal is checked next.
        database.check_integrity().map_err(|e| translated(medium, e))?;
        check_leases(medium, &database, promised)?;
        Ok(database)
    })
}

fn check_leases<M: Medium>(
    medium: &M,
    database: &Database,
    promised: &HashMap<Fingerprint, u64>,
) -> Result<(), StoreError> {
    let transaction = database.begin_read().map_err(|e| translated(medium, e))?;
    let table = transaction.open_table(SEAL).map_err(|e| translated(medium, e))?;
    let seal = table.get(SEAL_KEY).map_err(|e| translated(medium, e))?;
    let seal = decode_seal(medium, seal.ok_or_else(|| damaged(medium, "it has no seal"))?.value())?;
    let leases = transaction.open_table(LEASES).map_err(|e| translated(medium, e))?;
    let (mut counted, mut kept) = (Seal::default(), 0);
    for entry in leases.iter().map_err(|e| translated(medium, e))? {
        let (key, value) = entry.map_err(|e| translated(medium, e))?;
        let key = Fingerprint::from_bytes(*key.value());
        let noted = record::decode_lease(key, value.value());
        let noted = noted.ok_or_else(|| damaged(medium, "the checksum of a lease is wrong"))?;
        counted.add(key, noted);
        kept += usize::from(promised.get(&key).is_some_and(|end| noted.next >= *end));
    }
    retired::for_each(medium, &transaction, |key, tombstone| {
        counted.bury(key, &tombstone, true);
        let next = tombstone.noted.map_or(0, |noted| noted.next);
        kept += usize::from(promised.get(&key).is_some_and(|end| next >= *end));
    })?;
    if !seal.agrees_with(&counted) {
        return Err(damaged(medium, "leases or retired keys are missing or changed"));
    }
    if kept < promised.len() {
        return Err(damaged(medium, "it went back behind numbers that are in use"));
    }
    Ok(())
}

/// Runs `work`; a panic of the database library counts as damage too.
fn fenced<M: Medium, T>(medium: &M, work: impl FnOnce() -> Result<T, StoreError>) -> Result<T, StoreError> {
    let caught = catch_unwind(AssertUnwindSafe(work));
    caught.unwrap_or_else(|_| Err(damaged(medium, "the database library could not cope with it")))
}

fn io_error<M: Medium>(medium: &M, source: io::Error) -> StoreError {
    StoreError::Io { path: medium.path().to_owned(), source }
}

pub(super) fn damaged<M: Medium>(medium: &M, detail: &str) -> StoreError {
    StoreError::Damaged { path: medium.path().to_owned(), detail: detail.to_owned() }
}

/// Converts an error of the database to ours.
pub(super) fn translated<M: Medium>(medium: &M, error: impl Into<redb::Error>) -> StoreError {
    use io::ErrorKind::{InvalidData, UnexpectedEof};
    let path = medium.path().to_owned();
    match error.into() {
        redb::Error::Io(error) if matches!(error.kind(), InvalidData | UnexpectedEof) => {
            damaged(medium, &error.to_string())
        }
        redb::Error::Io(source) => StoreError::Io { path, source },
        redb::Error::PreviousIo => {
            StoreError::Io { path, source: io::Error::other("the disk failed before") }
        }
        redb::Error::DatabaseAlreadyOpen => StoreError::InUse(path),
        other => damaged(medium, &other.to_string()),
    }
}

#[cfg(test)]
impl<M: Medium> Ledger<M> {
    /// Turns a new store into one of an older program: without the table of usages.
    pub(super) fn forget_usages(medium: &M) -> Result<(), StoreError> {
        let database = open_checked(medium, &HashMap::new())?;
        commit(medium, &database, |transaction, _| {
            let gone = transaction.delete_table(USAGE).map_err(|e| translated(medium, e))?;
            assert!(gone, "there was none");
            Ok(())
        })
    }

    /// How often somebody had the store to itself.
    pub(super) fn turns(&self) -> usize {
        self.state.taken()
    }

    /// The same store with room for no more than `limit` keys.
    pub(super) fn with_limit(self, limit: u64) -> Self {
        Self { limit, ..self }
    }

    /// Turns a store without retired keys into one of a program that knew of none.
    pub(super) fn make_format_2(medium: &M) -> Result<(), StoreError> {
        let database = open_checked(medium, &HashMap::new())?;
        let transaction = database.begin_write().map_err(|e| translated(medium, e))?;
        retired::delete_table(medium, &transaction)?;
        {
            let mut table = transaction.open_table(SEAL).map_err(|e| translated(medium, e))?;
            let seal = table.get(SEAL_KEY).map_err(|e| translated(medium, e))?;
            let seal = seal.map(|seal| decode_seal(medium, seal.value())).transpose()?.unwrap_or_default();
            table.insert(SEAL_KEY, &seal.encode_as(2)[..]).map_err(|e| translated(medium, e))?;
        }
        transaction.commit().map_err(|e| translated(medium, e))
    }

    /// Turns a new store into one of a program that had no masks, with these keys and their next numbers.
    pub(super) fn make_format_1(medium: &M, keys: &[(Fingerprint, u64)]) -> Result<(), StoreError> {
        let database = open_checked(medium, &HashMap::new())?;
        let transaction = database.begin_write().map_err(|e| translated(medium, e))?;
        {
            let mut table = transaction.open_table(LEASES).map_err(|e| translated(medium, e))?;
            let mut seal = Seal::default();
            for &(key, next) in keys {
                let noted = Noted { next, iv_mask: 0 };
                seal.add(key, noted);
                let value = record::encode_lease(key, noted);
                table.insert(key.as_bytes(), &value[..]).map_err(|e| translated(medium, e))?;
            }
            let mut table = transaction.open_table(SEAL).map_err(|e| translated(medium, e))?;
            table.insert(SEAL_KEY, &seal.encode_as(1)[..]).map_err(|e| translated(medium, e))?;
        }
        transaction.commit().map_err(|e| translated(medium, e))
    }
}
