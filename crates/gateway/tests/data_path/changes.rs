//! Tunnels are added, removed and changed while packets flow; unchanged tunnels lose nothing (reload).

use crate::support::gateway::{PoolSize, portable};
use crate::support::packet::{number, numbered};
use crate::support::{Gateway, Handmade, Inner, LeaseTwin, Sealer, Side, TunnelSpec};
use testudo_crypto::{Engine, PortableEngine, Suite};
use testudo_engine_late::{LateConfig, LateEngine};
use testudo_gateway::{Change, Update, UpdateError};
use testudo_ipsec::{Action, InstallError, Policy, Spd};
use testudo_packet::DropReason;

fn spec(number: u8) -> TunnelSpec {
    TunnelSpec::new(number, Suite::ALL[usize::from(number) % 3])
}

fn engines(late: bool) -> Vec<Box<dyn Engine>> {
    let mut engines = portable();
    if late {
        let engine = LateEngine::new(Box::new(PortableEngine::new()), LateConfig::unreliable(5));
        engines.insert(0, Box::new(engine));
    }
    engines
}

/// Tunnels 0 and 1 carry traffic both ways while 2 and 3 are removed and installed again and again, policies
/// are replaced, and 1 gets the same selectors once more.
#[test]
fn unchanged_tunnels_lose_no_packet_while_others_come_and_go() {
    for late in [false, true] {
        let mut store = [LeaseTwin::new(1 << 20), LeaseTwin::new(1 << 20)];
        let all: Vec<_> = (0..4).map(spec).collect();
        let mut ends = [Side::A, Side::B].map(|side| {
            let policies = all.iter().flat_map(|s| s.policies(side)).collect();
            let mut gateway = Gateway::new(policies, PoolSize(2048, 2048), engines(late));
            let store = &mut store[usize::from(side == Side::B)];
            all.iter().for_each(|s| gateway.install(s.install(side, store, None)));
            gateway
        });
        let mut delivered: [Vec<u32>; 2] = Default::default();
        for round in 0..300u32 {
            for tunnel in 0..4 {
                (0..20).for_each(|n| {
                    let packet = numbered(9, round * 20 + n, tunnel, true, 1000);
                    ends[0].protected.push(packet.bytes());
                });
            }
            for (end, side) in [Side::A, Side::B].into_iter().enumerate() {
                ends[end].turn();
                let changing = &all[2 + round as usize % 2];
                let now = ends[end].now();
                let policies = Spd::new(all.iter().flat_map(|s| s.policies(side))).expect("few prefixes");
                let update = Update {
                    remove: vec![changing.index()],
                    install: vec![changing.install(side, &mut store[end], None)],
                    selectors: vec![(all[1].index(), all[1].parameters(side).selectors)],
                    policies: Some(Box::new(policies)),
                };
                let outcome = ends[end].worker.update(update, now);
                assert!(outcome.iter().all(|(_, result)| result.is_ok()));
            }
            ends[0].settle();
            ends[0].unprotected.take().into_iter().for_each(|d| ends[1].unprotected.push(d));
            ends[1].turn();
            if round % 10 == 9 {
                ends[1].settle();
            }
            for packet in ends[1].protected.take() {
                let tunnel = usize::from(crate::support::packet::tunnel_of(&packet, true));
                if tunnel < 2 {
                    delivered[tunnel].push(number(&packet, true));
                }
            }
        }
        let sent: Vec<u32> = (0..300 * 20).collect();
        assert_eq!(delivered[0], sent);
        assert_eq!(delivered[1], sent);
        ends.iter().for_each(Gateway::assert_settled);
    }
}

/// Tunnel 0 stays; tunnels to the networks of 5 to 8 take over the indices of 1 to 4. After each tunnel that
/// is changed, a packet is sent to each network: those of tunnel 0 all pass, and no other leaves under an SA
/// of another network.
#[test]
fn a_change_made_tunnel_by_tunnel_mixes_no_policy_with_a_tunnel_of_the_other_generation() {
    let (mut store, count) = (LeaseTwin::new(1 << 20), 4);
    let old: Vec<_> = (0..=count).map(spec).collect();
    let mut a = Gateway::with_tunnels(Side::A, &old);
    let new: Vec<_> =
        (1..=count).map(|place| (old[usize::from(place)].index(), spec(place + count))).collect();
    let mut policies = old[0].policies(Side::A);
    for (place, tunnel) in &new {
        let action = Action::Protect(*place);
        policies.extend(tunnel.policies(Side::A).into_iter().map(|p| Policy { action, ..p }));
    }
    let install = |(index, tunnel): &(_, TunnelSpec)| testudo_gateway::TunnelInstall {
        index: *index,
        ..tunnel.install(Side::A, &mut store, None)
    };
    let mut change = Change::new(Update {
        remove: new.iter().map(|(place, _)| *place).collect(),
        install: new.iter().map(install).collect(),
        policies: Some(Box::new(Spd::new(policies).expect("few prefixes"))),
        ..Update::default()
    });
    let (mut is_done, mut steps, mut passed) = (false, 0, 0);
    while !is_done {
        let now = a.now();
        is_done = change.step(&mut a.worker, now, 1);
        steps += 1;
        for network in 0..=2 * count {
            for sealed in a.seal(numbered(9, steps, network, true, 100).bytes()) {
                let spi = u32::from_be_bytes(*sealed[20..].first_chunk().expect("an SPI"));
                assert_eq!(spi, spec(network).spi_from(Side::A), "step {steps}");
                passed += u32::from(network == 0);
            }
        }
    }
    assert_eq!((steps, passed), (2 * u32::from(count) + 1, steps));
    assert!(change.into_outcome().iter().all(|(_, outcome)| outcome.is_ok()));
    // Of eight networks a step: the old ones pass until they are removed (3 + 2 + 1), the new ones once they
    // are installed (1 + 2 + 3 + 4 + 4).
    assert_eq!(a.drops(DropReason::NoSa) + a.drops(DropReason::NoPolicy), 9 * 8 - 6 - 14);
    a.assert_settled();
}

