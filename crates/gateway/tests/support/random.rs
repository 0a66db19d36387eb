//! Randomness from a seed that a failure can print.

use fastrand::Rng;

/// `count` bytes of a generator.
pub fn random_bytes(random: &mut Rng, count: usize) -> Vec<u8> {
    let mut bytes = vec![0; count];
    random.fill(&mut bytes);
    bytes
}

/// The seed of this run: `TESTUDO_SEED`, or a fixed one, so that runs without it are reproducible.
pub fn seed() -> u64 {
    std::env::var("TESTUDO_SEED").ok().map_or(0x7E57_0D0D, |text| {
        let parsed = text.strip_prefix("0x").map_or_else(|| text.parse(), |hex| u64::from_str_radix(hex, 16));
        parsed.expect("TESTUDO_SEED is a number, decimal or 0x…")
    })
}
