//! Lengths of frames.

use std::fmt;
use std::str::FromStr;

use fastrand::Rng;

/// What an Ethernet frame has beside its IP packet: header and check sequence.
pub const FRAME_EXTRA_BYTES: usize = 18;
/// The shortest and the longest frame (RFC 2544 section 9.1), with their check sequences.
pub const SHORTEST_FRAME_BYTES: usize = 64;
/// The longest frame.
pub const LONGEST_FRAME_BYTES: usize = 1518;

/// Intel's Internet mix as paper 002 has it, as (count, bytes of the frame): packets of 60, 536 and 1,360
/// bytes without their check sequence, 61.22, 23.47 and 15.31 % of them.
const IMIX: [(usize, usize); 3] = [(60, 64), (23, 540), (15, 1364)];
/// The simple mix: 7 to 4 to 1 of IP packets of 40 bytes, which a frame pads, 576 and 1,500.
const SIMPLE_IMIX: [(usize, usize); 3] = [(7, 64), (4, 594), (1, 1518)];

/// Lengths of the frames of a measurement, in bytes with their check sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Sizes {
    /// One length for all.
    Bytes(usize),
    /// Any from 64 to 1,518 bytes, all equally likely.
    Random,
    /// 61.22 % of 64, 23.47 % of 540, 15.31 % of 1,364 bytes (paper 002).
    Imix,
    /// 7 of 64, 4 of 594, 1 of 1,518 bytes.
    SimpleImix,
}

impl Sizes {
    /// The longest of them, in bytes.
    #[must_use]
    pub fn longest_bytes(self) -> usize {
        match self {
            Sizes::Bytes(bytes) => bytes,
            Sizes::Random | Sizes::SimpleImix => LONGEST_FRAME_BYTES,
            Sizes::Imix => 1364,
        }
    }

    /// Their mean in bytes: of many packets, where any length is possible.
    #[must_use]
    pub fn mean_bytes(self) -> f64 {
        match self {
            Sizes::Random => f64::midpoint(SHORTEST_FRAME_BYTES as f64, LONGEST_FRAME_BYTES as f64),
            _ => {
                let lengths = self.lengths(1, 0);
                lengths.iter().sum::<usize>() as f64 / lengths.len() as f64
            }
        }
    }

    /// At least `count` lengths in an order that follows from `seed`: whole rounds of a mix, so that its
    /// shares are exact.
    #[must_use]
    pub fn lengths(self, count: usize, seed: u64) -> Vec<usize> {
        let mut draw = Rng::with_seed(seed);
        let mix = match self {
            Sizes::Bytes(bytes) => return vec![bytes; count],
            Sizes::Random => {
                let any = |_| draw.usize(SHORTEST_FRAME_BYTES..=LONGEST_FRAME_BYTES);
                return (0..count).map(any).collect();
            }
            Sizes::Imix => IMIX,
            Sizes::SimpleImix => SIMPLE_IMIX,
        };
        let round: Vec<usize> =
            mix.into_iter().flat_map(|(count, bytes)| std::iter::repeat_n(bytes, count)).collect();
        let mut lengths = Vec::new();
        while lengths.len() < count {
            let mut next = round.clone();
            draw.shuffle(&mut next);
            lengths.append(&mut next);
        }
        lengths
    }
}

impl fmt::Display for Sizes {
    /// Name on the command line, in tables and JSON.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Sizes::Bytes(bytes) => write!(f, "{bytes}"),
            Sizes::Random => f.write_str("random"),
            Sizes::Imix => f.write_str("imix"),
            Sizes::SimpleImix => f.write_str("imix-simple"),
        }
    }
}

impl FromStr for Sizes {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "random" => return Ok(Sizes::Random),
            "imix" => return Ok(Sizes::Imix),
            "imix-simple" => return Ok(Sizes::SimpleImix),
            _ => {}
        }
        let range = SHORTEST_FRAME_BYTES..=LONGEST_FRAME_BYTES;
        text.parse().ok().filter(|bytes| range.contains(bytes)).map(Sizes::Bytes).ok_or_else(|| {
            format!(
                "expected the length of a frame from {SHORTEST_FRAME_BYTES} to {LONGEST_FRAME_BYTES} bytes, random, imix or imix-simple"
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shares(sizes: Sizes) -> Vec<(usize, f64)> {
        let lengths = sizes.lengths(4096, 9);
        assert!(lengths.len() >= 4096);
        let mut distinct = lengths.clone();
        distinct.sort_unstable();
        distinct.dedup();
        let count = |bytes| lengths.iter().filter(|length| **length == bytes).count();
        distinct.into_iter().map(|bytes| (bytes, count(bytes) as f64 / lengths.len() as f64)).collect()
    }

    #[test]
    fn mixes_have_the_shares_of_the_paper_and_of_7_to_4_to_1() {
        for (sizes, expected) in [
            (Sizes::Imix, [(64, 0.6122), (540, 0.2347), (1364, 0.1531)]),
            (Sizes::SimpleImix, [(64, 7.0 / 12.0), (594, 4.0 / 12.0), (1518, 1.0 / 12.0)]),
        ] {
            let found = shares(sizes);
            assert_eq!(found.len(), 3, "{sizes}");
            for ((bytes, share), (expected_bytes, expected)) in found.into_iter().zip(expected) {
                assert_eq!(bytes, expected_bytes);
                assert!((share - expected).abs() < 5e-5, "{sizes}: {share} of {bytes}");
            }
            let first: Vec<_> = sizes.lengths(12, 9);
            assert!(first.windows(2).any(|pair| pair[0] > pair[1]), "the mix is not shuffled");
        }
    }

    #[test]
    fn random_lengths_are_uniform_and_follow_from_the_seed() {
        let lengths = Sizes::Random.lengths(100_000, 3);
        assert_eq!(lengths, Sizes::Random.lengths(100_000, 3));
        assert_ne!(lengths, Sizes::Random.lengths(100_000, 4));
        assert_eq!((lengths.iter().min(), lengths.iter().max()), (Some(&64), Some(&1518)));
        for fifth in 0..5 {
            let share = lengths.iter().filter(|bytes| (**bytes - 64) / 291 == fifth).count();
            assert!((19_000..21_000).contains(&share), "{fifth}: {share}");
        }
    }

    #[test]
    fn a_length_or_a_name_is_read_and_printed_alike() {
        for text in ["64", "1518", "random", "imix", "imix-simple"] {
            assert_eq!(text.parse::<Sizes>().unwrap().to_string(), text);
        }
        for wrong in ["63", "1519", "", "-64", "IMIX", "64.0"] {
            assert!(wrong.parse::<Sizes>().unwrap_err().starts_with("expected the length"), "{wrong}");
        }
    }
}
