//! The order of policies and what they do, and the inbound check of RFC 4301 5.2.

use crate::support::gateway::{PoolSize, portable};
use crate::support::{Gateway, Handmade, Inner, LeaseTwin, Sealer, Side, TunnelSpec};
use std::net::IpAddr;
use testudo_crypto::Suite;
use testudo_gateway::{TunnelInstall, Update};
use testudo_ipsec::{Action, Policy, PortRange, Prefix, SaSelectors, Selector};
use testudo_packet::DropReason;
use testudo_wire::protocol;

fn prefix(address: &str, length: u8) -> Prefix {
    Prefix::new(address.parse::<IpAddr>().expect("an address"), length).expect("a prefix")
}

fn spec() -> TunnelSpec {
    TunnelSpec::new(0, Suite::AES128GCM16)
}

/// Discards SMTP, lets DNS pass in clear, protects the rest of the two networks: in this order.
fn gateway(side: Side) -> Gateway {
    let (local, remote) = match side {
        Side::A => (prefix("10.0.0.0", 8), prefix("172.16.0.0", 16)),
        Side::B => (prefix("172.16.0.0", 16), prefix("10.0.0.0", 8)),
    };
    let between = Selector::between(local, remote);
    let port = |port| PortRange { first: port, last: port };
    let smtp = Selector { protocol: protocol::TCP.into(), remote_ports: port(25), ..between };
    let dns = Selector { protocol: protocol::UDP.into(), remote_ports: port(53), ..between };
    let policies =
        [(smtp, Action::Discard), (dns, Action::Bypass), (between, Action::Protect(spec().index()))]
            .map(|(selector, action)| Policy::new(selector, action));
    let mut gateway = Gateway::new(policies.into(), PoolSize(64, 2048), portable());
    gateway.install(spec().install(side, &mut LeaseTwin::new(1 << 40), None));
    gateway
}

fn packet(protocol: u8, ports: (u16, u16)) -> Inner {
    Inner { protocol, ports, ..Inner::udp("10.0.0.1", "172.16.0.2", 100) }
}

#[test]
fn the_first_policy_that_matches_decides() {
    let mut a = gateway(Side::A);
    assert!(a.seal(packet(protocol::TCP, (999, 25)).bytes()).is_empty());
    assert_eq!(a.drops(DropReason::PolicyDiscard), 1);
    let dns = packet(protocol::UDP, (999, 53)).bytes();
    assert_eq!(a.seal(dns.clone()), [dns], "passes in clear, unchanged");
    let sealed = a.seal(packet(protocol::UDP, (999, 54)).bytes());
    assert_eq!(sealed[0][9], protocol::ESP);
    assert!(a.seal(Inner::udp("10.0.0.1", "172.17.0.1", 100).bytes()).is_empty());
    assert_eq!(a.drops(DropReason::NoPolicy), 1);
    a.assert_settled();
}

/// RFC 4301 5.2, step 3b.
#[test]
fn only_packets_that_policy_lets_bypass_come_in_in_clear() {
    let mut a = gateway(Side::A);
    let answer =
        |protocol, ports| Inner { protocol, ports, ..Inner::udp("172.16.0.2", "10.0.0.1", 100) }.bytes();
    let dns = answer(protocol::UDP, (53, 999));
    assert_eq!(a.open(dns.clone()), [dns]);
    assert!(a.open(answer(protocol::TCP, (25, 999))).is_empty());
    assert!(a.open(answer(protocol::UDP, (54, 999))).is_empty());
    assert!(a.open(Inner::udp("192.0.2.7", "10.0.0.1", 100).bytes()).is_empty());
    let reasons = [DropReason::PolicyDiscard, DropReason::CleartextForProtected, DropReason::NotForUs];
    assert_eq!(reasons.map(|r| a.drops(r)), [1, 1, 1]);
    a.assert_settled();
}

/// RFC 4301 5.2, step 4: even with the key of a tunnel, a peer may send only what its selectors allow,
/// however many they are.
#[test]
fn a_decrypted_packet_with_any_selector_field_wrong_is_refused() {
    let range = |first, last| PortRange { first, last };
    let selector = Selector {
        local: prefix("172.16.0.0", 24).into(),
        remote: prefix("10.1.0.0", 16).into(),
        protocol: protocol::UDP.into(),
        local_ports: range(5000, 5001),
        remote_ports: range(53, 53),
    };
    for others in [0, 300] {
        let mut store = LeaseTwin::new(1 << 40);
        let mut install: TunnelInstall = spec().install(Side::B, &mut store, None);
        let other = |port| Selector { local_ports: range(port, port), remote_ports: range(7, 7), ..selector };
        install.parameters = install.parameters.selecting((0..others).map(other).chain([selector]));
        let mut b = Gateway::new(spec().policies(Side::B), PoolSize(64, 2048), portable());
        b.install(install);
        let mut sealer = Sealer::new(&spec(), Side::A);
        let good = Inner { ports: (53, 5000), ..Inner::udp("10.1.2.3", "172.16.0.9", 100) };
        let v6 = Inner::udp("fd0a::1", "fd16::2", 100);
        let wrong = [
            Inner { source: "10.2.0.1".parse().expect("an address"), ..good },
            Inner { destination: "172.16.1.9".parse().expect("an address"), ..good },
            Inner { source: good.destination, destination: good.source, ..good },
            Inner { protocol: protocol::TCP, ..good },
            Inner { protocol: protocol::ICMP, ..good },
            Inner { ports: (54, 5000), ..good },
            Inner { ports: (53, 4999), ..good },
            Inner { ports: (53, 5002), ..good },
            Inner { ports: (5000, 53), ..good },
            Inner { total_bytes: 20, ..good },
            Inner { total_bytes: 23, ..good },
            Inner { ports: (53, 5000), ..v6 },
        ];
        let mut sequence = 0;
        let mut receive = |b: &mut Gateway, packet: &[u8]| {
            sequence += 1;
            b.open(sealer.seal(sequence, &Handmade::carrying(packet)))
        };
        assert_eq!(receive(&mut b, &good.bytes()), [good.bytes()]);
        for packet in wrong {
            assert!(receive(&mut b, &packet.bytes()).is_empty(), "{packet:?}");
        }
        // Two of them are too short to show the ports that the selector needs.
        assert_eq!((b.drops(DropReason::SelectorMismatch), b.drops(DropReason::FieldsHidden)), (10, 2));
        // So is a later fragment: it matches only selectors for any port.
        let mut fragment = good.bytes();
        fragment[7] = 100;
        fragment[10..12].fill(0);
        let sum = testudo_wire::checksum::of(&fragment[..20]).to_bytes();
        fragment[10..12].copy_from_slice(&sum);
        assert!(receive(&mut b, &fragment).is_empty());
        assert_eq!(b.drops(DropReason::FieldsHidden), 3);
        b.assert_settled();
    }
}

