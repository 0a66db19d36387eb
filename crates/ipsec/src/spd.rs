//! The security policy database (RFC 4301 4.4.1): an ordered list of policies, of which the first that matches decides.

use crate::selector::{Flow, Selector, Shape};
use hashbrown::HashMap;

/// The place of a tunnel in the worker's table of tunnels; it stays while the tunnel is unchanged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TunnelIndex(pub u32);

/// What becomes of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Action {
    /// Send it through a tunnel.
    Protect(TunnelIndex),
    /// Let it pass in clear.
    Bypass,
    /// Drop it.
    Discard,
}

/// One entry of the SPD.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Policy {
    /// What it applies to.
    pub selector: Selector,
    /// What becomes of that.
    pub action: Action,
}

/// What the SPD says of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Verdict {
    /// This policy decides.
    Policy(Action),
    /// No policy names it.
    NoPolicy,
    /// It is a fragment that hides its ports, and the first policy that concerns it asks for them.
    PortsHidden,
}

/// Up to this many policies a scan is faster than hashing.
const SCANNED: usize = 8;

/// The ordered policies, with an index over them.
///
/// Policies whose prefixes have the same lengths stand in one hash table (tuple space search, Srinivasan et al. 1999), so that the cost of
/// a lookup grows with the number of different lengths, not with the number of policies.
#[derive(Debug, Default)]
pub struct Spd {
    policies: Vec<Policy>,
    tables: Vec<Table>,
}

#[derive(Debug)]
struct Table {
    shape: Shape,
    /// Lowest index of any policy in this table: tables are ordered by it, and a lookup ends at the first that cannot win.
    first: usize,
    /// Indices of policies by masked addresses, ascending.
    entries: HashMap<(u128, u128), Vec<usize>, foldhash::fast::RandomState>,
}

impl Spd {
    /// An SPD of these policies, in this order.
    #[must_use]
    pub fn new(policies: Vec<Policy>) -> Self {
        let mut tables: Vec<Table> = Vec::new();
        if policies.len() > SCANNED {
            let mut place: HashMap<Shape, usize, foldhash::fast::RandomState> = HashMap::default();
            for (index, policy) in policies.iter().enumerate() {
                let shape = policy.selector.shape();
                let table = *place.entry(shape).or_insert_with(|| {
                    tables.push(Table { shape, first: index, entries: HashMap::default() });
                    tables.len() - 1
                });
                tables[table].entries.entry(policy.selector.networks()).or_default().push(index);
            }
        }
        Self { policies, tables }
    }

    /// The policies, in order.
    #[must_use]
    pub fn policies(&self) -> &[Policy] {
        &self.policies
    }

    /// What becomes of `flow`.
    #[must_use]
    #[inline]
    pub fn verdict(&self, flow: &Flow) -> Verdict {
        match self.lookup(flow) {
            None => Verdict::NoPolicy,
            Some((_, policy)) if !flow.hides_ports() => Verdict::Policy(policy.action),
            Some((_, policy)) if policy.selector.matches(flow) => Verdict::Policy(policy.action),
            Some(_) => Verdict::PortsHidden,
        }
    }

    /// The first policy that selects `flow`, and its place in the order. For a fragment that hides its ports it may be one that would select it
    /// if the ports were right: passing that over could send in clear what the rest of the datagram has protected (RFC 4301 7.4).
    #[must_use]
    #[inline]
    pub fn lookup(&self, flow: &Flow) -> Option<(usize, &Policy)> {
        if self.tables.is_empty() {
            return self.policies.iter().enumerate().find(|(_, p)| p.selector.concerns(flow));
        }
        self.lookup_in_tables(flow)
    }

    fn lookup_in_tables(&self, flow: &Flow) -> Option<(usize, &Policy)> {
        let mut best = usize::MAX;
        for table in &self.tables {
            if table.first >= best {
                break;
            }
            if let Some(index) = table.lookup(&self.policies, flow) {
                best = best.min(index);
            }
        }
        self.policies.get(best).map(|policy| (best, policy))
    }
}

impl Table {
    fn lookup(&self, policies: &[Policy], flow: &Flow) -> Option<usize> {
        if self.shape.version.is_some_and(|v| v != flow.version()) {
            return None;
        }
        let candidates = self.entries.get(&flow.masked(self.shape.local_mask, self.shape.remote_mask))?;
        candidates.iter().copied().find(|&index| policies[index].selector.concerns(flow))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::selector::{PortRange, Prefix};
    use proptest::prelude::*;
    use std::net::IpAddr;

    fn address() -> impl Strategy<Value = IpAddr> {
        // Few distinct bits, so that prefixes overlap and nest often.
        prop_oneof![
            (0..4u32, 0..4u32).prop_map(|(a, b)| IpAddr::V4((0x0A00_0000 | a << 16 | b).into())),
            (0..4u128, 0..4u128).prop_map(|(a, b)| IpAddr::V6((0xFD00 << 112 | a << 64 | b).into())),
        ]
    }

    fn prefix() -> impl Strategy<Value = Prefix> {
        let lengths = prop_oneof![Just(0u8), Just(8), Just(16), Just(30), Just(32)];
        prop_oneof![
            1 => Just(Prefix::ANY),
            6 => (address(), lengths).prop_map(|(a, l)| Prefix::new(a, if a.is_ipv4() { l } else { l * 4 }).unwrap()),
        ]
    }

    fn ports() -> impl Strategy<Value = PortRange> {
        prop_oneof![
            Just(PortRange::ANY),
            (0..4u16, 0..4u16).prop_map(|(a, b)| PortRange { first: a.min(b), last: a.max(b) })
        ]
    }

    fn policy() -> impl Strategy<Value = Policy> {
        (prefix(), prefix(), prop_oneof![Just(None), Just(Some(6)), Just(Some(17))], ports(), ports())
            .prop_map(|(local, remote, protocol, local_ports, remote_ports)| Policy {
                selector: Selector { local, remote, protocol, local_ports, remote_ports },
                action: Action::Discard,
            })
    }

    fn flow() -> impl Strategy<Value = Flow> {
        let ports = prop_oneof![Just(None), (0..4u16, 0..4u16).prop_map(Some)];
        (address(), address(), prop_oneof![Just(6u8), Just(17), Just(1)], ports)
            .prop_filter("one version", |(l, r, _, _)| l.is_ipv4() == r.is_ipv4())
            .prop_map(|(l, r, protocol, ports)| Flow::new(l, r, protocol, ports))
    }

    proptest! {
        #[test]
        fn the_index_finds_what_a_scan_finds(
            policies in prop::collection::vec(policy(), 0..60),
            flows in prop::collection::vec(flow(), 50),
        ) {
            let spd = Spd::new(policies.clone());
            for flow in flows {
                let expected = policies.iter().position(|p| p.selector.matches(&flow));
                prop_assert_eq!(spd.lookup(&flow).map(|(index, _)| index), expected);
            }
        }
    }
}
