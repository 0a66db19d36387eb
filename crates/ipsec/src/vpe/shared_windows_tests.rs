//! Windows that workers share against a slow model, on many threads, and by their rules.

use super::super::inbound_windows::SaWindows;
use super::super::window_model::{Model, SIZE, header};
use super::*;
use crate::vpe::{WINDOWS_AT_A_TIME, closed_windows, each_run};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;
use testudo_crypto::{Direction, Job, JobStatus};
use testudo_packet::Buffer;

/// The job of a packet, opened if its number may be accepted.
fn checked(((window, number), check): (&(u16, u64), &Result<(), DropReason>)) -> Job {
    let header = [[0, 0], window.to_le_bytes()].concat();
    let status = if check.is_ok() { JobStatus::Done } else { JobStatus::Fault };
    Job { sequence: *number, status, ..Job::new(Buffer::copied(&header, 0, 0), Direction::Open, 0) }
}

/// Workers of one SA: one that owns its windows, or some that share them.
struct Workers(Vec<SaWindows>);

impl Workers {
    fn new(workers: usize, limit: u32) -> Self {
        if workers == 1 {
            return Self(vec![SaWindows::Owned(Windows::new(limit, SIZE))]);
        }
        let all = Arc::new(SharedWindows::new(SIZE));
        let one = || SaWindows::Shared(Box::new(WorkersWindows::new(Arc::clone(&all), limit)));
        Self((0..workers).map(|_| one()).collect())
    }

    /// Takes an authentic packet, as a worker does: checked, and committed later.
    fn take(&mut self, worker: usize, header: &VpeHeader) -> Result<(), DropReason> {
        let at = worker % self.0.len();
        match &mut self.0[at] {
            SaWindows::Owned(windows) => windows.check(header).and_then(|()| windows.commit(header)),
            SaWindows::Shared(windows) => windows.check(header).and_then(|()| windows.commit_one(header)),
            SaWindows::Group(_) => unreachable!("the peer is one host"),
        }
    }

    /// Each of them installs the SA with the same bytes.
    fn restore(&mut self, bytes: &[u8]) -> bool {
        self.0.iter_mut().all(|worker| worker.restore(bytes))
    }
}

/// One worker or several, and as many or others after a restart: what is saved is the same.
#[test]
fn windows_of_any_number_of_workers_agree_with_a_slow_model_over_restarts_and_crashes() {
    for seed in 1..=200 {
        let mut random = fastrand::Rng::with_seed(seed);
        let limit = random.u32(1..6);
        let mut workers = Workers::new(random.usize(1..4), limit);
        let mut model = Model { limit: limit as usize, ..Model::default() };
        let mut base = [1_u64; 8];
        for step in 0..2000 {
            let window = random.u16(0..8);
            let next = &mut base[usize::from(window)];
            *next += random.u64(0..4);
            let number = next.saturating_sub(random.u64(0..100)).max(u64::from(random.u8(..) > 3));
            let got = workers.take(random.usize(..), &header(window, number));
            assert_eq!(got, model.take((0, window), number), "seed {seed}, step {step}: {window}, {number}");
            if random.u32(..300) == 0 {
                let saved = workers.0[0].save();
                workers = Workers::new(random.usize(1..4), limit);
                assert!(workers.restore(&saved), "seed {seed}");
            }
            if random.u32(..900) == 0 {
                let ceiling = workers.0[0].top_of_all() + random.u64(0..20);
                workers = Workers::new(random.usize(1..4), limit);
                assert!(workers.restore(&ReplayWindow::closed_up_to(ceiling)));
                model = Model { limit: limit as usize, floor: ceiling, ..Model::default() };
            }
        }
    }
}

