//! Packets with a source route do not pass: policy would see another destination than the one they go to (RFC
//! 7126 4.3 and 4.4, RFC 5095).

use crate::support::gateway::{PoolSize, portable};
use crate::support::{Gateway, Handmade, Inner, LeaseTwin, Sealer, Side, TunnelSpec};
use testudo_crypto::Suite;
use testudo_ipsec::{Action, Policy, Selector};
use testudo_packet::DropReason;
use testudo_wire::checksum;

/// An IPv4 packet with these options.
fn with_options(options: &[u8], source: &str, destination: &str) -> Vec<u8> {
    let mut packet = Inner::udp(source, destination, 100).bytes();
    packet.splice(20..20, options.iter().copied());
    packet[0] = 0x45 + options.len() as u8 / 4;
    packet[3] = packet.len() as u8;
    packet[10..12].fill(0);
    let sum = checksum::of(&packet[..20 + options.len()]).to_bytes();
    packet[10..12].copy_from_slice(&sum);
    packet
}

/// An IPv6 packet with a routing header of this type that names one more address.
fn with_routing_header(kind: u8, source: &str, destination: &str) -> Vec<u8> {
    let mut packet = Inner::udp(source, destination, 100).bytes();
    let mut header = [0; 24];
    header[..4].copy_from_slice(&[packet[6], 2, kind, 1]);
    packet.splice(40..40, header);
    packet[6] = 43;
    packet[5] += 24;
    packet
}

/// Packets between two hosts with a source route, and similar packets without one.
fn packets(v4: [&str; 2], v6: [&str; 2]) -> (Vec<Vec<u8>>, Vec<Vec<u8>>) {
    let options = |bytes: &[u8]| with_options(bytes, v4[0], v4[1]);
    let routed = vec![
        options(&[131, 7, 4, 10, 0, 0, 9, 0]),
        options(&[137, 7, 4, 10, 0, 0, 9, 0]),
        options(&[1, 148, 4, 0, 0, 131, 7, 4, 10, 0, 0, 9]),
        with_routing_header(0, v6[0], v6[1]),
    ];
    let plain = vec![
        options(&[148, 4, 0, 0]),
        options(&[1, 1, 7, 3, 4, 0, 0, 0]),
        with_routing_header(2, v6[0], v6[1]),
    ];
    (routed, plain)
}

const OUT: ([&str; 2], [&str; 2]) = (["10.0.0.1", "172.16.0.2"], ["fd0a::1", "fd16::2"]);
const BACK: ([&str; 2], [&str; 2]) = (["172.16.0.2", "10.0.0.1"], ["fd16::2", "fd0a::1"]);

fn spec() -> TunnelSpec {
    TunnelSpec::new(0, Suite::AES128GCM16)
}

fn gateway(policies: Vec<Policy>) -> Gateway {
    let mut gateway = Gateway::new(policies, PoolSize(64, 2048), portable());
    gateway.install(spec().install(Side::A, &mut LeaseTwin::new(1 << 40), None));
    gateway
}

#[test]
fn source_routes_pass_neither_through_a_tunnel_nor_in_clear() {
    let bypass = vec![Policy::new(Selector::ANY, Action::Bypass)];
    for policies in [spec().policies(Side::A), bypass] {
        let mut a = gateway(policies);
        let (routed, plain) = packets(OUT.0, OUT.1);
        assert!(routed.into_iter().all(|packet| a.seal(packet).is_empty()));
        assert_eq!(a.drops(DropReason::SourceRoute), 4);
        assert!(
            plain.into_iter().all(|packet| a.seal(packet).len() == 1),
            "other options are none of our business"
        );
        a.assert_settled();
    }
}

#[test]
fn source_routes_come_in_neither_through_a_tunnel_nor_in_clear() {
    let (routed, plain) = packets(BACK.0, BACK.1);
    let mut a = gateway(spec().policies(Side::A));
    let mut sealer = Sealer::new(&spec(), Side::B);
    for (number, packet) in (1..).zip(&routed) {
        assert!(a.open(sealer.seal(number, &Handmade::carrying(packet))).is_empty());
    }
    for (number, packet) in (5..).zip(&plain) {
        assert_eq!(a.open(sealer.seal(number, &Handmade::carrying(packet))), std::slice::from_ref(packet));
    }
    assert_eq!(a.drops(DropReason::SourceRoute), 4);
    let mut a = gateway(vec![Policy::new(Selector::ANY, Action::Bypass)]);
    assert!(routed.into_iter().all(|packet| a.open(packet).is_empty()));
    assert!(plain.into_iter().all(|packet| a.open(packet).len() == 1));
    assert_eq!(a.drops(DropReason::SourceRoute), 4);
    a.assert_settled();
}
