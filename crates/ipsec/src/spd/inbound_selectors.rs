//! The check of a decrypted packet against the selectors of its SA (RFC 4301 5.2, step 4).
//!
//! Few selectors are compared one by one. More have the index that policies have, which is made once and
//! shared by the tunnel's SAs: what a packet or an SA costs does not depend on how many there are.
//!
//! In transport mode the packets of an SA are between its two ends, as outbound (RFC 4301 4.1): ESP does not
//! cover their addresses, so that wider selectors would let anybody on the way put others there. So the list
//! is narrowed to the two hosts.
//!
//! To narrow a long list and to make its index takes longer than packets should wait, and so does freeing
//! them. [`SaSelectors`] are made with both done, by who has the time; the worker only copies what points to
//! them, and gives back what it no longer needs. They remember the hosts that they were narrowed to: for an
//! SA between others they allow nothing.

use super::addresses::AddressRange;
use super::database::Spd;
use super::flow::Flow;
use super::pair::{Pair, PairPrefix};
use super::policy::{Action, Policy};
use super::selector::{Fit, Selector};
use crate::encap::Mode;
use crate::tunnel::Endpoints;
use std::net::IpAddr;
use std::sync::Arc;
use testudo_packet::{DropReason, prefetch};

/// Up to this many selectors are compared one by one.
const COMPARED: usize = 8;

/// The two hosts of an SA in transport mode, of which the other one may be unknown; none in tunnel mode.
type Hosts = Option<(IpAddr, Option<IpAddr>)>;

fn hosts(mode: Mode, endpoints: &Endpoints) -> Hosts {
    (mode == Mode::Transport).then_some((endpoints.local, endpoints.remote))
}

/// The packets that may come out of the SAs of a tunnel. To make them of many selectors, and to free them,
/// takes as long as with an SPD of as many policies; to copy them costs nothing.
#[derive(Debug, Clone)]
pub struct SaSelectors {
    list: Arc<[Selector]>,
    hosts: Hosts,
    searched: InboundSelectors,
}

impl Default for SaSelectors {
    /// No packets at all.
    fn default() -> Self {
        let list: Arc<[Selector]> = Arc::default();
        Self { searched: InboundSelectors::new(&list), list, hosts: None }
    }
}

impl SaSelectors {
    /// Those of a tunnel in this mode between these ends: in transport mode only packets between the two
    /// hosts (RFC 4301 4.1), and none while the other one is not known.
    #[must_use]
    pub fn new(selectors: impl IntoIterator<Item = Selector>, mode: Mode, endpoints: &Endpoints) -> Self {
        let (all, hosts) = (selectors.into_iter(), hosts(mode, endpoints));
        let list: Arc<[Selector]> = match hosts {
            None => all.collect(),
            Some((_, None)) => Arc::default(),
            Some((local, Some(remote))) => {
                let [local, remote] = [local, remote].map(AddressRange::host);
                let ours = all.filter(|s| s.local.covers(&local) && s.remote.covers(&remote));
                ours.map(|selector| Selector { local, remote, ..selector }).collect()
            }
        };
        Self { searched: InboundSelectors::new(&list), list, hosts }
    }

    /// The selectors, in order, as they are for these ends.
    #[must_use]
    pub fn list(&self) -> &[Selector] {
        &self.list
    }

    /// What SAs in this mode between these ends check. If the selectors were made for others, nothing passes:
    /// a wider check than policy wants must not come of a mistake elsewhere.
    pub(crate) fn for_sas(&self, mode: Mode, endpoints: &Endpoints) -> InboundSelectors {
        if self.hosts == hosts(mode, endpoints) { self.searched.clone() } else { Self::default().searched }
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
    /// As policies whose actions mean nothing.
    Many(Arc<Spd>),
}

/// An SA has no room for more.
const _: () = assert!(size_of::<InboundSelectors>() == 32);

impl InboundSelectors {
    pub(super) fn new(list: &Arc<[Selector]>) -> Self {
        let pairs = match **list {
            [ref selector] => PairPrefix::all_of(selector),
            _ => PairPrefix::NONE,
        };
        let policies = || list.iter().map(|selector| Policy::new(*selector, Action::Bypass));
        // A list that no SPD takes, of more than a million, is compared one by one.
        let index = if list.len() > COMPARED { Spd::new(policies()).ok() } else { None };
        let few = || Searched::Few(Arc::clone(list));
        Self { pairs, selectors: index.map_or_else(few, |index| Searched::Many(Arc::new(index))) }
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
    use crate::tunnel::Encapsulation;
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
            let inbound_selectors = InboundSelectors::new(&[selector].into());
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
        let inbound_selectors = InboundSelectors::new(&selectors.into());
        let (pair, flow) = pair("10.3.0.1", "192.0.2.1");
        assert!(!inbound_selectors.holds_pair(pair) && inbound_selectors.holds(&flow));
    }

    /// Whether these selectors let a packet from `remote` to `local` come out of an SA.
    fn allow(selectors: &InboundSelectors, local: &str, remote: &str) -> bool {
        let (_, flow) = pair(local, remote);
        selectors.holds(&flow) || selectors.search(&flow).is_ok()
    }

    /// RFC 4301 4.1: a transport mode SA is between two hosts, whatever the selectors allow, and however many
    /// they are.
    #[test]
    fn in_transport_mode_selectors_are_those_of_the_two_hosts() {
        let (us, peer) = ("192.0.2.1", "192.0.2.2");
        let ends = |remote: Option<&str>| Endpoints {
            local: us.parse().unwrap(),
            remote: remote.map(|text| text.parse().unwrap()),
            encapsulation: Encapsulation::Esp,
        };
        let many = || (0..20_u8).map(|n| between(&format!("192.0.{n}.0/24"), "192.0.2.0/24"));
        let by_port =
            (1..20_u16).map(|port| Selector { remote_ports: PortRange::one(port), ..Selector::ANY });
        for list in [vec![Selector::ANY], many().collect(), by_port.collect()] {
            let made = SaSelectors::new(list.iter().copied(), Mode::Transport, &ends(Some(peer)));
            assert!(made.list().iter().all(|selector| selector.count_prefix_pairs() == 1), "{made:?}");
            let checked = made.for_sas(Mode::Transport, &ends(Some(peer)));
            assert!(allow(&checked, us, peer), "{list:?}");
            assert!(!allow(&checked, us, "192.0.2.3") && !allow(&checked, "192.0.2.3", peer), "{list:?}");
            let unknown = SaSelectors::new(list.iter().copied(), Mode::Transport, &ends(None));
            assert!(!allow(&unknown.for_sas(Mode::Transport, &ends(None)), us, peer), "to whom is not known");
            // For ends or a mode that they were not made for, they allow nothing.
            let wide = SaSelectors::new(list.iter().copied(), Mode::Tunnel, &ends(Some(peer)));
            assert!(allow(&wide.for_sas(Mode::Tunnel, &ends(None)), us, "192.0.2.3"));
            for (of, mode, remote) in [
                (&wide, Mode::Transport, Some(peer)),
                (&made, Mode::Tunnel, Some(peer)),
                (&made, Mode::Transport, Some("192.0.2.3")),
                (&made, Mode::Transport, None),
            ] {
                assert!(!allow(&of.for_sas(mode, &ends(remote)), us, peer), "{mode:?}, {remote:?}");
            }
        }
    }
}
