//! Traffic flow confidentiality: TFC padding (RFC 4303 2.7) and dummy packets (RFC 4303 2.6), which a peer
//! takes off and drops.

use super::encapsulations::every_kind;
use super::path_mtu::too_big;
use crate::support::gateway::{PoolSize, portable};
use crate::support::{Gateway, Inner, LeaseTwin, Side, TunnelSpec};
use std::collections::HashSet;
use std::time::Duration;
use testudo_crypto::Suite;
use testudo_ipsec::{FlowLabel, Fragmentation, IpsecProtocol, Lifetime, Limits, Mode, PacketRules};
use testudo_packet::DropReason;
use testudo_wire::ip::Version;

fn with(rules: PacketRules, spec: TunnelSpec) -> TunnelSpec {
    TunnelSpec { rules, ..spec }
}

fn inner(is_v6: bool, bytes: usize) -> Vec<u8> {
    let inner = if is_v6 {
        Inner::udp("fd0a::1", "fd16::2", bytes)
    } else {
        Inner::udp("10.0.0.1", "172.16.0.2", bytes)
    };
    inner.bytes()
}

/// RFC 4303 2.7: shorter packets become equally long, longer ones stay, and all come out as they went in.
#[test]
fn packets_are_padded_to_one_length_as_far_as_the_path_carries_it() {
    for suite in [Suite::AES128GCM16, Suite::AES256_SHA256] {
        for pad_to in [300, 1400, 9000] {
            let rules = PacketRules { tfc_pad_to: pad_to, ..PacketRules::default() };
            let spec = with(rules, TunnelSpec::new(0, suite));
            let mut a = Gateway::with_buffers(Side::A, std::slice::from_ref(&spec), PoolSize(64, 9000));
            let mut b = Gateway::with_tunnels(Side::B, std::slice::from_ref(&spec));
            let full = usize::from(pad_to).min(spec.inner_mtu());
            let mut lengths = HashSet::new();
            for is_v6 in [false, true] {
                for bytes in [48, 60, 100, full - 1, full, full + 1, spec.inner_mtu()] {
                    let packet = inner(is_v6, bytes.min(spec.inner_mtu()));
                    let sealed = a.seal(packet.clone()).remove(0);
                    assert!(sealed.len() <= spec.path_mtu);
                    if bytes <= full {
                        lengths.insert(sealed.len());
                    }
                    assert_eq!(b.open(sealed), [packet], "{suite}, to {pad_to}, {bytes} bytes");
                }
            }
            assert_eq!(lengths.len(), 1, "{suite}, to {pad_to}: {lengths:?}");
            a.assert_settled();
            b.assert_settled();
        }
    }
}

/// The next moments at which dummies are due, until `end`; what was sent at each.
pub(crate) fn run(a: &mut Gateway, end: Duration) -> Vec<(Duration, Vec<u8>)> {
    let mut sent = Vec::new();
    while let Some(due) = a.worker.next_dummy().filter(|due| due.0 <= end) {
        a.clock.advance(due.since(a.now()));
        let now = a.now();
        a.worker.send_dummies(now);
        a.settle();
        sent.extend(a.unprotected.take().into_iter().map(|datagram| (now.0, datagram)));
    }
    sent
}

/// RFC 4303 2.6: at the rate that is wanted, in every encapsulation of ESP; the peer authenticates and drops
/// them, and both count them apart from packets.
#[test]
fn dummies_are_sent_at_their_rate_and_dropped_by_the_peer() {
    let rules = PacketRules { dummy_packets_per_second: 50, ..PacketRules::default() };
    for tunnels in every_kind() {
        let tunnels: Vec<_> = tunnels.into_iter().map(|spec| with(rules.clone(), spec)).collect();
        let mut a = Gateway::with_tunnels(Side::A, &tunnels);
        let mut b = Gateway::with_tunnels(Side::B, &tunnels);
        let sent = run(&mut a, Duration::from_secs(10));
        if tunnels[0].protocol == IpsecProtocol::Ah {
            assert!(sent.is_empty(), "AH hides nothing");
            continue;
        }
        let is_vpe = tunnels[0].protocol == IpsecProtocol::Vpe;
        let reason = if is_vpe { DropReason::VpeFill } else { DropReason::DummyPacket };
        assert!((450..=550).contains(&sent.len()), "{} in ten seconds: {tunnels:?}", sent.len());
        let count = sent.len() as u64;
        for (_, datagram) in sent {
            assert!(datagram.len() <= tunnels[0].path_mtu.max(1500));
            assert!(b.open(datagram).is_empty());
        }
        assert_eq!(b.drops(reason), count, "{tunnels:?}: {:?}", b.books());
        assert_eq!(b.worker.pool().drops().total(), count);
        a.assert_settled();
        b.assert_settled();
    }
}

