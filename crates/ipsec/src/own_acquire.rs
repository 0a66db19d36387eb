//! Workers that ask for SAs of their own under a tunnel whose SAs somebody negotiates (RFC 9611 3).
//!
//! Packets of such a tunnel go through the SA of all workers, the fallback. The first of them that comes to a
//! worker without an SA of its own tells those who exchange keys, once for that worker, and does not wait:
//!
//! ```text
//!   armed ─► a packet: acquire ─► asked ─► its own SA is in use
//!     ▲                             │
//!     └──────── 30 seconds ◄────────┘
//! ```
//!
//! Where single policies of the tunnel want that, packets of the others do not take the worker's turn: it
//! stays armed, and after some of them it waits a little. From then on it is armed for a while now and then:
//! long enough to meet a policy of ten packets a second, for one packet in sixty at most if they are many.
//!
//! While a worker is armed, its table of SAs in use has none for the tunnel, so that the packet takes the
//! slow path, as one that finds no SA. So no packet pays for it while nobody is to be asked.

use crate::Ipsec;
use crate::acquire::Acquire;
use crate::event::{Event, EventKind};
use crate::lifetime::Moment;
use crate::sa::Tunnel;
use crate::slots::SaRef;
use crate::spd::{Flow, PacketValues, TunnelIndex};
use std::time::Duration;

/// After this time a worker that still has none asks again: Linux's `net.core.xfrm_acq_expires`. The fallback
/// carries its packets, and a peer that wants no more SAs is not to be asked all the time (RFC 9611 4).
pub const ASK_AGAIN: Duration = Duration::from_secs(30);
/// The same where the limits of acquires had no room.
const RETRY: Duration = Duration::from_secs(2);
/// Packets of policies that want no such SA while a worker is armed, each of which takes the slow path: after
/// so many it is not, for as long as [`RETRY`]. Fewer in a [`LOOK`] cost too little to rest.
const PASSED_OVER: u32 = 1024;
/// How long it is armed after that: a policy of ten packets a second has one in that time, however regular.
const LOOK: Duration = Duration::from_millis(120);
/// How long it rests between two of these: there are three in half a minute, for packets that come at random.
const REST: Duration = Duration::from_secs(8);
/// Tunnels that are armed again at a time.
const ARMED_AT_A_TIME: usize = 256;

/// That a worker is to have an SA of its own under a tunnel.
#[derive(Debug, Clone, Copy)]
pub(crate) struct WantsOwn {
    /// The worker, by its index.
    worker: u32,
    /// Packets of policies that want none: since it is armed, or since `since`, when the first of them came.
    passed_over: u32,
    since: Moment,
    /// It has rested since it asked.
    has_rested: bool,
    /// Until when it does not ask; `None` while it is armed.
    quiet_until: Option<Moment>,
}

impl WantsOwn {
    /// Armed from now on.
    fn new(worker: u32) -> Self {
        Self { worker, passed_over: 0, since: Moment::default(), has_rested: false, quiet_until: None }
    }

    /// Counts a packet of a policy that wants none. Returns how long it is to rest, if there were too many.
    fn pass_over(&mut self, now: Moment) -> Option<Duration> {
        if self.passed_over == 0 {
            self.since = now;
        }
        self.passed_over = self.passed_over.saturating_add(1);
        let are_many = self.passed_over >= PASSED_OVER;
        if !self.has_rested {
            self.has_rested = are_many;
            return are_many.then_some(RETRY);
        }
        if now.since(self.since) < LOOK {
            return None;
        }
        self.passed_over = 0;
        are_many.then_some(REST)
    }
}

impl Tunnel {
    /// Whether the next packet of this worker asks for an SA of its own.
    pub(crate) fn is_armed(&self) -> bool {
        let is_quiet = self.wants_own.is_none_or(|wants| wants.quiet_until.is_some());
        !is_quiet && self.own_in_use.is_none()
    }
}

impl Ipsec {
    /// Has the worker with this index, which is this one, ask for an SA of its own under a tunnel that
    /// [acquires](crate::TunnelParameters::acquires) while it has none; `None` ends that. `false` if there is
    /// no such tunnel. Where it is so already, nothing changes: who has asked just now does not ask again.
    pub fn want_own(&mut self, index: TunnelIndex, worker: Option<u32>) -> bool {
        let Some(tunnel) = self.tunnel(index) else { return false };
        // With typed-in keys nobody makes SAs when asked.
        let worker = worker.filter(|_| tunnel.parameters.acquires);
        if tunnel.wants_own.map(|wants| wants.worker) == worker {
            return true;
        }
        self.be_quiet_no_more(index);
        let Some(tunnel) = self.tunnels.get_mut(index.0 as usize).and_then(Option::as_mut) else {
            return false;
        };
        tunnel.wants_own = worker.map(WantsOwn::new);
        self.settle_way(index);
        true
    }

    /// Forgets until when a tunnel does not ask.
    pub(crate) fn be_quiet_no_more(&mut self, index: TunnelIndex) {
        let wants = self.tunnel(index).and_then(|tunnel| tunnel.wants_own);
        if let Some(quiet_until) = wants.and_then(|wants| wants.quiet_until) {
            self.quiet.remove(&(quiet_until, index));
        }
    }

