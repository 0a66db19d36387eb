//! VPE (`docs/VPE.md`): its packets bit by bit, its windows, where it arrives, and what is hostile.

use crate::support::gateway::{PoolSize, portable};
use crate::support::vpe::{datagram, sealed, vpe};
use crate::support::{Gateway, Inner, LeaseTwin, Side, TunnelSpec};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::time::Duration;
use testudo_crypto::{KeyMaterial, Suite};
use testudo_gateway::Role;
use testudo_ipsec::{Action, PacketRules, Policy, Selector, VpeClasses, VpeRules, VpeSourcePorts};
use testudo_packet::DropReason;
use testudo_wire::ip::Version;
use testudo_wire::protocol;
use testudo_wire::vpe::{VPE_HEADER_BYTES, VPE_PROTOCOL, VpeHeader};

const VECTORS: &str = include_str!("../../../../docs/vpe-vectors.json");

pub(crate) fn spec() -> TunnelSpec {
    vpe(Suite::ALL_FOR_VPE[0])
}

/// The tunnel with these rules.
pub(crate) fn with(rules: VpeRules) -> TunnelSpec {
    TunnelSpec { rules: PacketRules { vpe: Some(Box::new(rules)), ..PacketRules::default() }, ..spec() }
}

fn gateway(side: Side, spec: &TunnelSpec) -> Gateway {
    Gateway::with_tunnels(side, std::slice::from_ref(spec))
}

/// A header as A sends them.
pub(crate) fn header(window: u16, number: u64) -> VpeHeader {
    VpeHeader { sender: 0, window, number, spi: spec().spi_from(Side::A) }
}

/// A's packet with any header and any text, in a datagram to B.
pub(crate) fn from_a(header: VpeHeader, text: &[u8]) -> Vec<u8> {
    datagram(&spec(), VPE_PROTOCOL, &sealed(&spec().key_from(Side::A), header, text))
}

pub(crate) fn inner(bytes: usize) -> Vec<u8> {
    Inner::udp("10.0.0.1", "172.16.0.2", bytes).bytes()
}

/// The flow of a packet by its port, and its DSCP.
pub(crate) fn of_flow(port: u16, dscp: u8) -> Vec<u8> {
    let mut packet = inner(100);
    packet[1] = dscp << 2;
    packet[20..22].copy_from_slice(&port.to_be_bytes());
    packet[10..12].fill(0);
    let sum = testudo_wire::checksum::of(&packet[..20]).to_bytes();
    packet[10..12].copy_from_slice(&sum);
    packet
}

pub(crate) fn header_of(datagram: &[u8]) -> VpeHeader {
    VpeHeader::parse(&datagram[20..]).expect("a header")
}

/// B, after it dropped a packet of VPE for this reason.
pub(crate) fn raise(reason: DropReason) -> Gateway {
    let sent = match reason {
        DropReason::VpeMalformed => datagram(&spec(), VPE_PROTOCOL, &[7; 31]),
        DropReason::VpeSender => from_a(VpeHeader { sender: 1, ..header(0, 1) }, &inner(60)),
        DropReason::VpeInner => from_a(header(0, 1), &[0x50; 40]),
        DropReason::VpeFill => from_a(header(0, 1), &[0; 40]),
        _ => from_a(header(9, 1), &inner(60)),
    };
    let mut b = gateway(Side::B, &with(VpeRules::default().with_windows_max(1)));
    if reason == DropReason::VpeWindows {
        assert_eq!(b.open(from_a(header(0, 1), &inner(60))).len(), 1);
    }
    assert_eq!(b.open(sent), [[0_u8; 0]; 0]);
    b
}

