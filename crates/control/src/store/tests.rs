//! Tests the nonce contract under every simulated accident.

use super::ledger::Ledger;
use super::masks::Masks;
use super::twin::Disk;
use super::*;
use fastrand::Rng;
use std::collections::{HashMap, HashSet};
use testudo_ipsec::ReplayWindow;

fn key(number: u64) -> Fingerprint {
    crate::fingerprint::digest_of(&[&number.to_le_bytes()])
}

/// An empty store on a new disk.
fn created() -> Disk {
    let disk = Disk::default();
    Ledger::create(&disk).unwrap();
    disk
}

fn opened(disk: &Disk) -> Result<Ledger<Disk>, StoreError> {
    opened_with(disk, 0)
}

/// As a start does that draws its masks from this seed.
fn opened_with(disk: &Disk, seed: u64) -> Result<Ledger<Disk>, StoreError> {
    Ledger::open(disk.clone(), Masks::seeded(seed))
}

/// The numbers of a lease.
fn numbers(lease: Result<Lease, StoreError>) -> (u64, u64) {
    let lease = lease.unwrap();
    (lease.first, lease.end)
}

/// Both kinds of store fulfil every contract.
fn for_each_store(check: impl Fn(&dyn LeaseStore)) {
    check(&MemoryStore::new());
    check(&opened(&created()).unwrap());
}

#[test]
fn the_first_lease_starts_at_one_and_each_starts_where_the_last_ended() {
    for_each_store(|store| {
        assert_eq!(numbers(store.lease(key(1), 1000)), (1, 1001));
        assert_eq!(numbers(store.lease(key(1), 1)), (1001, 1002));
        assert_eq!(numbers(store.lease(key(2), 5)), (1, 6));
        let leases = store.lease_many(&[(key(1), 10), (key(3), 10), (key(1), 10)]).unwrap();
        assert_eq!(leases.iter().map(|lease| lease.first).collect::<Vec<_>>(), [1002, 1, 1012]);
    });
}

#[test]
fn a_key_without_numbers_left_says_so_and_its_neighbours_in_the_request_lose_nothing() {
    for_each_store(|store| {
        assert_eq!(numbers(store.lease(key(1), NUMBERS_END - 11)), (1, NUMBERS_END - 10));
        assert_eq!(numbers(store.lease(key(1), 100)), (NUMBERS_END - 10, NUMBERS_END));
        let error = store.lease_many(&[(key(2), 7), (key(1), 1)]).unwrap_err();
        assert!(matches!(error, StoreError::Exhausted { fingerprint } if fingerprint == key(1)));
        assert_eq!(store.lease(key(2), 7).unwrap().first, 1, "nothing was leased");
    });
}

#[test]
fn what_is_given_back_is_leased_again_and_nothing_else() {
    for_each_store(|store| {
        let lease = store.lease_many(&[(key(1), 1000), (key(2), 1000), (key(3), 10)]).unwrap();
        assert_eq!(lease[1].end, 1001);
        store.give_back(&[(key(1), 42..1001), (key(2), 42..900), (key(3), 11..11), (key(4), 1..5)]).unwrap();
        assert_eq!(numbers(store.lease(key(1), 10)), (42, 52));
        assert_eq!(store.lease(key(2), 1).unwrap().first, 1001, "not the end of its lease");
        assert_eq!(store.lease(key(3), 1).unwrap().first, 11, "nothing of it was left");
        store.give_back(&[(key(1), 42..1001)]).unwrap();
        assert_eq!(store.lease(key(1), 1).unwrap().first, 52, "given back before");
    });
}

#[test]
fn what_was_given_back_is_leased_in_the_next_start_and_keeps_its_mask() {
    let disk = created();
    let store = opened(&disk).unwrap();
    let lease = store.lease(key(1), 1000).unwrap();
    store.give_back(&[(key(1), 500..1001)]).unwrap();
    drop(store);
    let again = opened(&disk).unwrap().lease(key(1), 1).unwrap();
    assert_eq!((again.first, again.iv_mask), (500, lease.iv_mask));
    // Numbers of an earlier start's lease cannot be given back.
    let store = opened(&disk).unwrap();
    store.give_back(&[(key(1), 400..501)]).unwrap();
    assert_eq!(store.lease(key(1), 1).unwrap().first, 501);
}

