//! What the IETF says about an algorithm.

use std::fmt;

/// RFC 8221's requirement level for an algorithm of ESP or AH, in the words of RFC 2119, from the best to the
/// worst. Algorithms that RFC 8221 does not name are neither demanded nor discouraged: `May`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Requirement {
    /// MUST be implemented.
    Must,
    /// MUST be implemented today, and is expected to lose that rank (RFC 8221 2).
    MustMinus,
    /// SHOULD be implemented.
    Should,
    /// MAY be implemented.
    May,
    /// SHOULD NOT be implemented or used.
    ShouldNot,
    /// MUST NOT be implemented or used.
    MustNot,
}

impl Requirement {
    /// Whether RFC 8221 speaks against the algorithm: it is here for peers that have nothing better.
    #[must_use]
    pub const fn is_legacy(self) -> bool {
        matches!(self, Self::ShouldNot | Self::MustNot)
    }

    /// The worse of two.
    pub(super) const fn worse(self, other: Self) -> Self {
        if (self as u8) < (other as u8) { other } else { self }
    }
}

impl fmt::Display for Requirement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Must => "MUST",
            Self::MustMinus => "MUST-",
            Self::Should => "SHOULD",
            Self::May => "MAY",
            Self::ShouldNot => "SHOULD NOT",
            Self::MustNot => "MUST NOT",
        })
    }
}
