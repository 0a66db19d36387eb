//! The ordered policies, and an index that finds the first one that matches.

use super::flow::Flow;
use super::pair::{Pair, PairPrefix};
use super::policy::{Policy, Verdict};
use super::selector::{Fit, PrefixLengths};
use super::table::{Answer, NONE, Slot, Table};
use hashbrown::HashMap;

/// Up to this many policies a scan is faster than hashing.
const SCANNED: usize = 8;

/// Tables that are prefetched; most SPDs have one or two.
const PREFETCHED: usize = 4;

/// The ordered policies, with an index over them.
///
/// One hash table holds all policies whose prefixes have the same lengths (tuple space search, Srinivasan et
/// al. 1999), so that the cost of a lookup grows with the number of different lengths, not with the number of
/// policies.
#[derive(Debug, Default)]
pub struct Spd {
    policies: Vec<Policy>,
    /// For a short list: each policy's answer for IPv4 packets.
    pairs: Vec<(PairPrefix, Answer)>,
    tables: Vec<Table>,
    /// For each policy, the next one with the same prefixes; [`NONE`] after the last.
    next: Vec<u32>,
}

impl Spd {
    /// An SPD of these policies, in this order.
    #[must_use]
    pub fn new(policies: Vec<Policy>) -> Self {
        let next = vec![NONE; policies.len()];
        let mut spd = Self { pairs: Vec::new(), tables: Vec::new(), next, policies };
        if spd.policies.len() > SCANNED {
            spd.index();
        } else {
            let pairs = spd
                .policies
                .iter()
                .map(|policy| (PairPrefix::covering(&policy.selector), Answer::of(policy)));
            spd.pairs = pairs.collect();
        }
        spd
    }

    fn index(&mut self) {
        let mut members: Vec<(PrefixLengths, Vec<u32>)> = Vec::new();
        let mut place: HashMap<PrefixLengths, usize, foldhash::fast::RandomState> = HashMap::default();
        for (index, policy) in (0..NONE).zip(&self.policies) {
            let lengths = policy.selector.prefix_lengths();
            let table = *place.entry(lengths).or_insert_with(|| {
                members.push((lengths, Vec::new()));
                members.len() - 1
            });
            members[table].1.push(index);
        }
        for (lengths, indices) in members {
            let table = Table::new(lengths, &indices, &self.policies, &mut self.next);
            self.tables.push(table);
        }
    }

    /// The policies, in order.
    #[must_use]
    pub fn policies(&self) -> &[Policy] {
        &self.policies
    }

    /// Prefetches what [`verdict`](Self::verdict) will need for a flow between these addresses.
    #[inline]
    pub(crate) fn prefetch(&self, local: u128, remote: u128) {
        for table in self.tables.iter().take(PREFETCHED) {
            table.prefetch(local, remote);
        }
    }

    /// The same for [`answer_v4`](Self::answer_v4).
    #[inline]
    pub(crate) fn prefetch_v4(&self, pair: Pair) {
        for table in self.tables.iter().take(PREFETCHED) {
            table.prefetch_v4(pair);
        }
    }

    /// Whether prefetching for a verdict is worthwhile.
    #[must_use]
    #[inline]
    pub fn is_indexed(&self) -> bool {
        !self.tables.is_empty()
    }

    /// The verdict on a plain IPv4 packet between two addresses, if they decide.
    #[inline(always)]
    pub(crate) fn answer_v4(&self, pair: Pair) -> Answer {
        for (prefix, answer) in &self.pairs {
            if prefix.contains(pair) {
                return *answer;
            }
        }
        match self.tables.as_slice() {
            [] => Answer::NONE,
            // Gateways whose policies all have prefixes of the same lengths are common.
            [table] => {
                table.lookup_v4(pair).map_or(Answer::ASK, |slot| slot.map_or(Answer::NONE, |s| s.answer()))
            }
            tables => first_answer_v4(tables, pair),
        }
    }

