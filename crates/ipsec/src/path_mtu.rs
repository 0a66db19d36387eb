//! The path MTU of an SA, lowered by ICMP errors from the unprotected side (RFC 4301 8.2).
//!
//! ```text
//!   gateway ── 1500 ── router ── 1400 ── peer
//!      │  ESP, 1500 bytes ─►│
//!      │◄─ too big: 1400 ───│      quotes the SPI and the number of our packet
//!      ▼
//!   the SA's datagrams have at most 1400 bytes from now on, for ten minutes; hosts inside whose packets are
//!   longer than fits are told so
//! ```
//!
//! Nobody has authenticated such an error, and it makes all traffic of an SA smaller: an attacker would like
//! to send some. [`PathMtu::believe`] takes one only if
//! - it quotes a packet of an SA of ours, by addresses, ports, protocol and SPI (RFC 4301 8.2.1);
//! - with a sequence number that the SA has used in the last few seconds, as RFC 5927 4.1 has TCP check that
//!   what is quoted is in flight. Who does not see our packets must guess SPI and number;
//! - the MTU is below the length of the quoted packet (RFC 5927 7.2) and below the present MTU (RFC 1191 3),
//!   and not below what every path carries for certain: 1280 bytes over IPv6 (RFC 8201 4), 576 over IPv4. RFC
//!   1191 3 asks for 68 there; but no link of today has less than 576, and smaller packets serve an attacker;
//! - it is the first in a second for the SA.
//!
//! An attacker on the path, who sees the packets, can thus reduce an SA to 1280 or 576 bytes, not stop it (he
//! could drop the packets as well). What was learned is forgotten after ten minutes (RFC 1191 6.3, RFC 8201
//! 4), or when the peer moves. All other errors about packets of SAs are ignored. Where routers are silent,
//! [`crate::mtu_probe`] finds out.

use crate::Ipsec;
use crate::encap::IpsecProtocol;
use crate::event::{Event, EventKind};
use crate::gradual_map::GradualMap;
use crate::lifetime::Moment;
use crate::mss_clamp;
use crate::sa::{Tunnel, low_32};
use crate::spd::TunnelIndex;
use crate::tunnel::{Encapsulation, Endpoints};
use std::net::IpAddr;
use std::ops::Range;
use std::slice;
use std::time::Duration;
use testudo_packet::DropReason;
use testudo_wire::icmp_error::{IcmpError, IcmpErrorKind, QuotedHeader, QuotedPacket};
use testudo_wire::ip::{IpHeader, Version};

/// How long a lowered MTU lasts (RFC 1191 6.3, RFC 8201 4).
pub(crate) const LASTS: Duration = Duration::from_secs(600);
/// A sequence number is recent for this long at least, and for twice as long and a tick at most: longer than
/// the round trip to any router.
pub(crate) const RECENT: Duration = Duration::from_secs(3);
/// The MTU of an SA changes once in this time at most.
pub(crate) const CHANGE_INTERVAL: Duration = Duration::from_secs(1);

/// RFC 1191 7.1: MTUs of common links. A router that predates RFC 1191 names none.
const PLATEAUS: [usize; 8] = [32_000, 17_914, 8166, 4352, 2002, 1492, 1006, 576];

/// The least that a claimed MTU may be, in bytes.
pub(crate) fn floor(version: Version) -> usize {
    match version {
        Version::V4 => 576,
        Version::V6 => 1280,
    }
}

/// What an error claims: that this packet did not fit.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Claim {
    pub(crate) version: Version,
    /// MTU of the next link, in bytes; 0 where the router does not say.
    pub(crate) mtu: u32,
    /// Length of the quoted datagram, in bytes.
    pub(crate) quoted_bytes: usize,
    /// The low half of its sequence number.
    pub(crate) sequence: u32,
}

/// An MTU of a path that is lower than the configured one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LearnedMtu {
    /// In bytes, at least 576.
    pub mtu: usize,
    /// Since when.
    pub at: Moment,
    /// Who says so.
    pub from: LearnedFrom,
}

/// Who says what a path carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum LearnedFrom {
    /// A router, by an ICMP error.
    Router,
    /// Probes inside the SA ([`crate::MtuProbe`]).
    Probes,
}

