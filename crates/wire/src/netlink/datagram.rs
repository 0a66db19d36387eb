//! A datagram of netlink messages, built message by message.
//!
//! Messages of XFRM hold keys, and acknowledgements quote messages: the memory of a [`Datagram`] is wiped
//! when it is dropped, and whenever it moves because it grows.

use super::attribute::{ATTRIBUTE_HEADER_BYTES, NESTED};
use super::{ALIGNMENT, HEADER_BYTES, Header, flag, kind};
use zeroize::Zeroizing;

/// Messages for one datagram.
#[derive(Default)]
pub struct Datagram(Zeroizing<Vec<u8>>);

impl Datagram {
    /// An empty one.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// An empty one with room for `bytes` before its memory moves.
    #[must_use]
    pub fn with_capacity(bytes: usize) -> Self {
        Self(Zeroizing::new(Vec::with_capacity(bytes)))
    }

    /// What has been built.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Its bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether it has no message yet.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Forgets the messages, and keeps the memory, wiped.
    pub fn clear(&mut self) {
        self.0.fill(0);
        self.0.clear();
    }

    /// Forgets everything after the first `bytes`: a message that does not fit, which goes into the next
    /// datagram.
    pub fn truncate(&mut self, bytes: usize) {
        if let Some(rest) = self.0.get_mut(bytes..) {
            rest.fill(0);
        }
        self.0.truncate(bytes);
    }

    /// Begins a message; `header.length` is filled in at its end. [`MessageBuilder::finish`] ends it.
    pub fn message(&mut self, header: Header) -> MessageBuilder<'_> {
        let start = self.0.len();
        self.extend(&header.to_bytes());
        MessageBuilder { datagram: self, start }
    }

    /// Ends an answer in several messages, of the request that `header` belongs to, with an errno or 0.
    pub fn done(&mut self, request: &Header, port: u32, errno: i32) {
        let header = Header { kind: kind::DONE, flags: flag::MULTI, port, ..*request };
        let mut message = self.message(header);
        message.body(&errno.to_ne_bytes());
        message.finish();
    }

    /// Appends bytes, and wipes those that it leaves where it has to move.
    fn extend(&mut self, bytes: &[u8]) {
        let needed = self.0.len() + bytes.len();
        if needed > self.0.capacity() {
            let mut larger = Zeroizing::new(Vec::with_capacity(needed.max(2 * self.0.capacity()).max(512)));
            larger.extend_from_slice(&self.0);
            self.0 = larger;
        }
        self.0.extend_from_slice(bytes);
    }

    fn pad(&mut self) {
        let missing = self.0.len().next_multiple_of(ALIGNMENT) - self.0.len();
        self.extend(&[0; ALIGNMENT][..missing]);
    }
}

/// Says how long it is, never what is in it, which may be keys.
impl std::fmt::Debug for Datagram {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Datagram of {} bytes", self.0.len())
    }
}

/// A message that is being built: its body, then attributes.
#[derive(Debug)]
#[must_use = "the length of a message is written by finish()"]
pub struct MessageBuilder<'a> {
    datagram: &'a mut Datagram,
    start: usize,
}

impl MessageBuilder<'_> {
    /// Appends the structure that the type calls for, and pads it.
    pub fn body(&mut self, bytes: &[u8]) {
        self.datagram.extend(bytes);
        self.datagram.pad();
    }

    /// Appends an attribute, and pads it.
    ///
    /// # Panics If `value` is longer than [`MAX_VALUE_BYTES`](super::attribute::MAX_VALUE_BYTES), which
    /// nothing that was read from an attribute is.
    pub fn attribute(&mut self, kind: u16, value: &[u8]) {
        let length = u16::try_from(ATTRIBUTE_HEADER_BYTES + value.len());
        let length = length.unwrap_or_else(|_| unreachable!("an attribute of {} bytes", value.len()));
        self.datagram.extend(&length.to_ne_bytes());
        self.datagram.extend(&kind.to_ne_bytes());
        self.datagram.extend(value);
        self.datagram.pad();
    }

    /// Appends an attribute whose value is the attributes that `build` appends.
    ///
    /// # Panics
    /// If these are longer than a value may be.
    pub fn nested(&mut self, kind: u16, build: impl FnOnce(&mut Self)) {
        let start = self.datagram.len();
        self.attribute(kind | NESTED, &[]);
        build(self);
        let length = u16::try_from(self.datagram.len() - start);
        let length = length.unwrap_or_else(|_| unreachable!("attributes too long for their attribute"));
        self.datagram.0[start..start + 2].copy_from_slice(&length.to_ne_bytes());
    }

    /// Ends the message: its header says how long it is, padding included.
    ///
    /// # Panics
    /// If it has 4 GiB or more.
    pub fn finish(self) {
        self.datagram.pad();
        let length = u32::try_from(self.datagram.len() - self.start);
        let length = length.unwrap_or_else(|_| unreachable!("a message of 4 GiB"));
        self.datagram.0[self.start..self.start + 4].copy_from_slice(&length.to_ne_bytes());
    }

    /// Bytes so far, the header included.
    #[must_use]
    pub fn len(&self) -> usize {
        self.datagram.len() - self.start
    }

    /// Whether only the header has been written.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == HEADER_BYTES
    }
}