    /// The verdict on `flow`.
    #[must_use]
    #[inline(always)]
    pub fn verdict(&self, flow: &Flow) -> Verdict {
        if self.is_indexed() {
            return self.verdict_by_tables(flow);
        }
        if flow.hides_fields() {
            return self.verdict_on_hidden_fields(flow);
        }
        for policy in &self.policies {
            if policy.selector.matches(flow) {
                return Verdict::Policy(policy.action);
            }
        }
        Verdict::NoPolicy
    }

    #[cold]
    fn verdict_on_hidden_fields(&self, flow: &Flow) -> Verdict {
        let first = self.policies.iter().find(|p| p.selector.fit(flow) != Fit::No);
        first.map_or(Verdict::NoPolicy, |policy| policy.verdict(flow))
    }

    fn verdict_by_tables(&self, flow: &Flow) -> Verdict {
        // Gateways whose policies all have prefixes of the same lengths are common.
        if let [table] = self.tables.as_slice() {
            let answer = table.lookup(flow).map_or(Answer::NONE, |slot| slot.answer());
            if let Some(verdict) = answer.verdict() {
                return verdict;
            }
        }
        let Some(slot) = self.best_slot(flow) else { return Verdict::NoPolicy };
        slot.answer().verdict().unwrap_or_else(|| match self.policies.get(slot.policy as usize) {
            Some(policy) => policy.verdict(flow),
            None => Verdict::NoPolicy,
        })
    }

    /// The first policy that selects `flow`, and its index in the order. For a flow that hides its protocol
    /// or ports, this may be a policy that only might select it: skipping that one could send in clear what
    /// it protects in the rest of the datagram (RFC 4301 7.4).
    #[must_use]
    pub fn lookup(&self, flow: &Flow) -> Option<(usize, &Policy)> {
        if self.is_indexed() {
            let index = self.best_slot(flow)?.policy as usize;
            return self.policies.get(index).map(|policy| (index, policy));
        }
        self.policies.iter().enumerate().find(|(_, p)| p.selector.fit(flow) != Fit::No)
    }

    /// The slot of the first policy that concerns the flow; its `policy` is that policy's index.
    #[inline]
    fn best_slot(&self, flow: &Flow) -> Option<Slot> {
        let mut best: Option<Slot> = None;
        for table in &self.tables {
            if best.is_some_and(|best| table.first >= best.policy) {
                break;
            }
            let Some(found) = table.lookup(flow).and_then(|slot| self.settle(slot, flow)) else { continue };
            if best.is_none_or(|best| found.policy < best.policy) {
                best = Some(found);
            }
        }
        best
    }

    /// Among the policies with a slot's prefixes, finds the first that concerns the flow.
    #[inline]
    fn settle(&self, mut slot: Slot, flow: &Flow) -> Option<Slot> {
        if slot.answer() != Answer::ASK {
            return Some(slot);
        }
        while self.policies.get(slot.policy as usize)?.selector.fit(flow) == Fit::No {
            slot.policy = *self.next.get(slot.policy as usize)?;
        }
        Some(slot)
    }
}

