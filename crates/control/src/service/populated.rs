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
//! configuration would bring it back. It ends, too, when its policy is there no more or says something else:
//! from then on no packet's values lead to it here, and it goes from the worker in its turn
//! (`ending`).
//!
//! Numbers of policies change with a reload, and a policy that is replaced keeps its own. Tunnels therefore
//! name their policy by a [`PopulatingId`], which is the same for as long as the policy says the same: who
//! still answers from the configuration before finds the same tunnels as who has the next one.
//!
//! The copy of the SPD that clients are told about has no policies of theirs. Whether a packet has a tunnel
//! of its own follows from its values, which are looked up here: the tunnels of one policy do not overlap
//! ([`testudo_ipsec::PacketValues`]).

use super::installed::Running;
use super::tunnel_indices::TunnelIndices;
use super::wanted::Wanted;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;
use testudo_ipsec::{Acquire, PacketValues, PolicyId, Selector, TunnelIndex};

/// Tunnels of this kind at most: their memory is bounded, and so is that of their SAs. Beyond, a new one is
/// refused, and those that are there go on.
pub const MAX_POPULATED: usize = 1 << 17;
/// Pairs of prefixes that the selectors of all of them make at most in the index of the worker's SPD: two for
/// each of as many tunnels as there may be. One tunnel may have [`testudo_ipsec::MAX_FLOW_PIECES`].
pub const MAX_POPULATED_PIECES: usize = 2 * MAX_POPULATED;

/// Why no tunnel may begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Full {
    /// There are as many as there may be.
    #[error("{MAX_POPULATED} tunnels were populated from packets, and more are not possible: delete some")]
    Tunnels,
    /// Their selectors would make more pairs of prefixes than they may.
    #[error(
        "the selectors of tunnels that were populated from packets make {found} pairs of prefixes, those of \
         this one would make {wanted} more, and at most {MAX_POPULATED_PIECES} are possible: delete some \
         tunnels, or give the policy prefixes in place of ranges, or fewer of them"
    )]
    Pieces {
        /// Those that they have.
        found: usize,
        /// Those of the new one.
        wanted: usize,
    },
}

/// A policy that populates tunnels, in this run of the gateway: another one that says something else, under
/// the same number or name, has another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PopulatingId(u64);

/// A tunnel that was populated from packets.
#[derive(Debug, Clone)]
pub struct PopulatedTunnel {
    /// The tunnel; its configuration is its template's, but for name and selectors.
    pub running: Running,
    /// Its number, which no other in this run of the gateway has.
    pub number: u64,
    /// The policy that it is populated for.
    pub policy: PopulatingId,
    /// The values that its packets have at the fields with a flag.
    pub values: PacketValues,
    /// Its selectors.
    pub selectors: Arc<[Selector]>,
    /// How many pairs of prefixes they make in the index of the worker's SPD.
    pub pieces: usize,
    /// The name of its own policy in the worker's SPD; `None` if that has none for it any more.
    pub id: Option<PolicyId>,
}

/// All of them, shared by the configurations that follow one another.
#[derive(Debug, Default)]
pub struct PopulatedTunnels {
    table: Mutex<Table>,
    indices: Arc<TunnelIndices>,
    /// What packets have asked for.
    wanted: Mutex<Wanted>,
}

#[derive(Debug, Default)]
struct Table {
    by_number: BTreeMap<u64, Arc<PopulatedTunnel>>,
    /// How many pairs of prefixes the selectors of all of them make.
    pieces: usize,
    by_index: HashMap<TunnelIndex, u64>,
    /// Without those that end.
    by_values: HashMap<PopulatingId, HashMap<PacketValues, u64>>,
    /// Those that end and are still in the worker.
    ending: BTreeSet<u64>,
    /// Numbers of tunnels that were given.
    numbers: u64,
    /// Names of policies that were given.
    policies: u64,
    /// Indices of tunnels that have gone, and what is known by them has not yet.
    gone: BTreeSet<TunnelIndex>,
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
        self.pieces += tunnel.pieces;
        self.by_number.insert(tunnel.number, Arc::new(tunnel));
    }

    /// No packet's values lead to a tunnel from here on.
    fn end(&mut self, number: u64) {
        let Some(ending) = self.by_number.get(&number) else { return };
        if !self.ending.insert(number) {
            return;
        }
        if let Some(of_policy) = self.by_values.get_mut(&ending.policy) {
            of_policy.remove(&ending.values);
            if of_policy.is_empty() {
                self.by_values.remove(&ending.policy);
            }
        }
    }

    /// Returns the index that it had.
    fn remove(&mut self, number: u64) -> Option<TunnelIndex> {
        self.end(number);
        let gone = self.by_number.remove(&number)?;
        self.pieces -= gone.pieces;
        self.ending.remove(&number);
        self.by_index.remove(&gone.running.index);
        self.gone.insert(gone.running.index);
        Some(gone.running.index)
    }
}

