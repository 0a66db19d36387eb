//! The store as a file: killed, damaged, locked, full, missing.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::collections::{HashMap, HashSet};
use std::fs::{self, Permissions};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::Duration;
use tempfile::TempDir;
use testudo_control::{Fingerprint, LeaseStore, Store, StoreError};

const CHILD: &str = "TESTUDO_TEST_STORE";

fn key(number: u8) -> Fingerprint {
    Fingerprint::from_bytes([number; 32])
}

fn folder() -> (TempDir, PathBuf) {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("state.redb");
    (folder, path)
}

/// Runs this test again in a child process, which finds the path and plays the other part.
fn child(test: &str, path: &Path) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args([test, "--exact", "--nocapture", "--test-threads=1"]);
    command.env(CHILD, path).stdout(Stdio::piped()).stderr(Stdio::null());
    command
}

fn path_of_child() -> Option<PathBuf> {
    std::env::var_os(CHILD).map(PathBuf::from)
}

/// Leases until it is killed, and prints its leases.
fn lease_and_print(path: &Path) {
    let store = Store::open(path).unwrap();
    let mut out = std::io::stdout();
    for round in 0.. {
        let requests: Vec<_> =
            (0..3).map(|number| (key(number), 1 + (round * 7 + u64::from(number)) % 13)).collect();
        let leases = store.lease_many(&requests).unwrap();
        for (number, lease) in leases.iter().enumerate() {
            // One write, so that a line is complete or absent.
            out.write_all(format!("\nLEASE {number} {} {}\n", lease.first, lease.end).as_bytes()).unwrap();
        }
        // Gives back the unused part of one lease. The shorter lease is printed first, so that a kill finds
        // either state.
        let (number, lease) = (key(2), &leases[2]);
        let used = lease.first.midpoint(lease.end);
        out.write_all(format!("\nLEASE 2 {} {used}\n", lease.first).as_bytes()).unwrap();
        store.give_back(&[(number, used..lease.end)]).unwrap();
        store.save_windows(&[(key(0), &round.to_le_bytes())]).unwrap();
        // All keys but one are retired, and come back with the next lease.
        let _ = store.retire(&HashSet::from([key(u8::try_from(round % 3).unwrap())])).unwrap();
    }
}

/// Kills the child `delay` after its start, or after its first lease, and checks its leases against all
/// earlier ones.
fn kill_and_check(
    mut child: Child,
    early: bool,
    delay: Duration,
    ends: &mut HashMap<String, (u64, u64)>,
) -> usize {
    let mut out = BufReader::new(child.stdout.take().unwrap());
    let mut text = String::new();
    while !early && !text.contains("LEASE ") && out.read_line(&mut text).unwrap() > 0 {}
    sleep(delay);
    child.kill().unwrap();
    out.read_to_string(&mut text).unwrap();
    child.wait().unwrap();
    let mut leases = 0;
    for line in text.split_inclusive('\n').filter(|line| line.starts_with("LEASE ") && line.ends_with('\n')) {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let (first, end) = (fields[2].parse::<u64>().unwrap(), fields[3].parse::<u64>().unwrap());
        let (used, last) = ends.entry(fields[1].to_owned()).or_insert((1, 0));
        // A lease that is printed again was shortened.
        assert!(
            first >= *used || first == *last,
            "numbers from {first} came twice: up to {used} were printed"
        );
        (*used, *last) = (end, first);
        leases += 1;
    }
    leases
}

/// The nonce contract: after 60 kills at seeded moments, no number was printed twice.
#[test]
fn numbers_never_come_twice_however_often_the_gateway_is_killed() {
    if let Some(path) = path_of_child() {
        return lease_and_print(&path);
    }
    let (_folder, path) = folder();
    drop(Store::create(&path).unwrap());
    let (mut seed, mut ends, mut leases) = (0x2545_f491_4f6c_dd1d_u64, HashMap::new(), 0);
    for _ in 0..60 {
        // Xorshift (Marsaglia 2003).
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        let child =
            child("numbers_never_come_twice_however_often_the_gateway_is_killed", &path).spawn().unwrap();
        // One in four is killed while it starts and recovers, the others while they lease.
        let (early, delay) = (seed.is_multiple_of(4), Duration::from_micros((seed >> 8) % 40_000));
        leases += kill_and_check(child, early, delay, &mut ends);
    }
    assert!(leases > 100, "only {leases} leases were printed");
    let store = Store::open(&path).unwrap();
    for (number, (end, _)) in ends {
        assert!(store.lease(key(number.parse().unwrap()), 1).unwrap().first >= end);
    }
}

/// Between fork(2) and execve(2) such a process has all files of this one open.
#[test]
fn a_process_that_is_being_started_keeps_no_lock() {
    let (_folder, path) = folder();
    drop(Store::create(&path).unwrap());
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                assert!(Command::new("true").status().unwrap().success());
            }
        });
        let lease = || Store::open(&path).and_then(|store| store.lease(key(1), 1));
        let failed = (0..200).find_map(|_| lease().err());
        is_over.store(true, Ordering::Relaxed);
        assert!(failed.is_none(), "{failed:?}");
    });
}

#[test]
fn a_store_is_created_private_and_only_where_nothing_exists() {
    let (folder, path) = folder();
    let store = Store::create(&path).unwrap();
    assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, 0o600);
    assert_eq!(store.lease(key(1), 10).unwrap().first, 1);
    drop(store);
    let before = fs::read(&path).unwrap();
    assert!(matches!(Store::create(&path), Err(StoreError::Exists(_))));
    assert_eq!(fs::read(&path).unwrap(), before);
    symlink("nowhere", folder.path().join("link")).unwrap();
    assert!(matches!(Store::create(&folder.path().join("link")), Err(StoreError::Exists(_))));
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2, "nothing is left behind");
}

