//! Vector Packet Encapsulation (ARES 2020; `docs/VPE.md`): header, inner datagram, datagrams of its UDP port.
//!
//! ```text
//!  0       2        4                 12     16                32
//!  ┌────────┬────────┬─────────────────┬──────┬─────────────────┬──────────────────────────┐
//!  │ Sender │ Window │ Sequence number │ SPI  │ ICV             │ inner IP datagram        │
//!  └────────┴────────┴─────────────────┴──────┴─────────────────┴──────────────────────────┘
//!  ├────────────── nonce ──────────────┤                        ├──── encrypted ───────────┤
//! ```
//!
//! All integers are little-endian: on the processors that carry them, a nonce is twelve bytes of the header
//! as they stand. There is no trailer: the inner datagram says where it ends.

use crate::esp::NAT_KEEPALIVE;

/// Bytes of the header, with the ICV.
pub const VPE_HEADER_BYTES: usize = 32;
/// Bytes of the nonce, from the header's start.
pub const VPE_NONCE_BYTES: usize = 12;
/// Where the SPI is in the header.
pub const VPE_SPI_AT: usize = 12;
/// Where the ICV is in the header: at a multiple of its length.
pub const VPE_ICV_AT: usize = 16;
/// Bytes of the ICV.
pub const VPE_ICV_BYTES: usize = 16;
/// The UDP port that is used unless another one is configured. Never 4500: there the first four bytes, which
/// may be zero, would be the non-ESP marker (RFC 3948 2.2).
pub const VPE_UDP_PORT: u16 = 4501;
/// The protocol number that is used unless another one is configured: for experiments (RFC 3692).
pub const VPE_PROTOCOL: u8 = 253;

/// A header without its ICV.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VpeHeader {
    /// The device that numbered the packet; 0 on a unicast SA.
    pub sender: u16,
    /// Which of the sender's counters.
    pub window: u16,
    /// The number in that window. Senders begin at 1.
    pub number: u64,
    /// Security parameters index.
    pub spi: u32,
}

impl VpeHeader {
    /// Reads the header at the start of `bytes`; `None` if there are fewer than 32.
    #[inline]
    #[must_use]
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let h = bytes.first_chunk::<VPE_HEADER_BYTES>()?;
        Some(Self {
            sender: u16::from_le_bytes([h[0], h[1]]),
            window: u16::from_le_bytes([h[2], h[3]]),
            number: u64::from_le_bytes([h[4], h[5], h[6], h[7], h[8], h[9], h[10], h[11]]),
            spi: u32::from_le_bytes([h[12], h[13], h[14], h[15]]),
        })
    }

    /// The first 16 bytes: nonce and SPI. The ICV comes after them.
    #[inline]
    #[must_use]
    pub fn to_bytes(self) -> [u8; VPE_ICV_AT] {
        let words = u128::from(self.sender)
            | u128::from(self.window) << 16
            | u128::from(self.number) << 32
            | u128::from(self.spi) << 96;
        words.to_le_bytes()
    }

    /// The nonce of the AEAD: no salt is in it.
    #[inline]
    #[must_use]
    pub fn nonce(self) -> [u8; VPE_NONCE_BYTES] {
        let mut nonce = [0; VPE_NONCE_BYTES];
        nonce.copy_from_slice(&self.to_bytes()[..VPE_NONCE_BYTES]);
        nonce
    }
}

/// What a decrypted text is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VpePlaintext {
    /// A datagram of so many bytes, at its start; padding after it.
    Datagram {
        /// Bytes of the datagram.
        bytes: usize,
    },
    /// Nothing but zeros: a fill packet.
    Fill,
}

/// A decrypted text is neither a datagram nor a fill packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BadVpePlaintext {
    /// The first four bits are no version of IP.
    #[error("the plaintext begins with no version of IP")]
    Version,
    /// The length of the inner datagram is impossible, or beyond the text.
    #[error("the inner datagram has a wrong length")]
    Length,
}

