//! Keys that leave the configuration, in the database: retired to [tombstones](Tombstone), revived if they
//! come back, forgotten if the operator says so.

use super::ledger::{
    Key, LEASES, Ledger, Medium, USAGE, WINDOWS, damaged, decoded_window, optional_table, stored,
    stored_usage, translated,
};
use super::record::{self, Seal};
use super::tombstone::Tombstone;
use super::{Known, StoreError};
use crate::fingerprint::Fingerprint;
use redb::{
    Database, ReadTransaction, ReadableDatabase, ReadableTable, Table, TableDefinition, WriteTransaction,
};
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::ops::Bound;
use testudo_ipsec::ReplayWindow;

/// Missing in a store before format 3.
const RETIRED: TableDefinition<'_, Key, &[u8]> = TableDefinition::new("retired");
/// Keys that one transaction retires: a lease waits for one transaction at most.
const RETIRED_AT_ONCE: usize = 512;
/// Keys that are read at once, for the same reason: with the longest windows, 32 MiB.
const READ_AT_ONCE: usize = 64;

type Records<'t> = Table<'t, Key, &'static [u8]>;

fn decoded<M: Medium>(medium: &M, key: Fingerprint, value: &[u8]) -> Result<Tombstone, StoreError> {
    Tombstone::decode(key, value).ok_or_else(|| damaged(medium, "the checksum of a retired key is wrong"))
}

/// The tombstone of a key, if it has one.
pub(super) fn find<M: Medium>(
    medium: &M,
    transaction: &ReadTransaction,
    key: Fingerprint,
) -> Result<Option<Tombstone>, StoreError> {
    let Some(table) = optional_table(medium, transaction, RETIRED)? else { return Ok(None) };
    let value = table.get(key.as_bytes()).map_err(|e| translated(medium, e))?;
    value.map(|value| decoded(medium, key, value.value())).transpose()
}

/// Calls `each` for all tombstones.
pub(super) fn for_each<M: Medium>(
    medium: &M,
    transaction: &ReadTransaction,
    mut each: impl FnMut(Fingerprint, Tombstone),
) -> Result<(), StoreError> {
    let Some(table) = optional_table(medium, transaction, RETIRED)? else { return Ok(()) };
    for entry in table.iter().map_err(|e| translated(medium, e))? {
        let (key, value) = entry.map_err(|e| translated(medium, e))?;
        let key = Fingerprint::from_bytes(*key.value());
        each(key, decoded(medium, key, value.value())?);
    }
    Ok(())
}

/// Gives keys that were retired their records back: they are used again.
pub(super) fn revive<M: Medium>(
    medium: &M,
    transaction: &WriteTransaction,
    seal: &mut Seal,
    keys: impl Iterator<Item = Fingerprint>,
) -> Result<(), StoreError> {
    let error = |e| translated(medium, e);
    let mut found = Vec::new();
    let mut table = transaction.open_table(RETIRED).map_err(|e| translated(medium, e))?;
    for key in keys {
        let value = table.remove(key.as_bytes()).map_err(error)?;
        if let Some(value) = value {
            found.push((key, decoded(medium, key, value.value())?));
        }
    }
    drop(table);
    for (key, tombstone) in found {
        seal.bury(key, &tombstone, false);
        let insert = |table, value: &[u8]| -> Result<(), StoreError> {
            let mut table: Records<'_> = transaction.open_table(table).map_err(|e| translated(medium, e))?;
            table.insert(key.as_bytes(), value).map_err(error)?;
            Ok(())
        };
        if let Some(noted) = tombstone.noted {
            seal.add(key, noted);
            insert(LEASES, &record::encode_lease(key, noted))?;
        }
        if let Some(top) = tombstone.top {
            insert(WINDOWS, &record::encode_window(key, &ReplayWindow::closed_up_to(top)))?;
        }
        if let Some(usage) = tombstone.usage {
            insert(USAGE, &record::encode_usage(key, usage))?;
        }
    }
    Ok(())
}

