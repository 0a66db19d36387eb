//! What tells one run of a gateway from the next.

use super::seed::random_seed;
use std::sync::OnceLock;

/// A name that no other run of a gateway has.
pub(super) fn instance() -> &'static str {
    static INSTANCE: OnceLock<String> = OnceLock::new();
    // A system without random numbers starts no gateway.
    INSTANCE.get_or_init(|| format!("{:016x}", random_seed().unwrap_or_default()))
}
