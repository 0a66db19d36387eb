//! Several workers that get the same commands.

use crate::support::gateway::{PoolSize, portable};
use crate::support::{Gateway, Inner, LeaseTwin, PortHandle, Side, TunnelSpec};
use std::collections::BTreeSet;
use std::time::Duration;
use testudo_crypto::{Direction, Suite};
use testudo_gateway::{
    Commander, Installed, PlacementError, SaChange, SaChanged, SystemClock, TunnelInstall, Update,
    UpdateError, UseFrom, Worker, serve,
};
use testudo_ipsec::{
    Event, EventKind, LearnedFrom, Lifetime, Limits, Moment, NumberSource, PacketRules, PolicyChange,
    Position, Reordered, SaCounters, SaState, Spent, TunnelParameters,
};
use testudo_packet::{BATCH_SIZE, DropReason};

fn spec(number: u8) -> TunnelSpec {
    TunnelSpec::new(number, Suite::AES128GCM16)
}

/// A worker without tunnels or policies.
fn worker() -> Worker {
    Gateway::new(Vec::new(), PoolSize(16, 2048), portable()).worker
}

/// Runs the workers while `work` commands them; they come back in their order.
pub(crate) fn run<R>(workers: Vec<Worker>, work: impl FnOnce(&Commander) -> R) -> (Vec<Worker>, R) {
    let (commander, inboxes) = Commander::channels(workers.len()).expect("file descriptors");
    let start = |(mut worker, inbox)| {
        std::thread::spawn(move || {
            serve(&mut worker, &inbox, &SystemClock::default(), &mut |_| {}).expect("ports do not fail");
            worker
        })
    };
    let threads: Vec<_> = workers.into_iter().zip(inboxes).map(start).collect();
    let result = work(&commander);
    commander.stop().expect("they take commands");
    (threads.into_iter().map(|thread| thread.join().expect("it ends")).collect(), result)
}

fn install(store: &mut LeaseTwin, number: u8) -> Update {
    Update { install: vec![spec(number).install(Side::A, store, None)], ..Update::default() }
}

#[test]
fn all_workers_make_each_change_and_answer_as_one() {
    let mut store = LeaseTwin::new(1 << 40);
    let policies = spec(1).policies(Side::A);
    let count = policies.len();
    let (workers, sas) = run(vec![worker(), worker(), worker()], |commander| {
        let insert = policies.into_iter().map(|policy| PolicyChange::Insert(Position::Last, policy));
        let inserted = commander.change_policies(insert.collect()).expect("they answer");
        assert!(inserted.iter().all(Result::is_ok));
        let mut sas = Vec::new();
        for number in [0, 1] {
            let (_, outcome) = commander.update(install(&mut store, number)).expect("they answer").remove(0);
            sas.push(outcome.expect("there is room"));
        }
        // The second tunnel has the place of the first one's SAs in no worker.
        let remove = Update { remove: vec![spec(0).index()], ..Update::default() };
        assert!(commander.update(remove).expect("they answer").is_empty());
        assert_eq!(commander.save_windows(vec![sas[0].inbound.sa]).expect("they answer").len(), 0);
        assert_eq!(commander.save_windows(vec![sas[1].inbound.sa]).expect("they answer").len(), 1);
        sas
    });
    let installed = &sas[1];
    for counters in [&installed.outbound.counters, &installed.inbound.counters] {
        assert_eq!((counters.each().count(), counters.packets()), (3, 0));
    }
    assert!(installed.outbound.counters.is_in_use() && !installed.inbound.counters.is_in_use());
    for worker in &workers {
        assert_eq!(worker.inbound_sas(spec(1).index()).collect::<Vec<_>>(), [installed.inbound.sa]);
        assert_eq!(worker.inbound_sas(spec(0).index()).count(), 0);
        assert_eq!(worker.policies().len(), count);
    }
}

