//! Netlink messages (RFC 3549 2.3; Linux `include/uapi/linux/netlink.h`), as a datagram socket carries them.
//!
//! ```text
//!    0               1               2               3
//!   +---------------------------------------------------------------+
//!   |                 Length, header included                       |
//!   +-------------------------------+-------------------------------+
//!   |            Type               |            Flags              |
//!   +-------------------------------+-------------------------------+
//!   |                 Sequence number                               |
//!   +---------------------------------------------------------------+
//!   |                 Port ID of the sending process                |
//!   +---------------------------------------------------------------+
//!   |  what the type says: a structure, then attributes             |
//!   +---------------------------------------------------------------+
//! ```
//!
//! A datagram holds one message or several, each at a multiple of 4 bytes. [`messages`] goes through them,
//! [`attribute::attributes`] through the attributes of one; [`Datagram`](datagram::Datagram) builds both, and
//! [`ack`] the kernel's answers.
//!
//! **Byte order** is the host's, in headers and attributes alike: both ends are on one machine. What a
//! protocol carries in network order, such as XFRM its SPIs and ports, is its own matter.
//!
//! **Lengths.** The kernel passes over what is wrong at the end of a datagram or of a run of attributes, with
//! a line in its log. Here each length is checked, and a wrong one is an error that says where it is: half of
//! a message must not be taken for a whole one.

pub mod ack;
pub mod attribute;
pub mod datagram;
pub mod errno;
#[cfg(test)]
mod tests;

/// Bytes of a message's header.
pub const HEADER_BYTES: usize = 16;
/// Messages, and attributes in them, are at multiples of this many bytes.
pub const ALIGNMENT: usize = 4;

/// Types that every netlink protocol shares. Types below 16 are reserved for them.
pub mod kind {
    /// Nothing; to be ignored.
    pub const NOOP: u16 = 1;
    /// An acknowledgement, or an error: [`ack::Answer`](super::ack::Answer).
    pub const ERROR: u16 = 2;
    /// The end of an answer in several messages.
    pub const DONE: u16 = 3;
    /// Messages were lost.
    pub const OVERRUN: u16 = 4;
    /// The first type that is a protocol's own.
    pub const FIRST_OF_PROTOCOL: u16 = 16;
}

/// Flags of a header. The high byte means one thing in requests that get, another in those that make
/// something, and a third in acknowledgements.
pub mod flag {
    /// A request. The kernel passes over messages without it.
    pub const REQUEST: u16 = 0x1;
    /// Part of an answer in several messages, which [`kind::DONE`](super::kind::DONE) ends.
    pub const MULTI: u16 = 0x2;
    /// The sender wants an acknowledgement, of success too.
    pub const ACK: u16 = 0x4;
    /// The answer repeats the request.
    pub const ECHO: u16 = 0x8;
    /// Getting: everything, from the root.
    pub const ROOT: u16 = 0x100;
    /// Getting: everything that matches.
    pub const MATCH: u16 = 0x200;
    /// Getting: all entries. One of its two bits suffices.
    pub const DUMP: u16 = ROOT | MATCH;
    /// Making: replaces what is there. The same bit as [`ROOT`].
    pub const REPLACE: u16 = 0x100;
    /// Making: only if it is not there. The same bit as [`MATCH`].
    pub const EXCLUSIVE: u16 = 0x200;
    /// Making: if it is not there.
    pub const CREATE: u16 = 0x400;
    /// Acknowledgement: of the request only the header is quoted.
    pub const CAPPED: u16 = 0x100;
    /// Acknowledgement: attributes follow, with a text or an offset.
    pub const ACK_TLVS: u16 = 0x200;
}

/// The header of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Header {
    /// Bytes of the message, this header included. Builders fill it in.
    pub length: u32,
    /// What follows: [`kind`], or the protocol's own.
    pub kind: u16,
    /// [`flag`].
    pub flags: u16,
    /// Chosen by who asks; the answer has the same.
    pub sequence: u32,
    /// Port ID. An answer carries that of the process that asked, a notification 0.
    pub port: u32,
}