/// The vectors with a datagram inside, by our own sender: each bit is as the other implementation wrote it.
#[test]
fn the_vectors_are_what_a_gateway_sends() {
    let all: Vec<Value> = serde_json::from_str(VECTORS).expect("JSON");
    let mut compared = 0;
    for vector in all {
        let text = |member: &str| vector[member].as_str().expect("a string").to_owned();
        let bytes = |member: &str| {
            let text = text(member);
            let pairs = (0..text.len()).step_by(2);
            pairs.map(|at| u8::from_str_radix(&text[at..at + 2], 16).expect("hex")).collect::<Vec<u8>>()
        };
        let number = |member: &str| vector[member].as_u64().expect("a number");
        let (plaintext, sequence) = (bytes("plaintext"), text("number").parse::<u64>().expect("a number"));
        // No gateway sends 2^64 − 1, and ours pads to a length or not at all.
        let is_whole = number_or(&vector, "inner_bytes") == plaintext.len() as u64;
        if !is_whole || sequence == u64::MAX {
            continue;
        }
        compared += 1;
        let suite = text("suite").parse::<Suite>().expect("a suite").for_vpe().expect("a suite of VPE");
        let rules = VpeRules::default().with_sender(number("sender") as u16);
        let window = number("window") as u16;
        let rules = rules.with_slots(VpeClasses::default(), window, 1).expect("one window");
        let spec = TunnelSpec { suite, ..with(rules) };
        let policy = Policy::new(Selector::ANY, Action::Protect(spec.index()));
        let mut a = Gateway::new(vec![policy], PoolSize(64, 2048), portable());
        let mut store = LeaseTwin::new(100);
        store.begin_at(spec.spi_from(Side::A), sequence);
        let mut install = spec.install(Side::A, &mut store, None);
        install.outbound.parameters.sa.spi = number("spi") as u32;
        let key = KeyMaterial::new(suite, bytes("key").into()).expect("a key");
        install.outbound.key = key.into();
        a.install(install);
        let sent = a.seal(plaintext).remove(0);
        assert_eq!((sent[9], &sent[20..]), (VPE_PROTOCOL, &bytes("packet")[..]), "{}", text("name"));
        a.assert_settled();
    }
    assert!(compared >= 10, "{compared}");
}

fn number_or(vector: &Value, member: &str) -> u64 {
    vector[member].as_u64().unwrap_or(u64::MAX)
}

/// Each flow has one window, in which numbers count up from 1; together flows use them all, and each class
/// has its own.
#[test]
fn flows_keep_their_window_and_every_window_counts_from_one() {
    let classes = VpeClasses::of_sets([&[46][..], &[10, 12]]);
    let spec = with(VpeRules::default().with_slots(classes, 0, 8).expect("24 windows"));
    let (mut a, mut b) = (gateway(Side::A, &spec), gateway(Side::B, &spec));
    let (mut windows, mut next) = (HashMap::new(), BTreeMap::new());
    for n in 0..1200_u16 {
        for (class, dscp) in [(0, 0), (1, 46), (2, 12)] {
            let port = 1000 + n % 60;
            let sent = a.seal(of_flow(port, dscp)).remove(0);
            let header = header_of(&sent);
            assert_eq!((header.sender, header.window % 3), (0, class));
            assert_eq!(*windows.entry((port, class)).or_insert(header.window), header.window);
            let expected: &mut u64 = next.entry(header.window).or_insert(1);
            assert_eq!(header.number, *expected, "window {}", header.window);
            *expected += 1;
            assert_eq!(b.open(sent), [of_flow(port, dscp)]);
        }
    }
    assert_eq!(next.len(), 24, "{next:?}");
}

/// Urgent packets overtake thousands of others, and none is lost, as each class has its window; in one window
/// they would be.
#[test]
fn a_class_that_overtakes_another_costs_no_packet() {
    for (classes, is_lossless) in [(VpeClasses::of_sets([&[46][..]]), true), (VpeClasses::default(), false)] {
        let rules = VpeRules::default().with_slots(classes, 0, 1).expect("few windows");
        let spec = TunnelSpec { window: 64, ..with(rules) };
        let (mut a, mut b) = (gateway(Side::A, &spec), gateway(Side::B, &spec));
        let (mut urgent, mut others) = (Vec::new(), Vec::new());
        for n in 0..400 {
            let (dscp, to) = if n % 2 == 0 { (46, &mut urgent) } else { (0, &mut others) };
            to.push(a.seal(of_flow(1000, dscp)).remove(0));
        }
        let sent = urgent.len() + others.len();
        let passed: usize = urgent.into_iter().chain(others).map(|datagram| b.open(datagram).len()).sum();
        assert_eq!(passed == sent, is_lossless, "{passed} of {sent}");
        assert_eq!(b.drops(DropReason::ReplayTooOld) as usize, sent - passed);
    }
}

