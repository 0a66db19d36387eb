//! Every drop reason has a test that raises it (DESIGN, "Drop").

use crate::support::fragments::{Part, fragment, fragment_with, fragmentable, fragments};
use crate::support::gateway::{PoolSize, portable};
use crate::support::sealer::{encapsulate, esp_offset};
use crate::support::{Gateway, Handmade, Inner, LeaseTwin, Sealer, Side, TunnelSpec};
use std::time::Duration;
use testudo_crypto::{
    Capability, Direction, Engine, EngineError, Job, JobStatus, KeyId, KeyMaterial, PortableEngine, Suite,
};
use testudo_engine_late::{LateConfig, LateEngine};
use testudo_gateway::{Update, Worker};
use testudo_ipsec::{
    Action, IpsecProtocol, Lifetime, Limits, Mode, Policy, PopulateFlags, PortRange, Selector,
};
use testudo_packet::{DropReason, Pool};
use testudo_wire::ip::Version;

fn spec() -> TunnelSpec {
    TunnelSpec::new(0, Suite::AES128GCM16)
}

fn in_udp() -> TunnelSpec {
    TunnelSpec { udp: true, ..spec() }
}

/// A packet that A's policy sends through tunnel 0.
fn inner(bytes: usize) -> Inner {
    Inner::udp("10.0.0.1", "172.16.0.2", bytes)
}

/// An IPv4 packet made the second fragment of a datagram.
fn later_fragment(mut packet: Vec<u8>) -> Vec<u8> {
    packet[6..8].copy_from_slice(&100u16.to_be_bytes());
    packet[10..12].fill(0);
    let sum = testudo_wire::checksum::of(&packet[..20]).to_bytes();
    packet[10..12].copy_from_slice(&sum);
    packet
}

/// A, after it received `packet` on its protected side.
fn a_given(packet: impl Into<Vec<u8>>) -> Gateway {
    let mut a = Gateway::with_tunnels(Side::A, &[spec()]);
    assert_eq!(a.seal(packet), [[0u8; 0]; 0]);
    a
}

/// B, after it received `datagram` on its unprotected side.
fn b_given(spec: &TunnelSpec, datagram: impl Into<Vec<u8>>) -> Gateway {
    let mut b = Gateway::with_tunnels(Side::B, std::slice::from_ref(spec));
    assert_eq!(b.open(datagram), [[0u8; 0]; 0]);
    b
}

/// B, after it received a valid ESP packet with this content.
fn b_given_inside(made: &Handmade) -> Gateway {
    b_given(&spec(), Sealer::new(&spec(), Side::A).seal(1, made))
}

/// A gateway whose only policy does this with everything.
fn with_policy(action: Action) -> Gateway {
    Gateway::new(vec![Policy::new(Selector::ANY, action)], PoolSize(64, 2048), portable())
}

/// An engine that fails every job.
struct BrokenEngine;

impl Engine for BrokenEngine {
    fn name(&self) -> &'static str {
        "broken"
    }

    fn description(&self) -> String {
        self.name().into()
    }

    fn capability(&self, _: Suite) -> Option<Capability> {
        None
    }

    fn install(&mut self, _: &KeyMaterial, _: Direction) -> Result<KeyId, EngineError> {
        Ok(KeyId(0))
    }

    fn remove(&mut self, _: KeyId) {}

    fn submit(&mut self, jobs: &mut [Job]) -> usize {
        jobs.iter_mut().for_each(|job| job.status = JobStatus::Fault);
        jobs.len()
    }
}

fn a_with(
    spec: &TunnelSpec,
    pool: PoolSize,
    engines: Vec<Box<dyn Engine>>,
    store: &mut LeaseTwin,
) -> Gateway {
    let mut a = Gateway::new(spec.policies(Side::A), pool, engines);
    a.install(spec.install(Side::A, store, None));
    a
}

/// A with a lease store that the caller prepared.
fn a_leasing(spec: &TunnelSpec, mut store: LeaseTwin) -> Gateway {
    a_with(spec, PoolSize(64, 2048), portable(), &mut store)
}

/// What a peer seals in the normal case.
fn good() -> Handmade {
    Handmade::carrying(&inner(100).bytes())
}

