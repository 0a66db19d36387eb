//! The two kinds of security association.

use crate::counters::{SaCounters, SaState};
use crate::encap::Encap;
use crate::encap::MAX_IV_BYTES;
use crate::encap::template::OuterTemplate;
use crate::event::{Event, EventKind};
use crate::lifetime::{LifetimeState, LifetimeUse, Moment};
use crate::mtu_probe::Prober;
use crate::numbers::ReplayWindow;
use crate::numbers::{SequenceError, SequenceNumbers};
use crate::own_acquire::WantsOwn;
use crate::own_numbers::SeenNumbers;
use crate::path_mtu::{Marks, PathMtu};
use crate::resync::Resync;
use crate::slots::{Entry, SaRef};
use crate::spd::{InboundSelectors, TunnelIndex};
use crate::tunnel::{SaWorker, TunnelParameters};
use crate::vpe;
use std::sync::Arc;
use testudo_crypto::Suite;
use testudo_packet::{DropReason, Interface};
use testudo_wire::ip::Version;

/// One-shot latches, so that each event is reported once.
#[derive(Debug, Default)]
pub(crate) struct Reported {
    hard_lifetime: bool,
    exhausted: bool,
    not_leased: bool,
}

/// How the packets of an outbound SA are framed, decided when it is installed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Framed {
    /// Runs of them at once.
    InRuns,
    /// Likewise, and outer headers are [completed](crate::encap::outer_fields) after that.
    InRunsThatVary,
    /// Runs of them at once, each packet numbered in its window of VPE.
    InWindows,
    /// As the first two, with [frames](testudo_crypto::frame) that the engine writes.
    InRunsLeft,
    /// Runs of them at once, for which numbers are reserved that several workers share.
    InSharedRuns,
    /// One by one.
    Singly,
}

impl Framed {
    pub(crate) fn new(encap: Encap, headers_vary: bool, is_padded: bool, is_shared: bool) -> Self {
        match encap {
            Encap::EspTunnel if is_padded => Self::Singly,
            Encap::EspTunnel if is_shared => Self::InSharedRuns,
            Encap::EspTunnel if headers_vary => Self::InRunsThatVary,
            Encap::EspTunnel => Self::InRuns,
            Encap::Vpe if !is_padded => Self::InWindows,
            _ => Self::Singly,
        }
    }
}

/// An SA towards the peer. Fields that each packet needs come first; those that few need come last or lie
/// behind a pointer.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct OutboundSa {
    /// `None` while the peer is unknown.
    pub(crate) template: Option<OuterTemplate>,
    pub(crate) lifetime: LifetimeUse,
    pub(crate) counters: Arc<SaCounters>,
    pub(crate) iv_mask: u64,
    pub(crate) sequence: SequenceNumbers,
    pub(crate) last_sent: Moment,
    /// Longest inner packet, in bytes; where it may be cut, `longest_whole`.
    pub(crate) inner_mtu: u16,
    pub(crate) framed: Framed,
    /// Packets are padded to this length, which fits the path, in bytes; 0 for not at all.
    pub(crate) tfc_pad_to: u16,
    /// The highest MSS of TCP over IPv4 and over IPv6.
    pub(crate) mss_limits: [u16; 2],
    pub(crate) layout: SuiteLayout,
    pub(crate) esn: bool,
    pub(crate) encap: Encap,
    /// What is done with its sealed packets ([`then`](crate::encap::then)).
    pub(crate) then: u8,
    pub(crate) spi: u32,
    pub(crate) tunnel: TunnelIndex,
    /// Longest inner packet that is sealed as a whole if its sender lets it be cut, in bytes.
    pub(crate) longest_whole: u16,
    /// Whether outer headers differ in more than the template leaves open
    /// ([`outer_fields`](crate::encap::outer_fields)).
    pub(crate) headers_vary: bool,
    /// Whether the engine writes its [frames](testudo_crypto::frame), as far as packets are common ones.
    pub(crate) leaves_frames: bool,
    pub(crate) reported: Reported,
    /// Of VPE: the counts of its windows, for which `sequence` is the gate.
    pub(crate) vpe: Option<Box<vpe::Numbers>>,
}

/// Four cache lines with its handle, of which a packet in the common case touches three.
const _: () = assert!(size_of::<Entry<OutboundSa>>() == 256);

