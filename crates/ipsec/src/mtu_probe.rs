//! Probing the MTU of a path inside the SA, where routers' ICMP errors are filtered (RFC 4821, RFC 8899).
//!
//! ```text
//!   gateway ── 1500 ── silent router ── 1400 ── peer's gateway ── a host that answers pings
//!      │  echo request in 1,500 bytes ──► lost, three times
//!      │  … in 576 bytes ───────────────────────────────────────────────►│
//!      │◄──────────────────────────────────────────────── echo reply ────│
//!      ▼
//!   the path is black for long datagrams: its MTU is 576 at once, and then what passes between
//! ```
//!
//! ESP has no acknowledgements: padding and dummy packets would get lost without a word. What any peer's
//! network answers is a ping, which says honestly that a datagram of this length arrived. Request and reply
//! go through the SA, so that nobody on the path can forge or select them; an attacker there can only lose
//! them, as he could lose all packets. A reply counts however it comes back: if it is cut on its way, its
//! first fragment is enough, since only the way there is measured.
//!
//! The states are those of RFC 8899 5.2: the MTU in force is confirmed now and then; where it is not, the
//! base is tried; if that passes, the path is a black hole for longer datagrams, and what passes is searched
//! for by halving. If nothing is answered nothing is known, and nothing changes. Ten minutes after the MTU
//! was lowered it is searched for again from there upwards, without giving up what passes.

use crate::Ipsec;
use crate::encap::ah::{AhTransport, AhTunnel};
use crate::encap::esp_transport::EspTransport;
use crate::encap::esp_tunnel::EspTunnel;
use crate::encap::vpe::Vpe;
use crate::encap::{Encap, Shape};
use crate::fragments::mix;
use crate::lifetime::Moment;
use crate::outcome::Prepared;
use crate::path_mtu::floor;
use crate::sa::low_32;
use crate::slow_path::SlowPath;
use crate::spd::TunnelIndex;
use std::net::IpAddr;
use std::time::Duration;
use testudo_packet::{Buffer, DropReason, Pool};
use testudo_wire::checksum::{self, Sum};
use testudo_wire::ip::{IpHeader, OuterHeader, Version};
use testudo_wire::protocol;

/// Times that a probe is sent, one second apart, before it counts as lost (RFC 8899 5.1.2, 5.1.1).
const MAX_PROBES: u8 = 3;
/// A search ends where no more than so many bytes could be gained.
const STEP: usize = 8;
/// Tunnels that are probed in one second at most: with the usual interval 7,680 take turns.
const MAX_AT_A_TIME: usize = 256;
/// Bytes of an echo request before its data (RFC 792, RFC 4443 4.1).
const ECHO_BYTES: usize = 8;

/// Probes of a path: pings through the tunnel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct MtuProbe {
    /// Who asks: an address that the tunnel's selectors have on our side.
    pub source: IpAddr,
    /// Who answers pings: an address behind the peer.
    pub destination: IpAddr,
    /// How often the MTU in force is confirmed (CONFIRMATION_TIMER of RFC 8899 5.1.1).
    pub interval: Duration,
}

/// Lengths of datagrams, in bytes.
#[derive(Debug, Clone, Copy)]
struct Bounds {
    /// What passes if any does (BASE_PLPMTU of RFC 8899 5.1.2).
    floor: usize,
    /// The MTU in force.
    current: usize,
    configured: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// The MTU in force is confirmed now and then.
    Confirm,
    /// It was not: does anything pass?
    Base,
    /// The first passes, the second does not.
    Search(usize, usize),
}

/// A probe that is not answered yet.
#[derive(Debug, Clone, Copy)]
struct Sent {
    /// The length that is probed, in bytes.
    bytes: usize,
    /// That of the datagram: somewhat less where the suite's blocks leave a gap.
    datagram_bytes: usize,
    token: u32,
    tries: u8,
}

/// A probe of a tunnel's path that is to be sent.
#[derive(Debug, Clone, Copy)]
struct Probe {
    index: TunnelIndex,
    /// The most bytes of its datagram.
    bytes: usize,
    token: u32,
}

/// What is known of a path by probes.
#[derive(Debug)]
pub(crate) struct Prober {
    interval: Duration,
    phase: Phase,
    sent: Option<Sent>,
    /// The MTU that the search has put in force, in bytes.
    found: usize,
    /// When the MTU in force is to be confirmed.
    next: Moment,
    /// Whether the last probes had an answer.
    is_heard: bool,
    /// Probes so far.
    count: u64,
}

