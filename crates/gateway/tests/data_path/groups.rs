//! Groups (`docs/VPE.md`, "Windows"): many senders under one key, each with its own windows; what a device
//! does that meets its own Sender ID; joining late, and restarts.

use crate::support::gateway::{PoolSize, portable};
use crate::support::group::{GROUP, address, by_hand, inner, install, policies, sent_by, spec};
use crate::support::vpe::datagram_between;
use crate::support::{Gateway, Inner, LeaseTwin, Side};
use crate::traffic_flow::run;
use crate::workers::install_at;
use std::time::Duration;
use testudo_gateway::{Installed, SaChange};
use testudo_ipsec::{Event, EventKind, SaState, VpeClasses, VpeRules, WindowTop};
use testudo_packet::DropReason;
use testudo_wire::steering::Steering;
use testudo_wire::vpe::{VPE_PROTOCOL, VpeHeader};

const NOTHING: [[u8; 0]; 0] = [];

struct Member {
    gateway: Gateway,
    installed: Installed,
    store: LeaseTwin,
    rules: VpeRules,
}

impl Member {
    fn new(sender: u16) -> Self {
        Self::with(VpeRules::default().with_sender(sender))
    }

    fn with(rules: VpeRules) -> Self {
        Self::started(rules, LeaseTwin::new(1 << 20), None)
    }

    /// A gateway with what its store has kept.
    fn started(rules: VpeRules, mut store: LeaseTwin, window: Option<Vec<u8>>) -> Self {
        let mut gateway = Gateway::new(policies(), PoolSize(512, 2048), portable());
        let installed = gateway.install_seen(install(rules, &mut store, window));
        Self { gateway, installed, store, rules }
    }

    /// The same after a clean stop, with other rules.
    fn restarted(mut self, rules: VpeRules) -> Self {
        let window = self.windows();
        let used = self.installed.outbound.counters.sequence();
        // A clean stop gives back what it has not used.
        self.store.begin_at(spec().spi_from(Side::A), used + 1);
        Self::started(rules, self.store, Some(window))
    }

    fn windows(&self) -> Vec<u8> {
        self.gateway.worker.save_window(self.installed.inbound.sa).expect("its windows")
    }

    /// Sends a packet of its own; what leaves.
    fn send(&mut self, seed: u64) -> Vec<Vec<u8>> {
        self.gateway.seal(inner(self.rules.sender, seed))
    }

    fn events(&mut self) -> Vec<EventKind> {
        self.gateway.worker.take_events().into_iter().map(|Event { kind, .. }| kind).collect()
    }

    fn drops(&self, reason: DropReason) -> u64 {
        self.gateway.drops(reason)
    }

    fn assert_receives(&mut self, datagram: &[u8], packet: &[u8]) {
        assert_eq!(self.gateway.open(datagram), [packet]);
    }

    fn assert_refuses(&mut self, datagram: &[u8], reason: DropReason) {
        let before = self.drops(reason);
        assert_eq!(self.gateway.open(datagram), NOTHING, "{reason:?}");
        assert_eq!(self.drops(reason), before + 1, "{reason:?}");
        self.gateway.assert_settled();
    }
}

#[test]
fn what_one_sends_all_others_receive_under_the_senders_own_windows() {
    let mut members: Vec<_> = (1..=3).map(Member::new).collect();
    for seed in 1..200 {
        for from in 0..3 {
            let sender = members[from].rules.sender;
            let sent = members[from].send(seed).remove(0);
            assert_eq!(sent[16..20], GROUP);
            let header = VpeHeader::parse(&sent[20..]).expect("a header");
            assert_eq!((header.sender, header.spi), (sender, spec().spi_from(Side::A)));
            for to in (0..3).filter(|to| *to != from) {
                members[to].assert_receives(&sent, &inner(sender, seed));
                members[to].assert_refuses(&sent, DropReason::ReplayDuplicate);
            }
        }
    }
    for mut member in members {
        let senders =
            member.installed.inbound.counters.each().next().and_then(|c| c.senders()).expect("some");
        let shown: Vec<_> = senders.shown().map(|s| (s.sender, s.address, s.packets)).collect();
        let others = (1..=3).filter(|sender| *sender != member.rules.sender);
        assert_eq!(shown, others.map(|sender| (sender, address(sender), 199)).collect::<Vec<_>>());
        assert_eq!((senders.count(), senders.doubles()), (2, 0));
        assert_eq!(member.events(), []);
        member.gateway.assert_settled();
    }
}

