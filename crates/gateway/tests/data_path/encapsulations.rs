//! ESP and AH, in tunnel and transport mode, AH over ESP, and VPE: what goes in at one gateway comes out at
//! the other, and what was changed on the way does not (RFC 4302, RFC 4303). Other implementations judge the
//! same packets in the tests with Scapy and with Linux.

use crate::support::vpe::vpe;
use crate::support::{Gateway, Inner, Side, TunnelSpec};
use testudo_crypto::Suite;
use testudo_ipsec::{IpsecProtocol, Mode};
use testudo_packet::DropReason;
use testudo_wire::ip::Version;
use testudo_wire::protocol;
use testudo_wire::vpe::VPE_PROTOCOL;

const ESP: [Suite; 4] =
    [Suite::AES128GCM16, Suite::CHACHA20POLY1305, Suite::AES128_SHA1, Suite::AES256_SHA256];

/// Every integrity algorithm that AH can have.
fn of_ah() -> Vec<Suite> {
    Suite::all_for_ah().collect()
}

/// What one tunnel of the configuration makes: one pair of SAs or two, the one with policies first.
pub(crate) type Tunnels = Vec<TunnelSpec>;

/// Every encapsulation over either IP version, with and without ESN.
pub(crate) fn every_kind() -> Vec<Tunnels> {
    let mut all = Vec::new();
    for (outer, esn) in [(Version::V4, false), (Version::V4, true), (Version::V6, false), (Version::V6, true)]
    {
        for mode in [Mode::Tunnel, Mode::Transport] {
            let with = |number, suite| TunnelSpec { outer, esn, mode, ..TunnelSpec::new(number, suite) };
            all.extend(ESP.map(|suite| vec![with(0, suite)]));
            all.extend(ESP.map(|suite| vec![TunnelSpec { udp: true, ..with(0, suite) }]));
            let ah = |suite| vec![TunnelSpec { protocol: IpsecProtocol::Ah, ..with(0, suite) }];
            all.extend(of_ah().into_iter().map(ah));
            all.extend(ESP.map(|suite| {
                let esp = TunnelSpec { covered_by: Some(1), path_mtu: 1440, ..with(0, suite) };
                let ah = TunnelSpec {
                    covers: Some(0),
                    protocol: IpsecProtocol::Ah,
                    mode: Mode::Transport,
                    ..with(1, Suite::NULL_SHA384)
                };
                vec![esp, ah]
            }));
        }
    }
    for outer in [Version::V4, Version::V6] {
        for (suite, udp) in Suite::ALL_FOR_VPE.into_iter().flat_map(|suite| [(suite, false), (suite, true)]) {
            all.push(vec![TunnelSpec { outer, udp, ..vpe(suite) }]);
        }
    }
    all
}

fn pair(tunnels: &Tunnels) -> (Gateway, Gateway) {
    (Gateway::with_tunnels(Side::A, tunnels), Gateway::with_tunnels(Side::B, tunnels))
}

/// A packet from A's side to B's: between the hosts themselves in transport mode.
pub(crate) fn packet(tunnels: &Tunnels, bytes: usize) -> Vec<u8> {
    let spec = &tunnels[0];
    let (source, destination) = match spec.mode {
        Mode::Transport => (spec.address(Side::A).to_string(), spec.address(Side::B).to_string()),
        Mode::Tunnel => ("10.0.0.1".to_owned(), "172.16.0.2".to_owned()),
    };
    Inner::udp(&source, &destination, bytes).bytes()
}

fn protocol_of(datagram: &[u8]) -> u8 {
    if datagram[0] >> 4 == 4 { datagram[9] } else { datagram[6] }
}

/// Where what the outer header carries starts.
pub(crate) fn payload_at(datagram: &[u8]) -> usize {
    if datagram[0] >> 4 == 4 { 20 } else { 40 }
}

