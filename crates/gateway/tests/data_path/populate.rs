//! SAs that are populated from packets (RFC 4301 4.4.1.2): a tunnel for each flow, found as any other, and
//! packets that ask for one.

use crate::support::gateway::{PoolSize, portable};
use crate::support::{Gateway, Handmade, Inner, LeaseTwin, Sealer, Side, TunnelSpec};
use std::time::Duration;
use testudo_crypto::Suite;
use testudo_gateway::{SaChange, SaChangeError, SaChanged, UseFrom};
use testudo_ipsec::{
    ACQUIRES_PER_SECOND, Acquire, EventKind, Policy, PolicyChange, PolicyId, PopulateFlags, Position,
    Selector, TunnelIndex,
};
use testudo_packet::DropReason;

/// The template, which no packet goes through.
const TEMPLATE: TunnelIndex = TunnelIndex(0);

/// SPIs and keys of a tunnel; its peer is the template's.
fn spec(number: u8) -> TunnelSpec {
    TunnelSpec::new(number, Suite::AES128GCM16)
}

/// A gateway that makes an SA for each pair of a protocol and a port behind the peer.
fn gateway() -> (Gateway, PolicyId) {
    let flags = PopulateFlags::PROTOCOL.with(PopulateFlags::REMOTE_PORTS);
    let policies = vec![Policy::populating(Selector::ANY, TEMPLATE, flags)];
    let gateway = Gateway::new(policies, PoolSize(64, 2048), portable());
    let id = gateway.worker.policies().policies().next().expect("a policy").0;
    (gateway, id)
}

fn packet(port: u16) -> Vec<u8> {
    Inner { ports: (5000, port), ..Inner::udp("10.0.0.1", "172.16.0.2", 100) }.bytes()
}

fn answer(port: u16) -> Vec<u8> {
    Inner { ports: (port, 5000), ..Inner::udp("172.16.0.2", "10.0.0.1", 100) }.bytes()
}

fn asked(gateway: &mut Gateway) -> Vec<Acquire> {
    let events = gateway.worker.take_events().into_iter();
    let acquires = events.filter_map(|event| match event.kind {
        EventKind::Acquire(acquire) => Some((event.tunnel, acquire)),
        _ => None,
    });
    acquires.map(|(template, acquire)| (assert_eq!(template, TEMPLATE), acquire).1).collect()
}

fn change(gateway: &mut Gateway, change: SaChange) -> Result<SaChanged, SaChangeError> {
    let now = gateway.now();
    gateway.worker.change_sa(change, now)
}

/// Makes what a packet has asked for, under keys of a number; returns the name of its policy.
fn answered(gateway: &mut Gateway, acquire: &Acquire, number: u8) -> PolicyId {
    let index = TunnelIndex(number.into());
    let policy = gateway.worker.policies().get(acquire.policy).expect("its policy").clone();
    let selectors = policy.populated(&acquire.values);
    let parameters = spec(number).parameters(Side::A).selecting(selectors.iter().copied());
    let outbound = spec(number).outbound(Side::A, &mut LeaseTwin::new(1 << 40));
    for step in [
        SaChange::AddTunnel(index, Box::new(parameters)),
        SaChange::AddInbound(index, Box::new(spec(number).inbound(Side::A))),
        SaChange::AddOutbound(index, Box::new(outbound), UseFrom::Now),
    ] {
        change(gateway, step).expect("it can be added");
    }
    let own = policy.of_populated(index, selectors.into());
    let changes = vec![PolicyChange::Insert(Position::Before(acquire.policy), own)];
    gateway.worker.change_policies(changes)[0].expect("a policy")
}

fn spi_of(datagrams: &[Vec<u8>]) -> Option<u32> {
    datagrams.first().map(|datagram| u32::from_be_bytes(*datagram[20..].first_chunk().expect("an SPI")))
}

/// RFC 4301 4.4.1: "The goal is to allow an SAD entry and an SPD cache entry to be created based on specific
/// selector values from the packet".
#[test]
fn two_flows_get_an_sa_each_and_neither_takes_the_others_packets() {
    let (mut a, id) = gateway();
    for (number, port) in [(1, 53), (2, 443)] {
        assert!(a.seal(packet(port)).is_empty(), "there is no SA yet");
        let acquires = asked(&mut a);
        let [acquire] = &acquires[..] else { panic!("{acquires:?}") };
        assert_eq!(
            (acquire.policy, acquire.values.protocol, acquire.values.remote_port),
            (id, Some(17), Some(port))
        );
        assert_eq!((acquire.values.local, acquire.values.local_port), (None, None), "no flag is set there");
        assert_eq!((acquire.packet.local_port, acquire.left_out), (Some(5000), 0));
        answered(&mut a, acquire, number);
    }
    assert_eq!(a.drops(DropReason::SaWanted), 2);
    for (number, port) in [(1, 53), (2, 443)] {
        assert_eq!(spi_of(&a.seal(packet(port))), Some(spec(number).spi_from(Side::A)), "port {port}");
    }
    // RFC 4301 5.2, step 4: what comes out of an SA is compared with its selectors, not with its template's.
    let mut sealers = [1, 2].map(|number| Sealer::new(&spec(number), Side::B));
    let mut sealed =
        |of: usize, sequence, port| sealers[of].seal(sequence, &Handmade::carrying(&answer(port)));
    assert_eq!(a.open(sealed(0, 1, 53)), [answer(53)]);
    assert_eq!(a.open(sealed(1, 1, 443)), [answer(443)]);
    assert!(a.open(sealed(0, 2, 443)).is_empty() && a.open(sealed(1, 2, 53)).is_empty());
    assert_eq!(a.drops(DropReason::SelectorMismatch), 2);
    assert!(asked(&mut a).is_empty());
    a.assert_settled();
}