/// Otherwise a tunnel would pass some flows, and the handles of workers would differ from then on.
#[test]
fn a_change_that_one_worker_refuses_is_made_by_none() {
    let mut store = LeaseTwin::new(1 << 40);
    let ports = Gateway::new(Vec::new(), PoolSize(16, 2048), Vec::new()).worker;
    let (workers, ()) = run(vec![worker(), ports], |commander| {
        let (_, outcome) = commander.update(install(&mut store, 0)).expect("they answer").remove(0);
        let refused = matches!(outcome, Err(UpdateError::Placement { source: PlacementError::Empty, .. }));
        assert!(refused, "it has no engine");
        let parameters = Box::new(spec(0).parameters(Side::A));
        let add = SaChange::AddTunnel(spec(0).index(), parameters);
        let inbound = SaChange::AddInbound(spec(0).index(), Box::new(spec(0).inbound(Side::A)));
        let outcome = commander.change_sas(vec![add, inbound]).expect("they answer");
        assert!(outcome[0].is_ok() && outcome[1].is_err(), "{outcome:?}");
    });
    for worker in &workers {
        assert_eq!(worker.inbound_sas(spec(0).index()).count(), 0);
    }
}

/// Packets wait at the first worker for an SA that the second one refuses. Had it sent them before that, who
/// adds the SA again would begin with the same numbers.
#[test]
fn no_worker_sends_through_an_sa_before_all_have_it() {
    let add = |number: u8| {
        let mut outbound = spec(number).outbound(Side::A, &mut LeaseTwin::new(1 << 40));
        outbound.parameters.numbers = NumberSource::Ephemeral;
        vec![SaChange::AddOutbound(spec(number).index(), Box::new(outbound), UseFrom::Now)]
    };
    let tunnel = |number: u8| {
        let parameters = TunnelParameters { acquires: true, ..spec(number).parameters(Side::A) };
        SaChange::AddTunnel(spec(number).index(), Box::new(parameters))
    };
    for refuses in [true, false] {
        let first = Gateway::new(spec(0).policies(Side::A), PoolSize(512, 2048), portable());
        let (protected, sent) = (first.protected.clone(), first.unprotected.clone());
        let engines = if refuses { Vec::new() } else { portable() };
        let second = Gateway::new(spec(0).policies(Side::A), PoolSize(16, 2048), engines);
        run(vec![first.worker, second.worker], |commander| {
            let turn = || drop(commander.save_windows(Vec::new()).expect("they answer"));
            assert!(commander.change_sas(vec![tunnel(0)]).expect("they answer")[0].is_ok());
            (0..5).for_each(|_| protected.push(Inner::udp("10.0.0.1", "172.16.0.2", 100).bytes()));
            while protected.arriving() > 0 {
                turn();
            }
            let outcome = commander.change_sas(add(0)).expect("they answer");
            assert_eq!(outcome[0].is_err(), refuses, "{outcome:?}");
            while !refuses && sent.departed() < 5 {
                turn();
            }
        });
        assert_eq!(sent.departed(), if refuses { 0 } else { 5 });
    }
}