impl LearnedMtu {
    const MTU_BITS: u32 = 17;
    const FROM_BITS: u32 = 1;

    /// As a number other than 0, with the moment in whole seconds.
    pub(crate) fn to_bits(self) -> u64 {
        let from = u64::from(self.from == LearnedFrom::Probes) << Self::MTU_BITS;
        let seconds = self.at.0.as_secs() << (Self::MTU_BITS + Self::FROM_BITS);
        seconds | from | self.mtu as u64 & ((1 << Self::MTU_BITS) - 1)
    }

    pub(crate) fn from_bits(bits: u64) -> Option<Self> {
        let mtu = usize::try_from(bits & ((1 << Self::MTU_BITS) - 1)).ok().filter(|&mtu| mtu > 0)?;
        let is_probed = bits >> Self::MTU_BITS & 1 != 0;
        let from = if is_probed { LearnedFrom::Probes } else { LearnedFrom::Router };
        let seconds = bits >> (Self::MTU_BITS + Self::FROM_BITS);
        Some(Self { mtu, at: Moment(Duration::from_secs(seconds)), from })
    }
}

/// What an SA knows of its path.
#[derive(Debug)]
pub(crate) struct PathMtu {
    configured: usize,
    learned: Option<LearnedMtu>,
    marks: Marks,
}

/// The number of an SA that was next at each of two moments, the older one first: those from the older one on
/// are recent.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Marks([(Moment, u64); 2]);

impl Marks {
    /// Notes which number is next. To be called about once a second.
    pub(crate) fn mark(&mut self, next: u64, now: Moment) {
        if now.since(self.0[1].0) >= RECENT {
            self.0 = [self.0[1], (now, next)];
        }
    }

    /// The same moments, before which nothing was sent of an SA whose next number is `next`.
    fn followed(self, next: u64) -> Self {
        Self(self.0.map(|(at, _)| (at, next)))
    }

    /// The first number that is recent.
    fn first(&self) -> u64 {
        self.0[0].1
    }
}

impl PathMtu {
    /// A path with this MTU, for an SA whose next number is `next`.
    pub(crate) fn new(configured: usize, next: u64, now: Moment) -> Self {
        Self { configured, learned: None, marks: Marks([(now, next); 2]) }
    }

    /// The longest datagram that the path is taken to carry, in bytes.
    pub(crate) fn current(&self) -> usize {
        self.learned.map_or(self.configured, |learned| learned.mtu)
    }

    /// Another SA is in use, whose next number is `next`: those that it has sent before count as recent no
    /// more, nor do those of the SA before it.
    pub(crate) fn follow(&mut self, next: u64) {
        self.marks = self.marks.followed(next);
    }

    /// The MTU that was learned, if it is in force.
    pub(crate) fn learned(&self) -> Option<LearnedMtu> {
        self.learned
    }

    /// Notes which number is next. To be called about once a second.
    pub(crate) fn mark(&mut self, next: u64, now: Moment) {
        self.marks.mark(next, now);
    }

    /// Marks of another SA of the tunnel, whose next number is `next`.
    pub(crate) fn marks_from(&self, next: u64) -> Marks {
        self.marks.followed(next)
    }

    /// The first number of the SA in use that is recent.
    pub(crate) fn first_recent(&self) -> u64 {
        self.marks.first()
    }

    /// Lowers the MTU if the claim is to be believed, of an SA whose next number is `next`; whether it is.
    #[cfg(test)]
    fn believe(&mut self, claim: &Claim, next: u64, now: Moment) -> bool {
        let recent = self.marks.first()..next;
        self.believe_within(claim, floor(claim.version), &recent, now)
    }

    /// Lowers the MTU if the claim is to be believed, where these numbers are recent, and no MTU below
    /// `floor` is believed; whether it is.
    pub(crate) fn believe_within(
        &mut self,
        claim: &Claim,
        floor: usize,
        recent: &Range<u64>,
        now: Moment,
    ) -> bool {
        let mtu = match usize::try_from(claim.mtu) {
            // RFC 1191 5: the greatest plateau below the packet's length.
            Ok(0) => PLATEAUS.into_iter().find(|&mtu| mtu < claim.quoted_bytes).unwrap_or(0),
            mtu => mtu.unwrap_or(usize::MAX),
        };
        let is_in_bounds = mtu >= floor && mtu < self.current() && mtu < claim.quoted_bytes;
        let is_early = self.learned.is_some_and(|learned| now.since(learned.at) < CHANGE_INTERVAL);
        let is_believed = is_in_bounds && !is_early && is_recent(claim.sequence, recent);
        if is_believed {
            self.learned = Some(LearnedMtu { mtu, at: now, from: LearnedFrom::Router });
        }
        is_believed
    }

