//! Peers whose address is learned, and that move: behind a NAT that loses its mapping, or from one network to
//! another (RFC 3948, RFC 4301 4.4.2.1).
//!
//! An outer address is not authenticated. Anyone who can see a packet of the peer can send it again from
//! elsewhere, and get it here first; and the peer itself can use a stranger's address as its source. Two
//! rules limit the damage:
//!
//! - The gateway follows a peer to the source of its newest authentic packet, but not while the peer is alive
//!   at its current address: it stays there for [`SILENCE`] after the last authentic packet from there.
//! - So a peer moves at most once in [`SILENCE`], since a move requires a packet that came from the new
//!   address just then.

use crate::Ipsec;
use crate::encap::outer_fields::OuterRules;
use crate::encap::template::OuterTemplate;
use crate::event::{Event, EventKind};
use crate::lifetime::Moment;
use crate::path_mtu::SaName;
use crate::spd::TunnelIndex;
use crate::tunnel::Encapsulation;
use std::net::IpAddr;
use std::time::Duration;
use testudo_wire::ip::IpHeader;
use testudo_wire::udp::UdpHeader;

/// How long the peer must have been silent at its current address before it is followed elsewhere.
pub(crate) const SILENCE: Duration = Duration::from_secs(1);

/// Where an authentic packet came from.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Source {
    address: IpAddr,
    port: u16,
    /// Whether its sequence number was the highest so far: older packets may still come from the old address.
    is_newest: bool,
}

/// The outer source of a datagram.
#[cold]
pub(crate) fn source_of(datagram: &[u8], is_newest: bool) -> Option<Source> {
    let outer = IpHeader::parse(datagram).ok()?;
    let udp = UdpHeader::parse(outer.payload(datagram)).ok()?;
    Some(Source { address: outer.source, port: udp.source_port, is_newest })
}

impl Ipsec {
    /// Notes where an authentic packet came from, and sends to that address from now on if the peer has
    /// moved.
    pub(crate) fn follow_peer(&mut self, index: TunnelIndex, source: Source, now: Moment) {
        let Some(tunnel) = self.tunnels.get_mut(index.0 as usize).and_then(Option::as_mut) else { return };
        let before = tunnel.parameters.endpoints;
        let endpoints = &tunnel.parameters.endpoints;
        let Encapsulation::EspInUdp { local_port, remote_port } = endpoints.encapsulation else { return };
        let Source { address, port, is_newest } = source;
        if endpoints.remote == Some(address) && remote_port == port {
            tunnel.peer_heard = Some(now);
            return;
        }
        let is_alive = tunnel.peer_heard.is_some_and(|heard| now.since(heard) < SILENCE);
        if !tunnel.parameters.learn_remote || !is_newest || is_alive {
            return;
        }
        tunnel.peer_heard = Some(now);
        self.addresses.unref_peer(&tunnel.parameters);
        let endpoints = &mut tunnel.parameters.endpoints;
        endpoints.remote = Some(address);
        endpoints.encapsulation = Encapsulation::EspInUdp { local_port, remote_port: port };
        self.addresses.add_peer(&tunnel.parameters);
        let rules = OuterRules::of(&tunnel.parameters, self.identifications.seed());
        let (protocol, endpoints) = (tunnel.parameters.protocol, tunnel.parameters.endpoints);
        for member in &tunnel.outbound {
            self.names.remove(index, SaName::of(protocol, &before, member.spi));
            self.names.add(index, SaName::of(protocol, &endpoints, member.spi));
            if let Some(sa) = self.outbound.get_mut(member.sa) {
                sa.template = OuterTemplate::new(&endpoints, protocol, rules, sa.spi);
            }
        }
        self.events.push(Event { tunnel: index, kind: EventKind::PeerMoved { address, port } });
        // It is another path (RFC 8201 4).
        if let Some(prober) = &mut tunnel.prober {
            prober.reset(now);
        }
        if tunnel.path_mtu.forget() {
            self.apply_path_mtu(index);
        }
    }
}
