//! Windows of VPE against a slow model, and by their rules.

use super::super::window_model::{Model, SIZE, header};
use super::*;
use crate::counters::SaCounters;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Takes an authentic packet, as the gateway does: checked, and committed later.
fn take(windows: &mut Windows, header: &VpeHeader) -> Result<(), DropReason> {
    windows.check(header)?;
    windows.commit(header)
}

const OWN: u16 = 3;

fn of_group(limit: u32) -> Box<Windows> {
    let counters = Arc::new(SaCounters::default());
    Windows::of_group(limit, SIZE, Senders::new(OWN, [192, 0, 2, 3].into(), counters))
}

#[test]
fn windows_agree_with_a_slow_model_over_restarts_and_crashes() {
    for is_group in [false, true] {
        let made = |limit| if is_group { of_group(limit) } else { Windows::new(limit, SIZE) };
        for seed in 1..=200 {
            let mut random = fastrand::Rng::with_seed(seed);
            let limit = random.u32(1..6);
            let mut windows = made(limit);
            let mut model = Model { limit: limit as usize, ..Model::default() };
            let mut base = [1_u64; 8];
            for step in 0..2000 {
                let place = random.u16(0..8);
                let next = &mut base[usize::from(place)];
                *next += random.u64(0..4);
                let number = next.saturating_sub(random.u64(0..100)).max(u64::from(random.u8(..) > 3));
                // In a group, two senders with four windows each.
                let (sender, window) = if is_group { (1 + place % 2, place / 2) } else { (0, place) };
                let got = take(&mut windows, &VpeHeader { sender, ..header(window, number) });
                let expected = model.take((sender, window), number);
                assert_eq!(got, expected, "seed {seed}, step {step}: {sender}, {window}, {number}");
                if random.u32(..500) == 0 {
                    let saved = windows.save();
                    windows = made(limit);
                    assert!(windows.restore(&saved), "seed {seed}");
                }
                if random.u32(..900) == 0 {
                    let ceiling = windows.top() + random.u64(0..20);
                    windows = made(limit);
                    assert!(windows.restore(&ReplayWindow::closed_up_to(ceiling)));
                    model = Model { limit: limit as usize, floor: ceiling, ..Model::default() };
                }
            }
        }
    }
}

/// What is saved names senders: a group's windows are none of two that know each other, nor the reverse.
#[test]
fn saved_windows_carry_their_senders() {
    let mut group = of_group(8);
    for (sender, window, number) in [(1, 4, 10), (0xABCD, 4, 20), (1, 5, 30)] {
        assert_eq!(take(&mut group, &VpeHeader { sender, ..header(window, number) }), Ok(()));
    }
    let mut restored = of_group(8);
    assert!(restored.restore(&group.save()));
    let tops: BTreeMap<_, _> = restored.each().map(|(name, window)| (name, window.top())).collect();
    assert_eq!(tops, BTreeMap::from([((1, 4), 10), ((0xABCD, 4), 20), ((1, 5), 30)]));
    assert!(!Windows::new(8, SIZE).restore(&group.save()));
    let mut unicast = Windows::new(8, SIZE);
    assert_eq!(take(&mut unicast, &header(4, 10)), Ok(()));
    assert!(!of_group(8).restore(&unicast.save()));
}

/// The most is lowered: no saved window is lost, which would take its numbers a second time, and none is made
/// beside them.
#[test]
fn saved_windows_stay_where_there_may_be_fewer() {
    let mut group = of_group(8);
    for (sender, window) in [(1, 4), (7, 4), (1, 5)] {
        assert_eq!(take(&mut group, &VpeHeader { sender, ..header(window, 10) }), Ok(()));
    }
    let mut restored = of_group(2);
    assert!(restored.restore(&group.save()));
    for (sender, window) in [(1, 4), (7, 4), (1, 5)] {
        let take = |windows: &mut Windows, n| take(windows, &VpeHeader { sender, ..header(window, n) });
        assert_eq!(take(&mut restored, 10), Err(DropReason::ReplayDuplicate));
        assert_eq!(take(&mut restored, 11), Ok(()));
    }
    let other = VpeHeader { sender: 1, ..header(6, 11) };
    assert_eq!(take(&mut restored, &other), Err(DropReason::VpeWindows));
    assert!(of_group(1).restore(&restored.save()), "again");
}

/// What is kept of an SA that is gone is little, and each window goes on by itself when the key comes back.
#[test]
fn windows_of_a_key_that_comes_back_go_on_by_themselves() {
    let mut windows = Windows::new(8, SIZE);
    assert!(windows.restore(&ReplayWindow::closed_up_to(3)));
    for (window, number) in [(1, 5000), (2, 40), (2, 38)] {
        assert_eq!(take(&mut windows, &header(window, number)), Ok(()));
    }
    let closed = closed_windows(&windows.save()).expect("they are of VPE");
    assert_eq!((closed.len(), ReplayWindow::top_of(&closed)), (24 + 2 * 24, Some(5000)));
    assert_eq!(closed_windows(&closed).as_ref(), Some(&closed));
    let mut back = Windows::new(8, SIZE);
    assert!(back.restore(&closed));
    for number in [37, 38, 39, 40] {
        assert!(take(&mut back, &header(2, number)).is_err(), "{number} may have been received");
    }
    assert_eq!(take(&mut back, &header(2, 41)), Ok(()), "behind all others");
    assert!(take(&mut back, &header(1, 5000)).is_err());
    assert_eq!(take(&mut back, &header(3, 3)), Err(DropReason::ReplayTooOld));
    for broken in [&closed[..30], &closed[..23], &[0; 16], &ReplayWindow::new(SIZE, true).save()] {
        assert_eq!(closed_windows(broken), None);
    }
}

