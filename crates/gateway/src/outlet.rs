//! A port and what waits to be sent through it.

use std::collections::VecDeque;
use std::marker::PhantomData;
use testudo_ipsec::Forward;
use testudo_packet::{BATCH_SIZE, Batch, Buffer, DropReason, Pool, Port, PortError, ticks};

/// More packets than this do not wait for a port, or than half of the pool, if that is more; the rest is
/// dropped as [`DropReason::QueueFull`]. The worker stops reading from the other side while anything waits,
/// so that only replies, fragments and late completions add to the queue. Engines may have half of the pool,
/// all of which may come back while a port takes nothing: a device's packets are not lost for that.
const MAX_WAITING: usize = 4096;

/// A port and what waits to be sent through it.
///
/// It belongs to a side, and takes only packets that may leave by it.
pub(crate) struct Outlet<Side> {
    pub(crate) port: Box<dyn Port>,
    batch: Batch,
    waiting: VecDeque<Buffer>,
    wait: Wait,
    /// Whether packets may come that are marked to be sealed by a NIC, which this port does not do.
    refuses_marked: bool,
    /// Whether chains may come, which this port does not take.
    merges_chains: bool,
    /// Either.
    is_choosy: bool,
    /// A failure of the port that has not been reported. It is reported when the turn is over, because what
    /// was taken before must be finished and counted first.
    failure: Option<PortError>,
    side: PhantomData<Side>,
}

/// How long packets have waited for a port that took none, in ticks.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Wait {
    /// Sum of the waits that have ended.
    pub(crate) ended_ticks: u64,
    /// When the current wait began.
    pub(crate) since: Option<u64>,
}

impl<Side> Outlet<Side> {
    pub(crate) fn new(port: Box<dyn Port>) -> Self {
        Self {
            port,
            batch: Batch::new(),
            waiting: VecDeque::new(),
            wait: Wait::default(),
            refuses_marked: false,
            merges_chains: false,
            is_choosy: false,
            failure: None,
            side: PhantomData,
        }
    }

    /// From now on packets may come that are marked to be sealed: they leave only by a port that does so.
    pub(crate) fn expect_marked(&mut self) {
        self.refuses_marked = !self.port.seals_marked();
        self.is_choosy |= self.refuses_marked;
    }

    /// From now on packets in chains may come: they are merged for a port that takes none.
    pub(crate) fn expect_chains(&mut self) {
        self.merges_chains = !self.port.takes_chains();
        self.is_choosy |= self.merges_chains;
    }

    /// Whether anything waits.
    pub(crate) fn is_waiting(&self) -> bool {
        !self.batch.is_empty() || !self.waiting.is_empty()
    }

    /// How long packets have waited.
    pub(crate) fn wait(&self) -> Wait {
        self.wait
    }

    #[inline]
    pub(crate) fn push(&mut self, packet: impl Forward<Side>, pool: &mut Pool) {
        let buffer = packet.into_buffer();
        if self.waiting.is_empty() && !self.batch.is_full() {
            self.batch.push(buffer);
        } else {
            self.enqueue(buffer, pool);
        }
    }

    #[cold]
    fn enqueue(&mut self, buffer: Buffer, pool: &mut Pool) {
        if self.waiting.len() < MAX_WAITING.max(pool.size() / 2) {
            self.waiting.push_back(buffer);
        } else {
            pool.discard(buffer, DropReason::QueueFull);
        }
    }

    /// Takes packets from the port into an empty batch; returns how many. A port that fails gives what it had
    /// before, and nothing more until its [failure](Self::take_failure) was taken.
    pub(crate) fn receive(&mut self, pool: &mut Pool, batch: &mut Batch) -> usize {
        if self.failure.is_none() {
            self.failure = self.port.rx(pool, batch).err();
        }
        batch.len()
    }

    /// Sends a part of the batch; returns how many packets left, none where the port fails.
    fn send(&mut self, pool: &mut Pool) -> usize {
        if self.failure.is_some() {
            return 0;
        }
        if self.is_choosy {
            self.choose(pool);
        }
        self.port.tx(pool, &mut self.batch).unwrap_or_else(|error| {
            self.failure = Some(error);
            0
        })
    }

    #[cold]
    #[inline(never)]
    fn choose(&mut self, pool: &mut Pool) {
        if self.refuses_marked {
            self.drop_marked(pool);
        }
        if self.merges_chains {
            self.merge_chains(pool);
        }
    }

    /// Merges chains, and drops those that no buffer is long enough for.
    fn merge_chains(&mut self, pool: &mut Pool) {
        let mut at = 0;
        while let Some(packet) = self.batch.get_mut(at) {
            match pool.linearise(std::mem::take(packet)) {
                Ok(whole) => {
                    *packet = whole;
                    at += 1;
                }
                Err(chain) => {
                    self.batch.remove(at);
                    pool.discard(chain, DropReason::PoolEmpty);
                }
            }
        }
    }

    /// Drops what would leave in clear.
    fn drop_marked(&mut self, pool: &mut Pool) {
        let mut at = 0;
        while let Some(packet) = self.batch.get(at) {
            match packet.mark().is_to_be_sealed() {
                true => pool.discard(self.batch.remove(at), DropReason::NotSealed),
                false => at += 1,
            }
        }
    }

    /// Takes the port's failure, if it has failed since the last call.
    pub(crate) fn take_failure(&mut self) -> Option<PortError> {
        self.failure.take()
    }