/// What comes after the inner datagram is dropped whatever it is; a plaintext of zeros is no error; others
/// are. All that is authentic moves its window.
#[test]
fn plaintexts_are_judged_by_their_own_headers() {
    let mut b = gateway(Side::B, &spec());
    let packet = inner(80);
    for (number, padding) in (1..).zip([vec![], vec![0; 18], vec![0xA5; 700]]) {
        let passed = b.open(from_a(header(3, number), &[&packet[..], &padding].concat()));
        assert_eq!(passed, std::slice::from_ref(&packet));
    }
    let mut longer = packet.clone();
    longer[3] += 1;
    let none: [Vec<u8>; 0] = [];
    let cases: [(&[u8], DropReason); 5] = [
        (&[], DropReason::VpeFill),
        (&[0; 64], DropReason::VpeFill),
        (&longer, DropReason::VpeInner),
        (&[0x50; 40], DropReason::VpeInner),
        (&packet[..19], DropReason::VpeInner),
    ];
    for (number, (text, reason)) in (4..).zip(cases) {
        let before = b.drops(reason);
        let sent = from_a(header(3, number), text);
        assert_eq!(b.open(sent.clone()), none);
        assert_eq!(b.drops(reason), before + 1, "{reason:?}");
        let replayed = b.drops(DropReason::ReplayDuplicate);
        assert_eq!(b.open(sent), none);
        assert_eq!(b.drops(DropReason::ReplayDuplicate), replayed + 1);
    }
    b.assert_settled();
}

/// Selectors and policy judge what VPE carries, as after ESP (RFC 4301 5.2).
#[test]
fn an_inner_packet_that_no_selector_names_is_refused() {
    let mut b = gateway(Side::B, &spec());
    let foreign = Inner::udp("203.0.113.5", "172.16.0.2", 80).bytes();
    assert_eq!(b.open(from_a(header(0, 1), &foreign)), [[0_u8; 0]; 0]);
    assert_eq!(b.drops(DropReason::SelectorMismatch), 1);
}

/// Congestion that is marked outside is marked inside (RFC 6040 4.2).
#[test]
fn congestion_is_marked_inside() {
    let (mut a, mut b) = (gateway(Side::A, &spec()), gateway(Side::B, &spec()));
    let capable = of_flow(1000, 0).into_iter().enumerate().map(|(at, byte)| if at == 1 { 2 } else { byte });
    let mut capable: Vec<u8> = capable.collect();
    capable[10..12].fill(0);
    let sum = testudo_wire::checksum::of(&capable[..20]).to_bytes();
    capable[10..12].copy_from_slice(&sum);
    let mut sent = a.seal(capable).remove(0);
    assert_eq!(sent[1], 2);
    sent[1] = 3;
    sent[10..12].fill(0);
    let sum = testudo_wire::checksum::of(&sent[..20]).to_bytes();
    sent[10..12].copy_from_slice(&sum);
    assert_eq!(b.open(sent)[0][1] & 3, 3);
}