/// `docs/VPE.md`: one window for each (Sender ID, Window ID), whose numbers know nothing of one another.
#[test]
fn replays_are_refused_sender_by_sender() {
    let mut member = Member::new(9);
    for number in [1, 2, 50] {
        for (sender, window) in [(1, 0), (2, 0), (1, 7), (0xFFFF, 0)] {
            let sent = sent_by(sender, window, number);
            member.assert_receives(&sent, &inner(sender & 0xFF, number));
            member.assert_refuses(&sent, DropReason::ReplayDuplicate);
        }
    }
    member.assert_refuses(&sent_by(1, 0, 0), DropReason::ReplayTooOld);
}

/// `docs/VPE.md`: who joins late accepts the first authentic number of each window, whatever it is; what was
/// before is judged by that window.
#[test]
fn who_joins_late_accepts_the_first_number_of_each_window() {
    let (mut a, mut b) = (Member::new(1), Member::new(2));
    let early: Vec<_> = (1..6000).map(|seed| a.send(seed).remove(0)).collect();
    for (seed, sent) in (1..).zip(&early) {
        b.assert_receives(sent, &inner(1, seed));
    }
    let mut late = Member::new(3);
    let sent = a.send(6000).remove(0);
    late.assert_receives(&sent, &inner(1, 6000));
    late.assert_refuses(&early[0], DropReason::ReplayTooOld);
    late.assert_refuses(&sent, DropReason::ReplayDuplicate);
    // A window that is silent since: what was recorded of it passes once.
    late.assert_receives(&sent_by(2, 1, 4), &inner(2, 4));
    late.assert_refuses(&sent_by(2, 1, 4), DropReason::ReplayDuplicate);
}

/// Hostile: Sender IDs that nobody sealed are not authentic and make nothing; more windows and senders than
/// the SA may have are refused by name, and all others go on.
#[test]
fn a_flood_of_senders_is_bounded_and_harms_nobody() {
    let mut member = Member::with(VpeRules::default().with_sender(9).with_windows_max(16));
    for sender in 10..2010_u16 {
        let mut forged = sent_by(1, 0, 1);
        forged[20..22].copy_from_slice(&sender.to_le_bytes());
        member.assert_refuses(&forged, DropReason::AuthenticationFailed);
    }
    for sender in 100..116 {
        member.assert_receives(&sent_by(sender, 3, 1), &inner(sender, 1));
    }
    for sender in 1000..1300 {
        member.assert_refuses(&sent_by(sender, 3, 1), DropReason::VpeWindows);
        member.assert_refuses(&sent_by(100 + sender % 16, sender, 1), DropReason::VpeWindows);
    }
    for sender in 100..116 {
        member.assert_receives(&sent_by(sender, 3, 2), &inner(sender, 2));
        member.assert_refuses(&sent_by(sender, 3, 1), DropReason::ReplayDuplicate);
    }
    let counters = member.installed.inbound.counters.each().next().and_then(|c| c.senders());
    assert_eq!(counters.expect("some").count(), 16);
    assert_eq!(member.events(), []);
}

