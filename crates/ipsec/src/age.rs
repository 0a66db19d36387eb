//! Lifetimes by time end on time, whether packets arrive or not (RFC 4301 4.4.2.1).

use crate::Ipsec;
use crate::event::{Event, EventKind};
use crate::lifetime::{LifetimeState, Moment};

impl Ipsec {
    /// Reports the SAs that have reached a limit since the last call. To be called about once a second.
    pub fn age(&mut self, now: Moment) {
        let events = &mut self.events;
        for tunnel in self.tunnels.iter().flatten() {
            if let Some(sa) = self.outbound.get_mut(tunnel.outbound) {
                match sa.lifetime.look(now) {
                    LifetimeState::Alive => {}
                    LifetimeState::SoftReached => events.push(soft(sa.tunnel, true)),
                    LifetimeState::Expired => sa.expire(events),
                }
            }
            if let Some(sa) = self.inbound.get_mut(tunnel.inbound) {
                match sa.lifetime.look(now) {
                    LifetimeState::Alive => {}
                    LifetimeState::SoftReached => events.push(soft(sa.tunnel, false)),
                    LifetimeState::Expired => sa.expire(events),
                }
            }
        }
    }
}

fn soft(tunnel: crate::TunnelIndex, outbound: bool) -> Event {
    Event { tunnel, kind: EventKind::SoftLifetime { outbound } }
}
