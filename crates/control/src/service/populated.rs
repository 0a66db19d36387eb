//! Tunnels that are populated from packets (RFC 4301 4.4.1.2): those of single flows, made at run time after
//! a tunnel of the configuration, the *template*.
//!
//! ```text
//!   [[policy]] populate_from_packet = ["remote"]  tunnel = "site-b"
//!        │ number 4                                  │ template
//!        ▼                                           ▼
//!   { remote = 10.2.0.7 } ──► tunnel "site-b/1" ──► its SAs, and in the worker a policy ahead of policy 4
//!   { remote = 10.2.0.9 } ──► tunnel "site-b/2" ──► …
//! ```
//!
//! Such a tunnel begins with an SA each way, and ends when one way has none left: deleted, or at its hard
//! lifetime. The next packet asks again. Its keys are ephemeral, and it dies with the process: no
//! configuration would bring it back.
//!
//! The copy of the SPD that clients are told about has no policies of theirs. Whether a packet has a tunnel
//! of its own follows from its values, which are looked up here: the tunnels of one policy do not overlap
//! ([`testudo_ipsec::PacketValues`]).

use super::installed::Running;
use super::wanted::Wanted;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use testudo_ipsec::{PacketValues, PolicyId, Selector, TunnelIndex};

/// Tunnels of this kind at most: their memory is bounded, and so is that of their SAs. Beyond, a new one is
/// refused, and those that are there go on.
pub const MAX_POPULATED: usize = 1 << 17;

/// A tunnel that was populated from packets.
#[derive(Debug, Clone)]
pub struct PopulatedTunnel {
    /// The tunnel; its configuration is its template's, but for name and selectors.
    pub running: Running,
    /// Its number, which no other in this run of the gateway has.
    pub number: u64,
    /// The number of the policy that it is populated for, in the configuration in force.
    pub policy: u32,
    /// The values that its packets have at the fields with a flag.
    pub values: PacketValues,
    /// Its selectors.
    pub selectors: Arc<[Selector]>,
    /// The name of its policy in the worker's SPD.
    pub id: PolicyId,
}

/// All of them, shared by the configurations that follow one another.
#[derive(Debug, Default)]
pub struct PopulatedTunnels {
    table: Mutex<Table>,
    /// What packets have asked for.
    wanted: Mutex<Wanted>,
}

#[derive(Debug, Default)]
struct Table {
    by_number: BTreeMap<u64, Arc<PopulatedTunnel>>,
    by_index: HashMap<TunnelIndex, u64>,
    by_values: HashMap<u32, HashMap<PacketValues, u64>>,
    /// Numbers that were given.
    numbers: u64,
    /// Indices that no tunnel has: some below `next`, and all from it on.
    free: Vec<u32>,
    next: u32,
}

/// What a new tunnel is to be called.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Reserved {
    pub(super) index: TunnelIndex,
    pub(super) number: u64,
}

impl Table {
    fn insert(&mut self, tunnel: PopulatedTunnel) {
        self.by_index.insert(tunnel.running.index, tunnel.number);
        self.by_values.entry(tunnel.policy).or_default().insert(tunnel.values, tunnel.number);
        self.by_number.insert(tunnel.number, Arc::new(tunnel));
    }

    fn remove(&mut self, number: u64, is_free: bool) {
        let Some(gone) = self.by_number.remove(&number) else { return };
        self.by_index.remove(&gone.running.index);
        if is_free {
            self.free.push(gone.running.index.0);
        }
        if let Some(of_policy) = self.by_values.get_mut(&gone.policy) {
            of_policy.remove(&gone.values);
            if of_policy.is_empty() {
                self.by_values.remove(&gone.policy);
            }
        }
    }
}

impl PopulatedTunnels {
    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What packets have asked for.
    pub(super) fn wanted(&self) -> MutexGuard<'_, Wanted> {
        self.wanted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.table().by_number.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// All of them, oldest first.
    #[must_use]
    pub fn all(&self) -> Vec<Arc<PopulatedTunnel>> {
        self.table().by_number.values().map(Arc::clone).collect()
    }

