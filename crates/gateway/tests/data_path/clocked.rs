//! Packet clocking (section 5.1 of the paper on VPE): a tunnel sends one packet at each tick of a worker's
//! clock, whatever it has to send.

use super::encapsulations::{every_kind, packet as packet_of, payload_at};
use super::path_mtu::too_big;
use super::traffic_flow::run;
use crate::support::gateway::{PoolSize, portable};
use crate::support::{Gateway, Inner, LeaseTwin, PortHandle, Side, TunnelSpec};
use crate::workers::install_at;
use fastrand::Rng;
use std::collections::{HashSet, VecDeque};
use std::ops::Range;
use std::time::{Duration, Instant};
use testudo_crypto::Suite;
use testudo_gateway::{Role, SaChange, TunnelInstall, Update, UseFrom};
use testudo_ipsec::{
    Action, Df, EventKind, FlowLabel, HOLD, IpsecProtocol, LEAST_CLOCK_ROOM, Lifetime, Limits,
    MOST_TICKS_AT_ONCE, Mode, Moment, PacketRules, Policy, PolicyChange, PortRange, Position, Selector,
    TunnelParameters,
};
use testudo_packet::DropReason;
use testudo_wire::ip::Version;
use testudo_wire::protocol;

const RATE: u16 = 100;
const PERIOD: Duration = Duration::from_millis(10);
const SUITE: Suite = Suite::AES128GCM16;

/// The tunnel with a clock, and packets padded to this length, if it is not 0.
fn clocked(spec: TunnelSpec, pad_to: u16) -> TunnelSpec {
    let rules = PacketRules { clocked_packets_per_second: RATE, tfc_pad_to: pad_to, ..spec.rules.clone() };
    TunnelSpec { rules, ..spec }
}

/// Tunnels whose packets are framed in runs, one by one, and in windows.
fn kinds() -> [TunnelSpec; 3] {
    [TunnelSpec::new(0, SUITE), TunnelSpec::new(0, Suite::AES256_SHA256), crate::vpe::spec()]
}

fn gateway(side: Side, spec: &TunnelSpec) -> Gateway {
    Gateway::with_buffers(side, std::slice::from_ref(spec), PoolSize(1024, 2048))
}

/// Packet number `number` of one flow.
fn packet(number: u16) -> Vec<u8> {
    Inner { seed: u64::from(number), ..Inner::udp("10.0.0.1", "172.16.0.2", 100) }.bytes()
}

/// Has packets of these numbers wait.
fn wait(a: &mut Gateway, numbers: Range<u16>) {
    numbers.for_each(|number| assert!(a.seal(packet(number)).is_empty(), "{number} waits"));
}

fn open_all(b: &mut Gateway, wire: impl IntoIterator<Item = Vec<u8>>) -> Vec<Vec<u8>> {
    wire.into_iter().flat_map(|datagram| b.open(datagram)).collect()
}

fn change(gateway: &mut Gateway, change: SaChange) {
    let now = gateway.now();
    gateway.worker.change_sa(change, now).expect("it can be changed");
}

/// Tunnels of every kind that would copy what they can into outer headers of either version.
fn kinds_that_copy() -> impl Iterator<Item = TunnelSpec> {
    let copy = |spec: TunnelSpec, outer| {
        let rules = PacketRules { df: Df::Copy, flow_label: FlowLabel::PerFlow, ..spec.rules.clone() };
        TunnelSpec { outer, rules, ..spec }
    };
    kinds()
        .into_iter()
        .flat_map(move |spec| [Version::V4, Version::V6].map(|outer| copy(spec.clone(), outer)))
}

/// Packet number `number`: flows, DSCP, ECN and DF change from one to the next.
fn varied(number: u16) -> Vec<u8> {
    let inner = Inner::udp("10.0.0.1", "172.16.0.2", 100);
    let traffic_class = [0, 1, 0xBA, 0x2B][usize::from(number) % 4];
    let (ports, dont_fragment) = ((5000 + number % 3, 53), number.is_multiple_of(2));
    Inner { seed: u64::from(number), traffic_class, ports, dont_fragment, ..inner }.bytes()
}

/// Nothing, less and more than there are ticks for: who watches sees the same lengths and outer headers at
/// the same times. The peer gets all but what found no room, in order, and as it was.
#[test]
fn a_clocked_tunnel_sends_one_packet_at_each_tick_whatever_it_has_to_send() {
    for spec in kinds_that_copy() {
        let (spec, header) = (clocked(spec.clone(), 700), spec.outer.header_bytes());
        let reason = match spec.protocol {
            IpsecProtocol::Vpe => DropReason::VpeFill,
            _ => DropReason::DummyPacket,
        };
        let mut seen = HashSet::new();
        // In each tenth of a second, in which there are ten ticks.
        for load in [0, 3, 30_u16] {
            let (mut a, mut b) = (gateway(Side::A, &spec), gateway(Side::B, &spec));
            let (mut wire, mut end) = (Vec::new(), Duration::ZERO);
            for step in 0..10 {
                for number in step * load..(step + 1) * load {
                    assert!(a.seal(varied(number)).is_empty(), "{number} waits");
                }
                a.assert_settled();
                end += 10 * PERIOD;
                wire.extend(run(&mut a, end.saturating_sub(Duration::from_millis(1))));
            }
            assert!(wire.iter().map(|(at, _)| *at).eq((0..100_u32).map(|tick| tick * PERIOD)), "{load}");
            let in_clear =
                |(at, datagram): &(Duration, Vec<u8>)| (*at, datagram.len(), datagram[..header].to_vec());
            seen.insert(wire.iter().map(in_clear).collect::<Vec<_>>());
            let opened = open_all(&mut b, wire.into_iter().map(|(_, datagram)| datagram));
            let mut sent = (0..10 * load).map(varied);
            assert!(opened.iter().all(|packet| sent.any(|sent| sent == *packet)), "{load}: in order");
            let (dropped, waiting) = (a.drops(DropReason::ClockFull), a.worker.held_packets());
            assert_eq!(opened.len() + dropped as usize + waiting, usize::from(10 * load));
            assert_eq!(
                opened.len(),
                usize::from((10 * load).min(100)),
                "no tick without a packet that waits"
            );
            assert_eq!(b.drops(reason), 100 - opened.len() as u64);
            assert_eq!(a.books().dropped, dropped);
            assert_eq!(dropped > 0, load == 30);
            a.assert_settled();
            b.assert_settled();
        }
        assert_eq!(seen.len(), 1, "one picture, whatever the load: {:?}", spec.protocol);
    }
}