/// Makes a gateway drop packets for `reason` and returns it. The match is exhaustive: a new reason does not
/// compile without a test.
fn raise(reason: DropReason) -> Gateway {
    match reason {
        DropReason::NotIp => a_given([0x00; 40]),
        DropReason::Truncated => a_given(&inner(100).bytes()[..99]),
        DropReason::BadHeader => a_given([0x44; 40]),
        DropReason::BadChecksum => header_damaged(),
        DropReason::PolicyDiscard => discarded_by_policy(),
        DropReason::NoPolicy => a_given(Inner::udp("10.0.0.1", "8.8.8.8", 100).bytes()),
        DropReason::FieldsHidden => later_fragment_where_ports_matter(),
        DropReason::SourceRoute => source_routed(),
        DropReason::CleartextForProtected => b_given(&spec(), inner(100).bytes()),
        DropReason::SelectorMismatch => sealed_beyond_its_selectors(),
        DropReason::NoSa => policy_without_tunnel(),
        DropReason::SaWanted => flow_without_an_sa_of_its_own(),
        DropReason::HoldFull => crate::held::more_than_may_wait(),
        DropReason::HoldExpired => crate::held::in_vain(),
        DropReason::ClockFull => crate::clocked::more_than_may_wait(),
        DropReason::ClockExpired => crate::clocked::in_vain(),
        DropReason::PeerUnknown => peer_never_heard(),
        DropReason::LifetimeExpired => lifetime_over(),
        DropReason::SequenceExhausted => numbers_used_up(),
        DropReason::SequenceNotLeased => no_number_leased(),
        DropReason::TooBig => a_given(Inner { dont_fragment: true, ..inner(1500) }.bytes()),
        DropReason::NoRoom => buffer_without_room(),
        DropReason::NotForUs => b_given(&spec(), Inner::udp("192.0.2.9", "198.51.100.2", 100).bytes()),
        DropReason::OuterFragment => esp_fragment_for_somebody_else(),
        DropReason::FragmentMalformed => first_fragment_of(43),
        DropReason::FragmentOverlap => b_given_fragments(&[first_part(48), part(40, 16)]),
        DropReason::FragmentDuplicate => b_given_fragments(&[part(40, 16), part(40, 16)]),
        DropReason::FragmentLimit => fragment_beyond_the_buffer(),
        DropReason::FragmentEcn => fragments_that_disagree_on_ecn(),
        DropReason::FragmentTimeout => rest_of_a_datagram_missing(),
        DropReason::FragmentEvicted => too_many_incomplete(),
        DropReason::TransportFragment => fragment_in_transport_mode(),
        DropReason::NotBetweenHosts => transport_beyond_the_hosts(),
        DropReason::AhMalformed => b_given(&of_ah(), ah_of_another_length()),
        DropReason::IcmpBelieved => told_of_a_narrow_path(1400),
        DropReason::IcmpIgnored => told_of_a_narrow_path(575),
        DropReason::NatKeepalive => b_given(&in_udp(), encapsulate(&in_udp(), Side::A, &[0xFF], 0)),
        DropReason::MtuProbeAnswered => crate::mtu_probe::answered(),
        DropReason::IkeOnEspPort => b_given(&in_udp(), encapsulate(&in_udp(), Side::A, &[0; 40], 0)),
        DropReason::UnknownSpi => b_given(&spec(), encapsulate(&spec(), Side::A, &[0x77; 60], 0)),
        DropReason::WrongEncapsulation => esp_without_its_udp(),
        DropReason::EspMalformed => b_given(&spec(), encapsulate(&spec(), Side::A, &[0; 7], 0)),
        DropReason::ReplayTooOld | DropReason::ReplayDuplicate => replayed(reason),
        DropReason::AuthenticationFailed => icv_damaged(),
        DropReason::ResyncFailed => many_icvs_damaged(),
        DropReason::EngineFault => engine_broken(),
        DropReason::BadPadding => b_given_inside(&Handmade { pad_length: 255, ..good() }),
        DropReason::BadNextHeader => b_given_inside(&Handmade { next_header: 6, ..good() }),
        DropReason::DummyPacket => b_given_inside(&Handmade { next_header: 59, ..good() }),
        DropReason::InnerMalformed => b_given_inside(&Handmade { next_header: 41, ..good() }),
        DropReason::EcnCongestion => b_given_inside(&Handmade { outer_class: 3, ..good() }),
        DropReason::ReceiveTruncated => a_given([0x45; 3000]),
        DropReason::PoolEmpty => no_buffer_for_a_fragment(),
        DropReason::QueueFull => replies_that_find_no_room(),
        DropReason::MessageTooLong | DropReason::SendRefused => refused_by_the_system(reason),
        DropReason::DeviceFrameUnknown | DropReason::DeviceFrameBounds => refused_by_the_system(reason),
        DropReason::NotSealed => crate::nic::marked_by_nobody(),
        DropReason::BypassUnavailable => no_way_in_clear(reason),
        DropReason::FrameMalformed
        | DropReason::OtherVlan
        | DropReason::OtherEtherType
        | DropReason::OtherMac
        | DropReason::LinkControl
        | DropReason::NotServed
        | DropReason::HopLimitExceeded
        | DropReason::NoRoute
        | DropReason::NeighbourUnresolved
        | DropReason::NeighbourQueueFull => crate::link::raise(reason),
        DropReason::VpeMalformed
        | DropReason::VpeWindows
        | DropReason::VpeSender
        | DropReason::VpeInner
        | DropReason::VpeFill => crate::vpe::raise(reason),
        DropReason::VpeSenderTaken => crate::groups::raise_sender_taken(),
        DropReason::ShuttingDown => closed_with_packets_waiting(),
    }
}

