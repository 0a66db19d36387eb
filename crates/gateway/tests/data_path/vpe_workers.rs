//! VPE at several workers (`docs/VPE.md`): each sends in windows of its own, and any opens what comes.

use crate::support::gateway::{PoolSize, portable};
use crate::support::{Gateway, LeaseTwin, Side, TunnelSpec};
use crate::vpe::{from_a, header, header_of, inner, of_flow, spec, with};
use crate::workers::{install_at, run};
use std::collections::{BTreeMap, BTreeSet};
use testudo_crypto::Direction;
use testudo_gateway::{Commander, SaChange, SaChanged, TunnelInstall, Update, UpdateError, UseFrom};
use testudo_ipsec::{
    InstallError, Lifetime, Limits, NumberSource, ReplayWindow, SaCounters, SaRef, SaState, TunnelParameters,
    VpeClasses, VpeRules, WindowTop, WindowsFrom, closed_windows,
};
use testudo_packet::DropReason;

/// Gateways that are workers of one, each with ports of its own.
fn gateways<const N: usize>(side: Side) -> [Gateway; N] {
    [(); N].map(|()| Gateway::new(spec().policies(side), PoolSize(512, 2048), portable()))
}

fn tunnel(side: Side, spec: &TunnelSpec) -> TunnelInstall {
    spec.install(side, &mut LeaseTwin::new(1 << 40), None)
}

/// Windows and numbers of what was sent, of which no window has one twice.
fn sent_in(seen: &mut BTreeSet<(u16, u64)>, datagrams: &[Vec<u8>]) -> BTreeSet<u16> {
    let sent: Vec<_> = datagrams.iter().map(|sent| header_of(sent)).collect();
    for header in &sent {
        assert!(seen.insert((header.window, header.number)), "{header:?} is sent twice");
    }
    sent.iter().map(|header| header.window).collect()
}

/// The highest number of each window among those that were saved.
fn tops_of(saved: &[u8]) -> BTreeMap<u16, u64> {
    let kept = closed_windows(saved).expect("they are of VPE");
    // Behind the front each has Sender ID, Window ID, length, highest number, and nothing.
    let window = |row: &[u8]| u16::from_le_bytes([row[2], row[3]]);
    let number = |row: &[u8]| u64::from_le_bytes(*row[8..].first_chunk().expect("a number"));
    kept[24..].chunks(24).map(|row| (window(row), number(row))).collect()
}

/// Each worker has its slots, and numbers them from 1 on whatever the others do: nobody waits, not even for
/// one whose port is full, though the peer's window is narrow.
#[test]
fn workers_send_in_windows_of_their_own_and_wait_for_nobody() {
    let classes = VpeClasses::of_sets([&[46][..]]);
    let rules = VpeRules::default().with_slots(classes, 0, 8).expect("16 windows");
    let spec = TunnelSpec { window: 64, ..with(rules) };
    let (mut all, installed) = install_at(gateways::<3>(Side::A), tunnel(Side::A, &spec));
    let mut b = Gateway::with_tunnels(Side::B, std::slice::from_ref(&spec));
    all[0].unprotected.set_room(Some(0));
    let packets = |n: u16| [of_flow(1000 + n % 50, 0), of_flow(1000 + n % 50, 46)];
    for n in 0..400 {
        for gateway in &mut all {
            packets(n).into_iter().for_each(|packet| gateway.protected.push(packet));
            gateway.turn();
            assert!(!gateway.worker.waits_for_numbers());
        }
    }
    all[0].unprotected.set_room(None);
    let mut seen = BTreeSet::new();
    for (worker, gateway) in all.iter_mut().enumerate() {
        gateway.settle();
        let datagrams = gateway.unprotected.take();
        assert_eq!(datagrams.len(), 800);
        let windows = sent_in(&mut seen, &datagrams);
        assert!(windows.iter().all(|window| usize::from(window / 16) == worker), "{worker}: {windows:?}");
        assert!(windows.len() > 8, "{windows:?}");
        let opened: usize = datagrams.into_iter().map(|datagram| b.open(datagram).len()).sum();
        assert_eq!(opened, 800);
    }
    let mut next = BTreeMap::<u16, u64>::new();
    for (window, number) in seen {
        let expected = next.entry(window).or_insert(1);
        assert_eq!(number, *expected, "window {window} counts from 1 without a gap");
        *expected += 1;
    }
    let counters = &installed.outbound.counters;
    let each: Vec<_> = counters.each().map(SaCounters::packets).collect();
    assert_eq!((each, counters.packets()), (vec![800; 3], 2400));
    // Others see them within a second.
    assert_eq!(counters.windows(true), None);
    for gateway in &mut all {
        let now = gateway.now();
        gateway.worker.tick(now);
    }
    let windows = counters.windows(true).expect("it is of VPE");
    let top = |(window, next): (&u16, &u64)| WindowTop { sender: 0, window: *window, number: next - 1 };
    let tops: Vec<_> = next.iter().map(top).collect();
    assert_eq!((windows.count, windows.most, windows.tops), (next.len() as u64, 3 * 16, tops));
    all.iter().for_each(Gateway::assert_settled);
}

