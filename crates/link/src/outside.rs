//! For ports where a kernel keeps ARP and neighbour discovery: what it knows comes in by messages.
//!
//! ```text
//!   reader ── Change ──► OutsideResolver ──► tables of the port
//!      ▲                       │
//!      └─── address wanted ────┘      (the kernel asks for it, and the reader reports in any case)
//! ```
//!
//! [`kernel`](crate::kernel) is such a reader.

use crate::neighbours::Heard;
use crate::resolver::{Disposition, Link, Resolver, Tables};
use crate::routes::{Route, Routes};
use rustix::event::{EventfdFlags, eventfd};
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::Receiver;
use std::time::Duration;
use testudo_packet::{Buffer, DropReason};
use testudo_wire::ethernet::{EthernetHeader, MacAddress};

/// Changes that are taken note of at a time, so that packets have their turn.
const AT_A_TIME: usize = 64;

/// Something changed outside.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// A neighbour is there.
    Neighbour {
        /// Its address.
        address: IpAddr,
        /// Its link-layer address.
        mac: MacAddress,
        /// Whether it has answered of late. The reader says so of a [wanted](OutsideResolver::new) one, as
        /// soon as the kernel knows.
        is_reachable: bool,
    },
    /// A neighbour is gone, or did not answer.
    NoNeighbour(IpAddr),
    /// These are all routes now. Who tells this keeps the table until the port has another one, or the worker
    /// would free it: a host may have a million routes.
    Routes(Arc<Routes>),
}

impl Change {
    /// These are all routes now. The table is made here, not by the port.
    #[must_use]
    pub fn routes(routes: &[Route]) -> Self {
        Self::Routes(Arc::new(Routes::new(routes)))
    }
}

/// Has the kernel find a neighbour, without waiting.
pub type Ask = Box<dyn FnMut(IpAddr) + Send>;

/// A resolver that is told, and asks nobody but who tells it.
pub struct OutsideResolver {
    changes: Receiver<Change>,
    ask: Ask,
    bell: Option<Arc<Bell>>,
}

impl OutsideResolver {
    /// A resolver that takes note of `changes`, and calls `ask` with addresses that packets are for. An
    /// address comes again after a second while nothing is said about it, and after 30 seconds in use, so
    /// that one may be lost; after three in vain the neighbour counts as gone.
    #[must_use]
    pub fn new(changes: Receiver<Change>, ask: Ask) -> Self {
        Self { changes, ask, bell: None }
    }

    /// The same, whose port becomes ready to receive when `bell` is rung: for a worker that waits.
    #[must_use]
    pub fn with_bell(self, bell: Arc<Bell>) -> Self {
        Self { bell: Some(bell), ..self }
    }
}

/// Wakes who waits for a port, when the reader has something to say.
#[derive(Debug)]
pub struct Bell {
    event: OwnedFd,
    /// Changes that were announced and not taken.
    pending: AtomicUsize,
}

impl Bell {
    /// One that was not rung.
    ///
    /// # Errors
    /// The system has no descriptor left.
    pub fn new() -> io::Result<Self> {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { event, pending: AtomicUsize::new(0) })
    }

    /// A change follows.
    pub fn announce(&self) {
        self.pending.fetch_add(1, Ordering::AcqRel);
    }

    /// The announced change can be taken.
    pub fn ring(&self) {
        // It fails only if it was rung 2^64 times.
        let _ = rustix::io::write(&self.event, &1_u64.to_ne_bytes());
    }

    /// So many changes were taken. As long as some are left, it stays rung.
    fn took(&self, count: usize) {
        if count == 0 || self.pending.fetch_sub(count, Ordering::AcqRel) != count {
            return;
        }
        let _ = rustix::io::read(&self.event, &mut [0; 8]);
        // One that was announced since may have rung before that.
        if self.pending.load(Ordering::Acquire) > 0 {
            self.ring();
        }
    }
}

