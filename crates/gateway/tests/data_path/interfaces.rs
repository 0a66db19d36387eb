//! Several interfaces on the protected side: packets meet the policies of their own, and leave by that of
//! their tunnel.

use crate::support::gateway::portable;
use crate::support::{Gateway, Inner, LeaseTwin, PortHandle, Side, TunnelSpec};
use testudo_crypto::Suite;
use testudo_gateway::{Interfaces, ManualClock, PortPair, SaChange, UseFrom, Worker};
use testudo_ipsec::{Action, Policy, Prefix, Selector, Spd, TunnelIndex, TunnelParameters};
use testudo_packet::{DropReason, Interface, Pool};

/// A gateway whose protected side has a main interface and two others.
struct Site {
    gateway: Gateway,
    handles: [PortHandle; 3],
}

/// Tunnel 1 is of the main interface, for its own networks; 2 and 3 are of the others, for all packets.
fn spec(number: u8) -> TunnelSpec {
    let interface = Interface(number - 1);
    TunnelSpec { interface, ..TunnelSpec::new(number, Suite::AES128GCM16) }
}

fn all_packets(number: u8) -> Policy {
    let action = Action::Protect(TunnelIndex(number.into()));
    Policy { interface: Interface(number - 1), ..Policy::new(Selector::ANY, action) }
}

impl Site {
    fn without_tunnels(policies: Vec<Policy>) -> Self {
        let (handles, unprotected) = (<[PortHandle; 3]>::default(), PortHandle::default());
        let [main, first, second] = &handles;
        let others = vec![first.port("ipsec0"), second.port("ipsec1")];
        let protected = Interfaces::of(main.port("testudo0"), others).expect("three interfaces");
        let ports = PortPair { protected: Box::new(protected), unprotected: unprotected.port("unprotected") };
        let policies = Box::new(Spd::new(policies).expect("few ranges"));
        let worker = Worker::new(ports, Pool::new(512, 2048), portable(), policies);
        let gateway = Gateway { worker, protected: main.clone(), unprotected, clock: ManualClock::default() };
        Self { gateway, handles }
    }

    fn new(side: Side, first: Vec<Policy>) -> Self {
        let own = spec(1).policies(side).into_iter().chain([2, 3].map(all_packets));
        let mut site = Self::without_tunnels(first.into_iter().chain(own).collect());
        let mut store = LeaseTwin::new(1 << 40);
        for number in 1..=3 {
            let mut install = spec(number).install(side, &mut store, None);
            if number > 1 {
                install.parameters = install.parameters.selecting([Selector::ANY]);
            }
            site.gateway.install(install);
        }
        site
    }

    /// Sends a packet from an interface; what leaves by the unprotected side.
    fn seal(&mut self, interface: usize, packet: &[u8]) -> Vec<Vec<u8>> {
        self.handles[interface].push(packet);
        self.gateway.settle();
        self.gateway.unprotected.take()
    }

    /// What has left by each interface since the last call.
    fn delivered(&mut self) -> [Vec<Vec<u8>>; 3] {
        self.gateway.settle();
        [0, 1, 2].map(|interface| self.handles[interface].take())
    }

    fn drops(&self, reason: DropReason) -> u64 {
        self.gateway.drops(reason)
    }
}

/// To the network of tunnel 1.
fn packet() -> Vec<u8> {
    Inner::udp("10.0.0.1", "172.17.0.2", 100).bytes()
}

fn spi(datagram: &[u8]) -> u32 {
    u32::from_be_bytes(datagram[20..24].try_into().expect("four bytes"))
}

#[test]
fn the_same_packet_takes_the_tunnel_of_its_interface_and_comes_out_of_that_of_its_sa() {
    let (mut a, mut b) = (Site::new(Side::A, Vec::new()), Site::new(Side::B, Vec::new()));
    // In turns, so that buffers that were at one interface come back at another.
    for (round, interface) in (0..30).map(|round| (round, round % 3)) {
        let sealed = a.seal(interface, &packet());
        let [datagram] = &sealed[..] else { panic!("round {round}: {} datagrams", sealed.len()) };
        assert_eq!(spi(datagram), spec(interface as u8 + 1).spi_from(Side::A), "round {round}");
        b.gateway.unprotected.push(datagram.clone());
        let mut expected = [const { Vec::new() }; 3];
        expected[interface].push(packet());
        assert_eq!(b.delivered(), expected, "round {round}, {:?}", b.gateway.worker.pool().drops());
    }
    a.gateway.assert_settled();
    b.gateway.assert_settled();
}

#[test]
fn what_no_policy_of_an_interface_is_about_is_dropped_there_whatever_others_say() {
    let mut a = Site::new(Side::A, Vec::new());
    let elsewhere = Inner::udp("10.0.0.1", "203.0.113.9", 100).bytes();
    assert!(a.seal(0, &elsewhere).is_empty());
    assert_eq!(a.drops(DropReason::NoPolicy), 1);
    assert_eq!(a.seal(1, &elsewhere).len() + a.seal(2, &elsewhere).len(), 2);
    a.gateway.assert_settled();
}

