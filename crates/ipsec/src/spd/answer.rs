//! The verdict on all packets between two prefixes, in four bytes.

use super::policy::{Action, Policy, TunnelIndex, Verdict};

/// The answers that are no tunnel. They take the top of the `u32` space, so that every other value is a
/// tunnel's index and an answer stays four bytes; tunnels numbered that high get [`ASK_THE_POLICY`].
const ASK_THE_POLICY: u32 = u32::MAX;
const BYPASS: u32 = u32::MAX - 1;
const DISCARD: u32 = u32::MAX - 2;
const NO_POLICY: u32 = u32::MAX - 3;

/// The verdict on every packet between some addresses, if nothing else in it matters; otherwise, that the
/// policy must be matched in full.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Answer(u32);

impl Answer {
    /// Addresses do not decide.
    pub(crate) const ASK: Self = Self(ASK_THE_POLICY);
    /// No policy is for these addresses.
    pub(crate) const NONE: Self = Self(NO_POLICY);

    /// The answer of a policy to packets of which its addresses are all that it asks for.
    pub(super) fn of(policy: &Policy) -> Self {
        Self(encoded(policy.action))
    }

    /// The answer that names a tunnel; `None` for a tunnel whose index is too high to be an answer.
    #[inline]
    pub(crate) fn protect(tunnel: TunnelIndex) -> Option<Self> {
        Some(Self(encoded(Action::Protect(tunnel)))).filter(|answer| *answer != Self::ASK)
    }

    /// The verdict; `None` if the policy must be matched in full.
    #[inline(always)]
    pub(crate) fn verdict(self) -> Option<Verdict> {
        match self.0 {
            ASK_THE_POLICY => None,
            NO_POLICY => Some(Verdict::NoPolicy),
            BYPASS => Some(Verdict::Policy(Action::Bypass)),
            DISCARD => Some(Verdict::Policy(Action::Discard)),
            tunnel => Some(Verdict::Policy(Action::Protect(TunnelIndex(tunnel)))),
        }
    }

    /// As half of a slot.
    #[inline(always)]
    pub(super) fn to_bits(self) -> u32 {
        self.0
    }

    #[inline(always)]
    pub(super) fn from_bits(bits: u32) -> Self {
        Self(bits)
    }
}

fn encoded(action: Action) -> u32 {
    match action {
        Action::Protect(TunnelIndex(tunnel)) if tunnel < NO_POLICY => tunnel,
        // Which packets it is for, more than addresses say.
        Action::Protect(_) | Action::Populate(_) => ASK_THE_POLICY,
        Action::Bypass => BYPASS,
        Action::Discard => DISCARD,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Otherwise a tunnel whose index equals "ask the policy" would pass the inbound check.
    #[test]
    fn no_tunnel_index_encodes_as_another_answer() {
        for number in [0, 1, NO_POLICY - 1] {
            let answer = Answer::protect(TunnelIndex(number)).unwrap();
            assert_eq!(answer.verdict(), Some(Verdict::Policy(Action::Protect(TunnelIndex(number)))));
        }
        for number in NO_POLICY..=u32::MAX {
            assert_eq!(Answer::protect(TunnelIndex(number)), None);
        }
    }
}
