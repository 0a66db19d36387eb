//! The wait of one thread for what another one makes, where the two do not meet in a ring.

use crate::sync::{AtomicBool, Ordering, fence};

/// Whether a thread waits for something that another one makes.
///
/// **No wake-up is lost.** Who is going to wait says so, then looks once more; who has made something lets
/// others see it, then asks whether anybody waits. A sequentially consistent fence between the two steps of
/// each makes that one of them sees the other's first step.
///
/// **Every write reads, too**, so that each has its place behind the one that it has read: a wait that begins
/// while another is being ended cannot be ended by that. A plain store has the same place by the rules of C++
/// (nothing comes between what an exchange reads and what it writes), but loom, which tries all
/// interleavings, does not know of it. A wait begins where there is no room, and not with each packet.
#[derive(Debug)]
pub struct Awaited {
    is_awaited: AtomicBool,
}

impl Default for Awaited {
    fn default() -> Self {
        Self::new()
    }
}

impl Awaited {
    /// Nobody waits.
    #[must_use]
    pub fn new() -> Self {
        Self { is_awaited: AtomicBool::new(false) }
    }

    /// The caller found nothing and is going to wait. It has to look once more after this: if there is
    /// something by now, it [ends](Self::end) the wait itself.
    pub fn begin(&self) {
        self.is_awaited.swap(true, Ordering::AcqRel);
        fence(Ordering::SeqCst);
    }

    /// Ends the wait, after something was made that others can see; whether there was one. It is ended by one
    /// of those who ask at a time.
    pub fn end(&self) -> bool {
        fence(Ordering::SeqCst);
        self.is_awaited.load(Ordering::Relaxed) && self.is_awaited.swap(false, Ordering::AcqRel)
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use crate::sync::{AtomicU64, Mutex};
    use loom::sync::Condvar;
    use loom::thread;
    use std::sync::Arc;

    /// Who says that somebody waits.
    trait Says: Default + Send + Sync + 'static {
        fn begins(&self);
        fn ends(&self) -> bool;
    }

    impl Says for Awaited {
        fn begins(&self) {
            self.begin();
        }

        fn ends(&self) -> bool {
            self.end()
        }
    }

    /// The same steps without the fences between them.
    struct WithoutFences(AtomicBool);

    impl Default for WithoutFences {
        fn default() -> Self {
            Self(AtomicBool::new(false))
        }
    }

    impl Says for WithoutFences {
        fn begins(&self) {
            self.0.swap(true, Ordering::AcqRel);
        }

        fn ends(&self) -> bool {
            self.0.load(Ordering::Relaxed) && self.0.swap(false, Ordering::AcqRel)
        }
    }

    /// What is waited on: an eventfd(2) that is full or empty, as the gateway's room for senders has one.
    struct Counter {
        is_full: Mutex<bool>,
        emptied: Condvar,
    }

    impl Counter {
        fn set(&self, is_full: bool) {
            *self.is_full.lock().unwrap() = is_full;
            self.emptied.notify_all();
        }

        /// Until it is not full.
        fn wait(&self) {
            let mut is_full = self.is_full.lock().unwrap();
            while *is_full {
                is_full = self.emptied.wait(is_full).unwrap();
            }
        }
    }

    struct Shared<W> {
        made: AtomicU64,
        awaited: W,
        counter: Counter,
    }

    impl<W: Says> Shared<W> {
        /// There may be something again.
        fn make(&self) {
            if self.awaited.ends() {
                self.counter.set(false);
            }
        }
    }

    /// One thread makes two things, the other one takes them. `looks`: a second time, before it waits.
    /// `waits_at_first`: else it is woken for another reason the first time, and looks again.
    fn two_things<W: Says>(looks: bool, waits_at_first: bool) {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(3);
        model.check(move || {
            let counter = Counter { is_full: Mutex::new(false), emptied: Condvar::new() };
            let shared = Arc::new(Shared { made: AtomicU64::new(0), awaited: W::default(), counter });
            let maker = Arc::clone(&shared);
            let maker = thread::spawn(move || {
                for _ in 0..2 {
                    maker.made.fetch_add(1, Ordering::Release);
                    maker.make();
                }
            });
            let (mut taken, mut waits) = (0, waits_at_first);
            while taken < 2 {
                if shared.made.load(Ordering::Acquire) > taken {
                    taken += 1;
                    continue;
                }
                // Full before anybody is told, so that it is not emptied too early.
                shared.counter.set(true);
                shared.awaited.begins();
                if looks && shared.made.load(Ordering::Acquire) > taken {
                    shared.make();
                }
                if std::mem::replace(&mut waits, true) {
                    shared.counter.wait();
                }
            }
            maker.join().unwrap();
        });
    }

    #[test]
    fn who_waits_for_another_thread_is_woken() {
        two_things::<Awaited>(true, true);
    }

    /// Then who has made something before may be late, and empty the counter of the next wait.
    #[test]
    fn who_was_woken_for_another_reason_waits_again_and_is_woken() {
        two_things::<Awaited>(true, false);
    }

    /// The model is worth something: it finds one who waits without a second look.
    #[test]
    #[should_panic(expected = "deadlock")]
    fn who_does_not_look_again_waits_for_ever() {
        two_things::<Awaited>(false, true);
    }

    /// And that both look before the other's first step is to be seen.
    #[test]
    #[should_panic(expected = "deadlock")]
    fn who_says_that_it_waits_without_a_fence_waits_for_ever() {
        two_things::<WithoutFences>(true, true);
    }
}