/// A batch of packets that are opened has those of several interfaces, and policy differs.
#[test]
fn opened_packets_are_judged_by_the_policies_of_their_interface() {
    let network = Prefix::new([10, 0, 0, 0].into(), 16).expect("a prefix");
    let refused = Selector { local: Prefix::ANY.into(), remote: network.into(), ..Selector::ANY };
    let discard = |interface| Policy { interface, ..Policy::new(refused, Action::Discard) };
    let (mut a, mut b) = (Site::new(Side::A, Vec::new()), Site::new(Side::B, vec![discard(Interface(2))]));
    for _ in 0..4 {
        for interface in 0..3 {
            a.seal(interface, &packet())
                .into_iter()
                .for_each(|datagram| b.gateway.unprotected.push(datagram));
        }
    }
    assert_eq!(b.delivered().map(|packets| packets.len()), [4, 4, 0]);
    assert_eq!(b.drops(DropReason::PolicyDiscard), 4);
    b.gateway.assert_settled();
}

#[test]
fn a_message_about_a_packet_goes_back_to_its_interface() {
    let mut a = Site::new(Side::A, Vec::new());
    let long = Inner { dont_fragment: true, ..Inner::udp("10.0.0.1", "172.17.0.2", 1500) }.bytes();
    for interface in [1, 0, 2] {
        assert!(a.seal(interface, &long).is_empty());
        let replies = a.delivered();
        let expected = [0, 1, 2].map(|other| usize::from(other == interface));
        assert_eq!(replies.map(|packets| packets.len()), expected);
    }
    a.gateway.assert_settled();
}

/// What the unprotected side sends in clear has no interface, whatever was in its buffer before.
#[test]
fn what_passes_in_clear_arrives_at_the_main_interface() {
    let clear = Selector {
        remote: Prefix::new([203, 0, 113, 0].into(), 24).expect("a prefix").into(),
        ..Selector::ANY
    };
    let mut a = Site::new(Side::A, vec![Policy::new(clear, Action::Bypass)]);
    for interface in (0..600).map(|round| round % 3) {
        assert_eq!(a.seal(interface, &packet()).len(), 1);
    }
    let arriving = Inner::udp("203.0.113.9", "10.0.0.1", 100).bytes();
    (0..20).for_each(|_| a.gateway.unprotected.push(arriving.clone()));
    assert_eq!(a.delivered().map(|packets| packets.len()), [20, 0, 0]);
    a.gateway.assert_settled();
}

#[test]
fn packets_that_wait_for_an_sa_go_by_the_policies_of_their_interface() {
    let mut a = Site::without_tunnels([2, 3].map(all_packets).into());
    for number in [2, 3] {
        let parameters = TunnelParameters { acquires: true, ..spec(number).parameters(Side::A) };
        let added = SaChange::AddTunnel(TunnelIndex(number.into()), Box::new(parameters));
        a.gateway.worker.change_sa(added, a.gateway.now()).expect("it can be added");
    }
    for _ in 0..20 {
        assert!(a.seal(1, &packet()).is_empty() && a.seal(2, &packet()).is_empty());
    }
    assert_eq!(a.gateway.worker.take_events().len(), 2, "each tunnel asks for itself");
    assert_eq!(a.gateway.worker.held_packets(), 40);
    let mut store = LeaseTwin::new(1 << 40);
    for number in [2, 3] {
        let outbound = Box::new(spec(number).outbound(Side::A, &mut store));
        let added = SaChange::AddOutbound(TunnelIndex(number.into()), outbound, UseFrom::Now);
        a.gateway.worker.change_sa(added, a.gateway.now()).expect("it can be added");
    }
    a.gateway.settle();
    let spis: Vec<_> = a.gateway.unprotected.take().iter().map(|datagram| spi(datagram)).collect();
    let of = |number| spis.iter().filter(|spi| **spi == spec(number).spi_from(Side::A)).count();
    assert_eq!((of(2), of(3), spis.len()), (20, 20, 40));
    a.gateway.assert_settled();
}

#[test]
fn an_interface_that_takes_nothing_does_not_hold_up_the_others() {
    let (mut a, mut b) = (Site::new(Side::A, Vec::new()), Site::new(Side::B, Vec::new()));
    b.handles[1].set_room(Some(0));
    for _ in 0..100 {
        for interface in 0..3 {
            a.seal(interface, &packet())
                .into_iter()
                .for_each(|datagram| b.gateway.unprotected.push(datagram));
        }
    }
    assert_eq!(b.delivered().map(|packets| packets.len()), [100, 0, 100]);
    assert_eq!(b.drops(DropReason::QueueFull), 100);
    b.handles[1].set_room(None);
    a.seal(1, &packet()).into_iter().for_each(|datagram| b.gateway.unprotected.push(datagram));
    assert_eq!(b.delivered().map(|packets| packets.len()), [0, 1, 0]);
    b.gateway.assert_settled();
}