    /// The one of this name: its template's, a slash, its number.
    #[must_use]
    pub fn named(&self, name: &str) -> Option<Arc<PopulatedTunnel>> {
        let number: u64 = name.rsplit_once('/')?.1.parse().ok()?;
        let found = self.table().by_number.get(&number).map(Arc::clone);
        found.filter(|tunnel| tunnel.running.tunnel.name == name)
    }

    /// The one with this index.
    #[must_use]
    pub fn at(&self, index: TunnelIndex) -> Option<Arc<PopulatedTunnel>> {
        let table = self.table();
        table.by_number.get(table.by_index.get(&index)?).map(Arc::clone)
    }

    /// The one of a policy for packets with these values.
    #[must_use]
    pub fn with_values(&self, policy: u32, values: &PacketValues) -> Option<Arc<PopulatedTunnel>> {
        let table = self.table();
        table.by_number.get(table.by_values.get(&policy)?.get(values)?).map(Arc::clone)
    }

    /// Those of a policy, oldest first.
    #[must_use]
    pub fn of_policy(&self, policy: u32) -> Vec<Arc<PopulatedTunnel>> {
        let table = self.table();
        let numbers = table.by_values.get(&policy).into_iter().flat_map(HashMap::values);
        let mut numbers: Vec<u64> = numbers.copied().collect();
        numbers.sort_unstable();
        numbers.iter().filter_map(|number| table.by_number.get(number).map(Arc::clone)).collect()
    }

    /// How many a policy has.
    #[must_use]
    pub fn count_of(&self, policy: u32) -> usize {
        self.table().by_values.get(&policy).map_or(0, HashMap::len)
    }

    /// The indices of all.
    pub(super) fn indices(&self) -> Vec<TunnelIndex> {
        self.table().by_index.keys().copied().collect()
    }

    /// An index and a number for a new one; `None` if there are as many as there may be.
    pub(super) fn reserve(&self) -> Option<Reserved> {
        let mut table = self.table();
        if table.by_number.len() >= MAX_POPULATED {
            return None;
        }
        let index = table.free.pop().or_else(|| {
            let next = table.next;
            table.next = next.checked_add(1)?;
            Some(next)
        })?;
        table.numbers += 1;
        Some(Reserved { index: TunnelIndex(index), number: table.numbers })
    }

    /// Gives back what was reserved for one that was not made.
    pub(super) fn give_back(&self, reserved: &Reserved) {
        self.table().free.push(reserved.index.0);
    }

    /// Adds one, which is in force.
    pub(super) fn insert(&self, tunnel: PopulatedTunnel) {
        self.wanted().answered(tunnel.policy, &tunnel.values);
        self.table().insert(tunnel);
    }

    /// Removes one, which is gone. Its index is given again only if it `is_free` in the worker.
    pub(super) fn remove(&self, number: u64, is_free: bool) {
        self.table().remove(number, is_free);
    }