/// `docs/VPE.md`: of a group no packet has the Sender ID 0, nor the receiver's own.
#[test]
fn packets_of_nobody_and_of_oneself_are_refused() {
    let mut member = Member::with(VpeRules::default().with_sender(9).with_windows_max(1));
    let sent = member.send(1).remove(0);
    let own = VpeHeader::parse(&sent[20..]).expect("a header");
    member.assert_receives(&sent_by(1, 0, 1), &inner(1, 1));
    member.assert_refuses(&sent_by(0, 0, 1), DropReason::VpeSender);
    member.assert_refuses(&sent_by(9, own.window, own.number), DropReason::VpeSender);
    let mut forged = sent_by(9, 5, 1 << 60);
    forged[60] ^= 1;
    member.assert_refuses(&forged, DropReason::AuthenticationFailed);
    assert_eq!(member.send(2).len(), 1, "nobody has shown that somebody else has its ID");
}

/// All such members would have one Sender ID, 0, and seal under its nonces.
#[test]
fn a_member_that_only_receives_sends_no_fill_packets() {
    for (sender, sends) in [(7, true), (0, false)] {
        for (clocked, beside) in [(100, 0), (0, 100)] {
            let mut gateway = Gateway::new(policies(), PoolSize(512, 2048), portable());
            let rules = VpeRules::default().with_sender(sender);
            let mut tunnel = install(rules, &mut LeaseTwin::new(1 << 20), None);
            tunnel.parameters.rules.clocked_packets_per_second = clocked;
            tunnel.parameters.rules.dummy_packets_per_second = beside;
            gateway.install(tunnel);
            let sent = run(&mut gateway, Duration::from_secs(1));
            assert_eq!(!sent.is_empty(), sends, "{clocked}, {beside}");
            assert_eq!(gateway.worker.next_dummy().is_some(), sends, "it wakes up for nothing");
            gateway.assert_settled();
        }
    }
}

/// `docs/VPE.md`: two devices with one Sender ID are noticed by their two addresses within a second.
#[test]
fn two_devices_with_one_sender_id_are_noticed_by_the_others() {
    let mut member = Member::new(9);
    member.assert_receives(&sent_by(1, 0, 1), &inner(1, 1));
    member.gateway.clock.advance(Duration::from_millis(1001));
    member.assert_receives(&by_hand(address(77), 1, 0, 2), &inner(1, 2));
    assert_eq!(member.events(), [], "it has moved");
    member.gateway.clock.advance(Duration::from_millis(900));
    for number in 3..40 {
        let from = address(if number % 2 == 0 { 77 } else { 1 });
        member.assert_receives(&by_hand(from, 1, 0, number), &inner(1, number));
    }
    let spi = spec().spi_from(Side::A);
    let twice = EventKind::SenderTwice { spi, sender: 1, before: address(77), address: address(1) };
    assert_eq!(member.events(), [twice], "once");
    let counters = member.installed.inbound.counters.each().next().and_then(|c| c.senders());
    assert_eq!(counters.expect("some").doubles(), 37);
    // What is not authentic, or was there before, comes from nobody.
    member.gateway.clock.advance(Duration::from_secs(61));
    member.assert_receives(&sent_by(1, 0, 50), &inner(1, 50));
    member.assert_refuses(&by_hand(address(5), 1, 0, 50), DropReason::ReplayDuplicate);
    let mut forged = by_hand(address(5), 1, 0, 51);
    forged[60] ^= 1;
    member.assert_refuses(&forged, DropReason::AuthenticationFailed);
    assert_eq!(member.events(), []);
}

/// A member that met its own ID on a packet that it has not sent.
fn taken() -> Member {
    let mut member = Member::new(9);
    let number = member.send(1).remove(0);
    let header = VpeHeader::parse(&number[20..]).expect("a header");
    member.assert_refuses(&by_hand(address(1), 9, header.window, header.number + 1), DropReason::VpeSender);
    member
}

pub(crate) fn raise_sender_taken() -> Gateway {
    let mut member = taken();
    assert_eq!(member.send(2), NOTHING);
    member.gateway
}