impl VpePlaintext {
    /// Finds the end of the inner datagram by its own header.
    ///
    /// # Errors
    /// [`BadVpePlaintext`]: an IPv6 payload length of 0 is one, since jumbograms are not carried.
    #[inline]
    pub fn parse(text: &[u8]) -> Result<Self, BadVpePlaintext> {
        let bytes = match text.first().map(|first| first >> 4) {
            Some(4) => ipv4_bytes(text),
            Some(6) => ipv6_bytes(text),
            _ if text.iter().all(|&byte| byte == 0) => return Ok(Self::Fill),
            _ => return Err(BadVpePlaintext::Version),
        };
        match bytes {
            Some(bytes) if bytes <= text.len() => Ok(Self::Datagram { bytes }),
            _ => Err(BadVpePlaintext::Length),
        }
    }
}

fn ipv4_bytes(text: &[u8]) -> Option<usize> {
    let header = text.first_chunk::<20>()?;
    let header_bytes = 4 * usize::from(header[0] & 15);
    let bytes = usize::from(u16::from_be_bytes([header[2], header[3]]));
    (header_bytes >= 20 && bytes >= header_bytes).then_some(bytes)
}

fn ipv6_bytes(text: &[u8]) -> Option<usize> {
    let header = text.first_chunk::<40>()?;
    match u16::from_be_bytes([header[4], header[5]]) {
        0 => None,
        payload => Some(40 + usize::from(payload)),
    }
}

/// Whether the payload of a datagram to VPE's UDP port only keeps a NAT's mapping alive.
#[must_use]
pub fn is_vpe_keepalive(payload: &[u8]) -> bool {
    payload == [NAT_KEEPALIVE]
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const HEADER: VpeHeader =
        VpeHeader { sender: 0x5566, window: 0x7788, number: 0x99AA_BBCC_DDEE_FF01, spi: 0x1122_3344 };

    #[test]
    fn each_field_has_its_place_and_is_little_endian() {
        let bytes =
            [0x66, 0x55, 0x88, 0x77, 0x01, 0xFF, 0xEE, 0xDD, 0xCC, 0xBB, 0xAA, 0x99, 0x44, 0x33, 0x22, 0x11];
        assert_eq!(HEADER.to_bytes(), bytes);
        assert_eq!(HEADER.nonce(), bytes[..12]);
        assert_eq!(VpeHeader::parse(&[bytes, [0xA5; 16]].concat()), Some(HEADER));
    }

    #[test]
    fn a_header_is_32_bytes_long() {
        assert_eq!(VpeHeader::parse(&[0; 31]), None);
        assert!(VpeHeader::parse(&[0; 32]).is_some());
    }

    #[test]
    fn fill_packets_are_zeros_of_any_length() {
        for bytes in [0, 1, 19, 20, 1500] {
            let mut text = vec![0; bytes];
            assert_eq!(VpePlaintext::parse(&text), Ok(VpePlaintext::Fill), "{bytes}");
            if let Some(last) = text.last_mut() {
                *last = 1;
                assert_eq!(VpePlaintext::parse(&text), Err(BadVpePlaintext::Version), "{bytes}");
            }
        }
    }

    #[test]
    fn a_keepalive_is_one_byte() {
        assert!(is_vpe_keepalive(&[0xFF]));
        for other in [&[][..], &[0xFE], &[0xFF, 0xFF]] {
            assert!(!is_vpe_keepalive(other));
        }
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(sender: u16, window: u16, number: u64, spi: u32, rest: [u8; 16]) {
            let header = VpeHeader { sender, window, number, spi };
            prop_assert_eq!(VpeHeader::parse(&[header.to_bytes(), rest].concat()), Some(header));
        }

        #[test]
        fn no_datagram_ends_beyond_its_text(
            first in prop_oneof![0x40_u8..0x50, 0x60_u8..0x70, any::<u8>()],
            mut text in prop::collection::vec(any::<u8>(), 1..90),
        ) {
            text[0] = first;
            if let Ok(VpePlaintext::Datagram { bytes }) = VpePlaintext::parse(&text) {
                prop_assert!(bytes <= text.len());
                prop_assert!(bytes >= 20);
            }
        }
    }
}
