//! AES-CBC and HMAC in the library's synchronous bursts: many packets side by side, one in each SIMD lane. All methods are safe.
//!
//! A burst takes an array of jobs, checks all of them, works them off and returns. Encryption of CBC and HMAC are chains that no
//! instruction can hurry, so that packets are done in parallel, those of different keys too; decryption of CBC goes block beside block.
//!
//! An extended sequence number's high half is hashed behind the text and is no part of the packet. As the library hashes one run of
//! bytes, it stands where the ICV will be, or was, for as long as that takes.

use crate::manager::{ICV_BYTES, Icv, Manager, same_icv};
use crate::raw::{
    AUTH_HMAC_SHA_1, AUTH_HMAC_SHA_256, CIPHER_CBC, CipherBurst, DIR_DECRYPT, DIR_ENCRYPT, HashBurst,
    HashOneBlock, ImbJob, KeyExp,
};
use std::ffi::c_uint;
use subtle::ConstantTimeEq;
use testudo_crypto::{EspParts, Suite};
use zeroize::{Zeroize, Zeroizing};

/// Packets in a burst at the most; the library would take 128.
pub(crate) const BURST_PACKETS: usize = 64;

/// The longest text: the library counts bytes in 16 bits, and adds header, IV and the high half to it. Every IP datagram's fits.
pub(crate) const MAX_TEXT_BYTES: usize = 65_500;

/// Bytes of a block of SHA-1 and SHA-256.
const HASH_BLOCK_BYTES: usize = 64;

/// Round keys of AES-128 or AES-256 in both directions; 15 keys of 16 bytes at the most.
#[repr(C, align(64))]
struct AesKeys {
    encrypt: [u8; 240],
    decrypt: [u8; 240],
}

/// The states of HMAC's two digests after the key's block (RFC 2104 4); of SHA-1 the first 20 bytes each.
#[repr(C, align(64))]
struct HmacStates {
    inner: [u8; 32],
    outer: [u8; 32],
}

/// Both keys of an SA, expanded by the library; zeroed when dropped. Boxed, so that they never move in memory.
pub(crate) struct ChainedKey {
    suite: Suite,
    aes: Option<Box<AesKeys>>,
    hmac: Box<HmacStates>,
}

impl ChainedKey {
    /// The suite that it is for.
    pub(crate) fn suite(&self) -> Suite {
        self.suite
    }
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
    pub(crate) cipher: CipherBurst,
    pub(crate) hash: HashBurst,
}

/// Functions, and room for a burst's jobs.
pub(crate) struct Chained {
    functions: ChainedFunctions,
    jobs: Box<[ImbJob; BURST_PACKETS]>,
    digests: Box<[Icv; BURST_PACKETS]>,
}

/// A packet in a burst.
pub(crate) struct Packet<'a> {
    pub(crate) key: &'a ChainedKey,
    pub(crate) esp: EspParts<'a>,
    pub(crate) state: State,
}

/// What has become of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum State {
    /// As it was.
    Untouched,
    /// Sealed, or opened.
    Done,
    /// Its ICV is wrong; it was not decrypted.
    Forged,
    /// The library left its work half done, which it never does; the text is wiped.
    Spoiled,
}

/// A burst of one suite; gaps are allowed.
pub(crate) type Burst<'a> = [Option<Packet<'a>>; BURST_PACKETS];

impl Chained {
    pub(crate) fn new(functions: ChainedFunctions) -> Self {
        Self { functions, jobs: Box::new([ImbJob::EMPTY; _]), digests: Box::new([[0; _]; _]) }
    }

    /// Forgets the digests of the last burst. What its jobs still hold are addresses.
    pub(crate) fn wipe(&mut self) {
        self.digests.zeroize();
    }
}