/// B, after so many packets with a wrong ICV that it has looked for another high half of their numbers.
fn many_icvs_damaged() -> Gateway {
    let mut b = Gateway::with_tunnels(Side::B, &[spec()]);
    let mut sealer = Sealer::new(&spec(), Side::A);
    for sequence in 1..=33 {
        let mut datagram = sealer.seal(sequence, &good());
        datagram[40] ^= 1;
        assert!(b.open(datagram).is_empty());
    }
    b
}

/// A, after a router said that a datagram of its SA was longer than `mtu`.
fn told_of_a_narrow_path(mtu: u16) -> Gateway {
    let mut a = Gateway::with_tunnels(Side::A, &[spec()]);
    let datagram = a.seal(inner(1400).bytes()).remove(0);
    assert!(a.open(crate::path_mtu::too_big(&datagram, mtu)).is_empty());
    a
}

fn in_transport() -> TunnelSpec {
    TunnelSpec { mode: Mode::Transport, ..spec() }
}

fn of_ah() -> TunnelSpec {
    TunnelSpec { protocol: IpsecProtocol::Ah, ..TunnelSpec::new(0, Suite::NULL_SHA1) }
}

/// The host's fragments are put together, and what they make is a fragment itself.
fn fragment_in_transport_mode() -> Gateway {
    let spec = TunnelSpec { outer: Version::V6, ..in_transport() };
    let mut a = Gateway::with_tunnels(Side::A, std::slice::from_ref(&spec));
    let (source, destination) = (spec.address(Side::A), spec.address(Side::B));
    let whole = Inner { source, destination, ..Inner::udp("10.0.0.1", "172.16.0.2", 400) }.bytes();
    let part = fragments(&whole, 1, 200).remove(0);
    fragments(&part, 2, 104).into_iter().for_each(|piece| drop(a.seal(piece)));
    a
}

/// Policy sends a stranger's packet through an SA in transport mode.
fn transport_beyond_the_hosts() -> Gateway {
    let policy = Policy::new(Selector::ANY, Action::Protect(spec().index()));
    let mut a = Gateway::new(vec![policy], PoolSize(64, 2048), portable());
    a.install(in_transport().install(Side::A, &mut LeaseTwin::new(1 << 40), None));
    a.seal(inner(100).bytes());
    a
}

/// An authentication header that says it has no ICV.
fn ah_of_another_length() -> Vec<u8> {
    let mut datagram = Gateway::with_tunnels(Side::A, &[of_ah()]).seal(inner(100).bytes()).remove(0);
    datagram[21] = 1;
    datagram
}

fn header_damaged() -> Gateway {
    let mut packet = inner(100).bytes();
    packet[8] ^= 1;
    a_given(packet)
}

fn discarded_by_policy() -> Gateway {
    let mut gateway = with_policy(Action::Discard);
    gateway.seal(inner(100).bytes());
    gateway
}

fn later_fragment_where_ports_matter() -> Gateway {
    let selector =
        Selector { protocol: 17.into(), remote_ports: PortRange { first: 443, last: 443 }, ..Selector::ANY };
    let policies = [(selector, Action::Protect(spec().index())), (Selector::ANY, Action::Bypass)];
    let policies = policies.map(|(selector, action)| Policy::new(selector, action));
    let mut gateway = Gateway::new(policies.into(), PoolSize(64, 2048), portable());
    gateway.seal(later_fragment(inner(100).bytes()));
    gateway
}

