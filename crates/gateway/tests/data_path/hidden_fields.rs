//! Packets that hide fields that policies match on: no part of a datagram whose first fragment is protected
//! leaves in clear, and none of its parts comes in in clear (RFC 4301 7).

use crate::support::gateway::{PoolSize, portable};
use crate::support::{Gateway, Handmade, LeaseTwin, Sealer, Side, TunnelSpec};
use std::net::Ipv6Addr;
use testudo_crypto::Suite;
use testudo_ipsec::{Action, Policy, Prefix, Selector};
use testudo_packet::DropReason;
use testudo_wire::protocol::{DESTINATION_OPTIONS, FRAGMENT, TCP, UDP};

const HERE: &str = "fd01::1";
const THERE: &str = "fd02::1";
/// Where the datagram is fragmented, in bytes.
const CUT: usize = 256;

fn spec() -> TunnelSpec {
    TunnelSpec::new(0, Suite::AES128GCM16)
}

fn networks() -> Selector {
    let prefix = |text: &str| Prefix::new(text.parse().expect("an address"), 64).expect("a prefix");
    Selector::between(prefix("fd01::"), prefix("fd02::"))
}

/// TCP between the networks goes through the tunnel; everything else between them passes in clear.
fn gateway(wanted: Selector) -> Gateway {
    let policies = [(wanted, Action::Protect(spec().index())), (networks(), Action::Bypass)];
    let policies = policies.map(|(selector, action)| Policy::new(selector, action));
    let mut gateway = Gateway::new(policies.into(), PoolSize(64, 2048), portable());
    let mut install = spec().install(Side::A, &mut LeaseTwin::new(1 << 40), None);
    install.parameters = install.parameters.selecting([wanted]);
    gateway.install(install);
    gateway
}

fn tcp() -> Selector {
    Selector { protocol: TCP.into(), ..networks() }
}

fn ipv6(source: &str, destination: &str, next_header: u8, payload: &[u8]) -> Vec<u8> {
    let mut packet = vec![0x60, 0, 0, 0, 0, payload.len() as u8, next_header, 64];
    packet[4..6].copy_from_slice(&(payload.len() as u16).to_be_bytes());
    for address in [source, destination] {
        packet.extend(address.parse::<Ipv6Addr>().expect("an address").octets());
    }
    packet.extend_from_slice(payload);
    packet
}

/// A fragment with this Next Header, carrying bytes of its datagram from an offset on.
fn fragment(ends: [&str; 2], next_header: u8, offset: usize, more: bool, part: &[u8]) -> Vec<u8> {
    let place = (offset as u16 | u16::from(more)).to_be_bytes();
    let header = [next_header, 0, place[0], place[1], 0, 0, 0, 77];
    ipv6(ends[0], ends[1], FRAGMENT, &[&header, part].concat())
}

/// Destination options, then a TCP segment.
fn segment() -> Vec<u8> {
    let mut bytes = vec![TCP, 0, 1, 4, 0, 0, 0, 0];
    bytes.extend(40_000u16.to_be_bytes());
    bytes.extend(443u16.to_be_bytes());
    bytes.resize(3 * CUT, 0x53);
    bytes
}

/// The three fragments of a TCP segment after destination options. A sender may write any Next Header into
/// the later ones: here, that of the first.
fn fragments(ends: [&str; 2]) -> Vec<Vec<u8>> {
    let segment = segment();
    let part =
        |n: usize| fragment(ends, DESTINATION_OPTIONS, n * CUT, n < 2, &segment[n * CUT..(n + 1) * CUT]);
    (0..3).map(part).collect()
}