#[test]
fn numbers_that_a_full_disk_did_not_take_back_are_leased_again_anyway() {
    let disk = created();
    let store = opened(&disk).unwrap();
    let _ = store.lease(key(1), 1000).unwrap();
    for writes in 0..4 {
        let before = 1001 + 10 * writes;
        disk.full_after(Some(writes));
        let _ = store.give_back(&[(key(1), before - 5..before)]);
        disk.full_after(None);
        assert_eq!(numbers(store.lease(key(1), 15)), (before - 5, before + 10), "full after {writes} writes");
    }
}

#[test]
fn an_empty_lease_is_refused() {
    for_each_store(|store| assert!(matches!(store.lease(key(1), 0), Err(StoreError::EmptyBlock))));
}

#[test]
fn windows_come_back_as_they_were_saved() {
    for_each_store(|store| {
        assert_eq!(store.window(key(1)).unwrap(), None);
        store.save_windows(&[(key(1), b"one"), (key(2), &[7; MAX_WINDOW_BYTES])]).unwrap();
        store.save_windows(&[(key(1), b"another")]).unwrap();
        assert_eq!(store.window(key(1)).unwrap().as_deref(), Some(&b"another"[..]));
        assert_eq!(store.window(key(2)).unwrap(), Some(vec![7; MAX_WINDOW_BYTES]));
        let long = vec![0; MAX_WINDOW_BYTES + 1];
        assert!(matches!(store.save_windows(&[(key(1), &long)]), Err(StoreError::WindowTooLong(_))));
    });
}

#[test]
fn usages_come_back_as_they_were_saved_with_windows_or_without() {
    let usage = |packets| Usage { bytes: packets * 100, packets, since_unix_s: 1_790_000_000 };
    for_each_store(|store| {
        assert_eq!(store.usage(key(1)).unwrap(), None);
        store.save(&[(key(1), b"one")], &[(key(1), usage(5)), (key(2), usage(u64::MAX / 100))]).unwrap();
        store.save(&[], &[(key(1), usage(6))]).unwrap();
        assert_eq!(store.usage(key(1)).unwrap(), Some(usage(6)));
        assert_eq!(store.usage(key(2)).unwrap(), Some(usage(u64::MAX / 100)));
        assert_eq!(store.window(key(1)).unwrap().as_deref(), Some(&b"one"[..]));
    });
}

/// A store created before usages existed.
#[test]
fn a_store_without_usages_opens_and_takes_them() {
    let disk = created();
    Ledger::forget_usages(&disk).unwrap();
    let store = opened(&disk).unwrap();
    let leased = store.lease(key(1), 10).unwrap();
    assert_eq!(store.usage(key(1)).unwrap(), None);
    drop(store);
    let usage = Usage { bytes: 1, packets: 2, since_unix_s: 3 };
    let store = opened(&disk).unwrap();
    store.save(&[], &[(key(1), usage)]).unwrap();
    drop(store);
    let store = opened(&disk).unwrap();
    assert_eq!(store.usage(key(1)).unwrap(), Some(usage));
    assert_eq!(store.lease(key(1), 10).unwrap().first, leased.end);
}

#[test]
fn a_key_keeps_the_mask_that_it_was_first_noted_with() {
    let disk = created();
    let low = |lease: &Lease| lease.iv_mask & (NUMBERS_END - 1);
    let store = opened_with(&disk, 1).unwrap();
    let (first, other) = (store.lease(key(1), 10).unwrap(), store.lease(key(2), 10).unwrap());
    assert_ne!(low(&first), low(&other));
    assert_eq!(store.lease(key(1), 10).unwrap().iv_mask, first.iv_mask);
    drop(store);
    for seed in 2..20 {
        let lease = opened_with(&disk, seed).unwrap().lease(key(1), 10).unwrap();
        assert_eq!(low(&lease), low(&first));
        assert_ne!(lease.iv_mask, first.iv_mask, "the upper bits are those of the start");
    }
}

