//! Tells systemd's watchdog that the gateway is alive: the control thread, which sends the notification, and
//! the worker, which it queries first.
//!
//! A worker that waits for packets is as alive as a busy one, so counting its loop iterations would not do.
//! Instead each is sent a command that does nothing, and the answers of all count. A control thread that
//! hangs neither queries nor notifies.

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
    awaited: Option<Awaited>,
}

/// Answers that are to come.
#[derive(Debug)]
struct Awaited {
    answers: Receiver<Answer>,
    missing: usize,
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

    /// Queries the workers if it is time. Returns true once all have answered: then systemd is to be
    /// notified.
    pub(crate) fn is_alive(&mut self, commander: &Commander, now: Instant) -> bool {
        let ask = |reply: SyncSender<Answer>| {
            commander.post(|_| Command::SaveWindows(Vec::new(), reply.clone())).is_ok()
        };
        self.have_answered(commander.workers(), now, ask)
    }

    fn have_answered(
        &mut self,
        workers: usize,
        now: Instant,
        ask: impl FnOnce(SyncSender<Answer>) -> bool,
    ) -> bool {
        let Some(interval) = self.interval else { return false };
        let have_answered = self.take_answers();
        if self.awaited.is_none() && now >= self.next {
            self.next = now + interval;
            let (reply, answers) = sync_channel(workers);
            // Workers that accept no command are queried again later.
            self.awaited = ask(reply).then_some(Awaited { answers, missing: workers });
        }
        have_answered
    }

    /// Takes the answers that are there; whether the last of them is.
    fn take_answers(&mut self) -> bool {
        let Some(awaited) = &mut self.awaited else { return false };
        while awaited.missing > 0 {
            match awaited.answers.try_recv() {
                Ok(_) => awaited.missing -= 1,
                Err(TryRecvError::Empty) => return false,
                Err(TryRecvError::Disconnected) => {
                    self.awaited = None;
                    return false;
                }
            }
        }
        self.awaited = None;
        true
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
            watchdog.have_answered(1, now, |reply| {
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
        assert!(!watchdog.have_answered(1, start, |_| true) && !watchdog.have_answered(1, start, |_| true));
        let mut asked = Asked::default();
        assert!(!watchdog.have_answered(1, start + SECOND, |_| false));
        assert!(!asked.look(&mut watchdog, start + 2 * SECOND));
        assert_eq!(asked.0.len(), 1);
    }

    #[test]
    fn one_of_two_workers_that_does_not_answer_is_enough_to_be_dead() {
        let (mut watchdog, mut replies) = (Watchdog::new(Some(4 * SECOND)), None);
        let start = watchdog.next;
        let ask = |reply: SyncSender<Answer>| {
            replies = Some(reply);
            true
        };
        assert!(!watchdog.have_answered(2, start, ask));
        let replies = replies.unwrap();
        replies.send(Vec::new()).unwrap();
        assert!(!watchdog.have_answered(2, start, |_| false), "the other has not answered");
        replies.send(Vec::new()).unwrap();
        assert!(watchdog.have_answered(2, start, |_| false));
    }

    #[test]
    fn without_systemd_the_worker_is_not_queried() {
        let (mut watchdog, mut asked) = (Watchdog::new(None), Asked::default());
        assert!(!asked.look(&mut watchdog, Instant::now()) && asked.0.is_empty());
    }
}