impl Manager {
    /// Expands both keys of a suite that is no AEAD.
    ///
    /// # Errors
    /// The library does not do it, refused a key, or did not do what it should.
    pub(crate) fn expand_chained(
        &self,
        suite: Suite,
        cipher: &[u8],
        integrity: &[u8],
    ) -> Result<ChainedKey, String> {
        let functions = &self.chained.as_ref().ok_or("this version's jobs are not known")?.functions;
        let (hash, state_bytes) = match suite {
            Suite::Aes128Sha1 | Suite::NullSha1 => (functions.sha1_block, 20),
            Suite::Aes256Sha256 => (functions.sha256_block, 32),
            Suite::Aes128Gcm16 | Suite::Aes256Gcm16 | Suite::ChaCha20Poly1305 => {
                return Err(format!("{suite} has no integrity key"));
            }
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
        Ok(ChainedKey { suite, aes, hmac })
    }

    fn expand_aes(&self, expand: KeyExp, key: &[u8]) -> Result<Box<AesKeys>, String> {
        let mut keys = Box::new(AesKeys { encrypt: [0; _], decrypt: [0; _] });
        let (encrypt, decrypt) = (keys.encrypt.as_mut_ptr(), keys.decrypt.as_mut_ptr());
        // SAFETY: `key` has the length that `expand` reads, which was matched to it. Both arrays are aligned to 16 bytes (the
        // structure to 64, the second array at 240) and hold the 15 round keys of the longest key. Nothing is kept by the library.
        unsafe { expand(key.as_ptr().cast(), encrypt.cast(), decrypt.cast()) };
        // The first round key is the cipher key itself (FIPS 197 5.2): proof that the expansion took place, and here.
        if keys.encrypt[..key.len()].ct_eq(key).into() {
            Ok(keys)
        } else {
            keys.encrypt.zeroize();
            keys.decrypt.zeroize();
            Err("the expanded key does not begin with the key".to_owned())
        }
    }

    /// Encrypts and authenticates: every packet ends as done, or as it was.
    pub(crate) fn seal_burst(&mut self, burst: &mut Burst<'_>) {
        if !self.cipher_burst(burst, DIR_ENCRYPT) {
            return;
        }
        let is_hashed = self.hash_burst(burst);
        let Some(chained) = &self.chained else { return };
        for (packet, digest) in burst.iter_mut().flatten().zip(chained.digests.iter()) {
            if is_hashed {
                let icv = &mut packet.esp.packet[packet.esp.icv_at..];
                icv.iter_mut().zip(digest).for_each(|(to, from)| *to = *from);
                packet.state = State::Done;
            } else {
                packet.spoil();
            }
        }
    }

    /// Verifies, and decrypts what is authentic.
    pub(crate) fn open_burst(&mut self, burst: &mut Burst<'_>) {
        // The ICVs that came, which the high halves take the places of for a while.
        let mut received = [[0; ICV_BYTES]; BURST_PACKETS];
        for (packet, icv) in burst.iter().flatten().zip(&mut received) {
            icv.iter_mut().zip(&packet.esp.packet[packet.esp.icv_at..]).for_each(|(to, from)| *to = *from);
        }
        let is_hashed = self.hash_burst(burst);
        let Some(chained) = &self.chained else { return };
        let mut digests = chained.digests.iter();
        for (packet, icv) in burst.iter_mut().flatten().zip(&received) {
            let behind = &mut packet.esp.packet[packet.esp.icv_at..];
            behind.iter_mut().zip(icv).for_each(|(to, from)| *to = *from);
            let Some(digest) = digests.next().filter(|_| is_hashed) else { continue };
            let mut expected = [0; ICV_BYTES];
            expected[..behind.len()].copy_from_slice(&digest[..behind.len()]);
            packet.state = if same_icv(icv, &expected) { State::Done } else { State::Forged };
        }
        if is_hashed {
            self.cipher_burst(burst, DIR_DECRYPT);
        }
    }

    /// Hashes each packet and, behind it, the high half, which is left there. `false` if the library refused: it checks all jobs
    /// before it begins with one.
    fn hash_burst(&mut self, burst: &mut Burst<'_>) -> bool {
        let manager = self.pointer();
        let Some(Chained { functions, jobs, digests }) = &mut self.chained else { return false };
        let mut algorithm = AUTH_HMAC_SHA_1;
        let mut count: u32 = 0;
        for ((packet, job), digest) in burst.iter_mut().flatten().zip(jobs.iter_mut()).zip(digests.iter_mut())
        {
            algorithm = hash_algorithm(packet.key.suite);
            let esp = &mut packet.esp;
            let mut length = esp.icv_at;
            if let Some(high_half) = esp.high_half {
                // The ICV, 12 bytes or more, stands here.
                esp.packet[length..length + high_half.len()].copy_from_slice(&high_half);
                length += high_half.len();
            }
            // If the library should ever return without computing, this compares as wrong whatever was received, but for chance.
            digest.iter_mut().zip(&esp.packet[esp.icv_at..]).for_each(|(to, from)| *to = !*from);
            *job = ImbJob {
                src: esp.packet.as_ptr(),
                msg_len_to_hash_in_bytes: length as u64,
                auth_tag_output: digest.as_mut_ptr(),
                auth_tag_output_len_in_bytes: packet.key.suite.icv_bytes() as u64,
                hashed_auth_key_xor_ipad: packet.key.hmac.inner.as_ptr(),
                hashed_auth_key_xor_opad: packet.key.hmac.outer.as_ptr(),
                hash_alg: algorithm,
                ..ImbJob::EMPTY
            };
            count += 1;
        }
        if count == 0 {
            return true;
        }
        // SAFETY: `hash` belongs to the manager, which is alive, and whose version has jobs of this layout. The first `count` jobs
        // were just made: each reads `length` bytes of its packet (within the slice that the high half was written to), the key's
        // states (as long as the algorithm's), and writes its own 16-byte digest, 12 bytes or all of it. Packets, keys and digests
        // are borrowed through the call; the call ends all jobs, so that the manager keeps none. No safe binding exists.
        unsafe { (functions.hash)(manager, jobs.as_mut_ptr(), count, algorithm) == count }
    }

    /// Encrypts the IV's place and the text of packets as they were, or decrypts the text of packets that are authentic, in place.
    /// `false` if the library refused: it checks all jobs before it begins with one.
    fn cipher_burst(&mut self, burst: &mut Burst<'_>, direction: c_uint) -> bool {
        let manager = self.pointer();
        let Some(Chained { functions, jobs, .. }) = &mut self.chained else { return false };
        let zeros = [0; 16];
        let (mut key_bytes, mut count): (c_uint, u32) = (0, 0);
        for packet in burst.iter_mut().flatten() {
            let Some(aes) = &packet.key.aes else { return true };
            let esp = &mut packet.esp;
            let start = esp.packet.as_mut_ptr();
            let (from, iv) = match direction {
                DIR_ENCRYPT => (esp.iv_at, zeros.as_ptr()),
                _ => (esp.text_at, start.wrapping_add(esp.iv_at).cast_const()),
            };
            let (text, length) = (start.wrapping_add(from), esp.icv_at - from);
            if length == 0 || (direction == DIR_DECRYPT && packet.state != State::Done) {
                continue;
            }
            let Some(job) = jobs.get_mut(count as usize) else { return false };
            key_bytes = if packet.key.suite.key_bytes() == 16 { 16 } else { 32 };
            *job = ImbJob {
                enc_keys: aes.encrypt.as_ptr().cast(),
                dec_keys: aes.decrypt.as_ptr().cast(),
                key_len_in_bytes: key_bytes.into(),
                src: text,
                dst: text,
                msg_len_to_cipher_in_bytes: length as u64,
                iv,
                iv_len_in_bytes: 16,
                cipher_mode: CIPHER_CBC,
                cipher_direction: direction,
                ..ImbJob::EMPTY
            };
            count += 1;
        }
        if count == 0 {
            return true;
        }
        // SAFETY: `cipher` belongs to the manager, which is alive, and whose version has jobs of this layout. The first `count` jobs
        // were just made: each reads and writes `length` bytes of its own packet in place, a multiple of 16, and reads 16 bytes of
        // IV, both within the packet (`Job::esp` checked lengths and places), and the round keys, of the size that `key_bytes`
        // says: a burst is of one suite. Everything is borrowed through the call; the call ends all jobs, so that the manager
        // keeps none. No safe binding exists.
        let done = unsafe {
            (functions.cipher)(manager, jobs.as_mut_ptr(), count, CIPHER_CBC, direction, key_bytes)
        };
        if done == count {
            return true;
        }
        // Refused before anything was touched: what was authentic stays encrypted, and is left to the next engine.
        let state = if done == 0 { State::Untouched } else { State::Spoiled };
        for packet in burst.iter_mut().flatten().filter(|p| p.state != State::Forged) {
            packet.state = state;
            if state == State::Spoiled {
                packet.spoil();
            }
        }
        false
    }
}

impl Packet<'_> {
    /// Wipes what is neither plaintext nor ciphertext for sure, so that nobody takes it for either.
    fn spoil(&mut self) {
        self.state = State::Spoiled;
        self.esp.packet[self.esp.iv_at..].fill(0);
    }
}

fn hash_algorithm(suite: Suite) -> c_uint {
    match suite {
        Suite::Aes256Sha256 => AUTH_HMAC_SHA_256,
        _ => AUTH_HMAC_SHA_1,
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
        // SAFETY: `hash` reads one block of 64 bytes and writes a state of 20 or 32 bytes; both are there. Nothing is kept.
        unsafe { hash(block.as_ptr().cast(), state.as_mut_ptr().cast()) };
        if state.iter().all(|byte| *byte == 0) {
            return Err("the library did not expand the integrity key".to_owned());
        }
    }
    Ok(states)
}
