//! An SA for each worker under one tunnel (RFC 9611).

use crate::support::gateway::{PoolSize, portable};
use crate::support::{Gateway, Inner, LeaseTwin, Side, TunnelSpec};
use crate::workers::install_at;
use testudo_crypto::{Direction, Suite};
use testudo_gateway::{
    InboundInstall, OutboundInstall, SaChange, SaChangeError, SaChanged, SaOutcome, SaRounds, TunnelInstall,
    UseFrom,
};
use testudo_ipsec::{
    InstallError, Lifetime, Limits, NumberSource, SaState, SaWorker, Spent, TunnelParameters,
};
use testudo_packet::DropReason;

pub(crate) fn spec(number: u8) -> TunnelSpec {
    TunnelSpec::new(number, Suite::AES128GCM16)
}

/// The SPI of an SA towards the peer, by its number: that of all is number 0.
pub(crate) fn spi(number: u8) -> u32 {
    spec(number).spi_from(Side::A)
}

/// An SA of one worker, with numbers that nobody else has.
pub(crate) fn own(number: u8, worker: u32) -> OutboundInstall {
    let mut install = spec(number).outbound(Side::A, &mut LeaseTwin::new(1 << 40));
    install.parameters.numbers = NumberSource::Ephemeral;
    install.parameters.worker = Some(SaWorker::new(worker));
    install
}

fn tunnel(more_outbound: Vec<OutboundInstall>) -> TunnelInstall {
    let install = spec(0).install(Side::A, &mut LeaseTwin::new(1 << 40), None);
    let more_inbound: Vec<InboundInstall> = vec![spec(5).inbound(Side::A)];
    TunnelInstall { more_outbound, more_inbound, ..install }
}

pub(crate) fn gateways<const N: usize>() -> [Gateway; N] {
    [(); N].map(|()| Gateway::new(spec(0).policies(Side::A), PoolSize(512, 2048), portable()))
}

/// What the commander does with a change, at workers that take turns.
pub(crate) fn change(gateways: &mut [Gateway], change: SaChange) -> SaOutcome {
    let mut make = |all: Vec<Vec<SaChange>>| -> Vec<SaOutcome> {
        let each = gateways.iter_mut().zip(all);
        let make = |(gateway, changes): (&mut Gateway, Vec<SaChange>)| {
            let now = gateway.now();
            changes.into_iter().map(|change| gateway.worker.change_sa(change, now)).collect()
        };
        each.map(make).collect()
    };
    let (rounds, first) = SaRounds::begin(vec![change], 3);
    let (outcome, second) = rounds.answered(make(first).into_iter());
    second.map(&mut make);
    outcome
}

/// SPI and number of the datagram that a packet becomes at a worker.
pub(crate) fn sent(gateway: &mut Gateway) -> Option<(u32, u32)> {
    let sealed = gateway.seal(Inner::udp("10.0.0.1", "172.16.0.2", 100).bytes());
    let word = |datagram: &[u8], at: usize| {
        u32::from_be_bytes(datagram[at..at + 4].try_into().expect("an ESP header"))
    };
    sealed.first().map(|datagram| (word(datagram, 20), word(datagram, 24)))
}

fn sent_by_all(gateways: &mut [Gateway]) -> Vec<Option<(u32, u32)>> {
    gateways.iter_mut().map(sent).collect()
}

pub(crate) fn spis(gateways: &mut [Gateway]) -> Vec<u32> {
    sent_by_all(gateways).into_iter().map(|sent| sent.map_or(0, |(spi, _)| spi)).collect()
}

#[test]
fn each_worker_sends_through_its_own_sa_and_one_without_through_that_of_all() {
    let (mut all, installed) = install_at(gateways::<3>(), tunnel(vec![own(1, 0), own(2, 1)]));
    for number in 1..4 {
        let expected = [(spi(1), number), (spi(2), number), (spi(0), number)].map(Some);
        assert_eq!(sent_by_all(&mut all), expected);
    }
    let each = |of: &testudo_gateway::PlacedSa| {
        of.counters.each().map(|counters| (counters.packets(), counters.is_in_use())).collect::<Vec<_>>()
    };
    assert_eq!(each(&installed.outbound), [(0, true), (0, true), (3, true)]);
    assert_eq!(each(&installed.more_outbound[0]), [(3, true), (0, false), (0, false)]);
    assert_eq!(each(&installed.more_outbound[1]), [(0, false), (3, true), (0, false)]);
    assert!(installed.more_outbound.iter().all(|sa| sa.counters.is_in_use()));
    // Every worker takes both of the peer's.
    let of_peer: Vec<_> = [&installed.inbound].into_iter().chain(&installed.more_inbound).collect();
    for gateway in &all {
        let sas: Vec<_> = gateway.worker.inbound_sas(spec(0).index()).collect();
        assert_eq!(sas, of_peer.iter().map(|placed| placed.sa).collect::<Vec<_>>());
    }
}

