//! Keys of pairs (a cipher and an integrity algorithm) in the library's form, and memory for their bursts.
//! All methods are safe.

use crate::ccm::CcmKey;
use crate::line::Line;
use crate::manager::Manager;
use crate::queue::QueueFunctions;
use crate::raw::{CipherBurst, CmacSubkeys, DesSchedule, HashBurst, HashOneBlock, KeyExp, XcbcKeyExp};
use crate::shape;
use subtle::ConstantTimeEq;
use testudo_crypto::{AesKey, Cipher, Direction, Integrity, KeyMaterial, Suite};
use zeroize::{Zeroize, Zeroizing};

/// Round keys of AES in both directions; 15 keys of 16 bytes at the most.
#[repr(C, align(64))]
pub(crate) struct AesKeys {
    encrypt: [u8; 240],
    decrypt: [u8; 240],
}

impl Drop for AesKeys {
    fn drop(&mut self) {
        self.encrypt.zeroize();
        self.decrypt.zeroize();
    }
}

impl AesKeys {
    /// The round keys for encryption, which CCM and counter mode use in both directions.
    pub(crate) fn encrypt(&self) -> *const u8 {
        self.encrypt.as_ptr()
    }
}

/// The round keys of DES, or of the three that 3DES applies: 16 of 8 bytes each.
type DesSchedules = [[u64; 16]; 3];

/// A cipher's key. Boxed, so that it never moves in memory.
enum CipherKey {
    Null,
    /// AES-CBC and, with its salt, AES-CTR.
    Aes(Box<AesKeys>),
    Des(Box<Zeroizing<DesSchedules>>),
    /// 3DES, with the addresses of the three schedules, as the library wants them.
    TripleDes {
        addresses: Box<[usize; 3]>,
        _schedules: Box<Zeroizing<DesSchedules>>,
    },
}

/// The states of HMAC's two digests after the key's block (RFC 2104 4): of MD5 the first 16 bytes of each, of
/// SHA-1 20, of SHA-256 all.
#[repr(C, align(64))]
struct HmacStates {
    inner: [u8; 32],
    outer: [u8; 32],
}

/// The same for SHA-384 and SHA-512.
#[repr(C, align(64))]
struct LongHmacStates {
    inner: [u8; 64],
    outer: [u8; 64],
}

/// Round keys of AES-128, and the two masks or keys for the last block: AES-XCBC's K2 and K3 (RFC 3566 4),
/// AES-CMAC's K1 and K2 (RFC 4493 2.3).
#[repr(C, align(64))]
struct BlockMacKeys {
    round_keys: [u8; 176],
    whole: [u8; 16],
    padded: [u8; 16],
}

/// An integrity algorithm's key. Boxed, so that it never moves in memory.
enum MacKey {
    None,
    Hmac(Box<HmacStates>),
    LongHmac(Box<LongHmacStates>),
    Block(Box<BlockMacKeys>),
}

impl Drop for MacKey {
    fn drop(&mut self) {
        match self {
            Self::None => {}
            Self::Hmac(states) => {
                [&mut states.inner, &mut states.outer].into_iter().for_each(Zeroize::zeroize)
            }
            Self::LongHmac(states) => {
                [&mut states.inner, &mut states.outer].into_iter().for_each(Zeroize::zeroize);
            }
            Self::Block(keys) => {
                keys.round_keys.zeroize();
                [&mut keys.whole, &mut keys.padded].into_iter().for_each(Zeroize::zeroize);
            }
        }
    }
}

/// Both keys of an SA, expanded by the library; zeroed when dropped.
pub(crate) struct ChainedKey {
    /// The [`Line`] that does its packets, by its place.
    pub(crate) line: usize,
    cipher: CipherKey,
    mac: MacKey,
    salt: Zeroizing<[u8; 4]>,
}

/// What the library's jobs point to of a key.
pub(crate) struct KeyPointers {
    /// Round keys for encryption, or schedules of DES.
    pub(crate) encrypt: *const u8,
    /// The same for decryption.
    pub(crate) decrypt: *const u8,
    /// The integrity algorithm's, in the order of the structure: two for HMAC.
    pub(crate) mac: [*const u8; 3],
    /// The first part of AES-CTR's nonce.
    pub(crate) salt: [u8; 4],
}

