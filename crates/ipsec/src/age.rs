//! Lifetimes by time end on time, whether packets arrive or not (RFC 4301 4.4.2.1), and so does what was
//! learned of a path's MTU.

use crate::Ipsec;
use crate::event::{Event, EventKind};
use crate::lifetime::{LifetimeState, Moment};
use crate::spd::TunnelIndex;

impl Ipsec {
    /// Reports the SAs that have reached a limit since the last call, and forgets MTUs that were learned long
    /// ago. To be called about once a second.
    pub fn age(&mut self, now: Moment) {
        for index in (0..).map(TunnelIndex).take(self.tunnels.len()) {
            self.age_lifetimes(index, now);
            self.age_path_mtu(index, now);
        }
    }

    fn age_lifetimes(&mut self, index: TunnelIndex, now: Moment) {
        let Some(tunnel) = self.tunnels.get(index.0 as usize).and_then(Option::as_ref) else { return };
        let events = &mut self.events;
        if let Some(sa) = self.outbound.get_mut(tunnel.outbound) {
            match sa.lifetime.look(now) {
                LifetimeState::Alive => {}
                LifetimeState::SoftReached => events.push(soft(index, true)),
                LifetimeState::Expired => sa.expire(events),
            }
        }
        if let Some(sa) = self.inbound.get_mut(tunnel.inbound) {
            match sa.lifetime.look(now) {
                LifetimeState::Alive => {}
                LifetimeState::SoftReached => events.push(soft(index, false)),
                LifetimeState::Expired => sa.expire(events),
            }
        }
    }
}

fn soft(tunnel: TunnelIndex, outbound: bool) -> Event {
    Event { tunnel, kind: EventKind::SoftLifetime { outbound } }
}
