//! Acquires: a packet asks for an SA of its flow's own, whose policy [populates](crate::PopulateFlags) SAs
//! from packets, and which is not there yet (RFC 4301 5.1.1, step 3: "if there is no match in the cache, the
//! SPD is searched"; the messages of that name of RFC 2367 3.1.6 and of Linux's XFRM).
//!
//! The packet is dropped: with manual keys nobody knows whether an SA will come. A sender that wants it sends
//! again. Those who make SAs are told the values that the SA's selectors are to have. (Packets for tunnels
//! whose SAs are negotiated are told of in the same way, and wait: `crate::held`.)
//!
//! **A flood of new flows** costs for each packet lookups, a hash, and a look at the selectors of the policy
//! (256 at most), and nothing grows:
//!
//! - a flow is told of again after [`REPEAT`], not with each packet: the last [`TOLD`] flows are remembered;
//! - [`ACQUIRES_PER_SECOND`] are told in all, an eighth of them because of one address, and half because of
//!   one network. So hosts that flood leave room for all others, whose packets ask again;
//! - what is left out is counted, and told with the next one.

use crate::Ipsec;
use crate::event::{Event, EventKind};
use crate::fragments::{folded, mix};
use crate::lifetime::Moment;
use crate::parsed::ParsedBatch;
use crate::reply_budget::{Limits, ReplyBudget};
use crate::runs::{Disposition, Runs};
use crate::spd::{Flow, PacketValues, PolicyId, Wanted};
use std::net::IpAddr;
use std::time::Duration;
use testudo_packet::{DropReason, Interface};

/// Acquires at most in a second, of all flows together.
pub const ACQUIRES_PER_SECOND: u16 = 256;
const LIMITS: Limits =
    Limits { all: ACQUIRES_PER_SECOND, address: ACQUIRES_PER_SECOND / 8, network: ACQUIRES_PER_SECOND / 2 };
/// How long a flow that keeps sending is told of once.
const REPEAT: Duration = Duration::from_secs(2);
/// Flows that are remembered. More than are told of within [`REPEAT`], so that few take each other's place;
/// one that does is told of again earlier.
const TOLD: usize = 4096;

/// A flow wants an SA. It is told of at its first packet and then every two seconds while it sends, as far as
/// the limits for all flows, for one address and for one network allow. While packets wait for the SA of a
/// tunnel, that is told of again every second. A [worker](Self::worker) that has no SA of its own asks for it
/// with its next packet, and again every 30 seconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Acquire {
    /// The policy that populates the SA, or names the tunnel that has none.
    pub policy: PolicyId,
    /// The values that the SA is to be populated with; none for a tunnel that has none.
    pub values: PacketValues,
    /// All that the packet shows of itself: what a key exchange proposes first (RFC 7296 2.9).
    pub packet: PacketValues,
    /// Packets before this one that asked, and were not told of.
    pub left_out: u64,
    /// The worker that wants an SA of its own (RFC 9611), by its index, while its packets go through that of
    /// all; `None` where packets have no SA at all.
    pub worker: Option<u32>,
}

/// A flow that was told of.
#[derive(Debug, Clone, Copy)]
struct Told {
    policy: PolicyId,
    values: PacketValues,
    at: Moment,
}

/// What becomes of a packet that wants an SA.
pub(crate) const WANTED: Disposition = Disposition::Drop(DropReason::SaWanted);

/// What limits acquires.
#[derive(Debug)]
pub(crate) struct Acquires {
    /// Empty until the first one.
    told: Vec<Option<Told>>,
    budget: ReplyBudget,
    left_out: u64,
}

impl Default for Acquires {
    fn default() -> Self {
        Self { told: Vec::new(), budget: ReplyBudget::of(LIMITS), left_out: 0 }
    }
}

impl Acquires {
    /// Whether this flow is told of now: then, how many packets were not since the last one.
    pub(crate) fn admit(
        &mut self,
        policy: PolicyId,
        values: &PacketValues,
        sender: IpAddr,
        now: Moment,
    ) -> Option<u64> {
        if self.told.is_empty() {
            self.told = vec![None; TOLD];
        }
        let place = &mut self.told[slot_of(policy, values)];
        let is_same = |told: &Told| told.policy == policy && told.values == *values;
        if place.is_some_and(|told| is_same(&told) && now.since(told.at) < REPEAT) {
            return None;
        }
        if !self.budget.spend(now, sender) {
            self.left_out += 1;
            return None;
        }
        *place = Some(Told { policy, values: *values, at: now });
        Some(self.take_left_out())
    }

    /// How many packets asked and were not told of, which is told now.
    pub(crate) fn take_left_out(&mut self) -> u64 {
        std::mem::take(&mut self.left_out)
    }
}