/// One packet takes a tick of a dummy in every encapsulation; AH hides nothing, and has no clock.
#[test]
fn every_encapsulation_but_ah_has_a_clock() {
    for tunnels in every_kind() {
        let tunnels: Vec<_> = tunnels.into_iter().map(|spec| clocked(spec, 0)).collect();
        let (mut a, mut b) =
            (Gateway::with_tunnels(Side::A, &tunnels), Gateway::with_tunnels(Side::B, &tunnels));
        let sent = packet_of(&tunnels, 100);
        let at_once = a.seal(sent.clone());
        if tunnels[0].protocol == IpsecProtocol::Ah {
            assert_eq!((at_once.len(), a.worker.next_dummy()), (1, None));
            continue;
        }
        assert!(at_once.is_empty());
        let wire = run(&mut a, 9 * PERIOD);
        assert_eq!(wire.len(), 10, "{tunnels:?}");
        let opened = open_all(&mut b, wire.into_iter().map(|(_, datagram)| datagram));
        // The checksum of UDP is made anew behind a NAT, and this payload never had a right one.
        let is_fixed = tunnels[0].udp && tunnels[0].mode == Mode::Transport;
        let end = if is_fixed { payload_at(&sent) + 6 } else { sent.len() };
        assert_eq!((opened.len(), &opened[0][..end]), (1, &sent[..end]), "{tunnels:?}");
        a.assert_settled();
        b.assert_settled();
    }
}

/// Loads, and moments at which the worker looks at its clock, by chance: what is sent when, and what is
/// dropped, is what a slow model says.
#[test]
fn a_clock_agrees_with_a_slow_model() {
    for seed in 0..12 {
        let mut random = Rng::with_seed(seed);
        let spec = clocked(kinds()[seed as usize % 3].clone(), [0, 300][seed as usize % 2]);
        let (mut a, mut b) = (gateway(Side::A, &spec), gateway(Side::B, &spec));
        let (mut queue, mut dropped, mut number) = (VecDeque::new(), 0, 0);
        let (mut now_ms, mut tick_ms) = (0_usize, 0_usize);
        for _ in 0..300 {
            for _ in 0..random.usize(..12) {
                number += 1;
                assert!(a.seal(packet(number)).is_empty());
                if queue.len() < LEAST_CLOCK_ROOM { queue.push_back(number) } else { dropped += 1 }
            }
            let ms = if random.usize(..10) == 0 { random.usize(..200) } else { random.usize(..30) };
            now_ms += ms;
            a.clock.advance(Duration::from_millis(ms as u64));
            let ticks = (tick_ms..=now_ms).step_by(10).count();
            tick_ms += 10 * ticks;
            let now = a.now();
            a.worker.send_dummies(now);
            a.settle();
            let wire = a.unprotected.take();
            assert_eq!(wire.len(), ticks.min(MOST_TICKS_AT_ONCE as usize), "seed {seed}, {now_ms} ms");
            let due = (0..wire.len()).map_while(|_| queue.pop_front()).map(packet);
            let due: Vec<_> = due.collect();
            assert_eq!(open_all(&mut b, wire), due, "seed {seed}, {now_ms} ms");
            a.assert_settled();
        }
        assert_eq!((a.drops(DropReason::ClockFull), a.books().dropped), (dropped, dropped), "seed {seed}");
        assert!(dropped > 0 && number > 1000, "seed {seed}: {dropped} of {number}");
        b.assert_settled();
    }
}

/// The last ones to come are dropped, and counted on the SA. A tunnel that has a lot to send leaves another
/// one room where all have little.
#[test]
fn packets_that_find_no_room_at_a_clock_are_dropped_by_name() {
    let spec = clocked(crate::vpe::spec(), 0);
    let mut a = Gateway::new(spec.policies(Side::A), PoolSize(1024, 2048), portable());
    let installed = a.install_seen(spec.install(Side::A, &mut LeaseTwin::new(1 << 40), None));
    let room = LEAST_CLOCK_ROOM as u16;
    wait(&mut a, 0..room + 5);
    assert_eq!((a.drops(DropReason::ClockFull), a.worker.held_packets()), (5, LEAST_CLOCK_ROOM));
    assert_eq!(installed.outbound.counters.drops(DropReason::ClockFull), 5);
    let mut b = gateway(Side::B, &spec);
    let wire = run(&mut a, u32::from(room - 1) * PERIOD).into_iter().map(|(_, datagram)| datagram);
    assert_eq!(open_all(&mut b, wire), (0..room).map(packet).collect::<Vec<_>>());
    a.assert_settled();
    let both = [0, 1].map(|number| clocked(TunnelSpec::new(number, SUITE), 0));
    let mut a = Gateway::with_buffers(Side::A, &both, PoolSize(128, 2048));
    wait(&mut a, 0..30);
    assert_eq!((a.drops(DropReason::ClockFull), a.worker.held_packets()), (18, 12), "of sixteen places");
    (0..5).for_each(|_| assert!(a.seal(Inner::udp("10.0.0.1", "172.17.0.2", 100).bytes()).is_empty()));
    assert_eq!(
        (a.drops(DropReason::ClockFull), a.worker.held_packets()),
        (19, 16),
        "four for those with few"
    );
    a.assert_settled();
}