#[test]
fn dummies_are_as_long_as_padded_packets_or_of_any_length_and_keep_no_beat() {
    for pad_to in [0, 700] {
        let rules =
            PacketRules { dummy_packets_per_second: 100, tfc_pad_to: pad_to, ..PacketRules::default() };
        let spec = with(rules, TunnelSpec::new(0, Suite::AES128GCM16));
        let mut a = Gateway::with_tunnels(Side::A, std::slice::from_ref(&spec));
        let padded = a.seal(inner(false, 100)).remove(0).len();
        let sent = run(&mut a, Duration::from_secs(5));
        let lengths: HashSet<usize> = sent.iter().map(|(_, datagram)| datagram.len()).collect();
        if pad_to == 0 {
            assert!(lengths.len() > 100, "{} lengths", lengths.len());
        } else {
            assert_eq!(lengths, HashSet::from([padded]));
        }
        let gaps: HashSet<Duration> = sent.windows(2).map(|pair| pair[1].0 - pair[0].0).collect();
        assert!(gaps.len() > 100, "{} intervals", gaps.len());
        let bounds = Duration::from_millis(5)..=Duration::from_millis(15);
        assert!(gaps.iter().all(|gap| bounds.contains(gap)), "{gaps:?}");
    }
}

/// What was missed while the machine slept is not made up for, and a tunnel that is gone sends nothing; one
/// that takes its place has its own rate.
#[test]
fn dummies_never_come_in_bursts_and_end_with_their_tunnel() {
    let rules = PacketRules { dummy_packets_per_second: 100, ..PacketRules::default() };
    let spec = with(rules, TunnelSpec::new(0, Suite::AES128GCM16));
    let mut a = Gateway::new(spec.policies(Side::A), PoolSize(64, 2000), portable());
    let mut store = LeaseTwin::new(1 << 40);
    a.install(spec.install(Side::A, &mut store, None));
    run(&mut a, Duration::from_secs(1));
    a.clock.advance(Duration::from_secs(3600));
    let now = a.now();
    a.worker.send_dummies(now);
    a.settle();
    let at_once = a.unprotected.take().len();
    assert!(at_once <= 2, "{at_once} at once");
    for round in 0..3 {
        let update = testudo_gateway::Update { remove: vec![spec.index()], ..Default::default() };
        let now = a.now();
        a.worker.update(update, now);
        a.install(spec.install(Side::A, &mut store, None));
        let end = a.now().0 + Duration::from_secs(2);
        let sent = run(&mut a, end).len();
        assert!((170..=230).contains(&sent), "round {round}: {sent} in two seconds");
    }
    a.assert_settled();
}

#[test]
fn no_dummy_is_sent_to_an_unknown_peer_nor_by_an_sa_whose_lifetime_is_over() {
    let rules = PacketRules { dummy_packets_per_second: 100, ..PacketRules::default() };
    let spec = TunnelSpec { udp: true, b_learns: true, ..TunnelSpec::new(0, Suite::AES128GCM16) };
    let mut b = Gateway::with_tunnels(Side::B, &[with(rules.clone(), spec)]);
    assert!(run(&mut b, Duration::from_secs(2)).is_empty());
    let hard = Limits { packets: Some(30), ..Limits::default() };
    let lifetime = Lifetime { soft: Limits::default(), hard };
    let spec = TunnelSpec { lifetime, ..TunnelSpec::new(0, Suite::AES128GCM16) };
    let mut a = Gateway::with_tunnels(Side::A, &[with(rules, spec)]);
    assert_eq!(run(&mut a, Duration::from_secs(2)).len(), 30, "they use up the key as all packets do");
    a.assert_settled();
    b.assert_settled();
}

/// In transport mode, too, a datagram of ESP hides what it is.
#[test]
fn dummies_of_transport_mode_look_like_its_packets() {
    let rules = PacketRules { dummy_packets_per_second: 10, ..PacketRules::default() };
    let spec = TunnelSpec { mode: Mode::Transport, ..TunnelSpec::new(0, Suite::AES128GCM16) };
    let mut a = Gateway::with_tunnels(Side::A, &[with(rules, spec)]);
    for (_, datagram) in run(&mut a, Duration::from_secs(2)) {
        assert_eq!((datagram[9], &datagram[12..20]), (50, &[192, 0, 2, 1, 198, 51, 100, 2][..]));
    }
}