/// The answer for two IPv4 addresses of the first policy in any of `tables`; [`Answer::ASK`] if that policy
/// depends on more than addresses, or may be in a table for both versions.
#[inline(never)]
fn first_answer_v4(tables: &[Table], pair: Pair) -> Answer {
    let mut first: Option<Slot> = None;
    for table in tables {
        if first.is_some_and(|first| table.first >= first.policy) {
            break;
        }
        match table.lookup_v4(pair) {
            Some(None) => {}
            Some(Some(slot)) if first.is_some_and(|first| first.policy < slot.policy) => {}
            Some(slot) => first = slot,
            None if table.is_v6() => {}
            None => return Answer::ASK,
        }
    }
    first.map_or(Answer::NONE, |slot| slot.answer())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spd::{Action, AddressRange, Direction, PortRange, Prefix, Protocol, Selector, TunnelIndex};
    use proptest::prelude::*;
    use std::net::IpAddr;
    use testudo_wire::ip::Version;
    use testudo_wire::next_layer::NextLayerFields;

    fn address() -> impl Strategy<Value = IpAddr> {
        // Few distinct bits, so that prefixes overlap and nest often.
        prop_oneof![
            (0..4u32, 0..4u32).prop_map(|(a, b)| IpAddr::V4((0x0A00_0000 | a << 16 | b).into())),
            (0..4u128, 0..4u128).prop_map(|(a, b)| IpAddr::V6((0xFD00 << 112 | a << 64 | b).into())),
        ]
    }

    fn addresses() -> impl Strategy<Value = AddressRange> {
        let lengths = prop_oneof![Just(0u8), Just(8), Just(16), Just(30), Just(32)];
        let prefix = (address(), lengths)
            .prop_map(|(a, l)| Prefix::new(a, if a.is_ipv4() { l } else { l * 4 }).unwrap().into());
        let range = (address(), address())
            .prop_filter_map("one version, in order", |(first, last)| AddressRange::new(first, last).ok());
        prop_oneof![1 => Just(AddressRange::ANY), 6 => prefix, 2 => range]
    }

    fn ports() -> impl Strategy<Value = PortRange> {
        prop_oneof![
            Just(PortRange::ANY),
            Just(PortRange::OPAQUE),
            (0..4u16, 0..4u16).prop_map(|(a, b)| PortRange { first: a.min(b), last: a.max(b) })
        ]
    }

    fn policy() -> impl Strategy<Value = Policy> {
        let protocol = prop_oneof![
            3 => Just(Protocol::Any),
            1 => Just(Protocol::Opaque),
            2 => prop_oneof![Just(6u8), Just(17), Just(1)].prop_map(Protocol::Is),
        ];
        let action = prop_oneof![
            Just(Action::Bypass),
            Just(Action::Discard),
            any::<u32>().prop_map(|n| Action::Protect(TunnelIndex(n))),
        ];
        (addresses(), addresses(), protocol, ports(), ports(), action).prop_map(
            |(local, remote, protocol, local_ports, remote_ports, action)| Policy {
                selector: Selector { local, remote, protocol, local_ports, remote_ports },
                action,
            },
        )
    }

    /// Many policies whose prefixes have the same lengths; some of them depend on ports.
    fn one_shape() -> impl Strategy<Value = Vec<Policy>> {
        let prefix = |bits: u32| Prefix::new(IpAddr::V4(bits.into()), 31).unwrap().into();
        let policy = (0..4u32, 0..4u32, 0..4u8, policy()).prop_map(move |(local, remote, asks, other)| {
            let (local, remote) = (prefix(0x0A00_0000 | local), prefix(0x0A00_0000 | remote << 16));
            let selector = if asks == 0 { other.selector } else { Selector::ANY };
            Policy { selector: Selector { local, remote, ..selector }, ..other }
        });
        prop::collection::vec(policy, SCANNED + 1..30)
    }

    fn fields() -> impl Strategy<Value = (u8, Option<NextLayerFields>)> {
        let ports = (prop_oneof![Just(6u8), Just(17)], 0..4u16, 0..4u16)
            .prop_map(|(protocol, a, b)| (protocol, Some(NextLayerFields::Ports(a, b))));
        let message = (0..4u8).prop_map(|code| (1, Some(NextLayerFields::Icmp(0, code))));
        let none = prop_oneof![Just(6u8), Just(17), Just(1), Just(253)].prop_map(|protocol| (protocol, None));
        prop_oneof![2 => ports, 1 => message, 1 => none]
    }

    fn flow() -> impl Strategy<Value = Flow> {
        let direction = prop_oneof![Just(Direction::Outbound), Just(Direction::Inbound)];
        (direction, address(), address(), fields(), prop::bool::weighted(0.2))
            .prop_filter("one version", |(_, l, r, ..)| l.is_ipv4() == r.is_ipv4())
            .prop_map(|(direction, l, r, (protocol, fields), is_later)| {
                if is_later {
                    Flow::of_later_fragments(direction, l, r, protocol)
                } else {
                    Flow::new(direction, l, r, protocol, fields)
                }
            })
    }

    fn udp(local: IpAddr, remote: IpAddr) -> Flow {
        Flow::new(Direction::Outbound, local, remote, 17, Some(NextLayerFields::Ports(1, 2)))
    }

    #[test]
    fn a_policy_between_two_versions_matches_nothing() {
        let any = |address: &str| Prefix::new(address.parse().unwrap(), 0).unwrap();
        let nonsense = Selector::between(any("0.0.0.0"), any("::"));
        let mut policies = vec![Policy { selector: nonsense, action: Action::Discard }; 2 * SCANNED];
        policies.push(Policy { selector: Selector::ANY, action: Action::Bypass });
        let spd = Spd::new(policies);
        for (local, remote) in [("10.0.0.1", "10.0.0.2"), ("fd00::1", "fd00::2")] {
            let flow = udp(local.parse().unwrap(), remote.parse().unwrap());
            assert_eq!(spd.verdict(&flow), Verdict::Policy(Action::Bypass));
        }
    }

    #[test]
    fn addresses_decide_where_prefixes_have_several_lengths() {
        let between = |local: &str, remote: &str, length| {
            let prefix = |address: &str| Prefix::new(address.parse().unwrap(), length).unwrap();
            Selector::between(prefix(local), prefix(remote))
        };
        let tunnel = |n| Action::Protect(TunnelIndex(n));
        let mut policies: Vec<Policy> = (0..20)
            .map(|n: u32| Policy {
                selector: between("10.0.0.0", &format!("172.16.{n}.0"), 20 + u8::try_from(n % 5).unwrap()),
                action: tunnel(n),
            })
            .collect();
        policies.push(Policy { selector: between("fd00::", "fd01::", 64), action: Action::Discard });
        policies.push(Policy { selector: between("10.0.0.0", "172.16.0.0", 8), action: Action::Bypass });
        let spd = Spd::new(policies);
        for n in 0..=40u8 {
            let (local, remote) = (IpAddr::from([10, 0, 0, 1]), IpAddr::from([172, 16, n, 9]));
            let flow = udp(local, remote);
            let answer = spd.answer_v4(Pair::new(flow.local(), flow.remote()));
            assert_eq!(answer.verdict(), Some(spd.verdict(&flow)), "172.16.{n}.9");
        }
    }

    proptest! {
        #[test]
        fn the_index_finds_what_a_scan_finds(
            policies in prop::collection::vec(policy(), 0..60),
            flows in prop::collection::vec(flow(), 50),
        ) {
            let spd = Spd::new(policies.clone());
            for flow in flows {
                let expected = policies.iter().position(|p| p.selector.fit(&flow) != Fit::No);
                prop_assert_eq!(spd.lookup(&flow).map(|(index, _)| index), expected);
                let verdict = expected.map_or(Verdict::NoPolicy, |index| {
                    let Policy { selector, action } = policies[index];
                    if selector.matches(&flow) { Verdict::Policy(action) } else { Verdict::FieldsHidden }
                });
                prop_assert_eq!(spd.verdict(&flow), verdict);
            }
        }

        #[test]
        fn a_verdict_by_addresses_is_the_verdict_of_the_policies(
            policies in prop_oneof![
                prop::collection::vec(policy(), 0..SCANNED),
                one_shape(),
                prop::collection::vec(policy(), SCANNED + 1..60),
            ],
            flows in prop::collection::vec(flow(), 50),
        ) {
            let spd = Spd::new(policies.clone());
            // Prefixes of both versions are looked up by a hash, after which the policy itself is matched.
            let is_by_address =
                |s: &Selector| s.is_by_address_alone() && (policies.len() <= SCANNED || s.local != AddressRange::ANY && s.remote != AddressRange::ANY);
            let all_by_address = policies.iter().all(|policy| is_by_address(&policy.selector));
            for flow in flows.iter().filter(|flow| flow.version() == Version::V4) {
                let answer = spd.answer_v4(Pair::new(flow.local(), flow.remote())).verdict();
                if all_by_address || answer.is_some() {
                    prop_assert_eq!(answer, Some(spd.verdict(flow)));
                }
            }
        }
    }
}
