//! The SAs that packets have asked for: what `testudo sa wanted` lists.
//!
//! The worker tells of a flow every two seconds while it sends ([`Acquire`](testudo_ipsec::Acquire)), so that
//! an entry that was not told of for half a minute is forgotten (as long as Linux keeps one,
//! `xfrm_acq_expires`). As many as the worker can tell of in this time have room.

use super::populated::PopulatingId;
use serde_json::{Map, Value, json};
use std::cmp::Reverse;
use std::collections::HashMap;
use std::time::{Duration, Instant};
use testudo_ipsec::{ACQUIRES_PER_SECOND, Acquire, PacketValues, PopulateFlags, PortRange};

/// How long an entry stays without being told of again.
const LIFETIME: Duration = Duration::from_secs(30);
/// Entries at most: all that are told of within [`LIFETIME`], and a second more.
const MAX_WANTED: usize = 31 * ACQUIRES_PER_SECOND as usize;

/// A flow that wants an SA.
#[derive(Debug, Clone, Copy)]
struct Entry {
    packet: PacketValues,
    since: Instant,
    last: Instant,
}

/// Those that want one, by their policy and the values that their SAs are to have.
#[derive(Debug, Default)]
pub(super) struct Wanted {
    entries: HashMap<(PopulatingId, PacketValues), Entry>,
    /// How often the worker told.
    told: u64,
    /// Packets that asked and were not told of, since the gateway started.
    left_out: u64,
}

impl Wanted {
    /// The worker has told of a flow; `true` if it is new.
    pub(super) fn note(&mut self, policy: PopulatingId, acquire: &Acquire, now: Instant) -> bool {
        self.told += 1;
        self.left_out += acquire.left_out;
        if let Some(entry) = self.entries.get_mut(&(policy, acquire.values)) {
            let is_new = is_over(entry, now);
            *entry =
                Entry { since: if is_new { now } else { entry.since }, last: now, packet: acquire.packet };
            return is_new;
        }
        if self.entries.len() >= MAX_WANTED {
            self.entries.retain(|_, entry| !is_over(entry, now));
        }
        if self.entries.len() >= MAX_WANTED {
            self.left_out += 1;
            return false;
        }
        let entry = Entry { packet: acquire.packet, since: now, last: now };
        self.entries.insert((policy, acquire.values), entry);
        true
    }

    /// There is an SA now.
    pub(super) fn answered(&mut self, policy: PopulatingId, values: &PacketValues) {
        self.entries.remove(&(policy, *values));
    }

    /// Forgets what is wanted of all policies but those that are `kept`.
    pub(super) fn retain(&mut self, kept: impl Fn(PopulatingId) -> bool) {
        self.entries.retain(|(policy, _), _| kept(*policy));
    }

    /// All of them, in no order: the worker's news waits while this is read, and sorting can be done later.
    pub(super) fn rows(&self, now: Instant) -> Vec<Row> {
        let row = |((policy, values), entry): (&(PopulatingId, PacketValues), &Entry)| {
            let age = now.saturating_duration_since(entry.since);
            (!is_over(entry, now)).then_some(Row {
                policy: *policy,
                values: *values,
                packet: entry.packet,
                age,
            })
        };
        self.entries.iter().filter_map(row).collect()
    }

    /// How many there are.
    pub(super) fn count(&self, now: Instant) -> usize {
        self.entries.values().filter(|entry| !is_over(entry, now)).count()
    }

    /// How often the worker told, and how many packets it left out.
    pub(super) fn counts(&self) -> (u64, u64) {
        (self.told, self.left_out)
    }
}

/// A flow that wants an SA, for a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Row {
    /// The policy that populates it.
    pub(super) policy: PopulatingId,
    /// What it is to be populated with.
    pub(super) values: PacketValues,
    /// The packet that asked last.
    pub(super) packet: PacketValues,
    /// For how long it has been asked for.
    pub(super) age: Duration,
}

/// In the order in which they asked, the first one first.
pub(super) fn sorted(mut rows: Vec<Row>) -> Vec<Row> {
    rows.sort_by_cached_key(|row| (Reverse(row.age), row.policy, row.values.to_string()));
    rows
}

fn is_over(entry: &Entry, now: Instant) -> bool {
    now.saturating_duration_since(entry.last) >= LIFETIME
}

