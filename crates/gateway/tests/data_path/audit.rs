//! Auditable events (RFC 4303 4, RFC 4302 4, RFC 4301 5.2), each with its fields, and no more of them than is
//! good for a log.

use crate::support::fragments::fragments;
use crate::support::gateway::{PoolSize, portable};
use crate::support::sealer::encapsulate;
use crate::support::{Gateway, Inner, LeaseTwin, Side, TunnelSpec};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;
use testudo_crypto::Suite;
use testudo_gateway::SaChange;
use testudo_ipsec::{
    Action, AuditRecord, AuditedSelectors, HOLD, IpsecProtocol, LEAST_CLOCK_ROOM, MAX_HELD, PacketRules,
    Policy, RECORDS_PER_SECOND, Selector, TunnelParameters,
};
use testudo_packet::DropReason;
use testudo_wire::ip::Version;

/// ESP and AH, over either version.
fn specs() -> Vec<TunnelSpec> {
    let mut specs = Vec::new();
    for outer in [Version::V4, Version::V6] {
        let esp = TunnelSpec { outer, ..TunnelSpec::new(0, Suite::AES128GCM16) };
        specs.push(TunnelSpec { udp: true, ..esp.clone() });
        specs.push(TunnelSpec {
            protocol: IpsecProtocol::Ah,
            ..TunnelSpec { suite: Suite::NULL_SHA384, ..esp.clone() }
        });
        specs.push(esp);
    }
    specs
}

fn inner() -> Vec<u8> {
    Inner::udp("10.0.0.1", "172.16.0.2", 100).bytes()
}

fn ends(spec: &TunnelSpec) -> [Gateway; 2] {
    let mut ends = [Side::A, Side::B].map(|side| Gateway::with_tunnels(side, std::slice::from_ref(spec)));
    ends.iter_mut().for_each(|end| end.worker.set_audit(true));
    ends
}

/// Where SPI and number are in a datagram: of AH they come after a word.
fn spi_at(spec: &TunnelSpec) -> usize {
    let ip = spec.outer.header_bytes();
    match spec.protocol {
        IpsecProtocol::Ah => ip + 4,
        IpsecProtocol::Esp => ip + if spec.udp { 8 } else { 0 },
        // After its nonce.
        IpsecProtocol::Vpe => ip + 12 + if spec.udp { 8 } else { 0 },
    }
}

/// What is told of a packet from A with this SPI and number.
fn expected(spec: &TunnelSpec, reason: DropReason, spi: u32, sequence: u64) -> AuditRecord {
    AuditRecord {
        reason,
        tunnel: None,
        protocol: Some(spec.protocol),
        spi: Some(spi),
        sequence: Some(sequence),
        source: Some(spec.address(Side::A)),
        destination: Some(spec.address(Side::B)),
        flow_label: (spec.outer == Version::V6).then_some(0),
        inner: None,
        untold: 0,
    }
}

#[test]
fn packets_without_an_sa_replays_and_wrong_icvs_are_told_with_their_fields() {
    for spec in specs() {
        let [mut a, mut b] = ends(&spec);
        let spi = spec.spi_from(Side::A);
        let datagrams: Vec<_> = (0..3).map(|_| a.seal(inner()).remove(0)).collect();
        let mut unknown = datagrams[0].clone();
        unknown[spi_at(&spec)] ^= 0x70;
        let mut forged = datagrams[1].clone();
        *forged.last_mut().expect("it is not empty") ^= 1;
        assert_eq!(b.open(datagrams[0].clone()).len(), 1);
        for datagram in [unknown, datagrams[0].clone(), forged] {
            assert!(b.open(datagram).is_empty());
        }
        let told = [
            expected(&spec, DropReason::UnknownSpi, spi ^ 0x7000_0000, 1),
            expected(&spec, DropReason::ReplayDuplicate, spi, 1),
            expected(&spec, DropReason::AuthenticationFailed, spi, 2),
        ];
        assert_eq!(b.worker.take_audit(), told, "{spec:?}");
        assert_eq!(b.open(datagrams[2].clone()).len(), 1);
        assert!(b.worker.take_audit().is_empty(), "what passes is no event");
    }
}

