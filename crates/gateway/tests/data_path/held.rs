//! Packets that wait for an SA while it is negotiated (RFC 4301 5.1, step 3b).

use super::encapsulations::inner_of;
use crate::support::fragments::{fragmentable, fragments};
use crate::support::gateway::{PoolSize, portable};
use crate::support::packet::{network_a, network_b};
use crate::support::{Gateway, Inner, LeaseTwin, PortHandle, Side, TunnelSpec};
use std::time::Duration;
use testudo_crypto::Suite;
use testudo_gateway::{ManualClock, PortPair, SaChange, TunnelInstall, UseFrom, Worker};
use testudo_ipsec::{
    Acquire, Action, EventKind, HOLD, IpsecProtocol, MAX_HELD, Mode, PacketRules, Policy, PolicyChange,
    Position, Prefix, Selector, Spd, TunnelIndex, TunnelParameters,
};
use testudo_packet::{DropReason, Pool};
use testudo_wire::ip::Version;

/// Buffers of the gateway; an eighth of them may wait.
const BUFFERS: usize = 1024;
const ROOM: usize = BUFFERS / 8;

fn spec(number: u8) -> TunnelSpec {
    TunnelSpec::new(number, Suite::AES128GCM16)
}

/// A gateway with a tunnel of each of these numbers, whose SAs are negotiated: none is there.
fn gateway(numbers: impl Iterator<Item = u8> + Clone) -> Gateway {
    let policy = |number| Policy::new(towards(number), Action::Protect(TunnelIndex(u32::from(number))));
    let policies = numbers.clone().map(policy).collect();
    let mut gateway = Gateway::new(policies, PoolSize(BUFFERS, 2048), portable());
    numbers.for_each(|number| add_tunnel(&mut gateway, number, true));
    gateway
}

fn towards(number: u8) -> Selector {
    let prefix = |(address, length)| Prefix::new(address, length).expect("a prefix");
    Selector::between(prefix(network_a(Version::V4)), prefix(network_b(Version::V4, number)))
}

fn add_tunnel(gateway: &mut Gateway, number: u8, acquires: bool) {
    let parameters = TunnelParameters { acquires, ..spec(number).parameters(Side::A) };
    change(gateway, SaChange::AddTunnel(TunnelIndex(number.into()), Box::new(parameters)));
}

fn change(gateway: &mut Gateway, change: SaChange) {
    let now = gateway.now();
    gateway.worker.change_sa(change, now).expect("it can be changed");
}

/// Adds the SA towards a peer.
fn negotiated(gateway: &mut Gateway, number: u8, from: UseFrom) {
    let outbound = spec(number).outbound(Side::A, &mut LeaseTwin::new(1 << 40));
    change(gateway, SaChange::AddOutbound(TunnelIndex(number.into()), Box::new(outbound), from));
}

/// The packet of this number to the network of a tunnel.
fn packet(tunnel: u8, number: u16) -> Vec<u8> {
    packet_of(1, tunnel, number)
}

/// The same from a host of this number.
fn packet_of(host: u8, tunnel: u8, number: u16) -> Vec<u8> {
    let (from, to) = (format!("10.0.0.{host}"), format!("172.{}.0.2", 16 + tunnel));
    Inner { ports: (number, 53), ..Inner::udp(&from, &to, 100) }.bytes()
}

fn asked(gateway: &mut Gateway) -> Vec<(TunnelIndex, Acquire)> {
    let events = gateway.worker.take_events().into_iter();
    events
        .filter_map(|event| match event.kind {
            EventKind::Acquire(acquire) => Some((event.tunnel, acquire)),
            _ => None,
        })
        .collect()
}

/// The source ports of the packets that have left, opened by the peer, in its order.
fn opened(gateway: &mut Gateway, number: u8) -> Vec<u16> {
    gateway.settle();
    let mut peer = Gateway::with_tunnels(Side::B, &[spec(number)]);
    let packets = gateway.unprotected.take().into_iter().flat_map(|datagram| peer.open(datagram));
    packets.map(|packet| u16::from_be_bytes([packet[20], packet[21]])).collect()
}

