//! Packets that a worker sends by the clock, so that who watches sees less of the others.

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
    fn sends_dummies(&self) -> bool {
        let hides = self.role.encrypts() && !self.counters.is_parked();
        self.can_originate() && (hides || !self.is_follower)
    }

    /// Whether packets of our own may be made for the unprotected side: as in a turn, none are made for a
    /// port that takes nothing.
    pub(crate) fn can_originate(&self) -> bool {
        !self.unprotected.is_waiting() && !self.draining
    }

    /// Sends the dummy packets that are due (RFC 4303 2.6), unless other packets wait for the port.
    pub fn send_dummies(&mut self, now: Moment) {
        if !self.sends_dummies() {
            return;
        }
        self.ipsec.dummies(now, &mut self.pool, &mut self.prepared.jobs);
        self.seal(now);
        self.flush(1);
        self.publish();
    }
}
