//! Stateful fragment checking (RFC 4301 7.3, 7.4): later fragments share what happens to their first one, and
//! nothing that hides its ports gets past a policy that asks for them.

use crate::support::datagrams::mend;
use crate::support::fragments::{Part, fragment, fragmentable};
use crate::support::gateway::{PoolSize, portable};
use crate::support::{Gateway, Handmade, Inner, LeaseTwin, Sealer, Side, TunnelSpec};
use std::net::IpAddr;
use std::time::Duration;
use testudo_crypto::Suite;
use testudo_gateway::{SaChange, Update};
use testudo_ipsec::{
    Action, Mode, Policy, PolicyChange, PolicyId, PortRange, Position, Prefix, Selector, TunnelIndex,
};
use testudo_packet::DropReason;
use testudo_wire::ip::Version;
use testudo_wire::protocol::UDP;

const HERE: [u8; 4] = [10, 0, 0, 1];
const THERE: [u8; 4] = [10, 9, 0, 1];
/// What passes in clear, what is protected, and what no policy names.
const CLEAR: u16 = 53;
const PROTECTED: u16 = 4000;
const UNNAMED: u16 = 9;
/// Bytes of each fragment but the last.
const CUT: usize = 256;

fn spec() -> TunnelSpec {
    TunnelSpec::new(0, Suite::AES128GCM16)
}

fn to_port(port: u16) -> Selector {
    Selector { protocol: UDP.into(), remote_ports: PortRange::one(port), ..Selector::ANY }
}

/// Datagrams to one port pass in clear, to another through the tunnel, whose other end `agrees` to take
/// fragments that hide their ports.
fn gateway(agrees: bool) -> Gateway {
    let (bypass, protect) = (to_port(CLEAR), to_port(PROTECTED));
    let policies =
        [Policy::new(bypass, Action::Bypass), Policy::new(protect, Action::Protect(spec().index()))];
    let mut gateway = Gateway::new(policies.into(), PoolSize(64, 2048), portable());
    let mut install = spec().install(Side::A, &mut LeaseTwin::new(1 << 40), None);
    install.parameters = install.parameters.selecting([protect]);
    install.parameters.non_first_fragments = agrees;
    gateway.install(install);
    gateway
}

/// The remote port is the destination's where a datagram leaves, and the source's where it arrives.
fn datagram(source: [u8; 4], destination: [u8; 4], port: u16) -> Vec<u8> {
    let length = (20 + 3 * CUT) as u16;
    let mut bytes = vec![0x45, 0, 0, 0, 0, 0, 0, 0, 64, UDP, 0, 0];
    bytes[2..4].copy_from_slice(&length.to_be_bytes());
    bytes.extend([source, destination].concat());
    mend(&mut bytes);
    let ports = if source == THERE { [port, 40_000] } else { [40_000, port] };
    bytes.extend(ports.map(u16::to_be_bytes).concat());
    bytes.resize(length.into(), 0x53);
    bytes
}

/// Its three fragments.
fn fragments(datagram: &[u8], identification: u32) -> [Vec<u8>; 3] {
    [0, 1, 2].map(|n| fragment(datagram, identification, Part { offset: n * CUT, bytes: CUT, more: n < 2 }))
}

fn leaving(port: u16, identification: u32) -> [Vec<u8>; 3] {
    fragments(&datagram(HERE, THERE, port), identification)
}

fn arriving(port: u16, identification: u32) -> [Vec<u8>; 3] {
    fragments(&datagram(THERE, HERE, port), identification)
}

fn is_sealed(left: &[Vec<u8>]) -> bool {
    left.len() == 1 && left[0][9] == 50
}

/// RFC 4301 7.4: stateful fragment checking for BYPASS with ports, which all implementations MUST support.
#[test]
fn fragments_follow_their_first_one_in_clear() {
    let mut a = gateway(false);
    for packet in leaving(CLEAR, 1) {
        assert_eq!(a.seal(packet.clone()), [packet]);
    }
    for packet in arriving(CLEAR, 1) {
        assert_eq!(a.open(packet.clone()), [packet]);
    }
    let [first, middle, last] = leaving(UNNAMED, 2);
    for packet in [first, middle, last] {
        assert!(a.seal(packet).is_empty(), "no policy names it");
    }
    assert_eq!((a.drops(DropReason::NoPolicy), a.drops(DropReason::FieldsHidden)), (1, 2));
    let [first, middle, last] = arriving(PROTECTED, 2);
    for packet in [first, middle, last] {
        assert!(a.open(packet).is_empty(), "policy wants it protected");
    }
    a.assert_settled();
}