    /// Whether the SA has used this number lately.
    #[cfg(test)]
    fn is_recent(&self, sequence: u32, next: u64) -> bool {
        is_recent(sequence, &(self.marks.first()..next))
    }

    /// The MTU without anything learned, in bytes.
    pub(crate) fn configured(&self) -> usize {
        self.configured
    }

    /// Takes what probes have found: more or less than before.
    pub(crate) fn set_probed(&mut self, mtu: usize, now: Moment) {
        let learned = LearnedMtu { mtu, at: now, from: LearnedFrom::Probes };
        self.learned = Some(learned).filter(|learned| learned.mtu < self.configured);
    }

    /// Takes what another worker has learned, or that it has forgotten it; whether that is new.
    pub(crate) fn hear(&mut self, learned: Option<LearnedMtu>) -> bool {
        let mtu = |learned: Option<LearnedMtu>| learned.map(|learned| (learned.mtu, learned.from));
        let is_new = mtu(learned) != mtu(self.learned);
        if is_new {
            self.learned = learned;
        }
        is_new
    }

    /// Whether it was learned long ago.
    fn is_old(&self, now: Moment) -> bool {
        self.learned.is_some_and(|learned| now.since(learned.at) >= LASTS)
    }

    /// It holds for as long again.
    fn renew(&mut self, now: Moment) {
        if let Some(learned) = &mut self.learned {
            learned.at = now;
        }
    }

    /// Forgets what was learned; whether there was anything.
    pub(crate) fn forget(&mut self) -> bool {
        self.learned.take().is_some()
    }
}

/// Whether a number is one of the recent ones. Its high half is the one that makes it the newest number below
/// their end.
fn is_recent(sequence: u32, recent: &Range<u64>) -> bool {
    let used = recent.end.saturating_sub(recent.start);
    // 1 for the newest.
    let age = low_32(recent.end).wrapping_sub(sequence);
    age != 0 && u64::from(age) <= used
}

/// What the packets of an outbound SA show: two peers may have chosen the same SPI (RFC 4301 4.1), and two
/// peers behind one NAT have the same address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct SaName {
    pub(crate) protocol: IpsecProtocol,
    pub(crate) spi: u32,
    pub(crate) peer: IpAddr,
    /// The peer's UDP port, if it is ESP or VPE in UDP.
    pub(crate) port: Option<u16>,
}

impl SaName {
    /// `None` while the peer is unknown.
    pub(crate) fn of(protocol: IpsecProtocol, endpoints: &Endpoints, spi: u32) -> Option<Self> {
        let port = match endpoints.encapsulation {
            Encapsulation::EspInUdp { remote_port, .. } => Some(remote_port),
            Encapsulation::Esp => None,
        };
        let peer = endpoints.remote?;
        Some(Self { protocol, spi, peer, port })
    }

    /// What a packet of VPE shows of it whose quote ends before the SPI: any SPI, for which 0 stands, which
    /// no packet has. `None` for ESP and AH.
    fn without_spi(self) -> Option<Self> {
        (self.protocol == IpsecProtocol::Vpe).then_some(Self { spi: 0, ..self })
    }

    /// That of a quoted packet of IPsec, and its number; `None` if it is another one, or the quote ends
    /// before the number. That of UDP carries ESP if its ports are those of an SA.
    fn quoted(quoted: &QuotedPacket) -> Option<(Self, u32)> {
        let (protocol, spi, sequence, port) = match quoted.header? {
            QuotedHeader::Esp { spi, sequence } => (IpsecProtocol::Esp, spi, sequence?, None),
            QuotedHeader::Ah { spi, sequence } => (IpsecProtocol::Ah, spi, sequence?, None),
            QuotedHeader::Udp { esp, destination_port, .. } => {
                let esp = esp?;
                (IpsecProtocol::Esp, esp.spi, esp.sequence, Some(destination_port))
            }
        };
        Some((Self { protocol, spi, peer: quoted.destination, port }, sequence))
    }
}

