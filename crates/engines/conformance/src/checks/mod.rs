//! The checks, by name.

mod chains;
mod contract;
mod forgeries;
mod headers;
mod keys;
mod known_answers;
mod shapes;

use crate::MakeEngine;

/// A check: returns the number of jobs that it checked, or what was wrong.
type Check = fn(MakeEngine<'_>) -> Result<u64, String>;

/// All checks, cheap and informative ones first.
pub(crate) const ALL: &[(&str, Check)] = &[
    ("self-test", known_answers::self_test),
    ("official vectors", known_answers::official),
    ("wycheproof", known_answers::wycheproof),
    ("empty and refused bursts", contract::prefixes),
    ("undeserved jobs fault", contract::faults),
    ("profile and flush", contract::profile_and_flush),
    ("every bit of a forged packet", forgeries::every_bit),
    ("long headers", headers::long),
    ("every length", shapes::every_length),
    ("every alignment", shapes::every_alignment),
    ("long packets", shapes::long_packets),
    ("packets in several buffers", chains::segmentations),
    ("forged packets in several buffers", chains::forgeries),
    ("mixed batches", contract::mixed_batches),
    ("removal and reuse of keys", keys::reuse),
    ("many keys", keys::many),
];
