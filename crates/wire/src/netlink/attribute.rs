//! Attributes of netlink messages: type, length, value.
//!
//! ```text
//!    0               1               2               3
//!   +-------------------------------+-------------------------------+
//!   |  Length, these 4 included     | N | O |       Type            |
//!   +-------------------------------+-------------------------------+
//!   |  value, then padding to a multiple of 4 bytes                 |
//!   +---------------------------------------------------------------+
//! ```
//!
//! N says that the value is attributes again, O that it is in network order. Old protocols set neither and
//! ignore both, as XFRM does. The padding after the last attribute may be missing.

use super::ALIGNMENT;

/// Bytes before the value.
pub const ATTRIBUTE_HEADER_BYTES: usize = 4;
/// The longest value, in bytes.
pub const MAX_VALUE_BYTES: usize = u16::MAX as usize - ATTRIBUTE_HEADER_BYTES;
/// `NLA_F_NESTED`: the value is attributes.
pub const NESTED: u16 = 1 << 15;
/// `NLA_F_NET_BYTEORDER`: the value is in network order.
pub const NETWORK_ORDER: u16 = 1 << 14;

/// An attribute as it is in a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RawAttribute<'a> {
    /// Its type, without the two flags.
    pub kind: u16,
    /// [`NESTED`] and [`NETWORK_ORDER`], as they were.
    pub flags: u16,
    /// Its value, without padding.
    pub value: &'a [u8],
    /// Where it begins, in bytes from the start of its message: what an acknowledgement points at.
    pub offset: usize,
}

impl<'a> RawAttribute<'a> {
    /// The attributes in the value of this one.
    #[must_use]
    pub fn nested(&self) -> Attributes<'a> {
        attributes(self.value, self.offset + ATTRIBUTE_HEADER_BYTES)
    }
}

/// An attribute whose length is wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "the attribute at byte {offset} of the message says that it has {length} bytes, and there are {bytes}"
)]
pub struct BrokenAttribute {
    /// Where it begins, in bytes from the start of its message.
    pub offset: usize,
    /// What it says; 0 if there is no room for a length.
    pub length: u16,
    /// What there is.
    pub bytes: usize,
}

/// The attributes in `bytes`, which begin `offset` bytes after the start of their message. After an error
/// there is nothing more.
#[must_use]
pub fn attributes(bytes: &[u8], offset: usize) -> Attributes<'_> {
    Attributes { bytes, offset }
}

/// Iterator over attributes: [`attributes`].
#[derive(Debug, Clone)]
pub struct Attributes<'a> {
    bytes: &'a [u8],
    /// Of `bytes`, in the message.
    offset: usize,
}

impl<'a> Attributes<'a> {
    fn read(&self) -> Result<RawAttribute<'a>, BrokenAttribute> {
        let (offset, bytes) = (self.offset, self.bytes.len());
        let Some(&[l0, l1, k0, k1]) = self.bytes.first_chunk() else {
            return Err(BrokenAttribute { offset, length: 0, bytes });
        };
        let (length, kind) = (u16::from_ne_bytes([l0, l1]), u16::from_ne_bytes([k0, k1]));
        let value = self.bytes.get(ATTRIBUTE_HEADER_BYTES..usize::from(length));
        let flags = NESTED | NETWORK_ORDER;
        let value = value.ok_or(BrokenAttribute { offset, length, bytes })?;
        Ok(RawAttribute { kind: kind & !flags, flags: kind & flags, value, offset })
    }
}

impl<'a> Iterator for Attributes<'a> {
    type Item = Result<RawAttribute<'a>, BrokenAttribute>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.bytes.is_empty() {
            return None;
        }
        let read = self.read();
        let step = match &read {
            Ok(attribute) => (ATTRIBUTE_HEADER_BYTES + attribute.value.len()).next_multiple_of(ALIGNMENT),
            Err(_) => self.bytes.len(),
        };
        self.offset += step;
        self.bytes = self.bytes.get(step..).unwrap_or_default();
        Some(read)
    }
}