/// RFC 4301 5.2: with the addresses of the datagram, and the selectors of the packet that it carried, in ESP
/// and in AH.
#[test]
fn a_packet_that_its_sa_is_not_for_is_told_with_its_selectors() {
    for spec in specs() {
        // The peer's policies let through what is not for this tunnel.
        let protect = Policy::new(Selector::ANY, Action::Protect(spec.index()));
        let mut a = Gateway::new(vec![protect], PoolSize(64, 2048), portable());
        a.install(spec.install(Side::A, &mut LeaseTwin::new(1 << 40), None));
        let [_, mut b] = ends(&spec);
        let other = Inner { ports: (1000, 2000), ..Inner::udp("10.0.0.1", "192.0.2.77", 100) };
        assert!(b.open(a.seal(other.bytes()).remove(0)).is_empty());
        let [source, destination] =
            ["10.0.0.1", "192.0.2.77"].map(|a| a.parse::<IpAddr>().expect("an address"));
        let ports = Some((1000, 2000));
        let selectors = AuditedSelectors { source, destination, protocol: Some(17), ports };
        let record = expected(&spec, DropReason::SelectorMismatch, spec.spi_from(Side::A), 1);
        assert_eq!(b.worker.take_audit(), [AuditRecord { inner: Some(selectors), ..record }], "{spec:?}");
    }
}

#[test]
fn fragments_where_no_sa_ends_and_packets_in_clear_are_told() {
    let spec = TunnelSpec::new(0, Suite::AES128GCM16);
    let [_, mut b] = ends(&spec);
    let mut elsewhere = encapsulate(&spec, Side::A, &[0x77; 600], 0);
    elsewhere[19] ^= 1;
    elsewhere[6] = 0;
    elsewhere[10..12].fill(0);
    let sum = testudo_wire::checksum::of(&elsewhere[..20]).to_bytes();
    elsewhere[10..12].copy_from_slice(&sum);
    for fragment in fragments(&elsewhere, 7, 304) {
        assert!(b.open(fragment).is_empty());
    }
    assert!(b.open(inner()).is_empty());
    let told = b.worker.take_audit();
    let reasons: Vec<_> = told.iter().map(|record| record.reason).collect();
    let [fragment, clear] = [DropReason::OuterFragment, DropReason::CleartextForProtected];
    assert_eq!((reasons[0], reasons.last()), (fragment, Some(&clear)));
    // The first fragment shows SPI and number, a later one does not.
    assert_eq!((told[0].spi, told[0].sequence), (Some(0x7777_7777), Some(0x7777_7777)));
    assert_eq!((told[1].spi, told[1].sequence, told[1].source), (None, None, told[0].source));
    let clear = told.last().expect("the packet in clear");
    assert_eq!((clear.spi, clear.source), (None, "10.0.0.1".parse().ok()));
}

/// RFC 4303 3.3.3: a packet that would need the number after the last one.
#[test]
fn an_overflow_of_sequence_numbers_is_told() {
    let spec = TunnelSpec { esn: false, ..TunnelSpec::new(0, Suite::AES128GCM16) };
    let mut a = Gateway::new(spec.policies(Side::A), PoolSize(64, 2048), portable());
    a.worker.set_audit(true);
    let mut store = LeaseTwin::new(1 << 40);
    store.begin_at(spec.spi_from(Side::A), u32::MAX.into());
    a.install(spec.install(Side::A, &mut store, None));
    assert_eq!(a.seal(inner()).len(), 1);
    assert!(a.seal(inner()).is_empty());
    let record = expected(&spec, DropReason::SequenceExhausted, spec.spi_from(Side::A), 1 << 32);
    let [source, destination] = ["10.0.0.1", "172.16.0.2"].map(|a| a.parse().ok());
    assert_eq!(a.worker.take_audit(), [AuditRecord { source, destination, ..record }]);
}

/// RFC 4301 5.1: packets whose SA was not negotiated are told with their tunnel, which may be gone when the
/// record is read; no more of them than of others.
#[test]
fn packets_that_waited_in_vain_are_told_with_the_name_of_their_tunnel() {
    let spec = TunnelSpec::new(0, Suite::AES128GCM16);
    let mut a = Gateway::new(spec.policies(Side::A), PoolSize(1024, 2048), portable());
    a.worker.set_audit(true);
    let parameters = TunnelParameters { acquires: true, ..spec.parameters(Side::A) };
    let name = Arc::clone(&parameters.name);
    let now = a.now();
    a.worker.change_sa(SaChange::AddTunnel(spec.index(), Box::new(parameters)), now).expect("a tunnel");
    let none = expected(&spec, DropReason::HoldFull, 0, 0);
    let [source, destination] = ["10.0.0.1", "172.16.0.2"].map(|a| a.parse().ok());
    let record = |reason| AuditRecord {
        reason,
        tunnel: Some(Arc::clone(&name)),
        protocol: None,
        spi: None,
        sequence: None,
        source,
        destination,
        ..none.clone()
    };
    (0..=MAX_HELD).for_each(|_| assert!(a.seal(inner()).is_empty()));
    assert_eq!(a.worker.take_audit(), [record(DropReason::HoldFull)], "the one that found no place");
    // Another host's packet makes one that has waited give way.
    assert!(a.seal(Inner::udp("10.0.0.9", "172.16.0.2", 100).bytes()).is_empty());
    assert_eq!(a.worker.take_audit(), [record(DropReason::HoldFull)], "the oldest of the first host");
    a.clock.advance(HOLD);
    let now = a.now();
    a.worker.tick(now);
    let told = a.worker.take_audit();
    let ten = usize::from(RECORDS_PER_SECOND);
    assert_eq!(told, vec![record(DropReason::HoldExpired); ten]);
    assert_eq!(a.drops(DropReason::HoldExpired), MAX_HELD as u64);
    a.clock.advance(Duration::from_secs(1));
    let now = a.now();
    a.worker.tick(now);
    let told = a.worker.take_audit();
    assert!(matches!(told[..], [AuditRecord { untold: 54, tunnel: None, .. }]), "{told:?}");
    a.assert_settled();
}

