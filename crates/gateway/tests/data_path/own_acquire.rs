//! Workers that ask for SAs of their own under a negotiated tunnel (RFC 9611), while its fallback carries
//! their packets.

use crate::own_sas::{change, gateways, own, sent, spec, spi, spis};
use crate::support::gateway::{PoolSize, portable};
use crate::support::packet::network_a;
use crate::support::{Gateway, Inner, LeaseTwin, Side, TunnelSpec};
use std::time::Duration;
use testudo_gateway::{SaChange, SaChangeError, UseFrom};
use testudo_ipsec::{
    ASK_AGAIN_FOR_OWN, Acquire, Action, EventKind, PacketRules, Policy, Prefix, Selector, TunnelIndex,
    TunnelParameters,
};
use testudo_packet::DropReason;
use testudo_wire::ip::Version;

/// So many workers, with the tunnel of number 0, which has no SA and whose workers are to ask for their own.
fn asking<const N: usize>() -> [Gateway; N] {
    let mut all = gateways::<N>();
    let parameters = TunnelParameters { acquires: true, ..spec(0).parameters(Side::A) };
    make(&mut all, SaChange::AddTunnel(spec(0).index(), Box::new(parameters)));
    make(&mut all, SaChange::WantOwn(spec(0).index(), Some(0)));
    all
}

#[track_caller]
fn make(all: &mut [Gateway], wanted: SaChange) {
    let outcome = change(all, wanted);
    assert!(outcome[0].is_ok(), "{outcome:?}");
}

/// The SA of all workers, in use at once.
fn add_fallback(all: &mut [Gateway]) {
    let fallback = spec(0).outbound(Side::A, &mut LeaseTwin::new(1 << 40));
    make(all, SaChange::AddOutbound(spec(0).index(), Box::new(fallback), UseFrom::Now));
}

fn add_own(all: &mut [Gateway], number: u8, worker: u32) {
    make(all, SaChange::AddOutbound(spec(0).index(), Box::new(own(number, worker)), UseFrom::Now));
}

fn acquires(gateway: &mut Gateway) -> Vec<Acquire> {
    let of = |event: testudo_ipsec::Event| match event.kind {
        EventKind::Acquire(acquire) => Some(acquire),
        _ => None,
    };
    gateway.worker.take_events().into_iter().filter_map(of).collect()
}

/// For which worker each of them has asked, if at all.
fn asked(all: &mut [Gateway]) -> Vec<Vec<Option<u32>>> {
    all.iter_mut().map(|one| acquires(one).iter().map(|acquire| acquire.worker).collect()).collect()
}

fn pass(all: &mut [Gateway], time: Duration) {
    for gateway in all {
        gateway.clock.advance(time);
        let now = gateway.now();
        gateway.worker.tick(now);
    }
}

const NOTHING: Vec<Option<u32>> = Vec::new();

/// As Linux does: without any SA packets ask for the fallback and wait, and with it each processor asks for
/// its own.
#[test]
fn each_worker_asks_for_the_fallback_and_then_once_for_its_own_sa() {
    let mut all = asking::<3>();
    assert_eq!(spis(&mut all), [0; 3]);
    assert_eq!(asked(&mut all), [[None], [None], [None]]);
    assert!(all.iter().all(|gateway| gateway.worker.held_packets() == 1));
    add_fallback(&mut all);
    for (worker, gateway) in all.iter_mut().enumerate() {
        gateway.settle();
        assert_eq!(gateway.unprotected.take().len(), 1, "what has waited goes through the fallback");
        let told = acquires(gateway);
        let [acquire] = &told[..] else { panic!("{told:?}") };
        assert_eq!(acquire.worker, Some(u32::try_from(worker).unwrap()));
        assert_eq!(acquire.packet.local, Some("10.0.0.1".parse().unwrap()), "with the packet's values");
    }
    // However much is sent, and whatever flows.
    for _ in 0..200 {
        assert_eq!(spis(&mut all), [spi(0); 3]);
    }
    assert_eq!(asked(&mut all), [NOTHING; 3]);
    assert!(all.iter().all(|gateway| gateway.books().dropped == 0));
}