/// What a suite adds to a packet, decided when the SA is installed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SuiteLayout {
    pub(crate) iv_bytes: u8,
    pub(crate) icv_bytes: u8,
    /// Text lengths are multiples of this.
    pub(crate) alignment: u8,
}

impl SuiteLayout {
    pub(crate) fn of(suite: Suite) -> Self {
        let byte_count = |n: usize| u8::try_from(n).unwrap_or(u8::MAX);
        Self {
            iv_bytes: byte_count(suite.iv_bytes()),
            icv_bytes: byte_count(suite.icv_bytes()),
            alignment: byte_count(suite.alignment_bytes()),
        }
    }

    /// Bytes of AH's field for the ICV: with AES-GMAC the IV comes first in it (RFC 4543 4).
    pub(crate) fn ah_field_bytes(self) -> usize {
        usize::from(self.iv_bytes) + usize::from(self.icv_bytes)
    }

    /// Whether a text may have this length.
    #[inline]
    pub(crate) fn is_aligned(self, text_bytes: usize) -> bool {
        text_bytes & usize::from(self.alignment).wrapping_sub(1) == 0
    }
}

/// An SA from the peer.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct InboundSa {
    /// Of VPE it only says how far the highest number of all [windows](crate::vpe::InboundWindows) is.
    pub(crate) window: ReplayWindow,
    /// The endpoint that its packets are sent to.
    pub(crate) local_endpoint: LocalEndpoint,
    pub(crate) layout: SuiteLayout,
    pub(crate) esn: bool,
    /// Whether the tunnel is told of each authentic packet: it learns the peer's address, an SA waits for the
    /// peer to use this one, or one may answer a probe.
    pub(crate) is_watched: bool,
    /// It is not watched, does not search for its numbers, and its packets are not longer than their texts.
    pub(crate) is_plain: bool,
    pub(crate) encap: Encap,
    pub(crate) delivery: Delivery,
    pub(crate) spi: u32,
    pub(crate) tunnel: TunnelIndex,
    pub(crate) resync: Resync,
    pub(crate) lifetime: LifetimeUse,
    pub(crate) counters: Arc<SaCounters>,
    pub(crate) inbound_selectors: InboundSelectors,
    pub(crate) reported: Reported,
}

/// Where the packets of an SA go: to the interface of its tunnel, or, where they carry ESP of the tunnel that
/// this one covers and nothing else, to an SA of that. In one byte: an SA has no room for a second one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Delivery(u8);

impl Delivery {
    /// No interface has this number.
    const COVERED: Self = Self(u8::MAX);

    pub(crate) fn of(tunnel: &TunnelParameters) -> Self {
        if tunnel.covers.is_some() { Self::COVERED } else { Self(tunnel.interface.0) }
    }

    /// Whether they carry ESP of the tunnel that this one covers.
    #[inline(always)]
    pub(crate) fn is_covered(self) -> bool {
        self == Self::COVERED
    }

    /// The interface; of the tunnel's packets none other is asked.
    #[inline(always)]
    pub(crate) fn interface(self) -> Interface {
        Interface(self.0)
    }
}

/// Our outer address and, for ESP in UDP, our port, as two numbers that are compared with those of each
/// packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LocalEndpoint {
    /// The address as bytes, which need no alignment: an SA has no room for gaps.
    address: [u8; 16],
    version_and_port: u32,
}

impl LocalEndpoint {
    /// Set if there is a port. The IP version is in the bits above.
    const IN_UDP: u32 = 1 << 16;
    /// Set for AH.
    const AH: u32 = 1 << 20;
    /// Set for ESP that AH covers.
    const COVERED: u32 = 1 << 21;
    /// Set for VPE. Its protocol number is in the bits from 24 on.
    const VPE: u32 = 1 << 22;

    #[inline(always)]
    pub(crate) fn new(version: Version, address: u128, udp_port: Option<u16>) -> Self {
        let version: u32 = if version == Version::V4 { 4 << 17 } else { 6 << 17 };
        let port = udp_port.map_or(0, |port| Self::IN_UDP | u32::from(port));
        Self { address: address.to_ne_bytes(), version_and_port: version | port }
    }

    /// The same for AH.
    #[inline]
    pub(crate) fn of_ah(self) -> Self {
        Self { version_and_port: self.version_and_port | Self::AH, ..self }
    }

