//! What a suite is to the kernel.

use crate::parts::{MOST_PARTS, Parts, power_of_two_up_to};
use testudo_crypto::{AesKey, Cipher, Direction, Integrity, KeyMaterial, Suite};
use zeroize::Zeroizing;

/// How a job is laid out for the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Layout {
    /// The packet from its header on, and the number's high half behind it. Of the cipher in CBC mode the
    /// IV's field is the first block.
    Pair(Mode),
    /// Additional data padded to 16 bytes, then the text.
    Gcm,
    /// Additional data alone, put together of what AES-GMAC authenticates.
    Gmac,
}

/// The mode of a pair's cipher.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Nothing is encrypted.
    Null,
    Cbc,
    Ctr,
}

/// A suite in one direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Work {
    pub suite: Suite,
    pub direction: Direction,
    pub layout: Layout,
    /// The kernel's number for both algorithms, the direction and the length of the AES key (`portable.cl`).
    pub kind: u32,
}

/// Of a kind: the kernel writes frames first.
const FRAMES: u32 = 1 << 17;

/// Words of a raw key that an AES key has.
const fn aes_words(key: AesKey) -> u32 {
    match key {
        AesKey::Aes128 => 4,
        AesKey::Aes192 => 6,
        AesKey::Aes256 => 8,
    }
}

impl Work {
    /// `None` for a suite that the kernel does not do.
    pub(crate) fn of(suite: Suite, direction: Direction) -> Option<Self> {
        let (cipher, key, layout) = match suite.cipher() {
            Cipher::Null => (0, 0, Layout::Pair(Mode::Null)),
            Cipher::AesCbc(key) => (1, aes_words(key), Layout::Pair(Mode::Cbc)),
            Cipher::AesCtr(key) => (2, aes_words(key), Layout::Pair(Mode::Ctr)),
            Cipher::TripleDesCbc => (3, 0, Layout::Pair(Mode::Cbc)),
            Cipher::AesGcm(key) | Cipher::AesGcmImplicitIv(key) | Cipher::AesGcmVpe(key) => {
                (4, aes_words(key), Layout::Gcm)
            }
            Cipher::AesGmac(key) => (4, aes_words(key), Layout::Gmac),
            _ => return None,
        };
        let integrity = match suite.integrity() {
            Integrity::Combined | Integrity::None => 0,
            Integrity::HmacMd5 => 1,
            Integrity::HmacSha1 => 2,
            Integrity::HmacSha256 => 3,
            Integrity::HmacSha384 => 4,
            Integrity::HmacSha512 => 5,
            Integrity::AesXcbc | Integrity::AesCmac => return None,
        };
        let opens = u32::from(direction == Direction::Open);
        let kind = cipher | integrity << 8 | opens << 16 | key << 24;
        Some(Self { suite, direction, layout, kind })
    }
}

impl Work {
    /// The same of packets whose frames are written first.
    pub(crate) const fn framed(self) -> Self {
        Self { kind: self.kind | FRAMES, ..self }
    }

    /// How many simple steps a lane does for a byte, about: what makes suites differ.
    pub(crate) fn steps_per_byte(&self) -> u64 {
        self.cipher_steps() + self.integrity_steps()
    }

    /// The cipher's of these, and those of an authentication that is the cipher's.
    fn cipher_steps(&self) -> u64 {
        // Rounds of AES are 16 look-ups and as many XORs, for 16 bytes; of DES 8 and some, for 8 bytes.
        let aes = |key| match key {
            AesKey::Aes128 => 25,
            AesKey::Aes192 => 30,
            AesKey::Aes256 => 35,
        };
        // GHASH is 32 look-ups of 16 bytes for a block.
        const GHASH: u64 = 20;
        match self.suite.cipher() {
            Cipher::AesCbc(key) | Cipher::AesCtr(key) => aes(key),
            Cipher::AesGcm(key) | Cipher::AesGcmImplicitIv(key) | Cipher::AesGcmVpe(key) => aes(key) + GHASH,
            Cipher::AesGmac(_) => GHASH,
            Cipher::TripleDesCbc => 180,
            _ => 0,
        }
    }

