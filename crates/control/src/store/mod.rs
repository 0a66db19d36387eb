//! Durable state: which sequence numbers each key may still use, replay windows, and what keys have spent of
//! their lifetimes.
//!
//! A nonce that comes twice under a key gives the key's secrets away (RFC 4106 2, RFC 7634 1.1). Numbers are
//! therefore leased before they are used: the store notes, durably, that all numbers of a block are gone, and
//! only then hands the block out. What a crash leaves unused is lost, which costs little: a key has 2^48
//! numbers.
//!
//! ```text
//!   lease(key, 1000) ──► commit "next = 1001" ──► commit again ──► Lease 1..1001 ──► packets 1, 2, 3, … 412
//!   kill -9, start   ──► open, check it all   ─────────────────► Lease 1001..2001 ──► packets 1001, … 1207
//!   stop: give_back(key, 1208..2001) ──► commit "next = 1208" ──► commit again
//! ```
//!
//! **Why twice.** The database keeps its two latest commits, so that a commit which a crash interrupts falls back to the
//! one before. A damaged byte in its header looks just like such a crash, and the fallback would give numbers
//! out again. After the second commit both places say the same, and falling back changes nothing.
//!
//! **Damage.** A missing or damaged file is an error, never a fresh start at 1. Opening checks every page's checksum, every
//! entry's own checksum, and the number and digest of all entries against a seal that each commit renews.
//! What no file can know is that all of it was replaced by an older copy, or that another store exists under
//! the same keys. So the IVs that numbers make differ from store to store and from start to start
//! (`masks`). Still: do not restore it from a backup, and if it is lost, change the keys and create a new
//! one.
//!
//! **Entries stay forever.** A key that leaves the configuration may come back, and must not start at 1. An entry has about
//! 50 bytes; at [`MAX_KEYS`] of them, new keys are refused.
//!
//! **When the disk is full** or fails, a call returns the error and has promised nothing; the next call opens the
//! file again, checks that nothing it handed out was forgotten, and goes on when the disk does.
//!
//! Threads: any; calls are serialised, and two callers take turns, so that neither waits for more than one
//! call of the other. Other processes are kept out by a lock. [`MemoryStore`] is the twin for tests and for
//! `replay`, with the same contract but for durability.

mod disk;
mod error;
mod file;
mod ledger;
mod masks;
mod memory;
mod record;
mod turns;
mod usage;

pub use disk::Store;
pub use error::StoreError;
pub use masks::NUMBERS_END;
pub use memory::MemoryStore;
pub use usage::Usage;

use crate::fingerprint::Fingerprint;
use std::ops::Range;

/// Keys that a store remembers at most.
pub const MAX_KEYS: u64 = 1 << 20;
/// Bytes of a saved window at most: 65,536 packets are 16 KiB.
pub const MAX_WINDOW_BYTES: usize = 64 << 10;
/// The first number of a key: ESP starts at 1 (RFC 4303 2.2).
pub const FIRST_NUMBER: u64 = 1;

/// Numbers that belong to the holder of this, and to nobody else, ever: `first`, … up to but without `end`.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "numbers that are leased and not used are lost"]
pub struct Lease {
    /// The first number.
    pub first: u64,
    /// The first number after the lease; more than `first`.
    pub end: u64,
    /// What is XORed into the key's numbers to make IVs: the same in all leases of one store as long as it is
    /// open.
    pub iv_mask: u64,
}

/// Where sequence numbers are leased, and replay windows and usages kept.
///
/// A call waits for the one before it. Whoever saves much does so in several calls, so that a lease can come
/// in between.
pub trait LeaseStore: Send + Sync {
    /// Leases a block for each key, all or none, in one transaction; durable before it returns. Blocks are in
    /// the order of `requests`, of the length asked for, shorter only at the end of a key's numbers.
    ///
    /// # Errors
    /// [`StoreError::Exhausted`] if a key has no numbers left, [`StoreError::Full`],
    /// [`StoreError::EmptyBlock`], or what the disk says. After any error nothing is leased, though numbers
    /// may be lost.
    fn lease_many(&self, requests: &[(Fingerprint, u64)]) -> Result<Vec<Lease>, StoreError>;

    /// Leases one block of `block` numbers.
    ///
    /// # Errors
    /// As [`Self::lease_many`].
    fn lease(&self, fingerprint: Fingerprint, block: u64) -> Result<Lease, StoreError> {
        let mut leases = self.lease_many(&[(fingerprint, block)])?;
        leases.pop().ok_or(StoreError::EmptyBlock)
    }

    /// Whether the store has noted this key.
    ///
    /// # Errors
    /// [`StoreError::Damaged`], or what the disk says.
    fn is_known(&self, fingerprint: Fingerprint) -> Result<bool, StoreError>;

    /// Notes keys whose nonces are their numbers and that were never used anywhere. What is known already
    /// stays as it is.
    ///
    /// # Errors
    /// [`StoreError::Full`], or what the disk says.
    fn note_fresh(&self, keys: &[Fingerprint]) -> Result<(), StoreError>;

    /// Takes back numbers that nobody has used or will, of the lease that this store last gave for each key:
    /// the next one begins there. What is not the end of a key's last lease is passed over. Durable before it
    /// returns; a crash on the way loses the numbers.
    ///
    /// # Errors
    /// What the disk says. Even then the numbers are leased again as long as the store is open.
    fn give_back(&self, rests: &[(Fingerprint, Range<u64>)]) -> Result<(), StoreError>;

    /// Saves replay windows and usages, all or none, in one transaction; durable before it returns.
    ///
    /// # Errors
    /// [`StoreError::WindowTooLong`], [`StoreError::Full`], or what the disk says.
    fn save(
        &self,
        windows: &[(Fingerprint, &[u8])],
        usages: &[(Fingerprint, Usage)],
    ) -> Result<(), StoreError>;

    /// Saves replay windows alone.
    ///
    /// # Errors
    /// As [`Self::save`].
    fn save_windows(&self, windows: &[(Fingerprint, &[u8])]) -> Result<(), StoreError> {
        self.save(windows, &[])
    }

    /// The window that was last saved for a key.
    ///
    /// # Errors
    /// [`StoreError::Damaged`], or what the disk says.
    fn window(&self, fingerprint: Fingerprint) -> Result<Option<Vec<u8>>, StoreError>;

    /// The usage that was last saved for a key.
    ///
    /// # Errors
    /// [`StoreError::Damaged`], or what the disk says.
    fn usage(&self, fingerprint: Fingerprint) -> Result<Option<Usage>, StoreError>;
}

/// The block of numbers from `next` on: the first one, and the one after it.
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