/// RFC 4301 7.3: only over an SA whose other end takes them, and only from such an SA.
#[test]
fn fragments_follow_their_first_one_through_a_tunnel_where_both_ends_agreed() {
    for agrees in [true, false] {
        let mut a = gateway(agrees);
        let [first, middle, last] = leaving(PROTECTED, 1);
        assert!(is_sealed(&a.seal(first)));
        for packet in [middle, last] {
            let left = a.seal(packet);
            assert!(if agrees { is_sealed(&left) } else { left.is_empty() }, "{left:02x?}");
        }
        let mut sealer = Sealer::new(&spec(), Side::B);
        let [first, middle, last] = arriving(PROTECTED, 1);
        let mut through = |number, packet: &Vec<u8>| a.open(sealer.seal(number, &Handmade::carrying(packet)));
        assert_eq!(through(1, &first), std::slice::from_ref(&first));
        for (number, packet) in [(2, middle), (3, last)] {
            let expected = if agrees { vec![packet.clone()] } else { Vec::new() };
            assert_eq!(through(number, &packet), expected);
        }
        assert_eq!(a.drops(DropReason::FieldsHidden), if agrees { 0 } else { 4 });
        a.assert_settled();
    }
}

/// RFC 4303 3.3.4: transport mode carries whole datagrams, put together of what the host's IP layer has cut
/// before policy decides. So a policy on ports needs no consent for their fragments, and these may come in
/// any order, over IPv4 and IPv6.
#[test]
fn fragments_of_the_host_are_whole_before_policy_asks_for_ports() {
    const ORDERS: [[usize; 3]; 6] = [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]];
    for outer in [Version::V4, Version::V6] {
        let spec = TunnelSpec { mode: Mode::Transport, outer, ..spec() };
        let protect = Policy::new(to_port(PROTECTED), Action::Protect(spec.index()));
        let bypass = Policy::new(to_port(CLEAR), Action::Bypass);
        let mut a = Gateway::new(vec![protect, bypass], PoolSize(64, 4096), portable());
        a.install(spec.install(Side::A, &mut LeaseTwin::new(1 << 40), None));
        let mut b = Gateway::with_buffers(Side::B, std::slice::from_ref(&spec), PoolSize(64, 4096));
        let [source, destination] = [Side::A, Side::B].map(|side| spec.address(side));
        let base = Inner::udp("10.0.0.1", "172.16.0.2", outer.header_bytes() + 3 * CUT);
        for (number, order) in (1..).zip(ORDERS) {
            let whole = Inner { source, destination, ports: (4000, PROTECTED), ..base };
            let whole = fragmentable(whole.bytes(), number as u16);
            let parts = fragments(&whole, number);
            let (last, before) = order.split_last().expect("three");
            assert!(before.iter().all(|at| a.seal(parts[*at].clone()).is_empty()), "{order:?}");
            let sealed = a.seal(parts[*last].clone());
            assert_eq!(sealed.len(), 1, "{outer:?}, {order:?}: {:?}", a.worker.pool().drops());
            assert_eq!(b.open(sealed[0].clone()), [whole], "{outer:?}, {order:?}");
        }
        assert_eq!(a.worker.pool().drops().total(), 0);
        // What policy lets pass in clear stays in fragments, as its host has made it.
        let clear = fragmentable(Inner { source, destination, ports: (1, CLEAR), ..base }.bytes(), 99);
        for part in fragments(&clear, 99) {
            assert_eq!(a.seal(part.clone()), [part]);
        }
        a.assert_settled();
        b.assert_settled();
    }
}

#[test]
fn what_comes_before_its_first_fragment_is_dropped() {
    let mut a = gateway(true);
    let [first, middle, last] = leaving(CLEAR, 1);
    assert!(a.seal(last).is_empty());
    assert_eq!(a.seal(first).len(), 1);
    assert_eq!(a.seal(middle).len(), 1);
    assert_eq!(a.drops(DropReason::FieldsHidden), 1);
}

