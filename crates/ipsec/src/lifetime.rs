//! Lifetimes of SAs (RFC 4301 4.4.2.1): by bytes, packets and time, each with a soft limit that warns and a
//! hard limit that stops.

use crate::shared_use::{SharedUse, Taken};
use std::sync::Arc;
use std::time::Duration;

/// A moment on the gateway's monotonic clock: the time since that clock started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Hash)]
pub struct Moment(pub Duration);

impl Moment {
    /// Time since an earlier moment; zero if it is later.
    #[must_use]
    pub fn since(self, earlier: Moment) -> Duration {
        self.0.saturating_sub(earlier.0)
    }
}

/// Amounts at which a limit is reached; `None` is never.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Limits {
    /// Inner bytes.
    pub bytes: Option<u64>,
    /// Packets.
    pub packets: Option<u64>,
    /// Time since the SA's key was first installed.
    pub time: Option<Duration>,
}

/// What a key has used of its lifetime before its SA was installed: before a restart, or under other
/// settings.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Spent {
    /// Inner bytes.
    pub bytes: u64,
    /// Packets.
    pub packets: u64,
    /// Time since the key was first installed.
    pub time: Duration,
}

/// The soft and the hard limits of an SA.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Lifetime {
    /// Where the operator is warned.
    pub soft: Limits,
    /// Where the SA stops.
    pub hard: Limits,
}

/// The state of an SA after a packet was counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LifetimeState {
    /// Below all limits, or warned before.
    Alive,
    /// This packet reached a soft limit, the first to do so.
    SoftReached,
    /// At a hard limit: no further packet may pass.
    Expired,
}

/// What an SA has used of its lifetime, or what one of several workers has.
///
/// Limits are checked only when one is near: `attention` is the nearest of each kind that is still ahead. Of
/// a lifetime that workers share it is the end of what this one has in hand.
#[derive(Debug)]
#[repr(C)]
pub struct LifetimeUse {
    bytes: u64,
    packets: u64,
    attention: Amounts,
    limits: Box<LimitsOf>,
}

/// Amounts below which no limit is reached.
#[derive(Debug, Clone, Copy)]
struct Amounts {
    bytes: u64,
    packets: u64,
    at: Moment,
}

#[derive(Debug)]
struct LimitsOf {
    /// `None` without any limit: key exchanges keep their limits to themselves, and make very many SAs.
    lifetime: Option<Box<Lifetime>>,
    installed: Moment,
    /// Age of the key at that moment.
    age: Duration,
    warned: bool,
    shared: Option<Arc<SharedUse>>,
}

impl LifetimeUse {
    /// An unused lifetime that begins at `installed`.
    #[must_use]
    pub fn new(lifetime: Lifetime, installed: Moment) -> Self {
        Self::resumed(lifetime, installed, Spent::default())
    }

    /// A lifetime of which `spent` is used at `installed`. An earlier warning of a soft limit is repeated
    /// once.
    #[must_use]
    pub fn resumed(lifetime: Lifetime, installed: Moment, spent: Spent) -> Self {
        let limits = LimitsOf::new(lifetime, installed, spent.time, None);
        let attention = limits.attention();
        Self { bytes: spent.bytes, packets: spent.packets, attention, limits }
    }

    /// What one of several workers uses of a lifetime that they share, of which `spent` was used before any
    /// of them.
    pub(crate) fn sharing(
        lifetime: Lifetime,
        installed: Moment,
        spent: Spent,
        shared: &Arc<SharedUse>,
    ) -> Self {
        shared.begin(spent);
        let limits = LimitsOf::new(lifetime, installed, spent.time, Some(Arc::clone(shared)));
        Self { bytes: 0, packets: 0, attention: limits.with_nothing_in_hand(), limits }
    }

    /// The same use, and `more` of elsewhere, under other limits. Of a lifetime that workers share, `more` is
    /// added once for each of them that calls this.
    #[must_use]
    pub fn under(mut self, lifetime: Lifetime, more: Spent) -> Self {
        self.settle();
        let age = self.limits.age.saturating_add(more.time);
        let shared = self.limits.shared.take();
        let limits = LimitsOf::new(lifetime, self.limits.installed, age, shared);
        if let Some(shared) = &limits.shared {
            shared.begin_anew(more);
            return Self { bytes: 0, packets: 0, attention: limits.with_nothing_in_hand(), limits };
        }
        let attention = limits.attention();
        let bytes = self.bytes.saturating_add(more.bytes);
        Self { bytes, packets: self.packets.saturating_add(more.packets), attention, limits }
    }