    /// Sends until all is sent or the port takes no more; returns how many left.
    pub(crate) fn flush(&mut self, pool: &mut Pool) -> usize {
        let mut sent = 0;
        loop {
            self.refill();
            if self.batch.is_empty() {
                if let Some(since) = self.wait.since.take() {
                    self.wait.ended_ticks += ticks().wrapping_sub(since);
                }
                return sent;
            }
            match self.send(pool) {
                0 => {
                    self.wait.since.get_or_insert_with(ticks);
                    return sent;
                }
                n => sent += n,
            }
        }
    }

    /// Sends what the port gains nothing from waiting with: everything, or, if it joins packets, only full
    /// batches, since what follows may join the rest.
    pub(crate) fn flush_ready(&mut self, pool: &mut Pool) {
        if !self.port.joins() {
            self.flush(pool);
            return;
        }
        while self.batch.is_full() && self.send(pool) > 0 {
            self.refill();
        }
    }

    /// Fills the batch with what has waited longest.
    #[inline(always)]
    fn refill(&mut self) {
        // The common case: nothing waits. An empty drain would cost as many instructions as sending a packet.
        if !self.waiting.is_empty() {
            self.take_waiting();
        }
    }

    #[cold]
    fn take_waiting(&mut self) {
        let room = BATCH_SIZE - self.batch.len();
        self.batch.extend(self.waiting.drain(..room.min(self.waiting.len())));
    }

    /// Ends the port.
    pub(crate) fn end_port(&mut self, pool: &mut Pool) {
        self.port.end(pool);
    }

    /// Discards what waits.
    pub(crate) fn discard_all(&mut self, pool: &mut Pool) {
        for buffer in self.batch.drain(..).chain(self.waiting.drain(..)) {
            pool.discard(buffer, DropReason::ShuttingDown);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};
    use testudo_ipsec::Protected;
    use testudo_packet::{Mark, PortCounters};

    /// A port that accepts packets only while it is told to.
    struct Door(Arc<AtomicBool>);

    impl Port for Door {
        fn name(&self) -> &str {
            "door"
        }

        fn rx(&mut self, _: &mut Pool, _: &mut Batch) -> Result<usize, PortError> {
            Ok(0)
        }

        fn tx(&mut self, pool: &mut Pool, batch: &mut Batch) -> Result<usize, PortError> {
            if !self.0.load(Ordering::Relaxed) {
                return Ok(0);
            }
            let taken = batch.len();
            batch.drain(..).for_each(|buffer| pool.recycle(buffer));
            Ok(taken)
        }

        fn joins(&self) -> bool {
            false
        }

        fn counters(&self) -> PortCounters {
            PortCounters::default()
        }
    }

    #[test]
    fn a_packet_that_a_nic_should_seal_leaves_by_no_other_port() {
        let mut outlet: Outlet<Protected> = Outlet::new(Box::new(Door(Arc::new(AtomicBool::new(true)))));
        let mut pool = Pool::new(4, 100);
        outlet.expect_marked();
        for mark in [Mark::seal_under(0), Mark::NONE, Mark::seal_under(9), Mark::opened_under(1)] {
            let mut packet = pool.pop().unwrap();
            packet.set_mark(mark);
            outlet.batch.push(packet);
        }
        assert_eq!(outlet.flush(&mut pool), 2);
        assert_eq!((pool.drops().get(DropReason::NotSealed), pool.in_use()), (2, 0));
        assert_eq!(pool.take_lost_marks(), Some(vec![Mark::seal_under(0), Mark::seal_under(9)]));
    }

    /// All that engines may have comes back while the port takes nothing.
    #[test]
    fn half_of_a_large_pool_may_wait_for_a_port() {
        for (size, most) in [(3 * MAX_WAITING, MAX_WAITING * 3 / 2), (MAX_WAITING + 200, MAX_WAITING)] {
            let is_open: Arc<AtomicBool> = Arc::default();
            let mut outlet: Outlet<Protected> = Outlet::new(Box::new(Door(Arc::clone(&is_open))));
            let mut pool = Pool::new(size, 64);
            for _ in 0..most + 10 {
                let packet = pool.pop().unwrap();
                outlet.enqueue(packet, &mut pool);
            }
            assert_eq!((pool.drops().get(DropReason::QueueFull), pool.in_use()), (10, most));
            is_open.store(true, Ordering::Relaxed);
            while outlet.is_waiting() {
                assert!(outlet.flush(&mut pool) > 0);
            }
            assert_eq!(pool.in_use(), 0);
        }
    }

    #[test]
    fn a_wait_lasts_from_the_first_refusal_until_all_is_sent() {
        let is_open: Arc<AtomicBool> = Arc::default();
        let mut outlet = Outlet::new(Box::new(Door(Arc::clone(&is_open))));
        let mut pool = Pool::new(4, 100);
        let wait =
            |outlet: &Outlet<Protected>| (outlet.wait().ended_ticks > 0, outlet.wait().since.is_some());
        outlet.batch.push(pool.pop().unwrap());
        assert_eq!(wait(&outlet), (false, false), "what was not offered was not refused");
        outlet.flush(&mut pool);
        assert_eq!(wait(&outlet), (false, true));
        let since = outlet.wait().since;
        outlet.flush(&mut pool);
        assert_eq!(outlet.wait().since, since, "the same wait goes on");
        is_open.store(true, Ordering::Relaxed);
        assert_eq!(outlet.flush(&mut pool), 1);
        assert_eq!(wait(&outlet), (true, false));
    }
}