impl PopulatedTunnels {
    /// None yet. Theirs are among these indices.
    pub(super) fn new(indices: Arc<TunnelIndices>) -> Self {
        Self { indices, ..Self::default() }
    }

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

    /// The one of a policy for packets with these values, unless it ends.
    #[must_use]
    pub fn with_values(&self, policy: PopulatingId, values: &PacketValues) -> Option<Arc<PopulatedTunnel>> {
        let table = self.table();
        table.by_number.get(table.by_values.get(&policy)?.get(values)?).map(Arc::clone)
    }

    /// Those of a policy, oldest first, without those that end.
    #[must_use]
    pub fn of_policy(&self, policy: PopulatingId) -> Vec<Arc<PopulatedTunnel>> {
        let table = self.table();
        let numbers = table.by_values.get(&policy).into_iter().flat_map(HashMap::values);
        let mut numbers: Vec<u64> = numbers.copied().collect();
        numbers.sort_unstable();
        numbers.iter().filter_map(|number| table.by_number.get(number).map(Arc::clone)).collect()
    }

    /// How many a policy has, without those that end.
    #[must_use]
    pub fn count_of(&self, policy: PopulatingId) -> usize {
        self.table().by_values.get(&policy).map_or(0, HashMap::len)
    }

    /// The indices of all.
    pub(super) fn indices(&self) -> Vec<TunnelIndex> {
        self.table().by_index.keys().copied().collect()
    }

    /// How many pairs of prefixes the selectors of all of them make.
    #[must_use]
    pub fn pieces(&self) -> usize {
        self.table().pieces
    }

    /// An index and a number for a new one whose selectors make so many pairs of prefixes. Its maker holds
    /// the [lock](super::sa_control::SaControl::lock) until it is inserted, so that no two share room.
    ///
    /// # Errors
    /// There are as many as there may be, or their selectors make as many pairs.
    pub(super) fn reserve(&self, pieces: usize) -> Result<Reserved, Full> {
        let mut table = self.table();
        if table.by_number.len() >= MAX_POPULATED {
            return Err(Full::Tunnels);
        }
        if table.pieces + pieces > MAX_POPULATED_PIECES {
            return Err(Full::Pieces { found: table.pieces, wanted: pieces });
        }
        let index = self.indices.take().ok_or(Full::Tunnels)?;
        table.numbers += 1;
        Ok(Reserved { index, number: table.numbers })
    }

    /// Gives back what was reserved for one that was not made.
    pub(super) fn give_back(&self, reserved: &Reserved) {
        self.indices.give_back(reserved.index);
    }

    /// Adds one, which is in force.
    pub(super) fn insert(&self, tunnel: PopulatedTunnel) {
        let (policy, values) = (tunnel.policy, tunnel.values);
        self.table().insert(tunnel);
        // In this order: who notes that a flow wants one looks at the table after that.
        self.wanted().answered(policy, &values);
    }

    /// The worker has told of a flow that wants a tunnel; `true` if that is new. One that has got it
    /// meanwhile, before or while it is noted, wants nothing.
    pub(super) fn note_wanted(&self, policy: PopulatingId, acquire: &Acquire, now: Instant) -> bool {
        let has_one = || self.with_values(policy, &acquire.values).is_some();
        if has_one() {
            return false;
        }
        let is_new = self.wanted().note(policy, acquire, now);
        if has_one() {
            self.wanted().answered(policy, &acquire.values);
            return false;
        }
        is_new
    }

    /// A name for a policy that populates tunnels.
    pub(super) fn name_policy(&self) -> PopulatingId {
        let mut table = self.table();
        table.policies += 1;
        PopulatingId(table.policies)
    }

    /// One ends: see [`end_all_of`](Self::end_all_of).
    pub(super) fn end(&self, number: u64) {
        self.table().end(number);
    }

    /// All of a policy end, which the worker has no more: no packet's values lead to them, and they are there
    /// until the worker has removed each. Returns how many.
    pub(super) fn end_all_of(&self, policy: PopulatingId) -> usize {
        self.wanted().retain(|wanted| wanted != policy);
        let mut table = self.table();
        let of_policy = table.by_values.remove(&policy).unwrap_or_default();
        table.ending.extend(of_policy.values());
        of_policy.len()
    }

