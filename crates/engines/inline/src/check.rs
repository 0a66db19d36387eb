//! Software beside the device: it checks what the device says, and seals what the device will not.

use crate::shape::{esp_job, plain_header_bytes};
use testudo_crypto::{
    Direction, Engine, EngineError, Job, JobStatus, KeyId, KeyMaterial, SaFacts, SecurityProtocol,
};
use testudo_packet::{Buffer, Mark};
use testudo_wire::mutable::{mask, masked_bytes};

/// Room of a buffer for a copy: the longest datagram, twice the front of AH, and an ICV.
const SCRATCH_BYTES: usize = 66 * 1024 + 512;
/// Bytes of AES-GMAC's IV, which with AH is in the field of the ICV (RFC 4543 4).
const GMAC_IV_BYTES: usize = 8;

/// A software engine that ends its jobs at once, and a buffer for copies.
pub(crate) struct Software {
    engine: Box<dyn Engine>,
    scratch: Buffer,
}

impl Software {
    pub(crate) fn new(engine: Box<dyn Engine>) -> Self {
        Self { engine, scratch: Buffer::with_capacity(SCRATCH_BYTES) }
    }

    /// Holds a key for sealing, whichever direction its SA has: to check what was opened is to seal it again.
    pub(crate) fn install(&mut self, key: &KeyMaterial) -> Result<KeyId, EngineError> {
        self.engine.install(key, Direction::Seal)
    }

    pub(crate) fn remove(&mut self, key: KeyId) {
        self.engine.remove(key);
    }

    fn run(&mut self, job: &mut Job) -> bool {
        self.engine.submit(std::slice::from_mut(job)) == 1 && job.status == JobStatus::Done
    }

    /// Whether the text of a job to open is already in clear, and is what its ICV says: sealing it under the
    /// same number makes the same ICV.
    pub(crate) fn is_opened(&mut self, job: &Job, key: KeyId, icv_bytes: usize) -> bool {
        let icv_at = (job.text_start + job.text_bytes) as usize;
        let Some(received) = job.buffer.bytes().get(icv_at..icv_at + icv_bytes) else { return false };
        let mut copy = std::mem::take(&mut self.scratch);
        copy_into(&mut copy, job.buffer.bytes());
        let mut again = Job {
            sequence: job.sequence,
            key,
            auth_start: job.auth_start,
            text_start: job.text_start,
            text_bytes: job.text_bytes,
            esn: job.esn,
            ..Job::new(copy, Direction::Seal, 0)
        };
        let is_sealed = self.run(&mut again);
        let made = again.buffer.bytes().get(icv_at..icv_at + icv_bytes);
        let is_equal = is_sealed && made.is_some_and(|made| are_equal(made, received));
        self.scratch = again.buffer;
        is_equal
    }

    /// Seals a datagram as it would leave, headers complete, text in clear, in place. Whether it could.
    pub(crate) fn seal(&mut self, datagram: &mut Buffer, key: KeyId, facts: &SaFacts) -> bool {
        match facts.protocol {
            SecurityProtocol::Esp => {
                let whole = std::mem::take(datagram);
                match esp_job(whole, facts.suite) {
                    Ok(job) => {
                        let mut job = Job { key, ..job };
                        let is_sealed = self.run(&mut job);
                        *datagram = job.buffer;
                        is_sealed
                    }
                    Err(whole) => {
                        *datagram = whole;
                        false
                    }
                }
            }
            SecurityProtocol::Ah => self.authenticate(datagram, key, facts).is_some(),
        }
    }

    /// Puts the ICV of AES-GMAC in the AH of a datagram that has its IV.
    fn authenticate(&mut self, datagram: &mut Buffer, key: KeyId, facts: &SaFacts) -> Option<()> {
        let (iv_bytes, icv_bytes) = (facts.suite.iv_bytes(), facts.suite.icv_bytes());
        let (total, field) = (datagram.len(), iv_bytes + icv_bytes);
        let ah = plain_header_bytes(datagram.bytes(), SecurityProtocol::Ah)?;
        let low = u32::from_be_bytes(*datagram.bytes().get(ah + 8..ah + 12)?.first_chunk()?);
        let front = masked_bytes(datagram.bytes(), field).ok()?;
        let mut copy = std::mem::take(&mut self.scratch);
        copy_into(&mut copy, datagram.bytes());
        // Engines find an IV directly before the text, and write the ICV after it.
        let covered = mask(copy.bytes_mut(), field).ok().filter(|_| iv_bytes == GMAC_IV_BYTES);
        let is_ready = covered.is_some() && copy.append(icv_bytes).is_ok();
        if is_ready {
            let iv = front.checked_sub(field)?..front - icv_bytes;
            copy.bytes_mut()[front - iv_bytes..front].copy_from_slice(&datagram.bytes()[iv]);
        }
        let offset = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        let mut job = Job {
            sequence: low.into(),
            key,
            auth_start: offset(covered?.start),
            text_start: offset(front),
            text_bytes: offset(total - front),
            ..Job::new(copy, Direction::Seal, 0)
        };
        let is_sealed = is_ready && self.run(&mut job);
        if is_sealed {
            let icv = &job.buffer.bytes()[total..total + icv_bytes];
            datagram.bytes_mut()[front - icv_bytes..front].copy_from_slice(icv);
        }
        self.scratch = job.buffer;
        is_sealed.then_some(())
    }

    /// Whether a device that was given `clear` to seal has sent `sealed`.
    pub(crate) fn has_sealed(&mut self, clear: &[u8], sealed: &[u8], key: KeyId, facts: &SaFacts) -> bool {
        let mut copy = Buffer::copied(clear, 0, 64);
        self.seal(&mut copy, key, facts) && copy.bytes() == sealed
    }
}

/// Makes `bytes` the packet of an empty buffer.
fn copy_into(buffer: &mut Buffer, bytes: &[u8]) {
    if buffer.capacity() < SCRATCH_BYTES {
        // What was lent did not come back: a bug of ours elsewhere, and no reason to check nothing.
        *buffer = Buffer::with_capacity(SCRATCH_BYTES);
    }
    buffer.set_mark(Mark::NONE);
    buffer.reset(64);
    let area = buffer.receive_area();
    let len = bytes.len().min(area.len());
    area[..len].copy_from_slice(&bytes[..len]);
    buffer.set_len(len);
}

/// Compares ICVs in a time that does not depend on them.
fn are_equal(one: &[u8], other: &[u8]) -> bool {
    let differences = one.iter().zip(other).fold(0, |all, (a, b)| std::hint::black_box(all | a ^ b));
    one.len() == other.len() && differences == 0
}
