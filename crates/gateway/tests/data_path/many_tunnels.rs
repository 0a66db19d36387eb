//! 10,000 tunnels: installed, used, and kept apart.

use crate::support::gateway::{PoolSize, portable};
use crate::support::{Gateway, Inner, LeaseTwin, Side, TunnelSpec, random_bytes};
use fastrand::Rng;
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;
use testudo_crypto::{KeyMaterial, Suite};
use testudo_gateway::{TunnelInstall, Update};
use testudo_ipsec::{Action, Encapsulation, Policy, Prefix, Selector, Spd, TunnelIndex};
use testudo_packet::DropReason;
use zeroize::Zeroizing;

const TUNNELS: u32 = 10_000;

/// Tunnel `n` carries 10.0.0.0/8 to 172.16.0.0 + n.
fn selector(n: u32, side: Side) -> Selector {
    let a = Prefix::new(IpAddr::V4(Ipv4Addr::new(10, 0, 0, 0)), 8).expect("a prefix");
    let b = Prefix::new(host(n), 32).expect("a prefix");
    if side == Side::A { Selector::between(a, b) } else { Selector::between(b, a) }
}

fn host(n: u32) -> IpAddr {
    IpAddr::V4((0xAC10_0000 + n).into())
}

fn install(n: u32, side: Side) -> TunnelInstall {
    let suite = Suite::ALL[n as usize % Suite::ALL.len()];
    let spec = TunnelSpec { window: 64, ..TunnelSpec::new(0, suite) };
    let spi = |from_a: bool| 0x10_0000 + n * 2 + u32::from(!from_a);
    let material = |spi: u32| random_bytes(&mut Rng::with_seed(spi.into()), suite.keying_material_bytes());
    let key = |spi| KeyMaterial::new(suite, Zeroizing::new(material(spi))).expect("a key");
    let is_a = side == Side::A;
    let (out_spi, in_spi) = (spi(is_a), spi(!is_a));
    let mut store = LeaseTwin::new(1 << 40);
    let mut tunnel = spec.install(side, &mut store, None);
    tunnel.index = TunnelIndex(n);
    tunnel.parameters.name = format!("tunnel {n}").into();
    tunnel.parameters = tunnel.parameters.selecting([selector(n, side)]);
    (tunnel.outbound.parameters.sa.spi, tunnel.outbound.key) = (out_spi, key(out_spi).into());
    (tunnel.inbound.parameters.sa.spi, tunnel.inbound.key) = (in_spi, key(in_spi).into());
    tunnel
}

fn gateway(side: Side) -> Gateway {
    let mut gateway = Gateway::new(Vec::new(), PoolSize(256, 2048), portable());
    let policies = (0..TUNNELS).map(|n| Policy::new(selector(n, side), Action::Protect(TunnelIndex(n))));
    let install = (0..TUNNELS).map(|n| install(n, side)).collect();
    let policies = Spd::new(policies).expect("few prefixes");
    let update = Update { install, policies: Some(Box::new(policies)), ..Update::default() };
    let now = gateway.now();
    let outcome = gateway.worker.update(update, now);
    assert!(outcome.iter().all(|(_, result)| result.is_ok()));
    gateway
}

fn packet(n: u32) -> Inner {
    Inner { destination: host(n), ..Inner::udp("10.0.0.1", "172.16.0.0", 60) }
}

#[test]
fn ten_thousand_tunnels_carry_traffic_each_under_its_own_key() {
    let (mut a, mut b) = (gateway(Side::A), gateway(Side::B));
    let mut random = Rng::with_seed(crate::support::random::seed());
    for n in (0..TUNNELS).chain((0..20_000).map(|_| random.usize(..TUNNELS as usize) as u32)) {
        let sealed = a.seal(packet(n).bytes());
        let spi = u32::from_be_bytes(*sealed[0][20..].first_chunk().expect("an SPI"));
        assert_eq!(spi, 0x10_0000 + n * 2);
        assert_eq!(b.open(sealed[0].clone()), [packet(n).bytes()]);
    }
    // A packet of one tunnel with the SPI of another of the same suite is a forgery. Its number is above all
    // that the other has received, whatever the seed, so that it is no replay.
    let mut swapped = (0..64).flat_map(|_| a.seal(packet(1).bytes())).last().expect("sealed");
    let other = 1 + Suite::ALL.len() as u32;
    swapped[20..24].copy_from_slice(&(0x10_0000u32 + 2 * other).to_be_bytes());
    assert!(b.open(swapped).is_empty());
    assert_eq!(b.drops(DropReason::AuthenticationFailed), 1);
    a.assert_settled();
    b.assert_settled();
}

#[test]
fn ten_thousand_tunnels_can_be_removed_and_installed_again() {
    let mut a = gateway(Side::A);
    let now = a.now();
    for _ in 0..3 {
        let remove = (0..TUNNELS).map(TunnelIndex).collect();
        let install = (0..TUNNELS).map(|n| install(n, Side::A)).collect();
        let outcome = a.worker.update(Update { remove, install, ..Update::default() }, now);
        assert!(outcome.iter().all(|(_, result)| result.is_ok()));
    }
    assert_eq!(a.seal(packet(9_999).bytes()).len(), 1);
    let remove = (0..TUNNELS).map(TunnelIndex).collect();
    a.worker.update(Update { remove, ..Update::default() }, now);
    assert!(a.seal(packet(5).bytes()).is_empty());
    assert_eq!(a.drops(DropReason::NoSa), 1);
}

/// Tunnels that fall silent together do not overflow the queue to the port: each gets its keepalive, some a
/// second later.
#[test]
fn keepalives_of_many_silent_tunnels_are_spread_out() {
    const SILENT: u32 = 2500;
    let mut a = Gateway::new(Vec::new(), PoolSize(4096, 2048), portable());
    let install = (0..SILENT).map(|n| {
        let mut tunnel = install(n, Side::A);
        tunnel.parameters.keepalive = Some(Duration::from_secs(20));
        tunnel.parameters.endpoints.encapsulation =
            Encapsulation::EspInUdp { local_port: 4500, remote_port: 4500 };
        tunnel
    });
    let update = Update { install: install.collect(), ..Update::default() };
    let now = a.now();
    assert!(a.worker.update(update, now).iter().all(|(_, outcome)| outcome.is_ok()));
    a.clock.advance(Duration::from_secs(20));
    let mut sent = Vec::new();
    for _ in 0..4 {
        a.worker.tick(a.now());
        a.settle();
        sent.push(a.worker.pool().created());
        a.clock.advance(Duration::from_secs(1));
    }
    assert_eq!(sent, [1024, 2048, 2500, 2500]);
    assert_eq!(a.worker.pool().drops().total(), 0);
}