impl ChainedKey {
    #[inline]
    pub(crate) fn pointers(&self) -> KeyPointers {
        let (encrypt, decrypt) = match &self.cipher {
            CipherKey::Null => (std::ptr::null(), std::ptr::null()),
            CipherKey::Aes(keys) => (keys.encrypt.as_ptr(), keys.decrypt.as_ptr()),
            // Both directions have the same schedule.
            CipherKey::Des(schedules) => (schedules.as_ptr().cast(), schedules.as_ptr().cast()),
            CipherKey::TripleDes { addresses, .. } => (addresses.as_ptr().cast(), addresses.as_ptr().cast()),
        };
        let mac = match &self.mac {
            MacKey::None => [std::ptr::null(); 3],
            MacKey::Hmac(states) => [states.inner.as_ptr(), states.outer.as_ptr(), std::ptr::null()],
            MacKey::LongHmac(states) => [states.inner.as_ptr(), states.outer.as_ptr(), std::ptr::null()],
            MacKey::Block(keys) => [keys.round_keys.as_ptr(), keys.whole.as_ptr(), keys.padded.as_ptr()],
        };
        KeyPointers { encrypt, decrypt, mac, salt: *self.salt }
    }
}

/// The functions that the manager offered for this machine's instructions.
pub(crate) struct ChainedFunctions {
    /// For keys of 128, 192 and 256 bits.
    pub(crate) expand_aes: [KeyExp; 3],
    pub(crate) expand_des: DesSchedule,
    pub(crate) expand_xcbc: XcbcKeyExp,
    pub(crate) cmac_subkeys: CmacSubkeys,
    pub(crate) md5_block: HashOneBlock,
    pub(crate) sha1_block: HashOneBlock,
    pub(crate) sha256_block: HashOneBlock,
    pub(crate) sha384_block: HashOneBlock,
    pub(crate) sha512_block: HashOneBlock,
    /// Both without checks: `burst` says why none is missed.
    pub(crate) cipher: CipherBurst,
    pub(crate) hash: HashBurst,
    pub(crate) queue: QueueFunctions,
}

/// The functions, and the memory for bursts.
pub(crate) struct Chained {
    pub(crate) functions: ChainedFunctions,
    /// One for each suite and direction of which there ever was a key, at most one for each of
    /// [`Suite::measurable`].
    pub(crate) lines: Vec<Line>,
    /// The library left a burst unfinished, which it never should. Its manager may hold addresses of packets
    /// that are gone: it gets no further burst.
    pub(crate) is_broken: bool,
}

impl Chained {
    pub(crate) fn new(functions: ChainedFunctions) -> Self {
        Self { functions, lines: Vec::new(), is_broken: false }
    }

    /// The place of the line for a suite and direction, which is made if there is none.
    fn line(&mut self, suite: Suite, direction: Direction) -> Result<usize, String> {
        let is_it = |line: &Line| (line.suite, line.direction) == (suite, direction);
        if let Some(at) = self.lines.iter().position(is_it) {
            return Ok(at);
        }
        let no = || format!("{suite} does not go in bursts");
        let shape = shape::shape(suite, direction).ok_or_else(no)?;
        self.lines.push(Line::new(suite, direction, shape).ok_or_else(no)?);
        Ok(self.lines.len() - 1)
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
        &mut self,
        key: &KeyMaterial,
        direction: Direction,
    ) -> Result<ChainedKey, String> {
        let suite = key.suite();
        let chained = self.chained.as_mut().ok_or("this version's jobs are not known")?;
        let line = chained.line(suite, direction)?;
        let functions = &chained.functions;
        let cipher = match suite.cipher() {
            Cipher::Null => CipherKey::Null,
            Cipher::AesCbc(length) | Cipher::AesCtr(length) => {
                CipherKey::Aes(functions.expand_aes(length, key.key())?)
            }
            Cipher::DesCbc => CipherKey::Des(functions.expand_des(key.key())?),
            Cipher::TripleDesCbc => {
                let schedules = functions.expand_des(key.key())?;
                let addresses = schedules.each_ref().map(|schedule| schedule.as_ptr().expose_provenance());
                CipherKey::TripleDes { addresses: Box::new(addresses), _schedules: schedules }
            }
            _ => return Err(format!("{suite} does not go in bursts")),
        };
        let mac = functions.expand_mac(suite.integrity(), key.integrity_key())?;
        self.check()?;
        Ok(ChainedKey { line, cipher, mac, salt: key.nonce_salt() })
    }
}

