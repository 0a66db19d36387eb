//! Durable state: the next sequence number of each key, replay windows, and how much of their lifetimes keys
//! have used up.
//!
//! A nonce that repeats under a key reveals the key's secrets (RFC 4106 2, RFC 7634 1.1). Numbers are
//! therefore leased before they are used: the store first records durably that a block is used up, and only
//! then hands it out. A crash loses the unused rest of a block, which costs little: a key has 2^48 numbers.
//!
//! ```text
//!   lease(key, 1000) ──► commit "next = 1001" ──► commit again ──► Lease 1..1001 ──► packets 1, 2, 3, … 412
//!   kill -9, start   ──► open, check it all   ─────────────────► Lease 1001..2001 ──► packets 1001, … 1207
//!   stop: give_back(key, 1208..2001) ──► commit "next = 1208" ──► commit again
//! ```
//!
//! **Why two commits.** The database keeps its two latest commits, so that it can fall back to the previous
//! one when a crash interrupts a commit. A damaged byte in its header looks just like such a crash, and the
//! fallback would hand out numbers again. After the second commit both copies say the same, and falling back
//! changes nothing.
//!
//! **Damage.** A missing or damaged file is an error, never a fresh start at 1. Opening checks every page's
//! checksum, every entry's own checksum, and the number and digest of all entries against a seal that each
//! commit renews. A file cannot know that all of it was replaced by an older copy, or that another store
//! exists for the same keys. So the IVs made from the numbers differ from store to store and from start to
//! start (`masks`). Still: do not restore it from a backup, and if it is lost, change the keys and create a
//! new one.
//!
//! **Nothing is forgotten, and little is kept.** A key that leaves the configuration may come back, and must
//! not start at 1, accept old packets, or live longer than its lifetime. It is retired, when the gateway next
//! starts or reloads, to a tombstone of at most 69 bytes (usually 15 to 40) instead of a window of up to half
//! a megabyte; what it loses is which numbers below the highest one have not come yet: they count as
//! received. Once [`MAX_KEYS`] keys are remembered, new ones are refused until the operator has old ones
//! forgotten (`testudo store forget`). A tombstone takes about 110 bytes of the file (`compact`), so that it
//! has about 110 MiB of them. Keys that are negotiated never come here.
//!
//! **When the disk is full** or fails, a call returns the error and has promised nothing. The next call opens
//! the file again, checks that nothing it handed out was forgotten, and continues once the disk works.
//!
//! Threads: any. Calls are serialised, and two callers alternate, so that neither waits for more than one
//! call of the other. A lock keeps other processes out. [`MemoryStore`] is a store for tests, with the same
//! contract except for durability.

mod disk;
mod error;
mod file;
mod ledger;
mod masks;
mod memory;
mod record;
mod retired;
mod tombstone;
mod turns;
mod usage;

pub use disk::Store;
pub use error::StoreError;
pub use masks::NUMBERS_END;
pub use memory::MemoryStore;
pub use usage::Usage;

use crate::fingerprint::Fingerprint;
use std::collections::HashSet;
use std::ops::Range;

/// The most keys that a store remembers: those with numbers and those that are retired, together; those with
/// windows, and those with usages.
pub const MAX_KEYS: u64 = 1 << 20;
/// The most bytes of a saved window: the largest one is half a megabyte, and two numbers before it.
pub const MAX_WINDOW_BYTES: usize = (512 << 10) + 16;
/// The first number of a key: ESP starts at 1 (RFC 4303 2.2).
pub const FIRST_NUMBER: u64 = 1;

/// Numbers that belong to the holder of this lease and never to anyone else: `first` up to but without `end`.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "numbers that are leased and not used are lost"]
pub struct Lease {
    /// The first number.
    pub first: u64,
    /// The first number after the lease; more than `first`.
    pub end: u64,
    /// The mask XORed into the key's numbers to make IVs: the same in all leases of one store while it is
    /// open.
    pub iv_mask: u64,
}

/// What a store remembers of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Known {
    /// The key.
    pub fingerprint: Fingerprint,
    /// Whether only a tombstone is left of it.
    pub is_retired: bool,
    /// The next number that is not leased, of a key for outbound SAs.
    pub next: Option<u64>,
    /// The highest number that counts as received, of a key for inbound SAs.
    pub top: Option<u64>,
    /// What it was used for.
    pub usage: Option<Usage>,
}