/// A loose source route to nowhere, between the header and the payload.
fn source_routed() -> Gateway {
    let mut packet = inner(100).bytes();
    packet.splice(20..20, [131, 3, 4, 0]);
    (packet[0], packet[3]) = (0x46, 104);
    packet[10..12].fill(0);
    let sum = testudo_wire::checksum::of(&packet[..24]).to_bytes();
    packet[10..12].copy_from_slice(&sum);
    a_given(packet)
}

fn sealed_beyond_its_selectors() -> Gateway {
    b_given_inside(&Handmade::carrying(&Inner::udp("11.0.0.1", "172.16.0.2", 100).bytes()))
}

/// RFC 4301 4.4.1.2: no SA has been populated from such a packet.
fn flow_without_an_sa_of_its_own() -> Gateway {
    let policy = Policy::populating(Selector::ANY, spec().index(), PopulateFlags::REMOTE);
    let mut gateway = Gateway::new(vec![policy], PoolSize(64, 2048), portable());
    gateway.seal(inner(100).bytes());
    gateway
}

fn policy_without_tunnel() -> Gateway {
    let mut gateway = with_policy(Action::Protect(spec().index()));
    gateway.seal(inner(100).bytes());
    gateway
}

fn peer_never_heard() -> Gateway {
    let spec = TunnelSpec { b_learns: true, ..in_udp() };
    let mut b = Gateway::with_tunnels(Side::B, &[spec]);
    b.seal(Inner::udp("172.16.0.2", "10.0.0.1", 100).bytes());
    b
}

fn lifetime_over() -> Gateway {
    let hard = Limits { time: Some(Duration::from_secs(1)), ..Limits::default() };
    let spec = TunnelSpec { lifetime: Lifetime { hard, ..Lifetime::default() }, ..spec() };
    let mut a = Gateway::with_tunnels(Side::A, &[spec]);
    a.clock.advance(Duration::from_secs(1));
    a.seal(inner(100).bytes());
    a
}

fn numbers_used_up() -> Gateway {
    let spec = TunnelSpec { esn: false, ..spec() };
    let mut store = LeaseTwin::new(1 << 40);
    store.begin_at(spec.spi_from(Side::A), u64::from(u32::MAX));
    let mut a = a_leasing(&spec, store);
    assert_eq!(a.seal(inner(100).bytes()).len(), 1, "the last number is used");
    a.seal(inner(100).bytes());
    a
}

fn no_number_leased() -> Gateway {
    let mut a = a_leasing(&spec(), LeaseTwin::new(1));
    assert_eq!(a.seal(inner(100).bytes()).len(), 1, "the leased number is used");
    a.seal(inner(100).bytes());
    a
}

fn buffer_without_room() -> Gateway {
    let mut a = a_with(&spec(), PoolSize(4, 2048), portable(), &mut LeaseTwin::new(1 << 40));
    a.protected.leave_no_room();
    a.seal(inner(100).bytes());
    a
}

/// What a peer seals, as it is before a router cuts it.
fn whole() -> Vec<u8> {
    fragmentable(Sealer::new(&spec(), Side::A).seal(1, &good()), 7)
}

fn part(offset: usize, bytes: usize) -> Part {
    Part { offset, bytes, more: true }
}

fn first_part(bytes: usize) -> Part {
    part(0, bytes)
}

fn esp_fragment_for_somebody_else() -> Gateway {
    let mut datagram = fragment(&whole(), 7, first_part(48));
    datagram[19] ^= 1;
    mend(&mut datagram);
    b_given(&spec(), datagram)
}

/// B, after it received these fragments of one datagram.
fn b_given_fragments(parts: &[Part]) -> Gateway {
    let mut b = Gateway::with_tunnels(Side::B, &[spec()]);
    for part in parts {
        assert_eq!(b.open(fragment(&whole(), 7, *part)), [[0u8; 0]; 0]);
    }
    b
}

fn first_fragment_of(bytes: usize) -> Gateway {
    b_given_fragments(&[first_part(bytes)])
}

fn fragment_beyond_the_buffer() -> Gateway {
    let far = Part { offset: 60_000, bytes: 48, more: false };
    b_given(&spec(), fragment_with(&whole(), 7, far, &[0; 48]))
}

