//! Who finds neighbours and answers for the port's addresses.

use crate::neighbours::Neighbours;
use crate::outbox::Outbox;
use crate::routes::Routes;
use std::net::IpAddr;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;
use testudo_packet::{Buffer, DropReason, Pool};
use testudo_wire::ethernet::{EthernetHeader, MacAddress};

/// What the link layer knows.
#[derive(Debug)]
pub struct Tables {
    /// Where neighbours are.
    pub neighbours: Neighbours,
    pub(crate) routes: Arc<Routes>,
    pub(crate) route_changes: u64,
}

impl Tables {
    /// Replaces all routes.
    pub fn set_routes(&mut self, routes: Arc<Routes>) {
        self.routes = routes;
        self.route_changes += 1;
    }

    /// The routes.
    #[must_use]
    pub fn routes(&self) -> &Routes {
        &self.routes
    }
}

/// What a resolver may use while it looks at a packet: the tables, and frames to send.
pub struct Link<'a> {
    /// What is known.
    pub tables: &'a mut Tables,
    /// Where buffers come from.
    pub pool: &'a mut Pool,
    /// Now, on the port's clock.
    pub now: Duration,
    pub(crate) outbox: &'a mut Outbox,
}

impl Link<'_> {
    /// The port's link-layer address.
    #[must_use]
    pub fn mac(&self) -> MacAddress {
        self.outbox.framing().mac()
    }

    /// Sends a frame with this payload. It is lost where no buffer is free or too many frames wait.
    pub fn send(&mut self, destination: MacAddress, ether_type: u16, payload: &[u8]) {
        self.outbox.message(self.pool, destination, ether_type, payload);
    }
}

/// What is to become of a received packet.
#[derive(Debug)]
pub enum Disposition {
    /// It is for the gateway.
    Deliver,
    /// It ends here, and was consumed, or is refused.
    Drop(DropReason),
    /// What is in the buffer now, a packet in answer, goes back by its route.
    Answer,
    /// The packet is refused, and its sender gets a message about it.
    Refuse(DropReason, Buffer),
}

/// Finds neighbours, and answers for the port's own addresses.
pub trait Resolver: Send {
    /// What becomes readable when something has changed outside, if anything does.
    fn readiness(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Takes note of what has changed outside; called when the port is made, and whenever it receives.
    fn poll(&mut self, _tables: &mut Tables, _now: Duration) {}

    /// Has `address` asked for: by everyone, or at the link-layer address where it was last.
    fn solicit(&mut self, address: IpAddr, mac: Option<MacAddress>, link: &mut Link<'_>);

    /// Looks at the ARP packet in a frame to this port or to a group.
    fn arp(&mut self, header: &EthernetHeader, payload: &[u8], link: &mut Link<'_>) -> DropReason;

    /// Looks at a datagram without padding, which came to this port or to a group. Of its header only version
    /// and length were checked.
    fn packet(&mut self, header: &EthernetHeader, packet: &mut Buffer, link: &mut Link<'_>) -> Disposition;

    /// What to tell the sender of a packet whose next hop does not answer: a packet that is received in its
    /// stead, from this port.
    fn unreachable(&mut self, _packet: &Buffer, _link: &mut Link<'_>) -> Option<Buffer> {
        None
    }
}
