//! The header before each frame of a TUN device with `IFF_VNET_HDR`: what is left to the reader to do, and
//! how to cut (virtio 1.2, 5.1.6).

/// Bytes of the header: the legacy format without the number of buffers.
pub const VNET_HEADER_BYTES: usize = 10;

/// `VIRTIO_NET_HDR_F_NEEDS_CSUM`: the checksum field holds only the pseudo-header's sum.
pub const NEEDS_CHECKSUM: u8 = 1;
/// `VIRTIO_NET_HDR_GSO_ECN`: may accompany a TCP type; only the first segment then carries CWR.
const ECN: u8 = 0x80;

/// How a super-frame is to be cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Gso {
    /// TCP over IPv4.
    TcpV4,
    /// TCP over IPv6.
    TcpV6,
    /// UDP over either version (USO).
    Udp,
}

/// The header, field by field.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct VnetHeader {
    /// [`NEEDS_CHECKSUM`] or nothing.
    pub flags: u8,
    /// 0 for a single packet, else how to cut; see [`gso`](Self::gso).
    pub gso_type: u8,
    /// Bytes of headers, as a hint only: Linux writes the length of its first piece of memory.
    pub header_bytes: u16,
    /// Payload bytes of each segment but the last.
    pub gso_size: u16,
    /// Where the checksummed bytes start.
    pub checksum_start: u16,
    /// Where the checksum field is, relative to that.
    pub checksum_offset: u16,
}

/// A type of super-frame that was not negotiated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a super-frame of type {0}, which was not negotiated")]
pub struct UnknownGso(pub u8);

impl VnetHeader {
    /// Reads the header; its fields are in the machine's byte order.
    #[must_use]
    pub fn from_bytes(b: &[u8; VNET_HEADER_BYTES]) -> Self {
        let field = |at: usize| u16::from_ne_bytes([b[at], b[at + 1]]);
        Self {
            flags: b[0],
            gso_type: b[1],
            header_bytes: field(2),
            gso_size: field(4),
            checksum_start: field(6),
            checksum_offset: field(8),
        }
    }

    /// The header's bytes.
    #[must_use]
    pub fn to_bytes(self) -> [u8; VNET_HEADER_BYTES] {
        let mut bytes = [0; VNET_HEADER_BYTES];
        bytes[0] = self.flags;
        bytes[1] = self.gso_type;
        bytes[2..4].copy_from_slice(&self.header_bytes.to_ne_bytes());
        bytes[4..6].copy_from_slice(&self.gso_size.to_ne_bytes());
        bytes[6..8].copy_from_slice(&self.checksum_start.to_ne_bytes());
        bytes[8..10].copy_from_slice(&self.checksum_offset.to_ne_bytes());
        bytes
    }

    /// How to cut; `None` for a single packet.
    ///
    /// # Errors
    /// [`UnknownGso`] for a type that this port never requests from the kernel.
    pub fn gso(&self) -> Result<Option<Gso>, UnknownGso> {
        match self.gso_type & !ECN {
            0 => Ok(None),
            1 => Ok(Some(Gso::TcpV4)),
            4 => Ok(Some(Gso::TcpV6)),
            5 => Ok(Some(Gso::Udp)),
            other => Err(UnknownGso(other)),
        }
    }
}

impl Gso {
    /// The value of [`VnetHeader::gso_type`].
    #[must_use]
    pub fn code(self) -> u8 {
        match self {
            Gso::TcpV4 => 1,
            Gso::TcpV6 => 4,
            Gso::Udp => 5,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_back() {
        let header = VnetHeader {
            flags: NEEDS_CHECKSUM,
            gso_type: 4 | ECN,
            header_bytes: 60,
            gso_size: 1400,
            checksum_start: 40,
            checksum_offset: 16,
        };
        assert_eq!(VnetHeader::from_bytes(&header.to_bytes()), header);
        assert_eq!(header.gso(), Ok(Some(Gso::TcpV6)));
    }

    #[test]
    fn types_that_were_not_negotiated_are_named() {
        assert_eq!(VnetHeader { gso_type: 3, ..Default::default() }.gso(), Err(UnknownGso(3)));
        assert_eq!(VnetHeader::default().gso(), Ok(None));
    }
}