#[test]
fn packets_wait_for_their_sa_and_leave_in_order() {
    let mut a = gateway([1, 2].into_iter());
    let policies: Vec<_> = a.worker.policies().policies().map(|(id, _)| id).collect();
    (1..=20).for_each(|number| assert!(a.seal(packet(1, number)).is_empty()));
    let acquires = asked(&mut a);
    let [(tunnel, acquire)] = &acquires[..] else { panic!("{acquires:?}") };
    assert_eq!((*tunnel, acquire.policy), (TunnelIndex(1), policies[0]), "told once, with the first packet");
    assert_eq!((acquire.packet.protocol, acquire.packet.local_port), (Some(17), Some(1)));
    assert_eq!((a.worker.held_packets(), a.books().dropped), (20, 0));
    a.assert_settled();
    // An SA that is there and not in use yet changes nothing.
    negotiated(&mut a, 1, UseFrom::Later);
    a.settle();
    assert_eq!((a.worker.held_packets(), a.unprotected.departed()), (20, 0));
    change(&mut a, SaChange::UseOutbound(TunnelIndex(1), spec(1).spi_from(Side::A)));
    assert!(opened(&mut a, 1).into_iter().eq(1..=20));
    assert_eq!(a.worker.held_packets(), 0);
    a.assert_settled();
}

/// A policy for any peer makes a daemon negotiate with the one that a packet is for. That one's policy comes
/// first then: its packets leave through its SA, others wait on, and no longer than they would have.
#[test]
fn packets_that_a_new_policy_gives_to_another_tunnel_wait_no_more() {
    let to_all = Policy::new(Selector::ANY, Action::Protect(TunnelIndex(1)));
    let mut a = Gateway::new(vec![to_all], PoolSize(BUFFERS, 2048), portable());
    add_tunnel(&mut a, 1, true);
    (1..=9).for_each(|number| assert!(a.seal(packet(2 + u8::from(number % 3 == 0), number)).is_empty()));
    a.clock.advance(HOLD - Duration::from_secs(1));
    add_tunnel(&mut a, 2, true);
    negotiated(&mut a, 2, UseFrom::Now);
    a.settle();
    assert_eq!((a.worker.held_packets(), a.unprotected.departed()), (9, 0));
    let own = Policy::new(towards(2), Action::Protect(TunnelIndex(2)));
    assert!(a.worker.change_policies(vec![PolicyChange::Insert(Position::First, own)])[0].is_ok());
    assert_eq!(opened(&mut a, 2), [1, 2, 4, 5, 7, 8]);
    assert_eq!((a.worker.held_packets(), a.books().dropped), (3, 0));
    a.clock.advance(Duration::from_secs(1));
    tick(&mut a);
    assert_eq!((a.worker.held_packets(), a.drops(DropReason::HoldExpired)), (0, 3));
    a.assert_settled();
}

/// A packet that came in several buffers waits in one: limits count packets. A policy that gives it to
/// another tunnel finds it as any other.
#[test]
fn packets_in_chains_wait_in_one_buffer_each() {
    let to_all = Policy::new(Selector::ANY, Action::Protect(TunnelIndex(1)));
    let (protected, unprotected) = (PortHandle::default(), PortHandle::default());
    protected.take_chains(&[1500]);
    let size = PoolSize(BUFFERS, 9300);
    let mut a = Gateway::on_links(protected, unprotected, vec![to_all], size, portable());
    for number in [1, 2] {
        let wide = TunnelSpec { path_mtu: 9200, ..spec(number) };
        let parameters = TunnelParameters { acquires: true, ..wide.parameters(Side::A) };
        change(&mut a, SaChange::AddTunnel(TunnelIndex(number.into()), Box::new(parameters)));
    }
    for number in 1..=9 {
        let inner = Inner::udp("10.0.0.1", "172.18.0.2", 9000);
        assert!(a.seal(Inner { ports: (number, 53), dont_fragment: true, ..inner }.bytes()).is_empty());
    }
    assert_eq!((a.worker.held_packets(), a.books().dropped), (9, 0));
    assert_eq!((a.worker.pool().linearised(), a.worker.pool().available()), (9, BUFFERS));
    negotiated(&mut a, 2, UseFrom::Now);
    let own = Policy::new(towards(2), Action::Protect(TunnelIndex(2)));
    assert!(a.worker.change_policies(vec![PolicyChange::Insert(Position::First, own)])[0].is_ok());
    a.settle();
    let sealed = a.unprotected.take();
    assert!(sealed.len() == 9 && sealed.iter().all(|datagram| datagram.len() > 9000));
    assert_eq!(a.worker.held_packets(), 0);
    a.assert_settled();
    // So does one that waits for the clock of its tunnel.
    let rules = PacketRules { clocked_packets_per_second: 1, ..PacketRules::default() };
    let clocked = TunnelSpec { path_mtu: 9200, rules, ..spec(2) };
    let (protected, unprotected) = (PortHandle::default(), PortHandle::default());
    protected.take_chains(&[1500]);
    let mut a = Gateway::on_links(protected, unprotected, clocked.policies(Side::A), size, portable());
    a.install(clocked.install(Side::A, &mut LeaseTwin::new(1 << 40), None));
    let packet = Inner { dont_fragment: true, ..Inner::udp("10.0.0.1", "172.18.0.2", 9000) };
    (0..9).for_each(|_| assert!(a.seal(packet.bytes()).is_empty()));
    assert_eq!((a.worker.held_packets(), a.books().dropped), (9, 0));
    assert_eq!((a.worker.pool().linearised(), a.worker.pool().available()), (9, BUFFERS));
}