    /// Whether the SA has reached a hard limit.
    #[must_use]
    #[inline]
    pub fn is_expired(&mut self, now: Moment) -> bool {
        self.is_near(0, 0, now) && self.is_over(now)
    }

    /// Counts `packets` packets with `bytes` inner bytes in total, unless that could reach a limit. Then it
    /// returns `false`, with nothing counted, and [`count`](Self::count) finds the limit.
    #[inline]
    pub fn count_run(&mut self, packets: u64, bytes: u64, now: Moment) -> bool {
        if self.is_near(packets, bytes, now) {
            return false;
        }
        self.count_far(packets, bytes);
        true
    }

    /// The same for a caller that has just checked that no limit [is near](Self::is_near), with amounts no
    /// smaller.
    #[inline]
    pub(crate) fn count_far(&mut self, packets: u64, bytes: u64) {
        self.packets += packets;
        self.bytes += bytes;
    }

    /// Counts a packet of `bytes` inner bytes. The packet that reaches a hard limit is the last to pass;
    /// later ones are not counted.
    #[inline]
    pub fn count(&mut self, bytes: u64, now: Moment) -> LifetimeState {
        if self.count_run(1, bytes, now) {
            return LifetimeState::Alive;
        }
        if self.is_expired(now) {
            return LifetimeState::Expired;
        }
        self.packets = self.packets.saturating_add(1);
        self.bytes = self.bytes.saturating_add(bytes);
        self.look_at_soft(now)
    }

    /// Whether this call is the first to tell that a hard limit was reached, of all workers that share it.
    pub(crate) fn tells_end(&self) -> bool {
        self.limits.shared.as_ref().is_none_or(|shared| shared.tell_end())
    }

    fn look_at_soft(&mut self, now: Moment) -> LifetimeState {
        if self.limits.warned || !self.reached(|lifetime| &lifetime.soft, now) {
            return LifetimeState::Alive;
        }
        self.limits.warned = true;
        let attention = self.limits.attention();
        let Some(shared) = &self.limits.shared else {
            self.attention = attention;
            return LifetimeState::SoftReached;
        };
        self.attention.at = attention.at;
        if shared.warn() { LifetimeState::SoftReached } else { LifetimeState::Alive }
    }

    /// The state of the SA without a packet. A soft limit is reported once, by one of the workers that share
    /// a lifetime.
    pub fn look(&mut self, now: Moment) -> LifetimeState {
        let is_expired = match self.limits.shared.clone() {
            None => self.is_expired(now),
            Some(shared) => {
                // It takes no share: there is no packet.
                self.settle();
                let is_expired = shared.has_ended() || self.reached(|lifetime| &lifetime.hard, now);
                if is_expired {
                    self.end(&shared);
                }
                is_expired
            }
        };
        if is_expired { LifetimeState::Expired } else { self.look_at_soft(now) }
    }

    /// Whether a limit is reached, or would be with these amounts added.
    #[must_use]
    #[inline]
    pub fn is_near(&self, packets: u64, bytes: u64, now: Moment) -> bool {
        self.packets.saturating_add(packets) >= self.attention.packets
            || self.bytes.saturating_add(bytes) >= self.attention.bytes
            || now >= self.attention.at
    }

    /// Whether a hard limit is reached. If not, there is something in hand for one more packet.
    #[cold]
    fn is_over(&mut self, now: Moment) -> bool {
        let Some(shared) = self.limits.shared.clone() else {
            return self.reached(|lifetime| &lifetime.hard, now);
        };
        let is_old = self.limits.is_older(|lifetime| &lifetime.hard, now);
        let is_over = shared.has_ended() || is_old || !self.take_shares(&shared);
        if is_over {
            self.settle();
            self.end(&shared);
        }
        is_over
    }

    /// No worker may use more.
    fn end(&mut self, shared: &SharedUse) {
        shared.end();
        self.attention.packets = self.packets;
    }

