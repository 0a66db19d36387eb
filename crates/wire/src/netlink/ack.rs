//! Acknowledgements: `NLMSG_ERROR`, with an errno or 0, and an extended part where the socket has asked for
//! it (`NETLINK_EXT_ACK`; Linux `netlink_ack()` in `net/netlink/af_netlink.c`).
//!
//! ```text
//!   header │ errno, negative, or 0 │ header of the request │ rest of the request │ attributes: text, offset
//!                                                            only of a refused one,
//!                                                            unless CAPPED
//! ```

use super::attribute::attributes;
use super::datagram::Datagram;
use super::errno::Errno;
use super::{ALIGNMENT, HEADER_BYTES, Header, Message, flag, kind};

/// Attribute with a text that ends in NUL (`NLMSGERR_ATTR_MSG`).
pub const TEXT: u16 = 1;
/// Attribute with an offset in the request, 32 bits (`NLMSGERR_ATTR_OFFS`).
pub const OFFSET: u16 = 2;

/// Why a request is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub struct Refusal {
    /// The kernel's number for it.
    pub errno: Errno,
    /// What helps: an English clause without a full stop.
    pub text: String,
    /// Where in the request the attribute is that was at fault, in bytes from the start of its header.
    pub offset: Option<usize>,
}

impl Refusal {
    /// A refusal that no attribute is to blame for.
    #[must_use]
    pub fn new(errno: Errno, text: impl Into<String>) -> Self {
        Self { errno, text: text.into(), offset: None }
    }

    /// The same, blaming the attribute at `offset`.
    #[must_use]
    pub fn at(self, offset: usize) -> Self {
        Self { offset: Some(offset), ..self }
    }
}

/// What a socket wants in acknowledgements.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct AckOptions {
    /// `NETLINK_CAP_ACK`: of a refused request only the header.
    pub capped: bool,
    /// `NETLINK_EXT_ACK`: text and offset.
    pub extended: bool,
}

impl Datagram {
    /// Acknowledges `request` to the process at `port`, with success or what it is refused for.
    pub fn ack(&mut self, request: &Message, port: u32, outcome: Result<(), &Refusal>, options: AckOptions) {
        let refusal = outcome.err();
        // As the kernel does: what went well is quoted with its header alone, and counts as capped.
        let is_capped = refusal.is_none() || options.capped;
        let quoted = if is_capped { &request.bytes[..HEADER_BYTES] } else { request.bytes };
        let extension = refusal.filter(|_| options.extended);
        let capped = if is_capped { flag::CAPPED } else { 0 };
        let tlvs = if extension.is_some() { flag::ACK_TLVS } else { 0 };
        let header = Header { kind: kind::ERROR, flags: capped | tlvs, port, ..request.header };
        let mut message = self.message(header);
        message.body(&refusal.map_or(0, |refusal| refusal.errno.code()).to_ne_bytes());
        message.body(quoted);
        if let Some(refusal) = extension {
            message.attribute(TEXT, &[refusal.text.as_bytes(), &[0]].concat());
            let offset = refusal.offset.and_then(|offset| u32::try_from(offset).ok());
            offset.inspect(|offset| message.attribute(OFFSET, &offset.to_ne_bytes()));
        }
        message.finish();
    }
}

/// An acknowledgement, as a client reads it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// 0, or an errno as a negative number.
    pub code: i32,
    /// The header of the request.
    pub request: Header,
    /// The text of the extended part.
    pub text: Option<String>,
    /// Its offset: which attribute of the request was at fault.
    pub offset: Option<u32>,
}

impl Answer {
    /// Reads a message of type [`kind::ERROR`]. Nothing if it is of another type, or its lengths do not fit.
    #[must_use]
    pub fn read(message: &Message) -> Option<Self> {
        if message.header.kind != kind::ERROR {
            return None;
        }
        let (code, rest) = message.payload().split_first_chunk()?;
        let request = Header::read(rest.first_chunk()?);
        let mut answer = Self { code: i32::from_ne_bytes(*code), request, text: None, offset: None };
        if message.header.has(flag::ACK_TLVS) {
            answer.read_extension(message)?;
        }
        Some(answer)
    }

    fn read_extension(&mut self, message: &Message) -> Option<()> {
        let is_capped = message.header.has(flag::CAPPED);
        let said = usize::try_from(self.request.length).ok().filter(|said| *said >= HEADER_BYTES)?;
        let quoted = if is_capped { HEADER_BYTES } else { said };
        let start = quoted.checked_add(Self::OVERHEAD_BYTES)?.checked_next_multiple_of(ALIGNMENT)?;
        for attribute in attributes(message.bytes.get(start..)?, start) {
            let attribute = attribute.ok()?;
            match attribute.kind {
                TEXT => {
                    let text = attribute.value.strip_suffix(&[0]).unwrap_or(attribute.value);
                    self.text = Some(String::from_utf8_lossy(text).into_owned());
                }
                OFFSET => self.offset = Some(u32::from_ne_bytes(*attribute.value.first_chunk()?)),
                _ => {}
            }
        }
        Some(())
    }

    /// Bytes that an acknowledgement has besides what it quotes, without an extended part.
    pub const OVERHEAD_BYTES: usize = HEADER_BYTES + 4;
}