/// `docs/VPE.md`: a device that sees its own Sender ID on a packet that it has not sent stops sending.
#[test]
fn a_device_that_meets_its_own_sender_id_stops_and_says_so() {
    for path in ["number", "window"] {
        let mut member = Member::with(
            VpeRules::default().with_sender(9).with_slots(VpeClasses::default(), 0, 8).expect("8 windows"),
        );
        let sent = member.send(1).remove(0);
        let header = VpeHeader::parse(&sent[20..]).expect("a header");
        let (window, number) = if path == "number" { (header.window, 2) } else { (4000, 2) };
        let spi = spec().spi_from(Side::A);
        member.assert_refuses(&by_hand(address(5), 9, window, number), DropReason::VpeSender);
        let twice = EventKind::SenderTwice { spi, sender: 9, before: address(9), address: address(5) };
        let stopped = EventKind::SenderTaken { spi, sender: 9, address: address(5) };
        assert_eq!(member.events(), [stopped, twice], "{path}");
        assert_eq!(member.installed.outbound.counters.state(), SaState::SenderTaken);
        for seed in 2..5 {
            assert_eq!(member.send(seed), NOTHING);
        }
        assert_eq!(member.drops(DropReason::VpeSenderTaken), 3);
        // Bursts, too; and what others send is received as before.
        (0..64).for_each(|seed| member.gateway.protected.push(inner(9, seed)));
        member.gateway.settle();
        assert_eq!(member.gateway.unprotected.take(), NOTHING);
        member.assert_receives(&sent_by(1, 0, 1), &inner(1, 1));
        member.assert_refuses(&by_hand(address(5), 9, window, number), DropReason::VpeSender);
        assert_eq!(member.events(), [], "once");
    }
}

/// Hostile: a device that is sent back what it has sent, by the network or by anybody with any address, is
/// not silenced by that.
#[test]
fn what_a_device_has_sent_and_sees_again_does_not_silence_it() {
    let mut member = Member::new(9);
    let mut sent: Vec<_> = (1..100).map(|seed| member.send(seed).remove(0)).collect();
    for datagram in &sent {
        member.assert_refuses(datagram, DropReason::VpeSender);
    }
    assert_eq!(member.events(), []);
    for datagram in &mut sent {
        let vpe = datagram[20..].to_vec();
        *datagram = datagram_between(address(66), GROUP.into(), VPE_PROTOCOL, &vpe);
        member.assert_refuses(datagram, DropReason::VpeSender);
    }
    let events = member.events();
    assert!(matches!(events[..], [EventKind::SenderTwice { sender: 9, .. }]), "told once: {events:?}");
    assert_eq!(member.send(100).len(), 1);
    // After a restart its old packets are its own, too, in whatever windows it had.
    let rules = member.rules.with_slots(VpeClasses::default(), 0, 1).expect("one window");
    let mut member = member.restarted(rules);
    for datagram in &sent {
        member.assert_refuses(datagram, DropReason::VpeSender);
    }
    assert_eq!(member.send(101).len(), 1);
    // With a store that was lost, they are numbers that it is about to use again.
    let mut member = Member::started(rules, LeaseTwin::new(100), None);
    member.assert_refuses(&sent[98], DropReason::VpeSender);
    assert_eq!(member.send(102), NOTHING);
}

/// Hostile: why what has our own Sender ID is opened before it is refused. A device that has it and is behind
/// us seals under numbers that we have used. Its address gives it away, but only of an authentic packet.
#[test]
fn another_device_with_our_id_that_is_behind_us_is_noticed_and_who_forges_it_is_not() {
    let mut member = Member::new(9);
    let sent: Vec<_> = (1..100).map(|seed| member.send(seed).remove(0)).collect();
    let header = VpeHeader::parse(&sent[98][20..]).expect("a header");
    let other = by_hand(address(66), 9, header.window, header.number);
    let mut forged = other.clone();
    forged[60] ^= 1;
    member.assert_refuses(&forged, DropReason::AuthenticationFailed);
    assert_eq!(member.events(), [], "anybody can write this");
    member.assert_refuses(&other, DropReason::VpeSender);
    let (spi, before) = (spec().spi_from(Side::A), address(9));
    let twice = EventKind::SenderTwice { spi, sender: 9, before, address: address(66) };
    assert_eq!(member.events(), [twice]);
    assert_eq!(member.send(100).len(), 1, "it has not passed us");
}

