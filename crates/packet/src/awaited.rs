//! The wait of one thread for what another one makes, where the two do not meet in a ring.

use crate::sync::{AtomicBool, Ordering, fence};

/// Whether a thread waits for something that another one makes.
///
/// **No wake-up is lost.** Who is going to wait says so, then looks once more; who has made something lets
/// others see it, then asks whether anybody waits. A sequentially consistent fence between the two steps of
/// each makes that one of them sees the other's first step.
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
        self.is_awaited.store(true, Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }

    /// Ends the wait, after something was made that others can see; whether there was one. It is ended by one
    /// of those who ask at a time.
    pub fn end(&self) -> bool {
        fence(Ordering::SeqCst);
        self.is_awaited.load(Ordering::Relaxed) && self.is_awaited.swap(false, Ordering::SeqCst)
    }
}