fn fragments_that_disagree_on_ecn() -> Gateway {
    let mut b = Gateway::with_tunnels(Side::B, &[spec()]);
    for (ecn, mut fragment) in [0, 3].into_iter().zip(fragments(&whole(), 7, 80)) {
        fragment[1] = ecn;
        mend(&mut fragment);
        assert_eq!(b.open(fragment), [[0u8; 0]; 0]);
    }
    b
}

fn rest_of_a_datagram_missing() -> Gateway {
    let mut b = first_fragment_of(48);
    b.clock.advance(Duration::from_secs(15));
    let now = b.now();
    b.worker.tick(now);
    b
}

fn too_many_incomplete() -> Gateway {
    let mut b = Gateway::with_tunnels(Side::B, &[spec()]);
    // Three quarters of an eighth of its buffers are for peers.
    let room = b.worker.pool().size() as u32 * 3 / 32;
    (0..=room).for_each(|id| b.unprotected.push(fragment(&whole(), id, first_part(48))));
    b.settle();
    assert_eq!(b.worker.incomplete_datagrams() as u32, room);
    b
}

fn esp_without_its_udp() -> Gateway {
    let datagram = Sealer::new(&in_udp(), Side::A).seal(1, &good());
    let esp = &datagram[esp_offset(&in_udp())..];
    b_given(&in_udp(), encapsulate(&spec(), Side::A, esp, 0))
}

fn replayed(reason: DropReason) -> Gateway {
    // With ESN an old number is read as one of the next 2^32, and the ICV check fails (RFC 4303 A2.2).
    let spec = TunnelSpec { esn: false, ..spec() };
    let mut sealer = Sealer::new(&spec, Side::A);
    let mut b = Gateway::with_tunnels(Side::B, &[spec]);
    assert_eq!(b.open(sealer.seal(10_000, &good())).len(), 1);
    let sequence = if reason == DropReason::ReplayDuplicate { 10_000 } else { 10_000 - 4096 };
    b.open(sealer.seal(sequence, &good()));
    b
}

fn icv_damaged() -> Gateway {
    let mut datagram = Sealer::new(&spec(), Side::A).seal(1, &good());
    *datagram.last_mut().expect("an ICV") ^= 1;
    b_given(&spec(), datagram)
}

fn engine_broken() -> Gateway {
    let engines: Vec<Box<dyn Engine>> = vec![Box::new(BrokenEngine)];
    let mut a = a_with(&spec(), PoolSize(64, 2048), engines, &mut LeaseTwin::new(1 << 40));
    a.seal(inner(100).bytes());
    a
}

fn no_buffer_for_a_fragment() -> Gateway {
    let mut a = a_with(&spec(), PoolSize(1, 2048), portable(), &mut LeaseTwin::new(1 << 40));
    a.seal(inner(1500).bytes());
    a
}

fn replies_that_find_no_room() -> Gateway {
    // The protected side accepts no replies while it keeps sending packets that are too big.
    let mut a = a_with(&spec(), PoolSize(6000, 2048), portable(), &mut LeaseTwin::new(1 << 40));
    a.protected.set_room(Some(0));
    for host in 0..5000u32 {
        let source = std::net::Ipv4Addr::from_bits(0x0A00_0001 + host * 256).into();
        a.protected.push(Inner { dont_fragment: true, source, ..inner(1500) }.bytes());
    }
    while a.protected.arriving() > 0 {
        a.turn();
        // Replies are rate-limited.
        a.clock.advance(Duration::from_secs(1));
    }
    a.protected.set_room(None);
    a.settle();
    a
}

fn refused_by_the_system(reason: DropReason) -> Gateway {
    let mut a = Gateway::with_tunnels(Side::A, &[spec()]);
    a.unprotected.refuse_next(reason);
    a.seal(inner(100).bytes());
    a
}

fn no_way_in_clear(reason: DropReason) -> Gateway {
    let mut gateway = with_policy(Action::Bypass);
    gateway.unprotected.refuse_next(reason);
    gateway.seal(inner(100).bytes());
    gateway
}

fn closed_with_packets_waiting() -> Gateway {
    let mut a = Gateway::with_tunnels(Side::A, &[spec()]);
    a.unprotected.set_room(Some(0));
    a.seal(inner(100).bytes());
    a.worker.drain();
    a.worker.discard_waiting();
    a
}