/// Windows go on over a restart, sender by sender; what is no set of windows of a group is refused.
#[test]
fn windows_of_all_senders_go_on_after_a_restart() {
    let mut member = Member::new(9);
    for (sender, window, number) in [(1, 0, 700), (2, 0, 3), (2, 5, 1)] {
        member.assert_receives(&sent_by(sender, window, number), &inner(sender, number));
    }
    let rules = member.rules;
    let mut member = member.restarted(rules);
    for (sender, window, number) in [(1, 0, 700), (2, 0, 3), (2, 5, 1)] {
        member.assert_refuses(&sent_by(sender, window, number), DropReason::ReplayDuplicate);
        member.assert_receives(&sent_by(sender, window, number + 1), &inner(sender, number + 1));
    }
    member.assert_receives(&sent_by(3, 0, 1), &inner(3, 1));
}

/// Only what was sent to the group is the group's: the SA is not there for packets to our own address.
#[test]
fn packets_to_our_own_address_are_not_the_groups() {
    let mut member = Member::new(9);
    let vpe = sent_by(1, 0, 1)[20..].to_vec();
    let unicast = datagram_between(address(1), address(9), VPE_PROTOCOL, &vpe);
    member.assert_refuses(&unicast, DropReason::WrongEncapsulation);
    member.assert_receives(&sent_by(1, 0, 1), &inner(1, 1));
}

/// RFC 1122 3.2.2: nobody is told that a packet to a group was too long.
#[test]
fn packets_to_a_group_that_do_not_fit_are_dropped_in_silence() {
    let mut member = Member::new(9);
    let long = Inner { dont_fragment: true, ..Inner::udp("10.9.0.1", "239.9.9.9", 1600) }.bytes();
    member.gateway.protected.push(long);
    member.gateway.settle();
    assert_eq!((member.gateway.unprotected.take(), member.gateway.protected.take()), (vec![], vec![]));
    assert_eq!(member.drops(DropReason::TooBig), 1);
    let whole = Inner::udp("10.9.0.1", "239.9.9.9", 1600).bytes();
    assert_eq!(member.gateway.seal(whole).len(), 2, "in fragments");
}

/// A member of several workers, each with ports of its own.
fn several<const N: usize>(rules: VpeRules) -> ([Gateway; N], Installed) {
    let gateways = [(); N].map(|()| Gateway::new(policies(), PoolSize(512, 2048), portable()));
    install_at(gateways, install(rules, &mut LeaseTwin::new(1 << 20), None))
}

fn events(all: &mut [Gateway]) -> Vec<EventKind> {
    let of = |gateway: &mut Gateway| gateway.worker.take_events();
    all.iter_mut().flat_map(of).map(|Event { kind, .. }| kind).collect()
}

/// A window is one of a sender: one worker and several tell the same of them.
#[test]
fn windows_of_a_group_are_told_with_their_senders() {
    let rules = VpeRules::default().with_sender(9);
    let (mut one, of_one) = several::<1>(rules);
    let (mut two, of_two) = several::<2>(rules);
    for (n, (sender, window, number)) in [(2, 5, 7), (1, 5, 3), (1, 0, 40)].into_iter().enumerate() {
        let packet = inner(sender, number);
        assert_eq!(one[0].open(sent_by(sender, window, number)), std::slice::from_ref(&packet));
        assert_eq!(two[n % 2].open(sent_by(sender, window, number)), [packet]);
    }
    let top = |sender, window, number| WindowTop { sender, window, number };
    for (gateway, installed) in [(&mut one[0], of_one), (&mut two[0], of_two)] {
        let now = gateway.now();
        gateway.worker.tick(now);
        let seen = installed.inbound.counters.windows(false).expect("it is of VPE");
        assert_eq!((seen.count, seen.most), (3, 1024));
        assert_eq!(seen.tops, [top(1, 0, 40), top(1, 5, 3), top(2, 5, 7)]);
    }
}

