//! One SA as a client says it, checked by the kernel's rules (`verify_newsa_info`), and as it is shown.

use super::algorithms::Algorithms;
use super::data_path::SaUse;
use super::process_name::ProcessName;
use std::net::IpAddr;
use testudo_crypto::{KeyMaterial, Suite};
use testudo_wire::netlink::ack::Refusal;
use testudo_wire::netlink::errno::Errno;
use testudo_wire::protocol;
use testudo_wire::xfrm::attribute::{Attribute, Attributes, SaDirection};
use testudo_wire::xfrm::lifetime::LifetimeCurrent;
use testudo_wire::xfrm::message::{Body, Message};
use testudo_wire::xfrm::replay::{ReplayState, ReplayStateEsn};
use testudo_wire::xfrm::sa::{SaInfo, SaStats};
use testudo_wire::xfrm::selector::{Mark, SaId, Selector};
use testudo_wire::xfrm::{family, mode, sa_flag};

/// Packets in the widest window that the old form of an SA's state has room for.
const OLD_WINDOW: u8 = 32;

/// What names an SA (RFC 4301 4.1), and the mark that Linux adds: SAs with other marks may have its SPI.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SaKey {
    /// Where it ends.
    pub destination: IpAddr,
    /// ESP or AH.
    pub protocol: u8,
    /// Its SPI.
    pub spi: u32,
    /// Value and mask of its mark.
    pub mark: (u32, u32),
}

/// What an SA was used for before it came here: charon moves one to other addresses by deleting it and adding
/// it again with this (`XFRMA_LTIME_VAL`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct UsedBefore {
    /// Bytes of packets.
    pub bytes: u64,
    /// Packets.
    pub packets: u64,
    /// When it was first used, in seconds since 1970; 0 is never.
    pub first_s: u64,
}

/// An SA.
#[derive(Debug, Clone)]
pub struct XfrmSa {
    /// Its name.
    pub key: SaKey,
    /// Which SA of this name it is: no other one ever has the same number. It keeps it when it moves to other
    /// addresses.
    pub place: u64,
    /// Where it begins.
    pub source: IpAddr,
    /// What the client has said of it, in the form in which it is shown.
    pub info: SaInfo,
    /// The same of its attributes: algorithms, and what else the kernel shows.
    pub attributes: Attributes,
    /// Its algorithms; `None` while only its SPI is reserved.
    pub suite: Option<Suite>,
    /// Whether its packets come from the peer.
    pub is_inbound: bool,
    /// When it was added, in seconds since 1970; before it came here, if the client says so.
    pub added_s: u64,
    /// Its limits count this, too.
    pub used_before: UsedBefore,
    /// Which process has added it ([`Client::owner`](super::Client::owner)).
    pub owner: u64,
    /// The process that has installed it.
    pub daemon: Option<ProcessName>,
}

pub(super) fn invalid(text: impl Into<String>) -> Refusal {
    Refusal::new(Errno::INVAL, text)
}

fn unsupported(text: impl Into<String>) -> Refusal {
    Refusal::new(Errno::OPNOTSUPP, text)
}

/// The address of one of the two families of IP.
pub(super) fn address(
    address: testudo_wire::xfrm::address::Address,
    of: u16,
    what: &str,
) -> Result<IpAddr, Refusal> {
    address.ip(of).ok_or_else(|| invalid(format!("{what}: {of} is neither the family of IPv4 nor of IPv6")))
}

/// The prefixes of a selector fit its family, which may be missing where the kernel takes that.
pub(super) fn check_selector(selector: &Selector, may_be_unspecified: bool) -> Result<(), Refusal> {
    let longest = match selector.family {
        family::IPV4 => 32,
        family::IPV6 => 128,
        family::UNSPECIFIED if may_be_unspecified => return Ok(()),
        other => return Err(invalid(format!("selector: {other} is neither the family of IPv4 nor of IPv6"))),
    };
    let prefix = selector.source_prefix.max(selector.destination_prefix);
    if prefix > longest {
        return Err(invalid(format!("selector: a prefix of {prefix} bits, at most {longest} may be")));
    }
    Ok(())
}

/// The mark by which an SA or a policy is told from others.
pub(super) fn mark_of(attributes: &Attributes) -> (u32, u32) {
    attributes.mark().map_or((0, 0), |mark: &Mark| (mark.value & mark.mask, mark.mask))
}