/// A gateway with a quarter as many long buffers as frames, as the product has them, where packets come in
/// chains.
fn with_few_long_buffers(policies: Vec<Policy>) -> Gateway {
    let (protected, unprotected) = (PortHandle::default(), PortHandle::default());
    protected.take_chains(&[1500]);
    let ports = PortPair { protected: protected.port("in"), unprotected: unprotected.port("out") };
    let pool = Pool::new(256, 1584).with_long(64, 9300);
    let policies = Box::new(Spd::new(policies).expect("few ranges"));
    let worker = Worker::new(ports, pool, portable(), policies);
    Gateway { worker, protected, unprotected, clock: ManualClock::default() }
}

/// Buffers of both kinds that are free.
fn free(gateway: &Gateway) -> [usize; 2] {
    let pool = gateway.worker.pool();
    [pool.available(), pool.available_for(9000)]
}

/// A packet of 9,000 bytes from a host of this number.
fn jumbo(host: u8, tunnel: u8) -> Vec<u8> {
    let (from, to) = (format!("10.0.0.{host}"), format!("172.{}.0.2", 16 + tunnel));
    Inner { dont_fragment: true, ..Inner::udp(&from, &to, 9000) }.bytes()
}

/// Long buffers are few: what is merged before it waits has an eighth of them, too, and merging, reassembly
/// and other tunnels' packets are left the rest.
#[test]
fn packets_in_long_buffers_have_an_eighth_of_these_to_wait_in() {
    let to = |number| Policy::new(towards(number), Action::Protect(TunnelIndex(u32::from(number))));
    let mut a = with_few_long_buffers(vec![to(1), to(2)]);
    for number in [1, 2] {
        let wide = TunnelSpec { path_mtu: 9200, ..spec(number) };
        let parameters = TunnelParameters { acquires: true, ..wide.parameters(Side::A) };
        change(&mut a, SaChange::AddTunnel(TunnelIndex(number.into()), Box::new(parameters)));
    }
    let wait = |a: &mut Gateway, packets: Vec<Vec<u8>>, waiting: usize, dropped: u64| {
        packets.into_iter().for_each(|packet| assert!(a.seal(packet).is_empty()));
        assert_eq!((a.worker.held_packets(), a.drops(DropReason::HoldFull)), (waiting, dropped));
        free(a)
    };
    assert_eq!(wait(&mut a, (1..=5).map(|number| packet(1, number)).collect(), 5, 0), [251, 64]);
    assert_eq!(wait(&mut a, vec![jumbo(1, 1); 6], 11, 0), [251, 58]);
    assert_eq!(wait(&mut a, vec![jumbo(1, 1); 3], 11, 3), [251, 58], "what is left is for tunnels with few");
    // Of a host that has many, the oldest one in a long buffer makes room for another's.
    assert_eq!(wait(&mut a, vec![jumbo(9, 1)], 11, 4), [251, 58]);
    let short = (6..=10).map(|number| packet(1, number)).collect();
    assert_eq!(wait(&mut a, short, 16, 4), [246, 58], "frames are free");
    assert_eq!(wait(&mut a, vec![jumbo(1, 2); 3], 18, 5), [246, 56], "an eighth");
    a.assert_settled();
    for number in [1, 2] {
        negotiated(&mut a, number, UseFrom::Now);
    }
    a.settle();
    let lengths: Vec<_> = a.unprotected.take().iter().map(Vec::len).collect();
    let long = lengths.iter().filter(|bytes| **bytes > 9000).count();
    assert_eq!((lengths.len(), long, a.worker.held_packets()), (18, 8, 0));
    assert_eq!(free(&a), [256, 64]);
}