/// A sender's windows are spread over the workers that it has and over those that receive it; a replay is
/// refused by whichever worker gets it; and all of them know each sender.
#[test]
fn workers_of_a_group_share_windows_and_senders() {
    let rules = |sender| VpeRules::default().with_sender(sender);
    let (mut senders, _) = several::<2>(rules(1));
    let (mut receivers, installed) = several::<3>(rules(9));
    let steering = Steering::ByWindow { classes: std::num::NonZeroU16::MIN };
    let mut came = [0_u64; 3];
    for seed in 1..400_u64 {
        let flow = Inner { seed, ports: (seed as u16, 53), ..Inner::udp("10.1.0.1", "239.9.9.9", 80) };
        let sent = senders[seed as usize % 2].seal(flow.bytes()).remove(0);
        let header = VpeHeader::parse(&sent[20..]).expect("a header");
        assert_eq!((header.sender, header.window / 8), (1, seed as u16 % 2), "its worker's windows");
        let worker = steering.queue_of_datagram(&sent, 3, &[VPE_PROTOCOL]) as usize;
        assert_eq!(receivers[worker].open(sent.clone()), [flow.bytes()]);
        came[worker] += 1;
        for gateway in &mut receivers {
            let before = gateway.drops(DropReason::ReplayDuplicate);
            assert_eq!(gateway.open(sent.clone()), NOTHING);
            assert_eq!(gateway.drops(DropReason::ReplayDuplicate), before + 1);
        }
        // Another member, whose packets come to any of them.
        let other = sent_by(2, 7, seed);
        assert_eq!(receivers[seed as usize % 3].open(other.clone()), [inner(2, seed)]);
        assert_eq!(receivers[(seed as usize + 1) % 3].open(other), NOTHING);
    }
    assert!(came.iter().all(|count| *count > 20), "windows are spread: {came:?}");
    let heard = installed.inbound.counters.senders().expect("some");
    let shown: Vec<_> = heard.shown.iter().map(|of| (of.sender, of.address, of.packets)).collect();
    assert_eq!(shown, [(1, address(1), 399), (2, address(2), 399)]);
    assert_eq!((heard.count, heard.doubles), (2, 0));
    assert_eq!(events(&mut receivers), []);
    senders.iter().chain(&receivers).for_each(Gateway::assert_settled);
}

/// `docs/VPE.md`: two devices with one Sender ID, of which each worker sees one.
#[test]
fn workers_notice_two_devices_with_one_sender_id_together() {
    let (mut all, installed) = several::<2>(VpeRules::default().with_sender(9));
    for number in 1..20 {
        let worker = number as usize % 2;
        let from = address([1, 77][worker]);
        let sent = by_hand(from, 1, worker as u16, number);
        assert_eq!(all[worker].open(sent), [inner(1, number)]);
    }
    let spi = spec().spi_from(Side::A);
    let twice = EventKind::SenderTwice { spi, sender: 1, before: address(77), address: address(1) };
    assert_eq!(events(&mut all), [twice], "once, by one of them");
    let heard = installed.inbound.counters.senders().expect("some");
    assert_eq!((heard.count, heard.doubles), (1, 18));
}

