//! Renewals as fast as the gateways take them, while packets come as fast as they can.

use crate::played::Gateway;
use crate::ports::{Fate, Numbered, Wire};
use crate::{Pair, median};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use testudo_crypto::{Engine, PortableEngine};
use testudo_engine_vaes::VaesEngine;
use testudo_gateway::PortPair;
use testudo_packet::Pool;

/// Bytes of each packet.
const BYTES: usize = 1400;
/// How long packets pass without renewals, and how long with them, in turn.
const TURN: Duration = Duration::from_secs(1);
const TURNS: usize = 7;
/// How long packets may be under way.
const PATIENCE: Duration = Duration::from_secs(10);
/// How often it is looked whether they have arrived.
const POLL: Duration = Duration::from_micros(50);
/// How often SAs are renewed in turns that do so at a steady rate.
const A_SECOND: f64 = 100.0;

/// What passed in one turn, for each second: both ways, in packets; renewals.
struct Rates {
    packets: f64,
    renewals: f64,
}

struct Load {
    pair: Pair,
    fates: [Arc<Fate>; 2],
}

impl Load {
    fn new() -> Self {
        let mut wires = Wire::pair(512).into_iter();
        let mut fates = Vec::new();
        let gateways = [(0, 1_u32 << 24), (1, 2 << 24)].map(|(host, seed)| {
            let (numbered, fate) = Numbered::new(host, BYTES);
            fates.push(fate);
            let unprotected = Box::new(wires.next().unwrap());
            let ports = PortPair { protected: Box::new(numbered), unprotected };
            let mut engines: Vec<Box<dyn Engine>> = Vec::new();
            if let Ok(vaes) = VaesEngine::open() {
                engines.push(Box::new(vaes));
            }
            engines.push(Box::new(PortableEngine::new()));
            fates[host].stop.store(true, Ordering::Relaxed);
            Gateway::start(ports, Pool::new(4096, 2048), engines, seed)
        });
        let mut pair = Pair::new(gateways);
        pair.plays("negotiated", None, |_| {});
        let fates: [Arc<Fate>; 2] = fates.try_into().expect("two");
        fates.iter().for_each(|fate| fate.stop.store(false, Ordering::Relaxed));
        Self { pair, fates }
    }

    fn arrived(&self) -> u64 {
        self.fates.iter().map(|fate| fate.arrived.load(Ordering::Relaxed)).sum()
    }

    /// One turn, with at most so many renewals a second.
    fn turn(&mut self, a_second: f64) -> Rates {
        let (began, before, mut renewals) = (Instant::now(), self.arrived(), 0);
        while began.elapsed() < TURN {
            let due = began.elapsed().as_secs_f64() * a_second;
            if f64::from(renewals) < due {
                let fates = self.fates.clone();
                self.pair.renew(1, |_| arrives(&fates));
                renewals += 2;
            } else {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        let seconds = began.elapsed().as_secs_f64();
        let packets = (self.arrived() - before) as f64 / seconds;
        Rates { packets, renewals: f64::from(renewals) / seconds }
    }

    /// No more packets are sent; all that were have arrived.
    fn end(&self) {
        self.fates.iter().for_each(|fate| fate.stop.store(true, Ordering::Relaxed));
        for gateway in &self.pair.gateways {
            (0..1000).for_each(|_| gateway.turns());
        }
        let of = |count: fn(&Fate) -> u64| self.fates.each_ref().map(|fate| count(fate));
        let sent = of(|fate| fate.sent.load(Ordering::Relaxed));
        let [to_a, to_b] = of(|fate| fate.arrived.load(Ordering::Relaxed));
        let skipped = of(|fate| fate.skipped.load(Ordering::Relaxed));
        let late = of(|fate| fate.late.load(Ordering::Relaxed));
        let drops = self.pair.gateways.each_ref().map(Gateway::drops);
        println!("{sent:?} sent, {:?} arrived, numbers skipped {skipped:?}, late {late:?}", [to_b, to_a]);
        assert_eq!((sent, skipped, late), ([to_b, to_a], [0; 2], [0; 2]), "dropped: {drops:?}");
    }
}

/// Returns once all has arrived that was sent before: a daemon's message comes a round trip later than the
/// one before it, and an SA from the peer is deleted no sooner than packets under way may take.
fn arrives(fates: &[Arc<Fate>; 2]) {
    let count = |fate: &Fate| (fate.sent.load(Ordering::Relaxed), fate.arrived.load(Ordering::Relaxed));
    let ([(of_a, _), (of_b, _)], began) = (fates.each_ref().map(|fate| count(fate)), Instant::now());
    while count(&fates[0]).1 < of_b || count(&fates[1]).1 < of_a {
        assert!(began.elapsed() < PATIENCE, "packets are lost");
        // Not busy: both cores may be the workers'.
        std::thread::sleep(POLL);
    }
}

#[test]
#[ignore = "a measurement: make bench-ike"]
fn renewals_at_full_rate() {
    let mut load = Load::new();
    load.turn(0.0);
    let kinds = [("none", 0.0), ("100 a second", A_SECOND), ("as many as they take", f64::INFINITY)];
    let mut measured = [const { Vec::new() }; 3];
    for _ in 0..TURNS {
        for (all, (_, a_second)) in measured.iter_mut().zip(kinds) {
            all.push(load.turn(a_second));
        }
    }
    load.end();
    for (all, (name, _)) in measured.into_iter().zip(kinds) {
        let (packets, renewals): (Vec<_>, Vec<_>) =
            all.into_iter().map(|rates| (rates.packets, rates.renewals)).unzip();
        let packets = median(packets);
        println!(
            "renewals: {name}: {:.2} Gbit/s of {BYTES} bytes, both ways together, {:.0} renewals a second",
            packets * BYTES as f64 * 8.0 / 1e9,
            median(renewals)
        );
    }
}