#[test]
fn a_refused_install_leaves_nothing_behind() {
    let mut a = Gateway::with_tunnels(Side::A, &[spec(0)]);
    let mut store = LeaseTwin::new(1 << 20);
    let now = a.now();
    let mut same_spi = spec(1).install(Side::A, &mut store, None);
    same_spi.inbound.parameters.sa.spi = spec(0).spi_from(Side::B);
    let same_place = spec(0).install(Side::A, &mut store, None);
    let good = spec(2).install(Side::A, &mut store, None);
    let update = Update { install: vec![same_spi, same_place, good], ..Update::default() };
    let outcome = a.worker.update(update, now);
    assert!(matches!(outcome[0].1, Err(UpdateError::Install(InstallError::SpiInUse { .. }))));
    assert!(matches!(outcome[1].1, Err(UpdateError::Install(InstallError::PlaceInUse { .. }))));
    assert!(outcome[2].1.is_ok(), "the others were installed");
    assert_eq!(
        a.seal(Inner::udp("10.0.0.1", "172.16.0.2", 60).bytes()).len(),
        1,
        "and the old one still works"
    );
}

/// A tunnel is refused if no engine accepts its key; nothing is left waiting for it.
#[test]
fn a_tunnel_that_no_engine_takes_is_refused() {
    let mut a = Gateway::new(spec(0).policies(Side::A), PoolSize(8, 2048), Vec::new());
    let now = a.now();
    let install = vec![spec(0).install(Side::A, &mut LeaseTwin::new(10), None)];
    let outcome = a.worker.update(Update { install, ..Update::default() }, now);
    assert!(matches!(outcome[0].1, Err(UpdateError::Placement { .. })));
    assert!(a.seal(Inner::udp("10.0.0.1", "172.16.0.2", 60).bytes()).is_empty());
    assert_eq!(a.drops(DropReason::NoSa), 1);
}

/// Starting with an empty window instead of an unreadable one would accept replays of earlier packets.
#[test]
fn a_tunnel_whose_saved_window_is_damaged_is_refused() {
    let mut a = Gateway::new(spec(0).policies(Side::A), PoolSize(8, 2048), portable());
    let now = a.now();
    let install = vec![spec(0).install(Side::A, &mut LeaseTwin::new(10), Some(vec![1, 2, 3]))];
    let outcome = a.worker.update(Update { install, ..Update::default() }, now);
    assert!(matches!(outcome[0].1, Err(UpdateError::Window { .. })));
    assert!(a.seal(Inner::udp("10.0.0.1", "172.16.0.2", 60).bytes()).is_empty());
    assert_eq!(a.drops(DropReason::NoSa), 1);
}

/// A slow link loses nothing: packets that do not fit wait at their source.
#[test]
fn a_slow_link_makes_packets_wait_not_vanish() {
    let mut a = Gateway::with_tunnels(Side::A, &[spec(0)]);
    (0..2000).for_each(|_| a.protected.push(Inner::udp("10.0.0.1", "172.16.0.2", 60).bytes()));
    let mut sent = 0;
    for turn in 0..10_000 {
        a.unprotected.set_room(Some(turn % 3));
        a.turn();
        sent += a.unprotected.take().len();
        a.assert_books_balance();
        if sent == 2000 {
            break;
        }
    }
    assert_eq!(sent, 2000);
    assert_eq!(a.worker.pool().drops().total(), 0);
    a.assert_settled();
}

/// Shutting down a gateway: it takes nothing more from inside, sends what is in flight, and still delivers
/// what comes from outside.
#[test]
fn a_draining_gateway_finishes_what_it_has() {
    for late in [false, true] {
        let mut a = Gateway::new(spec(0).policies(Side::A), PoolSize(256, 2048), engines(late));
        a.install(spec(0).install(Side::A, &mut LeaseTwin::new(1 << 20), None));
        (0..2000).for_each(|_| a.protected.push(Inner::udp("10.0.0.1", "172.16.0.2", 60).bytes()));
        a.turn();
        let untaken = a.protected.arriving();
        assert!((1..2000).contains(&untaken), "some packets were taken, some were not: {untaken}");
        a.worker.drain();
        a.settle();
        assert_eq!(a.unprotected.take().len(), 2000 - untaken);
        assert_eq!(a.protected.arriving(), untaken);
        a.assert_settled();
    }
}

/// A tunnel that a reload changes keeps its window as of that moment, not one saved earlier.
#[test]
fn a_changed_tunnel_refuses_replays_from_before_the_change() {
    let mut sealer = Sealer::new(&spec(0), Side::A);
    let mut b = Gateway::with_tunnels(Side::B, &[spec(0)]);
    let packet = Inner::udp("10.0.0.1", "172.16.0.2", 60).bytes();
    let first = sealer.seal(1, &Handmade::carrying(&packet));
    assert_eq!(b.open(first.clone()).len(), 1);
    let mut install = spec(0).install(Side::B, &mut LeaseTwin::new(10), None);
    install.inbound.inherits = b.worker.inbound_sas(install.index).next();
    let update = Update { remove: vec![install.index], install: vec![install], ..Update::default() };
    let now = b.now();
    assert!(b.worker.update(update, now)[0].1.is_ok());
    assert!(b.open(first).is_empty());
    assert_eq!(b.drops(DropReason::ReplayDuplicate), 1);
    assert_eq!(b.open(sealer.seal(2, &Handmade::carrying(&packet))).len(), 1);
}