/// So it is with a clock.
#[test]
fn packets_in_long_buffers_have_an_eighth_of_these_at_a_clock() {
    let rules = PacketRules { clocked_packets_per_second: 100, ..PacketRules::default() };
    let specs = [1, 2].map(|number| TunnelSpec { path_mtu: 9200, rules: rules.clone(), ..spec(number) });
    let mut a = with_few_long_buffers(specs.iter().flat_map(|spec| spec.policies(Side::A)).collect());
    let mut store = LeaseTwin::new(1 << 40);
    specs.iter().for_each(|spec| a.install(spec.install(Side::A, &mut store, None)));
    let wait = |a: &mut Gateway, packets: Vec<Vec<u8>>, waiting: usize, dropped: u64| {
        packets.into_iter().for_each(|packet| assert!(a.seal(packet).is_empty()));
        assert_eq!((a.worker.held_packets(), a.drops(DropReason::ClockFull)), (waiting, dropped));
        free(a)
    };
    assert_eq!(wait(&mut a, vec![jumbo(1, 1); 7], 6, 1), [256, 58]);
    assert_eq!(wait(&mut a, (1..=5).map(|number| packet(1, number)).collect(), 11, 1), [251, 58]);
    assert_eq!(wait(&mut a, vec![jumbo(1, 2); 3], 13, 2), [251, 56]);
    // One leaves, and its place is another's.
    let now = a.now();
    a.worker.send_dummies(now);
    a.settle();
    assert_eq!((a.unprotected.take().len(), a.worker.held_packets(), free(&a)), (1, 12, [251, 57]));
    assert_eq!(wait(&mut a, vec![jumbo(1, 2); 2], 13, 3), [251, 56]);
    a.assert_settled();
}

/// No packet overtakes those that have waited, where they come in one turn.
#[test]
fn what_has_waited_leaves_before_what_comes_now() {
    let mut a = gateway([1].into_iter());
    (1..=10).for_each(|number| assert!(a.seal(packet(1, number)).is_empty()));
    negotiated(&mut a, 1, UseFrom::Now);
    a.protected.push(packet(1, 11));
    assert!(opened(&mut a, 1).into_iter().eq(1..=11));
}

#[test]
fn a_tunnel_that_acquires_nothing_drops_at_once() {
    let mut a = gateway([].into_iter());
    let policy = Policy::new(towards(1), Action::Protect(TunnelIndex(1)));
    assert!(a.worker.change_policies(vec![PolicyChange::Insert(Position::Last, policy)])[0].is_ok());
    add_tunnel(&mut a, 1, false);
    add_tunnel(&mut a, 2, true);
    assert!(a.seal(packet(1, 1)).is_empty());
    assert_eq!((a.drops(DropReason::NoSa), a.worker.held_packets()), (1, 0));
    assert!(asked(&mut a).is_empty());
}

/// The policy may be another one by then.
#[test]
fn policy_is_asked_again_when_the_wait_is_over() {
    let mut a = gateway([1].into_iter());
    a.seal(packet(1, 1));
    let id = a.worker.policies().policies().next().expect("a policy").0;
    let discard = Policy::new(towards(1), Action::Discard);
    assert!(a.worker.change_policies(vec![PolicyChange::Replace(id, discard)])[0].is_ok());
    negotiated(&mut a, 1, UseFrom::Now);
    a.settle();
    assert_eq!((a.unprotected.departed(), a.drops(DropReason::PolicyDiscard)), (0, 1));
    a.assert_settled();
}