/// RFC 8200 4.5: the Next Header of later fragments is not used for reassembly. RFC 4301 7.4: fragments must
/// not bypass the protection of their datagram.
#[test]
fn a_later_ipv6_fragment_leaves_in_clear_only_by_addresses_alone() {
    let mut a = gateway(tcp());
    let [first, middle, last] = fragments([HERE, THERE]).try_into().expect("three fragments");
    let sealed = a.seal(first);
    assert!(sealed.len() == 1 && sealed[0][9] == 50, "the first shows TCP, and is protected");
    assert!(a.seal(middle).is_empty() && a.seal(last).is_empty(), "nothing of it leaves in clear");
    for next_header in [TCP, UDP, 59, 139, 200] {
        assert!(a.seal(fragment([HERE, THERE], next_header, CUT, false, &[0x53; 80])).is_empty());
    }
    assert_eq!(a.drops(DropReason::FieldsHidden), 7);
    let all = fragments([HERE, THERE]);
    let mut by_addresses = gateway(networks());
    assert!(
        all.iter().all(|f| by_addresses.seal(f.clone())[0][9] == 50),
        "no field that is hidden is asked for"
    );
    let mut elsewhere = gateway(Selector {
        local: Prefix::new("fd03::".parse().expect("IPv6"), 64).expect("64").into(),
        ..tcp()
    });
    assert!(all.iter().all(|f| elsewhere.seal(f.clone()) == [f.clone()]), "no policy on TCP is in reach");
    [a, by_addresses, elsewhere].iter().for_each(Gateway::assert_settled);
}

/// RFC 4301 5.2, step 3b: what policy wants protected does not come in in clear, not even in part.
#[test]
fn a_clear_ipv6_fragment_comes_in_only_by_addresses_alone() {
    let mut a = gateway(tcp());
    for next_header in [UDP, TCP, DESTINATION_OPTIONS, 59] {
        assert!(a.open(fragment([THERE, HERE], next_header, CUT, false, &[0x49; 80])).is_empty());
    }
    assert_eq!(a.drops(DropReason::FieldsHidden), 4);
    let mut first = fragments([THERE, HERE]).swap_remove(0);
    assert!(a.open(first.clone()).is_empty());
    assert_eq!(a.drops(DropReason::CleartextForProtected), 1);
    first[48] = UDP;
    assert_eq!(a.open(first.clone()), [first], "a first fragment of what may come in clear");
    a.assert_settled();
}

/// TCP may follow an IPv6 extension header that is not known (RFC 7045).
#[test]
fn fields_after_an_unknown_extension_header_are_hidden() {
    for unknown in [139, 140, 200, 253, 254] {
        let mut a = gateway(tcp());
        for chain in
            [ipv6(HERE, THERE, unknown, &segment()), fragment([HERE, THERE], unknown, 0, true, &segment())]
        {
            assert!(a.seal(chain).is_empty(), "{unknown}");
        }
        assert!(a.open(ipv6(THERE, HERE, unknown, &segment())).is_empty(), "{unknown}");
        assert_eq!(a.drops(DropReason::FieldsHidden), 3, "{unknown}");
        assert_eq!(gateway(networks()).seal(ipv6(HERE, THERE, unknown, &segment()))[0][9], 50);
    }
    let mut a = gateway(tcp());
    for known in [UDP, 47, 50, 51, 59, 135] {
        let packet = ipv6(HERE, THERE, known, &segment());
        assert_eq!(a.seal(packet.clone()), [packet], "{known} is a next layer protocol, and not TCP");
    }
}

/// RFC 4301 5.2, step 4: an SA for TCP delivers only TCP. What cannot be seen to be TCP is refused for a
/// separate reason.
#[test]
fn an_ipv6_fragment_through_a_tunnel_for_one_protocol_is_named_fields_hidden() {
    let mut a = gateway(tcp());
    let mut sealer = Sealer::new(&spec(), Side::B);
    let [first, middle, last] = fragments([THERE, HERE]).try_into().expect("three fragments");
    assert_eq!(a.open(sealer.seal(1, &Handmade::carrying(&first))), std::slice::from_ref(&first));
    assert!(a.open(sealer.seal(2, &Handmade::carrying(&middle))).is_empty());
    assert!(a.open(sealer.seal(3, &Handmade::carrying(&last))).is_empty());
    assert_eq!((a.drops(DropReason::FieldsHidden), a.drops(DropReason::SelectorMismatch)), (2, 0));
    let stray = fragment(["fd09::1", HERE], TCP, CUT, false, &[0; 80]);
    assert!(a.open(sealer.seal(4, &Handmade::carrying(&stray))).is_empty());
    assert_eq!(a.drops(DropReason::SelectorMismatch), 1, "its addresses are shown, and wrong");
    let mut by_addresses = gateway(networks());
    for (number, packet) in (1..).zip([first, middle, last]) {
        assert_eq!(by_addresses.open(sealer.seal(number, &Handmade::carrying(&packet))), [packet]);
    }
}
