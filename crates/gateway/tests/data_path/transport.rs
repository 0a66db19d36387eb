//! Transport mode has no header of its own inside: what comes out is the outer header, which ESP does not
//! cover, and whatever the next header says. All of it meets policy (RFC 4301 4.1, 5.2).

use super::encapsulations::{Tunnels, every_kind, inner_of};
use crate::support::datagrams::mend;
use crate::support::fragments::{fragmentable, fragments};
use crate::support::gateway::{PoolSize, portable};
use crate::support::{Gateway, Handmade, Inner, LeaseTwin, Sealer, Side, TunnelSpec};
use testudo_crypto::Suite;
use testudo_gateway::{TunnelInstall, Update};
use testudo_ipsec::{Action, IpsecProtocol, Mode, Policy, PortRange, Selector};
use testudo_packet::DropReason;
use testudo_wire::ip::Version;
use testudo_wire::protocol;

/// B's side of these tunnels, where the first one is for what this selector says.
fn gateway(tunnels: &Tunnels, selector: Selector) -> Gateway {
    let policies = vec![Policy::new(selector, Action::Protect(tunnels[0].index()))];
    let mut b = Gateway::new(policies, PoolSize(64, 2048), portable());
    let mut store = LeaseTwin::new(1 << 40);
    for spec in tunnels {
        let install = spec.install(Side::B, &mut store, None);
        let selectors = if spec.covers.is_some() { Vec::new() } else { vec![selector] };
        let parameters = install.parameters.selecting(selectors);
        b.install(TunnelInstall { parameters, ..install });
    }
    b
}

/// The same datagram from another host.
fn from_elsewhere(datagram: &[u8]) -> Vec<u8> {
    let mut moved = datagram.to_vec();
    match moved[0] >> 4 {
        4 => {
            moved[15] ^= 1;
            mend(&mut moved[..20]);
        }
        _ => moved[23] ^= 1,
    }
    moved
}

/// RFC 4301 4.1: a transport mode SA is between two hosts. ESP does not cover their addresses: who changes
/// the source on the way, or has the peer's keys, must not speak for another host, however wide the
/// selectors are.
#[test]
fn a_packet_in_transport_mode_is_from_the_peer_alone() {
    for tunnels in every_kind().into_iter().filter(|tunnels| tunnels[0].mode == Mode::Transport) {
        let mut a = Gateway::with_tunnels(Side::A, &tunnels);
        let mut b = gateway(&tunnels, Selector::ANY);
        for again in [false, true] {
            let sealed = a.seal(inner_of(&tunnels, 100).bytes()).remove(0);
            assert_eq!(b.open(from_elsewhere(&sealed)), [[0_u8; 0]; 0], "{tunnels:?}, {again}");
            let is_esp = tunnels.len() == 1 && tunnels[0].protocol == IpsecProtocol::Esp;
            let reason = if is_esp { DropReason::SelectorMismatch } else { DropReason::AuthenticationFailed };
            assert_eq!(b.drops(reason), 1 + u64::from(again), "{tunnels:?}");
            let sealed = a.seal(inner_of(&tunnels, 100).bytes()).remove(0);
            assert_eq!(b.open(sealed).len(), 1, "{tunnels:?}: from the peer itself");
            // The same with selectors that came later.
            let anything = tunnels[0].parameters(Side::B).selecting([Selector::ANY]).selectors;
            let selectors = vec![(tunnels[0].index(), anything)];
            let now = b.now();
            b.worker.update(Update { selectors, ..Update::default() }, now);
        }
        b.assert_settled();
    }
}

/// RFC 4301 5.2, step 4: a packet in a packet, and whatever else is not what the SA is for, does not come out
/// of transport mode because its outer addresses are right.
#[test]
fn what_comes_out_of_transport_mode_is_what_policy_allows() {
    for tunnels in every_kind().into_iter().filter(|tunnels| tunnels[0].mode == Mode::Transport) {
        let mut a = Gateway::with_tunnels(Side::A, &tunnels);
        let udp = Selector { protocol: protocol::UDP.into(), ..Selector::ANY };
        let mut b = gateway(&tunnels, udp);
        let others = [protocol::IPV4, protocol::IPV6, protocol::ESP, protocol::AH, protocol::TCP, 47, 253];
        for (count, number) in (1..).zip(others) {
            let inner = Inner { protocol: number, ..inner_of(&tunnels, 100) };
            let sealed = a.seal(inner.bytes()).remove(0);
            assert_eq!(b.open(sealed), [[0_u8; 0]; 0], "{tunnels:?}, protocol {number}");
            let refused = b.drops(DropReason::SelectorMismatch) + b.drops(DropReason::FieldsHidden);
            assert_eq!(refused, count, "{tunnels:?}, protocol {number}");
        }
        let sealed = a.seal(inner_of(&tunnels, 100).bytes()).remove(0);
        assert_eq!(b.open(sealed).len(), 1, "{tunnels:?}");
        b.assert_settled();
    }
}

