//! The check of a decrypted packet against the selectors of its SA (RFC 4301 5.2, step 4).
//!
//! Few selectors are compared one by one. More have the index that policies have, which is made once and
//! shared by the tunnel's SAs: what a packet or an SA costs does not depend on how many there are. It is made
//! outside of the worker, but in transport mode, where the list is narrowed to the two hosts.

use super::database::Spd;
use super::flow::Flow;
use super::pair::{Pair, PairPrefix};
use super::policy::{Action, Policy};
use super::selector::{Fit, Selector};
use std::sync::Arc;
use testudo_packet::{DropReason, prefetch};

/// Up to this many selectors are compared one by one.
const COMPARED: usize = 8;

/// The selectors of the SAs of a tunnel. To make one of many takes as long as to make an SPD of them; to copy
/// it costs nothing.
#[derive(Debug, Clone)]
pub struct SaSelectors {
    list: Arc<[Selector]>,
    /// All of them, if they are many, as policies whose actions mean nothing.
    index: Option<Arc<Spd>>,
}

impl From<Arc<[Selector]>> for SaSelectors {
    fn from(list: Arc<[Selector]>) -> Self {
        let policies = || list.iter().map(|selector| Policy::new(*selector, Action::Bypass));
        // A list that no SPD takes, of more than a million, is compared one by one.
        let index = if list.len() > COMPARED { Spd::new(policies()).ok().map(Arc::new) } else { None };
        Self { list, index }
    }
}

impl FromIterator<Selector> for SaSelectors {
    fn from_iter<I: IntoIterator<Item = Selector>>(selectors: I) -> Self {
        Self::from(selectors.into_iter().collect::<Arc<[Selector]>>())
    }
}

impl SaSelectors {
    /// The selectors, in order.
    #[must_use]
    pub fn list(&self) -> &[Selector] {
        &self.list
    }
}

/// The packets that may come out of an SA.
#[derive(Debug, Clone)]
pub(crate) struct InboundSelectors {
    /// All that the list holds, if it is one selector that depends on addresses alone; otherwise no pair.
    pairs: PairPrefix,
    selectors: Searched,
}

/// How selectors are searched.
#[derive(Debug, Clone)]
enum Searched {
    Few(Arc<[Selector]>),
    Many(Arc<Spd>),
}

/// An SA has no room for more.
const _: () = assert!(size_of::<InboundSelectors>() == 32);

impl InboundSelectors {
    pub(crate) fn new(selectors: SaSelectors) -> Self {
        let pairs = match selectors.list() {
            [selector] => PairPrefix::all_of(selector),
            _ => PairPrefix::NONE,
        };
        let SaSelectors { list, index } = selectors;
        Self { pairs, selectors: index.map_or(Searched::Few(list), Searched::Many) }
    }

    /// Whether a plain IPv4 packet is allowed by its addresses alone; `false` decides nothing.
    #[inline(always)]
    pub(crate) fn holds_pair(&self, pair: Pair) -> bool {
        self.pairs.contains(pair)
    }

    /// Whether packets of this flow are allowed by selectors that are few. Else it is to be
    /// [searched](Self::search): apart, since most SAs have few, and a call here would cost their packets
    /// registers.
    #[inline(always)]
    pub(crate) fn holds(&self, flow: &Flow) -> bool {
        match &self.selectors {
            Searched::Few(list) => list.iter().any(|selector| selector.matches(flow)),
            Searched::Many(_) => false,
        }
    }

    /// Whether packets of a flow are allowed that the list does not [hold](Self::holds), or why not: it does
    /// not match, or hides the fields that would show whether it does.
    #[cold]
    #[inline(never)]
    pub(crate) fn search(&self, flow: &Flow) -> Result<(), DropReason> {
        let fit = match &self.selectors {
            Searched::Few(list) => list.iter().map(|selector| selector.fit(flow)).max().unwrap_or(Fit::No),
            Searched::Many(index) => index.fit(flow),
        };
        match fit {
            Fit::Sure => Ok(()),
            Fit::Perhaps => Err(DropReason::FieldsHidden),
            Fit::No => Err(DropReason::SelectorMismatch),
        }
    }

    /// Prefetches what [`holds`](Self::holds) will need.
    #[inline]
    pub(crate) fn prefetch(&self) {
        match &self.selectors {
            Searched::Few(list) if self.pairs.is_none() => prefetch(&**list),
            Searched::Few(_) => {}
            Searched::Many(index) => prefetch(&**index),
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
            let inbound_selectors = InboundSelectors::new([selector].into_iter().collect());
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
    fn one_of_several_selectors_is_enough() {
        let selectors = [between("10.1.0.0/16", "10.2.0.0/16"), between("10.3.0.0/16", "0.0.0.0/0")];
        let inbound_selectors = InboundSelectors::new(selectors.into_iter().collect());
        let (pair, flow) = pair("10.3.0.1", "192.0.2.1");
        assert!(!inbound_selectors.holds_pair(pair) && inbound_selectors.holds(&flow));
    }
}