/// Outbound SAs by name. A peer that moves may come to where another one is, whose SA has the same SPI: both
/// keep their entry, and the sequence number tells whose packet an error quotes.
#[derive(Debug, Default)]
pub(crate) struct OutboundNames(GradualMap<SaName, Named>);

/// Whose a name is.
#[derive(Debug)]
enum Named {
    /// As most are: a list would take another 32 bytes of an SA.
    One(TunnelIndex),
    Several(Vec<TunnelIndex>),
}

impl Named {
    fn tunnels(&self) -> &[TunnelIndex] {
        match self {
            Self::One(tunnel) => slice::from_ref(tunnel),
            Self::Several(tunnels) => tunnels,
        }
    }

    fn push(&mut self, tunnel: TunnelIndex) {
        match self {
            Self::One(first) => *self = Self::Several(vec![*first, tunnel]),
            Self::Several(tunnels) => tunnels.push(tunnel),
        }
    }

    /// Takes one out; whether none is left.
    fn remove(&mut self, tunnel: TunnelIndex) -> bool {
        match self {
            Self::One(only) => *only == tunnel,
            Self::Several(tunnels) => {
                if let Some(at) = tunnels.iter().position(|other| *other == tunnel) {
                    tunnels.swap_remove(at);
                }
                tunnels.is_empty()
            }
        }
    }
}

impl OutboundNames {
    /// Adds the SA of a tunnel, unless its peer is unknown.
    pub(crate) fn add(&mut self, tunnel: TunnelIndex, name: Option<SaName>) {
        let Some(name) = name else { return };
        self.add_one(tunnel, name);
        name.without_spi().into_iter().for_each(|name| self.add_one(tunnel, name));
    }

    fn add_one(&mut self, tunnel: TunnelIndex, name: SaName) {
        match self.0.get_mut(&name) {
            Some(tunnels) => tunnels.push(tunnel),
            None => self.0.insert(name, Named::One(tunnel)),
        }
    }

    /// Removes it again.
    pub(crate) fn remove(&mut self, tunnel: TunnelIndex, name: Option<SaName>) {
        let Some(name) = name else { return };
        self.remove_one(tunnel, name);
        name.without_spi().into_iter().for_each(|name| self.remove_one(tunnel, name));
    }

    fn remove_one(&mut self, tunnel: TunnelIndex, name: SaName) {
        let Some(tunnels) = self.0.get_mut(&name) else { return };
        if tunnels.remove(tunnel) {
            self.0.remove(&name);
        }
    }

    /// The tunnels whose outbound SAs send such packets: one, but for what the type says.
    pub(crate) fn get(&self, name: &SaName) -> &[TunnelIndex] {
        self.0.get(name).map_or(&[], Named::tunnels)
    }
}

/// Whether a quoted packet comes from our end of a tunnel.
fn is_from(quoted: &QuotedPacket, endpoints: &Endpoints) -> bool {
    let has_port = match (endpoints.encapsulation, quoted.header) {
        (Encapsulation::EspInUdp { local_port, .. }, Some(QuotedHeader::Udp { source_port, .. })) => {
            local_port == source_port
        }
        (Encapsulation::Esp, Some(QuotedHeader::Esp { .. } | QuotedHeader::Ah { .. })) => true,
        _ => false,
    };
    has_port && quoted.source == endpoints.local
}

impl Ipsec {
    /// The ICMP error in a packet that was sent to an address where SAs end, if it is about a packet of ESP
    /// or AH from there: such errors are IPsec's own matter, others are for policy to decide (RFC 4301
    /// 8.2.1).
    pub(crate) fn icmp_error(&self, header: &IpHeader, packet: &[u8]) -> Option<IcmpError> {
        if !self.addresses.is_local(header.destination) {
            return None;
        }
        let error = IcmpError::parse(header, packet).ok().flatten()?;
        let is_ipsec = match error.quoted.header {
            Some(QuotedHeader::Esp { .. } | QuotedHeader::Ah { .. }) => true,
            Some(QuotedHeader::Udp { source_port, .. }) => {
                self.udp_ports.contains(source_port) || self.vpe.has_port(source_port)
            }
            None => self.quoted_vpe(&error.quoted).is_some(),
        };
        (is_ipsec && error.quoted.source == header.destination).then_some(error)
    }