impl Manager {
    /// Expands a key of AES-CCM.
    ///
    /// # Errors
    /// The library does not do it, refused the key, or did not do what it should.
    pub(crate) fn expand_ccm(&self, length: AesKey, key: &[u8]) -> Result<CcmKey, String> {
        let Chained { functions, .. } = self.chained.as_ref().ok_or("this version's jobs are not known")?;
        let round_keys = functions.expand_aes(length, key)?;
        self.check()?;
        CcmKey::new(length, round_keys).ok_or_else(|| "a key of another length".to_owned())
    }
}

impl ChainedFunctions {
    /// Expands a key of AES.
    ///
    /// # Errors
    /// It has another length, or the library did not do what it should.
    fn expand_aes(&self, length: AesKey, key: &[u8]) -> Result<Box<AesKeys>, String> {
        if key.len() != [16, 24, 32][length as usize] {
            return Err(format!("an AES key of {} bytes", key.len()));
        }
        let mut keys = Box::new(AesKeys { encrypt: [0; _], decrypt: [0; _] });
        let (encrypt, decrypt) = (keys.encrypt.as_mut_ptr(), keys.decrypt.as_mut_ptr());
        // SAFETY: `key` has the length that the function reads, just checked. Both arrays are aligned to 16
        // bytes (the structure to 64, the second array at 240) and hold the 15 round keys of the longest key.
        // Nothing is kept by the library.
        unsafe { self.expand_aes[length as usize](key.as_ptr().cast(), encrypt.cast(), decrypt.cast()) };
        // The first round keys begin with the cipher key itself (FIPS 197 5.2): proof that the expansion took
        // place, and here.
        match keys.encrypt[..key.len()].ct_eq(key).into() {
            true => Ok(keys),
            false => Err("the expanded key does not begin with the key".to_owned()),
        }
    }

    /// Expands one key of DES, or the three of 3DES.
    fn expand_des(&self, key: &[u8]) -> Result<Box<Zeroizing<DesSchedules>>, String> {
        // No schedule is this: 6 bits of each byte are of the key.
        let mut schedules = Box::new(Zeroizing::new([[u64::MAX; 16]; 3]));
        let (keys, rest) = key.as_chunks::<8>();
        if keys.is_empty() || keys.len() > schedules.len() || !rest.is_empty() {
            return Err(format!("a key of DES of {} bytes", key.len()));
        }
        for (key, schedule) in keys.iter().zip(schedules.iter_mut()) {
            // SAFETY: it reads 8 bytes of key and writes 16 round keys of 8 bytes, which `schedule` has.
            // Nothing is kept by the library.
            let error = unsafe { (self.expand_des)(schedule.as_mut_ptr(), key.as_ptr().cast()) };
            if error != 0 || schedule.contains(&u64::MAX) {
                return Err("the library did not expand a key of DES".to_owned());
            }
        }
        Ok(schedules)
    }

