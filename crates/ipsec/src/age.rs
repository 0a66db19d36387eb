//! Lifetimes by time end on time, whether packets come or not (RFC 4301 4.4.2.1).

use crate::Ipsec;
use crate::event::{Event, EventKind};
use crate::lifetime::{LifetimeState, LifetimeUse, Moment};
use crate::sa::Reported;
use crate::spd::TunnelIndex;

impl Ipsec {
    /// Reports the SAs that have reached a limit since this was last called. To be called about once a second.
    pub fn age(&mut self, now: Moment) {
        for tunnel in self.tunnels.iter().flatten() {
            if let Some(sa) = self.outbound.get_mut(tunnel.outbound) {
                look(&mut sa.lifetime, &mut sa.reported, sa.tunnel, true, now, &mut self.events);
            }
            if let Some(sa) = self.inbound.get_mut(tunnel.inbound) {
                look(&mut sa.lifetime, &mut sa.reported, sa.tunnel, false, now, &mut self.events);
            }
        }
    }
}

fn look(
    lifetime: &mut LifetimeUse,
    reported: &mut Reported,
    tunnel: TunnelIndex,
    outbound: bool,
    now: Moment,
    events: &mut Vec<Event>,
) {
    match lifetime.look(now) {
        LifetimeState::Alive => {}
        LifetimeState::SoftReached => {
            events.push(Event { tunnel, kind: EventKind::SoftLifetime { outbound } })
        }
        LifetimeState::Expired => reported.hard_lifetime(events, tunnel, outbound),
    }
}