    /// Takes such an error. What becomes of its packet.
    #[cold]
    pub(crate) fn take_icmp_error(&mut self, packet: &[u8], now: Moment) -> DropReason {
        let Ok(header) = IpHeader::parse(packet) else { return DropReason::BadHeader };
        let error = self.icmp_error(&header, packet);
        if error.is_some_and(|error| self.believe(&error, now).is_some()) {
            DropReason::IcmpBelieved
        } else {
            DropReason::IcmpIgnored
        }
    }

    /// `None` if the error is ignored.
    fn believe(&mut self, error: &IcmpError, now: Moment) -> Option<()> {
        let IcmpErrorKind::TooBig { mtu } = error.kind else { return None };
        let quoted = &error.quoted;
        if let Some(vpe) = self.quoted_vpe(quoted) {
            return self.believe_of_vpe(quoted, &vpe, mtu, now);
        }
        let (name, sequence) = SaName::quoted(quoted)?;
        let claim = Claim { version: quoted.version, mtu, quoted_bytes: quoted.total_bytes, sequence };
        let mut at = 0;
        while let Some(&index) = self.names.get(&name).get(at) {
            if self.believe_of(index, name.spi, quoted, &claim, now) {
                self.apply_path_mtu(index);
                return Some(());
            }
            at += 1;
        }
        None
    }

    /// Whether the claim is to be believed of a tunnel, by its SA with this SPI.
    fn believe_of(
        &mut self,
        index: TunnelIndex,
        spi: u32,
        quoted: &QuotedPacket,
        claim: &Claim,
        now: Moment,
    ) -> bool {
        let recent = self.recent_of(index, spi);
        let tunnel = self.tunnels.get_mut(index.0 as usize).and_then(Option::as_mut);
        let Some((recent, tunnel)) = recent.zip(tunnel) else { return false };
        is_from(quoted, &tunnel.parameters.endpoints)
            && tunnel.path_mtu.believe_within(claim, floor(claim.version), &recent, now)
    }

    /// The numbers that a tunnel's SA with this SPI has used lately, whichever worker sends through it:
    /// errors come to one of them. Of an SA that is not in use no number is recent.
    fn recent_of(&self, index: TunnelIndex, spi: u32) -> Option<Range<u64>> {
        let tunnel = self.tunnel(index)?;
        let member = tunnel.outbound.iter().find(|member| member.spi == spi)?;
        if let Some(one) = member.of_one.as_ref().filter(|one| !one.worker.is_here) {
            return one.seen.as_ref().map(|seen| seen.recent());
        }
        let next = self.outbound.get(member.sa)?.sequence.next();
        if tunnel.way() == Some(member.sa) {
            return Some(tunnel.path_mtu.marks.first()..next);
        }
        let of_all = tunnel.marks_of_all.as_ref().filter(|_| tunnel.in_use == Some(member.sa))?;
        Some(of_all.first()..next)
    }

    /// Lets other workers see which numbers this one has sent lately through SAs of its own.
    pub(crate) fn show_recent(&self, index: TunnelIndex) {
        let Some(tunnel) = self.tunnel(index) else { return };
        for member in &tunnel.outbound {
            let Some(one) = member.of_one.as_ref().filter(|one| one.worker.is_here) else { continue };
            let is_in_use = tunnel.own_in_use == Some(member.sa);
            let first = is_in_use.then(|| tunnel.path_mtu.first_recent());
            one.seen.iter().for_each(|seen| seen.show(first));
        }
    }

    /// Begins anew which numbers of the SA of all workers are recent, where this one has its own in use.
    pub(crate) fn settle_marks_of_all(&mut self, index: TunnelIndex) {
        let Some(tunnel) = self.tunnels.get_mut(index.0 as usize).and_then(Option::as_mut) else { return };
        let of_all = tunnel.own_in_use.and(tunnel.in_use).and_then(|sa| self.outbound.get(sa));
        let next = of_all.map(|sa| sa.sequence.next());
        tunnel.marks_of_all = next.map(|next| Box::new(tunnel.path_mtu.marks_from(next)));
    }

