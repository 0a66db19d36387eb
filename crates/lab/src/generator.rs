//! Packets at an offered rate, with a sequence number and the time of sending in each.
//!
//! ```text
//!   Traffic ─► Templates ─┐                                              ┌─► Arrivals: loss, latency
//!   Pace ─► Generator ─► stamps ─► FeedPort ─► gateways ─► ReturnPort ───┘        in memory
//!                          └────► UDP sockets ─► network ─► UDP socket ──┘        through namespaces
//! ```
//!
//! Nothing here reads a clock but the two ends that send and receive: [`Generator::poll`] is told the time,
//! so that tests run it in virtual time. In memory the generator hands over a stamp a packet, and
//! [`FeedPort`] makes the packet of it as a NIC would, in the worker's thread: sending costs the generator
//! two stores, so that it outruns what it measures. Where it did not,
//! [`crate::harness::Trial::was_generator_late`] says so.

mod arrivals;
mod memory;
mod pace;
mod payload;
mod ring;
mod sizes;
mod stamp;
mod traffic;
mod udp;

pub use arrivals::{Arrivals, Latency};
pub use memory::{
    FEED_PACKETS, Feed, FeedPort, MemoryPorts, ReturnPort, Timer, generator_rate, memory_ports,
};
pub use pace::Pace;
pub use sizes::{FRAME_EXTRA_BYTES, LONGEST_FRAME_BYTES, SHORTEST_FRAME_BYTES, Sizes};
pub use stamp::{STAMP_AT, STAMP_BYTES, Stamp};
pub use traffic::{Templates, Traffic};
pub(crate) use udp::MOST_FLOWS;
pub use udp::{Sources, UdpPath};

/// Numbers, stamps and paces the packets of one trial.
#[derive(Debug, Clone)]
pub struct Generator {
    pace: Pace,
    trial: u16,
    next: u64,
    limit: u64,
    end_ns: u64,
    is_over: bool,
    times: Option<(u64, u64)>,
}

impl Generator {
    /// Packets of the trial number `trial`, at most `limit`.
    #[must_use]
    pub fn new(pace: Pace, trial: u16, limit: u64) -> Self {
        Self { pace, trial, next: 0, limit, end_ns: u64::MAX, is_over: false, times: None }
    }

    /// The same, and none from `end_ns` on, however many are left: a generator that is late does not send for
    /// longer.
    #[must_use]
    pub fn until(self, end_ns: u64) -> Self {
        Self { end_ns, ..self }
    }

    /// Sends what is due at `now_ns`, in a burst, and returns how many packets that was. `send` gets the
    /// stamps in order; what becomes of the packet is its affair: it was offered.
    pub fn poll(&mut self, now_ns: u64, mut send: impl FnMut(Stamp)) -> u64 {
        self.is_over |= now_ns >= self.end_ns;
        let count = if self.is_over { 0 } else { self.pace.take(now_ns).min(self.limit - self.next) };
        for _ in 0..count {
            send(Stamp { trial: self.trial, sequence: self.next, sent_ns: now_ns });
            self.next += 1;
        }
        if count > 0 {
            let first = self.times.map_or(now_ns, |(first, _)| first);
            self.times = Some((first, now_ns));
        }
        count
    }

    /// When the next packet is due, in nanoseconds.
    #[must_use]
    pub fn next_due_ns(&self) -> u64 {
        self.pace.next_due_ns()
    }

    /// Packets sent so far.
    #[must_use]
    pub fn offered(&self) -> u64 {
        self.next
    }

    /// Whether all packets have been sent, or the time for them is over.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.is_over || self.next == self.limit
    }

    /// Nanoseconds between the first and the last packet.
    #[must_use]
    pub fn sending_ns(&self) -> u64 {
        self.times.map_or(0, |(first, last)| last - first)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_leave_numbered_at_their_rate_and_end_at_the_limit() {
        let mut generator = Generator::new(Pace::new(1e6, 5_000), 7, 10_000);
        let (mut now, mut stamps) = (5_000, Vec::new());
        while !generator.is_done() {
            generator.poll(now, |stamp| stamps.push(stamp));
            now = generator.next_due_ns();
        }
        assert!(stamps.iter().map(|stamp| stamp.sequence).eq(0..10_000));
        assert!(stamps.iter().all(|stamp| stamp.trial == 7));
        // A packet a microsecond, from the first on.
        assert!(stamps.iter().all(|stamp| stamp.sent_ns == 5_000 + 1_000 * stamp.sequence));
        assert_eq!((generator.offered(), generator.sending_ns()), (10_000, 9_999_000));
        assert_eq!(generator.poll(now + 1_000_000, |_| panic!("a packet beyond the limit")), 0);
    }

    #[test]
    fn a_late_generator_ends_when_its_time_does() {
        let mut generator = Generator::new(Pace::new(1e6, 0), 7, 10_000).until(10_000_000);
        let mut now = 0;
        while !generator.is_done() {
            generator.poll(now, |_| {});
            now += 1_000_000;
        }
        // A look every millisecond catches up 32 packets.
        assert_eq!((now, generator.offered()), (11_000_000, 1 + 9 * 32));
    }
}