#[test]
fn a_lone_worker_has_its_own_sa_and_never_that_of_another() {
    let (mut all, _) = install_at(gateways::<1>(), tunnel(vec![own(1, 0), own(2, 1)]));
    assert_eq!(sent_by_all(&mut all), [Some((spi(1), 1))]);
}

/// RFC 7296 2.8 for each worker by itself.
#[test]
fn a_renewal_replaces_the_sa_of_one_worker_and_leaves_all_others() {
    let (mut all, _) = install_at(gateways::<3>(), tunnel(vec![own(1, 0), own(2, 1)]));
    sent_by_all(&mut all);
    let index = spec(0).index();
    let added = change(&mut all, SaChange::AddOutbound(index, Box::new(own(3, 1)), UseFrom::Now));
    assert!(matches!(added[..], [Ok(SaChanged::Added(_))]), "{added:?}");
    assert_eq!(sent_by_all(&mut all), [(spi(1), 2), (spi(3), 1), (spi(0), 2)].map(Some));
    let removed = change(&mut all, SaChange::RemoveOutbound(index, spi(2)));
    assert!(removed[0].is_ok());
    assert_eq!(sent_by_all(&mut all), [(spi(1), 3), (spi(3), 2), (spi(0), 3)].map(Some));
    // Without one of its own it sends through that of all, whose numbers it shares.
    assert!(change(&mut all, SaChange::RemoveOutbound(index, spi(3)))[0].is_ok());
    let left = sent_by_all(&mut all);
    let of_all: Vec<_> = left[1..].iter().flatten().collect();
    assert!(of_all.iter().all(|(of, _)| *of == spi(0)) && of_all[0].1 != of_all[1].1, "{left:?}");
    // And through its own once the one of all is gone, which ends the others' way.
    assert!(change(&mut all, SaChange::RemoveOutbound(index, spi(0)))[0].is_ok());
    assert_eq!(sent_by_all(&mut all)[1..], [None, None]);
    assert_eq!(sent(&mut all[0]).map(|(spi, _)| spi), Some(spi(1)));
}

#[test]
fn the_renewed_sa_of_a_worker_waits_for_the_peer_and_hears_of_it_from_another() {
    let (mut all, _) = install_at(gateways::<3>(), tunnel(vec![own(1, 1)]));
    let index = spec(0).index();
    let from = UseFrom::PeersUseOf(spec(5).spi_from(Side::B));
    assert!(change(&mut all, SaChange::AddOutbound(index, Box::new(own(3, 1)), from))[0].is_ok());
    let from = UseFrom::PeersUseOf(spec(0).spi_from(Side::B));
    let of_all = Box::new(OutboundInstall {
        parameters: testudo_ipsec::OutboundParameters { worker: None, ..own(4, 0).parameters },
        ..own(4, 0)
    });
    assert!(change(&mut all, SaChange::AddOutbound(index, of_all, from))[0].is_ok());
    assert_eq!(spis(&mut all), [spi(0), spi(1), spi(0)]);
    // The peer uses the SA that worker 1 waits for; its packet comes to worker 0.
    let mut peer = Gateway::with_tunnels(Side::B, &[spec(0)]);
    let of_peer = Box::new(spec(5).outbound(Side::B, &mut LeaseTwin::new(1 << 40)));
    let now = peer.now();
    let add = SaChange::AddOutbound(index, of_peer, UseFrom::Now);
    peer.worker.change_sa(add, now).expect("there is room");
    let sealed = peer.seal(Inner::udp("172.16.0.2", "10.0.0.1", 100).bytes());
    sealed.into_iter().for_each(|datagram| all[0].unprotected.push(datagram));
    all[0].turn();
    let events = all[0].worker.take_events();
    let took_over = events.iter().find(|event| event.kind.concerns_all()).copied().expect("it has seen it");
    let now = all[1].now();
    all[1].worker.change_sa(SaChange::Hear(took_over), now).expect("nothing refuses that");
    all[2].worker.change_sa(SaChange::Hear(took_over), now).expect("nothing refuses that");
    assert_eq!(spis(&mut all), [spi(0), spi(3), spi(0)], "that of all still waits");
}