#[test]
fn a_worker_with_an_sa_of_its_own_asks_no_more_and_one_without_after_a_while() {
    let mut all = asking::<3>();
    add_fallback(&mut all);
    assert_eq!(spis(&mut all), [spi(0); 3]);
    assert_eq!(asked(&mut all), [[Some(0)], [Some(1)], [Some(2)]]);
    add_own(&mut all, 1, 1);
    assert_eq!(spis(&mut all), [spi(0), spi(1), spi(0)]);
    pass(&mut all, ASK_AGAIN_FOR_OWN - Duration::from_secs(1));
    assert_eq!(spis(&mut all), [spi(0), spi(1), spi(0)]);
    assert_eq!(asked(&mut all), [NOTHING; 3]);
    pass(&mut all, Duration::from_secs(1));
    assert_eq!(asked(&mut all), [NOTHING; 3], "nobody asks without a packet");
    assert_eq!(spis(&mut all), [spi(0), spi(1), spi(0)]);
    assert_eq!(asked(&mut all), [vec![Some(0)], NOTHING, vec![Some(2)]]);
    // One that loses its own asks for another.
    make(&mut all, SaChange::RemoveOutbound(spec(0).index(), spi(1)));
    assert_eq!(spis(&mut all), [spi(0); 3]);
    assert_eq!(asked(&mut all), [NOTHING, vec![Some(1)], NOTHING]);
    assert!(all.iter().all(|gateway| gateway.books().dropped == 0));
}

#[test]
fn a_tunnel_whose_policies_want_no_more_own_sas_asks_for_none() {
    let mut all = asking::<2>();
    add_fallback(&mut all);
    // And again, though it has asked lately.
    for _ in 0..3 {
        make(&mut all, SaChange::WantOwn(spec(0).index(), None));
        assert_eq!(spis(&mut all), [spi(0); 2]);
        assert_eq!(asked(&mut all), [NOTHING; 2]);
        make(&mut all, SaChange::WantOwn(spec(0).index(), Some(0)));
        pass(&mut all, Duration::from_secs(2));
        assert_eq!(spis(&mut all), [spi(0); 2]);
        assert_eq!(asked(&mut all), [[Some(0)], [Some(1)]]);
    }
    make(&mut all, SaChange::RemoveTunnel(spec(0).index()));
    pass(&mut all, ASK_AGAIN_FOR_OWN);
    assert_eq!(spis(&mut all), [0; 2]);
    let gone = change(&mut all, SaChange::WantOwn(spec(0).index(), Some(0)));
    assert!(matches!(gone[..], [Err(SaChangeError::NoTunnel(_))]), "{gone:?}");
}

