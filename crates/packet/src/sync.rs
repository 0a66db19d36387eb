//! What threads share: loom's when its model checker runs, the standard library's otherwise.

#[cfg(loom)]
pub(crate) use loom::{
    sync::atomic::{AtomicBool, AtomicU64, Ordering, fence},
    sync::{Mutex, MutexGuard},
    thread::{Thread, park},
};
#[cfg(not(loom))]
pub(crate) use std::{
    sync::atomic::{AtomicBool, AtomicU64, Ordering, fence},
    sync::{Mutex, MutexGuard},
    thread::{Thread, park},
};
