//! SPIs that are reserved until their SAs come: for how long, and how many each process may have.

use std::collections::{BTreeSet, HashMap};
use testudo_wire::netlink::ack::Refusal;
use testudo_wire::netlink::errno::Errno;

/// Reserved SPIs at most.
const MAX: usize = 1 << 16;
/// Those of one process: a daemon that reserves without end takes none from others.
pub(super) const MAX_OF_ONE: usize = 1 << 14;

/// How long an SPI is reserved, in seconds.
///
/// Linux has 30 (`net.core.xfrm_acq_expires`), which is less than charon goes on asking a peer that does not
/// answer: it writes 165 into `/proc/sys` when it starts, which here would change the kernel and not the
/// gateway. So this is what it would have set; for pluto, which sets nothing, an SPI stays reserved longer
/// than it needs.
pub(super) const RESERVED_S: u64 = 165;

/// A reservation.
#[derive(Debug, Clone, Copy)]
struct Reservation {
    /// When it ends, in seconds of a clock that nobody sets.
    end_s: u64,
    /// The process that made it.
    process: u32,
}

/// The reservations, by the places of their SAs.
#[derive(Debug, Default)]
pub(super) struct Reservations {
    by_place: HashMap<u64, Reservation>,
    /// Soonest end first.
    by_end: BTreeSet<(u64, u64)>,
    of_process: HashMap<u32, usize>,
}

impl Reservations {
    /// Whether a process may reserve one more.
    ///
    /// # Errors
    /// `ENOMEM` if it has its share, or if no more are possible.
    pub(super) fn check_room(&self, process: u32) -> Result<(), Refusal> {
        let own = self.of_process.get(&process).copied().unwrap_or(0);
        let text = match (own >= MAX_OF_ONE, self.by_place.len() >= MAX) {
            (true, _) => format!("{MAX_OF_ONE} SPIs are reserved for this process, whose SAs have not come"),
            (_, true) => format!("{MAX} SPIs are reserved whose SAs have not come"),
            _ => return Ok(()),
        };
        Err(Refusal::new(Errno::NOMEM, text))
    }

    pub(super) fn insert(&mut self, place: u64, process: u32, now_s: u64) {
        let end_s = now_s.saturating_add(RESERVED_S);
        self.by_place.insert(place, Reservation { end_s, process });
        self.by_end.insert((end_s, place));
        *self.of_process.entry(process).or_default() += 1;
    }

    /// Ends the one at this place, if there is one.
    pub(super) fn remove(&mut self, place: u64) {
        let Some(Reservation { end_s, process }) = self.by_place.remove(&place) else { return };
        self.by_end.remove(&(end_s, place));
        let left = self.of_process.get_mut(&process).map(|count| {
            *count -= 1;
            *count
        });
        if left == Some(0) {
            self.of_process.remove(&process);
        }
    }

    /// The place of one whose time is over.
    pub(super) fn over(&self, now_s: u64) -> Option<u64> {
        self.by_end.first().filter(|(end_s, _)| *end_s <= now_s).map(|(_, place)| *place)
    }
}
