//! The records of the store, each with its own checksum.
//!
//! | table | key | value |
//! | --- | --- | --- |
//! | `leases` | fingerprint | next number that is not leased (8 bytes), mask of IVs (8 bytes), checksum (8 bytes) |
//! | `windows` | fingerprint | checksum (8 bytes), window |
//! | `usage` | fingerprint | bytes (8), packets (8), Unix time of the first installation in seconds (8), checksum (8) |
//! | `retired` | fingerprint | [tombstone](Tombstone) |
//! | `seal` | `seal` | format (4), commits (8), number of leases and tombstones (8), their digest (32), checksum (8) |
//!
//! Numbers are little-endian. A checksum is the start of a SHA-256 over a domain string, the key and the
//! value, so that an entry that ends up under another key is detected too. The digest is the exclusive or of
//! the hashes of all leases and tombstones, so that each commit renews it without reading the others. A store
//! made before there was a table `usage` gets the table with its first entry; the format is the same, since a
//! program that does not know the table leaves it alone.
//!
//! **Format 1** had no masks: its leases are 16 bytes, number and checksum. A mask of 0 is still written that
//! way, so that a key of an old store continues unchanged: the IVs it has used were its numbers. **Format 2**
//! had no tombstones. The first commit of this program makes either one of format 3, which is the same as
//! long as no key is retired; older programs refuse it, since they would begin a retired key at 1.

use super::Usage;
use super::tombstone::Tombstone;
use crate::fingerprint::{Fingerprint, digest_of};

/// The format that this program writes.
pub(super) const FORMAT: u32 = 3;
/// The oldest format that it reads: without masks.
const OLDEST_FORMAT: u32 = 1;

const LEASE_DOMAIN: &[u8] = b"testudo lease v1";
const MASKED_LEASE_DOMAIN: &[u8] = b"testudo lease v2";
const WINDOW_DOMAIN: &[u8] = b"testudo window v1";
const USAGE_DOMAIN: &[u8] = b"testudo usage v1";
const SEAL_DOMAIN: &[u8] = b"testudo seal v1";
/// Bytes of a record's checksum.
pub(super) const CHECK_BYTES: usize = 8;
const SEAL_BYTES: usize = 4 + 8 + 8 + 32;

/// Bytes of a usage's value.
pub(super) const USAGE_BYTES: usize = 3 * 8 + CHECK_BYTES;

/// SHA-256 over a domain string and the parts of a record.
pub(super) fn hash(domain: &[u8], parts: &[&[u8]]) -> [u8; 32] {
    let all: Vec<&[u8]> = std::iter::once(domain).chain(parts.iter().copied()).collect();
    *digest_of(&all).as_bytes()
}

/// The store's entry for the numbers of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Noted {
    /// The next number that is not leased.
    pub(super) next: u64,
    /// The mask XORed into numbers to make IVs. It never changes.
    pub(super) iv_mask: u64,
}

impl Noted {
    fn hash(self, fingerprint: Fingerprint) -> [u8; 32] {
        let (next, mask) = (self.next.to_le_bytes(), self.iv_mask.to_le_bytes());
        match self.iv_mask {
            0 => hash(LEASE_DOMAIN, &[fingerprint.as_bytes(), &next]),
            _ => hash(MASKED_LEASE_DOMAIN, &[fingerprint.as_bytes(), &next, &mask]),
        }
    }
}

/// The value of a lease.
pub(super) fn encode_lease(fingerprint: Fingerprint, noted: Noted) -> Vec<u8> {
    let mut value = noted.next.to_le_bytes().to_vec();
    if noted.iv_mask != 0 {
        value.extend(noted.iv_mask.to_le_bytes());
    }
    value.extend(&noted.hash(fingerprint)[..CHECK_BYTES]);
    value
}

/// The lease in a value; `None` if the checksum is wrong.
pub(super) fn decode_lease(fingerprint: Fingerprint, value: &[u8]) -> Option<Noted> {
    let number = |at: usize| Some(u64::from_le_bytes(*value.get(at..)?.first_chunk()?));
    let iv_mask = if value.len() == 8 + CHECK_BYTES { 0 } else { number(8)? };
    let noted = Noted { next: number(0)?, iv_mask };
    (value == encode_lease(fingerprint, noted)).then_some(noted)
}

/// The value of a window.
pub(super) fn encode_window(fingerprint: Fingerprint, window: &[u8]) -> Vec<u8> {
    let check = hash(WINDOW_DOMAIN, &[fingerprint.as_bytes(), window]);
    [&check[..CHECK_BYTES], window].concat()
}