/// The IVs that a lease covers.
fn ivs(lease: &Lease) -> impl Iterator<Item = u64> {
    (lease.first..lease.end).map(|number| number ^ lease.iv_mask)
}

/// What a backup, a clone or a new store would otherwise repeat.
#[test]
fn two_stores_under_one_key_do_not_repeat_ivs() {
    let mut seen = HashSet::new();
    for seed in [1, 2] {
        let disk = created();
        for start in 0..3 {
            let store = opened_with(&disk, seed * 10 + start).unwrap();
            for _ in 0..3 {
                let lease = store.lease(key(1), 1000).unwrap();
                assert!(ivs(&lease).all(|iv| seen.insert(iv)), "an IV of store {seed} came before");
            }
        }
    }
    assert_eq!(seen.len(), 2 * 3 * 3 * 1000);
}

/// The copy has the key's mask, and numbers repeat. Their IVs do not, because it is another start.
#[test]
fn an_older_copy_of_a_store_does_not_repeat_ivs() {
    let disk = created();
    drop(opened_with(&disk, 1).unwrap().lease(key(1), 1000).unwrap());
    let copy = disk.bytes();
    let lease = opened_with(&disk, 2).unwrap().lease(key(1), 1000).unwrap();
    let again = opened_with(&Disk::holding(copy), 3).unwrap().lease(key(1), 1000).unwrap();
    assert_eq!(lease.first, again.first);
    let seen: HashSet<_> = ivs(&lease).collect();
    assert!(ivs(&again).all(|iv| !seen.contains(&iv)));
}

/// IVs under a key of an old store were its numbers: the key continues with those that are unused, and no
/// others.
#[test]
fn keys_of_a_store_without_masks_go_on_with_ivs_that_they_never_used() {
    let disk = created();
    Ledger::make_format_1(&disk, &[(key(1), 5001)]).unwrap();
    let store = opened_with(&disk, 1).unwrap();
    let (old, new) = (store.lease(key(1), 1000).unwrap(), store.lease(key(2), 10).unwrap());
    assert_eq!(old.first, 5001);
    assert_eq!(old.iv_mask & (NUMBERS_END - 1), 0, "its numbers are its IVs, but for the start's bits");
    assert_ne!(new.iv_mask & (NUMBERS_END - 1), 0);
    assert!(ivs(&old).all(|iv| iv > 5000));
    drop(store);
    let store = opened_with(&disk, 2).unwrap();
    assert_eq!(numbers(store.lease(key(1), 10)), (6001, 6011));
    assert_eq!(store.lease(key(2), 10).unwrap().iv_mask << 16, new.iv_mask << 16);
}

#[test]
fn keys_that_were_never_used_are_noted_once_and_begin_at_one() {
    for_each_store(|store| {
        let _ = store.lease(key(2), 10).unwrap();
        assert_eq!([1, 2].map(|n| store.is_known(key(n)).unwrap()), [false, true]);
        for _ in 0..2 {
            store.note_fresh(&[key(1), key(2)]).unwrap();
        }
        assert!(store.is_known(key(1)).unwrap());
        assert_eq!([1, 2].map(|n| store.lease(key(n), 1).unwrap().first), [1, 11]);
    });
}

fn kept(keys: &[u64]) -> HashSet<Fingerprint> {
    keys.iter().map(|number| key(*number)).collect()
}

/// The window of an SA that has received these numbers.
fn window_of(numbers: &[u64]) -> Vec<u8> {
    let mut window = ReplayWindow::new(64, true);
    numbers.iter().for_each(|number| window.commit(*number).unwrap());
    window.save()
}

/// The numbers up to 100 that an SA which continues with these bytes accepts.
fn accepted(saved: &[u8]) -> Vec<u64> {
    let mut window = ReplayWindow::new(64, true);
    assert!(window.restore(saved));
    (1..=100).filter(|number| window.check(*number).is_ok()).collect()
}

