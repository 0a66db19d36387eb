//! Identifications of the datagrams that we fragment (RFC 791 3.2, RFC 6864 4, RFC 8200 4.5).
//!
//! A receiver tells the datagrams of one source, destination and protocol apart by it, so that it must not
//! come again while fragments of an earlier one may be on their way. Numbers are counted, since random ones
//! repeat sooner: in one of 256 counters that a datagram's addresses and protocol select, so that none
//! repeats before 2^16 datagrams (IPv4) or 2^32 (IPv6) of those that share the counter. RFC 6864 4.3 wants
//! two minutes between equal ones, which over IPv4 is 546 datagrams a second; above that, a receiver may join
//! parts of two datagrams, if one of each was lost. Their ICV is then wrong, so that nothing but these is
//! lost.
//!
//! Where the counters begin is drawn for each start (RFC 7739 3): who does not see the packets cannot guess
//! their numbers.
//!
//! Datagrams that are not fragmented need no number of their own: with DF set they are atomic (RFC 6864 4.1).

use crate::slots::SaRef;
use std::net::IpAddr;

/// Counters; pairs of addresses that share one only make each other skip numbers.
const COUNTERS: usize = 256;

/// SAs whose last flow labels are known.
const LABELS: usize = 256;

/// The next Identifications, and what else of outer headers is drawn from their seed.
#[derive(Debug)]
pub struct Identifications {
    counters: Box<[u32; COUNTERS]>,
    seed: u64,
    /// The flow label of the last packet of an SA, with that SA, by its slot: of those that share a place,
    /// the last one's.
    labels: Box<[Option<(SaRef, u32)>; LABELS]>,
}

impl Default for Identifications {
    fn default() -> Self {
        Self::new(0)
    }
}

impl Identifications {
    /// Counters that begin where `seed` says.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        let start = |at: usize| high_32(mix(seed ^ (at as u64) << 32));
        Self { counters: Box::new(std::array::from_fn(start)), seed, labels: Box::new([None; LABELS]) }
    }

    /// Notes the flow label of a packet of an SA.
    pub(crate) fn note_label(&mut self, sa: SaRef, label: u32) {
        self.labels[sa.slot() % LABELS] = Some((sa, label));
    }

    /// The flow label that a packet of an SA last had.
    pub(crate) fn last_label(&self, sa: SaRef) -> Option<u32> {
        self.labels[sa.slot() % LABELS].filter(|(of, _)| *of == sa).map(|(_, label)| label)
    }

    /// What the counters begin with, for other numbers that nobody else should foretell.
    pub(crate) fn seed(&self) -> u64 {
        self.seed
    }

    /// The Identification of the next datagram that is fragmented between these addresses. IPv4 has its low
    /// 16 bits.
    pub fn next(&mut self, source: IpAddr, destination: IpAddr, protocol: u8) -> u32 {
        let [source, destination] = [source, destination].map(folded);
        let key = mix(self.seed ^ source).rotate_left(32) ^ destination ^ u64::from(protocol) << 56;
        let at = high_32(mix(key)) as usize % COUNTERS;
        let counter = &mut self.counters[at];
        // A raw socket's kernel would fill in another one in place of 0 (raw(7)).
        *counter = counter.wrapping_add(if *counter & 0xFFFF == 0xFFFF { 2 } else { 1 });
        *counter
    }
}

/// An address as a number of 64 bits.
pub(crate) fn folded(address: IpAddr) -> u64 {
    match address {
        IpAddr::V4(v4) => v4.to_bits().into(),
        IpAddr::V6(v6) => {
            let bits = v6.to_bits();
            u64::try_from((bits ^ bits >> 64) & u128::from(u64::MAX)).unwrap_or(0)
        }
    }
}

fn high_32(bits: u64) -> u32 {
    u32::try_from(bits >> 32).unwrap_or(0)
}

/// Spreads the bits of a number (the finalizer of SplitMix64).
pub(crate) fn mix(bits: u64) -> u64 {
    let bits = (bits ^ bits >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let bits = (bits ^ bits >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    bits ^ bits >> 31
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    fn address(number: u32) -> IpAddr {
        IpAddr::V4((0xC000_0200 + number).into())
    }

    /// RFC 6864 4.3, as far as 16 bits go.
    #[test]
    fn no_identification_of_a_pair_comes_again_before_all_others_have() {
        let mut identifications = Identifications::new(7);
        for others in [0, 300] {
            let (mut seen, mut count) = (HashSet::new(), 0);
            while seen.insert(identifications.next(address(0), address(1), 50) & 0xFFFF) {
                count += 1;
                if others > 0 {
                    identifications.next(address(0), address(10 + count % others), 50);
                }
            }
            // Others take a number in 256 of this pair's counter.
            assert!(if others == 0 { count == 0xFFFF } else { count > 60_000 }, "{count}");
            assert!(!seen.contains(&0), "which the kernel would replace");
        }
    }

    #[test]
    fn starts_differ_by_pair_protocol_and_seed() {
        let first = |seed: u64, peer: u32, protocol: u8| {
            Identifications::new(seed).next(address(0), address(peer), protocol)
        };
        let all: HashSet<u32> = (0..10)
            .flat_map(|seed| {
                (0..10).flat_map(move |peer| [50, 17].map(|protocol| first(seed, peer, protocol)))
            })
            .collect();
        // Pairs that share a counter of one seed have the same start.
        assert!(all.len() > 180, "{}", all.len());
        assert_eq!(first(3, 4, 50), first(3, 4, 50), "a function of its seed");
    }
}
