//! What other threads tell the main thread.
//!
//! The queue is bounded, and the worker waits for nobody: what it cannot put there is lost, and counted
//! beside the queue, where a burst that nothing follows is seen, too.

use super::policies::ChangeRequest;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::SyncSender;
use testudo_gateway::Notice;

/// What the main thread takes from its queue, one at a time.
pub(super) enum News {
    Signal(i32),
    Change(ChangeRequest),
    Notice(Notice),
    WorkerEnded,
}

/// Notices of the worker that were lost because the queue was full.
#[derive(Debug, Clone, Default)]
pub(super) struct LostNotices(Arc<AtomicU64>);

impl LostNotices {
    /// How many were lost since the last call.
    pub(super) fn take(&self) -> u64 {
        // What the worker did before it lost one is seen after this.
        self.0.swap(0, Ordering::Acquire)
    }

    /// Tells the main thread of what it has room for, and counts what is lost.
    pub(super) fn teller(&self, news: SyncSender<News>) -> impl FnMut(Notice) + use<> {
        let lost = Arc::clone(&self.0);
        move |notice| {
            if news.try_send(News::Notice(notice)).is_err() {
                lost.fetch_add(1, Ordering::Release);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::sync_channel;
    use testudo_gateway::{Withdrawal, WithdrawalReason};

    #[test]
    fn notices_that_are_lost_at_the_end_of_a_burst_are_counted_though_nothing_follows() {
        let (sender, news) = sync_channel(2);
        let lost = LostNotices::default();
        let mut tell = lost.teller(sender);
        let mut burst = |notices| {
            let reason = WithdrawalReason::KeptPackets;
            let lost = |packets| Notice::Engine(Withdrawal { engine: "gpu", packets, reason });
            (0..notices).for_each(|packets| tell(lost(packets)));
        };
        burst(2);
        assert_eq!(lost.take(), 0);
        burst(3);
        assert_eq!((lost.take(), lost.take()), (3, 0));
        let told: Vec<_> = news.try_iter().collect();
        assert!(matches!(&told[..], [News::Notice(_), News::Notice(_)]), "those that had room");
        burst(1);
        assert_eq!((lost.take(), news.try_iter().count()), (0, 1));
    }
}