/// RFC 4106 2, RFC 4303 3.4.3: neither a nonce nor a packet comes twice, however long a key was away.
#[test]
fn a_key_that_comes_back_goes_on_where_it_was_and_accepts_nothing_from_before() {
    let usage = Usage { bytes: 500, packets: 5, since_unix_s: 1_790_000_000 };
    for_each_store(|store| {
        let before = store.lease_many(&[(key(1), 10), (key(2), 10)]).unwrap();
        store
            .save(&[(key(3), &window_of(&[90, 97])), (key(4), &window_of(&[90, 97]))], &[(key(1), usage)])
            .unwrap();
        assert_eq!(store.retire(&kept(&[2, 4])).unwrap(), 2);
        assert_eq!(store.usage(key(1)).unwrap(), Some(usage), "a lifetime goes on, too");
        assert!(store.is_known(key(1)).unwrap());
        assert_eq!(accepted(&store.window(key(3)).unwrap().unwrap()), [98, 99, 100]);
        assert_eq!(accepted(&store.window(key(4)).unwrap().unwrap()).len(), 65, "it was not retired");
        let after = store.lease_many(&[(key(1), 10), (key(2), 10)]).unwrap();
        assert_eq!([after[0].first, after[1].first], [11, 11]);
        assert_eq!([0, 1].map(|n| after[n].iv_mask), [0, 1].map(|n| before[n].iv_mask));
        store.save_windows(&[(key(3), &window_of(&[98]))]).unwrap();
        assert_eq!(accepted(&store.window(key(3)).unwrap().unwrap()).len(), 65);
    });
}

#[test]
fn a_retired_key_leaves_one_small_record_and_survives_restarts() {
    let disk = created();
    let store = opened(&disk).unwrap();
    let lease = store.lease(key(1), 1000).unwrap();
    store.save_windows(&[(key(2), &vec![1; MAX_WINDOW_BYTES])]).unwrap();
    assert_eq!(store.retire(&kept(&[])).unwrap(), 2);
    assert_eq!(store.retire(&kept(&[])).unwrap(), 0, "once");
    drop(store);
    let store = opened(&disk).unwrap();
    let known = store.known().unwrap();
    let of = |number| *known.iter().find(|known| known.fingerprint == key(number)).unwrap();
    assert_eq!((known.len(), of(1).is_retired, of(1).next), (2, true, Some(1001)));
    assert_eq!((of(2).is_retired, of(2).top), (true, Some(0x0101_0101_0101_0101)));
    let again = store.lease(key(1), 10).unwrap();
    assert_eq!((again.first, again.iv_mask), (lease.end, lease.iv_mask));
    assert!(!store.known().unwrap().iter().any(|known| known.fingerprint == key(1) && known.is_retired));
}

/// A reload asks which keys are to be retired while SAs need numbers: with long windows, to read all keys
/// takes seconds.
#[test]
fn leases_come_in_between_while_the_keys_of_a_store_are_read() {
    const KEYS: u64 = 1000;
    let store = opened(&created()).unwrap();
    let all: Vec<_> = (0..KEYS).map(key).collect();
    let windows: Vec<_> = all.iter().map(|key| (*key, &[7; 24][..])).collect();
    store.save_windows(&windows).unwrap();
    let requests: Vec<_> = all.iter().map(|key| (*key, 10)).collect();
    let _ = store.lease_many(&requests).unwrap();
    let before = store.turns();
    assert_eq!(store.retire(&all.iter().copied().collect()).unwrap(), 0);
    assert!(store.turns() - before >= 2 * 1000 / 64, "{} turns", store.turns() - before);
    // None is left out at the seams.
    let most: HashSet<_> = all.iter().copied().skip(700).collect();
    assert_eq!(store.retire(&most).unwrap(), 700);
    let known = store.known().unwrap();
    assert!(known.iter().all(|known| known.is_retired != most.contains(&known.fingerprint)));
}

