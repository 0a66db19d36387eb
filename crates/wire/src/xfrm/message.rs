//! Whole XFRM messages: which type has which structure, and the attributes after it.

use super::attribute::Attributes;
use super::info::{InfoFlags, SadInfo, SpdInfo};
use super::kind;
use super::notification::{Acquire, Expire, Mapping, PolicyExpire, Report};
use super::policy::{PolicyDefaults, PolicyId, PolicyInfo};
use super::sa::{EventId, FlushSas, SaInfo, SpiRequest};
use super::selector::SaId;
use super::structure::Structure;
use crate::netlink::ack::Refusal;
use crate::netlink::attribute::ATTRIBUTE_HEADER_BYTES;
use crate::netlink::datagram::Datagram;
use crate::netlink::errno::Errno;
use crate::netlink::{self, ALIGNMENT, HEADER_BYTES, Header, flag};

/// What a message begins with, by its type. Which way it goes is said for each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Body {
    /// To the server: add an SA. From it: an SA that was asked for, is new, or is part of a dump.
    NewSa(SaInfo),
    /// To the server: delete an SA. From it: one was deleted.
    DeleteSa(SaId),
    /// To the server: show an SA.
    GetSa(SaId),
    /// To the server: show all SAs, or those that `address_filter` and `protocol` say. The same type as
    /// [`GetSa`](Self::GetSa), with one of the flags of [`flag::DUMP`].
    DumpSas,
    /// To the server: add a policy, which must not be there. From it: as with SAs.
    NewPolicy(PolicyInfo),
    /// To the server: delete a policy. From it: one was deleted.
    DeletePolicy(PolicyId),
    /// To the server: show a policy.
    GetPolicy(PolicyId),
    /// To the server: show all policies. The same type as [`GetPolicy`](Self::GetPolicy), with one of the
    /// flags of [`flag::DUMP`].
    DumpPolicies,
    /// To the server: reserve an SPI. The answer is [`NewSa`](Self::NewSa).
    AllocateSpi(SpiRequest),
    /// From the server: a packet needs an SA.
    Acquire(Acquire),
    /// From the server: an SA is at a limit. To it: let it be.
    Expire(Expire),
    /// To the server: add a policy, or replace it. From it: one was replaced.
    UpdatePolicy(PolicyInfo),
    /// To the server: complete or change an SA. From it: one was changed.
    UpdateSa(SaInfo),
    /// From the server: a policy is at a limit. To it: let it be.
    PolicyExpire(PolicyExpire),
    /// To the server: delete all SAs of a protocol. From it: they were deleted.
    FlushSas(FlushSas),
    /// To the server: delete all policies. From it: they were deleted.
    FlushPolicies,
    /// To the server: set numbers and use of an SA. From it: as asked, or they changed.
    NewEvent(EventId),
    /// To the server: show numbers and use of an SA.
    GetEvent(EventId),
    /// From the server: a packet was refused.
    Report(Report),
    /// To the server: move SAs and policies to other addresses. From it: they moved.
    Migrate(PolicyId),
    /// From the server: how many SAs there are.
    SadInfo(SadInfo),
    /// To the server: how many SAs are there?
    GetSadInfo(InfoFlags),
    /// From the server: how many policies there are. To it: set the thresholds.
    SpdInfo(SpdInfo),
    /// To the server: how many policies are there?
    GetSpdInfo(InfoFlags),
    /// From the server: a peer's address has changed.
    Mapping(Mapping),
    /// To the server: set what becomes of packets without a policy.
    SetDefaults(PolicyDefaults),
    /// To the server, with any content: what becomes of packets without a policy? From it: this.
    GetDefaults(PolicyDefaults),
}

/// A message: what it begins with, then attributes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    /// The type's structure.
    pub body: Body,
    /// Its attributes. None in [`Body::SadInfo`] and [`Body::SpdInfo`], which have their own.
    pub attributes: Attributes,
}

impl From<Body> for Message {
    /// A message without attributes.
    fn from(body: Body) -> Self {
        Self { body, attributes: Attributes::default() }
    }
}

/// A message's payload, its structure read first.
struct Payload<'a> {
    bytes: &'a [u8],
    kind: u16,
}

