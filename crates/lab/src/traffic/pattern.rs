//! Data in which every position of the stream is recognisable.

/// Period of the pattern. Not a multiple of any size that networks or pages have, so that data lost,
/// duplicated or swapped in such sizes is out of step from then on.
const PERIOD: usize = 262_139;

/// The longest piece that [`Pattern::message`] has whole.
pub(crate) const MAX_MESSAGE_BYTES: usize = 64 * 1024;

/// How much of each read is compared: enough to notice a difference, too little to affect the measurement.
const COMPARED: usize = 2048;

/// An endless stream of random-looking bytes, the same every time: a period, and its beginning again.
pub(crate) struct Pattern(Vec<u8>);

impl Pattern {
    pub(crate) fn new() -> Self {
        let mut bytes = vec![0; PERIOD];
        fastrand::Rng::with_seed(1).fill(&mut bytes);
        bytes.extend_from_within(..MAX_MESSAGE_BYTES);
        Self(bytes)
    }

    /// The stream from `position` to the end of the period; never empty.
    pub(crate) fn from(&self, position: u64) -> &[u8] {
        &self.0[offset(position)..PERIOD]
    }

    /// So many bytes of the stream from `position` on; [`MAX_MESSAGE_BYTES`] at most.
    pub(crate) fn message(&self, position: u64, bytes: usize) -> &[u8] {
        let start = offset(position);
        &self.0[start..start + bytes.min(MAX_MESSAGE_BYTES)]
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
    fn messages_are_whole_at_the_end_of_the_period_too() {
        let pattern = Pattern::new();
        let end = PERIOD as u64;
        let message = pattern.message(end - 10, 32_768);
        assert_eq!(message.len(), 32_768);
        assert_eq!((&message[..10], &message[10..]), (pattern.from(end - 10), &pattern.from(0)[..32_758]));
        assert_eq!(pattern.message(end - 1, 1 << 20).len(), MAX_MESSAGE_BYTES);
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
