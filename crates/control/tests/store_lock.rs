//! The lock of a store over an error of its disk. The limit that makes writes fail is that of the process, so
//! this test has a process of its own.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use rustix::process::{Resource, Rlimit, setrlimit};
use testudo_control::{Fingerprint, LeaseStore, Store, StoreError};

const KEY: Fingerprint = Fingerprint::from_bytes([7; 32]);

/// Limits the files that may be written. Without a handler the signal that comes with a refused write would
/// end the process.
fn limit_files(bytes: Option<u64>) {
    setrlimit(Resource::Fsize, Rlimit { current: bytes, maximum: None }).unwrap();
}

#[test]
fn nobody_else_opens_a_store_while_an_error_keeps_its_database_closed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state.redb");
    signal_hook::flag::register(libc::SIGXFSZ, std::sync::Arc::default()).unwrap();
    let store = Store::create(&path).unwrap();
    assert_eq!(store.lease(KEY, 10).unwrap().end, 11);
    limit_files(Some(1));
    let failed = store.lease(KEY, 10).unwrap_err();
    limit_files(None);
    assert!(failed.is_disk_full(), "{failed}");
    assert!(matches!(Store::open(&path), Err(StoreError::InUse(_))));
    assert_eq!(store.lease(KEY, 10).unwrap().first, 11);
    // Nor is another file taken for it that has its name by now.
    limit_files(Some(1));
    store.lease(KEY, 10).unwrap_err();
    limit_files(None);
    std::fs::copy(&path, folder.path().join("copy")).unwrap();
    std::fs::rename(folder.path().join("copy"), &path).unwrap();
    assert!(matches!(store.lease(KEY, 10), Err(StoreError::Unsafe { .. })));
    drop(store);
    assert_eq!(Store::open(&path).unwrap().lease(KEY, 10).unwrap().first, 21);
}
