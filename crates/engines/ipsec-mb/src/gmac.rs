//! AES-GMAC (RFC 4543) in direct calls: AES-GCM without a text, its AAD handed in part by part. All methods
//! are safe.
//!
//! ```text
//!   ESP   | SPI | (high half) | number | IV | text …            RFC 4543 3.3
//!   AH    | IP header … number | 0 instead of IV | rest … | (high half)       RFC 4302 2.5.1, RFC 4543 4
//! ```
//!
//! Nothing is encrypted, so that a packet is done and judged at once.

use crate::manager::{GcmKey, GmacFunctions, ICV_BYTES, Icv, same_icv};
use crate::raw::GcmContext;
use testudo_crypto::{AesKey, Direction, Job, JobParts, JobStatus, Suite};

/// The suites with AES-GMAC differ only in their key, so that any of them says how a packet is laid out.
const SUITE: Suite = {
    let mut at = 0;
    while !matches!(Suite::ALL[at].cipher(), testudo_crypto::Cipher::AesGmac(AesKey::Aes128)) {
        at += 1;
    }
    Suite::ALL[at]
};

/// Bytes of an ESP header: SPI and the number's low half.
const ESP_HEADER_BYTES: usize = 8;
const SPI_BYTES: usize = 4;
/// What AH has instead of its ICV, IV included, while it is computed (RFC 4302 3.3.3, RFC 4543 4).
const NO_IV: [u8; 8] = [0; 8];

/// Fills the ICV's field until the library has written it. One in 2^128 packets has it as its ICV, and is
/// lost.
const NOT_WRITTEN: Icv = *b"no ICV was made!";

/// AES-GMAC, for one run of jobs.
pub(crate) struct Gmac<'a> {
    functions: GmacFunctions,
    context: &'a mut GcmContext,
}

impl<'a> Gmac<'a> {
    pub(crate) fn new(functions: GmacFunctions, context: &'a mut GcmContext) -> Self {
        Self { functions, context }
    }

    /// Does packets of at most `max_text_bytes`, counted from the end of an ESP header, under one key.
    pub(crate) fn run(
        &mut self,
        key: &GcmKey,
        salt: [u8; 4],
        direction: Direction,
        jobs: &mut [Job],
        max_text_bytes: usize,
    ) {
        for job in jobs {
            let may_do = job.direction == direction;
            let longest = ESP_HEADER_BYTES + SUITE.iv_bytes() + max_text_bytes;
            let parts = job.parts(SUITE).filter(|parts| may_do && parts.icv_at <= longest);
            let is_right = parts.and_then(|parts| self.packet(key, salt, direction, parts));
            job.status = match is_right {
                Some(true) => JobStatus::Done,
                Some(false) => JobStatus::AuthenticationFailed,
                None => JobStatus::Fault,
            };
        }
    }

    /// Writes or compares the ICV of one packet; `None`, before anything was written, if it is no such
    /// packet.
    fn packet(
        &mut self,
        key: &GcmKey,
        salt: [u8; 4],
        direction: Direction,
        parts: JobParts<'_>,
    ) -> Option<bool> {
        let JobParts { packet, iv_at, text_at, icv_at, high_half, .. } = parts;
        let (packet, icv) = packet.split_at_mut_checked(icv_at)?;
        let icv: &mut Icv = icv.first_chunk_mut()?;
        let high_half = high_half.as_ref().map_or(&[][..], |half| half);
        let (header, rest) = packet.split_at_checked(iv_at)?;
        let mut nonce = [0; 12];
        nonce[..4].copy_from_slice(&salt);
        nonce[4..].copy_from_slice(rest.first_chunk::<8>()?);
        let message = match header.len() {
            ESP_HEADER_BYTES if high_half.is_empty() => [&*packet, &[], &[], &[]],
            ESP_HEADER_BYTES => {
                let (spi, low_half) = header.split_at_checked(SPI_BYTES)?;
                [spi, high_half, low_half, rest]
            }
            _ => [header, &NO_IV, packet.get(text_at..)?, high_half],
        };
        // What the library never writes is neither an ICV to send nor the one that was received.
        let mut computed = match direction {
            Direction::Seal => NOT_WRITTEN,
            Direction::Open => icv.map(|byte| !byte),
        };
        self.tag(key, &nonce, message, &mut computed);
        Some(match direction {
            Direction::Open => same_icv(icv, &computed),
            Direction::Seal => {
                *icv = computed;
                computed != NOT_WRITTEN
            }
        })
    }

    /// The tag of a message in parts.
    fn tag(&mut self, key: &GcmKey, nonce: &[u8; 12], message: [&[u8]; 4], icv: &mut Icv) {
        let (key, context) = (&raw const *key.0, &raw mut *self.context);
        // SAFETY: the functions belong to the library of the manager that `self` borrows, which stays mapped.
        // They read a key that was expanded for this length, 12 bytes of nonce and each part, in turn; they
        // keep their state in the context, larger than the header's structure, and write 16 bytes of ICV.
        // Every pointer is from a reference that covers this and lives through the calls; nothing is kept. No
        // safe binding exists.
        unsafe {
            (self.functions.init)(key, context, nonce.as_ptr(), nonce.len() as u64);
            for part in message.into_iter().filter(|part| !part.is_empty()) {
                (self.functions.update)(key, context, part.as_ptr(), part.len() as u64);
            }
            (self.functions.finalize)(key, context, icv.as_mut_ptr(), ICV_BYTES as u64);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::raw::GcmKeyData;
    use testudo_packet::Buffer;

    unsafe extern "C" fn begins_nothing(_: *const GcmKeyData, _: *mut GcmContext, _: *const u8, _: u64) {}

    unsafe extern "C" fn ends_nothing(_: *const GcmKeyData, _: *mut GcmContext, _: *mut u8, _: u64) {}

    #[test]
    fn a_library_that_computes_nothing_neither_seals_nor_opens() {
        let (mut context, key) =
            (GcmContext([0; _]), GcmKey(Box::new(GcmKeyData([0; size_of::<GcmKeyData>()]))));
        let functions =
            GmacFunctions { init: begins_nothing, update: begins_nothing, finalize: ends_nothing };
        for direction in [Direction::Seal, Direction::Open] {
            let buffer = Buffer::copied(&[0xA5; 16 + 40 + 16], 0, 0);
            let job = Job { text_start: 16, text_bytes: 40, ..Job::new(buffer, direction, 0) };
            let mut jobs = [job];
            Gmac::new(functions, &mut context).run(&key, [0; 4], direction, &mut jobs, 100);
            assert_eq!(jobs[0].status, JobStatus::AuthenticationFailed, "{direction:?}");
        }
    }
}
