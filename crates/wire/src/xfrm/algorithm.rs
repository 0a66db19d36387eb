//! Algorithms with their keys: a name of the kernel's crypto API, sizes in bits, key bytes.
//!
//! Which algorithm a name means is not decided here: `ip` says `cbc(aes)` where strongSwan says `aes`.

use super::attribute::{Value, too_short};
use crate::netlink::ack::Refusal;
use crate::netlink::errno::Errno;
use zeroize::Zeroizing;

/// Bytes of a name's field; one of them is the NUL at its end.
pub const NAME_BYTES: usize = 64;

/// A key, wiped when it is dropped. Not shown by `Debug`.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Key {
    bytes: Zeroizing<Vec<u8>>,
    bits: u32,
}

impl Key {
    /// A key of whole bytes.
    ///
    /// # Panics
    /// If it has 2^29 bytes or more.
    #[must_use]
    pub fn new(bytes: Zeroizing<Vec<u8>>) -> Self {
        let bits = u32::try_from(bytes.len()).ok().and_then(|count| count.checked_mul(8));
        Self { bits: bits.unwrap_or_else(|| unreachable!("a key of {} bytes", bytes.len())), bytes }
    }

    /// Its bytes. With a salt at their end where the algorithm has one (RFC 4106 8.1).
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Its length in bits, as the message says it. No algorithm has a key whose length is no multiple of 8.
    #[must_use]
    pub const fn bits(&self) -> u32 {
        self.bits
    }

    /// The key at the start of `bytes`, which may be longer.
    fn read(bits: u32, bytes: &[u8]) -> Result<Self, Refusal> {
        let length = usize::try_from(bits.div_ceil(8)).unwrap_or(usize::MAX);
        let key = bytes.get(..length).ok_or_else(|| {
            let text = format!("the key has {bits} bits, and there are {} bytes", bytes.len());
            Refusal::new(Errno::INVAL, text)
        })?;
        Ok(Self { bytes: Zeroizing::new(key.to_vec()), bits })
    }
}

impl std::fmt::Debug for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Key of {} bits", self.bits)
    }
}

/// The name in the first 64 bytes, up to its NUL.
fn read_name(bytes: &[u8]) -> Result<String, Refusal> {
    let field = bytes.get(..NAME_BYTES).unwrap_or(bytes);
    let end = field.iter().position(|byte| *byte == 0);
    let end =
        end.ok_or_else(|| Refusal::new(Errno::INVAL, "the algorithm's name has no end within 64 bytes"))?;
    let name = std::str::from_utf8(&field[..end]).ok().filter(|name| name.is_ascii());
    let name = name.ok_or_else(|| Refusal::new(Errno::INVAL, "the algorithm's name is not ASCII"))?;
    Ok(name.to_owned())
}

/// Name, sizes, key. Names are cut to 63 bytes, as the kernel cuts them.
fn build(name: &str, sizes: &[u32], key: &Key) -> Zeroizing<Vec<u8>> {
    let name = &name.as_bytes()[..name.len().min(NAME_BYTES - 1)];
    // Of the final size from the start: a vector that grows leaves copies behind.
    let mut bytes = Zeroizing::new(Vec::with_capacity(NAME_BYTES + 4 * sizes.len() + key.bytes.len()));
    bytes.extend_from_slice(name);
    bytes.resize(NAME_BYTES, 0);
    sizes.iter().for_each(|size| bytes.extend_from_slice(&size.to_ne_bytes()));
    bytes.extend_from_slice(&key.bytes);
    bytes
}

/// `struct xfrm_algo`: cipher, integrity algorithm of the default ICV length, or compression.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Algorithm {
    /// Its name.
    pub name: String,
    /// Its key.
    pub key: Key,
}

/// `struct xfrm_algo_auth` and `struct xfrm_algo_aead`, which are alike: an algorithm with the length of its
/// ICV.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct AlgorithmWithIcv {
    /// Its name.
    pub name: String,
    /// Its key.
    pub key: Key,
    /// Bits of the ICV; for an integrity algorithm, 0 is the default.
    pub icv_bits: u32,
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().map(|word| u32::from_ne_bytes(*word))
}

impl Algorithm {
    /// Bytes before the key.
    pub const FIXED_BYTES: usize = NAME_BYTES + 4;
}

impl Value for Algorithm {
    fn read(bytes: &[u8]) -> Result<Self, Refusal> {
        let short = || too_short(bytes.len(), Self::FIXED_BYTES);
        let bits = word(bytes, NAME_BYTES).ok_or_else(short)?;
        Ok(Self { name: read_name(bytes)?, key: Key::read(bits, &bytes[Self::FIXED_BYTES..])? })
    }

    fn bytes(&self) -> Zeroizing<Vec<u8>> {
        build(&self.name, &[self.key.bits], &self.key)
    }
}

impl AlgorithmWithIcv {
    /// Bytes before the key.
    pub const FIXED_BYTES: usize = NAME_BYTES + 8;
}

impl Value for AlgorithmWithIcv {
    fn read(bytes: &[u8]) -> Result<Self, Refusal> {
        let short = || too_short(bytes.len(), Self::FIXED_BYTES);
        let icv_bits = word(bytes, NAME_BYTES + 4).ok_or_else(short)?;
        let bits = word(bytes, NAME_BYTES).ok_or_else(short)?;
        let key = Key::read(bits, &bytes[Self::FIXED_BYTES..])?;
        Ok(Self { name: read_name(bytes)?, key, icv_bits })
    }

    fn bytes(&self) -> Zeroizing<Vec<u8>> {
        build(&self.name, &[self.key.bits, self.icv_bits], &self.key)
    }
}
