//! Which suites a test runs through.

use testudo_crypto::Suite;

/// One suite of each kind that the data path can tell apart: by the lengths of IV and ICV, by the alignment,
/// and by whether the number is the nonce. For tests whose time grows with every suite: the engines'
/// conformance has all of them.
pub fn of_each_layout() -> Vec<Suite> {
    let layout = |suite: &Suite| {
        let (iv, icv, alignment) = (suite.iv_bytes(), suite.icv_bytes(), suite.alignment_bytes());
        (iv, icv, alignment, suite.is_combined())
    };
    let mut suites: Vec<Suite> = Vec::new();
    for suite in Suite::ALL {
        if !suites.iter().any(|known| layout(known) == layout(suite)) {
            suites.push(*suite);
        }
    }
    suites
}