#[test]
fn other_selectors_and_policies_hold_from_the_next_packet_on() {
    let mut b = gateway(Side::B);
    let mut sealer = Sealer::new(&spec(), Side::A);
    let inside = packet(protocol::UDP, (1, 2)).bytes();
    assert_eq!(b.open(sealer.seal(1, &Handmade::carrying(&inside))).len(), 1);
    let now = b.now();
    b.worker.update(
        Update { selectors: vec![(spec().index(), SaSelectors::default())], ..Update::default() },
        now,
    );
    assert!(b.open(sealer.seal(2, &Handmade::carrying(&inside))).is_empty());
    assert_eq!(b.drops(DropReason::SelectorMismatch), 1);
    let out = Inner::udp("172.16.0.2", "10.0.0.1", 100).bytes();
    assert_eq!(b.seal(out.clone()).len(), 1);
    b.worker.update(Update { policies: Some(Box::default()), ..Update::default() }, now);
    assert!(b.seal(out).is_empty());
    assert_eq!(b.drops(DropReason::NoPolicy), 1);
}

/// A datagram is not half protected and half in clear: a fragment that hides its ports does not skip a policy
/// that matches on ports (RFC 4301 7.4).
#[test]
fn a_fragment_that_hides_its_ports_does_not_slip_past_a_policy_on_ports() {
    let https = Selector {
        protocol: protocol::UDP.into(),
        remote_ports: PortRange { first: 443, last: 443 },
        ..Selector::ANY
    };
    let policies = [(https, Action::Protect(spec().index())), (Selector::ANY, Action::Bypass)];
    let policies = policies.map(|(selector, action)| Policy::new(selector, action));
    let mut a = Gateway::new(policies.into(), PoolSize(64, 2048), portable());
    let whole = Inner { ports: (40_000, 53), ..Inner::udp("10.0.0.1", "172.16.0.2", 100) }.bytes();
    let passed = a.seal(whole.clone());
    assert_eq!(passed.first(), Some(&whole), "shown ports that are not asked for pass in clear");
    let mut fragment = whole;
    fragment[6..8].copy_from_slice(&100u16.to_be_bytes());
    fragment[10..12].fill(0);
    let sum = testudo_wire::checksum::of(&fragment[..20]).to_bytes();
    fragment[10..12].copy_from_slice(&sum);
    assert!(a.seal(fragment).is_empty());
    assert_eq!(a.drops(DropReason::FieldsHidden), 1);
}

/// Policies are ordered: a packet that an earlier policy discards, or gives to another tunnel, does not come
/// through a tunnel whose selectors it matches too.
#[test]
fn a_decrypted_packet_that_an_earlier_policy_matches_is_refused() {
    for (action, reason) in [
        (Action::Discard, DropReason::PolicyDiscard),
        (Action::Bypass, DropReason::SelectorMismatch),
        (Action::Protect(testudo_ipsec::TunnelIndex(7)), DropReason::SelectorMismatch),
    ] {
        let mail = Selector {
            protocol: protocol::TCP.into(),
            remote_ports: PortRange { first: 25, last: 25 },
            ..Selector::ANY
        };
        let mut policies = vec![Policy::new(mail, action)];
        policies.extend(spec().policies(Side::B));
        let mut b = Gateway::new(policies, PoolSize(64, 2048), portable());
        b.install(spec().install(Side::B, &mut LeaseTwin::new(10), None));
        let mut sealer = Sealer::new(&spec(), Side::A);
        let inner = Inner { protocol: protocol::TCP, ..Inner::udp("10.0.0.1", "172.16.0.2", 100) };
        let from_mail = Inner { ports: (25, 40_000), ..inner };
        let from_web = Inner { ports: (80, 40_000), ..inner };
        assert!(b.open(sealer.seal(1, &Handmade::carrying(&from_mail.bytes()))).is_empty());
        assert_eq!(b.drops(reason), 1, "{action:?}");
        assert_eq!(b.open(sealer.seal(2, &Handmade::carrying(&from_web.bytes()))), [from_web.bytes()]);
    }
}