    /// Takes what a worker has nothing of in hand. `false` if a hard limit is reached.
    fn take_shares(&mut self, shared: &SharedUse) -> bool {
        self.limits.warned |= shared.is_warned();
        let near = self.limits.attention();
        let hard = self.limits.lifetime.as_deref().map(|lifetime| lifetime.hard).unwrap_or_default();
        self.attention.at = near.at;
        let kinds = [
            (&shared.packets, self.packets, &mut self.attention.packets, near.packets, hard.packets),
            (&shared.bytes, self.bytes, &mut self.attention.bytes, near.bytes, hard.bytes),
        ];
        for (taken, used, end, near, hard) in kinds {
            if near == u64::MAX {
                *end = near;
            } else if used >= *end {
                let Some(share) = taken.take(used - *end, near, hard) else {
                    *end = used;
                    return false;
                };
                *end = used + share;
            }
        }
        true
    }

    /// Tells the workers that share the lifetime what this one has used, and has nothing in hand then.
    fn settle(&mut self) {
        let Some(shared) = &self.limits.shared else { return };
        let kinds: [(&Taken, u64, &mut u64); 2] = [
            (&shared.packets, self.packets, &mut self.attention.packets),
            (&shared.bytes, self.bytes, &mut self.attention.bytes),
        ];
        for (taken, used, end) in kinds.into_iter().filter(|(_, _, end)| **end != u64::MAX) {
            taken.settle(used, *end);
            *end = used;
        }
    }

    #[cold]
    fn reached(&self, limits: fn(&Lifetime) -> &Limits, now: Moment) -> bool {
        let (packets, bytes) = match &self.limits.shared {
            None => (self.packets, self.bytes),
            Some(shared) => (shared.packets.amount(), shared.bytes.amount()),
        };
        let Some(amounts) = self.limits.lifetime.as_deref().map(limits) else { return false };
        amounts.packets.is_some_and(|n| packets >= n)
            || amounts.bytes.is_some_and(|n| bytes >= n)
            || self.limits.is_older(limits, now)
    }
}

/// A worker that ends leaves to the others what it has in hand.
impl Drop for LifetimeUse {
    fn drop(&mut self) {
        self.settle();
    }
}

/// The limits, if there are any.
fn limits_in(lifetime: Lifetime) -> Option<Box<Lifetime>> {
    (lifetime != Lifetime::default()).then(|| Box::new(lifetime))
}

impl LimitsOf {
    fn new(
        lifetime: Lifetime,
        installed: Moment,
        age: Duration,
        shared: Option<Arc<SharedUse>>,
    ) -> Box<Self> {
        Box::new(Self { lifetime: limits_in(lifetime), installed, age, warned: false, shared })
    }

    /// Whether a limit of time is reached.
    fn is_older(&self, limits: fn(&Lifetime) -> &Limits, now: Moment) -> bool {
        let time = self.lifetime.as_deref().and_then(|lifetime| limits(lifetime).time);
        time.is_some_and(|t| now >= self.moment_of(t))
    }

    /// What is near for a worker that has yet to take a share.
    fn with_nothing_in_hand(&self) -> Amounts {
        let none_of = |limit: u64| if limit == u64::MAX { limit } else { 0 };
        let Amounts { bytes, packets, at } = self.attention();
        Amounts { bytes: none_of(bytes), packets: none_of(packets), at }
    }

    /// When the key reaches this age.
    fn moment_of(&self, age: Duration) -> Moment {
        Moment(self.installed.0.saturating_add(age.saturating_sub(self.age)))
    }

