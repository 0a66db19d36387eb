//! IPv4 packets by their two addresses, which decide most packets and fit a register.

use crate::selector::{Flow, PrefixLengths, Selector};
use std::sync::Arc;
use testudo_packet::{DropReason, prefetch};
use testudo_wire::ip::Version;
use testudo_wire::plain::PlainV4;

/// Two IPv4 addresses, with the one on the protected side in the upper half. They decide most IPv4 packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Pair(pub(crate) u64);

impl Pair {
    /// The pair of two addresses as numbers, of which the low 32 bits count.
    #[inline(always)]
    pub(crate) fn new(local: u128, remote: u128) -> Self {
        let low_32 = |n: u128| u64::try_from(n & 0xFFFF_FFFF).unwrap_or(0);
        Self(low_32(local) << 32 | low_32(remote))
    }

    /// The addresses of a packet that leaves: its source is local.
    #[inline(always)]
    pub(crate) fn outbound(header: &PlainV4) -> Self {
        Self(header.addresses)
    }

    /// The addresses of a packet that arrives: its destination is local.
    #[inline(always)]
    pub(crate) fn inbound(header: &PlainV4) -> Self {
        Self::of_arriving(header.addresses)
    }

    /// The same, from [`PlainV4::addresses`], whose halves are source and destination: the swap makes the
    /// destination local.
    #[inline(always)]
    pub(crate) fn of_arriving(addresses: u64) -> Self {
        Self(addresses.rotate_left(32))
    }
}

/// Pairs of IPv4 addresses with common prefixes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PairPrefix {
    mask: u64,
    network: u64,
}

impl PairPrefix {
    /// No pair at all: masked with 0, a pair is 0 and never equals 1.
    pub(crate) const NONE: Self = Self { mask: 0, network: 1 };

    /// The pairs that match a selector's prefixes; [`NONE`](Self::NONE) if these are for IPv6.
    pub(crate) fn of(selector: &Selector) -> Self {
        if [selector.local, selector.remote].iter().any(|prefix| prefix.version() == Some(Version::V6)) {
            return Self::NONE;
        }
        let PrefixLengths { local_mask, remote_mask, .. } = selector.prefix_lengths();
        let (local, remote) = selector.networks();
        Self { mask: Pair::new(local_mask, remote_mask).0, network: Pair::new(local, remote).0 }
    }

    #[inline]
    fn is_none(self) -> bool {
        self.mask == Self::NONE.mask && self.network == Self::NONE.network
    }

    #[inline(always)]
    pub(crate) fn contains(self, pair: Pair) -> bool {
        pair.0 & self.mask == self.network
    }
}

/// The packets that may come out of an SA.
#[derive(Debug, Clone)]
pub(crate) struct InboundSelectors {
    /// All that the list holds, if it is one selector that depends on addresses alone; otherwise no pair.
    pairs: PairPrefix,
    selectors: Arc<[Selector]>,
}

impl InboundSelectors {
    pub(crate) fn new(selectors: Arc<[Selector]>) -> Self {
        let pairs = match &*selectors {
            [selector] if selector.is_by_address_alone() => PairPrefix::of(selector),
            _ => PairPrefix::NONE,
        };
        Self { pairs, selectors }
    }

    /// Whether a plain IPv4 packet is allowed by its addresses alone; `false` decides nothing.
    #[inline(always)]
    pub(crate) fn holds_pair(&self, pair: Pair) -> bool {
        self.pairs.contains(pair)
    }

    /// Whether packets of this flow are allowed.
    #[inline]
    pub(crate) fn holds(&self, flow: &Flow) -> bool {
        self.selectors.iter().any(|selector| selector.matches(flow))
    }

    /// Why a packet of this flow, which the list does not [hold](Self::holds), is refused: it does not match,
    /// or hides the fields that would show whether it does.
    #[cold]
    #[inline(never)]
    pub(crate) fn reason_against(&self, flow: &Flow) -> DropReason {
        if flow.hides_fields() && self.selectors.iter().any(|selector| selector.concerns(flow)) {
            DropReason::FieldsHidden
        } else {
            DropReason::SelectorMismatch
        }
    }

    /// Prefetches what [`holds`](Self::holds) will need.
    #[inline]
    pub(crate) fn prefetch(&self) {
        if self.pairs.is_none() {
            prefetch(&*self.selectors);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::selector::{PortRange, Prefix};

    fn between(local: &str, remote: &str) -> Selector {
        let prefix = |text: &str| {
            let (address, length) = text.split_once('/').unwrap();
            Prefix::new(address.parse().unwrap(), length.parse().unwrap()).unwrap()
        };
        Selector::between(prefix(local), prefix(remote))
    }

    fn pair(local: &str, remote: &str) -> (Pair, Flow) {
        let flow = Flow::new(local.parse().unwrap(), remote.parse().unwrap(), 17, Some((1, 2)));
        (Pair::new(flow.local(), flow.remote()), flow)
    }

    #[test]
    fn one_selector_by_addresses_holds_the_pairs_of_its_flows() {
        let v4 = between("10.1.0.0/16", "10.2.3.4/32");
        let (ports, any) = (PortRange { first: 1, last: 1 }, Selector::ANY);
        for (selector, decides) in [
            (v4, true),
            (any, true),
            (Selector { local: Prefix::ANY, ..v4 }, true),
            (between("0.0.0.0/0", "0.0.0.0/0"), true),
            (between("fd00::/8", "fd00::/8"), false),
            (Selector { remote: between("::/0", "::/0").remote, ..v4 }, false),
            (Selector { local_ports: ports, ..v4 }, false),
            (Selector { protocol: Some(17), ..v4 }, false),
        ] {
            let inbound_selectors = InboundSelectors::new(Arc::from([selector]));
            for (local, remote) in [
                ("10.1.2.3", "10.2.3.4"),
                ("10.1.2.3", "10.2.3.5"),
                ("10.2.2.3", "10.2.3.4"),
                ("0.0.0.0", "0.0.0.0"),
            ] {
                let (pair, flow) = pair(local, remote);
                let expected = decides && selector.matches(&flow);
                assert_eq!(inbound_selectors.holds_pair(pair), expected, "{selector}: {local}, {remote}");
                assert_eq!(inbound_selectors.holds(&flow), selector.matches(&flow));
            }
        }
    }

    #[test]
    fn several_selectors_are_matched_one_by_one() {
        let inbound_selectors = InboundSelectors::new(Arc::from([
            between("10.1.0.0/16", "10.2.0.0/16"),
            between("10.3.0.0/16", "0.0.0.0/0"),
        ]));
        let (pair, flow) = pair("10.3.0.1", "192.0.2.1");
        assert!(!inbound_selectors.holds_pair(pair) && inbound_selectors.holds(&flow));
    }
}
