//! The policies whose prefixes have the same lengths, by these prefixes: one hash table of the SPD's index.

use crate::pair::Pair;
use crate::selector::{Flow, PrefixLengths};
use crate::spd::{Action, Policy, TunnelIndex, Verdict};
use testudo_packet::prefetch;
use testudo_wire::ip::Version;

/// No policy.
pub(crate) const NONE: u32 = u32::MAX;

/// The answers that are no tunnel.
const ASK_THE_POLICY: u32 = u32::MAX;
const BYPASS: u32 = u32::MAX - 1;
const DISCARD: u32 = u32::MAX - 2;
const NO_POLICY: u32 = u32::MAX - 3;

/// What becomes of every packet between some addresses, if nothing else of it matters; otherwise that the policy is to be asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Answer(u32);

impl Answer {
    /// Addresses do not decide.
    pub(crate) const ASK: Self = Self(ASK_THE_POLICY);
    /// No policy is for these addresses.
    pub(crate) const NONE: Self = Self(NO_POLICY);

    /// That of a policy for IPv4 packets.
    pub(crate) fn of(policy: &Policy) -> Self {
        Self(if policy.selector.is_by_address_alone() { encoded(policy.action) } else { ASK_THE_POLICY })
    }

    /// That a tunnel is to carry them; `None` for one of so high a number that no answer stands for it.
    #[inline]
    pub(crate) fn protect(tunnel: TunnelIndex) -> Option<Self> {
        Some(Self(encoded(Action::Protect(tunnel)))).filter(|answer| *answer != Self::ASK)
    }

    /// What that says; `None` if the policy is to be asked.
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

/// One place of a table.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Slot {
    key: u64,
    /// The first policy with these prefixes; [`NONE`] in a free place.
    pub(crate) policy: u32,
    /// The policy's action, if the prefixes alone decide and the key says all of them.
    answer: Answer,
}

/// Four to a cache line: a lookup that the prefixes decide touches one.
const _: () = assert!(size_of::<Slot>() == 16);

const FREE: Slot = Slot { key: 0, policy: NONE, answer: Answer(ASK_THE_POLICY) };

impl Slot {
    /// What becomes of every packet that this slot is found for, if nothing but its addresses matters.
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

/// The table: open addressing with linear probing, at most half full. Who configures policies chooses what is in it, so that no arriving
/// packet can make it slow.
#[derive(Debug)]
pub(crate) struct Table {
    lengths: PrefixLengths,
    /// Both masks, where the table is for IPv4: keys are masked pairs of addresses.
    v4: Option<u64>,
    /// Lowest place of any policy in this table: tables are ordered by it, and a lookup ends at the first that cannot win.
    pub(crate) first: u32,
    slots: Box<[Slot]>,
}

impl Table {
    /// The table of the policies at `indices`, which are ascending and all with these prefix lengths. Those with the same prefixes are chained in `next`.
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
        // Backwards, so that each is put before those that come after it.
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
        // The addresses of IPv4 are the key; those of IPv6 are hashed to it, so that the policy has to be looked at.
        let is_v4 = self.lengths.version == Some(Version::V4);
        let answer = if is_v4 { Answer::of(policy) } else { Answer(ASK_THE_POLICY) };
        *slot = Slot { key, policy: index, answer };
    }

    /// The slot of the prefixes that hold the flow's addresses; where keys are hashes, maybe that of others.
    #[inline]
    pub(crate) fn lookup(&self, flow: &Flow) -> Option<Slot> {
        if self.lengths.version.is_some_and(|v| v != flow.version()) {
            return None;
        }
        self.find(self.key(flow.masked(self.lengths.local_mask, self.lengths.remote_mask)))
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

    /// Asks for the memory of a lookup.
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

    /// 64 bits of two masked addresses: all of them for IPv4.
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

    /// Otherwise "ask the policy" would pass for the answer that the tunnel is right.
    #[test]
    fn no_answer_stands_for_a_tunnel_whose_number_is_another_answer() {
        for number in [0, 1, NO_POLICY - 1] {
            let answer = Answer::protect(TunnelIndex(number)).unwrap();
            assert_eq!(answer.verdict(), Some(Verdict::Policy(Action::Protect(TunnelIndex(number)))));
        }
        for number in NO_POLICY..=u32::MAX {
            assert_eq!(Answer::protect(TunnelIndex(number)), None);
        }
    }
}