/// Of two policies of one tunnel one wants SAs for each worker: packets of the other leave the worker's turn
/// to it, however many come first, and do not take the slow path for ever.
#[test]
fn packets_of_a_policy_that_wants_no_own_sas_leave_the_turn_to_others() {
    let host = |text: &str| Prefix::new(text.parse().expect("an address"), 32).expect("a prefix");
    let action = Action::Protect(spec(0).index());
    let wanting = Policy::new(Selector::between(host("10.0.0.1"), host("172.16.0.9")), action);
    let quiet = spec(0).policies(Side::A).into_iter().map(|of| Policy { asks_for_own: false, ..of });
    let policies: Vec<_> = [wanting].into_iter().chain(quiet).collect();
    let mut all = [(); 2].map(|()| Gateway::new(policies.clone(), PoolSize(512, 2048), portable()));
    let parameters = TunnelParameters { acquires: true, ..spec(0).parameters(Side::A) };
    make(&mut all, SaChange::AddTunnel(spec(0).index(), Box::new(parameters)));
    add_fallback(&mut all);
    make(&mut all, SaChange::WantOwn(spec(0).index(), Some(0)));
    let send = |all: &mut [Gateway; 2], count: usize, to: &str| {
        for gateway in all {
            (0..count).for_each(|_| {
                assert_eq!(gateway.seal(Inner::udp("10.0.0.1", to, 60).bytes()).len(), 1, "it never waits");
            });
        }
    };
    for _ in 0..3 {
        send(&mut all, 200, "172.16.0.2");
        assert_eq!(asked(&mut all), [NOTHING; 2]);
        send(&mut all, 2, "172.16.0.9");
        assert_eq!(asked(&mut all), [[Some(0)], [Some(1)]], "in its turn, once");
        pass(&mut all, ASK_AGAIN_FOR_OWN);
    }
    // Far too many: it rests for two seconds, and then it is the other one's turn again.
    send(&mut all, 3000, "172.16.0.2");
    send(&mut all, 1, "172.16.0.9");
    assert_eq!(asked(&mut all), [NOTHING; 2]);
    pass(&mut all, Duration::from_secs(2));
    send(&mut all, 200, "172.16.0.2");
    send(&mut all, 1, "172.16.0.9");
    assert_eq!(asked(&mut all), [[Some(0)], [Some(1)]]);
    assert!(all.iter().all(|gateway| gateway.books().dropped == 0));
}

/// Who says the same again, as with each policy of the tunnel, has nobody ask again.
#[test]
fn a_worker_that_was_told_so_before_asks_once_in_its_time() {
    let mut all = asking::<2>();
    add_fallback(&mut all);
    assert_eq!(spis(&mut all), [spi(0); 2]);
    assert_eq!(asked(&mut all), [[Some(0)], [Some(1)]]);
    for _ in 0..3 {
        make(&mut all, SaChange::WantOwn(spec(0).index(), Some(0)));
        pass(&mut all, Duration::from_secs(2));
        assert_eq!(spis(&mut all), [spi(0); 2]);
        assert_eq!(asked(&mut all), [NOTHING; 2]);
    }
}

/// An idle tunnel whose workers are to ask has an SA all the same: NATs keep its mapping, and who watches
/// sees its dummies.
#[test]
fn keepalives_and_dummies_leave_while_a_worker_is_to_ask() {
    let rules = PacketRules { dummy_packets_per_second: 10, ..PacketRules::default() };
    for (rules, keepalive) in [(rules, None), (PacketRules::default(), Some(Duration::from_secs(20)))] {
        let spec = TunnelSpec { udp: true, rules, keepalive, ..spec(0) };
        let mut all = gateways::<1>();
        let parameters = TunnelParameters { acquires: true, ..spec.parameters(Side::A) };
        make(&mut all, SaChange::AddTunnel(spec.index(), Box::new(parameters)));
        make(&mut all, SaChange::WantOwn(spec.index(), Some(0)));
        add_fallback(&mut all);
        let gateway = &mut all[0];
        gateway.clock.advance(Duration::from_secs(20));
        let now = gateway.now();
        gateway.worker.tick(now);
        gateway.worker.send_dummies(now);
        gateway.settle();
        assert!(!gateway.unprotected.take().is_empty(), "keepalive {keepalive:?}");
        assert_eq!(asked(&mut all), [NOTHING], "none of them asks");
        assert_eq!(sent(&mut all[0]).map(|_| asked(&mut all)), Some(vec![vec![Some(0)]]));
    }
}

/// With keys that somebody types in nobody makes SAs: nothing asks, and nothing is dropped for it.
#[test]
fn a_tunnel_that_acquires_nothing_does_not_stop_for_own_sas() {
    let mut all = gateways::<1>();
    let parameters = spec(0).parameters(Side::A);
    make(&mut all, SaChange::AddTunnel(spec(0).index(), Box::new(parameters)));
    make(&mut all, SaChange::WantOwn(spec(0).index(), Some(0)));
    add_fallback(&mut all);
    assert_eq!(sent(&mut all[0]), Some((spi(0), 1)));
    assert_eq!(asked(&mut all), [NOTHING]);
}

