//! What another worker has learned of a tunnel from a packet: each has tables of its own, and a packet comes
//! to one of them.

use crate::Ipsec;
use crate::event::{Event, EventKind};
use crate::lifetime::Moment;
use crate::path_mtu::LearnedMtu;
use crate::tunnel::{Encapsulation, Endpoints};
use std::net::IpAddr;

impl EventKind {
    /// Whether the other workers are to [hear](Ipsec::hear) of it.
    #[must_use]
    pub fn concerns_all(&self) -> bool {
        let is_learned =
            matches!(self, Self::TookOver { .. } | Self::PeerMoved { .. } | Self::PathMtu { .. });
        is_learned || matches!(self, Self::SenderTaken { .. })
    }
}

impl Ipsec {
    /// Follows what has happened at another worker. It is no event here, and nothing changes at the worker
    /// that it came from.
    pub fn hear(&mut self, event: Event, now: Moment) {
        let index = event.tunnel;
        match event.kind {
            EventKind::TookOver { spi } => {
                // If it waits for the peer no more, another SA was put to use since.
                let Some(sa) = self.outbound_sa(index, spi) else { return };
                let waits = self.tunnel(index).is_some_and(|tunnel| tunnel.waits_for_peer(sa));
                if waits {
                    self.use_outbound(index, sa);
                }
            }
            EventKind::PeerMoved { address, port, .. } => self.hear_of_move(event, address, port, now),
            EventKind::PathMtu { mtu, learned_from } => {
                let Some(tunnel) = self.tunnels.get_mut(index.0 as usize).and_then(Option::as_mut) else {
                    return;
                };
                let learned = learned_from.map(|from| LearnedMtu { mtu, at: now, from });
                if tunnel.path_mtu.hear(learned) {
                    self.put_path_mtu(index);
                }
            }
            EventKind::SenderTaken { spi, sender, .. } => self.hear_of_taken(index, spi, sender),
            _ => {}
        }
    }

    fn hear_of_move(&mut self, event: Event, address: IpAddr, port: u16, now: Moment) {
        let Some(tunnel) = self.tunnels.get_mut(event.tunnel.0 as usize).and_then(Option::as_mut) else {
            return;
        };
        let ends = tunnel.parameters.endpoints;
        // It may have been put between other ends since, or the peer has moved on.
        let Encapsulation::EspInUdp { local_port, .. } = ends.encapsulation else { return };
        if tunnel.parameters.learn_remote && tunnel.parameters.peer_heard.hear((address, port)) {
            let encapsulation = Encapsulation::EspInUdp { local_port, remote_port: port };
            let there = Endpoints { remote: Some(address), encapsulation, ..ends };
            self.move_to(event.tunnel, there, now);
        }
    }
}