/// The window in a value; `None` if the checksum is wrong.
pub(super) fn decode_window(fingerprint: Fingerprint, value: &[u8]) -> Option<Vec<u8>> {
    let (check, window) = value.split_first_chunk::<CHECK_BYTES>()?;
    let expected = hash(WINDOW_DOMAIN, &[fingerprint.as_bytes(), window]);
    (check[..] == expected[..CHECK_BYTES]).then(|| window.to_vec())
}

/// The value of a usage.
pub(super) fn encode_usage(fingerprint: Fingerprint, usage: Usage) -> [u8; USAGE_BYTES] {
    let numbers = [usage.bytes, usage.packets, usage.since_unix_s].map(u64::to_le_bytes);
    let check = hash(USAGE_DOMAIN, &[fingerprint.as_bytes(), numbers.as_flattened()]);
    let mut value = [0; USAGE_BYTES];
    let (start, end) = value.split_at_mut(USAGE_BYTES - CHECK_BYTES);
    start.copy_from_slice(numbers.as_flattened());
    end.copy_from_slice(&check[..CHECK_BYTES]);
    value
}

/// The usage in a value; `None` if the checksum is wrong.
pub(super) fn decode_usage(fingerprint: Fingerprint, value: &[u8]) -> Option<Usage> {
    let number = |at: usize| Some(u64::from_le_bytes(*value.get(at..)?.first_chunk()?));
    let usage = Usage { bytes: number(0)?, packets: number(8)?, since_unix_s: number(16)? };
    (value == encode_usage(fingerprint, usage)).then_some(usage)
}

/// Each commit's summary of all leases and tombstones.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Seal {
    /// Commits so far.
    pub(super) commits: u64,
    /// Number of leases and tombstones.
    pub(super) keys: u64,
    /// Exclusive or of their hashes.
    digest: [u8; 32],
}

/// Why bytes are not a valid seal.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum BadSeal {
    /// Another format.
    Format(u32),
    /// The checksum or length is wrong.
    Damaged,
}

impl Seal {
    /// Adds a new lease.
    pub(super) fn add(&mut self, fingerprint: Fingerprint, noted: Noted) {
        self.keys += 1;
        self.toggle(fingerprint, noted);
    }

    /// Replaces a lease's old value by its new one.
    pub(super) fn replace(&mut self, fingerprint: Fingerprint, old: Noted, new: Noted) {
        self.toggle(fingerprint, old);
        self.toggle(fingerprint, new);
    }

    /// Takes out a lease.
    pub(super) fn remove(&mut self, fingerprint: Fingerprint, noted: Noted) {
        self.keys = self.keys.saturating_sub(1);
        self.toggle(fingerprint, noted);
    }

    /// Adds a tombstone, or takes it out.
    pub(super) fn bury(&mut self, fingerprint: Fingerprint, tombstone: &Tombstone, is_new: bool) {
        self.keys = if is_new { self.keys + 1 } else { self.keys.saturating_sub(1) };
        self.toggle_hash(tombstone.hash(fingerprint));
    }

    fn toggle(&mut self, fingerprint: Fingerprint, noted: Noted) {
        self.toggle_hash(noted.hash(fingerprint));
    }

    fn toggle_hash(&mut self, hash: [u8; 32]) {
        self.digest.iter_mut().zip(hash).for_each(|(byte, other)| *byte ^= other);
    }

    /// Whether both describe the same leases and tombstones.
    pub(super) fn agrees_with(&self, other: &Seal) -> bool {
        (self.keys, self.digest) == (other.keys, other.digest)
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        self.encode_as(FORMAT)
    }

    pub(super) fn encode_as(&self, format: u32) -> Vec<u8> {
        let mut value = Vec::with_capacity(SEAL_BYTES + CHECK_BYTES);
        value.extend(format.to_le_bytes());
        value.extend(self.commits.to_le_bytes());
        value.extend(self.keys.to_le_bytes());
        value.extend(self.digest);
        value.extend(&hash(SEAL_DOMAIN, &[&value])[..CHECK_BYTES]);
        value
    }

    pub(super) fn decode(value: &[u8]) -> Result<Self, BadSeal> {
        // The format first: another one may have another length.
        match value.first_chunk().map(|bytes| u32::from_le_bytes(*bytes)) {
            Some(format @ OLDEST_FORMAT..=FORMAT) => {
                Self::fields(value).filter(|seal| seal.encode_as(format) == value).ok_or(BadSeal::Damaged)
            }
            Some(other) => Err(BadSeal::Format(other)),
            None => Err(BadSeal::Damaged),
        }
    }