impl SaKey {
    /// The key that an SA's name and the mark beside it mean.
    ///
    /// # Errors
    /// `EINVAL` if its family is not one of IP.
    pub fn of(id: &SaId, attributes: &Attributes) -> Result<Self, Refusal> {
        let destination = address(id.destination, id.family, "destination")?;
        Ok(Self { destination, protocol: id.protocol, spi: id.spi, mark: mark_of(attributes) })
    }
}

/// What an SA's protocol asks of its attributes.
fn check_protocol(info: &SaInfo, attributes: &Attributes) -> Result<(), Refusal> {
    let has_auth = attributes.integrity().is_some() || attributes.integrity_truncated().is_some();
    let (has_cipher, has_aead) = (attributes.cipher().is_some(), attributes.aead().is_some());
    match info.id.protocol {
        protocol::AH if !has_auth => Err(invalid("AH needs an integrity algorithm (auth or auth-trunc)")),
        protocol::AH if has_cipher || has_aead || attributes.tfc_padding().is_some() => {
            Err(invalid("AH has neither a cipher nor padding (enc, aead, tfcpad)"))
        }
        protocol::AH | protocol::ESP if attributes.compression().is_some() => {
            Err(invalid("compression (comp) is a protocol of its own, IPComp"))
        }
        protocol::ESP if !(has_auth || has_cipher || has_aead) => {
            Err(invalid("ESP needs algorithms: aead, or enc and auth-trunc"))
        }
        protocol::ESP if has_aead && (has_auth || has_cipher) => {
            Err(invalid("a combined mode (aead) comes with neither enc nor auth"))
        }
        protocol::ESP if attributes.tfc_padding().is_some() && info.mode != mode::TUNNEL => {
            Err(invalid("TFC padding is for tunnel mode alone"))
        }
        protocol::ESP | protocol::AH => Ok(()),
        108 => Err(unsupported("IPComp is not done: nothing is compressed before it is encrypted")),
        43 | 60 => Err(unsupported("the headers of Mobile IPv6 are not done")),
        other => Err(invalid(format!("{other} is no IPsec protocol: ESP is 50, AH is 51"))),
    }
}

/// Extended numbers need the attribute with room for them, and windows beside it are not meant.
fn check_replay(info: &SaInfo, attributes: &Attributes) -> Result<(), Refusal> {
    match attributes.replay_esn() {
        None if info.flags & sa_flag::ESN != 0 => {
            Err(invalid("extended sequence numbers (esn) need the state that has room for them"))
        }
        Some(_) if info.replay_window != 0 => {
            Err(invalid("two replay windows: the one of the SA and the one of its extended state"))
        }
        Some(state)
            if u64::from(state.fixed.window) > u64::from(u32::BITS) * u64::from(state.fixed.words) =>
        {
            let (window, words) = (state.fixed.window, state.fixed.words);
            Err(invalid(format!("a bitmap of {words} words has no room for a window of {window} packets")))
        }
        // Newer kernels take none for an SA of which they are told that it is for sent packets.
        Some(state)
            if state.fixed.window == 0
                && info.flags & sa_flag::ESN != 0
                && attributes.direction() != Some(&SaDirection::Outbound) =>
        {
            Err(invalid("extended sequence numbers (esn) need a replay window"))
        }
        _ => Ok(()),
    }
}

/// What the gateway does not do, though the kernel would.
fn check_supported(info: &SaInfo, attributes: &Attributes) -> Result<(), Refusal> {
    match info.mode {
        mode::TRANSPORT | mode::TUNNEL => {}
        mode::BEET => return Err(unsupported("BEET mode is not done: tunnel and transport mode are")),
        mode::ROUTE_OPTIMIZATION | mode::IN_TRIGGER => {
            return Err(unsupported("the modes of Mobile IPv6 are not done"));
        }
        other => return Err(invalid(format!("{other} is no mode: 0 is transport, 1 is tunnel"))),
    }
    if info.id.spi == 0 {
        return Err(invalid("SPI 0 names no SA (RFC 4303 2.1)"));
    }
    if attributes.security_context().is_some() {
        return Err(unsupported(
            "security contexts need an LSM that labels packets, which the gateway has not",
        ));
    }
    if attributes.offload().is_some() {
        return Err(unsupported("no device of the gateway takes SAs"));
    }
    if attributes.care_of().is_some() {
        return Err(unsupported("care-of addresses are for Mobile IPv6, which is not done"));
    }
    match attributes.encapsulation().map(|encapsulation| encapsulation.kind) {
        None | Some(2) => Ok(()),
        Some(other) => {
            Err(unsupported(format!("encapsulation {other} is not done: 2 is ESP in UDP (RFC 3948)")))
        }
    }
}