/// The second worker may refuse an SA that waits for the peer's use of its key, while the first one has a
/// packet of the peer's. Had that one waited for it already, it would have sent through an SA that was taken
/// back.
#[test]
fn no_worker_waits_for_the_peers_use_before_all_have_the_sa() {
    for refuses in [true, false] {
        let tunnel = spec(0);
        let mut peer = Gateway::with_tunnels(Side::B, std::slice::from_ref(&tunnel));
        let all = [(); 2].map(|()| gateways::<1>(Side::A, &PortHandle::default())).map(|[gateway]| gateway);
        let install = tunnel.install(Side::A, &mut LeaseTwin::new(1 << 40), None);
        let ([first, mut second], installed) = install_at(all, install);
        let outbound = || {
            let mut outbound = tunnel.outbound(Side::A, &mut LeaseTwin::new(1 << 40));
            outbound.parameters.sa.spi = 0x7777;
            Box::new(outbound)
        };
        if refuses {
            let same = SaChange::AddOutbound(tunnel.index(), outbound(), UseFrom::Later);
            second.worker.change_sa(same, Moment::default()).expect("there is room");
        }
        let (unprotected, delivered) = (first.unprotected.clone(), first.protected.clone());
        let mut use_key = || {
            let sealed = peer.seal(Inner::udp("172.16.0.2", "10.0.0.1", 100).bytes());
            sealed.into_iter().for_each(|datagram| unprotected.push(datagram));
        };
        let is_in_use = |counters: &SaCounters| counters.is_in_use();
        let (_, [is_new_used, is_old_used]) = run(vec![first.worker, second.worker], |commander| {
            let arrive = |count: usize| {
                while delivered.departed() < count {
                    commander.save_windows(Vec::new()).expect("they answer");
                }
            };
            assert_eq!(commander.settle(0, Duration::from_secs(60)), Ok(true));
            use_key();
            let from = UseFrom::PeersUseOf(tunnel.spi_from(Side::B));
            let add = SaChange::AddOutbound(tunnel.index(), outbound(), from);
            let outcome = commander.change_sas(vec![add]).expect("they answer").remove(0);
            assert_eq!(outcome.is_err(), refuses, "{outcome:?}");
            arrive(1);
            use_key();
            arrive(2);
            let new = match &outcome {
                Ok(SaChanged::Added(added)) => added.counters.each().next().is_some_and(is_in_use),
                _ => false,
            };
            [new, installed.outbound.counters.each().next().is_some_and(is_in_use)]
        });
        assert_eq!((is_new_used, is_old_used), (!refuses, refuses), "what both have");
    }
}

#[test]
fn a_worker_follows_what_another_has_learned_and_tells_nobody() {
    let mut a = Gateway::with_tunnels(Side::A, &[spec(0)]);
    let long = || Inner::udp("10.0.0.1", "172.16.0.2", 1300).bytes();
    assert_eq!(a.seal(long()).len(), 1);
    assert!(a.unprotected.take().is_empty());
    let kind = EventKind::PathMtu { mtu: 1000, learned_from: Some(LearnedFrom::Router) };
    let event = Event { tunnel: spec(0).index(), kind };
    assert!(kind.concerns_all() && !EventKind::SequenceExhausted { spi: 1 }.concerns_all());
    let now = a.now();
    let before = a.worker.take_events().len();
    a.worker.change_sa(SaChange::Hear(event), now).expect("nothing refuses that");
    let sealed = a.seal(long());
    assert!(sealed.iter().all(|datagram| datagram.len() <= 1000), "the path carries no more");
    // Nothing waits for the peer: another SA was put to use since.
    let took_over = Event { kind: EventKind::TookOver { spi: spec(0).spi_from(Side::A) }, ..event };
    a.worker.change_sa(SaChange::Hear(took_over), now).expect("nothing refuses that");
    assert_eq!((before, a.worker.take_events().len()), (0, 0));
}

/// Gateways that are workers of one, and what they have in common on the unprotected side.
fn gateways<const N: usize>(side: Side, link: &PortHandle) -> [Gateway; N] {
    [(); N].map(|()| {
        let (policies, pool) = (spec(0).policies(side), PoolSize(512, 2048));
        Gateway::on_links(PortHandle::default(), link.clone(), policies, pool, portable())
    })
}

/// Installs a tunnel at workers that do not run yet.
pub(crate) fn install_at<const N: usize>(
    gateways: [Gateway; N],
    tunnel: TunnelInstall,
) -> ([Gateway; N], Installed) {
    let mut ends = Vec::new();
    let mut workers = Vec::new();
    for Gateway { worker, protected, unprotected, clock } in gateways {
        workers.push(worker);
        ends.push((protected, unprotected, clock));
    }
    let update = Update { install: vec![tunnel], ..Update::default() };
    let (_, outcome) = Worker::update_all(&mut workers, update, Moment::default()).remove(0);
    let whole = workers.into_iter().zip(ends).map(|(worker, (protected, unprotected, clock))| Gateway {
        worker,
        protected,
        unprotected,
        clock,
    });
    let gateways: Vec<_> = whole.collect();
    (gateways.try_into().ok().expect("as many"), outcome.expect("there is room"))
}