impl Prober {
    pub(crate) fn new(probe: &MtuProbe, now: Moment) -> Self {
        Self {
            interval: probe.interval,
            phase: Phase::Confirm,
            sent: None,
            found: 0,
            next: now,
            is_heard: false,
            count: 0,
        }
    }

    /// It is another path.
    pub(crate) fn reset(&mut self, now: Moment) {
        (self.phase, self.sent, self.next, self.is_heard) = (Phase::Confirm, None, now, false);
    }

    /// Whether a probe is not answered yet.
    pub(crate) fn is_waiting(&self) -> bool {
        self.sent.is_some()
    }

    fn confirm_later(&mut self, now: Moment) {
        (self.phase, self.next) = (Phase::Confirm, Moment(now.0 + self.interval));
    }

    /// The length to probe now, if any. To be called once a second.
    fn due(&mut self, path: Bounds, now: Moment) -> Option<usize> {
        if matches!(self.phase, Phase::Search(..)) && path.current < self.found {
            // A router has said so meanwhile.
            (self.phase, self.sent) = (Phase::Confirm, None);
        }
        if let Some(sent) = &self.sent {
            if sent.tries < MAX_PROBES {
                return Some(sent.bytes);
            }
            let lost = sent.bytes;
            self.sent = None;
            self.note_lost(lost, path, now);
        }
        self.wanted(path, now)
    }

    fn note_lost(&mut self, bytes: usize, path: Bounds, now: Moment) {
        match self.phase {
            Phase::Confirm if path.current > path.floor => self.phase = Phase::Base,
            Phase::Confirm | Phase::Base => {
                self.is_heard = false;
                self.confirm_later(now);
            }
            Phase::Search(low, _) => self.phase = Phase::Search(low, bytes),
        }
    }

    fn wanted(&mut self, path: Bounds, now: Moment) -> Option<usize> {
        match self.phase {
            Phase::Confirm => (now >= self.next).then_some(path.current),
            Phase::Base => Some(path.floor),
            // A search upwards begins with all that could be: often the narrow link is gone.
            Phase::Search(low, high) if high > path.configured && low < path.configured => {
                Some(path.configured)
            }
            Phase::Search(low, high) if high - low > STEP => Some(low + (high - low) / 2),
            Phase::Search(..) => {
                self.confirm_later(now);
                None
            }
        }
    }

    /// Notes that a probe was sent. One that could not be, because no buffer was free or no number granted,
    /// says nothing about the path, and does not count as lost.
    fn note_sent(&mut self, bytes: usize, datagram_bytes: usize, token: u32) {
        let tries = self.sent.filter(|sent| sent.bytes == bytes).map_or(1, |sent| sent.tries + 1);
        self.sent = Some(Sent { bytes, datagram_bytes, token, tries });
    }

    /// Takes the answer to a probe. The MTU from now on, if it changes.
    fn note_answer(&mut self, token: u32, path: Bounds, now: Moment) -> Option<usize> {
        let sent = self.sent.take_if(|sent| sent.token == token)?;
        self.is_heard = true;
        match self.phase {
            Phase::Confirm => {
                self.confirm_later(now);
                None
            }
            Phase::Base => {
                self.phase = Phase::Search(sent.bytes, path.current);
                self.found = path.floor;
                Some(path.floor)
            }
            Phase::Search(_, high) => {
                self.phase = Phase::Search(sent.bytes, high);
                let is_all = sent.bytes == path.configured;
                let passes = if is_all { path.configured } else { sent.datagram_bytes };
                self.found = passes.max(path.current);
                (passes > path.current).then_some(passes)
            }
        }
    }

    /// Searches upwards from the MTU in force, which was lowered long ago. `false` if nobody answers, so that
    /// a search would find nothing.
    pub(crate) fn raise(&mut self, current: usize, configured: usize) -> bool {
        if self.is_heard && self.phase == Phase::Confirm {
            (self.phase, self.sent) = (Phase::Search(current, configured + 1), None);
            self.found = current;
        }
        self.is_heard
    }
}