/// Hostile: Sender IDs and Window IDs that nobody sealed make no window; one window too many is dropped by
/// name, and the others go on.
#[test]
fn a_flood_of_windows_and_forged_senders_harms_nobody() {
    let rules = VpeRules::default().with_windows_max(8);
    let mut b = gateway(Side::B, &with(rules));
    let packet = inner(60);
    for window in 0..2000 {
        let mut forged = from_a(header(window % 7, 1), &packet);
        forged[20..24].copy_from_slice(&(u32::from(window) + 1).wrapping_mul(0x9E37_79B9).to_le_bytes());
        assert_eq!(b.open(forged), [[0_u8; 0]; 0]);
    }
    assert_eq!(b.drops(DropReason::AuthenticationFailed), 2000);
    for window in 0..8 {
        assert_eq!(b.open(from_a(header(window, 1), &packet)), std::slice::from_ref(&packet));
    }
    for window in 8..200 {
        assert_eq!(b.open(from_a(header(window, 1), &packet)), [[0_u8; 0]; 0]);
    }
    assert_eq!(b.drops(DropReason::VpeWindows), 192);
    for window in 0..8 {
        assert_eq!(b.open(from_a(header(window, 2), &packet)), std::slice::from_ref(&packet));
        assert_eq!(b.open(from_a(header(window, 1), &packet)), [[0_u8; 0]; 0]);
    }
    assert_eq!(b.drops(DropReason::ReplayDuplicate), 8);
    b.assert_settled();
}

/// An authentic packet of another sender is refused on a unicast SA, and makes no window.
#[test]
fn an_authentic_packet_of_another_sender_is_refused() {
    let rules = VpeRules::default().with_windows_max(1);
    let mut b = gateway(Side::B, &with(rules));
    for sender in [1, 0x100, u16::MAX] {
        assert_eq!(b.open(from_a(VpeHeader { sender, ..header(0, 9) }, &inner(60))), [[0_u8; 0]; 0]);
    }
    assert_eq!(b.drops(DropReason::VpeSender), 3);
    assert_eq!(b.open(from_a(header(0, 9), &inner(60))).len(), 1);
}

/// Numbers at 2^64 are taken, in each window once, and nothing wraps; the number 0 is refused.
#[test]
fn the_last_numbers_are_taken_once() {
    let mut b = gateway(Side::B, &spec());
    for (number, passes) in [(u64::MAX, 1), (u64::MAX, 0), (u64::MAX - 1, 1), (0, 0), (1, 0)] {
        assert_eq!(b.open(from_a(header(1, number), &inner(60))).len(), passes, "{number}");
    }
    assert_eq!(b.open(from_a(header(2, 0), &inner(60))).len(), 0);
    assert_eq!(b.open(from_a(header(2, 1), &inner(60))).len(), 1, "windows know nothing of one another");
    assert_eq!(b.drops(DropReason::ReplayDuplicate), 1);
    assert_eq!(b.drops(DropReason::ReplayTooOld), 3);
}

/// A packet comes by the protocol number, or in UDP, that its tunnel is configured with; anything shorter
/// than a header is refused, and one byte 0xFF in UDP is a keepalive.
#[test]
fn packets_come_as_their_tunnel_says() {
    let in_udp = TunnelSpec { udp: true, ..spec() };
    let key = spec().key_from(Side::A);
    for (number, own, other) in [(VPE_PROTOCOL, spec(), &in_udp), (protocol::UDP, in_udp.clone(), &spec())] {
        let packet = sealed(&key, header(0, 1), &inner(60));
        let mut b = gateway(Side::B, &own);
        for bytes in 2..VPE_HEADER_BYTES {
            assert_eq!(b.open(datagram(&own, number, &packet[..bytes])), [[0_u8; 0]; 0]);
        }
        assert_eq!(b.drops(DropReason::VpeMalformed), 30);
        assert_eq!(b.open(datagram(&own, number, &packet)).len(), 1);
        let mut b = gateway(Side::B, other);
        assert_eq!(b.open(datagram(other, number, &packet)).len(), 0, "nobody listens there");
        assert_eq!(b.drops(DropReason::NotForUs), 1);
    }
    let mut b = gateway(Side::B, &in_udp);
    assert_eq!(b.open(datagram(&in_udp, protocol::UDP, &[0xFF])), [[0_u8; 0]; 0]);
    assert_eq!((b.drops(DropReason::NatKeepalive), b.drops(DropReason::VpeMalformed)), (1, 0));
}

