//! What threads share: loom's when its model checker runs, the standard library's otherwise.

#[cfg(loom)]
pub(crate) use loom::{
    sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering},
    sync::mpsc::{Receiver, channel},
    sync::{Mutex, MutexGuard},
    thread::yield_now,
};
#[cfg(loom)]
pub(crate) use model::{Builder, JoinHandle};
#[cfg(not(loom))]
pub(crate) use std::{
    sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering},
    sync::mpsc::{Receiver, channel},
    sync::{Mutex, MutexGuard},
    thread::{Builder, JoinHandle, yield_now},
};

/// Loom's threads, which can be asked whether they have ended.
#[cfg(loom)]
mod model {
    use loom::sync::atomic::{AtomicBool, Ordering};
    use loom::thread;
    use std::io;
    use std::sync::Arc;

    /// Stack of a thread, in words. What loom gives, 32 KiB, may not do for what is not optimised.
    const STACK_WORDS: usize = 1 << 16;

    pub(crate) struct Builder(thread::Builder);

    impl Builder {
        pub(crate) fn new() -> Self {
            Self(thread::Builder::new().stack_size(STACK_WORDS))
        }

        pub(crate) fn name(self, name: String) -> Self {
            Self(self.0.name(name))
        }

        pub(crate) fn spawn<T: Send + 'static>(
            self,
            body: impl FnOnce() -> T + Send + 'static,
        ) -> io::Result<JoinHandle<T>> {
            let is_finished = Arc::new(AtomicBool::new(false));
            let ended = Arc::clone(&is_finished);
            let thread = self.0.spawn(move || {
                let result = body();
                ended.store(true, Ordering::Release);
                result
            })?;
            Ok(JoinHandle { thread, is_finished })
        }
    }

    pub(crate) struct JoinHandle<T> {
        thread: thread::JoinHandle<T>,
        is_finished: Arc<AtomicBool>,
    }

    impl<T> JoinHandle<T> {
        pub(crate) fn thread(&self) -> &thread::Thread {
            self.thread.thread()
        }

        pub(crate) fn is_finished(&self) -> bool {
            self.is_finished.load(Ordering::Acquire)
        }

        pub(crate) fn join(self) -> std::thread::Result<T> {
            self.thread.join()
        }
    }
}
