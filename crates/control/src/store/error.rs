//! What can go wrong with durable state.

use crate::fingerprint::Fingerprint;
use std::io;
use std::path::PathBuf;

/// Why durable state is not available.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The file does not exist.
    #[error("{}: there is no store of sequence numbers; if this gateway never ran with these keys, create one", .0.display())]
    Missing(PathBuf),
    /// The path exists: a store never overwrites anything.
    #[error("{}: exists already, and is not overwritten", .0.display())]
    Exists(PathBuf),
    /// Another process has it open.
    #[error("{}: in use by another gateway", .0.display())]
    InUse(PathBuf),
    /// It is not a regular file of ours that only we can write.
    #[error("{}: {reason}", path.display())]
    Unsafe {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// Its content is not what was written.
    #[error("{}: damaged ({detail}); numbers under its keys may not be used again: change the keys, then create a new store", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What was found.
        detail: String,
    },
    /// Another version of the program wrote it.
    #[error("{}: has format {found}, this program knows {known}", path.display())]
    Version {
        /// The file.
        path: PathBuf,
        /// Format of the file.
        found: u32,
        /// Format that this program writes.
        known: u32,
    },
    /// The disk is full or fails. Nothing was promised; a later call may succeed.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// All numbers of this key are used up.
    #[error("key {fingerprint}: all sequence numbers are used up; it must be replaced")]
    Exhausted {
        /// The key.
        fingerprint: Fingerprint,
    },
    /// The nonces of this key are its numbers, and it is not recorded as never used.
    #[error(
        "key {fingerprint}: the store does not know it, and its nonces are its sequence numbers; if no gateway ever ran with it, say so: testudo init --fresh-keys"
    )]
    UnknownKey {
        /// The key.
        fingerprint: Fingerprint,
    },
    /// There are [`MAX_KEYS`](super::MAX_KEYS) keys already.
    #[error("{}: full: it remembers {keys} keys, and takes no new one until others are forgotten (testudo store list, testudo store forget)", path.display())]
    Full {
        /// The file.
        path: PathBuf,
        /// Keys in it.
        keys: u64,
    },
    /// A lease of no numbers.
    #[error("a lease must have at least one number")]
    EmptyBlock,
    /// More than [`MAX_WINDOW_BYTES`](super::MAX_WINDOW_BYTES).
    #[error("a window of {0} bytes is too long")]
    WindowTooLong(usize),
}

impl StoreError {
    /// Whether the disk is full (or a quota or limit of file size reached).
    #[must_use]
    pub fn is_disk_full(&self) -> bool {
        use io::ErrorKind::{FileTooLarge, QuotaExceeded, StorageFull};
        matches!(self, StoreError::Io { source, .. } if matches!(source.kind(), StorageFull | QuotaExceeded | FileTooLarge))
    }

    /// Whether the open database can no longer be trusted after this error.
    pub(super) fn spoils_database(&self) -> bool {
        matches!(self, StoreError::Io { .. } | StoreError::Damaged { .. })
    }
}
