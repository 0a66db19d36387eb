//! Which datagrams carry nothing: a peer takes them and delivers none. Only who has the key can tell, so a
//! gateway of one worker for each SA, which forgets nothing, opens them as they leave.

use super::encapsulation::Case;
use crate::support::gateway::PoolSize;
use crate::support::{Gateway, Side, TunnelSpec};
use std::collections::HashMap;
use testudo_packet::DropReason;

/// Tells dummies of ESP, and fill packets of VPE, from the others that a side sends.
pub struct Fills {
    to: Side,
    case: Case,
    /// By SPI.
    peers: HashMap<u32, Gateway>,
}

impl Fills {
    pub fn new(from: Side, case: &Case) -> Self {
        Self { to: super::site::other(from), case: case.clone(), peers: HashMap::new() }
    }

    /// Whether a datagram under this SPI, which leaves now, is one. Without a clock there are none.
    pub fn have(&mut self, spi: u32, datagram: &[u8]) -> bool {
        if !self.case.has_clock() {
            return false;
        }
        let peer = self.peers.entry(spi).or_insert_with(|| {
            let number = u8::try_from((spi - 0x1000) / 2).expect("the number of a tunnel");
            // A window in which nothing is too old, however the port of a worker was stuck.
            let spec = TunnelSpec { number, window: 4096, ..self.case.spec.clone() };
            Gateway::with_buffers(self.to, &[spec], PoolSize(64, 2048))
        });
        let count = |peer: &Gateway| peer.drops(DropReason::DummyPacket) + peer.drops(DropReason::VpeFill);
        let before = count(peer);
        peer.open(datagram);
        count(peer) > before
    }
}