    /// The nearest limits: the hard ones, and the soft ones until the warning.
    fn attention(&self) -> Amounts {
        let lifetime = self.lifetime.as_deref().copied().unwrap_or_default();
        let nearest = |limit: fn(&Limits) -> Option<u64>| {
            let soft = limit(&lifetime.soft).filter(|_| !self.warned);
            soft.into_iter().chain(limit(&lifetime.hard)).min().unwrap_or(u64::MAX)
        };
        let times = [lifetime.soft.time.filter(|_| !self.warned), lifetime.hard.time];
        let at = times.into_iter().flatten().min().map_or(Moment(Duration::MAX), |t| self.moment_of(t));
        Amounts { bytes: nearest(|l| l.bytes), packets: nearest(|l| l.packets), at }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Moment {
        Moment(Duration::from_secs(seconds))
    }

    #[test]
    fn packets_soft_then_hard() {
        let soft = Limits { packets: Some(2), ..Limits::default() };
        let hard = Limits { packets: Some(4), ..Limits::default() };
        let mut used = LifetimeUse::new(Lifetime { soft, hard }, at(0));
        let states: Vec<_> = (0..5).map(|_| used.count(100, at(1))).collect();
        use LifetimeState::{Alive, Expired, SoftReached};
        assert_eq!(states, [Alive, SoftReached, Alive, Alive, Expired]);
        assert!(used.is_expired(at(1)));
    }

    #[test]
    fn time_is_noticed_without_packets_and_warned_of_once() {
        let soft = Limits { time: Some(Duration::from_secs(5)), ..Limits::default() };
        let hard = Limits { time: Some(Duration::from_secs(8)), ..Limits::default() };
        let mut used = LifetimeUse::new(Lifetime { soft, hard }, at(0));
        let states: Vec<_> = [4, 5, 6, 8, 9].map(|t| used.look(at(t))).into();
        use LifetimeState::{Alive, Expired, SoftReached};
        assert_eq!(states, [Alive, SoftReached, Alive, Expired, Expired]);
    }

    #[test]
    fn a_run_is_counted_only_below_every_limit() {
        let soft = Limits { packets: Some(10), ..Limits::default() };
        let hard = Limits { packets: Some(20), bytes: Some(5000), time: Some(Duration::from_secs(9)) };
        let mut used = LifetimeUse::new(Lifetime { soft, hard }, at(0));
        assert!(used.count_run(9, 900, at(1)));
        assert!(!used.count_run(1, 100, at(1)), "the tenth packet is to be warned of");
        assert_eq!(used.count(100, at(1)), LifetimeState::SoftReached);
        assert!(used.count_run(9, 900, at(1)));
        assert!(!used.count_run(1, 100, at(1)), "the twentieth packet is the last");
        assert_eq!(used.count(100, at(1)), LifetimeState::Alive);
        assert_eq!(used.count(100, at(1)), LifetimeState::Expired);

        let mut used = LifetimeUse::new(Lifetime { soft, hard }, at(0));
        assert!(!used.count_run(2, 5000, at(1)) && !used.count_run(1, 1, at(9)));
        assert!(used.count_run(2, 4999, at(8)));
        assert!(!used.count_run(1, u64::MAX, at(8)));
    }

    #[test]
    fn earlier_usage_counts() {
        let hard = Limits { packets: Some(4), bytes: Some(1000), time: Some(Duration::from_secs(10)) };
        let lifetime = Lifetime { hard, ..Lifetime::default() };
        let resumed = |packets, bytes, seconds| {
            let spent = Spent { packets, bytes, time: Duration::from_secs(seconds) };
            LifetimeUse::resumed(lifetime, at(3), spent)
        };
        use LifetimeState::{Alive, Expired};
        let mut used = resumed(3, 300, 0);
        assert_eq!([used.count(100, at(3)), used.count(100, at(3))], [Alive, Expired]);
        let mut used = resumed(0, 900, 0);
        assert_eq!([used.count(100, at(3)), used.count(1, at(3))], [Alive, Expired]);
        assert_eq!([9, 10].map(|t| resumed(1, 1, 3).look(at(t))), [Alive, Expired], "three of ten seconds");
        assert!(resumed(4, 0, 0).is_expired(at(3)) && resumed(0, 0, 11).is_expired(at(3)));
        let mut used = resumed(u64::MAX, u64::MAX, u64::MAX);
        assert_eq!(used.count(1, at(3)), Expired);
        let spent = Spent { packets: u64::MAX, bytes: u64::MAX, time: Duration::MAX };
        let mut used = LifetimeUse::resumed(Lifetime::default(), at(3), spent);
        assert_eq!(used.count(1, at(3)), Alive, "without limits nothing ends");
    }

    #[test]
    fn a_soft_limit_that_was_reached_before_is_warned_of_once_more() {
        let soft = Limits { packets: Some(2), ..Limits::default() };
        let spent = Spent { packets: 2, ..Spent::default() };
        let mut used = LifetimeUse::resumed(Lifetime { soft, ..Lifetime::default() }, at(0), spent);
        assert_eq!([used.look(at(0)), used.look(at(1))], [LifetimeState::SoftReached, LifetimeState::Alive]);
    }

    #[test]
    fn bytes_and_time_expire_too() {
        let hard = Limits { bytes: Some(250), time: Some(Duration::from_secs(10)), ..Limits::default() };
        let mut used = LifetimeUse::new(Lifetime { hard, ..Lifetime::default() }, at(5));
        assert_eq!(used.count(100, at(6)), LifetimeState::Alive);
        assert!(!used.is_expired(at(14)));
        assert!(used.is_expired(at(15)));
        assert_eq!(used.count(200, at(14)), LifetimeState::Alive);
        assert_eq!(used.count(1, at(14)), LifetimeState::Expired);
    }
}