impl XfrmSa {
    /// The SA of a request, with its key. `is_local` says of an address whether it is this host's.
    ///
    /// # Errors
    /// The kernel's, or what the gateway does not do.
    pub fn requested(
        info: &SaInfo,
        attributes: &Attributes,
        is_local: impl Fn(IpAddr) -> bool,
        now_s: u64,
    ) -> Result<(Self, KeyMaterial), Refusal> {
        let key = SaKey::of(&info.sa_id(), attributes)?;
        let source = address(info.source, info.family, "source")?;
        check_selector(&info.selector, true)?;
        check_protocol(info, attributes)?;
        check_replay(info, attributes)?;
        check_supported(info, attributes)?;
        let Algorithms { suite, key: material, attributes: algorithms } = Algorithms::of(attributes)?;
        let is_inbound = match attributes.direction() {
            Some(direction) => *direction == SaDirection::Inbound,
            None => is_local(key.destination),
        };
        let used = attributes.used();
        let used_before = used.map_or_else(UsedBefore::default, |used| UsedBefore {
            bytes: used.bytes,
            packets: used.packets,
            first_s: used.used_at_s,
        });
        let sa = Self {
            key,
            place: 0,
            source,
            info: *info,
            attributes: algorithms.into_iter().chain(kept(attributes)).collect(),
            suite: Some(suite),
            is_inbound,
            added_s: used.map_or(now_s, |used| used.added_at_s),
            used_before,
            owner: 0,
            daemon: None,
        };
        Ok((Self { info: sa.normal(), ..sa }, material))
    }

    /// The form in which the kernel keeps what was said.
    fn normal(&self) -> SaInfo {
        let mut info = self.info;
        if info.selector.family == family::UNSPECIFIED && info.flags & sa_flag::AF_UNSPEC == 0 {
            info.selector.family = info.family;
        }
        info.replay_window = info.replay_window.min(OLD_WINDOW);
        info
    }

    /// Whether only its SPI is reserved.
    #[must_use]
    pub fn is_larval(&self) -> bool {
        self.suite.is_none()
    }

    /// Its interface, 0 for none.
    #[must_use]
    pub fn if_id(&self) -> u32 {
        self.attributes.if_id().copied().unwrap_or(0)
    }

    /// Packets in its replay window.
    #[must_use]
    pub fn replay_window(&self) -> u32 {
        let extended = self.attributes.replay_esn().map(|state| state.fixed.window);
        extended.unwrap_or_else(|| self.info.replay_window.into())
    }

    /// Whether its numbers have 64 bits.
    #[must_use]
    pub fn has_extended_numbers(&self) -> bool {
        self.info.flags & sa_flag::ESN != 0
    }

    /// The last number that it had in another place: sent or, of one from the peer, received.
    #[must_use]
    pub fn last_number(&self) -> u64 {
        let of = |sent, received| if self.is_inbound { received } else { sent };
        let extended = self.attributes.replay_esn().map(|state| of(state.sent(), state.received()));
        let old = || self.attributes.replay().map(|state| of(state.sent.into(), state.received.into()));
        extended.or_else(old).unwrap_or(0)
    }

    /// What it was used for, here and before.
    pub(super) fn current(&self, used: &SaUse) -> LifetimeCurrent {
        let before = &self.used_before;
        LifetimeCurrent {
            bytes: before.bytes.saturating_add(used.bytes),
            packets: before.packets.saturating_add(used.packets),
            added_at_s: self.added_s,
            used_at_s: if before.first_s == 0 { used.first_s } else { before.first_s },
        }
    }

    /// The structure that shows it.
    pub(super) fn info_shown(&self, used: &SaUse) -> SaInfo {
        let short = |count: u64| u32::try_from(count).unwrap_or(u32::MAX);
        let stats = SaStats {
            outside_window: short(used.outside_window),
            replayed: short(used.replayed),
            integrity_failed: short(used.integrity_failed),
        };
        SaInfo { current: self.current(used), stats, ..self.info }
    }