/// Numbers that a removed SA has not used come back to a key that is retired by then.
#[test]
fn numbers_are_given_back_to_a_retired_key() {
    for_each_store(|store| {
        let _ = store.lease(key(1), 1000).unwrap();
        store.retire(&kept(&[])).unwrap();
        store.give_back(&[(key(1), 42..1001)]).unwrap();
        store.retire(&kept(&[])).unwrap();
        assert_eq!(store.lease(key(1), 1).unwrap().first, 42);
    });
}

#[test]
fn a_full_store_refuses_new_keys_and_no_others_until_some_are_forgotten() {
    let disk = created();
    let store = opened(&disk).unwrap().with_limit(4);
    let requests: Vec<_> = (0..4).map(|number| (key(number), 10)).collect();
    let _ = store.lease_many(&requests).unwrap();
    assert_eq!(store.retire(&kept(&[0])).unwrap(), 3, "a tombstone takes the place of the numbers");
    let refused = store.lease(key(5), 10).unwrap_err();
    assert!(matches!(refused, StoreError::Full { keys: 4, .. }), "{refused}");
    assert!(refused.to_string().contains("testudo store forget"), "{refused}");
    assert_eq!(store.lease(key(1), 10).unwrap().first, 11, "a key that it knows");
    store.retire(&kept(&[0])).unwrap();
    // A window has no entry yet, and no room for one as a tombstone: it stays as it is.
    store.save_windows(&[(key(7), &window_of(&[9]))]).unwrap();
    assert_eq!(store.retire(&kept(&[0])).unwrap(), 0);
    assert_eq!(accepted(&store.window(key(7)).unwrap().unwrap())[..9], [1, 2, 3, 4, 5, 6, 7, 8, 10]);
    assert_eq!(store.forget(&[key(0), key(2), key(9)]).unwrap(), 1, "only what is retired");
    assert_eq!(store.lease(key(5), 10).unwrap().first, 1);
    assert!(!store.is_known(key(2)).unwrap());
    drop(store);
    assert_eq!(opened(&disk).unwrap().lease(key(1), 1).unwrap().first, 21);
}

/// A store of a program that knew no tombstones.
#[test]
fn a_store_of_format_2_opens_and_takes_tombstones() {
    let disk = created();
    let store = opened(&disk).unwrap();
    let lease = store.lease(key(1), 10).unwrap();
    store.retire(&kept(&[1])).unwrap();
    drop(store);
    Ledger::make_format_2(&disk).unwrap();
    let store = opened(&disk).unwrap();
    assert_eq!(store.window(key(1)).unwrap(), None);
    assert_eq!((store.usage(key(1)).unwrap(), store.known().unwrap().len()), (None, 1));
    store.retire(&kept(&[])).unwrap();
    drop(store);
    let again = opened(&disk).unwrap().lease(key(1), 10).unwrap();
    assert_eq!((again.first, again.iv_mask), (lease.end, lease.iv_mask));
}

/// The bound that the module states: about 110 bytes of the file for each.
#[test]
fn ten_thousand_retired_keys_take_a_megabyte() {
    let disk = created();
    let store = opened(&disk).unwrap();
    for part in 0..10 {
        let keys = || (part * 1000..(part + 1) * 1000).map(key);
        let _ = store.lease_many(&keys().map(|key| (key, 1 << 20)).collect::<Vec<_>>()).unwrap();
        let usage = Usage { bytes: 1 << 40, packets: 1 << 30, since_unix_s: 1_790_000_000 };
        store.save(&[], &keys().map(|key| (key, usage)).collect::<Vec<_>>()).unwrap();
        store.retire(&HashSet::new()).unwrap();
    }
    store.compact().unwrap();
    drop(store);
    let bytes = disk.bytes().len();
    println!("10,000 retired keys: {bytes} bytes");
    assert!(bytes < 10_000 * 150, "{bytes} bytes");
    let store = opened(&disk).unwrap();
    assert!(store.known().unwrap().iter().all(|known| known.is_retired && known.next == Some(1 + (1 << 20))));
    assert_eq!(store.lease(key(77), 1).unwrap().first, 1 + (1 << 20));
}