impl<'a> Payload<'a> {
    /// The structure at the start, and what follows it.
    fn split<T: Structure>(&self) -> Result<(T, &'a [u8]), Refusal> {
        let structure = T::read_first(self.bytes).ok_or_else(|| {
            let name = kind::name_of(self.kind).unwrap_or_default();
            let text = format!("{name} has {} bytes, at least {} are needed", self.bytes.len(), T::LENGTH);
            Refusal::new(Errno::INVAL, text)
        })?;
        // Short structures are padded, but the padding at the end of a message may be missing.
        Ok((structure, self.bytes.get(T::LENGTH.next_multiple_of(ALIGNMENT)..).unwrap_or_default()))
    }

    /// A body of one structure, with attributes.
    fn with<T: Structure>(&self, body: impl FnOnce(T) -> Body) -> Result<Message, Refusal> {
        let (structure, rest) = self.split()?;
        let attributes = Attributes::read(rest, HEADER_BYTES + T::LENGTH.next_multiple_of(ALIGNMENT))?;
        Ok(Message { body: body(structure), attributes })
    }

    /// A dump has no structure.
    fn dump(&self, body: Body) -> Result<Message, Refusal> {
        Ok(Message { body, attributes: Attributes::read_while_whole(self.bytes, HEADER_BYTES)? })
    }

    fn sad_info(&self) -> Result<Message, Refusal> {
        let (flags, rest) = self.split()?;
        Ok(Body::SadInfo(SadInfo::read(flags, rest, HEADER_BYTES + InfoFlags::LENGTH)?).into())
    }

    fn spd_info(&self) -> Result<Message, Refusal> {
        let (flags, rest) = self.split()?;
        Ok(Body::SpdInfo(SpdInfo::read(flags, rest, HEADER_BYTES + InfoFlags::LENGTH)?).into())
    }

    fn read(&self, is_dump: bool) -> Result<Message, Refusal> {
        match self.kind {
            kind::NEW_SA => self.with(Body::NewSa),
            kind::DELETE_SA => self.with(Body::DeleteSa),
            kind::GET_SA if is_dump => self.dump(Body::DumpSas),
            kind::GET_SA => self.with(Body::GetSa),
            kind::NEW_POLICY => self.with(Body::NewPolicy),
            kind::DELETE_POLICY => self.with(Body::DeletePolicy),
            kind::GET_POLICY if is_dump => self.dump(Body::DumpPolicies),
            kind::GET_POLICY => self.with(Body::GetPolicy),
            kind::ALLOCATE_SPI => self.with(Body::AllocateSpi),
            kind::ACQUIRE => self.with(Body::Acquire),
            kind::EXPIRE => self.with(Body::Expire),
            kind::UPDATE_POLICY => self.with(Body::UpdatePolicy),
            kind::UPDATE_SA => self.with(Body::UpdateSa),
            kind::POLICY_EXPIRE => self.with(Body::PolicyExpire),
            kind::FLUSH_SAS => self.with(Body::FlushSas),
            kind::FLUSH_POLICIES => {
                let attributes = Attributes::read(self.bytes, HEADER_BYTES)?;
                Ok(Message { body: Body::FlushPolicies, attributes })
            }
            kind::NEW_EVENT => self.with(Body::NewEvent),
            kind::GET_EVENT => self.with(Body::GetEvent),
            kind::REPORT => self.with(Body::Report),
            kind::MIGRATE => self.with(Body::Migrate),
            kind::SAD_INFO => self.sad_info(),
            kind::GET_SAD_INFO => self.with(Body::GetSadInfo),
            kind::SPD_INFO => self.spd_info(),
            kind::GET_SPD_INFO => self.with(Body::GetSpdInfo),
            kind::MAPPING => self.with(Body::Mapping),
            kind::SET_DEFAULTS => self.with(Body::SetDefaults),
            kind::GET_DEFAULTS => self.with(Body::GetDefaults),
            other => Err(Refusal::new(Errno::INVAL, format!("{other} is no type of XFRM message"))),
        }
    }
}

