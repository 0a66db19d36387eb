//! The check of a decrypted packet against the selectors of its SA (RFC 4301 5.2, step 4).

use super::flow::Flow;
use super::pair::{Pair, PairPrefix};
use super::selector::{Fit, Selector};
use std::sync::Arc;
use testudo_packet::{DropReason, prefetch};

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
            [selector] => PairPrefix::all_of(selector),
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
        if self.selectors.iter().any(|selector| selector.fit(flow) == Fit::Perhaps) {
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
    use crate::spd::{AddressRange, Direction, PortRange, Prefix};
    use testudo_wire::next_layer::NextLayerFields;

    fn between(local: &str, remote: &str) -> Selector {
        let prefix = |text: &str| {
            let (address, length) = text.split_once('/').unwrap();
            Prefix::new(address.parse().unwrap(), length.parse().unwrap()).unwrap()
        };
        Selector::between(prefix(local), prefix(remote))
    }

    fn pair(local: &str, remote: &str) -> (Pair, Flow) {
        let ports = Some(NextLayerFields::Ports(1, 2));
        let (local, remote) = (local.parse().unwrap(), remote.parse().unwrap());
        let flow = Flow::new(Direction::Outbound, local, remote, 17, ports);
        (Pair::new(flow.local(), flow.remote()), flow)
    }

    #[test]
    fn one_selector_by_addresses_holds_the_pairs_of_its_flows() {
        let v4 = between("10.1.0.0/16", "10.2.3.4/32");
        let range = AddressRange::new("10.2.3.0".parse().unwrap(), "10.2.3.4".parse().unwrap()).unwrap();
        let (ports, any) = (PortRange { first: 1, last: 1 }, Selector::ANY);
        for (selector, decides) in [
            (v4, true),
            (any, true),
            (Selector { local: AddressRange::ANY, ..v4 }, true),
            (Selector { remote: range, ..v4 }, false),
            (between("0.0.0.0/0", "0.0.0.0/0"), true),
            (between("fd00::/8", "fd00::/8"), false),
            (Selector { remote: between("::/0", "::/0").remote, ..v4 }, false),
            (Selector { local_ports: ports, ..v4 }, false),
            (Selector { protocol: 17.into(), ..v4 }, false),
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
