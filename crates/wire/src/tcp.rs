//! TCP headers (RFC 9293 3.1).

use crate::ParseError;

/// Bytes of a TCP header without options.
pub const TCP_HEADER_BYTES: usize = 20;
/// Offset of the checksum in the header.
pub(crate) const CHECKSUM_AT: usize = 16;

/// The flags byte of a TCP header, bit by bit.
pub mod flags {
    /// No more data from the sender.
    pub const FIN: u8 = 0x01;
    /// Opens a connection.
    pub const SYN: u8 = 0x02;
    /// Push.
    pub const PSH: u8 = 0x08;
    /// The acknowledgment number is valid.
    pub const ACK: u8 = 0x10;
    /// ECN echo (RFC 3168 6.1).
    pub const ECE: u8 = 0x40;
    /// Congestion window reduced (RFC 3168 6.1).
    pub const CWR: u8 = 0x80;
}

/// A TCP header, checked against the bytes it came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TcpHeader {
    /// Source port.
    pub source_port: u16,
    /// Destination port.
    pub destination_port: u16,
    /// Sequence number.
    pub sequence: u32,
    /// Acknowledgment number.
    pub acknowledgment: u32,
    /// Bytes of the header with its options.
    pub header_bytes: usize,
    /// The eight flags; see [`flags`].
    pub flags: u8,
}

impl TcpHeader {
    /// Reads the header at the start of `bytes`, an IP payload. The checksum is not verified: it covers the
    /// pseudo-header.
    ///
    /// # Errors
    /// [`ParseError::Truncated`] if bytes are missing, [`ParseError::BadHeader`] if the data offset is below
    /// 5.
    #[inline]
    pub fn parse(bytes: &[u8]) -> Result<Self, ParseError> {
        let h = bytes.first_chunk::<TCP_HEADER_BYTES>().ok_or(ParseError::Truncated)?;
        let header_bytes = usize::from(h[12] >> 4) * 4;
        if header_bytes < TCP_HEADER_BYTES {
            return Err(ParseError::BadHeader);
        }
        if header_bytes > bytes.len() {
            return Err(ParseError::Truncated);
        }
        Ok(Self {
            source_port: u16::from_be_bytes([h[0], h[1]]),
            destination_port: u16::from_be_bytes([h[2], h[3]]),
            sequence: u32::from_be_bytes([h[4], h[5], h[6], h[7]]),
            acknowledgment: u32::from_be_bytes([h[8], h[9], h[10], h[11]]),
            header_bytes,
            flags: h[13],
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_is_read_and_every_length_checked() {
        let mut bytes =
            vec![0x13, 0x88, 0, 80, 1, 2, 3, 4, 5, 6, 7, 8, 0x60, 0x18, 0, 9, 0, 0, 0, 0, 1, 1, 1, 1];
        let header = TcpHeader::parse(&bytes).unwrap();
        assert_eq!((header.source_port, header.destination_port), (5000, 80));
        assert_eq!((header.sequence, header.acknowledgment), (0x0102_0304, 0x0506_0708));
        assert_eq!((header.header_bytes, header.flags), (24, flags::ACK | flags::PSH));
        for len in 0..24 {
            assert_eq!(TcpHeader::parse(&bytes[..len]), Err(ParseError::Truncated), "{len} bytes");
        }
        bytes[12] = 0x40;
        assert_eq!(TcpHeader::parse(&bytes), Err(ParseError::BadHeader));
    }
}
