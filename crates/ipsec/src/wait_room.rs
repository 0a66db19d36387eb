//! How many packets may wait, for an SA ([`crate::held`]) or for a tick ([`crate::clocked`]).
//!
//! Each of both has an eighth of the pool's buffers, and no more than an eighth of the long ones, of which
//! there are fewer: what is merged before it waits, and jumbo packets have these. Those that merging,
//! reassembly and other tunnels need are left. The last quarter of either is for tunnels of which few
//! packets wait, whatever buffers these have.

use testudo_packet::Pool;

/// A tunnel of which fewer wait may use all of the room.
const FEW: usize = 4;

/// Packets that wait, of all tunnels.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Waiters {
    pub(crate) packets: usize,
    /// Those of them that have long buffers.
    pub(crate) long: usize,
}

/// What another packet lacks to wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lack {
    Place,
    /// A place among those with long buffers.
    LongBuffer,
}

impl Waiters {
    /// These packets, of which each has a long buffer or not.
    pub(crate) fn of(are_long: impl IntoIterator<Item = bool>) -> Self {
        let mut all = Self::default();
        are_long.into_iter().for_each(|is_long| all.add(is_long));
        all
    }

    pub(crate) fn add(&mut self, is_long: bool) {
        self.packets += 1;
        self.long += usize::from(is_long);
    }

    pub(crate) fn leave(&mut self, others: Self) {
        self.packets -= others.packets;
        self.long -= others.long;
    }

    /// What another packet lacks, of a tunnel of which `own` wait; `None` if there is room for it.
    pub(crate) fn lack(self, own: usize, is_long: bool, pool: &Pool) -> Option<Lack> {
        let room = |size: usize| if own < FEW { size / 8 } else { size / 8 - size / 32 };
        if is_long && self.long >= room(pool.long_size()) {
            return Some(Lack::LongBuffer);
        }
        (self.packets >= room(pool.size())).then_some(Lack::Place)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// With the least pool that a gateway may have.
    #[test]
    fn an_eighth_of_all_buffers_may_wait_and_of_the_long_ones_too() {
        let pool = Pool::new(256, 100).with_long(64, 1000);
        let lack = |packets, long, own, is_long| Waiters { packets, long }.lack(own, is_long, &pool);
        assert_eq!([lack(31, 7, 0, false), lack(31, 7, 0, true)], [None; 2]);
        assert_eq!(lack(32, 0, 0, false), Some(Lack::Place));
        assert_eq!([lack(8, 8, 0, false), lack(8, 8, 0, true)], [None, Some(Lack::LongBuffer)]);
        assert_eq!([lack(23, 5, FEW, true), lack(24, 5, FEW, true)], [None, Some(Lack::Place)]);
        assert_eq!([lack(8, 6, FEW, true), lack(8, 6, FEW - 1, true)], [Some(Lack::LongBuffer), None]);
        let plain = Pool::new(256, 1000);
        assert_eq!(Waiters { packets: 31, long: 0 }.lack(0, false, &plain), None);
    }

    #[test]
    fn those_that_leave_are_counted_as_those_that_came() {
        let mut all = Waiters::of([true, false, true]);
        assert_eq!(all, Waiters { packets: 3, long: 2 });
        all.leave(Waiters::of([true, false]));
        assert_eq!(all, Waiters { packets: 1, long: 1 });
    }
}
