//! "Packet too big" from routers on the way to the peer (RFC 4301 8.2): what is believed, and what follows
//! for the hosts inside.

use crate::support::datagrams::mend;
use crate::support::gateway::{PoolSize, portable};
use crate::support::{Gateway, Handmade, Inner, LeaseTwin, Sealer, Side, TunnelSpec};
use std::time::Duration;
use testudo_crypto::Suite;
use testudo_ipsec::{Event, EventKind, IpsecProtocol, Mode, PacketRules, VpeRules};
use testudo_packet::DropReason;
use testudo_wire::icmp::{self, MAX_TOO_BIG_BYTES};
use testudo_wire::ip::{IpHeader, Version};

/// What a router says of a datagram that is longer than its next link.
pub fn too_big(datagram: &[u8], mtu: u16) -> Vec<u8> {
    let header = IpHeader::parse(datagram).expect("a datagram");
    let router = if header.version == Version::V4 { "203.0.113.9" } else { "2001:db8:f::9" };
    let router = router.parse().expect("an address");
    let mut message = [0; MAX_TOO_BIG_BYTES];
    let length = icmp::too_big(&header, datagram, mtu, router, &mut message).expect("a message");
    message[..length.expect("it may be sent")].to_vec()
}

/// Every encapsulation over either IP version; the last tunnel is the one whose packets a router sees.
pub fn every_kind() -> Vec<Vec<TunnelSpec>> {
    let mut all = Vec::new();
    for (outer, mode) in [
        (Version::V4, Mode::Tunnel),
        (Version::V4, Mode::Transport),
        (Version::V6, Mode::Tunnel),
        (Version::V6, Mode::Transport),
    ] {
        let esp = TunnelSpec { outer, mode, ..TunnelSpec::new(0, Suite::AES128GCM16) };
        let ah = TunnelSpec { protocol: IpsecProtocol::Ah, suite: Suite::NULL_SHA1, ..esp.clone() };
        let covering = TunnelSpec { number: 1, covers: Some(0), mode: Mode::Transport, ..ah.clone() };
        let covered = TunnelSpec { covered_by: Some(1), path_mtu: covering.inner_mtu(), ..esp.clone() };
        all.extend([vec![esp.clone()], vec![TunnelSpec { udp: true, ..esp }], vec![ah]]);
        all.push(vec![covered, covering]);
    }
    all
}

/// The longest inner packet over a path with this MTU.
pub fn longest(tunnels: &[TunnelSpec], path_mtu: usize) -> usize {
    let longest = |spec: &TunnelSpec, path_mtu| TunnelSpec { path_mtu, ..spec.clone() }.inner_mtu();
    tunnels.iter().rev().fold(path_mtu, |mtu, spec| longest(spec, mtu))
}

/// A packet of A's network that must not be fragmented.
pub fn inner(tunnels: &[TunnelSpec], bytes: usize) -> Vec<u8> {
    let spec = &tunnels[0];
    let hosts = match spec.mode {
        Mode::Transport => [Side::A, Side::B].map(|side| spec.address(side).to_string()),
        Mode::Tunnel => ["10.0.0.1", "172.16.0.2"].map(str::to_owned),
    };
    Inner { dont_fragment: true, ..Inner::udp(&hosts[0], &hosts[1], bytes) }.bytes()
}

/// Whether packets of up to `longest` bytes pass, while the senders of longer ones are told that length.
fn assert_longest(a: &mut Gateway, tunnels: &[TunnelSpec], longest: usize) {
    let sealed = a.seal(inner(tunnels, longest));
    assert_eq!(sealed.len(), 1, "{tunnels:?}: {longest} bytes fit");
    assert!(a.seal(inner(tunnels, longest + 1)).is_empty(), "{tunnels:?}: {} bytes do not", longest + 1);
    let reply = a.protected.take().pop().expect("the sender is told");
    let header = IpHeader::parse(&reply).expect("a packet");
    assert_eq!(header.payload(&reply)[6..8], (longest as u16).to_be_bytes());
}

fn later(a: &mut Gateway, seconds: u64) {
    for _ in 0..seconds {
        a.clock.advance(Duration::from_secs(1));
        let now = a.now();
        a.worker.tick(now);
    }
}

fn events(a: &mut Gateway) -> Vec<(usize, bool)> {
    let events = a.worker.take_events().into_iter();
    events
        .filter_map(|event| match event.kind {
            EventKind::PathMtu { mtu, learned_from } => Some((mtu, learned_from.is_some())),
            _ => None,
        })
        .collect()
}