    /// A configuration is in force whose tunnels have the indices `taken`: these tunnels are left, and no
    /// others. What packets wanted is forgotten: policies have other numbers, and packets ask again.
    pub(super) fn turn_over(
        &self,
        left: Option<Vec<PopulatedTunnel>>,
        taken: impl Iterator<Item = TunnelIndex>,
    ) {
        self.wanted().clear();
        let mut table = self.table();
        if let Some(left) = left {
            *table = Table { numbers: table.numbers, ..Table::default() };
            left.into_iter().for_each(|tunnel| table.insert(tunnel));
        }
        let mut all: Vec<u32> =
            taken.map(|index| index.0).chain(table.by_index.keys().map(|i| i.0)).collect();
        all.sort_unstable();
        let mut free = Vec::new();
        let mut next = 0;
        for index in all {
            free.extend(next..index);
            next = next.max(index.saturating_add(1));
        }
        (table.free, table.next) = (free, next);
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::config::Configuration;
    use crate::config::tests::MINIMAL;
    use crate::fingerprint::digest_of;
    use crate::service::sas::TunnelSas;
    use testudo_ipsec::{Action, Policy, Spd};

    /// One for a remote host, as it would be without SAs.
    pub(crate) fn populated(reserved: &Reserved, policy: u32, host: u8) -> PopulatedTunnel {
        let configuration = Configuration::parse(MINIMAL, "t.toml").unwrap();
        let template = &configuration.tunnels[0];
        let key = digest_of(&[&[host]]);
        let id = Spd::new([Policy::new(Selector::ANY, Action::Bypass)]).unwrap().policies().next().unwrap().0;
        PopulatedTunnel {
            running: Running {
                tunnel: crate::config::Tunnel {
                    name: format!("{}/{}", template.name, reserved.number),
                    ..template.clone()
                },
                index: reserved.index,
                outbound_key: key,
                inbound_key: key,
                sas: TunnelSas::default(),
                is_installed: true,
                error: None,
            },
            number: reserved.number,
            policy,
            values: values(host),
            selectors: Arc::new([]),
            id,
        }
    }

    pub(crate) fn values(host: u8) -> PacketValues {
        PacketValues { remote: Some([10, 2, 0, host].into()), ..PacketValues::default() }
    }

    fn number_of(tunnel: Option<Arc<PopulatedTunnel>>) -> Option<u64> {
        tunnel.map(|tunnel| tunnel.number)
    }

    #[test]
    fn they_are_found_by_name_index_and_values_until_they_are_gone() {
        let all = PopulatedTunnels::default();
        all.turn_over(None, [0, 1, 4].map(TunnelIndex).into_iter());
        let indices: Vec<u32> = (1..=4)
            .map(|host| {
                let reserved = all.reserve().unwrap();
                all.insert(populated(&reserved, 7, host));
                reserved.index.0
            })
            .collect();
        let sorted = {
            let mut sorted = indices.clone();
            sorted.sort_unstable();
            sorted
        };
        assert_eq!(sorted, [2, 3, 5, 6], "no tunnel of the configuration has them");
        assert_eq!((all.len(), all.count_of(7), all.count_of(8)), (4, 4, 0));
        assert_eq!(number_of(all.named("site-b/3")), Some(3));
        assert_eq!(number_of(all.named("site-c/3")), None, "another template's");
        assert_eq!(number_of(all.at(TunnelIndex(indices[1]))), Some(2));
        assert_eq!(number_of(all.with_values(7, &values(4))), Some(4));
        assert_eq!(number_of(all.with_values(8, &values(4))), None);
        all.remove(2, true);
        assert_eq!((all.len(), number_of(all.named("site-b/2"))), (3, None));
        let again = all.reserve().unwrap();
        assert_eq!((again.index.0, again.number), (indices[1], 5), "an index is used again, a number is not");
        all.remove(3, false);
        let next = all.reserve().unwrap().index.0;
        assert!(
            !indices.contains(&next),
            "a policy that the worker has still leads to the index {}",
            indices[2]
        );
    }

    #[test]
    fn a_configuration_that_follows_leaves_some_and_takes_free_indices() {
        let all = PopulatedTunnels::default();
        all.turn_over(None, [0].map(TunnelIndex).into_iter());
        for host in 1..=3 {
            let reserved = all.reserve().unwrap();
            all.insert(populated(&reserved, 7, host));
        }
        let left = PopulatedTunnel { policy: 2, ..all.named("site-b/2").unwrap().as_ref().clone() };
        assert_eq!(left.running.index, TunnelIndex(2));
        all.turn_over(Some(vec![left]), [0, 1].map(TunnelIndex).into_iter());
        assert_eq!((all.len(), all.count_of(7)), (1, 0));
        assert_eq!(number_of(all.with_values(2, &values(2))), Some(2));
        let next = all.reserve().unwrap();
        assert_eq!((next.index, next.number), (TunnelIndex(3), 4));
    }

    #[test]
    fn there_are_as_many_as_there_may_be_and_no_more() {
        let all = PopulatedTunnels::default();
        let one = populated(&all.reserve().unwrap(), 1, 1);
        {
            let mut table = all.table();
            for number in 1..=MAX_POPULATED as u64 {
                table.by_number.insert(number, Arc::new(one.clone()));
            }
        }
        assert_eq!(all.reserve(), None);
        all.table().by_number.remove(&1);
        assert!(all.reserve().is_some());
    }
}