    /// The same for ESP that comes in datagrams of an SA of AH.
    #[inline]
    pub(crate) fn covered(self) -> Self {
        Self { version_and_port: self.version_and_port | Self::COVERED, ..self }
    }

    /// The same for VPE, with this protocol number where it is not in UDP.
    #[inline]
    pub(crate) fn of_vpe(self, number: u8) -> Self {
        let number = if self.is_udp() { 0 } else { u32::from(number) << 24 };
        Self { version_and_port: self.version_and_port | Self::VPE | number, ..self }
    }

    pub(crate) fn is_udp(self) -> bool {
        self.version_and_port & Self::IN_UDP != 0
    }
}

/// Three cache lines with its handle.
const _: () = assert!(size_of::<Entry<InboundSa>>() == 192);

/// The most SAs of a tunnel in each direction that all workers have, and the most of one worker alone: a
/// rekey needs two, and three if the next one begins before the last has ended. Who gives them to the workers
/// keeps to it.
pub const MAX_SAS_OF_WORKER: usize = 8;

/// The most SAs of a tunnel in each direction, with those of up to 64 workers alone.
pub const MAX_TUNNEL_SAS: usize = MAX_SAS_OF_WORKER + 2 * 64;

/// An SA of a tunnel.
#[derive(Debug)]
pub(crate) struct Member {
    pub(crate) spi: u32,
    pub(crate) sa: SaRef,
    pub(crate) suite: Suite,
    /// Where one worker alone sends through it; `None` for all, and from the peer. Few tunnels have such SAs,
    /// and all have members.
    pub(crate) of_one: Option<Box<OneWorker>>,
    /// From the peer: whether its packets [say nothing](crate::InboundParameters::from_any_port) of where
    /// that is.
    pub(crate) from_any_port: bool,
}

impl Member {
    /// The only worker that sends through it.
    pub(crate) fn worker(&self) -> Option<SaWorker> {
        self.of_one.as_ref().map(|one| one.worker)
    }
}

/// Who sends alone through an SA.
#[derive(Debug)]
pub(crate) struct OneWorker {
    pub(crate) worker: SaWorker,
    /// Which numbers that worker has sent lately.
    pub(crate) seen: Option<Arc<SeenNumbers>>,
}

/// The SAs of a tunnel in one direction, oldest first, at most [`MAX_TUNNEL_SAS`].
pub(crate) type Members = Vec<Member>;

/// An SA towards the peer that is used once the peer has used an SA towards us.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Takeover {
    pub(crate) inbound: SaRef,
    pub(crate) outbound: SaRef,
    /// Whose SA it is to replace.
    pub(crate) worker: Option<SaWorker>,
}

/// A tunnel as the worker holds it: its parameters and its SAs.
#[derive(Debug)]
pub(crate) struct Tunnel {
    pub(crate) parameters: TunnelParameters,
    pub(crate) outbound: Members,
    pub(crate) inbound: Members,
    /// The SA towards the peer that is in use, of those that all workers send through. Packets go through it
    /// ([`Ipsec::outbound_of`](crate::Ipsec::outbound_of)) unless this worker has one of its own, or AH is to
    /// cover them and has none.
    pub(crate) in_use: Option<SaRef>,
    /// The one that is in use of those that this worker alone sends through (RFC 9611).
    pub(crate) own_in_use: Option<SaRef>,
    /// Where this worker [asks](crate::own_acquire) for one of these.
    pub(crate) wants_own: Option<WantsOwn>,
    /// At most one for each worker, and one for all.
    pub(crate) takeovers: Vec<Takeover>,
    pub(crate) path_mtu: PathMtu,
    /// Where this worker has an SA of its own in use: the marks of the one that all send through.
    pub(crate) marks_of_all: Option<Box<Marks>>,
    /// Its number among those that send [dummies](crate::dummies).
    pub(crate) dummies: u64,
    /// Where its path is probed.
    pub(crate) prober: Option<Box<Prober>>,
}

impl Tunnel {
    /// The SA towards the peer that this worker's packets go through: its own, before that of all.
    pub(crate) fn way(&self) -> Option<SaRef> {
        self.own_in_use.or(self.in_use)
    }

    /// An SA towards the peer, if it is one of this tunnel's.
    pub(crate) fn outbound_member(&self, sa: SaRef) -> Option<&Member> {
        self.outbound.iter().find(|member| member.sa == sa)
    }