/// So are packets to which no tick of a clock came: not those for which there was no place.
#[test]
fn packets_to_which_no_tick_came_are_told_with_the_name_of_their_tunnel() {
    let rules = PacketRules { clocked_packets_per_second: 1, ..PacketRules::default() };
    let spec = TunnelSpec { rules, ..TunnelSpec::new(0, Suite::AES128GCM16) };
    let mut a = Gateway::new(spec.policies(Side::A), PoolSize(1024, 2048), portable());
    a.worker.set_audit(true);
    let installed = a.install_seen(spec.install(Side::A, &mut LeaseTwin::new(1 << 40), None));
    (0..=LEAST_CLOCK_ROOM).for_each(|_| assert!(a.seal(inner()).is_empty()));
    assert_eq!((a.drops(DropReason::ClockFull), a.worker.take_audit()), (1, Vec::new()));
    a.clock.advance(HOLD);
    let now = a.now();
    a.worker.tick(now);
    let record = AuditRecord {
        tunnel: Some(spec.parameters(Side::A).name),
        protocol: None,
        spi: None,
        sequence: None,
        source: "10.0.0.1".parse().ok(),
        destination: "172.16.0.2".parse().ok(),
        ..expected(&spec, DropReason::ClockExpired, 0, 0)
    };
    assert_eq!(a.worker.take_audit(), vec![record; RECORDS_PER_SECOND.into()]);
    let all = LEAST_CLOCK_ROOM as u64;
    let of_sa = installed.outbound.counters.drops(DropReason::ClockExpired);
    assert_eq!((a.drops(DropReason::ClockExpired), of_sa), (all, all));
    a.assert_settled();
}

/// A flood makes ten records a second; how many others there were is told with the next, or when it is over.
#[test]
fn a_flood_is_counted_and_not_told_packet_by_packet() {
    const FLOOD: usize = 500;
    let spec = TunnelSpec::new(0, Suite::AES128GCM16);
    let [_, mut b] = ends(&spec);
    let datagram = encapsulate(&spec, Side::A, &[0x77; 60], 0);
    let ten = usize::from(RECORDS_PER_SECOND);
    for round in 0..2 {
        for _ in 0..FLOOD {
            assert!(b.open(datagram.clone()).is_empty());
        }
        let told = b.worker.take_audit();
        assert_eq!(told.len(), ten);
        let before = if round == 0 { 0 } else { (FLOOD - ten) as u64 };
        assert_eq!(told.iter().map(|record| record.untold).sum::<u64>(), before);
        b.clock.advance(Duration::from_secs(1));
    }
    let now = b.now();
    b.worker.tick(now);
    let rest = b.worker.take_audit();
    assert!(matches!(rest[..], [AuditRecord { untold: 490, source: None, .. }]), "{rest:?}");
    b.clock.advance(Duration::from_secs(1));
    let now = b.now();
    b.worker.tick(now);
    assert!(b.worker.take_audit().is_empty());
}

/// Nobody takes the records: they do not grow.
#[test]
fn records_that_nobody_takes_have_a_bound_and_none_are_made_where_audit_is_off() {
    let spec = TunnelSpec::new(0, Suite::AES128GCM16);
    let [_, mut b] = ends(&spec);
    let datagram = encapsulate(&spec, Side::A, &[0x77; 60], 0);
    for _ in 0..100 {
        for _ in 0..20 {
            assert!(b.open(datagram.clone()).is_empty());
        }
        b.clock.advance(Duration::from_secs(1));
        let now = b.now();
        b.worker.tick(now);
    }
    assert!(b.worker.take_audit().len() <= 128);
    b.worker.set_audit(false);
    assert!(b.open(datagram).is_empty());
    assert!(b.worker.take_audit().is_empty());
}
