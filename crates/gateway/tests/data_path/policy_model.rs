//! For random policies and hostile datagrams, exactly those packets pass that a slow, plain model of RFC 4301
//! lets pass, and no part of a datagram is treated differently from the datagram as a whole.

use crate::support::policy_oracle::{Met, changing, changing_between, inbound, outbound};
use crate::support::random;
use fastrand::Rng;

/// Random sets of policies, and datagrams for each.
const SETS: usize = 2500;
const DATAGRAMS: usize = 12;

fn draw(run: fn(&mut dyn FnMut() -> u8, &mut Met)) -> Met {
    let seed = random::seed();
    // Printed if the test fails.
    println!("TESTUDO_SEED={seed:#x}");
    let mut met = Met::default();
    for set in 0..SETS {
        let mut random = Rng::with_seed(seed ^ (set as u64) << 32);
        run(&mut || random.u8(..), &mut met);
    }
    met
}

#[test]
fn every_packet_leaves_as_the_model_of_rfc_4301_says() {
    let met = draw(|choose, met| drop(outbound(choose, DATAGRAMS, met)));
    assert!(met.tunnel > 1000 && met.clear > 1000 && met.nothing > 1000 && met.populated > 500, "{met:?}");
}

#[test]
fn every_packet_comes_in_as_the_model_of_rfc_4301_says() {
    let met = draw(|choose, met| drop(inbound(choose, DATAGRAMS, met)));
    assert!(met.tunnel > 500 && met.clear > 500 && met.nothing > 1000, "{met:?}");
}

#[test]
fn every_packet_meets_the_policies_of_its_moment_as_the_model_says() {
    let met = draw(|choose, met| drop(changing(choose, 2 * DATAGRAMS, met)));
    assert!(met.tunnel > 500 && met.clear > 500 && met.nothing > 1000 && met.populated > 100, "{met:?}");
}

/// RFC 4301 7.3, 7.4: also of the datagrams of which a part has come before policies change.
#[test]
fn fragments_meet_the_policies_of_their_moment_as_the_model_says() {
    let met = draw(|choose, met| drop(changing_between(choose, 2 * DATAGRAMS, met)));
    assert!(met.tunnel > 500 && met.clear > 500 && met.nothing > 1000, "{met:?}");
}