fn number_of(datagram: &[u8]) -> u64 {
    u32::from_be_bytes(datagram[24..28].try_into().expect("an ESP header")).into()
}

/// Numbers, and whether they are in an order that a window of 32 takes.
fn assert_sent_within_the_peers_window(datagrams: &[Vec<u8>]) {
    let mut highest = 0;
    let mut used = BTreeSet::new();
    for number in datagrams.iter().map(|datagram| number_of(datagram)) {
        assert!(used.insert(number), "{number} is used twice");
        highest = highest.max(number);
        assert!(highest - number < 32 - 8, "{number} after {highest}");
    }
    let mut peer = Gateway::with_tunnels(Side::B, &[TunnelSpec { window: 32, ..spec(0) }]);
    let opened: usize = datagrams.iter().map(|datagram| peer.open(datagram.clone()).len()).sum();
    assert_eq!((opened, peer.worker.pool().drops().total()), (datagrams.len(), 0));
}

#[test]
fn two_workers_seal_for_one_sa_and_a_window_of_32_takes_all_of_it() {
    const EACH: usize = 700;
    let link = PortHandle::default();
    let all: [Gateway; 2] = gateways(Side::A, &link);
    let protected = all.each_ref().map(|gateway| gateway.protected.clone());
    let mut store = LeaseTwin::new(1 << 40);
    let workers = all.map(|gateway| gateway.worker).into();
    let (workers, installed) = run(workers, |commander| {
        let (_, outcome) = commander.update(install(&mut store, 0)).expect("they answer").remove(0);
        let packet = || Inner::udp("10.0.0.1", "172.16.0.2", 100).bytes();
        for _ in 0..EACH {
            protected.iter().for_each(|port| port.push(packet()));
        }
        while link.departed() < 2 * EACH {
            // The ports of this test do not wake them; commands do.
            commander.save_windows(Vec::new()).expect("they answer");
        }
        outcome.expect("there is room")
    });
    assert_sent_within_the_peers_window(&link.take());
    let counters = &installed.outbound.counters;
    let each: Vec<_> = counters.each().map(SaCounters::packets).collect();
    assert_eq!((each, counters.packets()), (vec![EACH as u64; 2], 2 * EACH as u64));
    assert!(workers.iter().all(|worker| worker.pool().in_use() == 0 && worker.pool().drops().total() == 0));
}

#[test]
fn a_worker_whose_packets_wait_for_another_takes_no_more_and_loses_none() {
    let (full, free) = (PortHandle::default(), PortHandle::default());
    let [slow] = gateways(Side::A, &full);
    let [fast] = gateways(Side::A, &free);
    let tunnel = spec(0).install(Side::A, &mut LeaseTwin::new(1 << 40), None);
    let ([mut slow, mut fast], _) = install_at([slow, fast], tunnel);
    let packet = || Inner::udp("10.0.0.1", "172.16.0.2", 100).bytes();
    full.set_room(Some(0));
    (0..3).for_each(|_| slow.protected.push(packet()));
    slow.turn();
    (0..200).for_each(|_| fast.protected.push(packet()));
    for _ in 0..5 {
        fast.turn();
    }
    let sent = free.departed();
    assert_eq!(sent, 24 - 3, "numbers 1 to 3 are in flight");
    assert!(fast.worker.waits_for_numbers());
    assert_eq!(fast.protected.arriving(), 200 - BATCH_SIZE, "one batch was taken, and no more since");

    full.set_room(None);
    slow.settle();
    while fast.turn() > 0 || fast.worker.waits_for_numbers() {}
    assert!(free.take().iter().map(|datagram| number_of(datagram)).eq(4..=203));
    assert_eq!(full.take().len(), 3);
    assert_eq!((fast.worker.pool().in_use(), fast.worker.pool().drops().total()), (0, 0));
}