/// RFC 4301 8.2.1, 8.2.2; RFC 1191 6.3, RFC 8201 4: ten minutes.
#[test]
fn hosts_are_told_what_a_router_said_until_it_is_forgotten() {
    for tunnels in every_kind() {
        let mut a = Gateway::with_tunnels(Side::A, &tunnels);
        let before = longest(&tunnels, 1500);
        assert_longest(&mut a, &tunnels, before);
        let datagram = a.seal(inner(&tunnels, before)).remove(0);
        assert!(a.open(too_big(&datagram, 1400)).is_empty());
        assert_eq!(a.drops(DropReason::IcmpBelieved), 1, "{tunnels:?}: {:?}", a.worker.pool().drops());
        assert_eq!(events(&mut a), [(1400, true)]);
        assert_longest(&mut a, &tunnels, longest(&tunnels, 1400));
        assert!(a.seal(inner(&tunnels, longest(&tunnels, 1400)))[0].len() <= 1400);
        later(&mut a, 599);
        assert_longest(&mut a, &tunnels, longest(&tunnels, 1400));
        later(&mut a, 2);
        assert_longest(&mut a, &tunnels, before);
        assert_eq!(events(&mut a), [(1500, false)]);
        a.assert_settled();
    }
}

/// RFC 8200 5: hosts need not send packets of less than 1,280 bytes over IPv6. RFC 2473 7.1: where a path
/// leaves less for them, the datagrams are cut; longer packets are answered with 1,280.
#[test]
fn ipv6_packets_of_1280_bytes_cross_any_path() {
    for tunnels in every_kind() {
        let (spec, outer) = (&tunnels[0], tunnels.last().expect("a tunnel").outer);
        if spec.mode == Mode::Transport && outer == Version::V4 {
            continue;
        }
        let hosts = match spec.mode {
            Mode::Transport => [Side::A, Side::B].map(|side| spec.address(side).to_string()),
            Mode::Tunnel => ["fd0a::1", "fd16::2"].map(str::to_owned),
        };
        let packet = |bytes| Inner::udp(&hosts[0], &hosts[1], bytes).bytes();
        let mut a = Gateway::with_tunnels(Side::A, &tunnels);
        let mut b = Gateway::with_tunnels(Side::B, &tunnels);
        let least = if outer == Version::V4 { 576 } else { 1280 };
        let datagram = a.seal(packet(1280)).remove(0);
        a.open(too_big(&datagram, least));
        assert_eq!(events(&mut a), [(usize::from(least), true)], "{tunnels:?}");
        let fragments = a.seal(packet(1280));
        assert!(fragments.len() > 1 && fragments.iter().all(|f| f.len() <= usize::from(least)));
        let delivered: Vec<_> = fragments.into_iter().flat_map(|fragment| b.open(fragment)).collect();
        // After the UDP header, whose checksum is made anew in transport mode (RFC 3948 3.1.2).
        assert!(delivered.len() == 1 && delivered[0].len() == 1280, "{tunnels:?}");
        assert!(delivered[0][48..] == packet(1280)[48..], "{tunnels:?}");
        assert!(a.seal(packet(1281)).is_empty());
        let reply = a.protected.take().pop().expect("the sender is told");
        let header = IpHeader::parse(&reply).expect("a packet");
        assert_eq!(header.payload(&reply)[4..8], 1280_u32.to_be_bytes());
        a.assert_settled();
        b.assert_settled();
    }
}

/// Who does not see the packets of an SA knows neither its SPI nor its numbers.
#[test]
fn an_error_about_a_packet_that_was_not_sent_changes_nothing() {
    for tunnels in every_kind() {
        let mut a = Gateway::with_tunnels(Side::A, &tunnels);
        let before = longest(&tunnels, 1500);
        let datagram = a.seal(inner(&tunnels, before)).remove(0);
        let spec = tunnels.last().expect("a tunnel");
        let ip_bytes = spec.outer.header_bytes();
        // Where SPI and number are.
        let spi = ip_bytes + if spec.protocol == IpsecProtocol::Ah { 4 } else { 8 * usize::from(spec.udp) };
        let mut forged = vec![(datagram.clone(), 575), (datagram.clone(), 1500), (datagram.clone(), 1501)];
        // The peer's address, the ports, the SPI, the number: each bit of each.
        let mut places =
            vec![ip_bytes - 1, spi, spi + 1, spi + 2, spi + 3, spi + 4, spi + 5, spi + 6, spi + 7];
        places.extend(spec.udp.then_some([ip_bytes + 1, ip_bytes + 3]).into_iter().flatten());
        for (at, bit) in places.into_iter().flat_map(|at| (0..8).map(move |bit| (at, bit))) {
            let mut quoted = datagram.clone();
            quoted[at] ^= 1 << bit;
            if spec.outer == Version::V4 {
                quoted[10..12].fill(0);
                let sum = testudo_wire::checksum::of(&quoted[..20]).to_bytes();
                quoted[10..12].copy_from_slice(&sum);
            }
            forged.push((quoted, 1400));
        }
        let count = forged.len() as u64;
        for (quoted, mtu) in forged {
            assert!(a.open(too_big(&quoted, mtu)).is_empty());
        }
        let drops = a.worker.pool().drops();
        assert_eq!(drops.get(DropReason::IcmpBelieved), 0);
        assert!(drops.get(DropReason::IcmpIgnored) + 8 >= count, "all but those of another port: {drops:?}");
        assert_eq!(drops.total(), count);
        assert_longest(&mut a, &tunnels, before);
        // Old news: the packet was sent some time ago.
        later(&mut a, 10);
        a.open(too_big(&datagram, 1400));
        assert_eq!(a.drops(DropReason::IcmpBelieved), 0);
        assert_eq!(events(&mut a), []);
        a.assert_settled();
    }
}