/// What is counted once for all workers is counted by the one that sends.
#[test]
fn numbers_and_limits_of_an_sa_change_at_its_worker() {
    let (mut all, installed) = install_at(gateways::<3>(), tunnel(vec![own(1, 1)]));
    let index = spec(0).index();
    let advance = |number| SaChange::Advance(index, Direction::Seal, spi(1), number);
    assert!(change(&mut all, advance(1000))[0].is_ok());
    assert_eq!(sent(&mut all[1]), Some((spi(1), 1001)));
    let back = change(&mut all, advance(10));
    assert!(matches!(back[..], [Err(SaChangeError::FurtherOn { .. })]), "{back:?}");
    let hard = Limits { packets: Some(50), ..Limits::default() };
    let lifetime = Lifetime { hard, soft: Limits::default() };
    let spent = Spent { packets: 48, ..Spent::default() };
    let limited = change(&mut all, SaChange::Limit(index, Direction::Seal, spi(1), lifetime, spent));
    assert!(limited[0].is_ok());
    // One was sent before, 48 elsewhere.
    assert!(sent(&mut all[1]).is_some());
    assert_eq!(sent(&mut all[1]), None);
    assert_eq!(installed.more_outbound[0].counters.state(), SaState::Expired);
    assert_eq!(sent(&mut all[0]).map(|(spi, _)| spi), Some(spi(0)));
    assert_eq!(sent(&mut all[1]).map(|(spi, _)| spi), Some(spi(0)), "the fallback once its own has stopped");
}

/// Errors come to one worker, whichever has sent what they quote.
#[test]
fn the_worker_that_is_told_of_a_narrow_path_believes_it_of_all_sas() {
    for sender in 0..3 {
        let (mut all, _) = install_at(gateways::<3>(), tunnel(vec![own(1, 0), own(2, 1)]));
        let sealed = all[sender].seal(Inner::udp("10.0.0.1", "172.16.0.2", 1400).bytes());
        assert!(all[0].open(crate::path_mtu::too_big(&sealed[0], 1300)).is_empty());
        assert_eq!(all[0].drops(DropReason::IcmpBelieved), 1, "of worker {sender}");
        let told = all[0].worker.take_events();
        let narrow = |event: &&testudo_ipsec::Event| {
            matches!(event.kind, testudo_ipsec::EventKind::PathMtu { mtu: 1300, .. })
                && event.kind.concerns_all()
        };
        assert_eq!(told.iter().filter(narrow).count(), 1, "{told:?}");
    }
    // A number that was never sent is not believed of another worker's, either.
    let (mut all, _) = install_at(gateways::<3>(), tunnel(vec![own(1, 0), own(2, 1)]));
    let mut sealed = all[1].seal(Inner::udp("10.0.0.1", "172.16.0.2", 1400).bytes());
    sealed[0][27] = 9;
    assert!(all[0].open(crate::path_mtu::too_big(&sealed[0], 1300)).is_empty());
    assert_eq!(all[0].drops(DropReason::IcmpBelieved), 0);
}

/// Of eight workers one says so; the first one for a worker that is not there.
#[test]
fn limits_of_an_sa_of_one_worker_are_reported_once() {
    for owner in [1, 7] {
        let mut own = own(1, owner);
        let hard = Limits { time: Some(std::time::Duration::ZERO), ..Limits::default() };
        own.parameters.sa.lifetime = Lifetime { hard, soft: Limits::default() };
        let (mut all, _) = install_at(gateways::<3>(), tunnel(vec![own]));
        let told: Vec<_> = all
            .iter_mut()
            .map(|gateway| {
                let now = gateway.now();
                gateway.worker.tick(now);
                gateway.worker.take_events().len()
            })
            .collect();
        assert_eq!(told, if owner == 1 { [0, 1, 0] } else { [1, 0, 0] });
        assert_eq!(spis(&mut all), [spi(0); 3]);
    }
}

/// Workers of VPE have windows of their own, and an SA of AH over ESP has one worker.
#[test]
fn what_workers_cannot_have_each_is_refused() {
    let mut gateway = Gateway::new(spec(0).policies(Side::A), PoolSize(16, 2048), portable());
    let vpe = TunnelSpec { protocol: testudo_ipsec::IpsecProtocol::Vpe, ..spec(0) };
    let parameters = TunnelParameters { ..vpe.parameters(Side::A) };
    let (index, now) = (spec(0).index(), gateway.now());
    gateway.worker.change_sa(SaChange::AddTunnel(index, Box::new(parameters)), now).expect("there is room");
    let add = SaChange::AddOutbound(index, Box::new(own(1, 0)), UseFrom::Now);
    let error = gateway.worker.change_sa(add, now).expect_err("it is refused");
    let expected = InstallError::NotShareable { tunnel: vpe.parameters(Side::A).name };
    assert_eq!(error, SaChangeError::Add(expected.into()));
}
