//! Lifetimes of SAs (RFC 4301 4.4.2.1): by bytes, packets and time, each with a soft limit that warns and a
//! hard limit that stops.

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

/// What an SA has used of its lifetime.
///
/// Limits are checked only when one is near: `attention` is the nearest of each kind that is still ahead.
#[derive(Debug, Clone)]
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

#[derive(Debug, Clone)]
struct LimitsOf {
    /// `None` without any limit: key exchanges keep their limits to themselves, and make very many SAs.
    lifetime: Option<Box<Lifetime>>,
    installed: Moment,
    /// Age of the key at that moment.
    age: Duration,
    warned: bool,
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
        let limits = LimitsOf { lifetime: limits_in(lifetime), installed, age: spent.time, warned: false };
        let limits = Box::new(limits);
        let attention = limits.attention();
        Self { bytes: spent.bytes, packets: spent.packets, attention, limits }
    }

    /// The same use, and `more` of elsewhere, under other limits.
    #[must_use]
    pub fn under(&self, lifetime: Lifetime, more: Spent) -> Self {
        let age = self.limits.age.saturating_add(more.time);
        let installed = self.limits.installed;
        let limits = Box::new(LimitsOf { lifetime: limits_in(lifetime), installed, age, warned: false });
        let attention = limits.attention();
        let bytes = self.bytes.saturating_add(more.bytes);
        Self { bytes, packets: self.packets.saturating_add(more.packets), attention, limits }
    }

    /// Whether the SA has reached a hard limit.
    #[must_use]
    #[inline]
    pub fn is_expired(&self, now: Moment) -> bool {
        self.is_near(0, 0, now) && self.reached(|lifetime| &lifetime.hard, now)
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

    fn look_at_soft(&mut self, now: Moment) -> LifetimeState {
        if !self.limits.warned && self.reached(|lifetime| &lifetime.soft, now) {
            self.limits.warned = true;
            self.attention = self.limits.attention();
            return LifetimeState::SoftReached;
        }
        LifetimeState::Alive
    }

    /// The state of the SA without a packet. A soft limit is reported once.
    pub fn look(&mut self, now: Moment) -> LifetimeState {
        if self.is_expired(now) {
            return LifetimeState::Expired;
        }
        self.look_at_soft(now)
    }

    /// Whether a limit is reached, or would be with these amounts added.
    #[must_use]
    #[inline]
    pub fn is_near(&self, packets: u64, bytes: u64, now: Moment) -> bool {
        self.packets.saturating_add(packets) >= self.attention.packets
            || self.bytes.saturating_add(bytes) >= self.attention.bytes
            || now >= self.attention.at
    }

    #[cold]
    fn reached(&self, limits: fn(&Lifetime) -> &Limits, now: Moment) -> bool {
        let Some(limits) = self.limits.lifetime.as_deref().map(limits) else { return false };
        limits.packets.is_some_and(|n| self.packets >= n)
            || limits.bytes.is_some_and(|n| self.bytes >= n)
            || limits.time.is_some_and(|t| now >= self.limits.moment_of(t))
    }
}

/// The limits, if there are any.
fn limits_in(lifetime: Lifetime) -> Option<Box<Lifetime>> {
    (lifetime != Lifetime::default()).then(|| Box::new(lifetime))
}

impl LimitsOf {
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
