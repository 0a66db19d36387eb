//! Lifetimes by time end on time, whether packets arrive or not (RFC 4301 4.4.2.1), and so does what was
//! learned of a path's MTU.

use crate::Ipsec;
use crate::lifetime::{LifetimeState, Moment};
use crate::spd::TunnelIndex;

impl Ipsec {
    /// Reports the SAs that have reached a limit since the last call, and forgets MTUs that were learned long
    /// ago. To be called about once a second.
    pub fn age(&mut self, now: Moment) {
        self.audit.tick(now);
        self.age_lifetimes(now);
        for index in (0..).map(TunnelIndex).take(self.tunnels.len()) {
            self.age_path_mtu(index, now);
        }
    }

    fn age_lifetimes(&mut self, now: Moment) {
        let events = &mut self.events;
        for sa in self.outbound.iter_mut() {
            match sa.lifetime.look(now) {
                LifetimeState::Alive => {}
                LifetimeState::SoftReached => events.push(sa.soft_lifetime()),
                LifetimeState::Expired => sa.expire(events),
            }
        }
        for sa in self.inbound.iter_mut() {
            match sa.lifetime.look(now) {
                LifetimeState::Alive => {}
                LifetimeState::SoftReached => events.push(sa.soft_lifetime()),
                LifetimeState::Expired => sa.expire(events),
            }
        }
    }
}