/// Writes an echo request of so many bytes in all, IP header included, into an empty buffer; `false` if it
/// does not fit.
fn write_request(buffer: &mut Buffer, probe: &MtuProbe, bytes: usize, token: u32) -> bool {
    let is_v4 = probe.source.is_ipv4();
    let (number, kind) = if is_v4 { (protocol::ICMP, 8) } else { (protocol::ICMPV6, 128) };
    let outer = OuterHeader {
        source: probe.source,
        destination: probe.destination,
        protocol: number,
        traffic_class: 0,
        hop_limit: 64,
        dont_fragment: true,
    };
    let ip_bytes = outer.bytes();
    let Some(packet) = buffer.receive_area().get_mut(..bytes.max(ip_bytes + ECHO_BYTES)) else {
        return false;
    };
    packet.fill(0);
    if outer.write(packet, packet.len(), 0).is_err() {
        return false;
    }
    let message = &mut packet[ip_bytes..];
    message[0] = kind;
    message[4..ECHO_BYTES].copy_from_slice(&token.to_be_bytes());
    let sum = if is_v4 {
        checksum::of(message)
    } else {
        let length = low_32(message.len() as u64);
        Sum::default().pseudo_header(probe.source, probe.destination, number, length).bytes(message).finish()
    };
    message[2..4].copy_from_slice(&sum.to_bytes());
    let total = packet.len();
    buffer.set_len(total);
    true
}

/// The token of an echo reply to a probe, or of its first fragment.
fn token_of_reply(packet: &[u8], probe: &MtuProbe) -> Option<u32> {
    let header = IpHeader::parse(packet).ok()?;
    let is_reply = match (header.protocol, header.payload(packet).first()) {
        (protocol::ICMP, Some(kind)) => *kind == 0,
        (protocol::ICMPV6, Some(kind)) => *kind == 129,
        _ => false,
    };
    let is_first = header.fragment.is_none_or(|fragment| fragment.offset_bytes == 0);
    let ends = (header.source, header.destination);
    if !is_reply || !is_first || ends != (probe.destination, probe.source) {
        return None;
    }
    let token = header.payload(packet).get(4..ECHO_BYTES)?.first_chunk()?;
    Some(u32::from_be_bytes(*token))
}

impl Ipsec {
    /// Appends the probes that are due to `out`. To be called once a second.
    pub fn probe_paths(&mut self, now: Moment, pool: &mut Pool, out: &mut Prepared) {
        let count = self.tunnels.len();
        let from = self.probed_next;
        let mut sent = 0;
        for at in (0..count).map(|n| (from + n) % count) {
            if sent == MAX_AT_A_TIME {
                self.probed_next = at;
                return;
            }
            let index = TunnelIndex(low_32(at as u64));
            sent += usize::from(self.probe(index, now, pool, out).is_some());
        }
    }

    /// The tunnel whose path carries a tunnel's datagrams: that of AH which covers them, or itself.
    fn path_of(&self, index: TunnelIndex) -> TunnelIndex {
        self.tunnel(index).and_then(|tunnel| tunnel.parameters.covered_by).unwrap_or(index)
    }

    fn bounds(&self, index: TunnelIndex) -> Option<Bounds> {
        let path = self.tunnel(self.path_of(index))?;
        // Nothing is sent while the peer is unknown.
        path.parameters.endpoints.remote?;
        let (current, configured) = (path.path_mtu.current(), path.path_mtu.configured());
        let floor = floor(Version::of(path.parameters.endpoints.local)).min(configured);
        Some(Bounds { floor, current, configured })
    }

    /// Sends the probe of a tunnel, if one is due.
    fn probe(&mut self, index: TunnelIndex, now: Moment, pool: &mut Pool, out: &mut Prepared) -> Option<()> {
        self.tunnel(index)?.prober.as_ref()?;
        let bounds = self.bounds(index)?;
        let seed = self.identifications.seed();
        let prober = self.tunnels.get_mut(index.0 as usize)?.as_mut()?.prober.as_mut()?;
        let due = prober.due(bounds, now);
        prober.count += 1;
        // Nobody who does not see the packets can tell it; who does cannot seal an answer.
        let fresh = low_32(mix(seed ^ mix(prober.count ^ u64::from(index.0) << 40)) >> 32);
        let token = prober.sent.map_or(fresh, |sent| sent.token);
        let sent = due.and_then(|bytes| {
            let probe = Probe { index, bytes, token };
            Some((bytes, self.send_probe(probe, now, pool, out)?))
        });
        if let Some((bytes, datagram_bytes)) = sent {
            let prober = self.tunnels.get_mut(index.0 as usize)?.as_mut()?.prober.as_mut()?;
            prober.note_sent(bytes, datagram_bytes, token);
        }
        self.settle_watches(index);
        sent.map(|_| ())
    }