/// Drops a packet that finds as many of its tunnel waiting for its clock as may.
pub(crate) fn more_than_may_wait() -> Gateway {
    let mut a = gateway(Side::A, &clocked(TunnelSpec::new(0, SUITE), 0));
    wait(&mut a, 0..LEAST_CLOCK_ROOM as u16 + 1);
    a
}

/// Drops a packet to which no tick comes, and not a moment earlier than it may.
pub(crate) fn in_vain() -> Gateway {
    let mut a = gateway(Side::A, &clocked(TunnelSpec::new(0, SUITE), 0));
    wait(&mut a, 0..1);
    for (step, waiting) in [(HOLD - Duration::from_millis(1), 1), (Duration::from_millis(1), 0)] {
        a.clock.advance(step);
        let now = a.now();
        a.worker.tick(now);
        assert_eq!(a.worker.held_packets(), waiting);
    }
    a
}

/// A worker that was away, or whose port was stuck, makes up for few ticks, whether packets wait or not, and
/// keeps its beat.
#[test]
fn missed_ticks_are_made_up_for_by_few_packets() {
    let spec = clocked(TunnelSpec::new(0, SUITE), 0);
    for waiting in [0, 20] {
        let mut a = gateway(Side::A, &spec);
        assert_eq!(run(&mut a, 9 * PERIOD).len(), 10);
        wait(&mut a, 0..waiting);
        a.clock.advance(Duration::from_secs(3600) + PERIOD / 2);
        let now = a.now();
        a.worker.send_dummies(now);
        a.settle();
        assert_eq!(a.unprotected.take().len() as u64, MOST_TICKS_AT_ONCE, "{waiting} waited");
        assert_eq!(a.worker.next_dummy().map(|due| due.since(now)), Some(PERIOD / 2), "no other beat");
        // The port takes nothing for a while: no tick is due meanwhile.
        a.unprotected.set_room(Some(0));
        a.clock.advance(PERIOD);
        let now = a.now();
        a.worker.send_dummies(now);
        a.clock.advance(Duration::from_secs(10));
        let now = a.now();
        a.worker.send_dummies(now);
        assert_eq!((a.worker.next_dummy(), a.unprotected.departed()), (None, 0));
        a.unprotected.set_room(None);
        a.settle();
        assert_eq!(a.unprotected.take().len(), 1, "what waited for the port");
        a.worker.send_dummies(now);
        a.settle();
        assert_eq!(a.unprotected.take().len() as u64, MOST_TICKS_AT_ONCE);
        a.assert_settled();
    }
}

/// Each piece of a packet that is cut has a tick of its own, in the window of its flow; so have those of a
/// packet that came in a chain of buffers.
#[test]
fn each_piece_of_a_long_packet_has_its_own_tick() {
    let long = Inner::udp("10.0.0.1", "172.16.0.2", 3000).bytes();
    for spec in kinds() {
        for (pad_to, in_chains) in [(0, false), (0, true), (1400, false), (1400, true)] {
            let spec = clocked(spec.clone(), pad_to);
            let protected = PortHandle::default();
            if in_chains {
                protected.take_chains(&[600]);
            }
            let (policies, buffers) = (spec.policies(Side::A), PoolSize(256, 9000));
            let mut a = Gateway::on_links(protected, PortHandle::default(), policies, buffers, portable());
            a.install(spec.install(Side::A, &mut LeaseTwin::new(1 << 40), None));
            let mut b = gateway(Side::B, &spec);
            for packet in [packet(1), long.clone(), packet(2)] {
                assert!(a.seal(packet).is_empty());
            }
            let wire = run(&mut a, 4 * PERIOD);
            assert!(wire.iter().map(|(at, _)| *at).eq((0..5_u32).map(|tick| tick * PERIOD)));
            let wire: Vec<_> = wire.into_iter().map(|(_, datagram)| datagram).collect();
            assert!(wire.iter().all(|datagram| datagram.len() <= spec.path_mtu));
            if spec.protocol == IpsecProtocol::Vpe {
                let windows = wire.iter().map(|datagram| crate::vpe::header_of(datagram).window);
                assert_eq!(windows.collect::<HashSet<_>>().len(), 1, "all are of one flow");
            }
            let opened = open_all(&mut b, wire);
            assert_eq!((opened.len(), &opened[0], &opened[4]), (5, &packet(1), &packet(2)));
            let pieces: Vec<u8> = opened[1..4].iter().flat_map(|piece| piece[20..].to_vec()).collect();
            assert!(pieces == long[20..], "padded to {pad_to}, in chains: {in_chains}");
            assert_eq!(a.books().dropped, 0);
            a.assert_settled();
        }
    }
}

/// The sender of a packet that is too long is told at the packet's tick, which is then a dummy's.
#[test]
fn a_packet_that_is_too_long_leaves_its_tick_to_another() {
    let spec = clocked(crate::vpe::spec(), 0);
    let (mut a, mut b) = (gateway(Side::A, &spec), gateway(Side::B, &spec));
    let long = Inner { dont_fragment: true, ..Inner::udp("10.0.0.1", "172.16.0.2", 1500) };
    for next in [None, Some(packet(1))] {
        assert!(a.seal(long.bytes()).is_empty());
        next.iter().for_each(|packet| assert!(a.seal(packet.clone()).is_empty()));
        let due = a.worker.next_dummy().expect("a clock");
        let wire = run(&mut a, due.0);
        assert_eq!((wire.len(), a.protected.take().len()), (1, 1));
        assert!(open_all(&mut b, wire.into_iter().map(|(_, datagram)| datagram)).into_iter().eq(next));
    }
    assert_eq!((a.drops(DropReason::TooBig), a.books().dropped), (2, 2));
    a.assert_settled();
}

