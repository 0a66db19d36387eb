//! Chance from a seed.

/// SplitMix64 (Steele, Lea and Flood 2014): the same numbers on every machine, from a seed that a failure can name.
#[derive(Clone)]
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// A generator of its own for one purpose, so that drawing more for one does not shift all others.
    pub fn fork(&mut self) -> Self {
        Self(self.word())
    }

    /// 64 random bits.
    pub fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A number from 0 to `bound - 1`.
    pub fn below(&mut self, bound: usize) -> usize {
        (self.word() % bound.max(1) as u64) as usize
    }

    pub fn byte(&mut self) -> u8 {
        self.word() as u8
    }

    /// True once in `n` times.
    pub fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    pub fn fill(&mut self, bytes: &mut [u8]) {
        for chunk in bytes.chunks_mut(8) {
            let word = self.word().to_le_bytes();
            chunk.copy_from_slice(&word[..chunk.len()]);
        }
    }

    pub fn bytes(&mut self, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.fill(&mut bytes);
        bytes
    }
}

/// The seed of this run: `TESTUDO_SEED`, or a fixed one, so that a run without it is the same everywhere.
pub fn seed() -> u64 {
    std::env::var("TESTUDO_SEED").ok().map_or(0x7E57_0D0D, |text| {
        let parsed = text.strip_prefix("0x").map_or_else(|| text.parse(), |hex| u64::from_str_radix(hex, 16));
        parsed.expect("TESTUDO_SEED is a number, decimal or 0x…")
    })
}