impl Resolver for OutsideResolver {
    fn readiness(&self) -> Option<BorrowedFd<'_>> {
        self.bell.as_ref().map(|bell| bell.event.as_fd())
    }

    fn poll(&mut self, tables: &mut Tables, now: Duration) {
        let mut taken = 0;
        for change in self.changes.try_iter().take(AT_A_TIME) {
            taken += 1;
            match change {
                Change::Neighbour { address, mac, is_reachable } => {
                    let heard =
                        Heard { mac: Some(mac), is_answer: is_reachable, overrides: true, creates: true };
                    tables.neighbours.hear(address, heard, now);
                }
                Change::NoNeighbour(address) => tables.neighbours.forget(address),
                Change::Routes(routes) => tables.set_routes(routes),
            }
        }
        if let Some(bell) = &self.bell {
            bell.took(taken);
        }
    }

    fn solicit(&mut self, address: IpAddr, _mac: Option<MacAddress>, _link: &mut Link<'_>) {
        (self.ask)(address);
    }

    fn arp(&mut self, _header: &EthernetHeader, _payload: &[u8], _link: &mut Link<'_>) -> DropReason {
        DropReason::OtherEtherType
    }

    fn packet(&mut self, header: &EthernetHeader, _packet: &mut Buffer, _link: &mut Link<'_>) -> Disposition {
        // To a group: what concerns the host went to its kernel.
        if header.destination.is_multicast() {
            Disposition::Drop(DropReason::OtherMac)
        } else {
            Disposition::Deliver
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::neighbours::Neighbours;
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    use std::sync::mpsc::channel;

    fn is_rung(resolver: &OutsideResolver) -> bool {
        let bell = resolver.readiness().expect("it has one");
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut [PollFd::from_borrowed_fd(bell, PollFlags::IN)], Some(&now)).unwrap() > 0
    }

    /// With the routes of the whole Internet each of these would take a tenth of a second.
    #[test]
    fn the_worker_neither_makes_nor_frees_a_table_of_routes() {
        let (sender, changes) = channel();
        let mut resolver = OutsideResolver::new(changes, Box::new(|_| ()));
        let mut tables = Tables { neighbours: Neighbours::new(8), routes: Arc::default(), route_changes: 0 };
        let (first, second) = (Arc::new(Routes::default()), Arc::new(Routes::default()));
        for table in [&first, &second] {
            sender.send(Change::Routes(Arc::clone(table))).unwrap();
            resolver.poll(&mut tables, Duration::ZERO);
            assert!(std::ptr::eq(tables.routes(), &raw const **table), "as it was made");
        }
        assert_eq!((Arc::strong_count(&first), Arc::strong_count(&second)), (1, 2));
    }

    #[test]
    fn a_bell_stays_rung_until_all_changes_are_taken() {
        let (sender, changes) = channel();
        let bell = Arc::new(Bell::new().unwrap());
        let mut resolver = OutsideResolver::new(changes, Box::new(|_| ())).with_bell(Arc::clone(&bell));
        let mut tables = Tables { neighbours: Neighbours::new(8), routes: Arc::default(), route_changes: 0 };
        assert!(!is_rung(&resolver));
        for _ in 0..=AT_A_TIME {
            bell.announce();
            sender.send(Change::routes(&[])).unwrap();
            bell.ring();
        }
        assert!(is_rung(&resolver));
        resolver.poll(&mut tables, Duration::ZERO);
        assert!(is_rung(&resolver), "one is left");
        resolver.poll(&mut tables, Duration::ZERO);
        assert!(!is_rung(&resolver));
        assert_eq!(tables.route_changes, 65);
        // One is announced that cannot be taken yet: its sender rings.
        bell.announce();
        resolver.poll(&mut tables, Duration::ZERO);
        assert!(!is_rung(&resolver));
        sender.send(Change::routes(&[])).unwrap();
        bell.ring();
        assert!(is_rung(&resolver));
    }
}