#[test]
fn a_store_that_cannot_be_created_leaves_nothing() {
    let (folder, _) = folder();
    let error = Store::create(&folder.path().join("missing/state.redb")).unwrap_err();
    assert!(matches!(error, StoreError::Io { .. }), "{error}");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn a_missing_store_is_an_error_and_not_a_fresh_start() {
    let (_folder, path) = folder();
    let error = Store::open(&path).unwrap_err();
    assert!(matches!(error, StoreError::Missing(_)));
    assert!(error.to_string().contains("there is no store"), "{error}");
    assert!(!path.exists());
}

#[test]
fn a_second_gateway_is_kept_out() {
    if let Some(path) = path_of_child() {
        return println!(
            "{}",
            Store::open(&path).map_or_else(|error| error.to_string(), |_| "opened".to_owned())
        );
    }
    let (_folder, path) = folder();
    let store = Store::create(&path).unwrap();
    let error = Store::open(&path).unwrap_err();
    assert!(matches!(error, StoreError::InUse(_)));
    assert!(error.to_string().ends_with("in use by another gateway"), "{error}");
    // In another process, too, and as long as the first one lives.
    let output = child("a_second_gateway_is_kept_out", &path).output().unwrap();
    assert!(String::from_utf8_lossy(&output.stdout).contains("in use by another gateway"));
    drop(store);
    let output = child("a_second_gateway_is_kept_out", &path).output().unwrap();
    assert!(String::from_utf8_lossy(&output.stdout).contains("opened"));
}

#[test]
fn a_store_that_others_may_write_is_refused() {
    let (_folder, path) = folder();
    drop(Store::create(&path).unwrap());
    fs::set_permissions(&path, Permissions::from_mode(0o620)).unwrap();
    let error = Store::open(&path).unwrap_err();
    assert!(matches!(error, StoreError::Unsafe { .. }) && error.to_string().contains("chmod 600"), "{error}");
    fs::remove_file(&path).unwrap();
    fs::create_dir(&path).unwrap();
    assert!(Store::open(&path).is_err());
}

#[test]
fn an_empty_file_a_text_and_a_cut_store_are_damaged() {
    let (_folder, path) = folder();
    drop(Store::create(&path).unwrap());
    let bytes = fs::read(&path).unwrap();
    for content in
        [&b""[..], b"redb", b"this is not a store of sequence numbers", &bytes[..9], &bytes[..5000]]
    {
        fs::write(&path, content).unwrap();
        let error = Store::open(&path).unwrap_err();
        assert!(matches!(error, StoreError::Damaged { .. }), "{} bytes: {error}", content.len());
        assert_eq!(fs::read(&path).unwrap(), content, "it is left for the operator to look at");
    }
    fs::write(&path, &bytes).unwrap();
    Store::open(&path).unwrap();
}

/// A disk that is really full: a small tmpfs in a user namespace. Prints that it is skipped where there are
/// none.
#[test]
fn a_disk_that_is_full_is_an_error_and_leasing_goes_on_when_there_is_space() {
    if let Some(folder) = path_of_child() {
        return fill_the_disk(&folder);
    }
    let (_folder, path) = folder();
    let mount = path.with_file_name("disk");
    fs::create_dir(&mount).unwrap();
    let script = "mount -t tmpfs -o size=3m tmpfs \"$1\" && shift && exec \"$@\"";
    let role = child("a_disk_that_is_full_is_an_error_and_leasing_goes_on_when_there_is_space", &mount);
    let mut command = Command::new("unshare");
    command
        .args(["-Urm", "sh", "-c", script, "sh"])
        .arg(&mount)
        .arg(role.get_program())
        .args(role.get_args());
    let spawned = command.env(CHILD, &mount).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let Ok(mut spawned) = spawned else { return eprintln!("skipped: no unshare") };
    let lines: Vec<String> =
        BufReader::new(spawned.stdout.take().unwrap()).lines().map_while(Result::ok).collect();
    let status = spawned.wait().unwrap();
    if !lines.iter().any(|line| line.contains("STARTED")) {
        return eprintln!("skipped: no tmpfs in a user namespace");
    }
    assert!(status.success() && lines.iter().any(|line| line.contains("RECOVERED")), "{lines:?}");
}

/// Fills the disk below `folder`, and continues when there is space again.
fn fill_the_disk(folder: &Path) {
    println!("\nSTARTED");
    let store = Store::create(&folder.join("state.redb")).unwrap();
    let end = store.lease(key(1), 10).unwrap().end;
    // Use up the remaining space, then save more than the file has room for.
    let mut filler = fs::File::create(folder.join("filler")).unwrap();
    while filler.write_all(&[1; 4096]).is_ok() {}
    let window = [5; 60_000];
    let windows: Vec<(Fingerprint, &[u8])> = (0..60).map(|number| (key(number), &window[..])).collect();
    let error = store.save_windows(&windows).unwrap_err();
    assert!(error.is_disk_full(), "{error}");
    let _ = store.lease(key(2), 10);
    drop(filler);
    fs::remove_file(folder.join("filler")).unwrap();
    assert!(store.lease(key(1), 10).unwrap().first >= end);
    assert_eq!(store.window(key(1)).unwrap(), None, "nothing of what failed is there");
    println!("\nRECOVERED");
}
