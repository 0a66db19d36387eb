//! The Authentication Header (RFC 4302 2).
//!
//! ```text
//!    0               1               2               3
//!   +---------------+---------------+---------------+---------------+
//!   |  Next Header  |  Payload Len  |           Reserved            |
//!   +---------------+---------------+---------------+---------------+
//!   |                 Security Parameters Index (SPI)               |
//!   +---------------------------------------------------------------+
//!   |                 Sequence Number (its low half)                |
//!   +---------------------------------------------------------------+
//!   |                 ICV, then padding                             |
//!   +---------------------------------------------------------------+
//! ```
//!
//! Payload Len counts the whole header in words of 4 bytes, less 2 (RFC 4302 2.2). The length of the ICV
//! belongs to the SA, which the SPI finds: [`AhHeader::parse`] checks what the header says against the bytes
//! at hand, and then [`AhHeader::icv`] against the SA.
//!
//! Padding makes the header a multiple of 4 bytes over IPv4 and of 8 bytes over IPv6, and is never longer
//! than that needs (RFC 4302 2.6, 3.3.3.2.1). Linux pads to 8 bytes over IPv4 too, where its SA lacks the
//! flag `align4`; strongSwan sets the flag. Such headers are refused, as Linux refuses ours without the flag.

use crate::ParseError;
use crate::ip::Version;
use std::ops::Range;

/// Bytes before the ICV.
pub const AH_FIXED_BYTES: usize = 12;
/// The longest header that Payload Len can say, in bytes.
pub const MAX_AH_BYTES: usize = (u8::MAX as usize + 2) * 4;

/// Bytes of a header with an ICV of `icv_bytes`, its padding included. For AES-GMAC, IV and tag together are
/// the ICV (RFC 4543 4).
#[must_use]
#[inline]
pub const fn ah_bytes(icv_bytes: usize, version: Version) -> usize {
    let unit = match version {
        Version::V4 => 4,
        Version::V6 => 8,
    };
    (AH_FIXED_BYTES + icv_bytes).next_multiple_of(unit)
}

/// The fields of an Authentication Header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AhHeader {
    /// Protocol of what follows.
    pub next_header: u8,
    /// Bytes of the header with ICV and padding, a multiple of 4; never more than there are.
    pub header_bytes: usize,
    /// Security parameters index.
    pub spi: u32,
    /// Low 32 bits of the sequence number.
    pub sequence: u32,
}

impl AhHeader {
    /// Reads the header at the start of `bytes`. The reserved field is not checked: receivers ignore it (RFC
    /// 4302 2.3).
    ///
    /// # Errors
    /// [`ParseError::Truncated`] if there are fewer bytes than Payload Len says, or than the fixed fields
    /// have; [`ParseError::BadHeader`] if Payload Len leaves no room for these.
    #[inline]
    pub fn parse(bytes: &[u8]) -> Result<Self, ParseError> {
        let h = bytes.first_chunk::<AH_FIXED_BYTES>().ok_or(ParseError::Truncated)?;
        let header_bytes = (usize::from(h[1]) + 2) * 4;
        if header_bytes < AH_FIXED_BYTES {
            return Err(ParseError::BadHeader);
        }
        if header_bytes > bytes.len() {
            return Err(ParseError::Truncated);
        }
        Ok(Self {
            next_header: h[0],
            header_bytes,
            spi: u32::from_be_bytes([h[4], h[5], h[6], h[7]]),
            sequence: u32::from_be_bytes([h[8], h[9], h[10], h[11]]),
        })
    }

    /// Where in the header the ICV is, for an SA whose ICV has `icv_bytes`. The padding after it is covered
    /// by the ICV and may have any value (RFC 4302 3.3.3.2.1).
    ///
    /// # Errors
    /// [`ParseError::BadHeader`] if the header has another length than [`ah_bytes`] says.
    #[inline]
    pub fn icv(&self, icv_bytes: usize, version: Version) -> Result<Range<usize>, ParseError> {
        if self.header_bytes == ah_bytes(icv_bytes, version) {
            Ok(AH_FIXED_BYTES..AH_FIXED_BYTES + icv_bytes)
        } else {
            Err(ParseError::BadHeader)
        }
    }

