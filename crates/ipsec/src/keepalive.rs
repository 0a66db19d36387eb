//! NAT keepalives (RFC 3948 4): one byte when a tunnel has been silent for some time.

use crate::Ipsec;
use crate::encap::template::{ATOMIC, OuterTemplate};
use crate::lifetime::Moment;
use crate::outcome::Originated;
use crate::tunnel::Encapsulation;
use testudo_packet::{Buffer, Pool};
use testudo_wire::esp::NAT_KEEPALIVE;
use testudo_wire::ip::IPV6_HEADER_BYTES;
use testudo_wire::udp::UDP_HEADER_BYTES;

/// The longest outer headers of a keepalive: it always goes in UDP.
const MAX_OUTER_BYTES: usize = IPV6_HEADER_BYTES + UDP_HEADER_BYTES;

/// Keepalives that are sent at a time. The others stay due for the next second, so that when many tunnels
/// fall silent together, their keepalives spread out instead of overflowing the queue to the port.
const MAX_AT_A_TIME: usize = 1024;

impl Ipsec {
    /// Appends the keepalives that are due to `out`, at most 1,024. To be called about once a second.
    pub fn keepalives(&mut self, now: Moment, pool: &mut Pool, out: &mut Vec<Originated>) {
        for tunnel in self.tunnels.iter().flatten() {
            let Some(interval) = tunnel.parameters.keepalive else { continue };
            // Outside UDP the one byte would be a broken ESP packet.
            if tunnel.parameters.endpoints.encapsulation == Encapsulation::Esp {
                continue;
            }
            // Not the table of SAs in use: while a worker is to ask for one of its own it has none.
            let Some(way) = self.way_of(tunnel) else { continue };
            let Some(sa) = self.outbound.get_mut(way) else { continue };
            let Some(template) = sa.template.as_ref().filter(|_| now.since(sa.last_sent) >= interval) else {
                continue;
            };
            if out.len() >= MAX_AT_A_TIME {
                return;
            }
            let Some(buffer) = keepalive(template, pool) else { return };
            sa.last_sent = now;
            out.push(Originated::new(buffer));
        }
    }
}

fn keepalive(template: &OuterTemplate, pool: &mut Pool) -> Option<Buffer> {
    let mut datagram = [0; MAX_OUTER_BYTES + 1];
    let total = template.bytes() + 1;
    let datagram = datagram.get_mut(..total)?;
    template.write(datagram, total, 0, ATOMIC).ok()?;
    datagram[total - 1] = NAT_KEEPALIVE;
    let mut buffer = pool.create(total)?;
    buffer.receive_area()[..total].copy_from_slice(datagram);
    buffer.set_len(total);
    Some(buffer)
}