/// The same of VPE, whose SPI comes after what a router must quote: cut before it, an error is believed by
/// addresses and number, down to 1,280 bytes.
#[test]
fn an_error_about_vpe_is_believed_by_its_window_number_and_spi() {
    let number_at = 4;
    for tunnels in vpe_kinds() {
        let (spec, is_v4) = (&tunnels[0], tunnels[0].outer == Version::V4);
        let at = spec.outer.header_bytes() + 8 * usize::from(spec.udp);
        let mut a = Gateway::with_tunnels(Side::A, &tunnels);
        let before = longest(&tunnels, 1500);
        let datagram = a.seal(inner(&tunnels, before)).remove(0);
        let with = |change: &dyn Fn(&mut [u8])| {
            let mut quoted = datagram.clone();
            change(&mut quoted);
            quoted
        };
        // Sender ID, Window ID, each byte of the number's low half, the SPI.
        let mut forged: Vec<_> =
            [0, 1, 2, 3, number_at, 5, 6, 7, 12, 13, 14, 15].map(|b| with(&|q| q[at + b] ^= 0x41)).into();
        if spec.udp {
            forged.push(with(&|quoted| quoted[at - 5] ^= 1));
        }
        for quoted in forged {
            a.open(too_big(&quoted, 1400));
        }
        let least = if is_v4 { 575 } else { 1279 };
        a.open(too_big(&datagram, least));
        a.open(too_big(&datagram, 1500));
        assert_eq!(a.drops(DropReason::IcmpBelieved), 0, "{tunnels:?}");
        assert_longest(&mut a, &tunnels, before);
        // Without the SPI.
        let short = |mtu| quoting(&too_big(&datagram, mtu), at + 8);
        a.open(short(1279));
        assert_eq!(a.drops(DropReason::IcmpBelieved), 0, "{tunnels:?}");
        a.open(short(1400));
        assert_eq!(events(&mut a), [(1400, true)], "{tunnels:?}");
        later(&mut a, 2);
        let longest = longest(&tunnels, 1400);
        let datagram = a.seal(inner(&tunnels, longest)).remove(0);
        a.open(too_big(&datagram, least + 1));
        assert_eq!(events(&mut a), [(usize::from(least) + 1, true)], "{tunnels:?}");
        later(&mut a, 10);
        a.open(too_big(&datagram, least + 1));
        assert_eq!(events(&mut a), [], "old news");
        a.assert_settled();
    }
}

/// VPE by its number, by ESP's, and in UDP, over either IP version.
fn vpe_kinds() -> Vec<Vec<TunnelSpec>> {
    let mut all = Vec::new();
    for outer in [Version::V4, Version::V6] {
        let spec = TunnelSpec { outer, ..crate::vpe::spec() };
        let vpe = Some(Box::new(VpeRules::default().with_ip_protocol(50)));
        let with_esp_number =
            TunnelSpec { rules: PacketRules { vpe, ..PacketRules::default() }, ..spec.clone() };
        all.extend([vec![spec.clone()], vec![with_esp_number], vec![TunnelSpec { udp: true, ..spec }]]);
    }
    all
}

/// An ICMP error whose quote is cut to so many bytes.
fn quoting(error: &[u8], bytes: usize) -> Vec<u8> {
    let header = IpHeader::parse(error).expect("a packet");
    let mut error = error[..header.header_bytes + 8 + bytes].to_vec();
    let (message_bytes, at) = (error.len() - header.header_bytes, header.header_bytes);
    error[at + 2..at + 4].fill(0);
    let sum = match header.version {
        Version::V4 => {
            let total = u16::try_from(error.len()).expect("a length");
            error[2..4].copy_from_slice(&total.to_be_bytes());
            mend(&mut error[..20]);
            testudo_wire::checksum::of(&error[at..])
        }
        Version::V6 => {
            let payload = u16::try_from(message_bytes).expect("a length");
            error[4..6].copy_from_slice(&payload.to_be_bytes());
            let length = u32::try_from(message_bytes).expect("a length");
            let sum = testudo_wire::checksum::Sum::default();
            let sum = sum.pseudo_header(header.source, header.destination, 58, length);
            sum.bytes(&error[at..]).finish()
        }
    };
    error[at + 2..at + 4].copy_from_slice(&sum.to_bytes());
    error
}

