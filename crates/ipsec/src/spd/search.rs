//! A search for the first policy that decides on a packet, while it goes on.

use super::flow::Flow;
use super::order::{LAST, Rank};
use super::selector::Fit;

/// What a lookup has looked at. The numbers depend on the policies and the packet alone, so that a test can
/// compare them where times would vary.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LookupCost {
    /// Hash tables that were searched: each is one cache line, or two.
    pub tables: u32,
    /// Nodes of tries that were visited.
    pub nodes: u32,
    /// Policies that were compared one by one.
    pub policies: u32,
}

/// A policy that was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Hit {
    pub(super) rank: Rank,
    /// Its slot.
    pub(super) policy: u32,
    /// It names OPAQUE for a field that the packet may hide.
    pub(super) names_opaque: bool,
}

impl Hit {
    const NONE: Self = Self { rank: LAST, policy: u32::MAX, names_opaque: false };
}

/// The search on behalf of one packet.
pub(super) struct Search<'f> {
    pub(super) flow: &'f Flow,
    /// The first policy that matches whatever the packet hides.
    sure: Hit,
    /// The first one that depends on what it hides.
    perhaps: Hit,
    pub(super) cost: LookupCost,
}

impl<'f> Search<'f> {
    pub(super) fn new(flow: &'f Flow) -> Self {
        Self { flow, sure: Hit::NONE, perhaps: Hit::NONE, cost: LookupCost::default() }
    }

    /// Policies from this rank on no longer matter.
    #[inline(always)]
    pub(super) fn limit(&self) -> Rank {
        // The policy itself may have another selector, which matches without OPAQUE.
        self.sure.rank + Rank::from(self.sure.names_opaque)
    }

    /// Notes a policy that fits so.
    #[inline]
    pub(super) fn note(&mut self, fit: Fit, hit: Hit) {
        let best = match fit {
            Fit::No => return,
            Fit::Perhaps => &mut self.perhaps,
            Fit::Sure => &mut self.sure,
        };
        if (hit.rank, hit.names_opaque) < (best.rank, best.names_opaque) {
            *best = hit;
        }
    }

    /// The first policy that matches for sure, and the first one before it that may match.
    pub(super) fn result(&self) -> (Option<Hit>, Option<Hit>) {
        let found = |hit: Hit| Some(hit).filter(|hit| hit.rank != LAST);
        (found(self.sure), found(self.perhaps).filter(|hit| hit.rank < self.sure.rank))
    }
}