/// Packets of more windows than there may be, each twice, in any order at four threads: each window that is
/// made takes each of its packets once, and nobody any of another.
#[test]
fn many_threads_take_each_packet_once_and_no_window_too_many() {
    const WINDOWS: u16 = 40;
    const LIMIT: usize = 24;
    for seed in 1..=20 {
        println!("seed {seed}");
        let all = Arc::new(SharedWindows::new(4096));
        let accepted = Mutex::new(Vec::new());
        let refused = Mutex::new(BTreeMap::<DropReason, u32>::new());
        std::thread::scope(|scope| {
            for thread in 0..4_u64 {
                let (all, accepted, refused) = (&all, &accepted, &refused);
                scope.spawn(move || {
                    let mut random = fastrand::Rng::with_seed(seed << 8 | thread);
                    let mut own = WorkersWindows::new(Arc::clone(all), LIMIT as u32);
                    // Of each packet two of the threads have a copy. Some come one after the other.
                    let is_own = |number: u64| (number / 5 + thread) % 4 < 2;
                    let mut fives: Vec<Vec<_>> = (0..WINDOWS)
                        .flat_map(|window| (0..20).map(move |five| (window, 1 + 5 * five)))
                        .map(|(window, first)| (first..first + 5).map(move |number| (window, number)))
                        .map(|five| five.filter(|(_, number)| is_own(*number)).collect())
                        .collect();
                    random.shuffle(&mut fives);
                    let packets = fives.concat();
                    let mut packets = packets.as_slice();
                    while !packets.is_empty() {
                        let (batch, rest) = packets.split_at(random.usize(1..30).min(packets.len()));
                        packets = rest;
                        let mut outcomes: Vec<_> = batch
                            .iter()
                            .map(|(window, number)| own.check(&header(*window, *number)))
                            .collect();
                        let jobs: Vec<_> = batch.iter().zip(&outcomes).map(checked).collect();
                        let refused_before = each_run(&jobs, |run| {
                            own.commit(run, |at, reason| outcomes[at] = Err(reason));
                        });
                        assert_eq!(refused_before == 0, jobs.iter().all(|job| job.status == JobStatus::Done));
                        for (packet, outcome) in batch.iter().zip(outcomes) {
                            match outcome {
                                Ok(()) => accepted.lock().unwrap().push(*packet),
                                Err(reason) => *refused.lock().unwrap().entry(reason).or_default() += 1,
                            }
                        }
                    }
                });
            }
        });
        let accepted = accepted.into_inner().unwrap();
        let unique: BTreeSet<_> = accepted.iter().copied().collect();
        assert_eq!(unique.len(), accepted.len(), "seed {seed}: something was accepted twice");
        let made: BTreeSet<u16> = accepted.iter().map(|(window, _)| *window).collect();
        assert_eq!((made.len(), all.made() as usize), (LIMIT, LIMIT), "seed {seed}");
        assert_eq!(
            accepted.len(),
            LIMIT * 100,
            "seed {seed}: each packet of a window that is there was taken"
        );
        assert!(all.tops().eq(made.iter().map(|window| (*window, 100))), "seed {seed}");
        let refused = refused.into_inner().unwrap();
        let others = (usize::from(WINDOWS) - LIMIT) as u32 * 200;
        let expected = [(DropReason::ReplayDuplicate, LIMIT as u32 * 100), (DropReason::VpeWindows, others)];
        assert_eq!(refused, BTreeMap::from(expected), "seed {seed}");
    }
}

/// Hostile: a flood of Window IDs at two workers. What is not authentic makes no window, and one too many
/// does no harm to the others.
#[test]
fn a_flood_of_windows_at_two_workers_makes_no_more_than_there_may_be() {
    let mut both = Workers::new(2, 8);
    for (worker, window) in (0..=u16::MAX).enumerate() {
        let SaWindows::Shared(windows) = &both.0[worker % 2] else { unreachable!("there are two") };
        assert_eq!(windows.check(&header(window, 1)), Ok(()), "nothing was committed");
    }
    for window in 0..1000 {
        let expected = if window < 8 { Ok(()) } else { Err(DropReason::VpeWindows) };
        for worker in 0..2 {
            let SaWindows::Shared(windows) = &mut both.0[worker] else { unreachable!("there are two") };
            // A packet of the same batch may have been checked before the limit was reached.
            let number = 1 + worker as u64;
            assert_eq!(windows.commit_one(&header(window, number)), expected);
            assert_eq!(windows.check(&header(window, 9)), expected);
            assert_eq!(windows.all().made(), 8.min(u32::from(window) + 1));
        }
    }
    for window in 0..8 {
        assert_eq!(both.take(0, &header(window, 3)), Ok(()));
        assert_eq!(both.take(1, &header(window, 3)), Err(DropReason::ReplayDuplicate));
    }
}

#[test]
fn other_senders_and_the_number_0_make_no_window() {
    let mut both = Workers::new(2, 8);
    assert_eq!(both.take(0, &VpeHeader { sender: 7, ..header(1, 1) }), Err(DropReason::VpeSender));
    assert_eq!(both.take(1, &header(1, 0)), Err(DropReason::ReplayTooOld));
    let SaWindows::Shared(windows) = &both.0[0] else { unreachable!("there are two") };
    assert_eq!((windows.all().made(), windows.all().top()), (0, 0));
}

