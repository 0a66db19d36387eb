//! Seeds that nobody can guess.

use std::io;

/// What nobody outside can guess.
pub(super) fn random_seed() -> io::Result<u64> {
    let mut bytes = [0; 8];
    let filled = aws_lc_rs::rand::fill(&mut bytes);
    filled.map_err(|_| io::Error::other("the system has no random numbers"))?;
    Ok(u64::from_ne_bytes(bytes))
}