/// All windows of an SA with their highest numbers, asked for some at a time.
fn windows_of(commander: &Commander, sa: SaRef, is_outbound: bool) -> BTreeMap<u16, u64> {
    let (mut tops, mut next) = (BTreeMap::new(), Some(0));
    while let Some(from) = next {
        let page = commander.windows_from(WindowsFrom { sa, is_outbound, from }).expect("they answer");
        let page = page.expect("there is such an SA");
        for WindowTop { window, number, .. } in page.tops {
            assert_eq!(tops.insert(window, number), None, "{window} once");
        }
        next = page.next;
    }
    tops
}

/// However many more there are than reports have.
#[test]
fn all_windows_of_an_sa_are_told_by_running_workers() {
    let (mut b, of_b) = install_at(gateways::<2>(Side::B), tunnel(Side::B, &spec()));
    for window in 0..300 {
        let opened = b[usize::from(window) % 2].open(from_a(header(window, 7), &inner(100)));
        assert_eq!(opened.len(), 1, "{window}");
    }
    run(b.map(|gateway| gateway.worker).into(), |commander| {
        let tops = windows_of(commander, of_b.inbound.sa, false);
        assert!(tops.into_iter().eq((0..300).map(|window| (window, 7))));
    });

    let (mut a, of_a) = install_at(gateways::<2>(Side::A), tunnel(Side::A, &spec()));
    let mut sent = BTreeMap::new();
    for n in 0..80 {
        for datagram in a[usize::from(n) % 2].seal(of_flow(1000 + n, 0)) {
            let header = header_of(&datagram);
            sent.insert(header.window, header.number);
        }
    }
    run(a.map(|gateway| gateway.worker).into(), |commander| {
        assert_eq!(windows_of(commander, of_a.outbound.sa, true), sent);
        assert_eq!(windows_of(commander, of_a.inbound.sa, false), BTreeMap::new());
    });
    assert!(sent.len() > 8, "in windows of both: {sent:?}");
}

/// Over leases that are small and come late, and a restart after a crash.
#[test]
fn no_window_repeats_a_number_over_small_leases_and_a_crash() {
    let (mut seen, mut store) = (BTreeSet::new(), LeaseTwin::new(40));
    let mut unsent = 0;
    for _ in 0..3 {
        let install = spec().install(Side::A, &mut store, None);
        let (mut all, _) = install_at(gateways::<2>(Side::A), install);
        for round in 0..60 {
            for gateway in &mut all {
                (0..50).for_each(|n| gateway.protected.push(of_flow(1000 + n % 3, 0)));
                gateway.settle();
                sent_in(&mut seen, &gateway.unprotected.take());
            }
            // Later at times than the workers wish.
            if round % 3 == 0 {
                store.serve();
            }
        }
        unsent += all.iter().map(|gateway| gateway.drops(DropReason::SequenceNotLeased)).sum::<u64>();
        // It crashes: the store knows what is granted, and no more.
        std::mem::forget(all);
    }
    assert_eq!(seen.len() as u64 + unsent, 3 * 60 * 2 * 50);
    assert!(unsent > 0 && seen.len() > 1000, "{} sent, {unsent} not", seen.len());
}