/// "Packet too big" about a datagram of a clocked tunnel is believed as about any other.
#[test]
fn the_path_of_a_clocked_tunnel_is_learned() {
    for spec in kinds() {
        let spec = clocked(spec, 1448);
        let mut a = gateway(Side::A, &spec);
        let full = run(&mut a, Duration::ZERO).remove(0).1;
        a.open(too_big(&full, 1300));
        assert_eq!(a.drops(DropReason::IcmpBelieved), 1, "{:?}", spec.protocol);
        wait(&mut a, 0..5);
        let wire = run(&mut a, 10 * PERIOD);
        let lengths: HashSet<_> = wire.iter().map(|(_, datagram)| datagram.len()).collect();
        assert!(wire.len() == 10 && lengths.len() == 1 && lengths.iter().all(|bytes| *bytes <= 1300));
        a.assert_settled();
    }
}

/// What waits is sealed with the key that is in use at its tick, and goes as other packets of its tunnel do
/// if there is none.
#[test]
fn waiting_packets_are_sealed_with_the_sa_of_their_tick() {
    let new = TunnelSpec::new(5, SUITE);
    let spi = |datagram: &[u8]| u32::from_be_bytes(datagram[20..24].try_into().expect("an SPI"));
    for acquires in [false, true] {
        let spec = clocked(TunnelSpec::new(0, SUITE), 0);
        let mut a = Gateway::new(spec.policies(Side::A), PoolSize(1024, 2048), portable());
        let install = spec.install(Side::A, &mut LeaseTwin::new(1 << 40), None);
        let parameters = TunnelParameters { acquires, ..install.parameters };
        a.install(TunnelInstall { parameters, ..install });
        let mut b = gateway(Side::B, &spec);
        change(&mut b, SaChange::AddInbound(spec.index(), Box::new(new.inbound(Side::B))));
        wait(&mut a, 0..20);
        let first = run(&mut a, 4 * PERIOD);
        assert!(first.iter().all(|(_, datagram)| spi(datagram) == spec.spi_from(Side::A)));
        let outbound = || Box::new(new.outbound(Side::A, &mut LeaseTwin::new(1 << 40)));
        change(&mut a, SaChange::AddOutbound(spec.index(), outbound(), UseFrom::Now));
        change(&mut a, SaChange::RemoveOutbound(spec.index(), spec.spi_from(Side::A)));
        let second = run(&mut a, 9 * PERIOD);
        assert!(second.iter().all(|(_, datagram)| spi(datagram) == new.spi_from(Side::A)));
        let wire = first.into_iter().chain(second).map(|(_, datagram)| datagram);
        assert_eq!(open_all(&mut b, wire), (0..10).map(packet).collect::<Vec<_>>());
        change(&mut a, SaChange::RemoveOutbound(spec.index(), new.spi_from(Side::A)));
        // Those that come before the next tick stay behind the others.
        wait(&mut a, 20..25);
        assert!(run(&mut a, 14 * PERIOD).is_empty());
        if acquires {
            assert_eq!((a.worker.held_packets(), a.books().dropped), (15, 0));
            change(&mut b, SaChange::RemoveInbound(spec.index(), new.spi_from(Side::A)));
            change(&mut b, SaChange::AddInbound(spec.index(), Box::new(new.inbound(Side::B))));
            change(&mut a, SaChange::AddOutbound(spec.index(), outbound(), UseFrom::Now));
            a.settle();
            assert_eq!(
                (a.unprotected.departed(), a.worker.held_packets()),
                (0, 15),
                "they wait for ticks now"
            );
            let wire = run(&mut a, 29 * PERIOD).into_iter().map(|(_, datagram)| datagram);
            assert_eq!(open_all(&mut b, wire), (10..25).map(packet).collect::<Vec<_>>());
        } else {
            assert_eq!((a.worker.held_packets(), a.drops(DropReason::NoSa)), (0, 15));
        }
        a.assert_settled();
    }
}

/// Nothing is sent to a peer that is unknown, and no more than a key may seal: what waits is dropped as it
/// would be without a clock.
#[test]
fn a_clock_keeps_to_what_its_sa_allows() {
    let unknown = TunnelSpec { udp: true, b_learns: true, ..TunnelSpec::new(0, SUITE) };
    let mut b = gateway(Side::B, &clocked(unknown, 0));
    assert!(b.seal(Inner::udp("172.16.0.2", "10.0.0.1", 100).bytes()).is_empty());
    assert!(run(&mut b, Duration::from_secs(1)).is_empty());
    assert_eq!((b.drops(DropReason::PeerUnknown), b.worker.held_packets()), (1, 0));
    let hard = Limits { packets: Some(30), ..Limits::default() };
    let lifetime = Lifetime { soft: Limits::default(), hard };
    for spec in kinds() {
        let mut a = gateway(Side::A, &clocked(TunnelSpec { lifetime, ..spec }, 0));
        assert_eq!(run(&mut a, 4 * PERIOD).len(), 5);
        wait(&mut a, 0..40);
        assert_eq!(run(&mut a, Duration::from_secs(1)).len(), 25);
        assert_eq!((a.drops(DropReason::LifetimeExpired), a.worker.held_packets()), (15, 0));
        a.assert_settled();
    }
    b.assert_settled();
}

/// Policy decides when a packet is sent: what was meant for the tunnel may be discarded by then.
#[test]
fn policy_is_asked_again_at_the_tick() {
    let spec = clocked(TunnelSpec::new(0, SUITE), 0);
    let (mut a, mut b) = (gateway(Side::A, &spec), gateway(Side::B, &spec));
    wait(&mut a, 0..3);
    assert_eq!(run(&mut a, Duration::ZERO).len(), 1);
    let discard = Policy::new(Selector::ANY, Action::Discard);
    assert!(a.worker.change_policies(vec![PolicyChange::Insert(Position::First, discard)])[0].is_ok());
    let wire = run(&mut a, 5 * PERIOD).into_iter().map(|(_, datagram)| datagram);
    assert!(open_all(&mut b, wire.collect::<Vec<_>>()).is_empty());
    assert_eq!(
        (a.drops(DropReason::PolicyDiscard), b.drops(DropReason::DummyPacket)),
        (2, 5),
        "at each tick one"
    );
    a.assert_settled();
}

