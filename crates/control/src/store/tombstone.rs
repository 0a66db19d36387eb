//! What remains of a key that is retired: enough that nothing is repeated should it come back.
//!
//! | part | of | kept |
//! | --- | --- | --- |
//! | numbers | outbound keys | the next number and the mask: the key goes on where it was |
//! | window | inbound keys | the highest number: everything up to it counts as received |
//! | usage | both | as it is |
//!
//! A flag says which parts there are; their numbers are written seven bits a byte, low bits first, the upper
//! bit set on all but the last (LEB128). A checksum of 8 bytes ends the record, which has at most 69 bytes.

use super::Usage;
use super::record::{CHECK_BYTES, Noted, hash};
use crate::fingerprint::Fingerprint;

const DOMAIN: &[u8] = b"testudo tombstone v1";
const NUMBERS: u8 = 1;
const WINDOW: u8 = 2;
const USAGE: u8 = 4;

/// The remains of a retired key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Tombstone {
    pub(super) noted: Option<Noted>,
    /// The highest number that counts as received.
    pub(super) top: Option<u64>,
    pub(super) usage: Option<Usage>,
}

impl Tombstone {
    fn text(&self) -> Vec<u8> {
        let flag = |is_there: bool, flag: u8| if is_there { flag } else { 0 };
        let flags = flag(self.noted.is_some(), NUMBERS)
            | flag(self.top.is_some(), WINDOW)
            | flag(self.usage.is_some(), USAGE);
        let noted = self.noted.map(|noted| [noted.next, noted.iv_mask]);
        let usage = self.usage.map(|usage| [usage.bytes, usage.packets, usage.since_unix_s]);
        let numbers = noted.into_iter().flatten().chain(self.top).chain(usage.into_iter().flatten());
        let mut text = vec![flags];
        numbers.for_each(|number| put(&mut text, number));
        text
    }

    /// What the seal covers of it.
    pub(super) fn hash(&self, fingerprint: Fingerprint) -> [u8; 32] {
        hash(DOMAIN, &[fingerprint.as_bytes(), &self.text()])
    }

    /// Its record.
    pub(super) fn encode(&self, fingerprint: Fingerprint) -> Vec<u8> {
        let mut value = self.text();
        value.extend(&self.hash(fingerprint)[..CHECK_BYTES]);
        value
    }

    /// The tombstone in a record; `None` if the checksum is wrong.
    pub(super) fn decode(fingerprint: Fingerprint, value: &[u8]) -> Option<Self> {
        let (flags, rest) = value.split_first()?;
        let mut rest = rest;
        let mut number = |flag: u8| if flags & flag == 0 { Some(0) } else { take(&mut rest) };
        let noted = Noted { next: number(NUMBERS)?, iv_mask: number(NUMBERS)? };
        let top = number(WINDOW)?;
        let usage = Usage { bytes: number(USAGE)?, packets: number(USAGE)?, since_unix_s: number(USAGE)? };
        let has = |flag: u8| flags & flag != 0;
        let found = Self {
            noted: has(NUMBERS).then_some(noted),
            top: has(WINDOW).then_some(top),
            usage: has(USAGE).then_some(usage),
        };
        (found.encode(fingerprint) == value).then_some(found)
    }
}

fn put(text: &mut Vec<u8>, mut number: u64) {
    loop {
        let low = number.to_le_bytes()[0] & 0x7F;
        number >>= 7;
        text.push(if number == 0 { low } else { low | 0x80 });
        if number == 0 {
            return;
        }
    }
}

fn take(text: &mut &[u8]) -> Option<u64> {
    let mut number = 0;
    for shift in (0..64).step_by(7) {
        let (byte, rest) = text.split_first()?;
        *text = rest;
        number |= u64::from(byte & 0x7F) << shift;
        if byte & 0x80 == 0 {
            return Some(number);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: Fingerprint = Fingerprint::from_bytes([7; 32]);

    fn all() -> Vec<Tombstone> {
        let number = [0, 1, 127, 128, 1 << 48, u64::MAX];
        let parts = number.map(|n| Tombstone {
            noted: Some(Noted { next: n, iv_mask: n / 3 }),
            top: Some(n),
            usage: Some(Usage { bytes: n, packets: n / 5, since_unix_s: n / 7 }),
        });
        let some = |t: Tombstone, which: u8| Tombstone {
            noted: t.noted.filter(|_| which & 1 != 0),
            top: t.top.filter(|_| which & 2 != 0),
            usage: t.usage.filter(|_| which & 4 != 0),
        };
        parts.into_iter().flat_map(|t| (0..8).map(move |which| some(t, which))).collect()
    }

    #[test]
    fn tombstones_are_read_back_and_are_small() {
        for tombstone in all() {
            let value = tombstone.encode(KEY);
            assert_eq!(Tombstone::decode(KEY, &value), Some(tombstone));
            assert!(value.len() <= 69, "{tombstone:?} has {} bytes", value.len());
        }
        let usual = Tombstone { top: Some(1 << 32), ..Tombstone::default() };
        assert_eq!(usual.encode(KEY).len(), 14);
    }

    #[test]
    fn a_tombstone_with_any_flipped_bit_cut_or_under_another_key_is_refused() {
        for tombstone in all() {
            let value = tombstone.encode(KEY);
            for bit in 0..value.len() * 8 {
                let mut flipped = value.clone();
                flipped[bit / 8] ^= 1 << (bit % 8);
                assert_eq!(Tombstone::decode(KEY, &flipped), None, "bit {bit} of {tombstone:?}");
            }
            for length in 0..value.len() {
                assert_eq!(Tombstone::decode(KEY, &value[..length]), None);
            }
            assert_eq!(Tombstone::decode(Fingerprint::from_bytes([8; 32]), &value), None);
        }
    }
}