/// An interface that floods takes its turn like the others.
#[test]
fn interfaces_are_received_from_in_turns() {
    let mut a = Site::new(Side::A, Vec::new());
    (0..4000).for_each(|_| a.handles[2].push(packet()));
    [0, 1].iter().for_each(|quiet| a.handles[*quiet].push(packet()));
    a.gateway.turn();
    let spis: Vec<_> = a.gateway.unprotected.take().iter().map(|datagram| spi(datagram)).collect();
    let of = |number| spis.iter().filter(|spi| **spi == spec(number).spi_from(Side::A)).count();
    assert_eq!((of(1), of(2)), (1, 1));
    assert!((1..4000).contains(&of(3)), "{}", of(3));
    a.gateway.settle();
    assert_eq!(a.gateway.unprotected.take().len() + spis.len(), 4002);
    a.gateway.assert_settled();
}

/// The quiet one has nothing when the flood begins.
#[test]
fn a_flood_does_not_keep_an_interface_unheard_that_has_packets_later() {
    let mut a = Site::new(Side::A, Vec::new());
    (0..4000).for_each(|_| a.handles[2].push(packet()));
    a.gateway.turn();
    a.handles[0].push(packet());
    a.gateway.turn();
    let spis: Vec<_> = a.gateway.unprotected.take().iter().map(|datagram| spi(datagram)).collect();
    let of_main = spis.iter().filter(|spi| **spi == spec(1).spi_from(Side::A)).count();
    assert_eq!((of_main, spis.len() < 4001), (1, true), "{} packets", spis.len());
    a.gateway.settle();
    a.gateway.assert_settled();
}

/// What each interface received, sent and lost, as the worker's counters say it: packets and bytes in,
/// packets and bytes out, drops.
fn counted(site: &Site) -> [[u64; 5]; 3] {
    let interfaces = site.gateway.worker.counters().interfaces();
    let names: Vec<_> = interfaces.iter().map(|interface| &*interface.name).collect();
    assert_eq!(names, ["testudo0", "ipsec0", "ipsec1"]);
    [0, 1, 2].map(|at| {
        let (port, drops) = (interfaces[at].counters, &interfaces[at].drops);
        [port.rx_packets, port.rx_bytes, port.tx_packets, port.tx_bytes, drops.total()]
    })
}

#[test]
fn each_interface_counts_its_own_packets_bytes_and_drops() {
    let (mut a, mut b) = (Site::new(Side::A, Vec::new()), Site::new(Side::B, Vec::new()));
    let mut sealed = [const { Vec::new() }; 3];
    for (interface, packets) in [(0, 2), (1, 3), (2, 5)] {
        (0..packets).for_each(|_| sealed[interface].extend(a.seal(interface, &packet())));
    }
    let bytes = packet().len() as u64;
    // No policy of the main interface is about the first; the others are no IP packets.
    a.seal(0, &Inner::udp("10.0.0.1", "203.0.113.9", 100).bytes());
    a.seal(0, &[0xff; 40]);
    a.seal(2, &[0xff; 40]);
    let expected = [[4, 3 * bytes + 40, 0, 0, 2], [3, 3 * bytes, 0, 0, 0], [6, 5 * bytes + 40, 0, 0, 1]];
    assert_eq!(counted(&a), expected);
    sealed.concat().into_iter().for_each(|datagram| b.gateway.unprotected.push(datagram));
    b.delivered();
    let expected = [2, 3, 5].map(|packets| [0, 0, packets, packets * bytes, 0]);
    assert_eq!(counted(&b), expected);
    a.gateway.assert_settled();
    b.gateway.assert_settled();
}

/// What an SA refuses, before it opens it or after, is lost at its tunnel's interface; what has no SA at
/// none, whatever was in its buffer before.
#[test]
fn what_an_sa_refuses_is_lost_at_its_interface_and_what_has_no_sa_at_none() {
    let (mut a, mut b) = (Site::new(Side::A, Vec::new()), Site::new(Side::B, Vec::new()));
    for interface in (0..300).map(|round| round % 3) {
        for mut datagram in a.seal(interface, &packet()) {
            b.gateway.unprotected.push(datagram.clone());
            // Seen before, in the same batch and in a later one; then of no SA.
            b.gateway.unprotected.push(datagram.clone());
            b.delivered();
            b.gateway.unprotected.push(datagram.clone());
            datagram[20..24].fill(0xee);
            b.gateway.unprotected.push(datagram);
        }
        b.delivered();
    }
    assert_eq!((b.drops(DropReason::ReplayDuplicate), b.drops(DropReason::UnknownSpi)), (600, 300));
    assert_eq!(counted(&b).map(|interface| interface[4]), [200, 200, 200]);
    for mut datagram in a.seal(1, &packet()) {
        *datagram.last_mut().expect("an ICV") ^= 1;
        b.gateway.unprotected.push(datagram);
    }
    b.delivered();
    assert_eq!(b.drops(DropReason::AuthenticationFailed), 1);
    assert_eq!(counted(&b).map(|interface| interface[4]), [200, 201, 200]);
    a.gateway.assert_settled();
    b.gateway.assert_settled();
}

#[test]
fn a_gateway_with_one_interface_counts_none_apart() {
    let gateway = Gateway::with_tunnels(Side::A, &[spec(1)]);
    assert!(gateway.worker.counters().interfaces().is_empty());
}
