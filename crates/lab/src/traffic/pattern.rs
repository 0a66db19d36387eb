//! Data in which every position of the stream is recognisable.

/// Period of the pattern. Not a multiple of any size that networks or pages have, so that data lost,
/// duplicated or swapped in such sizes is out of step from then on.
const PERIOD: usize = 262_139;

/// How much of each read is compared: enough to notice a difference, too little to affect the measurement.
const COMPARED: usize = 2048;

/// An endless stream of random-looking bytes, the same every time.
pub(crate) struct Pattern(Vec<u8>);

impl Pattern {
    pub(crate) fn new() -> Self {
        let mut bytes = vec![0; PERIOD];
        fastrand::Rng::with_seed(1).fill(&mut bytes);
        Self(bytes)
    }

    /// The stream from `position` to the end of the period; never empty.
    pub(crate) fn from(&self, position: u64) -> &[u8] {
        &self.0[offset(position)..]
    }

    /// Whether `data`, received at `position`, begins as the stream does there.
    pub(crate) fn matches(&self, position: u64, data: &[u8]) -> bool {
        let expected = self.from(position);
        let length = data.len().min(COMPARED).min(expected.len());
        data[..length] == expected[..length]
    }
}

fn offset(position: u64) -> usize {
    let period = u64::try_from(PERIOD).unwrap_or(1);
    usize::try_from(position % period).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stream_goes_on_after_its_period() {
        let pattern = Pattern::new();
        let end = PERIOD as u64;
        assert_eq!(pattern.from(end - 1).len(), 1);
        assert_eq!(pattern.from(end), pattern.from(0));
        assert!(pattern.matches(end + 5, &pattern.from(5)[..100]));
    }

    #[test]
    fn a_changed_byte_and_a_missing_segment_are_noticed() {
        let pattern = Pattern::new();
        let mut piece = pattern.from(1000)[..1000].to_vec();
        piece[500] ^= 1;
        assert!(!pattern.matches(1000, &piece));
        assert!(!pattern.matches(1000, &pattern.from(2448)[..1000]));
        assert!(!pattern.matches(1000, &pattern.from(1000 + 65_536)[..1000]));
    }
}
