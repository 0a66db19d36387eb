//! A page that all clients within a time share, so that many clients cost as much as one.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

/// The rendered page.
pub(super) type Body = Result<Arc<String>, fmt::Error>;

/// Renderings of the page: at most two are in memory, one of them only for slow clients that still read it.
#[derive(Debug)]
pub(super) struct Bodies {
    renderings: Mutex<Renderings>,
    /// How long a body is served before a new one is rendered.
    fresh: Duration,
}

#[derive(Debug, Default)]
struct Renderings {
    newest: Option<(Instant, Arc<String>)>,
    before: Weak<String>,
}

impl Bodies {
    pub(super) fn new(fresh: Duration) -> Self {
        Self { renderings: Mutex::default(), fresh }
    }

    /// The page as of `now`, or less than `fresh` old; older only while a slow client keeps the previous
    /// one in memory.
    ///
    /// # Errors
    /// `render`, which is given the length to expect, failed.
    pub(super) fn get(&self, now: Instant, render: impl FnOnce(usize) -> Result<String, fmt::Error>) -> Body {
        let mut renderings = self.renderings.lock().unwrap_or_else(PoisonError::into_inner);
        let mut expected_bytes = 0;
        if let Some((rendered, body)) = &renderings.newest {
            let is_fresh = now.saturating_duration_since(*rendered) < self.fresh;
            if is_fresh || renderings.before.strong_count() > 0 {
                return Ok(Arc::clone(body));
            }
            expected_bytes = body.len();
            renderings.before = Arc::downgrade(body);
        }
        // If no client reads it any more, it is freed before the next one is made.
        renderings.newest = None;
        let body = Arc::new(render(expected_bytes)?);
        renderings.newest = Some((now, Arc::clone(&body)));
        Ok(body)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FRESH: Duration = Duration::from_secs(1);

    /// Bodies that are numbered in the order they were rendered.
    struct Numbered {
        bodies: Bodies,
        rendered: usize,
    }

    impl Default for Numbered {
        fn default() -> Self {
            Self { bodies: Bodies::new(FRESH), rendered: 0 }
        }
    }

    impl Numbered {
        fn get(&mut self, now: Instant) -> Arc<String> {
            let render = |_| {
                self.rendered += 1;
                Ok(self.rendered.to_string())
            };
            self.bodies.get(now, render).unwrap()
        }
    }

    #[test]
    fn all_clients_of_a_second_share_one_rendering() {
        let (start, mut numbered) = (Instant::now(), Numbered::default());
        let first = numbered.get(start);
        let second = numbered.get(start + Duration::from_millis(999));
        assert!(Arc::ptr_eq(&first, &second));
        drop((first, second));
        assert_eq!(*numbered.get(start + FRESH), "2");
        assert_eq!(numbered.rendered, 2);
    }

    #[test]
    fn slow_readers_keep_at_most_two_renderings_in_memory() {
        let (start, mut numbered) = (Instant::now(), Numbered::default());
        let slow = numbered.get(start);
        let also_slow = numbered.get(start + FRESH);
        for second in 2..100 {
            assert!(Arc::ptr_eq(&also_slow, &numbered.get(start + FRESH * second)));
        }
        drop(slow);
        assert_eq!(*numbered.get(start + FRESH * 100), "3");
        drop(also_slow);
        assert_eq!(*numbered.get(start + FRESH * 101), "4");
    }

    #[test]
    fn a_rendering_that_failed_is_tried_again() {
        let (now, mut numbered) = (Instant::now(), Numbered::default());
        assert_eq!(numbered.bodies.get(now, |_| Err(fmt::Error)), Err(fmt::Error));
        assert_eq!(*numbered.get(now), "1");
    }
}