fn insert_first(a: &mut Gateway, selector: Selector, action: Action) {
    let policy = Policy::new(selector, action);
    assert!(a.worker.change_policies(vec![PolicyChange::Insert(Position::First, policy)])[0].is_ok());
}

/// DNS alone, by its port.
fn dns() -> Selector {
    Selector { protocol: protocol::UDP.into(), remote_ports: PortRange::one(53), ..Selector::ANY }
}

/// Pieces hide their ports: they go where the whole does, in the same window, whatever policy says of
/// fragments.
#[test]
fn pieces_of_a_packet_go_where_the_whole_does() {
    let long = Inner::udp("10.0.0.1", "172.16.0.2", 3000).bytes();
    let fragments = Selector { remote_ports: PortRange::OPAQUE, ..dns() };
    for elsewhere in [Action::Discard, Action::Protect(TunnelSpec::new(1, SUITE).index())] {
        let spec = clocked(TunnelSpec::new(0, SUITE), 0);
        let policies =
            vec![Policy::new(dns(), Action::Protect(spec.index())), Policy::new(fragments, elsewhere)];
        let mut a = Gateway::new(policies, PoolSize(256, 9000), portable());
        for spec in [&spec, &TunnelSpec::new(1, SUITE)] {
            a.install(spec.install(Side::A, &mut LeaseTwin::new(1 << 40), None));
        }
        assert!(a.seal(long.clone()).is_empty());
        let wire = run(&mut a, 2 * PERIOD).into_iter().map(|(_, datagram)| datagram);
        let opened = open_all(&mut gateway(Side::B, &spec), wire);
        let payload: Vec<u8> = opened.iter().flat_map(|piece| piece[20..].to_vec()).collect();
        assert!(opened.len() == 3 && payload == long[20..], "{elsewhere:?}");
        assert_eq!(a.books().dropped, 0);
        a.assert_settled();
    }
}

/// An SA that goes while a packet leaves in pieces: what is left of it waits for the next one as a whole,
/// with its ports, and takes one place however long it is.
#[test]
fn what_is_left_of_a_packet_waits_for_the_next_sa_as_a_whole() {
    let long = Inner::udp("10.0.0.1", "172.16.0.2", 3000).bytes();
    let spec = clocked(TunnelSpec::new(0, SUITE), 0);
    let policies = vec![Policy::new(dns(), Action::Protect(spec.index()))];
    let mut a = Gateway::new(policies, PoolSize(256, 9000), portable());
    let install = spec.install(Side::A, &mut LeaseTwin::new(1 << 40), None);
    let parameters = TunnelParameters { acquires: true, ..install.parameters };
    a.install(TunnelInstall { parameters, ..install });
    assert!(a.seal(long.clone()).is_empty());
    assert_eq!(run(&mut a, Duration::ZERO).len(), 1);
    assert_eq!((a.worker.held_packets(), a.worker.pool().in_use()), (1, 1));
    change(&mut a, SaChange::RemoveOutbound(spec.index(), spec.spi_from(Side::A)));
    a.settle();
    assert_eq!((a.worker.held_packets(), a.books().dropped), (1, 0));
    let new = TunnelSpec::new(5, SUITE);
    let outbound = Box::new(new.outbound(Side::A, &mut LeaseTwin::new(1 << 40)));
    change(&mut a, SaChange::AddOutbound(spec.index(), outbound, UseFrom::Now));
    a.settle();
    let mut b = gateway(Side::B, &spec);
    change(&mut b, SaChange::AddInbound(spec.index(), Box::new(new.inbound(Side::B))));
    let wire = run(&mut a, 3 * PERIOD).into_iter().map(|(_, datagram)| datagram);
    let opened = open_all(&mut b, wire);
    let payload: Vec<u8> = opened.iter().flat_map(|piece| piece[20..].to_vec()).collect();
    assert!(opened.len() == 3 && payload == long[20..]);
    a.assert_settled();
}

/// What is another tunnel's by now goes there before newer packets, and what hides what policy asks for by
/// now is dropped, at once.
#[test]
fn packets_that_are_not_their_tunnels_any_more_wait_no_longer() {
    let specs = [clocked(TunnelSpec::new(0, SUITE), 0), TunnelSpec::new(1, SUITE)];
    let mut a = Gateway::with_tunnels(Side::A, &specs);
    let of_length = |bytes| Inner::udp("10.0.0.1", "172.16.0.2", bytes).bytes();
    let mut without_ports = of_length(100);
    without_ports.truncate(22);
    without_ports[2..4].copy_from_slice(&[0, 22]);
    without_ports[10..12].fill(0);
    let sum = testudo_wire::checksum::of(&without_ports[..20]).to_bytes();
    without_ports[10..12].copy_from_slice(&sum);
    assert!(a.seal(without_ports).is_empty());
    insert_first(&mut a, dns(), Action::Protect(specs[0].index()));
    a.settle();
    assert_eq!((a.drops(DropReason::FieldsHidden), a.worker.held_packets()), (1, 0));
    (1..6).for_each(|number| assert!(a.seal(of_length(100 + 16 * number)).is_empty()));
    insert_first(&mut a, dns(), Action::Protect(specs[1].index()));
    let wire = a.seal(of_length(100 + 16 * 6));
    assert!(wire.len() == 6 && wire.is_sorted_by_key(Vec::len));
    let spi = specs[1].spi_from(Side::A).to_be_bytes();
    assert!(wire.iter().all(|datagram| datagram[20..24] == spi));
    assert_eq!((a.worker.held_packets(), a.books().dropped), (0, 1));
    a.assert_settled();
}

