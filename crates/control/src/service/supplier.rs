//! The thread that grants sequence numbers. It sleeps until an SA needs some.
//!
//! It waits for nothing but the store: not for a reload of thousands of tunnels, nor for saving their replay
//! windows, of which at most one transaction goes first. So half a block suffices for an SA while more is
//! fetched.

use super::fault::Fault;
use super::leases::Leases;
use crate::LeaseStore;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};
use testudo_gateway::{Clock, SystemClock};

/// Name of the thread.
pub(super) const SUPPLIER_THREAD: &str = "leases";

/// How long it sleeps if no SA wakes it. (An SA that needs numbers does; correctness does not depend on
/// this.)
const IDLE: Duration = Duration::from_secs(1);
/// Delay before it retries a store that failed, so that a full disk does not fill the log.
const RETRY: Duration = Duration::from_secs(1);

/// The thread. Dropping this ends it, after the transaction in progress.
#[derive(Debug)]
pub(super) struct Supplier {
    /// Tells the thread to end.
    end: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Supplier {
    /// Starts to grant `leases` from `store`.
    ///
    /// # Errors
    /// The system has no thread left.
    pub(super) fn start(leases: Arc<Leases>, store: Arc<dyn LeaseStore>) -> io::Result<Self> {
        Self::with_retry(RETRY, leases, store)
    }

    fn with_retry(retry: Duration, leases: Arc<Leases>, store: Arc<dyn LeaseStore>) -> io::Result<Self> {
        let end = Arc::new(AtomicBool::new(false));
        let (is_over, granted) = (Arc::clone(&end), Arc::clone(&leases));
        let thread = std::thread::Builder::new().name(SUPPLIER_THREAD.into());
        let thread = thread.spawn(move || supply(&granted, store.as_ref(), &is_over, retry))?;
        leases.granted_by(thread.thread().clone());
        Ok(Self { end, thread: Some(thread) })
    }

    /// Whether it has ended by itself, which only a panic can cause.
    pub(super) fn is_finished(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Ends the thread: it grants numbers until this returns, and does not use the store afterwards.
    ///
    /// # Errors
    /// It panicked.
    pub(super) fn end(mut self) -> std::thread::Result<()> {
        self.join()
    }

    fn join(&mut self) -> std::thread::Result<()> {
        self.end.store(true, Ordering::Release);
        let Some(thread) = self.thread.take() else { return Ok(()) };
        thread.thread().unpark();
        thread.join()
    }
}

impl Drop for Supplier {
    fn drop(&mut self) {
        // A caller that must know of a panic calls `end`.
        let _ = self.join();
    }
}

fn supply(leases: &Leases, store: &dyn LeaseStore, is_over: &AtomicBool, retry: Duration) {
    let (clock, mut fault) = (SystemClock::default(), Fault::default());
    while !is_over.load(Ordering::Acquire) {
        let result = leases.refill(store, clock.now());
        if result.is_ok() && fault.ends() {
            tracing::info!("leasing sequence numbers: it works again");
        }
        match result {
            Ok(0) => thread::park_timeout(IDLE),
            // While the store worked, other SAs may have asked.
            Ok(_) => {}
            Err(e) => {
                if let Some(untold) = fault.occurs(Instant::now()) {
                    tracing::error!("leasing sequence numbers: {e}; trying again{untold}");
                }
                sleep(retry, is_over);
            }
        }
    }
}

/// Waits, even if SAs request numbers meanwhile, unless the thread is to end.
fn sleep(time: Duration, is_over: &AtomicBool) {
    let started = Instant::now();
    while let Some(left) = time.checked_sub(started.elapsed()).filter(|left| !left.is_zero()) {
        if is_over.load(Ordering::Acquire) {
            return;
        }
        thread::park_timeout(left);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::service::leases::Start;
    use crate::{Fingerprint, Lease, MemoryStore, StoreError, Usage};
    use std::collections::HashSet;
    use std::ops::Range;
    use std::sync::Mutex;
    use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel, sync_channel};
    use testudo_ipsec::{FIRST_BLOCK, SequenceError, SequenceNumbers};

    /// The block that an SA is leased when it first asks.
    const SECOND_BLOCK: u64 = 1 << 14;

    /// A test that waits longer has failed.
    const PATIENCE: Duration = Duration::from_secs(60);
    const KEY: Fingerprint = Fingerprint::from_bytes([1; Fingerprint::BYTES]);

    /// Reports its calls; its leases can be made to panic, and its saves wait until they are released.
    struct Watched {
        inner: MemoryStore,
        leased: Sender<bool>,
        saving: Sender<()>,
        go_on: Mutex<Receiver<()>>,
        panics: bool,
    }

    /// The test's ends of a store's channels.
    struct Watcher {
        /// For each call: whether anything was leased.
        leased: Receiver<bool>,
        saving: Receiver<()>,
        go_on: Sender<()>,
    }

    fn watched(panics: bool) -> (Arc<Watched>, Watcher) {
        let ((leased, leased_end), (saving, saving_end), (go_on, go_on_end)) =
            (channel(), channel(), channel());
        let go_on_end = Mutex::new(go_on_end);
        let store = Watched { inner: MemoryStore::new(), leased, saving, go_on: go_on_end, panics };
        (Arc::new(store), Watcher { leased: leased_end, saving: saving_end, go_on })
    }

    impl LeaseStore for Watched {
        fn lease_many(&self, requests: &[(Fingerprint, u64)]) -> Result<Vec<Lease>, StoreError> {
            let result = self.inner.lease_many(requests);
            self.leased.send(result.is_ok()).unwrap();
            assert!(!self.panics, "a store that panics, as it is told to");
            result
        }

        fn is_known(&self, fingerprint: Fingerprint) -> Result<bool, StoreError> {
            self.inner.is_known(fingerprint)
        }

        fn note_fresh(&self, keys: &[Fingerprint]) -> Result<(), StoreError> {
            self.inner.note_fresh(keys)
        }

        fn give_back(&self, rests: &[(Fingerprint, Range<u64>)]) -> Result<(), StoreError> {
            self.inner.give_back(rests)
        }

        fn save(
            &self,
            windows: &[(Fingerprint, &[u8])],
            usages: &[(Fingerprint, Usage)],
        ) -> Result<(), StoreError> {
            self.saving.send(()).unwrap();
            self.go_on.lock().unwrap().recv_timeout(PATIENCE).unwrap();
            self.inner.save(windows, usages)
        }

        fn window(&self, fingerprint: Fingerprint) -> Result<Option<Vec<u8>>, StoreError> {
            self.inner.window(fingerprint)
        }

        fn usage(&self, fingerprint: Fingerprint) -> Result<Option<Usage>, StoreError> {
            self.inner.usage(fingerprint)
        }

        fn retire(&self, kept: &HashSet<Fingerprint>) -> Result<u64, StoreError> {
            self.inner.retire(kept)
        }
    }

    /// Leases that have started one SA with a block of `store`, and the numbers of that SA, which has
    /// requested more.
    fn asking(store: &MemoryStore) -> (Arc<Leases>, SequenceNumbers) {
        let leases = Arc::new(Leases::default());
        let start = leases.begin(store, &[KEY]).unwrap().remove(0);
        let mut numbers = SequenceNumbers::new(start.first, true, start.lease);
        numbers.reserve().unwrap();
        (leases, numbers)
    }

    fn left(numbers: &mut SequenceNumbers) -> u64 {
        std::iter::from_fn(|| numbers.reserve().ok()).count() as u64
    }

    #[test]
    fn numbers_are_granted_while_windows_are_being_saved() {
        let (store, watcher) = watched(false);
        thread::scope(|scope| {
            let saver = scope.spawn(|| store.save_windows(&[(KEY, b"window")]));
            watcher.saving.recv_timeout(PATIENCE).unwrap();
            let (leases, mut numbers) = asking(&store.inner);
            let supplier = Supplier::start(leases, Arc::clone(&store) as _).unwrap();
            assert!(watcher.leased.recv_timeout(PATIENCE).unwrap());
            // Leased numbers have been granted when it ends.
            supplier.end().unwrap();
            assert_eq!(left(&mut numbers), FIRST_BLOCK - 1 + SECOND_BLOCK);
            assert!(!saver.is_finished());
            watcher.go_on.send(()).unwrap();
            saver.join().unwrap().unwrap();
        });
    }

    #[test]
    fn a_store_that_failed_is_asked_again() {
        let (store, watcher) = watched(false);
        let (leases, mut numbers) = asking(&store.inner);
        store.inner.set_full(true);
        let supplier = Supplier::with_retry(Duration::ZERO, leases, Arc::clone(&store) as _).unwrap();
        assert!(!watcher.leased.recv_timeout(PATIENCE).unwrap());
        assert_eq!(left(&mut numbers), FIRST_BLOCK - 1);
        assert_eq!(numbers.reserve(), Err(SequenceError::NotLeased));
        store.inner.set_full(false);
        while !watcher.leased.recv_timeout(PATIENCE).unwrap() {}
        supplier.end().unwrap();
        assert_eq!(numbers.reserve(), Ok(FIRST_BLOCK + 1));
    }

    #[test]
    fn the_supplier_releases_the_store_when_it_ends() {
        let (store, _watcher) = watched(false);
        let (leases, _) = asking(&store.inner);
        let supplier = Supplier::start(Arc::clone(&leases), Arc::clone(&store) as _).unwrap();
        assert!(!supplier.is_finished());
        drop(supplier);
        assert_eq!((Arc::strong_count(&store), Arc::strong_count(&leases)), (1, 1));
    }

    #[test]
    fn a_panic_of_the_supplier_is_reported() {
        let (store, watcher) = watched(true);
        let (leases, _numbers) = asking(&store.inner);
        let supplier = Supplier::start(leases, Arc::clone(&store) as _).unwrap();
        watcher.leased.recv_timeout(PATIENCE).unwrap();
        assert!(supplier.end().is_err());
    }

    /// A worker that uses one SA's numbers until it gets the next SA under the same key, as when a reload
    /// changes a tunnel.
    fn take_from(sas: &Receiver<Start>) -> u64 {
        const RUN: u64 = 32;
        let begin = |start: Start| SequenceNumbers::new(start.first, true, start.lease);
        let mut numbers = begin(sas.recv_timeout(PATIENCE).unwrap());
        let (mut last, deadline) = (0, Instant::now() + PATIENCE);
        let mut end = u64::MAX;
        while last < end {
            assert!(Instant::now() < deadline, "the SA starves at {last}");
            match sas.try_recv() {
                Ok(sa) => numbers = begin(sa),
                // The last SA is to be supplied with a few more blocks.
                Err(TryRecvError::Disconnected) if end == u64::MAX => end = last + (1 << 22),
                Err(_) => {}
            }
            let run = numbers.reserve_run(RUN).map(|first| (first, first + RUN - 1));
            if let Some((first, until)) = run.or_else(|| numbers.reserve().ok().map(|n| (n, n))) {
                assert!(first > last, "{first} after {last}");
                last = until;
            }
        }
        last
    }

    #[test]
    fn no_number_comes_twice_and_no_sa_starves_while_reloads_change_it() {
        let (store, leases) = (Arc::new(MemoryStore::new()), Arc::new(Leases::default()));
        let supplier = Supplier::start(Arc::clone(&leases), Arc::clone(&store) as _).unwrap();
        let (handed, sas) = sync_channel(0);
        let last = thread::scope(|scope| {
            let worker = scope.spawn(move || take_from(&sas));
            for _ in 0..200 {
                handed.send(leases.begin(store.as_ref(), &[KEY]).unwrap().remove(0)).unwrap();
                leases.give_back(store.as_ref()).unwrap();
            }
            drop(handed);
            worker.join().unwrap()
        });
        supplier.end().unwrap();
        assert!(store.lease(KEY, 1).unwrap().first > last, "{last} was not noted");
    }
}