#[test]
fn packets_that_wait_for_numbers_are_dropped_by_name_when_the_gateway_ends() {
    let (full, free) = (PortHandle::default(), PortHandle::default());
    let [slow] = gateways(Side::A, &full);
    let [fast] = gateways(Side::A, &free);
    let tunnel = spec(0).install(Side::A, &mut LeaseTwin::new(1 << 40), None);
    let ([mut slow, mut fast], _) = install_at([slow, fast], tunnel);
    full.set_room(Some(0));
    slow.protected.push(Inner::udp("10.0.0.1", "172.16.0.2", 100).bytes());
    slow.turn();
    (0..40).for_each(|_| fast.protected.push(Inner::udp("10.0.0.1", "172.16.0.2", 100).bytes()));
    fast.turn();
    fast.worker.drain();
    fast.turn();
    fast.worker.discard_waiting();
    let waited = 40 - free.departed() as u64;
    assert_eq!(fast.worker.pool().drops().get(DropReason::ShuttingDown), waited);
    assert!(waited > 0 && fast.worker.pool().in_use() == 0);
}

/// Dummies have numbers, too: once they are with the port, nobody waits for them.
#[test]
fn nobody_waits_for_dummies_that_were_sent() {
    let link = PortHandle::default();
    let rules = PacketRules { dummy_packets_per_second: 1, ..PacketRules::default() };
    let tunnel = TunnelSpec { rules, ..spec(0) }.install(Side::A, &mut LeaseTwin::new(1 << 40), None);
    let ([mut first, mut second], _) = install_at(gateways::<2>(Side::A, &link), tunnel);
    let now = first.now();
    first.worker.send_dummies(now);
    first.turn();
    assert_eq!(link.departed(), 1);
    (0..200).for_each(|_| second.protected.push(Inner::udp("10.0.0.1", "172.16.0.2", 100).bytes()));
    second.settle();
    assert_eq!((link.departed(), second.worker.waits_for_numbers()), (201, false));
}

/// Each worker has a clock of its own, also where they share the numbers of an SA.
#[test]
fn workers_that_share_an_sa_each_send_at_their_ticks() {
    let link = PortHandle::default();
    let rules = PacketRules { clocked_packets_per_second: 100, ..PacketRules::default() };
    let spec = TunnelSpec { rules, ..spec(0) };
    let tunnel = spec.install(Side::A, &mut LeaseTwin::new(1 << 40), None);
    let (mut workers, _) = install_at(gateways::<2>(Side::A, &link), tunnel);
    workers[1].worker.follow();
    let mut peer = Gateway::with_tunnels(Side::B, &[spec]);
    let mut delivered = 0;
    for tick in 0..100 {
        for gateway in &mut workers {
            if tick % 2 == 0 {
                gateway.protected.push(Inner::udp("10.0.0.1", "172.16.0.2", 100).bytes());
            }
            gateway.settle();
            assert_eq!(link.departed(), 0);
            let now = gateway.now();
            gateway.worker.send_dummies(now);
            gateway.settle();
            assert_eq!((link.departed(), gateway.worker.waits_for_numbers()), (1, false));
            delivered += link.take().into_iter().map(|datagram| peer.open(datagram).len()).sum::<usize>();
            gateway.clock.advance(Duration::from_millis(10));
        }
    }
    assert_eq!((delivered, peer.drops(DropReason::DummyPacket)), (100, 100));
    workers.iter().for_each(Gateway::assert_settled);
}