#[test]
fn a_tunnel_that_goes_lets_its_packets_go() {
    let mut a = gateway([1].into_iter());
    a.seal(packet(1, 1));
    change(&mut a, SaChange::RemoveTunnel(TunnelIndex(1)));
    a.settle();
    assert_eq!((a.worker.held_packets(), a.drops(DropReason::NoSa)), (0, 1));
    // Neither does one that takes its place.
    add_tunnel(&mut a, 1, true);
    negotiated(&mut a, 1, UseFrom::Now);
    a.settle();
    assert_eq!(a.unprotected.departed(), 0);
    a.assert_settled();
}

#[test]
fn who_sends_on_is_told_of_again_and_a_gateway_that_ends_holds_nothing() {
    let mut a = gateway([1].into_iter());
    for _ in 0..3 {
        a.seal(packet(1, 1));
        assert_eq!(asked(&mut a).len(), 1);
        a.clock.advance(Duration::from_secs(2));
    }
    a.worker.discard_waiting();
    assert_eq!((a.worker.held_packets(), a.drops(DropReason::ShuttingDown)), (0, 3));
    a.assert_settled();
}

/// Over IPv6 the source alone may cut, and one that has done so may be cut again. What it has sent in
/// fragments is put together before it waits, and must not look afterwards like a packet that it sent whole:
/// it would be told of a path MTU that it has heeded.
#[test]
fn what_its_source_has_cut_may_be_cut_after_it_has_waited() {
    for outer in [Version::V4, Version::V6] {
        let spec = TunnelSpec { outer, mode: Mode::Transport, ..spec(1) };
        let tunnels = vec![spec.clone()];
        let mut a = Gateway::new(spec.policies(Side::A), PoolSize(BUFFERS, 9000), portable());
        let parameters = TunnelParameters { acquires: true, ..spec.parameters(Side::A) };
        change(&mut a, SaChange::AddTunnel(spec.index(), Box::new(parameters)));
        let whole = fragmentable(inner_of(&tunnels, 3000).bytes(), 7);
        // The second one is whole, short enough, and of the same SA: the mark is of one packet.
        let small = inner_of(&tunnels, 200).bytes();
        let too_long = Inner { dont_fragment: true, ..inner_of(&tunnels, 2000) }.bytes();
        fragments(&whole, 7, 1360).into_iter().for_each(|part| a.protected.push(part));
        [small.clone(), too_long].into_iter().for_each(|packet| a.protected.push(packet));
        a.settle();
        assert_eq!((a.worker.held_packets(), a.books().dropped), (3, 0), "{outer:?}");
        let outbound = spec.outbound(Side::A, &mut LeaseTwin::new(1 << 40));
        change(&mut a, SaChange::AddOutbound(spec.index(), Box::new(outbound), UseFrom::Now));
        a.settle();
        assert_eq!(a.drops(DropReason::TooBig), 1, "{outer:?}: what must not be cut");
        assert_eq!(a.protected.take().len(), 1, "{outer:?}: its sender alone is told the MTU");
        let mut b = Gateway::with_buffers(Side::B, &tunnels, PoolSize(64, 9000));
        a.unprotected.take().into_iter().for_each(|fragment| b.unprotected.push(fragment));
        b.settle();
        let opened = b.protected.take();
        assert_eq!(opened.len(), 2, "{outer:?}");
        assert!(opened.contains(&whole) && opened.contains(&small), "{outer:?}");
        a.assert_settled();
    }
}

fn tick(gateway: &mut Gateway) {
    let now = gateway.now();
    gateway.worker.tick(now);
}

/// The event was lost, or nobody was there to hear it: it comes again, with no packet more.
#[test]
fn a_tunnel_is_asked_for_again_every_second_while_packets_wait() {
    let mut a = gateway([1, 2].into_iter());
    assert!(a.seal(packet(1, 7)).is_empty());
    let first = asked(&mut a);
    assert_eq!(first.len(), 1);
    let mut told = Vec::new();
    // Ten times a second: time counts, and not how often it is looked at.
    for tenth in 1..=400 {
        a.clock.advance(Duration::from_millis(100));
        tick(&mut a);
        for asks in asked(&mut a) {
            assert_eq!(asks, first[0], "the same tunnel, policy and values");
            told.push(tenth);
        }
    }
    let seconds: Vec<u32> = (1..30).map(|second| 10 * second).collect();
    assert_eq!(told, seconds, "until the packet has waited for {HOLD:?}");
    assert_eq!(a.drops(DropReason::HoldExpired), 1);
}

