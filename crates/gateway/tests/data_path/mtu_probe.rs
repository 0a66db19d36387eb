//! Probes inside the SA, through whole gateways and a path that loses what is too long (RFC 8899).

use crate::path_mtu::{every_kind, longest};
use crate::support::{Gateway, LeaseTwin, Side, TunnelSpec};
use std::net::IpAddr;
use std::time::Duration;
use testudo_gateway::{SaChange, UseFrom};
use testudo_ipsec::{EventKind, LearnedFrom, Mode, MtuProbe, PacketRules};
use testudo_packet::DropReason;
use testudo_wire::checksum::{self, Sum};
use testudo_wire::ip::{IpHeader, Version};

/// The same tunnels, the first of which is probed.
fn probed(mut tunnels: Vec<TunnelSpec>) -> Vec<TunnelSpec> {
    let spec = &mut tunnels[0];
    let [source, destination]: [IpAddr; 2] = match spec.mode {
        Mode::Transport => [Side::A, Side::B].map(|side| spec.address(side)),
        Mode::Tunnel => ["10.0.0.1", "172.16.0.2"].map(|text| text.parse().expect("an address")),
    };
    let interval = Duration::from_secs(30);
    let mtu_probe = Some(Box::new(MtuProbe { source, destination, interval }));
    spec.rules = PacketRules { mtu_probe, ..spec.rules.clone() };
    tunnels
}

/// What a host says to a ping.
fn reply_to(request: &[u8]) -> Vec<u8> {
    let header = IpHeader::parse(request).expect("a packet");
    let mut reply = request.to_vec();
    let (first, bytes) = if header.version == Version::V4 { (12, 4) } else { (8, 16) };
    reply[first..first + bytes].copy_from_slice(&request[first + bytes..first + 2 * bytes]);
    reply[first + bytes..first + 2 * bytes].copy_from_slice(&request[first..first + bytes]);
    let message = &mut reply[header.header_bytes..];
    assert!(matches!((header.version, message[0]), (Version::V4, 8) | (Version::V6, 128)), "an echo request");
    message[0] = if header.version == Version::V4 { 0 } else { 129 };
    message[2..4].fill(0);
    let sum = match header.version {
        Version::V4 => checksum::of(message),
        Version::V6 => {
            let pseudo = Sum::default();
            let length = message.len() as u32;
            pseudo.pseudo_header(header.source, header.destination, 58, length).bytes(message).finish()
        }
    };
    message[2..4].copy_from_slice(&sum.to_bytes());
    reply
}

/// Two gateways with a path between them that loses datagrams of A of more than `passes` bytes.
struct Path {
    a: Gateway,
    b: Gateway,
    passes: usize,
    answered: u64,
}

impl Path {
    fn new(tunnels: &[TunnelSpec], passes: usize) -> Self {
        let mut plain = tunnels.to_vec();
        plain[0].rules.mtu_probe = None;
        let a = Gateway::with_tunnels(Side::A, tunnels);
        Self { a, b: Gateway::with_tunnels(Side::B, &plain), passes, answered: 0 }
    }

    fn run(&mut self, seconds: u64) {
        for _ in 0..seconds {
            self.a.clock.advance(Duration::from_secs(1));
            let now = self.a.now();
            self.a.worker.tick(now);
            self.a.settle();
            for datagram in self.a.unprotected.take() {
                if datagram.len() > self.passes {
                    continue;
                }
                for request in self.b.open(datagram) {
                    for answer in self.b.seal(reply_to(&request)) {
                        assert!(self.a.open(answer).is_empty(), "hosts hear nothing of it");
                    }
                    self.answered += 1;
                }
            }
        }
    }

    /// What A was told by probes, in order.
    fn found(&mut self) -> Vec<usize> {
        let events = self.a.worker.take_events().into_iter();
        let found = events.filter_map(|event| match event.kind {
            EventKind::PathMtu { mtu, learned_from: Some(LearnedFrom::Probes) | None } => Some(mtu),
            _ => None,
        });
        found.collect()
    }
}

/// RFC 8899 5.2: first the base, so that something passes at once; then what the path carries, or up to 8
/// bytes less.
#[test]
fn a_black_hole_is_found_and_measured_by_probes() {
    for tunnels in every_kind().into_iter().map(probed) {
        let least = if tunnels[0].outer == Version::V4 { 576 } else { 1280 };
        for passes in [1300, 1400, 1492] {
            let mut path = Path::new(&tunnels, passes);
            path.run(40);
            let found = path.found();
            assert_eq!(found[0], least, "{tunnels:?}");
            let last = *found.last().expect("something was found");
            // The gap that alignment leaves, and the step of the search.
            assert!(last <= passes && last + 8 + 4 > passes, "{last} of {passes}: {tunnels:?}");
            assert_eq!(path.a.drops(DropReason::MtuProbeAnswered), path.answered);
            let inner = longest(&tunnels, last);
            assert!(path.a.seal(crate::path_mtu::inner(&tunnels, inner))[0].len() <= passes);
            path.a.assert_settled();
            path.b.assert_settled();
        }
    }
}