/// A tick for which other workers have too many numbers in flight is missed, whether a packet waits for it or
/// not, and the packet leaves at a later one.
#[test]
fn a_tick_without_a_number_is_missed_whether_a_packet_waits_or_not() {
    for waits in [false, true] {
        let (full, free) = (PortHandle::default(), PortHandle::default());
        let ([slow], [fast]) = (gateways(Side::A, &full), gateways(Side::A, &free));
        let rules = PacketRules { clocked_packets_per_second: 100, ..PacketRules::default() };
        let spec = TunnelSpec { rules, ..spec(0) };
        let tunnel = spec.install(Side::A, &mut LeaseTwin::new(1 << 40), None);
        let ([mut slow, mut fast], _) = install_at([slow, fast], tunnel);
        let mut peer = Gateway::with_tunnels(Side::B, &[spec]);
        full.set_room(Some(0));
        let tick = |gateway: &mut Gateway, link: &PortHandle| {
            let now = gateway.now();
            gateway.worker.send_dummies(now);
            gateway.turn();
            gateway.turn();
            gateway.clock.advance(Duration::from_millis(10));
            link.take()
        };
        assert!(tick(&mut slow, &full).is_empty());
        let mut sent = 0;
        while !tick(&mut fast, &free).is_empty() {
            sent += 1;
            assert!(sent < 100, "a number is in flight");
        }
        if waits {
            fast.protected.push(Inner::udp("10.0.0.1", "172.16.0.2", 100).bytes());
            fast.turn();
        }
        for _ in 0..3 {
            assert!(tick(&mut fast, &free).is_empty(), "{waits}");
            let held = (fast.worker.held_packets(), fast.worker.waits_for_numbers());
            assert_eq!(held, (usize::from(waits), false));
        }
        full.set_room(None);
        slow.settle();
        let wire = tick(&mut fast, &free);
        assert_eq!(wire.len(), 1, "{waits}");
        let opened: usize = wire.into_iter().map(|datagram| peer.open(datagram).len()).sum();
        assert_eq!((opened, fast.worker.held_packets()), (usize::from(waits), 0));
    }
}

/// Its SAs are there until all workers have ended.
#[test]
fn nobody_waits_for_a_worker_that_has_ended() {
    let (full, free) = (PortHandle::default(), PortHandle::default());
    let [slow] = gateways(Side::A, &full);
    let [fast] = gateways(Side::A, &free);
    let tunnel = spec(0).install(Side::A, &mut LeaseTwin::new(1 << 40), None);
    let ([mut slow, mut fast], _) = install_at([slow, fast], tunnel);
    full.set_room(Some(0));
    slow.protected.push(Inner::udp("10.0.0.1", "172.16.0.2", 100).bytes());
    slow.turn();
    (0..40).for_each(|_| fast.protected.push(Inner::udp("10.0.0.1", "172.16.0.2", 100).bytes()));
    fast.turn();
    assert!(fast.worker.waits_for_numbers() && !fast.worker.is_finished());
    slow.worker.drain();
    slow.worker.discard_waiting();
    fast.settle();
    assert_eq!((free.departed(), fast.worker.waits_for_numbers()), (40, false));
}

#[test]
fn a_replay_is_refused_whichever_worker_has_it() {
    let mut peer = Gateway::with_tunnels(Side::A, &[spec(0)]);
    let packet = || Inner::udp("10.0.0.1", "172.16.0.2", 100).bytes();
    let sealed: Vec<_> = (0..300).flat_map(|_| peer.seal(packet())).collect();
    let links = [(); 2].map(|()| PortHandle::default());
    let all = links.each_ref().map(|link| gateways::<1>(Side::B, link)).map(|[gateway]| gateway);
    let tunnel = spec(0).install(Side::B, &mut LeaseTwin::new(1 << 40), None);
    let (mut all, installed) = install_at(all, tunnel);
    for (n, datagram) in sealed.iter().enumerate() {
        let worker = usize::from(n % 3 == 0);
        assert_eq!(all[worker].open(datagram.clone()).len(), 1, "{n}");
        // At once, to either of them.
        assert!(all[n % 2].open(datagram.clone()).is_empty(), "{n}");
    }
    for (n, datagram) in sealed.iter().enumerate() {
        assert!(all[usize::from(n % 3 != 0)].open(datagram.clone()).is_empty(), "{n} at the other one");
    }
    let replays = |gateway: &Gateway| gateway.worker.pool().drops().get(DropReason::ReplayDuplicate);
    assert_eq!(all.iter().map(replays).sum::<u64>(), 600);
    let counters = &installed.inbound.counters;
    let each: Vec<_> = counters.each().map(SaCounters::packets).collect();
    assert_eq!((each, counters.packets(), counters.sequence()), (vec![200, 100], 300, 300));
    assert_eq!(counters.drops(DropReason::ReplayDuplicate), 600);
    // What is saved of it is what both have received.
    let windows = all.each_ref().map(|gateway| gateway.worker.save_window(installed.inbound.sa));
    assert_eq!(windows[0], windows[1]);
    let restored = spec(0).install(Side::B, &mut LeaseTwin::new(1 << 40), windows[0].clone());
    let (mut again, _) = install_at(gateways::<2>(Side::B, &PortHandle::default()), restored);
    assert!(sealed.iter().all(|datagram| again[1].open(datagram.clone()).is_empty()));
}