    /// Whether packets under an SA from the peer say where that is.
    pub(crate) fn says_where_peer_is(&self, spi: u32) -> bool {
        !self.inbound.iter().any(|member| member.spi == spi && member.from_any_port)
    }

    /// Whether an SA towards the peer is used once the peer has used one towards us.
    pub(crate) fn waits_for_peer(&self, sa: SaRef) -> bool {
        self.takeovers.iter().any(|takeover| takeover.outbound == sa)
    }
}

/// The low 32 bits, which ESP carries.
pub(crate) fn low_32(sequence: u64) -> u32 {
    u32::try_from(sequence & 0xFFFF_FFFF).unwrap_or(0)
}

/// What a packet's IV is made from, a number that is unique under the key: its last 8 bytes are the IV of a
/// combined mode (RFC 4106 3.1, RFC 7634 2); all of it is the block that the engine turns into the IV of CBC
/// (see [`Job`](testudo_crypto::Job)).
pub(crate) fn iv_block(unique: u64) -> [u8; MAX_IV_BYTES] {
    u128::from(unique).to_be_bytes()
}

impl OutboundSa {
    /// That a soft limit was reached.
    #[cold]
    pub(crate) fn soft_lifetime(&self) -> Event {
        Event { tunnel: self.tunnel, kind: EventKind::SoftLifetime { spi: self.spi, outbound: true } }
    }

    /// Notes, and reports once, that a hard limit was reached.
    pub(crate) fn expire(&mut self, events: &mut Vec<Event>) {
        self.counters.set_state(SaState::Expired);
        let kind = EventKind::HardLifetime { spi: self.spi, outbound: true };
        if self.lifetime.tells_end() {
            report(events, &mut self.reported.hard_lifetime, self.tunnel, kind);
        }
    }

    /// Whether the next packet has to wait for a number, since other workers have too many in flight.
    pub(crate) fn must_wait(&mut self, now: Moment) -> bool {
        self.sequence.is_shared() && !self.lifetime.is_expired(now) && self.sequence.must_wait()
    }

    /// Whether a packet that can wait for a number has to: others have too many in flight, or none is leased
    /// yet, which is told once. What is refused in any case needs none. Windows of VPE that are behind the
    /// first one would still have numbers: their packets wait, too, so that all ticks are missed alike.
    pub(crate) fn lacks_number(&mut self, now: Moment, events: &mut Vec<Event>) -> bool {
        let is_taken = self.vpe.as_ref().is_some_and(|numbers| numbers.is_taken(&self.sequence));
        if self.template.is_none() || is_taken || self.lifetime.is_expired(now) {
            return false;
        }
        match self.sequence.look_ahead() {
            Ok(()) | Err(SequenceError::Exhausted) => false,
            Err(error) => {
                self.explain(error, events);
                true
            }
        }
    }

    /// The next sequence number, or why this packet must not be sent.
    #[inline]
    pub(crate) fn admit(
        &mut self,
        bytes: usize,
        now: Moment,
        events: &mut Vec<Event>,
    ) -> Result<u64, DropReason> {
        self.admit_with(bytes, now, events, |sa| sa.sequence.reserve())
    }

    /// [`admit`](Self::admit) for VPE: the next number of the window of a packet with this traffic class, of
    /// a flow whose hash depends on two keys.
    pub(crate) fn admit_in_window(
        &mut self,
        flow: impl FnOnce(&vpe::Numbers) -> u64,
        traffic_class: u8,
        bytes: usize,
        now: Moment,
        events: &mut Vec<Event>,
    ) -> Result<u64, DropReason> {
        if self.vpe.as_ref().is_some_and(|numbers| numbers.is_taken(&self.sequence)) {
            return Err(DropReason::VpeSenderTaken);
        }
        self.admit_with(bytes, now, events, |sa| match &mut sa.vpe {
            Some(numbers) => {
                let flow = flow(numbers);
                numbers.reserve(flow, traffic_class, &mut sa.sequence)
            }
            None => Err(SequenceError::Exhausted),
        })
    }

    #[inline(always)]
    fn admit_with(
        &mut self,
        bytes: usize,
        now: Moment,
        events: &mut Vec<Event>,
        reserve: impl FnOnce(&mut Self) -> Result<u64, SequenceError>,
    ) -> Result<u64, DropReason> {
        if self.lifetime.is_expired(now) {
            self.expire(events);
            return Err(DropReason::LifetimeExpired);
        }
        let sequence = reserve(self).map_err(|e| self.explain(e, events))?;
        if self.lifetime.count(bytes as u64, now) == LifetimeState::SoftReached {
            events.push(self.soft_lifetime());
        }
        self.last_sent = now;
        self.reported.not_leased = false;
        Ok(sequence)
    }