#[test]
fn a_replay_is_refused_whichever_worker_has_it() {
    let mut peer = Gateway::with_tunnels(Side::A, &[spec()]);
    let sealed: Vec<_> = (0..300).flat_map(|n| peer.seal(of_flow(1000 + n % 40, 0))).collect();
    let (mut all, installed) = install_at(gateways::<2>(Side::B), tunnel(Side::B, &spec()));
    for (n, datagram) in sealed.iter().enumerate() {
        let worker = usize::from(n % 3 == 0);
        assert_eq!(all[worker].open(datagram.clone()).len(), 1, "{n}");
        // At once, to either of them.
        assert!(all[n % 2].open(datagram.clone()).is_empty(), "{n}");
    }
    // All of it again, to the other one, in bursts of packets of any window.
    for (n, datagram) in sealed.iter().enumerate() {
        all[usize::from(n % 3 != 0)].unprotected.push(datagram.clone());
    }
    for gateway in &mut all {
        gateway.settle();
        assert_eq!(gateway.protected.take(), [[0_u8; 0]; 0]);
    }
    let replays = |gateway: &Gateway| gateway.drops(DropReason::ReplayDuplicate);
    assert_eq!(all.iter().map(replays).sum::<u64>(), 600);
    let counters = &installed.inbound.counters;
    let each: Vec<_> = counters.each().map(SaCounters::packets).collect();
    assert_eq!((each, counters.packets()), (vec![200, 100], 300));
    let highest = sealed.iter().map(|datagram| header_of(datagram).number).max();
    assert_eq!(Some(counters.sequence()), highest);
    let mut tops = BTreeMap::<u16, u64>::new();
    for header in sealed.iter().map(|datagram| header_of(datagram)) {
        let top = tops.entry(header.window).or_default();
        *top = header.number.max(*top);
    }
    let now = all[0].now();
    all[0].worker.tick(now);
    let windows = counters.windows(false).expect("it is of VPE");
    assert_eq!((windows.count, windows.most), (tops.len() as u64, 1024));
    assert!(windows.tops.into_iter().map(|top| (top.window, top.number)).eq(tops));
    // What is saved of it is what both have received, for as many workers or for one.
    let windows = all.each_ref().map(|gateway| gateway.worker.save_window(installed.inbound.sa));
    assert_eq!(windows[0], windows[1]);
    let install = || spec().install(Side::B, &mut LeaseTwin::new(1 << 40), windows[0].clone());
    let (mut again, _) = install_at(gateways::<2>(Side::B), install());
    let mut alone = Gateway::new(spec().policies(Side::B), PoolSize(512, 2048), portable());
    alone.install(install());
    for datagram in &sealed {
        assert!(again[1].open(datagram.clone()).is_empty());
        assert!(alone.open(datagram.clone()).is_empty());
    }
    let next =
        |gateway: &mut Gateway, peer: &mut Gateway| gateway.open(peer.seal(of_flow(1000, 0)).remove(0));
    assert_eq!((next(&mut again[0], &mut peer).len(), next(&mut alone, &mut peer).len()), (1, 1));
}

/// Bursts in which windows alternate, some packets are forged, some come twice, and some are of windows
/// beyond the limit, at two workers at once: each is judged as it is alone.
#[test]
fn a_flood_of_windows_at_two_workers_stays_within_the_limit() {
    let spec = with(VpeRules::default().with_windows_max(4));
    let (mut all, _) = install_at(gateways::<2>(Side::B), tunnel(Side::B, &spec));
    let packet = inner(60);
    for window in 0..4 {
        assert_eq!(all[usize::from(window % 2)].open(from_a(header(window, 1), &packet)).len(), 1);
    }
    for number in 2..50 {
        let window = (number % 4) as u16;
        let good = from_a(header(window, number), &packet);
        let mut forged = from_a(header(window, number + 1000), &packet);
        forged[60] ^= 1;
        let flood = from_a(header(100 + window + number as u16, 1), &packet);
        let burst = [forged, good.clone(), flood, good, from_a(header(window, 0), &packet)];
        for gateway in &mut all {
            burst.iter().for_each(|datagram| gateway.unprotected.push(datagram.clone()));
        }
        all.iter_mut().for_each(Gateway::settle);
        let passed: Vec<_> = all.iter().flat_map(|gateway| gateway.protected.take()).collect();
        assert_eq!(passed, std::slice::from_ref(&packet), "{number}");
    }
    let drops = |reason| all.iter().map(|gateway| gateway.drops(reason)).sum::<u64>();
    let counted = [
        (DropReason::AuthenticationFailed, 96),
        (DropReason::ReplayDuplicate, 48 * 3),
        (DropReason::ReplayTooOld, 96),
        (DropReason::VpeWindows, 96),
    ];
    for (reason, packets) in counted {
        assert_eq!(drops(reason), packets, "{reason:?}");
    }
    all.iter().for_each(Gateway::assert_settled);
}