/// RFC 4301 7.4: a forged fragment in clear must not become a part of what is protected, and the reverse.
#[test]
fn a_first_fragment_decides_only_on_the_way_that_it_came() {
    let mut a = gateway(true);
    let mut sealer = Sealer::new(&spec(), Side::B);
    // Through the tunnel, then in clear under the same Identification.
    let [first, middle, _] = arriving(PROTECTED, 1);
    assert_eq!(a.open(sealer.seal(1, &Handmade::carrying(&first))).len(), 1);
    assert!(a.open(middle.clone()).is_empty(), "in clear, of a protected datagram");
    // In clear, then through the tunnel.
    let [first, later, _] = arriving(CLEAR, 2);
    assert_eq!(a.open(first).len(), 1);
    assert!(
        a.open(sealer.seal(2, &Handmade::carrying(&later))).is_empty(),
        "through the tunnel, of a clear one"
    );
    // From inside, what came in in clear decides nothing.
    assert!(a.seal(fragments(&datagram(HERE, THERE, CLEAR), 2)[1].clone()).is_empty());
    assert_eq!(a.open(sealer.seal(3, &Handmade::carrying(&middle))), [middle]);
}

/// RFC 5722 3, RFC 3128: bytes that policy looked at are not replaced by later ones.
#[test]
fn a_fragment_that_overlaps_the_first_one_ends_its_datagram() {
    let mut a = gateway(true);
    let whole = datagram(HERE, THERE, CLEAR);
    let [first, middle, last] = fragments(&whole, 1);
    assert_eq!(a.seal(first).len(), 1);
    let over = fragment(&whole, 1, Part { offset: CUT - 8, bytes: CUT, more: true });
    assert!([over, middle, last].into_iter().all(|packet| a.seal(packet).is_empty()));
}

/// Nobody can tell to which of two first fragments a later one belongs.
#[test]
fn two_first_fragments_that_differ_let_nothing_follow() {
    let shorter = |port| fragment(&datagram(HERE, THERE, port), 1, Part { offset: 0, bytes: 8, more: true });
    for (one, other) in [
        (leaving(CLEAR, 1)[0].clone(), leaving(PROTECTED, 1)[0].clone()),
        (leaving(PROTECTED, 1)[0].clone(), leaving(CLEAR, 1)[0].clone()),
        (leaving(UNNAMED, 1)[0].clone(), leaving(CLEAR, 1)[0].clone()),
        (leaving(CLEAR, 1)[0].clone(), shorter(CLEAR)),
    ] {
        for agrees in [true, false] {
            let mut a = gateway(agrees);
            a.seal(one.clone());
            a.seal(other.clone());
            let [_, middle, last] = leaving(CLEAR, 1);
            assert!(a.seal(middle).is_empty() && a.seal(last).is_empty());
        }
    }
    let mut a = gateway(true);
    let [first, middle, last] = leaving(CLEAR, 1);
    let all = [first.clone(), first, middle, last];
    assert!(all.into_iter().all(|packet| a.seal(packet).len() == 1), "a copy decides the same");
}

#[test]
fn a_decision_holds_for_a_second_and_until_all_bytes_have_come() {
    let mut a = gateway(true);
    let [first, middle, last] = leaving(CLEAR, 1);
    assert_eq!(a.seal(first.clone()).len(), 1);
    a.clock.advance(Duration::from_millis(999));
    assert_eq!(a.seal(middle.clone()).len(), 1);
    a.clock.advance(Duration::from_millis(1));
    assert!(a.seal(last.clone()).is_empty(), "a second later");
    assert_eq!(a.seal(first).len(), 1);
    assert_eq!(a.seal(middle.clone()).len(), 1);
    assert_eq!(a.seal(last).len(), 1);
    assert!(a.seal(middle).is_empty(), "it is complete");
}

fn insert(a: &mut Gateway, policy: Policy) -> PolicyId {
    a.worker.change_policies(vec![PolicyChange::Insert(Position::First, policy)])[0].expect("it is taken")
}

fn remove(a: &mut Gateway, id: PolicyId) {
    a.worker.change_policies(vec![PolicyChange::Remove(id)])[0].expect("it is there");
}

