//! Packets that wait in a worker: for numbers, for an SA, for a tick, for the rest of their datagram.
//!
//! Of sequence numbers that several workers share, those in flight stay within the peer's window
//! ([`testudo_ipsec::SharedNumbers`]). So a worker tells when its packets are with the port, and packets for
//! which there is no number now wait for other workers to tell. Meanwhile it takes no more from the protected
//! side.

use crate::worker::Worker;
use testudo_ipsec::Moment;
use testudo_packet::DropReason;

impl Worker {
    /// Sends packets that wait for sequence numbers, as long as there are any. Returns `false` if some still
    /// wait, or nothing more is to be taken in this turn.
    #[cold]
    #[inline(never)]
    pub(crate) fn send_waiting(&mut self, now: Moment, moved: &mut usize) -> bool {
        while self.ipsec.waits_for_numbers() {
            self.seal(now);
            self.unprotected.flush(&mut self.pool);
            self.hand_over();
            if self.unprotected.is_waiting() {
                return false;
            }
            let sent = self.ipsec.send_waiting(now, &mut self.pool, &mut self.prepared);
            for packet in self.prepared.replies.drain(..) {
                self.protected.push(packet, &mut self.pool);
            }
            if sent == 0 {
                return false;
            }
            *moved += sent;
        }
        !self.takes_no_outbound()
    }

    /// Tells the other workers of the SAs whose packets with numbers are all with the port. Engines that are
    /// asynchronous may always have something of others.
    pub(crate) fn hand_over(&mut self) {
        if self.unprotected.is_waiting() || !self.prepared.jobs.is_empty() {
            return;
        }
        if self.dispatcher.is_busy() {
            let Self { dispatcher, ipsec, .. } = self;
            return ipsec.handed_over_where(|sa| dispatcher.is_over(sa));
        }
        self.ipsec.handed_over_all();
    }

    /// Whether packets wait for sequence numbers that other workers have in flight.
    #[must_use]
    pub fn waits_for_numbers(&self) -> bool {
        self.ipsec.waits_for_numbers()
    }

    /// Drops what still waits, when the gateway must end now. Packets that are with engines are counted,
    /// though their buffers do not come back; those that were given up were counted then.
    pub fn discard_waiting(&mut self) {
        self.pool.count(DropReason::ShuttingDown, self.dispatcher.under_way() as u64);
        for job in self.prepared.jobs.drain(..) {
            self.pool.discard(job.buffer, DropReason::ShuttingDown);
        }
        self.ipsec.discard_waits([DropReason::ShuttingDown; 3], &mut self.pool);
        self.discard_in_order();
        self.protected.discard_all(&mut self.pool);
        self.unprotected.discard_all(&mut self.pool);
        // The SAs stay until all workers have ended; those that still send wait for nothing here.
        self.ipsec.handed_over_all();
        self.publish();
    }

    /// Drops datagrams that are not complete, and packets that wait for an SA or a tick, as if their time
    /// were over: nothing will come any more. For ports that end while the clock stands still.
    pub fn end_waits(&mut self) {
        let reasons = [DropReason::FragmentTimeout, DropReason::HoldExpired, DropReason::ClockExpired];
        self.ipsec.discard_waits(reasons, &mut self.pool);
        self.publish();
    }

    /// Datagrams whose other fragments have not come yet; each has a buffer of the pool.
    #[must_use]
    pub fn incomplete_datagrams(&self) -> usize {
        self.ipsec.incomplete_datagrams()
    }

    /// Whether packets wait for the clock of their tunnel
    /// ([`clocked_packets_per_second`](testudo_ipsec::PacketRules::clocked_packets_per_second)).
    #[must_use]
    pub fn waits_for_tick(&self) -> bool {
        self.ipsec.waits_for_tick()
    }

    /// Packets that wait for an SA or for a tick; each has a buffer of the pool.
    #[must_use]
    pub fn held_packets(&self) -> usize {
        self.ipsec.held_packets()
    }
}