/// However many they are.
#[test]
fn no_packet_that_is_another_tunnels_now_is_overtaken_by_a_newer_one() {
    let rules = PacketRules { clocked_packets_per_second: 10_000, ..PacketRules::default() };
    let specs = [TunnelSpec { rules, ..TunnelSpec::new(0, SUITE) }, TunnelSpec::new(1, SUITE)];
    let policies = specs.iter().flat_map(|spec| spec.policies(Side::A)).collect();
    let mut a = Gateway::new(policies, PoolSize(8192, 2048), portable());
    let mut store = LeaseTwin::new(1 << 20);
    specs.iter().for_each(|spec| a.install(spec.install(Side::A, &mut store, None)));
    let of_length = |bytes| Inner::udp("10.0.0.1", "172.16.0.2", bytes).bytes();
    (0..600).for_each(|number| assert!(a.seal(of_length(100 + 2 * number)).is_empty()));
    insert_first(&mut a, dns(), Action::Protect(specs[1].index()));
    let wire = a.seal(of_length(1300));
    assert!(wire.len() == 601 && wire.is_sorted_by_key(Vec::len), "{}", wire.len());
    a.assert_settled();
}

/// A slow clock: none waits for longer than a packet does for an SA.
#[test]
fn packets_that_wait_too_long_for_a_clock_are_dropped_by_name() {
    let rules = PacketRules { clocked_packets_per_second: 1, ..PacketRules::default() };
    let mut a = gateway(Side::A, &TunnelSpec { rules, ..TunnelSpec::new(0, SUITE) });
    wait(&mut a, 0..40);
    assert_eq!(run(&mut a, HOLD - Duration::from_secs(1)).len(), 30);
    a.clock.advance(Duration::from_secs(1) - PERIOD);
    let now = a.now();
    a.worker.tick(now);
    assert_eq!((a.worker.held_packets(), a.books().dropped), (10, 0));
    a.clock.advance(PERIOD);
    let now = a.now();
    a.worker.tick(now);
    assert_eq!((a.worker.held_packets(), a.drops(DropReason::ClockExpired)), (0, 10));
    a.assert_settled();
}

/// The store is late, and a packet has left in part: it goes on once there are numbers, and those behind it
/// wait no longer for that than for anything else.
#[test]
fn packets_behind_one_that_has_left_in_part_wait_no_longer_for_it() {
    let spec = clocked(TunnelSpec::new(0, SUITE), 0);
    let mut store = LeaseTwin::new(1);
    let mut a = Gateway::new(spec.policies(Side::A), PoolSize(256, 9000), portable());
    a.install(spec.install(Side::A, &mut store, None));
    assert!(a.seal(Inner::udp("10.0.0.1", "172.16.0.2", 3000).bytes()).is_empty());
    wait(&mut a, 0..5);
    assert_eq!(run(&mut a, Duration::ZERO).len(), 1, "a piece, by the only number");
    a.clock.advance(HOLD);
    let now = a.now();
    a.worker.tick(now);
    assert_eq!((a.worker.held_packets(), a.drops(DropReason::ClockExpired)), (1, 5));
    store.block = 1 << 20;
    store.serve();
    run(&mut a, 9 * PERIOD);
    assert_eq!((a.worker.held_packets(), a.books().dropped), (0, 5));
    a.assert_settled();
}

/// Many would make the tick late, and those of other tunnels.
#[test]
fn few_packets_are_refused_at_a_tick() {
    let mut a = gateway(Side::A, &clocked(TunnelSpec::new(0, SUITE), 0));
    let long = Inner { dont_fragment: true, ..Inner::udp("10.0.0.1", "172.16.0.2", 1500) };
    (0..20).for_each(|_| assert!(a.seal(long.bytes()).is_empty()));
    for (tick, refused) in (0..4_u32).zip([8, 16, 20, 20]) {
        assert_eq!(run(&mut a, tick * PERIOD).len(), 1);
        assert_eq!(a.drops(DropReason::TooBig), refused);
    }
    a.assert_settled();
}

/// The store is late: who watches sees neither whether packets wait, and none is lost. The operator is told.
#[test]
fn a_tick_for_which_no_number_is_leased_is_missed_and_what_waits_stays() {
    for (spec, workers) in kinds().into_iter().flat_map(|spec| [(spec.clone(), 1), (spec, 2)]) {
        let spec = clocked(spec, 0);
        let mut store = LeaseTwin::new(1);
        let tunnel = spec.install(Side::A, &mut store, None);
        let make = || Gateway::new(spec.policies(Side::A), PoolSize(1024, 2048), portable());
        let mut a = make();
        match workers {
            1 => a.install(tunnel),
            _ => a = install_at([a, make()], tunnel).0.into_iter().next().expect("the first one"),
        }
        let mut b = gateway(Side::B, &spec);
        assert_eq!(run(&mut a, Duration::ZERO).len(), 1, "the only number");
        assert!(run(&mut a, 5 * PERIOD).is_empty());
        wait(&mut a, 0..20);
        assert!(run(&mut a, 10 * PERIOD).is_empty(), "{:?}, {workers}", spec.protocol);
        assert_eq!((a.worker.held_packets(), a.books().dropped), (20, 0));
        let events = a.worker.take_events();
        let told = events.iter().filter(|event| matches!(event.kind, EventKind::SequenceNotLeased { .. }));
        assert_eq!(told.count(), 1, "once");
        store.block = 1 << 20;
        store.serve();
        let wire = run(&mut a, 30 * PERIOD).into_iter().map(|(_, datagram)| datagram);
        assert_eq!(open_all(&mut b, wire), (0..20).map(packet).collect::<Vec<_>>(), "{workers}");
        a.assert_settled();
    }
}

