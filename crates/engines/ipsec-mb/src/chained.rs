//! Keys of AES-CBC and HMAC in the library's form, and memory for their bursts. All methods are safe.

use crate::burst::{self, LINES, Line};
use crate::manager::Manager;
use crate::raw::{CipherBurst, HashBurst, HashOneBlock, KeyExp};
use subtle::ConstantTimeEq;
use testudo_crypto::{Direction, Integrity, Suite};
use zeroize::{Zeroize, Zeroizing};

/// Bytes of a block of SHA-1 and SHA-256.
const HASH_BLOCK_BYTES: usize = 64;

/// Round keys of AES-128 or AES-256 in both directions; 15 keys of 16 bytes at the most.
#[repr(C, align(64))]
pub(crate) struct AesKeys {
    pub(crate) encrypt: [u8; 240],
    pub(crate) decrypt: [u8; 240],
}

/// The states of HMAC's two digests after the key's block (RFC 2104 4); for SHA-1 the first 20 bytes of each.
#[repr(C, align(64))]
pub(crate) struct HmacStates {
    pub(crate) inner: [u8; 32],
    pub(crate) outer: [u8; 32],
}

/// Both keys of an SA, expanded by the library; zeroed when dropped. Boxed, so that they never move in
/// memory.
pub(crate) struct ChainedKey {
    /// The [`Line`] that does its packets.
    pub(crate) line: usize,
    /// `None` if the suite does not encrypt.
    pub(crate) aes: Option<Box<AesKeys>>,
    pub(crate) hmac: Box<HmacStates>,
}

impl Drop for ChainedKey {
    fn drop(&mut self) {
        if let Some(aes) = &mut self.aes {
            aes.encrypt.zeroize();
            aes.decrypt.zeroize();
        }
        self.hmac.inner.zeroize();
        self.hmac.outer.zeroize();
    }
}

/// The functions that the manager offered for this machine's instructions.
pub(crate) struct ChainedFunctions {
    pub(crate) expand_128: KeyExp,
    pub(crate) expand_256: KeyExp,
    pub(crate) sha1_block: HashOneBlock,
    pub(crate) sha256_block: HashOneBlock,
    /// Both without checks: `burst` says why none is missed.
    pub(crate) cipher: CipherBurst,
    pub(crate) hash: HashBurst,
}

/// The functions, and the memory for bursts.
pub(crate) struct Chained {
    pub(crate) functions: ChainedFunctions,
    pub(crate) lines: Box<[Line; LINES]>,
    /// The library left a burst unfinished, which it never should. Its manager may hold addresses of packets
    /// that are gone: it gets no further burst.
    pub(crate) is_broken: bool,
}

impl Chained {
    pub(crate) fn new(functions: ChainedFunctions) -> Self {
        Self { functions, lines: Line::all(), is_broken: false }
    }

    /// Wipes the digests of the last bursts. Jobs still hold only addresses.
    pub(crate) fn wipe(&mut self) {
        self.lines.iter_mut().for_each(Line::wipe);
    }
}

impl Manager {
    /// Expands both keys of a pair.
    ///
    /// # Errors
    /// The library does not do it, refused a key, or did not do what it should.
    pub(crate) fn expand_chained(
        &self,
        suite: Suite,
        direction: Direction,
        cipher: &[u8],
        integrity: &[u8],
    ) -> Result<ChainedKey, String> {
        let Chained { functions, .. } = self.chained.as_ref().ok_or("this version's jobs are not known")?;
        let line = burst::line(suite, direction).ok_or_else(|| format!("{suite} does not go in bursts"))?;
        let (hash, state_bytes) = match suite.integrity() {
            Integrity::HmacSha1 => (functions.sha1_block, 20),
            Integrity::HmacSha256 => (functions.sha256_block, 32),
            _ => return Err(format!("{suite} does not go in bursts")),
        };
        let expand = match cipher.len() {
            0 => None,
            16 => Some(functions.expand_128),
            32 => Some(functions.expand_256),
            other => return Err(format!("AES keys of {other} bytes are not supported")),
        };
        let aes = expand.map(|expand| self.expand_aes(expand, cipher)).transpose()?;
        let hmac = expand_hmac(hash, state_bytes, integrity)?;
        self.check()?;
        Ok(ChainedKey { line, aes, hmac })
    }

    fn expand_aes(&self, expand: KeyExp, key: &[u8]) -> Result<Box<AesKeys>, String> {
        let mut keys = Box::new(AesKeys { encrypt: [0; _], decrypt: [0; _] });
        let (encrypt, decrypt) = (keys.encrypt.as_mut_ptr(), keys.decrypt.as_mut_ptr());
        // SAFETY: `key` has the length that `expand` reads, which was matched to it. Both arrays are aligned
        // to 16 bytes (the structure to 64, the second array at 240) and hold the 15 round keys of the
        // longest key. Nothing is kept by the library.
        unsafe { expand(key.as_ptr().cast(), encrypt.cast(), decrypt.cast()) };
        // The first round key is the cipher key itself (FIPS 197 5.2): proof that the expansion took place,
        // and here.
        if keys.encrypt[..key.len()].ct_eq(key).into() {
            Ok(keys)
        } else {
            keys.encrypt.zeroize();
            keys.decrypt.zeroize();
            Err("the expanded key does not begin with the key".to_owned())
        }
    }
}

/// The states after one block of the key, XORed with 0x36 and 0x5C (RFC 2104 2).
fn expand_hmac(hash: HashOneBlock, state_bytes: usize, key: &[u8]) -> Result<Box<HmacStates>, String> {
    let mut states = Box::new(HmacStates { inner: [0; _], outer: [0; _] });
    for (pad, state) in [(0x36, &mut states.inner), (0x5C, &mut states.outer)] {
        let mut block = Zeroizing::new([pad; HASH_BLOCK_BYTES]);
        if key.len() != state_bytes {
            return Err(format!("an integrity key of {} bytes", key.len()));
        }
        block.iter_mut().zip(key).for_each(|(byte, key)| *byte ^= key);
        // SAFETY: `hash` reads one block of 64 bytes and writes a state of 20 or 32 bytes; both are there.
        // Nothing is kept.
        unsafe { hash(block.as_ptr().cast(), state.as_mut_ptr().cast()) };
        if state.iter().all(|byte| *byte == 0) {
            return Err("the library did not expand the integrity key".to_owned());
        }
    }
    Ok(states)
}