#[test]
fn packets_that_ask_leave_in_their_order() {
    let mut all = asking::<1>();
    add_fallback(&mut all);
    let gateway = &mut all[0];
    for number in 1..=40 {
        let inner = Inner { ports: (number, 53), ..Inner::udp("10.0.0.1", "172.16.0.2", 100) };
        gateway.protected.push(inner.bytes());
    }
    gateway.settle();
    let mut peer = Gateway::with_tunnels(Side::B, &[spec(0)]);
    let packets = gateway.unprotected.take().into_iter().flat_map(|datagram| peer.open(datagram));
    let ports = packets.map(|packet| u16::from_be_bytes([packet[20], packet[21]]));
    assert!(ports.eq(1..=40));
    assert_eq!(asked(&mut all), [[Some(0)]]);
}

/// A narrow path is believed while a worker is to ask: its SA is in use all the same.
#[test]
fn errors_of_the_path_are_believed_while_a_worker_is_to_ask() {
    let mut all = asking::<1>();
    add_fallback(&mut all);
    make(&mut all, SaChange::WantOwn(spec(0).index(), None));
    let sealed = all[0].seal(Inner::udp("10.0.0.1", "172.16.0.2", 1400).bytes());
    make(&mut all, SaChange::WantOwn(spec(0).index(), Some(0)));
    assert!(all[0].open(crate::path_mtu::too_big(&sealed[0], 1300)).is_empty());
    assert_eq!(all[0].drops(DropReason::IcmpBelieved), 1);
}

/// One host has a share of the acquires, as of all others. Its tunnels that were left out ask later, and none
/// of its packets waits for that.
#[test]
fn many_tunnels_ask_within_the_limits_of_acquires() {
    const TUNNELS: u8 = 100;
    let prefix = |(address, length)| Prefix::new(address, length).expect("a prefix");
    let towards = |number| {
        let to = Prefix::new([172, 16 + number / 16, (number % 16) << 4, 0].into(), 20).expect("a prefix");
        Selector::between(prefix(network_a(Version::V4)), to)
    };
    let policy = |number: u8| Policy::new(towards(number), Action::Protect(TunnelIndex(number.into())));
    let policies = (0..TUNNELS).map(policy).collect();
    let mut all = [Gateway::new(policies, PoolSize(512, 2048), portable())];
    for number in 0..TUNNELS {
        let parameters = TunnelParameters { acquires: true, ..spec(number).parameters(Side::A) };
        let index = TunnelIndex(number.into());
        make(&mut all, SaChange::AddTunnel(index, Box::new(parameters)));
        let fallback = spec(number).outbound(Side::A, &mut LeaseTwin::new(1 << 40));
        make(&mut all, SaChange::AddOutbound(index, Box::new(fallback), UseFrom::Now));
        make(&mut all, SaChange::WantOwn(index, Some(0)));
    }
    let send = |all: &mut [Gateway]| {
        for number in 0..TUNNELS {
            let to = format!("172.{}.{}.2", 16 + number / 16, (number % 16) << 4);
            assert_eq!(all[0].seal(Inner::udp("10.0.0.1", &to, 100).bytes()).len(), 1, "to {to}");
        }
        asked(all)[0].len()
    };
    pass(&mut all, Duration::from_secs(1));
    let mut counts = vec![send(&mut all)];
    for _ in 0..4 {
        assert_eq!(send(&mut all), 0, "the rest has a pause");
        pass(&mut all, Duration::from_secs(2));
        counts.push(send(&mut all));
    }
    assert_eq!(counts, [32, 32, 32, 4, 0]);
    assert_eq!(all[0].books().dropped, 0);
}