/// Nothing passes of a datagram on which policy says something else by now (RFC 4301 7.4), also not when
/// policy says again what it said before.
#[test]
fn a_change_of_policies_for_a_datagram_ends_it() {
    for other in [Action::Discard, Action::Protect(spec().index())] {
        let mut a = gateway(true);
        let [first, middle, last] = leaving(CLEAR, 1);
        assert_eq!(a.seal(first).len(), 1);
        let id = insert(&mut a, Policy::new(to_port(CLEAR), other));
        assert!(a.seal(middle).is_empty(), "{other:?}");
        remove(&mut a, id);
        assert!(a.seal(last).is_empty(), "{other:?}");
        assert_eq!(leaving(CLEAR, 2).into_iter().flat_map(|packet| a.seal(packet)).count(), 3);
        a.assert_settled();
    }
    // Through the tunnel: by policies, and by the selectors of its SA.
    for selects in [true, false] {
        let mut a = gateway(true);
        let mut sealer = Sealer::new(&spec(), Side::B);
        let [first, middle, _] = arriving(PROTECTED, 1);
        assert_eq!(a.open(sealer.seal(1, &Handmade::carrying(&first))), [first]);
        if selects {
            let others = spec().parameters(Side::A).selecting([to_port(CLEAR)]).selectors;
            let now = a.now();
            let update = Update { selectors: vec![(spec().index(), others)], ..Update::default() };
            a.worker.update(update, now);
        } else {
            insert(&mut a, Policy::new(to_port(PROTECTED), Action::Discard));
        }
        assert!(a.open(sealer.seal(2, &Handmade::carrying(&middle))).is_empty(), "{selects}");
        a.assert_settled();
    }
}

/// RFC 4301 7.3, 7.4: a datagram goes its way while tunnels and policies of other flows begin and end, be it
/// between the same two hosts.
#[test]
fn what_begins_and_ends_for_other_flows_takes_no_fragment_of_a_datagram() {
    let mut a = gateway(true);
    let mut sealer = Sealer::new(&spec(), Side::B);
    let [out, clear, sealed, through] =
        [leaving(CLEAR, 1), arriving(CLEAR, 1), leaving(PROTECTED, 2), arriving(PROTECTED, 2)];
    let mut standing = None;
    for part in 0..3 {
        assert_eq!(a.seal(out[part].clone()), [out[part].clone()], "part {part}");
        assert_eq!(a.open(clear[part].clone()), [clear[part].clone()], "part {part}");
        assert!(is_sealed(&a.seal(sealed[part].clone())), "part {part}");
        let arrived = a.open(sealer.seal(part as u64 + 1, &Handmade::carrying(&through[part])));
        assert_eq!(arrived, [through[part].clone()], "part {part}");
        // Flows begin, and those before end: policy, tunnel, and selectors that have one more.
        for number in 0..4_u8 {
            let place = 7 + 4 * part as u8 + number;
            let (index, flow) = (TunnelIndex(place.into()), to_port(6000 + u16::from(place)));
            let parameters = TunnelSpec::new(place, Suite::AES128GCM16).parameters(Side::A);
            let add = SaChange::AddTunnel(index, Box::new(parameters.selecting([flow])));
            let now = a.now();
            a.worker.change_sa(add, now).expect("it can be added");
            let id = insert(&mut a, Policy::new(flow, Action::Protect(index)));
            let wider = spec().parameters(Side::A).selecting([flow, to_port(PROTECTED)]).selectors;
            let update = Update { selectors: vec![(spec().index(), wider)], ..Update::default() };
            a.worker.update(update, now);
            if let Some((index, id)) = standing.replace((index, id)) {
                remove(&mut a, id);
                a.worker.change_sa(SaChange::RemoveTunnel(index), now).expect("it is there");
            }
        }
    }
    assert_eq!(a.drops(DropReason::FieldsHidden), 0);
    a.assert_settled();
}

/// RFC 4301 7.3: what another tunnel has begun is not ended by the one that has its place since.
#[test]
fn a_tunnel_in_the_place_of_another_takes_over_none_of_its_datagrams() {
    let mut a = gateway(true);
    let mut sealer = Sealer::new(&spec(), Side::B);
    let ([first, middle, last], [in_first, in_middle, in_last]) =
        (leaving(PROTECTED, 1), arriving(PROTECTED, 1));
    assert!(is_sealed(&a.seal(first)));
    assert_eq!(a.open(sealer.seal(1, &Handmade::carrying(&in_first))).len(), 1);
    let now = a.now();
    let removed = a.worker.change_sa(SaChange::RemoveTunnel(spec().index()), now);
    removed.expect("it is there");
    assert!(a.seal(middle).is_empty(), "it has ended");
    let mut install = spec().install(Side::A, &mut LeaseTwin::new(1 << 40), None);
    install.parameters = install.parameters.selecting([to_port(PROTECTED)]);
    install.parameters.non_first_fragments = true;
    a.install(install);
    assert!(a.seal(last).is_empty(), "it went through another one");
    for (number, packet) in [(2, in_middle), (3, in_last)] {
        assert!(a.open(sealer.seal(number, &Handmade::carrying(&packet))).is_empty(), "packet {number}");
    }
    assert_eq!(leaving(PROTECTED, 2).into_iter().flat_map(|packet| a.seal(packet)).count(), 3);
    a.assert_settled();
}