/// What has its SA, is gone, or is for another tunnel by now is asked for no more.
#[test]
fn no_more_is_asked_for_than_packets_wait_for() {
    let mut a = gateway(1..=4);
    let ids: Vec<_> = a.worker.policies().policies().map(|(id, _)| id).collect();
    (1..=4).for_each(|tunnel| assert!(a.seal(packet(tunnel, 1)).is_empty()));
    assert_eq!(asked(&mut a).len(), 4);
    negotiated(&mut a, 1, UseFrom::Now);
    change(&mut a, SaChange::RemoveTunnel(TunnelIndex(2)));
    let discard = Policy::new(towards(3), Action::Discard);
    assert!(a.worker.change_policies(vec![PolicyChange::Replace(ids[2], discard)])[0].is_ok());
    a.clock.advance(Duration::from_secs(1));
    tick(&mut a);
    let again: Vec<_> = asked(&mut a).into_iter().map(|(tunnel, acquire)| (tunnel, acquire.policy)).collect();
    assert_eq!(again, [(TunnelIndex(4), ids[3])]);
    a.settle();
    assert_eq!(a.unprotected.take().len(), 1);
    // A packet that is told of puts the next time off.
    a.clock.advance(Duration::from_millis(1500));
    assert!(a.seal(packet(4, 2)).is_empty());
    assert_eq!(asked(&mut a).len(), 1);
    tick(&mut a);
    assert!(asked(&mut a).is_empty());
}

/// With more tunnels than are looked at in one call, each has its turn.
#[test]
fn many_tunnels_that_wait_are_asked_for_in_turn() {
    const TUNNELS: u32 = 600;
    let network = |number: u32| {
        let address = std::net::Ipv4Addr::from(0x1400_0000 + (number << 8));
        Prefix::new(address.into(), 24).expect("a prefix")
    };
    let any = Prefix::new(network_a(Version::V4).0, 8).expect("a prefix");
    let policy =
        |number| Policy::new(Selector::between(any, network(number)), Action::Protect(TunnelIndex(number)));
    let policies = (0..TUNNELS).map(policy).collect();
    let mut a = Gateway::new(policies, PoolSize(8 * BUFFERS, 2048), portable());
    for number in 0..TUNNELS {
        let parameters = TunnelParameters { acquires: true, ..spec(1).parameters(Side::A) };
        change(&mut a, SaChange::AddTunnel(TunnelIndex(number), Box::new(parameters)));
    }
    for number in 0..TUNNELS {
        let to = std::net::Ipv4Addr::from(0x1400_0001 + (number << 8)).to_string();
        assert!(a.seal(Inner::udp("10.0.0.1", &to, 100).bytes()).is_empty());
    }
    assert_eq!(a.worker.held_packets(), TUNNELS as usize);
    // One host may not ask for all of them at once; those that were left out come with the rest.
    assert!(asked(&mut a).len() < 100);
    let mut times = vec![0; TUNNELS as usize];
    for _ in 0..6 {
        a.clock.advance(Duration::from_secs(1));
        tick(&mut a);
        let told = asked(&mut a);
        assert!(told.len() <= 256, "{} in one call", told.len());
        told.iter().for_each(|(tunnel, _)| times[tunnel.0 as usize] += 1);
    }
    assert!(times.iter().all(|times| (2..=3).contains(times)), "{times:?}");
}

/// Floods to peers that do not answer take three quarters of the room; each other tunnel's first packets
/// still find some.
#[test]
fn a_flood_to_some_peers_leaves_room_for_the_first_packets_of_others() {
    let mut a = gateway(1..=20);
    for tunnel in 1..=4 {
        (0..2 * MAX_HELD as u16).for_each(|number| assert!(a.seal(packet(tunnel, number)).is_empty()));
    }
    assert_eq!(a.worker.held_packets(), ROOM - ROOM / 4 + 8, "four of each that came late");
    let before = a.drops(DropReason::HoldFull);
    for tunnel in 5..=10 {
        (0..4).for_each(|number| assert!(a.seal(packet(tunnel, number)).is_empty()));
    }
    assert_eq!((a.worker.held_packets(), a.drops(DropReason::HoldFull)), (ROOM, before));
    // All of it is taken: what comes now finds none, and nobody else's packets make any.
    a.seal(packet(11, 1));
    assert_eq!((a.worker.held_packets(), a.drops(DropReason::HoldFull)), (ROOM, before + 1));
    negotiated(&mut a, 5, UseFrom::Now);
    assert_eq!(opened(&mut a, 5).len(), 4);
    a.assert_settled();
}

