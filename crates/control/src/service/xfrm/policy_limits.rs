//! Policies that end by themselves: the limits in seconds that clients give them, as `xfrm_policy_timer` of
//! Linux keeps them. Limits of bytes and packets are shown, and the kernel heeds none of them.

use super::data_path::DataPath;
use super::server::{Notification, Now, Xfrm, notification};
use std::collections::{BTreeMap, BTreeSet};
use testudo_wire::xfrm::group;
use testudo_wire::xfrm::lifetime::LifetimeConfig;
use testudo_wire::xfrm::message::{Body, Message};
use testudo_wire::xfrm::notification::PolicyExpire;

/// A soft limit is told again after this time (`XFRM_KM_TIMEOUT`).
const TOLD_AGAIN_S: u64 = 30;
/// Policies that are looked at in a second at most, so that many that end at once do not keep others waiting.
const LOOKED_AT: usize = 256;

/// Which policies have limits, and when they are to be looked at, by the clock that nobody sets.
#[derive(Debug, Default)]
pub(super) struct PolicyLimits {
    /// By index: when it was added, and when it is due.
    policies: BTreeMap<u32, (u64, u64)>,
    due: BTreeSet<(u64, u32)>,
}

impl PolicyLimits {
    /// A policy was added or updated.
    pub(super) fn note(&mut self, index: u32, limits: &LifetimeConfig, now_s: u64) {
        self.forget(index);
        if let Some(next_s) = seconds(limits).into_iter().filter(|limit| *limit != 0).min() {
            self.set_due(index, now_s, now_s.saturating_add(next_s));
        }
    }

    pub(super) fn forget(&mut self, index: u32) {
        if let Some((_, due_s)) = self.policies.remove(&index) {
            self.due.remove(&(due_s, index));
        }
    }

    fn set_due(&mut self, index: u32, added_s: u64, due_s: u64) {
        self.policies.insert(index, (added_s, due_s));
        self.due.insert((due_s, index));
    }

    /// The next policy to be looked at, with the time when it was added.
    fn pop_due(&mut self, now_s: u64) -> Option<(u32, u64)> {
        let (_, index) = self.due.first().filter(|(due_s, _)| *due_s <= now_s).copied()?;
        self.due.pop_first();
        self.policies.remove(&index).map(|(added_s, _)| (index, added_s))
    }
}

fn seconds(limits: &LifetimeConfig) -> [u64; 4] {
    [limits.soft_added_s, limits.soft_used_s, limits.hard_added_s, limits.hard_used_s]
}

/// What limits say of a policy of some age that was not used for some time.
#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    Ended,
    /// Whether a soft limit is over, and the seconds until it is to be looked at again.
    Lives(bool, u64),
}

fn judge(limits: &LifetimeConfig, age_s: u64, idle_s: u64) -> Verdict {
    let is_over = |limit: u64, time: u64| limit != 0 && time >= limit;
    let [soft_added, soft_used, hard_added, hard_used] = seconds(limits);
    if is_over(hard_added, age_s) || is_over(hard_used, idle_s) {
        return Verdict::Ended;
    }
    let is_soft = is_over(soft_added, age_s) || is_over(soft_used, idle_s);
    let ahead = [(soft_added, age_s), (soft_used, idle_s), (hard_added, age_s), (hard_used, idle_s)];
    let next = ahead.into_iter().filter(|(limit, time)| limit > time).map(|(limit, time)| limit - time).min();
    let again = if is_soft { TOLD_AGAIN_S } else { u64::MAX };
    Verdict::Lives(is_soft, next.unwrap_or(u64::MAX).min(again))
}

impl<D: DataPath> Xfrm<D> {
    /// Ends policies whose hard limit is over, and tells of soft ones. Returns what those who listen are
    /// told.
    pub(super) fn end_policies(&mut self, now: Now) -> Vec<Notification> {
        let mut told = Vec::new();
        for _ in 0..LOOKED_AT {
            let Some((index, added_s)) = self.policy_limits.pop_due(now.monotonic_s()) else { break };
            let Some(policy) = self.spd.get(index) else { continue };
            let shown = self.shown(&policy);
            let Body::NewPolicy(info) = shown.body else { continue };
            let age_s = now.monotonic_s().saturating_sub(added_s);
            let used_s = info.current.used_at_s;
            let idle_s = if used_s == 0 { age_s } else { now.unix_s.saturating_sub(used_s).min(age_s) };
            let verdict = judge(&info.lifetime, age_s, idle_s);
            if let Verdict::Lives(_, next_s) = verdict {
                let due_s = now.monotonic_s().saturating_add(next_s);
                self.policy_limits.set_due(index, added_s, due_s);
            }
            let is_hard = verdict == Verdict::Ended;
            if is_hard {
                self.drop_policy(index);
            }
            if !matches!(verdict, Verdict::Lives(false, _)) {
                let body = Body::PolicyExpire(PolicyExpire { policy: info, hard: is_hard.into() });
                told.push(notification(group::EXPIRE, 0, 0, &Message { body, ..shown }));
            }
        }
        told
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_judged_as_linux_does() {
        let limits = LifetimeConfig {
            soft_added_s: 10,
            hard_added_s: 100,
            soft_used_s: 20,
            hard_used_s: 40,
            ..LifetimeConfig::UNLIMITED
        };
        assert_eq!(judge(&limits, 0, 0), Verdict::Lives(false, 10));
        assert_eq!(judge(&limits, 10, 0), Verdict::Lives(true, 20));
        assert_eq!(judge(&limits, 95, 15), Verdict::Lives(true, 5));
        assert_eq!(judge(&limits, 50, 39), Verdict::Lives(true, 1));
        assert_eq!(judge(&limits, 50, 40), Verdict::Ended);
        assert_eq!(judge(&limits, 100, 0), Verdict::Ended);
        assert_eq!(judge(&LifetimeConfig::UNLIMITED, 1 << 40, 1 << 40), Verdict::Lives(false, u64::MAX));
    }
}