    /// How many end and are still in the worker.
    #[must_use]
    pub fn count_ending(&self) -> usize {
        self.table().ending.len()
    }

    /// Whether one ends.
    #[must_use]
    pub fn is_ending(&self, number: u64) -> bool {
        self.table().ending.contains(&number)
    }

    /// Whether one ends already, or will if these policies alone go on.
    pub(super) fn ends_but_for(&self, tunnel: &PopulatedTunnel, goes_on: &HashSet<PopulatingId>) -> bool {
        !goes_on.contains(&tunnel.policy) || self.is_ending(tunnel.number)
    }

    /// The first of those that end, for as long as there `is_room` for the next.
    pub(super) fn first_ending(
        &self,
        mut is_room: impl FnMut(&PopulatedTunnel) -> bool,
    ) -> Vec<Arc<PopulatedTunnel>> {
        let table = self.table();
        let ending = table.ending.iter().filter_map(|number| table.by_number.get(number));
        ending.take_while(|tunnel| is_room(tunnel)).map(Arc::clone).collect()
    }

    /// At most `count` of those with a number from `first` on, oldest first.
    pub(super) fn from(&self, first: u64, count: usize) -> Vec<Arc<PopulatedTunnel>> {
        self.table().by_number.range(first..).take(count).map(|(_, tunnel)| Arc::clone(tunnel)).collect()
    }

    /// The one with a number.
    pub(super) fn numbered(&self, number: u64) -> Option<Arc<PopulatedTunnel>> {
        self.table().by_number.get(&number).map(Arc::clone)
    }

    /// Removes one, which is gone. Its index is given again only if it `is_free` in the worker.
    pub(super) fn remove(&self, number: u64, is_free: bool) {
        let gone = self.table().remove(number);
        gone.filter(|_| is_free).into_iter().for_each(|index| self.indices.give_back(index));
    }

    /// The indices of those that have gone since the last call. Later ones may have them already.
    pub(super) fn take_gone(&self) -> BTreeSet<TunnelIndex> {
        std::mem::take(&mut self.table().gone)
    }