/// As RFC 4737 counts it: at any worker, and of each packet one copy.
#[test]
fn reordering_of_an_sa_is_counted_over_its_workers() {
    let mut peer = Gateway::with_tunnels(Side::A, &[spec(0)]);
    let packet = || Inner::udp("10.0.0.1", "172.16.0.2", 100).bytes();
    let sealed: Vec<_> = (0..130).flat_map(|_| peer.seal(packet())).collect();
    let tunnel = spec(0).install(Side::B, &mut LeaseTwin::new(1 << 40), None);
    let (mut all, installed) = install_at(gateways::<2>(Side::B, &PortHandle::default()), tunnel);
    let counted = || installed.inbound.counters.reordered().expect("several workers have it");
    assert_eq!(installed.outbound.counters.reordered(), None);
    // The second block comes to the other worker first.
    for (worker, block) in [(0, 0..40), (1, 70..130), (0, 40..70), (1, 40..70)] {
        for datagram in &sealed[block] {
            all[worker].open(datagram.clone());
        }
    }
    let expected = Reordered { arrived: 130, reordered: 30, longest_extent: 89 };
    assert_eq!(counted(), expected);
}

#[test]
fn a_limit_counts_what_all_workers_have_sent_and_other_limits_are_set_once() {
    let hard = |packets| Lifetime {
        hard: Limits { packets: Some(packets), ..Limits::default() },
        ..Lifetime::default()
    };
    let link = PortHandle::default();
    let limited = TunnelSpec { lifetime: hard(100), ..spec(0) };
    let tunnel = limited.install(Side::A, &mut LeaseTwin::new(1 << 40), None);
    let (mut all, installed) = install_at(gateways::<2>(Side::A, &link), tunnel);
    let spi = limited.spi_from(Side::A);
    let packet = || Inner::udp("10.0.0.1", "172.16.0.2", 100).bytes();
    let sent: usize = (0..200).map(|n| all[n % 2].seal(packet()).len()).sum();
    let counters = &installed.outbound.counters;
    assert_eq!(sent, 100);
    assert_eq!((counters.packets(), counters.state()), (100, SaState::Expired));
    let events = all.iter_mut().flat_map(|gateway| gateway.worker.take_events());
    assert!(
        events.map(|event| event.kind).eq([EventKind::HardLifetime { spi, outbound: true }]),
        "one tells"
    );

    let [one, two] = all;
    let ports = [one.protected, two.protected];
    let (workers, ()) = run(vec![one.worker, two.worker], |commander| {
        let more = Spent { packets: 10, ..Spent::default() };
        let limit = SaChange::Limit(spec(0).index(), Direction::Seal, spi, hard(200), more);
        let advance = SaChange::Advance(spec(0).index(), Direction::Seal, spi, 1000);
        let back = SaChange::Advance(spec(0).index(), Direction::Seal, spi, 5);
        let outcome = commander.change_sas(vec![limit, advance, back]).expect("they answer");
        assert!(outcome[0].is_ok() && outcome[1].is_ok() && outcome[2].is_err(), "{outcome:?}");
        for _ in 0..100 {
            ports.iter().for_each(|port| port.push(packet()));
        }
        while ports.iter().any(|port| port.arriving() > 0) {
            commander.save_windows(Vec::new()).expect("they answer");
        }
    });
    assert_eq!(link.take().len(), 90, "100 were used before, and 10 elsewhere");
    let last = counters.sequence();
    assert!((1090..1200).contains(&last), "after 1,000, with some left out at the end: {last}");
    assert!(workers.iter().all(|worker| worker.pool().in_use() == 0));
}
