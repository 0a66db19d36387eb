//! Something to wait on where a device has nothing: it polls, and a worker without work looks every now and
//! then instead of all the time.

use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// How often a worker without work looks: packets wait that long at most, and it costs a few percent of a
/// core.
const INTERVAL_NS: i64 = 50_000;

/// A descriptor that is readable when it is time to look.
#[derive(Debug)]
pub(crate) struct Ticker {
    timer: OwnedFd,
    /// Always readable: once the first time has passed, it is not read.
    is_always: bool,
}

impl Ticker {
    /// One that ticks, or one for a worker that never rests.
    pub(crate) fn new(is_always: bool) -> io::Result<Self> {
        let timer =
            timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC)?;
        let interval = Timespec { tv_sec: 0, tv_nsec: INTERVAL_NS };
        let times = Itimerspec { it_interval: interval, it_value: interval };
        timerfd_settime(&timer, TimerfdTimerFlags::empty(), &times)?;
        Ok(Self { timer, is_always })
    }

    /// Nothing was there: it is time to look again after the next tick.
    pub(crate) fn rest(&self) {
        if !self.is_always {
            let mut ticks = [0; 8];
            // Not readable yet: the worker has looked for another reason.
            let _early = rustix::io::read(&self.timer, &mut ticks);
        }
    }

    pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
        self.timer.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{PollFd, PollFlags, poll};

    /// Waits without a limit until it is time.
    fn wait(ticker: &Ticker) {
        let descriptor = ticker.descriptor();
        let mut fds = [PollFd::from_borrowed_fd(descriptor, PollFlags::IN)];
        assert_eq!(poll(&mut fds, None).unwrap(), 1);
    }

    #[test]
    fn a_worker_that_rests_is_woken_again_and_again() {
        for is_always in [false, true] {
            let ticker = Ticker::new(is_always).unwrap();
            for _ in 0..3 {
                wait(&ticker);
                ticker.rest();
            }
        }
    }
}