#[test]
fn a_flow_without_its_sa_asks_again() {
    let (mut a, _) = gateway();
    a.seal(packet(53));
    let acquire = asked(&mut a)[0];
    let policy = answered(&mut a, &acquire, 1);
    assert_eq!(a.seal(packet(53)).len(), 1);
    assert_eq!(a.worker.change_policies(vec![PolicyChange::Remove(policy)]), [Ok(policy)]);
    let remove = || SaChange::RemoveTunnel(TunnelIndex(1));
    assert!(matches!(change(&mut a, remove()), Ok(SaChanged::RemovedTunnel(_))));
    assert!(matches!(change(&mut a, remove()), Err(SaChangeError::NoTunnel(TunnelIndex(1)))));
    a.clock.advance(Duration::from_secs(2));
    assert!(a.seal(packet(53)).is_empty());
    assert_eq!(asked(&mut a), [acquire]);
    let under = Sealer::new(&spec(1), Side::B).seal(1, &Handmade::carrying(&answer(53)));
    assert!(a.open(under).is_empty());
    assert_eq!(a.drops(DropReason::UnknownSpi), 1, "its SAs went with it");
    a.assert_settled();
}

/// RFC 4301 4.4.2.2: where a flag is set and the value is not available, "discard packet".
#[test]
fn a_packet_that_does_not_show_a_populated_field_is_dropped_and_asks_for_nothing() {
    let (mut a, _) = gateway();
    let mut fragment = packet(53);
    // Offset 64, the last one.
    fragment[6..8].copy_from_slice(&8u16.to_be_bytes());
    fragment[10..12].fill(0);
    let sum = testudo_wire::checksum::of(&fragment[..20]).to_bytes();
    fragment[10..12].copy_from_slice(&sum);
    assert!(a.seal(fragment).is_empty());
    assert_eq!((a.drops(DropReason::FieldsHidden), a.drops(DropReason::SaWanted)), (1, 0));
    assert!(asked(&mut a).is_empty());
    // GRE has no ports: its SA is populated with its protocol alone (RFC 4301 4.4.1.1).
    let gre = Inner { protocol: 47, ..Inner::udp("10.0.0.1", "172.16.0.2", 100) };
    a.seal(gre.bytes());
    let values = asked(&mut a)[0].values;
    assert_eq!((values.protocol, values.remote_port), (Some(47), None));
}

/// In clear, packets of such a policy do not come in (RFC 4301 5.2), and ask for nothing.
#[test]
fn what_arrives_in_clear_is_refused_as_for_any_protected_flow() {
    let (mut a, _) = gateway();
    assert!(a.open(answer(53)).is_empty());
    assert_eq!(a.drops(DropReason::CleartextForProtected), 1);
    assert!(asked(&mut a).is_empty());
}

/// New flows as fast as they come: a bounded number of acquires a second, all others counted, and packets of
/// flows that have an SA pass among them.
#[test]
fn a_flood_of_new_flows_is_told_of_within_limits_and_harms_no_other() {
    let (mut a, _) = gateway();
    a.seal(packet(53));
    let acquire = asked(&mut a)[0];
    answered(&mut a, &acquire, 1);
    let (mut flows, mut told, mut left_out) = (0, 0, 0);
    for second in 1..=3 {
        a.clock.advance(Duration::from_secs(1));
        for port in 1000..6000 {
            let source = format!("10.0.{}.{}", port % 200, port / 200);
            let inner = Inner::udp(&source, "172.16.0.2", 100);
            a.protected.push(Inner { ports: (5000, port + second * 10_000), ..inner }.bytes());
            flows += 1;
            if port % 50 == 0 {
                assert_eq!(spi_of(&a.seal(packet(53))), Some(spec(1).spi_from(Side::A)));
            }
        }
        a.settle();
        let acquires = asked(&mut a);
        assert_eq!(acquires.len(), usize::from(ACQUIRES_PER_SECOND), "second {second}");
        told += acquires.len() as u64;
        left_out += acquires.iter().map(|acquire| acquire.left_out).sum::<u64>();
    }
    assert_eq!(a.drops(DropReason::SaWanted), flows + 1);
    // Those of the last second are told with the next acquire.
    a.clock.advance(Duration::from_secs(1));
    a.seal(packet(7));
    let last = asked(&mut a)[0].left_out;
    assert_eq!(told + left_out + last, flows);
    a.assert_settled();
}

/// Thousands of flows: the SPD's index finds each one's tunnel (RFC 4301's SPD cache), and the template's
/// policy decides on all others.
#[test]
fn each_of_thousands_of_flows_is_found_among_the_others() {
    let (mut a, id) = gateway();
    let ports = 1..=5000_u16;
    for port in ports.clone() {
        let policy = a.worker.policies().get(id).expect("a policy").clone();
        let values = testudo_ipsec::PacketValues {
            protocol: Some(17),
            remote_port: Some(port),
            ..testudo_ipsec::PacketValues::default()
        };
        let index = TunnelIndex(u32::from(port));
        let parameters = spec(1).parameters(Side::A);
        change(&mut a, SaChange::AddTunnel(index, Box::new(parameters))).expect("it can be added");
        let own = policy.of_populated(index, policy.populated(&values).into());
        let insert = vec![PolicyChange::Insert(Position::Before(id), own)];
        assert!(a.worker.change_policies(insert)[0].is_ok());
    }
    for port in ports {
        assert!(a.seal(packet(port)).is_empty());
    }
    assert_eq!(a.drops(DropReason::NoSa), 5000, "each leads into its own tunnel, which has no SA");
    a.seal(packet(5001));
    assert_eq!((a.drops(DropReason::SaWanted), asked(&mut a).len()), (1, 1));
    a.assert_settled();
}