/// The table is bounded, and a source that fills it pushes out its own datagrams.
#[test]
fn a_flood_of_first_fragments_pushes_out_no_datagram_of_another_source() {
    let mut a = gateway(true);
    let [first, middle, last] = leaving(CLEAR, 1);
    assert_eq!(a.seal(first).len(), 1);
    for number in 0..2000_u32 {
        let other = datagram([10, 0, 0, 2], [10, 9, (number >> 8) as u8, number as u8], CLEAR);
        assert_eq!(a.seal(fragments(&other, number)[0].clone()).len(), 1);
    }
    assert_eq!(a.seal(middle).len(), 1);
    assert_eq!(a.seal(last).len(), 1);
    // From the other side, from as many addresses as one likes: neither what leaves nor what comes through
    // the tunnel is pushed out, and in clear a new datagram is taken at once.
    let mut sealer = Sealer::new(&spec(), Side::B);
    let [inside, inside_later, _] = leaving(CLEAR, 2);
    let [through, through_later, _] = arriving(PROTECTED, 2);
    a.seal(inside);
    assert_eq!(a.open(sealer.seal(1, &Handmade::carrying(&through))).len(), 1);
    for number in 0..2000_u32 {
        let mut forged = datagram(THERE, HERE, CLEAR);
        forged[12..16].copy_from_slice(&[11, 0, (number >> 8) as u8, number as u8]);
        mend(&mut forged[..20]);
        assert_eq!(a.open(fragments(&forged, 2)[0].clone()).len(), 1);
    }
    assert_eq!(a.seal(inside_later).len(), 1);
    assert_eq!(a.open(sealer.seal(2, &Handmade::carrying(&through_later))).len(), 1);
    assert!(arriving(CLEAR, 3).into_iter().all(|packet| a.open(packet).len() == 1));
}

/// A peer can send first fragments from as many addresses as its selectors have. It pushes out its own
/// datagrams by that, and none of another tunnel.
#[test]
fn a_peer_that_invents_addresses_pushes_out_no_datagram_of_another_tunnel() {
    let specs = [0, 1].map(|number| TunnelSpec::new(number, Suite::AES128GCM16));
    let to = |network: u8| {
        let remote = Prefix::new(IpAddr::from([10, network, 0, 0]), 16).expect("a prefix");
        Selector { remote: remote.into(), ..to_port(PROTECTED) }
    };
    let protect = |network, spec: &TunnelSpec| Policy::new(to(network), Action::Protect(spec.index()));
    let policies = vec![protect(9, &specs[0]), protect(8, &specs[1])];
    let mut a = Gateway::new(policies, PoolSize(64, 2048), portable());
    for (spec, network) in specs.iter().zip([9, 8]) {
        let mut install = spec.install(Side::A, &mut LeaseTwin::new(1 << 40), None);
        install.parameters = install.parameters.selecting([to(network)]);
        install.parameters.non_first_fragments = true;
        a.install(install);
    }
    let [mut honest, mut other] = specs.each_ref().map(|spec| Sealer::new(spec, Side::B));
    // Two at a time, more than any of the invented addresses has.
    let parts = [1, 2].map(|number| arriving(PROTECTED, number));
    for (number, [first, ..]) in (1..).zip(&parts) {
        assert_eq!(a.open(honest.seal(number, &Handmade::carrying(first))).len(), 1);
    }
    for number in 0..2000_u32 {
        let source = [10, 8, (number >> 8) as u8, number as u8];
        let mut forged = datagram(THERE, HERE, PROTECTED);
        forged[12..16].copy_from_slice(&source);
        mend(&mut forged[..20]);
        let [first, ..] = fragments(&forged, 5);
        assert_eq!(a.open(other.seal((number + 1).into(), &Handmade::carrying(&first))).len(), 1);
    }
    for (number, [_, middle, last]) in (0..).zip(&parts) {
        for (part, later) in (3..).zip([middle, last]) {
            let sealed = honest.seal(part + 2 * number, &Handmade::carrying(later));
            assert_eq!(a.open(sealed), std::slice::from_ref(later));
        }
    }
    a.assert_settled();
}