/// RFC 4301 8.2.1: errors about others' packets are for policy, which here has nothing on them.
#[test]
fn errors_about_other_packets_are_for_policy() {
    let tunnels = [TunnelSpec::new(0, Suite::AES128GCM16)];
    let mut a = Gateway::with_tunnels(Side::A, &tunnels);
    let other = Inner::udp("192.0.2.1", "198.51.100.2", 1500).bytes();
    assert!(a.open(too_big(&other, 1400)).is_empty());
    assert_eq!((a.drops(DropReason::NotForUs), a.drops(DropReason::IcmpIgnored)), (1, 0));
}

/// RFC 8201 4: another path, another MTU.
#[test]
fn a_peer_that_moves_takes_the_learned_mtu_with_it() {
    use crate::support::{Handmade, Sealer};
    let tunnels = [TunnelSpec { udp: true, b_learns: true, ..TunnelSpec::new(0, Suite::AES128GCM16) }];
    let mut sealer = Sealer::new(&tunnels[0], Side::A);
    let mut b = Gateway::with_tunnels(Side::B, &tunnels);
    let back = |bytes| Inner { dont_fragment: true, ..Inner::udp("172.16.0.2", "10.0.0.1", bytes) }.bytes();
    let mut hear_from = |b: &mut Gateway, sequence, port: u16| {
        let inner = Inner::udp("10.0.0.1", "172.16.0.2", 60).bytes();
        let mut datagram = sealer.seal(sequence, &Handmade::carrying(&inner));
        datagram[20..22].copy_from_slice(&port.to_be_bytes());
        assert_eq!(b.open(datagram).len(), 1);
    };
    hear_from(&mut b, 1, 1111);
    let longest = tunnels[0].inner_mtu();
    let datagram = b.seal(back(longest)).remove(0);
    b.open(too_big(&datagram, 1400));
    assert!(b.seal(back(longest)).is_empty());
    assert_eq!(b.protected.take().len(), 1, "the sender is told");
    b.clock.advance(Duration::from_secs(2));
    hear_from(&mut b, 2, 2222);
    assert_eq!(events(&mut b), [(1400, true), (1500, false)]);
    let datagram = b.seal(back(longest)).remove(0);
    b.open(too_big(&datagram, 1300));
    assert_eq!(events(&mut b), [(1300, true)], "the SA is found at its peer's new place");
}

/// Operators like to give all peers the same SPI. A peer that is followed to where another one is, in truth
/// or by a forged source, takes nothing of the other's path MTU discovery, neither while it is there nor
/// after.
#[test]
fn a_peer_that_moves_to_another_leaves_it_its_errors() {
    let roams = TunnelSpec { udp: true, b_learns: true, ..TunnelSpec::new(0, Suite::AES128GCM16) };
    let stays = TunnelSpec { udp: true, ..TunnelSpec::new(1, Suite::AES128GCM16) };
    let policies = [&roams, &stays].into_iter().flat_map(|spec| spec.policies(Side::B)).collect();
    let mut b = Gateway::new(policies, PoolSize(64, 2048), portable());
    let mut store = LeaseTwin::new(1 << 40);
    let mut other = stays.install(Side::B, &mut store, None);
    other.outbound.parameters.sa.spi = roams.spi_from(Side::B);
    b.install(other);
    b.install(roams.install(Side::B, &mut store, None));
    let mut sealer = Sealer::new(&roams, Side::A);
    let made = Handmade::carrying(&Inner::udp("10.0.0.1", "172.16.0.2", 60).bytes());
    for (round, believed) in [(1, 1), (2, 2)] {
        let mut datagram = sealer.seal(round, &made);
        if round == 2 {
            // It moves on, to another host's address.
            datagram[15] ^= 1;
            mend(&mut datagram[..20]);
        }
        assert_eq!(b.open(datagram).len(), 1, "round {round}");
        let moved = |event: &Event| matches!(event.kind, EventKind::PeerMoved { .. });
        assert!(b.worker.take_events().iter().any(moved));
        let sealed = b.seal(Inner::udp("172.17.0.2", "10.0.0.1", 1200).bytes()).remove(0);
        assert!(b.open(too_big(&sealed, 1100 - 100 * round as u16)).is_empty());
        assert_eq!(b.drops(DropReason::IcmpBelieved), believed, "round {round}");
        later(&mut b, 2);
    }
}
