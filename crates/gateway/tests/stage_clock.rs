//! The cost of the stage clock: measured turns against others of the same run.

#![allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::expect_used,
    reason = "test data is made of small numbers, and a test says what must hold"
)]

#[path = "support/mod.rs"]
mod support;

use support::load::{Load, Loaded};
use testudo_crypto::Direction;
use testudo_ipsec::IpsecProtocol;
use testudo_packet::{MEASURED_OF, ticks};
use testudo_port_memory::LoopPort;
use testudo_wire::ip::Version;

/// At least this many turns of each kind go into the median.
const TURNS: usize = 2000;

const LOAD: Load = Load {
    direction: Direction::Seal,
    version: Version::V4,
    udp: true,
    protocol: IpsecProtocol::Esp,
    tunnels: 1,
    is_late: false,
};

/// The median ticks of measured turns and of the others.
fn medians(load: &mut Loaded, mut before: impl FnMut()) -> (u64, u64) {
    let (mut measured, mut others) = (Vec::new(), Vec::new());
    while measured.len() < TURNS {
        before();
        let batches = load.worker.outbound_stages().batches;
        let start = ticks();
        let moved = load.turn();
        let took = ticks().wrapping_sub(start);
        assert!(moved > 0, "the load has run dry");
        let kind = if load.worker.outbound_stages().batches > batches { &mut measured } else { &mut others };
        kind.push(took);
    }
    let median = |of: &mut [u64]| *of.select_nth_unstable(of.len() / 2).1;
    (median(&mut measured), median(&mut others))
}

/// Percent of all cycles when one turn in several is measured.
fn cost_percent((measured, other): (u64, u64)) -> f64 {
    (measured as f64 - other as f64) / f64::from(MEASURED_OF) / other as f64 * 100.0
}

/// The worst case for a busy worker: the smallest packets and no cryptography, which would take most of the
/// time.
#[test]
#[cfg_attr(debug_assertions, ignore = "measures what ships: `scripts/test.sh release`")]
fn the_stage_clock_costs_less_than_2_percent_of_full_batches() {
    let feed = LoopPort::new("load", LOAD.packets());
    let full = medians(&mut LOAD.worker(feed, LoopPort::discard("sink")), || {});
    let (feed, demand) = LoopPort::on_demand("load", LOAD.packets());
    let single = medians(&mut LOAD.worker(feed, LoopPort::discard("sink")), || demand.ask(1));
    for (name, turns) in [("bursts of 32", full), ("single packets", single)] {
        let (measured, other) = turns;
        let cost = cost_percent(turns);
        println!("{name}: {measured} cycles a measured turn, {other} any other: {cost:.2} % of all");
    }
    assert!(cost_percent(full) < 2.0, "the clock costs {:.2} %", cost_percent(full));
}