#[test]
fn packets_of_every_length_pass_in_every_encapsulation() {
    for tunnels in every_kind() {
        let (mut a, mut b) = pair(&tunnels);
        let first = payload_at(&packet(&tunnels, 100)) + 8;
        for bytes in (first..first + 40).chain([600, 1300, tunnels[0].inner_mtu()]) {
            let sent = packet(&tunnels, bytes);
            let sealed = a.seal(sent.clone());
            assert_eq!(sealed.len(), 1, "{tunnels:?}, {bytes} bytes");
            let spec = tunnels.last().expect("a tunnel");
            let expected = match spec.protocol {
                IpsecProtocol::Ah => protocol::AH,
                _ if spec.udp => protocol::UDP,
                IpsecProtocol::Esp => protocol::ESP,
                IpsecProtocol::Vpe => VPE_PROTOCOL,
            };
            assert_eq!(protocol_of(&sealed[0]), expected);
            assert!(sealed[0].len() <= 1500, "{tunnels:?}, {bytes} bytes become {}", sealed[0].len());
            let opened = b.open(sealed[0].clone());
            assert_eq!(opened.len(), 1, "{tunnels:?}, {bytes} bytes: {:?}", b.books());
            // The checksum of UDP is made anew behind a NAT, and this payload never had a right one.
            let is_fixed = spec.udp && spec.mode == Mode::Transport;
            let end = if is_fixed { payload_at(&sent) + 6 } else { sent.len() };
            assert_eq!(opened[0][..end], sent[..end], "{tunnels:?}, {bytes} bytes");
            assert_eq!(opened[0].len(), sent.len());
        }
        a.assert_settled();
        b.assert_settled();
    }
}

/// The longest packet that fits fills the path but for alignment; one byte more does not fit.
#[test]
fn no_datagram_exceeds_the_path() {
    for tunnels in every_kind() {
        let (mut a, _) = pair(&tunnels);
        let spec = &tunnels[0];
        let longest = Inner { dont_fragment: true, ..inner_of(&tunnels, spec.inner_mtu()) };
        assert_eq!(a.seal(longest.bytes()).len(), 1, "{tunnels:?}");
        let longer = Inner { total_bytes: spec.inner_mtu() + 1, ..longest };
        assert_eq!(a.seal(longer.bytes()).len(), 0, "{tunnels:?}");
        assert_eq!(a.drops(DropReason::TooBig), 1);
    }
}

/// A packet from A's side to B's: between the hosts themselves in transport mode.
pub(crate) fn inner_of(tunnels: &Tunnels, bytes: usize) -> Inner {
    let spec = &tunnels[0];
    match spec.mode {
        Mode::Transport => {
            let (source, destination) = (spec.address(Side::A), spec.address(Side::B));
            Inner { source, destination, ..Inner::udp("10.0.0.1", "172.16.0.2", bytes) }
        }
        Mode::Tunnel => Inner::udp("10.0.0.1", "172.16.0.2", bytes),
    }
}

/// Every byte of the datagram is flipped, one at a time: nothing that was changed is delivered, but for the
/// fields that routers change (RFC 4302 3.3.3.1.1, RFC 4303 2: ESP covers no header before it).
#[test]
fn nothing_that_was_changed_is_delivered() {
    for tunnels in every_kind() {
        let (mut a, mut b) = pair(&tunnels);
        let sent = packet(&tunnels, 90);
        let sealed = a.seal(sent.clone()).remove(0);
        let has_ah = protocol_of(&sealed) == protocol::AH;
        let from = if has_ah { 0 } else { payload_at(&sealed) };
        for at in from..sealed.len() {
            let mut changed = sealed.clone();
            changed[at] ^= 0x10;
            if sealed[0] >> 4 == 4 && at < 20 {
                changed[10..12].fill(0);
                let sum = testudo_wire::checksum::of(&changed[..20]).to_bytes();
                changed[10..12].copy_from_slice(&sum);
            }
            let is_mutable = has_ah && is_mutable(&sealed, at);
            let in_udp_header = tunnels[0].udp && at < payload_at(&sealed) + 8;
            if is_mutable || in_udp_header {
                continue;
            }
            assert_eq!(b.open(changed), [[0_u8; 0]; 0], "{tunnels:?}, byte {at}");
        }
        assert_eq!(b.open(sealed).len(), 1, "{tunnels:?}: the packet itself still passes");
        b.assert_settled();
    }
}

/// Type of service, flags and offset, time to live, checksum; traffic class, flow label, hop limit.
fn is_mutable(datagram: &[u8], at: usize) -> bool {
    match datagram[0] >> 4 {
        4 => [1, 6, 7, 8, 10, 11].contains(&at),
        // The first byte holds the version, too.
        _ => [1, 2, 3, 7].contains(&at),
    }
}

