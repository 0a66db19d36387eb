//! Packets that a worker sends by the clock: dummies, so that who watches sees less of the others, and those
//! of tunnels that send at one rate.

use crate::worker::Worker;
use testudo_ipsec::Moment;

/// How often at most a worker looks at the clocks that are due, of each of which it passes a tick over; each
/// look is at up to 256.
const MOST_PASSES: usize = 64;

impl Worker {
    /// When [`send_dummies`](Self::send_dummies) has something to do next; `None` for never, or not before
    /// the port has taken what waits for it.
    #[must_use]
    pub fn next_dummy(&self) -> Option<Moment> {
        if self.sends_dummies() { self.ipsec.next_dummy() } else { None }
    }

    /// A worker that is parked, ends, or encrypts nothing, has nothing to hide.
    fn hides(&self) -> bool {
        self.role.encrypts() && !self.counters.is_parked() && !self.draining
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

    /// Moves the ticks of a worker that sends none on, so that they are not made up for when it does again.
    pub(crate) fn pass_ticks_over(&mut self, now: Moment) {
        if self.hides() || self.sends_dummies() || self.waits_for_tick() {
            return;
        }
        for _ in 0..MOST_PASSES {
            if self.ipsec.next_dummy().is_none_or(|due| due > now) {
                return;
            }
            self.ipsec.dummies(now, false, false, &mut self.pool, &mut self.prepared);
        }
    }

    /// Sends the dummy packets that are due (RFC 4303 2.6), and packets that have waited for their tick,
    /// unless others wait for the port.
    pub fn send_dummies(&mut self, now: Moment) {
        if !self.sends_dummies() {
            return;
        }
        let (hides, beside) = (self.hides(), !self.draining);
        self.ipsec.dummies(now, hides, beside, &mut self.pool, &mut self.prepared);
        for packet in self.prepared.replies.drain(..) {
            self.protected.push(packet, &mut self.pool);
        }
        self.seal(now);
        self.flush(1);
        self.publish();
    }
}
