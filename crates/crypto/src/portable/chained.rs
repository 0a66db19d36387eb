//! AES-GCM over chains of buffers: AWS-LC's AEAD wants the text as one run of bytes, which the
//! [halves](super::gcm) do not.

use super::ctr::NONCE_BYTES;
use super::gcm::{GcmKey, TEXT_COUNTER};
use crate::{ChainParts, Direction, JobStatus, KeyMaterial};
use aws_lc_rs::constant_time::verify_slices_are_equal;
use std::cell::OnceCell;
use testudo_packet::MAX_SEGMENTS;
use zeroize::Zeroizing;

/// Bytes of AES's block.
const BLOCK_BYTES: usize = 16;

/// The key of an SA of AES-GCM for chains, which is expanded for the first one: most SAs see none.
pub(super) struct ChainKey {
    key: Zeroizing<Box<[u8]>>,
    expanded: OnceCell<Option<Box<GcmKey>>>,
}

impl ChainKey {
    pub(super) fn new(material: &KeyMaterial) -> Self {
        Self { key: Zeroizing::new(material.key().into()), expanded: OnceCell::new() }
    }

    /// `None` if memory ran out.
    pub(super) fn expanded(&self) -> Option<&GcmKey> {
        self.expanded.get_or_init(|| GcmKey::new(&self.key).map(Box::new)).as_deref()
    }
}

impl GcmKey {
    /// Does one packet in several buffers. Where its ICV is wrong, nothing was decrypted.
    pub(super) fn run_chain(&self, direction: Direction, mut parts: ChainParts<'_>) -> JobStatus {
        if direction == Direction::Seal {
            if self.apply(&mut parts).is_none() {
                return JobStatus::Fault;
            }
            let Some(tag) = self.chain_tag(&parts) else {
                // Not reached: AWS-LC has just done the same. It is its own inverse.
                let _ = self.apply(&mut parts);
                return JobStatus::Fault;
            };
            parts.set_icv(&tag);
            return JobStatus::Done;
        }
        let Some(tag) = self.chain_tag(&parts) else { return JobStatus::Fault };
        let bytes = parts.icv_bytes().min(tag.len());
        if bytes == 0 || verify_slices_are_equal(&tag[..bytes], &parts.icv()[..bytes]).is_err() {
            return JobStatus::AuthenticationFailed;
        }
        match self.apply(&mut parts) {
            Some(()) => JobStatus::Done,
            None => JobStatus::Fault,
        }
    }

    fn chain_tag(&self, parts: &ChainParts<'_>) -> Option<[u8; 16]> {
        let mut text = arrayvec::ArrayVec::<&[u8], MAX_SEGMENTS>::new();
        text.extend(parts.text.iter().map(|piece| &**piece));
        self.tag_of(&parts.nonce, &[parts.aad.as_bytes()], &text)
    }

    /// XORs the key stream into the text. `None`, with the text as it was, if AWS-LC fails.
    fn apply(&self, parts: &mut ChainParts<'_>) -> Option<()> {
        let mut at = 0;
        for place in 0..parts.text.len() {
            if self.apply_to(&parts.nonce, at, &mut *parts.text[place]).is_none() {
                let mut at = 0;
                for piece in &mut parts.text[..place] {
                    let _ = self.apply_to(&parts.nonce, at, piece);
                    at += piece.len();
                }
                return None;
            }
            at += parts.text[place].len();
        }
        Some(())
    }

    /// The same for the bytes from byte `at` of the text on.
    fn apply_to(&self, nonce: &[u8; NONCE_BYTES], at: usize, piece: &mut [u8]) -> Option<()> {
        let counter = |at: usize| u32::try_from(at / BLOCK_BYTES).ok()?.checked_add(TEXT_COUNTER);
        let within = at % BLOCK_BYTES;
        let first = if within == 0 { 0 } else { piece.len().min(BLOCK_BYTES - within) };
        let (first, rest) = piece.split_at_mut(first);
        let mut block = [0; BLOCK_BYTES];
        if !first.is_empty() {
            // A block that began in the piece before.
            let place = block.get_mut(within..within + first.len())?;
            place.copy_from_slice(first);
            self.counter_mode.apply(nonce, counter(at)?, &mut block)?;
        }
        if !rest.is_empty() {
            self.counter_mode.apply(nonce, counter(at + first.len())?, rest)?;
        }
        first.copy_from_slice(block.get(within..within + first.len())?);
        Some(())
    }
}
