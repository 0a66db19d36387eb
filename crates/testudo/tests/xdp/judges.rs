//! Foreign implementations at the other end of the wire: what an AF_XDP port sends they open, and what they
//! seal it receives.

use crate::support::sites::Network;
use testudo_judge::harness::Suite;

pub fn tests(suite: Suite<'_, Network>) -> Suite<'_, Network> {
    suite
}