#[test]
fn ten_thousand_keys_take_one_transaction_and_survive_closing() {
    let disk = created();
    let requests: Vec<_> = (0..10_000).map(|number| (key(number), 1 << 20)).collect();
    let store = opened(&disk).unwrap();
    assert!(store.lease_many(&requests).unwrap().iter().all(|lease| lease.first == 1));
    drop(store);
    let leases = opened(&disk).unwrap().lease_many(&requests).unwrap();
    assert!(leases.iter().all(|lease| lease.first == 1 + (1 << 20)));
}

/// Leases from `disk` until the power fails after `writes` writes. Records in `promised` the ends that were
/// promised.
fn lease_until_power_cut(disk: &Disk, writes: u64, promised: &mut HashMap<u64, u64>, random: &mut Rng) {
    disk.full_after(Some(writes));
    let Ok(store) = opened(disk) else { return };
    for _ in 0..6 {
        let number = random.u64(..3);
        let Ok(lease) = store.lease(key(number), 1 + random.u64(..50)) else { break };
        let end = promised.entry(number).or_insert(1);
        assert!(lease.first >= *end, "a number came twice");
        *end = lease.end;
        if random.u64(..3) == 0 && store.retire(&HashSet::from([key(random.u64(..3))])).is_err() {
            break;
        }
        if random.u64(..3) == 0 {
            // Whether this succeeds or not, the used numbers end here.
            *end = lease.first + random.u64(..lease.end - lease.first);
            if store.give_back(&[(key(number), *end..lease.end)]).is_err() {
                break;
            }
        }
    }
    // A process that dies does not close its store.
    std::mem::forget(store);
}

/// Power fails at each write of a run in turn, with torn sectors: the store opens, and no number repeats.
#[test]
fn a_power_cut_at_any_write_loses_no_promise() {
    let mut random = Rng::with_seed(0x7e57_0d0a);
    for writes in 0..120 {
        let mut disk = created();
        let mut promised = HashMap::new();
        for _ in 0..3 {
            lease_until_power_cut(&disk, writes, &mut promised, &mut random);
            disk = disk.after_power_cut(&mut random);
        }
        disk.full_after(None);
        let store = opened(&disk).unwrap_or_else(|error| panic!("cut at write {writes}: {error}"));
        for (number, end) in promised {
            assert!(store.lease(key(number), 1).unwrap().first >= end, "cut at write {writes}");
        }
    }
}

/// `testudo store compact` moves the database about and shortens its file: power fails, or the disk is full,
/// at each write of that in turn.
#[test]
fn a_power_cut_or_a_full_disk_at_any_write_of_compacting_loses_nothing() {
    const KEYS: u64 = 400;
    let disk = created();
    let store = opened(&disk).unwrap();
    let requests: Vec<_> = (0..KEYS).map(|number| (key(number), 10 + number)).collect();
    let ends: Vec<_> = store.lease_many(&requests).unwrap().into_iter().map(|lease| lease.end).collect();
    let windows: Vec<_> = (0..KEYS).map(|number| (key(number), [7; 600])).collect();
    let windows: Vec<_> = windows.iter().map(|(key, window)| (*key, &window[..])).collect();
    store.save_windows(&windows).unwrap();
    store.retire(&(0..10).map(key).collect()).unwrap();
    let gone: Vec<_> = (10..KEYS - 10).map(key).collect();
    store.forget(&gone).unwrap();
    drop(store);
    let before = disk.bytes();
    let whole = Disk::holding(before.clone());
    let store = opened(&whole).unwrap();
    let opening = whole.writes();
    store.compact().unwrap();
    drop(store);
    let (writes, mut random) = (whole.writes(), Rng::with_seed(0xC0DE));
    assert!(whole.bytes().len() < before.len() / 2 && writes > opening + 10, "{writes} writes");
    let check = |disk: &Disk, what: &str| {
        let store = opened(disk).unwrap_or_else(|error| panic!("{what}: {error}"));
        for number in (0..10).chain(KEYS - 10..KEYS) {
            let first = store.lease(key(number), 1).unwrap().first;
            assert_eq!(first, ends[usize::try_from(number).unwrap()], "{what}");
        }
        assert_eq!(store.known().unwrap().len(), 20, "{what}");
    };
    for write in 0..writes {
        let disk = Disk::holding(before.clone());
        disk.full_after(Some(write));
        if let Ok(store) = opened(&disk) {
            let _ = store.compact();
            // It has not ended yet.
            let cut = disk.after_power_cut(&mut random);
            std::mem::forget(store);
            check(&cut, &format!("power cut at write {write}"));
        }
        disk.full_after(None);
        check(&disk, &format!("full at write {write}"));
    }
}