    /// Ages the path MTU of a tunnel. To be called about once a second.
    pub(crate) fn age_path_mtu(&mut self, index: TunnelIndex, now: Moment) {
        let Some(tunnel) = self.tunnels.get_mut(index.0 as usize).and_then(Option::as_mut) else { return };
        if let Some(sa) = tunnel.way().and_then(|sa| self.outbound.get(sa)) {
            tunnel.path_mtu.mark(sa.sequence.next(), now);
        }
        if let Some(marks) = &mut tunnel.marks_of_all
            && let Some(sa) = tunnel.in_use.and_then(|sa| self.outbound.get(sa))
        {
            marks.mark(sa.sequence.next(), now);
        }
        let (has_own, is_old) = (tunnel.own_in_use.is_some(), tunnel.path_mtu.is_old(now));
        if is_old {
            self.renew_path_mtu(index, now);
        }
        if has_own {
            self.show_recent(index);
        }
    }

    /// Searches for more than was learned long ago, or forgets it where nobody answers probes.
    #[cold]
    fn renew_path_mtu(&mut self, index: TunnelIndex, now: Moment) {
        let Some(tunnel) = self.tunnels.get_mut(index.0 as usize).and_then(Option::as_mut) else { return };
        let (current, configured) = (tunnel.path_mtu.current(), tunnel.path_mtu.configured());
        // Where AH covers ESP, the tunnel of ESP has the addresses to probe with.
        let probing = tunnel.parameters.covers.unwrap_or(index);
        let prober = self.tunnels.get_mut(probing.0 as usize).and_then(Option::as_mut);
        let prober = prober.and_then(|tunnel| tunnel.prober.as_mut());
        let is_searched = prober.is_some_and(|prober| prober.raise(current, configured));
        let Some(tunnel) = self.tunnels.get_mut(index.0 as usize).and_then(Option::as_mut) else { return };
        if is_searched {
            tunnel.path_mtu.renew(now);
        } else if tunnel.path_mtu.forget() {
            self.apply_path_mtu(index);
        }
    }

    /// The SAs of a tunnel, and of one whose datagrams it covers, have another path MTU from now on.
    pub(crate) fn apply_path_mtu(&mut self, index: TunnelIndex) {
        let Some(tunnel) = self.tunnels.get_mut(index.0 as usize).and_then(Option::as_mut) else { return };
        let mtu = tunnel.path_mtu.current();
        let learned_from = tunnel.path_mtu.learned.map(|learned| learned.from);
        let kind = EventKind::PathMtu { mtu, learned_from };
        self.events.push(Event { tunnel: index, kind });
        self.put_path_mtu(index);
    }

    /// The same without an event.
    pub(crate) fn put_path_mtu(&mut self, index: TunnelIndex) {
        let Some(tunnel) = self.tunnels.get_mut(index.0 as usize).and_then(Option::as_mut) else { return };
        let mtu = tunnel.path_mtu.current();
        for sa in tunnel.outbound.iter().filter_map(|member| self.outbound.get(member.sa)) {
            sa.counters.set_learned_mtu(tunnel.path_mtu.learned);
        }
        let suites = tunnel.outbound.iter().map(|member| member.suite);
        let longest = suites.map(|suite| tunnel.parameters.shape(suite).inner_mtu(mtu)).min();
        let (covers, longest) = (tunnel.parameters.covers, longest.unwrap_or(mtu));
        self.set_path_mtu(index, mtu);
        let covered = covers.and_then(|index| Some((index, self.tunnel(index)?.path_mtu.configured)));
        if let Some((covered, configured)) = covered {
            self.set_path_mtu(covered, longest.min(configured));
        }
    }