    /// Of a packet that found no SA only since this worker is armed, or was when its batch came: the SA of
    /// all workers, through which it goes. Asks for one of this worker's own if it is the first.
    pub(crate) fn ask_for_own(
        &mut self,
        index: TunnelIndex,
        flow: Option<&Flow>,
        now: Moment,
    ) -> Option<SaRef> {
        let tunnel = self.tunnel(index)?;
        let (wants, way) = (tunnel.wants_own?, tunnel.way()?);
        if !tunnel.is_armed() {
            return Some(way);
        }
        // A later fragment hides what it would ask with: the next packet asks.
        let Some(flow) = flow else { return Some(way) };
        let packet = PacketValues::shown(flow);
        let (Some(policy), Some(sender)) = (self.policies_of(index).lookup(flow).1, packet.local) else {
            return Some(way);
        };
        if !self.spd.get(policy).is_some_and(|policy| policy.asks_for_own) {
            self.pass_over(index, now);
            return Some(way);
        }
        let mut pause = RETRY;
        // By the values of the packet: the acquire of a tunnel that has no SA at all is another one.
        if let Some(left_out) = self.acquires.admit(policy, &packet, sender, now) {
            let (values, worker) = (PacketValues::default(), Some(wants.worker));
            let acquire = Acquire { policy, values, packet, left_out, worker };
            self.events.push(Event { tunnel: index, kind: EventKind::Acquire(acquire) });
            pause = ASK_AGAIN;
        }
        if let Some(wants) = self.wants_own_mut(index) {
            wants.has_rested = false;
        }
        self.set_quiet_until(index, Some(Moment(now.0 + pause)));
        Some(way)
    }

    /// Counts a packet of a policy that wants no SA for each worker.
    fn pass_over(&mut self, index: TunnelIndex, now: Moment) {
        if let Some(rest) = self.wants_own_mut(index).and_then(|wants| wants.pass_over(now)) {
            self.set_quiet_until(index, Some(Moment(now.0 + rest)));
        }
    }

    fn wants_own_mut(&mut self, index: TunnelIndex) -> Option<&mut WantsOwn> {
        self.tunnels.get_mut(index.0 as usize)?.as_mut()?.wants_own.as_mut()
    }

    fn set_quiet_until(&mut self, index: TunnelIndex, quiet_until: Option<Moment>) {
        let Some(wants) = self.wants_own_mut(index) else { return };
        (wants.quiet_until, wants.passed_over) = (quiet_until, 0);
        self.quiet.extend(quiet_until.map(|until| (until, index)));
        self.settle_way(index);
    }

    /// Arms the tunnels again that have asked long ago. To be called about once a second.
    pub(crate) fn ask_for_own_again(&mut self, now: Moment) {
        for _ in 0..ARMED_AT_A_TIME {
            let Some((until, index)) = self.quiet.first().copied().filter(|(until, _)| *until <= now) else {
                return;
            };
            self.quiet.remove(&(until, index));
            self.set_quiet_until(index, None);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(us: u64) -> Moment {
        Moment(Duration::from_micros(us))
    }

    /// Packets of other policies every so many microseconds, and one that asks each tenth of a second, if it
    /// has a phase. Returns when that one meets an armed worker, and how many of the others did until then.
    fn run(others_us: u64, phase_us: Option<u64>) -> (u64, u64) {
        let mut wants = WantsOwn::new(0);
        let (mut quiet_until, mut slow) = (None, 0_u64);
        for us in (0..60_000_000_u64).step_by(usize::try_from(others_us).unwrap()) {
            // As once a second, of those that are to be armed again.
            if us % 1_000_000 < others_us && quiet_until.is_some_and(|until| until <= at(us)) {
                (quiet_until, wants.passed_over) = (None, 0);
            }
            if quiet_until.is_some() {
                continue;
            }
            let is_its_time = |phase| (us + 100_000 - phase) % 100_000 < others_us;
            // A burst of others has come before it: the first thousand have sent the worker to rest.
            if us > 100_000 && phase_us.is_some_and(is_its_time) {
                return (us, slow);
            }
            slow += 1;
            quiet_until = wants.pass_over(at(us)).map(|rest| Moment(at(us).0 + rest));
        }
        (u64::MAX, slow)
    }

    #[test]
    fn a_policy_of_ten_packets_a_second_asks_within_half_a_minute_beside_a_million_others() {
        for phase_us in (0..100_000).step_by(9_973) {
            let (asked_us, _) = run(1, Some(phase_us));
            assert!(asked_us < 30_000_000, "phase {phase_us}: after {asked_us} us");
        }
        let (asked_us, _) = run(200, Some(99_000));
        assert!(asked_us < 1_000_000, "few others cost too little to rest: after {asked_us} us");
    }

    /// Where nobody asks, packets of other policies take the fast path but for a few.
    #[test]
    fn of_many_packets_that_do_not_ask_one_in_sixty_takes_the_slow_path_at_most() {
        let (_, slow) = run(1, None);
        assert!((1024..1_000_000).contains(&slow), "{slow} of 60,000,000");
    }
}
