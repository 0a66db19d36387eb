//! A port that fails in the middle of a turn: what was taken before is finished, sent and counted.

use crate::late_engine::SharedEngine;
use crate::support::gateway::{PoolSize, portable};
use crate::support::{Gateway, Inner, LeaseTwin, PortHandle, Side, TunnelSpec};
use std::cell::Cell;
use std::time::Duration;
use testudo_crypto::{Engine, Suite};
use testudo_engine_late::LateConfig;
use testudo_gateway::{Clock, Commander, ServeError, serve};
use testudo_ipsec::Moment;
use testudo_packet::DropReason;

/// Several batches, so that both ports are called several times in a turn.
const PACKETS: usize = 200;

fn spec() -> TunnelSpec {
    TunnelSpec::new(0, Suite::AES128GCM16)
}

fn packets() -> Vec<Vec<u8>> {
    let packet = |n| Inner { seed: n as u64, ..Inner::udp("10.0.0.1", "172.16.0.2", 100) }.bytes();
    (0..PACKETS).map(packet).collect()
}

fn gateway(side: Side, engines: Vec<Box<dyn Engine>>) -> Gateway {
    let mut gateway = Gateway::new(spec().policies(side), PoolSize(512, 2048), engines);
    gateway.install(spec().install(side, &mut LeaseTwin::new(1 << 40), None));
    gateway
}

/// A gateway with packets to seal waiting, or with the same ones, sealed by another gateway, to open.
fn loaded(side: Side) -> Gateway {
    let mut sealer = gateway(Side::A, portable());
    packets().into_iter().for_each(|packet| sealer.protected.push(packet));
    if side == Side::A {
        return sealer;
    }
    sealer.settle();
    let opener = gateway(Side::B, portable());
    sealer.unprotected.take().into_iter().for_each(|datagram| opener.unprotected.push(datagram));
    opener
}

/// The ports that packets come in and go out by.
fn ports(side: Side, gateway: &Gateway) -> [PortHandle; 2] {
    let (protected, unprotected) = (gateway.protected.clone(), gateway.unprotected.clone());
    if side == Side::A { [protected, unprotected] } else { [unprotected, protected] }
}

/// The published counters agree with those of the ports.
fn assert_published(gateway: &Gateway) {
    let counters = gateway.worker.counters();
    assert_eq!(counters.protected().counters, gateway.worker.protected_port().counters());
    assert_eq!(counters.unprotected().counters, gateway.worker.unprotected_port().counters());
    assert_eq!(counters.drops(), *gateway.worker.pool().drops());
}

#[test]
fn whichever_port_call_fails_no_packet_that_was_taken_is_lost() {
    for side in [Side::A, Side::B] {
        for failing in [0, 1] {
            let calls = {
                let mut gateway = loaded(side);
                gateway.settle();
                ports(side, &gateway)[failing].calls()
            };
            assert!(calls >= 4, "the port is called several times: {calls}");
            for call in 0..calls {
                let mut gateway = loaded(side);
                let [arrivals, departures] = ports(side, &gateway);
                ports(side, &gateway)[failing].fail_after(call);
                while gateway.port_failures() == 0 {
                    gateway.turn();
                }
                let what = format!("side {side:?}, port {failing}, call {call}");
                assert_published(&gateway);
                gateway.assert_books_balance();
                let taken = PACKETS - arrivals.arriving();
                let (protected_waits, unprotected_waits) = gateway.worker.is_waiting();
                if failing == 0 {
                    assert!(
                        !protected_waits && !unprotected_waits,
                        "{what}: packets wait for a port that works"
                    );
                    assert_eq!(departures.take().len(), taken, "{what}");
                    gateway.settle();
                    assert_eq!(departures.take().len(), PACKETS - taken, "{what}");
                } else {
                    gateway.settle();
                    assert_eq!(departures.take().len(), PACKETS, "{what}");
                }
                gateway.assert_settled();
            }
        }
    }
}

/// A clock that advances by a millisecond with each reading.
struct SteppingClock(Cell<u64>);

impl Clock for SteppingClock {
    fn now(&self) -> Moment {
        self.0.set(self.0.get() + 1);
        Moment(Duration::from_millis(self.0.get()))
    }
}

#[test]
fn a_gateway_whose_port_fails_ends_with_the_failure_once_engines_are_drained() {
    let engine = SharedEngine::new(LateConfig::reliable(1));
    let mut gateway = gateway(Side::A, engine.before_portable());
    packets().into_iter().for_each(|packet| gateway.protected.push(packet));
    gateway.protected.fail_after(2);
    let (_commander, inbox) = Commander::channel().expect("a file descriptor");
    let end = serve(&mut gateway.worker, &inbox, &SteppingClock(Cell::new(0)), &mut |_| {});
    assert!(matches!(&end, Err(ServeError::Port(e)) if e.port == "protected"), "{end:?}");
    let taken = PACKETS - gateway.protected.arriving();
    assert!(taken > 0 && taken < PACKETS);
    assert_eq!(gateway.unprotected.take().len(), taken, "what the engine had left as well");
    assert_eq!(gateway.drops(DropReason::ShuttingDown), 0);
    gateway.assert_settled();
    assert_published(&gateway);
}
