//! The atomics in use: loom's when its model checker runs, the standard library's otherwise.

#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
#[cfg(loom)]
pub(crate) use once::OnceLock;
#[cfg(not(loom))]
pub(crate) use std::sync::OnceLock;
#[cfg(not(loom))]
pub(crate) use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

/// Loom has no [`std::sync::OnceLock`].
#[cfg(loom)]
mod once {
    use loom::sync::Mutex;

    /// The part of it that is in use. What is put here is never freed: a model is small.
    #[derive(Debug)]
    pub(crate) struct OnceLock<T: 'static>(Mutex<Option<&'static T>>);

    impl<T: 'static> OnceLock<T> {
        pub(crate) fn new() -> Self {
            Self(Mutex::new(None))
        }

        pub(crate) fn get(&self) -> Option<&T> {
            *self.0.lock().unwrap()
        }

        pub(crate) fn set(&self, value: T) -> Result<(), T> {
            let mut place = self.0.lock().unwrap();
            if place.is_some() {
                return Err(value);
            }
            *place = Some(Box::leak(Box::new(value)));
            Ok(())
        }
    }
}