impl Header {
    /// Reads a header.
    #[must_use]
    pub fn read(bytes: &[u8; HEADER_BYTES]) -> Self {
        let [l0, l1, l2, l3, k0, k1, f0, f1, s0, s1, s2, s3, p0, p1, p2, p3] = *bytes;
        Self {
            length: u32::from_ne_bytes([l0, l1, l2, l3]),
            kind: u16::from_ne_bytes([k0, k1]),
            flags: u16::from_ne_bytes([f0, f1]),
            sequence: u32::from_ne_bytes([s0, s1, s2, s3]),
            port: u32::from_ne_bytes([p0, p1, p2, p3]),
        }
    }

    /// The header's bytes.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[..4].copy_from_slice(&self.length.to_ne_bytes());
        bytes[4..6].copy_from_slice(&self.kind.to_ne_bytes());
        bytes[6..8].copy_from_slice(&self.flags.to_ne_bytes());
        bytes[8..12].copy_from_slice(&self.sequence.to_ne_bytes());
        bytes[12..].copy_from_slice(&self.port.to_ne_bytes());
        bytes
    }

    /// Whether the flags say `flag`, all its bits.
    #[must_use]
    pub const fn has(&self, flag: u16) -> bool {
        self.flags & flag == flag
    }
}

/// A message of a datagram. Its lengths are checked.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Message<'a> {
    /// Its header.
    pub header: Header,
    /// The whole message, as long as the header says.
    pub bytes: &'a [u8],
}

/// Says the header and the length, never the bytes, which may be keys.
impl std::fmt::Debug for Message<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Message").field("header", &self.header).field("bytes", &self.bytes.len()).finish()
    }
}

impl<'a> Message<'a> {
    /// What follows the header.
    #[must_use]
    pub fn payload(&self) -> &'a [u8] {
        &self.bytes[HEADER_BYTES..]
    }
}

/// Why a datagram cannot be read any further. Offsets are from the start of the datagram, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NetlinkError {
    /// Fewer bytes than a header has.
    #[error("the message at byte {offset} of the datagram has {bytes} bytes, and a netlink header needs 16")]
    NoHeader {
        /// Where the message begins.
        offset: usize,
        /// What there is.
        bytes: usize,
    },
    /// The header says less than its own length.
    #[error(
        "the message at byte {offset} of the datagram says that it has {length} bytes, fewer than its header"
    )]
    TooShort {
        /// Where the message begins.
        offset: usize,
        /// What the header says.
        length: u32,
    },
    /// The header says more than there is.
    #[error(
        "the message at byte {offset} of the datagram says that it has {length} bytes, and there are {bytes}"
    )]
    TooLong {
        /// Where the message begins.
        offset: usize,
        /// What the header says.
        length: u32,
        /// What there is.
        bytes: usize,
    },
}

/// The messages of a datagram, in order. After an error there is nothing more.
#[must_use]
pub fn messages(datagram: &[u8]) -> Messages<'_> {
    Messages { datagram, offset: 0 }
}

/// Iterator over the messages of a datagram: [`messages`].
#[derive(Clone)]
pub struct Messages<'a> {
    datagram: &'a [u8],
    offset: usize,
}

impl<'a> Messages<'a> {
    fn read(&self) -> Result<Message<'a>, NetlinkError> {
        let (offset, rest) = (self.offset, &self.datagram[self.offset..]);
        let header = rest.first_chunk().ok_or(NetlinkError::NoHeader { offset, bytes: rest.len() })?;
        let header = Header::read(header);
        let length = usize::try_from(header.length).unwrap_or(usize::MAX);
        if length < HEADER_BYTES {
            return Err(NetlinkError::TooShort { offset, length: header.length });
        }
        let too_long = NetlinkError::TooLong { offset, length: header.length, bytes: rest.len() };
        Ok(Message { header, bytes: rest.get(..length).ok_or(too_long)? })
    }
}

impl<'a> Iterator for Messages<'a> {
    type Item = Result<Message<'a>, NetlinkError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.offset >= self.datagram.len() {
            return None;
        }
        let read = self.read();
        // The padding after the last message may be missing: the offset is then beyond the end.
        self.offset = match &read {
            Ok(message) => self.offset + message.bytes.len().next_multiple_of(ALIGNMENT),
            Err(_) => self.datagram.len(),
        };
        Some(read)
    }
}