/// The disk is full at each write in turn, and later has space again: the call fails, and the next one
/// succeeds.
#[test]
fn a_full_disk_is_an_error_and_the_store_goes_on_when_there_is_space() {
    let disk = created();
    let store = opened(&disk).unwrap();
    let before = disk.writes();
    let mut end = store.lease(key(1), 10).unwrap().end;
    let writes_per_lease = disk.writes() - before;
    let mut refused = 0;
    for writes in 0..writes_per_lease + 2 {
        disk.full_after(Some(writes));
        match store.lease(key(1), 10) {
            Ok(lease) => {
                assert_eq!(lease.first, end);
                end = lease.end;
            }
            Err(error) => {
                assert!(error.is_disk_full(), "{error}");
                refused += 1;
                assert!(store.lease(key(1), 10).is_err(), "still full");
            }
        }
        disk.full_after(None);
        // Numbers recorded by a failed call were never handed out, so the next lease may continue there.
        let lease = store.lease(key(1), 10).unwrap();
        assert_eq!(lease.first, end);
        end = lease.end;
    }
    drop(store);
    assert!(
        opened(&disk).unwrap().lease(key(1), 1).unwrap().first >= end,
        "after a restart, the note counts"
    );
    assert!(refused > 3, "the disk was full {refused} times");
}

/// The leases of a damaged store, if it opens at all.
fn survivors(bytes: Vec<u8>, keys: u64) -> Option<Vec<u64>> {
    let store = opened(&Disk::holding(bytes)).ok()?;
    // Reading may fail like opening, but may not return wrong data.
    (0..keys).map(|number| store.lease(key(number), 1).ok().map(|lease| lease.first)).collect()
}

/// A store with history: several keys and windows, closed cleanly or not.
fn with_history(closed: bool) -> (Vec<u8>, u64) {
    let (disk, keys) = (created(), 40);
    let store = opened(&disk).unwrap();
    for round in 0..3 {
        let requests: Vec<_> = (0..keys).map(|number| (key(number), 100 + round)).collect();
        store.save_windows(&[(key(0), &[1; 900])]).unwrap();
        // The lease comes last, since losing it would be worst.
        store.lease_many(&requests).unwrap();
    }
    // Half of the keys are retired.
    store.retire(&(0..keys / 2).map(key).collect()).unwrap();
    if closed {
        drop(store);
        return (disk.bytes(), keys);
    }
    let bytes = disk.bytes();
    std::mem::forget(store);
    (bytes, keys)
}

fn check_damage(bytes: Vec<u8>, keys: u64, what: &str) -> bool {
    let survivors = survivors(bytes, keys);
    if let Some(found) = &survivors {
        let right = 1 + 100 + 101 + 102;
        assert!(found.iter().all(|next| *next >= right), "{what}: numbers came again: {found:?}");
    }
    survivors.is_none()
}

/// Panics of the database library are caught; their messages would drown the test's own.
fn quietly(test: impl FnOnce()) {
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|info| {
        if !info.location().is_some_and(|place| place.file().contains("redb")) {
            eprintln!("{info}");
        }
    }));
    test();
    std::panic::set_hook(hook);
}

fn one(bit: u64) -> std::ops::Range<u64> {
    bit..bit + 1
}