/// Recomputes the checksum of an IPv4 header without options.
fn mend(datagram: &mut [u8]) {
    datagram[10..12].fill(0);
    let sum = testudo_wire::checksum::of(&datagram[..20]).to_bytes();
    datagram[10..12].copy_from_slice(&sum);
}

#[test]
fn every_drop_reason_is_raised() {
    for &reason in DropReason::ALL {
        let gateway = raise(reason);
        assert!(gateway.drops(reason) > 0, "{reason:?} was not raised: {:?}", gateway.worker.pool().drops());
        gateway.assert_settled();
    }
}

/// The drop of a packet is counted once, under one reason.
#[test]
fn a_dropped_packet_has_one_reason() {
    for &reason in DropReason::ALL {
        // Replies have other drops beside them, nothing is tried before many ICVs were wrong, and nothing
        // stops before a packet has our own Sender ID.
        let has_others =
            matches!(reason, DropReason::QueueFull | DropReason::ResyncFailed | DropReason::VpeSenderTaken);
        if !has_others && !crate::link::has_others_beside(reason) {
            let gateway = raise(reason);
            let drops = gateway.worker.pool().drops();
            // The fragment, and the datagram that it overlaps.
            let expected = if reason == DropReason::FragmentOverlap { 2 } else { 1 };
            assert_eq!((drops.total(), drops.get(reason)), (expected, expected), "{reason:?}: {drops:?}");
        }
    }
}

#[test]
fn published_counters_are_those_of_the_worker() {
    for &reason in DropReason::ALL {
        let mut gateway = raise(reason);
        let now = gateway.now();
        gateway.worker.tick(now);
        let counters = gateway.worker.counters();
        assert_eq!(&counters.drops(), gateway.worker.pool().drops(), "{reason:?}");
        assert_eq!(counters.created(), gateway.worker.pool().created());
        assert_eq!(counters.merged(), gateway.worker.pool().merged());
        assert_eq!(counters.free_buffers(), gateway.worker.pool().available() as u64);
        assert_eq!(counters.protected().counters, gateway.worker.protected_port().counters());
        assert_eq!(counters.unprotected().counters, gateway.worker.unprotected_port().counters());
    }
}

/// Removing a tunnel ends its jobs that are still with engines: they count as shutting down, in both
/// directions, whatever the engine reports later.
#[test]
fn packets_in_flight_when_their_tunnel_is_removed_end_as_shutting_down() {
    for faults_per_million in [0, 1_000_000] {
        let config = LateConfig { polls_min: 3, faults_per_million, ..LateConfig::reliable(1) };
        let late = || -> Vec<Box<dyn Engine>> {
            vec![
                Box::new(LateEngine::new(Box::new(PortableEngine::new()), config)),
                Box::new(PortableEngine::new()),
            ]
        };
        let mut a = a_with(&spec(), PoolSize(64, 2048), late(), &mut LeaseTwin::new(1 << 40));
        (0..5).for_each(|_| a.protected.push(inner(100).bytes()));
        let mut sealer = Sealer::new(&spec(), Side::B);
        let back = Handmade::carrying(&Inner::udp("172.16.0.2", "10.0.0.1", 100).bytes());
        (1..=5).for_each(|n| a.unprotected.push(sealer.seal(n, &back)));
        a.turn();
        let now = a.now();
        a.worker.update(Update { remove: vec![spec().index()], ..Update::default() }, now);
        a.settle();
        assert_eq!(a.drops(DropReason::ShuttingDown), 10, "{:?}", a.worker.pool().drops());
        assert!(a.unprotected.take().is_empty() && a.protected.take().is_empty());
        a.assert_settled();
    }
}

/// A worker can be built from its parts alone, with a pool of its own.
#[test]
fn a_worker_without_tunnels_drops_everything_and_loses_nothing() {
    let gateway = Gateway::new(Vec::new(), PoolSize(8, 2048), Vec::new());
    let Gateway { mut worker, protected, unprotected, clock } = gateway;
    for _ in 0..100 {
        protected.push(inner(100).bytes());
        unprotected.push(inner(100).bytes());
    }
    use testudo_gateway::Clock;
    while Worker::turn(&mut worker, clock.now()).expect("memory does not fail") > 0 {}
    let pool: &Pool = worker.pool();
    assert_eq!((pool.drops().get(DropReason::NoPolicy), pool.drops().get(DropReason::NotForUs)), (100, 100));
    assert_eq!(pool.available(), 8);
}
