//! Mean and confidence interval.

/// Of 95 % of a normal distribution.
const Z: f64 = 1.959_963_985;

/// The mean of several measurements, and half of its 95 % confidence interval.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Mean {
    pub(super) mean: f64,
    /// Infinite for one measurement: it says nothing of how far others may be.
    pub(super) half_width: f64,
    pub(super) count: usize,
}

impl Mean {
    /// Of at least one value.
    pub(super) fn of(values: &[f64]) -> Self {
        let count = values.len();
        let mean = values.iter().sum::<f64>() / count as f64;
        let freedom = count.saturating_sub(1) as f64;
        let variance = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / freedom;
        let half_width =
            if count > 1 { student(freedom) * (variance / count as f64).sqrt() } else { f64::INFINITY };
        Self { mean, half_width, count }
    }
}

/// The 97.5 % quantile of Student's t distribution: exact for 1 and 2 degrees of freedom, and an expansion
/// (Abramowitz and Stegun 26.7.5) for more, which is 0.3 % too low for 4 and less than that for more.
fn student(freedom: f64) -> f64 {
    if freedom < 1.5 {
        return 12.706_204_7;
    }
    if freedom < 2.5 {
        return 4.302_652_7;
    }
    let (z, n) = (Z, freedom);
    z + (z.powi(3) + z) / (4.0 * n)
        + (5.0 * z.powi(5) + 16.0 * z.powi(3) + 3.0 * z) / (96.0 * n.powi(2))
        + (3.0 * z.powi(7) + 19.0 * z.powi(5) + 17.0 * z.powi(3) - 15.0 * z) / (384.0 * n.powi(3))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Values of any table of the distribution.
    #[test]
    fn quantiles_are_those_of_the_tables() {
        for (freedom, expected) in [(1.0, 12.706), (2.0, 4.303), (4.0, 2.776), (9.0, 2.262), (59.0, 2.001)] {
            let found = student(freedom);
            assert!((found / expected - 1.0).abs() < 0.004, "{freedom}: {found}");
        }
    }

    #[test]
    fn an_interval_is_as_wide_as_the_values_are_apart() {
        let mean = Mean::of(&[9.0, 10.0, 11.0]);
        // A standard deviation of 1, over the root of 3.
        assert!(
            (mean.mean - 10.0).abs() < 1e-12 && (mean.half_width - 4.302_652_7 / 3f64.sqrt()).abs() < 1e-6
        );
        assert_eq!(Mean::of(&[5.0; 60]), Mean { mean: 5.0, half_width: 0.0, count: 60 });
        assert!(Mean::of(&[5.0]).half_width.is_infinite());
    }
}