/// Routers lower the time to live, mark congestion and change DSCP; AH does not see it (RFC 4302 3.3.3.1).
#[test]
fn fields_that_routers_change_may_change_under_ah() {
    for tunnels in every_kind() {
        let (mut a, mut b) = pair(&tunnels);
        let mut sealed = a.seal(packet(&tunnels, 90)).remove(0);
        if protocol_of(&sealed) != protocol::AH {
            continue;
        }
        if sealed[0] >> 4 == 4 {
            (sealed[1], sealed[8]) = (0xB8, 3);
            sealed[10..12].fill(0);
            let sum = testudo_wire::checksum::of(&sealed[..20]).to_bytes();
            sealed[10..12].copy_from_slice(&sum);
        } else {
            (sealed[0], sealed[1], sealed[2], sealed[7]) = (0x6B, 0x81, 0x23, 3);
        }
        assert_eq!(b.open(sealed).len(), 1, "{tunnels:?}");
    }
}

/// ESP of a tunnel that AH covers does not come without it, nor AH without ESP in it.
#[test]
fn esp_that_ah_should_cover_is_refused_without_it() {
    for tunnels in every_kind().into_iter().filter(|tunnels| tunnels.len() == 2) {
        let bare = vec![TunnelSpec { covered_by: None, ..tunnels[0].clone() }];
        let (mut a, _) = pair(&bare);
        let (_, mut b) = pair(&tunnels);
        let sealed = a.seal(packet(&bare, 90)).remove(0);
        assert_eq!(b.open(sealed), [[0_u8; 0]; 0]);
        assert_eq!(b.drops(DropReason::WrongEncapsulation), 1, "{tunnels:?}");
        // AH alone, over a packet in clear: its SA is for ESP.
        let ah = vec![TunnelSpec { covers: None, ..tunnels[1].clone() }];
        let (mut a, _) = pair(&ah);
        let sealed = a.seal(packet(&ah, 90)).remove(0);
        assert_eq!(b.open(sealed), [[0_u8; 0]; 0]);
        assert_eq!(b.drops(DropReason::BadNextHeader), 1, "{tunnels:?}");
        b.assert_settled();
    }
}

/// Each ESP has one AH: that of another pair does not open it, though both keys are right.
#[test]
fn ah_of_one_pair_does_not_open_esp_of_another() {
    let all: Vec<Tunnels> = every_kind().into_iter().filter(|tunnels| tunnels.len() == 2).collect();
    for tunnels in all.into_iter().filter(|tunnels| tunnels[0].mode == Mode::Tunnel) {
        let [esp, ah] = [0, 1].map(|at| tunnels[at].clone());
        let second = [
            TunnelSpec { number: 2, covered_by: Some(3), ..esp.clone() },
            TunnelSpec { number: 3, covers: Some(2), ..ah.clone() },
        ];
        let crossed = vec![
            TunnelSpec { number: 2, covered_by: Some(1), ..esp.clone() },
            TunnelSpec { covers: Some(2), ..ah.clone() },
        ];
        let mut b = Gateway::with_tunnels(Side::B, &[&tunnels[..], &second].concat());
        let mut a = Gateway::with_tunnels(Side::A, &crossed);
        let sealed = a.seal(Inner::udp("10.0.0.1", "172.18.0.2", 90).bytes()).remove(0);
        assert_eq!(b.open(sealed), [[0_u8; 0]; 0], "{tunnels:?}");
        assert_eq!(b.drops(DropReason::WrongEncapsulation), 1, "{tunnels:?}");
        let mut a = Gateway::with_tunnels(Side::A, &second);
        let sealed = a.seal(Inner::udp("10.0.0.1", "172.18.0.2", 90).bytes()).remove(0);
        assert_eq!(b.open(sealed).len(), 1, "{tunnels:?}: its own AH does");
        b.assert_settled();
    }
}

/// Replays of AH and of AH over ESP (RFC 4302 3.4.3).
#[test]
fn each_packet_passes_once() {
    for tunnels in every_kind() {
        let (mut a, mut b) = pair(&tunnels);
        let sealed = a.seal(packet(&tunnels, 90)).remove(0);
        assert_eq!(b.open(sealed.clone()).len(), 1);
        assert_eq!(b.open(sealed), [[0_u8; 0]; 0], "{tunnels:?}");
        assert_eq!(b.drops(DropReason::ReplayDuplicate), 1);
    }
}
