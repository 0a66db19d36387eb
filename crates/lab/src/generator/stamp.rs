//! What the generator writes into each packet.

use testudo_wire::ip::IPV4_HEADER_BYTES;
use testudo_wire::udp::UDP_HEADER_BYTES;

/// Where a stamp is in a packet of IPv4 and UDP without options.
pub const STAMP_AT: usize = IPV4_HEADER_BYTES + UDP_HEADER_BYTES;
/// Its length: a frame of 64 bytes has exactly that room.
pub const STAMP_BYTES: usize = 18;

/// Which trial a packet is of, its number, and when it was sent, in nanoseconds of the clock of both ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stamp {
    /// So that a packet left over from an earlier trial is none of this one.
    pub trial: u16,
    /// From 0 on, without gaps.
    pub sequence: u64,
    /// When the generator sent it.
    pub sent_ns: u64,
}

impl Stamp {
    /// As it is in a packet: trial, number and time, in network order.
    #[must_use]
    pub fn to_bytes(self) -> [u8; STAMP_BYTES] {
        let mut bytes = [0; STAMP_BYTES];
        bytes[..2].copy_from_slice(&self.trial.to_be_bytes());
        bytes[2..10].copy_from_slice(&self.sequence.to_be_bytes());
        bytes[10..].copy_from_slice(&self.sent_ns.to_be_bytes());
        bytes
    }

    /// The stamp at the beginning of the payload of UDP; `None` if it is too short for one.
    #[must_use]
    pub fn parse(payload: &[u8]) -> Option<Self> {
        let (trial, rest) = payload.split_first_chunk()?;
        let (sequence, rest) = rest.split_first_chunk()?;
        let (sent, _) = rest.split_first_chunk()?;
        let sequence = u64::from_be_bytes(*sequence);
        Some(Self { trial: u16::from_be_bytes(*trial), sequence, sent_ns: u64::from_be_bytes(*sent) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stamp_is_read_as_it_was_written() {
        let stamp = Stamp { trial: 0x0102, sequence: 0x0304_0506_0708_090A, sent_ns: 0x0B0C_0D0E_0F10_1112 };
        let bytes = stamp.to_bytes();
        assert!(bytes.iter().copied().eq(1..=18));
        assert_eq!(Stamp::parse(&[&bytes[..], &[0xFF; 9]].concat()), Some(stamp));
        for short in 0..STAMP_BYTES {
            assert_eq!(Stamp::parse(&bytes[..short]), None);
        }
    }
}
