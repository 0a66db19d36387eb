//! What a lookup looks at: counted, so that the numbers are the same on every machine.

#![allow(clippy::expect_used, reason = "a test says what must hold")]

#[path = "support/mixes.rs"]
mod mixes;

use fastrand::Rng;
use mixes::{Mix, flow, policies};
use testudo_ipsec::{LookupCost, Spd};

/// Packets that are looked up.
const FLOWS: usize = 2000;

/// Tables, nodes and policies that a lookup touches: on average, and at most.
fn cost(mix: Mix, count: u32) -> (f64, u32) {
    let mut random = Rng::with_seed(7);
    let policies = policies(mix, count, &mut random);
    let spd = Spd::new(policies.clone()).expect("few ranges");
    let all = |cost: LookupCost| cost.tables + cost.nodes + cost.policies;
    let costs: Vec<u32> =
        (0..FLOWS).map(|_| all(spd.lookup_cost(&flow(mix, &policies, &mut random)))).collect();
    let average = f64::from(costs.iter().sum::<u32>()) / FLOWS as f64;
    (average, costs.into_iter().max().unwrap_or(0))
}

/// With 10,000 policies of any mix, a lookup touches a few dozen entries and not 10,000, and hardly more than
/// with 1,000. (Those of `Nested` are in the middle of 625 pairs of networks, one within the other.)
#[test]
fn a_lookup_among_10_000_policies_is_no_scan() {
    for mix in Mix::ALL {
        let [few, some, many] = [10, 1000, 10_000].map(|count| cost(mix, count));
        println!("{mix:?}: {few:.1?} {some:.1?} {many:.1?}");
        let (average, worst) = match mix {
            Mix::Sites => (3.0, 3),
            Mix::Nested => (150.0, 625),
            _ => (60.0, 90),
        };
        assert!(many.0 <= average && many.1 <= worst, "{mix:?}: {many:?} of 10,000");
        assert!(many.0 <= 3.0 * some.0.max(few.0), "{mix:?}: {some:?} of 1,000, {many:?} of 10,000");
    }
}
