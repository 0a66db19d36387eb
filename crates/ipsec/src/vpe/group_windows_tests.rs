//! A group's windows and senders at several workers: against a slow model, on many threads, and by their
//! rules.

use super::super::inbound_windows::SaWindows;
use super::super::senders::Senders;
use super::super::window_model::{Model, SIZE, header};
use super::super::windows::Windows;
use super::*;
use crate::numbers::ReplayWindow;
use crate::sender_counts::HeardSenders;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;
use std::time::Duration;

const OWN: u16 = 3;

fn address(last: u8) -> IpAddr {
    [192, 0, 2, last].into()
}

fn of(sender: u16, window: u16, number: u64) -> VpeHeader {
    VpeHeader { sender, ..header(window, number) }
}

/// Workers of one group: one that owns its windows, or some that share them.
struct Workers {
    windows: Vec<SaWindows>,
    counters: Vec<Arc<SaCounters>>,
}

impl Workers {
    fn new(workers: usize, limit: u32) -> Self {
        let counters: Vec<_> = (0..workers).map(|_| Arc::new(SaCounters::default())).collect();
        let all = Arc::new(SharedWindows::new(SIZE));
        let one = |counters: &Arc<SaCounters>| {
            let ends = (OWN, address(OWN as u8));
            match workers {
                1 => {
                    let senders = Senders::new(ends.0, ends.1, Arc::clone(counters));
                    SaWindows::Owned(Windows::of_group(limit, SIZE, senders))
                }
                _ => {
                    let windows = GroupWindows::new(Arc::clone(&all), limit, ends, Arc::clone(counters));
                    SaWindows::Group(Box::new(windows))
                }
            }
        };
        Self { windows: counters.iter().map(one).collect(), counters }
    }

    /// Takes an authentic packet, as a worker does: checked, and committed later.
    fn take(&mut self, worker: usize, header: &VpeHeader) -> Result<(), DropReason> {
        let at = worker % self.windows.len();
        match &mut self.windows[at] {
            SaWindows::Owned(windows) => windows.check(header).and_then(|()| windows.commit(header)),
            SaWindows::Group(windows) => windows.check(header).and_then(|()| windows.commit_one(header)),
            SaWindows::Shared(_) => unreachable!("they are of a group"),
        }
    }

    /// The same, and hears where it came from. What is new.
    fn hear(&mut self, worker: usize, header: &VpeHeader, from: u8, ms: u64) -> Vec<News> {
        let outcome = self.take(worker, header);
        let now = Moment(Duration::from_millis(ms));
        if matches!(outcome, Ok(()) | Err(DropReason::VpeSender)) {
            match &mut self.windows[worker] {
                SaWindows::Owned(windows) => windows.hear(header, Some(address(from)), now),
                SaWindows::Group(windows) => windows.hear(header, Some(address(from)), now),
                SaWindows::Shared(_) => unreachable!("they are of a group"),
            }
        }
        let mut news = Vec::new();
        self.windows[worker].swap_news(&mut news);
        news
    }

    fn senders(&self) -> Option<HeardSenders> {
        HeardSenders::of(self.counters.iter().filter_map(|counters| counters.senders()))
    }

    /// Each of them installs the SA with the same bytes.
    fn restore(&mut self, bytes: &[u8]) -> bool {
        self.windows.iter_mut().all(|worker| worker.restore(bytes))
    }
}

/// One worker or several, and as many or others after a restart: what is saved is the same.
#[test]
fn windows_of_a_group_at_any_number_of_workers_agree_with_a_slow_model_over_restarts_and_crashes() {
    for seed in 1..=200 {
        let mut random = fastrand::Rng::with_seed(seed);
        let limit = random.u32(1..7);
        let mut workers = Workers::new(random.usize(1..4), limit);
        let mut model = Model { limit: limit as usize, ..Model::default() };
        let mut base = [1_u64; 12];
        for step in 0..2000 {
            let place = random.u16(0..12);
            let next = &mut base[usize::from(place)];
            *next += random.u64(0..4);
            let number = next.saturating_sub(random.u64(0..100)).max(u64::from(random.u8(..) > 3));
            // Three senders, of which one is far from the others, with four windows each.
            let (sender, window) = ([1, 2, 0xFFFF][usize::from(place % 3)], place / 3);
            let got = workers.take(random.usize(..), &of(sender, window, number));
            let expected = model.take((sender, window), number);
            assert_eq!(got, expected, "seed {seed}, step {step}: {sender}, {window}, {number}");
            let refused = of(if random.bool() { 0 } else { OWN }, window, number);
            assert_eq!(workers.take(random.usize(..), &refused), Err(DropReason::VpeSender));
            if random.u32(..300) == 0 {
                let saved = workers.windows[0].save();
                workers = Workers::new(random.usize(1..4), limit);
                assert!(workers.restore(&saved), "seed {seed}");
            }
            if random.u32(..900) == 0 {
                let ceiling = workers.windows[0].top_of_all() + random.u64(0..20);
                workers = Workers::new(random.usize(1..4), limit);
                assert!(workers.restore(&ReplayWindow::closed_up_to(ceiling)));
                model = Model { limit: limit as usize, floor: ceiling, ..Model::default() };
            }
        }
    }
}

