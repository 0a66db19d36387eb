//! Packets that a worker sends by the clock: dummies, so that who watches sees less of the others, and those
//! of tunnels that send at one rate.

use crate::worker::Worker;
use testudo_ipsec::Moment;

impl Worker {
    /// When [`send_dummies`](Self::send_dummies) has something to do next; `None` for never, or not before
    /// the port has taken what waits for it.
    #[must_use]
    pub fn next_dummy(&self) -> Option<Moment> {
        if self.sends_dummies() { self.ipsec.next_dummy() } else { None }
    }

    /// A worker that is parked, or encrypts nothing, has nothing to hide.
    fn hides(&self) -> bool {
        self.role.encrypts() && !self.counters.is_parked()
    }

    /// What still waits for a tick is sent by all, also while the gateway ends.
    fn sends_dummies(&self) -> bool {
        let is_due = self.hides() || !self.is_follower;
        self.can_originate() && is_due || self.waits_for_tick() && !self.unprotected.is_waiting()
    }

    /// Whether packets of our own may be made for the unprotected side: as in a turn, none are made for a
    /// port that takes nothing.
    pub(crate) fn can_originate(&self) -> bool {
        !self.unprotected.is_waiting() && !self.draining
    }

    /// Sends the dummy packets that are due (RFC 4303 2.6), and packets that have waited for their tick,
    /// unless others wait for the port.
    pub fn send_dummies(&mut self, now: Moment) {
        if !self.sends_dummies() {
            return;
        }
        let hides = self.hides();
        self.ipsec.dummies(now, hides, &mut self.pool, &mut self.prepared);
        for packet in self.prepared.replies.drain(..) {
            self.protected.push(packet, &mut self.pool);
        }
        self.seal(now);
        self.flush(1);
        self.publish();
    }
}