#[test]
fn a_limit_counts_what_all_workers_have_sent_and_received() {
    let hard = Limits { packets: Some(100), ..Limits::default() };
    let limited = TunnelSpec { lifetime: Lifetime { hard, ..Lifetime::default() }, ..spec() };
    let (mut all, installed) = install_at(gateways::<2>(Side::A), tunnel(Side::A, &limited));
    let sent: Vec<_> = (0..200).flat_map(|n| all[n % 2].seal(of_flow(1000 + n as u16, 0))).collect();
    let counters = &installed.outbound.counters;
    assert_eq!((sent.len(), counters.packets(), counters.state()), (100, 100, SaState::Expired));

    let half = Limits { packets: Some(60), ..Limits::default() };
    let limited = TunnelSpec { lifetime: Lifetime { hard: half, ..Lifetime::default() }, ..spec() };
    let (mut all, installed) = install_at(gateways::<2>(Side::B), tunnel(Side::B, &limited));
    let opened: usize = sent.into_iter().enumerate().map(|(n, sent)| all[n % 2].open(sent).len()).sum();
    let counters = &installed.inbound.counters;
    assert_eq!((opened, counters.packets(), counters.state()), (60, 60, SaState::Expired));
}

/// SAs that are added one by one while workers run; numbers are moved on in the windows of each of them, and
/// what an SA leaves when it is removed says how far all of them were.
#[test]
fn sas_are_added_moved_on_and_removed_at_all_workers() {
    let index = spec().index();
    let of = |side| gateways::<2>(side);
    let parameters = |side| Box::new(TunnelParameters { acquires: false, ..spec().parameters(side) });
    let a = of(Side::A);
    let ports = a.each_ref().map(|gateway| (gateway.protected.clone(), gateway.unprotected.clone()));
    let send = |commander: &Commander| {
        for (protected, _) in &ports {
            (0..20).for_each(|flow| protected.push(of_flow(1000 + flow, 0)));
        }
        while ports.iter().any(|(protected, sent)| protected.arriving() > 0 || sent.departed() < 20) {
            drop(commander.save_windows(Vec::new()).expect("they answer"));
        }
        ports.each_ref().map(|(_, sent)| sent.take())
    };
    let (_, [before, after]) = run(a.map(|gateway| gateway.worker).into(), |commander| {
        let mut outbound = spec().outbound(Side::A, &mut LeaseTwin::new(1 << 40));
        outbound.parameters.numbers = NumberSource::Ephemeral;
        let spi = outbound.parameters.sa.spi;
        let add = SaChange::AddOutbound(index, Box::new(outbound), UseFrom::Now);
        let added = commander.change_sas(vec![SaChange::AddTunnel(index, parameters(Side::A)), add]);
        assert!(added.expect("they answer").iter().all(Result::is_ok));
        let before = send(commander);
        let advance = |to| vec![SaChange::Advance(index, Direction::Seal, spi, to)];
        assert!(commander.change_sas(advance(70_000)).expect("they answer")[0].is_ok());
        let after = send(commander);
        assert!(commander.change_sas(advance(5)).expect("they answer")[0].is_err(), "it is further on");
        [before, after]
    });
    let mut seen = BTreeSet::new();
    for (worker, (before, after)) in before.iter().zip(&after).enumerate() {
        let windows: BTreeSet<u16> =
            [before, after].into_iter().flat_map(|sent| sent_in(&mut seen, sent)).collect();
        assert!(windows.iter().all(|window| usize::from(window / 8) == worker), "{windows:?}");
        assert!(before.iter().all(|sent| header_of(sent).number <= 20));
        assert!(after.iter().all(|sent| header_of(sent).number > 70_000));
    }

    let b = of(Side::B);
    let ports = b.each_ref().map(|gateway| (gateway.unprotected.clone(), gateway.protected.clone()));
    run(b.map(|gateway| gateway.worker).into(), |commander| {
        let add = SaChange::AddInbound(index, Box::new(spec().inbound(Side::B)));
        let added = commander.change_sas(vec![SaChange::AddTunnel(index, parameters(Side::B)), add]);
        assert!(added.expect("they answer").iter().all(Result::is_ok));
        for ((arriving, passed), sent) in ports.iter().zip(&after) {
            sent.iter().for_each(|datagram| arriving.push(datagram.clone()));
            while passed.departed() < sent.len() {
                drop(commander.save_windows(Vec::new()).expect("they answer"));
            }
        }
        let spi = spec().spi_from(Side::A);
        let removed =
            commander.change_sas(vec![SaChange::RemoveInbound(index, spi)]).expect("they answer").remove(0);
        let Ok(SaChanged::Removed(Some(window))) = removed else { panic!("{removed:?}") };
        let highest = after.iter().flatten().map(|sent| header_of(sent).number).max();
        assert_eq!(Some(window.top()), highest);
        let mut highest = BTreeMap::<u16, u64>::new();
        for header in after.iter().flatten().map(|sent| header_of(sent)) {
            let top = highest.entry(header.window).or_default();
            *top = header.number.max(*top);
        }
        assert_eq!(
            tops_of(&window.save_within(usize::MAX)),
            highest,
            "each by itself, whoever had its packets"
        );
    });
}