/// Packets of more windows of several senders than there may be, each twice, in any order at four threads:
/// each window that is made takes each of its packets once, and every sender is counted once.
#[test]
fn many_threads_take_each_packet_of_each_sender_once() {
    const LIMIT: usize = 24;
    for seed in 1..=20 {
        println!("seed {seed}");
        let all = Arc::new(SharedWindows::new(4096));
        let counters: Vec<_> = (0..4).map(|_| Arc::new(SaCounters::default())).collect();
        let accepted = Mutex::new(Vec::new());
        std::thread::scope(|scope| {
            for thread in 0..4_usize {
                let (all, accepted, counters) = (&all, &accepted, &counters[thread]);
                scope.spawn(move || {
                    let mut random = fastrand::Rng::with_seed(seed << 8 | thread as u64);
                    let ends = (OWN, address(OWN as u8));
                    let mut own =
                        GroupWindows::new(Arc::clone(all), LIMIT as u32, ends, Arc::clone(counters));
                    // Of each packet two of the threads have a copy.
                    let is_own = |number: u64| (number + thread as u64) % 4 < 2;
                    let names = (10..18).flat_map(|sender| (0..5).map(move |window| (sender, window)));
                    let mut packets: Vec<_> = names
                        .flat_map(|name| (1..=100).map(move |number| (name, number)))
                        .filter(|(_, number)| is_own(*number))
                        .collect();
                    random.shuffle(&mut packets);
                    for (name, number) in packets {
                        let header = of(name.0, name.1, number);
                        if own.check(&header).and_then(|()| own.commit_one(&header)).is_ok() {
                            own.hear(&header, Some(address(name.0 as u8)), Moment::default());
                            accepted.lock().unwrap().push((name, number));
                        }
                    }
                    assert!(!own.has_news(), "each sender is at one address");
                });
            }
        });
        let accepted = accepted.into_inner().unwrap();
        let unique: BTreeSet<_> = accepted.iter().copied().collect();
        assert_eq!(unique.len(), accepted.len(), "seed {seed}: something was accepted twice");
        let made: BTreeSet<_> = accepted.iter().map(|(name, _)| *name).collect();
        assert_eq!((made.len(), all.made() as usize), (LIMIT, LIMIT), "seed {seed}");
        assert_eq!(
            accepted.len(),
            LIMIT * 100,
            "seed {seed}: each packet of a window that is there was taken"
        );
        let mut packets = BTreeMap::<u16, u64>::new();
        accepted.iter().for_each(|((sender, _), _)| *packets.entry(*sender).or_default() += 1);
        let heard = HeardSenders::of(counters.iter().filter_map(|counters| counters.senders())).unwrap();
        let shown: BTreeMap<_, _> = heard.shown.iter().map(|of| (of.sender, of.packets)).collect();
        assert_eq!((shown, heard.count, heard.doubles), (packets.clone(), packets.len() as u64, 0));
    }
}

/// `docs/VPE.md`: one Sender ID from two outer addresses within a second is two devices, also where the
/// packets of each come to a worker of their own.
#[test]
fn two_devices_with_one_sender_id_are_noticed_where_each_has_a_worker_of_its_own() {
    let mut both = Workers::new(2, 8);
    assert_eq!(both.hear(0, &of(1, 0, 1), 1, 0), []);
    assert_eq!(both.hear(1, &of(2, 0, 1), 2, 0), [], "another sender is elsewhere");
    assert_eq!(both.hear(1, &of(1, 9, 1), 9, 1001), [], "it has moved");
    let twice = News::Twice { sender: 1, before: address(9), address: address(1) };
    assert_eq!(both.hear(0, &of(1, 0, 2), 1, 1900), [twice]);
    for ms in 0..1000 {
        let (worker, from, window) = if ms % 2 == 0 { (1, 9, 9) } else { (0, 1, 0) };
        assert_eq!(both.hear(worker, &of(1, window, 3 + ms), from, 1900 + ms), [], "told once a minute");
    }
    let heard = both.senders().unwrap();
    assert_eq!((heard.count, heard.doubles), (2, 1001));
    let last = both.hear(1, &of(1, 9, 5000), 9, 62_000);
    assert_eq!(last, [], "it has been silent");
    assert!(matches!(both.hear(0, &of(1, 0, 5000), 1, 62_500)[..], [News::Twice { .. }]), "a minute later");
    // What is not accepted says nothing.
    assert_eq!(both.hear(1, &of(1, 0, 5000), 77, 62_501), []);
    assert_eq!(both.senders().unwrap().doubles, 1002);
}