    /// The lengths of datagrams of the SA in use.
    pub(crate) fn shape_in_use(&self, index: TunnelIndex) -> Option<Shape> {
        let tunnel = self.tunnel(index)?;
        let sa = self.way_of(tunnel)?;
        let member = tunnel.outbound.iter().find(|member| member.sa == sa)?;
        Some(tunnel.parameters.shape(member.suite))
    }

    /// Makes a job of a probe. The length of its datagram.
    fn send_probe(
        &mut self,
        Probe { index, bytes, token }: Probe,
        now: Moment,
        pool: &mut Pool,
        out: &mut Prepared,
    ) -> Option<usize> {
        let path = self.path_of(index);
        // What AH adds does not depend on the length.
        let covered_bytes = if path == index { bytes } else { self.shape_in_use(path)?.inner_mtu(bytes) };
        let inner_bytes = self.shape_in_use(index)?.inner_mtu(covered_bytes);
        let probe = self.tunnel(index)?.parameters.rules.mtu_probe.as_deref().copied()?;
        let sa_ref = self.way_of(self.tunnel(index)?)?;
        let mut packet = pool.create(inner_bytes)?;
        self.note_flying(sa_ref);
        let is_written = write_request(&mut packet, &probe, inner_bytes, token);
        let header = IpHeader::parse(packet.bytes()).ok().filter(|_| is_written);
        let (Some(header), Some(sa)) = (header, self.outbound.get_mut(sa_ref)) else {
            pool.discard(packet, DropReason::NoRoom);
            return None;
        };
        let (events, replies, audit) = (&mut self.events, &mut self.replies, &mut self.audit);
        let identifications = &mut self.identifications;
        let (encap, before) = (sa.encap, out.jobs.len());
        // A probe is not cut.
        let path_mtu = usize::MAX;
        let slow_path =
            SlowPath { sa, sa_ref, now, pool, out, events, replies, audit, identifications, path_mtu };
        match encap {
            Encap::EspTunnel => slow_path.probe::<EspTunnel>(packet, &header),
            Encap::EspTransport => slow_path.probe::<EspTransport>(packet, &header),
            Encap::AhTunnel => slow_path.probe::<AhTunnel>(packet, &header),
            Encap::AhTransport => slow_path.probe::<AhTransport>(packet, &header),
            Encap::Vpe => slow_path.probe::<Vpe>(packet, &header),
        }
        let gap = out.jobs.get(before).map(|job| covered_bytes.saturating_sub(job.buffer.len()));
        gap.map(|gap| bytes - gap)
    }

    /// Takes a packet that came through a tunnel and passed all checks, if it answers a probe.
    pub(crate) fn take_probe_answer(&mut self, index: TunnelIndex, packet: &[u8], now: Moment) -> bool {
        self.probe_answer(index, packet, now).is_some()
    }