/// With ESP's protocol number VPE is served at its address, and ESP at the others.
#[test]
fn vpe_with_the_number_of_esp_leaves_esp_at_other_addresses_alone() {
    let rules = VpeRules::default().with_ip_protocol(protocol::ESP);
    let esp = TunnelSpec { outer: Version::V6, ..TunnelSpec::new(1, Suite::AES128GCM16) };
    let both = [with(rules), esp];
    let (mut a, mut b) = (Gateway::with_tunnels(Side::A, &both), Gateway::with_tunnels(Side::B, &both));
    for n in 0..10 {
        for network in ["172.16.0.2", "172.17.0.2"] {
            let packet = Inner::udp("10.0.0.1", network, 60 + n).bytes();
            let sent = a.seal(packet.clone()).remove(0);
            let next = if network == "172.16.0.2" { sent[9] } else { sent[6] };
            assert_eq!(next, protocol::ESP);
            assert_eq!(b.open(sent), [packet]);
        }
    }
    b.assert_settled();
}

/// Over a restart windows go on as they were. After a crash, up to the number that is durable, nothing is
/// received in any window, whichever there were; above it each goes on.
#[test]
fn windows_survive_a_restart_and_a_crash() {
    let mut b = Gateway::new(spec().policies(Side::B), PoolSize(64, 2048), portable());
    let installed = b.install_seen(spec().install(Side::B, &mut LeaseTwin::new(10), None));
    let taken = [(0, 5), (0, 9), (4, 1000), (7, 3)];
    for (window, number) in taken {
        assert_eq!(b.open(from_a(header(window, number), &inner(60))).len(), 1);
    }
    let saved = b.worker.save_window(installed.inbound.sa).expect("its windows");
    // In less room each is closed by itself, or all up to the highest number of any.
    let within = |most| b.worker.save_window_within(installed.inbound.sa, most).expect("its windows");
    let each = testudo_ipsec::closed_windows(&saved).expect("they are of VPE");
    let of_any = testudo_ipsec::ReplayWindow::closed_up_to(1000).to_vec();
    assert!(of_any.len() < each.len() && each.len() < saved.len());
    assert_eq!([within(each.len()), within(each.len() - 1)], [each, of_any]);
    let now = b.now();
    b.worker.tick(now);
    let seen = installed.inbound.counters.windows(false).expect("it is of VPE");
    let tops: Vec<_> = seen.tops.iter().map(|top| (top.sender, top.window, top.number)).collect();
    assert_eq!((seen.count, seen.most, tops), (3, 1024, vec![(0, 0, 9), (0, 4, 1000), (0, 7, 3)]));
    let restart = |saved: Vec<u8>| {
        let policies = spec().policies(Side::B);
        let mut b = Gateway::new(policies, PoolSize(64, 2048), portable());
        b.install(spec().install(Side::B, &mut LeaseTwin::new(10), Some(saved)));
        b
    };
    let mut b = restart(saved.clone());
    for (window, number) in taken {
        assert_eq!(b.open(from_a(header(window, number), &inner(60))).len(), 0, "{window}, {number}");
    }
    for (window, number) in [(0, 6), (0, 10), (4, 1001), (7, 2), (9, 1)] {
        assert_eq!(b.open(from_a(header(window, number), &inner(60))).len(), 1, "{window}, {number}");
    }
    let mut b = restart(testudo_ipsec::ReplayWindow::closed_up_to(1100).to_vec());
    for (window, number) in [(0, 10), (4, 1001), (4, 1100), (200, 1100)] {
        assert_eq!(b.open(from_a(header(window, number), &inner(60))).len(), 0, "{window}, {number}");
    }
    for window in [0, 4, 200] {
        assert_eq!(b.open(from_a(header(window, 1101), &inner(60))).len(), 1, "window {window}");
    }
}