    fn expand_mac(&self, integrity: Integrity, key: &[u8]) -> Result<MacKey, String> {
        let short = |hash| {
            let mut states = Box::new(HmacStates { inner: [0; _], outer: [0; _] });
            expand_hmac::<64>(hash, key, &mut states.inner, &mut states.outer)?;
            Ok(MacKey::Hmac(states))
        };
        let long = |hash| {
            let mut states = Box::new(LongHmacStates { inner: [0; _], outer: [0; _] });
            expand_hmac::<128>(hash, key, &mut states.inner, &mut states.outer)?;
            Ok(MacKey::LongHmac(states))
        };
        match integrity {
            Integrity::HmacMd5 => short(self.md5_block),
            Integrity::HmacSha1 => short(self.sha1_block),
            Integrity::HmacSha256 => short(self.sha256_block),
            Integrity::HmacSha384 => long(self.sha384_block),
            Integrity::HmacSha512 => long(self.sha512_block),
            Integrity::AesXcbc => self.expand_xcbc(key),
            Integrity::AesCmac => self.expand_cmac(key),
            Integrity::None => Ok(MacKey::None),
            Integrity::Combined => Err("a combined mode does not go in bursts".to_owned()),
        }
    }

    fn expand_xcbc(&self, key: &[u8]) -> Result<MacKey, String> {
        let key: &[u8; 16] = key.try_into().map_err(|_| "an integrity key of another length")?;
        let mut keys = Box::new(BlockMacKeys { round_keys: [0; _], whole: [0; _], padded: [0; _] });
        let BlockMacKeys { round_keys, whole, padded } = &mut *keys;
        let (round_keys, whole) = (round_keys.as_mut_ptr().cast(), whole.as_mut_ptr().cast());
        // SAFETY: it reads a key of 16 bytes and writes 11 round keys and two keys of 16 bytes; the arrays
        // have these lengths and are aligned to 16 bytes. Nothing is kept by the library.
        unsafe { (self.expand_xcbc)(key.as_ptr().cast(), round_keys, whole, padded.as_mut_ptr().cast()) };
        written(keys)
    }

    fn expand_cmac(&self, key: &[u8]) -> Result<MacKey, String> {
        let aes = self.expand_aes(AesKey::Aes128, key)?;
        let mut keys = Box::new(BlockMacKeys { round_keys: [0; _], whole: [0; _], padded: [0; _] });
        keys.round_keys.copy_from_slice(&aes.encrypt[..176]);
        let BlockMacKeys { round_keys, whole, padded } = &mut *keys;
        let (whole, padded) = (whole.as_mut_ptr().cast(), padded.as_mut_ptr().cast());
        // SAFETY: it reads the 11 round keys and writes two masks of 16 bytes; the arrays have these lengths
        // and are aligned to 16 bytes. Nothing is kept by the library.
        unsafe { (self.cmac_subkeys)(round_keys.as_ptr().cast(), whole, padded) };
        written(keys)
    }
}

fn written(keys: Box<BlockMacKeys>) -> Result<MacKey, String> {
    let parts = [&keys.round_keys[..], &keys.whole, &keys.padded];
    if parts.iter().any(|part| part.iter().all(|byte| *byte == 0)) {
        return Err("the library did not expand the integrity key".to_owned());
    }
    Ok(MacKey::Block(keys))
}

/// The states after one block of `BLOCK` bytes of the key, XORed with 0x36 and 0x5C (RFC 2104 2). Both states
/// hold what `hash` writes.
fn expand_hmac<const BLOCK: usize>(
    hash: HashOneBlock,
    key: &[u8],
    inner: &mut [u8],
    outer: &mut [u8],
) -> Result<(), String> {
    if key.len() > BLOCK || inner.len().min(outer.len()) * 2 < BLOCK {
        return Err(format!("an integrity key of {} bytes", key.len()));
    }
    for (pad, state) in [(0x36, inner), (0x5C, outer)] {
        let mut block = Zeroizing::new([pad; BLOCK]);
        block.iter_mut().zip(key).for_each(|(byte, key)| *byte ^= key);
        // SAFETY: `hash` reads one block of its algorithm and writes a state of half a block at the most (64
        // bytes and 16, 20 or 32; 128 bytes and 64); both are there. Nothing is kept.
        unsafe { hash(block.as_ptr().cast(), state.as_mut_ptr().cast()) };
        if state.iter().all(|byte| *byte == 0) {
            return Err("the library did not expand the integrity key".to_owned());
        }
    }
    Ok(())
}
