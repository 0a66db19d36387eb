//! The store's file: leased from, closed, killed, damaged, made up.

use crate::input::Input;
use crate::memory_file::MemoryFile;
use std::collections::HashMap;
use std::sync::Once;
use testudo_control::{Fingerprint, LeaseStore, Store, StoreError};

/// Number of keys that lease.
const KEYS: u8 = 4;
/// Steps with one store: each takes a millisecond or more.
const MAX_STEPS: usize = 40;
/// The unit in which a database lays out its file.
const PAGE_BYTES: usize = 4096;

thread_local! {
    /// A store in which every key has leased a little.
    static NEW: Vec<u8> = new_store();
}

fn key(number: u8) -> Fingerprint {
    Fingerprint::from_bytes([number; 32])
}

fn new_store() -> Vec<u8> {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("state.redb");
    drop(Store::create(&path).expect("a store"));
    std::fs::read(path).expect("a readable store")
}

/// Panics of the library are expected, and the store turns them into errors: they must not end the fuzzer.
fn let_the_database_panic() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let hook = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if !info.location().is_some_and(|location| location.file().contains("/redb-")) {
                hook(info);
            }
        }));
    });
}

/// A store, and what it has promised.
struct Run {
    file: MemoryFile,
    store: Store,
    /// The first number of each key that has not been promised.
    next: HashMap<u8, u64>,
    windows: HashMap<u8, Vec<u8>>,
}

/// However a store is treated, it never gives out a number twice: it returns an error, or continues above it.
pub fn store(data: &[u8]) {
    let_the_database_panic();
    let mut input = Input::new(data);
    if input.byte() & 1 != 0 {
        return made_up(&mut input);
    }
    let mut run = Run::new(NEW.with(Vec::clone));
    for _ in 0..MAX_STEPS {
        if input.is_empty() {
            break;
        }
        match input.byte() % 8 {
            0 => run.reopen(),
            1 => run.kill(),
            2 => run.save(&mut input),
            3 | 4 => run.damage(&mut input),
            _ => run.lease(&mut input),
        }
    }
    run.reopen();
    run.check_windows();
}

/// Bytes that no store wrote, with or without the header of one.
fn made_up(input: &mut Input<'_>) {
    let has_start = input.byte() & 1 != 0;
    let mut bytes = if has_start { NEW.with(|new| new[..PAGE_BYTES].to_vec()) } else { Vec::new() };
    if has_start {
        damage(&mut bytes, input.run());
    }
    bytes.extend_from_slice(input.take(usize::MAX));
    let file = MemoryFile::new(&bytes, 0o600);
    match Store::open(&file.path()) {
        Err(StoreError::Damaged { .. } | StoreError::Version { .. } | StoreError::Io { .. }) => {}
        Err(other) => panic!("bytes that are no store give {other}"),
        Ok(_) => panic!("bytes that are no store were opened"),
    }
}

/// Changes bytes, copies pages over each other, and truncates: five bytes of input each.
fn damage(bytes: &mut Vec<u8>, changes: &[u8]) {
    for change in changes.chunks_exact(5) {
        let [kind, a, b, c, value] = *change else { continue };
        let index = (usize::from(a) << 16 | usize::from(b) << 8 | usize::from(c)) % bytes.len().max(1);
        let page = |n: u8| usize::from(n) * PAGE_BYTES..(usize::from(n) + 1) * PAGE_BYTES;
        match kind % 6 {
            // The header, where a flipped bit has the most effect.
            0 if bytes.len() > 512 => bytes[index % 512] ^= 1 << (value & 7),
            1 if page(a).end <= bytes.len() && page(b).end <= bytes.len() => {
                bytes.copy_within(page(a), page(b).start);
            }
            2 if page(a).end <= bytes.len() => bytes[page(a)].fill(value),
            3 => bytes.truncate(index),
            _ => {
                if let Some(byte) = bytes.get_mut(index) {
                    *byte = value;
                }
            }
        }
    }
}

impl Run {
    fn new(bytes: Vec<u8>) -> Self {
        let file = MemoryFile::new(&bytes, 0o600);
        let store = Store::open(&file.path()).expect("a store that nothing happened to");
        Self { file, store, next: HashMap::new(), windows: HashMap::new() }
    }

    fn lease(&mut self, input: &mut Input<'_>) {
        let (number, block) = (input.byte() % KEYS, u64::from(input.byte()));
        let next = self.next.entry(number).or_insert(1);
        match self.store.lease(key(number), block) {
            Ok(lease) => {
                assert!(lease.first >= *next, "key {number}: {lease:?}, but {next} is the next");
                assert_eq!(lease.end - lease.first, block);
                *next = lease.end;
            }
            Err(StoreError::EmptyBlock) => assert_eq!(block, 0),
            Err(other) => panic!("nothing happened to it, but {other}"),
        }
    }

    fn save(&mut self, input: &mut Input<'_>) {
        let (number, window) = (input.byte() % KEYS, input.run().to_vec());
        self.store.save_windows(&[(key(number), &window)]).expect("there is room");
        self.windows.insert(number, window);
    }

    fn check_windows(&self) {
        for (number, window) in &self.windows {
            assert_eq!(self.store.window(key(*number)).expect("whole").as_ref(), Some(window));
        }
    }

    /// Closes and reopens the store.
    fn reopen(&mut self) {
        let bytes = self.file.bytes();
        let other = MemoryFile::new(&bytes, 0o600);
        // A store on a copy fills the field while the real one is dropped, which unlocks its file.
        drop(std::mem::replace(&mut self.store, Store::open(&other.path()).expect("all was durable")));
        self.store = Store::open(&self.file.path()).expect("it was closed");
        self.check_windows();
    }

    /// Simulates a kill: only what the file contains at this moment remains.
    fn kill(&mut self) {
        let other = MemoryFile::new(&self.file.bytes(), 0o600);
        self.store = Store::open(&other.path()).expect("all was durable");
        self.file = other;
        self.check_windows();
    }

    /// A damaged copy is refused, or knows everything that was promised.
    fn damage(&self, input: &mut Input<'_>) {
        let mut bytes = self.file.bytes();
        damage(&mut bytes, input.run());
        let file = MemoryFile::new(&bytes, 0o600);
        let Ok(store) = Store::open(&file.path()) else { return };
        for (number, next) in &self.next {
            if let Ok(lease) = store.lease(key(*number), 1) {
                assert!(lease.first >= *next, "key {number}: {lease:?} again, {next} is the next");
            }
        }
        for number in 0..KEYS {
            if let Ok(Some(window)) = store.window(key(number)) {
                assert!(window.len() <= 1 << 16);
            }
        }
    }
}