/// A sender whose packets come to both workers is where its last one came from, and two devices are noticed
/// however many packets are between.
#[test]
fn what_workers_do_not_write_is_known_within_a_sixteenth_of_a_second() {
    for (gap, is_noticed) in [(900, true), (1000, false), (5000, false)] {
        let mut both = Workers::new(2, 8);
        // Most of these find what they would note.
        for ms in 0..3000 {
            assert_eq!(both.hear(ms as usize % 2, &of(1, (ms % 2) as u16, 1 + ms), 1, ms), []);
        }
        let news = both.hear(0, &of(1, 5, 1), 2, 2999 + gap);
        assert_eq!(!news.is_empty(), is_noticed, "{gap} ms");
    }
}

#[test]
fn our_own_id_is_news_at_every_worker_and_told_to_be_taken_once() {
    let mut both = Workers::new(2, 8);
    let own = |from| News::Own { window: 3, number: 9, address: address(from) };
    assert_eq!(both.hear(0, &of(OWN, 3, 9), OWN as u8, 0), [own(OWN as u8)], "sent back to us");
    let twice = News::Twice { sender: OWN, before: address(OWN as u8), address: address(1) };
    assert_eq!(both.hear(1, &of(OWN, 3, 9), 1, 1), [own(1), twice]);
    assert_eq!(both.hear(0, &of(OWN, 3, 9), 1, 2), [own(1)]);
    assert_eq!(both.senders().map(|heard| heard.count), Some(0), "it is none of the others");
    assert_eq!(both.windows[0].top_of_all(), 0);
    assert_eq!([0, 1, 0].map(|worker: usize| both.windows[worker].tell_taken()), [true, false, false]);
}

/// Hostile: a flood of senders at two workers makes no more windows than there may be.
#[test]
fn a_flood_of_senders_at_two_workers_makes_no_more_windows_than_there_may_be() {
    let mut both = Workers::new(2, 8);
    for sender in 10..=u16::MAX {
        let SaWindows::Group(windows) = &both.windows[usize::from(sender % 2)] else { unreachable!() };
        assert_eq!(windows.check(&of(sender, 0, 1)), Ok(()), "nothing was committed");
    }
    for sender in 10..1000 {
        let expected = if sender < 18 { Ok(()) } else { Err(DropReason::VpeWindows) };
        for worker in 0..2 {
            assert_eq!(both.take(worker, &of(sender, 1, 1 + worker as u64)), expected);
        }
    }
    for sender in 10..18 {
        assert_eq!(both.take(0, &of(sender, 1, 3)), Ok(()));
        assert_eq!(both.take(1, &of(sender, 1, 3)), Err(DropReason::ReplayDuplicate));
        assert_eq!(both.take(1, &of(sender, 2, 3)), Err(DropReason::VpeWindows));
    }
}

/// What is saved names senders: windows of two that know each other are none of a group's.
#[test]
fn a_group_refuses_windows_of_two_that_know_each_other() {
    let mut unicast = Windows::new(8, SIZE);
    assert_eq!(unicast.commit(&header(4, 10)), Ok(()));
    let mut both = Workers::new(2, 8);
    assert!(!both.restore(&unicast.save()));
    assert_eq!(both.take(0, &of(1, 4, 10)), Ok(()));
    let saved = both.windows[1].save();
    assert!(!Windows::new(8, SIZE).restore(&saved));
    let mut fewer = Workers::new(2, 1);
    assert!(fewer.restore(&saved));
    assert_eq!(fewer.take(1, &of(1, 4, 10)), Err(DropReason::ReplayDuplicate));
}

#[test]
fn windows_of_a_group_are_told_some_at_a_time_with_their_senders() {
    for workers in [1, 2] {
        let mut all = Workers::new(workers, 1024);
        let packets = (0..300_u16).map(|n| (5 + n % 2, n, u64::from(n) + 1));
        for (sender, window, number) in packets.clone() {
            assert_eq!(all.take(window.into(), &of(sender, window, number)), Ok(()));
        }
        let first = all.windows[0].page(0);
        let second = all.windows[0].page(first.next.expect("there are more"));
        assert_eq!((first.tops.len(), second.tops.len(), second.next), (256, 44, None));
        let tops = first.tops.iter().chain(&second.tops);
        let found: BTreeSet<_> = tops.map(|top| (top.sender, top.window, top.number)).collect();
        assert_eq!(found, packets.collect());
    }
}