    #[cold]
    fn explain(&mut self, error: SequenceError, events: &mut Vec<Event>) -> DropReason {
        match error {
            SequenceError::Exhausted => {
                self.counters.set_state(SaState::Exhausted);
                let kind = EventKind::SequenceExhausted { spi: self.spi };
                report(events, &mut self.reported.exhausted, self.tunnel, kind);
                DropReason::SequenceExhausted
            }
            // Packets that are forwarded wait instead. Only one of our own comes here: it is not sent now.
            SequenceError::PeerWindowFull => DropReason::SequenceNotLeased,
            SequenceError::NotLeased => {
                let kind = EventKind::SequenceNotLeased { spi: self.spi };
                report(events, &mut self.reported.not_leased, self.tunnel, kind);
                DropReason::SequenceNotLeased
            }
        }
    }
}

impl InboundSa {
    /// The highest number received, of VPE in any window; 0 before the first.
    #[inline(always)]
    pub(crate) fn top(&self) -> u64 {
        self.window.top()
    }

    /// Whether the tunnel is to be told of each authentic packet from now on.
    pub(crate) fn watch(&mut self, is_watched: bool) {
        self.is_watched = is_watched;
        self.is_plain = !is_watched && !self.resync.is_searching() && self.encap == Encap::EspTunnel;
    }

    /// That a soft limit was reached.
    #[cold]
    pub(crate) fn soft_lifetime(&self) -> Event {
        Event { tunnel: self.tunnel, kind: EventKind::SoftLifetime { spi: self.spi, outbound: false } }
    }

    /// Notes, and reports once, that a hard limit was reached.
    #[cold]
    pub(crate) fn expire(&mut self, events: &mut Vec<Event>) {
        self.counters.set_state(SaState::Expired);
        let kind = EventKind::HardLifetime { spi: self.spi, outbound: false };
        if self.lifetime.tells_end() {
            report(events, &mut self.reported.hard_lifetime, self.tunnel, kind);
        }
    }

    /// Whether a packet may be decrypted at all.
    #[inline(always)]
    pub(crate) fn admit(&mut self, now: Moment, events: &mut Vec<Event>) -> Result<(), DropReason> {
        if self.lifetime.is_expired(now) {
            self.expire(events);
            return Err(DropReason::LifetimeExpired);
        }
        Ok(())
    }

    /// Counts an authentic packet: the inner bytes if it passed, all decrypted bytes if it did not.
    pub(crate) fn count(&mut self, outcome: Result<u64, u64>, now: Moment, events: &mut Vec<Event>) {
        let (Ok(bytes) | Err(bytes)) = outcome;
        if self.lifetime.count(bytes, now) == LifetimeState::SoftReached {
            events.push(self.soft_lifetime());
        }
        match outcome {
            Ok(bytes) => self.counters.count(1, bytes, self.top()),
            Err(bytes) => self.counters.count_refused(bytes, self.top()),
        }
    }

    /// Counts an authentic packet that was refused, while no limit is near. Every packet that the key has
    /// decrypted counts towards its lifetime.
    #[cold]
    pub(crate) fn count_refused(&mut self, text_bytes: u32) {
        self.lifetime.count_far(1, text_bytes.into());
        self.counters.count_refused(text_bytes.into(), self.top());
    }
}

fn report(events: &mut Vec<Event>, reported: &mut bool, tunnel: TunnelIndex, kind: EventKind) {
    if !std::mem::replace(reported, true) {
        events.push(Event { tunnel, kind });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn local_endpoints_differ_by_version_address_and_port() {
        let all: Vec<LocalEndpoint> = [Version::V4, Version::V6]
            .into_iter()
            .flat_map(|version| [0, 1, 1 << 127].map(|address| (version, address)))
            .flat_map(|(version, address)| {
                [None, Some(0), Some(1), Some(u16::MAX)]
                    .map(|port| LocalEndpoint::new(version, address, port))
            })
            .collect();
        for (n, one) in all.iter().enumerate() {
            assert_eq!(all.iter().filter(|other| *other == one).count(), 1, "{n}: {one:?}");
        }
    }
}