    /// A configuration is in force in the worker. Of these tunnels those go on that are `left`, with new
    /// names of their policies in the worker's SPD; all others end, and have none there. Returns how many
    /// have begun to end.
    pub(super) fn turn_over(&self, left: &HashMap<u64, PolicyId>) -> usize {
        let mut table = self.table();
        let before = table.ending.len();
        let numbers: Vec<u64> = table.by_number.keys().copied().collect();
        for number in numbers {
            let id = left.get(&number).copied();
            if id.is_none() {
                table.end(number);
            }
            if let Some(tunnel) = table.by_number.get_mut(&number) {
                Arc::make_mut(tunnel).id = id;
            }
        }
        table.ending.len() - before
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
    pub(crate) fn populated(reserved: &Reserved, policy: PopulatingId, host: u8) -> PopulatedTunnel {
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
                more_keys: Arc::default(),
                sas: TunnelSas::default(),
                is_installed: true,
                error: None,
            },
            number: reserved.number,
            policy,
            values: values(host),
            selectors: Arc::new([]),
            pieces: 0,
            id: Some(id),
        }
    }

    pub(crate) fn values(host: u8) -> PacketValues {
        PacketValues { remote: Some([10, 2, 0, host].into()), ..PacketValues::default() }
    }

    impl PopulatedTunnels {
        /// A configuration has tunnels with these indices.
        fn taken_beside<const N: usize>(&self, configured: [u32; N]) {
            self.indices.turn_over(configured.map(TunnelIndex).into_iter().chain(self.indices()));
        }
    }

    fn number_of(tunnel: Option<Arc<PopulatedTunnel>>) -> Option<u64> {
        tunnel.map(|tunnel| tunnel.number)
    }

    #[test]
    fn they_are_found_by_name_index_and_values_until_they_are_gone() {
        let all = PopulatedTunnels::default();
        let [seven, eight] = [7, 8].map(PopulatingId);
        all.taken_beside([0, 1, 4]);
        let indices: Vec<u32> = (1..=4)
            .map(|host| {
                let reserved = all.reserve(0).unwrap();
                all.insert(populated(&reserved, seven, host));
                reserved.index.0
            })
            .collect();
        let sorted = {
            let mut sorted = indices.clone();
            sorted.sort_unstable();
            sorted
        };
        assert_eq!(sorted, [2, 3, 5, 6], "no tunnel of the configuration has them");
        assert_eq!((all.len(), all.count_of(seven), all.count_of(eight)), (4, 4, 0));
        assert_eq!(number_of(all.named("site-b/3")), Some(3));
        assert_eq!(number_of(all.named("site-c/3")), None, "another template's");
        assert_eq!(number_of(all.at(TunnelIndex(indices[1]))), Some(2));
        assert_eq!(number_of(all.with_values(seven, &values(4))), Some(4));
        assert_eq!(number_of(all.with_values(eight, &values(4))), None);
        all.remove(2, true);
        assert_eq!((all.len(), number_of(all.named("site-b/2"))), (3, None));
        let again = all.reserve(0).unwrap();
        assert_eq!((again.index.0, again.number), (indices[1], 5), "an index is used again, a number is not");
        all.remove(3, false);
        let next = all.reserve(0).unwrap().index.0;
        assert!(
            !indices.contains(&next),
            "a policy that the worker has still leads to the index {}",
            indices[2]
        );
    }

    #[test]
    fn a_configuration_that_follows_leaves_some_and_takes_free_indices() {
        let all = PopulatedTunnels::default();
        let policy = all.name_policy();
        all.taken_beside([0]);
        for host in 1..=3 {
            let reserved = all.reserve(0).unwrap();
            all.insert(populated(&reserved, policy, host));
        }
        let id = all.numbered(1).unwrap().id.unwrap();
        assert_eq!(all.turn_over(&[(2, id)].into()), 2);
        all.taken_beside([0, 4]);
        assert_eq!((all.len(), all.count_of(policy), all.count_ending()), (3, 1, 2));
        assert_eq!(number_of(all.with_values(policy, &values(2))), Some(2));
        assert_eq!(number_of(all.with_values(policy, &values(1))), None);
        let ids: Vec<bool> = all.all().iter().map(|tunnel| tunnel.id.is_some()).collect();
        assert_eq!(ids, [false, true, false], "the worker has no policy of those that end");
        // Until the worker has removed them, nobody else has their indices.
        let next = all.reserve(0).unwrap();
        assert_eq!((next.index, next.number), (TunnelIndex(5), 4));
        all.remove(3, true);
        assert_eq!(all.reserve(0).unwrap().index, TunnelIndex(3));
    }

    /// The values lead to the one that goes on, whichever of the two is gone first.
    #[test]
    fn a_flow_that_begins_anew_while_its_old_tunnel_ends_keeps_the_new_one() {
        let all = PopulatedTunnels::default();
        let policy = all.name_policy();
        let begin = || {
            let reserved = all.reserve(0).unwrap();
            all.insert(populated(&reserved, policy, 1));
            reserved.number
        };
        let (old, other) = (begin(), all.name_policy());
        assert_eq!((all.end_all_of(other), all.end_all_of(policy), all.end_all_of(policy)), (0, 1, 0));
        assert!(all.is_ending(old));
        assert_eq!(number_of(all.with_values(policy, &values(1))), None);
        assert_eq!(number_of(all.named("site-b/1")), Some(old), "it is there until it is gone");
        let new = begin();
        assert_eq!(number_of(all.with_values(policy, &values(1))), Some(new));
        all.remove(old, true);
        assert_eq!(number_of(all.with_values(policy, &values(1))), Some(new));
        assert_eq!((all.len(), all.count_ending(), all.count_of(policy)), (1, 0, 1));
    }

    /// A flow gets its tunnel while the main thread notes that it wants one, in each order in which the two
    /// may meet: the lock on what is wanted holds one of them up in the middle.
    #[test]
    fn a_flow_that_gets_its_tunnel_while_it_is_noted_wants_nothing() {
        let all = PopulatedTunnels::default();
        let policy = all.name_policy();
        let now = Instant::now();
        let [first, second] = [1, 2].map(|host| populated(&all.reserve(0).unwrap(), policy, host));
        let acquire = |host| {
            let (id, values) = (first.id.unwrap(), values(host));
            Acquire { policy: id, values, packet: values, left_out: 0, worker: None }
        };
        // It is listed before anything is answered.
        let mut wanted = all.wanted();
        std::thread::scope(|scope| {
            let inserting = scope.spawn(|| all.insert(first.clone()));
            let is_seen = (0..10_000_000).any(|_| {
                std::thread::yield_now();
                all.with_values(policy, &values(1)).is_some()
            });
            assert!(wanted.note(policy, &acquire(1), now));
            drop(wanted);
            inserting.join().unwrap();
            assert!(is_seen);
        });
        assert_eq!(all.wanted().count(now), 0);
        // It is listed after the first look, and answered before it is noted.
        wanted = all.wanted();
        let barrier = std::sync::Barrier::new(2);
        std::thread::scope(|scope| {
            let noting = scope.spawn({
                let (all, barrier, acquire) = (&all, &barrier, acquire(2));
                move || {
                    barrier.wait();
                    all.note_wanted(policy, &acquire, now)
                }
            });
            barrier.wait();
            (0..10_000).for_each(|_| std::thread::yield_now());
            all.table().insert(second);
            drop(wanted);
            assert!(!noting.join().unwrap());
        });
        assert_eq!(all.wanted().count(now), 0);
        assert!(all.note_wanted(policy, &acquire(3), now) && !all.note_wanted(policy, &acquire(3), now));
    }

    /// With selectors that make so many pairs of prefixes.
    fn with_pieces(reserved: &Reserved, policy: PopulatingId, host: u8, pieces: usize) -> PopulatedTunnel {
        PopulatedTunnel { pieces, ..populated(reserved, policy, host) }
    }

    #[test]
    fn there_are_as_many_as_there_may_be_and_no_more() {
        let all = PopulatedTunnels::default();
        let one = populated(&all.reserve(0).unwrap(), PopulatingId(1), 1);
        {
            let mut table = all.table();
            for number in 1..=MAX_POPULATED as u64 {
                table.by_number.insert(number, Arc::new(one.clone()));
            }
        }
        assert_eq!(all.reserve(0), Err(Full::Tunnels));
        all.table().by_number.remove(&1);
        assert!(all.reserve(0).is_ok());
    }

    #[test]
    fn the_pieces_of_their_selectors_are_bounded_all_together() {
        let (all, wide) = (PopulatedTunnels::default(), testudo_ipsec::MAX_FLOW_PIECES);
        let mut last = 0;
        for _ in 0..MAX_POPULATED_PIECES / wide {
            let reserved = all.reserve(wide).unwrap();
            last = reserved.number;
            all.insert(with_pieces(&reserved, PopulatingId(1), 1, wide));
        }
        assert_eq!((all.len(), all.pieces()), (1024, MAX_POPULATED_PIECES));
        let refused = all.reserve(1).unwrap_err();
        assert_eq!(refused, Full::Pieces { found: MAX_POPULATED_PIECES, wanted: 1 });
        assert!(refused.to_string().contains("at most 262144 are possible"), "{refused}");
        // Where one ends, it has them until it is gone.
        all.end(last);
        assert!(all.reserve(1).is_err());
        all.remove(last, true);
        assert_eq!((all.reserve(wide + 1).is_err(), all.reserve(wide).is_ok()), (true, true));
    }

    /// However many come, go and are turned over: what is counted is what a slow count finds.
    #[test]
    fn what_is_counted_of_them_is_what_they_are() {
        let (all, mut random) = (PopulatedTunnels::default(), fastrand::Rng::with_seed(7));
        let policies = [all.name_policy(), all.name_policy()];
        for step in 0..4000 {
            let present = all.all();
            let any = present.get(random.usize(..present.len().max(1)));
            match (random.u8(..16), any) {
                (0, _) => drop(all.end_all_of(policies[random.usize(..2)])),
                (1, _) => {
                    let going_on = present.iter().filter(|_| random.bool());
                    let left = going_on.filter_map(|tunnel| Some((tunnel.number, tunnel.id?))).collect();
                    all.turn_over(&left);
                    all.taken_beside([0, 3]);
                }
                (2..=3, Some(tunnel)) => all.end(tunnel.number),
                (4..=6, Some(tunnel)) => all.remove(tunnel.number, random.bool()),
                _ => {
                    let reserved = all.reserve(random.usize(..5)).unwrap();
                    let (policy, host) = (policies[random.usize(..2)], random.u8(..));
                    let is_there = all.with_values(policy, &values(host)).is_some();
                    if is_there || random.u8(..4) == 0 {
                        all.give_back(&reserved);
                    } else {
                        all.insert(with_pieces(&reserved, policy, host, random.usize(..5)));
                    }
                }
            }
            let now = all.all();
            let counted: usize = now.iter().map(|tunnel| tunnel.pieces).sum();
            let ending = now.iter().filter(|tunnel| all.is_ending(tunnel.number)).count();
            assert_eq!((all.pieces(), all.count_ending()), (counted, ending), "seed 7, step {step}");
            for tunnel in &now {
                assert_eq!(
                    number_of(all.at(tunnel.running.index)),
                    Some(tunnel.number),
                    "seed 7, step {step}"
                );
                let found = number_of(all.with_values(tunnel.policy, &tunnel.values));
                let is_found = found == Some(tunnel.number);
                assert_eq!(is_found, !all.is_ending(tunnel.number), "seed 7, step {step}");
            }
        }
        assert!(all.len() > 20);
    }
}
