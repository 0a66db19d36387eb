//! Room that another thread makes, as a descriptor to wait on.

use rustix::event::{EventfdFlags, eventfd};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use testudo_packet::Awaited;

/// The counter of an eventfd(2) to which not even 1 can be added: it is not writable.
const FULL: u64 = u64::MAX - 1;

/// Tells who found no room when there may be some again: its descriptor is writable but in between. Why
/// nobody waits in vain, [`Awaited`] says, and loom tries it in all interleavings.
pub(crate) struct Room {
    counter: OwnedFd,
    awaited: Awaited,
}

impl Room {
    /// There is room.
    ///
    /// # Errors
    /// The system has no descriptor left.
    pub(crate) fn new() -> io::Result<Self> {
        let counter = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { counter, awaited: Awaited::new() })
    }

    /// The caller found no room, and has to look once more after this: if there is some by now, it calls
    /// [`make`](Self::make) itself. Else it may wait until the descriptor is writable.
    pub(crate) fn expect(&self) {
        // The counter is full before anybody is told, so that it is not emptied too early. One that
        // is full takes no more. It may be empty although room is awaited: who made some before is late.
        let _ = rustix::io::write(&self.counter, &FULL.to_ne_bytes());
        self.awaited.begin();
    }

    /// There may be room again, as others can see.
    pub(crate) fn make(&self) {
        if self.awaited.end() {
            let _ = rustix::io::read(&self.counter, &mut [0; 8]);
        }
    }
}

impl AsFd for Room {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.counter.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    fn is_writable(room: &Room) -> bool {
        let mut files = [PollFd::new(room, PollFlags::OUT)];
        poll(&mut files, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap() == 1
    }

    /// Who makes room is held up between its two steps, and there is none again meanwhile.
    #[test]
    fn room_that_is_emptied_late_is_writable_no_longer_than_until_it_is_expected_again() {
        let room = Room::new().unwrap();
        room.expect();
        assert!(room.awaited.end());
        room.expect();
        assert_eq!(rustix::io::read(&room.counter, &mut [0; 8]), Ok(8));
        assert!(is_writable(&room));
        room.expect();
        assert!(!is_writable(&room));
        room.make();
        assert!(is_writable(&room));
    }

    #[test]
    fn room_is_writable_but_while_it_is_awaited() {
        let room = Room::new().unwrap();
        assert!(is_writable(&room));
        for _ in 0..3 {
            room.expect();
            room.expect();
            assert!(!is_writable(&room));
            room.make();
            assert!(is_writable(&room));
            room.make();
        }
    }
}
