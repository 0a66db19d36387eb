//! How the worker's rate changes while SAs are replaced: `cargo run --release -p testudo-gateway --example
//! sa_changes`. Seconds without changes, with 5,000 a second, and with as many as it takes, in turn; medians.

#![allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::expect_used,
    clippy::print_stdout,
    reason = "a measurement prints what it measured, and a failure ends it"
)]

#[path = "../tests/support/mod.rs"]
mod support;

use std::time::{Duration, Instant};
use support::load::Load;
use testudo_crypto::{Direction, PortableEngine};
use testudo_gateway::{Commander, MAX_SA_CHANGES, SaChange, SystemClock, UseFrom, WorkerCounters, serve};
use testudo_ipsec::{IpsecProtocol, TunnelIndex};
use testudo_port_memory::LoopPort;
use testudo_wire::ip::Version;

/// Tunnels, each with two SAs.
const TUNNELS: u32 = 10_000;
/// The rate that is asked for, in changes of SAs a second.
const WANTED: u32 = 5_000;
const TURN: Duration = Duration::from_secs(1);
const TURNS: usize = 7;

/// Sends changes: each tunnel in turn gets a second pair of SAs, which is used, and loses it again.
struct Changer {
    load: Load,
    commander: Commander,
    next: u32,
    changed: u64,
}

impl Changer {
    /// One command, with five changes for each of some tunnels.
    fn change(&mut self) {
        let mut changes = Vec::with_capacity(MAX_SA_CHANGES);
        while changes.len() + 5 <= MAX_SA_CHANGES {
            let (outbound, inbound) = self.load.next_sas(self.next);
            let (index, spi) = (TunnelIndex(self.next), outbound.parameters.sa.spi);
            let new_in = inbound.parameters.sa.spi;
            changes.push(SaChange::AddInbound(index, Box::new(inbound)));
            changes.push(SaChange::AddOutbound(index, Box::new(outbound), UseFrom::Now));
            changes.push(SaChange::UseOutbound(index, spi & !(1 << 31)));
            changes.push(SaChange::RemoveOutbound(index, spi));
            changes.push(SaChange::RemoveInbound(index, new_in));
            self.next = (self.next + 1) % TUNNELS;
        }
        let outcome = self.commander.change_sas(changes).expect("the worker answers");
        self.changed += outcome.iter().map(|result| u64::from(result.is_ok())).sum::<u64>();
        assert!(outcome.iter().all(Result::is_ok), "every change is made");
    }
}

/// Packets and changes a second of one turn, with at most `rate` changes.
fn turn(changer: &mut Changer, counters: &WorkerCounters, rate: Option<u32>) -> (f64, f64) {
    let packets = || counters.protected().counters.rx_packets;
    let (began, before, changed) = (Instant::now(), packets(), changer.changed);
    while began.elapsed() < TURN {
        let due = rate.map_or(u64::MAX, |rate| (began.elapsed().as_secs_f64() * f64::from(rate)) as u64);
        if changer.changed - changed < due {
            changer.change();
        } else {
            std::thread::sleep(Duration::from_micros(500));
        }
    }
    let seconds = began.elapsed().as_secs_f64();
    ((packets() - before) as f64 / seconds, (changer.changed - changed) as f64 / seconds)
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    values[values.len() / 2]
}

fn main() {
    let load = Load {
        direction: Direction::Seal,
        version: Version::V4,
        udp: false,
        protocol: IpsecProtocol::Esp,
        tunnels: TUNNELS,
        is_late: false,
    };
    let feed = LoopPort::new("load", load.packets());
    let engines = vec![Box::new(PortableEngine::new()) as _];
    let mut loaded = load.worker_with(engines, feed, LoopPort::discard("sink"));
    loaded.lease_all();
    let counters = loaded.worker.counters();
    let (commander, inbox) = Commander::channel().expect("an eventfd");
    let clock = SystemClock::default();
    let worker = std::thread::spawn(move || serve(&mut loaded.worker, &inbox, &clock, &mut |_| {}));
    let mut changer = Changer { load, commander, next: 0, changed: 0 };
    turn(&mut changer, &counters, Some(0));
    let mut measured = [const { Vec::new() }; 3];
    for _ in 0..TURNS {
        for (all, rate) in measured.iter_mut().zip([Some(0), Some(WANTED), None]) {
            all.push(turn(&mut changer, &counters, rate));
        }
    }
    for (all, name) in measured.into_iter().zip(["none", "5,000 a second", "as many as it takes"]) {
        let (packets, changes): (Vec<_>, Vec<_>) = all.into_iter().unzip();
        println!(
            "changes: {name}: {:.3} million packets, {:.0} changes a second",
            median(packets) / 1e6,
            median(changes)
        );
    }
    changer.commander.stop().expect("the worker takes it");
    worker.join().expect("it does not panic").expect("ports in memory do not fail");
}
