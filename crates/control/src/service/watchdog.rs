//! Tells systemd's watchdog that the gateway is alive: the control thread, which sends the notification, and
//! the worker, which it queries first.
//!
//! A worker that waits for packets is as alive as a busy one, so counting its loop iterations would not do.
//! Instead it is sent a command that does nothing, and its answer counts. A control thread that hangs neither
//! queries nor notifies.

use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};
use std::time::{Duration, Instant};
use testudo_gateway::{Command, Commander};
use testudo_ipsec::SaRef;

/// How often the worker is queried within systemd's time-out.
const ASKED_WITHIN_PATIENCE: u32 = 4;

type Answer = Vec<(SaRef, Vec<u8>)>;

/// When to query, and the pending answer.
#[derive(Debug)]
pub(crate) struct Watchdog {
    /// `None` if there is no watchdog.
    interval: Option<Duration>,
    next: Instant,
    awaited: Option<Receiver<Answer>>,
}

impl Watchdog {
    /// Configured by the environment that systemd provides (sd_watchdog_enabled(3)).
    pub(crate) fn from_environment() -> Self {
        Self::new(sd_notify::watchdog_enabled())
    }

    fn new(patience: Option<Duration>) -> Self {
        let interval = patience.map(|patience| patience / ASKED_WITHIN_PATIENCE);
        Self { interval, next: Instant::now(), awaited: None }
    }

    /// Queries the worker if it is time. Returns true once per answer: then systemd is to be notified.
    pub(crate) fn is_alive(&mut self, commander: &Commander, now: Instant) -> bool {
        self.has_answered(now, |reply| commander.send(Command::SaveWindows(Vec::new(), reply)).is_ok())
    }

    fn has_answered(&mut self, now: Instant, ask: impl FnOnce(SyncSender<Answer>) -> bool) -> bool {
        let Some(interval) = self.interval else { return false };
        let answer = self.awaited.as_ref().map(Receiver::try_recv);
        if answer != Some(Err(TryRecvError::Empty)) {
            self.awaited = None;
        }
        if self.awaited.is_none() && now >= self.next {
            self.next = now + interval;
            let (reply, awaited) = sync_channel(1);
            // A worker that accepts no command is queried again later.
            self.awaited = ask(reply).then_some(awaited);
        }
        matches!(answer, Some(Ok(_)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// The queries to a worker that answers when the test says so.
    #[derive(Default)]
    struct Asked(Vec<SyncSender<Answer>>);

    impl Asked {
        fn look(&mut self, watchdog: &mut Watchdog, now: Instant) -> bool {
            watchdog.has_answered(now, |reply| {
                self.0.push(reply);
                true
            })
        }
    }

    #[test]
    fn systemd_hears_of_each_answer_of_the_worker_and_of_nothing_else() {
        let (mut watchdog, mut asked) = (Watchdog::new(Some(4 * SECOND)), Asked::default());
        let start = watchdog.next;
        for round in 0..3 {
            let now = start + round * SECOND;
            assert!(!asked.look(&mut watchdog, now), "nothing was answered yet");
            asked.0.pop().unwrap().send(Vec::new()).unwrap();
            assert!(asked.look(&mut watchdog, now + SECOND / 2));
            assert!(!asked.look(&mut watchdog, now + SECOND / 2), "told once");
            assert!(asked.0.is_empty(), "asked again too early");
        }
    }

    #[test]
    fn a_worker_that_does_not_answer_is_not_alive_and_asked_once() {
        let (mut watchdog, mut asked) = (Watchdog::new(Some(4 * SECOND)), Asked::default());
        let start = watchdog.next;
        assert!((0..100).all(|round| !asked.look(&mut watchdog, start + round * SECOND)));
        assert_eq!(asked.0.len(), 1);
        // Its answer may be late.
        asked.0.pop().unwrap().send(Vec::new()).unwrap();
        assert!(asked.look(&mut watchdog, start + 100 * SECOND));
    }

    #[test]
    fn a_worker_that_drops_or_refuses_the_query_is_queried_again() {
        let mut watchdog = Watchdog::new(Some(4 * SECOND));
        let start = watchdog.next;
        assert!(!watchdog.has_answered(start, |_| true) && !watchdog.has_answered(start, |_| true));
        let mut asked = Asked::default();
        assert!(!watchdog.has_answered(start + SECOND, |_| false));
        assert!(!asked.look(&mut watchdog, start + 2 * SECOND));
        assert_eq!(asked.0.len(), 1);
    }

    #[test]
    fn without_systemd_the_worker_is_not_queried() {
        let (mut watchdog, mut asked) = (Watchdog::new(None), Asked::default());
        assert!(!asked.look(&mut watchdog, Instant::now()) && asked.0.is_empty());
    }
}