/// A packet that does not fit the path is cut before it is sealed: each piece has a header and a number, all
/// in one window. Where it may not be cut, its sender is told.
#[test]
fn pieces_have_headers_and_numbers_of_their_own() {
    let (mut a, mut b) = (gateway(Side::A, &spec()), gateway(Side::B, &spec()));
    let may_cut = Inner { dont_fragment: false, ..Inner::udp("10.0.0.1", "172.16.0.2", 1900) };
    let pieces = a.seal(may_cut.bytes());
    assert_eq!(pieces.len(), 2);
    let [first, second] = [0, 1].map(|at| header_of(&pieces[at]));
    assert_eq!((second.window, second.number), (first.window, first.number + 1));
    assert!(pieces.iter().all(|piece| piece.len() <= 1500));
    assert_eq!(pieces.into_iter().map(|piece| b.open(piece).len()).sum::<usize>(), 2);
    let whole = Inner { dont_fragment: true, ..may_cut };
    assert_eq!(a.seal(whole.bytes()), [[0_u8; 0]; 0]);
    assert_eq!(a.drops(DropReason::TooBig), 1);
}

/// `docs/VPE.md`: no trailer: any length becomes 32 bytes more.
#[test]
fn a_packet_grows_by_its_headers_alone() {
    let mut a = gateway(Side::A, &spec());
    for bytes in 28..200 {
        assert_eq!(a.seal(inner(bytes)).remove(0).len(), bytes + 20 + VPE_HEADER_BYTES);
    }
}

/// Datagrams of many flows, as a burst and one by one.
fn flows(packets: usize) -> Vec<Vec<u8>> {
    let packet = |n: usize| match n % 3 {
        0 => of_flow(1000 + (n % 50) as u16, [0, 46, 12][n / 3 % 3]),
        1 => inner(60 + n % 400),
        _ => Inner::udp("10.0.0.1", "172.16.0.2", 28 + n % 300).bytes(),
    };
    (0..packets).map(packet).collect()
}

/// Packets that come together are framed together; each is sealed to the byte as it is alone on the slow
/// path, which an SA that pads takes, whatever the outer headers are.
#[test]
fn packets_of_a_burst_are_sealed_as_one_by_one() {
    let classes = VpeClasses::of_sets([&[46][..], &[10, 12]]);
    let rules = VpeRules::default().with_slots(classes, 0, 8).expect("24 windows");
    let per_window = rules.with_source_ports(VpeSourcePorts::PerWindow);
    let outers = [(false, Version::V4), (true, Version::V4), (false, Version::V6), (true, Version::V6)];
    for ((udp, outer), rules) in outers.into_iter().flat_map(|outer| [(outer, rules), (outer, per_window)]) {
        let spec = TunnelSpec { udp, outer, ..with(rules) };
        // No packet is shorter than one byte: none is padded.
        let slow = TunnelSpec { rules: PacketRules { tfc_pad_to: 1, ..spec.rules.clone() }, ..spec.clone() };
        let (mut bursts, mut slow) = (gateway(Side::A, &spec), gateway(Side::A, &slow));
        let mut b = gateway(Side::B, &spec);
        for burst in flows(400).chunks(57) {
            burst.iter().for_each(|packet| bursts.protected.push(packet.clone()));
            bursts.settle();
            let sealed = bursts.unprotected.take();
            let alone: Vec<_> = burst.iter().flat_map(|packet| slow.seal(packet.clone())).collect();
            assert_eq!(sealed, alone, "in UDP: {udp}, over {outer:?}");
            sealed.into_iter().for_each(|datagram| b.unprotected.push(datagram));
            b.settle();
            assert_eq!(b.protected.take(), burst);
        }
        bursts.assert_settled();
        b.assert_settled();
    }
}

