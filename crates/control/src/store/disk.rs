//! The store in a file.

use super::file::{ExistingFile, NewFile};
use super::ledger::Ledger;
use super::masks::Masks;
use super::{Known, Lease, LeaseStore, StoreError, Usage};
use crate::fingerprint::Fingerprint;
use std::collections::HashSet;
use std::ops::Range;
use std::path::Path;

/// The durable store: a file of mode 0600, locked as long as this value lives.
#[derive(Debug)]
pub struct Store {
    ledger: Ledger<ExistingFile>,
}

impl Store {
    /// Creates an empty store at `path`, completely and durably or not at all, and opens it.
    ///
    /// # Errors
    /// [`StoreError::Exists`] if the path exists; [`StoreError::Io`].
    pub fn create(path: &Path) -> Result<Self, StoreError> {
        let file = NewFile::at(path)?;
        let created = Ledger::create(&file);
        if created.is_err() {
            file.discard();
        }
        created?;
        file.publish()?;
        Self::open(path)
    }

    /// Opens the store at `path` and checks all of it.
    ///
    /// # Errors
    /// [`StoreError::Missing`], [`StoreError::Damaged`], [`StoreError::Version`], [`StoreError::InUse`],
    /// [`StoreError::Unsafe`], [`StoreError::Io`].
    pub fn open(path: &Path) -> Result<Self, StoreError> {
        let masks = Masks::random().map_err(|source| StoreError::Io { path: path.to_owned(), source })?;
        Ledger::open(ExistingFile::at(path), masks).map(|ledger| Self { ledger })
    }

    /// All keys that it remembers, in the order of their fingerprints.
    ///
    /// # Errors
    /// [`StoreError::Damaged`], [`StoreError::Io`].
    pub fn known(&self) -> Result<Vec<Known>, StoreError> {
        self.ledger.known()
    }

    /// Forgets keys that are retired; others are left alone. Who uses a forgotten key again repeats nonces.
    /// Returns how many were forgotten.
    ///
    /// # Errors
    /// [`StoreError::Damaged`], [`StoreError::Io`]; then none is.
    pub fn forget(&self, keys: &[Fingerprint]) -> Result<u64, StoreError> {
        self.ledger.forget(keys)
    }

    /// Gives space that nothing needs any more back to the file system.
    ///
    /// # Errors
    /// [`StoreError::Damaged`], [`StoreError::Io`].
    pub fn compact(&self) -> Result<(), StoreError> {
        self.ledger.compact()
    }
}

impl LeaseStore for Store {
    fn lease_many(&self, requests: &[(Fingerprint, u64)]) -> Result<Vec<Lease>, StoreError> {
        self.ledger.lease_many(requests)
    }

    fn is_known(&self, fingerprint: Fingerprint) -> Result<bool, StoreError> {
        self.ledger.is_known(fingerprint)
    }

    fn note_fresh(&self, keys: &[Fingerprint]) -> Result<(), StoreError> {
        self.ledger.note_fresh(keys)
    }

    fn give_back(&self, rests: &[(Fingerprint, Range<u64>)]) -> Result<(), StoreError> {
        self.ledger.give_back(rests)
    }

    fn save(
        &self,
        windows: &[(Fingerprint, &[u8])],
        usages: &[(Fingerprint, Usage)],
    ) -> Result<(), StoreError> {
        self.ledger.save(windows, usages)
    }

    fn window(&self, fingerprint: Fingerprint) -> Result<Option<Vec<u8>>, StoreError> {
        self.ledger.window(fingerprint)
    }

    fn usage(&self, fingerprint: Fingerprint) -> Result<Option<Usage>, StoreError> {
        self.ledger.usage(fingerprint)
    }

    fn retire(&self, kept: &HashSet<Fingerprint>) -> Result<u64, StoreError> {
        self.ledger.retire(kept)
    }
}
