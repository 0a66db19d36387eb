//! A set of networks that finds those which hold an address without looking at each.

use super::address::Prefix;
use std::collections::{BTreeSet, HashSet};

/// Networks, filed by their length: the lengths in use are few, however many networks there are.
#[derive(Debug, Default)]
pub(crate) struct Networks {
    members: HashSet<Prefix>,
    /// IP version (whether it is 6) and length.
    lengths: BTreeSet<(bool, u8)>,
}

impl FromIterator<Prefix> for Networks {
    fn from_iter<I: IntoIterator<Item = Prefix>>(networks: I) -> Self {
        let mut set = Self::default();
        for network in networks {
            set.members.insert(network);
            set.lengths.insert((network.network().is_ipv6(), network.length()));
        }
        set
    }
}

impl Networks {
    /// The members that hold all of `network`, itself included, the widest first.
    pub(crate) fn holding(&self, network: Prefix) -> impl Iterator<Item = Prefix> {
        let ipv6 = network.network().is_ipv6();
        let lengths = self.lengths.range((ipv6, 0)..=(ipv6, network.length()));
        lengths
            .filter_map(move |(_, length)| Prefix::containing(network.network(), *length))
            .filter(|wider| self.members.contains(wider))
    }

    /// Whether `network` itself is a member.
    pub(crate) fn contains(&self, network: Prefix) -> bool {
        self.members.contains(&network)
    }
}
