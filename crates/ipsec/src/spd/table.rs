//! The policies whose prefixes have the same lengths, keyed by these prefixes: one hash table of the SPD's
//! index.

use super::flow::Flow;
use super::pair::Pair;
use super::policy::{Action, Policy, TunnelIndex, Verdict};
use super::selector::PrefixLengths;
use testudo_packet::prefetch;
use testudo_wire::ip::Version;

/// No policy.
pub(crate) const NONE: u32 = u32::MAX;

/// The answers that are no tunnel. They take the top of the `u32` space, so that every other value is a
/// tunnel's index and an answer stays four bytes; tunnels numbered that high get [`ASK_THE_POLICY`].
const ASK_THE_POLICY: u32 = u32::MAX;
const BYPASS: u32 = u32::MAX - 1;
const DISCARD: u32 = u32::MAX - 2;
const NO_POLICY: u32 = u32::MAX - 3;

/// The verdict on every packet between some addresses, if nothing else in it matters; otherwise, that the
/// policy must be matched in full.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Answer(u32);

impl Answer {
    /// Addresses do not decide.
    pub(crate) const ASK: Self = Self(ASK_THE_POLICY);
    /// No policy is for these addresses.
    pub(crate) const NONE: Self = Self(NO_POLICY);

    /// The answer of a policy for IPv4 packets.
    pub(crate) fn of(policy: &Policy) -> Self {
        Self(if policy.selector.is_by_address_alone() { encoded(policy.action) } else { ASK_THE_POLICY })
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
}

/// One slot of a table.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Slot {
    key: u64,
    /// The first policy with these prefixes; [`NONE`] in a free slot.
    pub(crate) policy: u32,
    /// The policy's action, if the prefixes alone decide and the key holds all their bits.
    answer: Answer,
}

/// Four to a cache line: a lookup that the prefixes decide touches one.
const _: () = assert!(size_of::<Slot>() == 16);

const FREE: Slot = Slot { key: 0, policy: NONE, answer: Answer(ASK_THE_POLICY) };

impl Slot {
    /// The verdict on every packet that this slot is found for, if nothing but its addresses matters.
    #[inline]
    pub(crate) fn answer(&self) -> Answer {
        self.answer
    }
}

fn encoded(action: Action) -> u32 {
    match action {
        Action::Protect(TunnelIndex(tunnel)) if tunnel < NO_POLICY => tunnel,
        Action::Protect(_) => ASK_THE_POLICY,
        Action::Bypass => BYPASS,
        Action::Discard => DISCARD,
    }
}

/// The table: open addressing with linear probing, at most half full. Only the operator's policies are in it,
/// so no arriving packet can make it slow.
#[derive(Debug)]
pub(crate) struct Table {
    lengths: PrefixLengths,
    /// Both masks, where the table is for IPv4: keys are masked pairs of addresses.
    v4: Option<u64>,
    /// Lowest index of any policy in this table: tables are ordered by it, and a lookup ends at the first
    /// that cannot win.
    pub(crate) first: u32,
    slots: Box<[Slot]>,
}

impl Table {
    /// The table of the policies at `indices`, which are ascending and all have these prefix lengths. Those
    /// with the same prefixes are chained in `next`.
    pub(crate) fn new(
        lengths: PrefixLengths,
        indices: &[u32],
        policies: &[Policy],
        next: &mut [u32],
    ) -> Self {
        let slots = vec![FREE; (indices.len() * 2).next_power_of_two()].into();
        let masks = Pair::new(lengths.local_mask, lengths.remote_mask).0;
        let v4 = (lengths.version == Some(Version::V4)).then_some(masks);
        let mut table = Self { lengths, v4, first: indices.first().copied().unwrap_or(NONE), slots };
        // Backwards, so that each is chained before those that come after it.
        for &index in indices.iter().rev() {
            table.put(index, &policies[index as usize], next);
        }
        table
    }

    fn put(&mut self, index: u32, policy: &Policy, next: &mut [u32]) {
        let key = self.key(policy.selector.networks());
        let mask = self.slots.len() - 1;
        let mut at = self.home(key);
        while self.slots[at & mask].policy != NONE && self.slots[at & mask].key != key {
            at += 1;
        }
        let slot = &mut self.slots[at & mask];
        next[index as usize] = slot.policy;
        // IPv4 addresses are the key; IPv6 addresses are hashed to it, so the policy itself must be compared.
        let is_v4 = self.lengths.version == Some(Version::V4);
        let answer = if is_v4 { Answer::of(policy) } else { Answer(ASK_THE_POLICY) };
        *slot = Slot { key, policy: index, answer };
    }

    /// The slot of the prefixes that hold the flow's addresses; if keys are hashes, it may belong to other
    /// prefixes.
    #[inline]
    pub(crate) fn lookup(&self, flow: &Flow) -> Option<Slot> {
        if self.lengths.version.is_some_and(|v| v != flow.version()) {
            return None;
        }
        let PrefixLengths { local_mask, remote_mask, .. } = self.lengths;
        self.find(self.key((flow.local() & local_mask, flow.remote() & remote_mask)))
    }

    /// The same for a pair of IPv4 addresses; `None` if this table is for something else.
    #[inline(always)]
    pub(crate) fn lookup_v4(&self, pair: Pair) -> Option<Option<Slot>> {
        self.v4.map(|mask| self.find(pair.0 & mask))
    }

    /// Whether this table is for IPv6 alone.
    pub(crate) fn is_v6(&self) -> bool {
        self.lengths.version == Some(Version::V6)
    }

    #[inline(always)]
    fn find(&self, key: u64) -> Option<Slot> {
        let mut at = self.home(key);
        loop {
            let slot = self.slots.get(at & (self.slots.len() - 1))?;
            if slot.policy == NONE {
                return None;
            }
            if slot.key == key {
                return Some(*slot);
            }
            at += 1;
        }
    }

    /// Prefetches the slot of a lookup.
    #[inline]
    pub(crate) fn prefetch(&self, local: u128, remote: u128) {
        self.prefetch_key(self.key((local & self.lengths.local_mask, remote & self.lengths.remote_mask)));
    }

    /// Likewise for a pair of IPv4 addresses, if this table is for them.
    #[inline(always)]
    pub(crate) fn prefetch_v4(&self, pair: Pair) {
        if let Some(mask) = self.v4 {
            self.prefetch_key(pair.0 & mask);
        }
    }

    #[inline(always)]
    fn prefetch_key(&self, key: u64) {
        if let Some(slot) = self.slots.get(self.home(key) & (self.slots.len() - 1)) {
            prefetch(slot);
        }
    }

    /// A 64-bit key of two masked addresses: lossless for IPv4, a hash for others.
    #[inline]
    fn key(&self, (local, remote): (u128, u128)) -> u64 {
        if self.v4.is_some() {
            return Pair::new(local, remote).0;
        }
        let low_64 = |n: u128| u64::try_from(n & u128::from(u64::MAX)).unwrap_or(0);
        [low_64(local >> 64), low_64(local), low_64(remote >> 64), low_64(remote)]
            .into_iter()
            .fold(0, |hash: u64, word| (hash.rotate_left(23) ^ word).wrapping_mul(MULTIPLIER))
    }

    #[inline]
    fn home(&self, key: u64) -> usize {
        let bits = self.slots.len().trailing_zeros();
        usize::try_from(key.wrapping_mul(MULTIPLIER) >> (u64::BITS - bits)).unwrap_or(0)
    }
}

/// Fibonacci hashing: the high bits of the product are well spread even for neighbouring networks.
const MULTIPLIER: u64 = 0x9E37_79B9_7F4A_7C15;

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