/// Where packets are cut after they were sealed, one of any length has a place on the path. Padding and
/// dummies do not use that: what was one datagram stays one, also when a router says that the path is
/// narrower than it was.
#[test]
fn no_padding_and_no_dummy_is_cut() {
    for suite in [Suite::AES128GCM16, Suite::AES256_SHA256] {
        for pad_to in [0, 9000] {
            let rules =
                PacketRules { tfc_pad_to: pad_to, dummy_packets_per_second: 50, ..PacketRules::default() };
            let spec = TunnelSpec { fragmentation: Fragmentation::After, ..TunnelSpec::new(0, suite) };
            let spec = with(rules, spec);
            let mut a = Gateway::with_buffers(Side::A, std::slice::from_ref(&spec), PoolSize(64, 9000));
            let mut b = Gateway::with_tunnels(Side::B, std::slice::from_ref(&spec));
            let mut end = Duration::from_secs(2);
            for (path, narrower) in [(spec.path_mtu, Some(1300)), (1300, Some(600)), (600, None)] {
                let packet = inner(false, 100);
                let sealed = a.seal(packet.clone());
                assert_eq!(sealed.len(), 1, "{suite}, to {pad_to}, over {path} bytes");
                let longest = TunnelSpec { path_mtu: path, ..spec.clone() }.inner_mtu();
                let full = a.seal(inner(false, longest)).remove(0);
                assert!(full.len() <= path && (pad_to == 0 || sealed[0].len() == full.len()));
                assert_eq!(b.open(sealed[0].clone()), [packet]);
                let dummies = run(&mut a, end);
                assert!(dummies.len() > 50 && dummies.iter().all(|(_, dummy)| dummy.len() <= path));
                assert!(pad_to == 0 || dummies.iter().all(|(_, dummy)| dummy.len() == full.len()));
                assert!(dummies.into_iter().all(|(_, dummy)| b.open(dummy).is_empty()));
                if let Some(narrower) = narrower {
                    a.open(too_big(&full, narrower));
                }
                end += Duration::from_secs(2);
            }
            assert_eq!(b.drops(DropReason::DummyPacket), b.worker.pool().drops().total(), "all came whole");
            a.assert_settled();
            b.assert_settled();
        }
    }
}

/// While the port takes nothing no dummy is due, however long ago it was: who waits for the next one would
/// wait for no time at all, again and again.
#[test]
fn dummies_keep_no_worker_awake_while_the_port_is_stuck() {
    let rules = PacketRules { dummy_packets_per_second: 100, ..PacketRules::default() };
    let spec = with(rules, TunnelSpec::new(0, Suite::AES128GCM16));
    let mut a = Gateway::with_tunnels(Side::A, std::slice::from_ref(&spec));
    assert!(!run(&mut a, Duration::from_secs(1)).is_empty());
    a.unprotected.set_room(Some(0));
    assert!(a.seal(inner(false, 100)).is_empty());
    a.clock.advance(Duration::from_secs(10));
    let now = a.now();
    a.worker.send_dummies(now);
    assert_eq!(a.worker.next_dummy(), None);
    a.unprotected.set_room(None);
    a.settle();
    assert!(a.worker.next_dummy().is_some_and(|due| due <= now));
    a.worker.send_dummies(now);
    a.settle();
    assert!((2..=3).contains(&a.unprotected.take().len()), "the packet that waited, and no burst");
    a.assert_settled();
}

/// By a label that no flow has, dummies could be told from packets.
#[test]
fn dummies_have_the_labels_of_flows() {
    let rules = PacketRules {
        flow_label: FlowLabel::PerFlow,
        dummy_packets_per_second: 50,
        tfc_pad_to: 700,
        ..PacketRules::default()
    };
    let specs =
        [0, 1].map(|number| TunnelSpec { outer: Version::V6, ..TunnelSpec::new(number, Suite::AES128GCM16) });
    let specs = specs.map(|spec| with(rules.clone(), spec));
    let mut a = Gateway::with_tunnels(Side::A, &specs);
    let label = |datagram: &[u8]| [datagram[1] & 0xF, datagram[2], datagram[3]];
    for round in 1..20_u64 {
        let packets = [("172.16.0.2", 1000), ("172.17.0.2", 2000)];
        let labels = packets.map(|(to, port)| {
            let packet = Inner { ports: (port + round as u16, 53), ..Inner::udp("10.0.0.1", to, 100) };
            label(&a.seal(packet.bytes())[0])
        });
        let dummies = run(&mut a, Duration::from_secs(round));
        let seen: HashSet<_> = dummies.iter().map(|(_, dummy)| label(dummy)).collect();
        assert_eq!(seen, HashSet::from(labels), "round {round}");
    }
    a.assert_settled();
}

/// RFC 4301 4.4.2.1: a lifetime in bytes is of what the algorithm is applied to, and "this includes pad
/// bytes". A key that is good for so many bytes encrypts no more of them because they are padding.
#[test]
fn padding_counts_towards_the_lifetime_of_its_key() {
    let hard = Limits { bytes: Some(10_000), ..Limits::default() };
    let lifetime = Lifetime { soft: Limits::default(), hard };
    let rules = PacketRules { tfc_pad_to: 1000, ..PacketRules::default() };
    let spec = TunnelSpec { lifetime, ..TunnelSpec::new(0, Suite::AES128GCM16) };
    let mut a = Gateway::with_tunnels(Side::A, &[with(rules, spec)]);
    let passed = (0..100).filter(|_| !a.seal(inner(false, 60)).is_empty()).count();
    assert_eq!(passed, 10, "of 1,000 bytes each");
    a.assert_settled();
}