/// The peer's numbers are moved on while windows are there, and while another worker makes one.
#[test]
fn numbers_that_are_closed_later_are_refused_in_every_window() {
    let mut both = Workers::new(2, 8);
    assert_eq!(both.take(0, &header(1, 5)), Ok(()));
    assert!(both.0[1].restore(&ReplayWindow::closed_up_to(1000)));
    for worker in 0..2 {
        assert_eq!(both.take(worker, &header(1, 6)), Err(DropReason::ReplayTooOld));
        assert_eq!(both.take(worker, &header(1, 1000)), Err(DropReason::ReplayDuplicate));
        assert_eq!(both.take(worker, &header(2, 1000)), Err(DropReason::ReplayTooOld));
        assert_eq!(both.take(worker, &header(worker as u16, 1001)), Ok(()));
    }
    let mut one = Workers::new(1, 8);
    assert!(one.restore(&both.0[0].save()));
    assert_eq!(one.take(0, &header(1, 1000)), Err(DropReason::ReplayDuplicate));
    assert_eq!(one.take(0, &header(1, 1002)), Ok(()));
}

/// In the order in which windows came: each has its place, whatever comes while they are told.
#[test]
fn windows_are_told_some_at_a_time_and_each_once() {
    for workers in [1, 2] {
        let mut all = Workers::new(workers, 1024);
        for n in 0..600_u16 {
            let window = n * 7 % 600;
            assert_eq!(all.take(n.into(), &header(window, 1 + u64::from(window))), Ok(()));
        }
        let (mut tops, mut next) = (BTreeMap::new(), Some(0));
        while let Some(from) = next {
            let page = all.0[0].page(from);
            assert!(page.tops.len() <= WINDOWS_AT_A_TIME);
            for WindowTop { sender, window, number } in page.tops {
                assert_eq!((sender, tops.insert(window, number)), (0, None), "{window} once");
            }
            if from == 0 {
                assert_eq!(all.take(1, &header(700, 9)), Ok(()));
            }
            next = page.next;
        }
        let expected = (0..600_u16).map(|window| (window, 1 + u64::from(window)));
        assert!(tops.into_iter().eq(expected.chain([(700, 9)])));
        assert_eq!(all.0[0].page(usize::MAX), WindowsPage::default());
    }
}

/// Of an SA that goes: no more is collected than there is room for, and nothing is received again.
#[test]
fn windows_are_saved_in_as_many_bytes_as_there_is_room_for() {
    for workers in [1, 2] {
        let mut all = Workers::new(workers, 8);
        assert!(all.restore(&ReplayWindow::closed_up_to(3)));
        for (worker, (window, number)) in [(1, 5000), (2, 40), (2, 38), (5, 700)].into_iter().enumerate() {
            assert_eq!(all.take(worker, &header(window, number)), Ok(()));
        }
        let whole = all.0[0].save();
        let each = closed_windows(&whole).expect("they are of VPE");
        let of_any = ReplayWindow::closed_up_to(5000);
        assert_eq!((whole.len(), each.len()), (24 + 3 * 40, 24 + 3 * 24));
        let within = |most: usize| all.0[0].save_within(most);
        assert_eq!([within(usize::MAX), within(whole.len())], [whole.clone(), whole.clone()]);
        assert_eq!([within(whole.len() - 1), within(each.len())], [each.clone(), each.clone()]);
        assert_eq!([within(each.len() - 1), within(0)], [of_any.to_vec(), of_any.to_vec()]);
    }
}

#[test]
fn bytes_that_are_no_windows_are_refused_unchanged() {
    let mut both = Workers::new(2, 2);
    assert_eq!(both.take(0, &header(3, 9)), Ok(()));
    let mut beyond = both.0[0].save();
    beyond[..8].copy_from_slice(&8_u64.to_le_bytes());
    assert!(!both.restore(&beyond) && !both.restore(&[]), "a window is above the highest number");
    assert_eq!(both.take(1, &header(3, 9)), Err(DropReason::ReplayDuplicate));
    assert_eq!(both.take(1, &header(3, 10)), Ok(()));
}

/// As one worker keeps [its own](super::super::windows).
#[test]
fn saved_windows_stay_where_several_workers_may_have_fewer() {
    let mut many = Workers::new(2, 8);
    for window in 0..5 {
        assert_eq!(many.take(0, &header(window, 10)), Ok(()));
    }
    let mut few = Workers::new(2, 2);
    assert!(few.restore(&many.0[0].save()));
    for window in 0..5 {
        assert_eq!(few.take(1, &header(window, 10)), Err(DropReason::ReplayDuplicate));
        assert_eq!(few.take(0, &header(window, 11)), Ok(()));
    }
    for worker in 0..2 {
        assert_eq!(few.take(worker, &header(5, 11)), Err(DropReason::VpeWindows));
    }
    assert!(Workers::new(2, 1).restore(&few.0[0].save()), "again");
}
