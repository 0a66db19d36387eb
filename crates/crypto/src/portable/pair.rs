//! The portable engine's pairs of a cipher and an integrity algorithm: encrypt, then authenticate (RFC 4303
//! 3.3.2.1); authenticate, then decrypt.

use super::cbc::CbcKey;
use super::ctr::CtrKey;
use super::mac::MacKey;
use crate::{Cipher, Direction, JobParts, JobStatus, KeyMaterial};

/// Both keys of an SA for one direction.
pub(super) struct PairKey {
    cipher: CipherKey,
    mac: MacKey,
    direction: Direction,
}

enum CipherKey {
    Null,
    Cbc(CbcKey),
    /// AES-CTR, and its salt.
    Ctr(CtrKey, [u8; 4]),
}

impl PairKey {
    /// The keys of an SA; `None` for a combined mode, or if memory runs out.
    pub(super) fn new(material: &KeyMaterial, direction: Direction) -> Option<Self> {
        let mac = MacKey::new(material.suite().integrity(), material.integrity_key())?;
        let cipher = match material.suite().cipher() {
            Cipher::Null => CipherKey::Null,
            Cipher::AesCtr(_) => CipherKey::Ctr(CtrKey::new(material.key())?, *material.nonce_salt()),
            cipher => CipherKey::Cbc(CbcKey::new(cipher, material.key(), direction)?),
        };
        Some(Self { cipher, mac, direction })
    }

    /// Does one packet. Opening decrypts only what is authentic.
    pub(super) fn run(&self, parts: JobParts<'_>) -> JobStatus {
        let JobParts { packet, iv_at, text_at, icv_at, high_half, .. } = parts;
        let high_half = high_half.as_ref().map_or(&[][..], |half| half);
        let (packet, icv) = packet.split_at_mut(icv_at);
        match self.direction {
            Direction::Seal => {
                if self.cipher.encrypt(packet, iv_at, text_at).is_none() {
                    return JobStatus::Fault;
                }
                self.mac.write([packet, high_half], icv);
                JobStatus::Done
            }
            Direction::Open if !self.mac.is_right([packet, high_half], icv) => {
                JobStatus::AuthenticationFailed
            }
            Direction::Open => match self.cipher.decrypt(packet, iv_at, text_at) {
                Some(()) => JobStatus::Done,
                None => JobStatus::Fault,
            },
        }
    }
}

impl CipherKey {
    /// `None` before anything is encrypted: if the text is no whole number of blocks.
    fn encrypt(&self, packet: &mut [u8], iv_at: usize, text_at: usize) -> Option<()> {
        match self {
            Self::Null => Some(()),
            Self::Cbc(key) => key.encrypt(packet.get_mut(iv_at..)?),
            Self::Ctr(key, salt) => apply_counter_mode(key, *salt, packet, text_at),
        }
    }

    fn decrypt(&self, packet: &mut [u8], iv_at: usize, text_at: usize) -> Option<()> {
        match self {
            Self::Null => Some(()),
            Self::Cbc(key) => {
                let (head, text) = packet.split_at_mut_checked(text_at)?;
                key.decrypt(head.get(iv_at..)?, text)
            }
            Self::Ctr(key, salt) => apply_counter_mode(key, *salt, packet, text_at),
        }
    }
}

/// The first counter block is the salt, the IV before the text, and 1 (RFC 3686 4).
fn apply_counter_mode(key: &CtrKey, salt: [u8; 4], packet: &mut [u8], text_at: usize) -> Option<()> {
    let (head, text) = packet.split_at_mut_checked(text_at)?;
    let mut nonce = [0; 12];
    nonce[..4].copy_from_slice(&salt);
    nonce[4..].copy_from_slice(head.last_chunk::<8>()?);
    key.apply(&nonce, 1, text)
}
