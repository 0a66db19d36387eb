//! How many lanes of a group share a packet.

use crate::work::Work;

/// The most lanes that share a packet: a whole group of the smallest ones.
pub(crate) const MOST_PARTS: usize = 32;
/// Bytes of a lane's part at least: four blocks of AES.
const PART_BYTES: usize = 64;

/// By what lanes are given to packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Parts {
    /// The suite, the direction and the length, in classes of powers of two.
    ByLength,
    /// As many for each packet, where suite and direction allow that it is shared.
    #[cfg(test)]
    Fixed(usize),
}

impl Parts {
    /// Lanes for a packet of which the kernel goes through `bytes` bytes, in groups of `lanes`: a power of
    /// two, at most `lanes`.
    pub(crate) fn of(self, work: &Work, bytes: usize, lanes: usize) -> usize {
        let wanted = match self {
            _ if !work.is_divided() => 1,
            Self::ByLength => (bytes / PART_BYTES).min(work.most_parts()),
            #[cfg(test)]
            Self::Fixed(parts) => parts,
        };
        power_of_two_up_to(wanted.min(lanes))
    }
}

/// The largest power of two up to `count`, or 1.
pub(crate) fn power_of_two_up_to(count: usize) -> usize {
    1 << count.max(1).ilog2()
}
