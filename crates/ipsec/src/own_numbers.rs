//! What other workers see of the numbers of an SA that one worker alone sends through (RFC 9611): an ICMP
//! error about its packets may come to any of them.

use crate::counters::SaCounters;
use crate::numbers::NumberSource;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The numbers of such an SA, as one of a gateway's workers is given them.
#[derive(Debug, Clone)]
pub struct OwnNumbers {
    /// At the worker that sends, and before it is handed over, where its numbers come from.
    pub(crate) source: Option<Box<NumberSource>>,
    pub(crate) seen: Arc<SeenNumbers>,
}

/// Which numbers the SA has sent lately. What is next is what its worker counts anyway, so that packets pay
/// nothing for it.
#[derive(Debug)]
pub(crate) struct SeenNumbers {
    /// The lowest of them; [`NONE`].
    first: AtomicU64,
    /// The counters of the worker that sends.
    pub(crate) counters: Arc<SaCounters>,
}

/// No number: the SA is not in use.
const NONE: u64 = u64::MAX;

impl SeenNumbers {
    /// Those from this one on are recent; `None` for no number.
    pub(crate) fn show(&self, first: Option<u64>) {
        self.first.store(first.unwrap_or(NONE), Ordering::Relaxed);
    }

    /// The recent ones.
    pub(crate) fn recent(&self) -> Range<u64> {
        self.first.load(Ordering::Relaxed)..self.counters.sequence().saturating_add(1)
    }
}

impl NumberSource {
    /// The same numbers for one of several workers, here still with the source: it is to be
    /// [handed over](Self::hand_over).
    #[must_use]
    pub fn of_one(self) -> Self {
        match self {
            Self::OfOne(_) => self,
            source => {
                let counters = Arc::new(SaCounters::default());
                let seen = Arc::new(SeenNumbers { first: AtomicU64::new(NONE), counters });
                Self::OfOne(OwnNumbers { source: Some(Box::new(source)), seen })
            }
        }
    }

    /// Hands the numbers of [one of several workers](Self::of_one) to it. What stays here sees them alone.
    #[must_use]
    pub fn hand_over(&mut self) -> Self {
        let seen = self.seen_alone();
        std::mem::replace(self, seen)
    }

    /// For all but that one: no number is theirs.
    #[must_use]
    pub fn seen_alone(&self) -> Self {
        match self {
            Self::OfOne(own) => Self::OfOne(OwnNumbers { source: None, seen: Arc::clone(&own.seen) }),
            _ => Self::none(),
        }
    }
}