    fn fields(value: &[u8]) -> Option<Self> {
        let commits = u64::from_le_bytes(*value.get(4..)?.first_chunk()?);
        let keys = u64::from_le_bytes(*value.get(12..)?.first_chunk()?);
        Some(Self { commits, keys, digest: *value.get(20..)?.first_chunk()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: Fingerprint = Fingerprint::from_bytes([7; 32]);
    const OTHER: Fingerprint = Fingerprint::from_bytes([8; 32]);

    fn noted(next: u64, iv_mask: u64) -> Noted {
        Noted { next, iv_mask }
    }

    #[test]
    fn a_lease_with_any_flipped_bit_or_under_another_key_is_refused() {
        for noted in [noted(4711, 0), noted(4711, u64::MAX / 3)] {
            let value = encode_lease(KEY, noted);
            assert_eq!(decode_lease(KEY, &value), Some(noted));
            assert_eq!(decode_lease(OTHER, &value), None);
            for bit in 0..value.len() * 8 {
                let mut flipped = value.clone();
                flipped[bit / 8] ^= 1 << (bit % 8);
                assert_eq!(decode_lease(KEY, &flipped), None, "bit {bit}");
            }
            for length in 0..value.len() {
                assert_eq!(decode_lease(KEY, &value[..length]), None, "{length} bytes");
            }
        }
    }

    #[test]
    fn a_mask_of_nothing_has_one_form_alone() {
        let number = 7_u64.to_le_bytes();
        let check = hash(MASKED_LEASE_DOMAIN, &[KEY.as_bytes(), &number, &[0; 8]]);
        let value = [&number[..], &[0; 8], &check[..CHECK_BYTES]].concat();
        assert_eq!(decode_lease(KEY, &value), None);
    }

    #[test]
    fn a_window_with_a_flipped_bit_is_refused() {
        let mut value = encode_window(KEY, b"window");
        assert_eq!(decode_window(KEY, &value).as_deref(), Some(&b"window"[..]));
        assert_eq!(decode_window(OTHER, &value), None);
        value[10] ^= 1;
        assert_eq!(decode_window(KEY, &value), None);
        assert_eq!(decode_window(KEY, &[]), None);
    }

    #[test]
    fn a_usage_with_any_flipped_bit_or_under_another_key_is_refused() {
        let usage = Usage { bytes: 1 << 40, packets: 77, since_unix_s: 1_790_000_000 };
        let value = encode_usage(KEY, usage);
        assert_eq!(decode_usage(KEY, &value), Some(usage));
        assert_eq!(decode_usage(OTHER, &value), None);
        for bit in 0..USAGE_BYTES * 8 {
            let mut flipped = value;
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(decode_usage(KEY, &flipped), None, "bit {bit}");
        }
        assert_eq!(decode_usage(KEY, &value[..USAGE_BYTES - 1]), None);
    }

    #[test]
    fn a_seal_tells_a_lost_entry_a_changed_one_and_another_format() {
        let mut seal = Seal::default();
        seal.add(KEY, noted(1, 0));
        seal.add(OTHER, noted(1, 5));
        seal.replace(KEY, noted(1, 0), noted(100, 0));
        let mut same = Seal::default();
        same.add(OTHER, noted(1, 5));
        assert!(!seal.agrees_with(&same), "one is lost");
        same.add(KEY, noted(99, 0));
        assert!(!seal.agrees_with(&same), "one is older");
        same.replace(KEY, noted(99, 0), noted(100, 1));
        assert!(!seal.agrees_with(&same), "one has another mask");
        same.replace(KEY, noted(100, 1), noted(100, 0));
        assert!(seal.agrees_with(&same));
        assert_eq!(Seal::decode(&seal.encode()), Ok(seal));
        for format in OLDEST_FORMAT..=FORMAT {
            assert_eq!(Seal::decode(&seal.encode_as(format)), Ok(seal));
        }
        let newer = seal.encode_as(FORMAT + 1);
        assert_eq!(Seal::decode(&newer), Err(BadSeal::Format(FORMAT + 1)));
        let mut damaged = seal.encode();
        damaged[30] ^= 1;
        assert_eq!(Seal::decode(&damaged), Err(BadSeal::Damaged));
    }
}