/// However many windows there are, a sender that is refused is asked whether it is authentic, and makes none.
#[test]
fn our_own_sender_and_nobody_make_no_window() {
    let mut windows = of_group(1);
    assert_eq!(take(&mut windows, &VpeHeader { sender: 1, ..header(0, 1) }), Ok(()));
    for sender in [0, OWN] {
        let header = VpeHeader { sender, ..header(7, 1) };
        assert_eq!((windows.check(&header), windows.commit(&header)), (Ok(()), Err(DropReason::VpeSender)));
    }
    assert_eq!(windows.each().count(), 1);
    // Nor does one that had windows while the ID was another device's.
    let counters = Arc::new(SaCounters::default());
    let mut other = Windows::of_group(4, SIZE, Senders::new(9, [192, 0, 2, 9].into(), counters));
    assert_eq!(take(&mut other, &VpeHeader { sender: OWN, ..header(7, 1) }), Ok(()));
    let mut windows = of_group(4);
    assert!(windows.restore(&other.save()));
    assert_eq!(take(&mut windows, &VpeHeader { sender: OWN, ..header(7, 2) }), Err(DropReason::VpeSender));
}

/// `docs/VPE.md`: the first number of a window may be any; the number 0 is refused.
#[test]
fn a_window_is_made_by_its_first_packet_whatever_its_number() {
    let mut windows = Windows::new(4, SIZE);
    assert_eq!(take(&mut windows, &header(1, 0)), Err(DropReason::ReplayTooOld));
    assert_eq!(windows.each().count(), 0);
    assert_eq!(take(&mut windows, &header(1, 5000)), Ok(()));
    assert_eq!(take(&mut windows, &header(1, 4999)), Ok(()));
    assert_eq!(take(&mut windows, &header(1, 4000)), Err(DropReason::ReplayTooOld));
    assert_eq!(take(&mut windows, &header(1, 5000)), Err(DropReason::ReplayDuplicate));
    assert_eq!(take(&mut windows, &header(2, 1)), Ok(()), "windows know nothing of one another");
    let tops = windows.each().map(|(id, window)| (id, window.top()));
    assert_eq!(tops.collect::<BTreeMap<_, _>>(), BTreeMap::from([((0, 1), 5000), ((0, 2), 1)]));
}

/// A flood of Window IDs: what is not authentic makes none, and one too many does no harm to the others.
#[test]
fn one_window_too_many_is_refused_without_harm() {
    let mut windows = Windows::new(8, SIZE);
    for window in 0..=u16::MAX {
        assert_eq!(windows.check(&header(window, 1)), Ok(()), "nothing was committed");
    }
    for window in 0..1000 {
        let expected = if window < 8 { Ok(()) } else { Err(DropReason::VpeWindows) };
        // A packet of the same batch may have been checked before the limit was reached.
        assert_eq!(windows.commit(&header(window, 1)), expected);
        assert_eq!(windows.check(&header(window, 2)), expected);
    }
    for window in 0..8 {
        assert_eq!(take(&mut windows, &header(window, 2)), Ok(()));
        assert_eq!(take(&mut windows, &header(window, 1)), Err(DropReason::ReplayDuplicate));
    }
}

#[test]
fn an_authentic_packet_of_another_sender_makes_no_window() {
    let mut windows = Windows::new(8, SIZE);
    let other = VpeHeader { sender: 7, ..header(1, 1) };
    assert_eq!(take(&mut windows, &other), Err(DropReason::VpeSender));
    assert_eq!((windows.each().count(), windows.top()), (0, 0));
}

#[test]
fn the_last_numbers_are_taken_and_nothing_wraps() {
    let mut windows = Windows::new(8, SIZE);
    for number in [u64::MAX - 1, u64::MAX] {
        assert_eq!(take(&mut windows, &header(0, number)), Ok(()));
    }
    for number in [0, 1, u64::MAX - 64] {
        assert_eq!(take(&mut windows, &header(0, number)), Err(DropReason::ReplayTooOld));
    }
    assert_eq!(take(&mut windows, &header(0, u64::MAX)), Err(DropReason::ReplayDuplicate));
    assert_eq!(take(&mut windows, &header(0, u64::MAX - 63)), Ok(()));
    let mut restored = Windows::new(8, SIZE);
    assert!(restored.restore(&windows.save()));
    assert_eq!(take(&mut restored, &header(0, u64::MAX)), Err(DropReason::ReplayDuplicate));
    assert!(restored.restore(&ReplayWindow::closed_up_to(u64::MAX)));
    assert_eq!(take(&mut restored, &header(3, u64::MAX)), Err(DropReason::ReplayTooOld));
}

#[test]
fn bytes_that_are_no_windows_are_refused_unchanged() {
    let mut windows = Windows::new(2, SIZE);
    assert_eq!(take(&mut windows, &header(3, 9)), Ok(()));
    let saved = windows.save();
    for length in 0..saved.len() {
        // Without any of its windows it is whole, too.
        let is_whole = length == FRONT_BYTES + 8;
        assert_eq!(Windows::new(2, SIZE).restore(&saved[..length]), is_whole, "{length} bytes");
    }
    let mut beyond = saved.clone();
    beyond[..8].copy_from_slice(&8_u64.to_le_bytes());
    assert!(!windows.restore(&beyond), "a window is above the highest number");
    assert_eq!(take(&mut windows, &header(3, 9)), Err(DropReason::ReplayDuplicate));
    let mut of_esp = ReplayWindow::new(SIZE, true);
    of_esp.commit(700).unwrap();
    assert!(windows.restore(&of_esp.save()));
    assert_eq!(take(&mut windows, &header(3, 700)), Err(DropReason::ReplayTooOld));
    assert_eq!(take(&mut windows, &header(3, 701)), Ok(()));
}