    /// The SA as a message shows it.
    #[must_use]
    pub fn shown(&self, used: &SaUse) -> Message {
        let mut attributes = Attributes::default();
        if used.last_s > 0 {
            attributes.push(Attribute::LastUsed(used.last_s));
        }
        for attribute in &self.attributes {
            match attribute {
                Attribute::Replay(_) | Attribute::ReplayEsn(_) => {}
                other => attributes.push(other.clone()),
            }
        }
        attributes.push(self.replay_shown(used.sequence));
        Message { body: Body::NewSa(self.info_shown(used)), attributes }
    }

    /// Its numbers. The window's bits are the worker's alone, and shown as none.
    pub(super) fn replay_shown(&self, sequence: u64) -> Attribute {
        let half = |bits: u64| u32::try_from(bits & u64::from(u32::MAX)).unwrap_or(0);
        let (low, high) = (half(sequence), half(sequence >> 32));
        let (sent, received) = if self.is_inbound { (0, low) } else { (low, 0) };
        let (sent_high, received_high) = if self.is_inbound { (0, high) } else { (high, 0) };
        match self.attributes.replay_esn() {
            Some(_) => {
                let mut state = ReplayStateEsn::unused(self.replay_window());
                let fixed = state.fixed;
                state.fixed = testudo_wire::xfrm::replay::EsnFixed {
                    sent,
                    received,
                    sent_high,
                    received_high,
                    ..fixed
                };
                Attribute::ReplayEsn(state)
            }
            None => Attribute::Replay(ReplayState { sent, received, bitmap: 0 }),
        }
    }
}

/// The attributes of a request that are kept: of several of one type the last, as the kernel reads them.
pub(super) fn last_of_each(attributes: &Attributes, is_kept: fn(&Attribute) -> bool) -> Vec<Attribute> {
    let mut kept: Vec<Attribute> = Vec::new();
    for attribute in attributes.iter().filter(|attribute| is_kept(attribute)) {
        kept.retain(|other| other.kind() != attribute.kind());
        kept.push(attribute.clone());
    }
    kept
}

/// The attributes of a request that are kept beside algorithms, as the kernel shows them: none that says
/// nothing.
fn kept(attributes: &Attributes) -> Vec<Attribute> {
    let mut kept = last_of_each(attributes, is_kept);
    kept.retain(|attribute| match attribute {
        Attribute::Mark(Mark { value: 0, mask: 0 }) => false,
        Attribute::IfId(number)
        | Attribute::TfcPadding(number)
        | Attribute::ExtraFlags(number)
        | Attribute::MappingTimer(number) => *number != 0,
        _ => true,
    });
    // A mark without a mask is one of all bits; a mask alone is none.
    if let Some(mark) = attributes.set_mark() {
        let mask = attributes.set_mark_mask().copied().unwrap_or(u32::MAX);
        if *mark | mask != 0 {
            kept.extend([Attribute::SetMark(*mark), Attribute::SetMarkMask(mask)]);
        }
    }
    kept
}

fn is_kept(attribute: &Attribute) -> bool {
    matches!(
        attribute,
        Attribute::Encapsulation(_)
            | Attribute::TfcPadding(_)
            | Attribute::Mark(_)
            | Attribute::Replay(_)
            | Attribute::ReplayEsn(_)
            | Attribute::IfId(_)
            | Attribute::ExtraFlags(_)
            | Attribute::MappingTimer(_)
            | Attribute::Direction(_)
            | Attribute::Processor(_)
    )
}

/// The attributes of an SA that lives, with those of an update that it takes: where its packets go.
pub(super) fn updated(before: &Attributes, update: &Attributes) -> Attributes {
    let taken = last_of_each(update, |attribute| {
        matches!(
            attribute,
            Attribute::Encapsulation(_)
                | Attribute::SetMark(_)
                | Attribute::SetMarkMask(_)
                | Attribute::IfId(_)
        )
    });
    let stays = |old: &&Attribute| taken.iter().all(|new| new.kind() != old.kind());
    before.iter().filter(stays).cloned().chain(taken.clone()).collect()
}