impl Known {
    fn new(fingerprint: Fingerprint) -> Self {
        Self { fingerprint, is_retired: false, next: None, top: None, usage: None }
    }
}

/// Leases sequence numbers and keeps replay windows and usages.
///
/// A call waits for the one before it. A caller with much to save splits it into several calls, so that a
/// lease can come in between.
pub trait LeaseStore: Send + Sync {
    /// Leases a block for each key, all or none, in one transaction; durable before it returns. Blocks are in
    /// the order of `requests` and have the requested length; only at the end of a key's numbers are they
    /// shorter.
    ///
    /// # Errors
    /// [`StoreError::Exhausted`] if a key has no numbers left, [`StoreError::Full`],
    /// [`StoreError::EmptyBlock`], or the disk's error. After any error nothing is leased, though numbers may
    /// be lost.
    fn lease_many(&self, requests: &[(Fingerprint, u64)]) -> Result<Vec<Lease>, StoreError>;

    /// Leases one block of `block` numbers.
    ///
    /// # Errors
    /// As [`Self::lease_many`].
    fn lease(&self, fingerprint: Fingerprint, block: u64) -> Result<Lease, StoreError> {
        let mut leases = self.lease_many(&[(fingerprint, block)])?;
        leases.pop().ok_or(StoreError::EmptyBlock)
    }

    /// Whether the store has an entry for this key.
    ///
    /// # Errors
    /// [`StoreError::Damaged`], or the disk's error.
    fn is_known(&self, fingerprint: Fingerprint) -> Result<bool, StoreError>;

    /// Records keys whose nonces are their numbers and that were never used anywhere. Existing entries do not
    /// change.
    ///
    /// # Errors
    /// [`StoreError::Full`], or the disk's error.
    fn note_fresh(&self, keys: &[Fingerprint]) -> Result<(), StoreError>;

    /// Takes back numbers of each key's latest lease that are unused and will stay so: the next lease begins
    /// there. Numbers that are not the end of a key's latest lease are ignored. Durable before it returns; a
    /// crash during the call loses the numbers.
    ///
    /// # Errors
    /// The disk's error. Even then the numbers are leased again while the store is open.
    fn give_back(&self, rests: &[(Fingerprint, Range<u64>)]) -> Result<(), StoreError>;

    /// Saves replay windows and usages, all or none, in one transaction; durable before it returns.
    ///
    /// # Errors
    /// [`StoreError::WindowTooLong`], [`StoreError::Full`], or the disk's error.
    fn save(
        &self,
        windows: &[(Fingerprint, &[u8])],
        usages: &[(Fingerprint, Usage)],
    ) -> Result<(), StoreError>;

    /// Saves only replay windows.
    ///
    /// # Errors
    /// As [`Self::save`].
    fn save_windows(&self, windows: &[(Fingerprint, &[u8])]) -> Result<(), StoreError> {
        self.save(windows, &[])
    }

    /// The window that was last saved for a key.
    ///
    /// # Errors
    /// [`StoreError::Damaged`], or the disk's error.
    fn window(&self, fingerprint: Fingerprint) -> Result<Option<Vec<u8>>, StoreError>;

    /// The usage that was last saved for a key.
    ///
    /// # Errors
    /// [`StoreError::Damaged`], or the disk's error.
    fn usage(&self, fingerprint: Fingerprint) -> Result<Option<Usage>, StoreError>;

    /// Retires all keys but these: of their windows only the highest number is kept. A key that is used
    /// nevertheless continues with its numbers. Returns how many were retired; the others, for which there is
    /// no room, stay as they are.
    ///
    /// # Errors
    /// [`StoreError::Damaged`], or the disk's error: then only some are.
    fn retire(&self, kept: &HashSet<Fingerprint>) -> Result<u64, StoreError>;
}

/// The block of numbers that starts at `next`: its first number, and the one after its last.
fn block_after(next: u64, block: u64, fingerprint: Fingerprint) -> Result<(u64, u64), StoreError> {
    if block == 0 {
        return Err(StoreError::EmptyBlock);
    }
    let end = next.saturating_add(block).min(NUMBERS_END);
    if end <= next { Err(StoreError::Exhausted { fingerprint }) } else { Ok((next, end)) }
}

#[cfg(test)]
mod tests;
#[cfg(test)]
mod twin;