/// What is saved while packets come is ahead of all windows, and these may take half a gigabyte.
#[test]
fn running_workers_collect_no_more_of_windows_than_the_highest_number() {
    fn saved_by<const N: usize>() -> [Vec<u8>; 2] {
        let (mut b, of_b) = install_at(gateways::<N>(Side::B), tunnel(Side::B, &spec()));
        for (n, (window, number)) in [(1, 7), (300, 5000), (2, 90)].into_iter().enumerate() {
            assert_eq!(b[n % N].open(from_a(header(window, number), &inner(100))).len(), 1);
        }
        let sa = of_b.inbound.sa;
        let (workers, saved) = run(b.map(|gateway| gateway.worker).into(), |commander| {
            commander.save_windows(vec![sa]).expect("they answer").remove(0).1
        });
        [saved, workers[0].save_window(sa).expect("it has the SA")]
    }
    for [saved, whole] in [saved_by::<1>(), saved_by::<2>()] {
        assert_eq!(saved, ReplayWindow::closed_up_to(5000));
        assert_eq!(tops_of(&whole), BTreeMap::from([(1, 7), (2, 90), (300, 5000)]));
    }
}

/// A tunnel that a reload changes has all its windows as of that moment, and those alone: at several workers
/// they are taken from what all have removed.
#[test]
fn a_tunnel_that_is_changed_at_several_workers_keeps_its_windows() {
    let (mut b, of_b) = install_at(gateways::<2>(Side::B), tunnel(Side::B, &spec()));
    for (n, (window, number)) in [(3, 9), (7, 5000), (3, 5), (8, 1)].into_iter().enumerate() {
        assert_eq!(b[n % 2].open(from_a(header(window, number), &inner(100))).len(), 1);
    }
    run(b.map(|gateway| gateway.worker).into(), |commander| {
        let mut install = tunnel(Side::B, &spec());
        install.inbound.inherits = Some(of_b.inbound.sa);
        let update = Update { remove: vec![install.index], install: vec![install], ..Update::default() };
        let (_, outcome) = commander.update(update).expect("they answer").remove(0);
        let again = outcome.expect("there is room");
        let expected = BTreeMap::from([(3, 9), (7, 5000), (8, 1)]);
        assert_eq!(windows_of(commander, again.inbound.sa, false), expected);
    });
}

/// Configuration does not let it come so far; the worker refuses it all the same.
#[test]
fn more_windows_than_window_ids_at_all_workers_are_refused() {
    let rules = VpeRules::default().with_slots(VpeClasses::default(), 0, 40_000).expect("40,000 windows");
    let wide = with(rules);
    let workers = gateways::<2>(Side::A).map(|gateway| gateway.worker);
    run(workers.into(), |commander| {
        let update = Update { install: vec![tunnel(Side::A, &wide)], ..Update::default() };
        let (_, outcome) = commander.update(update).expect("they answer").remove(0);
        let error = UpdateError::Install(InstallError::TooManyWindows {
            tunnel: wide.parameters(Side::A).name,
            source: rules.of_worker(1).expect_err("they are too many"),
        });
        assert_eq!(outcome.expect_err("the second worker refuses it"), error);
    });
}
