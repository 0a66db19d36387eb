//! Peers whose address is learned, and that move: behind a NAT that loses its mapping, or from one network to
//! another (RFC 3948, RFC 4301 4.4.2.1).
//!
//! An outer address is not authenticated. Anyone who can see a packet of the peer can send it again from
//! elsewhere, and get it here first, or keep it back and send it later; and the peer itself can use a
//! stranger's address as its source. These rules limit the damage:
//!
//! - The gateway follows a peer to the source of an authentic packet, but not while the peer is alive at its
//!   current address: it stays there for a second after the last authentic packet from there, whichever
//!   worker [heard](crate::peer_heard) it.
//! - The packet must be *news*: its number is higher than all that were received under its SA. Of VPE, where
//!   numbers of two windows have no order, than all of its window; and the window must have *spoken lately*:
//!   the news before, wherever it came from, came not earlier than a second before the peer was last heard.
//!   So the peer has sent the packet at most a second before its last words, if the network kept nothing
//!   back before; not long ago, in a window that was idle since. Of such a window, and of a new one, the
//!   first packet only makes it speak, and the second one is followed.
//! - An SA whose packets may come [from any port](crate::InboundParameters::from_any_port) moves nobody.
//! - So a peer moves at most once in a second, since a move requires a packet that came from the new address
//!   just then.
//!
//! **What is not promised.** The peer is asked nothing, so that who has the path has the address: by sending
//! each packet on from elsewhere, by outrunning each, or by keeping all of them back for a second. Who does
//! not have it needs packets that never arrived, and a peer that is silent: the last one under an SA of ESP
//! or of a window that spoke last, or two of a window that was idle since. Each packet more that is news
//! keeps the peer away for a second at most; then its own move it back. A peer whose numbers begin again
//! without a replay window is not heard until they are where they were. Nor is one by SAs that take packets
//! from any port, such as those of one processor each (RFC 9611): who speaks by these alone is silent. What
//! is at stake is where sealed packets go, and neither their secrecy nor what is accepted.

use crate::Ipsec;
use crate::encap::IpsecProtocol;
use crate::encap::outer_fields::OuterRules;
use crate::encap::template::OuterTemplate;
use crate::event::{Event, EventKind};
use crate::lifetime::Moment;
use crate::path_mtu::SaName;
use crate::peer_heard::{News, Verdict};
use crate::spd::TunnelIndex;
use crate::tunnel::{Encapsulation, Endpoints, TunnelParameters};
use crate::vpe::VpeSourcePorts;
use std::net::{IpAddr, SocketAddr};
use testudo_wire::ip::IpHeader;
use testudo_wire::udp::UdpHeader;

/// Where an authentic packet came from.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Source {
    /// The SA that it came under.
    spi: u32,
    address: IpAddr,
    port: u16,
    /// What its number says: older packets may still come from the old address.
    news: News,
}

/// The outer source of a datagram.
#[cold]
pub(crate) fn source_of(datagram: &[u8], spi: u32, news: News) -> Option<Source> {
    let outer = IpHeader::parse(datagram).ok()?;
    let udp = UdpHeader::parse(outer.payload(datagram)).ok()?;
    Some(Source { spi, address: outer.source, port: udp.source_port, news })
}

/// The peer's end, where it may move.
fn place_of(ends: &Endpoints) -> Option<(IpAddr, u16)> {
    match ends.encapsulation {
        Encapsulation::EspInUdp { remote_port, .. } => Some((ends.remote?, remote_port)),
        Encapsulation::Esp => None,
    }
}