/// Our own ID on a packet that no worker of ours has sent, at any of them: all stop, and it is told once.
/// What one has sent silences none of them, whichever gets it back.
#[test]
fn all_workers_stop_where_one_meets_their_sender_id_on_a_packet_of_none() {
    let (mut all, installed) = several::<2>(VpeRules::default().with_sender(9));
    let mut sent = Vec::new();
    for seed in 1..3000 {
        // One of them is far ahead of the other.
        sent.extend(all[usize::from(seed % 50 == 0)].seal(inner(9, seed)));
    }
    for (n, datagram) in sent.iter().enumerate() {
        assert_eq!(all[n % 2].open(datagram.clone()), NOTHING);
    }
    assert_eq!(events(&mut all), []);
    let refused: u64 = all.iter().map(|gateway| gateway.drops(DropReason::VpeSender)).sum();
    assert_eq!((refused, installed.outbound.counters.state()), (2999, SaState::Installed));
    let taken = by_hand(address(5), 9, 4000, 1 << 40);
    assert_eq!(all[0].open(taken.clone()), NOTHING);
    let spread = all[0].worker.take_events();
    let stopped = spread.iter().find(|event| event.kind.concerns_all()).copied().expect("it is told");
    assert!(matches!(stopped.kind, EventKind::SenderTaken { sender: 9, .. }), "{stopped:?}");
    assert_eq!(all[0].seal(inner(9, 1)), NOTHING);
    // The other one meets it before it hears of it.
    assert_eq!(all[1].open(taken), NOTHING);
    let again = all[1].worker.take_events();
    assert!(!again.iter().any(|event| event.kind.concerns_all()), "told once: {again:?}");
    assert_eq!(all[1].seal(inner(9, 1)), NOTHING);
    assert_eq!(installed.outbound.counters.state(), SaState::SenderTaken);
}

/// What tells the others may be lost, or late: none of them sends in between.
#[test]
fn no_worker_seals_once_one_has_met_their_sender_id_though_nobody_has_told_it() {
    let (mut all, _) = several::<2>(VpeRules::default().with_sender(9));
    assert_eq!(all[1].seal(inner(9, 1)).len(), 1);
    assert_eq!(all[0].open(by_hand(address(5), 9, 4000, 1 << 40)), NOTHING);
    assert_eq!(all[1].seal(inner(9, 2)), NOTHING);
    assert_eq!(all[1].drops(DropReason::VpeSenderTaken), 1);
}

/// A worker that has met nothing itself stops when it hears of it, and no tunnel with another Sender ID does.
#[test]
fn a_worker_that_hears_of_a_taken_sender_id_stops() {
    for (sender, stops) in [(9, true), (8, false)] {
        let (mut all, _) = several::<2>(VpeRules::default().with_sender(9));
        assert_eq!(all[1].seal(inner(9, 1)).len(), 1);
        let spi = spec().spi_from(Side::A);
        let kind = EventKind::SenderTaken { spi, sender, address: address(5) };
        let (event, now) = (Event { tunnel: spec().index(), kind }, all[1].now());
        all[1].worker.change_sa(SaChange::Hear(event), now).expect("it hears");
        assert_eq!(all[1].seal(inner(9, 2)).is_empty(), stops, "{sender}");
        assert_eq!(all[1].drops(DropReason::VpeSenderTaken), u64::from(stops));
        assert_eq!(events(&mut all), []);
    }
}

/// A gateway that gets more workers, or fewer, goes on with the windows of all senders.
#[test]
fn windows_of_all_senders_go_on_with_another_number_of_workers() {
    let rules = VpeRules::default().with_sender(9);
    let names = [(1, 0, 700), (2, 0, 3), (2, 5, 1), (0xFFFF, 9, 40)];
    let (mut all, installed) = several::<2>(rules);
    for (n, (sender, window, number)) in names.into_iter().enumerate() {
        assert_eq!(all[n % 2].open(sent_by(sender, window, number)), [inner(sender & 0xFF, number)]);
    }
    let saved = all[1].worker.save_window(installed.inbound.sa).expect("its windows");
    let mut one = Member::started(rules, LeaseTwin::new(1 << 20), Some(saved.clone()));
    let gateways = [(); 3].map(|()| Gateway::new(policies(), PoolSize(512, 2048), portable()));
    let (mut three, _) = install_at(gateways, install(rules, &mut LeaseTwin::new(1 << 20), Some(saved)));
    for (n, (sender, window, number)) in names.into_iter().enumerate() {
        one.assert_refuses(&sent_by(sender, window, number), DropReason::ReplayDuplicate);
        assert_eq!(three[n % 3].open(sent_by(sender, window, number)), NOTHING);
        assert_eq!(three[n % 3].drops(DropReason::ReplayDuplicate), 1 + n as u64 / 3);
        assert_eq!(three[n % 3].open(sent_by(sender, window, number + 1)).len(), 1);
    }
}
