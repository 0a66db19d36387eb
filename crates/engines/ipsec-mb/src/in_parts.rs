//! Combined modes over chains of buffers: the library takes a text part by part, of any lengths.

use crate::direct::MAX_TEXT_BYTES;
use crate::engine::{Form, Kind, MbKey};
use crate::manager::{Aeads, GcmKey, GcmPartsFunctions, ICV_BYTES, Icv};
use crate::raw::GcmContext;
use subtle::ConstantTimeEq;
use testudo_crypto::{ChainParts, ChainShape, Direction, Job, JobStatus, KeyTable};

/// An AEAD over one text in parts, in place.
pub(crate) trait InParts {
    /// Its keys.
    type Key;

    /// Begins a packet.
    fn begin(&mut self, key: &Self::Key, nonce: &[u8; 12], aad: &[u8]);

    /// Encrypts or decrypts the next part of the text.
    fn update(&mut self, key: &Self::Key, direction: Direction, text: &mut [u8]);

    /// Writes the ICV that belongs to all of it.
    fn end(&mut self, key: &Self::Key, direction: Direction, icv: &mut Icv);
}

/// AES-GCM over texts in parts.
pub(crate) struct GcmInParts<'a> {
    pub(crate) functions: GcmPartsFunctions,
    pub(crate) context: &'a mut GcmContext,
}

impl InParts for GcmInParts<'_> {
    type Key = GcmKey;

    fn begin(&mut self, key: &GcmKey, nonce: &[u8; 12], aad: &[u8]) {
        let (key, context) = (&raw const *key.0, &raw mut *self.context);
        // SAFETY: the function belongs to the library of the manager that `self` borrows, which stays mapped.
        // It reads a key that was expanded for this length, 12 bytes of nonce and the AAD, and writes the
        // context, larger than the header's structure. Every pointer is from a reference that covers this and
        // lives through the call; nothing is kept. No safe binding exists.
        unsafe { (self.functions.init)(key, context, nonce.as_ptr(), aad.as_ptr(), aad.len() as u64) };
    }

    fn update(&mut self, key: &GcmKey, direction: Direction, text: &mut [u8]) {
        let (update, _) = self.of(direction);
        let data = text.as_mut_ptr();
        // SAFETY: as in `begin`; it processes `text` in place, which the library allows at any length.
        unsafe { update(&raw const *key.0, &raw mut *self.context, data, data, text.len() as u64) };
    }

    fn end(&mut self, key: &GcmKey, direction: Direction, icv: &mut Icv) {
        let (_, finalize) = self.of(direction);
        // SAFETY: as in `begin`; it writes an ICV of the length that is said.
        unsafe { finalize(&raw const *key.0, &raw mut *self.context, icv.as_mut_ptr(), ICV_BYTES as u64) };
    }
}

impl GcmInParts<'_> {
    fn of(&self, direction: Direction) -> (crate::raw::GcmUpdate, crate::raw::GcmFinalize) {
        match direction {
            Direction::Seal => self.functions.seal,
            Direction::Open => self.functions.open,
        }
    }
}

/// What the ICV is until the library has written it. One in 2^128 packets has it as its ICV, and is lost.
const NOT_WRITTEN: Icv = *b"no ICV was made!";

/// Does those of `jobs` that ended as faults and are over chains, if their keys are of combined modes.
#[cold]
pub(crate) fn run(aeads: &mut Aeads<'_>, keys: &KeyTable<MbKey>, jobs: &mut [Job]) {
    for job in jobs.iter_mut().filter(|job| job.status == JobStatus::Fault && job.buffer.is_chain()) {
        if let Some(status) = run_one(aeads, keys, job) {
            job.status = status;
        }
    }
}

/// Does one of them; `None`, with nothing changed, if that cannot be done.
fn run_one(aeads: &mut Aeads<'_>, keys: &KeyTable<MbKey>, job: &mut Job) -> Option<JobStatus> {
    let direction = job.direction;
    let key = keys.get(job.key).filter(|key| key.direction == direction)?;
    if job.text_bytes as usize > MAX_TEXT_BYTES {
        return None;
    }
    let parts = job.chain_parts(shape_of(key.kind)?, *key.salt)?;
    match &key.form {
        Form::Gcm(length, key) => Some(packet(&mut aeads.gcm_in_parts(*length)?, key, direction, parts)),
        Form::ChaCha(key) => Some(packet(&mut aeads.chacha(), key, direction, parts)),
        Form::Gmac(..) | Form::Ccm(_) | Form::Chained(_) => None,
    }
}

fn shape_of(kind: Kind) -> Option<ChainShape> {
    let (iv_bytes, icv_bytes, is_vpe) = match kind {
        Kind::Aead16 => (8, 16, false),
        Kind::Aead12 => (8, 12, false),
        Kind::Aead8 => (8, 8, false),
        Kind::ImplicitIv => (0, 16, false),
        Kind::Vpe => (0, 16, true),
        _ => return None,
    };
    Some(ChainShape { iv_bytes, icv_bytes, is_vpe })
}

/// Seals or opens one packet. A text that may be plaintext or ciphertext is wiped, and is no fault: another
/// engine would encrypt what may already be encrypted.
fn packet<P: InParts>(
    pass: &mut P,
    key: &P::Key,
    direction: Direction,
    mut parts: ChainParts<'_>,
) -> JobStatus {
    let (bytes, received) = (parts.icv_bytes().min(ICV_BYTES), parts.icv());
    let mut icv = match direction {
        Direction::Seal => NOT_WRITTEN,
        Direction::Open => received.map(|byte| !byte),
    };
    pass.begin(key, &parts.nonce, parts.aad.as_bytes());
    parts.text.iter_mut().for_each(|piece| pass.update(key, direction, piece));
    pass.end(key, direction, &mut icv);
    let is_right = match direction {
        Direction::Seal => icv != NOT_WRITTEN,
        Direction::Open => bytes > 0 && bool::from(icv[..bytes].ct_eq(&received[..bytes])),
    };
    if is_right {
        if direction == Direction::Seal {
            parts.set_icv(&icv);
        }
        return JobStatus::Done;
    }
    parts.text.iter_mut().for_each(|piece| piece.fill(0));
    JobStatus::AuthenticationFailed
}

#[cfg(test)]
mod tests {
    use super::*;
    use testudo_packet::Buffer;

    /// A library that ignores its parameters.
    struct Lazy;

    impl InParts for Lazy {
        type Key = ();

        fn begin(&mut self, (): &(), _: &[u8; 12], _: &[u8]) {}

        fn update(&mut self, (): &(), _: Direction, _: &mut [u8]) {}

        fn end(&mut self, (): &(), _: Direction, _: &mut Icv) {}
    }

    #[test]
    fn a_library_that_does_nothing_lets_nothing_of_a_chain_out_in_clear() {
        for direction in [Direction::Seal, Direction::Open] {
            let mut buffer = Buffer::copied(&[0xA5; 30], 0, 64);
            buffer.link(Buffer::copied(&[0xA5; 42], 0, 0)).unwrap();
            let mut job = Job { text_start: 16, text_bytes: 40, ..Job::new(buffer, direction, 0) };
            let shape = shape_of(Kind::Aead16).unwrap();
            let parts = job.chain_parts(shape, [0; 4]).unwrap();
            assert_eq!(packet(&mut Lazy, &(), direction, parts), JobStatus::AuthenticationFailed);
            let mut bytes = [0; 72];
            assert_eq!(job.buffer.copy_to(0, &mut bytes), 72);
            assert!(bytes[16..56] == [0; 40] && bytes[..16] == [0xA5; 16], "{direction:?}");
        }
    }
}