/// A lease that ends within bursts: what is sent has no number of a window twice nor out of turn, and what is
/// not sent is dropped by name.
#[test]
fn bursts_over_small_leases_repeat_no_number() {
    let mut store = LeaseTwin::new(40);
    let mut a = Gateway::new(spec().policies(Side::A), PoolSize(512, 2048), portable());
    a.install(spec().install(Side::A, &mut store, None));
    let (mut last, mut sent, mut bursts) = (HashMap::new(), 0, 0);
    for burst in flows(6000).chunks(64) {
        burst.iter().for_each(|packet| a.protected.push(packet.clone()));
        a.settle();
        for datagram in a.unprotected.take() {
            let header = header_of(&datagram);
            let before = last.insert(header.window, header.number).unwrap_or(0);
            assert!(header.number > before, "window {}: {before}, {}", header.window, header.number);
            sent += 1;
        }
        bursts += 1;
        // Later at times than the worker wishes.
        if bursts % 3 == 0 {
            store.serve();
        }
    }
    let unsent = a.drops(DropReason::SequenceNotLeased);
    assert_eq!(sent + unsent, 6000);
    assert!(unsent > 0 && sent > 1000, "{sent} sent, {unsent} not");
    a.assert_settled();
}

/// Hostile: a burst in which authentic packets, replays, forged ones and windows beyond the limit alternate;
/// each is judged as it is alone.
#[test]
fn a_burst_of_everything_is_judged_packet_by_packet() {
    let mut b = gateway(Side::B, &with(VpeRules::default().with_windows_max(4)));
    let packet = inner(60);
    for window in 0..4 {
        assert_eq!(b.open(from_a(header(window, 1), &packet)).len(), 1);
    }
    for number in 2..50 {
        let window = (number % 4) as u16;
        let good = from_a(header(window, number), &packet);
        let mut forged = from_a(header(window, number + 1000), &packet);
        forged[60] ^= 1;
        let burst = [
            forged,
            good.clone(),
            from_a(header(100 + window, 1), &packet),
            good,
            from_a(VpeHeader { sender: 9, ..header(window, number) }, &packet),
            from_a(header(window, 0), &packet),
        ];
        burst.into_iter().for_each(|datagram| b.unprotected.push(datagram));
        b.settle();
        assert_eq!(b.protected.take(), std::slice::from_ref(&packet), "{number}");
    }
    let counted = [
        (DropReason::AuthenticationFailed, 48),
        (DropReason::ReplayDuplicate, 48),
        (DropReason::ReplayTooOld, 48),
        (DropReason::VpeWindows, 96),
    ];
    for (reason, packets) in counted {
        assert_eq!(b.drops(reason), packets, "{reason:?}");
    }
    b.assert_settled();
}

/// A fill packet is authentic, and is taken once as every other packet is.
#[test]
fn a_fill_packet_moves_its_window() {
    let mut b = gateway(Side::B, &spec());
    let fill = from_a(header(3, 5), &[0; 40]);
    for _ in 0..2 {
        assert_eq!(b.open(fill.clone()).len(), 0);
    }
    assert_eq!((b.drops(DropReason::VpeFill), b.drops(DropReason::ReplayDuplicate)), (1, 1));
    b.assert_settled();
}

/// Fill packets are in any window of any class, with a DSCP of it, count up in each as other packets do, and
/// are as long as padded packets; the peer counts and drops them.
#[test]
fn fill_packets_look_like_packets_of_many_flows() {
    let two_classes = VpeRules::default().with_slots(VpeClasses::of_sets([&[46][..]]), 0, 8);
    let two_classes = two_classes.expect("16 windows");
    for pad_to in [0, 700] {
        let vpe = Some(Box::new(two_classes));
        let rules =
            PacketRules { dummy_packets_per_second: 100, tfc_pad_to: pad_to, vpe, ..PacketRules::default() };
        let spec = TunnelSpec { rules, ..spec() };
        let (mut a, mut b) = (gateway(Side::A, &spec), gateway(Side::B, &spec));
        let padded = a.seal(of_flow(1000, 0)).remove(0);
        let (mut last, mut lengths) = (BTreeMap::new(), BTreeMap::<usize, u32>::new());
        last.insert(header_of(&padded).window, header_of(&padded).number);
        assert_eq!(b.open(padded.clone()).len(), 1);
        let (mut sent, mut urgent) = (0, 0);
        while let Some(due) = a.worker.next_dummy().filter(|due| due.0 <= Duration::from_secs(10)) {
            a.clock.advance(due.since(a.now()));
            let now = a.now();
            a.worker.send_dummies(now);
            a.settle();
            for datagram in a.unprotected.take() {
                let header = header_of(&datagram);
                let before = last.insert(header.window, header.number).unwrap_or(0);
                assert_eq!((header.sender, header.number), (0, before + 1), "window {}", header.window);
                let is_urgent = header.window % 2 == 1;
                assert_eq!(datagram[1] >> 2, if is_urgent { 46 } else { 0 });
                urgent += u32::from(is_urgent);
                *lengths.entry(datagram.len()).or_default() += 1;
                assert!(b.open(datagram).is_empty());
                sent += 1;
            }
        }
        assert!((900..=1100).contains(&sent), "{sent}");
        assert!((400..=600).contains(&urgent), "{urgent}");
        assert_eq!(b.drops(DropReason::VpeFill), sent);
        assert_eq!(last.len(), 16, "{last:?}");
        if pad_to == 0 {
            assert!(lengths.len() > 100, "{} lengths", lengths.len());
        } else {
            assert_eq!(lengths.keys().copied().collect::<Vec<_>>(), [padded.len()]);
        }
        a.assert_settled();
        b.assert_settled();
    }
}

