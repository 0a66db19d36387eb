//! What leaves the protocol: types that only a packet with the right to go on can have.

use testudo_crypto::Job;
use testudo_packet::Buffer;

/// A datagram that an engine has sealed: it may go to the unprotected side.
#[derive(Debug)]
pub struct Sealed(Buffer);

/// A datagram to send, or nothing where it was discarded.
pub type SealedOr = Option<Sealed>;

impl Sealed {
    pub(crate) fn new(buffer: Buffer) -> Self {
        Self(buffer)
    }

    /// The datagram.
    #[must_use]
    pub fn into_buffer(self) -> Buffer {
        self.0
    }
}

/// A decrypted packet that has passed its ICV, replay, padding and selector checks: it may go to the protected side. Nothing else
/// can make one, so that code which forwards cannot name plaintext that has not passed.
#[derive(Debug)]
pub struct Cleared(Buffer);

impl Cleared {
    pub(crate) fn new(buffer: Buffer) -> Self {
        Self(buffer)
    }

    /// The packet.
    #[must_use]
    pub fn into_buffer(self) -> Buffer {
        self.0
    }
}

/// What preparation makes of a batch.
#[derive(Debug, Default)]
pub struct Prepared {
    /// For the engines, in order. The upper half of a job's cookie names its SA ([`Prepared::sa_of`]); the lower half is the gateway's.
    pub jobs: Vec<Job>,
    /// Packets that policy lets pass in clear, to the other side.
    pub pass: Vec<Buffer>,
    /// Messages back to the side that the batch came from.
    pub replies: Vec<Buffer>,
}

impl Prepared {
    /// The SA of a job.
    #[must_use]
    pub fn sa_of(job: &Job) -> crate::SaRef {
        crate::SaRef::from_bits(u32::try_from(job.cookie >> 32).unwrap_or(u32::MAX))
    }
}