impl Ipsec {
    /// Notes where an authentic packet came from, and sends to that address from now on if the peer has
    /// moved.
    pub(crate) fn follow_peer(&mut self, index: TunnelIndex, source: Source, now: Moment) {
        let Some(tunnel) = self.tunnels.get_mut(index.0 as usize).and_then(Option::as_mut) else { return };
        let endpoints = &tunnel.parameters.endpoints;
        let Encapsulation::EspInUdp { local_port, remote_port } = endpoints.encapsulation else { return };
        let Source { spi, address, port, news } = source;
        // A port that says which window it is says nothing of where the peer receives: there the port is the
        // tunnel's, and packets of two windows come from one place.
        let has_windows = tunnel.parameters.protocol == IpsecProtocol::Vpe
            && tunnel.parameters.rules.of_vpe().source_ports == VpeSourcePorts::PerWindow;
        let port = if has_windows { remote_port } else { port };
        let is_there = endpoints.remote == Some(address) && remote_port == port;
        // What is old may have been kept back: it does not say that the peer is there still.
        if is_there && (news == News::Old || tunnel.parameters.peer_heard.note(now)) {
            return;
        }
        if !tunnel.parameters.learn_remote || !tunnel.says_where_peer_is(spi) {
            return;
        }
        let verdict = tunnel.parameters.peer_heard.judge((address, port), news, now);
        if verdict == Verdict::Stay {
            return;
        }
        let encapsulation = Encapsulation::EspInUdp { local_port, remote_port: port };
        let there = Endpoints { remote: Some(address), encapsulation, ..*endpoints };
        let own = endpoints.remote.map(|address| (address, remote_port));
        self.move_to(index, there, now);
        if let Verdict::Move(before) = verdict {
            let before = before.or(own).map(SocketAddr::from);
            let moved = EventKind::PeerMoved { spi, before, address, port };
            self.events.push(Event { tunnel: index, kind: moved });
        }
    }

    /// Puts a tunnel between other ends, in UDP or not: a key exchange has settled that later, or otherwise.
    /// Its SAs towards the peer go on with their numbers and keys; those from the peer are received as they
    /// were when they were added. `false` if there is no such tunnel.
    pub fn redirect(&mut self, index: TunnelIndex, ends: Endpoints, learn_remote: bool, now: Moment) -> bool {
        let Some(tunnel) = self.tunnels.get_mut(index.0 as usize).and_then(Option::as_mut) else {
            return false;
        };
        tunnel.parameters.learn_remote = learn_remote;
        if learn_remote {
            tunnel.parameters.peer_heard.begin();
        }
        if tunnel.parameters.endpoints != ends {
            tunnel.parameters.peer_heard.put(place_of(&ends), now);
        }
        self.settle_watches(index);
        self.move_to(index, ends, now);
        true
    }

    /// The peer has moved there, if it is not there already.
    pub(crate) fn move_to(&mut self, index: TunnelIndex, ends: Endpoints, now: Moment) {
        if self.tunnel(index).is_some_and(|tunnel| tunnel.parameters.endpoints != ends) {
            self.send_between(index, ends);
            self.take_another_path(index, now);
        }
    }

    /// The datagrams of a tunnel have these ends from now on.
    fn send_between(&mut self, index: TunnelIndex, ends: Endpoints) {
        let Some(tunnel) = self.tunnels.get_mut(index.0 as usize).and_then(Option::as_mut) else { return };
        let before = std::mem::replace(&mut tunnel.parameters.endpoints, ends);
        let parameters = &tunnel.parameters;
        let (there, left) =
            (parameters.clone(), TunnelParameters { endpoints: before, ..parameters.clone() });
        self.addresses.add(&there);
        let rules = OuterRules::of(parameters, self.identifications.seed());
        let protocol = parameters.protocol;
        for member in &tunnel.outbound {
            self.names.remove(index, SaName::of(protocol, &before, member.spi));
            self.names.add(index, SaName::of(protocol, &ends, member.spi));
            if let Some(sa) = self.outbound.get_mut(member.sa) {
                sa.template = OuterTemplate::new(&ends, protocol, rules, sa.spi);
            }
        }
        // In this order, so that what both have is not gone in between.
        self.listen(&there);
        self.addresses.unref(&left);
        self.unlisten(&left);
        let path_mtu = left.path_mtu;
        // A header of UDP more or less leaves packets less or more.
        self.set_path_mtu(index, path_mtu);
    }

    /// It is another path (RFC 8201 4).
    fn take_another_path(&mut self, index: TunnelIndex, now: Moment) {
        let Some(tunnel) = self.tunnels.get_mut(index.0 as usize).and_then(Option::as_mut) else { return };
        if let Some(prober) = &mut tunnel.prober {
            prober.reset(now);
        }
        if tunnel.path_mtu.forget() {
            self.apply_path_mtu(index);
        }
    }
}