#[test]
fn a_path_that_became_wider_is_in_use_again_within_ten_minutes() {
    let tunnels = probed(vec![TunnelSpec::new(0, testudo_crypto::Suite::AES128GCM16)]);
    let mut path = Path::new(&tunnels, 1400);
    path.run(40);
    let narrow = *path.found().last().expect("something was found");
    path.run(500);
    assert!(path.found().is_empty());
    path.passes = 1500;
    path.run(100);
    assert_eq!(path.found(), [1500]);
    assert!(narrow < 1400 + 1);
    // And a peer that is silent from now on changes nothing.
    path.passes = 0;
    path.run(100);
    assert!(path.found().is_empty());
}

/// Only the SA's own answers count, and only those to the probe that waits.
#[test]
fn other_pings_through_a_probed_tunnel_reach_their_hosts() {
    let tunnels = probed(vec![TunnelSpec::new(0, testudo_crypto::Suite::AES128GCM16)]);
    let mut path = Path::new(&tunnels, 0);
    path.run(1);
    let mut request = crate::path_mtu::inner(&tunnels, 100);
    request[9] = 1;
    request[20..].fill(0);
    request[20] = 8;
    request[10..12].fill(0);
    let sum = checksum::of(&request[..20]).to_bytes();
    request[10..12].copy_from_slice(&sum);
    let answer = path.b.seal(reply_to(&request)).remove(0);
    assert_eq!(path.a.open(answer).len(), 1, "while a probe waits for its answer");
    assert_eq!(path.a.drops(DropReason::MtuProbeAnswered), 0);
}

/// A probe has the length that it asks for, and its answer whatever length it has: padding changes nothing of
/// what is found, and packets are padded as far as what was found allows.
#[test]
fn a_path_is_measured_where_packets_are_padded() {
    for pad_to in [700, 1400, 9000] {
        let mut tunnels = probed(vec![TunnelSpec::new(0, testudo_crypto::Suite::AES128GCM16)]);
        tunnels[0].rules.tfc_pad_to = pad_to;
        let mut path = Path::new(&tunnels, 1300);
        path.run(40);
        let found = path.found();
        let last = *found.last().expect("something was found");
        assert_eq!(found[0], 576, "to {pad_to}");
        assert!(last <= 1300 && last + 8 + 4 > 1300, "{last}: to {pad_to}");
        let full = usize::from(pad_to).min(longest(&tunnels, last));
        let lengths = [100, full].map(|bytes| path.a.seal(crate::path_mtu::inner(&tunnels, bytes))[0].len());
        assert!(lengths[0] == lengths[1] && lengths[1] <= last, "{lengths:?}: to {pad_to}");
        path.a.assert_settled();
        path.b.assert_settled();
    }
}

/// The peer moves to its new key while a probe waits: its answer comes under that.
#[test]
fn an_answer_under_a_new_key_counts() {
    let tunnels = probed(vec![TunnelSpec::new(0, testudo_crypto::Suite::AES128GCM16)]);
    let new = TunnelSpec { number: 7, ..tunnels[0].clone() };
    let mut path = Path::new(&tunnels, 0);
    path.a.clock.advance(Duration::from_secs(1));
    let now = path.a.now();
    path.a.worker.tick(now);
    path.a.settle();
    let probe = path.a.unprotected.take().remove(0);
    let index = tunnels[0].index();
    let inbound = SaChange::AddInbound(index, Box::new(new.inbound(Side::A)));
    path.a.worker.change_sa(inbound, now).expect("it can be added");
    let outbound = new.outbound(Side::B, &mut LeaseTwin::new(1 << 40));
    let outbound = SaChange::AddOutbound(index, Box::new(outbound), UseFrom::Now);
    path.b.worker.change_sa(outbound, now).expect("it can be added");
    let request = path.b.open(probe).remove(0);
    let answer = path.b.seal(reply_to(&request)).remove(0);
    assert!(path.a.open(answer).is_empty());
    assert_eq!(path.a.drops(DropReason::MtuProbeAnswered), 1);
}

/// A gateway that has taken the answer to a probe.
pub fn answered() -> Gateway {
    let tunnels = probed(vec![TunnelSpec::new(0, testudo_crypto::Suite::AES128GCM16)]);
    let mut path = Path::new(&tunnels, 1500);
    path.run(1);
    path.a
}