#[test]
fn a_flipped_byte_anywhere_is_an_error_or_changes_nothing() {
    quietly(|| {
        for closed in [true, false] {
            let (bytes, keys) = with_history(closed);
            let used: Vec<usize> = (0..bytes.len()).filter(|at| *at < 400 || bytes[*at] != 0).collect();
            let mut random = Rng::with_seed(99);
            let mut found = 0;
            for at in used.iter().copied() {
                // Every bit of the flags; one bit of each other header byte, and of one in forty of the other
                // bytes.
                let bits = match at {
                    9 => 0..8,
                    _ if at < 400 || random.u64(..40) == 0 => one(random.u64(..8)),
                    _ => 0..0,
                };
                for bit in bits {
                    let mut damaged = bytes.clone();
                    damaged[at] ^= 1 << bit;
                    let what = format!("byte {at} bit {bit}, closed {closed}");
                    found += usize::from(check_damage(damaged, keys, &what));
                }
            }
            assert!(found > 20, "{found} of {} flips were found", used.len());
        }
    });
}

#[test]
fn a_file_cut_to_any_length_is_an_error() {
    quietly(|| {
        for closed in [true, false] {
            let (bytes, keys) = with_history(closed);
            let near = |mark: usize| mark.saturating_sub(2)..=mark + 2;
            let lengths = (0..340).chain((1..40).flat_map(|page| near(page * 4096)));
            let lengths = lengths.chain((0..50).map(|n| bytes.len() * n / 50)).chain(near(bytes.len() - 2));
            for length in lengths.filter(|length| *length < bytes.len()) {
                // The database takes an empty file for a new one; the file's own check refuses that before.
                if length > 0 {
                    check_damage(
                        bytes[..length].to_vec(),
                        keys,
                        &format!("cut to {length}, closed {closed}"),
                    );
                }
            }
        }
    });
}

#[test]
fn zeroed_and_swapped_pages_are_errors_or_change_nothing() {
    quietly(|| {
        let (bytes, keys) = with_history(true);
        let pages = bytes.len() / 4096;
        let in_use = |page: &usize| bytes[page * 4096..(page + 1) * 4096].iter().any(|byte| *byte != 0);
        let used: Vec<usize> = (0..pages).filter(in_use).collect();
        for (index, page) in used.iter().enumerate() {
            let mut zeroed = bytes.clone();
            zeroed[page * 4096..(page + 1) * 4096].fill(0);
            check_damage(zeroed, keys, &format!("page {page} zeroed"));
            let other = used[(index + 1) % used.len()];
            let mut swapped = bytes.clone();
            swapped.copy_within(page * 4096..(page + 1) * 4096, other * 4096);
            check_damage(swapped, keys, &format!("page {page} over page {other}"));
        }
    });
}

#[test]
fn random_bytes_are_no_store() {
    quietly(|| {
        let mut random = Rng::with_seed(5);
        let mut magic = b"redb\x1a\n\xa9\r\n".to_vec();
        magic.extend((0..9000).map(|_| random.u64(..).to_le_bytes()[0]));
        assert!(matches!(opened(&Disk::holding(magic)), Err(StoreError::Damaged { .. })));
        let noise = (0..9000).map(|_| random.u64(..).to_le_bytes()[0]).collect();
        assert!(matches!(opened(&Disk::holding(noise)), Err(StoreError::Damaged { .. })));
    });
}

/// A store that is replaced by an older copy under a running gateway is detected after the next error.
#[test]
fn a_store_replaced_by_an_older_copy_under_a_running_gateway_is_refused() {
    let disk = created();
    let old = disk.bytes();
    let store = opened(&disk).unwrap();
    let _ = store.lease(key(1), 10).unwrap();
    disk.full_after(Some(0));
    store.lease(key(1), 10).unwrap_err();
    disk.full_after(None);
    disk.restore(old);
    assert!(matches!(store.lease(key(1), 10), Err(StoreError::Damaged { .. })));
}

#[test]
fn the_memory_store_fails_and_starts_as_it_is_told() {
    let store = MemoryStore::new();
    store.start_at(key(1), 77);
    store.set_full(true);
    assert!(store.lease(key(1), 1).unwrap_err().is_disk_full());
    store.set_full(false);
    assert_eq!(store.lease(key(1), 1).unwrap().first, 77);
}