/// AH that covers ESP has numbers of its own, and a packet is sent with both or not at all.
#[test]
fn a_tick_for_which_ah_around_esp_has_no_number_is_missed_too() {
    let esp = TunnelSpec { covered_by: Some(1), path_mtu: 1440, ..TunnelSpec::new(0, SUITE) };
    let of_ah = TunnelSpec { covers: Some(0), ..TunnelSpec::new(1, Suite::NULL_SHA384) };
    let ah = TunnelSpec { protocol: IpsecProtocol::Ah, mode: Mode::Transport, ..of_ah };
    let both = [clocked(esp, 0), ah];
    let policies = both.iter().flat_map(|spec| spec.policies(Side::A)).collect();
    let mut a = Gateway::new(policies, PoolSize(1024, 2048), portable());
    let mut stores = [LeaseTwin::new(1 << 20), LeaseTwin::new(1)];
    for (spec, store) in both.iter().zip(&mut stores) {
        a.install(spec.install(Side::A, store, None));
    }
    let mut b = Gateway::with_tunnels(Side::B, &both);
    assert_eq!(run(&mut a, Duration::ZERO).len(), 1, "the only number of AH");
    wait(&mut a, 0..20);
    assert!(run(&mut a, 10 * PERIOD).is_empty());
    assert_eq!((a.worker.held_packets(), a.books().dropped), (20, 0));
    stores[1].block = 1 << 20;
    stores[1].serve();
    let wire = run(&mut a, 30 * PERIOD).into_iter().map(|(_, datagram)| datagram);
    assert_eq!(open_all(&mut b, wire), (0..20).map(packet).collect::<Vec<_>>());
    a.assert_settled();
}

/// Another configuration: what waits goes at once, by the tunnel's new rules; a tunnel that is gone drops it.
#[test]
fn a_tunnel_that_loses_its_clock_sends_what_waits_at_once() {
    let spec = clocked(TunnelSpec::new(0, SUITE), 0);
    let plain = TunnelSpec::new(0, SUITE);
    for next in [Some(&plain), Some(&spec), None] {
        let mut store = LeaseTwin::new(1 << 20);
        let mut a = Gateway::new(spec.policies(Side::A), PoolSize(1024, 2048), portable());
        a.install(spec.install(Side::A, &mut store, None));
        let mut b = gateway(Side::B, &spec);
        wait(&mut a, 0..20);
        let mut wire: Vec<_> =
            run(&mut a, Duration::ZERO).into_iter().map(|(_, datagram)| datagram).collect();
        let install = next.into_iter().map(|spec| spec.install(Side::A, &mut store, None)).collect();
        let update = Update { remove: vec![spec.index()], install, ..Update::default() };
        let now = a.now();
        a.worker.update(update, now);
        let at_once = a.seal(packet(20));
        match next {
            None => assert_eq!((at_once.len(), a.drops(DropReason::NoSa)), (0, 20)),
            Some(next) if next.rules == plain.rules => {
                assert_eq!(at_once.len(), 20);
                wire.extend(at_once);
                assert_eq!(open_all(&mut b, wire), (0..=20).map(packet).collect::<Vec<_>>());
                assert!(run(&mut a, 20 * PERIOD).is_empty());
            }
            Some(_) => {
                assert!(at_once.is_empty());
                wire.extend(run(&mut a, 20 * PERIOD).into_iter().map(|(_, datagram)| datagram));
                assert_eq!(open_all(&mut b, wire), (0..=20).map(packet).collect::<Vec<_>>());
            }
        }
        a.assert_settled();
    }
}

/// Packets of a tunnel without a clock leave at once, whatever waits for that of another one.
#[test]
fn other_tunnels_do_not_wait_for_a_clock() {
    let specs = [clocked(TunnelSpec::new(0, SUITE), 0), TunnelSpec::new(1, SUITE)];
    let mut a = Gateway::with_tunnels(Side::A, &specs);
    let mut b = Gateway::with_tunnels(Side::B, &specs);
    let other = Inner::udp("10.0.0.1", "172.17.0.2", 100).bytes();
    // Both in one batch, in turn.
    for number in 0..10 {
        a.protected.push(packet(number));
        a.protected.push(other.clone());
    }
    a.settle();
    let wire = a.unprotected.take();
    assert_eq!((wire.len(), a.worker.held_packets()), (10, 10));
    assert!(open_all(&mut b, wire).iter().all(|packet| *packet == other));
    let wire = run(&mut a, 9 * PERIOD).into_iter().map(|(_, datagram)| datagram);
    assert_eq!(open_all(&mut b, wire), (0..10).map(packet).collect::<Vec<_>>());
    a.assert_settled();
}