/// A host that floods has what nobody else wants, and loses its oldest packets first; others lose none to it.
#[test]
fn a_sender_that_floods_a_tunnel_leaves_room_for_those_beside_it() {
    let mut a = gateway([1].into_iter());
    let flood = MAX_HELD as u16 + 100;
    for number in 0..flood {
        assert!(a.seal(packet_of(1, 1, number)).is_empty());
    }
    assert_eq!((a.worker.held_packets(), a.drops(DropReason::HoldFull)), (MAX_HELD, 100));
    // Four hosts with three packets each, and the flood in between.
    for number in 0..12 {
        assert!(a.seal(packet_of(2 + number as u8 % 4, 1, 1000 + number)).is_empty());
        assert!(a.seal(packet_of(1, 1, 2000 + number)).is_empty());
    }
    assert_eq!((a.worker.held_packets(), a.drops(DropReason::HoldFull)), (MAX_HELD, 124));
    negotiated(&mut a, 1, UseFrom::Now);
    let expected = (12..MAX_HELD as u16).chain(1000..1012);
    assert!(opened(&mut a, 1).into_iter().eq(expected), "the flood's first ones made room");
    a.assert_settled();
}

/// Two hosts that both flood end with half of the places each, whichever came first.
#[test]
fn senders_that_want_more_than_there_is_get_equal_shares() {
    for order in [[1, 2], [2, 1]] {
        let mut a = gateway([1].into_iter());
        for host in order {
            (0..2 * MAX_HELD as u16).for_each(|number| {
                assert!(a.seal(packet_of(host, 1, u16::from(host) * 1000 + number)).is_empty());
            });
        }
        negotiated(&mut a, 1, UseFrom::Now);
        let hosts: Vec<u16> = opened(&mut a, 1).into_iter().map(|number| number / 1000).collect();
        let of = |host: u16| hosts.iter().filter(|other| **other == host).count();
        assert_eq!((of(1), of(2)), (MAX_HELD / 2, MAX_HELD / 2), "{order:?}");
        a.assert_settled();
    }
}

/// The same where all tunnels together have used the room up, and not the tunnel its own.
#[test]
fn a_sender_makes_room_in_its_tunnel_where_all_tunnels_have_used_theirs() {
    let mut a = gateway(1..=20);
    for tunnel in 1..=20 {
        (0..40).for_each(|number| assert!(a.seal(packet(tunnel, number)).is_empty()));
    }
    let (held, before) = (a.worker.held_packets(), a.drops(DropReason::HoldFull));
    assert!(a.seal(packet_of(2, 1, 1000)).is_empty());
    assert_eq!((a.worker.held_packets(), a.drops(DropReason::HoldFull)), (held, before + 1));
    negotiated(&mut a, 1, UseFrom::Now);
    assert!(opened(&mut a, 1).into_iter().eq((1..40).chain([1000])));
    a.assert_settled();
}

/// ESP in tunnel 1, which AH in tunnel 2 covers.
fn covered() -> [TunnelSpec; 2] {
    let ah = TunnelSpec {
        covers: Some(1),
        protocol: IpsecProtocol::Ah,
        mode: Mode::Transport,
        ..TunnelSpec::new(2, Suite::NULL_SHA384)
    };
    [TunnelSpec { covered_by: Some(2), path_mtu: 1400, ..spec(1) }, ah]
}

/// The numbers of the packets that have left, opened by a peer that has both SAs.
fn opened_twice(gateway: &mut Gateway) -> Vec<u16> {
    gateway.settle();
    let mut peer = Gateway::with_tunnels(Side::B, &covered());
    let packets = gateway.unprotected.take().into_iter().flat_map(|datagram| peer.open(datagram));
    packets.map(|packet| u16::from_be_bytes([packet[20], packet[21]])).collect()
}

