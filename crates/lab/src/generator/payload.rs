//! What packets over sockets carry: their lengths, and the bytes behind their stamps.

use fastrand::Rng;

use super::memory::COMPARED;
use super::sizes::{FRAME_EXTRA_BYTES, Sizes};
use super::stamp::{STAMP_AT, STAMP_BYTES, Stamp};

/// Lengths before they repeat.
const ROUND_PACKETS: usize = 4096;

/// The payloads of UDP of a trial: the same to who sends and to who receives.
#[derive(Debug)]
pub(super) struct Payloads {
    lengths: Vec<usize>,
    /// Those of the longest, room for a stamp first.
    bytes: Vec<u8>,
}

impl Payloads {
    /// In frames of `sizes`; all that is random follows from the seed.
    pub(super) fn of(sizes: Sizes, seed: u64) -> Self {
        let frames = sizes.lengths(ROUND_PACKETS, seed);
        let of_frame = |bytes: usize| bytes.saturating_sub(FRAME_EXTRA_BYTES + STAMP_AT).max(STAMP_BYTES);
        let lengths: Vec<usize> = frames.into_iter().map(of_frame).collect();
        let mut bytes = vec![0; lengths.iter().copied().max().unwrap_or(STAMP_BYTES)];
        Rng::with_seed(seed).fill(&mut bytes);
        Self { lengths, bytes }
    }

    /// Room for any of them, with the bytes that follow a stamp.
    pub(super) fn buffer(&self) -> Vec<u8> {
        self.bytes.clone()
    }

    /// Bytes of the payload with this number.
    pub(super) fn length(&self, sequence: u64) -> usize {
        let count = self.lengths.len().max(1) as u64;
        let at = usize::try_from(sequence % count).unwrap_or(0);
        self.lengths.get(at).copied().unwrap_or(STAMP_BYTES)
    }

    /// Whether a payload with this stamp is as long as it was sent and, of one in many, each of its bytes
    /// what it was.
    pub(super) fn is_whole(&self, stamp: &Stamp, payload: &[u8]) -> bool {
        let length = self.length(stamp.sequence);
        let is_compared = stamp.sequence.is_multiple_of(COMPARED);
        payload.len() == length
            && (!is_compared || payload.get(STAMP_BYTES..) == self.bytes.get(STAMP_BYTES..length))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_payload_of_another_length_or_with_another_byte_is_not_whole() {
        let payloads = Payloads::of(Sizes::Bytes(512), 11);
        let stamp = |sequence| Stamp { trial: 1, sequence, sent_ns: 7 };
        let bytes = 512 - FRAME_EXTRA_BYTES - STAMP_AT;
        let mut payload = payloads.buffer();
        assert_eq!((payload.len(), payloads.length(0)), (bytes, bytes));
        payload[..STAMP_BYTES].copy_from_slice(&stamp(0).to_bytes());
        assert!(payloads.is_whole(&stamp(0), &payload));
        assert!(!payloads.is_whole(&stamp(1), &payload[..bytes - 1]), "each length is compared");
        for at in [STAMP_BYTES, bytes - 1] {
            payload[at] ^= 1;
            assert!(!payloads.is_whole(&stamp(COMPARED), &payload), "byte {at}");
            assert!(payloads.is_whole(&stamp(1), &payload), "of the others the length alone");
            payload[at] ^= 1;
        }
        // A frame of 64 bytes has room for a stamp and no more.
        let shortest = Payloads::of(Sizes::Bytes(64), 11);
        assert!(shortest.is_whole(&stamp(0), &stamp(0).to_bytes()));
        let random = Payloads::of(Sizes::Random, 11);
        let lengths: std::collections::HashSet<_> = (0..1000).map(|number| random.length(number)).collect();
        assert!(lengths.len() > 100 && random.length(0) == random.length(ROUND_PACKETS as u64));
    }
}