    fn integrity_steps(&self) -> u64 {
        match self.suite.integrity() {
            Integrity::HmacMd5 => 7,
            Integrity::HmacSha1 => 12,
            Integrity::HmacSha256 => 25,
            Integrity::HmacSha384 | Integrity::HmacSha512 => 31,
            _ => 0,
        }
    }

    /// Whether several lanes may share a packet: in counter mode and AES-GCM, and in CBC mode when it is
    /// opened. What CBC mode seals is a chain, and so is HMAC.
    pub(crate) fn is_divided(&self) -> bool {
        match self.layout {
            Layout::Pair(Mode::Cbc) => self.direction == Direction::Open,
            Layout::Pair(Mode::Ctr) | Layout::Gcm | Layout::Gmac => true,
            Layout::Pair(Mode::Null) => false,
        }
    }

    /// The most lanes for a packet. One of them does the hash: the others are of no use as soon as they are
    /// done in half of its time.
    pub(crate) fn most_parts(&self) -> usize {
        let ratio = (2 * self.cipher_steps()).checked_div(self.integrity_steps());
        let most = ratio.and_then(|ratio| usize::try_from(ratio).ok()).unwrap_or(MOST_PARTS);
        power_of_two_up_to(most.min(MOST_PARTS))
    }
}

/// What a packet is to the kernel, for models of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KernelWork {
    /// Simple steps for a byte: of the cipher, which lanes share, and of the hash, which is one lane's.
    pub cipher_steps: u64,
    /// Those of the hash.
    pub hash_steps: u64,
    /// Lanes that share the packet.
    pub lanes: usize,
}

/// What a packet of `bytes` bytes is to the kernel in work-groups of `group_lanes`; `None` of a suite that it
/// does not do.
#[must_use]
pub fn kernel_work(
    suite: Suite,
    direction: Direction,
    bytes: usize,
    group_lanes: usize,
) -> Option<KernelWork> {
    let work = Work::of(suite, direction)?;
    let lanes = Parts::ByLength.of(&work, bytes, group_lanes.max(1));
    Some(KernelWork { cipher_steps: work.cipher_steps(), hash_steps: work.integrity_steps(), lanes })
}

/// Words of a [`RawKey`], and where in it the integrity algorithm's key and the SPI are.
pub(crate) const RAW_KEY_WORDS: usize = 25;
const RAW_INTEGRITY_AT: usize = 8;
const RAW_SPI_AT: usize = 24;

/// A key as the kernel takes it: the cipher's, then the integrity algorithm's, each with zeros behind, then
/// the SPI of its frames.
#[repr(C)]
pub(crate) struct RawKey(pub(crate) [u32; RAW_KEY_WORDS]);

impl zeroize::Zeroize for RawKey {
    fn zeroize(&mut self) {
        self.0.zeroize();
    }
}

impl RawKey {
    /// `None` if the key is longer than any of ours.
    pub(crate) fn new(material: &KeyMaterial) -> Option<Zeroizing<Self>> {
        let mut raw = Zeroizing::new(Self([0; RAW_KEY_WORDS]));
        let (keys, spi) = raw.0.split_at_mut(RAW_SPI_AT);
        if let (Some(word), Some(frame)) = (spi.first_mut(), material.frame()) {
            *word = u32::from_le_bytes(frame.spi());
        }
        let (cipher, integrity) = keys.split_at_mut(RAW_INTEGRITY_AT);
        for (words, bytes) in [(cipher, material.key()), (integrity, material.integrity_key())] {
            let (chunks, rest) = bytes.as_chunks::<4>();
            if chunks.len() > words.len() || !rest.is_empty() {
                return None;
            }
            words.iter_mut().zip(chunks).for_each(|(word, chunk)| *word = u32::from_le_bytes(*chunk));
        }
        Some(raw)
    }
}