/// Of two workers each sends fill packets at the rate that is configured, in windows of its own; one that
/// decrypts alone, or is parked, sends none, and none but the first dummies of ESP.
#[test]
fn each_worker_that_encrypts_sends_fill_packets_in_its_windows() {
    let sent_by = |worker: usize, role: Role, is_parked: bool, is_vpe: bool| {
        let vpe = is_vpe.then(|| Box::new(VpeRules::default().of_worker(worker).expect("few windows")));
        let rules = PacketRules { dummy_packets_per_second: 100, vpe, ..PacketRules::default() };
        let of_kind = if is_vpe { spec() } else { TunnelSpec::new(0, Suite::AES128GCM16) };
        let mut a = gateway(Side::A, &TunnelSpec { rules, ..of_kind });
        a.worker.set_role(role);
        a.worker.counters().set_parked(is_parked);
        if worker > 0 {
            a.worker.follow();
        }
        while let Some(due) = a.worker.next_dummy().filter(|due| due.0 <= Duration::from_secs(10)) {
            a.clock.advance(due.since(a.now()));
            let now = a.now();
            a.worker.send_dummies(now);
            a.settle();
        }
        a.unprotected.take()
    };
    for worker in [0, 1] {
        let sent = sent_by(worker, Role::Both, false, true);
        assert!((900..=1100).contains(&sent.len()), "{} of worker {worker}", sent.len());
        let windows: BTreeSet<u16> = sent.iter().map(|datagram| header_of(datagram).window).collect();
        let first = u16::try_from(8 * worker).unwrap();
        assert!(windows.into_iter().eq(first..first + 8), "worker {worker}");
    }
    assert!(!sent_by(1, Role::Encrypt, false, true).is_empty());
    assert!(sent_by(1, Role::Decrypt, false, true).is_empty());
    assert!(sent_by(1, Role::Both, true, true).is_empty());
    assert!(!sent_by(0, Role::Both, false, false).is_empty());
    assert!(sent_by(1, Role::Both, false, false).is_empty());
}

/// A flow has other windows from time to time, and all of its packets arrive.
#[test]
fn a_flow_changes_its_window_where_that_is_configured() {
    for (seconds, is_one) in [(0, true), (30, false)] {
        let spec = with(VpeRules::default().with_rehash(seconds));
        let (mut a, mut b) = (gateway(Side::A, &spec), gateway(Side::B, &spec));
        let mut windows = HashSet::new();
        for _ in 0..1200 {
            a.clock.advance(Duration::from_secs(1));
            let now = a.now();
            a.worker.tick(now);
            let sent = a.seal(of_flow(1000, 0)).remove(0);
            windows.insert(header_of(&sent).window);
            assert_eq!(b.open(sent).len(), 1);
        }
        assert_eq!(windows.len() == 1, is_one, "{windows:?}");
    }
}
