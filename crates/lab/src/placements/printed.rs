//! The numbers that paper 004 prints, beside what this run has of the same.

use testudo_crypto::Suite;

use super::setup::Placement;
use super::{Found, Outcome};
use crate::generator::Sizes;
use crate::harness::Block;

/// The turnaround that the paper prints for a block, in microseconds, and its share in percent: of DES and of
/// 3DES alike, of packets of a size that it does not tell.
pub(super) fn of_block(
    suite: Option<Suite>,
    placement: Placement,
    block: Block,
) -> (Option<&'static str>, Option<&'static str>) {
    let is_known = suite.is_some_and(|suite| ["des-sha1", "3des-sha1"].contains(&suite.to_string().as_str()));
    match (block, placement) {
        (Block::Cryptography, Placement::None) if is_known => (Some("700"), Some("80 to 90")),
        (Block::Cryptography, Placement::Crypto | Placement::Both) if is_known => (Some("100"), None),
        _ => (None, None),
    }
}

/// Something that the paper prints, and what this run has of it.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Compared {
    pub(super) what: &'static str,
    pub(super) unit: &'static str,
    /// Of this run; `None` if it did not measure it.
    pub(super) here: Option<f64>,
    pub(super) paper: &'static str,
}

/// All of it.
pub(super) fn compared(found: &Found) -> Vec<Compared> {
    let of = |suite: &'static str, placement: Placement| {
        move |outcome: &&Outcome| outcome.setup.suite_name() == suite && outcome.setup.placement == placement
    };
    let best = |suite, placement| best(found, of(suite, placement));
    let gain = |suite, before, after: &[Placement]| {
        let after = after.iter().filter_map(|&after| gain(found, of(suite, before), of(suite, after)));
        after.reduce(f64::max)
    };
    let size = |best: Option<(f64, Sizes)>| match best {
        Some((_, Sizes::Bytes(bytes))) => Some(bytes as f64),
        _ => None,
    };
    let row = |what, unit, here, paper| Compared { what, unit, here, paper };
    let forwarding = best("bypass", Placement::Io).or(best("bypass", Placement::None));
    let des = best("des-sha1", Placement::Crypto).or(best("des-sha1", Placement::None));
    let offloaded = &[Placement::Crypto, Placement::Both];
    vec![
        row(
            "bypass: gain by I/O threads, up to (figure 3)",
            "%",
            gain("bypass", Placement::None, &[Placement::Io]),
            "60",
        ),
        row("bypass: size with the highest rate (figure 3)", "bytes", size(forwarding), "1024"),
        row(
            "DES: gain by offloading the cryptography, up to (figure 4)",
            "%",
            gain("des-sha1", Placement::None, offloaded),
            "350",
        ),
        row("DES: size with the highest rate (figure 4)", "bytes", size(des), "1450"),
        row(
            "3DES: highest rate, both offloaded (abstract)",
            "Mbit/s",
            best("3des-sha1", Placement::Both).map(|(rate, _)| rate),
            "45",
        ),
    ]
}

/// The highest capacity of those that `is_of` selects, in Mbit/s, and its size.
fn best(found: &Found, is_of: impl Fn(&&Outcome) -> bool) -> Option<(f64, Sizes)> {
    let rates =
        found.outcomes.iter().filter(is_of).filter_map(|outcome| Some((outcome.capacity()?, outcome.sizes)));
    rates.reduce(|best, other| if other.0 > best.0 { other } else { best })
}

/// How much higher the capacity of `after` is than that of `before`, in percent, for the size for which it is
/// most.
fn gain(found: &Found, before: impl Fn(&&Outcome) -> bool, after: impl Fn(&&Outcome) -> bool) -> Option<f64> {
    let rates = |outcome: &Outcome| -> Option<f64> {
        let others = found.outcomes.iter().filter(&before);
        let same = others.filter(|other| other.sizes == outcome.sizes).find_map(Outcome::capacity)?;
        Some((outcome.capacity()? / same.max(f64::MIN_POSITIVE) - 1.0) * 100.0)
    };
    found.outcomes.iter().filter(&after).filter_map(rates).reduce(f64::max)
}
