//! Sequence numbers for workers without a control plane.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use testudo_ipsec::{Demand, Lease, Moment};

/// Leases sequence numbers as a gateway's control plane does, in blocks that follow the rate, from a store in
/// memory that answers between two turns.
#[derive(Debug, Default)]
pub(crate) struct Supply {
    sas: Vec<(Arc<Lease>, Demand)>,
    is_asked: Arc<AtomicBool>,
}

impl Supply {
    /// The first lease of another SA.
    pub(crate) fn lease(&mut self) -> Arc<Lease> {
        let (is_asked, demand) = (Arc::clone(&self.is_asked), Demand::default());
        let ask = Arc::new(move || is_asked.store(true, Ordering::Relaxed));
        let lease = Arc::new(Lease::with_waker(1 + demand.block(), ask));
        self.sas.push((Arc::clone(&lease), demand));
        lease
    }

    /// Grants another block to each SA that has requested one.
    #[inline]
    pub(crate) fn serve(&mut self, now: Moment) {
        if self.is_asked.load(Ordering::Relaxed) {
            self.is_asked.store(false, Ordering::Relaxed);
            for (lease, demand) in self.sas.iter_mut().filter(|(lease, _)| lease.take_request()) {
                lease.grant(lease.end() + demand.next_block(now));
            }
        }
    }
}
