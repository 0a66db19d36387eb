//! Median and spread.

use crate::traffic::median;

/// Median and spread of several measurements of one thing.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(crate) struct Spread {
    pub(crate) median: f64,
    pub(crate) lowest: f64,
    pub(crate) highest: f64,
}

impl Spread {
    /// The spread of `values`; zeros if there are none.
    pub(crate) fn of(values: impl IntoIterator<Item = f64>) -> Self {
        let values: Vec<f64> = values.into_iter().collect();
        let fold = |pick: fn(f64, f64) -> f64| values.iter().copied().reduce(pick).unwrap_or(0.0);
        Self { median: median(&values).unwrap_or(0.0), lowest: fold(f64::min), highest: fold(f64::max) }
    }

    /// Whether the two ranges overlap.
    pub(crate) fn overlaps(&self, other: &Spread) -> bool {
        self.lowest <= other.highest && other.lowest <= self.highest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_between_lowest_and_highest() {
        let spread = Spread::of([5.0, 1.0, 9.0, 2.0]);
        assert_eq!(spread, Spread { median: 3.5, lowest: 1.0, highest: 9.0 });
        assert_eq!(Spread::of([7.0]), Spread { median: 7.0, lowest: 7.0, highest: 7.0 });
        assert_eq!(Spread::of([]), Spread::default());
    }

    #[test]
    fn spreads_that_share_a_value_overlap() {
        let (low, high) = (Spread::of([1.0, 2.0, 3.0]), Spread::of([3.0, 4.0]));
        assert!(low.overlaps(&high) && high.overlaps(&low) && low.overlaps(&low));
        assert!(!low.overlaps(&Spread::of([3.1])) && !Spread::of([3.1]).overlaps(&low));
    }
}