    /// Datagrams of a tunnel have at most this many bytes, and packets what is left of them.
    pub(crate) fn set_path_mtu(&mut self, index: TunnelIndex, mtu: usize) {
        let Some(Tunnel { parameters, outbound, .. }) =
            self.tunnels.get_mut(index.0 as usize).and_then(Option::as_deref_mut)
        else {
            return;
        };
        parameters.path_mtu = mtu;
        for member in outbound.iter() {
            if let Some(sa) = self.outbound.get_mut(member.sa) {
                sa.inner_mtu = parameters.inner_mtu(member.suite);
                sa.longest_whole = parameters.longest_whole(member.suite);
                sa.tfc_pad_to = parameters.tfc_pad_to(member.suite);
                sa.mss_limits = mss_clamp::limits_of(parameters, member.suite);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn at(seconds: u64) -> Moment {
        Moment(Duration::from_secs(seconds))
    }

    /// An SA that has sent the numbers 1 to 100 in its first second.
    fn path() -> PathMtu {
        PathMtu::new(1500, 1, at(0))
    }

    fn claim(mtu: u32, sequence: u32) -> Claim {
        Claim { version: Version::V4, mtu, quoted_bytes: 1500, sequence }
    }

    fn believed(claim: &Claim) -> Option<usize> {
        let mut path = path();
        path.believe(claim, 101, at(1)).then(|| path.current())
    }

    /// RFC 1191 3, RFC 8201 4, RFC 5927 7.2.
    #[test]
    fn an_mtu_is_believed_between_the_floor_and_the_present_one() {
        for (version, lowest) in [(Version::V4, 576), (Version::V6, 1280)] {
            for mtu in [1, 68, 575, 576, 1279, 1280, 1499, 1500, 1501, 65_535, u32::MAX] {
                let expected = (lowest..1500).contains(&mtu).then_some(mtu as usize);
                assert_eq!(believed(&Claim { version, ..claim(mtu, 50) }), expected, "{version:?}, {mtu}");
            }
        }
        let short = Claim { quoted_bytes: 1300, ..claim(1300, 50) };
        assert_eq!(believed(&short), None, "the quoted packet would have fitted");
    }

    #[test]
    fn a_learned_mtu_is_told_to_other_threads_in_a_number() {
        for (mtu, seconds) in [(576, 0), (1280, 1), (65_535, 1 << 40)] {
            for from in [LearnedFrom::Router, LearnedFrom::Probes] {
                let learned = LearnedMtu { mtu, at: at(seconds), from };
                assert_eq!(LearnedMtu::from_bits(learned.to_bits()), Some(learned));
            }
        }
        assert_eq!(LearnedMtu::from_bits(0), None);
    }

    /// RFC 1191 5 and 7.1.
    #[test]
    fn a_router_that_names_no_mtu_gets_the_plateau_below_the_packet() {
        for (quoted_bytes, expected) in
            [(1500, Some(1492)), (1492, Some(1006)), (1006, Some(576)), (576, None)]
        {
            assert_eq!(believed(&Claim { quoted_bytes, ..claim(0, 50) }), expected, "{quoted_bytes}");
        }
        let over_ipv6 = Claim { version: Version::V6, quoted_bytes: 1400, ..claim(0, 50) };
        assert_eq!(believed(&over_ipv6), None, "1006 is less than IPv6 needs");
    }

    /// RFC 5927 4.1, for sequence numbers of IPsec.
    #[test]
    fn only_numbers_that_were_just_used_are_recent() {
        for (sequence, is_recent) in [(0, false), (1, true), (100, true), (101, false), (u32::MAX, false)] {
            assert_eq!(believed(&claim(1400, sequence)).is_some(), is_recent, "{sequence}");
        }
        let mut path = path();
        assert!(!path.believe(&claim(1400, 0), 1, at(0)), "nothing was sent yet");
        // 100 numbers a second.
        for second in 1..=20 {
            path.mark(1 + 100 * second, at(second));
        }
        let next = 2001;
        let oldest = (0..2001).find(|&number| path.is_recent(number, next)).expect("some are recent");
        let seconds = (2001 - u64::from(oldest)) / 100;
        assert!((3..=7).contains(&seconds), "numbers of the last {seconds} seconds are recent");
        for second in 21..=30 {
            path.mark(next, at(second));
        }
        assert!((0..5000).all(|number| !path.is_recent(number, next)), "the SA has been silent");
    }

    /// ESN: the packet carries the low half.
    #[test]
    fn recent_numbers_cross_the_boundary_of_the_low_half() {
        let first = (7 << 32) - 10;
        let path = PathMtu::new(1500, first, at(0));
        let next = first + 20;
        for number in first..next {
            assert!(path.is_recent(low_32(number), next), "{number:#x}");
        }
        assert!(!path.is_recent(low_32(next), next) && !path.is_recent(low_32(first - 1), next));
    }

    #[test]
    fn an_attacker_who_guesses_numbers_has_to_guess_one_of_those_in_flight() {
        let (first, sent) = (0x5_4321_0000, 1000);
        let believed = (0..1_000_000_u32).filter(|n| {
            // An odd factor: all guesses differ.
            let guess = claim(600, n.wrapping_mul(0x9E37_79B1));
            PathMtu::new(1500, first, at(0)).believe(&guess, first + sent, at(1))
        });
        // 1000 of 2^32 numbers: 0.23 expected of a million guesses.
        assert!(believed.count() <= 1);
    }

    #[test]
    fn the_mtu_changes_once_a_second_and_only_downwards() {
        let mut path = path();
        assert!(path.believe(&claim(1400, 100), 101, at(1)));
        assert!(!path.believe(&claim(1300, 100), 101, at(1)), "too early");
        assert!(!path.believe(&claim(1400, 100), 101, at(2)) && !path.believe(&claim(1450, 100), 101, at(2)));
        assert!(path.believe(&claim(1300, 100), 101, at(2)));
        assert_eq!(path.current(), 1300);
    }

    /// RFC 1191 6.3, RFC 8201 4.
    #[test]
    fn what_was_learned_is_forgotten_after_ten_minutes() {
        let mut path = path();
        assert!(!path.is_old(at(10_000)), "there is nothing to forget");
        assert!(path.believe(&claim(1400, 100), 101, at(1)));
        assert!(!path.is_old(at(600)) && path.current() == 1400);
        assert!(path.is_old(at(601)) && path.forget() && path.current() == 1500);
        assert!(!path.is_old(at(1202)) && !path.forget());
        path.set_probed(1400, at(2000));
        path.renew(at(2100));
        assert!(!path.is_old(at(2699)) && path.is_old(at(2700)));
        path.set_probed(1500, at(2700));
        assert!(!path.forget(), "all that was configured passes");
    }

    proptest! {
        /// Whatever comes, the MTU is the configured one, or a claimed one or plateau within the bounds.
        #[test]
        fn the_mtu_stays_within_its_bounds(
            claims in prop::collection::vec((any::<bool>(), 0u32..2000, 0usize..2000, 0u32..200, 0u64..5), 0..40),
        ) {
            let (mut path, mut now) = (path(), 0);
            for (is_v6, mtu, quoted_bytes, sequence, wait) in claims {
                now += wait;
                let version = if is_v6 { Version::V6 } else { Version::V4 };
                let before = path.current();
                let is_believed = path.believe(&Claim { version, mtu, quoted_bytes, sequence }, 101, at(now));
                prop_assert_eq!(is_believed, path.current() != before);
                prop_assert!(path.current() <= before && path.current() >= 576);
                if is_believed {
                    prop_assert!((1..=100).contains(&sequence) && path.current() >= floor(version));
                }
            }
        }
    }

    #[test]
    fn names_are_of_all_tunnels_that_have_them() {
        let peer: IpAddr = "198.51.100.2".parse().unwrap();
        let name = |spi, port| Some(SaName { protocol: IpsecProtocol::Esp, spi, peer, port });
        let get = |names: &OutboundNames, spi, port| -> Vec<u32> {
            names.get(&name(spi, port).unwrap()).iter().map(|index| index.0).collect()
        };
        let mut names = OutboundNames::default();
        names.add(TunnelIndex(0), name(7, None));
        names.add(TunnelIndex(1), name(7, None));
        names.add(TunnelIndex(2), name(7, Some(4500)));
        names.add(TunnelIndex(3), name(7, Some(4501)));
        names.add(TunnelIndex(4), None);
        assert_eq!(get(&names, 7, None), [0, 1]);
        names.remove(TunnelIndex(1), name(7, None));
        assert_eq!(get(&names, 7, None), [0], "where the other one came to and left");
        assert_eq!(get(&names, 7, Some(4501)), [3], "two peers behind one NAT");
        names.remove(TunnelIndex(0), name(7, None));
        names.remove(TunnelIndex(0), name(7, None));
        assert_eq!((get(&names, 7, None), get(&names, 8, None)), (vec![], vec![]));
        assert_eq!(get(&names, 7, Some(4500)), [2]);
    }
}
