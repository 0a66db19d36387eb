//! The cost of the SPD: nanoseconds of a lookup and of a change, by kind and number of policies.
//!
//! `cargo run --release -p testudo-ipsec --example spd`
//!
//! Lookups are of packets that match one policy, and of others, in alternation, in an order that no cache
//! predicts; a figure is the best of several rounds, and beside it what a lookup looks at on average: hash
//! tables, nodes of tries, and policies. A change inserts a policy at a random place, or removes a random
//! one; its figures are the median and the longest of some thousands. Compare columns of one run only.

#![allow(clippy::expect_used, reason = "a measurement that cannot be made says why")]

#[path = "../tests/support/mixes.rs"]
mod mixes;

use fastrand::Rng;
use mixes::{Mix, flow, policies, policy};
use std::hint::black_box;
use std::time::Instant;
use testudo_ipsec::{Flow, PolicyId, Position, Spd};

/// Policies of the table of lookups, and of that of changes.
const LOOKED_UP: [u32; 4] = [10, 1000, 10_000, 100_000];
const CHANGED: [u32; 3] = [10, 1000, 100_000];
/// Packets of a round.
const FLOWS: usize = 10_000;
const ROUNDS: usize = 20;
/// Changes that are timed.
const CHANGES: u32 = 5000;

fn main() {
    let headings = LOOKED_UP.map(|count| format!("{count:>20}")).join("");
    println!("nanoseconds of a lookup (what it looks at), with this many policies\n{:12}{headings}", "");
    for mix in Mix::ALL {
        let cells = LOOKED_UP.map(|count| lookup(mix, count)).join("");
        println!("{:12}{cells}", format!("{mix:?}"));
    }
    let headings = CHANGED.map(|count| format!("{count:>20}")).join("");
    println!("\nnanoseconds of a change, median (longest), beside this many policies\n{:12}{headings}", "");
    for mix in Mix::ALL {
        let cells = CHANGED.map(|count| change(mix, count)).join("");
        println!("{:12}{cells}", format!("{mix:?}"));
    }
}

fn lookup(mix: Mix, count: u32) -> String {
    let mut random = Rng::with_seed(1);
    let policies = policies(mix, count, &mut random);
    let spd = Spd::new(policies.clone()).expect("few ranges");
    let flows: Vec<Flow> = (0..FLOWS).map(|_| flow(mix, &policies, &mut random)).collect();
    let mut best = f64::INFINITY;
    for _ in 0..ROUNDS {
        let start = Instant::now();
        for flow in &flows {
            black_box(spd.verdict(black_box(flow)));
        }
        best = best.min(start.elapsed().as_nanos() as f64 / FLOWS as f64);
    }
    let cost = |flow| {
        let cost = spd.lookup_cost(flow);
        f64::from(cost.tables + cost.nodes + cost.policies)
    };
    let looked_at = flows.iter().map(cost).sum::<f64>() / FLOWS as f64;
    format!("{:>20}", format!("{best:.0} ({looked_at:.1})"))
}

fn change(mix: Mix, count: u32) -> String {
    let mut random = Rng::with_seed(1);
    let mut spd = Spd::new(policies(mix, count, &mut random)).expect("few ranges");
    let mut installed: Vec<PolicyId> = spd.policies().map(|(id, _)| id).collect();
    let mut times = Vec::new();
    for number in 0..CHANGES {
        let at = random.usize(..installed.len());
        let policy = policy(mix, count + number, &mut random);
        let start = Instant::now();
        let added = spd.insert(Position::After(installed[at]), policy).expect("few ranges");
        times.push(start.elapsed().as_nanos());
        installed.push(added);
        let gone = installed.swap_remove(random.usize(..installed.len()));
        let start = Instant::now();
        drop(spd.remove(gone).expect("it is installed"));
        times.push(start.elapsed().as_nanos());
    }
    times.sort_unstable();
    let (median, longest) = (times[times.len() / 2], times[times.len() - 1]);
    format!("{:>20}", format!("{median} ({longest})"))
}