/// Values under the names that their fields have in a configuration.
#[must_use]
pub(super) fn named(values: &PacketValues) -> Value {
    let PacketValues { local, remote, protocol, local_port, remote_port, message } = *values;
    let message = message.map(|message| PortRange::one(message).messages().to_string());
    let words =
        [json!(local), json!(remote), json!(protocol), json!(local_port), json!(remote_port), json!(message)];
    let all = PopulateFlags::NAMED.into_iter().map(|(name, _)| name.to_owned()).zip(words);
    all.filter(|(_, word)| !word.is_null()).collect::<Map<_, _>>().into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::service::populated::PopulatedTunnels;
    use crate::service::populated::tests::values;
    use testudo_ipsec::{Action, Policy, PolicyId, Selector, Spd};

    fn named_policies() -> [PopulatingId; 2] {
        let all = PopulatedTunnels::default();
        [all.name_policy(), all.name_policy()]
    }

    fn policy() -> PolicyId {
        Spd::new([Policy::new(Selector::ANY, Action::Bypass)]).unwrap().policies().next().unwrap().0
    }

    fn acquire(values: PacketValues) -> Acquire {
        Acquire { policy: policy(), values, packet: values, left_out: 3, worker: None }
    }

    #[test]
    fn an_entry_stays_while_it_is_told_of_and_for_half_a_minute_after() {
        let (mut wanted, start, [four, _]) = (Wanted::default(), Instant::now(), named_policies());
        let at = |seconds| start + Duration::from_secs(seconds);
        assert!(wanted.note(four, &acquire(values(1)), at(0)));
        assert!((1..=20).all(|second| !wanted.note(four, &acquire(values(1)), at(2 * second))));
        assert!(wanted.note(four, &acquire(values(2)), at(30)));
        let listed = |seconds| -> Vec<(PacketValues, u64)> {
            sorted(wanted.rows(at(seconds))).iter().map(|row| (row.values, row.age.as_secs())).collect()
        };
        assert_eq!(listed(41), [(values(1), 41), (values(2), 11)]);
        assert_eq!(listed(65), [(values(1), 65)]);
        assert_eq!(listed(70), []);
        assert_eq!([41, 65, 70].map(|seconds| wanted.count(at(seconds))), [2, 1, 0]);
        assert_eq!(wanted.counts(), (22, 66));
        assert!(wanted.note(four, &acquire(values(1)), at(100)), "it asks anew");
        assert_eq!(wanted.rows(at(101))[0].age, Duration::from_secs(1));
    }

    #[test]
    fn what_is_answered_is_wanted_no_more() {
        let (mut wanted, now, [four, five]) = (Wanted::default(), Instant::now(), named_policies());
        wanted.note(four, &acquire(values(1)), now);
        wanted.note(five, &acquire(values(1)), now);
        wanted.answered(four, &values(1));
        assert_eq!(wanted.rows(now).iter().map(|row| row.policy).collect::<Vec<_>>(), [five]);
        wanted.retain(|policy| policy != five);
        assert_eq!(wanted.count(now), 0);
    }

    /// More flows than have room: those that came first stay for as long as they ask, all others are counted,
    /// and once they are over there is room again.
    #[test]
    fn a_flood_fills_the_list_and_nothing_more() {
        let (mut wanted, start, [one, _]) = (Wanted::default(), Instant::now(), named_policies());
        let flow = |number: u32| PacketValues {
            remote: Some(std::net::Ipv4Addr::from_bits(number).into()),
            ..PacketValues::default()
        };
        let quiet = |values| Acquire { left_out: 0, ..acquire(values) };
        let noted = (0..100_000).filter(|number| wanted.note(one, &quiet(flow(*number)), start)).count();
        assert_eq!((noted, wanted.entries.len()), (MAX_WANTED, MAX_WANTED));
        assert_eq!(wanted.counts(), (100_000, (100_000 - MAX_WANTED) as u64));
        assert!(wanted.note(one, &quiet(flow(200_000)), start + LIFETIME));
        assert_eq!(wanted.entries.len(), 1);
    }

    #[test]
    fn values_have_the_names_of_the_configuration() {
        let values = PacketValues { protocol: Some(1), message: Some(0x0800), ..values(7) };
        assert_eq!(named(&values), json!({ "remote": "10.2.0.7", "protocol": 1, "types": "8/0" }));
    }
}