/// Each worker that encrypts has a clock, of ESP, too. One that is parked, or ends, sends what it has at its
/// ticks, and nothing after that; what is left when it must end is dropped by name.
#[test]
fn workers_that_take_no_more_packets_send_what_waits_and_no_dummies() {
    let spec = clocked(TunnelSpec::new(0, SUITE), 0);
    let with_five = |prepare: &dyn Fn(&mut Gateway)| {
        let (mut a, mut b) = (gateway(Side::A, &spec), gateway(Side::B, &spec));
        wait(&mut a, 0..5);
        prepare(&mut a);
        assert!(a.worker.waits_for_tick());
        let wire = run(&mut a, Duration::from_secs(1)).into_iter().map(|(_, datagram)| datagram);
        let wire: Vec<_> = wire.collect();
        let sent = wire.len();
        assert_eq!(open_all(&mut b, wire), (0..5).map(packet).collect::<Vec<_>>());
        assert!(!a.worker.waits_for_tick());
        a.assert_settled();
        sent
    };
    assert_eq!(with_five(&|_| {}), 101);
    assert_eq!(with_five(&|a| a.worker.follow()), 101, "each worker, of ESP, too");
    let parked = |a: &mut Gateway| {
        a.worker.follow();
        a.worker.counters().set_parked(true);
    };
    assert_eq!(with_five(&parked), 5);
    assert_eq!(with_five(&|a| a.worker.drain()), 5);
    for is_follower in [false, true] {
        let mut a = gateway(Side::A, &spec);
        a.worker.set_role(Role::Decrypt);
        if is_follower {
            a.worker.follow();
        }
        assert!(run(&mut a, Duration::from_secs(3)).is_empty());
    }
    let mut a = gateway(Side::A, &spec);
    wait(&mut a, 0..5);
    a.worker.discard_waiting();
    assert_eq!((a.drops(DropReason::ShuttingDown), a.worker.waits_for_tick()), (5, false));
    a.assert_settled();
    let mut a = gateway(Side::A, &spec);
    wait(&mut a, 0..5);
    a.worker.end_waits();
    assert_eq!((a.drops(DropReason::ClockExpired), a.worker.waits_for_tick()), (5, false));
}

/// Nor where all that waits is refused at its tick.
#[test]
fn a_packet_that_is_refused_leaves_its_tick_to_no_dummy_where_nothing_is_to_be_hidden() {
    let long = Inner { dont_fragment: true, ..Inner::udp("10.0.0.1", "172.16.0.2", 1500) };
    let stops: [fn(&mut Gateway); 2] = [|a| a.worker.counters().set_parked(true), |a| a.worker.drain()];
    for spec in kinds() {
        for stop in stops {
            let mut a = gateway(Side::A, &clocked(spec.clone(), 0));
            assert!(a.seal(long.bytes()).is_empty());
            stop(&mut a);
            assert!(run(&mut a, Duration::from_secs(1)).is_empty(), "{:?}", spec.protocol);
            assert_eq!((a.drops(DropReason::TooBig), a.worker.waits_for_tick()), (1, false));
            a.assert_settled();
        }
    }
}

/// A worker that ends sends what waits, and nothing beside it: no tick of a tunnel that has nothing, and no
/// dummy of one without a clock.
#[test]
fn a_worker_that_ends_sends_nothing_for_other_tunnels() {
    let rules = PacketRules { dummy_packets_per_second: 50, ..PacketRules::default() };
    let beside = TunnelSpec { rules, ..TunnelSpec::new(2, SUITE) };
    let specs = [clocked(TunnelSpec::new(0, SUITE), 0), clocked(TunnelSpec::new(1, SUITE), 0), beside];
    let mut a = Gateway::with_tunnels(Side::A, &specs);
    wait(&mut a, 0..5);
    a.worker.drain();
    assert_eq!(run(&mut a, Duration::from_secs(1)).len(), 5);
    a.assert_settled();
}

/// A worker that was parked goes on at its beat, without a burst.
#[test]
fn a_worker_that_encrypts_again_keeps_its_beat() {
    for is_follower in [false, true] {
        let mut a = gateway(Side::A, &clocked(TunnelSpec::new(0, SUITE), 0));
        if is_follower {
            a.worker.follow();
        }
        assert_eq!(run(&mut a, 9 * PERIOD).len(), 10);
        a.worker.counters().set_parked(true);
        for seconds in 1..4 {
            assert!(run(&mut a, Duration::from_secs(seconds)).is_empty());
            a.clock.advance(Moment(Duration::from_secs(seconds) + PERIOD / 2).since(a.now()));
            let now = a.now();
            a.worker.tick(now);
        }
        a.worker.counters().set_parked(false);
        let wire = run(&mut a, Duration::from_secs(5));
        let times: Vec<_> = wire.into_iter().map(|(at, _)| at).collect();
        assert!(times.iter().all(|at| at.as_nanos() % PERIOD.as_nanos() == 0), "{is_follower}: {times:?}");
        assert!(times.is_sorted_by(|one, next| one < next), "{is_follower}: {times:?}");
        assert!(times.last() == Some(&Duration::from_secs(5)));
    }
}

/// The loop around a worker wakes up for ticks. One that is asked whether it has anything left to do, or that
/// is to end, sends what waits first.
#[test]
fn a_worker_has_nothing_left_to_do_when_nothing_waits_for_its_clock() {
    let spec = clocked(TunnelSpec::new(0, SUITE), 0);
    let mut b = gateway(Side::B, &spec);
    let Gateway { worker, protected, unprotected, .. } = gateway(Side::A, &spec);
    let mut begun = None;
    let (workers, wire) = crate::workers::run(vec![worker], |commander| {
        let have_wait = |numbers: Range<u16>| {
            numbers.for_each(|number| protected.push(packet(number)));
            // The ports of this test do not wake the worker; commands do.
            while protected.arriving() > 0 {
                commander.save_windows(Vec::new()).expect("they answer");
            }
        };
        have_wait(0..5);
        assert_eq!(commander.settle(0, Duration::from_secs(60)), Ok(true));
        let wire = unprotected.take();
        have_wait(5..8);
        begun = Some(Instant::now());
        wire
    });
    let had_time = begun.is_some_and(|begun| begun.elapsed() < Duration::from_millis(500));
    assert_eq!(open_all(&mut b, wire), (0..5).map(packet).collect::<Vec<_>>());
    let last = open_all(&mut b, unprotected.take());
    assert!(last.iter().cloned().eq((5..8).map(packet).take(last.len())));
    // On a machine that is busy for half a second, the gateway ends without them.
    let pool = workers[0].pool();
    assert_eq!(last.len() as u64 + pool.drops().get(DropReason::ShuttingDown), 3);
    assert!(last.len() == 3 || !had_time, "{} of 3", last.len());
    assert_eq!((workers[0].waits_for_tick(), pool.in_use()), (false, 0));
}