    /// Writes the header to the start of `out`, with zeros for ICV and padding.
    ///
    /// # Errors
    /// [`ParseError::Truncated`] if `out` is shorter than `header_bytes`, [`ParseError::BadHeader`] if
    /// Payload Len cannot say that length.
    #[inline]
    pub fn write(&self, out: &mut [u8]) -> Result<(), ParseError> {
        if !self.header_bytes.is_multiple_of(4) || self.header_bytes < AH_FIXED_BYTES {
            return Err(ParseError::BadHeader);
        }
        let payload_len = u8::try_from(self.header_bytes / 4 - 2).map_err(|_| ParseError::BadHeader)?;
        let out = out.get_mut(..self.header_bytes).ok_or(ParseError::Truncated)?;
        let (fixed, icv) = out.split_first_chunk_mut::<AH_FIXED_BYTES>().ok_or(ParseError::Truncated)?;
        fixed[..4].copy_from_slice(&[self.next_header, payload_len, 0, 0]);
        fixed[4..8].copy_from_slice(&self.spi.to_be_bytes());
        fixed[8..].copy_from_slice(&self.sequence.to_be_bytes());
        icv.fill(0);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ip::IpHeader;
    use crate::protocol;
    use crate::test_packets::hex;
    use proptest::prelude::*;

    /// Made with Scapy 2.5: `raw(SecurityAssociation(AH, spi=0x1001, seq_num=7, auth_algo=NAME,
    /// auth_key=bytes(range(KEY))).encrypt(IP/UDP(sport=5000, dport=53)/b"query"))`, where IP is
    /// `IP(src="192.0.2.1", dst="198.51.100.2", id=7)` or `IPv6(src="2001:db8::1", dst="2001:db8::2")`, NAME
    /// and KEY are HMAC-SHA1-96 and 20, SHA2-256-128 and 32, SHA2-384-192 and 48, SHA2-512-256 and 64. Beside
    /// each packet: the lengths of ICV and header.
    const GOLDEN: [(&str, usize, usize); 8] = [
        (
            "450000390007000040338e54c0000201c6336402110400000000100100000007ac036d1bd2e3f21a2d9ff9bb13880035\
             000daff77175657279",
            12,
            24,
        ),
        (
            "4500003d0007000040338e50c0000201c6336402110500000000100100000007fd53c904c477c4c64bccec30a66d6ea8\
             13880035000daff77175657279",
            16,
            28,
        ),
        (
            "450000450007000040338e48c0000201c6336402110700000000100100000007e96ef918804c0885b4733f4ca1f310bf\
             7397809305a55c5113880035000daff77175657279",
            24,
            36,
        ),
        (
            "4500004d0007000040338e40c0000201c63364021109000000001001000000077dda0a82a5cd9c14f0780dc878c85b7c\
             70a0a2232d5982e883a61c45b69fc38213880035000daff77175657279",
            32,
            44,
        ),
        (
            "600000000025334020010db800000000000000000000000120010db80000000000000000000000021104000000001001\
             000000070bbf2d9feff777f98868539413880035000d40ba7175657279",
            12,
            24,
        ),
        (
            "60000000002d334020010db800000000000000000000000120010db80000000000000000000000021106000000001001\
             000000071eba1519ab0fa313409561358781537c0000000013880035000d40ba7175657279",
            16,
            32,
        ),
        (
            "600000000035334020010db800000000000000000000000120010db80000000000000000000000021108000000001001\
             00000007f81d102ab0522b3e2aa2825fbc2efb4e2139609e178407070000000013880035000d40ba7175657279",
            24,
            40,
        ),
        (
            "60000000003d334020010db800000000000000000000000120010db8000000000000000000000002110a000000001001\
             00000007192658db09cd7ab37648d5a564a1e0891e7407de76ea6717b104e11b39eefea00000000013880035000d40ba\
             7175657279",
            32,
            48,
        ),
    ];

    #[test]
    fn headers_made_by_scapy_are_read_and_written() {
        for (packet, icv_bytes, header_bytes) in GOLDEN {
            let packet = hex(packet);
            let ip = IpHeader::parse(&packet).unwrap();
            assert_eq!(ip.protocol, protocol::AH);
            let bytes = ip.payload(&packet);
            let header = AhHeader::parse(bytes).unwrap();
            let expected = AhHeader { next_header: protocol::UDP, header_bytes, spi: 0x1001, sequence: 7 };
            assert_eq!(header, expected);
            assert_eq!(ah_bytes(icv_bytes, ip.version), header_bytes);
            let icv = header.icv(icv_bytes, ip.version).unwrap();
            let mut written = vec![0xFF; header_bytes];
            header.write(&mut written).unwrap();
            written[icv.clone()].copy_from_slice(&bytes[icv]);
            assert_eq!(written, bytes[..header_bytes]);
            assert_eq!(bytes[header_bytes..header_bytes + 4], [0x13, 0x88, 0, 53], "UDP follows");
        }
    }

    /// RFC 4302 2.2: "if an integrity algorithm yields a 96-bit authentication value, this length field will
    /// be "4" (3 32-bit word fixed fields plus 3 32-bit words for the ICV, minus 2)" over IPv4.
    #[test]
    fn payload_len_is_checked_against_the_bytes_there_are() {
        let mut bytes = [0; MAX_AH_BYTES];
        let header = AhHeader { next_header: 6, header_bytes: 24, spi: 1 << 31, sequence: u32::MAX };
        header.write(&mut bytes).unwrap();
        assert_eq!(bytes[1], 4);
        for len in 0..24 {
            assert_eq!(AhHeader::parse(&bytes[..len]), Err(ParseError::Truncated), "{len} bytes");
        }
        assert_eq!(AhHeader::parse(&bytes[..24]), Ok(header));
        for payload_len in 0..=u8::MAX {
            bytes[1] = payload_len;
            let header_bytes = usize::from(payload_len) * 4 + 8;
            let parsed = AhHeader::parse(&bytes).map(|header| header.header_bytes);
            let expected = if payload_len == 0 { Err(ParseError::BadHeader) } else { Ok(header_bytes) };
            assert_eq!(parsed, expected);
            assert!(AhHeader::parse(&bytes[..header_bytes - 1]).is_err(), "{payload_len}");
        }
    }

    /// RFC 4302 2.6: implementations "MUST insert only enough padding to satisfy the IPv4/IPv6 alignment
    /// requirements".
    #[test]
    fn another_length_than_the_icv_and_its_padding_need_is_refused() {
        for version in [Version::V4, Version::V6] {
            for icv_bytes in [8, 12, 16, 24, 32] {
                for header_bytes in (AH_FIXED_BYTES..64).step_by(4) {
                    let header = AhHeader { next_header: 6, header_bytes, spi: 256, sequence: 1 };
                    let fits = header_bytes == ah_bytes(icv_bytes, version);
                    let icv = header.icv(icv_bytes, version);
                    assert_eq!(icv, if fits { Ok(12..12 + icv_bytes) } else { Err(ParseError::BadHeader) });
                }
            }
        }
    }

    #[test]
    fn a_length_that_payload_len_cannot_say_is_not_written() {
        for header_bytes in [0, 4, 8, 13, 26, MAX_AH_BYTES + 4, usize::MAX, usize::MAX & !3] {
            let header = AhHeader { next_header: 6, header_bytes, spi: 256, sequence: 1 };
            assert_eq!(
                header.write(&mut [0; 2 * MAX_AH_BYTES]),
                Err(ParseError::BadHeader),
                "{header_bytes}"
            );
        }
        let header = AhHeader { next_header: 6, header_bytes: 24, spi: 256, sequence: 1 };
        assert_eq!(header.write(&mut [0; 23]), Err(ParseError::Truncated));
    }

    proptest! {
        #[test]
        fn what_parses_is_written_back(bytes in prop::collection::vec(any::<u8>(), 0..1100)) {
            let Ok(header) = AhHeader::parse(&bytes) else { return Ok(()) };
            prop_assert!(header.header_bytes <= bytes.len());
            let mut written = vec![0xEE; header.header_bytes];
            header.write(&mut written).unwrap();
            prop_assert_eq!(&written[..2], &bytes[..2]);
            prop_assert_eq!(&written[4..12], &bytes[4..12]);
            prop_assert!(written[12..].iter().all(|&byte| byte == 0));
            prop_assert_eq!(AhHeader::parse(&written), Ok(header));
        }
    }
}