    fn probe_answer(&mut self, index: TunnelIndex, packet: &[u8], now: Moment) -> Option<()> {
        let bounds = self.bounds(index)?;
        let tunnel = self.tunnels.get_mut(index.0 as usize)?.as_mut()?;
        let token = token_of_reply(packet, tunnel.parameters.rules.mtu_probe.as_deref()?)?;
        let prober = tunnel.prober.as_mut()?;
        // Another ping, or an answer that comes twice: its host knows what to make of it.
        if prober.sent.is_none_or(|sent| sent.token != token) {
            return None;
        }
        let mtu = prober.note_answer(token, bounds, now);
        self.settle_watches(index);
        if let Some(mtu) = mtu {
            let path = self.path_of(index);
            self.tunnels.get_mut(path.0 as usize)?.as_mut()?.path_mtu.set_probed(mtu, now);
            self.apply_path_mtu(path);
        }
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONFIGURED: usize = 1500;

    /// A path that carries `passes` bytes, with a peer who answers or not, and a gateway that probes it.
    struct Path {
        prober: Prober,
        passes: usize,
        answers: bool,
        bounds: Bounds,
        seconds: u64,
        probes: Vec<usize>,
    }

    impl Path {
        fn new(passes: usize) -> Self {
            let address = IpAddr::from([192, 0, 2, 1]);
            let interval = Duration::from_secs(30);
            let probe = MtuProbe { source: address, destination: address, interval };
            let prober = Prober::new(&probe, Moment::default());
            let bounds = Bounds { floor: 576, current: CONFIGURED, configured: CONFIGURED };
            Self { prober, passes, answers: true, bounds, seconds: 0, probes: Vec::new() }
        }

        fn run(&mut self, seconds: u64) {
            for _ in 0..seconds {
                let now = Moment(Duration::from_secs(self.seconds));
                if let Some(bytes) = self.prober.due(self.bounds, now) {
                    self.probes.push(bytes);
                    let token = low_32(self.probes.len() as u64);
                    self.prober.note_sent(bytes, bytes - 1, token);
                    if self.answers && bytes <= self.passes {
                        assert_eq!(
                            self.prober.note_answer(token ^ 1, self.bounds, now),
                            None,
                            "another token"
                        );
                        if let Some(mtu) = self.prober.note_answer(token, self.bounds, now) {
                            self.bounds.current = mtu;
                        }
                    }
                }
                self.seconds += 1;
            }
        }
    }

    /// RFC 8899 5.3: what is found passes, and little more does; until then the base is used.
    #[test]
    fn every_path_is_found_to_a_few_bytes_and_nothing_that_does_not_pass_is_used() {
        for passes in 576..=CONFIGURED {
            let mut path = Path::new(passes);
            path.run(4);
            assert_eq!(path.bounds.current, if passes == CONFIGURED { CONFIGURED } else { 576 });
            path.run(30);
            let found = path.bounds.current;
            assert!(found <= passes && found + STEP + 1 >= passes, "{found} of {passes}");
            assert!(path.probes.len() <= 30, "{} probes", path.probes.len());
        }
    }

    #[test]
    fn a_path_that_carries_all_costs_one_probe_each_interval() {
        let mut path = Path::new(CONFIGURED);
        path.run(300);
        assert_eq!(path.probes, [CONFIGURED; 10]);
    }

    /// RFC 8899 3: without any answer nothing is known.
    #[test]
    fn a_peer_that_does_not_answer_changes_nothing() {
        let mut path = Path::new(CONFIGURED);
        path.answers = false;
        path.run(300);
        assert_eq!(path.bounds.current, CONFIGURED);
        assert!(path.probes.len() <= 60 && !path.prober.raise(CONFIGURED, CONFIGURED));
    }

    /// What did not leave cannot get lost on the path: a gateway without buffers learns nothing about it.
    #[test]
    fn a_probe_that_could_not_be_sent_is_not_lost() {
        let mut path = Path::new(CONFIGURED);
        let bounds = path.bounds;
        let due = |prober: &mut Prober, second| prober.due(bounds, Moment(Duration::from_secs(second)));
        assert_eq!(due(&mut path.prober, 0), Some(CONFIGURED));
        path.prober.note_sent(CONFIGURED, CONFIGURED, 1);
        for second in 1..100 {
            assert_eq!(due(&mut path.prober, second), Some(CONFIGURED), "it is to be repeated");
        }
        for second in 100..102 {
            assert_eq!(due(&mut path.prober, second), Some(CONFIGURED));
            path.prober.note_sent(CONFIGURED, CONFIGURED, 1);
        }
        assert_eq!(due(&mut path.prober, 102), Some(576), "sent three times");
    }

    /// RFC 8899 5.1.1: PMTU_RAISE_TIMER.
    #[test]
    fn a_path_that_became_wider_is_found_without_giving_up_what_passes() {
        let mut path = Path::new(1400);
        path.run(60);
        let found = path.bounds.current;
        for (passes, expected) in
            [(1400, found..=1400), (1450, 1441..=1450), (CONFIGURED, CONFIGURED..=CONFIGURED)]
        {
            path.passes = passes;
            assert!(path.prober.raise(path.bounds.current, CONFIGURED));
            for _ in 0..30 {
                path.run(1);
                assert!(path.bounds.current >= found);
            }
            assert!(expected.contains(&path.bounds.current), "{} of {passes}", path.bounds.current);
            path.run(60);
        }
    }

    #[test]
    fn a_router_that_speaks_during_a_search_ends_it() {
        let mut path = Path::new(1400);
        path.run(12);
        assert!(matches!(path.prober.phase, Phase::Search(low, _) if low > 1000), "{:?}", path.prober);
        path.bounds.current = 1000;
        path.passes = 1000;
        path.run(40);
        assert_eq!((path.bounds.current, path.prober.phase), (1000, Phase::Confirm));
    }
}