/// Where a flow is remembered. Of flows that share a place, the one that comes later takes it, and the other
/// is told of more often.
fn slot_of(policy: PolicyId, values: &PacketValues) -> usize {
    let PacketValues { local, remote, protocol, local_port, remote_port, message } = *values;
    let number = |n: Option<u16>| n.map_or(0, |n| u64::from(n) + 1);
    let numbers = [
        policy.bits(),
        local.map_or(0, folded),
        remote.map_or(0, folded),
        number(protocol.map(u16::from)),
        number(local_port) << 32 | number(remote_port),
        number(message),
    ];
    let hash = numbers.into_iter().fold(0, |hash: u64, number| mix(hash.rotate_left(23) ^ number));
    usize::try_from(hash % TOLD as u64).unwrap_or(0)
}

impl Ipsec {
    /// Tells of the packets of a batch that want SAs of their own, which are not there yet. Those that do not
    /// show or have what their SA is populated with are discarded for that (RFC 4301 4.4.2.2).
    #[cold]
    #[inline(never)]
    pub(crate) fn acquire(&mut self, parsed: &ParsedBatch, runs: &mut Runs, now: Moment) {
        if !runs.have(WANTED) {
            return;
        }
        *runs = runs.revised(|place, disposition| match (disposition, parsed.flow(place)) {
            (WANTED, Some(flow)) => Disposition::Drop(self.ask_for(parsed.interface, &flow, now)),
            _ => disposition,
        });
    }

    /// Tells of a flow that has no SA. Returns the reason for which its packet is dropped.
    fn ask_for(&mut self, interface: Interface, flow: &Flow, now: Moment) -> DropReason {
        let packet = PacketValues::shown(flow);
        let wanted = self.spd.of(interface).wanted_by(flow);
        let (Some(wanted), Some(sender)) = (wanted, packet.local) else {
            return DropReason::FieldsHidden;
        };
        let Wanted { template, policy, values } = wanted;
        if let Some(left_out) = self.acquires.admit(policy, &values, sender, now) {
            let acquire = Acquire { policy, values, packet, left_out, worker: None };
            self.events.push(Event { tunnel: template, kind: EventKind::Acquire(acquire) });
        }
        DropReason::SaWanted
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spd::{Policy, PopulateFlags, Selector, Spd, TunnelIndex};

    fn policy() -> PolicyId {
        let policy = Policy::populating(Selector::ANY, TunnelIndex(0), PopulateFlags::LOCAL);
        Spd::new([policy]).unwrap().policies().next().unwrap().0
    }

    fn at(milliseconds: u64) -> Moment {
        Moment(Duration::from_millis(milliseconds))
    }

    fn from(number: u32) -> (IpAddr, PacketValues) {
        let local = IpAddr::V4((0x0A00_0000 + number).into());
        (local, PacketValues { local: Some(local), ..PacketValues::default() })
    }

    #[test]
    fn a_flow_is_told_of_once_and_again_after_a_while() {
        let (mut acquires, policy, (sender, values)) = (Acquires::default(), policy(), from(1));
        let mut told = |now| acquires.admit(policy, &values, sender, at(now));
        assert_eq!(told(1000), Some(0));
        assert!((1001..3000).all(|now| told(now).is_none()));
        assert_eq!(told(3000), Some(0), "what was told before is not left out");
        assert_eq!(told(3001), None);
    }

    /// New flows of one host, a million in ten seconds: it gets its share, others get theirs, memory does not
    /// grow, and nothing that was left out is forgotten.
    #[test]
    fn a_host_that_floods_leaves_room_for_others_and_is_counted() {
        let (mut acquires, policy) = (Acquires::default(), policy());
        let (mut of_flood, mut of_others, mut left_out) = (0, 0, 0);
        for number in 0..1_000_000_u32 {
            let now = at(u64::from(number) / 100);
            let values =
                PacketValues { remote_port: Some((number % 60_000) as u16), ..from(number / 60_000).1 };
            let told = acquires.admit(policy, &values, from(7).0, now);
            of_flood += u32::from(told.is_some());
            left_out += told.unwrap_or(0);
            if number % 1000 == 999 {
                // A hundred other networks, each of which asks ten times in as many seconds.
                let (sender, values) = from(number / 1000 % 100 * 256 + 0x1_0000);
                let told = acquires.admit(policy, &values, sender, now);
                of_others += u32::from(told.is_some());
                left_out += told.unwrap_or(0);
            }
        }
        assert_eq!(of_flood, 10 * u32::from(LIMITS.address));
        // Each is told of every two seconds, and a few more often, whose place another one has taken.
        assert!((500..560).contains(&of_others), "{of_others}");
        assert_eq!(acquires.told.len(), TOLD);
        assert_eq!(left_out + acquires.left_out, u64::from(1_000_000 - of_flood));
    }

    #[test]
    fn all_flows_together_are_told_of_so_often_in_a_second() {
        let (mut acquires, policy) = (Acquires::default(), policy());
        for second in [1, 2, 9] {
            let asked = (0..50_000).filter(|number| {
                let (sender, values) = from(second * 0x40_0000 + number * 64);
                acquires.admit(policy, &values, sender, at(u64::from(second) * 1000 + 500)).is_some()
            });
            assert_eq!(asked.count(), usize::from(ACQUIRES_PER_SECOND), "second {second}");
        }
    }
}