/// Makes a tombstone of a key's records. `false` if it has none, or its window cannot be read.
fn bury<M: Medium>(
    medium: &M,
    transaction: &WriteTransaction,
    seal: &mut Seal,
    key: Fingerprint,
    limit: u64,
) -> Result<bool, StoreError> {
    let error = |e| translated(medium, e);
    let open = |table| transaction.open_table(table).map_err(|e| translated(medium, e));
    let (mut leases, mut windows, mut usages): (Records<'_>, Records<'_>, Records<'_>) =
        (open(LEASES)?, open(WINDOWS)?, open(USAGE)?);
    let noted = stored(medium, &leases, key)?;
    let usage = stored_usage(medium, &usages, key)?;
    let window = windows.get(key.as_bytes()).map_err(error)?;
    let window = window.map(|value| decoded_window(medium, key, value.value())).transpose()?;
    let top = window.as_deref().map(ReplayWindow::top_of);
    // One that has numbers only changes its form; any other one needs room.
    let has_room = noted.is_some() || seal.keys < limit;
    if (noted, &window, usage) == (None, &None, None) || top == Some(None) || !has_room {
        return Ok(false);
    }
    let tombstone = Tombstone { noted, top: top.flatten(), usage };
    if let Some(noted) = noted {
        seal.remove(key, noted);
    }
    seal.bury(key, &tombstone, true);
    for table in [&mut leases, &mut windows, &mut usages] {
        table.remove(key.as_bytes()).map_err(error)?;
    }
    let mut table: Records<'_> = open(RETIRED)?;
    table.insert(key.as_bytes(), &tombstone.encode(key)[..]).map_err(error)?;
    Ok(true)
}

#[cfg(test)]
pub(super) fn delete_table<M: Medium>(medium: &M, transaction: &WriteTransaction) -> Result<(), StoreError> {
    let gone = transaction.delete_table(RETIRED).map_err(|e| translated(medium, e))?;
    assert!(gone, "there was none");
    Ok(())
}

impl<M: Medium> Ledger<M> {
    /// As [`LeaseStore::retire`](super::LeaseStore::retire).
    pub(super) fn retire_all_but(&self, kept: &HashSet<Fingerprint>) -> Result<u64, StoreError> {
        let gone = self.keys_without(kept)?;
        let mut retired = 0;
        let gone: Vec<_> = gone.into_iter().collect();
        for part in gone.chunks(RETIRED_AT_ONCE) {
            retired += self.commit_twice(&mut self.state(), |transaction, seal| {
                let mut retired = 0;
                for key in part {
                    retired += u64::from(bury(self.medium(), transaction, seal, *key, self.limit())?);
                }
                Ok(retired)
            })?;
        }
        Ok(retired)
    }

    /// The keys that have records of their own, without these.
    fn keys_without(&self, kept: &HashSet<Fingerprint>) -> Result<BTreeSet<Fingerprint>, StoreError> {
        let mut keys = BTreeSet::new();
        for definition in [LEASES, WINDOWS, USAGE] {
            let mut last = None;
            loop {
                // A lease comes in between: the database reads the windows with their keys, and there may be
                // gigabytes of them.
                let part = self.with_database(&mut self.state(), |database| {
                    self.keys_after(database, definition, last)
                })?;
                let Some(newest) = part.last() else { break };
                last = Some(*newest);
                keys.extend(part.into_iter().filter(|key| !kept.contains(key)));
            }
        }
        Ok(keys)
    }

    /// Some keys of a table, in order: those that follow `last`.
    fn keys_after(
        &self,
        database: &Database,
        definition: TableDefinition<'static, Key, &'static [u8]>,
        last: Option<Fingerprint>,
    ) -> Result<Vec<Fingerprint>, StoreError> {
        let medium = self.medium();
        let transaction = database.begin_read().map_err(|e| translated(medium, e))?;
        let Some(table) = optional_table(medium, &transaction, definition)? else { return Ok(Vec::new()) };
        let first = last.as_ref().map_or(Bound::Unbounded, |last| Bound::Excluded(last.as_bytes()));
        let range: (Bound<&[u8; Fingerprint::BYTES]>, Bound<&[u8; Fingerprint::BYTES]>) =
            (first, Bound::Unbounded);
        let entries = table.range::<&[u8; Fingerprint::BYTES]>(range).map_err(|e| translated(medium, e))?;
        let mut keys = Vec::with_capacity(READ_AT_ONCE);
        for entry in entries.take(READ_AT_ONCE) {
            let (key, _) = entry.map_err(|e| translated(medium, e))?;
            keys.push(Fingerprint::from_bytes(*key.value()));
        }
        Ok(keys)
    }

    /// All keys, in the order of their fingerprints.
    pub(super) fn known(&self) -> Result<Vec<Known>, StoreError> {
        let known = self.with_database(&mut self.state(), |database| self.read_all(database))?;
        Ok(known.into_values().collect())
    }

    fn read_all(&self, database: &Database) -> Result<BTreeMap<Fingerprint, Known>, StoreError> {
        let medium = self.medium();
        let transaction = database.begin_read().map_err(|e| translated(medium, e))?;
        let mut known = BTreeMap::<Fingerprint, Known>::new();
        let of = |known: &mut BTreeMap<Fingerprint, Known>, key, change: &dyn Fn(&mut Known)| {
            change(known.entry(key).or_insert_with(|| Known::new(key)));
        };
        for (definition, part) in [(LEASES, 0), (WINDOWS, 1), (USAGE, 2)] {
            let Some(table) = optional_table(medium, &transaction, definition)? else { continue };
            for entry in table.iter().map_err(|e| translated(medium, e))? {
                let (key, value) = entry.map_err(|e| translated(medium, e))?;
                let (key, value) = (Fingerprint::from_bytes(*key.value()), value.value());
                match part {
                    0 => {
                        let next = record::decode_lease(key, value).map(|noted| noted.next);
                        of(&mut known, key, &|known| known.next = next);
                    }
                    1 => {
                        let window = record::decode_window(key, value);
                        let top = window.and_then(|window| ReplayWindow::top_of(&window));
                        of(&mut known, key, &|known| known.top = top);
                    }
                    _ => {
                        let usage = record::decode_usage(key, value);
                        of(&mut known, key, &|known| known.usage = usage);
                    }
                }
            }
        }
        for_each(medium, &transaction, |key, tombstone| {
            let Tombstone { noted, top, usage } = tombstone;
            let next = noted.map(|noted| noted.next);
            known.insert(key, Known { fingerprint: key, is_retired: true, next, top, usage });
        })?;
        Ok(known)
    }

    /// Forgets retired keys. Others are left alone. Returns how many were forgotten.
    pub(super) fn forget(&self, keys: &[Fingerprint]) -> Result<u64, StoreError> {
        let medium = self.medium();
        self.commit_twice(&mut self.state(), |transaction, seal| {
            let mut table = transaction.open_table(RETIRED).map_err(|e| translated(medium, e))?;
            let mut forgotten = 0;
            for &key in keys {
                let removed = table.remove(key.as_bytes()).map_err(|e| translated(medium, e))?;
                if let Some(value) = removed {
                    seal.bury(key, &decoded(medium, key, value.value())?, false);
                    forgotten += 1;
                }
            }
            Ok(forgotten)
        })
    }
}