/// AH over ESP: released with the first SA alone, packets would be sealed by ESP and dropped.
#[test]
fn packets_that_two_sas_protect_wait_for_both() {
    let specs = covered();
    for [first, second] in [[0, 1], [1, 0]] {
        let mut a = Gateway::new(specs[0].policies(Side::A), PoolSize(BUFFERS, 2048), portable());
        for spec in &specs {
            let parameters = TunnelParameters { acquires: true, ..spec.parameters(Side::A) };
            change(&mut a, SaChange::AddTunnel(spec.index(), Box::new(parameters)));
        }
        let mut store = LeaseTwin::new(1 << 40);
        let mut add = |a: &mut Gateway, at: usize| {
            let outbound = specs[at].outbound(Side::A, &mut store);
            change(a, SaChange::AddOutbound(specs[at].index(), Box::new(outbound), UseFrom::Now));
        };
        (1..=3).for_each(|number| assert!(a.seal(packet(1, number)).is_empty()));
        let told: Vec<_> = asked(&mut a).into_iter().map(|(tunnel, _)| tunnel).collect();
        assert_eq!(told, [TunnelIndex(1)]);
        add(&mut a, first);
        assert!(a.seal(packet(1, 4)).is_empty());
        assert_eq!((a.worker.held_packets(), a.books().dropped), (4, 0), "{first} first");
        a.clock.advance(Duration::from_secs(1));
        tick(&mut a);
        let told: Vec<_> = asked(&mut a).into_iter().map(|(tunnel, _)| tunnel).collect();
        assert_eq!(told, [specs[second].index()], "the one that is not there");
        add(&mut a, second);
        assert_eq!(opened_twice(&mut a), [1, 2, 3, 4], "{first} first");
        assert_eq!(a.books().dropped, 0);
        a.assert_settled();
    }
}

/// The SA of AH goes: what ESP would seal in vain waits for the next one.
#[test]
fn packets_wait_where_the_sa_that_covers_them_is_gone() {
    let specs = covered();
    let mut a = Gateway::new(specs[0].policies(Side::A), PoolSize(BUFFERS, 2048), portable());
    // Its second lease is near enough for a peer that has seen nothing of the first.
    let mut store = LeaseTwin::new(1 << 20);
    for spec in &specs {
        let install = spec.install(Side::A, &mut store, None);
        let parameters = TunnelParameters { acquires: true, ..install.parameters };
        a.install(TunnelInstall { parameters, ..install });
    }
    assert_eq!(a.seal(packet(1, 1)).len(), 1);
    let removed = SaChange::RemoveOutbound(TunnelIndex(2), specs[1].spi_from(Side::A));
    change(&mut a, removed);
    assert!(a.seal(packet(1, 2)).is_empty());
    let told: Vec<_> = asked(&mut a).into_iter().map(|(tunnel, _)| tunnel).collect();
    assert_eq!((told, a.worker.held_packets()), (vec![TunnelIndex(2)], 1));
    // The same where its tunnel goes, and comes again.
    change(&mut a, SaChange::RemoveTunnel(TunnelIndex(2)));
    assert!(a.seal(packet(1, 3)).is_empty());
    a.install(specs[1].install(Side::A, &mut store, None));
    assert_eq!(opened_twice(&mut a), [2, 3]);
    change(&mut a, SaChange::RemoveTunnel(TunnelIndex(2)));
    assert!(a.seal(packet(1, 4)).is_empty());
    assert_eq!((a.worker.held_packets(), a.books().dropped), (1, 0));
    a.worker.discard_waiting();
    a.assert_settled();
}

/// Drops a packet that finds as many of its tunnel waiting as may.
pub(crate) fn more_than_may_wait() -> Gateway {
    let mut a = gateway([1].into_iter());
    (0..=MAX_HELD as u16).for_each(|number| assert!(a.seal(packet(1, number)).is_empty()));
    assert_eq!(a.worker.held_packets(), MAX_HELD);
    a
}

/// Drops a packet whose SA never comes, and not a moment earlier than it may.
pub(crate) fn in_vain() -> Gateway {
    let mut a = gateway([1].into_iter());
    a.seal(packet(1, 1));
    a.clock.advance(HOLD - Duration::from_millis(1));
    let now = a.now();
    a.worker.tick(now);
    assert_eq!(a.worker.held_packets(), 1);
    a.clock.advance(Duration::from_millis(1));
    let now = a.now();
    a.worker.tick(now);
    a
}
