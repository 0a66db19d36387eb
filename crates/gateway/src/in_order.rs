//! A worker that releases what it has opened in the order of each SA, beside others that open packets of the
//! same SA.
//!
//! The SA's ring says whose turn it is ([`testudo_ipsec::ReleaseRing`]). The packets of this worker wait in
//! its own buffers until then, and it moves the order on when its port has them. Workers tell each other
//! nothing: one whose packets wait looks again in each turn, and sleeps for a tenth of a millisecond at most.

use crate::worker::Worker;
use testudo_ipsec::Moment;
use testudo_packet::DropReason;

impl Worker {
    /// From the next SA on, packets that workers open together are released in order. All workers of a
    /// gateway are told so, before they get SAs.
    pub fn release_in_order(&mut self) {
        self.ipsec.set_in_order();
    }

    /// Sends what waits for its turn, as far as that has come. Returns how many packets.
    #[cold]
    #[inline(never)]
    pub(crate) fn send_in_order(&mut self, now: Moment) -> usize {
        // A lost packet must not cost the pool.
        let most = self.pool.size() / 4;
        let mut moved = 0;
        while !self.protected.is_waiting() {
            self.ipsec.handed_in_order();
            let (outlet, pool) = (&mut self.protected, &mut self.pool);
            let released = self.ipsec.release_in_order(now, most, |cleared| outlet.push(cleared, pool));
            if released == 0 {
                self.ipsec.handed_in_order();
                break;
            }
            moved += released;
            self.protected.flush(&mut self.pool);
        }
        moved
    }

    /// Whether packets wait for their turn.
    #[must_use]
    pub fn waits_for_order(&self) -> bool {
        self.ipsec.held_in_order() > 0
    }

    /// Drops what waits for its turn.
    pub(crate) fn discard_in_order(&mut self) {
        self.ipsec.discard_in_order(DropReason::ShuttingDown, &mut self.pool);
    }
}