impl Body {
    /// The message's type: [`kind`].
    #[must_use]
    pub const fn kind(&self) -> u16 {
        match self {
            Self::NewSa(_) => kind::NEW_SA,
            Self::DeleteSa(_) => kind::DELETE_SA,
            Self::GetSa(_) | Self::DumpSas => kind::GET_SA,
            Self::NewPolicy(_) => kind::NEW_POLICY,
            Self::DeletePolicy(_) => kind::DELETE_POLICY,
            Self::GetPolicy(_) | Self::DumpPolicies => kind::GET_POLICY,
            Self::AllocateSpi(_) => kind::ALLOCATE_SPI,
            Self::Acquire(_) => kind::ACQUIRE,
            Self::Expire(_) => kind::EXPIRE,
            Self::UpdatePolicy(_) => kind::UPDATE_POLICY,
            Self::UpdateSa(_) => kind::UPDATE_SA,
            Self::PolicyExpire(_) => kind::POLICY_EXPIRE,
            Self::FlushSas(_) => kind::FLUSH_SAS,
            Self::FlushPolicies => kind::FLUSH_POLICIES,
            Self::NewEvent(_) => kind::NEW_EVENT,
            Self::GetEvent(_) => kind::GET_EVENT,
            Self::Report(_) => kind::REPORT,
            Self::Migrate(_) => kind::MIGRATE,
            Self::SadInfo(_) => kind::SAD_INFO,
            Self::GetSadInfo(_) => kind::GET_SAD_INFO,
            Self::SpdInfo(_) => kind::SPD_INFO,
            Self::GetSpdInfo(_) => kind::GET_SPD_INFO,
            Self::Mapping(_) => kind::MAPPING,
            Self::SetDefaults(_) => kind::SET_DEFAULTS,
            Self::GetDefaults(_) => kind::GET_DEFAULTS,
        }
    }

    fn write(&self, message: &mut netlink::datagram::MessageBuilder) {
        match self {
            Self::NewSa(sa) | Self::UpdateSa(sa) => message.body(&sa.to_bytes()),
            Self::DeleteSa(id) | Self::GetSa(id) => message.body(&id.to_bytes()),
            Self::NewPolicy(policy) | Self::UpdatePolicy(policy) => message.body(&policy.to_bytes()),
            Self::DeletePolicy(id) | Self::GetPolicy(id) | Self::Migrate(id) => message.body(&id.to_bytes()),
            Self::AllocateSpi(request) => message.body(&request.to_bytes()),
            Self::Acquire(acquire) => message.body(&acquire.to_bytes()),
            Self::Expire(expire) => message.body(&expire.to_bytes()),
            Self::PolicyExpire(expire) => message.body(&expire.to_bytes()),
            Self::FlushSas(flush) => message.body(&flush.to_bytes()),
            Self::DumpSas | Self::DumpPolicies | Self::FlushPolicies => {}
            Self::NewEvent(id) | Self::GetEvent(id) => message.body(&id.to_bytes()),
            Self::Report(report) => message.body(&report.to_bytes()),
            Self::SadInfo(info) => info.write(message),
            Self::SpdInfo(info) => info.write(message),
            Self::GetSadInfo(flags) | Self::GetSpdInfo(flags) => message.body(&flags.to_bytes()),
            Self::Mapping(mapping) => message.body(&mapping.to_bytes()),
            Self::SetDefaults(defaults) | Self::GetDefaults(defaults) => message.body(&defaults.to_bytes()),
        }
    }
}

impl Message {
    /// Reads a message. Whether it is a request, and which flags it has, is in its header.
    ///
    /// # Errors What the kernel's own checks of lengths give, with a text that says more: `EINVAL` for an
    /// unknown type, a message shorter than its structure, an attribute longer than the message, and for what
    /// does not fit inside of an attribute; `ERANGE` for an attribute that is too short.
    pub fn read(message: &netlink::Message) -> Result<Self, Refusal> {
        let payload = Payload { bytes: message.payload(), kind: message.header.kind };
        payload.read(message.header.flags & flag::DUMP != 0)
    }

    /// Appends the message to a datagram. Of `header` flags, sequence and port are used.
    pub fn write(&self, header: Header, datagram: &mut Datagram) {
        let mut message = datagram.message(Header { kind: self.body.kind(), ..header });
        self.body.write(&mut message);
        self.attributes.write(&mut message);
        message.finish();
    }
}

const _: () =
    assert!(ATTRIBUTE_HEADER_BYTES == ALIGNMENT, "an attribute's value begins at a multiple of 4 bytes");