/// Headers that the peer puts behind ESP are read like all others: a fragment header hides ports, a source
/// route is refused, and a chain that does not end is no packet.
#[test]
fn extension_headers_behind_esp_are_walked() {
    let spec = TunnelSpec {
        mode: Mode::Transport,
        outer: Version::V6,
        esn: false,
        ..TunnelSpec::new(0, Suite::AES128GCM16)
    };
    let udp = Selector { protocol: protocol::UDP.into(), ..Selector::ANY };
    let mut b = gateway(&vec![spec.clone()], udp);
    let mut sealer = Sealer::new(&spec, Side::A);
    let datagram = [0x13, 0x88, 0, 53, 0, 16, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8];
    let [later, atomic, route, options, end] = [
        [protocol::UDP, 0, 0, 8, 0, 0, 0, 9],
        [protocol::UDP, 0, 0, 0, 0, 0, 0, 9],
        [protocol::UDP, 0, 0, 0, 0, 0, 0, 0],
        [protocol::UDP, 0, 1, 4, 0, 0, 0, 0],
        [protocol::UDP, 200, 1, 4, 0, 0, 0, 0],
    ];
    for (sequence, (first, header, reason)) in (1..).zip([
        (protocol::FRAGMENT, later, Some(DropReason::FieldsHidden)),
        (protocol::ROUTING, route, Some(DropReason::SourceRoute)),
        (protocol::DESTINATION_OPTIONS, end, Some(DropReason::InnerMalformed)),
        (protocol::FRAGMENT, atomic, None),
        (protocol::DESTINATION_OPTIONS, options, None),
    ]) {
        let payload = [&header[..], &datagram].concat();
        let made = Handmade::with_payload(payload, first).padded_for(spec.suite);
        let opened = b.open(sealer.seal(sequence, &made));
        match reason {
            Some(reason) => assert!(opened.is_empty() && b.drops(reason) == 1, "{first}: {opened:02x?}"),
            None => assert!(opened.len() == 1 && opened[0][6] == first, "{first}: {opened:02x?}"),
        }
    }
    b.assert_settled();
}

/// A host's fragments are put together before policy decides: the datagram goes through the SA of the whole,
/// whatever an SA for fragments that show no ports would take (RFC 4301 4.4.1.1, 7.4, RFC 4303 3.3.4).
#[test]
fn fragments_that_ask_for_different_sas_go_out_whole_through_that_of_the_datagram() {
    let with =
        |number, suite| TunnelSpec { mode: Mode::Transport, esn: false, ..TunnelSpec::new(number, suite) };
    let (secret, readable) = (with(0, Suite::AES128GCM16), with(1, Suite::NULL_SHA384));
    let udp = Selector { protocol: protocol::UDP.into(), ..Selector::ANY };
    let dns = Selector { remote_ports: PortRange::one(53), ..udp };
    let hidden = Selector { local_ports: PortRange::OPAQUE, remote_ports: PortRange::OPAQUE, ..udp };
    let policies = [(dns, &secret), (hidden, &readable)];
    let policies = policies.map(|(selector, spec)| Policy::new(selector, Action::Protect(spec.index())));
    let mut a = Gateway::new(policies.to_vec(), PoolSize(64, 65_535), portable());
    let mut store = LeaseTwin::new(1 << 40);
    for spec in [&secret, &readable] {
        a.install(spec.install(Side::A, &mut store, None));
    }
    let mut b = Gateway::with_buffers(Side::B, &[secret.clone(), readable.clone()], PoolSize(64, 65_535));
    let datagram = fragmentable(inner_of(&vec![secret.clone()], 1800).bytes(), 9);
    for (round, first_is_last) in [(0, true), (1, false)] {
        let mut parts = fragments(&datagram, 10 + round, 1000);
        if first_is_last {
            parts.reverse();
        }
        parts.into_iter().for_each(|part| a.protected.push(part));
        a.settle();
        let sealed = a.unprotected.take();
        let in_clear = |bytes: &[u8]| bytes.windows(16).any(|window| window == &datagram[100..116]);
        assert!(!sealed.iter().any(|bytes| in_clear(bytes)), "the first comes last: {first_is_last}");
        let spi = u32::from_be_bytes(*sealed[0][20..].first_chunk().expect("an SPI"));
        assert_eq!(spi, secret.spi_from(Side::A), "the first comes last: {first_is_last}");
        let opened: Vec<_> = sealed.into_iter().flat_map(|fragment| b.open(fragment)).collect();
        assert!(
            opened.len() == 1 && opened[0][20..] == datagram[20..],
            "the first comes last: {first_is_last}"
        );
    }
    assert_eq!(a.worker.pool().drops().total(), 0);
    a.assert_settled();
    b.assert_settled();
}
